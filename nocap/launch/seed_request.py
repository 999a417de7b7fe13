"""The seeds of each arm that a command asks for, as its runs' records and `grid.json` have them. No
torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nocap.store.times import now


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedRequest:
    """The seeds of an arm that the command asks for that trains its runs."""

    at: str  # when the command began
    seeds: tuple[int, ...]
    position: int = 0  # of the arm among those of the command
    # the arm whose loss at another length it is to show; None: it is its own
    length_of: str | None = None

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> SeedRequest:
        """Read what `json` has written."""
        return cls(
            at=content["at"],
            seeds=tuple(content["seeds"]),
            position=content["place"],
            length_of=content["length_of"],
        )

    def json(self) -> dict[str, Any]:
        """Return the entry `asked` of a manifest and of `grid.json`."""
        return {
            "at": self.at,
            "seeds": list(self.seeds),
            "place": self.position,
            "length_of": self.length_of,
        }


def seed_requests(arms: Iterable[tuple[str, int]]) -> dict[str, SeedRequest]:
    """Return arm → what a command asks for that begins now with these runs: each is an arm and a
    seed."""
    at = now()
    seeds: dict[str, list[int]] = {}
    for arm, seed in arms:
        seeds.setdefault(arm, []).append(seed)
    requests = dict[str, SeedRequest]()
    for position, (arm, of_arm) in enumerate(seeds.items()):
        distinct = tuple(dict.fromkeys(of_arm))
        requests[arm] = SeedRequest(at=at, seeds=distinct, position=position)
    return requests
