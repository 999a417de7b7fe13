"""A run's life as a state machine: it is trained, asked to stop, killed, met by a full disk, and its files
are damaged, in any order.

Whatever came before, the same command ends in one of two ways: the run is there with the bits of the run that
nothing happened to, or it is refused in one line that names a file, and nothing is deleted.
"""

from __future__ import annotations

import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from nocap.launch.plan import sound
from nocap.training import checkpoint
from tests.attempts import digests, in_a_child, killed_at, state_of, steady
from tests.conftest import the_run
from tests.in_process import STEPS, planned, start

CODES = {"finished": 0, "preempted": 75}
REFUSED, CRASHED = 2, 1
DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "flipped": lambda content, at: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
    "cut": lambda content, at: content[:at],
    "emptied": lambda content, at: b"",
    "longer": lambda content, at: content + b'{"step": 99, "tok',
}


def trained(
    out: Path, *words: str, kill_at: int | None = None, full_at: int | None = None, **how: Any
) -> int:
    """One command: what is there already, or an attempt. `kill_at`: SIGKILL at this call to the disk.
    `full_at`: no file can be longer than so many bytes."""
    if kill_at is not None:
        killed_at(kill_at, out)
    if full_at is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, resource.RLIM_INFINITY))
    this = planned(out, *words)
    return 0 if sound(this) is not None else CODES[start(this, **how).status]


class Life(RuleBasedStateMachine):
    """Of one run."""

    twin: tuple[dict[str, str], list[dict[str, object]]]  # what a run leaves that nothing happened to

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="nocap-life-"))
        self.out, self.told = self.root / "out", self.root / "told"
        self.out.mkdir()
        self.damaged: set[Path] = set()

    def teardown(self) -> None:
        try:
            self.ends_as_if_nothing_had_happened()
        finally:
            shutil.rmtree(self.root)

    def files(self) -> list[Path]:
        """What damage may meet. `train.log` is for people: no reader of a record reads it."""
        there = [path for path in sorted(self.out.rglob("*")) if path.is_file() and not path.is_symlink()]
        return [path for path in there if path.name != "train.log" and ".lease" not in path.parts]

    def give(self, *codes: int, **how: Any) -> int:
        """One command, which ends with one of these codes; or, after damage, is refused."""
        code = in_a_child(lambda: trained(self.out, **how), self.told)
        assert code in (*codes, *([REFUSED] if self.damaged else [])), self.told.read_text()
        return code

    @rule(step=st.integers(0, STEPS - 1))
    def stop(self, step: int) -> None:
        self.give(0, 75, stop_after=step)

    @rule(call=st.integers(1, 200))
    def kill(self, call: int) -> None:
        self.give(0, -signal.SIGKILL, kill_at=call)

    @rule(full_at=st.integers(1, 40_000))
    def fill_the_disk(self, full_at: int) -> None:
        self.give(0, CRASHED, REFUSED, full_at=full_at)

    @precondition(lambda self: bool(self.files()))
    @rule(data=st.data(), how=st.sampled_from([*DAMAGES, "removed"]), at=st.integers(0, 2**20))
    def damage(self, data: st.DataObject, how: str, at: int) -> None:
        path = data.draw(st.sampled_from(self.files()))
        content = path.read_bytes()
        if how == "removed":
            path.unlink()
        elif content:
            path.write_bytes(DAMAGES[how](content, at % len(content)))
        self.damaged.add(path)

    @precondition(lambda self: bool(self.damaged))
    @rule()
    def ends_as_if_nothing_had_happened(self) -> None:
        """Or is refused by name, twice alike, with all files as they were."""
        before = {name for name in digests(self.out, "step-*/*") if "/.step-" not in name}
        if self.give(0) == 0:
            self.is_the_twin()
            return
        line = self.told.read_text().strip()
        assert str(self.out) in line, line
        assert before <= digests(self.out).keys(), line
        assert self.give() == REFUSED

    def is_the_twin(self) -> None:
        """Its record is; and so is its last checkpoint, or whoever reads it is told that it was damaged."""
        run_dir = the_run(self.out)
        assert steady(run_dir) == self.twin[1]
        latest = checkpoint.find(run_dir / "checkpoints")
        if latest.step == STEPS and not latest.invalid:
            assert state_of(run_dir) == self.twin
            self.damaged.clear()
        else:
            assert any("checkpoints" in path.parts for path in self.damaged), latest


@pytest.mark.parametrize(("steps", "examples"), [(6, 2), pytest.param(9, 20, marks=pytest.mark.slow)])
def test_lives_of_a_run_end_as_if_nothing_had_happened(steps: int, examples: int, tmp_path: Path) -> None:
    assert in_a_child(lambda: trained(tmp_path), tmp_path / "told") == 0
    Life.twin = state_of(the_run(tmp_path))
    Life.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    Life.TestCase("runTest").runTest()
