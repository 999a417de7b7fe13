"""What a study answers to the proposals of a program: arms that come one by one, each against the
baseline, within one error budget.

A proposal has four fresh batches of four pairs, and stops at the first that shows no gain
(`nocap.judge.batches`). It is what it trains, not what it is called: the same resolved config
gets the same answer and spends nothing. The first result of a run counts: training it again, or
deleting it, changes nothing.

It is either overrides of nocap's own trainer, with the baseline's tokens, or anybody's training
command, beside the command that the study names. Without `propose.ref` both commands run where one
stands, and differ in their words. With it the baseline is this version of the repository, and a
proposal is its working tree as it is when it is proposed: each in a worktree of its own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from nocap.config import hardware
from nocap.config.compose import Composed, as_in, parsed
from nocap.config.errors import FailedError
from nocap.config.keys import require
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.judge.batches import BatchQuestion, BatchResult, LossPair, ProposalWord, judge
from nocap.judge.interval import alike
from nocap.judge.schema import Schema
from nocap.sources import versions
from nocap.sources.command import Command, Reading, duration_s, named
from nocap.store import lease
from nocap.store.identity import config_that_counts, digest, source_hashes
from nocap.store.metrics import Better
from nocap.study.log import FILE as LOG
from nocap.study.log import AnswerLine, LogLine, PairLine, ProposalLine, RulesLine, append, read
from nocap.study.plan import check_fair, compose_arms, training_overrides
from nocap.study.spec import CLOSED, FILE, Propose, Study
from nocap.study.tasks import loss_of, train, trainings

FIXED = (
    "be what its proposals began with (files too, unless propose.ref is given); another "
    "baseline, gain or limit is another study"
)
MOST = 200  # proposals of one study: for so many the error budget was simulated
OURS = ("seed", *CLOSED)  # keys that the study sets, not who proposes
BASELINE = "baseline"
PROPOSAL = "proposal"
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
        arm: str,
        overrides: Sequence[str],
        measure: Callable[[Sequence[int]], Losses],
        *,
        against: str,
    ) -> AnswerLine:
        """Return the answer, as its line in the log. `arm` is the digest of what is trained,
        `against` of what the baseline trains.

        Errors:
            ValueError: one proposal too many.
            what `measure` raises; the batches until then are kept, and the same proposal goes on.
        """
        if arm in self.answers:
            return self.answers[arm]
        if arm not in self.proposals:
            self._begin(arm, overrides)
        result = self._judge(arm, measure, against)
        line = AnswerLine(
            arm=arm,
            number=self.proposals[arm].number,
            word=result.word.value,
            pairs=result.pairs,
            gain=_plain(result.gain),
            diverged=result.diverged,
        )
        self._add(line)
        return line

    def _judge(
        self, arm: str, measure: Callable[[Sequence[int]], Losses], against: str
    ) -> BatchResult:
        """Measure batch after batch until the proposal is decided; return the last judgement."""
        question = BatchQuestion(bar=self.rules.gain)
        pairs = list[LossPair]()
        for seeds in self.rules.batches:
            missing = [seed for seed in seeds if (arm, seed) not in self._pairs]
            if missing:
                self._keep(arm, against, measure(missing))
            pairs += [self._pairs[arm, seed] for seed in seeds]
            result = judge(pairs, question)
            if result.word is not ProposalWord.undecided:
                break
        return result

    def _begin(self, arm: str, overrides: Sequence[str]) -> None:
        """Log a new proposal.

        Errors:
            ValueError: it is one too many.
        """
        number = len(self.proposals) + 1
        rule = f"be one of {MOST} at most: more wear the error budget out"
        require(number <= MOST, "--propose", rule, f"proposal {number}")
        self._add(ProposalLine(arm=arm, overrides=list(overrides), number=number))

    def _keep(self, arm: str, against: str, losses: Losses) -> None:
        """Log these pairs. A baseline's run that was logged before counts as it was the first
        time."""
        for seed, (loss, baseline) in losses.items():
            first_baseline = self._baseline.get((against, seed), _plain(baseline))
            line = PairLine(
                arm=arm, against=against, seed=seed, loss=_plain(loss), baseline=first_baseline
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


def _plain(value: float) -> float | None:
    """Return a number that JSON can say; None where it is not finite."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A proposal. `arm`: the digest of what it trains."""

    words: Sequence[str]
    arm: str
    measure: Callable[[Sequence[int]], Losses]


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """The proposals of a program to a study."""

    proposals: Sequence[Proposal]
    against: str  # the digest of what the baseline trains
    fixed: object  # what the first proposal fixes
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


