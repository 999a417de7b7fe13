"""A claim, its guards and what was measured of them, in words."""

from __future__ import annotations

import math

from nocap.display import NONE, plural
from nocap.judge.cautious_interval import Declared
from nocap.judge.claim import Claim, Guard
from nocap.judge.gain import Gain
from nocap.metrics import METRICS, Metric, Scale
from nocap.report import figures_in_words
from nocap.step_parts import part_title
from nocap.store.measurement import Per

QUALITY = ("val_loss", "val_bpb")  # what a guard of quality is about


# --- what a claim says ----------------------------------------------------------------------------


def expected(claim: Claim) -> str:
    """Say what a claim expects: `20% to 30% faster`."""
    low, high = claim.expected
    return figures_in_words.stated(low, high, *_of(claim))


def expected_of(claim: Claim) -> str:
    """Say what is expected, with what is measured before it."""
    stated = expected(claim)
    return stated if METRICS[claim.metric].relative else f"{measures(claim)}: {stated}"


def measures(claim: Claim) -> str:
    """Say what a claim measures, parts and all."""
    text = METRICS[claim.metric].title
    if claim.parts:
        text += f" of {' + '.join(map(part_title, claim.parts))}"
    if claim.of:
        text += f", of {' + '.join(map(part_title, claim.of))}"
    return text


def allowed(claim: Claim, bound: float | None) -> str:
    """Say what arithmetic allows: `at most 7.9% faster`, `no gain`, `at best 4.3% slower`."""
    if bound is None:
        return NONE
    return figures_in_words.limit(bound, *_of(claim), least=False).replace("at least", "at best")


def _of(claim: Claim | Guard) -> tuple[Metric, Scale]:
    return METRICS[claim.metric], claim.scale


# --- what was measured ----------------------------------------------------------------------------


def measured(gain: Gain) -> str:
    """Say what was gained, with its interval over so many pairs, or that it was counted."""
    sign = "" if is_exact(gain) else "n="
    return f"{figure(gain)}, {sign}{repeats(gain)}"


def figure(gain: Gain) -> str:
    """Say what was gained, with its interval; where only a lower end is known, that."""
    shown = gain.shown()
    if shown is not None and is_known(gain):
        return str(figures_in_words.measured(shown, gain.metric, gain.scale))
    if shown is not None and math.isfinite(gain.interval().low):
        return figures_in_words.limit(shown.low, gain.metric, gain.scale, least=True)
    return NONE


def repeats(gain: Gain) -> str:
    """Return the number of pairs, or that it was counted: `12`, `3 sessions`, `exact`."""
    if is_exact(gain):
        return "exact"
    n = len(gain.least)
    if gain.per is Per.session:
        return plural(n, "session")
    return str(n)


def is_known(gain: Gain) -> bool:
    """Say whether its interval has a middle: no run diverged, no steps are only bounded."""
    shown = gain.shown()
    return shown is not None and math.isfinite(shown.mid)


def is_exact(gain: Gain) -> bool:
    """Say whether its figure was counted, and is the same each time: there is no noise for an
    interval to hold."""
    return gain.per is Per.exact and is_known(gain)


# --- a guard --------------------------------------------------------------------------------------


def guard(gain: Gain, margin: float, declared: Declared | None) -> str:
    """Say how much better or worse the arm is, beside how much worse it may be, and the declared
    noise that this rests on."""
    worst = _worst(gain, margin)
    limit = figures_in_words.limit(worst, gain.metric, gain.scale, least=True)
    return f"{gain.metric.title}: {measured(gain)}, allowed: {limit}{noise(declared)}"


def noise(declared: Declared | None) -> str:
    """Say which noise was declared; nothing, where none was used."""
    if declared is None:
        return ""
    freedom = f"{declared.df:.3g}" if math.isfinite(declared.df) else "unlimited"
    return (
        f", noise of a pair declared as {declared.sd:.3g} with {freedom} degrees of freedom "
        f"({declared.source})"
    )


def leaves_quality_open(gain: Gain, margin: float) -> bool:
    """Say whether a guard's loss may be within its margin or beyond it: its interval holds the
    margin."""
    shown = gain.shown()
    if shown is None or gain.metric.name not in QUALITY or not is_known(gain):
        return False
    return shown.low < _worst(gain, margin) <= shown.high


def _worst(gain: Gain, margin: float) -> float:
    """Return the least gain that a margin allows."""
    if gain.metric.relative:
        return margin
    return 1 / margin if gain.scale is Scale.ratio else -margin
