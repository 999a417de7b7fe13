"""Figures in words that need no sign: `7.4% faster`, `higher loss by 0.0401`, `at least 20%
faster`. A gain is above 1 as a ratio, or above 0 as a difference, where the arm is better, whatever
the metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from nocap import display as formats
from nocap.display import NONE, Unit, count
from nocap.judge.interval import ROUNDING, Estimate
from nocap.metrics import METRICS, Better, Metric, Scale, Wording
from nocap.report.table import Column, TableCell

FAR = 10.0  # between the ends of a ratio: it is not known
MOST_DECIMALS = 8  # of a difference: what is narrower is rounding
NARROW = 0.02  # half width of a ratio, below which two digits hide its interval
UNITS = ("MiB", "MB", "ms", "tokens/s", "bytes/token")  # that a value is shown with
# how a metric is shown → what its column counts in
IN_COLUMNS: dict[Callable[[float | None], str], Sequence[Unit]] = {
    formats.three_digits: formats.ONE,
    formats.duration: formats.DURATIONS,
    formats.count: formats.COUNTS,
}


def value(x: float, metric: Metric) -> str:
    """Draw a metric's own number with its unit."""
    if metric.unit in UNITS:
        return f"{amount(x, metric)} {metric.unit}"
    return amount(x, metric)


def amount(x: float, metric: Metric) -> str:
    if metric.name == "share":
        return f"{x:.1%}"
    if metric.unit == "parameters":
        return count(x)
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    return f"{x:.4g}"


def is_plain(metric: Metric, scale: Scale) -> bool:
    """Say whether it is shown as its own number, not as a gain."""
    return scale is Scale.value or metric.better is Better.neither


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    """A change as it is drawn: `7.4%` `faster`, `2.10×` `as fast`, `0.0098` `lower loss`."""

    size: str
    way: str

    @property
    def amount(self) -> float:
        """Return the size that is drawn, without its sign."""
        return float(self.size.rstrip("×%").replace(",", ""))


def _change(x: float, metric: Metric, scale: Scale, half_width: float = 0.0) -> _Change:
    """Return a gain as a change. `half_width`: of the interval that stands beside a difference.

    Errors:
        ValueError: the metric has no better and worse.
    """
    words = metric.wording
    if words is None:
        raise ValueError(f"{metric.name} is no gain")
    way = words.better if x >= _no_change(scale) else words.worse
    if scale is Scale.difference:
        return _Change(size=extent(x, metric, half_width), way=way)
    size = x if words.as_speed else 1 / x
    if size >= 2:
        return _Change(size=f"{size:.2f}×", way=words.times)
    return _Change(size=_share(abs(size - 1)), way=way)


def _no_change(scale: Scale) -> float:
    return 0.0 if scale is Scale.difference else 1.0


def _share(x: float) -> str:
    """Draw a share with one decimal; of less than that one digit, for a word may stand beside
    it."""
    if ROUNDING < x < 0.0005:
        return f"{100 * x:.1g}%"
    return f"{x:.1%}"


def extent(x: float, metric: Metric, half_width: float = 0.0) -> str:
    """Draw the size of a difference, with the decimals that its interval needs: of a loss four, or
    one digit of a narrower interval; of a raced command's metric, which may be of any size, two
    digits of the interval. Without an interval a loss has four decimals, or one digit of less than
    that, for a word may stand beside it; a raced metric has four digits."""
    decimals = _decimals(half_width, metric)
    if decimals is not None and abs(x) < formats.GREAT:
        return f"{abs(x):,.{decimals}f}"
    if metric.unit and ROUNDING < abs(x) < 0.00005:
        return f"{abs(x):.1g}"
    if not metric.unit:
        return f"{abs(x):.4g}"
    if abs(x) >= formats.GREAT:
        return formats.fixed(abs(x), 4)
    return f"{abs(x):.4f}"


def _decimals(half_width: float, metric: Metric) -> int | None:
    """Return the decimals of a difference and its half width; `None`: no interval says how many, or
    it is rounding alone."""
    if not half_width or not math.isfinite(half_width):
        return None
    first = -math.floor(math.log10(half_width))  # the decimal of its first digit
    decimals = max(4, first) if metric.unit else max(0, first + 1)
    return decimals if decimals <= MOST_DECIMALS else None


def gain(x: float, metric: Metric, scale: Scale, half_width: float = 0.0) -> str:
    """Draw a gain as a change, such as `7.4% faster`, `3.59× as fast`, `lower loss by 0.0098` or
    `0.94 of the baseline's time at equal loss`; a value as it is. `half_width`: of the interval
    that stands beside a difference."""
    if metric.relative:
        return _of_baseline(f"{x:.4g}", metric)
    if is_plain(metric, scale):
        return value(x, metric)
    change = _change(x, metric, scale, half_width)
    if change.amount == 0:
        return "the same"
    if scale is Scale.ratio:
        return f"{change.size} {change.way}"
    return f"{change.way} by {change.size}"


def _of_baseline(drawn: str, metric: Metric) -> str:
    return f"{drawn} {metric.unit} {metric.title}"


def between(low: float, high: float, metric: Metric, scale: Scale) -> str:
    """Draw two ends, such as `1.8% to 13.3% faster` or `0.0552 higher loss to 0.0723 lower loss`,
    the smaller amount first where both lie on one side."""
    if metric.relative:
        return _of_baseline(f"{low:.4g} to {high:.4g}", metric)
    if is_plain(metric, scale):
        return f"{amount(low, metric)} to {amount(high, metric)}"
    lower = _change(low, metric, scale)
    upper = _change(high, metric, scale)
    if lower.way != upper.way:
        return f"{lower.size} {lower.way} to {upper.size} {upper.way}"
    first, last = sorted((lower, upper), key=lambda change: change.amount)
    return f"{first.size} to {last.size} {first.way}"


