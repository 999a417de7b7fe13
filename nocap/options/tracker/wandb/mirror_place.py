"""Where the mirror of a run's or a grid's folder is, as a file of the folder has it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nocap.options.tracker import RunFacts
from nocap.options.tracker.wandb.names import six_digits

PLACE = "mirror.json"  # in the folder `wandb` of a run or a grid


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorPlace:
    """Says where a folder's mirror is, and whether the server has all of it."""

    id: str = ""
    entity: str = ""
    project: str = ""
    server: str = ""  # its address; none: it has been offline only
    deleted: int = 0  # how often the run was deleted on the server
    complete: bool = False
    report: str = ""  # of a comparison: the digest of the report that was sent
    rows: int = 0  # that the server had when the last session began
    end: str = ""  # the status whose checkpoint or alert the server got

    @classmethod
    def read(cls, folder: Path) -> MirrorPlace | None:
        """Return the place that a folder's file has; None: it has no sound one."""
        try:
            return cls(**json.loads((folder / "wandb" / PLACE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        path = folder / "wandb" / PLACE
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)


def place_of(facts: RunFacts) -> MirrorPlace:
    """Return where a run's mirror is, or the id that it will have. W&B's agent knows a run by the
    id that it gave."""
    place = MirrorPlace.read(facts.run_dir)
    agents = agents_id()
    if place is None or agents not in ("", place.id):
        return MirrorPlace(id=agents or own_id(facts.identity, facts.born))
    return replace(place, complete=False, rows=0)


def run_id(folder: Path, *, identity: str, born: str) -> str:
    """Return the id of a run in W&B: the one that it was sent under, else its own."""
    place = MirrorPlace.read(folder)
    return place.id if place is not None else own_id(identity, born)


def own_id(identity: str, born: str) -> str:
    """Make an id of a run's identity and its first start, so that the same config trained again
    elsewhere is another run."""
    if not born:
        return identity
    return f"{identity}-{six_digits(born)}"


def agents_id() -> str:
    """Return the id that W&B's agent gave this run; empty: no agent has started it."""
    if not os.environ.get("WANDB_SWEEP_ID"):
        return ""
    return os.environ.get("WANDB_RUN_ID", "")
