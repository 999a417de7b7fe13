"""The command line of `nocap.train`: flags, which may stand anywhere, and overrides; and what is
answered without a run, as `--help`."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from nocap import outside
from nocap.config.bounded import read_yaml
from nocap.config.choices import HYDRA, is_choice, overrides_of, prepare_hydra, search_path
from nocap.config.choices import option_names as named
from nocap.config.compose import raw_config as unchecked
from nocap.config.guesses import guessed
from nocap.config.keys import require
from nocap.config.paths import conf_dir
from nocap.config.plain import suggest
from nocap.config.run import Run, Store
from nocap.config.trainer import Search, Trainer

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # what Hydra tells


def asked(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the flags ask for, and the overrides; `grid` says whether it is one, as what only
    a grid can do makes it.

    Errors:
        ValueError: a flag that there is not.
    """
    parser = argparse.ArgumentParser(
        prog="python -m nocap.train", add_help=False, allow_abbrev=False
    )
    parser.add_argument("overrides", nargs="*")
    for names in (
        ("--help", "-h"),
        ("--multirun", "-m"),
        ("--resolve",),
        ("--plan",),
        ("--fit",),
        ("--zip",),
        ("--fail-fast",),
        ("--detach",),
        ("--equal-loss",),
        ("--skip-refused",),
    ):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--until-shown", metavar="SEEDS")
    parser.add_argument("--time", metavar="SECONDS")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=INFO)
    # `install=bash` and the like stand among the overrides
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    flags, unknown = parser.parse_known_intermixed_args(arguments)
    rule = "be those that --help lists"
    if any("=" in word for word in unknown):
        rule += "; a key has no hyphens (in a W&B sweep: ${args_no_hyphens})"
    require(not unknown, "flags", rule, " ".join(unknown))
    of_grids = {"--multirun": flags.multirun, "--plan": flags.plan, "--zip": flags.zip}
    of_grids |= {
        "--fail-fast": flags.fail_fast,
        "--detach": flags.detach,
        "--equal-loss": flags.equal_loss,
    }
    of_grids |= {"--until-shown": flags.until_shown, "--time": flags.time}
    of_grids |= {"--skip-refused": flags.skip_refused}
    of_one = {"--cfg": flags.cfg, "--info": flags.info, "--fit": flags.fit}
    asked_of_one = next((name for name, given in of_one.items() if given), None)
    beside = [name for name, given in of_grids.items() if given and asked_of_one]
    require(not beside, str(asked_of_one), "be asked of one run", " ".join(beside))
    require(
        bool(flags.cfg) or not flags.resolve, "--resolve", "be given beside --cfg job", "it alone"
    )
    flags.all = flags.help and "all" in flags.overrides
    flags.overrides = [word for word in flags.overrides if not (flags.all and word == "all")]
    searches = any(word.startswith(("search=", "search.")) for word in flags.overrides)
    makes_one = [given for name, given in of_grids.items() if name != "--plan"]
    flags.grid = searches or any(makes_one)
    return flags


# --- --help ---------------------------------------------------------------------------------------

HEAD = """\
usage: python -m nocap.train [FLAG …] [GROUP=OPTION …] [KEY=VALUE …]

Trains one run, or with --multirun a grid. The same command again goes on where it stopped.

Examples, after python -m nocap.train:
  experiment=first_run                      a small GPT on Python's own source, in about a minute
  data=text data.path=book.txt model=small  on a text of yours
  -m attention=flash,gqa seed=0,1,2         a grid: two arms, three seeds, a table with verdicts
  -m --plan attention=flash,gqa seed=0,1,2  its cells, time and disk; trains nothing
  optimizer=muon schedule=cosine --help     the keys of these options

Flags
  --multirun, -m    a grid: every combination of values with commas between them
  --plan            tell the cells, time and disk of a grid, train nothing
  --config-dir DIR  options of your own (docs/custom.md); can be repeated
  --cfg job         print the composed config, train nothing; --resolve works out the rest
  --fit             find the largest micro-batch of this config that fits on this machine
  --info            what Hydra knows: --info defaults-tree and the like
  --help, -h        this page; OPTIONS --help: their keys; --help all: every key, and grids"""
