"""What a race answers to a proposal: pairs are trained one by one until the evidence is enough, or cannot be any more. What was answered
once stays.

The seeds are the race's. A proposal is what it trains, not what it is called: the same resolved config gets the same answer and spends
nothing. The first result of a run counts; training it again, or deleting it, changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, Protocol

from nocap.judge.interval import CAP
from nocap.race.evalue import gain_evidence, threshold
from nocap.race.rules import Rules

Line = Mapping[str, Any]
Write = Callable[[Line], None]
ACCEPTED, NOT_SHOWN = "accepted", "not shown"


class Measure(Protocol):
    """The final validation losses of a pair in nats per token, the proposal's and the baseline's; infinite where a run diverged."""

    def __call__(self, seed: int) -> tuple[float, float]: ...


class Campaign:
    """The answers of a race so far. `lines`: its ledger's; `write` adds one."""

    def __init__(self, rules: Rules, *, lines: Iterable[Line], write: Write) -> None:
        self.rules, self._write = rules, write
        self._proposals, self._answers = dict[str, Line](), dict[str, Line]()
        self._pairs: dict[str, dict[int, Line]] = {}
        self._losses: dict[tuple[str, int], float | None] = {}  # of baselines
        for line in lines:
            self._know(line)

    @property
    def answers(self) -> list[Line]:
        return list(self._answers.values())

    def needs(self) -> float:
        """The evidence that the next new proposal needs."""
        accepted = sum(line["word"] == ACCEPTED for line in self.answers)
        return threshold(len(self._proposals) + 1, accepted=accepted, alpha=self.rules.alpha)

    @property
    def proposals(self) -> list[Line]:
        return list(self._proposals.values())

    def propose(self, arm: str, overrides: Sequence[str], measure: Measure, *, against: str) -> Line:
        """The answer to a proposal, as its line in the ledger. `arm` is the digest of what it trains, `against` of what the baseline does.

        Errors:
            what `measure` raises; the pairs until then are kept, and the same proposal goes on.
        """
        if arm not in self._proposals:  # a part of the error level is spent on it before anything of it is trained
            number = len(self._proposals) + 1
            self._add({"event": "proposal", "arm": arm, "overrides": list(overrides), "number": number, "needs": self.needs()})
        if arm in self._answers:
            return self._answers[arm]
        proposal, pairs = self._proposals[arm], self._pairs.setdefault(arm, {})
        for seed in self.rules.seeds:
            if self._decided(pairs, proposal["needs"]):
                break
            if seed not in pairs:
                mine, theirs = (_plain(loss) for loss in measure(seed))
                theirs = self._losses.get((against, seed), theirs)
                self._add({"event": "pair", "arm": arm, "against": against, "seed": seed, "loss": mine, "baseline": theirs})
        return self._add({"event": "answer", "arm": arm, "number": proposal["number"], **self._answer(pairs, proposal["needs"])})

    def _add(self, line: Line) -> Line:
        self._write(line)
        self._know(line)
        return line

    def _know(self, line: Line) -> None:
        """Of two lines of one thing the first counts."""
        arm = line.get("arm", "")
        if line["event"] == "proposal":
            self._proposals.setdefault(arm, line)
        elif line["event"] == "answer":
            self._answers.setdefault(arm, line)
        elif line["event"] == "pair":
            self._pairs.setdefault(arm, {}).setdefault(line["seed"], line)
            self._losses.setdefault((line["against"], line["seed"]), line["baseline"])

    def _decided(self, pairs: Mapping[int, Line], needs: float) -> bool:
        gains = gains_of(pairs.values())
        if -math.inf in gains:
            return True
        return len(gains) >= self.rules.least and (self._evidence(gains) >= needs or self._evidence(self._hoped(gains)) < needs)

    def _hoped(self, gains: list[float]) -> list[float]:
        """As many pairs as there may be, were each new one a standard error above the mean of these."""
        return [*gains, *[fmean(gains) + stdev(gains) / math.sqrt(len(gains))] * (self.rules.most - len(gains))]

    def _evidence(self, gains: Sequence[float]) -> float:
        noise = self.rules.noise
        beyond = [gain - self.rules.gain for gain in gains]
        return gain_evidence(beyond, sd=noise.sd if noise else 0.0, df=min(noise.df, CAP) if noise else 0.0)

    def _answer(self, pairs: Mapping[int, Line], needs: float) -> Line:
        gains = gains_of(pairs.values())
        diverged, evidence = -math.inf in gains, self._evidence(gains)
        word = ACCEPTED if len(gains) >= self.rules.least and evidence >= needs else NOT_SHOWN
        mean = fmean(gains) if gains and not diverged else None
        return {"word": word, "evidence": evidence, "needs": needs, "pairs": len(gains), "gain": mean, "diverged": diverged}


def gains_of(pairs: Iterable[Line]) -> list[float]:
    """Nats that each pair gained; minus infinity where the proposal diverged. A diverged baseline says nothing of the proposal."""
    known = [(line["loss"], line["baseline"]) for line in pairs if line["baseline"] is not None]
    return [-math.inf if mine is None else theirs - mine for mine, theirs in known]


def _plain(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
