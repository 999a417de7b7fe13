"""What an arm is called, and which arm somebody names: by its label, a run, or what was set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest

from nocap.display import shorten
from nocap.judge.arms import Arm, chosen, command_keys, setting, spell, swept_keys
from nocap.store.record import Record
from nocap.store.runs import find_one


def labelled(arms: Sequence[Arm]) -> list[Arm]:
    """Call arms by the parts of their names that differ, and by the keys that these do not tell
    apart."""
    heads = _heads(arms)
    short = short_keys(swept_keys(arm.config for arm in arms))
    unique = list[Arm]()
    for arm, head in zip(arms, heads, strict=True):
        namesakes = [
            other for other, other_head in zip(arms, heads, strict=True) if other_head == head
        ]
        differences = _differences(arm, namesakes, short)
        variant = arm.id.split("+")[1:]
        label = " ".join([*head, *differences, *variant])
        if not label:
            label = "-".join(_name_parts(arm.all[0]))
        unique.append(replace(arm, label=label))
    return _without_twins(unique)


def _heads(arms: Sequence[Arm]) -> list[list[str]]:
    """Return of each arm the parts of its name that are not the same in all arms."""
    names = [_name_parts(arm.all[0]) for arm in arms]
    differ = [len(set(column)) > 1 for column in zip_longest(*names, fillvalue="")]
    heads = list[list[str]]()
    for name in names:
        # a name ends with its ideas, where it has some, so one may be shorter than the others
        heads.append([part for part, differs in zip(name, differ, strict=False) if differs])
    return heads


def _differences(arm: Arm, namesakes: Sequence[Arm], short: Mapping[str, str]) -> list[str]:
    """Return what tells an arm from its namesakes: the options and the keys that somebody gave, or,
    where these do not tell all apart, every key that differs."""
    in_commands = command_keys(namesakes)
    groups = [
        group for group in in_commands if len({chosen(other, group) for other in namesakes}) > 1
    ]
    differing = swept_keys(other.config for other in namesakes)
    keys = [key for key in differing if key in in_commands]
    if not _tell_apart(groups, keys, namesakes):
        keys = differing
    options = [f"{group}={chosen(arm, group)}" for group in groups]
    settings = [f"{short.get(key, key)}={setting(arm.config, key)}" for key in keys]
    return [*options, *settings]


def _tell_apart(groups: Sequence[str], keys: Sequence[str], arms: Sequence[Arm]) -> bool:
    """Say whether no two arms have the same options in these groups and the same values of these
    keys."""
    places = set[tuple[str | None, ...]]()
    for arm in arms:
        options = [chosen(arm, group) for group in groups]
        values = [setting(arm.config, key) for key in keys]
        places.add((*options, *values))
    return len(places) == len(arms)


def _without_twins(arms: Sequence[Arm]) -> list[Arm]:
    """Add the digest of its config to a label that several arms have: versions of nocap may write
    the same config differently."""
    labels = [arm.label for arm in arms]
    unique = list[Arm]()
    for arm in arms:
        if labels.count(arm.label) > 1:
            config_digest = arm.id.rpartition("-")[2]
            unique.append(replace(arm, label=f"{arm.label} {config_digest}"))
        else:
            unique.append(arm)
    return unique


def _name_parts(run: Record) -> list[str]:
    if run.imported:
        return [run.arm]
    return run.name.removesuffix(f"-s{run.seed}").split("-")


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Map a key to its last part, as `optimizer.lr` to `lr`, where no other key here ends the
    same."""
    ends = [key.rpartition(".")[2] for key in keys]
    short = dict[str, str]()
    for key, end in zip(keys, ends, strict=True):
        short[key] = end if ends.count(end) == 1 else key
    return short


# --- which arm is meant ---------------------------------------------------------------------------


def choose_baseline(arms: Sequence[Arm], name: str | None) -> Arm:
    """Return the arm that `name` names: its id, its label, one of its runs, parts of its readable
    name (`gqa gelu3x`), or what was set (`attention=gqa`, `mlp.expansion=4`), several with spaces
    or commas between. None: the arm that was asked for first.

    Errors:
        ValueError: no arm is called so, or several are.
    """
    if name is None:
        return arms[0]
    matches = [arm for arm in arms if name in _names(arm)]
    if not matches:
        parts = name.replace(",", " ").split()
        matches = [arm for arm in arms if all(has(arm.all[0], part) for part in parts)]
    if not matches:
        with suppress(ValueError):
            folder = find_one(name).name
            matches = [arm for arm in arms if folder in _folders(arm)]
    if len(matches) != 1:
        names = [repr(arm.label) for arm in matches or arms]
        have = shorten(names, most=12)
        raise ValueError(f"--baseline must name exactly one of the arms ({have}), got {name!r}")
    return matches[0]


def _names(arm: Arm) -> set[str]:
    """Return all that an arm or one of its runs is called."""
    names = {arm.id, arm.label}
    for run in arm.all:
        names |= {run.identity, run.name, run.folder.name}
    return names


def _folders(arm: Arm) -> set[str]:
    return {run.folder.name for run in arm.all}


def has(run: Record, part: str) -> bool:
    """Say whether a run has what a person typed: `gqa`; `mlp.expansion=4` or `expansion=4`;
    `attention=gqa`, a group and its option as the command line has them."""
    key, equals, value = part.partition("=")
    if not equals:
        return part in _name_parts(run)
    return value in _options(run, key) or _has_setting(run, key, value)


def _options(run: Record, group: str) -> list[str]:
    """List what a run has chosen in a group. Older records have no options: their names are all
    there is."""
    if group in run.options:
        return str(run.options[group]).split(",")
    if any(key.startswith(f"{group}.") for key in run.config):
        return _name_parts(run)
    return []


def _has_setting(run: Record, name: str, text: str) -> bool:
    for key, value in run.config.items():
        is_named = key == name or key.endswith(f".{name}")
        if is_named and _is(value, text):
            return True
    return False


def _is(value: object, text: str) -> bool:
    """Say whether a text stands for a value: `3e-3` is 0.003."""
    if spell(value) == text:
        return True
    if type(value) not in (int, float):
        return False
    with suppress(ValueError):
        return float(text) == value
    return False
