"""A row of a study's result: a claim at one scale on one machine, and what a reader is told of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from nocap.judge.cautious import Declared
from nocap.judge.claim import Claim, Guard, Threshold
from nocap.judge.verdict import Gain, Missing, Reason, Word
from nocap.report import words
from nocap.report.table import one_line
from nocap.store.formats import NONE, listed, plural, shorten
from nocap.store.metrics import METRICS, Ending, Metric, Per, Scale, part_title
from nocap.study.result import JudgedClaim, StudyResult
from nocap.study.schema import Shape
from nocap.study.spec import GPU, Study, select_claims

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
    Ending.diverged: "diverged, counted as worst",
    Ending.at_most: "reached the loss in the shortest schedule, so steps are at most that",
}


def expected(claim: Claim) -> str:
    """Say what a claim expects: `20% to 30% faster`."""
    low, high = claim.expected
    return words.stated(low, high, *_of(claim))


def allowed(claim: Claim, bound: float | None) -> str:
    """Say what arithmetic allows: `at most 7.9% faster`, `no gain`, `at best 4.3% slower`."""
    if bound is None:
        return NONE
    return words.limit(bound, *_of(claim), least=False).replace("at least", "at best")


def measured(gain: Gain) -> str:
    """Say what was gained, with its interval over so many pairs, or that it was counted; where only a lower
    end is known, that."""
    drawn = NONE
    shown = gain.shown()
    if shown is not None and is_known(gain):
        drawn = str(words.measured(shown, gain.metric, gain.scale))
    elif shown is not None and math.isfinite(gain.interval().low):
        drawn = words.limit(shown.low, gain.metric, gain.scale, least=True)
    if is_exact(gain):
        return f"{drawn}, exact"
    per = " sessions" if gain.per is Per.session else ""
    return f"{drawn}, n={len(gain.least)}{per}"


def is_known(gain: Gain) -> bool:
    """Say whether its interval has a middle: no run diverged, no steps are only bounded."""
    shown = gain.shown()
    return shown is not None and math.isfinite(shown.mid)


def is_exact(gain: Gain) -> bool:
    """Say whether its figure was counted, and is the same each time: there is no noise for an interval to
    hold."""
    return gain.per is Per.exact and is_known(gain)


def guard(gain: Gain, margin: float, declared: Declared | None) -> str:
    """Say how much better or worse the arm is, beside how much worse it may be, and the declared noise that
    this rests on."""
    worst = _worst(gain, margin)
    limit = words.limit(worst, gain.metric, gain.scale, least=True)
    return f"{gain.metric.title}: {measured(gain)}, allowed: {limit}{noise(declared)}"


def _worst(gain: Gain, margin: float) -> float:
    """Return the least gain that a margin allows."""
    if gain.metric.relative:
        return margin
    return 1 / margin if gain.scale is Scale.ratio else -margin


def leaves_quality_open(gain: Gain, margin: float) -> bool:
    """Say whether a guard's loss may be within its margin or beyond it: its interval holds the margin."""
    shown = gain.shown()
    if shown is None or gain.metric.name not in QUALITY or not is_known(gain):
        return False
    return shown.low < _worst(gain, margin) <= shown.high


def noise(declared: Declared | None) -> str:
    """Say which noise was declared; nothing, where none was used."""
    if declared is None:
        return ""
    freedom = f"{declared.df:.3g}" if math.isfinite(declared.df) else "no limit to its"
    return (
        f", noise of a pair declared as {declared.sd:.3g} with {freedom} degrees of freedom "
        f"({declared.source})"
    )


