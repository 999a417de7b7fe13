"""What nocap.bench finds: a planted 10% slowdown, a planted 1%, and nothing at all, each a number of times.

    python experiments/bench_power/bench_power.py [--trials 20] [--seconds 60] [--out experiments/bench_power]

Every trial is a whole bench on the CPU: a baseline, its control, and three arms of the same config that differ only in matrix products
which two of them carry out after every step, calibrated to 10% and 1% of the step's CPU time and timed while they run. Writes results.json
and README.md into the folder; takes at most trials × seconds, and a few seconds a trial to build the models.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

from nocap.config import hardware
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.measure import timed
from nocap.measure.arms import compose_arm
from nocap.measure.bench import bench
from nocap.measure.timed import Clock, TimedArm
from nocap.store.record import write_json

WORDS = ["model=nano", "trainer.device=cpu", "trainer.micro_batch=4", "trainer.batch_tokens=512"]
PLANTED = {"planted 10%": 0.10, "planted 1%": 0.01, "the same": 0.0}
BLOCK_S = 0.02  # one step: the arms are small, and twenty trials are many


class Slowed(TimedArm):
    """An arm whose step does `share` more work, in CPU time, than the trainer's own."""

    def __init__(self, label: str, run: Run) -> None:
        super().__init__(label, run)
        self._share, self._products, self._matrix = PLANTED.get(label, 0.0), 0, torch.randn(96, 96)
        self._own_s = self._planted_s = 0.0

    def warm(self, clock: Clock) -> None:
        super().warm(clock)
        self._products = 10
        for _ in range(3):  # what a product takes is known only among the steps it slows
            self._own_s = self._planted_s = 0.0
            for _ in range(15):
                self.step()
            self._products = round(self._products * self._share / self.planted_share)
            if not self._products:
                break
        self._own_s = self._planted_s = 0.0

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            self._matrix @ self._matrix

    def step(self) -> float:
        began = time.process_time()
        loss = super().step()
        own = time.process_time()
        self._multiply(self._products)
        self._own_s += own - began
        self._planted_s += time.process_time() - own
        return loss

    @property
    def planted_share(self) -> float:
        """Of the trainer's own CPU time, as it was while the bench ran."""
        return self._planted_s / self._own_s


def trial(run: Run, seconds: float) -> dict[str, Any]:
    """One bench of the baseline and the planted arms."""
    load, made = os.getloadavg()[0], {label: Slowed(label, run) for label in ("baseline", *PLANTED)}
    result = bench(list(made.values()), seconds=seconds)
    facts = ("verdict", "speed")
    arms = {}
    for found in result["arms"][1:]:
        label, verdict = found["label"], found["verdict"] or f"no verdict: {found['status']}"
        share = made[label].planted_share if found["speed"] else None
        arms[label] = {"planted_share": share, **{key: found[key] for key in facts}, "verdict": verdict}
    return {
        "load_average": load,
        "rounds": result["rounds"],
        "seconds": result["spent_s"]["all"],
        "control": {key: result["control"][key] for key in facts},
        "arms": arms,
    }


