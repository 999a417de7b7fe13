"""What a study answers to the proposals of a program: arms that come one by one, each against the baseline, within one error budget.

A proposal has four fresh batches of four pairs, and stops at the first that shows no gain (`nocap.judge.interval.batches_above`). It is
what it trains, not what it is called: the same resolved config gets the same answer and spends nothing. The first result of a run counts:
training it again, or deleting it, changes nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from nocap.config.keys import require
from nocap.judge.interval import BATCH, BATCHES, batches_above
from nocap.store.record import digest
from nocap.study.log import FILE, Line, append, read
from nocap.study.spec import Propose

FIXED = "be what its proposals began with (files too, unless propose.ref is given); another baseline, gain or limit is another study"
MOST = 200  # proposals of one study: for so many the error budget was simulated
ACCEPTED, NOT_SHOWN = "accepted", "not shown"
Losses = Mapping[int, tuple[float, float]]  # seed → the proposal's and the baseline's; infinite where a run diverged


class Campaign:
    """The answers so far. `lines`: the log's; `write` adds one."""

    def __init__(self, rules: Propose, *, lines: Iterable[Line], write: Callable[[Line], None]) -> None:
        self.rules, self._write = rules, write
        self.proposals, self.answers = dict[str, Line](), dict[str, Line]()
        self._gains: dict[tuple[str, int], float] = {}
        self._baseline: dict[tuple[str, int], float | None] = {}
        for line in lines:
            self._know(line)

    def propose(self, arm: str, overrides: Sequence[str], measure: Callable[[Sequence[int]], Losses], *, against: str) -> Line:
        """The answer, as its line in the log. `arm` is the digest of what is trained, `against` of what the baseline trains.

        Errors:
            ValueError: one proposal too many.
            what `measure` raises; the batches until then are kept, and the same proposal goes on.
        """
        if arm in self.answers:
            return self.answers[arm]
        if arm not in self.proposals:
            number = len(self.proposals) + 1
            require(number <= MOST, "--propose", f"be one of {MOST} at most: more wear the error budget out", f"proposal {number}")
            self._add({"event": "proposal", "arm": arm, "overrides": list(overrides), "number": number})
        gains: list[float] = []
        for seeds in self.rules.batches:
            missing = [seed for seed in seeds if (arm, seed) not in self._gains]
            for seed, (mine, theirs) in (measure(missing) if missing else {}).items():
                base = self._baseline.get((against, seed), _plain(theirs))
                self._add({"event": "pair", "arm": arm, "against": against, "seed": seed, "loss": _plain(mine), "baseline": base})
            gains += [self._gains[arm, seed] for seed in seeds]
            if not batches_above(gains, self.rules.gain):
                break
        word = ACCEPTED if len(gains) == BATCH * BATCHES and batches_above(gains, self.rules.gain) else NOT_SHOWN
        said = {"word": word, "pairs": len(gains), "gain": _plain(fmean(gains)), "diverged": -math.inf in gains}
        return self._add({"event": "answer", "arm": arm, "number": self.proposals[arm]["number"], **said})

    def _add(self, line: Line) -> Line:
        self._write(line)
        self._know(line)
        return line

    def _know(self, line: Line) -> None:
        """Of two lines of one thing the first counts. A gain is minus infinity where the proposal diverged, nan where only the baseline
        did."""
        if line["event"] == "pair":
            loss, base = line["loss"], line["baseline"]
            gain = -math.inf if loss is None else math.nan if base is None else base - loss
            self._gains.setdefault((line["arm"], line["seed"]), gain)
            self._baseline.setdefault((line["against"], line["seed"]), base)
        for event, known in (("proposal", self.proposals), ("answer", self.answers)):
            if line["event"] == event:
                known.setdefault(line["arm"], line)


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What was proposed. `arm`: the digest of what it trains."""

    words: Sequence[str]
    arm: str
    measure: Callable[[Sequence[int]], Losses]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of a study. `against`: the digest of what the baseline trains. `fixed`: what the first proposal fixes. `common`: what
    each line of the log has."""

    proposals: Sequence[Proposal]
    against: str
    fixed: object
    common: Line


def answer(folder: Path, rules: Propose, asked: Asked) -> Iterable[dict[str, Any]]:
    """One after the other; without proposals, the answers so far. What the runs print goes to stderr.

    Errors:
        ValueError: changed rules, a damaged log, one proposal too many.
        StoppedError, FailedError: somebody asked to stop, or a run failed; the same command goes on.
    """
    path, fixed = folder / FILE, digest(asked.fixed)
    known = read(path)
    require(not known.broken, f"{path}: lines", "each follow the one before, as they were written", known.broken)
    require(all(line["rules"] == fixed for line in known.of("rules")), str(folder), FIXED, "another one")
    campaign = Campaign(rules, lines=known.lines, write=lambda line: append(path, lambda log: [line], asked.common))
    if asked.proposals:
        append(path, lambda log: [] if log.of("rules") else [{"event": "rules", "rules": fixed}], asked.common)
    for proposal in asked.proposals:
        with redirect_stdout(sys.stderr):
            line = campaign.propose(proposal.arm, proposal.words, proposal.measure, against=asked.against)
        yield _shown(line, proposal.words)
    for line in [] if asked.proposals else campaign.answers.values():
        yield _shown(line, campaign.proposals[line["arm"]]["overrides"])


def _shown(line: Line, overrides: Sequence[str]) -> dict[str, Any]:
    return {"overrides": list(overrides), **{name: line[name] for name in ("number", "word", "pairs", "gain", "diverged")}}
