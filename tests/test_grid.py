"""Grids: checked whole, ordered by seed, each cell once, whatever breaks, and the same command goes
on."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from nocap.config.compose import compose, composed
from nocap.config.flags import GridFlags, parse
from nocap.config.paths import conf_dir
from nocap.config.plain import load, to_plain
from nocap.launch.cluster_cell import planned_cell
from nocap.launch.grid import plan_grid
from nocap.launch.multirun import multirun, print_plan
from nocap.launch.run_facts import run_facts
from tests.attempts import on_a_terminal, processes, sealed, wait_until
from tests.conftest import EXPLODING, REPO, SMALL, called
from tests.grids import CELL, Background, records, summaries, trained
from tests.grids import small_grid as small_grid
from tests.test_tracking import inspect

# What the command of a finished grid does without.
TRAINING = ("torch", "wandb", "tqdm", "optuna", "submitit", "ray", "tiktoken", "safetensors")
DRAWING = ("jinja2", "markupsafe", "matplotlib", "pandas")
ROOMS = ("nocap.sessions", "nocap.sources", "nocap.study", "nocap.measure", "nocap.model")
OF_PAGES = (
    "nocap.report.comparison_page",
    "nocap.report.html_page",
    "nocap.report.comparison_charts",
)
OF_CLAIMS = ("nocap.judge.claim", "nocap.judge.verdict", "nocap.judge.races", "nocap.judge.power")

# --- the whole grid, checked ----------------------------------------------------------------------


def checked(out, *cells, swept=("attention", "seed"), said=None):
    words = [[*CELL, f"output_dir={out}", *cell.split()] for cell in cells]
    say = (said if said is not None else []).append
    return plan_grid(words, swept=swept, compose=composed, log=say)


@pytest.mark.slow
def test_every_arm_of_a_seed_comes_before_the_next_seed(tmp_path):
    arms = []
    for a in ("gqa", "flash"):
        for m in ("relu2", "gelu4x"):
            arms.append(f"attention={a} mlp={m}")
    grid = checked(
        tmp_path,
        *(f"{arm} seed={seed}" for arm in arms for seed in (1, 0)),
        swept=("attention", "mlp", "seed"),
    )
    labels = [cell.label for cell in grid.cells]
    expected = [f"{arm} seed={seed}" for seed in (1, 0) for arm in arms]
    assert labels == expected
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_cells_are_composed_as_single_runs_are(tmp_path):
    """What is remembered from one cell to the next leaves no trace in it, in whatever order they
    come."""
    arms = (
        "attention=sliding mlp=swiglu",
        "attention=flash",
        "schedule=cosine position=none",
        "attention=gqa optimizer=muon",
        "attention=flash",
    )
    cells = [[*CELL, *arm.split(), "seed=1"] for arm in (*arms, *reversed(arms))]
    expected = [compose(list(words)) for words in cells]
    assert [composed(words).run for words in cells] == expected
    run = composed(cells[0])
    assert run.choices["attention"] == "sliding"
    with pytest.raises(ValueError, match="seed"):
        composed([*CELL, "attention=flash", "seed=abc"])
    run = composed(cells[1])
    assert run.run == expected[1]


def test_the_first_cell_decides_the_compilation_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr("nocap.config.hardware.cpp_compiler", lambda: "/usr/bin/g++")
    shape = ("tracker=none", "data=synthetic", "trainer.device=cpu", "trainer.threads=1")
    first = (*shape, f"output_dir={tmp_path}", "model=nano")
    second = (*shape, f"output_dir={tmp_path}", "model=small")
    trainer = composed(second).run.trainer
    assert trainer.compile.value == "regional"
    grid = plan_grid([first, second], swept=("model",), compose=composed, log=print)
    values = [cell.plan.run.trainer.compile.value for cell in grid.cells]
    assert values == ["off", "off"]
    again = [composed(cell.overrides).run for cell in grid.cells]  # as a job of its own composes it
    assert again == [cell.plan.run for cell in grid.cells]


FITTING = ("model.n_head=2,4", "attention.n_kv_heads=1,4")
MISFIT = "attention.n_kv_heads must divide model.n_head=2, got 4"


def test_what_is_refused_is_left_out_and_named_and_the_rest_is_the_same_grid(tmp_path, capsys):
    """As of the cells that fit, typed one by one."""
    words = [*CELL, f"output_dir={tmp_path}", *FITTING, "seed=0,1"]
    seen = []
    look = lambda grid: seen.append(grid) or ""  # noqa: E731
    print_plan(words, GridFlags(skip_refused=True), look)
    said = capsys.readouterr().out
    assert f"left out: model.n_head=2 attention.n_kv_heads=4: {MISFIT}\n" in said
    pairs = ("2 1", "4 1", "4 4")
    shapes = [pair.split() for pair in pairs]
    arms = [f"model.n_head={heads} attention.n_kv_heads={kv}" for heads, kv in shapes]
    typed = []
    for arm in arms:
        for seed in (0, 1):
            typed.append(f"{arm} seed={seed}")
    expected = checked(tmp_path, *typed, swept=("model.n_head", "attention.n_kv_heads", "seed"))
    labels = [cell.label for cell in seen[0].cells]
    assert labels == [cell.label for cell in expected.cells]
    assert seen[0].folder == expected.folder
    left_out = [(each.cells, each.reason) for each in seen[0].left_out]
    assert left_out == [(2, MISFIT)]
    seen[0].write()
    text = (seen[0].folder / "grid.json").read_text()
    (row,) = json.loads(text)["left_out"]
    assert row["arm"] == "model.n_head=2 attention.n_kv_heads=4"


def test_a_grid_of_which_nothing_fits_is_refused(tmp_path):
    words = [*CELL, f"output_dir={tmp_path}", "model.n_head=2", "attention.n_kv_heads=3,4"]
    with pytest.raises(ValueError, match="nocap refused 2 of 2 cells, and trained none"):
        print_plan(words, GridFlags(skip_refused=True), str)
    searched = [*words, "search=random", "optimizer.lr=interval(1e-4,1e-2)"]
    with pytest.raises(ValueError, match="--skip-refused does not work with search="):
        multirun(searched, GridFlags(skip_refused=True))


def test_a_run_that_is_asked_for_twice_is_trained_once_and_that_is_said(tmp_path):
    said = []
    grid = checked(
        tmp_path,
        "attention=mqa",
        "attention=gqa attention.n_kv_heads=1",
        "attention=gqa",
        said=said,
    )
    labels = [cell.label for cell in grid.cells]
    assert labels == ["attention=mqa", "attention=gqa"]
    assert said == [
        "these two cells are the same run, which trains once: attention=gqa and attention=mqa"
    ]


def test_the_same_runs_are_the_same_grid(tmp_path):
    first = checked(tmp_path, "attention=flash seed=0", "attention=gqa seed=0")
    first.write()
    again = checked(
        tmp_path, "seed=0 attention=gqa", "seed=0 attention=flash", swept=("seed", "attention")
    )
    assert again.name == first.name
    assert again.folder == first.folder
    assert first.name[:15] == "attention-seed-"
    grid = checked(tmp_path, "attention=flash seed=0", "attention=gqa seed=1")
    assert grid.name != first.name
    grids = {cell.plan.grid for cell in again.cells}
    assert grids == {first.name}
    text = (first.folder / "grid.json").read_text()
    written = json.loads(text)["cells"]
    expected = [(cell.plan.identity, cell.plan.run_dir.name) for cell in first.cells]
    assert [(cell["identity"], cell["run"]) for cell in written] == expected


def test_every_bad_cell_is_named(tmp_path):
    bad = (
        r"^attention=gqq: .*\nattention=gqa seed=-1: seed must be at least 0, got -1\nnocap "
        r"refused "
        r"2 of 3 cells"
    )
    with pytest.raises(ValueError, match=bad):
        checked(tmp_path, "attention=gqa", "attention=gqq", "attention=gqa seed=-1")
    # two factors of which not each pair fits
    pairs = [f"optimizer=schedule_free schedule={name}" for name in ("constant", "cosine")]
    bad = (
        rf"^{pairs[1]}: schedule must end at the peak .* got cosine\nnocap refused 1 of "
        rf"2 cells"
    )
    with pytest.raises(ValueError, match=bad):
        checked(tmp_path, *pairs, swept=("optimizer", "schedule"))
    with pytest.raises(ValueError, match="output_dir must be the same for all cells"):
        checked(tmp_path, f"output_dir={tmp_path / 'a'}", f"output_dir={tmp_path / 'b'}")


def test_a_grid_with_a_bad_cell_trains_and_writes_nothing(tmp_path, here):
    done = here("--multirun", *CELL, "model.n_head=3,4", "seed=0,1")
    rule = "model.d_model must be divisible by model.n_head=3, got 64"
    lines = [
        *(f"model.n_head=3 seed={seed}: {rule}" for seed in (0, 1)),
        "nocap refused 2 of 4 cells, and trained none (--skip-refused trains the others)",
    ]
    assert done.code == 2
    assert done.out == ""
    assert done.err == "".join(f"nocap: {line}\n" for line in lines)
    assert not list(tmp_path.iterdir())


COMMAND_LINES = [
    ("a=b --multirun c=d", "a=b c=d", True, None),
    ("a=b,c --zip", "a=b,c", True, None),
    ("search=tpe a=interval(0,1)", "search=tpe a=interval(0,1)", True, None),
    ("a=b --cfg job", "a=b", False, None),
    ("a=b --info", "a=b", False, "all"),
    ("--info defaults a=b", "a=b", False, "defaults"),
    ("~a --resolve +b=c --cfg job", "~a +b=c", False, None),
    ("a=-1 -m", "a=-1", True, None),
    ("", "", False, None),
]


@pytest.mark.parametrize(("words", "overrides", "grid", "info"), COMMAND_LINES)
def test_flags_may_stand_anywhere(words, overrides, grid, info):
    flags = parse(words.split())
    assert flags.overrides == overrides.split()
    assert flags.is_grid == grid
    assert flags.info == info


@pytest.mark.slow
def test_a_yamls_sweeps_are_a_grids_and_the_command_goes_before_them(tmp_path, monkeypatch):
    conf = shutil.copytree(conf_dir(), tmp_path / "conf")
    grids = []
    sweep = "{sweeper: {params: {attention: 'flash,gqa', norm: glob(rms*), seed: '1,2'}}}"
    (conf / "experiment" / "mine.yaml").write_text(f"# @package _global_\nhydra: {sweep}\n")
    for module in ("config.choices", "outside"):
        monkeypatch.setattr(f"nocap.{module}.conf_dir", lambda: conf)
    words = [*CELL, "experiment=mine", "seed=0", f"output_dir={tmp_path}"]
    print_plan(words, GridFlags(), lambda grid: grids.append(grid) or "")
    runs = [cell.plan.run for cell in grids[0].cells]
    assert {run.attention.n_kv_heads for run in runs} == {2, 4}
    assert {run.seed for run in runs} == {0}
    assert len(runs) == 4


def test_a_yamls_sweeps_make_a_grid_without_the_flag(tmp_path, here):
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    sweep = "# @package _global_\nhydra: {sweeper: {params: {seed: '1,2'}}}\n"
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(sweep)
    done = here("--config-dir", "own", *SMALL, "experiment=mine", "trainer.steps=1")
    assert done.code == 0, done.err
    assert "2 cells, 0 done, 2 to train" in done.out
    paths = (tmp_path / "outputs" / "runs").iterdir()
    assert len([*paths]) == 2


def test_what_is_swept_goes_in_pairs_with_every_seed(tmp_path):
    grids = []
    words = [
        *CELL,
        "attention=flash,gqa",
        "optimizer.lr=0.1,0.2",
        "seed=range(0,2)",
        f"output_dir={tmp_path}",
    ]
    print_plan(words, GridFlags(zip=True), lambda grid: grids.append(grid) or "")
    labels = [cell.label for cell in grids[0].cells]
    expected = []
    for seed in (0, 1):
        for arm in ("attention=flash optimizer.lr=0.1", "attention=gqa optimizer.lr=0.2"):
            expected.append(f"seed={seed} {arm}")
    assert labels == expected
    words = [*CELL, "attention=flash,gqa", "optimizer.lr=0.1,0.2,0.3"]
    with pytest.raises(ValueError, match=r"^--zip must have lists of equal length, got \[2, 3\]$"):
        multirun(words, GridFlags(zip=True))


# --- trained, skipped, gone on with ---------------------------------------------------------------


def test_grid_trains_its_cells_by_seed_and_ends_with_the_comparison(small_grid):
    printed = small_grid.process.out
    expected = []
    for seed in (0, 1):
        for arm in ("flash", "gqa"):
            expected.append(f"attention={arm} seed={seed}")
    assert trained(printed) == expected
    matches = re.findall(r"^\[\d/4\] done .* val \d\.\d{4} ", printed, re.M)
    assert len(matches) == 4
    (folder,) = (small_grid.out / "grids").iterdir()
    command = f"python -m nocap.compare {folder.relative_to(small_grid.out.parent)}"
    for text in ("4 finished; 4 trained now", "2 arms from 4 runs", command):
        assert text in printed
    assert "\x1b" not in printed
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["grid.json", "report.html"]
    assert "2 arms" in (folder / "report.html").read_text()
    statuses = {summary["status"] for summary in summaries(small_grid.out).values()}
    assert statuses == {"finished"}
    for run_dir in small_grid.out.glob("runs/*"):  # one group of the tracker
        manifest = json.loads((run_dir / "manifest.json").read_text())
        assert manifest["attempts"][-1]["grid"] == folder.name
        assert manifest["attempts"][-1]["asked"]["seeds"] == [0, 1]
        content = load(run_dir / "config.yaml")
        group = run_facts(to_plain(content), run_dir, manifest).group
        assert group == folder.name
        assert folder.name not in json.dumps(manifest["parts"])
        assert "val" in (run_dir / "train.log").read_text()


@pytest.mark.slow
def test_a_cell_keeps_the_weights_that_were_asked_for(tmp_path, here, small_grid):
    """And says why it has no others."""
    assert not list(small_grid.out.glob("runs/*/checkpoints/*"))
    run_dir = sorted(small_grid.out.glob("runs/*"))[0]
    refused = here(f"run={run_dir}", module="nocap.generate")
    assert refused.code == 2
    assert refused.err == (
        f"nocap: {run_dir} must hold a checkpoint, got none; a grid keeps only the checkpoints of "
        "trainer.keep_steps\n"
    )
    done = here("--multirun", *CELL, "seed=0", "attention=flash,gqa", "trainer.keep_steps=[3]")
    assert done.code == 0
    kept = [path.name for path in tmp_path.glob("outputs/runs/*/checkpoints/*")]
    assert kept == ["step-00000003", "step-00000003"]


def test_where_no_worker_can_be_forked_each_log_says_so(small_grid):
    """The shared grid's workers run in the process of the tests."""
    note = "a process that imports torch itself: workers are forked on Linux only"
    for path in small_grid.out.glob("runs/*/train.log"):
        assert note in path.read_text()


