"""A study's results at one scale on one machine, as one JSON object that the report and the leaderboard
read."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from nocap.config.compose import Composed
from nocap.config.keys import require
from nocap.judge.cautious import Declared
from nocap.judge.claim import Claim, Guard, Mechanism
from nocap.judge.interval import LEAST_PAIRS, Estimate
from nocap.judge.verdict import Gain, Verdict, judge
from nocap.launch.lengths import others_of
from nocap.store.identity import git_state
from nocap.store.metrics import METRICS, Ending, Measurement, Per, Scale, is_log
from nocap.store.runs import dig
from nocap.study.conduct import Done
from nocap.study.evidence import bound, measurements, verdict_of
from nocap.study.log import Log
from nocap.study.plan import StudyPlan

Results = dict[str, Any]


def results(done: Done, *, hardware: Mapping[str, Any], command: str) -> Results:
    """Everything that a report shows."""
    plan = done.part
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
        "limitations": plan.at.limitations,
        "baseline": study.baseline,
        "seeds": study.seeds[: max(len(claim.seeds) for claim in study.claims)],  # that the analyses needed
        "claims": [_claim(claim, plan, done) for claim in study.claims],
        "measurements": [
            {"claim": claim.id, **measurement.json()}
            for claim in study.claims
            for measurement in measurements(claim, study, done.evidence)
        ],
        "arms": [_arm(name, plan, done) for name in study.arms],
        "trials": done.trials,
    }


def shape(arm: Composed) -> Results:
    """What a verdict's figures were reached at."""
    run, t, m = arm.run, arm.run.trainer, arm.run.model
    return {
        "layers": m.n_layer,
        "width": m.d_model,
        "T": [m.seq_len],  # of a curve its lengths
        "tokenizer": run.tokenizer.name,
        "batch_tokens": t.batch_tokens,
        "precision": t.precision.value,
        "device": t.device.value,
    }


# --- a claim ------------------------------------------------------------------------------------------------


def _claim(claim: Claim, plan: StudyPlan, done: Done) -> Results:
    study, evidence, stands = plan.study, done.evidence, done.stands[claim.id]
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
        "two_sided": claim.two_sided,
        "target": claim.target,
        "bound": bound(claim, study, evidence),
        "bound_rule": claim.mechanism.rule.value,
        "bound_formula": claim.mechanism.formula,
        **verdict_json(
            claim,
            verdict_of(claim, study, plan.scale, evidence),
            plan.scale,
            plan.at.noise,
            damaged=evidence.damaged,
        ),
        "hash": stands.hash,
        "registered": stands.at,
        "exploratory": stands.exploratory,
        "notes": stands.notes,
        "where": _where(claim, plan),
        "lengths": _lengths(claim, plan),
    }


def verdict_json(
    claim: Claim,
    verdict: Verdict,
    at: str,
    noise: Mapping[str, Declared],
    *,
    damaged: Collection[tuple[str, int]] = (),
) -> Results:
    """A verdict's fields, with the interval that decided and each guard's. `noise`: what was declared of each
    metric; `damaged`: arms and seeds of runs whose records were changed."""
    return {
        "word": verdict.word.value,
        "reason": verdict.reason.value if verdict.reason else None,
        "failed": verdict.failed,
        **_gain(verdict.primary, noise),
        "guards": [
            {
                "metric": guard.metric,
                "scale": guard.scale.value,
                "margin": guard.margin(at),
                **_gain(gain, noise),
            }
            for guard, gain in zip(claim.guards, verdict.guards, strict=True)
        ],
        "beyond_bound": verdict.beyond_bound,
        "missing": [
            {
                **asdict(missing),
                "damaged": (missing.arm, missing.repeat) in damaged and missing.per == Per.seed.value,
            }
            for missing in verdict.missing
        ],
        **verdict.endings,
        "refused": verdict.refused,
        "more": verdict.more(),
    }


def _gain(gain: Gain, noise: Mapping[str, Declared]) -> Results:
    """`per`: what the n are: seeds, sessions, or one exact count. Of an interval without a middle only its
    lower end is kept, `least`. `noise`: where it was used."""
    interval = gain.interval() if gain.enough else None
    used = noise[gain.metric.name].json() if interval and interval.method.endswith("declared") else None
    shown = interval and _shown(interval, gain)
    ends = (
        {"mid": shown.mid, "low": shown.low, "high": shown.high}
        if shown and math.isfinite(shown.mid)
        else None
    )
    return {
        "n": len(gain.least),
        "per": gain.per.value,
        "analysis": gain.analysis,
        "noise": used,
        "measured": ends,
        "least": shown.low if shown and interval and not ends and math.isfinite(interval.low) else None,
    }


def _shown(interval: Estimate, gain: Gain) -> Estimate:
    """Return a gain's interval as it is told: of what is a ratio to the baseline's, that ratio."""
    if gain.metric.relative:
        interval = replace(interval, mid=-interval.mid, low=-interval.high, high=-interval.low)
    return interval.exp() if is_log(gain.metric, gain.scale) else interval


def _lengths(claim: Claim, plan: StudyPlan) -> list[int] | None:
    """List the baseline's steps from the shortest, of a claim about the time at equal loss."""
    if not claim.at_equal_loss:
        return None
    steps = plan.train[plan.study.against(claim)].run.trainer.steps
    return sorted([steps, *others_of(steps, asked=claim.id)])


