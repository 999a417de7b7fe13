"""A result: `nocap.compare --json` writes it, `nocap.compare FILE.json` judges it again and finds
every edit, and joins several."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import shutil
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from nocap import api, compare
from nocap.judge.compare import compare as compared
from nocap.judge.comparison import Comparison
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import Result, to_json
from nocap.report import comparison_markdown, result_file
from nocap.store.record import Curve, Record
from nocap.store.record_files import write_json, write_summary
from nocap.store.runs import Found, load_runs
from tests.fuzz.damage import NOT_DONE, OPERATORS
from tests.fuzz.judge import CONTROL
from tests.fuzz.process import answer
from tests.made_grid import EVIL, made
from tests.test_compare import refusal, write_run
from tests.test_equal_loss import grid as grid_with_lengths
from tests.test_timing import timed, timing

Json = dict[str, Any]
SCHEMA = Path(result_file.__file__).with_name("comparison.schema.json")
ANEW = (
    "write it anew: python -c 'import json; from nocap.report.result_file import schema; "
    "print(json.dumps(schema(), indent=1))' > nocap/report/comparison.schema.json"
)

# Words → what its runs have, with which every kind of outcome is there.
ARMS: dict[str, Json] = {
    "gpt2-flash-gelu4x": {"loss": 3.30},
    "gpt2-gqa-gelu4x": {"loss": 3.28, "config": {"attention.n_kv_heads": 4}},
    "gpt2-flash-gelu3x": {"loss": 3.32, "config": {"mlp.expansion": 3.0}},
    "gpt2-mqa-gelu4x": {"loss": 3.3002, "config": {"attention.n_kv_heads": 1}},
    "gpt2-flash-gelu4x-lr": {
        "loss": 3.29,
        "config": {"optimizer.lr": 0.006},
        "source": "s1",
        "fingerprint": "bbbb",
    },
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("entry") / "outputs"
    rng = random.Random(1)
    for number, (words, about) in enumerate(ARMS.items()):
        for seed in range(3):
            started = f"2026-01-01T00:{seed}{number}:00"
            loss = about["loss"] + rng.gauss(0, 0.0005)
            changed = {**about, "loss": loss}
            write_run(root, words=words, seed=seed, started=started, **changed)
    swiglu: Json = {"words": "gpt2-flash-swiglu", "config": {"mlp.activation": "swiglu"}}
    for seed, status in enumerate(("diverged", "finished", "finished")):
        write_run(root, seed=seed, status=status, loss=3.2 + seed / 1000, **swiglu)
    write_run(root, words="gpt2-flash-gelu4x", seed=9, status="running")
    write_run(root, words="gpt2-other", seed=0, val="v1")  # of another group
    for path in (root / "runs").glob("*/summary.json"):  # a machine has a name
        content = json.loads(path.read_text())
        hardware = {**content["hardware"], "host": "secret-host"}
        write_summary(path.parent, {**content, "hardware": hardware})
    return root


@pytest.fixture(scope="module")
def original(outputs: Path) -> Path:
    path = outputs.parent / "original.json"
    assert compare.main([str(outputs), "--json", str(path), "--target", "3.5"]) == 0
    return path


@pytest.fixture
def file(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "result.json"))


def content_of(path: Path) -> Json:
    content: Json = json.loads(path.read_text())
    return content


def written(content: Json | str, path: Path) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def file_of(comparison: Comparison, path: Path) -> Path:
    """Write a comparison's file, as the command does."""
    bare = result_file.bare(comparison)
    write_json(path, result_file.content(bare, command="python -m nocap.compare runs"))
    return path


def of_file(content: Json) -> Json:
    """Return what a file says: all but what it follows from, and when."""
    return {key: value for key, value in content.items() if key in Result.__struct_fields__}


def sealed(content: Json) -> Json:
    """As somebody writes it who knows how its digests are made."""
    digests = {}
    for part in content["sha256"]:
        text = json.dumps(content[part], sort_keys=True)
        digests[part] = hashlib.sha256(text.encode()).hexdigest()
    return {**content, "sha256": digests}


def judge(*words: object) -> tuple[int, list[str]]:
    """Judge files again: the exit code, and the lines that begin with the name of one, or the
    refusal."""
    said = answer(lambda: compare.main([str(word) for word in words]), limit_s=600)
    assert said.crash is None, said.trace
    assert not CONTROL.search(said.out + said.err)
    if said.code == 2:
        return said.code, said.err.splitlines()
    lines = said.out.split("\n\n")[-1].splitlines()
    return said.code, [line for line in lines if not line.startswith("written: ")]


def follows(path: Path, rows: int) -> str:
    return f"{path}: the verdicts follow from its {rows} rows"


