"""What memory pooling does to a step of each attention and MLP, and to a first run.

    python experiments/pooling/steps.py run     # steps.json, in some 15 minutes on two idle cores
    python experiments/pooling/steps.py libraries libjemalloc.so.2 libmimalloc.so.2
    python experiments/pooling/steps.py tell    # the tables of README.md

A step of both settings is timed in one process, in turns (A B B A), on one thread. The memory of a
process is the most that it has had resident, of one that runs these steps alone. Another allocator
is loaded before a process of its own, so that processes are timed in turns there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from nocap import api
from nocap.report.table import markdown
from nocap.store.record import Record

HERE = Path(__file__).resolve().parent
FILE = HERE / "steps.json"
PAGE = HERE / "README.md"
START, END = "<!-- tables: written by steps.py -->", "<!-- end of tables -->"

LENGTHS = (128, 512, 1024)  # tokens
OPTIONS = (
    "attention=mha",
    "attention=flash",
    "attention=gqa",
    "attention=mqa",
    "attention=sliding",
    "mlp=gelu4x",
    "mlp=gelu3x",
    "mlp=swiglu",
)
SETTINGS = ("system", "pooled")
SHAPE = ("model=nano", "trainer.precision=fp32", "trainer.device=cpu", "trainer.compile=off")
SEQUENCES = 8  # of a step
ROUNDS = 4
ORDER = ("system", "pooled", "pooled", "system")  # of first runs
PRELOAD = "LD_PRELOAD"
TURNS = 2  # of each allocator, every second one in the opposite order


# --- measured -------------------------------------------------------------------------------------


def run() -> None:
    """Measure the steps and the first runs that steps.json does not have, and write it after
    each."""
    measured: dict[str, list[dict[str, Any]]] = {"steps": [], "first_runs": []}
    if FILE.is_file():
        measured = json.loads(FILE.read_text())
    steps = measured["steps"]
    first_runs = measured["first_runs"]
    have = [(step["length"], step["option"]) for step in steps]
    for length in LENGTHS:
        for option in OPTIONS:
            if (length, option) not in have:
                steps.append(_step(length, option))
                _write(measured)
    for malloc in ORDER[len(first_runs) :]:
        first_runs.append(_first_run(malloc))
        _write(measured)


def libraries(names: Sequence[str]) -> None:
    """Time steps of materialised scores with each allocator, in turns, and add them to
    steps.json."""
    measured = json.loads(FILE.read_text())
    allocators = {"system": "", "pooled": ""}
    for name in names:
        allocators[Path(name).name.partition(".")[0]] = name
    turns = [*allocators]
    rows: dict[str, list[Record]] = {name: [] for name in allocators}
    for turn in range(TURNS):
        order = turns if turn % 2 == 0 else turns[::-1]
        for name in order:
            record = _few_steps(name, allocators[name])
            rows[name].append(record)
            print(f"{name}: {record.number('token_us')} µs a token", flush=True)
    measured["libraries"] = [_library(name, records) for name, records in rows.items()]
    _write(measured)


def _few_steps(name: str, library: str) -> Record:
    """Train a few steps with an allocator."""
    length = LENGTHS[-1]
    words = [*SHAPE, "attention=mha", "data=synthetic", "tracker=none", "trainer.threads=1"]
    words += [f"model.seq_len={length}", f"trainer.micro_batch={SEQUENCES}"]
    words += [f"trainer.batch_tokens={SEQUENCES * length}", "trainer.val_tokens=8192"]
    malloc = name if name in SETTINGS else "system"
    return _trained([*words, "trainer.steps=10", f"trainer.malloc={malloc}"], library)


def _library(name: str, records: Sequence[Record]) -> dict[str, Any]:
    machine = records[0].hardware["name"]
    return {
        "allocator": name,
        "token_us": [record.number("token_us") for record in records],
        "peak_mib": [record.number("memory_mib", "peak") for record in records],
        "val_loss": records[0].val_loss,
        "machine": machine,
    }


def _write(measured: Mapping[str, Any]) -> None:
    FILE.write_text(json.dumps(measured, indent=1) + "\n")


def _step(length: int, option: str) -> dict[str, Any]:
    """Time a step of an option with both settings, and weigh a process of each."""
    shared = [*SHAPE, *option.split(), f"model.seq_len={length}"]
    shared += [f"trainer.micro_batch={SEQUENCES}", f"trainer.batch_tokens={SEQUENCES * length}"]
    benched = _benched(shared)
    system, pooled = benched["arms"]
    print(
        f"{length} tokens, {option}: {system['tokens_per_s']:.0f}, {pooled['tokens_per_s']:.0f}",
        flush=True,
    )
    return {
        "length": length,
        "option": option,
        "tokens_per_s": {"system": system["tokens_per_s"], "pooled": pooled["tokens_per_s"]},
        "speed": pooled["speed"],
        "control": benched["control"]["speed"],
        "peak_mib": {malloc: _peak_mib(shared, malloc) for malloc in SETTINGS},
        "machine": benched["hardware"]["name"],
        "date": benched["date"],
    }


def _benched(shared: Sequence[str]) -> dict[str, Any]:
    """Return a bench's JSON of both settings, the system's first."""
    command = [sys.executable, "-m", "nocap.bench", *shared]
    for malloc in SETTINGS:
        command += ["--arm", f"trainer.malloc={malloc}"]
    command += ["--rounds", str(ROUNDS), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    benched: dict[str, Any] = json.loads(done.stdout)
    return benched


def _peak_mib(shared: Sequence[str], malloc: str) -> float:
    """Return the most memory that a process of four training steps has had resident."""
    few = [
        "data=synthetic",
        "trainer.steps=4",
        "trainer.val_tokens=8192",
        "trainer.threads=1",
        "tracker=none",
    ]
    return (
        _trained([*shared, *few, f"trainer.malloc={malloc}"]).number("memory_mib", "peak")
        or math.nan
    )


def _first_run(malloc: str) -> dict[str, Any]:
    """Train as `make train` does."""
    record = _trained(["experiment=first_run", "tracker=none", f"trainer.malloc={malloc}"])
    print(f"first run, {malloc}: {record.train_s:.1f} s", flush=True)
    return {
        "malloc": malloc,
        "train_s": record.train_s,
        "val_loss": record.val_loss,
        "peak_mib": record.number("memory_mib", "peak"),
    }


def _trained(words: Sequence[str], library: str = "") -> Record:
    """Train a run; return its record. `library`: an allocator that is loaded first."""
    env = {**os.environ, PRELOAD: library}
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "nocap.train", *words, f"output_dir={place}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        (record,) = api.load(place)
    return record


# --- told -----------------------------------------------------------------------------------------


def tell() -> None:
    """Write the tables of README.md from steps.json."""
    measured = json.loads(FILE.read_text())
    first = measured["steps"][0]
    head = [
        "step",
        "system, tokens/s",
        "pooled",
        "pooled over system",
        "system's peak, MiB",
        "pooled's",
    ]
    rows = [_row(step) for step in measured["steps"]]
    lines = [f"{first['machine']}, one thread, {first['date']}.", "", *markdown(head, rows), ""]
    runs = [
        [run["malloc"], f"{run['train_s']:.1f}", f"{run['peak_mib']:.0f}", f"{run['val_loss']!r}"]
        for run in measured["first_runs"]
    ]
    lines += markdown(["first run", "training, s", "peak, MiB", "loss, nats"], runs)
    others = measured.get("libraries", [])
    if others:
        title = f"{LENGTHS[-1]} tokens, attention=mha: allocator"
        head = [title, "µs a token", "least", "peak, MiB", "loss, nats"]
        lines += ["", *markdown(head, [_allocator(row) for row in others])]
    before, _, rest = PAGE.read_text().partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([before + START, "", *lines, "", END]) + after)


def _row(step: Mapping[str, Any]) -> list[str]:
    """Return the table's row of an option at a length."""
    speed = step["speed"]
    ends = f"[{speed['low']:.2f}, {speed['high']:.2f}]"
    return [
        f"{step['length']} tokens, {step['option']}",
        f"{step['tokens_per_s']['system']:,.0f}",
        f"{step['tokens_per_s']['pooled']:,.0f}",
        f"{speed['ratio']:.2f} {ends}",
        f"{step['peak_mib']['system']:.0f}",
        f"{step['peak_mib']['pooled']:.0f}",
    ]


def _allocator(row: Mapping[str, Any]) -> list[str]:
    """Return the table's row of an allocator."""
    times = row["token_us"]
    return [
        row["allocator"],
        f"{fmean(times):.2f}",
        f"{min(times):.2f}",
        f"{max(row['peak_mib']):.0f}",
        f"{row['val_loss']!r}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=["run", "libraries", "tell"])
    parser.add_argument("library", nargs="*", help="an allocator's shared library")
    asked = parser.parse_args()
    if asked.verb == "run":
        run()
    elif asked.verb == "libraries":
        libraries(asked.library)
    else:
        tell()


if __name__ == "__main__":
    main()
