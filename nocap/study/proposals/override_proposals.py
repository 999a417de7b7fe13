"""Proposals as overrides of nocap's own trainer, each with the baseline's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from nocap.config import hardware
from nocap.config.arm_defaults import as_in, is_beyond_graphs
from nocap.config.compose import Composed, composed
from nocap.config.errors import FailedError
from nocap.config.keys import require
from nocap.config.overrides import parse_override
from nocap.config.run import Run
from nocap.sources.races.command_words import split_words
from nocap.store.identity import config_that_counts
from nocap.store.record_files import digest
from nocap.store.source_hashes import source_hashes
from nocap.study.proposals.campaign import Losses, Proposal, Proposals
from nocap.study.spec import Propose, Study
from nocap.study.spec_checks import CLOSED
from nocap.study.study_plan import check_fair, compose_arms, training_overrides
from nocap.study.tasks import loss_of, train, trainings

OURS = ("seed", *CLOSED)  # keys that the study sets, not who proposes
BASELINE = "baseline"
PROPOSAL = "proposal"


def of_overrides(
    study: Study,
    rules: Propose,
    scale: str,
    texts: Sequence[str],
    *,
    output_dir: str,
    steps: int | None,
) -> Proposals:
    """Check all proposals before the first one is trained, and return how each is measured.

    Errors:
        ValueError: a proposal that does not compose, sets what the study sets, is no fair
            comparison, or has too many FLOPs a token.
    """
    at = study.at(scale)
    if study.tune.trials:
        raise ValueError("tune does not work with propose, because propose does not search")
    overrides = training_overrides(at, output_dir, steps)
    baseline = compose_arms(study, at, [study.baseline], overrides)[study.baseline]
    proposals = list[Proposal]()
    for text in texts:
        words = split_words(text, "--propose")
        side = _compose(rules, baseline, words)
        measure = partial(_train, study.name, {PROPOSAL: side, BASELINE: baseline})
        proposals.append(Proposal(words=words, content=_digest(side), measure=measure))
    trainer = baseline.run.trainer
    machine = hardware.describe(trainer.device, trainer.threads)
    fixed: dict[str, object] = {
        name: getattr(rules, name) for name in ("gain", "flops", "first_seed")
    }
    fixed["baseline"] = _config(baseline)
    return Proposals(
        proposals=proposals,
        against=_digest(baseline),
        fixed=digest(fixed),
        machine=str(machine["fingerprint"]),
        scale=scale,
    )


def _digest(side: Composed) -> str:
    """Digest what a side trains: its resolved config without the seed, and its source. A name is no
    part of it."""
    return digest({"config": _config(side), "source": source_hashes(side.run)})


def _config(side: Composed) -> dict[str, object]:
    """Return the resolved config of a side without its seed."""
    return {**config_that_counts(side.run), "seed": None}


def _compose(rules: Propose, baseline: Composed, words: Sequence[str]) -> Composed:
    """Compose the proposal's overrides on top of the baseline's, and check them."""
    for word in words:
        name = parse_override(word).key_or_group
        if name.startswith(OURS):
            raise ValueError(f"a proposal must not set {name}: the study sets it")
    proposal = _beside(baseline, [*baseline.overrides, *words])
    check_fair({BASELINE: baseline, PROPOSAL: proposal})
    sides = (proposal.run, baseline.run)
    tokens, most = (run.tokens_before(run.trainer.steps) for run in sides)
    rule = f"be equal to the baseline's {most:,} tokens"
    require(tokens == most, "trainer.steps × trainer.batch_tokens", rule, f"{tokens:,}")
    if rules.flops is not None:
        check_flops(sides, most=rules.flops)
    return proposal


def _beside(baseline: Composed, overrides: Sequence[str]) -> Composed:
    """Return a proposal with the baseline's precision, compilation and micro-batch. It has the
    baseline's CUDA graphs too, unless none is known to hold what it does: proposals come one by one
    to a baseline that stays as it is, losses alone are compared, and a graph changes none."""
    if baseline.run.trainer.cuda_graphs and is_beyond_graphs(composed(overrides)):
        return as_in(baseline, [*overrides, "trainer.cuda_graphs=false"])
    return as_in(baseline, overrides)


def check_flops(sides: Sequence[Run], *, most: float) -> None:
    from nocap.model.flops import flops_per_token  # torch

    rule = f"be at most {most:g} times the baseline's (propose.flops)"
    flops = list[float]()
    for run in sides:
        counted, basis = flops_per_token(run, vocab_size=run.tokenizer.vocab_size)
        require(counted is not None, "FLOPs of a token", rule, basis)
        flops.append(cast(float, counted))
    share = flops[0] / flops[1]
    require(share <= most, "FLOPs of a token", rule, f"{share:.3f} times")


def _train(label: str, sides: Mapping[str, Composed], seeds: Sequence[int]) -> Losses:
    """Train what is missing of both sides with these seeds, and return their losses.

    Errors:
        FailedError: a run failed.
    """
    runs = trainings(sides, {seed: [*sides] for seed in seeds})
    losses = dict[tuple[str, int], float]()
    results = train(runs, label)
    for run in runs:
        record = run.record()
        if record is None:
            reason = results[run.plan.identity].reason
            raise FailedError(f"{label} {run.arm}, seed {run.seed}: {reason}")
        losses[run.arm, run.seed] = loss_of(record)
    return {seed: (losses[PROPOSAL, seed], losses[BASELINE, seed]) for seed in seeds}
