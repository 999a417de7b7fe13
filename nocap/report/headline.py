"""What a comparison found, in sentences: the first lines of a page, of the terminal and of
Markdown, and what to type next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nocap.display import NONE, listed, plural
from nocap.judge.comparison import Comparison
from nocap.judge.differences import SHOWN_WORDS, DifferenceWord
from nocap.judge.equal_loss import TimeAtEqualLoss
from nocap.judge.factors import Factors
from nocap.judge.findings import MORE, ORDER, Finding
from nocap.judge.interval import Estimate
from nocap.judge.pace import TOKEN_US
from nocap.judge.question import PREVIOUS
from nocap.report.table import TableCell
from nocap.report.words import counted, extent, gains, ratio
from nocap.store.metrics import METRICS, Metric, Scale

NAMED = 3  # findings in a headline; the others are counted


def headline(comparison: Comparison) -> str:
    """Name what was found: `mlp=swiglu better by 0.0530 ± 0.0330; attention=gqa over 3 mlps: no
    difference shown, some 12 seeds would show 0.0200`."""
    return "; ".join(_findings(comparison))


def _findings(comparison: Comparison, unit: str = "") -> list[str]:
    """List what was found, the first of it each by itself. `unit`: of the losses."""
    found = comparison.findings.found
    if not found:
        return [f"one arm, {comparison.baseline.label}, and none to compare it with"]
    metric = METRICS[comparison.metric]
    lines = [_finding(each, metric, unit) for each in found[:NAMED]]
    rest = [each.difference.word.value for each in found[NAMED:]]
    if rest:
        words = counted(rest, [outcome.value for outcome in ORDER])
        lines.append(f"{len(rest)} more: {words}")
    return lines


def answer(comparison: Comparison) -> str:
    """Say in one line what a reader comes for: the best arm or level, its loss, its speed, its time
    at equal loss, and what it is better than; or that none is better."""
    found = comparison.findings.found
    if not found:
        return headline(comparison)
    metric = METRICS[comparison.metric]
    if _is_gain(found[0]):
        return _gain(comparison, found[0], metric)
    return f"Nothing is shown to be better than {_against(comparison)} in {metric.title}"


def other_findings(comparison: Comparison) -> list[str]:
    """List what was found beside the answer, as the headline has it, in the unit of the loss."""
    found = comparison.findings.found
    lines = _findings(comparison, f" {METRICS[comparison.metric].unit}")
    if not found or _is_gain(found[0]):
        return lines[1:]
    return lines


def _against(comparison: Comparison) -> str:
    if comparison.against == PREVIOUS:
        return "the one before it"
    return comparison.baseline.label


def _is_gain(finding: Finding) -> bool:
    """Say whether it is shown that the loss is lower, or that equal loss takes less time."""
    at = finding.equal_loss
    takes_less = at is not None and at.word is DifferenceWord.better
    return takes_less or finding.difference.word is DifferenceWord.better


def _gain(comparison: Comparison, finding: Finding, metric: Metric) -> str:
    """Say of a gain what it is of, and against what: `gqa: 4.1% faster [3.0% to 5.2% faster],
    higher loss by 0.0090 ± 0.0012 nats/token, against gelu4x`."""
    side = _sides(comparison)[finding.name]
    gap = finding.difference
    loss = ""
    drawn = gains(metric.name, Scale.difference, "").draw(gap.estimate)
    if drawn.text != NONE:
        loss = f"{drawn} {metric.unit}"
    if gap.word not in SHOWN_WORDS:
        loss += f" ({gap.word_with_reason})"
    parts = [side.speed, loss]
    if gap.word is DifferenceWord.better:
        parts = [loss, side.speed]
    parts.append(_time(finding.equal_loss))
    facts = ", ".join(part for part in parts if part)
    return f"{_name(finding)}: {facts}, against {side.against}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Side:
    """What an arm, or a level, is compared with, and its speed beside that."""

    against: str
    speed: str  # "": not known


def _sides(comparison: Comparison) -> dict[str, _Side]:
    """Return it for each finding, by that one's name."""
    if comparison.factors is not None:
        return dict(_levels(comparison.factors))
    metric = "train_s" if comparison.imported else TOKEN_US
    sides = dict[str, _Side]()
    for row in comparison.rows:
        if row.against is not None:
            timed = row.times[metric]
            estimate = None if timed.refused else timed.estimate
            sides[row.label] = _Side(against=row.against.label, speed=_speed(estimate, metric))
    return sides


def _levels(factors: Factors) -> Iterator[tuple[str, _Side]]:
    for factor in factors.factors:
        against = factor.label(factor.baseline)
        for level in factor.levels:
            speed = _speed(level.speed, TOKEN_US)
            yield factor.label(level.name), _Side(against=against, speed=speed)


