"""An entry: what `nocap.export entry` writes, `nocap.compare --verify` judges anew, and finds every edit."""

from __future__ import annotations

import hashlib
import json
import math
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

from nocap import api, compare, export
from nocap.judge.compare import compare as compared
from nocap.report import entry
from nocap.store.record import write_summary
from nocap.store.runs import Curve, Found, Record
from tests.fuzz.damage import NOT_DONE, OPERATORS
from tests.fuzz.judge import CONTROL
from tests.fuzz.process import answer
from tests.made_grid import EVIL, made
from tests.test_compare import refusal, write_run

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
    swiglu: Json = {"words": "gpt2-flash-swiglu", "config": {"mlp.activation": "swiglu"}}
    for seed, status in enumerate(("diverged", "finished", "finished")):
        write_run(root, seed=seed, status=status, loss=3.2 + seed / 1000, **swiglu)
    write_run(root, words="gpt2-flash-gelu4x", seed=9, status="running")
    write_run(root, words="gpt2-other", seed=0, val="v1")  # of another group
    for path in (root / "runs").glob("*/summary.json"):  # a machine has a name
        content = json.loads(path.read_text())
        write_summary(path.parent, {**content, "hardware": {**content["hardware"], "host": "secret-host"}})
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


def written(content: Json | str, folder: Path) -> None:
    (folder / "entry.json").write_text(content if isinstance(content, str) else json.dumps(content))


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
def test_an_entry_says_what_compare_says_and_says_it_again(
    outputs: Path, tmp_path: Path, words: list[str]
) -> None:
    assert export.main(["entry", str(outputs), "-o", str(tmp_path / "entry"), *words]) == 0
    assert compare.main([str(outputs), "--json", str(tmp_path / "compared.json"), *words]) == 0
    content, expected = content_of(tmp_path / "entry"), json.loads((tmp_path / "compared.json").read_text())
    told = content["comparison"]
    assert len({arm["difference"]["outcome"] for arm in told["arms"] if arm["difference"]}) >= 2
    del expected["runs"]
    assert told == json.loads(json.dumps(expected).replace(" on secret-host", ""))
    code, (line,) = verify(tmp_path / "entry")
    assert (code, "says the same" in line) == (0, True)


def test_what_an_entry_holds(original: Path, outputs: Path) -> None:
    content, page = content_of(original), (original / "entry.md").read_text()
    run = content["runs"][0]
    (record,) = (outputs / "runs").glob(f"*-{run['identity']}")
    summary, manifest = (
        json.loads((record / f"{name}.json").read_text()) for name in ("summary", "manifest")
    )
    assert [run["summary"][key] for key in ("sha256", "val_loss")] == [summary["sha256"], summary["val_loss"]]
    assert run["curve"]["step"] == [0, 100, 200, 300, 400]
    assert run["parts"] == {key: part for key, part in manifest["parts"].items() if key != "config"}
    assert (content["judge"][:6], content["command"][:29]) == ("nocap ", "python -m nocap.export entry ")
    assert "secret-host" not in page + json.dumps(content)
    for line in ("| gqa gelu4x | 3 |", f"--verify {original}", *content["comparison"]["problems"]):
        assert line in page


def test_a_verified_entry_is_a_comparison_like_any_other(folder: Path, outputs: Path) -> None:
    files = [f"--{kind}={folder}/a.{kind}" for kind in ("json", "csv", "html")]
    assert verify(folder, *files)[0] == 0
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
    records = [replace(run, name=f"{hostile}{run.name}") for run in made(1).records]
    entry.write(compared(entry.bare(Found(records=records))), tmp_path, allow=[], command=f"x {hostile}")
    assert not re.search("<img|\x1b", (tmp_path / "entry.md").read_text())
    assert verify(tmp_path)[0] == 0
    content = content_of(tmp_path)
    content["comparison"]["arms"][1]["difference"]["verdict"] = hostile
    written(content, tmp_path)
    code, lines = verify(tmp_path)
    assert (code, [line for line in lines if line.startswith("says the same")]) == (1, [])


# --- edits --------------------------------------------------------------------------------------------------


def arm_of(content: Json, label: str = "gqa gelu4x") -> Json:
    return next(arm for arm in content["comparison"]["arms"] if arm["label"] == label)


def run_of(content: Json, words: str = "gqa-gelu4x", seed: int = 1) -> Json:
    return next(run for run in content["runs"] if run["name"] == f"gpt2-{words}-s{seed}")


