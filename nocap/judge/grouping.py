"""Which runs are compared: runs as arms, and one group of runs whose losses measure the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from nocap.config.keys import require
from nocap.display import plural, shorten
from nocap.judge.arm_labels import choose_baseline, labelled
from nocap.judge.arms import ABSENT, Arm, arm_key
from nocap.judge.confounders import declarable, is_declared, is_declaring, validation_keys, value_of
from nocap.store.record import Record
from nocap.store.record_files import RunStatus, digest
from nocap.store.runs import Found

VARIANTS = ("source", "data")  # parts of a run that part arms of one config
DIGITS = 6  # of a digest in an id


# --- arms -----------------------------------------------------------------------------------------


def group(records: Sequence[Record], *, ended: bool = True) -> list[Arm]:
    """Return the arms that have a finished or a diverged run, or without `ended` any, in the order
    in which they were started.

    Runs of one config whose code or data differ are different arms: nobody may average over an edit
    in between.
    """
    by_key: dict[str, list[Record]] = {}
    for record in records:
        key = arm_key(record.config, record.parts)
        by_key.setdefault(key, []).append(record)
    every = [_arm_of(members, ended=ended) for members in by_key.values()]
    arms = [arm for arm in every if arm.all]
    distinct = list[Arm]()
    for arm in arms:
        twins = [other for other in arms if other.id == arm.id]
        distinct.append(replace(arm, id="+".join([arm.id, *_variant(arm, twins)])))
    return labelled(distinct)


def _arm_of(members: Sequence[Record], *, ended: bool) -> Arm:
    """Return the arm of these runs, without those that do not count. `ended`: only finished ones
    do."""
    diverged = tuple(run for run in members if run.status == RunStatus.diverged)
    others = [run for run in members if run.status != RunStatus.diverged]
    if ended:
        others = [run for run in others if _is_finished(run)]
    first = members[0]
    return Arm(id=first.arm, label="", config=first.config, runs=tuple(others), diverged=diverged)


def _is_finished(run: Record) -> bool:
    """Say whether it is finished, with a loss."""
    has_loss = run.val_loss is not None or run.value("val_bpb") is not None
    return run.status == RunStatus.finished and has_loss


def _variant(arm: Arm, twins: Sequence[Arm]) -> list[str]:
    """Return what tells an arm from its twins, whose config is the same: marks of its code and its
    data, where these differ."""
    marks = list[str]()
    for part in VARIANTS:
        own = _digest_of(arm, part)
        if any(_digest_of(twin, part) != own for twin in twins):
            marks.append(f"{part}:{own[:DIGITS]}")
    return marks


def _digest_of(arm: Arm, part: str) -> str:
    return digest(arm.all[0].parts.get(part))


# --- one group ------------------------------------------------------------------------------------


def select(
    runs: Found,
    *,
    group_id: str | None = None,
    baseline: str | None = None,
    allow: Collection[str] = (),
) -> Found:
    """Return the runs of one group, whose losses measure the same: of that with this id,
    else of the largest that has the baseline. What `allow` declares parts no runs. A line names
    each group left out.

    Errors:
        ValueError: an unknown `allow` or group.
    """
    known = declarable(runs.records)
    for key in allow:
        require(is_declaring(key, known), "--allow", f"be one of {', '.join(known)}", repr(key))
    keys = [key for key in validation_keys(runs.records) if not is_declared(key, allow)]
    groups = _groups(runs.records, keys)
    ranked = sorted(groups, key=lambda name: _size(groups[name]), reverse=True)
    require(
        group_id is None or group_id in ranked,
        "--group",
        f"be one of {', '.join(ranked)}",
        repr(group_id),
    )
    if not groups:
        return runs
    name = group_id or _largest_with(baseline, ranked, groups)
    records = groups[name]
    problems = list(runs.problems)
    for other in ranked:
        if other != name:
            problems.append(_left_out(other, groups[other], records, keys))
    return replace(runs, records=records, problems=problems)


def _groups(records: Sequence[Record], keys: Sequence[str]) -> dict[str, list[Record]]:
    """Return runs by the id of what they measure, which is the same whatever other runs there
    are."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        settings = {key: value_of(record, key) for key in keys}
        own = {key: value for key, value in settings.items() if value != ABSENT}
        name = digest(own)[:DIGITS]
        groups.setdefault(name, []).append(record)
    return groups


def _size(records: Sequence[Record]) -> tuple[int, int]:
    """Return how many runs a group has: the finished ones count first."""
    finished = [run for run in records if run.status == RunStatus.finished]
    return len(finished), len(records)


def _largest_with(
    baseline: str | None, ranked: Sequence[str], groups: Mapping[str, Sequence[Record]]
) -> str:
    """Return the first of these groups that has the baseline; the first where none is named, or
    none has it."""
    if baseline is not None:
        for name in ranked:
            if _has_baseline(groups[name], baseline):
                return name
    return ranked[0]


def _has_baseline(records: Sequence[Record], baseline: str) -> bool:
    try:
        choose_baseline(group(records), baseline)
    except ValueError:
        return False
    return True


def _left_out(
    name: str, others: Sequence[Record], records: Sequence[Record], keys: Sequence[str]
) -> str:
    """Say which runs a group that is left out has, and by which flags they are compared. `records`:
    those that are compared."""
    differences = list[str]()
    flags = list[str]()
    for key in keys:
        value = value_of(others[0], key)
        own = value_of(records[0], key)
        if value != own:
            differences.append(f"{key} is {value} and not {own}")
            flags.append(f"--allow {key}")
    count = plural(len(others), "run")
    names = shorten((record.folder.name for record in others), most=2)
    pronoun = "them" if len(others) > 1 else "it"
    return (
        f"{count} left out ({names}): {', '.join(differences)}; --group {name} compares {pronoun} "
        f"alone, and {' '.join(flags)} compares all runs"
    )


def declarations(records: Sequence[Record], *, allow: Collection[str]) -> Iterator[str]:
    """Say of each validation key that `allow` declares how the runs differ in it."""
    for key in validation_keys(records):
        if not is_declared(key, allow):
            continue
        folders: dict[str, list[str]] = {}
        for record in records:
            value = value_of(record, key)
            folders.setdefault(value, []).append(record.folder.name)
        if len(folders) > 1:
            parts = list[str]()
            for value, names in folders.items():
                parts.append(f"{value} in {len(names)} ({shorten(names, most=2)})")
            yield f"declared: {key} is {', '.join(parts)}"
