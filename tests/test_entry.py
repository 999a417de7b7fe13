"""An entry: what `nocap.export entry` writes, `nocap.compare --verify` judges anew, and finds every edit."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
import shutil
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

import pytest

from nocap import api, compare, export
from nocap.judge.compare import compare as compared
from nocap.report import entry
from nocap.store.record import write_summary
from nocap.store.runs import Curve, Found, Record
from tests.fuzz.damage import NOT_DONE, OPERATORS
from tests.fuzz.judge import CONTROL
from tests.fuzz.process import answer
from tests.made_grid import EVIL, made
from tests.test_compare import write_run

Json = dict[str, Any]

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
    root, rng = tmp_path_factory.mktemp("entry") / "outputs", random.Random(1)
    for number, (words, about) in enumerate(ARMS.items()):
        for seed in range(3):
            started, loss = f"2026-01-01T00:{seed}{number}:00", about["loss"] + rng.gauss(0, 0.0005)
            write_run(root, words=words, seed=seed, started=started, **{**about, "loss": loss})
    for seed, status in enumerate(("diverged", "finished", "finished")):
        write_run(
            root,
            words="gpt2-flash-swiglu",
            config={"mlp.activation": "swiglu"},
            seed=seed,
            status=status,
            loss=3.2 + seed / 1000,
        )
    write_run(root, words="gpt2-flash-gelu4x", seed=9, status="running")
    write_run(root, words="gpt2-other", seed=0, val="v1")  # of another group
    for folder in (root / "runs").glob("*/"):
        if (summary := folder / "summary.json").exists():  # a machine has a name
            content = json.loads(summary.read_text())
            write_summary(folder, {**content, "hardware": {**content["hardware"], "host": "secret-host"}})
    return root


@pytest.fixture(scope="module")
def original(outputs: Path) -> Path:
    folder = outputs.parent / "original"
    assert export.main(["entry", str(outputs), "-o", str(folder), "--target", "3.5"]) == 0
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "copy")


def content_of(folder: Path) -> Json:
    content: Json = json.loads((folder / "entry.json").read_text())
    return content


def sealed(content: Json) -> Json:
    """As somebody writes it who knows how its digest is made."""
    rows = json.dumps(content["runs"], sort_keys=True).encode()
    return {**content, "sha256": {**content["sha256"], "runs": hashlib.sha256(rows).hexdigest()}}


def verify(folder: Path, *words: str) -> tuple[int, list[str]]:
    said = answer(lambda: compare.main(["--verify", str(folder), *words]))
    assert said.crash is None, said.trace
    assert not CONTROL.search(said.out + said.err)
    return said.code, [*said.out.splitlines(), *said.err.splitlines()]


# --- the same -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"target": 3.5},
        {"baseline": "gqa"},
        {"baseline": "mlp.expansion=3", "allow": ["source"]},
        {"allow": ["data.val", "torch"], "target": 3.31},
    ],
    ids=str,
)
def test_an_entry_says_what_compare_says_and_says_it_again(
    outputs: Path, tmp_path: Path, question: Json
) -> None:
    words = [
        f"--{key}={value}"
        for key, values in question.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    assert export.main(["entry", str(outputs), "-o", str(tmp_path / "entry"), *words]) == 0
    assert compare.main([str(outputs), "--json", str(tmp_path / "compared.json"), *words]) == 0
    content, expected = content_of(tmp_path / "entry"), json.loads((tmp_path / "compared.json").read_text())
    told = content["comparison"]
    assert len({arm["difference"]["outcome"] for arm in told["arms"] if arm["difference"]}) >= 2
    assert told == json.loads(
        json.dumps({key: value for key, value in expected.items() if key != "runs"}).replace(
            " on secret-host", ""
        )
    )
    code, lines = verify(tmp_path / "entry")
    assert (code, len(lines)) == (0, 1)
    assert "says the same" in lines[0]


def test_what_an_entry_holds(original: Path, outputs: Path) -> None:
    content, page = content_of(original), (original / "entry.md").read_text()
    run = content["runs"][0]
    (record,) = (outputs / "runs").glob(f"*-{run['identity']}")
    summary = json.loads((record / "summary.json").read_text())
    assert run["summary"]["sha256"] == summary["sha256"]
    assert (run["summary"]["val_loss"], run["curve"]["step"]) == (
        summary["val_loss"],
        [0, 100, 200, 300, 400],
    )
    assert run["parts"] == {
        key: part
        for key, part in json.loads((record / "manifest.json").read_text())["parts"].items()
        if key != "config"
    }
    assert content["judge"].startswith("nocap ")
    assert content["command"].startswith("python -m nocap.export entry ")
    assert "secret-host" not in page + json.dumps(content)
    assert "| gqa gelu4x | 3 |" in page
    assert f"--verify {original}" in page
    for doubt in content["comparison"]["problems"]:
        assert doubt in page


def test_a_verified_entry_is_a_comparison_like_any_other(folder: Path, outputs: Path) -> None:
    assert (
        verify(
            folder, "--json", f"{folder}/a.json", "--csv", f"{folder}/a.csv", "--html", f"{folder}/a.html"
        )[0]
        == 0
    )
    assert json.loads((folder / "a.json").read_text())["runs"] == [
        {**run, "hardware": {key: value for key, value in run["hardware"].items() if key != "host"}}
        for run in json.loads(json.dumps(api.compare(outputs, target=3.5)["runs"]))
    ]
    assert len((folder / "a.csv").read_text().splitlines()) == 20
    assert "gqa" in (folder / "a.html").read_text()


def test_an_entry_of_records_that_logs_are_made_into(tmp_path: Path) -> None:
    """Such have no parts, a manifest that says where they are from, and a config that names the arm."""
    mark = {"format": "csv", "seed": "name", "hardware": None}
    records = [
        Record(
            folder=Path(f"logs/{arm}-{seed}.log"),
            identity=f"{arm}-{seed}",
            name=arm,
            arm=arm,
            seed=seed,
            status="finished",
            started="",
            config={"arm": arm},
            parts={},
            manifest={"attempts": [{}], "imported": mark},
            summary={"val_loss": loss + seed / 1000, "steps": 10},
            curve=Curve(
                step=[0, 10],
                tokens=[0, 0],
                train_s=[0.0, 1.0],
                val_loss=[11.0, loss + seed / 1000],
                val_bpb=[None, None],
            ),
        )
        for arm, loss in (("base", 3.3), ("idea", 3.2))
        for seed in range(4)
    ]
    comparison = compared(entry.bare(Found(records=records)))
    entry.write(comparison, tmp_path, allow=[], command="python -m nocap.export entry logs")
    again, lines = entry.verify(tmp_path)
    assert lines == []
    assert again.json() == comparison.json()
    assert [run.manifest["imported"] for run in again.records] == [mark] * 8
    assert [row.difference.outcome.value for row in again.arms if row.difference] == ["better"]


def test_what_people_name_does_nothing_on_a_page(tmp_path: Path) -> None:
    hostile = f"{EVIL}\x1b[2J\nsays the same"
    grid = made(3)
    records = [
        Record(**{**vars_of(run), "name": f"{hostile}{run.name}", "status": run.status})
        for run in grid.records
    ]
    entry.write(compared(entry.bare(Found(records=records))), tmp_path, allow=[], command=f"x {hostile}")
    assert "<img" not in (tmp_path / "entry.md").read_text()
    assert "\x1b" not in (tmp_path / "entry.md").read_text()
    assert verify(tmp_path)[0] == 0
    content = content_of(tmp_path)
    content["comparison"]["arms"][1]["difference"]["verdict"] = hostile
    (tmp_path / "entry.json").write_text(json.dumps(content))
    code, lines = verify(tmp_path)
    assert (code, [line for line in lines if line.startswith("says the same")]) == (1, [])


def vars_of(run: Record) -> Json:
    return {name: getattr(run, name) for name in Record.__dataclass_fields__}


# --- edits --------------------------------------------------------------------------------------------------


def arm_of(content: Json, label: str) -> Json:
    return next(arm for arm in content["comparison"]["arms"] if arm["label"] == label)


def run_of(content: Json, words: str, seed: int = 1) -> Json:
    return next(run for run in content["runs"] if run["name"] == f"gpt2-{words}-s{seed}")


def _loss(content: Json) -> None:
    run = run_of(content, "gqa-gelu4x")
    run["summary"]["val_loss"] -= 0.01


def _curve(content: Json) -> None:
    run_of(content, "gqa-gelu4x")["curve"]["val_loss"][2] = 3.4


def _word(content: Json) -> None:
    arm_of(content, "mqa gelu4x")["difference"].update(outcome="better", verdict="better")


def _interval(content: Json) -> None:
    arm_of(content, "gqa gelu4x")["difference"]["high"] -= 0.0001


def _speed(content: Json) -> None:
    arm_of(content, "gqa gelu4x")["tokens_per_s"]["ratio"]["mean"] = 1.2


def _seed_out(content: Json) -> None:
    content["runs"].remove(run_of(content, "gqa-gelu4x"))


def _diverged_out(content: Json) -> None:
    content["runs"].remove(run_of(content, "flash-swiglu", 0))


def _arm_out(content: Json) -> None:
    content["comparison"]["arms"].remove(arm_of(content, "flash gelu3x"))


def _arm_twice(content: Json) -> None:
    content["comparison"]["arms"].insert(1, {**arm_of(content, "mqa gelu4x"), "val_loss": 3.0})


def _doubt(content: Json) -> None:
    content["comparison"]["problems"] = []


def _left_out(content: Json) -> None:
    content["comparison"]["not_compared"] = []


def _source(content: Json) -> None:
    for seed in range(3):
        run_of(content, "flash-gelu4x-lr", seed)["parts"]["source"] = {"nocap.training.loop": "s0"}


def _measured(content: Json) -> None:
    content["comparison"]["measurements"][0]["value"] = 1.0


def _baseline(content: Json) -> None:
    content["question"]["baseline"] = run_of(content, "gqa-gelu4x")["identity"]


def _told_baseline(content: Json) -> None:
    content["comparison"]["baseline"] = "another"


def _target(content: Json) -> None:
    content["question"]["target"] = 3.4


def _copied(content: Json) -> None:
    run = copy.deepcopy(run_of(content, "gqa-gelu4x"))
    content["runs"].append({**run, "identity": "0123456789ab", "seed": 5})


# An edit, and what a line must name, though the rows' digest was made anew.
EDITS: dict[Callable[[Json], None], tuple[str, ...]] = {
    _loss: ("gqa gelu4x: ", "difference."),
    _curve: ("gqa gelu4x: ", "to_target."),
    _word: ('mqa gelu4x: difference.verdict is "better", by its rows "no difference shown"',),
    _interval: ("gqa gelu4x: difference.high is ",),
    _speed: ("gqa gelu4x: tokens_per_s.ratio.mean is 1.2",),
    _seed_out: ('gqa gelu4x: difference.verdict is "better", by its rows "no verdict (n=2)"',),
    _diverged_out: ("flash swiglu: ", "diverged is [0], by its rows []"),
    _arm_out: ("flash gelu3x: ", "comparison: "),
    _arm_twice: ("comparison: arms",),
    _doubt: ("problems: ",),
    _left_out: ("not_compared: ",),
    _source: ('lr: difference.verdict is "confounded (source)", by its rows "better"',),
    _measured: ("comparison: measurements",),
    _baseline: ("flash gelu4x: ", "gqa gelu4x: ", "comparison: baseline"),
    _told_baseline: ('comparison: baseline is "another"',),
    _target: ("gqa gelu4x: to_target",),
    _copied: ("gqa gelu4x: ",),
}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__[1:])
def test_each_edit_is_named(folder: Path, edit: Callable[[Json], None]) -> None:
    content = content_of(folder)
    rows = copy.deepcopy(content["runs"])
    edit(content)
    edited_rows = content["runs"] != rows
    for written, digest_line in ((content, edited_rows), (sealed(content), False)):
        (folder / "entry.json").write_text(json.dumps(written))
        code, lines = verify(folder)
        assert code == 1, lines
        assert any(line.startswith("runs: ") for line in lines) is digest_line
        for words in EDITS[edit]:
            assert any(words in line for line in lines), lines


def test_an_edit_that_moves_no_word_is_named_by_the_digest(folder: Path) -> None:
    content = content_of(folder)
    run_of(content, "gqa-gelu4x")["parts"]["environment"]["device"] = "another"
    (folder / "entry.json").write_text(json.dumps(content))
    code, lines = verify(folder)
    assert (code, [line.partition(":")[0] for line in lines]) == (1, ["runs"])


def test_an_edited_page_is_named_and_may_be_missing(folder: Path) -> None:
    page = folder / "entry.md"
    page.write_text(page.read_text().replace("no difference shown", "better"))
    code, lines = verify(folder)
    assert (code, [line.partition(":")[0] for line in lines]) == (1, ["entry.md"])
    page.unlink()
    assert verify(folder)[0] == 0


def test_another_machine_may_round_otherwise(folder: Path) -> None:
    content = content_of(folder)
    arm = arm_of(content, "gqa gelu4x")
    arm["difference"]["low"] *= 1 + 1e-12
    arm["difference"]["sd"] += 1e-16
    (folder / "entry.json").write_text(json.dumps(content))
    assert verify(folder)[0] == 0


def test_another_judge_is_named_where_it_says_something_else(folder: Path) -> None:
    content = content_of(folder)
    content["judge"] = "nocap 7.0 (0123)"
    (folder / "entry.json").write_text(json.dumps(content))
    assert verify(folder)[0] == 0
    _word(content)
    (folder / "entry.json").write_text(json.dumps(content))
    assert "judged by nocap 7.0 (0123), now by nocap" in verify(folder)[1][-1]


# --- refused ------------------------------------------------------------------------------------------------


def _with(*path: str | int, value: Any) -> Callable[[Json], str]:
    def text(content: Json) -> str:
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return json.dumps(content)

    return text


NO_ENTRY: dict[str, tuple[Callable[[Json], str], str]] = {
    "no JSON": (lambda content: "{", "JSON object"),
    "a list": (lambda content: "[]", "JSON object"),
    "nothing": (lambda content: "{}", "be an entry"),
    "a study's results": (_with("kind", value="study"), "be an entry"),
    "newer": (
        lambda content: json.dumps({"schema_version": 99, "kind": "entry"}),
        "schema_version must be at most 1",
    ),
    "a version that is none": (_with("schema_version", value="1"), "schema_version must be an integer"),
    "NaN": (_with("question", "target", value=math.nan), "numbers must be finite"),
    "deep": (
        lambda content: json.dumps({**content, "runs": 0}).replace('"runs": 0', f'"runs": {"[" * 100_000}'),
        "so deep",
    ),
    "a long number": (
        lambda content: json.dumps(content).replace('"target": 3.5', f'"target": {"9" * 5_000}'),
        "at most 300 digits, got 5000",
    ),
    "a number that no float holds": (_with("runs", 0, "summary", "val_loss", value=10**400), "got 401"),
    "no rows": (_with("runs", value=[]), "question.baseline"),
    "rows of texts": (_with("runs", value=["x"]), "runs[0] must be an object"),
    "a row without a curve": (_with("runs", 0, "curve", value={}), "runs[0].curve must have step"),
    "a curve of another length": (_with("runs", 0, "curve", "step", value=[1]), "columns of one length"),
    "a curve with a hole": (_with("runs", 0, "curve", "val_loss", 0, value=None), "TypeError"),
    "no seed": (_with("runs", 0, "seed", value=None), "seed must be an integer"),
    "a key too many": (_with("runs", 0, "more", value=1), "more"),
    "a run twice": (
        lambda content: json.dumps(sealed({**content, "runs": [*content["runs"], content["runs"][0]]})),
        "once each",
    ),
    "a baseline that is no run": (_with("question", "baseline", value="/**"), "question.baseline"),
    "a target above all losses": (_with("question", "target", value=1e9), "--target"),
    "an unknown --allow": (_with("question", "allow", value=["everything"]), "--allow"),
    "arms of numbers": (_with("comparison", "arms", value=[1]), "comparison.arms[0] must be an object"),
    "no arms": (_with("comparison", "arms", value=None), "comparison must have arms"),
    "no digests": (_with("sha256", value={}), "sha256 must have runs"),
}


@pytest.mark.parametrize("case", NO_ENTRY)
def test_what_is_no_entry_is_refused(folder: Path, case: str) -> None:
    text, rule = NO_ENTRY[case]
    (folder / "entry.json").write_text(text(content_of(folder)))
    code, lines = verify(folder)
    assert (code, len(lines)) == (2, 1), lines
    assert rule in lines[0]


def test_a_folder_without_an_entry_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        code, lines = verify(folder)
        assert (code, len(lines)) == (2, 1)
        assert "be an entry" in lines[0]


@pytest.mark.parametrize("word", ["runs", "--baseline=gqa", "--target=3", "--allow=source", "--group=x"])
def test_an_entry_has_its_own_question(folder: Path, word: str) -> None:
    assert verify(folder, word)[0] == 2


@pytest.mark.parametrize("cases", [20, pytest.param(300, marks=(pytest.mark.slow, pytest.mark.timeout(600)))])
def test_damage_of_any_kind_has_an_answer(original: Path, tmp_path: Path, cases: int) -> None:
    rng, codes = random.Random(cases), set[int]()
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
    for _ in range(cases):
        folder = shutil.copytree(original, tmp_path / "copy")
        how, seed = rng.choice(hows), rng.randrange(10**6)
        with chdir(tmp_path):
            with suppress(NOT_DONE):
                OPERATORS[how](Path("copy/entry.json"), random.Random(seed))
            code, lines = verify(Path("copy"), "--html", "page.html")
        assert code in (0, 1, 2), (how, seed)
        assert lines
        codes.add(code)
        shutil.rmtree(folder)
    assert codes == {0, 1, 2}


# --- the command --------------------------------------------------------------------------------------------


def test_runs_that_make_no_entry_leave_none(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "open", status="running")
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "taken" / "entry.json").mkdir(parents=True)
    cases = {
        "a comparison needs a finished run": [str(tmp_path / "open"), "-o", str(tmp_path / "a")],
        "no run was found": ["nowhere", "-o", str(tmp_path / "a")],
        "--baseline must name one arm": [str(outputs), "--baseline", "x", "-o", str(tmp_path / "a")],
        "--target must": [str(outputs), "--target", "-1", "-o", str(tmp_path / "a")],
        "-o must be a file that can be written": [str(outputs), "-o", str(file)],
        "entry.json": [str(outputs), "-o", str(tmp_path / "taken")],
    }
    for rule, words in cases.items():
        with pytest.raises(SystemExit, match="2"):
            export.main(["entry", *words])
        said = capsys.readouterr().err
        assert rule in said
        assert len(said.splitlines()) == 1
    assert not (tmp_path / "a").exists()
    assert file.read_text() == "mine"
    with pytest.raises(SystemExit, match="2"):
        export.main(["entry", str(outputs)])  # without -o


def test_an_entry_that_is_there_is_replaced_and_a_run_counts_once(outputs: Path, folder: Path) -> None:
    (folder / "IDEA.md").write_text("mine")
    first = content_of(folder)
    runs = [str(run) for run in (outputs / "runs").glob("gpt2-*gelu4x-s*")]
    assert export.main(["entry", *runs, *runs, "--baseline", "gpt2-flash-gelu4x-s0", "-o", str(folder)]) == 0
    assert len(content_of(folder)["runs"]) < len(first["runs"])
    assert len({run["identity"] for run in content_of(folder)["runs"]}) == len(content_of(folder)["runs"])
    assert verify(folder)[0] == 0
    assert sorted(path.name for path in folder.iterdir()) == ["IDEA.md", "entry.json", "entry.md"]


def test_a_secret_of_this_machine_is_in_no_entry(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "gpt2-flash-swiglu")
    assert export.main(["entry", str(outputs), "-o", str(tmp_path / "entry")]) == 0
    for name in ("entry.json", "entry.md"):
        assert "gpt2-flash-swiglu" not in (tmp_path / "entry" / name).read_text()
    monkeypatch.delenv("SOME_TOKEN")
    assert verify(tmp_path / "entry")[0] == 0
