"""Proposals as anybody's training command, beside the command that the study names.

Without `propose.ref` both commands run where one stands, and differ in their words. With it the
baseline is this version of the repository, and a proposal is its working tree as it is when it is
proposed: each in a worktree of its own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from nocap.config import hardware
from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.judge.interval import alike
from nocap.metrics import Better
from nocap.sources.races import race_arms
from nocap.sources.races.command import Command, RunSettings, duration_s, failures_of
from nocap.sources.races.command_output import MetricReader
from nocap.sources.races.command_words import split_words
from nocap.sources.races.repository import HERE
from nocap.store import lease
from nocap.store.record_files import digest
from nocap.study.log import FILE as LOG
from nocap.study.proposals.campaign import Losses, Proposal, Proposals
from nocap.study.spec import Propose, Study
from nocap.study.study_folder import FILE


def of_commands(
    study: Study, rules: Propose, texts: Sequence[str], *, output_dir: Path, undo: ExitStack
) -> Proposals:
    """Check all proposals before the first one runs, and return how each is measured. Worktrees go
    with `undo`.

    Errors:
        ValueError: a command that is not there or takes no seed, a ref that is none, files that are
            locked and differ.
    """
    reader = MetricReader(what=rules.metric, better=rules.better, file=rules.file)
    reader.check("propose.metric")
    settings = RunSettings(
        timeout_s=duration_s(rules.timeout, "propose.timeout"),
        keep=[rules.file] if rules.file else [],
    )
    words = list[list[str]]()
    rule = "have {seed}, unless the study has propose.reads_seed: true"
    for text in (rules.command, *dict.fromkeys(texts)):
        name = "--propose" if words else "propose.command"
        require(rules.reads_seed or "{seed}" in text, name, rule, text)
        words.append(split_words(text, name))
    (baseline, *sides), begin = _sides(study, rules, words, settings, output_dir, undo)
    measure = partial(_run, reader, output_dir / "commands", begin, baseline)
    proposals = list[Proposal]()
    for side in sides:
        proposals.append(
            Proposal(words=side.words, content=side.digest, measure=partial(measure, side))
        )
    fixed = [
        rules.gain,
        rules.first_seed,
        rules.metric,
        rules.better.value,
        rules.file,
        baseline.digest,
    ]
    return Proposals(
        proposals=proposals,
        against=baseline.digest,
        fixed=digest(fixed),
        machine=str(hardware.describe(Device.cpu, 0)["fingerprint"]),
        scale="",
    )


def _sides(
    study: Study,
    rules: Propose,
    words: Sequence[Sequence[str]],
    settings: RunSettings,
    output_dir: Path,
    undo: ExitStack,
) -> tuple[list[Command], race_arms.Begin]:
    """Return the baseline and the proposals, and what runs one. What the study writes is no part of
    a working tree."""
    apart = [output_dir]
    for name in (FILE, LOG, lease.NAME):
        apart.append(Path(study.folder) / name)
    if rules.file:
        apart.append(Path(rules.file))
    if not rules.ref:
        if rules.link:
            raise ValueError("propose.link works only with propose.ref")
        names = ["the baseline", *(f"proposal {i}" for i in range(1, len(words)))]
        commands = list(zip(names, words, strict=True))
        return race_arms.of_commands(commands, settings, locked=rules.locked, apart=apart)
    refs = [rules.ref, *[HERE] * (len(words) - 1)]
    return race_arms.of_refs(
        list(zip(refs, words, strict=True)),
        settings,
        locked=rules.locked,
        links=rules.link,
        folder=output_dir / "races" / "trees",
        apart=apart,
        undo=undo,
        say=partial(print, file=sys.stderr),
    )


def _run(
    reader: MetricReader,
    runs: Path,
    begin: race_arms.Begin,
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
    sign = -1 if reader.better is Better.higher else 1
    turns = [(baseline, proposal), (proposal, baseline)]
    for i, seed in enumerate(seeds):
        for side in turns[i % 2]:
            folder = runs / f"{side.digest}-{seed}"
            if not reader.is_in(folder):
                with failures_of(side, seed):
                    begin(side, seed, folder)
            value = reader.value(folder, finite=False)
            losses[side.digest, seed] = sign * value if math.isfinite(value) else math.inf
    for side in (baseline, proposal):
        of_side = [losses[side.digest, seed] for seed in seeds]
        known = [loss for loss in of_side if math.isfinite(loss)]
        rule = "have different losses for different seeds (the command must use the seed)"
        require(not alike(known), side.name, rule, f"{known[:1]}")
    return {seed: (losses[proposal.digest, seed], losses[baseline.digest, seed]) for seed in seeds}
