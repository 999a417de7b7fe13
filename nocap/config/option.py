"""What an option is: a part of the config that knows its rules and builds what it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class Option:
    """The base of every option of every group. `kind` is the option's own name in its group, as `config.yaml`
    records it.

    Its keys are its fields, with values in its yaml. A number's limits stand beside it, as in `jobs: int =
    key(ge=1, le=64)`. `__post_init__` refuses what else is wrong with a value, `check` what is wrong only
    beside the other groups. Options import torch when they build, so that the command line answers without
    it.

    `causal` and `random` are no keys. With another value than here, an option from outside says that it is
    meant to be what `nocap.training.probe` refuses, and the record keeps that. An option that is random draws
    from torch's own generator, as `F.dropout` does: it is seeded for each micro-batch.
    """

    causal: ClassVar[bool] = True  # False: logits are meant to change with later tokens
    random: ClassVar[bool] = False  # True: two forwards of the same tokens are meant to differ
    kind: str

    def __post_init__(self) -> None:
        """Refuse, with `require`, values that do not fit each other. A number's limits stand with its key:
        `key(ge=0, lt=1)`."""

    def check(self, run: Run) -> None:
        """Refuse, with `require`, values that do not fit other groups' options."""

    def learns_from(self) -> str | None:
        """The folder of the finished run whose weights it uses, from its key `run`: a part of the identity,
        its training a part of the time."""
        return None


def declared(option: Option, fact: str, *, of: str | tuple[str, ...]) -> Callable[..., Any] | None:
    """The option's method `fact`, or None where it has none, or only inherits one that describes another
    class's work.

    A fact (its FLOPs, its cached form, its kernel's name) describes what a method `of` the option builds. A
    subclass that builds something else does not inherit it: the fact must come from the class that builds, or
    from a subclass of that.
    """
    order = type(option).__mro__

    def level(name: str) -> int:
        return next((i for i, cls in enumerate(order) if name in vars(cls)), len(order))

    builds = (of,) if isinstance(of, str) else of
    applies = level(fact) < len(order) and all(level(fact) <= level(name) for name in builds)
    return getattr(option, fact) if applies else None
