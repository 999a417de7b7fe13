"""The file of a profile: write what `nocap.profile --json` measured, and read it again.

No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from nocap.config.keys import flat, require
from nocap.measure.profile_groups import RowKey
from nocap.measure.profile_schema import (
    KIND,
    GroupJson,
    HardwareJson,
    LeafJson,
    ProfileFile,
    TextFile,
)
from nocap.measure.subject import SubjectKind
from nocap.store.record_files import read_json

GENERATE = "generate"  # `of` in a file with a profile of the prompt, and one of a token
RULE = "a file that nocap.profile --json wrote"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """The time of a row, or of a group."""

    ms: float
    share: float  # of the whole


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileSide:
    """A profile of the two, as its file has it."""

    path: Path
    of: SubjectKind
    words: Sequence[str]
    config_dirs: Sequence[str]
    config: Mapping[str, Any]  # flat
    text: Mapping[str, Any]  # of what is generated
    hardware: HardwareJson
    kernel: str
    # what the machine could do: its products by precision, and its copies
    roof: Mapping[str, float]
    tokens: int
    ms: float
    trusted: bool
    flops_per_token: float | None
    flops: float
    bytes: float
    groups: Mapping[str, Figure]
    rows: Mapping[RowKey, Figure]

    @property
    def precision(self) -> str:
        """Return the precision of training."""
        return str(self.config["trainer.precision"])

    def json(self) -> dict[str, Any]:
        """Return what a difference says of it."""
        return {
            "path": str(self.path),
            "words": list(self.words),
            "ms": self.ms,
            "tokens": self.tokens,
            "kernel": self.kernel,
            "trusted": self.trusted,
        }


def written(files: Mapping[str, ProfileFile]) -> dict[str, Any]:
    """Return what --json writes, of a profile or of both parts of a text."""
    if len(files) == 1:
        (file,) = files.values()
        return dict(msgspec.to_builtins(file))
    both = TextFile(prefill=files[SubjectKind.prefill.value], token=files[SubjectKind.token.value])
    return dict(msgspec.to_builtins(both))


def sides(path: Path) -> list[ProfileSide]:
    """Read a file of `nocap.profile --json`.

    Errors:
        ValueError: it is none.
    """
    content = read_json(path)
    require(content is not None, str(path), f"be {RULE}", "no file")
    assert content is not None
    kind = content.get("kind")
    require(kind == KIND, str(path), f"be {RULE}", f"kind {kind!r}")
    of = content.get("of")
    rule = "have subtotals (measure the profile again)"
    require(of is not None, str(path), rule, "a profile of an older nocap")
    try:
        if of == GENERATE:
            text = msgspec.convert(content, TextFile)
            prefill = _side(path, text.prefill, SubjectKind.prefill)
            token = _side(path, text.token, SubjectKind.token)
            return [prefill, token]
        file = msgspec.convert(content, ProfileFile)
        return [_side(path, file, file.of)]
    except msgspec.ValidationError as error:
        raise ValueError(f"{path} must be {RULE}, got {error}") from error


def _side(path: Path, file: ProfileFile, of: SubjectKind) -> ProfileSide:
    require(file.of is of, f"{path}: {of.value}.of", f"be {of.value}", file.of.value)
    config = dict(flat(file.config))
    require("trainer.precision" in config, f"{path}: config", "have trainer.precision", "none")
    groups = dict[str, Figure]()
    rows = dict[RowKey, Figure]()
    for group in file.groups:
        groups[group.group] = _figure(group)
        for leaf in group.parts:
            place = RowKey(group=group.group, part=leaf.part, detail=leaf.detail)
            rows[place] = _figure(leaf)
    text: dict[str, Any] = {}
    if file.text:
        text = msgspec.structs.asdict(file.text)
    return ProfileSide(
        path=path,
        of=file.of,
        words=file.words,
        config_dirs=file.config_dirs,
        config=config,
        text=text,
        hardware=file.hardware,
        kernel=file.kernel,
        roof={**file.roof.flops, "copy": file.roof.bytes_per_s},
        tokens=file.tokens,
        ms=file.step.ms,
        trusted=file.trusted,
        flops_per_token=file.flops_per_token,
        flops=sum(part.flops for part in file.parts),
        bytes=sum(part.bytes for part in file.parts),
        groups=groups,
        rows=rows,
    )


def _figure(row: GroupJson | LeafJson) -> Figure:
    return Figure(ms=row.ms, share=row.share)
