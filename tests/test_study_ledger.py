"""What binds a claim, and what its study's ledger keeps: ways to move a claim after its result, and to measure until it fits."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nocap.config.trainer import Precision
from nocap.study import keeper, registration
from nocap.study.__main__ import main
from nocap.study.cells import Wanted
from nocap.study.ledger import FILE, append, read, writable
from tests.lab import Lab, lab
from tests.studies import LOSS, RACE, SPEED, STUDY, Json, at, claim, study, tree, written

__all__ = ["lab"]
HERE = {"machine": "abc", "folder": "def", "scale": "cpu"}
SEARCH: Json = {"seeds": [7], "trials": {"mha": [["optimizer.lr=1e-3"], ["optimizer.lr=2e-3"]]}, "follow": {"mqa": "mha"}}
ARMS, GUARD = STUDY["arms"], SPEED["guards"][0]
SHORT = at(lengths=[0.25, 0.5])


# --- what binds --------------------------------------------------------------------------------------------------------------------


DECIDES: dict[str, tuple[Json, Json]] = {
    "the arm": ({}, {"arms": {**ARMS, "mqa": ["attention=mqa", "optimizer.lr=0.1"]}}),
    "the arm at this scale": ({}, {"scales": at(own={"mqa": ["optimizer.lr=0.1"]})}),
    "the baseline": ({}, {"arms": {**ARMS, "mha": ["attention=flash", "optimizer.lr=1e-6"]}}),
    "all arms": ({}, {"overrides": [*STUDY["overrides"], "optimizer.lr=0.1"]}),
    "the shape that is timed": ({}, {"scales": at(bench=["trainer.steps=12", "mlp=relu2"])}),
    "the rounds": ({}, {"scales": at(rounds=2)}),
    "an end": ({}, {"claims": [claim(SPEED, expected=[1.05, 1.3]), claim(LOSS, expected=[-2.0, None])]}),
    "a margin": ({}, {"claims": [claim(SPEED, guards=[{**GUARD, "margins": {"cpu": 1.5}}]), claim(LOSS, expected=[-2.0, None])]}),
    "the seeds": ({}, {"seeds": [1, 2, 3]}),
    "the statement": ({}, {"claims": [claim(one, statement="It helps.") for one in (SPEED, LOSS)]}),
    "a trial": ({"tune": SEARCH}, {"tune": {**SEARCH, "trials": {"mha": [["optimizer.lr=3e-3"], ["optimizer.lr=2e-3"]]}}}),
    "the search's seeds": ({"tune": SEARCH}, {"tune": {**SEARCH, "seeds": [8]}}),
    "the lengths": ({"claims": [RACE], "scales": SHORT}, {"claims": [RACE], "scales": at(lengths=[0.5])}),
}


@pytest.mark.parametrize(
    ("first", "then"),
    [pytest.param(*edits, id=what, marks=[] if i % 3 == 0 else pytest.mark.slow) for i, (what, edits) in enumerate(DECIDES.items())],
)
def test_what_decides_a_claim_is_what_was_registered(lab: Lab, first: Json, then: Json):
    before, after = (registration.hashes(lab.plan(**{**first, **more})) for more in ({}, then))
    assert before != after


@pytest.mark.parametrize(
    "edited", [{"mqa": ["attention=mqa", "optimizer.lr=0.1"]}, {"mha": ["attention=flash", "optimizer.lr=1e-6"]}], ids=["arm", "baseline"]
)
def test_what_decides_a_claim_cannot_be_changed_after_its_result(lab: Lab, edited: Json):
    first: Json = {"claims": [LOSS]}
    before = lab.carry(**first)
    assert all(one["exploratory"] is None and one["registered"]["hash"] == one["hash"] for one in before.values())
    after = lab.carry(**first, arms={**ARMS, **edited})
    for name in after:
        assert after[name]["hash"] != before[name]["hash"]
        assert after[name]["exploratory"].startswith("registered after ")
        assert after[name]["ledger"][0].startswith("registered after ")
    again = lab.carry(**first)["M.loss"]  # back: its own registration is the older one
    assert (again["exploratory"], again["ledger"][0]) == (None, "one of 2 registrations")


def test_the_verdict_says_after_how_many_runs_a_claim_was_registered(lab: Lab):
    lab.carry(claims=[LOSS])
    after = lab.carry(claims=[claim(LOSS, seeds=[1, 2, 3])], seeds=[0, 1, 2, 3])
    assert after["M.loss"]["exploratory"] == "registered after 2 runs (mqa, seed 1, mqa, seed 2)"
    fresh = lab.carry(claims=[claim(LOSS, seeds=[4, 5, 6])], seeds=[4, 5, 6])
    assert fresh["M.loss"]["exploratory"] is None
    lab.carry()
    both = lab.carry(claims=[claim(SPEED, expected=[1.05, None])])["M.speed"]
    assert both["exploratory"] == "registered after 3 runs and 3 sessions (mqa, seed 0 and 5 more)"


@pytest.mark.parametrize(
    "then",
    [
        {"question": "Is it?", "method": "Otherwise."},
        {"claims": [claim(one, statement=f"  {one['statement'].upper()} ", source="the same, elsewhere") for one in (SPEED, LOSS)]},
        {"claims": [claim(one, mechanism={**one["mechanism"], "formula": "better said"}) for one in (SPEED, LOSS)]},
        {"scales": at(sigma=0.1, speaks_for="not much", curve=[16, 32, 64])},
        {"scales": {**at(), "gpu": at()["cpu"]}, "claims": [claim(SPEED, guards=[{**GUARD, "margins": {"cpu": 1.1, "gpu": 1.2}}]), LOSS]},
        {"claims": [SPEED, LOSS, claim(LOSS, id="M.more")]},
    ],
    ids=range(6),
)
def test_what_only_a_reader_sees_may_be_changed(lab: Lab, then: Json):
    before, after = registration.hashes(lab.plan()), registration.hashes(lab.plan("elsewhere", "another", **then))
    assert {name: after[name] for name in before} == before


def test_another_machine_is_no_other_registration(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    plain = [word for word in STUDY["overrides"] if not word.startswith(("trainer.precision", "trainer.threads"))]
    first = lab.plan(overrides=plain)
    monkeypatch.setattr("nocap.config.defaults.precision", lambda *work: (Precision.bf16, "another CPU"))
    second = lab.plan(overrides=plain)
    assert [plan.train["mha"].run.trainer.precision.name for plan in (first, second)] == ["fp32", "bf16"]
    assert registration.hashes(second) == registration.hashes(first)
    assert registration.hashes(lab.plan(overrides=[*plain, "trainer.precision=bf16"])) != registration.hashes(first)


# --- a fresh folder does not forget ------------------------------------------------------------------------------------------------


def test_a_fresh_folder_washes_nothing_off(lab: Lab):
    lab.carry()
    after = lab.carry("fresh", claims=[claim(SPEED, expected=[1.05, None]), claim(LOSS, expected=[-2.0, None])])
    assert after["M.loss"]["exploratory"] == "registered after 3 runs (mqa, seed 0 and 2 more)"
    assert after["M.speed"]["exploratory"] == "registered after 3 runs and 3 sessions (mqa, seed 0 and 5 more)"
    assert "second training of seeds 0, 1 and 2" in after["M.loss"]["ledger"]
    assert lab.lines("deletion") == []  # the first folder is elsewhere, not gone


def test_the_second_time_nothing_is_written(lab: Lab):
    lab.carry()
    before = tree(lab.root)
    written(lab.root / "made", study())
    lab.carry()
    assert {path for path, when in tree(lab.root).items() if before.get(path) != when} == {str(lab.root / "made" / "study.yaml")}


def test_the_lines_of_a_study(lab: Lab):
    plan, rows = lab.plan(), lab.carry()
    events = [line["event"] for line in lab.lines()]
    assert events[:2] == ["registration"] * 2
    assert events.index("session") > events.index("run")
    assert [events.count(event) for event in ("run", "session", "look", "repeat", "deletion")] == [12, 3, 2, 0, 0]
    assert {line["claim"]: line["hash"] for line in lab.lines("registration")} == {name: one["hash"] for name, one in rows.items()}
    runs = [line for line in lab.lines("run") if line["status"] == "finished"]
    assert {(line["arm"], line["seed"], line["val_loss"]) for line in runs} == {
        (arm, seed, 3.0 + 0.001 * seed) for arm in ("mha", "mqa") for seed in range(3)
    }
    session = lab.lines("session")[1]
    assert (session["what"], session["seed"], session["measured"]) == ("bench", 1, {"mha": 1001.0, "mqa": 1251.0})
    assert {line["machine"] for line in lab.lines()} == {keeper.Keeper(plan, writes=False).common["machine"]}
    assert [(line["claim"], line["look"], line["n"]) for line in lab.lines("look")] == [("M.speed", 1, 3), ("M.loss", 1, 3)]


# --- measured again ----------------------------------------------------------------------------------------------------------------


def test_a_session_that_was_deleted_and_timed_again_is_told(lab: Lab):
    lab.carry()
    folder = lab.root / "out" / "studies" / "made" / "cpu" / "sessions"
    (gone,) = folder.glob("bench-s0-*.json")
    gone.unlink()
    assert lab.carry(run=False)["M.speed"]["ledger"] == []  # judging notices and writes nothing
    lab.speed = lambda arm, seed: 1300.0 if arm == "mqa" else 1000.0
    speed = lab.carry()["M.speed"]
    assert speed["ledger"] == ["second timing of seed 0", "1 session deleted"]
    assert speed["exploratory"] is None
    (deleted,), (repeat,) = lab.lines("deletion"), lab.lines("repeat")
    assert (deleted["what"], deleted["seed"], deleted["key"]) == ("bench", 0, gone.stem[-12:])
    assert repeat["was"]["measured"] == {"mha": 1000.0, "mqa": 1250.0}
    gone.unlink()
    assert lab.carry()["M.speed"]["ledger"] == ["third timing of seed 0", "1 session deleted"]
    assert lab.carry()["M.loss"]["ledger"] == []


def test_a_session_under_another_key_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    lab.carry()
    monkeypatch.setattr("nocap.study.sessions.source_hashes", lambda run, of: {"nocap.training.step": "another"})
    assert lab.carry()["M.speed"]["ledger"] == ["second timing of seeds 0, 1 and 2"]
    assert len(lab.lines("repeat")) == 3
    assert lab.lines("deletion") == []


def test_a_run_that_was_deleted_and_trained_again_is_told(lab: Lab):
    lab.carry()
    (gone,) = (run for run in (lab.root / "out" / "runs").iterdir() if "mqa" in run.name and "-s1-" in run.name)
    shutil.rmtree(gone)
    lab.loss = lambda run: 2.0
    rows = lab.carry()
    assert rows["M.loss"]["ledger"] == rows["M.speed"]["ledger"] == ["second training of seed 1", "1 run deleted"]
    (repeat,) = lab.lines("repeat")
    assert (repeat["identity"], repeat["was"]["val_loss"]) == (gone.name[-12:], 3.001)


# --- killed ------------------------------------------------------------------------------------------------------------------------


def test_what_a_killed_command_could_not_write_is_written_once(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    def dies(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(keeper.Keeper, "ran", dies)
        with pytest.raises(KeyboardInterrupt):
            lab.carry()
    assert {line["status"] for line in lab.lines("run")} == {"begun"}
    for _ in range(2):
        assert all(one["exploratory"] is None for one in lab.carry().values())
        assert [line["status"] for line in lab.lines("run")].count("finished") == 6
        assert len(lab.lines("run")) == 12


def test_a_claim_that_was_edited_while_its_runs_were_half_done_is_told(lab: Lab):
    lab.dies_after = 3  # mha and mqa of seed 0, mha of seed 1; mqa of seed 1 has begun
    with pytest.raises(KeyboardInterrupt):
        lab.carry(claims=[LOSS])
    lab.dies_after = float("inf")
    after = lab.carry("fresh", claims=[claim(LOSS, expected=[-2.0, None])])["M.loss"]
    assert after["exploratory"] == "registered after 2 runs (mqa, seed 0, mqa, seed 1)"


def test_a_run_that_failed_before_its_first_step_has_shown_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    def fails(cells: Any, before_seed: Any = None, watch: Any = None) -> None:
        for run, cell in cells.of:
            watch(run, cell, "begun")
            watch(run, cell, "failed")

    with monkeypatch.context() as failing:
        failing.setattr("nocap.study.cells.Cells.train", fails)
        assert lab.carry(claims=[LOSS])["M.loss"]["missing"]
    assert lab.carry(claims=[claim(LOSS, expected=[-2.0, None])])["M.loss"]["exploratory"] is None


# --- the file ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "number"),
    [
        (lambda lines: [*lines[:2], lines[2].replace('"c2"', '"c9"'), *lines[3:]], 4),
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], 3),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
    ],
    ids=["edited", "taken out", "the first taken out", "moved", "put in"],
)
def test_an_edited_ledger_is_named(tmp_path: Path, change: Callable[[list[str]], list[str]], number: int):
    path = lines_in(tmp_path / FILE)
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    assert read(path).broken[0] == number
    append(path, lambda found: [registered("more")], HERE)
    assert read(path).broken[0] == number  # it stays


def test_an_edited_ledger_is_in_the_verdict(lab: Lab):
    lab.carry(claims=[LOSS])
    lab.ledger.write_text(lab.ledger.read_text().replace('"val_loss": 3.001', '"val_loss": 2.001', 1))
    number = read(lab.ledger).broken[0]
    row = lab.carry(claims=[LOSS])["M.loss"]
    assert row["exploratory"] == f"its ledger's line {number} does not follow: edited, or one is gone"
    assert row["ledger"] == [row["exploratory"]]


def test_what_was_cut_off_at_the_end_cannot_be_seen(tmp_path: Path):
    path = lines_in(tmp_path / FILE)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    assert read(path).broken == []


def test_the_ledgers_of_two_machines_are_merged_by_keeping_all_lines(tmp_path: Path):
    def add(path: Path, machine: str, *claims: str) -> None:
        for name in claims:
            append(path, lambda found, name=name: [registered(name)], {**HERE, "machine": machine})

    mine, theirs = tmp_path / "mine.jsonl", tmp_path / "theirs.jsonl"
    add(mine, "a", "1", "2")
    shutil.copy(mine, theirs)
    add(mine, "a", "3", "4")
    add(theirs, "b", "5", "6")
    mine.write_text(mine.read_text() + "".join(theirs.read_text().splitlines(keepends=True)[2:]))
    add(mine, "a", "7")
    found = read(mine)
    assert (len(found.lines), found.broken) == (7, [])
    assert len(found.lines[-1]["previous"]) == 2
    lines = mine.read_text().splitlines(keepends=True)
    for gone in range(6):
        mine.write_text("".join([*lines[:gone], *lines[gone + 1 :]]))
        assert read(mine).broken


def lines_in(path: Path) -> Path:
    append(path, lambda found: [registered(f"c{i}") for i in range(6)], HERE)
    return path


def registered(name: str) -> Json:
    return {"event": "registration", "claim": name, "hash": name}


NAIVE = json.dumps({"event": "registration", "at": "2026-11-22T12:00:00", **HERE, "claim": "a", "hash": "b", "previous": []}) + "\n"
BARE = json.dumps({"event": "deletion", "at": "2026-11-22T12:00:00+00:00", **HERE, "of": "run", "previous": []}) + "\n"


DAMAGES = ["nothing\n", "[1]\n", '{"event": "party"}\n', NAIVE, BARE, '{"event": "look", "at": "now"}\n', '{"event": "loo']


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_line_is_refused_by_its_number(tmp_path: Path, damage: str):
    path = lines_in(tmp_path / FILE)
    with path.open("a") as file:
        file.write(damage)
    for use in (read, lambda path: append(path, lambda found: [registered("more")], HERE)):
        with pytest.raises(ValueError, match=rf"{FILE}: line 7 must ") as refused:
            use(path)
        assert "\n" not in str(refused.value)


def test_a_damaged_ledger_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (written(tmp_path / "made", study(claims=[LOSS])) / FILE).write_text("nothing\n")
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "made"), f"output_dir={tmp_path / 'out'}"])
    assert f"{FILE}: line 1 must be whole" in capsys.readouterr().err


def add_many(path: Path, name: str) -> None:
    for i in range(20):
        append(
            path,
            lambda found, i=i: [registered(f"{name}{i}"), *([] if found.of("registration", claim="once") else [registered("once")])],
            HERE,
        )


def test_processes_may_append_at_once(tmp_path: Path):
    path = tmp_path / FILE
    workers = [multiprocessing.get_context("fork").Process(target=add_many, args=(path, name)) for name in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    found = read(path)
    assert (len(found.lines), found.broken, len(found.heads)) == (61, [], 1)
    assert len({line["claim"] for line in found.lines}) == 61


def test_a_study_that_cannot_be_written_says_so_and_is_not_registered(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(lab.root / "made")) and may(path, mode))
    rows = lab.carry()
    assert lab.log[0] == f"{lab.root / 'made'} cannot be written: nothing is registered, and no README or results are left there"
    assert not lab.ledger.exists()
    assert rows["M.loss"]["exploratory"] == "not registered after 3 runs (mqa, seed 0 and 2 more)"
    assert not writable(lab.ledger)


def test_judging_writes_nothing(lab: Lab):
    lab.carry(run=False)
    assert {path.name for path in lab.root.rglob("*") if path.is_file()} == {"study.yaml"}
    lab.carry()
    lab.ledger.unlink()
    before = tree(lab.root / "out")
    assert lab.carry(run=False)["M.loss"]["exploratory"] == "not registered after 3 runs (mqa, seed 0 and 2 more)"
    assert tree(lab.root / "out") == before
    assert not lab.ledger.exists()


def test_sittings_that_are_added_are_analysed_when_there_are_enough(lab: Lab):
    rows = [lab.carry(claims=[SPEED, LOSS], scales=at(sittings=n))["M.speed"] for n in (3, 5, 6)]
    assert [(row["n"], row["exploratory"], row["ledger"]) for row in rows] == [(3, None, []), (3, None, []), (6, None, ["2 analyses"])]


def test_results_as_json_are_alone_on_stdout(lab: Lab, capsys: pytest.CaptureFixture[str]):
    """And the same as those that are written."""
    lab.plan()
    words = [str(lab.root / "made"), f"output_dir={lab.root / 'out'}", "--json"]
    assert main(words) == 0
    printed = capsys.readouterr()
    (path,) = (lab.root / "made").glob("results.*.json")
    results = json.loads(path.read_text())
    assert {"schema_version": results["schema_version"], **json.loads(printed.out)} == results
    assert printed.out.count("\n") == 1
    assert "M.loss" in printed.err
    with pytest.raises(SystemExit):
        main([*words, "--plan"])
    assert "--json must be given where a study is judged" in capsys.readouterr().err


# --- analyses -------------------------------------------------------------------------------------------------------------------------

SURE, UNSURE = claim(LOSS, id="M.sure"), claim(LOSS, id="M.unsure", expected=[0.0, None], arm="gqa")
THREE: Json = {"arms": {**ARMS, "gqa": ["attention=gqa"]}, "claims": [SURE, UNSURE], "max_seeds": 12, "scales": at(lengths=[])}


UNTIL = [(3, "inconclusive"), (6, "inconclusive"), (12, "confirmed")]


def late(run: Wanted) -> float:
    """gqa is unsure for six pairs, and better with twelve."""
    gain = 0.0 if run.arm != "gqa" else [0.9, 0.3, 0.1, 0.7, 0.8, 0.6][run.seed % 6]
    return 3.0 + 0.001 * run.seed - gain


def test_a_study_goes_on_by_itself_until_its_claims_are_decided(lab: Lab):
    lab.loss = late
    rows = lab.carry(**THREE)
    sure, unsure = rows["M.sure"], rows["M.unsure"]
    assert (sure["word"], sure["n"], sure["analysis"], sure["ledger"]) == ("confirmed", 3, 1, [])
    assert (unsure["word"], unsure["n"], unsure["analysis"], unsure["ledger"]) == ("confirmed", 12, 3, ["3 analyses"])
    first = {(arm, seed) for arm in ("mha", "mqa", "gqa") for seed in range(3)}
    second = {(arm, seed) for arm in ("mha", "gqa") for seed in range(3, 12)}
    assert {(run.arm, run.seed) for run in lab.trained} == first | second
    said = [(line["claim"], line["look"], line["n"], line["word"]) for line in lab.lines("look")]
    assert said == [("M.sure", 1, 3, "confirmed"), *(("M.unsure", look, *UNTIL[look - 1]) for look in (1, 2, 3))]
    assert lab.log == ["not decided, and another analysis follows: M.unsure"] * 2
    before = lab.ledger.read_text()
    lab.carry(**THREE)
    assert lab.ledger.read_text() == before


def test_a_study_that_was_killed_goes_on_at_its_analysis(lab: Lab):
    lab.loss, lab.dies_after = late, 10
    with pytest.raises(KeyboardInterrupt):
        lab.carry(**THREE)
    assert [line["look"] for line in lab.lines("look")] == [1, 1]
    lab.dies_after = float("inf")
    rows = lab.carry(**THREE)
    assert rows["M.unsure"]["word"] == "confirmed"
    assert all(one["exploratory"] is None for one in rows.values())
    assert len(lab.trained) == len({(run.arm, run.seed) for run in lab.trained})
    assert [line["look"] for line in lab.lines("look")][:3] == [1, 1, 2]


def test_more_seeds_than_were_declared_are_another_registration(lab: Lab):
    lab.loss = lambda run: 3.0 - (0.1 * (-1) ** run.seed if run.arm == "mqa" else 0)
    few: Json = {"claims": [claim(LOSS, expected=[0.0, None])], "max_seeds": 6}
    first = lab.carry(**few)["M.loss"]
    assert (first["n"], first["word"], first["exploratory"], first["ledger"]) == (6, "inconclusive", None, ["2 analyses"])
    more = lab.carry(**{**few, "max_seeds": 9})["M.loss"]
    assert more["exploratory"] == "registered after 6 runs (mqa, seed 0 and 5 more)"


def test_the_seeds_that_a_study_declares(lab: Lab):
    def declared(**changed: Any) -> list[int]:
        return lab.plan(claims=[LOSS], **changed).study.claims[0].seeds

    assert declared(max_seeds=9) == list(range(9))
    assert declared(seeds=[5, 0, 1], max_seeds=6) == [5, 0, 1, 6, 7, 8]
    assert declared(max_seeds=5, tune={**SEARCH, "seeds": [3]}) == [0, 1, 2, 4, 5]
    own = lab.plan(claims=[claim(LOSS, seeds=[0, 1, 2]), claim(LOSS, id="M.all")], max_seeds=9).study.claims
    assert [one.seeds for one in own] == [[0, 1, 2], list(range(9))]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"max_seeds": 3}, "max_seeds must be more than the 3 seeds, and at most 1000, got 3"),
        ({"max_seeds": 10**9}, "max_seeds must be more than the 3 seeds, and at most 1000, got 1000000000"),
        ({"max_seeds": 9, "looks": [3, 9]}, "looks is no key of study"),
        ({"claims": [claim(LOSS, alpha=0.01)]}, "claims[0].alpha is no key of claim"),
    ],
)
def test_invalid_seeds(lab: Lab, changed: Json, reason: str):
    with pytest.raises(ValueError) as refused:
        lab.plan(**changed)
    assert reason in str(refused.value)


def test_a_scale_about_some_claims_needs_their_arms_alone_and_binds_them_the_same(lab: Lab):
    relu2 = claim(LOSS, id="M.relu2", arm="relu2")
    trials = dict.fromkeys(("mha", "mqa", "relu2"), SEARCH["trials"]["mha"])
    three: Json = {"arms": {**ARMS, "relu2": ["mlp=relu2"]}, "claims": [LOSS, relu2], "notes": {"M.relu2": "a note"}}
    three["tune"] = {"seeds": [7], "trials": trials}
    own = {"relu2": ["mlp.expansion=2"]}
    whole, some = (lab.plan(**three, scales=at(own=own, **only)) for only in ({}, {"claims": ["M.loss"]}))
    assert [*some.train] == ["mha", "mqa"]
    assert [*whole.train] == ["mha", "mqa", "relu2"]
    assert registration.hashes(some) == {"M.loss": registration.hashes(whole)["M.loss"]}
    rows = lab.carry(**three, scales=at(own=own, claims=["M.loss"]))
    assert [*rows] == ["M.loss"]
    assert {run.arm.partition(",")[0] for run in lab.trained} == {"mha", "mqa"}
