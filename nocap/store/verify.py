"""Whether a record is what nocap wrote: its digest and its identity. Every reader of records comes through here.

`summary.json` carries the SHA-256 of the files it was made from, and of itself. Somebody who recomputes all of it is not caught.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nocap.config.bounded import read_bytes
from nocap.config.keys import InputError
from nocap.config.outward import redact
from nocap.store.files import write_file
from nocap.store.record import SCHEMA_VERSION, digest, read_json

ENDED = ("finished", "diverged")  # a non-finite loss is a result; a run that was cut short is none
SUMMARY, SEAL = "summary.json", "sha256"  # the key of the summary that holds the digests
SEALED = ("config.yaml", "manifest.json", "metrics.jsonl")
Json = dict[str, Any]


def write_summary(folder: Path, summary: Mapping[str, Any], *, stage: Path | None = None) -> None:
    """Write `summary.json` with the digests of all that it sums up."""
    content = redact({"schema_version": SCHEMA_VERSION, **summary})
    sealed = {**content, SEAL: _digests(folder, content)}
    write_file(folder / SUMMARY, (json.dumps(sealed, indent=2, allow_nan=False) + "\n").encode(), stage=stage)


def _digests(folder: Path, summary: Mapping[str, Any]) -> dict[str, str]:
    """File → its SHA-256, the summary's own included; nothing where there is no such file."""
    own = json.dumps({key: value for key, value in summary.items() if key != SEAL}, sort_keys=True).encode()
    contents = {SUMMARY: own} | {name: read_bytes(path) for name in SEALED if (path := folder / name).exists()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def check(folder: Path, *, identity: str | None = None, config: Mapping[str, Any] | None = None) -> tuple[Json, Json]:
    """Refuse a record that was changed, or is not of this identity. A run that has not ended may have no digest: then `config`, what counts
    of config.yaml, is compared with its manifest. Its manifest and its summary, or an empty one.

    Errors:
        InputError: that; the message names the file.
        ValueError: a file cannot be read.
    """
    manifest, summary = (read_json(folder / name) or {} for name in ("manifest.json", SUMMARY))
    own, parts = manifest.get("identity"), manifest.get("parts") or {}
    try:
        sums, seal = (_digests(folder, summary), summary.get(SEAL) or {}) if summary else ({}, {})
    except OSError as error:
        raise InputError(f"{folder}: a file cannot be read: {error}") from error
    problems = [f"{name} is not what its digest in {SUMMARY} says" for name in (SUMMARY, *SEALED) if sums.get(name) != seal.get(name)]
    if not summary and config not in (None, parts.get("config")):
        problems.append("config.yaml is not the config of manifest.json, with which it was trained")
    if own != digest(parts) and "<redacted:" not in json.dumps(parts):  # a secret, with which the digest was made
        problems.append(f"manifest.json has identity {own}, and its parts make {digest(parts)}" if manifest else "manifest.json is missing")
    named = re.search(r"-([0-9a-f]{12})$", folder.name)
    for place, other in (("the folder's name", named and named[1]), ("this run", identity)):
        if other not in (None, own):
            problems.append(f"manifest.json has identity {own}, and {place} {other}")
    if problems:
        raise InputError(f"{folder}: {problems[0]}")
    return manifest, summary


def read_ended(folder: Path, *, identity: str | None = None) -> Json | None:
    """The summary of a run that has come to its end, which is of this identity; `None` where it has not.

    Errors:
        InputError: its record was changed.
        ValueError: a file cannot be read.
    """
    ended = (read_json(folder / SUMMARY) or {}).get("status") in ENDED
    return check(folder, identity=identity)[1] if ended else None
