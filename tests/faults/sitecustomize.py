"""Faults for tests, outside the product: with this folder on PYTHONPATH, each rank of a run does to
itself what NOCAP_FAULT says.

`kill@7,13:rank1` kills rank 1 at the steps 7 and 13, each once, for the folder NOCAP_FAULT_DIR
remembers it; a `!` at the end means every time. Several faults are joined by `+`. Python imports
this module at its start; it acts when `nocap.training.loop` is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import re
import signal
import sys
import time
from pathlib import Path


class Injector(importlib.abc.MetaPathFinder):
    """Changes the training loop just after it is imported."""

    def find_spec(self, name, path, target=None):
        if name != "nocap.training.loop":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def and_inject(module):
            execute(module)
            for fault in os.environ["NOCAP_FAULT"].split("+"):
                kind, steps, rank, always = re.fullmatch(
                    r"(\w+)@([\d,]+)(?::rank(\d))?(!?)", fault
                ).groups()
                if rank in (None, os.environ.get("RANK", "0")):
                    words = steps.split(",")
                    inject(module, kind, [int(step) for step in words], bool(always))

        spec.loader.exec_module = and_inject
        return spec


def inject(loop, kind, steps, always):
    def due(step):
        if step not in steps:
            return False
        try:  # of several that come here together, one is the first
            path = Path(os.environ["NOCAP_FAULT_DIR"])
            (path / f"{kind}@{step}").touch(exist_ok=False)
        except FileExistsError:
            return always
        return True

    # where the loop finds them
    step_module = sys.modules["nocap.training.step"]
    recorder = sys.modules["nocap.training.recorder"].Recorder
    fetch = step_module.fetch
    take_step = loop.take_step
    write = recorder.write

    def fetch_or_not(job, trainee, *, step):
        if due(step):
            if kind == "hang":
                time.sleep(1e6)
            if kind == "error":
                raise ArithmeticError("this rank's own fault")
            signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
            os.kill(os.getpid(), signals[kind])
        return fetch(job, trainee, step=step)

    def scaled_step(job, trainee, ledger, *, step):
        if not due(step):
            return take_step(job, trainee, ledger, step=step)
        parameters = trainee.model.parameters()
        before = [p.detach().clone() for p in parameters]
        factor = {"nan": float("nan"), "spike": 1e3}[kind]
        hook = trainee.model.register_forward_hook(
            lambda module, arguments, loss: scaled(loss, factor)
        )
        try:
            return take_step(job, trainee, ledger, step=step)
        finally:
            hook.remove()
            parameters = trainee.model.parameters()
            same = all(p.equal(b) for p, b in zip(parameters, before, strict=True))
            path = Path(os.environ["NOCAP_FAULT_DIR"])
            (path / f"rank{job.world.rank}-{'unchanged' if same else 'changed'}").touch()

    def write_on_a_full_disk(recorder, row):
        # where the kernel answers ENOSPC to every write
        if due(row["step"]):
            recorder.metrics.path = Path("/dev/full")
        write(recorder, row)

    if kind in ("kill", "hang", "stop", "error"):
        step_module.fetch = fetch_or_not
    elif kind in ("nan", "spike"):
        loop.take_step = scaled_step
    else:
        recorder.write = {"full": write_on_a_full_disk}[kind]


def scaled(loss, factor):
    total = loss.total * factor
    parts = {name: part * factor for name, part in loss.parts.items()}
    return type(loss)(total, parts)


if "NOCAP_FAULT" in os.environ:
    sys.meta_path.insert(0, Injector())
