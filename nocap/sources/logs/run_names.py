"""What names a run of a log: where it lies, what it is called, its settings; and the arm and seed
that these say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# the kinds of names that a run has
FOLDER_NAMES = "folder names"
FILE_NAMES = "file names"
RUN_NAMES = "names of runs"


@dataclass(kw_only=True)
class RunNames:
    """A run whose arm and seed are to be found, and what is known of it.

    Of the files below `sweep` that stand left, `arms_and_seeds.find_arms` finds what stands right:

        file                                        arm     seed
        base/seed0/log.csv                          base    0
        base/seed1/log.csv                          base    1
        wide/seed0/log.csv                          wide    0

        base-0.csv                                  base    0       the arms count alike from 0
        base-1.csv                                  base    1
        wide-0.csv                                  wide    0
        wide-1.csv                                  wide    1

        base/2026-01-01_10-00-00/train.csv          base    none    a time names no arm
        base/2026-01-02_10-00-00/train.csv          base    none
        wide/2026-01-03_10-00-00/train.csv          wide    none

        1/log.csv, and `lr: 0.1` in 1/hparams.yaml  lr=0.1  none    a number names no arm
        2/log.csv, and `lr: 0.2` in 2/hparams.yaml  lr=0.2  none

        v1/log.csv, v2/log.csv, v3/log.csv          refused: three arms, or three runs of one

    The first of them has the folders `base` and `seed0`, the file `log`, and no name in its log.
    Without the seed, and without what never names an arm, its labels are `base`, "" and "".
    """

    title: str  # its name in messages
    folders: Sequence[str]  # that it lies in, from the first on in which runs differ
    file: str  # without its ending; "" where the name says nothing
    own: str  # its name in the log
    home: str  # the folder or file that is its arm where names say nothing
    config: Mapping[str, str]  # its settings
    config_name: str  # where these stand
    path: str = ""  # the whole, for --names

    # what is found
    arm: str = ""
    seed: str = ""
    arm_from: str | None = None
    seed_from: str | None = None

    # on the way there
    labels: dict[str, str] = field(default_factory=dict)  # kind of names → what is left of them
    has_own_ids: bool = False  # times, hashes or numbers of no other run were taken out of them
    has_own_number: bool = False  # a number was among these
    has_numbered_name: bool = False  # a name that is never an arm has a number, as run-3
