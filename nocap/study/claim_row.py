"""A row of a study's results: a claim at one scale on one machine, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from nocap.display import listed, plural, shorten
from nocap.judge.claim import Claim, Threshold
from nocap.judge.claim_gains import Missing
from nocap.judge.gain import Gain
from nocap.judge.verdict import ClaimWord, Reason
from nocap.metrics import METRICS, Scale
from nocap.report import figures_in_words
from nocap.report.table import one_line
from nocap.sessions.places import TRAIN
from nocap.store.measurement import Ending, Per
from nocap.study.arm_facts import Shape
from nocap.study.claim_cells import ClaimCells
from nocap.study.claim_words import (
    allowed,
    expected_of,
    figure,
    guard,
    leaves_quality_open,
    measured,
    repeats,
)
from nocap.study.spec import GPU, Study, select_claims
from nocap.study.study_result import ClaimResult, StudyResult

DEVICES = {"cpu": "CPU", "cuda": "GPU"}
# What a row says about its claim.
THERE = "on the machine that the claim is about, or counted on any machine"
STAND_IN = "on a CPU instead of the GPU or the larger model that the claim is about"
PROJECT = "against thresholds that this project chose"
NO_GPU = "no GPU yet"
NOT_EQUAL = "equal quality not shown"
EXPLORATORY = "exploratory"
# counts that no machine changes; so are the bytes held of these parts:
ANYWHERE = ("params", "kv_bytes", "part_params")
HELD_ANYWHERE = {"parameters", "gradients", "optimizer"}
BEYOND = (
    "above what arithmetic allows: look for a mistake, or for a gain that the bound does not count"
)
ENDINGS = {
    Ending.diverged: "diverged, counted as worst",
    Ending.at_most: "reached the loss already in the shortest schedule, so fewer steps may be "
    "enough",
}


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A claim of a study's result."""

    result: StudyResult
    claim_result: ClaimResult
    other_verdicts: str = ""  # of the same claim at other shapes, where they differ
    # its study is to be carried out on a GPU too, and no GPU has measured the claim
    no_gpu: bool = False

    @property
    def claim(self) -> Claim:
        return self.claim_result.claim

    @property
    def word(self) -> str:
        return self.claim_result.word

    @property
    def about(self) -> str:
        """Say whose claim this is, and whether it was measured where it is meant."""
        if self.claim.threshold is Threshold.project:
            return PROJECT
        return STAND_IN if self.stands_in else THERE

    @property
    def stands_in(self) -> bool:
        """Say whether a CPU measured what another machine is meant for, and would measure
        otherwise."""
        held = self.claim.metric == "held_mib" and HELD_ANYWHERE.issuperset(self.claim.parts)
        anywhere = held or self.claim.metric in ANYWHERE
        return bool(self.result.limitations) and not self.result.on_gpu and not anywhere

    @property
    def short_shape(self) -> str:
        """Return `1 × 512 tokens, CPU` of what is timed or counted; of a trained arm its size and
        its tokens; of a curve its lengths."""
        shapes = [shapes[0] for shapes in self.claim_result.where.values()]
        if not shapes:
            return f"scale {self.result.scale}"
        first = shapes[0]
        length = first.T[0]
        device = DEVICES[first.device]
        if len(first.T) > 1:
            return f"{length:,} to {first.T[-1]:,} tokens, {device}"
        if METRICS[self.claim.metric].made_by == TRAIN:
            return f"{_size(shapes[-1])}, {self._training_length(length)}, {device}"
        if first.batch_tokens:
            return f"{first.batch_tokens // length} × {length:,} tokens, {device}"
        return f"{_size(shapes[-1])}, T={length:,}, {device}"

    def _training_length(self, T: int) -> str:
        """Say how many tokens its arm was trained on; where that is not known, their sequences'
        length."""
        tokens = self._tokens()
        if not tokens:
            return f"T={T:,}"
        return f"{tokens / 1e3:,.0f}k tokens"

    def _tokens(self) -> float | None:
        """Return the tokens that its arm was trained on."""
        return next((arm.tokens for arm in self.result.arms if arm.arm == self.claim.arm), None)

    @property
    def shapes(self) -> str:
        """Say the claim's shapes, each arm's own, and the baseline's other lengths."""
        places = [
            ", against ".join(map(_shape, shapes)) for shapes in self.claim_result.where.values()
        ]
        shapes = "; its loss at ".join(places)
        if not self.claim_result.lengths:
            return shapes
        steps = listed(f"{length:,}" for length in self.claim_result.lengths)
        return f"{shapes}; the baseline trained for {steps} steps"

    @property
    def expected(self) -> str:
        """Say what was expected of what is measured, which a ratio to the baseline's names
        itself."""
        return expected_of(self.claim)

    @property
    def word_with_shape(self) -> str:
        """Return `refuted at 1 × 512 tokens, CPU: worse than stated`."""
        return self._with_reason(f"{self.word} at {self.short_shape}")

    @property
    def word_with_reason(self) -> str:
        """Return `refuted: worse than stated; exploratory`, for a table with a column of shapes;
        where sessions are to follow `1 session: no verdict yet`."""
        text = self._with_reason(self.word)
        verdict = self.claim_result.verdict
        begun = verdict.primary.per is Per.session and verdict.n > 0
        if begun and verdict.reason is Reason.missing:
            text = f"{repeats(verdict.primary)}: no verdict yet"
        marks = list[str]()
        if self._leaves_quality_open:
            marks.append(NOT_EQUAL)
        if self.claim_result.standing.exploratory:
            marks.append(EXPLORATORY)
        return "; ".join([text, *marks])

    def _with_reason(self, text: str) -> str:
        reason = self._reason()
        if reason:
            text += f": {reason}"
        return text

    @property
    def _leaves_quality_open(self) -> bool:
        return any(leaves_quality_open(gain, margin) for gain, margin in self.guards)

    def _reason(self) -> str:
        """Say why the verdict is what it is; nothing where it is confirmed or exceeded."""
        verdict = self.claim_result.verdict
        reason = verdict.reason
        if reason in (Reason.below, Reason.above) and self.claim.scale is Scale.value:
            return f"{reason.value} the stated range"
        if reason is Reason.guard:
            return f"the arm's {', '.join(METRICS[name].title for name in verdict.failed)} is worse"
        if reason is Reason.missing:
            return self._missing()
        if reason is Reason.refused:
            return str(verdict.refused)
        if reason is Reason.undecided:
            return self._undecided()
        return {Reason.below: "worse than stated", Reason.above: "better than stated", None: ""}[
            reason
        ]

    def _undecided(self) -> str:
        """Say which run leaves the claim undecided; where none does, what would decide it."""
        if self.endings:
            return self.endings[0]
        needed = self.claim_result.verdict.more() or {}
        more = " and ".join(plural(n, f"more {unit}") for unit, n in needed.items())
        return f"{more or 'no affordable number of pairs'} would decide"

    def _missing(self) -> str:
        """Say which measurements are missing."""
        missing = self.claim_result.verdict.missing
        names = list(dict.fromkeys(map(_lacks, missing)))
        damaged = sum(map(self.claim_result.is_damaged, missing))
        counts = {"damaged": damaged, "missing": len(names) - damaged}
        how_many = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
        return f"{how_many} ({shorten(names, most=2)})"

    @property
    def endings(self) -> list[str]:
        """Name the runs that came to another end than the others."""
        runs = self.claim_result.verdict.endings
        return [
            f"{words}: {shorten(runs[ending])}" for ending, words in ENDINGS.items() if runs[ending]
        ]

    @property
    def guards(self) -> list[tuple[Gain, float]]:
        """List what each guard gained, and its margin."""
        return list(zip(self.claim_result.verdict.guards, self.claim_result.margins, strict=True))

    @property
    def notes(self) -> list[str]:
        """List what a reader should know beside the verdict."""
        standing = self.claim_result.standing
        notes = list[str]()
        if self.no_gpu and self.stands_in:
            notes.append(NO_GPU)
        if self._leaves_quality_open:
            notes.append(NOT_EQUAL)
        if self.other_verdicts:
            notes.append(f"depends on shape: {self.other_verdicts}")
        if self.claim_result.verdict.beyond_bound:
            notes.append(BEYOND)
        notes.append(self.result.study.notes.get(self.claim.id, ""))
        notes += self.endings
        if standing.exploratory:
            notes.append(f"{EXPLORATORY}: {standing.exploratory}")
        notes += standing.notes
        return [note for note in notes if note]

    @cached_property
    def cells(self) -> ClaimCells:
        """Return all that a table can say of it."""
        claim = self.claim
        bound = allowed(claim, self.claim_result.bound)
        primary = self.claim_result.verdict.primary
        guards = list[str]()
        for gain, margin in self.guards:
            guards.append(guard(gain, margin, self.claim_result.declared(gain)))
        return ClaimCells(
            id=claim.id,
            statement=claim.statement,
            expected=self.expected,
            bound=f"{bound} ({claim.mechanism.formula})",
            measured=measured(primary),
            figure=figure(primary),
            n=repeats(primary),
            guards="; ".join(guards),
            verdict=self.word_with_shape,
            short_verdict=self.word_with_reason,
            notes="; ".join(self.notes),
            shapes=self.shapes,
            shape_and_machine=f"{self.short_shape}, {self.result.machine_name}",
            machine_and_date=f"{self.result.machine_name}, {self.result.date}",
            command=f"`{one_line(self.result.command)}`",
        )


