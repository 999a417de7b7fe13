"""A study's results as people read them: a sentence a claim, a table of the arms, what to doubt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nocap.profiling.names import PARTS
from nocap.show.table import NONE, shorten, table

Facts = Mapping[str, Any]
HEADLINE = 6  # claims that a heading names one by one

METRICS = {
    "time_to_target_s": "time to the loss",
    "steps_to_target": "steps to the loss",
    "val_loss": "validation loss",
    "val_bpb": "validation bits per byte",
    "tokens_per_s": "tokens/s",
    "step_ms": "time of a step",
    "memory_mib": "memory",
    "params": "parameters",
    "kv_bytes": "bytes of cache a token",
    "share": "share",
    "part_ms": "time",
    "part_mib": "memory kept for the backward",
    "part_params": "parameters",
    "held_mib": "MiB",
    "exponent": "exponent of attention's time in T",
    "decode_tokens_per_s": "decoded tokens/s",
    "decode_ms": "ms a decoded token",
    "decode_mb": "MB allocated a token",
    "collections": "garbage collections in a text",
}


def metric(claim: Facts) -> str:
    """What a claim measures, parts and all."""
    name, parts, of = METRICS[claim["metric"]], claim["parts"], claim["of"]
    if not parts:
        return name
    told = f"{name} of {' + '.join(PARTS.get(part, part) for part in parts)}"
    return f"{told}, of {' + '.join(PARTS[part] for part in of)}" if of else told


def number(value: float | None, claim: Facts) -> str:
    """On the claim's scale."""
    if value is None:
        return NONE
    if claim["scale"] == "ratio":
        return f"{value:.3f}×" if value < 10 else f"{value:.1f}×"
    if claim["scale"] == "difference":
        return f"{value:+.4f}"
    return f"{value:.1%}" if claim["metric"] == "share" else f"{value:,.4g}"


def expected(claim: Facts) -> str:
    low, high = claim["expected"]
    give = f", give or take {claim['slack']:g} at this scale" if claim.get("slack") else ""
    if low is None or high is None:
        return (f"at most {number(high, claim)}" if low is None else f"at least {number(low, claim)}") + give
    return f"{number(low, claim)} to {number(high, claim)}{give}"


def measured(claim: Facts) -> str:
    found = claim["measured"]
    if found is None:
        return NONE
    return f"{number(found['mid'], claim)} [{number(found['low'], claim)}, {number(found['high'], claim)}]"


def verdict(claim: Facts) -> str:
    """The word, and why."""
    if claim["word"] == "confirmed":
        return "confirmed" + (", above the stated top" if claim["exceeded"] else "")
    if claim["word"] == "refuted":
        why = {"below": "below", "exceeded": "above", "guard": f"its {', '.join(METRICS[name] for name in claim['failed'])} is worse"}
        return f"refuted ({why[claim['reason']]})"
    if claim["reason"] == "missing":
        return f"inconclusive: {len(claim['missing'])} missing ({shorten(claim['missing'], most=2)})"
    more = claim["more_seeds"]
    for ending, words in (("diverged", "diverged"), ("censored", "never reached the loss")):
        if claim[ending]:
            return f"inconclusive: {words}: {shorten(claim[ending])}"
    return f"inconclusive: {f'{more} more seeds would decide' if more else 'no affordable number of seeds would decide'}"


def bound(claim: Facts) -> str:
    if claim["bound"] is None and claim["bound_rule"] != "given":
        return f"no bound yet: what it is worked out from was not measured ({claim['bound_formula']})"
    if claim["bound"] is None:
        return f"arithmetic sets no bound ({claim['bound_formula']})"
    return f"arithmetic allows {number(claim['bound'], claim)} ({claim['bound_formula']})"


def guard(one: Facts) -> str:
    """How much worse, beside how much worse it may be."""
    ratio, worse = one["scale"] == "ratio", one["worse"]

    def tell(x: float) -> str:
        return f"{x:.4f}×" if ratio else f"{x:+.4f}"

    found = NONE if worse is None else f"{tell(worse['mid'])} [{tell(worse['low'])}, {tell(worse['high'])}]"
    return f"{METRICS[one['metric']]} {found}, at most {tell(one['margin'])} allowed"


def sentence(claim: Facts) -> str:
    """The verdict with everything it stands on."""
    against = f" against {claim['baseline']}" if claim["baseline"] else ""
    parts = [
        f"{claim['id']} {verdict(claim)}: {metric(claim)} of {claim['arm']}{against} {measured(claim)}, expected {expected(claim)}",
        bound(claim),
        *(guard(one) for one in claim["guards"]),
        f"n={claim['n']}",
    ]
    stamp = f" [{claim['exploratory']}]" if claim["exploratory"] else ""
    return f"{'; '.join(parts)}; at {claim['where']}{stamp}"


