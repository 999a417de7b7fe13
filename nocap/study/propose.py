"""What a study answers to the proposals of a program: arms that come one by one, each against the baseline, within one error budget.

A proposal has four fresh batches of four pairs, and stops at the first that shows no gain (`nocap.judge.interval.batches_above`). It is
what it trains, not what it is called: the same resolved config gets the same answer and spends nothing. The first result of a run counts:
training it again, or deleting it, changes nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from nocap.config import compose as composing
from nocap.config import hardware
from nocap.config.compose import Composed, as_in
from nocap.config.errors import FailedError
from nocap.config.keys import require
from nocap.judge.interval import BATCH, BATCHES, batches_above
from nocap.model.flops import component_flops
from nocap.store.identity import config_that_counts, digest, source_hashes
from nocap.study.log import FILE, Line, append, read
from nocap.study.plan import check_fair, compose_arms, training_overrides
from nocap.study.spec import CLOSED, Propose, Study
from nocap.study.tasks import loss_of, train, trainings

OURS = ("seed", *CLOSED)  # keys that the study sets, not who proposes
MOST = 200  # proposals of one study: for so many the error budget was simulated
ACCEPTED, NOT_SHOWN = "accepted", "not shown"
BASELINE, PROPOSAL = "baseline", "proposal"
Losses = Mapping[int, tuple[float, float]]  # seed → the proposal's and the baseline's; infinite where a run diverged


class Campaign:
    """The answers so far. `lines`: the log's; `write` adds one."""

    def __init__(self, rules: Propose, *, lines: Iterable[Line], write: Callable[[Line], None]) -> None:
        self.rules, self._write = rules, write
        self.proposals, self.answers = dict[str, Line](), dict[str, Line]()
        self._gains: dict[tuple[str, int], float] = {}
        self._baseline: dict[tuple[str, int], float | None] = {}
        for line in lines:
            self._know(line)

    def propose(self, arm: str, overrides: Sequence[str], measure: Callable[[Sequence[int]], Losses], *, against: str) -> Line:
        """The answer, as its line in the log. `arm` is the digest of what is trained, `against` of what the baseline trains.

        Errors:
            ValueError: one proposal too many.
            what `measure` raises; the batches until then are kept, and the same proposal goes on.
        """
        if arm in self.answers:
            return self.answers[arm]
        if arm not in self.proposals:
            number = len(self.proposals) + 1
            require(number <= MOST, "--propose", f"be one of {MOST} at most: more wear the error budget out", f"proposal {number}")
            self._add({"event": "proposal", "arm": arm, "overrides": list(overrides), "number": number})
        gains: list[float] = []
        for seeds in self.rules.batches:
            missing = [seed for seed in seeds if (arm, seed) not in self._gains]
            for seed, (mine, theirs) in (measure(missing) if missing else {}).items():
                base = self._baseline.get((against, seed), _plain(theirs))
                self._add({"event": "pair", "arm": arm, "against": against, "seed": seed, "loss": _plain(mine), "baseline": base})
            gains += [self._gains[arm, seed] for seed in seeds]
            if not batches_above(gains, self.rules.gain):
                break
        word = ACCEPTED if len(gains) == BATCH * BATCHES and batches_above(gains, self.rules.gain) else NOT_SHOWN
        said = {"word": word, "pairs": len(gains), "gain": _plain(fmean(gains)), "diverged": -math.inf in gains}
        return self._add({"event": "answer", "arm": arm, "number": self.proposals[arm]["number"], **said})

    def _add(self, line: Line) -> Line:
        self._write(line)
        self._know(line)
        return line

    def _know(self, line: Line) -> None:
        """Of two lines of one thing the first counts. A gain is minus infinity where the proposal diverged, nan where only the baseline
        did."""
        if line["event"] == "pair":
            loss, base = line["loss"], line["baseline"]
            gain = -math.inf if loss is None else math.nan if base is None else base - loss
            self._gains.setdefault((line["arm"], line["seed"]), gain)
            self._baseline.setdefault((line["against"], line["seed"]), base)
        for event, known in (("proposal", self.proposals), ("answer", self.answers)):
            if line["event"] == event:
                known.setdefault(line["arm"], line)


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def answer(
    study: Study, scale: str, proposals: Sequence[Sequence[str]], *, output_dir: str, steps: int | None = None
) -> Iterable[dict[str, Any]]:
    """One after the other; without proposals, the answers so far. All are checked before the first one is trained. What the runs print
    goes to stderr.

    Errors:
        ValueError: no `propose` in the study, changed rules, a damaged log; a proposal that does not compose, sets what the study sets,
            is no fair comparison, or has too many FLOPs a token.
        StoppedError, FailedError: somebody asked to stop, or a run failed; the same command goes on.
    """
    if (rules := study.propose) is None:
        raise ValueError("propose must be in study.yaml, as in propose: {gain: 0.01}, got none")
    require(scale in study.scales, "scale", f"be one of the study's {', '.join(study.scales)}", scale)
    require(not study.tune.trials, "tune", "be left out of a study with propose: nothing is searched", "one")
    at, path = study.scales[scale], Path(study.folder) / FILE
    baseline = compose_arms(study, at, [study.baseline], training_overrides(at, output_dir, steps))[study.baseline]
    sides = [(list(words), _composed(rules, baseline, words)) for words in proposals]
    known = read(path)
    require(not known.broken, f"{path}: lines", "each follow the one before, as they were written", known.broken)
    fixed = digest({**asdict(rules), "baseline": {**config_that_counts(baseline.run), "seed": None}})
    rule = "be what its proposals began with; another baseline, gain or limit is another study, in a folder of its own"
    require(all(line["rules"] == fixed for line in known.of("rules")), str(path.parent), rule, "another one")
    t = baseline.run.trainer
    common = {"machine": hardware.describe(t.device, t.threads)["fingerprint"], "scale": scale}
    campaign = Campaign(rules, lines=known.lines, write=lambda line: append(path, lambda log: [line], common))
    if sides:
        append(path, lambda log: [] if log.of("rules") else [{"event": "rules", "rules": fixed}], common)
    for words, proposal in sides:
        with redirect_stdout(sys.stderr):
            losses = partial(_losses, study.name, {PROPOSAL: proposal, BASELINE: baseline})
            found = campaign.propose(_arm(proposal), words, losses, against=_arm(baseline))
        yield _shown(found, words)
    for line in [] if sides else campaign.answers.values():
        yield _shown(line, campaign.proposals[line["arm"]]["overrides"])


