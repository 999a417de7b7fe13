"""A study as its `study.yaml` has it: a question, arms, scales, claims. Checked like every config, before
anything runs. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from nocap.config.bounded import parse_yaml, read_text
from nocap.config.compose import parsed
from nocap.config.keys import check_keys, key, require
from nocap.config.paths import PACKAGE
from nocap.config.plain import made, refuse_interpolations
from nocap.judge.cautious import Declared
from nocap.judge.claim import CLAIMABLE, Claim
from nocap.judge.interval import BATCH, BATCHES, LEAST_PAIRS
from nocap.sessions.figures import setting_of
from nocap.store.metrics import Better, Metric

FILE = "study.yaml"
PLACE = Path("experiments")  # of studies, in a checkout and in the folder where a command is typed
CLOSED = ("output_dir", "cache_dir", "trainer.init_from", "tracker.", "store.")  # keys that are no study's
GPU = "gpu"  # the scale of a study that is carried out where there is a GPU
ENGINE = "engine="  # an override of a study, not of a config
ENGINES = ("no cache", "cache", "cache, compiled")  # of decoding; an arm chooses one with engine=…

# whether it holds, the place in the file, the rule, and what is there
Check = tuple[object, str, str, object]


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
    bench: list[str] = field(default_factory=list)  # of timed and profiled steps: the claim's own shape
    rounds: int = key(ge=1, le=10_000, default=4)  # of interleaved blocks, two per arm, in each session
    sessions: int = key(ge=1, le=100, default=3)  # of timing; what is only counted needs one
    apart_min: float = key(ge=0, le=10_000, default=5.0)  # minutes between sessions
    # shorter schedules, as shares of trainer.steps: for races
    lengths: list[float] = key(gt=0, lt=1, default_factory=list)
    own: dict[str, list[str]] = field(default_factory=dict)  # arm → overrides that it has at this scale only
    curve: list[int] = key(ge=1, le=2**24, default_factory=list)  # sequence lengths of an exponent
    decode: Decode | None = None
    # metric → of one pair's gain, from earlier studies
    noise: dict[str, Declared] = field(default_factory=dict)
    limitations: str = ""  # what its verdicts cannot be about; "" where the scale is the claim's own


@dataclass(kw_only=True, slots=True)
class Tune:
    """A search before the study: as many trials an arm, on seeds that are not the study's. The best mean of
    the final loss wins."""

    seeds: list[int] = key(ge=0, lt=2**63, default_factory=list)
    trials: dict[str, list[list[str]]] = field(default_factory=dict)  # arm → overrides of each trial


@dataclass(kw_only=True, slots=True)
class Propose:
    """How a program's proposals are answered: arms beside the baseline, on seeds that it does not choose.
    With `command` a proposal is anybody's training command, and this one is the baseline; else it is
    overrides of nocap's own, with as many tokens."""

    # nats, or the metric's unit: a proposal is accepted where it is shown to gain more
    gain: float = key(ge=0, le=100, default=0.0)
    # FLOPs of a token over the baseline's, at most; null: any number
    flops: float | None = key(ge=1, le=1000, default=None)
    first_seed: int = key(ge=0, lt=2**62, default=0)
    command: str = ""
    metric: str = ""  # of what a command prints: a pattern with one group, or a name
    better: Better = Better.lower
    file: str = ""  # that the command writes, with the metric
    ref: str = ""  # of the baseline; then a proposal is the working tree, each in a worktree of its own
    locked: list[str] = field(default_factory=list)  # files that must be equal in both
    link: list[str] = field(default_factory=list)  # what git ignores and the command needs
    reads_seed: bool = False  # the command reads $NOCAP_SEED
    timeout: str = "12h"  # of a run

    @property
    def batches(self) -> list[range]:
        """The seeds of each batch, the same for every proposal."""
        return [
            range(first, first + BATCH)
            for first in range(self.first_seed, self.first_seed + BATCH * BATCHES, BATCH)
        ]


@dataclass(kw_only=True, slots=True)
class Study:
    name: str = ""  # its folder's
    folder: str = ""  # its path, where its log is
    question: str
    method: str = ""  # what a reader should know beyond the arms
    overrides: list[str] = field(default_factory=list)  # of all arms at all scales
    config_dir: str = ""  # a folder inside the study's own, with options that its arms choose; "": none
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

    @property
    def lengthened(self) -> dict[str, list[int]]:
        """Return the baselines of claims about the time at equal loss, which are trained at two other lengths
        too, each with the seeds of these claims."""
        seeds = dict[str, list[int]]()
        for claim in self.claims:
            if claim.at_equal_loss:
                seeds.setdefault(self.against(claim), []).extend(claim.seeds)
        return {arm: list(dict.fromkeys(some)) for arm, some in seeds.items()}


def arm_overrides(study: Study, at: ScaleConfig, arm: str, place: Sequence[str]) -> list[str]:
    """The study's, the scale's, the place's (`at.train` or `at.bench`), and the arm's own."""
    own = [word for word in (*study.arms[arm], *at.own.get(arm, ())) if not word.startswith(ENGINE)]
    return [*study.overrides, *at.overrides, *place, *own]


