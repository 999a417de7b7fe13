"""From a checked `Run` to a plan: its data, identity and folder. No torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.keys import flat, require
from nocap.config.outgoing_text import redact
from nocap.config.paths import cache_root, expanded, private_caches
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Compile
from nocap.config.untrusted_files import parse_yaml, read_text
from nocap.data.batches import train_windows, val_windows
from nocap.data.prepare import Dataset, prepare
from nocap.launch.earlier_runs import EarlierRun, checkpoint_of, init_checkpoint, located, teachers
from nocap.store.checkpoints import any_sound, saved_steps
from nocap.store.identity import differing, digest, identity_parts, uncommitted
from nocap.store.metrics import now
from nocap.store.record_files import RunStatus, read_ended, read_json
from nocap.store.runs import of_identity


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedRequest:
    """The seeds of an arm that the command asks for that trains its runs."""

    at: str  # when the command began
    seeds: tuple[int, ...]
    position: int = 0  # of the arm among those of the command
    # the arm whose loss at another length it is to show; None: it is its own
    length_of: str | None = None

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> SeedRequest:
        """Read what `json` has written."""
        return cls(
            at=content["at"],
            seeds=tuple(content["seeds"]),
            position=content["place"],
            length_of=content["length_of"],
        )

    def json(self) -> dict[str, Any]:
        """Return the entry `asked` of a manifest and of `grid.json`."""
        return {
            "at": self.at,
            "seeds": list(self.seeds),
            "place": self.position,
            "length_of": self.length_of,
        }


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
    init: EarlierRun | None = None  # what it begins from
    # what it learns from, by the option that does
    teachers: dict[str, EarlierRun] = field(default_factory=dict)
    # group → the name of the option, for people
    options: Mapping[str, str] = field(default_factory=dict)
    grid: str | None = None  # the grid that starts it
    swept: tuple[str, ...] = ()  # the groups and keys that set it apart from the runs beside it
    request: SeedRequest | None = None  # None: a command that asked for this run alone
    notices: tuple[str, ...] = ()  # what a person should know before it starts


def seed_requests(plans: Iterable[Plan]) -> dict[str, SeedRequest]:
    """Return arm → what the command that has these plans asks for, as it begins now."""
    at = now()
    seeds: dict[str, list[int]] = {}
    for each in plans:
        seeds.setdefault(each.arm, []).append(each.run.seed)
    requests = dict[str, SeedRequest]()
    for position, (arm, of_arm) in enumerate(seeds.items()):
        distinct = tuple(dict.fromkeys(of_arm))
        requests[arm] = SeedRequest(at=at, seeds=distinct, position=position)
    return requests


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """How a run ended, or that it did not."""

    status: RunStatus
    reason: str | None = None  # why it did not end well
    summary: dict[str, Any] = field(default_factory=dict)  # of its record, where it has one
    trained: bool = False  # by this process, now
    signals: tuple[int, ...] = ()  # the requests to stop that came
    taken_over: bool = False  # while this process did not run: another one trains it

    @classmethod
    def of(cls, summary: dict[str, Any], *, trained: bool = False) -> RunResult:
        """Return how the run of this summary ended.

        Errors:
            ValueError: the summary has no status that nocap writes.
        """
        status = RunStatus(summary["status"])
        reason = summary.get("error")
        return cls(status=status, reason=reason, summary=summary, trained=trained)

    @classmethod
    def elsewhere(cls, reason: str) -> RunResult:
        """Return that a run goes on elsewhere, when this process leaves."""
        return cls(status=RunStatus.waiting, reason=reason, trained=True)


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
    run = without_data(run)
    dataset = dataset_of(run, datasets)
    _check_tokens(run, dataset)
    parts = identity_parts(run, data_fingerprint=dataset.fingerprint)
    finished = teachers(run)
    if finished:
        parts["teachers"] = {option: teacher.part for option, teacher in finished.items()}
    init = init_checkpoint(run, parts)
    if init is not None:
        parts["init"] = init.part
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
        notices = tuple(_damage(run_dir, identity))
    else:
        notices = tuple(_half_done(run, parts, root, name))
    return Plan(
        run=run,
        dataset=dataset,
        name=name,
        arm=f"{stem}-{of_arm[:6]}",
        parts=parts,
        identity=identity,
        run_dir=run_dir,
        init=init,
        teachers=finished,
        options=_options(run, choices),
        notices=notices,
    )


def without_data(run: Run) -> Run:
    """Locate the runs that a run names, and refuse what is refused whatever its data are.

    Errors:
        ValueError: the compiler, a tracker's environment, the output directory, a teacher or the
            init checkpoint is invalid.
    """
    check_compiler(run)
    has_diff = not run.store.diff or uncommitted() is not None
    rule = "be false where nocap runs from no git checkout"
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


def _damage(folder: Path, identity: str) -> Iterator[str]:
    """Yield a notice where the folder has an ended run's record that is not believed, and the last
    checkpoint makes it again."""
    try:
        damage = _read(folder, identity).damage
    except ValueError:
        return  # it is this run's outcome
    if damage is not None:
        yield (
            f"{damage}: not believed; the run goes on from its last checkpoint, which makes its "
            f"record again"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The end of a run, as its folder shows it. A run that has not ended has neither part."""

    summary: dict[str, Any] | None = None
    damage: ValueError | None = None  # why the summary is not believed


