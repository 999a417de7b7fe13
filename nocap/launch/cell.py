"""What Hydra runs: one composed config, trained in a process of its own. A cluster's job imports it by this module's name."""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from nocap.config.compose import CONFIG_ERRORS, EXIT_CODES, explain, parse, refusals, refuse, register
from nocap.launch import attempt
from nocap.launch import plan as planning

STARTED = time.monotonic()  # the door moves this back to its own beginning


def cell(cfg: DictConfig) -> int:
    """Train what Hydra composed: a single run ends the process with its exit code, a grid's cell on a cluster returns it."""
    register()  # a job on a cluster begins here
    config = HydraConfig.get()
    if config.mode is RunMode.RUN:
        with refusals():
            raise SystemExit(_train(cfg, started=STARTED))
    if (sweeper := config.runtime.choices["hydra/sweeper"]) != "nocap":
        refuse(f"hydra/sweeper must stay nocap: its own checks, skips and resumes the cells of a grid, got {sweeper}")
    try:
        return _train(cfg, started=time.monotonic(), grid=Path(config.sweep.dir).name)
    except (ValueError, *CONFIG_ERRORS) as error:
        print(f"nocap: {explain(error)}", file=sys.stderr)
        return EXIT_CODES["refused"]
    except Exception:  # the edge of a cluster's job: its neighbours in the array go on, and the log has the traceback
        traceback.print_exc()
        return EXIT_CODES["failed"]


def _train(cfg: DictConfig, *, started: float, grid: str | None = None) -> int:
    run = parse(cfg)
    choices = HydraConfig.get().runtime.choices
    if "RANK" in os.environ:
        from nocap.launch import torchrun

        return torchrun.train_as_rank(run, choices=choices, started=started)
    plan = replace(planning.plan(run, choices=choices), grid=grid)
    # A cell that another process trains is waited for: then there is nothing left to do, or all of it.
    return attempt.start(plan, started=started, wait_s=math.inf if grid else 0.0)
