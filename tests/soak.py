"""`python -m tests.soak`: short runs of random configurations, disturbed at random, each against an undisturbed twin.

A disturbed run is started again until it ends. Its weights, optimizer and rows must then be its twin's, to the last bit; the only other
way out is a refusal in one line, where every checkpoint was damaged. It stops after `--kills` SIGKILLs or `--minutes`, prints what it
did, and exits with 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nocap.training import checkpoint
from tests.attempts import processes, spawn, state_of
from tests.conftest import MEDIUM, the_run

CHOICES = {
    "attention": ("mha", "flash", "gqa", "mqa", "sliding", "hybrid"),
    "mlp": ("gelu4x", "gelu3x", "swiglu", "relu2"),
    "norm": ("rmsnorm", "layernorm"),
    "position": ("rope", "learned", "none"),
    "optimizer": ("adamw", "muon"),
    "schedule": ("cosine", "wsd", "linear", "constant"),
    "trainer.steps": ("60", "90", "120"),
    "trainer.checkpoint_every": ("3", "7", "11", "25"),
    "trainer.keep_checkpoints": ("1", "2", "3"),
    "trainer.max_restarts": ("0", "20"),
    "trainer.devices": ("1", "1", "1", "1", "2"),
}
KILLS = ("kill the run", "kill a worker", "kill a rank")


class Soak:
    def __init__(self, *, root: Path, seed: int, kills: int, minutes: float) -> None:
        self.root, self.seed, self.kills = root, seed, kills
        self.deadline = time.monotonic() + 60 * minutes
        self.injected: Counter[str] = Counter()
        self.lost: list[str] = []
        self.runs, self.refusals = 0, 0
        self._lock = threading.Lock()

    @property
    def sigkills(self) -> int:
        return sum(self.injected[kind] for kind in KILLS)

    def more(self) -> bool:
        return time.monotonic() < self.deadline and self.sigkills < self.kills

    def lane(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        for n in itertools.count():
            if not self.more():
                return
            words = [f"{key}={chance.choice(values)}" for key, values in CHOICES.items()] + [f"seed={chance.randrange(1000)}"]
            try:
                self.one(self.root / f"{number}-{n}", words, chance)
            except Exception as error:
                self.lost.append(f"{words}: {type(error).__name__}: {error}")

    def one(self, folder: Path, words: list[str], chance: random.Random) -> None:
        folder.mkdir(parents=True)
        began = time.monotonic()
        code, _, err = self.start(folder / "clean", words)
        assert code == 0, err
        took_s = time.monotonic() - began
        ended = False
        for _ in range(20):
            if ended or not self.more():
                break
            ended = self.disturb(folder / "out", words, chance, took_s)
        code, _, err = self.start(folder / "out", words)
        if code == 2 and "must hold a valid checkpoint" in err:
            assert err.count("\n") == 1, err
            self.refusals += 1
            shutil.rmtree(the_run(folder / "out") / "checkpoints")
            code, _, err = self.start(folder / "out", words)
        assert code == 0, err
        assert state_of(the_run(folder / "out")) == state_of(the_run(folder / "clean")), "another state than its twin"
        self.runs += 1
        print(f"{time.strftime('%H:%M:%S')}  {self.runs} runs, {self.injected.total()} faults, {self.sigkills} SIGKILLs", file=sys.stderr)
        shutil.rmtree(folder)

    def start(self, out: Path, words: list[str], limits: dict[int, int] | None = None) -> tuple[int, str, str]:
        process = spawn("-m", "nocap.train", *MEDIUM, *words, f"output_dir={out}", cwd=out.parent, limits=limits)
        said, err = process.communicate(timeout=600)
        return process.returncode, said, err

    def disturb(self, out: Path, words: list[str], chance: random.Random, took_s: float) -> bool:
        """One attempt and what is done to it or its files; whether it came to its end."""
        kind = chance.choices(
            (*KILLS, "stop", "bit", "cut", "no manifest", "torn row", "disk full", "second run"), (8, 5, 3, 3, 2, 1, 1, 1, 1, 1)
        )[0]
        checkpoints = sorted(out.glob("runs/*/checkpoints/step-*"))
        if kind in ("bit", "cut", "no manifest", "torn row"):
            if any(json.loads(path.read_text())["status"] == "finished" for path in out.glob("runs/*/summary.json")):
                return True  # killed just after its end
            if not checkpoints or checkpoint.find(checkpoints[-1].parent).path != checkpoints[-1]:
                return False  # nothing there, or damaged before
            self.damage(kind, checkpoints[-1], chance)
            self.count(kind)
            return False
        full = {resource.RLIMIT_FSIZE: 20_000} if kind == "disk full" else None
        process = spawn("-m", "nocap.train", *MEDIUM, *words, f"output_dir={out}", cwd=out.parent, limits=full)
        while process.poll() is None:
            moment = time.monotonic() + chance.uniform(0.2, 0.9 * took_s)
            while time.monotonic() < moment and process.poll() is None:
                time.sleep(0.005)
            if kind == "disk full" or (process.poll() is None and self.act(kind, process, out, words, chance)):
                self.count(kind)
            if kind not in KILLS:  # a killed worker is started again by the run, and may be killed again
                break
        _, err = process.communicate(timeout=600)
        assert "Traceback" not in err, err
        return process.returncode == 0

    def act(self, kind: str, process: subprocess.Popen[str], out: Path, words: list[str], chance: random.Random) -> bool:
        """Do it to a running run; whether there was somebody to do it to."""
        if kind == "kill the run":
            process.kill()
        elif kind == "stop":
            for number in chance.choices((signal.SIGTERM, signal.SIGINT, signal.SIGUSR2), k=chance.randint(1, 3)):
                process.send_signal(number)
        elif kind == "second run":
            code, _, err = self.start(out, words)
            assert code == 0 or (code == 2 and err.count("\n") == 1), err
        else:
            found = [item for run_dir in out.glob("runs/*") for item in processes(run_dir).items()]
            ranks = [pid for pid, role in found if role.startswith("rank")]
            victims = ranks if ranks and kind == "kill a rank" else [pid for pid, _ in found]
            if not victims:
                return False
            try:
                os.kill(chance.choice(sorted(victims)), signal.SIGKILL)
            except ProcessLookupError:
                return False
        return True

    def damage(self, kind: str, newest: Path, chance: random.Random) -> None:
        if kind == "torn row":
            with (newest.parents[1] / "metrics.jsonl").open("a") as file:
                file.write('{"step": 17, "tok')
            return
        file = newest / "manifest.json" if kind == "no manifest" else chance.choice(sorted(newest.iterdir()))
        if kind == "no manifest":
            file.unlink()
        elif kind == "cut":
            os.truncate(file, file.stat().st_size // 2)
        else:
            content = bytearray(file.read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
        assert checkpoint.find(newest.parent).path != newest, f"{kind} in {file} was not seen"

    def count(self, kind: str) -> None:
        with self._lock:
            self.injected[kind] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write the counts here")
    args = parser.parse_args()
    os.environ.setdefault("NOCAP_CACHE", tempfile.mkdtemp(prefix="soak-cache-"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as root:
        soak = Soak(root=Path(root), seed=args.seed, kills=args.kills, minutes=args.minutes)
        with ThreadPoolExecutor(args.lanes) as lanes:
            list(lanes.map(soak.lane, range(args.lanes)))
    injected = sum(soak.injected.values())
    result = {
        "runs": soak.runs,
        "injected": dict(sorted(soak.injected.items())),
        "sigkills": soak.sigkills,
        "refusals": soak.refusals,
        "lost": soak.lost,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    for kind, n in soak.injected.most_common():
        print(f"{n:>6}  {kind}")
    kills = f"{result['sigkills']} SIGKILLs"
    print(f"{injected:>6}  faults ({kills}) in {soak.runs} runs; {soak.refusals} refusals; {len(soak.lost)} runs lost")
    for line in soak.lost:
        print(f"LOST  {line}", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if soak.lost else 0


if __name__ == "__main__":
    sys.exit(main())