def answer(folder: Path, rules: Propose, question: Proposals) -> Iterable[AnswerJson]:
    """Answer one after the other; without proposals, yield the answers so far. What the runs print
    goes to stderr.

    Errors:
        ValueError: changed rules, a damaged log, one proposal too many.
        StoppedError, FailedError: somebody asked to stop, or a run failed; the same command goes
            on.
    """
    path = folder / LOG
    fixed = digest(question.fixed)
    log = read(path)
    same = all(line.rules == fixed for line in log.of(RulesLine))
    require(same, str(folder), FIXED, "another one")
    add = partial(append, path, machine=question.machine, scale=question.scale)
    campaign = Campaign(rules, lines=log.lines, write=lambda line: add([line]))
    if question.proposals:
        add([RulesLine(rules=fixed)], once=("rules",))
    for proposal in question.proposals:
        with redirect_stdout(sys.stderr):
            line = campaign.propose(
                proposal.arm, proposal.words, proposal.measure, against=question.against
            )
        yield _shown(line, proposal.words)
    if not question.proposals:
        for line in campaign.answers.values():
            yield _shown(line, campaign.proposals[line.arm].overrides)


def _shown(line: AnswerLine, overrides: Sequence[str]) -> AnswerJson:
    return AnswerJson(
        overrides=list(overrides),
        number=line.number,
        word=line.word,
        pairs=line.pairs,
        gain=line.gain,
        diverged=line.diverged,
    )


# --- proposals as overrides ------------


def of_overrides(
    study: Study,
    rules: Propose,
    scale: str,
    texts: Sequence[str],
    *,
    output_dir: str,
    steps: int | None,
) -> Proposals:
    """Check all proposals before the first one is trained, and return how each is measured.

    Errors:
        ValueError: a proposal that does not compose, sets what the study sets, is no fair
            comparison, or has too many FLOPs a token.
    """
    require(
        scale in study.scales, "scale", f"be one of the study's {', '.join(study.scales)}", scale
    )
    require(
        not study.tune.trials,
        "tune",
        "be left out of a study with propose: nothing is searched",
        "one",
    )
    at = study.scales[scale]
    overrides = training_overrides(at, output_dir, steps)
    baseline = compose_arms(study, at, [study.baseline], overrides)[study.baseline]
    proposals = list[Proposal]()
    for text in texts:
        words = versions.split(text, "--propose")
        side = _composed(rules, baseline, words)
        measure = partial(_trained, study.name, {PROPOSAL: side, BASELINE: baseline})
        proposals.append(Proposal(words=words, arm=_arm(side), measure=measure))
    trainer = baseline.run.trainer
    machine = hardware.describe(trainer.device, trainer.threads)
    fixed: dict[str, object] = {
        name: getattr(rules, name) for name in ("gain", "flops", "first_seed")
    }
    fixed["baseline"] = _config(baseline)
    return Proposals(
        proposals=proposals,
        against=_arm(baseline),
        fixed=fixed,
        machine=str(machine["fingerprint"]),
        scale=scale,
    )


def _arm(side: Composed) -> str:
    """Digest what a side trains: its resolved config without the seed, and its source. A name is no
    part of it."""
    return digest({"config": _config(side), "source": source_hashes(side.run)})


def _config(side: Composed) -> dict[str, object]:
    """Return the resolved config of a side without its seed."""
    return {**config_that_counts(side.run), "seed": None}


def _composed(rules: Propose, baseline: Composed, words: Sequence[str]) -> Composed:
    """Compose the proposal's overrides on top of the baseline's, with its precision and
    compilation."""
    for word in words:
        name = parsed(word).key_or_group
        require(
            not name.startswith(OURS), name, "be left out of a proposal: the study sets it", word
        )
    proposal = as_in(baseline, [*baseline.overrides, *words])
    check_fair({BASELINE: baseline, PROPOSAL: proposal})
    sides = (proposal.run, baseline.run)
    tokens, most = (run.tokens_before(run.trainer.steps) for run in sides)
    rule = f"be the baseline's {most:,} tokens"
    require(tokens == most, "trainer.steps × trainer.batch_tokens", rule, f"{tokens:,}")
    if rules.flops is not None:
        _check_flops(sides, most=rules.flops)
    return proposal


def _check_flops(sides: Sequence[Run], *, most: float) -> None:
    from nocap.model.flops import flops_per_token  # torch

    rule = f"be at most {most:g} of the baseline's (propose.flops)"
    flops = list[float]()
    for run in sides:
        counted, basis = flops_per_token(run, vocab_size=run.tokenizer.vocab_size)
        require(counted is not None, "FLOPs of a token", rule, basis)
        flops.append(cast(float, counted))
    share = flops[0] / flops[1]
    require(share <= most, "FLOPs of a token", rule, f"{share:.3f}")


