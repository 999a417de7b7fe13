"""The comparison as a page: its tables, its colours, and what its script draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nocap.judge.arms import Arm, setting
from nocap.judge.compared import ComparedArm, Comparison
from nocap.judge.interval import LEAST_PAIRS, confidence
from nocap.judge.losses import Outcome
from nocap.report import arms, forest, page
from nocap.report.table import TableCell
from nocap.report.words import gains
from nocap.store import formats
from nocap.store.files import write_file
from nocap.store.metrics import Scale
from nocap.store.runs import Curve, Record
from nocap.training.ledger import LINES

HUES = 7  # --hue-0 … --hue-6 in page.css; 0 is the text's colour
DASHES = ("", "7,4", "2,3", "9,3,2,3", "14,4", "14,3,2,3")  # SVG's stroke-dasharray; "" is a solid line
AXES = ("tokens", "train_s", "val_loss", "val_bpb")  # of a curve, beside its steps
AXIS = "{} less {}'s; left is better"  # of the differences
RESOLUTION = 8  # digits of a plotted number: more than a screen shows, and a third of the file's size saved

# Outcome → its mark, its name, and what it means to somebody who has never seen one. The order is the page's.
VERDICTS = {
    Outcome.better: (
        "✓",
        "Better",
        "the loss is lower than the other arm's, beyond what seeds explain",
    ),
    Outcome.worse: (
        "✕",
        "Worse",
        "the loss is higher than the other arm's, beyond what seeds explain",
    ),
    Outcome.unclear: (
        "○",
        "No difference shown",
        "the seeds cannot tell them apart; that does not make them equal",
    ),
    Outcome.depends: ("±", "Depends", "the sign of the difference changes with another key"),
    Outcome.undecided: ("?", "No verdict", "too few seeds finished to tell a change from luck"),
    Outcome.diverged: ("∞", "Diverged", "the loss of a seed ran away; a mean over the others flatters"),
    Outcome.unfinished: ("…", "Unfinished", "a command asked for more seeds than are there"),
    Outcome.confounded: (
        "!",
        "Confounded",
        "something else differs too, so the difference cannot be put down to the change",
    ),
}


def write(comparison: Comparison, path: Path) -> None:
    write_file(path, render(comparison).encode())


def render(comparison: Comparison) -> str:
    rows = comparison.rows
    looks = _looks([row.arm for row in rows], comparison.swept)
    plots = {
        "arms": [_plotted(row, look) for row, look in zip(rows, looks, strict=True)],
        "target": comparison.target,
        "clock": list(LINES.values()),
        "dashes": DASHES,
    }
    shown = _differences(comparison)
    kinds = [row.difference and row.difference.outcome.name for row in rows]
    return page.render(
        "comparison",
        kind="nocap comparison",
        title=arms.headline(comparison),
        data=page.finite(plots),
        c=comparison,
        arms=[
            {"label": row.label, "look": look, "kind": kind, "difference": cell.text}
            for row, look, kind, cell in zip(rows, looks, kinds, shown, strict=True)
        ],
        intervals=forest.svg(lines, title=AXIS.format(comparison.metric, arms.other(comparison)), cut=True)
        if (lines := intervals(comparison))
        else None,
        factors=arms.by_factor(comparison.factors, comparison.metric) if comparison.factors else None,
        effects=_effects(comparison) if comparison.factors else None,
        paces=arms.paces_by_factor(comparison),
        verdicts={outcome.name: texts for outcome, texts in VERDICTS.items()},
        tables=list(arms.tables(comparison)),
        compared=arms.compared(comparison),
        next=arms.next_step(comparison),
        unplaced=[row.label for row in rows if row.times["tokens_per_s"].refused],
        clock=LINES,
        dashes=DASHES,
        interval=f"{100 * confidence(comparison.look):.4g}%",
        least_seeds=LEAST_PAIRS,
        f=formats,
    )


def _looks(arms: Sequence[Arm], swept: Sequence[str]) -> list[tuple[int, int]]:
    """Colour and dash of each arm. In a grid one factor (`attention`, with all its keys) is the colour and
    the rest is the dash, so that the eye sees the factors; where that does not fit, they are counted through.
    The baseline is the text's colour, solid."""
    groups = [
        [key for key in swept if key.partition(".")[0] == group]
        for group in dict.fromkeys(key.partition(".")[0] for key in swept)
    ]
    splits = []
    for factor in [*groups, *([key] for key in swept)]:
        hues = _numbered(arms, factor)
        dashes = _numbered(arms, [key for key in swept if key not in factor])
        looks = list(zip(hues, dashes, strict=True))
        if max(hues) < HUES and max(dashes) < len(DASHES) and len(set(looks)) == len(arms):
            splits.append(looks)
    counted = [(index % HUES, index // HUES % len(DASHES)) for index in range(len(arms))]
    return max(splits, key=lambda looks: len({hue for hue, _ in looks}), default=counted)


def _numbered(arms: Sequence[Arm], keys: Sequence[str]) -> list[int]:
    """0, 1, 2 … for the arms' values of `keys`, in the order in which they first come."""
    numbers: dict[tuple[str, ...], int] = {}
    return [numbers.setdefault(tuple(setting(arm.config, key) for key in keys), len(numbers)) for arm in arms]


def _plotted(row: ComparedArm, look: tuple[int, int]) -> dict[str, object]:
    arm, (hue, dash) = row.arm, look
    whole = [run.curve for run in arm.runs if run.curve.step]
    return {
        "label": arm.label,
        "hue": hue,
        "dash": dash,
        "seeds": [_seed(run) for run in arm.all if run.curve.step],
        "mean": _rounded(_mean_curve(whole)),
        "averaged": len(whole),
        "val_loss": row.val_loss,
        "val_bpb": row.val_bpb,
        **{metric: row.times[metric].mean for metric in ("train_s", "model_mib")},
        "placed": not row.times["tokens_per_s"].refused,
        "clock_s": [row.clock_s.get(line, 0.0) for line in LINES],
    }


def _seed(run: Record) -> dict[str, object]:
    return {"seed": run.seed, "status": run.status, **_rounded(asdict(run.curve))}


def _rounded(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {
        key: [float(f"{x:.{RESOLUTION}g}") if isinstance(x, float) else x for x in column]
        for key, column in columns.items()
    }


def _mean_curve(curves: Sequence[Curve]) -> dict[str, list[Any]]:
    """The mean over seeds at the steps that all of them reached: a mean whose members change would show jumps
    that nobody trained."""
    at = [{step: index for index, step in enumerate(curve.step)} for curve in curves]
    common = sorted(set.intersection(*map(set, at))) if at else []
    mean: dict[str, list[Any]] = {"step": common}
    for key in AXES:
        columns = [
            [getattr(curve, key)[steps[step]] for curve, steps in zip(curves, at, strict=True)]
            for step in common
        ]
        mean[key] = [None if None in column else math.fsum(column) / len(column) for column in columns]
    return mean


def _differences(comparison: Comparison) -> list[TableCell]:
    column = gains(comparison.metric, Scale.difference, arms.DIFFERENCE)
    return [column.draw(row.difference and row.difference.estimate) for row in comparison.rows]


def _effects(comparison: Comparison) -> Markup:
    """Draw the effects of the levels, the lowest loss first."""
    column = gains(comparison.metric, Scale.difference, arms.DIFFERENCE)
    lines = list[forest.ForestRow]()
    for factor in comparison.factors.factors if comparison.factors else ():
        for level in factor.levels:
            label, estimate = f"{factor.key}={level.name}", level.difference.estimate
            line = forest.ForestRow(
                label=label,
                title=f"{label}: {column.draw(estimate)}",
                look=level.difference.outcome.name,
                mid=estimate.mid,
                low=estimate.low,
                high=estimate.high,
            )
            lines.append(line)
    lines.sort(key=lambda line: line.mid)
    return forest.svg(lines, title=AXIS.format(comparison.metric, "the baseline"), zero=True)


def intervals(comparison: Comparison) -> list[forest.ForestRow]:
    """Of the differences. An interval without an end is not drawn: its point is."""
    lines = []
    for row, cell in zip(comparison.rows, _differences(comparison), strict=True):
        if (gap := row.difference) and (estimate := gap.estimate):
            low, high = (
                (estimate.low, estimate.high)
                if math.isfinite(estimate.high)
                else (estimate.mid, estimate.mid)
            )
            title = f"{row.label}: {cell}"
            lines.append(
                forest.ForestRow(
                    label=row.label, title=title, look=gap.outcome.name, mid=estimate.mid, low=low, high=high
                )
            )
    return lines
