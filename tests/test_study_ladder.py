"""A study at several sizes, and one without each part of a stack."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest

from nocap.judge.verdict import Gain, Word
from nocap.report import forest
from nocap.store.metrics import METRICS, Per, Scale
from nocap.study.__main__ import main
from nocap.study.ladder import ladders, picture, section
from nocap.study.result import StudyResult
from tests.lab import Lab, lab
from tests.studies import (
    RACE,
    at,
    made_arm,
    made_judged,
    made_result,
    made_verdict,
    study,
    typed,
    written,
)

__all__ = ["lab"]


def size(scale: str, params: float, speedups: Sequence[float], *, machine: str, ending: str) -> StudyResult:
    """Results of one size, as far as a ladder reads them."""
    logs = np.log(speedups).tolist()
    most = logs if ending == "measured" else [math.inf] * len(logs)
    verdict = made_verdict(Word.confirmed, gain(logs, most))
    return made_result(
        [made_judged(typed(RACE), verdict, against="mha")],
        [made_arm("mha", params=params), made_arm("mqa", params=2 * params)],
        scale=scale,
        machine=machine,
    )


def gain(least: Sequence[float], most: Sequence[float]) -> Gain:
    """Logarithms of the speedups of pairs."""
    return Gain(
        metric=METRICS["time_to_target_s"],
        scale=Scale.ratio,
        per=Per.session,
        least=least,
        most=most,
        ends=(math.log(1.05), math.inf),
    )


def ladder(
    *middles: float, noise: float = 0.01, machine: str = "here", ending: str = "measured"
) -> list[StudyResult]:
    """Sizes of three pairs each, ten times from one to the next. `ending`: of the third and later ones."""
    spread = np.exp(np.array([-noise, 0.0, noise]))
    return [
        size(
            f"{10**i}M",
            1e6 * 10**i,
            list(middle * spread),
            machine=machine,
            ending="measured" if i < 2 else ending,
        )
        for i, middle in enumerate(middles)
    ]


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
def test_what_size_does_to_a_speedup(every: list[StudyResult], word: str, decade: float | None):
    (rungs,) = ladders(every)
    assert rungs.word == word
    assert (rungs.decade and rungs.decade.mid) == (decade and pytest.approx(decade, rel=0.01))


def test_the_challenges_size_is_told_only_where_the_interval_allows_it():
    (sure,), (unsure,) = (ladders(ladder(1.2, 1.44, 1.728, noise=noise)) for noise in (0.01, 0.3))
    assert sure.far.mid == pytest.approx(1.2 * 1.2 ** math.log10(124), rel=1e-6)
    assert sure.far.high < 2 * sure.far.low
    assert unsure.far is None


def test_sizes_are_of_one_machine_and_in_their_order():
    every = [*reversed(ladder(1.2, 1.44, 1.728)), *ladder(1.3, 1.4, machine="there")]
    text = "\n".join(section(every))
    parts = ("## The ladder: here", "1M: 1.00M", "10M: 10.0M", "100M: 100.0M", "**grows**")
    places = [text.index(part) for part in parts[:4]]
    assert places == sorted(places)
    assert [text.count(part) for part in (parts[0], parts[4], "## The ladder: there")] == [1, 1, 1]
    root = ElementTree.fromstring(forest.file(picture(every)))
    assert len(root.findall("{*}g")) == 6  # five sizes and one fit
    assert picture([]) is None


@pytest.mark.slow
def test_without_a_scale_the_ladders_are_carried_out(lab: Lab, capsys: pytest.CaptureFixture[str]):
    scales = {name: at()["cpu"] | {"lengths": [0.25, 0.5]} for name in ("small", "large", "huge")}
    folder = written(lab.root / "made", study(claims=[RACE], scales=scales, ladder=["small", "large"]))
    words = ["--judge", str(folder), f"output_dir={lab.root / 'out'}"]
    for more, named in (
        ((), ["small", "large"]),
        (["scale=huge"], ["huge"]),
        (["sessions=5"], ["small", "large"]),
    ):
        assert main([*words, *more]) == 1  # nothing was measured
        said = re.findall(r"^made, scale (\w+):", capsys.readouterr().out, re.M)
        assert said == named
