"""A study as its `study.yaml` has it: a question, arms, scales, claims. Checked like every config,
before anything runs. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from nocap.config.choices import parse_override
from nocap.config.keys import check_keys, key, require
from nocap.config.paths import PACKAGE
from nocap.config.plain import made, refuse_interpolations
from nocap.config.untrusted_files import parse_yaml, read_text
from nocap.judge.cautious_interval import Declared
from nocap.judge.claim import CLAIMABLE, Claim
from nocap.judge.interval import BATCH, BATCHES, LEAST_PAIRS
from nocap.sessions.figures import setting_of
from nocap.store.metrics import Better, Metric

FILE = "study.yaml"
# in a checkout, and in the folder where a command is typed
STUDIES = Path("experiments")
CLOSED = (
    "output_dir",
    "cache_dir",
    "trainer.init_from",
    "tracker.",
    "store.",
)  # keys that are no study's
GPU = "gpu"  # the scale of a study that is carried out where there is a GPU
ENGINE = "engine="  # an override of a study, not of a config
ENGINES = ("no cache", "cache", "cache, compiled")  # of decoding; an arm chooses one with engine=…


@dataclass(kw_only=True, slots=True)
class Decode:
    """The text that decoding is timed on."""

    prompt: int = key(ge=1, le=2**24)  # tokens
    new: int = key(ge=1, le=2**24)
    vocab_size: int = key(ge=1, le=2**16)


@dataclass(kw_only=True, slots=True)
class ScaleConfig:
    """One scale of a study: what is trained, and at what shape steps are timed and profiled."""

    claims: list[str] = field(default_factory=list)  # those it is about; none: all
    overrides: list[str] = field(default_factory=list)  # of everything at this scale
    # of training; time to target uses the step time of this shape
    train: list[str] = field(default_factory=list)
    bench: list[str] = field(
        default_factory=list
    )  # of timed and profiled steps: the claim's own shape
    rounds: int = key(
        ge=1, le=10_000, default=4
    )  # of interleaved blocks, two per arm, in each session
    sessions: int = key(ge=1, le=100, default=3)  # of timing; what is only counted needs one
    apart_min: float = key(ge=0, le=10_000, default=5.0)  # minutes between sessions
    # shorter schedules, as shares of trainer.steps: for races
    lengths: list[float] = key(gt=0, lt=1, default_factory=list)
    own: dict[str, list[str]] = field(
        default_factory=dict
    )  # arm → overrides that it has at this scale only
    curve: list[int] = key(ge=1, le=2**24, default_factory=list)  # sequence lengths of an exponent
    decode: Decode | None = None
    # metric → of one pair's gain, from earlier studies
    noise: dict[str, Declared] = field(default_factory=dict)
    limitations: str = (
        ""  # what its verdicts cannot be about; "" where the scale is the claim's own
    )


@dataclass(kw_only=True, slots=True)
class Tune:
    """A search before the study: as many trials an arm, on seeds that are not the study's. The best
    mean of the final loss wins."""

    seeds: list[int] = key(ge=0, lt=2**63, default_factory=list)
    trials: dict[str, list[list[str]]] = field(
        default_factory=dict
    )  # arm → overrides of each trial


@dataclass(kw_only=True, slots=True)
class Propose:
    """How a program's proposals are answered: arms beside the baseline, on seeds that it does not
    choose. With `command` a proposal is anybody's training command, and this one is the baseline;
    else it is overrides of nocap's own, with as many tokens."""

    # nats, or the metric's unit: a proposal is accepted where it is shown to gain more
    gain: float = key(ge=0, le=100, default=0.0)
    # FLOPs of a token over the baseline's, at most; null: any number
    flops: float | None = key(ge=1, le=1000, default=None)
    first_seed: int = key(ge=0, lt=2**62, default=0)
    command: str = ""
    metric: str = ""  # of what a command prints: a pattern with one group, or a name
    better: Better = Better.lower
    file: str = ""  # that the command writes, with the metric
    ref: str = (
        ""  # of the baseline; then a proposal is the working tree, each in a worktree of its own
    )
    locked: list[str] = field(default_factory=list)  # files that must be equal in both
    link: list[str] = field(default_factory=list)  # what git ignores and the command needs
    reads_seed: bool = False  # the command reads $NOCAP_SEED
    timeout: str = "12h"  # of a run

    @property
    def batches(self) -> list[range]:
        """Return the seeds of each batch, the same for every proposal."""
        end = self.first_seed + BATCH * BATCHES
        return [range(first, first + BATCH) for first in range(self.first_seed, end, BATCH)]


