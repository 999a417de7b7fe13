"""How often verdicts are wrong: simulated studies of few pairs, under noise as it was measured and worse, with one look and with several.

`python experiments/verdict_trust/simulated.py [--studies N] [--json FILE] [--readme FILE]`: nothing is trained.

Verdicts are computed for all studies of a row at once, by the bounds of `nocap.judge.noise` and the levels of the claim. The first studies
of each row are judged as real ones are, too, and must come out alike.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from counting import bar, finish, share
from noises import ANY, BEYOND, CLOCK, Kind, normal
from tables import around, render, write_table

from nocap.config.errors import refusals
from nocap.config.keys import require
from nocap.judge.claim import Claim, Guard, Mechanism
from nocap.judge.noise import BIAS, CAP, Noise, Prior, noise_of
from nocap.judge.stats import Array
from nocap.judge.verdict import Judge, Verdict, Word
from nocap.store.measurement import METRICS, Measurement, Scale
from nocap.store.record import check_writable

STUDIES, LEAST_STUDIES = 10_000, 100  # a row
LOSS, SPEED, QUIET = 0.0018, 0.031, 0.005  # sigma of a pair's gain: √2 × 0.0013 nats; 3.1% as measured here; where a bias is felt
EFFECT = 3.0  # that a row plants, in sigmas
POWER = 0.8
SEED = 20261122
AT = "simulated"
ALIKE = 10  # studies of each row that the judge itself judges
BIASED = {"bias +0.5%": BIAS, "bias −0.5%": -BIAS}  # the arm that is timed first is slower
WORDS = (Word.inconclusive, Word.confirmed, Word.refuted)


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """A claim of any gain at all, so that no effect is on its very edge, or of at least `low`."""

    sigma: float  # of a pair's gain
    looks: tuple[int, ...]
    declared: bool  # whether the noise is
    low: float = 0.0  # the stated end, in sigmas
    guarded: bool = False  # by a loss, which lies at its margin

    @property
    def metric(self) -> str:
        return "val_loss" if self.sigma == LOSS else "tokens_per_s"

    @property
    def name(self) -> str:
        what = {LOSS: "loss", SPEED: "speed", QUIET: "quiet speed"}[self.sigma]
        return f"{what}, noise {'declared' if self.declared else 'unknown'}" + (", guard at its margin" if self.guarded else "")

    @property
    def scale(self) -> Scale:
        return Scale.difference if self.sigma == LOSS else Scale.ratio

    @property
    def priors(self) -> dict[str, Prior]:
        sigmas = {"val_loss": LOSS, self.metric: self.sigma} if self.declared else {}
        return {name: Prior(sd=sigma, df=CAP, source="made up") for name, sigma in sigmas.items()}

    def noise(self, metric: str, scale: Scale) -> Noise:
        return noise_of(METRICS[metric], scale, self.priors.get(metric), level=1.0)

    def claim(self) -> Claim:
        """As a study would write it."""
        guard = Guard(metric="val_loss", scale=Scale.difference, margins={AT: LOSS})
        return Claim(
            id="simulated",
            statement="the arm is better",
            source="made up",
            arm="arm",
            metric=self.metric,
            scale=self.scale,
            expected=[math.exp(self.low * self.sigma) if self.scale is Scale.ratio else self.low * self.sigma, None],
            guards=[guard] if self.guarded else [],
            mechanism=Mechanism(bound=None, formula="none: nothing is trained"),
            seeds=list(range(self.looks[-1])),
            looks=list(self.looks),
        )


ONE_LOOK, GROWING = ((3,), (4,), (6,)), (3, 6, 9)
DESIGNS = [
    Design(sigma=sigma, looks=looks, declared=declared)
    for sigma in (LOSS, SPEED, QUIET)
    for declared in (True, False)
    for looks in (*ONE_LOOK, GROWING)
]
GUARDED = Design(sigma=SPEED, looks=(4,), declared=True, guarded=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """All studies of a row: what each came to, with how many pairs, and where its interval lies."""

    words: Any  # of WORDS, by index
    pairs: Any
    low: Array
    high: Array

    def share_of(self, word: Word) -> dict[str, float]:
        return share(int(np.sum(self.words == WORDS.index(word))), len(self.words))


def judged(design: Design, gains: Array, guard: Array | None = None) -> Judged:
    """`gains`: of (study, pair), as logarithms for a ratio; `guard`: the guard's. The first look that decides is the verdict."""
    claim = design.claim()
    noise = design.noise(design.metric, design.scale)
    of = [(gains, noise, design.low * design.sigma)]
    of += [] if guard is None else [(guard, design.noise("val_loss", Scale.difference), -LOSS)]
    words, pairs = np.zeros(len(gains), dtype=int), np.zeros(len(gains), dtype=int)
    low, high = np.zeros(len(gains)), np.zeros(len(gains))
    for look, n in enumerate(design.looks, start=1):
        share = claim.alpha / len(of)
        alpha, side, each = (claim.level(look, a) for a in (claim.alpha, share / 2, share))
        inside, outside = np.ones(len(gains), dtype=bool), np.zeros(len(gains), dtype=bool)
        for i, (values, one, end) in enumerate(of):
            inside &= one.at_least(values[:, :n], alpha) >= end
            outside |= -one.at_least(-values[:, :n], each if i else side) < end
        open_ = words == 0
        error, df = noise.error(gains[:, :n])
        half = _quantile(df, 1 - claim.level(look, claim.alpha / 2)) * error + noise.bias
        mid = gains[:, :n].mean(axis=1)
        for known, new in ((low, mid - half), (high, mid + half), (pairs, n)):
            known[open_] = new[open_] if isinstance(new, np.ndarray) else new
        words[open_] = np.where(outside, 2, inside)[open_]
    return Judged(words=words, pairs=pairs, low=low, high=high)


