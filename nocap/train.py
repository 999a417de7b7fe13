"""`python -m nocap.train`: one run, or a grid with `--multirun`."""

from __future__ import annotations

import time

STARTED = time.monotonic()  # the clock ledger begins here

import os  # noqa: E402
import sys  # noqa: E402
from typing import TYPE_CHECKING, NoReturn  # noqa: E402

from nocap import outside  # noqa: E402
from nocap.config import entry  # noqa: E402
from nocap.config.choices import has_sweeps  # noqa: E402
from nocap.config.errors import refusals  # noqa: E402
from nocap.config.flags import Flags, GridFlags, parse  # noqa: E402

if TYPE_CHECKING:
    from nocap.sessions.in_turns import InTurns


def main() -> None:
    with refusals():
        flags = parse(sys.argv[1:])
        outside.use(flags.config_dir or ())
        is_answered = _answer(flags)
        sys.stdout.flush()  # an answer that a full disk does not take is none
    if is_answered:
        raise SystemExit(0)
    entry.outlive_readers()
    with refusals():
        if flags.is_grid or has_sweeps(flags.overrides):
            _train_grid(flags)
        _train_run(flags)


def _answer(flags: Flags) -> bool:
    """Answer what needs no run, and say whether that was asked for.

    Errors:
        ValueError: what is asked about is wrong.
    """
    if flags.help:
        _print_manual(flags)
    elif flags.cfg:
        _print_config(flags)
    elif flags.info or flags.shell_completion:
        from nocap.config.hydra_answers import answer

        answer(flags)
    elif flags.fit:
        _print_fit(flags)
    elif flags.plan:
        _print_plan(flags)
    else:
        return False
    return True


def _print_manual(flags: Flags) -> None:
    """Print the help."""
    from nocap.config.help_page import help_text

    overrides = flags.overrides
    if flags.is_grid:
        overrides = []  # a sweep has no values to show
    print(help_text(overrides, everything=flags.help_all))


def _print_config(flags: Flags) -> None:
    """Print the composed config of a run that could be trained."""
    from omegaconf import OmegaConf

    from nocap.config.compose import compose_with_config
    from nocap.config.explain import one_line_errors
    from nocap.launch.plan import located_and_checked

    config, run = compose_with_config(flags.overrides)
    located_and_checked(run)
    with one_line_errors():
        print(OmegaConf.to_yaml(config, resolve=flags.resolve), end="")


def _print_fit(flags: Flags) -> None:
    """Print how large a micro-batch of the run fits."""
    from nocap.config.compose import compose
    from nocap.measure.fit import fit

    for line in fit(compose(flags.overrides)):
        print(line, flush=True)


def _print_plan(flags: Flags) -> None:
    """Print what a grid would cost, and what it can show."""
    from nocap.launch.multirun import print_plan
    from nocap.sessions.grid_plan import of_grid

    print_plan(flags.overrides, flags.grid, of_grid, timer=_timer(flags.grid))


def _train_run(flags: Flags) -> NoReturn:
    """Train one run; the process ends with its exit code."""
    from nocap.launch.single import single

    single(flags.overrides, started=STARTED)


def _train_grid(flags: Flags) -> NoReturn:
    """Train a grid; the process ends with its exit code.

    Errors:
        ValueError: somebody else starts a process for each run.
    """
    if "RANK" in os.environ:
        reason = (
            "every rank would start the grid; use trainer.devices=N, and nocap starts the ranks"
        )
        raise ValueError(f"--multirun must not run under torchrun: {reason}")
    if "WANDB_SWEEP_ID" in os.environ:
        reason = (
            "the agent starts one run with each command; name the swept keys in the sweep's yaml"
        )
        raise ValueError(f"--multirun must not run under W&B's agent: {reason}")
    from nocap.launch.multirun import multirun

    raise SystemExit(multirun(flags.overrides, flags.grid, timer=_timer(flags.grid)))


def _timer(flags: GridFlags) -> InTurns | None:
    """Return what times the arms of a grid in turns; `None`: nobody asked for it."""
    if flags.time is None:
        return None
    from nocap.sessions.in_turns import InTurns

    return InTurns(seconds=flags.time)


if __name__ == "__main__":
    entry.run(main)
