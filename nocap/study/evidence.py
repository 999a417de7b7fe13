"""What a study's runs and sessions measured, as measurements of its claims; and the bound of a claim."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from statistics import fmean

from nocap.config.compose import Composed
from nocap.judge.arms import Arm
from nocap.judge.claim import AT_EQUAL_LOSS, TO_TARGET, Claim, Rule
from nocap.judge.equal_loss import SHARES, EqualLoss
from nocap.judge.interval import LEAST_PAIRS, analyses, analysis_of
from nocap.judge.pace import Paces
from nocap.judge.time_to_target import race
from nocap.judge.verdict import Verdict, judge
from nocap.store.metrics import HELD, METRICS, Ending, Measurement, Metric, Per, is_count
from nocap.store.runs import Record
from nocap.store.runs import measurements as of_run
from nocap.study.figures import Figures, PartFigures, SessionFile, StepFigures
from nocap.study.spec import Study

Steps = tuple[float | None, Ending]
# what makes a metric → where
PLACE_OF = {"train": "train", "steps": "bench", "parts": "parts", "lengths": "curve", "decoding": "decoding"}
# of a kind of session, what the log keeps of each arm
FIGURE = {
    "steps": "tokens_per_s",
    "parts": "step_ms",
    "lengths": "exponent",
    "decoding": "decode_tokens_per_s",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that was measured at one scale. A run or session that is not there is left out."""

    runs: Mapping[tuple[str, int], Record] = field(default_factory=dict)  # (arm, seed)
    # (arm, seed) → steps → the run of so many
    shorter: Mapping[tuple[str, int], Mapping[int, Record]] = field(default_factory=dict)
    # (baseline, seed) → steps → the run of so many, for the time at equal loss
    lengths: Mapping[tuple[str, int], Mapping[int, Record]] = field(default_factory=dict)
    # place → files, in order of their numbers
    sessions: Mapping[str, Sequence[SessionFile]] = field(default_factory=dict)
    # place → arm → as it was composed, shorter ones too
    arms: Mapping[str, Mapping[str, Sequence[Composed]]] = field(default_factory=dict)
    damaged: frozenset[tuple[str, int]] = frozenset()  # (arm, seed) of runs whose record was changed

    def of_arm(self, place: str, arm: str) -> list[tuple[SessionFile, Figures]]:
        """Return the sessions of a place that have the arm, each with what it measured of it."""
        sessions = self.sessions.get(place, ())
        return [(session, session.figures[arm]) for session in sessions if arm in session.figures]

    def steps_of_arm(self, place: str, arm: str) -> list[StepFigures]:
        """List what the sessions of a place timed of an arm's steps."""
        rows = [row for _, row in self.of_arm(place, arm)]
        return [row for row in rows if isinstance(row, StepFigures)]

    def parts_of_arm(self, arm: str) -> list[PartFigures]:
        """List the profiles of an arm's step."""
        rows = [row for _, row in self.of_arm("parts", arm)]
        return [row for row in rows if isinstance(row, PartFigures)]

    def whole(self, arm: str, seed: int) -> bool:
        """Whether all its shorter runs are there: one that is missing might have been the one."""
        wanted = [composed.run.trainer.steps for composed in self.arms.get("train", {}).get(arm, ())[1:]]
        return all(steps in self.shorter.get((arm, seed), {}) for steps in wanted)

    def has_lengths(self, arm: str, seed: int) -> bool:
        """Say whether a baseline's other lengths are there."""
        return len(self.lengths.get((arm, seed), {})) == len(SHARES)

    def used(self, claim: Claim, study: Study) -> Iterator[tuple[str, str, str]]:
        """Name, arm and start of each run and session that a claim rests on."""
        for (arm, seed), run in self.runs.items() if "train" in places(claim) else ():
            if arm in study.sides(claim) and seed in claim.seeds:
                yield f"{arm}, seed {seed}", arm, run.started
                for steps, short in self.shorter.get((arm, seed), {}).items() if claim.races else ():
                    yield f"{arm}, seed {seed}, {steps} steps", arm, short.started
        for (arm, seed), runs in self.lengths.items() if claim.at_equal_loss else ():
            if arm == study.against(claim) and seed in claim.seeds:
                for steps, run in runs.items():
                    yield f"{arm}, seed {seed}, {steps} steps", arm, run.started
        for place in sorted(places(claim)):
            for arm in study.sides(claim):
                for session, _ in self.of_arm(place, arm):
                    yield f"{place} session {session.number}", arm, session.started


def places(claim: Claim) -> set[str]:
    """Where a claim's measurements come from: `train` for the runs, and the places of the sessions."""
    made = {PLACE_OF[metric.made_by] for metric in claim.metrics}
    return made | {"pace" for metric in claim.metrics if metric.name == "time_to_target_s"}