def test_a_clusters_job_knows_which_seeds_of_its_arm_were_asked_for(tmp_path):
    cells = ("attention=flash seed=0", "attention=flash seed=1", "attention=gqa seed=5")
    grid = checked(tmp_path, *cells)
    grid.write()
    jobs = [planned_cell(grid.folder, cell.plan.identity) for cell in grid.cells]
    expected = [cell.plan.request for cell in grid.cells]
    assert [job.request for job in jobs] == expected
    seeds = sorted({job.request.seeds for job in jobs})
    assert seeds == [(0, 1), (5,)]
    assert [job.request.position for job in jobs] == [0, 0, 1]


def test_finished_cells_are_skipped_whoever_ran_them(small_grid, here):
    paths = small_grid.out.glob("runs/*/*.json*")
    before = {path: path.read_bytes() for path in paths}
    done = here(
        *CELL, "--multirun", "seed=1,0", "attention=gqa,flash", f"output_dir={small_grid.out}"
    )
    assert done.code == 0
    assert done.err == ""
    assert trained(done.out) == []
    assert "4 finished; 0 trained now" in done.out
    assert "2 arms from 4 runs" in done.out
    paths = small_grid.out.glob("runs/*/*.json*")
    assert {path: path.read_bytes() for path in paths} == before
    assert len(list((small_grid.out / "grids").iterdir())) == 1
    single = here(*CELL, "attention=gqa", f"output_dir={small_grid.out}")
    assert single.code == 0
    assert single.out.startswith("the run has already finished")


