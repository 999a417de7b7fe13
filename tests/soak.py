"""`python -m tests.soak`: runs, ranks, grids, pools and studies under random SIGKILLs, each against
an undisturbed twin.

A job is a random command. Any processes of its tree are killed at random moments: its parent, a
worker, a rank, a session, or several at once. The same command is given again until it ends.
Everything that it leaves must then be its twin's, to the last bit, but what is a time: weights,
optimizer, rows, summaries, the grid's records, the study's results and verdicts, the names of all
files. What was lost stays in FOLDER.

Each finished job is a line of a file there, of each seed's own: the same command, itself killed,
goes on after the last one.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nocap.config.errors import EXIT_CODES
from nocap.config.hardware import describe
from nocap.config.trainer import Device
from nocap.store.checkout import git_state
from nocap.study.log import FILE
from tests.conftest import REPO, SMALL
from tests.studies import LOSS

Json = dict[str, Any]
# steps of 10 ms
TINY = (
    *SMALL,
    "model.seq_len=32",
    "trainer.batch_tokens=512",
    "trainer.val_tokens=1024",
    "trainer.device=cpu",
)
CHOICES = {
    "mlp": ("gelu4x", "gelu3x", "swiglu", "relu2"),
    "norm": ("rmsnorm", "layernorm"),
    "position": ("rope", "learned", "none"),
    "optimizer": ("adamw", "muon"),
    "schedule": ("cosine", "wsd", "linear", "constant"),
    "trainer.steps": ("40", "60", "90"),
    "trainer.checkpoint_every": ("3", "7", "11", "25"),
    "trainer.keep_checkpoints": ("1", "2", "3"),
    "trainer.max_restarts": ("0", "20"),
}
ATTENTIONS = ("mha", "flash", "gqa", "mqa", "sliding", "hybrid")
KINDS = ("run", "ranks", "pool", "run", "ranks", "grid", "study")  # of one job after the other
RUNS = {"run": 1, "ranks": 1, "grid": 4, "pool": 4, "study": 10}
ROLES = {
    "nocap.train": "parent",
    "nocap.study": "parent",
    "nocap.launch.forker": "server",
    "nocap.launch.worker": "worker",
    "nocap.sessions.worker": "session",
}
# kills come as late as that after a start, and after new rows
START_S = 4.0
WORK_S = (0.3, 1.0, 3.0)
DEADLINE_S = 1200.0  # of a command that nobody disturbs, and between two kills
GONE_S = 10.0  # in which the last process of a command that ended goes

# What may differ between twins: times, what is made of them, checksums of files with them or a
# path, how often and where each began.
TIMES = {"clock_s", "step_ms", "tokens_per_s", "epoch_s", "memory_mib"}
TIMES |= {"when", "at", "started", "registered", "date", "pace", "attempts", "git", "commit"}
TIMES |= {"state.json", "metrics.jsonl", "manifest.json", "summary.json", "config.yaml"}
OF_A_LINE = {"previous", "measured"}  # what a log's line has of times
ROW_TIMES = ("clock/", "perf/", "memory/")


# --- a command and its processes ------------------------------------------------------------------


def command(kind: str, chance: random.Random, root: Path) -> list[str]:
    """A random job of this kind, which works in the folder `root` and below."""
    words = [*TINY, *(f"{key}={chance.choice(values)}" for key, values in CHOICES.items())]
    seed = chance.randrange(1000)
    attentions = chance.sample(ATTENTIONS, 2)
    root.mkdir()
    if kind == "study":
        study = {
            "question": "Does it survive?",
            "overrides": [*words, "trainer.steps=40"],
            "baseline": "a",
            "arms": {"a": [f"attention={attentions[0]}"], "b": [f"attention={attentions[1]}"]},
            "seeds": [seed, seed + 1, seed + 2],
            "tune": {
                "seeds": [seed + 3],
                "trials": {arm: [["optimizer.lr=1e-3"], ["optimizer.lr=2e-3"]] for arm in "ab"},
            },
            "scales": {"cpu": {"train": ["trainer.val_every=6"], "rounds": 1}},
            "claims": [{**LOSS, "arm": "b"}],
        }
        (root / "made").mkdir()
        text = yaml.safe_dump(study, sort_keys=False)
        (root / "made" / "study.yaml").write_text(text)
        return ["-m", "nocap.study", "made", "scale=cpu", "output_dir=out"]
    if kind in ("grid", "pool"):
        words += ["--multirun", f"attention={','.join(attentions)}", f"seed={seed},{seed + 1}"]
        words += (
            ["hydra/launcher=pool"]
            if kind == "pool"
            else [f"trainer.devices={chance.choice((1, 1, 2))}"]
        )
    else:
        words += [
            f"attention={attentions[0]}",
            f"seed={seed}",
            f"trainer.devices={2 if kind == 'ranks' else 1}",
        ]
    return ["-m", "nocap.train", *words, "output_dir=out"]


def start(words: list[str], root: Path) -> subprocess.Popen[bytes]:
    """In the folder `root`, which tells its processes from all others; stderr goes into a file
    beside it."""
    env = {**os.environ, "PYTHONPATH": str(REPO), "NOCAP_CACHE": str(root / "cache")}
    command = [sys.executable, *words]
    nowhere = subprocess.DEVNULL
    with root.with_suffix(".err").open("a") as err:
        return subprocess.Popen(
            command, cwd=root, env=env, stdin=nowhere, stdout=nowhere, stderr=err
        )


def processes(root: Path) -> dict[int, str]:
    """Process id → role, of all that work in this folder and are alive."""
    roles = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == root:
                content = (entry / "cmdline").read_bytes()
                words = content.decode().split("\0")
                role = next((ROLES[word] for word in words if word in ROLES), "other")
                name = (entry / "comm").read_text().strip()
                if name.startswith("nocap "):  # forked from the server, whose words it has
                    role = name.split()[1]
                ranked = role == "worker" and b"\0RANK=" in (entry / "environ").read_bytes()
                if ranked:
                    roles[int(entry.name)] = "rank"
                else:
                    roles[int(entry.name)] = role
        except OSError:  # it ended while we looked
            continue
    return roles


def strike(root: Path, chance: random.Random) -> list[str]:
    """Kill one process, all of a role, or all there are. Their roles."""
    roles = processes(root)
    if not roles:
        return []
    how = chance.choices(("one", "role", "all"), (5, 2, 3))[0]
    role = chance.choice(sorted(set(roles.values())))
    victims = sorted(pid for pid in roles if how == "all" or roles[pid] == role)
    return killed(chance.sample(victims, 1 if how == "one" else len(victims)), roles)


def killed(pids: Iterable[int], roles: dict[int, str]) -> list[str]:
    """The roles of those that were there to be killed."""
    struck = []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            struck.append(roles[pid])
    return struck


def at_a_moment(process: subprocess.Popen[bytes], root: Path, chance: random.Random) -> bool:
    """Wait for a random moment: in a start-up, or after the next row or session's start. Whether
    the process is still there then."""
    began = time.monotonic()
    wall = time.time()
    ends = began + chance.uniform(0, START_S)
    at_work = chance.random() < 0.7
    while process.poll() is None and (at_work or time.monotonic() < ends):
        assert time.monotonic() < began + DEADLINE_S, "it hangs: no new row, and no end"
        if at_work and _worked_since(root, wall):
            at_work = False
            ends = time.monotonic() + chance.uniform(0, chance.choice(WORK_S))
        time.sleep(0.01)
    return process.poll() is None


def _worked_since(root: Path, wall: float) -> bool:
    signs = (root.glob("out/runs/*/metrics.jsonl"), root.glob("out/studies/*/*/sessions/*.log"))
    with suppress(FileNotFoundError):  # a session has just ended
        return any(path.stat().st_mtime > wall for path in itertools.chain(*signs))
    return False


def disturbed(
    words: list[str], root: Path, chance: random.Random, *, more: Callable[[], bool]
) -> Iterator[list[str]]:
    """Strike a command at random moments, give it again until it ends by itself, and strike on
    while there is to be `more`.

    Yields who was killed.
    """
    process = start(words, root)
    while more() and process.returncode != 0:
        if at_a_moment(process, root, chance):
            yield strike(root, chance)
        elif process.returncode != 0:
            code = process.returncode
            assert code in (-signal.SIGKILL, EXIT_CODES["failed"]), f"exit code {code}"
            process = start(words, root)
    if process.wait(DEADLINE_S) != 0:
        finish(words, root)
    deadline = time.monotonic() + GONE_S
    while processes(root):
        assert time.monotonic() < deadline, f"processes outlive the command: {processes(root)}"
        time.sleep(0.05)
    assert "Traceback" not in root.with_suffix(".err").read_text(), "a traceback"


def finish(words: list[str], root: Path) -> None:
    code = start(words, root).wait(DEADLINE_S)
    assert code == 0, f"undisturbed, exit code {code}"


# --- what is left ---------------------------------------------------------------------------------


def left(root: Path) -> dict[str, Any]:
    """Path → what must be the twin's: of every file its name, and of records and tensors all but
    times."""
    # named by a path's hash
    files = []
    for path in root.rglob("*"):
        if path.is_file() and path.parent.name != "scans":
            files.append(path)
    files.sort()
    return {str(path.relative_to(root)): _content(path, root) for path in files}


def _content(path: Path, root: Path) -> Any:
    if path.suffix in (".safetensors", ".bin"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    if path.suffix not in (".json", ".jsonl", ".yaml"):
        return None  # logs, locks, pages
    text = path.read_text().replace(str(root), "ROOT")
    if path.suffix == ".yaml":
        return text
    lines = []
    for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
        lines.append(json.loads(line))
    if path.name == FILE:
        return said(lines)
    return _timeless(lines)


def said(log: list[Json]) -> list[str]:
    """What a study's log says in the end, in whatever order."""
    texts: list[str] = []
    for line in log:
        content = {key: value for key, value in _timeless(line).items() if key not in OF_A_LINE}
        texts.append(json.dumps(content))
    texts.sort()
    return texts


