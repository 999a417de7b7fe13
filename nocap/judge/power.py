"""How many seeds a comparison needs, from a declared noise or from that of runs that are there. No torch.

Pairs are taken as uncorrelated, whatever pairing may win: between recipes that differ in more than a number, one seed's two losses were
measured to have little in common.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from nocap.config.keys import require
from nocap.judge.arms import Arm, group, setting
from nocap.judge.estimates import ALPHA, LEAST_SEEDS
from nocap.judge.stats import n_required, pooled_sd, power_of
from nocap.show.table import plural, shorten, three_digits
from nocap.store.measurement import Scale
from nocap.store.record import SCHEMA_VERSION
from nocap.store.runs import Found

LEAST_FREEDOM = 3  # degrees of freedom: with fewer, sigma's own 95% interval reaches more than six times what was measured


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSize:
    pairs: int
    power: float  # at that many


def plan(*, effect: float, sigma: float, scale: Scale, power: float, alpha: float = ALPHA) -> SampleSize:
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
    pairs = max(LEAST_SEEDS, n_required(standardised, power=power, alpha=alpha, pairs=True))
    return SampleSize(pairs=pairs, power=power_of(standardised, n=pairs, alpha=alpha, pairs=True))


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


def plan_from(found: Found, *, effect: str, power: float) -> dict[str, Any]:
    """Seeds and hours for an effect of `0.005`, a difference of final validation losses in nats, or of `2%`, a change of tokens/s. Sigma is
    the pooled standard deviation between seeds within arms, of tokens/s that of the logarithm. A seed that ran twice counts once, with its
    mean. As JSON: `run_wall_s` is the wall clock of a run, `hours` that of all runs of one baseline and one arm, null over several.

    Errors:
        ValueError: an option out of range; fewer than three degrees of freedom; losses of several vocabularies, or a throughput of several
            machines; seeds that agree to the last bit.
    """
    amount, relative = parse_amount("--effect", effect)
    metric, scale = ("tokens_per_s", Scale.ratio) if relative else ("val_loss", Scale.difference)
    arms = group(found.records)
    _check_one_unit(arms, relative=relative)
    samples = [list(arm.values(metric).values()) for arm in arms]
    if relative:
        samples = [[math.log(speed) for speed in sample] for sample in samples]
    measured = _check_noise(arms, samples, otherwise=f"--power {power:g} --effect {effect}", lost=found.unreadable)
    n_measured = sum(map(len, measured))
    sigma = pooled_sd(measured)
    planned = plan(effect=amount, sigma=sigma, scale=scale, power=power)
    machines = _machines(arms)
    walls = [wall for arm in arms for run in arm.runs if (wall := run.number("clock_s", "wall")) is not None]
    wall_s = fmean(walls) if walls and len(machines) == 1 else None
    return {
        "schema_version": SCHEMA_VERSION,
        "metric": metric,
        "scale": scale.value,
        "effect": amount,
        "alpha": ALPHA,
        "power_wanted": power,
        "pairs": planned.pairs,
        "runs": 2 * planned.pairs,
        "power": planned.power,
        "sigma": sigma,
        "degrees_of_freedom": n_measured - len(measured),
        "measured_runs": n_measured,
        "measured_arms": len(measured),
        "run_wall_s": wall_s,
        "hours": None if wall_s is None else wall_s * 2 * planned.pairs / 3600,
        "machines": machines,
        "left_out": _left_out(found, arms),
        "problems": found.lines(),
    }


def _machines(arms: Sequence[Arm]) -> list[str]:
    return sorted({name for arm in arms for name in arm.machines.values()})


def _check_one_unit(arms: Sequence[Arm], *, relative: bool) -> None:
    """Noise is pooled over arms, so that it must be of one kind in all of them."""
    if relative:
        machines = _machines(arms)
        rule = "be of runs on one machine where it is a change of tokens/s"
        require(len(machines) <= 1, "--effect", rule, f"{len(machines)}: {shorten(machines, most=3)}")
    else:
        vocabularies = sorted({setting(arm.config, "tokenizer.vocabulary") for arm in arms})
        rule = "be of runs with one vocabulary where it is in nats per token"
        require(len(vocabularies) <= 1, "--effect", rule, ", ".join(vocabularies))


def _check_noise(arms: Sequence[Arm], samples: Sequence[list[float]], *, otherwise: str, lost: Collection[str]) -> list[list[float]]:
    """The samples of two seeds or more; refused where they are too few to know the noise. `otherwise` is what to ask nocap.study then."""
    measured = [sample for sample in samples if len(sample) > 1]
    freedom = sum(len(sample) - 1 for sample in measured)
    if freedom < LEAST_FREEDOM:
        have = shorten(f"{arm.label}: {len(sample)}" for arm, sample in zip(arms, samples, strict=True)) or "no finished run"
        have += f"; unreadable: {shorten(lost)}" if lost else ""
        raise ValueError(
            f"--power must find at least {LEAST_FREEDOM} degrees of freedom between seeds within arms, got {freedom} (seeds: {have}); "
            f"python -m nocap.study {otherwise} --sigma … takes a declared noise"
        )
    require(any(len(set(sample)) > 1 for sample in measured), "--power", "find seeds that differ", "runs that agree to the last bit")
    return measured


def _left_out(found: Found, arms: Sequence[Arm]) -> dict[str, int]:
    used = {run.identity for arm in arms for run in arm.runs}
    statuses = (record.status for record in found.records if record.identity not in used)
    counts = Counter("finished without a validation loss" if status == "finished" else status for status in statuses)
    return dict(counts + Counter({"unreadable": len(found.unreadable)}))


def render(planned: Mapping[str, Any]) -> str:
    """Two lines, and a note for each problem in the records."""
    relative = planned["scale"] == Scale.ratio.value
    effect, sigma = (f"{100 * x:.3g}%" if relative else f"{x:.3g}" for x in (planned["effect"], planned["sigma"]))
    of = f"a change of {effect} in tokens/s" if relative else f"a difference of {effect} nats in the final validation loss"
    left_out = ", ".join(f"{count} {status}" for status, count in planned["left_out"].items())
    machines = len(planned["machines"])
    cost = f"hours unknown: {f'the runs are from {machines} machines' if machines > 1 else 'no run has a wall clock'}"
    if planned["hours"] is not None:
        cost = f"{three_digits(planned['hours'])} hours for a baseline and an arm, at {three_digits(planned['run_wall_s'])} s a run"
    lines = [
        f"{planned['pairs']} pairs of seeds ({planned['runs']} runs) see {of} with a power of {planned['power']:.2f}: paired t-test, "
        f"two-sided {planned['alpha']:.0%}, pairs taken as uncorrelated; {cost}",
        f"sigma {sigma} from {planned['measured_runs']} runs of {plural(planned['measured_arms'], 'arm')} "
        f"({planned['degrees_of_freedom']} degrees of freedom)" + (f"; left out: {left_out}" if left_out else ""),
    ]
    return "\n".join([*lines, *(f"note: {line}" for line in planned["problems"])])
