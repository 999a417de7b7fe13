"""What changed between two profiles, as tables. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from nocap.display import MINUS, shorten, three_digits
from nocap.measure.largest_parts import between
from nocap.measure.profile_difference import Change, ProfileDifference
from nocap.measure.profile_groups import GROUPS, title_of
from nocap.measure.profile_tables import in_percent
from nocap.report.table import Column, Table
from nocap.report.terminal import prose
from nocap.step_parts import part_title


def render_differences(differences: Sequence[ProfileDifference]) -> str:
    """Return the differences as text, one after another."""
    return "\n\n".join(_difference(difference) for difference in differences)


def _difference(difference: ProfileDifference) -> str:
    tables = [
        _changes("what changed", difference.groups),
        _changes("each row, with the largest change first", difference.rows),
    ]
    head = "\n".join(map(prose, _about(difference)))
    return "\n\n".join([head, *map(str, tables), "\n".join(_caution(difference))])


def _about(difference: ProfileDifference) -> Iterator[str]:
    for name, side in (("A", difference.before), ("B", difference.after)):
        words = " ".join(side.words) or "no overrides"
        cost = f"{three_digits(side.ms)} ms a {side.of.title}"
        if side is difference.after:
            cost += f", {difference.ratio:.2f}× the time of A"
        doubt = ""
        if not side.trusted:
            doubt = "; do not trust this profile, because the machine was busy"
        yield f"{name}: {side.path}, {cost}, attention {side.kernel}: {words}{doubt}"
    if difference.before.tokens != difference.after.tokens:
        yield (
            f"A has {difference.before.tokens:,} tokens and B has {difference.after.tokens:,}; "
            f"for one token, B takes {difference.ratio_per_token:.2f}× the time of A"
        )
    changed = [f"{key} {_value(a)} → {_value(b)}" for key, (a, b) in difference.config.items()]
    if changed:
        yield f"config: {shorten(changed, most=12)}"
    else:
        yield "config: the same"


def _value(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)


def _changes(title: str, changes: Sequence[Change]) -> Table:
    columns = [
        Column(title="part"),
        Column(title="A ms", show=three_digits),
        Column(title="B ms", show=three_digits),
        Column(title="change ms", show=_signed),
        Column(title="B/A", show="{:.2f}×".format),
        Column(title="A share", show=in_percent),
        Column(title="B share", show=in_percent),
    ]
    rows = list[list[Any]]()
    for change in changes:
        before = change.before
        after = change.after
        rows.append(
            [
                _title(change),
                before and before.ms,
                after and after.ms,
                change.ms,
                change.ratio,
                before and before.share,
                after and after.share,
            ]
        )
    return Table(title=title, columns=columns, rows=rows)


def _title(change: Change) -> str:
    place = change.place
    group = GROUPS.get(place.group, place.group)
    if not place.part:
        return group
    if place.detail is None:
        part = part_title(place.part)
    else:
        part = title_of(place.part, place.detail)
    if part == group:
        return group
    return f"{group}: {part}"


def _signed(ms: float) -> str:
    if ms > 0:
        return f"+{three_digits(ms)}"
    return three_digits(ms).replace("-", MINUS)


def _caution(difference: ProfileDifference) -> Iterator[str]:
    drift = ", ".join(f"{name} {each:.2f}×" for name, each in difference.drift.items())
    yield prose(
        "A and B are one measurement each, without an interval. The machine's measured peaks also "
        f"changed from A to B: {drift}"
    )
    command = between(difference.before, difference.after)
    if command is None:
        yield prose(
            "both have the same overrides, so the differences only show how much two profiles of "
            "one step differ"
        )
    elif command:
        yield f"this command measures the difference with an interval: {command}"
