"""Read how long the arms of a grid took in turns: `--time` keeps it in the grid's folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nocap.config.keys import require
from nocap.store.json_shapes import Required, check_shape
from nocap.store.record_files import read_json
from nocap.store.times import moment

FILES = "sessions/rounds-*.json"  # in a grid's folder
_ARM = {"clock": str, "status": str, "reason": str, "seconds_per_token": [float]}
_SHAPE = Required(
    {
        "started": str,
        "hardware": Required({"fingerprint": str, "name": str}),
        "measured": Required({"arms": {...: _ARM}}),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Say how long the arms of a grid trained for a token, round by round, in one session on one
    machine."""

    started: str
    machine: str  # fingerprint
    machine_name: str
    clock: str
    seconds: Mapping[str, Sequence[float]]  # arm's id → seconds a token, of each round
    left_out: Mapping[str, str]  # arm's id → why it was not measured

    @property
    def arms(self) -> Collection[str]:
        """List the ids of the arms that were to be timed."""
        return [*self.seconds, *self.left_out]

    @property
    def rounds(self) -> int:
        """Return the most rounds of an arm."""
        return max((len(row) for row in self.seconds.values()), default=0)


def timings_in(grid: Path) -> list[Timing]:
    """Read the timings of a grid's folder, the newest first.

    Errors:
        ValueError: a file is damaged.
    """
    timings = [_read(path) for path in grid.glob(FILES)]
    return sorted(timings, key=lambda timing: moment(timing.started) or 0.0, reverse=True)


def _read(path: Path) -> Timing:
    """Read the timing of a session.

    Errors:
        ValueError: the file is damaged.
    """
    content = read_json(path)
    assert content is not None, "it was listed"
    check_shape(content, _SHAPE, path)
    arms = content["measured"]["arms"]
    require(
        bool(arms),
        str(path),
        "hold the times of at least one arm (the file is damaged: delete it, and type the "
        "command with --time again)",
        "none",
    )
    seconds = dict[str, Sequence[float]]()
    left_out = dict[str, str]()
    for name, arm in arms.items():
        if arm.get("status") == "measured":
            seconds[name] = arm["seconds_per_token"]
        else:
            left_out[name] = f"{arm['status']}: {arm['reason']}"
    rounds = sorted({len(row) for row in seconds.values()})
    require(
        len(rounds) <= 1,
        str(path),
        "have the same number of rounds for each arm (the file is damaged: delete it, and "
        "type the command with --time again)",
        rounds,
    )
    least = min((min(row, default=1.0) for row in seconds.values()), default=1.0)
    require(
        least > 0,
        str(path),
        "hold only times above 0 (the file is damaged: delete it, and type the command with "
        "--time again)",
        least,
    )
    first = next(iter(arms.values()))
    hardware = content["hardware"]
    return Timing(
        started=content["started"],
        machine=hardware["fingerprint"],
        machine_name=hardware["name"],
        clock=first["clock"],
        seconds=seconds,
        left_out=left_out,
    )
