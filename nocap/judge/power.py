"""How many seeds a comparison needs, from a declared noise. Pairs are taken as uncorrelated, whatever pairing may win: between recipes
that differ in more than a number, one seed's two losses were measured to have little in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nocap.config.keys import require
from nocap.judge.claim import LEAST_PAIRS as LEAST
from nocap.judge.stats import n_required, power_of
from nocap.store.measurement import Scale


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    pairs: int
    power: float  # at that many


def plan(*, effect: float, sigma: float, scale: Scale, power: float, alpha: float = 0.05) -> Plan:
    """Pairs for a two-sided paired t-test at alpha: `effect` is a difference, or a relative change (0.02 for 2%) for a ratio; `sigma` one
    run's standard deviation, relative for a ratio.

    Errors:
        ValueError: a number out of range; an effect that needs more than 100,000 pairs.
    """
    require(0 < effect < math.inf, "--effect", "be above 0", effect)
    require(0 < sigma < math.inf, "--sigma", "be above 0", sigma)
    require(0.5 <= power < 1, "--power", "be at least 0.5 and below 1", power)
    distance = math.log1p(effect) if scale is Scale.ratio else effect
    standardised = distance / (sigma * math.sqrt(2))
    pairs = max(LEAST, n_required(standardised, power=power, alpha=alpha, pairs=True))
    return Plan(pairs=pairs, power=power_of(standardised, n=pairs, alpha=alpha, pairs=True))


def parse_amount(key: str, text: str) -> tuple[float, bool]:
    """A number as typed, and whether it was a percentage: `2%` is 0.02.

    Errors:
        ValueError: neither.
    """
    relative = text.endswith("%")
    try:
        return float(text.removesuffix("%")) / (100 if relative else 1), relative
    except ValueError:
        raise ValueError(f"{key} must be a number or a percentage, got {text}") from None


from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from nocap.judge.arms import Arm, group, setting
from nocap.judge.estimates import ALPHA
from nocap.judge.stats import pooled_sd
from nocap.store.record import SCHEMA_VERSION
from nocap.store.runs import Found, Record, shorten

LEAST_FREEDOM = 3  # degrees of freedom: with fewer, sigma's own 95% interval reaches more than six times what was measured


def plan_from(found: Found, *, effect: str, power: float) -> dict[str, Any]:
    """The plan as plain JSON: seconds of wall clock in `run_wall_s`, `hours` for all runs of one baseline and one arm.

    An effect of `0.005` is a difference of final validation losses in nats, and sigma their pooled standard deviation between seeds within
    arms; one of `2%` is a change of training throughput, and sigma that of the logarithm of tokens a second. A seed that ran twice counts
    once, with its mean. Times are those of one machine, or null.

    Errors:
        ValueError: an option out of range; fewer than three degrees of freedom; losses of several vocabularies, or a throughput of several
            machines; seeds that agree to the last bit.
    """
    amount, relative = parse_amount("--effect", effect)
    arms = group(found.records)
    _check_one_unit(arms, relative=relative)
    measured = _samples(arms, _log_speed if relative else _loss, otherwise=f"--power {power:g} --effect {effect}")
    sigma, scale = pooled_sd(measured), Scale.ratio if relative else Scale.difference
    planned = plan(effect=amount, sigma=sigma, scale=scale, power=power, alpha=ALPHA)
    wall_s = _wall_s(arms)
    return {
        "schema_version": SCHEMA_VERSION,
        "metric": "tokens_per_s" if relative else "val_loss",
        "scale": scale.value,
        "effect": amount,
        "alpha": ALPHA,
        "power_wanted": power,
        "pairs": planned.pairs,
        "runs": 2 * planned.pairs,
        "power": planned.power,
        "sigma": sigma,
        "degrees_of_freedom": sum(map(len, measured)) - len(measured),
        "measured_runs": sum(map(len, measured)),
        "measured_arms": len(measured),
        "run_wall_s": wall_s,
        "hours": None if wall_s is None else wall_s * 2 * planned.pairs / 3600,
        "machines": sorted(_machines(arms).values()),
        "left_out": _left_out(found, arms),
        "problems": found.problems,
    }


def render(planned: Mapping[str, Any]) -> str:
    """Two lines, and a note for each problem in the records."""
    relative = planned["scale"] == Scale.ratio.value
    effect, sigma = (f"{planned[key]:.3g}" if not relative else f"{100 * planned[key]:.3g}%" for key in ("effect", "sigma"))
    of = f"a change of {effect} in tokens/s" if relative else f"a difference of {effect} nats in the final validation loss"
    left_out = ", ".join(f"{count} {status}" for status, count in planned["left_out"].items())
    return "\n".join(
        [
            f"{planned['pairs']} pairs of seeds ({planned['runs']} runs) see {of} with a power of {planned['power']:.2f}: paired t-test, "
            f"two-sided {planned['alpha']:.0%}, pairs taken as uncorrelated; {_cost(planned)}",
            f"sigma {sigma} from {planned['measured_runs']} runs of {planned['measured_arms']} "
            f"arm{'s'[: planned['measured_arms'] > 1]} ({planned['degrees_of_freedom']} degrees of freedom)"
            + (f"; left out: {left_out}" if left_out else ""),
            *(f"note: {line}" for line in planned["problems"]),
        ]
    )


def _cost(planned: Mapping[str, Any]) -> str:
    if planned["hours"] is not None:
        hours, seconds = (f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in (planned["hours"], planned["run_wall_s"]))
        return f"{hours} hours for a baseline and an arm, at {seconds} s a run"
    machines = len(planned["machines"])
    return f"hours unknown: {f'the runs are from {machines} machines' if machines > 1 else 'no run has a wall clock'}"


def _samples(arms: Sequence[Arm], measure: Callable[[Record], float | None], *, otherwise: str) -> list[list[float]]:
    """What each arm with two seeds or more measured; refused where that is too little to tell the noise. `otherwise` is what to ask of
    nocap.study then."""
    samples = [list(arm.values(measure).values()) for arm in arms]
    measured = [sample for sample in samples if len(sample) > 1]
    freedom = sum(len(sample) - 1 for sample in measured)
    if freedom < LEAST_FREEDOM:
        have = shorten(f"{arm.label}: {len(sample)}" for arm, sample in zip(arms, samples, strict=True)) or "no finished run"
        raise ValueError(
            f"--power must find at least {LEAST_FREEDOM} degrees of freedom between seeds within arms, got {freedom} (seeds: {have}); "
            f"python -m nocap.study {otherwise} --sigma … takes a declared noise"
        )
    require(any(len(set(sample)) > 1 for sample in measured), "--power", "find seeds that differ", "runs that agree to the last bit")
    return measured


def _loss(run: Record) -> float | None:
    return run.val_loss


def _log_speed(run: Record) -> float | None:
    speed = run.number("tokens_per_s")
    return math.log(speed) if speed else None


def _check_one_unit(arms: Sequence[Arm], *, relative: bool) -> None:
    """Noise is pooled over arms, so that it must be of one kind in all of them."""
    if relative:
        machines = _machines(arms).values()
        rule = "be of runs on one machine where it is a change of tokens/s"
        require(len(machines) <= 1, "--effect", rule, f"{len(machines)}: {shorten(machines, most=3)}")
    else:
        vocabularies = sorted({setting(arm.config, "tokenizer.vocabulary") for arm in arms})
        rule = "be of runs with one vocabulary where it is in nats per token"
        require(len(vocabularies) <= 1, "--effect", rule, ", ".join(vocabularies))


def _machines(arms: Sequence[Arm]) -> dict[tuple[str, int], str]:
    return {machine: name for arm in arms for machine, name in arm.machines.items()}


def _wall_s(arms: Sequence[Arm]) -> float | None:
    walls = [wall for arm in arms for run in arm.runs if (wall := run.number("clock_s", "wall")) is not None]
    return fmean(walls) if walls and len(_machines(arms)) == 1 else None


def _left_out(found: Found, arms: Sequence[Arm]) -> dict[str, int]:
    """Status → how many runs are neither in sigma nor in the hours."""
    used = {run.identity for arm in arms for run in arm.runs}
    statuses = (record.status for record in found.records if record.identity not in used)
    told = Counter("finished without a validation loss" if status == "finished" else status for status in statuses)
    return dict(told + Counter({"unreadable": len(found.unreadable)}))
