"""What a search is asked for: `search=tpe search.trials=40 'optimizer.lr=interval(1e-4, 1e-2)'`; and which trial comes next.

Hydra's sweeps become Optuna's distributions. A trial follows from the seed, its number and what is known of the trials before it alone, so
that a search that was killed goes on with the trials that it would have had. No torch here, and Optuna is imported only by what needs it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, OverrideType, QuotedString, RangeSweep
from omegaconf import OmegaConf

from nocap.config import registry
from nocap.config.compose import parsed
from nocap.config.errors import suggest
from nocap.config.keys import check_keys, key, require

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

DIGITS = 6  # of a number that is proposed: what is trained can be typed
Space = dict[str, "BaseDistribution"]  # key or group → what it may be


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
    overrides = [parsed(word) for word in words]
    mine = {one.key_or_group: one for one in overrides if re.match(r"search(\.|$)", one.key_or_group)}
    if not mine:
        return None, list(words)
    require("search" in mine, "search", f"be one of {', '.join(Sampler.__members__)}, beside its keys", "none")
    known = [f.name for f in fields(Search) if f.name != "sampler"]
    config = OmegaConf.create({"search": OmegaConf.structured(Search)})
    for name, override in mine.items():
        own, value = name.partition(".")[2], override.value()
        if name != "search" and own not in known:
            raise ValueError(f"{name} is no key of search{suggest(own, known)}")
        plain = override.type is OverrideType.CHANGE and isinstance(value, str | int | float | QuotedString | None)
        require(plain and not override.is_sweep_override(), name, "be one value", override.input_line)
        ok = name != "search" or value in Sampler.__members__
        require(ok, "search", f"be one of {', '.join(Sampler.__members__)}", override.get_value_element_as_str())
        OmegaConf.update(config, f"search.{own or 'sampler'}", value.text if isinstance(value, QuotedString) else value)
    found = OmegaConf.to_object(config.search)
    assert isinstance(found, Search)
    return found, [str(one.input_line) for one in overrides if one.key_or_group not in mine]


# --- what is searched --------------------------------------------------------------------------------------------------------------------


def space_of(sweeps: Sequence[Override]) -> Space:
    """Hydra's sweeps as Optuna's distributions.

    Errors:
        ValueError: a sweep that nothing can be drawn from.
    """
    return {one.get_key_element(): _distribution(one) for one in sweeps}


def _distribution(override: Override) -> BaseDistribution:
    from optuna import distributions

    name, swept, line = override.get_key_element(), override.value(), override.input_line
    tags: set[str] = getattr(swept, "tags", set())
    known = {"log"} if isinstance(swept, IntervalSweep) else set()
    require(tags <= known, name, "have no tag but an interval's log, as in tag(log, interval(1e-4, 1e-2))", line)
    require(not getattr(swept, "shuffle", False), name, "not be shuffled: a search has an order of its own", line)
    if isinstance(swept, IntervalSweep):
        low, high = swept.start, swept.end
        assert low is not None
        assert high is not None
        require(-math.inf < low < high < math.inf, name, "be an interval from a lower number to a higher", line)
        require("log" not in tags or low > 0, name, "be above 0 to be searched by its logarithm", line)
        if isinstance(low, int) and isinstance(high, int):
            return distributions.IntDistribution(low, high, log="log" in tags)
        return distributions.FloatDistribution(low, high, log="log" in tags)
    if isinstance(swept, RangeSweep):
        first, step, n = Decimal(str(swept.start or 0)), Decimal(str(swept.step)), range_length(name, swept)
        require(n > 1, name, "be a range of at least two", line)
        least, most = sorted((first, first + (n - 1) * step))
        if all(isinstance(one, int) for one in (swept.start or 0, swept.step)):
            return distributions.IntDistribution(int(least), int(most), step=abs(int(step)))
        return distributions.FloatDistribution(float(least), float(most), step=abs(float(step)))
    choices = list(dict.fromkeys(values_of(override)))
    require(bool(choices), name, "be swept over something", line)
    return distributions.CategoricalDistribution(choices)


def values_of(override: Override) -> list[str]:
    """The values that an override sweeps over."""
    swept = override.value()
    return swept.filter(registry.yamls(override.key_or_group)) if isinstance(swept, Glob) else list(override.sweep_string_iterator())


def range_length(name: str, swept: RangeSweep) -> int:
    """How many values a range has.

    Errors:
        ValueError: it is no range.
    """
    start, stop, step = swept.start or 0, swept.stop or 0, swept.step
    require(all(map(math.isfinite, (start, stop, step))) and step != 0, name, "be a range of numbers with a step", swept.step)
    return max(0, math.ceil((stop - start) / step))


def words_of(space: Space, params: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name}={params[name]}" for name in space)


def describe(distribution: BaseDistribution) -> str:
    """`0.0001 to 0.01, log`."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return ", ".join(d.choices)
    whole = isinstance(d.low, int)
    step = f", in steps of {d.step}" if d.step not in (None, 1) else ", whole numbers" if whole else ""
    return f"{d.low} to {d.high}{step}{', log' if d.log else ''}"


