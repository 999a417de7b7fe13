"""A study at a scale that is about some of its claims alone: with their arms, and what is said of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any, TypeVar

from nocap.study.spec import At, Study, Tune

Part = TypeVar("Part", At, Tune)
OF_ARMS = ("own", "trials", "follow")  # tables of a scale and of a search, by arm


def narrowed(study: Study, scale: str) -> Study:
    """The study with this scale's claims; the whole one where the scale names none."""
    at, tune = study.scales[scale], study.tune
    if not at.claims:
        return study
    claims = [claim for claim in study.claims if claim.id in at.claims]
    kept = {study.baseline, *(arm for claim in claims for arm in study.sides(claim))}
    trained = replace(
        study, tune=None, claims=claims, arms=_of(study.arms, kept), scales={scale: _part(at, kept)}, notes=_of(study.notes, at.claims)
    )
    return trained if tune is None or not trained.trained else replace(trained, tune=_part(tune, trained.trained))


def _part(whole: Part, arms: Collection[str]) -> Part:
    """What it says of these arms."""
    kept: dict[str, Any] = {f.name: _of(getattr(whole, f.name), arms) for f in fields(whole) if f.name in OF_ARMS}
    return replace(whole, **kept)


def _of(table: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name in names}
