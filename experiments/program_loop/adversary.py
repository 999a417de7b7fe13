"""How often a program that farms noise gets a proposal accepted.

`python experiments/program_loop/adversary.py [--campaigns N] [--json FILE]`

Nothing is trained: a run's loss is noise around one number, and no proposal has an effect. In each
of its 200 turns the scripted adversary proposes something new; proposes an earlier arm again, under
another name; or deletes the runs of its most promising proposal, or of the baseline's best seeds,
so that they are trained again with other noise, as on a GPU, and then asks again.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nocap.judge.proposal import ProposalWord
from nocap.study.log import AnswerLine, LogLine, PairLine
from nocap.study.proposals.campaign import MOST_PROPOSALS, Campaign
from nocap.study.spec import Propose

SEEDS = 16
Array = NDArray[np.float64]
# the losses of an arm's seeds, of mean 0; their tail is long where a run goes badly
Kind = Callable[[np.random.Generator], Array]


def lognormal(sigma: float) -> Kind:
    square = math.exp(sigma**2)
    mean = math.exp(sigma**2 / 2)
    sd = math.sqrt((square - 1) * square)
    return lambda rng: (rng.lognormal(0, sigma, SEEDS) - mean) / sd


def outliers(share: float) -> Kind:
    """Eight standard deviations up."""

    def draw(rng: np.random.Generator) -> Array:
        normal = rng.normal(size=SEEDS)
        is_outlier = rng.random(SEEDS) < share
        return normal + 8 * (is_outlier - share)

    return draw


def correlated(rng: np.random.Generator) -> Array:
    """AR(1) with coefficient .5 over the seeds."""
    noise = rng.normal(size=SEEDS)
    for i in range(1, SEEDS):
        noise[i] = 0.5 * noise[i - 1] + math.sqrt(0.75) * noise[i]
    return noise


KINDS: dict[str, Kind] = {
    "normal": lambda rng: rng.normal(size=SEEDS),
    "exponential": lambda rng: rng.exponential(size=SEEDS) - 1,
    "lognormal .5": lognormal(0.5),
    "AR(1) .5": correlated,
    "5% outliers": outliers(0.05),
    "lognormal .8": lognormal(0.8),
    "10% outliers": outliers(0.1),
}
SHOWN = ("lognormal .8", "10% outliers")  # without a bar
BAR = 0.05


def _gain(line: AnswerLine) -> float:
    """Return an answer's gain; a run that diverged has the least."""
    if line.gain is None:
        return -math.inf
    return line.gain


class Adversary:
    """`quiet`: the baseline has no noise. `effect`: what a `share` of its proposals really gains,
    in standard deviations of a pair."""

    def __init__(
        self,
        kind: Kind,
        rng: np.random.Generator,
        *,
        quiet: bool = False,
        effect: float = 0.0,
        share: float = 0.0,
    ) -> None:
        self.lines: list[LogLine] = []
        self.campaign = Campaign(Propose(), lines=(), write=self.lines.append)
        self._kind = kind
        self._rng = rng
        self._quiet = quiet
        self._share = share
        sd_of_pair = 1.0
        if not quiet:
            sd_of_pair = math.sqrt(2)
        self._effect = effect * sd_of_pair
        self._runs: dict[str, Array] = {}
        self.good: set[str] = set()
        self._arms: list[str] = []

    def play(self) -> None:
        while len(self._arms) < MOST_PROPOSALS:
            move = self._rng.random()
            if move < 0.7 or not self._arms:
                self._new()
            elif move < 0.8:
                self._propose(str(self._rng.choice(self._arms)))
            else:
                self._farm()

    def _new(self) -> None:
        arm = f"arm {len(self._arms)}"
        self._arms.append(arm)
        if self._rng.random() < self._share:
            self.good.add(arm)
        self._propose(arm)

    def _farm(self) -> None:
        """Delete the best proposal's runs and the baseline's; ask again."""
        best = max(self.campaign.answers.values(), key=_gain).arm
        self._runs.pop(best, None)
        self._runs.pop("baseline", None)
        self._propose(best)

    def _propose(self, arm: str) -> None:
        def measure(seeds: Sequence[int]) -> dict[int, tuple[float, float]]:
            own = self._losses(arm)
            baseline = self._losses("baseline")
            if self._quiet:
                baseline = np.zeros(SEEDS)
            gain = 0.0
            if arm in self.good:
                gain = self._effect
            pairs = dict[int, tuple[float, float]]()
            for seed in seeds:
                pairs[seed] = (float(own[seed]) - gain, float(baseline[seed]))
            return pairs

        self.campaign.propose(arm, ["another name"], measure, against="baseline")

    def _losses(self, arm: str) -> Array:
        if arm not in self._runs:
            self._runs[arm] = self._kind(self._rng)
        return self._runs[arm]


