"""What a comparison found, in sentences: the first lines of a page, of the terminal and of
Markdown, and what to type next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from nocap.config.flags import TIME
from nocap.display import NONE, listed, plural
from nocap.judge.arms import Arm
from nocap.judge.comparison import ComparedArm, Comparison
from nocap.judge.crossing import JOINT
from nocap.judge.differences import DifferenceWord
from nocap.judge.equal_loss import TimeAtEqualLoss
from nocap.judge.factors import Factors
from nocap.judge.findings import MORE, ORDER, Finding
from nocap.judge.interval import Estimate, Position, confidence
from nocap.judge.pace import TOKEN_US
from nocap.judge.question import PREVIOUS
from nocap.metrics import COST_WORDS, METRICS, Metric, Scale
from nocap.report.figures_in_words import cost, counted, extent, gains, ratio
from nocap.report.table import TableCell

NAMED = 3  # findings in a headline; of more than one other the words are counted
SIDES = (Position.below, Position.above)  # of an interval whose ratio is shown
SPEED_IS_OPEN = "no difference shown in speed"
LEAST_COST = 0.0005  # of a ratio: what lies closer to 1 is drawn as the same


def headline(comparison: Comparison) -> str:
    """Name what was found: `mlp=swiglu better than mlp=gelu4x by 0.0530 ± 0.0330 nats/token, no
    difference shown in speed, 0.1% more parameters; attention=gqa against attention=flash over 3
    levels of mlp: no difference shown (some 12 seeds would show 0.0200 nats/token), 4.1% faster,
    5.2% fewer parameters`."""
    return "; ".join(findings(comparison))


def findings(comparison: Comparison) -> list[str]:
    """List the first findings, a line each with what its arm is compared with; count the others."""
    found = comparison.findings.found
    if not found:
        return [f"there is only one arm, {comparison.baseline.label}; nocap cannot compare it"]
    metric = METRICS[comparison.metric]
    sides = _sides(comparison)
    named = found if len(found) == NAMED + 1 else found[:NAMED]
    lines = [_finding(finding, metric, sides[finding.name]) for finding in named]
    others = [finding.difference.word.value for finding in found[len(named) :]]
    if others:
        lines.append(f"{len(others)} other findings: {_words(others)}")
    return lines


def _words(words: Sequence[str]) -> str:
    """Return the word of several arms, or each of their words with its count."""
    if len(set(words)) == 1:
        return words[0]
    return counted(words, [word.value for word in ORDER])


def answer(comparison: Comparison) -> str:
    """Say in one line what a reader comes for: the best arm or level, its loss, its speed, its time
    at equal loss, and what it is better than; or that none is better."""
    found = comparison.findings.found
    if not found:
        return headline(comparison)
    metric = METRICS[comparison.metric]
    if _is_gain(found[0]):
        return _gain(comparison, found[0], metric)
    return f"No arm is shown to be better than {_against(comparison)} in {metric.title}"


def other_findings(comparison: Comparison) -> list[str]:
    """List what was found beside the answer, as the headline has it."""
    found = comparison.findings.found
    if not found or _is_gain(found[0]):
        return findings(comparison)[1:]
    return findings(comparison)


def _against(comparison: Comparison) -> str:
    if comparison.against == PREVIOUS:
        return "the arm before it"
    return comparison.baseline.label


def _is_gain(finding: Finding) -> bool:
    """Say whether a finding shows a lower loss, or less time at equal loss."""
    at = finding.equal_loss
    takes_less = at is not None and at.word is DifferenceWord.better
    return takes_less or finding.difference.word is DifferenceWord.better


def _gain(comparison: Comparison, finding: Finding, metric: Metric) -> str:
    """Say which arm gains, over which other, and at which cost: `gqa better than
    flash: lower loss by 0.0090 ± 0.0012 nats/token (95% interval), 4.1% faster [3.0% to 5.2%
    faster], 5.2% fewer parameters`."""
    side = _sides(comparison)[finding.name]
    gap = finding.difference
    loss = ""
    drawn = gains(metric.name, Scale.difference, "").draw(gap.estimate)
    if drawn.text != NONE:
        loss = f"{drawn} {metric.unit}"
    if drawn.small:
        loss += f" ({interval_name(comparison)})"
    if not gap.word.is_shown:
        loss += f" ({gap.word_with_reason})"
    head = f"{finding.name} better than {side.against}{_over(finding)}"
    parts = [loss, str(side.speed or ""), *side.costs]
    time = _time(finding.equal_loss)
    if gap.word is not DifferenceWord.better:
        head += " in time at equal loss"
        return f"{head}: {', '.join(filter(None, [time, *parts]))}"
    return f"{head}: {', '.join(filter(None, [*parts, time]))}"


def interval_name(comparison: Comparison) -> str:
    """Name the interval that decides about the losses: `95% interval`."""
    if comparison.cautious:
        return "cautious interval"
    return f"{100 * confidence(comparison.look):.4g}% interval"


# --- what an arm, or a level, costs ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Side:
    """What an arm, or a level, is compared with, and what it takes beside that."""

    against: str
    speed: TableCell | None  # where no difference is shown, these words; None: not known
    is_speed_open: bool  # no difference is shown
    costs: Sequence[str]


def _sides(comparison: Comparison) -> dict[str, _Side]:
    """Map the name of each finding to what it is compared with."""
    if comparison.factors is not None:
        return dict(_levels(comparison, comparison.factors))
    metric = "train_s" if comparison.imported else TOKEN_US
    sides = dict[str, _Side]()
    for row in comparison.rows:
        if row.against is not None:
            timed = row.times[metric]
            speed = None if timed.refused else timed.estimate
            costs = _costs(comparison, [(row.arm, row.against)])
            sides[row.label] = _side(row.against.label, speed, metric, costs)
    return sides


def _levels(comparison: Comparison, factors: Factors) -> Iterator[tuple[str, _Side]]:
    for factor in factors.factors:
        against = factor.label(factor.baseline)
        for level in factor.levels:
            costs = _costs(comparison, level.pairs)
            yield factor.label(level.name), _side(against, level.speed, TOKEN_US, costs)


def _side(against: str, speed: Estimate | None, metric: str, costs: Iterable[str]) -> _Side:
    """Return what an arm is compared with; a speed without an interval is not known."""
    is_known = speed is not None and math.isfinite(speed.high - speed.low)
    is_open = speed is not None and is_known and speed.position(1.0, 1.0) not in SIDES
    drawn = None
    if is_open:
        drawn = TableCell(text=SPEED_IS_OPEN)
    elif is_known:
        drawn = gains(metric, Scale.ratio, "").draw(speed)
    return _Side(against=against, speed=drawn, is_speed_open=is_open, costs=list(costs))


def _costs(comparison: Comparison, pairs: Sequence[tuple[Arm, Arm]]) -> Iterator[str]:
    """Yield what arms cost more or less than those beside them, in the geometric mean. A cost that
    is the same or not known is left out."""
    amounts = {row.arm.id: _amounts(row) for row in comparison.rows}
    for name, wording in COST_WORDS.items():
        ratios = list[float]()
        for arm, other in pairs:
            own = amounts[arm.id][name]
            base = amounts[other.id][name]
            if own and base:
                ratios.append(own / base)
        if len(ratios) == len(pairs):
            ratio = geometric_mean(ratios)
            if abs(ratio - 1) >= LEAST_COST:
                yield cost(ratio, wording)


def _amounts(row: ComparedArm) -> dict[str, float | None]:
    """Return the costs of an arm's training. Memory is one only where it is compared."""
    memory = row.times["model_mib"]
    return {**row.costs, "memory": None if memory.refused else memory.mean}


