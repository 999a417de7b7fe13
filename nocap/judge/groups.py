"""Runs that can share a comparison. Where losses measure different things, no run is compared with one of another group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from nocap.config.keys import require
from nocap.judge.arms import choose_baseline, group
from nocap.judge.why import MEASURED, check_allowed, covers
from nocap.show.table import plural, shorten
from nocap.store.record import digest
from nocap.store.runs import Found, Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs whose losses measure the same."""

    id: str  # of what they measure: the same whatever other runs there are
    measured: Mapping[str, str]  # key of MEASURED → its value in every run
    records: list[Record]

    @property
    def size(self) -> tuple[int, int]:
        """Finished runs, then all."""
        return sum(record.status == "finished" for record in self.records), len(self.records)


def grouped(records: Sequence[Record], *, allow: Collection[str] = ()) -> list[Group]:
    """The largest first. What `allow` declares parts no runs."""
    keys = [key for key in MEASURED if not any(covers(allowed, key) for allowed in allow)]
    groups: dict[str, Group] = {}
    for record in records:
        measured = {key: MEASURED[key](record) for key in keys}
        name = digest(measured)[:6]
        groups.setdefault(name, Group(id=name, measured=measured, records=[])).records.append(record)
    return sorted(groups.values(), key=lambda one: one.size, reverse=True)


def one_of(found: Found, *, wanted: str | None = None, baseline: str | None = None, allow: Collection[str] = ()) -> Found:
    """The runs of one group: that with the id `wanted`, else the largest that has the baseline. A line names each group left out.

    Errors:
        ValueError: an unknown `allow` or group.
    """
    check_allowed(allow)
    groups = grouped(found.records, allow=allow)
    if wanted is not None:
        require(wanted in [one.id for one in groups], "--group", f"be one of {', '.join(one.id for one in groups)}", repr(wanted))
    suitable = [one for one in groups if (one.id == wanted if wanted else baseline is None or _has(one, baseline))]
    if len(groups) < 2:
        return found
    chosen = (suitable or groups)[0]
    left_out = [_left_out(one, chosen) for one in groups if one is not chosen]
    return replace(found, records=chosen.records, problems=[*found.problems, *left_out])


def _has(group_: Group, baseline: str) -> bool:
    try:
        choose_baseline(group(group_.records), baseline)
    except ValueError:
        return False
    return True


def _left_out(other: Group, chosen: Group) -> str:
    differ = [key for key, value in other.measured.items() if value != chosen.measured[key]]
    how = ", ".join(f"{key} is {other.measured[key]}, not {chosen.measured[key]}" for key in differ)
    names = shorten((record.folder.name for record in other.records), most=2)
    flags = " ".join(f"--allow {key}" for key in differ)
    return (
        f"{plural(len(other.records), 'run')} left out ({names}): {how}; the same command with --group {other.id} compares "
        f"{'them' if len(other.records) > 1 else 'it'}, with {flags} across the difference"
    )
