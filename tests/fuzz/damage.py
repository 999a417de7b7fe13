"""Ways to damage a file or folder of a record. Each takes a path and a random generator, and says
whether it could be done there."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

Operator = Callable[[Path, random.Random], bool]
# What an operator raises where an earlier wound was.
NOT_DONE = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    SafetensorError,
    yaml.YAMLError,
)
OUTSIDE = Path("outside")

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><script>alert(1)</script>',
    "\u202egnp.exe",
    "fine\nnocap: all is well",
    "\x9b31m",
    "\x00",
    "\ud800",
    "${oc.env:HOME}",
    "${nocap.times:9,9}",
    "../../outside/canary.txt",
    "/dev/zero",
    "| a | b |\n|---|",
    "[bold]x[/bold] [/]",
    "[x](javascript:alert(1))",
    "{{ 7 * 7 }}{% raw %}",
    "a" * 100_000,
    "",
    "nan",
    "1e999",
    "%s%n%d",
)
RAW = (  # JSON as it stands in the file
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 5_000 + "1" + "}" * 5_000,
    "9" * 400,
    "9" * 5_000,
    "-" + "9" * 400,
    "1e400",
    "1" * 30 + "." + "1" * 30,
    "NaN",
    "-Infinity",
    "Infinity",
    "undefined",
    "01",
    '"\\ud800"',
    '"\\u0000"',
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    1e300,
    -1e300,
    1e-320,
    0.5,
    2**63,
    2**64,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    "x",
    "7",
)
YAMLS = (
    "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{b}: &{b} [{','.join(f'*{a}' for _ in range(9))}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "a: &a [*a]\n",
    "a: !!python/object/apply:os.system ['touch outside/owned']\n",
    "a: !!python/name:os.system\n",
    "--- {}\n--- {}\n",
    "[" * 3_000 + "]" * 3_000,
    "a: " * 3_000 + "1",
    "- 1\n- 2\n",
    "text",
    "",
    "a: [1, 2\n",
    "\t- a\n",
    "%YAML 9.9\n---\n{}\n",
    "? {a: 1}\n: 2\n",
    "<<: {a: 1}\n",
    "seed: 2020-01-01\n",
    "seed: 0x10\n",
    "seed: 1_000\n",
    "seed: 12:30:45\n",
    "seed: yes\n",
    "seed: ~\n",
    "seed: " + "9" * 5_000 + "\n",
    "output_dir: ../../outside\n",
    "output_dir: ${oc.env:HOME}\n",
    "=: 1\n",
)


MORE = (b"\n", b"{}", b"\x00" * 100, b"garbage\n", b'{"step": 17, "tok')
NOTHING = (b"", b"", b"null", b"[]", b"0", b'"x"', b"{}", b"\n")


# --- bytes ----------------------------------------------------------------------------------------


def on_file(change: Callable[[Path, random.Random], object]) -> Operator:
    """What is done to the content of a file."""
    return lambda path, rng: path.is_file() and change(path, rng) is not False


def on_content(change: Callable[[bytes, random.Random], bytes]) -> Operator:
    def operator(path: Path, rng: random.Random) -> bool:
        before = path.read_bytes()
        path.write_bytes(after := change(before, rng))
        return after != before

    return on_file(operator)


def flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for at in rng.choices(range(len(changed)), k=rng.choice((1, 1, 1, 8))) if changed else ():
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def lines(content: bytes, rng: random.Random) -> bytes:
    """Lines doubled, lost, reordered, reversed."""
    parts = content.splitlines(keepends=True)
    at, to = sorted(rng.choices(range(len(parts) + 1), k=2))
    kinds = (
        [*parts[:to], *parts[at:]],
        parts[:at] + parts[at + 1 :],
        rng.sample(parts, len(parts)),
        parts[::-1],
        parts[:at] + parts[to:],
    )
    return b"".join(rng.choice(kinds))


def replaced(content: bytes, rng: random.Random) -> bytes:
    """A piece of it by something else."""
    at = rng.randrange(len(content) + 1)
    n = rng.randrange(20)
    raw = (b"\xff\xfe", b"\x00", b'"', b"\\", b"{", b"\xef\xbb\xbf", "ß".encode("latin-1"), b"\r")
    return content[:at] + rng.choice(raw) + content[at + n :]


# --- a path ---------------------------------------------------------------------------------------


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def instead(put: Callable[[Path, random.Random], object]) -> Operator:
    """Something else in its place."""

    def operator(path: Path, rng: random.Random) -> bool:
        if not os.path.lexists(path):
            return False
        _gone(path)
        put(path, rng)
        return True

    return operator


def _folder(path: Path, rng: random.Random) -> None:
    path.mkdir()
    if rng.random() < 0.5:
        (path / "step-00000004").mkdir()


def _link(path: Path, rng: random.Random) -> None:
    targets = (
        path,
        path.parent,
        Path("/nowhere"),
        Path("/dev/null"),
        (OUTSIDE / "canary.txt").absolute(),
        OUTSIDE.absolute(),
    )
    path.symlink_to(rng.choice(targets))


def moved(path: Path, rng: random.Random) -> bool:
    """To another disk, with a link in its place."""
    if not os.path.lexists(path) or path.is_symlink():
        return False
    place = (OUTSIDE / "moved").absolute() / f"{rng.randrange(10**6)}-{path.name}"
    place.parent.mkdir(exist_ok=True)
    path.rename(place)
    path.symlink_to(place)
    return True


def shut(path: Path, rng: random.Random) -> bool:
    if path.is_symlink() or not path.exists():
        return False
    path.chmod(0o000)
    return True


def others(path: Path, rng: random.Random) -> bool:
    """The file or folder of the same name of another run, or of the same run's other checkpoint."""
    paths = Path().glob(f"**/{path.name}")
    candidates = []
    for place in sorted(paths):
        if place == path or path in place.parents:
            continue
        if place.is_file() == path.is_file():
            candidates.append(place)
    if not candidates or not path.exists() or path == Path("outputs"):
        return False
    other = rng.choice(candidates)
    if other in path.parents or not other.exists():
        return False
    aside = OUTSIDE / f".aside-{rng.randrange(10**6)}"
    shutil.copytree(other, aside, symlinks=True) if other.is_dir() else shutil.copyfile(
        other, aside
    )
    _gone(path)
    aside.rename(path)
    return True


