"""What a study leaves for people, from its results: text for a terminal, its README, and the forest plots of
a leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any

from nocap.config.bounded import read_text
from nocap.config.keys import require
from nocap.config.outward import redact
from nocap.report import forest
from nocap.report.table import Column, Table, one_line, tame
from nocap.report.words import amount
from nocap.store.files import write_file
from nocap.store.formats import count, loss, whole
from nocap.store.metrics import METRICS, Scale
from nocap.study import log
from nocap.study.result import StudyResult
from nocap.study.result import read as read_result
from nocap.study.result import write as write_result
from nocap.study.schema import ArmFacts, Speed, TuningTrial
from nocap.study.spec import Study
from nocap.study.words import Row, counted, expected, is_known, rows

LEARNT = "## What was learnt"  # from here on a README is its author's
HEADLINE = 6  # claims that a heading names one by one
NOTHING_YET = "Nothing is written here yet."
CLAIM_HEAD = ("claim", "statement", "expected", "arithmetic allows", "measured", "guards", "verdict", "notes")
# of a claim, for a terminal
FACTS = ("expected", "arithmetic allows", "measured", "guards", "where", "notes")


def claims(some: Sequence[Row], names: Sequence[str], *, link: Callable[[Row], str] | None = None) -> Table:
    """Draw a row for each claim, with these columns. `link`: what stands for its statement."""
    cells = [row.cells | ({"statement": link(row)} if link else {}) for row in some]
    return Table(
        title="",
        columns=[Column(title=name) for name in names],
        rows=[[by_column[name] or None for name in names] for by_column in cells],
    )


def render(result: StudyResult) -> str:
    """Draw all of it for a terminal."""
    lines = [f"{result.study.name}, scale {result.scale}: {result.study.question}", ""]
    for row in rows([result]):
        facts = [f"  {name:<18} {text}" for name in FACTS if (text := row.cells[name])]
        lines += [f"{row.claim.id} {row.verdict}: {row.claim.statement}", *facts, ""]
    return "\n".join([*lines, *map(str, tables(result)), "", *_notes(result)])


def tables(result: StudyResult) -> Iterator[Table]:
    """Draw the arms with what was done for each, the trials of the search before, and the parts of a
    stack."""
    shown: dict[str, Callable[[Any], str]] = {
        "arm": str,
        "params": count,
        "FLOPs/token": count,
        "kernel": str,
        "tokens": count,
        "trials": str,
        "val loss": str,
        "tokens/s (train)": whole,
        "tokens/s (bench)": whole,
        "MiB": whole,
        "overrides": str,
    }
    yield Table(
        title="arms",
        columns=[Column(title=title, show=show) for title, show in shown.items()],
        rows=list(map(_arm, result.arms)),
        notes=[
            f"{arm.arm}: FLOPs {arm.flops_basis}"
            for arm in result.arms
            if arm.flops_per_token is None and arm.flops_basis
        ],
    )
    if trials := result.trials:
        yield Table(
            title=f"trials: {len(trials)}, on seeds {trials[0].seeds}, which the study does not use",
            columns=[
                Column(title="tuned arm"),
                Column(title="trial"),
                Column(title="val loss", show=loss),
                Column(title="picked"),
            ],
            rows=[_trial(trial) for trial in trials],
        )


def _trial(trial: TuningTrial) -> list[object]:
    return [trial.arm, " ".join(trial.words), trial.val_loss, "yes" if trial.picked else ""]


def _arm(arm: ArmFacts) -> list[object]:
    ended = loss(arm.val_loss.mean if arm.val_loss else None)
    if arm.diverged:
        ended += f", {len(arm.diverged)} diverged"
    return [
        arm.arm,
        arm.params,
        arm.flops_per_token,
        arm.kernel,
        arm.tokens,
        arm.n_trials or None,
        ended,
        _median_speed(arm.pace),
        _median_speed(arm.bench),
        arm.bench and arm.bench.memory_mib,
        " ".join([*arm.words, *arm.tuned]) or None,
    ]


def _median_speed(speed: Speed | None) -> float | None:
    known = [each for each in speed.tokens_per_s if each is not None] if speed else []
    return median_high(known) if known else None


def _notes(result: StudyResult) -> list[str]:
    """Say what a reader should know of all its claims."""
    notes = list[str]()
    if result.limitations:
        notes.append(f"what this scale cannot show: {result.limitations}")
    if result.outdated:
        notes.append(f"measured when the study asked otherwise: {', '.join(result.outdated)}")
    return notes


# --- what a study leaves in its folder ----------------------------------------------------------------------


def write(study: Study, folder: Path, result: StudyResult) -> list[Path]:
    """Write a result, and what is told of all that there are; return the paths."""
    path = write_result(result, folder)
    return [path, *write_all(told(study, folder, all_results(study, folder)))]


def write_all(files: Mapping[Path, str]) -> list[Path]:
    """Write these files; return their paths. No secret of the environment is in one."""
    for path, content in files.items():
        write_file(path, redact(content).encode())
    return list(files)


def told(study: Study, folder: Path, every: Sequence[StudyResult]) -> dict[Path, str]:
    """Return the files about one study's results."""
    return {folder / "README.md": readme(study, folder, every)}


