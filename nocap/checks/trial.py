"""An option on trial: its overrides, its small run, and the processes that train it, in one
folder."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from omegaconf import OmegaConf

from nocap import outside
from nocap.config.choices import of_a_grid
from nocap.config.compose import compose, raw_config
from nocap.config.option import Option
from nocap.config.overrides import overrides_of
from nocap.config.run import Run
from nocap.store.tracking import NO_MIRROR

LIMIT_S = 600.0  # for one process
# A run of seconds.
BASE = (
    "model=nano",
    "tracker=none",
    "trainer.device=cpu",
    "trainer.precision=fp32",
    "trainer.compile=off",
    "trainer.threads=1",
    "trainer.steps=30",
    "trainer.val_every=12",
    "trainer.checkpoint_every=8",
    "trainer.val_tokens=4096",
    "trainer.batch_tokens=2048",
    "trainer.micro_batch=8",
)
# nano's, for another model
SHAPE = ("model.n_layer=2", "model.n_head=4", "model.d_model=64", "model.seq_len=128")
# left out where another option of data is chosen
DATA = ("data=synthetic", "data.train_tokens=100000", "data.val_tokens=20000")


class SkippedError(Exception):
    """It cannot be checked here; why, in a line."""


def expect(ok: object, otherwise: str, log: str = "") -> None:
    """ValueError: the option fails the check; why, in a line, and what else its log should hold."""
    if not ok:
        error = ValueError(otherwise)
        error.add_note(log)
        raise error


@dataclass(kw_only=True)
class OptionTrial:
    """One option, with what its checks share: the composed run, and one training that is not
    disturbed."""

    group: str
    name: str  # of its yaml; several ideas are checked together as "x0,smear"
    # the user's overrides, for every run; `ideas=[…]` are its companions
    more: tuple[str, ...] = ()
    folder: Path

    def overrides(self, *more: str) -> list[str]:
        """Return the overrides for `nocap train`; of two for the same key, the later one holds."""
        choice = outside.choice(self.group, self.name)
        words = [choice, *self.more]
        ideas = dict[str, None]()
        for word in words:
            if word.startswith("ideas="):
                names = re.findall(r"[^][\s,'\"]+", word.removeprefix("ideas="))
                ideas |= dict.fromkeys(names)
        if ideas:
            words.append(outside.choice("ideas", ",".join(ideas)))
        base = [*BASE]
        if self.group == "model":
            base += SHAPE
        if not any(word.startswith("data=") for word in words):
            base += DATA
        cache_dir = quoted("cache_dir", self.folder / "cache")
        output_dir = quoted("output_dir", self.folder / "out")
        return [*base, cache_dir, output_dir, *words, *more]

    def compose(self, *more: str) -> Run:
        return compose(self._of_the_run(*more))

    def _of_the_run(self, *more: str) -> list[str]:
        # a launcher is no part of a run
        return [word for word in self.overrides(*more) if not word.startswith("hydra")]

    @cached_property
    def run(self) -> Run:
        return self.compose()

    def missing(self) -> list[str]:
        """Return the keys that have no value in the yaml, and that the user did not give."""
        config, *_ = raw_config(self._of_the_run())
        return sorted(OmegaConf.missing_keys(config))

    @property
    def options(self) -> list[Option]:
        """Return the option itself, as the run has it."""
        if self.group == "launcher":  # no part of a run: from Hydra's own part of the config
            from nocap.launch.chosen_launcher import launcher_option

            overrides = overrides_of(self.overrides(), grid=True)
            option = launcher_option(of_a_grid(overrides))
            assert option is not None, "the overrides choose one"
            return [option]
        if self.group == "ideas":
            names = self.name.split(",")
            return [idea for name, idea in self.run.ideas.items() if name in names]
        return [getattr(self.run, self.group)]

    def train(self, output: str, *more: str) -> list[Path]:
        """Run `nocap train` as a user does, to its end; the folders of its runs."""
        # a checkpoint that outlives the run
        on_the_way = f"trainer.keep_steps=[{max(1, self.run.trainer.steps // 3)}]"
        words = self.overrides(on_the_way, *more, quoted("output_dir", self.folder / output))
        command = [sys.executable, "-m", "nocap.train", *words]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
        log = f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        last = log.rstrip().rpartition("\n")[2].removeprefix("nocap: ")
        expect(done.returncode == 0, f"training ended with code {done.returncode}: {last}", log)
        unseen = done.stderr.partition(NO_MIRROR)[2]
        expect(not unseen, f"the tracker failed: {unseen.partition(chr(10))[0]}", log)
        return sorted((self.folder / output / "runs").iterdir())

    @cached_property
    def clean(self) -> Path:
        """Return the folder of the run that is not disturbed, to compare others with."""
        return self.train("first")[0]


def quoted(key: str, path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{text}'"
