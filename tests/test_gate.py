"""A stranger's yaml, pickle or override runs no code, at any door; and nothing that is read takes
long. Words that are refused: tests/test_bad_input.py."""

import os
from pathlib import Path
from typing import Any

import pytest

from nocap.config.compose import compose
from nocap.config.paths import cache_root
from nocap.config.plain import load
from nocap.config.untrusted_files import parse_json, parse_yaml, read_text
from nocap.data.prepare import prepare
from tests.conftest import SMALL
from tests.studies import STUDY, at, study, written
from tests.test_bad_input import LOGGING, TOUCH, ask, empty, refused  # noqa: F401

FACTORY = (
    "{version: 1, root: {handlers: [x]}, handlers: {x: {(): pathlib.Path.touch, self: CANARY}}}"
)
GLOBAL = "# @package _global_\n"
YAMLS = {
    "callback": f"{GLOBAL}hydra: {{callbacks: {{x: {TOUCH}}}}}\n",
    "callback by its package": f"# @package hydra.callbacks\nx: {TOUCH}\n",
    "callback by a default's package": f"{GLOBAL}defaults: [{{/model@hydra.callbacks: nano}}]\n",
    "callback by a relative package": f"{GLOBAL}defaults: [{{/model@_global_.hydra.callbacks: "
    f"nano}}]\n",
    "logging": f"{GLOBAL}hydra: {{job_logging: {LOGGING}, hydra_logging: {LOGGING}}}\n",
    "logging by a factory": f"{GLOBAL}hydra: {{job_logging: {FACTORY}}}\n",
    "environment": f"{GLOBAL}hydra: {{job: {{env_set: {{LD_PRELOAD: ./x.so}}, env_copy: "
    f"[HOME]}}}}\n",
    "search path": f"{GLOBAL}hydra: {{searchpath: ['pkg://evil']}}\n",
    "launcher's key": f"{GLOBAL}hydra: {{launcher: {{setup: [touch canary]}}}}\n",
    "target at the top": f"{GLOBAL}_target_: os.system\n",
    "target in an option": f"{GLOBAL}model: {TOUCH}\n",
    "target in a list": f"{GLOBAL}trainer: {{keep_steps: [{TOUCH}]}}\n",
    "target in a free value": f"{GLOBAL}defaults: [{{override /data: text}}]\ndata: {{path: "
    f"[{TOUCH}]}}\n",
    "Python's tag": f"{GLOBAL}seed: !!python/object/apply:os.system [touch canary]\n",
    "sweeps beside others": f"{GLOBAL}hydra: {{sweeper: {{params: {{seed: '0,1'}}, _target_: "
    f"x}}}}\n",
    **{
        f"defaults: {defaults}": f"{GLOBAL}defaults: {defaults}\n"
        for defaults in (
            "3",
            "{a: 1}",
            "[[]]",
            "[{a: 1}]",
            "[{1: a}]",
            "[{a: b, c: d}]",
            "[{model: [1]}]",
            "[null]",
        )
    },
}


def evil(folder: Path, text: str, *, place: str = "experiment/evil.yaml") -> tuple[str, str]:
    path = folder / "evil" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("CANARY", str(folder / "canary")))
    return "--config-dir", str(folder / "evil")


DOORS: dict[str, tuple[str, ...]] = {
    "train": (*SMALL, "--multirun", "seed=0,1"),
    "bench": ("model=nano", "--arm", "attention=mha", "--arm", "attention=flash"),
    "profile": ("model=nano", "tracker=none"),
    "data": ("prepare", *SMALL),
}


@pytest.mark.parametrize("name", YAMLS)
def test_a_strangers_yaml_runs_nothing(name: str, ask: Any, tmp_path: Path) -> None:  # noqa: F811
    flags = evil(tmp_path, YAMLS[name])
    refused(
        ask("train", *flags, *SMALL, "experiment=evil"), *["default"] * name.startswith("defaults")
    )
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["evil"]


def test_nor_at_any_door(ask: Any, tmp_path: Path) -> None:  # noqa: F811
    """It is refused where it is asked for. A folder that is only named is not read but for its
    options."""
    flags = evil(tmp_path, YAMLS["callback"])
    arms = {"mqa": ["attention=mqa", "experiment=evil"]}
    content = study(arms=STUDY["arms"] | arms)
    folder = written(tmp_path / "study", content)
    for door, words in DOORS.items():
        refused(ask(door, *flags, *words, "experiment=evil"))
    ended = ask("train", *flags, *SMALL, "--multirun", "seed=0,1", "experiment=evil,small_bytes")
    assert ended[0] == 2
    refused(ask("study", *flags, str(folder), "--plan"))
    assert ask("compare", *flags, "outputs")[0] == 2
    assert ask("generate", *flags, "run=nothing")[0] == 2
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"evil", "study", "cache"}


HYDRAS_PLACES = [
    ("hydra/callbacks/evil.yaml", f"x: {TOUCH}"),
    ("hydra/config.yaml", f"callbacks: {{x: {TOUCH}}}"),
    ("hydra/job_logging/none.yaml", LOGGING),
    ("hydra/env/default.yaml", f"# @package hydra.callbacks\nx: {TOUCH}"),
    ("hydra/launcher/evil.yaml", TOUCH),
    ("hydra/launcher/evil.yaml", f"# @package hydra.callbacks\nx: {TOUCH}"),
    ("hydra/launcher/evil.yaml", f"kind: pool\njobs: {TOUCH}"),
    ("schema/run.yaml", "seed: 3"),
    ("train.yaml", f"hydra: {{callbacks: {{x: {TOUCH}}}}}"),
]


