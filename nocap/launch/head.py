"""The head of a run's record: `config.yaml` and `manifest.json`, what a killed attempt left in its
place, and what trackers are told of the run. No torch here."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nocap import __version__, outside
from nocap.config import hardware
from nocap.config.defaults import reasons
from nocap.config.keys import flat
from nocap.config.outward import redact
from nocap.config.paths import cache_root
from nocap.config.plain import dump, to_plain
from nocap.config.run import Run
from nocap.config.trainer import Trainer
from nocap.data.batches import target_bytes, val_windows
from nocap.data.tokenizer import token_bytes
from nocap.judge.arms import arm_key, spell
from nocap.judge.labels import short_keys
from nocap.launch.plan import Asked, Plan
from nocap.options.tracker import RunFacts
from nocap.store import lease
from nocap.store.checkpoints import FOLDER, delete, is_folder, newest_first, step_of, unfinished
from nocap.store.files import write_file, write_text
from nocap.store.identity import git_state, uncommitted
from nocap.store.metrics import moment, now
from nocap.store.record import Metrics, read_json, write_json

RANKS = ".ranks"  # where a run's ranks find each other: a folder that nobody else can enter
COPIES = "options"  # a record's copies of the options from outside, as a folder for --config-dir


def use_copies(run_dir: Path) -> None:
    """Run the options from outside of which a run's record holds copies, if it does. It is
    somebody's code: a person has to allow it."""
    if (run_dir / COPIES).is_dir():
        outside.use([run_dir / COPIES])


def write_record_head(plan: Plan, stage: Path | None = None) -> None:
    """`config.yaml` and `manifest.json` of this attempt. An older attempt's summary goes, so that
    what is read later is this one's.

    Errors:
        LostError: another process has taken over.
    """
    # takes a while
    made = manifest(plan, (read_json(plan.run_dir / "manifest.json") or {}).get("attempts") or [])
    lease.check(stage)
    (plan.run_dir / "summary.json").unlink(missing_ok=True)  # its digests are of the head before
    delete(leftovers(plan))
    write_file(plan.run_dir / "config.yaml", dump(redact(to_plain(plan.run))).encode(), stage=stage)
    write_json(plan.run_dir / "manifest.json", made, stage=stage)
    if plan.run.store.diff and (changed := uncommitted()) is not None:
        write_file(plan.run_dir / "uncommitted.diff", changed[1], stage=stage, mode=0o600)
    for file in (
        plan.run.outside_files()
    ):  # a copy to read. It is imported from here only with --allow-code.
        for path in (file.path, file.path.with_suffix(".yaml")):
            if path.is_file():
                write_text(
                    plan.run_dir / COPIES / outside.place(file.group) / path.name,
                    path.read_text(errors="surrogateescape"),
                )


def leftovers(plan: Plan) -> list[Path]:
    """Return what killed processes left of this run: half-written files and checkpoints, and the
    folder of its ranks."""
    ranks = plan.run_dir / RANKS
    return [
        *unfinished(plan.run_dir),
        *unfinished(plan.run_dir / FOLDER),
        *([ranks] if is_folder(ranks) else []),
    ]


def keeps_last(manifest: Mapping[str, Any], trainer: Trainer) -> bool:
    """Say whether the weights of a run's last step stay. Those of a grid's cell stay only where
    `trainer.keep_steps` has that step: a large grid would fill a disk."""
    return manifest["attempts"][-1].get("grid") is None or trainer.steps in trainer.keep_steps


def surplus_checkpoints(plan: Plan) -> list[Path]:
    """List the checkpoints of an ended run that nobody asked for."""
    manifest, t = read_json(plan.run_dir / "manifest.json"), plan.run.trainer
    if manifest is None or keeps_last(manifest, t):
        return []
    saved = newest_first(plan.run_dir / FOLDER)
    return [path for path in saved if is_folder(path) and step_of(path) not in t.keep_steps]


def _spent_s(plan: Plan, attempts: list[dict[str, Any]]) -> float:
    """Wall-clock seconds of the attempts before this one, and of what the first began with: the
    init checkpoint, or a teacher's training. Those whose rows were cut back since count, too."""
    rows = Metrics(plan.run_dir / "metrics.jsonl").rows()
    try:
        summary = read_json(plan.run_dir / "summary.json") or {}
    except ValueError:  # damaged, and named in the plan's notices
        summary = {}
    begun_s = (
        plan.init.seconds
        if plan.init is not None
        else sum(teacher.seconds for teacher in plan.teachers.values())
    )
    return max(
        (attempts[-1].get("spent_s") or 0.0) if attempts else begun_s,
        (rows[-1].get("clock/wall_s") or 0.0) if rows else 0.0,
        (summary.get("clock_s") or {}).get("wall") or 0.0,
    )


