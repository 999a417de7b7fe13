"""A study as its `study.yaml` has it: a question, arms, scales, claims. Checked like every config, before anything runs. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from nocap.config import compose as composing
from nocap.config.bounded import parse_yaml, read_text
from nocap.config.compose import refuse_interpolations
from nocap.config.errors import explain, suggest
from nocap.config.keys import check_keys, check_text, key, require
from nocap.config.paths import PACKAGE
from nocap.judge.claim import BASELINE, CLAIMABLE, Claim
from nocap.judge.interval import BATCH, BATCHES, LEAST_PAIRS, Declared
from nocap.store.metrics import Metric

FILE = "study.yaml"
PLACE = Path("experiments")  # of studies, in a checkout and in the folder where a command is typed
CLOSED = ("output_dir", "cache_dir", "trainer.init_from", "tracker.", "store.")  # keys that are no study's
SEEDS = [0, 1, 2]  # of a study that names none
ENGINE = "engine="  # an override of a study, not of a config
ENGINES = ("no cache", "cache", "cache, compiled")  # of decoding; an arm chooses one with engine=…
# Kind of a task → the key of a scale with its settings there.
KEY_OF = {"train": "train", "steps": "bench", "parts": "bench", "lengths": "curve", "decoding": "decode"}


@dataclass(kw_only=True, slots=True)
class Decode:
    """The text that decoding is timed on."""

    prompt: int = key(ge=1, le=2**24)  # tokens
    new: int = key(ge=1, le=2**24)
    vocab_size: int = key(ge=1, le=2**16)

    def __post_init__(self) -> None:
        check_keys("decode", self)


@dataclass(kw_only=True, slots=True)
class ScaleConfig:
    """One scale of a study: what is trained, and at what shape steps are timed and profiled."""

    claims: list[str] = field(default_factory=list)  # those it is about; none: all
    overrides: list[str] = field(default_factory=list)  # of everything at this scale
    train: list[str] = field(default_factory=list)  # of training; time to target uses the step time of this shape
    bench: list[str] = field(default_factory=list)  # of timed and profiled steps: the claim's own shape
    rounds: int = key(ge=1, le=10_000, default=4)  # of interleaved blocks, two per arm, in each session
    sessions: int = key(ge=1, le=100, default=3)  # of timing; what is counted needs one
    apart_min: float = key(ge=0, le=10_000, default=5.0)  # minutes between sessions
    lengths: list[float] = key(gt=0, lt=1, default_factory=list)  # shorter schedules, as shares of trainer.steps: for races
    own: dict[str, list[str]] = field(default_factory=dict)  # arm → overrides that it has at this scale only
    curve: list[int] = key(ge=1, le=2**24, default_factory=list)  # sequence lengths of an exponent
    decode: Decode | None = None
    noise: dict[str, Declared] = field(default_factory=dict)  # metric → of one pair's gain, from earlier studies
    limitations: str = ""  # what its verdicts cannot be about; "" where the scale is the claim's own

    def __post_init__(self) -> None:
        check_keys("", self)
        require(len(set(self.lengths)) == len(self.lengths), "lengths", "differ", self.lengths)
        require(not self.curve or len(set(self.curve)) >= 3, "curve", "be at least 3 lengths, in tokens", self.curve)
        self.lengths = sorted(self.lengths)
        _known("noise", self.noise, CLAIMABLE)


@dataclass(kw_only=True, slots=True)
class Tune:
    """A search before the study: as many trials an arm, on seeds that are not the study's. The best mean of the final loss wins."""

    seeds: list[int] = key(ge=0, lt=2**63)
    trials: dict[str, list[list[str]]] = field(default_factory=dict)  # arm → overrides of each trial

    def __post_init__(self) -> None:
        check_keys("tune", self)
        require(bool(self.seeds), "tune.seeds", "have at least one", self.seeds)
        counts = {arm: len(trials) for arm, trials in self.trials.items()}
        rule = "give every arm as many trials, at least two: an arm that was searched less is handicapped"
        require(len(set(counts.values())) == 1 and min(counts.values()) >= 2, "tune.trials", rule, counts or "none")


@dataclass(kw_only=True, slots=True)
class Propose:
    """How a program's proposals are answered: arms beside the baseline, as many tokens, on seeds that it does not choose."""

    gain: float = key(ge=0, le=100, default=0.0)  # nats: a proposal is accepted where it is shown to lower the loss by more
    flops: float | None = key(ge=1, le=1000, default=None)  # FLOPs of a token over the baseline's, at most; null: any number
    first_seed: int = key(ge=0, lt=2**62, default=0)

    def __post_init__(self) -> None:
        check_keys("propose", self)

    @property
    def batches(self) -> list[range]:
        """The seeds of each batch, the same for every proposal."""
        return [range(first, first + BATCH) for first in range(self.first_seed, self.first_seed + BATCH * BATCHES, BATCH)]


