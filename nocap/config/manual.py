"""`python -m nocap.train --help`: what there is to choose, and every key of the chosen with its value and the comment beside its field."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, cast, get_type_hints

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nocap import outside
from nocap.config import hardware, registry
from nocap.config.bounded import parse_yaml, read_text
from nocap.config.compose import HYDRA, is_choice, overrides_of, prepare_hydra, search_path, unchecked
from nocap.config.paths import conf_dir

HEAD = """\
usage: python -m nocap.train [FLAG …] [GROUP=OPTION …] [KEY=VALUE …]

Trains one run, or with --multirun a grid. The same command again goes on where it stopped, and trains nothing twice.

  --multirun, -m    a grid: comma-separated values are swept, as in attention=flash,gqa seed=0,1,2; see Grids below
  --plan            tell the cells, time and disk of a grid, train nothing
  --config-dir DIR  options of your own (docs/add-an-idea.md); can be repeated
  --cfg job         print the composed config, train nothing
  --help, -h        this page, for the options on the command line: attention=sliding --help shows its keys"""
GRIDS = """\
Grids (--multirun): every combination of what is swept; then a table with intervals, and a report
  seed=0,1,2                          these values, or the options of a group; three seeds or more give verdicts
  'model.n_layer=range(2,9,2)'        2, 4, 6, 8
  'norm=glob(*)'                      all options of a group; glob(*,exclude=layernorm) all but one
  'ideas=[],[x0],[x0,smear]'          lists. Quotes keep brackets and stars from the shell
  search=tpe 'optimizer.lr=interval(1e-4,1e-2)'  draws trials in place of combinations: tag(log,interval(…)), int(interval(…))
  --zip --fail-fast --detach          lists in pairs; stop at the first failure; leave the cells to Slurm
  hydra/launcher=pool                 several cells at once on this machine; without it one; slurm, ray: a cluster's jobs
Where it stopped, the same command goes on; a cell that is finished is not trained again. More in docs/grids.md"""
COLUMN = 38  # where what a key means begins


def manual(overrides: Sequence[str], *, search: type) -> str:
    """All of it for a terminal. `search`: whose keys a grid that searches has.

    Errors:
        ValueError: an unknown option or key, or a malformed override.
    """
    config, choices = unchecked(overrides)
    width = min(140, shutil.get_terminal_size(fallback=(120, 0)).columns)
    lines = [HEAD, "", "Options (GROUP=OPTION)"]
    for group in (*registry.groups(), "experiment"):
        shown = {"ideas": "ideas=[…]", "launcher": "hydra/launcher"}.get(group, group)
        lines.append(_wrapped(f"  {shown:<14}  ", ", ".join(registry.yamls(group)), width))
    lines += ["", GRIDS]
    parts = [("search", "search", OmegaConf.structured(search)), *_launchers()]
    for place, node in _sections(config):
        parts.append((f"{place}={choices[place]}" if choices.get(place) else place or "other keys", place, node))
    for title, place, node in parts:
        schema = node._metadata.object_type
        lines += ["", f"{title}  {_sentence(schema) if place not in ('', 'trainer') else ''}".rstrip()]
        for name, text in _keys(schema):
            if not isinstance(node._get_node(name), DictConfig):
                key = "search=SAMPLER" if name == "sampler" else f"{place}.{name}".lstrip(".") + f"={_value(node, name)}"
                lines.append(_wrapped(f"  {key}".ljust(COLUMN), text, width))
    return "\n".join(lines)


def _launchers() -> Iterator[tuple[str, str, DictConfig]]:
    """The launchers with the defaults of their yamls."""
    for kind, schema in registry.options("launcher").items():
        for folder in (conf_dir(), *outside.folders()):
            if (path := folder / outside.place("launcher") / f"{kind}.yaml").is_file():
                own = OmegaConf.merge(OmegaConf.structured(schema), parse_yaml(read_text(path)))
                yield f"hydra/launcher={kind}", "hydra.launcher", cast(DictConfig, own)


def _sections(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """The parts of the config, each with its place."""
    for name in map(str, config):
        node = config._get_node(name)
        if isinstance(node, DictConfig) and name == "ideas":
            yield from ((f"ideas.{idea}", cast(DictConfig, node._get_node(idea))) for idea in map(str, node))
        elif isinstance(node, DictConfig):
            yield name, node
    yield "", config


def _sentence(schema: type) -> str:
    text = inspect.getdoc(schema) or ""
    return "" if text.startswith(f"{schema.__name__}(") else text.split("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")


def _value(node: DictConfig, key: str) -> str:
    if OmegaConf.is_missing(node, key):
        return "…, which must be given"
    try:
        with hardware.elsewhere(None):
            value = node[key]
    except OmegaConfBaseException:  # it follows from a key that must be given
        return str(node._get_node(key))
    return str(value.value) if isinstance(value, Enum) else str(value) if isinstance(value, str | list | ListConfig) else json.dumps(value)


def _keys(schema: Any) -> Iterator[tuple[str, str]]:
    """Each key of an option's class, with what its comment says and, of a choice, what there is."""
    comments, hints = comments_of(schema), get_type_hints(schema)
    for f in dataclasses.fields(schema):
        if f.name == "kind":
            continue
        text, kind = comments.get(f.name, ""), hints[f.name]
        if inspect.isclass(kind) and issubclass(kind, Enum):
            meanings = comments_of(kind)
            choices = [f"{one.value} ({meanings[one.name]})" if meanings.get(one.name) else str(one.value) for one in kind]
            text = f"{text}: {', '.join(choices)}" if text else ", ".join(choices)
        yield f.name, text


