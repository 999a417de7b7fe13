"""The leaderboard of a folder of studies, a row a claim: what there is, and the files about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from nocap.config.keys import require
from nocap.report.table import tame
from nocap.study.board_pages import html, markdown
from nocap.study.board_sections import sections
from nocap.study.spec import Study
from nocap.study.study_folder import FILE, load_study
from nocap.study.study_pages import all_results, files
from nocap.study.study_result import StudyResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """The studies of a folder, and the results of each."""

    folder: Path
    studies: Mapping[str, Study]
    results: Mapping[str, list[StudyResult]]

    def hash_problems(self) -> Iterator[str]:
        """Name the results whose claims are known by their stored hashes alone."""
        for result in chain(*self.results.values()):
            if result.hash_problem:
                name = f"{result.study.name}, scale {result.scale}"
                yield (
                    f"{name}: claims keep their stored hashes, because nocap cannot compose the "
                    f"arms here: {result.hash_problem}"
                )

    def files(self) -> dict[Path, str]:
        """Return `README.md` and `board.html` of the folder, and `README.md` of each study that has
        results, by their paths.

        Errors:
            ValueError: a wrong `board.yaml` or `not_built.yaml`, or a claim whose source no group
                of `board.yaml` has.
        """
        every = list(chain(*self.results.values()))
        about, parts = sections(self.folder, every, self.studies)
        readme = markdown(about, parts, folder=self.folder.resolve().name)
        contents = {self.folder / "README.md": tame(readme)}
        contents[self.folder / "board.html"] = html(about, parts)
        for name, study in self.studies.items():
            if self.results[name]:
                contents |= files(study, self.folder / name, self.results[name])
        return contents


def read_board(folder: Path) -> Board:
    """Return the board of a folder of studies.

    Errors:
        ValueError: no results, or some whose study is not beside them, or that were changed.
    """
    folders = list[Path]()
    if folder.is_dir():
        folders = [home for home in sorted(folder.iterdir()) if home.is_dir()]
    studies = {home.name: load_study(home) for home in folders if (home / FILE).exists()}
    for home in folders:
        for path in home.glob("results.*.*.json"):
            rule = f"be in a folder that has a {FILE}"
            require(home.name in studies, str(path), rule, "none")
    results = {name: all_results(study, folder / name) for name, study in studies.items()}
    rule = "be a folder with studies that have results, such as experiments"
    require(any(results.values()), "--board", rule, folder)
    return Board(folder=folder, studies=studies, results=results)