def measured(estimate: Estimate, metric: Metric, scale: Scale) -> TableCell:
    """Draw a gain with the interval that decides: `7.4% faster [1.8% to 13.3% faster]`, `lower loss
    by 0.0312 ± 0.0047`, `0.94 of the baseline's time at equal loss [0.90, 0.98]`.

    Without an interval there is no figure; what was counted has no noise for one. A ratio whose
    ends lie a factor of ten apart is not known.
    """
    if not math.isfinite(estimate.high - estimate.low):
        return TableCell(text=NONE)
    if scale is Scale.ratio and estimate.high > FAR * estimate.low:
        return TableCell(text="not known")
    if metric.relative:
        drawn = ratio(estimate)
        return replace(drawn, text=_of_baseline(drawn.text, metric))
    if scale is Scale.difference and estimate.half_width:
        half = estimate.half_width
        text = gain(estimate.mid, metric, scale, half)
        return TableCell(text=text, small=f"± {extent(half, metric, half)}")
    text = gain(estimate.mid, metric, scale)
    if estimate.low == estimate.high:
        return TableCell(text=text)
    return TableCell(text=text, small=f"[{between(estimate.low, estimate.high, metric, scale)}]")


def ratio_digits(estimate: Estimate) -> int:
    """Return the decimals that show a ratio's interval."""
    return 3 if estimate.half_width < NARROW else 2


def ratio(estimate: Estimate, *, least: int = 0) -> TableCell:
    """Draw a ratio as it is: `0.94 [0.88, 1.01]`; with a digit more where its interval is narrow.
    `least`: the decimals of others beside it."""
    if not math.isfinite(estimate.high - estimate.low):
        return TableCell(text=NONE)
    if estimate.high > FAR * estimate.low:
        return TableCell(text="not known")
    digits = max(least, ratio_digits(estimate))
    if estimate.low == estimate.high:
        return TableCell(text=f"{estimate.mid:.{digits}f}")
    return TableCell(
        text=f"{estimate.mid:.{digits}f}",
        small=f"[{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]",
    )


def as_gain(estimate: Estimate, metric: Metric, scale: Scale) -> Estimate:
    """Return, of the arm's number minus or over the baseline's, the same as a gain."""
    if metric.better is Better.higher:
        return estimate

    def turned(x: float) -> float:
        if scale is not Scale.ratio:
            return -x
        return 1 / x if x else math.inf

    return replace(
        estimate, mid=turned(estimate.mid), low=turned(estimate.high), high=turned(estimate.low)
    )


def stated(low: float | None, high: float | None, metric: Metric, scale: Scale) -> str:
    """Say what a claim expects: `20% to 30% faster`, `at least 20% faster`, `no higher loss`."""
    if low is None or high is None:
        least = (low is not None) is not metric.relative
        end = high if low is None else low
        return limit(end or 0.0, metric, scale, least=least)
    drawn = between(low, high, metric, scale)
    if is_plain(metric, scale) and metric.unit in UNITS:
        drawn += f" {metric.unit}"
    return drawn.replace(".0%", "%")


def limit(x: float, metric: Metric, scale: Scale, *, least: bool) -> str:
    """Say a gain of so much or more (`at least 20% faster`, `at most 33.3% more time`, `no higher
    loss`, `not slower`), or not `least`, or less (`at most 20% faster`, `no gain`)."""
    if metric.relative:
        return f"{_at(least=not least)} {gain(x, metric, scale)}"
    plain = is_plain(metric, scale)
    if not plain and metric.wording and x == _no_change(scale):
        if least:
            return metric.wording.no_worse
        return "no gain"
    how = _at(least=least == (plain or x > _no_change(scale)))
    if plain or scale is Scale.ratio:
        return f"{how} {gain(x, metric, scale)}".replace(".0%", "%")
    change = _change(x, metric, scale)
    return f"{change.way} by {how} {change.size}"


def _at(*, least: bool) -> str:
    return "at least" if least else "at most"


def counted(names: Iterable[str], words: Iterable[str]) -> str:
    """Say how often each of the words stands there: `12 confirmed, 3 refuted`."""
    times = Counter(names)
    return ", ".join(f"{times[word]} {word}" for word in words if times[word])


def cost(ratio: float, wording: Wording) -> str:
    """Draw what an arm takes over what the baseline takes: `12.0% more memory`, `3.00× the
    tokens`."""
    if ratio >= 2:
        return f"{ratio:.2f}× {wording.times}"
    way = wording.worse if ratio > 1 else wording.better
    return f"{_share(abs(ratio - 1))} {way}"


# --- columns of a table ---------------------------------------------------------------------------


def values(metric: str, title: str) -> Column:
    """Return a column of a metric's own numbers."""
    show = METRICS[metric].show
    return Column(title=title, show=show, units=IN_COLUMNS.get(show, ()))


def gains(metric: str, scale: Scale, title: str) -> Column:
    """Return a column of estimates of an arm's number minus or over the baseline's; a text says why
    there is none."""
    definition = METRICS[metric]

    def show(estimate: Estimate | str) -> str | TableCell:
        if isinstance(estimate, str):
            return estimate
        return measured(as_gain(estimate, definition, scale), definition, scale)

    return Column(title=title, show=show, keep=True)
