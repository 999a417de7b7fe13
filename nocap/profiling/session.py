"""One profile from beginning to end: does it fit, count it, measure it, bound it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch.plan import check_compiler
from nocap.measure.roof import Roof, measure_roof
from nocap.options.attention import first_window
from nocap.profiling import ceilings as bounds
from nocap.profiling.ceilings import Composer
from nocap.profiling.count import Count, count
from nocap.profiling.curve import curve, with_window
from nocap.profiling.measure import measure
from nocap.profiling.record import part_ms, record
from nocap.training.memory import MIB
from nocap.training.step import configure_numerics


def profile(
    run: Run, words: Sequence[str], compose: Composer, *, repeats: int, trace: Path | None, ceilings: bool, lengths: list[int] | None
) -> dict[str, Any]:
    """The profile of a run.

    Errors:
        ValueError: the step does not fit into this machine's memory.
    """
    check_compiler(run)
    vocabulary = run.tokenizer.vocab_size
    try:
        counted = count(run, vocab_size=vocabulary)
        check_fits(run, counted)
        configure_numerics(run)
        say("measuring the roof: a large product and a large copy")
        roof = measure_roof(run.trainer.device)
        say(f"measuring {2 * repeats + 1} steps of {run.trainer.micro_batch} × {run.model.seq_len} tokens")
        measured = measure(run, vocab_size=vocabulary, repeats=repeats, trace=trace)
        found = record(run, words, vocab_size=vocabulary, counted=counted, roof=roof, measured=measured)
        if ceilings:
            found["ceilings"] = _ceilings(run, compose, counted, roof, found)
        if lengths:
            found["curve"] = _curve(run, compose, lengths, vocabulary)
    except RuntimeError as error:  # OutOfMemoryError is one; the CPU's allocator has none of its own
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        cause, size = str(error).splitlines()[0], run.trainer.micro_batch
        raise ValueError(f"the step must fit into the device's memory; lower trainer.micro_batch={size} ({cause})") from error
    return found


def say(line: str) -> None:
    """Progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


def check_fits(run: Run, counted: Count) -> None:
    """Refuse a step that cannot fit, by what it holds for certain: a process that takes more than there is gets killed without a word.

    Errors:
        ValueError: parameters, gradients, moments, and what one forward keeps are more than the memory that is free.
    """
    need = 2 * counted.parameters + counted.optimizer + sum(counted.kept.values()) + counted.largest
    free = free_bytes(run.trainer.device)
    if free is not None and need > free:
        raise ValueError(
            f"the step must fit into the memory that is free, {free / MIB:,.0f} MiB: it needs at least {need / MIB:,.0f} MiB; "
            f"lower trainer.micro_batch={run.trainer.micro_batch}, model.seq_len or the model"
        )


def free_bytes(device: Device) -> int | None:
    """Memory that a new process can have; `None` where the system does not say. A container's limit counts as the machine's."""
    if device is Device.cuda:
        return torch.cuda.mem_get_info()[0]
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    except OSError:
        return None
    free = [int(found.group(1)) * 1024] if found else []
    try:
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no limit, or none that is written there
    return min(free) if free else None


def _ceilings(run: Run, compose: Composer, counted: Count, roof: Roof, found: dict[str, Any]) -> dict[str, Any]:
    say("counting what each option would do")
    size = found["vocab_size"]
    base = bounds.base_cost(run, counted, roof, part_ms(found))
    choices, costs = bounds.options(run, compose), []
    for option in choices:
        changed = count(option.run, vocab_size=size)
        costs.append((option, bounds.changed_cost(option, run, counted, changed, base, roof)))
    return {
        "table": bounds.table(base, costs, unattributed_ms=found["step"]["unattributed_ms"]),
        "by_length": bounds.order_by_length(run, choices, compose, roof, vocab_size=size),
    }


def _curve(run: Run, compose: Composer, lengths: list[int], size: int) -> list[dict[str, Any]]:
    say(f"measuring attention and a step at {', '.join(map(str, lengths))} tokens")
    quarter = max(1, lengths[0] // 4)
    window = min(first_window(run) or quarter, quarter)
    kinds = [words for factor, words in bounds.offered(run) if factor == "attention"]
    arms = {words[0].partition("=")[2]: partial(with_window, compose(words), window=window) for words in kinds}
    return curve(arms, lengths, vocab_size=size)
