"""The mirror as a W&B server gets it from W&B's own client: the rows of the record, each once, in any order
of kills, resumes, outages and uploads. The server is on 127.0.0.1."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nocap.store.record import Metrics
from tests.test_tracking import environment
from tests.wandb_server import ENTITY, KEY, StoredRun, WandbServer, wandb_server

WORDS = ("model=nano", "data=synthetic", "trainer.steps=30", "trainer.val_every=10", "output_dir=out")
# what W&B's client reads of its environment: a post to the file stream every so many seconds
QUICK = {"WANDB__FILE_STREAM_TRANSMIT_INTERVAL": "0.1"}


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with wandb_server() as made:
        yield made


def nocap(here: Path, server: WandbServer | None, command: str, *words: str, **extra: str) -> Any:
    """`python -m nocap.COMMAND WORDS…` in this folder, with a login at this server or without one."""
    login = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY} if server else {}
    return subprocess.run(
        [sys.executable, "-m", f"nocap.{command}", *words],
        cwd=here,
        env=environment(here, **QUICK, **login, **extra),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def folder_of(here: Path) -> Path:
    (folder,) = (here / "out" / "runs").iterdir()
    return folder


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The rows of a record, without their nulls."""
    rows = Metrics(folder / "metrics.jsonl").rows()
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def summary_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def only(server: WandbServer) -> StoredRun:
    (run,) = server.runs.values()
    return run


@pytest.mark.gate
def test_a_server_gets_the_rows_of_the_record_and_its_summary(tmp_path: Path, server: WandbServer) -> None:
    done = nocap(tmp_path, server, "train", *WORDS)
    assert (done.returncode, done.stderr) == (0, "")
    folder, run = folder_of(tmp_path), only(server)
    assert run.rows == recorded(folder)
    assert len(run.rows) == 31
    assert run.summary["val/loss"] == summary_of(folder)["val_loss"]
    assert run.exit_code == 0
    assert f"{server.url}/{ENTITY}/nocap/runs/{run.id}" in done.stdout
