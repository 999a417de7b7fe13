"""`python -m nocap.dashboard`: a saved workspace and a report in Weights & Biases for a grid, a
study or any runs."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap.command_line import command
from nocap.config import entry
from nocap.config.errors import EXIT_CODES, line_of
from nocap.config.keys import require
from nocap.launch.run_facts import born
from nocap.options.tracker.wandb.mirror_place import run_id
from nocap.options.tracker.wandb.names import curve_name
from nocap.row_keys import LINES, MODEL_MIB, STEP_MS, TOKENS_PER_S, TRAIN_LOSS, VAL_LOSS, clock_key
from nocap.store.record_files import read_json, write_json

if TYPE_CHECKING:
    from nocap.judge.comparison import Comparison
    from nocap.store.record import Curve, Record

SAVED = "dashboard.json"  # in a grid's or a study's folder: what was made of it in W&B


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """Says what a dashboard is about."""

    title: str
    # the runs' ids in W&B; of a study, whose records need not be here, identities
    runs: Sequence[str]
    verdicts: str  # Markdown
    comparison: Comparison | None = None  # None: of a study, whose runs need not be here


def main(argv: list[str] | None = None) -> int:
    answer = "both pages (needs no login; sends nothing)"
    return command(_parser(), _make, argv, answer=answer)


def _make(options: argparse.Namespace) -> int:
    path: Path = options.path
    if (path / "study.yaml").is_file():
        shown = _of_study(path)
    else:
        shown = _of_runs(str(path))
    entity = options.entity
    if not entity:
        entity = "" if options.json else _login()
    workspace, report = build(shown, entity=entity, project=options.project)
    if options.json:
        options.answer(as_json(workspace, report))
        return 0
    try:
        _save(workspace, report, path / SAVED)
        _write_verdicts(shown, f"{workspace.entity}/{workspace.project}")
    except Exception as error:  # whatever a server answers: nothing of nocap's depends on it
        print(f"nocap: W&B: nocap could not write the pages: {line_of(error)}", file=sys.stderr)
        return EXIT_CODES["failed"]
    return 0


def _save(workspace: Any, report: Any, saved: Path) -> None:
    """Save both, in place of those of before, whose ids a file in the grid's or the study's folder
    has."""
    before = read_json(saved, {}) or {}
    place = {"server": _server(), "entity": workspace.entity, "project": workspace.project}
    if all(before.get(key) == value for key, value in place.items()):
        workspace._internal_name = before["workspace_name"]
        workspace._internal_id = before["workspace"]
        report.id = before["report"]
    for made in (workspace, report):
        made.save()
        print(made.url)
    if saved.parent.is_dir():
        ids = {
            "workspace_name": workspace._internal_name,
            "workspace": workspace._internal_id,
            "report": report.id,
        }
        write_json(saved, place | ids)


def _server() -> str:
    import wandb

    return str(wandb.setup().settings.base_url)


def _parser() -> argparse.ArgumentParser:
    about = (
        "Make a saved workspace and a report in Weights & Biases, with the curves of each arm and "
        "the verdicts."
    )
    parser = argparse.ArgumentParser(prog="python -m nocap.dashboard", description=about)
    parser.add_argument(
        "path", type=Path, metavar="GRID|STUDY", help="folder of a grid or a study, or of any runs"
    )
    parser.add_argument(
        "--project",
        default=os.environ.get("WANDB_PROJECT") or "nocap",
        metavar="NAME",
        help="project of the runs (default: WANDB_PROJECT, or nocap)",
    )
    parser.add_argument(
        "--entity",
        default=os.environ.get("WANDB_ENTITY"),
        metavar="NAME",
        help="user or team (default: WANDB_ENTITY, or the entity of the login)",
    )
    return parser


# --- what it shows --------------------------------------------------------------------------------


def _of_runs(path: str) -> Shown:
    from nocap.judge.compare import compare
    from nocap.report.comparison_tables import all_tables, notes_on
    from nocap.report.headline import headline, next_step
    from nocap.report.table import one_line, tame
    from nocap.store.runs import load_runs

    comparison = compare(load_runs([path]))
    notes = notes_on(comparison)
    for line in notes:
        print(f"nocap: {line}", file=sys.stderr)
    lines = [f"**{one_line(headline(comparison))}**", ""]
    first = 3 if comparison.factors else 2
    for table in islice(all_tables(comparison), first):
        lines += [f"### {table.title}", "", *table.markdown(), "", *table.notes, ""]
    for line in [*notes, next_step(comparison)]:
        lines.append(f"* {one_line(line)}")
    return Shown(
        title=Path(path).absolute().name,
        runs=[_id_of(record) for record in comparison.records],
        verdicts=tame("\n".join(lines)),
        comparison=comparison,
    )


def _id_of(record: Record) -> str:
    return run_id(record.folder, identity=record.identity, born=born(record.manifest))


def _of_study(folder: Path) -> Shown:
    """Return what is shown of a study: the claims of its README's own part, and the runs of its
    log."""
    from nocap.config.untrusted_files import read_text
    from nocap.report.table import tame
    from nocap.study import log
    from nocap.study.study_pages import LEARNT

    lines = log.read_log(folder / log.FILE).of(log.RunLine, short=0)
    ended = dict.fromkeys(line.identity for line in lines)
    require(
        bool(ended),
        str(folder),
        "be the folder of a study with at least one finished run in its log",
        "none",
    )
    text = ""
    readme = folder / "README.md"
    if readme.is_file():
        text, _, _ = read_text(readme).partition(LEARNT)
    return Shown(title=folder.absolute().name, runs=[*ended], verdicts=tame(text))


# --- what it is made of ---------------------------------------------------------------------------


def build(shown: Shown, *, entity: str, project: str) -> tuple[Any, Any]:
    """Make the workspace and the report, not saved yet.

    Errors:
        ValueError: the library is missing.
    """
    ws, wr = _library()
    panels = {}
    for title, plots in _plots(wr, shown.comparison).items():
        panels[title] = list(_panels(wr, plots))
    verdicts = wr.MarkdownPanel(markdown=shown.verdicts, layout=wr.Layout(w=24, h=16))
    sections = [ws.Section(name="Verdicts", panels=[verdicts], is_open=True)]
    for title, section_panels in panels.items():
        is_open = title != CLOCK
        sections.append(ws.Section(name=title, panels=section_panels, is_open=is_open))
    key = ws.Metric("ID") if shown.comparison else ws.Config("identity")
    ids = ws.And(key.isin(list(shown.runs)))
    by_arm = [ws.Config(key) for key in ARM]
    workspace = ws.Workspace(
        entity=entity,
        project=project,
        name=f"nocap: {shown.title}",
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis="step", smoothing_type="none", max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=ids, groupby=by_arm, pinned_columns=list(COLUMNS)
        ),
    )
    # A set of runs without a project is of the report's own: with one, the library would ask a
    # server now.
    blocks: list[Any] = [wr.MarkdownBlock(text=shown.verdicts)]
    for title, section_panels in panels.items():
        runset = wr.Runset(
            name=shown.title,
            filters=ids,
            groupby=[f"config.{key}" for key in ARM],
            pinned_columns=list(COLUMNS),
        )
        blocks.append(wr.H2(text=title))
        blocks.append(wr.PanelGrid(runsets=[runset], panels=section_panels))
    report = wr.Report(
        entity=entity, project=project, title=f"nocap: {shown.title}", width="fluid", blocks=blocks
    )
    return workspace, report


def as_json(workspace: Any, report: Any) -> dict[str, Any]:
    """Return both as the library sends them."""
    return {"workspace": _as_sent(workspace), "report": _as_sent(report)}


def _as_sent(made: Any) -> Any:
    return made._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)


# a curve's two names
AXES = {
    "steps": ("step", "step"),
    "tokens": ("tokens", "tokens"),
    "seconds of training": (clock_key("train"), "train_s"),
}
LOSS = curve_name(VAL_LOSS)
SPREAD = {"groupby_aggfunc": "mean", "groupby_rangefunc": "stddev", "max_runs_to_show": 100}
MOST_KEYS = 8  # that stand side by side
FIRST = 0.1  # of a run: so far the loss falls so much that nothing later could be told apart
CLOCK = "Where the time went"
# of a run's config: its name for people, and what two arms of one name differ in
ARM = ("arm", "arm_id")
COLUMNS = (
    "run:displayName",
    "config:arm.value",
    "config:seed.value",
    "summary:eval/loss",
    "summary:perf/tokens_per_s",
    "summary:verdict",
)


def _plots(wr: Any, comparison: Comparison | None) -> Mapping[str, list[Any]]:
    """Draw the plots of each section. Runs are grouped by arm, each arm by itself: a line is the
    mean over seeds, the band their standard deviation. Of a study the ranges are W&B's own."""
    runs: list[Record] = []
    for row in comparison.rows if comparison else []:
        runs += row.arm.runs
    return {
        "Loss": list(_of_loss(wr, runs)),
        **_by_keys(wr, comparison),
        "Speed and memory": list(_of_speed(wr)),
        CLOCK: list(_of_clock(wr, comparison)),
    }


