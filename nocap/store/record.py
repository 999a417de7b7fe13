"""`Record`: a run as its folder has it, with its settings, validations, machine and measurements.
The log of another trainer becomes one, too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from nocap.config.keys import flat, require
from nocap.config.outgoing_text import redact
from nocap.metrics import METRICS, OF_A_RUN
from nocap.row_keys import STEP_MS, TRAIN_LINES, VAL_BPB, VAL_LOSS, WALL, clock_key
from nocap.store.json_shapes import filled
from nocap.store.measurement import Ending, Measurement
from nocap.store.record_files import ENDED, MANIFEST, ROWS, SHAPES, SUMMARY, RunStatus, check_record
from nocap.store.rows_file import Row, RowsFile
from nocap.store.times import moment

UNKNOWN = "unknown"  # a machine
Config = Mapping[str, Any]  # of a run, without the seed: key with dots → a value of YAML
Parts = Mapping[str, Any]  # of an identity
SYSTEM = "system"  # trainer.malloc of records that do not have it


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Hold the validations of a run. `train_s` is training, its waits for data and a teacher's
    training up to that step, nothing else."""

    step: list[int] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    train_s: list[float | None] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_bpb: list[float | None] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Say where a run was timed, and how its memory was allocated."""

    fingerprint: str  # of the hardware
    devices: int
    malloc: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Hold a run as its folder has it. Manifest and summary have every object and list of `SHAPES`,
    an empty one where there is none."""

    folder: Path
    identity: str
    name: str
    arm: str
    seed: int
    status: str  # a `RunStatus`, or what the log of another trainer says
    started: str  # of the first attempt, as the manifest has it
    config: dict[str, Any]  # flat, without the seed
    parts: Parts
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    curve: Curve
    # the arm whose loss at another length it shows, by the command that asked for it; None: it is
    # its own
    length_of: str | None = None

    def __post_init__(self) -> None:
        for name, file in {"manifest": MANIFEST, "summary": SUMMARY}.items():
            object.__setattr__(self, name, filled(getattr(self, name), SHAPES[file]))

    def number(self, *keys: str) -> float | None:
        """Return a number of the summary, by its path; None where it was not measured."""
        return number(dig(self.summary, *keys))

    def value(self, metric: str) -> float | None:
        """Return the run's measurement of a metric, in the metric's unit."""
        if metric == "train_s":
            return self.train_s
        return self.number(*METRICS[metric].path)

    @property
    def val_loss(self) -> float | None:
        return self.value("val_loss")

    @property
    def train_s(self) -> float | None:
        """Return the seconds of training, with its waits for data and a teacher's training."""
        if not self.clock_s:
            return None
        return sum(self.clock_s.get(line) or 0.0 for line in TRAIN_LINES)

    @property
    def clock_s(self) -> Mapping[str, float | None]:
        """Return the seconds of each line of the clock, and of their sum."""
        return cast(Mapping[str, float | None], self.summary["clock_s"])

    @property
    def wall_s(self) -> float | None:
        """Return the seconds of all attempts."""
        return self.number("clock_s", WALL)

    @property
    def steps(self) -> int | None:
        """Return the steps that were trained; None: there is no summary, or it does not say it."""
        return cast(int | None, self.summary.get("steps"))

    @property
    def tokens(self) -> int | None:
        """Return the tokens that were trained on; None as for `steps`."""
        return cast(int | None, self.summary.get("tokens"))

    @property
    def kernel(self) -> str | None:
        """Return the attention kernel of the training."""
        return cast(str | None, self.summary["kernel"].get("train"))

    @property
    def options(self) -> Mapping[str, str]:
        """Return the option that was chosen in each group."""
        return cast(Mapping[str, str], self.manifest["options"])

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the version of nocap, and of each library that it ran with."""
        return cast(Mapping[str, str], self.manifest["versions"])

    @property
    def commit(self) -> str:
        """Return the commit of nocap's checkout, in 12 digits; empty where there was none."""
        return str(self.manifest["git"].get("commit") or "")[:12]

    @property
    def has_changes(self) -> bool:
        """Say whether the checkout was not as its commit has it."""
        return bool(self.manifest["git"].get("diff_sha256"))

    @property
    def torch(self) -> str:
        """Return the version of torch that trained it."""
        return str(dig(self.parts, "environment", "torch"))

    @property
    def source(self) -> Mapping[str, str]:
        """Return the hash of each module that computes its numbers."""
        return self.parts.get("source") or {}

    @property
    def data_hash(self) -> str | None:
        """Return the hash of its data, and of how they are read."""
        return cast(str | None, self.parts.get("data"))

    @property
    def when(self) -> tuple[float, int, float, str]:
        """Return what sorts runs, in whatever order they are listed: when a command asked for it,
        where that command had its arm, and when it was started."""
        request = self.attempts[0]["asked"]
        started = moment(self.started)
        if started is None:
            started = -math.inf
        requested = moment(request.get("at") or "")
        if requested is None:
            requested = started
        return requested, request.get("place") or 0, started, self.folder.name

    @property
    def attempts(self) -> Sequence[Mapping[str, Any]]:
        """Return the attempts, the first one first."""
        return cast(Sequence[Mapping[str, Any]], self.manifest["attempts"])

    @property
    def attempt(self) -> Mapping[str, Any]:
        """Return the last attempt."""
        return self.attempts[-1]

    @property
    def hardware(self) -> Mapping[str, Any]:
        """Return the hardware of the end, or of the last start where the run has not ended."""
        return cast(Mapping[str, Any], self.summary["hardware"] or self.manifest["hardware"])

    @property
    def imported(self) -> Mapping[str, Any]:
        """Return the facts of a run whose log another trainer wrote: its format, what named its arm
        and its seed, whether the user said its hardware, and the length of a log without steps."""
        return cast(Mapping[str, Any], self.manifest["imported"])

    @property
    def machine(self) -> Machine:
        """Return the machine that timed the run: times are comparable where it is equal."""
        return Machine(
            fingerprint=str(self.hardware.get("fingerprint", UNKNOWN)),
            devices=int(self.number("devices") or 1),
            malloc=str(self.hardware.get("malloc", SYSTEM)),
        )

    @property
    def machine_name(self) -> str:
        machine = self.machine
        if self.imported:
            return machine.fingerprint
        name = self.hardware.get("name", "unknown")
        text = f"{machine.devices} × {name}"
        if "host" in self.hardware:
            text = f"{text} on {self.hardware['host']}"
        details = machine.fingerprint
        if machine.malloc != SYSTEM:
            details = f"{details}, {machine.malloc}"
        return f"{text} ({details})"

    def tokens_hash(self, split: str) -> str:
        """Return the shards' hashes, which say what tokens a split has. A record that does not list
        its shards has the hash of its data."""
        shards = self.manifest["data"][split]
        hashes = [str(shard["sha256"]) for shard in shards if shard.get("sha256")]
        return "+".join(hashes) or str(self.data_hash)


