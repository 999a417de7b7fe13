"""A stranger's yaml, pickle or override runs no code, at any door; and nothing that is read takes long."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nocap.config.bounded import parse_json, parse_yaml, read_text
from nocap.config.compose import compose
from nocap.config.paths import cache_root
from nocap.config.plain import load
from tests.conftest import REPO, SMALL
from tests.studies import STUDY, at, study, written
from tests.test_bad_input import at_the_door, empty  # noqa: F401

Asked = tuple[int | str | None, list[str], float]


@pytest.fixture
def ask(empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:  # noqa: F811
    """A door's exit code, its lines on stderr, and the seconds it took; `canary` must not be there."""

    def call(door: str, *words: str) -> Asked:
        began = time.process_time()
        with monkeypatch.context() as patched:
            patched.setattr(logging.root, "handlers", [*logging.root.handlers])  # Hydra's --info adds one
            patched.setattr(logging.root, "level", logging.root.level)
            code = at_the_door(door, list(words), patched)
        took = time.process_time() - began
        assert not (empty / "canary").exists(), "code ran"
        return code, capsys.readouterr().err.splitlines(), took

    return call


def refused(asked: Asked, *words: str) -> None:
    """In one line with these words."""
    code, lines, _ = asked
    assert (code, len(lines)) == (2, 1), asked
    assert all(word in lines[0] for word in words), lines


TOUCH = "{_target_: pathlib.Path.touch, _args_: [{_target_: pathlib.Path, _args_: [CANARY]}]}"
LOGGING = "{version: 1, root: {handlers: [x]}, handlers: {x: {class: logging.FileHandler, filename: CANARY}}}"
FACTORY = "{version: 1, root: {handlers: [x]}, handlers: {x: {(): pathlib.Path.touch, self: CANARY}}}"
YAMLS = {
    "callback": f"# @package _global_\nhydra: {{callbacks: {{x: {TOUCH}}}}}\n",
    "callback by its package": f"# @package hydra.callbacks\nx: {TOUCH}\n",
    "callback by a default's package": "# @package _global_\ndefaults: [{/model@hydra.callbacks: nano}]\n",
    "callback by a relative package": "# @package _global_\ndefaults: [{/model@_global_.hydra.callbacks: "
    "nano}]\n",
    "logging": f"# @package _global_\nhydra: {{job_logging: {LOGGING}, hydra_logging: {LOGGING}}}\n",
    "logging by a factory": f"# @package _global_\nhydra: {{job_logging: {FACTORY}}}\n",
    "environment": "# @package _global_\nhydra: {job: {env_set: {LD_PRELOAD: ./x.so}, env_copy: [HOME]}}\n",
    "search path": "# @package _global_\nhydra: {searchpath: ['pkg://evil']}\n",
    "launcher's key": "# @package _global_\nhydra: {launcher: {setup: [touch canary]}}\n",
    "target at the top": "# @package _global_\n_target_: os.system\n",
    "target in an option": f"# @package _global_\nmodel: {TOUCH}\n",
    "target in a list": f"# @package _global_\ntrainer: {{keep_steps: [{TOUCH}]}}\n",
    "target in a free value": "# @package _global_\ndefaults: [{override /data: text}]\ndata: {path: "
    f"[{TOUCH}]}}\n",
    "Python's tag": "# @package _global_\nseed: !!python/object/apply:os.system [touch canary]\n",
    "sweeps beside others": "# @package _global_\nhydra: {sweeper: {params: {seed: '0,1'}, _target_: x}}\n",
}


def evil(folder: Path, text: str, *, place: str = "experiment/evil.yaml") -> tuple[str, str]:
    path = folder / "evil" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("CANARY", str(folder / "canary")))
    return "--config-dir", str(folder / "evil")


DOORS: dict[str, tuple[str, ...]] = {
    "train": SMALL,
    "bench": ("model=nano", "--arm", "attention=mha", "--arm", "attention=flash"),
    "profile": ("model=nano", "tracker=none"),
    "data": ("prepare", *SMALL),
}


@pytest.mark.parametrize("name", YAMLS)
def test_a_strangers_yaml_runs_nothing(name: str, ask: Any, tmp_path: Path) -> None:
    flags = evil(tmp_path, YAMLS[name])
    refused(ask("train", *flags, *SMALL, "experiment=evil"))
    assert [path.name for path in tmp_path.iterdir()] == ["evil"]


