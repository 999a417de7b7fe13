"""`python -m nocap.study`: a study from its file to its verdicts, and the leaderboard."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nocap import outside
from nocap.config.keys import require

if TYPE_CHECKING:
    from nocap.study.plan import StudyPlan
    from nocap.study.results import Results

FORMS = """\
A FOLDER holds a study.yaml: a question, arms, scales, claims. What is missing is trained and timed. A second time nothing runs.
nocap's own studies need no checkout: a NAME such as gqa is experiments/gqa, and what is not there is read from the package and, when it
is carried out, written there.

  python -m nocap.study experiments/gqa scale=cpu                     carry it out: verdicts, README and results
  python -m nocap.study experiments/gqa scale=gpu budget_h=8 --plan   cells, a guess at the cost, and the power, before anything runs
  python -m nocap.study experiments/gqa sittings=5                    time it in five sittings instead of its three: also on another day
  python -m nocap.study experiments/gqa --judge                       the verdicts of what there is; nothing is trained or written
  python -m nocap.study --board experiments                           the leaderboard of all studies, and their READMEs"""
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
    parser.add_argument("--json", action="store_true", help="print each study's results as a line of JSON, and all else on stderr")
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
    from nocap.config.errors import EXIT_CODES
    from nocap.study.cells import FailedError, StoppedError
    from nocap.study.plan import check_budget
    from nocap.study.sessions import SessionError
    from nocap.study.shipped import folder_of

    folders = [folder_of(word) for word in given if "=" not in word]
    require(bool(folders), "FOLDER", "be given: a study's folder, as in experiments/gqa", "none")
    options = from_overrides(Options, [word for word in given if "=" in word])
    plans = [(folder, _prepared(folder, options)) for folder in folders]
    used = options.budget_h is None or any(plan.needs_budget for _, plan in plans)
    require(used, "budget_h", "be left out where no scale's length comes from a budget", options.budget_h)
    for _, plan in plans if mode != "plan" else []:
        check_budget(plan, options.budget_h)
    codes = []
    for folder, plan in plans:
        try:
            codes.append(_one(folder, plan, options, mode=mode, as_json=as_json))
        except StoppedError as stopped:
            print(f"nocap: {stopped}", file=sys.stderr)
            return EXIT_CODES["preempted"]
        except (FailedError, SessionError) as failed:
            print(f"nocap: {folder.name}: {failed}", file=sys.stderr)
            codes.append(EXIT_CODES["failed"])
    return max(codes)


def _prepared(folder: Path, options: Options) -> StudyPlan:
    from nocap.config import defaults
    from nocap.config.trainer import Device
    from nocap.study.plan import prepare
    from nocap.study.report import check_readme
    from nocap.study.shipped import source_of
    from nocap.study.spec import load

    found = load(source_of(folder))
    found.folder = str(folder.resolve())
    check_readme(folder)
    on_gpu = defaults.device() is Device.cuda and "gpu" in found.scales
    scale = options.scale or ("gpu" if on_gpu else "cpu" if "cpu" in found.scales else next(iter(found.scales)))
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
