"""A bench in several sittings: each time its command runs again, the file gets one more, and the interval over sittings holds how much the
machine differs between them. The interval of one sitting does not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from nocap.config import hardware
from nocap.config.keys import require
from nocap.judge.sittings import APART_MIN
from nocap.judge.stats import interval
from nocap.measure.arms import BenchArm
from nocap.store.identity import digest
from nocap.store.source import source_hashes

Json = Mapping[str, Any]
LEAST = 3  # fewer have no interval
CONFIDENCE = 0.95  # of the interval over sittings, Student's t


def raced(arms: Sequence[BenchArm]) -> str:
    """What sittings must share: the arms, nocap's own code in their steps, the machine."""
    t = arms[0].run.trainer
    what = [(arm.label, arm.config, source_hashes(arm.run, of="step")) for arm in arms]
    return digest([what, hardware.describe(t.device, t.threads)["fingerprint"]])


def check_append(earlier: Json | None, of: str, *, at: datetime) -> None:
    """Refuse, before anything is timed, a file to which this bench is no further sitting.

    Errors:
        ValueError: it is of other arms, code or machine, or its last sitting ended less than five minutes ago.
    """
    if earlier is None:
        return
    known = earlier.get("sittings") or []
    same = earlier.get("kind") == "bench" and bool(known) and earlier.get("raced") == of
    require(same, "--append", "name a bench of the same arms, code and machine, or no file yet", "another")
    ended = datetime.fromisoformat(known[-1]["ended"])
    apart = at - ended >= timedelta(minutes=APART_MIN)
    require(apart, "--append", f"begin {APART_MIN:g} minutes after the last sitting: sooner is the same sitting", f"{at - ended} after it")


def with_sittings(result: Json, earlier: Json | None, of: str) -> dict[str, Any]:
    """The result of this sitting, with every sitting's ratios and each arm's interval over them."""
    ratios = {arm["label"]: arm["speed"]["ratio"] if arm["speed"] else None for arm in result["arms"][1:]}
    mine = {"started": result["started"], "ended": result["ended"], "rounds": result["rounds"], "speed": ratios}
    known = [*(earlier["sittings"] if earlier else []), {**mine, "control": result["control"]["speed"]}]
    over = {label: _over([one["speed"].get(label) for one in known]) for label in ratios}
    return {**result, "raced": of, "interval_of": "one sitting", "sittings": known, "over_sittings": over}


def _over(ratios: Sequence[float | None]) -> dict[str, Any] | None:
    """`None`: too few sittings."""
    logs = [math.log(ratio) for ratio in ratios if ratio]
    if len(logs) < LEAST:
        return None
    found = interval(logs, confidence=CONFIDENCE).exp()
    verdict = "faster" if found.low > 1 else "slower" if found.high < 1 else "no difference shown"
    return {"n": found.n, "ratio": found.mid, "low": found.low, "high": found.high, "verdict": verdict}