def ends(space: Space) -> list[tuple[str, ...]]:
    """The words at the space's ends, which can be tried before the first trial: of each key in turn each choice or both ends, the others at
    their first."""
    each: dict[str, list[Any]] = {}
    for name, distribution in space.items():
        d: Any = distribution
        each[name] = list(d.choices) if hasattr(d, "choices") else [d.low, d.high]
    first = {name: values[0] for name, values in each.items()}
    return list(dict.fromkeys(words_of(space, {**first, name: value}) for name, values in each.items() for value in values))


def _at(distribution: BaseDistribution, u: float) -> Any:
    """The value at this share, from 0 to 1, of a distribution."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return d.choices[int(u * len(d.choices))]
    if d.log:
        half = 0.5 if isinstance(d.low, int) else 0.0  # each whole number has its share
        value = math.exp((1 - u) * math.log(d.low - half) + u * math.log(d.high + half))
        return min(max(round(value), d.low), d.high) if half else value
    if d.step is None:
        return d.low + u * (d.high - d.low)
    return d.low + d.step * int(u * (round((d.high - d.low) / d.step) + 1))


def propose(search: Search, space: Space, before: Sequence[FrozenTrial]) -> dict[str, Any]:
    """The trial after these. It follows from what is given alone: nothing is remembered from one call to the next."""
    n = len(before)
    if search.sampler is Sampler.tpe:
        tools = optuna()
        own = int(np.random.SeedSequence([search.seed, n]).generate_state(1)[0])
        memory = tools.create_study(sampler=tools.samplers.TPESampler(seed=own, constant_liar=True))  # a trial that runs counts as bad
        memory.add_trials(before)
        found = memory.ask(space).params
    else:
        shares = (_sobol if search.sampler is Sampler.sobol else _random)(search.seed, n, len(space))
        found = {name: _at(distribution, float(u)) for (name, distribution), u in zip(space.items(), shares, strict=True)}
    return {name: _rounded(distribution, found[name]) for name, distribution in space.items()}


def _random(seed: int, n: int, d: int) -> np.ndarray:
    return np.random.default_rng([seed, n]).random(d)


def _sobol(seed: int, n: int, d: int) -> np.ndarray:
    from scipy.stats.qmc import Sobol

    sequence = Sobol(d, scramble=True, seed=seed)
    if n:  # SciPy goes forward by one or more
        sequence.fast_forward(n)
    return np.asarray(sequence.random(1)[0])


def _rounded(distribution: BaseDistribution, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    d: Any = distribution
    return min(max(float(f"{value:.{12 if d.step else DIGITS}g}"), d.low), d.high)


def optuna() -> Any:
    """The module, quiet."""
    import optuna as module

    module.logging.set_verbosity(module.logging.ERROR)
    return module
