"""The local record of a run: the truth that trackers mirror and comparisons read.

`summary.json` carries the SHA-256 of the files it was made from, and of itself; every reader of records
checks them. Somebody who recomputes all of it is not caught.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nocap.config.bounded import parse_json, read_bytes, read_text
from nocap.config.keys import InputError, require
from nocap.config.outward import redact
from nocap.store import lease
from nocap.store.files import not_elsewhere, write_file

SCHEMA_VERSION = 1
ENDED = ("finished", "diverged")  # a non-finite loss is a result; a run that was cut short is none
MANIFEST, SUMMARY = "manifest.json", "summary.json"
# the key of the summary that holds the digests, and what they are of
SEAL, SEALED = "sha256", ("config.yaml", MANIFEST, "metrics.jsonl")

Json = dict[str, Any]
Row = Json
# a type; [shape], a list of such; {key: shape}, of which any key may be missing or null; {...: shape},
# whatever its keys
Shape = Any


class Whole(dict[Any, Any]):
    """The shape of an object that has all these keys; a null stands for a number only."""


def _each(shape: Shape, keys: str) -> dict[str, Shape]:
    return dict.fromkeys(keys.split(), shape)


_NUMBERS, _TEXTS = {...: float}, {...: str}
_HARDWARE = _each(str, "fingerprint name host malloc")
_ASKED = {"at": str, "seeds": [int], "place": int, "length_of": str}
_ATTEMPT = (
    _each(str, "started host grid")
    | _each(int, "devices threads")
    | {"spent_s": float, "swept": [str]}
    | {"asked": _ASKED}
)
_PARTS = {"config": dict, "source": _TEXTS, "data": str, "environment": dict, "init": dict, "teachers": dict}
_DATA = (
    _each([dict], "train val")
    | _each(str, "manifest val_bytes_reason")
    | _each(int, "vocab_size val_bytes")
    | {"source": dict}
)
# A file's name → what its keys hold, wherever it is read.
SHAPES: dict[str, Shape] = {
    "manifest.json": _each(str, "identity name arm")
    | {"schema_version": int, "parts": _PARTS, "data": _DATA, "hardware": _HARDWARE, "attempts": [_ATTEMPT]}
    | {
        "git": {"commit": str},
        "init": {"step": int},
        "teachers": {...: {"identity": str, "train_s": float}},
        "versions": _TEXTS,
        "options": _TEXTS,
        "defaults": _TEXTS,
        "declared": {...: [str]},
        "measured": [str],
        "outside": [_each(str, "group name sha256")],
        "imported": dict,
    },
    "summary.json": _each(str, "status identity name arm error tracker")
    | _each(int, "schema_version seed steps tokens val_step devices attempts")
    | _each(float, "val_loss val_bpb tokens_per_s token_us epoch_s mfu flops_per_token")
    | _each(_NUMBERS, "clock_s step_ms memory_mib params")
    | {"spikes": [int], "kernel": _TEXTS, "hardware": _HARDWARE, "data": {"manifest": str}, "sha256": _TEXTS},
    "grid.json": {"name": str, "cells": [_each(str, "identity run arm") | {"seed": int, "asked": _ASKED}]},
    "state.json": {"step": int, "run": str, "clock_s": _NUMBERS, "losses": [float], "optimizer": dict},
}
_WORDS = {
    str: "text",
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def digest(content: object) -> str:
    """Twelve hex digits of canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def write_json(path: Path, content: Mapping[str, Any], *, stage: Path | None = None) -> None:
    content = redact({"schema_version": SCHEMA_VERSION, **content})
    write_file(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode(), stage=stage)