@pytest.mark.slow
def test_a_finished_grid_imports_neither_what_trains_nor_what_draws_pages(small_grid):
    words = (*CELL, "--multirun", "seed=0,1", "attention=flash,gqa", f"output_dir={small_grid.out}")
    called(*words, cwd=small_grid.out.parent)  # whose page has the command of this folder
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nocap.train", *words],
        cwd=small_grid.out.parent,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "4 finished; 0 trained now" in done.stdout
    assert "compare: python -m nocap.compare" in done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "nocap.judge.compare" in imported
    assert "nocap.report.comparison_tables" in imported
    tops = {name.partition(".")[0] for name in imported}
    assert not tops & {*TRAINING, *DRAWING}
    rooms = {".".join(name.split(".")[:2]) for name in imported}
    assert not rooms & {*ROOMS}
    assert not imported & {*OF_PAGES, *OF_CLAIMS}


def test_the_page_of_a_finished_grid_is_drawn_again_only_when_its_comparison_changes(
    small_grid, tmp_path, here
):
    out = shutil.copytree(small_grid.out, tmp_path / "out")
    words = (*CELL, "attention=flash,gqa", "--multirun", "seed=0,1", f"output_dir={out}")
    assert here(*words).code == 0  # its page has the command of another folder
    (page,) = out.glob("grids/*/report.html")
    content = page.read_bytes()
    drawn = page.stat().st_mtime_ns
    assert here(*words).code == 0
    assert page.read_bytes() == content
    assert page.stat().st_mtime_ns == drawn
    for run_dir in out.glob("runs/*gqa*"):
        summary = json.loads((run_dir / "summary.json").read_text())
        (run_dir / "summary.json").write_text(json.dumps({**summary, "val_loss": 1.2345}))
        sealed(run_dir)
    assert here(*words).code == 0
    changed = page.read_bytes()
    assert b"1.2345" in changed
    assert b"1.2345" not in content
    page.write_bytes(changed.replace(b"1.2345", b"0.1234"))  # as somebody edits it
    assert here(*words).code == 0
    assert page.read_bytes() == changed


