"""Find the arm and the seed of each run of a log: by what the log says, then by the settings beside
it, then by the names of folders, files and runs. Two runs are never taken for one: what is not
known is refused, with what settles it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from nocap.config.keys import require
from nocap.display import shorten

SEED = r"(?<![a-z0-9])(?:seed|s(?=[=_-]?\d{1,3}(?!\d)))[=_-]?(\d{1,18})(?![a-z0-9])"
# s1440 are steps
OF_THE_SEED = re.compile(SEED, re.IGNORECASE)
# parts of names that are never an arm
NO_NAME = re.compile(
    r"version_\d+|lightning_logs|logs?|csv(?:_logs)?|tb(?:_logs)?|tensorboard|runs?|checkpoint-\d+|checkpoints?|"
    r"wandb|mlruns|mlflow|multirun|outputs?|out|results?|metrics|events\.out\.tfevents.*|(?:offline-)?run-\d.*|run-.*\.wandb|files|artifacts|"
    r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_.*",
    re.IGNORECASE,
)
# names of files that are never an arm; a folder may be called so by its arm
NO_FILE_NAME = re.compile(
    r"train(?:ing)?|main|trainer_state|history|stdout|console|meta|export", re.IGNORECASE
)
INDEX = re.compile(r"(?:run|trial|rep|repeat|try|attempt|job)s?[=_-]?\d*", re.IGNORECASE)
WHEN = re.compile(r"\d{4}-?\d\d-?\d\d(?:[T_ -]\d\d[-:]?\d\d(?:[-:]?\d\d)?)?|\d\d[-:]\d\d[-:]\d\d")
HASH = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|"
    r"(?![a-f]\d+(?![0-9a-zA-Z]))(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{6,}"  # b524288 is a setting
)
NUMBER = re.compile(r"(?:(.*?)(?<!\d[eE])[_-])?(\d{1,6})")  # lr1e-3 ends with no number
VERSION = re.compile(r"[_-]version_\d+$")
# settings that name a run or a place, and change no number
NO_SETTINGS = re.compile(
    r"(?:^|[._/])(?:\w*name|\w*dir|\w*path|\w*_?id|file\w*|folder|host\w*|(?:\w*_)?time(?:stamp)?|date|version|group|notes|tags|"
    r"desc\w*|project|entity|resume\w*)$",
    re.IGNORECASE,
)
SEEDS = re.compile(r"(?:^|[._/])(?:\w*_)?seed$", re.IGNORECASE)
NAMES_FLAG = "--names"
# the kinds of names that a run has
FOLDER_NAMES = "folder names"
FILE_NAMES = "file names"
RUN_NAMES = "names of runs"
LEAST_RUNS = 2  # runs of an arm, of which numbers may be the seeds
FLAGS = (
    "--names '{arm}/{seed}' says how paths name them, --columns arm=COLUMN,seed=COLUMN what "
    "in the log does"
)


@dataclass(kw_only=True)
class RunNames:
    """A run whose arm and seed are asked for, and what is known of it."""

    title: str  # its name in messages
    folders: Sequence[str]  # that it lies in, from the first on in which runs differ
    file: str  # without its ending; "" where the name says nothing
    own: str  # its name in the log
    home: str  # the folder or file that is its arm where names say nothing
    config: Mapping[str, str]  # its settings
    config_name: str  # where these stand
    arm: str = ""
    seed: str = ""
    arm_from: str | None = None
    seed_from: str | None = None
    path: str = ""  # the whole, for --names
    loose: list[str] = field(default_factory=list)  # numbers, hashes and times in its names
    has_number: bool = False  # that is in no other name, and was taken out
    numbered: bool = False  # one of its names is never an arm, and has a number
    labels: dict[str, str] = field(
        default_factory=dict
    )  # of folders, file and log: what is left of the names


def find_arms(runs: Sequence[RunNames], template: str = "") -> None:
    """Fill in arm and seed of each run, and what they are from.

    Errors:
        ValueError: the names do not say which runs are of one arm.
    """
    if template:
        _by_template(runs, template)
    _seeds_of_config(runs)
    for run in runs:
        _read_names(run)
    without_arm = [run for run in runs if not run.arm]
    if not without_arm:
        return
    are_counted = not any(run.seed for run in runs) and _numbers_are_seeds(without_arm)
    _keep_shared(without_arm, are_counted=are_counted)
    _by_labels(without_arm)


def _by_template(runs: Sequence[RunNames], template: str) -> None:
    """Take arm and seed from the places that the user names."""
    patterns = {"{arm}": r"(?P<arm>[^/]+?)", "{seed}": r"(?P<seed>\d+)", "*": "[^/]*"}
    pieces = re.split(r"(\{\w*\}|\*)", template)
    require(
        "{arm}" in pieces or "{seed}" in pieces,
        "--names",
        "hold {arm} or {seed}, as in '{arm}/{seed}'",
        template,
    )
    fields = [piece for piece in pieces if piece.startswith("{")]
    for piece in fields:
        require(piece in patterns, "--names", "hold {arm}, {seed} and * alone", piece)
        require(fields.count(piece) == 1, "--names", "hold each once", piece)
    pattern = "".join(patterns.get(piece, re.escape(piece)) for piece in pieces)
    for run in runs:
        match = re.search(rf"(?:^|/){pattern}(?:\.[a-z][\w.]*)?$", run.path, re.IGNORECASE)
        require(match is not None, "--names", f"fit each path, as {run.path}", template)
        assert match
        groups = match.groupdict()
        if "arm" in groups:
            run.arm = groups["arm"]
            run.arm_from = "--names"
        if "seed" in groups:
            run.seed = groups["seed"]
            run.seed_from = NAMES_FLAG
            _take_out(run, match.span("seed"))


def _take_out(run: RunNames, span: tuple[int, int]) -> None:
    """Take what names the seed out of its path, so that the rest may name the arm."""
    first, end = span
    before = run.path[:first].rpartition("/")[2]
    after = run.path[end:].partition("/")[0]
    part_with_seed = f"{before}{run.path[first:end]}{after}"
    rest = f"{before.rstrip('=_- .')}{after}".strip("=_- .")
    run.folders = [{part_with_seed: rest}.get(part, part) for part in run.folders]
    if run.file == part_with_seed:
        run.file = rest
    if run.own == part_with_seed:
        run.own = rest


def _seeds_of_config(runs: Sequence[RunNames]) -> None:
    for run in runs:
        seed_keys = [
            key for key, value in run.config.items() if SEEDS.search(key) and value.isdecimal()
        ]
        keys = sorted(seed_keys, key=len)
        if keys and not run.seed:
            run.seed = run.config[keys[0]]
            run.seed_from = run.config_name


def _read_names(run: RunNames) -> None:
    """Take the seed out of its names, and what is never an arm."""
    parts_by_kind = {
        FOLDER_NAMES: run.folders,
        FILE_NAMES: [run.file],
        RUN_NAMES: [run.own],
    }
    for kind, parts in parts_by_kind.items():
        rest = list[str]()
        for part in parts:
            seed = OF_THE_SEED.search(part)
            if seed:
                part = f"{part[: seed.start()].rstrip('=_- .')}{part[seed.end() :]}".strip("=_- .")
                if not run.seed or run.seed_from in parts_by_kind:
                    run.seed = seed[1]
                    run.seed_from = kind
            run.numbered |= bool(VERSION.search(part))
            part = VERSION.sub("", part)
            if NO_NAME.fullmatch(part) or INDEX.fullmatch(part):
                run.numbered |= bool(re.search(r"\d", part))
            elif part and not (kind == FILE_NAMES and NO_FILE_NAME.fullmatch(part)):
                rest.append(part)
        run.labels[kind] = "/".join(rest)


def _numbers_are_seeds(runs: Sequence[RunNames]) -> bool:
    """Take the last number in the names of each run as its seed, where arms of several runs count
    alike from 0 or 1."""
    stems = list[str]()
    numbers = list[str]()
    for run in runs:
        number_at_end = _last_number(run)
        if number_at_end is None:
            return False
        kind, stem, number = number_at_end
        stems.append("/".join(filter(None, ({**run.labels, kind: stem}).values())))
        numbers.append(number)
    by_stem: dict[str, list[int]] = {}
    for stem, number in zip(stems, numbers, strict=True):
        by_stem.setdefault(stem, []).append(int(number))
    counts = [sorted(members) for members in by_stem.values()]
    alike = all(members == counts[0] for members in counts)
    if (
        len(counts) < LEAST_RUNS
        or not alike
        or counts[0] not in _counting(len(counts[0]))
        or len(counts[0]) < LEAST_RUNS
    ):
        return False
    for run, number in zip(runs, numbers, strict=True):
        kind, stem, _ = _last_number(run) or ("", "", "")
        run.labels[kind] = stem
        run.seed = number
        run.seed_from = f"numbers in {kind}"
    return True


def _counting(n: int) -> list[list[int]]:
    return [[*range(n)], [*range(1, n + 1)]]


def _last_number(run: RunNames) -> tuple[str, str, str] | None:
    """Find the last kind of names that ends with a number: the kind, what is left of it, and the
    number."""
    for kind in reversed(run.labels):
        head, slash, last = run.labels[kind].rpartition("/")
        match = NUMBER.fullmatch(last)
        if match and not WHEN.search(last):
            return kind, f"{head}{slash}{match[1] or ''}".strip("/"), match[2]
    return None


def _keep_shared(runs: Sequence[RunNames], *, are_counted: bool) -> None:
    """Take numbers, hashes and times out of the names of runs, unless several runs share them."""
    bare = list[dict[str, str]]()
    loose = list[str]()
    for run in runs:
        rest: dict[str, str] = {}
        ids = list[str]()
        numbers = list[str]()
        for kind, label in run.labels.items():
            parts = [_without_ids(part, ids) for part in label.split("/")]
            if not are_counted and run.seed_from not in (*run.labels, NAMES_FLAG):
                parts = [_without_number(part, numbers) for part in parts]
            rest[kind] = "/".join(filter(None, parts))
        run.has_number = bool(numbers)
        ids += numbers
        bare.append(rest)
        loose.append("/".join(ids))
    groups: dict[str, list[str]] = {}
    for rest, loose_of in zip(bare, loose, strict=True):
        groups.setdefault(repr(rest), []).append(loose_of)
    for run, rest, loose_of in zip(runs, bare, loose, strict=True):
        among = groups[repr(rest)]
        if len({*among}) < len(among):
            run.has_number = False
        else:  # each run has its own
            run.labels = rest
            run.loose = [loose_of] if loose_of and len(among) > 1 else []
            run.has_number &= bool(run.loose)
            if len(among) == 1 and loose_of and not any(rest.values()):
                run.labels = {**rest, FILE_NAMES: loose_of}


def _without_ids(part: str, ids: list[str]) -> str:
    """Return a name without times and hashes."""
    for pattern in (WHEN, HASH):
        match = re.search(rf"(?:^|[_ -])({pattern.pattern})(?:$|(?=[_ -]))", part)
        if match:
            ids.append(match[1])
            part = f"{part[: match.start()]}{part[match.end() :]}".strip("_- ")
    return part


def _without_number(part: str, ids: list[str]) -> str:
    """Return a name without the number at its end."""
    match = NUMBER.fullmatch(part)
    if match is None:
        return part
    ids.append(match[2])
    return match[1] or ""


def _by_labels(runs: Sequence[RunNames]) -> None:
    """Name the arms by folders; by files where there is one folder, or it has several runs of a
    seed; by settings that vary; by the names that logs give to runs where nothing else tells them
    apart."""
    folders = [run.labels[FOLDER_NAMES] for run in runs]
    files = [run.labels[FILE_NAMES] for run in runs]
    by_source: dict[str, list[str]] = {}
    if len({*folders}) > 1:
        by_source[FOLDER_NAMES] = folders
    if len({*files}) > 1 and (not by_source or _collide(runs, by_source)):
        by_source[FILE_NAMES] = files
    varying = _varying(runs)
    if varying:
        settings = [_settings(run, varying) for run in runs]
        sources = [run.config_name for run in runs if run.config_name]
        by_source[sources[0]] = settings
    owns = [run.labels[RUN_NAMES] for run in runs]
    if len({*owns}) > 1 and (not by_source or _collide(runs, by_source)):
        by_source[RUN_NAMES] = owns
    by_source = _least(by_source)
    every = [*zip(*by_source.values(), strict=True)] or [()] * len(runs)
    for run, parts in zip(runs, every, strict=True):
        run.arm = " ".join(filter(None, parts)) or run.home
        run.arm_from = " and ".join(by_source) or None
    if len({run.arm for run in runs}) < len({*every}):  # `a` of a folder, and of a file beside it
        for run, parts in zip(runs, every, strict=True):
            run.arm = "/".join(part or "." for part in parts)
    if FILE_NAMES not in by_source:
        _check_crossing(runs)
    _check_loose(runs, by_source, are_set=bool(varying))


def _least(by_source: dict[str, list[str]]) -> dict[str, list[str]]:
    """Drop what the others tell already, the last first."""
    for source in reversed(list(by_source)):
        others = {other: labels for other, labels in by_source.items() if other != source}
        count = len({*zip(*by_source.values(), strict=True)})
        if others and len({*zip(*others.values(), strict=True)}) == count:
            by_source = others
    return by_source


def _collide(runs: Sequence[RunNames], by_source: Mapping[str, Sequence[str]]) -> bool:
    """Say whether two runs have one arm and seed."""
    pairs = [
        (*labels, run.seed)
        for run, *labels in zip(runs, *by_source.values(), strict=True)
        if run.seed
    ]
    return len({*pairs}) < len(pairs)


def _varying(runs: Sequence[RunNames]) -> list[str]:
    """List the settings that vary, without the seed, what is a function of it, and names of
    places."""
    with_config = [run for run in runs if run.config]
    keys = dict.fromkeys(key for run in with_config for key in run.config)
    varying = list[str]()
    for key in keys:
        values = {run.config.get(key, "") for run in with_config}
        if (
            len(values) > 1
            and not SEEDS.search(key)
            and not NO_SETTINGS.search(key)
            and not _is_of_seed(with_config, key)
        ):
            varying.append(key)
    return varying


def _is_of_seed(runs: Sequence[RunNames], key: str) -> bool:
    """Say whether a setting follows from the seed, which several runs have: that of the data's
    order."""
    values: dict[str, set[str]] = {}
    for run in runs:
        values.setdefault(run.seed, set()).add(run.config.get(key, ""))
    often = Counter(run.seed for run in runs)
    return (
        "" not in often
        and max(often.values()) > 1
        and all(len(texts) == 1 for texts in values.values())
    )


def _settings(run: RunNames, keys: Sequence[str]) -> str:
    last = [re.split(r"[./]", key)[-1] for key in keys]
    names = [
        short if last.count(short) == 1 else key for short, key in zip(last, keys, strict=True)
    ]
    return " ".join(
        f"{short}={run.config.get(key, '–')}" for short, key in zip(names, keys, strict=True)
    )


def _check_crossing(runs: Sequence[RunNames]) -> None:
    """
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
            f"({shorten(several[0])}): --names '{{arm}}/*' or --names '*/{{arm}}' says which"
        )


