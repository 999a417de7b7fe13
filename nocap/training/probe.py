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
from nocap.config.option import Option
from nocap.config.run import Run
from nocap.training.build import Trainee, autocast
from nocap.training.job import Job
from nocap.training.step import enter_step, forward_of

CLOSE = 1e-5  # of the largest logit
# the parts that a forward calls
IN_FORWARD = ("attention", "mlp", "norm", "position", "model", "objective", "ideas.")


def probe(job: Job, trainee: Trainee, *, step: int) -> None:
    """Refuse options from outside in whose forward, as in this step, logits change with later
    tokens, or which is not repeated bit for bit, unless a class says that it is meant to; or where
    logits change with another document beside `data.document_mask`; and a schedule that gives a
    step two rates. Eager, one sequence, on a copy of the model, alone on each rank; the random
    state is left as it was.

    Errors:
        InputError: they are refused.
    """
    run = job.run
    _check_rates(run)
    options = [(name, option) for name, option in run.options() if name.startswith(IN_FORWARD)]
    outer = [f"{name}.kind={option.kind}" for name, option in options if _is_from_outside(option)]
    if not outer:
        return
    names = ", ".join(outer)
    is_random = any(option.random is True for _, option in options)
    is_causal = all(option.causal is not False for _, option in options)
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    device = job.world.device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        trial = _Trial(job, trainee, step=step)
        _check_repeats(trial, names, is_random=is_random)
        if is_causal:
            _check_causal(trial, names)
        if run.data.document_mask:
            _check_documents(trial, names)
    random.setstate(python_state)
    np.random.set_state(numpy_state)


def _is_from_outside(option: Option) -> bool:
    modules = {cls.__module__ for cls in type(option).__mro__}
    return bool(outside.used(modules))


class _Trial:
    """Computes the forward of a step on a copy of the model."""

    def __init__(self, job: Job, trainee: Trainee, *, step: int) -> None:
        run = job.run
        self.run = run
        self.trainee = trainee
        self.step = step
        self.vocab_size = job.vocab_size
        # in training, fp8's scale is of all tokens
        self.model = copy.deepcopy(trainee.model).train(not run.model.fp8_head)
        enter_step(run, self.model, step)
        generator = torch.Generator().manual_seed(0)
        shape = (1, run.model.seq_len + 1)
        tokens_BT = torch.randint(job.vocab_size, shape, generator=generator)
        self.tokens_BT = tokens_BT.to(job.world.device)

    def compute(
        self, inputs_BT: torch.Tensor | None = None, *, seed: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and logits; the loss is the step's, whatever the inputs."""
        # what a forward changes there is in checkpoints
        self.model.load_state_dict(self.trainee.model.state_dict())
        torch.manual_seed(0)
        for p in self.model.parameters():
            if not p.any():
                p.data.normal_(std=0.05)  # a zero would hide what it multiplies
        torch.manual_seed(seed)
        step_BT, targets_BT = self.read()
        if inputs_BT is None:
            inputs_BT = step_BT
        with autocast(self.run, self.run.trainer.precision):
            loss = self.model(step_BT, targets_BT).total.detach()
            logits = self.model.logits(inputs_BT).detach()
        return loss, logits

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the forward gets: tokens and targets."""
        return forward_of(self.trainee, self.tokens_BT, step=self.step)

    def logits(self, inputs_BT: torch.Tensor) -> torch.Tensor:
        return self.compute(inputs_BT)[1]


def _check_repeats(trial: _Trial, names: str, *, is_random: bool) -> None:
    """Refuse a forward that is another the second time.

    Errors:
        InputError: it is.
    """
    loss, logits = trial.compute()
    loss_again, logits_again = trial.compute(seed=0 if is_random else 1)
    if _are_equal(loss, loss_again) and _are_equal(logits, logits_again):
        return
    if is_random:
        raise InputError(
            f"{names} must draw from torch's own generator, as F.dropout and torch.rand do, but "
            "two forwards with one seed differ; nocap seeds this generator for each micro-batch"
        )
    raise InputError(
        f"{names} must give the same numbers for the same tokens, but two forwards differ; if the "
        "code is meant to be random, set random = True in its class"
    )


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _check_causal(trial: _Trial, names: str) -> None:
    """Refuse a forward whose logits change with later tokens.

    Errors:
        InputError: they do.
    """
    inputs_BT, _ = trial.read()
    for t, changed, _ in differences(trial.logits, inputs_BT, trial.vocab_size):
        if changed is not None:
            raise InputError(
                f"{names} must not see later tokens, but the logits of token {changed} depend on "
                f"tokens from {t} on; if this is intended, set causal = False in the class"
            )


def _check_documents(trial: _Trial, names: str) -> None:
    """Refuse a forward in which logits change with the tokens of another document.

    Errors:
        InputError: they do.
    """
    run = trial.run
    assert run.document_token is not None
    tokens_BT, _ = trial.read()
    begin = tokens_BT.shape[1] // 2
    first_BT = tokens_BT.clone()
    first_BT[:, begin] = run.document_token
    other_BT = first_BT.clone()
    other_BT[:, :begin] = (first_BT[:, :begin] + 1) % run.tokenizer.vocab_size
    logits = trial.logits(first_BT)[:, begin:]
    other_logits = trial.logits(other_BT)[:, begin:]
    leak = first_difference(logits, other_logits)
    if leak is not None:
        raise InputError(
            f"with data.document_mask, {names} must not see other documents, but the logits of "
            f"token {begin + leak} depend on tokens before {begin}, where its document begins"
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
                f"schedule.kind={run.schedule.kind} must depend only on the step, but for step "
                f"{step} it gave {first:g} and then {again:g}"
            )


def differences(
    logits: Callable[[torch.Tensor], torch.Tensor], tokens_BT: torch.Tensor, vocab_size: int
) -> Iterator[tuple[int, int | None, int | None]]:
    """Yield, for some t, t and the first token before t, and from t on, whose `logits`, (B, T, V),
    change with those from t on."""
    before = logits(tokens_BT)
    T = tokens_BT.shape[1]
    for t in sorted({1, T // 2, T - 1}):
        others_BT = (tokens_BT[:, t:] + 1) % vocab_size
        after = logits(torch.cat([tokens_BT[:, :t], others_BT], 1))
        earlier = first_difference(before[:, :t], after[:, :t])
        later = first_difference(before[:, t:], after[:, t:])
        yield t, earlier, later


def first_difference(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """Return the first token whose logits, (B, T, V), differ."""
    limit = CLOSE * max(1.0, float(a.abs().max()))
    differs_BTV = (a - b).abs() > limit
    differs_T = differs_BTV.any(-1).any(0)
    if not bool(differs_T.any()):
        return None
    return int(differs_T.nonzero()[0])