@dataclass(kw_only=True, slots=True)
class Study:
    name: str = ""  # its folder's
    folder: str = ""  # its path, where its log is
    question: str
    method: str = ""  # what a reader should know beyond the arms
    overrides: list[str] = field(default_factory=list)  # of all arms at all scales
    config_dir: str = (
        ""  # a folder inside the study's own, with options that its arms choose; "": none
    )
    arms: dict[str, list[str]] = field(default_factory=dict)
    baseline: str = ""  # "": the first of the arms
    # all that may be needed, analysis by analysis
    seeds: list[int] = key(ge=0, lt=2**63, default_factory=lambda: [0, 1, 2])
    scales: dict[str, ScaleConfig] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    tune: Tune = field(default_factory=Tune)  # no trials: there is none
    propose: Propose | None = None
    # claim → what a reader of its row should know; decides nothing
    notes: dict[str, str] = field(default_factory=dict)

    def against(self, claim: Claim) -> str:
        """Return the arm that a claim's gains and guards are measured against."""
        return claim.baseline or self.baseline

    def sides(self, claim: Claim) -> list[str]:
        """List the arms whose measurements a claim needs, its own first."""
        arms = [claim.arm]
        base = self.against(claim)
        if claim.compares and base != claim.arm:
            arms.append(base)
        return arms

    def arms_needing(self, is_needed: Callable[[Metric], bool]) -> list[str]:
        """List the arms, in their order, of which a claim or guard needs such a metric."""
        needed = set[str]()
        for claim in self.claims:
            if any(map(is_needed, claim.metrics)):
                needed.update(self.sides(claim))
        return [arm for arm in self.arms if arm in needed]

    @property
    def trained_arms(self) -> list[str]:
        return self.arms_needing(lambda metric: metric.made_by == "train")

    @property
    def racing_arms(self) -> list[str]:
        """List the arms that are trained at several lengths: those that race to one loss."""
        sides = [self.sides(claim) for claim in self.claims if claim.races]
        return list(dict.fromkeys(chain(*sides)))

    @property
    def seeds_of_lengths(self) -> dict[str, list[int]]:
        """Return the baselines of claims about the time at equal loss, which are trained at two
        other lengths too, each with the seeds of these claims."""
        seeds: dict[str, list[int]] = {}
        for claim in self.claims:
            if claim.at_equal_loss:
                seeds.setdefault(self.against(claim), []).extend(claim.seeds)
        return {arm: list(dict.fromkeys(of_arm)) for arm, of_arm in seeds.items()}


def _own_words(study: Study, at: ScaleConfig, arm: str) -> list[str]:
    return [*study.arms[arm], *at.own.get(arm, ())]


def arm_overrides(study: Study, at: ScaleConfig, arm: str, setting: Sequence[str]) -> list[str]:
    """List the study's overrides, the scale's, the setting's (`at.train` or `at.bench`), and the
    arm's own."""
    own = [word for word in _own_words(study, at, arm) if not word.startswith(ENGINE)]
    return [*study.overrides, *at.overrides, *setting, *own]


def engine_of(study: Study, at: ScaleConfig, arm: str) -> str:
    """Return the engine that an arm decodes with: its last engine=…, or the one with a cache."""
    engine = "cache"
    for word in _own_words(study, at, arm):
        if word.startswith(ENGINE):
            engine = word.removeprefix(ENGINE)
    return engine


def select_claims(study: Study, scale: str) -> Study:
    """Return the study with the claims of this scale and their arms, with all where the scale names
    none."""
    names = study.scales[scale].claims
    claims = [claim for claim in study.claims if not names or claim.id in names]
    needed = {study.baseline}
    for claim in claims:
        needed.update(study.sides(claim))
    arms = {arm: words for arm, words in study.arms.items() if arm in needed}
    return replace(study, claims=claims, arms=arms)


