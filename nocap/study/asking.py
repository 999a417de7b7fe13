"""Which sessions a study needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nocap.config.compose import Composed, composed
from nocap.study import arms as arming
from nocap.study.arms import words_of
from nocap.study.claim import LEAST, Metric, Rule
from nocap.study.prepared import Prepared
from nocap.study.sessions import Session
from nocap.study.spec import DECODED, PROFILED, TIMED, Study

PROFILE_REPEATS = 2  # of a step, in each seed's profile


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
        "pace": [one for seed in study.seeds for one in ask("steps", "pace", seed, pacing, rounds=at.rounds)],
        "bench": [one for seed in study.seeds_for(TIMED) for one in ask("steps", "bench", seed, timed, rounds=at.rounds)],
        "parts": [
            one
            for seed in profiled
            for name, arm in apart.items()
            for one in ask("parts", f"parts-{name}", seed, {name: arm}, repeats=PROFILE_REPEATS)
        ],
        "curve": [one for seed in study.seeds_for((Metric.exponent,)) for one in ask("lengths", "curve", seed, curved, T=at.curve)],
        "decoding": [one for seed in study.seeds_for(DECODED) for one in ask("decoding", "decoding", seed, wanted_decoding, **decode)],
    }


def ask(kind: str, what: str, seed: int, arms: Mapping[str, Composed], **how: Any) -> list[Session]:
    """The session of a seed, or none where there are no arms."""
    if not arms:
        return []
    plain = {name: replace(arm.run, seed=seed) for name, arm in arms.items()}
    words = {name: [*arm.overrides, f"seed={seed}"] for name, arm in arms.items()}
    return [Session(kind=kind, what=what, seed=seed, arms=words, runs=plain, how=how)]


def _chosen(arms: Mapping[str, Composed], names: Sequence[str]) -> dict[str, Composed]:
    return {name: arms[name] for name in names if name in arms}


def _baseline_first(study: Study, names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: name != study.baseline)
