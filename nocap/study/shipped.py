"""The studies that come with nocap, by name: an installed package has their yamls, a checkout all of them."""

from __future__ import annotations

import os
from pathlib import Path

from nocap.config.paths import PACKAGE
from nocap.store.files import write_file
from nocap.study.spec import FILE

PLACE = Path("experiments")  # of studies, in a checkout and in the folder where a command is typed


def shipped() -> dict[str, Path]:
    """Name → the folder with its yaml."""
    installed = PACKAGE / "studies"
    root = installed if installed.is_dir() else PACKAGE.parent / PLACE
    return {path.parent.name: path.parent for path in sorted(root.glob(f"*/{FILE}"))}


def folder_of(word: str) -> Path:
    """The folder of a study, given as a folder or as a name: `experiments/NAME`, whether it is there or not.

    Errors:
        ValueError: it is neither there nor the name of a study of nocap's.
    """
    given = Path(word)
    place = given if given == PLACE / given.name else PLACE / given
    if os.path.lexists(given):
        return given
    if os.path.lexists(place) or (place == PLACE / given.name and given.name in shipped()):
        return place
    raise ValueError(f"{word} must be a study's folder, with a {FILE}, or one of nocap's studies: {', '.join(shipped())}")


def source_of(folder: Path) -> Path:
    """Where the study.yaml of `folder_of` is: a study of nocap's that was never carried out here has no folder yet."""
    return folder if os.path.lexists(folder) else shipped()[folder.name]


def settle(folder: Path) -> None:
    """Give it a folder, where its ledger and results go."""
    if (source := source_of(folder)) != folder:
        write_file(folder / FILE, (source / FILE).read_bytes())
        print(f"written: {folder / FILE}, as it comes with nocap")