def test_nor_at_any_door(ask: Any, tmp_path: Path) -> None:
    """It is refused where it is asked for. A folder that is only named is not read but for its options."""
    flags = evil(tmp_path, YAMLS["callback"])
    folder = written(
        tmp_path / "study", study(arms={**STUDY["arms"], "mqa": ["attention=mqa", "experiment=evil"]})
    )
    for door, words in DOORS.items():
        refused(ask(door, *flags, *words, "experiment=evil"))
    refused(ask("train", *flags, *SMALL, "--multirun", "seed=0,1", "experiment=evil"))
    assert ask("train", *flags, *SMALL, "--multirun", "seed=0,1", "experiment=evil,small_bytes")[0] == 2
    refused(ask("study", *flags, str(folder), "--plan"))
    assert ask("compare", *flags, "outputs")[0] == ask("generate", *flags, "run=nothing")[0] == 2
    assert {path.name for path in tmp_path.iterdir()} <= {"evil", "study", "cache"}


@pytest.mark.parametrize(
    "defaults",
    ["3", "{a: 1}", "[1]", "[[]]", "[{a: 1}]", "[{1: a}]", "[{a: b, c: d}]", "[{model: [1]}]", "[null]"],
)
def test_defaults_that_are_none(defaults: str, ask: Any, tmp_path: Path) -> None:
    flags = evil(tmp_path, f"# @package _global_\ndefaults: {defaults}\n")
    refused(ask("train", *flags, *SMALL, "experiment=evil"), "default")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("hydra/callbacks/evil.yaml", f"x: {TOUCH}"),
        ("hydra/config.yaml", f"callbacks: {{x: {TOUCH}}}"),
        ("hydra/job_logging/none.yaml", LOGGING),
        ("hydra/env/default.yaml", f"# @package hydra.callbacks\nx: {TOUCH}"),
        ("hydra/launcher/evil.yaml", TOUCH),
        ("hydra/launcher/evil.yaml", f"# @package hydra.callbacks\nx: {TOUCH}"),
        ("hydra/launcher/evil.yaml", f"kind: pool\njobs: {TOUCH}"),
        ("schema/run.yaml", "seed: 3"),
        ("train.yaml", f"hydra: {{callbacks: {{x: {TOUCH}}}}}"),
    ],
)
def test_nor_does_one_in_hydras_own_places(place: str, text: str, ask: Any, tmp_path: Path) -> None:
    flags = evil(tmp_path, text, place=place)
    chosen = [f"hydra/launcher={Path(place).stem}"] if "launcher" in place else []
    if not chosen:
        assert ask("train", *flags, *SMALL)[0] in (2, "started")  # a file that is not reached does not matter
    asked = ask("train", *flags, *SMALL, "--multirun", "seed=0", *chosen)
    assert asked[0] == 2 if chosen else asked[0] in (2, "started"), asked


# --- what takes long ----------------------------------------------------------------------------------------

