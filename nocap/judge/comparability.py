"""What makes two runs differ, which differences spoil a comparison, and which runs can share one: where losses measure different things, no
run is compared with one of another group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from nocap.config.keys import require
from nocap.config.run import keys_that_count
from nocap.judge.arms import ABSENT, Arm, changes, choose_baseline, group, setting
from nocap.store.formats import plural, shorten
from nocap.store.record import digest
from nocap.store.runs import Found, Record, dig


def _setting(key: str, run: Record) -> str:
    return setting(run.config, key)


# Where these differ, two validation losses measure different things: another group, unless declared.
MEASURED: dict[str, Callable[[Record], str]] = {
    **{key: partial(_setting, key) for key in keys_that_count("losses") if not key.endswith(".kind")},
    "data.val": lambda run: run.tokens_hash("val")[:12],
}
# Where these differ, the difference cannot be put down to the change: confounded, unless declared.
CONFOUNDERS = ("kernel", "data", "source", "torch")
_KERNEL_KEYS = {"attention.kernel", "attention.local_kernel"}


def covers(allowed: str, key: str) -> bool:
    """`data` allows `data.val` too."""
    return key == allowed or key.startswith(f"{allowed}.")


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


def select(found: Found, *, wanted: str | None = None, baseline: str | None = None, allow: Collection[str] = ()) -> Found:
    """The runs of one group, whose losses measure the same: of that with the id `wanted`, else of the largest that has the baseline. What
    `allow` declares parts no runs. A line names each group left out, and what was declared.

    Errors:
        ValueError: an unknown `allow` or group.
    """
    known = (*MEASURED, *CONFOUNDERS)
    for key in allow:
        require(any(covers(key, other) for other in known), "--allow", f"be one of {', '.join(known)}", repr(key))
    declared = [key for key in MEASURED if any(covers(allowed, key) for allowed in allow)]
    strict = [key for key in MEASURED if key not in declared]
    groups: dict[str, list[Record]] = {}  # by what they measure: the same id whatever other runs there are
    for record in found.records:
        groups.setdefault(digest({key: MEASURED[key](record) for key in strict})[:6], []).append(record)
    ranked = sorted(groups, key=lambda name: (sum(one.status == "finished" for one in groups[name]), len(groups[name])), reverse=True)
    require(wanted is None or wanted in ranked, "--group", f"be one of {', '.join(ranked)}", repr(wanted))
    suitable = [name for name in ranked if (name == wanted if wanted else baseline is None or _has(groups[name], baseline))]
    if not groups:
        return found
    chosen = groups[(suitable or ranked)[0]]
    lines = [_left_out(name, groups[name], chosen, strict) for name in ranked if groups[name] is not chosen]
    return replace(found, records=chosen, problems=[*found.problems, *lines, *_declared(declared, chosen)])


def _has(records: Sequence[Record], baseline: str) -> bool:
    try:
        choose_baseline(group(records), baseline)
    except ValueError:
        return False
    return True


def _declared(keys: Sequence[str], records: Sequence[Record]) -> Iterator[str]:
    """A line a key in which the runs differ."""
    for key in keys:
        names: dict[str, list[str]] = {}
        for record in records:
            names.setdefault(MEASURED[key](record), []).append(record.folder.name)
        if len(names) > 1:
            values = (f"{value} in {len(have)} ({shorten(have, most=2)})" for value, have in names.items())
            yield f"declared: {key} is {', '.join(values)}"


def _left_out(name: str, other: Sequence[Record], chosen: Sequence[Record], keys: Sequence[str]) -> str:
    pairs = {key: (MEASURED[key](other[0]), MEASURED[key](chosen[0])) for key in keys}
    differ = {key: f"{key} is {theirs}, not {ours}" for key, (theirs, ours) in pairs.items() if theirs != ours}
    names = shorten((record.folder.name for record in other), most=2)
    flags = " ".join(f"--allow {key}" for key in differ)
    return (
        f"{plural(len(other), 'run')} left out ({names}): {', '.join(differ.values())}; the same command with --group {name} compares "
        f"{'them' if len(other) > 1 else 'it'}, with {flags} across the difference"
    )
