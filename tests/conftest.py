"""What the tests share: a cache of their own, the door as a subprocess, and the data beside the
repository where it is there."""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nocap import outside

if TYPE_CHECKING:
    from tests.pretend import Pretended

REPO = Path(__file__).resolve().parents[1]
# before a command: a shell's background job ignores Ctrl-C
INTERRUPTIBLE = (
    "env",
    "--default-signal=INT",
)
# as PYTHONPATH: with NOCAP_FAULT, a rank's faults
FAULTS = os.pathsep.join([str(REPO / "tests" / "faults"), str(REPO)])

# Compiling takes a test half a minute, and a second when it was compiled before: what is kept
# outlives a session.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(REPO / ".pytest_cache" / "compiled"))
# A twentieth of a test's time was spent on looking for garbage.
gc.set_threshold(20_000, 20, 20)
# before torch: on tiny tensors, threads that wait for each other cost tenfold
os.environ.setdefault("OMP_NUM_THREADS", "1")
# as a worker has it: what trains in this process may take two threads
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A run of a second: two layers, 12 steps of two micro-batches, made-up tokens, one thread, fp32.
SMALL = (
    "model=nano",
    "data=synthetic",
    "data.train_tokens=100000",
    "data.val_tokens=20000",
    "tracker=none",
    "trainer.steps=12",
    "trainer.val_every=5",
    "trainer.checkpoint_every=4",
    "trainer.batch_tokens=2048",
    "trainer.micro_batch=8",
    "trainer.val_tokens=4096",
    "trainer.precision=fp32",
    "trainer.threads=1",
)

# The folders of options that experiments have, and the flags that put them in use.
IDEA_FOLDERS = (
    str(REPO / "experiments" / "atlas" / "ideas"),
    str(REPO / "experiments" / "objectives" / "options"),
)
ATLAS_IDEAS = ("--config-dir", IDEA_FOLDERS[0], "--config-dir", IDEA_FOLDERS[1])

# A schedule whose first update is beyond all numbers.
EXPLODING = ("--config-dir", str(REPO / "tests" / "exploding"), "schedule=exploding")

# Long enough (a second and a half of steps) that a test can disturb it in the middle: checkpoints
# at 8, 16, 24 and 30.
MEDIUM = (*SMALL, "trainer.steps=30", "trainer.val_every=12", "trainer.checkpoint_every=8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes an hour runs only where `-m` names it; a pretended GPU is skipped with the reason
    where there is none."""
    from tests.pretend import MISSING, REASON

    if "fuzz" not in config.option.markexpr:
        items[:] = [item for item in items if item.get_closest_marker("fuzz") is None]
    for item in items if MISSING else []:
        if item.get_closest_marker("pretend"):
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A half of the files for each worker, and who is done first takes from the other: what a
    file's tests share is made once."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_collection_finish() -> None:
    """What is imported now stays: unless it is told, each full collection of garbage looks through
    all of torch again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how many tests were skipped, and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    why = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    reasons = "; ".join(f"{count} × {reason}" for reason, count in why.most_common())
    if reasons:
        terminalreporter.write_line(f"skipped: {reasons}")


@pytest.fixture
def pretended(tmp_path: Path) -> Pretended:
    from tests.pretend import Pretended

    return Pretended(folder=tmp_path)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _foreign(name: str) -> bool:
    return name.startswith(("WANDB_", "NOCAP_", "TORCHELASTIC_")) or name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "SLURM_JOB_ID",
    )