def _versions() -> dict[str, str]:
    """Return package → version, without packages that are not installed: a GPU machine may have no
    network, and no W&B."""
    versions = {}
    for package in ("numpy", "hydra-core", "omegaconf", "tiktoken", "safetensors", "wandb"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def manifest(plan: Plan, attempts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the identity is made of, and where, on what and from which code it is trained.
    `attempts` are the ones before this."""
    t = plan.run.trainer
    n_bytes, reason = _val_bytes(plan)
    started = now()
    asked = plan.asked or Asked(at=started, seeds=(plan.run.seed,))
    attempt = {
        "started": started,
        "host": platform.node(),
        "devices": t.devices,
        "threads": t.threads,
        "spent_s": _spent_s(plan, attempts),
        "grid": plan.grid,
        "swept": plan.swept,
        "asked": asked.json(),
    }
    return {
        "identity": plan.identity,
        "name": plan.name,
        "arm": plan.arm,
        "options": plan.options,
        "parts": plan.parts,
        "defaults": reasons(plan.run),
        "init": plan.init.record if plan.init is not None else None,
        "teachers": {option: teacher.record for option, teacher in plan.teachers.items()},
        "data": {
            "manifest": plan.dataset.fingerprint,
            "source": plan.dataset.source,
            "vocab_size": plan.dataset.vocab_size,
            "train": [asdict(shard) for shard in plan.dataset.train],
            "val": [asdict(shard) for shard in plan.dataset.val],
            "val_bytes": n_bytes,
            "val_bytes_reason": reason,
        },
        "hardware": {**hardware.describe(t.device, t.threads), "malloc": t.malloc.value},
        "versions": {"nocap": __version__, "python": platform.python_version(), **_versions()}
        | {"torch": hardware.torch_build()["version"]},
        "declared": {
            name: [
                word
                for word, says in (
                    ("not causal", option.causal is False),
                    ("random", option.random is True),
                )
                if says
            ]
            for name, option in plan.run.options()
            if option.causal is False or option.random is True
        },
        # the keys by which its losses are comparable: who reads the record may not have its options
        "measured": [key for key, _ in flat(plan.run.that_count("losses", to_plain(plan.run)))],
        "outside": [
            {"group": file.group, "name": file.name, "sha256": file.sha256}
            for file in plan.run.outside_files()
        ],
        "git": git_state(),
        "attempts": [*attempts, attempt],
    }


def _val_bytes(plan: Plan) -> tuple[int | None, str | None]:
    """UTF-8 bytes of the text behind the validation targets, or why they are unknown."""
    if not plan.dataset.source.get("text", True):
        return None, f"{plan.run.data.kind} tokens stand for no text"
    try:
        encoding = plan.run.tokenizer.load(cache_dir=cache_root(plan.run.cache_dir))
    # shards were tokenized elsewhere: they can be trained on without the vocabulary
    except ValueError as error:
        print(f"no bits per byte: {error}", flush=True)
        return None, str(error)
    return target_bytes(
        val_windows(plan.run, plan.dataset.val),
        token_bytes(encoding),
        tokens=plan.run.trainer.val_tokens,
    ), None


# --- what trackers are told -----------------------------------------------------------------------


def run_facts(
    config: Mapping[str, Any],
    run_dir: Path,
    manifest: Mapping[str, Any],
    *,
    params: Mapping[str, int] | None = None,
) -> RunFacts:
    """Return what a tracker is to know, from a run's config, as its record has it, its manifest,
    and the numbers of its parameters."""
    attempt, options = manifest["attempts"][-1], manifest["options"]
    seed = int(config["seed"])
    grid = attempt.get("grid")
    values = dict(flat(config))
    swept = {
        key: options.get(key, values.get(key))
        for key in attempt.get("swept") or ()
        if key in options or key in values
    }
    short = short_keys(list(swept))
    words = [
        str(value) if key in options and value != "none" else f"{short[key]}={spell(value)}"
        for key, value in swept.items()
        if key != "seed"
    ]
    if grid is None or not words:
        words = [str(manifest.get("name") or run_dir.name).removesuffix(f"-s{seed}"), *words]
    arm = " ".join(words)
    own = dict(flat(redact(manifest["parts"]["config"])))
    own.pop("seed", None)
    return RunFacts(
        identity=manifest["identity"],
        name=f"{arm} s{seed}",
        arm=arm,
        arm_id=arm_key(own, manifest["parts"]),
        seed=seed,
        run_dir=run_dir,
        config=config,
        group=grid,
        tags=(
            arm,
            *(f"{group}={name}" for group, names in options.items() for name in names.split(",")),
        ),
        options=options,
        swept={short[key]: value for key, value in swept.items()},
        counted=dict(flat(manifest["parts"]["config"])),
        about=_about(manifest, params),
        born=born(manifest),
        attempts=tuple(_starts(manifest["attempts"])),
    )


def born(manifest: Mapping[str, Any]) -> str:
    """Return when and where a run's first attempt started, which another training of the same
    config does not share."""
    first = manifest["attempts"][0]
    return f"{first.get('started')} {first.get('host')}"


def _about(manifest: Mapping[str, Any], params: Mapping[str, int] | None) -> dict[str, Any]:
    """Return the code, the machine and the parameters of a run."""
    commit = (manifest["git"] or {}).get("commit")
    found = {"commit": commit, "hardware": manifest["hardware"], "params": params or {}}
    return {name: value for name, value in flat(found) if value is not None}


def _starts(attempts: Iterable[Mapping[str, Any]]) -> Iterator[tuple[float, float]]:
    """Yield when each attempt started, and the seconds that the run had spent by then."""
    for attempt in attempts:
        if (at := moment(str(attempt.get("started")))) is not None:
            yield at, attempt.get("spent_s") or 0.0


def typed_keys(run: Run, overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that a command line sets and that make another run, in its order; options are
    in the run's name already."""
    counted = dict(flat(run.that_count("identity", to_plain(run))))
    keys = [override.lstrip("+").partition("=")[0] for override in overrides]
    return tuple(dict.fromkeys(key for key in keys if "." in key and key in counted))
