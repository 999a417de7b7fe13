"""Logs of other programs, as these wrote them: each gives the word and the difference that nocap's
own table of the same losses gives. The losses are read a second time here, by the last number of a
pattern or by the library that wrote them."""

import csv
import io
import itertools
import json
import re
import runpy
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from nocap import compare as door
from nocap.judge.compare import compare
from nocap.sources.logs.columns import columns_of
from nocap.sources.logs.load import load_logs
from tests.conftest import REPO
from tests.test_compare import refusal
from tests.test_logs import _child, arms

SAMPLES = REPO.parent / "shared" / "foreign_logs"
VARIANTS = SAMPLES / "csv_jsonl_variants"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="needs ../shared/foreign_logs")
Losses = dict[tuple[str, str], float]  # arm and run → the loss at its end
SEED = re.compile(r"seed[=_-]?(\d+)")


def last(pattern: str, group: int = 1):
    """Read the last match in each file, whose path names arm and seed."""

    def read(folder: Path) -> Losses:
        losses = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                (arm,) = path.relative_to(folder).parts[:1]
                seed = SEED.search(str(path.relative_to(folder)))
                if seed:
                    name = seed[1]
                else:
                    name = f"{path.parent.name} {path.name}"
                matches = re.findall(pattern, path.read_text(), re.MULTILINE)
                losses[arm, name] = float(matches[-1])
        return losses

    return read


def cells(name, *, arm, run):
    """Read the last cell of a column that is not empty. `arm` and `run` take a path and a row."""

    def read(folder: Path) -> Losses:
        losses = {}
        for path in sorted(folder.rglob("*.csv")):
            for row in csv.DictReader(io.StringIO(path.read_text())):
                if row.get(name):
                    losses[arm(path, row), run(path, row)] = float(row[name])
        return losses

    return read


def state(folder: Path) -> Losses:
    losses = {}
    for path in folder.rglob("trainer_state.json"):
        log_history = json.loads(path.read_text())["log_history"]
        rows = [row for row in log_history if "eval_loss" in row]
        losses[path.parts[-3], path.parts[-2].removeprefix("seed")] = rows[-1]["eval_loss"]
    return losses


def events(tag):
    """Read by tensorboard itself."""

    def read(folder: Path) -> Losses:
        accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        losses = {}
        paths = folder.rglob("events.*")
        for run in sorted({path.parent for path in paths}):
            reader = accumulator.EventAccumulator(str(run))
            reader.Reload()
            scalars = sorted(
                reader.Scalars(tag), key=lambda scalar: (scalar.step, scalar.wall_time)
            )
            losses[run.parent.name, run.name.removeprefix("seed").removeprefix("version_")] = (
                scalars[-1].value
            )
        return losses

    return read


def of_name(path, row):
    return path.stem.split("-")[0]


def seed_of_name(path, row):
    return SEED.search(str(path))[1]


def of_tag(folder: Path) -> Losses:
    read = cells("Value", arm=lambda path, row: path.name[4:11], run=lambda path, row: path.name)
    return {key: loss for key, loss in read(folder).items() if "tag-val" in key[1]}


def hparams(path, row):
    text = (path.parent / "hparams.yaml").read_text()
    return text.split("seed: ")[1].split()[0]


def panel(folder: Path) -> Losses:
    (path,) = folder.iterdir()
    row = list(csv.DictReader(io.StringIO(path.read_text())))[-1]
    return {(arm, "0"): float(row[f"{arm}-seed0 - val/loss"]) for arm in ("width64", "width32")}


def store(folder: Path) -> Losses:
    losses = {}
    for run in folder.glob("mlruns/*/*/params"):
        text = (run.parent / "metrics" / "val_loss").read_text()
        loss = text.split()[-2]
        width = (run / "width").read_text()
        seed = (run / "seed").read_text()
        losses[f"width={width}", seed] = float(loss)
    return losses


PAIRED = {
    "hf_stdout": last(r"'eval_loss': '?([\d.]+)"),
    "hf_trainer_state": state,
    "hf_tb": events("eval/loss"),
    "keras_csvlogger": last(r"([\d.]+)$"),
    "lightning_csv": cells("val_loss", arm=lambda path, row: path.parts[-3], run=hparams),
    "lightning_tb": events("val_loss"),
    "litgpt_csv": cells("val_loss", arm=lambda path, row: path.parts[-6], run=seed_of_name),
    "litgpt_stdout": last(r"iter \d+: val loss ([\d.]+)"),
    "llmc_mainlog": last(r"tel:([\d.]+)"),
    "llmc_stdout": last(r"val loss ([\d.]+)"),
    "mlflow_csv": cells(
        "metrics.val_loss",
        arm=lambda path, row: f"width={row['params.width']}",
        run=lambda path, row: row["params.seed"],
    ),
    "mlflow_filestore": store,
    "nanogpt_stdout": last(r"val loss ([\d.]+)"),
    "parameter_golf_logs/colons": last(r"roundtrip_exact .*val_bpb:([\d.]+)"),
    "parameter_golf_logs/spaced": last(r"sliding_window .*val_bpb:([\d.]+)"),
    "nanochat_stdout": last(r"^Step \d+ \| Validation bpb: ([\d.]+)"),
    "torchtitan_stdout": last(r"validate step: 250 .*?loss:  ([\d.]+)"),
    "wandb_history_csv": cells("val/loss", arm=of_name, run=seed_of_name),
    "wandb_panel_csv": panel,
    "wandb_table_csv": cells(
        "val/loss",
        arm=lambda path, row: row["Name"].split("-")[0],
        run=lambda path, row: row["seed"],
    ),
    **{
        f"csv_jsonl_variants/{name}": last(r"^\"?(?:2,000|200)\"?[,;][\d.]+[,;]([\d.]+)")
        for name in ("bom", "crlf", "plain", "resume", "reheader", "thousands")
    },
    "csv_jsonl_variants/keras": last(r"([\d.]+)$"),
    "csv_jsonl_variants/split": last(r"^200,val,([\d.]+)"),
    "csv_jsonl_variants/ms": last(r"^200,([\d.]+)"),
    "csv_jsonl_variants/units": last(r"^200,([\d.]+)"),
    "csv_jsonl_variants/jsonl": last(r'"step": 200, .*"val/loss": ([\d.]+)'),
    "csv_jsonl_variants/jsonl_nonewline": last(r'"step": 200, .*"val_loss": ([\d.]+)'),
    "csv_jsonl_variants/cutline": last(r"^150,[\d.]+,([\d.]+)"),
    "csv_jsonl_variants/cutrow": last(r"^150,[\d.]+,([\d.]+)"),
    "csv_jsonl_variants/jsonl_cut": last(r'"step": 150, .*"val_loss": ([\d.]+)'),
}
UNPAIRED = {
    "modded": last(r"val_loss:([\d.]+)"),
    "tensorboard_csv": of_tag,
    "csv_jsonl_variants/hash": last(r"^200,[\d.]+,([\d.]+)"),
}
PLAIN = last(r"^200,[\d.]+,([\d.]+)")(VARIANTS / "plain") if VARIANTS.is_dir() else {}
# what the plain sample's numbers look like in another coat
COATS = {
    "armname_flat": "",
    "armname_folder": "",
    "armname_under": "",
    "decimalcomma": "",
    "gzip": "",
    "utf16": "",
    "bits": "val_loss=val_loss_bits/1.442695",
    "perplexity": "val_loss=log(val_ppl)",
    "lossonly": "val_loss=loss",
}


