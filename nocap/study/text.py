"""A study's results as people read them: one sentence per claim, a table of the arms, the caveats. From the results' JSON, also of older
versions."""

from __future__ import annotations

from collections.abc import Iterator

from nocap.show.table import NONE, plural, shorten, table
from nocap.store.measurement import METRICS, Per, Scale
from nocap.study.wording import Json, allowed, expected, guard, is_exact, measured, metric, noise, pairs

BEYOND = "above what arithmetic allows: look for a mistake, or for a gain that the bound leaves out"
ARM_HEAD = (
    *("arm", "params", "FLOPs/token", "kernel", "tokens", "trials", "val loss"),
    *("tokens/s (train)", "tokens/s (bench)", "MiB", "overrides"),
)
AFFORDABLE = 100  # seeds or sittings that somebody might add
NUMBERS = ("no sitting", "one sitting", "two sittings")
TRIAL_HEAD = ("tuned arm", "trial", "val loss", "picked")


def verdict(claim: Json, *, at: str = "") -> str:
    """The word, at which shape, and why."""
    reason = _reason(claim)
    return f"{claim['word']}{f' at {at}' if at else ''}{f': {reason}' if reason else ''}"


def _reason(claim: Json) -> str:
    word, plain = claim["word"], claim["scale"] == Scale.value.value
    if word == "confirmed":
        return ("above the stated top" if plain else "better than stated") if claim["exceeded"] else ""
    if word == "equivalent":
        slack = claim.get("slack")
        return f"not shown as stated, but within {slack:.3g} of it" if slack else "within the margin of what is stated"
    if word == "refuted":
        worse = f"its {', '.join(METRICS[n].title for n in claim['failed'])} is worse"
        below, above = ("below the stated range", "above the stated range") if plain else ("worse than stated", "better than stated")
        return {"below": below, "exceeded": above, "guard": worse}[claim["reason"]]
    if claim["reason"] == "missing":
        return f"{len(claim['missing'])} missing ({shorten(claim['missing'], most=2)})"
    if claim["reason"] == "sittings":
        return f"of {NUMBERS[claim['n']]}"
    endings = {"diverged": "diverged", "censored": "never reached the loss", "at_most": "reached the loss in the shortest schedule"}
    for ending, words in endings.items():
        if claim.get(ending):
            return f"{words}: {shorten(claim[ending])}"
    more, left = _more(claim), claim.get("seeds_left")
    if far := [unit for unit, n in more.items() if n is None or n > AFFORDABLE]:
        return f"no affordable number of {' and '.join(f'{unit}s' for unit in far)} would decide"
    declared = f", {left} are left" if left and more.get(Per.seed.value, 0) > left else ""
    return f"{' and '.join(plural(n, f'more {unit}') for unit, n in more.items() if n)} would decide{declared}"


def _more(claim: Json) -> dict[str, int | None]:
    """Seeds and sittings that would decide; results of before know one number for both."""
    unit = Per.sitting.value if claim.get("per") == Per.sitting.value else Per.seed.value
    return claim["more"] or {unit: None} if "more" in claim else {unit: claim["more_seeds"]}


def stamps(claim: Json) -> list[str]:
    """Whether the verdict is exploratory, or its baseline older than the claim, and what else its study's ledger says."""
    notes = [f"exploratory: {claim['exploratory'].removeprefix('exploratory: ')}"] if claim["exploratory"] else []
    notes += [f"older baseline: {claim['older_baseline']}"] if claim.get("older_baseline") else []
    return notes + [note for note in claim.get("ledger", [_old(claim)]) if note not in (claim["exploratory"] or "")]


def _old(claim: Json) -> str:
    """How older results came to be, which have no ledger."""
    timed = METRICS[claim["metric"]].made_by != "train" or claim["metric"] == "time_to_target_s"
    return "registered the old way" + (", one sitting" if timed and not is_exact(claim) else "")


def bound(claim: Json) -> str:
    if claim["bound"] is None and claim["bound_rule"] != "given":
        return f"no bound yet: what it is computed from was not measured ({claim['bound_formula']})"
    if claim["bound"] is None:
        return f"arithmetic sets no bound ({claim['bound_formula']})"
    return f"arithmetic allows {allowed(claim)} ({claim['bound_formula']})"


def sentence(claim: Json) -> str:
    """The verdict with everything it rests on."""
    against = f" against {claim['baseline']}" if claim["baseline"] else ""
    parts = [
        f"{claim['id']} {verdict(claim)}: {metric(claim)} of {claim['arm']}{against} {measured(claim)}, expected {expected(claim)}",
        bound(claim),
        *(guard(one) for one in claim["guards"]),
        f"{pairs(claim)}{noise(claim)}",
    ]
    notes = "; ".join(stamps(claim))
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
            yield f"{claim['id']}: {BEYOND}"
        if claim["diverged"]:
            yield f"{claim['id']}: diverged, counted as worst: {shorten(claim['diverged'])}"
        if claim["censored"]:
            yield f"{claim['id']}: never reached the loss: {shorten(claim['censored'])}"
        if claim.get("at_most"):
            yield f"{claim['id']}: reached the loss in the shortest schedule, so steps are at most that: {shorten(claim['at_most'])}"
