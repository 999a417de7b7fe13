"""The largest parts of a profile, what each option could win there by arithmetic, and the command that
measures it. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.keys import flat
from nocap.measure.difference import ProfileSide
from nocap.measure.subject import Of

Json = Mapping[str, Any]

MOST_PARTS, MOST_OPTIONS = 3, 3
LEAST_WIN = 1.005  # of the whole: below that a bench would not find it
LEAST_SHARE = 0.005  # of the whole, in the part


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed:
    """What the profile's command was."""

    words: Sequence[str]  # overrides
    choices: Mapping[str, str | None]  # group → its option
    flags: Sequence[str] = ()  # that another profile needs too, as --forward
    folders: Sequence[Path] = ()  # of --config-dir
    json: Path | None = None  # the file that has the profile


def largest(profile: Json, typed: Typed) -> list[dict[str, Any]]:
    """The largest parts, each with the options that can win most there, and a command; JSON types. Where the
    times are not to be trusted, what can be won is by FLOPs alone."""
    found = list[dict[str, Any]]()
    by = "by_step" if profile["trusted"] else "by_flops"
    parts = sorted(profile["parts"], key=lambda row: -row["ms"])[:MOST_PARTS]
    for part in parts:
        name = part["part"]
        least_ms = LEAST_SHARE * profile["step"]["ms"]
        winning = [
            row
            for row in profile["ceilings"]["table"]
            if row[by] >= LEAST_WIN and row["saved_ms"].get(name, 0.0) >= least_ms
        ]
        options = sorted(winning, key=lambda row: -row[by])[:MOST_OPTIONS]
        labels = [row["label"] for row in options]
        found.append(
            {
                **{key: part[key] for key in ("part", "ms", "share", "of_bound")},
                "options": [
                    {
                        "label": row["label"],
                        "by_step": row["by_step"] if profile["trusted"] else None,
                        "by_flops": row["by_flops"],
                        "saved_ms": row["saved_ms"][name],
                    }
                    for row in options
                ],
                "command": command(profile, typed, labels) if labels else None,
            }
        )
    return found


def command(profile: Json, typed: Typed, options: Sequence[str]) -> str:
    """What measures these options against the profile's own: a bench of training steps; of anything else a
    profile of the first option, and what it changes."""
    if Of(profile["of"]).trains:
        return _bench(profile["config"], typed, options)
    return _profiles(typed, options[0])


# --- words --------------------------------------------------------------------------------------------------


def replaced(words: Sequence[str], by: Sequence[str]) -> list[str]:
    """Return which of these overrides give way to others: to the same key, or the option's own keys where the
    option changes."""
    starts = list[str]()
    for override in by:
        key = override.partition("=")[0]
        starts += [f"{key}=", f"{key}."]
    return [word for word in words if word.lstrip("+").startswith(tuple(starts))]


def without(words: Sequence[str], by: Sequence[str]) -> list[str]:
    """Return the overrides that stay beside these others."""
    gone = replaced(words, by)
    return [word for word in words if word not in gone]


def _bench(config: Json, typed: Typed, options: Sequence[str]) -> str:
    own = replaced(typed.words, options)
    baseline = list[str]()
    for option in options:
        baseline += replaced(typed.words, [option]) or [_now(config, typed.choices, option)]
    arms = [list(dict.fromkeys(baseline))]
    arms += [[*without(own, [option]), option] for option in options]
    flags = list[str]()
    for arm in arms:
        flags += ["--arm", shlex.join(arm)]
    shared = [word for word in typed.words if word not in own]
    return shlex.join(["python", "-m", "nocap.bench", *_config_dirs(typed.folders), *shared, *flags])


def _now(config: Json, choices: Mapping[str, str | None], option: str) -> str:
    """The override that says what the run has in place of an option."""
    key = option.partition("=")[0]
    if key in choices:
        return f"{key}={choices[key]}"
    value = dict(flat(config))[key]
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}"


def _profiles(typed: Typed, option: str) -> str:
    door = ["python", "-m", "nocap.profile"]
    how = [*door, *_config_dirs(typed.folders), *typed.flags]
    before = str(typed.json or "before.json")
    after = "after.json"
    first = [] if typed.json else [[*how, *typed.words, "--json", before]]
    second = [*how, *without(typed.words, [option]), option, "--json", after]
    return " && ".join(shlex.join(words) for words in [*first, second, [*door, before, after]])


def _config_dirs(folders: Iterable[str | Path]) -> list[str]:
    flags = list[str]()
    for folder in dict.fromkeys(map(str, folders)):
        flags += ["--config-dir", folder]
    return flags


def between(before: ProfileSide, after: ProfileSide) -> str | None:
    """The command that times one profile's overrides against another's; None: they are the same. Empty: only
    training steps are timed."""
    if sorted(before.words) == sorted(after.words):
        return None
    if not before.of.trains:
        return ""
    shared = [word for word in before.words if word in after.words]
    arms = list[str]()
    for side in (before, after):
        arms += ["--arm", shlex.join([word for word in side.words if word not in shared])]
    folders = [*before.config_dirs, *after.config_dirs]
    return shlex.join(["python", "-m", "nocap.bench", *_config_dirs(folders), *shared, *arms])
