"""Options from outside: what brings them in, what is refused, and that each process has the same
bytes."""

import importlib
import json
import os
import re
import shutil
import sqlite3
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from nocap import outside
from nocap.config.compose import compose
from nocap.config.plain import from_plain, to_plain
from nocap.config.run import Run
from nocap.store.source_hashes import source_hashes
from tests.attempts import state_of
from tests.conftest import FAULTS, REPO, SMALL, Door, Undisturbed, rows_of, the_run

STRANGERS = REPO / "tests" / "strangers"
WORDS = {  # how each is asked for
    "head_temperature": ("attention=head_temperature",),
    "scaled_relu2": ("mlp=scaled_relu2",),
    "sophia": ("optimizer=sophia", "optimizer.every=5"),
    "power_law": ("schedule=power_law",),
    "ngram_loss": ("ideas=[ngram_loss]",),
    "first_values": ("ideas=[first_values]",),
    "parallel": ("model=parallel",),
    "jsonl": ("data=jsonl", "data.path=numbers.jsonl"),
    "sqlite_rows": ("tracker=sqlite_rows",),
}
NAMES = tuple(WORDS)


def flags(*names: str) -> list[str]:
    words: list[str] = []
    for name in names:
        words.extend(("--config-dir", str(STRANGERS / name)))
    return words


def without(groups: set[str], words: tuple[str, ...] = SMALL) -> list[str]:
    """A small run's words, but for those of these groups."""
    return [word for word in words if word.partition("=")[0].partition(".")[0] not in groups]


def asked(*names: str) -> list[str]:
    """The command line of a small run with these, all ideas together."""
    ideas = [name for name in names if WORDS[name][0].startswith("ideas=")]
    words = []
    for name in names:
        if name not in ideas:
            words.extend(WORDS[name])
    base = without({word.partition("=")[0] for word in words})
    if ideas:
        chosen = [f"ideas=[{','.join(ideas)}]"]
    else:
        chosen = []
    return [*flags(*names), *base, *words, *(chosen)]


def composed(folder: Path, *words: str) -> Run:
    """A small run with these words, where this folder's options are in use."""
    outside.use([folder])
    return compose([*SMALL, *words])


# --- a stranger's idea, one file and one yaml -----------------------------------------------------


def test_an_idea_is_one_short_file_and_one_yaml():
    for name in NAMES:
        paths = (STRANGERS / name).glob("*/*.*")
        files = [path for path in paths if path.parent.name != "__pycache__"]
        suffixes = sorted(path.suffix for path in files)
        assert suffixes == [".py", ".yaml"]
        for path in files:
            lines = path.read_text().splitlines()
            assert len(lines) <= 80


@pytest.mark.slow
@pytest.mark.usefixtures("numbers")
def test_all_train_at_once_resume_and_are_in_the_record(door: Door, tmp_path: Path):
    words = asked(*NAMES)
    assert door(*words, "output_dir=whole").code == 0
    fault = {"PYTHONPATH": FAULTS, "NOCAP_FAULT": "kill@7", "NOCAP_FAULT_DIR": str(tmp_path)}
    killed = door(*words, env=fault)
    assert killed.code == 0, killed.err
    assert "starting again from the last checkpoint" in killed.err, killed.err
    run_dir = the_run(tmp_path / "whole")
    again = the_run(tmp_path / "outputs")
    assert state_of(again) == state_of(run_dir)
    rows = rows_of(run_dir)
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert rows[-1]["val/loss"] < rows[0]["val/loss"]
    assert rows[0]["train/loss_ngram_loss"] > 0
    for name in NAMES:
        paths = (STRANGERS / name).iterdir()
        (group,) = [path.name for path in paths]
        for file in (STRANGERS / name / group).glob("*.*"):
            content = (run_dir / "options" / group / file.name).read_bytes()
            assert content == file.read_bytes()
        options = [(row["group"], row["name"]) for row in manifest["outside"]]
        option = (group, name)
        assert option in options
        in_source = f"nocap.outside.{group}.{name}" in manifest["parts"]["source"]
        assert in_source == (group not in ("data", "tracker"))
    losses = [(row["step"], row["val/loss"]) for row in rows if "val/loss" in row]
    for folder in (run_dir, again):
        select = "SELECT step, value FROM rows WHERE name = 'val/loss' ORDER BY step"
        assert sqlite3.connect(folder / "rows.sqlite").execute(select).fetchall() == losses
    text = door(f"run={run_dir}", "max_tokens=4", "--allow-code", module="nocap.generate")
    assert text.code == 0, text.err
    assert "no cache: model.kind=parallel" in text.err, text.err


