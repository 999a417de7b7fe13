"""What an option is: a part of the config that knows its rules and builds what it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from nocap.config.keys import require

# A run, where an interface is asked about one. The tree of a run, `nocap.config.run.Run`, holds the
# options, so no interface names it. What an interface itself reads is in
# `nocap.options.run_parts.RunParts`; an option's own methods have `run: Run`.
AnyRun = Any


# With `slots` a dataclass is made anew, and `super()` in it would mean the class before. So a
# subclass calls its parent by name, as in `Option.check(self, run)`.
@dataclass(kw_only=True, slots=True)
class Option:
    """The base of every option of every group. `kind` is the option's own name in its group, as
    `config.yaml` records it.

    Its keys are its fields, with values in its yaml. A number's limits stand beside it, as in
    `jobs: int = key(ge=1, le=64)`. `__post_init__` refuses what else is wrong with a value, `check`
    what is wrong only beside the other groups. Options import torch when they build, so that the
    command line answers without it.

    `causal` and `random` are no keys. With another value than here, an option from outside says
    that it is meant to be what `nocap.training.probe` refuses, and the record keeps that. What an
    option draws, in a forward or in an update, comes from torch's own generator, as that of
    `F.dropout` does: it is seeded for each micro-batch and each update.

    `READ_BY` and `READS` are about keys that would be without effect. An interface says which keys
    a method of its own reads, and nothing else does. An option with another such method takes none
    but their defaults, unless its class names them in `READS`.
    """

    # method → keys, as in "model.norm_placement"
    READ_BY: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    READS: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[bool] = True  # False: logits are meant to change with later tokens
    random: ClassVar[bool] = False  # True: two forwards of the same tokens are meant to differ
    kind: str

    def __post_init__(self) -> None:
        """Refuse, with `require`, values that do not fit each other. A number's limits stand with
        its key: `key(ge=0, lt=1)`."""

    def check(self, run: AnyRun) -> None:
        """Refuse, with `require`, values that do not fit other groups' options."""

    def learns_from(self) -> str | None:
        """Return the folder of the finished run whose weights it uses, from its key `run`: a part
        of the identity, its training a part of the time."""
        return None


def declared(option: Option, fact: str, *, of: str | tuple[str, ...]) -> Callable[..., Any] | None:
    """Return the option's method `fact`, or None where it has none, or only inherits one that
    describes another class's work.

    A fact (its FLOPs, its cached form, its kernel's name) describes what a method `of` the option
    builds. A subclass that builds something else does not inherit it: the fact must come from the
    class that builds, or from a subclass of that.
    """
    if not hasattr(option, fact):
        return None
    builds = (of,) if isinstance(of, str) else of
    for name in builds:
        if _level(option, fact) > _level(option, name):
            return None
    return getattr(option, fact)


def _level(option: Option, name: str) -> int:
    """Return the place, among the option's class and its parents, of the first that defines this
    name."""
    order = type(option).__mro__
    for level, cls in enumerate(order):
        if name in vars(cls):
            return level
    return len(order)


def unread(option: Option) -> Iterator[str]:
    """List the keys that no method reads. They belong to a method of the interface that the option
    replaces, and the option does not name them as read."""
    interface = _level(option, "READ_BY")
    for method, keys in option.READ_BY.items():
        own = _level(option, method)
        if own >= interface:
            continue
        # what a parent reads is about the parent's method
        read = option.READS if _level(option, "READS") <= own else ()
        for key in keys:
            if key not in read:
                yield key


def require_default(part: Any, key: str, why: str) -> None:
    """Refuse a value other than the default for a key that nothing reads."""
    name = key.rpartition(".")[2]
    default = type(part).__dataclass_fields__[name].default
    value = getattr(part, name)
    require(value == default, key, f"keep its default, {_shown(default)}, {why}", _shown(value))


def _shown(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value
