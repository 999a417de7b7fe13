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
from nocap.store.record import Record

HERE = Path(__file__).resolve().parent
START = "<!-- tables: written by noise.py -->"
END = "<!-- end of tables -->"
DRAWN = (3, 4, 6, 8, 12)  # seeds
DRAWS = 2000
SEED = 20261128
# of a kind of pair: at so many seeds, per cent of draws with a false word
BAR_AT = 6
BAR = 6.3

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
    keys = GRIDS[name].keys
    rows = [_row(record, keys) for record in api.load(place)]

    def place_of(row: Mapping[str, Any]) -> list[Any]:
        levels = [str(row[key]) for key in keys]
        return [*levels, row["seed"]]

    rows.sort(key=place_of)
    with (HERE / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _row(record: Record, keys: Sequence[str]) -> dict[str, Any]:
    """Return the row of a run: its levels of the keys, and what it ended at."""
    options = record.manifest["options"]
    row = dict[str, Any]()
    for key in keys:
        row[key] = options[key] if key in options else record.config[key]
    row["seed"] = record.seed
    row["status"] = record.status
    row["val_loss"] = record.val_loss
    row["train_s"] = round(record.train_s or 0.0, 3)
    return row


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
        by_level = dict[str, list[int]]()
        for i, arm in enumerate(self.arms):
            by_level.setdefault(arm[key], []).append(i)
        return list(by_level.values())


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
                of_arm = ends.setdefault(arm, {})
                of_arm[int(row["seed"])] = float(row["val_loss"])
            else:
                lost[arm] = lost.get(arm, 0) + 1
    seeds = sorted(set.intersection(*map(set, ends.values())))
    rows = [[of_arm[seed] for seed in seeds] for of_arm in ends.values()]
    return Losses(arms=[*ends], values=np.array(rows), lost=lost)


def differences(values: Array) -> Array:
    """Return each arm less the baseline, (arms - 1, seeds)."""
    less: Array = values[1:] - values[:1]
    return less


def table_of(all_arms: Losses, values: Array, key: int | None) -> Array:
    """Return the differences of one table: of the arms, or of a key's levels over all others."""
    if key is None:
        return differences(values)
    means = [values[arms].mean(axis=0) for arms in all_arms.by_level(key)]
    return differences(np.array(means))


def shown(estimates: Sequence[Estimate], narrowed: float) -> list[int]:
    """Say of each estimate what it shows: -1 lower, 1 higher, 0 neither."""
    words = list[int]()
    for each in estimates:
        is_shown = abs(each.mid) > narrowed * each.half_width
        words.append(int(np.sign(each.mid)) if is_shown else 0)
    return words


def shape(grid: str) -> list[list[str]]:
    """Describe the differences of each arm from the baseline: a row an arm."""
    of_grid = losses(grid)
    rows = list[list[str]]()
    for arm, pairs in zip(of_grid.arms[1:], differences(of_grid.values), strict=True):
        mean = pairs.mean()
        sd = float(pairs.std(ddof=1))
        row = [
            _named(grid, arm),
            str(len(pairs)),
            f"{mean:+.4f}",
            f"{sd:.4f}",
            f"{mean / sd:+.2f}",
            f"{stats.skew(pairs):+.2f}",
            f"{stats.kurtosis(pairs):+.2f}",
            f"{stats.shapiro(pairs).pvalue:.2f}",
        ]
        rows.append(row)
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
    of_grid = losses(grid)
    values = of_grid.values if effect else of_grid.noise
    table = table_of(of_grid, values, key)
    total = table.shape[1]
    shares = dict[int, list[float]]()
    for n in DRAWN:
        narrowed = 1.0 if effect else float(np.sqrt(1 - n / total))
        draws = list[list[int]]()
        for _ in range(DRAWS):
            seeds = rng.permutation(total)[:n]
            of_draw = shown(of_arms(table[:, seeds].tolist()), narrowed)
            draws.append([*of_draw, max(of_draw, key=abs)])
        is_shown = np.abs(np.array(draws))
        shares[n] = is_shown.mean(axis=0).tolist()
    return shares


def alone(grid: str, rng: np.random.Generator) -> dict[str, dict[int, float]]:
    """Return, for each arm as if it were the only one, the share of draws with a false word."""
    of_grid = losses(grid)
    shares: dict[str, dict[int, float]] = {}
    for arm, pairs in zip(of_grid.arms[1:], differences(of_grid.noise), strict=True):
        of_arm = shares.setdefault(_named(grid, arm), {})
        for n in DRAWN:
            of_arm[n] = _share_shown(pairs, n, rng)
    return shares


def _share_shown(pairs: Array, n: int, rng: np.random.Generator) -> float:
    """Return the share of draws of so many pairs in which a difference is shown."""
    total = len(pairs)
    narrowed = float(np.sqrt(1 - n / total))
    is_shown = list[int]()
    for _ in range(DRAWS):
        draw = pairs[rng.permutation(total)[:n]]
        (word,) = shown([of_pairs(draw.tolist())], narrowed)
        is_shown.append(abs(word))
    return float(np.mean(is_shown))


Percents = dict[str, dict[int, float]]  # name → number of seeds → per cent of draws


def tell() -> None:
    """Write results.json and the tables of README.md from the rows that are there."""
    rng = np.random.default_rng(SEED)
    names = [name for name in GRIDS if (HERE / f"{name}.csv").exists()]
    false_alone: Percents = {}
    for name in names:
        for arm, shares in alone(name, rng).items():
            false_alone[arm] = {n: 100 * share for n, share in shares.items()}
    false_together: Percents = {}
    shown_in: Percents = {}
    for name in names:
        for key in _tables_of(name):
            by_seeds = words(name, key, effect=False, rng=rng)
            title = "arm by arm" if key is None else GRIDS[name].keys[key]
            of_any = {n: 100 * row[-1] for n, row in by_seeds.items()}
            false_together[f"{name}, {title}"] = of_any
            by_seeds = words(name, key, effect=True, rng=rng)
            kind = "arm by arm" if key is None else "by factor"
            for i, level in enumerate(_levels(name, key)):
                of_level = {n: 100 * row[i] for n, row in by_seeds.items()}
                shown_in[f"{level}, {kind}"] = of_level
    results = {
        "seed": SEED,
        "draws": DRAWS,
        "false_alone": false_alone,
        "false_together": false_together,
        "shown": shown_in,
        "lost": {name: _lost(name) for name in names},
        "over_the_bar": [arm for arm, of_arm in false_alone.items() if of_arm[BAR_AT] > BAR],
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    _write_tables(names, results)


def _tables_of(name: str) -> list[int | None]:
    """List the tables of a grid: arm by arm (None), and of a crossing by each of its keys."""
    if name == "attention_mlp":
        return [None, 0, 1]
    return [None]


def _lost(name: str) -> dict[str, int]:
    """Return arm → its runs that diverged."""
    return {_named(name, arm): n for arm, n in losses(name).lost.items()}


def _levels(name: str, key: int | None) -> list[str]:
    """Name the rows of a table."""
    of_grid = losses(name)
    if key is None:
        return [_named(name, arm) for arm in of_grid.arms[1:]]
    _, *levels = dict.fromkeys(arm[key] for arm in of_grid.arms)
    return [f"{GRIDS[name].keys[key]}={level}" for level in levels]


def _write_tables(names: Sequence[str], results: Mapping[str, Any]) -> None:
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
    shapes = list[list[str]]()
    for name in names:
        shapes += shape(name)
    lines = [*markdown(head, shapes), ""]
    lines += _table("false words, one arm alone, %", results["false_alone"])
    lines += _table("false words, any of a table, %", results["false_together"])
    lines += _table("shown, %", results["shown"])
    lines.append(
        f"{DRAWS:,} draws a cell, seed {SEED}. p: Shapiro and Wilk's. Kurtosis: beyond the normal "
        f"one."
    )
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(START)
    after = rest.partition(END)[2]
    page.write_text("\n".join([before + START, "", *lines, "", END]) + after)


def _table(title: str, rows: Percents) -> list[str]:
    """Return a table of Markdown with a column for each number of seeds."""
    seeds = [f"{n} seeds" for n in DRAWN]
    cells = list[list[str]]()
    for name, row in rows.items():
        percents = [f"{row[n]:.1f}" for n in DRAWN]
        cells.append([name, *percents])
    return [*markdown([title, *seeds], cells), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("run").add_argument("grid", choices=[*GRIDS])
    verbs.add_parser("tell")
    options = parser.parse_args()
    if options.verb == "run":
        run(options.grid)
    else:
        tell()


if __name__ == "__main__":
    main()
