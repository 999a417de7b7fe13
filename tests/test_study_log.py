"""What binds a claim, and what its study's log keeps: each way to move a claim after its result,
and to measure until it fits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from nocap.config.trainer import Precision
from nocap.study.__main__ import main
from nocap.study.log import FILE, RegistrationLine, append, read_log
from nocap.study.registration import registrations
from tests.lab import FORK, Lab, lab
from tests.studies import LOSS, RACE, SPEED, STUDY, Json, at, claim, study, written

__all__ = ["lab"]
HERE = {"machine": "abc", "scale": "cpu"}
LRS = [["optimizer.lr=1e-3"], ["optimizer.lr=2e-3"]]
SEARCH: Json = {"seeds": [7], "trials": {"mha": LRS, "mqa": LRS}}
QUIET: Json = {"sd": 0.1, "df": 5, "source": "an earlier study"}
ARMS = STUDY["arms"]
GUARD = SPEED["guards"][0]
BOTH = (SPEED, LOSS)
LOOSE = claim(LOSS, expected=[-2.0, None])
OTHER_ENDS = (
    "its arms and metric were registered before with another expected range, other margins or "
    "other seeds (1)"
)
AFTER = "registered after 3 runs (mqa, seed 0 and 2 more)"
AFTER_ALL = "registered after 3 runs and 3 sessions (bench session 1 and 5 more)"


# --- what binds -----------------------------------------------------------------------------------


def hashes(lab: Lab, folder: str = "made", **changed: Json) -> list[str]:
    found = registrations(lab.plan(folder=folder, **changed))
    return [registration.hash for registration in found.values()]


DECIDES: dict[str, tuple[Json, Json]] = {
    "the arm": ({}, {"arms": {**ARMS, "mqa": ["attention=mqa", "optimizer.lr=0.1"]}}),
    "the arm at this scale": ({}, {"scales": at(own={"mqa": ["optimizer.lr=0.1"]})}),
    "the baseline": ({}, {"arms": {**ARMS, "mha": ["attention=flash", "optimizer.lr=1e-6"]}}),
    "an end": ({}, {"claims": [claim(SPEED, expected=[1.05, 1.3]), LOOSE]}),
    "a margin": (
        {},
        {"claims": [claim(SPEED, guards=[{**GUARD, "margins": {"cpu": 1.5}}]), LOOSE]},
    ),
    "the first seed": ({}, {"seeds": [1, 2, 3]}),
    "which seeds": ({"seeds": list(range(6))}, {"seeds": [0, 1, 2, 3, 5, 6]}),
    "a known noise": (
        {"claims": [LOSS]},
        {"claims": [LOSS], "scales": at(noise={"val_loss": QUIET})},
    ),
    "a trial": (
        {"tune": SEARCH},
        {
            "tune": {
                **SEARCH,
                "trials": {"mha": [["optimizer.lr=3e-3"], ["optimizer.lr=2e-3"]], "mqa": LRS},
            }
        },
    ),
    "the search's seeds": ({"tune": SEARCH}, {"tune": {**SEARCH, "seeds": [8]}}),
    "the lengths": (
        {"claims": [RACE], "scales": at(lengths=[0.25, 0.5])},
        {"claims": [RACE], "scales": at(lengths=[0.5])},
    ),
}


@pytest.mark.parametrize(("first", "then"), DECIDES.values(), ids=DECIDES)
def test_what_decides_a_claim_is_what_is_registered(lab: Lab, first: Json, then: Json):
    before = set(hashes(lab, **first))
    assert not before & set(hashes(lab, **{**first, **then}))


MARGINS = claim(SPEED, guards=[{**GUARD, "margins": {"cpu": 1.1, "gpu": 1.2}}])
READ: dict[str, Json] = {
    "texts": {
        "question": "Is it?",
        "method": "So.",
        "claims": [claim(declared, statement="It helps.", source="a talk") for declared in BOTH],
    },
    "a formula": {
        "claims": [
            claim(declared, mechanism={**declared["mechanism"], "formula": "better said"})
            for declared in BOTH
        ]
    },
    "the rest of a scale": {
        "scales": at(limitations="much", curve=[16, 32, 64], rounds=2, sessions=4)
    },
    "another scale": {"scales": {**at(), "gpu": at()["cpu"]}, "claims": [MARGINS, LOSS]},
    "another claim": {"claims": [*BOTH, claim(LOSS, id="M.more")]},
    "how many seeds": {"seeds": list(range(12))},
    "names": {
        "arms": {"flash": ARMS["mha"], "few": ARMS["mqa"]},
        "baseline": "flash",
        "claims": [
            claim(SPEED, id="a", arm="few", guards=[{**GUARD, "margins": {"slow": 1.1}}]),
            claim(LOSS, id="b", arm="few"),
        ],
        "scales": {"slow": at()["cpu"]},
    },
}


@pytest.mark.parametrize("then", READ.values(), ids=READ)
def test_what_only_a_reader_sees_may_be_changed(lab: Lab, then: Json):
    assert hashes(lab, "another", **then)[:2] == hashes(lab)


def test_another_machine_is_no_other_registration(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    plain = []
    for word in STUDY["overrides"]:
        if not word.startswith(("trainer.precision", "trainer.threads")):
            plain.append(word)
    first = hashes(lab, overrides=plain)
    monkeypatch.setattr(
        "nocap.config.defaults.precision", lambda *of_run: (Precision.bf16, "another CPU")
    )
    mha = lab.plan(overrides=plain).train["mha"]

    assert mha.run.trainer.precision is Precision.bf16
    assert hashes(lab, overrides=plain) == first
    assert hashes(lab, overrides=[*plain, "trainer.precision=bf16"]) != first


# --- exploratory, in each way ---------------------------------------------------------------------


WAYS: dict[str, tuple[Json, str | None]] = {
    "looser ends": ({"claims": [LOOSE]}, f"{AFTER}; {OTHER_ENDS}"),
    "another margin": (
        {"claims": [claim(SPEED, guards=[{**GUARD, "margins": {"cpu": 2.0}}])]},
        f"{AFTER_ALL}; {OTHER_ENDS}",
    ),
    "looser ends of what is timed": (
        {"claims": [claim(SPEED, expected=[1.05, None])]},
        f"{AFTER_ALL}; {OTHER_ENDS}",
    ),
    "another metric": ({"claims": [claim(LOSS, scale="ratio", expected=[0.5, None])]}, AFTER),
    "other names": (
        {
            "arms": {"a": ARMS["mha"], "b": ARMS["mqa"]},
            "baseline": "a",
            "claims": [claim(LOOSE, id="U", arm="b")],
        },
        f"{AFTER.replace('mqa', 'b')}; {OTHER_ENDS}",
    ),
    "another scale": (
        {"scales": {"laptop": at()["cpu"]}, "claims": [LOOSE]},
        f"{AFTER}; {OTHER_ENDS}",
    ),
    "another baseline": (
        {"arms": {**ARMS, "mha": ["attention=flash", "optimizer.lr=1e-6"]}, "claims": [LOSS]},
        AFTER,
    ),
    "the worst seed left out": (
        {"seeds": [1, 2, 3], "claims": [LOSS]},
        f"registered after 2 runs (mqa, seed 1, mqa, seed 2); {OTHER_ENDS}",
    ),
    "fresh seeds": ({"seeds": [4, 5, 6], "claims": [LOSS]}, OTHER_ENDS),
    "another arm, which has no results": (
        {"arms": {**ARMS, "mqa": ["attention=gqa"]}, "claims": [LOSS]},
        None,
    ),
    "more seeds": ({"seeds": list(range(6)), "claims": [LOSS]}, None),
}


@pytest.mark.slow
@pytest.mark.parametrize(("then", "label"), WAYS.values(), ids=WAYS)
def test_a_claim_that_was_moved_after_its_result_is_exploratory(
    lab: Lab, then: Json, label: str | None
):
    """Also in a fresh output_dir, where everything is trained and timed again: the log is what
    remembers."""
    lab.carry()
    for out in ("fresh", "out"):
        (row,) = lab.carry(out, **then).values()
        assert row["exploratory"] == label
    # its own registration is the older one
    assert all(row["exploratory"] is None for row in lab.carry().values())


def test_what_a_study_beside_it_trained_is_known(lab: Lab):
    """What it timed is not: that is timed anew."""
    lab.carry("theirs", "theirs")
    claims = [claim(SPEED, guards=[]), LOOSE]
    rows = lab.carry(claims=claims)
    words = [row["exploratory"] for row in rows.values()]
    assert words == [None, f"{AFTER}; {OTHER_ENDS}"]


def test_runs_that_no_log_has_are_known_by_their_start(lab: Lab):
    lab.killed(2, claims=[LOSS])
    assert lab.lines("run") == []
    assert (
        lab.carry(claims=[LOOSE])["M.loss"]["exploratory"]
        == f"registered after 1 run (mqa, seed 0); {OTHER_ENDS}"
    )
    lab.log.unlink()
    words = {row["exploratory"] for row in lab.carry(run=False).values()}
    assert words == {"not registered"}
    assert [row["exploratory"] for row in lab.carry().values()] == [AFTER, AFTER]


def test_a_study_that_cannot_be_written_says_so_and_is_not_registered(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    may = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode: not str(path).startswith(str(lab.root / "made")) and may(path, mode),
    )
    assert lab.carry()["M.loss"]["exploratory"] == "not registered"
    assert (
        lab.said[0]
        == f"{lab.root / 'made'} cannot be written: nocap registers no claims, and writes no "
        "README and no "
        "results there"
    )
    assert not lab.log.exists()


# --- what a reader is told beside a verdict -------------------------------------------------------


def test_what_was_measured_again_is_told(lab: Lab):
    lab.carry()
    next(lab.root.glob("out/studies/made/cpu/sessions/bench-1-*.json")).unlink()
    shutil.rmtree(next(lab.root.glob("out/runs/*mqa*-s1-*")))
    lab.loss = lambda run: 2.0
    lab.speed = lambda arm, number: 1300.0 if arm == "mqa" else 1000.0
    rows = lab.carry()
    words = [row["exploratory"] for row in rows.values()]
    assert words == [None, None]
    assert rows["M.loss"]["notes"] == ["measured again with another result: mqa, seed 1"]
    assert rows["M.speed"]["notes"] == [
        "measured again with another result: mqa, seed 1, bench session 1"
    ]
    losses = []
    for line in lab.lines("run"):
        if (line["arm"], line["seed"]) == ("mqa", 1):
            losses.append(line["val_loss"])
    assert losses == [3.001, 2.0]


def test_an_older_baseline_and_another_machines_verdict_are_told(lab: Lab):
    arms = {**ARMS, "mqa": ["attention=gqa"]}
    lab.carry("out", "theirs", arms=arms, claims=[LOSS])
    row = lab.carry(claims=[LOSS])["M.loss"]
    assert row["exploratory"] is None
    assert row["notes"] == ["measured with an older baseline: mha, seed 0 and 2 more"]
    here = lab.lines("registration")[0]["machine"]
    lab.host = "there"
    lab.loss = lambda run: 3.0 + 2 * (run.arm == "mqa") + 0.001 * run.seed
    row = lab.carry("there", claims=[LOSS])["M.loss"]
    assert row["word"] == "refuted"
    assert row["exploratory"] is None
    assert row["notes"] == [f"confirmed on another machine ({here})"]
    assert len(lab.lines("registration")) == 2


# --- the file -------------------------------------------------------------------------------------


def registered(name: str) -> RegistrationLine:
    return RegistrationLine(claim=name, hash=name, subject=name)


def lines_in(path: Path) -> Path:
    lines = [registered(f"c{i}") for i in range(6)]
    append(path, lines, **HERE)
    return path


def test_the_logs_of_two_machines_are_merged_by_keeping_all_lines(tmp_path: Path):
    path = tmp_path / FILE
    append(path, [registered("1")], machine="a", scale="cpu")
    append(path, [registered("2")], machine="b", scale="cpu")
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(second + first)
    log = read_log(path)
    claims = [line.claim for line in log.of(RegistrationLine)]
    assert claims == ["2", "1"]
    claims = [line.claim for line in log.of(RegistrationLine, machine="a")]
    assert claims == ["1"]


def test_a_line_in_an_older_form_names_the_line_before_it(tmp_path: Path):
    path = lines_in(tmp_path / FILE)
    lines = path.read_text().splitlines()
    content = json.loads(lines[0])
    chained = {**content, "previous": ["0123456789abcdef"]}
    path.write_text(json.dumps(chained) + "\n")
    claims = [line.claim for line in read_log(path).of(RegistrationLine)]
    assert claims == ["c0"]


# no time zone
CLAIM = {"event": "registration", "claim": "a", "hash": "a", "subject": "a"}
NAIVE = json.dumps({"at": "2026-11-22T12:00:00", **HERE, **CLAIM}) + "\n"
BARE = (
    json.dumps({"event": "session", "at": "2026-11-22T12:00:00+00:00", **HERE, "number": 1}) + "\n"
)


@pytest.mark.parametrize(
    "damage",
    [
        "nothing\n",
        "[1]\n",
        '{"event": "party"}\n',
        NAIVE,
        BARE,
        '{"event": "run", "at": "now"}\n',
        '{"eve',
    ],
)
def test_a_damaged_line_is_refused_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
):
    content = study(claims=[LOSS])
    path = lines_in(written(tmp_path / "made", content) / FILE)
    with path.open("a") as file:
        file.write(damage)
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "made"), f"output_dir={tmp_path / 'out'}"])
    err = capsys.readouterr().err

    assert f"{FILE}: line 7" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out" / "runs").exists()


def test_processes_may_append_at_once(tmp_path: Path):
    path = tmp_path / FILE

    def add_many(name: str) -> None:
        for i in range(20):
            lines = [registered(f"{name}{i}"), registered("once")]
            append(path, lines, **HERE, once=("claim",))

    workers = [FORK.Process(target=add_many, args=(name,)) for name in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    log = read_log(path)
    assert len(log.lines) == 61
    claims = {line.claim for line in log.of(RegistrationLine)}
    assert len(claims) == 61
