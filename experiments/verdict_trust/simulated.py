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
from nocap.judge.verdict import Word, judge
from nocap.report.table import markdown
from nocap.store.metrics import METRICS, Measurement, Scale

HERE = Path(__file__).resolve().parent
START, END = "<!-- tables: written by simulated.py -->", "<!-- end of tables -->"
SEED, STUDIES, JUDGED = 20261123, 40_000, 5
FIXED, ANALYSES, POWER = (3, 5, 8), (3, 6, 12, 24), (3, 4, 5, 6, 8)  # numbers of pairs
LOSSES = (
    "of losses"  # Student's interval; the others are of clocks, or have a noise that was declared
)
CLOCKS = "of clocks"
DECLARED, AT_HALF = "declared", "declared at half its size"  # of losses
NOISES = (LOSSES, CLOCKS, DECLARED, AT_HALF)

Kind = Callable[[np.random.Generator, tuple[int, int]], Array]


def lognormal(sigma: float) -> Kind:
    mean, sd = math.exp(sigma**2 / 2), math.exp(sigma**2 / 2) * math.sqrt(math.expm1(sigma**2))
    return lambda rng, shape: (mean - np.exp(sigma * rng.normal(size=shape))) / sd


def outliers(share: float) -> Kind:
    """One-sided, of eight standard deviations of the others."""
    sd = math.sqrt(1 + 64 * share * (1 - share))
    return lambda rng, shape: (
        (rng.normal(size=shape) - 8 * ((rng.random(shape) < share) - share)) / sd
    )


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
    size = {DECLARED: 1.0, AT_HALF: 0.5}.get(noise)
    return None if size is None else Declared(sd=size, df=8, source="simulated")


def interval(values: Array, noise: str, *, analysis: int = 1) -> tuple[Array, Array]:
    """Low and high ends, (studies,), of values of shape (studies, pairs)."""
    mid, n = values.mean(axis=1), values.shape[1]
    sd = values.std(axis=1, ddof=1)
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
    said, when = np.zeros(len(values)), np.full(len(values), len(ANALYSES))
    for k, n in enumerate(ANALYSES, start=1):
        low, high = interval(values[:, :n], noise, analysis=k)
        new = (said == 0) & ((low >= 0) | (high < 0))
        said, when = np.where(new, np.where(low >= 0, 1, -1), said), np.where(new, k, when)
    return said, when


def words(values: Array, noise: str) -> list[Word]:
    """By the judge itself, of each study that goes on until it is decided."""
    metric = METRICS["share" if noise == CLOCKS else "val_loss"]
    made: dict[str, Any] = {
        "id": "s",
        "statement": "any gain",
        "source": "made",
        "arm": "arm",
        "metric": metric.name,
        "parts": ["scores"] if noise == CLOCKS else [],
    }
    claim = Claim(
        **made,
        scale=Scale.value if noise == CLOCKS else Scale.difference,
        expected=[0.0, None],
        mechanism=Mechanism(formula="none"),
        seeds=[*range(24)],
    )
    known = declared(noise)
    verdicts = []
    for study in values:
        for n in ANALYSES:
            losses = [("arm", i, 100 - gain) for i, gain in enumerate(study[:n])]
            losses += [("base", i, 100.0) for i in range(n)]
            values = (
                losses
                if noise != CLOCKS
                else [("arm", i, gain) for i, gain in enumerate(study[:n])]
            )
            rows = [
                Measurement(arm=arm, repeat=i, metric=metric, value=float(x))
                for arm, i, x in values
            ]
            word = judge(
                claim, rows, against="base", at="", noise=known and {"val_loss": known}
            ).word
            if word is not Word.inconclusive:
                break
        verdicts.append(word)
    return verdicts


def percent(x: Array) -> float:
    return round(100 * float(np.mean(x)), 2)