def read_json(path: Path, shape: Shape | None = None) -> dict[str, Any] | None:
    """The object in the file, whose keys hold what the shape says, or `SHAPES` for a file of that name;
    `None` where there is no file.

    Errors:
        ValueError: the file is there and holds no JSON object, a key holds something else, or a newer nocap
            wrote it.
    """
    try:
        content: Json = parse_json(read_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must hold a JSON object: {error}") from error
    require(isinstance(content, dict), str(path), "hold a JSON object", type(content).__name__)
    named = SHAPES.get(path.name, dict)
    check_shape(content, named if shape is None else shape, path)
    check_shape(content, {"schema_version": int}, path)
    version = content.get("schema_version") or 0
    require(
        version <= SCHEMA_VERSION,
        f"{path}: schema_version",
        f"be at most {SCHEMA_VERSION} for this nocap",
        version,
    )
    return content


def check_shape(value: object, shape: Shape, path: Path, key: str = "") -> None:
    """Refuse a value of another type than `shape` has, by its key. A null is a value that was not measured.

    Errors:
        ValueError: it has another type.
    """
    kind = shape if isinstance(shape, type) else dict if isinstance(shape, dict) else list
    right = isinstance(value, int | float if kind is float else kind) and (
        kind is bool or not isinstance(value, bool)
    )
    if value is not None and not right:
        raise ValueError(f"{path}: {key or 'it'} must be {_WORDS[kind]}, got {str(value)[:80]!r}")
    if isinstance(shape, list) and isinstance(value, list):
        for number, element in enumerate(value):
            check_shape(element, shape[0], path, f"{key}[{number}]")
    elif isinstance(shape, dict) and isinstance(value, dict):
        for name in shape if isinstance(shape, Whole) else ():
            if name not in value or (value[name] is None and shape[name] not in (int, float)):
                raise ValueError(f"{path}: {key or 'it'} must have {name}")
        for name in value:
            if (inner := shape.get(name, shape.get(...))) is not None:
                check_shape(value[name], inner, path, f"{key}.{name}" if key else str(name))


def filled(content: Any, shape: Shape) -> Any:
    """The same with an empty object or list where one is missing or null: who reads it has no case for
    that."""
    if isinstance(shape, list):
        return [filled(item, shape[0]) for item in content or ()]
    if not isinstance(shape, dict):
        return content or {} if shape is dict else content
    nests = {
        key: inner
        for key, inner in shape.items()
        if key is not ... and (inner is dict or isinstance(inner, dict | list))
    }
    return {
        **(content or {}),
        **{key: filled((content or {}).get(key), inner) for key, inner in nests.items()},
    }


def read_rows(content: bytes) -> list[Row]:
    """The sound rows of a `metrics.jsonl`: objects of numbers and nulls and of a step. Lines that are none
    are left out: torn, foreign, or not after the row before."""
    rows = list[Row]()
    for line in content.splitlines():
        with suppress(AttributeError, KeyError, ValueError):
            row = parse_json(line.decode())
            numbers = all(value is None or type(value) in (int, float) for value in row.values())
            if numbers and type(row["step"]) is int and row["step"] > (rows[-1]["step"] if rows else -1):
                rows.append(row)
    return rows


class Metrics:
    """`metrics.jsonl`: one object a logged step, each step once. What this process put there it also knows by
    heart."""

    def __init__(self, path: Path, *, stage: Path | None = None) -> None:
        """`stage`: of the lease that its writer has."""
        self.path, self._stage = path, stage
        self._known: list[bytes] = []

    @property
    def content(self) -> bytes:
        """All rows that are to be in the file, as they are there."""
        return b"".join(self._known)

    def rows(self) -> list[Row]:
        """All sound rows of the file. A kill can tear the last line; it is left out, as is what somebody else
        put there."""
        return read_rows(self._read())

    def put_back(self, content: bytes, *, source: str) -> list[str]:
        """Make the file hold these rows and no more; a line where they were not in it as they should."""
        on_disk, self._known = self._read(), [content]
        if on_disk != content or self.path.is_symlink():
            write_file(self.path, content, stage=self._stage)
        return (
            []
            if on_disk.startswith(content)
            else [f"{self.path}: damaged; its rows are put back from {source}"]
        )

    def append(self, row: Row) -> None:
        """Add a row.

        Errors:
            LostError: another process writes them now.
            OSError: the disk does not take it; a part of the line may be there, which a reader leaves out.
        """
        line = (json.dumps(redact(row), allow_nan=False) + "\n").encode()
        lease.check(self._stage)
        try:
            with open(self.path, "ab", opener=not_elsewhere) as file:
                file.write(line)
        except OSError as error:
            raise OSError(
                f"the row of step {row['step']} cannot be written: {error}; training stopped there"
            ) from error
        self._known.append(line)

    def sync(self) -> None:
        """Rows so far survive a power cut."""
        if self.path.exists():
            with self.path.open("a") as file:
                os.fsync(file.fileno())

    def _read(self) -> bytes:
        try:
            return read_bytes(self.path)
        except FileNotFoundError:
            return b""
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path} must be a run's rows, got {error}") from error


