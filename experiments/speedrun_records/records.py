"""Judges each record of figures.csv over the one before, by the board's own rule and by nocap's,
and writes page and pictures anew.

python experiments/speedrun_records/records.py
"""

from __future__ import annotations

import csv
import math
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby, pairwise
from pathlib import Path
from statistics import fmean

from nocap.display import MINUS
from nocap.judge import cautious_interval
from nocap.judge.cautious_interval import CLOCK_BIAS
from nocap.judge.interval import LEAST_PAIRS, Estimate, of_pairs, of_seeds, of_steps
from nocap.report import forest
from nocap.report.table import markdown

HERE = Path(__file__).resolve().parent
README, FIGURES = HERE / "README.md", HERE / "figures.csv"
TARGET = 3.28  # nats per token, of tracks 1 and 3
RATE = 0.0045 / 100  # nats that a step is worth, as track 3's page measured it
SIGMA = 0.0013  # nats between runs, as track 3's page assumes it
PRECISION = 0.004  # what its rule asks for: SIGMA at p < .001
Z_05 = 1.645 * SIGMA  # and the same at p < .05
P_TRACK_1 = 0.01
SHOWN = {-1: "worse", 0: "not shown", 1: "shown", 2: "not shown"}

# karpathy/nanochat 92d63d4e8bb4, dev/LEADERBOARD.md: the only scores of single runs there, of its
# run 4; then what they should pass.
NANOCHAT_RUN_4, NANOCHAT_TARGET = (
    (0.25373, 0.2584, 0.25489, 0.2568, 0.25732, 0.26765, 0.25119),
    0.256525,
)

Row = Mapping[str, str]


@dataclass(frozen=True)
class Record:
    """What a board states of a record, and the runs whose logs there are."""

    number: str
    rows: Sequence[Row]

    @property
    def stated(self) -> Row:
        return self.rows[0]

    def runs(self, arm: str = "record") -> list[Row]:
        return [row for row in self.rows if row["arm"] == arm and row["path"]]

    def values(self, key: str, arm: str = "record") -> dict[int, float]:
        """Seed → value, a number that no other run has where a log names none. A seed that ran
        twice counts once, with its mean."""
        by_seed = dict[int, list[float]]()
        for row in self.runs(arm):
            by_seed.setdefault(int(row["seed"]) if row["seed"] else next(UNSEEDED), []).append(
                float(row[key])
            )
        return {seed: fmean(values) for seed, values in by_seed.items()}

    def losses(self) -> list[float]:
        return [float(row["loss"]) for row in self.runs()]


UNSEEDED = count(-1, -1)


def known(track: str) -> list[Record]:
    with FIGURES.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["track"] == track]
    return [
        Record(number, list(group))
        for number, group in groupby(rows, key=lambda row: row["record"])
    ]


# --- track 3: fewer steps -------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A record of track 3 over the one before. A gain is in nats at equal steps, as the board's
    rule counts it: the drop in loss, and what the steps that were saved are worth."""

    new: Record
    old: Record

    @property
    def saved(self) -> int:
        return int(self.old.stated["steps"]) - int(self.new.stated["steps"])

    def precision(self, *, rounded: bool = True) -> float:
        """The left side of the board's rule: the gain by the sizes of both samples, of the figures
        that it states, or of its logs' means where all logs are there."""
        (old, n_old), (new, n_new) = (
            stated(record)
            if rounded or not whole(record)
            else (fmean(record.losses()), len(record.losses()))
            for record in (self.old, self.new)
        )
        return (old - new + self.saved * RATE) / math.sqrt(1 / n_old + 1 / n_new)

    def steps(self) -> Estimate:
        """How many steps it saves at an equal loss."""
        return self.saving(of_seeds(self.old.values("loss"), self.new.values("loss")))

    def saving(self, lower: Estimate) -> Estimate:
        """In steps, from how much lower the loss is."""
        mid, low, high = (x / RATE + self.saved for x in (lower.mid, lower.low, lower.high))
        return Estimate(mid=mid, low=low, high=high, n=lower.n, method=lower.method)

    @property
    def judged(self) -> bool:
        return self.steps().n >= LEAST_PAIRS


def whole(record: Record) -> bool:
    return len(record.losses()) == int(record.stated["stated_n"])


def stated(record: Record) -> tuple[float, int]:
    return float(record.stated["stated"]), int(record.stated["stated_n"])


def chain() -> list[Step]:
    return [Step(new, old) for old, new in pairwise(known("3"))]


def at_once(steps: Sequence[Step]) -> dict[str, str]:
    """Record → the word for it where all that are judged share the error."""
    judged = [step for step in steps if step.judged]
    records = {record.number: record for step in judged for record in (step.old, step.new)}
    losses = {number: [*record.values("loss").values()] for number, record in records.items()}
    lower = of_steps(losses, [(step.new.number, step.old.number) for step in judged])
    return {step.new.number: word(step.saving(e)) for step, e in zip(judged, lower, strict=True)}


