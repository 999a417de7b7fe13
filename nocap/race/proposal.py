"""A proposal as runs: composed beside the baseline, checked to be fair, and trained pair by pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nocap.config import compose as composing
from nocap.config.compose import Composed, as_in
from nocap.config.keys import require
from nocap.launch.plan import outcome
from nocap.model.flops import component_flops
from nocap.race.campaign import Measure
from nocap.race.rules import Rules
from nocap.store.identity import config_that_counts, digest
from nocap.store.source import source_hashes
from nocap.study.arms import check_fair, with_seed
from nocap.study.cells import Cells, FailedError, Wanted
from nocap.study.spec import CLOSED

BASELINE, PROPOSAL = "baseline", "proposal"
OURS = ("seed", *CLOSED)  # keys that the race sets, not who proposes


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """A proposal beside the baseline, both composed with the baseline's precision and compilation."""

    baseline: Composed
    proposal: Composed

    def measure(self, label: str) -> Measure:
        return partial(_losses, self, label)


def arm_of(side: Composed) -> str:
    """The digest of what a side trains: its resolved config without the seed, and its source. A name is no part of it."""
    config = {key: value for key, value in config_that_counts(side.run).items() if key != "seed"}
    return digest({"config": config, "source": source_hashes(side.run)})


def compose(rules: Rules, overrides: Sequence[str], *, output_dir: str) -> Sides:
    """The proposal's overrides on top of the baseline's.

    Errors:
        ValueError: a proposal that does not compose, sets what the race sets, is no fair comparison, or has too many FLOPs a token.
    """
    for word in overrides:
        (name,) = composing.keys([word])
        require(not name.startswith(OURS), name, "be left out of a proposal: the race sets it", word)
    place = [*rules.overrides, f"output_dir='{output_dir}'", *rules.baseline]
    baseline = as_in(None, place)
    proposal = as_in(baseline, [*place, *overrides])
    check_fair({BASELINE: baseline, PROPOSAL: proposal}, baseline=BASELINE)
    _check_tokens(baseline, proposal)
    if rules.flops is not None:
        ratio = _flops(proposal) / _flops(baseline)
        require(
            ratio <= rules.flops, "FLOPs of a token", f"be at most {rules.flops:g} of the baseline's (race.yaml: flops)", f"{ratio:.3f}"
        )
    return Sides(baseline=baseline, proposal=proposal)


def _check_tokens(baseline: Composed, proposal: Composed) -> None:
    mine, theirs = (side.run.tokens_before(side.run.trainer.steps) for side in (proposal, baseline))
    require(mine == theirs, "trainer.steps × trainer.batch_tokens", f"be the baseline's {theirs:,} tokens", f"{mine:,}")


def _flops(side: Composed) -> float:
    return sum(component_flops(side.run, vocab_size=side.run.tokenizer.vocab_size).values())


def _losses(sides: Sides, label: str, seed: int) -> tuple[float, float]:
    """Train what is missing of a pair.

    Errors:
        StoppedError, FailedError: somebody asked to stop, or a run failed; the same command goes on.
    """
    pair = {PROPOSAL: sides.proposal, BASELINE: sides.baseline}
    cells = Cells([Wanted(arm=name, seed=seed, composed=with_seed(side, seed)) for name, side in pair.items()], label=label)
    ended = cells.train()
    for _, cell in cells.of:
        if outcome(cell.plan) is None:
            result = ended.get(cell.plan.identity)
            raise FailedError(f"{cell.label}: {result.reason if result else 'no result'}")
    problems: list[str] = []
    found = {one.arm: record for one, record in cells.records(problems)}
    if problems:
        raise FailedError(problems[0])
    losses = {name: math.inf if r.status == "diverged" or r.val_loss is None else r.val_loss for name, r in found.items()}
    return losses[PROPOSAL], losses[BASELINE]
