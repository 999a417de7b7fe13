"""An option on trial: its words, its small run, and the processes that train it, all in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap.config.compose import compose
from nocap.config.option import Option
from nocap.config.paths import PACKAGE, cache_root
from nocap.config.run import Run
from nocap.outside import VARIABLE

if TYPE_CHECKING:
    from nocap.data.prepare import Dataset

STEPS, CHECKPOINT_EVERY = 30, 8
LIMIT_S = 600.0  # for one process
# A run of seconds. The words of a group give way to another choice for it.
BASE = {
    "model": ("model=nano",),
    "data": ("data=synthetic", "data.train_tokens=100000", "data.val_tokens=20000"),
    "tracker": ("tracker=none",),
}
SHAPE = ("model.n_layer=2", "model.n_head=4", "model.d_model=64", "model.seq_len=128")  # nano's, for a model of any size
TRAINER = (
    f"trainer.steps={STEPS}",
    "trainer.val_every=12",
    f"trainer.checkpoint_every={CHECKPOINT_EVERY}",
    "trainer.batch_tokens=2048",
    "trainer.micro_batch=8",
    "trainer.val_tokens=4096",
    "trainer.device=cpu",
    "trainer.precision=fp32",
    "trainer.compile=off",
    "trainer.threads=1",
)


class FailedError(Exception):
    """The option does not do what is asked of it; why, in a line."""


class SkippedError(Exception):
    """It cannot be found out here; why, in a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """An option that a folder adds."""

    folder: Path
    group: str
    name: str
    yaml: Path | None  # None: a file of Python that no yaml chooses

    @property
    def word(self) -> str:
        """The word of the command line that chooses it."""
        if self.group == "ideas":
            return f"ideas=[{self.name}]"
        return f"{'hydra/' if self.group == 'launcher' else ''}{self.group}={self.name}"


@dataclass(kw_only=True)
class Trial:
    """One option, with what its checks share: the composed run, the data, one run that nobody disturbed."""

    found: Found
    more: tuple[str, ...]  # the user's words, for every run
    room: Path  # a folder that goes when the trial ends

    def words(self, *more: str) -> list[str]:
        """Overrides for `nocap train`; the later ones hold."""
        chosen = {word.partition("=")[0] for word in (self.found.word, *self.more)}
        base = [word for group, words in BASE.items() if group not in chosen for word in words]
        shape = SHAPE if self.found.group == "model" else ()
        cache = quoted("cache_dir", self.room / "cache")
        return [*base, self.found.word, *shape, *TRAINER, cache, *self.more, *more]

    def compose(self, *more: str) -> Run:
        return compose(self.words(quoted("output_dir", self.room / "out"), *more))

    @cached_property
    def run(self) -> Run:
        return self.compose()

    @property
    def option(self) -> Option:
        """The option itself, as the run has it."""
        if self.found.group == "ideas":
            return next(iter(self.run.ideas.values()))
        option: Option = getattr(self.run, self.found.group)
        return option

    @cached_property
    def data(self) -> Dataset:
        from nocap.data.prepare import prepare

        return prepare(self.run.data, self.run.tokenizer, cache_dir=cache_root(self.run.cache_dir))

    # --- processes ---------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def started(self, output: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        """`nocap train` in a process group of its own, of which nothing is left in the end."""
        words = [*self.words(*more), quoted("output_dir", self.room / output)]
        command = [sys.executable, "-m", "nocap.train", "--config-dir", str(self.found.folder), *words]
        with (self.room / f"{output}.out").open("wb") as out, (self.room / f"{output}.err").open("wb") as err:
            process = subprocess.Popen(
                command, cwd=self.room, env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
            try:
                yield process
            finally:
                kill(process)

    def train(self, output: str, *more: str) -> Path:
        """Train to the end; the run's folder.

        Errors:
            FailedError: it ended otherwise.
        """
        with self.started(output, *more) as process:
            try:
                code = process.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                raise FailedError(f"training had not ended after {LIMIT_S:g} s") from None
        if code:
            raise FailedError(f"training ended with code {code}: {self.told(output)}")
        return self.run_dir(output)

    def run_dir(self, output: str) -> Path:
        (folder,) = (self.room / output / "runs").iterdir()
        return folder

    def told(self, output: str) -> str:
        """What a process that failed said of it, in a line."""
        lines = [line.strip() for line in (self.room / f"{output}.err").read_text(errors="replace").splitlines() if line.strip()]
        own = [line.removeprefix("nocap: ") for line in lines if line.startswith("nocap: ")]
        return one_line((own or lines or ["it said nothing"])[-1])

    @cached_property
    def _undisturbed(self) -> Path | FailedError:
        try:
            return self.train("whole")
        except FailedError as error:
            return error

    @property
    def undisturbed(self) -> Path:
        """The folder of the one run that the others are compared with.

        Errors:
            FailedError: it failed.
        """
        if isinstance(self._undisturbed, FailedError):
            raise FailedError(*self._undisturbed.args)
        return self._undisturbed

    @property
    def whole(self) -> Path:
        """The same, for a check that says nothing where there is none."""
        try:
            return self.undisturbed
        except FailedError:
            raise SkippedError("the run to compare with failed: see learns") from None


def kill(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started, without a moment to say so."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment() -> dict[str, str]:
    """This process's, without what is about another run, and with nocap to be found from any folder."""
    about_ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {key: value for key, value in os.environ.items() if key not in (VARIABLE, *about_ranks)}
    paths = [str(PACKAGE.parent), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def wait_for(process: subprocess.Popen[bytes], there: Any) -> bool:
    """Whether it is there before the process ends."""
    until = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < until:
        if there():
            return True
        time.sleep(0.002)
    return False


def rows(run_dir: Path) -> list[Mapping[str, Any]]:
    """The metrics, without a last line that is half written."""
    try:
        text = (run_dir / "metrics.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def quoted(key: str, path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{text}'"


def one_line(text: object, most: int = 240) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= most else f"{words[: most - 1]}…"
