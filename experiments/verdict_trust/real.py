"""How often verdicts are wrong on real runs: an arm against itself, trained with other seeds or timed twice, each from its claim to its
verdict. No torch.

With the same seed a CPU repeats a run to the last bit, and nothing could be called different: the two sides of a comparison take seeds of
their own, which are its pairs 0, 1, 2 to the verdict. Speeds are of interleaved steps: a session times the arm twice, and its control,
the second time, is the other side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.compose import Composed
from nocap.config.keys import require
from nocap.judge.stats import interval, pooled_sd
from nocap.store.runs import Record
from nocap.study.arms import all_composed, check_fair, with_seed
from nocap.study.claim import LEAST, MORE_IS_BETTER, Claim, Mechanism, Metric, Scale
from nocap.study.evidence import Evidence, outcomes
from nocap.study.sessions import Session, hold_all
from nocap.study.spec import At, Study
from nocap.study.training import Wanted, grid_of, record_of, train
from nocap.study.trust import COUNTED, bar, says, share, table, told_bars
from nocap.study.verdict import judge

LEAST_COMPARISONS = 2
ARM, BASELINE = SIDES = ("arm", "baseline")  # of a comparison: the same words
AT = "real"
PLAIN = ("trainer.device=cpu", "trainer.threads=1", "trainer.precision=fp32", "trainer.compile='off'")
ROUNDS = 2  # of interleaved blocks in a session, as a study's

Say = Callable[[str], None]


class UnfinishedError(RuntimeError):
    """A run that a comparison needs has failed."""


def study() -> Study:
    """Two arms without a difference, at the smallest scale: seconds a run on one CPU thread."""
    return Study(
        name="aa",
        question="How often is an arm called different from itself?",
        baseline=BASELINE,
        arms={name: [] for name in SIDES},
        seeds=list(range(LEAST)),
        scales={
            AT: At(
                words=["model=nano", "tokenizer=bytes", "data=stdlib", "tracker=none", *PLAIN],
                train=["trainer.steps=48", "trainer.val_every=0", "trainer.checkpoint_every=0", "trainer.val_tokens=8192"],
                bench=["trainer.steps=48"],
                rounds=ROUNDS,
            )
        },
        claims=[_claim(Metric.val_loss, Scale.difference), _claim(Metric.tokens_per_s, Scale.ratio)],
    )


def _claim(metric: Metric, scale: Scale) -> Claim:
    """The weakest one, any gain at all: identical arms lie on its very edge."""
    return Claim(
        id=f"aa.{metric.value}",
        statement=f"the arm's {metric.value} is better than its own",
        source="made up: nothing differs",
        arm=ARM,
        metric=metric,
        scale=scale,
        expected=[_nothing(scale), None],
        mechanism=Mechanism(bound=None, formula="none: nothing differs"),
        seeds=list(range(LEAST)),
    )


def _nothing(scale: Scale) -> float:
    return 1.0 if scale is Scale.ratio else 0.0


def seeds_of(comparison: int) -> dict[str, list[int]]:
    """Side → its seeds, in the order of the pairs. No seed is in two comparisons, or on both sides of one."""
    first = 2 * LEAST * comparison
    return {ARM: list(range(first, first + LEAST)), BASELINE: list(range(first + LEAST, first + 2 * LEAST))}


def calibrate(*, trainings: int | None, timings: int | None, output_dir: str, say: Say = print) -> dict[str, Any]:
    """So many comparisons of each kind, `None` for none; what has been run before is not run again. A JSON object.

    Errors:
        ValueError: too few comparisons, or a run that will not do; nothing has been trained.
        training.StoppedError: somebody asked to stop.
        UnfinishedError, sessions.SessionError: a run failed. What finished is kept, and the same command goes on.
    """
    for key, count in (("--trainings", trainings), ("--timings", timings)):
        require(count is None or count >= LEAST_COMPARISONS, key, f"be at least {LEAST_COMPARISONS}", count)
    asked, folder = study(), Path(output_dir) / "studies" / "aa"
    at, found, claims = asked.scales[AT], dict[str, Any](), {claim.id: claim.hash() for claim in asked.claims}
    arms = all_composed(asked, at, SIDES, [*at.train, f"output_dir='{folder}'"])
    check_fair(arms, baseline=BASELINE)
    arm = all_composed(asked, at, [ARM], at.bench)[ARM]
    if trainings is not None:
        evidence = trained(arms, trainings, claims=claims)
        found["trainings"] = {"words": [*at.words, *at.train], **judged(asked, asked.claims[0], evidence)}
    if timings is not None:
        evidence = timed(arm, timings, folder, claims=claims, say=say)
        found["timings"] = {"words": list(arm.overrides), "rounds": ROUNDS, **judged(asked, asked.claims[1], evidence)}
    machine = {key: value for key, value in hardware.describe(arm.run.trainer.device, arm.run.trainer.threads).items() if key != "host"}
    return {"date": date.today().isoformat(), "hardware": machine, **found, "ok": all(part["ok"] for part in found.values())}


# --- evidence ----------------------------------------------------------------------------------------------------------------------


def trained(arms: Mapping[str, Composed], comparisons: int, *, claims: Mapping[str, str]) -> list[Evidence]:
    """Train what is missing: six runs a comparison.

    Errors:
        as for `calibrate`.
    """
    sides = [(arm, seed) for i in range(comparisons) for arm, seeds in seeds_of(i).items() for seed in seeds]
    cells = [Wanted(arm=arm, seed=seed, composed=with_seed(arms[arm], seed)) for arm, seed in sides]
    grid, of = grid_of(cells, label="A/A", claims=claims)
    ended = train(grid)
    records: dict[int, Record] = {}
    for i, cell in enumerate(cells):
        if (record := record_of(of[i], problems=[])) is None:
            result = ended.get(of[i].plan.identity)
            raise UnfinishedError(f"{of[i].label}: {result.reason if result else 'no result'}; what finished is kept")
        records[cell.seed] = record
    return [paired(records, i) for i in range(comparisons)]


def paired(records: Mapping[int, Record], comparison: int) -> Evidence:
    """Each side's runs under the numbers of their pairs. `records`: by their own seeds."""
    return Evidence(runs={(arm, pair): records[seed] for arm, seeds in seeds_of(comparison).items() for pair, seed in enumerate(seeds)})