# --- the file -------------------------------------------------------------------------------------


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
    """Make a study of what its yaml holds.

    Errors:
        ValueError: a wrong key or type.
    """
    require(isinstance(plain, dict), "a study", "hold keys and values", plain)
    content = cast(dict[str, Any], plain)
    refuse_interpolations(content)
    own = [name for name in ("name", "folder") if name in content]
    require(not own, " and ".join(own), "be left out: they are the folder's", "one")
    study: Study = made(Study, {**content, "claims": []})
    study.name = folder.name
    study.folder = str(folder)
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
    require(is_bare, f"{key}.seeds", "be left out: they are the study's", content.get("seeds"))
    claim: Claim = made(Claim, {**content, "seeds": seeds}, f"{key}.")
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
    require(is_inside, "config_dir", "be a folder inside the study's own", study.config_dir)
    return [folder]


def files_of(study: Study) -> dict[Path, bytes]:
    """Return what a study is made of, its yaml and its options: path in its folder → content."""
    home = source_of(Path(study.folder)).resolve()
    paths = [home / FILE]
    for folder in options_of(study):
        paths += [path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".yaml")]
    return {path.relative_to(home): path.read_bytes() for path in paths}


# --- what must hold -------------------------------------------------------------------------------


def check(study: Study) -> None:
    """Refuse a study that cannot be carried out, or whose verdicts would say nothing.

    Errors:
        ValueError: the first thing that is wrong.
    """
    _check_limits(study)
    study.baseline = study.baseline or next(iter(study.arms), "")
    _check_names(study)
    require(bool(study.question.strip()), "question", "be given", repr(study.question))
    _check_propose(study)
    _check_spelling([*study.arms, *study.scales])
    _check_claims(study)
    _check_tune(study)
    _check_margins(study)
    for name in study.scales:
        _check_scale(study, name)
    for at in study.scales.values():
        at.lengths.sort()
    for word in _words(study):
        _check_word(word)


def _check_limits(study: Study) -> None:
    """Refuse a value beyond its key's limits."""
    check_keys("", study)
    for name, at in study.scales.items():
        check_keys(f"scales.{name}", at)
    for name, at in study.scales.items():
        if at.decode:
            check_keys(f"scales.{name}.decode", at.decode)
    check_keys("tune", study.tune)
    check_keys("propose", study.propose or Propose())


def _check_names(study: Study) -> None:
    """Refuse a name of an arm, claim, metric or engine that there is not."""
    ids = [claim.id for claim in study.claims]
    if study.arms:
        _check_known("baseline", [study.baseline], study.arms)
    for claim in study.claims:
        _check_known(f"claim {claim.id}: arm", study.sides(claim), study.arms)
    _check_known("notes", study.notes, ids)
    for name, at in study.scales.items():
        _check_known(f"scales.{name}.claims", at.claims, ids)
    for name, at in study.scales.items():
        _check_known(f"scales.{name}.own", at.own, study.arms)
    for name, at in study.scales.items():
        _check_known(f"scales.{name}.noise", at.noise, CLAIMABLE)
    for arm in study.arms:
        for at in study.scales.values():
            _check_known(f"arm {arm}: engine", [engine_of(study, at, arm)], ENGINES)
    _check_known("tune.trials", study.tune.trials, study.trained_arms)


