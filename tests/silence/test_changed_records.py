"""What was changed behind nocap's back is made anew or refused, and what may hold a secret is not kept:
through the commands."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ATLAS_IDEAS, FAULTS, REPO, SMALL, Door, Finished, Undisturbed, the_run

JSONL = REPO / "tests" / "strangers" / "jsonl"
OF_LINES = (
    *(word for word in SMALL if not word.startswith("data")),
    "data=jsonl",
    "trainer.steps=1",
    "trainer.checkpoint_every=0",
)


def manifest_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "manifest.json").read_text())


@pytest.fixture
def record(undisturbed: Undisturbed, tmp_path: Path) -> Path:
    """A finished run of 30 steps in `outputs/runs`: the test's own copy."""
    return shutil.copytree(undisturbed.run_dir, tmp_path / "outputs" / "runs" / undisturbed.run_dir.name)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def refused(done: Finished, *words: str) -> None:
    assert (done.code, done.err.count("\n")) == (2, 1), done
    assert all(word in done.err for word in words), done.err


# --- tokens -------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder for `--config-dir` with a data source and a tokenizer of its own, and a cache that nobody else
    uses."""
    (tmp_path / "lines.jsonl").write_text(
        "".join(f'{{"text": "the number {i} of many Lines"}}\n' for i in range(4000))
    )
    return shutil.copytree(JSONL, tmp_path / "mine")


def tokens_of(here: Door, source: Path, *words: str) -> tuple[str, list[str]]:
    """The digest of the tokens that a run of this data source is trained on, and the sets in the cache."""
    out = source.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    done = here(
        *OF_LINES,
        f"data.path={source.parent / 'lines.jsonl'}",
        *words,
        "--config-dir",
        str(source),
        f"output_dir={out}",
        f"cache_dir={source.parent / 'cache'}",
    )
    assert done.code == 0, done.err
    return manifest_of(the_run(out))["data"]["manifest"], sorted(
        path.name for path in (source.parent / "cache" / "corpora").glob("[!.]*")
    )


@pytest.mark.slow
def test_an_edited_data_source_makes_its_tokens_anew(here: Door, source: Path) -> None:
    first, sets = tokens_of(here, source)
    edit(source / "data" / "jsonl.py", "encode_ordinary(text)]", "encode_ordinary(text.upper())]")
    second, more = tokens_of(here, source)
    assert (second == first, len(sets), len(more)) == (False, 1, 2)
    # as it was
    edit(source / "data" / "jsonl.py", "encode_ordinary(text.upper())]", "encode_ordinary(text)]")
    assert tokens_of(here, source) == (first, more)
    edit(
        source / "data" / "jsonl.py",
        "        def make(target):",
        "        # says no more\n        def make(target):",
    )
    assert tokens_of(here, source) == (first, more)


def test_an_edited_tokenizer_makes_the_tokens_anew(here: Door, source: Path) -> None:
    (source / "tokenizer").mkdir()
    (source / "tokenizer" / "mine.yaml").write_text("kind: mine\n")
    (source / "tokenizer" / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from nocap.data.tokenizer import bytes_encoding\n"
        "from nocap.options.tokenizer import Tokenizer\n\n"
        "class Shifted:\n"
        "    name, n_vocab, eot_token, special_tokens_set = 'mine', 257, 256, {'<|endoftext|>'}\n\n"
        "    def encode_ordinary(self, text):\n"
        "        return [(byte + 1) % 256 for byte in text.encode()]\n\n"
        "    def encode_single_token(self, text):\n"
        "        return 256\n\n"
        "    def decode_single_token_bytes(self, token):\n"
        "        return b'x'\n\n"
        "@dataclass(kw_only=True)\n"
        "class Mine(Tokenizer):\n"
        "    kind: str = 'mine'\n\n"
        "    @property\n"
        "    def vocab_size(self):\n"
        "        return 257\n\n"
        "    def load(self, *, cache_dir):\n"
        "        return Shifted()\n"
    )
    first, sets = tokens_of(here, source, "tokenizer=mine")
    edit(source / "tokenizer" / "mine.py", "byte + 1", "byte + 2")
    second, more = tokens_of(here, source, "tokenizer=mine")
    assert (second == first, len(sets), len(more)) == (False, 1, 2)


# --- records ------------------------------------------------------------------------------------------------


def unsealed(run_dir: Path) -> None:
    """As a run that was cut short leaves it: no summary, so no digest."""
    (run_dir / "summary.json").unlink()


def doors(here: Door, run_dir: Path) -> dict[str, Callable[[], Finished]]:
    folder = run_dir.parents[2]
    student = (
        *ATLAS_IDEAS,
        "ideas=[distill]",
        f"ideas.distill.run={run_dir}",
        "ideas.distill.weight=0.5",
        "trainer.checkpoint_every=0",
    )
    return {
        "generate": lambda: here(f"run={run_dir}", "device=cpu", "max_tokens=2", module="nocap.generate"),
        "export": lambda: here(str(run_dir), str(folder / "model.safetensors"), module="nocap.export"),
        "teacher": lambda: here(*SMALL, *student, "trainer.steps=1", f"output_dir={folder / 'students'}"),
    }


@pytest.mark.slow
def test_a_changed_config_generates_nothing_and_deletes_nothing(here: Door, record: Path) -> None:
    """gelu → relu2 in config.yaml gave another text from the same weights; an edited loss chose what was
    deleted."""
    edit(record / "config.yaml", "activation: gelu", "activation: relu2")
    for call in doors(here, record).values():
        refused(call(), "config.yaml is not what its digest", record.name)
    assert not (record.parents[2] / "model.safetensors").exists()
    rows = len(json.loads((record / "summary.json").read_text()))
    edit(record / "summary.json", '"val_loss": ', '"val_loss": 1')  # 4.1 → 14.1
    for words in (
        ("rm", "val_loss>10"),
        ("rm", "val_loss>10", "--yes"),
        ("gc", "--yes"),
        ("rm", record.name, "--yes"),
    ):
        done = here(*words, module="nocap.runs.__main__")
        assert f"nocap: {record.name}: " in done.err, done
        assert "0 runs" in done.out
        assert done.code == (words[0] == "rm" and "--yes" in words)
    assert (record / "checkpoints" / "step-00000030").is_dir()
    assert len(json.loads((record / "summary.json").read_text())) == rows


def test_a_run_that_was_cut_short_needs_the_config_of_its_manifest(here: Door, record: Path) -> None:
    unsealed(record)
    asked = doors(here, record)["generate"]
    assert asked().code == 0
    edit(record / "config.yaml", "activation: gelu", "activation: relu2")
    refused(asked(), "config.yaml is not the config of manifest.json")
    edit(record / "manifest.json", '"activation": "gelu"', '"activation": "relu2"')
    refused(asked(), "manifest.json has identity")


def test_a_summary_that_says_failed_removes_no_finished_run(here: Door, record: Path) -> None:
    edit(record / "summary.json", '"status": "finished"', '"status": "failed"')
    done = here("rm", "status=failed", "--yes", module="nocap.runs.__main__")
    assert (done.code, "summary.json is not what its digest" in done.err, record.exists()) == (1, True, True)


# --- uncommitted changes ------------------------------------------------------------------------------------

CHECKOUT = """\
import sys
from pathlib import Path
from nocap.store import identity
identity.CHECKOUT = Path({folder!r})
from nocap.train import main
sys.exit(main())
"""


def trained_from(checkout: Path, out: Path, *words: str) -> Finished:
    """A run of a nocap that believes to lie in this checkout."""
    code = CHECKOUT.format(folder=str(checkout))
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            *SMALL,
            "trainer.steps=1",
            "trainer.checkpoint_every=0",
            f"output_dir={out}",
            *words,
        ],
        cwd=checkout,
        env={**_environ(), "PYTHONPATH": FAULTS},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def _environ() -> dict[str, str]:
    import os

    return dict(os.environ)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a line of code that is not committed."""
    folder = tmp_path / "checkout"
    (folder / "nocap").mkdir(parents=True)
    (folder / "conf").mkdir()
    (folder / "nocap" / "a.py").write_text("a = 1\n")
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.email=a@b", "-c", "user.name=a", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    (folder / "nocap" / "a.py").write_text("a = 'correct horse battery staple'\n")
    return folder


