"""`leave_one_out`: a stack beside itself without each of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nocap import outside
from nocap.config import compose as composing

WORTH = 1.01  # times as fast: what is shown to give less goes
IDEAS = "ideas"  # the group whose options are parts one by one
SOURCE = "leave_one_out"


def parts(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option that an arm's overrides choose, as its group and name, and the overrides without it. Keys,
    such as a rate, stay."""
    for i, word in enumerate(words):
        override = composing.parsed(word)
        group, value = override.key_or_group, override.value()
        if group == IDEAS and isinstance(value, list):
            for idea in value:
                left = ",".join(str(other) for other in value if other is not idea)
                yield f"{IDEAS}.{idea}", [*words[:i], f"{IDEAS}=[{left}]", *words[i + 1 :]]
        elif group in outside.groups():
            yield f"{group}.{value}", [*words[:i], *words[i + 1 :]]


def expand(plain: dict[str, Any]) -> dict[str, Any]:
    """A study as its yaml has it, with an arm and a claim for each part of the arms in `leave_one_out`. What
    is wrong in it is left for its check."""
    arms, claims = plain.get("arms"), plain.get("claims") or []
    listed = plain.get("leave_one_out") or []
    if not (isinstance(arms, dict) and isinstance(claims, list) and isinstance(listed, list)):
        return plain
    arms, claims = dict(arms), list(claims)
    for arm in listed:
        for part, words in parts(arms[arm]) if isinstance(arms.get(arm), list) else ():
            arms[without := f"{arm} without {part}"] = words
            claims.append(
                {
                    "id": f"{arm}.{part}",
                    "threshold": "project",
                    "statement": f"{part} makes {arm} at least {WORTH - 1:.0%} faster",
                    "source": SOURCE,
                    "arm": arm,
                    "baseline": without,
                    "metric": "time_to_target_s",
                    "target": "baseline",
                    "scale": "ratio",
                    "expected": [WORTH, None],
                    "mechanism": {"formula": "arithmetic bounds a step, not the steps"},
                }
            )
    return {**plain, "arms": arms, "claims": claims}
