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
    assert (encoding.n_vocab, encoding.eot_token) == (257, 256)
    for text in TEXTS:
        assert encoding.encode_ordinary(text) == list(text.encode())
        assert encoding.decode(encoding.encode_ordinary(text)) == text
    assert not list(tmp_path.iterdir())


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
    assert lengths.dtype == "int32"
    assert lengths.shape == (BuiltIn(vocabulary=vocabulary).vocab_size,)
    assert lengths[encoding.eot_token] == 0
    assert (lengths == 0).sum() == 1
    for text in TEXTS:
        ids = [encoding.eot_token, *encoding.encode_ordinary(text)]
        assert lengths[ids].sum() == len(text.encode())


@pytest.mark.parametrize(("vocabulary", "size"), [(Vocabulary.bytes, 257), (Vocabulary.gpt2, 50257)])
def test_the_size_needs_no_file(empty_cache, vocabulary, size):
    assert BuiltIn(vocabulary=vocabulary).vocab_size == size


def test_no_network_is_one_line_that_says_how(empty_cache):
    with pytest.raises(ValueError) as caught:
        BuiltIn(vocabulary=Vocabulary.gpt2).load(cache_dir=empty_cache)
    message = str(caught.value)
    assert "\n" not in message
    for words in (
        "TIKTOKEN_CACHE_DIR",
        str(empty_cache / "none"),
        "6d1cbeee",
        "6c7ea1a7",
        "vocab.bpe",
        "tokenizer=bytes",
        "ConnectionError",
    ):
        assert words in message


def test_a_silent_server_is_not_waited_for(empty_cache, monkeypatch):
    release = threading.Event()

    def silent(_):
        release.wait(10)
        raise ConnectionError("gone")

    monkeypatch.setattr(tiktoken.load, "read_file", silent)
    monkeypatch.setattr(tokenizer, "FETCH_TIMEOUT_S", 0.2)
    start = time.monotonic()
    try:
        with pytest.raises(ValueError, match=r"no answer in 0\.2 s"):
            BuiltIn(vocabulary=Vocabulary.gpt2).load(cache_dir=empty_cache)
        assert time.monotonic() - start < 5
    finally:
        release.set()
        for thread in threading.enumerate():
            if thread.name == "fetch-gpt2-vocabulary":
                thread.join()


def test_the_files_go_below_the_cache_unless_said_otherwise(empty_cache, monkeypatch):
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    with pytest.raises(ValueError, match=str(empty_cache / "tiktoken")):
        BuiltIn(vocabulary=Vocabulary.gpt2).load(cache_dir=empty_cache)
    assert tokenizer.os.environ.pop("TIKTOKEN_CACHE_DIR") == str(empty_cache / "tiktoken")