BOMBS = {
    "deep": ("[" * 900, "must not be so deep"),
    "deeper": ("[" * 20_000, ".yaml"),  # PyYAML 6.0.4 refuses it itself, in words of its own
    "deep blocks": ("- " * 100_000, "must not be so deep"),
    "deep keys": ("? " * 100_000, "must not be so deep"),
    "twice": ("a: 1\na: 2\n", "a must be given once"),
    "no text": ("a: \x00\n", "not allowed"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_bombs_are_refused_at_once(name: str, ask: Any, tmp_path: Path) -> None:
    text, says = BOMBS[name]
    flags = evil(tmp_path, text)
    (tmp_path / "study").mkdir()
    for path in (tmp_path / "study" / "study.yaml", tmp_path / "config.yaml"):
        path.write_text(text)
    for asked in (ask("train", *flags, "experiment=evil"), ask("study", str(tmp_path / "study"), "--plan")):
        refused(asked, says)
        assert asked[2] < 20
    began = time.process_time()
    with pytest.raises(ValueError, match=r"must be a run's config\.yaml"):
        load(tmp_path / "config.yaml")
    assert time.process_time() - began < 20  # what doubles 40 times would take years, a bomb as well


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "[-" + "9" * 400 + "]", "NaN", "[1,"]
)
def test_json_bombs_are_values_errors(text: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse_json(text)
    assert "\n" not in str(refusal.value)


def test_what_is_within_the_limits_is_read() -> None:
    assert parse_json('{"a": [1, -2.5e-3, null, "x", [[]]]}') == {"a": [1, -2.5e-3, None, "x", [[]]]}
    assert parse_yaml("a: &a {b: 1}\nc: {<<: *a, d: [*a, *a]}\ne: " + "f0" * 32) == {
        "a": {"b": 1},
        "c": {"b": 1, "d": [{"b": 1}, {"b": 1}]},
        "e": "f0" * 32,
    }


def test_only_regular_files_are_read(ask: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero", "/dev/null"):
        path = tmp_path / name
        with pytest.raises(ValueError, match="must be a regular file"):
            read_text(path)
        (tmp_path / "s").mkdir(exist_ok=True)
        (tmp_path / "s" / "study.yaml").unlink(missing_ok=True)
        (tmp_path / "s" / "study.yaml").symlink_to(path)
        refused(ask("study", "s", "--plan"), "regular file")
        (tmp_path / "mine" / "attention").mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / "attention" / "x.py").unlink(missing_ok=True)
        (tmp_path / "mine" / "attention" / "x.py").symlink_to(path)
        refused(ask("train", "--config-dir", "mine"), "regular file")
        (tmp_path / "x.yaml").unlink(missing_ok=True)
        (tmp_path / "x.yaml").symlink_to(path)
        with pytest.raises(ValueError, match="regular file"):
            load(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    "word",
    [
        "data=text data.path=pipe",
        "data=shards data.train=pipe data.val=pipe",
        "data=text data.path=/dev/zero",
    ],
)
def test_nor_are_others_as_data(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nocap.data.prepare import prepare

    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    run = compose(["model=nano", *word.split()])
    with pytest.raises(ValueError, match=r"regular file|in both"):
        prepare(run.data, run.tokenizer, cache_dir=tmp_path / "cache")


# --- words --------------------------------------------------------------------------------------------------

NO_KEYS_OF_HYDRA = [
    (f"+hydra.callbacks.x={TOUCH}",),
    (f"++hydra={{callbacks: {{x: {TOUCH}}}}}",),
    (f"hydra.job_logging={LOGGING}",),
    ("hydra/job_logging=default",),
    ("hydra.job.env_set={LD_PRELOAD: x}",),
    ("hydra.job.chdir=true",),
    ("hydra.run.dir=canary",),
    ("hydra.output_subdir=canary",),
    ("hydra.searchpath=[pkg://evil]",),
    ("--cfg", "job", "hydra.searchpath=[pkg://evil]"),
    ("--info", "all", "hydra.searchpath=[pkg://evil]"),
    ("+experiment@hydra.callbacks=small_bytes",),
    ("+hydra/callbacks=evil",),
    ("hydra/launcher=pool",),
    ("--config-path", "pkg://evil"),
    ("--config-name", "evil"),
    ("--config-di", "."),
    ("--multirun", "seed=0", "++hydra.launcher._target_=os.system"),
    ("--multirun", "seed=0", "hydra/launcher=pool", f"++hydra.launcher.jobs={TOUCH}"),
    ("--multirun", "seed=0", f"++hydra.launcher.x={TOUCH}"),
    ("--multirun", "seed=0", "hydra.sweeper._target_=os.system"),
    ("--multirun", "seed=0", f"++hydra.sweeper.x={TOUCH}"),
    ("--multirun", "seed=0", f"+hydra.callbacks.x={TOUCH}"),
    ("--run", "seed=0"),
    ("--experimental-rerun", "run.pickle"),  # which Hydra would load
]
SWEPT = [  # grids that are refused before they are expanded
    ("seed=range(0,1000000000)", "seed must make at most 10,000 cells"),
    ("seed=shuffle(range(0,1000000000))", "seed must make at most 10,000 cells"),
    ("optimizer.lr=range(0,1,1e-300)", "at most 10,000 cells"),
    ("optimizer.lr=range(0,1e400)", "be a range of numbers"),
    ("seed=range(0,200) trainer.steps=range(1,200)", "at most 10,000 cells"),
    ("seed=range(0,5,0)", "with a step"),
    ("seed=glob(*)", "seed must be a group"),
    ("seed=interval(0,1)", "nocap draws none from an interval but in a search"),
    ("+hydra.sweeper.params.seed=range(0,1000000000)", "hydra.sweeper.params.seed must be left alone"),
]
ODD = [
    ("model=[nano,tiny]", "model must be one option"),
    ("model=[1]", "model must be given options' names"),
    ("ideas=[[a]]", "ideas must be given options' names"),
    ("model=" + "x" * 400, "model/xxx"),
    ("~model.x" + "x" * 400, "model.xxx"),
    ("output_dir='a\nb'", "output_dir must hold no control characters"),
    ("trainer.devices=1000000", "trainer.devices must be at most 4096"),
    ("trainer.threads=100000000", "trainer.threads must be at most 4096"),
    ("trainer.steps=1000000000000000000000", "trainer.steps must be at most 1000000000"),
    ("trainer.steps=1e21", "trainer.steps"),
    ("optimizer.lr=1e30", "optimizer.lr must be at most 1000"),
    ("mlp.expansion=1e30", "mlp.expansion must be at most 1000"),
    ("data.train_tokens=100000000000000", "data.train_tokens must be at most 1000000000"),
    ("optimizer.lr=" + "9" * 400, "optimizer.lr"),
    ("tracker.tags=" + "[" * 100, "tracker.tags=[[["),
]
REFUSED = [
    *(("train", words, "") for words in NO_KEYS_OF_HYDRA),
    *(("train", ("--multirun", *word.split(" ")), says) for word, says in SWEPT),
    *(("train", (*(["tracker=wandb"] if "tags" in word else []), word), says) for word, says in ODD),
    (
        "train",
        ("--multirun", "seed=0", "hydra.launcher._target_=os.system"),
        "hydra.launcher must be chosen before its keys",
    ),
    (
        "train",
        ("--multirun", "seed=0", "hydra/launcher=pool", "++hydra.launcher._target_=os.system"),
        "Hydra's are not run",
    ),
    ("generate", ("run=x", "samples=100000000"), "samples must be at most 4096"),
    ("generate", ("run=x", "max_tokens=" + "9" * 30), "max_tokens must be at most"),
]


@pytest.mark.parametrize(("door", "words", "says"), REFUSED, ids=[" ".join(row[1])[:80] for row in REFUSED])
def test_words_that_are_refused_at_once(
    door: str, words: tuple[str, ...], says: str, ask: Any, tmp_path: Path
) -> None:
    asked = ask(
        door,
        *(SMALL if door == "train" else ()),
        *(word.replace("CANARY", str(tmp_path / "canary")) for word in words),
    )
    refused(asked, says)
    assert asked[2] < 20
    assert not list(tmp_path.iterdir())


def test_an_options_glob_is_a_sweep(ask: Any) -> None:
    assert ask("train", "--multirun", *SMALL, "norm=glob(rms*)")[0] == "started"


# --- where things lie ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"overrides": [*STUDY["overrides"], "cache_dir=elsewhere"]},
            "cache_dir must be left out: the command says where things lie",
        ),
        ({"overrides": [*STUDY["overrides"], "++output_dir=elsewhere"]}, "output_dir must be left out"),
        (
            {"arms": {**STUDY["arms"], "mqa": ["attention=mqa", "+cache_dir='elsewhere'"]}},
            "cache_dir must be left out",
        ),
        ({"arms": {**STUDY["arms"], "mqa": ["attention=mqa", "~cache_dir"]}}, "cache_dir must be left out"),
        ({"scales": at(train=["output_dir=elsewhere"])}, "output_dir must be left out"),
        ({"scales": at(own={"mqa": ["trainer.init_from=elsewhere"]})}, "trainer.init_from must be left out"),
        (
            {"overrides": [*STUDY["overrides"], "tracker=wandb", "tracker.entity=elsewhere"]},
            "tracker.entity must be left out",
        ),
        ({"overrides": [*STUDY["overrides"], "hydra.run.dir=elsewhere"]}, "hydra.run.dir must be left alone"),
        ({"scales": {"../../elsewhere": STUDY["scales"]["cpu"]}}, "arms and scales must have names"),
        ({"arms": {**STUDY["arms"], "../elsewhere": ["attention=mqa"]}}, "arms and scales must have names"),
        ({"arms": {**STUDY["arms"], "\x1b[31m": ["attention=mqa"]}}, "arms and scales must have names"),
        ({"overrides": [["attention=mqa"]]}, "overrides"),
    ],
)
def test_a_study_writes_where_the_command_says(
    changed: dict[str, Any], says: str, ask: Any, tmp_path: Path
) -> None:
    written(tmp_path / "made", study(**changed))
    for words in (("--plan",), (), ("--judge",)):
        refused(ask("study", "made", *words), says)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_without_a_home_the_cache_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("NOCAP_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # nobody of this number
    with pytest.raises(
        ValueError, match=r"^the environment variable NOCAP_CACHE, or cache_dir, must name a folder"
    ):
        cache_root()
    if os.getuid() == 12345:
        assert cache_root(str(tmp_path / "new")) == tmp_path / "new"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.slow
def test_a_user_without_a_home_is_told_so(tmp_path: Path) -> None:
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HOME", "NOCAP_CACHE", "XDG_CACHE_HOME")
    }
    tmp_path.chmod(0o777)
    command = [sys.executable, "-m", "nocap.data", "prepare", *SMALL]
    env |= {"PYTHONPATH": str(REPO)}
    try:
        done = subprocess.run(
            command, user=65534, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    except PermissionError:
        pytest.skip("another user cannot run this Python")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "NOCAP_CACHE" in done.stderr
