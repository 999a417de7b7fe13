"""Whether the record of an ended run is what nocap wrote: its digest, its rows against its summary, its identity.

`summary.json` carries the SHA-256 of the files it was made from, and of itself. A record from before that is checked as far as its
files speak of each other, and counts as unverified. Somebody who recomputes all of it is not caught.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nocap.config.bounded import JSON_BYTES, read_bytes
from nocap.config.keys import InputError
from nocap.config.outward import redact
from nocap.store.files import write_file
from nocap.store.record import SCHEMA_VERSION, SHAPES, Row, check_shape, digest, read_json, read_rows

ENDED = ("finished", "diverged")  # a non-finite loss is a result; a run that was cut short is none
SUMMARY, SEAL = "summary.json", "sha256"  # the key of the summary that holds the digests
SEALED = ("config.yaml", "manifest.json", "metrics.jsonl")
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
    return {name: hashlib.sha256(read_bytes(path, JSON_BYTES)).hexdigest() for name in SEALED if (path := folder / name).exists()}


def _own_digest(summary: Mapping[str, Any]) -> str:
    content = {key: value for key, value in summary.items() if key != SEAL}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """An ended run whose record is consistent."""

    summary: dict[str, Any]
    rows: list[Row]
    bad_lines: list[int]  # of metrics.jsonl: skipped
    content: str  # SHA-256 of metrics.jsonl
    verified: bool  # by a digest


class DamagedError(InputError):
    """A record that contradicts itself."""


def check(folder: Path, *, config: Mapping[str, Any] | None = None) -> None:
    """Refuse a record that is not what nocap wrote. Of a run without digests, as one that has not ended, the
    manifest must have made its own identity, and `config`, what counts of config.yaml, be the manifest's.

    Errors:
        DamagedError: its files contradict each other or a digest; the message names them.
        ValueError: a file cannot be read.
    """
    ended = read_ended(folder)
    manifest, summary = (read_json(folder / name) or {} for name in ("manifest.json", SUMMARY))
    same_config = any(
        (config is None, ended and ended.verified, config == (manifest.get("parts") or {}).get("config")),
    )
    same_summary = (summary.get(SEAL) or {}).get(SUMMARY) in (None, _own_digest(summary))
    problems = [
        *_identity_problems(folder, manifest, summary, None),
        *([] if same_config else ["config.yaml is not the config of manifest.json, with which it was trained"]),
        *([] if same_summary else [f"{SUMMARY} is not what its own digest says"]),
    ]
    if problems:
        raise DamagedError(f"{folder}: {problems[0]}")


def read_ended(folder: Path, *, identity: str | None = None) -> Ended | None:
    """A run that has come to its end, which is of this identity; `None` where it has not.

    Errors:
        DamagedError: it claims to have ended, and its files say something else; the message names them.
        ValueError: a file cannot be read.
    """
    summary = read_json(folder / SUMMARY)
    if summary is None or summary.get("status") not in ENDED:
        return None
    manifest = read_json(folder / "manifest.json")
    if manifest is None:
        raise DamagedError(f"{folder / 'manifest.json'} is missing")
    try:
        content = read_bytes(folder / "metrics.jsonl", JSON_BYTES)
    except FileNotFoundError:
        content = b""
    except (OSError, ValueError) as error:
        raise DamagedError(f"{folder / 'metrics.jsonl'} cannot be read: {error}") from error
    rows, bad = read_rows(content)
    if problem := next(_problems(folder, manifest, summary, rows, identity), None):
        raise DamagedError(f"{folder}: {problem}")
    return Ended(summary=summary, rows=rows, bad_lines=bad, content=hashlib.sha256(content).hexdigest(), verified=SEAL in summary)


def _problems(
    folder: Path, manifest: Mapping[str, Any], summary: Mapping[str, Any], rows: Sequence[Row], identity: str | None
) -> Iterator[str]:
    if seal := summary.get(SEAL):
        found = {**_digests(folder), SUMMARY: _own_digest(summary)}
        yield from (f"{name} is not what its digest in {SUMMARY} says" for name in (*SEALED, SUMMARY) if found.get(name) != seal.get(name))
    yield from _identity_problems(folder, manifest, summary, identity)
    config = manifest["parts"]["config"]
    last = rows[-1] if rows else {"step": None}
    yield from _differing(summary, "its rows have", {"steps": last["step"], **from_rows(rows)})
    yield from _differing(summary, "its config has", {"seed": config.get("seed"), **_from_config(config, summary)})
    yield from _differing(summary, "its rows have", {"tokens": last.get("tokens")})
    yield from _time_problems(summary, rows)


def _identity_problems(folder: Path, manifest: Mapping[str, Any], summary: Mapping[str, Any], identity: str | None) -> Iterator[str]:
    own, parts = manifest.get("identity"), manifest.get("parts") or {}
    hidden = "<redacted:" in json.dumps(parts)  # a secret, which the digest was made with
    if not isinstance(parts.get("config"), dict) or (own != digest(parts) and not hidden):
        yield f"manifest.json has identity {own}, and its parts make {digest(parts)}"
    named = re.search(r"-([0-9a-f]{12})$", folder.name)
    for place, other in ((SUMMARY, summary.get("identity")), ("the folder's name", named and named[1]), ("this run", identity)):
        if other not in (None, own):
            yield f"manifest.json has identity {own}, and {place} {other}"


def _from_config(config: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    trainer = config.get("trainer") or {}
    steps, batch_tokens = trainer.get("steps"), trainer.get("batch_tokens")
    if summary["status"] != "finished" or type(steps) is not int or type(batch_tokens) is not int:
        return {}
    return {"steps": steps} if config.get("ideas") else {"steps": steps, "tokens": steps * batch_tokens}  # an idea may begin with less


def _differing(summary: Mapping[str, Any], whose: str, expected: Mapping[str, Any]) -> Iterator[str]:
    """The keys of the summary that differ from what another file makes of them. Older summaries and rows have fewer keys."""
    for key, value in expected.items():
        unknown = summary.get(key) is None or (value is None and key not in ("val_loss", "steps"))
        if not unknown and not _same(summary[key], value):
            yield f"{SUMMARY} has {key} {summary[key]}, and {whose} {value}"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return all(_same(a[key], b[key]) for key in a.keys() & b.keys())
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9)
    return bool(a == b)


def _time_problems(summary: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[str]:
    """Training ends with the last row: its clock is the summary's, and tokens/s follow from it."""
    clock = summary.get("clock_s") or {}
    training_s = sum(clock.get(line) or 0.0 for line in ("train", "data"))
    last = rows[-1] if rows else {}
    row_s = (last.get("clock/train_s") or 0.0) + (last.get("clock/data_s") or 0.0)
    if row_s and not math.isclose(training_s, row_s, rel_tol=1e-6, abs_tol=1e-6):
        yield f"{SUMMARY} has {training_s:g} s of training, and its rows {row_s:g} s"
    tokens, speed = summary.get("tokens"), summary.get("tokens_per_s")
    if tokens and speed and clock.get("train") and not math.isclose(speed * training_s, tokens, rel_tol=1e-6):
        yield f"{SUMMARY} has {speed:g} tokens/s, and {tokens} tokens in {training_s:g} s of training"
