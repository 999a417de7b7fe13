"""A race's folder in use: its rules, its ledger, and what a proposal is trained as. One command at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from nocap.config import hardware
from nocap.config.keys import require
from nocap.race.campaign import Campaign, Line
from nocap.race.proposal import Sides, arm_of, compose
from nocap.race.rules import FILE as RULES
from nocap.race.rules import load
from nocap.store import lease
from nocap.study import ledger


class Race:
    """The errors of each method are those of `proposal.compose` and `Campaign.propose`."""

    def __init__(self, folder: Path, *, output_dir: str) -> None:
        self.folder, self.output_dir, self.rules = folder, output_dir, load(folder)
        self._path = folder / ledger.FILE
        known = ledger.read(self._path)
        require(not known.broken, f"{self._path}: lines", "each follow the one before, as they were written", known.broken)
        self._baseline = self.compose([]).baseline
        self._check_rules([line["rules"] for line in known.of("race")])
        self.campaign = Campaign(self.rules, lines=known.lines, write=self._write)

    def compose(self, overrides: Sequence[str]) -> Sides:
        return compose(self.rules, overrides, output_dir=self.output_dir)

    def propose(self, sides: Sides, overrides: Sequence[str]) -> Line:
        """The answer. What the runs print goes to stderr."""
        if not self.campaign.proposals:
            self._write({"event": "race", "rules": self.rules.hash()})
        with redirect_stdout(sys.stderr):
            return self.campaign.propose(
                arm_of(sides.proposal), overrides, sides.measure(self.folder.resolve().name), against=arm_of(sides.baseline)
            )

    def _check_rules(self, begun_with: Sequence[str]) -> None:
        """A race goes on as it began: what was spent under other rules cannot be counted."""
        ok = all(one == self.rules.hash() for one in begun_with)
        require(
            ok, f"{self.folder / RULES}", "be what the race began with; other rules are another race, in a folder of its own", "another one"
        )

    def _write(self, line: Line) -> None:
        t = self._baseline.run.trainer
        machine = hardware.describe(t.device, t.threads)["fingerprint"]
        ledger.append(self._path, lambda known: [line], {"machine": machine, "folder": "", "scale": ""})


@contextmanager
def opened(folder: Path, *, output_dir: str) -> Iterator[Race]:
    """The race of a folder, for this process alone.

    Errors:
        ValueError: no race there, invalid or changed rules, a damaged ledger, another process at it.
    """
    require(folder.is_dir(), "FOLDER", f"be a folder with a {RULES}", folder)
    with lease.acquire(folder):
        yield Race(folder, output_dir=output_dir)
