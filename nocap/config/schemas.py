"""What Hydra is told of nocap: the schemas in its store, the resolvers behind the yamls' defaults, the folders from outside."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from nocap import outside
from nocap.config import defaults, gate, registry
from nocap.config.run import Run
from nocap.config.trainer import Device, Trainer
from nocap.options.attention.softmax import Kernel
from nocap.options.model import Model
from nocap.options.optimizer.adamw import beta2_of
from nocap.options.tokenizer import Tokenizer


def register() -> None:
    """Tell Hydra of the schemas, under `schema/`, of the resolvers and of the folders from outside. A second call costs nothing.

    Errors:
        ValueError: an option from outside cannot be imported.
    """
    _register(outside.state())


@lru_cache(maxsize=1)
def _register(state: str) -> None:
    store = ConfigStore.instance()
    store.store(group="schema", name="run", node=Run, package="_global_")
    store.store(group="schema/trainer", name="trainer", node=Trainer)
    for group in registry.groups():
        for kind, schema in registry.options(group).items():
            store.store(group=f"schema/{group}", name=kind, node=schema)
    # Hydra's plugins are all that `hydra_plugins` on the path holds. `python -m` puts the working directory there: a stranger's, perhaps.
    path, sys.path[:] = sys.path[:], [place for place in sys.path if place and Path(place).resolve() != Path.cwd()]
    Plugins.instance().register(_OutsideSearchPath)
    sys.path[:] = path
    gate.use_sources()
    for name, resolver in _RESOLVERS.items():
        OmegaConf.register_new_resolver(f"nocap.{name}", resolver, replace=True)


class _OutsideSearchPath(SearchPathPlugin):
    """The folders of `--config-dir` and of installed packages."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in outside.folders():
            search_path.append(provider="nocap", path=f"file://{folder}")


def _gqa_heads(n_head: int) -> int:
    """Key/value heads for groups of 3, 2 or 5 query heads: the first that divides."""
    for group in (3, 2, 5):
        if n_head % group == 0:
            return n_head // group
    raise ValueError(f"attention=gqa needs model.n_head divisible by 3, 2 or 5, or an explicit attention.n_kv_heads, got {n_head}")


def _beta2(default: float, half_life: float | None, batch: int) -> float:
    """A half-life that is no positive number is refused where it is read."""
    return default if half_life is None or half_life <= 0 else beta2_of(half_life, batch)


def _device(value: Device | str) -> Device:
    """An interpolated enum arrives as a member, or as text where a default's own interpolation made it."""
    return value if isinstance(value, Device) else Device[value]


def _work(model: DictConfig, tokenizer: DictConfig, steps: int = 0, batch: int = 0, threads: int = 1, devices: int = 1) -> defaults.Work:
    shape, vocabulary = OmegaConf.to_object(model), OmegaConf.to_object(tokenizer)
    assert isinstance(shape, Model)
    assert isinstance(vocabulary, Tokenizer)
    return defaults.Work(shape, vocabulary.vocab_size, steps * batch // max(1, threads * devices))


def _number(value: object) -> float:
    """Text times a number would be that much text."""
    if not isinstance(value, int | float):
        raise ValueError(f"nocap.times, nocap.fraction and nocap.quotient are of numbers, got {str(value)[:40]!r}")
    return value


def _quotient(whole: object, part: object) -> int:
    """How many whole parts there are, at least one: a part that is not positive is refused where it is read."""
    return max(1, math.floor(_number(whole) / part)) if (part := _number(part)) > 0 else 1


# What a yaml may ask for instead of a number. Device, precision and threads are decided here, once, and travel as plain values.
_RESOLVERS: dict[str, Callable[..., object]] = {
    "gqa_heads": _gqa_heads,
    "fraction": lambda share, whole: math.floor(_number(share) * _number(whole)),
    "quotient": _quotient,
    "least": lambda a, b: min(_number(a), _number(b)),
    "times": lambda a, b: _number(a) * _number(b),
    "beta2": _beta2,
    "device": lambda: defaults.device().name,
    "precision": lambda device, model, tokenizer, *run: defaults.precision(_device(device), _work(model, tokenizer), *run)[0].name,
    "threads": lambda device, devices: defaults.threads(_device(device), devices),
    "compile": lambda device, *work: defaults.compilation(_device(device), _work(*work))[0].name,
    "hang_timeout_s": lambda device: 3600.0 if _device(device) is Device.cpu else 600.0,  # one micro-batch of d48 takes a CPU core an hour
    "local_kernel": lambda device: (Kernel.blocks if _device(device) is Device.cpu else Kernel.flex).name,
}
