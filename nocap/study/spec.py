"""A study as its `study.yaml` has it: a question, arms, scales, claims. Checked like every config, before anything runs. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
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
from nocap.judge.claim import BASELINE, CLAIMABLE, Claim
from nocap.judge.interval import BATCH, BATCHES, LEAST_PAIRS, Declared
from nocap.judge.sittings import APART_MIN
from nocap.store.metrics import Metric
from nocap.study.seeds import MOST_SEEDS, filled, with_seeds

FILE = "study.yaml"
CLOSED = ("output_dir", "cache_dir", "trainer.init_from", "tracker.", "store.")  # keys that are no study's
ENGINE = "engine="  # an override of a study, not of a config
ENGINES = ("no cache", "cache", "cache, compiled")  # of decoding; an arm chooses one with engine=…
# Instrument → the key of a scale with its settings there.
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
class At:
    """One scale of a study: what is trained, and at what shape steps are timed and profiled."""

    claims: list[str] = field(default_factory=list)  # those it is about; none: all
    overrides: list[str] = field(default_factory=list)  # of everything at this scale
    train: list[str] = field(default_factory=list)  # overrides of training; time to target uses the step time of this shape
    bench: list[str] = field(default_factory=list)  # overrides of timed and profiled steps: the claim's own shape
    budget: bool = False  # trainer.steps is what the hours on the command line allow
    rounds: int = key(ge=1, le=10_000, default=4)  # of interleaved blocks, two per arm, in each seed's timing
    sittings: int = key(ge=1, le=100, default=3)  # the seeds' timings are dealt over so many, apart in time; counts need one
    apart_min: float = key(ge=0, le=10_000, default=APART_MIN)  # minutes between sittings
    lengths: list[float] = key(gt=0, lt=1, default_factory=list)  # shorter schedules, as shares of trainer.steps: for races
    least_length: float = key(
        gt=0, lt=1, default=1 / 16
    )  # a race halves its shortest schedule until it misses the loss, down to this share
    own: dict[str, list[str]] = field(default_factory=dict)  # arm → overrides that it has at this scale only
    curve: list[int] = key(ge=1, le=2**24, default_factory=list)  # sequence lengths of an exponent
    decode: Decode | None = None
    sigma: float | None = key(gt=0, le=100, default=None)  # of one run's final loss between seeds, until the study's own runs measure it
    noise: dict[str, Declared] = field(default_factory=dict)  # metric → of one pair's gain, from earlier studies of this scale
    speaks_for: str = ""  # what its verdicts cannot be about; "" where the scale is the claim's own

    def __post_init__(self) -> None:
        check_keys("", self)
        require(len(set(self.lengths)) == len(self.lengths), "lengths", "differ", self.lengths)
        require(not self.curve or len(set(self.curve)) >= 3, "curve", "be at least 3 lengths, in tokens", self.curve)
        self.lengths = sorted(self.lengths)
        unknown = [name for name in self.noise if name not in CLAIMABLE]
        require(not unknown, "noise", f"be of {', '.join(CLAIMABLE)}", ", ".join(unknown))


@dataclass(kw_only=True, slots=True)
class Tune:
    """A search before the study: as many trials an arm, on seeds that are not the study's. The best mean of the final loss wins."""

    seeds: list[int] = key(ge=0, lt=2**63)
    trials: dict[str, list[list[str]]] = field(default_factory=dict)  # arm → overrides of each trial
    follow: dict[str, str] = field(default_factory=dict)  # arm → the arm whose winner it takes too

    def __post_init__(self) -> None:
        check_keys("tune", self)
        require(bool(self.seeds), "tune.seeds", "have at least one", self.seeds)
        counts = {len(of) for of in self.trials.values()}
        rule = "give every arm as many trials, at least two: an arm that was searched less is handicapped"
        found = ", ".join(f"{arm}: {len(of)}" for arm, of in self.trials.items())
        require(len(counts) == 1 and min(counts) >= 2, "tune.trials", rule, found or "none")
        lost = [arm for arm, other in self.follow.items() if other not in self.trials or arm in self.trials]
        require(not lost, "tune.follow", "lead from an arm without trials to one with them", ", ".join(lost))


