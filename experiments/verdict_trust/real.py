"""How often verdicts are wrong on real runs: an arm against itself, or with a planted effect, from claim to verdict.

`python experiments/verdict_trust/real.py [--trainings N] [--timings N] [--planted] [--output-dir DIR] [--json FILE]`: seconds a run on one
CPU thread; timings wait between their three sittings, all comparisons together.

With the same seed a CPU repeats a run to the last bit, and nothing could be called different: the two sides of a comparison take seeds of
their own, which are its pairs 0, 1, 2 to the verdict. Speeds are of interleaved steps: the arm has the idea `ballast`, without any work.

`--planted`: the arm is worse. In a training it takes three quarters of the steps. In a timing its ballast is 2% of a step, measured here.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from counting import SIDES, bar, bar_lines, count, finish, share, table

from nocap import outside
from nocap.config import hardware
from nocap.config.compose import Composed
from nocap.config.errors import EXIT_CODES, refusals
from nocap.config.keys import require
from nocap.judge.claim import LEAST_PAIRS, Claim, Mechanism
from nocap.judge.sittings import APART_MIN
from nocap.judge.stats import interval, pooled_sd
from nocap.judge.verdict import Judge
from nocap.launch.plan import outcome
from nocap.store.measurement import METRICS, Better, Scale
from nocap.store.record import check_writable, read_json, write_json
from nocap.store.runs import Record
from nocap.study.arms import check_fair, compose_arms, more, with_seed
from nocap.study.cells import Cells, FailedError, StoppedError, Wanted
from nocap.study.evidence import Evidence
from nocap.study.measured import measurements
from nocap.study.plan import ask
from nocap.study.sessions import SessionError
from nocap.study.sittings import Place, Sittings
from nocap.study.spec import At, Study

LEAST_COMPARISONS = 2
ARM, BASELINE = SIDES  # of a comparison: the same overrides
AT = "real"
PLAIN = ("trainer.device=cpu", "trainer.threads=1", "trainer.precision=fp32", "trainer.compile='off'")
ROUNDS = 2  # of interleaved blocks in a session, as a study's
STEPS, FEWER = 48, 36
SLOWER = 0.02  # the planted ballast, as a share of the step
OPTIONS = Path(__file__).parent / "options"


def make_study(*, planted: bool = False) -> Study:
    """Two arms without a difference, at the smallest scale; or one that is trained for fewer steps."""
    return Study(
        name="aa",
        question="How often is an arm called different from itself?",
        baseline=BASELINE,
        arms={ARM: [f"trainer.steps={FEWER}"] if planted else [], BASELINE: []},
        seeds=list(range(LEAST_PAIRS)),
        scales={
            AT: At(
                overrides=["model=nano", "tokenizer=bytes", "data=stdlib", "tracker=none", *PLAIN],
                train=[f"trainer.steps={STEPS}", "trainer.val_every=0", "trainer.checkpoint_every=0", "trainer.val_tokens=8192"],
                bench=[f"trainer.steps={STEPS}"],
                rounds=ROUNDS,
                apart_min=APART_MIN,
            )
        },
        claims=[_claim("val_loss", Scale.difference), _claim("tokens_per_s", Scale.ratio)],
    )


def _claim(metric: str, scale: Scale) -> Claim:
    """The weakest one, any gain at all: identical arms lie on its very edge."""
    return Claim(
        id=f"aa.{metric}",
        statement=f"the arm's {metric} is better than its own",
        source="made up: nothing differs",
        arm=ARM,
        metric=metric,
        scale=scale,
        expected=[_nothing(scale), None],
        mechanism=Mechanism(bound=None, formula="none: nothing differs"),
        seeds=list(range(LEAST_PAIRS)),
    )


def _nothing(scale: Scale) -> float:
    return 1.0 if scale is Scale.ratio else 0.0


def seeds_of(comparison: int) -> dict[str, list[int]]:
    """Side → its seeds, in the order of the pairs. No seed is in two comparisons, or on both sides of one."""
    first = 2 * LEAST_PAIRS * comparison
    return {ARM: list(range(first, first + LEAST_PAIRS)), BASELINE: list(range(first + LEAST_PAIRS, first + 2 * LEAST_PAIRS))}


def calibrate(
    *, trainings: int | None, timings: int | None, output_dir: str, planted: bool = False, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """So many comparisons of each kind, `None` for none; what has been run before is not run again. A JSON object.

    Errors:
        ValueError: too few comparisons, or an invalid run; nothing has been trained.
        StoppedError: somebody asked to stop.
        FailedError, SessionError: a run failed. What finished is kept, and the same command goes on.
    """
    for key, n in (("--trainings", trainings), ("--timings", timings)):
        require(n is None or n >= LEAST_COMPARISONS, key, f"be at least {LEAST_COMPARISONS}", n)
    study, found = make_study(planted=planted), dict[str, Any]()
    at, (loss, speed) = study.scales[AT], study.claims
    folder = Path(output_dir) / "studies" / study.name
    arms = compose_arms(study, at, SIDES, [*at.train, f"output_dir='{output_dir}'"])
    check_fair(arms, baseline=BASELINE)
    plain = compose_arms(study, at, [BASELINE], at.bench)[BASELINE]
    if trainings is not None:
        found["trainings"] = {"words": [*at.overrides, *at.train], **judged(study, loss, trained(arms, trainings), planted=planted)}
    if timings is not None:
        outside.use([OPTIONS])
        products = ballast_products(plain, folder) if planted else 0
        sides = {BASELINE: plain, ARM: more(plain, "ideas=[ballast]", f"ideas.ballast.products={products}")}
        evidence = timed(sides, timings, folder, apart_min=at.apart_min, log=log)
        verdicts = judged(study, speed, evidence, planted=planted)
        found["timings"] = {"words": list(sides[ARM].overrides), "rounds": ROUNDS, "apart_min": at.apart_min, **verdicts}
    machine = {key: value for key, value in hardware.describe(plain.run.trainer.device, plain.run.trainer.threads).items() if key != "host"}
    ok = all(part["ok"] for part in found.values())
    return {"date": date.today().isoformat(), "hardware": machine, "planted": planted, **found, "ok": ok}


# --- evidence ----------------------------------------------------------------------------------------------------------------------


def trained(arms: Mapping[str, Composed], comparisons: int) -> list[Evidence]:
    """Train what is missing: six runs a comparison.

    Errors:
        as for `calibrate`.
    """
    sides = [(arm, seed) for i in range(comparisons) for arm, seeds in seeds_of(i).items() for seed in seeds]
    cells = Cells([Wanted(arm=arm, seed=seed, composed=with_seed(arms[arm], seed)) for arm, seed in sides], label="A/A")
    ended = cells.train()
    for _, cell in cells.of:
        if outcome(cell.plan) is None:
            result = ended.get(cell.plan.identity)
            raise FailedError(f"{cell.label}: {result.reason if result else 'no result'}; what finished is kept")
    records = {run.seed: record for run, record in cells.records([])}
    return [paired(records, i) for i in range(comparisons)]


def paired(records: Mapping[int, Record], comparison: int) -> Evidence:
    """Each side's runs under the numbers of their pairs. `records`: by their own seeds."""
    return Evidence(runs={(arm, pair): records[seed] for arm, seeds in seeds_of(comparison).items() for pair, seed in enumerate(seeds)})


