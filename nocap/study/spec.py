"""A study as its `study.yaml` has it: a question, arms, scales, claims. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from nocap.config.keys import key, require
from nocap.judge.cautious_interval import Declared
from nocap.judge.claim import Claim
from nocap.judge.interval import BATCH, BATCHES
from nocap.metrics import Better, Metric, Scale
from nocap.sessions.places import CACHE, TRAIN

GPU = "gpu"  # the scale of a study that is carried out where there is a GPU
ENGINE = "engine="  # an override of a study, not of a config: one of `ENGINES` for decoding


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
    # of timed and profiled steps: the claim's own shape
    bench: list[str] = field(default_factory=list)
    # of interleaved blocks, two per arm, in each session
    rounds: int = key(ge=1, le=10_000, default=4)
    sessions: int = key(ge=1, le=100, default=3)  # of timing; what is only counted needs one
    apart_min: float = key(ge=0, le=10_000, default=5.0)  # minutes between sessions
    # shorter schedules, as shares of trainer.steps: for races
    lengths: list[float] = key(gt=0, lt=1, default_factory=list)
    # arm → overrides that it has at this scale only
    own: dict[str, list[str]] = field(default_factory=dict)
    curve: list[int] = key(ge=1, le=2**24, default_factory=list)  # sequence lengths of an exponent
    decode: Decode | None = None
    # metric → of one pair's gain, from earlier studies
    noise: dict[str, Declared] = field(default_factory=dict)
    # what its verdicts cannot be about; "" where the scale is the claim's own
    limitations: str = ""


@dataclass(kw_only=True, slots=True)
class Tune:
    """A search before the study: as many trials an arm, on seeds that are not the study's. The best
    mean of the final loss wins."""

    seeds: list[int] = key(ge=0, lt=2**63, default_factory=list)
    # arm → overrides of each trial
    trials: dict[str, list[list[str]]] = field(default_factory=dict)


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
    # of the baseline; then a proposal is the working tree, each in a worktree of its own
    ref: str = ""
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
    """A study: the keys of its file, beside its name and folder."""

    name: str = ""  # its folder's
    folder: str = ""  # its path, where its log is
    question: str
    method: str = ""  # what a reader should know beyond the arms
    overrides: list[str] = field(default_factory=list)  # of all arms at all scales
    # a folder inside the study's own, with options that its arms choose; "": none
    config_dir: str = ""
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

    def at(self, scale: str) -> ScaleConfig:
        """Return a scale by its name.

        Errors:
            ValueError: there is none of that name.
        """
        rule = f"be one of the study's scales ({', '.join(self.scales)})"
        require(scale in self.scales, "scale", rule, scale)
        return self.scales[scale]

    def against(self, claim: Claim) -> str:
        """Return the arm that a claim's gains and guards are measured against."""
        return claim.baseline or self.baseline

    def compared_with(self, claim: Claim) -> str | None:
        """Return the arm that a claim is compared with; `None`: it is about a value."""
        return None if claim.scale is Scale.value else self.against(claim)

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
        return self.arms_needing(lambda metric: metric.made_by == TRAIN)

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
    engine = CACHE
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