@dataclass(kw_only=True, slots=True)
class Propose:
    """How a program's proposals are answered: arms beside the baseline, as many tokens, on seeds that it does not choose."""

    gain: float = key(ge=0, le=100, default=0.0)  # nats: a proposal is accepted where it is shown to lower the final loss by more
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
    baseline: str
    arms: dict[str, list[str]]
    seeds: list[int] = key(ge=0, lt=2**63, default_factory=list)  # all that may be needed: `load` adds what `max_seeds` allows
    max_seeds: int | None = key(ge=LEAST_PAIRS, le=MOST_SEEDS, default=None)  # fresh seeds follow, up to so many, until claims are decided
    scales: dict[str, At]
    claims: list[Claim] = field(default_factory=list)
    tune: Tune | None = None
    propose: Propose | None = None
    notes: dict[str, str] = field(default_factory=dict)  # claim → what a reader of its row should know; for people, decides nothing
    folder: str = ""  # its path, where its ledger is; "": it has none

    def __post_init__(self) -> None:
        check_keys("", self)
        self._check_names()
        self._check_overrides()
        require(bool(self.question.strip()), "question", "be given", repr(self.question))
        require(bool(self.arms), "arms", "name at least one", "none")
        require(bool(self.scales), "scales", "name at least one", "none")
        require(bool(self.claims) or self.propose is not None, "claims", "have at least one, unless propose is given", "none")
        require(self.baseline in self.arms, "baseline", f"be one of the arms {', '.join(self.arms)}", self.baseline)
        enough = len(self.seeds) >= LEAST_PAIRS or not self.claims
        require(enough, "seeds", f"be at least {LEAST_PAIRS}: fewer pairs have no verdict", len(self.seeds))
        filled = self.max_seeds in (None, len(self.seeds))
        require(filled, "max_seeds", f"be more than the {len(self.seeds)} seeds", self.max_seeds)
        ids = [claim.id for claim in self.claims]
        require(len(set(ids)) == len(ids), "claims", "each have an id of their own", ", ".join(ids))
        unknown = [name for name in self.notes if name not in ids]
        require(not unknown, "notes", f"be about the claims {', '.join(ids)}", ", ".join(unknown))
        for claim in self.claims:
            self._check_claim(claim)
        idle = [arm for arm in self.arms if arm != self.baseline and not any(arm in self.sides(claim) for claim in self.claims)]
        require(not idle, "arms", "each be in a claim", ", ".join(idle))
        for name, at in self.scales.items():
            for what, named, there in (("own", at.own, "arms"), ("claims", at.claims, "claims")):
                known = self.arms if there == "arms" else ids
                unknown = [one for one in named if one not in known]
                require(not unknown, f"scales.{name}.{what}", f"be about the {there} {', '.join(known)}", ", ".join(unknown))
        if self.tune is not None:
            self._check_tune(self.tune)

    def _check_names(self) -> None:
        """They are parts of files' names."""
        for what, names in (("arms", self.arms), ("scales", self.scales)):
            for name in names:
                ok = bool(re.fullmatch(r"\w[^/\\]{0,99}", name)) and name.isprintable()
                require(ok, what, "have names of up to 100 characters, without / and first a letter or digit", repr(name))

    def _check_overrides(self) -> None:
        """What is written, read and sent elsewhere follows from the command, not from the file, which may be a stranger's."""
        lists = [self.overrides, *self.arms.values()]
        for at in self.scales.values():
            lists += [at.overrides, at.train, at.bench, *at.own.values()]
        if self.tune is not None:
            lists += [trial for trials in self.tune.trials.values() for trial in trials]
        check_words([word for words in lists for word in words])

    def _check_claim(self, claim: Claim) -> None:
        for arm in self.sides(claim):
            require(arm in self.arms, f"claim {claim.id}: arm", f"be one of {', '.join(self.arms)}", arm)
        strangers = [seed for seed in claim.seeds if seed not in self.seeds]
        require(not strangers, f"claim {claim.id}: seeds", f"be among the study's {self.seeds}", strangers)
        require(self.against(claim) != claim.arm or not claim.compares, f"claim {claim.id}: arm", "not be its own baseline", claim.arm)
        for name, at in self.scales.items():
            if at.claims and claim.id not in at.claims:
                continue
            for metric in claim.metrics:
                key = KEY_OF[metric.made_by]
                require(bool(getattr(at, key)), f"scales.{name}.{key}", f"be given for claim {claim.id}, about {metric.name}", "none")
            for guard in claim.guards:
                guard.margin(name)
            racing = claim.target == BASELINE and not at.lengths
            require(not racing, f"scales.{name}.lengths", f"be given for claim {claim.id}: the shortest schedule that ends there", "none")

    def _check_tune(self, tune: Tune) -> None:
        idle = [arm for arm in (*tune.trials, *tune.follow) if arm not in self.trained]
        require(not idle, "tune", f"be about the trained arms {', '.join(self.trained)}", ", ".join(idle))
        shared = [seed for seed in tune.seeds if seed in self.seeds]
        require(not shared, "tune.seeds", "not be the study's: a winner chosen on them would be flattered", shared)
        bare = [arm for arm in self.trained if arm not in tune.trials and arm not in tune.follow]
        require(not bare, "tune", "be for every trained arm, by trials or by follow", ", ".join(bare))

    @property
    def needed(self) -> list[int]:
        """The seeds that a claim has."""
        return [seed for seed in self.seeds if any(seed in claim.seeds for claim in self.claims)]

    def against(self, claim: Claim) -> str:
        """The arm a claim's gains and guards are measured against."""
        return claim.baseline or self.baseline

    def sides(self, claim: Claim) -> list[str]:
        """The arms whose measurements a claim needs."""
        return list(dict.fromkeys([claim.arm, *([self.against(claim)] if claim.compares else [])]))

    def needing(self, wanted: Callable[[Metric], bool]) -> dict[int, list[str]]:
        """Seed → the arms, in their order, of which a claim or guard needs such a metric with it."""
        claims = [claim for claim in self.claims if any(map(wanted, claim.metrics))]
        needed = {seed: {arm for claim in claims if seed in claim.seeds for arm in self.sides(claim)} for seed in self.seeds}
        return {seed: [arm for arm in self.arms if arm in arms] for seed, arms in needed.items() if arms}

    def made_by(self, *instruments: str) -> dict[int, list[str]]:
        return self.needing(lambda metric: metric.made_by in instruments)

    def arms_by(self, *instruments: str) -> list[str]:
        """The arms that are measured so with any seed."""
        found = {arm for arms in self.made_by(*instruments).values() for arm in arms}
        return [arm for arm in self.arms if arm in found]

    @property
    def trained(self) -> list[str]:
        return self.arms_by("train")


