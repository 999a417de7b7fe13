"""Values that an option's module wants in the record: `log(self, "gate", value)` in a forward."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from nocap.config.keys import InputError

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# a module's own dict: one that all layers share would be compiled anew for each
PLACE = "logged_here"


def log(module: nn.Module, name: str, value: Tensor) -> None:
    """Log the mean of a tensor's numbers as `log/NAME` in the rows of a run: over all modules that
    log under this name, the step's micro-batches, and the ranks. It changes no number of the
    training.

    `module` is the one whose forward this is, a part of the run's model. Outside training nothing
    is logged.

    Errors:
        InputError: `module` is no module, as an option itself is none, or `value` is no tensor.
    """
    if not isinstance(module, nn.Module):
        raise InputError(
            f"log of {name!r} must get a module of the model, such as an idea's part, got "
            f"{type(module).__name__}"
        )
    here: dict[str, Tensor] | None = getattr(module, PLACE, None)
    if here is not None and module.training:
        if not isinstance(value, Tensor):
            raise InputError(f"log of {name!r} must get a tensor, got {type(value).__name__}")
        here[name] = value.detach().float().mean()


class Logs:
    """What the modules of a model log, from one forward to the next."""

    def __init__(self, model: nn.Module) -> None:
        self._places = list[dict[str, Tensor]]()
        for module in model.modules():
            place = dict[str, Tensor]()
            setattr(module, PLACE, place)
            self._places.append(place)

    def clear(self) -> None:
        """Forget what was logged: before each forward, so that a compiled one finds what it was
        compiled for."""
        for place in self._places:
            place.clear()

    def means(self) -> dict[str, Tensor]:
        """Return the mean of each name over the modules that logged it.

        Errors:
            InputError: a name that cannot be a key of a row.
        """
        values = dict[str, list[Tensor]]()
        for place in self._places:
            for name, value in place.items():
                values.setdefault(name, []).append(value)
        for name in values:
            if not NAME.fullmatch(name):
                rule = "have at most 64 characters, which are letters, digits and _ . -"
                raise InputError(f"the name of a logged value must {rule}, got {name!r}")
        return {name: torch.stack(several).mean() for name, several in sorted(values.items())}
