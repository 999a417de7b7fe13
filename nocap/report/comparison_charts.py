"""The curves of a comparison: what the page's script draws, and the pictures and tables that stand
there before, and without, the script."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any

from markupsafe import Markup

from nocap.judge.comparison import ComparedArm
from nocap.metrics import METRICS
from nocap.report import svg_chart
from nocap.report.arm_styles import ArmStyle, styles_of
from nocap.report.comparison_tables import ARM
from nocap.report.figures_in_words import values
from nocap.report.short_names import distinct, fitted
from nocap.report.table import Table
from nocap.store.record import Curve, Record

AXES = ("tokens", "train_s", "val_loss", "val_bpb")  # of a curve, beside its steps
# digits of a plotted number: more than a screen shows, and half of the file's size saved
RESOLUTION = 6
EQUAL = 4e-5  # of ratios of two such numbers of five digits or more
SPANS = {"all": 0.0, "most": 0.1, "end": 0.75}  # the share of a run that is left out of sight
CLOSE_ENDS = 0.1  # of the range of the losses: ends that lie so close are not told apart
LEAST_POINTS = 2  # of a curve that is drawn
SAMPLES = 6  # steps in the table of a chart's data
SHORT = 24  # letters of a name in a chart
BANDED = 8  # arms whose bands can be told apart
FEW = 12  # arms whose seeds can

Columns = dict[str, list[Any]]  # of a curve, by axis
Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlottedSeed:
    """A run of an arm as the page's script draws it."""

    seed: int
    status: str
    own: Columns  # of its curve, those that are not its arm's mean, as the steps are

    def data(self, spare: Collection[str]) -> dict[str, object]:
        """Return the run for the script, without the columns that are `spare`."""
        return {"seed": self.seed, "status": self.status, **_without(self.own, spare)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlottedArm:
    """An arm as the page's script draws it."""

    label: str
    own: str  # its name without what all arms' names begin with
    look: ArmStyle
    hollow: bool  # its mark, where no difference is shown
    seeds: list[PlottedSeed]
    mean: Columns
    averaged: int  # seeds
    val_loss: float | None
    val_bpb: float | None
    train_s: float | None
    model_mib: float | None
    placed: bool  # whether it ran where the baseline did

    def data(self, base: Columns, spare: Collection[str]) -> dict[str, object]:
        """Return the arm for the script, without the columns of its mean that `base` has too, and
        without those that are `spare`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values.pop("look")
        if self.own == self.label:
            values.pop("own")
        values["mean"] = _without(_own(self.mean, base), spare)
        values["seeds"] = [seed.data(spare) for seed in self.seeds]
        return values | asdict(self.look)

    @property
    def curves(self) -> list[Columns]:
        """List the curve of each run with all its columns."""
        return [{**self.mean, **seed.own} for seed in self.seeds]

    @property
    def losses(self) -> Points:
        """Return the mean loss over steps."""
        return svg_chart.known(self.mean["step"], self.mean["val_loss"])


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What the curves show first, and what they cannot show."""

    relative: bool  # less the baseline's
    span: str
    absent: Mapping[str, str]  # an axis, or a part of the runs → why there are no curves of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Charts:
    """The charts of a page: the arms in their order, and what is shown first."""

    arms: Sequence[PlottedArm]
    view: View

    @property
    def curves(self) -> Markup | None:
        """Draw the mean curves; `None` where no run was validated on its way."""
        return _still_curves(self.arms, self.view)

    @property
    def times(self) -> Markup | None:
        """Draw the losses against time; `None` where no arm has a training time."""
        return _still_times(self.arms)

    @property
    def losses(self) -> Table:
        """Return the data of the curves: mean losses at a few steps of the baseline's."""
        return _losses(self.arms)

    @property
    def ends(self) -> Table:
        """Return the data of loss against time."""
        return _ends(self.arms)

    @property
    def bits(self) -> float | None:
        """Return the bits per byte that a nat per token is; `None`: not the same everywhere, as by
        two tokenizers, or not known."""
        ratios = list[float]()
        for arm in self.arms:
            for curve in (arm.mean, *arm.curves):
                for loss, bpb in zip(curve["val_loss"], curve["val_bpb"], strict=True):
                    if loss and bpb:
                        ratios.append(bpb / loss)
                    elif loss != bpb:
                        return None
        if not ratios or max(ratios) > (1 + EQUAL) * min(ratios):
            return None
        return fmean(ratios)

    def data(self, target: float | None) -> dict[str, object]:
        """Return all of it for the script, a column that is the baseline's too once, and no bits
        per byte that follow from the loss. `target`: a loss that the curves are to show."""
        base, *others = self.arms
        bits = self.bits
        spare = () if bits is None else ("val_bpb",)
        return {
            "arms": [base.data({}, spare), *(arm.data(base.mean, spare) for arm in others)],
            "bits": bits,
            "banded": BANDED,
            "few": FEW,
            "target": target,
            "dashes": svg_chart.DASHES,
            "symbols": svg_chart.SYMBOLS,
            "shares": SPANS,
            "view": asdict(self.view),
        }


def charts(rows: Sequence[ComparedArm], swept: Sequence[str]) -> Charts:
    """Return the charts of these arms. `swept`: the keys in which a grid's arms differ."""
    of_arms = styles_of([row.arm for row in rows], swept)
    names = distinct([row.label for row in rows])
    arms = list(map(_plotted, rows, of_arms, names))
    return Charts(arms=arms, view=_view(arms))


def _plotted(row: ComparedArm, look: ArmStyle, own: str) -> PlottedArm:
    """Return an arm as it is drawn."""
    finished = [run.curve for run in row.arm.runs if run.curve.step]
    mean = _rounded(_mean_curve(finished))
    hollow = row.difference is not None and not row.difference.word.is_shown
    return PlottedArm(
        label=row.arm.label,
        own=own,
        look=look,
        hollow=hollow,
        seeds=[_seed(run, mean) for run in row.arm.all if run.curve.step],
        mean=mean,
        averaged=len(finished),
        val_loss=row.val_loss,
        val_bpb=row.val_bpb,
        train_s=row.times["train_s"].mean,
        model_mib=row.times["model_mib"].mean,
        placed=not row.times["tokens_per_s"].refused,
    )


def _seed(run: Record, mean: Columns) -> PlottedSeed:
    """Return a run as it is drawn. `mean`: of its arm."""
    own = _own(_rounded(asdict(run.curve)), mean)
    return PlottedSeed(seed=run.seed, status=run.status, own=own)


def _without(columns: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    return {key: column for key, column in columns.items() if key not in names}


def _own(columns: Columns, base: Columns) -> Columns:
    """Return the columns that `base` has not."""
    return {key: column for key, column in columns.items() if column != base.get(key)}


def _rounded(columns: Columns) -> Columns:
    return {key: list(map(_short_number, column)) for key, column in columns.items()}


def _short_number(x: Any) -> Any:
    if not isinstance(x, float) or not math.isfinite(x):
        return x
    short = float(f"{x:.{RESOLUTION}g}")
    return int(short) if short.is_integer() else short


def _mean_curve(curves: Sequence[Curve]) -> Columns:
    """Return the mean over seeds at the steps that all of them reached: a mean whose members change
    would show jumps that nobody trained."""
    places = [_places(curve) for curve in curves]
    common = sorted(set.intersection(*map(set, places))) if places else []
    mean: Columns = {"step": common}
    for axis in AXES:
        columns = [getattr(curve, axis) for curve in curves]
        mean[axis] = [_mean_at(step, columns, places) for step in common]
    return mean


def _places(curve: Curve) -> dict[int, int]:
    """Return where each step stands in the curve's columns."""
    return {step: place for place, step in enumerate(curve.step)}


def _mean_at(
    step: int, columns: Iterable[Sequence[float | None]], places: Iterable[Mapping[int, int]]
) -> float | None:
    """Return the mean of the curves' values at a step; `None`: one has none."""
    total = list[float]()
    for column, at in zip(columns, places, strict=True):
        value = column[at[step]]
        if value is None:
            return None
        total.append(value)
    return math.fsum(total) / len(total)


# --- what the curves show first -------------------------------------------------------------------


def _view(arms: Sequence[PlottedArm]) -> View:
    """Leave out the first steps, whose fall hides the rest, where enough points are left; show
    differences where the ends could not be told apart."""
    drawn = [arm.losses for arm in arms if arm.losses]
    absent = _absent(arms)
    for span, share in SPANS.items():
        if not _is_drawn(drawn, share):
            absent[span] = "an arm has fewer than two validations in this part"
    span = "all" if "most" in absent else "most"
    ends = [points[-1][1] for points in drawn]
    inside = list[float]()
    for points in drawn:
        first = SPANS[span] * points[-1][0]
        inside += [loss for step, loss in points if step >= first]
    close = len(ends) > 1 and _range(ends) < CLOSE_ENDS * _range(inside)
    return View(relative=close and bool(arms[0].losses), span=span, absent=absent)


def _absent(arms: Iterable[PlottedArm]) -> dict[str, str]:
    """Return the axes of which no curve has a number."""
    absent = dict.fromkeys(AXES, "no run recorded it")
    for arm in arms:
        for columns in arm.curves:
            for axis in AXES:
                if any(value is not None for value in columns[axis]):
                    absent.pop(axis, None)
    return absent


def _is_drawn(means: Sequence[Points], share: float) -> bool:
    """Say whether each curve keeps enough points to be one."""
    last = max((points[-1][0] for points in means), default=0.0)
    left = [sum(step >= share * last for step, _ in points) for points in means]
    return share == 0 or min(left, default=0) >= LEAST_POINTS


def _range(numbers: Sequence[float]) -> float:
    return max(numbers) - min(numbers)


# --- pictures that stand still --------------------------------------------------------------------


def _still_curves(arms: Sequence[PlottedArm], shown: View) -> Markup | None:
    base = dict(arms[0].losses)
    lines = list[svg_chart.StillLine]()
    for arm, name in zip(arms, _names(arms), strict=True):
        points = arm.losses
        if shown.relative:
            points = [(step, loss - base[step]) for step, loss in points if step in base]
        lines.append(_line(arm, name, points))
    last = max((step for line in lines for step, _ in line.points), default=0.0)
    title = "loss minus the baseline's" if shown.relative else "validation loss"
    ends = (SPANS[shown.span] * last, last)
    return svg_chart.chart(lines, x="training steps", y=title, ends=ends, named=True)


def _still_times(arms: Sequence[PlottedArm]) -> Markup | None:
    lines = list[svg_chart.StillLine]()
    for arm, name in zip(arms, _names(arms), strict=True):
        if arm.placed:
            lines.append(_line(arm, name, svg_chart.known([arm.train_s], [arm.val_loss])))
    return svg_chart.chart(lines, x="training time (s)", y="validation loss (nats per token)")


def _names(arms: Sequence[PlottedArm]) -> list[str]:
    return fitted([arm.label for arm in arms], SHORT)


def _line(arm: PlottedArm, name: str, points: Points) -> svg_chart.StillLine:
    return svg_chart.StillLine(
        name=name,
        color=f"var(--hue-{arm.look.hue})",
        dash=svg_chart.DASHES[arm.look.dash],
        symbol=arm.look.symbol,
        hollow=arm.hollow,
        points=points,
    )


# --- their data -----------------------------------------------------------------------------------


def _losses(arms: Sequence[PlottedArm]) -> Table:
    steps = arms[0].mean["step"]
    stride = max(1, -(-len(steps) // SAMPLES))
    sampled = sorted({*steps[::stride], *steps[-1:]})
    columns = [ARM, *(values("val_loss", f"step {step:,}") for step in sampled)]
    rows = list[list[object]]()
    for arm in arms:
        at = dict(arm.losses)
        rows.append([arm.label, *map(at.get, sampled)])
    return Table(title="Mean validation loss over steps", columns=columns, rows=rows)


def _ends(arms: Iterable[PlottedArm]) -> Table:
    columns = [ARM]
    for name in ("train_s", "val_loss", "model_mib"):
        columns.append(values(name, METRICS[name].title))
    rows = [[arm.label, arm.train_s, arm.val_loss, arm.model_mib] for arm in arms]
    return Table(title="Loss, time and memory", columns=columns, rows=rows).known
