"""Runs as arms: what a run is without its seed, and in which settings two arms differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from nocap.config.run import added_keys
from nocap.metrics import OF_A_RUN
from nocap.store.record import Config, Machine, Parts, Record
from nocap.store.record_files import digest
from nocap.store.times import moment

ABSENT = "—"  # a key that the other option has and this one does not


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Runs that differ in nothing but the seed, as far as config, source and data go. One of which
    all diverged has no finished run."""

    id: str
    label: str
    config: Config
    runs: tuple[Record, ...]  # finished, with a validation loss
    diverged: tuple[Record, ...]

    @property
    def all(self) -> tuple[Record, ...]:
        return (*self.runs, *self.diverged)

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @cached_property
    def machines(self) -> dict[Machine, str]:
        return {run.machine: run.machine_name for run in self.runs}

    @cached_property
    def values(self) -> dict[str, dict[int, float]]:
        """Map a metric to a value by seed. A seed that ran twice, on two machines, counts once,
        with its mean; what was not measured is left out."""
        return {metric: self._by_seed(metric) for metric in OF_A_RUN}

    def _by_seed(self, metric: str) -> dict[int, float]:
        known: dict[int, list[float]] = {}
        for run in self.runs:
            value = run.value(metric)
            if value is not None:
                known.setdefault(run.seed, []).append(value)
        return {seed: fmean(known[seed]) for seed in sorted(known)}

    def summary(self, key: str) -> Any:
        """Return what the first run that has `key` in its summary has there."""
        for run in self.runs:
            value = run.summary.get(key)
            if value:
                return value
        return None


def arm_key(config: Config, parts: Parts) -> str:
    """Digest what all runs of an arm have in common: a flat config without the seed, source and
    data."""
    return digest([config, parts.get("source"), parts.get("data")])


# --- settings -------------------------------------------------------------------------------------


def spell(value: object) -> str:
    """Return a config value as a person would type it: 4, not 4.0; 0.003; null."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def setting(config: Config, key: str) -> str:
    """Return a config's value as text; the key may belong to an option that this config does not
    have."""
    return spell(_value(config, key))


def _value(config: Config, key: str) -> object:
    """Return a config's value, or `ABSENT`. A key that was added later counts only where it is not
    its default: where it is absent, it is that."""
    if key in config:
        return config[key]
    return added_keys().get(key, ABSENT)


def swept_keys(configs: Iterable[Config]) -> list[str]:
    """List the keys whose values differ between these configs."""
    configs = list(configs)
    keys: dict[str, None] = {}
    for config in configs:
        keys |= dict.fromkeys(config)
    return [key for key in keys if _differs(key, configs)]


def _differs(key: str, configs: Sequence[Config]) -> bool:
    values = {setting(config, key) for config in configs}
    return len(values) > 1


def changes(arm: Arm, base: Arm) -> dict[str, object]:
    """Return the config keys in which `arm` differs from `base`, with its own values."""
    keys = swept_keys([base.config, arm.config])
    return {key: _value(arm.config, key) for key in keys}


def command_keys(arms: Iterable[Arm]) -> Collection[str]:
    """List the keys that somebody gave for any of their runs; others follow from these."""
    keys: dict[str, None] = {}
    for arm in arms:
        for run in arm.all:
            for attempt in run.attempts:
                keys |= dict.fromkeys(attempt["swept"])
    return keys


def chosen(arm: Arm, group: str) -> str | None:
    """Return what was chosen in a group."""
    return arm.all[0].options.get(group)


def starts(arm: Arm) -> list[float]:
    """Read when each of its runs began; none, where one of them does not say it."""
    moments = [moment(run.started) for run in arm.runs]
    known = [start for start in moments if start is not None]
    return known if len(known) == len(moments) else []


def vocabularies(arms: Sequence[Arm]) -> int:
    """Count the vocabularies of these arms."""
    return len({setting(arm.config, "tokenizer.vocabulary") for arm in arms})
