"""Find the arm and the seed of each run of a log. Two runs are never taken for one: what is not
known is refused, with what settles it. `RunNames` has examples.

The steps, each for what the ones before it left open:

1. The log or `--columns` says it (`load`), or `--names` says where in the path it stands
   (`names_flag`).
2. The seed is a setting: `seed` in a file of settings.
3. The seed is in a name: `seed0`, `wide_s0`. It is taken out, and so are names that are never an
   arm, such as `logs` or `run-3`. What is left are the labels of the run: of its folders, its file,
   and its name in the log.
4. No run has a seed, and each arm counts alike from 0 or 1: its last numbers are the seeds.
5. Times, hashes and numbers are taken out of labels, unless several runs share them.
6. The arm is the label of the folders; of the file too, where the folders are one, or have two
   runs of a seed; the settings that vary, where labels do not tell the same; the run's name in the
   log, where nothing else tells runs apart.
7. Runs that then differ only by a number, a hash or a time are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nocap.display import shorten
from nocap.sources.logs.name_patterns import (
    INDEX,
    NO_FILE_NAME,
    NO_NAME,
    NO_SETTINGS,
    NUMBER,
    SEEDS,
    VERSION,
    WHEN,
    without_ids,
    without_number,
    without_seed,
)
from nocap.sources.logs.names_flag import NAMES_FLAG, read_by_template
from nocap.sources.logs.run_names import FILE_NAMES, FOLDER_NAMES, RUN_NAMES, RunNames

LEAST_RUNS = 2  # runs of an arm, of which numbers may be the seeds; and such arms
FLAGS = (
    "name arm and seed with --names '{arm}/{seed}' (a pattern for the paths), or with --columns "
    "arm=COLUMN,seed=COLUMN (columns of the log)"
)


def find_arms(runs: Sequence[RunNames], template: str = "") -> None:
    """Fill in arm and seed of each run, and what they are from. `template`: of `--names`.

    Errors:
        ValueError: the names do not say which runs are of one arm.
    """
    if template:
        read_by_template(runs, template)
    for run in runs:
        _read_seed_of_settings(run)
        _read_names(run)
    without_arm = [run for run in runs if not run.arm]
    if not without_arm:
        return
    are_seeds = not any(run.seed for run in runs) and _numbers_are_seeds(without_arm)
    _take_out_ids(without_arm, are_seeds=are_seeds)
    varying = _varying_settings(without_arm)
    sources = _sources_of_arms(without_arm, varying)
    _name_arms(without_arm, sources)
    if FILE_NAMES not in sources:
        _check_files(without_arm)
    _check_ids(without_arm, sources, are_set=bool(varying))


# --- seeds ----------------------------------------------------------------------------------------


def _read_seed_of_settings(run: RunNames) -> None:
    """Take the seed from the settings: from the shortest key for one."""
    if run.seed:
        return
    keys = [key for key, value in run.config.items() if SEEDS.search(key) and value.isdecimal()]
    if keys:
        run.seed = run.config[min(keys, key=len)]
        run.seed_from = run.config_name


def _read_names(run: RunNames) -> None:
    """Take the seed from the names, and leave what may be an arm as labels."""
    parts_by_kind = {FOLDER_NAMES: run.folders, FILE_NAMES: [run.file], RUN_NAMES: [run.own]}
    for kind, parts in parts_by_kind.items():
        labels = list[str]()
        for part in parts:
            rest, seed = without_seed(part)
            if seed and (not run.seed or run.seed_from in parts_by_kind):
                run.seed = seed
                run.seed_from = kind
            label = VERSION.sub("", rest)
            is_never_an_arm = bool(NO_NAME.fullmatch(label) or INDEX.fullmatch(label))
            has_number = is_never_an_arm and bool(re.search(r"\d", label))
            run.has_numbered_name |= label != rest or has_number
            is_plain_file = kind == FILE_NAMES and NO_FILE_NAME.fullmatch(label)
            if label and not is_never_an_arm and not is_plain_file:
                labels.append(label)
        run.labels[kind] = "/".join(labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class _LastNumber:
    """The number at the end of a run's names: `base-0`."""

    kind: str  # of names
    label: str  # of that kind, without the number
    number: str


def _numbers_are_seeds(runs: Sequence[RunNames]) -> bool:
    """Take the last number in the names of each run as its seed, where arms of several runs count
    alike from 0 or 1. Say whether they do."""
    endings = list[_LastNumber]()
    by_stem: dict[str, list[int]] = {}
    for run in runs:
        ending = _last_number(run)
        if ending is None:
            return False
        endings.append(ending)
        labels = {**run.labels, ending.kind: ending.label}
        stem = "/".join(filter(None, labels.values()))
        by_stem.setdefault(stem, []).append(int(ending.number))
    if not _count_alike([sorted(numbers) for numbers in by_stem.values()]):
        return False
    for run, ending in zip(runs, endings, strict=True):
        run.labels[ending.kind] = ending.label
        run.seed = ending.number
        run.seed_from = f"numbers in {ending.kind}"
    return True


