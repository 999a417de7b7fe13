"""What `python -m nocap.study` does: carry out, judge or plan studies, or write the board."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nocap import outside
from nocap.config import defaults
from nocap.config.compose import from_overrides
from nocap.config.errors import EXIT_CODES, FailedError
from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.sessions.session_file import SessionFile
from nocap.store.file_writing import write_file
from nocap.study import bench_sessions, carry_out, log, plan_preview, study_pages
from nocap.study.board import read_board
from nocap.study.next_sessions import next_sessions
from nocap.study.result_maker import result_of
from nocap.study.result_writer import answer
from nocap.study.spec import GPU, ScaleConfig, Study
from nocap.study.study_folder import files_of, folder_of, load_study, options_of, source_of
from nocap.study.study_plan import StudyPlan, prepare


@dataclass(kw_only=True)
class Options:
    """The overrides of a study on the command line."""

    scale: str = ""  # "": gpu where there is one and the study has it, else cpu
    steps: int | None = None  # of a run, instead of what the scale says
    sessions: int | None = None  # of timing, more than the scale has, such as on other days
    output_dir: str = "outputs"


def board(folder: Path) -> int:
    """Write the leaderboard of a folder; name what was not worked out again. Return the exit
    code."""
    of_folder = read_board(folder)
    for line in of_folder.hash_problems():
        print(f"nocap: {line}", file=sys.stderr)
    for path in study_pages.write_all(of_folder.files()):
        print(f"written: {path}")
    return EXIT_CODES["finished"]


def read_arguments(arguments: argparse.Namespace) -> tuple[list[Path], Options]:
    """Return the folders and the overrides of a command line."""
    folders = list[Path]()
    overrides = list[str]()
    for word in arguments.overrides:
        if "=" in word:
            overrides.append(word)
        else:
            folders.append(folder_of(word))
    if not folders:
        raise ValueError("nocap.study needs a study's folder, as in experiments/gqa")
    return folders, from_overrides(Options, overrides)


def scale_of(study: Study, options: Options) -> str:
    """Return the scale that is asked for, else the usual one of this machine."""
    if options.scale:
        return options.scale
    if defaults.device() is Device.cuda and GPU in study.scales:
        return GPU
    if "cpu" in study.scales:
        return "cpu"
    return next(iter(study.scales), "")


def studies(arguments: argparse.Namespace) -> int:
    """Carry out, judge or plan one study after the other; return the worst exit code.

    Errors:
        ValueError: no such folder, an invalid study. All are checked before the first one runs.
    """
    folders, options = read_arguments(arguments)
    pairs = [(folder, load_study(folder)) for folder in folders]
    use_options([study for _, study in pairs], allow_code=arguments.allow_code)
    plans = [(folder, _prepare(folder, study, options)) for folder, study in pairs]
    code = EXIT_CODES["finished"]
    for folder, plan in plans:
        if arguments.plan:
            print(plan_preview.render(plan))
            continue
        try:
            code = max(code, _carry_out(folder, plan, arguments, options))
        except FailedError as failed:
            print(f"nocap: {folder.name}: {failed}", file=sys.stderr)
            code = max(code, failed.code)
    return code


def use_options(every: Sequence[Study], *, allow_code: bool) -> None:
    """Use the options that studies bring, of all of them before the first is composed: further
    options forget those that were imported. They are somebody's code: a person has to allow it.

    Errors:
        ValueError: it is not allowed, or is, and there is none.
    """
    foreign = [study for study in every if study.config_dir]
    for study in foreign:
        if not allow_code:
            raise ValueError(
                f"{study.folder}: config_dir={study.config_dir} holds code that this command runs "
                "only with --allow-code"
            )
    if allow_code and not foreign:
        raise ValueError("--allow-code works only for a study that sets config_dir")
    outside.use(folder for study in foreign for folder in options_of(study))


def _prepare(folder: Path, study: Study, options: Options) -> StudyPlan:
    """Return the plan of a study, with the sessions that the command line asks for."""
    study_pages.check_readme(folder)
    if not study.claims:
        raise ValueError(
            f"{study.folder} has no claims: add claims to its study.yaml, or type --propose"
        )
    own_scale = scale_of(study, options)
    if options.sessions is not None:
        study = _with_sessions(study, own_scale, options.sessions)
    return prepare(study, own_scale, output_dir=options.output_dir, steps=options.steps)


def _with_sessions(study: Study, own_scale: str, sessions: int) -> Study:
    """Return a study that has so many sessions at each scale, or more.

    Errors:
        ValueError: its own scale has as many.
    """
    scales = dict[str, ScaleConfig]()
    for name, at in study.scales.items():
        rule = f"be more than the {at.sessions} sessions of scale {name}"
        require(name != own_scale or sessions > at.sessions, "sessions", rule, sessions)
        scales[name] = replace(at, sessions=max(sessions, at.sessions))
    return replace(study, scales=scales)


def _carry_out(
    folder: Path, plan: StudyPlan, arguments: argparse.Namespace, options: Options
) -> int:
    """Carry out or judge a study, print and write its results, and return the exit code."""
    may_run = not arguments.judge
    if may_run and source_of(folder) != folder:
        for name, file in files_of(plan.study).items():
            write_file(folder / name, file)
            print(f"written: {folder / name}, a copy from nocap's package")
    files = list[SessionFile]()
    if arguments.sessions_from:
        plan, files = bench_sessions.sessions_of(plan, arguments.sessions_from)
    outcome = carry_out.carry_out(plan, may_run=may_run, files=files)
    result = result_of(
        outcome,
        hardware=carry_out.machine_of(plan, files),
        command=_command(folder, plan, options, arguments.sessions_from),
    )
    print(study_pages.render(result))
    if may_run and log.writable(folder / log.FILE):
        for path in study_pages.write(load_study(folder), folder, result):
            print(f"written: {path}")
    for problem in outcome.problems:
        print(f"nocap: {problem}", file=sys.stderr)
    following = None
    if not files:  # else a day elsewhere brings the next one
        following = next_sessions(result, outcome, _again(folder, plan, options))
    arguments.answer(answer(result, following))
    # of sessions from elsewhere the next day brings more
    is_complete = not (outcome.problems or (result.missing and not files))
    return EXIT_CODES["finished" if is_complete else "failed"]


def _command(folder: Path, plan: StudyPlan, options: Options, files: Sequence[Path]) -> str:
    """Return the command that carries a study out as it was. `files`: of sessions from
    elsewhere."""
    words = _words(folder, plan, options)
    if files:
        words += [bench_sessions.FLAG, *map(str, files)]
    return " ".join(words)


def _again(folder: Path, plan: StudyPlan, options: Options) -> list[str]:
    """Return the words of the command that goes on with a study, for a program."""
    return [*_words(folder, plan, options), f"output_dir={options.output_dir}"]


def _words(folder: Path, plan: StudyPlan, options: Options) -> list[str]:
    """Return the words that say which study is carried out, of what length."""
    words = ["python", "-m", "nocap.study", str(folder), f"scale={plan.scale}"]
    if options.steps is not None:
        words.append(f"steps={options.steps}")
    if plan.study.config_dir:
        words.append("--allow-code")
    return words
