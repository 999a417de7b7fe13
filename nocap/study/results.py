"""A study's results at one scale on one machine, as one JSON object that the report and the board read."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from nocap.config.compose import Composed
from nocap.judge import stats
from nocap.launch.plan import git_state
from nocap.store.runs import Record, dig
from nocap.study import exchange
from nocap.study.claim import BASELINE, LEAST, Claim, Metric, Rule, Scale
from nocap.study.evidence import Evidence, bound, claim_needs_runs, exploratory, outcomes, sessions_for
from nocap.study.spec import At, Study
from nocap.study.verdict import Outcomes, Reason, Verdict, Word, judge, more_seeds

Results = dict[str, Any]


def results(
    study: Study,
    at: str,
    evidence: Evidence,
    *,
    arms: Mapping[str, Mapping[str, Composed]],
    tuned: Mapping[str, Any],
    hardware: Mapping[str, Any],
    command: str,
) -> Results:
    """Everything that is to be told. `arms`: place (`train` or `bench`) → arm → how it was composed there."""
    traded = exchange.facts(study, evidence)
    git = git_state()
    return {
        "kind": "study",
        "study": study.name,
        "scale": at,
        "question": study.question,
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "commit": git["commit"] + ("+" if git["diff"] else "") if git else None,
        "hardware": {key: value for key, value in hardware.items() if key != "host"},
        "shapes": {place: shape(next(iter(composed.values()))) for place, composed in arms.items() if composed},
        "speaks_for": study.scales[at].speaks_for,
        "baseline": study.baseline,
        "seeds": study.seeds,
        "claims": [_claim(claim, study, at, evidence, arms) for claim in study.claims],
        "arms": [_arm(name, study, at, evidence, arms, tuned) for name in study.arms],
        "trials": list(tuned.get("trials", ())),
        "exchange": traded,
    }


def shape(arm: Composed, *, steps: bool = True) -> str:
    """Where a verdict was reached, in the words of a sentence; a batch only where it is about steps."""
    run, t = arm.run, arm.run.trainer
    m = run.model
    batch = f"{run.tokenizer.name} tokens, {t.batch_tokens:,} a step, " if steps else ""
    return f"{m.n_layer} layers, {m.d_model} wide, T={m.seq_len}, {batch}{t.precision.value}, {t.device.value}"


# --- a claim -----------------------------------------------------------------------------------------------------------------------


def judged(claim: Claim, study: Study, at: str, evidence: Evidence) -> tuple[Verdict, float | None]:
    """The verdict, at the last declared look that has all its seeds, and the bound as it was worked out."""
    limit = bound(claim, study, evidence)
    mine, theirs = outcomes(claim, study, evidence)
    claim = replace(claim, mechanism=replace(claim.mechanism, rule=Rule.given, parts=[], bound=limit))
    verdict = judge(claim, arm=mine, baseline=theirs, at=at)
    if verdict.reason is Reason.missing and claim.looks == 2:
        first = judge(claim, arm=mine, baseline=theirs, at=at, look=1)
        verdict = first if first.reason is not Reason.missing else verdict
    return verdict, limit


def _claim(claim: Claim, study: Study, at: str, evidence: Evidence, arms: Mapping[str, Mapping[str, Composed]]) -> Results:
    mine, theirs = outcomes(claim, study, evidence)
    verdict, limit = judged(claim, study, at, evidence)
    return {
        "id": claim.id,
        "statement": claim.statement,
        "source": claim.source,
        "arm": claim.arm,
        "baseline": None if claim.scale is Scale.value else study.against(claim),
        "metric": claim.metric.value,
        "parts": claim.parts,
        "of": claim.of,
        "scale": claim.scale.value,
        "expected": claim.expected,
        "slack": claim.slack.get(at, 0.0),
        "target": claim.target,
        "bound": limit,
        "bound_rule": claim.mechanism.rule.value,
        "bound_formula": claim.mechanism.formula,
        "word": verdict.word.value,
        "reason": verdict.reason.value if verdict.reason else None,
        "failed": verdict.failed,
        "n": verdict.n,
        "measured": asdict(verdict.interval) if verdict.interval else None,
        "exceeded": verdict.exceeded,
        "beyond_bound": verdict.beyond_bound,
        "missing": verdict.missing,
        "diverged": verdict.diverged,
        "censored": verdict.censored,
        "more_seeds": more_seeds(claim, arm=mine, baseline=theirs, at=at) if verdict.word is Word.inconclusive else None,
        "guards": [_guard(guard.metric, guard.scale, guard.margin(at), mine, theirs) for guard in claim.guards],
        "hash": claim.hash(),
        "exploratory": exploratory(claim, study, evidence),
        "where": _where(claim, study.scales[at], arms),
        "seeds": {
            name: {str(seed): one.value for seed, one in side.get(claim.metric, {}).items()}
            for name, side in ((claim.arm, mine), (study.against(claim), theirs))
        },
    }


def _where(claim: Claim, at: At, arms: Mapping[str, Mapping[str, Composed]]) -> str:
    """The shapes that a verdict rests on: of what is timed, and of what is trained."""
    bench, kinds = next(iter(arms["bench"].values()), None), sessions_for(claim)
    told = []
    if bench is not None and {"bench", "parts"} & set(kinds):
        told.append(shape(bench))
    if bench is not None and "curve" in kinds:
        told.append(f"one layer, {bench.run.model.d_model} wide, T={at.curve[0]} to {at.curve[-1]}, {bench.run.trainer.device.value}")
    if bench is not None and "decoding" in kinds:
        told.append(shape(bench, steps=False))
    if claim_needs_runs(claim):
        told.append(shape(next(iter(arms["train"].values()))))
    return "; its loss at ".join(told)


def _guard(metric: Metric, scale: Scale, margin: float, mine: Outcomes, theirs: Outcomes) -> Results:
    """How much worse the arm is, with a two-sided 95% interval, beside what it may be."""
    a, b = mine.get(metric, {}), theirs.get(metric, {})
    pairs = [(a[seed].value, b[seed].value) for seed in a if seed in b]
    whole = [(x, y) for x, y in pairs if x is not None and y is not None]
    worse = None
    if len(whole) == len(pairs) >= LEAST:
        values = [math.log(x / y) if scale is Scale.ratio else x - y for x, y in whole]
        found = stats.interval(values)
        found = found.exp() if scale is Scale.ratio else found
        worse = {"mid": found.mean, "low": found.low, "high": found.high}
    return {"metric": metric.value, "scale": scale.value, "margin": margin, "worse": worse}


# --- an arm: the fairness columns --------------------------------------------------------------------------------------------------


def _arm(
    name: str, study: Study, at: str, evidence: Evidence, arms: Mapping[str, Mapping[str, Composed]], tuned: Mapping[str, Any]
) -> Results:
    runs = [evidence.runs[name, seed] for seed in study.seeds if (name, seed) in evidence.runs]
    whole = [run for run in runs if run.status == "finished"]  # a diverged one has the loss of its last validation
    said = {place: _session(name, getattr(evidence, place)) for place in ("pace", "bench")}
    asked = [said["pace"], None if runs else said["bench"], _session(name, evidence.curve), _session(name, evidence.decoding)]
    known: Mapping[str, Any] = next((one for one in asked if one), {})
    return {
        "arm": name,
        "words": [*study.arms[name], *study.scales[at].own.get(name, [])],
        "tuned": tuned.get("words", {}).get(name, []),
        "n_trials": sum(trial["arm"] == tuned.get("follow", {}).get(name, name) for trial in tuned.get("trials", ())),
        "params": known.get("params") or dig(runs[0].summary, "params", "total") if runs or known else None,
        "flops_per_token": known.get("flops_per_token") or (runs[0].number("flops_per_token") if runs else None),
        "kernel": known.get("kernel"),
        "tokens": runs[0].number("tokens") if runs else None,
        "val_loss": _spread([run.val_loss for run in whole]),
        "val_bpb": _spread([run.number("val_bpb") for run in whole]),
        "diverged": [run.seed for run in runs if run.status == "diverged"],
        "shorter": _shorter(name, study, evidence),
        "pace": said["pace"] and _speed(name, evidence.pace),
        "bench": said["bench"] and _speed(name, evidence.bench),
        "runs": [run.identity for run in runs],
    }


def _session(name: str, said: Mapping[int, Any]) -> Any:
    return next((facts["arms"][name] for facts in said.values() if name in facts["arms"]), None)


def _speed(name: str, said: Mapping[int, Any]) -> Results:
    mine = [facts["arms"][name] for facts in said.values() if name in facts["arms"]]
    return {
        "tokens_per_s": [one["tokens_per_s"] for one in mine],
        "memory_mib": mine[0]["memory_mib"]["peak"] if mine[0]["memory_mib"] else None,
        "step_ms": [one["step_ms"] for one in mine],
    }


def _spread(values: list[float | None]) -> Results | None:
    whole = [value for value in values if value is not None]
    if not whole:
        return None
    found = stats.interval(whole) if len(whole) > 1 else None
    return {"mean": fmean(whole), "low": found.low if found else None, "high": found.high if found else None, "all": whole}


def _shorter(name: str, study: Study, evidence: Evidence) -> dict[str, list[float | None]]:
    """Steps → the final losses, seed by seed."""
    told: dict[str, list[float | None]] = {}
    for seed in study.seeds:
        for steps, run in evidence.shorter.get((name, seed), {}).items():
            told.setdefault(str(steps), []).append(run.val_loss if run.status == "finished" else None)
    return told


def sigma(study: Study, at: At, runs: Mapping[tuple[str, int], Record]) -> tuple[float | None, str]:
    """One run's standard deviation of the final loss between seeds, pooled within arms, and where it is from."""
    groups: dict[str, list[float]] = {}
    for (arm, _), run in runs.items():
        if run.val_loss is not None and run.status == "finished":
            groups.setdefault(arm, []).append(run.val_loss)
    enough = [group for group in groups.values() if len(group) > 1]
    if sum(len(group) - 1 for group in enough) >= LEAST:
        return stats.pooled_sd(enough), f"measured: {sum(map(len, enough))} runs of {len(enough)} arms"
    return (at.sigma, "declared") if at.sigma is not None else (None, "unknown: declare scales.….sigma, or run the study")


def targets_checked(study: Study, evidence: Evidence) -> None:
    """Refuse a target that the first validation already met: every run would reach it at once.

    Errors:
        ValueError: that, with claim and losses.
    """
    for claim in study.claims:
        if claim.target in (None, BASELINE):
            continue
        for run in evidence.runs.values():
            first = run.curve.val_loss[0] if run.curve.val_loss else None
            if first is not None and claim.target >= first:
                raise ValueError(f"claim {claim.id}: target must be below the first validation loss, {first:.4f}, got {claim.target}")
