"""FineWeb-10B in GPT-2 tokens from the Hugging Face hub: `fineweb_train_%06d.bin` from 1, and `fineweb_val_000000.bin`.

The shards lie in the hub client's own cache (`$HF_HOME`), where other programs find them too. What the hub said of each (size, sha256)
is kept in `cache_dir/fineweb/<repo>/<revision>.json`, with the commit that the revision was when it was first asked: a run started
later, or without a network, reads the same bytes. To follow a branch that moved, remove that file or name the commit in `data.revision`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nocap.data.shards import ShardSet, write_json
from nocap.data.tokens import os_errors_refused
from nocap.options.data.fineweb import Fineweb

FORMAT = 1
HEAD_TIMEOUT_S = 10.0
VAL_NAME = "fineweb_val_000000.bin"


def train_name(index: int) -> str:
    """A training shard's name; the first is 1."""
    return f"fineweb_train_{index:06d}.bin"


def record_path(data: Fineweb, *, cache_dir: Path) -> Path:
    slug = re.sub(r"[^\w.-]", "--", f"{data.repo}@{data.revision}")
    return cache_dir / "fineweb" / f"{slug}.json"


def fineweb(data: Fineweb, *, cache_dir: Path) -> ShardSet:
    """Download what is missing. `ValueError` when the hub cannot be reached, lacks a shard, or sent one of another size."""
    record = record_path(data, cache_dir=cache_dir)
    facts = _recall(record, data)
    names = [VAL_NAME, *(train_name(index) for index in range(1, data.train_shards + 1))]
    paths = {}
    for name in names:
        with _hub_errors_refused(data, name):
            if name not in facts["files"]:
                facts["commit"], facts["files"][name] = _ask(data, name, facts["commit"])
                with os_errors_refused(str(record)):
                    write_json(record, facts)
            paths[name] = _fetch(data, name, facts["commit"])
        size, expected = paths[name].stat().st_size, facts["files"][name]["size"]
        if size != expected:
            raise ValueError(f"{paths[name]}: its size must be the hub's {expected} bytes, got {size}; {_remedy(paths[name])}")
    return ShardSet(
        train=tuple(paths[name] for name in names[1:]),
        val=(paths[VAL_NAME],),
        source={"kind": "fineweb", "text": True, "repo": data.repo, "revision": data.revision, "commit": facts["commit"]},
        expected={path: facts["files"][name]["sha256"] for name, path in paths.items()},
        remedy={path: _remedy(path) for path in paths.values()},
    )


def _recall(record: Path, data: Fineweb) -> dict[str, Any]:
    fresh: dict[str, Any] = {"format": FORMAT, "repo": data.repo, "revision": data.revision, "commit": None, "files": {}}
    if not record.exists():
        return fresh
    try:
        facts: dict[str, Any] = json.loads(record.read_bytes())
        ok = all(facts[key] == fresh[key] for key in ("format", "repo", "revision"))
        ok = ok and isinstance(facts["commit"], str) and all(row["size"] and row["sha256"] for row in facts["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        ok = False
    if not ok:
        raise ValueError(f"{record}: must be what the hub said of {data.repo} at {data.revision}; remove it to ask again")
    return facts


def _ask(data: Fineweb, name: str, commit: str | None) -> tuple[str, dict[str, Any]]:
    """The commit, and what the hub says a file must be. The etag of a large file is its sha256."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(data.repo, name, repo_type="dataset", revision=commit or data.revision)
    said = get_hf_file_metadata(url, timeout=HEAD_TIMEOUT_S)
    if not (said.commit_hash and said.size and said.etag and re.fullmatch("[0-9a-f]{64}", said.etag)):
        raise ValueError(f"data.repo must be on a hub that gives a commit, a size and a sha256 for {name}, got etag {said.etag!r}")
    return said.commit_hash, {"size": said.size, "sha256": said.etag}


def _fetch(data: Fineweb, name: str, commit: str) -> Path:
    """The file in the hub's cache, downloaded if it is not there; a broken transfer goes on where it stopped. At a commit, no network is
    asked for a file that is there."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(data.repo, name, repo_type="dataset", revision=commit))


@contextmanager
def _hub_errors_refused(data: Fineweb, name: str) -> Iterator[None]:
    from huggingface_hub import errors

    http_error: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]  # of whichever HTTP library this hub client uses
    where = f"{data.repo} at {data.revision}"
    try:
        yield
    except errors.RepositoryNotFoundError as error:
        raise ValueError(f"data.repo must be a dataset that the hub shows you, got {data.repo!r}") from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"data.revision must be a branch, a tag or a commit of {data.repo}, got {data.revision!r}") from error
    except errors.RemoteEntryNotFoundError as error:
        raise ValueError(f"data.train_shards must not ask for more than {where} has: no {name}, got {data.train_shards}") from error
    except errors.HFValidationError as error:
        raise ValueError(f"data.repo must be a name on the hub, got {data.repo!r}") from error
    except (http_error, OSError, RuntimeError) as error:  # RuntimeError: the hub's own transfer library
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ValueError(f"data=fineweb: {name} of {where} cannot be fetched from the hub: {said}") from error


def _remedy(path: Path) -> str:
    # The hub's cache shows files as links; with the link alone removed, the client would link the same bytes again.
    return f"remove {path.resolve()} and run again"