def _trained(label: str, sides: Mapping[str, Composed], seeds: Sequence[int]) -> Losses:
    """Train what is missing of both sides with these seeds, and return their losses.

    Errors:
        FailedError: a run failed.
    """
    runs = trainings(sides, {seed: [*sides] for seed in seeds})
    losses = dict[tuple[str, int], float]()
    results = train(runs, label)
    for run in runs:
        record = run.record()
        if record is None:
            reason = results[run.plan.identity].reason
            raise FailedError(f"{label} {run.arm}, seed {run.seed}: {reason}")
        losses[run.arm, run.seed] = loss_of(record)
    return {seed: (losses[PROPOSAL, seed], losses[BASELINE, seed]) for seed in seeds}


# --- proposals as commands ------------


def of_commands(
    study: Study, rules: Propose, texts: Sequence[str], *, output_dir: Path, undo: ExitStack
) -> Proposals:
    """Check all proposals before the first one runs, and return how each is measured. Worktrees go
    with `undo`.

    Errors:
        ValueError: a command that is not there or takes no seed, a ref that is none, files that are
            locked and differ.
    """
    reading = Reading(what=rules.metric, better=rules.better, file=rules.file)
    reading.check("propose.metric")
    how = {"timeout_s": duration_s(rules.timeout, "propose.timeout"), "keep": []}
    if rules.file:
        how["keep"] = [rules.file]
    words = list[list[str]]()
    rule = "have {seed}, unless the study has propose.reads_seed: true"
    for text in (rules.command, *dict.fromkeys(texts)):
        name = "--propose" if words else "propose.command"
        require(rules.reads_seed or "{seed}" in text, name, rule, text)
        words.append(versions.split(text, name))
    (baseline, *sides), begin = _sides(study, rules, words, output_dir, undo)
    measure = partial(_run, reading, output_dir / "commands", partial(begin, **how), baseline)
    proposals = list[Proposal]()
    for side in sides:
        proposals.append(
            Proposal(words=side.words, arm=side.content, measure=partial(measure, side))
        )
    return Proposals(
        proposals=proposals,
        against=baseline.content,
        fixed=[
            rules.gain,
            rules.first_seed,
            rules.metric,
            rules.better.value,
            rules.file,
            baseline.content,
        ],
        machine=str(hardware.describe(Device.cpu, 0)["fingerprint"]),
        scale="",
    )


def _sides(
    study: Study, rules: Propose, words: Sequence[Sequence[str]], output_dir: Path, undo: ExitStack
) -> tuple[list[Command], versions.Begin]:
    """Return the baseline and the proposals, and what runs one. What the study writes is no part of
    a working tree."""
    apart = [output_dir]
    for name in (FILE, LOG, lease.NAME):
        apart.append(Path(study.folder) / name)
    if rules.file:
        apart.append(Path(rules.file))
    if not rules.ref:
        require(not rules.link, "propose.link", "be given with propose.ref", rules.link)
        names = ["the baseline", *(f"proposal {i}" for i in range(1, len(words)))]
        commands = list(zip(names, words, strict=True))
        return versions.of_commands(commands, locked=rules.locked, apart=apart)
    refs = [rules.ref, *[versions.HERE] * (len(words) - 1)]
    return versions.of_refs(
        list(zip(refs, words, strict=True)),
        locked=rules.locked,
        links=rules.link,
        folder=output_dir / "races" / "trees",
        apart=apart,
        undo=undo,
        say=partial(print, file=sys.stderr),
    )


def _run(
    reading: Reading,
    runs: Path,
    begin: Callable[[Command, int, Path], None],
    baseline: Command,
    proposal: Command,
    seeds: Sequence[int],
) -> Losses:
    """Run what is missing, in turns, and return the losses. Of a metric of which more is better the
    loss is its negative.

    Errors:
        FailedError: a run that failed, or left no metric.
        ValueError: a side that ignores its seed: each of its runs is the same one.
    """
    losses = dict[tuple[str, int], float]()
    sign = -1 if reading.better is Better.higher else 1
    turns = [(baseline, proposal), (proposal, baseline)]
    for i, seed in enumerate(seeds):
        for side in turns[i % 2]:
            place = runs / f"{side.content}-{seed}"
            if not reading.is_in(place):
                with named(side, seed):
                    begin(side, seed, place)
            value = reading.value(place, finite=False)
            losses[side.content, seed] = sign * value if math.isfinite(value) else math.inf
    for side in (baseline, proposal):
        of_side = [losses[side.content, seed] for seed in seeds]
        known = [loss for loss in of_side if math.isfinite(loss)]
        rule = "use its seed: losses of other seeds are equal to rounding"
        require(not alike(known), side.name, rule, f"{known[:1]}")
    return {
        seed: (losses[proposal.content, seed], losses[baseline.content, seed]) for seed in seeds
    }
