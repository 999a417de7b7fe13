"""`python -m nocap.race`: two or more training commands, or versions of one, pair by pair until the
answer is safe."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap import outside
from nocap.config import entry
from nocap.config.keys import require
from nocap.store import lease
from nocap.store.command import command
from nocap.store.files import write_text
from nocap.store.record import write_json

if TYPE_CHECKING:
    from nocap.sources.command import Command, Reading
    from nocap.sources.race import Guarded, Race

FORMS = """\
Arms are commands (--arm) or versions of the repository in which one stands (--ref), the baseline
first. {seed} in a command, or $NOCAP_SEED, is the repeat's seed. A metric is a regular expression
with one group, matched over the output (the last match counts), or a name: of lines METRIC
name=number, or in a JSON or CSV file that the command writes (--file). The same command goes on
where it was.

  python -m nocap.race --arm base='python train.py --seed {seed}' \\
      --arm idea='python train.py --lr 3e-4 --seed {seed}' --metric 'val loss (\\S+)'
  python -m nocap.race --ref main --ref my-idea --locked 'data/**' --locked eval.py \\
      --metric 'val loss (\\S+)' -- python train.py --seed {seed}

Exit codes: 0 an answer, 1 a run failed, 2 bad input, 75 paused."""


class _Metric(argparse.Action):
    """--lower and --higher say it of the metric or guard before them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        given: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        if option in ("--metric", "--guard"):
            given.metrics.append({"option": option, "what": value, "better": "lower"})
        elif not given.metrics:
            parser.error(f"{option} must come after the --metric or --guard that it is about")
        else:
            given.metrics[-1]["better"] = str(option)[2:]


def main(argv: list[str] | None = None) -> int:
    words = outside.arguments(argv)
    split = words.index("--") if "--" in words else len(words)
    return command(_parser(), partial(_raced, words), words[:split], answer="the result")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nocap.race",
        usage="%(prog)s (--arm NAME=COMMAND … | --ref REF … -- COMMAND) --metric PATTERN [flags]",
        description="Race training commands, pair by pair.",
        epilog=FORMS,
    )
    parser.set_defaults(metrics=[])
    _add_arms(parser.add_argument_group("arms"))
    _add_question(parser.add_argument_group("what is compared"))
    _add_runs(parser.add_argument_group("how it is run"))
    return parser


def _add_arms(group: argparse._ArgumentGroup) -> None:
    add = partial(_add, group, action="append", default=[])
    add("--arm", "NAME=COMMAND", "an arm; sh -c '…' for a shell's own words")
    add("--ref", "REF", "a commit, branch or tag in a worktree of its own; . is the working tree")
    add("--locked", "GLOB", "files that must be equal in all refs: the evaluation, the data")
    add("--link", "PATH", "what git ignores and the command needs, linked into each worktree")


def _add_question(group: argparse._ArgumentGroup) -> None:
    add, of_metric = partial(_add, group), partial(_add, group, action=_Metric)
    of_metric("--metric", "PATTERN", "what is compared; the first one decides; can be repeated")
    of_metric(
        "--lower", None, "lower is better of the metric or guard before it (the default)", nargs=0
    )
    of_metric("--higher", None, "higher is better of the metric or guard before it", nargs=0)
    add(
        "--file",
        "FILE",
        "JSON, JSON lines or CSV that the command writes; the metrics are its names. It may hold "
        "{seed}, or "
        "be a glob, of which the file counts that was written last",
        default="",
    )
    of_metric("--guard", "'METRIC MARGIN'", "a metric that may be worse by MARGIN at most")
    add(
        "--expect",
        "LOW..HIGH",
        "the stated gain, such as 0.01.. : is it confirmed or refuted?",
        default="",
    )
    add(
        "--target",
        "VALUE",
        "also compare steps and seconds to this value of a metric with a group step",
        type=float,
    )