def _speed(estimate: Estimate | None, metric: str) -> str:
    """Draw a speed that has an interval; nothing, where there is none."""
    drawn = gains(metric, Scale.ratio, "").draw(estimate)
    return str(drawn) if drawn.small else ""


def _name(finding: Finding) -> str:
    """Return `attention=gqa over 3 mlps`."""
    if not finding.over:
        return finding.name
    return f"{finding.name} over {crossed(finding.over)}"


def _finding(finding: Finding, metric: Metric, unit: str) -> str:
    """Say in a few words what was found of one arm, or of one level."""
    gap = finding.difference
    size = extent(gap.estimate.mid, metric)
    at = _time_with_seeds(finding.equal_loss)
    if gap.word in SHOWN_WORDS:
        if gap.estimate.half_width:
            size += f" ± {extent(gap.estimate.half_width, metric)}"
        time = f", {at}" if at else ""
        return f"{finding.name} {gap.word_with_reason} by {size}{unit}{time}"
    if at and gap.word is DifferenceWord.unclear:
        return f"{_name(finding)}: {at}"
    text = f"{_name(finding)}: {gap.word_with_reason}"
    if finding.seeds:
        text += f", some {finding.seeds} seeds would show {size}{unit}"
    return text


def _time(at: TimeAtEqualLoss | None) -> str:
    """Say of an arm what its loss and its speed make together: `1.03 of the time at equal loss
    [0.97, 1.10], not shown`."""
    if at is None or at.ratio is None:
        return ""
    drawn: TableCell = ratio(at.ratio)
    text = f"{drawn.text} of the time at equal loss {drawn.small}".rstrip()
    return text if at.word in SHOWN_WORDS else f"{text}, not shown"


def _time_with_seeds(at: TimeAtEqualLoss | None) -> str:
    """Say that, and how many seeds would show it: `…, not shown; some 14 seeds would show 3%`."""
    text = _time(at)
    if at is None or at.ratio is None or not at.seeds or at.word in SHOWN_WORDS:
        return text
    return f"{text}; some {at.seeds} seeds would show {abs(at.ratio.mid - 1):.1%}"


def crossed(keys: Mapping[str, int]) -> str:
    """Return `3 mlps × 2 positions`."""
    return " × ".join(plural(count, key) for key, count in keys.items())


# --- what was compared, and what comes next -------------------------------------------------------


def next_step(comparison: Comparison) -> str | None:
    """Return what to type for what is not shown yet; `None`: nothing, or it is not known which
    command that is."""
    more = comparison.findings.next
    if more is None:
        return None
    reason = "finished runs are kept"
    if more.key != "seed":
        reason = _reason_for_steps(comparison.findings.found)
    return f"next: the same command with {more.override} ({reason})"


def _reason_for_steps(found: Iterable[Finding]) -> str:
    """Say why longer runs come next, by the seeds that the findings name."""
    sizes = [finding.seeds for finding in found if finding.seeds is not None]
    if not sizes:
        return "no planned number of seeds would be enough: longer runs need fewer seeds"
    return (
        f"about {min(sizes)} seeds would be needed, more than {MORE} times as many: longer runs "
        "need fewer seeds"
    )


def compared(comparison: Comparison) -> list[str]:
    """Return what was compared with what, and of logs what nobody can check."""
    return [*sides(comparison), *imported(comparison)]


def sides(comparison: Comparison) -> list[str]:
    """Return what was compared with what."""
    arms = plural(len(comparison.arms), "arm")
    runs = plural(len(comparison.runs), "run")
    base = comparison.baseline.label
    head = f"{arms} from {runs}; baseline: {base} (another with --baseline)"
    if comparison.against == PREVIOUS:
        head = f"{arms} from {runs}; each against the one before it, from {base} on"
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
    """Return what nobody can check, on every page; of nocap's own runs nothing."""
    logs = comparison.imported
    if not logs:
        return []
    formats = listed(dict.fromkeys(str(log["format"]) for log in logs))
    arms = [f"arms from {source}" for source in _sources(logs, "arm")]
    seeds = [f"seeds from {source}" for source in _sources(logs, "seed")]
    if not seeds:
        seeds = ["no seeds are named, so nothing is paired"]
    machines = {record.machine_name for record in comparison.records if record.imported["hardware"]}
    parts = [
        f"imported: logs of another trainer ({formats}), exploratory: nocap has seen neither "
        "code, data nor settings",
        ", ".join([*arms, *seeds]),
    ]
    parts += [f"--hardware says that they ran on {name}" for name in machines]
    return ["; ".join(parts)]


def _sources(logs: Sequence[Mapping[str, object]], key: str) -> list[str]:
    """List what named the arms, or the seeds, of these logs."""
    named = dict.fromkeys(str(log[key]) for log in logs if log.get(key))
    return [" and ".join(named)] if named else []
