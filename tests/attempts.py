"""Runs in the background: start one, wait for a moment, disturb it, and compare what it leaves with
an undisturbed run."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import termios
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nocap.store.rows_file import RowsFile
from tests.conftest import MEDIUM, REPO, rows_of

DEADLINE_S = 90.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def wait_until(condition: Callable[[], object], what: str, *, limit_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain: {what}"
        time.sleep(0.002)


def spawn(
    *words: str, cwd: Path, limits: Mapping[int, int] | None = None, path: str = str(REPO)
) -> subprocess.Popen[str]:
    """`python WORDS…` in the background, its output in pipes; `limits` as `resource.setrlimit`
    takes them."""

    def limit() -> None:
        for name, value in (limits or {}).items():
            resource.setrlimit(name, (value, value))

    env = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, *words]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
    )


def on_a_terminal(*words: str, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """`python WORDS…` on a terminal of 24 × 120, to its end: exit code, and all that it wrote
    there."""
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 120))
    if env is None:
        env = {**os.environ, "PYTHONPATH": str(REPO), "TERM": "xterm"}
    command = [sys.executable, *words]
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=end, stdout=end, stderr=end)
    os.close(end)
    output = b""
    try:
        while select.select([terminal], [], [], DEADLINE_S)[0]:
            try:
                output += os.read(terminal, 4096)
            except OSError:  # how Linux says that nobody holds the other end
                break
        return process.wait(timeout=DEADLINE_S), output.decode()
    finally:
        process.kill()
        os.close(terminal)


class Attempt:
    """One start of a run, in a process of its own."""

    def __init__(
        self, output_dir: Path, *words: str, command: tuple[str, ...], **more: Any
    ) -> None:
        self.output_dir = output_dir
        self.process = spawn(
            *command, *MEDIUM, f"output_dir={output_dir}", *words, cwd=output_dir.parent, **more
        )

    @property
    def run_dir(self) -> Path:
        (folder,) = (self.output_dir / "runs").iterdir()
        return folder

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait while the process lives."""
        wait_until(lambda: condition() or self.process.poll() is not None, what)
        assert condition(), f"the process ended before: {what}\n{self.process.communicate()}"

    def wait_for_file(self, pattern: str) -> None:
        self.wait_for(lambda: any(self.output_dir.glob(f"runs/*/{pattern}")), pattern)

    def wait_for_row(self, step: int) -> None:
        """Wait until a new row of `step` or later is there: rows of an earlier attempt beyond its
        checkpoint are cut back first."""
        self.wait_for_file("metrics.jsonl")
        began = self.run_dir / "manifest.json"
        metrics = RowsFile(self.run_dir / "metrics.jsonl")

        def there() -> bool:
            # After this attempt's manifest: before that, the rows are an earlier attempt's.
            if metrics.path.stat().st_mtime_ns <= began.stat().st_mtime_ns:
                return False
            rows = metrics.rows()
            return bool(rows) and rows[-1]["step"] >= step

        self.wait_for(there, f"a row of step {step}")

    def end(
        self, number: signal.Signals | None = None, *, limit_s: float = DEADLINE_S
    ) -> tuple[int, str, str]:
        """Send a signal, or none, and wait for the end: exit code, stdout, stderr."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=limit_s)
        return self.process.returncode, out, err


@contextmanager
def attempt(
    output_dir: Path, *words: str, command: tuple[str, ...] = ("-m", "nocap.train"), **more: Any
) -> Iterator[Attempt]:
    """An attempt that leaves no process behind, also when the test fails. `more` as `spawn` takes
    it."""
    started = Attempt(output_dir, *words, command=command, **more)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.communicate()


def processes(run_dir: Path) -> dict[int, str]:
    """Workers of a run: process id → `rank` and its number where there are several, or `worker`."""
    roles = {}
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            name = (entry / "comm").read_text().strip()
            if (
                name.startswith("nocap ")
                and (entry / "fd" / "2").readlink() == run_dir / "train.log"
            ):
                roles[int(entry.name)] = name.removeprefix("nocap ")
            elif os.fsencode(run_dir) in (entry / "cmdline").read_bytes():
                environ = (entry / "environ").read_bytes().split(b"\0")
                ranks = [word for word in environ if word.startswith(b"RANK=")]
                if ranks:
                    rank = ranks[0].removeprefix(b"RANK=").decode()
                    roles[int(entry.name)] = f"rank {rank}"
                else:
                    roles[int(entry.name)] = "worker"
        except OSError:  # it ended while we looked
            continue
    return roles


def killed_at(call: int, below: Path) -> None:
    """From now on this process kills itself at this one of its calls to the disk below a folder."""
    calls = itertools.count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and (
            str(below) in str(arguments[0]) and next(calls) == call
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def in_a_child(work: Callable[[], int], told: Path) -> int:
    """The exit code of `work` in a fork of this process, or minus the signal that killed it; what
    it says goes to `told`."""
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            with told.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                sys.stdout = file
                try:
                    code = work()
                except (ValueError, OSError) as error:  # refused; the disk: the run goes on later
                    if isinstance(error, ValueError):
                        code = 2
                    else:
                        code = 1
                    print(error, flush=True)
                except BaseException:
                    code = 99
                    traceback.print_exc(file=file)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def digests(folder: Path, pattern: str = "*") -> dict[str, str]:
    """Of all files below that match."""
    paths = sorted(folder.rglob(pattern))
    values: dict[str, str] = {}
    for path in paths:
        if path.is_file():
            values[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return values


def summary_of(run_dir: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return content


def steady(run_dir: Path) -> list[dict[str, Any]]:
    """The rows without what differs from machine to machine and moment to moment."""
    noise = ("clock/", "perf/", "memory/")
    values: list[dict[str, Any]] = []
    for row in rows_of(run_dir):
        values.append({key: value for key, value in row.items() if not key.startswith(noise)})
    return values


def state_of(run_dir: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """A finished run's weights and optimizer, as hashes, and its rows."""
    (last,) = (run_dir / "checkpoints").iterdir()
    hashes = digests(last, "*.safetensors")
    assert len(hashes) == 2
    return hashes, steady(run_dir)