def calibrate(studies: int) -> dict[str, Any]:
    """Every cell, in percent."""
    rows, power = [], []
    for noise in NOISES:
        for name, kind in KINDS.items():
            rng = np.random.default_rng(SEED)
            values = kind(rng, (studies, ANALYSES[-1]))
            ends = [interval(values[:, :n], noise) for n in FIXED]
            said, _ = first(values, noise)
            judged = [
                {Word.confirmed: 1, Word.refuted: -1}.get(word, 0)
                for word in words(values[:JUDGED], noise)
            ]
            assert judged == said[:JUDGED].tolist(), (noise, name)
            rows.append(
                {
                    "noise": noise,
                    "kind": name,
                    "false": [percent(low >= 0) for low, _ in ends],
                    "over_analyses": percent(said == 1),
                    "refuted": [percent(high < 0) for _, high in ends],
                    "holds": [percent((low <= 0) & (high >= 0)) for low, high in ends],
                }
            )
        values = np.random.default_rng(SEED).normal(size=(studies, ANALYSES[-1]))
        for effect in (2, 3) if noise != AT_HALF else ():
            confirmed = {n: percent(interval(effect + values[:, :n], noise)[0] >= 0) for n in POWER}
            said, when = first(effect + values, noise)
            pairs = round(float(np.mean(np.array(ANALYSES)[when - 1])), 1)
            power.append(
                {
                    "noise": noise,
                    "effect": effect,
                    "seen": confirmed,
                    "over_analyses": percent(said == 1),
                    "pairs": pairs,
                }
            )
    return {"studies": studies, "seed": SEED, "rows": rows, "power": power}


def broken(result: Mapping[str, Any], *, errors: float = 0.0) -> list[str]:
    """Cells beyond their bar, by more than so many standard errors of a share."""

    def room(bar: float) -> float:
        return errors * math.sqrt(bar * (100 - bar) / result["studies"])

    cells = []
    for row in result["rows"]:
        if (bars := BARS[row["noise"]].get(row["kind"])) is not None:
            at, over, holds = bars
            ok = max(row["false"]) <= at + room(at) and row["over_analyses"] <= over + room(over)
            ok = ok and (holds is None or min(row["holds"]) >= holds - room(holds))
            cells += (
                []
                if ok
                else [
                    f"{row['noise']}, {row['kind']}: {row['false']}, {row['over_analyses']}, "
                    f"{row['holds']}"
                ]
            )
    for row in result["power"]:
        least = LEAST_POWER.get(row["noise"], {}) if row["effect"] == 3 else {}
        cells += [
            f"{row['noise']}, power at {n}: {row['seen'][n]}"
            for n, bar in least.items()
            if row["seen"][n] < bar - room(bar)
        ]
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
    rows = [
        [
            r["noise"],
            r["kind"] + " (no bar)" * (r["kind"] not in BARS[r["noise"]]),
            several(r["false"]),
            f"{r['over_analyses']:.1f}",
            several(r["refuted"]),
            several(r["holds"]),
        ]
        for r in result["rows"]
    ]
    power_head = (
        "noise",
        "true gain",
        f"confirmed at {' / '.join(map(str, POWER))} pairs",
        "over four analyses",
        "pairs on average",
    )
    gains = [
        [
            r["noise"],
            f"{r['effect']}σ",
            several(list(r["seen"].values())),
            f"{r['over_analyses']:.1f}",
            f"{r['pairs']:.1f}",
        ]
        for r in result["power"]
    ]
    return "\n".join(
        [
            *markdown(head, rows),
            "",
            *markdown(power_head, gains),
            "",
            f"{result['studies']:,} studies a cell, seed {SEED}.",
        ]
    )


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
    before, _, rest = (options.into / "README.md").read_text().partition(START)
    (options.into / "README.md").write_text(
        f"{before}{START}\n\n{tables(result)}\n\n{END}{rest.partition(END)[2]}"
    )
    print(tables(result))
    # the bars are for the whole count
    beyond = broken(result, errors=0.0 if options.studies >= STUDIES else 3.0)
    print(*(f"beyond its bar: {line}" for line in beyond), sep="\n")
    return int(bool(beyond))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
