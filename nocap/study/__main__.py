"""`python -m nocap.study`: a study from its file to its verdicts, and the leaderboard."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nocap import outside
from nocap.config.keys import require

if TYPE_CHECKING:
    from nocap.study.plan import StudyPlan
    from nocap.study.results import Results
    from nocap.study.spec import Study

FORMS = """\
A FOLDER holds a study.yaml: a question, arms, scales, claims. What is missing is trained and timed. A second time nothing runs.
nocap's own studies need no checkout: a NAME such as gqa is experiments/gqa, and what is not there is read from the package and, when it
is carried out, written there.

  python -m nocap.study experiments/gqa scale=cpu                     carry it out: verdicts, README and results
  python -m nocap.study experiments/gqa scale=gpu budget_h=8 --plan   cells, a guess at the cost, and the power, before anything runs
  python -m nocap.study experiments/gqa sittings=5                    time it in five sittings instead of its three: also on another day
  python -m nocap.study experiments/gqa --judge                       the verdicts of what there is; nothing is trained or written
  python -m nocap.study --board experiments                           the leaderboard of all studies, and their READMEs
  python -m nocap.study ideas --propose "attention=gqa" "mlp=swiglu"  answer a program's proposals; without one: the answers so far"""
MODES = ("plan", "judge")


@dataclass(kw_only=True)
class Options:
    """The overrides of a study on the command line."""

    scale: str = ""  # "": gpu where there is one and the study has it, else cpu
    budget_h: float | None = None
    sittings: int | None = None  # more of them than the scale has, such as on other days
    output_dir: str = "outputs"


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_intermixed_args(outside.arguments(argv))
    if not options.overrides and not options.board:
        parser.error("a study's folder or --board is required")
    from nocap.config.errors import EXIT_CODES, refusals  # Hydra comes with it: --help does without
    from nocap.training.terminal import outlive_readers

    if options.overrides:
        outlive_readers()
    with refusals():
        _check_together(options)
        if options.board:
            from nocap.study.leaderboard import write

            for path in write(options.board, Path("README.md")):
                print(f"written: {path}")
            return EXIT_CODES["finished"]
        if options.propose is not None:
            return _propose(options)
        mode = next((mode for mode in MODES if getattr(options, mode)), "run")
        return _studies(options.overrides, mode=mode, as_json=options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.study",
        description="Carry out a study and judge its claims.",
        epilog=FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="FOLDER, key=value", help="studies; scale=, budget_h=, sittings=, output_dir= for all"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="print what a study would run, and stop")
    what.add_argument("--judge", action="store_true", help="judge what there is: train, time and write nothing")
    what.add_argument("--board", type=Path, metavar="FOLDER", help="write the leaderboard of a folder of studies, and its head in README")
    what.add_argument(
        "--propose", nargs="*", metavar="OVERRIDES", help="train arms beside the baseline, each given as overrides in quotes, and answer"
    )
    parser.add_argument("--json", action="store_true", help="print each answer or study as a line of JSON, all else on stderr")
    outside.document(parser)
    return parser


def _check_together(options: argparse.Namespace) -> None:
    require(not (options.board and options.overrides), "FOLDER", "be left out with --board", " ".join(options.overrides))
    judged = bool(options.overrides) and not options.plan
    require(judged or not options.json, "--json", "be given where a study is judged, and only there", options.json)


# --- studies -----------------------------------------------------------------------------------------------------------------------


def _studies(given: Sequence[str], *, mode: str, as_json: bool) -> int:
    """One study after the other; the worst exit code. `mode`: run, plan or judge.

    Errors:
        ValueError: no such folder, an invalid study. All are checked before the first one runs.
    """
    from nocap.config.compose import from_overrides
    from nocap.study.plan import check_budget
    from nocap.study.shipped import folder_of

    folders = [folder_of(word) for word in given if "=" not in word]
    require(bool(folders), "FOLDER", "be given: a study's folder, as in experiments/gqa", "none")
    options = from_overrides(Options, [word for word in given if "=" in word])
    plans = [(folder, _prepared(folder, options)) for folder in folders]
    used = options.budget_h is None or any(plan.needs_budget for _, plan in plans)
    require(used, "budget_h", "be left out where no scale's length comes from a budget", options.budget_h)
    for _, plan in plans if mode != "plan" else []:
        check_budget(plan, options.budget_h)
    codes = [_answered(folder, partial(_one, folder, plan, options, mode=mode, as_json=as_json)) for folder, plan in plans]
    return max(codes)


def _answered(folder: Path, answer: Callable[[], int]) -> int:
    """Its exit code, or what stopped it."""
    from nocap.config.errors import EXIT_CODES
    from nocap.study.cells import FailedError, StoppedError
    from nocap.study.sessions import SessionError

    try:
        return answer()
    except StoppedError as stopped:
        print(f"nocap: {stopped}", file=sys.stderr)
        raise SystemExit(EXIT_CODES["preempted"]) from stopped
    except (FailedError, SessionError) as failed:
        print(f"nocap: {folder.name}: {failed}", file=sys.stderr)
        return EXIT_CODES["failed"]