@pytest.mark.slow
def test_broken_cells_stop_nobody_and_only_they_run_again(tmp_path, here):
    kept = "trainer.keep_steps=[3]"  # without it, a cell ends well where none can be written
    words = (*CELL, kept, "seed=0,1,2", f"output_dir={tmp_path / 'out'}")
    cells = checked(tmp_path / "out", *(f"seed={seed}" for seed in range(3)), swept=("seed",)).cells
    raising, killed = (cell.plan.run_dir for cell in cells[:2])
    raising.mkdir(parents=True)
    (raising / "checkpoints").write_text("a file where the worker makes a folder")
    stopped = here("--multirun", "--fail-fast", *words)
    assert stopped.code == 1
    assert trained(stopped.out) == ["seed=0"]
    assert "1 failed, 2 not started" in stopped.out
    running = Background(tmp_path / "out", *words)
    wait_until(
        lambda: processes(killed) or running.process.poll() is not None, "the worker to be killed"
    )
    for pid in processes(killed):
        os.kill(pid, signal.SIGKILL)
    done = running.end()
    why = (
        rf"the worker ended with signal 9 while it started and wrote no summary; see "
        rf"{killed / 'train.log'}"
    )
    not_finished = "nocap: not finished: seed="
    assert re.fullmatch(
        rf"{not_finished}0 \(.*checkpoints.*\n{not_finished}1 \({why}\)\n", done.err
    ), done.err
    assert done.code == 1
    assert "2 failed, 1 finished; 1 trained now" in done.out
    (raising / "checkpoints").unlink()
    again = here("--multirun", *words)
    assert again.code == 0
    assert again.err == ""
    assert trained(again.out) == ["seed=0", "seed=1"]


