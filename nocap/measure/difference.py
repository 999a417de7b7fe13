"""Two profiles that were written as JSON, part by part: what changed. No torch.

Milliseconds are compared where both are of the same machine, device, precision and threads; elsewhere the
comparison is refused, with what arithmetic counted in both, which does not depend on a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.keys import flat, require
from nocap.measure.subject import Of
from nocap.store.formats import count
from nocap.store.record import Whole, check_shape, read_json

Json = Mapping[str, Any]

_FIGURES = {"ms": float, "share": float}
_PROFILE = Whole(
    {
        "of": str,
        "words": [str],
        "config_dirs": [str],
        "config": dict,
        "tokens": int,
        "flops_per_token": float,
        "trusted": bool,
        "kernel": str,
        "step": Whole({"ms": float}),
        "roof": Whole({"flops": {...: float}, "bytes_per_s": float}),
        "hardware": Whole(
            dict.fromkeys(("device", "name", "cpu_kind", "host", "torch"), str) | {"threads": int}
        ),
        "groups": [Whole({"group": str, **_FIGURES, "parts": [Whole({"part": str, **_FIGURES})]})],
        "parts": [Whole({"part": str, "flops": float, "bytes": float})],
    }
)
# Keys that no measured time depends on; and those that a text's own facts stand for.
_QUIET = ("output_dir", "cache_dir", "tracker")
_TEXT = ("trainer.batch_tokens", "trainer.micro_batch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A row of a profile: where it stands."""

    group: str
    part: str
    detail: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    ms: float
    share: float  # of the whole


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileSide:
    """One of the two, as it was read."""

    path: Path
    of: Of
    words: Sequence[str]
    config_dirs: Sequence[str]
    config: Mapping[str, Any]  # flat
    text: Mapping[str, Any]  # of what is generated
    hardware: Mapping[str, Any]
    kernel: str
    roof: Mapping[str, float]  # what the machine could do: its products by precision, and its copies
    tokens: int
    ms: float
    trusted: bool
    flops_per_token: float | None
    flops: float
    bytes: float
    groups: Mapping[str, Figure]
    rows: Mapping[Place, Figure]

    @property
    def precision(self) -> str:
        return str(self.config["trainer.precision"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a group or a row took before and after; None: it was not there."""

    place: Place
    before: Figure | None
    after: Figure | None

    @property
    def ms(self) -> float:
        return _ms(self.after) - _ms(self.before)

    @property
    def ratio(self) -> float | None:
        """Times as long."""
        return self.after.ms / self.before.ms if self.after and self.before and self.before.ms else None

    def json(self) -> dict[str, Any]:
        sides = {"before": self.before, "after": self.after}
        figures = {
            f"{side}_{name}": getattr(figure, name) if figure else None
            for side, figure in sides.items()
            for name in ("ms", "share")
        }
        place = {"group": self.place.group, "part": self.place.part or None, "detail": self.place.detail}
        return {**place, **figures, "ms": self.ms, "ratio": self.ratio}


def _ms(figure: Figure | None) -> float:
    return figure.ms if figure else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileDifference:
    """What changed from one profile to another, the largest change first."""

    before: ProfileSide
    after: ProfileSide
    config: Mapping[str, tuple[Any, Any]]  # key → both values, where they differ; None: there is no such key
    groups: Sequence[Change]
    rows: Sequence[Change]

    @property
    def of(self) -> Of:
        return self.before.of

    @property
    def ratio(self) -> float:
        """Of the whole: times as long."""
        return self.after.ms / self.before.ms

    @property
    def ratio_per_token(self) -> float:
        return self.ratio * self.before.tokens / self.after.tokens

    @property
    def drift(self) -> Mapping[str, float]:
        """How many times as much the machine could do, the second time: what is known of its own change."""
        return {name: self.after.roof[name] / each for name, each in self.before.roof.items()}

    def json(self) -> dict[str, Any]:
        sides = {"before": self.before, "after": self.after}
        return {
            "of": self.of.value,
            **{
                name: {
                    "path": str(side.path),
                    "words": list(side.words),
                    "ms": side.ms,
                    "tokens": side.tokens,
                    "kernel": side.kernel,
                    "trusted": side.trusted,
                }
                for name, side in sides.items()
            },
            "ratio": self.ratio,
            "ratio_per_token": self.ratio_per_token,
            "drift": dict(self.drift),
            "config": [{"key": key, "before": a, "after": b} for key, (a, b) in self.config.items()],
            "groups": [change.json() for change in self.groups],
            "rows": [change.json() for change in self.rows],
        }


# --- reading ------------------------------------------------------------------------------------------------


def differences(first: Path, second: Path) -> list[ProfileDifference]:
    """Compare two files that `nocap.profile --json` wrote: one difference, or where text was generated one of
    the prompt and one of a token.

    Errors:
        ValueError: a file is none of these, or their times do not compare.
    """
    before = sides(first)
    after = sides(second)
    ofs = [" and ".join(side.of.title for side in each) for each in (before, after)]
    require(ofs[0] == ofs[1], f"{first} and {second}", "be profiles of the same", f"{ofs[0]}, and {ofs[1]}")
    return [_difference(*pair) for pair in zip(before, after, strict=True)]


def sides(path: Path) -> list[ProfileSide]:
    """Read a file of `nocap.profile --json`.

    Errors:
        ValueError: it is none.
    """
    content = read_json(path)
    require(content is not None, str(path), "be a file that nocap.profile --json wrote", "no file")
    assert content is not None
    kind = content.get("kind")
    require(kind == "profile", str(path), "be what nocap.profile --json wrote", f"kind {kind!r}")
    of = content.get("of")
    require(of is not None, str(path), "have subtotals: profile again", "a profile of an older nocap")
    if of != GENERATE:
        return [_side(path, content, of)]
    rule = f"have {Of.prefill.value} and {Of.token.value}"
    both = [(each.value, content.get(each.value)) for each in (Of.prefill, Of.token)]
    for name, inner in both:
        require(isinstance(inner, dict), str(path), rule, f"no {name}")
    return [_side(path, inner, name) for name, inner in both if inner is not None]


GENERATE = "generate"  # `of` in a file with a profile of the prompt, and one of a token


def _side(path: Path, content: dict[str, Any], of: object) -> ProfileSide:
    check_shape(content, _PROFILE, path)
    known = [each.value for each in Of]
    require(of in known and content["of"] == of, f"{path}: of", f"be one of {', '.join(known)}", repr(of))
    config = dict(flat(content["config"]))
    require("trainer.precision" in config, f"{path}: config", "have trainer.precision", "none")
    for key, value in (("step.ms", content["step"]["ms"]), ("tokens", content["tokens"])):
        require(value is not None and value > 0, f"{path}: {key}", "be above 0", value)
    groups = dict[str, Figure]()
    rows = dict[Place, Figure]()
    for group in content["groups"]:
        groups[group["group"]] = _figure(path, group)
        for row in group["parts"]:
            detail = row.get("detail")
            require(detail is None or isinstance(detail, str), f"{path}: detail", "be text or null", detail)
            place = Place(group=group["group"], part=row["part"], detail=detail)
            rows[place] = _figure(path, row)
    roof = {**content["roof"]["flops"], "copy": content["roof"]["bytes_per_s"]}
    for name, each in roof.items():
        require(each is not None and each > 0, f"{path}: roof.{name}", "be above 0", each)
    return ProfileSide(
        path=path,
        of=Of(content["of"]),
        words=content["words"],
        config_dirs=content["config_dirs"],
        config=config,
        text=content.get("text") or {},
        hardware=content["hardware"],
        kernel=content["kernel"],
        roof=roof,
        tokens=content["tokens"],
        ms=content["step"]["ms"],
        trusted=bool(content["trusted"]),
        flops_per_token=content["flops_per_token"],
        flops=sum(row["flops"] or 0.0 for row in content["parts"]),
        bytes=sum(row["bytes"] or 0.0 for row in content["parts"]),
        groups=groups,
        rows=rows,
    )


def _figure(path: Path, row: Json) -> Figure:
    for key in ("ms", "share"):
        value = row[key]
        require(value is not None and value >= 0, f"{path}: groups.{key}", "be 0 or more", value)
    return Figure(ms=row["ms"], share=row["share"])


# --- comparing ----------------------------------------------------------------------------------------------


def _difference(before: ProfileSide, after: ProfileSide) -> ProfileDifference:
    _refuse(before, after)
    quiet = (*_QUIET, *_TEXT) if before.of.generates else _QUIET
    config = dict[str, tuple[Any, Any]]()
    for key in dict.fromkeys([*before.config, *after.config]):
        values = before.config.get(key), after.config.get(key)
        if values[0] != values[1] and not key.startswith(quiet):
            config[key] = values
    for key in dict.fromkeys([*before.text, *after.text]):
        if before.text.get(key) != after.text.get(key):
            config[key] = before.text.get(key), after.text.get(key)
    if before.hardware["torch"] != after.hardware["torch"]:
        config["torch"] = before.hardware["torch"], after.hardware["torch"]
    return ProfileDifference(
        before=before,
        after=after,
        config=config,
        groups=_sorted(_changes(_as_rows(before.groups), _as_rows(after.groups))),
        rows=_sorted(_changes(*_alike(before.rows, after.rows))),
    )


def _refuse(before: ProfileSide, after: ProfileSide) -> None:
    """Refuse profiles whose times do not compare, and say what does.

    Errors:
        ValueError: that, in two lines.
    """
    facts: dict[str, tuple[Any, Any]] = {
        "device": (before.hardware["device"], after.hardware["device"]),
        "machine": (_machine(before), _machine(after)),
        "trainer.precision": (before.precision, after.precision),
        "trainer.threads": (before.hardware["threads"], after.hardware["threads"]),
    }
    for name, (first, second) in facts.items():
        if first != second:
            raise ValueError(
                f"{before.path} and {after.path} must be of the same {name}, got {first} and {second}: "
                f"their times do not compare\n{_counted(before, after)}"
            )


def _machine(side: ProfileSide) -> str:
    hard = side.hardware
    kind = f" ({hard['cpu_kind']})" if hard["cpu_kind"] else ""
    return f"{hard['name']}{kind} on {hard['host']}"


def _counted(before: ProfileSide, after: ProfileSide) -> str:
    """What arithmetic says of both, which no machine changes."""
    told = list[str]()
    both = [
        ("FLOPs a token", before.flops_per_token, after.flops_per_token),
        (f"FLOPs a {before.of.title}", before.flops, after.flops),
        (f"tokens a {before.of.title}", before.tokens, after.tokens),
    ]
    if before.precision == after.precision:
        both.append((f"bytes moved a {before.of.title}", before.bytes, after.bytes))
    for name, first, second in both:
        if first and second:
            told.append(f"{name} {count(first)} and {count(second)} ({second / first:.3f}×)")
    return f"what was counted does: {', '.join(told)}"


def _as_rows(groups: Mapping[str, Figure]) -> dict[Place, Figure]:
    return {Place(group=name, part="", detail=None): figure for name, figure in groups.items()}


def _alike(
    before: Mapping[Place, Figure], after: Mapping[Place, Figure]
) -> tuple[dict[Place, Figure], dict[Place, Figure]]:
    """The rows of both, a part whole where its details are others, as those of another kernel are."""
    whole = {_part(place) for place in before.keys() ^ after.keys()}
    both = {_part(place) for place in before} & {_part(place) for place in after}
    return _merged(before, whole & both), _merged(after, whole & both)


def _part(place: Place) -> Place:
    return Place(group=place.group, part=place.part, detail=None)


def _merged(rows: Mapping[Place, Figure], whole: set[Place]) -> dict[Place, Figure]:
    merged = dict[Place, Figure]()
    for place, figure in rows.items():
        part = _part(place)
        to = part if part in whole else place
        known = merged.get(to, Figure(ms=0.0, share=0.0))
        merged[to] = Figure(ms=known.ms + figure.ms, share=known.share + figure.share)
    return merged


def _changes(before: Mapping[Place, Figure], after: Mapping[Place, Figure]) -> Iterator[Change]:
    for place in dict.fromkeys([*before, *after]):
        yield Change(place=place, before=before.get(place), after=after.get(place))


def _sorted(changes: Iterator[Change]) -> list[Change]:
    return sorted(changes, key=lambda change: -abs(change.ms))