def _check_loose(
    runs: Sequence[RunNames], by_source: Mapping[str, object], *, are_set: bool
) -> None:
    """
    Errors:
        ValueError: runs without a seed differ only by numbers, hashes or times, and no name or
            setting (`are_set`) tells arms apart.
    """
    unnamed = [run for run in runs if not run.seed]
    often = Counter(run.arm for run in unnamed)
    apart = list[RunNames]()
    for run in unnamed:
        has_twin = run.has_number and (not are_set or often[run.arm] > 1)
        if has_twin or (not by_source and (run.loose or run.numbered)):
            apart.append(run)
    if by_source and not are_set and _differ_by_numbers(runs, by_source):
        apart = unnamed
    if len(apart) > 1:
        n = len(apart)
        names = shorten((run.title for run in apart), most=4)
        raise ValueError(
            f"{names} differ only by a number, a hash or a time. This may name {n} arms, or runs "
            f"of one "
            f"arm, as nocap guesses; {FLAGS}"
        )


def _differ_by_numbers(runs: Sequence[RunNames], by_source: Mapping[str, object]) -> bool:
    """Say whether each run is an arm of its own, and the names of these differ in nothing but
    digits."""
    names = {*by_source} <= {FOLDER_NAMES, FILE_NAMES, RUN_NAMES}
    arms = [run.arm for run in runs]
    bare = {re.sub(r"\d+", "", arm) for arm in arms}
    return names and len({*arms}) == len(arms) and len(bare) == 1


def common_parts(every: Sequence[Sequence[str]]) -> int:
    """Count the parts that all paths begin with."""
    pairs = zip(*every, strict=False)
    return len(list(takewhile(lambda parts: len({*parts}) == 1, pairs)))
