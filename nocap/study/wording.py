"""Figures of a claim in words that need no sign: `7.4% faster`, `higher loss by 0.0401`, `at least 20% faster`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nocap.show.table import NONE, count
from nocap.store.measurement import METRICS, Better, Metric, Scale, part_title

Json = Mapping[str, Any]
COUNTED = ("memory_mib", "params", "kv_bytes", "part_mib", "part_params", "held_mib", "decode_mb", "collections")  # by arithmetic on a CPU
SAME = 1e-9  # relative: bytes are counted, and their logarithms rounded
UNITS = ("MiB", "MB", "ms", "tokens/s", "bytes/token")  # that a value is shown with


def metric(claim: Json) -> str:
    """What a claim measures, parts and all."""
    name, parts, of = METRICS[claim["metric"]].title, claim["parts"], claim["of"]
    if not parts:
        return name
    title = f"{name} of {' + '.join(part_title(part) for part in parts)}"
    return f"{title}, of {' + '.join(part_title(part) for part in of)}" if of else title


def is_exact(claim: Json) -> bool:
    """Whether its figure was counted, and is the same each time: there is no noise for an interval to hold."""
    found = claim["measured"]
    return claim["metric"] in COUNTED and found is not None and math.isclose(found["low"], found["high"], rel_tol=SAME)


def pairs(claim: Json) -> str:
    """How many, and of what; results from before sittings were told apart do not say it."""
    if is_exact(claim) or claim.get("per") == "exact":
        return "counted"
    return f"n={claim['n']} sittings" if claim.get("per") == "sitting" else f"n={claim['n']}"


# --- a value -----------------------------------------------------------------------------------------------------------------------


def value(x: float, of: Metric) -> str:
    """A metric's own number with its unit."""
    return f"{amount(x, of)} {of.unit}" if of.unit in UNITS else amount(x, of)


def amount(x: float, of: Metric) -> str:
    if of.name == "share":
        return f"{x:.1%}"
    if of.unit == "parameters":
        return count(x)
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"


# --- a gain ------------------------------------------------------------------------------------------------------------------------


def gain(x: float, of: Metric, scale: Scale) -> str:
    """A gain as a change: `7.4% faster`, `3.59× as fast`, `lower loss by 0.0098`."""
    return "no change" if x == _neutral(scale) else of.describe(x, scale).replace(".0%", "%")


def _neutral(scale: Scale) -> float:
    return 1.0 if scale is Scale.ratio else 0.0


def _side(x: float, of: Metric, scale: Scale) -> tuple[str, str]:
    """How much, and which way: `7.4%` and `faster`, `0.0098` and `lower`."""
    words = of.describe(x, scale)
    if scale is Scale.ratio:
        first, _, rest = words.partition(" ")
        return first, rest
    way, _, size = words.rpartition(" by ")
    return size, way.split()[0]


def between(low: float, high: float, of: Metric, scale: Scale) -> str:
    """`1.8% to 13.3% faster`, `0.0552 higher to 0.0723 lower`; the smaller amount first where both lie on one side."""
    (least, side), (most, other) = _side(low, of, scale), _side(high, of, scale)
    if side != other:
        return f"{least} {side} to {most} {other}"
    first, last = sorted((least, most), key=lambda size: float(size.strip("×%")))
    return f"{first} to {last} {side}"


def with_interval(mid: float, low: float, high: float, of: Metric, scale: Scale) -> str:
    """`7.4% faster [1.8% to 13.3%]`; the ends have words of their own where they do not all point one way."""
    ends, side = between(low, high, of, scale), _side(mid, of, scale)[1]
    one_way = all(_side(end, of, scale)[1] == side for end in (low, high))
    return f"{gain(mid, of, scale)} [{ends.removesuffix(f' {side}') if one_way else ends}]"


def at_least(x: float, of: Metric, scale: Scale) -> str:
    """A gain of so much or more: `at least 20% faster`, `at most 33.3% more time`, `no higher loss`, `not slower`."""
    if x == _neutral(scale):
        return f"{'not' if of.loss.startswith('slower') else 'no'} {of.loss}"
    return _limit("at least" if x > _neutral(scale) else "at most", x, of, scale)


