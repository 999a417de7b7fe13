"""Takes figures.csv from a checkout of KellerJordan/modded-nanogpt, a bare git directory too, and
from one of BottleCapAI/NoCap-Test.

    python experiments/speedrun_records/figures.py PATH [--nocap-test PATH]

A row is a run: what the board states of its record, the log's path and commit, and the loss, step
and time of training of the row that counts. In track 1 that is a run's last validation, in track 3
the one at the record's number of steps. Only figures are kept.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from itertools import groupby
from pathlib import Path, PurePosixPath

from nocap.config.errors import refusals
from nocap.config.keys import require
from nocap.sources.formats import Row, modded

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "figures.csv"
BOARD = ("track", "record", "date", "stated", "stated_n", "steps")
RUN = ("arm", "path", "commit", "run", "seed", "hardware", "loss", "step", "train_s")

# Where a record's own logs are not all that lie beside the one that its table links, and where a
# baseline's lie with them. Track 1: runs of the record, then of the baseline that was run beside
# it.
BESIDE = {
    ("1", 9): ("2024-11-06_ShortcutsTweaks/dd7304a6-*", ""),  # the others are of variants
    ("1", 52): (
        "2025-12-21_SmoothedScalars/12-21-Smoothed-Scalars/*",
        "2025-12-21_SmoothedScalars/12-19-Baseline/*",
    ),
    ("1", 56): (
        "2025-12-31_GatesToCompiledAdam/12-31-gates-to-adam-20stps/*",
        "2025-12-31_GatesToCompiledAdam/12-29-baseline/*",
    ),
    ("1", 61): (
        "2026-01-18_UnifiedOptimizers/unified-optimizer/*",
        "2026-01-18_UnifiedOptimizers/baseline/*",
    ),
    ("1", 67): (
        "2026-01-24_ImprovedLMHead/record/*",
        "2026-01-24_ImprovedLMHead/baseline_retime/*",
    ),
    ("1", 74): ("2026-02-16_FlattenForward/pr233/*", "2026-02-16_FlattenForward/baseline/*"),
    ("1", 76): (
        "2026-02-28_TransposeCopyBackward/this_pr/*",
        "2026-02-28_TransposeCopyBackward/baseline/*",
    ),
    ("1", 78): ("2026-03-22_VarlenMaxDocs/combined/*", "2026-03-22_VarlenMaxDocs/baseline/*"),
    ("1", 79): ("2026-04-04_FuseCEFwdAndBwd/runs/*", "2026-04-04_FuseCEFwdAndBwd/baseline/*"),
    ("1", 80): (
        "2026-04-08_PairedHeadMuon/logs/split_qk*",
        "2026-04-08_PairedHeadMuon/logs/baseline?-1490.txt",
    ),
    ("1", 81): ("2026-04-22_MuddFormer/this_pr_v3/*", "2026-04-22_MuddFormer/baseline-s1480/*"),
    ("1", 82): (
        "2026-04-29_XSAGatedLayers/this_pr_v1-s1410/*",
        "2026-04-29_XSAGatedLayers/baseline-s1440/*",
    ),
    ("1", 83): ("2026-05-20_BigramsSignTrick/pr299/*", "2026-05-20_BigramsSignTrick/baseline/*"),
    ("1", 84): ("2026-05-19_FP8MLPUpProj/this_record/*", "2026-05-19_FP8MLPUpProj/baseline/*"),
    ("1", 85): (
        "2026-05-27-MuddGatedAndDC/this_pr_v3/*",
        "2026-05-27-MuddGatedAndDC/xsa-baseline-s1385/*",
    ),
    ("1", 87): (
        "2026-06-11_RecursiveFromBest/this_pr/*",
        "2026-06-11_RecursiveFromBest/baseline_pr299/*",
    ),
    ("1", 88): (
        "2026-07-13_PrefixTokenPrediction/prefix-1375-8x/*",
        "2026-07-13_PrefixTokenPrediction/baseline-1390-8x/*",
    ),
    ("1", 89): (
        "2026-07-17_FP8DownProjection/this_pr/*",
        "2026-07-17_FP8DownProjection/baseline/*",
    ),
    ("3", 16): ("results/20260506_trustlight/*/stdout.txt", ""),
    # its 20 runs; eight more were made on other GPUs
    ("3", 44): ("results/20260609_soap_f1_auxb2_clean/H100_*", ""),
}
LOSS = {("3", 46): "val_ema_loss"}  # what that record's page counts; of all others it is val_loss
FOLDERS = {"1": "records/track_1_short", "3": "records/track_3_optimization"}
TRACK_1 = re.compile(
    r"(?P<record>\d+) \| (?P<stated>[\d.]+) minutes(?P<steps>)(?P<n>) \|.*\| "
    r"(?P<date>\d\d/\d\d/\d\d) \| ?(?P<logs>[^|]*)"
)
TRACK_3 = re.compile(
    r"\| (?P<record>\d+) \| (?P<steps>\d+)\(!\) \| (?P<stated>[\d.]+) "
    r"\(n=(?P<n>\d+)\).*\| (?P<date>\d{4}/\d\d/\d\d) \| ?(?P<logs>[^|]*)"
)
LINK = re.compile(r"\[log\]\((?:records/track_1_short/)?([^)]+)\)")


@dataclass(frozen=True)
class Checkout:
    """The last commit of a git directory, with or without a work tree."""

    path: Path

    def git(self, *words: str) -> bytes:
        """Errors:
        ValueError: git has no such thing.
        """
        ended = subprocess.run(
            ["git", "-C", str(self.path), *words], capture_output=True, check=False
        )
        why = ended.stderr.decode(errors="replace").strip()
        require(ended.returncode == 0, str(self.path), f"be a git directory with {words[-1]}", why)
        return ended.stdout

    @cached_property
    def commit(self) -> str:
        return self.git("rev-parse", "--short=12", "HEAD").decode().strip()

    @cached_property
    def names(self) -> list[str]:
        return self.git("ls-tree", "-r", "--name-only", "HEAD").decode().splitlines()

    def like(self, glob: str) -> list[str]:
        return [name for name in self.names if fnmatch(name, glob)]

    def runs(self, name: str, read: Callable[[Path], Iterator[Row]]) -> list[list[Row]]:
        """Errors:
        ValueError: the log is damaged.
        """
        with tempfile.NamedTemporaryFile() as file:
            file.write(self.git("show", f"HEAD:{name}"))
            file.flush()
            try:
                validations = [row for row in read(Path(file.name)) if "val_loss" in row]
                groups = groupby(validations, key=lambda row: row.get("run"))
                return [list(of_run) for _, of_run in groups]
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None


def record_of(track: str, board: re.Match[str], checkout: Checkout) -> Iterator[dict[str, object]]:
    """The rows of one record; a row without a path where it has no log."""
    key = (track, int(board["record"]))
    stated: dict[str, object] = {
        "track": track,
        "record": int(board["record"]),
        "date": board["date"],
        "stated": board["stated"],
        "stated_n": board["n"],
        "steps": board["steps"],
    }
    link = LINK.search(board["logs"])
    linked = ""
    if link:
        linked = f"{FOLDERS[track]}/{link[1].rstrip('/')}"
    reader = Reader(
        checkout=checkout,
        linked="" if key in BESIDE else linked,
        step=int(board["steps"] or 0),
        loss=LOSS.get(key, "val_loss"),
    )
    has_logs = False
    for arm, names in logs_of(key, linked, checkout).items():
        for row in reader.rows(names):
            has_logs = True
            yield {**stated, "arm": arm, **row}
    if not has_logs:
        yield {**stated, "arm": "record"}


def logs_of(key: tuple[str, int], linked: str, checkout: Checkout) -> dict[str, list[str]]:
    """Arm → the paths of its logs. `linked`: what the board's table links."""
    track, _ = key
    arms = dict[str, list[str]]()
    for arm, glob in zip(("record", "baseline"), BESIDE.get(key, ()), strict=False):
        if glob:
            arms[arm] = checkout.like(f"{FOLDERS[track]}/{glob}")
    if arms or not linked:
        return arms
    places = {linked, parent_of(linked)}
    # beside it lie other results
    is_alone = linked in checkout.names and linked.count("/") == 3 and track == "3"
    if is_alone:
        places = {linked}
    return {"record": [name for name in checkout.names if places & {name, parent_of(name)}]}


