"""The flags of `nocap.train`, which may stand anywhere among the overrides. They are listed once:
the command line is read by this list, and `--help` is written from it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from nocap.config.keys import require
from nocap.config.override_keys import is_of_search

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # what Hydra answers
FACTS = "flag"  # the key of a field's metadata

# flags that other modules name
PLAN = "--plan"
RESOLVE = "--resolve"
EQUAL_LOSS = "--equal-loss"
UNTIL_SHOWN = "--until-shown"
TIME = "--time"


class Scope(Enum):
    """What a flag can be asked of."""

    any = "any"
    run = "one run"
    grid = "a grid"


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagFacts:
    """How a flag is typed, and what `--help` says of it."""

    names: tuple[str, ...]
    about: str = ""  # empty: no line of its own
    example: str = ""  # of its value
    scope: Scope = Scope.any
    read: Callable[[str], object] = str
    parsing: dict[str, Any]  # what argparse needs

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def usage(self) -> str:
        """Return the flag as a person types it: `--multirun, -m`, `--time 60`."""
        if self.parsing.get("action") == "store_true":
            return ", ".join(self.names)
        return f"{self.name} {self.example}".rstrip()


def _switch(*names: str, about: str = "", scope: Scope = Scope.any) -> Any:
    """Declare a field that is true where the flag is given."""
    parsing = {"action": "store_true"}
    facts = FlagFacts(names=names, about=about, scope=scope, parsing=parsing)
    return field(default=False, metadata={FACTS: facts})


def _option(
    *names: str,
    about: str,
    example: str = "",
    scope: Scope = Scope.any,
    read: Callable[[str], object] = str,
    **parsing: Any,
) -> Any:
    """Declare a field with the flag's value; None where it is not given."""
    facts = FlagFacts(
        names=names, about=about, example=example, scope=scope, read=read, parsing=parsing
    )
    return field(default=None, metadata={FACTS: facts})


def flags_of(kind: type) -> Iterator[tuple[str, FlagFacts]]:
    """Yield the flags of a dataclass, each with its field's name."""
    for each in fields(kind):
        if FACTS in each.metadata:
            yield each.name, each.metadata[FACTS]


# --- what can be typed ----------------------------------------------------------------------------


def _seeds(text: str) -> int:
    """Read the most seeds of an arm.

    Errors:
        ValueError: it is no number of them.
    """
    rule = f"be a whole number, the most seeds per arm (as in {UNTIL_SHOWN} 24)"
    require(text.isdecimal(), UNTIL_SHOWN, rule, text)
    return int(text)