def at_most(x: float, of: Metric, scale: Scale) -> str:
    if x == _neutral(scale):
        return "no gain"
    return _limit("at most" if x > _neutral(scale) else "at least", x, of, scale)


def _limit(how: str, x: float, of: Metric, scale: Scale) -> str:
    words = gain(x, of, scale)
    if scale is Scale.ratio:
        return f"{how} {words}"
    way, _, size = words.rpartition(" by ")
    return f"{way} by {how} {size}"


# --- of a claim --------------------------------------------------------------------------------------------------------------------


def in_words(x: float, claim: Json) -> str:
    """On the claim's scale: a gain, or a value with its unit."""
    of, scale = METRICS[claim["metric"]], Scale(claim["scale"])
    return value(x, of) if _plain(of, scale) else gain(x, of, scale)


def _plain(of: Metric, scale: Scale) -> bool:
    return scale is Scale.value or of.better is Better.neither


def expected(claim: Json) -> str:
    low, high = claim["expected"]
    of, scale = METRICS[claim["metric"]], Scale(claim["scale"])
    slack = f", equivalent within {claim['slack']:.3g}{_as(claim, 'slack_as')}" if claim.get("slack") else ""
    if _plain(of, scale):
        ends = [amount(end, of) for end in (low, high) if end is not None]
        unit = f" {of.unit}" if of.unit in UNITS else ""
        words = " to ".join(ends) if len(ends) == 2 else f"{'at least' if high is None else 'at most'} {ends[0]}"
        return f"{words}{unit}{slack}"
    if low is not None and high is not None:
        return between(low, high, of, scale).replace(".0%", "%") + slack
    return (at_least(low, of, scale) if high is None else at_most(high, of, scale)) + slack


def measured(claim: Json) -> str:
    """The gain in words with its interval, or that it was counted."""
    found = claim["measured"]
    if found is None:
        return NONE
    middle = in_words(found["mid"], claim)
    if is_exact(claim):
        return f"{middle}, exact"
    of, scale = METRICS[claim["metric"]], Scale(claim["scale"])
    if _plain(of, scale):
        return f"{middle} [{amount(found['low'], of)} to {amount(found['high'], of)}]"
    return with_interval(found["mid"], found["low"], found["high"], of, scale)


def allowed(claim: Json) -> str:
    """What arithmetic allows: `at most 7.9% faster`, `no gain`, `at best 4.3% slower`."""
    x = claim["bound"]
    if x is None:
        return NONE
    of, scale = METRICS[claim["metric"]], Scale(claim["scale"])
    if _plain(of, scale):
        return f"at most {value(x, of)}"
    return at_most(x, of, scale) if x >= _neutral(scale) else f"at best {gain(x, of, scale)}"


def guard(one: Json) -> str:
    """How much worse, beside how much worse it may be. Its figure is arm over baseline, or arm minus baseline."""
    of, scale, worse = METRICS[one["metric"]], Scale(one["scale"]), one["worse"]

    def as_gain(x: float) -> float:
        return x if of.better is Better.higher else 1 / x if scale is Scale.ratio else -x

    limit = 1 / one["margin"] if scale is Scale.ratio else -one["margin"]
    found = NONE
    if worse is not None:
        low, high = sorted((as_gain(worse["low"]), as_gain(worse["high"])))
        middle = as_gain(worse["mid"])
        found = (
            gain(middle, of, scale) if math.isclose(low, high, rel_tol=SAME, abs_tol=SAME) else with_interval(middle, low, high, of, scale)
        )
    return f"{of.title}: {found}, allowed: {at_least(limit, of, scale)}{_as(one, 'margin_as')}{noise(one)}"


def noise(one: Json) -> str:
    """The declared noise that a verdict or a guard rests on."""
    prior = one.get("noise")
    if not prior:
        return ""
    freedom = "no limit to its" if prior["df"] is None else f"{prior['df']:.3g}"
    return f", noise of a pair declared as {prior['sd']:.3g} with {freedom} degrees of freedom ({prior['source']})"


def _as(one: Json, key: str) -> str:
    """A margin as the study states it, where that is not a number: ` (5% of steps)`."""
    return f" ({one[key]})" if one.get(key) else ""
