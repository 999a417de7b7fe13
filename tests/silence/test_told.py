"""What users were told that was not so: a test for each.

They go through commands only. A test that cannot make its set-up raises `BrokenError`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
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
    return done.code == 2 and len(done.err.splitlines()) <= 2 and all(word in done.err for word in words)


def edited(text: str, old: str, new: str) -> str:
    """A text in which this stood."""
    if old not in text:
        raise BrokenError(f"no {old!r} in {text}")
    return text.replace(old, new)


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- records that were changed ------------------------------------------------------------------------------


def change_rows(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    changed = [{**row, "val/loss": 1.2345} if "val/loss" in row else row for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))


def change_summary(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "val_loss": 1.2345}, indent=2))


def change_config(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["mlp"]["activation"] = "relu2"
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def change_manifest(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "identity": "0" * 12}, indent=2))


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
    return written(folder / "study.yaml", yaml.safe_dump({**STUDY, **changed}, sort_keys=False)).parent


def test_a_changed_record_is_named_as_damaged_and_left_out(here: Door, tmp_path: Path) -> None:
    grid = (*TINY, "attention=flash,mqa", "seed=0,1,2", "--multirun")
    made(here(*grid))
    outputs, clean = tmp_path / "outputs", tmp_path / "clean"
    study(tmp_path / "mine")
    ((changed,), (other,), (gone,)) = (
        list(outputs.glob(f"runs/*-{name}-*")) for name in ("mqa-*-s1", "flash-*-s1", "flash-*-s2")
    )
    outputs.rename(clean)
    show, judge, plot = ("show", str(changed)), ("mine", "scale=cpu", "--judge"), (str(changed), str(other))
    doors: list[tuple[Callable[[Path], None], str, tuple[str, ...]]] = [
        (change_rows, "nocap.plot", plot),
        (change_rows, "nocap.study", judge),
        (change_summary, "nocap.runs", show),
        (change_summary, "nocap.runs", ("val_loss<2",)),
        (change_summary, "nocap.study", judge),
        (change_config, "nocap.runs", ("mlp.activation=relu2",)),
        (change_config, "nocap.plot", plot),
    ]
    wrong = []
    for change, module, words in doors:
        shutil.copytree(clean, outputs)
        change(changed)
        done = here(*words, module=module)
        text = done.out + done.err
        if words == judge:
            ok = "damaged" in text and "missing" not in text
        else:
            ok = changed.name in text and re.search("damaged|digest|not believed|left out", text)
        if not ok or "1.234" in done.out:
            wrong.append(f"{change.__name__}: {module} {' '.join(words)}")
        shutil.rmtree(outputs)

    shutil.copytree(clean, outputs)
    change_manifest(changed)
    shutil.rmtree(gone)
    again = here(*grid)
    if not (gone / "summary.json").exists() or again.code == 2 or changed.name not in again.out + again.err:
        wrong.append("a grid stops at a damaged cell")
    assert wrong == []


# --- keys without effect, and keys that come twice ----------------------------------------------------------

PLAIN = """
from dataclasses import dataclass
from torch import nn
from nocap.options.model import Model

@dataclass(kw_only=True)
class Plain(Model):
    kind: str = "plain"

    def build_block(self, run, layer):
        return nn.Identity()
"""


def test_a_key_that_changes_nothing_is_refused(here: Door, tmp_path: Path) -> None:
    made(here("model", "template", module="nocap.new"))
    written(tmp_path / "plain/model/plain.py", PLAIN)
    shape = "n_layer: 2\nn_head: 4\nd_model: 64\nseq_len: 128\n"
    written(tmp_path / "plain/model/plain.yaml", f"kind: plain\n{shape}")
    for name, key, value in (
        ("template", "model.norm_placement", "post"),
        ("plain", "model.residual_scale", "none"),
        ("plain", "trainer.activation_checkpointing", "block"),
    ):
        assert refused(here("--config-dir", name, *TINY[1:], f"model={name}", f"{key}={value}"), key), name


def test_a_repeated_key_is_refused(here: Door, tmp_path: Path) -> None:
    text = yaml.safe_dump(STUDY, sort_keys=False, default_flow_style=None)
    made(here(str(study(tmp_path / "sound")), "--judge", module="nocap.study"), code=1)  # nothing is there
    for key, old, new in (
        ("seeds", "seeds: [0, 1, 2]", "seeds: [3, 4, 5]\nseeds: [0, 1, 2]"),
        ("expected", "  expected: [-10, 10]", "  expected: [1, null]\n  expected: [-10, 10]"),
        ("mqa", "  mqa: [attention=mqa]", "  mqa: [attention=gqa]\n  mqa: [attention=mqa]"),
    ):
        written(tmp_path / key / "study.yaml", edited(text, old, new))
        assert refused(here(key, "--judge", module="nocap.study"), key)
    shutil.copytree(SOFTCAP, tmp_path / "option/attention")
    with (tmp_path / "option/attention/softcap.yaml").open("a") as file:
        file.write("cap: 30\n")
    assert refused(here("--config-dir", "option", *TINY, "attention=softcap"), "cap")


# --- nocap check --------------------------------------------------------------------------------------------

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
        return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
"""


def test_nocap_check_takes_companions_and_says_where(here: Door, tmp_path: Path) -> None:
    written(tmp_path / "needy/attention/needy.py", NEEDY)
    written(tmp_path / "needy/attention/needy.yaml", "kind: needy\nn_kv_heads: ${model.n_head}\n")
    made(here("ideas", "helper", module="nocap.new"))
    needy = ("--config-dir", "needy", "--config-dir", "helper", *TINY, "attention=needy", "ideas=[helper]")

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
    line = "            groups, (T, D) ="
    file.write_text(edited(file.read_text(), line, f"            raise RuntimeError('never')\n{line}"))
    failed = made(check("raises", "--only", "learns"), code=1)
    logs = [Path(path) for path in re.findall(r"(/\S+\.(?:log|err|out))\b", failed.out + failed.err)]
    assert [path.is_file() for path in logs] == [True] * max(len(logs), 1)


# --- refused well -------------------------------------------------------------------------------------------


def test_bad_input_says_what_was_meant_and_ends_with_2(here: Door, door: Door, tmp_path: Path) -> None:
    for words, meant in (
        ([*TINY, "steps=20"], "trainer.steps"),
        ([*TINY, "model.steps=20"], "trainer.steps"),
        (["model=nano", "data.path=text.txt"], "data=text"),
        ([*TINY, "ideas.smear.lr=2"], "ideas=[smear]"),
    ):
        done = here(*words)
        assert refused(done, meant), words
        assert "@package" not in done.err
    ended = [(what, done) for what, done in bad_input(here, door, tmp_path)]
    assert [what for what, done in ended if done.code != 2 or "Traceback" in done.err] == []


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
    path.write_text(edited(path.read_text(), "super().__post_init__()", "raise SystemExit(3)"))
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
