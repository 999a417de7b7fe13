"""Whether a record is what nocap wrote: its digest and its identity. Every reader of records comes through here.

`summary.json` carries the SHA-256 of the files it was made from, and of itself. Somebody who recomputes all of it is not caught.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nocap.config.bounded import read_bytes
from nocap.config.keys import InputError
from nocap.config.outward import redact
from nocap.store.files import write_file
from nocap.store.record import SCHEMA_VERSION, SHAPES, Row, check_shape, digest, read_json, read_rows

ENDED = ("finished", "diverged")  # a non-finite loss is a result; a run that was cut short is none
SUMMARY, SEAL = "summary.json", "sha256"  # the key of the summary that holds the digests
SEALED = ("config.yaml", "manifest.json", "metrics.jsonl")
Json = dict[str, Any]
QUANTILES = {"median": 50, "p10": 10, "p90": 90}


def from_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """What a summary takes from the rows alone."""
    val = [row for row in rows if "val/loss" in row] or [dict.fromkeys(("val/loss", "val/bpb", "step"))]
    step_ms = [row["perf/step_ms"] for row in rows if "perf/step_ms" in row]
    return {
        "val_loss": val[-1]["val/loss"],
        "val_bpb": val[-1].get("val/bpb"),
        "val_step": val[-1]["step"],
        "spikes": [row["step"] for row in rows if "train/spike" in row],
        "step_ms": {name: float(np.percentile(step_ms, q)) for name, q in QUANTILES.items()} if step_ms else None,
    }


def write_summary(folder: Path, summary: Mapping[str, Any], *, stage: Path | None = None) -> None:
    """Write `summary.json` with the digests of all that it sums up."""
    content = redact({"schema_version": SCHEMA_VERSION, **summary})
    check_shape(content, SHAPES[SUMMARY], folder / SUMMARY)
    sealed = {**content, SEAL: {**_digests(folder), SUMMARY: _own_digest(content)}}
    write_file(folder / SUMMARY, (json.dumps(sealed, indent=2, allow_nan=False) + "\n").encode(), stage=stage)


def _digests(folder: Path) -> dict[str, str]:
    """File → its SHA-256; nothing where there is no such file."""
    return {name: hashlib.sha256(read_bytes(path)).hexdigest() for name in SEALED if (path := folder / name).exists()}


def _own_digest(summary: Mapping[str, Any]) -> str:
    content = {key: value for key, value in summary.items() if key != SEAL}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """An ended run whose record is what nocap wrote."""

    summary: dict[str, Any]
    rows: list[Row]
    bad_lines: list[int]  # of metrics.jsonl: skipped
    content: str  # SHA-256 of metrics.jsonl


class DamagedError(InputError):
    """A record that is not what nocap wrote; the message names the file."""


def check(folder: Path, *, identity: str | None = None, config: Mapping[str, Any] | None = None) -> tuple[Json, Json]:
    """Refuse a record that was changed, or is not of this identity. A run that has not ended may have no digest: then `config`, what counts
    of config.yaml, is compared with its manifest. Its manifest and its summary, or an empty one.

    Errors:
        DamagedError: that; the message names the file.
        ValueError: a file cannot be read.
    """
    manifest, summary = read_json(folder / "manifest.json"), read_json(folder / SUMMARY) or {}
    if manifest is None:
        raise DamagedError(f"{folder / 'manifest.json'} is missing")
    if problem := next(_problems(folder, manifest, summary, identity, config), None):
        raise DamagedError(f"{folder}: {problem}")
    return manifest, summary


def read_ended(folder: Path, *, identity: str | None = None) -> Ended | None:
    """A run that has come to its end, which is of this identity; `None` where it has not.

    Errors:
        DamagedError: its record was changed.
        ValueError: a file cannot be read.
    """
    if (read_json(folder / SUMMARY) or {}).get("status") not in ENDED:
        return None
    _, summary = check(folder, identity=identity)
    content = read_bytes(folder / "metrics.jsonl")
    rows, bad = read_rows(content)
    return Ended(summary=summary, rows=rows, bad_lines=bad, content=hashlib.sha256(content).hexdigest())


def _problems(folder: Path, manifest: Json, summary: Json, identity: str | None, config: Mapping[str, Any] | None) -> Iterator[str]:
    own, parts = manifest.get("identity"), manifest.get("parts") or {}
    if summary:
        if not (seal := summary.get(SEAL)):
            yield f"{SUMMARY} has no digest"
            return
        try:
            found = {**_digests(folder), SUMMARY: _own_digest(summary)}
        except (OSError, ValueError) as error:
            yield f"a file cannot be read: {error}"
            return
        yield from (f"{name} is not what its digest in {SUMMARY} says" for name in (*SEALED, SUMMARY) if found.get(name) != seal.get(name))
    elif config not in (None, parts.get("config")):
        yield "config.yaml is not the config of manifest.json, with which it was trained"
    hidden = "<redacted:" in json.dumps(parts)  # a secret, which the digest was made with
    if not isinstance(parts.get("config"), dict) or (own != digest(parts) and not hidden):
        yield f"manifest.json has identity {own}, and its parts make {digest(parts)}"
    named = re.search(r"-([0-9a-f]{12})$", folder.name)
    for place, other in ((SUMMARY, summary.get("identity")), ("the folder's name", named and named[1]), ("this run", identity)):
        if other not in (None, own):
            yield f"manifest.json has identity {own}, and {place} {other}"
