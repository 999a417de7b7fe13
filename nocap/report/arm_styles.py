"""How arms are drawn: a colour, a dash and a mark for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nocap.judge.arms import Arm, setting
from nocap.report.svg_chart import DASHES, SYMBOLS

HUES = 7  # --hue-0 … --hue-6 in page.css; 0 is the text's colour


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmStyle:
    """Numbers of a colour, a dash and a mark."""

    hue: int
    dash: int
    symbol: int


def styles_of(arms: Sequence[Arm], swept: Sequence[str]) -> list[ArmStyle]:
    """Return the style of each arm.

    In a grid one factor (`attention`, with all its keys) is the colour and the rest is the dash, so
    that the eye sees the factors; where that does not fit, they are counted through, and then the
    marks. The baseline is the text's colour, solid.
    """
    best = [_counted(index) for index in range(len(arms))]
    hues = 0
    for factor in _factors(swept):
        split = _split(arms, swept, factor)
        of_split = len({style.hue for style in split})
        if _fits(split) and of_split > hues:
            best = split
            hues = of_split
    return best


def _factors(swept: Sequence[str]) -> Iterator[list[str]]:
    """Yield the keys of each group together, then each key."""
    groups: dict[str, list[str]] = {}
    for key in swept:
        groups.setdefault(key.partition(".")[0], []).append(key)
    yield from groups.values()
    for key in swept:
        yield [key]


def _split(arms: Sequence[Arm], swept: Sequence[str], factor: Sequence[str]) -> list[ArmStyle]:
    """Return the arms with a factor as their colour, and the other keys as their dash."""
    hues = _numbered(arms, factor)
    dashes = _numbered(arms, [key for key in swept if key not in factor])
    pairs = zip(hues, dashes, strict=True)
    return [ArmStyle(hue=hue, dash=dash, symbol=dash) for hue, dash in pairs]


def _fits(split: Sequence[ArmStyle]) -> bool:
    """Say whether there are so many colours and dashes, and no style comes twice."""
    hues = max(style.hue for style in split)
    dashes = max(style.dash for style in split)
    return hues < HUES and dashes < len(DASHES) and len(set(split)) == len(split)


def _counted(index: int) -> ArmStyle:
    """Return the style of an arm by its place; none comes twice among 252."""
    turn, hue = divmod(index, HUES)
    shift, dash = divmod(turn, len(DASHES))
    return ArmStyle(hue=hue, dash=dash, symbol=(dash + shift) % len(SYMBOLS))


def _numbered(arms: Sequence[Arm], keys: Sequence[str]) -> list[int]:
    """Return 0, 1, 2 … for the arms' values of `keys`, in the order in which they first come."""
    numbers: dict[tuple[str, ...], int] = {}
    of_arms = list[int]()
    for arm in arms:
        values = tuple(setting(arm.config, key) for key in keys)
        of_arms.append(numbers.setdefault(values, len(numbers)))
    return of_arms
