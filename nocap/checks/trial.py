"""An option on trial: its overrides, its small run, and the processes that train it, all in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
from nocap.store.record import Metrics, Row

if TYPE_CHECKING:
    from nocap.data.prepare import Dataset

LIMIT_S = 600.0  # for one process
# A run of seconds. Those of a group are left out where another option of it is chosen.
BASE = {
    "model": ("model=nano",),
    "data": ("data=synthetic", "data.train_tokens=100000", "data.val_tokens=20000"),
    "tracker": ("tracker=none",),
}
SHAPE = ("model.n_layer=2", "model.n_head=4", "model.d_model=64", "model.seq_len=128")  # nano's, for a model of any size
TRAINER = (
    *("trainer.steps=30", "trainer.val_every=12", "trainer.checkpoint_every=8", "trainer.val_tokens=4096"),
    *("trainer.batch_tokens=2048", "trainer.micro_batch=8", "trainer.device=cpu", "trainer.precision=fp32"),
    *("trainer.compile=off", "trainer.threads=1"),
)


class CheckError(Exception):
    """The option fails a check; why, in a line."""


class SkippedError(Exception):
    """It cannot be checked here; why, in a line."""


def expect(ok: object, otherwise: str) -> None:
    if not ok:
        raise CheckError(otherwise)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An option that a folder adds."""

    folder: Path
    group: str
    name: str
    yaml: Path | None  # None: a file of Python that no yaml chooses

    @property
    def override(self) -> str:
        """What chooses it on the command line."""
        if self.group == "ideas":
            return f"ideas=[{self.name}]"
        return f"{'hydra/' if self.group == 'launcher' else ''}{self.group}={self.name}"


@dataclass(kw_only=True)
class Trial:
    """One option, with what its checks share: the composed run, the data, one run that is not disturbed."""

    candidate: Candidate
    more: tuple[str, ...]  # the user's overrides, for every run
    folder: Path  # temporary

    def overrides(self, *more: str) -> list[str]:
        """For `nocap train`; of two for the same key, the later one holds."""
        chosen = {override.partition("=")[0] for override in (self.candidate.override, *self.more)}
        base = [override for group, overrides in BASE.items() if group not in chosen for override in overrides]
        shape = SHAPE if self.candidate.group == "model" else ()
        return [*base, self.candidate.override, *shape, *TRAINER, quoted("cache_dir", self.folder / "cache"), *self.more, *more]

    def compose(self, *more: str) -> Run:
        words = self.overrides(quoted("output_dir", self.folder / "out"), *more)
        return compose([word for word in words if not word.startswith("hydra")])  # a launcher is no part of a run

    @cached_property
    def run(self) -> Run:
        return self.compose()

    def option(self, *more: str) -> Option:
        """The option itself, as a run with `more` overrides has it."""
        if self.candidate.group == "launcher":
            return launcher(self.overrides(*more))
        run = self.compose(*more) if more else self.run
        option: Option = next(iter(run.ideas.values())) if self.candidate.group == "ideas" else getattr(run, self.candidate.group)
        return option

    @cached_property
    def data(self) -> Dataset:
        from nocap.data.prepare import prepare

        return prepare(self.run.data, self.run.tokenizer, cache_dir=cache_root(self.run.cache_dir))

    # --- processes ---------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def started(self, output: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        """`nocap train` in a process group of its own, which is killed in the end."""
        overrides = [*self.overrides(*more), quoted("output_dir", self.folder / output)]
        command = [sys.executable, "-m", "nocap.train", "--config-dir", str(self.candidate.folder), *overrides]
        with (self.folder / f"{output}.out").open("wb") as out, (self.folder / f"{output}.err").open("wb") as err:
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            process = subprocess.Popen(command, cwd=self.folder, env=environment(), start_new_session=True, **pipes)
            try:
                yield process
            finally:
                kill(process)

    def train(self, output: str, *more: str) -> Path:
        """Train to the end; the run's folder.

        Errors:
            CheckError: it ended otherwise.
        """
        with self.started(output, *more) as process:
            try:
                code = process.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                raise CheckError(f"training had not ended after {LIMIT_S:g} s") from None
        expect(code == 0, f"training ended with code {code}: {self.reason(output)}")
        return self.run_dir(output)

    def run_dir(self, output: str) -> Path:
        (folder,) = (self.folder / output / "runs").iterdir()
        return folder

    def reason(self, output: str) -> str:
        """The last line that a process wrote to stderr, nocap's own before others."""
        lines = [line.strip() for line in (self.folder / f"{output}.err").read_text(errors="replace").splitlines() if line.strip()]
        own = [line.removeprefix("nocap: ") for line in lines if line.startswith("nocap: ")]
        return one_line((own or lines or ["nothing on stderr"])[-1])

    @cached_property
    def first_run(self) -> Path | CheckError:
        try:
            return self.train("first")
        except CheckError as error:
            return error

    @property
    def clean(self) -> Path:
        """The folder of the run that is not disturbed, to compare others with."""
        if isinstance(self.first_run, CheckError):
            raise SkippedError("the run to compare with failed: see learns")
        return self.first_run


def launcher(overrides: list[str]) -> Option:
    """The launcher is no part of a run: it comes from Hydra's own part of the config."""
    from nocap.config.compose import of_a_grid, overrides_of
    from nocap.config.errors import CONFIG_ERRORS, explain
    from nocap.launch.multirun import launcher_option

    try:
        option = launcher_option(of_a_grid(overrides_of(overrides, grid=True)))
    except CONFIG_ERRORS as error:
        raise ValueError(explain(error)) from error
    expect(option is not None, "it makes no launcher option: its yaml must have a kind")
    assert option is not None
    return option


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment() -> dict[str, str]:
    """This process's, without what is about another run, and with nocap to be found from any folder."""
    about_others = (VARIABLE, "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {key: value for key, value in os.environ.items() if key not in about_others}
    paths = [str(PACKAGE.parent), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> bool:
    """Whether the condition holds before the process ends."""
    until = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.002)
    return False


def rows(run_dir: Path) -> list[Row]:
    return Metrics(run_dir / "metrics.jsonl").rows()


def quoted(key: str, path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{text}'"


def one_line(text: object, most: int = 240) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
