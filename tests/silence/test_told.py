"""What users were told that was not so: a test for each.

They go through commands only. A test that cannot make its set-up raises `BrokenError`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPO, SMALL, Door, Finished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TINY = (*SMALL, "trainer.steps=4", "trainer.val_every=2")
SOFTCAP = REPO / "tests" / "own_ideas" / "softcap" / "attention"


class BrokenError(Exception):
    """The test's own set-up does not work."""


def made(done: Finished, *, code: int = 0) -> Finished:
    """A command that the set-up needs, which ended as it must."""
    if done.code != code:
        raise BrokenError(f"exit code {done.code} for {code}:\n{done.out}\n{done.err}")
    return done


def refused(done: Finished, *words: str) -> bool:
    """In a line or two that have these words."""
    return (
        done.code == 2
        and len(done.err.splitlines()) <= 2
        and all(word in done.err for word in words)
    )


def edited(text: str, old: str, new: str) -> str:
    """A text in which this stood."""
    if old not in text:
        raise BrokenError(f"no {old!r} in {text}")
    return text.replace(old, new)


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- records that were changed --------------------------------------------------------------------


CHANGES = {  # a record's file → what it has, and what it gets
    "metrics.jsonl": (r'"val/loss": [\d.]+', '"val/loss": 1.2345'),
    "summary.json": (r'"val_loss": [\d.]+', '"val_loss": 1.2345'),
    "config.yaml": (r"activation: gelu\b", "activation: relu2"),
    "manifest.json": (r'"identity": "\w+"', '"identity": "000000000000"'),
}


def change(run: Path, name: str) -> None:
    text, times = re.subn(*CHANGES[name], (run / name).read_text())
    if not times:
        raise BrokenError(f"no {CHANGES[name][0]} in {run / name}")
    (run / name).write_text(text)


STUDY: dict[str, Any] = {
    "question": "Is it lower?",
    "baseline": "flash",
    "overrides": list(TINY),
    "arms": {"flash": ["attention=flash"], "mqa": ["attention=mqa"]},
    "seeds": [0, 1, 2],
    "scales": {
        "cpu": {
            "train": ["trainer.val_every=2"],
            "bench": ["trainer.val_every=2"],
            "rounds": 1,
            "apart_min": 0,
        }
    },
    "claims": [
        {
            "id": "T.loss",
            "statement": "it ends lower",
            "source": "a test",
            "arm": "mqa",
            "metric": "val_loss",
            "scale": "difference",
            "expected": [-10, 10],
            "mechanism": {"rule": "given", "formula": "none", "bound": None},
        }
    ],
}


def study(folder: Path, **changed: object) -> Path:
    text = yaml.safe_dump({**STUDY, **changed}, sort_keys=False)
    return written(folder / "study.yaml", text).parent


def test_a_changed_record_is_named_as_damaged_and_left_out(here: Door, tmp_path: Path) -> None:
    grid = (*TINY, "attention=flash,mqa", "seed=0,1,2", "--multirun")
    made(here(*grid))
    outputs = tmp_path / "outputs"
    clean = tmp_path / "clean"
    study(tmp_path / "mine")
    (changed,) = outputs.glob("runs/*-mqa-*-s1-*")
    (other,) = outputs.glob("runs/*-flash-*-s1-*")
    (gone,) = outputs.glob("runs/*-flash-*-s2-*")
    outputs.rename(clean)
    # a target that is met before the first step
    assert refused(here(str(clean), "--target", "99", module="nocap.compare"), "--target")
    show = ("show", str(changed))
    judge = ("mine", "scale=cpu", "--judge")
    plot = (str(changed), str(other))
    wrong = []
    cases = (
        ("metrics.jsonl", "plot", plot),
        ("metrics.jsonl", "study", judge),
        ("summary.json", "runs", show),
        ("summary.json", "runs", ("val_loss<2",)),
        ("summary.json", "study", judge),
        ("config.yaml", "runs", ("mlp.activation=relu2",)),
        ("config.yaml", "plot", plot),
    )
    for name, module, words in cases:
        shutil.copytree(clean, outputs)
        change(changed, name)
        done = here(*words, module=f"nocap.{module}")
        text = done.out + done.err
        named = f"{changed.name}[^$]*(damaged|digest|not believed|left out)"
        if words == judge:
            ok = "damaged" in text and "missing" not in text
        else:
            ok = re.search(named, text)
        if not ok or "1.234" in done.out:
            wrong.append((name, module, *words, text))
        shutil.rmtree(outputs)
    assert wrong == []

    shutil.copytree(clean, outputs)
    change(changed, "manifest.json")
    shutil.rmtree(gone)
    again = here(*grid)  # goes on beside it
    assert (gone / "summary.json").exists()
    assert again.code != 2
    assert changed.name in again.out + again.err