# --- a finding in words ---------------------------------------------------------------------------


def _over(finding: Finding) -> str:
    """Return ` over 3 levels of mlp`; nothing for an arm."""
    return f" over {crossed(finding.over)}" if finding.over else ""


def _finding(finding: Finding, metric: Metric, side: _Side) -> str:
    """Say in a few words what was found of an arm or a level."""
    gap = finding.difference
    costs = list(side.costs)
    if side.speed is not None:
        costs.insert(0, side.speed.text)
    at = _time_with_seeds(finding.equal_loss)
    if gap.word.is_shown:
        size = _size(gap.estimate, metric)
        head = f"{finding.name} {gap.word_with_reason} than {side.against} by {size}"
        parts = [head, *costs, at]
        return ", ".join(filter(None, parts))
    parts = [gap.word_with_reason]
    if at and gap.word is DifferenceWord.unclear:
        parts = [*side.costs, at]
    elif gap.word is DifferenceWord.unclear:
        if finding.seeds:
            size = extent(gap.estimate.mid, metric, gap.estimate.half_width)
            parts[0] += f" (about {finding.seeds} seeds would show {size} {metric.unit})"
        parts += costs
    return f"{finding.name} against {side.against}{_over(finding)}: {', '.join(parts)}"


def _size(estimate: Estimate, metric: Metric) -> str:
    """Return `0.0530 ± 0.0330 nats/token`; without noise `0.0530 nats/token`."""
    half = estimate.half_width
    size = extent(estimate.mid, metric, half)
    if half:
        size += f" ± {extent(half, metric, half)}"
    return f"{size} {metric.unit}"


def _time(at: TimeAtEqualLoss | None) -> str:
    """Return the time that an arm takes for equal loss: `1.03 of the time at equal loss [0.97,
    1.10], not shown`."""
    if at is None or at.ratio is None:
        return ""
    drawn: TableCell = ratio(at.ratio)
    text = f"{drawn.text} of the time at equal loss {drawn.small}".rstrip()
    return text if at.word.is_shown else f"{text}, not shown"