def _shown(line: Line, overrides: Sequence[str]) -> dict[str, Any]:
    return {"overrides": list(overrides), **{name: line[name] for name in ("number", "word", "pairs", "gain", "diverged")}}


def _arm(side: Composed) -> str:
    """The digest of what a side trains: its resolved config without the seed, and its source. A name is no part of it."""
    return digest({"config": {**config_that_counts(side.run), "seed": None}, "source": source_hashes(side.run)})


def _composed(rules: Propose, baseline: Composed, words: Sequence[str]) -> Composed:
    """The proposal's overrides on top of the baseline's, with its precision and compilation."""
    for word in words:
        (name,) = composing.keys([word])
        require(not name.startswith(OURS), name, "be left out of a proposal: the study sets it", word)
    proposal = as_in(baseline, [*baseline.overrides, *words])
    check_fair({BASELINE: baseline, PROPOSAL: proposal})
    mine, theirs = (side.run.tokens_before(side.run.trainer.steps) for side in (proposal, baseline))
    require(mine == theirs, "trainer.steps × trainer.batch_tokens", f"be the baseline's {theirs:,} tokens", f"{mine:,}")
    if rules.flops is not None:
        flops = [sum(component_flops(side.run, vocab_size=side.run.tokenizer.vocab_size).values()) for side in (proposal, baseline)]
        ratio = flops[0] / flops[1]
        require(ratio <= rules.flops, "FLOPs of a token", f"be at most {rules.flops:g} of the baseline's (propose.flops)", f"{ratio:.3f}")
    return proposal


def _losses(label: str, sides: Mapping[str, Composed], seeds: Sequence[int]) -> Losses:
    runs, losses = trainings(sides, {seed: [*sides] for seed in seeds}), dict[tuple[str, int], float]()
    results = train(runs, label)
    for run in runs:
        if (record := run.record()) is None:
            raise FailedError(f"{label} {run.arm}, seed {run.seed}: {results[run.plan.identity].reason}")
        losses[run.arm, run.seed] = loss_of(record)
    return {seed: (losses[PROPOSAL, seed], losses[BASELINE, seed]) for seed in seeds}
