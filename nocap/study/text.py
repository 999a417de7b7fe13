"""A study's results as people read them: one sentence per claim, a table of the arms, the caveats. From the results' JSON, also of older
versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nocap.show.table import NONE, shorten, table
from nocap.store.measurement import METRICS, PARTS, Scale

Json = Mapping[str, Any]
HEADLINE = 6  # claims that a heading names one by one
ARM_HEAD = (
    *("arm", "params", "FLOPs/token", "kernel", "tokens", "trials", "val loss"),
    *("tokens/s (train)", "tokens/s (bench)", "MiB", "overrides"),
)
TRIAL_HEAD = ("tuned arm", "trial", "val loss", "picked")


def metric(claim: Json) -> str:
    """What a claim measures, parts and all."""
    name, parts, of = METRICS[claim["metric"]].title, claim["parts"], claim["of"]
    if not parts:
        return name
    title = f"{name} of {' + '.join(PARTS.get(part, part) for part in parts)}"
    return f"{title}, of {' + '.join(PARTS[part] for part in of)}" if of else title


def number(value: float | None, claim: Json) -> str:
    """On the claim's scale."""
    if value is None:
        return NONE
    if claim["scale"] == "ratio":
        return f"{value:.3f}×" if value < 10 else f"{value:.1f}×"
    if claim["scale"] == "difference":
        return f"{value:+.4f}"
    return f"{value:.1%}" if claim["metric"] == "share" else f"{value:,.4g}"


def in_words(gain: float, claim: Json) -> str:
    """A gain as a change that needs no sign: `7.4% faster`, `lower loss by 0.0098`; nothing for a value."""
    scale = Scale(claim["scale"])
    return "" if scale is Scale.value else METRICS[claim["metric"]].describe(gain, scale)


def expected(claim: Json) -> str:
    low, high = claim["expected"]
    slack = f", with {claim['slack']:g} allowed at this scale" if claim.get("slack") else ""
    if low is not None and high is not None:
        return f"{number(low, claim)} to {number(high, claim)}{slack}"
    if claim["scale"] == "difference" and low == 0:
        return f"no {METRICS[claim['metric']].loss}{slack}"
    return (f"at least {number(low, claim)}" if high is None else f"at most {number(high, claim)}") + slack


def measured(claim: Json) -> str:
    """The gain with its interval, and in words."""
    found = claim["measured"]
    if found is None:
        return NONE
    figures = f"{number(found['mid'], claim)} [{number(found['low'], claim)}, {number(found['high'], claim)}]"
    words = in_words(found["mid"], claim)
    return f"{words} ({figures})" if words else figures


def verdict(claim: Json) -> str:
    """The word, and why."""
    if claim["word"] == "confirmed":
        return "confirmed" + (", above the stated top" if claim["exceeded"] else "")
    if claim["word"] == "refuted":
        reasons = {"below": "below", "exceeded": "above", "guard": f"its {', '.join(METRICS[n].title for n in claim['failed'])} is worse"}
        return f"refuted ({reasons[claim['reason']]})"
    if claim["reason"] == "missing":
        return f"inconclusive: {len(claim['missing'])} missing ({shorten(claim['missing'], most=2)})"
    more = claim["more_seeds"]
    for ending, words in (("diverged", "diverged"), ("censored", "never reached the loss")):
        if claim[ending]:
            return f"inconclusive: {words}: {shorten(claim[ending])}"
    return f"inconclusive: {f'{more} more seeds would decide' if more else 'no affordable number of seeds would decide'}"


def stamp(claim: Json) -> str:
    """Whether the verdict is exploratory, or its baseline older than the claim."""
    notes = [f"exploratory: {claim['exploratory'].removeprefix('exploratory: ')}"] if claim["exploratory"] else []
    notes += [f"older baseline: {claim['older_baseline']}"] if claim.get("older_baseline") else []
    return "; ".join(notes)


def bound(claim: Json) -> str:
    if claim["bound"] is None and claim["bound_rule"] != "given":
        return f"no bound yet: what it is computed from was not measured ({claim['bound_formula']})"
    if claim["bound"] is None:
        return f"arithmetic sets no bound ({claim['bound_formula']})"
    return f"arithmetic allows {number(claim['bound'], claim)} ({claim['bound_formula']})"


def guard(one: Json) -> str:
    """How much worse, beside how much worse it may be."""
    shape = "{:.4f}×" if one["scale"] == "ratio" else "{:+.4f}"
    worse = one["worse"]
    found = NONE if worse is None else f"{shape} [{shape}, {shape}]".format(worse["mid"], worse["low"], worse["high"])
    return f"{METRICS[one['metric']].title} {found} of the baseline's, at most {shape.format(one['margin'])} allowed"