def _last_number(run: RunNames) -> _LastNumber | None:
    """Find the last kind of names that ends with a number; `None`: there is none."""
    for kind in reversed(run.labels):
        head, slash, last = run.labels[kind].rpartition("/")
        match = NUMBER.fullmatch(last)
        if match and not WHEN.search(last):
            label = f"{head}{slash}{match[1] or ''}".strip("/")
            return _LastNumber(kind=kind, label=label, number=match[2])
    return None


def _count_alike(counts: Sequence[Sequence[int]]) -> bool:
    """Say whether several arms of several runs have the same numbers, from 0 or 1 on."""
    first = counts[0]
    size = len(first)
    if len(counts) < LEAST_RUNS or size < LEAST_RUNS:
        return False
    counts_from_0_or_1 = first in ([*range(size)], [*range(1, size + 1)])
    return counts_from_0_or_1 and all(numbers == first for numbers in counts)


# --- times, hashes and numbers --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bare:
    """A run's labels without times, hashes and numbers."""

    labels: dict[str, str]
    ids: str  # what was taken out; "": nothing
    has_number: bool  # a number was taken out

    @property
    def key(self) -> str:
        return repr(self.labels)


def _take_out_ids(runs: Sequence[RunNames], *, are_seeds: bool) -> None:
    """Take times, hashes and numbers out of the labels of runs, unless several runs share them.
    `are_seeds`: the numbers at the end were seeds."""
    bares = [_bare(run, are_seeds=are_seeds) for run in runs]
    ids_by_key: dict[str, list[str]] = {}
    for bare in bares:
        ids_by_key.setdefault(bare.key, []).append(bare.ids)
    for run, bare in zip(runs, bares, strict=True):
        ids = ids_by_key[bare.key]
        if len({*ids}) < len(ids):
            continue  # runs share them, so they may name an arm
        is_alone = len(ids) == 1
        run.labels = bare.labels
        run.has_own_ids = bool(bare.ids) and not is_alone
        run.has_own_number = bare.has_number and run.has_own_ids
        if is_alone and bare.ids and not any(bare.labels.values()):
            run.labels = {**bare.labels, FILE_NAMES: bare.ids}


def _bare(run: RunNames, *, are_seeds: bool) -> _Bare:
    """Return a run's labels without times, hashes and numbers. A number beside a seed of a name is
    no repeat, and stays."""
    has_seed_of_names = run.seed_from in (*run.labels, NAMES_FLAG)
    labels: dict[str, str] = {}
    ids = list[str]()
    numbers = list[str]()
    for kind, label in run.labels.items():
        parts = list[str]()
        for part in label.split("/"):
            rest, of_part = without_ids(part)
            ids += of_part
            if not are_seeds and not has_seed_of_names:
                rest, number = without_number(rest)
                numbers += [number] if number else []
            parts.append(rest)
        labels[kind] = "/".join(filter(None, parts))
    return _Bare(labels=labels, ids="/".join([*ids, *numbers]), has_number=bool(numbers))


# --- arms -----------------------------------------------------------------------------------------


def _sources_of_arms(runs: Sequence[RunNames], varying: Sequence[str]) -> dict[str, list[str]]:
    """Return what tells the arms apart: source → what each run has there. These are the folders;
    the files where there is one folder, or it has several runs of a seed; the settings that vary;
    the names that logs give to runs, where nothing else tells them apart."""
    sources: dict[str, list[str]] = {}
    for kind in (FOLDER_NAMES, FILE_NAMES):
        labels = [run.labels[kind] for run in runs]
        if len({*labels}) > 1 and (not sources or _collide(runs, sources)):
            sources[kind] = labels
    if varying:
        name = next(run.config_name for run in runs if run.config_name)
        sources[name] = [_settings(run, varying) for run in runs]
    labels = [run.labels[RUN_NAMES] for run in runs]
    if len({*labels}) > 1 and (not sources or _collide(runs, sources)):
        sources[RUN_NAMES] = labels
    return _without_spare(sources)


def _collide(runs: Sequence[RunNames], sources: Mapping[str, Sequence[str]]) -> bool:
    """Say whether two runs have one arm and seed by these sources."""
    pairs = list[tuple[str, ...]]()
    for run, *labels in zip(runs, *sources.values(), strict=True):
        if run.seed:
            pairs.append((*labels, run.seed))
    return len({*pairs}) < len(pairs)


def _without_spare(sources: dict[str, list[str]]) -> dict[str, list[str]]:
    """Drop the sources that the others tell already, the last first."""
    for source in reversed(list(sources)):
        others = {other: labels for other, labels in sources.items() if other != source}
        if others and _count_arms(others) == _count_arms(sources):
            sources = others
    return sources