def judged(path, **options):
    return compare(load_logs([str(path)], **options))


def words(comparison):
    """Return arm → what is said of it, and by how much it differs; and all arms, the baseline
    first."""
    by_label = arms(comparison)
    gaps = {label: arm["difference"] for label, arm in by_label.items() if arm["difference"]}
    told = {label: (gap["verdict"], gap["method"], gap["n"]) for label, gap in gaps.items()}
    figures = {}
    for label, gap in gaps.items():
        figures[label] = [gap[key] for key in ("mean", "low", "high")]
    return told, figures, list(by_label)


def own_table(path, losses, *, metric="val_loss", paired=True):
    """Write losses as a table that nocap defines."""
    rows = [f"{arm},{run},{loss!r}\n" for (arm, run), loss in losses.items()]
    path.write_text(f"arm,{'seed' if paired else 'run'},{metric}\n{''.join(rows)}")
    return path


def check(comparison, table, *, most=1e-6):
    told, figures, labels = words(comparison)
    wanted, numbers, _ = words(judged(table))
    assert told == wanted
    for label, figure in figures.items():
        assert figure == pytest.approx(numbers[label], abs=most)
    assert len(labels) == len(wanted) + 1
    return told


@needs_samples
@pytest.mark.parametrize("name", [*PAIRED, *UNPAIRED])
def test_a_sample_has_the_word_of_the_same_losses(tmp_path, name):
    read = {**PAIRED, **UNPAIRED}[name]
    losses = read(SAMPLES / name)
    if "nanochat" in name or "golf" in name:
        metric = "val_bpb"
    else:
        metric = "val_loss"
    if name != "wandb_panel_csv":
        losses = dict(sorted(losses.items()))  # the baseline first
    comparison = judged(SAMPLES / name)
    table = own_table(tmp_path / "own.csv", losses, metric=metric, paired=name in PAIRED)
    told = check(comparison, table)
    verdict = next(iter(told.values()))[0]
    assert verdict == ("no verdict (n=1)" if name == "wandb_panel_csv" else "better")


@needs_samples
@pytest.mark.parametrize("name", COATS)
def test_a_coat_has_the_word_of_the_plain_sample(tmp_path, name):
    comparison = judged(VARIANTS / name, columns=columns_of(COATS[name]))
    check(comparison, own_table(tmp_path / "own.csv", PLAIN), most=1e-4)  # as many digits as it has


# --- one run in several pieces, and what is no run ------------------------------------------------


def the_run(path, **options):
    """Return the one record of a path."""
    (record,) = load_logs([str(path)], **options).records
    return record


@needs_samples
def test_a_run_that_was_resumed_is_one(tmp_path):
    """Three event files, a log that goes on, a program that printed on: the later piece wins."""
    overlap = the_run(SAMPLES / "hf_tb_resumed_overlap")
    assert overlap.curve.step == [50, 100, 150, 200]
    whole = the_run(SAMPLES / "llmc_mainlog_resumed_overlap")
    assert whole.curve.step == [0, 50, 100, 150, 200, 250]
    assert whole.val_loss == 1.6434
    assert the_run(SAMPLES / "hf_stdout_resumed").val_loss == 1.797135829925537


@needs_samples
def test_two_runs_in_a_file_are_two(tmp_path):
    found = load_logs([str(VARIANTS / "tworuns")])
    expected = [("base", 3.1975), ("base", 3.2105), ("idea", 2.1975), ("idea", 2.2105)]
    losses = sorted((run.arm, run.val_loss) for run in found.records)
    assert losses == expected
    seeds = {run.seed for run in found.records}
    assert seeds == {-1, -2, -3, -4}


@needs_samples
@pytest.mark.parametrize("name", ["nan", "nanempty", "jsonl_nan", "jsonl_null"])
def test_an_arm_that_diverged_never_wins(name):
    """Whether its NaN is a NaN, null or an empty cell, and whichever arm is the baseline."""
    idea = words(judged(VARIANTS / name))[0]["idea"]
    assert idea[0] == "diverged (3 of 3 seeds)"
    content = load_logs([str(VARIANTS / name)])
    turned = compare(content, baseline="idea")
    base = words(turned)[0]["base"]
    assert base[0] == "diverged (3 of 3 seeds of idea)"


@needs_samples
def test_a_log_without_a_loss_is_refused_with_what_turns_its_unit(capsys):
    said = refusal([VARIANTS / "perplexity"], capsys)
    assert "read a perplexity with --columns 'val_loss=log(val_ppl)'" in said
    assert "val_loss_bits/1.442695" in refusal([VARIANTS / "bits"], capsys)
    assert "train_loss (choose one with --columns KEY=NAME)" in refusal(
        [VARIANTS / "trainonly"], capsys
    )
    words = [VARIANTS / "perplexity", "--columns", "val_loss=val_ppl"]
    assert "as in val_loss=log(val_ppl)" in refusal(words, capsys)


@needs_samples
def test_a_board_s_records_are_told_apart(capsys):
    """28 scores as a table: seeds repeat, and its other column tells records apart."""
    board = SAMPLES / "parameter_golf_board.csv"
    assert (
        "they differ in record (2026-03-19a and 2026-03-19b), so --columns arm=record"
        in refusal([board], capsys)
    )
    found = load_logs([str(board)], columns=columns_of("arm=record"))
    rows = list(csv.DictReader(io.StringIO(board.read_text())))
    assert len(found.records) == len(rows)
    records = {row["record"] for row in rows}
    assert {run.arm for run in found.records} == records