def _check_known(key: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are not among the known ones. `key`: where they stand in the file."""
    unknown = [name for name in names if name not in known]
    require(not unknown, key, f"be one of {', '.join(known)}", ", ".join(unknown))


def _check_spelling(names: Iterable[str]) -> None:
    """Refuse names that could not be part of a file's name."""
    odd = list[str]()
    for name in names:
        if not re.fullmatch(r"\w[^/\\]{0,99}", name) or not name.isprintable():
            odd.append(name)
    rule = "have names of up to 100 characters, without / and first a letter or digit"
    require(not odd, "arms and scales", rule, odd[:1])


def _check_claims(study: Study) -> None:
    """Refuse claims that are too few, have too few seeds, or leave an arm out."""
    claims = study.claims
    ids = [claim.id for claim in claims]
    n_seeds = len(study.seeds)
    require(
        bool(claims or study.propose),
        "claims",
        "have at least one, unless propose is given",
        "none",
    )
    rule = f"be at least {LEAST_PAIRS}: fewer pairs have no verdict"
    require(not claims or n_seeds >= LEAST_PAIRS, "seeds", rule, n_seeds)
    require(len({*ids}) == len(ids), "claims", "each have an id of their own", ", ".join(ids))
    used = {study.baseline}
    for claim in claims:
        is_own = claim.compares and study.against(claim) == claim.arm
        require(not is_own, f"claim {claim.id}: arm", "not be its own baseline", claim.arm)
        used.update(study.sides(claim))
    idle = [arm for arm in study.arms if arm not in used]
    require(not idle, "arms", "each be in a claim", ", ".join(idle))


def _check_tune(study: Study) -> None:
    """Refuse a search that favours an arm, or the study's own seeds."""
    tune = study.tune
    is_searched = tune != Tune()
    require(not is_searched or bool(tune.seeds), "tune.seeds", "have at least one", "none")
    shared = [seed for seed in tune.seeds if seed in study.seeds]
    rule = "not be the study's: a winner chosen on them would be flattered"
    require(not shared, "tune.seeds", rule, shared)
    if not is_searched:
        return
    bare = [arm for arm in study.trained_arms if arm not in tune.trials]
    require(not bare, "tune.trials", "be for every trained arm", ", ".join(bare))
    sizes = {len(trials) for trials in tune.trials.values()}
    is_even = len(sizes) == 1 and min(sizes) >= 2
    rule = (
        "give every arm as many trials, at least two: an arm that was searched less is handicapped"
    )
    require(is_even, "tune.trials", rule, sizes)


def _check_propose(study: Study) -> None:
    """Refuse proposals that are not either overrides of arms or commands."""
    rules = study.propose or Propose()
    is_command = bool(rules.command)
    require(is_command or bool(study.arms), "arms", "be given", "none")
    require(is_command or bool(study.scales), "scales", "be given", "none")
    settings = {"arms": study.arms, "scales": study.scales, "propose.flops": rules.flops}
    own = [name for name, value in settings.items() if value]
    rule = "be without what is nocap's own trainer's"
    require(not (is_command and own), "propose.command", rule, ", ".join(own))
    rule = "be given with propose.command"
    require(is_command == bool(rules.metric), "propose.metric", rule, repr(rules.metric))
    of_commands = ("metric", "file", "ref", "locked", "link", "reads_seed")
    set_keys = [name for name in of_commands if getattr(rules, name)]
    rule = f"be given with {', '.join(set_keys)}"
    require(is_command or not set_keys, "propose.command", rule, "none")


def _check_margins(study: Study) -> None:
    """Refuse a guard that has no margin for a scale that its claim is about."""
    for name in study.scales:
        for claim in select_claims(study, name).claims:
            for guard in claim.guards:
                guard.margin(name)


def _check_scale(study: Study, name: str) -> None:
    """Refuse a scale without what a claim needs of it."""
    at = study.scales[name]
    key = f"scales.{name}"
    is_curve = not at.curve or len({*at.curve}) >= 3
    require(is_curve, f"{key}.curve", "be at least 3 lengths, in tokens", at.curve)
    for claim in select_claims(study, name).claims:
        needed = {setting_of(metric): f", about {metric.name}" for metric in claim.metrics}
        if claim.races:
            needed["lengths"] = ": the shortest schedule that ends there"
        for setting, why in needed.items():
            rule = f"be given for claim {claim.id}{why}"
            require(bool(getattr(at, setting)), f"{key}.{setting}", rule, "none")


def _words(study: Study) -> list[str]:
    """List all overrides that the file has."""
    words = [*study.overrides, *chain(*study.arms.values())]
    for trials in study.tune.trials.values():
        words += chain(*trials)
    for at in study.scales.values():
        words += [*at.overrides, *at.train, *at.bench, *chain(*at.own.values())]
    return words


def _check_word(word: str) -> None:
    """Refuse an override of what is written, read and sent elsewhere: it follows from the command,
    not from the file, which may be a stranger's."""
    require(isinstance(word, str), "overrides", "be words, as in [attention=gqa]", word)
    if not word.startswith(ENGINE):
        name = parse_override(word).key_or_group
        require(
            not name.startswith(CLOSED),
            name,
            "be left out: the command says where things lie",
            word,
        )


# --- the studies that come with nocap -------------------------------------------------------------


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
