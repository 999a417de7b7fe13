"""The files of a run's record: their names, what each may hold, and how they are written, read and
checked. They are the truth that trackers mirror and comparisons read.

`summary.json` carries the SHA-256 of the files it was made from, and of itself; every reader of
records checks them. Somebody who recomputes all of it is not caught.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from nocap.config.keys import InputError, require
from nocap.config.outgoing_text import redact
from nocap.config.untrusted_files import parse_json, read_bytes, read_text
from nocap.store.file_writing import write_file
from nocap.store.json_shapes import Json, Shape, check_shape

SCHEMA_VERSION = 1


class RunStatus(StrEnum):
    """How a run ended, as its summary has it; or why it has not, as a command tells it."""

    finished = "finished"
    preempted = "preempted"  # it was asked to stop, and has saved
    diverged = "diverged"
    failed = "failed"
    # no summary has one of these
    refused = "refused"  # its input is bad
    damaged = "damaged"  # its record was changed, and no checkpoint makes it again
    waiting = "waiting"  # it has not started, or another process trains it
    open = "open"  # a search's trial that has not ended
    unfinished = "not finished"  # it has no summary


# a non-finite loss is a result; a run that was cut short is none
ENDED = (RunStatus.finished, RunStatus.diverged)
CONFIG = "config.yaml"
MANIFEST = "manifest.json"
ROWS = "metrics.jsonl"
SUMMARY = "summary.json"
TRAIN_LOG = "train.log"
SEAL = "sha256"  # the key of the summary that holds the digests
SEALED = (CONFIG, MANIFEST, ROWS)  # what they are of


def _each(shape: Shape, keys: str) -> dict[str, Shape]:
    """Return this shape for each of the keys, which spaces part."""
    return dict.fromkeys(keys.split(), shape)


_NUMBERS = {...: float}
_TEXTS = {...: str}
_HARDWARE = _each(str, "fingerprint name host malloc")
# what a command asks of an arm, in a manifest and in the file of a grid
REQUEST = {"at": str, "seeds": [int], "place": int, "length_of": str}
_ATTEMPT = (
    _each(str, "started host grid")
    | _each(int, "devices threads")
    | {"spent_s": float, "swept": [str]}
    | {"asked": REQUEST}
)
_PARTS = {
    "config": dict,
    "source": _TEXTS,
    "data": str,
    "environment": dict,
    "init": dict,
    "teachers": dict,
}
_DATA = (
    _each([dict], "train val")
    | _each(str, "manifest val_bytes_reason")
    | _each(int, "vocab_size val_bytes")
    | {"source": dict}
)
# A file's name → what its keys hold, wherever it is read.
SHAPES: dict[str, Shape] = {
    MANIFEST: _each(str, "identity name arm")
    | {
        "schema_version": int,
        "parts": _PARTS,
        "data": _DATA,
        "hardware": _HARDWARE,
        "attempts": [_ATTEMPT],
    }
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
    SUMMARY: _each(str, "status identity name arm error tracker")
    | _each(int, "schema_version seed steps tokens val_step devices attempts")
    | _each(float, "val_loss val_bpb tokens_per_s token_us epoch_s mfu flops_per_token")
    | _each(_NUMBERS, "clock_s step_ms memory_mib params logged")
    | {
        "spikes": [int],
        "kernel": _TEXTS,
        "hardware": _HARDWARE,
        "data": {"manifest": str},
        "sha256": _TEXTS,
    },
}


def digest(content: object) -> str:
    """Return twelve hex digits of the SHA-256 of canonical JSON."""
    canonical = json.dumps(content, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def write_json(path: Path, content: Mapping[str, Any], *, stage: Path | None = None) -> None:
    """Write an object with the version of its schema, and without secrets."""
    content = redact({"schema_version": SCHEMA_VERSION, **content})
    text = json.dumps(content, indent=2, allow_nan=False)
    write_file(path, f"{text}\n".encode(), stage=stage)


def read_json(path: Path, shape: Shape | None = None) -> dict[str, Any] | None:
    """Read the object in the file, whose keys hold what the shape says, or `SHAPES` for a file of
    that name; None where there is no file.

    Errors:
        ValueError: the file is there and holds no JSON object, a key holds something else, or a
            newer nocap wrote it.
    """
    try:
        content: Json = parse_json(read_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must hold a JSON object: {error}") from error
    require(isinstance(content, dict), str(path), "hold a JSON object", type(content).__name__)
    if shape is None:
        shape = SHAPES.get(path.name, dict)
    check_shape(content, shape, path)
    check_shape(content, {"schema_version": int}, path)
    version = content.get("schema_version") or 0
    rule = (
        f"be at most {SCHEMA_VERSION} for this version of nocap (a newer version wrote the "
        "file: update nocap)"
    )
    require(version <= SCHEMA_VERSION, f"{path}: schema_version", rule, version)
    return content


# --- digests --------------------------------------------------------------------------------------


def write_summary(folder: Path, summary: Mapping[str, Any], *, stage: Path | None = None) -> None:
    """Write `summary.json` with the digests of all that it sums up."""
    content = redact({"schema_version": SCHEMA_VERSION, **summary})
    write_json(folder / SUMMARY, {**content, SEAL: _digests(folder, content)}, stage=stage)


def _digests(folder: Path, summary: Mapping[str, Any]) -> Json:
    """Return file → its SHA-256, the summary's own included; nothing where there is no such
    file."""
    unsealed = {key: value for key, value in summary.items() if key != SEAL}
    contents = {SUMMARY: json.dumps(unsealed, sort_keys=True).encode()}
    for name in SEALED:
        path = folder / name
        if path.exists():
            contents[name] = read_bytes(path)
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def check_record(
    folder: Path, *, identity: str | None = None, config: Mapping[str, Any] | None = None
) -> tuple[Json, Json]:
    """Refuse a record that was changed, or is not of this identity. A run that has not ended may
    have no digest: then `config`, what counts of config.yaml, is compared with its manifest. Return
    its manifest and its summary, or an empty one.

    Errors:
        InputError: that; the message names the file.
        ValueError: a file cannot be read.
    """
    manifest = read_json(folder / MANIFEST) or {}
    summary = read_json(folder / SUMMARY) or {}
    _refuse(folder, _problems(folder, manifest, summary, identity=identity, config=config))
    return manifest, summary


def _refuse(folder: Path, problems: Iterable[str]) -> None:
    """Refuse a record with a problem.

    Errors:
        InputError: the first of them.
    """
    for problem in problems:
        raise InputError(f"{folder}: {problem}")


def _problems(
    folder: Path,
    manifest: Json,
    summary: Json,
    *,
    identity: str | None,
    config: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Yield what is wrong with a record.

    Errors:
        InputError: a file of it cannot be read.
    """
    parts = manifest.get("parts") or {}
    if summary:
        yield from _changed(folder, summary)
    elif config is not None and config != parts.get("config"):
        yield f"config.yaml differs from the config in {MANIFEST}, with which the run was trained"
    if not manifest:
        yield f"{MANIFEST} is missing"
    own = manifest.get("identity")
    computed = digest(parts)
    # A secret, with which the digest was made, may have been redacted.
    if own != computed and "<redacted:" not in json.dumps(parts):
        yield f"{MANIFEST} has identity {own}, but its parts give {computed}"
    in_name = re.search(r"-([0-9a-f]{12})$", folder.name)
    if in_name is not None and in_name[1] != own:
        yield f"{MANIFEST} has identity {own}, but the folder's name has {in_name[1]}"
    if identity not in (None, own):
        yield f"{MANIFEST} has identity {own}, but this run has {identity}"


def _changed(folder: Path, summary: Json) -> Iterator[str]:
    """Yield what is wrong with the files that a summary has digests of.

    Errors:
        InputError: one cannot be read.
    """
    try:
        sums = _digests(folder, summary)
    except OSError as error:
        raise InputError(f"{folder}: nocap cannot read a file: {error}") from error
    seal = summary.get(SEAL) or {}
    for name in (SUMMARY, *SEALED):
        if sums.get(name) != seal.get(name):
            yield f"{name} does not match its digest in {SUMMARY}"


def read_ended(folder: Path, *, identity: str | None = None) -> Json | None:
    """Read the summary of a run that has come to its end, which is of this identity; None where it
    has not.

    Errors:
        InputError: its record was changed.
        ValueError: a file cannot be read.
    """
    summary = read_json(folder / SUMMARY) or {}
    if summary.get("status") not in ENDED:
        return None
    manifest = read_json(folder / MANIFEST) or {}
    _refuse(folder, _problems(folder, manifest, summary, identity=identity))
    return summary
