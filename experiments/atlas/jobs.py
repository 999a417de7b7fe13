"""Which arms there are, what each is made of, and which runs each phase of the atlas asks for.
Nothing here trains.

An arm is an idea of arms.yaml, several of them joined by +, or these after what sets their size,
rate or batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from worth import BASELINE, HERE, LENGTHS, Blocks

from nocap import outside
from nocap.config.compose import composed
from nocap.store.record import read_json

# those that this atlas does not support are options from outside
outside.use([HERE / "ideas", HERE.parent / "objectives" / "options"])
RUNS = HERE / "runs.jsonl"
SCALE = "experiment=atlas_cpu", "trainer.precision=bf16"  # of every line of runs.jsonl
WHOLE, SCREEN, SHORT = 1.0, 0.5, 0.25
LARGES = (0.125, SHORT)  # lengths of the larger size
# nats that an idea has to gain on the seeds before this one, on average, to be trained on it too
GOES_ON = {1: -0.04, 2: 0.01}
IDEAS = "ideas=["

LARGE, SEARCHED, BATCH = (
    "large",
    "searched",
    "batch",
)  # before ideas' names: six times the arithmetic; the recipe's; without its batch
# of the baseline's, after LARGE: a wider model may want a lower one
RATES = {"rate": 1.0, "half_rate": 0.5, "quarter_rate": 0.25}
STEPS, TUNED, STACK, RECIPE = (
    HERE / f"{name}.json" for name in ("steps", "tuned", "stack", "recipe")
)
RACED = 0.6  # of the tokens: the recipe's in its race

Job = tuple[int, float, str]  # seed, share of the scale's steps, arm
TUNED_ON = 100  # a seed that no arm is compared on


@cache
def arms() -> dict[str, dict[str, Any]]:
    """With the winners of their searches."""
    by_arm = {BASELINE: {"with": []}} | yaml.safe_load((HERE / "arms.yaml").read_text())
    winners = {arm: entry["with"] for arm, entry in decided(TUNED)["arms"].items()}
    for arm, entry in by_arm.items():
        entry["with"] = [*entry["with"], *winners.get(entry.get("like", arm), [])]
    return by_arm


def runnable() -> list[str]:
    """Return the arms whose code is there: of the others the results stay."""
    return [arm for arm, entry in arms().items() if "gone" not in entry]


def stack() -> list[str]:
    """The ideas that were put together by the rule in README.md."""
    return list(decided(STACK)["stack"])


def decided(path: Path) -> dict[str, Any]:
    decision = read_json(path)
    assert decision is not None, path
    return decision


def joined(*parts: str) -> str:
    """An arm's name; of nothing the baseline."""
    return "+".join(parts) or BASELINE


def recipe() -> str:
    return joined(SEARCHED, *stack())


def left_out() -> dict[str, str]:
    """Each part of the recipe → the recipe without it."""
    without = {
        idea: joined(SEARCHED, *(other for other in stack() if other != idea)) for idea in stack()
    }
    return without | {"its smaller batch": joined(SEARCHED, BATCH, *stack())}


def large(*ideas: str) -> str:
    """At the best of the rates on a seed that nothing is compared on."""
    loss_by_job = losses()
    return min(
        (joined(LARGE, rate, *ideas) for rate in RATES),
        key=lambda arm: loss_by_job.get((TUNED_ON, SHORT, arm)) or math.inf,
    )


def losses() -> dict[Job, float | None]:
    """`None`: it diverged."""
    return {(run["seed"], run["share"], run["arm"]): run["val_loss"] for run in known()}


def ended(jobs: Iterable[Job]) -> bool:
    return losses().keys() >= set(jobs)


def together() -> list[str]:
    """The arms of several ideas that are timed."""
    return [recipe(), *left_out().values(), large(), large(*stack())]


def goes_on(arm: str, seed: int) -> bool:
    """Whether the screening has this seed of an idea, by those before it. The baseline has all."""
    if arm == BASELINE or seed == 0:
        return True
    both = [
        by_arm
        for (_, other), by_arm in Blocks(SCREEN, known()).losses.items()
        if other < seed and {BASELINE, arm} <= by_arm.keys()
    ]
    return (
        len(both) >= seed
        and sum(by_arm[BASELINE] - by_arm[arm] for by_arm in both) / len(both) > GOES_ON[seed]
    )


def phases() -> dict[str, list[Job]]:
    """Seed by seed, the baseline first: what is done of a phase is balanced."""
    return {
        "noise": [(seed, WHOLE, BASELINE) for seed in range(8)],
        "lengths": [
            (seed, share, BASELINE) for seed in range(3) for share in LENGTHS if share < WHOLE
        ],
        "screen": [
            (seed, SCREEN, arm) for seed in range(3) for arm in runnable() if goes_on(arm, seed)
        ],
        "parts": [
            (seed, RACED, arm) for seed in range(3) for arm in (recipe(), *left_out().values())
        ],
        "large": [
            *(
                rates := [
                    (TUNED_ON, SHORT, joined(LARGE, rate, *ideas))
                    for rate in RATES
                    for ideas in ((), stack())
                ]
            ),
            *(
                (seed, LARGES[1], arm)
                for seed in range(3)
                if ended(rates)
                for arm in (large(), large(*stack()))
            ),
            *((seed, LARGES[0], large()) for seed in range(3) if ended(rates)),
        ],
        "whole": [(seed, WHOLE, arm) for seed in range(3) for arm in runnable()],
    }


def known() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def missing(asked: Sequence[Job], *, here: str) -> list[Job]:
    """What no machine has run, with the baselines of their blocks that this machine lacks, before
    them."""
    done = {
        (run["seed"], run["share"], run["arm"])
        for run in known()
        if run["arm"] != BASELINE or run["machine"] == here
    }
    left = [job for job in asked if job not in done]
    with_baselines = [
        job for seed, share, arm in left for job in ((seed, share, BASELINE), (seed, share, arm))
    ]
    return [job for job in dict.fromkeys(with_baselines) if job not in done]


def words_of(arm: str) -> list[str]:
    """Its overrides; of several ideas joined by + those of all, where a later one wins."""
    words = list(
        dict.fromkeys(
            word for part in arm.split("+") for word in settings_of(part) or arms()[part]["with"]
        )
    )
    ideas = [
        idea
        for word in words
        if word.startswith(IDEAS)
        for idea in word[len(IDEAS) : -1].split(",")
    ]
    others = {word.partition("=")[0]: word for word in words if not word.startswith(IDEAS)}
    return [*([f"{IDEAS}{','.join(ideas)}]"] if ideas else []), *others.values()]


@cache
def settings_of(part: str) -> list[str]:
    """The overrides of what is no idea."""
    if part == LARGE:
        return ["model.n_layer=6", "model.d_model=256"]
    if part == SEARCHED:
        return list(decided(RECIPE)["trials"][0]["with"])
    baseline = composed(SCALE).run
    if part in RATES:
        return [f"optimizer.lr={baseline.optimizer.lr * RATES[part]}"]
    return [f"trainer.batch_tokens={baseline.trainer.batch_tokens}"] if part == BATCH else []