def check_words(words: Sequence[object]) -> None:
    """Refuse what is no override, or none that a file may have."""
    for word in words:
        require(isinstance(word, str), "overrides", "be words, as in [attention=gqa]", word)
        assert isinstance(word, str)
        if word.startswith(ENGINE):
            continue
        (name,) = composing.keys([word])
        require(not name.startswith(CLOSED), name, "be left out: the command says where things lie", word)


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
    except ValueError as error:
        raise ValueError(f"{path} must be YAML: {error}") from error
    require(isinstance(plain, dict), str(path), "hold keys and values", type(plain).__name__)
    try:
        refuse_interpolations(plain)
        _check_texts(plain)
        for key in ("name", "folder"):
            require(key not in plain, key, "be left out: it is the folder's", plain.get(key))
        return _typed({"name": folder.resolve().name, "folder": str(folder.resolve()), **plain})
    except (OmegaConfBaseException, HydraException, ValueError) as error:
        raise ValueError(f"{path}: {_explained(error)}") from error


def _check_texts(plain: Any) -> None:
    """Only lines may end inside a text, as in a method's."""
    if isinstance(plain, str):
        for line in plain.splitlines():
            check_text("text", line.expandtabs())
    items = [*plain, *plain.values()] if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    for item in items:
        _check_texts(item)


KEY_OF_SCHEMA: dict[type, str] = {At: "a scale"}  # where a class has no name that a user knows


def _explained(error: Exception) -> str:
    """One line, with the keys there are where one is unknown."""
    if isinstance(error, ConfigKeyError) and (schema := error.object_type) is not None and is_dataclass(schema):
        known = [f.name for f in fields(schema)]
        return f"{error.full_key} is no key of {KEY_OF_SCHEMA.get(schema, schema.__name__.lower())}{suggest(str(error.key), known)}"
    return explain(error) if isinstance(error, OmegaConfBaseException | HydraException) else str(error)


def _typed(plain: dict[str, Any]) -> Study:
    plain = filled(plain)
    claims = plain.get("claims")
    for i, claim in enumerate(claims if isinstance(claims, list) else []):
        require(isinstance(claim, dict), f"claims[{i}]", "hold keys and values", claim)
        try:
            OmegaConf.merge(OmegaConf.structured(Claim), claim)
        except (OmegaConfBaseException, ValueError) as error:  # of a list's item OmegaConf does not say which
            raise ValueError(f"claims[{i}].{_explained(error)}") from error
    if isinstance(claims, list) and "seeds" in plain:
        plain = {**plain, "claims": [with_seeds(claim, plain) if isinstance(claim, dict) else claim for claim in claims]}
    found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.create(plain)))
    assert isinstance(found, Study)
    return found