def timed(arm: Composed, comparisons: int, folder: Path, *, claims: Mapping[str, str], say: Say) -> list[Evidence]:
    """Hold what is missing: three sessions a comparison, each in a fresh process.

    Errors:
        sessions.SessionError: one ended without a result.
    """
    sessions = []
    for seed in range(LEAST * comparisons):
        one = with_seed(arm, seed)
        arms = {ARM: list(one.overrides)}
        sessions.append(Session(kind="steps", what="aa", seed=seed, arms=arms, runs={ARM: one.run}, how={"rounds": ROUNDS}))
    said = [found["measured"] for found in hold_all(sessions, folder, claims=claims, say=say)]
    return [controlled(said[LEAST * i : LEAST * (i + 1)]) for i in range(comparisons)]


def controlled(said: Sequence[Mapping[str, Any]]) -> Evidence:
    """The sessions of one comparison: the arm's first instance against its second."""
    both = [one["control"]["tokens_per_s"] for one in said]
    sides = [{ARM: {"tokens_per_s": first}, BASELINE: {"tokens_per_s": second}} for first, second in both]
    return Evidence(bench={pair: {"arms": side} for pair, side in enumerate(sides)})


# --- verdicts ----------------------------------------------------------------------------------------------------------------------


def judged(asked: Study, claim: Claim, evidence: Sequence[Evidence]) -> dict[str, Any]:
    """The verdict on each comparison, and how many are wrong."""
    nothing, counts, each = _nothing(claim.scale), dict.fromkeys(COUNTED, 0), []
    for one in evidence:
        arm, baseline = outcomes(claim, asked, one)
        verdict = judge(claim, arm=arm, baseline=baseline, at=AT)
        for name, holds in says(verdict, nothing=nothing, truth=nothing).items():
            counts[name] += holds
        shown = verdict.interval
        values = {side: [of[claim.metric][pair].value for pair in claim.seeds] for side, of in ((ARM, arm), (BASELINE, baseline))}
        gain = None if shown is None else {"mid": shown.mid, "low": shown.low, "high": shown.high}
        each.append({**values, "verdict": verdict.word.value, "gain": gain})
    of = len(evidence)
    shares = {name: share(count, of) for name, count in counts.items()}
    bars = [
        bar("A/A called different", "at most 5%", [shares["different"]], most=claim.alpha),
        bar("A/A confirmed as a gain", "at most 5%", [shares["confirmed"]], most=claim.alpha),
        bar("A/A refuted", "at most 2.5%", [shares["refuted"]], most=claim.alpha / 2),
        bar("interval holds no change", "93% to 97%", [shares["covered"]], least=0.93, most=0.97),
    ]
    row = {"design": claim.metric.value, "noise": "real", "truth": "A/A", "pairs": LEAST, "studies": of, **shares}
    ok = all(bar["verdict"] != "broken" for bar in bars)
    return {"claim": claim.id, "bars": bars, "rows": [row], "counts": counts, **spread(claim, each), "each": each, "ok": ok}


