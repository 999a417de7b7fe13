"""The largest parts of a profile, what each option could win there by arithmetic, and the command
that measures it. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from nocap.config.keys import flat
from nocap.measure.profile_file import ProfileSide
from nocap.measure.profile_schema import (
    CeilingJson,
    LargestJson,
    OptionJson,
    ProfileFile,
    ProfileJson,
)

BENCH = ("python", "-m", "nocap.bench")
PROFILE = ("python", "-m", "nocap.profile")
MOST_PARTS = 3
MOST_OPTIONS = 3
LEAST_WIN = 1.005  # of the whole: below that a bench would not find it
LEAST_SHARE = 0.005  # of the whole, in the part


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileCommand:
    """The words of the profile's command."""

    words: Sequence[str]  # overrides
    choices: Mapping[str, str | None]  # group → its option
    flags: Sequence[str] = ()  # that another profile needs too, as --forward
    folders: Sequence[Path] = ()  # of --config-dir
    json: Path | None = None  # the file that has the profile


def file_of(profile: ProfileJson, typed: ProfileCommand) -> ProfileFile:
    """Return the profile as its command writes it: with the folders of its options, and what to
    try."""
    return ProfileFile(
        **msgspec.structs.asdict(profile),
        config_dirs=[str(folder) for folder in typed.folders],
        largest=largest(profile, typed),
    )


def largest(profile: ProfileJson, typed: ProfileCommand) -> list[LargestJson]:
    """Return the largest parts, each with the options that can win most there, and a command. Where
    the times are not to be trusted, what can be won is by FLOPs alone."""
    assert profile.ceilings is not None, "a profile of the command has ceilings"
    found = list[LargestJson]()
    least_ms = LEAST_SHARE * profile.step.ms

    def win(row: CeilingJson) -> float:
        if profile.trusted:
            return row.by_step
        return row.by_flops

    for part in sorted(profile.parts, key=lambda row: -row.ms)[:MOST_PARTS]:
        winning = list[CeilingJson]()
        for row in profile.ceilings.table:
            if win(row) >= LEAST_WIN and row.saved_ms.get(part.part, 0.0) >= least_ms:
                winning.append(row)
        winning.sort(key=win, reverse=True)
        options = [_option(row, part.part, profile) for row in winning[:MOST_OPTIONS]]
        own_command = None
        if options:
            own_command = command(profile, typed, [option.label for option in options])
        found.append(
            LargestJson(
                part=part.part,
                ms=part.ms,
                share=part.share,
                of_bound=part.of_bound,
                options=options,
                command=own_command,
            )
        )
    return found


def _option(row: CeilingJson, part: str, profile: ProfileJson) -> OptionJson:
    return OptionJson(
        label=row.label,
        by_step=row.by_step if profile.trusted else None,
        by_flops=row.by_flops,
        saved_ms=row.saved_ms[part],
    )


def command(profile: ProfileJson, typed: ProfileCommand, options: Sequence[str]) -> str:
    """Return what measures these options against the profile's own: a bench of training steps; of
    anything else a profile of the first option, and what it changes."""
    if profile.of.trains:
        return _bench(profile.config, typed, options)
    return _profiles(typed, options[0])


# --- words ----------------------------------------------------------------------------------------


def replaced(words: Sequence[str], by: Sequence[str]) -> list[str]:
    """Return which of these overrides give way to others: to the same key, or the option's own keys
    where the option changes."""
    starts = list[str]()
    for override in by:
        key = override.partition("=")[0]
        starts += [f"{key}=", f"{key}."]
    return [word for word in words if word.lstrip("+").startswith(tuple(starts))]


def without(words: Sequence[str], by: Sequence[str]) -> list[str]:
    """Return the overrides that stay beside these others."""
    gone = replaced(words, by)
    return [word for word in words if word not in gone]


def _bench(config: Mapping[str, Any], typed: ProfileCommand, options: Sequence[str]) -> str:
    own = replaced(typed.words, options)
    baseline = list[str]()
    for option in options:
        baseline += replaced(typed.words, [option]) or [_now(config, typed.choices, option)]
    arms = [list(dict.fromkeys(baseline))]
    for option in options:
        arms.append([*without(own, [option]), option])
    flags = list[str]()
    for arm in arms:
        flags += ["--arm", shlex.join(arm)]
    shared = [word for word in typed.words if word not in own]
    return shlex.join([*BENCH, *_config_dirs(typed.folders), *shared, *flags])


def _now(config: Mapping[str, Any], choices: Mapping[str, str | None], option: str) -> str:
    """Return the override that says what the run has in place of an option."""
    key = option.partition("=")[0]
    if key in choices:
        return f"{key}={choices[key]}"
    value = dict(flat(config))[key]
    if isinstance(value, bool):
        value = str(value).lower()
    return f"{key}={value}"


def _profiles(typed: ProfileCommand, option: str) -> str:
    options = [*_config_dirs(typed.folders), *typed.flags]
    before = str(typed.json or "before.json")
    after = "after.json"
    commands = list[list[str]]()
    if typed.json is None:
        commands.append([*PROFILE, *options, *typed.words, "--json", before])
    words = [*without(typed.words, [option]), option]
    commands.append([*PROFILE, *options, *words, "--json", after])
    commands.append([*PROFILE, before, after])
    return " && ".join(shlex.join(words) for words in commands)


def _config_dirs(folders: Iterable[str | Path]) -> list[str]:
    flags = list[str]()
    for folder in dict.fromkeys(map(str, folders)):
        flags += ["--config-dir", folder]
    return flags


def between(before: ProfileSide, after: ProfileSide) -> str | None:
    """Return the command that times one profile's overrides against another's; None: they are the
    same. Empty: only training steps are timed."""
    if sorted(before.words) == sorted(after.words):
        return None
    if not before.of.trains:
        return ""
    shared = [word for word in before.words if word in after.words]
    arms = list[str]()
    for side in (before, after):
        own = [word for word in side.words if word not in shared]
        arms += ["--arm", shlex.join(own)]
    folders = [*before.config_dirs, *after.config_dirs]
    return shlex.join([*BENCH, *_config_dirs(folders), *shared, *arms])