@needs_samples
def test_a_budget_of_time_ends_a_run_that_is_finished():
    """Its siblings have other steps, and it is short of its own total; only a score that all have
    counts."""
    golf = SAMPLES / "parameter_golf_logs"
    found = load_logs([str(golf / "colons")])
    statuses = {run.status for run in found.records}
    assert statuses == {"finished"}
    steps = {run.summary["steps"] for run in found.records}
    assert len(steps) == 6
    assert (
        "nocap compares final_int8_zlib_roundtrip_exact, the last score that all runs have"
        in found.problems[0]
    )


@needs_samples
def test_only_a_score_that_all_runs_have_is_compared(tmp_path):
    paths = (SAMPLES / "parameter_golf_logs" / "spaced").rglob("*.log")
    for number, path in enumerate(sorted(paths)):
        copy = tmp_path / path.parent.name / path.name
        copy.parent.mkdir(exist_ok=True)
        lines = path.read_text().splitlines(keepends=True)
        text = "".join(lines[:-1] if number == 0 else lines)
        copy.write_text(text)
    found = load_logs([str(tmp_path)])
    assert "nocap compares final_int6_roundtrip" in found.problems[0]
    assert "some runs lack final_int6_sliding_window" in found.problems[0]
    first = min(found.records, key=lambda run: run.name)
    score = re.search(r"int6_roundtrip .*val_bpb:([\d.]+)", first.folder.read_text())
    assert first.value("val_bpb") == float(score[1])


# --- arms and seeds -------------------------------------------------------------------------------


