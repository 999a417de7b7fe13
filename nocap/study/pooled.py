"""The noise of a pair that the studies of a folder share, to be declared as a scale's `noise` before the next study.

A group is an arm's final losses against its baseline's, seed by seed. Arms that compute the same as their baseline differ by rounding only,
and are left out. So is speed: its noise is another one at every shape and on every day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, variance

import yaml

from nocap.config.keys import require
from nocap.judge.noise import CAP, SAME, Prior, fit
from nocap.study.report import all_results
from nocap.study.wording import Json

METRICS = ("val_loss", "val_bpb")
LEAST_GROUPS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """Of one scale and metric."""

    prior: Prior
    same: int  # groups left out


def pooled(folder: Path) -> dict[str, dict[str, Pooled]]:
    """Scale → metric → what its studies share.

    Errors:
        ValueError: a folder without studies that have three pairs of arms at one scale.
    """
    places = sorted(folder.iterdir()) if folder.is_dir() else []
    every = [one for place in places if place.is_dir() for one in all_results(place)]
    found: dict[str, dict[str, Pooled]] = {}
    for scale in sorted({one["scale"] for one in every}):
        for metric in METRICS:
            groups = {key: gains for one in every if one["scale"] == scale for key, gains in _groups(one, metric).items()}
            if (of := _of_groups(groups)) is not None:
                found.setdefault(scale, {})[metric] = of
    rule = f"be a folder of studies with {LEAST_GROUPS} pairs of arms or more at one scale, as experiments"
    require(bool(found), "--noise", rule, folder)
    return found


def _groups(results: Json, metric: str) -> dict[tuple[str, ...], list[float]]:
    """Runs of both arms → their gains: two arms that two studies share are there once. An arm that diverged has no pairs."""
    arms = {arm["arm"]: arm for arm in results["arms"] if arm.get(metric) and not arm["diverged"]}
    base, found = arms.pop(results["baseline"], None), dict[tuple[str, ...], list[float]]()
    for name, arm in arms.items() if base else ():
        mine, theirs = arm[metric]["all"], base[metric]["all"]
        if len(mine) == len(theirs) > 1:
            key = (*base["runs"], *arm["runs"]) or (results["study"], name)
            found[key] = [b - a for a, b in zip(mine, theirs, strict=True)]
    return found


def _of_groups(groups: Mapping[tuple[str, ...], Sequence[float]]) -> Pooled | None:
    """`None`: too few that vary."""
    spreads = [(variance(gains), len(gains) - 1) for gains in groups.values()]
    typical = median(spread for spread, _ in spreads) if spreads else 0.0
    varied = [one for one in spreads if one[0] > SAME**2 * typical]
    if len(varied) < LEAST_GROUPS:
        return None
    sd, df = fit(*zip(*varied, strict=True))
    source = f"{len(varied)} pairs of arms, {sum(n for _, n in varied)} degrees of freedom"
    return Pooled(prior=Prior(sd=sd, df=df, source=source), same=len(spreads) - len(varied))


def render(found: Mapping[str, Mapping[str, Pooled]]) -> str:
    """As `study.yaml` takes it, with a comment on each."""
    lines = []
    for scale, metrics in found.items():
        lines += [f"# scales.{scale}: a pair's standard deviation, and how well it is known (at most {CAP:g} of its df count)", "noise:"]
        for metric, one in metrics.items():
            prior = {"sd": float(f"{one.prior.sd:.3g}"), "df": float(f"{one.prior.df:.3g}"), "source": one.prior.source}
            line = yaml.safe_dump(prior, default_flow_style=True, sort_keys=False, width=200).strip()
            lines.append(f"  {metric}: {line}" + (f"  # without {one.same} that compute the same" if one.same else ""))
    return "\n".join(lines)