def _timeless(content: Any) -> Any:
    if isinstance(content, list):
        return [_timeless(entry) for entry in content]
    if not isinstance(content, dict):
        return content
    kept = {key for key in content if key not in TIMES and not key.startswith(ROW_TIMES)}
    return {key: _timeless(content[key]) for key in kept}


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """A line for each file that is not the twin's. A run that is killed more often than it may
    restart has failed for that command: a study then trains what follows from the others, so that a
    grid may be left which is a part of one of the twin's."""
    grids = [_runs(content) for path, content in expected.items() if path.endswith("/grid.json")]
    parts = set()
    for path in actual:
        if path.endswith("/grid.json") and any(_runs(actual[path]) < whole for whole in grids):
            parts.add(path)
    strange = [path for path in actual if path not in expected and path not in parts]
    both = [path for path in expected if path in actual]
    return [
        *(f"{path} is missing" for path in expected if path not in actual),
        *(f"{path} is left over" for path in strange),
        *(f"{path} differs" for path in both if actual[path] != expected[path]),
    ]


def _runs(grid: list[Any]) -> set[str]:
    return {cell["run"] for cell in grid[0]["cells"]}


# --- jobs -----------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Soak:
    folder: Path
    seed: int
    kills: int
    deadline: float = math.inf
    jobs: list[Json] = field(default_factory=list)
    injected: int = 0  # SIGKILLs, also those of jobs that go on
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def state(self) -> Path:
        return self.folder / f"state-{self.seed}.jsonl"

    def resume(self) -> None:
        """Take up the jobs of before. What a killed soak left half-way goes, and is done again."""
        if self.state.exists():
            lines = self.state.read_text().splitlines(keepends=True)
        else:
            lines = []
        self.jobs = [json.loads(line) for line in lines if line.endswith("\n")]
        text = "".join(line for line in lines if line.endswith("\n"))
        self.state.write_text(text)
        self.injected = sum(sum(job["killed"].values()) for job in self.jobs)
        for path in self.folder.glob("job-*"):
            jobs = {job["job"] for job in self.jobs}
            if int(path.name.split("-")[1]) not in jobs:
                shutil.rmtree(path, ignore_errors=True)  # its last processes may be about to die

    def more(self) -> bool:
        return self.injected < self.kills and time.monotonic() < self.deadline

    def run(self, lanes: int) -> None:
        done = {job["job"] for job in self.jobs}
        numbers = (number for number in itertools.count() if number not in done)
        with ThreadPoolExecutor(lanes) as pool:
            list(pool.map(self._lane, [numbers] * lanes))

    def _lane(self, numbers: Iterator[int]) -> None:
        while self.more():
            with self._lock:
                number = next(numbers)
            job = self._job(number, KINDS[number % len(KINDS)])
            with self._lock, self.state.open("a") as file:
                self.jobs.append(job)
                file.write(json.dumps(job) + "\n")
            print(
                f"{time.strftime('%H:%M:%S')}  of {self.injected} SIGKILLs: {json.dumps(job)}",
                flush=True,
            )

    def _job(self, number: int, kind: str) -> Json:
        """One command, disturbed until it ends, and compared with its twin."""
        began = time.monotonic()
        lost = None
        name = f"{self.seed} {number}"
        place = Path(tempfile.mkdtemp(prefix=f"job-{number}-", dir=self.folder))
        chance = random.Random(name)
        struck = list[list[str]]()
        moments = chance.randint(4 * RUNS[kind], 8 * RUNS[kind])
        twin = place / "twin"
        root = place / "hit"
        words = command(kind, random.Random(name), twin)
        command(kind, random.Random(name), root)
        try:
            finish(words, twin)
            for roles in disturbed(
                words, root, chance, more=lambda: self.more() and len(struck) < moments
            ):
                struck.append(roles)
                with self._lock:
                    self.injected += len(roles)
            differing = differences(left(root), left(twin))
            assert not differing, "; ".join(differing)
            shutil.rmtree(place)
        except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            lost = f"{type(error).__name__}: {error} (see {place})"
            killed(there := {**processes(twin), **processes(root)}, there)
        counts = dict(sorted(Counter(itertools.chain(*struck)).items()))
        seconds = round(time.monotonic() - began, 1)
        its = {"killed": counts, "moments": len(struck), "s": seconds, "lost": lost}
        return {"job": number, "kind": kind, **its}

    def result(self) -> Json:
        injected = {kind: Counter[str]() for kind in dict.fromkeys(KINDS)}
        for job in self.jobs:
            injected[job["kind"]].update(job["killed"])
        return {
            "sigkills": sum(killed.total() for killed in injected.values()),
            "injected": {kind: dict(sorted(killed.items())) for kind, killed in injected.items()},
            "moments": sum(job["moments"] for job in self.jobs),
            "jobs": dict(Counter(job["kind"] for job in self.jobs)),
            "runs": sum(RUNS[job["kind"]] for job in self.jobs),
            "lost": [
                f"job {job['job']}, {job['kind']}: {job['lost']}"
                for job in self.jobs
                if job["lost"]
            ],
            "seed": self.seed,
            "lane_minutes": round(sum(job["s"] for job in self.jobs) / 60, 1),
            "commit": (git_state() or {}).get("commit"),
            "date": time.strftime("%Y-%m-%d"),
            "hardware": {
                key: value for key, value in describe(Device.cpu, 1).items() if key != "host"
            },
            "command": f"OMP_NUM_THREADS=1 python -m tests.soak {shlex.join(sys.argv[1:])}".strip(),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="stop after so many SIGKILLs")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="or then; the same command goes on"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 1, help="jobs at once")
    parser.add_argument(
        "--folder", type=Path, default=Path("outputs/soak"), help="of the state and what was lost"
    )
    parser.add_argument("--json", type=Path, help="write the counts here")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * args.minutes
    folder = args.folder.resolve()
    soak = Soak(folder=folder, seed=args.seed, kills=args.kills, deadline=deadline)
    soak.resume()
    soak.run(args.lanes)
    result = soak.result()
    print("| kind | jobs | killed |\n|---|---|---|")
    for kind, killed in result["injected"].items():
        roles = ", ".join(f"{n} × {role}" for role, n in killed.items())
        print(f"| {kind} | {result['jobs'].get(kind, 0)} | {roles} |")
    counts = f"{result['sigkills']} SIGKILLs in {len(soak.jobs)} jobs of {result['runs']} runs"
    print("", f"{counts}: {len(result['lost'])} lost", *result["lost"], sep="\n")
    if args.json:
        text = json.dumps(result, indent=1)
        args.json.write_text(text + "\n")
    if result["lost"]:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