ARMS = {
    "plain": ["model=nano"],
    "block": WORDS["parallel"],
    "layer": ["model=nano", *WORDS["head_temperature"], *WORDS["scaled_relu2"]],
    "ideas": ["model=nano", "ideas=[first_values,ngram_loss]"],
    "sophia": ["model=nano", *WORDS["sophia"]],
}
CLAIM = {
    "statement": "it ends lower",
    "source": "a test",
    "metric": "val_loss",
    "scale": "difference",
}
CLAIM |= {"expected": [-10, 10], "mechanism": {"rule": "given", "formula": "none", "bound": None}}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("numbers")
def test_a_study_has_them(here: Door, tmp_path: Path):
    used = []
    for name in ("power_law", "jsonl", "sqlite_rows"):
        used.extend(WORDS[name])
    scale = {"train": ["trainer.val_every=5"], "bench": ["trainer.val_every=5"], "rounds": 2}
    study = {
        "question": "Is one of them lower?",
        "baseline": "plain",
        "arms": ARMS,
        "seeds": [0, 1, 2],
    }
    overrides = [*without({"data", "tracker", "schedule", "model"}), *used]
    study |= {"overrides": overrides, "scales": {"cpu": scale}}
    claims = [{**CLAIM, "id": f"T.{arm}", "arm": arm} for arm in ARMS if arm != "plain"]
    study |= {"claims": claims}
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    refused = here(".", "scale=cpu", module="nocap.study")
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1
    done = here(".", "scale=cpu", *flags(*NAMES), module="nocap.study")
    confirmed = [f"T.{arm} confirmed" in done.out for arm in ARMS if arm != "plain"]
    assert done.code == 0, done.out + done.err
    assert all(confirmed), done.out + done.err


# --- text from it ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_generate_asks_for_the_code(here: Door, tmp_path: Path):
    assert here(*asked("head_temperature")).code == 0
    run = f"run={the_run(tmp_path / 'outputs')}"
    door = "nocap.generate"
    refused = here(run, module=door)
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1
    assert re.search("attention.kind must be one of.*--allow-code", refused.err)
    given = here(run, "max_tokens=8", *flags("head_temperature"), module=door)
    copied = here(run, "max_tokens=8", "--allow-code", module=door)
    assert given.code == 0
    assert copied.code == 0
    assert given.out == copied.out
    assert "no cache: attention.kind=head_temperature defines no cache_slots" in given.err
    assert (
        here(
            *asked("sophia", "scaled_relu2", "ngram_loss", "first_values"), "output_dir=per_token"
        ).code
        == 0
    )
    cached = here(
        f"run={the_run(tmp_path / 'per_token')}", "max_tokens=4", "--allow-code", module=door
    )
    assert cached.code == 0
    assert "no cache" not in cached.err


def test_a_record_brings_no_code_along(here: Door, tmp_path: Path, undisturbed: Undisturbed):
    """Whatever a stranger put into it."""
    run_dir = shutil.copytree(undisturbed.run_dir, tmp_path / "runs" / undisturbed.run_dir.name)
    mark = tmp_path / "mark"
    code = run_dir / "options" / "attention" / "evil.py"
    code.parent.mkdir(parents=True)
    code.write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n")
    config = run_dir / "config.yaml"
    text = config.read_text().replace("kind: global", "kind: evil")
    config.write_text(text)
    assert here(f"run={run_dir}", module="nocap.generate").code == 2
    refused = here(str(run_dir), module="nocap.compare")
    assert refused.code == 2
    assert not mark.exists()
    assert "config.yaml does not match its digest in summary.json" in refused.err


def test_experiments_of_a_folder_may_lie_deeper_and_its_name_be_odd(tmp_path: Path):
    folder = tmp_path / "it's a \\ folder, [with] ${odd} {letters}\\" / "experiment" / "mine"
    folder.mkdir(parents=True)
    (folder / "short.yaml").write_text("# @package _global_\ntrainer: {keep_checkpoints: 3}\n")
    run = composed(folder.parents[1], "experiment=mine/short")
    assert run.trainer.keep_checkpoints == 3


