"""Proposals as anybody's training command, beside the command that the study names.

Without `propose.ref` both run where one stands, and differ in their words. With it the baseline is this version of the repository, and a
proposal is its working tree as it is when it is proposed: each in a worktree of its own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from nocap.config import hardware
from nocap.config.errors import StoppedError
from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.judge.interval import alike
from nocap.sources import arms, refs
from nocap.sources.command import Command, Reading, duration_s
from nocap.store import lease
from nocap.store.metrics import Better
from nocap.study.log import FILE as LOG
from nocap.study.propose import Asked, Losses, Proposal
from nocap.study.spec import FILE, Propose, Study

Begin = Callable[[Command, int, Path], None]


def asked(study: Study, rules: Propose, texts: Sequence[str], *, output_dir: Path, undo: ExitStack) -> Asked:
    """All are checked before the first one runs. Worktrees go with `undo`.

    Errors:
        ValueError: a command that is not there or takes no seed, a ref that is none, files that are locked and differ.
    """
    reading = Reading(what=rules.metric, better=rules.better, file=rules.file)
    reading.check("propose.metric")
    how = {"timeout_s": duration_s(rules.timeout, "propose.timeout"), "keep": [rules.file] if rules.file else []}
    for text in (rules.command, *texts):
        rule = "have {seed}, unless the study has propose.reads_seed: true"
        require(rules.reads_seed or "{seed}" in text, "a proposal" if text in texts else "propose.command", rule, text)
    words = [arms.split(text, "--propose") for text in dict.fromkeys(texts)]
    (baseline, *sides), begin = _sides(study, rules, [arms.split(rules.command, "propose.command"), *words], output_dir, undo)
    measure = partial(_losses, reading, output_dir / "commands", partial(begin, **how), baseline)
    return Asked(
        proposals=[Proposal(words=side.words, arm=side.content, measure=partial(measure, side)) for side in sides],
        against=baseline.content,
        fixed=[rules.gain, rules.first_seed, rules.metric, rules.better.value, rules.file, baseline.content],
        common={"machine": hardware.describe(Device.cpu, 0)["fingerprint"], "scale": ""},
    )


def _sides(
    study: Study, rules: Propose, words: Sequence[Sequence[str]], output_dir: Path, undo: ExitStack
) -> tuple[list[Command], Callable[..., None]]:
    """The baseline and the proposals, and what runs one. What the study writes is no part of a working tree."""
    apart = [output_dir, *(Path(study.folder) / name for name in (FILE, LOG, lease.NAME)), *([Path(rules.file)] if rules.file else [])]
    if not rules.ref:
        require(not rules.link, "propose.link", "be given with propose.ref", rules.link)
        names = ["the baseline", *(f"proposal {i}" for i in range(1, len(words)))]
        return arms.of_commands(list(zip(names, words, strict=True)), locked=rules.locked, apart=apart), arms.begin
    versions = arms.of_refs(
        list(zip([rules.ref, *[refs.HERE] * (len(words) - 1)], words, strict=True)),
        locked=rules.locked,
        links=rules.link,
        folder=output_dir / "races" / "trees",
        apart=apart,
        undo=undo,
        say=partial(print, file=sys.stderr),
    )
    return versions.arms, versions.begin


def _losses(reading: Reading, runs: Path, begin: Begin, baseline: Command, proposal: Command, seeds: Sequence[int]) -> Losses:
    """What is missing is run, in turns. Of a metric of which more is better the loss is its negative.

    Errors:
        FailedError: a run that failed, or left no metric.
        StoppedError: Ctrl-C.
        ValueError: a side that ignores its seed: each of its runs is the same one.
    """
    losses = dict[tuple[str, int], float]()
    for i, seed in enumerate(seeds):
        for side in (baseline, proposal)[:: 1 if i % 2 == 0 else -1]:
            place = runs / f"{side.content}-{seed}"
            if not reading.is_in(place):
                try:
                    begin(side, seed, place)
                except KeyboardInterrupt as stop:
                    raise StoppedError("paused; runs that ended are kept, and the same command goes on") from stop
            value = reading.value(place, finite=False)
            losses[side.content, seed] = math.inf if not math.isfinite(value) else -value if reading.better is Better.higher else value
    for side in (baseline, proposal):
        known = [loss for seed in seeds if math.isfinite(loss := losses[side.content, seed])]
        require(not alike(known), side.name, "use its seed: losses of other seeds are equal to rounding", f"{known[:1]}")
    return {seed: (losses[proposal.content, seed], losses[baseline.content, seed]) for seed in seeds}