def verdict_of(claim: Claim, study: Study, scale: str, evidence: Evidence) -> Verdict:
    """The verdict, with the claim's bound as it was computed."""
    limit = bound(claim, study, evidence)
    mechanism = replace(claim.mechanism, rule=Rule.given, parts=[], saved={}, bound=limit)
    return judge(
        replace(claim, mechanism=mechanism),
        measurements(claim, study, evidence),
        against=study.against(claim),
        at=scale,
        noise=study.scales[scale].noise,
    )


# --- bounds -------------------------------------------------------------------------------------------------

# Parts of a step → of the FLOP count; both MLP matrices are one component.
COMPONENT = {
    "qkv": "qkv",
    "scores": "scores",
    "attention_out": "attention_out",
    "mlp_up": "mlp",
    "mlp_down": "mlp",
    "head": "head",
}


def bound(claim: Claim, study: Study, evidence: Evidence) -> float | None:
    """What arithmetic allows, by the claim's rule; `None` where it sets no bound, or what it needs was not
    measured."""
    rule, sides = claim.mechanism.rule, (study.against(claim), claim.arm)
    if rule is Rule.given:
        return claim.mechanism.bound
    if rule is Rule.amdahl:
        saved = {part: claim.mechanism.saved.get(part, 1.0) for part in claim.mechanism.parts}
        shares = list[float]()
        for profile in evidence.parts_of_arm(sides[0]):
            spared_ms = sum(share * profile.ms.get(part, 0.0) for part, share in saved.items())
            shares.append(spared_ms / profile.step_ms)
        return 1 / (1 - max(shares)) if shares and max(shares) < 1 else None
    place = "bench" if evidence.sessions.get("bench") else "pace"
    if rule is Rule.flops and claim.parts:
        place = "parts"
    # of the first session: what is counted is equal in all
    rows = [row for arm in sides for _, row in evidence.of_arm(place, arm)[:1]]
    if len(rows) < 2 or not all(row.is_measured for row in rows):
        return None  # an arm that did not fit gives no bound
    base, arm = [_counted(rule, row, claim) for row in rows]
    return base / arm if base is not None and arm else None


def _counted(rule: Rule, row: Figures, claim: Claim) -> float | None:
    """Return what a rule counts of an arm's step."""
    if isinstance(row, PartFigures):
        return _flops(row.component_flops or {}, claim.parts)
    assert isinstance(row, StepFigures), "only steps and their parts are counted"
    if rule is Rule.flops:
        return _flops(row.component_flops or {}, claim.parts)
    if rule is Rule.params:
        return row.params
    if rule is Rule.kv:
        return row.kv_bytes
    # a GPU's peak has the allocator's slack in it, too
    held = row.memory_mib or {}
    return sum(held.get(part) or 0.0 for part in HELD)


def _flops(components: Mapping[str, float | None], parts: list[str]) -> float | None:
    """Sum the FLOPs of a token, or of these parts of a step. `None`: one of them was not counted, as
    those of a model of its own are not one by one."""
    named = [COMPONENT[part] for part in parts if part in COMPONENT] if parts else components
    known = [components.get(name) for name in dict.fromkeys(named)]
    counted = [flops for flops in known if flops is not None]
    return sum(counted) if len(counted) == len(known) else None


# --- measurements -------------------------------------------------------------------------------------------


def measurements(claim: Claim, study: Study, evidence: Evidence) -> list[Measurement]:
    """Of the claim's arm and of the one it is compared with, in each metric; what is missing is left out."""
    sides, rows = list(dict.fromkeys((claim.arm, study.against(claim)))), list[Measurement]()
    for metric in claim.metrics:
        if metric.made_by != "train":
            rows += _timed(claim, metric, sides, evidence, place=PLACE_OF[metric.made_by])
        elif metric.name in TO_TARGET:
            steps = steps_to_target(claim, study, evidence)
            rows += (
                steps if metric.name == "steps_to_target" else _times(claim, metric, sides, steps, evidence)
            )
        elif metric.name == AT_EQUAL_LOSS:
            rows += times_at_equal_loss(claim, study, evidence)
        else:
            keys = [(arm, seed) for arm in sides for seed in claim.seeds if (arm, seed) in evidence.runs]
            rows += [
                replace(m, arm=arm)
                for arm, seed in keys
                for m in of_run(evidence.runs[arm, seed])
                if m.metric is metric
            ]
    return sorted(rows, key=lambda row: sides.index(row.arm))


