"""An option on trial: its overrides, its small run, and the processes that train it, in one folder."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from nocap import outside
from nocap.config.compose import compose, of_a_grid, overrides_of, unchecked
from nocap.config.errors import explained
from nocap.config.option import Option
from nocap.config.paths import cache_root
from nocap.config.run import Run
from nocap.store.tracking import NO_MIRROR

if TYPE_CHECKING:
    from torch import Tensor

    from nocap.data.prepare import Dataset

LIMIT_S = 600.0  # for one process
# A run of seconds. Those of a group are left out where another option of it is chosen.
BASE = {
    "model": ("model=nano",),
    "data": ("data=synthetic", "data.train_tokens=100000", "data.val_tokens=20000"),
    "tracker": ("tracker=none",),
}
SHAPE = ("model.n_layer=2", "model.n_head=4", "model.d_model=64", "model.seq_len=128")  # nano's
TRAINER = (
    *("trainer.steps=30", "trainer.val_every=12", "trainer.checkpoint_every=8", "trainer.val_tokens=4096"),
    *("trainer.batch_tokens=2048", "trainer.micro_batch=8", "trainer.device=cpu", "trainer.precision=fp32"),
    *("trainer.compile=off", "trainer.threads=1"),
)


class SkippedError(Exception):
    """It cannot be checked here; why, in a line."""


def expect(ok: object, otherwise: str, log: str = "") -> None:
    """ValueError: the option fails the check; why, in a line, and what else its log should hold."""
    if not ok:
        error = ValueError(otherwise)
        error.add_note(log)
        raise error


@dataclass(kw_only=True)
class Trial:
    """One option, with what its checks share: the composed run, the data, one run that is not disturbed."""

    group: str
    name: str  # of its yaml; several ideas are checked together as "x0,smear"
    more: tuple[str, ...] = ()  # the user's overrides, for every run; `ideas=[…]` are its companions
    folder: Path

    @property
    def ideas(self) -> list[str]:
        """The ideas of every run: the companions, and the option itself where it is one."""
        words = [word for word in (outside.choice(self.group, self.name), *self.more) if word.startswith("ideas=")]
        return list(dict.fromkeys(name for word in words for name in re.findall(r"[^][\s,'\"]+", word.partition("=")[2])))

    def overrides(self, *more: str) -> list[str]:
        """For `nocap train`; of two for the same key, the later one holds."""
        words = [word for word in self.more if not word.startswith("ideas=")]
        option = [outside.choice("ideas", ",".join(self.ideas))] if self.ideas else []
        option += [outside.choice(self.group, self.name)] if self.group != "ideas" else []
        given = {word.partition("=")[0] for word in (*option, *words)}
        base = [word for group, defaults in BASE.items() if group not in given for word in defaults]
        shape = SHAPE if self.group == "model" else ()
        return [*base, *option, *shape, *TRAINER, quoted("cache_dir", self.folder / "cache"), *words, *more]

    def compose(self, *more: str) -> Run:
        return compose(self._of_the_run(*more))

    def _of_the_run(self, *more: str) -> list[str]:
        words = self.overrides(quoted("output_dir", self.folder / "out"), *more)
        return [word for word in words if not word.startswith("hydra")]  # a launcher is no part of a run

    @cached_property
    def run(self) -> Run:
        return self.compose()

    def missing(self) -> list[str]:
        """The keys that have no value in the yaml, and that the user did not give."""
        return sorted(OmegaConf.missing_keys(unchecked(self._of_the_run())[0]))

    @property
    def options(self) -> list[Option]:
        """The option itself, as the run has it."""
        if self.group == "launcher":
            return [launcher(self.overrides())]
        if self.group == "ideas":
            return [idea for name, idea in self.run.ideas.items() if name in self.name.split(",")]
        return [getattr(self.run, self.group)]

    @cached_property
    def data(self) -> Dataset:
        from nocap.data.prepare import prepare

        return prepare(self.run.data, self.run.tokenizer, cache_dir=cache_root(self.run.cache_dir))

    @cached_property
    def tokens(self) -> Tensor:
        """Two sequences and their last targets."""
        import torch

        shape = (2, self.run.model.seq_len + 1)
        return torch.randint(self.data.vocab_size, shape, generator=torch.Generator().manual_seed(1))

    def train(self, output: str, *more: str) -> list[Path]:
        """Run `nocap train` as a user does, to its end; the folders of its runs."""
        # A checkpoint that outlives the run.
        on_the_way = f"trainer.keep_steps=[{max(1, self.run.trainer.steps // 3)}]"
        words = [*self.overrides(on_the_way, *more), quoted("output_dir", self.folder / output)]
        command = [sys.executable, "-m", "nocap.train", *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["nothing on stderr"]
        last = [line.removeprefix("nocap: ") for line in lines if line.startswith("nocap: ")] or lines
        log = f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        expect(done.returncode == 0, f"training ended with code {done.returncode}: {last[-1]}", log)
        unseen = done.stderr.partition(NO_MIRROR)[2]
        expect(not unseen, f"the tracker failed: {unseen.partition(chr(10))[0]}", log)
        return sorted((self.folder / output / "runs").iterdir())

    @cached_property
    def clean(self) -> Path:
        """The folder of the run that is not disturbed, to compare others with."""
        return self.train("first")[0]


def launcher(overrides: list[str]) -> Option:
    """The launcher is no part of a run: it comes from Hydra's own part of the config."""
    from nocap.launch.multirun import launcher_option

    with explained():
        option = launcher_option(of_a_grid(overrides_of(overrides, grid=True)))
    if option is None:
        raise ValueError("it makes no launcher option: its yaml must have a kind")
    return option


def quoted(key: str, path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{text}'"