def _of(claim: Claim | Guard) -> tuple[Metric, Scale]:
    return METRICS[claim.metric], claim.scale


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim of a study's result."""

    result: StudyResult
    judged: JudgedClaim
    elsewhere: str = ""  # verdicts of the same claim at other shapes that differ
    no_gpu: bool = False  # its study is to be carried out on a GPU too, and no GPU has measured the claim

    @property
    def claim(self) -> Claim:
        return self.judged.claim

    @property
    def word(self) -> str:
        return self.judged.word

    @property
    def about(self) -> str:
        if self.claim.threshold is Threshold.project:
            return PROJECT
        return STAND_IN if self.stands_in else THERE

    @property
    def stands_in(self) -> bool:
        """Say whether a CPU measured what another machine is meant for, and would measure otherwise."""
        held = self.claim.metric == "held_mib" and HELD_ANYWHERE.issuperset(self.claim.parts)
        anywhere = held or self.claim.metric in ANYWHERE
        return bool(self.result.limitations) and not self.result.on_gpu and not anywhere

    @property
    def measures(self) -> str:
        """Say what the claim measures, parts and all."""
        return measures(self.claim)

    @property
    def at(self) -> str:
        """Return `1 × 512 tokens, CPU` of what is timed or counted; of a trained arm its size and its tokens;
        of a curve its lengths."""
        shapes = [first for first, *_ in self.judged.where.values()]
        if not shapes:
            return f"scale {self.result.scale}"
        first = shapes[0]
        device = DEVICES[first.device]
        if len(first.T) > 1:
            return f"{first.T[0]:,} to {first.T[-1]:,} tokens, {device}"
        trained = METRICS[self.claim.metric].made_by == "train"
        if not trained and first.batch_tokens:
            return f"{first.batch_tokens // first.T[0]} × {first.T[0]:,} tokens, {device}"
        last = shapes[-1]
        tokens = self._tokens() if trained else None
        length = f"{tokens / 1e3:,.0f}k tokens" if tokens else f"T={first.T[0]:,}"
        return f"{plural(last.layers, 'layer')}, {last.width} wide, {length}, {device}"

    def _tokens(self) -> float | None:
        """Return the tokens that its arm was trained on."""
        return next((arm.tokens for arm in self.result.arms if arm.arm == self.claim.arm), None)

    @property
    def where(self) -> str:
        """Say the claim's shapes, each arm's own, and the baseline's other lengths."""
        places = [", against ".join(map(_shape, shapes)) for shapes in self.judged.where.values()]
        shapes = "; its loss at ".join(places)
        if not self.judged.lengths:
            return shapes
        steps = listed(f"{length:,}" for length in self.judged.lengths)
        return f"{shapes}; the baseline's ends after {steps} steps"

    @property
    def expected(self) -> str:
        """Say what was expected of what is measured, which a ratio to the baseline's names itself."""
        return expected_of(self.claim)

    @property
    def verdict(self) -> str:
        """Return `refuted at 1 × 512 tokens, CPU: worse than stated`."""
        reason = self._reason()
        return f"{self.word} at {self.at}{f': {reason}' if reason else ''}"

    def _reason(self) -> str:
        verdict = self.judged.verdict
        reason = verdict.reason
        if reason in (Reason.below, Reason.above) and self.claim.scale is Scale.value:
            return f"{reason.value} the stated range"
        if reason is Reason.guard:
            return f"its {', '.join(METRICS[name].title for name in verdict.failed)} is worse"
        if reason is Reason.missing:
            return self._missing()
        if reason is Reason.refused:
            return str(verdict.refused)
        if reason is Reason.undecided:
            more = " and ".join(plural(n, f"more {unit}") for unit, n in (verdict.more() or {}).items())
            return next(iter(self.endings), f"{more or 'no affordable number of pairs'} would decide")
        return {Reason.below: "worse than stated", Reason.above: "better than stated", None: ""}[reason]

    def _missing(self) -> str:
        missing = self.judged.verdict.missing
        said = list(dict.fromkeys(map(_lacks, missing)))
        damaged = sum(map(self.judged.is_damaged, missing))
        counts = {"damaged": damaged, "missing": len(said) - damaged}
        how_many = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
        return f"{how_many} ({shorten(said, most=2)})"

    @property
    def endings(self) -> list[str]:
        endings = self.judged.verdict.endings
        return [f"{told}: {shorten(endings[name])}" for name, told in ENDINGS.items() if endings[name]]

    @property
    def guards(self) -> list[tuple[Gain, float]]:
        """List what each guard gained, and its margin."""
        return list(zip(self.judged.verdict.guards, self.judged.margins, strict=True))

    @property
    def notes(self) -> list[str]:
        stands = self.judged.stands
        said = [
            NO_GPU if self.no_gpu and self.stands_in else "",
            NOT_EQUAL if any(leaves_quality_open(*each) for each in self.guards) else "",
            f"depends on shape: {self.elsewhere}" if self.elsewhere else "",
            BEYOND if self.judged.verdict.beyond_bound else "",
            self.result.study.notes.get(self.claim.id, ""),
            *self.endings,
            f"exploratory: {stands.exploratory}" if stands.exploratory else "",
            *stands.notes,
        ]
        return [note for note in said if note]

    @cached_property
    def cells(self) -> dict[str, str]:
        """Return all that a table can say of it, by column."""
        claim = self.claim
        guards = [guard(gain, margin, self.judged.declared(gain)) for gain, margin in self.guards]
        return {
            "claim": claim.id,
            "statement": claim.statement,
            "expected": self.expected,
            "arithmetic allows": f"{allowed(claim, self.judged.bound)} ({claim.mechanism.formula})",
            "measured": measured(self.judged.verdict.primary),
            "guards": "; ".join(guards),
            "verdict": self.verdict,
            "notes": "; ".join(self.notes),
            "where": self.where,
            "machine, date": f"{self.result.machine_name}, {self.result.date}",
            "command": f"`{one_line(self.result.command)}`",
        }


