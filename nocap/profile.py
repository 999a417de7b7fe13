"""`python -m nocap.profile`: where a step's time and memory go, and what each option could win at most."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap import outside
from nocap.config.paths import conf_dir
from nocap.store.record import read_json, write_json

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nocap.config.run import Run

USAGE = "python -m nocap.profile [flags] [key=value …]"
ABOUT = """Take a training step of this configuration apart, on random tokens: no data and no run folder are needed. Words are those of
nocap.train, whose --help lists them. On a CPU one thread is used unless trainer.threads is given."""


def main(argv: list[str] | None = None) -> None:
    options, words = _parser().parse_known_args(outside.arguments(argv))
    from nocap.config.compose import refusals

    with refusals():
        _check(options, words)
        if options.diff:
            _difference(options)
        else:
            _hydra(options, words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nocap.profile", usage=USAGE, description=ABOUT, allow_abbrev=False)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the profile as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report: one file that opens offline")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write the profiled step for Perfetto or chrome://tracing")
    parser.add_argument("--ceilings", action="store_true", help="also: what each option could win at most, and in which order by length")
    parser.add_argument("--curve", type=_lengths, metavar="T,T,…", help="also: cost of attention and of a step against sequence length")
    parser.add_argument("--repeats", type=_positive, default=3, metavar="N", help="steps timed with and without profiler (default: 3)")
    outside.document(parser)
    parser.add_argument("--diff", nargs=2, type=Path, metavar=("A", "B"), help="compare two --json files, and nothing else")
    return parser


def _lengths(text: str) -> list[int]:
    lengths = sorted({_positive(word) for word in text.split(",")})
    if len(lengths) < 3:
        raise argparse.ArgumentTypeError(f"must have at least 3 lengths, got {text}")
    return lengths


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text}")
    return int(text)


def _check(options: argparse.Namespace, words: Sequence[str]) -> None:
    """What must be refused before anything is measured."""
    if {"-m", "--multirun"} & set(words):
        raise ValueError("--multirun must not be given: nocap.profile takes one configuration at a time")
    if options.diff and words:
        raise ValueError(f"--diff must be given two files and no configuration, got {words[0]}")
    for flag in ("json", "html", "trace"):
        path: Path | None = getattr(options, flag)
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--{flag} must be a file that can be written, got {path} ({error.strerror})") from error
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"--{flag} must be a file that can be written, got {path}")


def _hydra(options: argparse.Namespace, words: list[str]) -> None:
    import hydra

    from nocap.config.compose import parse, refusals, register
    from nocap.config.flags import flags_first

    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors come to the door
    sys.argv[1:] = flags_first(words)

    def profile(cfg: DictConfig) -> None:
        with refusals():
            _profile(options, parse(cfg))

    hydra.main(config_path=str(conf_dir()), config_name="train", version_base="1.3")(profile)()


def _profile(options: argparse.Namespace, run: Run) -> None:
    from hydra.core.hydra_config import HydraConfig

    words = list(HydraConfig.get().overrides.task)
    run = _one_thread(run, words)
    if run.trainer.devices > 1:
        raise ValueError(f"trainer.devices must be 1 for nocap.profile, which takes the step of one rank apart, got {run.trainer.devices}")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: the profiler's library would write on stderr
    from nocap.config.compose import compose
    from nocap.profiling import session

    found = session.profile(
        run,
        words,
        lambda more: _one_thread(compose([*_without(words, more), *more]), words),
        repeats=options.repeats,
        trace=options.trace,
        ceilings=options.ceilings,
        lengths=options.curve,
    )
    _show(options, found)


def _one_thread(run: Run, words: Sequence[str]) -> Run:
    """One CPU thread, whose process time is a fair clock on a machine that others use, unless the words ask for more."""
    if any(word.startswith("trainer.threads=") for word in words):
        return run
    return replace(run, trainer=replace(run.trainer, threads=1))


def _without(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """The user's words without those that `more` replaces: the same key, or an option's own keys where the option changes."""
    keys = [word.partition("=")[0] for word in more]
    return [word for word in words if not any(word.lstrip("+").startswith((f"{key}=", f"{key}.")) for key in keys)]


def _difference(options: argparse.Namespace) -> None:
    from nocap.profiling import difference

    before, after = (_read(path) for path in options.diff)
    found = difference.difference(before, after)
    print(difference.tell(found))
    _write(options, "json", lambda path: write_json(path, found))


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if found is None:
        raise ValueError(f"--diff must be given two files that nocap.profile --json wrote, got {path}, which is not there")
    return found


def _show(options: argparse.Namespace, found: dict[str, Any]) -> None:
    from nocap.profiling import text

    print(text.render(found))
    _write(options, "json", lambda path: write_json(path, found))
    if options.html:
        from nocap.profiling import report

        _write(options, "html", lambda path: report.write(found, path))
    if options.trace:
        print(f"written: {options.trace}")


def _write(options: argparse.Namespace, flag: str, write: Any) -> None:
    path = getattr(options, flag)
    if path is not None:
        write(path)
        print(f"written: {path}")


if __name__ == "__main__":
    main()