# --- the same -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--baseline=mlp.expansion=3", "--allow=source"],
        ["--allow=data.val", "--allow=torch", "--target=3.31"],
        ["--against=previous", "--allow=source"],
        ["--cautious", "--allow=source"],
    ],
    ids=str,
)
def test_a_file_says_what_the_runs_say_and_says_it_again(
    outputs: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    again = tmp_path / "again.json"
    assert compare.main([str(outputs), "--json", str(path), *words]) == 0
    printed = (
        capsys.readouterr().out.replace(" on secret-host", "").removesuffix(f"written: {path}\n")
    )
    told = content_of(path)
    outcomes = {arm["difference"]["outcome"] for arm in told["arms"] if arm["difference"]}
    assert len(outcomes) >= 2
    assert compare.main([str(path), "--json", str(again)]) == 0
    out = capsys.readouterr().out
    assert out == f"{printed}\n{follows(path, len(told['records']))}\nwritten: {again}\n"
    for content in (told, content_of(again)):
        del content["command"], content["date"]
        assert content["kind"] == "comparison"
    again_told = content_of(again)
    for key in told:
        assert again_told[key] == told[key]


@pytest.mark.parametrize("how", [{}, {"cautious": True}], ids=str)
def test_words_by_factor_and_at_equal_loss_are_those_of_a_fresh_comparison(
    tmp_path: Path, how: Json
) -> None:
    """Of the records as they are, which are not cut."""
    fresh = compared(grid_with_lengths().found, baseline="flash gelu4x", **how)
    assert fresh.factors is not None
    values = {row.equal_loss.word.value for row in fresh.arms if row.equal_loss}
    assert values >= {"better"}
    _check_same(fresh, tmp_path / "result.json")


def test_speeds_of_arms_timed_in_turns_are_in_a_file_too(tmp_path: Path) -> None:
    """And the newest timing of two files counts for both."""
    fresh = timed(timing(noise=0.01))
    assert fresh.timing is not None
    path = tmp_path / "result.json"
    _check_same(fresh, path)
    newer = replace(timing(noise=0.02), started="2026-11-29T10:00:00+00:00")
    file_of(timed(newer), tmp_path / "newer.json")
    joined = compared_to(tmp_path / "joined.json", path, tmp_path / "newer.json")
    assert joined["timing"]["started"] == newer.started
    expected = {arm: [*row] for arm, row in newer.seconds.items()}
    assert joined["timing"]["seconds_per_token"] == expected
    starts = [each["started"] for each in joined["timings"]]
    assert starts == [newer.started, timing().started]
    content = content_of(path)
    next(iter(content["timings"][0]["seconds"].values()))[0] *= 2
    written(sealed(content), path)
    code, lines = judge(path)
    assert code == 1
    assert any("flash swiglu: token_us.ratio.mean is " in line for line in lines)
    content["timings"][0]["seconds"]["nano-flash-swiglu"] = [0.0]
    written(sealed(content), path)
    assert judge(path)[0] == 2


def test_words_of_a_chain_with_a_diverged_arm_are_those_of_a_fresh_comparison(
    tmp_path: Path,
) -> None:
    loaded = grid_with_lengths().found
    diverged = []
    for run in loaded.records:
        if run.arm == "nano-flash-gelu4x":
            if run.seed == 1:
                status = "diverged"
            else:
                status = "finished"
            name = run.name.replace("flash", "mqa")
            config = {**run.config, "model.n_layer": 9}
            stopped = {**run.summary, "status": status}
            other = replace(
                run,
                identity=f"{run.identity}x",
                arm="nano-mqa-gelu4x",
                name=name,
                config=config,
                status=status,
                summary=stopped,
            )
            diverged.append(other)
    records = [*loaded.records, *diverged]
    fresh = compared(Found(records=records), against="previous")
    ids = [row.arm.id for row in fresh.arms if row.arm.diverged]
    assert ids == ["nano-mqa-gelu4x"]
    _check_same(fresh, tmp_path / "result.json")


def test_what_was_swept_and_what_is_measured_counts_in_a_file_too(tmp_path: Path) -> None:
    """A swept kernel confounds nothing, and validation's precision is no key by which these
    compare."""
    for seed in range(3):
        for kernel, precision in (("flash", "fp32"), ("math", "bf16")):
            config = {
                "attention.kernel": kernel,
                "attention.n_kv_heads": 12 if kernel == "flash" else 4,
                "trainer.val_precision": precision,
            }
            loss = 3.3 + seed / 1000 + (kernel == "math") * 0.1
            write_run(
                tmp_path,
                words=f"gpt2-{kernel}-gelu4x",
                seed=seed,
                kernel=kernel,
                config=config,
                options={"attention": kernel},
                swept=("attention", "seed"),
                measured=("trainer.val_tokens",),
                loss=loss,
            )
    fresh = compared(load_runs([tmp_path]))
    verdicts = [row.difference.word_with_reason for row in fresh.arms if row.difference]
    assert verdicts == ["worse"]
    _check_same(fresh, tmp_path / "result.json")


def _check_same(fresh: Comparison, path: Path) -> None:
    content = content_of(file_of(fresh, path))
    expected = json.loads(json.dumps(to_json(result_of(fresh))))
    for key, value in expected.items():
        assert content[key] == value
    again = result_file.read(path)
    assert again.follows() == [follows(path, len(fresh.records))]
    text = json.dumps(to_json(result_of(again.comparison)))
    assert json.loads(text) == expected


def test_what_a_file_holds(original: Path, outputs: Path) -> None:
    content = content_of(original)
    run = content["records"][0]
    (record,) = (outputs / "runs").glob(f"*-{run['identity']}")
    summary = json.loads((record / "summary.json").read_text())
    manifest = json.loads((record / "manifest.json").read_text())
    assert run["summary"]["sha256"] == summary["sha256"]
    assert run["summary"]["val_loss"] == summary["val_loss"]
    assert run["curve"]["step"] == [0, 100, 200, 300, 400]
    expected = {key: part for key, part in manifest["parts"].items() if key != "config"}
    assert run["parts"] == expected
    assert content["judge"].startswith("nocap ")
    assert content["command"] == f"python -m nocap.compare {outputs} --json {original} --target 3.5"
    assert content["question"]["target"] == 3.5
    assert "secret-host" not in json.dumps(content)


def test_what_is_written_of_what_was_read_is_the_same(original: Path) -> None:
    content = content_of(original)
    comparison = result_file.read(original).comparison
    again = result_file.content(comparison, command=content["command"])
    expected = {**content, "date": again["date"]}
    assert json.loads(json.dumps(again)) == expected


def test_a_file_fits_its_schema(original: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    assert schema == result_file.schema(), ANEW
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(content_of(original), schema)


def test_a_file_is_compared_like_runs(file: Path, tmp_path: Path, outputs: Path) -> None:
    files = [f"--{kind}={tmp_path}/a.{kind}" for kind in ("json", "csv", "html", "markdown")]
    expected = (0, [follows(file, 19)])
    assert judge(file, *files) == expected
    runs = api.compare(outputs, target=3.5)["runs"]
    content = json.loads(json.dumps(runs))
    runs = content_of(tmp_path / "a.json")["runs"]
    for run in content:
        run["hardware"].pop("host", None)
    assert runs == content
    text = (tmp_path / "a.csv").read_text()
    assert len(text.splitlines()) == 20
    assert "gqa" in (tmp_path / "a.html").read_text()
    page = (tmp_path / "a.markdown").read_text()
    cases = ("| gqa gelu4x | 3 |", f"python -m nocap.compare {file}", *content_of(file)["problems"])
    for line in cases:
        assert line in page


def test_standard_output_has_the_same_file(outputs: Path, tmp_path: Path) -> None:
    said = answer(lambda: compare.main([str(outputs), "--json", "-"]), limit_s=600)
    # no study's results, though it is called so
    path = written(said.out, tmp_path / "results.mine.json")
    expected = (0, [follows(path, 19)])
    assert judge(path) == expected


@pytest.mark.slow
def test_what_was_said_when_the_runs_were_read_is_said_again(outputs: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(outputs, tmp_path / "outputs")
    broken = next((whole / "runs").glob("gpt2-mqa-gelu4x-s2-*"))
    (broken / "summary.json").write_text("{")
    path = tmp_path / "result.json"
    assert compare.main([str(whole), "--json", str(path)]) == 0
    content = content_of(path)
    assert list(content["reading"]["unreadable"]) == [broken.name]
    assert any("1 run left out (gpt2-other" in line for line in content["problems"])
    expected = (0, [follows(path, 18)])
    assert judge(path) == expected
    again = api.compare(path)
    assert again["problems"] == content["problems"]
    assert again["not_compared"] == content["not_compared"]


def of_logs(arms: tuple[tuple[str, float], ...], seeds: range, *, named: bool = True) -> Found:
    """Records that logs are made into: they have no parts, a manifest that says where they are
    from, and a config that names the arm."""
    mark = {"format": "csv", "seed": "name" if named else None, "hardware": None}
    records = []
    for arm, loss in arms:
        for seed in seeds:
            end = loss + math.sin(seed) / 1000
            curve = Curve(
                step=[0, 10],
                tokens=[0, 0],
                train_s=[0.0, 1.0],
                val_loss=[11.0, end],
                val_bpb=[None, None],
            )
            manifest = {"attempts": [{}], "imported": mark}
            summary = {"val_loss": end, "steps": 10}
            record = Record(
                folder=Path(f"logs/{arm}-{seed}.log"),
                identity=f"{arm}-{seed}",
                name=f"{arm}/{seed}",
                arm=arm,
                seed=seed if named else -1 - len(records),
                status="finished",
                started="",
                config={"arm": arm},
                parts={},
                manifest=manifest,
                summary=summary,
                curve=curve,
            )
            records.append(record)
    return Found(records=records)


TWO = (("base", 3.3), ("idea", 3.2))


def test_a_file_of_records_that_logs_are_made_into(tmp_path: Path) -> None:
    comparison = compared(of_logs(TWO, range(4)))
    again = result_file.read(file_of(comparison, tmp_path / "result.json"))
    assert again.follows() == [follows(tmp_path / "result.json", 8)]
    content = to_json(result_of(again.comparison))
    assert content == to_json(result_of(comparison))
    formats = [run.manifest["imported"]["format"] for run in again.comparison.records]
    assert formats == ["csv"] * 8
    values = [row.difference.word.value for row in again.comparison.arms if row.difference]
    assert values == ["better"]


def test_what_people_name_does_nothing_on_a_page(tmp_path: Path) -> None:
    hostile = f"{EVIL}\x1b[2J\nits verdicts follow"
    records = [replace(run, name=f"{hostile}{run.name}") for run in made(1).records]
    comparison = compared(Found(records=records))
    page = comparison_markdown.page(comparison, judge=result_file.judge(), command=f"x {hostile}")
    assert not re.search("<img|\x1b", page)
    path = file_of(comparison, tmp_path / "result.json")
    assert judge(path)[0] == 0
    content = content_of(path)
    content["arms"][1]["difference"]["verdict"] = hostile
    written(content, path)
    code, lines = judge(path)
    assert code == 1
    assert [line for line in lines if line.startswith("its verdicts follow")] == []


# --- another question -----------------------------------------------------------------------------


def test_a_typed_question_is_asked_anew_and_nothing_is_checked(file: Path, outputs: Path) -> None:
    arm = arm_of(content := content_of(file), "mqa gelu4x")
    arm["difference"].update(BETTER)
    written(content, file)
    words = ["--target=3.31", "--baseline=gqa gelu4x"]
    anew = (
        f"{file}: nocap judged the file with other options (--baseline, --target), so it did "
        "not check the file's own verdicts"
    )
    again = file.parent / "again.json"
    assert judge(file, *words, f"--json={again}") == (0, [anew])
    expected = api.compare(outputs, target=3.31, baseline="gqa gelu4x")
    told = content_of(again)
    text = json.dumps(expected["arms"]).replace(" on secret-host", "")
    assert json.loads(json.dumps(told["arms"])) == json.loads(text)
    assert told["question"]["target"] == 3.31


@pytest.mark.slow
def test_what_is_not_typed_stays_as_the_file_asks(outputs: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    again = tmp_path / "again.json"
    words = ["--target=3.5", "--cautious", "--allow=source", "--baseline=mlp.expansion=3"]
    assert compare.main([str(outputs), *words, f"--json={path}"]) == 0
    cases = (
        ("--target=3.31", "target", 3.31),
        ("--no-cautious", "cautious", False),
        ("--allow=kernel", "allow", ["kernel"]),
        ("--against=previous", "against", "previous"),
    )
    for typed, key, value in cases:
        assert judge(path, typed, f"--json={again}")[0] == 0
        was = content_of(path)["question"]
        now = content_of(again)["question"]
        if key == "against":
            assert now["against"] == "previous"
            continue
        assert now == {**was, key: value}


def test_a_chain_is_asked_for_a_baseline_again(outputs: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert compare.main([str(outputs), "--against=previous", f"--json={path}"]) == 0
    code, lines = judge(path, "--baseline=gqa gelu4x")
    assert code == 2
    assert "--baseline does not work with --against previous" in lines[0]
    assert judge(path, "--baseline=gqa gelu4x", "--against=baseline")[0] == 0


@pytest.mark.slow
def test_edited_records_are_named_whatever_is_asked(file: Path) -> None:
    content = content_of(file)
    run_of(content)["summary"].update(val_loss=3.27)
    written(content, file)
    again = file.parent / "again.json"
    code, lines = judge(file, "--target=3.31", f"--json={again}")

    assert code == 1
    assert lines[0].startswith(f"{file}: records: its digest does not match")
    assert lines[1].startswith(f"{file}: nocap judged the file with other options (--target)")
    # who gets the new file hears of it too
    assert lines[0] in content_of(again)["problems"]
    assert judge(again)[0] == 0


def test_a_program_hears_of_an_edit(file: Path) -> None:
    content = content_of(file)
    arm_of(content, "mqa gelu4x")["difference"].update(BETTER)
    written(content, file)
    told = api.compare(file)
    verdicts = []
    for arm in told["arms"]:
        if arm["label"] == "mqa gelu4x":
            verdicts.append(arm["difference"]["verdict"])
    assert verdicts == ["no difference shown"]
    (line,) = [line for line in told["problems"] if line.startswith(str(file))]
    assert (
        'mqa gelu4x: difference.verdict is "better" in the file, '
        'but its rows give "no difference shown"' in line
    )


# --- edits ----------------------------------------------------------------------------------------


def arm_of(content: Json, label: str = "gqa gelu4x") -> Json:
    return next(arm for arm in content["arms"] if arm["label"] == label)


def run_of(content: Json, words: str = "gqa-gelu4x", seed: int = 1) -> Json:
    return next(run for run in content["records"] if run["name"] == f"gpt2-{words}-s{seed}")


BETTER = {"outcome": "better", "verdict": "better"}
# An edit, and what a line must name, though the rows' digest was made anew.
EDITS: dict[str, tuple[Callable[[Json], object], tuple[str, ...]]] = {
    "loss": (lambda c: run_of(c)["summary"].update(val_loss=3.27), ("gqa gelu4x: ", "difference.")),
    "curve": (
        lambda c: run_of(c)["curve"]["val_loss"].__setitem__(2, 3.4),
        ("gqa gelu4x: ", "to_target."),
    ),
    "word": (
        lambda c: arm_of(c, "mqa gelu4x")["difference"].update(BETTER),
        (
            'mqa gelu4x: difference.verdict is "better" in the file, '
            'but its rows give "no difference shown"',
        ),
    ),
    "interval": (
        lambda c: arm_of(c)["difference"].update(high=arm_of(c)["difference"]["high"] - 0.0001),
        ("gqa gelu4x: difference.high is ",),
    ),
    "finding": (
        lambda c: c["findings"]["found"][0].update(name="mine"),
        ("comparison: findings.found",),
    ),
    "speed": (
        lambda c: arm_of(c)["token_us"]["ratio"].update(mean=1.2),
        ("gqa gelu4x: token_us.ratio.mean is 1.2",),
    ),
    "seed out": (
        lambda c: c["records"].remove(run_of(c)),
        (
            'gqa gelu4x: difference.verdict is "better" in the file, '
            'but its rows give "no verdict (n=2)"',
        ),
    ),
    "diverged out": (
        lambda c: c["records"].remove(run_of(c, "flash-swiglu", 0)),
        ("flash swiglu: ", "diverged is [0] in the file, but its rows give []"),
    ),
    "arm out": (
        lambda c: c["arms"].remove(arm_of(c, "flash gelu3x")),
        ("flash gelu3x: ", "comparison: "),
    ),
    "arm twice": (
        lambda c: c["arms"].insert(1, {**arm_of(c, "mqa gelu4x"), "val_loss": 3.0}),
        ("comparison: arms",),
    ),
    "doubts": (lambda c: c.update(problems=[]), ("problems: ",)),
    "left out": (lambda c: c.update(not_compared=[]), ("not_compared: ",)),
    "source": (
        lambda c: [
            run_of(c, "flash-gelu4x-lr", seed)["parts"]["source"].update(
                {"nocap.training.loop": "s0"}
            )
            for seed in range(3)
        ],
        (
            'lr: difference.verdict is "confounded (source)" in the file, '
            'but its rows give "better"',
        ),
    ),
    "measured": (
        lambda c: c["measurements"][0].update(value=1.0),
        ("comparison: measurements",),
    ),
    "baseline": (
        lambda c: c["question"].update(baseline=run_of(c)["identity"]),
        ("flash gelu4x: ", "gqa gelu4x: ", "comparison: baseline"),
    ),
    "told baseline": (
        lambda c: c.update(baseline="another"),
        ('comparison: baseline is "another"',),
    ),
    "target": (lambda c: c["question"].update(target=3.4), ("gqa gelu4x: to_target",)),
    "copied": (
        lambda c: c["records"].append({**run_of(c), "identity": "0123456789ab", "seed": 5}),
        ("gqa gelu4x: ",),
    ),
}


QUICK = ("loss", "word", "diverged out", "arm twice", "source", "target", "doubts")


@pytest.mark.parametrize(
    "edit",
    [*QUICK, *(pytest.param(edit, marks=pytest.mark.slow) for edit in EDITS if edit not in QUICK)],
)
def test_each_edit_is_named(file: Path, edit: str) -> None:
    before = content_of(file)
    change, named = EDITS[edit]
    change(content := content_of(file))
    edited = [part for part in before["sha256"] if content[part] != before[part]]
    written(content, file)
    code, lines = judge(file)
    assert code == 1, lines
    assert all(line.startswith(f"{file}: ") for line in lines)
    digests = [line.split(": ")[1] for line in lines if "its digest does not match" in line]
    assert digests == edited
    for words in named:
        assert any(words in line for line in lines), lines
    written(sealed(content), file)
    code, lines = judge(file)
    assert code == 1, lines
    assert not any("its digest does not match" in line for line in lines)
    for words in named:
        assert any(words in line for line in lines), lines


@pytest.mark.slow
def test_what_moves_no_word(file: Path) -> None:
    """An edit is named by the digest; another machine may round otherwise; another judge is named
    where it says something else."""
    content = content_of(file)
    device = {"environment": {"device": "another"}}
    first, *others = content["records"]
    shown = arm_of(content)["difference"]
    rounded = {**shown, "low": shown["low"] * (1 + 1e-12), "sd": shown["sd"] + 1e-16}
    found = next(each for each in content["findings"]["found"] if each["name"] == "gqa gelu4x")
    found["difference"].update(rounded)
    content["judge"] = "nocap 7.0 (0123)"
    other_device = {**first, "parts": {**first["parts"], **device}}
    cases = (
        ([other_device, *others], {}, 1, "records: "),
        (content["records"], rounded, 0, ""),
        (
            content["records"],
            {"verdict": "worse"},
            1,
            "nocap 7.0 (0123) judged the file, and nocap",
        ),
    )
    for records, difference, code, line in cases:
        shown.update(difference)
        written({**content, "records": records}, file)
        told, lines = judge(file)
        assert told == code
        assert line in "\n".join(lines)


# --- refused --------------------------------------------------------------------------------------


def _with(path: str, value: Any) -> Callable[[Json], str]:
    words = path.split("/")
    *keys, last = (int(key) if key.isdigit() else key for key in words)

    def text(content: Json) -> str:
        reduce(lambda place, key: place[key], keys, content)[last] = value
        return json.dumps(content)

    return text


NO_RESULT: dict[str, tuple[Callable[[Json], str], str]] = {
    "no JSON": (lambda content: "{", "JSON object"),
    "a list": (lambda content: "[]", "JSON object"),
    "nothing": (lambda content: "{}", "be a comparison that nocap.compare --json wrote"),
    "a study's results": (
        _with("kind", "study"),
        "be a comparison that nocap.compare --json wrote",
    ),
    "newer": (
        lambda content: json.dumps({"schema_version": 99, "kind": "comparison"}),
        "schema_version must be at most 1",
    ),
    "a version that is none": (_with("schema_version", "1"), "schema_version must be an integer"),
    "NaN": (_with("question/target", math.nan), "numbers must be finite"),
    "deep": (
        lambda content: json.dumps({**content, "records": 0}).replace(
            '"records": 0', f'"records": {"[" * 100_000}'
        ),
        "so deep",
    ),
    "a long number": (
        lambda content: json.dumps(content).replace('"target": 3.5', f'"target": {"9" * 5_000}'),
        "at most 300 digits, got 5000",
    ),
    "a number that no float holds": (_with("records/0/summary/val_loss", 10**400), "got 401"),
    "no rows": (_with("records", []), "question.baseline"),
    "rows of texts": (_with("records", ["x"]), "Expected `object`, got `str` - at `$.records[0]`"),
    "a row without a curve": (
        _with("records/0/curve", None),
        "Expected `object`, got `null` - at `$.records[0].curve`",
    ),
    "a curve of another length": (_with("records/0/curve/step", [1]), "columns of the same length"),
    "a curve with a hole": (
        _with("records/0/curve/val_loss/0", None),
        "Expected `float`, got `null` - at `$.records[0].curve.val_loss[0]`",
    ),
    "no seed": (
        _with("records/0/seed", None),
        "Expected `int`, got `null` - at `$.records[0].seed`",
    ),
    "a key too many": (_with("records/0/more", 1), "more"),
    "a run twice": (
        lambda content: json.dumps(
            sealed({**content, "records": [*content["records"], content["records"][0]]})
        ),
        "records must hold each run only once",
    ),
    "a baseline that is no run": (_with("question/baseline", "/**"), "question.baseline"),
    "a target above all losses": (_with("question/target", 1e9), "--target"),
    "an unknown --allow": (_with("question/allow", ["everything"]), "--allow"),
    "arms of numbers": (_with("arms", [1]), "Expected `object`, got `int` - at `$.arms[0]`"),
    "no arms": (_with("arms", None), "Expected `array`, got `null` - at `$.arms`"),
    "no digests": (_with("sha256", {}), "missing required field `question` - at `$.sha256`"),
    "an identity that is a pattern": (
        _with("records/0/identity", "/**"),
        "the identity of a run must be",
    ),
    "a baseline that runs": (
        lambda content: _with("question/baseline", run_of(content, "flash-gelu4x", 9)["identity"])(
            content
        ),
        "question.baseline",
    ),
    "a baseline of no one's": (
        _with("question/baseline", None),
        "Expected `str`, got `null` - at `$.question.baseline`",
    ),
    "caution that is none": (
        _with("question/cautious", "yes"),
        "Expected `bool`, got `str` - at `$.question.cautious`",
    ),
    "a question too many": (_with("question/hope", 1), "hope"),
    "doubts of numbers": (
        _with("reading/problems", [1]),
        "Expected `str`, got `int` - at `$.reading.problems[0]`",
    ),
}


@pytest.mark.parametrize(
    "case",
    [
        # every other one
        pytest.param(case, marks=pytest.mark.slow if number % 2 else ())
        for number, case in enumerate(NO_RESULT)
    ],
)
def test_what_is_no_result_is_refused(file: Path, case: str) -> None:
    text, rule = NO_RESULT[case]
    written(text(content_of(file)), file)
    code, lines = judge(file)
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert rule in lines[0]
    assert str(file) in lines[0]


def test_options_of_logs_are_refused_beside_a_result(file: Path, tmp_path: Path) -> None:
    for word in ("--columns=step=iter", "--hardware=H100"):
        code, (line,) = judge(file, word)
        assert code == 2
        assert f"{word.partition('=')[0]} can be used only for logs" in line
    assert judge(tmp_path / "none.json")[0] == 2
    (tmp_path / "folder.json").mkdir()
    assert judge(tmp_path / "folder.json")[0] == 2
    os.mkfifo(tmp_path / "pipe.json")  # nobody writes into it
    assert judge(tmp_path / "pipe.json")[0] == 2


@pytest.mark.parametrize(
    "cases", [40, pytest.param(200, marks=(pytest.mark.slow, pytest.mark.timeout(600)))]
)
def test_damage_of_any_kind_has_an_answer(original: Path, tmp_path: Path, cases: int) -> None:
    rng = random.Random(cases)
    codes = set[int]()
    hows = ["json"] * 12 + [
        "flip",
        "cut",
        "extend",
        "replace",
        "empty",
        "delete",
        "folder",
        "fifo",
        "link",
        "shut",
    ]
    (tmp_path / "outside").mkdir()
    for number in range(cases):
        (tmp_path / str(number)).mkdir()
        file = Path(shutil.copy(original, tmp_path / str(number) / "result.json"))
        how = rng.choice(hows)
        damage = random.Random(rng.randrange(10**6))
        with chdir(tmp_path), suppress(NOT_DONE):
            OPERATORS[how](file.relative_to(tmp_path), damage)
        code, lines = judge(file, "--html", f"{tmp_path}/page.html")
        assert code in (0, 1, 2), (how, number)
        assert lines
        codes.add(code)
    assert codes == {0, 1, 2}


# --- joined ---------------------------------------------------------------------------------------


def compared_to(path: Path, *words: object) -> Json:
    assert compare.main([*map(str, words), "--json", str(path)]) == 0
    return content_of(path)


def test_two_halves_of_a_grid_by_seeds_are_the_grid(tmp_path: Path) -> None:
    """By factor, at equal loss and at the second look, value for value."""
    places = ["flash-gelu4x", "flash-swiglu", "gqa-gelu4x", "gqa-swiglu"]

    def of_two_commands(run: Record) -> Record:
        first = run.seed < 3
        words = run.arm.split("-")[1:3]
        asked = {
            "at": f"2026-01-0{1 if first else 2}T00:00:00",
            "seeds": [*range(3 if first else 6)],
            "place": places.index("-".join(words)),
        }
        attempts = [{**run.manifest["attempts"][0], "asked": asked}]
        manifest = {**run.manifest, "attempts": attempts}
        return replace(run, manifest=manifest)

    whole = grid_with_lengths(of_two_commands)
    assert whole.look == 2
    files = []
    for number, seeds in enumerate(((0, 1, 2), (3, 4, 5))):
        half = [run for run in whole.found.records if run.seed in seeds]
        comparison = compared(Found(records=half), baseline="flash gelu4x")
        files.append(file_of(comparison, tmp_path / f"{number}.json"))
    again = compared_to(tmp_path / "joined.json", *files)
    content = to_json(result_of(whole))
    expected = json.loads(json.dumps(content))
    assert expected["by_factor"]
    assert len(expected["lengths"]) == 2
    labels = {arm["label"] for arm in expected["arms"]}
    assert labels == {arm["label"] for arm in again["arms"]}
    for arm in expected["arms"]:
        (other,) = [each for each in again["arms"] if each["arm"] == arm["arm"]]
        runs = sorted(other["runs"])
        assert {**other, "runs": runs} == {**arm, "runs": sorted(arm["runs"])}
    for key in ("by_factor", "findings", "look", "metric", "baseline", "swept", "confidence"):
        assert again[key] == expected[key]
    joined = result_file.read(tmp_path / "joined.json")
    assert joined.follows() == [follows(tmp_path / "joined.json", 36)]


def halves(
    tmp_path: Path, *words: str, a: Json | None = None, b: Json | None = None
) -> tuple[Path, Path]:
    """Two people's files of two arms, of three seeds each. `a`, `b`: what their runs have."""
    files = []
    for name, seeds, about in (("a", range(3), a or {}), ("b", range(3, 6), b or {})):
        root = two_arms(tmp_path / name, seeds, **about)
        files.append(tmp_path / f"{name}.json")
        assert compare.main([str(root), *words, f"--json={files[-1]}"]) == 0
    return files[0], files[1]


def two_arms(root: Path, seeds: range, **about: Any) -> Path:
    rng = random.Random(f"{seeds}")
    config = about.pop("config", {})
    for seed in seeds:
        for number, (arm, loss) in enumerate((("flash", 3.3), ("gqa", 3.28))):
            own = {**config, "attention.n_kv_heads": 12 if arm == "flash" else 4}
            write_run(
                root,
                words=f"gpt2-{arm}-gelu4x",
                seed=seed,
                loss=loss + rng.gauss(0, 0.0005),
                started=f"2026-01-01T00:{seed}{number}:00",
                config=own,
                **about,
            )
    return root


def test_colleagues_files_are_joined_by_arms_and_seeds(tmp_path: Path) -> None:
    files = halves(tmp_path)
    both = tmp_path / "both" / "runs"
    for name in ("a", "b"):
        shutil.copytree(tmp_path / name / "runs", both, dirs_exist_ok=True)
    expected = api.compare(tmp_path / "both")
    joined = compared_to(tmp_path / "joined.json", *files)
    for key, value in json.loads(json.dumps(expected)).items():
        assert joined[key] == value
    seeds = [arm["seeds"] for arm in joined["arms"]]
    assert seeds == [[*range(6)]] * 2
    lines = [follows(files[0], 6), follows(files[1], 6)]
    assert judge(*files) == (0, lines)
    assert api.compare(files) == expected
    # files and folders mix, and the order changes nothing
    for paths in ((files[1], files[0]), (files[0], tmp_path / "b"), (tmp_path / "a", files[1])):
        again = compared_to(tmp_path / "again.json", *paths)
        assert again["arms"] == joined["arms"]


def test_a_run_that_is_in_both_counts_once(tmp_path: Path) -> None:
    first = tmp_path / "a.json"
    second = tmp_path / "b.json"
    root = two_arms(tmp_path / "o", range(4))
    compared_to(first, root)
    compared_to(second, *(root / "runs").glob("*-s[123]-*"))
    joined = compared_to(tmp_path / "joined.json", first, second)
    assert joined["arms"] == content_of(first)["arms"]
    (line,) = joined["problems"]
    assert line.startswith(
        f"{second}: other files also hold 6 runs of this file; each run counts once "
        "(gpt2-flash-gelu4x-s1-"
    )
    assert compared_to(tmp_path / "twice.json", first, first)["problems"] == []


def test_a_run_that_ended_otherwise_in_the_other_file_is_named(tmp_path: Path) -> None:
    first = tmp_path / "a.json"
    second = tmp_path / "b.json"
    compared_to(first, two_arms(tmp_path / "o", range(3)))
    run = next((tmp_path / "o" / "runs").glob("gpt2-gqa-gelu4x-s1-*"))
    summary = json.loads((run / "summary.json").read_text())
    write_summary(run, {**summary, "val_loss": 3.25})
    compared_to(second, tmp_path / "o")
    joined = compared_to(tmp_path / "joined.json", first, second)
    assert joined["arms"] == content_of(first)["arms"]
    (line,) = [line for line in joined["problems"] if "ended at" in line]
    assert line == (
        f"gpt2-gqa-gelu4x-s1 (identity {run.name[-12:]}) ended at {summary['val_loss']} in "
        f"{first} and at "
        f"3.25 in {second}: nocap uses the first value"
    )


def test_speeds_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    fast = {"speed": 3000.0, "fingerprint": "bbbb"}
    files = halves(tmp_path, a={"speed": 1000.0}, b=fast)
    joined = compared_to(tmp_path / "joined.json", *files)
    pace = joined["arms"][1]["token_us"]
    assert pace["ratio"] is None
    assert pace["refused"].startswith("its runs are from 2 machines")
    assert joined["arms"][1]["difference"]["verdict"] == "better"
    refusals = [content_of(file)["arms"][1]["token_us"]["refused"] for file in files]
    assert refusals == [None, None]


# What the runs of the second file have → what the refusal says, and what declares it.
OTHERS: dict[str, tuple[Json, str, list[str]]] = {
    "torch": (
        {"torch": "2.11.0"},
        "torch 2.11.0, not 2.13.0 (to accept this difference, type --allow torch)",
        ["torch"],
    ),
    "source": (
        {"source": "s1"},
        "source nocap.training.loop s1, not nocap.training.loop s0 (to accept this difference, "
        "type --allow source)",
        ["source"],
    ),
    "data": (
        {"train": "t1"},
        "data t1, not t0 (to accept this difference, type --allow data)",
        ["data"],
    ),
    "validation": (
        {"val": "v1"},
        "data.val v1, not v0; data t0v1, not t0v0 (to accept this difference, type --allow "
        "data.val --allow data)",
        ["data"],
    ),
    "kernel": (
        {"kernel": "math"},
        "kernel math, not flash (to accept this difference, type --allow kernel)",
        ["kernel"],
    ),
    "several": (
        {"torch": "2.11.0", "source": "s1"},
        "torch 2.11.0, not 2.13.0; source nocap.training.loop s1, not nocap.training.loop s0 "
        "(to accept this difference, type --allow torch --allow source)",
        ["torch", "source"],
    ),
    "precision": ({"config": {"trainer.precision": "bf16"}}, "precision bf16, not fp32", []),
    "val_precision": (
        {"config": {"trainer.val_precision": "bf16"}},
        "trainer.val_precision bf16, not fp32 (to accept this difference, type --allow "
        "trainer.val_precision)",
        ["trainer.val_precision"],
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_files_that_disagree_are_refused_by_name(tmp_path: Path, other: str) -> None:
    about, why, allow = OTHERS[other]
    if other == "precision":
        fp32 = {"config": {"trainer.precision": "fp32"}}
    else:
        fp32 = {}
    files = halves(tmp_path, a=fp32, b=about)
    code, lines = judge(*files)
    assert code == 2
    assert lines == [
        f"nocap: {files[1]} must have the same data, code and settings as {files[0]}, got {why}"
    ]
    code, lines = judge(*files, *(f"--allow={key}" for key in allow))
    assert code == (0 if allow else 2), lines


def test_a_declared_difference_is_compared_as_that_of_runs_is(tmp_path: Path) -> None:
    """Runs of other code are other arms: nobody averages over an edit."""
    files = halves(tmp_path, b={"source": "s1"})
    joined = compared_to(tmp_path / "joined.json", *files, "--allow=source")
    shutil.copytree(tmp_path / "b" / "runs", tmp_path / "a" / "runs", dirs_exist_ok=True)
    content = api.compare(tmp_path / "a", allow=["source"])
    expected = json.loads(json.dumps(content))
    assert joined["arms"] == expected["arms"]
    assert len(joined["arms"]) == 4


QUESTIONS: dict[str, tuple[list[str], list[str], str]] = {
    "target": (["--target=3.4"], ["--target=3.5"], "--target 3.5, not 3.4"),
    "no target": (["--target=3.4"], [], "--target none, not 3.4"),
    "allow": ([], ["--allow=source"], "--allow source, not nothing"),
    "cautious": ([], ["--cautious"], "--cautious true, not false"),
    "against": ([], ["--against=previous"], "--against previous, not baseline"),
    "baseline": (
        [],
        ["--baseline=gpt2-gqa-gelu4x-s3"],
        "--baseline with attention.n_kv_heads=4, not 12",
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_different_questions_are_refused_by_name_unless_typed(
    tmp_path: Path, question: str
) -> None:
    one, other, why = QUESTIONS[question]
    files = []
    for name, seeds, words in (("a", range(3), one), ("b", range(3, 6), other)):
        files.append(tmp_path / f"{name}.json")
        compared_to(files[-1], two_arms(tmp_path / name, seeds), *words)
    code, lines = judge(*files)
    assert code == 2
    rule = f"must have the same flags as {files[0]} (or give these flags in this command)"
    assert lines == [f"nocap: {files[1]} {rule}, got {why}"]
    if question != "baseline":
        typed = (one or other)[0]
    else:
        typed = "--baseline=flash"
    code, lines = judge(*files, typed)
    assert code == 0
    part = typed.partition("=")[0]
    assert lines == [
        f"{file}: nocap judged the file with other options ({part}), so it did not check the "
        "file's own verdicts"
        for file in files
    ]


def test_an_edited_file_is_named_among_those_that_are_joined(tmp_path: Path) -> None:
    files = halves(tmp_path)
    content = content_of(files[1])
    content["records"][0]["summary"]["val_loss"] = 3.1
    written(content, files[1])
    code, (sound, *lines) = judge(*files)
    assert code == 1
    assert sound == follows(files[0], 6)
    assert lines[0].startswith(f"{files[1]}: records: its digest does not match")
    written("{", files[1])
    code, (line,) = judge(*files)
    assert code == 2
    assert str(files[1]) in line


def test_logs_are_joined_and_what_names_no_seed_is_paired_with_nothing(tmp_path: Path) -> None:
    """Though both files count such runs from -1 on."""
    files = []
    for name, seeds in (("a", range(3)), ("b", range(3, 6))):
        loaded = of_logs(TWO, seeds, named=False)
        files.append(file_of(compared(loaded), tmp_path / f"{name}.json"))
    joined = compared_to(tmp_path / "joined.json", *files)
    (difference,) = [arm["difference"] for arm in joined["arms"] if arm["difference"]]
    comparison = compared(of_logs(TWO, range(6), named=False))
    whole = to_json(result_of(comparison))
    (expected,) = [arm["difference"] for arm in whole["arms"] if arm["difference"]]
    assert difference["n"] == expected["n"]
    assert difference["mean"] == pytest.approx(expected["mean"], abs=1e-12)
    assert difference["high"] == pytest.approx(expected["high"], abs=1e-12)
    assert joined["arms"][0]["label"] == "base"
    own = compared_to(tmp_path / "own.json", two_arms(tmp_path / "o", range(3)))
    assert own["imported"] is False
    code, (line,) = judge(files[0], tmp_path / "own.json", "--baseline=base")
    assert code == 2
    assert "hold runs of the same trainer" in line


# --- the command ----------------------------------------------------------------------------------


def test_what_makes_no_comparison_leaves_no_file(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = write_run(tmp_path, status="running")
    into = ("--json", tmp_path / "a.json")
    cases = (
        ("a comparison needs a finished run", half, *into),
        ("no run was found", "nowhere", *into),
        ("--baseline must name exactly one of the arms", outputs, "--baseline", "x", *into),
        ("--target must be a finite loss above 0, got -1.0", outputs, "--target", "-1", *into),
        ("--json must be a file that can be written", outputs, "--json", tmp_path),
        ("--markdown must be a file that can be written", outputs, "--markdown", tmp_path),
    )
    for rule, *words in cases:
        assert rule in refusal([*words], capsys)
    assert not (tmp_path / "a.json").exists()


def test_a_file_may_take_its_own_place(file: Path) -> None:
    before = of_file(content_of(file))
    assert judge(file, f"--json={file}")[0] == 0
    assert of_file(content_of(file)) == before


def test_a_secret_of_this_machine_is_in_no_file(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "gpt2-flash-swiglu")
    files = [tmp_path / "a.json", tmp_path / "a.md"]
    assert compare.main([str(outputs), f"--json={files[0]}", f"--markdown={files[1]}"]) == 0
    for path in files:
        assert "gpt2-flash-swiglu" not in path.read_text()
    monkeypatch.delenv("SOME_TOKEN")
    assert judge(files[0])[0] == 0
