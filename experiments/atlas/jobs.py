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
from nocap.store.record_files import read_json

# those that this atlas does not support are options from outside
outside.use([HERE / "ideas", HERE.parent / "objectives" / "options"])
RUNS = HERE / "runs.jsonl"
SCALE = "experiment=atlas_cpu", "trainer.precision=bf16"  # of every line of runs.jsonl
# shares of the scale's steps
WHOLE = 1.0
SCREEN = 0.5
SHORT = 0.25
LARGES = (0.125, SHORT)  # lengths of the larger size
# nats that an idea has to gain on the seeds before this one, on average, to be trained on it too
GOES_ON = {1: -0.04, 2: 0.01}
IDEAS = "ideas=["

# before ideas' names
LARGE = "large"  # six times the arithmetic
SEARCHED = "searched"  # the recipe's
BATCH = "batch"  # without the recipe's batch
# of the baseline's, after LARGE: a wider model may want a lower one
RATES = {"rate": 1.0, "half_rate": 0.5, "quarter_rate": 0.25}
STEPS = HERE / "steps.json"
TUNED = HERE / "tuned.json"
STACK = HERE / "stack.json"
RECIPE = HERE / "recipe.json"
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
    arms_without = dict[str, str]()
    for idea in stack():
        others = [other for other in stack() if other != idea]
        arms_without[idea] = joined(SEARCHED, *others)
    arms_without["its smaller batch"] = joined(SEARCHED, BATCH, *stack())
    return arms_without


def large(*ideas: str) -> str:
    """At the best of the rates on a seed that nothing is compared on."""
    loss_by_job = losses()

    def loss_of(arm: str) -> float:
        return loss_by_job.get((TUNED_ON, SHORT, arm)) or math.inf

    candidates = [joined(LARGE, rate, *ideas) for rate in RATES]
    return min(candidates, key=loss_of)


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
    gains = list[float]()
    for (_, other), by_arm in Blocks(SCREEN, known()).losses.items():
        if other < seed and {BASELINE, arm} <= by_arm.keys():
            gains.append(by_arm[BASELINE] - by_arm[arm])
    if len(gains) < seed:
        return False
    return sum(gains) / len(gains) > GOES_ON[seed]


def phases() -> dict[str, list[Job]]:
    """Seed by seed, the baseline first: what is done of a phase is balanced."""
    seeds = range(3)
    shorter = [share for share in LENGTHS if share < WHOLE]
    parts = [recipe(), *left_out().values()]
    by_phase: dict[str, list[Job]] = {}
    by_phase["noise"] = [(seed, WHOLE, BASELINE) for seed in range(8)]
    by_phase["lengths"] = [(seed, share, BASELINE) for seed in seeds for share in shorter]
    by_phase["screen"] = list[Job]()
    for seed in seeds:
        screened = [arm for arm in runnable() if goes_on(arm, seed)]
        by_phase["screen"] += [(seed, SCREEN, arm) for arm in screened]
    by_phase["parts"] = [(seed, RACED, arm) for seed in seeds for arm in parts]
    by_phase["large"] = larger_jobs(seeds)
    by_phase["whole"] = [(seed, WHOLE, arm) for seed in seeds for arm in runnable()]
    return by_phase


def larger_jobs(seeds: Sequence[int]) -> list[Job]:
    """The rates of the larger size; then, when all have ended, the arms at the best of them."""
    jobs = list[Job]()
    for rate in RATES:
        jobs.append((TUNED_ON, SHORT, joined(LARGE, rate)))
        jobs.append((TUNED_ON, SHORT, joined(LARGE, rate, *stack())))
    if not ended(jobs):
        return jobs
    baseline = large()
    together_arm = large(*stack())
    shortest, short = LARGES
    for seed in seeds:
        jobs.append((seed, short, baseline))
        jobs.append((seed, short, together_arm))
    jobs += [(seed, shortest, baseline) for seed in seeds]
    return jobs


def known() -> list[dict[str, Any]]:
    if not RUNS.exists():
        return []
    return [json.loads(line) for line in RUNS.read_text().splitlines()]


def missing(jobs: Sequence[Job], *, here: str) -> list[Job]:
    """What no machine has run, with the baselines of their blocks that this machine lacks, before
    them."""
    done = set[Job]()
    for run in known():
        if run["arm"] != BASELINE or run["machine"] == here:
            done.add((run["seed"], run["share"], run["arm"]))
    with_baselines = list[Job]()
    for job in jobs:
        if job in done:
            continue
        seed, share, _ = job
        with_baselines += [(seed, share, BASELINE), job]
    return [job for job in dict.fromkeys(with_baselines) if job not in done]


def words_of(arm: str) -> list[str]:
    """Its overrides; of several ideas joined by + those of all, where a later one wins."""
    words = dict[str, None]()
    for part in arm.split("+"):
        words |= dict.fromkeys(settings_of(part) or arms()[part]["with"])
    ideas = list[str]()
    others = dict[str, str]()
    for word in words:
        if word.startswith(IDEAS):
            ideas += word[len(IDEAS) : -1].split(",")
        else:
            others[word.partition("=")[0]] = word
    if not ideas:
        return list(others.values())
    return [f"{IDEAS}{','.join(ideas)}]", *others.values()]


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
    if part == BATCH:
        return [f"trainer.batch_tokens={baseline.trainer.batch_tokens}"]
    return []
