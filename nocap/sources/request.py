"""A question to whatever the paths of a command hold: runs, logs of another trainer, or results,
which bring their question and their records along. What is typed goes before what stands in a
result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nocap.config.keys import require
from nocap.config.paths import expanded
from nocap.display import shorten
from nocap.judge.compare import ask
from nocap.judge.compared_arms import Comparison
from nocap.judge.joining import Side, agreed, joined
from nocap.judge.question import Question
from nocap.report import result
from nocap.report.result import JudgedFile
from nocap.sources import logs
from nocap.sources.formats import hf, sample
from nocap.sources.log_columns import columns_of
from nocap.store.runs import Found


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """How logs of another trainer are read, as the options say it."""

    format: str | None = None
    columns: str = ""
    names: str = ""
    hardware: str | None = None

    @property
    def said(self) -> list[str]:
        """List the options that were typed."""
        return [name for name in ("format", "columns", "names", "hardware") if getattr(self, name)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A comparison, and the results that went into it."""

    comparison: Comparison
    results: Sequence[JudgedFile] = ()
    typed: Sequence[str] = ()  # parts of the question that were not taken from a result

    @property
    def edited(self) -> bool:
        """Say whether a result says what does not follow from its records. Where it was asked anew,
        its words are not looked at."""
        return any(each.edits or (each.changes and not self.typed) for each in self.results)

    @property
    def lines(self) -> list[str]:
        """Say of each result whether what it says follows from its records."""
        lines = list[str]()
        for each in self.results:
            lines += self._anew(each) if self.typed else each.follows()
        return lines

    def _anew(self, of: JudgedFile) -> list[str]:
        """Say that a result was asked anew, and whether its records were edited."""
        options = ", ".join(f"--{part}" for part in self.typed)
        anew = f"asked anew ({options}): what it says is not checked"
        return [f"{of.path}: {line}" for line in (*of.edits, anew)]


def compared(
    paths: Sequence[str],
    question: Question,
    *,
    group: str | None = None,
    logged: Logged | None = None,
) -> Answer:
    """Compare what the paths hold. `question`: what was typed of it.

    Errors:
        ValueError: a path holds nothing; a result cannot be read, or asks or has something else
            than another; or the question has no answer.
    """
    logged = logged or Logged()
    files = [path for path in paths if _is_result(path) and not logged.format]
    others = [path for path in paths if path not in files]
    if not files:
        return Answer(comparison=ask(_load(others, logged, question), question, group=group))
    require(
        not logged.said or bool(others),
        ", ".join(f"--{name}" for name in logged.said),
        "be of logs, and stand beside some",
        shorten(files),
    )
    results = [result.read(path) for path in dict.fromkeys(map(expanded, files))]
    typed = question.said
    if group is not None:
        typed.append("group")
    if len(results) == 1 and not others and not typed:
        return Answer(comparison=results[0].comparison, results=results)
    sides = []
    for each in results:
        sides.append(Side(name=str(each.path), found=each.comparison.found, question=each.question))
    if others:
        sides.append(Side(name=shorten(others), found=_load(others, logged, question)))
    whole = agreed(sides, question)
    found = joined(sides, allow=whole.allow or ())
    return Answer(comparison=ask(found, whole, group=group), results=results, typed=typed)


def _load(paths: Sequence[str], logged: Logged, question: Question) -> Found:
    return logs.load_logs(
        paths,
        format=logged.format,
        columns=columns_of(logged.columns),
        hardware=logged.hardware,
        names=logged.names,
        lengths="steps" not in (question.allow or ()),
    )


def _is_result(path: str) -> bool:
    """Say whether a path is a file that only a result can be, and no log."""
    place = expanded(path)
    if place.suffix != ".json" or not place.exists() or place.is_dir():
        return False
    return not hf.recognises(sample(place))