def _add_runs(group: argparse._ArgumentGroup) -> None:
    add, number = partial(_add, group), partial(_add, group, type=int)
    number(
        "--pairs", "N", "repeats at most (default: 12); arms are judged at 3, 6, 12, 24", default=12
    )
    number("--first-seed", "N", "seed of the first repeat (default: 0)", default=0)
    group.add_argument(
        "--reads-seed", action="store_true", help="the command reads $NOCAP_SEED: its repeats pair"
    )
    number(
        "--sessions",
        "N",
        "of timing; three or more that lie --apart give times a verdict",
        default=1,
    )
    add("--apart", "TIME", "between sessions: 30s, 10m, 2h (default: 10m)")
    add("--timeout", "TIME", "of a run (default: 12h)", default="12h")
    about = "a command before each run, outside its clock; {arm} and {seed} are the run's"
    add("--prepare", "COMMAND", about, default="")
    number(
        "--jobs",
        "N",
        "runs at once on this machine (default: 1); of more no time is known",
        default=1,
    )
    add(
        "--output-dir",
        "FOLDER",
        "where runs and races lie (default: outputs)",
        type=Path,
        default=Path("outputs"),
    )


def _add(
    group: argparse._ArgumentGroup, flag: str, metavar: str | None, about: str, **more: Any
) -> None:
    group.add_argument(flag, metavar=metavar, help=about, **more)


def _raced(typed: Sequence[str], asked: argparse.Namespace) -> int:
    from nocap.config.errors import StoppedError
    from nocap.sources import answer

    words = typed[typed.index("--") + 1 :] if "--" in typed else []
    try:
        with ExitStack() as undo:
            running = _race(asked, words, undo)
            running.folder.mkdir(parents=True, exist_ok=True)
            with lease.acquire(running.folder):
                raced = running.run()
                content = answer.written(running, raced)
                content["next"] = answer.next_step(running, raced, typed)
                write_json(running.folder / "result.json", content)
        for table in answer.tables(running, raced):
            print(f"\n{table}")
        command_line = f"python -m nocap.race {shlex.join(typed)}"
        write_text(
            running.folder / "result.html", answer.render(running, raced, command=command_line)
        )
    except KeyboardInterrupt as stop:
        raise StoppedError(
            "paused; runs that ended are kept, and the same command goes on"
        ) from stop
    print(f"written: {running.folder}: result.json, result.html")
    asked.answer(content)
    return 0


def _race(asked: argparse.Namespace, words: Sequence[str], undo: ExitStack) -> Race:
    from nocap.sources.command import duration_s
    from nocap.sources.race import Race

    _check(asked, words)
    readings, guards = _readings(asked)
    timeout_s = duration_s(asked.timeout, "--timeout")
    require(timeout_s > 0, "--timeout", "be above 0", asked.timeout)
    from nocap.sources import arms as sides

    prepare = sides.split(asked.prepare, "--prepare")
    how = {
        "prepare": prepare,
        "timeout_s": timeout_s,
        "keep": [asked.file] if asked.file else [],
        "alone": asked.jobs == 1,
    }
    apart_s, expect = duration_s(asked.apart or "10m", "--apart"), _expected(asked.expect)
    arms, begin = _arms(asked, words, undo)
    if prepare:
        arms = sides.prepared(arms, prepare)
    racing = Race(
        arms=arms,
        readings=readings,
        guards=guards,
        output_dir=asked.output_dir,
        pairs=asked.pairs,
        expect=expect,
        target=asked.target,
        first_seed=asked.first_seed,
        seeded=asked.reads_seed or all(arm.takes_seed for arm in arms),
        sessions=asked.sessions,
        apart_s=apart_s,
        jobs=asked.jobs,
        begin=lambda arm, seed, place: begin(arm, seed, place, stop=racing.stop, **how),
        log=_say,
    )
    undo.callback(racing.stop.set)  # before the worktrees go
    return racing


def _say(line: str) -> None:
    from nocap.report.terminal import prose

    print(prose(line), flush=True)


