"""Compose arms whose defaults are those of their baseline: arms differ in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from nocap.config.compose import OF_ARMS, Composed, composed
from nocap.config.defaults import fits_a_graph
from nocap.config.plain import to_plain


def as_in(
    baseline: Composed | None,
    overrides: Sequence[str],
    compose_arm: Callable[[Sequence[str]], Composed] = composed,
) -> Composed:
    """Return these overrides with the baseline's precision, compilation, micro-batch and CUDA
    graphs, unless they choose their own: arms differ in nothing else.

    Errors:
        ValueError: as for `compose`.
    """
    arm = compose_arm(overrides)
    if baseline is None:
        return arm
    differing = list[str]()
    for key in OF_ARMS:
        own = getattr(arm.run.trainer, key)
        if key in arm.defaults and own != getattr(baseline.run.trainer, key):
            differing.append(key)
    if not differing:
        return arm
    of_baseline = to_plain(baseline.run)["trainer"]
    more = [f"trainer.{key}={str(of_baseline[key]).lower()}" for key in differing]
    return compose_arm((*overrides, *more))


def as_baseline(
    baseline: Composed,
    others: Iterable[Sequence[str]],
    compose_arm: Callable[[Sequence[str]], Composed] = composed,
) -> tuple[Composed, Sequence[str] | None]:
    """Return the baseline of these other arms, and the first of them that a CUDA graph is not known
    to hold. Where there is one, a baseline that would have a graph by default has none, and with it
    no arm that does not choose."""
    if not (baseline.run.trainer.cuda_graphs and "cuda_graphs" in baseline.defaults):
        return baseline, None
    for overrides in others:
        try:
            arm = compose_arm(overrides)
        except ValueError:
            continue  # refused where it is composed beside the baseline
        if is_beyond_graphs(arm):
            return compose_arm((*baseline.overrides, "trainer.cuda_graphs=false")), overrides
    return baseline, None


def is_beyond_graphs(arm: Composed) -> bool:
    """Return whether an arm chooses no CUDA graph, and none is known to hold what it does."""
    return "cuda_graphs" in arm.defaults and not fits_a_graph(arm.run)
