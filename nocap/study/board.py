"""The leaderboard of a folder of studies, a row a claim: what there is, and the files about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from nocap.config.keys import require
from nocap.report.table import tame
from nocap.study.board_pages import html, markdown
from nocap.study.board_sections import sections
from nocap.study.spec import Study
from nocap.study.study_folder import FILE, load_study
from nocap.study.study_pages import all_results, files, write_all
from nocap.study.study_result import StudyResult


def write(folder: Path) -> list[Path]:
    """Write `README.md` and `board.html` in the folder, and `README.md` in each study's; return
    their paths.

    Errors:
        ValueError: a folder without any study's results, results that were changed, a wrong
            `board.yaml` or `not_built.yaml`, or a claim whose source no group of `board.yaml` has.
    """
    return write_all(board(folder))


def board(folder: Path) -> dict[Path, str]:
    """Return all that `write` writes, from the results that are there."""
    studies, results = read_studies(folder)
    return files_of(folder, studies, results)


def read_studies(folder: Path) -> tuple[dict[str, Study], dict[str, list[StudyResult]]]:
    """Return the studies of a folder, and the results of each.

    Errors:
        ValueError: no results, or some whose study is not beside them, or that were changed.
    """
    folders = list[Path]()
    if folder.is_dir():
        folders = [home for home in sorted(folder.iterdir()) if home.is_dir()]
    studies = {home.name: load_study(home) for home in folders if (home / FILE).exists()}
    for home in folders:
        for path in home.glob("results.*.*.json"):
            require(
                home.name in studies,
                str(path),
                f"lie in the folder of its study, with {FILE}",
                "none",
            )
    results = {name: all_results(study, folder / name) for name, study in studies.items()}
    rule = "be a folder with studies that have results, as experiments"
    require(any(results.values()), "--board", rule, folder)
    return studies, results


def hash_problems(every: Iterable[StudyResult]) -> Iterator[str]:
    """Name the results whose claims are known by their stored hashes alone."""
    for result in every:
        if result.hash_problem:
            name = f"{result.study.name}, scale {result.scale}"
            yield (
                f"{name}: claims keep their stored hashes, because nocap cannot compose the arms "
                f"here: {result.hash_problem}"
            )


def files_of(
    folder: Path, studies: Mapping[str, Study], results: Mapping[str, list[StudyResult]]
) -> dict[Path, str]:
    """Return the board's files and those of each study, by their paths."""
    every = list(chain(*results.values()))
    about, parts = sections(folder, every, studies)
    contents = {folder / "README.md": tame(markdown(about, parts))}
    contents[folder / "board.html"] = html(about, parts)
    for name, study in studies.items():
        if results[name]:
            contents |= files(study, folder / name, results[name])
    return contents
