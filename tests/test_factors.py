"""A grid by factor, through the door: against the interval of `tests/test_interval.py`, and cases
worked out by hand."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nocap import compare as door
from nocap.judge.compare import compare
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import to_json
from nocap.report import comparison_page as page
from nocap.report.comparison_tables import render
from nocap.store.runs import load_runs
from tests.test_compare import told, write_run
from tests.test_interval import of_a_mixed_model

Json = dict[str, Any]
Losses = Mapping[tuple[str, ...], np.ndarray]  # level of each key → losses, seed by seed
SIZES = (3, 4, 5, 7, 8, 12)


def judged(folder: Path, keys: str, losses: Losses, *words: str) -> Json:
    """What the command says of a table of last losses."""
    names = keys.split("+")
    rows = []
    for place, of_place in losses.items():
        for seed, loss in enumerate(of_place):
            cells = [*place, str(seed), repr(float(loss))]
            rows.append(",".join(cells))
    heads = [*names, "seed", "val_loss"]
    text = "\n".join([",".join(heads), *rows]) + "\n"
    (folder / "t.csv").write_text(text)
    command = [
        str(folder / "t.csv"),
        "--columns",
        f"arm={keys}",
        "--json",
        str(folder / "t.json"),
        *words,
    ]
    assert door.main(command) == 0
    content: Json = json.loads((folder / "t.json").read_text())
    return content


def drawn(
    rng: np.random.Generator, *levels: str, n: int, effects: Mapping[str, float] | None = None
) -> Losses:
    """Losses of every combination of these levels: what seeds share, what runs have, what levels
    add."""
    common = rng.normal(size=n)
    values = {}
    for place in itertools.product(*(names.split() for names in levels)):
        noise = rng.normal(size=n)
        effect = sum((effects or {}).get(name, 0) for name in place)
        values[place] = 3 + 0.01 * (common + noise) + effect
    return values


# --- ends, against a reference --------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_two_arms_are_scipys(tmp_path: Path, n: int) -> None:
    rng = np.random.default_rng(n)
    losses = drawn(rng, "base idea", n=n)
    arms = judged(tmp_path, "arm", losses)["arms"]
    (gap,) = [arm["difference"] for arm in arms if arm["difference"]]
    exact = stats.ttest_rel(losses["idea",], losses["base",]).confidence_interval()
    assert gap["low"] == pytest.approx(exact.low, abs=1e-9)
    assert gap["high"] == pytest.approx(exact.high, abs=1e-9)


@pytest.mark.parametrize("n", SIZES)
def test_two_arms_without_shared_seeds_are_scipys(tmp_path: Path, n: int) -> None:
    rng = np.random.default_rng(n)
    base = rng.normal(3, 0.01, n)
    idea = rng.normal(3, 0.03, n + 1)
    rows = [f"base,{i},{loss!r}" for i, loss in enumerate(base.tolist())]
    rows += [f"idea,{i + 100},{loss!r}" for i, loss in enumerate(idea.tolist())]
    text = "\n".join(["arm,seed,val_loss", *rows]) + "\n"
    (tmp_path / "t.csv").write_text(text)
    assert door.main([str(tmp_path / "t.csv"), "--json", str(tmp_path / "t.json")]) == 0
    content = json.loads((tmp_path / "t.json").read_text())
    gap = content["arms"][1]["difference"]
    exact = stats.ttest_ind(idea, base, equal_var=False).confidence_interval()
    assert gap["low"] == pytest.approx(exact.low, abs=1e-9)
    assert gap["high"] == pytest.approx(exact.high, abs=1e-9)


@pytest.mark.parametrize("n", SIZES)
def test_levels_are_means_over_the_other_keys_with_the_interval_of_arms(
    tmp_path: Path, n: int
) -> None:
    rng = np.random.default_rng(n)
    losses = drawn(rng, "flash gqa", "gelu4x gelu3x swiglu", n=n)
    content = judged(tmp_path, "attention+mlp", losses)
    attention, mlp = content["by_factor"]["factors"]

    def mean(level: str) -> np.ndarray:
        of_level = [of_place for place, of_place in losses.items() if level in place]
        return np.mean(of_level, axis=0)

    assert attention["key"] == "attention"
    assert attention["baseline"] == "flash"
    assert attention["over"] == {"mlp": 3}
    assert mlp["key"] == "mlp"
    assert mlp["baseline"] == "gelu4x"
    assert mlp["over"] == {"attention": 2}
    exact = stats.ttest_rel(mean("gqa"), mean("flash")).confidence_interval()
    (gqa,) = attention["levels"]
    assert gqa["difference"]["low"] == pytest.approx(exact.low, abs=1e-9)
    assert gqa["difference"]["high"] == pytest.approx(exact.high, abs=1e-9)
    differences = np.array([mean(level) - mean("gelu4x") for level in ("gelu3x", "swiglu")])
    ends = of_a_mixed_model(differences)
    for level, (low, high) in zip(mlp["levels"], ends, strict=True):
        assert level["difference"]["low"] == pytest.approx(low, abs=1e-9)
        assert level["difference"]["high"] == pytest.approx(high, abs=1e-9)
    base = losses["flash", "gelu4x"]
    contrasts = []
    for name in ("gelu3x", "swiglu"):
        of_attention = losses["gqa", "gelu4x"] - base
        of_mlp = losses["flash", name] - base
        contrasts.append(losses["gqa", name] - base - of_attention - of_mlp)
    for interaction, (low, high) in zip(
        content["by_factor"]["interactions"], of_a_mixed_model(np.array(contrasts)), strict=True
    ):
        assert interaction["low"] == pytest.approx(low, abs=1e-9)
        assert interaction["high"] == pytest.approx(high, abs=1e-9)
        assert interaction["shown"] is bool(low > 0 or high < 0)
    arms = [arm["difference"] for arm in content["arms"] if arm["difference"]]
    rest = np.array([row - base for place, row in losses.items() if place != ("flash", "gelu4x")])
    ends = of_a_mixed_model(rest)
    for gap, (low, high) in zip(arms, ends, strict=True):
        assert gap["low"] == pytest.approx(low, abs=1e-9)
        assert gap["high"] == pytest.approx(high, abs=1e-9)


# --- words ----------------------------------------------------------------------------------------


def test_a_gain_that_no_arm_shows_is_shown_by_factor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is the first table that is read."""
    rng = np.random.default_rng(3)
    effects = {"swiglu": -0.022}
    losses = drawn(rng, "flash gqa mqa", "gelu4x swiglu", "rope none", n=4, effects=effects)
    content = judged(tmp_path, "attention+mlp+position", losses)
    attention, mlp, position = content["by_factor"]["factors"]
    verdicts = [level["difference"]["verdict"] for level in attention["levels"]]
    assert verdicts == ["no difference shown"] * 2
    verdicts = [level["difference"]["verdict"] for level in mlp["levels"]]
    assert verdicts == ["better"]
    verdicts = [level["difference"]["verdict"] for level in position["levels"]]
    assert verdicts == ["no difference shown"]
    flash = next(arm for arm in content["arms"] if arm["label"] == "flash swiglu rope")
    assert flash["difference"]["verdict"] == "no difference shown"
    out = capsys.readouterr().out
    assert re.search(
        r"mlp=swiglu +3 levels of attention × 2 levels of position +4 +lower loss by 0\.0\d+ ± "
        r"0\.0\d+ +better",
        out,
    )
    assert out.index("By factor") < out.index("Verdicts")
    assert "Of 7 interactions, 0 shown: the gains of single changes may add up." in out


