"""What a search asks for, what its trials may be, and which comes next. Optuna is imported only by what needs it."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import OmegaConf

from nocap.config.compose import parsed
from nocap.config.keys import check_keys, key, require
from nocap.config.plain import made
from nocap.launch.grid import values_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DIGITS, STEP_DIGITS = 6, 12  # of a number that is proposed, and of one of a range: what is trained can be typed
BEST, ENOUGH = 0.25, 12  # the share of the trials that is good, where importance is told; from so many trials on
Space = dict[str, "BaseDistribution"]  # key or group → what it may be
Params = Mapping[str, Any]


class Sampler(Enum):
    tpe = "tpe"  # tree-structured Parzen estimator (arXiv:2304.11127); its first ten trials are random
    random = "random"
    sobol = "sobol"  # scrambled: it covers the space evenly


@dataclass(kw_only=True, slots=True)
class Search:
    """`search=SAMPLER search.KEY=VALUE`, beside `--multirun`."""

    sampler: Sampler
    trials: int = key(ge=1, le=10_000, default=20)  # how many; the same search with more of them goes on
    screen: float | None = key(gt=0, lt=1, default=None)  # trials run this share of their steps first, and this share of them all steps
    seed: int = key(ge=0, lt=2**63, default=100)  # of the proposals and of the trials' runs: not one that a claim will use

    def __post_init__(self) -> None:
        check_keys("search", self)


def asked(words: Sequence[str]) -> tuple[Search | None, list[str]]:
    """The search that a command's overrides ask for, and the other overrides.

    Errors:
        HydraException, ValueError: an override that cannot be parsed; a wrong key or value of the search.
    """
    own = [word for word in words if re.match(r"search(\.|=)", str(parsed(word).input_line))]
    if not own:
        return None, list(words)
    try:
        asked = OmegaConf.from_dotlist([f"sampler={word[7:]}" if word.startswith("search=") else word[7:] for word in own])
        search = made(Search, asked, "search.")
    except ValueError as error:
        raise ValueError(str(error).replace("search.sampler", "search")) from error
    return search, [word for word in words if word not in own]


# --- what is searched --------------------------------------------------------------------------------------------------------------------


def space_of(sweeps: Sequence[Override]) -> Space:
    """Hydra's sweeps as Optuna's distributions.

    Errors:
        ValueError: a sweep that nothing can be drawn from.
    """
    return {one.get_key_element(): _distribution(one) for one in sweeps}


def _distribution(override: Override) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    name, swept, line = override.get_key_element(), override.value(), override.input_line
    tags: set[str] = getattr(swept, "tags", set())
    log = "log" in tags
    known = {"log"} if isinstance(swept, IntervalSweep) else set[str]()
    require(tags <= known, name, "have no tag but an interval's log, as in tag(log, interval(1e-4, 1e-2))", line)
    require(not getattr(swept, "shuffle", False), name, "not be shuffled: a search has an order of its own", line)
    if isinstance(swept, IntervalSweep):
        low, high = swept.start or 0, swept.end or 0
        require(-math.inf < low < high < math.inf, name, "be an interval from a lower number to a higher", line)
        require(not log or low > 0, name, "be above 0 to be searched by its logarithm", line)
        is_whole = isinstance(low, int) and isinstance(high, int)
        return IntDistribution(int(low), int(high), log=log) if is_whole else FloatDistribution(float(low), float(high), log=log)
    values = list(dict.fromkeys(values_of(override)))
    if not isinstance(swept, RangeSweep):
        require(bool(values), name, "be swept over something", line)
        return CategoricalDistribution(values)
    start, stop, step = (Decimal(str(number)) for number in (swept.start or 0, swept.stop or 0, swept.step))
    steps = math.ceil((stop - start) / step) - 1  # Hydra's own floats may reach the stop
    require(steps > 0, name, "be a range of at least two", line)
    least, most = sorted((start, start + steps * step))
    if isinstance(swept.start or 0, int) and isinstance(swept.step, int):
        return IntDistribution(int(least), int(most), step=abs(int(step)))
    return FloatDistribution(float(least), float(most), step=abs(float(step)))


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def words_of(space: Space, params: Params) -> tuple[str, ...]:
    return tuple(f"{name}={params[name]}" for name in space)


def params_of(space: Space, words: Sequence[str]) -> Params:
    """The opposite."""
    given = dict(word.split("=", 1) for word in words)
    kinds: dict[str, Any] = {name: type(getattr(distribution, "low", "")) for name, distribution in space.items()}
    return {name: kinds[name](given[name]) for name in space}


def describe(distribution: BaseDistribution) -> str:
    """`0.0001 to 0.01, log`."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return ", ".join(d.choices)
    step = f", in steps of {d.step}" if d.step not in (None, 1) else ", whole numbers" if isinstance(d.low, int) else ""
    return f"{d.low} to {d.high}{step}{', log' if d.log else ''}"


def ends(space: Space) -> list[tuple[str, ...]]:
    """The words at the space's ends, which can be tried before the first trial: of each key in turn each choice or both ends, the others at
    their first."""
    choices = dict[str, Any]()
    for name, d in space.items():
        choices[name] = getattr(d, "choices", None) or [getattr(d, end) for end in ("low", "high")]
    first = {name: values[0] for name, values in choices.items()}
    return list(dict.fromkeys(words_of(space, {**first, name: value}) for name, values in choices.items() for value in values))


# --- which trial comes next --------------------------------------------------------------------------------------------------------------


def propose(search: Search, space: Space, before: Sequence[tuple[Params, float | None]]) -> Params:
    """The trial after these, each with its loss if that is known. It follows from what is given alone."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    own = int(np.random.SeedSequence([search.seed, len(before)]).generate_state(1)[0])
    trial, samplers = optuna.trial, optuna.samplers
    if search.sampler is Sampler.sobol:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sobol = samplers.QMCSampler(scramble=True, seed=search.seed)
        study, none = optuna.create_study(sampler=sobol), trial.create_trial(state=trial.TrialState.RUNNING)
        drawn = [sobol.sample_relative(study, none, space) for _ in range(len(before) + 1)][-1]  # the next point of the sequence
    else:
        tpe = samplers.TPESampler(seed=own, constant_liar=True)  # a trial that runs counts as bad
        study = optuna.create_study(sampler=tpe if search.sampler is Sampler.tpe else samplers.RandomSampler(seed=own))
        for params, value in before:
            state = trial.TrialState.RUNNING if value is None else trial.TrialState.COMPLETE
            study.add_trial(trial.create_trial(params=dict(params), distributions=space, value=value, state=state))
        drawn = study.ask(space).params
    return {name: _typed(distribution, drawn[name]) for name, distribution in space.items()}


def weights(space: Space, ended: Sequence[tuple[Params, float]]) -> dict[str, float]:
    """How much each key alone sets the best trials apart, as shares of the whole, the largest first (PED-ANOVA, arXiv:2304.10255). What
    diverged is among the worst. Of one key, or of few trials, nothing."""
    import optuna

    if len(space) == 1 or len(ended) < ENOUGH:
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    for rank, (params, _) in enumerate(sorted(ended, key=lambda one: one[1])):
        study.add_trial(optuna.trial.create_trial(params=dict(params), distributions=space, value=rank))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _typed(distribution: BaseDistribution, value: Any) -> Any:
    """What is trained can be typed: a number has few digits."""
    d: Any = distribution
    return min(max(_rounded(value, STEP_DIGITS if d.step else DIGITS), d.low), d.high) if isinstance(value, float) else value
