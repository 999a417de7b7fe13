"""A run's model as one file: nocap and a script of plain torch read from it the logits that the
run's own model has."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nocap import api, export, outside
from nocap.config.compose import compose
from nocap.config.plain import dump, to_plain
from nocap.config.untrusted_files import parse_yaml
from nocap.store.record_files import digest
from nocap.training.export_file import read_export
from nocap.training.trained import trained
from nocap.training.transformers_export import architecture
from tests.conftest import REPO, SMALL, Undisturbed
from tests.in_process import planned, start

TOKENS = torch.tensor([[72, 101, 108, 108, 111, 44, 32, 0, 255]])


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(REPO / "docs" / "read_export.py"))


OTHERS = {
    "default": (),
    "gqa swiglu untied": (
        "model.n_head=4",
        "attention=gqa",
        "attention.n_kv_heads=2",
        "mlp=swiglu",
        "model.tie_head=false",
        "norm=rmsnorm_gain",
    ),
    "layernorm relu2 capped": (
        "norm=layernorm",
        "mlp=relu2",
        "model.qk_norm=true",
        "model.logit_softcap=15",
        "model.residual_scale=both",
    ),
}


@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS)
def test_nocap_and_plain_torch_read_the_runs_own_logits(
    words: tuple[str, ...], tmp_path: Path, script: dict[str, Any]
) -> None:
    run_dir = planned(tmp_path, *words).run_dir
    start(planned(tmp_path, *words))
    file = tmp_path / "model.safetensors"
    assert export.main([str(run_dir), str(file)]) == 0
    _, model, step = trained(run_dir)
    loaded = api.load_model(file)
    with torch.no_grad():
        expected = model.logits(TOKENS)[0]
        logits = loaded.model.logits(TOKENS)
        assert torch.equal(logits[0], expected)
        plain = script["logits"](*script["read"](file), TOKENS[0])
    torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-5)
    assert loaded.step == 7
    assert step == 7
    assert float(expected.std()) > 0.01  # and not all the same


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("mlp=own",), "gpt, norm, own, rope, global, pre"),
        (("ideas=[x0]",), "gpt, norm, mlp, rope, global, pre, x0"),
    ],
)
def test_the_script_says_which_model_it_does_not_read(
    words: tuple[str, ...], kinds: str, tmp_path: Path, script: dict[str, Any], used: None
) -> None:
    config = to_plain(compose([*SMALL, *words]))
    with pytest.raises(SystemExit, match=f"a model of {kinds} is not read here"):
        script["logits"](config, {}, TOKENS[0])


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MLP from outside, without the keys of nocap's own."""
    folder = tmp_path / "own" / "mlp"
    folder.mkdir(parents=True)
    source = "from dataclasses import dataclass\nfrom nocap.options.mlp import Mlp\n\n"
    source += "@dataclass(kw_only=True)\nclass Own(Mlp):\n    kind: str = 'own'\n"
    (folder / "own.py").write_text(source)
    (folder / "own.yaml").write_text("kind: own\n")
    monkeypatch.setenv("NOCAP_OUTSIDE", outside.state())
    outside.use([folder.parent])