def comments_of(schema: type) -> dict[str, str]:
    """Field or member → the comment on its line, or that on the lines above it."""
    found: dict[str, str] = {}
    for cls in reversed(schema.__mro__):
        if not (dataclasses.is_dataclass(cls) or issubclass(cls, Enum)) or cls is Enum:
            continue
        try:
            lines = inspect.getsource(cls).splitlines()
        except (OSError, TypeError):  # defined where no file is
            continue
        above = list[str]()
        for line in lines:
            code, _, beside = line.partition("  # ")
            if (name := re.match(r"    (\w+)(: | = )", code)) and (beside or above):
                found[name[1]] = beside or " ".join(above)
            above = [*above, line.strip(" #")] if line.startswith("    #") else []
    return found


def _wrapped(head: str, text: str, width: int) -> str:
    start = head if head.endswith(" ") else f"{head}  "
    return textwrap.fill(text or " ", width, initial_indent=start, subsequent_indent=" " * min(len(head), COLUMN)).rstrip()


def answer(flags: argparse.Namespace) -> None:
    """What Hydra itself answers: `--info`, `--hydra-help`, and a shell that completes a line.

    Errors:
        ValueError: as for `unchecked`.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors come here; else it would print them, and exit with 1
    words, name = [str(one.input_line) for one in overrides_of(flags.overrides) if is_choice(one)], "train"
    asked = ["--hydra-help"] if flags.hydra_help else [f"--info={flags.info}"]
    if flags.shell_completion:
        words, asked = flags.overrides, ["--shell-completion"]
        *typed, last = os.environ.get("COMP_LINE", "").split(" ")
        config = unchecked([])[0]
        with suppress(ValueError):
            config = unchecked([word for word in typed if "=" in word and not word.startswith("-")])[0]
        values = json.dumps(OmegaConf.to_container(config, enum_to_str=True))
        values = re.sub(r'"[^"]*\$\{[^"]*"', "null", values)  # what follows from other keys is not worked out
        ConfigStore.instance().store(name="completion", node=json.loads(values))
        name, os.environ["COMP_LINE"] = "completion", " ".join(["nocap", *search_path(), last])
    prepare_hydra()
    sys.argv[1:] = [*asked, *words, *([] if flags.shell_completion else search_path())]
    with hardware.elsewhere(None):
        hydra.main(config_path=str(conf_dir()), config_name=name, **HYDRA)(lambda config: None)()