def _quantile(df: Array, p: float) -> Array:
    from scipy import special

    return special.stdtrit(df, p)


def judge(design: Design, gains: Sequence[float], guard: Sequence[float] | None = None) -> Verdict:
    """One study as a real one is judged."""
    sides = [(design.metric, design.scale, gains), *([("val_loss", Scale.difference, guard)] if guard is not None else [])]
    found = []
    for metric, scale, values in sides:
        for seed, gain in enumerate(map(float, values)):
            arm = math.exp(gain) if scale is Scale.ratio else 3.4 - gain
            for side, value in (("arm", arm), ("baseline", 1.0 if scale is Scale.ratio else 3.4)):
                found.append(Measurement(arm=side, repeat=seed, metric=METRICS[metric], value=value))
    return Judge(design.claim(), found, against="baseline", at=AT, noise=design.priors).last_complete()


def check_alike(design: Design, gains: Array, found: Judged, guard: Array | None = None) -> None:
    """Refuse a simulation that the judge does not agree with."""
    for i in range(min(ALIKE, len(gains))):
        verdict = judge(design, gains[i].tolist(), None if guard is None else guard[i].tolist())
        assert (verdict.word, verdict.n) == (WORDS[found.words[i]], found.pairs[i]), (design, i, verdict)
        back = math.log if design.scale is Scale.ratio else float
        assert verdict.interval is not None
        assert np.allclose([back(verdict.interval.low), back(verdict.interval.high)], [found.low[i], found.high[i]]), (design, i)


# --- rows --------------------------------------------------------------------------------------------------------------------------


def row(design: Design, noise: str, kind: Kind, *, studies: int, rng: np.random.Generator) -> dict[str, Any]:
    """Both errors at the edge, and an effect of three sigmas. A guard lies at its margin under both."""
    shape = (studies, design.looks[-1])
    shift = BIASED.get(noise, 0.0)
    drawn, sure = design.sigma * kind(rng, shape) + shift, 100 * design.sigma if design.guarded else 0.0
    guard = LOSS * (kind(rng, shape) - 1) if design.guarded else None
    edge, planted = judged(design, drawn + sure, guard), judged(design, drawn + EFFECT * design.sigma, guard)
    check_alike(design, drawn + sure, edge, guard)
    check_alike(design, drawn + EFFECT * design.sigma, planted, guard)
    covered = int(np.sum((edge.low <= sure) & (sure <= edge.high)))
    return {
        "design": design.name,
        "looks": list(design.looks),
        "noise": noise,
        "beyond": noise in BEYOND,
        "studies": studies,
        "confirmed": edge.share_of(Word.confirmed),
        "refuted": edge.share_of(Word.refuted),
        "found": None if design.guarded else planted.share_of(Word.confirmed),
        "covered": share(covered, studies),
        "t_test": t_test(drawn + sure if guard is None else guard + LOSS),
        "pairs": {"no effect": float(edge.pairs.mean()), "planted": float(planted.pairs.mean())},
    }