def test_a_file_says_what_it_is_and_no_place_of_this_machine(
    undisturbed: Undisturbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "model.safetensors"
    name = undisturbed.run_dir.name
    output_dir = str(undisturbed.output_dir)
    assert export.main([name[:-6], str(file), "--output-dir", output_dir]) == 0
    assert f"{name[:-13]} at step 30" in capsys.readouterr().out
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    about = json.loads(metadata["run"])
    assert about["identity"] == name[-12:]
    assert about["step"] == 30
    text = (undisturbed.run_dir / "summary.json").read_text()
    losses = json.loads(text)["val_loss"]
    assert about["val_loss"] == losses
    assert str(undisturbed.output_dir) not in str(metadata)  # nor places of this machine


def test_what_is_no_export_is_refused(undisturbed: Undisturbed, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    run_dir = str(undisturbed.run_dir)
    assert export.main([run_dir, str(file)]) == 0
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    config = json.loads(metadata["config"])
    words = tensors["embedding.weight"]
    key = "embedding.weight"

    def about(**changed: object) -> dict[str, str]:
        text = json.dumps({**config, **changed})
        return {**metadata, "config": text}

    cases = (
        ("got KeyError", {}, {}),
        ("kind must be one of", {}, about(attention={"kind": "os.system"})),
        ("values must hold no interpolation", {}, about(output_dir="${oc.env:HOME}")),
        ("embedding.weight", {key: words[:5]}, metadata),
        ("finite weights", {key: words * float("nan")}, metadata),
    )
    for reason, other, told in cases:
        save_file({**tensors, **other}, file, told)
        with pytest.raises(ValueError, match=reason):
            read_export(file)
    file.write_bytes(b"no safetensors")
    with pytest.raises(ValueError, match=r"must be a file that nocap\.export wrote"):
        read_export(file)
    empty = shutil.copytree(undisturbed.run_dir, tmp_path / "empty")
    shutil.rmtree(empty / "checkpoints")
    with pytest.raises(SystemExit, match="2"):
        export.main([str(empty), str(tmp_path / "none.safetensors")])
    assert not (tmp_path / "none.safetensors").exists()


def test_a_file_that_is_not_named_safetensors_is_refused(
    undisturbed: Undisturbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        export.main([str(undisturbed.run_dir), str(tmp_path / "model.pt")])
    assert "FILE must end in .safetensors" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


# --- checkpoints that are not the last, and of other code -----------------------------------------


def export_of(run_dir: Path, file: Path) -> dict[str, Any]:
    """Read what the file says of the run."""
    assert export.main([str(run_dir), str(file)]) == 0
    with safe_open(file, "pt") as opened:
        return json.loads(opened.metadata()["run"])


def test_a_file_says_the_loss_of_its_own_checkpoint(tmp_path: Path) -> None:
    """A tiny run validates at 3, 6 and its end, 7, and keeps three checkpoints."""
    this = planned(tmp_path, "trainer.keep_steps=[4,6]")
    start(this)
    lines = (this.run_dir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    losses = {row["step"]: row["val/loss"] for row in rows if "val/loss" in row}
    for step in (7, 6, 4):
        about = export_of(this.run_dir, tmp_path / "model.safetensors")
        assert about["step"] == step
        assert about["val_loss"] == losses.get(step)
        shutil.rmtree(this.run_dir / "checkpoints" / f"step-{step:08}")
    assert len({losses[7], losses[6]}) == 2
    assert 4 not in losses


def of_an_older_nocap(out: Path, group: str, key: str) -> Path:
    """Return the folder of a killed run that an older nocap trained, which did not have this
    key."""
    this = planned(out)
    config = {**this.identity_parts["config"], group: {**this.identity_parts["config"][group]}}
    del config[group][key]
    parts = {**this.identity_parts, "config": config}
    run_dir = this.run_dir.with_name(f"{this.run_dir.name[:-12]}{digest(parts)}")
    copy = replace(this, identity_parts=parts, identity=digest(parts), run_dir=run_dir)
    start(copy)
    (run_dir / "summary.json").unlink()
    written = parse_yaml((run_dir / "config.yaml").read_text())
    del written[group][key]
    (run_dir / "config.yaml").write_text(dump(written))
    return run_dir


@pytest.mark.parametrize(
    ("group", "key"),
    [("attention", "merge_qkv"), ("model", "logit_softcap"), ("objective", "loss_chunks")],
)
def test_a_run_of_an_older_nocap_is_read(tmp_path: Path, group: str, key: str) -> None:
    start(planned(tmp_path))
    expected, model, last = trained(planned(tmp_path).run_dir)
    run, older, step = trained(of_an_older_nocap(tmp_path, group, key))
    assert run == expected
    assert step == last
    assert torch.equal(older.next_logits(TOKENS), model.next_logits(TOKENS))


@pytest.mark.parametrize("text", ["logit_softcap: 15.0", "logit_softcap: null", "qk_norm: true"])
def test_a_key_that_was_not_trained_with_is_refused(tmp_path: Path, text: str) -> None:
    older = of_an_older_nocap(tmp_path, "model", "logit_softcap")
    lines = (older / "config.yaml").read_text().splitlines()
    kept = [line for line in lines if text.partition(":")[0] not in line]
    kept.insert(kept.index("model:") + 1, f"  {text}")
    (older / "config.yaml").write_text("\n".join(kept))
    with pytest.raises(ValueError, match=r"config\.yaml differs from the config in manifest\.json"):
        trained(older)


def test_a_key_that_has_no_default_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = of_an_older_nocap(tmp_path, "model", "seq_len")
    with pytest.raises(SystemExit, match="2"):
        export.main([str(older), str(tmp_path / "model.safetensors")])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "config.yaml must be a run's config.yaml: model.seq_len" in said


@pytest.mark.parametrize("read", ["folder", "file"])
def test_other_code_than_the_runs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], read: str
) -> None:
    softcap = shutil.copytree(REPO / "tests" / "own_ideas" / "softcap", tmp_path / "own")
    outside.use([softcap])
    this = planned(tmp_path, "attention=softcap")
    start(this)
    file = tmp_path / "model.safetensors"
    run_dir = str(this.run_dir)
    assert export.main([run_dir, str(file), "--config-dir", str(softcap)]) == 0
    assert "differs from the code" not in capsys.readouterr().err
    (path,) = (softcap / "attention").glob("*.py")
    path.write_text(f"{path.read_text()}\n# another\n")
    outside.use([softcap])
    said = list[str]()
    if read == "folder":
        run_dir = str(this.run_dir)
        again = [run_dir, str(file), "--config-dir", str(softcap)]
        assert export.main(again) == 0
        said.append(capsys.readouterr().err)
    else:
        read_export(file, log=said.append)
    assert f"{path} differs from the code that trained this run" in said[0]
    os.environ.pop(outside.VARIABLE)


# --- Hugging Face ---------------------------------------------------------------------------------

COUNTERPARTS = {
    "llama": (
        "mlp=swiglu",
        "norm=rmsnorm_gain",
        "model.n_head=4",
        "attention=gqa",
        "attention.n_kv_heads=2",
    ),
    "llama untied": (
        "mlp=swiglu",
        "model.tie_head=false",
        "model.residual_scale=both",
        "position.base=5000",
    ),
    "gpt2": ("position=learned", "norm=layernorm", "mlp=gelu4x"),
    "gpt2 untied": (
        "position=learned",
        "norm=layernorm",
        "norm.bias=false",
        "model.tie_head=false",
    ),
}


@pytest.mark.filterwarnings("ignore")  # of a library that is not nocap's
@pytest.mark.parametrize("words", COUNTERPARTS.values(), ids=COUNTERPARTS)
def test_transformers_computes_the_runs_own_logits(words: tuple[str, ...], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    run_dir = planned(tmp_path, *words).run_dir
    start(planned(tmp_path, *words))
    folder = tmp_path / "hf"
    assert export.main([str(run_dir), "--hf", str(folder)]) == 0
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    keys = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    assert keys == []
    _, model, _ = trained(run_dir)
    with torch.no_grad():
        expected = model.logits(TOKENS)
        got = theirs.eval()(TOKENS).logits
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert float(expected.std()) > 0.01


NO_COUNTERPARTS = [
    ((), "mlp.activation must be swiglu with --hf and position=rope, as in llama, got gelu"),
    (("mlp=swiglu", "norm=layernorm"), "norm.norm must be rms with --hf and position=rope"),
    (
        ("mlp=swiglu", "position=none"),
        "position must be rope (as in Llama) or learned (as in GPT-2)",
    ),
    (("mlp=swiglu", "ideas=[x0]"), "ideas must be empty with --hf"),
    (("mlp=swiglu", "model.qk_norm=true"), "model.qk_norm must be false with --hf"),
    (("mlp=swiglu", "model.logit_softcap=15"), "model.logit_softcap must be null with --hf"),
    (("mlp=swiglu", "attention=sliding"), "attention.kind must be global with --hf"),
    (
        ("position=learned", "norm=layernorm", "model.n_head=4", "attention=mqa"),
        "attention.n_kv_heads must be model.n_head=4 with --hf and position=learned, as in gpt2",
    ),
]


@pytest.mark.parametrize(("words", "rule"), NO_COUNTERPARTS)
def test_what_has_no_counterpart_is_refused_by_name(words: tuple[str, ...], rule: str) -> None:
    with pytest.raises(ValueError, match=re.escape(rule)):
        architecture(compose([*SMALL, *words]))


def test_a_folder_that_holds_something_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        export.main(["last", "--hf", str(tmp_path)])
    assert capsys.readouterr().err == f"nocap: --hf must be a new or empty folder, got {tmp_path}\n"