def measurements(record: Record) -> list[Measurement]:
    """Return what a run measured at its end. A diverged run has no loss, and says so."""
    rows = list[Measurement]()
    for name in OF_A_RUN:
        metric = METRICS[name]
        value = record.value(name)
        ending = Ending.measured
        if record.status == RunStatus.diverged and metric.made_by == "train":
            value = None
            ending = Ending.diverged
        elif value is None:
            continue
        row = Measurement(
            arm=record.arm,
            repeat=record.seed,
            metric=metric,
            value=value,
            ending=ending,
            where=record.machine.fingerprint,
            when=record.started,
        )
        rows.append(row)
    return rows


def read_record(folder: Path, *, rows: bool = True) -> Record:
    """Read one run's record; without `rows`, as a list of many runs shows it.

    Errors:
        ValueError: the folder is no run, its record cannot be read or was changed, or a newer nocap
            wrote it.
    """
    manifest, summary = check_record(folder)
    # a nocap of somebody else may have written a secret
    name = redact(manifest.get("name") or folder.name)
    arm = redact(manifest.get("arm") or name)
    config = dict(flat(redact(dig(manifest, "parts", "config") or {})))
    seed = config.pop("seed", None)
    require(type(seed) is int, f"the seed in {folder / MANIFEST}", "be an integer", seed)
    attempts = manifest.get("attempts") or []
    require(
        bool(attempts) and all(attempts), MANIFEST, "list at least one attempt of the run", attempts
    )
    status = summary.get("status") or RunStatus.unfinished.value
    curve = Curve()
    if rows and status in ENDED:
        curve = _curve(RowsFile(folder / ROWS).rows())
    return Record(
        folder=folder,
        identity=str(manifest.get("identity")),
        name=name,
        arm=arm,
        seed=seed,
        status=status,
        started=str(attempts[0].get("started") or ""),
        config=config,
        parts=manifest.get("parts") or {},
        manifest=manifest,
        summary=summary,
        curve=curve,
        length_of=(attempts[0].get("asked") or {}).get("length_of"),
    )


def _curve(rows: Sequence[Row]) -> Curve:
    """Return the validations among logged rows."""
    points = [row for row in rows if row.get(VAL_LOSS) is not None]
    return Curve(
        step=[row["step"] for row in points],
        tokens=[row.get("tokens") or 0 for row in points],
        train_s=[train_s(row) for row in points],
        val_loss=[row[VAL_LOSS] for row in points],
        val_bpb=[row.get(VAL_BPB) for row in points],
    )


def train_s(row: Row) -> float:
    """Return the seconds of training before this row's validation. Its clock is read after the step
    that follows the validation."""
    clock_s = sum(row.get(clock_key(line)) or 0.0 for line in TRAIN_LINES)
    step_s = (row.get(STEP_MS) or 0.0) / 1e3
    return max(0.0, clock_s - step_s)


def dig(tree: Any, *keys: str) -> Any:
    """Return the value at a path of keys; None where there is none."""
    for key in keys:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(key)
    return tree


def number(value: object) -> float | None:
    """Return a finite number, and None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return None
    return float(value)