@pytest.mark.gate
def test_two_processes_train_each_cell_once(tmp_path):
    out = tmp_path / "out"
    both = [Background(out, *CELL, "seed=0,1") for _ in range(2)]
    ended = [each.end() for each in both]
    expected = [(0, "")] * 2
    assert [(each.code, each.err) for each in ended] == expected
    labels = []
    for each in ended:
        for label in trained(each.out):
            labels.append(label)
    labels.sort()
    assert labels == ["seed=0", "seed=1"]
    attempts = [summary["attempts"] for summary in summaries(out).values()]
    assert attempts == [1, 1]
    for each in ended:
        assert "2 finished" in each.out
    assert any(re.search(r"later +seed=\d  process \d+ on ", each.out) for each in ended)


@pytest.mark.slow
def test_asked_to_stop_the_cell_saves_and_the_same_command_goes_on(tmp_path):
    out = tmp_path / "out"
    words = (*CELL, "trainer.steps=400", "trainer.val_tokens=1024", "seed=0,1")
    running = Background(out, *words)
    wait_until(
        lambda: any(path.stat().st_size for path in out.glob("runs/*/metrics.jsonl")), "a row"
    )
    done = running.end(signal.SIGINT)
    assert done.code == 75
    assert trained(done.out) == ["seed=0"]
    assert "1 stopped before its end, 1 not started" in done.out
    (summary,) = summaries(out).values()
    assert summary["status"] == "preempted"
    assert summary["seed"] == 0
    assert 0 < summary["steps"] < 400
    (log,) = out.glob("runs/*/train.log")
    again = Background(out, *words)
    wait_until(lambda: "resuming from step" in log.read_text(), "the resumed cell")
    stopped = again.end(signal.SIGTERM)
    assert stopped.code == 75
    assert trained(stopped.out) == ["seed=0"]