def restamp(folder: Path) -> None:
    """Give a checkpoint that was changed the checksums that its files have now."""
    (folder / "manifest.json").unlink()
    text = json.dumps(digests(folder))
    (folder / "manifest.json").write_text(text)


def stamp(folder: Path) -> None:
    """Make a folder that was changed look sound: its step, the rows before it, and its
    checksums."""
    step = int(folder.name[5:])
    state = json.loads((folder / "state.json").read_text())
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if json.loads(line)["step"] < step)
    (folder / "metrics.jsonl").write_text(text)
    content = {**state, "step": step}
    (folder / "state.json").write_text(json.dumps(content))
    restamp(folder)


def sealed(run_dir: Path) -> None:
    """Make the digests of a changed record fit, as who forges one would."""
    summary = summary_of(run_dir)
    sums = {}
    for name in summary.pop("sha256"):
        if name != "summary.json":
            sums[name] = digests(run_dir)[name]
    text = json.dumps(summary, sort_keys=True)
    own = hashlib.sha256(text.encode()).hexdigest()
    content = {**summary, "sha256": {**sums, "summary.json": own}}
    (run_dir / "summary.json").write_text(json.dumps(content))


def equal_within(first: Path, second: Path, tolerance: float) -> None:
    """Losses and gradient norms of every row."""
    rows = steady(first)
    others = steady(second)
    expected = [set(row) for row in others]
    assert [set(row) for row in rows] == expected
    for row, other in zip(rows, others, strict=True):
        assert row == pytest.approx(other, rel=0, abs=tolerance)