def of_the_rule(steps: Sequence[Step]) -> list[Step]:
    """Those with both ends valid by the board's rule of a single result, which its first two
    records came before."""
    return [step for step in steps if stated(step.old)[1] > 1]


def word(e: Estimate, zero: float = 0.0) -> str:
    return SHOWN[e.position(zero, zero)] if e.n >= LEAST_PAIRS else f"no verdict (n={e.n})"


def own_rule(step: Step, *, rounded: bool = True) -> str:
    precision = step.precision(rounded=rounded)
    return "p < .001" if precision >= PRECISION else "p < .05" if precision >= Z_05 else "no"


def table_3(steps: Sequence[Step]) -> list[str]:
    together = at_once(steps)
    judged, all_of_them = "steps saved at equal loss, judged", f"all {len(together)} at once"
    head = (
        "record over",
        "logs",
        "steps saved, listed",
        "own rule",
        judged,
        "by",
        "these logs",
        all_of_them,
    )
    rows = []
    for step in steps:
        e = step.steps()
        logs = " and ".join(
            f"{len(record.losses())}{'' if whole(record) else f' of {stated(record)[1]}'}"
            for record in (step.new, step.old)
        )
        told = (
            [f"{signed(e.mid)} [{signed(e.low)}, {signed(e.high)}]", e.method]
            if step.judged
            else ["–", "–"]
        )
        words = [word(e), together.get(step.new.number, word(e))]
        rows.append(
            [
                f"#{step.new.number} over #{step.old.number}",
                logs,
                str(step.saved),
                own_rule(step),
                *told,
                *words,
            ]
        )
    return markdown(head, rows)


def signed(x: float) -> str:
    return f"{x:+.0f}".replace("-", MINUS)


# --- track 1: less time ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Faster:
    """A record of track 1 over the baseline that was run beside it. A gain is above 1 in time,
    above 0 in loss."""

    record: Record

    @property
    def time(self) -> Estimate:
        """How many times as fast; a clock's bias is in it."""
        sides = (self.record.values("train_s", arm) for arm in ("baseline", "record"))
        estimate = cautious_interval.between(*sides, log=True, bias=CLOCK_BIAS)
        assert estimate is not None
        return estimate

    @property
    def loss(self) -> Estimate:
        return of_seeds(*(self.record.values("loss", arm) for arm in ("baseline", "record")))

    @property
    def same_hardware(self) -> bool:
        return len({row["hardware"] for row in self.record.rows}) == 1

    @property
    def word(self) -> str:
        if not self.same_hardware:
            return "other hardware"
        return word(self.time, 1.0)


def beside() -> list[Faster]:
    return [Faster(record) for record in known("1") if record.runs("baseline")]


def p_below(losses: Sequence[float]) -> float:
    """Of a mean that is not below the target, by a one-sided t-test: rule 2 of track 1."""
    from scipy import stats

    return float(stats.ttest_1samp(losses, TARGET, alternative="less").pvalue)


def table_1(comparisons: Sequence[Faster]) -> list[str]:
    head = (
        "record",
        "logs, baseline's",
        "p of ≤ 3.28",
        "baseline's time → its own, s",
        "faster by",
        "loss lower by",
        "that it is faster",
        "loss",
    )
    rows = []
    for comparison in comparisons:
        own, base = (
            fmean(comparison.record.values("train_s", arm).values())
            for arm in ("record", "baseline")
        )
        n_own, n_base = (len(comparison.record.runs(arm)) for arm in ("record", "baseline"))
        judged = comparison.time.n >= LEAST_PAIRS
        rows.append(
            [
                f"#{comparison.record.number}",
                f"{n_own}, {n_base}",
                f"{p_below(comparison.record.losses()):.4f}",
                f"{base:.2f} → {own:.2f}",
                percent(comparison.time) if judged else "–",
                nats(comparison.loss) if judged else "–",
                comparison.word,
                {"shown": "lower", "worse": "higher"}.get(
                    word(comparison.loss),
                    "no difference shown" if judged else word(comparison.loss),
                ),
            ]
        )
    return markdown(head, rows)


def percent(e: Estimate) -> str:
    return "{:.2f}% [{:.2f}, {:.2f}]".format(
        *(100 * (x - 1) for x in (e.mid, e.low, e.high))
    ).replace("-", MINUS)


def nats(e: Estimate) -> str:
    return f"{e.mid:+.4f} [{e.low:+.4f}, {e.high:+.4f}]".replace("-", MINUS)


# --- the page -------------------------------------------------------------------------------------


