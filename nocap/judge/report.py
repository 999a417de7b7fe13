"""The comparison as a page: its tables, its looks, and what its script draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nocap.judge import report_words as words
from nocap.judge.arms import spell
from nocap.judge.report_words import Facts, get
from nocap.show import page
from nocap.store.files import write_file

HERE = Path(__file__).parent
HUES = 7  # --hue-0 … --hue-6 in report.css; 0 is the text's colour
DASHES = ("", "7,4", "2,3", "9,3,2,3", "14,4", "14,3,2,3")  # SVG's stroke-dasharray; "" is a solid line
CURVE = ("step", "tokens", "train_s", "val_loss", "val_bpb")
FOREST = (150.0, 22.0)  # px: the little interval plots of the verdict table
RESOLUTION = 8  # digits of a plotted number: more than a screen shows, and a third of the file's size saved


def write(comparison: Mapping[str, Any], path: Path) -> None:
    """Write the report of a comparison (`nocap.compare --json`) to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, render(comparison).encode())


def render(comparison: Mapping[str, Any]) -> str:
    """The report as text. A diverged run's losses are no numbers: null."""
    comparison = page.finite(comparison)
    arms = sorted(comparison["arms"], key=lambda arm: arm["arm"] != comparison["baseline"])  # the baseline first, the others as they came
    baseline = arms[0]
    looks = _looks(arms, comparison.get("swept") or [])
    return page.render(
        HERE,
        kind="nocap comparison",
        title=words.headline(arms, baseline),
        data=_plots(comparison, arms, looks),
        c=comparison,
        arms=[{**arm, "look": look, "kind": words.kind(arm)} for arm, look in zip(arms, looks, strict=True)],
        baseline=baseline,
        facts=words.summary_facts(comparison, baseline),
        forest=_forest(arms),
        effects=words.effects(comparison.get("effects")),
        methods=sorted({str(method) for arm in arms if (method := get(arm, "difference", "method"))}),
        unplaced=[arm for arm in arms if get(arm, "train_s", "refused")],
        dashes=DASHES,
        w=words,
        spell=spell,
        get=get,
    )


def _looks(arms: list[Facts], swept: list[str]) -> list[tuple[int, int]]:
    """Colour and dash of each arm. In a grid one factor (`attention`, with all its keys) is the colour and the rest is the dash, so that
    the eye sees the factors; where that does not fit, they are counted through. The baseline is the text's colour, solid."""
    groups = [[key for key in swept if key.partition(".")[0] == group] for group in dict.fromkeys(key.partition(".")[0] for key in swept)]
    splits = []
    for factor in [*groups, *([key] for key in swept)]:
        hues = _numbered(arms, factor)
        dashes = _numbered(arms, [key for key in swept if key not in factor])
        looks = list(zip(hues, dashes, strict=True))
        if max(hues) < HUES and max(dashes) < len(DASHES) and len(set(looks)) == len(arms):
            splits.append(looks)
    if splits:
        return max(splits, key=lambda looks: len({hue for hue, _ in looks}))
    return [(index % HUES, index // HUES % len(DASHES)) for index in range(len(arms))]


def _numbered(arms: list[Facts], keys: list[str]) -> list[int]:
    """0, 1, 2 … for the arms' values of `keys`, in the order in which they first come. What an arm did not change is the baseline's."""
    numbers: dict[str, int] = {}
    base = arms[0].get("changes") or {}
    values = [str([{**base, **(arm.get("changes") or {})}.get(key) for key in keys]) for arm in arms]
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _plots(comparison: Facts, arms: list[Facts], looks: list[tuple[int, int]]) -> dict[str, Any]:
    """What the script draws."""
    runs = {run["identity"]: run for run in comparison["runs"]}
    plotted = []
    for arm, (hue, dash) in zip(arms, looks, strict=True):
        mine = [runs[identity] for identity in arm.get("runs") or () if identity in runs]
        seeds = [{"seed": run.get("seed"), "status": run.get("status"), **_curve(run)} for run in mine if get(run, "curve", "step")]
        whole = [seed for seed in seeds if seed["status"] == "finished"]
        plotted.append(
            {
                "label": str(arm.get("label")),
                "hue": hue,
                "dash": dash,
                "seeds": seeds,
                "mean": _mean_curve(whole),
                "averaged": len(whole),
                "val_loss": arm.get("val_loss"),
                "val_bpb": arm.get("val_bpb"),
                "train_s": get(arm, "train_s", "mean"),
                "memory_mib": get(arm, "memory_mib", "mean"),
                "placed": not get(arm, "train_s", "refused"),
                "pareto": bool(arm.get("pareto")),
                "tied": bool(arm.get("pareto_tied")),
                "clock_s": [get(arm, "clock_s", line) or 0.0 for line in words.CLOCK],
            }
        )
    return {"arms": plotted, "target": comparison.get("target"), "clock": list(words.CLOCK.values()), "dashes": DASHES}


def _curve(run: Facts) -> dict[str, list[float | None]]:
    size = len(run["curve"]["step"])
    series = {key: list(run["curve"].get(key) or [None] * size) for key in CURVE}
    return {key: [_rounded(value) for value in values] for key, values in series.items()}


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.{RESOLUTION}g}") if isinstance(value, float) else value


def _mean_curve(seeds: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """The mean over seeds at the steps that all of them reached: a mean whose members change would show jumps that nobody trained."""
    at = [{step: index for index, step in enumerate(seed["step"])} for seed in seeds]
    common = sorted(set.intersection(*(set(steps) for steps in at))) if at else []
    mean: dict[str, list[float | None]] = {"step": common}
    for key in CURVE[1:]:
        columns = [[seed[key][steps[step]] for seed, steps in zip(seeds, at, strict=True)] for step in common]
        mean[key] = [None if None in column else _rounded(math.fsum(column) / len(column)) for column in columns]
    return mean


def _forest(arms: list[Facts]) -> dict[str, dict[str, float]]:
    """Per arm the little interval plot in px, all on one scale with zero in the middle. Few seeds make intervals so wide that every point
    would lie on zero: then the scale follows the points, and what runs off it is drawn to the edge (`wide`)."""
    width, height = FOREST
    points = {arm["arm"]: arm["difference"] for arm in arms if get(arm, "difference", "mean") is not None}
    furthest = [max((abs(point.get(key) or 0.0) for point in points.values()), default=0.0) for key in ("mean", "low", "high")]
    reach = min(1.6 * furthest[0], max(furthest)) or 1.0

    def place(value: float) -> float:
        return width / 2 + max(-1.0, min(1.0, value / reach)) * (width / 2 - 6)

    drawn = {}
    for arm, point in points.items():
        ends = [value if (value := point.get(key)) is not None else point["mean"] for key in ("low", "high")]
        drawn[arm] = {"x": place(point["mean"]), "low": place(ends[0]), "high": place(ends[1]), "y": height / 2}
        drawn[arm] |= {"wide_low": ends[0] < -reach, "wide_high": ends[1] > reach}
    return drawn
