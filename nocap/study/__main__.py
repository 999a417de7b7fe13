"""`python -m nocap.study`: how many seeds a verdict needs, and how often verdicts are wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nocap.schema import require

FORMS = """\
  python -m nocap.study --power 0.9 --effect 0.005 --sigma 0.0013     a difference: of losses, in nats
  python -m nocap.study --power 0.9 --effect 2% --sigma 0.5%          a ratio: of times or speeds
  python -m nocap.study --calibrate-verdicts --json results.json"""
STUDIES = 2000


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.power is None and not options.calibrate_verdicts:
        parser.error("one of the arguments --power --calibrate-verdicts is required")
    from nocap.run.config import EXIT_CODES, refusals  # Hydra comes with it: --help does without

    with refusals():
        _check_together(options)
        return EXIT_CODES["finished" if (_calibrate(options) if options.calibrate_verdicts else _plan(options)) else "failed"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.study",
        description="Plan a study's seeds, or measure how far verdicts can be trusted.",
        epilog=FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--power", type=float, metavar="P", help="the seeds that see an effect with this chance")
    what.add_argument("--calibrate-verdicts", action="store_true", help="simulate studies and count the wrong verdicts")
    parser.add_argument("--effect", metavar="X", help="the difference to see, or the ratio's change as in 2%%")
    parser.add_argument("--sigma", metavar="S", help="the standard deviation between seeds, in the effect's unit")
    parser.add_argument("--studies", type=int, metavar="N", help=f"simulated studies a row (default: {STUDIES})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the calibration as JSON")
    return parser


def _check_together(options: argparse.Namespace) -> None:
    planning = options.power is not None
    for key in ("effect", "sigma"):
        given = getattr(options, key)
        require((given is not None) == planning, f"--{key}", "be given with --power, and only there", given)
    for key in ("studies", "json"):
        given = getattr(options, key)
        require(given is None or not planning, f"--{key}", "be left out with --power", given)


def _plan(options: argparse.Namespace) -> bool:
    from nocap.study.claim import Scale
    from nocap.study.plan import parse_amount, plan

    (effect, relative), (sigma, sigma_relative) = (parse_amount(f"--{key}", getattr(options, key)) for key in ("effect", "sigma"))
    rule = "be a percentage as --effect is" if relative else "be in --effect's unit, without %"
    require(relative == sigma_relative, "--sigma", rule, options.sigma)
    found = plan(effect=effect, sigma=sigma, scale=Scale.ratio if relative else Scale.difference, power=options.power)
    kind = "ratio" if relative else "difference"
    print(
        f"{found.pairs} pairs of seeds ({2 * found.pairs} runs) see a {kind} of {options.effect} through sigma {options.sigma} "
        f"with a power of {found.power:.2f}: paired t-test, two-sided 5%, pairs taken as uncorrelated"
    )
    return True


def _calibrate(options: argparse.Namespace) -> bool:
    from nocap.run.record import check_writable, write_json, writing
    from nocap.study.trust import calibrate, render

    if options.json:
        check_writable("--json", options.json)
    tell = (lambda line: print(line, file=sys.stderr)) if sys.stderr.isatty() else lambda line: None
    result = calibrate(studies=STUDIES if options.studies is None else options.studies, say=tell)
    print(render(result))
    if options.json:
        with writing("--json", options.json):
            write_json(options.json, result)
    return bool(result["ok"])


if __name__ == "__main__":
    raise SystemExit(main())
