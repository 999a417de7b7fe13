"""`python -m nocap.study FOLDER [scale=cpu] …`: plan a study, carry it out, judge it, or work out its exchange rate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nocap.config import hardware
from nocap.config.compose import from_overrides
from nocap.config.errors import EXIT_CODES
from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.study import exchange, preview, report, text
from nocap.study.budget import check_budget
from nocap.study.conduct import carry_out
from nocap.study.prepared import Prepared, at_budget, prepare
from nocap.study.results import Results, results, targets_checked
from nocap.study.sessions import SessionError
from nocap.study.spec import load
from nocap.study.training import FailedError, StoppedError

CALIBRATION_LENGTHS = [0.25, 0.5]  # of the baseline's steps, where a study names none


@dataclass(kw_only=True)
class Words:
    """What a study is told on the command line."""

    scale: str = ""  # "": gpu where there is one and the study knows it, else cpu
    budget_h: float | None = None
    output_dir: str = "outputs"


def study(words: Sequence[str], *, mode: str) -> int:
    """One study after the other; the worst exit code. `mode`: run, plan, judge or calibrate.

    Errors:
        ValueError: no such folder, a study that will not do. All are checked before the first one runs.
    """
    folders = [Path(word) for word in words if "=" not in word]
    require(bool(folders), "FOLDER", "be given: a study's folder, as in experiments/gqa", "none")
    options = from_overrides(Words, [word for word in words if "=" in word])
    plans = [(folder, _prepared(folder, options)) for folder in folders]
    used = options.budget_h is None or any(at_budget(plan) for _, plan in plans)
    require(used, "budget_h", "be left out where no scale's length comes from a budget", options.budget_h)
    for _, plan in plans if mode != "plan" else []:
        check_budget(plan, options.budget_h)
    codes = []
    for folder, plan in plans:
        try:
            codes.append(_one(folder, plan, options, mode=mode))
        except StoppedError as stopped:
            print(f"nocap: {stopped}", file=sys.stderr)
            return EXIT_CODES["preempted"]
        except (FailedError, SessionError) as failed:
            print(f"nocap: {folder.name}: {failed}", file=sys.stderr)
            codes.append(EXIT_CODES["failed"])
    return max(codes)


def _prepared(folder: Path, options: Words) -> Prepared:
    found = load(folder)
    report.check_readme(folder)
    on_gpu = hardware.default_device() is Device.cuda and "gpu" in found.scales
    scale = options.scale or ("gpu" if on_gpu else "cpu" if "cpu" in found.scales else next(iter(found.scales)))
    return prepare(found, scale, output_dir=options.output_dir)


def _one(folder: Path, plan: Prepared, options: Words, *, mode: str) -> int:
    if mode == "plan":
        print(preview.render(plan))
        return 0
    if mode == "calibrate":
        return _calibrate(plan, options)
    done = carry_out(plan, run=mode == "run", budget_h=options.budget_h)
    targets_checked(plan.study, done.evidence)
    hours = f" budget_h={options.budget_h:g}" if at_budget(plan) else ""
    command = f"python -m nocap.study {folder} scale={plan.scale}{hours}"
    found = results(
        plan.study, plan.scale, done.evidence, arms=done.arms, tuned=done.tuned.facts(), hardware=_machine(plan), command=command
    )
    print(text.render(found))
    if mode == "run":
        for path in report.write(plan.study, folder, found):
            print(f"written: {path}")
    for problem in done.problems:
        print(f"nocap: {problem}", file=sys.stderr)
    missing = any(claim["missing"] for claim in found["claims"])
    return EXIT_CODES["failed" if done.problems or missing else "finished"]


def _machine(plan: Prepared) -> Results:
    t = next(iter({**plan.bench, **plan.train}.values())).run.trainer
    return dict(hardware.describe(t.device, t.threads))


def _calibrate(plan: Prepared, options: Words) -> int:
    """Train the baseline at its lengths, nothing else; then tell the rate, and what it makes of arms that have been trained before.

    Errors:
        ValueError: the study trains nothing.
    """
    base = plan.study.baseline
    require(base in plan.train, "--calibrate", "be for a study that trains its baseline", plan.study.name)
    plan = replace(plan, at=replace(plan.at, lengths=plan.at.lengths or CALIBRATION_LENGTHS))
    carry_out(plan, run=True, budget_h=options.budget_h, only=base)
    evidence = carry_out(plan, run=False, budget_h=options.budget_h).evidence
    found = exchange.facts(plan.study, evidence)
    require(found is not None, "--calibrate", "find two lengths of the baseline with three seeds that finished", plan.study.seeds)
    print("\n".join(text.exchange({"exchange": found, "baseline": base})).strip())
    return 0