def _read(folder: Path, identity: str) -> End:
    """Return how the run in a folder has ended.

    Errors:
        ValueError: it is not believed, and there is no checkpoint that could make it again; or the
            folder is another run's.
    """
    manifest = read_json(folder / "manifest.json") or {}
    recorded = manifest.get("identity", identity)
    rule = f"be of the run in the folder's name, {identity}"
    require(recorded == identity, f"{folder}/manifest.json", rule, recorded)
    try:
        return End(summary=read_ended(folder, identity=identity))
    except ValueError as error:
        if not any_sound(folder):
            raise ValueError(
                f"{error}; there is no valid checkpoint to mend it from: move that folder to train "
                "the run again"
            ) from error
        return End(damage=error)


def _half_done(run: Run, parts: Mapping[str, Any], root: Path, name: str) -> Iterator[str]:
    """Yield a notice for each half-done run of the same arm, seed and paths that code, machine,
    threads or torch make another run.

    Errors:
        ValueError: it has other data: this run would start from scratch, and half a run would be
            lost unnoticed.
    """
    data = to_plain(run)["data"]
    counted_data = parts["config"]["data"]
    paths = {key: value for key, value in data.items() if key not in counted_data}
    for folder in _of_same_name(root, name):
        half = _half_run(folder, list(paths))
        if half is None or half.paths != redact(paths):
            continue
        steps = half.steps
        others = half.parts
        differences = differing(others, parts)
        if "config" in differences:
            continue
        if {*differences} <= {"data", "code"} and "data" in differences:
            remedy = "put it back to resume, or move that folder to start from scratch"
            raise ValueError(
                f"data must be those that {folder} began with ({others['data'][:12]}…), got "
                f"{parts['data'][:12]}…; {remedy}"
            )
        back = ""
        if half.commit and "code" in differences:
            back = f" (git checkout {half.commit})"
        yield (
            f"{folder} is half done, at step {steps[0]}, and is another run: they differ in "
            f"{', '.join(differences.values())}; "
            f"this command starts from scratch; to continue that run, put that back{back} and type "
            "the command again"
        )


def _of_same_name(root: Path, name: str) -> list[Path]:
    """List the folders of all runs with this readable name."""
    if not root.is_dir():
        return []
    pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{12}}")
    # unlike Path.glob, it does not pass over a folder that cannot be read
    names = [other for other in os.listdir(root) if pattern.fullmatch(other)]
    return sorted(root / other for other in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfRun:
    """A run that has a checkpoint, and has not ended."""

    steps: Sequence[int]  # of its checkpoints, the newest first
    parts: Mapping[str, Any]  # of its identity
    paths: Mapping[str, Any]  # of its data, by their keys
    commit: str  # of its code, 12 digits; empty: it is not known


def _half_run(folder: Path, path_keys: Sequence[str]) -> HalfRun | None:
    """Read the half-done run in a folder; None: it has ended, or nothing can be gone on with."""
    steps = saved_steps(folder)
    if not steps:
        return None
    try:
        manifest = read_json(folder / "manifest.json") or {}
        config = parse_yaml(read_text(folder / "config.yaml"))
        parts = manifest["parts"]
        has_ended = read_ended(folder) is not None
        paths = {key: config["data"][key] for key in path_keys}
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not a record
    if has_ended:
        return None
    git = manifest.get("git") or {}
    commit = (git.get("commit") or "")[:12]
    return HalfRun(steps=steps, parts=parts, paths=paths, commit=commit)


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
    micro_batch = run.trainer.micro_batch * T
    fits = available // micro_batch * micro_batch
    rule = (
        f"be at most {fits}: the validation data holds {available} tokens in windows of "
        f"model.seq_len={T}, and a micro-batch has {micro_batch}"
    )
    require(run.trainer.val_tokens <= available, "trainer.val_tokens", rule, run.trainer.val_tokens)


def sound(plan: Plan) -> dict[str, Any] | None:
    """Return the summary of this run if it has come to its end: finished, or diverged, which it
    would do again. One that is damaged has not, where there is a checkpoint to go on from.

    Errors:
        ValueError: it is damaged, and there is none.
    """
    return _read(plan.run_dir, plan.identity).summary


def outcome(plan: Plan) -> RunResult | None:
    """Return how a run among others has come to its end; None: it has not. One that is damaged, and
    that no checkpoint makes again, is no error here."""
    try:
        summary = sound(plan)
    except ValueError as error:
        return RunResult(status=RunStatus.damaged, reason=str(error))
    if summary is None:
        return None
    return RunResult.of(summary)


def typed_keys(run: Run, overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that a command line sets and that make another run, in its order; options are
    in the run's name already."""
    counted = dict(flat(run.that_count("identity", to_plain(run))))
    keys = [override.lstrip("+").partition("=")[0] for override in overrides]
    return tuple(dict.fromkeys(key for key in keys if "." in key and key in counted))