def _where(claim: Claim, plan: StudyPlan) -> dict[str, list[Results]]:
    """The shapes that a verdict rests on, of what is timed and of what is trained: of the claim's arm, and of
    the one it is compared with where that is another."""
    kinds, sides = {metric.made_by for metric in claim.metrics}, plan.study.sides(claim)
    timed = [shape(plan.bench[name]) for name in sides] if kinds - {"train"} else []
    if "lengths" in kinds:
        timed = [{**timed[0], "layers": 1, "T": plan.at.curve, "batch_tokens": None}]
    elif "decoding" in kinds:
        timed = [{**arm_shape, "batch_tokens": None} for arm_shape in timed]
    trained = [shape(plan.train[name]) for name in sides] if "train" in kinds else []
    return {
        place: [arm_shape for i, arm_shape in enumerate(shapes) if arm_shape not in shapes[:i]]
        for place, shapes in {"timed": timed, "trained": trained}.items()
        if shapes
    }


# --- stored results -----------------------------------------------------------------------------------------


def judged(results: Results, log: Log) -> Results:
    """Stored results with the verdicts that follow from their measurements now, and the labels that the
    study's log has.

    Errors:
        ValueError: losses that the study's log has not.
    """
    losses: dict[tuple[str, int], list[float]] = {}
    for line in log.of("run", scale=results["scale"], short=0):
        losses.setdefault((line["arm"], line["seed"]), []).append(line["val_loss"])
    machine, claims = results["hardware"]["fingerprint"], []
    for claim in results["claims"]:
        rows = [
            Measurement(
                arm=row["arm"],
                repeat=row["repeat"],
                metric=METRICS[row["metric"]],
                value=row["value"],
                ending=Ending(row["ending"]),
                per=Per(row["per"]),
                why=row.get("why", ""),
            )
            for row in results["measurements"]
            if row["claim"] == claim["id"]
        ]
        for m in rows:
            known = losses.get((m.arm, m.repeat), [m.value])
            ok = m.metric.name != "val_loss" or m.value is None or m.value in known
            require(ok, f"claim {claim['id']}", f"have the losses of its study's log, {known}", m.value)
        said = log.of("analysis", hash=claim["hash"], machine=machine)
        unlogged = claim["exploratory"] or "not in its study's log"
        anew = {
            **_judged(claim, rows, results["baseline"], results["seeds"]),
            **({"missing": claim["missing"]} if claim["reason"] == "missing" else {}),
            "exploratory": said[-1]["exploratory"] or None if said else unlogged,
        }
        claims.append({**claim, **anew})
    return {**results, "claims": claims}


def _judged(
    claim: Mapping[str, Any], measured: Sequence[Measurement], baseline: str, seeds: Sequence[int]
) -> Results:
    """Judge a claim as it is stored. `seeds`: in the order in which they were registered: the first
    three are analysed first."""
    noise = {
        effect["metric"]: Declared(**{**known, "df": known["df"] or math.inf})
        for effect in (claim, *claim["guards"])
        if (known := effect["noise"])
    }
    stated = Claim(
        **{
            key: claim[key]
            for key in (
                "id",
                "statement",
                "source",
                "arm",
                "metric",
                "parts",
                "of",
                "expected",
                "two_sided",
                "target",
            )
        },
        scale=Scale(claim["scale"]),
        guards=[
            Guard(metric=effect["metric"], scale=Scale(effect["scale"]), margins={"": effect["margin"]})
            for effect in claim["guards"]
        ],
        mechanism=Mechanism(bound=claim["bound"], formula=claim["bound_formula"]),
        seeds=list(seeds) if len(seeds) >= LEAST_PAIRS else list(range(LEAST_PAIRS)),
    )
    return verdict_json(
        stated,
        judge(stated, measured, against=claim["baseline"] or baseline, at="", noise=noise),
        "",
        noise,
    )


# --- an arm: the fairness columns ---------------------------------------------------------------------------


def _arm(name: str, plan: StudyPlan, done: Done) -> Results:
    study, evidence = plan.study, done.evidence
    runs = [evidence.runs[name, seed] for seed in study.seeds if (name, seed) in evidence.runs]
    # a diverged one has its last
    ends = [run.val_loss for run in runs if run.status == "finished" and run.val_loss is not None]
    timed = {
        place: [row for _, row in evidence.of_arm(place, name)]
        for place in ("pace", "bench", "curve", "decoding")
    }
    # of an arm that is trained, not of the shape at which it is timed
    known = next((rows[0] for place, rows in timed.items() if rows and not (runs and place == "bench")), {})
    trials = [trial for trial in done.trials if trial["arm"] == name]
    return {
        "arm": name,
        "words": [*study.arms[name], *plan.at.own.get(name, [])],
        "tuned": next((trial["words"] for trial in trials if trial["picked"]), []),
        "n_trials": len(trials),
        "params": known.get("params") or (dig(runs[0].summary, "params", "total") if runs else None),
        "flops_per_token": known.get("flops_per_token")
        or (runs[0].number("flops_per_token") if runs else None),
        "flops_basis": known.get("flops_basis") or (dig(runs[0].summary, "flops_basis") if runs else None),
        "kernel": known.get("kernel"),
        "tokens": runs[0].number("tokens") if runs else None,
        "val_loss": {"mean": fmean(ends), "all": ends} if ends else None,
        "diverged": [run.seed for run in runs if run.status == "diverged"],
        **{
            place: {
                "memory_mib": dig(rows[0], "memory_mib", "peak"),
                "tokens_per_s": [row["tokens_per_s"] for row in rows],
                "step_ms": [row["step_ms"] for row in rows],
            }
            if (rows := timed[place])
            else None
            for place in ("pace", "bench")
        },
        "runs": [run.identity for run in runs],
    }
