"""FineWeb-10B, already in GPT-2 tokens, from the Hugging Face hub: the challenge's data, 100M
tokens a shard.

The shards stay in the hub client's own cache (`$HF_HOME`), where other programs find them too. That
cache also knows which commit the revision was when the hub was last asked for it, and names each
file by its sha256: a run started later, or without a network, reads the same bytes, unless another
program has asked anew for a branch that moved. To follow such a branch, or never to, name the
commit in `data.revision`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nocap.config.keys import key, require
from nocap.options.data import Data

if TYPE_CHECKING:
    from nocap.data.shards import ShardSet
    from nocap.options.tokenizer import Tokenizer

HEAD_TIMEOUT_S = 10.0


@dataclass(kw_only=True, slots=True)
class Fineweb(Data):
    has_documents: ClassVar[bool] = True
    kind: str = "fineweb"
    repo: str  # repository on the Hugging Face hub
    revision: str  # branch, tag or commit of the repository
    train_shards: int = key(ge=1, le=103)  # number of training files, of 100M tokens each

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        """Download what is missing, file by file, so that a failure keeps what came before it."""
        # Checked before gigabytes are fetched.
        require(
            tokenizer.name == "gpt2",
            "tokenizer.vocabulary",
            "be gpt2 for data=fineweb, whose tokens are GPT-2's",
            tokenizer.name,
        )
        from nocap.data.shards import ShardSet

        names = [
            "fineweb_val_000000.bin",
            *(f"fineweb_train_{index:06d}.bin" for index in range(1, self.train_shards + 1)),
        ]
        expected = dict[Path, str]()
        commit = self.revision
        for name in names:
            path = self._fetch(name, commit)
            expected[path] = _sha256(path)
            commit = path.parent.name  # all files of one commit
        val, *train = expected
        return ShardSet(
            train=tuple(train),
            val=(val,),
            source={
                "kind": "fineweb",
                "text": True,
                "repo": self.repo,
                "revision": self.revision,
                "commit": commit,
            },
            expected=expected,
            # The hub's cache shows files as links; with the link alone removed, the client would
            # link the same bytes again.
            remedy={path: f"remove {path.resolve()} and run again" for path in expected},
            published=True,
        )

    def _fetch(self, name: str, revision: str) -> Path:
        """Return the file in the hub client's cache, else from the hub; a broken transfer is
        resumed.

        Errors:
            ValueError: the hub has it not, or cannot be reached.
        """
        from huggingface_hub import errors

        # of whichever HTTP library this hub client uses
        http_error: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
        try:
            return self._from_cache_or_hub(name, revision)
        # RuntimeError: the hub's transfer library
        except (errors.HFValidationError, http_error, OSError, RuntimeError) as error:
            raise ValueError(self._refusal(error, name)) from error

    def _from_cache_or_hub(self, name: str, revision: str) -> Path:
        """Return the file as `_fetch` does, with the hub client's own errors."""
        from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

        def download(*, from_cache: bool) -> Path:
            path = hf_hub_download(
                self.repo,
                name,
                repo_type="dataset",
                revision=revision,
                local_files_only=from_cache,
            )
            return Path(path)

        try:
            # first the cache alone: else the hub would be asked each time what the branch is now
            return download(from_cache=True)
        except errors.LocalEntryNotFoundError:
            # One question, whose answer has the reason: the download asks for half a minute,
            # and says of a network that is not there only that there is none.
            url = hf_hub_url(self.repo, name, repo_type="dataset", revision=revision)
            get_hf_file_metadata(url, timeout=HEAD_TIMEOUT_S)
            return download(from_cache=False)

    def _refusal(self, error: Exception, name: str) -> str:
        """Say why the hub has no file of this name for us: which key is wrong, or what failed."""
        from huggingface_hub import errors

        where = f"{self.repo} at {self.revision}"
        if isinstance(error, errors.RepositoryNotFoundError):
            return f"data.repo must be a dataset that the hub shows you, got {self.repo!r}"
        if isinstance(error, errors.RevisionNotFoundError):
            rule = f"be a branch, a tag or a commit of {self.repo}"
            return f"data.revision must {rule}, got {self.revision!r}"
        if isinstance(error, errors.RemoteEntryNotFoundError):
            rule = f"be smaller, because {where} has no {name}"
            return f"data.train_shards must {rule}, got {self.train_shards}"
        if isinstance(error, errors.HFValidationError):
            return f"data.repo must be a name on the hub, got {self.repo!r}"
        first_line = next(iter(str(error).splitlines()), "")
        reason = first_line or type(error).__name__
        return f"data=fineweb: {name} of {where} cannot be fetched from the hub: {reason}"


def _sha256(path: Path) -> str:
    """Return the hash by which the hub's cache names the file that this link leads to."""
    name = "none"
    if path.is_symlink():
        name = os.path.basename(os.readlink(path))
    is_sha256 = re.fullmatch("[0-9a-f]{64}", name) is not None
    rule = (
        "be on a hub that gives each file's sha256, and be cached on a disk with symbolic links "
        "(or use data=shards)"
    )
    require(is_sha256, "data.repo", rule, f"{name} for {path.name}")
    return name
