"""How fast an arm decodes, where `nocap.generate --latency` measured it: training beside inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from nocap.judge.arms import Arm
from nocap.store.runs import dig, number


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """One text over a cache, means over the arm's runs that have it."""

    n: int
    kv_bytes_per_token: float | None
    prefill_tokens_per_s: float | None  # None also where it was measured elsewhere or otherwise than the baseline's
    decode_tokens_per_s: float | None
    refused: str | None


def inference(arm: Arm, base: Arm) -> Inference | None:
    """None where no run of the arm has it."""
    known, theirs = ([run.inference for run in side.runs if run.inference] for side in (arm, base))
    if not known:
        return None
    is_comparable = len({_setting(content) for content in [*known, *theirs]}) == 1
    rows = [row for content in known for row in content.get("rows") or () if (row.get("engine"), row.get("batch")) == ("cache", 1)]
    prefill, decode = (_mean(rows, f"{phase}_tokens_per_s") if is_comparable else None for phase in ("prefill", "decode"))
    return Inference(
        n=len(known),
        kv_bytes_per_token=_mean(known, "kv_bytes_per_token"),
        prefill_tokens_per_s=prefill,
        decode_tokens_per_s=decode,
        refused=None if is_comparable else "other hardware, threads, lengths or precision than the baseline's inference, or several",
    )


def _setting(content: Mapping[str, Any]) -> tuple[Any, ...]:
    """What must be equal for times to be comparable; the fingerprint has hardware, threads and torch."""
    return dig(content, "hardware", "fingerprint"), *(content.get(key) for key in ("prompt_tokens", "new_tokens", "precision"))


def _mean(rows: list[Any], key: str) -> float | None:
    known = [value for row in rows if (value := number(row.get(key))) is not None]
    return fmean(known) if known else None
