"""Where a claim stands by its study's log: when it was registered, and what was known by then."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nocap.display import listed, plural, shorten
from nocap.judge.claim import Claim
from nocap.sessions.places import TRAIN
from nocap.store.times import moment
from nocap.study.evidence import Evidence, places
from nocap.study.log import (
    AnalysisLine,
    AnyLine,
    LogLine,
    RegistrationLine,
    RunLine,
    SessionLine,
    StudyLog,
)
from nocap.study.registration import Registration, content_of, registration_of
from nocap.study.study_plan import StudyPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a claim stands."""

    hash: str
    at: str | None  # when it was registered
    exploratory: str | None  # why its verdict is
    notes: list[str]  # short ones, for people


def standing_of(
    plan: StudyPlan, claim: Claim, evidence: Evidence, logs: Sequence[StudyLog], *, machine: str
) -> Standing:
    """Return where a claim stands. `logs`: the study's own, then those of the studies beside it."""
    own = logs[0]
    registration = registration_of(plan, claim)
    first = _first(own.of(RegistrationLine, hash=registration.hash))
    at = first.at if first is not None else None
    contents = _contents(plan, claim, evidence)
    older = [used for used in evidence.used(claim, plan.study) if _before(used.started, at)]
    results = list[str]()
    others = set[str]()
    for line, is_own in _lines_before(first, logs):
        if isinstance(line, RunLine) or (isinstance(line, SessionLine) and is_own):
            # What is timed is timed anew in each study; what another study trained is the same run.
            if _is_of(line, claim, contents):
                # by the name that it has now, as evidence has it
                results.append(name_of(line, claim.arm))
        elif isinstance(line, RegistrationLine) and _is_another(line, registration, first):
            others.add(line.hash)
    results += [used.name for used in older if used.arm == claim.arm]
    notes = list[str]()
    baseline = {used.name for used in older if used.arm != claim.arm}
    if baseline:
        notes.append(f"measured with an older baseline: {shorten(sorted(baseline), most=2)}")
    of_machine = [line for line in own.lines if line.machine == machine]
    notes += _repeated(claim, of_machine, contents)
    notes += _analysed(own.of(AnalysisLine, hash=registration.hash), machine)
    exploratory = _exploratory(at, results, others)
    return Standing(hash=registration.hash, at=at, exploratory=exploratory, notes=notes)


def _first(lines: Sequence[RegistrationLine]) -> RegistrationLine | None:
    return lines[0] if lines else None


def _lines_before(
    first: RegistrationLine | None, logs: Sequence[StudyLog]
) -> Iterator[tuple[AnyLine, bool]]:
    """Yield each line that was written before a registration, and whether it is of the study's own
    log; all lines where nothing was registered."""
    own = logs[0]
    first_place = own.lines.index(first) if first is not None else 0
    for log in logs:
        is_own = log is own
        for place, line in enumerate(log.lines):
            is_above = is_own and place < first_place
            if first is None or _came_before(line, first, is_above=is_above):
                yield line, is_own


def _is_another(
    line: RegistrationLine, registration: Registration, first: RegistrationLine | None
) -> bool:
    """Say whether a line registers the same arms and metric, to be decided otherwise. Those written
    together with the claim's first line knew nothing of each other."""
    if line.subject != registration.subject or line.hash == registration.hash:
        return False
    return first is None or (line.at, line.machine) != (first.at, first.machine)


def _exploratory(at: str | None, results: Sequence[str], others: Collection[str]) -> str | None:
    """Say why a verdict is exploratory; `None`: it is not. `results`: the names of those that were
    there before the registration; `others`: hashes that the same arms and metric were registered
    with before."""
    reasons = list[str]()
    if at is None:
        reasons.append("not registered")
    if results:
        names = sorted(set(results))
        after = "registered after" if at else "after"
        reasons.append(f"{after} {_counts(names)} ({shorten(names, most=2)})")
    if others:
        reasons.append(
            "its arms and metric were registered before with another expected range, other "
            f"margins or other seeds ({len(others)})"
        )
    return "; ".join(reasons) or None


def _contents(plan: StudyPlan, claim: Claim, evidence: Evidence) -> dict[str, set[str]]:
    """Return the digests of a claim's arm, as it is trained and timed, by place."""
    contents = dict[str, set[str]]()
    for place in places(claim):
        arms = evidence.arms.get(place, {}).get(claim.arm, ())
        contents[place] = {content_of(plan, arm, place) for arm in arms}
    return contents


def _came_before(line: LogLine, registration: LogLine, *, is_above: bool) -> bool:
    """Say whether a line was written before a registration. `is_above`: it stands above it in one
    log, which decides where both have one second."""
    if is_above:
        return not _before(registration.at, line.at)
    return _before(line.at, registration.at)


def _repeated(
    claim: Claim, lines: Sequence[LogLine], contents: Mapping[str, set[str]]
) -> list[str]:
    """Name what was measured more than once on a machine, and did not come out alike."""
    outcomes: dict[str, set[str]] = {}
    for line in lines:
        if isinstance(line, RunLine | SessionLine) and _is_of(line, claim, contents):
            outcomes.setdefault(name_of(line, claim.arm), set()).add(_figures(line))
    names = [name for name, different in outcomes.items() if len(different) > 1]
    if not names:
        return []
    return [f"measured again with another result: {shorten(names, most=2)}"]


def _figures(line: RunLine | SessionLine) -> str:
    """Return what a line says was measured."""
    if isinstance(line, RunLine):
        return str(line.val_loss)
    return str(line.measured)


def _analysed(analyses: Sequence[AnalysisLine], machine: str) -> list[str]:
    """Say how often a claim was analysed here, and what came out on other machines."""
    numbers = set[int]()
    words: dict[str, str] = {}
    for line in analyses:
        if line.machine == machine:
            numbers.add(line.number)
        else:
            words[line.machine] = line.word
    notes = [f"{word} on another machine ({name})" for name, word in words.items()]
    if len(numbers) > 1:
        notes.insert(0, f"{len(numbers)} analyses")
    return notes


def _before(started: str, at: str | None) -> bool:
    """Say whether something began before a registration, also where it is not known when it
    began."""
    if at is None:
        return False
    began = moment(started)
    registered = moment(at)
    return began is None or (registered is not None and began < registered)


def _is_of(line: RunLine | SessionLine, claim: Claim, contents: Mapping[str, set[str]]) -> bool:
    """Say whether a line is of a result of the claim's arm and seeds, under whatever name."""
    if isinstance(line, RunLine):
        return line.seed in claim.seeds and line.content in contents.get(TRAIN, ())
    of_place = contents.get(line.place, set())
    return not of_place.isdisjoint(line.contents.values())


def name_of(line: RunLine | SessionLine, arm: str) -> str:
    """Name a result for people. `arm`: as it is called now."""
    if isinstance(line, SessionLine):
        return f"{line.place} session {line.number}"
    steps = f", {line.short} steps" if line.short else ""
    return f"{arm}, seed {line.seed}{steps}"


def _counts(names: Sequence[str]) -> str:
    """Return `3 runs and 1 session`."""
    sessions = sum(" session " in name for name in names)
    runs = len(names) - sessions
    counts = list[str]()
    if runs:
        counts.append(plural(runs, "run"))
    if sessions:
        counts.append(plural(sessions, "session"))
    return listed(counts)