def _count_arms(sources: Mapping[str, Sequence[str]]) -> int:
    """Count the arms that these sources tell apart."""
    return len({*zip(*sources.values(), strict=True)})


def _name_arms(runs: Sequence[RunNames], sources: Mapping[str, Sequence[str]]) -> None:
    """Name the arm of each run by its sources; where these say nothing, by its home."""
    parts_by_run = [*zip(*sources.values(), strict=True)] or [()] * len(runs)
    for run, parts in zip(runs, parts_by_run, strict=True):
        run.arm = " ".join(filter(None, parts)) or run.home
        run.arm_from = " and ".join(sources) or None
    if len({run.arm for run in runs}) < len({*parts_by_run}):
        # `a` of a folder, and of a file beside it
        for run, parts in zip(runs, parts_by_run, strict=True):
            run.arm = "/".join(part or "." for part in parts)


def _varying_settings(runs: Sequence[RunNames]) -> list[str]:
    """List the settings that vary, without the seed, what is a function of it, and names of
    places."""
    with_config = [run for run in runs if run.config]
    keys = dict.fromkeys(key for run in with_config for key in run.config)
    varying = list[str]()
    for key in keys:
        if SEEDS.search(key) or NO_SETTINGS.search(key):
            continue
        values = {run.config.get(key, "") for run in with_config}
        if len(values) > 1 and not _follows_from_seed(with_config, key):
            varying.append(key)
    return varying


def _follows_from_seed(runs: Sequence[RunNames], key: str) -> bool:
    """Say whether a setting follows from the seed, which several runs have: that of the data's
    order."""
    values: dict[str, set[str]] = {}
    for run in runs:
        values.setdefault(run.seed, set()).add(run.config.get(key, ""))
    often = Counter(run.seed for run in runs)
    have_seeds = "" not in often
    is_repeated = max(often.values()) > 1
    return have_seeds and is_repeated and all(len(texts) == 1 for texts in values.values())


def _settings(run: RunNames, keys: Sequence[str]) -> str:
    """Return a run's settings as a label: `lr=0.1 wd=0`."""
    ends = [re.split(r"[./]", key)[-1] for key in keys]
    words = list[str]()
    for key, end in zip(keys, ends, strict=True):
        name = end if ends.count(end) == 1 else key
        words.append(f"{name}={run.config.get(key, '–')}")
    return " ".join(words)


# --- what is refused ------------------------------------------------------------------------------


def _check_files(runs: Sequence[RunNames]) -> None:
    """Check that no arm has files that may be arms themselves.

    Errors:
        ValueError: an arm has files of several names, which may be arms themselves.
    """
    files: dict[str, dict[str, None]] = {}
    for run in runs:
        if run.labels[FILE_NAMES] and not run.seed:
            files.setdefault(run.arm, {})[run.labels[FILE_NAMES]] = None
    several = [names for names in files.values() if len(names) > 1]
    if several:
        raise ValueError(
            f"the arms may be the folders ({shorten(files)}) or the files in them "
            f"({shorten(several[0])}): add --names '{{arm}}/*' for folders, or --names '*/{{arm}}' "
            "for files"
        )


def _check_ids(runs: Sequence[RunNames], sources: Mapping[str, object], *, are_set: bool) -> None:
    """Check that names say which runs are of one arm.

    Errors:
        ValueError: runs without a seed differ only by numbers, hashes or times, and no name or
            setting (`are_set`) tells arms apart.
    """
    unnamed = [run for run in runs if not run.seed]
    often = Counter(run.arm for run in unnamed)
    apart = list[RunNames]()
    for run in unnamed:
        has_twin = run.has_own_number and (not are_set or often[run.arm] > 1)
        has_nothing_else = not sources and (run.has_own_ids or run.has_numbered_name)
        if has_twin or has_nothing_else:
            apart.append(run)
    if sources and not are_set and _differ_by_numbers(runs, sources):
        apart = unnamed
    if len(apart) > 1:
        names = shorten((run.title for run in apart), most=4)
        raise ValueError(
            f"{names} differ only by a number, a hash or a time. They may be {len(apart)} arms, "
            f"or runs of one arm, and nocap does not guess; {FLAGS}"
        )


def _differ_by_numbers(runs: Sequence[RunNames], sources: Mapping[str, object]) -> bool:
    """Say whether each run is an arm of its own, and the names of these differ in nothing but
    digits."""
    are_names = {*sources} <= {FOLDER_NAMES, FILE_NAMES, RUN_NAMES}
    arms = [run.arm for run in runs]
    without_digits = {re.sub(r"\d+", "", arm) for arm in arms}
    return are_names and len({*arms}) == len(arms) and len(without_digits) == 1
