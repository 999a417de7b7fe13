"""`python -m nocap.train`: one run, or a grid with `--multirun`."""

from __future__ import annotations

import time

STARTED = time.monotonic()  # the clock ledger begins here

import os  # noqa: E402
import sys  # noqa: E402

import hydra  # noqa: E402

from nocap import outside  # noqa: E402
from nocap.config import hardware  # noqa: E402
from nocap.config.errors import EXIT_CODES, refusals, refuse  # noqa: E402
from nocap.config.flags import asked, flags_first, without_dashes  # noqa: E402
from nocap.config.paths import conf_dir  # noqa: E402
from nocap.config.schemas import register  # noqa: E402
from nocap.launch import cell  # noqa: E402
from nocap.training.terminal import outlive_readers  # noqa: E402

cell.STARTED = STARTED
PLAN = "--plan"  # tell what would be trained, and train nothing


def main() -> None:
    try:
        _main()
    except KeyboardInterrupt:  # while it composes or prepares data: a run in training handles it itself
        print("nocap: stopped; the same command begins again", file=sys.stderr)
        raise SystemExit(EXIT_CODES["preempted"]) from None


def _main() -> None:
    outlive_readers()
    words = outside.arguments(None)
    planning, sys.argv[1:] = PLAN in words, [word for word in words if word != PLAN]
    # Hydra would print its errors and a part of the traceback, and exit with 1. This way they come here.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    with refusals():
        sys.argv[1:] = flags_first(without_dashes(sys.argv[1:]))
        flags = asked(sys.argv[1:])
        register()
        if flags.help:
            from nocap.config.manual import manual
            from nocap.launch.search import Search

            print(manual([] if flags.grid else flags.overrides, search=Search))  # a sweep has no values to show
        elif flags.question:
            with hardware.elsewhere(False if flags.resolve else None):
                hydra.main(config_path=str(conf_dir()), config_name="train", version_base="1.3")(lambda config: None)()
        elif planning:
            from nocap.launch.multirun import multirun
            from nocap.study.grid_plan import render
            from nocap.study.sessions import SessionError

            try:
                raise SystemExit(multirun(flags.overrides, look=render))
            except SessionError as error:
                print(f"nocap: {error}", file=sys.stderr)
                raise SystemExit(EXIT_CODES["failed"]) from error
        elif not flags.grid:
            cell.single(flags.overrides)
        elif "RANK" in os.environ:
            reason = "every rank would start the grid; use trainer.devices=N, and nocap starts the ranks"
            refuse(f"--multirun must not run under torchrun: {reason}")
        else:
            from nocap.launch.multirun import multirun

            raise SystemExit(multirun(flags.overrides))


if __name__ == "__main__":
    main()
