"""`python -m nocap.race`: two or more training commands, or versions of one, pair by pair until the
answer is safe."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap import outside
from nocap.command_line import command
from nocap.config import entry
from nocap.config.keys import require
from nocap.store import lease
from nocap.store.file_writing import write_text
from nocap.store.record_files import write_json

if TYPE_CHECKING:
    from nocap.sources.races.command import Command, RunSettings
    from nocap.sources.races.command_output import MetricReader
    from nocap.sources.races.race import GuardReader, Race
    from nocap.sources.races.race_arms import Begin

FORMS = """\
An arm is a command (--arm), or a version of the repository that you are in (--ref). The first arm
is the baseline. {seed} in a command, or $NOCAP_SEED, is the seed of the repeat. A metric is a
regular expression with one group, whose last match in the output counts. A metric can also be a
name: the command then prints lines METRIC name=number, or writes a JSON or CSV file with this key
(--file). If you type the same command again, it continues where it stopped.

  python -m nocap.race --arm base='python train.py --seed {seed}' \\
      --arm idea='python train.py --lr 3e-4 --seed {seed}' --metric 'val loss (\\S+)'
  python -m nocap.race --ref main --ref my-idea --locked 'data/**' --locked eval.py \\
      --metric 'val loss (\\S+)' -- python train.py --seed {seed}

The exit code is 0 for an answer, 1 if a run failed, 2 for bad input, 75 if the race is paused."""

EITHER = "nocap.race needs two or more --arm, or two or more --ref with a command after --"


class _Metric(argparse.Action):
    """--lower and --higher say it of the metric or guard before them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        metrics = namespace.metrics
        if option in ("--metric", "--guard"):
            metrics.append({"option": option, "what": value, "better": "lower"})
        elif not metrics:
            parser.error(f"{option} must come after the --metric or --guard that it is about")
        else:
            metrics[-1]["better"] = str(option)[2:]


def main(argv: list[str] | None = None) -> int:
    words = outside.arguments(argv)
    split = words.index("--") if "--" in words else len(words)
    return command(_parser(), partial(_raced, words), words[:split], answer="the result")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.race",
        usage="%(prog)s (--arm NAME=COMMAND … | --ref REF … -- COMMAND) --metric PATTERN [flags]",
        description="Run training commands in turns, pair by pair, until every arm is better or "
        "worse than the first, or --pairs ends the race.",
        epilog=FORMS,
    )
    parser.set_defaults(metrics=[])
    _add_arms(parser.add_argument_group("arms"))
    _add_question(parser.add_argument_group("question"))
    _add_runs(parser.add_argument_group("runs"))
    return parser


def _add_arms(group: argparse._ArgumentGroup) -> None:
    add = partial(_add, group, action="append", default=[])
    add("--arm", "NAME=COMMAND", "an arm; for a shell line write sh -c '…'")
    add("--ref", "REF", "a commit, branch or tag in a worktree of its own; . is the working tree")
    add("--locked", "GLOB", "files that must be equal in all refs, such as evaluation and data")
    add(
        "--link",
        "PATH",
        "a path that git ignores, but that the command needs; each worktree gets a link to it",
    )


def _add_question(group: argparse._ArgumentGroup) -> None:
    add = partial(_add, group)
    of_metric = partial(_add, group, action=_Metric)
    of_metric(
        "--metric", "PATTERN", "the metric to compare; of several metrics the first one decides"
    )
    of_metric(
        "--lower", None, "lower is better, for the --metric or --guard before this flag", nargs=0
    )
    of_metric(
        "--higher", None, "higher is better, for the --metric or --guard before this flag", nargs=0
    )
    add(
        "--file",
        "FILE",
        "a JSON, JSON lines or CSV file that the command writes, with the metrics as its keys. "
        "FILE may hold {seed}. If it is a glob, the newest file counts",
        default="",
    )
    of_metric(
        "--guard",
        "'METRIC MARGIN'",
        "another metric; an arm may be worse in it, but at most by MARGIN",
    )
    add(
        "--expect",
        "LOW..HIGH",
        "the gain that you expect, such as 0.01.. ; the race confirms or refutes it",
        default="",
    )
    add(
        "--target",
        "VALUE",
        "also compare the steps and seconds until this value; the metric then needs a group step",
        type=float,
    )