def t_test(gains: Array) -> dict[str, float]:
    """How often Student's test of all pairs, one-sided at 5%, confirms, and at 2.5% refutes: the rule before."""
    n = gains.shape[1]
    t = gains.mean(axis=1) / (gains.std(axis=1, ddof=1) / math.sqrt(n))
    edges = [float(_quantile(np.array(n - 1.0), p)) for p in (0.95, 0.975)]
    return {"confirmed": float(np.mean(t > edges[0])), "refuted": float(np.mean(t < -edges[1]))}


def growing(*, studies: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Looks at 3, 6 and 9 pairs against 9 pairs fixed: at no effect, at the effect that 9 pairs find in 90%, and at twice that; of a claim
    of any gain, and of one of at least half that effect."""
    plain, n = Design(sigma=LOSS, looks=GROWING, declared=True), GROWING[-1]
    df = np.array(CAP + n - 1)
    planned = float(_quantile(df, 1 - plain.claim().alpha) + _quantile(df, 0.9)) / math.sqrt(n)  # in sigmas
    rows = []
    for low in (0.0, planned / 2):
        for times in (0, 1, 2):
            design = replace(plain, low=low)
            gains = design.sigma * (rng.normal(size=(studies, n)) + times * planned)
            grown, fixed = judged(design, gains), judged(replace(design, looks=(n,)), gains)
            check_alike(design, gains, grown)
            shares = {word.value: {"grown": grown.share_of(word), "fixed": fixed.share_of(word)} for word in WORDS}
            mean = {"pairs": float(grown.pairs.mean()), "fixed": n}
            rows.append({"low": low, "effect": times * planned, "times": times, "words": shares, **mean})
    return rows


def kinds_of(design: Design) -> dict[str, Kind]:
    """A bias is tried where it is as large as the noise."""
    if design.sigma == QUIET:
        return {"normal": normal, **dict.fromkeys(BIASED, normal)}
    return {**(CLOCK if design.sigma == SPEED and not design.guarded else ANY), **BEYOND}


def calibrate(*, studies: int, log: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Every row, and the bars that must hold.

    Errors:
        ValueError: too few studies.
    """
    require(studies >= LEAST_STUDIES, "--studies", f"be at least {LEAST_STUDIES}", studies)
    rng, rows = np.random.default_rng(SEED), []
    for design in [*DESIGNS, GUARDED]:
        log(f"{design.name}, {design.looks}")
        rows += [row(design, name, kind, studies=studies, rng=rng) for name, kind in kinds_of(design).items()]
    counted = [one for one in rows if not one["beyond"]]
    powered = [one["found"] for one in counted if one["looks"] == [4] and one["design"] == "loss, noise declared"]
    held = [one["covered"] for one in counted if one["design"] != "loss, noise unknown"]
    bars = [
        bar("confirmed falsely", "at most 5%", [one["confirmed"] for one in counted], most=0.05),
        bar("refuted falsely", "at most 2.5%", [one["refuted"] for one in counted], most=0.025),
        bar("3σ confirmed, 4 pairs of declared noise", "at least 80%", powered, least=POWER),
        bar("interval holds the truth, noise declared or a clock's", "at least 93%", held, least=0.93),
    ]
    ok = all(one["verdict"] != "broken" for one in bars)
    return {"seed": SEED, "studies": studies, "bars": bars, "rows": rows, "growing": growing(studies=studies, rng=rng), "ok": ok}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count the wrong verdicts of simulated studies: two minutes, nothing is trained.")
    parser.add_argument("--studies", type=int, metavar="N", default=STUDIES, help=f"simulated studies a row (default: {STUDIES})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts as JSON")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="write the tables between its marks")
    options = parser.parse_args(argv)
    with refusals():
        if options.json:
            check_writable("--json", options.json)
        if options.readme:
            around(options.readme)
        log: Callable[[str], None] = (lambda line: print(line, file=sys.stderr)) if sys.stderr.isatty() else (lambda line: None)
        result = calibrate(studies=options.studies, log=log)
        if options.readme:
            write_table(options.readme, render(result))
        return finish(result, render(result), options.json)


if __name__ == "__main__":
    raise SystemExit(main())
