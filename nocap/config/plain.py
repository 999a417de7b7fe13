"""A `Run` as plain values, as records hold it, and back. No Hydra here: a worker starts without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nocap.config import registry
from nocap.config.bounded import parse_yaml, read_text
from nocap.config.run import Run


def to_plain(run: Run) -> dict[str, Any]:
    """The run as plain JSON types: what `config.yaml`, the identity and the trackers see."""
    return {f.name: _plain(getattr(run, f.name)) for f in dataclasses.fields(run)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, Enum) else value


def dump(plain: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True)


def load(path: Path) -> Run:
    """The `Run` in a record's `config.yaml`. Each option's `kind` names its schema.

    Errors:
        ValueError: the file is no config of this version.
    """
    rule = f"{path} must be a run's config.yaml"
    try:
        plain = parse_yaml(read_text(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"{rule}: {error}") from error
    return from_plain(plain, rule)


def from_plain(plain: Any, rule: str) -> Run:
    """The `Run` in its plain form. `rule`: what the file must be that holds it.

    Errors:
        ValueError: it is no config of this version.
    """
    try:
        refuse_interpolations(plain)
        cfg = OmegaConf.structured(Run)
        ideas = plain.setdefault("ideas", {})  # a record from before there were any
        cfg.ideas = {name: _typed("ideas", f"ideas.{name}", ideas[name]) for name in list(ideas)}
        for group in [f.name for f in dataclasses.fields(Run) if f.name in registry.groups() and f.name != "ideas"]:
            cfg[group] = _typed(group, group, plain.pop(group))
        del plain["ideas"]
        run = OmegaConf.to_object(OmegaConf.merge(cfg, plain))
    except (KeyError, AttributeError, TypeError, ValueError, OmegaConfBaseException) as error:
        from nocap.config.errors import explain  # Hydra comes with it

        raise ValueError(f"{rule}: {explain(error)}") from error
    assert isinstance(run, Run)
    return run


def _typed(group: str, place: str, plain: dict[str, Any]) -> Any:
    """An option's plain form with its schema, which its kind names; a record from before every option had one has its group's first."""
    rows = registry.options(group)
    kind = plain.get("kind", next(iter(rows)) if group == place else None)
    if kind not in rows:
        rule = f"be one of {', '.join(rows)}, or of an option that --config-dir brings (--allow-code takes the record's own copy)"
        raise ValueError(f"{place}.kind must {rule}, got {kind!r}")
    return OmegaConf.merge(OmegaConf.structured(rows[kind]), plain)


def refuse_interpolations(plain: Any) -> None:
    """A record holds values. `${oc.env:…}` in a record from elsewhere would read this machine's environment."""
    if isinstance(plain, str) and "${" in plain:
        raise ValueError(f"values must be plain, got the interpolation {plain}")
    for item in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        refuse_interpolations(item)