# --- what is refused ------------------------------------------------------------------------------

GOOD = (STRANGERS / "head_temperature" / "attention" / "head_temperature.py").read_text()
GOOD = GOOD.replace("    start: float\n", "    start: float = 1.0\n")
KIND = GOOD.replace('"head_temperature"', '"global"')


BAD_SOURCES = [
    ("broken", "def (:\n", "broken.py cannot be imported: SyntaxError"),
    ("raising", "raise ValueError('no')\n", "raising.py cannot be imported: ValueError: no"),
    ("empty", "x = 1\n", "empty.py must define an option, got no dataclass that extends Attention"),
    (
        "taken",
        KIND,
        "must set kind to a name that no other option has, as in kind: str = 'taken', got 'global'",
    ),
    (
        "undecorated",
        GOOD.replace("@dataclass(kw_only=True)\n", ""),
        "HeadTemperature must have the decorator @dataclass",
    ),
    ("flash", GOOD, "flash.yaml must have another name"),
    ("not-a-name", GOOD, "must have a name of letters, digits and _"),
]


@pytest.mark.parametrize(("name", "source", "says"), BAD_SOURCES)
def test_bad_files_are_one_line(tmp_path: Path, name: str, source: str, says: str):
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / f"{name}.py").write_text(source)
    (tmp_path / "attention" / f"{name}.yaml").write_text(f"kind: {name}\nn_kv_heads: 4\n")
    with pytest.raises(ValueError, match=rf"\A.*{re.escape(says)}.*\Z"):
        composed(tmp_path, f"attention={name}")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (
            "attention.strat=3",
            "attention.strat is no key of head_temperature (did you mean start?)",
        ),
        ("attention.start=abc", "attention.start"),
        ("attention.start=-1", "attention.start must be above 0, got -1.0"),
        ("attention.start=inf", "attention.start must be a finite number"),
        ("attention.kind=global", "attention.kind must not be set directly"),
    ],
)
def test_wrong_keys_are_refused_like_built_in_ones(word: str, says: str):
    with pytest.raises(ValueError, match=rf"\A.*{re.escape(says)}.*\Z"):
        composed(STRANGERS / "head_temperature", "attention=head_temperature", word)


def test_a_file_that_changed_since_the_command_began_is_refused(tmp_path: Path):
    folder = shutil.copytree(STRANGERS / "head_temperature", tmp_path / "mine")
    run = composed(folder, "attention=head_temperature")
    with (folder / "attention" / "head_temperature.py").open("a") as source:
        source.write("\n")
    in_another_process()
    with pytest.raises(
        ValueError, match=r"head_temperature\.py must not change while a command uses it"
    ):
        from_plain(to_plain(run), "it")


def in_another_process() -> None:
    """Forget the modules, as a worker does, which has the environment of this process."""
    for file in outside.files():
        sys.modules.pop(file.module, None)


# --- what is not chosen ---------------------------------------------------------------------------

SPOILED = {  # path below the folder → its text
    "a syntax error": ("attention/syntax.py", "def (:\n"),
    "one that raises": ("attention/raises.py", "raise RuntimeError('no')\n"),
    "one that exits": ("mlp/exits.py", "raise SystemExit(3)\n"),
    "no option": ("attention/nothing.py", "x = 1\n"),
    "a kind that is taken": ("attention/taken.py", KIND),
    "a name that is taken": ("mlp/swiglu.yaml", "kind: gated\n"),
    "no name of Python's": ("attention/not-a-name.py", GOOD),
    "a broken yaml": ("attention/broken.yaml", ": : [\n"),
    "a yaml with Hydra's part": ("attention/hydras.yaml", "kind: global\nhydra: {run: {dir: x}}\n"),
    "an experiment": ("experiment/broken.yaml", "[\n"),
}