SWEEPS = """\
Grids (--multirun): every combination of what is swept; then a table with intervals, and a report
  seed=0,1,2                    these values, or the options of a group; verdicts take three seeds
  'model.n_layer=range(2,9,2)'  2, 4, 6, 8
  'norm=glob(*)'                all options of a group; glob(*,exclude=layernorm) all but one
  'ideas=[],[x0],[x0,smear]'    lists. Quotes keep brackets and stars from the shell
  search=tpe 'optimizer.lr=interval(1e-4,1e-2)'  draws trials in place of combinations:
                                also tag(log,interval(…)), int(interval(…))
  --zip --fail-fast --detach    lists in pairs; stop at the first failure; leave the cells to Slurm
  --skip-refused                leave out the combinations that are refused, and train the rest
  --equal-loss                  the baseline at 0.7 and 1.4 of its steps too: time at equal loss
  --until-shown 24              more seeds, up to so many, until what is open is shown
  --time 60                     time the arms in turns for a minute when all are trained
  hydra/launcher=pool           several cells at once on this machine; slurm, ray: on a cluster
The same command goes on where it stopped and trains no finished cell again: docs/compare.md"""
KEYS = "Keys (KEY=VALUE; … follows from other keys)"
COMMON = (
    *(
        "trainer.steps",
        "trainer.batch_tokens",
        "trainer.micro_batch",
        "trainer.devices",
        "trainer.device",
        "trainer.precision",
    ),
    *(
        "trainer.compile",
        "trainer.val_every",
        "trainer.checkpoint_every",
        "model.n_layer",
        "model.d_model",
        "model.seq_len",
    ),
    *("optimizer.lr", "seed", "output_dir"),
)
COLUMN = 32  # where what a key means begins


def manual(words: Sequence[str], *, everything: bool = False) -> str:
    """Return what there is to choose, and the common keys, each with its value in the yaml and the
    comment beside its field; of words the keys of what they choose instead; or with `everything`
    every key. Nothing is composed.

    Errors:
        ValueError: an unknown option or key, or a malformed override.
    """
    lines, whole = [HEAD, "", "Options (GROUP=OPTION)"], everything or bool(words)
    for group in (*outside.groups(), "experiment"):
        lines.append(_wrapped(f"  {outside.place(group):<14}  ", ", ".join(outside.yamls(group))))
    lines += ["", *([SWEEPS, ""] if everything else []), KEYS]
    given, known = overrides_of(words), list[str]()
    asked = {re.split(r"[./]", override.key_or_group)[0] for override in given}
    for title, place, schema, plain in [("search", "search", Search, {}), *_sections(words)]:
        kinds, comments, rows = get_type_hints(schema), comments_of(schema), list[str]()
        for f in dataclasses.fields(schema):
            key = f"{place}.{f.name}".lstrip(".")
            if f.name not in ("kind", "trainer", "store", *outside.groups()) and not isinstance(
                plain.get(f.name), dict
            ):
                known.append(key)
                if everything or key.partition(".")[0] in asked or (not words and key in COMMON):
                    start = f"  {key}={_shown(f, plain)}".ljust(COLUMN)
                    rows.append(
                        _wrapped(start, _meaning(kinds[f.name], comments.get(f.name, ""), whole))
                    )
        lines += ["", _wrapped(title, _sentence(schema))] if rows and whole else []
        lines += rows
    for key in (override.key_or_group for override in given if not is_choice(override)):
        if not any(
            f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}.") for name in known
        ):
            meant = guessed(key.rpartition(".")[2]) or suggest(key, known)
            raise ValueError(f"{key} is no key{meant}")
    return "\n".join(lines)


def _sections(words: Sequence[str]) -> Iterator[tuple[str, str, type, dict[str, Any]]]:
    """Yield the parts of the config that these words choose, and all launchers: a title, the place,
    the class and what the yaml says."""
    train = read_yaml(conf_dir() / "train.yaml")
    yield "trainer", "trainer", Trainer, train["trainer"]
    chosen = {
        group: name
        for row in train["defaults"]
        if isinstance(row, dict)
        for group, name in row.items()
    }
    own = sorted((conf_dir() / outside.place("launcher")).glob("*.yaml"))
    chosen[outside.place("launcher")] = [path.stem for path in own]
    for override in filter(is_choice, overrides_of(words)):
        require(
            override.key_or_group != "experiment",
            "experiment",
            "be left out of --help: --cfg job prints what it sets",
            override.input_line,
        )
        chosen[override.key_or_group] = named(override)
    for group in outside.groups():
        names = chosen[outside.place(group)]
        for name in names if isinstance(names, list) else [names]:
            plain, schema = outside.read(group, name)
            place = f"ideas.{name}" if group == "ideas" else outside.place(group).replace("/", ".")
            yield outside.choice(group, name), place, schema, plain
    yield from (("store", "store", Store, {}), ("run", "", Run, train))


