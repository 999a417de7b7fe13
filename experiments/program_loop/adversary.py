"""How often a program that farms noise gets a proposal accepted.

`python experiments/program_loop/adversary.py [--campaigns N] [--json FILE]`

Nothing is trained: a run's loss is normal noise around one number, and no proposal has an effect. In each of its 200 turns the scripted
adversary proposes something new; proposes an earlier arm again, under another name; or deletes the runs of its most promising proposal, or
of the baseline's best seeds, so that they are trained again with other noise, as on a GPU, and then asks again.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from nocap.judge.interval import Declared
from nocap.race.campaign import ACCEPTED, Campaign, Line
from nocap.race.rules import Rules

TURNS = 200  # proposals
SIGMA = 0.03  # nats, of one run between seeds


class Adversary:
    """`effect`: the nats that a share of its proposals really gain."""

    def __init__(self, rules: Rules, rng: np.random.Generator, *, effect: float = 0.0, share: float = 0.0) -> None:
        self.lines: list[Line] = []
        self.campaign = Campaign(rules, lines=(), write=self.lines.append)
        self._rng, self._effect, self._share = rng, effect, share
        self._runs: dict[tuple[str, int], float] = {}
        self.good: set[str] = set()
        self._arms: list[str] = []

    def play(self) -> None:
        while len(self._arms) < TURNS:
            move = self._rng.random()
            if move < 0.7 or not self._arms:
                self._new()
            elif move < 0.8:
                self._propose(self._rng.choice(self._arms))
            else:
                self._farm()

    def _new(self) -> None:
        arm = f"arm {len(self._arms)}"
        self._arms.append(arm)
        if self._rng.random() < self._share:
            self.good.add(arm)
        self._propose(arm)

    def _farm(self) -> None:
        """Delete the best proposal's worst runs and the baseline's best ones; ask again."""
        best = max(self.campaign.answers, key=lambda line: line["evidence"])["arm"]
        for (arm, seed), loss in list(self._runs.items()):
            if (arm == best and loss > 0) or (arm == "baseline" and loss < 0):
                del self._runs[arm, seed]
        self._propose(best)

    def _propose(self, arm: str) -> None:
        def measure(seed: int) -> tuple[float, float]:
            return self._loss(arm, seed), self._loss("baseline", seed)

        self.campaign.propose(arm, ["another name"], measure, against="baseline")

    def _loss(self, arm: str, seed: int) -> float:
        gain = self._effect if arm in self.good else 0.0
        return self._runs.setdefault((arm, seed), float(self._rng.normal(0, SIGMA))) - gain


def played(rules: Rules, campaigns: int, *, effect: float = 0.0, share: float = 0.0) -> dict[str, Any]:
    """Counts over campaigns: in how many something false was accepted, and of the good proposals how many were accepted."""
    false, found, good, pairs, accepted = 0, 0, 0, 0, 0
    for number in range(campaigns):
        adversary = Adversary(rules, np.random.default_rng([number, round(1000 * effect)]), effect=effect, share=share)
        adversary.play()
        taken = {line["arm"] for line in adversary.campaign.answers if line["word"] == ACCEPTED}
        false += bool(taken - adversary.good)
        accepted += len(taken)
        found, good = found + len(taken & adversary.good), good + len(adversary.good)
        pairs += sum(line["event"] == "pair" for line in adversary.lines)
    low, high = interval(false, campaigns)
    return {
        "campaigns": campaigns,
        "effect": effect,
        "share": share,
        "with_a_false_acceptance": {"share": false / campaigns, "low": low, "high": high},
        "found": found / good if good else None,
        "accepted": accepted,
        "pairs_a_proposal": pairs / campaigns / TURNS,
    }


def interval(count: int, of: int) -> tuple[float, float]:
    """Clopper and Pearson's, 95%."""
    from scipy import special

    low = float(special.betaincinv(count, of - count + 1, 0.025)) if count else 0.0
    high = float(special.betaincinv(count + 1, of - count, 0.975)) if count < of else 1.0
    return low, high


def in_words(row: dict[str, Any]) -> str:
    share, found = row["with_a_false_acceptance"], "" if row["found"] is None else f"; found {row['found']:.0%} of the good ones"
    return (
        f"{row['rules']}, effect {row.get('effect_in_sd', 0)} sd: a false acceptance in {share['share']:.1%} of "
        f"{row['campaigns']} campaigns [{share['low']:.1%}, {share['high']:.1%}]{found}; {row['pairs_a_proposal']:.1f} pairs a proposal"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=1000, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    plain = Rules(question="none")
    known = Rules(question="none", noise=Declared(sd=SIGMA * math.sqrt(2), df=8, source="simulated"))
    rows = []
    for name, rules in (("noise unknown", plain), ("noise declared", known)):
        rows.append({"rules": name, **played(rules, options.campaigns)})
        for effect in (2, 3):
            planted = played(rules, max(20, options.campaigns // 20), effect=effect * SIGMA * math.sqrt(2), share=0.1)
            rows.append({"rules": name, **planted, "effect_in_sd": effect})
    for row in rows:
        print(in_words(row))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    bad = any(row["with_a_false_acceptance"]["low"] > 0.05 for row in rows if not row["effect"])
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
