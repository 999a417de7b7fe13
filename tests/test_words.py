"""A key of text gets the characters that were typed; a key of another type refuses what is not of
it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from nocap.config.compose import compose, raw_config
from nocap.config.overrides import overrides_of
from nocap.config.plain import from_plain, to_plain
from nocap.launch.sweep import expand
from tests.conftest import SMALL, Door

WITHOUT_DATA = [word for word in SMALL if not word.startswith("data")]
NUMBERS_AND_THE_LIKE = [
    *(
        "2024_11_27",
        "3.10",
        "1e5",
        "0x10",
        "007",
        "1_000",
        ".5",
        "12e4567",
        "+7",
        "-0",
        "1.",
        "1_0.0_1",
    ),
    *("null", "Null", "on", "yes", "true", "TRUE", "False", "inf", "-inf", "nan"),
]
CHANCE = random.Random(0)
WORDS = ["".join(CHANCE.choices("0123456789e_.x", k=CHANCE.randint(1, 12))) for _ in range(40)]


@pytest.mark.parametrize("text", [*NUMBERS_AND_THE_LIKE, *WORDS])
def test_a_text_is_what_was_typed(text: str) -> None:
    run = compose([*SMALL, f"output_dir={text}", "tracker=wandb", f"tracker.tags=[{text}, {text}]"])
    assert run.output_dir == text
    assert run.tracker.tags == [text, text]


@pytest.mark.parametrize("word", ["data.revision=12e4567", "tracker.group=7e10"])
def test_a_text_of_an_option_is_what_was_typed(word: str) -> None:
    place, _, text = word.partition("=")
    group, _, key = place.partition(".")
    run = compose([*WITHOUT_DATA, "tracker=wandb", "data=fineweb", word])
    assert getattr(getattr(run, group), key) == text


def test_the_config_that_is_shown_has_it_too(here: Door) -> None:
    shown = yaml.safe_load(here("--cfg", "job", *SMALL, "output_dir=2024_11_27").out)
    assert shown["output_dir"] == "2024_11_27"


def test_quotes_escapes_and_mappings_are_read_as_before() -> None:
    words = [
        "output_dir='a, b'",
        r"cache_dir=a\,b",
        "tracker=wandb",
        "tracker={project: 1_0, tags: [7e1]}",
    ]
    run = compose([*SMALL, *words])
    assert run.output_dir == "a, b"
    assert run.cache_dir == "a,b"
    assert run.tracker.project == "1_0"
    assert run.tracker.tags == ["7e1"]


def test_a_text_or_a_list_of_texts() -> None:
    assert compose([*WITHOUT_DATA, "data=text", "data.path=2024_11"]).data.path == "2024_11"
    run = compose([*WITHOUT_DATA, "data=text", "data.path=[2024_11,1e5]"])
    assert run.data.path == ["2024_11", "1e5"]


def test_null_is_empty_where_a_key_may_be_empty_and_text_in_quotes() -> None:
    assert compose([*SMALL, "cache_dir=null"]).cache_dir is None
    assert compose([*SMALL, "cache_dir='null'"]).cache_dir == "null"
    assert compose([*SMALL, "output_dir=null"]).output_dir == "null"


QUOTED = [
    ("step=100.txt", "'step=100.txt'", "step=100.txt"),
    ("a#b.txt", "'a#b.txt'", "a#b.txt"),
    ("it's.txt", r"'it\'s.txt'", "it's.txt"),
    ("[a#b.txt,c.txt]", "['a#b.txt','c.txt']", ["a#b.txt", "c.txt"]),
    ("['a#b',c#d]", "['a#b','c#d']", ["a#b", "c#d"]),
    ("~/texts", "'~/texts'", "~/texts"),
]


@pytest.mark.parametrize(("value", "quoted", "read"), QUOTED)
def test_what_cannot_be_read_is_shown_in_quotes_that_can(
    value: str, quoted: str, read: str | list[str]
) -> None:
    with pytest.raises(
        ValueError, match=r"cannot be read: put the value in quotes, as in "
    ) as refused:
        compose([*WITHOUT_DATA, "data=text", f"data.path={value}"])
    assert str(refused.value).endswith(f'as in "data.path={quoted}"')
    run = compose([*WITHOUT_DATA, "data=text", f"data.path={quoted}"])
    assert run.data.path == read


def test_a_list_for_one_text_is_refused() -> None:
    words = [*WITHOUT_DATA, "data=shards", "data.val=v"]
    with pytest.raises(
        ValueError,
        match=r"data.train must be one text and not a list \(quotes turn \[a,b\] into a text",
    ):
        compose([*words, "data.train=[a,b]"])
    run = compose([*words, "data.train='[a,b]'"])
    assert run.data.train == "[a,b]"


def test_a_number_is_typed_as_a_number() -> None:
    run = compose([*SMALL, "model.n_layer=1_0", "optimizer.lr=1e-3", "trainer.grad_clip=null"])
    assert run.model.n_layer == 10
    assert run.optimizer.lr == 0.001
    assert run.trainer.grad_clip is None


@pytest.mark.parametrize("value", ["1_000", "2", "1e5", "maybe"])
def test_a_truth_value_is_true_or_false(value: str) -> None:
    with pytest.raises(ValueError, match=r"model\.qk_norm must be true or false, got"):
        compose([*SMALL, f"model.qk_norm={value}"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("output_dir", 3.1),
        ("tracker.group", 70000000000.0),
        ("tracker.tags", [1000]),
        ("data.revision", 10),
    ],
)
def test_a_number_in_a_yaml_is_no_text(key: str, value: object) -> None:
    run = compose([*WITHOUT_DATA, "tracker=wandb", "data=fineweb"])
    plain = to_plain(run)
    place, _, name = key.rpartition(".")
    (plain[place] if place else plain)[name] = value
    with pytest.raises(
        ValueError, match=rf"{key}(\[0\])? must be text \(put quotes around a text that"
    ):
        from_plain(plain, "it must be a config")


def test_an_experiments_number_is_no_text(tmp_path: Path, here: Door) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\noutput_dir: 3.10\n")
    refused = here("--config-dir", str(tmp_path), "--cfg", "job", "experiment=mine")
    assert refused.code == 2
    assert (
        "output_dir must be text (put quotes around a text that looks like a number), got 3.1"
        in refused.err
    )


def test_a_grid_sweeps_over_what_was_typed() -> None:
    words = ["tracker.group=1_000,7e10,null,'a b',plain", "model.n_layer=range(1,3)"]
    cells = expand(overrides_of(words, grid=True), zipped=False)
    expected = [
        "tracker.group=1_000",
        "tracker.group=7e10",
        "tracker.group=null",
        "tracker.group='a b'",
        "tracker.group=plain",
    ]
    assert [cell[0] for cell in cells[::2]] == expected
    assert [cell[1] for cell in cells[:2]] == ["model.n_layer=1", "model.n_layer=2"]


def test_the_values_that_nobody_looked_at_are_typed_too() -> None:
    config, _ = raw_config([*SMALL, "output_dir=1_000"])
    assert config.output_dir == "1_000"
