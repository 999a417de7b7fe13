"""A study's results at one scale on one machine, as one JSON object that the report and the leaderboard read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from statistics import fmean
from typing import Any

from nocap.config.compose import Composed
from nocap.judge import stats
from nocap.judge.claim import LEAST_PAIRS, Claim, Rule
from nocap.judge.verdict import Judge, Word
from nocap.launch.plan import git_state
from nocap.store.measurement import METRICS, Measurement, Scale
from nocap.store.runs import Record, dig
from nocap.study.conduct import Done
from nocap.study.evidence import Evidence, Seen, bound, measurements, older
from nocap.study.exchange import exchange
from nocap.study.plan import StudyPlan
from nocap.study.spec import At, Study

Results = dict[str, Any]


def results(plan: StudyPlan, done: Done, *, registered: Mapping[str, datetime], hardware: Mapping[str, Any], command: str) -> Results:
    """Everything that a report shows. `registered`: a claim's hash → when it was."""
    study, git = plan.study, git_state()
    return {
        "kind": "study",
        "study": study.name,
        "scale": plan.scale,
        "question": study.question,
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "commit": git["commit"] + ("+" if git["diff"] else "") if git else None,
        "hardware": {key: value for key, value in hardware.items() if key != "host"},
        "shapes": {place: shape(next(iter(arms.values()))) for place, arms in done.arms.items() if arms},
        "speaks_for": plan.at.speaks_for,
        "baseline": study.baseline,
        "seeds": study.seeds,
        "claims": [_claim(claim, plan, done, registered) for claim in study.claims],
        "measurements": [{"claim": claim.id, **one.json()} for claim in study.claims for one in measurements(claim, study, done.evidence)],
        "arms": [_arm(name, plan, done) for name in study.arms],
        "trials": [asdict(trial) for trial in done.tuned.trials],
        "exchange": exchange(study, done.evidence),
    }


def shape(arm: Composed, *, steps: bool = True) -> str:
    """Where a verdict was reached; a batch only where it is about steps."""
    run, t, m = arm.run, arm.run.trainer, arm.run.model
    batch = f"{run.tokenizer.name} tokens, {t.batch_tokens:,} a step, " if steps else ""
    return f"{m.n_layer} layers, {m.d_model} wide, T={m.seq_len}, {batch}{t.precision.value}, {t.device.value}"


# --- a claim -----------------------------------------------------------------------------------------------------------------------


def judge(claim: Claim, study: Study, at: str, evidence: Evidence) -> tuple[Judge, list[Measurement]]:
    """A judge of the claim with its bound as it was computed, and what it judges by."""
    found = measurements(claim, study, evidence)
    limit = bound(claim, study, evidence)
    claim = replace(claim, mechanism=replace(claim.mechanism, rule=Rule.given, parts=[], bound=limit))
    return Judge(claim, found, against=study.against(claim), at=at), found


def _claim(claim: Claim, plan: StudyPlan, done: Done, registered: Mapping[str, datetime]) -> Results:
    study, at = plan.study, plan.scale
    judging, found = judge(claim, study, at, done.evidence)
    verdict, before = judging.last_complete(), older(claim, study, done.evidence, registered=registered)
    return {
        "id": claim.id,
        "statement": claim.statement,
        "source": claim.source,
        "arm": claim.arm,
        "baseline": None if claim.scale is Scale.value else study.against(claim),
        "metric": claim.metric,
        "parts": claim.parts,
        "of": claim.of,
        "scale": claim.scale.value,
        "expected": claim.expected,
        "slack": claim.slack.get(at, 0.0),
        "target": claim.target,
        "bound": judging.claim.mechanism.bound,
        "bound_rule": claim.mechanism.rule.value,
        "bound_formula": claim.mechanism.formula,
        "word": verdict.word.value,
        "reason": verdict.reason.value if verdict.reason else None,
        "failed": verdict.failed,
        "n": verdict.n,
        "measured": verdict.interval.ends() if verdict.interval else None,
        "exceeded": verdict.exceeded,
        "beyond_bound": verdict.beyond_bound,
        "missing": verdict.missing,
        "diverged": verdict.diverged,
        "censored": verdict.censored,
        "more_seeds": judging.more_seeds() if verdict.word is Word.inconclusive else None,
        "guards": [
            {
                "metric": guard.metric,
                "scale": guard.scale.value,
                "margin": guard.margin(at),
                "worse": worse.ends() if (worse := judging.worse(METRICS[guard.metric], guard.scale)) else None,
            }
            for guard in claim.guards
        ],
        "hash": claim.hash(),
        "exploratory": _began_before(before.arm, "a claim of these words") if before.arm else None,
        "older_baseline": _began_before(before.baseline, "the claim") if before.baseline else None,
        "where": _where(claim, plan.at, done.arms),
        "seeds": {
            arm: {str(m.repeat): m.value for m in found if m.arm == arm and m.metric.name == claim.metric}
            for arm in (claim.arm, study.against(claim))
        },
    }