def curve(path, loss, *, steps=200, every=50, **cells):
    """Write a log of which each step lowers the loss to `loss`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ["step", "val_loss", *cells]
    rows = []
    for step in range(0, steps + 1, every):
        rows.append([step, f"{loss + (steps - step) / 100:.4f}", *cells.values()])
    text = "".join(",".join(map(str, row)) + "\n" for row in [names, *rows])
    path.write_text(text)


def crossed(root, template, *, seeds=(0, 1, 2)):
    for number, arm in enumerate(("base", "idea")):
        for seed in seeds:
            loss = 3 - 0.05 * number + 0.003 * seed * (1 + number)
            curve(root / template.format(arm=arm, seed=seed), loss)


TEMPLATES = [
    ("{arm}-seed{seed}/log.csv", "folder names", "folder names"),
    ("{arm}/{seed}/log.csv", "folder names", "numbers in folder names"),
    ("{arm}_{seed}/metrics.csv", "folder names", "numbers in folder names"),
    ("{arm}_s{seed}.csv", "file names", "file names"),
    ("lightning_logs/{arm}/version_{seed}/metrics.csv", "folder names", None),
    ("2026-11-2{seed}/12-00-00/{arm}/log.csv", "folder names", None),
    ("seed{seed}/{arm}.csv", "file names", "folder names"),
]


@pytest.mark.parametrize(("template", "arm_from", "seed_from"), TEMPLATES)
def test_names_say_arm_and_seed(tmp_path, template, arm_from, seed_from):
    crossed(tmp_path, template)
    found = load_logs([str(tmp_path)])
    assert [run.arm for run in found.records].count("base") == 3
    assert [run.arm for run in found.records].count("idea") == 3
    assert {run.imported["arm"] for run in found.records} == {arm_from}
    seeds = {run.imported["seed"] for run in found.records}
    assert seeds == {seed_from}


def test_settings_beside_a_log_say_arm_and_seed(tmp_path):
    """Lightning's versions in one folder, and Hydra's jobs: what varies is the arm, and no number
    is."""
    for number in range(6):
        width = 32 * (1 + number // 3)
        seed = number % 3
        version = tmp_path / "lightning" / f"version_{number}"
        curve(version / "metrics.csv", 3 - width / 100 + 0.003 * seed)
        (version / "hparams.yaml").write_text(
            f"seed: {seed}\nwidth: {width}\ndata_seed: {seed + 7}\noutput_dir: o/{number}\n"
        )
        job = tmp_path / "multirun" / "2026-11-29" / str(number)
        curve(job / "log.csv", 3 - width / 100 + 0.003 * seed)
        (job / ".hydra").mkdir()
        (job / ".hydra" / "overrides.yaml").write_text(f"- model.width={width}\n- seed={seed}\n")
    for place, source in (("lightning", "hparams.yaml"), ("multirun", ".hydra/overrides.yaml")):
        found = load_logs([str(tmp_path / place)])
        expected = {("width=32", 0), ("width=32", 1), ("width=32", 2)}
        expected |= {("width=64", 0), ("width=64", 1), ("width=64", 2)}
        assert {(run.arm, run.seed) for run in found.records} == expected
        assert {run.imported["arm"] for run in found.records} == {source}
        seeds = {run.imported["seed"] for run in found.records}
        assert seeds == {source}


def test_settings_that_cannot_be_read_are_named(tmp_path):
    curve(tmp_path / "version_0" / "metrics.csv", 3.0)
    (tmp_path / "version_0" / "hparams.yaml").write_text("a: [\n")
    found = load_logs([str(tmp_path)])
    assert len(found.records) == 1
    assert "nocap cannot read its settings: hparams.yaml must be yaml" in found.problems[0]


def test_what_names_arms_and_seeds_is_said_before_the_table(tmp_path, capsys):
    crossed(tmp_path, "{arm}/version_{seed}/metrics.csv")
    for path in tmp_path.rglob("metrics.csv"):
        (path.parent / "hparams.yaml").write_text(f"seed: {path.parent.name[-1]}\n")
    assert door.main([str(tmp_path)]) == 0
    before, _, _ = capsys.readouterr().out.partition("Verdicts")
    assert "arms from folder names, seeds from hparams.yaml" in before


@pytest.mark.parametrize(
    "template",
    [
        "lr_{seed}.csv",
        "{seed}/log.csv",
        "0130f24{seed}/log.csv",
        "run{seed}/log.csv",
        "exp{seed}.csv",
        "1/lr_{seed}.csv",
    ],
)
def test_names_that_differ_by_a_number_alone_are_refused_with_the_flag(tmp_path, capsys, template):
    for seed in range(3):
        curve(tmp_path / template.format(seed=seed), 3 - 0.01 * seed)
    said = refusal([tmp_path], capsys)
    assert "may be 3 arms, or runs of one arm, and nocap does not guess" in said
    assert "--names '{arm}/{seed}'" in said
    names = template.format(seed="{seed}").rpartition(".")[0]
    records = load_logs([str(tmp_path)], names=names).records
    seeds = {run.seed for run in records}
    assert seeds <= {0, 1, 2}
    apart = load_logs([str(tmp_path)], names=names.replace("{seed}", "{arm}"))
    assert len({run.arm for run in apart.records}) == 3


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("runs/*", "--names must hold {arm} or {seed}, as in '{arm}/{seed}', got runs/*"),
        (
            "{arm}/{lr}",
            "--names must hold no other names than {arm} and {seed}, and no other wildcard than "
            "*, got {lr}",
        ),
        ("{arm}/{arm}", "--names must hold {arm} and {seed} at most once each, got {arm}"),
        ("{arm}-{seed}/x", "--names must match every path, and so also "),
    ],
)
def test_a_template_that_does_not_fit_is_refused(tmp_path, capsys, template, said):
    crossed(tmp_path, "{arm}-{seed}/log.csv")
    assert said in refusal([tmp_path, "--names", template], capsys)


def test_files_that_are_given_are_arms(tmp_path):
    for number, arm in enumerate(("base", "idea")):
        curve(tmp_path / f"{arm}.csv", 3 - number)
    content = load_logs([str(tmp_path / f"{arm}.csv") for arm in ("base", "idea")])
    told, _, labels = words(compare(content))
    assert labels == ["base", "idea"]
    assert told["idea"][0] == "no verdict (n=1)"


def test_a_folder_and_a_file_of_one_name_are_two_arms(tmp_path):
    for number, name in enumerate(("a/log.csv", "b/log.csv", "a.csv")):
        curve(tmp_path / name, 3.0 - number / 100)
    found = load_logs([str(tmp_path)])
    assert len({run.arm for run in found.records}) == 3


def test_folders_and_files_that_cross_are_refused(tmp_path, capsys):
    for number, repeat in enumerate(("first", "second", "third")):
        for arm, loss in (("base", 3.0), ("idea", 2.9)):
            curve(tmp_path / repeat / f"{arm}.csv", loss + number / 100)
    said = refusal([tmp_path], capsys)
    assert "add --names '{arm}/*' for folders, or --names '*/{arm}' for files" in said
    found = load_logs([str(tmp_path)], names="*/{arm}")
    assert {run.arm for run in found.records} == {"base", "idea"}


TWICE = {  # two runs of one arm and seed, and what is said of them
    "finals": (
        "method,seed,val_loss\na,0,3.1\na,1,3.2\nb,0,3.0\nb,1,3.3\n",
        "they differ in method",
    ),
    "runs with their settings": (
        "lr,seed,step,val_loss\n1,0,0,4\n1,0,50,3.1\n2,0,0,4\n2,0,50,3.0\n",
        "they differ in lr (1 and 2), so --columns arm=lr",
    ),
    "a step with two losses": (
        "step,val_loss,part\n0,4,a\n0,5,b\n50,3,a\n50,4,b\n",
        "must have one loss for each step, got several that differ",
    ),
}


@pytest.mark.parametrize(("table", "said"), TWICE.values(), ids=TWICE)
def test_two_runs_of_one_seed_are_never_one(tmp_path, capsys, table, said):
    (tmp_path / "t.csv").write_text(table)
    assert said in refusal([tmp_path / "t.csv"], capsys)


def test_a_checkpoint_is_a_piece_of_its_run(tmp_path):
    """Of a folder without a state of its own the furthest counts; short of its steps a run is
    unfinished."""
    for step in (100, 200):
        folder = tmp_path / "base" / "seed0" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        rows = []
        for at in range(50, step + 1, 50):
            rows.append({"eval_loss": 4 - at / 100, "step": at, "epoch": at / 100})
        state = {"best_metric": None, "global_step": step, "max_steps": 200, "log_history": rows}
        text = json.dumps(state, indent=2)
        (folder / "trainer_state.json").write_text(text)
    run = the_run(tmp_path)
    assert run.val_loss == 2.0
    assert run.status == "finished"
    (tmp_path / "base" / "seed0" / "checkpoint-200" / "trainer_state.json").unlink()
    assert the_run(tmp_path).status == "unfinished: 100 of 200 steps"


def test_a_program_that_printed_twice_into_a_file_made_two_runs(tmp_path, capsys):
    """Of one seed they are refused; a first one that was cut short is unfinished, and the second
    counts."""
    whole = ""
    for step in (0, 100, 200):
        whole += f"step {step}: train loss 3.0, val loss {4 - step / 100:.4f}\n"
    path = tmp_path / "base" / "seed0.log"
    path.parent.mkdir()
    path.write_text(whole + whole.replace("2.0000", "2.1000"))
    assert "arm base, seed 0 has two runs with different losses" in refusal([tmp_path], capsys)
    lines = whole.splitlines(keepends=True)[:2]
    path.write_text("".join(lines) + whole)
    records = load_logs([str(tmp_path)]).records
    statuses = [run.status for run in records]
    assert statuses == [
        "unfinished: 100 of the 200 steps that other runs of its arm have",
        "finished",
    ]


def test_what_a_trainer_prints_without_its_end_is_not_finished(tmp_path):
    path = tmp_path / "base" / "seed0.log"
    path.parent.mkdir()
    path.write_text("{'eval_loss': '2.2', 'epoch': '0.5'}\n{'eval_loss': 'nan', 'epoch': '1'}\n")
    assert the_run(tmp_path).status == "diverged"
    path.write_text("{'eval_loss': '2.2', 'epoch': '0.5'}\n{'eval_loss': '2.1', 'epoch': '1'}\n")
    assert the_run(tmp_path).status == "not finished"


# --- ends, steps, units ---------------------------------------------------------------------------


def test_a_run_short_of_its_own_total_is_unfinished(tmp_path, capsys):
    for seed in range(3):
        for arm, end in (("base", 250), ("idea", 100)):
            path = tmp_path / arm / f"seed{seed}.txt"
            path.parent.mkdir(exist_ok=True)
            text = ""
            for step in range(0, end + 1, 50):
                loss = 4 - step / 250 + seed / 100
                text += f"step:{step}/250 val_loss:{loss:.4f} train_time:{step}ms step_avg:1.00ms\n"
            path.write_text(text)
    assert door.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "found: there is only one arm" in said
    assert "idea/seed0.txt (unfinished: 100 of 250 steps)" in said


def test_a_run_shorter_than_the_others_of_its_arm_is_unfinished(tmp_path):
    crossed(tmp_path, "{arm}/seed{seed}.csv")
    curve(tmp_path / "idea" / "seed1.csv", 2.9, steps=100)
    found = load_logs([str(tmp_path)])
    statuses = {run.name: run.status for run in found.records if run.status != "finished"}
    assert statuses == {
        "idea/seed1.csv": "unfinished: 100 of the 200 steps that other runs of its arm have"
    }
    every = load_logs([str(tmp_path)], lengths=False)
    assert {run.status for run in every.records} == {"finished"}


def test_a_run_of_fewer_tokens_is_unfinished_in_tokens(tmp_path):
    for seed, end in enumerate((200, 200, 100)):
        rows = [{"tokens": n, "val_loss": 3.0 - n / 1000} for n in range(0, end + 1, 10)]
        path = tmp_path / f"idea-seed{seed}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
    found = load_logs([str(tmp_path)])
    statuses = {run.name: run.status for run in found.records if run.status != "finished"}
    assert statuses == {
        "idea-seed2.jsonl": "unfinished: 100 of the 200 tokens that other runs of its arm have"
    }


def test_two_large_seeds_stay_two(tmp_path):
    """Beyond 2**53, where a float would make them one."""
    seeds = (2**53, 2**53 + 1)
    for seed, loss in zip(seeds, (2.9, 2.8), strict=True):
        curve(tmp_path / f"idea-seed{seed}.csv", loss)
    found = load_logs([str(tmp_path)])
    assert sorted(run.seed for run in found.records) == [*seeds]


def test_arms_of_other_lengths_have_no_word(tmp_path):
    """Of steps as of epochs."""
    for column in ("step", "epoch"):
        for number, (arm, end) in enumerate((("base", 3), ("idea", 5))):
            for seed in range(3):
                path = tmp_path / column / arm / f"seed{seed}.csv"
                path.parent.mkdir(parents=True, exist_ok=True)
                rows = [f"{at},{4 - at / 10 - number / 10 + seed / 100},1\n" for at in range(end)]
                path.write_text(f"{column},val_loss,loss\n{''.join(rows)}")
        told, _, _ = words(judged(tmp_path / column))
        assert told["idea"][0] == "confounded (steps)"


def test_calls_of_log_are_no_steps(tmp_path):
    """Two arms that log at other rates; a program that gives its own steps."""
    for arm, rate in (("base", 10), ("idea", 25)):
        for seed in range(3):
            path = tmp_path / "calls" / arm / f"seed{seed}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = []
            for call, step in enumerate(range(0, 201, rate)):
                if step % 50 == 0:
                    loss = 3 - step / 400 + seed / 100
                else:
                    loss = ""
                rows.append(f"{call},{call},1.5,{loss},{step}\n")
            path.write_text(f",_step,_timestamp,eval/loss,train/global_step\n{''.join(rows)}")
    found = load_logs([str(tmp_path / "calls")])
    steps = {tuple(run.curve.step) for run in found.records}
    assert steps == {(0, 50, 100, 150, 200)}
    own = tmp_path / "own.csv"
    own.write_text(",_step,_timestamp,val/loss\n0,0,1.5,4\n1,50,1.5,3.5\n2,100,1.5,3\n")
    assert the_run(own).curve.step == [0, 50, 100]
    own.write_text(",_step,_timestamp,val/loss\n0,0,1.5,4\n1,1,1.5,3.5\n2,2,1.5,3\n")
    assert the_run(own).curve.step == []
    run_dir = the_run(own, columns=columns_of("step=_step"))
    assert run_dir.curve.step == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("train_time_ms", ""),
        ("ms_of_it", "train_s=ms_of_it/1000"),
        ("clock_ms", "train_s=clock_ms"),
    ],
)
def test_a_time_has_the_unit_of_its_name(tmp_path, name, columns):
    rows = "".join(f"{step},{4 - step / 100},{10 * step}\n" for step in range(0, 201, 50))
    (tmp_path / "t.csv").write_text(f"step,val_loss,{name}\n{rows}")
    run_dir = the_run(tmp_path / "t.csv", columns=columns_of(columns))
    assert run_dir.train_s == 2.0


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("FINISHED", "finished"),
        ("Finished", "finished"),
        ("CRASHED", "crashed"),
        ("killed", "killed"),
    ],
)
def test_a_state_is_read_in_any_case(tmp_path, state, status):
    (tmp_path / "t.csv").write_text(f"arm,seed,status,val_loss\na,0,{state},3\n")
    assert the_run(tmp_path / "t.csv").status == status


def test_wandb_s_table_counts_the_runs_that_finished(tmp_path):
    """Of both arms, the newest first; one crashed and was run again."""
    rows = ["idea-seed1,finished,2026-11-03,1,2.9", "idea-seed1,crashed,2026-11-02,1,3.9"]
    rows += ["base-seed1,finished,2026-11-01,1,3.0"]
    text = "\n".join(["Name,State,Created,seed,val/loss", *rows]) + "\n"
    (tmp_path / "t.csv").write_text(text)
    found = load_logs([str(tmp_path / "t.csv")])
    expected = [("base", "finished", 3.0), ("idea", "crashed", 3.9), ("idea", "finished", 2.9)]
    assert [(run.arm, run.status, run.val_loss) for run in found.records] == expected


def test_a_result_of_logs_is_judged_again(tmp_path, capsys):
    """With the epochs at which they ended."""
    for number, (arm, end) in enumerate((("base", 3), ("idea", 5))):
        for seed in range(3):
            path = tmp_path / "logs" / arm / f"seed{seed}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [f"{at},1,{4 - at / 10 - number / 10 + seed / 100}\n" for at in range(end)]
            path.write_text(f"epoch,loss,val_loss\n{''.join(rows)}")
    result = tmp_path / "result.json"
    assert door.main([str(tmp_path / "logs"), "--json", str(result)]) == 0
    first = capsys.readouterr().out
    assert door.main([str(result)]) == 0
    again = capsys.readouterr().out
    assert "confounded (steps)" in first
    assert "confounded (steps)" in again
    assert "arms from folder names, seeds from file names" in again


DIVERGED_COLUMNS = [
    ["4", "3", "2", "2", "2", ""],
    ["", "4", "3", "2", "", ""],  # none before training
    # a row between validations is empty, and one that was due is
    ["4", "", "3", "", "2", "", ""],
]


@pytest.mark.parametrize("losses", DIVERGED_COLUMNS)
def test_an_empty_cell_where_a_loss_was_due_is_a_divergence(tmp_path, losses):
    table = "".join(f"{100 * row},{loss}\n" for row, loss in enumerate(losses))
    (tmp_path / "t.csv").write_text(f"step,val_loss\n{table}")
    assert the_run(tmp_path / "t.csv").status == "diverged"


@pytest.mark.parametrize(
    ("cut", "problem"),
    [
        ("step,val_loss\n0,4\n50,3\n100,2.", "line 4 has no final newline"),
        ("step,val_loss\n0,4\n50,3\n100\n", "line 4 has 1 cells of 2"),
    ],
    ids=["without an end", "without its cells"],
)
def test_a_last_line_that_is_cut_is_left_out_with_a_note(tmp_path, cut, problem):
    (tmp_path / "t.csv").write_text(cut)
    found = load_logs([str(tmp_path / "t.csv")])
    assert found.records[0].val_loss == 3
    assert problem in found.problems[0]


# --- what libraries write -------------------------------------------------------------------------


def test_event_files_are_read_as_tensorboard_reads_them(tmp_path):
    """Scalars of torch's writer and of TensorFlow's shape, a text, and a file that was cut."""
    board = pytest.importorskip("tensorboard.compat.proto")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.record_writer import RecordWriter

    assert board
    path = tmp_path / "events.out.tfevents.1795803088.vm.1.0"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        written = [Event(wall_time=1, file_version="brain.Event:2")]
        for step in (0, 50, 100):
            number = Summary.Value(tag="train/loss", simple_value=5 - step / 100)
            tensor = TensorProto(dtype=1, float_val=[4 - step / 100])
            scalar = Summary.Value(tag="val/loss", tensor=tensor)
            words = Summary.Value(tag="note", tensor=TensorProto(dtype=7, string_val=[b"x"]))
            summary = Summary(value=[number, scalar, words])
            written.append(Event(wall_time=2, step=step, summary=summary))
        for event in written:
            writer.write(event.SerializeToString())
    run = the_run(path)
    assert run.curve.step == [0, 50, 100]
    assert run.curve.val_loss == [4, 3.5, 3]
    path.write_bytes(path.read_bytes()[:-9])
    found = load_logs([str(path)])
    assert found.records[0].curve.step == [0, 50]
    assert "its last event is incomplete" in found.problems[0]


DATABASE = """
CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time INTEGER, lifecycle_stage TEXT);
CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER,
    is_nan INTEGER);
CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
"""


def test_mlflow_s_database_is_read(tmp_path):
    """As MLflow 3 makes it, with the columns that are read."""
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as base:
        base.executescript(DATABASE)
        for number in range(8):
            width = 32 * (1 + number // 4)
            seed = number % 4
            if number == 7:
                stage = "deleted"
            else:
                stage = "active"
            base.execute(
                "INSERT INTO runs VALUES (?, ?, 'FINISHED', ?, ?)",
                (f"r{number}", "x", number, stage),
            )
            settings = [("seed", str(seed)), ("width", str(width))]
            base.executemany(f"INSERT INTO params VALUES (?, ?, 'r{number}')", settings)
            lost = number == 3
            points = [("val_loss", 4 - step / 100 + seed / 100, step, 0) for step in (0, 50, 100)]
            points.append(
                ("val_loss", 0.0 if lost else 2.0 - width / 100 + seed / 100, 150, int(lost))
            )
            base.executemany(f"INSERT INTO metrics VALUES (?, ?, 1, 'r{number}', ?, ?)", points)
        base.commit()
    found = load_logs([str(tmp_path)])
    statuses = {(run.arm, run.seed): run.status for run in found.records}
    expected = {
        ("width=32", 0): "finished",
        ("width=32", 1): "finished",
        ("width=32", 2): "finished",
        ("width=32", 3): "diverged",
        ("width=64", 0): "finished",
        ("width=64", 1): "finished",
        ("width=64", 2): "finished",
    }
    assert statuses == expected
    losses = {}
    for run in found.records:
        if run.status == "finished":
            losses[(run.arm, run.seed)] = run.val_loss
    assert losses["width=64", 2] == pytest.approx(2.0 - 0.64 + 0.02)


@pytest.mark.slow
def test_mlflow_s_database_by_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("e")
    for width in (32, 64):
        for seed in range(3):
            with mlflow.start_run(run_name=f"width{width}-seed{seed}"):
                mlflow.log_params({"seed": seed, "width": width})
                for step in range(0, 201, 50):
                    value = 4 - step / 100 - width / 1000 + seed / 100
                    mlflow.log_metric("val_loss", value, step=step)
    told, figures, _ = words(judged(tmp_path))
    assert (
        told["width=64"] == ("no difference shown", "pairs (Student)", 3)
        or figures["width=64"][0] < 0
    )


WANDB = """
import os
import wandb
NAN = float("nan")
for arm in ("base", "idea"):
    for seed in range(3):
        gain = 0.05 * (arm == "idea") - 0.003 * seed * (1 + (arm == "idea"))
        losses = [4.5 - 0.2 * i - gain for i in range(5)]
        settings = {"seed": seed, "width": 32 if arm == "base" else 64}
        pieces = [(0, 160), (110, 201)] if (arm, seed) == ("base", 1) else [(0, 201)]
        for number, (first, end) in enumerate(pieces):
            run = wandb.init(project="p", name=f"{arm}-seed{seed}", id=f"{arm}{seed}",
                mode="offline", resume="allow" if number else None, config=settings)
            for step in range(first, end, 10):
                loss = {"val/loss": losses[step // 50]} if step % 50 == 0 else {}
                if "diverge" in os.environ and arm == "idea" and step == 200:
                    loss = {"val/loss": NAN}
                run.log({"iter": step, "train/loss": 5 - step / 100, **loss})
            run.finish(exit_code=int(number == 0 and len(pieces) > 1))
"""


@pytest.mark.slow
def test_a_resumed_run_of_wandb_is_one(tmp_path):
    """Two offline folders of one id, the first of which failed."""
    _child(WANDB, tmp_path, WANDB_SILENT="true")
    found = load_logs([str(tmp_path)])
    expected = set()
    for arm in ("width=32", "width=64"):
        for seed in range(3):
            expected.add((arm, seed, "finished"))
    ends_of_runs = {(run.arm, run.seed, run.status) for run in found.records}
    assert ends_of_runs == expected
    steps = {tuple(run.curve.step) for run in found.records}
    assert steps == {(0, 50, 100, 150, 200)}
    told, figures, _ = words(compare(found))
    assert told["width=64"][0] == "better"
    assert figures["width=64"][0] == pytest.approx(-0.047)


@pytest.mark.slow
def test_wandb_s_nan_is_a_divergence(tmp_path):
    _child(WANDB, tmp_path, WANDB_SILENT="true", diverge="1")
    told, _, _ = words(judged(tmp_path))
    assert told["width=64"][0] == "diverged (3 of 3 seeds)"


# --- what may be taken for something else ---------------------------------------------------------


def table(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def final(path, loss):
    """Write a log with two validations."""
    table(path, f"step,val_loss\n0,4\n100,{loss}\n")


def told_arms(path, **options):
    records = load_logs([str(path)], **options).records
    return {(run.arm, run.seed) for run in records}


def test_differently_named_logs_of_a_folder_are_never_averaged(tmp_path, capsys):
    kinds = {"attention": ("mha", "gqa", "mla"), "mlp": ("relu", "gelu", "swiglu")}
    for group, names in kinds.items():
        for number, name in enumerate(names):
            final(tmp_path / group / f"{name}.csv", 3 + number / 100)
    assert "add --names '{arm}/*' for folders, or --names '*/{arm}' for files" in refusal(
        [tmp_path], capsys
    )
    found = load_logs([str(tmp_path)], names="*/{arm}")
    expected = {*kinds["attention"], *kinds["mlp"]}
    assert {run.arm for run in found.records} == expected


def test_runs_of_one_name_and_other_seeds_are_two(tmp_path):
    cells = itertools.product("ab", (0, 1), (0, 50))
    rows = [f"{arm},{seed},{step},{4 - step / 100 + seed / 10}\n" for arm, seed, step in cells]
    path = table(tmp_path / "t.csv", f"run_name,seed,step,val_loss\n{''.join(rows)}")
    expected = {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    assert told_arms(path) == expected


def test_mlflow_s_runs_of_one_name_are_two(tmp_path):
    head = "run_id,experiment_id,status,artifact_uri,metrics.val_loss,tags.mlflow.runName\n"
    rows = []
    for number, arm in enumerate(("base", "base", "idea", "idea")):
        rows.append(
            f"{number}b7c6c03846f4dc89809dcb1e4249001,1,FINISHED,x,{3 + number / 10},{arm}\n"
        )
    text = head + "".join(rows)
    found = load_logs([str(table(tmp_path / "t.csv", text))])
    expected = [("base", 3.0), ("base", 3.1), ("idea", 3.2), ("idea", 3.3)]
    losses = sorted((run.arm, run.val_loss) for run in found.records)
    assert losses == expected


NAMES_WITH_SETTINGS = [
    (["adam_lr1e-1", "adam_lr1e-2", "sgd_lr1e-1", "sgd_lr1e-2"], None),
    (["adam_b524288", "sgd_b524288", "sgd_b1048576"], None),
    (["gpt_124_s0", "gpt_350_s1"], ["gpt_124", "gpt_350"]),
    (["main", "train", "idea"], None),
    (["a_lr0.1.csv", "a_lr0.2.csv", "b_lr0.1.csv"], ["a_lr0.1", "a_lr0.2", "b_lr0.1"]),
]


@pytest.mark.parametrize(("names", "arms_"), NAMES_WITH_SETTINGS)
def test_settings_in_names_stay(tmp_path, names, arms_):
    for number, name in enumerate(names):
        path = tmp_path / name
        final(path if path.suffix == ".csv" else path / "log.csv", 3 + number / 100)
    found = load_logs([str(tmp_path)])
    assert sorted(run.arm for run in found.records) == sorted(arms_ or names)


def test_a_dot_in_a_name_is_no_ending(tmp_path):
    for number, name in enumerate(("a_lr0.1", "a_lr0.2", "b_lr0.1")):
        table(
            tmp_path / f"run-{name}-tag-val_loss.csv",
            f"Wall time,Step,Value\n1,0,4\n1,9,3.{number}\n",
        )
    found = load_logs([str(tmp_path)])
    assert {run.arm for run in found.records} == {"a_lr0.1", "a_lr0.2", "b_lr0.1"}


def test_an_empty_cell_in_a_table_of_last_losses_is_a_divergence(tmp_path):
    rows = "base,1,3.1\nbase,2,3.2\nidea,1,3.1\nidea,2,3.2\n"
    path = table(tmp_path / "t.csv", f"arm,seed,val_loss\nbase,0,3\n{rows}idea,0,\n")
    records = load_logs([str(path)]).records
    statuses = {(run.arm, run.seed): run.status for run in records}
    assert statuses["idea", 0] == "diverged"
    assert statuses["idea", 1] == "finished"
    path = table(tmp_path / "states.csv", "arm,seed,state,val_loss\na,0,finished,3\na,1,running,\n")
    content = load_logs([str(path)])
    assert len(content.records) == 1


def test_a_final_score_of_nan_is_a_divergence(tmp_path):
    path = tmp_path / "base" / "seed0.log"
    losses = "1/9 val_loss: 2.5 val_bpb: 1.1\n9/9 val_loss: 2.4 val_bpb: 1.0\n"
    table(path, f"{losses}final_int6 val_loss: nan val_bpb: nan\n")
    assert the_run(tmp_path).status == "diverged"


def hf_state(path, losses):
    rows = [{"eval_loss": loss, "step": step} for step, loss in losses]
    state = {"best_metric": None, "global_step": 100, "max_steps": 100, "log_history": rows}
    table(path, json.dumps(state))


def test_renamed_states_of_one_folder_are_runs(tmp_path):
    for seed in range(2):
        base = [(0, 4), (100, 3 + seed / 10)]
        hf_state(tmp_path / f"base_s{seed}.json", base)
        idea = [(0, 4), (100, 2 + seed / 10)]
        hf_state(tmp_path / f"idea_s{seed}.json", idea)
    expected = set()
    for arm in ("base", "idea"):
        for seed in (0, 1):
            expected.add((arm, seed))
    assert told_arms(tmp_path) == expected


def test_of_two_validations_at_a_step_the_trainer_s_last_counts(tmp_path):
    validations = [(0, 4), (100, 3), (100, 2.9)]
    hf_state(tmp_path / "trainer_state.json", validations)
    assert the_run(tmp_path).val_loss == 2.9


def test_times_that_are_not_known_make_no_equal_budget(tmp_path):
    for number, (arm, end) in enumerate((("base", 200), ("idea", 400))):
        for seed in range(3):
            lines = []
            for step in range(0, end + 1, 100):
                lines.append(
                    f"Step {step:05d} | Validation bpb: "
                    f"{2 - step / 1000 + seed / 100 - number / 10:.6f}\n"
                )
            table(tmp_path / arm / f"seed{seed}.log", "".join(lines))
    idea = words(judged(tmp_path))[0]["idea"]
    assert idea[0] == "confounded (steps)"


def test_runs_on_calls_of_log_have_a_length(tmp_path):
    for number, (arm, end) in enumerate((("base", 3), ("idea", 9))):
        for seed in range(3):
            rows = []
            for at in range(end):
                rows.append(f"{at},{at},1.5,{4 - at / 20 - number / 10 + seed / 100}\n")
            table(
                tmp_path / arm / f"seed{seed}.csv", f",_step,_timestamp,val/loss\n{''.join(rows)}"
            )
    idea = words(judged(tmp_path))[0]["idea"]
    assert idea[0] == "confounded (steps)"


def test_jobs_that_settings_tell_apart_are_arms(tmp_path):
    for number, lr in enumerate((0.1, 0.2, 0.3)):
        job = tmp_path / "multirun" / str(number)
        final(job / "log.csv", 3 + lr)
        table(job / ".hydra" / "overrides.yaml", f"- lr={lr}\n")
    arms_of_runs = {arm for arm, _ in told_arms(tmp_path)}
    assert arms_of_runs == {"lr=0.1", "lr=0.2", "lr=0.3"}


def test_settings_beside_all_logs_are_of_no_run(tmp_path):
    crossed(tmp_path / "runs", "{arm}_s{seed}.csv")
    table(tmp_path / "hparams.yaml", "seed: 42\n")
    expected = set()
    for arm in ("base", "idea"):
        for seed in range(3):
            expected.add((arm, seed))
    assert told_arms(tmp_path / "runs") == expected


def test_the_seed_of_a_template_leaves_the_name(tmp_path):
    for seed in range(3):
        final(tmp_path / f"exp{seed}.csv", 3 + seed / 100)
    found = load_logs([str(tmp_path)], names="exp{seed}")
    assert len({run.arm for run in found.records}) == 1
    seeds = {run.seed for run in found.records}
    assert seeds == {0, 1, 2}


def test_a_project_without_its_entity_is_one_line(capsys):
    assert "it must be ENTITY/PROJECT" in refusal(["my-project", "--format", "wandb"], capsys)


def test_mlflow_s_later_piece_counts(tmp_path):
    """Of a run whose program gave no steps, and of one that was resumed."""
    run = tmp_path / "mlruns" / "1" / "abc"
    table(run / "meta.yaml", "run_id: abc\nrun_name: x\nstatus: 3\nlifecycle_stage: active\n")
    (run / "params").mkdir()
    table(run / "metrics" / "val_loss", "1 4.0 0\n2 3.5 0\n3 3.0 0\n")
    assert the_run(tmp_path).val_loss == 3.0
    table(run / "metrics" / "val_loss", "1 4.0 0\n2 3.5 50\n3 3.0 100\n4 3.4 50\n5 2.8 100\n")
    losses = the_run(tmp_path).curve.val_loss
    assert losses == [4.0, 3.4, 2.8]


def test_readers_lose_no_rows(tmp_path):
    lost = "".join(f"{step},{step},{4 - step if step < 3 else ''}\r\n" for step in range(6))
    (tmp_path / "pandas.csv").write_bytes(f"epoch,step,val_loss\r\n{lost}".encode())
    assert the_run(tmp_path / "pandas.csv").status == "diverged"
    path = table(tmp_path / "w.csv", "Name,State,seed,val/loss\na,finished,1,3.1\na,finished,0,3.0")
    content = load_logs([str(path)])
    assert len(content.records) == 2
    table(tmp_path / "b" / "run-a-tag-lr.csv", "Wall time,Step,Value\n1,0,1\n1,1,")
    table(
        tmp_path / "b" / "run-a-tag-val_loss.csv",
        "Wall time,Step,Value\n1,0,4\n1,50,3.5\n1,100,3\n",
    )
    run_dir = the_run(tmp_path / "b")
    assert run_dir.curve.step == [0, 50, 100]
    ends = "{'train_runtime': '9', 'epoch': '2'}\n"
    losses = "{'eval_loss': '2.2', 'epoch': '1'}\n{'eval_loss': '2.1', 'epoch': '2'}\n"
    rows = "{'loss': '3', 'epoch': '0.5'}\n" + losses
    path = table(tmp_path / "p" / "a.log", f"{rows}{ends}{rows}")
    records = load_logs([str(path)]).records
    statuses = {run.status for run in records}
    assert statuses == {"finished", "not finished"}


def test_an_unfinished_run_displaces_no_finished_one(tmp_path):
    rows = "".join(f"{step},{4 - step / 100}\n" for step in range(0, 201, 40))
    for seed, state in enumerate(("crashed", "finished")):
        text = rows.replace("\n", f",{state}\n")
        table(tmp_path / f"a_s{seed}.csv", f"step,val_loss,state\n{text}")
    records = load_logs([str(tmp_path)]).records
    statuses = {run.status for run in records}
    assert statuses == {"crashed", "finished"}


# --- refusals -------------------------------------------------------------------------------------


def test_a_refusal_names_the_files_that_were_seen(tmp_path, capsys):
    (tmp_path / "notes.md").write_text("nothing here\n")
    (tmp_path / "model.bin").write_bytes(b"\0" * 100)
    said = refusal([tmp_path], capsys)
    assert "got 2 files (model.bin, notes.md), none in a format that nocap knows" in said
    crossed(tmp_path / "runs", "{arm}/seed{seed}.csv")
    said = refusal([tmp_path / "runs", "--format", "hf"], capsys)
    assert "which nocap reads with --format csv" in said


# --- the page -------------------------------------------------------------------------------------


def test_each_line_of_the_page_s_table_runs(tmp_path, monkeypatch, capsys):
    """On the logs that its script writes; W&B's own folder is read above."""
    page = (REPO / "docs" / "your-trainer.md").read_text()
    typed = re.findall(r"\| `(runs/\S+)` \|$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sample_logs.py", "runs"])
    runpy.run_path(str(REPO / "docs" / "sample_logs.py"), run_name="__main__")
    paths = (tmp_path / "runs").iterdir()
    names = {path.name for path in paths}
    expected = {name.partition("/")[2] for name in typed}
    assert names == expected
    for name in typed:
        assert door.main([name]) == 0
        said = capsys.readouterr().out
        assert re.search(r"idea better than (arm=)?base by 0\.0480 ", said), name
        assert "2 arms from 6 runs" in said, name
