"""What a study leaves for people, from its results: text for a terminal, and its README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median_high

from nocap.config.keys import require
from nocap.config.outgoing_text import redact
from nocap.config.untrusted_files import read_text
from nocap.display import count, integer, loss
from nocap.metrics import METRICS
from nocap.report.table import Column, Table, one_line, tame
from nocap.report.terminal import prose
from nocap.store.file_writing import write_file
from nocap.study import log
from nocap.study.arm_facts import ArmFacts, Speed, TuningTrial
from nocap.study.claim_cells import titles
from nocap.study.claim_row import ClaimRow, counted, rows
from nocap.study.claim_words import expected, is_known
from nocap.study.result_reader import read_result
from nocap.study.result_writer import write_result
from nocap.study.spec import Study
from nocap.study.study_result import StudyResult

LEARNT = "## What was learnt"  # from here on a README is its author's
HEADLINE = 6  # claims that a heading names one by one
NOTHING_YET = "Nothing is written here yet."
# fields of `ClaimCells`, for a README
CLAIM_COLUMNS = (
    "id",
    "statement",
    "expected",
    "bound",
    "measured",
    "guards",
    "verdict",
    "shapes",
    "notes",
)
# fields of `ClaimCells`, for a terminal
FACTS = ("expected", "bound", "measured", "guards", "shapes", "notes")
WIDE = 18  # letters of their titles
# of an arm
ARM_COLUMNS = (
    Column(title="arm"),
    Column(title="params", show=count),
    Column(title="FLOPs/token", show=count),
    Column(title="kernel"),
    Column(title="tokens", show=count),
    Column(title="trials"),
    Column(title="val loss"),
    Column(title="tokens/s (train)", show=integer),
    Column(title="tokens/s (bench)", show=integer),
    Column(title="MiB", show=integer),
    Column(title="overrides"),
)
TRIAL_COLUMNS = (
    Column(title="tuned arm"),
    Column(title="trial"),
    Column(title="val loss", show=loss),
    Column(title="picked"),
)


def claims(some: Sequence[ClaimRow]) -> Table:
    """Draw a row for each claim, with all that is known of it."""
    columns = [Column(title=title) for title in titles(CLAIM_COLUMNS)]
    lines = list[list[object]]()
    for row in some:
        lines.append([text or None for text in row.cells.texts(CLAIM_COLUMNS)])
    return Table(title="", columns=columns, rows=lines)


def render(result: StudyResult) -> str:
    """Draw all of it for a terminal."""
    lines = [prose(f"{result.study.name}, scale {result.scale}: {result.study.question}"), ""]
    for row in rows([result]):
        lines.append(prose(f"{row.claim.id} {row.word_with_shape}: {row.claim.statement}", hang=2))
        for title, text in row.cells.titled(FACTS):
            if text:
                lines.append(prose(f"  {title:<{WIDE}} {text}", hang=WIDE + 3))
        lines.append("")
    lines += map(str, tables(result))
    return "\n".join([*lines, "", *map(prose, _notes(result))])


def tables(result: StudyResult) -> Iterator[Table]:
    """Draw the arms with what was done for each, and the trials of the search before."""
    notes = list[str]()
    for arm in result.arms:
        if arm.flops_per_token is None and arm.flops_basis:
            notes.append(f"{arm.arm}: FLOPs {arm.flops_basis}")
    arms = [_row(_arm(arm), ARM_COLUMNS) for arm in result.arms]
    yield Table(title="arms", columns=ARM_COLUMNS, rows=arms, notes=notes)
    if result.trials:
        seeds = result.trials[0].seeds
        title = f"trials: {len(result.trials)}, on seeds {seeds}, which the study does not use"
        trials = [_row(_trial(trial), TRIAL_COLUMNS) for trial in result.trials]
        yield Table(title=title, columns=TRIAL_COLUMNS, rows=trials)


def _row(cells: Mapping[str, object], columns: Sequence[Column]) -> list[object]:
    return [cells[column.title] for column in columns]


def _trial(trial: TuningTrial) -> dict[str, object]:
    """Return what a table says of a trial, by column."""
    return {
        "tuned arm": trial.arm,
        "trial": " ".join(trial.words),
        "val loss": trial.val_loss,
        "picked": "yes" if trial.picked else "",
    }


def _arm(arm: ArmFacts) -> dict[str, object]:
    """Return what a table says of an arm, by column."""
    mean = arm.val_loss.mean if arm.val_loss else None
    losses = loss(mean)
    if arm.diverged:
        losses += f", {len(arm.diverged)} diverged"
    words = " ".join([*arm.words, *arm.tuned])
    return {
        "arm": arm.arm,
        "params": arm.params,
        "FLOPs/token": arm.flops_per_token,
        "kernel": arm.kernel,
        "tokens": arm.tokens,
        "trials": arm.n_trials or None,
        "val loss": losses,
        "tokens/s (train)": _median_speed(arm.pace),
        "tokens/s (bench)": _median_speed(arm.bench),
        "MiB": arm.bench and arm.bench.memory_mib,
        "overrides": words or None,
    }


def _median_speed(speed: Speed | None) -> float | None:
    """Return the median of the sessions' tokens a second; `None`: there is no speed."""
    if speed is None:
        return None
    known = [tokens_per_s for tokens_per_s in speed.tokens_per_s if tokens_per_s is not None]
    if not known:
        return None
    return median_high(known)