def timed(sides: Mapping[str, Composed], comparisons: int, folder: Path, *, apart_min: float, log: Callable[[str], None]) -> list[Evidence]:
    """Hold what is missing: a session a comparison in each of three sittings, each in a fresh process.

    Errors:
        SessionError: one ended without a result.
    """
    places, problems = [], list[str]()
    for i in range(comparisons):
        seeds, how = range(LEAST_PAIRS * i, LEAST_PAIRS * (i + 1)), {"rounds": ROUNDS}
        asked = [ask("steps", "aa", seed, sides, **how)[0] for seed in seeds]
        places.append(Place(name=f"comparison {i}", sessions=asked, sittings=LEAST_PAIRS, apart_min=apart_min, folder=folder))
    Sittings(places, problems=problems, log=log).hold_all()
    if problems:
        raise SessionError(problems[0])
    seeds = range(LEAST_PAIRS)  # the verdict's names of a comparison's sessions
    held = [[{**one, "seed": seed} for seed, one in zip(seeds, place.results(), strict=False)] for place in places]
    return [Evidence(bench=sessions, apart_min=apart_min) for sessions in held]


def ballast_products(plain: Composed, folder: Path) -> int:
    """How many products are the planted share of a step, by this machine's clock. Kept, so that the same command goes on."""
    path = folder / "ballast.json"
    if (kept := read_json(path)) is None:
        import torch
        from nocap.outside.ideas.ballast import matrices, product  # type: ignore[import-not-found]

        from nocap.measure.clock import Clock

        torch.set_num_threads(1)
        part = matrices()
        step_ms = ask("steps", "pilot", 0, {BASELINE: plain}, rounds=ROUNDS)[0].run(folder)["measured"]["arms"][BASELINE]["step_ms"]
        product_ms = Clock.cpu.least_ms(lambda: product(part))
        kept = {"step_ms": step_ms, "product_ms": product_ms, "products": max(1, round(SLOWER * step_ms / product_ms))}
        write_json(path, kept)
    return int(kept["products"])


# --- verdicts ----------------------------------------------------------------------------------------------------------------------