@pytest.mark.slow
def test_diverged_run_is_a_result(tmp_path, door, here):
    words = ("--multirun", *CELL, *EXPLODING, "seed=0", f"output_dir={tmp_path / 'out'}")
    for call, started in ((door, 1), (here, 0)):
        done = call(*words)
        assert done.code == 0, done
        assert len(trained(done.out)) == started, done
        assert "nocap: diverged; this is its result: " in done.err
    statuses = [summary["status"] for summary in summaries(tmp_path / "out").values()]
    assert statuses == ["diverged"]


@pytest.mark.slow
def test_on_a_terminal_a_bar_counts_the_steps(tmp_path):
    code, text = on_a_terminal(
        "-m", "nocap.train", "-m", *CELL, "seed=0", f"output_dir={tmp_path}", cwd=tmp_path
    )
    assert code == 0
    assert re.search(r"all cells: .*\d/3 ", text)
    assert "step      0/3" not in text  # the cell's own lines
    assert re.search(r"\[1/1\] done +nano-flash-gelu4x-wsd-adamw-s0  val", text)
    assert text.count("[1/1]") == 1  # a line a run: what has begun is in the bar


@pytest.mark.slow
def test_tracked_grid_is_a_group_that_ends_with_its_comparison(tmp_path, door):
    words = [word for word in CELL if not word.startswith("tracker")]
    home = dict.fromkeys(("HOME", "XDG_DATA_HOME", "WANDB_DATA_DIR"), str(tmp_path)) | {
        "WANDB_MODE": "offline"
    }
    words += ["tracker=wandb", "attention=flash,gqa", f"output_dir={tmp_path / 'out'}"]
    done = door("--multirun", *words, env=home, timeout=300)
    assert done.code == 0, done.err
    (grid,) = (tmp_path / "out" / "grids").iterdir()
    rows = []
    for folder in (grid, *tmp_path.glob("out/runs/*")):
        rows.extend(inspect(folder))
    said = []
    for row in rows:
        if row["type"] == "run":
            said.append((row["run"]["run_group"], row["run"]["job_type"]))
    groups = [group for group, _ in said]
    assert groups == [grid.name] * 3
    kinds = sorted(kind == "comparison" for _, kind in said)
    assert kinds == [False, False, True]


# --- killed, and gone on with ---------------------------------------------------------------------

TWO = (*SMALL, "trainer.max_restarts=0", "attention=flash,gqa", "seed=0")
ROWS = 13  # of each of its cells


def rows_in(out):
    """Count the rows of all runs, a half-written one not included."""
    paths = out.glob("runs/*/metrics.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in paths)


@pytest.mark.gate
def test_a_killed_grid_ends_with_the_same_losses(tmp_path, here, door):
    """SIGKILL in the first cell, then in the second."""
    alone = tmp_path / "alone"
    out = tmp_path / "out"
    assert here("--multirun", *TWO, f"output_dir={alone}").code == 0
    for rows in (ROWS // 2, ROWS + ROWS // 2):
        running = Background(out, *TWO)
        wait_until(lambda rows=rows: rows_in(out) >= rows, f"{rows} rows")
        assert running.end(signal.SIGKILL).code == -signal.SIGKILL
    done = door("--multirun", *TWO, f"output_dir={out}", timeout=600)
    assert done.code == 0
    assert done.err == ""
    statuses = {summary["status"] for summary in summaries(out).values()}
    assert statuses == {"finished"}
    assert len(records(out)) == 2
    assert records(out) == records(alone)


@pytest.mark.slow
def test_cell_on_two_devices_has_processes_of_its_own(tmp_path, door):
    out = tmp_path / "out"
    done = door(*CELL, "trainer.devices=2", "seed=0,1", "--multirun", f"output_dir={out}")
    assert done.code == 0
    assert done.err == ""
    expected = [("finished", 2)] * 2
    ends = [(summary["status"], summary["devices"]) for summary in summaries(out).values()]
    assert ends == expected
    for run_dir in out.glob("runs/*"):
        assert not (run_dir / ".lease").exists()