@dataclass(kw_only=True, slots=True)
class Study:
    name: str  # its folder's
    question: str
    method: str = ""  # what a reader should know beyond the arms
    overrides: list[str] = field(default_factory=list)  # of all arms at all scales
    arms: dict[str, list[str]]
    baseline: str = ""  # "": the first of the arms
    seeds: list[int] = key(ge=0, lt=2**63, default_factory=SEEDS.copy)  # all that may be needed, analysis by analysis
    scales: dict[str, ScaleConfig]
    claims: list[Claim] = field(default_factory=list)
    tune: Tune | None = None
    propose: Propose | None = None
    notes: dict[str, str] = field(default_factory=dict)  # claim → what a reader of its row should know; decides nothing
    folder: str = ""  # its path, where its log is; "": it has none

    def __post_init__(self) -> None:
        check_keys("", self)
        for what, name in [*(("arms", name) for name in self.arms), *(("scales", name) for name in self.scales)]:  # parts of files' names
            ok = bool(re.fullmatch(r"\w[^/\\]{0,99}", name)) and name.isprintable()
            require(ok, what, "have names of up to 100 characters, without / and first a letter or digit", repr(name))
        self._check_overrides()
        for name in ("question", "arms", "scales"):
            value = getattr(self, name)
            require(bool(value.strip() if isinstance(value, str) else value), name, "be given", repr(value))
        require(bool(self.claims) or self.propose is not None, "claims", "have at least one, unless propose is given", "none")
        self.baseline = self.baseline or next(iter(self.arms))
        _known("baseline", [self.baseline], self.arms)
        enough = len(self.seeds) >= LEAST_PAIRS or not self.claims
        require(enough, "seeds", f"be at least {LEAST_PAIRS}: fewer pairs have no verdict", len(self.seeds))
        ids = [claim.id for claim in self.claims]
        require(len(set(ids)) == len(ids), "claims", "each have an id of their own", ", ".join(ids))
        _known("notes", self.notes, ids)
        for claim in self.claims:
            self._check_claim(claim)
        idle = [arm for arm in self.arms if arm != self.baseline and not any(arm in self.sides(claim) for claim in self.claims)]
        require(not idle, "arms", "each be in a claim", ", ".join(idle))
        for name, at in self.scales.items():
            _known(f"scales.{name}.own", at.own, self.arms)
            _known(f"scales.{name}.claims", at.claims, ids)
        if self.tune is not None:
            self._check_tune(self.tune)

    def _check_overrides(self) -> None:
        """What is written, read and sent elsewhere follows from the command, not from the file, which may be a stranger's."""
        lists = [self.overrides, *self.arms.values()]
        for at in self.scales.values():
            lists += [at.overrides, at.train, at.bench, *at.own.values()]
        if self.tune is not None:
            lists += [trial for trials in self.tune.trials.values() for trial in trials]
        for word in (word for words in lists for word in words):
            require(isinstance(word, str), "overrides", "be words, as in [attention=gqa]", word)
            if not word.startswith(ENGINE):
                (name,) = composing.keys([word])
                require(not name.startswith(CLOSED), name, "be left out: the command says where things lie", word)

    def _check_claim(self, claim: Claim) -> None:
        for arm in self.sides(claim):
            _known(f"claim {claim.id}: arm", [arm], self.arms)
        require(self.against(claim) != claim.arm or not claim.compares, f"claim {claim.id}: arm", "not be its own baseline", claim.arm)
        for name, at in self.scales.items():
            if at.claims and claim.id not in at.claims:
                continue
            for metric in claim.metrics:
                place = KEY_OF[metric.made_by]
                require(bool(getattr(at, place)), f"scales.{name}.{place}", f"be given for claim {claim.id}, about {metric.name}", "none")
            for guard in claim.guards:
                guard.margin(name)
            racing = claim.target == BASELINE and not at.lengths
            require(not racing, f"scales.{name}.lengths", f"be given for claim {claim.id}: the shortest schedule that ends there", "none")

    def _check_tune(self, tune: Tune) -> None:
        _known("tune.trials", tune.trials, self.trained)
        shared = [seed for seed in tune.seeds if seed in self.seeds]
        require(not shared, "tune.seeds", "not be the study's: a winner chosen on them would be flattered", shared)
        bare = [arm for arm in self.trained if arm not in tune.trials]
        require(not bare, "tune.trials", "be for every trained arm", ", ".join(bare))

    def against(self, claim: Claim) -> str:
        """The arm a claim's gains and guards are measured against."""
        return claim.baseline or self.baseline

    def sides(self, claim: Claim) -> list[str]:
        """The arms whose measurements a claim needs."""
        return list(dict.fromkeys([claim.arm, *([self.against(claim)] if claim.compares else [])]))

    def needing(self, wanted: Callable[[Metric], bool]) -> list[str]:
        """The arms, in their order, of which a claim or guard needs such a metric."""
        sides = {arm for claim in self.claims if any(map(wanted, claim.metrics)) for arm in self.sides(claim)}
        return [arm for arm in self.arms if arm in sides]

    @property
    def trained(self) -> list[str]:
        return self.needing(lambda metric: metric.made_by == "train")

    @property
    def racing(self) -> list[str]:
        """The arms that are trained at several lengths: those that race to one loss."""
        return list(dict.fromkeys(arm for claim in self.claims if claim.races for arm in self.sides(claim)))


