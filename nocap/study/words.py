"""A row of results: a claim at one scale on one machine, and what a reader is told of it. From the results'
JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nocap.judge.claim import Claim, Threshold
from nocap.judge.interval import Estimate
from nocap.judge.verdict import Word
from nocap.report import words
from nocap.report.table import one_line
from nocap.store.formats import NONE, listed, plural, shorten
from nocap.store.metrics import METRICS, Metric, Per, Scale, part_title
from nocap.study.spec import GPU, Study, select_claims

Json = Mapping[str, Any]
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
# What a row says about its claim.
THERE = "on the machine they are about, or counted on any"
STAND_IN = "on a CPU in place of the GPU or the larger model they are about"
PROJECT = "by this project's own thresholds"
NO_GPU = "no GPU yet"
NOT_EQUAL = "equal quality not shown"
QUALITY = ("val_loss", "val_bpb")  # what a guard of quality is about
# counts that no machine changes; so are the bytes held of these parts:
ANYWHERE = ("params", "kv_bytes", "part_params")
HELD_ANYWHERE = {"parameters", "gradients", "optimizer"}
BEYOND = "above what arithmetic allows: look for a mistake, or for a gain that the bound leaves out"
ENDINGS = {
    "diverged": "diverged, counted as worst",
    "at_most": "reached the loss in the shortest schedule, so steps are at most that",
}


def expected(claim: Json) -> str:
    low, high = claim["expected"]
    return words.stated(low, high, *_of(claim))


def allowed(claim: Json) -> str:
    """What arithmetic allows: `at most 7.9% faster`, `no gain`, `at best 4.3% slower`."""
    return (
        NONE
        if claim["bound"] is None
        else words.limit(claim["bound"], *_of(claim), least=False).replace("at least", "at best")
    )


def measured(effect: Json) -> str:
    """A claim's or a guard's gain with its interval over so many pairs, or that it was counted; where only a
    lower end is known, that."""
    drawn = NONE
    if effect["measured"]:
        drawn = str(words.measured(Estimate(**effect["measured"], n=effect["n"]), *_of(effect)))
    elif effect["least"] is not None:
        drawn = words.limit(effect["least"], *_of(effect), least=True)
    per = " sessions" if effect["per"] == Per.session.value else ""
    return f"{drawn}, exact" if is_exact(effect) else f"{drawn}, n={effect['n']}{per}"


def is_exact(effect: Json) -> bool:
    """Whether its figure was counted, and is the same each time: there is no noise for an interval to
    hold."""
    return bool(effect["per"] == Per.exact.value and effect["measured"])


def guard(effect: Json) -> str:
    """How much better or worse the arm is, beside how much worse it may be, and the declared noise that this
    rests on."""
    metric, scale = _of(effect)
    worst = -effect["margin"]
    if metric.relative:
        worst = effect["margin"]
    elif scale is Scale.ratio:
        worst = 1 / effect["margin"]
    return (
        f"{metric.title}: {measured(effect)}, allowed: "
        f"{words.limit(worst, metric, scale, least=True)}{noise(effect)}"
    )


def leaves_quality_open(effect: Json) -> bool:
    """Say whether a guard's loss may be within its margin or beyond it: its interval holds the margin."""
    if effect["metric"] not in QUALITY or effect["measured"] is None:
        return False
    is_ratio = Scale(effect["scale"]) is Scale.ratio
    worst = 1 / effect["margin"] if is_ratio else -effect["margin"]
    return bool(effect["measured"]["low"] < worst <= effect["measured"]["high"])


def noise(effect: Json) -> str:
    if not (known := effect["noise"]):
        return ""
    freedom = "no limit to its" if known["df"] is None else f"{known['df']:.3g}"
    return (
        f", noise of a pair declared as {known['sd']:.3g} with {freedom} degrees of freedom "
        f"({known['source']})"
    )


