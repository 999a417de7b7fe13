"""Which tokens make a batch: against slow and obvious readers, and against the challenge's own
loader played by hand."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nocap.data.batches import sequences_of, target_bytes
from nocap.data.shards import write_shard
from nocap.data.tokenizer import END_OF_TEXT, token_bytes
from nocap.data.tokens import Shard
from nocap.data.windows import Windows, permutation, splitmix64
from nocap.options.data.reading import Order
from nocap.options.tokenizer.vocabulary import BuiltIn, Vocabulary


def write(folder: Path, sizes: list[int]) -> tuple[list[Shard], list[list[int]]]:
    """Shards of these many tokens, no two tokens alike, and the tokens."""
    ends = np.cumsum(sizes)
    shards = []
    contents = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    for i, tokens in enumerate(contents):
        write_shard(folder / f"{i:03}.bin", np.array(tokens))
        path = str(folder / f"{i:03}.bin")
        shards.append(Shard(path=path, tokens=len(tokens), sha256="", max_id=max(tokens)))
    return shards, contents


def windows_of(
    shards: list[Shard], *, T: int, order: Order = Order.shuffled, unit: int = 1, seed: int = 0
) -> Windows:
    return Windows(shards, seq_len=T, order=order, read_sequences=unit, seed=seed)


# --- the permutation ------------------------------------------------------------------------------


def test_the_hash_is_splitmix64():
    """The first outputs of the published generator from seed 1234567, whose state grows by the
    golden gamma."""
    gamma = 0x9E3779B97F4A7C15
    seed = 1234567
    states = np.array([(seed + i * gamma) % 2**64 for i in range(5)], np.uint64)
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(states).tolist() == known


def test_it_is_a_permutation_by_seed_and_epoch():
    for n in (1, 2, 17, 10_000):
        expected = list(range(n))
        assert sorted(permutation(n, seed=3, epoch=2).tolist()) == expected
    made = []
    for seed in range(5):
        made += [permutation(50, seed=seed, epoch=epoch) for epoch in range(5)]
    orders = {tuple(order.tolist()) for order in made}
    assert len(orders) == 25


def test_the_order_never_changes():
    """These are in every record made so far. Another order is another experiment."""
    expected = [0, 9, 1, 6, 3, 5, 4, 2, 8, 7]
    order = permutation(10, seed=0, epoch=0).tolist()
    assert order == expected
    assert permutation(10, seed=0, epoch=1).tolist() == [8, 3, 0, 1, 5, 2, 7, 4, 9, 6]
    first_eight = permutation(1000, seed=1, epoch=0)[:8].tolist()
    assert first_eight == [917, 755, 125, 466, 213, 221, 533, 592]
    assert sorted(permutation(9, seed=2**63 - 1, epoch=0).tolist()) == list(range(9)), (
        "the largest seed"
    )


def test_every_place_is_as_likely_for_every_element():
    n = 8
    draws = 4000
    counts = np.zeros((n, n))
    for seed in range(draws):
        counts[np.arange(n), permutation(n, seed=seed, epoch=0)] += 1
    spread = counts - draws / n
    mean = draws / n
    chi_squared = (spread**2 / mean).sum()
    assert chi_squared < 85.4, "(n - 1)² = 49 degrees of freedom, p = 0.001"


# --- reading --------------------------------------------------------------------------------------

# with T = 8: a shard without a window, ends that fit exactly, and ends that do not
SIZES = [50, 8, 9, 1, 33, 34, 100]


def all_windows(contents: list[list[int]], T: int) -> list[list[int]]:
    windows = []
    for tokens in contents:
        windows += [tokens[i : i + T + 1] for i in range(0, len(tokens) - T, T)]
    return windows


def test_shuffled_reads_every_window_once_an_epoch(tmp_path: Path):
    """What is read depends on the sequence alone: nothing is remembered, whatever the order of
    asking."""
    shards, contents = write(tmp_path, SIZES)
    windows = windows_of(shards, T=8, seed=5)
    naive = all_windows(contents, 8)
    n = windows.n
    want = []
    for epoch in range(3):
        for i in permutation(len(naive), seed=5, epoch=epoch):
            want.append(naive[i])
    got = windows.read(range(3 * n))
    assert got.dtype == np.int32
    assert n == len(naive)
    assert got.tolist() == want
    for at in (0, n, 2 * n):
        assert sorted(want[at : at + n]) == naive
    rng = np.random.default_rng(0)
    asked = rng.permutation(3 * n).tolist()
    expected = [want[i] for i in asked]
    assert windows.read(asked).tolist() == expected


def test_data_without_a_window_is_refused(tmp_path: Path):
    rule = r"must have a shard of at least 1 × model\.seq_len \+ 1 = 9 tokens, got 11 in all shards"
    with pytest.raises(ValueError, match=rule):
        windows_of(write(tmp_path, [8, 3])[0], T=8)
    in_order = partial(windows_of, T=8, order=Order.sequential, unit=4)
    with pytest.raises(ValueError, match=r"at least 4 × model\.seq_len \+ 1 = 33"):
        in_order(write(tmp_path, [32])[0])
    assert in_order(write(tmp_path, [33])[0]).n == 4


# --- the challenge's order ------------------------------------------------------------------------


def challenge(contents: list[list[int]], *, B: int, T: int, micro_batches: int) -> list[list[int]]:
    """Its loader: B·T + 1 tokens at the position, advance by B·T; the next shard when this one
    cannot give as much; around again."""
    rows = []
    shard = 0
    position = 0
    while len(contents[shard]) < B * T + 1:
        shard += 1
    for _ in range(micro_batches):
        tokens = contents[shard][position : position + B * T + 1]
        rows += [tokens[b * T : (b + 1) * T + 1] for b in range(B)]
        position += B * T
        while position + B * T + 1 > len(contents[shard]):
            shard = (shard + 1) % len(contents)
            position = 0
    return rows


SHARD_SIZES = [
    [4 * 6 + 1],  # one micro-batch exactly
    [48, 49, 50, 25, 26],  # around two micro-batches and around one
    [24, 100, 24, 1, 77, 24],  # shards that give none, the first among them
]


@pytest.mark.parametrize("sizes", SHARD_SIZES, ids=str)
def test_sequential_order_is_the_challenges(sizes: list[int], tmp_path: Path):
    """Whatever the seed."""
    B = 4
    T = 6
    micro_batches = 40
    shards, contents = write(tmp_path, sizes)
    want = challenge(contents, B=B, T=T, micro_batches=micro_batches)
    for seed in (1, 2):
        windows = windows_of(shards, T=T, order=Order.sequential, unit=B, seed=seed)
        assert windows.read(range(B * micro_batches)).tolist() == want


@pytest.mark.parametrize(("world", "micro_batch"), [(1, 2), (1, 8), (2, 1), (4, 2)])
def test_the_challenges_order_does_not_depend_on_how_a_step_is_cut(
    world: int, micro_batch: int, tmp_path: Path
):
    B = 4
    T = 6
    batch = 8
    shards, contents = write(tmp_path, [100, 24, 1, 77])
    windows = windows_of(shards, T=T, order=Order.sequential, unit=B)
    want = challenge(contents, B=B, T=T, micro_batches=8)
    for step in range(4):
        rows = {}
        for rank in range(world):
            n = batch // world // micro_batch
            sequences = sequences_of(
                first=step * batch, rank=rank, world=world, microbatches=n, micro_batch=micro_batch
            )
            rows |= dict(zip(sequences, windows.read(sequences).tolist(), strict=True))
        expected = want[step * batch : (step + 1) * batch]
        assert [rows[s] for s in sorted(rows)] == expected


# --- bytes ----------------------------------------------------------------------------------------


def test_target_bytes_are_the_bytes_of_the_decoded_text(tmp_path: Path):
    """First windows only, targets only, end-of-text for nothing: counted again on the text itself,
    é and 日本 with all their bytes."""
    T = 10
    n = 7
    encoding = BuiltIn(vocabulary=Vocabulary.bytes).load(cache_dir=tmp_path)
    tokens = encoding.encode(
        f"{END_OF_TEXT}naïve café{END_OF_TEXT}日本語 text, and{END_OF_TEXT} more of it" * 3,
        allowed_special="all",
    )
    path = tmp_path / "val.bin"
    write_shard(path, np.array(tokens))
    shard = Shard(path=str(path), tokens=len(tokens), sha256="", max_id=256)
    windows = windows_of([shard], T=T, order=Order.sequential)
    targets = tokens[1 : n * T + 1]
    assert tokens[0] == 256 != targets[-1], "counting inputs instead of targets would show"
    text = b"".join(encoding.decode_tokens_bytes(targets))
    want = len(text.replace(END_OF_TEXT.encode(), b""))
    assert target_bytes(windows, token_bytes(encoding), tokens=n * T) == want < n * T
