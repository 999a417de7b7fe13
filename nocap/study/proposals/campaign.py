"""The answers to a program's proposals: arms that come one by one, each against the baseline,
within one error budget.

A proposal has four fresh batches of four pairs, and stops at the first that shows no gain
(`nocap.judge.proposal`). It is what it trains, not what it is called: the same resolved config
gets the same answer and spends nothing. The first result of a run counts: training it again, or
deleting it, changes nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nocap.config.keys import require
from nocap.judge.comparison_schema import Schema
from nocap.judge.proposal import BatchQuestion, BatchResult, LossPair, ProposalWord, judge
from nocap.study.log import FILE as LOG
from nocap.study.log import AnswerLine, LogLine, PairLine, ProposalLine, RulesLine, append, read_log
from nocap.study.spec import Propose

FIXED = (
    "stay as its first proposal found it (files too, unless propose.ref is given); another "
    "baseline, gain or limit is another study"
)
MOST_PROPOSALS = 200  # proposals of one study: for so many the error budget was simulated
# seed → the proposal's and the baseline's; infinite where a run diverged
Losses = Mapping[int, tuple[float, float]]


class Campaign:
    """The answers so far. `lines`: of the log; `write` adds one."""

    def __init__(
        self, rules: Propose, *, lines: Iterable[LogLine], write: Callable[[LogLine], None]
    ) -> None:
        self.rules = rules
        self.proposals = dict[str, ProposalLine]()
        self.answers = dict[str, AnswerLine]()
        self._write = write
        self._pairs: dict[tuple[str, int], LossPair] = {}
        self._baseline: dict[tuple[str, int], float | None] = {}
        for line in lines:
            self._know(line)

    def propose(
        self,
        content: str,
        overrides: Sequence[str],
        measure: Callable[[Sequence[int]], Losses],
        *,
        against: str,
    ) -> AnswerLine:
        """Return the answer, as its line in the log. `content` is the digest of what is
        trained, `against` of what the baseline trains.

        Errors:
            ValueError: one proposal too many.
            what `measure` raises; the batches until then are kept, and the same proposal goes on.
        """
        if content in self.answers:
            return self.answers[content]
        if content not in self.proposals:
            self._begin(content, overrides)
        result = self._judge(content, measure, against)
        line = AnswerLine(
            arm=content,
            number=self.proposals[content].number,
            word=result.word.value,
            pairs=result.pairs,
            gain=_finite(result.gain),
            diverged=result.diverged,
        )
        self._add(line)
        return line

    def _judge(
        self, content: str, measure: Callable[[Sequence[int]], Losses], against: str
    ) -> BatchResult:
        """Measure batch after batch until the proposal is decided; return the last judgement."""
        question = BatchQuestion(bar=self.rules.gain)
        pairs = list[LossPair]()
        for seeds in self.rules.batches:
            missing = [seed for seed in seeds if (content, seed) not in self._pairs]
            if missing:
                self._keep(content, against, measure(missing))
            pairs += [self._pairs[content, seed] for seed in seeds]
            result = judge(pairs, question)
            if result.word is not ProposalWord.undecided:
                break
        return result

    def _begin(self, content: str, overrides: Sequence[str]) -> None:
        """Log a new proposal.

        Errors:
            ValueError: it is one too many.
        """
        number = len(self.proposals) + 1
        rule = (
            f"be used for at most {MOST_PROPOSALS} proposals of a study, because nocap checked "
            "the error rate only up to this number"
        )
        require(number <= MOST_PROPOSALS, "--propose", rule, f"proposal {number}")
        self._add(ProposalLine(arm=content, overrides=list(overrides), number=number))

    def _keep(self, content: str, against: str, losses: Losses) -> None:
        """Log these pairs. A baseline's run that was logged before counts as it was the first
        time."""
        for seed, (loss, baseline) in losses.items():
            first_baseline = self._baseline.get((against, seed), _finite(baseline))
            line = PairLine(
                arm=content, against=against, seed=seed, loss=_finite(loss), baseline=first_baseline
            )
            self._add(line)

    def _add(self, line: LogLine) -> None:
        self._write(line)
        self._know(line)

    def _know(self, line: LogLine) -> None:
        """Take a line of the log in. Of two lines of one thing the first counts."""
        if isinstance(line, PairLine):
            pair = LossPair(loss=line.loss, baseline=line.baseline)
            self._pairs.setdefault((line.arm, line.seed), pair)
            self._baseline.setdefault((line.against, line.seed), pair.baseline)
        elif isinstance(line, ProposalLine):
            self.proposals.setdefault(line.arm, line)
        elif isinstance(line, AnswerLine):
            self.answers.setdefault(line.arm, line)


def _finite(value: float) -> float | None:
    """Return a number that JSON can say; None where it is not finite."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A proposal."""

    words: Sequence[str]
    content: str  # the digest of what it trains
    measure: Callable[[Sequence[int]], Losses]


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """The proposals of a program to a study."""

    proposals: Sequence[Proposal]
    against: str  # the digest of what the baseline trains
    fixed: str  # the digest of what the first proposal fixes
    machine: str  # as each line of the log has it
    scale: str


class AnswerJson(Schema, frozen=True, kw_only=True):
    """An answer, as a program gets it."""

    overrides: list[str]
    number: int
    word: str
    pairs: int
    gain: float | None  # nats per token, or of the command's metric; null: a run diverged
    diverged: bool


def answer(folder: Path, rules: Propose, proposals: Proposals) -> Iterable[AnswerJson]:
    """Answer one after the other; without proposals, yield the answers so far. What the runs print
    goes to stderr.

    Errors:
        ValueError: changed rules, a damaged log, one proposal too many.
        StoppedError, FailedError: somebody asked to stop, or a run failed; the same command goes
            on.
    """
    path = folder / LOG
    log = read_log(path)
    same = all(line.rules == proposals.fixed for line in log.of(RulesLine))
    require(same, str(folder), FIXED, "another one")
    add = partial(append, path, machine=proposals.machine, scale=proposals.scale)
    campaign = Campaign(rules, lines=log.lines, write=lambda line: add([line]))
    if proposals.proposals:
        add([RulesLine(rules=proposals.fixed)], once=("rules",))
    for proposal in proposals.proposals:
        with redirect_stdout(sys.stderr):
            line = campaign.propose(
                proposal.content, proposal.words, proposal.measure, against=proposals.against
            )
        yield _answer_json(line, proposal.words)
    if not proposals.proposals:
        for line in campaign.answers.values():
            yield _answer_json(line, campaign.proposals[line.arm].overrides)


def _answer_json(line: AnswerLine, overrides: Sequence[str]) -> AnswerJson:
    return AnswerJson(
        overrides=list(overrides),
        number=line.number,
        word=line.word,
        pairs=line.pairs,
        gain=line.gain,
        diverged=line.diverged,
    )
