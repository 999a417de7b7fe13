"""The length of a study's runs from the hours it may take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from nocap.config.compose import composed
from nocap.config.keys import require
from nocap.store.record import read_json, write_json
from nocap.study.asking import all_sessions, ask
from nocap.study.prepared import Prepared, at_budget, with_lengths
from nocap.study.sessions import hold_all

OVERHEAD = 1.15  # validation, checkpoints and start-up beside the steps
MULTIPLE = 16  # a budget's steps are rounded down to it

Say = Callable[[str], None]


def check_budget(plan: Prepared, budget_h: float | None) -> None:
    """Refuse a length that is to come from a budget, without one.

    Errors:
        ValueError: no budget, or none that is a number of hours.
    """
    rule = f"be given for scale={plan.scale}, whose length is what the hours allow"
    require(not at_budget(plan) or (budget_h is not None and 0 < budget_h < math.inf), "budget_h", rule, budget_h)


def within_budget(plan: Prepared, budget_h: float | None, *, run: bool, say: Say) -> Prepared:
    """The arms with as many steps as the hours allow, from the pace of a short timing. What a budget came to is kept, so that the same
    command goes on with the same runs.

    Errors:
        ValueError: no budget, or one too small for a step.
    """
    check_budget(plan, budget_h)
    path = plan.folder / f"budget-{budget_h:g}h.json"
    kept = read_json(path)
    if kept is None:
        require(run, "budget_h", "be one that the study was begun with, to be judged", budget_h)
        say(f"timing the arms, to spread {budget_h:g} h")
        paces = all_sessions(plan, plan.train)["pace"] or ask("steps", "pace", plan.study.seeds[0], plan.train, rounds=1)
        measured = hold_all(paces[:1], plan.folder, claims=plan.claims, say=say)[0]["measured"]["arms"]
        assert budget_h is not None
        steps = steps_for(plan, {arm: 1 / facts["tokens_per_s"] for arm, facts in measured.items()}, budget_h)
        kept = {"budget_h": budget_h, "steps": steps}
        write_json(path, kept)
    steps = kept["steps"]
    say(f"{budget_h:g} h are {steps} steps a run")
    return replace(plan, train={name: composed([*arm.overrides, f"trainer.steps={steps}"]) for name, arm in plan.train.items()})


def steps_for(plan: Prepared, seconds_a_token: Mapping[str, float], budget_h: float) -> int:
    """Steps of a whole run, so that the study's training, tuning and shorter lengths take the budget.

    Errors:
        ValueError: not even `MULTIPLE` steps.
    """
    study, extra, tuning = plan.study, with_lengths(plan), plan.study.tune
    a_step = 0.0
    for arm, composed_arm in plan.train.items():
        runs = len(study.seeds) * (1 + (sum(plan.at.lengths) if arm in extra else 0))
        runs += len(tuning.trials.get(arm, ())) * len(tuning.seeds) if tuning else 0
        a_step += runs * seconds_a_token[arm] * composed_arm.run.trainer.batch_tokens
    steps = math.floor(budget_h * 3600 / OVERHEAD / a_step / MULTIPLE) * MULTIPLE
    require(steps >= MULTIPLE, "budget_h", f"allow {MULTIPLE} steps of every run, {MULTIPLE * a_step * OVERHEAD / 3600:.2g} h", budget_h)
    return steps
