"""`python -m nocap.train`: one run, or a grid with `--multirun`."""

from __future__ import annotations

import time

STARTED = time.monotonic()  # the clock ledger begins here

import os  # noqa: E402
import sys  # noqa: E402

import hydra  # noqa: E402
from hydra.core.hydra_config import HydraConfig  # noqa: E402
from hydra.types import RunMode  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from nocap.paths import conf_dir  # noqa: E402
from nocap.run.config import EXIT_CODES, parse, refusals, refuse, register  # noqa: E402


class CellFailed(Exception):
    """A cell of a grid that did not finish; Hydra goes on with the next and raises this at the end."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def cell(cfg: DictConfig) -> None:
    """Train what Hydra composed, in a process of its own, and leave with its exit code."""
    in_grid = HydraConfig.get().mode is RunMode.MULTIRUN
    started = time.monotonic() if in_grid and HydraConfig.get().job.num else STARTED
    try:
        code = train(cfg, started=started)
    except ValueError as error:
        if not in_grid:
            raise
        print(f"nocap: {' '.join(HydraConfig.get().overrides.task)}: {error}", file=sys.stderr)
        code = EXIT_CODES["refused"]
    if not in_grid or code == EXIT_CODES["preempted"]:
        raise SystemExit(code)
    if code:
        raise CellFailed(code)


def train(cfg: DictConfig, *, started: float) -> int:
    from nocap.run import launch

    run = parse(cfg)
    choices = HydraConfig.get().runtime.choices
    if "RANK" in os.environ:
        from nocap.run import torchrun

        return torchrun.train_as_rank(run, choices=choices, started=started)
    return launch.start(launch.plan(run, choices=choices), started=started)


def main() -> None:
    register()
    # Hydra would print its errors and a part of the traceback, and exit with 1; this way they come here.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if "RANK" in os.environ and {"-m", "--multirun"} & set(sys.argv[1:]):
        refuse("--multirun must not run under torchrun: each rank would start the whole grid; use trainer.devices=N, and nocap starts the ranks")
    with refusals():
        try:
            hydra.main(config_path=str(conf_dir()), config_name="train", version_base="1.3")(cell)()
        except CellFailed as failure:
            raise SystemExit(failure.code) from None


if __name__ == "__main__":
    main()
