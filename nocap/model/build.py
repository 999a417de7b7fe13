"""Build a run's model, whichever option makes it, and count its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from nocap.config.keys import InputError
from nocap.model.head import Head
from nocap.model.language_model import LanguageModel
from nocap.options.ideas import JOINTS, overrides

if TYPE_CHECKING:
    from nocap.config.run import Run


def build_model(run: Run, *, vocab_size: int) -> LanguageModel:
    """Return the run's model on the CPU, its weights a function of the seed alone: the same for
    every device and world size.

    Errors:
        InputError: what `build` returned is no `LanguageModel`; or an idea has a joint that this
            model has no place for, or for which it built no part.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = run.model.build(run, vocab_size=vocab_size)
    if not isinstance(model, LanguageModel):
        raise InputError(
            f"model.kind={run.model.kind} must build a nocap.model.language_model.LanguageModel, "
            f"got {type(model).__name__}"
        )
    check_plugged_in(run, model)
    return model


def check_plugged_in(run: Run, model: LanguageModel) -> None:
    """Refuse ideas with a joint that is never called: the option would have no effect, in
    silence."""
    places = {path for path, _ in model.named_modules()}
    for name, idea in run.ideas.items():
        has_part = {
            "build": f"ideas.{name}" in places,
            "build_layer": any(path.endswith(f".ideas.{name}") for path in places),
            "build_around": f"around.{name}" in places,
        }
        for builder, joints in JOINTS.items():
            own_joints = [joint for joint in joints if overrides(idea, joint)]
            if own_joints and not has_part[builder]:
                raise InputError(
                    f"ideas.{name} must return a module from {builder}, because it has the method "
                    f"{own_joints[0]}, but returned none with model.kind={run.model.kind}"
                )
            if has_part[builder] and not own_joints:
                raise InputError(
                    f"ideas.{name} must have a method that uses its module from {builder}: one of "
                    f"{', '.join(joints)}"
                )


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Return two counts: `total` counts a tied matrix once; `non_embedding` leaves out every table
    of embeddings, and the head's matrix."""
    total = sum(p.numel() for p in model.parameters())
    head = getattr(model, "head", None)
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    if isinstance(head, Head):
        tables.append(head.unembed.weight)
    sizes = {id(t): t.numel() for t in tables}
    return {"total": total, "non_embedding": total - sum(sizes.values())}
