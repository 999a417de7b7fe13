"""Which checks there are for which group, and how one is run. A check is named as its function."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nocap.checks import model, option, parts, runs
from nocap.checks.trial import SkippedError, Trial, one_line

Check = Callable[[Trial], str]  # returns what it found, in a line; or raises

ANY: tuple[Check, ...] = (option.composes, option.refuses)
FIRST = ("composes", "learns")  # where one of them fails, what comes after it would fail as well
IN_MODEL: tuple[Check, ...] = (model.builds, model.causal, model.scores, model.counts, model.decodes, model.compiles)
TRAINED: tuple[Check, ...] = (runs.learns, runs.resumes, runs.ranks)
CHECKS: dict[str, tuple[Check, ...]] = {
    **dict.fromkeys(("attention", "mlp", "norm", "position", "model"), (*ANY, *IN_MODEL, *TRAINED)),
    "ideas": (*ANY, *IN_MODEL, parts.state, *TRAINED),
    "objective": (*ANY, model.builds, model.scores, model.counts, model.compiles, *TRAINED),
    "optimizer": (*ANY, model.builds, parts.state, model.counts, *TRAINED),
    "schedule": (*ANY, parts.rates, model.builds, runs.learns, runs.resumes),
    "data": (*ANY, parts.prepares, model.builds, *TRAINED),
    "tokenizer": (*ANY, parts.encodes, parts.prepares, model.builds, runs.learns, runs.resumes),
    "tracker": (*ANY, parts.mirrors, runs.learns, runs.resumes),
    "launcher": (*ANY, parts.slots, runs.grid),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """How a check ended."""

    status: str  # ok, FAIL or skip
    name: str
    detail: str
    seconds: float


def lines(trial: Trial, wanted: Callable[[str], bool]) -> Iterator[Line]:
    """Run the checks one after the other."""
    for check in CHECKS[trial.candidate.group]:
        if (name := check.__name__) == "composes" or wanted(name):
            began = time.monotonic()
            try:
                status, detail = "ok", check(trial)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # anything that the option raises when it is tried; a library's panic is no Exception
                status = "skip" if isinstance(error, SkippedError) else "FAIL"
                said = isinstance(error, SkippedError | ValueError)
                detail = one_line(error if said else f"{type(error).__name__}: {error}")
            if wanted(name) or status == "FAIL":
                yield Line(status=status, name=name, detail=detail, seconds=time.monotonic() - began)
            if name in FIRST and status == "FAIL":
                return
