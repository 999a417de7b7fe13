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
from nocap.judge.interval import LEAST_PAIRS, Estimate, Position, of_pairs, of_seeds, of_steps
from nocap.report import forest
from nocap.report.table import markdown

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
FIGURES = HERE / "figures.csv"
TARGET = 3.28  # nats per token, of tracks 1 and 3
RATE = 0.0045 / 100  # nats that a step is worth, as track 3's page measured it
SIGMA = 0.0013  # nats between runs, as track 3's page assumes it
PRECISION = 0.004  # what its rule asks for: SIGMA at p < .001
Z_05 = 1.645 * SIGMA  # and the same at p < .05
P_TRACK_1 = 0.01
SHOWN = {
    Position.below: "worse",
    Position.within: "not shown",
    Position.above: "shown",
    Position.across: "not shown",
}

# karpathy/nanochat 92d63d4e8bb4, dev/LEADERBOARD.md: the only scores of single runs there, of its
# run 4; then what they should pass.
NANOCHAT_RUN_4 = (0.25373, 0.2584, 0.25489, 0.2568, 0.25732, 0.26765, 0.25119)
NANOCHAT_TARGET = 0.256525

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
            seed = int(row["seed"]) if row["seed"] else next(UNSEEDED)
            of_seed = by_seed.setdefault(seed, [])
            of_seed.append(float(row[key]))
        return {seed: fmean(values) for seed, values in by_seed.items()}

    def losses(self) -> list[float]:
        return [float(row["loss"]) for row in self.runs()]


UNSEEDED = count(-1, -1)


def known(track: str) -> list[Record]:
    with FIGURES.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["track"] == track]
    groups = groupby(rows, key=lambda row: row["record"])
    return [Record(number, list(group)) for number, group in groups]


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
        old = sample(self.old, rounded=rounded)
        new = sample(self.new, rounded=rounded)
        gain = old.mean - new.mean + self.saved * RATE
        return gain / math.sqrt(1 / old.n + 1 / new.n)

    def steps(self) -> Estimate:
        """How many steps it saves at an equal loss."""
        return self.saving(of_seeds(self.old.values("loss"), self.new.values("loss")))

    def saving(self, lower: Estimate) -> Estimate:
        """In steps, from how much lower the loss is."""
        mid, low, high = (x / RATE + self.saved for x in (lower.mid, lower.low, lower.high))
        return Estimate(mid=mid, low=low, high=high, n=lower.n, method=lower.method)

    @property
    def has_verdict(self) -> bool:
        return self.steps().n >= LEAST_PAIRS


@dataclass(frozen=True)
class Sample:
    """The runs of a record as the board's rule takes them."""

    mean: float
    n: int


def sample(record: Record, *, rounded: bool) -> Sample:
    """As the board states it; not `rounded` from the logs, where all are there."""
    losses = record.losses()
    if rounded or not has_all_logs(record):
        return Sample(mean=float(record.stated["stated"]), n=stated_n(record))
    return Sample(mean=fmean(losses), n=len(losses))


def stated_n(record: Record) -> int:
    return int(record.stated["stated_n"])


def has_all_logs(record: Record) -> bool:
    return len(record.losses()) == stated_n(record)


def chain() -> list[Step]:
    return [Step(new, old) for old, new in pairwise(known("3"))]


def at_once(steps: Sequence[Step]) -> dict[str, str]:
    """Record → the word for it where all that have a verdict share the error."""
    with_verdict = [step for step in steps if step.has_verdict]
    losses = dict[str, list[float]]()
    pairs = list[tuple[str, str]]()
    for step in with_verdict:
        for record in (step.old, step.new):
            if record.number not in losses:
                losses[record.number] = list(record.values("loss").values())
        pairs.append((step.new.number, step.old.number))
    lower = of_steps(losses, pairs)
    words = dict[str, str]()
    for step, e in zip(with_verdict, lower, strict=True):
        words[step.new.number] = word(step.saving(e))
    return words


def of_the_rule(steps: Sequence[Step]) -> list[Step]:
    """Those with both ends valid by the board's rule of a single result, which its first two
    records came before."""
    return [step for step in steps if stated_n(step.old) > 1]


