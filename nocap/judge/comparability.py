"""What makes two runs differ, which differences spoil a comparison, and which runs can share one: where losses measure different things, no
run is compared with one of another group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nocap.config.keys import require
from nocap.config.run import keys_that_count
from nocap.judge.arms import ABSENT, Arm, changes, choose_baseline, group, setting
from nocap.store.formats import plural, shorten
from nocap.store.record import digest
from nocap.store.runs import Found, Record, dig


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
        require(any(covers(key, other) for other in known), "--allow", f"be one of {', '.join(known)}", repr(key))


def covers(allowed: str, key: str) -> bool:
    """`data` allows `data.val` too."""
    return key == allowed or key.startswith(f"{allowed}.")


def check_measured(arms: Sequence[Arm], *, allowed: Collection[str]) -> list[str]:
    """Refuse runs whose losses measure different things; what was declared comes back as lines to print.

    Errors:
        ValueError: names every key that differs, its values and runs that have them.
    """
    runs = [run for arm in arms for run in arm.all]
    lines: dict[str, str] = {}
    for key, value_of in MEASURED.items():
        names: dict[str, list[str]] = {}
        for run in runs:
            names.setdefault(value_of(run), []).append(run.folder.name)
        if len(names) > 1:
            lines[key] = f"{key} is " + ", ".join(f"{value} in {len(have)} ({shorten(have, most=2)})" for value, have in names.items())
    if refused := [key for key in lines if not any(covers(a, key) for a in allowed)]:
        flags = " ".join(f"--allow {key}" for key in refused)
        differ = "; ".join(lines[key] for key in refused)
        raise ValueError(f"runs must share their data and validation settings: {differ}; compare them separately, or declare it: {flags}")
    return [f"declared: {line}" for line in lines.values()]


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


def _differ(arm: Arm, base: Arm, property_of: Callable[[Record], str]) -> bool:
    return {property_of(run) for run in arm.runs} != {property_of(run) for run in base.runs}


def _source_differs(arm: Arm, base: Arm) -> bool:
    """Whether a module that both use is not the same. What only one of them uses is the option that was asked about, or comes with it."""
    mine, theirs = (side.all[0].parts.get("source") or {} for side in (arm, base))  # an arm's runs have one
    return any(mine[module] != theirs[module] for module in mine.keys() & theirs.keys())


def _kernel_differs(arm: Arm, base: Arm, changed: set[str]) -> bool:
    """Whether another kernel comes along unasked.

    Asked for: the kernel's keys are all that changed; or the kind of attention changed and brings its own, the configured kernel being
    the same. So `sliding` against `flash` is fair, and `gqa` against the materialised `mha` is not.
    """
    mine, theirs = arm.summary("kernel"), base.summary("kernel")
    if not mine or not theirs or mine == theirs:
        return False
    asked = bool(changed & _KERNEL_KEYS) and changed <= _KERNEL_KEYS
    kernels = {setting(side.config, "attention.kernel") for side in (arm, base)}
    of_its_kind = "attention.kind" in changed and len(kernels - {ABSENT}) < 2  # an option from outside may have no such key
    return not (asked or of_its_kind)


# --- groups -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs whose losses measure the same."""

    id: str  # of what they measure: the same whatever other runs there are
    measured: Mapping[str, str]  # key of MEASURED → its value in every run
    records: list[Record]

    @property
    def size(self) -> tuple[int, int]:
        """Finished runs, then all."""
        return sum(record.status == "finished" for record in self.records), len(self.records)


def grouped(records: Sequence[Record], *, allow: Collection[str] = ()) -> list[Group]:
    """The largest first. What `allow` declares parts no runs."""
    keys = [key for key in MEASURED if not any(covers(allowed, key) for allowed in allow)]
    groups: dict[str, Group] = {}
    for record in records:
        measured = {key: MEASURED[key](record) for key in keys}
        name = digest(measured)[:6]
        groups.setdefault(name, Group(id=name, measured=measured, records=[])).records.append(record)
    return sorted(groups.values(), key=lambda group: group.size, reverse=True)


def one_of(found: Found, *, wanted: str | None = None, baseline: str | None = None, allow: Collection[str] = ()) -> Found:
    """The runs of one group: that with the id `wanted`, else the largest that has the baseline. A line names each group left out.

    Errors:
        ValueError: an unknown `allow` or group.
    """
    check_allowed(allow)
    groups = grouped(found.records, allow=allow)
    if wanted is not None:
        require(wanted in [one.id for one in groups], "--group", f"be one of {', '.join(one.id for one in groups)}", repr(wanted))
    suitable = [one for one in groups if (one.id == wanted if wanted else baseline is None or _has(one, baseline))]
    if len(groups) < 2:
        return found
    chosen = (suitable or groups)[0]
    left_out = [_left_out(one, chosen) for one in groups if one is not chosen]
    return replace(found, records=chosen.records, problems=[*found.problems, *left_out])


def _has(group_: Group, baseline: str) -> bool:
    try:
        choose_baseline(group(group_.records), baseline)
    except ValueError:
        return False
    return True


def _left_out(other: Group, chosen: Group) -> str:
    differ = [key for key, value in other.measured.items() if value != chosen.measured[key]]
    how = ", ".join(f"{key} is {other.measured[key]}, not {chosen.measured[key]}" for key in differ)
    names = shorten((record.folder.name for record in other.records), most=2)
    flags = " ".join(f"--allow {key}" for key in differ)
    return (
        f"{plural(len(other.records), 'run')} left out ({names}): {how}; the same command with --group {other.id} compares "
        f"{'them' if len(other.records) > 1 else 'it'}, with {flags} across the difference"
    )
