"""A question to whatever the paths of a command hold: runs, logs of another trainer, or results,
which bring their question and their records along. What is typed goes before what stands in a
result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nocap.config.paths import expanded
from nocap.display import shorten
from nocap.judge.compare import ask
from nocap.judge.comparison import Comparison
from nocap.judge.joining import Side, common_question, join_runs
from nocap.judge.question import Question
from nocap.report import result_file
from nocap.report.result_file import JudgedFile
from nocap.sources.formats import hf
from nocap.sources.log_reading import sample
from nocap.sources.logs.columns import columns_of
from nocap.sources.logs.load import load_logs
from nocap.store.runs import Found


@dataclass(frozen=True, kw_only=True, slots=True)
class LogOptions:
    """How logs of another trainer are read, as the options say it."""

    format: str | None = None
    columns: str = ""
    names: str = ""
    hardware: str | None = None

    @property
    def parts(self) -> list[str]:
        """List the options that were typed."""
        return [name for name in ("format", "columns", "names", "hardware") if getattr(self, name)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A comparison, and the results that went into it."""

    comparison: Comparison
    results: Sequence[JudgedFile] = ()
    parts: Sequence[str] = ()  # parts of the question that were not taken from a result

    @property
    def edited(self) -> bool:
        """Say whether a result says what does not follow from its records. Where it was asked anew,
        its words are not looked at."""
        return any(each.edits or (each.changes and not self.parts) for each in self.results)

    @property
    def lines(self) -> list[str]:
        """Say of each result whether what it says follows from its records."""
        lines = list[str]()
        for each in self.results:
            lines += self._fresh_lines(each) if self.parts else each.follows()
        return lines

    def _fresh_lines(self, of: JudgedFile) -> list[str]:
        """Say that a result was asked anew, and whether its records were edited."""
        options = ", ".join(f"--{part}" for part in self.parts)
        notice = (
            f"nocap judged the file with other options ({options}), so it did not check the "
            "file's own verdicts"
        )
        return [f"{of.path}: {line}" for line in (*of.edits, notice)]


def compare_paths(
    paths: Sequence[str],
    question: Question,
    *,
    group: str | None = None,
    logged: LogOptions | None = None,
) -> Answer:
    """Compare what the paths hold. `question`: what was typed of it.

    Errors:
        ValueError: a path holds nothing; a result cannot be read, or asks or has something else
            than another; or the question has no answer.
    """
    logged = logged or LogOptions()
    files = [path for path in paths if _is_result(path) and not logged.format]
    others = [path for path in paths if path not in files]
    if not files:
        return Answer(comparison=ask(_load(others, logged, question), question, group=group))
    if logged.parts and not others:
        flags = ", ".join(f"--{name}" for name in logged.parts)
        raise ValueError(f"{flags} can be used only for logs, got {shorten(files)}")
    results = [result_file.read(path) for path in dict.fromkeys(map(expanded, files))]
    parts = question.parts
    if group is not None:
        parts.append("group")
    if len(results) == 1 and not others and not parts:
        return Answer(comparison=results[0].comparison, results=results)
    sides = []
    for each in results:
        sides.append(Side(name=str(each.path), found=each.comparison.found, question=each.question))
    if others:
        sides.append(Side(name=shorten(others), found=_load(others, logged, question)))
    merged = common_question(sides, question)
    found = join_runs(sides, allow=merged.allow or ())
    return Answer(comparison=ask(found, merged, group=group), results=results, parts=parts)


def _load(paths: Sequence[str], logged: LogOptions, question: Question) -> Found:
    return load_logs(
        paths,
        format=logged.format,
        columns=columns_of(logged.columns),
        hardware=logged.hardware,
        names=logged.names,
        lengths="steps" not in (question.allow or ()),
    )


def _is_result(path: str) -> bool:
    """Say whether a path is a file that only a result can be, and no log."""
    file = expanded(path)
    if file.suffix != ".json" or not file.exists() or file.is_dir():
        return False
    if not file.is_file():  # a pipe, which would never end: who reads a result refuses it
        return True
    return not hf.recognises(sample(file))
