"""`python -m nocap.train`: one run, or a grid with `--multirun`."""

from __future__ import annotations

import time

STARTED = time.monotonic()  # the clock ledger begins here

import os  # noqa: E402
import sys  # noqa: E402

import hydra  # noqa: E402

from nocap import outside  # noqa: E402
from nocap.config.compose import refusals, refuse, register  # noqa: E402
from nocap.config.flags import flags_first  # noqa: E402
from nocap.config.paths import conf_dir  # noqa: E402
from nocap.launch import cell  # noqa: E402

cell.STARTED = STARTED


def main() -> None:
    sys.argv[1:] = outside.arguments(None)
    with refusals():
        register()
    # Hydra would print its errors and a part of the traceback, and exit with 1; this way they come here.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if "RANK" in os.environ and {"-m", "--multirun"} & set(sys.argv[1:]):
        refuse("--multirun must not run under torchrun: every rank would start the grid; use trainer.devices=N, and nocap starts the ranks")
    sys.argv[1:] = flags_first(sys.argv[1:])
    with refusals():
        hydra.main(config_path=str(conf_dir()), config_name="train", version_base="1.3")(cell.cell)()


if __name__ == "__main__":
    main()
