"""Runs of several people as one set: joined by arms and seeds, a run that several have once. Runs of one arm
that had other code, data, torch or precision are no repeats of each other: they are refused by name, unless
that was declared. What a machine does to a speed is no reason: times of several machines are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, count

from nocap.config.keys import require
from nocap.judge.arms import (
    Arm,
    arm_key,
    changes,
    confounders,
    covers,
    group,
    kernels,
    setting,
    swept_keys,
    validation_keys,
    value_of,
)
from nocap.judge.interval import ROUNDING
from nocap.judge.question import PREVIOUS, Question
from nocap.store.formats import plural, shorten
from nocap.store.runs import Found, Record, dig

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
        named = self.question and self.question.baseline
        return next((run for run in self.found.records if run.identity == named), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """What two sides have otherwise, in words."""

    key: str
    here: str
    there: str
    allowed: bool = True  # whether `--allow KEY` can declare it


# --- one question -------------------------------------------------------------------------------------------


def agreed(sides: Sequence[Side], typed: Question) -> Question:
    """Return the one question of all sides that have one, with what was typed in its place.

    Errors:
        ValueError: two ask otherwise, and what they ask was not typed.
    """
    asking = [side for side in sides if side.question is not None]
    first = asking[0]
    assert first.question is not None
    whole = typed.over(first.question)
    for other in asking[1:]:
        differ = list(_asked_otherwise(first, other, typed, in_chain=whole.against == PREVIOUS))
        rule = f"ask what {first.name} asks, or the command line must say it"
        require(not differ, other.name, rule, "; ".join(differ))
    return whole


def _asked_otherwise(one: Side, other: Side, typed: Question, *, in_chain: bool) -> Iterator[str]:
    """List the parts of two questions that differ and were not typed. In a chain of arms there is no one
    baseline."""
    assert one.question is not None
    assert other.question is not None
    for part in ("target", "allow", "against", "cautious"):
        here, there = (_spelled(part, side.question) for side in (one, other))
        if here != there and part not in typed.said:
            yield f"--{part} {there}, not {here}"
    if typed.baseline is None and not in_chain and one.baseline and other.baseline:
        differ = _settings_differ(one.baseline, other.baseline)
        if differ:
            yield f"--baseline with {shorten(differ)}"


def _spelled(part: str, question: Question | None) -> str:
    value = getattr(question, part)
    if part == "allow":
        return ", ".join(sorted(set(value or ()))) or "nothing"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _settings_differ(here: Record, there: Record) -> list[str]:
    """List the settings in which two runs differ, but for those that `joined` tells of."""
    told = {PRECISION, *validation_keys([here, there])}
    keys = [key for key in swept_keys([here.config, there.config]) if key not in told]
    return [f"{key}={setting(there.config, key)}, not {setting(here.config, key)}" for key in keys]


# --- one set of runs ----------------------------------------------------------------------------------------


def joined(sides: Sequence[Side], *, allow: Collection[str]) -> Found:
    """Return the runs of all sides: of nocap's own in the order in which commands asked for them, of logs as
    they come.

    Errors:
        ValueError: two sides have an arm, or a baseline, with other data, code, torch, precision, kernel,
            steps or validation, which `allow` does not declare; or one has logs and the other nocap's runs.
    """
    for here, there in combinations(sides, 2):
        _check_alike(here, there, allow=allow)
    by_identity = dict[str, tuple[Side, Record]]()
    lines = dict.fromkeys(line for side in sides for line in side.found.problems)
    for side in sides:
        twins = [run for run in side.found.records if run.identity in by_identity]
        lines |= dict.fromkeys(_counted_once(side, twins, by_identity))
        for run in side.found.records:
            by_identity.setdefault(run.identity, (side, run))
    records = list(_unnamed_apart(run for _, run in by_identity.values()))
    if not any(run.imported for run in records):
        records.sort(key=lambda run: run.when)
    unreadable = {name: why for side in sides for name, why in side.found.unreadable.items()}
    return Found(records=records, problems=list(lines), unreadable=unreadable)


def _counted_once(
    side: Side, twins: Sequence[Record], known: dict[str, tuple[Side, Record]]
) -> Iterator[str]:
    """Say which runs of a side are in another one too."""
    if twins:
        names = shorten(run.folder.name for run in twins)
        yield f"{side.name}: {plural(len(twins), 'run')} of it counted once, for others have them ({names})"
    for run in twins:
        other, first = known[run.identity]
        if not _same_end(run, first):
            yield (
                f"{run.name} (identity {run.identity}) ended at {first.val_loss} in {other.name} and at "
                f"{run.val_loss} in {side.name}: the first counts"
            )


def _same_end(run: Record, other: Record) -> bool:
    if run.val_loss is None or other.val_loss is None:
        return run.val_loss == other.val_loss and run.status == other.status
    return abs(run.val_loss - other.val_loss) <= ROUNDING * abs(other.val_loss)


def _unnamed_apart(records: Iterable[Record]) -> Iterator[Record]:
    """Return the runs, each whose log names no seed with one of its own, which it shares with no other."""
    unnamed = count(-1, -1)
    for run in records:
        yield run if run.seed >= 0 else replace(run, seed=next(unnamed))


def _check_alike(here: Side, there: Side, *, allow: Collection[str]) -> None:
    kinds = [{bool(run.imported) for run in side.found.records} for side in (here, there)]
    require(
        kinds[0] == kinds[1],
        there.name,
        f"hold runs of the same trainer as {here.name}",
        "logs of another trainer on one side and nocap's own runs on the other",
    )
    found = {each.key: each for each in _disagreements(here, there, allow=allow)}
    told = [f"{each.key} {each.there}, not {each.here}" for each in found.values()]
    flags = [f"--allow {each.key}" for each in found.values() if each.allowed]
    how = f" ({' '.join(flags)} declares it)" if flags and len(flags) == len(found) else ""
    require(not told, there.name, f"agree with {here.name}", "; ".join(told) + how)


def _disagreements(here: Side, there: Side, *, allow: Collection[str]) -> Iterator[Disagreement]:
    """List what differs between the arms that both have, and between the baselines."""
    own, theirs = group(here.found.records), group(there.found.records)
    pairs = [(arm, other) for other in theirs if (arm := _counterpart(other, own)) is not None]
    if here.baseline is not None and there.baseline is not None:
        yield from _of_validation(here.baseline, there.baseline, allow=allow)
        precisions = [setting(side.config, PRECISION) for side in (here.baseline, there.baseline)]
        if precisions[0] != precisions[1]:
            yield Disagreement(key="precision", here=precisions[0], there=precisions[1], allowed=False)
        if "torch" not in allow and (differ := _of_torch([here.baseline], [there.baseline])) is not None:
            yield differ
    yield from chain.from_iterable(_of_an_arm(arm, other, allow=allow) for arm, other in pairs)


def _counterpart(arm: Arm, others: Sequence[Arm]) -> Arm | None:
    """Return the arm of the same settings, of several that which has the same code and data; `None`: there
    is none."""
    alike = [other for other in others if not changes(arm, other)]
    same = [other for other in alike if _key_of(other) == _key_of(arm)]
    return next(iter([*same, *alike]), None)


def _key_of(arm: Arm) -> str:
    return arm_key(arm.config, arm.all[0].parts)


def _of_validation(here: Record, there: Record, *, allow: Collection[str]) -> Iterator[Disagreement]:
    """List the keys by which the losses of the two baselines are not comparable."""
    for key in validation_keys([here, there]):
        own, theirs = value_of(here, key), value_of(there, key)
        if own != theirs and not any(covers(each, key) for each in allow):
            yield Disagreement(key=key, here=own, there=theirs)


def _of_torch(here: Sequence[Record], there: Sequence[Record]) -> Disagreement | None:
    versions = []
    for runs in (here, there):
        known = {str(dig(run.parts, "environment", "torch")).partition("+")[0] for run in runs}
        versions.append(", ".join(sorted(known)))
    own, theirs = versions
    return None if own == theirs else Disagreement(key="torch", here=own, there=theirs)


def _of_an_arm(here: Arm, there: Arm, *, allow: Collection[str]) -> Iterator[Disagreement]:
    """List what makes runs of one arm no repeats of each other."""
    own, theirs = here.all[0].parts, there.all[0].parts
    differ = set(confounders(there, here, allowed=allow))
    differ |= {part for part in ("source", "data") if own.get(part) != theirs.get(part)}
    for key in sorted(key for key in differ if not any(covers(each, key) for each in allow)):
        if key == "torch":
            torch = _of_torch(here.all, there.all)
            assert torch is not None
            yield torch
        else:
            yield Disagreement(key=key, here=_shown(key, here, there), there=_shown(key, there, here))


def _shown(key: str, arm: Arm, other: Arm) -> str:
    """Return what an arm has in a confounder, as a person reads it."""
    run = arm.all[0]
    if key == "source":
        hashes, others = (side.all[0].parts.get("source") or {} for side in (arm, other))
        modules = sorted(
            module for module in hashes.keys() | others.keys() if hashes.get(module) != others.get(module)
        )
        return f"{modules[0]} {str(hashes.get(modules[0]))[:HASH]}"
    if key == "data":
        tokens, others_tokens = run.tokens_hash("train"), other.all[0].tokens_hash("train")
        return (tokens if tokens != others_tokens else str(run.parts.get("data")))[:HASH]
    if key == "kernel":
        return ", ".join(dict.fromkeys(kernels(arm).values()))
    return ", ".join(sorted({str(each.summary.get("steps")) for each in arm.runs}))