def sentence(claim: Json) -> str:
    """The verdict with everything it rests on."""
    against = f" against {claim['baseline']}" if claim["baseline"] else ""
    parts = [
        f"{claim['id']} {verdict(claim)}: {metric(claim)} of {claim['arm']}{against} {measured(claim)}, expected {expected(claim)}",
        bound(claim),
        *(guard(one) for one in claim["guards"]),
        f"n={claim['n']}",
    ]
    notes = stamp(claim)
    return f"{'; '.join(parts)}; at {claim['where']}{f' [{notes}]' if notes else ''}"


def render(results: Json) -> str:
    """All of it, for a terminal."""
    lines = [f"{results['study']}, scale {results['scale']}: {results['question']}", ""]
    lines += [line for claim in results["claims"] for line in (sentence(claim), "")]
    lines += ["arms", table(ARM_HEAD, arm_rows(results))]
    if results["trials"]:
        lines += [f"\n{trials_title(results)}", table(TRIAL_HEAD, trial_rows(results))]
    return "\n".join([*lines, *exchange(results), *caveats(results)])


# --- tables ------------------------------------------------------------------------------------------------------------------------


def arm_rows(results: Json) -> list[list[str]]:
    """The fairness columns: what each arm is and what was done for it, beside what it did."""
    return [_arm(arm) for arm in results["arms"]]


def _arm(arm: Json) -> list[str]:
    loss, diverged = arm["val_loss"], arm["diverged"]
    interval = "" if loss is None or loss["low"] is None else f" [{loss['low']:.4f}, {loss['high']:.4f}]"
    memory = (arm["bench"] or {}).get("memory_mib")
    return [
        arm["arm"],
        _count(arm["params"]),
        _count(arm["flops_per_token"]),
        str(arm["kernel"] or NONE),
        _count(arm["tokens"]),
        str(arm["n_trials"]) if arm["n_trials"] else NONE,
        (NONE if loss is None else f"{loss['mean']:.4f}{interval}") + (f", {len(diverged)} diverged" if diverged else ""),
        _speed(arm["pace"]),
        _speed(arm["bench"]),
        NONE if memory is None else f"{memory:,.0f}",
        " ".join([*arm["words"], *arm["tuned"]]) or NONE,
    ]


def _count(value: float | None) -> str:
    if value is None:
        return NONE
    return next((f"{value / size:.4g}{unit}" for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= size), f"{value:g}")


def _speed(seen: Json | None) -> str:
    speeds = sorted(speed for speed in (seen or {}).get("tokens_per_s", []) if speed is not None)
    return f"{speeds[len(speeds) // 2]:,.0f}" if speeds else NONE


def trials_title(results: Json) -> str:
    return f"trials: {len(results['trials'])}, on seeds {results['trials'][0]['seeds']}, which the study does not use"


def trial_rows(results: Json) -> list[list[str]]:
    losses = [NONE if t["val_loss"] is None else f"{t['val_loss']:.4f}" for t in results["trials"]]
    rows = zip(results["trials"], losses, strict=True)
    return [[t["arm"], " ".join(t["words"]), loss, "yes" if t["picked"] else ""] for t, loss in rows]


# --- lines -------------------------------------------------------------------------------------------------------------------------


def exchange(results: Json) -> Iterator[str]:
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
        loss = METRICS["val_loss"].describe(-one["worse"], Scale.difference)
        yield (
            f"  {arm}: equivalent speedup {one['mid']:.3f}× [{one['low']:.3f}, {one['high']:.3f}] "
            f"(steps {one['speed']:.3f}× as fast, {loss}, n={one['n']})"
        )


def caveats(results: Json) -> Iterator[str]:
    if results["speaks_for"]:
        yield f"\nwhat this scale cannot show: {results['speaks_for']}"
    for claim in results["claims"]:
        if claim["beyond_bound"]:
            yield f"{claim['id']}: above what arithmetic allows: look for a mistake, or for a gain that the bound leaves out"
        if claim["diverged"]:
            yield f"{claim['id']}: diverged, counted as worst: {shorten(claim['diverged'])}"
        if claim["censored"]:
            yield f"{claim['id']}: never reached the loss: {shorten(claim['censored'])}"


def headline(claims: Sequence[Json]) -> str:
    """`A1.speed refuted, A2 confirmed`: for a heading. Of many claims, how many of each."""
    if len(claims) > HEADLINE:
        words = [claim["word"] for claim in claims]
        return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    return ", ".join(f"{claim['id']} {claim['word']}" for claim in claims)
