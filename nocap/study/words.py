"""What a claim says, expects and measured, in words. From the results' JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nocap.judge.interval import Estimate
from nocap.report import words
from nocap.store.formats import NONE, plural, shorten
from nocap.store.metrics import METRICS, Per, Scale, part_title

Json = Mapping[str, Any]
DEVICES = {"cpu": "CPU", "cuda": "GPU"}


def metric(claim: Json) -> str:
    """What a claim measures, parts and all."""
    name, parts, of = METRICS[claim["metric"]].title, claim["parts"], claim["of"]
    if not parts:
        return name
    title = f"{name} of {' + '.join(part_title(part) for part in parts)}"
    return f"{title}, of {' + '.join(part_title(part) for part in of)}" if of else title


def is_exact(claim: Json) -> bool:
    """Whether its figure was counted, and is the same each time: there is no noise for an interval to hold."""
    return bool(claim["per"] == Per.exact.value and claim["measured"])


def pairs(claim: Json) -> str:
    """How many, and of what."""
    return "counted" if is_exact(claim) else f"n={claim['n']} sessions" if claim["per"] == Per.session.value else f"n={claim['n']}"


def expected(claim: Json) -> str:
    low, high = claim["expected"]
    return words.stated(low, high, METRICS[claim["metric"]], Scale(claim["scale"]))


def measured(claim: Json) -> str:
    """The gain in words with its interval, or that it was counted."""
    if claim["measured"] is None:
        return NONE
    drawn = words.measured(Estimate(**claim["measured"], n=claim["n"]), METRICS[claim["metric"]], Scale(claim["scale"]))
    return f"{drawn.text}, exact" if is_exact(claim) else str(drawn)


def allowed(claim: Json) -> str:
    """What arithmetic allows: `at most 7.9% faster`, `no gain`, `at best 4.3% slower`."""
    x, of, scale = claim["bound"], METRICS[claim["metric"]], Scale(claim["scale"])
    if x is None:
        return NONE
    worse = not words.is_plain(of, scale) and x < (1 if scale is Scale.ratio else 0)
    return f"at best {words.gain(x, of, scale)}" if worse else words.at_most(x, of, scale)


def guard(one: Json) -> str:
    """How much better or worse the arm is, beside how much worse it may be."""
    of, scale = METRICS[one["metric"]], Scale(one["scale"])
    limit = 1 / one["margin"] if scale is Scale.ratio else -one["margin"]
    return f"{of.title}: {measured(one)}, allowed: {words.at_least(limit, of, scale)}{noise(one)}"


def noise(one: Json) -> str:
    """The declared noise that a verdict or a guard rests on."""
    prior = one["noise"]
    if not prior:
        return ""
    freedom = "no limit to its" if prior["df"] is None else f"{prior['df']:.3g}"
    return f", noise of a pair declared as {prior['sd']:.3g} with {freedom} degrees of freedom ({prior['source']})"


# --- where ---------------------------------------------------------------------------------------------------------------------------


def shape(one: Json) -> str:
    """`12 layers, 768 wide, T=512, gpt2 tokens, 2,048 a step, bf16, cpu`."""
    parts = [plural(one["layers"], "layer"), f"{one['width']} wide", f"T={' to '.join(map(str, _ends(one)))}"]
    batch = [f"{one['tokenizer']} tokens, {one['batch_tokens']:,} a step"] if one["batch_tokens"] else []
    return ", ".join([*parts, *batch, *([one["precision"]] if one["precision"] else []), one["device"]])


def _ends(one: Json) -> list[int]:
    return list(dict.fromkeys((one["T"][0], one["T"][-1])))


def where(claim: Json) -> str:
    """The claim's shapes, each arm's own."""
    return "; its loss at ".join(", against ".join(map(shape, shapes)) for shapes in claim["where"].values())


def short(one: Json, claim: Json) -> str:
    """`1 × 512 tokens, CPU` of what is timed or counted; of a trained arm its size and its tokens; of a curve its lengths."""
    shapes = [first for first, *_ in claim["where"].values()]
    if not shapes:
        return f"scale {one['scale']}"
    first = shapes[0]
    device, ends = DEVICES[first["device"]], _ends(first)
    if len(ends) > 1:
        return f"{ends[0]:,} to {ends[1]:,} tokens, {device}"
    if METRICS[claim["metric"]].made_by != "train" and first["batch_tokens"]:
        return f"{first['batch_tokens'] // ends[0]} × {ends[0]:,} tokens, {device}"
    size, tokens = f"{plural(shapes[-1]['layers'], 'layer')}, {shapes[-1]['width']} wide", None
    if METRICS[claim["metric"]].made_by == "train":
        tokens = next((arm["tokens"] for arm in one["arms"] if arm["arm"] == claim["arm"]), None)
    return f"{size}, {f'{tokens / 1e3:,.0f}k tokens' if tokens else f'T={ends[0]:,}'}, {device}"


# --- the verdict --------------------------------------------------------------------------------------------------------------------

BEYOND = "above what arithmetic allows: look for a mistake, or for a gain that the bound leaves out"


def verdict(claim: Json, *, at: str = "") -> str:
    """The word, at which shape, and why."""
    reason = _reason(claim)
    return f"{claim['word']}{f' at {at}' if at else ''}{f': {reason}' if reason else ''}"


def _reason(claim: Json) -> str:
    if claim["reason"] in (None, "above", "below", "guard"):
        plain = claim["scale"] == Scale.value.value
        below, above = ("below the stated range", "above the stated range") if plain else ("worse than stated", "better than stated")
        worse = f"its {', '.join(METRICS[n].title for n in claim['failed'])} is worse"
        return {None: "", "below": below, "above": above, "guard": worse}[claim["reason"]]
    if claim["reason"] == "missing":
        said = list(dict.fromkeys(map(_missing, claim["missing"])))
        damaged = sum(one["damaged"] for one in claim["missing"])
        counts = [f"{n} {word}" for n, word in ((damaged, "damaged"), (len(said) - damaged, "missing")) if n]
        return f"{', '.join(counts)} ({shorten(said, most=2)})"
    endings = {"diverged": "diverged", "censored": "never reached the loss", "at_most": "reached the loss in the shortest schedule"}
    for ending, reason in endings.items():
        if claim[ending]:
            return f"{reason}: {shorten(claim[ending])}"
    if not claim["more"]:
        return "no affordable number of pairs would decide"
    return f"{' and '.join(plural(n, f'more {unit}') for unit, n in claim['more'].items())} would decide"


def _missing(one: Json) -> str:
    """A session times all arms."""
    return f"{one['metric']}{'' if one['per'] == 'session' else ' of ' + one['arm']}, {one['per']} {one['repeat']}"


def stamps(claim: Json) -> list[str]:
    """Whether the verdict is exploratory, and what else its study's log says."""
    return [*([f"exploratory: {claim['exploratory']}"] if claim["exploratory"] else []), *claim["notes"]]
