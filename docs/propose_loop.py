"""A program that proposes: it doubles the learning rate of docs/own_train.py for as long as that is
shown to help."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

SCRIPT = os.path.relpath(Path(__file__).with_name("own_train.py"))


def train(lr: float) -> str:
    return f"python {shlex.quote(SCRIPT)} {{seed}} --steps 60 --lr {lr}"


def answer(best: float, lr: float) -> dict:
    folder = Path(f"lr-{best}")  # of the campaign against the best so far
    folder.mkdir(exist_ok=True)
    rules = {"gain": 0.01, "command": train(best), "metric": r"val loss (\S+)"}
    (folder / "study.yaml").write_text(
        json.dumps({"question": "which learning rate?", "propose": rules})
    )
    command = [sys.executable, "-m", "nocap.study", str(folder), "--json", "--propose", train(lr)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode > 1:
        # 2: the study or the command must be mended; 75: paused, the same command goes on
        sys.exit(done.returncode)
    if done.returncode == 1:
        sys.exit(f"{lr}: failed")  # its last lines are on stderr
    return json.loads(done.stdout)


best = 1.0
while True:
    said = answer(best, 2 * best)
    print(
        f"{2 * best}: {said['word']}",
        f"by {said['gain']:.3f} after {said['pairs']} pairs" if said.get("gain") else "",
    )
    if said["word"] != "accepted":
        break
    best *= 2
