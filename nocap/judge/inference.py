"""How fast an arm answers, where `nocap.generate --latency` was asked: training beside inference."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from nocap.judge.arms import Arm
from nocap.store.runs import dig, number

RATES = ("prefill_tokens_per_s", "decode_tokens_per_s")


def inference(arm: Arm, base: Arm) -> dict[str, Any] | None:
    """One text over a cache: `prefill_tokens_per_s`, `decode_tokens_per_s` and `kv_bytes_per_token`, means over the arm's runs that have
    them; None where none has. Rates that were measured elsewhere or otherwise than the baseline's are None, and `refused` says why.
    """
    known, theirs = ([run.inference for run in side.runs if run.inference] for side in (arm, base))
    if not known:
        return None
    alike = len({_setting(content) for content in [*known, *theirs]}) == 1
    rows = [row for content in known for row in content.get("rows") or () if (row.get("engine"), row.get("batch")) == ("cache", 1)]
    return {
        "n": len(known),
        "kv_bytes_per_token": _mean([content.get("kv_bytes_per_token") for content in known]),
        **{rate: _mean([row.get(rate) for row in rows]) if alike else None for rate in RATES},
        "refused": None if alike else "other hardware, threads, lengths or precision than the baseline's inference, or several",
    }


def _setting(content: Mapping[str, Any]) -> tuple[Any, ...]:
    """What must be equal for times to be comparable; the fingerprint has hardware, threads and torch."""
    return dig(content, "hardware", "fingerprint"), *(content.get(key) for key in ("prompt_tokens", "new_tokens", "precision"))


def _mean(values: list[object]) -> float | None:
    known = [value for value in map(number, values) if value is not None]
    return fmean(known) if known else None
