"""A study at several sizes, and one without each part of a stack."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from nocap.report import forest
from nocap.study import pages
from nocap.study.__main__ import main
from nocap.study.ladder import ladders, picture, section
from nocap.study.spec import expand, parts_of
from tests.studies import LOSS, RACE, STUDY, Json, at, claim, loaded, study, written


def size(
    scale: str, params: float, speedups: Sequence[float], *, machine: str = "here", ending: str = "measured"
) -> Json:
    """Results of one size, as far as a ladder reads them."""
    logs = np.log(speedups)
    ends = {"mid": logs.mean(), "low": logs.mean() - 0.1, "high": logs.mean() + 0.1}
    race = {
        "id": "M.time",
        "metric": "time_to_target_s",
        "arm": "mqa",
        "baseline": "mha",
        "word": "confirmed",
    }
    row = {"claim": "M.time", "metric": "time_to_target_s", "ending": "measured"}
    return {
        "scale": scale,
        "hardware": {"name": machine, "fingerprint": machine},
        "arms": [{"arm": "mha", "params": params}, {"arm": "mqa", "params": 2 * params}],
        "claims": [{**race, "n": len(speedups), "measured": {k: math.exp(x) for k, x in ends.items()}}],
        "measurements": [
            *({**row, "arm": "mha", "repeat": i, "value": 100.0} for i in range(len(speedups))),
            *(
                {**row, "arm": "mqa", "repeat": i, "value": 100.0 / x, "ending": ending}
                for i, x in enumerate(speedups)
            ),
        ],
    }


def ladder(*middles: float, noise: float = 0.01, **how: Any) -> list[Json]:
    """Three sizes, ten times from one to the next."""
    spread = np.exp(np.array([-noise, 0.0, noise]))
    return [size(f"{10**i}M", 1e6 * 10**i, list(middle * spread), **how) for i, middle in enumerate(middles)]


@pytest.mark.parametrize(
    ("every", "word", "decade"),
    [
        (ladder(1.2, 1.44, 1.728), "grows", 1.2),
        (ladder(1.728, 1.44, 1.2), "shrinks", 1 / 1.2),
        (ladder(1.5, 1.52, 1.5), "holds", 1.0),
        (ladder(1.2, 1.44, 1.728, noise=0.5), "cannot be told", 1.2),
        (ladder(1.2, 1.8, 1.2), "cannot be told: not the same from size to size", 1.0),
        (ladder(1.2, 1.44), "cannot be told: fewer than 3 sizes were measured", None),
        (ladder(1.2, 1.4, 1.7, ending="at_most"), "cannot be told: fewer than 3 sizes were measured", None),
    ],
)
def test_what_size_does_to_a_speedup(every: list[Json], word: str, decade: float | None):
    (one,) = ladders(every)
    assert one.word == word
    assert (one.decade is None) == (decade is None)
    if one.decade and decade:
        assert one.decade.mid == pytest.approx(decade, rel=0.01)


def test_the_challenges_size_is_told_only_where_the_interval_allows_it():
    (sure,), (unsure,) = (ladders(ladder(1.2, 1.44, 1.728, noise=noise)) for noise in (0.01, 0.3))
    assert sure.far is not None
    assert sure.far.mid == pytest.approx(1.2 * 1.2 ** math.log10(124), rel=1e-6)
    assert sure.far.high < 2 * sure.far.low
    assert unsure.far is None


def test_sizes_are_of_one_machine_and_in_their_order():
    every = [*reversed(ladder(1.2, 1.44, 1.728)), *ladder(1.3, 1.4, machine="there")]
    text = "\n".join(section(every))
    assert [text.count(name) for name in ("## The ladder: here", "## The ladder: there", "**grows**")] == [
        1,
        1,
        1,
    ]
    assert text.index("1M: 1.00M") < text.index("10M: 10.0M") < text.index("100M: 100.0M")
    drawn = picture(every)
    assert drawn is not None
    root = ElementTree.fromstring(forest.file(drawn))
    assert len(root.findall("{*}g")) == 6  # five sizes and one fit
    assert picture([]) is None


def test_a_readme_has_the_ladder_where_a_study_asks_for_it(tmp_path: Path):
    scales = {name: at()["cpu"] | {"lengths": [0.25, 0.5]} for name in ("small", "large")}
    made = loaded(tmp_path, study(claims=[RACE], scales=scales, ladder=["small", "large"]))
    assert made.ladder == ["small", "large"]
    assert "The ladder" not in pages.readme(made, tmp_path, [])


@pytest.mark.slow
def test_without_a_scale_the_ladders_are_carried_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    scales = {name: at()["cpu"] | {"lengths": [0.25, 0.5]} for name in ("small", "large", "huge")}
    folder = written(tmp_path / "made", study(claims=[RACE], scales=scales, ladder=["small", "large"]))
    words = ["--judge", str(folder), f"output_dir={tmp_path / 'out'}"]
    for more, named in (
        ((), ["small", "large"]),
        (["scale=huge"], ["huge"]),
        (["sessions=5"], ["small", "large"]),
    ):
        assert main([*words, *more]) == 1  # nothing was measured
        said = re.findall(r"^made, scale (\w+):", capsys.readouterr().out, re.M)
        assert said == named


# --- leave_one_out ------------------------------------------------------------------------------------------

STACK = ["mlp=swiglu", "ideas=[smear,bigram]", "optimizer.lr=0.1"]


def test_each_option_is_a_part_and_a_key_is_none():
    assert dict(parts_of(STACK)) == {
        "mlp.swiglu": ["ideas=[smear,bigram]", "optimizer.lr=0.1"],
        "ideas.smear": ["mlp=swiglu", "ideas=[bigram]", "optimizer.lr=0.1"],
        "ideas.bigram": ["mlp=swiglu", "ideas=[smear]", "optimizer.lr=0.1"],
    }
    assert list(parts_of(["optimizer.lr=0.1", "ideas=[]"])) == []


def test_a_stack_is_claimed_to_be_faster_with_each_part(tmp_path: Path):
    made = loaded(
        tmp_path,
        study(
            arms={"mha": ["attention=flash"], "stack": STACK},
            claims=[claim(LOSS, arm="stack")],
            scales=at(lengths=[0.5]),
            leave_one_out=["stack"],
        ),
    )
    assert [one.id for one in made.claims] == [
        "M.loss",
        "stack.mlp.swiglu",
        "stack.ideas.smear",
        "stack.ideas.bigram",
    ]
    assert [made.against(one) for one in made.claims[1:]] == [
        "stack without mlp.swiglu",
        "stack without ideas.smear",
        "stack without ideas.bigram",
    ]
    assert made.arms["stack without ideas.smear"] == ["mlp=swiglu", "ideas=[bigram]", "optimizer.lr=0.1"]
    assert {tuple(one.expected) for one in made.claims[1:]} == {(1.01, None)}
    assert made.racing == ["stack", *(made.against(one) for one in made.claims[1:])]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"leave_one_out": ["no_such"]}, "leave_one_out must be one of mha, mqa, got no_such"),
        ({"leave_one_out": "mqa"}, "leave_one_out must be"),
        ({"ladder": ["cpu", "moon"]}, "ladder must be one of cpu, got moon"),
        ({"ladder": ["cpu"], "propose": {"gain": 0.1}}, "ladder must be left out beside propose"),
    ],
)
def test_refused(tmp_path: Path, changed: Json, said: str):
    with pytest.raises(ValueError, match=said.replace("[", r"\[")):
        loaded(tmp_path, study(**changed))


def test_what_is_no_stack_is_left_to_the_check():
    assert expand({"arms": 3, "leave_one_out": ["a"]})["arms"] == 3
    assert expand({**STUDY, "leave_one_out": []})["claims"] == STUDY["claims"]


def test_a_table_says_what_each_part_costs():
    arms = [
        {"arm": "stack", "params": 300, "pace": {"step_ms": [12.0, 12.0]}},
        {"arm": "stack without mlp.swiglu", "params": 200, "pace": {"step_ms": [10.0, 10.0]}},
        {"arm": "stack without ideas.gone", "params": 310, "pace": None},
    ]
    plain = {
        "source": "leave_one_out",
        "arm": "stack",
        "metric": "time_to_target_s",
        "scale": "ratio",
        "n": 3,
    }
    plain |= {"per": "session", "measured": {"mid": 1.2, "low": 1.1, "high": 1.3}}
    claims = [
        {**plain, "id": "stack.mlp.swiglu", "baseline": arms[1]["arm"], "word": "confirmed"},
        {**plain, "id": "stack.ideas.gone", "baseline": arms[2]["arm"], "word": "refuted"},
    ]
    swiglu, gone = pages._parts({"arms": arms, "claims": claims})
    lines = swiglu.pop(1)
    assert isinstance(lines, int)
    assert lines > 10
    assert swiglu[:3] == ["mlp.swiglu", "+100", "+20.0%"]
    assert swiglu[-1] == "stays"
    assert gone[:4] == ["ideas.gone", None, "-10", None]
    assert gone[-1] == "goes"
    arms[0]["params"] = None  # nothing has run
    assert [row[2] for row in pages._parts({"arms": arms, "claims": claims})] == [None, None]
