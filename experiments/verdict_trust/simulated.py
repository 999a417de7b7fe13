"""How often verdicts are wrong: simulated studies, each from a claim to its verdict, under measured noise and under worse noise.

`python experiments/verdict_trust/simulated.py [--studies N] [--json FILE]`: nothing is trained.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from nocap.config.errors import EXIT_CODES, refusals
from nocap.config.keys import require
from nocap.judge.claim import Claim, Guard, Mechanism
from nocap.judge.power import plan
from nocap.judge.stats import Array
from nocap.judge.verdict import Judge, Verdict, Word
from nocap.show.table import markdown
from nocap.store.measurement import METRICS, Measurement, Scale
from nocap.store.record import check_writable, write_json, writing

STUDIES, LEAST_STUDIES = 2000, 100  # a row
GUARD_SIGMA = 0.0013  # nats between seeds, as of GPT-2 124M's public records; 0.0019 with the heavy-tailed ones
POWER = 0.8  # that the studies are planned for
SEED = 20261120
AT = "simulated"
SIDES = ("arm", "baseline")
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
    metric: str
    scale: Scale
    effect: float  # as the planner takes it
    sigma: float
    guard_margin: float | None = None  # nats
    looks: int = 1

    @property
    def gain(self) -> float:
        """The planned effect on the scale the noise lives on: a logarithm for a ratio."""
        return math.log1p(self.effect) if self.scale is Scale.ratio else self.effect


LOSS = Design(name="loss .005, sigma .0013", metric="val_loss", scale=Scale.difference, effect=0.005, sigma=0.0013)
NOISY = Design(name="loss .002, sigma .0019", metric="val_loss", scale=Scale.difference, effect=0.002, sigma=0.0019)
TIME = Design(
    name="time to target 1%, CV .5%, loss guarded at .005",
    metric="time_to_target_s",
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
        statement=f"the arm's {design.metric} is better",
        source="made up",
        arm="arm",
        metric=design.metric,
        scale=design.scale,
        expected=[1.0 if design.scale is Scale.ratio else 0.0, None],
        target=3.3821 if design.metric == "time_to_target_s" else None,
        guards=[] if guard is None else [Guard(metric="val_loss", scale=Scale.difference, margins={AT: guard})],
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
    truth, nothing = (math.exp(x) if design.scale is Scale.ratio else x for x in (gain, 0.0))
    verdicts = [_last_look(claim, _measured(values, study)) for study in range(studies)]
    return {
        "design": design.name,
        "noise": noise,
        "truth": ("the planned effect" if planted else "A/A") + (f", guard worse by {worse:g}" if worse else ""),
        "pairs": len(claim.seeds),
        "studies": studies,
        **{name: share(n, studies) for name, n in count(verdicts, nothing=nothing, truth=truth).items()},
    }


def count(verdicts: Iterable[Verdict], *, nothing: float, truth: float) -> dict[str, int]:
    """How many verdicts are what, by `COUNTED`. `nothing` and `truth`: no gain and the true one, on the claim's scale."""
    each = [_properties(verdict, nothing=nothing, truth=truth) for verdict in verdicts]
    return {name: sum(one[name] for one in each) for name in COUNTED}


def _properties(verdict: Verdict, *, nothing: float, truth: float) -> dict[str, bool]:
    """Without an interval, as where a run diverged, it calls nothing different and holds nothing."""
    shown, confirmed = verdict.interval, verdict.word is Word.confirmed
    different = shown is not None and not shown.low <= nothing <= shown.high
    return {
        "different": different,
        "confirmed": confirmed,
        "refuted": verdict.word is Word.refuted,
        "found": different and confirmed,
        "covered": shown is not None and shown.low <= truth <= shown.high,
    }


def _last_look(claim: Claim, measurements: list[Measurement]) -> Verdict:
    """A study stops at the first look that decides."""
    judge = Judge(claim, measurements, against="baseline", at=AT)
    for look in range(1, claim.looks + 1):
        verdict = judge.verdict(look)
        if verdict.word is not Word.inconclusive:
            break
    return verdict


def _measured(values: Mapping[str, Array], study: int) -> list[Measurement]:
    """`values`: metric → of (arm or baseline, study, seed)."""
    return [
        Measurement(arm=arm, repeat=seed, metric=METRICS[name], value=float(value))
        for name, of in values.items()
        for arm, seeds in zip(SIDES, of[:, study], strict=True)
        for seed, value in enumerate(seeds)
    ]


def share(count: int, of: int) -> dict[str, float]:
    """With the 95% interval of Clopper and Pearson (1934), exact."""
    from scipy import stats

    found = stats.binomtest(count, of).proportion_ci(method="exact")
    return {"share": count / of, "low": float(found.low), "high": float(found.high)}


def calibrate(*, studies: int, log: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Every row, and the three figures that must hold: each over the designs under normal noise that were planned with fixed seeds.

    Errors:
        ValueError: too few studies.
    """
    require(studies >= LEAST_STUDIES, "--studies", f"be at least {LEAST_STUDIES}", studies)
    rng, rows = np.random.default_rng(SEED), []

    def add(design: Design, *, planted: bool, worse: float = 0.0, noise: str = "normal") -> dict[str, Any]:
        log(f"{design.name}: {'planted' if planted else 'A/A'}, {noise}")
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
    """The bars and the table, as text."""
    lines = [*bar_lines(result["bars"]), "", *table(result["rows"])]
    return "\n".join([*lines, "", f"{result['studies']} simulated studies a row, each judged as a real one is"])


def bar_lines(bars: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"{bar['what']} ({bar['wanted']}): {', '.join(map(_share, bar['found']))}: {bar['verdict']}" for bar in bars]


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    keys = ("design", "noise", "truth", "pairs")
    cells = [[*(str(row[key]) for key in keys), *(f"{row[name]['share']:.1%}" for name in COUNTED)] for row in rows]
    return markdown((*keys, *COUNTED), cells)


def _share(found: Mapping[str, float]) -> str:
    return f"{found['share']:.1%} [{found['low']:.1%}, {found['high']:.1%}]"


def finish(result: Mapping[str, Any], text: str, path: Path | None) -> int:
    """Print it, write it to `path`; the exit code: 1 where a bar is broken."""
    print(text)
    if path:
        with writing("--json", path):
            write_json(path, result)
    return EXIT_CODES["finished" if result["ok"] else "failed"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count the wrong verdicts of simulated studies: minutes, nothing is trained.")
    parser.add_argument("--studies", type=int, metavar="N", default=STUDIES, help=f"simulated studies a row (default: {STUDIES})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts as JSON")
    options = parser.parse_args(argv)
    with refusals():
        if options.json:
            check_writable("--json", options.json)
        log: Callable[[str], None] = (lambda line: print(line, file=sys.stderr)) if sys.stderr.isatty() else (lambda line: None)
        result = calibrate(studies=options.studies, log=log)
        return finish(result, render(result), options.json)


if __name__ == "__main__":
    raise SystemExit(main())
