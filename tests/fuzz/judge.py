"""One case: a copy of the library, damage, a door, and which of the allowed outcomes its answer
is."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nocap.config.keys import flat
from nocap.store.record import dig
from nocap.store.record_files import ENDED
from tests.fuzz.damage import FORGED, NOT_DONE, OPERATORS, applicable
from tests.fuzz.doors import RUNS, Door, Numbers, doors
from tests.fuzz.library import copy_of
from tests.fuzz.process import LIMIT_S, Answer, answer, workers_here

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
SCRIPT = re.compile(r"<script>alert|<img src=x", re.IGNORECASE)
HEAD = ("manifest.json", "summary.json")  # what makes a folder a run
READ = (
    "manifest.json",
    "summary.json",
    "metrics.jsonl",
    "config.yaml",
    "state.json",
    "grid.json",
    "results.",
    "study.yaml",
)
PARENTS = ("outputs", "runs", "grids")  # themselves: what is in them is damaged more finely
LONGEST = 1_100  # characters of a line on stderr


@dataclass(frozen=True)
class Wound:
    """Damage: a path of the library, how, and the seed of its details."""

    path: str
    how: str
    seed: int


@dataclass(frozen=True)
class Case:
    door: str
    wounds: tuple[Wound, ...]


@dataclass(frozen=True)
class Verdict:
    outcome: str  # same, mended, refused, left out, edited, nothing done; or a fault
    detail: str = ""


FAULTS = ("traceback", "hang", "silent", "unnamed", "escape", "script", "wrote", "code")


class Bench:
    """A library, and what each door says of it undamaged."""

    def __init__(self, library: Path, scratch: Path) -> None:
        self.library = library
        self._scratch = scratch
        self._n = 0
        self.doors = doors(library)
        self.targets = {name: self._targets(door) for name, door in self.doors.items()}
        self.sound: dict[str, tuple[Answer, Numbers]] = {}

    def _targets(self, door: Door) -> list[str]:
        """Paths to damage; those that every door reads, several times."""
        roots = set[Path]()
        for glob in door.focus:
            roots.update(self.library.glob(glob))
        below = set[Path]()
        for root in roots:
            below.update((root,) if root.name in PARENTS else (root, *root.rglob("*")))
        paths: list[str] = []
        for path in sorted(below):
            for _ in range(4 if path.name.startswith(READ) else 1):
                paths.append(str(path.relative_to(self.library)))
        return paths

    def applicable(self, target: str) -> list[str]:
        return applicable(self.library / target)

    def random_case(self, rng: random.Random) -> Case:
        weights = [door.weight for door in self.doors.values()]
        door = rng.choices(list(self.doors), weights)[0]
        wounds = []
        for _ in range(rng.choices((1, 2, 3), (6, 3, 1))[0]):
            target = rng.choice(self.targets[door])
            operator = rng.choice(self.applicable(target))
            wounds.append(Wound(target, operator, rng.randrange(10**6)))
        return Case(door, tuple(wounds))

    def undamaged(self, name: str) -> tuple[Answer, Numbers]:
        if name not in self.sound:
            door = self.doors[name]
            with self._copy(door), workers_here():
                said = answer(door.call, limit_s=60)
                assert said.code == 0, said
                assert said.crash is None, said
                assert said.hung is False, said
                self.sound[name] = said, door.numbers(replace(said, began=0.0))
        return self.sound[name]

    def _copy(self, door: Door) -> Any:
        self._n += 1
        without = set()
        for what, names in RUNS.items():
            if what not in door.needs:
                without.update(names)
        return copy_of(self.library, self._scratch / f"{self._n}", without=without)

    def run(self, case: Case, *, limit_s: float = LIMIT_S) -> Verdict:
        door = self.doors[case.door]
        sound, expected = self.undamaged(case.door)
        with self._copy(door) as place, workers_here():
            done = [wound for wound in case.wounds if _inflict(wound)]
            if not done:
                return Verdict("nothing done")
            before = dict(_tree(place))
            said = answer(door.call, limit_s=limit_s)
            if not said.hung or limit_s > LIMIT_S:
                after = dict(_tree(place))
                return Judge(door, done, sound, expected, said).verdict(before, after)
        began = time.process_time()
        verdict = self.run(case, limit_s=4 * LIMIT_S)  # on a busy machine: did it wait for a core?
        if time.process_time() - began < LIMIT_S:
            return verdict
        return Verdict("hang", _last_places(said.trace))


def _inflict(wound: Wound) -> bool:
    if os.path.islink(wound.path):  # an earlier wound: what it leads to is not ours to damage
        return False
    try:
        chance = random.Random(wound.seed)
        return OPERATORS[wound.how](Path(wound.path), chance)
    except NOT_DONE:
        return False


def _tree(place: Path) -> Iterator[tuple[str, tuple[int, int, int]]]:
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            about = os.lstat(path)
            if os.path.isdir(path):
                size = 0
            else:
                size = about.st_size
            yield (
                os.path.relpath(path, place),
                (about.st_mode, size, 0 if os.path.isdir(path) else about.st_mtime_ns),
            )


class Judge:
    def __init__(
        self, door: Door, wounds: list[Wound], sound: Answer, expected: Numbers, said: Answer
    ) -> None:
        self.door = door
        self.wounds = wounds
        self.sound = sound
        self.expected = expected
        self.said = said

    def verdict(self, before: dict[str, Any], after: dict[str, Any]) -> Verdict:
        said = self.said
        if said.hung:
            return Verdict("hang", _last_places(said.trace))
        if said.crash is not None or "Traceback" in said.err:
            return Verdict("traceback", said.crash or said.err)
        out = said.out.replace("\r\n", "\n")
        if control := CONTROL.search(out + said.err):
            return Verdict("escape", repr(control.group()))
        if wrote := self._wrote(before, after):
            return Verdict("wrote", wrote)
        pages = list[Path]()
        for glob in self.door.pages:
            paths = Path().glob(glob)
            pages += [path for path in paths if path.is_file()]
        for page in pages:
            if SCRIPT.search(page.read_text(errors="replace")):
                return Verdict("script", str(page))
        return self._outcome()

    def _wrote(self, before: dict[str, Any], after: dict[str, Any]) -> str:
        changed = set()
        for path in before.keys() | after.keys():
            if before.get(path) != after.get(path):
                changed.add(path)
        free = [*self.door.writes, "outside/moved"]
        allowed = set()
        for glob in free:
            for match in Path().glob(glob):
                allowed.add(str(match))
        # new files where a person's link leads; those that are there stay
        if any(wound.how == "link" for wound in self.wounds):
            outside = {path for path in changed if path.startswith("outside/")}
            changed -= outside - before.keys()
        wrong = []
        for path in changed:
            if not any(
                path == free or path.startswith(f"{free}/")
                for free in (*allowed, *self.door.writes)
            ):
                wrong.append(path)
        wrong.sort()
        return ", ".join(wrong[:3])

    def _outcome(self) -> Verdict:
        said = self.said
        if said.code in (1, 2):
            return self._refusal()
        if said.code != 0:
            return Verdict("code", f"exit code {said.code}: {said.err}")
        try:
            numbers = self.door.numbers(said)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            if any(map(_is_own, self.wounds)):
                return Verdict("edited")
            return Verdict("silent", f"no answer: {type(error).__name__} {error}")
        off = []
        for key in self.expected.keys() | numbers.keys():
            if not _equal(self.expected.get(key), numbers.get(key)):
                off.append(key)
        # the rest of a comparison is of fewer runs
        if self.door.lists and (
            gone := {key for key in self.expected if key and key not in numbers and _is_gone(key)}
        ):
            off = [key for key in off if key not in {"", *gone}]
        if not off:
            return Verdict("same" if said.err == self.sound.err else "mended")
        self.open_records = set()
        for key, record in numbers.items():
            if dig(record, "status") not in (None, *ENDED):
                self.open_records.add(key)
        named = self._new_lines()
        unnamed = sorted(key for key in off if not self._is_named(key, named))
        if unnamed and any(map(_is_own, self.wounds)):
            return Verdict("edited")
        if unnamed:
            key = unnamed[0]
            difference = _difference(key, self.expected.get(key), numbers.get(key))
            return Verdict("silent", difference)
        return Verdict("left out")

    def _refusal(self) -> Verdict:
        """One line, which names what is damaged."""
        lines = self.said.err.splitlines()
        if not lines and self.door.name.startswith("grid"):
            lines = self.said.out.splitlines()
        forged = any(wound.how in FORGED for wound in self.wounds)
        # an optimizer with another's numbers stops where it cannot go on
        if (
            forged
            and self.said.code == 1
            and (
                "\ndiverged: " in self.said.out
                or (len(lines) == 1 and lines[0].endswith("train.log"))
            )
        ):
            return Verdict("edited")
        if self.said.code == 1 and any("missing (" in line for line in self._new_lines()):
            return Verdict("left out")  # a study's run
        bad = [line for line in lines if not line.startswith("nocap: ") or len(line) > LONGEST]
        if not lines or bad:
            return Verdict(
                "unnamed",
                f"exit code {self.said.code}, "
                f"{f'not one line: {bad[0][:200]!r}' if bad else 'no line'}",
            )
        if self._mentions(lines):
            return Verdict("refused")
        return Verdict("unnamed", lines[-1][:300])

    def _words(self) -> set[str]:
        """Names of what is damaged, and of the folders that it is in."""
        paths = [Path(wound.path) for wound in self.wounds]
        near = set()
        for path in paths:
            for part in (*path.parts[-3:], *path.parts[2:3]):
                if part not in ("outputs", "runs", "grids"):
                    near.add(part)
        names = {path.name for path in paths}
        return near | {name.rpartition("-")[2] for name in near if name.startswith("nano-")} | names

    def _mentions(self, lines: list[str]) -> bool:
        text = "\n".join(lines)
        return any(word in text for word in self._words())

    def _new_lines(self) -> list[str]:
        old = {*self.sound.out.splitlines(), *self.sound.err.splitlines()}
        lines = []
        for line in (*self.said.out.splitlines(), *self.said.err.splitlines()):
            if line not in old:
                lines.append(line)
        if isinstance(self.said.value, dict):
            return lines + _problems(self.said.value)
        return lines

    def _is_named(self, key: str, lines: list[str]) -> bool:
        """A run by its own name, or by that of the grid's list that it is no more in; the whole by
        anything that is damaged."""
        if key and key in self.expected and not key.startswith("nano-"):
            if key in self.open_records:  # which says that it has not ended
                return True
            return any(
                key in line or "grid.json: the file's cells do not match" in line for line in lines
            )
        if any("; left out: " in line for line in lines):
            return True
        return self._mentions([line for line in lines if not line.startswith("  record")])


def _equal(expected: Any, actual: Any) -> bool:
    """What was not trained now has no state to compare."""
    if isinstance(actual, dict) and isinstance(expected, dict) and actual.get("state", 0) is None:
        return {**expected, "state": None} == actual
    return bool(expected == actual)


def _is_own(wound: Wound) -> bool:
    """What a person writes, or could forge with its checksums: another file has another answer."""
    return wound.how in FORGED or wound.path.startswith("experiments")


def _is_gone(identity: str) -> bool:
    """Whether no folder of that run is left: then nobody can name it."""
    paths = Path("outputs/runs").glob(f"[!.]*-{identity}")
    return not any(os.path.lexists(folder / file) for folder in paths for file in HEAD)


def _problems(content: dict[str, Any]) -> list[str]:
    return [
        *content.get("problems", ()),
        *(f"{row['name']}: {row['status']}" for row in content.get("not_compared", ())),
    ]


def _last_places(trace: str) -> str:
    places = re.findall(
        r'File ".*?/(?:nocap|site-packages|lib/python3\.\d+)/(\S+?)", line \d+, in (\S+)', trace
    )
    own = ("fuzz", "contextlib")
    places = [place for place in places if not any(word in place[0] for word in own)]
    return " < ".join(f"{file}:{name}" for file, name in places[-2:][::-1])


def _difference(key: str, old: Any, new: Any) -> str:
    """The first place where two trees differ, or the first lines of two texts."""
    sides = [dict(flat({key: side})) for side in (old, new)]
    first, second = sides
    place = next(place for place in {**first, **second} if first.get(place) != second.get(place))
    was, now = (str(side.get(place)).splitlines() or [""] for side in sides)
    return (
        f"{place}: {[line for line in was if line not in now][:1]} → "
        f"{[line for line in now if line not in was][:1]}"
    )
