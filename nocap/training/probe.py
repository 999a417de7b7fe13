"""Tries the forward of a model: do its logits change with later tokens, and does it compute the
same again? And whether a learning rate is the same again.

B: batch, T: tokens, V: vocabulary.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch

from nocap import outside
from nocap.config.keys import InputError
from nocap.config.run import Run
from nocap.training.step import Job, Trainee, autocast, enter_step, forward_of

CLOSE = 1e-5  # of the largest logit


def probe(job: Job, trainee: Trainee, *, step: int) -> None:
    """Refuse options from outside in whose forward, as in this step, logits change with later
    tokens, or which is not repeated bit for bit, unless a class says that it is meant to; or where
    logits change with another document beside `data.document_mask`; and a schedule that gives a
    step two rates. Eager, one sequence, on a copy of the model, alone on each rank; the random
    state is left as it was.

    Errors:
        InputError: they are refused.
    """
    run, device = job.run, job.world.device
    _check_rates(run)
    options = {
        name: option
        for name, option in run.options()
        # a forward calls them
        if name.startswith(("attention", "mlp", "norm", "position", "model", "objective", "ideas."))
    }
    names = ", ".join(
        f"{name}.kind={option.kind}"
        for name, option in options.items()
        if outside.used({cls.__module__ for cls in type(option).__mro__})
    )
    if not names:
        return
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] * (device.type == "cuda")):
        # in training, fp8's scale is of all tokens
        model = copy.deepcopy(trainee.model).train(not run.model.fp8_head)
        enter_step(run, model, step)
        tokens_BT = torch.randint(
            job.vocab_size, (1, run.model.seq_len + 1), generator=torch.Generator().manual_seed(0)
        ).to(device)

        def tried(
            inputs_BT: torch.Tensor | None = None, *, seed: int = 0
        ) -> tuple[torch.Tensor, torch.Tensor]:
            """Loss and logits; the loss is the step's, whatever the inputs."""
            # what a forward changes there is in checkpoints
            model.load_state_dict(trainee.model.state_dict())
            torch.manual_seed(0)
            for p in (p for p in model.parameters() if not p.any()):
                p.data.normal_(std=0.05)  # a zero would hide what it multiplies
            torch.manual_seed(seed)
            step_BT, targets_BT = forward_of(trainee, tokens_BT, step=step)
            with autocast(run, run.trainer.precision):
                return (
                    model(step_BT, targets_BT).total.detach(),
                    model.logits(step_BT if inputs_BT is None else inputs_BT).detach(),
                )

        is_random = any(option.random is True for option in options.values())
        exact = all(
            torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
            for a, b in zip(tried(), tried(seed=0 if is_random else 1), strict=True)
        )
        if not exact and is_random:
            raise InputError(
                f"{names} must draw from torch's own generator, as F.dropout and torch.rand do, "
                f"which nocap "
                "seeds for each micro-batch: two forwards of one seed differ"
            )
        if not exact:
            raise InputError(
                f"{names} must compute the same again from the same tokens, and two forwards "
                f"differ; "
                "a class that is meant to says random = True"
            )
        if all(option.causal is not False for option in options.values()):
            inputs_BT = forward_of(trainee, tokens_BT, step=step)[0]
            for t, at, _ in differences(
                lambda other_BT: tried(other_BT)[1], inputs_BT, job.vocab_size
            ):
                if at is not None:
                    raise InputError(
                        f"{names} must see no later token, and the logits of token {at} change "
                        f"with the "
                        f"tokens from {t} on; "
                        "a class that is meant to says causal = False"
                    )
        if run.data.document_mask:
            inputs_BT = forward_of(trainee, tokens_BT, step=step)[0]
            _check_documents(run, names, inputs_BT, lambda other_BT: tried(other_BT)[1])
    random.setstate(states[0])
    np.random.set_state(states[1])


def _check_documents(
    run: Run,
    names: str,
    tokens_BT: torch.Tensor,
    logits: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Refuse a forward in which logits change with the tokens of another document.

    Errors:
        InputError: they do.
    """
    assert run.document_start is not None
    begin = tokens_BT.shape[1] // 2
    first_BT = tokens_BT.clone()
    first_BT[:, begin] = run.document_start
    other_BT = first_BT.clone()
    other_BT[:, :begin] = (first_BT[:, :begin] + 1) % run.tokenizer.vocab_size
    leak = first_difference(logits(first_BT)[:, begin:], logits(other_BT)[:, begin:])
    if leak is not None:
        raise InputError(
            f"{names} must see no token of another document beside data.document_mask, and the "
            f"logits of token {begin + leak} change with those before {begin}, where its document "
            "begins"
        )


def _check_rates(run: Run) -> None:
    """Refuse a schedule that is no function of the step: a resumed run would have other rates.

    Errors:
        InputError: it is none.
    """
    steps = run.trainer.steps
    for step in (0, steps // 2, steps - 1):
        first = run.schedule.multiplier(step=step, steps=steps)
        again = run.schedule.multiplier(step=step, steps=steps)
        if first < again or first > again:
            raise InputError(
                f"schedule.kind={run.schedule.kind} must follow from the step alone, and asked "
                f"twice for "
                f"step {step} it gives {first:g} and {again:g}"
            )


def differences(
    logits: Callable[[torch.Tensor], torch.Tensor], tokens_BT: torch.Tensor, vocab_size: int
) -> Iterator[tuple[int, int | None, int | None]]:
    """Yield, for some t, t and the first token before t, and from t on, whose `logits`, (B, T, V),
    change with those from t on."""
    before, T = logits(tokens_BT), tokens_BT.shape[1]
    for t in sorted({1, T // 2, T - 1}):
        after = logits(torch.cat([tokens_BT[:, :t], (tokens_BT[:, t:] + 1) % vocab_size], 1))
        yield (
            t,
            first_difference(before[:, :t], after[:, :t]),
            first_difference(before[:, t:], after[:, t:]),
        )


def first_difference(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """Return the first token whose logits, (B, T, V), differ."""
    differs = ((a - b).abs() > CLOSE * max(1.0, float(a.abs().max()))).any(-1).any(0)
    return int(differs.nonzero()[0]) if bool(differs.any()) else None