def _timed(
    claim: Claim, metric: Metric, sides: Sequence[str], evidence: Evidence, *, place: str
) -> list[Measurement]:
    """What is timed, one a session that has both arms; a count once, if all sessions agree on it."""
    read = {
        arm: [
            (session, x)
            for session, row in evidence.of_arm(place, arm)
            if (x := _value(row, claim, metric)) is not None
        ]
        for arm in sides
    }
    counted = is_count(
        metric,
        on_cuda=any(session.on_cuda for rows in read.values() for session, _ in rows),
    )
    if counted and all(len({x for _, x in rows}) <= 1 for rows in read.values()):
        return [
            _of_session(arm, metric, *rows[0], repeat=1, per=Per.exact) for arm, rows in read.items() if rows
        ]
    numbers = [{session.number for session, _ in rows} for rows in read.values() if rows]
    paired = sorted(set[int].intersection(*numbers)) if numbers else []
    return [
        _of_session(arm, metric, session, x, repeat=paired.index(session.number) + 1)
        for arm, rows in read.items()
        for session, x in rows
        if session.number in paired
    ]


def _of_session(
    arm: str, metric: Metric, session: SessionFile, value: float, *, repeat: int, per: Per = Per.session
) -> Measurement:
    return Measurement(
        arm=arm,
        repeat=repeat,
        metric=metric,
        value=value,
        where=session.machine,
        when=session.started,
        per=per,
    )


def _value(row: Figures, claim: Claim, metric: Metric) -> float | None:
    if isinstance(row, PartFigures):
        return _of_parts(row, claim, metric)
    if isinstance(row, StepFigures) and metric.name == "memory_mib":
        return row.peak_mib
    value = getattr(row, metric.name)
    return None if value is None else float(value)


def _of_parts(row: PartFigures, claim: Claim, metric: Metric) -> float:
    """Return what the parts of a claim have of a metric."""
    sources: Mapping[str, Mapping[str, float | None]] = {
        "part_mib": row.mib,
        "held_mib": row.memory_mib,
        "part_params": row.params,
    }
    source = sources.get(metric.name, row.ms)
    spent = float(sum(source.get(part) or 0 for part in claim.parts))
    if metric.name != "share":
        return spent
    whole = sum(row.ms.get(part, 0.0) for part in claim.of) if claim.of else row.step_ms
    return spent / whole


# --- steps and time to a loss -------------------------------------------------------------------------------


def _times(
    claim: Claim, metric: Metric, sides: Sequence[str], steps: Sequence[Measurement], evidence: Evidence
) -> list[Measurement]:
    """Steps are seeds', the time of a step is a session's: both are dealt in turns into as many groups as
    there are of the fewer. Their means make independent pairs, whose spread has the noise of both."""
    step_ms = _timed(claim, METRICS["step_ms"], sides, evidence, place="pace")
    paces, rows = {arm: [m for m in step_ms if m.arm == arm] for arm in sides}, []
    groups = min(len(claim.seeds), *map(len, paces.values()))
    for arm, pace in paces.items():
        ends = [m for m in steps if m.arm == arm]
        for group in range(groups) if len(ends) == len(claim.seeds) else ():
            dealt = (ends[group::groups], pace[group::groups])
            ending = max((m.ending for m in dealt[0]), key=[*Ending].index)  # the worst
            value = None if ending is Ending.diverged else math.exp(sum(map(_log_mean, dealt))) / 1e3
            rows.append(replace(pace[group], repeat=group + 1, metric=metric, value=value, ending=ending))
    return rows


def _log_mean(some: Iterable[Measurement]) -> float:
    return fmean(math.log(m.value) for m in some if m.value)


def steps_to_target(claim: Claim, study: Study, evidence: Evidence) -> list[Measurement]:
    """Steps to the loss that both arms' schedules end at."""
    sides, runs = (claim.arm, study.against(claim)), evidence.runs
    there = [seed for seed in claim.seeds if all((arm, seed) in runs for arm in sides)]
    ends: dict[tuple[str, int], Steps] = {}
    lost = {seed for seed in there if any(runs[arm, seed].status == "diverged" for arm in sides)}
    for seed in lost:
        base, worst = runs[sides[1], seed], (None, Ending.diverged)
        ends[sides[0], seed] = worst
        ends[sides[1], seed] = (
            worst if base.status == "diverged" else (float(steps_of(base)), Ending.measured)
        )
    seeds = [seed for seed in there if seed not in lost and all(evidence.whole(arm, seed) for arm in sides)]
    if seeds:
        for arm, finish in zip(sides, race(*(_curve(arm, seeds, evidence) for arm in sides)), strict=True):
            ends |= {(arm, seed): (n, finish.ending) for seed, n in zip(seeds, finish.steps, strict=True)}
    return [
        Measurement(
            arm=arm,
            repeat=seed,
            metric=METRICS["steps_to_target"],
            value=ends[arm, seed][0],
            ending=ends[arm, seed][1],
            where=runs[arm, seed].machine.fingerprint,
            when=runs[arm, seed].started,
        )
        for arm in sides
        for seed in claim.seeds
        if (arm, seed) in ends
    ]