def _of(effect: Json) -> tuple[Metric, Scale]:
    return METRICS[effect["metric"]], Scale(effect["scale"])


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim of one study's results."""

    results: Json
    claim: Json
    caution: str = ""  # what its author says of the row
    elsewhere: str = ""  # verdicts of the same claim at other shapes that differ
    no_gpu: bool = False  # its study is to be carried out on a GPU too, and no GPU has measured the claim

    @property
    def word(self) -> str:
        return str(self.claim["word"])

    @property
    def about(self) -> str:
        if self.claim["threshold"] == Threshold.project.value:
            return PROJECT
        return STAND_IN if self.stands_in else THERE

    @property
    def stands_in(self) -> bool:
        """Whether a CPU measured what another machine is meant for, and would measure otherwise."""
        name, parts = self.claim["metric"], self.claim["parts"]
        anywhere = name in ANYWHERE or (name == "held_mib" and HELD_ANYWHERE.issuperset(parts))
        return bool(self.results["limitations"]) and not _on_gpu(self.results) and not anywhere

    @property
    def measures(self) -> str:
        """What the claim measures, parts and all."""
        parts, whole = (" + ".join(map(part_title, self.claim[key])) for key in ("parts", "of"))
        return (
            METRICS[self.claim["metric"]].title
            + (f" of {parts}" if parts else "")
            + (f", of {whole}" if whole else "")
        )

    @property
    def at(self) -> str:
        """`1 × 512 tokens, CPU` of what is timed or counted; of a trained arm its size and its tokens; of a
        curve its lengths."""
        shapes = [first for first, *_ in self.claim["where"].values()]
        if not shapes:
            return f"scale {self.results['scale']}"
        first, last, trained = shapes[0], shapes[-1], METRICS[self.claim["metric"]].made_by == "train"
        device, T = DEVICES[first["device"]], first["T"]
        if len(T) > 1:
            return f"{T[0]:,} to {T[-1]:,} tokens, {device}"
        if not trained and first["batch_tokens"]:
            return f"{first['batch_tokens'] // T[0]} × {T[0]:,} tokens, {device}"
        tokens = next(
            (arm["tokens"] for arm in self.results["arms"] if trained and arm["arm"] == self.claim["arm"]),
            None,
        )
        length = f"{tokens / 1e3:,.0f}k tokens" if tokens else f"T={T[0]:,}"
        return f"{plural(last['layers'], 'layer')}, {last['width']} wide, {length}, {device}"

    @property
    def where(self) -> str:
        """The claim's shapes, each arm's own, and the baseline's other lengths."""
        shapes = "; its loss at ".join(
            ", against ".join(map(_shape, shapes)) for shapes in self.claim["where"].values()
        )
        if not (lengths := self.claim.get("lengths")):
            return shapes
        return f"{shapes}; the baseline's ends after {listed(f'{steps:,}' for steps in lengths)} steps"

    @property
    def expected(self) -> str:
        """What was expected of what is measured, which a ratio to the baseline's names itself."""
        stated = expected(self.claim)
        return stated if METRICS[self.claim["metric"]].relative else f"{self.measures}: {stated}"

    @property
    def verdict(self) -> str:
        """`refuted at 1 × 512 tokens, CPU: worse than stated`."""
        reason = self._reason()
        return f"{self.word} at {self.at}{f': {reason}' if reason else ''}"

    def _reason(self) -> str:
        claim, reason = self.claim, self.claim["reason"]
        if reason in ("below", "above") and claim["scale"] == Scale.value.value:
            return f"{reason} the stated range"
        if reason == "guard":
            return f"its {', '.join(METRICS[name].title for name in claim['failed'])} is worse"
        if reason == "missing":
            said = list(dict.fromkeys(map(_missing, claim["missing"])))
            damaged = sum(measurement["damaged"] for measurement in claim["missing"])
            counts = [
                f"{n} {word}" for n, word in ((damaged, "damaged"), (len(said) - damaged, "missing")) if n
            ]
            return f"{', '.join(counts)} ({shorten(said, most=2)})"
        if reason == "refused":
            return str(claim["refused"])
        if reason == "undecided":
            more = " and ".join(plural(n, f"more {unit}") for unit, n in (claim["more"] or {}).items())
            return next(iter(self.endings), f"{more or 'no affordable number of pairs'} would decide")
        return {"below": "worse than stated", "above": "better than stated", None: ""}[reason]

    @property
    def endings(self) -> list[str]:
        return [
            f"{told}: {shorten(self.claim[ending])}" for ending, told in ENDINGS.items() if self.claim[ending]
        ]

    @property
    def notes(self) -> list[str]:
        claim = self.claim
        said = [
            NO_GPU if self.no_gpu and self.stands_in else "",
            NOT_EQUAL if any(map(leaves_quality_open, claim["guards"])) else "",
            f"depends on shape: {self.elsewhere}" if self.elsewhere else "",
            BEYOND if claim["beyond_bound"] else "",
            self.caution,
            *self.endings,
            f"exploratory: {claim['exploratory']}" if claim["exploratory"] else "",
            *claim["notes"],
        ]
        return [note for note in said if note]

    @cached_property
    def cells(self) -> dict[str, str]:
        """All that a table can say of it, by column."""
        claim, results = self.claim, self.results
        return {
            "claim": str(claim["id"]),
            "statement": str(claim["statement"]),
            "expected": self.expected,
            "arithmetic allows": f"{allowed(claim)} ({claim['bound_formula']})",
            "measured": measured(claim),
            "guards": "; ".join(map(guard, claim["guards"])),
            "verdict": self.verdict,
            "notes": "; ".join(self.notes),
            "where": self.where,
            "machine, date": f"{results['hardware']['name']}, {results['date']}",
            "command": f"`{one_line(results['command'])}`",
        }


