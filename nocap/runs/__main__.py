"""`python -m nocap.runs`: list runs, show one, say why two differ, remove runs or their checkpoints."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nocap import outside
from nocap.config.keys import require
from nocap.store.find import LAST, OUTPUTS

if TYPE_CHECKING:
    from nocap.runs.columns import Listed

AT_ONCE = 100  # folders in one command: a command line has an end
VERBS = {
    "list": "the runs of these names and filters; what `nocap runs` does without a verb",
    "show": "one run: its result, code, machine, disk, and what refers to it",
    "why": "what makes two runs differ",
    "sync": "upload what W&B kept offline of these runs, and of the comparisons of their grids",
    "rm": "remove whole runs",
    "gc": "remove the checkpoints of ended runs; their records stay",
}
FORMS = """\
A WORD is a run (a name, its beginning, an identity, last, a folder, a glob), or a filter:

  status=failed   run=nano-*   attention=gqa   optimizer.lr=0.003   seed=1   'val_loss<3.2'   'age>30d'   'size>1G'

Runs of any name that is given, of those that meet all filters. rm and gc print what would go, and remove it with --yes."""


def main(argv: list[str] | None = None) -> int:
    given = outside.arguments(argv)
    verb, words = (given[0], given[1:]) if given and given[0] in VERBS else ("list", given)
    options = _parser(verb).parse_intermixed_args(words)
    from nocap.config.errors import refusals  # Hydra comes with it: --help does without

    with refusals():
        return {"list": _list, "show": _show, "why": _why, "sync": _sync, "rm": _remove, "gc": _remove}[verb](options)


def _parser(verb: str) -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {name:<6} {what}" for name, what in VERBS.items())
    parser = argparse.ArgumentParser(
        prog=f"python -m nocap.runs{'' if verb == 'list' else f' {verb}'}",
        description=VERBS[verb].capitalize(),
        epilog=f"{f'verbs:{chr(10)}{verbs}{chr(10)}{chr(10)}' if verb == 'list' else ''}{FORMS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(verb=verb)
    count = {"show": 1, "why": 2}.get(verb, "*")
    parser.add_argument("words", nargs=count, metavar="WORD" if count == "*" else "RUN", help="names and filters")
    parser.add_argument("--output-dir", type=Path, default=OUTPUTS, metavar="DIR", help=f"where the runs are (default: {OUTPUTS})")
    if verb == "list":
        from nocap.runs.columns import DEFAULT

        parser.add_argument("--columns", metavar="A,B", default=",".join(DEFAULT), help="columns or config keys (default: %(default)s)")
        parser.add_argument("--sort", metavar="COLUMN", default="started", help="the column to sort by (default: %(default)s)")
        parser.add_argument("--csv", type=Path, metavar="FILE", help="write them as CSV")
    if verb in ("list", "why"):
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the same as JSON")
    if verb in ("show", "rm", "gc"):
        parser.add_argument(
            "--studies",
            type=Path,
            default=Path("experiments"),
            metavar="DIR",
            help="whose logs may refer to a run (default: %(default)s)",
        )
    if verb in ("rm", "gc"):
        parser.add_argument("--yes", action="store_true", help="do it; without this, nothing is removed")
    outside.document(parser)
    return parser


def _chosen(words: Sequence[str], outputs: Path, *, named: bool = False) -> tuple[list[Listed], list[str]]:
    """The runs of these names and filters, and a line for each that cannot be read or was changed. With `named`, one that was changed is
    chosen by its name, where no filter believes what it says.

    Errors:
        ValueError: a name stands for no run, or a filter is none.
    """
    from nocap.runs.columns import is_filter, look, matching
    from nocap.store.find import find, run_folders

    names = [word for word in words if not is_filter(word)]
    found = [folder for name in names for folder in find(name, outputs=outputs)] if names else run_folders(outputs / "runs")
    believed = named and bool(words) and len(names) == len(words) and LAST not in names
    runs, problems = look({folder.resolve(): folder for folder in found}.values(), sound=not believed)
    for word in filter(is_filter, words):
        runs = matching(word, runs)
    return runs, problems


def _list(options: argparse.Namespace) -> int:
    from nocap.report.rows import to_csv
    from nocap.report.table import aligned
    from nocap.runs.columns import column, in_order, text
    from nocap.store.files import write_text
    from nocap.store.formats import plural
    from nocap.store.record import write_json, writing

    runs, problems = _chosen(options.words, options.output_dir)
    columns = [column(name, runs) for name in options.columns.split(",")]
    runs = in_order(runs, column(options.sort, runs))
    if runs:
        print(aligned([one.name for one in columns], [[text(one, run) for one in columns] for run in runs]))
    print(plural(len(runs), "run"))
    rows = [{one.name: one.of(run) for one in columns} for run in runs]
    if options.json:
        with writing("--json", options.json) as path:
            write_json(path, {"runs": rows, "problems": problems})
    if options.csv:
        with writing("--csv", options.csv) as path:
            write_text(path, to_csv(rows))
    _tell(problems)
    return 0


def _show(options: argparse.Namespace) -> int:
    from nocap.runs.columns import Listed
    from nocap.runs.shown import shown
    from nocap.store.find import find_one
    from nocap.store.runs import glance

    folder = find_one(options.words[0], outputs=options.output_dir)
    run = Listed(folder=folder, record=glance(folder))
    used_by, problems = _references(options)
    print(shown(run, used_by.get(run.record.identity, ())))
    _tell(problems)
    return 0


def _why(options: argparse.Namespace) -> int:
    from nocap.report.why import render, why
    from nocap.store.find import find_one
    from nocap.store.record import write_json, writing

    print(render(found := why(*(find_one(name, outputs=options.output_dir) for name in options.words))))
    if options.json:
        with writing("--json", options.json) as path:
            write_json(path, found)
    return 0


def _sync(options: argparse.Namespace) -> int:
    from nocap.store.formats import plural
    from nocap.store.tracking import offline

    runs, problems = _chosen(options.words, options.output_dir)
    named = {run.attempt.get("grid") for run in runs}
    grids = [folder for folder in sorted((options.output_dir / "grids").glob("[!.]*/")) if folder.name in named]
    folders = [*(run.folder for run in runs), *grids]
    waiting = offline(None, folders)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])  # a tool beside this Python
    for uploader, places in waiting.items():
        for start in range(0, len(places), AT_ONCE):
            batch = [str(place.absolute()) for place in places[start : start + AT_ONCE]]
            subprocess.run([*shlex.split(uploader), *batch], env={**os.environ, "PATH": path}, check=False)
    left = offline(None, folders)
    uploaded = sum(map(len, waiting.values())) - sum(map(len, left.values()))
    print(f"uploaded: {uploaded} of {sum(map(len, waiting.values()))} offline, of {plural(len(runs), 'run')}")
    _tell([*problems, *(f"{uploader} did not upload {place}" for uploader, places in left.items() for place in places)])
    return 1 if left else 0


def _remove(options: argparse.Namespace) -> int:
    from nocap.report.table import aligned
    from nocap.runs import removal
    from nocap.runs.columns import COLUMNS, DEFAULT, in_order, text
    from nocap.store.formats import plural, shorten, size

    checkpoints, root = options.verb == "gc", options.output_dir / "runs"
    require(checkpoints or bool(options.words), "rm", "be given runs or filters, as in rm status=failed", "none")
    runs, problems = _chosen(options.words, options.output_dir, named=True)
    frees = {run.folder: removal.freed(run, checkpoints=checkpoints) for run in in_order(runs, COLUMNS["started"])}
    runs = [run for run in in_order(runs, COLUMNS["started"]) if not checkpoints or frees[run.folder]]
    used_by, unknown = _references(options)
    shown = [COLUMNS[name] for name in (*DEFAULT[:4], "age")]
    rows = [
        [*(text(one, run) for one in shown), size(frees[run.folder]), shorten(used_by.get(run.record.identity, ()), most=3)] for run in runs
    ]
    if rows:
        print(aligned([*(one.name for one in shown), "frees", "used by"], [[cell or "–" for cell in row] for row in rows]))
    what = "checkpoints of " if checkpoints else ""
    if not options.yes:
        total = sum(frees[run.folder] for run in runs)
        print(f"{what}{plural(len(runs), 'run')}, {size(total)}: nothing was removed; --yes removes")
        _tell([*problems, *unknown])
        return 0
    kept = {run.folder: removal.remove(run, root=root, checkpoints=checkpoints) for run in runs}
    gone = [run for run in runs if kept[run.folder] is None]
    removal.sweep(root)
    print(f"removed: {what}{plural(len(gone), 'run')}, {size(sum(frees[run.folder] for run in gone))}")
    stayed = [f"not removed: {folder.name}: {reason}" for folder, reason in kept.items() if reason is not None]
    _tell([*problems, *unknown, *stayed])
    return 1 if stayed or (problems and options.words) else 0


def _references(options: argparse.Namespace) -> tuple[dict[str, list[str]], list[str]]:
    from nocap.runs.references import references

    return references((options.output_dir / "runs").glob("[!.]*"), outputs=options.output_dir, studies=options.studies)


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"nocap: {line}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
