"""From a checked `Run` to a plan: its data, identity and folder. No torch here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.keys import flat, require
from nocap.config.override_keys import key_of
from nocap.config.paths import cache_root, expanded, private_caches
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Compile
from nocap.data.batches import train_windows, val_windows
from nocap.data.prepare import Dataset, prepare
from nocap.launch.earlier_runs import EarlierRun, checkpoint_of, init_checkpoint, located, teachers
from nocap.launch.run_folder import End, damage_notices, half_done_notices, read_end
from nocap.launch.seed_request import SeedRequest
from nocap.store.checkout import uncommitted
from nocap.store.identity import identity_parts
from nocap.store.record_files import digest
from nocap.store.runs import of_identity


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run that is ready to start: what it is and where it goes."""

    run: Run
    dataset: Dataset
    name: str
    arm: str
    identity_parts: dict[str, Any]  # what the identity is made of
    identity: str
    run_dir: Path
    init: EarlierRun | None = None  # what it begins from
    # what it learns from, by the option that does
    teachers: dict[str, EarlierRun] = field(default_factory=dict)
    # group → the name of the option, for people
    options: Mapping[str, str] = field(default_factory=dict)
    grid: str | None = None  # the grid that starts it
    swept: tuple[str, ...] = ()  # the groups and keys that set it apart from the runs beside it
    request: SeedRequest | None = None  # None: a command that asked for this run alone
    notices: tuple[str, ...] = ()  # what a person should know before it starts

    def end(self) -> End:
        """Return how some process has brought this run to its end, or that none has."""
        return read_end(self.run_dir, self.identity)


Datasets = dict[str, Dataset | ValueError]  # each source is prepared once, also the one that fails


def dataset_of(run: Run, known: Datasets) -> Dataset:
    """Return a run's data, prepared unless they are known.

    Errors:
        ValueError: they are invalid.
    """
    key = repr((run.data, run.tokenizer, run.cache_dir))
    if key not in known:
        try:
            known[key] = prepare(run.data, run.tokenizer, cache_dir=cache_root(run.cache_dir))
        except ValueError as error:
            known[key] = error
    dataset = known[key]
    if isinstance(dataset, ValueError):
        raise dataset
    return dataset


# bytes of a run's readable name: a file system takes 255, and the seed and the identity follow
LONGEST = 160


def plan(run: Run, *, choices: Mapping[str, str | None], datasets: Datasets | None = None) -> Plan:
    """Prepare the data unless it is among `datasets`, work out the identity, find the folder.
    Nothing is written but the data's cache.

    `choices` are the names of the options, for people to read.

    Errors:
        ValueError: the data, the compiler, the output directory, a teacher or the init checkpoint
            is invalid.
    """
    if datasets is None:
        datasets = Datasets()
    run = located_and_checked(run)
    dataset = dataset_of(run, datasets)
    _check_tokens(run, dataset)
    parts = identity_parts(run, data_fingerprint=dataset.fingerprint)
    finished = teachers(run)
    if finished:
        parts["teachers"] = {option: teacher.identity_part for option, teacher in finished.items()}
    init = init_checkpoint(run, parts)
    if init is not None:
        parts["init"] = init.identity_part
    identity = digest(parts)
    root = _root(run)
    run_dir = root / f"{_name(run, choices)}-s{run.seed}-{identity}"
    if not run_dir.exists():
        run_dir = of_identity(root, identity) or run_dir
    # the same run may have another readable name
    stem = run_dir.name.removesuffix(f"-s{run.seed}-{identity}")
    name = f"{stem}-s{run.seed}"
    of_arm = digest({**parts["config"], "seed": None})
    if run_dir.exists():
        notices = tuple(damage_notices(run_dir, identity))
    else:
        notices = tuple(half_done_notices(run, parts, root, name))
    return Plan(
        run=run,
        dataset=dataset,
        name=name,
        arm=f"{stem}-{of_arm[:6]}",
        identity_parts=parts,
        identity=identity,
        run_dir=run_dir,
        init=init,
        teachers=finished,
        options=_options(run, choices),
        notices=notices,
    )


def located_and_checked(run: Run) -> Run:
    """Locate the runs that a run names, and refuse what is refused whatever its data are.

    Errors:
        ValueError: the compiler, a tracker's environment, the output directory, a teacher or the
            init checkpoint is invalid.
    """
    check_compiler(run)
    has_diff = not run.store.diff or uncommitted() is not None
    rule = "be false if nocap does not run from a git checkout"
    require(has_diff, "store.diff", rule, run.store.diff)
    run.tracker.check_start()
    located_run = located(run)
    teachers(located_run)
    checkpoint_of(located_run)
    _root(located_run)
    return located_run


def _root(run: Run) -> Path:
    """Return the folder of all runs.

    Errors:
        ValueError: it cannot be written.
    """
    root = expanded(run.output_dir).absolute() / "runs"
    existing = next(part for part in (root, *root.parents) if part.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    require(writable, "output_dir", "be a folder that can be written", run.output_dir)
    return root


def _name(run: Run, choices: Mapping[str, str | None]) -> str:
    """Return a name for people."""
    parts = [
        choices.get("experiment") or choices.get("model"),
        *(choices.get(key) for key in ("attention", "mlp", "schedule", "optimizer")),
        ".".join(run.ideas),
    ]
    text = "-".join(part.replace("/", "_") for part in parts if part)
    return os.fsencode(text)[:LONGEST].decode(errors="ignore").rstrip("-._")


def _options(run: Run, choices: Mapping[str, str | None]) -> dict[str, str]:
    """Return the chosen options by name, those that change no number left out; ideas have commas
    between them."""
    groups = ["experiment"]
    groups += [f.name for f in fields(run) if f.metadata.get("identity", True)]
    options = dict[str, str]()
    for group in groups:
        name = choices.get(group)
        if name:
            options[group] = name
    options["ideas"] = ",".join(run.ideas) or "none"
    return options


def check_compiler(run: Run) -> None:
    """Refuse compilation on the CPU where there is no compiler, or where what is compiled would lie
    open."""
    private_caches()
    if run.trainer.compile is not Compile.off:
        hardware.check_compiler(f"trainer.compile={run.trainer.compile.value}", run.trainer.device)


def _check_documents(run: Run, dataset: Dataset) -> None:
    start = run.document_token
    keys = {"data.document_mask": run.data.document_mask, "position.restart": run.position.restart}
    for key, is_on in keys.items():
        if is_on and start is not None:
            holds = any(shard.holds(start) for shard in dataset.train)
            rule = f"be false with training data that lack token {start} (it begins a document)"
            require(holds, key, rule, True)


def _check_tokens(run: Run, dataset: Dataset) -> None:
    """Refuse data without a window, validation data with less than `trainer.val_tokens`, and
    documents of data in which none begins."""
    _check_documents(run, dataset)
    T = run.model.seq_len
    train_windows(run, dataset.train)
    available = val_windows(run, dataset.val).n * T
    micro_batch = run.trainer.micro_batch * T
    fits = available // micro_batch * micro_batch
    rule = (
        f"be at most {fits} (the validation data holds {available} tokens in windows of "
        f"model.seq_len={T}, and a micro-batch has {micro_batch} tokens)"
    )
    require(run.trainer.val_tokens <= available, "trainer.val_tokens", rule, run.trainer.val_tokens)


def typed_keys(run: Run, overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that a command line sets and that make another run, in its order; options are
    in the run's name already."""
    counted = dict(flat(run.that_count("identity", to_plain(run))))
    keys = map(key_of, overrides)
    return tuple(dict.fromkeys(key for key in keys if "." in key and key in counted))