def _seconds(text: str) -> float:
    """Read a time.

    Errors:
        ValueError: it is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    require(0 < seconds < math.inf, TIME, f"be a number of seconds above 0 (as in {TIME} 60)", text)
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class GridFlags:
    """The flags that make a command a grid."""

    zip: bool = _switch(
        "--zip", about="pair the values of the keys, and train no other combination"
    )
    fail_fast: bool = _switch("--fail-fast", about="stop after the first cell that fails")
    detach: bool = _switch("--detach", about="send the jobs to Slurm and stop")
    skip_refused: bool = _switch(
        "--skip-refused",
        about="leave out combinations that nocap refuses, and train the others",
    )
    equal_loss: bool = _switch(
        EQUAL_LOSS,
        about="train the baseline at two more lengths; show the time at equal loss",
    )
    until_shown: int | None = _option(
        UNTIL_SHOWN,
        example="24",
        read=_seeds,
        about="add seeds, up to this number, until every difference is shown",
    )
    time: float | None = _option(
        TIME,
        example="60",
        read=_seconds,
        about="after the training, time the arms in turns for so many seconds",
    )

    @property
    def names(self) -> list[str]:
        """List the flags that are given."""
        return _names_in(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """A command line: its overrides and its flags."""

    multirun: bool = _switch(
        "--multirun",
        "-m",
        scope=Scope.grid,
        about="train a grid: every combination of values with commas between them",
    )
    plan: bool = _switch(
        PLAN, scope=Scope.grid, about="print the cells, time and disk of a grid; train nothing"
    )
    config_dir: Sequence[str] | None = _option(
        "--config-dir",
        example="DIR",
        about="use options of your own (docs/custom.md); it can be repeated",
        action="append",
    )
    cfg: str | None = _option(
        "--cfg",
        "-c",
        example="job",
        scope=Scope.run,
        about=f"print the composed config; {RESOLVE} also computes values that depend on others",
        choices=["job"],
    )
    resolve: bool = _switch(RESOLVE)
    fit: bool = _switch(
        "--fit",
        scope=Scope.run,
        about="find the largest micro-batch of this config that fits on this machine",
    )
    info: str | None = _option(
        "--info",
        "-i",
        scope=Scope.run,
        about="print how Hydra composed the config, as in --info defaults-tree",
        nargs="?",
        const="all",
        choices=INFO,
    )
    help: bool = _switch(
        "--help",
        "-h",
        about="print this page; with options print their keys, with all print everything",
    )
    # `install=bash` and the like stand among the overrides
    shell_completion: bool = _switch("--shell-completion", "-sc")
    help_all: bool = False  # `--help all`
    grid: GridFlags = field(default_factory=GridFlags)
    overrides: Sequence[str] = ()

    @property
    def is_grid(self) -> bool:
        """Say whether it is a grid: what only a grid can have makes it one."""
        searches = any(map(is_of_search, self.overrides))
        return self.multirun or searches or bool(self.grid.names)


def _names_in(flags: Flags | GridFlags, scope: Scope = Scope.any) -> list[str]:
    """List the flags of a dataclass that are given; of a scope, where it is named."""
    names = list[str]()
    for name, facts in flags_of(type(flags)):
        value = getattr(flags, name)
        is_given = value is not None and value is not False
        if is_given and scope in (Scope.any, facts.scope):
            names.append(facts.name)
    return names


# --- reading --------------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> Flags:
    """Return what a command line asks for.

    Errors:
        ValueError: a flag that there is not, a value that it cannot have, or flags that exclude
            each other.
    """
    values, unknown = _parser().parse_known_intermixed_args(arguments)
    rule = "be flags that --help lists"
    if any("=" in word for word in unknown):
        rule += " (write a key without hyphens before it; in a W&B sweep, use ${args_no_hyphens})"
    require(not unknown, "flags", rule, " ".join(unknown))
    grid = GridFlags(**_read(GridFlags, values))
    words: list[str] = values.overrides
    help_all = values.help and "all" in words
    if help_all:
        words = [word for word in words if word != "all"]
    flags = Flags(**_read(Flags, values), grid=grid, help_all=help_all, overrides=words)
    _check(flags)
    return flags


def _parser() -> argparse.ArgumentParser:
    """Return the parser of all flags."""
    parser = argparse.ArgumentParser(
        prog="python -m nocap.train", add_help=False, allow_abbrev=False
    )
    parser.add_argument("overrides", nargs="*")
    for kind in (Flags, GridFlags):
        for name, facts in flags_of(kind):
            parser.add_argument(*facts.names, dest=name, **facts.parsing)
    return parser


def _read(kind: type, values: argparse.Namespace) -> dict[str, Any]:
    """Return the values of a dataclass's flags.

    Errors:
        ValueError: a value that the flag cannot have.
    """
    found = dict[str, Any]()
    for name, facts in flags_of(kind):
        value = getattr(values, name)
        if isinstance(value, str):
            value = facts.read(value)
        found[name] = value
    return found


def _check(flags: Flags) -> None:
    """Refuse flags that exclude each other.

    Errors:
        ValueError: there are such flags.
    """
    of_one = _names_in(flags, Scope.run)
    of_grids = [*_names_in(flags, Scope.grid), *flags.grid.names]
    if of_one and of_grids:
        raise ValueError(f"{of_one[0]} is for one run, and does not work with {of_grids[0]}")
    if flags.resolve and not flags.cfg:
        raise ValueError(f"{RESOLVE} works only with --cfg job")