def _check(asked: argparse.Namespace, words: Sequence[str]) -> None:
    """
    Errors:
        ValueError: options that do not go together.
    """
    jobs, sessions, file = asked.jobs, asked.sessions, asked.file
    together = "be 1 with --sessions: runs at once share the machine"
    written = "be 1 with --file: runs at once would write the same file"
    shaped = all(re.match(r"\s*[^\s=][^=]*=", text) for text in asked.arm)
    named = len({text.partition("=")[0] for text in asked.arm}) == len(asked.arm) != 1
    between = "be given with --sessions N, between which it lies"
    commands = " ".join([*words, *asked.link])
    either = "be given, or --ref with a command after --; not both"
    rules = [
        (asked.pairs >= 1, "--pairs", "be at least 1", asked.pairs),
        (
            1 <= sessions <= asked.pairs,
            "--sessions",
            "be at least 1, and at most --pairs",
            sessions,
        ),
        (jobs >= 1, "--jobs", "be at least 1", jobs),
        (
            asked.target is None or math.isfinite(asked.target),
            "--target",
            "be a finite number",
            asked.target,
        ),
        (jobs == 1 or sessions == 1, "--jobs", together, jobs),
        (asked.apart is None or sessions > 1, "--apart", between, asked.apart),
        (jobs == 1 or not file, "--jobs", written, jobs),
        (not Path(file or "-").is_dir(), "--file", "be a file, and no folder", file),
        (asked.arm or asked.ref, "--arm", either, "none"),
        (not asked.arm or not asked.ref, "--arm", either, "both"),
        (
            not (asked.arm and commands),
            "--arm",
            "be without a command after -- and without --link",
            commands,
        ),
        (shaped, "--arm", "be NAME=COMMAND", "; ".join(asked.arm)),
        (
            named,
            "--arm",
            "be two or more, each NAME=COMMAND with a name of its own",
            "; ".join(asked.arm),
        ),
    ]
    if not asked.arm:
        enough = len(asked.ref) >= 2 and words
        rules.append(
            (enough, "--ref", "be two or more, with a command after --", " ".join(asked.ref))
        )
    for holds, option, rule, got in rules:
        require(bool(holds), option, rule, got)


def _arms(
    asked: argparse.Namespace, words: Sequence[str], undo: ExitStack
) -> tuple[list[Command], Callable[..., None]]:
    """Return the arms, and what runs one."""
    from nocap.sources import arms

    # what a race makes is no part of an arm
    written = [Path(asked.file.replace("{seed}", "*"))] if asked.file else []
    apart = [asked.output_dir, *written]
    if not asked.ref:
        named = [
            (name, arms.split(text, f"arm {name}"))
            for name, _, text in (text.partition("=") for text in asked.arm)
        ]
        return arms.of_commands(named, locked=asked.locked, apart=apart)
    refs, trees = [(ref, words) for ref in asked.ref], asked.output_dir / "races" / "trees"
    return arms.of_refs(
        refs, locked=asked.locked, links=asked.link, folder=trees, apart=apart, undo=undo, say=print
    )


def _readings(asked: argparse.Namespace) -> tuple[list[Reading], list[Guarded]]:
    """Return what is compared, and what may not be worse."""
    from nocap.sources.command import Reading, number
    from nocap.sources.race import MEASURED, Guarded
    from nocap.store.metrics import Better

    readings, guards = list[Reading](), list[Guarded]()
    for metric in asked.metrics:
        what, better = metric["what"], Better(metric["better"])
        if metric["option"] == "--metric":
            readings.append(Reading(what=what, better=better, file=asked.file))
        else:
            what, _, margin = what.rpartition(" ")
            require(
                bool(what),
                "--guard",
                "be a metric and how much worse it may be, as in 'val_loss 0.01'",
                metric["what"],
            )
            guards.append(
                Guarded(
                    reading=Reading(what=what, better=better, file=asked.file),
                    margin=number(margin, "--guard"),
                )
            )
            require(
                0 <= guards[-1].margin < math.inf, "--guard", "have a margin of 0 or more", margin
            )
    require(
        bool(readings),
        "--metric",
        "be given: a pattern with one group, as in 'val loss (\\S+)'",
        "none",
    )
    every = [*readings, *(guard.reading for guard in guards)]
    for reading in every:
        reading.check()
        require(
            reading.name not in MEASURED,
            "--metric",
            f"have another name than {', '.join(MEASURED)}: of each run",
            reading.what,
        )
    names = [reading.name for reading in every]
    require(len({*names}) == len(names), "--metric", "differ in name, guards too", ", ".join(names))
    has_step = bool(asked.file) or "step" in readings[0].pattern.groupindex
    require(
        asked.target is None or has_step,
        "--target",
        "be given with a metric that has a group step",
        readings[0].what,
    )
    return readings, guards


def _expected(text: str) -> tuple[float, float] | None:
    from nocap.sources.command import number

    if not text:
        return None
    low, dots, high = text.partition("..")
    require(bool(dots and low), "--expect", "be LOW.. or LOW..HIGH, as in 0.01..0.05", text)
    ends = number(low, "--expect"), number(high, "--expect") if high else math.inf
    require(ends[0] < ends[1], "--expect", "hold something: LOW below HIGH", text)
    return ends


if __name__ == "__main__":
    entry.run(main)
