"""A study as its `study.yaml` says it: a question, arms, scales, claims. Checked like every config, before anything runs. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from nocap.config.compose import refuse_interpolations
from nocap.config.errors import explain
from nocap.config.keys import require
from nocap.judge.claim import BASELINE, LEAST_PAIRS, Claim
from nocap.store.measurement import Metric

FILE = "study.yaml"
ENGINES = ("no cache", "cache", "cache, compiled")  # of decoding; an arm chooses one with engine=…
# Instrument → the key of a scale that says how it measures there.
KEY_OF = {"train": "train", "steps": "bench", "parts": "bench", "lengths": "curve", "decoding": "decode"}


@dataclass(kw_only=True, slots=True)
class Decode:
    """The text that decoding is timed on."""

    prompt: int  # tokens
    new: int
    vocab_size: int

    def __post_init__(self) -> None:
        for key in ("prompt", "new", "vocab_size"):
            require(getattr(self, key) >= 1, f"decode.{key}", "be at least 1", getattr(self, key))


@dataclass(kw_only=True, slots=True)
class At:
    """One scale of a study: what is trained, and at what shape steps are timed and taken apart."""

    overrides: list[str] = field(default_factory=list)  # of everything at this scale
    train: list[str] = field(default_factory=list)  # overrides of training; time to target uses the step time of this shape
    bench: list[str] = field(default_factory=list)  # overrides of timed and profiled steps: the claim's own shape
    budget: bool = False  # trainer.steps is what the hours on the command line allow
    rounds: int = 4  # of interleaved blocks, two per arm, in each seed's timing
    lengths: list[float] = field(default_factory=list)  # shorter schedules, as shares of trainer.steps: for the exchange rate, and races
    own: dict[str, list[str]] = field(default_factory=dict)  # arm → overrides that it has at this scale only
    curve: list[int] = field(default_factory=list)  # sequence lengths of an exponent
    decode: Decode | None = None
    sigma: float | None = None  # of one run's final loss between seeds, until the study's own runs measure it
    speaks_for: str = ""  # what its verdicts cannot be about; "" where the scale is the claim's own

    def __post_init__(self) -> None:
        require(self.rounds >= 1, "rounds", "be at least 1", self.rounds)
        require(all(0 < x < 1 for x in self.lengths), "lengths", "be shares of trainer.steps, above 0 and below 1", self.lengths)
        require(len(set(self.lengths)) == len(self.lengths), "lengths", "differ", self.lengths)
        ok = not self.curve or (len(set(self.curve)) >= 3 and min(self.curve) >= 1)
        require(ok, "curve", "be at least 3 lengths, in tokens", self.curve)
        require(self.sigma is None or 0 < self.sigma < math.inf, "sigma", "be above 0, or null", self.sigma)
        self.lengths = sorted(self.lengths)


@dataclass(kw_only=True, slots=True)
class Tune:
    """A search before the study: as many trials an arm, on seeds that are not the study's. The best mean of the final loss wins."""

    seeds: list[int]
    trials: dict[str, list[list[str]]]  # arm → overrides of each trial
    follow: dict[str, str] = field(default_factory=dict)  # arm → the arm whose winner it takes too

    def __post_init__(self) -> None:
        require(bool(self.seeds), "tune.seeds", "have at least one", self.seeds)
        counts = {len(trials) for trials in self.trials.values()}
        rule = "give every arm as many trials, at least two: an arm that was searched less is handicapped"
        told = ", ".join(f"{arm}: {len(trials)}" for arm, trials in self.trials.items())
        require(len(counts) == 1 and min(counts) >= 2, "tune.trials", rule, told or "none")
        lost = [arm for arm, other in self.follow.items() if other not in self.trials or arm in self.trials]
        require(not lost, "tune.follow", "lead from an arm without trials to one with them", ", ".join(lost))