def _other_name(path: Path, rng: random.Random) -> Path:
    name = path.name
    if name.startswith("step-"):
        digits = f"step-{rng.randrange(12):08d}"
    else:
        digits = f"{name}2"
    names = (
        f"{name}.bak",
        f"backup-of-{name}",
        f"{name}-copy",
        digits,
        f".{name}",
        name.upper(),
        name[:-1],
        f"{name} (2)",
        f"x\x1b[31m{name}",
    )
    return path.with_name(rng.choice(names))


def renamed(path: Path, rng: random.Random) -> bool:
    place = _other_name(path, rng)
    if not os.path.lexists(path) or os.path.lexists(place) or path == place:
        return False
    path.rename(place)
    return True


def copied(path: Path, rng: random.Random) -> bool:
    """Beside itself or elsewhere in the tree, under another name or into another folder."""
    place = _other_name(path, rng)
    # which would make a run of any folder
    if rng.random() < 0.3 and path.name not in ("manifest.json", "summary.json"):
        paths = sorted(Path("outputs").glob("*/**/"))
        folders = [folder for folder in paths if path not in (folder, *folder.parents)]
        if folders:
            place = rng.choice(folders) / path.name
    if not path.exists() or os.path.lexists(place):
        return False
    shutil.copytree(path, place, symlinks=True) if path.is_dir() else shutil.copyfile(path, place)
    return True


STRAY = (
    "step-00000025.bak",
    "step-00000003",
    "step-x",
    "step-",
    ".step-00000009.tmp",
    "notes.txt",
    "runs",
    "nano-flash-s2-000000000000",
    "grid.json",
    "results.x.json",
    "manifest.json",
    "summary.json",
    ".lease",
    "a\x1b[31mb",
    "options",
)


def stray(path: Path, rng: random.Random) -> bool:
    """Something lying in a folder that does not belong there."""
    place = path / rng.choice(STRAY)
    if not path.is_dir() or os.path.lexists(place):
        return False
    makers: list[Callable[[], Any]] = [
        lambda: place.write_text("a note\n"),
        place.mkdir,
        lambda: place.symlink_to("/"),
        lambda: place.symlink_to(place),
        lambda: os.mkfifo(place),
        place.touch,
    ]
    make = rng.choice(makers)
    make()
    return True


# --- JSON and YAML --------------------------------------------------------------------------------

_MARK = "@@damage@@"


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    ):
        yield (*path, key)
        yield from _places(value, (*path, key))


def _at(tree: Any, path: tuple[Any, ...]) -> tuple[Any, Any]:
    """The parent and the key of a place."""
    for key in path[:-1]:
        tree = tree[key]
    return tree, path[-1]


def _put(tree: Any, rng: random.Random, raws: tuple[str, ...]) -> tuple[Any, str]:
    """Change one place of a tree; what the mark in it stands for."""
    # an earlier wound may have made a tree of aliases
    places = list(itertools.islice(_places(tree), 10_000))
    if not places:
        return rng.choice(VALUES), ""
    shallow = [place for place in places if len(place) <= 2]
    parent, key = _at(tree, rng.choice(shallow if shallow and rng.random() < 0.5 else places))
    old = parent[key]
    other, place = _at(tree, rng.choice(places))
    kind = rng.choice(("value", "raw", "gone", "more", "swapped", "twice"))
    if kind == "raw":
        parent[key] = _MARK
        return tree, rng.choice(raws)
    if kind == "gone":
        del parent[key]
    elif kind == "more" and isinstance(parent, dict):
        parent[rng.choice((*HOSTILE[:12], "unknown", "__class__", "schema_version", "seed"))] = (
            rng.choice((*VALUES, *HOSTILE))
        )
    elif kind == "twice" and isinstance(parent, dict):
        parent[f"{_MARK}{key}"] = rng.choice(VALUES)
    elif kind == "swapped":
        parent[key] = other[place]
        other[place] = old
    else:
        near: tuple[Any, ...] = (old,)
        if type(old) in (int, float):
            near = (old * 0.9, old + 1, -old, old * 1e9, float(old), str(old))
        values = (
            rng.choice(VALUES),
            rng.choice(HOSTILE),
            rng.choice(near),
            [old] * rng.choice((1, 2, 1000)),
            {"a": old},
        )
        parent[key] = rng.choice(values)
    return tree, ""


