"""Crash consistency: what a process does to the disk, cut at every point; and a run's life, in any
order.

The calls of a run's start, saves, stop, resume and end are recorded once. Then each prefix is what
a SIGKILL leaves. A power cut leaves less of it: what was written and not synced may be missing or
cut, and so may a name that was made, changed or removed since its folder was synced. Every such
state must be read as a checkpoint with its rows, never an older one than the last that was whole,
and go on to the bits of the run that nobody cut.

Last, a run is trained, asked to stop, killed, met by a full disk, and its files are damaged, in any
order. Whatever came before, the same command ends in one of two ways: the run is there with the
bits of the run that nothing happened to, or it is refused in one line that names a file, and
nothing is deleted.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from nocap.launch.plan import Plan
from nocap.store.file_writing import unfinished
from nocap.store.rows_file import RowsFile
from nocap.store.runs import load_runs
from nocap.training import saving
from nocap.training.loading import newest_valid
from tests.attempts import digests, in_a_child, killed_at, state_of, steady
from tests.conftest import rows_of, the_run
from tests.in_process import STEPS, planned, start

# write PATH, sync PATH, make PATH, move PATH PATH, remove PATH; paths below the root
Op = tuple[str, ...]
Tree = dict[str, bytes | None]  # path → content; None for a folder


# --- recording ------------------------------------------------------------------------------------


@dataclass
class Recorder:
    """The calls below `root` in order, and what each written file then held."""

    root: Path
    ops: list[Op] = field(default_factory=list)
    # number of a write → the file's content after it
    contents: dict[int, bytes] = field(default_factory=dict)
    recording: bool = False
    _known: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def inside(self, path: object) -> str | None:
        if not isinstance(path, str | os.PathLike):
            return None
        whole = os.path.abspath(os.fspath(path))
        if whole.startswith(f"{self.root}/"):
            return os.path.relpath(whole, self.root)
        return None

    def look(self) -> None:
        """Note what was written since the last look: Python's buffers and safetensors write without
        a call that can be seen."""
        paths = self.root.rglob("*")
        for path in filter(Path.is_file, sorted(paths)):
            status = path.stat()
            name = str(path.relative_to(self.root))
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._known.get(name) != stamp:
                self._known[name] = stamp
                self.contents[len(self.ops)] = path.read_bytes()
                self.ops.append(("write", name))

    def note(self, *op: str | None) -> None:
        if None not in op:
            self.look()
            self.ops.append(tuple(map(str, op)))
            if op[0] == "move":  # the file keeps its stamp under its new name
                _move(self._known, str(op[1]), str(op[2]))

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.recording or event not in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            return
        self.recording = False
        try:
            paths = []
            for path in arguments[:2] if event == "os.rename" else arguments[:1]:
                paths.append(self.inside(path))
            # relative to an open folder, as rmtree removes
            if event in ("os.remove", "os.rmdir") and arguments[1] not in (-1, None):
                folder = os.readlink(f"/proc/self/fd/{arguments[1]}")
                paths = [self.inside(os.path.join(folder, arguments[0]))]
            move = {"os.mkdir": "make", "os.rename": "move"}
            self.note(move.get(event, "remove"), *paths)
        finally:
            self.recording = True


@contextmanager
def recorded(root: Path) -> Iterator[Recorder]:
    root.mkdir()
    made = Recorder(root)
    sync = os.fsync
    # it stays in this process, and does nothing once it does not record
    sys.addaudithook(made.hook)

    def fsync(descriptor: int) -> None:
        made.recording = False
        made.note("sync", made.inside(os.readlink(f"/proc/self/fd/{descriptor}")))
        made.recording = True
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        made.recording = True
        yield made
    made.recording = False
    made.look()


# --- replaying ------------------------------------------------------------------------------------


def after(made: Recorder, first: int, *, data: str = "kept", names: str = "kept") -> Tree:
    """The files after the first calls. `data`: what was not synced is kept, cut in half, or lost;
    `names`: so are names, or lost.

    A name is lost when its folder was not synced after it was made, moved or removed. A file that
    was synced keeps its own.
    """
    tree: Tree = {}
    if names == "lost":
        lost = _lost_names(made.ops[:first])
    else:
        lost = set()
    durable: dict[str, bytes] = {}
    for number, (kind, path, *more) in enumerate(made.ops[:first]):
        if kind == "write":
            tree[path] = made.contents[number]
        elif kind == "sync" and tree.get(path) is not None:
            durable[path] = tree[path] or b""
        elif number in lost:
            continue
        elif kind == "make":
            tree[path] = None
        elif kind == "remove":
            tree.pop(path, None)
        elif kind == "move":
            _move(tree, path, more[0])
            _move(durable, path, more[0])
    if data != "kept":
        for path, content in tree.items():
            if content is not None and content != durable.get(path, b""):
                old = durable.get(path, b"")
                if content.startswith(old):
                    whole = content
                else:
                    whole = b""
                if data == "lost":
                    tree[path] = old
                else:
                    tree[path] = content[: (len(old) + len(whole or content)) // 2]
    rows = {}
    for path, content in tree.items():
        if all(str(up) in tree for up in Path(path).parents if str(up) != "."):
            rows[path] = content
    return rows


def _move(tree: dict[str, Any], old: str, new: str) -> None:
    for path in [path for path in tree if path == old or path.startswith(f"{old}/")]:
        tree[new + path[len(old) :]] = tree.pop(path)


def _lost_names(ops: Sequence[Op]) -> set[int]:
    """The moves and removals since the last sync of their folder. Those of a folder are lost
    together, as a journal keeps their order."""
    open_: dict[str, list[int]] = {}
    for number, (kind, path, *more) in enumerate(ops):
        if kind == "sync":
            open_.pop(path, None)
        elif kind in ("move", "remove"):
            parent = str(Path(more[0] if more else path).parent)
            open_.setdefault(parent, []).append(number)
    return set(itertools.chain(*open_.values()))


def states(made: Recorder, every: int = 1) -> Iterator[tuple[str, Tree]]:
    """Each prefix, as a kill and as a power cut leave it. Equal states once."""
    marks: set[int] = set()
    for first in [*range(0, len(made.ops), every), len(made.ops)]:
        for data, names in itertools.product(("kept", "cut", "lost"), ("kept", "lost")):
            tree = after(made, first, data=data, names=names)
            files = sorted(tree.items(), key=lambda item: item[0])
            if (mark := hash(tuple(files))) not in marks:
                marks.add(mark)
                yield f"after {first} calls, data {data}, names {names}", tree


def put(tree: Tree, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, content in sorted(tree.items()):
        if content is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            parent = (root / path).parent
            parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)


# --- what every state must be ---------------------------------------------------------------------


@dataclass
class Twin:
    """The run that nobody cut, begun, stopped in its fifth step, resumed and ended, with all that
    it did to the disk."""

    this: Plan
    made: Recorder


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    out = tmp_path_factory.mktemp("twin") / "out"
    with recorded(out) as made:
        start(planned(out), stop_after=4)
        start(planned(out))
    return Twin(planned(out), made)


def durable_step(made: Recorder, first: int) -> int:
    """The newest checkpoint whose place was synced."""
    steps = [0]
    waiting = 0
    for kind, path, *more in made.ops[:first]:
        if kind == "move" and Path(more[0]).name.startswith("step-"):
            waiting = int(Path(more[0]).name[5:])
        if kind == "sync" and Path(path).name == "checkpoints":
            steps.append(waiting)
    return max(steps)


def check(what: str, at: Path, twin: Twin, *, least: int) -> None:
    """Read the state as a resume would."""
    this = planned(at)
    if not this.end().is_open:
        assert load_runs([this.run_dir]).unreadable == {}, what
        state = state_of(twin.this.run_dir)
        assert state_of(this.run_dir) == state, what
    usable = newest_valid(this.run_dir / "checkpoints")
    assert usable.step >= least, (
        f"{what}: the checkpoint of step {least} was whole; {usable.invalid}"
    )
    assert not usable.invalid or usable.path is not None, f"{what}: {usable.invalid}"
    if usable.path is not None:
        rows = RowsFile(this.run_dir / "metrics.jsonl")
        content = (usable.path / "metrics.jsonl").read_bytes()
        rows.put_back(content, source="it")
        losses = []
        for row in rows_of(twin.this.run_dir):
            if row["step"] < usable.step:
                losses.append(row["train/loss"])
        assert [row["train/loss"] for row in rows.rows()] == losses, what


def resumes_to_the_same_bits(what: str, at: Path, twin: Twin) -> None:
    this = planned(at)
    if this.end().is_open:
        start(this)
    state = state_of(twin.this.run_dir)
    assert state_of(this.run_dir) == state, what
    assert not planned(at).end().is_open, what
    assert unfinished(this.run_dir / "checkpoints") == [], what


def test_the_recording_replays_to_what_is_there(twin: Twin, tmp_path: Path) -> None:
    whole_log = after(twin.made, len(twin.made.ops))
    put(whole_log, tmp_path / "again")
    assert digests(tmp_path / "again") == digests(twin.made.root)
    expected = {"write", "sync", "make", "move", "remove"}
    assert {op[0] for op in twin.made.ops} == expected


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("every", "resumed"),
    [(31, 1 / 10), pytest.param(1, 1 / 20, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_every_cut_of_a_run_is_read_as_the_right_checkpoint_and_some_resume(
    every: int, resumed: float, twin: Twin, tmp_path: Path
) -> None:
    chance = random.Random(13)
    read = 0
    trained = 0
    for what, tree in states(twin.made, every):
        put(tree, tmp_path / "state")
        step = int(what.split()[1])
        check(what, tmp_path / "state", twin, least=durable_step(twin.made, step))
        read += 1
        if chance.random() < resumed:
            resumes_to_the_same_bits(what, tmp_path / "state", twin)
            trained += 1
    assert read > 300 / every, (read, trained)
    assert trained > read * resumed / 3, (read, trained)


def test_a_save_that_is_not_synced_would_be_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker sees the fault that it is for: a writer that renames before its files are on the
    disk."""
    monkeypatch.setattr(saving, "_sync", lambda path: None)
    with recorded(tmp_path / "out") as made:
        start(planned(tmp_path / "out"), stop_after=4)
    invalid = 0
    for _, tree in states(made, 25):
        put(tree, tmp_path / "state")
        run_dir = planned(tmp_path / "state").run_dir
        invalid += len(newest_valid(run_dir / "checkpoints").invalid)
    assert invalid > 2


