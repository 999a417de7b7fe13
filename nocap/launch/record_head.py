"""The head of a run's record, `config.yaml` and `manifest.json`, which an attempt writes before it
begins to train. No torch here."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nocap import __version__, outside
from nocap.config import hardware
from nocap.config.defaults import reasons
from nocap.config.keys import flat
from nocap.config.outgoing_text import redact
from nocap.config.paths import cache_root
from nocap.config.plain import dump, to_plain
from nocap.config.run import Run
from nocap.data.batches import target_bytes, val_windows
from nocap.data.prepare import Dataset
from nocap.data.tokenizer import token_bytes
from nocap.launch.earlier_runs import EarlierRun
from nocap.launch.leftovers import leftovers
from nocap.launch.plan import Plan
from nocap.launch.seed_request import SeedRequest
from nocap.row_keys import WALL, clock_key
from nocap.store import lease
from nocap.store.checkout import git_state, uncommitted
from nocap.store.file_writing import delete, write_file, write_text
from nocap.store.record_files import CONFIG, MANIFEST, ROWS, SUMMARY, read_json, write_json
from nocap.store.rows_file import RowsFile
from nocap.store.times import now

PACKAGES = ("numpy", "hydra-core", "omegaconf", "tiktoken", "safetensors", "wandb")


def write_record_head(plan: Plan, stage: Path | None = None) -> None:
    """Write `config.yaml` and `manifest.json` of this attempt. An older attempt's summary goes, so
    that what is read later is this one's.

    Errors:
        LostError: another process has taken over.
    """
    run_dir = plan.run_dir
    before = read_json(run_dir / MANIFEST) or {}
    content = manifest(plan, before.get("attempts") or [])  # takes a while
    lease.check(stage)
    (run_dir / SUMMARY).unlink(missing_ok=True)  # its digests are of the head before
    delete(leftovers(plan))
    config = dump(redact(to_plain(plan.run)))
    write_file(run_dir / CONFIG, config.encode(), stage=stage)
    write_json(run_dir / MANIFEST, content, stage=stage)
    if plan.run.store.diff:
        _write_diff(run_dir, stage)
    for file in plan.run.outside_files():
        _copy_option(file, run_dir)


def _write_diff(run_dir: Path, stage: Path | None) -> None:
    """Write the changes of nocap's code that are in no commit; nothing outside a git checkout."""
    changes = uncommitted()
    if changes is not None:
        write_file(run_dir / "uncommitted.diff", changes[1], stage=stage, mode=0o600)


def _copy_option(file: outside.File, run_dir: Path) -> None:
    """Copy an option from outside into the record, for a reader. It is imported from there only
    with --allow-code."""
    folder = run_dir / outside.COPIES / outside.place(file.group)
    for path in (file.path, file.path.with_suffix(".yaml")):
        if path.is_file():
            write_text(folder / path.name, path.read_text(errors="surrogateescape"))


# --- the manifest ---------------------------------------------------------------------------------