@dataclass(kw_only=True, slots=True)
class Study:
    name: str  # its folder's
    question: str
    method: str = ""  # what a reader should know beyond the arms
    overrides: list[str] = field(default_factory=list)  # of all arms at all scales
    baseline: str
    arms: dict[str, list[str]]
    seeds: list[int]
    scales: dict[str, At]
    claims: list[Claim]
    tune: Tune | None = None

    def __post_init__(self) -> None:
        require(bool(self.question.strip()), "question", "be given", repr(self.question))
        require(bool(self.arms), "arms", "name at least one", "none")
        require(bool(self.scales), "scales", "name at least one", "none")
        require(bool(self.claims), "claims", "have at least one", "none")
        require(self.baseline in self.arms, "baseline", f"be one of the arms {', '.join(self.arms)}", self.baseline)
        require(len(self.seeds) >= LEAST_PAIRS, "seeds", f"be at least {LEAST_PAIRS}: fewer pairs have no verdict", len(self.seeds))
        ids = [claim.id for claim in self.claims]
        require(len(set(ids)) == len(ids), "claims", "each have an id of their own", ", ".join(ids))
        for claim in self.claims:
            self._check_claim(claim)
        idle = [arm for arm in self.arms if arm != self.baseline and not any(arm in self.sides(claim) for claim in self.claims)]
        require(not idle, "arms", "each be in a claim", ", ".join(idle))
        for name, at in self.scales.items():
            unknown = [arm for arm in at.own if arm not in self.arms]
            require(not unknown, f"scales.{name}.own", f"be about the arms {', '.join(self.arms)}", ", ".join(unknown))
        if self.tune is not None:
            self._check_tune(self.tune)

    def _check_claim(self, claim: Claim) -> None:
        for arm in self.sides(claim):
            require(arm in self.arms, f"claim {claim.id}: arm", f"be one of {', '.join(self.arms)}", arm)
        strangers = [seed for seed in claim.seeds if seed not in self.seeds]
        require(not strangers, f"claim {claim.id}: seeds", f"be among the study's {self.seeds}", strangers)
        require(self.against(claim) != claim.arm or not claim.compares, f"claim {claim.id}: arm", "not be its own baseline", claim.arm)
        for name, at in self.scales.items():
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

    def against(self, claim: Claim) -> str:
        """The arm a claim's gains and guards are measured against."""
        return claim.baseline or self.baseline

    def sides(self, claim: Claim) -> list[str]:
        """The arms whose measurements a claim needs."""
        return list(dict.fromkeys([claim.arm, *([self.against(claim)] if claim.compares else [])]))

    def needing(self, wanted: Callable[[Metric], bool]) -> tuple[list[str], list[int]]:
        """The arms, in their order, and the seeds that a claim or guard needs such a metric of."""
        claims = [claim for claim in self.claims if any(map(wanted, claim.metrics))]
        arms, seeds = {arm for claim in claims for arm in self.sides(claim)}, {seed for claim in claims for seed in claim.seeds}
        return [arm for arm in self.arms if arm in arms], [seed for seed in self.seeds if seed in seeds]

    def made_by(self, *instruments: str) -> tuple[list[str], list[int]]:
        return self.needing(lambda metric: metric.made_by in instruments)

    @property
    def trained(self) -> list[str]:
        return self.made_by("train")[0]


def load(folder: Path) -> Study:
    """The study of a folder.

    Errors:
        ValueError: no `study.yaml`, or a wrong key, type or value in it; one line with file, key, rule and value.
    """
    path = folder / FILE
    try:
        plain = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ValueError(f"{folder} must be a study's folder, with a {FILE} ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be YAML: {' '.join(str(error).split())}") from error
    require(isinstance(plain, dict), str(path), "hold keys and values", type(plain).__name__)
    try:
        refuse_interpolations(plain)
        require("name" not in plain, "name", "be left out: it is the folder's", plain.get("name"))
        return _typed({"name": folder.resolve().name, **plain})
    except (OmegaConfBaseException, ValueError) as error:
        raise ValueError(f"{path}: {_explained(error)}") from error


def _explained(error: Exception) -> str:
    """One line, with the keys there are where one is unknown."""
    if isinstance(error, ConfigKeyError) and (schema := error.object_type) is not None and is_dataclass(schema):
        return f"{error.full_key} is no key of {schema.__name__.lower()} (it has {', '.join(f.name for f in fields(schema))})"
    return explain(error) if isinstance(error, OmegaConfBaseException) else str(error)


def _typed(plain: dict[str, Any]) -> Study:
    claims = plain.get("claims")
    if isinstance(claims, list) and "seeds" in plain:  # a claim has the study's seeds unless it names its own
        plain = {**plain, "claims": [{"seeds": plain["seeds"], **claim} if isinstance(claim, dict) else claim for claim in claims]}
    found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.create(plain)))
    assert isinstance(found, Study)
    return found
