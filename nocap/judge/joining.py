"""Runs of several people as one set: joined by arms and seeds, a run that several have once. Runs
of one arm that had other code, data, torch or precision are no repeats of each other: they are
refused by name, unless that was declared. What a machine does to a speed is no reason: times of
several machines are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count

from nocap.config.keys import require
from nocap.display import plural, shorten
from nocap.judge.arms import Arm, arm_key, changes, setting, spell, swept_keys
from nocap.judge.confounders import (
    confounders,
    is_declared,
    kernels,
    torch_version,
    validation_keys,
    value_of,
)
from nocap.judge.grouping import group
from nocap.judge.interval import ROUNDING
from nocap.judge.question import PREVIOUS, Question
from nocap.store.grid_timing import Timing
from nocap.store.record import Record
from nocap.store.runs import Found
from nocap.store.times import moment

PRECISION = "trainer.precision"
HASH = 12  # characters of a hash in a message


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """Runs that are joined with others, by the name of the file or folder that they come from."""

    name: str
    found: Found
    question: Question | None = None  # None: they come without one

    @property
    def baseline(self) -> Record | None:
        """Return the run that its question names; `None`: it has no question."""
        identity = self.question and self.question.baseline
        return next((run for run in self.found.records if run.identity == identity), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """What two sides have otherwise, in words."""

    key: str
    one: str
    other: str
    allowed: bool = True  # whether `--allow KEY` can declare it


# --- one question ---------------------------------------------------------------------------------


def common_question(sides: Sequence[Side], command: Question) -> Question:
    """Return the one question of all sides that have one, with what the command line says in its
    place.

    Errors:
        ValueError: two ask otherwise, and the command line does not settle it.
    """
    asking = [side for side in sides if side.question is not None]
    first = asking[0]
    assert first.question is not None
    question = command.over(first.question)
    for other in asking[1:]:
        differ = list(_differences(first, other, command, in_chain=question.against == PREVIOUS))
        rule = f"have the same flags as {first.name} (or give these flags in this command)"
        require(not differ, other.name, rule, "; ".join(differ))
    return question


def _differences(one: Side, other: Side, command: Question, *, in_chain: bool) -> Iterator[str]:
    """List the parts of two questions that differ and that the command line does not say. In a
    chain of arms there is no one baseline."""
    assert one.question is not None
    assert other.question is not None
    for part in ("target", "allow", "against", "cautious"):
        text = _spell(part, one.question)
        other_text = _spell(part, other.question)
        if text != other_text and part not in command.parts:
            yield f"--{part} {other_text}, not {text}"
    if command.baseline is not None or in_chain or one.baseline is None or other.baseline is None:
        return
    if differ := _settings_apart(one.baseline, other.baseline):
        yield f"--baseline with {shorten(differ)}"


def _spell(part: str, question: Question) -> str:
    """Return a part of a question as a person reads it."""
    value = getattr(question, part)
    if part == "allow":
        return ", ".join(sorted(set(value or ()))) or "nothing"
    if value is None:
        return "none"
    return spell(value)


def _settings_apart(one: Record, other: Record) -> list[str]:
    """List the settings in which two runs differ, but for those that `join_runs` names."""
    elsewhere = {PRECISION, *validation_keys([one, other])}
    keys = [key for key in swept_keys([one.config, other.config]) if key not in elsewhere]
    return [f"{key}={setting(other.config, key)}, not {setting(one.config, key)}" for key in keys]


# --- one set of runs ------------------------------------------------------------------------------


def join_runs(sides: Sequence[Side], *, allow: Collection[str]) -> Found:
    """Return the runs of all sides: of nocap's own in the order in which commands asked for them,
    of logs as they come.

    Errors:
        ValueError: two sides have an arm, or a baseline, with other data, code, torch, precision,
            kernel, steps or validation, which `allow` does not declare; or one has logs and the
                other nocap's runs.
    """
    if len(sides) == 1:
        return sides[0].found
    for one, other in combinations(sides, 2):
        _check_alike(one, other, allow=allow)
    known = dict[str, tuple[Side, Record]]()  # by identity
    lines = dict[str, None]()
    unreadable = dict[str, str]()
    for side in sides:
        lines |= dict.fromkeys([*side.found.problems, *_twins(side, known)])
        unreadable |= side.found.unreadable
        for run in side.found.records:
            known.setdefault(run.identity, (side, run))
    records = list(_unnamed_apart(run for _, run in known.values()))
    if not _are_logs(sides[0]):
        records.sort(key=lambda run: run.when)
    return Found(
        records=records, problems=list(lines), unreadable=unreadable, timings=_timings(sides)
    )


def _timings(sides: Sequence[Side]) -> list[Timing]:
    """List the timings of all sides, each once, the newest first."""
    timings = list[Timing]()
    for side in sides:
        timings += [timing for timing in side.found.timings if timing not in timings]
    return sorted(timings, key=lambda timing: moment(timing.started) or 0.0, reverse=True)


def _twins(side: Side, known: Mapping[str, tuple[Side, Record]]) -> Iterator[str]:
    """Say which runs of a side are known from another one."""
    twins = [run for run in side.found.records if run.identity in known]
    if twins:
        names = shorten(run.folder.name for run in twins)
        yield (
            f"{side.name}: other files also hold {plural(len(twins), 'run')} of this file; each "
            f"run counts once ({names})"
        )
    for run in twins:
        other, first = known[run.identity]
        if not _same_end(run, first):
            yield (
                f"{run.name} (identity {run.identity}) ended at {first.val_loss} in {other.name} "
                f"and at {run.val_loss} in {side.name}: nocap uses the first value"
            )


def _same_end(run: Record, other: Record) -> bool:
    if run.val_loss is None or other.val_loss is None:
        return run.val_loss == other.val_loss and run.status == other.status
    return abs(run.val_loss - other.val_loss) <= ROUNDING * abs(other.val_loss)


def _unnamed_apart(records: Iterable[Record]) -> Iterator[Record]:
    """Return the runs, each whose log names no seed with one of its own, which it shares with no
    other."""
    unnamed = count(-1, -1)
    for run in records:
        yield run if run.seed >= 0 else replace(run, seed=next(unnamed))


def _check_alike(one: Side, other: Side, *, allow: Collection[str]) -> None:
    """Refuse two sides that disagree, with all that they disagree in."""
    rule = f"hold runs of the same trainer as {one.name}"
    got = "logs of another trainer on one side and nocap's own runs on the other"
    require(_are_logs(one) == _are_logs(other), other.name, rule, got)
    differ = {each.key: each for each in _disagreements(one, other, allow=allow)}
    text = "; ".join(f"{each.key} {each.other}, not {each.one}" for each in differ.values())
    if all(each.allowed for each in differ.values()):
        text = (
            f"{text} (to accept this difference, type "
            f"{' '.join(f'--allow {key}' for key in differ)})"
        )
    require(not differ, other.name, f"have the same data, code and settings as {one.name}", text)


def _are_logs(side: Side) -> bool:
    return any(run.imported for run in side.found.records)


def _disagreements(one: Side, other: Side, *, allow: Collection[str]) -> Iterator[Disagreement]:
    """List what differs between the arms that both have, and between the baselines."""
    if one.baseline is not None and other.baseline is not None:
        yield from _of_baselines(one.baseline, other.baseline, allow=allow)
    arms = group(one.found.records)
    for other_arm in group(other.found.records):
        arm = _counterpart(other_arm, arms)
        if arm is not None:
            yield from _of_an_arm(arm, other_arm, allow=allow)


def _counterpart(arm: Arm, others: Sequence[Arm]) -> Arm | None:
    """Return the arm of the same settings, of several that which has the same code and data;
    `None`: there is none."""
    alike = [other for other in others if not changes(arm, other)]
    same = [other for other in alike if _key_of(other) == _key_of(arm)]
    return next(iter([*same, *alike]), None)


def _key_of(arm: Arm) -> str:
    return arm_key(arm.config, arm.all[0].parts)


def _of_baselines(one: Record, other: Record, *, allow: Collection[str]) -> Iterator[Disagreement]:
    """List what makes the losses of two baselines incomparable, though they be of two arms."""
    for key in validation_keys([one, other]):
        own = value_of(one, key)
        theirs = value_of(other, key)
        if own != theirs and not is_declared(key, allow):
            yield Disagreement(key=key, one=own, other=theirs)
    own = setting(one.config, PRECISION)
    theirs = setting(other.config, PRECISION)
    if own != theirs:
        yield Disagreement(key="precision", one=own, other=theirs, allowed=False)
    own = _torch_of([one])
    theirs = _torch_of([other])
    if own != theirs and not is_declared("torch", allow):
        yield Disagreement(key="torch", one=own, other=theirs)


def _of_an_arm(one: Arm, other: Arm, *, allow: Collection[str]) -> Iterator[Disagreement]:
    """List what makes runs of one arm no repeats of each other."""
    differ = confounders(other, one, allowed=allow)
    for part in ("source", "data"):
        # which `confounders` takes for alike where the modules that both have, or the tokens, are
        # the same
        apart = one.all[0].parts.get(part) != other.all[0].parts.get(part)
        if apart and part not in differ and not is_declared(part, allow):
            differ.append(part)
    for key in differ:
        yield Disagreement(key=key, one=_text_of(key, one, other), other=_text_of(key, other, one))


def _text_of(key: str, arm: Arm, other: Arm) -> str:
    """Return what an arm has in a confounder, as a person reads it."""
    if key == "torch":
        return _torch_of(arm.all)
    if key == "source":
        return _source_of(arm, other)
    if key == "data":
        return _data_of(arm, other)
    if key == "kernel":
        return ", ".join(dict.fromkeys(kernels(arm).values()))
    return ", ".join(sorted({str(run.steps) for run in arm.runs}))


def _torch_of(runs: Sequence[Record]) -> str:
    """Return the versions that trained these runs, without what a build adds to them."""
    versions = {torch_version(run) for run in runs}
    return ", ".join(sorted(versions))


def _source_of(arm: Arm, other: Arm) -> str:
    """Return the first module that the other arm has not the same, with its hash."""
    own = arm.all[0].source
    theirs = other.all[0].source
    differ = [
        module for module in sorted({**own, **theirs}) if own.get(module) != theirs.get(module)
    ]
    return f"{differ[0]} {str(own.get(differ[0]))[:HASH]}"


def _data_of(arm: Arm, other: Arm) -> str:
    """Return the hash of its tokens, or where these are the same that of how they were made."""
    tokens = arm.all[0].tokens_hash("train")
    if tokens != other.all[0].tokens_hash("train"):
        return tokens[:HASH]
    return str(arm.all[0].data_hash)[:HASH]