def parent_of(path: str) -> str:
    return str(PurePosixPath(path).parent)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Takes of each run of a record the row that counts."""

    checkout: Checkout
    linked: str  # the log whose run has as many steps as all that count; empty: any number
    step: int  # of the row that counts; 0: a run's last
    loss: str  # the loss that the board states

    def rows(self, names: Sequence[str]) -> Iterator[dict[str, object]]:
        """The same curve twice is a copy of a log."""
        runs_by_log = dict[str, list[list[Row]]]()
        for name in names:
            if name.endswith((".txt", ".log")):
                runs_by_log[name] = self.checkout.runs(name, modded.read)
        n_steps: object = None
        if runs_by_log.get(self.linked):
            n_steps = runs_by_log[self.linked][0][-1]["step"]
        curves = set[tuple[object, ...]]()
        for name, runs in runs_by_log.items():
            for rows in runs:
                row = self.row_that_counts(rows)
                curve = tuple((row["step"], row["val_loss"], row["train_s"]) for row in rows)
                if row is None or curve in curves:
                    continue
                is_other_length = n_steps is not None and row["step"] != n_steps
                if self.step == 0 and is_other_length:
                    continue
                curves.add(curve)
                yield figures(row, self.loss, name, self.checkout)

    def row_that_counts(self, rows: Sequence[Row]) -> Row | None:
        if self.step == 0:
            return rows[-1]
        for row in rows:
            if row["step"] == self.step:
                return row
        return None


def figures(row: Row, loss: str, name: str, checkout: Checkout) -> dict[str, object]:
    values: dict[str, object] = {}
    for key in ("run", "seed", "hardware", "step"):
        values[key] = row.get(key, "")
    values["loss"] = row[loss]
    values["train_s"] = round(row["train_s"], 3)
    values["path"] = name.removeprefix("records/")
    values["commit"] = checkout.commit
    return values


def boards(checkout: Checkout) -> Iterator[dict[str, object]]:
    """All records of track 1, and of track 3 those that were a best."""
    pages = {"1": (TRACK_1, "README.md"), "3": (TRACK_3, f"{FOLDERS['3']}/README.md")}
    for track, (pattern, page) in pages.items():
        content = checkout.git("show", f"HEAD:{page}").decode()
        table, *_ = content.split("## Speedrun track 2")
        matches = [match for match in map(pattern.match, table.splitlines()) if match]
        require(bool(matches), page, "have a table of records", "none")
        # a record that was timed again has further lines
        for number, lines in groupby(matches, key=lambda match: match["record"]):
            print(f"track {track}, record {number}", file=sys.stderr)
            yield from record_of(track, next(lines), checkout)


def nocap_test(checkout: Checkout) -> Iterator[dict[str, object]]:
    """The baseline's run is the only log of that board."""
    sys.path.insert(0, str(HERE / "formats"))
    import nocap_board as log

    for name in checkout.like("wandb/*/output.log"):
        run, *_ = checkout.runs(name, log.read)
        about = {"track": "nocap", "record": 1, "arm": "record"}
        yield {**about, **figures(run[-1], "val_loss", name, checkout)}


def write(rows: Iterable[dict[str, object]]) -> None:
    with FIGURES.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*BOARD, *RUN), lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modded_nanogpt", type=Path)
    parser.add_argument("--nocap-test", type=Path)
    options = parser.parse_args(words)
    with refusals():
        rows = list(boards(Checkout(options.modded_nanogpt)))
        if options.nocap_test:
            rows += nocap_test(Checkout(options.nocap_test))
        write(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