def _began_before(names: list[str], what: str) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more} began before {what} was registered"


def _where(claim: Claim, at: At, arms: Mapping[str, Mapping[str, Composed]]) -> str:
    """The shapes that a verdict rests on: of what is timed, and of what is trained."""
    bench, instruments, shapes = next(iter(arms["bench"].values()), None), {metric.made_by for metric in claim.metrics}, list[str]()
    if bench is not None and instruments & {"steps", "parts"}:
        shapes.append(shape(bench))
    if bench is not None and "lengths" in instruments:
        shapes.append(f"one layer, {bench.run.model.d_model} wide, T={at.curve[0]} to {at.curve[-1]}, {bench.run.trainer.device.value}")
    if bench is not None and "decoding" in instruments:
        shapes.append(shape(bench, steps=False))
    if "train" in instruments:
        shapes.append(shape(next(iter(arms["train"].values()))))
    return "; its loss at ".join(shapes)


# --- an arm: the fairness columns --------------------------------------------------------------------------------------------------


def _arm(name: str, plan: StudyPlan, done: Done) -> Results:
    study, evidence = plan.study, done.evidence
    runs = [evidence.runs[name, seed] for seed in study.seeds if (name, seed) in evidence.runs]
    finished = [run for run in runs if run.status == "finished"]  # a diverged one has the loss of its last validation
    places = ("pace", "curve", "decoding") if runs else ("pace", "bench", "curve", "decoding")
    known: Seen = next((seen for place in places if (seen := evidence.first(place, name))), {})
    return {
        "arm": name,
        "words": [*study.arms[name], *plan.at.own.get(name, [])],
        "tuned": done.tuned.overrides.get(name, []),
        "n_trials": done.tuned.n_trials(name),
        "params": known.get("params") or dig(runs[0].summary, "params", "total") if runs or known else None,
        "flops_per_token": known.get("flops_per_token") or (runs[0].number("flops_per_token") if runs else None),
        "kernel": known.get("kernel"),
        "tokens": runs[0].number("tokens") if runs else None,
        "val_loss": _spread([run.val_loss for run in finished]),
        "val_bpb": _spread([run.number("val_bpb") for run in finished]),
        "diverged": [run.seed for run in runs if run.status == "diverged"],
        "shorter": _shorter(name, study, evidence),
        "pace": _speed("pace", name, evidence),
        "bench": _speed("bench", name, evidence),
        "runs": [run.identity for run in runs],
    }


def _speed(place: str, name: str, evidence: Evidence) -> Results | None:
    seen = [one for seed in getattr(evidence, place) if (one := evidence.seen(place, name, seed)) is not None]
    if not seen:
        return None
    memory = seen[0]["memory_mib"]["peak"] if seen[0]["memory_mib"] else None
    return {"tokens_per_s": [one["tokens_per_s"] for one in seen], "memory_mib": memory, "step_ms": [one["step_ms"] for one in seen]}


def _spread(values: list[float | None]) -> Results | None:
    whole = [value for value in values if value is not None]
    if not whole:
        return None
    found = stats.interval(whole) if len(whole) > 1 else None
    return {"mean": fmean(whole), "low": found.low if found else None, "high": found.high if found else None, "all": whole}


def _shorter(name: str, study: Study, evidence: Evidence) -> dict[str, list[float | None]]:
    """Steps → the final losses, seed by seed."""
    losses: dict[str, list[float | None]] = {}
    for seed in study.seeds:
        for steps, run in evidence.shorter.get((name, seed), {}).items():
            losses.setdefault(str(steps), []).append(run.val_loss if run.status == "finished" else None)
    return losses


def sigma(at: At, runs: Mapping[tuple[str, int], Record]) -> tuple[float | None, str]:
    """One run's standard deviation of the final loss between seeds, pooled within arms, and where it is from."""
    groups: dict[str, list[float]] = {}
    for (arm, _), run in runs.items():
        if run.val_loss is not None and run.status == "finished":
            groups.setdefault(arm, []).append(run.val_loss)
    enough = [group for group in groups.values() if len(group) > 1]
    if sum(len(group) - 1 for group in enough) >= LEAST_PAIRS:
        return stats.pooled_sd(enough), f"measured: {sum(map(len, enough))} runs of {len(enough)} arms"
    return (at.sigma, "declared") if at.sigma is not None else (None, "unknown: declare scales.….sigma, or run the study")
