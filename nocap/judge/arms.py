"""From runs to arms: what a run is without its seed, what differs between arms, and what to call them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import fmean
from typing import Any

from nocap.store.runs import Record, shorten

ABSENT = "—"  # a key that the other option has and this one does not


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """Runs that differ in nothing but the seed, as far as config, source and data go."""

    id: str
    label: str
    config: Mapping[str, Any]  # flat, without the seed
    runs: tuple[Record, ...]  # finished, with a validation loss
    diverged: tuple[Record, ...]

    @property
    def all(self) -> tuple[Record, ...]:
        return (*self.runs, *self.diverged)

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @property
    def machines(self) -> dict[tuple[str, int], str]:
        return {run.machine: run.machine_name for run in self.runs}

    def values(self, measure: Callable[[Record], float | None]) -> dict[int, float]:
        """Seed → measurement. A seed that ran twice, on two machines, counts once, with its mean; what was not measured is left out."""
        found = {seed: [v for run in self.runs if run.seed == seed and (v := measure(run)) is not None] for seed in self.seeds}
        return {seed: fmean(values) for seed, values in found.items() if values}

    def fact(self, key: str) -> Any:
        """What the summary says under `key`; the first run that says it speaks for all."""
        return next((value for run in self.runs if (value := run.summary.get(key))), None)


def group(records: Sequence[Record]) -> list[Arm]:
    """The arms that have a finished run, in the order in which they were started.

    Runs of one config whose code or data differ are different arms: nobody may average over an edit in between.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps([record.config, record.parts.get("source"), record.parts.get("data")], sort_keys=True, default=str)
        groups.setdefault(key, []).append(record)
    arms = []
    for members in groups.values():
        finished = tuple(r for r in members if r.status == "finished" and r.val_loss is not None)
        diverged = tuple(r for r in members if r.status == "diverged")
        if finished:
            arms.append(Arm(id=members[0].arm, label="", config=members[0].config, runs=finished, diverged=diverged))
    return _labelled(_distinct(arms))


def _distinct(arms: list[Arm]) -> list[Arm]:
    """An arm's id says its config; where code or data differ too, the id says that as well."""
    named = []
    for arm in arms:
        twins = [other for other in arms if other.id == arm.id]
        mark = _variant(arm, twins)
        named.append(replace(arm, id=f"{arm.id}+{mark}" if mark else arm.id))
    return named


def _variant(arm: Arm, twins: Sequence[Arm]) -> str:
    from hashlib import sha256

    marks = []
    for part in ("source", "data"):
        told = [json.dumps(twin.all[0].parts.get(part), sort_keys=True) for twin in twins]
        if len(set(told)) > 1:
            mine = json.dumps(arm.all[0].parts.get(part), sort_keys=True)
            marks.append(f"{part}:{sha256(mine.encode()).hexdigest()[:6]}")
    return "+".join(marks)


def setting(config: Mapping[str, Any], key: str) -> str:
    """A config's value in words; the key may belong to an option that this config does not have."""
    return spell(config.get(key, ABSENT))


def swept(arms: Sequence[Arm]) -> list[str]:
    """The config keys whose values differ between the arms."""
    return swept_keys([arm.config for arm in arms])


def swept_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({setting(config, key) for config in configs}) > 1]


def changes(arm: Arm, base: Arm) -> dict[str, Any]:
    """The config keys in which `arm` differs from `base`, with its own values."""
    keys = swept_keys([base.config, arm.config])
    return {key: arm.config.get(key, ABSENT) for key in keys}


def spell(value: object) -> str:
    """A config value as a person would type it: 4, not 4.0; 0.003; null."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- names -------------------------------------------------------------------------------------------------------------------------


def _labelled(arms: list[Arm]) -> list[Arm]:
    """The words of the readable names that differ, and the keys that these words do not tell apart."""
    names = [_words(arm) for arm in arms]
    columns = list(zip_longest(*names, fillvalue=""))  # a name ends with its ideas, where it has some
    differ = [len(set(column)) > 1 for column in columns]
    heads = [[word for word, shown in zip(words, differ, strict=False) if shown] for words in names]
    alike = [[other.config for other, theirs in zip(arms, heads, strict=True) if theirs == head] for head in heads]
    short = short_keys(swept(arms))
    labelled = []
    for arm, head, configs in zip(arms, heads, alike, strict=True):
        tail = [f"{short.get(key, key)}={setting(arm.config, key)}" for key in swept_keys(configs)]
        variant = arm.id.partition("+")[2].replace("+", " ")
        label = " ".join([*head, *tail, *([variant] if variant else [])])
        labelled.append(replace(arm, label=label or arm.all[0].name.removesuffix(f"-s{arm.all[0].seed}")))
    used = [arm.label for arm in labelled]  # by versions of nocap that write the same config differently
    return [replace(arm, label=f"{arm.label} {arm.id.rpartition('-')[2]}") if used.count(arm.label) > 1 else arm for arm in labelled]


def _words(arm: Arm) -> list[str]:
    run = arm.all[0]
    return run.name.removesuffix(f"-s{run.seed}").split("-")


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """`lr` for `optimizer.lr`, where no other key here ends the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: tail if last.count(tail) == 1 else key for key, tail in zip(keys, last, strict=True)}


# --- the baseline ------------------------------------------------------------------------------------------------------------------


def choose_baseline(arms: Sequence[Arm], wanted: str | None) -> Arm:
    """The arm that `wanted` names: its id, its label, one of its runs, words of its readable name (`gqa gelu3x`), or what was set
    (`attention=gqa`, `mlp.expansion=4`), several with spaces or commas between. None: the arm that was started first.

    Errors:
        ValueError: no arm is called so, or several are.
    """
    if wanted is None:
        return arms[0]
    exact = [arm for arm in arms if wanted in (arm.id, arm.label) or any(_names(run, wanted) for run in arm.all)]
    found = exact or [arm for arm in arms if all(_has(arm, word) for word in wanted.replace(",", " ").split())]
    if len(found) != 1:
        have = shorten((repr(arm.label) for arm in (found or arms)), most=12)
        raise ValueError(f"--baseline must name one arm ({have}), got {wanted!r}")
    return found[0]


def _names(run: Record, wanted: str) -> bool:
    return wanted in (run.identity, run.name, run.folder.name)


def _has(arm: Arm, word: str) -> bool:
    """`gqa`; `mlp.expansion=4` or `expansion=4`; `attention=gqa`, a group and its option as the command line has them."""
    key, equals, value = word.partition("=")
    if not equals:
        return word in _words(arm)
    set_to = [spell(v) for k, v in arm.config.items() if k == key or k.endswith(f".{key}")]
    is_group = any(k.startswith(f"{key}.") for k in arm.config)
    return value in set_to or (is_group and value in _words(arm))