def _time_with_seeds(at: TimeAtEqualLoss | None) -> str:
    """Return the time for equal loss, and how many seeds would show it: `…, not shown; some 14
    seeds would show 3%`."""
    text = _time(at)
    if at is None or at.ratio is None or not at.seeds or at.word.is_shown:
        return text
    return f"{text}; about {at.seeds} seeds would show {abs(at.ratio.mid - 1):.1%}"


def crossed(keys: Mapping[str, int]) -> str:
    """Return `3 levels of mlp × 2 levels of kind and window`."""
    return " × ".join(
        f"{count} levels of {listed(key.split(JOINT))}" for key, count in keys.items()
    )


# --- what was compared, and what comes next -------------------------------------------------------


def next_step(comparison: Comparison) -> str:
    """Return what to type for what is not shown yet, or say that nothing is left to add."""
    more = comparison.findings.next
    if more is None:
        return f"next: {_without_runs(comparison)}"
    reason = "nocap keeps the finished runs"
    if more.key != "seed":
        reason = _reason_for_steps(comparison.findings.found)
    return f"next: the same command with {more.override} ({reason})"


def _without_runs(comparison: Comparison) -> str:
    """Say what is left where no command is known that adds runs."""
    found = comparison.findings.found
    if not found:
        return "train another arm, so that nocap can compare two arms"
    if any(finding.needs_runs for finding in found):
        return "repeat the commands that started these runs, with more seeds or more steps"
    text = "the loss needs no more runs"
    is_speed_open = any(side.is_speed_open for side in _sides(comparison).values())
    if comparison.imported or comparison.against == PREVIOUS or not is_speed_open:
        return text
    if comparison.timing is None:
        return (
            f"{text}; for the speed, type the same command with {TIME} 60, which times the arms "
            "in turns"
        )
    return f"{text}; for the speed, run a study, which times the arms in several sessions"


def _reason_for_steps(found: Iterable[Finding]) -> str:
    """Say why longer runs come next, by the seeds that the findings name."""
    sizes = [finding.seeds for finding in found if finding.seeds is not None]
    if not sizes:
        return "more seeds alone would not be enough; longer runs need fewer seeds"
    return (
        f"about {min(sizes)} seeds would be necessary, more than {MORE} times as many as now; "
        "longer runs need fewer seeds"
    )


def compared(comparison: Comparison) -> list[str]:
    """Return what was compared with what; for logs also what nobody can check."""
    return [*sides(comparison), *imported(comparison)]


def sides(comparison: Comparison) -> list[str]:
    """Return what was compared with what."""
    arms = plural(len(comparison.arms), "arm")
    runs = plural(len(comparison.runs), "run")
    base = comparison.baseline.label
    head = f"{arms} from {runs}; baseline: {base} (--baseline chooses another)"
    if comparison.against == PREVIOUS:
        head = f"{arms} from {runs}; each arm against the arm before it, beginning with {base}"
    lines = [head]
    if comparison.factors is not None or len(comparison.findings.found) > NAMED:
        lines.append(_counts(comparison))  # the headline does not name each arm
    if comparison.swept and not comparison.imported:
        lines.append(f"swept: {', '.join(comparison.swept)}")
    return lines


def _counts(comparison: Comparison) -> str:
    """Return `11 arms against flash gelu4x: 2 better, 5 worse, 4 no verdict`."""
    words = [row.difference.word.value for row in comparison.arms if row.difference]
    times = counted(words, [outcome.value for outcome in DifferenceWord])
    other = comparison.baseline.label
    if comparison.against == PREVIOUS:
        other = "the one before"
    return f"{plural(len(words), 'arm')} against {other}: {times}"


def imported(comparison: Comparison) -> list[str]:
    """Return what nobody can check of logs; nothing for nocap's own runs."""
    logs = comparison.imported
    if not logs:
        return []
    formats = listed(dict.fromkeys(str(log["format"]) for log in logs))
    arms = [f"arms from {source}" for source in _sources(logs, "arm")]
    seeds = [f"seeds from {source}" for source in _sources(logs, "seed")]
    if not seeds:
        seeds = ["the logs name no seeds, so nocap pairs no runs"]
    machines = {record.machine_name for record in comparison.records if record.imported["hardware"]}
    parts = [
        f"imported: logs of another trainer ({formats}). The result is exploratory, because "
        "nocap has not seen the code, the data or the settings",
        ", ".join([*arms, *seeds]),
    ]
    parts += [f"--hardware says that the runs used {name}" for name in machines]
    return ["; ".join(parts)]


def _sources(logs: Sequence[Mapping[str, object]], key: str) -> list[str]:
    """List what named the arms, or the seeds, of these logs."""
    named = dict.fromkeys(str(log[key]) for log in logs if log.get(key))
    return [" and ".join(named)] if named else []
