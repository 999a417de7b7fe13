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
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Resolve(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        pass

    def do_GET(self):
        match = re.fullmatch(r"/datasets/(.+)/resolve/([^/]+)/([^/]+)", self.path)
        repo, revision, name = match.groups() if match else ("", "", "")
        if match:  # the client asks for other things too
            self.server.asked.append(f"{self.command} {name} {self.headers.get('Range', '')}".strip())
        missing = {
            "RepoNotFound": repo != REPO,
            "RevisionNotFound": revision not in ("main", COMMIT),
            "EntryNotFound": name not in self.server.files,
            "NotAllowed": self.server.harm.get(name) == "kept back",
        }
        for code in (code for code, refused in missing.items() if refused):
            # the client tries others than 409 again
            return self.send({"X-Error-Code": code}, 409 if code == "NotAllowed" else 404)
        return self.send_file(name)

    def do_HEAD(self):
        self.do_GET()

    def send(self, headers: dict[str, str], status: int, body: bytes = b"", size: int = 0):
        self.send_response(status)
        for name, value in ({"X-Repo-Commit": COMMIT, "Content-Length": str(size)} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_file(self, name: str):
        whole, harm = self.server.files[name], self.server.harm.get(name)
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        etag = f'"{"b" * 40 if harm == "no sha256" else hashlib.sha256(whole).hexdigest()}"'
        headers = {
            "ETag": etag,
            "X-Linked-Etag": etag,
            "X-Linked-Size": str(len(whole)),
            "Accept-Ranges": "bytes",
        }
        headers |= {"Content-Range": f"bytes {start}-{len(whole) - 1}/{len(whole)}"} if start else {}
        body = whole[start:-1] + bytes([whole[-1] ^ (harm == "corrupt")])
        if harm == "cut" and self.command == "GET":
            del self.server.harm[name]
            body, self.close_connection = body[: len(whole) // 2], True
        self.send(headers, 206 if start else 200, body, len(whole) - start)


@pytest.fixture
def hub():
    names = ("fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin")
    files = {name: shard((np.arange(3000) * (seed + 7)) % 50257) for seed, name in enumerate(names)}
    with Hub(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def shard(tokens: np.ndarray) -> bytes:
    return np.array([20240520, 1, len(tokens), *[0] * 253], "<i4").tobytes() + tokens.astype("<u2").tobytes()


@pytest.fixture
def door(tmp_path, hub, monkeypatch):
    """A command about a few shards of this hub. The hub's client reads its environment when it is imported:
    each call imports it anew."""
    for name in [name for name in os.environ if "proxy" in name.lower() or name.startswith("HF_")]:
        monkeypatch.delenv(name)
    ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "NOCAP_CACHE": str(tmp_path / "cache")}
    ours |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

    def run(verb: str = "prepare", *overrides: str, shards: int = 2, **more: str) -> Finished:
        forget()
        words = "data=fineweb", "tokenizer=gpt2", f"data.repo={REPO}", f"data.train_shards={shards}"
        return called(verb, *words, *overrides, cwd=tmp_path, module="nocap.data.__main__", env=ours | more)

    yield run
    forget()  # of this hub


def forget() -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[module]


def refused(done: Finished) -> str:
    """The refusal: the last line, alone but for what the hub's own client warns of."""
    (line,) = [line for line in done.err.splitlines() if line.startswith("nocap: ")]
    assert (done.code, done.err.rstrip().endswith(line), "Traceback" in done.err) == (2, True, False), (
        done.err
    )
    return line


def test_downloaded_then_read_without_a_network(hub, door):
    first = door()
    assert (first.code, COMMIT in first.out) == (0, True), first.err
    assert "6,000 train and 3,000 val tokens" in first.out
    assert [line for line in hub.asked if line.startswith("GET")] == [f"GET {name}" for name in hub.files]
    count = len(hub.asked)
    again = door(HF_ENDPOINT="http://127.0.0.1:9")
    assert (again.code, again.out) == (0, first.out), again.err
    assert (door("verify").code, len(hub.asked)) == (0, count)


def test_a_broken_transfer_goes_on_where_it_stopped(hub, door):
    name = "fineweb_train_000001.bin"
    # the hub's client keeps what came in chunks of 10 MiB
    hub.files[name], hub.harm[name] = shard(np.arange(12_000_000) % 50257), "cut"
    done = door(shards=1)
    assert (done.code, "12,000,000 train" in done.out) == (0, True), done.err
    gets = [line for line in hub.asked if line.startswith(f"GET {name}")]
    assert gets == [f"GET {name}", f"GET {name} bytes={10 * 2**20}-"]


def test_what_came_before_a_failure_is_kept(hub, door):
    third = hub.files.pop("fineweb_train_000002.bin")
    assert "fineweb_train_000002.bin" in refused(door())
    hub.files["fineweb_train_000002.bin"] = third
    assert (door().code, hub.asked.count("GET fineweb_train_000001.bin")) == (0, 1)


def test_bytes_that_are_not_the_hub_s_are_refused_until_removed(tmp_path, hub, door):
    hub.harm["fineweb_train_000002.bin"] = "corrupt"
    line = refused(door())
    assert f"its sha256 must be {hashlib.sha256(hub.files['fineweb_train_000002.bin']).hexdigest()}" in line
    del hub.harm["fineweb_train_000002.bin"]
    assert refused(door()) == line
    Path(re.search(r"remove (\S+) and run again", line)[1]).unlink()
    assert door().code == 0
    (path,) = (tmp_path / "hf").rglob("fineweb_train_000001.bin")
    os.truncate(path.resolve(), 2000)
    assert (
        "fineweb_train_000001.bin: truncated: a shard of 3000 tokens must have 7024 bytes, got 2000"
        in refused(door())
    )


VAL = "fineweb_val_000000.bin"


@pytest.mark.parametrize(
    ("overrides", "more", "harm", "words"),
    [
        (
            ["data.train_shards=3"],
            *({}, ""),
            "data.train_shards must not ask for more than .* has: no fineweb_train_000003.bin, got 3",
        ),
        (["data.repo=no/body"], {}, "", "data.repo must be a dataset that the hub shows you, got 'no/body'"),
        (["data.repo=a/b/c"], {}, "", "data.repo must be a name on the hub, got 'a/b/c'"),
        (
            ["data.revision=old"],
            *({}, ""),
            "data.revision must be a branch, a tag or a commit of someone/fineweb, got 'old'",
        ),
        (["tokenizer=bytes"], {}, "", "tokenizer.vocabulary must be gpt2 for data=fineweb"),
        (
            [],
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            "",
            rf"{VAL} of someone/fineweb at main cannot be fetched from the hub: \[Errno 111\]",
        ),
        ([], {}, "kept back", f"{VAL} of someone/fineweb at main cannot be fetched"),
        ([], {}, "no sha256", "data.repo must be on a hub that gives each file's sha256"),
    ],
)
def test_what_the_hub_has_not_is_refused(hub, door, overrides, more, harm, words):
    hub.harm[VAL] = harm
    done = door("prepare", *overrides, **more)
    assert re.search(words, refused(done))
    assert len(done.err.splitlines()) == 1 or not more  # no retries, of which the hub's client tells
    assert not harm or {line.split()[1] for line in hub.asked} == {VAL}  # at the first file
