"""The rules of a race as its `race.yaml` has them. They are fixed when the first proposal comes. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nocap.config.bounded import parse_yaml, read_text
from nocap.config.compose import refuse_interpolations
from nocap.config.errors import explain
from nocap.config.keys import check_keys, key, require
from nocap.judge.interval import Declared
from nocap.store.identity import digest
from nocap.study.spec import check_words

FILE = "race.yaml"


@dataclass(kw_only=True, slots=True)
class Rules:
    """A gain is the baseline's final validation loss minus the proposal's, in nats per token: as many tokens, the same seed."""

    question: str
    overrides: list[str] = field(default_factory=list)  # of every run
    baseline: list[str] = field(default_factory=list)
    gain: float = key(ge=0, le=100, default=0.0)  # nats: a proposal is accepted where it is shown to gain more
    alpha: float = key(gt=0, lt=0.5, default=0.05)  # the chance of accepting anything, were nothing better
    least: int = key(ge=2, le=1000, default=3)  # pairs before an answer
    most: int = key(ge=2, le=1000, default=12)  # pairs of one proposal
    first_seed: int = key(ge=0, lt=2**62, default=0)
    flops: float | None = key(ge=1, le=1000, default=None)  # FLOPs of a token over the baseline's, at most; null: any number
    noise: Declared | None = None  # of a pair's gain, in nats, where it is known before

    def __post_init__(self) -> None:
        check_keys("", self)
        require(bool(self.question.strip()), "question", "be given", repr(self.question))
        check_words([*self.overrides, *self.baseline])
        require(self.least <= self.most, "most", f"be at least the {self.least} pairs before an answer", self.most)

    @property
    def seeds(self) -> list[int]:
        """The pairs' own, the same for every proposal: who proposes chooses none."""
        return list(range(self.first_seed, self.first_seed + self.most))

    def hash(self) -> str:
        """Of all that decides; the question is for people."""
        return digest({name: value for name, value in asdict(self).items() if name != "question"})


def load(folder: Path) -> Rules:
    """The rules of a race's folder.

    Errors:
        ValueError: no `race.yaml`, or a wrong key, type or value in it; one line with file, key, rule and value.
    """
    path = folder / FILE
    try:
        plain = parse_yaml(read_text(path))
    except OSError as error:
        raise ValueError(f"{folder} must be a race's folder, with a {FILE} ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{path} must be YAML: {error}") from error
    require(isinstance(plain, dict), str(path), "hold keys and values", type(plain).__name__)
    try:
        refuse_interpolations(plain)
        found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Rules), OmegaConf.create(plain)))
    except (OmegaConfBaseException, HydraException) as error:
        raise ValueError(f"{path}: {explain(error)}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    assert isinstance(found, Rules)
    return found
