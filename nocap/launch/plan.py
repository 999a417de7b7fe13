"""From a checked `Run` to a plan: its data, identity and folder. No torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.bounded import parse_yaml, read_text
from nocap.config.defaults import other_precision, reasons
from nocap.config.keys import require
from nocap.config.outward import redact
from nocap.config.paths import cache_root, expanded, private_caches
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Compile, Device, Precision
from nocap.data.batches import train_windows, val_windows
from nocap.data.prepare import Dataset, prepare
from nocap.display import plural
from nocap.launch.sources import Source, checkpoint_of, init_checkpoint, located, teachers
from nocap.store.checkpoints import any_sound as any_whole
from nocap.store.checkpoints import saved_steps
from nocap.store.identity import differing, digest, identity_parts, uncommitted
from nocap.store.metrics import now
from nocap.store.record import read_ended, read_json
from nocap.store.runs import of_identity

DAMAGED = (
    "damaged"  # the status of a run whose record was changed, and which no checkpoint makes again
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command that trains a run asked for: the seeds of the run's arm."""

    at: str  # when it began
    seeds: tuple[int, ...]
    place: int = 0  # of the arm among those of the command
    length_of: str | None = (
        None  # the arm whose loss at another length it is to show; None: it is its own
    )

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "seeds": list(self.seeds)}


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
    init: Source | None = None  # what it begins from
    teachers: dict[str, Source] = field(
        default_factory=dict
    )  # what it learns from, by the option that does
    options: Mapping[str, str] = field(
        default_factory=dict
    )  # group → the name of the option, for people
    grid: str | None = None  # the grid that starts it
    swept: tuple[str, ...] = ()  # the groups and keys that set it apart from the runs beside it
    asked: Asked | None = None  # None: a command that asked for this run alone
    notices: tuple[str, ...] = ()  # what a person should know before it starts


