"""nocap for programs and notebooks: compose a run, train it, load and compare records.

    from nocap import api

    api.train("model=nano", "attention=gqa", "seed=0")
    print(api.compare("outputs", baseline="attention=flash")["arms"])

Everything is as on the command line: a run that is done is not trained again, and each one trains
in a process of its own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from nocap.config import compose as composing
from nocap.config.outgoing_text import visible
from nocap.config.paths import expanded
from nocap.config.run import Run
from nocap.judge.question import Question
from nocap.report.flat_rows import rows
from nocap.store import runs
from nocap.store.record import Record
from nocap.store.runs import find_one

if TYPE_CHECKING:
    import pandas as pd

    from nocap.generation.sampling import Trained

__all__ = ["compare", "compose", "frame", "load", "load_model", "train"]

Paths = str | Path | Iterable[str | Path]


class TrainingError(RuntimeError):
    """A run failed. The message is its summary's `error`, its log is `train.log` in the run's
    folder."""


def compose(*what: str | DictConfig) -> Run:
    """Return the checked run of these overrides: `compose("model=nano", "attention=gqa",
    "seed=1").attention.n_kv_heads`. Or of one whole config, as `hydra.compose` or a run's
    `config.yaml` gives it, each part with its `kind`.

    Errors:
        ValueError: a wrong option, key, type or value, in one line.
    """
    if len(what) == 1 and isinstance(what[0], DictConfig):
        return composing.of_config(what[0])
    return composing.compose(map(str, what))


def train(*what: Run | str, quiet: bool = False) -> dict[str, Any]:
    """Train a run, given as overrides or as one `Run`, and return its summary: what `summary.json`
    holds.

    Losses are in nats per token, `clock_s` and `epoch_s` in seconds, `step_ms` in milliseconds,
    `memory_mib` in MiB. `status` is finished, diverged, or preempted after a signal such as Ctrl-C:
    the same call then goes on. With `quiet`, the run's output is in its log only. Call it from the
    main thread, as signals are handled there.

    Errors:
        ValueError: the input is invalid, or another process is training this run.
        TrainingError: the run failed.
    """
    from nocap.launch.attempt import bring_to_end
    from nocap.launch.plan import plan, typed_keys
    from nocap.store.record_files import RunStatus

    started = time.monotonic()
    choices: Mapping[str, str | None]
    if len(what) == 1 and isinstance(what[0], Run):
        run = what[0]
        choices = {place: option.kind for place, option in run.options()}
    else:
        composed = composing.composed([str(override) for override in what])
        run = composed.run
        choices = composed.choices
    planned = replace(plan(run, choices=choices), swept=typed_keys(run, map(str, what)))

    def log(line: str) -> None:
        if not quiet:
            print(line)

    ended = bring_to_end(planned, started=started, log=log, to_log=quiet)
    if ended.status is RunStatus.refused:
        raise ValueError(ended.reason)
    if ended.status is RunStatus.failed:
        raise TrainingError(ended.reason)
    return ended.summary


def load(paths: Paths = "outputs") -> list[Record]:
    """Return the records of runs: each with its config, summary, manifest and loss curve. A run
    counts once.

    A path is a run's folder, a folder of runs, a grid's folder, a glob, or a name, looked for in
    `outputs/runs`. A warning names each run that is left out because its record is damaged.

    Errors:
        ValueError: a path holds no run.
    """
    loaded = runs.load_runs(_several(paths))
    lines = [f"{name}: left out, {why}" for name, why in loaded.unreadable.items()]
    for line in [*lines, *loaded.problems]:
        warnings.warn(visible(line), stacklevel=2)
    return loaded.records


def frame(paths: Paths = "outputs") -> pd.DataFrame:
    """Return one row per run, swept config keys as columns, for a notebook.

    Errors:
        ValueError: a path holds no run.
        ModuleNotFoundError: there is no pandas.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a data frame needs pandas: type pip install 'pandas>=2'"
        ) from error
    return pd.DataFrame(rows(load(paths)))


def load_model(source: str | Path, *, device: str = "cpu") -> Trained:
    """Return the model of a run's newest checkpoint, or of a file that `nocap.export` wrote, in
    fp32 and ready to read: its `model`, `run`, `encoding` and `step`. `source` is the file, or a
    run's folder or name.

    Errors:
        ValueError: it is neither, or holds no valid model.
    """
    import torch

    from nocap.generation.sampling import load

    path = expanded(source)
    on_device = torch.device(device)
    if not path.is_file():
        path = find_one(str(source))

    def log(line: str) -> None:
        warnings.warn(line, stacklevel=3)

    return load(path, device=on_device, log=log)


def compare(
    paths: Paths = "outputs",
    *,
    baseline: str | None = None,
    target: float | None = None,
    allow: Collection[str] = (),
    group: str | None = None,
    against: str | None = None,
    cautious: bool | None = None,
    format: str | None = None,
    columns: str = "",
    names: str = "",
    hardware: str | None = None,
) -> dict[str, Any]:
    """Return the comparison of these runs, arm by arm: what `python -m nocap.compare --json`
    writes, without the records, from which such a file is judged again.

    `baseline` is an arm's label or id, one of its runs, or `key=value`. `target` is a validation
    loss in nats per token: the time to it is then compared as well. `allow` names differences to
    compare across: kernel, data, source, torch or a validation key. Of runs whose losses measure
    different things the largest group is compared, or that with the id `group`; `problems` names
    each other one. `against="previous"` compares each arm with the one before it in time.
    `cautious` gives losses the wide interval. A path can also be a log of another trainer, or a
    folder of such, as `format`, `columns` (`"step=iter,arm=attention+mlp"`), `names` and `hardware`
    say. Or it is such a file: its records are compared as it asks, but for what is given here, and
    `problems` names what it says and they do not.

    Errors:
        ValueError: a path holds no run and no log, no arm is the baseline, there is no such group,
            or two files cannot be joined.
    """
    from msgspec import structs

    from nocap.judge.comparison_json import result_of
    from nocap.judge.comparison_schema import to_json
    from nocap.sources.compare_paths import LogOptions, compare_paths

    question = Question(
        baseline=baseline,
        target=target,
        allow=tuple(allow) or None,
        against=against,
        cautious=cautious,
    )
    logged = LogOptions(format=format, columns=columns, names=names, hardware=hardware)
    several = [str(path) for path in _several(paths)]
    answer = compare_paths(several, question, group=group, logged=logged)
    result = result_of(answer.comparison)
    if answer.edited:
        problems = dict.fromkeys([*result.problems, *answer.lines])
        result = structs.replace(result, problems=list(problems))
    return to_json(result)


def _several(paths: Paths) -> Iterable[str | Path]:
    if isinstance(paths, str | Path):
        return [paths]
    return paths
