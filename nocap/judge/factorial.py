"""Main effects and two-way interactions of a grid, when it is a full factorial with the same seeds everywhere.

Every run then tells of every factor, so that an effect is known better than any single arm's difference, and interactions show at all.
Seeds are blocks. Effects on the loss are differences; effects on the speed are differences of the logarithm of tokens/s, where 0.01 is
1%. An interaction is half the difference of the differences. Two seeds are enough here, because every arm adds to the error's degrees of
freedom: for four arms, three. Holm's adjustment is over main effects and interactions together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from nocap.judge import stats
from nocap.judge.arms import Arm, setting, short_keys, swept
from nocap.judge.estimates import ALPHA, BySeed
from nocap.judge.result import EffectRow
from nocap.judge.stats import Estimate
from nocap.judge.why import confounders


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """Something that was swept. `levels[i]` is arm i's level; the baseline's level is 0."""

    name: str
    levels: tuple[int, ...]
    names: tuple[str, ...]  # what each level is called


def effects(arms: Sequence[Arm], base: Arm, *, metric: str, allow: Collection[str]) -> tuple[dict[str, list[EffectRow]] | None, str | None]:
    """Tables of effects, or `None` and the reason: `main_effects` and `interactions` of the loss, and those `_on_log_tokens_per_s`."""
    seeds = base.seeds
    if any(arm.diverged for arm in arms):
        return None, "a run diverged"
    if any(arm.seeds != seeds for arm in arms):
        return None, "the arms do not have the same seeds"
    if len({(str(arm.all[0].parts.get("source")), str(arm.all[0].parts.get("data"))) for arm in arms}) > 1:
        return None, "code or data differ between the arms"
    factors = _factors(arms, base)
    if len(factors) < 2:
        return None, "the arms are no full factorial of two factors or more"
    tables: dict[str, list[EffectRow]] = {}
    for suffix, values in (("", _values(arms, metric)), ("_on_log_tokens_per_s", _log_speeds(arms))):
        if values is not None:
            rows = _rows(values, factors, arms, base, allow=allow)
            for size, name in ((1, "main_effects"), (2, "interactions")):
                tables[name + suffix] = [row for row in rows if len(row.factors) == size]
    return (tables, None) if tables else (None, f"a run has no {metric}")


def _factors(arms: Sequence[Arm], base: Arm) -> list[Factor]:
    """Swept keys as factors, and where they do not multiply out to the arms, whole groups: `attention`, `mlp`, ….

    Keys that always change together are one factor.
    """
    keys = swept(arms)
    short = short_keys(keys)
    by_key = [_factor(arms, base, [key], name=short[key]) for key in keys]
    groups = dict.fromkeys(key.partition(".")[0] for key in keys)
    by_group = [_factor(arms, base, [key for key in keys if key.partition(".")[0] == group], name=group) for group in groups]
    for candidates in (_merged(by_key), _merged(by_group)):
        cells = set(zip(*(factor.levels for factor in candidates), strict=True))
        if candidates and math.prod(len(factor.names) for factor in candidates) == len(arms) == len(cells):
            return candidates
    return []


def _factor(arms: Sequence[Arm], base: Arm, keys: list[str], *, name: str) -> Factor:
    spelled = [tuple(setting(arm.config, key) for key in keys) for arm in arms]
    own = tuple(setting(base.config, key) for key in keys)
    order = list(dict.fromkeys([own, *spelled]))
    levels = tuple(order.index(values) for values in spelled)
    return Factor(name=name, levels=levels, names=tuple(_name(arms, levels, level, values) for level, values in enumerate(order)))


def _name(arms: Sequence[Arm], levels: Sequence[int], level: int, values: tuple[str, ...]) -> str:
    """What the labels of this level's arms share and no other's have (`gqa`); else the values."""
    parts = [set(arm.label.split()) for arm in arms]
    mine = [p for p, own in zip(parts, levels, strict=True) if own == level]
    others: set[str] = set().union(*(p for p, own in zip(parts, levels, strict=True) if own != level))
    shared = set.intersection(*mine) - others
    return " ".join(part for part in arms[levels.index(level)].label.split() if part in shared) or ", ".join(values)


def _merged(factors: Sequence[Factor]) -> list[Factor]:
    by_levels: dict[tuple[int, ...], list[Factor]] = {}
    for factor in factors:
        by_levels.setdefault(factor.levels, []).append(factor)
    return [Factor(name=" + ".join(f.name for f in same), levels=levels, names=same[0].names) for levels, same in by_levels.items()]


def _values(arms: Sequence[Arm], metric: str) -> list[dict[int, float]] | None:
    values = [arm.values(metric) for arm in arms]
    return values if all(list(v) == arm.seeds for v, arm in zip(values, arms, strict=True)) else None


def _log_speeds(arms: Sequence[Arm]) -> list[dict[int, float]] | None:
    """Logarithms of tokens/s, where all runs are from one machine."""
    speeds = _values(arms, "tokens_per_s")
    if speeds is None or len({machine for arm in arms for machine in arm.machines}) > 1:
        return None
    return [{seed: math.log(speed) for seed, speed in by_seed.items()} for by_seed in speeds]


def _rows(
    values: Sequence[BySeed], factors: Sequence[Factor], arms: Sequence[Arm], base: Arm, *, allow: Collection[str]
) -> list[EffectRow]:
    cells = list(zip(*(factor.levels for factor in factors), strict=True))
    observed = [(y, cell, seed) for by_seed, cell in zip(values, cells, strict=True) for seed, y in by_seed.items()]
    y, levels, blocks = zip(*observed, strict=True)
    at = dict(zip(cells, arms, strict=True))
    rows = []
    for effect in stats.effects(y, levels=levels, blocks=blocks):
        spoilt: dict[str, None] = {}
        for factor, level in effect.levels:  # the arm in which this factor alone left the base
            alone = tuple(level if f == factor else 0 for f in range(len(factors)))
            spoilt |= dict.fromkeys(confounders(at[alone], base, allowed=allow))
        estimate, verdict = effect.estimate, f"confounded: {', '.join(spoilt)}" if spoilt else ""
        if len(base.seeds) < 2:  # higher interactions would be the only noise there is
            estimate, verdict = Estimate(mid=estimate.mid, low=-math.inf, high=math.inf), verdict or "no verdict (n=1)"
        term = " × ".join(f"{factors[f].names[level]} (for {factors[f].names[0]})" for f, level in effect.levels)
        names = [factors[f].name for f, _ in effect.levels]
        rows.append(EffectRow(term=term, factors=names, estimate=estimate, p_holm=None, verdict=verdict))
    return _adjusted(rows)


def _adjusted(rows: Sequence[EffectRow]) -> list[EffectRow]:
    """Holm over the rows that can have a verdict, then the verdicts."""
    adjusted = iter(stats.holm([row.estimate.p for row in rows if not row.verdict]))
    return [row if row.verdict else _judged(row, next(adjusted)) for row in rows]


def _judged(row: EffectRow, p: float) -> EffectRow:
    side = "lower" if row.estimate.mid < 0 else "higher"
    return replace(row, p_holm=p, verdict=side if p < ALPHA else "no effect shown")
