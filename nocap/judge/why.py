"""What makes two runs differ, and which differences spoil a comparison."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nocap.config.registry import keys_that_count
from nocap.judge.arms import ABSENT, Arm, changes, setting, spell
from nocap.store.runs import Record, dig, flat, read, shorten


def _setting(key: str, run: Record) -> str:
    return setting(run.config, key)


# Where these differ, two validation losses measure different things: refused, unless declared.
MEASURED: dict[str, Callable[[Record], str]] = {
    **{key: partial(_setting, key) for key in keys_that_count("losses") if not key.endswith(".kind")},
    "data.val": lambda run: run.tokens_hash("val")[:12],
}
# Where these differ, the difference cannot be put down to the change: confounded, unless declared.
CONFOUNDERS = ("kernel", "data", "source", "torch")
_KERNEL_KEYS = {"attention.kernel", "attention.local_kernel"}


def check_allowed(allowed: Collection[str]) -> None:
    known = (*MEASURED, *CONFOUNDERS)
    for key in allowed:
        if not any(covers(key, other) for other in known):
            raise ValueError(f"--allow must be one of {', '.join(known)}, got {key!r}")


def covers(allowed: str, key: str) -> bool:
    """`data` allows `data.val` too."""
    return key == allowed or key.startswith(f"{allowed}.")


def check_measured(arms: Sequence[Arm], *, allowed: Collection[str]) -> list[str]:
    """Refuse runs whose losses measure different things; what was declared comes back as lines to print.

    Errors:
        ValueError: names every key that differs, its values and runs that have them.
    """
    runs = [run for arm in arms for run in arm.all]
    refused: list[tuple[str, str]] = []
    declared: list[tuple[str, str]] = []
    for key, value_of in MEASURED.items():
        names: dict[str, list[str]] = {}
        for run in runs:
            names.setdefault(value_of(run), []).append(run.folder.name)
        if len(names) > 1:
            line = f"{key} is " + ", ".join(f"{value} in {len(have)} ({shorten(have, most=2)})" for value, have in names.items())
            is_declared = any(covers(a, key) for a in allowed)
            (declared if is_declared else refused).append((key, line))
    if refused:
        flags = " ".join(f"--allow {key}" for key, _ in refused)
        lines = "; ".join(line for _, line in refused)
        raise ValueError(f"runs must share their data and validation settings: {lines}; compare them separately, or declare it: {flags}")
    return [f"declared: {line}" for _, line in declared]


def confounders(arm: Arm, base: Arm, *, allowed: Collection[str]) -> list[str]:
    """What differs between two arms besides the config keys that are asked about, and was not declared."""
    changed = set(changes(arm, base))
    found = {
        "kernel": _kernel_differs(arm, base, changed),
        # Another amount or source of training data may be the very question, and then the config says so.
        "data": _differ(arm, base, lambda run: run.tokens_hash("train")) and not any(key.startswith("data.") for key in changed),
        "source": _source_differs(arm, base),
        "torch": _differ(arm, base, lambda run: str(dig(run.parts, "environment", "torch")).partition("+")[0]),
    }
    return [key for key in CONFOUNDERS if found[key] and not any(covers(a, key) for a in allowed)]


def _differ(arm: Arm, base: Arm, fact: Callable[[Record], str]) -> bool:
    return {fact(run) for run in arm.runs} != {fact(run) for run in base.runs}


def _source_differs(arm: Arm, base: Arm) -> bool:
    """Whether a module that both use is not the same. What only one of them uses is the option that was asked about, or comes with it."""
    mine, theirs = (side.runs[0].parts.get("source") or {} for side in (arm, base))  # an arm's runs have one
    return any(mine[module] != theirs[module] for module in mine.keys() & theirs.keys())


def _kernel_differs(arm: Arm, base: Arm, changed: set[str]) -> bool:
    """Whether another kernel comes along unasked.

    Asked for: the kernel's keys are all that changed; or the kind of attention changed and brings its own, the configured kernel being
    the same. So `sliding` against `flash` is fair, and `gqa` against the materialised `mha` is not.
    """
    mine, theirs = arm.fact("kernel"), base.fact("kernel")
    if not mine or not theirs or mine == theirs:
        return False
    asked = bool(changed & _KERNEL_KEYS) and changed <= _KERNEL_KEYS
    kernels = {setting(side.config, "attention.kernel") for side in (arm, base)}
    of_its_kind = "attention.kind" in changed and len(kernels - {ABSENT}) < 2  # an option from outside may have no such key
    return not (asked or of_its_kind)


# --- two runs ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    part: str  # of the identity: config, source, data, environment or init; or "recorded", which is no part of it
    key: str
    a: str
    b: str


def why(folder_a: Path, folder_b: Path) -> dict[str, Any]:
    """Two runs' differences, as plain JSON.

    Errors:
        ValueError: a folder's record cannot be read.
    """
    problems: list[str] = []
    try:
        a, b = (read(folder, problems=problems) for folder in (folder_a, folder_b))
    except ValueError as error:
        raise ValueError(f"--why needs two readable runs: {folder_a.name} and {folder_b.name}: {error}") from error
    found = list(differences(a, b))
    return {
        "a": {"identity": a.identity, "name": a.folder.name, "status": a.status},
        "b": {"identity": b.identity, "name": b.folder.name, "status": b.status},
        "same": a.identity == b.identity,
        "differences": [{"part": d.part, "key": d.key, "a": d.a, "b": d.b} for d in found],
    }


def differences(a: Record, b: Record) -> Iterator[Difference]:
    """Part by part of the identity, then what is only recorded."""
    for part in ("config", "source", "environment", "init"):
        yield from _compare(part, a.parts.get(part) or {}, b.parts.get(part) or {})
    if a.parts.get("data") != b.parts.get("data"):
        yield Difference(part="data", key="manifest", a=str(a.parts.get("data"))[:12], b=str(b.parts.get("data"))[:12])
        for split in ("train", "val"):
            yield from _compare("data", {split: a.tokens_hash(split)[:12]}, {split: b.tokens_hash(split)[:12]})
        yield from _compare("data", dig(a.manifest, "data", "source") or {}, dig(b.manifest, "data", "source") or {})
    yield from _compare("recorded", _recorded(a), _recorded(b))


def _recorded(run: Record) -> dict[str, Any]:
    versions = {f"version of {name}": version for name, version in (run.manifest.get("versions") or {}).items() if name != "torch"}
    return {
        "hardware": run.machine_name,
        "git commit": str(dig(run.manifest, "git", "commit") or ABSENT)[:12],
        "kernel": spell(dig(run.summary, "kernel", "train") or ABSENT),
        **versions,
    }


def _compare(part: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    left, right = ({k: spell(v) for k, v in flat(tree)} for tree in (a, b))
    for key in dict.fromkeys([*left, *right]):
        if left.get(key, ABSENT) != right.get(key, ABSENT):
            yield Difference(part=part, key=key, a=left.get(key, ABSENT), b=right.get(key, ABSENT))


def tell(found: Mapping[str, Any]) -> str:
    """`why`'s answer for people."""
    a, b = found["a"]["name"], found["b"]["name"]
    rows = [(d["part"], d["key"], d["a"], d["b"]) for d in found["differences"]]
    same_run = f"{a} and {b} are the same run (identity {found['a']['identity']})"
    head = same_run if found["same"] else f"{a}\n{b}\nare two runs because of:"
    parts = {part for part, *_ in rows if part != "recorded"}
    quiet = [part for part in ("config", "source", "data", "environment") if part not in parts]
    wide = max((len(row[1]) for row in rows), default=0)
    lines = [f"  {part:<11} {key:<{wide}}  {left} → {right}" for part, key, left, right in rows if part != "recorded"]
    noted = [f"  {part:<11} {key:<{wide}}  {left} → {right}" for part, key, left, right in rows if part == "recorded"]
    same = [f"the same: {', '.join(quiet)}"] if quiet else []
    return "\n".join([head, *lines, *same, *(["recorded, and no part of the identity:", *noted] if noted else [])])