# --- digests ------------------------------------------------------------------------------------------------


def write_summary(folder: Path, summary: Mapping[str, Any], *, stage: Path | None = None) -> None:
    """Write `summary.json` with the digests of all that it sums up."""
    content = redact({"schema_version": SCHEMA_VERSION, **summary})
    write_json(folder / SUMMARY, {**content, SEAL: _digests(folder, content)}, stage=stage)


def _digests(folder: Path, summary: Mapping[str, Any]) -> Json:
    """File → its SHA-256, the summary's own included; nothing where there is no such file."""
    own = json.dumps({key: value for key, value in summary.items() if key != SEAL}, sort_keys=True).encode()
    contents = {SUMMARY: own} | {
        name: read_bytes(path) for name in SEALED if (path := folder / name).exists()
    }
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def check_record(
    folder: Path, *, identity: str | None = None, config: Mapping[str, Any] | None = None
) -> tuple[Json, Json]:
    """Refuse a record that was changed, or is not of this identity. A run that has not ended may have no
    digest: then `config`, what counts of config.yaml, is compared with its manifest. Its manifest and its
    summary, or an empty one.

    Errors:
        InputError: that; the message names the file.
        ValueError: a file cannot be read.
    """
    manifest, summary = (read_json(folder / name) or {} for name in (MANIFEST, SUMMARY))
    own, parts = manifest.get("identity"), manifest.get("parts") or {}
    try:
        sums, seal = (_digests(folder, summary), summary.get(SEAL) or {}) if summary else ({}, {})
    except OSError as error:
        raise InputError(f"{folder}: a file cannot be read: {error}") from error
    named, made = re.search(r"-([0-9a-f]{12})$", folder.name), digest(parts)
    rules = [
        *(
            (sums.get(name) == seal.get(name), f"{name} is not what its digest in {SUMMARY} says")
            for name in (SUMMARY, *SEALED)
        ),
        (
            bool(summary) or config in (None, parts.get("config")),
            f"config.yaml is not the config of {MANIFEST}, with which it was trained",
        ),
        (bool(manifest), f"{MANIFEST} is missing"),
        # A secret, with which the digest was made, may have been redacted.
        (
            own == made or "<redacted:" in json.dumps(parts),
            f"{MANIFEST} has identity {own}, and its parts make {made}",
        ),
        (
            named is None or named[1] == own,
            f"{MANIFEST} has identity {own}, and the folder's name {named and named[1]}",
        ),
        (identity in (None, own), f"{MANIFEST} has identity {own}, and this run {identity}"),
    ]
    for holds, problem in rules:
        if not holds:
            raise InputError(f"{folder}: {problem}")
    return manifest, summary


def read_ended(folder: Path, *, identity: str | None = None) -> Json | None:
    """The summary of a run that has come to its end, which is of this identity; `None` where it has not.

    Errors:
        InputError: its record was changed.
        ValueError: a file cannot be read.
    """
    ended = (read_json(folder / SUMMARY) or {}).get("status") in ENDED
    return check_record(folder, identity=identity)[1] if ended else None
