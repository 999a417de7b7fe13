"""A run's life as a state machine: it is trained, asked to stop, killed, met by a full disk, and its files
are damaged, in any order.

Whatever came before, the same command ends in one of two ways: the run is there with the bits of the run that
nothing happened to, or it is refused in one line that names a file, and nothing is deleted.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nocap.config.keys import InputError
from nocap.launch.plan import sound
from nocap.training import checkpoint
from tests.attempts import state_of, steady
from tests.in_process import STEPS, planned, start

CODES = {"finished": 0, "preempted": 75}
REFUSED, CRASHED = 2, 1
DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "flipped": lambda content, at: (
        content[: at % len(content)]
        + bytes([content[at % len(content)] ^ 1])
        + content[at % len(content) + 1 :]
    ),
    "cut": lambda content, at: content[: at % len(content)],
    "emptied": lambda content, at: b"",
    "longer": lambda content, at: content + b'{"step": 99, "tok',
}


def in_a_child(work: Callable[[], int], told: Path) -> int:
    """The exit code of `work` in a fork of this process, or minus the signal that killed it; what it says
    goes to `told`."""
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        code = CRASHED
        try:
            with told.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                try:
                    code = work()
                except (InputError, ValueError) as error:
                    print(error, file=file, flush=True)
                    code = REFUSED
                except OSError as error:  # the disk: what a worker reports, and the run goes on later
                    print(error, file=file, flush=True)
                except BaseException:
                    traceback.print_exc(file=file)
                    file.flush()
                    code = 99
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def trained(
    out: Path, *, stop_after: int | None = None, kill_at: int | None = None, full_at: int | None = None
) -> int:
    """One command: what is there already, or an attempt. `kill_at`: SIGKILL at this call to the disk.
    `full_at`: no file can be longer than so many bytes."""
    calls = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal calls
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and str(out) in str(
            arguments[0]
        ):
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    if kill_at is not None:
        sys.addaudithook(hook)
    if full_at is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, resource.RLIM_INFINITY))
    this = planned(out)
    if sound(this) is not None:
        return 0
    return CODES[start(this, stop_after=stop_after).status]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Life(RuleBasedStateMachine):
    """Of one run."""

    twin: tuple[dict[str, str], list[dict[str, object]]]  # what a run leaves that nothing happened to

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="nocap-life-"))
        self.out, self.told = self.root / "out", self.root / "told"
        self.damaged: set[Path] = set()

    def teardown(self) -> None:
        try:
            self.ends_as_if_nothing_had_happened()
        finally:
            shutil.rmtree(self.root)

    @property
    def run_dir(self) -> Path:
        (folder,) = (self.out / "runs").iterdir()
        return folder

    def files(self) -> list[Path]:
        """What damage may meet. `train.log` is for people: no reader of a record reads it."""
        there = [path for path in sorted(self.out.rglob("*")) if path.is_file() and not path.is_symlink()]
        return [path for path in there if path.name != "train.log" and ".lease" not in path.parts]

    def give(self, **how: object) -> int:
        code = in_a_child(lambda: trained(self.out, **how), self.told)  # type: ignore[arg-type]
        assert code != 99, self.told.read_text()
        return code

    @initialize()
    def begin(self) -> None:
        self.out.mkdir()

    @rule(step=st.integers(0, STEPS - 1))
    def stop(self, step: int) -> None:
        assert self.give(stop_after=step) in ((0, 75) if not self.damaged else (0, 75, REFUSED)), (
            self.told.read_text()
        )

    @rule(call=st.integers(1, 200))
    def kill(self, call: int) -> None:
        assert self.give(kill_at=call) in (
            (0, -signal.SIGKILL) if not self.damaged else (0, REFUSED, -signal.SIGKILL)
        )

    @rule(full_at=st.integers(1, 40_000))
    def fill_the_disk(self, full_at: int) -> None:
        assert self.give(full_at=full_at) in (0, CRASHED, REFUSED), self.told.read_text()

    @precondition(lambda self: bool(self.files()))
    @rule(data=st.data(), how=st.sampled_from([*DAMAGES, "removed"]), at=st.integers(0, 2**20))
    def damage(self, data: st.DataObject, how: str, at: int) -> None:
        path = data.draw(st.sampled_from(self.files()))
        content = path.read_bytes()
        if how == "removed":
            path.unlink()
        elif content:
            path.write_bytes(DAMAGES[how](content, at))
        self.damaged.add(path)

    @precondition(lambda self: bool(self.damaged))
    @rule()
    def ends_as_if_nothing_had_happened(self) -> None:
        """Or is refused by name, twice alike, with all files as they were."""
        before = digests(self.out)
        code = self.give()
        if code == 0:
            self.is_the_twin()
            return
        assert code == REFUSED, self.told.read_text()
        assert self.damaged
        line = self.told.read_text().strip()
        assert str(self.out) in line, line
        gone = {
            name
            for name in before
            if not (self.out / name).exists() and "checkpoints" in name and "/.step-" not in name
        }
        assert not gone, line
        assert self.give() == REFUSED

    def is_the_twin(self) -> None:
        """Its record is; and so is its last checkpoint, or whoever reads it is told that it was damaged."""
        assert steady(self.run_dir) == self.twin[1]
        latest = checkpoint.find(self.run_dir / "checkpoints")
        if latest.step == STEPS and not latest.invalid:
            assert state_of(self.run_dir) == self.twin
            self.damaged.clear()
        else:
            assert any("checkpoints" in path.parts for path in self.damaged), latest


def lives(steps: int, examples: int) -> None:
    Life.twin = _twin()
    Life.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    Life.TestCase("runTest").runTest()


def _twin() -> tuple[dict[str, str], list[dict[str, object]]]:
    with tempfile.TemporaryDirectory() as folder:
        out, told = Path(folder) / "out", Path(folder) / "told"
        out.mkdir()
        assert in_a_child(lambda: trained(out), told) == 0, told.read_text()
        (run_dir,) = (out / "runs").iterdir()
        return state_of(run_dir)


def test_some_lives_of_a_run_end_as_if_nothing_had_happened() -> None:
    lives(steps=6, examples=2)


@pytest.mark.slow
def test_many_lives_of_a_run_end_as_if_nothing_had_happened() -> None:
    lives(steps=9, examples=20)