def test_what_is_not_chosen_is_neither_read_nor_refused(tmp_path: Path):
    folder = shutil.copytree(STRANGERS / "head_temperature", tmp_path / "mine")
    for path, text in SPOILED.values():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    (folder / "attention" / ".#lock.yaml").symlink_to("nowhere")  # as an editor leaves it
    (folder / "attention" / ".ipynb_checkpoints").mkdir()
    (folder / "attention" / ".ipynb_checkpoints" / "old.yaml").write_text("kind: global\n")
    assert composed(folder, "attention=head_temperature").attention.kind == "head_temperature"
    assert not [name for name in outside.yamls("attention") if name.startswith(".")]
    names = [file.name for file in outside.files()]
    assert names == ["head_temperature"]
    assert compose(list(SMALL)).attention.kind == "global"


def two_options(folder: Path) -> dict[str, Run]:
    """Compose the runs of two options of a folder in one command."""
    (folder / "attention").mkdir(parents=True)
    for name in ("first", "second"):
        source = GOOD.replace('"head_temperature"', f'"{name}"')
        (folder / "attention" / f"{name}.py").write_text(source)
        (folder / "attention" / f"{name}.yaml").write_text(f"kind: {name}\nn_kv_heads: 4\n")
    outside.use([folder])
    return {name: compose([*SMALL, f"attention={name}"]) for name in ("first", "second")}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "text", ["def (:\n", pytest.param("# saved\n" + GOOD, marks=SLOW), pytest.param("", marks=SLOW)]
)
def test_a_process_reads_no_file_of_another_cell(tmp_path: Path, text: str):
    runs = two_options(tmp_path / "mine")
    (tmp_path / "mine" / "attention" / "second.py").write_text(text)
    in_another_process()
    attention = from_plain(to_plain(runs["first"]), "it").attention
    assert attention.kind == "first"
    assert "nocap.outside.attention.second" not in sys.modules
    with pytest.raises(ValueError, match=r"second\.py must not change while a command uses it"):
        from_plain(to_plain(runs["second"]), "it")


def test_a_kind_is_found_in_a_file_of_another_name():
    folder = REPO / "experiments" / "atlas" / "ideas"
    ideas = composed(folder, "ideas=[tail_average]").ideas
    assert set(ideas) == {"tail_average"}
    names = [file.name for file in outside.files()]
    assert names == ["averaged_weights"]
    assert outside.find("ideas", "nowhere") is None


TRACKER = """
from dataclasses import dataclass
from nocap.options.tracker import Tracker

@dataclass(kw_only=True, slots=True)
class Mine(Tracker):
    kind: str = "mine"
"""


def test_a_tracker_beside_another_is_found_by_its_kind(tmp_path: Path):
    (tmp_path / "tracker").mkdir()
    (tmp_path / "tracker" / "some.py").write_text(TRACKER)
    tracker = composed(tmp_path, "tracker.also=[mine]").tracker
    assert tracker.also == ["mine"]
    with pytest.raises(
        ValueError, match=r"tracker\.also must list any of .*, each once .*, got nowhere"
    ):
        composed(tmp_path, "tracker.also=[nowhere]")


def test_a_kind_that_is_nowhere_names_what_could_not_be_looked_through(tmp_path: Path):
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "mine.yaml").write_text("kind: nowhere\n")
    with pytest.raises(
        ValueError, match=r"attention\.kind must be one of .*, got 'nowhere'"
    ) as known:
        composed(tmp_path, "attention=mine")
    (tmp_path / "attention" / "half.py").write_text("def (:\n")
    with pytest.raises(
        ValueError, match=r"; nocap cannot parse these option files: .*half\.py, got 'nowhere'\Z"
    ):
        composed(tmp_path, "attention=mine")
    assert "parsed" not in str(known.value)


