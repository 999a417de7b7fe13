"""An installed wheel works from any folder, with tab completion through its console script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nocap.__main__ import COMMANDS
from tests.conftest import REPO, Door


def complete(door: Door, line: str) -> set[str]:
    """What bash is offered after `line`."""
    env = {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = door("-sc", "query=bash", module="nocap", env=env)
    assert done.code == 0, done.err
    return set(done.out.split())


@pytest.mark.slow
def test_completion_offers_doors_groups_and_options(door: Door) -> None:
    assert complete(door, "nocap ") == set(COMMANDS)
    assert complete(door, "nocap tr") == {"train"}
    assert {"attention=gqa", "attention=sliding"} <= complete(door, "nocap train attention=")
    assert complete(door, "nocap train attention=gqa mlp=sw") == {"mlp=swiglu"}
    assert "trainer.batch_tokens=" in complete(door, "nocap train trainer.batch")
    assert "optimizer.row_beta2=" in complete(
        door, "nocap train optimizer=muon trainer.cuda_graphs=false optimizer.row_"
    )


def test_unknown_door_is_refused_with_the_doors(door: Door) -> None:
    done = door("trian", module="nocap")
    assert done.code == 2
    assert "nocap train" in done.err


@pytest.mark.slow
def test_installed_wheel_works_in_any_folder(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(REPO)], check=True, cwd=tmp_path
    )
    (wheel,) = tmp_path.glob("*.whl")
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True, cwd=tmp_path
    )
    assert (site / "nocap" / "conf" / "attention" / "gqa.yaml").is_file()
    assert not (site / "hydra_plugins").exists()
    (elsewhere / "mine" / "attention").mkdir(parents=True)
    (elsewhere / "mine" / "attention" / "wide.yaml").write_text(
        "kind: sliding\nkernel: blocks\nn_kv_heads: 4\nwindow: 100\n"
    )

    def nocap(*words: str) -> str:
        command = [sys.executable, str(site / "bin" / "nocap"), *words]
        done = subprocess.run(
            command,
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert all(f"nocap {command}" in nocap("--help") for command in COMMANDS)
    assert "attention=" in nocap("train", "--help")
    assert "window: 100" in nocap("train", "--config-dir", "mine", "attention=wide", "--cfg", "job")
    nocap("new", "mlp", "brand_new")
    assert (elsewhere / "brand_new" / "mlp" / "brand_new.py").is_file()
    studies = {path.parent.name for path in (site / "nocap" / "studies").rglob("*")}
    assert studies == {"studies", *(path.parent.name for path in (REPO / "experiments").glob("*/study.yaml"))}
    planned = nocap("study", "gqa", "scale=cpu", "--plan")
    assert ": 12 cells" in planned
    assert not (elsewhere / "experiments").exists()
