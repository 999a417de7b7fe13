"""The space of a search: what each key may be, as Optuna's distributions, and the settings that its
sampler proposes from it. No torch here; Optuna is imported only by what needs it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from nocap.config.keys import require
from nocap.config.trainer import Sampler, Search
from nocap.launch.sweep import values_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

# digits of a number that is proposed, and of one of a range: what is trained can be typed
DIGITS = 6
STEP_DIGITS = 12
Space = dict[str, "BaseDistribution"]  # key or group → what it may be
Params = Mapping[str, Any]  # key or group → a value of it


def space_of(sweeps: Sequence[Override]) -> Space:
    """Return Hydra's sweeps as Optuna's distributions.

    Errors:
        ValueError: a sweep that nothing can be drawn from.
    """
    return {sweep.get_key_element(): _distribution(sweep) for sweep in sweeps}


def _distribution(override: Override) -> BaseDistribution:
    """Return what a sweep draws from.

    Errors:
        ValueError: nothing can be drawn from it.
    """
    from optuna.distributions import CategoricalDistribution

    name = override.get_key_element()
    swept = override.value()
    line = override.input_line
    tags: set[str] = getattr(swept, "tags", set())
    known = {"log"} if isinstance(swept, IntervalSweep) else set[str]()
    rule = "have no tag, except log for an interval, as in tag(log, interval(1e-4, 1e-2))"
    require(tags <= known, name, rule, line)
    is_shuffled = getattr(swept, "shuffle", False)
    require(not is_shuffled, name, "not be shuffled, because a search chooses its own order", line)
    if isinstance(swept, IntervalSweep):
        return _interval(name, swept, str(line), log="log" in tags)
    values = list(dict.fromkeys(values_of(override)))  # which refuses a range without a step
    if isinstance(swept, RangeSweep):
        return _range(name, swept, str(line))
    require(bool(values), name, "have several values with commas, or an interval", line)
    return CategoricalDistribution(values)


def _interval(name: str, swept: IntervalSweep, line: str, *, log: bool) -> BaseDistribution:
    """Return the numbers of an interval, whole ones where both ends are; `log`: by their logarithm.

    Errors:
        ValueError: it has no inside, or no logarithm.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    low = swept.start or 0
    high = swept.end or 0
    rule = "be an interval from a lower number to a higher"
    require(-math.inf < low < high < math.inf, name, rule, line)
    require(not log or low > 0, name, "be above 0, because the search takes its logarithm", line)
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _range(name: str, swept: RangeSweep, line: str) -> BaseDistribution:
    """Return the steps of a range, in decimal arithmetic, because Hydra's own floats may reach the
    stop.

    Errors:
        ValueError: it has fewer than two steps.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    start = Decimal(str(swept.start or 0))
    stop = Decimal(str(swept.stop or 0))
    step = Decimal(str(swept.step))
    steps = math.ceil((stop - start) / step) - 1
    require(steps > 0, name, "be a range of at least two numbers", line)
    last = start + steps * step
    low = min(start, last)
    high = max(start, last)
    if isinstance(swept.start or 0, int) and isinstance(swept.step, int):
        return IntDistribution(int(low), int(high), step=abs(int(step)))
    return FloatDistribution(float(low), float(high), step=abs(float(step)))


def words_of(space: Space, params: Params) -> tuple[str, ...]:
    """Return the overrides that set these values."""
    return tuple(f"{name}={params[name]}" for name in space)


def params_of(space: Space, words: Sequence[str]) -> Params:
    """Return the values that these overrides set: the opposite of `words_of`."""
    texts = dict(word.split("=", 1) for word in words)
    # a number has the type of its distribution's ends, and a choice is a text
    kinds: dict[str, Any] = {name: type(getattr(each, "low", "")) for name, each in space.items()}
    return {name: kinds[name](texts[name]) for name in space}


def describe(distribution: BaseDistribution) -> str:
    """Say what is drawn from, as in `0.0001 to 0.01, log`."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return ", ".join(d.choices)
    text = f"{d.low} to {d.high}"
    if d.step not in (None, 1):
        text += f", in steps of {d.step}"
    elif isinstance(d.low, int):
        text += ", whole numbers"
    if d.log:
        text += ", log"
    return text


def ends(space: Space) -> list[tuple[str, ...]]:
    """Return the overrides at the space's ends, which can be tried before the first trial: of each
    key in turn each choice or both ends, and the others at their first."""
    values = {name: _end_values(distribution) for name, distribution in space.items()}
    first = {name: of_key[0] for name, of_key in values.items()}
    distinct = dict[tuple[str, ...], None]()
    for name, of_key in values.items():
        for value in of_key:
            words = words_of(space, {**first, name: value})
            distinct[words] = None
    return list(distinct)


def _end_values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return each choice, or both ends."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return list(d.choices)
    return [d.low, d.high]


def propose(search: Search, space: Space, before: Sequence[tuple[Params, float | None]]) -> Params:
    """Return the settings of the trial after these, each with its loss where that is known. They
    follow from the arguments alone."""
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sequence = np.random.SeedSequence([search.seed, len(before)])
    own_seed = int(sequence.generate_state(1)[0])
    study = optuna.create_study(sampler=_sampler(search.sampler, own_seed))
    for params, value in before:
        state = TrialState.RUNNING if value is None else TrialState.COMPLETE
        trial = create_trial(params=dict(params), distributions=space, value=value, state=state)
        study.add_trial(trial)
    params = study.ask(space).params
    return {name: _rounded(distribution, params[name]) for name, distribution in space.items()}


def _sampler(sampler: Sampler, seed: int) -> BaseSampler:
    """Return Optuna's sampler of this name. For `tpe` a trial that runs counts as bad."""
    from optuna.samplers import RandomSampler, TPESampler

    if sampler is Sampler.random:
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, constant_liar=True)


def _rounded(distribution: BaseDistribution, value: Any) -> Any:
    """Return a value that can be typed: a number has few digits, and stays within its ends."""
    d: Any = distribution
    if not isinstance(value, float):
        return value
    digits = STEP_DIGITS if d.step else DIGITS
    rounded = float(f"{value:.{digits}g}")
    return min(max(rounded, d.low), d.high)
