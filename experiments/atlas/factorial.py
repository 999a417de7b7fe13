"""How the six best ideas that can stand together act on each other: half of a full factorial.

    python experiments/atlas/factorial.py [--output-dir DIR]      # after `run screen`, `run lengths` and `steps`; README.md's second table

The sixth idea is in a run where an even number of the other five is out: 32 runs of one seed at a quarter of the steps. Main effects and
interactions of two are then apart from each other, and mixed only with those of four and more (resolution VI; Box, Hunter and Hunter).
What is left, ten degrees of freedom, is the noise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import atlas
import jobs
import numpy as np
from stack import candidates, clash
from worth import Blocks, put

from nocap.config.errors import EXIT_CODES
from nocap.config.keys import require
from nocap.report.table import markdown

SHARE, SEED, IDEAS = jobs.SHORT, 0, 6
MARK = "the factorial"


def chosen(ranked: Sequence[str], arms: dict[str, dict[str, Any]]) -> list[str]:
    """The best six of which none sets what another sets, or refines it: each can be there without the others."""
    found: list[str] = []
    for arm in ranked:
        if len(found) < IDEAS and "like" not in arms[arm] and clash(found, arm, arms) is None:
            found.append(arm)
    return found


def design(n: int) -> np.ndarray:
    """Levels -1 and 1, (2 ** (n - 1), n): the last column is the product of the others."""
    free = np.array(list(product((-1, 1), repeat=n - 1)))
    return np.column_stack([free, free.prod(axis=1)])


def name(levels: Sequence[int], ideas: Sequence[str]) -> str:
    return jobs.joined(*(idea for idea, level in zip(ideas, levels, strict=True) if level > 0))


def effects(losses: Sequence[float], ideas: Sequence[str]) -> list[tuple[str, float, float]]:
    """Each effect on the loss with the half-width of its 95% interval: of an idea, what it changes on average over the others; of two,
    by how much both together change it more than the sum.

    Errors:
        ValueError: too few ideas to see the noise.
    """
    from scipy import special

    levels = design(len(ideas))
    pairs = list(combinations(range(len(ideas)), 2))
    columns = np.column_stack([np.ones(len(levels)), levels, *(levels[:, i] * levels[:, j] for i, j in pairs)])
    df = len(levels) - columns.shape[1]
    require(df > 0, "ideas", "be at least six for half a factorial", len(ideas))
    found, *_ = np.linalg.lstsq(columns, np.asarray(losses), rcond=None)
    noise = np.sqrt(((np.asarray(losses) - columns @ found) ** 2).sum() / df / len(levels))
    half = float(-special.stdtrit(df, 0.025) * noise)
    singles = [(idea, 2 * float(found[1 + i]), 2 * half) for i, idea in enumerate(ideas)]
    together = [(f"{ideas[i]} × {ideas[j]}", 4 * float(found[1 + len(ideas) + at]), 4 * half) for at, (i, j) in enumerate(pairs)]
    return [*singles, *together]


def cross(output_dir: str) -> int:
    ideas = chosen(candidates(Blocks(jobs.SCREEN, jobs.known()), jobs.arms(), atlas.timed()), jobs.arms())
    names = [name(levels, ideas) for levels in design(len(ideas))]
    if atlas.run("factorial", [(SEED, SHARE, one) for one in names], output_dir):
        return EXIT_CODES["failed"]
    of = jobs.losses()
    found = effects([of[SEED, SHARE, one] for one in names], ideas)
    rows = [[what, f"{-mid:+.4f} [{-mid - half:+.4f}, {-mid + half:+.4f}]"] for what, mid, half in found]
    put(MARK, markdown(("idea, or two together", "lower loss, nats"), rows))
    return 0


def main() -> int:
    options = atlas.parser_of(__doc__).parse_args()
    return atlas.carried_out(lambda: cross(options.output_dir))


if __name__ == "__main__":
    sys.exit(main())