def spread(claim: Claim, each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Standard deviations, of logarithms for a ratio, each within its three: of one side's values, and of the pairs' gains. Pairs that
    have nothing in common scatter √2 times as much as their sides. And the mean gain of all pairs together, which sees a bias that three
    cannot. `None`: runs that diverged left fewer than two.
    """
    ratio, sign = claim.scale is Scale.ratio, 1 if claim.metric in MORE_IS_BETTER else -1
    unit: Callable[[float], float] = math.log if ratio else float
    sides = [[unit(value) for value in one[side] if value is not None] for one in each for side in SIDES]
    both = [[(a, b) for a, b in zip(one[ARM], one[BASELINE], strict=True) if a is not None and b is not None] for one in each]
    pairs = [[sign * (unit(a) - unit(b)) for a, b in found] for found in both]
    gains = [gain for found in pairs for gain in found]
    mean = interval(gains) if len(gains) > 1 else None
    if mean is not None and ratio:
        mean = mean.exp()
    return {
        "sigma": _pooled(sides),
        "sigma_of_pairs": _pooled(pairs),
        "all_pairs": None if mean is None else {"pairs": len(gains), "mid": mean.mean, "low": mean.low, "high": mean.high, "p": mean.p},
    }


def _pooled(groups: Sequence[Sequence[float]]) -> float | None:
    enough = [group for group in groups if len(group) > 1]
    return pooled_sd(enough) if enough else None


def render(result: Mapping[str, Any]) -> str:
    """The figures and the tables, as text."""
    lines = []
    for kind in ("trainings", "timings"):
        if kind not in result:
            continue
        part = result[kind]
        (row,) = part["rows"]
        counts = ", ".join(f"{name} {part['counts'][name]}" for name in ("different", "confirmed", "refuted", "covered"))
        lines += [f"{row['design']}: {row['studies']} real A/A comparisons of {row['pairs']} pairs: {counts}", *told_bars(part["bars"])]
        if part["sigma"] is not None and part["sigma_of_pairs"] is not None:
            lines.append(f"standard deviation {part['sigma']:.4g}, of a pair's gain {part['sigma_of_pairs']:.4g}")
        if (mean := part["all_pairs"]) is not None:
            lines.append(
                f"gain over all {mean['pairs']} pairs {mean['mid']:.4f} [{mean['low']:.4f}, {mean['high']:.4f}], p = {mean['p']:.3f}"
            )
        lines += ["", *table(part["rows"]), ""]
    return "\n".join(lines).rstrip()
