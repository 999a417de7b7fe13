"""A run's model as one file: nocap and a script of plain torch read from it the logits that the run's own
model has."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nocap import api, export
from nocap.training.trained import exported, trained
from tests.conftest import REPO, Undisturbed
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
        assert torch.equal(loaded.model.logits(TOKENS)[0], expected)
        plain = script["logits"](*script["read"](file), TOKENS[0])
    torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-5)
    assert loaded.step == step == 7
    assert float(expected.std()) > 0.01  # and not all the same


def test_a_file_says_what_it_is_and_no_place_of_this_machine(
    undisturbed: Undisturbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "model.safetensors"
    name = undisturbed.run_dir.name
    assert export.main([name[:-6], str(file), "--output-dir", str(undisturbed.output_dir)]) == 0
    assert f"{name[:-13]} at step 30" in capsys.readouterr().out
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    about = json.loads(metadata["run"])
    assert (about["identity"], about["step"]) == (name[-12:], 30)
    assert about["val_loss"] == json.loads((undisturbed.run_dir / "summary.json").read_text())["val_loss"]
    assert str(undisturbed.output_dir) not in str(metadata)  # nor places of this machine


def test_what_is_no_export_is_refused(undisturbed: Undisturbed, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    assert export.main([str(undisturbed.run_dir), str(file)]) == 0
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    config = json.loads(metadata["config"])
    words, key = tensors["embedding.weight"], "embedding.weight"

    def about(**changed: object) -> dict[str, str]:
        return {**metadata, "config": json.dumps({**config, **changed})}

    for reason, other, told in (
        ("got KeyError", {}, {}),
        ("kind must be one of", {}, about(attention={"kind": "os.system"})),
        ("values must be plain", {}, about(output_dir="${oc.env:HOME}")),
        ("embedding.weight", {key: words[:5]}, metadata),
        ("finite weights", {key: words * float("nan")}, metadata),
    ):
        save_file({**tensors, **other}, file, told)
        with pytest.raises(ValueError, match=reason):
            exported(file)
    file.write_bytes(b"no safetensors")
    with pytest.raises(ValueError, match=r"must be a file of nocap\.export"):
        exported(file)
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
