"""What was changed behind nocap's back is made anew or refused, and what may hold a secret is not
kept: through the commands."""

import hashlib
import json
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nocap.store import checkout as git_checkout
from tests.conftest import ATLAS_IDEAS, REPO, SMALL, Door, Finished, Undisturbed
from tests.in_process import planned, start

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
    return shutil.copytree(
        undisturbed.run_dir, tmp_path / "outputs" / "runs" / undisturbed.run_dir.name
    )


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def refused(done: Finished, *words: str) -> None:
    assert done.code == 2, done
    assert done.err.count("\n") == 1, done
    assert all(word in done.err for word in words), done.err


# --- tokens ---------------------------------------------------------------------------------------


TOKENIZER = """
from dataclasses import dataclass
from nocap.options.tokenizer import Tokenizer

class Shifted:
    name, n_vocab, eot_token, special_tokens_set = 'mine', 257, 256, {'<|endoftext|>'}

    def encode_ordinary(self, text):
        return [(byte + 1) % 256 for byte in text.encode()]

    def encode_single_token(self, text):
        return 256

    def decode_single_token_bytes(self, token):
        return b'x'

@dataclass(kw_only=True)
class Mine(Tokenizer):
    kind: str = 'mine'

    @property
    def vocab_size(self):
        return 257

    def load(self, *, cache_dir):
        return Shifted()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("data/jsonl.py", "encode_ordinary(text)]", "encode_ordinary(text.upper())]", ()),
        ("tokenizer/mine.py", "byte + 1", "byte + 2", ("tokenizer=mine",)),
    ],
)
def test_an_edited_data_source_or_tokenizer_makes_its_tokens_anew(
    file: str, old: str, new: str, words: tuple[str, ...], here: Door, tmp_path: Path
) -> None:
    lines = (f'{{"text": "the number {i} of many Lines"}}\n' for i in range(400))
    (tmp_path / "lines.jsonl").write_text("".join(lines))
    shutil.copytree(JSONL, tmp_path / "own")
    (tmp_path / "own" / "tokenizer").mkdir()
    (tmp_path / "own" / "tokenizer" / "mine.yaml").write_text("kind: mine\n")
    (tmp_path / "own" / "tokenizer" / "mine.py").write_text(TOKENIZER)
    asked = (
        *OF_LINES,
        *words,
        "--config-dir",
        "own",
        "data.path=lines.jsonl",
        f"cache_dir={tmp_path / 'cache'}",
    )
    prints = []
    # as it is, edited, as it was, with a comment
    cases = ((), (old, new), (new, old), ("from dataclasses", "# says no more\nfrom dataclasses"))
    for edits in cases:
        if edits:
            edit(tmp_path / "own" / file, *edits)
        done = here("prepare", *asked, module="nocap.data.__main__")
        assert done.code == 0, done.err
        prints.append(re.findall("fingerprint (\\w+)", done.out))
    assert prints[0] == prints[2] == prints[3] != prints[1]
    paths = (tmp_path / "cache" / "corpora").glob("[!.]*")
    assert len(list(paths)) == 2


# --- records --------------------------------------------------------------------------------------


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
        "generate": lambda: here(
            f"run={run_dir}", "device=cpu", "max_tokens=2", module="nocap.generate"
        ),
        "export": lambda: here(
            str(run_dir), str(folder / "model.safetensors"), module="nocap.export"
        ),
        "teacher": lambda: here(
            *SMALL, *student, "trainer.steps=1", f"output_dir={folder / 'students'}"
        ),
    }


@pytest.mark.slow
def test_a_changed_config_generates_nothing_and_deletes_nothing(here: Door, record: Path) -> None:
    """gelu → relu2 in config.yaml gave another text from the same weights; an edited loss chose
    what was deleted."""
    edit(record / "config.yaml", "activation: gelu", "activation: relu2")
    for call in doors(here, record).values():
        refused(call(), "config.yaml does not match its digest", record.name)
    assert not (record.parents[2] / "model.safetensors").exists()
    rows = len(json.loads((record / "summary.json").read_text()))
    edit(record / "summary.json", '"val_loss": ', '"val_loss": 1')  # 4.1 → 14.1
    cases = (("rm", "val_loss>10"), ("rm", "val_loss>10", "--yes"), ("rm", record.name, "--yes"))
    for words in cases:
        done = here(*words, module="nocap.runs.__main__")
        assert f"nocap: {record.name}: " in done.err, done
        assert "0 runs" in done.out
        assert done.code == (words[0] == "rm" and "--yes" in words)
    assert (record / "checkpoints" / "step-00000030").is_dir()
    text = (record / "summary.json").read_text()
    assert len(json.loads(text)) == rows


@pytest.mark.slow
def test_a_run_that_was_cut_short_needs_the_config_of_its_manifest(
    here: Door, record: Path
) -> None:
    unsealed(record)
    asked = doors(here, record)["generate"]
    assert asked().code == 0
    edit(record / "config.yaml", "activation: gelu", "activation: relu2")
    refused(asked(), "config.yaml differs from the config in manifest.json")
    edit(record / "manifest.json", '"activation": "gelu"', '"activation": "relu2"')
    refused(asked(), "manifest.json has identity")


# --- uncommitted changes --------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository that nocap believes to lie in, with a line of code that is not committed."""
    folder = tmp_path / "checkout"
    (folder / "nocap").mkdir(parents=True)
    (folder / "nocap" / "a.py").write_text("a = 1\n")
    for words in ("init -q", "add -A", "-c user.email=a@b -c user.name=a commit -qm a"):
        command = ["git", "-C", str(folder), *words.split()]
        subprocess.run(command, check=True)
    (folder / "nocap" / "a.py").write_text("a = 'correct horse battery staple'\n")
    monkeypatch.setattr(git_checkout, "CHECKOUT", folder)
    return folder


