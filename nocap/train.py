"""`python -m nocap.train`: one run, or a grid with `--multirun`."""

from __future__ import annotations

import time

STARTED = time.monotonic()  # the clock ledger begins here

import os  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402

import hydra  # noqa: E402
from hydra.core.hydra_config import HydraConfig  # noqa: E402
from hydra.types import RunMode  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from nocap.paths import conf_dir  # noqa: E402
from nocap.run.config import EXIT_CODES, parse, refusals, refuse, register  # noqa: E402

_unfinished: list[tuple[str, int]] = []  # cells of this grid that did not finish, with their exit codes


def cell(cfg: DictConfig) -> None:
    """Train what Hydra composed, in a process of its own. A grid's cell that fails is noted, and the grid goes on."""
    config = HydraConfig.get()
    if config.mode is RunMode.RUN:
        with refusals():
            raise SystemExit(train(cfg, started=STARTED))
    try:
        with refusals():
            code = train(cfg, started=time.monotonic() if config.job.num else STARTED)
    except SystemExit as refused:
        code = int(refused.code or 0)
    except Exception:
        traceback.print_exc()
        code = EXIT_CODES["failed"]
    if code == EXIT_CODES["preempted"]:
        raise SystemExit(code)
    if code:
        _unfinished.append((" ".join(config.overrides.task), code))


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
        refuse("--multirun must not run under torchrun: every rank would start the grid; use trainer.devices=N, and nocap starts the ranks")
    try:
        with refusals():
            hydra.main(config_path=str(conf_dir()), config_name="train", version_base="1.3")(cell)()
    except OSError as error:
        if "grids" not in str(error.filename):  # Hydra makes a grid's folder before the first cell
            raise
        refuse(f"output_dir must be a folder that can be written, got {error.filename} ({error.strerror})")
    for overrides, code in _unfinished:
        print(f"nocap: not finished (exit code {code}): {overrides}", file=sys.stderr)
    if _unfinished:
        raise SystemExit(EXIT_CODES["failed"])


if __name__ == "__main__":
    main()