def _of_loss(wr: Any, runs: Sequence[Record]) -> Iterator[Any]:
    final = _range([run.val_loss for run in runs])
    yield wr.BarPlot(title="final validation loss", metrics=[LOSS], range_x=final, **SPREAD)
    curves = [run.curve for run in runs]
    starts = {by: (_start(curves, name), None) for by, (_, name) in AXES.items()}
    losses = _range(_late_losses(curves))
    for by, (axis, _) in AXES.items():
        yield wr.LinePlot(
            title=f"validation loss by {by}",
            x=axis,
            range_x=starts[by],
            y=[LOSS],
            range_y=losses,
            **SPREAD,
        )
    yield wr.LinePlot(
        title="training loss by steps",
        x="step",
        y=[TRAIN_LOSS],
        range_x=starts["steps"],
        **SPREAD,
    )


def _start(curves: Sequence[Curve], name: str) -> float | None:
    """Return where an axis begins that leaves out the first part of the runs."""
    end = 0.0
    for curve in curves:
        known = [x for x in getattr(curve, name) if x]
        end = max([end, *known])
    return FIRST * end or None


def _late_losses(curves: Sequence[Curve]) -> list[float]:
    """Return the validation losses after the first part of the runs."""
    rows: list[tuple[int, float]] = []
    for curve in curves:
        rows += zip(curve.step, curve.val_loss, strict=True)
    last = max((step for step, _ in rows), default=0)
    return [loss for step, loss in rows if step >= FIRST * last]


