"""A GPU that is pretended: a CUDA build of torch over libraries that stand in for CUDA's runtime,
driver and cuBLAS.

No kernel computes, so no number, loss or time from there means anything. Real are torch's allocator
and its out-of-memory errors, the choice of attention kernels, Dynamo's graphs, Triton's
compilation, and counts of launches, waits and copies.

NOCAP_PRETEND_PYTHON names the Python of an environment with a CUDA build of torch and nocap's
dependencies, NOCAP_PRETEND_ENV a shell script that puts the libraries in front (LD_PRELOAD,
LD_LIBRARY_PATH). The libraries read PRETEND_CC (compute capability: 80, 90, …), PRETEND_NAME,
PRETEND_GB and PRETEND_GPUS, and count in `pretend_counts(long[3])`: launches, waits, copies to the
host. What they lack, CUDA graphs, is pretend_graphs.c beside this file, compiled here, which counts
in `pretend_graph_counts(long[2])`: captures, replays.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPO, Finished

PYTHON = os.environ.get("NOCAP_PRETEND_PYTHON", "")
ENV = os.environ.get("NOCAP_PRETEND_ENV", "")
NEEDED = {
    "NOCAP_PRETEND_PYTHON": (PYTHON, "a Python with a CUDA torch"),
    "NOCAP_PRETEND_ENV": (ENV, "the libraries' env.sh"),
}
MISSING = [
    f"{name} names no file, to be {what}"
    for name, (path, what) in NEEDED.items()
    if not Path(path).is_file()
]
REASON = f"no pretended GPU: {'; '.join(MISSING)} (tests/pretend.py)"

COUNTS = """
import ctypes
def counts():
    found = (ctypes.c_long * 3)()
    ctypes.CDLL(None).pretend_counts(found)
    return tuple(found)  # launches, waits, copies to the host
def graph_counts():
    found = (ctypes.c_long * 2)()
    ctypes.CDLL(None).pretend_graph_counts(found)
    return tuple(found)  # captures, replays
"""


@dataclass(frozen=True, kw_only=True)
class Pretended:
    """Runs Python on a pretended GPU, in a folder of its own."""

    folder: Path

    def python(
        self,
        *words: str,
        cc: int = 80,
        name: str = "NVIDIA H200",
        gb: float = 140,
        timeout: float = 250,
    ) -> Finished:
        """cuDNN is not pretended: attention runs on capability 8.0, where torch's choice is
        FlashAttention-2."""
        graphs = self.folder / "pretend_graphs.so"
        if not graphs.exists():
            source = REPO / "tests" / "pretend_graphs.c"
            compiler = ["gcc", "-O1", "-shared", "-fPIC", "-Wall"]
            files = [str(source), "-o", str(graphs)]
            subprocess.run([*compiler, *files, "-ldl"], check=True, timeout=60)
        env = {
            "PRETEND_CC": str(cc),
            "PRETEND_NAME": name,
            "PRETEND_GB": str(gb),
            "PRETEND_GPUS": "1",
            "PYTHONPATH": str(REPO),
        }
        command = [
            "bash",
            "-c",
            '. "$0" && LD_PRELOAD="$1:$LD_PRELOAD" exec "${@:2}"',
            ENV,
            str(graphs),
            PYTHON,
            *words,
        ]
        environment = {**os.environ, **env, "WANDB_MODE": "disabled"}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        return Finished(done.returncode, done.stdout, done.stderr)
