"""Draw the picture of `make train` from a run's record: python experiments/first_run/plot.py RUN_DIR [FOLDER].

`summary.json` and `curve.svg` go to FOLDER, which is this one only where it is named: what is here is the README's evidence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BLUE, GREY = "#0b4f8a", "#9db4c8"


def main(run_dir: Path, folder: Path) -> None:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run_dir / "summary.json").read_text())
    kept = {key: value for key, value in summary.items() if key != "tracker"} | {
        "hardware": {key: value for key, value in summary["hardware"].items() if key != "host"}
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(kept, indent=2) + "\n")
    val = [row for row in rows if "val/bpb" in row]
    train = [row for row in rows if "train/loss" in row]
    per_nat = val[-1]["val/bpb"] / val[-1]["val/loss"]  # the validation text's bits per byte for a nat per token
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "nocap"})
    figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    axes.plot([r["tokens"] / 1e6 for r in train], [r["train/loss"] * per_nat for r in train], color=GREY, lw=1, label="training batch")
    axes.plot([r["tokens"] / 1e6 for r in val], [r["val/bpb"] for r in val], "o-", color=BLUE, lw=1.8, ms=4, label="validation")
    last = (val[-1]["tokens"] / 1e6, val[-1]["val/bpb"])
    axes.annotate(f"{last[1]:.2f}", last, (6, -3), textcoords="offset points", color=BLUE)
    axes.set(xlabel="million bytes read", ylabel="bits per byte", ylim=(1.5, 8.4))
    axes.set_title(f"{summary['params']['total']:,} parameters, Python's standard library as text, {summary['steps']} steps", fontsize=10)
    axes.legend(frameon=False)
    figure.savefig(folder / "curve.svg", metadata={"Date": None})
    print(f"written: {folder}/summary.json, {folder}/curve.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "outputs/first_run"))
