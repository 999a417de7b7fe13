"""The keys of a run's rows, and the lines of its clock. Who writes a row and who reads one has them
from here."""

from __future__ import annotations

VAL_LOSS = "val/loss"
VAL_BPB = "val/bpb"
TRAIN = "train/"  # begins the keys of a step's losses and learning rates
TRAIN_LOSS = "train/loss"
GRAD_NORM = "train/grad_norm"
SPIKE = "train/spike"  # standard deviations of a loss above those before it
STEP_MS = "perf/step_ms"
TOKEN_US = "perf/token_us"
TOKENS_PER_S = "perf/tokens_per_s"
MFU = "perf/mfu"
PEAK_MIB = "memory/peak_mib"
MODEL_MIB = "memory/model_mib"
LOGGED = "log/"  # begins the keys of what modules log: `nocap.model.logged`
CLOCK = "clock/"  # begins the keys of the clock's lines
# begin the keys of what depends on the machine's speed and load
NOISE = (CLOCK, "perf/", "memory/")

LINES = {  # of the clock, and what a report calls them, in its order
    "train": "training steps",
    "data": "waiting for data",
    "compile": "compiling",
    "val": "validation",
    "checkpoint": "checkpoints",
    "startup": "start-up",
    "teacher": "a teacher's training",
    "other": "other",
}
WALL = "wall"  # the sum of the lines
STEP_LINES = ("train", "data")  # what the steps of a run take
TRAIN_LINES = (*STEP_LINES, "teacher")  # what it takes to train it, and what it learns from


def clock_key(line: str) -> str:
    """Return the key of a line of the clock, or of their sum."""
    return f"{CLOCK}{line}_s"
