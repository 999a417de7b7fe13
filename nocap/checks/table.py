"""Which checks there are for which group, and how one is run. A check is named as its function."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nocap.checks import model, option, parts, runs
from nocap.checks.trial import CheckError, SkippedError, Trial, one_line

Check = Callable[[Trial], str]  # returns what it found, in a line; or raises

ANY: tuple[Check, ...] = (option.composes, option.refuses)  # where the first fails, there is nothing to try
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
    "tracker": (*ANY, parts.mirrors, runs.learns, runs.mirrored, runs.resumes),
    "launcher": (*ANY, parts.slots, runs.grid),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """How a check ended."""

    status: str  # ok, FAIL or skip
    name: str
    detail: str
    seconds: float


def checks(group: str) -> dict[str, Check]:
    """A group's checks by name; for a group that is not in the table, what any option must pass."""
    return {check.__name__: check for check in CHECKS.get(group, ANY)}


def lines(trial: Trial, wanted: Callable[[str], bool]) -> Iterator[Line]:
    """Run the checks one after the other."""
    for name, check in checks(trial.candidate.group).items():
        if name == "composes" or wanted(name):
            line = _line(trial, name, check)
            if wanted(name) or line.status == "FAIL":
                yield line
            if name == "composes" and line.status == "FAIL":
                return


def _line(trial: Trial, name: str, check: Check) -> Line:
    began = time.monotonic()
    try:
        status, detail = "ok", check(trial)
    except SkippedError as error:
        status, detail = "skip", str(error)
    except (CheckError, ValueError) as error:
        status, detail = "FAIL", one_line(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # anything that the option raises when it is tried; a library's panic is no Exception
        status, detail = "FAIL", one_line(f"{type(error).__name__}: {error}")
    return Line(status=status, name=name, detail=detail, seconds=time.monotonic() - began)
