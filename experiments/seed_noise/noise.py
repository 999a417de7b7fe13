"""The noise of real seeds: trains the grids, and says how often each rule errs on what they end at.

    python experiments/seed_noise/noise.py run attention_mlp  # its rows: attention_mlp.csv
    python experiments/seed_noise/noise.py tell                  # results.json and README.md

An arm's losses, less their mean, are noise without an effect. Of them n seeds are drawn, for all
arms alike, and judged as nocap judges a grid of n seeds: each word is a false one. Seeds are drawn
without replacement from N, so that a mean of n varies less than that of n fresh seeds; its interval
is narrowed by √(1 − n/N).
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from nocap import api
from nocap.judge.interval import Array, Estimate, of_arms, of_pairs
from nocap.report.table import markdown

HERE = Path(__file__).resolve().parent
START, END = "<!-- tables: written by noise.py -->", "<!-- end of tables -->"
DRAWN = (3, 4, 6, 8, 12)  # seeds
DRAWS = 2000
SEED = 20261128
BAR_AT, BAR = 6, 6.3  # of a kind of pair: at six seeds, per cent of draws with a false word

MODEL = [
    "model=nano",
    "data=text",
    "data.path=outputs/texts/prose",
    "tracker=none",
    "trainer.steps=150",
    "trainer.precision=fp32",  # what each kind of CPU trained these in
    "trainer.threads=1",  # two runs at once take less time than one after the other on two threads
]
POOL = ["hydra/launcher=pool", "hydra.launcher.jobs=2"]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Commands that train its arms, over so many seeds."""

    commands: Sequence[Sequence[str]]  # what each sweeps
    keys: Sequence[str]  # that name an arm
    baseline: tuple[str, ...]  # its levels
    seeds: int


GRIDS = {
    "attention_mlp": Grid(
        commands=[["attention=flash,gqa", "mlp=gelu4x,gelu3x,swiglu"]],
        keys=["attention", "mlp"],
        baseline=("flash", "gelu4x"),
        seeds=100,
    ),
    "four_changes": Grid(
        commands=[
            ["optimizer=adamw,muon"],
            ["schedule=cosine,linear"],
            ["ideas=[],bigram"],
            ["model.d_model=64,96"],
        ],
        keys=["optimizer", "schedule", "ideas", "model.d_model"],
        baseline=("adamw", "wsd", "none", "64"),
        seeds=100,
    ),
    "diverging": Grid(
        commands=[["optimizer.lr=0.003,21.3"]],
        keys=["optimizer.lr"],
        baseline=("0.003",),
        seeds=40,
    ),
}


# --- the rows -------------------------------------------------------------------------------------


def run(name: str) -> None:
    """Train a grid's runs, but those that are there, and write its rows."""
    grid = GRIDS[name]
    place = Path("outputs") / "seed_noise" / name
    for swept in grid.commands:
        words = [*swept, *MODEL, f"seed=range({grid.seeds})", f"output_dir={place}", *POOL]
        subprocess.run([sys.executable, "-m", "nocap.train", "--multirun", *words], check=True)
    write_rows(name, place)