def seeds_asked(plans: Iterable[Plan]) -> dict[str, Asked]:
    """Arm → what the command that has these plans asks for, as it begins now."""
    at = now()
    seeds: dict[str, list[int]] = {}
    for each in plans:
        seeds.setdefault(each.arm, []).append(each.run.seed)
    return {
        arm: Asked(at=at, seeds=tuple(dict.fromkeys(of_arm)), place=place)
        for place, (arm, of_arm) in enumerate(seeds.items())
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """How a run ended, or that it did not."""

    # its `status`: finished, diverged, failed, preempted, refused, damaged, or waiting: not
    # started; `error`: why
    summary: dict[str, Any]
    trained: bool = False  # by this process, now
    signals: tuple[int, ...] = ()  # the requests to stop that came
    taken_over: bool = False  # while this process did not run: another one trains it

    @property
    def status(self) -> str:
        return str(self.summary["status"])

    @property
    def reason(self) -> str | None:
        return self.summary.get("error")


Datasets = dict[str, Dataset | ValueError]  # each source is prepared once, also the one that fails


def dataset_of(run: Run, known: Datasets) -> Dataset:
    key = repr((run.data, run.tokenizer, run.cache_dir))
    if key not in known:
        try:
            known[key] = prepare(run.data, run.tokenizer, cache_dir=cache_root(run.cache_dir))
        except ValueError as error:
            known[key] = error
    if isinstance(dataset := known[key], ValueError):
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
    run = without_data(run)
    dataset = dataset_of(run, Datasets() if datasets is None else datasets)
    _check_tokens(run, dataset)
    parts = identity_parts(run, data_fingerprint=dataset.fingerprint)
    if teacher_sources := teachers(run):
        parts["teachers"] = {option: teacher.part for option, teacher in teacher_sources.items()}
    if (init := init_checkpoint(run, parts)) is not None:
        parts["init"] = init.part
    identity = digest(parts)
    root = _root(run)
    run_dir = root / f"{_name(run, choices)}-s{run.seed}-{identity}"
    if not run_dir.exists():
        run_dir = of_identity(root, identity) or run_dir
    # the same run may have another readable name
    name = run_dir.name.removesuffix(f"-s{run.seed}-{identity}")
    arm, name = f"{name}-{digest({**parts['config'], 'seed': None})[:6]}", f"{name}-s{run.seed}"
    return Plan(
        run=run,
        dataset=dataset,
        name=name,
        arm=arm,
        parts=parts,
        identity=identity,
        run_dir=run_dir,
        init=init,
        teachers=teacher_sources,
        options=_options(run, choices),
        notices=tuple(
            _damage(run_dir, identity) if run_dir.exists() else _half_done(run, parts, root, name)
        ),
    )


def without_data(run: Run) -> Run:
    """Locate the runs that a run names, and refuse what is refused whatever its data are.

    Errors:
        ValueError: the compiler, a tracker's environment, the output directory, a teacher or the
            init checkpoint is invalid.
    """
    check_compiler(run)
    require(
        not run.store.diff or uncommitted() is not None,
        "store.diff",
        "be false where nocap runs from no git checkout",
        run.store.diff,
    )
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
    groups = ["experiment", *(f.name for f in fields(run) if f.metadata.get("identity", True))]
    options = {group: name for group in groups if (name := choices.get(group))}
    return {**options, "ideas": ",".join(run.ideas) or "none"}


def _damage(folder: Path, identity: str) -> Iterator[str]:
    """Yield a notice where the folder has an ended run's record that is not believed, and the last
    checkpoint makes it again."""
    try:
        damage = _read(folder, identity)[1]
    except ValueError:
        return  # it is this run's outcome
    if damage is not None:
        yield (
            f"{damage}: not believed; the run goes on from its last checkpoint, which makes its "
            f"record again"
        )


def _read(folder: Path, identity: str) -> tuple[dict[str, Any] | None, ValueError | None]:
    """Return the summary of a run that has ended, or why it is not believed.

    Errors:
        ValueError: it is not believed, and there is no checkpoint that could make it again; or the
            folder is another run's.
    """
    recorded = (read_json(folder / "manifest.json") or {}).get("identity", identity)
    require(
        recorded == identity,
        f"{folder}/manifest.json",
        f"be of the run in the folder's name, {identity}",
        recorded,
    )
    try:
        return read_ended(folder, identity=identity), None
    except ValueError as error:
        if not any_whole(folder):
            raise ValueError(
                f"{error}; there is no valid checkpoint to mend it from: move that folder to train "
                "the run again"
            ) from error
        return None, error


def _half_done(run: Run, parts: Mapping[str, Any], root: Path, name: str) -> Iterator[str]:
    """Yield a notice for each half-done run of the same arm, seed and paths that code, machine,
    threads or torch make another run.

    Errors:
        ValueError: it has other data: this run would start from scratch, and half a run would be
            lost unnoticed.
    """
    paths = {
        key: value
        for key, value in to_plain(run)["data"].items()
        if key not in parts["config"]["data"]
    }
    of_it = re.compile(rf"{re.escape(name)}-[0-9a-f]{{12}}")
    # unlike Path.glob, it does not pass over a folder that cannot be read
    names = os.listdir(root) if root.is_dir() else ()
    for folder in sorted(root / other for other in names if of_it.fullmatch(other)):
        if not (steps := saved_steps(folder)):
            continue
        try:
            manifest, config = (
                read_json(folder / "manifest.json") or {},
                parse_yaml(read_text(folder / "config.yaml")),
            )
            others, ended = manifest["parts"], read_ended(folder)
            same_paths = redact(paths) == {key: config["data"][key] for key in paths}
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not a record: nothing can be gone on with there
        differences = differing(others, parts)
        if ended is not None or not same_paths or "config" in differences:
            continue
        if {*differences} <= {"data", "code"} and "data" in differences:
            remedy = "put it back to resume, or move that folder to start from scratch"
            raise ValueError(
                f"data must be what {folder} began with ({others['data'][:12]}…), got "
                f"{parts['data'][:12]}…; {remedy}"
            )
        commit = ((manifest.get("git") or {}).get("commit") or "")[:12]
        back = f" (git checkout {commit})" if commit and "code" in differences else ""
        yield (
            f"{folder} is half done, at step {steps[0]}, and another run: what differs is "
            f"{', '.join(differences.values())}; "
            f"this command starts from scratch, and to go on with that run put that back{back} "
            "and give the command again"
        )


def check_compiler(run: Run) -> None:
    """Refuse compilation on the CPU where there is no compiler, or where what is compiled would lie
    open."""
    private_caches()
    if run.trainer.compile is not Compile.off:
        hardware.check_compiler(f"trainer.compile={run.trainer.compile.value}", run.trainer.device)


def _check_documents(run: Run, dataset: Dataset) -> None:
    start = run.document_start
    keys = {"data.document_mask": run.data.document_mask, "position.restart": run.position.restart}
    for key, is_on in keys.items():
        if is_on and start is not None:
            holds = any(shard.holds(start) for shard in dataset.train)
            rule = f"be false where the training data hold no {start}, with which a document begins"
            require(holds, key, rule, True)


def _check_tokens(run: Run, dataset: Dataset) -> None:
    """Refuse data without a window, validation data with less than `trainer.val_tokens`, and
    documents of data in which none begins."""
    _check_documents(run, dataset)
    T = run.model.seq_len
    train_windows(run, dataset.train)
    available = val_windows(run, dataset.val).n * T
    require(
        run.trainer.val_tokens <= available,
        "trainer.val_tokens",
        f"be at most the {available} that the validation data holds in windows of "
        f"model.seq_len={T}",
        run.trainer.val_tokens,
    )


def sound(plan: Plan) -> dict[str, Any] | None:
    """Return the summary of this run if it has come to its end: finished, or diverged, which it
    would do again. One that is damaged has not, where there is a checkpoint to go on from.

    Errors:
        ValueError: it is damaged, and there is none.
    """
    return _read(plan.run_dir, plan.identity)[0]


def outcome(plan: Plan) -> dict[str, Any] | None:
    """Return the same of one run among others: in place of the error the status `damaged`."""
    try:
        return sound(plan)
    except ValueError as error:
        return {"status": DAMAGED, "error": str(error)}


def nothing_to_train(plan: Plan, summary: Mapping[str, Any]) -> str:
    """Return a line about a run that has come to its end."""
    if summary["status"] == "finished":
        gone = sorted({*plan.run.trainer.keep_steps} - {*saved_steps(plan.run_dir)})
        return "already finished: nothing to train" + (
            f"; trainer.keep_steps: it has no checkpoint of {gone}" if gone else ""
        )
    return (
        "already diverged, which it would do again: nothing to train (to see it again, delete "
        "its folder)"
    )


def overruled(run: Run) -> list[str]:
    """Say that a variable of the environment does not count where the config has another number of
    threads: the threads are a part of the run's identity."""
    t = run.trainer
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if t.device is not Device.cpu or wanted in ("", str(t.threads)):
        return []
    return [f"OMP_NUM_THREADS={wanted} does not count: trainer.threads={t.threads} does"]


def headline(plan: Plan) -> str:
    """Return what a person reads before a run begins: notices; what it trains where; precision,
    compilation and on a GPU micro-batch and CUDA graphs, with the reason, or with what the default
    would be; and what may be faster."""
    t = plan.run.trainer
    where = f"{t.devices} × {hardware.device_name(t.device)}"
    if t.device is Device.cpu:
        where += f" with {plural(t.threads, 'thread')}, memory {t.malloc.value}"
    notes = [f"note: {notice}" for notice in (*plan.notices, *overruled(plan.run))]
    what = f"{plan.run_dir.name}: {t.steps:,} steps of {t.batch_tokens:,} tokens on {where}"
    why = reasons(plan.run)
    precision_line = _chosen("precision", t.precision.value, why["precision"])
    compile_line = _chosen("compile", t.compile.value, why["compile"])
    lines = [*notes, what, precision_line, *_to_try(plan.run), compile_line]
    if t.device is Device.cuda:
        lines.append(_chosen("micro_batch", str(t.micro_batch), why["micro_batch"]))
        lines.append(_chosen("cuda_graphs", str(t.cuda_graphs).lower(), why["cuda_graphs"]))
    return "\n".join(lines)


def _chosen(key: str, value: str, default: str) -> str:
    """Say what a run has of a key, beside the default and its reason, as in "fp32: this CPU has no
    AMX"."""
    if default.startswith(f"{value}: "):
        return f"{key} {default}"
    return f"{key} {value} (by default {default})"


def _to_try(run: Run) -> list[str]:
    """Say which precision may be faster than the run's, and give the command that measures it."""
    m = run.model
    other = other_precision(run.trainer.device, m)
    if other in (None, run.trainer.precision):
        return []
    shape = f"model.n_layer={m.n_layer} model.n_head={m.n_head} model.d_model={m.d_model}"
    arms = " ".join(f"--arm trainer.precision={each.value}" for each in Precision)
    return [
        f"  trainer.precision={other.value} may be faster here; this measures it:",
        f"  python -m nocap.bench {shape} model.seq_len={m.seq_len} {arms}",
    ]
