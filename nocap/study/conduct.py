"""A study from its file to its evidence: everything composed and checked first, then what is missing is trained and measured."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nocap.comparison.runs import Record
from nocap.data.tokenizer import vocab_size
from nocap.run.record import read_json, write_json
from nocap.schema import Wsd, require
from nocap.study import arms as arming
from nocap.study.arms import Composed, all_composed, check_fair, composed, words_of
from nocap.study.claim import BASELINE, LEAST, TO_TARGET, Metric, Rule
from nocap.study.evidence import Evidence, read_claims
from nocap.study.sessions import Session, SessionError, hold_all
from nocap.study.spec import DECODED, PROFILED, TIMED, At, Study, metrics
from nocap.study.training import Wanted, grid_of, record_of, train, wanted
from nocap.study.tuning import Tuned, trials_of, tune

PROFILE_REPEATS = 2  # of a step, in each seed's profile
STEPS_OF_PILOT = 100  # a config needs a length; a timed step does not know it
OVERHEAD = 1.15  # validation, checkpoints and start-up beside the steps
MULTIPLE = 16  # a budget's steps are rounded down to it

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A study at one scale, composed and checked. Nothing has been run."""

    study: Study
    at: At
    scale: str
    folder: Path  # of its runs and sessions
    train: dict[str, Composed] = field(default_factory=dict)  # before tuning, and before a budget is spread
    bench: dict[str, Composed] = field(default_factory=dict)

    @property
    def claims(self) -> dict[str, str]:
        """id → hash, as they are now."""
        return {claim.id: claim.hash() for claim in self.study.claims}


def prepare(study: Study, scale: str, *, output_dir: str) -> Prepared:
    """Compose and check everything.

    Errors:
        ValueError: no such scale, an arm or trial that does not compose, arms that are no fair comparison, a target out of reach.
    """
    require(scale in study.scales, "scale", f"be one of the study's {', '.join(study.scales)}", scale)
    at = study.scales[scale]
    folder = Path(output_dir) / "studies" / study.name / scale
    more = [f"output_dir='{folder}'", *([f"trainer.steps={STEPS_OF_PILOT}"] if at.budget else [])]
    trained = all_composed(study, at, study.trained, [*at.train, *more])
    if trained:
        check_fair(trained, baseline=study.baseline if study.baseline in trained else next(iter(trained)))
    _check_targets(study, trained)
    if study.tune and trained:
        trials_of(study.tune.trials, trained)
    benched = all_composed(study, at, study.needing((*TIMED, *PROFILED, *DECODED, Metric.exponent)), at.bench)
    for arm in study.arms:
        arming.engine_of(study, at, arm)
    for arm in study.needing(DECODED) if at.decode is not None else []:
        T, text = benched[arm].run.model.seq_len, at.decode.prompt + at.decode.new  # type: ignore[union-attr]
        require(text <= T, f"scales.{scale}.decode", f"be a text that arm {arm} has positions for: model.seq_len={T}", text)
    plan = Prepared(study=study, at=at, scale=scale, folder=folder, train=trained, bench=benched)
    for arm in [] if at.budget else with_lengths(plan):
        lengths_of(plan, trained[arm])
    return plan


def _check_targets(study: Study, trained: Mapping[str, Composed]) -> None:
    """A target that a model without any training meets is none: its first loss is about the logarithm of its vocabulary's size."""
    for claim in study.claims:
        if claim.target in (None, BASELINE) or not trained:
            continue
        first = math.log(vocab_size(trained[claim.arm].run.tokenizer.vocabulary))
        rule = f"be below the first validation loss, about ln(vocabulary) = {first:.2f}"
        require(claim.target < first, f"claim {claim.id}: target", rule, claim.target)


# --- carrying it out ---------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Done:
    """What there is after a study was carried out, or as far as it was."""

    evidence: Evidence
    tuned: Tuned
    arms: dict[str, dict[str, Composed]]
    problems: list[str] = field(default_factory=list)


