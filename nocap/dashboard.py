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

from nocap.config import entry
from nocap.config.keys import EXIT_CODES, line_of, require
from nocap.launch.head import born
from nocap.options.tracker.wandb import name_there, run_id
from nocap.store.command import command
from nocap.store.record import read_json, write_json
from nocap.training.ledger import LINES

if TYPE_CHECKING:
    from nocap.judge.compared import Comparison
    from nocap.store.runs import Record

SAVED = "dashboard.json"  # in a grid's or a study's folder: what was made of it in W&B


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """Says what a dashboard is about."""

    title: str
    runs: Sequence[
        str
    ]  # the runs' ids in W&B; of a study, whose records need not be here, identities
    verdicts: str  # Markdown
    comparison: Comparison | None = None  # None: of a study, whose runs need not be here


def main(argv: list[str] | None = None) -> int:
    return command(
        _parser(), _make, argv, answer="what would be made (and make nothing, which needs no login)"
    )


def _make(options: argparse.Namespace) -> int:
    shown = (
        _of_study(options.path)
        if (options.path / "study.yaml").is_file()
        else _of_runs(str(options.path))
    )
    workspace, report = build(
        shown, entity=options.entity or ("" if options.json else _login()), project=options.project
    )
    if options.json:
        options.answer(as_json(workspace, report))
        return 0
    try:
        _save(workspace, report, options.path / SAVED)
        _tell(shown, f"{workspace.entity}/{workspace.project}")
    except Exception as error:  # whatever a server answers: nothing of nocap's depends on it
        print(f"nocap: W&B: not written: {line_of(error)}", file=sys.stderr)
        return EXIT_CODES["failed"]
    return 0


def _save(workspace: Any, report: Any, saved: Path) -> None:
    """Save both, in place of those of before, whose ids a file in the grid's or the study's folder
    has."""
    before = read_json(saved, {}) or {}
    place = {"server": _server(), "entity": workspace.entity, "project": workspace.project}
    if {key: before.get(key) for key in place} == place:
        workspace._internal_name, workspace._internal_id = (
            before["workspace_name"],
            before["workspace"],
        )
        report.id = before["report"]
    for made in (workspace, report):
        made.save()
        print(made.url)
    ids = {"workspace_name": workspace._internal_name, "workspace": workspace._internal_id}
    if saved.parent.is_dir():
        write_json(saved, {**place, **ids, "report": report.id})


def _server() -> str:
    import wandb

    return str(wandb.setup().settings.base_url)


def _parser() -> argparse.ArgumentParser:
    about = (
        "Make a saved workspace and a report in Weights & Biases, with curves by arm and the "
        "verdicts."
    )
    parser = argparse.ArgumentParser(prog="python -m nocap.dashboard", description=about)
    parser.add_argument(
        "path", type=Path, metavar="GRID|STUDY", help="a folder of a grid or a study, or any runs"
    )
    parser.add_argument(
        "--project",
        default=os.environ.get("WANDB_PROJECT") or "nocap",
        metavar="NAME",
        help="where the runs are (default: WANDB_PROJECT, or nocap)",
    )
    parser.add_argument(
        "--entity",
        default=os.environ.get("WANDB_ENTITY"),
        metavar="NAME",
        help="the account or team (default: WANDB_ENTITY, or the login's)",
    )
    return parser


# --- what it shows --------------------------------------------------------------------------------


def _of_runs(path: str) -> Shown:
    from nocap.judge.compare import compare
    from nocap.report.arms import all_tables, notes_on
    from nocap.report.headline import headline, next_step
    from nocap.report.table import one_line, tame
    from nocap.store.runs import load

    comparison = compare(load([path]))
    notes = notes_on(comparison)
    for line in notes:
        print(f"nocap: {line}", file=sys.stderr)
    told = [
        "\n".join([f"### {table.title}", "", *table.markdown(), "", *table.notes, ""])
        for table in islice(all_tables(comparison), 3 if comparison.factors else 2)
    ]
    if (more := next_step(comparison)) is not None:
        notes.append(more)
    head = [f"**{one_line(headline(comparison))}**", ""]
    verdicts = tame("\n".join([*head, *told, *(f"* {one_line(line)}" for line in notes)]))
    runs = [_id_of(record) for record in comparison.records]
    return Shown(
        title=Path(path).absolute().name, runs=runs, verdicts=verdicts, comparison=comparison
    )


def _id_of(record: Record) -> str:
    return run_id(record.folder, identity=record.identity, born=born(record.manifest))


def _of_study(folder: Path) -> Shown:
    """Return what is shown of a study: the claims of its README's own part, and the runs of its
    log."""
    from nocap.config.bounded import read_text
    from nocap.report.table import tame
    from nocap.study import log
    from nocap.study.pages import LEARNT

    ended = [line.identity for line in log.read(folder / log.FILE).of(log.RunLine, short=0)]
    require(bool(ended), str(folder), "be a study with finished runs in its log", "none")
    text = (
        read_text(folder / "README.md").partition(LEARNT)[0]
        if (folder / "README.md").is_file()
        else ""
    )
    return Shown(title=folder.absolute().name, runs=list(dict.fromkeys(ended)), verdicts=tame(text))


# --- what it is made of ---------------------------------------------------------------------------