def judged(study: Study, claim: Claim, evidence: Sequence[Evidence], *, planted: bool = False) -> dict[str, Any]:
    """The verdict on each comparison, and how many are wrong. Of a planted loss a confirmed gain is."""
    nothing, verdicts, each = _nothing(claim.scale), [], []
    for one in evidence:
        found = measurements(claim, study, one)
        verdict = Judge(claim, found, against=BASELINE, at=AT).verdict()
        values = {side: [m.value for m in found if m.arm == side] for side in SIDES}  # in the order of the pairs
        shown = verdict.interval
        gain = None if shown is None else {"mid": shown.mid, "low": shown.low, "high": shown.high}
        each.append({**values, "verdict": verdict.word.value, "gain": gain})
        verdicts.append(verdict)
    truth = 1 / (1 + SLOWER) if planted and claim.scale is Scale.ratio else nothing
    of, counts = len(evidence), count(verdicts, nothing=nothing, truth=truth)
    shares = {name: share(n, of) for name, n in counts.items()}
    bars = [
        bar("A/A called different", "at most 5%", [shares["different"]], most=claim.alpha),
        bar("A/A confirmed as a gain", "at most 5%", [shares["confirmed"]], most=claim.alpha),
        bar("A/A refuted", "at most 2.5%", [shares["refuted"]], most=claim.alpha / 2),
        bar("interval holds no change", "at least 93%", [shares["covered"]], least=0.93),
    ]
    if planted:
        bars = [bar("a planted loss confirmed as a gain", "at most 5%", [shares["confirmed"]], most=claim.alpha)]
    row = {"design": claim.metric, "noise": "real", "truth": "planted" if planted else "A/A", "pairs": LEAST_PAIRS, "studies": of, **shares}
    ok = all(bar["verdict"] != "broken" for bar in bars)
    return {"claim": claim.id, "bars": bars, "rows": [row], "counts": counts, **spread(claim, each), "each": each, "ok": ok}


def spread(claim: Claim, each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Standard deviations, of logarithms for a ratio, each within its three: of one side's values, and of the pairs' gains. Pairs that
    have nothing in common scatter √2 times as much as their sides. And the mean gain of all pairs together, which sees a bias that three
    cannot. `None`: runs that diverged left fewer than two.
    """
    ratio, sign = claim.scale is Scale.ratio, 1 if METRICS[claim.metric].better is Better.higher else -1
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
        "all_pairs": None if mean is None else {"pairs": len(gains), "mid": mean.mid, "low": mean.low, "high": mean.high, "p": mean.p},
    }


def _pooled(groups: Sequence[Sequence[float]]) -> float | None:
    enough = [group for group in groups if len(group) > 1]
    return pooled_sd(enough) if enough else None


def render(result: Mapping[str, Any]) -> str:
    """The figures and the tables, as text."""
    return "\n\n".join("\n".join(_part(result[kind])) for kind in ("trainings", "timings") if kind in result)


def _part(part: Mapping[str, Any]) -> list[str]:
    (row,) = part["rows"]
    counts = ", ".join(f"{name} {part['counts'][name]}" for name in ("different", "confirmed", "refuted", "covered"))
    lines = [
        f"{row['design']}: {row['studies']} real comparisons ({row['truth']}) of {row['pairs']} pairs: {counts}",
        *bar_lines(part["bars"]),
    ]
    if part["sigma"] is not None and part["sigma_of_pairs"] is not None:
        lines.append(f"standard deviation {part['sigma']:.4g}, of a pair's gain {part['sigma_of_pairs']:.4g}")
    if (mean := part["all_pairs"]) is not None:
        lines.append(f"gain over all {mean['pairs']} pairs {mean['mid']:.4f} [{mean['low']:.4f}, {mean['high']:.4f}], p = {mean['p']:.3f}")
    return [*lines, "", *table(part["rows"])]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count the wrong verdicts of real runs: an arm compared with itself.")
    parser.add_argument("--trainings", type=int, metavar="N", help="train N comparisons, 6 runs each")
    parser.add_argument("--timings", type=int, metavar="N", help="time N comparisons, a session each in 3 sittings")
    parser.add_argument("--planted", action="store_true", help="make the arm worse: fewer steps, 2%% slower steps")
    parser.add_argument("--output-dir", metavar="DIR", default="outputs", help="of these runs and sessions (default: outputs)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts as JSON")
    options = parser.parse_args(argv)
    with refusals():
        require(not (options.trainings is None and options.timings is None), "--trainings or --timings", "be given", "neither")
        if options.json:
            check_writable("--json", options.json)
        try:
            asked = {"trainings": options.trainings, "timings": options.timings, "planted": options.planted}
            result = calibrate(**asked, output_dir=options.output_dir)
        except (StoppedError, SessionError, FailedError) as error:
            print(f"nocap: {error}", file=sys.stderr)
            return EXIT_CODES["preempted" if isinstance(error, StoppedError) else "failed"]
        return finish(result, render(result), options.json)


if __name__ == "__main__":
    raise SystemExit(main())