def word(e: Estimate, zero: float = 0.0) -> str:
    if e.n < LEAST_PAIRS:
        return f"no verdict (n={e.n})"
    return SHOWN[e.position(zero, zero)]


def own_rule(step: Step, *, rounded: bool = True) -> str:
    precision = step.precision(rounded=rounded)
    if precision >= PRECISION:
        return "p < .001"
    if precision >= Z_05:
        return "p < .05"
    return "no"


def table_3(steps: Sequence[Step]) -> list[str]:
    together = at_once(steps)
    head = [
        "record over",
        "logs",
        "steps saved, listed",
        "own rule",
        "steps saved at equal loss, judged",
        "by",
        "these logs",
        f"all {len(together)} at once",
    ]
    return markdown(head, [row_3(step, together) for step in steps])


def row_3(step: Step, together: Mapping[str, str]) -> list[str]:
    """`together`: record → its word where all share the error."""
    e = step.steps()
    interval = "–"
    method = "–"
    if step.has_verdict:
        interval = f"{signed(e.mid)} [{signed(e.low)}, {signed(e.high)}]"
        method = e.method
    own_word = word(e)
    return [
        f"#{step.new.number} over #{step.old.number}",
        f"{logs_of(step.new)} and {logs_of(step.old)}",
        str(step.saved),
        own_rule(step),
        interval,
        method,
        own_word,
        together.get(step.new.number, own_word),
    ]


def logs_of(record: Record) -> str:
    """How many logs of a record there are: `3`, or `3 of 5`."""
    n = str(len(record.losses()))
    if has_all_logs(record):
        return n
    return f"{n} of {stated_n(record)}"


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
        return of_seeds(self.record.values("loss", "baseline"), self.record.values("loss"))

    @property
    def has_verdict(self) -> bool:
        return self.time.n >= LEAST_PAIRS

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
    return markdown(head, [row_1(comparison) for comparison in comparisons])


LOSS_WORDS = {"shown": "lower", "worse": "higher"}


def row_1(comparison: Faster) -> list[str]:
    record = comparison.record
    own_s = fmean(record.values("train_s").values())
    baseline_s = fmean(record.values("train_s", "baseline").values())
    n_own = len(record.runs())
    n_baseline = len(record.runs("baseline"))
    time = "–"
    loss = "–"
    if comparison.has_verdict:
        time = percent(comparison.time)
        loss = nats(comparison.loss)
    loss_word = word(comparison.loss)
    if loss_word in LOSS_WORDS:
        loss_word = LOSS_WORDS[loss_word]
    elif comparison.has_verdict:
        loss_word = "no difference shown"
    return [
        f"#{record.number}",
        f"{n_own}, {n_baseline}",
        f"{p_below(record.losses()):.4f}",
        f"{baseline_s:.2f} → {own_s:.2f}",
        time,
        loss,
        comparison.word,
        loss_word,
    ]


def percent(e: Estimate) -> str:
    mid, low, high = percents(e)
    return f"{mid:.2f}% [{low:.2f}, {high:.2f}]".replace("-", MINUS)


def percents(e: Estimate) -> list[float]:
    """How much faster in %: the middle and the ends."""
    return [100 * (x - 1) for x in (e.mid, e.low, e.high)]


def nats(e: Estimate) -> str:
    return f"{e.mid:+.4f} [{e.low:+.4f}, {e.high:+.4f}]".replace("-", MINUS)


# --- the page -------------------------------------------------------------------------------------


def summary(steps: Sequence[Step], comparisons: Sequence[Faster]) -> list[str]:
    """Sentences with all counts of the page."""
    return bullets(summary_3(steps), summary_1(comparisons))


