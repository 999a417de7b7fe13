"""An installed wheel works from any folder, with tab completion through its console script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nocap.__main__ import COMMANDS
from tests.conftest import REPO, Door

COMPLETIONS = [
    ("nocap ", {*COMMANDS}),
    ("nocap tr", {"train"}),
    ("nocap train attention=", {"attention=gqa", "attention=sliding"}),
    ("nocap train attention=gqa mlp=sw", {"mlp=swiglu"}),
    (
        "nocap train optimizer=muon trainer.cuda_graphs=false optimizer.row_",
        {"optimizer.row_beta2="},
    ),
]


@pytest.mark.parametrize(("line", "offered"), COMPLETIONS)
def test_completion_offers_doors_groups_and_options(
    here: Door, line: str, offered: set[str]
) -> None:
    """What bash is offered after a line."""
    env = {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = here("-sc", "query=bash", module="nocap", env=env)
    words = set(done.out.split())
    assert done.code == 0, done.err
    assert (words if len(offered) == 1 else words & offered) == offered, done.err


@pytest.mark.gate
def test_installed_wheel_works_in_any_folder(tmp_path: Path) -> None:
    site = tmp_path / "site"
    elsewhere = tmp_path / "elsewhere"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    for words in (["wheel", "--wheel-dir", ".", str(REPO)], ["install", "--target", str(site)]):
        wheels = map(str, tmp_path.glob("*.whl"))
        subprocess.run([*pip, *words, "--no-deps", *wheels], check=True, cwd=tmp_path)
    assert (site / "nocap" / "conf" / "attention" / "gqa.yaml").is_file()
    assert not (site / "hydra_plugins").exists()
    (elsewhere / "mine" / "attention").mkdir(parents=True)
    option = "kind: sliding\nkernel: blocks\nn_kv_heads: 4\nwindow: 100\n"
    (elsewhere / "mine" / "attention" / "wide.yaml").write_text(option)

    def nocap(*words: str) -> str:
        command = [sys.executable, str(site / "bin" / "nocap"), *words]
        env = {**os.environ, "PYTHONPATH": str(site)}
        return subprocess.check_output(command, cwd=elsewhere, env=env, text=True)

    shown = nocap("--help")
    assert [command for command in COMMANDS if f"nocap {command}" not in shown] == []
    assert "attention=" in nocap("train", "--help")
    assert "window: 100" in nocap("train", "--config-dir", "mine", "attention=wide", "--cfg", "job")
    nocap("new", "mlp", "brand_new")
    assert (elsewhere / "brand_new" / "mlp" / "brand_new.py").is_file()
    studies = {path.name for path in (site / "nocap" / "studies").iterdir()}
    paths = (REPO / "experiments").glob("*/study.yaml")
    assert studies == {path.parent.name for path in paths}
    assert "entropy" in nocap("study", "objectives", "scale=cpu", "--plan", "--allow-code")
    assert ": 12 cells" in nocap("study", "gqa", "scale=cpu", "--plan")
    assert not (elsewhere / "experiments").exists()
