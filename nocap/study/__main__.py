"""`python -m nocap.study`: a study from its file to its verdicts, how many seeds one needs, and how often verdicts are wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from nocap import outside
from nocap.config.keys import require

FORMS = """\
A FOLDER holds a study.yaml: a question, arms, scales, claims. What is missing is trained and timed; again, nothing is.

  python -m nocap.study experiments/gqa scale=cpu                     carry it out; its verdicts, README and results
  python -m nocap.study experiments/gqa scale=gpu budget_h=8 --plan   cells, a guess at the cost, and the power, before anything runs
  python -m nocap.study experiments/gqa --judge                       the verdicts of what there is; nothing is trained or written
  python -m nocap.study experiments/gqa --calibrate                   the exchange rate between steps and loss
  python -m nocap.study --power 0.9 --effect 0.005 --sigma 0.0013     a difference: of losses, in nats
  python -m nocap.study --power 0.9 --effect 2% --sigma 0.5%          a ratio: of times or speeds
  python -m nocap.study --calibrate-verdicts --json results.json      simulated studies: minutes, nothing is trained
  python -m nocap.study --calibrate-verdicts --trainings 20           20 real comparisons of an arm with itself, 120 runs of seconds"""
STUDIES = 2000
OUTPUTS = "outputs"
MODES = ("plan", "judge", "calibrate")


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_intermixed_args(outside.arguments(argv))
    if options.power is None and not options.calibrate_verdicts and not options.words and not options.board:
        parser.error("a study's folder, or one of --board --power --calibrate-verdicts is required")
    from nocap.config.compose import EXIT_CODES, refusals  # Hydra comes with it: --help does without

    with refusals():
        _check_together(options)
        if options.board:
            from nocap.study.board import write

            for path in write(options.board, Path("README.md")):
                print(f"written: {path}")
            return EXIT_CODES["finished"]
        if options.words:
            from nocap.study.command import study

            return study(options.words, mode=next((mode for mode in MODES if getattr(options, mode)), "run"))
        return EXIT_CODES[_calibrate(options) if options.calibrate_verdicts else _plan(options)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.study",
        description="Carry out a study and judge its claims, plan its seeds, or measure how far verdicts can be trusted.",
        epilog=FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="FOLDER, key=value", help="studies; scale=, budget_h= and output_dir= for all of them")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="say what a study would run, and stop")
    what.add_argument("--judge", action="store_true", help="judge what there is: train, time and write nothing")
    what.add_argument("--board", type=Path, metavar="FOLDER", help="write the board of a folder of studies, and its head in README.md")
    what.add_argument("--calibrate", action="store_true", help="train the baseline at shorter lengths, too: loss for log-steps")
    what.add_argument("--power", type=float, metavar="P", help="the seeds that see an effect with this chance")
    what.add_argument("--calibrate-verdicts", action="store_true", help="count the wrong verdicts of studies, simulated or real")
    parser.add_argument("--effect", metavar="X", help="the difference to see, or the ratio's change as in 2%%")
    parser.add_argument("--sigma", metavar="S", help="the standard deviation between seeds, in the effect's unit")
    parser.add_argument("--studies", type=int, metavar="N", help=f"simulated studies a row (default: {STUDIES})")
    parser.add_argument("--trainings", type=int, metavar="N", help="train N real comparisons of an arm with itself, 6 runs each")
    parser.add_argument("--timings", type=int, metavar="N", help="time N real comparisons of an arm with itself, 3 sessions each")
    parser.add_argument("--output-dir", metavar="FOLDER", help=f"of these runs and sessions (default: {OUTPUTS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the calibration as JSON")
    outside.document(parser)
    return parser


def _check_together(options: argparse.Namespace) -> None:
    alone = options.power is not None or options.calibrate_verdicts or options.board
    require(not (alone and options.words), "FOLDER", "be left out with --board, --power and --calibrate-verdicts", " ".join(options.words))
    planning = options.power is not None
    for key in ("effect", "sigma"):
        given = getattr(options, key)
        require((given is not None) == planning, f"--{key}", "be given with --power, and only there", given)
    for key in ("studies", "json", "trainings", "timings"):
        given = getattr(options, key)
        require(given is None or options.calibrate_verdicts, f"--{key}", "be given with --calibrate-verdicts, and only there", given)
    where = options.output_dir
    require(where is None or _real(options), "--output-dir", "be given with --trainings or --timings, and only there", where)


def _real(options: argparse.Namespace) -> bool:
    return options.trainings is not None or options.timings is not None


def _plan(options: argparse.Namespace) -> str:
    from nocap.judge.power import parse_amount, plan
    from nocap.study.claim import Scale

    (effect, relative), (sigma, sigma_relative) = (parse_amount(f"--{key}", getattr(options, key)) for key in ("effect", "sigma"))
    rule = "be a percentage as --effect is" if relative else "be in --effect's unit, without %"
    require(relative == sigma_relative, "--sigma", rule, options.sigma)
    found = plan(effect=effect, sigma=sigma, scale=Scale.ratio if relative else Scale.difference, power=options.power)
    kind = "ratio" if relative else "difference"
    print(
        f"{found.pairs} pairs of seeds ({2 * found.pairs} runs) see a {kind} of {options.effect} through sigma {options.sigma} "
        f"with a power of {found.power:.2f}: paired t-test, two-sided 5%, pairs taken as uncorrelated"
    )
    return "finished"


def _calibrate(options: argparse.Namespace) -> str:
    """Simulated studies, unless only real comparisons were asked for. The status."""
    from nocap.store.record import check_writable, write_json, writing

    if options.json:
        check_writable("--json", options.json)
    result: dict[str, Any] = {}
    if not _real(options) or options.studies is not None:
        from nocap.study.trust import calibrate, render

        tell = (lambda line: print(line, file=sys.stderr)) if sys.stderr.isatty() else lambda line: None
        result = calibrate(studies=STUDIES if options.studies is None else options.studies, say=tell)
        print(render(result))
    if _real(options):
        from nocap.study import trust_real
        from nocap.study.sessions import SessionError
        from nocap.study.training import StoppedError

        try:
            found = trust_real.calibrate(trainings=options.trainings, timings=options.timings, output_dir=options.output_dir or OUTPUTS)
        except (StoppedError, SessionError, trust_real.UnfinishedError) as error:
            print(f"nocap: {error}", file=sys.stderr)
            return "preempted" if isinstance(error, StoppedError) else "failed"
        print(trust_real.render(found))
        ok = found["ok"] and result.get("ok", True)
        result = {**found, **({"simulated": result} if result else {}), "ok": ok}
    if options.json:
        with writing("--json", options.json):
            write_json(options.json, result)
    return "finished" if result["ok"] else "failed"


if __name__ == "__main__":
    raise SystemExit(main())