def select_claims(study: Study, scale: str) -> Study:
    """The study with the claims of this scale and their arms; the whole one where the scale names none."""
    at, tune = study.scales[scale], study.tune
    if not at.claims:
        return study
    claims = [claim for claim in study.claims if claim.id in at.claims]
    kept = {study.baseline, *(arm for claim in claims for arm in study.sides(claim))}
    arms = {arm: words for arm, words in study.arms.items() if arm in kept}
    own = {arm: words for arm, words in at.own.items() if arm in kept}
    notes = {name: note for name, note in study.notes.items() if name in at.claims}
    some = replace(study, tune=None, claims=claims, arms=arms, notes=notes, scales={scale: replace(at, own=own)})
    if tune is None or not some.trained:
        return some
    trials = {arm: listed for arm, listed in tune.trials.items() if arm in some.trained}
    return replace(some, tune=replace(tune, trials=trials))


def _known(place: str, names: Sequence[str] | dict[str, Any], known: Sequence[str] | dict[str, Any]) -> None:
    unknown = [name for name in names if name not in known]
    require(not unknown, place, f"be one of {', '.join(known)}", ", ".join(map(str, unknown)))


# --- the file ------------------------------------------------------------------------------------------------------------------------


def load(folder: Path) -> Study:
    """The study of a folder.

    Errors:
        ValueError: no `study.yaml`, or a wrong key, type or value in it; one line with file, key, rule and value.
    """
    path = folder / FILE
    try:
        text = read_text(path)
    except OSError as error:
        raise ValueError(f"{folder} must be a study's folder, with a {FILE} ({error.strerror})") from error
    try:
        plain = parse_yaml(text)
        require(isinstance(plain, dict), "a study", "hold keys and values", plain)
        refuse_interpolations(plain)
        _check_texts(plain)
        for name in ("name", "folder"):
            require(name not in plain, name, "be left out: it is the folder's", plain.get(name))
        return _typed({"name": folder.resolve().name, "folder": str(folder.resolve()), **plain})
    except (OmegaConfBaseException, HydraException, ValueError) as error:
        raise ValueError(f"{path}: {_explained(error)}") from error


def _check_texts(plain: Any) -> None:
    """Only lines may end inside a text, as in a method's."""
    if isinstance(plain, str):
        for line in plain.splitlines():
            check_text("text", line.expandtabs())
    for item in [*plain, *plain.values()] if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        _check_texts(item)


def _explained(error: Exception) -> str:
    """One line, with the keys there are where one is unknown."""
    if isinstance(error, ConfigKeyError) and (schema := error.object_type) is not None and is_dataclass(schema):
        owner = "a scale" if schema is ScaleConfig else schema.__name__.lower()
        return f"{error.full_key} is no key of {owner}{suggest(str(error.key), [f.name for f in fields(schema)])}"
    return explain(error) if isinstance(error, OmegaConfBaseException | HydraException) else str(error)


def _typed(plain: dict[str, Any]) -> Study:
    claims = plain.get("claims")
    for i, claim in enumerate(claims if isinstance(claims, list) else []):
        require(isinstance(claim, dict), f"claims[{i}]", "hold keys and values", claim)
        require("seeds" not in claim, f"claims[{i}].seeds", "be left out: they are the study's", claim.get("seeds"))
        try:
            OmegaConf.merge(OmegaConf.structured(Claim), claim)
        except (OmegaConfBaseException, ValueError) as error:  # of a list's item OmegaConf does not say which
            raise ValueError(f"claims[{i}].{_explained(error)}") from error
    if isinstance(claims, list):
        plain = {**plain, "claims": [{"seeds": plain.get("seeds", SEEDS), **claim} for claim in claims]}
    study = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.create(plain)))
    assert isinstance(study, Study)
    return study


# --- the studies that come with nocap ------------------------------------------------------------------------------------------------


def shipped() -> dict[str, Path]:
    """Name → the folder with its yaml: an installed package has their yamls, a checkout all of them."""
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