def test_uncommitted_changes_are_a_digest_unless_they_are_asked_for(
    checkout: Path, tmp_path: Path
) -> None:
    plans = planned(tmp_path / "out"), planned(tmp_path / "asked", "store.diff=true")
    for plan in plans:
        start(plan)
    run_dir, kept = (plan.run_dir for plan in plans)
    command = ["git", "-C", str(checkout), "diff", "HEAD", "--", "nocap"]
    diff = subprocess.run(command, capture_output=True, check=True).stdout
    # the same run
    assert kept.name == run_dir.name
    assert (kept / "uncommitted.diff").read_bytes() == diff
    assert stat.S_IMODE((kept / "uncommitted.diff").stat().st_mode) == 0o600
    digests = [manifest_of(folder)["git"]["diff_sha256"] for folder in (run_dir, kept)]
    assert digests == [hashlib.sha256(diff).hexdigest()] * 2
    files = []
    for folder in (run_dir, kept):
        for path in folder.rglob("*"):
            if path.is_file():
                files.append(path)
    names = [path.name for path in files if b"correct horse" in path.read_bytes()]
    assert names == ["uncommitted.diff"]
    content = yaml.safe_load((kept / "config.yaml").read_text())
    assert content["store"] == {"diff": True}


def test_without_changes_there_is_no_digest_and_without_a_checkout_no_diff(
    checkout: Path, here: Door, tmp_path: Path
) -> None:
    (checkout / "nocap" / "a.py").write_text("a = 1\n")
    plan = planned(tmp_path / "out")
    start(plan)
    git = manifest_of(plan.run_dir)["git"]
    assert git["diff_sha256"] is None
    shutil.rmtree(checkout / ".git")
    done = here(*SMALL, "output_dir=other", "store.diff=true")
    refused(done, "store.diff must be false if nocap does not run from a git checkout")
    assert not (tmp_path / "other" / "runs").exists()