def _missing(measurement: Json) -> str:
    """A session times all arms."""
    return (
        f"{measurement['metric']}{'' if measurement['per'] == 'session' else ' of ' + measurement['arm']}, "
        f"{measurement['per']} {measurement['repeat']}"
    )


def _shape(shape: Json) -> str:
    """`12 layers, 768 wide, T=512, gpt2 tokens, 2,048 a step, bf16, cpu`."""
    T, batch = shape["T"], shape["batch_tokens"]
    parts = [
        plural(shape["layers"], "layer"),
        f"{shape['width']} wide",
        f"T={T[0]}" + (f" to {T[-1]}" if len(T) > 1 else ""),
        *([f"{shape['tokenizer']} tokens", f"{batch:,} a step"] if batch else []),
        shape["precision"],
        shape["device"],
    ]
    return ", ".join(filter(None, parts))


def rows(every: Iterable[Json], studies: Mapping[str, Study]) -> list[Row]:
    """Return a row for every claim of these results, in their order. `studies`: as their folders have them
    now. A claim's statement and source, and what its author says of it, are those of its study."""
    results_of_all = list(every)
    on_gpu = {
        (results["study"], claim["id"])
        for results in filter(_on_gpu, results_of_all)
        for claim in results["claims"]
    }
    some = list[Row]()
    for results in results_of_all:
        study = studies.get(results["study"])
        for claim in results["claims"]:
            if study is None:
                some.append(Row(results=results, claim=claim))
                continue
            seen = (results["study"], claim["id"]) in on_gpu
            some.append(
                Row(
                    results=results,
                    claim=worded(claim, study),
                    caution=study.notes.get(claim["id"], ""),
                    no_gpu=claim["id"] in _for_a_gpu(study) and not seen,
                )
            )
    return [replace(row, elsewhere=", ".join(_differing(row, some))) for row in some]


def worded(claim: Json, study: Study) -> Json:
    """Return a claim of stored results with the words that its study has for it now, where the study still
    asks the same."""
    for stated in study.claims:
        if asks_the_same(stated, claim, study):
            return {**claim, "statement": stated.statement, "source": stated.source}
    return claim


def asks_the_same(stated: Claim, claim: Json, study: Study) -> bool:
    """Say whether a claim of a study is the one that stored results have judged."""
    keys = ("id", "arm", "metric", "parts", "of", "expected", "two_sided", "target")
    return (
        all(getattr(stated, key) == claim[key] for key in keys)
        and stated.scale.value == claim["scale"]
        and claim["baseline"] in (None, study.against(stated))
    )


def _for_a_gpu(study: Study) -> set[str]:
    """The claims that a study has for a GPU, by its scale of that name."""
    return {claim.id for claim in select_claims(study, GPU).claims} if GPU in study.scales else set()


def _on_gpu(results: Json) -> bool:
    return bool(results["hardware"].get("device", "cpu") != "cpu")


def _differing(row: Row, every: Iterable[Row]) -> list[str]:
    same = [other for other in every if other.claim["id"] == row.claim["id"] and other.where != row.where]
    return [f"{other.word} at {other.at}" for other in same if other.word != row.word]


def counted(some: Iterable[Row]) -> str:
    """`12 confirmed, 3 refuted`."""
    return words.counted((row.word for row in some), [word.value for word in Word])
