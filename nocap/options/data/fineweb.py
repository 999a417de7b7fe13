"""FineWeb-10B, already in GPT-2 tokens, from the Hugging Face hub: the challenge's data, 100M tokens a shard.

The shards stay in the hub client's own cache (`$HF_HOME`), where other programs find them too. Their sizes and hashes, as the hub gave
them, are in `cache_dir/fineweb/<repo>--<revision>.json`, with the commit that the revision was when it was first asked: a run started
later, or without a network, reads the same bytes. To follow a branch that moved, remove that file or name the commit in `data.revision`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap.config.keys import is_fault, key, require
from nocap.options.data import Data

if TYPE_CHECKING:
    from nocap.data.shards import ShardSet
    from nocap.options.tokenizer import Tokenizer

FORMAT = 1
HEAD_TIMEOUT_S = 10.0


@dataclass(kw_only=True, slots=True)
class Fineweb(Data):
    kind: str = "fineweb"
    repo: str  # on the Hugging Face hub
    revision: str  # branch, tag or commit
    train_shards: int = key(ge=1, le=103)  # files of 100M tokens

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        """Download what is missing, file by file, so that a failure keeps what came before it."""
        # Checked before gigabytes are fetched.
        require(tokenizer.name == "gpt2", "tokenizer.vocabulary", "be gpt2 for data=fineweb, whose tokens are GPT-2's", tokenizer.name)
        from nocap.data.shards import ShardSet, write_json

        record = cache_dir / "fineweb" / (re.sub(r"[^\w.-]", "--", f"{self.repo}@{self.revision}") + ".json")
        known = self._read_record(record)
        val, *train = ["fineweb_val_000000.bin", *(f"fineweb_train_{index:06d}.bin" for index in range(1, self.train_shards + 1))]
        paths: dict[str, Path] = {}
        for name in (val, *train):
            with self._hub_errors_refused(name):
                if name not in known["files"]:
                    known["commit"], known["files"][name] = self._ask_hub(name, known["commit"])
                    write_json(record, known)
                paths[name] = self._fetch(name, known["commit"])
            size, expected = paths[name].stat().st_size, known["files"][name]["size"]
            if size != expected:
                raise ValueError(f"{paths[name]}: its size must be the hub's {expected} bytes, got {size}; {_remedy(paths[name])}")
        return ShardSet(
            train=tuple(paths[name] for name in train),
            val=(paths[val],),
            source={"kind": "fineweb", "text": True, "repo": self.repo, "revision": self.revision, "commit": known["commit"]},
            expected={path: known["files"][name]["sha256"] for name, path in paths.items()},
            remedy={path: _remedy(path) for path in paths.values()},
        )

    def _read_record(self, record: Path) -> dict[str, Any]:
        empty: dict[str, Any] = {"format": FORMAT, "repo": self.repo, "revision": self.revision, "commit": None, "files": {}}
        if not record.exists():
            return empty
        try:
            known: dict[str, Any] = json.loads(record.read_bytes())
            ok = all(known[key] == empty[key] for key in ("format", "repo", "revision"))
            ok = ok and isinstance(known["commit"], str) and all(row["size"] and row["sha256"] for row in known["files"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if is_fault(error):
                raise
            ok = False
        if not ok:
            raise ValueError(f"{record}: must be the record of {self.repo} at {self.revision}; remove it to ask again")
        return known

    def _ask_hub(self, name: str, commit: str | None) -> tuple[str, dict[str, Any]]:
        """The commit, and a file's size and sha256, which is the etag of a large file."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(self.repo, name, repo_type="dataset", revision=commit or self.revision)
        found = get_hf_file_metadata(url, timeout=HEAD_TIMEOUT_S)
        if not (found.commit_hash and found.size and found.etag and re.fullmatch("[0-9a-f]{64}", found.etag)):
            raise ValueError(f"data.repo must be on a hub that gives a commit, a size and a sha256 for {name}, got etag {found.etag!r}")
        return found.commit_hash, {"size": found.size, "sha256": found.etag}

    def _fetch(self, name: str, commit: str) -> Path:
        """The file in the hub client's cache, which resumes a broken transfer, and asks no network for a file of a commit that is there."""
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(self.repo, name, repo_type="dataset", revision=commit))

    @contextmanager
    def _hub_errors_refused(self, name: str) -> Iterator[None]:
        from huggingface_hub import errors

        where, shards = f"{self.repo} at {self.revision}", self.train_shards
        messages: dict[type[Exception], str] = {
            errors.RepositoryNotFoundError: f"data.repo must be a dataset that the hub shows you, got {self.repo!r}",
            errors.RevisionNotFoundError: f"data.revision must be a branch, a tag or a commit of {self.repo}, got {self.revision!r}",
            errors.RemoteEntryNotFoundError: f"data.train_shards must not ask for more than {where} has: no {name}, got {shards}",
            errors.HFValidationError: f"data.repo must be a name on the hub, got {self.repo!r}",
        }
        http_error: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]  # of whichever HTTP library this hub client uses
        known: tuple[type[Exception], ...] = (*messages, http_error, OSError, RuntimeError)  # RuntimeError: the hub's transfer library
        try:
            yield
        except known as error:
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            other = f"data=fineweb: {name} of {where} cannot be fetched from the hub: {reason}"
            raise ValueError(next((text for kind, text in messages.items() if isinstance(error, kind)), other)) from error


def _remedy(path: Path) -> str:
    # The hub's cache shows files as links; with the link alone removed, the client would link the same bytes again.
    return f"remove {path.resolve()} and run again"
