"""`python -m nocap.train`: one run, or a grid with `--multirun`."""

from __future__ import annotations

import time

STARTED = time.monotonic()  # the clock ledger begins here

import argparse  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

from omegaconf import OmegaConf  # noqa: E402

from nocap import outside  # noqa: E402
from nocap.config import entry  # noqa: E402
from nocap.config.choices import has_sweeps  # noqa: E402
from nocap.config.compose import checked, compose  # noqa: E402
from nocap.config.errors import refusals  # noqa: E402
from nocap.config.flags import answer, asked, manual  # noqa: E402
from nocap.config.plain import explained  # noqa: E402


def main() -> None:
    words = outside.arguments(None)
    with refusals():
        flags = asked(words)
        code = _answered(flags)
        sys.stdout.flush()  # an answer that a full disk does not take is none
    if code is not None:
        raise SystemExit(code)
    entry.outlive_readers()
    with refusals():
        if not (flags.grid or has_sweeps(flags.overrides)):
            from nocap.launch import cell

            cell.single(flags.overrides, started=STARTED)
        elif "RANK" in os.environ:
            reason = (
                "every rank would start the grid; use trainer.devices=N, and nocap starts the ranks"
            )
            raise ValueError(f"--multirun must not run under torchrun: {reason}")
        elif "WANDB_SWEEP_ID" in os.environ:
            reason = "it has one run for each command; sweep over the keys in the sweep's yaml"
            raise ValueError(f"--multirun must not run under W&B's agent: {reason}")
        else:
            from nocap.launch.multirun import multirun
            from nocap.sessions.in_turns import InTurns

            raise SystemExit(
                multirun(
                    flags.overrides,
                    zipped=flags.zip,
                    fail_fast=flags.fail_fast,
                    detach=flags.detach,
                    equal_loss=flags.equal_loss,
                    until_shown=flags.until_shown,
                    timer=InTurns.of(flags.time),
                    skip_refused=flags.skip_refused,
                )
            )


def _answered(flags: argparse.Namespace) -> int | None:
    """Answer what needs no run, and return the exit code; None where something is to be trained.

    Errors:
        ValueError: what is asked about is wrong.
    """
    if flags.help:
        # a sweep has no values to show
        print(manual([] if flags.grid else flags.overrides, everything=flags.all))
    elif flags.cfg:
        from nocap.launch.plan import without_data

        config, run = checked(flags.overrides)
        without_data(run)
        with explained():
            print(OmegaConf.to_yaml(config, resolve=flags.resolve), end="")
    elif flags.info or flags.shell_completion:
        answer(flags)
    elif flags.fit:
        from nocap.measure.fit import fit

        for line in fit(compose(flags.overrides)):
            print(line, flush=True)
    elif flags.plan:
        from nocap.launch.multirun import multirun
        from nocap.sessions.grid_plan import of_grid
        from nocap.sessions.in_turns import InTurns

        return multirun(
            flags.overrides,
            look=of_grid,
            zipped=flags.zip,
            equal_loss=flags.equal_loss,
            until_shown=flags.until_shown,
            timer=InTurns.of(flags.time),
            skip_refused=flags.skip_refused,
        )
    else:
        return None
    return 0


if __name__ == "__main__":
    entry.run(main)
