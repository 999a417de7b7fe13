"""`python -m nocap.profile`: where the time and memory of a step, a forward or a text go, what each
option could win at most, and what changed between two profiles."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from nocap import outside
from nocap.command_line import check_writable, command, writing
from nocap.config import entry
from nocap.config.keys import require
from nocap.config.paths import STDOUT
from nocap.measure.largest_parts import ProfileCommand, file_of, without
from nocap.measure.profile_difference import differences
from nocap.measure.profile_file import written
from nocap.measure.subject import prompt_tokens

if TYPE_CHECKING:
    from nocap.config.compose import Composed
    from nocap.config.run import Run

USAGE = "python -m nocap.profile [flags] [key=value … | A.json B.json]"
ABOUT = """Measure each part of a training step of this configuration, on random tokens. It needs no
data and no run folder. OVERRIDES are those of nocap.train, whose --help lists them. The step uses
one thread, unless you set trainer.threads. If you name two files that --json wrote, nocap compares
them part by part."""
REPEATS = 3


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _profile, argv, answer="the profile, or the difference,")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nocap.profile", usage=USAGE, description=ABOUT)
    add = parser.add_argument
    add(
        "overrides",
        nargs="*",
        metavar="OVERRIDES",
        help="the configuration, or two files to compare",
    )
    add("--forward", action="store_true", help="profile a forward pass, without gradients")
    add(
        "--generate",
        action="store_true",
        help="profile a prompt in one pass (prefill), and one token after it",
    )
    add(
        "--prompt",
        type=int,
        metavar="N",
        help="tokens of the prompt of --generate (default: half of model.seq_len)",
    )
    add(
        "--texts",
        type=int,
        metavar="N",
        help="number of texts that --generate decodes together (default: 1)",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the profiled step or token for Perfetto or chrome://tracing",
    )
    add(
        "--ceilings",
        action="store_true",
        help="also print the largest speedup that each option could give",
    )
    add(
        "--repeats",
        type=int,
        metavar="N",
        help=(
            "number of steps that are timed with the profiler, and again without it (default: "
            f"{REPEATS})"
        ),
    )
    return parser


def _profile(options: argparse.Namespace) -> int:
    words = [word for word in options.overrides if not _is_override(word)]
    paths = [Path(word) for word in words]
    if paths:
        return _compare(paths, options)
    repeats = options.repeats
    if repeats is None:
        repeats = REPEATS
    require(repeats >= 1, "--repeats", "be at least 1", repeats)
    if options.forward and options.generate:
        raise ValueError("--forward does not work with --generate")
    for name in ("prompt", "texts"):
        if getattr(options, name) is not None and not options.generate:
            raise ValueError(f"--{name} works only with --generate")
    texts = options.texts
    if texts is None:
        texts = 1
    require(1 <= texts <= 4096, "--texts", "be from 1 to 4096", texts)
    check_writable("--trace", options.trace)
    composed, compose = _composer(options.overrides)
    run = composed.run
    rule = "be 1, because nocap.profile measures the step of one device"
    require(run.trainer.devices == 1, "trainer.devices", rule, run.trainer.devices)
    prompt = 0
    if options.generate:
        _check_precision(composed)
        prompt = prompt_tokens(run, options.prompt)
    # before torch: the profiler's library would write on stderr
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from nocap.measure.profile import ProfileQuestion, profiles
    from nocap.measure.profile_tables import render_profiles

    with writing("--trace", options.trace) if options.trace else nullcontext() as trace:
        question = ProfileQuestion(
            generate=options.generate,
            forward=options.forward,
            prompt=prompt,
            texts=texts,
            repeats=repeats,
            trace=trace,
            ceilings=True,
        )
        profiled = profiles(run, options.overrides, compose, question)
    typed = _typed(options, composed)
    files = {of: file_of(each, typed) for of, each in profiled.items()}
    print(render_profiles(files, ceilings=options.ceilings))
    options.answer(written(files))
    return 0


def _check_precision(composed: Composed) -> None:
    """Refuse a precision that is asked for and that no text is generated in.

    Errors:
        ValueError: it is bf16, by an override or a yaml.
    """
    is_default = "precision" in composed.defaults
    precision = composed.run.trainer.precision.value
    rule = "be fp32 or unset with --generate, because nocap.generate computes in fp32"
    require(is_default or precision == "fp32", "trainer.precision", rule, precision)


def _composer(overrides: Sequence[str]) -> tuple[Composed, Callable[[Sequence[str]], Run]]:
    """Return the run of these overrides, and what makes the run that they are with more of them."""
    from nocap.measure.bench_arms import compose_measured

    def composed(more: Sequence[str]) -> Run:
        return compose_measured([*without(overrides, more), *more]).run

    return compose_measured(overrides), composed


def _typed(options: argparse.Namespace, composed: Composed) -> ProfileCommand:
    flags = []
    if options.forward:
        flags.append("--forward")
    if options.generate:
        flags.append("--generate")
    for name in ("prompt", "texts"):
        value = getattr(options, name)
        if value is not None:
            flags += [f"--{name}", str(value)]
    file = options.json
    if file == STDOUT:
        file = None
    return ProfileCommand(
        words=options.overrides,
        choices=composed.choices,
        flags=flags,
        folders=outside.config_dirs(),
        json=file,
    )


# --- two profiles ---------------------------------------------------------------------------------


def _is_override(word: str) -> bool:
    return "=" in word or word.startswith("~")


def _compare(files: Sequence[Path], options: argparse.Namespace) -> int:
    from nocap.measure.profile_difference_table import render_differences

    rule = "be two files to compare, or key=value overrides"
    require(len(files) == 2, "the arguments", rule, ", ".join(map(str, files)))
    words = [word for word in options.overrides if _is_override(word)]
    if words:
        raise ValueError(f"{words[0]} does not work with two files to compare")
    for name in ("forward", "generate", "prompt", "texts", "trace", "ceilings", "repeats"):
        if getattr(options, name) not in (None, False):
            raise ValueError(f"--{name} does not work with two files to compare")
    found = differences(*files)
    print(render_differences(found))
    changes = {difference.of.value: difference.json() for difference in found}
    options.answer({"kind": "profile_difference", "differences": changes})
    return 0


if __name__ == "__main__":
    entry.run(main)