@pytest.mark.parametrize("names", [("first.py", "second.py"), ("second.py", "third.py")])
def test_one_kind_in_two_files_is_refused_where_it_is_chosen(
    tmp_path: Path, names: tuple[str, str]
):
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "mine.yaml").write_text("kind: double\nn_kv_heads: 4\n")
    for name in names:
        text = GOOD.replace('"head_temperature"', '"double"')
        (tmp_path / "attention" / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{names[1]}: HeadTemperature must set kind to a name"):
        composed(tmp_path, "attention=mine")


def test_a_name_in_two_folders_is_refused_where_it_is_chosen(tmp_path: Path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        shutil.copytree(STRANGERS / "head_temperature", folder)
        shutil.copytree(STRANGERS / "scaled_relu2", folder, dirs_exist_ok=True)
    (tmp_path / "two" / "mlp" / "scaled_relu2.yaml").unlink()
    (tmp_path / "two" / "mlp" / "scaled_relu2.py").unlink()
    outside.use(folders)
    run = compose([*SMALL, "mlp=scaled_relu2"])
    assert run.mlp.kind == "scaled_relu2"
    with pytest.raises(
        ValueError, match=r"two.*head_temperature\.yaml must have another name, because .*one"
    ):
        compose([*SMALL, "attention=head_temperature"])


SAVES = """
        import pathlib
        beside = pathlib.Path(__file__).parent
        (beside / "third.py").write_text("def (:")
        (beside / "second.py").write_text((beside / "second.py").read_text() + "# saved\\n")
"""


@pytest.mark.slow
def test_saving_files_while_a_grid_runs_stops_only_their_own_cells(door: Door, tmp_path: Path):
    """The first cell stands for a person who saves a file of no cell, and one of the second
    cell."""
    two_options(tmp_path / "mine")
    path = tmp_path / "mine" / "attention" / "first.py"
    path.write_text(
        path.read_text().replace(
            "def mixer(self, run, layer):\n", f"def mixer(self, run, layer):{SAVES}"
        )
    )
    words = (*SMALL, "trainer.steps=2", "--multirun", "attention=first,second", "seed=0,1")
    content = {"use": 1, "folders": [], "files": []}
    text = json.dumps(content)
    done = door("--config-dir", "mine", *words, env={"NOCAP_OUTSIDE": text})
    assert done.code == 1
    matches = re.findall(r"done +attention=first", done.out)
    assert len(matches) == 2
    changed = r"failed +attention=second .*second\.py must not change while a command uses it"
    matches = re.findall(changed, done.out)
    assert len(matches) == 2


# --- identity -------------------------------------------------------------------------------------


def test_its_source_is_in_the_identity_where_it_is_used(tmp_path: Path):
    before = source_hashes(compose(list(SMALL)))
    path = tmp_path / "mine" / "attention" / "head_temperature.py"
    hashes = []
    shutil.copytree(STRANGERS / "head_temperature", tmp_path / "mine")
    for text in (GOOD, GOOD.replace("q_BHTD * self", "q_BHTD / self"), "# a comment\n" + GOOD):
        path.write_text(text)
        os.environ.pop(outside.VARIABLE, None)
        hashes.append(source_hashes(composed(tmp_path / "mine", "attention=head_temperature")))
    changed = [module for module in hashes[0] if hashes[0][module] != hashes[1][module]]

    assert hashes[0] == hashes[2]
    assert changed == ["nocap.outside.attention.head_temperature"]
    assert source_hashes(compose(list(SMALL))) == before


def test_what_its_import_statements_name_counts_wherever_they_stand(tmp_path: Path):
    folder = tmp_path / "mine" / "attention"
    shutil.copytree(STRANGERS / "head_temperature", tmp_path / "mine")
    for name in ("_first", "_second", "_third"):
        (folder / f"{name}.py").write_text("scale = 1.0\n")
    late = "\n\nif TYPE_CHECKING:\n    import _first\n\n\ndef late():\n    import _second\n"
    path = folder / "head_temperature.py"
    path.write_text(f"from typing import TYPE_CHECKING\n{GOOD}{late}")
    hashes = source_hashes(composed(tmp_path / "mine", "attention=head_temperature"))

    assert "_first" in hashes
    assert "_second" in hashes
    assert "_third" not in hashes


# --- what it imports, and what its forward does: tried before the first step ----------------------

HEAD = """
import importlib, os, pathlib, sys
from dataclasses import dataclass
import torch
import torch.nn.functional as F
from torch import nn
from nocap.options.attention import Attention
from nocap.options.attention.softmax import Softmax
from nocap.options.mlp import Mlp
"""
BESIDE = "sys.path.insert(0, os.path.dirname(__file__))\n"
ATTENTION = """
@dataclass(kw_only=True)
class Mine(Attention):
    kind: str = "mine"
    n_kv_heads: int = 4

    def mixer(self, run, layer):
        def mix(q, k, v):
            T = q.shape[2]
            scores = q @ k.transpose(2, 3) * {factor} / q.shape[3] ** 0.5
            future = torch.ones(T, T, dtype=torch.bool).triu({first})
            return scores.masked_fill(future, float("-inf")).softmax(-1).type_as(v) @ v
        return mix
"""
GATE = """
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.zero * x.mean(1, keepdim=True)

@dataclass(kw_only=True)
class Mine(Mlp):
    kind: str = "mine"

    def build(self, d_model):
        return nn.Sequential(Gate(), nn.Linear(d_model, d_model, bias=False))
"""
DROPOUT = """
@dataclass(kw_only=True)
class Mine(Mlp):
    {line}
    kind: str = "mine"

    def build(self, d_model):
        return nn.Sequential(nn.Linear(d_model, d_model, bias=False), nn.Dropout(0.1))
"""


OWN_SCALE = ATTENTION.format(factor="_helpermod.scale", first=1)
HIDDEN = ATTENTION.format(factor="hidden.scale", first=1)
LATE = BESIDE.strip() + '; hidden = importlib.import_module("_helper" + "mod")'
EDITS = (
    'pathlib.Path(_helpermod.__file__).write_text("scale = 2.0")'  # stands for a person who does
)


def inside(source: str, line: str) -> str:
    """With a line at the begin of the forward."""
    return source.replace("T = q.", f"{line}\n            T = q.")


@pytest.fixture(autouse=True)
def no_main_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests' own import of multiprocessing adds to this process, and a process of nocap
    has not."""
    importlib.import_module("multiprocessing")
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)


def option_words(
    folder: Path, source: str, *, group: str = "attention", keys: str = ""
) -> list[str]:
    """The words of a short run with an option of this source."""
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / "mine.py").write_text(HEAD + source)
    (folder / group / "mine.yaml").write_text(f"kind: mine\n{keys}")
    (folder / group / "_helpermod.py").write_text("scale = 1.0\n")
    out = f"output_dir={folder.parent / folder.name}-outputs"
    return ["--config-dir", str(folder), *SMALL, "trainer.steps=3", out, f"{group}=mine"]


def manifest(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "manifest.json").read_text())


# --- what makes another run -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        f"{LATE}\n{HIDDEN}",  # named by no import statement
        inside(HIDDEN, LATE),
        f"{BESIDE}import _helpermod\n{inside(OWN_SCALE, EDITS)}",  # changed after the command began
    ],
    ids=["above", "in the forward", "edited"],
)
def test_code_that_is_not_in_the_identity_is_refused(
    source: str, here: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = here(*option_words(tmp_path / "own", source))
    sys.modules.pop("_helpermod", None)  # a new process would import it anew
    assert done.code == 2, done.err
    assert len(done.err.splitlines()) == 1, done.err
    assert "_helpermod" in done.err, done.err


@pytest.mark.slow
def test_the_record_names_all_that_an_option_imports_and_an_edit_makes_another_run(
    door: Door, tmp_path: Path
):
    """Modules of one's own by content, also inside packages and functions; installed packages by
    version. One brings an option, as pip would leave it, that imports a module of the package's
    own."""
    site = "site-packages"
    theirs = "site-packages/their_ideas"
    paths = (STRANGERS / "power_law" / "schedule").glob("*.*")
    law = {path.suffix: path.read_text() for path in paths}
    files = {
        "path/ours/__init__.py": "from . import first\nfrom .inner.deep import factor\n",
        "path/ours/first.py": "def f():\n    from .second import g\n",
        "path/ours/second.py": "import statistics\nrule = 3\n",
        "path/ours/inner/deep.py": "from ..first import f\nfactor = 1.0\n",
        f"mine/fast{sysconfig.get_config_var('EXT_SUFFIX')}": "\x7fELF\0",
        **dict.fromkeys((f"{theirs}/__init__.py", f"{theirs}/options/__init__.py"), ""),
        f"{theirs}/starts.py": "SMALLEST = 0\n",
        f"{theirs}/options/schedule/power_law.py": f"from their_ideas.starts import "
        f"SMALLEST\n{law['.py']}",
        f"{theirs}/options/schedule/power_law.yaml": law[".yaml"],
        f"{theirs}-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: their-ideas\nVersion: "
        "1.0\n",
        f"{theirs}-1.0.dist-info/entry_points.txt": "[nocap.options]\ntheirs = "
        "their_ideas.options\n",
    }
    cases = (("pinned", "null"), ("copied", '{"url": "file:///copied", "dir_info": {}}'))
    for name, installed in cases:
        facts = f"{site}/{name}_package-1.5.dist-info"
        files[f"{site}/{name}.py"] = "import json\nfactor = 1.0\n"
        files[f"{facts}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}-package\nVersion: 1.5\n"
        files |= {f"{facts}/RECORD": f"{name}.py,,\n", f"{facts}/direct_url.json": installed}
    for path, text in files.items():
        parent = (tmp_path / path).parent
        parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    source = "import pinned, copied\nfrom ours import factor\n" + ATTENTION.format(
        factor="factor", first=1
    )
    asked = option_words(
        tmp_path / "mine", source + "\ndef never():\n    import fast, nothing_like_this\n"
    )
    folders = (REPO, tmp_path / "site-packages", tmp_path / "path")
    path = {"PYTHONPATH": ":".join(map(str, folders))}
    for factor in ("1.0", "30.0"):
        (tmp_path / "path" / "ours" / "inner" / "deep.py").write_text(
            f"from ..first import f\nfactor = {factor}\n"
        )
        done = door(*asked, "schedule=power_law", env=path)
        assert done.code == 0, done.err
    first, second = (tmp_path / "mine-outputs" / "runs").iterdir()
    losses = rows_of(first)[-1]["val/loss"]
    assert losses != rows_of(second)[-1]["val/loss"]
    modules = manifest(first)["parts"]["source"]
    assert modules.pop("pinned-package") == "1.5"
    own = {name for name in modules if not name.startswith("nocap.") or "outside" in name}
    options = {
        "nocap.outside.attention.mine",
        "nocap.outside.schedule.power_law",
        "their_ideas.starts",
    }
    expected = options | {
        "copied",
        "their_ideas",
        "ours",
        "ours.first",
        "ours.second",
        "ours.inner.deep",
        "fast",
    }
    assert own == expected
    with pytest.raises(ValueError, match="schedule/power_law"):  # without the package
        compose([*SMALL, "schedule=power_law"])


# --- what is tried before the first step ----------------------------------------------------------

FUTURE = ATTENTION.format(factor=1, first=2)
SAID = FUTURE.replace("    kind:", "    causal = False\n    kind:")


SUSPECT_FORWARDS = [
    ("attention", FUTURE, "attention.kind=mine.*causal = False", None),
    ("attention", SAID, "", "not causal"),
    ("mlp", GATE, "mlp.kind=mine", None),  # a gate that starts at zero hides nothing
    ("mlp", DROPOUT.format(line=""), "random = True", None),
    ("mlp", DROPOUT.format(line="random = True"), "", "random"),
]


@pytest.mark.parametrize(("group", "source", "says", "declared"), SUSPECT_FORWARDS)
def test_a_forward_that_sees_the_future_or_draws_is_refused_unless_its_class_says_so(
    group: str, source: str, says: str, declared: str | None, here: Door, tmp_path: Path
):
    done = here(*option_words(tmp_path / "own", source, group=group))
    assert re.search(says, done.err), done.err
    assert done.code == (0 if declared else 2), done.err
    assert done.err.count("\n") == (0 if declared else 1), done.err
    if declared:
        run_dir = the_run(tmp_path / "own-outputs")
        assert manifest(run_dir)["declared"] == {group: [declared]}


def test_the_probe_changes_no_loss(here: Door, tmp_path: Path):
    """An option from outside that is a built-in one by another name trains as that one, which is
    not tried."""
    source = '\n@dataclass(kw_only=True)\nclass Mine(Softmax):\n    kind: str = "mine"\n'
    asked = option_words(
        tmp_path / "own", source, keys="n_kv_heads: ${model.n_head}\nkernel: fused\n"
    )
    done = here(*SMALL, "trainer.steps=3"), here(*asked)
    codes = [each.code for each in done]
    assert codes == [0, 0], done[1].err
    own = rows_of(the_run(tmp_path / "own-outputs"))
    plain = rows_of(the_run(tmp_path / "outputs"))
    for name in ("train/loss", "val/loss"):
        expected = [row.get(name) for row in plain]
        assert [row.get(name) for row in own] == expected
