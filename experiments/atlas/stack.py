"""The stack of ideas, by a rule that was written down before its runs (README.md): greedy by equivalent speedup in time.

    python experiments/atlas/stack.py [--output-dir DIR]      # after `run screen`, `run lengths` and `steps`; writes stack.json

All that it decides follows from runs.jsonl and steps.json: it goes on where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import atlas
import jobs
from estimate import Estimate
from worth import BASELINE, Blocks, Line, Steps, put

from nocap.config.errors import EXIT_CODES
from nocap.report.table import markdown
from nocap.store.record import write_json

SHARE, SEEDS = jobs.SCREEN, range(3)  # the screening's
MOST = 12  # candidates
LEAST = 1.01  # the equivalent speedup that an idea has to add
MARK = "the stack"


def worth_of(
    idea: str, blocks: Blocks, arms: Mapping[str, Line], steps: Steps, *, trial: str = "", over: str = BASELINE
) -> Estimate | None:
    """Logarithm of its equivalent speedup in time, alone or of a trial over the stack. `None`: it diverged, or its step was not timed."""
    in_steps, speed = blocks.in_steps(blocks.lower(trial or idea, over)), steps.of(arms[idea], blocks.share)
    return in_steps.plus(speed.estimate) if in_steps and speed and speed.estimate else None


def candidates(blocks: Blocks, arms: Mapping[str, Line], steps: Steps) -> list[str]:
    """The ideas that are worth more than nothing by themselves, the best first."""
    found = {arm: worth.mid for arm in arms if arm != BASELINE and (worth := worth_of(arm, blocks, arms, steps)) is not None}
    return sorted((arm for arm, worth in found.items() if worth > 0), key=lambda arm: -found[arm])[:MOST]


def clash(stack: Sequence[str], arm: str, arms: Mapping[str, Line]) -> str | None:
    """Why an idea cannot join: it refines one that is not there, or sets what another sets."""
    leader = arms[arm].get("like")
    if leader is not None and leader not in stack:
        return f"refines {leader}, which is not in the stack"
    taken = {word.partition("=")[0]: word for one in stack for word in arms[one]["with"] if not word.startswith(jobs.IDEAS)}
    other = next((taken[key] for word in arms[arm]["with"] if (key := word.partition("=")[0]) in taken and taken[key] != word), None)
    return f"the stack has {other}" if other else None


def decided(lines: Sequence[Line], arms: Mapping[str, Line], steps: Steps) -> tuple[list[str], list[dict[str, Any]], str | None]:
    """The stack so far, each decision, and the trial whose runs are missing; `None`: the rule has ended."""
    blocks = Blocks(SHARE, lines)
    stack: list[str] = []
    log: list[dict[str, Any]] = []
    for arm in candidates(blocks, arms, steps):
        if why := clash(stack, arm, arms):
            log.append({"idea": arm, "joins": False, "why": why})
            continue
        over, trial = jobs.joined(*stack), jobs.joined(*stack, arm)
        if len(blocks.gains(trial, over)) < len(SEEDS):
            return stack, log, trial
        worth = worth_of(arm, blocks, arms, steps, trial=trial, over=over)
        speedup = worth and dict(zip(("ratio", "low", "high"), worth.exp(), strict=True))
        joins = speedup is not None and speedup["ratio"] >= LEAST
        log.append({"idea": arm, "joins": joins, "over": over, "speedup": speedup})
        stack += [arm] * joins
    return stack, log, None


def table(log: Sequence[Line]) -> list[str]:
    rows = []
    for one in log:
        speedup, why = one.get("speedup"), one.get("why", "")
        shown = f"{speedup['ratio']:.2f}× [{speedup['low']:.2f}, {speedup['high']:.2f}]" if speedup else "diverged" if not why else "–"
        rows.append([one["idea"], "**joins**" if one["joins"] else "no", shown, why])
    return markdown(("candidate", "in the stack", "what it adds to those before it, in time", "why not tried"), rows)


def build(output_dir: str) -> int:
    steps = atlas.timed()
    while True:
        stack, log, trial = decided(jobs.known(), jobs.arms(), steps)
        words = jobs.words_of(jobs.joined(*stack))
        write_json(jobs.STACK, {"stack": stack, "with": words, "log": log, "ended": trial is None})
        print(f"stack: {' + '.join(stack) or 'none'}; next: {trial or 'none'}", flush=True)
        if trial is None:
            put(MARK, table(log))
            return 0
        if atlas.run(trial, [(seed, SHARE, trial) for seed in SEEDS], output_dir):
            return EXIT_CODES["failed"]


def main() -> int:
    options = atlas.parser_of(__doc__).parse_args()
    return atlas.carried_out(lambda: build(options.output_dir))


if __name__ == "__main__":
    sys.exit(main())
