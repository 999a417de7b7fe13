"""The page of `nocap.train --help`: its flags, the options there are, and keys with what they
mean."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

from hydra.core.override_parser.types import Override

from nocap import outside
from nocap.config.choices import option_names
from nocap.config.explain import suggest
from nocap.config.flags import Flags, GridFlags, flags_of
from nocap.config.other_trainers import hint_for
from nocap.config.overrides import is_choice, overrides_of
from nocap.config.paths import conf_dir
from nocap.config.run import Run, Store
from nocap.config.trainer import Search, Trainer
from nocap.config.untrusted_files import read_yaml

GAP = 2  # at least so many spaces between a flag and what it does


def _flag_lines(kind: type, column: int) -> str:
    """Return a line for each flag. Those whose names and texts fit into one line share it.
    `column`: where the texts begin."""
    lines = list[tuple[str, str]]()
    for _, flag in flags_of(kind):
        if not flag.about:
            continue
        usage = flag.usage
        about = flag.about
        if lines:
            usage_before, about_before = lines[-1]
            usages = f"{usage_before} {usage}"
            abouts = f"{about_before}; {about}"
            if len(usages) + 2 * GAP <= column and column + len(abouts) <= outside.WIDTH:
                usage = usages
                about = abouts
                lines.pop()
        lines.append((usage, about))
    return "\n".join(f"  {usage}".ljust(column) + about for usage, about in lines)


HEAD = f"""\
usage: python -m nocap.train [FLAG …] [GROUP=OPTION …] [KEY=VALUE …]

Train one run, or a grid with --multirun. The same command continues where it stopped.

Examples, after python -m nocap.train:
  experiment=first_run                      a small GPT on Python's own source, in 2 to 3 minutes
  data=text data.path=book.txt model=small  a GPT on your own text
  -m attention=flash,gqa seed=0,1,2         a grid: two arms, three seeds, a table with verdicts
  -m --plan attention=flash,gqa seed=0,1,2  the cells, time and disk of this grid; trains nothing
  optimizer=muon schedule=cosine --help     the keys of these options

Flags
{_flag_lines(Flags, 20)}"""
SWEEPS = f"""\
A grid (--multirun) trains every combination, prints a table with intervals, and writes a report
  seed=0,1,2                    these values, or options of a group; a verdict needs three seeds
  'model.n_layer=range(2,9,2)'  2, 4, 6, 8
  'norm=glob(*)'                all options of a group; glob(*,exclude=layernorm) all but one
  'ideas=[],[x0],[x0,smear]'    three lists; quotes protect brackets and stars from the shell
  search=tpe 'optimizer.lr=interval(1e-4,1e-2)'  tries values of an interval;
                                also tag(log,interval(…)), int(interval(…))
{_flag_lines(GridFlags, 32)}
  hydra/launcher=pool           several runs at once on this machine; slurm and ray use a cluster
The same command continues where it stopped, and trains no finished run again: docs/compare.md"""
KEYS = "Keys (KEY=VALUE; … follows from other keys)"
COMMON = (
    "trainer.steps",
    "trainer.batch_tokens",
    "trainer.micro_batch",
    "trainer.devices",
    "trainer.device",
    "trainer.precision",
    "trainer.compile",
    "trainer.val_every",
    "trainer.checkpoint_every",
    "model.n_layer",
    "model.d_model",
    "model.seq_len",
    "optimizer.lr",
    "seed",
    "output_dir",
)
COLUMN = 32  # where what a key means begins


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the config."""

    title: str
    prefix: str  # of its keys
    schema: type
    values: Mapping[str, Any]  # that its yaml gives

    def own_keys(self) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
        """Yield its keys, each with its field, without those that hold a part of their own."""
        parts = ("kind", "trainer", "store", *outside.groups())
        for each in dataclasses.fields(self.schema):
            if each.name in parts or isinstance(self.values.get(each.name), dict):
                continue
            yield f"{self.prefix}.{each.name}".lstrip("."), each


def help_text(words: Sequence[str], *, everything: bool = False) -> str:
    """Return what there is to choose, and the common keys, each with its value in the yaml and the
    comment beside its field; of words the keys of what they choose instead; or with `everything`
    every key. Nothing is composed.

    Errors:
        ValueError: an unknown option or key, or a malformed override.
    """
    in_full = everything or bool(words)
    overrides = overrides_of(words)
    lines = [HEAD, "", "Options (GROUP=OPTION)"]
    for group in (*outside.groups(), "experiment"):
        lines.append(_wrapped(f"  {outside.place(group):<14}  ", ", ".join(outside.yamls(group))))
    lines.append("")
    if everything:
        lines += [SWEEPS, ""]
    lines.append(KEYS)
    first_words = {re.split(r"[./]", override.key_or_group)[0] for override in overrides}
    known = list[str]()
    for section in _sections(overrides):
        rows = list[str]()
        for key, each in section.own_keys():
            known.append(key)
            is_common = not words and key in COMMON
            if everything or is_common or key.partition(".")[0] in first_words:
                rows.append(_row(section, key, each, in_full=in_full))
        if rows and in_full:
            lines += ["", _wrapped(section.title, _sentence(section.schema))]
        lines += rows
    _check_known(overrides, known)
    return "\n".join(lines)