def test_what_turns_round_with_another_key_depends_on_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    effects = {"gqa": -0.05}
    losses = dict(drawn(rng, "flash gqa", "gelu4x swiglu", n=6, effects=effects))
    for attention, more in (("flash", 0.02), ("gqa", 0.11)):
        losses[attention, "swiglu"] = losses[attention, "swiglu"] + more
    content = judged(tmp_path, "attention+mlp", losses)
    attention, mlp = content["by_factor"]["factors"]
    assert attention["levels"][0]["difference"]["verdict"] == "depends on mlp"
    assert mlp["levels"][0]["difference"]["verdict"] == "worse"  # beside both
    (interaction,) = content["by_factor"]["interactions"]
    assert interaction["shown"] is True
    assert interaction["mean"] == pytest.approx(0.09, abs=0.03)
    assert interaction["arm"] == "gqa swiglu"


@pytest.mark.slow
def test_false_words_of_a_grid_are_as_rare_as_said(tmp_path: Path) -> None:
    """Two keys' tables and that of the arms: some 11% of grids have a false word."""
    keys = [{"a": x, "b": y} for x, y in itertools.product("01", "012")]
    for place, seed in itertools.product(keys, range(4)):
        config = {f"model.{key}": name for key, name in place.items()}
        write_run(tmp_path, words=f"gpt2-{place['a']}{place['b']}", config=config, seed=seed)
    rng = np.random.default_rng(1)
    loaded = load_runs([tmp_path])
    alarms = 0
    for _ in range(100):
        common = rng.normal(size=4)
        for record in loaded.records:
            record.summary["val_loss"] = 3.3 + 0.01 * (common[record.seed] + rng.normal())
        content = to_json(result_of(compare(loaded)))
        levels = []
        for factor in content["by_factor"]["factors"]:
            levels.extend(factor["levels"])
        gaps = [row["difference"] for row in (*levels, *content["arms"]) if row["difference"]]
        alarms += any(gap["verdict"] != "no difference shown" for gap in gaps)
    assert alarms / 100 <= 0.22


