"""Counts of verdicts with their exact intervals, the bars that they must keep, and how both are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nocap.config.errors import EXIT_CODES
from nocap.judge.verdict import Verdict, Word
from nocap.show.table import markdown
from nocap.store.record import write_json, writing

SIDES = ("arm", "baseline")
COUNTED = ("different", "confirmed", "refuted", "found", "covered")  # "found": both different and confirmed


def count(verdicts: Iterable[Verdict], *, nothing: float, truth: float) -> dict[str, int]:
    """How many verdicts are what, by `COUNTED`. `nothing` and `truth`: no gain and the true one, on the claim's scale."""
    each = [_properties(verdict, nothing=nothing, truth=truth) for verdict in verdicts]
    return {name: sum(one[name] for one in each) for name in COUNTED}


def _properties(verdict: Verdict, *, nothing: float, truth: float) -> dict[str, bool]:
    """Without an interval, as where a run diverged, it calls nothing different and holds nothing."""
    shown, confirmed = verdict.interval, verdict.word is Word.confirmed
    different = shown is not None and not shown.low <= nothing <= shown.high
    return {
        "different": different,
        "confirmed": confirmed,
        "refuted": verdict.word is Word.refuted,
        "found": different and confirmed,
        "covered": shown is not None and shown.low <= truth <= shown.high,
    }


def share(count: int, of: int) -> dict[str, float]:
    """With the 95% interval of Clopper and Pearson (1934), exact."""
    from scipy import stats

    found = stats.binomtest(count, of).proportion_ci(method="exact")
    return {"share": count / of, "low": float(found.low), "high": float(found.high)}


def bar(name: str, wanted: str, shares: list[dict[str, float]], *, least: float = 0.0, most: float = 1.0) -> dict[str, Any]:
    """Shown where every interval lies within, broken where one lies wholly beyond. An exact test errs in 5%, and nobody can show that it
    errs in at most 5%: for that bar "not contradicted" is the best there is."""
    shown = all(share["low"] >= least and share["high"] <= most for share in shares)
    broken = any(share["high"] < least or share["low"] > most for share in shares)
    return {"what": name, "wanted": wanted, "found": shares, "verdict": "shown" if shown else "broken" if broken else "not contradicted"}


def bar_lines(bars: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"{bar['what']} ({bar['wanted']}): {', '.join(map(_share, bar['found']))}: {bar['verdict']}" for bar in bars]


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    keys = ("design", "noise", "truth", "pairs")
    cells = [[*(str(row[key]) for key in keys), *(f"{row[name]['share']:.1%}" for name in COUNTED)] for row in rows]
    return markdown((*keys, *COUNTED), cells)


def _share(found: Mapping[str, float]) -> str:
    return f"{found['share']:.1%} [{found['low']:.1%}, {found['high']:.1%}]"


def finish(result: Mapping[str, Any], text: str, path: Path | None) -> int:
    """Print it, write it to `path`; the exit code: 1 where a bar is broken."""
    print(text)
    if path:
        with writing("--json", path):
            write_json(path, result)
    return EXIT_CODES["finished" if result["ok"] else "failed"]