def _check_known(overrides: Sequence[Override], known: Sequence[str]) -> None:
    """Refuse a key that is neither one of these, nor a part of one or around one.

    Errors:
        ValueError: there is such a key.
    """
    for override in overrides:
        if is_choice(override):
            continue
        key = override.key_or_group
        nested = [f"{name}." for name in known]
        if not any(name.startswith(f"{key}.") or f"{key}.".startswith(name) for name in nested):
            meant = hint_for(key.rpartition(".")[2]) or suggest(key, known)
            raise ValueError(f"{key} is no key{meant}")


def _sections(overrides: Sequence[Override]) -> Iterator[Section]:
    """Yield the parts of the config that these overrides choose, and all launchers.

    Errors:
        ValueError: an unknown option, or an experiment.
    """
    train = read_yaml(conf_dir() / "train.yaml")
    yield Section(title="search", prefix="search", schema=Search, values={})
    yield Section(title="trainer", prefix="trainer", schema=Trainer, values=train["trainer"])
    chosen = _chosen(train, overrides)
    for group in outside.groups():
        names = chosen[outside.place(group)]
        if not isinstance(names, list):
            names = [names]
        for name in names:
            values, schema = outside.read(group, name)
            prefix = outside.place(group).replace("/", ".")
            if group == "ideas":
                prefix = f"ideas.{name}"
            title = outside.choice(group, name)
            yield Section(title=title, prefix=prefix, schema=schema, values=values)
    yield Section(title="store", prefix="store", schema=Store, values={})
    yield Section(title="run", prefix="", schema=Run, values=train)


def _chosen(train: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """Return group → the name of its option, or several names. `train`: the yaml with the defaults.

    Errors:
        ValueError: an experiment, which sets keys of its own.
    """
    chosen = dict[str, Any]()
    for row in train["defaults"]:
        if isinstance(row, dict):
            chosen |= row
    launchers = outside.place("launcher")
    chosen[launchers] = [path.stem for path in sorted((conf_dir() / launchers).glob("*.yaml"))]
    for override in filter(is_choice, overrides):
        if override.key_or_group == "experiment":
            raise ValueError(
                "experiment=NAME does not work with --help: --cfg job prints the settings of NAME"
            )
        chosen[override.key_or_group] = option_names(override)
    return chosen


# --- a key ----------------------------------------------------------------------------------------


def _row(section: Section, key: str, each: dataclasses.Field[Any], *, in_full: bool) -> str:
    """Return a key with its value and what it means. `in_full`: see `_meaning`."""
    kind = _types_of(section.schema)[each.name]
    comment = comments_of(section.schema).get(each.name, "")
    start = f"  {key}={_value(each, section.values)}".ljust(COLUMN)
    return _wrapped(start, _meaning(kind, comment, in_full=in_full))


def _value(each: dataclasses.Field[Any], values: Mapping[str, Any]) -> str:
    """Return the key's value in the yaml, or its default."""
    default = each.default
    if each.default_factory is not dataclasses.MISSING:
        default = each.default_factory()
    value = values.get(each.name, default)
    if value is dataclasses.MISSING or value == "???":
        return "… (required)"
    if str(value).startswith("${nocap."):
        return "…"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str | list):
        return str(value)
    return json.dumps(value)


def _sentence(schema: type) -> str:
    """Return the first sentence of a dataclass's own docstring."""
    text = inspect.getdoc(schema) or ""
    if text.startswith(f"{schema.__name__}("):  # which Python has made
        return ""
    paragraph = text.split("\n\n")[0].replace("\n", " ")
    return paragraph.partition(". ")[0].rstrip(".")


def _meaning(kind: Any, comment: str, *, in_full: bool) -> str:
    """Return what the comment of a key of this kind says and, of a choice, what there is;
    `in_full`: with the meaning of each."""
    if not (inspect.isclass(kind) and issubclass(kind, Enum)):
        return comment
    meanings = comments_of(kind)
    choices = list[str]()
    for member in kind:
        choice = str(member.value)
        if in_full and meanings.get(member.name):
            choice = f"{choice} ({meanings[member.name]})"
        choices.append(choice)
    return ": ".join(filter(None, [comment, ", ".join(choices)]))


@cache
def _types_of(schema: type) -> dict[str, Any]:
    """Return field → its type."""
    return get_type_hints(schema)


@cache
def comments_of(schema: type) -> dict[str, str]:
    """Return field or member → the comment beside it, or that on the lines above it."""
    comments: dict[str, str] = {}
    for cls in reversed([cls for cls in schema.__mro__ if cls.__module__.startswith("nocap.")]):
        above = list[str]()
        last = ""  # the field that a line goes on with
        for line in inspect.getsource(cls).splitlines():
            if line.startswith("    #"):
                above.append(line.strip(" #"))
                continue
            code, _, beside = line.partition("  # ")
            name = re.match(r"    (\w+)(: | = )", code)
            if name is not None:
                last = name[1]
                comment = beside or " ".join(above)
                if comment:
                    comments[last] = comment
            elif re.match(r"    [@a-z]", code):  # a method
                last = ""
            elif last and beside:
                comments.setdefault(last, beside)
            above = []
    return comments


def _wrapped(head: str, text: str) -> str:
    """Return a head and a text, in lines of the help's width."""
    start = head if head.endswith("  ") else f"{head.rstrip()}  "
    indent = " " * min(len(head), COLUMN)
    filled = textwrap.fill(text, outside.WIDTH, initial_indent=start, subsequent_indent=indent)
    return filled or head.rstrip()
