"""Proposals as overrides of nocap's own trainer: the baseline's config with other words, as many tokens, and the study's seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from nocap.config import compose as composing
from nocap.config import hardware
from nocap.config.compose import Composed, as_in
from nocap.config.errors import FailedError
from nocap.config.keys import require
from nocap.model.flops import component_flops
from nocap.store.identity import config_that_counts, digest, source_hashes
from nocap.study.plan import check_fair, compose_arms, training_overrides
from nocap.study.propose import Asked, Losses, Proposal
from nocap.study.spec import CLOSED, Propose, Study
from nocap.study.tasks import loss_of, train, trainings

OURS = ("seed", *CLOSED)  # keys that the study sets, not who proposes
BASELINE, PROPOSAL = "baseline", "proposal"


def asked(study: Study, rules: Propose, scale: str, texts: Sequence[Sequence[str]], *, output_dir: str, steps: int | None) -> Asked:
    """All are checked before the first one is trained.

    Errors:
        ValueError: a proposal that does not compose, sets what the study sets, is no fair comparison, or has too many FLOPs a token.
    """
    require(scale in study.scales, "scale", f"be one of the study's {', '.join(study.scales)}", scale)
    require(not study.tune.trials, "tune", "be left out of a study with propose: nothing is searched", "one")
    at = study.scales[scale]
    baseline = compose_arms(study, at, [study.baseline], training_overrides(at, output_dir, steps))[study.baseline]
    sides = [(words, _composed(rules, baseline, words)) for words in texts]
    trainer = baseline.run.trainer
    return Asked(
        proposals=[
            Proposal(words=words, arm=_arm(side), measure=partial(_losses, study.name, {PROPOSAL: side, BASELINE: baseline}))
            for words, side in sides
        ],
        against=_arm(baseline),
        fixed={
            **{name: getattr(rules, name) for name in ("gain", "flops", "first_seed")},
            "baseline": {**config_that_counts(baseline.run), "seed": None},
        },
        common={"machine": hardware.describe(trainer.device, trainer.threads)["fingerprint"], "scale": scale},
    )


def _arm(side: Composed) -> str:
    """The digest of what a side trains: its resolved config without the seed, and its source. A name is no part of it."""
    return digest({"config": {**config_that_counts(side.run), "seed": None}, "source": source_hashes(side.run)})


def _composed(rules: Propose, baseline: Composed, words: Sequence[str]) -> Composed:
    """The proposal's overrides on top of the baseline's, with its precision and compilation."""
    for word in words:
        name = composing.parsed(word).key_or_group
        require(not name.startswith(OURS), name, "be left out of a proposal: the study sets it", word)
    proposal = as_in(baseline, [*baseline.overrides, *words])
    check_fair({BASELINE: baseline, PROPOSAL: proposal})
    mine, theirs = (side.run.tokens_before(side.run.trainer.steps) for side in (proposal, baseline))
    require(mine == theirs, "trainer.steps × trainer.batch_tokens", f"be the baseline's {theirs:,} tokens", f"{mine:,}")
    if rules.flops is not None:
        flops = [sum(component_flops(side.run, vocab_size=side.run.tokenizer.vocab_size).values()) for side in (proposal, baseline)]
        ratio = flops[0] / flops[1]
        require(ratio <= rules.flops, "FLOPs of a token", f"be at most {rules.flops:g} of the baseline's (propose.flops)", f"{ratio:.3f}")
    return proposal


def _losses(label: str, sides: Mapping[str, Composed], seeds: Sequence[int]) -> Losses:
    runs, losses = trainings(sides, {seed: [*sides] for seed in seeds}), dict[tuple[str, int], float]()
    results = train(runs, label)
    for run in runs:
        if (record := run.record()) is None:
            raise FailedError(f"{label} {run.arm}, seed {run.seed}: {results[run.plan.identity].reason}")
        losses[run.arm, run.seed] = loss_of(record)
    return {seed: (losses[PROPOSAL, seed], losses[BASELINE, seed]) for seed in seeds}
