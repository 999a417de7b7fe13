"""How often verdicts are wrong: simulated studies, each from a claim to its verdict, under noise as it was measured and under worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from nocap.config.keys import require
from nocap.judge.power import plan
from nocap.judge.stats import Array
from nocap.study.claim import Claim, Guard, Mechanism, Metric, Scale
from nocap.study.verdict import Outcome, Outcomes, Verdict, Word, judge

LEAST_STUDIES = 100
GUARD_SIGMA = 0.0013  # nats between seeds, as of GPT-2 124M's public records; 0.0019 with the heavy-tailed ones
POWER = 0.8  # that the studies are planned for
SEED = 20261120
AT = "simulated"
COUNTED = ("different", "confirmed", "refuted", "found", "covered")  # "found": both different and confirmed

# Standard normal noise of (arm or baseline, study, seed), and two that are worse. Skew in both arms would cancel in the pair.
Noise = Callable[[np.random.Generator, tuple[int, int, int]], Array]


def normal(rng: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    return rng.normal(size=shape)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """Student's t with three degrees of freedom, its variance made 1."""
    return rng.standard_t(3, size=shape) / math.sqrt(3)


def skewed(rng: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """The arm's alone: an exponential's, centred, variance 1."""
    noise = rng.normal(size=shape)
    noise[0] = rng.exponential(size=shape[1:]) - 1
    return noise


NOISES: dict[str, Noise] = {"normal": normal, "heavy-tailed": heavy_tailed, "skewed arm": skewed}


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """A claim of any gain at all, planned to see `effect` through one run's `sigma`; the guard's sigma is a quiet recipe's loss."""

    name: str
    metric: Metric
    scale: Scale
    effect: float  # as the planner takes it
    sigma: float
    guard_margin: float | None = None  # nats
    looks: int = 1

    @property
    def gain(self) -> float:
        """The planned effect on the scale the noise lives on: a logarithm for a ratio."""
        return math.log1p(self.effect) if self.scale is Scale.ratio else self.effect


LOSS = Design(name="loss .005, sigma .0013", metric=Metric.val_loss, scale=Scale.difference, effect=0.005, sigma=0.0013)
NOISY = Design(name="loss .002, sigma .0019", metric=Metric.val_loss, scale=Scale.difference, effect=0.002, sigma=0.0019)
TIME = Design(
    name="time to target 1%, CV .5%, loss guarded at .005",
    metric=Metric.time_to_target_s,
    scale=Scale.ratio,
    effect=0.01,
    sigma=0.005,
    guard_margin=0.005,
)
TWO_LOOKS = replace(NOISY, name=f"{NOISY.name}, two looks", looks=2)


@cache
def claim_of(design: Design) -> Claim:
    """As a study would write it, its pairs from the planner."""
    pairs = plan(effect=design.effect, sigma=design.sigma, scale=design.scale, power=POWER).pairs
    guard = design.guard_margin
    if guard is not None:
        pairs = max(pairs, plan(effect=guard, sigma=GUARD_SIGMA, scale=Scale.difference, power=POWER).pairs)
    return Claim(
        id="simulated",
        statement=f"the arm's {design.metric.value} is better",
        source="made up",
        arm="arm",
        metric=design.metric,
        scale=design.scale,
        expected=[1.0 if design.scale is Scale.ratio else 0.0, None],
        target=3.3821 if design.metric is Metric.time_to_target_s else None,
        guards=[] if guard is None else [Guard(metric=Metric.val_loss, scale=Scale.difference, margins={AT: guard})],
        mechanism=Mechanism(bound=None, formula="none: nothing is trained"),
        seeds=list(range(pairs)),
        looks=design.looks,
    )


def simulate(design: Design, *, planted: bool, worse: float = 0.0, noise: str, studies: int, rng: np.random.Generator) -> dict[str, Any]:
    """`studies` of one design, with the planned effect or none, and the guard's metric `worse` by so much: a row of the table."""
    claim, gain = claim_of(design), design.gain if planted else 0.0
    shape = (2, studies, len(claim.seeds))
    primary, guarded = (NOISES[noise](rng, shape) for _ in range(2))
    loss = 3.4 + GUARD_SIGMA * guarded + np.array([worse, 0.0])[:, None, None]
    signal = design.sigma * primary - np.array([gain, 0.0])[:, None, None]  # of a metric where less is better
    values = {claim.metric: 1000 * np.exp(signal) if design.scale is Scale.ratio else 3.4 + signal}
    values |= {guard.metric: loss for guard in claim.guards}
    counts = dict.fromkeys(COUNTED, 0)
    truth, nothing = (math.exp(x) if design.scale is Scale.ratio else x for x in (gain, 0.0))
    for study in range(studies):
        arm, baseline = ({metric: _outcomes(of[side, study]) for metric, of in values.items()} for side in (0, 1))
        verdict = _last_look(claim, arm=arm, baseline=baseline)
        for name, holds in says(verdict, nothing=nothing, truth=truth).items():
            counts[name] += holds
    return {
        "design": design.name,
        "noise": noise,
        "truth": ("the planned effect" if planted else "A/A") + (f", guard worse by {worse:g}" if worse else ""),
        "pairs": len(claim.seeds),
        "studies": studies,
        **{name: share(count, studies) for name, count in counts.items()},
    }


def says(verdict: Verdict, *, nothing: float, truth: float) -> dict[str, bool]:
    """What is counted of one verdict. Without an interval, as where a run diverged, it calls nothing different and holds nothing."""
    shown, confirmed = verdict.interval, verdict.word is Word.confirmed
    different = shown is not None and not shown.low <= nothing <= shown.high
    return {
        "different": different,
        "confirmed": confirmed,
        "refuted": verdict.word is Word.refuted,
        "found": different and confirmed,
        "covered": shown is not None and shown.low <= truth <= shown.high,
    }


def _last_look(claim: Claim, *, arm: Outcomes, baseline: Outcomes) -> Verdict:
    """A study stops at the first look that decides."""
    for look in range(1, claim.looks + 1):
        verdict = judge(claim, arm=arm, baseline=baseline, at=AT, look=look)
        if verdict.word is not Word.inconclusive:
            break
    return verdict


def _outcomes(values: Array) -> Mapping[int, Outcome]:
    return {seed: Outcome(value=float(value)) for seed, value in enumerate(values)}


def share(count: int, of: int) -> dict[str, float]:
    """With the 95% interval of Clopper and Pearson (1934), exact."""
    from scipy import stats

    found = stats.binomtest(count, of).proportion_ci(method="exact")
    return {"share": count / of, "low": float(found.low), "high": float(found.high)}


def calibrate(*, studies: int, say: Callable[[str], Any] = lambda line: None) -> dict[str, Any]:
    """Every row, and the three figures that must hold: each over the designs under normal noise that were planned with fixed seeds.

    Errors:
        ValueError: too few studies to say anything.
    """
    require(studies >= LEAST_STUDIES, "--studies", f"be at least {LEAST_STUDIES}", studies)
    rng, rows = np.random.default_rng(SEED), []

    def add(design: Design, *, planted: bool, worse: float = 0.0, noise: str = "normal") -> dict[str, Any]:
        say(f"{design.name}: {'planted' if planted else 'A/A'}, {noise}")
        rows.append(simulate(design, planted=planted, worse=worse, noise=noise, studies=studies, rng=rng))
        return rows[-1]

    fair = [(planted, add(design, planted=planted)) for design in (LOSS, NOISY, TIME) for planted in (False, True)]
    for noise in list(NOISES)[1:]:
        for design in (LOSS, NOISY, TIME):
            for planted in (False, True):
                add(design, planted=planted, noise=noise)
    at_margin = add(TIME, planted=True, worse=0.005)
    for planted in (False, True):
        add(TWO_LOOKS, planted=planted)
    aa, planted_rows = ([row for planted, row in fair if planted is wanted] for wanted in (False, True))
    bars = [
        bar("A/A called different", "at most 5%", [row["different"] for row in aa], most=0.05),
        bar("A/A confirmed as a gain", "at most 5%", [row["confirmed"] for row in aa], most=0.05),
        bar("confirmed with a guard at its margin", "at most 5%", [at_margin["confirmed"]], most=0.05),
        bar("planned effect found", "at least 80%", [row["found"] for row in planted_rows], least=POWER),
        bar("interval holds the truth", "93% to 97%", [row["covered"] for _, row in fair], least=0.93, most=0.97),
    ]
    return {"seed": SEED, "studies": studies, "bars": bars, "rows": rows, "ok": all(bar["verdict"] != "broken" for bar in bars)}


def bar(name: str, wanted: str, shares: list[dict[str, float]], *, least: float = 0.0, most: float = 1.0) -> dict[str, Any]:
    """Shown where every interval lies within, broken where one lies wholly beyond. An exact test errs in 5%, and nobody can show that it
    errs in at most 5%: for that bar "not contradicted" is the best there is."""
    shown = all(share["low"] >= least and share["high"] <= most for share in shares)
    broken = any(share["high"] < least or share["low"] > most for share in shares)
    return {"what": name, "wanted": wanted, "found": shares, "verdict": "shown" if shown else "broken" if broken else "not contradicted"}


def render(result: Mapping[str, Any]) -> str:
    """The figures and the table, as text."""
    lines = [*told_bars(result["bars"]), "", *table(result["rows"])]
    return "\n".join([*lines, "", f"{result['studies']} simulated studies a row, each judged as a real one is"])


def told_bars(bars: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"{bar['what']} ({bar['wanted']}): {', '.join(map(tell, bar['found']))}: {bar['verdict']}" for bar in bars]


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    head = ("design", "noise", "truth", "pairs", *COUNTED)
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        shares = " | ".join(f"{row[name]['share']:.1%}" for name in COUNTED)
        lines.append(f"| {row['design']} | {row['noise']} | {row['truth']} | {row['pairs']} | {shares} |")
    return lines


def tell(found: Mapping[str, float]) -> str:
    return f"{found['share']:.1%} [{found['low']:.1%}, {found['high']:.1%}]"
