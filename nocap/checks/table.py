"""Which checks there are for which group, and how one is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nocap.checks import model, option, others, runs
from nocap.checks.trial import FailedError, SkippedError, Trial, one_line

Check = Callable[[Trial], str]  # what it found, in a line; or an error

CHECKS: dict[str, Check] = {
    "composes": option.composes,
    "refuses": option.refuses,
    "builds": model.builds,
    "causal": model.causal,
    "scores": model.scores,
    "counts": model.counts,
    "decodes": model.decodes,
    "compiles": model.compiles,
    "state": others.keeps_its_state,
    "rates": others.multiplies,
    "prepares": others.prepares,
    "encodes": others.encodes,
    "mirrors": others.mirrors,
    "slots": others.has_slots,
    "learns": runs.learns,
    "resumes": runs.resumes,
    "ranks": runs.ranks,
    "mirrored": runs.mirrors_a_run,
    "grid": runs.trains_a_grid,
}
FIRST = ("composes", "refuses")  # where the first fails, there is nothing to try
IN_MODEL = ("builds", "causal", "scores", "counts", "decodes", "compiles")
TRAINED = ("learns", "resumes", "ranks")
FOR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("attention", "mlp", "norm", "position", "model"), (*FIRST, *IN_MODEL, *TRAINED)),
    "ideas": (*FIRST, *IN_MODEL, "state", *TRAINED),
    "objective": (*FIRST, "builds", "scores", "counts", "compiles", *TRAINED),
    "optimizer": (*FIRST, "builds", "state", "counts", *TRAINED),
    "schedule": (*FIRST, "rates", "builds", "learns", "resumes"),
    "data": (*FIRST, "prepares", "builds", *TRAINED),
    "tokenizer": (*FIRST, "encodes", "prepares", "builds", "learns", "resumes"),
    "tracker": (*FIRST, "mirrors", "learns", "mirrored", "resumes"),
    "launcher": (*FIRST, "slots", "grid"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """How a check ended."""

    word: str  # ok, FAIL or skip
    what: str
    detail: str
    seconds: float


def names(group: str) -> tuple[str, ...]:
    """The checks of a group; of one that is not in the table, what any option must do."""
    return FOR.get(group, FIRST)


def lines(trial: Trial, wanted: Callable[[str], bool]) -> Iterator[Line]:
    """The checks one after the other, as they end."""
    for what in names(trial.found.group):
        if what == "composes" or wanted(what):
            line = _line(trial, what)
            if wanted(what) or line.word == "FAIL":
                yield line
            if what == "composes" and line.word == "FAIL":
                return


def _line(trial: Trial, what: str) -> Line:
    began = time.monotonic()
    try:
        word, detail = "ok", CHECKS[what](trial)
    except SkippedError as error:
        word, detail = "skip", str(error)
    except (FailedError, ValueError) as error:
        word, detail = "FAIL", one_line(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # whatever the option does when it is tried; a library's panic is no Exception
        word, detail = "FAIL", one_line(f"{type(error).__name__}: {error}")
    return Line(word=word, what=what, detail=detail, seconds=time.monotonic() - began)