def _notes(result: StudyResult) -> list[str]:
    """Say what a reader should know of all its claims."""
    notes = list[str]()
    if result.limitations:
        notes.append(f"what this scale cannot show: {result.limitations}")
    if result.outdated:
        notes.append(
            f"measured before the study changed these claims: {', '.join(result.outdated)}"
        )
    return notes


# --- what a study leaves in its folder ------------------------------------------------------------


def write(study: Study, folder: Path, result: StudyResult) -> list[Path]:
    """Write a result, and the files about all that there are; return the paths."""
    path = write_result(result, folder)
    every = all_results(study, folder)
    return [path, *write_all(files(study, folder, every))]


def write_all(contents: Mapping[Path, str]) -> list[Path]:
    """Write these files; return their paths. No secret of the environment is in one."""
    for path, content in contents.items():
        write_file(path, redact(content).encode())
    return list(contents)


def files(study: Study, folder: Path, every: Sequence[StudyResult]) -> dict[Path, str]:
    """Return the files about one study's results."""
    return {folder / "README.md": readme(study, folder, every)}


def all_results(study: Study, folder: Path) -> list[StudyResult]:
    """Return the results of every scale and machine that has some, with the verdicts that follow
    from their measurements.

    Errors:
        ValueError: one that nocap did not write, or that was changed; its file is named.
    """
    study_log = log.read_log(folder / log.FILE)
    results = list[StudyResult]()
    for path in sorted(folder.glob("results.*.json")):
        result = read_result(path, study, study_log)
        if result is not None:
            results.append(result)
    return results


def check_readme(folder: Path) -> None:
    """Refuse, before anything runs, a README whose author's part has no mark, and would be
    overwritten.

    Errors:
        ValueError: it has no line `## What was learnt`.
    """
    path = folder / "README.md"
    has_mark = not path.exists() or f"{LEARNT}\n" in read_text(path)
    rule = (
        f"have the line '{LEARNT}', because nocap keeps the text below this line, and writes "
        "the text "
        "above it"
    )
    require(has_mark, str(path), rule, "none")


def readme(study: Study, folder: Path, every: Sequence[StudyResult]) -> str:
    """Write the README anew from these results; the author's part stays."""
    heads = list[str]()
    sections = list[str]()
    of_all = rows(every)
    for result in every:
        of_result = [row for row in of_all if row.result is result]
        heads.append(f"{_verdicts(of_result)} ({result.scale}, {result.machine_name})")
        sections += _section(result, of_result)
    verdicts = "; ".join(heads) or "not run yet"
    came_to = _came_to(of_all)
    lines = [f"# {study.name}: {came_to or verdicts}", ""]
    if came_to:
        lines += [f"**Verdicts.** {verdicts}", ""]
    lines += [f"**Question.** {study.question}", ""]
    if study.method:
        lines += [f"**Method.** {study.method.strip()}", ""]
    lines += sections
    lessons = _lessons(folder / "README.md")
    return "\n".join([tame("\n".join(lines)), LEARNT, "", lessons, ""])


def _came_to(some: Sequence[ClaimRow]) -> str:
    """Say what the first claim came to; nothing where it has no estimate."""
    if not some or not is_known(some[0].claim_result.verdict.primary):
        return ""
    first = some[0]
    claim = first.claim
    what = f"{METRICS[claim.metric].title}, claimed {expected(claim)}"
    where = f"{first.result.scale}, {first.result.machine_name}"
    return f"{what}, came to {first.cells.measured}: {first.word} ({where})"


def _verdicts(some: Sequence[ClaimRow]) -> str:
    """Name the verdicts one by one; of many claims, how many there are of each."""
    if len(some) > HEADLINE:
        return counted(some)
    return ", ".join(f"{row.claim.id} {row.word}" for row in some)


def _lessons(path: Path) -> str:
    """Return the author's part of a README."""
    text = read_text(path) if path.exists() else ""
    _, _, lessons = text.partition(f"{LEARNT}\n")
    return lessons.strip("\n") or NOTHING_YET


def _section(result: StudyResult, some: Sequence[ClaimRow]) -> list[str]:
    """Draw a scale on a machine."""
    hardware = result.hardware
    machine = f"{result.machine_name}, {hardware['cores']} cores, torch {hardware['torch']}"
    commit = str(result.commit)[:12]
    arms, *others = tables(result)
    lines = [f"## {result.scale}: {machine}, {result.date}", ""]
    lines += [f"```sh\n{one_line(result.command)}\n```", ""]
    lines += [f"seeds {result.seeds}; judged at commit {commit}", ""]
    lines += [*claims(some).markdown(), ""]
    lines += [*arms.markdown(), ""]
    for table in others:
        lines += [table.title, "", *table.markdown(), ""]
    lines += [f"{line}  " for line in _notes(result)]
    lines.append("")
    return lines
