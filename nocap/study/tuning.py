"""The search before a study: as many trials an arm, on seeds that are not the study's, every trial on record. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from nocap.config.compose import Composed, composed
from nocap.study.arms import check_fair
from nocap.study.spec import Study
from nocap.study.training import FailedError, grid_of, records_of, train, wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What the search found."""

    words: dict[str, list[str]] = field(default_factory=dict)  # arm → the winner's
    trials: list[dict[str, Any]] = field(default_factory=list)
    follow: dict[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        return {"words": self.words, "trials": self.trials, "follow": self.follow}


def tune(
    study: Study, arms: Mapping[str, Composed], *, claims: Mapping[str, str], run: bool, problems: list[str], only: str | None = None
) -> Tuned:
    """Train the trials that are missing, or with `run=False` none, and pick each arm's best mean final loss. `only`: of this arm's search.
    What cannot be read of a record goes into `problems`.

    A trial that diverged is the worst; one that was not run picks nothing.

    Errors:
        ValueError: a trial that does not compose, is no fair comparison, or an arm of which every trial diverged.
        training.FailedError: a trial has a run that neither finished nor diverged.
    """
    assert study.tune is not None
    asked = {arm: trials for arm, trials in study.tune.trials.items() if only is None or arm == study.tune.follow.get(only, only)}
    named = trials_of(asked, arms)
    cells = wanted(named, study.tune.seeds)
    grid, place = grid_of(cells, label="tuning", claims=claims)
    if run:
        train(grid)
    losses: dict[str, list[float]] = {name: [] for name in named}
    for cell, record in records_of(cells, place, problems=problems):
        losses[cell.arm].append(math.inf if record.val_loss is None or record.status == "diverged" else record.val_loss)
    found = Tuned(follow=dict(study.tune.follow))
    for arm, trials in asked.items():
        seen = [losses[f"{arm}, trial {i + 1}"] for i in range(len(trials))]
        means = [fmean(of) if len(of) == len(study.tune.seeds) else math.nan for of in seen]
        if run and any(map(math.isnan, means)):
            raise FailedError(f"the search of {arm} has runs that failed, and picks nothing")
        whole = [mean for mean in means if math.isfinite(mean)]
        if run and not whole:
            raise ValueError(f"tune.trials.{arm} must have a trial that does not diverge, got {len(trials)} that all did")
        best = means.index(min(whole)) if whole and not any(math.isnan(mean) for mean in means) else None
        for i, words in enumerate(trials):
            mean = means[i] if math.isfinite(means[i]) else None
            found.trials.append({"arm": arm, "words": words, "seeds": study.tune.seeds, "val_loss": mean, "picked": i == best})
        if best is not None:
            found.words[arm] = trials[best]
    for arm, other in study.tune.follow.items():
        if other in found.words:
            found.words[arm] = found.words[other]
    return found


def trials_of(trials: Mapping[str, list[list[str]]], arms: Mapping[str, Composed]) -> dict[str, Composed]:
    """`ARM, trial N` → its composition.

    Errors:
        ValueError: a trial that does not compose, or is no fair comparison.
    """
    found = {}
    for arm, searched in trials.items():
        for i, words in enumerate(searched, start=1):
            try:
                found[f"{arm}, trial {i}"] = composed([*arms[arm].overrides, *words])
            except ValueError as error:
                raise ValueError(f"{arm}, trial {i}: {error}") from error
    check_fair(found, baseline=next(iter(found)))
    return found