def _of_speed(wr: Any) -> Iterator[Any]:
    metrics = {
        "tokens/s": TOKENS_PER_S,
        "ms a step": STEP_MS,
        "memory, MiB": curve_name(MODEL_MIB),
    }
    for title, metric in metrics.items():
        yield wr.BarPlot(title=title, metrics=[metric], **SPREAD)
    yield wr.LinePlot(title="tokens/s by steps", x="step", y=[TOKENS_PER_S], **SPREAD)


def _of_clock(wr: Any, comparison: Comparison | None) -> Iterator[Any]:
    for line in LINES:
        if comparison and not any(row.clock_s.get(line) for row in comparison.rows):
            continue
        yield wr.BarPlot(title=f"{line}, s", metrics=[clock_key(line)], **SPREAD)


def _by_keys(wr: Any, comparison: Comparison | None) -> dict[str, list[Any]]:
    """Draw each run of a grid that sweeps two keys or more as a line through its keys, loss and
    speed."""
    keys = comparison.swept if comparison else []
    if len(keys) < 2:
        return {}
    axes = [wr.Config(key) for key in keys[:MOST_KEYS]]
    axes.append(wr.SummaryMetric(LOSS))
    axes.append(wr.SummaryMetric(TOKENS_PER_S))
    columns = [wr.ParallelCoordinatesPlotColumn(metric=axis) for axis in axes]
    plot = wr.ParallelCoordinatesPlot(title="keys, loss and speed", columns=columns)
    return {"By key": [plot]}


def _range(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the range of an axis that holds these values and little else, so that it sets them
    apart."""
    from nocap.report.axis import axis

    known = [value for value in values if value is not None]
    scale = axis(known) if known else None
    if scale is None:
        return None, None
    return scale.low, scale.high


def _panels(wr: Any, plots: Sequence[Any]) -> Iterator[Any]:
    """Place these plots, three side by side."""
    for i, plot in enumerate(plots):
        plot.layout = wr.Layout(x=8 * (i % 3), y=6 * (i // 3), w=8, h=6)
        yield plot


def _write_verdicts(shown: Shown, project: str) -> None:
    """Write the arm's verdict into the summary of each run, where the table of runs has its columns
    from."""
    import wandb

    if shown.comparison is None:
        return
    for row in shown.comparison.rows:
        verdict = row.difference.word_with_reason if row.difference else "baseline"
        for run in row.arm.runs:
            mirror = wandb.Api().run(f"{project}/{_id_of(run)}")
            mirror.summary["verdict"] = verdict
            mirror.summary.update()  # type: ignore[no-untyped-call]


def _library() -> tuple[Any, Any]:
    try:
        with warnings.catch_warnings(action="ignore"):  # it is written for an older pydantic
            import wandb_workspaces.reports.v2 as wr
            import wandb_workspaces.workspaces as ws
    except ModuleNotFoundError as error:
        raise ValueError(
            f"a dashboard needs {error.name}: pip install 'nocap[dashboard]'"
        ) from error
    return ws, wr


def _login() -> str:
    """Return the account that is logged in.

    Errors:
        ValueError: nobody is.
    """
    import wandb

    try:
        wandb.setup(settings=wandb.Settings(silent=True))
        logged_in = wandb.login(prompt=False, verify=False)
    except Exception as error:  # a key or an address that its client does not take
        raise ValueError(f"W&B: no login: {line_of(error)}") from error
    if not logged_in:
        raise ValueError(
            "a dashboard needs a W&B login: type wandb login (--json FILE needs no login)"
        )
    try:
        return str(wandb.Api().default_entity)
    except Exception as error:  # a key that is none, no network
        raise OSError(f"W&B: cannot get the account of this login: {line_of(error)}") from error


if __name__ == "__main__":
    entry.run(main)
