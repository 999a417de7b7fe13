"""Documents: a packed batch has the loss and the gradients of its documents trained apart, and what
cannot keep to documents is refused.

B: batch, T: tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nocap.checks.contract import _moved as moved  # none of its weights at its start
from nocap.config.compose import compose, composed
from nocap.config.keys import flat
from nocap.config.plain import to_plain
from nocap.config.resolvers import RESOLVERS
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.data.shards import write_shard
from nocap.generation.engines import UncachedError, check_cached
from nocap.judge.arms import setting
from nocap.launch.plan import plan
from nocap.model.build import build_model
from nocap.model.documents import flex_mask, seen
from nocap.model.flops import flops_per_token
from nocap.model.gpt import GPT
from nocap.model.position import document_positions
from nocap.options.attention.kernel import Kernel
from nocap.study.study_plan import check_fair
from tests.attempts import state_of
from tests.conftest import FAULTS, REPO, SMALL, Door, rows_of, the_run, used
from tests.test_ideas import advance, saved_and_loaded, trainee_of

START = 256  # of a document of bytes
# without its data, which have no documents
PLAIN = [word for word in SMALL if not word.startswith("data")]
WORDS = (*PLAIN, "trainer.val_tokens=1024")
MASK = "data.document_mask=true"
RESTART = "position.restart=true"
close = torch.testing.assert_close


def run_of(*words: str) -> Run:
    return compose([*WORDS, *words])


@pytest.fixture
def texts(tmp_path: Path) -> str:
    """Many short documents of random words."""
    folder = tmp_path / "texts"
    folder.mkdir()
    draw = random.Random(0)
    for number in range(400):
        words = [f"{draw.randrange(10**6)}" for _ in range(draw.randrange(2, 30))]
        (folder / f"{number}.txt").write_text(" ".join(words))
    return f"data.path={folder}"


# --- a packed batch against its documents apart ---------------------------------------------------


def with_documents(length: int, *begins: int) -> Tensor:
    """Two sequences, documents beginning at these places of the first and nowhere in the second."""
    tokens = (torch.arange(2 * length) * 31 % 251).reshape(2, length)
    tokens[0, list(begins)] = START
    return tokens


def documents_of(tokens_T: Tensor) -> Iterator[tuple[int, int]]:
    """The first place of each document among the inputs, and the one after its last."""
    T = len(tokens_T) - 1
    begins = [t for t in range(1, T) if tokens_T[t] == START]
    yield from pairwise([0, *begins, T])


def loss_apart(model: GPT, tokens: Tensor, *, restart: bool) -> Tensor:
    """The mean loss of all tokens, each document in a forward of its own."""
    total = torch.zeros(())
    for tokens_T in tokens:
        for first, last in documents_of(tokens_T):
            inputs_1T = tokens_T[None, first:last]
            targets_T = tokens_T[first + 1 : last + 1]
            where = slice(0, last - first) if restart else slice(first, last)
            logits_1TV = model.head.logits(model.trunk(inputs_1T, where=where))
            total = total + F.cross_entropy(logits_1TV[0], targets_T, reduction="sum")
    return total / tokens[:, 1:].numel()


@pytest.mark.parametrize("position", ["rope", pytest.param("learned", marks=pytest.mark.slow)])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ("attention=mha",),
        ("attention=gqa", "attention.n_kv_heads=2"),
        ("attention=mqa",),
        ("attention=flash",),
        ("attention=sliding", "attention.window=20"),
        ("attention=hybrid", "attention.window=20"),
    ],
)
def test_a_packed_batch_is_its_documents_apart(
    words: tuple[str, ...], restart: bool, position: str
) -> None:
    """Loss and every gradient; documents of one token, of a few, and longer than a block."""
    words = (*words, f"position={position}")
    key = f"position.restart={str(restart).lower()}"
    packed = moved(run_of(*words, MASK, key))
    alone = moved(run_of(*words))
    tokens = with_documents(101, 7, 8, 80)
    loss = packed(tokens[:, :-1], tokens[:, 1:]).total
    loss.backward()
    apart = loss_apart(alone, tokens, restart=restart)
    apart.backward()
    close(loss, apart, rtol=1e-6, atol=0)
    gradients = {name: p.grad for name, p in alone.named_parameters()}
    for name, p in packed.named_parameters():
        largest = float(gradients[name].abs().max())
        assert largest > 0
        close(p.grad, gradients[name], rtol=1e-5, atol=1e-5 * largest)


def test_without_the_mask_documents_see_each_other() -> None:
    tokens = with_documents(100, 7, 70)
    masked = moved(run_of("position=none", MASK)).logits(tokens)
    plain = moved(run_of("position=none")).logits(tokens)
    assert (masked[0, 70:] - plain[0, 70:]).abs().max() > 1e-3
    close(masked[0, :7], plain[0, :7], rtol=1e-4, atol=1e-5)
    close(masked[1], plain[1], rtol=1e-4, atol=1e-5)


def test_positions_begin_anew_and_attention_goes_on() -> None:
    """Without the mask a document still sees those before it."""
    model = moved(run_of(RESTART))
    tokens = with_documents(60, 20)
    where = document_positions(tokens, start=START)
    assert where[0].tolist() == [*range(20), *range(40)]
    assert where[1].tolist() == [*range(60)]
    close(model.logits(tokens), model.head.logits(model.trunk(tokens, where=where)))
    other = tokens.clone()
    other[0, 3] += 1
    assert (model.logits(other)[0, 20:] - model.logits(tokens)[0, 20:]).abs().max() > 1e-4


@pytest.mark.parametrize("window", [None, 20])
def test_flexattentions_mask_is_that_of_the_pairs(window: int | None) -> None:
    ids_BT = (with_documents(300, 7, 170) == START).cumsum(1)
    mask = flex_mask(ids_BT, window)
    b = torch.arange(2)[:, None, None]
    key = torch.arange(300)
    query = key[:, None]
    allowed = mask.mask_mod(b, torch.tensor(0), query, key)
    assert torch.equal(allowed, seen(ids_BT)[:, 0] & (query - key < (window or 300)))
    padded = F.pad(allowed, (0, 84, 0, 84))
    tiles = padded.unflatten(2, (3, 128)).unflatten(1, (3, 128)).any(4).any(2)
    # what is left out holds nothing that is seen, and no more is computed
    assert torch.equal(mask.to_dense()[:, 0].bool(), tiles)


# --- through the trainer --------------------------------------------------------------------------


def test_it_resumes_bit_for_bit(texts: str, tmp_path: Path) -> None:
    run = run_of("data=text", texts, MASK, RESTART, "attention=hybrid", "attention.window=20")
    job, trainee = trainee_of(run, tmp_path)
    advance(job, trainee, 0, 1)
    again = saved_and_loaded(trainee, run, tmp_path, step=2)
    whole = [(step.loss, step.grad_norm) for step in advance(job, trainee, 2, 3)]
    resumed = [(step.loss, step.grad_norm) for step in advance(job, again, 2, 3)]
    assert resumed == whole


@pytest.mark.slow
def test_killed_or_on_two_ranks_it_ends_alike(texts: str, tmp_path: Path, door: Door) -> None:
    words = (*WORDS, "data=text", texts, MASK, RESTART)
    clean = door(*words, f"output_dir={tmp_path / 'clean'}")
    assert clean.code == 0, clean.err
    (tmp_path / "faults").mkdir()
    fault = {"NOCAP_FAULT": "kill@6", "NOCAP_FAULT_DIR": str(tmp_path / "faults")}
    killed = door(*words, f"output_dir={tmp_path / 'killed'}", env={"PYTHONPATH": FAULTS, **fault})
    assert "resuming from step 4" in killed.out
    assert state_of(the_run(tmp_path / "killed")) == state_of(the_run(tmp_path / "clean"))
    two = door(*words, "trainer.devices=2", f"output_dir={tmp_path / 'two'}")
    assert two.code == 0, two.err
    one = [row["train/loss"] for row in rows_of(the_run(tmp_path / "clean")) if "train/loss" in row]
    other = [row["train/loss"] for row in rows_of(the_run(tmp_path / "two")) if "train/loss" in row]
    assert other == pytest.approx(one, abs=1e-6)


def test_documents_are_decoded_without_a_cache() -> None:
    for key in (MASK, RESTART):
        run = run_of("attention=hybrid", key)
        with pytest.raises(UncachedError, match=r"does not keep where a document began \(data\."):
            check_cached(build_model(run, vocab_size=257).eval(), run)


# --- what the keys count for ----------------------------------------------------------------------


def counted(run: Run, what: str) -> dict[str, object]:
    return dict(flat(run.that_count(what, to_plain(run))))


def test_the_keys_count_where_they_are_on() -> None:
    plain = run_of()
    on = run_of(MASK, RESTART)
    for what in ("identity", "step"):
        before = counted(plain, what)
        assert not {"data.document_mask", "position.restart"} & {*before}
        assert before["attention.document_start"] is None  # as in every identity so far
        added = {"data.document_mask": True, "position.restart": True}
        assert counted(on, what) == {**before, **added}
    assert counted(on, "losses") == counted(plain, "losses")


def test_a_key_that_does_not_count_is_its_default_in_a_table() -> None:
    plain = counted(run_of(), "identity")
    on = counted(run_of(MASK), "identity")
    assert setting(plain, "data.document_mask") == "false"
    assert setting(on, "data.document_mask") == "true"
    assert setting(plain, "position.restart") == "false"


def test_a_study_may_compare_the_mask_with_none() -> None:
    arms = {"base": composed(WORDS), "masked": composed([*WORDS, MASK])}
    check_fair(arms)


def test_flops_are_said_to_be_at_most() -> None:
    plain = flops_per_token(run_of(), vocab_size=257)
    masked = flops_per_token(run_of(MASK), vocab_size=257)
    assert masked == (plain[0], "arithmetic; at most: as if a sequence were one document")


def test_on_a_gpu_flexattention_is_the_default_of_the_mask() -> None:
    kernel = RESOLVERS["fused_kernel"]
    assert kernel(Device.cuda, True) is Kernel.flex
    assert kernel(Device.cuda, False) is Kernel.fused
    assert kernel(Device.cpu, True) is Kernel.fused


# --- what is refused ------------------------------------------------------------------------------

FALSE = "data.document_mask must be false with"


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (
            "attention.document_start=256",
            "attention.document_start must be null (set data.document_mask=true instead), got 256",
        ),
        (f"data=synthetic {MASK}", f"{FALSE} data.kind=synthetic, which has no documents"),
        (f"data=synthetic {RESTART}", "position.restart must be false with data.kind=synthetic"),
        (
            f"ideas=[smear] {MASK}",
            f"{FALSE} ideas.smear, which may mix documents (its PER_TOKEN is",
        ),
        (f"ideas=[bigram] {MASK}", f"{FALSE} ideas.bigram,"),
        (f"ideas=[x0,ngrams] {MASK}", f"{FALSE} ideas.ngrams,"),
        (f"ideas=[partial_key_offset] {MASK}", f"{FALSE} ideas.partial_key_offset,"),
        (f"attention=softcap {MASK}", f"{FALSE} attention.kind=softcap, which does not support"),
        (
            f"position=none {RESTART}",
            "position.restart must keep its default, False, with position=none, which has no "
            "positions",
        ),
        (
            f"{MASK} trainer.device=cuda trainer.precision=bf16 attention.kernel=cudnn",
            "be one of materialized, fused, efficient, flex, blocks with "
            "data.document_mask=true on trainer.device=cuda, got cudnn",
        ),
        (
            f"{MASK} attention.kernel=flex",
            "be a kernel for the CPU: materialized, fused, flash, or (with a window) blocks",
        ),
        (
            "attention.kernel=blocks trainer.device=cuda",
            "fused, flash, efficient, cudnn, flex with attention.kind=global, got blocks",
        ),
        (f"{MASK[:-4]}maybe", "data.document_mask must be true or false"),
    ],
)
def test_refused_by_key(words: str, rule: str) -> None:
    softcap = str(REPO / "tests" / "own_ideas" / "softcap")
    with used(softcap), pytest.raises(ValueError, match=re.escape(rule)):
        run_of(*words.split())


def test_a_door_refuses_in_one_line(here: Door) -> None:
    done = here(*WORDS, MASK, "ideas=[smear]")
    assert done.code == 2
    assert done.err.startswith(f"nocap: {FALSE} ideas.smear")
    assert done.err.count("\n") == 1


LEAKY = """
from dataclasses import dataclass
from nocap.options.attention.softmax import Softmax