def summary(steps: Sequence[Step], comparisons: Sequence[Faster]) -> list[str]:
    """Sentences with all counts of the page."""
    judged = [step for step in steps if step.judged]
    words = [word(step.steps()) for step in judged]
    strict = [*at_once(steps).values()].count("shown")
    ruled = of_the_rule(steps)
    passed = sum(own_rule(step) == "p < .001" for step in ruled)
    loose, unrounded = (
        sum(own_rule(step, rounded=rounded) != "no" for step in ruled) for rounded in (True, False)
    )
    timed, last = [each for each in comparisons if each.time.n >= LEAST_PAIRS], comparisons[-1]
    faster, higher = (
        sum(each.word == "shown" for each in timed),
        sum(word(each.loss) == "worse" for each in timed),
    )
    several = [record.losses() for record in known("1") if len(record.losses()) >= LEAST_PAIRS]
    below = sum(p_below(losses) < P_TRACK_1 for losses in several)
    return bullets(
        f"**Track 3, fewest steps.** {len(judged)} records have logs of three seeds or more, "
        "and so has the record before. That they"
        " save steps over it at an equal loss is **shown by these logs for "
        f"{words.count('shown')}, not shown by these logs for"
        f" {words.count('not shown')}**; with the error shared by all {len(judged)}, shown "
        f"for {strict}. By the board's own pairwise rule"
        f" {passed} of {len(ruled)} steps pass at p < .001, and {loose} at p < .05 "
        f"({unrounded} with the logs' unrounded means).",
        f"**Track 1, least time.** {len(timed)} of {len(known('1'))} records have three logs "
        "or more of their own and of a baseline beside"
        f" them. In that sitting **{faster} are shown to be faster than that baseline, "
        f"{len(timed) - faster} are not**; a higher loss is"
        f" shown for {higher}. #{last.record.number} is faster by {percent(last.time)}, its "
        f"loss lower by {nats(last.loss)}. Of the"
        f" {len(several)} records with three logs or more, {below} reach the board's p < .01 "
        "for a mean loss of at most 3.28.",
    )


def bullets(*texts: str) -> list[str]:
    return [
        line
        for text in texts
        for line in textwrap.wrap(f"* {text}", 120, subsequent_indent="  ", break_on_hyphens=False)
    ]


def lines_3(steps: Sequence[Step]) -> Iterator[forest.ForestRow]:
    """A step without a verdict has the bar of what is listed, and no interval."""
    for step in steps:
        e, listed = step.steps(), float(step.saved)
        mid, low, high = (e.mid, e.low, e.high) if step.judged else (math.inf, listed, listed)
        few = "" if step.judged else f" n={e.n}"
        label = (
            f"#{step.new.number} over "
            f"#{step.old.number}{few}{' ✓' if own_rule(step) == 'p < .001' else ''}"
        )
        look = "shown" if word(e) == "shown" else "not"
        yield forest.ForestRow(
            label=label,
            title=f"{label}: {word(e)}",
            look=look,
            mid=mid,
            low=low,
            high=high,
            bound=listed,
        )


def lines_1(comparisons: Sequence[Faster]) -> Iterator[forest.ForestRow]:
    for comparison in comparisons:
        if (e := comparison.time).n >= LEAST_PAIRS:
            mid, low, high = (100 * (x - 1) for x in (e.mid, e.low, e.high))
            look, label = (
                "shown" if comparison.word == "shown" else "not",
                f"#{comparison.record.number}",
            )
            yield forest.ForestRow(
                label=label, title=f"{label}: {percent(e)}", look=look, mid=mid, low=low, high=high
            )


def pictures(steps: Sequence[Step], comparisons: Sequence[Faster]) -> dict[str, str]:
    """File → picture."""
    saved = (
        "steps saved at equal loss, 95%; green: shown; bar: as listed; ✓: the board's pairwise rule"
    )
    faster = (
        "faster than the baseline beside it, %, with 95% intervals and the clock's 0.5%; "
        "green: shown"
    )
    drawn = {
        "track3.svg": forest.svg(list(lines_3(of_the_rule(steps))), title=saved),
        "track1.svg": forest.svg(list(lines_1(comparisons)), title=faster),
    }
    return {name: picture.file for name, picture in drawn.items()}


def parts(steps: Sequence[Step], comparisons: Sequence[Faster]) -> dict[str, list[str]]:
    """What the page has between two comments with these names."""
    return {
        "summary": summary(steps, comparisons),
        "track 3": table_3(steps),
        "track 1": table_1(comparisons),
        "nanochat": [nanochat()],
    }


def nanochat() -> str:
    e = of_pairs([score - NANOCHAT_TARGET for score in NANOCHAT_RUN_4])
    mean = fmean(NANOCHAT_RUN_4)
    return (
        f"Their mean is {mean:.4f}, {nats(e)} above {NANOCHAT_TARGET}: that it lies above is "
        f"{word(e)} by these {e.n} scores."
    )


def main() -> int:
    steps, comparisons = chain(), beside()
    page = README.read_text()
    for mark, rows in parts(steps, comparisons).items():
        before, _, after = page.split(f"<!-- {mark} -->")
        page = "\n".join([f"{before}<!-- {mark} -->", *rows, f"<!-- {mark} -->{after}"])
    README.write_text(page)
    for name, svg in pictures(steps, comparisons).items():
        (HERE / name).write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
