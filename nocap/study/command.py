"""The three things that `python -m nocap.study` does: studies, the board, a program's proposals."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from nocap import outside
from nocap.config import defaults
from nocap.config.compose import from_overrides
from nocap.config.errors import EXIT_CODES, FailedError, StoppedError
from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.judge.schema import to_json as answer_json
from nocap.sessions.figures import SessionFile
from nocap.store import lease
from nocap.store.files import write_file
from nocap.study import benches, conduct, log, pages, preview, spec
from nocap.study import board as leaderboard
from nocap.study.collect import collect
from nocap.study.plan import StudyPlan, prepare
from nocap.study.propose import AnswerJson, Proposals, answer, of_commands, of_overrides
from nocap.study.result import to_json
from nocap.study.spec import Propose, Study


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
    studies, results = leaderboard.read_studies(folder)
    for line in leaderboard.unchecked(chain(*results.values())):
        print(f"nocap: {line}", file=sys.stderr)
    for path in pages.write_all(leaderboard.files_of(folder, studies, results)):
        print(f"written: {path}")
    return EXIT_CODES["finished"]


def _parsed(arguments: argparse.Namespace) -> tuple[list[Path], Options]:
    """Return the folders and the overrides of a command line."""
    folders = list[Path]()
    overrides = list[str]()
    for word in arguments.overrides:
        if "=" in word:
            overrides.append(word)
        else:
            folders.append(spec.folder_of(word))
    require(bool(folders), "FOLDER", "be given: a study's folder, as in experiments/gqa", "none")
    return folders, from_overrides(Options, overrides)


def _scale(study: Study, options: Options) -> str:
    """Return the scale that is asked for, else the usual one of this machine."""
    if options.scale:
        return options.scale
    if defaults.device() is Device.cuda and spec.GPU in study.scales:
        return spec.GPU
    if "cpu" in study.scales:
        return "cpu"
    return next(iter(study.scales), "")


def studies(arguments: argparse.Namespace) -> int:
    """Carry out, judge or plan one study after the other; return the worst exit code.

    Errors:
        ValueError: no such folder, an invalid study. All are checked before the first one runs.
    """
    folders, options = _parsed(arguments)
    loaded = [(folder, spec.load(folder)) for folder in folders]
    _use_options([study for _, study in loaded], allow_code=arguments.allow_code)
    plans = [(folder, _prepared(folder, study, options)) for folder, study in loaded]
    code = EXIT_CODES["finished"]
    for folder, plan in plans:
        if arguments.plan:
            print(preview.render(plan))
            continue
        try:
            code = max(code, _carry_out(folder, plan, arguments, options))
        except FailedError as failed:
            print(f"nocap: {folder.name}: {failed}", file=sys.stderr)
            code = max(code, failed.code)
    return code


def _use_options(known: Sequence[Study], *, allow_code: bool) -> None:
    """Use the options that studies bring, of all of them before the first is composed: further
    options forget those that were imported. They are somebody's code: a person has to allow it.

    Errors:
        ValueError: it is not allowed, or is, and there is none.
    """
    brought = [study for study in known if study.config_dir]
    for study in brought:
        rule = "be allowed by --allow-code: it is code that this command would run"
        require(allow_code, f"{study.folder}: config_dir", rule, study.config_dir)
    rule = "be left out where no study has a config_dir"
    require(bool(brought) or not allow_code, "--allow-code", rule, "it")
    outside.use(place for study in brought for place in spec.options_of(study))


def _prepared(folder: Path, study: Study, options: Options) -> StudyPlan:
    """Return the plan of a study, with the sessions that the command line asks for."""
    pages.check_readme(folder)
    require(bool(study.claims), "--propose", "be given for a study without claims", "none")
    own_scale = _scale(study, options)
    sessions = options.sessions
    if sessions is not None:
        for scale, at in study.scales.items():
            rule = f"be more than the {at.sessions} that scale {scale} has"
            require(scale != own_scale or sessions > at.sessions, "sessions", rule, sessions)
            at.sessions = max(sessions, at.sessions)
    return prepare(study, own_scale, output_dir=options.output_dir, steps=options.steps)


def _carry_out(
    folder: Path, plan: StudyPlan, arguments: argparse.Namespace, options: Options
) -> int:
    """Carry out or judge a study, print and write its results, and return the exit code."""
    run = not arguments.judge
    if run and spec.source_of(folder) != folder:
        for name, file in spec.files_of(plan.study).items():
            write_file(folder / name, file)
            print(f"written: {folder / name}, as it comes with nocap")
    files = list[SessionFile]()
    if arguments.sessions_from:
        plan, files = benches.sessions_of(plan, arguments.sessions_from)
    outcome = conduct.carry_out(plan, run=run, files=files)
    result = collect(
        outcome,
        hardware=conduct.machine_of(plan, files),
        command=_command(folder, plan, options, arguments.sessions_from),
    )
    print(pages.render(result))
    if run and log.writable(folder / log.FILE):
        for path in pages.write(spec.load(folder), folder, result):
            print(f"written: {path}")
    for problem in outcome.problems:
        print(f"nocap: {problem}", file=sys.stderr)
    arguments.answer(to_json(result))
    # of sessions from elsewhere the next day brings more
    is_complete = not (outcome.problems or (result.missing and not files))
    return EXIT_CODES["finished" if is_complete else "failed"]


def _command(folder: Path, plan: StudyPlan, options: Options, files: Sequence[Path]) -> str:
    """Return the command that carries a study out as it was. `files`: of sessions from
    elsewhere."""
    words = ["python -m nocap.study", str(folder), f"scale={plan.scale}"]
    if options.steps is not None:
        words.append(f"steps={options.steps}")
    if plan.study.config_dir:
        words.append("--allow-code")
    if files:
        words += [benches.FLAG, *map(str, files)]
    return " ".join(words)


def propose(arguments: argparse.Namespace) -> int:
    """Answer proposals. Return exit code 0 where all were answered, whatever the answer is."""
    folders, options = _parsed(arguments)
    require(len(folders) == 1, "FOLDER", "be one with --propose", ", ".join(map(str, folders)))
    is_bare = options.sessions is None
    rule = "be left out with --propose: losses are compared"
    require(is_bare, "sessions", rule, options.sessions)
    study = spec.load(folders[0])
    _use_options([study], allow_code=arguments.allow_code)
    rules = study.propose
    if rules is None:
        raise ValueError("propose must be in study.yaml, as in propose: {gain: 0.01}, got none")
    with lease.acquire(folders[0]), ExitStack() as undo:
        questions = _questions(study, rules, arguments.propose, options, undo)
        try:
            for line in answer(Path(study.folder), rules, questions):
                print(_text(line), flush=True)
                arguments.answer(answer_json(line))
        except KeyboardInterrupt as stop:  # wherever it comes, also between two runs
            raise StoppedError(
                "paused; runs that ended are kept, and the same command goes on"
            ) from stop
    return EXIT_CODES["finished"]


def _questions(
    study: Study, rules: Propose, texts: Sequence[str], options: Options, undo: ExitStack
) -> Proposals:
    """Return the proposals of a command line, as commands or as overrides."""
    if rules.command:
        for name in ("scale", "steps"):
            value = getattr(options, name)
            require(not value, name, "be left out of commands: it is nocap's own trainer's", value)
        return of_commands(study, rules, texts, output_dir=Path(options.output_dir), undo=undo)
    scale = _scale(study, options)
    return of_overrides(
        study, rules, scale, texts, output_dir=options.output_dir, steps=options.steps
    )


def _text(answer: AnswerJson) -> str:
    """Say an answer in one line."""
    text = f"{answer.word}: {shlex.join(answer.overrides)}"
    if answer.gain is not None:
        direction = "better" if answer.gain >= 0 else "worse"
        text += f": {direction} by {abs(answer.gain):.4f}"
    if answer.diverged:
        text += ", a run diverged"
    return f"{text}, {answer.pairs} pairs (proposal {answer.number})"
