"""The recipe's training loss over seconds beside the baseline's, with the band over the seeds of the study that judges them.

python experiments/atlas/race.py [--runs DIR]      # of experiments/recipe_tuned; writes curves.json and race.svg
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from atlas import mean, stretches
from worth import COLORS, GREY, HERE

from nocap.config.compose import composed
from nocap.config.errors import refusals
from nocap.config.keys import flat, require
from nocap.config.plain import to_plain
from nocap.store.record import read_json, write_json
from nocap.store.runs import Record, load

CURVES, FIGURE = HERE / "curves.json", HERE / "race.svg"
ARMS = {"baseline": ["experiment=atlas_cpu"], "recipe": ["experiment=recipe_cpu", "trainer.steps=1843"]}
POINTS = 48


def found(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Of each arm its whole runs: seed, final validation loss, and means of training loss and seconds over equal stretches of the steps."""
    asked = {arm: dict(flat(to_plain(composed(words).run))) for arm, words in ARMS.items()}
    every = [one for one in load([folder]).records if one.status == "finished"]
    return {arm: [compact(one) for one in sorted(every, key=lambda one: one.seed) if is_of(one, config)] for arm, config in asked.items()}


def is_of(record: Record, config: dict[str, Any]) -> bool:
    """By the keys that count for what a run is; a record has no others."""
    return all(config.get(key) == value for key, value in record.config.items())


def compact(record: Record) -> dict[str, Any]:
    parts = list(stretches(record, POINTS))
    return {
        "seed": record.seed,
        "val_loss": record.val_loss,
        "seconds": [round(mean([row["clock/train_s"] for row in part]), 2) for part in parts],
        "train_loss": [round(mean([row["train/loss"] for row in part]), 4) for part in parts],
    }


def draw(curves: dict[str, list[dict[str, Any]]]) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "nocap"})
    picture, axes = pyplot.subplots(figsize=(7.2, 3.4), layout="constrained")
    for (arm, runs), color in zip(curves.items(), (COLORS["not seen"], COLORS["helps"]), strict=True):
        seconds = [mean(at) for at in zip(*(one["seconds"] for one in runs), strict=True)]
        losses = list(zip(*(one["train_loss"] for one in runs), strict=True))
        axes.fill_between(seconds, list(map(min, losses)), list(map(max, losses)), color=color, alpha=0.25, lw=0)
        axes.plot(seconds, list(map(mean, losses)), color=color, lw=1.6, label=f"{arm}, {len(runs)} seeds")
    axes.axhline(
        mean([one["val_loss"] for one in curves["baseline"]]), color=GREY, lw=1, label="validation loss of the baseline in the end"
    )
    axes.set(xlabel="seconds of training, a core each", ylabel="training loss, nats per byte", ylim=(1.2, 2.6))
    axes.legend(frameon=False)
    picture.savefig(FIGURE, metadata={"Date": None})
    pyplot.close(picture)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, metavar="DIR", help="a folder of runs; without it the picture is drawn from curves.json")
    options = parser.parse_args()
    with refusals():
        if options.runs is not None:
            curves = found(options.runs)
            for arm, runs in curves.items():
                require(bool(runs), "--runs", f"hold finished runs of {' '.join(ARMS[arm])}", options.runs)
            write_json(CURVES, {"arms": curves})
        kept = read_json(CURVES)
        require(kept is not None, str(CURVES), "be there: --runs DIR", "none")
        draw(kept["arms"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