def summary_3(steps: Sequence[Step]) -> str:
    words = [word(step.steps()) for step in steps if step.has_verdict]
    n = len(words)
    n_shown = words.count("shown")
    n_not_shown = words.count("not shown")
    n_together = list(at_once(steps).values()).count("shown")
    ruled = of_the_rule(steps)
    rules = [own_rule(step) for step in ruled]
    unrounded_rules = [own_rule(step, rounded=False) for step in ruled]
    n_strict = rules.count("p < .001")
    n_loose = len(ruled) - rules.count("no")
    n_unrounded = len(ruled) - unrounded_rules.count("no")
    return (
        f"**Track 3, fewest steps.** {n} records have logs of three seeds or more, and so has the "
        "record before. That they save steps over it at an equal loss is **shown by these logs "
        f"for {n_shown}, not shown by these logs for {n_not_shown}**; with the error shared by "
        f"all {n}, shown for {n_together}. By the board's own pairwise rule {n_strict} of "
        f"{len(ruled)} steps pass at p < .001, and {n_loose} at p < .05 ({n_unrounded} with the "
        "logs' unrounded means)."
    )


def summary_1(comparisons: Sequence[Faster]) -> str:
    with_verdict = [each for each in comparisons if each.has_verdict]
    n = len(with_verdict)
    n_faster = sum(each.word == "shown" for each in with_verdict)
    n_higher = sum(word(each.loss) == "worse" for each in with_verdict)
    last = comparisons[-1]
    records = known("1")
    several = [record.losses() for record in records if len(record.losses()) >= LEAST_PAIRS]
    n_below = sum(p_below(losses) < P_TRACK_1 for losses in several)
    return (
        f"**Track 1, least time.** {n} of {len(records)} records have three logs or more of their "
        f"own and of a baseline beside them. In that sitting **{n_faster} are shown to be faster "
        f"than that baseline, {n - n_faster} are not**; a higher loss is shown for {n_higher}. "
        f"#{last.record.number} is faster by {percent(last.time)}, its loss lower by "
        f"{nats(last.loss)}. Of the {len(several)} records with three logs or more, {n_below} "
        "reach the board's p < .01 for a mean loss of at most 3.28."
    )


def bullets(*texts: str) -> list[str]:
    lines = list[str]()
    for text in texts:
        lines += textwrap.wrap(f"* {text}", 120, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def lines_3(steps: Sequence[Step]) -> Iterator[forest.ForestRow]:
    """A step without a verdict has the bar of what is listed, and no interval."""
    for step in steps:
        e = step.steps()
        listed = float(step.saved)
        label = f"#{step.new.number} over #{step.old.number}"
        mid = math.inf
        low = listed
        high = listed
        if step.has_verdict:
            mid = e.mid
            low = e.low
            high = e.high
        else:
            label = f"{label} n={e.n}"
        if own_rule(step) == "p < .001":
            label = f"{label} ✓"
        own_word = word(e)
        yield forest.ForestRow(
            label=label,
            title=f"{label}: {own_word}",
            css_class=look(own_word),
            mid=mid,
            low=low,
            high=high,
            bound=listed,
        )


def lines_1(comparisons: Sequence[Faster]) -> Iterator[forest.ForestRow]:
    for comparison in comparisons:
        if not comparison.has_verdict:
            continue
        mid, low, high = percents(comparison.time)
        label = f"#{comparison.record.number}"
        yield forest.ForestRow(
            label=label,
            title=f"{label}: {percent(comparison.time)}",
            css_class=look(comparison.word),
            mid=mid,
            low=low,
            high=high,
        )


def look(own_word: str) -> str:
    """The class of a line in the picture."""
    return "shown" if own_word == "shown" else "not"


def pictures(steps: Sequence[Step], comparisons: Sequence[Faster]) -> dict[str, str]:
    """File → picture."""
    saved = (
        "steps saved at equal loss, 95%; green: shown; bar: as listed; ✓: the board's pairwise rule"
    )
    faster = (
        "faster than the baseline beside it, %, with 95% intervals and the clock's 0.5%; "
        "green: shown"
    )
    track_3 = forest.svg(list(lines_3(of_the_rule(steps))), title=saved)
    track_1 = forest.svg(list(lines_1(comparisons)), title=faster)
    return {"track3.svg": track_3.file, "track1.svg": track_1.file}


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
    steps = chain()
    comparisons = beside()
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
