"""How often the intervals err, by simulation: the words of claims without an effect, the truth that
an interval holds, and power.

    python experiments/verdict_trust/simulated.py [--studies 40000]  # writes results.json, tables
    of README.md

Noise is of a pair's gain, with mean 0 and a standard deviation of 1. The claim is "any gain at
all", so that the truth is at its edge. All studies of a cell are decided at once by the half widths
of `nocap.judge`; its first ones are also judged from measurements by `nocap.judge.verdict.judge`,
and must come out alike.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nocap.judge import cautious_interval
from nocap.judge.cautious_interval import Declared
from nocap.judge.claim import Claim, Mechanism
from nocap.judge.interval import Array, half_width
from nocap.judge.verdict import ClaimWord, judge
from nocap.metrics import METRICS, Scale
from nocap.report.table import markdown
from nocap.store.measurement import Measurement

HERE = Path(__file__).resolve().parent
START = "<!-- tables: written by simulated.py -->"
END = "<!-- end of tables -->"
SEED = 20261123
STUDIES = 40_000
JUDGED = 5
# numbers of pairs
FIXED = (3, 5, 8)
ANALYSES = (3, 6, 12, 24)
POWER = (3, 4, 5, 6, 8)
# Student's interval; the others are of clocks, or have a noise that was declared
LOSSES = "of losses"
CLOCKS = "of clocks"
DECLARED = "declared"  # of losses, as is the next
AT_HALF = "declared at half its size"
NOISES = (LOSSES, CLOCKS, DECLARED, AT_HALF)

Kind = Callable[[np.random.Generator, tuple[int, int]], Array]


def lognormal(sigma: float) -> Kind:
    mean = math.exp(sigma**2 / 2)
    sd = mean * math.sqrt(math.expm1(sigma**2))
    return lambda rng, shape: (mean - np.exp(sigma * rng.normal(size=shape))) / sd


def outliers(share: float) -> Kind:
    """One-sided, of eight standard deviations of the others."""
    sd = math.sqrt(1 + 64 * share * (1 - share))

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        normal = rng.normal(size=shape)
        is_outlier = rng.random(shape) < share
        return (normal - 8 * (is_outlier - share)) / sd

    return draw


def correlated(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """AR(1): each pair resembles the one before by 0.5."""
    x = rng.normal(size=shape)
    for i in range(1, shape[1]):
        x[:, i] = 0.5 * x[:, i - 1] + math.sqrt(0.75) * x[:, i]
    return x


def sessions(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """The log ratio of two speeds, each 20% off in each session."""
    speeds = np.log(np.maximum(1 + 0.2 * rng.normal(size=(2, *shape)), 0.1))
    return (speeds[0] - speeds[1]) / 0.29


KINDS: dict[str, Kind] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "t, 3 degrees": lambda rng, shape: rng.standard_t(3, size=shape) / math.sqrt(3),
    "lognormal .5": lognormal(0.5),
    "lognormal .8": lognormal(0.8),
    "exponential": lambda rng, shape: 1 - rng.exponential(size=shape),
    "5% outliers": outliers(0.05),
    "AR(1) .5": correlated,
    "sessions": sessions,
    "lognormal 1": lognormal(1.0),
    "10% outliers": outliers(0.1),
}
SHOWN = ("lognormal 1", "10% outliers")  # without a bar
# What may be false in %, at a number of pairs and over the analyses, and what the intervals must
# hold; None: no bar.
BARS: Mapping[str, Mapping[str, tuple[float, float, float | None]]] = {
    # real losses have no skew to speak of: what they would do with one is shown without a bar
    LOSSES: dict.fromkeys(("normal", "t, 3 degrees", "sessions"), (2.8, 3.5, 94.5)),
    CLOCKS: {
        **dict.fromkeys(("normal", "t, 3 degrees"), (1.0, 1.0, 98.0)),
        **dict.fromkeys(
            ("lognormal .5", "lognormal .8", "exponential", "5% outliers"), (5.0, 6.0, 95.0)
        ),
        **dict.fromkeys(("AR(1) .5", "sessions"), (5.0, 5.0, 93.0)),
    },
    DECLARED: {kind: (3.0, 3.0, 94.0) for kind in KINDS if kind not in SHOWN},
    AT_HALF: {
        kind: (9.0, 12.0, None) if kind == "AR(1) .5" else (5.0, 5.0, None)
        for kind in KINDS
        if kind not in SHOWN
    },
}
# of an effect of three standard deviations
LEAST_POWER = {
    LOSSES: {3: 73.0, 4: 95.0, 5: 99.0},
    CLOCKS: {3: 30.0, 4: 55.0, 5: 78.0, 6: 92.0},
    DECLARED: {3: 85.0},
}


def declared(noise: str) -> Declared | None:
    if noise == DECLARED:
        return Declared(sd=1.0, df=8, source="simulated")
    if noise == AT_HALF:
        return Declared(sd=0.5, df=8, source="simulated")
    return None


def interval(values: Array, noise: str, *, analysis: int = 1) -> tuple[Array, Array]:
    """Low and high ends, (studies,), of values of shape (studies, pairs)."""
    mid = values.mean(axis=1)
    sd = values.std(axis=1, ddof=1)
    n = values.shape[1]
    if noise == CLOCKS:
        half, _ = cautious_interval.half_width(sd, n, analysis=analysis)
    else:
        own = half_width(1.0, n, analysis) * sd
        half, _ = cautious_interval.narrowed(
            own, sd, n, declared=declared(noise), share=analysis**2
        )
    return mid - half, mid + half


def first(values: Array, noise: str) -> tuple[Array, Array]:
    """Over the analyses: 1 confirmed, -1 refuted, 0 neither; and at which, (studies,)."""
    verdicts = np.zeros(len(values))
    analyses = np.full(len(values), len(ANALYSES))
    for k, n in enumerate(ANALYSES, start=1):
        low, high = interval(values[:, :n], noise, analysis=k)
        is_confirmed = low >= 0
        is_refuted = high < 0
        is_new = (verdicts == 0) & (is_confirmed | is_refuted)
        verdicts = np.where(is_new, np.where(is_confirmed, 1, -1), verdicts)
        analyses = np.where(is_new, k, analyses)
    return verdicts, analyses


def words(values: Array, noise: str) -> list[ClaimWord]:
    """By the judge itself, of each study that goes on until it is decided."""
    claim = claim_of(noise)
    known = declared(noise)
    noises = known and {"val_loss": known}
    last_words = list[ClaimWord]()
    for gains in values:
        for n in ANALYSES:
            rows = measurements(gains[:n], noise)
            word = judge(claim, rows, against="base", at="", noise=noises).word
            if word is not ClaimWord.inconclusive:
                break
        last_words.append(word)
    return last_words


def claim_of(noise: str) -> Claim:
    of_clocks = noise == CLOCKS
    scale = Scale.difference
    metric = "val_loss"
    parts = list[str]()
    if of_clocks:
        scale = Scale.value
        metric = "share"
        parts = ["scores"]
    return Claim(
        id="s",
        statement="any gain",
        source="made",
        arm="arm",
        metric=metric,
        parts=parts,
        scale=scale,
        expected=[0.0, None],
        mechanism=Mechanism(formula="none"),
        seeds=list(range(24)),
    )


def measurements(gains: Array, noise: str) -> list[Measurement]:
    """What a study measured that has these gains."""
    rows = list[Measurement]()
    if noise == CLOCKS:
        share = METRICS["share"]
        for i, gain in enumerate(gains):
            rows.append(Measurement(arm="arm", repeat=i, metric=share, value=float(gain)))
        return rows
    val_loss = METRICS["val_loss"]
    for i, gain in enumerate(gains):
        rows.append(Measurement(arm="arm", repeat=i, metric=val_loss, value=float(100 - gain)))
    for i in range(len(gains)):
        rows.append(Measurement(arm="base", repeat=i, metric=val_loss, value=100.0))
    return rows


def percent(x: Array) -> float:
    return round(100 * float(np.mean(x)), 2)


def calibrate(studies: int) -> dict[str, Any]:
    """Every cell, in percent."""
    rows = list[dict[str, Any]]()
    power = list[dict[str, Any]]()
    for noise in NOISES:
        rows += [false_words(noise, kind, studies) for kind in KINDS]
        if noise != AT_HALF:
            power += [power_of(noise, effect, studies) for effect in (2, 3)]
    return {"studies": studies, "seed": SEED, "rows": rows, "power": power}


SIGNS = {ClaimWord.confirmed: 1, ClaimWord.refuted: -1}


def false_words(noise: str, kind: str, studies: int) -> dict[str, Any]:
    """How often claims without an effect get a word."""
    rng = np.random.default_rng(SEED)
    values = KINDS[kind](rng, (studies, ANALYSES[-1]))
    verdicts, _ = first(values, noise)
    judged = [SIGNS.get(word, 0) for word in words(values[:JUDGED], noise)]
    assert judged == verdicts[:JUDGED].tolist(), (noise, kind)
    confirmed = list[float]()
    refuted = list[float]()
    holds = list[float]()
    for n in FIXED:
        low, high = interval(values[:, :n], noise)
        confirmed.append(percent(low >= 0))
        refuted.append(percent(high < 0))
        holds.append(percent((low <= 0) & (high >= 0)))
    return {
        "noise": noise,
        "kind": kind,
        "false": confirmed,
        "over_analyses": percent(verdicts == 1),
        "refuted": refuted,
        "holds": holds,
    }


def power_of(noise: str, effect: int, studies: int) -> dict[str, Any]:
    """How often claims with an effect, in standard deviations, are confirmed."""
    rng = np.random.default_rng(SEED)
    values = effect + rng.normal(size=(studies, ANALYSES[-1]))
    confirmed = dict[int, float]()
    for n in POWER:
        low, _ = interval(values[:, :n], noise)
        confirmed[n] = percent(low >= 0)
    verdicts, analyses = first(values, noise)
    n_pairs = np.array(ANALYSES)[analyses - 1]
    return {
        "noise": noise,
        "effect": effect,
        "seen": confirmed,
        "over_analyses": percent(verdicts == 1),
        "pairs": round(float(np.mean(n_pairs)), 1),
    }


def broken(result: Mapping[str, Any], *, errors: float = 0.0) -> list[str]:
    """Cells beyond their bar, by more than so many standard errors of a share."""

    def room(bar: float) -> float:
        return errors * math.sqrt(bar * (100 - bar) / result["studies"])

    cells = list[str]()
    for row in result["rows"]:
        bars = BARS[row["noise"]].get(row["kind"])
        if bars is None:
            continue
        at, over, holds = bars
        is_false = max(row["false"]) > at + room(at)
        is_false_over_analyses = row["over_analyses"] > over + room(over)
        misses = holds is not None and min(row["holds"]) < holds - room(holds)
        if is_false or is_false_over_analyses or misses:
            figures = f"{row['false']}, {row['over_analyses']}, {row['holds']}"
            cells.append(f"{row['noise']}, {row['kind']}: {figures}")
    for row in result["power"]:
        if row["effect"] != 3:
            continue
        least = LEAST_POWER.get(row["noise"], {})
        for n, bar in least.items():
            power = row["seen"][n]
            if power < bar - room(bar):
                cells.append(f"{row['noise']}, power at {n}: {power}")
    return cells


def tables(result: Mapping[str, Any]) -> str:
    """In percent; three, five and eight pairs, then the four analyses."""

    def several(values: list[float]) -> str:
        return " / ".join(f"{x:.1f}" for x in values)

    head = (
        "noise",
        "of a pair",
        "falsely confirmed at 3 / 5 / 8 pairs",
        "over four analyses",
        "falsely refuted",
        "holds the truth",
    )
    rows = list[list[str]]()
    for row in result["rows"]:
        kind = row["kind"]
        if kind not in BARS[row["noise"]]:
            kind = f"{kind} (no bar)"
        false = several(row["false"])
        over_analyses = f"{row['over_analyses']:.1f}"
        refuted = several(row["refuted"])
        rows.append([row["noise"], kind, false, over_analyses, refuted, several(row["holds"])])
    power_head = (
        "noise",
        "true gain",
        f"confirmed at {' / '.join(map(str, POWER))} pairs",
        "over four analyses",
        "pairs on average",
    )
    gains = list[list[str]]()
    for row in result["power"]:
        effect = f"{row['effect']}σ"
        confirmed = several(list(row["seen"].values()))
        over_analyses = f"{row['over_analyses']:.1f}"
        gains.append([row["noise"], effect, confirmed, over_analyses, f"{row['pairs']:.1f}"])
    note = f"{result['studies']:,} studies a cell, seed {SEED}."
    return "\n".join([*markdown(head, rows), "", *markdown(power_head, gains), "", note])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="How often the interval errs.")
    parser.add_argument("--studies", type=int, default=STUDIES, help="a cell")
    parser.add_argument(
        "--into",
        type=Path,
        default=HERE,
        metavar="FOLDER",
        help="with a README.md; results.json and its tables go there",
    )
    options = parser.parse_args(argv)
    result = calibrate(options.studies)
    (options.into / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    text = tables(result)
    page = options.into / "README.md"
    before, _, rest = page.read_text().partition(START)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}")
    print(text)
    # the bars are for the whole count
    errors = 3.0
    if options.studies >= STUDIES:
        errors = 0.0
    lines = [f"beyond its bar: {line}" for line in broken(result, errors=errors)]
    print(*lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
