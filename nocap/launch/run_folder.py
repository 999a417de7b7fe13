"""Read what lies in a planned run's folder: its end, or the damage to its record; and find
half-done runs. No torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.keys import require
from nocap.config.outgoing_text import redact
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.untrusted_files import parse_yaml, read_text
from nocap.launch.run_result import RunResult
from nocap.store.checkpoints import any_valid, saved_steps
from nocap.store.identity import differing
from nocap.store.record_files import CONFIG, MANIFEST, RunStatus, read_ended, read_json


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The end of a run, finished or diverged, as its folder shows it. A run that has not ended has
    neither summary nor damage."""

    summary: dict[str, Any] | None = None
    damage: ValueError | None = None  # why the record is not believed
    is_lost: bool = False  # it is damaged, and no training makes it again

    @property
    def is_open(self) -> bool:
        """Say whether there is something to train: the run has not ended, or its last checkpoint
        makes its damaged record again."""
        return self.summary is None and not self.is_lost

    def believe(self) -> dict[str, Any] | None:
        """Return the summary; None: the run is open.

        Errors:
            ValueError: the run is lost.
        """
        if self.is_lost and self.damage is not None:
            raise self.damage
        return self.summary

    def result(self) -> RunResult | None:
        """Return the end of a run among others, where one that is lost is no error; None: it is
        open."""
        if self.is_lost:
            return RunResult(status=RunStatus.damaged, reason=str(self.damage))
        if self.summary is None:
            return None
        return RunResult.of(self.summary)


def read_end(folder: Path, identity: str) -> End:
    """Return how the run in a folder has ended. Another run's folder is damage that no training
    mends."""
    try:
        manifest = read_json(folder / MANIFEST) or {}
        recorded = manifest.get("identity", identity)
        rule = f"hold {identity}, the identity in the name of its folder"
        require(recorded == identity, f"{folder}/manifest.json", rule, recorded)
    except ValueError as error:
        return End(damage=error, is_lost=True)
    try:
        return End(summary=read_ended(folder, identity=identity))
    except ValueError as error:
        if any_valid(folder):
            return End(damage=error)
        damage = ValueError(
            f"{error}; no valid checkpoint can repair the run; move its folder away to train the "
            "run again"
        )
        return End(damage=damage, is_lost=True)


def damage_notices(folder: Path, identity: str) -> Iterator[str]:
    """Yield a notice where the folder has an ended run's record that is not believed, and the last
    checkpoint makes it again."""
    end = read_end(folder, identity)
    if end.damage is not None and end.is_open:
        yield (
            f"{end.damage}: not believed; the run goes on from its last checkpoint, which makes "
            f"its record again"
        )


# --- half-done runs beside it ---------------------------------------------------------------------


def half_done_notices(run: Run, parts: Mapping[str, Any], root: Path, name: str) -> Iterator[str]:
    """Yield a notice for each half-done run of the same arm, seed and paths that code, machine,
    threads or torch make another run.

    Errors:
        ValueError: it has other data: this run would start from scratch, and half a run would be
            lost unnoticed.
    """
    data = to_plain(run)["data"]
    counted_data = parts["config"]["data"]
    paths = {key: value for key, value in data.items() if key not in counted_data}
    for folder in _of_same_name(root, name):
        half = _half_run(folder, list(paths))
        if half is None or half.paths != redact(paths):
            continue
        steps = half.steps
        others = half.identity_parts
        differences = differing(others, parts)
        if "config" in differences:
            continue
        if {*differences} <= {"data", "code"} and "data" in differences:
            remedy = "put the old data back to resume, or move that folder to start from scratch"
            raise ValueError(
                f"data must be the same as in the run in {folder} ({others['data'][:12]}…), got "
                f"{parts['data'][:12]}…; {remedy}"
            )
        back = ""
        if half.commit and "code" in differences:
            back = f" (git checkout {half.commit})"
        yield (
            f"{folder} is half done, at step {steps[0]}, and is another run: they differ in "
            f"{', '.join(differences.values())}; "
            f"this command starts from scratch; to continue that run, put that back{back} and type "
            "the command again"
        )


def _of_same_name(root: Path, name: str) -> list[Path]:
    """List the folders of all runs with this readable name."""
    if not root.is_dir():
        return []
    pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{12}}")
    # unlike Path.glob, it does not pass over a folder that cannot be read
    names = [other for other in os.listdir(root) if pattern.fullmatch(other)]
    return sorted(root / other for other in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfRun:
    """A run that has a checkpoint, and has not ended."""

    steps: Sequence[int]  # of its checkpoints, the newest first
    identity_parts: Mapping[str, Any]
    paths: Mapping[str, Any]  # of its data, by their keys
    commit: str  # of its code, 12 digits; empty: it is not known


def _half_run(folder: Path, path_keys: Sequence[str]) -> HalfRun | None:
    """Read the half-done run in a folder; None: it has ended, or nothing can be gone on with."""
    steps = saved_steps(folder)
    if not steps:
        return None
    try:
        manifest = read_json(folder / MANIFEST) or {}
        config = parse_yaml(read_text(folder / CONFIG))
        parts = manifest["parts"]
        has_ended = read_ended(folder) is not None
        paths = {key: config["data"][key] for key in path_keys}
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not a record
    if has_ended:
        return None
    git = manifest.get("git") or {}
    commit = (git.get("commit") or "")[:12]
    return HalfRun(steps=steps, identity_parts=parts, paths=paths, commit=commit)
