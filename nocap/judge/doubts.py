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
            "the vocabularies differ, so the verdicts compare bits per byte; each arm is measured "
            "on the text that its val_tokens cover"
        )
    for row in rows:
        arm = row.arm
        for spoilt in confounders(arm, row.against or arm, allowed=allow):
            yield (
                f"{arm.label}: this arm also differs from the other arm in {spoilt}. There is no "
                f"verdict, unless you accept the difference (--allow {spoilt})"
            )
        yield from _came_along(arm, row.against or arm)
        if arm.diverged and arm.runs:
            seeds = shorten(str(run.seed) for run in arm.diverged)
            yield (
                f"{arm.label}: seed {seeds} diverged. The arm's means leave out this seed, so "
                "they look too good"
            )
        if beyond := sorted({*arm.seeds} - {*row.seeds}):
            yield (
                f"{arm.label}: its row uses only the seeds that all arms share, and leaves out "
                f"seed {shorten(map(str, beyond))}"
            )
        if len(arm.runs) > len(arm.seeds):
            yield (
                f"{arm.label}: {len(arm.runs)} runs of {len(arm.seeds)} seeds. A seed with "
                "several runs counts once, with their mean"
            )
    yield from _controls(rows)
    others = [(row.arm, row.against) for row in rows if row.against is not None]
    if apart := [arm.label for arm, base in others if _one_after_the_other(arm, base)]:
        yield (
            "these arms did not run in turns with the baseline, so a change of the machine may "
            f"look like a difference in speed: {shorten(apart)}"
        )
    torches = {run.torch for arm in arms for run in arm.all}
    if len(torches) > 1 and not any(covers(a, "torch") for a in allow):
        yield f"the runs used several versions of torch: {', '.join(sorted(torches))}"


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
            else "no arm here has this setting"
        )
        text = (
            f"its kernel differs from the baseline's ({_kernel(row.arm)}, not {_kernel(base)}); "
            "a baseline with the same kernel"
        )
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
            f"{arm.label}: compared after an equal training time ({budget:,.4g} s), but after "
            "another number of steps"
        )


def unpaired(table: DifferenceTable, pairs: Mapping[str, ArmPair]) -> Iterator[str]:
    """Say why nothing is paired where the runs name their seeds."""
    members = [pair for name, pair in pairs.items() if name in table.members]
    have_seeds = all(seed >= 0 for pair in members for seed in (*pair.values, *pair.base_values))
    if table.seeds or not members or not have_seeds:
        return
    apart = [pair.arm.label for pair in members if len(pair.seeds) < LEAST_PAIRS]
    advice = f"; leave out {shorten(apart)} to pair the other arms" if len(apart) == 1 else ""
    yield f"nocap pairs no seeds, because the arms do not share {LEAST_PAIRS} seeds{advice}"


def holes(arms: Sequence[Arm], base: Arm, table: DifferenceTable) -> Iterator[str]:
    """Say which arms keep a full crossing from being read by factor."""
    apart = [arm for arm in arms if arm is not base and arm.id not in table.members]
    if apart and table.members and crossing(arms, base) is not None:
        why = (f"{arm.label} ({table.by_arm[arm.id].word_with_reason})" for arm in apart)
        yield (
            f"there is no table by factor, because the grid has no usable result of {shorten(why)}"
        )


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
            f"there is no time at equal loss, because {plural(count, 'run')} of other lengths "
            f"belong to another arm than {base.label} (--equal-loss trains other lengths of the "
            "first arm)"
        )


def idle_timings(timings: Sequence[Timing], arms: Sequence[Arm], paces: Paces) -> Iterator[str]:
    """Say which arms keep a timing from being used."""
    if timings and paces.timing is None:
        missing = [arm.label for arm in arms if arm.id not in timings[0].arms]
        yield (
            f"the timing of {timings[0].started} lacks {shorten(missing)}, so the speeds are from "
            "the runs"
        )
