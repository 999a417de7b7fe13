"""The difference of two profiles that were written as JSON, part by part: what changed. No torch.

Milliseconds are compared where both are of the same machine, device, precision and threads;
elsewhere the comparison is refused, with what arithmetic counted in both, which does not depend on
a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.display import count
from nocap.measure.profile_file import Figure, ProfileSide, sides
from nocap.measure.profile_groups import RowKey
from nocap.measure.subject import SubjectKind

# Keys that no measured time depends on; and those that a text's own facts stand for.
_QUIET = ("output_dir", "cache_dir", "tracker")
_TEXT = ("trainer.batch_tokens", "trainer.micro_batch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The time of a group or a row before and after; None: it was not there."""

    place: RowKey
    before: Figure | None
    after: Figure | None

    @property
    def ms(self) -> float:
        """Return how much longer it takes."""
        return _ms(self.after) - _ms(self.before)

    @property
    def ratio(self) -> float | None:
        """Return how many times as long it takes."""
        if not self.before or not self.after or not self.before.ms:
            return None
        return self.after.ms / self.before.ms

    def json(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        before = self.before
        after = self.after
        return {
            "group": self.place.group,
            "part": self.place.part or None,
            "detail": self.place.detail,
            "before_ms": before and before.ms,
            "before_share": before and before.share,
            "after_ms": after and after.ms,
            "after_share": after and after.share,
            "ms": self.ms,
            "ratio": self.ratio,
        }


def _ms(figure: Figure | None) -> float:
    if figure is None:
        return 0.0
    return figure.ms


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileDifference:
    """The changes from one profile to another, the largest first."""

    before: ProfileSide
    after: ProfileSide
    # key → both values, where they differ; None: there is no such key
    config: Mapping[str, tuple[Any, Any]]
    groups: Sequence[Change]
    rows: Sequence[Change]

    @property
    def of(self) -> SubjectKind:
        """Return what both are profiles of."""
        return self.before.of

    @property
    def ratio(self) -> float:
        """Return how many times as long the whole takes."""
        return self.after.ms / self.before.ms

    @property
    def ratio_per_token(self) -> float:
        """Return how many times as long a token takes."""
        return self.ratio * self.before.tokens / self.after.tokens

    @property
    def drift(self) -> Mapping[str, float]:
        """Return how many times as much the machine could do, the second time: what is known of its
        own change."""
        ratios = {}
        for name, before in self.before.roof.items():
            after = self.after.roof.get(name)
            if after is not None:
                ratios[name] = after / before
        return ratios

    def json(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        config = []
        for key, (before, after) in self.config.items():
            config.append({"key": key, "before": before, "after": after})
        return {
            "of": self.of.value,
            "before": self.before.json(),
            "after": self.after.json(),
            "ratio": self.ratio,
            "ratio_per_token": self.ratio_per_token,
            "drift": dict(self.drift),
            "config": config,
            "groups": [change.json() for change in self.groups],
            "rows": [change.json() for change in self.rows],
        }


def differences(first: Path, second: Path) -> list[ProfileDifference]:
    """Compare two files that `nocap.profile --json` wrote: one difference, or where text was
    generated one of the prompt and one of a token.

    Errors:
        ValueError: a file is none of these, or their times do not compare.
    """
    before = sides(first)
    after = sides(second)
    first_of = " and ".join(side.of.title for side in before)
    second_of = " and ".join(side.of.title for side in after)
    name = f"{first} and {second}"
    if first_of != second_of:
        raise ValueError(
            f"{name} must be profiles of the same kind, got {first_of}, and {second_of}"
        )
    return [_difference(*pair) for pair in zip(before, after, strict=True)]


# --- comparing ------------------------------------------------------------------------------------


def _difference(before: ProfileSide, after: ProfileSide) -> ProfileDifference:
    _refuse(before, after)
    quiet = (*_QUIET, *_TEXT) if before.of.generates else _QUIET
    config = dict[str, tuple[Any, Any]]()
    for key in dict.fromkeys([*before.config, *after.config]):
        first = before.config.get(key)
        second = after.config.get(key)
        if first != second and not key.startswith(quiet):
            config[key] = (first, second)
    for key in dict.fromkeys([*before.text, *after.text]):
        first = before.text.get(key)
        second = after.text.get(key)
        if first != second:
            config[key] = (first, second)
    if before.hardware.torch != after.hardware.torch:
        config["torch"] = (before.hardware.torch, after.hardware.torch)
    before_groups = _as_rows(before.groups)
    after_groups = _as_rows(after.groups)
    before_rows, after_rows = _alike(before.rows, after.rows)
    return ProfileDifference(
        before=before,
        after=after,
        config=config,
        groups=_sorted(_changes(before_groups, after_groups)),
        rows=_sorted(_changes(before_rows, after_rows)),
    )


def _refuse(before: ProfileSide, after: ProfileSide) -> None:
    """Refuse profiles whose times do not compare, and say what does.

    Errors:
        ValueError: that, in two lines.
    """
    facts: dict[str, tuple[Any, Any]] = {
        "device": (before.hardware.device, after.hardware.device),
        "machine": (_machine(before), _machine(after)),
        "trainer.precision": (before.precision, after.precision),
        "trainer.threads": (before.hardware.threads, after.hardware.threads),
    }
    for name, (first, second) in facts.items():
        if first != second:
            raise ValueError(
                f"{before.path} and {after.path} must have the same {name}, got {first} and "
                f"{second}: their times cannot be compared\n{_counted(before, after)}"
            )


def _machine(side: ProfileSide) -> str:
    hardware = side.hardware
    kind = f" ({hardware.cpu_kind})" if hardware.cpu_kind else ""
    return f"{hardware.name}{kind} on {hardware.host}"


def _counted(before: ProfileSide, after: ProfileSide) -> str:
    """Say what arithmetic says of both, which no machine changes."""
    figures = list[str]()
    both = [
        ("FLOPs a token", before.flops_per_token, after.flops_per_token),
        (f"FLOPs a {before.of.title}", before.flops, after.flops),
        (f"tokens a {before.of.title}", before.tokens, after.tokens),
    ]
    if before.precision == after.precision:
        both.append((f"bytes moved a {before.of.title}", before.bytes, after.bytes))
    for name, first, second in both:
        if not first or not second:
            continue
        ratio = second / first
        figures.append(f"{name} {count(first)} and {count(second)} ({ratio:.3f}×)")
    return f"the counts of both sides: {', '.join(figures)}"


def _as_rows(groups: Mapping[str, Figure]) -> dict[RowKey, Figure]:
    return {RowKey(group=name, part="", detail=None): figure for name, figure in groups.items()}


def _alike(
    before: Mapping[RowKey, Figure], after: Mapping[RowKey, Figure]
) -> tuple[dict[RowKey, Figure], dict[RowKey, Figure]]:
    """Return the rows of both. A part is one row where its details are others, as those of another
    kernel are."""
    parts_before = {_part(place) for place in before}
    parts_after = {_part(place) for place in after}
    differing = {_part(place) for place in before.keys() ^ after.keys()}
    parts = differing & parts_before & parts_after
    return _merged(before, parts), _merged(after, parts)


def _part(place: RowKey) -> RowKey:
    return RowKey(group=place.group, part=place.part, detail=None)


def _merged(rows: Mapping[RowKey, Figure], parts: set[RowKey]) -> dict[RowKey, Figure]:
    merged = dict[RowKey, Figure]()
    for place, figure in rows.items():
        part = _part(place)
        to = part if part in parts else place
        known = merged.get(to)
        if known is not None:
            ms = known.ms + figure.ms
            figure = Figure(ms=ms, share=known.share + figure.share)
        merged[to] = figure
    return merged


def _changes(before: Mapping[RowKey, Figure], after: Mapping[RowKey, Figure]) -> Iterator[Change]:
    for place in dict.fromkeys([*before, *after]):
        yield Change(place=place, before=before.get(place), after=after.get(place))


def _sorted(changes: Iterator[Change]) -> list[Change]:
    return sorted(changes, key=lambda change: -abs(change.ms))