def _add_runs(group: argparse._ArgumentGroup) -> None:
    add = partial(_add, group)
    number = partial(_add, group, type=int)
    number(
        "--pairs",
        "N",
        "largest number of pairs (default: 12); nocap judges after 3, 6, 12, 24",
        default=12,
    )
    number("--first-seed", "N", "seed of the first repeat (default: 0)", default=0)
    group.add_argument(
        "--reads-seed",
        action="store_true",
        help="say that the command reads $NOCAP_SEED; nocap then pairs repeats with the same seed",
    )
    number(
        "--sessions",
        "N",
        "number of sessions of timing (default: 1); times need three for a verdict",
        default=1,
    )
    add("--apart", "TIME", "time between sessions, such as 30s, 10m, 2h (default: 10m)")
    add("--timeout", "TIME", "longest time of a run (default: 12h)", default="12h")
    about = "a command before each run, whose time does not count; it may hold {arm} and {seed}"
    add("--prepare", "COMMAND", about, default="")
    number(
        "--jobs",
        "N",
        "number of runs at once (default: 1); with more than one, nocap compares no times",
        default=1,
    )
    add(
        "--output-dir",
        "FOLDER",
        "folder of runs and races (default: outputs)",
        type=Path,
        default=Path("outputs"),
    )


def _add(
    group: argparse._ArgumentGroup, flag: str, metavar: str | None, about: str, **more: Any
) -> None:
    group.add_argument(flag, metavar=metavar, help=about, **more)


def _raced(typed: Sequence[str], options: argparse.Namespace) -> int:
    from nocap.config.errors import StoppedError
    from nocap.sources.races import result_json, result_page, result_tables

    words = typed[typed.index("--") + 1 :] if "--" in typed else []
    try:
        with ExitStack() as undo:
            running = _race(options, words, undo)
            running.folder.mkdir(parents=True, exist_ok=True)
            with lease.acquire(running.folder):
                raced = running.run()
                content = result_json.written(running, raced)
                content["next"] = result_json.next_step(running, raced, typed)
                write_json(running.folder / "result.json", content)
        for table in result_tables.tables(running, raced):
            print(f"\n{table}")
        command_line = f"python -m nocap.race {shlex.join(typed)}"
        page = result_page.render(running, raced, command=command_line)
        write_text(running.folder / "result.html", page)
    except KeyboardInterrupt as stop:
        raise StoppedError(
            "paused; nocap keeps the runs that ended; to continue, type the same command again"
        ) from stop
    print(f"written: {running.folder}: result.json, result.html")
    options.answer(content)
    return 0


def _race(options: argparse.Namespace, words: Sequence[str], undo: ExitStack) -> Race:
    from nocap.sources.races.command import RunSettings, duration_s
    from nocap.sources.races.race import Race

    _check(options, words)
    readers, guards = _readers(options)
    timeout_s = duration_s(options.timeout, "--timeout")
    require(timeout_s > 0, "--timeout", "be above 0", options.timeout)
    from nocap.sources.races import race_arms
    from nocap.sources.races.command_words import split_words

    prepare = split_words(options.prepare, "--prepare")
    settings = RunSettings(
        timeout_s=timeout_s,
        keep=[options.file] if options.file else [],
        alone=options.jobs == 1,
        prepare=prepare,
    )
    apart_s = duration_s(options.apart or "10m", "--apart")
    expect = _expected(options.expect)
    arms, begin = _arms(options, words, settings, undo)
    if prepare:
        arms = race_arms.prepared(arms, prepare)
    undo.callback(settings.stop.set)  # before the worktrees go
    return Race(
        arms=arms,
        readers=readers,
        guards=guards,
        output_dir=options.output_dir,
        pairs=options.pairs,
        expect=expect,
        target=options.target,
        first_seed=options.first_seed,
        seeded=options.reads_seed or all(arm.takes_seed for arm in arms),
        sessions=options.sessions,
        apart_s=apart_s,
        jobs=options.jobs,
        begin=begin,
        stop=settings.stop,
        log=_say,
    )


def _say(line: str) -> None:
    from nocap.report.terminal import prose

    print(prose(line), flush=True)


def _check(options: argparse.Namespace, words: Sequence[str]) -> None:
    """Check all options.

    Errors:
        ValueError: options that do not go together.
    """
    _check_numbers(options)
    if options.arm:
        if options.ref:
            raise ValueError(f"{EITHER}; --arm and --ref do not work together")
        _check_commands(options, words)
    else:
        if not options.ref:
            raise ValueError(EITHER)
        is_race = len(options.ref) >= 2 and bool(words)
        rule = "appear at least twice, with a command after --"
        require(is_race, "--ref", rule, " ".join(options.ref))


