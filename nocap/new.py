"""`python -m nocap.new GROUP NAME`: write an option that works, its yaml and its test, to start from; or a study that runs."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from keyword import iskeyword
from pathlib import Path

from nocap import outside
from nocap.config import registry
from nocap.config.keys import require
from nocap.config.paths import PACKAGE, conf_dir
from nocap.store.files import write_file

TEMPLATES = PACKAGE / "templates"
STUDY = "study"  # beside the groups: a folder with a study.yaml
VALUES = ("true", "false", "null", "nan", "inf")  # that the command line would read as such
PLACEHOLDERS = re.compile(r"\b(NAME|CLASS|OVERRIDE)\b")  # OVERRIDE: the override that chooses the option


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(outside.arguments(argv))
    from nocap.config.errors import refusals  # Hydra comes with it: --help does without

    with refusals():
        group, name = options.group, options.name
        folder = Path(options.dir or name)
        kinds = (*registry.groups(), STUDY)
        require(group in kinds, "GROUP", f"be one of {', '.join(kinds)}", group)
        ok = name.isidentifier() and name.isascii() and not name.startswith("_") and not iskeyword(name) and len(name) <= 100
        require(ok, "NAME", "be a Python name, in letters, digits and _, that begins with a letter", name)
        if group != STUDY:
            outside.use([folder] if folder.is_dir() else [])
            _check_name(group, name)
        files = _files(group, name, folder)
        _write(folder, files)
        print("\n".join([*map(str, files), *_next(group, name, folder)]), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.new",
        description="Write DIR/GROUP/NAME.py, its yaml and DIR/test_NAME.py: an option that works, to start from. "
        "With study for GROUP, write DIR/study.yaml: a study that runs in a few minutes.",
    )
    parser.add_argument("group", metavar="GROUP", help=", ".join((*registry.groups(), STUDY)))
    parser.add_argument("name", metavar="NAME", help="the option's or the study's name: letters, digits and _")
    parser.add_argument("--dir", metavar="DIR", help="the folder for --config-dir, or that of the study (default: ./NAME)")
    outside.document(parser)
    return parser


def _check_name(group: str, name: str) -> None:
    require(name.lower() not in VALUES, "NAME", "be no value of the command line", name)
    for folder in (conf_dir(), *outside.folders()):
        taken = folder / outside.place(group) / f"{name}.yaml"
        require(not taken.exists(), "NAME", f"be new: {taken} is {group}={name} already", name)
    require(name not in registry.options(group), "NAME", f"be new: an option of {group} has this kind already", name)


def _files(group: str, name: str, folder: Path) -> dict[Path, str]:
    """Path → text of what is to be written; none of it is there."""
    place = folder / outside.place(group)
    paths = {"py": place / f"{name}.py", "yaml": place / f"{name}.yaml", "test": folder / f"test_{name}.py"}
    if group == STUDY:
        paths = {"yaml": folder / "study.yaml"}
    files = {}
    for kind, path in paths.items():
        require(not path.exists(), "NAME", "be new: the file must not be there", path)
        text = (TEMPLATES / f"{group}.{kind}.txt").read_text()
        files[path] = _filled(_test(text) if kind == "test" else text, group, name)
    return files


def _test(formula: str) -> str:
    """The test's file: what every option's has, and the group's own."""
    head = (TEMPLATES / "test.txt").read_text()
    return (head if "torch." in formula else head.replace("import torch\n\n", "")) + formula


def _filled(text: str, group: str, name: str) -> str:
    """The template with the option's own names."""
    camel = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    suffix = group.removesuffix("s").capitalize()
    override = {"ideas": f"ideas=[{name}]", "launcher": f"hydra/launcher={name}"}.get(group, f"{group}={name}")
    names = {"NAME": name, "CLASS": camel if camel.endswith(suffix) and camel != suffix else camel + suffix, "OVERRIDE": override}
    return PLACEHOLDERS.sub(lambda found: names[found[0]], text)


def _write(folder: Path, files: dict[Path, str]) -> None:
    there = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    require(there.is_dir(), "--dir", "be a folder", folder)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text.encode())


def _next(group: str, name: str, folder: Path) -> list[str]:
    place, override = shlex.quote(str(folder)), _filled("OVERRIDE", group, name)
    if group == STUDY:
        return ["next:", f"  nocap study {place} --plan", f"  nocap study {place}"]
    grid = "--multirun seed=0,1 " if group == "launcher" else ""
    return [
        "next:",
        f"  nocap train --config-dir {place} {grid}{shlex.quote(override) if '[' in override else override}",
        f"  nocap check {place}",
        f"  pytest {shlex.quote(str(folder / f'test_{name}.py'))}",
    ]


if __name__ == "__main__":
    sys.exit(main())
