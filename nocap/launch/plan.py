"""From a checked `Run` to a plan and the head of its record: data, identity, folder. This side never imports torch."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from nocap import __version__, outside
from nocap.config import hardware
from nocap.config.compose import dump, to_plain
from nocap.config.keys import require
from nocap.config.paths import PACKAGE, cache_root
from nocap.config.run import Run
from nocap.config.trainer import Compile, Device
from nocap.data.batches import target_bytes, train_windows, val_windows
from nocap.data.prepare import Dataset, prepare
from nocap.data.tokenizer import token_bytes
from nocap.launch.init_checkpoint import InitCheckpoint, init_checkpoint
from nocap.store.files import write_file
from nocap.store.identity import digest, identity_parts
from nocap.store.record import Metrics, read_json, write_json
from nocap.store.secrets import redact

COPIES = "options"  # a record's copies of the options from outside, as a folder for --config-dir


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run that is ready to start: what it is and where it goes."""

    run: Run
    dataset: Dataset
    name: str
    arm: str
    parts: dict[str, Any]
    identity: str
    run_dir: Path
    init: InitCheckpoint | None = None  # what it begins from
    grid: str | None = None  # the grid that starts it
    notices: tuple[str, ...] = ()  # what a person should know before it starts


def plan(run: Run, *, choices: Mapping[str, str | None], dataset: Dataset | None = None) -> Plan:
    """Prepare the data unless `dataset` is it, work out the identity, find the folder. Nothing is written but the data's cache.

    `choices` are the names of the options, for people to read.

    Errors:
        ValueError: the data, the compiler, the output directory or the init checkpoint is invalid.
    """
    check_compiler(run)
    dataset = dataset or prepare(run.data, run.tokenizer, cache_dir=cache_root(run.cache_dir))
    _check_tokens(run, dataset)
    parts_of_name = [
        choices.get("experiment") or choices.get("model"),
        *(choices.get(key) for key in ("attention", "mlp", "schedule", "optimizer")),
        ".".join(run.ideas),
    ]
    name = "-".join(part.replace("/", "_") for part in parts_of_name if part)
    parts = identity_parts(run, data_fingerprint=dataset.fingerprint)
    if (init := init_checkpoint(run, parts)) is not None:
        parts["init"] = init.part
    identity = digest(parts)
    arm = f"{name}-{digest({**parts['config'], 'seed': None})[:6]}"
    name = f"{name}-s{run.seed}"
    root = Path(run.output_dir).expanduser().absolute() / "runs"
    _check_writable(root, run.output_dir)
    existing = sorted(root.glob(f"*-{identity}"))  # the same run under another readable name
    run_dir = existing[0] if existing else root / f"{name}-{identity}"
    notices = () if existing else tuple(_half_done(run, parts, sorted(root.glob(f"{name}-*"))))
    return Plan(run=run, dataset=dataset, name=name, arm=arm, parts=parts, identity=identity, run_dir=run_dir, init=init, notices=notices)