@pytest.mark.parametrize(("place", "text"), HYDRAS_PLACES)
def test_nor_does_one_in_hydras_own_places(place: str, text: str, ask: Any, tmp_path: Path) -> None:  # noqa: F811
    words = "train", *evil(tmp_path, text, place=place), *SMALL
    if "launcher" in place:
        chosen = ["hydra/launcher=evil"]
    else:
        chosen = []
    code = ask(*words)[0]
    codes = {code, ask(*words, "--multirun", "seed=0", *chosen)[0]}
    assert codes <= {2, "started"}  # a file that is not reached does not matter
    assert 2 in codes or not chosen


# --- what takes long ------------------------------------------------------------------------------

BOMBS = {
    "deep": ("[" * 900, "must not be nested so deeply"),
    "deeper": ("[" * 1_100, ".yaml"),  # PyYAML 6.0.4 refuses it itself, in words of its own
    "deep keys": ("? " * 100_000, "must not be nested so deeply"),
    "twice": ("a: 1\na: 2\n", "the key a must appear only once"),
    "no text": ("a: \x00\n", "not allowed"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_bombs_are_refused_at_once(name: str, ask: Any, tmp_path: Path) -> None:  # noqa: F811
    text, says = BOMBS[name]
    flags = evil(tmp_path, text)
    (tmp_path / "study").mkdir()
    for path in (tmp_path / "study" / "study.yaml", tmp_path / "config.yaml"):
        path.write_text(text)
    refused(ask("train", *flags, "experiment=evil"), says)
    refused(ask("study", str(tmp_path / "study"), "--plan"), says)
    with pytest.raises(ValueError, match=r"must be a run's config\.yaml"):
        load(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "[-" + "9" * 400 + "]", "NaN", "[1,"]
)
def test_json_bombs_are_values_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        parse_json(text)


def test_what_is_within_the_limits_is_read() -> None:
    expected = {"a": [1, -2.5e-3, None, "x", [[]]]}
    assert parse_json('{"a": [1, -2.5e-3, null, "x", [[]]]}') == expected
    anchored = parse_yaml("a: &a {b: 1}\nc: {<<: *a, d: [*a, *a]}\ne: " + "f0" * 32)
    assert anchored == {"a": {"b": 1}, "c": {"b": 1, "d": [{"b": 1}, {"b": 1}]}, "e": "f0" * 32}


@pytest.mark.parametrize(
    "name", ["pipe", "/dev/zero", pytest.param("/dev/null", marks=pytest.mark.slow)]
)
def test_only_regular_files_are_read(name: str, ask: Any, tmp_path: Path) -> None:  # noqa: F811
    os.mkfifo(tmp_path / "pipe")
    for link in ("s/study.yaml", "mine/attention/x.py", "x.yaml"):
        parent = (tmp_path / link).parent
        parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link).symlink_to(tmp_path / name)
    refused(ask("study", "s", "--plan"), "regular file")
    (tmp_path / "mine/attention/x.yaml").write_text("kind: x\n")
    refused(ask("train", "--config-dir", "mine", "attention=x"), "attention.kind must be one of")
    run = compose(["model=nano", "data=shards", f"data.train={name}", "data.val=pipe"])
    text = compose(["model=nano", "data=text", f"data.path={name}"])
    cases = (
        lambda: read_text(tmp_path / name),
        lambda: load(tmp_path / "x.yaml"),
        lambda: prepare(run.data, run.tokenizer, cache_dir=tmp_path / "cache"),
        lambda: prepare(text.data, text.tokenizer, cache_dir=tmp_path / "cache"),
    )
    for read in cases:
        with pytest.raises(ValueError, match=r"regular file|in both"):
            read()


# --- where things lie -----------------------------------------------------------------------------


OTHER_PLACES = [
    *(
        ({"overrides": [*STUDY["overrides"], *more]}, f"{how.format(key)}")
        for more, key, how in (
            (
                ["cache_dir=elsewhere"],
                "cache_dir",
                "a study must not set {}, because the command sets it",
            ),
            (["++output_dir=elsewhere"], "output_dir", "a study must not set {}"),
            (
                ["tracker=wandb", "tracker.entity=elsewhere"],
                "tracker.entity",
                "a study must not set {}",
            ),
            (["hydra.run.dir=elsewhere"], "hydra.run.dir", "{} must not be set"),
        )
    ),
    *(
        ({"arms": {**STUDY["arms"], name: ["attention=mqa", *more]}}, says)
        for name, more, says in (
            ("mqa", ["+cache_dir='elsewhere'"], "a study must not set cache_dir"),
            ("mqa", ["~cache_dir"], "a study must not set cache_dir"),
            ("../elsewhere", [], "arms and scales must have names"),
            ("\x1b[31m", [], "arms and scales must have names"),
        )
    ),
    ({"scales": at(train=["output_dir=elsewhere"])}, "a study must not set output_dir"),
    (
        {"scales": at(own={"mqa": ["trainer.init_from=elsewhere"]})},
        "a study must not set trainer.init_from",
    ),
    ({"scales": {"../../elsewhere": STUDY["scales"]["cpu"]}}, "arms and scales must have names"),
    ({"overrides": [["attention=mqa"]]}, "overrides"),
]


@pytest.mark.parametrize(("changed", "says"), OTHER_PLACES)
def test_a_study_writes_where_the_command_says(
    changed: dict[str, Any],
    says: str,
    ask: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    written(tmp_path / "made", study(**changed))
    for words in (("--plan",), (), ("--judge",)):
        refused(ask("study", "made", *words), says)
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["made"]


def test_without_a_home_the_cache_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOCAP_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # nobody of this number
    with pytest.raises(
        ValueError,
        match=r"^the environment variable NOCAP_CACHE, or the key cache_dir, must name a folder",
    ):
        cache_root()
