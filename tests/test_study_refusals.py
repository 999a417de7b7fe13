"""Invalid studies: one line, exit code 2, and nothing was trained, timed or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nocap.study.__main__ import main
from tests.studies import EQUAL, LOSS, RACE, SPEED, STUDY, at, claim, study, written

OVERRIDES = STUDY["overrides"]
STEPS_TO_LOSS = claim(
    LOSS, metric="steps_to_target", scale="ratio", expected=[1.0, None], target="5.6"
)


def amdahl(**saved: float) -> dict[str, Any]:
    """A claim of a speed, bounded by what is saved of the scores."""
    bound = {"rule": "amdahl", "parts": ["scores"], "saved": saved, "formula": "f"}
    return {"claims": [claim(SPEED, mechanism=bound)]}


def arm(name: str, *words: str) -> dict[str, Any]:
    """The study's arms, and one that is another or new."""
    return {"arms": {**STUDY["arms"], name: [*words]}}


@pytest.fixture(autouse=True)
def _nothing_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that comes too late fails here, not minutes later."""
    for place in ("conductor.train", "tasks.Session.run"):
        monkeypatch.setattr(
            f"nocap.study.{place}", lambda *args, **more: pytest.fail("something was started")
        )


def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str, folder: Path | None = None
) -> str:
    """The one line."""
    out = tmp_path / "out"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as left:
        main([str(folder or tmp_path / "made"), f"output_dir={out}", *words])
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    assert sorted(tmp_path.rglob("*")) == before
    return printed.err.strip()


Case = tuple[dict[str, Any], str]

# what the claim about the loss says otherwise
LOSS_CLAIM: list[Case] = [
    ({"metric": "val_los"}, "val_los"),
    ({"metric": "train_s"}, "claim M.loss: metric must be one of val_loss, "),
    ({"arm": "gqa"}, "claim M.loss: arm must be one of mha, mqa, got gqa"),
    (
        {"expected": [0.5, 0.5]},
        "claim M.loss: expected must have low below high, got [0.5, 0.5]",
    ),
    ({"arm": "mha"}, "claim M.loss: arm must differ from the claim's baseline, got mha"),
    (
        {"seeds": [0, 1, 7]},
        "claims[0].seeds must be unset, because a claim has the seeds of its study, got [0, 1, 7]",
    ),
    ({"threshold": "mine"}, "threshold"),
    ({"expected": 1.2}, "claims[0].expected must be a list, as in [a, b]"),
    ({"scale": "rato"}, "claims[0].scale: Invalid value 'rato', expected one of "),
    ({"expected": [10**400, None]}, "claims[0]: int too large to convert to float"),
]
# what the claim about the time at equal loss says otherwise
EQUAL_CLAIM: list[Case] = [
    (
        {"scale": "difference"},
        "claim M.equal: scale must be ratio for time_at_equal_loss, got difference",
    ),
    ({"scale": "value"}, "claim M.equal: scale must be ratio for time_at_equal_loss, got value"),
    (
        {"expected": [0.9, None]},
        "claim M.equal: expected must have a high end; the value is the time divided",
    ),
    ({"expected": [0.0, 0.9]}, "expected must be above 0 for a ratio"),
    ({"target": "baseline"}, "target must be baseline for a claim about time or steps"),
    (
        {"mechanism": {"rule": "flops", "formula": "f"}},
        "claim M.equal: mechanism.rule must be 'given' for time_at_equal_loss, because the other",
    ),
]
# what the scale says otherwise
SCALE: list[Case] = [
    ({"sessions": 0}, "sessions must be at least 1, got 0"),
    ({"apart_min": -1}, "apart_min must be at least 0, got -1"),
    ({"round": 3}, "scales.cpu.round is no key of scaleconfig (did you mean rounds?)"),
    (
        {"decode": {"prompt": 0, "new": 1, "vocab_size": 9}},
        "decode.prompt must be at least 1, got 0",
    ),
    ({"rounds": 0}, "rounds must be at least 1, got 0"),
    ({"lengths": [0.5, 1.0]}, "lengths must be below 1, got 1.0"),
    ({"own": {"gqa": ["mlp=relu2"]}}, "scales.cpu.own must be one of mha, mqa, got gqa"),
    ({"claims": ["M.lost"]}, "scales.cpu.claims must be one of M.speed, M.loss, got M.lost"),
    ({"own": {"mqa": ["engine=warp"]}}, "engine must be one of"),
    (
        {"bench": []},
        "scales.cpu.bench must be set, because claim M.speed is about tokens_per_s, got none",
    ),
    (
        {"train": []},
        "scales.cpu.train must be set, because claim M.speed is about val_loss, got none",
    ),
    ({"noise": {"speed": {"sd": 0.1, "df": 8, "source": "x"}}}, "noise must be one of val_loss, "),
    (
        {"noise": {"val_loss": {"sd": 0.0, "df": 8, "source": "x"}}},
        "noise.sd must be above 0 and finite, got 0.0",
    ),
    ({"noise": {"val_loss": {"sd": 0.1, "df": 8}}}, "source"),
]
# words of the arm mqa, which takes part in claims
MQA: list[tuple[tuple[str, ...], str]] = [
    (("attention=none",), "arm mqa: "),
    (("attention=mqa", "engine=warp"), "arm mqa: engine must be one of"),
    (
        ("attention=mqa", "data.train_tokens=50000"),
        "arm mqa: data.train_tokens must be equal to the baseline's (mha: ",
    ),
    (
        ("trainer.val_tokens=2048",),
        "arm mqa: trainer.val_tokens must be equal to the baseline's (mha: 1024)",
    ),
    (
        ("model.seq_len=64",),
        "arm mqa: model.seq_len must be equal to the baseline's (mha: 32), because otherwise "
        "the losses",
    ),
    (("tokenizer=gpt2",), "arm mqa: tokenizer.vocabulary must be equal to the baseline's (mha: "),
]
SPEED_GUARD = {"metric": "val_loss", "scale": "ratio", "margins": {"gpu": 1.1}}
EQUAL_GUARD = {"metric": "time_at_equal_loss", "scale": "difference", "margins": {"cpu": 0.1}}
STUDIES: list[Case] = [
    (
        {"arms": {"mha": "attention=mha", "mqa": ["attention=mqa"]}},
        "arms.mha must be a list, as in [a, b]",
    ),
    ({"max_seeds": 12}, "max_seeds is no key of study"),
    ({"claims": [LOSS, LOSS]}, "claims must have different ids, got M.loss, M.loss"),
    ({"claims": []}, "claims must have at least one claim, unless the study has propose, got none"),
    ({"notes": {"M.lost": "no"}}, "notes must be one of M.speed, M.loss, got M.lost"),
    (amdahl(qkv=0.5), "mechanism.saved must be among scores, got qkv"),
    (
        amdahl(scores=1.0),
        "mechanism.saved must be above 0 and below 1; a part that is not named is saved "
        "completely, got ",
    ),
    ({"claims": [claim(SPEED, guards=[SPEED_GUARD])]}, "name the scale cpu, got gpu"),
    (
        {"seeds": [0, 1]},
        "seeds must hold at least 3 seeds, because nocap gives no verdict with fewer, got 2",
    ),
    (
        {"seeds": []},
        "seeds must hold at least 3 seeds, because nocap gives no verdict with fewer, got 0",
    ),
    ({"question": None}, "question must"),
    ({"question": " "}, "question must not be empty, got ' '"),
    ({"baseline": "gqa"}, "baseline must be one of mha, mqa, got gqa"),
    (arm("gqa", "attention=gqa"), "arms must not have an arm that no claim uses, got gqa"),
    (
        {"claims": [STEPS_TO_LOSS]},
        "claim M.loss: target must be baseline for a claim about time or steps to target, and null",
    ),
    ({"metod": "a slip"}, "metod is no key of study (did you mean method?)"),
    (
        {"claims": [claim(LOSS), claim(LOSS, expcted=[1, 2])]},
        "claims[1].expcted is no key of claim (did you mean expected?)",
    ),
    ({"claims": [3]}, "claims[0] must hold keys and values, got 3"),
    (
        {
            "claims": [LOSS, claim(LOSS, id="M.ms", metric="decode_ms")],
            "scales": at(decode={"prompt": 30, "new": 3, "vocab_size": 9}),
        },
        "scales.cpu.decode must have prompt + new of at most 32 tokens (model.seq_len of arm "
        "mha), got 33",
    ),
    (
        {"claims": [RACE], "scales": at(lengths=[0.99])},
        "scales.cpu.lengths must give different numbers of steps, none of them "
        "trainer.steps=12, got [0.99]",
    ),
    (
        {"claims": [RACE], "scales": at(lengths=[0.5, 0.51])},
        "scales.cpu.lengths must give different",
    ),
    ({"question": "${oc.env:HOME}"}, "values must hold no interpolation, got the interpolation"),
    (
        {"overrides": [*OVERRIDES, "tracker=${oc.env:HOME}"]},
        "values must hold no interpolation, got the interpolation",
    ),
    (
        {"claims": [EQUAL], **arm("mqa", "attention=mqa", "trainer.steps=24")},
        "arm mqa: trainer.steps must be equal to the baseline's (mha: 12) for a claim about "
        "time_at_equal_loss",
    ),
    (
        {"claims": [EQUAL], "overrides": [*OVERRIDES, "trainer.steps=1"]},
        "trainer.steps must be 2 or more with a claim about time_at_equal_loss, got 1",
    ),
    (
        {"claims": [claim(LOSS, guards=[EQUAL_GUARD])]},
        "guard time_at_equal_loss.scale must be ratio for time_at_equal_loss, got difference",
    ),
    (
        {"claims": [EQUAL], "scales": at(train=[])},
        "scales.cpu.train must be set, because claim M.equal is about time_at_equal_loss, got none",
    ),
]
STUDIES += [({"claims": [claim(LOSS, **changed)]}, reason) for changed, reason in LOSS_CLAIM]
STUDIES += [({"claims": [claim(EQUAL, **changed)]}, reason) for changed, reason in EQUAL_CLAIM]
STUDIES += [({"scales": at(**changed)}, reason) for changed, reason in SCALE]
STUDIES += [(arm("mqa", *words), reason) for words, reason in MQA]
TRIALS = [["optimizer.lr=1e-3"], ["optimizer.lr=3e-3"]]
SEARCHES: list[Case] = [
    (
        {"seeds": [2, 3], "trials": {"mha": TRIALS, "mqa": TRIALS}},
        "tune.seeds must not be seeds of the study",
    ),
    (
        {"seeds": [3], "trials": {"mha": TRIALS, "mqa": [*TRIALS, ["optimizer.lr=1e-2"]]}},
        "tune.trials must give every arm the same number of trials",
    ),
    (
        {"seeds": [3], "trials": {"mha": TRIALS[:1], "mqa": TRIALS[:1]}},
        "(at least two), because otherwise the comparison is unfair",
    ),
    (
        {"seeds": [], "trials": {"mha": TRIALS, "mqa": TRIALS}},
        "tune.seeds must have at least one seed",
    ),
    (
        {"seeds": [3], "trials": {"mha": TRIALS}},
        "tune.trials must have trials for every arm that the study trains, got none for mqa",
    ),
    (
        {"seeds": [3], "trials": {"mha": TRIALS, "gqa": TRIALS}},
        "tune.trials must be one of mha, mqa, got gqa",
    ),
    (
        {
            "seeds": [3],
            "trials": {"mha": TRIALS, "mqa": [["optimizer.lr=-1"], ["optimizer.lr=1e-3"]]},
        },
        "mqa, trial 1: optimizer.lr must be above 0",
    ),
    (
        {
            "seeds": [3],
            "trials": {"mha": TRIALS, "mqa": [*TRIALS[:1], ["data.train_tokens=50000"]]},
        },
        "mqa, trial 2: data.train_tokens must be",
    ),
]
LONGER = {
    "claims": [EQUAL],
    "tune": {"seeds": [3], "trials": {"mha": TRIALS, "mqa": [*TRIALS[:1], ["trainer.steps=24"]]}},
}
WORDS: list[tuple[tuple[str, ...], str]] = [
    (("scale=gpu",), "nocap: scale must be one of the study's scales (cpu), got gpu"),
    (("scales=cpu",), "nocap: scales is no key of options (did you mean scale?)"),
    (("sessions=3",), "nocap: sessions must be more than the 3 sessions of scale cpu, got 3"),
    (("steps=0",), "trainer.steps must be at least 1, got 0"),
    (("budget_h=1",), "nocap: budget_h is no key of options"),
    (("--plan", "--json"), "--json does not work with --plan"),
]
CASES: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    *((changed, (), reason) for changed, reason in STUDIES),
    *(({"tune": tune}, (), reason) for tune, reason in SEARCHES),
    (
        LONGER,
        (),
        "arm mqa, trial 2: trainer.steps must be equal to the baseline's (mha: 12) for a claim "
        "about "
        "time_at",
    ),
    *(({}, given, reason) for given, reason in WORDS),
]


@pytest.mark.parametrize(
    ("changed", "words", "reason"), CASES, ids=[reason for *_, reason in CASES]
)
def test_a_wrong_study_is_refused_in_a_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    words: tuple[str, ...],
    reason: str,
):
    written(tmp_path / "made", study(**changed))
    line = refused(tmp_path, capsys, *words)
    assert line.startswith("nocap: ")
    assert reason in line


def test_a_folder_without_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "made").mkdir()
    assert (
        "made must be a study's folder, with a study.yaml (No such file or directory)"
        in refused(tmp_path, capsys)
    )
    assert "nowhere must be a study's folder" in refused(
        tmp_path, capsys, folder=tmp_path / "nowhere"
    )
    (tmp_path / "made" / "study.yaml").write_text("question: [")
    assert "study.yaml: while parsing a flow node" in refused(tmp_path, capsys)
    (tmp_path / "made" / "study.yaml").write_text("- a\n- list\n")
    assert "study.yaml: a study must hold keys and values, got ['a', 'list']" in refused(
        tmp_path, capsys
    )
    assert "nocap.study needs a study's folder" in refused(
        tmp_path, capsys, folder=Path("scale=cpu")
    )


WITHOUT_STUDY = [
    (("--board", "."), "--board must be a folder with studies that have results"),
    (("--board", "nowhere"), "--board must be a folder with studies that have results"),
    (("made", "--plan", "--judge"), "not allowed with argument"),
    (("--board", "made", "--judge"), "not allowed with argument"),
    (("--judge",), "nocap.study needs FOLDER"),
]


@pytest.mark.parametrize(("words", "reason"), WITHOUT_STUDY)
def test_words_without_a_study(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    reason: str,
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main([*words])
    assert reason in capsys.readouterr().err