# --- what is a crossing ---------------------------------------------------------------------------


def grid(
    root: Path,
    places: list[dict[str, str]],
    *,
    about: Callable[[dict[str, str], int], Json] | None = None,
) -> Path:
    """Runs of three seeds at these places: levels of keys, each with what follows from it."""
    rng = np.random.default_rng(0)
    for place, seed in itertools.product(places, range(3)):
        noise = rng.normal(0, 0.001)
        made = {"loss": 3.3 + noise, **(about(place, seed) if about else {})}
        made.setdefault("config", {f"model.{key}": value for key, value in place.items()})
        words = "gpt2-" + "-".join(place.values())
        write_run(root, words=words, seed=seed, **made)
    return root


def factors(root: Path, **options: Any) -> dict[str, list[str]] | None:
    """Key → its levels, the baseline's first."""
    read = told(root, **options)["by_factor"]
    if read is None:
        return None
    values: dict[str, list[str]] = {}
    for factor in read["factors"]:
        values[factor["key"]] = [
            factor["baseline"],
            *(level["level"] for level in factor["levels"]),
        ]
    return values


def product(**levels: str) -> list[dict[str, str]]:
    values: list[dict[str, str]] = []
    for names in itertools.product(*(x.split() for x in levels.values())):
        values.append(dict(zip(levels, names, strict=True)))
    return values


def test_options_and_keys_that_were_swept_are_the_factors(tmp_path: Path) -> None:
    """Not the keys that follow from an option."""

    def about(place: dict[str, str], seed: int) -> Json:
        heads = {"flash": 12, "gqa": 4}[place["attention"]]
        config = {
            "attention.n_kv_heads": heads,
            "attention.kind": place["attention"],
            "optimizer.lr": place["lr"],
        }
        options = {"attention": place["attention"], "mlp": "gelu4x"}
        return {
            "config": config,
            "options": options,
            "swept": ("attention", "optimizer.lr", "seed"),
        }

    root = grid(tmp_path, product(attention="flash gqa", lr="0.1 0.2 0.3"), about=about)
    expected = {"attention": ["flash", "gqa"], "lr": ["0.1", "0.2", "0.3"]}
    assert factors(root) == expected


def test_keys_that_go_in_pairs_are_one_factor(tmp_path: Path) -> None:
    """As of `--zip`, beside a key that is crossed with both."""
    pairs = [{"lr": "0.1", "decay": "1"}, {"lr": "0.2", "decay": "2"}]
    points = []
    for pair in pairs:
        for mlp in ("a", "b"):
            points.append({**pair, "mlp": mlp})
    root = grid(tmp_path, points)
    expected = {"lr+decay": ["lr=0.1 decay=1", "lr=0.2 decay=2"], "mlp": ["a", "b"]}
    assert factors(root) == expected