def _curve(arm: str, seeds: Sequence[int], evidence: Evidence) -> dict[int, list[float]]:
    """Final losses by steps, over seeds that all finished. A length at which a seed diverged is left out."""
    losses: dict[int, list[float]] = {}
    for seed in seeds:
        for run in (*evidence.shorter.get((arm, seed), {}).values(), evidence.runs[arm, seed]):
            if run.status == "finished" and run.val_loss is not None:
                losses.setdefault(steps_of(run), []).append(run.val_loss)
    return {n: by_seed for n, by_seed in losses.items() if len(by_seed) == len(seeds)}


def steps_of(run: Record) -> int:
    return int(run.config["trainer.steps"])


# --- time at equal loss -------------------------------------------------------------------------------------


def times_at_equal_loss(claim: Claim, study: Study, evidence: Evidence) -> list[Measurement]:
    """Return the arm's time over the baseline's for the loss that the arm reaches, seed by seed, and the
    baseline's, which is 1. They are over the seeds of the last analysis for which all runs are there: what a
    seed tells depends on the others. Without these, what is there tells nothing, and what is missing has no
    row."""
    base = study.against(claim)
    own = [seed for seed in claim.seeds if (claim.arm, seed) in evidence.runs]
    others = [seed for seed in claim.seeds if (base, seed) in evidence.runs]
    others = [seed for seed in others if evidence.has_lengths(base, seed)]
    whole = list(takewhile({*own}.intersection(others).__contains__, claim.seeds))
    number = analysis_of(len(whole))
    seeds = whole[: analyses()[number - 1]] if number else claim.seeds
    told = _at_equal_loss(claim.arm, base, seeds if number else [], evidence)
    rows = list[Measurement]()
    for seed in seeds:
        if seed in own:
            rows.append(_of_run(claim.arm, evidence.runs[claim.arm, seed], told.get(seed, TOO_FEW)))
        if seed in others:
            rows.append(_of_run(base, evidence.runs[base, seed], 0.0))
    return rows


TOO_FEW = f"fewer than {LEAST_PAIRS} seeds have all runs"


def _of_run(arm: str, run: Record, told: float | str) -> Measurement:
    """Return what a run tells: a time's logarithm, or why it tells none."""
    row = partial(
        Measurement,
        arm=arm,
        repeat=run.seed,
        metric=METRICS[AT_EQUAL_LOSS],
        where=run.machine.fingerprint,
        when=run.started,
    )
    if run.status == "diverged":
        return row(value=None, ending=Ending.diverged)
    if isinstance(told, str):
        return row(value=None, ending=Ending.refused, why=told)
    return row(value=math.exp(told))


def _at_equal_loss(
    arm: str, base: str, seeds: Sequence[int], evidence: Evidence
) -> Mapping[int, float | str]:
    """Return the logarithm of each seed's time at equal loss, or why there is none."""
    lost = {seed: why for seed in seeds if (why := _lost(base, seed, evidence)) is not None}
    sound = [seed for seed in seeds if seed not in lost and evidence.runs[arm, seed].status != "diverged"]
    if len(sound) < LEAST_PAIRS:
        return dict.fromkeys(seeds, next(iter(lost.values()), TOO_FEW))
    lengths = [[*evidence.lengths[base, seed].values()] for seed in sound]
    short = [min(runs, key=steps_of) for runs in lengths]
    long = [max(runs, key=steps_of) for runs in lengths]
    of_base = _arm(base, [evidence.runs[base, seed] for seed in sound])
    worth = EqualLoss(
        base=of_base,
        short=_arm(base, short),
        long=_arm(base, long),
        metric="val_loss",
        seeds=sound,
        look=analysis_of(len(seeds)),
        paces=Paces(timing=None),
    )
    row = worth.row(_arm(arm, [evidence.runs[arm, seed] for seed in sound]))
    if isinstance(row, str):
        return dict.fromkeys(sound, row) | lost
    return dict(zip(sound, row.by_seed, strict=True)) | lost


def _lost(base: str, seed: int, evidence: Evidence) -> str | None:
    """Say which run of a baseline diverged with a seed; `None`: none did."""
    if evidence.runs[base, seed].status == "diverged":
        return f"{base} diverged, seed {seed}"
    gone = [steps for steps, run in evidence.lengths[base, seed].items() if run.status == "diverged"]
    return f"{base} diverged, seed {seed}, {gone[0]} steps" if gone else None


def _arm(name: str, runs: Sequence[Record]) -> Arm:
    return Arm(id=name, label=name, config=runs[0].config, runs=tuple(runs), diverged=())
