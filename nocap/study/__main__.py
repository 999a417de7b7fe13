"""`python -m nocap.study`: a study from its file to its verdicts, and the leaderboard."""

from __future__ import annotations

import argparse
import json
import shlex
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
    from nocap.study.spec import Study

FORMS = """\
A FOLDER holds a study.yaml: a question, arms, scales, claims. What is missing is trained and timed. A second time nothing runs.
nocap's own studies need no checkout: a NAME such as gqa is experiments/gqa, and what is not there is read from the package and, when it
is carried out, written there.

  python -m nocap.study experiments/gqa scale=cpu                     carry it out: verdicts, README and results
  python -m nocap.study experiments/gqa scale=gpu steps=4000 --plan   what it would run and cost, before anything runs
  python -m nocap.study experiments/gqa sessions=5                    time it in five sessions instead of its three: also on another day
  python -m nocap.study experiments/gqa --judge                       the verdicts of what there is; nothing is trained or written
  python -m nocap.study experiments/gqa --rows                        and write rows.jsonl: another machine does not train these runs again
  python -m nocap.study --board experiments                           the leaderboard of all studies, and their READMEs
  python -m nocap.study ideas --propose "attention=gqa" "mlp=swiglu"  answer a program's proposals; without one: the answers so far"""


@dataclass(kw_only=True)
class Options:
    """The overrides of a study on the command line."""

    scale: str = ""  # "": gpu where there is one and the study has it, else cpu
    steps: int | None = None  # of a run, instead of what the scale says
    sessions: int | None = None  # of timing, more than the scale has, such as on other days
    output_dir: str = "outputs"


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    asked = parser.parse_intermixed_args(outside.arguments(argv))
    if not asked.overrides and not asked.board:
        parser.error("a study's folder or --board is required")
    from nocap.config.errors import EXIT_CODES, refusals  # Hydra comes with it: --help does without
    from nocap.training.terminal import outlive_readers

    if asked.overrides:
        outlive_readers()
    with refusals():
        require(not (asked.board and asked.overrides), "FOLDER", "be left out with --board", " ".join(asked.overrides))
        judged = bool(asked.overrides) and not asked.plan
        require(judged or not asked.json, "--json", "be given where a study is judged, and only there", asked.json)
        runs = judged and not asked.judge and asked.propose is None
        require(runs or not asked.rows, "--rows", "be given where a study is carried out, and only there", asked.rows)
        if asked.board:
            from nocap.study.board import write

            for path in write(asked.board, Path("README.md")):
                print(f"written: {path}")
            return EXIT_CODES["finished"]
        return _propose(asked) if asked.propose is not None else _studies(asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.study",
        description="Carry out a study and judge its claims.",
        epilog=FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="FOLDER, key=value", help="studies; scale=, steps=, sessions=, output_dir= for all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="print what a study would run, and stop")
    what.add_argument("--judge", action="store_true", help="judge what there is: train, time and write nothing")
    what.add_argument("--board", type=Path, metavar="FOLDER", help="write the leaderboard of a folder of studies, and its head in README")
    what.add_argument(
        "--propose", nargs="*", metavar="OVERRIDES", help="train arms beside the baseline, each given as overrides in quotes, and answer"
    )
    parser.add_argument("--rows", action="store_true", help="write the runs that finished into rows.jsonl, for other machines")
    parser.add_argument("--json", action="store_true", help="print each answer or study as a line of JSON, all else on stderr")
    outside.document(parser)
    return parser


def _given(asked: argparse.Namespace) -> tuple[list[Path], Options]:
    from nocap.config.compose import from_overrides
    from nocap.study.spec import folder_of

    folders = [folder_of(word) for word in asked.overrides if "=" not in word]
    require(bool(folders), "FOLDER", "be given: a study's folder, as in experiments/gqa", "none")
    return folders, from_overrides(Options, [word for word in asked.overrides if "=" in word])


def _loaded(folder: Path, options: Options) -> tuple[Study, str]:
    """A folder's study, and the scale that is asked for."""
    from nocap.config import defaults
    from nocap.config.trainer import Device
    from nocap.study.spec import load, source_of

    study = load(source_of(folder))
    study.folder = str(folder.resolve())
    on_gpu = defaults.device() is Device.cuda and "gpu" in study.scales
    return study, options.scale or ("gpu" if on_gpu else "cpu" if "cpu" in study.scales else next(iter(study.scales)))


def _studies(asked: argparse.Namespace) -> int:
    """One study after the other; the worst exit code.

    Errors:
        ValueError: no such folder, an invalid study. All are checked before the first one runs.
    """
    from nocap.config.errors import EXIT_CODES
    from nocap.study.tasks import FailedError, StoppedError

    folders, options = _given(asked)
    plans, codes = [_prepared(folder, options) for folder in folders], []
    for folder, plan in zip(folders, plans, strict=True):
        try:
            codes.append(_study(folder, plan, asked))
        except StoppedError as stopped:
            print(f"nocap: {stopped}", file=sys.stderr)
            raise SystemExit(EXIT_CODES["preempted"]) from stopped
        except FailedError as failed:
            print(f"nocap: {folder.name}: {failed}", file=sys.stderr)
            codes.append(EXIT_CODES["failed"])
    return max(codes)


def _prepared(folder: Path, options: Options) -> StudyPlan:
    from nocap.study.pages import check_readme
    from nocap.study.plan import prepare

    study, scale = _loaded(folder, options)
    check_readme(folder)
    require(bool(study.claims), "--propose", "be given for a study without claims", "none")
    if options.sessions is not None and scale in study.scales:
        at = study.scales[scale]
        require(options.sessions > at.sessions, "sessions", f"be more than the {at.sessions} that scale {scale} has", options.sessions)
        study.scales[scale] = replace(at, sessions=options.sessions)
    return prepare(study, scale, output_dir=options.output_dir, steps=options.steps)


def _study(folder: Path, plan: StudyPlan, asked: argparse.Namespace) -> int:
    """Its results, printed as text or JSON and written; the exit code."""
    from nocap.config.errors import EXIT_CODES
    from nocap.config.hardware import describe
    from nocap.store.files import write_file
    from nocap.study import pages, preview, rows
    from nocap.study.conduct import carry_out
    from nocap.study.evidence import check_targets
    from nocap.study.log import FILE, writable
    from nocap.study.results import results
    from nocap.study.spec import FILE as STUDY
    from nocap.study.spec import load, source_of

    if asked.plan:
        print(preview.render(plan))
        return EXIT_CODES["finished"]
    run = not asked.judge
    with redirect_stdout(sys.stderr if asked.json else sys.stdout):
        if run and (source := source_of(folder)) != folder:
            write_file(folder / STUDY, (source / STUDY).read_bytes())
            print(f"written: {folder / STUDY}, as it comes with nocap")
        done = carry_out(plan, run=run)
        check_targets(plan.study, done.evidence)
        steps = "" if (given := _given(asked)[1].steps) is None else f" steps={given}"
        command = f"python -m nocap.study {folder} scale={plan.scale}{steps}"
        content = results(done, hardware=describe(plan.trainer.device, plan.trainer.threads), command=command)
        print(pages.render(content, pages.rows([content], {plan.study.name: plan.study})))
        written = pages.write(load(folder), folder, content) if run and writable(folder / FILE) else []
        for path in [*written, *([rows.write(plan, done.records)] if asked.rows else [])]:
            print(f"written: {path}")
        for problem in done.problems:
            print(f"nocap: {problem}", file=sys.stderr)
    if asked.json:
        print(json.dumps(content, allow_nan=False), flush=True)
    missing = any(claim["missing"] for claim in content["claims"])
    return EXIT_CODES["failed" if done.problems or missing else "finished"]


def _propose(asked: argparse.Namespace) -> int:
    """Exit code 0 where all were answered, whatever the answer is."""
    from nocap.config.errors import EXIT_CODES
    from nocap.store import lease
    from nocap.study.propose import answer
    from nocap.study.tasks import FailedError, StoppedError

    folders, options = _given(asked)
    require(len(folders) == 1, "FOLDER", "be one with --propose", ", ".join(map(str, folders)))
    require(options.sessions is None, "sessions", "be left out with --propose: losses are compared", options.sessions)
    study, scale = _loaded(folders[0], options)
    proposals = [_words(text) for text in asked.propose]
    try:
        with lease.acquire(folders[0]):
            for line in answer(study, scale, proposals, output_dir=options.output_dir, steps=options.steps):
                print(json.dumps(line) if asked.json else _said(line), flush=True)
    except StoppedError as stopped:
        print(f"nocap: {stopped}", file=sys.stderr)
        return EXIT_CODES["preempted"]
    except FailedError as failed:
        print(f"nocap: {folders[0].name}: {failed}", file=sys.stderr)
        return EXIT_CODES["failed"]
    return EXIT_CODES["finished"]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"--propose must be overrides, with quotes in pairs, got {text!r}") from error


def _said(line: dict[str, object]) -> str:
    gain = line["gain"]
    loss = f": {'lower' if gain >= 0 else 'higher'} loss by {abs(gain):.4f}" if isinstance(gain, float) else ""
    diverged = ", a run diverged" if line["diverged"] else ""
    overrides: Sequence[str] = line["overrides"]  # type: ignore[assignment]
    return f"{line['word']}: {shlex.join(overrides)}{loss}{diverged}, {line['pairs']} pairs (proposal {line['number']})"


if __name__ == "__main__":
    raise SystemExit(main())