# --- a life ---------------------------------------------------------------------------------------

CODES = {"finished": 0, "preempted": 75}
REFUSED = 2
CRASHED = 1
DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "flipped": lambda content, at: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
    "cut": lambda content, at: content[:at],
    "emptied": lambda content, at: b"",
    "longer": lambda content, at: content + b'{"step": 99, "tok',
}


def trained(
    out: Path, *words: str, kill_at: int | None = None, full_at: int | None = None, **how: Any
) -> int:
    """One command: what is there already, or an attempt. `kill_at`: SIGKILL at this call to the
    disk. `full_at`: no file can be longer than so many bytes."""
    if kill_at is not None:
        killed_at(kill_at, out)
    if full_at is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, resource.RLIM_INFINITY))
    this = planned(out, *words)
    if this.end().believe() is not None:
        return 0
    return CODES[start(this, **how).status]


class Life(RuleBasedStateMachine):
    """Of one run."""

    # what a run leaves that nothing happened to
    twin: tuple[dict[str, str], list[dict[str, object]]]

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="nocap-life-"))
        self.out = self.root / "out"
        self.told = self.root / "told"
        self.out.mkdir()
        self.damaged: set[Path] = set()

    def teardown(self) -> None:
        try:
            self.ends_as_if_nothing_had_happened()
        finally:
            shutil.rmtree(self.root)

    def files(self) -> list[Path]:
        """What damage may meet. `train.log` is for people: no reader of a record reads it."""
        paths = sorted(self.out.rglob("*"))
        there = [path for path in paths if path.is_file() and not path.is_symlink()]
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
        """Its record is; and so is its last checkpoint, or whoever reads it is told that it was
        damaged."""
        run_dir = the_run(self.out)
        assert steady(run_dir) == self.twin[1]
        latest = newest_valid(run_dir / "checkpoints")
        if latest.step == STEPS and not latest.invalid:
            assert state_of(run_dir) == self.twin
            self.damaged.clear()
        else:
            assert any("checkpoints" in path.parts for path in self.damaged), latest


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "examples"), [(9, 20)])
def test_lives_of_a_run_end_as_if_nothing_had_happened(
    steps: int, examples: int, tmp_path: Path
) -> None:
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
