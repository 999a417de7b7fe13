"""The folder of a study: find it, read and check its `study.yaml`. Of the studies that come with
nocap an installed package has the folders. No torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from nocap.config.keys import require
from nocap.config.paths import PACKAGE
from nocap.config.plain import dataclass_from, refuse_interpolations
from nocap.config.untrusted_files import parse_yaml, read_text
from nocap.judge.claim import Claim
from nocap.study.spec import Study
from nocap.study.spec_checks import check

FILE = "study.yaml"
# in a checkout, and in the folder where a command is typed
STUDIES = Path("experiments")


def load_study(folder: Path) -> Study:
    """Read the study of a folder; one of nocap's that was never carried out here has no folder yet.

    Errors:
        ValueError: no `study.yaml`, or a wrong key, type or value in it; one line with file, key,
            rule and value.
    """
    path = source_of(folder) / FILE
    try:
        study = _study_of(parse_yaml(read_text(path)), folder.resolve())
        check(study)
        options_of(study)
    except OSError as error:
        raise ValueError(
            f"{folder} must be a study's folder, with a {FILE} ({error.strerror})"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return study


def _study_of(plain: object, folder: Path) -> Study:
    """Make a study of what its yaml holds: the first arm is the baseline where it names none.

    Errors:
        ValueError: a wrong key or type.
    """
    require(isinstance(plain, dict), "a study", "hold keys and values", plain)
    content = cast(dict[str, Any], plain)
    refuse_interpolations(content)
    own = [name for name in ("name", "folder") if name in content]
    require(
        not own,
        " and ".join(own),
        "be unset, because nocap uses the folder's own name and path",
        "a value",
    )
    study: Study = dataclass_from(Study, {**content, "claims": []})
    study.name = folder.name
    study.folder = str(folder)
    study.baseline = study.baseline or next(iter(study.arms), "")
    for at in study.scales.values():
        at.lengths.sort()
    claims = content.get("claims", [])
    require(isinstance(claims, list), "claims", "be a list", claims)
    for i, claim in enumerate(claims):
        study.claims.append(_claim_of(claim, study.seeds, f"claims[{i}]"))
    return study


def _claim_of(plain: object, seeds: list[int], key: str) -> Claim:
    """Make a claim with the study's seeds. `key`: where it stands in the file."""
    require(isinstance(plain, dict), key, "hold keys and values", plain)
    content = cast(dict[str, Any], plain)
    is_bare = "seeds" not in content
    require(
        is_bare,
        f"{key}.seeds",
        "be unset, because a claim has the seeds of its study",
        content.get("seeds"),
    )
    claim: Claim = dataclass_from(Claim, {**content, "seeds": seeds}, f"{key}.")
    return claim


def options_of(study: Study) -> list[Path]:
    """List the folder of options from outside that a study brings; of most studies there is none.

    Errors:
        ValueError: it is no folder inside the study's own.
    """
    if not study.config_dir:
        return []
    home = source_of(Path(study.folder)).resolve()
    folder = (home / study.config_dir).resolve()
    is_inside = folder.is_relative_to(home) and folder.is_dir()
    require(is_inside, "config_dir", "be a folder inside the study's folder", study.config_dir)
    return [folder]


def files_of(study: Study) -> dict[Path, bytes]:
    """Return what a study is made of, its yaml and its options: path in its folder → content."""
    home = source_of(Path(study.folder)).resolve()
    paths = [home / FILE]
    for folder in options_of(study):
        paths += [path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".yaml")]
    return {path.relative_to(home): path.read_bytes() for path in paths}


def shipped() -> dict[str, Path]:
    """Return name → the folder with its yaml. An installed package has their yamls, a checkout all
    of them."""
    installed = PACKAGE / "studies"
    root = installed if installed.is_dir() else PACKAGE.parent / STUDIES
    return {path.parent.name: path.parent for path in sorted(root.glob(f"*/{FILE}"))}


def folder_of(word: str) -> Path:
    """Return the folder of a study. `word`: a folder, or the name of `experiments/NAME`, which need
    not be there.

    Errors:
        ValueError: it is neither there nor the name of a study of nocap's.
    """
    folder = Path(word)
    if os.path.lexists(folder):
        return folder
    is_below_studies = folder == STUDIES / folder.name
    inside = folder if is_below_studies else STUDIES / folder
    is_name = inside == STUDIES / folder.name
    if os.path.lexists(inside) or (is_name and folder.name in shipped()):
        return inside
    raise ValueError(
        f"{word} must be a study's folder, with a {FILE}, or one of nocap's studies: "
        f"{', '.join(shipped())}"
    )


def source_of(folder: Path) -> Path:
    """Return the folder that has the study.yaml of `folder_of`."""
    return folder if os.path.lexists(folder) else shipped().get(folder.name, folder)
