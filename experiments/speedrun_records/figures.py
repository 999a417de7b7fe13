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
                return [
                    list(rows)
                    for _, rows in groupby(read(Path(file.name)), key=lambda row: row.get("run"))
                ]
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None


def record_of(track: str, board: re.Match[str], checkout: Checkout) -> Iterator[dict[str, object]]:
    """The rows of one record; a row without a path where it has no log."""
    key, folder = (track, int(board["record"])), FOLDERS[track]
    stated = dict(
        zip(BOARD, (*key, board["date"], board["stated"], board["n"], board["steps"]), strict=True)
    )
    link = LINK.search(board["logs"])
    linked = f"{folder}/{link[1].rstrip('/')}" if link else ""
    arms = {
        arm: checkout.like(f"{folder}/{glob}")
        for arm, glob in zip(("record", "baseline"), BESIDE.get(key, ()), strict=False)
        if glob
    }
    if not arms and linked:
        # beside it lie other results
        alone = linked in checkout.names and linked.count("/") == 3 and track == "3"
        homes = {linked} if alone else {linked, str(PurePosixPath(linked).parent)}
        arms = {
            "record": [
                name for name in checkout.names if homes & {name, str(PurePosixPath(name).parent)}
            ]
        }
    rows = [
        {**stated, "arm": arm, **row}
        for arm, names in arms.items()
        for row in rows_of(
            checkout,
            names,
            linked if key not in BESIDE else "",
            int(board["steps"] or 0),
            LOSS.get(key, "val_loss"),
        )
    ]
    yield from rows or [{**stated, "arm": "record"}]


def rows_of(
    checkout: Checkout, names: Sequence[str], linked: str, at: int, loss: str
) -> Iterator[dict[str, object]]:
    """Of each run the row that counts: at this step, or its last, where the linked log's run has as
    many steps. The same curve twice is a copy of a log."""
    read = {
        name: checkout.runs(name, modded.read) for name in names if name.endswith((".txt", ".log"))
    }
    length = read[linked][0][-1]["step"] if read.get(linked) else None
    curves = set[tuple[object, ...]]()
    for name, runs in read.items():
        for rows in runs:
            row = next((row for row in rows if row["step"] == at), None) if at else rows[-1]
            curve = tuple((row["step"], row["val_loss"], row["train_s"]) for row in rows)
            if row is None or curve in curves or (not at and length not in (None, row["step"])):
                continue
            curves.add(curve)
            yield figures(row, loss, name, checkout)


def figures(row: Row, loss: str, name: str, checkout: Checkout) -> dict[str, object]:
    kept = {key: row.get(key, "") for key in ("run", "seed", "hardware", "step")}
    path = name.removeprefix("records/")
    return {
        **kept,
        "loss": row[loss],
        "train_s": round(row["train_s"], 3),
        "path": path,
        "commit": checkout.commit,
    }


def boards(checkout: Checkout) -> Iterator[dict[str, object]]:
    """All records of track 1, and of track 3 those that were a best."""
    pages = {"1": (TRACK_1, "README.md"), "3": (TRACK_3, f"{FOLDERS['3']}/README.md")}
    for track, (line, page) in pages.items():
        text = checkout.git("show", f"HEAD:{page}").decode().split("## Speedrun track 2")[0]
        met = [match for match in map(line.match, text.splitlines()) if match]
        require(bool(met), page, "have a table of records", "none")
        # a record that was timed again has further lines
        for number, lines in groupby(met, key=lambda match: match["record"]):
            print(f"track {track}, record {number}", file=sys.stderr)
            yield from record_of(track, next(lines), checkout)


def nocap_test(checkout: Checkout) -> Iterator[dict[str, object]]:
    """The baseline's run is the only log of that board."""
    sys.path.insert(0, str(HERE / "formats"))
    import nocap_board as log

    for name in checkout.like("wandb/*/output.log"):
        last = checkout.runs(name, log.read)[0][-1]
        yield {
            "track": "nocap",
            "record": 1,
            "arm": "record",
            **figures(last, "val_loss", name, checkout),
        }


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
        write([*rows, *(nocap_test(Checkout(options.nocap_test)) if options.nocap_test else ())])
    return 0


if __name__ == "__main__":
    sys.exit(main())