def _shown(f: dataclasses.Field[Any], plain: dict[str, Any]) -> str:
    """Return the key's value in the yaml, or its default."""
    default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
    value = plain.get(f.name, default)
    if value is dataclasses.MISSING or value == "???":
        return "…, which must be given"
    if str(value).startswith("${nocap."):
        return "…"
    return (
        str(value.value)
        if isinstance(value, Enum)
        else str(value)
        if isinstance(value, str | list)
        else json.dumps(value)
    )


def _sentence(schema: type) -> str:
    text = inspect.getdoc(schema) or ""
    return (
        ""
        if text.startswith(f"{schema.__name__}(")
        else text.split("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")
    )


def _meaning(kind: Any, text: str, whole: bool) -> str:
    """Return what the comment of a key of this kind says and, of a choice, what there is; the
    `whole` says what each of that is."""
    if not (inspect.isclass(kind) and issubclass(kind, Enum)):
        return text
    meanings = comments_of(kind)
    choices = [
        f"{member.value} ({meanings[member.name]})"
        if whole and meanings.get(member.name)
        else str(member.value)
        for member in kind
    ]
    return ": ".join(filter(None, [text, ", ".join(choices)]))


@cache
def comments_of(schema: type) -> dict[str, str]:
    """Field or member → the comment on its line, or that on the lines above it."""
    comments: dict[str, str] = {}
    for cls in reversed([cls for cls in schema.__mro__ if cls.__module__.startswith("nocap.")]):
        above = list[str]()
        for line in inspect.getsource(cls).splitlines():
            code, _, beside = line.partition("  # ")
            if (name := re.match(r"    (\w+)(: | = )", code)) and (beside or above):
                comments[name[1]] = beside or " ".join(above)
            above = [*above, line.strip(" #")] if line.startswith("    #") else []
    return comments


def _wrapped(head: str, text: str) -> str:
    start = head if head.endswith("  ") else f"{head.rstrip()}  "
    return (
        textwrap.fill(
            text,
            outside.WIDTH,
            initial_indent=start,
            subsequent_indent=" " * min(len(head), COLUMN),
        )
        or head.rstrip()
    )


# --- what Hydra itself answers --------------------------------------------------------------------


def answer(flags: argparse.Namespace) -> None:
    """`--info`, and a shell that completes a line.

    Errors:
        ValueError: as for `unchecked`.
    """
    os.environ["HYDRA_FULL_ERROR"] = (
        "1"  # its errors come here; else it would print them, and exit with 1
    )
    if flags.shell_completion:
        *typed, last = os.environ.get("COMP_LINE", "").split(" ")
        config = unchecked([])[0]
        with suppress(ValueError):
            config = unchecked(
                [word for word in typed if "=" in word and not word.startswith("-")]
            )[0]
        values = json.dumps(OmegaConf.to_container(config, enum_to_str=True))
        values = re.sub(
            r'"[^"]*\$\{[^"]*"', "null", values
        )  # what follows from other keys is not worked out
        ConfigStore.instance().store(name="completion", node=json.loads(values))
        os.environ["COMP_LINE"] = " ".join(["nocap", *search_path(), last])
        name, sys.argv[1:] = "completion", ["--shell-completion", *flags.overrides]
    else:
        choices = [
            str(override.input_line)
            for override in overrides_of(flags.overrides)
            if is_choice(override)
        ]
        name, sys.argv[1:] = "train", [f"--info={flags.info}", *choices, *search_path()]
    prepare_hydra()
    told = io.StringIO()
    with redirect_stdout(told):  # else Hydra's logging passes over what cannot be written
        hydra.main(config_path=str(conf_dir()), config_name=name, **HYDRA)(lambda config: None)()
    print(told.getvalue(), end="")
