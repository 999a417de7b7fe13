"""What should be doubted of a comparison: lines for people, none of which changes a word."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from nocap.display import plural, shorten
from nocap.judge.arms import Arm, starts, vocabularies
from nocap.judge.comparison import ComparedArm
from nocap.judge.confounders import (
    confounders,
    covers,
    equal_time,
    kernel_control,
    kernels,
    machines_differ,
)
from nocap.judge.crossing import crossing
from nocap.judge.differences import ArmPair, DifferenceTable
from nocap.judge.interval import LEAST_PAIRS
from nocap.judge.pace import Paces
from nocap.store.grid_timing import Timing


def of_rows(rows: Sequence[ComparedArm], *, allow: Collection[str]) -> Iterator[str]:
    """Say what differs between arms beside what was swept, and which seeds a row is over."""
    arms = [row.arm for row in rows]
    if vocabularies(arms) > 1:
        yield (
            "vocabularies differ: verdicts are on bits per byte, each over the text that its "
            "val_tokens cover"
        )
    for row in rows:
        arm = row.arm
        for spoilt in confounders(arm, row.against or arm, allowed=allow):
            yield (
                f"{arm.label}: its {spoilt} differs from the other arm's too; no verdict unless "
                f"you accept the difference (--allow {spoilt})"
            )
        yield from _came_along(arm, row.against or arm)
        if arm.diverged and arm.runs:
            seeds = shorten(str(run.seed) for run in arm.diverged)
            yield (
                f"{arm.label}: seed {seeds} diverged; its means are over the seeds that did not, "
                "which flatters it"
            )
        if beyond := sorted({*arm.seeds} - {*row.seeds}):
            yield (
                f"{arm.label}: its row is over the seeds that it shares with the other arms, "
                f"without "
                f"{shorten(map(str, beyond))}"
            )
        if len(arm.runs) > len(arm.seeds):
            yield (
                f"{arm.label}: {len(arm.runs)} runs of {len(arm.seeds)} seeds; a seed that ran "
                f"twice "
                "counts once, with its mean"
            )
    yield from _controls(rows)
    others = [(row.arm, row.against) for row in rows if row.against is not None]
    if apart := [arm.label for arm, base in others if _one_after_the_other(arm, base)]:
        yield (
            "not interleaved with the baseline, so a machine that drifted would look like "
            f"speed: {shorten(apart)}"
        )
    torches = {run.torch for arm in arms for run in arm.all}
    if len(torches) > 1 and not any(covers(a, "torch") for a in allow):
        yield f"runs of several versions of torch: {', '.join(sorted(torches))}"


def _controls(rows: Sequence[ComparedArm]) -> Iterator[str]:
    """Say which arms have another kernel because that came with what was swept, and what their
    control is."""
    arms = [row.arm for row in rows]
    labels: dict[str, list[str]] = {}
    for row in rows:
        base = row.against or row.arm
        control = kernel_control(row.arm, base, arms)
        if control is None:
            continue
        setting_, control_arm = control
        with_it = (
            f"{control_arm.label} (--baseline {control_arm.id})"
            if control_arm is not None
            else "no arm here"
        )
        text = f"kernel differs: {_kernel(base)} and {_kernel(row.arm)}; the control"
        labels.setdefault(f"{text} is {base.label} with {setting_}: {with_it}", []).append(
            row.label
        )
    for line, some in labels.items():
        yield f"{shorten(some)}: {line}"


def _kernel(arm: Arm) -> str:
    """Name the kernels of an arm."""
    return ", ".join({*kernels(arm).values()})


def _came_along(arm: Arm, base: Arm) -> Iterator[str]:
    """Say that an equal time of training ended runs of other steps."""
    steps = {run.steps for run in (*arm.runs, *base.runs)}
    if len(steps) > 1 and None not in steps and equal_time(arm, base):
        budget = max(arm.values["train_s"].values())
        yield (
            f"{arm.label}: compared at an equal time of training ({budget:,.4g} s), after another "
            f"number of "
            "steps"
        )


def unpaired(table: DifferenceTable, pairs: Mapping[str, ArmPair]) -> Iterator[str]:
    """Say why nothing is paired where the runs name their seeds."""
    members = [pair for name, pair in pairs.items() if name in table.members]
    have_seeds = all(seed >= 0 for pair in members for seed in (*pair.values, *pair.base_values))
    if table.seeds or not members or not have_seeds:
        return
    apart = [pair.arm.label for pair in members if len(pair.seeds) < LEAST_PAIRS]
    advice = (
        f": compare without {shorten(apart)} for pairs of the others" if len(apart) == 1 else ""
    )
    yield f"nothing is paired, as the arms do not all share {LEAST_PAIRS} seeds{advice}"


def holes(arms: Sequence[Arm], base: Arm, table: DifferenceTable) -> Iterator[str]:
    """Say which arms keep a full crossing from being read by factor."""
    apart = [arm for arm in arms if arm is not base and arm.id not in table.members]
    if apart and table.members and crossing(arms, base) is not None:
        why = (f"{arm.label} ({table.by_arm[arm.id].word_with_reason})" for arm in apart)
        yield f"not read by factor: without {shorten(why)} the grid has holes"


def _one_after_the_other(arm: Arm, base: Arm) -> bool:
    """Say whether all runs of one arm were started before all runs of the other. Two seeds or more
    should have alternated."""
    own = starts(arm)
    others = starts(base)
    if min(len(own), len(others)) < 2 or machines_differ(arm, base):
        return False
    return max(own) < min(others) or max(others) < min(own)


def idle_lengths(lengths: Sequence[Arm], ends: tuple[Arm, Arm] | None, base: Arm) -> Iterator[str]:
    """Say that runs which show an arm's other lengths say nothing here, where that arm is no
    baseline."""
    if lengths and ends is None:
        count = sum(len(arm.all) for arm in lengths)
        yield (
            f"{plural(count, 'run')} of other lengths are not of {base.label}: there is no time "
            f"at equal "
            "loss (--equal-loss trains the lengths of the first arm)"
        )


def idle_timings(timings: Sequence[Timing], arms: Sequence[Arm], paces: Paces) -> Iterator[str]:
    """Say which arms keep a timing from being used."""
    if timings and paces.timing is None:
        missing = [arm.label for arm in arms if arm.id not in timings[0].arms]
        yield (
            f"the timing of {timings[0].started} lacks {shorten(missing)}: speeds are those of "
            f"the runs"
        )