@pytest.mark.slow
def test_uncommitted_changes_are_a_digest_unless_they_are_asked_for(checkout: Path, tmp_path: Path) -> None:
    done = trained_from(checkout, tmp_path / "out")
    assert done.code == 0, done.err
    run_dir = the_run(tmp_path / "out")
    diff = subprocess.run(
        ["git", "-C", str(checkout), "diff", "HEAD", "--", "nocap"], capture_output=True, check=True
    ).stdout
    digest = hashlib.sha256(diff).hexdigest()
    assert manifest_of(run_dir)["git"]["diff_sha256"] == digest
    assert not any(b"correct horse" in path.read_bytes() for path in run_dir.rglob("*") if path.is_file())
    assert not (run_dir / "uncommitted.diff").exists()

    done = trained_from(checkout, tmp_path / "asked", "store.diff=true")
    assert done.code == 0, done.err
    kept = the_run(tmp_path / "asked")
    assert kept.name == run_dir.name  # the same run
    assert (kept / "uncommitted.diff").read_bytes() == diff
    assert stat.S_IMODE((kept / "uncommitted.diff").stat().st_mode) == 0o600
    others = [path for path in kept.rglob("*") if path.is_file() and path.name != "uncommitted.diff"]
    assert not any(b"correct horse" in path.read_bytes() for path in others)
    assert manifest_of(kept)["git"]["diff_sha256"] == digest
    assert yaml.safe_load((kept / "config.yaml").read_text())["store"] == {"diff": True}


@pytest.mark.slow
def test_a_checkout_without_changes_has_no_digest_and_no_checkout_no_diff(
    checkout: Path, tmp_path: Path
) -> None:
    (checkout / "nocap" / "a.py").write_text("a = 1\n")
    assert trained_from(checkout, tmp_path / "out").code == 0
    assert manifest_of(the_run(tmp_path / "out"))["git"]["diff_sha256"] is None
    shutil.rmtree(checkout / ".git")
    refused(
        trained_from(checkout, tmp_path / "other", "store.diff=true"),
        "store.diff must be false where nocap runs from no git checkout",
    )
    assert not (tmp_path / "other" / "runs").exists()