def measures(claim: Claim) -> str:
    """Say what a claim measures, parts and all."""
    said = METRICS[claim.metric].title
    if claim.parts:
        said += f" of {' + '.join(map(part_title, claim.parts))}"
    if claim.of:
        said += f", of {' + '.join(map(part_title, claim.of))}"
    return said


def expected_of(claim: Claim) -> str:
    """Say what is expected, with what is measured before it."""
    stated = expected(claim)
    return stated if METRICS[claim.metric].relative else f"{measures(claim)}: {stated}"


def _lacks(missing: Missing) -> str:
    """Say which measurement is missing. A session times all arms."""
    arm = "" if missing.per == Per.session.value else f" of {missing.arm}"
    return f"{missing.metric}{arm}, {missing.per} {missing.repeat}"


def _shape(shape: Shape) -> str:
    """Return `12 layers, 768 wide, T=512, gpt2 tokens, 2,048 a step, bf16, cpu`."""
    lengths = f"T={shape.T[0]}"
    if len(shape.T) > 1:
        lengths += f" to {shape.T[-1]}"
    parts = [plural(shape.layers, "layer"), f"{shape.width} wide", lengths]
    if shape.batch_tokens:
        parts += [f"{shape.tokenizer} tokens", f"{shape.batch_tokens:,} a step"]
    if shape.precision:
        parts.append(shape.precision)
    return ", ".join([*parts, shape.device])


def rows(every: Iterable[StudyResult]) -> list[Row]:
    """Return a row for every claim of these results, in their order."""
    results = list(every)
    on_gpu = {
        (result.study.name, judged.claim.id)
        for result in results
        if result.on_gpu
        for judged in result.claims
    }
    some = list[Row]()
    for result in results:
        wanted = _for_a_gpu(result.study)
        for judged in result.claims:
            name = judged.claim.id
            waits = name in wanted and (result.study.name, name) not in on_gpu
            some.append(Row(result=result, judged=judged, no_gpu=waits))
    return [replace(row, elsewhere=", ".join(_differing(row, some))) for row in some]


def _for_a_gpu(study: Study) -> set[str]:
    """Return the claims that a study has for a GPU, by its scale of that name."""
    return {claim.id for claim in select_claims(study, GPU).claims} if GPU in study.scales else set()


def _differing(row: Row, every: Iterable[Row]) -> list[str]:
    same = [other for other in every if other.claim.id == row.claim.id and other.where != row.where]
    return [f"{other.word} at {other.at}" for other in same if other.word != row.word]


def counted(some: Iterable[Row]) -> str:
    """Return `12 confirmed, 3 refuted`."""
    return words.counted((row.word for row in some), [word.value for word in Word])