def build(shown: Shown, *, entity: str, project: str) -> tuple[Any, Any]:
    """Make the workspace and the report, not saved yet.

    Errors:
        ValueError: the library is missing.
    """
    ws, wr = _library()
    panels = {
        title: list(_panels(wr, plots)) for title, plots in _plots(wr, shown.comparison).items()
    }
    verdicts = wr.MarkdownPanel(markdown=shown.verdicts, layout=wr.Layout(w=24, h=16))
    sections = [
        ws.Section(name=title, panels=section_panels, is_open=title != CLOCK)
        for title, section_panels in {"Verdicts": [verdicts], **panels}.items()
    ]
    key = ws.Metric("ID") if shown.comparison else ws.Config("identity")
    ids = ws.And(key.isin(list(shown.runs)))
    workspace = ws.Workspace(
        entity=entity,
        project=project,
        name=f"nocap: {shown.title}",
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis="step", smoothing_type="none", max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=ids, groupby=[ws.Config(key) for key in ARM], pinned_columns=[*COLUMNS]
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
            pinned_columns=[*COLUMNS],
        )
        blocks += [wr.H2(text=title), wr.PanelGrid(runsets=[runset], panels=section_panels)]
    return workspace, wr.Report(
        entity=entity, project=project, title=f"nocap: {shown.title}", width="fluid", blocks=blocks
    )


def as_json(workspace: Any, report: Any) -> dict[str, Any]:
    """Return both as the library sends them."""
    return {
        name: made._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)
        for name, made in {"workspace": workspace, "report": report}.items()
    }


AXES = {
    "steps": ("step", "step"),
    "tokens": ("tokens", "tokens"),
    "seconds of training": ("clock/train_s", "train_s"),
}  # a curve's two names
LOSS = name_there("val/loss")
MOST_KEYS = 8  # that stand side by side
FIRST = 0.1  # of a run: so far the loss falls so much that nothing later could be told apart
CLOCK = "Where the time went"
ARM = (
    "arm",
    "arm_id",
)  # of a run's config: its name for people, and what two arms of one name differ in
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
    spread = {"groupby_aggfunc": "mean", "groupby_rangefunc": "stddev", "max_runs_to_show": 100}
    speed = {
        "tokens/s": "perf/tokens_per_s",
        "ms a step": "perf/step_ms",
        "memory, MiB": name_there("memory/model_mib"),
    }
    runs = [run for row in comparison.rows for run in row.arm.runs] if comparison else []
    curves = [run.curve for run in runs]
    late = [
        (step, loss)
        for curve in curves
        for step, loss in zip(curve.step, curve.val_loss, strict=True)
    ]
    falling = _range([loss for step, loss in late if step >= FIRST * max(late)[0]])
    starts = {
        by: (
            FIRST * max((x for curve in curves for x in getattr(curve, name) if x), default=0.0)
            or None,
            None,
        )
        for by, (_, name) in AXES.items()
    }
    lines = [
        line
        for line in LINES
        if not comparison or any(row.clock_s.get(line) for row in comparison.rows)
    ]
    curve = {"y": [LOSS], "range_y": falling, **spread}
    return {
        "Loss": [
            wr.BarPlot(
                title="final validation loss",
                metrics=[LOSS],
                range_x=_range([run.val_loss for run in runs]),
                **spread,
            ),
            *(
                wr.LinePlot(title=f"validation loss by {by}", x=axis, range_x=starts[by], **curve)
                for by, (axis, _) in AXES.items()
            ),
            wr.LinePlot(
                title="training loss by steps",
                x="step",
                y=["train/loss"],
                range_x=starts["steps"],
                **spread,
            ),
        ],
        **_by_keys(wr, comparison),
        "Speed and memory": [
            *(
                wr.BarPlot(title=title, metrics=[metric], **spread)
                for title, metric in speed.items()
            ),
            wr.LinePlot(title="tokens/s by steps", x="step", y=["perf/tokens_per_s"], **spread),
        ],
        CLOCK: [
            wr.BarPlot(title=f"{line}, s", metrics=[f"clock/{line}_s"], **spread) for line in lines
        ],
    }


def _by_keys(wr: Any, comparison: Comparison | None) -> dict[str, list[Any]]:
    """Draw each run of a grid that sweeps two keys or more as a line through its keys, loss and
    speed."""
    keys = comparison.swept if comparison else []
    if len(keys) < 2:
        return {}
    axes = [wr.Config(key) for key in keys[:MOST_KEYS]]
    axes += [wr.SummaryMetric(LOSS), wr.SummaryMetric("perf/tokens_per_s")]
    columns = [wr.ParallelCoordinatesPlotColumn(metric=axis) for axis in axes]
    return {"By key": [wr.ParallelCoordinatesPlot(title="keys, loss and speed", columns=columns)]}


def _range(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the range of an axis that holds these values and little else, so that it sets them
    apart."""
    from nocap.report.forest import axis

    known = [value for value in values if value is not None]
    return (scale.low, scale.high) if known and (scale := axis(known)) else (None, None)


def _panels(wr: Any, plots: Sequence[Any]) -> Iterator[Any]:
    """Place these plots, three side by side."""
    for i, plot in enumerate(plots):
        plot.layout = wr.Layout(x=8 * (i % 3), y=6 * (i // 3), w=8, h=6)
        yield plot


def _tell(shown: Shown, project: str) -> None:
    """Write the arm's verdict into the summary of each run, where the table of runs has its columns
    from."""
    import wandb

    for row in shown.comparison.rows if shown.comparison else []:
        for run in row.arm.runs:
            there = wandb.Api().run(f"{project}/{_id_of(run)}")
            there.summary["verdict"] = row.difference.verdict if row.difference else "baseline"
            there.summary.update()  # type: ignore[no-untyped-call]


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
            "a dashboard is made in a W&B account, and there is no login: wandb login (--json "
            "FILE needs none)"
        )
    try:
        return str(wandb.Api().default_entity)
    except Exception as error:  # a key that is none, no network
        raise OSError(f"W&B: no account by this login: {line_of(error)}") from error


if __name__ == "__main__":
    entry.run(main)