def count(trials: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How often each arm got each verdict."""
    tally: dict[str, dict[str, int]] = {label: {} for label in PLANTED}
    for done in trials:
        for label, arm in done["arms"].items():
            word = arm["verdict"]
            tally[label][word] = tally[label].get(word, 0) + 1
    return tally


def holds(tally: dict[str, dict[str, int]], trials: int) -> dict[str, bool]:
    """The bars, in proportion where there were not 20 trials."""
    most = trials // 20
    return {
        "planted 10%": tally["planted 10%"].get("worse", 0) >= 0.9 * trials,
        "planted 1%": tally["planted 1%"].get("better", 0) <= most,
        "the same": sum(tally["the same"].get(word, 0) for word in ("better", "worse")) <= most,
    }


def tell(report: dict[str, Any]) -> str:
    """README.md, its heading the verdict."""
    tally, trials, n = report["tally"], report["trials"], len(report["trials"])
    held, machine = report["holds"], report["hardware"]
    native = "native" if hardware.native_bf16() else "no native"
    found, reversed_, different = (
        tally["planted 10%"].get("worse", 0),
        tally["planted 1%"].get("better", 0),
        sum(tally["the same"].get(word, 0) for word in ("better", "worse")),
    )
    heading = (
        "What nocap.bench must find on this machine, it finds"
        if all(held.values())
        else "What nocap.bench must find on this machine, it does not find"
    )
    rows = [
        f"| {label} | {', '.join(f'{word} {times}' for word, times in sorted(words.items()))} "
        f"| {_spread([t['arms'][label]['planted_share'] for t in trials if t['arms'][label]['speed']], '{:.2%}')} "
        f"| {_spread([t['arms'][label]['speed']['ratio'] for t in trials if t['arms'][label]['speed']], '{:.3f}')} |"
        for label, words in tally.items()
    ]
    loads, seconds, rounds = ([t[key] for t in trials] for key in ("load_average", "seconds", "rounds"))
    score = f"10% found in {found} of {n}, 1% reversed in {reversed_}, nothing taken for a change in {different}"
    return f"""# {heading}: {score}

**Question.** Can a verdict of `nocap.bench` be believed on a shared CPU? Of 20 trials each, a planted 10% slowdown must be found in
at least 18, a planted 1% be reversed in at most 1, and the same arm be called different in at most 1.

**Method.** Each trial is one whole bench (`nocap.measure.bench.bench`, the function behind the command): the baseline, its control, and
three arms of the same config. After each of its steps an arm carries out 96×96 matrix products, as many as take 10%, 1% or none of the
step's CPU time; what they took is timed while the bench runs. One thread, process CPU time; rounds until all intervals (95%) are ±3%,
or {report["seconds"]:g} s. Config: `{" ".join(WORDS)}`.

**Command.** `python experiments/bench_power/bench_power.py --trials {n} --seconds {report["seconds"]:g}`

**Machine.** {machine["cpu"]}, {machine["cores"]} cores, {native} bf16, torch {machine["torch"]}, {report["date"]}.
Load average while it ran: {min(loads):.1f} to {max(loads):.1f}.
A trial took {statistics.median(seconds):.0f} s and {statistics.median(rounds):.0f} rounds (median), {min(rounds)} to {max(rounds)} rounds.

| arm | verdicts | share planted, median [range] | speed measured, median [range] |
|---|---|---|---|
{chr(10).join(rows)}

An interval that holds both sides is an answer: on a busy machine a planted 1% is not shown. Every trial is in [results.json](results.json).

**A negative result before it.** The first version compared each arm with the mean of the baseline's two instances, and an earlier run
of these 20 trials (2026-11-20, 90 s each) called the same arm faster in 2: arms that nothing was done to came out 0.5% fast. Noise only
slows; the mean of two skewed times against one is not symmetric. Now each round compares with one of the two instances.
"""


def _spread(values: list[float], shape: str) -> str:
    if not values:
        return "–"
    return f"{shape.format(statistics.median(values))} [{shape.format(min(values))}, {shape.format(max(values))}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a trial, at most")
    parser.add_argument("--out", type=Path, default=Path("experiments/bench_power"))
    args = parser.parse_args()

    timed.BLOCK_S[Device.cpu] = BLOCK_S
    (_, run), trials = compose_arm(WORDS, "trainer.threads=1"), []
    for i in range(args.trials):
        trials.append(trial(run, args.seconds))
        words = {label: found["verdict"] for label, found in trials[-1]["arms"].items()}
        print(f"{i + 1}/{args.trials}, {trials[-1]['seconds']:.0f} s, {trials[-1]['rounds']} rounds: {words}", flush=True)
    tally = count(trials)
    held = holds(tally, len(trials))
    machine = {key: fact for key, fact in hardware.describe(Device.cpu, 1).items() if key not in ("host", "fingerprint")}
    facts = {"date": date.today().isoformat(), "hardware": machine, "seconds": args.seconds, "words": WORDS}
    report = {**facts, "tally": tally, "holds": held, "trials": trials}
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "results.json", report)
    (args.out / "README.md").write_text(tell(report))
    print(tally, f"written: {args.out}", sep="\n")


if __name__ == "__main__":
    main()