def _check_numbers(options: argparse.Namespace) -> None:
    """Check the numbers.

    Errors:
        ValueError: repeats, sessions and jobs that cannot be, or not together.
    """
    require(options.pairs >= 1, "--pairs", "be at least 1", options.pairs)
    sessions = options.sessions
    rule = "be from 1 to the value of --pairs"
    require(1 <= sessions <= options.pairs, "--sessions", rule, sessions)
    jobs = options.jobs
    require(jobs >= 1, "--jobs", "be at least 1", jobs)
    is_finite = options.target is None or math.isfinite(options.target)
    require(is_finite, "--target", "be a finite number", options.target)
    rule = "be 1 with --sessions, because parallel runs share the machine"
    require(jobs == 1 or sessions == 1, "--jobs", rule, jobs)
    if options.apart is not None and sessions == 1:
        raise ValueError("--apart works only with --sessions of 2 or more")
    rule = "be 1 with --file, because parallel runs would write the same file"
    require(jobs == 1 or not options.file, "--jobs", rule, jobs)
    is_folder = bool(options.file) and Path(options.file).is_dir()
    require(not is_folder, "--file", "be a file, not a folder", options.file)


def _check_commands(options: argparse.Namespace, words: Sequence[str]) -> None:
    """Check the arms that are commands.

    Errors:
        ValueError: arms that are no commands with names.
    """
    if words or options.link:
        raise ValueError("--arm does not work with a command after --, or with --link")
    arms = "; ".join(options.arm)
    have_names = all(re.match(r"\s*[^\s=][^=]*=", text) for text in options.arm)
    require(have_names, "--arm", "be NAME=COMMAND", arms)
    names = {text.partition("=")[0] for text in options.arm}
    rule = "appear at least twice, as NAME=COMMAND with a different NAME each time"
    require(len(names) == len(options.arm) != 1, "--arm", rule, arms)


def _arms(
    options: argparse.Namespace, words: Sequence[str], settings: RunSettings, undo: ExitStack
) -> tuple[list[Command], Begin]:
    """Return the arms, and what runs one."""
    from nocap.sources.races import race_arms
    from nocap.sources.races.command_words import split_words

    # what a race makes is no part of an arm
    apart = [options.output_dir]
    if options.file:
        apart.append(Path(options.file.replace("{seed}", "*")))
    if not options.ref:
        named = []
        for text in options.arm:
            name, _, line = text.partition("=")
            named.append((name, split_words(line, f"arm {name}")))
        return race_arms.of_commands(named, settings, locked=options.locked, apart=apart)
    return race_arms.of_refs(
        [(ref, words) for ref in options.ref],
        settings,
        locked=options.locked,
        links=options.link,
        folder=options.output_dir / "races" / "trees",
        apart=apart,
        undo=undo,
        say=print,
    )


def _readers(options: argparse.Namespace) -> tuple[list[MetricReader], list[GuardReader]]:
    """Return what is compared, and what may not be worse."""
    from nocap.metrics import Better
    from nocap.sources.races.command_output import MetricReader, number
    from nocap.sources.races.race import COST_NAMES, GuardReader

    readers = list[MetricReader]()
    guards = list[GuardReader]()
    for metric in options.metrics:
        what = metric["what"]
        better = Better(metric["better"])
        if metric["option"] == "--metric":
            readers.append(MetricReader(what=what, better=better, file=options.file))
            continue
        name, _, text = what.rpartition(" ")
        rule = "be a metric and a margin, as in 'val_loss 0.01'"
        require(bool(name), "--guard", rule, what)
        margin = number(text, "--guard")
        require(0 <= margin < math.inf, "--guard", "have a finite margin of 0 or more", text)
        reader = MetricReader(what=name, better=better, file=options.file)
        guards.append(GuardReader(reader=reader, margin=margin))
    if not readers:
        raise ValueError("nocap.race needs --metric, as in --metric 'val loss (\\S+)'")
    every = [*readers, *(guard.reader for guard in guards)]
    rule = f"have a name other than {', '.join(COST_NAMES)} (nocap measures these itself)"
    for reader in every:
        reader.check()
        require(reader.name not in COST_NAMES, "--metric", rule, reader.what)
    names = [reader.name for reader in every]
    require(
        len({*names}) == len(names),
        "--metric",
        "have a name that no other --metric or --guard has",
        ", ".join(names),
    )
    has_step = bool(options.file) or "step" in readers[0].pattern.groupindex
    if options.target is not None and not has_step:
        raise ValueError(
            "--target needs --file, or a --metric with the group (?P<step>…), got "
            f"{readers[0].what}"
        )
    return readers, guards


def _expected(text: str) -> tuple[float, float] | None:
    from nocap.sources.races.command_output import number

    if not text:
        return None
    low, dots, high = text.partition("..")
    require(bool(dots and low), "--expect", "be LOW.. or LOW..HIGH, as in 0.01..0.05", text)
    lowest = number(low, "--expect")
    highest = number(high, "--expect") if high else math.inf
    require(lowest < highest, "--expect", "have LOW below HIGH", text)
    return lowest, highest


if __name__ == "__main__":
    entry.run(main)
