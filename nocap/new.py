"""`python -m nocap.new GROUP NAME`: an option that works, its yaml and its test; or a study that
runs."""

from __future__ import annotations

import argparse
import re
import shlex
from keyword import iskeyword
from pathlib import Path

from nocap import outside
from nocap.command_line import command
from nocap.config import entry
from nocap.config.keys import require
from nocap.config.paths import PACKAGE, conf_dir
from nocap.store.file_writing import write_file

TEMPLATES = PACKAGE / "templates"
STUDY = "study"  # beside the groups: a folder with a study.yaml


def main(argv: list[str] | None = None) -> int:
    return command(_parser(), _write, argv)


def _write(options: argparse.Namespace) -> int:
    group = options.group
    name = options.name
    folder = Path(options.dir or name)
    _check(group, name, folder)
    files = _files(group, name, folder)
    for path, text in files.items():
        write_file(path, text.encode())
    for path in files:
        print(path)
    print("next:")
    for line in _next(group, name, shlex.quote(str(folder))):
        print(f"  {line}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.new",
        description=(
            "Write a working option that you can change: DIR/GROUP/NAME.py, its yaml and "
            "DIR/test_NAME.py. If GROUP is study, write DIR/study.yaml, a study that runs in a "
            "few minutes."
        ),
    )
    parser.add_argument("group", metavar="GROUP", help=", ".join((*outside.groups(), STUDY)))
    parser.add_argument(
        "name", metavar="NAME", help="name of the option or the study, in letters, digits and _"
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help="folder for --config-dir, or folder of the study (default: ./NAME)",
    )
    return parser


def _check(group: str, name: str, folder: Path) -> None:
    """Refuse a name that is taken, or that none of Python, the command line and the files takes."""
    kinds = (*outside.groups(), STUDY)
    require(group in kinds, "GROUP", f"be one of {', '.join(kinds)}", group)
    is_name = name.isidentifier() and name.isascii() and not iskeyword(name)
    is_public = not name.startswith("_") and len(name) <= 100
    rule = "be a Python name, in letters, digits and _, that begins with a letter"
    require(is_name and is_public, "NAME", rule, name)
    if group == STUDY:
        return
    outside.use([folder] if folder.is_dir() else [])
    for place in (conf_dir(), *outside.folders()):
        yaml = place / outside.place(group) / f"{name}.yaml"
        require(not yaml.exists(), "NAME", f"be new, but {yaml} exists already", name)
    rule = f"be new, but an option of {group} already has kind={name}"
    require(name not in outside.all_options(group), "NAME", rule, name)


def _files(group: str, name: str, folder: Path) -> dict[Path, str]:
    """Path → text of what is to be written; none of it is there."""
    words = {
        "NAME": name,
        "CLASS": _class_name(group, name),
        "OVERRIDE": outside.choice(group, name),
    }
    place = folder / outside.place(group)
    paths = {
        "py": place / f"{name}.py",
        "yaml": place / f"{name}.yaml",
        "test": folder / f"test_{name}.py",
    }
    if group == STUDY:
        paths = {"yaml": folder / "study.yaml"}
    files = {}
    for kind, path in paths.items():
        require(not path.exists(), "NAME", "be new, but its file exists already", path)
        text = (TEMPLATES / f"{group}.{kind}.txt").read_text()
        if kind == "test":  # what every option's has, and the group's own
            head = (TEMPLATES / "test.txt").read_text()
            if "torch." not in text:
                head = head.replace("import torch\n\n", "")
            text = head + text
        files[path] = re.sub(rf"\b({'|'.join(words)})\b", lambda word: words[word[0]], text)
    return files


def _class_name(group: str, name: str) -> str:
    """Return `SoftCapAttention` for the attention `soft_cap`."""
    suffix = group.removesuffix("s").capitalize()
    camel = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    if camel.endswith(suffix) and camel != suffix:
        return camel
    return camel + suffix


def _next(group: str, name: str, place: str) -> list[str]:
    if group == STUDY:
        return [f"nocap study {place} --plan", f"nocap study {place}"]
    grid = "--multirun seed=0,1 " if group == "launcher" else ""
    train = f"nocap train --config-dir {place} {grid}{shlex.quote(outside.choice(group, name))}"
    return [train, f"nocap check {place}", f"pytest {place}/test_{name}.py"]


if __name__ == "__main__":
    entry.run(main)