BETTER = {"outcome": "better", "verdict": "better"}
# An edit, and what a line must name, though the rows' digest was made anew.
EDITS: dict[str, tuple[Callable[[Json], object], tuple[str, ...]]] = {
    "loss": (lambda c: run_of(c)["summary"].update(val_loss=3.27), ("gqa gelu4x: ", "difference.")),
    "curve": (lambda c: run_of(c)["curve"]["val_loss"].__setitem__(2, 3.4), ("gqa gelu4x: ", "to_target.")),
    "word": (
        lambda c: arm_of(c, "mqa gelu4x")["difference"].update(BETTER),
        ('mqa gelu4x: difference.verdict is "better", by its rows "no difference shown"',),
    ),
    "interval": (
        lambda c: arm_of(c)["difference"].update(high=arm_of(c)["difference"]["high"] - 0.0001),
        ("gqa gelu4x: difference.high is ",),
    ),
    "finding": (
        lambda c: c["comparison"]["findings"]["found"][0].update(name="mine"),
        ("comparison: findings.found",),
    ),
    "speed": (
        lambda c: arm_of(c)["token_us"]["ratio"].update(mean=1.2),
        ("gqa gelu4x: token_us.ratio.mean is 1.2",),
    ),
    "seed out": (
        lambda c: c["runs"].remove(run_of(c)),
        ('gqa gelu4x: difference.verdict is "better", by its rows "no verdict (n=2)"',),
    ),
    "diverged out": (
        lambda c: c["runs"].remove(run_of(c, "flash-swiglu", 0)),
        ("flash swiglu: ", "diverged is [0], by its rows []"),
    ),
    "arm out": (
        lambda c: c["comparison"]["arms"].remove(arm_of(c, "flash gelu3x")),
        ("flash gelu3x: ", "comparison: "),
    ),
    "arm twice": (
        lambda c: c["comparison"]["arms"].insert(1, {**arm_of(c, "mqa gelu4x"), "val_loss": 3.0}),
        ("comparison: arms",),
    ),
    "doubts": (lambda c: c["comparison"].update(problems=[]), ("problems: ",)),
    "left out": (lambda c: c["comparison"].update(not_compared=[]), ("not_compared: ",)),
    "source": (
        lambda c: [
            run_of(c, "flash-gelu4x-lr", seed)["parts"]["source"].update({"nocap.training.loop": "s0"})
            for seed in range(3)
        ],
        ('lr: difference.verdict is "confounded (source)", by its rows "better"',),
    ),
    "measured": (
        lambda c: c["comparison"]["measurements"][0].update(value=1.0),
        ("comparison: measurements",),
    ),
    "baseline": (
        lambda c: c["question"].update(baseline=run_of(c)["identity"]),
        ("flash gelu4x: ", "gqa gelu4x: ", "comparison: baseline"),
    ),
    "told baseline": (
        lambda c: c["comparison"].update(baseline="another"),
        ('comparison: baseline is "another"',),
    ),
    "target": (lambda c: c["question"].update(target=3.4), ("gqa gelu4x: to_target",)),
    "copied": (
        lambda c: c["runs"].append({**run_of(c), "identity": "0123456789ab", "seed": 5}),
        ("gqa gelu4x: ",),
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_each_edit_is_named(folder: Path, edit: str) -> None:
    content, (change, named) = content_of(folder), EDITS[edit]
    change(content)
    edited_rows = content["runs"] != content_of(folder)["runs"]
    for each, digest_line in ((content, True), (sealed(content), False))[not edited_rows :]:
        written(each, folder)
        code, lines = verify(folder)
        assert code == 1, lines
        assert any(line.startswith("runs: ") for line in lines) is digest_line
        assert all(any(words in line for line in lines) for words in named), lines


def test_what_moves_no_word(folder: Path) -> None:
    """An edit is named by the digest; another machine may round otherwise; another judge is named where it
    says something else."""
    content, device = content_of(folder), {"environment": {"device": "another"}}
    first, *others = content["runs"]
    shown = arm_of(content)["difference"]
    rounded = {**shown, "low": shown["low"] * (1 + 1e-12), "sd": shown["sd"] + 1e-16}
    found = next(each for each in content["comparison"]["findings"]["found"] if each["name"] == "gqa gelu4x")
    found["difference"].update(rounded)
    content["judge"] = "nocap 7.0 (0123)"
    for runs, difference, code, line in (
        ([{**first, "parts": {**first["parts"], **device}}, *others], {}, 1, "runs: "),
        (content["runs"], rounded, 0, ""),
        (content["runs"], {"verdict": "worse"}, 1, "judged by nocap 7.0 (0123), now by nocap"),
    ):
        shown.update(difference)
        written({**content, "runs": runs}, folder)
        told, lines = verify(folder)
        assert (told, line in "\n".join(lines)) == (code, True)


def test_an_edited_page_is_named_and_may_be_missing(folder: Path) -> None:
    page = folder / "entry.md"
    page.write_text(page.read_text().replace("no difference shown", "better"))
    code, (line,) = verify(folder)
    assert (code, line[:10]) == (1, "entry.md: ")
    page.unlink()
    assert verify(folder)[0] == 0


# --- refused ------------------------------------------------------------------------------------------------


def _with(path: str, value: Any) -> Callable[[Json], str]:
    *keys, last = (int(key) if key.isdigit() else key for key in path.split("/"))

    def text(content: Json) -> str:
        reduce(lambda place, key: place[key], keys, content)[last] = value
        return json.dumps(content)

    return text


NO_ENTRY: dict[str, tuple[Callable[[Json], str], str]] = {
    "no JSON": (lambda content: "{", "JSON object"),
    "a list": (lambda content: "[]", "JSON object"),
    "nothing": (lambda content: "{}", "be an entry"),
    "a study's results": (_with("kind", "study"), "be an entry"),
    "newer": (
        lambda content: json.dumps({"schema_version": 99, "kind": "entry"}),
        "schema_version must be at most 1",
    ),
    "a version that is none": (_with("schema_version", "1"), "schema_version must be an integer"),
    "NaN": (_with("question/target", math.nan), "numbers must be finite"),
    "deep": (
        lambda content: json.dumps({**content, "runs": 0}).replace('"runs": 0', f'"runs": {"[" * 100_000}'),
        "so deep",
    ),
    "a long number": (
        lambda content: json.dumps(content).replace('"target": 3.5', f'"target": {"9" * 5_000}'),
        "at most 300 digits, got 5000",
    ),
    "a number that no float holds": (_with("runs/0/summary/val_loss", 10**400), "got 401"),
    "no rows": (_with("runs", []), "question.baseline"),
    "rows of texts": (_with("runs", ["x"]), "runs[0] must be an object"),
    "a row without a curve": (_with("runs/0/curve", {}), "runs[0].curve must have step"),
    "a curve of another length": (_with("runs/0/curve/step", [1]), "columns of one length"),
    "a curve with a hole": (_with("runs/0/curve/val_loss/0", None), "TypeError"),
    "no seed": (_with("runs/0/seed", None), "seed must be an integer"),
    "a key too many": (_with("runs/0/more", 1), "more"),
    "a run twice": (
        lambda content: json.dumps(sealed({**content, "runs": [*content["runs"], content["runs"][0]]})),
        "once each",
    ),
    "a baseline that is no run": (_with("question/baseline", "/**"), "question.baseline"),
    "a target above all losses": (_with("question/target", 1e9), "--target"),
    "an unknown --allow": (_with("question/allow", ["everything"]), "--allow"),
    "arms of numbers": (_with("comparison/arms", [1]), "comparison.arms[0] must be an object"),
    "no arms": (_with("comparison/arms", None), "comparison must have arms"),
    "no digests": (_with("sha256", {}), "sha256 must have runs"),
}


@pytest.mark.parametrize("case", NO_ENTRY)
def test_what_is_no_entry_is_refused(folder: Path, case: str) -> None:
    text, rule = NO_ENTRY[case]
    written(text(content_of(folder)), folder)
    code, lines = verify(folder)
    assert (code, len(lines)) == (2, 1), lines
    assert rule in lines[0]


def test_a_folder_without_an_entry_and_a_question_beside_one_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    for there in (tmp_path, tmp_path / "none"):
        code, (line,) = verify(there)
        assert (code, "be an entry" in line) == (2, True)
    for word in ("runs", "--baseline=gqa", "--target=3", "--allow=source", "--group=x"):
        assert verify(folder, word)[0] == 2


@pytest.mark.parametrize("cases", [16, pytest.param(200, marks=(pytest.mark.slow, pytest.mark.timeout(600)))])
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
    for number in range(cases):
        folder = shutil.copytree(original, tmp_path / str(number))
        how, damage = rng.choice(hows), random.Random(rng.randrange(10**6))
        with chdir(tmp_path), suppress(NOT_DONE):
            OPERATORS[how](folder.relative_to(tmp_path) / "entry.json", damage)
        code, lines = verify(folder, "--html", f"{tmp_path}/page.html")
        assert code in (0, 1, 2), (how, number)
        assert lines
        codes.add(code)
    assert codes == {0, 1, 2}


# --- the command --------------------------------------------------------------------------------------------


def test_runs_that_make_no_entry_leave_none(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half, file, taken = write_run(tmp_path, status="running"), tmp_path / "file", tmp_path / "taken"
    file.write_text("mine")
    (taken / "entry.json").mkdir(parents=True)
    for rule, *words in (
        ("a comparison needs a finished run", half, "-o", tmp_path / "a"),
        ("no run was found", "nowhere", "-o", tmp_path / "a"),
        ("--baseline must name one arm", outputs, "--baseline", "x", "-o", tmp_path / "a"),
        ("--target must", outputs, "--target", "-1", "-o", tmp_path / "a"),
        ("-o must be a file that can be written", outputs, "-o", file),
        ("entry.json", outputs, "-o", taken),
    ):
        assert rule in refusal(["entry", *words], capsys, command=export)
    assert not (tmp_path / "a").exists()
    assert file.read_text() == "mine"
    with pytest.raises(SystemExit, match="2"):
        export.main(["entry", str(outputs)])  # without -o


def test_an_entry_that_is_there_is_replaced_and_a_run_counts_once(outputs: Path, folder: Path) -> None:
    (folder / "IDEA.md").write_text("mine")
    runs = [str(run) for run in (outputs / "runs").glob("gpt2-*gelu4x-s*")]
    assert export.main(["entry", *runs, *runs, "--baseline", "gpt2-flash-gelu4x-s0", "-o", str(folder)]) == 0
    identities = [run["identity"] for run in content_of(folder)["runs"]]
    assert len({*identities}) == len(identities) == 10
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
