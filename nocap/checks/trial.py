"""An option on trial: its overrides, its small run, and the processes that train it, all in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config.compose import compose
from nocap.config.option import Option
from nocap.config.paths import cache_root
from nocap.config.run import Run
from nocap.store.record import Metrics, Row
from nocap.store.tracking import NO_MIRROR

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


class SkippedError(Exception):
    """It cannot be checked here; why, in a line."""


def expect(ok: object, otherwise: str) -> None:
    """ValueError: the option fails the check; why, in a line."""
    if not ok:
        raise ValueError(otherwise)


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

    def train(self, output: str, *more: str) -> list[Path]:
        """Run `nocap train` as a user does, to its end; the folders of its runs."""
        on_the_way = f"trainer.keep_steps=[{max(1, self.run.trainer.steps // 3)}]"  # a checkpoint that outlives the run
        words = [*self.overrides(on_the_way, *more), quoted("output_dir", self.folder / output)]
        command = [sys.executable, "-m", "nocap.train", *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        own = [line.removeprefix("nocap: ") for line in said if line.startswith("nocap: ")]
        expect(done.returncode == 0, f"training ended with code {done.returncode}: {(own or said or ['nothing on stderr'])[-1]}")
        unseen = done.stderr.partition(NO_MIRROR)[2]
        expect(not unseen, f"the tracker failed: {unseen.partition(chr(10))[0]}")
        return sorted((self.folder / output / "runs").iterdir())

    @cached_property
    def clean(self) -> Path:
        """The folder of the run that is not disturbed, to compare others with."""
        return self.train("first")[0]


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


def rows(run_dir: Path) -> list[Row]:
    return Metrics(run_dir / "metrics.jsonl").rows()


def quoted(key: str, path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{text}'"


def one_line(text: object, most: int = 240) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
