"""Where a row of the board was measured: the shapes of its arms, and in the few words of a verdict. From the results' JSON, also of older
versions, whose `where` names the first arm's shape for every arm."""

from __future__ import annotations

import re

from nocap.store.measurement import METRICS
from nocap.study.wording import Json

WORDS = {  # override of an arm → how a shape names it
    "model.n_layer": r"(\d+)(?= layers)",
    "model.d_model": r"(\d+)(?= wide)",
    "model.seq_len": r"(?<=T=)(\d+)",
    "trainer.batch_tokens": r"([\d,]+)(?= a step)",
}


def where(one: Json, claim: Json) -> str:
    """The claim's shapes, each arm's own."""
    main, loss, quality = str(claim["where"]).partition("; its loss at ")
    return main if METRICS[claim["metric"]].made_by == "lengths" else f"{_arms(one, claim, main)}{loss}{_arms(one, claim, quality)}"


def _arms(one: Json, claim: Json, shape: str) -> str:
    """`4 layers, 136 wide, …, against 4 layers, 128 wide, …` where the two arms differ in shape."""
    if ", against " in shape:
        return shape
    words = {arm["arm"]: arm["words"] for arm in one["arms"]}
    mine, theirs = (_shape(shape, words.get(name, [])) for name in (claim["arm"], claim["baseline"]))
    return mine if claim["baseline"] is None or mine == theirs else f"{mine}, against {theirs}"


def _shape(shape: str, words: list[str]) -> str:
    for word in words:
        name, _, value = str(word).partition("=")
        if name in WORDS and value.isdigit():
            shape = re.sub(WORDS[name], f"{int(value):,}" if name == "trainer.batch_tokens" else value, shape)
    return shape


def _device(shape: str) -> str:
    """As people write it; `this machine` where the shape does not end with one."""
    last = shape.rpartition(", ")[2]
    return {"cpu": "CPU", "cuda": "GPU"}.get(last, "this machine")


def short(one: Json, claim: Json) -> str:
    """`1 × 512 tokens, CPU` of what is timed or counted; of a trained arm its size and its tokens; of a curve its lengths."""
    shape = where(one, claim).partition("; its loss at ")[0].partition(", against ")[0]
    device, layers = _device(shape), re.match(r"\d+ layers, \d+ wide", shape)
    if found := re.search(r"T=(\d+) to (\d+)", shape):
        return f"{int(found[1]):,} to {int(found[2]):,} tokens, {device}"
    trained = METRICS[claim["metric"]].made_by == "train"
    if trained and layers:
        tokens = next((arm["tokens"] for arm in one["arms"] if arm["arm"] == claim["arm"] and arm["tokens"]), None)
        return f"{layers[0]}{f', {tokens / 1e3:,.0f}k tokens' if tokens else ''}, {device}"
    T, batch = re.search(r"T=(\d+)", shape), re.search(r"([\d,]+) a step", shape)
    if T and batch:
        return f"{int(batch[1].replace(',', '')) // int(T[1])} × {int(T[1]):,} tokens, {device}"
    return f"{layers[0]}, T={int(T[1]):,}, {device}" if layers and T else f"scale {one['scale']}"
