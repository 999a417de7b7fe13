"""`python -m nocap.race`: two or more training commands, or versions of one, pair by pair until the answer is safe."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from nocap import outside

if TYPE_CHECKING:
    from nocap.report.table import Cell
    from nocap.sources.command import Command, Reading
    from nocap.sources.race import Guard, Race

FORMS = """\
Arms are commands (--arm) or versions of the repository in which one stands (--ref), the baseline first. {seed} in a command, or
$NOCAP_SEED, is the repeat's seed. A metric is a regular expression with one group, matched over the output (the last match counts), or a
name: of lines METRIC name=number, or in a JSON or CSV file that the command writes (--file). The same command goes on where it was.

  python -m nocap.race --arm base='python train.py --seed {seed}' \\
      --arm idea='python train.py --lr 3e-4 --seed {seed}' --metric 'val loss (\\S+)'
  python -m nocap.race --ref main --ref my-idea --locked 'data/**' --locked eval.py \\
      --metric 'val loss (\\S+)' -- python train.py --seed {seed}

Exit codes: 0 an answer, 1 a run failed, 2 bad input, 75 paused."""


class _Metric(argparse.Action):
    """--lower and --higher say it of the metric before them."""

    def __call__(self, parser: argparse.ArgumentParser, given: argparse.Namespace, value: Any, option: str | None = None) -> None:
        if option == "--metric":
            given.metrics.append({"what": value, "better": "lower"})
        elif not given.metrics:
            parser.error(f"{option} must come after the --metric that it is about")
        else:
            given.metrics[-1]["better"] = str(option)[2:]


def main(argv: list[str] | None = None) -> int:
    words = outside.arguments(argv)
    split = words.index("--") if "--" in words else len(words)
    asked = _parser().parse_args(words[:split])
    from nocap.config.errors import StoppedError, refusals
    from nocap.store.record import answering

    with refusals(), answering(asked.json) as asked.answer, ExitStack() as undo:
        try:
            return _raced(asked, words[split + 1 :], undo)
        except KeyboardInterrupt as stop:
            raise StoppedError("paused; runs that ended are kept, and the same command goes on") from stop


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.race",
        usage="%(prog)s (--arm NAME=COMMAND … | --ref REF … -- COMMAND) --metric PATTERN [flags]",
        description="Race training commands, pair by pair.",
        epilog=FORMS,
    )
    parser.set_defaults(metrics=[])
    add = parser.add_argument
    add("--arm", action="append", default=[], metavar="NAME=COMMAND", help="an arm; sh -c '…' for a shell's own words")
    add("--ref", action="append", default=[], metavar="REF", help="a commit, branch or tag in a worktree of its own; . is the working tree")
    add("--metric", action=_Metric, metavar="PATTERN", help="what is compared; the first one decides; can be repeated")
    add("--lower", action=_Metric, nargs=0, help="lower is better of the metric before it (the default)")
    add("--higher", action=_Metric, nargs=0, help="higher is better of the metric before it")
    add("--file", default="", metavar="FILE", help="JSON, JSON lines or CSV that the command writes, in which the metrics are names")
    add(
        "--guard",
        action="append",
        default=[],
        metavar="'METRIC MARGIN'",
        help="a metric of the command that may be worse by MARGIN at most",
    )
    add("--expect", default="", metavar="LOW..HIGH", help="the gain that is stated, such as 0.01.. : the verdict is confirmed or refuted")
    add("--target", type=float, metavar="VALUE", help="also compare steps and seconds to this value of a metric with a group step")
    add("--pairs", type=int, default=12, help="repeats at most (default: 12); arms are judged at 3, 6, 12, 24")
    add("--first-seed", type=int, default=0, metavar="N", help="seed of the first repeat (default: 0)")
    add("--reads-seed", action="store_true", help="the command reads $NOCAP_SEED: repeats of two arms are pairs")
    add("--sessions", type=int, default=1, help="of timing; three or more that lie --apart give times a verdict")
    add("--apart", default="10m", metavar="TIME", help="between sessions: 30s, 10m, 2h (default: 10m)")
    add("--locked", action="append", default=[], metavar="GLOB", help="files that must be equal in all refs: the evaluation, the data")
    add("--link", action="append", default=[], metavar="PATH", help="what git ignores and the command needs, linked into each worktree")
    add("--timeout", default="12h", metavar="TIME", help="of a run (default: 12h)")
    add("--output-dir", type=Path, default=Path("outputs"), metavar="FOLDER", help="where runs and races lie (default: outputs)")
    outside.document(parser, answer="the result")
    return parser


def _raced(asked: argparse.Namespace, command: Sequence[str], undo: ExitStack) -> int:
    from nocap.config.keys import require
    from nocap.sources import arms, race
    from nocap.sources.command import run
    from nocap.store import lease
    from nocap.store.record import digest, write_json

    readings, guards = _readings(asked)
    require(asked.pairs >= 1, "--pairs", "be at least 1", asked.pairs)
    require(1 <= asked.sessions <= asked.pairs, "--sessions", "be at least 1, and at most --pairs", asked.sessions)
    require(
        bool(asked.arm) != bool(asked.ref), "--arm", "be given, or --ref with a command after --; not both", "both" if asked.arm else "none"
    )
    timeout_s, apart_s, expect = _seconds("--timeout", asked.timeout), _seconds("--apart", asked.apart), _expected(asked.expect)
    keep = [asked.file] if asked.file else []

    def say(line: str) -> None:
        print(line, flush=True)

    def begin(arm: Command, seed: int, place: Path) -> None:
        (versions.begin if versions else run)(arm, seed, place, timeout_s=timeout_s, keep=keep)

    versions = None
    if asked.ref:
        trees = asked.output_dir / "races" / "trees"
        versions = arms.of_refs(asked.ref, command, locked=asked.locked, links=asked.link, folder=trees, undo=undo, say=say)
    else:
        require(
            not command and not asked.link, "--arm", "be without a command after -- and without --link", shlex.join(command) or asked.link
        )
    raced = versions.arms if versions else arms.of_commands(asked.arm, asked.locked)
    stated = [asked.metrics, asked.file, asked.guard, asked.expect, asked.target, asked.first_seed, asked.sessions]
    running = race.Race(
        arms=raced,
        readings=readings,
        guards=guards,
        folder=asked.output_dir / "races" / digest([[(arm.name, arm.content) for arm in raced], stated]),
        runs=asked.output_dir / "commands",
        pairs=asked.pairs,
        expect=expect,
        target=asked.target,
        first_seed=asked.first_seed,
        seeded=asked.reads_seed or all(arm.takes_seed for arm in raced),
        sessions=asked.sessions,
        apart_s=apart_s,
        begin=begin,
        log=say,
    )
    running.folder.mkdir(parents=True, exist_ok=True)
    with lease.acquire(running.folder):
        content = race.content(running, running.run())
        write_json(running.folder / "result.json", content)
    for text in _drawn(running, content):
        say(f"\n{text}")
    say(f"written: {running.folder / 'result.json'}")
    asked.answer(content)
    return 0


def _readings(asked: argparse.Namespace) -> tuple[list[Reading], list[Guard]]:
    """What is compared, and what may not be worse."""
    from nocap.config.keys import require
    from nocap.sources.command import Reading
    from nocap.store.metrics import Better

    require(bool(asked.metrics), "--metric", "be given: a pattern with one group, as in 'val loss (\\S+)'", "none")
    readings = [Reading(what=one["what"], better=Better(one["better"]), file=asked.file) for one in asked.metrics]
    guards = [_guard(text, asked.file) for text in asked.guard]
    every = [*readings, *(guard.reading for guard in guards)]
    for reading in every:
        reading.check()
    names = [reading.name for reading in every]
    require(len({*names}) == len(names), "--metric", "differ in name, guards too", ", ".join(names))
    return readings, guards


def _guard(text: str, file: str) -> Guard:
    from nocap.config.keys import require
    from nocap.sources.command import Reading, number
    from nocap.sources.race import Guard

    what, _, margin = text.rpartition(" ")
    require(bool(what), "--guard", "be a metric and how much worse it may be, as in 'val_loss 0.01'", text)
    return Guard(reading=Reading(what=what, file=file), margin=number(margin, "--guard"))


def _seconds(key: str, text: str) -> float:
    from nocap.config.keys import require

    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    require(found is not None, key, "be a time, as in 30s, 10m or 2h", text)
    assert found is not None
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _expected(text: str) -> tuple[float, float] | None:
    from nocap.config.keys import require
    from nocap.sources.command import number

    if not text:
        return None
    low, dots, high = text.partition("..")
    require(bool(dots and low), "--expect", "be LOW.. or LOW..HIGH, as in 0.01..0.05", text)
    ends = number(low, "--expect"), number(high, "--expect") if high else math.inf
    require(ends[0] < ends[1], "--expect", "hold something: LOW below HIGH", text)
    return ends


# --- the answer ----------------------------------------------------------------------------------------------------------------------


def _drawn(race: Race, content: Mapping[str, Any]) -> Iterator[str]:
    from nocap.report.table import Column, Table
    from nocap.report.words import measured, values
    from nocap.store.metrics import METRICS, Scale

    base, verdicts = race.arms[0], {one["arm"]: one for one in content["verdicts"]}
    n, primary = max(one["n"] for one in verdicts.values()), race.readings[0].metric

    def mean(arm: str, name: str) -> float | None:
        known = [row[name] for row in content["measurements"] if row["arm"] == arm]
        return None if None in known else fmean(known)

    def gain(arm: Command, name: str) -> Cell | None:
        if name == primary.name:
            return measured(race.gain(arm, primary, n), primary, Scale.difference)
        return measured(race.gain(arm, METRICS[name], n).exp(), METRICS[name], Scale.ratio) if race.has_verdict(name) else None

    notes = [] if content["paired"] else ["Unpaired (Welch): the commands take no seed ({seed} or --reads-seed)."]
    notes += [f"exploratory: {content['exploratory']}"] if content["exploratory"] else []
    rows = [[base.name, n, mean(base.name, primary.name), None, "baseline"]]
    for arm in race.arms[1:]:
        word, reason = verdicts[arm.name]["word"], verdicts[arm.name]["reason"]
        rows.append([arm.name, n, mean(arm.name, primary.name), gain(arm, primary.name), f"{word} ({reason})" if reason else word])
    shown = Column(title=primary.name, show="{:.5g}".format)
    columns = [Column(title="arm"), Column(title="n"), shown, Column(title="gain"), Column(title="verdict")]
    title = f"{primary.name}: {primary.better.value} is better; the gain with its 95% interval"
    yield str(Table(title=title, columns=columns, rows=rows, notes=notes))
    columns, table = [Column(title="arm")], [list[Any]([arm.name]) for arm in race.arms]
    for name in race.costs:
        columns += [values(name, METRICS[name].title), Column(title=f"{METRICS[name].title}, gain")]
        for row, one in zip(table, race.arms, strict=True):
            row += [mean(one.name, name), None if one is base else gain(one, name)]
    timed = race.has_verdict("wall_s")
    note = f"{race.sessions} sessions." if timed else "Times and memory are of one session: no verdict; --sessions 3 makes one."
    yield str(Table(title="Costs", columns=columns, rows=table, notes=[note]))


if __name__ == "__main__":
    raise SystemExit(main())