def _propose(options: argparse.Namespace) -> int:
    """Exit code 0 where all were answered, whatever the answer is."""
    from nocap.config.compose import from_overrides
    from nocap.study.shipped import folder_of

    folders = [folder_of(word) for word in options.overrides if "=" not in word]
    require(len(folders) == 1, "FOLDER", "be one with --propose", ", ".join(map(str, folders)) or "none")
    (folder,) = folders
    place = from_overrides(Options, [word for word in options.overrides if "=" in word])
    proposals = [_words(text) for text in options.propose]
    return _answered(folder, partial(_print_answers, folder, place, proposals, as_json=options.json))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"--propose must be overrides, with quotes in pairs, got {text!r}") from error


def _print_answers(folder: Path, options: Options, proposals: Sequence[Sequence[str]], *, as_json: bool) -> int:
    from nocap.store import lease
    from nocap.study.propose import answer

    study, scale = _loaded(folder, options)
    with lease.acquire(folder):
        for found in answer(study, scale, proposals, output_dir=options.output_dir):
            gain = "" if found["gain"] is None else f": {'lower' if found['gain'] >= 0 else 'higher'} loss by {abs(found['gain']):.4f}"
            told = f"{gain}{', a run diverged' * found['diverged']}, {found['pairs']} pairs (proposal {found['number']})"
            print(json.dumps(found) if as_json else f"{found['word']}: {shlex.join(found['overrides'])}{told}", flush=True)
    return 0


def _loaded(folder: Path, options: Options) -> tuple[Study, str]:
    """A folder's study, and the scale that is asked for."""
    from nocap.config import defaults
    from nocap.config.trainer import Device
    from nocap.study.shipped import source_of
    from nocap.study.spec import load

    found = load(source_of(folder))
    found.folder = str(folder.resolve())
    on_gpu = defaults.device() is Device.cuda and "gpu" in found.scales
    return found, options.scale or ("gpu" if on_gpu else "cpu" if "cpu" in found.scales else next(iter(found.scales)))


def _prepared(folder: Path, options: Options) -> StudyPlan:
    from nocap.study.plan import prepare
    from nocap.study.report import check_readme

    found, scale = _loaded(folder, options)
    check_readme(folder)
    require(bool(found.claims), "--propose", "be given for a study without claims", "none")
    if options.sittings is not None and scale in found.scales:
        at = found.scales[scale]
        require(options.sittings > at.sittings, "sittings", f"be more than the {at.sittings} that scale {scale} has", options.sittings)
        found.scales[scale] = replace(at, sittings=options.sittings)
    return prepare(found, scale, output_dir=options.output_dir)


def _one(folder: Path, plan: StudyPlan, options: Options, *, mode: str, as_json: bool) -> int:
    from nocap.study import preview
    from nocap.study.shipped import settle

    if mode == "plan":
        print(preview.render(plan))
        return 0
    out = sys.stdout
    with redirect_stdout(sys.stderr if as_json else out):
        if mode == "run":
            settle(folder)
        found, code = _judge(folder, plan, options, run=mode == "run")
    if as_json:
        print(json.dumps(found, allow_nan=False), flush=True)
    return code


def _judge(folder: Path, plan: StudyPlan, options: Options, *, run: bool) -> tuple[Results, int]:
    """The results, printed as text and written, and the exit code."""
    from nocap.config.errors import EXIT_CODES
    from nocap.config.hardware import describe
    from nocap.study import report, text
    from nocap.study.conduct import carry_out
    from nocap.study.evidence import check_targets
    from nocap.study.ledger import Ledger, read, writable
    from nocap.study.results import results
    from nocap.study.rows import rows
    from nocap.study.spec import load

    done = carry_out(plan, run=run, budget_h=options.budget_h)
    check_targets(plan.study, done.evidence)
    hours = f" budget_h={options.budget_h:g}" if plan.needs_budget else ""
    found = results(
        plan,
        done,
        ledger=read(plan.ledger) if plan.ledger else Ledger(),
        hardware=describe(plan.trainer.device, plan.trainer.threads),
        command=f"python -m nocap.study {folder} scale={plan.scale}{hours}",
    )
    print(text.render(found, rows([found], {plan.study.name: plan.study})))
    for path in report.write(load(folder), folder, found) if run and plan.ledger and writable(plan.ledger) else []:
        print(f"written: {path}")
    for problem in done.problems:
        print(f"nocap: {problem}", file=sys.stderr)
    missing = any(claim["missing"] for claim in found["claims"])
    return found, EXIT_CODES["failed" if done.problems or missing else "finished"]


if __name__ == "__main__":
    raise SystemExit(main())
