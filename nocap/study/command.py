"""What `python -m nocap.study` does."""

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
from nocap.config import defaults, hardware
from nocap.config.compose import from_overrides
from nocap.config.errors import EXIT_CODES, FailedError, StoppedError
from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.judge.schema import to_json as answer_json
from nocap.store import lease
from nocap.store.files import write_file
from nocap.study import board as leaderboard
from nocap.study import conduct, log, pages, preview, spec
from nocap.study.collect import collect
from nocap.study.plan import StudyPlan, prepare
from nocap.study.propose import AnswerJson, answer, of_commands, of_overrides
from nocap.study.result import to_json
from nocap.study.spec import Study


@dataclass(kw_only=True)
class Options:
    """The overrides of a study on the command line."""

    scale: str = ""  # "": gpu where there is one and the study has it, else cpu
    steps: int | None = None  # of a run, instead of what the scale says
    sessions: int | None = None  # of timing, more than the scale has, such as on other days
    output_dir: str = "outputs"


def board(folder: Path) -> int:
    """Write the leaderboard of a folder; name what was not worked out again. Return the exit code."""
    known, results = leaderboard.read_studies(folder)
    for line in leaderboard.unchecked(chain(*results.values())):
        print(f"nocap: {line}", file=sys.stderr)
    for path in pages.write_all(leaderboard.files_of(folder, known, results)):
        print(f"written: {path}")
    return EXIT_CODES["finished"]


def _given(asked: argparse.Namespace) -> tuple[list[Path], Options]:
    folders = [spec.folder_of(word) for word in asked.overrides if "=" not in word]
    require(bool(folders), "FOLDER", "be given: a study's folder, as in experiments/gqa", "none")
    return folders, from_overrides(Options, [word for word in asked.overrides if "=" in word])


def _scale(study: Study, options: Options) -> str:
    """Return the scale that is asked for, else the usual one of this machine."""
    if options.scale:
        return options.scale
    if defaults.device() is Device.cuda and spec.GPU in study.scales:
        return spec.GPU
    return "cpu" if "cpu" in study.scales else next(iter(study.scales), "")


def studies(asked: argparse.Namespace) -> int:
    """One study after the other; the worst exit code.

    Errors:
        ValueError: no such folder, an invalid study. All are checked before the first one runs.
    """
    folders, options = _given(asked)
    known = [(folder, spec.load(folder)) for folder in folders]
    _use_options([study for _, study in known], allow_code=asked.allow_code)
    plans = [(folder, _prepared(folder, study, options)) for folder, study in known]
    code = EXIT_CODES["finished"]
    for folder, plan in plans:
        if asked.plan:
            print(preview.render(plan))
            continue
        try:
            code = max(code, _carried_out(folder, plan, asked, options))
        except FailedError as failed:
            print(f"nocap: {folder.name}: {failed}", file=sys.stderr)
            code = max(code, failed.code)
    return code


def _use_options(known: Sequence[Study], *, allow_code: bool) -> None:
    """Use the options that studies bring, of all of them before the first is composed: further options forget
    those that were imported. They are somebody's code: a person has to allow it.

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
    pages.check_readme(folder)
    require(bool(study.claims), "--propose", "be given for a study without claims", "none")
    asked = _scale(study, options)
    if (more := options.sessions) is not None:
        for scale, at in study.scales.items():
            rule = f"be more than the {at.sessions} that scale {scale} has"
            require(scale != asked or more > at.sessions, "sessions", rule, more)
            at.sessions = max(more, at.sessions)
    return prepare(study, asked, output_dir=options.output_dir, steps=options.steps)


def _carried_out(folder: Path, plan: StudyPlan, asked: argparse.Namespace, options: Options) -> int:
    """Its results, printed as text or JSON and written; the exit code."""
    run, source = not asked.judge, spec.source_of(folder)
    if run and source != folder:
        for name, file in spec.files_of(plan.study).items():
            write_file(folder / name, file)
            print(f"written: {folder / name}, as it comes with nocap")
    done = conduct.carry_out(plan, run=run)
    steps = "" if options.steps is None else f" steps={options.steps}"
    allowed = " --allow-code" if plan.study.config_dir else ""
    result = collect(
        done,
        hardware=hardware.describe(plan.trainer.device, plan.trainer.threads),
        command=f"python -m nocap.study {folder} scale={plan.scale}{steps}{allowed}",
    )
    print(pages.render(result))
    writes = run and log.writable(folder / log.FILE)
    written = pages.write(spec.load(folder), folder, result) if writes else []
    for path in written:
        print(f"written: {path}")
    for problem in done.problems:
        print(f"nocap: {problem}", file=sys.stderr)
    asked.answer(to_json(result))
    return EXIT_CODES["failed" if done.problems or result.missing else "finished"]


def propose(asked: argparse.Namespace) -> int:
    """Exit code 0 where all were answered, whatever the answer is."""
    folders, options = _given(asked)
    require(len(folders) == 1, "FOLDER", "be one with --propose", ", ".join(map(str, folders)))
    require(
        options.sessions is None,
        "sessions",
        "be left out with --propose: losses are compared",
        options.sessions,
    )
    study = spec.load(folders[0])
    _use_options([study], allow_code=asked.allow_code)
    if (rules := study.propose) is None:
        raise ValueError("propose must be in study.yaml, as in propose: {gain: 0.01}, got none")
    with lease.acquire(folders[0]), ExitStack() as undo:
        if rules.command:
            for name in ("scale", "steps"):
                value = getattr(options, name)
                require(not value, name, "be left out of commands: it is nocap's own trainer's", value)
            questions = of_commands(
                study, rules, asked.propose, output_dir=Path(options.output_dir), undo=undo
            )
        else:
            scale = _scale(study, options)
            questions = of_overrides(
                study, rules, scale, asked.propose, output_dir=options.output_dir, steps=options.steps
            )
        try:
            for answered in answer(Path(study.folder), rules, questions):
                print(_said(answered), flush=True)
                asked.answer(answer_json(answered))
        except KeyboardInterrupt as stop:  # wherever it comes, also between two runs
            raise StoppedError("paused; runs that ended are kept, and the same command goes on") from stop
    return EXIT_CODES["finished"]


def _said(answered: AnswerJson) -> str:
    gain = answered.gain
    how = "" if gain is None else f": {'better' if gain >= 0 else 'worse'} by {abs(gain):.4f}"
    diverged = ", a run diverged" if answered.diverged else ""
    said = f"{answered.word}: {shlex.join(answered.overrides)}{how}{diverged}"
    return f"{said}, {answered.pairs} pairs (proposal {answered.number})"