def played(
    kind: str, campaigns: int, *, quiet: bool = False, effect: float = 0.0, share: float = 0.0
) -> dict[str, Any]:
    """Counts over campaigns: in how many something false was accepted, and of the good proposals
    how many were accepted."""
    n_false = 0  # campaigns that accept something without an effect
    accepted = 0  # good proposals
    good = 0
    pairs = 0
    for number in range(campaigns):
        rng = np.random.default_rng([number, round(10 * effect)])
        adversary = Adversary(KINDS[kind], rng, quiet=quiet, effect=effect, share=share)
        adversary.play()
        answers = adversary.campaign.answers.values()
        arms = {line.arm for line in answers if line.word == ProposalWord.accepted.value}
        if arms - adversary.good:
            n_false += 1
        accepted += len(arms & adversary.good)
        good += len(adversary.good)
        pairs += sum(isinstance(line, PairLine) for line in adversary.lines)
    low, high = interval(n_false, campaigns)
    return {
        "noise": kind,
        "quiet_baseline": quiet,
        "campaigns": campaigns,
        "effect_in_sd": effect,
        "with_a_false_acceptance": {"share": n_false / campaigns, "low": low, "high": high},
        "found": accepted / good if good else None,
        "pairs_a_proposal": pairs / campaigns / MOST_PROPOSALS,
    }


def interval(count: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's, 95%."""
    from scipy import special

    low = 0.0
    high = 1.0
    if count > 0:
        low = float(special.betaincinv(count, trials - count + 1, 0.025))
    if count < trials:
        high = float(special.betaincinv(count + 1, trials - count, 0.975))
    return low, high


def in_words(row: dict[str, Any]) -> str:
    noise = row["noise"]
    if noise in SHOWN:
        noise = f"{noise} (no bar)"
    baseline = "quiet" if row["quiet_baseline"] else "alike"
    effect = "none"
    if row["effect_in_sd"]:
        effect = f"{row['effect_in_sd']:g} sd"
    share = row["with_a_false_acceptance"]
    false = f"{share['share']:.1%} [{share['low']:.1%}, {share['high']:.1%}]"
    accepted = "–"
    if row["found"] is not None:
        accepted = f"{row['found']:.0%}"
    pairs = f"{row['pairs_a_proposal']:.1f}"
    cells = [noise, baseline, effect, false, f"{row['campaigns']:,}", accepted, pairs]
    return f"| {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--campaigns", type=int, default=1000, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    rows = list[dict[str, Any]]()
    for kind in KINDS:
        for quiet in (False, True):
            rows.append(played(kind, options.campaigns, quiet=quiet))
    n_with_effect = max(4, options.campaigns // 20)
    for effect in (2.0, 3.0):
        rows.append(played("normal", n_with_effect, effect=effect, share=0.1))
    print(*map(in_words, rows), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    is_within_bar = True
    for row in rows:
        has_bar = not row["effect_in_sd"] and row["noise"] not in SHOWN
        if has_bar and row["with_a_false_acceptance"]["low"] > BAR:
            is_within_bar = False
    return int(not is_within_bar)


if __name__ == "__main__":
    raise SystemExit(main())