def _lacks(missing: Missing) -> str:
    """Say which measurement is missing. A session times all arms."""
    arm = "" if missing.per == Per.session.value else f" of {missing.arm}"
    return f"{missing.metric}{arm}, {missing.per} {missing.repeat}"


def _size(shape: Shape) -> str:
    """Return `12 layers, 768 wide`."""
    return f"{plural(shape.layers, 'layer')}, {shape.width} wide"


def _shape(shape: Shape) -> str:
    """Return `12 layers, 768 wide, T=512, gpt2 tokens, 2,048 a step, bf16, cpu`."""
    lengths = f"T={shape.T[0]}"
    if len(shape.T) > 1:
        lengths += f" to {shape.T[-1]}"
    parts = [_size(shape), lengths]
    if shape.batch_tokens:
        parts += [f"{shape.tokenizer} tokens", f"{shape.batch_tokens:,} a step"]
    if shape.precision:
        parts.append(shape.precision)
    return ", ".join([*parts, shape.device])


# --- rows of results ------------------------------------------------------------------------------


def rows(every: Iterable[StudyResult]) -> list[ClaimRow]:
    """Return a row for every claim of these results, in their order."""
    results = list(every)
    measured_on_gpu = set[ClaimName]()
    for result in results:
        if result.on_gpu:
            measured_on_gpu.update(_name(result, claim_result) for claim_result in result.claims)
    table = list[ClaimRow]()
    for result in results:
        for_a_gpu = _for_a_gpu(result.study)
        for claim_result in result.claims:
            no_gpu = (
                claim_result.claim.id in for_a_gpu
                and _name(result, claim_result) not in measured_on_gpu
            )
            table.append(ClaimRow(result=result, claim_result=claim_result, no_gpu=no_gpu))
    by_claim: dict[ClaimName, list[ClaimRow]] = {}
    for row in table:
        by_claim.setdefault(_name(row.result, row.claim_result), []).append(row)
    return [_compared(row, by_claim[_name(row.result, row.claim_result)]) for row in table]


ClaimName = tuple[str, str]  # (study, id): two studies may have claims of one id


def _name(result: StudyResult, claim_result: ClaimResult) -> ClaimName:
    return result.study.name, claim_result.claim.id


def _for_a_gpu(study: Study) -> set[str]:
    """Return the claims that a study has for a GPU, by its scale of that name."""
    if GPU not in study.scales:
        return set()
    return {claim.id for claim in select_claims(study, GPU).claims}


def _compared(row: ClaimRow, rows_of_claim: Iterable[ClaimRow]) -> ClaimRow:
    """Return the row with the verdicts of its claim at other shapes, where they differ."""
    others = list[str]()
    for other in rows_of_claim:
        if other.shapes != row.shapes and other.word != row.word:
            others.append(f"{other.word} at {other.short_shape}")
    return replace(row, other_verdicts=", ".join(others))


def counted(some: Iterable[ClaimRow]) -> str:
    """Return `12 confirmed, 3 refuted`."""
    return figures_in_words.counted((row.word for row in some), [word.value for word in ClaimWord])
