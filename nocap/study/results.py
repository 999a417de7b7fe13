"""A study's results at one scale on one machine, as one JSON object that the report and the leaderboard read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any

from nocap.config.compose import Composed
from nocap.judge import stats
from nocap.judge.claim import LEAST_PAIRS, Claim
from nocap.judge.verdict import Judge, Verdict, Word
from nocap.store.git import git_state
from nocap.store.measurement import METRICS, Per, Scale
from nocap.store.runs import Record, dig
from nocap.study.conduct import Done
from nocap.study.evidence import Evidence, Seen
from nocap.study.exchange import exchange
from nocap.study.ledger import Ledger
from nocap.study.looks import at_its_look, judge, taken
from nocap.study.measured import measurements
from nocap.study.plan import StudyPlan
from nocap.study.spec import At, Study
from nocap.study.standing import standing

Results = dict[str, Any]


def results(plan: StudyPlan, done: Done, *, ledger: Ledger, hardware: Mapping[str, Any], command: str) -> Results:
    """Everything that a report shows. `ledger`: the study's."""
    study, git = plan.study, git_state()
    return {
        "kind": "study",
        "study": study.name,
        "scale": plan.scale,
        "question": study.question,
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "commit": f"{git['commit']}{'+' if git['diff_sha256'] else ''}" if git else None,
        "hardware": {key: value for key, value in hardware.items() if key != "host"},
        "shapes": {place: shape(next(iter(arms.values()))) for place, arms in done.arms.items() if arms},
        "speaks_for": plan.at.speaks_for,
        "baseline": study.baseline,
        "seeds": done.seeds,
        "claims": [_claim(claim, plan, done, ledger, str(hardware["fingerprint"])) for claim in study.claims],
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


def _claim(claim: Claim, plan: StudyPlan, done: Done, ledger: Ledger, machine: str) -> Results:
    study, judging = plan.study, judge(claim, plan.study, plan.scale, done.evidence)
    looks, shown = taken(judging), at_its_look(judging)
    stands = standing(plan, claim, done.evidence, ledger, machine=machine, looks=len(looks))
    return {
        **_as_stated(claim, judging, study),
        **_verdict(claim, judging),
        "guards": _guards(claim, judging),
        "hash": stands.hash,
        "registered": stands.at and {"at": stands.at, "hash": stands.hash},
        "exploratory": stands.exploratory,
        "older_baseline": stands.older_baseline,
        "ledger": stands.notes,
        "looks": {"declared": claim.looks or [len(claim.seeds)], "taken": [{"n": one.n, "word": one.word.value} for one in looks]},
        "where": _where(claim, plan.at, study.sides(claim), done.arms),
        "seeds": {
            arm: {str(m.repeat): m.value for m in shown.found.values() if m.arm == arm and m.metric.name == claim.metric}
            for arm in (claim.arm, study.against(claim))
        },
    }


def _as_stated(claim: Claim, judging: Judge, study: Study) -> Results:
    """As the study has it, margins translated."""
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
        "threshold": claim.threshold.value,
        "direction": claim.direction.value,
        "two_sided": claim.two_sided,
        "alpha": claim.alpha,
        "slack": judging.claim.slack.get(judging.at, 0.0),
        "slack_as": _stated(claim.slack.get(judging.at)),
        "target": claim.target,
        "bound": judging.claim.mechanism.bound,
        "bound_rule": claim.mechanism.rule.value,
        "bound_formula": claim.mechanism.formula,
    }


def _verdict(claim: Claim, judging: Judge) -> Results:
    verdict = judging.last_complete()
    return {
        "word": verdict.word.value,
        "reason": verdict.reason.value if verdict.reason else None,
        "failed": verdict.failed,
        "n": verdict.n,
        "per": verdict.per.value,  # what the n are: seeds, sittings, or one exact count
        "look": verdict.look,
        "seeds_left": _seeds_left(claim, verdict),
        "noise": judging.declared(claim.metric),
        "measured": verdict.interval.ends() if verdict.interval else None,
        "exceeded": verdict.exceeded,
        "beyond_bound": verdict.beyond_bound,
        "missing": verdict.missing,
        "diverged": verdict.diverged,
        "censored": verdict.censored,
        "at_most": verdict.at_most,
        "more": at_its_look(judging).more() if verdict.word is Word.inconclusive else None,
    }


def _guards(claim: Claim, judging: Judge) -> list[Results]:
    shown = at_its_look(judging)
    return [
        {
            "metric": guard.metric,
            "scale": guard.scale.value,
            "margin": translated.margin(judging.at),
            "margin_as": _stated(guard.margin(judging.at)),
            "noise": judging.declared(guard.metric),
            "worse": worse.ends() if (worse := shown.worse(METRICS[guard.metric], guard.scale)) else None,
        }
        for guard, translated in zip(claim.guards, judging.claim.guards, strict=True)
    ]


def _seeds_left(claim: Claim, verdict: Verdict) -> int:
    """Declared seeds that no look has needed yet. Sittings are not declared: more may always follow."""
    undecided = verdict.word is Word.inconclusive and not verdict.missing
    return len(claim.seeds) - verdict.n if undecided and verdict.per is Per.seed else 0


def _stated(margin: Any) -> str | None:
    """As the study says it, where that is not a number."""
    return margin if isinstance(margin, str) else None


def _where(claim: Claim, at: At, sides: list[str], arms: Mapping[str, Mapping[str, Composed]]) -> str:
    """The shapes that a verdict rests on: of what is timed, and of what is trained."""
    bench, instruments, shapes = next(iter(arms["bench"].values()), None), {metric.made_by for metric in claim.metrics}, list[str]()
    if bench is not None and instruments & {"steps", "parts"}:
        shapes.append(_shapes(arms["bench"], sides))
    if bench is not None and "lengths" in instruments:
        shapes.append(f"one layer, {bench.run.model.d_model} wide, T={at.curve[0]} to {at.curve[-1]}, {bench.run.trainer.device.value}")
    if bench is not None and "decoding" in instruments:
        shapes.append(shape(bench, steps=False))
    if "train" in instruments:
        shapes.append(_shapes(arms["train"], sides))
    return "; its loss at ".join(shapes)


def _shapes(arms: Mapping[str, Composed], sides: list[str]) -> str:
    """Of the claim's arm, and of the one it is compared with where that is another."""
    return ", against ".join(dict.fromkeys(shape(arms[name]) for name in sides if name in arms))


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
    held = evidence.held(place, name)
    seen = [one.seen for one in held]
    if not seen:
        return None
    memory = seen[0]["memory_mib"]["peak"] if seen[0]["memory_mib"] else None
    return {
        "tokens_per_s": [one["tokens_per_s"] for one in seen],
        "memory_mib": memory,
        "step_ms": [one["step_ms"] for one in seen],
        "sitting": [one.sitting for one in held],
    }


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