# --- keys without effect, and keys that come twice ------------------------------------------------

PLAIN = """
from dataclasses import dataclass
from torch import nn
from nocap.options.model.gpt import Gpt

@dataclass(kw_only=True)
class Plain(Gpt):
    kind: str = "plain"

    def build_block(self, run, layer):
        return nn.Identity()
"""


def test_a_key_that_changes_nothing_is_refused(here: Door, tmp_path: Path) -> None:
    made(here("model", "template", module="nocap.new"))
    written(tmp_path / "plain/model/plain.py", PLAIN)
    shape = "n_layer: 2\nn_head: 4\nd_model: 64\nseq_len: 128\n"
    written(tmp_path / "plain/model/plain.yaml", f"kind: plain\n{shape}")
    cases = (
        ("template", "model.norm_placement", "post"),
        ("plain", "model.residual_scale", "none"),
        ("plain", "trainer.activation_checkpointing", "block"),
    )
    for name, key, value in cases:
        assert refused(
            here("--config-dir", name, *TINY[1:], f"model={name}", f"{key}={value}"), key
        ), name


def test_a_repeated_key_is_refused(here: Door, tmp_path: Path) -> None:
    text = yaml.safe_dump(STUDY, sort_keys=False, default_flow_style=None)
    content = str(study(tmp_path / "sound"))
    made(here(content, "--judge", module="nocap.study"), code=1)  # nothing is there
    cases = (
        ("seeds", "seeds: [0, 1, 2]", "seeds: [3, 4, 5]\nseeds: [0, 1, 2]"),
        ("expected", "  expected: [-10, 10]", "  expected: [1, null]\n  expected: [-10, 10]"),
        ("mqa", "  mqa: [attention=mqa]", "  mqa: [attention=gqa]\n  mqa: [attention=mqa]"),
    )
    for key, old, new in cases:
        written(tmp_path / key / "study.yaml", edited(text, old, new))
        assert refused(here(key, "--judge", module="nocap.study"), key)
    shutil.copytree(SOFTCAP, tmp_path / "option/attention")
    with (tmp_path / "option/attention/softcap.yaml").open("a") as file:
        file.write("cap: 30\n")
    assert refused(here("--config-dir", "option", *TINY, "attention=softcap"), "cap")


# --- nocap check ----------------------------------------------------------------------------------

NEEDY = """
from dataclasses import dataclass
import torch
from nocap.config.keys import require
from nocap.options.attention import Attention

@dataclass(kw_only=True)
class A(Attention):
    kind: str = "needy"

    def check(self, run):
        super().check(run)
        require("helper" in run.ideas, "attention", "have the idea helper beside it", "none")

    def mixer(self, run, layer):
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda q, k, v: attend(q, k, v, is_causal=True)
"""