def render(results: Facts) -> str:
    """All of it, for a terminal."""
    lines = [f"{results['study']}, scale {results['scale']}: {results['question']}", ""]
    lines += [line for claim in results["claims"] for line in (sentence(claim), "")]
    lines += ["arms", table(*arms(results)), *trials(results), *exchange(results), *doubts(results)]
    return "\n".join(lines)


def arms(results: Facts) -> tuple[list[str], list[list[str]]]:
    """The fairness columns: what each arm is and what was done for it, beside what it did. Head and cells."""
    head = [
        "arm",
        "params",
        "FLOPs/token",
        "kernel",
        "tokens",
        "trials",
        "val loss",
        "tokens/s (train)",
        "tokens/s (bench)",
        "MiB",
        "words",
    ]
    return head, [_arm(arm) for arm in results["arms"]]


def _arm(arm: Facts) -> list[str]:
    loss, diverged = arm["val_loss"], arm["diverged"]
    told = (
        NONE if loss is None else f"{loss['mean']:.4f}" + (f" [{loss['low']:.4f}, {loss['high']:.4f}]" if loss["low"] is not None else "")
    )
    memory = (arm["bench"] or {}).get("memory_mib")
    return [
        arm["arm"],
        _count(arm["params"]),
        _count(arm["flops_per_token"]),
        str(arm["kernel"] or NONE),
        _count(arm["tokens"]),
        str(arm["n_trials"]) if arm["n_trials"] else NONE,
        told + (f", {len(diverged)} diverged" if diverged else ""),
        _speed(arm["pace"]),
        _speed(arm["bench"]),
        NONE if memory is None else f"{memory:,.0f}",
        " ".join([*arm["words"], *arm["tuned"]]) or NONE,
    ]


def _count(value: float | None) -> str:
    if value is None:
        return NONE
    return next((f"{value / size:.4g}{unit}" for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= size), f"{value:g}")


def _speed(said: Facts | None) -> str:
    speeds = sorted(speed for speed in (said or {}).get("tokens_per_s", []) if speed is not None)
    return f"{speeds[len(speeds) // 2]:,.0f}" if speeds else NONE


def trials(results: Facts) -> Iterator[str]:
    if results["trials"]:
        head = ["tuned arm", "trial", "val loss", "picked"]
        cells = [
            [t["arm"], " ".join(t["words"]), NONE if t["val_loss"] is None else f"{t['val_loss']:.4f}", "yes" if t["picked"] else ""]
            for t in results["trials"]
        ]
        seeds = results["trials"][0]["seeds"]
        yield f"\ntrials: {len(cells)}, on seeds {seeds}, which the study does not use"
        yield table(head, cells)


def exchange(results: Facts) -> Iterator[str]:
    """The exchange rate, and the one number that joins speed and quality."""
    found = results["exchange"]
    if found is None:
        return
    rate, even = found["rate"], found["break_even"]
    yield (
        f"\nexchange rate: {rate['mean']:.4f} [{rate['low']:.4f}, {rate['high']:.4f}] nats for e times the steps, between "
        f"{rate['steps'][0]} and {rate['steps'][1]} steps of {results['baseline']} (n={rate['n']}): "
        f"a step {even['faster']:.0%} faster may cost at most {even['may_cost']:.4f} loss"
    )
    for arm, one in found["equivalent"].items():
        yield (
            f"  {arm}: equivalent speedup {one['mid']:.3f}× [{one['low']:.3f}, {one['high']:.3f}] "
            f"(steps {one['speed']:.3f}× as fast, loss {one['worse']:+.4f}, n={one['n']})"
        )


def doubts(results: Facts) -> Iterator[str]:
    if results["speaks_for"]:
        yield f"\nwhat this scale cannot say: {results['speaks_for']}"
    for claim in results["claims"]:
        if claim["beyond_bound"]:
            yield f"{claim['id']}: above what arithmetic allows: look for a mistake, or for a gain the bound leaves out"
        if claim["diverged"]:
            yield f"{claim['id']}: diverged, counted as worst: {shorten(claim['diverged'])}"
        if claim["censored"]:
            yield f"{claim['id']}: never reached the loss: {shorten(claim['censored'])}"


def headline(claims: Sequence[Facts]) -> str:
    """`A1.speed refuted, A2 confirmed`: for a heading. Of many claims, how many of each."""
    if len(claims) > HEADLINE:
        words = [claim["word"] for claim in claims]
        return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    return ", ".join(f"{claim['id']} {claim['word']}" for claim in claims)
