"""FineWeb from a hub on this machine, through the door: downloaded, verified, kept, and refused in one line
when something is wrong."""

import hashlib
import http.server
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from nocap.data.shards import write_shard
from tests.conftest import Finished, called

REPO = "someone/fineweb"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """The hub's resolve URLs. `harm` maps a file's name to what goes wrong with it: once for `cut`, always
    for the others."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Resolve)
        self.files, self.harm = files, {}
        self.seen: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Resolve(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body: bool):
        match = re.fullmatch(r"/datasets/(.+)/resolve/([^/]+)/([^/]+)", self.path)
        repo, revision, name = match.groups() if match else ("", "", "")
        if match:  # the client asks for other things too
            self.server.seen.append(f"{self.command} {name} {self.headers.get('Range', '')}".strip())
        if repo != REPO:
            return self.refuse("RepoNotFound")
        if revision not in ("main", COMMIT):
            return self.refuse("RevisionNotFound")
        if name not in self.server.files:
            return self.refuse("EntryNotFound")
        if self.server.harm.get(name) == "kept back":
            return self.refuse("NotAllowed", 409)  # the client tries others again
        return self.send(name, body)

    def refuse(self, code: str, status: int = 404):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, name: str, body: bool):
        whole, harm = self.server.files[name], self.server.harm.get(name)
        start = (
            int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if "Range" in self.headers else 0
        )
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        etag = "b" * 40 if harm == "no sha256" else hashlib.sha256(whole).hexdigest()
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Linked-Etag", f'"{etag}"')
        self.send_header("X-Linked-Size", str(len(whole)))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        self.send_header("Content-Length", str(len(whole) - start))
        self.end_headers()
        if not body:
            return
        if harm == "corrupt":
            whole = whole[:-1] + bytes([whole[-1] ^ 1])
        if harm == "cut":
            del self.server.harm[name]
            self.wfile.write(whole[start : len(whole) // 2])
            self.close_connection = True
            return
        self.wfile.write(whole[start:])


@pytest.fixture
def hub(tmp_path):
    files = {}
    for seed, name in enumerate(
        ("fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin")
    ):
        write_shard(tmp_path / "served" / name, (np.arange(3000) * (seed + 7)) % 50257)
        files[name] = (tmp_path / "served" / name).read_bytes()
    with Hub(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def door(tmp_path, hub, monkeypatch):
    """A command about a few shards of this hub. The hub's client reads its environment when it is imported:
    each call imports it anew."""
    for name in [name for name in os.environ if "proxy" in name.lower() or name.startswith("HF_")]:
        monkeypatch.delenv(name)
    ours = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }

    def run(verb: str = "prepare", *overrides: str, shards: int = 2, **more: str) -> Finished:
        forget()
        words = [
            verb,
            "data=fineweb",
            "tokenizer=gpt2",
            f"data.repo={REPO}",
            f"data.train_shards={shards}",
            *overrides,
        ]
        return called(
            *words,
            cwd=tmp_path,
            module="nocap.data.__main__",
            env=ours | {"NOCAP_CACHE": str(tmp_path / "cache")} | more,
        )

    yield run
    forget()  # of this hub


def forget() -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[module]


def refused(done: Finished) -> str:
    """The refusal: the last line, alone but for what the hub's own client warns of."""
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("nocap: ")]
    assert done.err.rstrip().endswith(line)
    return line


def test_downloaded_then_read_without_a_network(hub, door):
    first = door()
    assert first.code == 0, first.err
    assert "6,000 train and 3,000 val tokens" in first.out
    assert COMMIT in first.out
    assert [line for line in hub.seen if line.startswith("GET")] == [f"GET {name}" for name in hub.files]
    asked = len(hub.seen)
    again = door(HF_ENDPOINT="http://127.0.0.1:9")
    assert (again.code, again.out) == (0, first.out), again.err
    assert door("verify").code == 0
    assert len(hub.seen) == asked


def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path, hub, door):
    name = "fineweb_train_000001.bin"
    # the hub's client keeps what came in chunks of 10 MiB
    write_shard(tmp_path / name, np.arange(12_000_000) % 50257)
    hub.files[name] = (tmp_path / name).read_bytes()
    hub.harm[name] = "cut"
    done = door(shards=1)
    assert done.code == 0, done.err
    assert "12,000,000 train" in done.out
    assert [line for line in hub.seen if line.startswith(f"GET {name}")] == [
        f"GET {name}",
        f"GET {name} bytes={10 * 2**20}-",
    ]


def test_what_came_before_a_failure_is_kept(hub, door):
    third = hub.files.pop("fineweb_train_000002.bin")
    assert "fineweb_train_000002.bin" in refused(door())
    hub.files["fineweb_train_000002.bin"] = third
    assert door().code == 0
    assert hub.seen.count("GET fineweb_train_000001.bin") == 1


def test_bytes_that_are_not_the_hub_s_are_refused_until_removed(hub, door):
    hub.harm["fineweb_train_000002.bin"] = "corrupt"
    line = refused(door())
    digest = hashlib.sha256(hub.files["fineweb_train_000002.bin"]).hexdigest()
    assert f"its sha256 must be {digest}" in line
    del hub.harm["fineweb_train_000002.bin"]
    assert refused(door()) == line
    removed = re.search(r"remove (\S+) and run again", line)
    assert removed
    Path(removed.group(1)).unlink()
    assert door().code == 0


def test_a_file_cut_in_the_cache_is_refused(tmp_path, hub, door):
    assert door().code == 0
    (path,) = (tmp_path / "hf").rglob("fineweb_train_000001.bin")
    os.truncate(path.resolve(), 2000)
    assert re.search(
        "fineweb_train_000001.bin: truncated: a shard of 3000 tokens must have 7024 bytes, got 2000; remove",
        refused(door()),
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["data.train_shards=3"],
            "data.train_shards must not ask for more than .* has: no fineweb_train_000003.bin, got 3",
        ),
        (["data.repo=no/body"], "data.repo must be a dataset that the hub shows you, got 'no/body'"),
        (["data.repo=a/b/c"], "data.repo must be a name on the hub, got 'a/b/c'"),
        (
            ["data.revision=old"],
            "data.revision must be a branch, a tag or a commit of someone/fineweb, got 'old'",
        ),
        (["tokenizer=bytes"], "tokenizer.vocabulary must be gpt2 for data=fineweb"),
    ],
)
def test_what_the_hub_has_not_is_refused(door, overrides, words):
    assert re.search(words, refused(door("prepare", *overrides)))


def test_no_hub_is_one_line(door):
    done = door(HF_ENDPOINT="http://127.0.0.1:9")
    line = "fineweb_val_000000.bin of someone/fineweb at main cannot be fetched from the hub: [Errno 111]"
    assert line in refused(done)
    assert len(done.err.splitlines()) == 1  # no retries, of which the hub's client tells


def test_a_hub_that_does_not_give_it_is_one_line(hub, door):
    hub.harm["fineweb_val_000000.bin"] = "kept back"
    assert "fineweb_val_000000.bin of someone/fineweb at main cannot be fetched" in refused(door())


def test_a_hub_without_hashes_is_refused_at_the_first_file(hub, door):
    hub.harm["fineweb_val_000000.bin"] = "no sha256"
    assert "data.repo must be on a hub that gives each file's sha256" in refused(door())
    assert {line.split()[1] for line in hub.seen} == {"fineweb_val_000000.bin"}