@dataclass(kw_only=True)
class Leaky(Softmax):
    kind: str = "leaky"

    def mixer(self, run, layer):
        mix = Softmax.mixer(self, run, layer)
        return lambda q, k, v, documents: mix(q, k, v{argument})

    documents = Softmax.documents
"""


@pytest.mark.parametrize(
    ("argument", "code"), [("", 2), pytest.param(", documents", 0, marks=pytest.mark.slow)]
)
def test_an_attention_from_outside_is_tried(
    argument: str, code: int, texts: str, tmp_path: Path, here: Door
) -> None:
    """Before its first step: one that says that it takes documents, and looks across them."""
    folder = tmp_path / "own" / "attention"
    folder.mkdir(parents=True)
    (folder / "leaky.py").write_text(LEAKY.format(argument=argument))
    (folder / "leaky.yaml").write_text("kind: leaky\nn_kv_heads: 4\nkernel: fused\n")
    chosen = ("--config-dir", str(tmp_path / "own"), "attention=leaky", "trainer.steps=2")
    done = here(*WORDS, *chosen, "data=text", texts, MASK)
    assert done.code == code, done.err
    assert ("attention.kind=leaky must not see other documents" in done.err) == bool(code)


def test_shards_in_which_no_document_begins_are_refused(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 20_000)
    write_shard(tmp_path / "train.bin", tokens)
    write_shard(tmp_path / "val.bin", tokens[::-1])
    shards = (f"data.train={tmp_path / 'train.bin'}", f"data.val={tmp_path / 'val.bin'}")
    words = ("data=shards", "tokenizer=bytes", *shards, f"output_dir={tmp_path}")
    rule = "data.document_mask must be false with training data that lack token 256 "
    with pytest.raises(ValueError, match=rule):
        plan(run_of(*words, MASK), choices={})
    tokens[5_000] = START
    write_shard(tmp_path / "train.bin", tokens)
    plan(run_of(*words, MASK), choices={})