def test_nocap_check_takes_companions_and_says_where(here: Door, tmp_path: Path) -> None:
    written(tmp_path / "needy/attention/needy.py", NEEDY)
    written(tmp_path / "needy/attention/needy.yaml", "kind: needy\nn_kv_heads: ${model.n_head}\n")
    made(here("ideas", "helper", module="nocap.new"))
    needy = (
        "--config-dir",
        "needy",
        "--config-dir",
        "helper",
        *TINY,
        "attention=needy",
        "ideas=[helper]",
    )

    def check(*words: str) -> Finished:
        return here(*words, module="nocap.check")

    # an idea from another folder, and an idea beside an idea
    assert check("needy", "--config-dir", "helper", "ideas=[helper]", "--only", "learns").code == 0
    assert check("helper", "ideas=[smear]", "--only", "learns").code == 0
    assert here(*needy).code == 0  # what is checked of it before it trains has the idea, too
    done = here(*needy, "attention.extra=1")
    assert refused(done, "attention.extra", "needy")
    assert not re.search(r"\bof a\b", done.err)  # its kind, not its class

    shutil.copytree(SOFTCAP, tmp_path / "raises/attention")
    file = tmp_path / "raises/attention/softcap.py"
    line = "            groups = q_BHTD"
    text = edited(file.read_text(), line, f"            raise RuntimeError('never')\n{line}")
    file.write_text(text)
    failed = made(check("raises", "--only", "learns"), code=1)
    matches = re.findall(r"(/\S+\.(?:log|err|out))\b", failed.out + failed.err)
    logs = [Path(path) for path in matches]
    expected = [True] * max(len(logs), 1)
    assert [path.is_file() for path in logs] == expected


# --- refused well ---------------------------------------------------------------------------------


def test_bad_input_says_what_was_meant_and_ends_with_2(
    here: Door, door: Door, tmp_path: Path
) -> None:
    cases = (
        ([*TINY, "steps=20"], "trainer.steps"),
        ([*TINY, "model.steps=20"], "trainer.steps"),
        (["model=nano", "data.path=text.txt"], "data=text"),
        ([*TINY, "ideas.smear.lr=2"], "ideas=[smear]"),
    )
    for words, meant in cases:
        done = here(*words)
        assert refused(done, meant), words
        assert "@package" not in done.err
    ended = [(what, done) for what, done in bad_input(here, door, tmp_path)]
    slips = [what for what, done in ended if done.code != 2 or "Traceback" in done.err]
    assert slips == []


def bad_input(here: Door, door: Door, tmp_path: Path) -> Iterator[tuple[str, Finished]]:
    """Commands that each have something wrong in them."""
    plain = ("model=nano", "trainer.threads=1", "trainer.precision=fp32")
    softcap = "attention=softcap"
    arms = (*plain, "--arm", "attention=flash", "--arm")
    study(tmp_path / "mine")
    study(tmp_path / "softcapped", arms={"flash": ["attention=flash"], "mqa": [softcap]})
    written(tmp_path / "true_study" / "study.yaml", "true\n")
    written(tmp_path / "file", "")
    for name in ("true", "exits", "later"):
        shutil.copytree(SOFTCAP, tmp_path / name / "attention")
    written(tmp_path / "true/attention/softcap.yaml", "true\n")
    with (tmp_path / "exits/attention/softcap.py").open("a") as file:
        file.write("\nraise SystemExit(3)\n")
    path = tmp_path / "later/attention/softcap.py"
    text = edited(path.read_text(), "super().__post_init__()", "raise SystemExit(3)")
    path.write_text(text)
    # no folder can be made below a file or in /proc, whoever asks
    commands = [
        ("train", *TINY, "output_dir=/proc/nocap"),
        ("study", "mine", "output_dir=file/under"),
        ("study", "mine", "output_dir=/proc/nocap"),
        ("profile", *plain, "--repeats", "1", "--json", "/proc/nocap/p.json"),
        ("bench", *arms, "attention=mqa", "--json", "file/under/b.json"),
        ("study", "true_study", "--judge"),
        *(("train", "--config-dir", name, *TINY, softcap) for name in ("true", "exits", "later")),
        ("study", "--config-dir", "exits", "softcapped", "scale=cpu", "--judge"),
        ("bench", "--config-dir", "later", *arms, softcap),
        ("profile", "--config-dir", "later", *plain, softcap, "--repeats", "1"),
    ]
    for module, *words in commands:
        yield " ".join([module, *words]), here(*words, module=f"nocap.{module}")
    yield "compare, exits", door("--config-dir", "exits", "outputs", module="nocap.compare")
