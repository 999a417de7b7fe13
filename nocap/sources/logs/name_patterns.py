"""What stands in the names of folders, files and runs besides an arm: a seed, a time, a hash, a
number, and words that never name an arm."""

from __future__ import annotations

import re

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


def without_seed(part: str) -> tuple[str, str]:
    """Return a name without its seed, and the seed; "" where it has none: `wide_s0` is wide and
    0."""
    match = OF_THE_SEED.search(part)
    if match is None:
        return part, ""
    rest = f"{part[: match.start()].rstrip('=_- .')}{part[match.end() :]}".strip("=_- .")
    return rest, match[1]


def without_ids(part: str) -> tuple[str, list[str]]:
    """Return a name without times and hashes, and these."""
    ids = list[str]()
    for pattern in (WHEN, HASH):
        match = re.search(rf"(?:^|[_ -])({pattern.pattern})(?:$|(?=[_ -]))", part)
        if match:
            ids.append(match[1])
            part = f"{part[: match.start()]}{part[match.end() :]}".strip("_- ")
    return part, ids


def without_number(part: str) -> tuple[str, str]:
    """Return a name without the number at its end, and that; "" where it has none."""
    match = NUMBER.fullmatch(part)
    if match is None:
        return part, ""
    return match[1] or "", match[2]


def may_repeat(part: str) -> bool:
    """Say whether a name may tell a repeat of an arm from another one, and not the arm."""
    rest = OF_THE_SEED.sub("", part).strip("=_- .")
    if not rest or NUMBER.fullmatch(rest):
        return True
    return any(pattern.fullmatch(part) for pattern in (NO_NAME, WHEN, HASH))