def write_rows(name: str, place: Path) -> None:
    """Write the rows of a grid's runs."""
    grid = GRIDS[name]
    rows = [
        {
            **{key: _setting(record.manifest["options"], record.config, key) for key in grid.keys},
            "seed": record.seed,
            "status": record.status,
            "val_loss": record.val_loss,
            "train_s": round(record.train_s or 0.0, 3),
        }
        for record in api.load(place)
    ]
    rows.sort(key=lambda row: [*(str(row[key]) for key in grid.keys), row["seed"]])
    with (HERE / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _setting(options: Mapping[str, str], config: Mapping[str, Any], key: str) -> Any:
    return options[key] if key in options else config[key]


# --- what they say --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The final losses of a grid's arms, whose seeds are the same."""

    arms: list[tuple[str, ...]]  # the levels of each, the baseline first
    values: Array  # (arms, seeds)
    lost: dict[tuple[str, ...], int]  # runs of an arm that diverged, whose seeds are left out

    @property
    def noise(self) -> Array:
        """Return the losses less each arm's mean."""
        centred: Array = self.values - self.values.mean(axis=1, keepdims=True)
        return centred

    def by_level(self, key: int) -> list[list[int]]:
        """List the arms of each level of a key, the baseline's level first."""
        levels = dict.fromkeys(arm[key] for arm in self.arms)
        return [[i for i, arm in enumerate(self.arms) if arm[key] == level] for level in levels]


def losses(name: str) -> Losses:
    """Read a grid's rows.

    Errors:
        FileNotFoundError: it was not trained yet.
    """
    grid = GRIDS[name]
    ends: dict[tuple[str, ...], dict[int, float]] = {grid.baseline: {}}
    lost: dict[tuple[str, ...], int] = {}
    with (HERE / f"{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            arm = tuple(row[key] for key in grid.keys)
            if row["status"] == "finished":
                ends.setdefault(arm, {})[int(row["seed"])] = float(row["val_loss"])
            else:
                lost[arm] = lost.get(arm, 0) + 1
    seeds = sorted(set.intersection(*map(set, ends.values())))
    values = np.array([[of_arm[seed] for seed in seeds] for of_arm in ends.values()])
    return Losses(arms=[*ends], values=values, lost=lost)


def differences(values: Array) -> Array:
    """Return each arm less the baseline, (arms - 1, seeds)."""
    less: Array = values[1:] - values[:1]
    return less


def table_of(all_arms: Losses, values: Array, key: int | None) -> Array:
    """Return the differences of one table: of the arms, or of a key's levels over all others."""
    if key is None:
        return differences(values)
    return differences(np.array([values[level].mean(axis=0) for level in all_arms.by_level(key)]))


def shown(estimates: Sequence[Estimate], narrowed: float) -> list[int]:
    """Say of each estimate what it shows: -1 lower, 1 higher, 0 neither."""
    return [
        int(np.sign(each.mid)) * (abs(each.mid) > narrowed * each.half_width) for each in estimates
    ]


def shape(grid: str) -> list[list[str]]:
    """Describe the differences of each arm from the baseline: a row an arm."""
    there = losses(grid)
    rows = []
    for arm, pairs in zip(there.arms[1:], differences(there.values), strict=True):
        sd = float(pairs.std(ddof=1))
        rows.append(
            [
                _named(grid, arm),
                str(len(pairs)),
                f"{pairs.mean():+.4f}",
                f"{sd:.4f}",
                f"{pairs.mean() / sd:+.2f}",
                f"{stats.skew(pairs):+.2f}",
                f"{stats.kurtosis(pairs):+.2f}",
                f"{stats.shapiro(pairs).pvalue:.2f}",
            ]
        )
    return rows


def _named(grid: str, arm: tuple[str, ...]) -> str:
    """Name an arm by what differs from the baseline."""
    base = GRIDS[grid].baseline
    keys = zip(GRIDS[grid].keys, arm, base, strict=True)
    return " ".join(f"{key}={level}" for key, level, usual in keys if level != usual)


def words(
    grid: str, key: int | None, *, effect: bool, rng: np.random.Generator
) -> dict[int, list[float]]:
    """Return, for each number of seeds, the share of draws in which each difference of a table is
    shown; and as the last of a row, that in which any is. `effect`: as the arms are, else less
    their means."""
    there = losses(grid)
    values = there.values if effect else there.noise
    table = table_of(there, values, key)
    total = table.shape[1]
    shares = {}
    for n in DRAWN:
        narrowed = 1.0 if effect else float(np.sqrt(1 - n / total))
        found = []
        for _ in range(DRAWS):
            drawn = rng.permutation(total)[:n]
            said = shown(of_arms(table[:, drawn].tolist()), narrowed)
            found.append([*said, max(said, key=abs)])
        shares[n] = (np.abs(np.array(found)).mean(axis=0)).tolist()
    return shares


def alone(grid: str, rng: np.random.Generator) -> dict[str, dict[int, float]]:
    """Return, for each arm as if it were the only one, the share of draws with a false word."""
    there = losses(grid)
    shares: dict[str, dict[int, float]] = {}
    for arm, pairs in zip(there.arms[1:], differences(there.noise), strict=True):
        of_arm = shares.setdefault(_named(grid, arm), {})
        for n in DRAWN:
            narrowed = float(np.sqrt(1 - n / len(pairs)))
            draws = [pairs[rng.permutation(len(pairs))[:n]].tolist() for _ in range(DRAWS)]
            of_arm[n] = float(
                np.mean([abs(shown([of_pairs(drawn)], narrowed)[0]) for drawn in draws])
            )
    return shares


def tell() -> None:
    """Write results.json and the tables of README.md from the rows that are there."""
    rng = np.random.default_rng(SEED)
    there = [name for name in GRIDS if (HERE / f"{name}.csv").exists()]
    kinds = {kind: shares for name in there for kind, shares in alone(name, rng).items()}
    tables: dict[str, dict[int, list[float]]] = {}
    found: dict[str, dict[int, float]] = {}
    for name in there:
        crossed = name == "attention_mlp"
        keys: list[int | None] = [None, 0, 1] if crossed else [None]
        for key in keys:
            title = f"{name}, {'arm by arm' if key is None else GRIDS[name].keys[key]}"
            tables[title] = words(name, key, effect=False, rng=rng)
            shares = words(name, key, effect=True, rng=rng)
            for i, level in enumerate(_levels(name, key)):
                found[f"{level}, {'arm by arm' if key is None else 'by factor'}"] = {
                    n: share[i] for n, share in shares.items()
                }
    false = {
        kind: {n: 100 * share for n, share in of_kind.items()} for kind, of_kind in kinds.items()
    }
    together = {
        title: {n: 100 * each[-1] for n, each in row.items()} for title, row in tables.items()
    }
    results = {
        "seed": SEED,
        "draws": DRAWS,
        "false_alone": false,
        "false_together": together,
        "shown": {
            title: {n: 100 * share for n, share in row.items()} for title, row in found.items()
        },
        "lost": {
            name: {_named(name, arm): k for arm, k in losses(name).lost.items()} for name in there
        },
        "over_the_bar": [kind for kind, of_kind in false.items() if of_kind[BAR_AT] > BAR],
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    _write_tables(there, results)


def _levels(name: str, key: int | None) -> list[str]:
    """Name the rows of a table."""
    there = losses(name)
    if key is None:
        return [_named(name, arm) for arm in there.arms[1:]]
    levels = dict.fromkeys(arm[key] for arm in there.arms)
    return [f"{GRIDS[name].keys[key]}={level}" for level in [*levels][1:]]


def _write_tables(there: Sequence[str], results: Mapping[str, Any]) -> None:
    head = [
        "arm, against the baseline",
        "seeds",
        "mean",
        "sd of a pair",
        "mean/sd",
        "skew",
        "kurtosis",
        "p",
    ]
    lines = [*markdown(head, [row for name in there for row in shape(name)]), ""]
    seeds = [f"{n} seeds" for n in DRAWN]
    for title, rows in (
        ("false words, one arm alone, %", results["false_alone"]),
        ("false words, any of a table, %", results["false_together"]),
        ("shown, %", results["shown"]),
    ):
        cells = [[name, *(f"{row[n]:.1f}" for n in DRAWN)] for name, row in rows.items()]
        lines += [*markdown([title, *seeds], cells), ""]
    lines.append(
        f"{DRAWS:,} draws a cell, seed {SEED}. p: Shapiro and Wilk's. Kurtosis: beyond the normal "
        f"one."
    )
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(START)
    after = rest.partition(END)[2]
    page.write_text("\n".join([before + START, "", *lines, "", END]) + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("run").add_argument("grid", choices=[*GRIDS])
    verbs.add_parser("tell")
    asked = parser.parse_args()
    if asked.verb == "run":
        run(asked.grid)
    else:
        tell()


if __name__ == "__main__":
    main()
