"""What `python -m nocap.study FILE --propose` does: read the proposals, answer them one after the
other."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from nocap.config.errors import EXIT_CODES, StoppedError
from nocap.config.keys import require
from nocap.judge.comparison_schema import to_json as answer_json
from nocap.store import lease
from nocap.study.proposals.campaign import AnswerJson, Proposals, answer
from nocap.study.proposals.command_proposals import of_commands
from nocap.study.proposals.override_proposals import of_overrides
from nocap.study.spec import Propose, Study
from nocap.study.study_command import Options, read_arguments, scale_of, use_options
from nocap.study.study_folder import load_study


def propose(arguments: argparse.Namespace) -> int:
    """Answer proposals. Return exit code 0 where all were answered, whatever the answer is."""
    folders, options = read_arguments(arguments)
    require(
        len(folders) == 1, "FOLDER", "be one folder with --propose", ", ".join(map(str, folders))
    )
    if options.sessions is not None:
        raise ValueError("sessions=N does not work with --propose, which compares losses")
    study = load_study(folders[0])
    use_options([study], allow_code=arguments.allow_code)
    rules = study.propose
    if rules is None:
        raise ValueError(
            "study.yaml must have the key propose (such as propose: {gain: 0.01}), got none"
        )
    with lease.acquire(folders[0]), ExitStack() as undo:
        proposals = _proposals(study, rules, arguments.propose, options, undo)
        try:
            for line in answer(Path(study.folder), rules, proposals):
                print(_text(line), flush=True)
                arguments.answer(answer_json(line))
        except KeyboardInterrupt as stop:  # wherever it comes, also between two runs
            raise StoppedError(
                "paused; nocap keeps the runs that ended; to continue, type the same command again"
            ) from stop
    return EXIT_CODES["finished"]


def _proposals(
    study: Study, rules: Propose, texts: Sequence[str], options: Options, undo: ExitStack
) -> Proposals:
    """Return the proposals of a command line, as commands or as overrides."""
    if rules.command:
        for name in ("scale", "steps"):
            if getattr(options, name):
                raise ValueError(f"{name} works only with proposals of settings, not of commands")
        return of_commands(study, rules, texts, output_dir=Path(options.output_dir), undo=undo)
    scale = scale_of(study, options)
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