def all_results(study: Study, folder: Path) -> list[StudyResult]:
    """Return the results of every scale and machine that has some, with the verdicts that follow from their
    measurements.

    Errors:
        ValueError: one that nocap did not write, or that was changed; its file is named.
    """
    known = log.read(folder / log.FILE)
    found = [read_result(path, study, known) for path in sorted(folder.glob("results.*.json"))]
    return [result for result in found if result is not None]


def check_readme(folder: Path) -> None:
    """Refuse, before anything runs, a README whose author's part has no mark, and would be overwritten.

    Errors:
        ValueError: it has no line `## What was learnt`.
    """
    path = folder / "README.md"
    ok = not path.exists() or f"{LEARNT}\n" in read_text(path)
    require(ok, str(path), f"have the line '{LEARNT}', below which its author's text is kept", "none")


def readme(study: Study, folder: Path, every: Sequence[StudyResult]) -> str:
    """Write the README anew from these results; the author's part stays."""
    path = folder / "README.md"
    heads = list[str]()
    sections = list[str]()
    shown = rows(every)
    for result in every:
        some = [row for row in shown if row.result is result]
        few = ", ".join(f"{row.claim.id} {row.word}" for row in some)
        said = few if len(some) <= HEADLINE else counted(some)
        heads.append(f"{said} ({result.scale}, {result.machine_name})")
        sections += _section(result, some)
    lines = [
        f"# {study.name}: {'; '.join(heads) or 'not run yet'}",
        "",
        f"**Question.** {study.question}",
        "",
        *([f"**Method.** {study.method.strip()}", ""] if study.method else []),
        *sections,
    ]
    lessons = (read_text(path) if path.exists() else "").partition(f"{LEARNT}\n")[2].strip("\n")
    return "\n".join([tame("\n".join(lines)), LEARNT, "", lessons or NOTHING_YET, ""])


def _section(result: StudyResult, some: Sequence[Row]) -> list[str]:
    """Draw a scale on a machine."""
    hardware = result.hardware
    arms, *others = tables(result)
    lines = [
        f"## {result.scale}: {result.machine_name}, {hardware['cores']} cores, torch {hardware['torch']}, "
        f"{result.date}",
        "",
        f"```sh\n{one_line(result.command)}\n```",
        "",
        f"seeds {result.seeds}; judged at commit {str(result.commit)[:12]}",
        "",
        *claims(some, CLAIM_HEAD).markdown(),
        "",
        *arms.markdown(),
        "",
    ]
    for table in others:
        lines += [table.title, "", *table.markdown(), ""]
    lines += [f"{line}  " for line in _notes(result)]
    return [*lines, ""]


# --- forest plots -------------------------------------------------------------------------------------------


def plots(every: Sequence[Row]) -> list[tuple[str, forest.Forest]]:
    """Return the title and the picture of each unit's rows, in the rows' order."""
    units: dict[str, list[Row]] = {}
    for row in every:
        if is_known(row.judged.verdict.primary):
            units.setdefault(_unit(row), []).append(row)
    return [(title, _plot(title, some)) for title, some in units.items()]


def _unit(row: Row) -> str:
    """Say what an axis counts, and which way is better. Rows of one unit share a plot."""
    metric = METRICS[row.claim.metric]
    scale = row.claim.scale
    if scale is Scale.value or metric.wording is None:
        return metric.title if metric.unit in metric.title else f"{metric.title}, {metric.unit}"
    if scale is Scale.difference:
        return f"{metric.title}: {metric.wording.better}, {metric.unit}; right is better"
    if metric.relative:
        return "time over the baseline's at equal loss; left is less"
    if metric.is_pace:
        return "times as fast as the baseline; right is faster"
    return "the baseline's use over the arm's; right is less"


def _plot(title: str, some: Sequence[Row]) -> forest.Forest:
    metric, scale = METRICS[some[0].claim.metric], some[0].claim.scale
    if scale is Scale.value:
        return forest.svg(list(map(_line, some)), title=title, tick=lambda x: amount(x, metric))
    return forest.svg(list(map(_line, some)), title=title, ratio=scale is Scale.ratio)


def _line(row: Row) -> forest.ForestRow:
    claim = row.claim
    shown = row.judged.verdict.primary.shown()
    assert shown is not None
    low, high = claim.expected
    return forest.ForestRow(
        label=f"{claim.id} {claim.arm}",
        title=f"{claim.statement}: {row.verdict}. Measured: {row.cells['measured']}. Expected: "
        f"{expected(claim)}.",
        look=row.word,
        mid=shown.mid,
        low=shown.low,
        high=shown.high,
        stated=(low, high),
        bound=row.judged.bound,
    )