@pytest.fixture(autouse=True)
def isolated(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's caches, accounts or torchrun environment."""
    for name in filter(_foreign, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("NOCAP_CACHE", str(cache_dir))
    monkeypatch.setenv("COLUMNS", "400")  # tests of other things read whole lines


@dataclass(kw_only=True)
class InUse:
    """Folders that no test changes, as the test before left them: what was imported and composed
    holds."""

    state: str
    modules: dict[str, ModuleType]


IN_USE: dict[tuple[str, ...], InUse] = {}


@contextmanager
def used(*folders: str) -> Iterator[None]:
    """Put folders in use that no test changes, and take them out of use afterwards."""
    outside.use(folders)
    if folders in IN_USE:
        os.environ[outside.VARIABLE] = IN_USE[folders].state
        sys.modules.update(IN_USE[folders].modules)
    before = outside.in_use()
    yield
    if outside.in_use() == before:  # the test has used no other folder beside it
        names = [name for name in sys.modules if name.startswith("nocap.outside.")]
        modules = {name: sys.modules[name] for name in names}
        IN_USE[folders] = InUse(state=outside.state(), modules=modules)
    os.environ.pop(outside.VARIABLE)


@pytest.fixture
def atlas_ideas(isolated: None) -> Iterator[None]:
    """The ideas that neither the atlas nor a claim supports are in use."""
    with used(*IDEA_FOLDERS):
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real text, GPT-2 shards and vocabulary, which the project does not carry."""
    path = REPO.parent / "shared"
    if not (path / "data" / "prose").is_dir():
        pytest.skip(
            "no ../shared beside the repository: its text and shards are not part of the project"
        )
    return path


@dataclass(frozen=True)
class Finished:
    """A door's process after it ended."""

    code: int
    out: str
    err: str


Door = Callable[..., Finished]


@pytest.fixture(autouse=True)
def grids_end_with_their_test() -> Iterator[None]:
    """End the grids that a failed test left running. The next test would meet their load and their
    open pipes."""
    yield
    grids = sys.modules.get("tests.grids")
    if grids is None:
        return
    for grid in grids.Background.STARTED:
        if grid.process.returncode is None:
            grid.process.kill()
            grid.process.communicate()
    grids.Background.STARTED.clear()


@pytest.fixture
def door(tmp_path: Path) -> Door:
    """Run `python -m nocap.DOOR …` in an empty folder."""

    def call(
        *words: str,
        module: str = "nocap.train",
        timeout: float = 600,
        env: dict[str, str] | None = None,
    ) -> Finished:
        command = [sys.executable, "-m", module, *words]
        environment = {**os.environ, "PYTHONPATH": str(REPO), **(env or {})}
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return call


def called(
    *words: str, cwd: Path, module: str = "nocap.train", env: dict[str, str] | None = None
) -> Finished:
    """A door, its workers and its sessions in this process: the same words and code, without a
    start of Python and torch for each."""
    from tests.fuzz.process import answer, every_session, workers_here

    with pytest.MonkeyPatch.context() as patch, workers_here(every_session):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", [module.rpartition(".")[2], *words])
        patch.setenv("HYDRA_FULL_ERROR", "0")  # train sets it
        patch.setenv("NOCAP_OUTSIDE", "")
        patch.delenv("NOCAP_OUTSIDE")  # what a door sets is gone after it
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        patch.setattr(
            "nocap.checks.trial.subprocess",
            SimpleNamespace(run=_trained, DEVNULL=subprocess.DEVNULL),
        )
        entry = importlib.import_module(module)
        if hasattr(entry, "__path__"):
            entry = importlib.import_module(f"{module}.__main__")
        said = answer(entry.main, limit_s=600)
    assert said.crash is None, said.trace
    return Finished(said.code, said.out, said.err)


def _trained(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """A training that `nocap check` starts, in this process; two ranks in theirs."""
    if any(word.startswith("trainer.devices=") for word in command):
        return subprocess.run(command, **options)
    env = {"NOCAP_OUTSIDE": os.environ.get("NOCAP_OUTSIDE", "")}
    done = called(*command[3:], cwd=Path.cwd(), env=env)
    return subprocess.CompletedProcess(command, done.code, done.out, done.err)


@pytest.fixture
def here(tmp_path: Path) -> Door:
    """`door` in this process, for tests of what a door does and not of how its processes live and
    end."""

    def call(
        *words: str, module: str = "nocap.train", env: dict[str, str] | None = None
    ) -> Finished:
        return called(*words, cwd=tmp_path, module=module, env=env)

    return call


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """`numbers.jsonl`, documents that can be learned, where the doors run."""
    path = tmp_path / "numbers.jsonl"
    documents = (" ".join(map(str, range(first, first + 50))) for first in range(0, 20_000, 50))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


@contextmanager
def shared_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """A folder of this session's own, the same in each of pytest's workers, held by one of them at
    a time."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def the_run(output_dir: Path) -> Path:
    """The one run folder below an output directory."""
    (folder,) = (output_dir / "runs").iterdir()
    return folder


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody interrupted."""

    output_dir: Path
    run_dir: Path
    process: Finished
    seconds: float


@pytest.fixture(scope="session")
def undisturbed(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """`MEDIUM`, trained once, also where several workers ask for it. Copy it before changing it."""
    with shared_folder(tmp_path_factory, "undisturbed") as folder:
        output_dir = folder / "out"
        made = folder / "made.json"
        if not made.exists():
            env = {name: value for name, value in os.environ.items() if not _foreign(name)}
            began = time.monotonic()
            command = [sys.executable, "-m", "nocap.train", *MEDIUM, f"output_dir={output_dir}"]
            inherited = {**env, "PYTHONPATH": str(REPO), "NOCAP_CACHE": str(cache_dir)}
            done = subprocess.run(
                command,
                cwd=folder,
                env=inherited,
                capture_output=True,
                text=True,
                timeout=120,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode == 0, done.stderr
            content = [done.returncode, done.stdout, done.stderr, time.monotonic() - began]
            made.write_text(json.dumps(content))
        *ended, seconds = json.loads(made.read_text())
    return Undisturbed(output_dir, the_run(output_dir), Finished(*ended), seconds)