def _text(tree: Any, raw: str) -> str:
    text = json.dumps(tree, indent=None)
    if raw:
        text = text.replace(json.dumps(_MARK), raw)
    return text.replace(_MARK, "")


def in_json(path: Path, rng: random.Random) -> None:
    """A value of a JSON file, or of a line of JSON lines."""
    before = path.read_text(errors="replace")
    if path.suffix == ".jsonl":
        rows = before.splitlines()
    else:
        rows = [before]
    at = rng.randrange(len(rows))
    content = json.loads(rows[at])
    rows[at] = _text(*_put(content, rng, RAW))
    text = "\n".join(rows) + "\n"
    path.write_text(text, errors="surrogatepass")


def in_yaml(path: Path, rng: random.Random) -> None:
    before = path.read_text(errors="replace")
    if rng.random() < 0.4:
        text = rng.choice(("", before)) + rng.choice(YAMLS)
    else:
        content = yaml.safe_load(before)
        tree, raw = _put(
            content, rng, (*RAW, "*a", "&a 1", "!!python/object:os.x {}", "[", "'", "2020-01-01")
        )
        text = _text(tree, raw)  # JSON is YAML, nearly
        if not (rng.random() < 0.5 or raw):
            text = yaml.safe_dump(tree, sort_keys=False)
    path.write_text(text, errors="surrogatepass")


# --- checkpoints ----------------------------------------------------------------------------------


def in_tensors(path: Path, rng: random.Random) -> None:
    """Tensors of another number, shape, type or name."""
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    if rng.random() < 0.2:
        tensor = tensors.pop(name)
    else:
        tensor = tensors[name]
    changed = (
        tensor.reshape(-1)[: max(1, tensor.numel() // 2)].clone(),
        tensor.double(),
        tensor.half(),
        tensor.reshape(1, *tensor.shape),
        torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor * 0,
        tensor + 1,
        torch.zeros(0),
    )
    if rng.random() < 0.2:
        tensors[rng.choice((*HOSTILE[:8], "0/x/y", "9/lm_head.weight/exp_avg", "/", "0//"))] = (
            tensor.clone()
        )
    elif name in tensors:
        tensors[name] = rng.choice(changed)
    save_file(tensors, path)


def stamped(operator: Operator) -> Operator:
    """Damage by somebody who makes the checkpoint's checksums anew. What the numbers then are is
    his; the rest of the promises holds."""

    def forged(path: Path, rng: random.Random) -> bool:
        done = operator(path, rng)
        sums = path.with_name("manifest.json")
        if done and sums.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            content = {**json.loads(sums.read_text()), path.name: digest}
            sums.write_text(json.dumps(content))
        return done and sums.is_file()

    return forged


FORGED = ("forged-tensors", "forged-state")
OPERATORS: dict[str, Operator] = {
    "flip": on_content(flip),
    "cut": on_content(lambda content, rng: content[: rng.randrange(len(content) + 1)]),
    "extend": on_content(
        lambda content, rng: content + rng.choice((*MORE, rng.randbytes(50), content))
    ),
    "lines": on_content(lines),
    "replace": on_content(replaced),
    "empty": on_content(lambda content, rng: rng.choice((*NOTHING, b"\x00" * len(content)))),
    "delete": instead(lambda path, rng: None),
    "folder": instead(_folder),
    "file": instead(lambda path, rng: path.write_text("a note\n")),
    "link": instead(_link),
    "fifo": instead(lambda path, rng: os.mkfifo(path)),
    "moved": moved,
    "shut": shut,
    "another's": others,
    "rename": renamed,
    "copy": copied,
    "stray": stray,
    "json": on_file(in_json),
    "yaml": on_file(in_yaml),
    "tensors": on_file(in_tensors),
    "forged-tensors": stamped(on_file(in_tensors)),
    "forged-state": stamped(on_file(in_json)),
}


def applicable(path: Path) -> list[str]:
    """The operators that make sense there, what is typical of the file more often."""
    names = ["delete", "file", "link", "fifo", "moved", "shut", "another's", "rename", "copy"]
    if path.is_dir():
        return [*names, "stray", "stray", "stray", "copy"]
    names += ["folder", "flip", "cut", "extend", "replace", "empty"]
    more = {
        ".json": ["json"] * 10,
        ".jsonl": ["json"] * 8 + ["lines"] * 6,
        ".yaml": ["yaml"] * 12 + ["lines"] * 2,
        ".safetensors": ["tensors"] * 3 + ["forged-tensors"] * 4,
        ".md": ["lines"] * 2,
    }
    return (
        names
        + more.get(path.suffix, [])
        + (["forged-state"] * 8 if path.name == "state.json" else [])
    )