def carry_out(plan: Prepared, *, run: bool, budget_h: float | None = None, only: str | None = None, say: Say = print) -> Done:
    """Train and measure what is missing, or with `run=False` only collect what there is. `only`: this arm's runs, and no session.

    Errors:
        ValueError: a run that will not do, or no budget where the scale needs one.
        training.StoppedError: somebody asked to stop; everything that was finished is kept.
    """
    problems: list[str] = []
    if at_budget(plan):
        plan = _within_budget(plan, budget_h, run=run, say=say)
    tuned = tune(plan.study, plan.train, claims=plan.claims, run=run, only=only) if plan.study.tune and plan.train else Tuned()
    training = {name: _tuned(arm, tuned.words.get(name, [])) for name, arm in plan.train.items() if only in (None, name)}
    runs, shorter = _train(plan, training, run=run)
    sessions = all_sessions(plan, training) if only is None else {}
    said: dict[str, list[tuple[Session, dict[str, Any]]]] = {}
    for kind, asked in sessions.items():
        if run and asked:
            try:
                hold_all(asked, plan.folder, claims=plan.claims, say=say)
            except SessionError as error:
                problems.append(f"{kind}: {error}")
                print(f"nocap: {kind}: {error}", file=sys.stderr)
        said[kind] = [(one, found) for one in asked if (found := one.found(plan.folder)) is not None]
    by_seed = {kind: {one.seed: found["measured"] for one, found in pairs} for kind, pairs in said.items() if kind != "parts"}
    evidence = Evidence(
        runs=runs,
        shorter=shorter,
        **by_seed,
        parts={(arm, one.seed): facts for one, found in said.get("parts", []) for arm, facts in found["measured"]["arms"].items()},
        registered={kind: [read_claims(one.path(plan.folder)) for one, _ in pairs] for kind, pairs in said.items()},
    )
    return Done(evidence=evidence, tuned=tuned, arms={"train": training, "bench": plan.bench}, problems=problems)


def _tuned(arm: Composed, words: Sequence[str]) -> Composed:
    return composed([*arm.words, *words]) if words else arm


# --- training ----------------------------------------------------------------------------------------------------------------------


def _train(
    plan: Prepared, arms: Mapping[str, Composed], *, run: bool
) -> tuple[dict[tuple[str, int], Record], dict[tuple[str, int], dict[int, Record]]]:
    """The runs of whole length, then the shorter ones, which begin from those where they can."""
    if not arms:
        return {}, {}
    plans = {arm: lengths_of(plan, arms[arm]) for arm in with_lengths(plan) if arm in arms}
    kept = {arm: [one.branches_at for one in shorts if one.branches_at] for arm, shorts in plans.items()}
    whole = {name: composed([*arm.words, f"trainer.keep_steps={kept[name]}"]) if kept.get(name) else arm for name, arm in arms.items()}
    cells = wanted(whole, plan.study.seeds)
    grid, of = grid_of(cells, label=plan.study.name, claims=plan.claims)
    if run:
        train(grid)
    runs = {(cell.arm, cell.seed): record for i, cell in enumerate(cells) if (record := record_of(of[i])) is not None}
    branches = [branch for (arm, seed), record in runs.items() for short in plans.get(arm, []) if (branch := short.of(arm, seed, record))]
    if not branches:
        return runs, {}
    grid, of = grid_of(branches, label=f"{plan.study.name}, shorter:", claims=plan.claims)
    if run:
        train(grid)
    shorter: dict[tuple[str, int], dict[int, Record]] = {}
    for i, cell in enumerate(branches):
        if (record := record_of(of[i])) is not None:
            shorter.setdefault((cell.arm, cell.seed), {})[cell.composed.run.trainer.steps] = record
    return runs, shorter


@dataclass(frozen=True, kw_only=True, slots=True)
class Short:
    """A shorter schedule of an arm, with its own whole decay, and the step at which it parts from the long one; 0: it never ran along."""

    composed: Composed
    branches_at: int

    def of(self, arm: str, seed: int, trunk: Record) -> Wanted | None:
        """The run of it. It begins from the trunk's checkpoint where that is, and from its start where not: the result is the same."""
        if trunk.status == "diverged":
            return None
        words = list(self.composed.words)
        checkpoint = trunk.folder / "checkpoints" / f"step-{self.branches_at:08d}"
        if self.branches_at and checkpoint.is_dir():
            words.append(f"trainer.init_from='{checkpoint}'")
        return Wanted(arm=arm, seed=seed, composed=arming.with_seed(composed(words), seed))


def with_lengths(plan: Prepared) -> list[str]:
    """The arms that are trained at several lengths: the baseline for the exchange rate, and who is to end at the baseline's loss sooner."""
    study = plan.study
    racing = {claim.arm for claim in study.claims if claim.target == BASELINE and set(metrics(claim)) & set(TO_TARGET)}
    return [arm for arm in study.trained if plan.at.lengths and (arm == study.baseline or arm in racing)]


def lengths_of(plan: Prepared, arm: Composed) -> list[Short]:
    steps, warmup = arm.run.trainer.steps, arm.run.schedule.warmup_steps
    found = []
    counts = [max(1, round(share * steps)) for share in plan.at.lengths]
    ok = len({*counts, steps}) == len(counts) + 1
    require(ok, f"scales.{plan.scale}.lengths", f"differ from each other and the whole in steps, of {steps}", plan.at.lengths)
    for n in counts:
        try:
            short = composed([*arm.words, f"trainer.steps={n}", f"schedule.warmup_steps={min(warmup, n)}"])
        except ValueError as error:
            raise ValueError(f"scales.{plan.scale}.lengths: {n} of {steps} steps: {error}") from error
        spec = short.run.schedule
        stable = n - spec.decay_steps if isinstance(spec, Wsd) and isinstance(arm.run.schedule, Wsd) else 0
        along = warmup <= stable <= steps - arm.run.schedule.decay_steps if isinstance(arm.run.schedule, Wsd) else False
        found.append(Short(composed=short, branches_at=stable if along else 0))
    return found