NO_CROSSINGS = [
    product(lr="0.1 0.2 0.3"),  # one key
    product(lr="0.1 0.2", mlp="a b")[:3],  # a hole
    product(lr="0.1 0.2", mlp="a b", norm="x y")[:7],
    [{"lr": x, "mlp": x} for x in "abc"],
]


@pytest.mark.parametrize("places", NO_CROSSINGS)
def test_what_is_no_full_crossing_is_read_arm_by_arm(
    tmp_path: Path, places: list[dict[str, str]]
) -> None:
    assert factors(grid(tmp_path, places)) is None


def test_an_arm_that_left_the_table_leaves_a_hole_and_a_line_says_so(tmp_path: Path) -> None:
    root = grid(tmp_path, product(lr="0.1 0.2", mlp="a b"))
    config = {"model.lr": "0.2", "model.mlp": "b"}
    write_run(
        root, words="gpt2-0.2-b", config=config, seed=3, status="diverged", curve=(5, 6, 7, 8, 9)
    )
    content = told(root)
    assert content["by_factor"] is None
    assert (
        "there is no table by factor, because the grid has no usable result of 0.2 b (diverged "
        "(1 of 4 seeds))" in content["problems"]
    )


def test_a_level_whose_arms_differ_in_more_is_confounded(tmp_path: Path) -> None:
    def about(place: dict[str, str], seed: int) -> Json:
        return {"kernel": "math" if place["mlp"] == "b" else "flash"}

    root = grid(tmp_path, product(lr="0.1 0.2", mlp="a b"), about=about)
    lr, mlp = told(root)["by_factor"]["factors"]
    assert mlp["levels"][0]["difference"]["verdict"] == "confounded (kernel)"
    assert lr["levels"][0]["difference"]["verdict"] == "no difference shown"
    _, allowed = told(root, allow=["kernel"])["by_factor"]["factors"]
    assert allowed["levels"][0]["difference"]["verdict"] == "no difference shown"


def test_the_page_has_the_levels_first_and_their_effects_sorted(tmp_path: Path) -> None:
    def about(place: dict[str, str], seed: int) -> Json:
        offset = {"a": 0.0, "b": 0.2, "c": -0.2}
        return {"loss": 3.3 + offset[place["mlp"]] + 0.001 * seed * len(place["lr"])}

    root = grid(tmp_path, product(lr="0.1 0.22", mlp="a b c"), about=about)
    comparison = compare(load_runs([root]))
    text = page.render(comparison)
    picture = text[text.index('<svg class="forest"') :]

    assert picture.index("mlp=c") < picture.index("lr=0.22") < picture.index("mlp=b")
    # also one that lies far from the others
    assert picture[: picture.index("</figure>")].count("<circle") == 3
    assert text.index("By factor") < text.index("Arm by arm")
    assert render(comparison).index("By factor") < render(comparison).index("Verdicts")


# --- columns of a table ---------------------------------------------------------------------------


def test_an_arm_of_several_columns_names_one_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("attention,mlp,seed,val_loss\nflash,a,0,3\n")
    with pytest.raises(SystemExit, match=r"^2$"):
        door.main([str(tmp_path / "t.csv"), "--columns", "arm=attention+norm"])
    err = capsys.readouterr().err
    assert "--columns arm must be one of the columns attention, mlp, seed, val_loss" in err
    assert "got norm" in err


def test_a_column_that_has_a_plus_in_its_name_is_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a+b,seed,val_loss\nx,0,3\ny,0,2\n")
    command = [str(tmp_path / "t.csv"), "--columns", "arm=a+b", "--json", str(tmp_path / "t.json")]
    assert door.main(command) == 0
    text = (tmp_path / "t.json").read_text()
    arms = json.loads(text)["arms"]
    labels = [arm["label"] for arm in arms]
    assert labels == ["x", "y"]