def _check_writable(folder: Path, configured: str) -> None:
    """The folder, or the part of its path that exists, must take new files."""
    existing = next(part for part in (folder, *folder.parents) if part.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = "Permission denied" if existing.is_dir() else "Not a directory"
        raise ValueError(f"output_dir must be a folder that can be written, got {configured} ({reason})")


def _half_done(run: Run, parts: Mapping[str, Any], folders: Iterable[Path]) -> Iterator[str]:
    """A notice for each half-done run of the same config, paths and environment but under other code.

    Errors:
        ValueError: it has other data: this run would start from scratch, and half a run would be lost unnoticed.
    """
    paths = {key: value for key, value in to_plain(run)["data"].items() if key not in parts["config"]["data"]}
    apart = {"data": None, "source": None}
    for folder in folders:
        try:
            manifest, config = read_json(folder / "manifest.json"), yaml.safe_load((folder / "config.yaml").read_text())
            same = manifest is not None and {**manifest["parts"], **apart} == {**parts, **apart}
            same = same and redact(paths, os.environ) == {key: config["data"][key] for key in paths}
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
            continue  # not a record: nothing was begun there
        if not same or manifest is None or _ended(folder) or not any(folder.glob("checkpoints/step-*")):
            continue
        was, now = manifest["parts"]["data"][:12], parts["data"][:12]
        if was != now:
            remedy = "put it back to resume, or move that folder to start from scratch"
            raise ValueError(f"data must be what {folder} began with ({was}…), got {now}…; {remedy}")
        yield _under_other_code(folder, manifest, parts)


def _under_other_code(folder: Path, manifest: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """What changed since that run began, and how to go on with it."""
    was, now = manifest["parts"]["source"], parts["source"]
    changed = [module for module in dict.fromkeys([*was, *now]) if was.get(module) != now.get(module)]
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    commit = ((manifest.get("git") or {}).get("commit") or "")[:12]
    step = max(path.name.removeprefix("step-").lstrip("0") or "0" for path in folder.glob("checkpoints/step-*"))
    back = f"put that code back (git checkout {commit})" if commit else "put that code back"
    return (
        f"{folder} is half done, at step {step}, under other code: changed since are {', '.join(changed[:3])}{more}; "
        f"this command starts from scratch, and to go on with that run {back} and give the command again"
    )


def check_compiler(run: Run) -> None:
    """Refuse compilation on the CPU where there is no compiler."""
    if run.trainer.compile is not Compile.off:
        hardware.check_compiler(f"trainer.compile={run.trainer.compile.value}", run.trainer.device)


def _check_tokens(run: Run, dataset: Dataset) -> None:
    """The data must hold a window, and the validation data all of `trainer.val_tokens`."""
    T = run.model.seq_len
    train_windows(run, dataset.train)
    available = val_windows(run, dataset.val).n * T
    require(
        run.trainer.val_tokens <= available,
        "trainer.val_tokens",
        f"be at most the {available} that the validation data holds in windows of model.seq_len={T}",
        run.trainer.val_tokens,
    )


def outcome(plan: Plan) -> dict[str, Any] | None:
    """The summary of this run if it has come to its end: finished, or diverged, which it would do again."""
    return _ended(plan.run_dir)


def _ended(run_dir: Path) -> dict[str, Any] | None:
    summary = read_json(run_dir / "summary.json")
    return summary if summary is not None and summary.get("status") in ("finished", "diverged") else None


def nothing_to_train(plan: Plan, summary: Mapping[str, Any]) -> str:
    """A line about a run that has come to its end."""
    if summary["status"] == "finished":
        kept = {path.name for path in plan.run_dir.glob("checkpoints/step-*")}
        gone = [step for step in plan.run.trainer.keep_steps if f"step-{step:08d}" not in kept]
        return "already finished: nothing to train" + (f"; trainer.keep_steps: it has no checkpoint of {gone}" if gone else "")
    return "already diverged, which it would do again: nothing to train (to see it again, delete its folder)"


def headline(plan: Plan) -> str:
    """What was chosen for this machine, in a line."""
    t = plan.run.trainer
    where = f"{t.devices} × {hardware.device_name(t.device)}" + (f", {t.threads} thread(s) each" if t.device is Device.cpu else "")
    return f"{plan.run_dir.name}: {where}, {t.precision.value}, compile {t.compile.value}"


def write_record_head(plan: Plan) -> None:
    """`config.yaml` and `manifest.json` of this attempt. An older attempt's summary goes, so that what is read later is this one's."""
    config = redact(to_plain(plan.run), os.environ)
    write_file(plan.run_dir / "config.yaml", dump(config).encode())
    attempts = (read_json(plan.run_dir / "manifest.json") or {}).get("attempts", [])
    write_json(plan.run_dir / "manifest.json", manifest(plan, attempts))
    for file in outside_files(plan.run):  # a copy to read. It is imported from here only with --allow-code.
        for path in (file.path, file.path.with_suffix(".yaml")):
            if path.is_file():
                write_file(plan.run_dir / COPIES / outside.place(file.group) / path.name, path.read_bytes())
    (plan.run_dir / "summary.json").unlink(missing_ok=True)


def outside_files(run: Run) -> list[outside.File]:
    """The files from outside that this run's options are made of."""
    return outside.used({cls.__module__ for _, option in run.options() for cls in type(option).__mro__})


def _spent_s(plan: Plan, attempts: list[dict[str, Any]]) -> float:
    """Wall-clock seconds of the attempts before this one and of the init checkpoint, also those whose rows were cut back since."""
    rows = Metrics(plan.run_dir / "metrics.jsonl").rows()
    summary = read_json(plan.run_dir / "summary.json")
    return max(
        attempts[-1]["spent_s"] if attempts else plan.init.clock_s if plan.init is not None else 0.0,
        rows[-1]["clock/wall_s"] if rows else 0.0,
        summary["clock_s"]["wall"] if summary is not None else 0.0,
    )


def manifest(plan: Plan, attempts: list[dict[str, Any]]) -> dict[str, Any]:
    """What the identity is made of, and where, on what and from which code it is trained. `attempts` are the ones before this."""
    t = plan.run.trainer
    n_bytes, reason = _val_bytes(plan)
    attempt = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "devices": t.devices,
        "threads": t.threads,
        "spent_s": _spent_s(plan, attempts),
        "grid": plan.grid,
    }
    return {
        "identity": plan.identity,
        "name": plan.name,
        "arm": plan.arm,
        "parts": plan.parts,
        "init": redact(plan.init.record, os.environ) if plan.init is not None else None,
        "data": {
            "manifest": plan.dataset.fingerprint,
            "source": plan.dataset.source,
            "vocab_size": plan.dataset.vocab_size,
            "train": [asdict(shard) for shard in plan.dataset.train],
            "val": [asdict(shard) for shard in plan.dataset.val],
            "val_bytes": n_bytes,
            "val_bytes_reason": reason,
        },
        "hardware": hardware.describe(t.device, t.threads),
        "versions": {"nocap": __version__, "python": platform.python_version()}
        | {package: version(package) for package in ("numpy", "hydra-core", "omegaconf", "tiktoken", "safetensors", "wandb")}
        | {"torch": hardware.torch_build()["version"]},
        "outside": [{"group": file.group, "name": file.name, "sha256": file.sha256} for file in outside_files(plan.run)],
        "git": git_state(),
        "attempts": [*attempts, attempt],
    }


def _val_bytes(plan: Plan) -> tuple[int | None, str | None]:
    """UTF-8 bytes of the text behind the validation targets, or why they are unknown."""
    if not plan.dataset.source.get("text", True):
        return None, f"{plan.run.data.kind} tokens stand for no text"
    try:
        encoding = plan.run.tokenizer.load(cache_dir=cache_root(plan.run.cache_dir))
    except ValueError as error:  # shards were tokenized elsewhere: they can be trained on without the vocabulary
        print(f"no bits per byte: {error}", flush=True)
        return None, str(error)
    return target_bytes(val_windows(plan.run, plan.dataset.val), token_bytes(encoding), tokens=plan.run.trainer.val_tokens), None


def git_state() -> dict[str, str] | None:
    """Commit and uncommitted changes of the checkout that nocap runs from; `None` for an installed package."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        commit, diff = (
            subprocess.run(["git", "-C", str(PACKAGE.parent), *command], capture_output=True, text=True, check=True, timeout=10).stdout
            for command in (["rev-parse", "HEAD"], ["diff", "HEAD", "--", "nocap", "conf"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.strip(), "diff": diff}
