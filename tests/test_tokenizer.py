"""Both vocabularies, and what a user is told when GPT-2's files are neither here nor fetchable."""

import threading
import time
from pathlib import Path

import pytest
import tiktoken.load
import tiktoken.registry

from nocap.data import tokenizer
from nocap.options.tokenizer.vocabulary import BuiltIn, Vocabulary

SHARED = Path(__file__).resolve().parents[2] / "shared" / "tiktoken"
needs_gpt2 = pytest.mark.skipif(not SHARED.is_dir(), reason="needs GPT-2's vocabulary in ../shared/tiktoken")
TEXTS = ["", "Hello world", "naïve café — ∑ 🙂\r\n\ttab", "x" * 1000, "\n" * 130]


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """No vocabulary on disk, none in tiktoken's memory, and no server."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "gpt2", raising=False)

    def unreachable(_):
        raise ConnectionError("no network")

    monkeypatch.setattr(tiktoken.load, "read_file", unreachable)
    return tmp_path


def test_bytes_are_their_own_ids(tmp_path):
    encoding = BuiltIn(vocabulary=Vocabulary.bytes).load(cache_dir=tmp_path)
    assert (encoding.n_vocab, encoding.eot_token, [*tmp_path.iterdir()]) == (257, 256, [])
    for text in TEXTS:
        assert encoding.encode_ordinary(text) == list(text.encode())
        assert encoding.decode(encoding.encode_ordinary(text)) == text


@needs_gpt2
def test_gpt2_is_gpt2(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(SHARED))
    encoding = BuiltIn(vocabulary=Vocabulary.gpt2).load(cache_dir=tmp_path)
    assert (encoding.n_vocab, encoding.eot_token) == (50257, 50256)
    assert encoding.encode_ordinary("Hello world") == [15496, 995]


@pytest.mark.parametrize("vocabulary", [Vocabulary.bytes, pytest.param(Vocabulary.gpt2, marks=needs_gpt2)])
def test_token_bytes_add_up_to_the_text(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(SHARED))
    encoding = BuiltIn(vocabulary=vocabulary).load(cache_dir=tmp_path)
    lengths = tokenizer.token_bytes(encoding)
    assert (lengths.dtype, lengths.shape) == ("int32", (encoding.n_vocab,))
    assert [*(lengths == 0).nonzero()[0]] == [encoding.eot_token]
    for text in TEXTS:
        ids = [encoding.eot_token, *encoding.encode_ordinary(text)]
        assert lengths[ids].sum() == len(text.encode())


@pytest.mark.parametrize(("vocabulary", "size"), [(Vocabulary.bytes, 257), (Vocabulary.gpt2, 50257)])
def test_the_size_needs_no_file(empty_cache, vocabulary, size):
    assert BuiltIn(vocabulary=vocabulary).vocab_size == size


@pytest.mark.parametrize(("variable", "folder"), [("TIKTOKEN_CACHE_DIR", "none"), (None, "tiktoken")])
def test_no_network_is_one_line_that_says_how_and_where(empty_cache, monkeypatch, variable, folder):
    if variable is None:  # the files go below the cache
        monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    with pytest.raises(ValueError) as caught:
        BuiltIn(vocabulary=Vocabulary.gpt2).load(cache_dir=empty_cache)
    message, folder = str(caught.value), str(empty_cache / folder)
    says = ("TIKTOKEN_CACHE_DIR", folder, "6d1cbeee", "6c7ea1a7", "tokenizer=bytes", "ConnectionError")
    assert [word for word in says if word not in message] == []
    assert "\n" not in message
    assert tokenizer.os.environ.pop("TIKTOKEN_CACHE_DIR") == folder


def test_a_silent_server_is_not_waited_for(empty_cache, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(tiktoken.load, "read_file", lambda _: release.wait(10))
    monkeypatch.setattr(tokenizer, "FETCH_TIMEOUT_S", 0.2)
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"no answer in 0\.2 s"):
        BuiltIn(vocabulary=Vocabulary.gpt2).load(cache_dir=empty_cache)
    took = time.monotonic() - start
    release.set()
    for thread in threading.enumerate():
        if thread.name == "fetch-gpt2-vocabulary":
            thread.join()
    assert took < 5
