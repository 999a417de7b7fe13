"""The built-in vocabularies as tiktoken encodings, and the bytes of text in a token."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT = "<|endoftext|>"
FETCH_TIMEOUT_S = 30.0  # tiktoken itself would wait for a silent server for ever
GPT2_FILES = {
    "6d1cbeee0f20b3d9449abfede4726ed8212e3aee": "vocab.bpe",
    "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6": "encoder.json",
}


def token_bytes(encoding: tiktoken.Encoding) -> npt.NDArray[np.int32]:
    """Bytes of text in each token, of shape (n_vocab,); none in end-of-text and other special
    tokens."""
    special = {encoding.encode_single_token(text) for text in encoding.special_tokens_set}
    lengths = [
        0 if token in special else len(encoding.decode_single_token_bytes(token))
        for token in range(encoding.n_vocab)
    ]
    return np.array(lengths, dtype=np.int32)


def bytes_encoding() -> tiktoken.Encoding:
    """256 bytes and an end-of-text."""
    import tiktoken

    return tiktoken.Encoding(
        "bytes",
        pat_str=r"[\s\S]{1,64}",  # long pieces: five times faster than a piece a character
        mergeable_ranks={bytes([value]): value for value in range(256)},
        special_tokens={END_OF_TEXT: 256},
        explicit_n_vocab=257,
    )


def gpt2(default_folder: Path) -> tiktoken.Encoding:
    """GPT-2's encoding, whose files tiktoken keeps in `$TIKTOKEN_CACHE_DIR`, else in this folder.
    `ValueError` where they are missing and cannot be fetched."""
    import tiktoken

    folder = os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(default_folder))
    outcome: list[tiktoken.Encoding | Exception] = []

    def fetch() -> None:
        try:
            outcome.append(tiktoken.get_encoding("gpt2"))
        # handed to the caller below, where only what a missing network raises is refused
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=fetch, name="fetch-gpt2-vocabulary", daemon=True)
    thread.start()
    thread.join(FETCH_TIMEOUT_S)
    fetched = outcome[0] if outcome else None
    if isinstance(fetched, tiktoken.Encoding):
        return fetched
    if fetched is not None and not isinstance(fetched, OSError | ValueError):
        raise fetched
    cause = f"no answer in {FETCH_TIMEOUT_S:g} s" if fetched is None else type(fetched).__name__
    files = " and ".join(f"{name} as {sha1}" for sha1, name in GPT2_FILES.items())
    raise ValueError(
        "tokenizer=gpt2: the vocabulary is not in TIKTOKEN_CACHE_DIR, and could not be fetched "
        f"({cause}). Do one of these: run once with a network; put {files} into {folder}; use "
        "tokenizer=bytes"
    ) from fetched