# --- sessions ----------------------------------------------------------------------------------------------------------------------


def all_sessions(plan: Prepared, training: Mapping[str, Composed]) -> dict[str, list[Session]]:
    """Every session the study needs, by the field of the evidence it is for."""
    study, at = plan.study, plan.at
    paced = training if at.lengths or study.needing((Metric.time_to_target_s,)) else {}
    amdahl = [study.against(claim) for claim in study.claims if claim.mechanism.rule is Rule.amdahl]
    taken_apart = [arm for arm in study.arms if arm in (*study.needing(PROFILED), *amdahl)]
    decoded = study.needing(DECODED)
    decode = {} if at.decode is None else {"prompt": at.decode.prompt, "new": at.decode.new, "vocab": at.decode.vocab_size}
    decode["engines"] = {arm: arming.engine_of(study, at, arm) for arm in decoded}  # type: ignore[assignment]
    apart = {arm: plan.bench.get(arm) or composed(words_of(study, at, arm, at.bench)) for arm in taken_apart}
    timed = _chosen(plan.bench, _baseline_first(study, study.needing(TIMED)))
    pacing = _chosen(training, _baseline_first(study, list(paced)))
    curved, wanted_decoding = (_chosen(plan.bench, study.needing(of)) for of in ((Metric.exponent,), DECODED))
    profiled = study.seeds_for(PROFILED) or study.seeds[:LEAST]  # a bound's profile is repeated as a metric's is
    return {
        "pace": [one for seed in study.seeds for one in _session("steps", "pace", seed, pacing, rounds=at.rounds)],
        "bench": [one for seed in study.seeds_for(TIMED) for one in _session("steps", "bench", seed, timed, rounds=at.rounds)],
        "parts": [
            one
            for seed in profiled
            for name, arm in apart.items()
            for one in _session("parts", f"parts-{name}", seed, {name: arm}, repeats=PROFILE_REPEATS)
        ],
        "curve": [one for seed in study.seeds_for((Metric.exponent,)) for one in _session("lengths", "curve", seed, curved, T=at.curve)],
        "decoding": [one for seed in study.seeds_for(DECODED) for one in _session("decoding", "decoding", seed, wanted_decoding, **decode)],
    }


def _session(kind: str, what: str, seed: int, arms: Mapping[str, Composed], **how: Any) -> list[Session]:
    if not arms:
        return []
    plain = {name: replace(arm.run, seed=seed) for name, arm in arms.items()}
    words = {name: [*arm.words, f"seed={seed}"] for name, arm in arms.items()}
    return [Session(kind=kind, what=what, seed=seed, arms=words, runs=plain, how=how)]


def _chosen(arms: Mapping[str, Composed], names: Sequence[str]) -> dict[str, Composed]:
    return {name: arms[name] for name in names if name in arms}


def _baseline_first(study: Study, names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: name != study.baseline)


def at_budget(plan: Prepared) -> bool:
    return plan.at.budget and bool(plan.train)


# --- a budget ----------------------------------------------------------------------------------------------------------------------


def check_budget(plan: Prepared, budget_h: float | None) -> None:
    """Refuse a length that is to come from a budget, without one.

    Errors:
        ValueError: no budget, or none that is a number of hours.
    """
    rule = f"be given for scale={plan.scale}, whose length is what the hours allow"
    require(not at_budget(plan) or (budget_h is not None and 0 < budget_h < math.inf), "budget_h", rule, budget_h)


def _within_budget(plan: Prepared, budget_h: float | None, *, run: bool, say: Say) -> Prepared:
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
        paces = all_sessions(plan, plan.train)["pace"] or _session("steps", "pace", plan.study.seeds[0], plan.train, rounds=1)
        measured = hold_all(paces[:1], plan.folder, claims=plan.claims, say=say)[0]["measured"]["arms"]
        assert budget_h is not None
        steps = steps_for(plan, {arm: 1 / facts["tokens_per_s"] for arm, facts in measured.items()}, budget_h)
        kept = {"budget_h": budget_h, "steps": steps}
        write_json(path, kept)
    steps = kept["steps"]
    say(f"{budget_h:g} h are {steps} steps a run")
    return replace(plan, train={name: composed([*arm.words, f"trainer.steps={steps}"]) for name, arm in plan.train.items()})


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