def manifest(plan: Plan, attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the identity is made of, and where, on what and from which code it is trained.
    `attempts` are the ones before this."""
    run = plan.run
    n_bytes, reason = _val_bytes(plan)
    attempt = _attempt(plan, attempts)
    # the keys by which its losses are comparable: who reads the record may not have its options
    measured = [key for key, _ in flat(run.that_count("losses", to_plain(run)))]
    init: dict[str, Any] | None = None
    if plan.init is not None:
        init = plan.init.record
    teachers = {option: teacher.record for option, teacher in plan.teachers.items()}
    data = _data(plan.dataset)
    data["val_bytes"] = n_bytes
    data["val_bytes_reason"] = reason
    return {
        "identity": plan.identity,
        "name": plan.name,
        "arm": plan.arm,
        "options": plan.options,
        "parts": plan.identity_parts,
        "defaults": reasons(run),
        "init": init,
        "teachers": teachers,
        "data": data,
        "hardware": _hardware(run),
        "versions": _versions(),
        "declared": _declared(run),
        "measured": measured,
        "outside": _outside(run),
        "git": git_state(),
        "attempts": [*attempts, attempt],
    }


def _attempt(plan: Plan, before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry of the attempt that begins now."""
    trainer = plan.run.trainer
    started = now()
    request = plan.request
    if request is None:
        request = SeedRequest(at=started, seeds=(plan.run.seed,))
    return {
        "started": started,
        "host": platform.node(),
        "devices": trainer.devices,
        "threads": trainer.threads,
        "spent_s": _spent_s(plan, before),
        "grid": plan.grid,
        "swept": plan.swept,
        "asked": request.json(),
    }


def _spent_s(plan: Plan, attempts: Sequence[Mapping[str, Any]]) -> float:
    """Return the wall-clock seconds of the attempts before this one, and of what the first began
    with: the init checkpoint, or a teacher's training. Those whose rows were cut back since count,
    too."""
    if attempts:
        recorded_s = attempts[-1].get("spent_s") or 0.0
    else:
        recorded_s = sum(earlier.seconds for earlier in _began_with(plan))
    logged_s = 0.0
    rows = RowsFile(plan.run_dir / ROWS).rows()
    if rows:
        logged_s = rows[-1].get(clock_key(WALL)) or 0.0
    summed_s = 0.0
    with suppress(ValueError):  # damaged, and named in the plan's notices
        summary = read_json(plan.run_dir / SUMMARY) or {}
        summed_s = (summary.get("clock_s") or {}).get("wall") or 0.0
    return max(recorded_s, logged_s, summed_s)


def _began_with(plan: Plan) -> Iterable[EarlierRun]:
    """Return the earlier runs whose time counts as this run's."""
    if plan.init is not None:
        return [plan.init]
    return plan.teachers.values()


def _data(dataset: Dataset) -> dict[str, Any]:
    """Return what a run reads."""
    train = [asdict(shard) for shard in dataset.train]
    val = [asdict(shard) for shard in dataset.val]
    return {
        "manifest": dataset.fingerprint,
        "source": dataset.source,
        "vocab_size": dataset.vocab_size,
        "train": train,
        "val": val,
    }


def _val_bytes(plan: Plan) -> tuple[int | None, str | None]:
    """Count the UTF-8 bytes of the text behind the validation targets, or say why they are
    unknown."""
    run = plan.run
    if not plan.dataset.source.get("text", True):
        return None, f"{run.data.kind} tokens stand for no text"
    try:
        encoding = run.tokenizer.load(cache_dir=cache_root(run.cache_dir))
    # shards were tokenized elsewhere: they can be trained on without the vocabulary
    except ValueError as error:
        print(f"no bits per byte: {error}", flush=True)
        return None, str(error)
    windows = val_windows(run, plan.dataset.val)
    n_bytes = target_bytes(windows, token_bytes(encoding), tokens=run.trainer.val_tokens)
    return n_bytes, None


def _hardware(run: Run) -> dict[str, hardware.Fact]:
    """Return the machine, and the allocator that the run has on it."""
    facts = hardware.describe(run.trainer.device, run.trainer.threads)
    return {**facts, "malloc": run.trainer.malloc.value}


def _versions() -> dict[str, str | None]:
    """Return package → version, without packages that are not installed: a GPU machine may have no
    network, and no W&B."""
    versions: dict[str, str | None] = {"nocap": __version__}
    versions["python"] = platform.python_version()
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    versions["torch"] = hardware.torch_build()["version"]
    return versions


def _declared(run: Run) -> dict[str, list[str]]:
    """Return what options say of themselves that a reader of the losses must know."""
    declared = dict[str, list[str]]()
    for name, option in run.options():
        words = list[str]()
        if option.causal is False:
            words.append("not causal")
        if option.random is True:
            words.append("random")
        if words:
            declared[name] = words
    return declared


def _outside(run: Run) -> list[Mapping[str, str]]:
    """Return the files from outside that the run uses."""
    files = list[Mapping[str, str]]()
    for file in run.outside_files():
        files.append({"group": file.group, "name": file.name, "sha256": file.sha256})
    return files
