"""What a yaml may ask for in place of a value, as in `${nocap.fraction:0.05,${trainer.steps}}`:
OmegaConf's resolvers, each a function."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, cast

import omegaconf
from omegaconf import DictConfig, OmegaConf

from nocap.config import defaults
from nocap.config.option import Option
from nocap.config.trainer import Compile, Device, Precision
from nocap.options.attention import yaml_defaults as attention
from nocap.options.model import Model
from nocap.options.optimizer.adamw import beta2_of
from nocap.options.tokenizer import Tokenizer


def _fraction(share: float, total: int) -> int:
    return math.floor(share * total)


def _quotient(total: float, part: float) -> int:
    """Return how often the part is in the total, at least once. A wrong part is refused where it is
    read."""
    if part <= 0:
        return 1
    return max(1, math.floor(total / part))


def _least(a: float, b: float) -> float:
    """Return the smaller one. OmegaConf 2.4 inspects what it is given, and a builtin says
    nothing."""
    return min(a, b)


def _times(a: float, b: float) -> float:
    return a * b


def _beta2(default: float, half_life: float | None, batch: int) -> float:
    """Return β2 of a half-life in tokens, or the default. One that is no positive number is refused
    where it is read."""
    if half_life is None or half_life <= 0:
        return default
    return beta2_of(half_life, batch)


def _precision(device: Device, model: Model) -> Precision:
    return defaults.precision(device, model)[0]


def _tokenizer(tokenizer: DictConfig) -> Tokenizer:
    return cast(Tokenizer, OmegaConf.to_object(tokenizer))


def _compile(device: Device, model: Model, tokenizer: DictConfig, *run: int) -> Compile:
    return defaults.compilation(device, model, _tokenizer(tokenizer), *run)[0]


def _micro_batch(device: Device, model: Model, tokenizer: DictConfig, *run: int) -> int:
    return defaults.micro_batch(device, model, _tokenizer(tokenizer), *run)[0]


def _cuda_graphs(
    device: Device,
    model: Model,
    tokenizer: DictConfig,
    batch_tokens: int,
    devices: int,
    *,
    _root_: Any,
) -> bool:
    places = [(_root_, name) for name in _root_ if name not in ("trainer", "ideas")]
    places += [(_root_.ideas, name) for name in _root_.ideas]
    kinds = [OmegaConf.get_type(parent, name) for parent, name in places]
    options = [kind for kind in kinds if kind is not None and issubclass(kind, Option)]
    return defaults.cuda_graphs(
        device, model, _tokenizer(tokenizer), batch_tokens, devices, options
    )[0]


def _hang_timeout_s(device: Device) -> float:
    """Return ten minutes, and an hour on a CPU, where one micro-batch of d48 takes a core so
    long."""
    if device is Device.cpu:
        return 3600.0
    return 600.0


WANDB_MODES = {"dryrun": "offline", "run": "online"}  # the older names that its client takes


def _wandb(name: str, default: str | None) -> str | None:
    """Return what a variable of W&B's says, as WANDB_PROJECT, or the default where it is not
    set."""
    text = os.environ.get(f"WANDB_{name}") or default
    if name == "MODE" and text is not None:
        return WANDB_MODES.get(text, text)
    return text


def _wandb_list(name: str) -> list[str]:
    """Return the texts of a variable that has commas between them."""
    texts = os.environ.get(f"WANDB_{name}", "").split(",")
    return [text.strip() for text in texts if text.strip()]


# What a yaml may ask for instead of a number. Device, precision and threads are decided here, once,
# and travel as plain values.
RESOLVERS: dict[str, Callable[..., object]] = {
    "gqa_heads": attention.gqa_heads,
    "fraction": _fraction,
    "quotient": _quotient,
    "least": _least,
    "times": _times,
    "beta2": _beta2,
    "pattern": attention.pattern,
    "device": defaults.device,
    "precision": _precision,
    "threads": defaults.threads,
    "malloc": defaults.malloc,
    "compile": _compile,
    "micro_batch": _micro_batch,
    "cuda_graphs": _cuda_graphs,
    "hang_timeout_s": _hang_timeout_s,
    "local_kernel": attention.local_kernel,
    "fused_kernel": attention.fused_kernel,
    "wandb": _wandb,
    "wandb_list": _wandb_list,
}
OLD = omegaconf.__version__.startswith("2.3.")
# what 2.4 calls the same
register_resolver: Callable[..., None] = (
    OmegaConf.register_new_resolver if OLD else OmegaConf.register_resolver
)
for _name, _resolver in RESOLVERS.items():
    register_resolver(f"nocap.{_name}", _resolver, replace=True)