def engine_of(study: Study, at: ScaleConfig, arm: str) -> str:
    """How an arm decodes: its engine=…, or with a cache."""
    named = [
        word.removeprefix(ENGINE)
        for word in (*study.arms[arm], *at.own.get(arm, ()))
        if word.startswith(ENGINE)
    ]
    return named[-1] if named else "cache"


def select_claims(study: Study, scale: str) -> Study:
    """The study with the claims of this scale and their arms; the whole one where the scale names none."""
    names = study.scales[scale].claims
    claims = [claim for claim in study.claims if not names or claim.id in names]
    kept = {study.baseline, *(arm for claim in claims for arm in study.sides(claim))}
    return replace(
        study, claims=claims, arms={arm: words for arm, words in study.arms.items() if arm in kept}
    )


# --- the file -----------------------------------------------------------------------------------------------


def load(folder: Path) -> Study:
    """The study of a folder; one of nocap's that was never carried out here has no folder yet.

    Errors:
        ValueError: no `study.yaml`, or a wrong key, type or value in it; one line with file, key, rule and
            value.
    """
    path = source_of(folder) / FILE
    try:
        plain = parse_yaml(read_text(path))
        require(isinstance(plain, dict), "a study", "hold keys and values", plain)
        refuse_interpolations(plain)
        own = [name for name in ("name", "folder") if name in plain]
        require(not own, " and ".join(own), "be left out: they are the folder's", "one")
        study: Study = made(Study, {**plain, "claims": []})
        study.name, study.folder = folder.resolve().name, str(folder.resolve())
        listed = plain.get("claims", [])
        require(isinstance(listed, list), "claims", "be a list", listed)
        for i, claim in enumerate(listed):
            require(isinstance(claim, dict), f"claims[{i}]", "hold keys and values", claim)
            require(
                "seeds" not in claim,
                f"claims[{i}].seeds",
                "be left out: they are the study's",
                claim.get("seeds"),
            )
            study.claims.append(made(Claim, {**claim, "seeds": study.seeds}, f"claims[{i}]."))
        check(study)
        options_of(study)
    except OSError as error:
        raise ValueError(f"{folder} must be a study's folder, with a {FILE} ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return study


def options_of(study: Study) -> list[Path]:
    """List the folder of options from outside that a study brings; of most studies there is none.

    Errors:
        ValueError: it is no folder inside the study's own.
    """
    if not study.config_dir:
        return []
    home = source_of(Path(study.folder)).resolve()
    place = (home / study.config_dir).resolve()
    is_inside = place.is_relative_to(home) and place.is_dir()
    require(is_inside, "config_dir", "be a folder inside the study's own", study.config_dir)
    return [place]


def files_of(study: Study) -> dict[Path, bytes]:
    """Return what a study is made of, its yaml and its options: path in its folder → content."""
    home = source_of(Path(study.folder)).resolve()
    paths = [home / FILE]
    for place in options_of(study):
        paths += [path for path in sorted(place.rglob("*")) if path.suffix in (".py", ".yaml")]
    return {path.relative_to(home): path.read_bytes() for path in paths}


# --- what must hold -----------------------------------------------------------------------------------------


def check(study: Study) -> None:
    """
    Errors:
        ValueError: the first thing that is wrong.
    """
    scales = {f"scales.{name}": at for name, at in study.scales.items()}
    texts = {f"{name}.decode": at.decode for name, at in scales.items() if at.decode}
    parts = {"": study, **scales, **texts, "tune": study.tune, "propose": study.propose or Propose()}
    for place, part in parts.items():
        check_keys(place, part)
    study.baseline = study.baseline or next(iter(study.arms), "")
    for place, names, known in _names(study, scales):
        unknown = [name for name in names if name not in known]
        require(not unknown, place, f"be one of {', '.join(known)}", ", ".join(unknown))
    for rules in (_rules, _rules_of_scales):  # the second rest on the first
        for holds, place, rule, got in rules(study):
            require(bool(holds), place, rule, got)
    lists = [study.overrides, *study.arms.values(), *chain(*study.tune.trials.values())]
    for at in scales.values():
        at.lengths.sort()
        lists += [at.overrides, at.train, at.bench, *at.own.values()]
    for word in chain(*lists):
        require(isinstance(word, str), "overrides", "be words, as in [attention=gqa]", word)
        # What is written, read and sent elsewhere follows from the command, not from the file, which may be a
        # stranger's.
        name = "" if word.startswith(ENGINE) else parsed(word).key_or_group
        require(not name.startswith(CLOSED), name, "be left out: the command says where things lie", word)


def _names(
    study: Study, scales: Mapping[str, ScaleConfig]
) -> list[tuple[str, Iterable[str], Collection[str]]]:
    """Place in the file, the names there, and those that there are."""
    ids = [claim.id for claim in study.claims]
    return [
        ("baseline", [study.baseline] if study.arms else [], study.arms),
        *((f"claim {claim.id}: arm", study.sides(claim), study.arms) for claim in study.claims),
        ("notes", study.notes, ids),
        *((f"{name}.claims", at.claims, ids) for name, at in scales.items()),
        *((f"{name}.own", at.own, study.arms) for name, at in scales.items()),
        *((f"{name}.noise", at.noise, CLAIMABLE) for name, at in scales.items()),
        *(
            (f"arm {arm}: engine", [engine_of(study, at, arm)], ENGINES)
            for arm in study.arms
            for at in scales.values()
        ),
        ("tune.trials", study.tune.trials, study.trained),
    ]


def _rules(study: Study) -> list[Check]:
    claims, tune, ids = study.claims, study.tune, [claim.id for claim in study.claims]
    odd = [
        name
        for name in (*study.arms, *study.scales)
        if not (re.fullmatch(r"\w[^/\\]{0,99}", name) and name.isprintable())
    ]
    idle = [
        arm
        for arm in study.arms
        if arm != study.baseline and not any(arm in study.sides(claim) for claim in claims)
    ]
    sizes, searched = {len(trials) for trials in tune.trials.values()}, tune != Tune()
    shared, bare = (
        [seed for seed in tune.seeds if seed in study.seeds],
        [arm for arm in study.trained if arm not in tune.trials],
    )
    even = "give every arm as many trials, at least two: an arm that was searched less is handicapped"
    enough, alone = f"be at least {LEAST_PAIRS}: fewer pairs have no verdict", "not be its own baseline"
    return [
        (study.question.strip(), "question", "be given", repr(study.question)),
        *_rules_of_propose(study),
        (
            not odd,
            "arms and scales",
            "have names of up to 100 characters, without / and first a letter or digit",
            odd[:1],
        ),
        (claims or study.propose, "claims", "have at least one, unless propose is given", "none"),
        (not claims or len(study.seeds) >= LEAST_PAIRS, "seeds", enough, len(study.seeds)),
        (len({*ids}) == len(ids), "claims", "each have an id of their own", ", ".join(ids)),
        *(
            (
                not claim.compares or study.against(claim) != claim.arm,
                f"claim {claim.id}: arm",
                alone,
                claim.arm,
            )
            for claim in claims
        ),
        (not idle, "arms", "each be in a claim", ", ".join(idle)),
        (not searched or tune.seeds, "tune.seeds", "have at least one", "none"),
        (not shared, "tune.seeds", "not be the study's: a winner chosen on them would be flattered", shared),
        (not searched or not bare, "tune.trials", "be for every trained arm", ", ".join(bare)),
        (not searched or (len(sizes) == 1 and min(sizes) >= 2), "tune.trials", even, sizes),
    ]


def _rules_of_propose(study: Study) -> list[Check]:
    """Either overrides of arms are proposed, or commands."""
    rules = study.propose or Propose()
    given = [
        name for name in ("metric", "file", "ref", "locked", "link", "reads_seed") if getattr(rules, name)
    ]
    own = [
        name
        for name, there in (("arms", study.arms), ("scales", study.scales), ("propose.flops", rules.flops))
        if there
    ]
    return [
        (study.arms or rules.command, "arms", "be given", "none"),
        (study.scales or rules.command, "scales", "be given", "none"),
        (
            not rules.command or not own,
            "propose.command",
            "be without what is nocap's own trainer's",
            ", ".join(own),
        ),
        (
            bool(rules.command) == bool(rules.metric),
            "propose.metric",
            "be given with propose.command",
            repr(rules.metric),
        ),
        (rules.command or not given, "propose.command", f"be given with {', '.join(given)}", "none"),
    ]


def _rules_of_scales(study: Study) -> list[Check]:
    """List what a claim needs of each scale that it is about."""
    rules: list[Check] = []
    three = "be at least 3 lengths, in tokens"
    for name, at in study.scales.items():
        place = f"scales.{name}"
        rules.append((not at.curve or len({*at.curve}) >= 3, f"{place}.curve", three, at.curve))
        for claim in select_claims(study, name).claims:
            needed = {setting_of(metric): f", about {metric.name}" for metric in claim.metrics}
            if claim.races:
                needed["lengths"] = ": the shortest schedule that ends there"
            for setting, why in needed.items():
                rule = f"be given for claim {claim.id}{why}"
                rules.append((getattr(at, setting), f"{place}.{setting}", rule, "none"))
            for guard in claim.guards:
                guard.margin(name)
    return rules


# --- the studies that come with nocap -----------------------------------------------------------------------


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
    raise ValueError(
        f"{word} must be a study's folder, with a {FILE}, or one of nocap's studies: {', '.join(shipped())}"
    )


def source_of(folder: Path) -> Path:
    """Where the study.yaml of `folder_of` is."""
    return folder if os.path.lexists(folder) else shipped().get(folder.name, folder)
