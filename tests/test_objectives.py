"""Objectives, data and schedules: multi-token prediction and its kin, each against its formula and, where it
is neutral, against none."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nocap.config.compose import compose
from nocap.config.paths import cache_root
from nocap.config.run import Run
from nocap.data.batches import train_windows
from nocap.data.prepare import prepare
from nocap.launch.plan import plan
from nocap.measure.generation import UncachedError, check_cached
from nocap.model.attention import flex_mask, seen
from nocap.model.flops import flops_per_token
from nocap.model.gpt import build_model
from nocap.store.runs import load
from nocap.training.ledger import Ledger
from nocap.training.recorder import Recorder
from nocap.training.state import put_weights, weights
from nocap.training.step import Update, fetch, take_step, validate
from nocap.training.trained import trained
from tests.attempts import attempt, state_of
from tests.conftest import SMALL, Undisturbed, the_run
from tests.test_ideas import saved_and_loaded, trainee_of

V = 257
pytestmark = pytest.mark.usefixtures("atlas_ideas")


def composed(*words: str) -> Run:
    return compose([*SMALL, *words])


def moved(run: Run, *, vocab_size: int = V) -> Any:
    """The model, none of its weights at its start: a weight that starts at zero would hide an error."""
    model: Any = build_model(run, vocab_size=vocab_size)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model


def steps(run: Run, folder: Path, n: int = 3) -> list[Update]:
    job, trainee = trainee_of(run, folder)
    return [take_step(job, trainee, Ledger(started=0.0), step=i) for i in range(n)]


def numbers(updates: list[Update]) -> list[tuple[float, float]]:
    return [(update.parts.get("next_token", update.loss), update.grad_norm) for update in updates]


# --- multi-token prediction


def test_multi_token_against_its_formula():
    model = moved(composed("ideas=[multi_token]", "ideas.multi_token.weights=[0.5,0.25]"))
    tokens = torch.arange(34).reshape(2, 17) * 7 % V
    x_BTC, expected = model.trunk(tokens[:, :-1]), 0.0
    for k, weight in ((2, 0.5), (3, 0.25)):
        h_BTC = x_BTC + x_BTC @ model.ideas.multi_token.heads[k - 2].weight.t()
        logits_BTV = model.head.norm(h_BTC) @ model.embedding.weight.t()
        for t in range(17 - k):
            expected += weight * F.cross_entropy(logits_BTV[:, t], tokens[:, t + k]) / (17 - k)
    torch.testing.assert_close(model(tokens[:, :-1], tokens[:, 1:]).parts["multi_token"], expected)


def test_multi_token_fades(tmp_path: Path):
    words = (
        "ideas=[multi_token]",
        "ideas.multi_token.final=0.4",
        "trainer.steps=4",
        "schedule=constant",
        "optimizer.lr=1e-30",
    )
    shares = [
        update.parts["multi_token"] / update.parts["next_token"]
        for update in steps(composed(*words), tmp_path)
    ]
    for share, decay in zip(shares, (1, 0.85, 0.7), strict=True):
        # a loss at the start is much the same for each head and step
        assert share == pytest.approx(0.75 * decay, rel=0.02)


# --- a loss at an intermediate layer


def test_the_head_predicts_from_a_middle_layer_too():
    """The loss of a model whose blocks end there."""
    model, tokens = (
        moved(composed("ideas=[early_loss]", "ideas.early_loss.layer=0", "ideas.early_loss.weight=0.4")),
        torch.arange(34) * 7 % V,
    )
    batch = tokens[:-2].reshape(2, 16), tokens[1:-1].reshape(2, 16)
    loss = model(*batch)
    assert model.ideas.early_loss.x_BTC is None  # no step keeps another's
    torch.testing.assert_close(loss.total, loss.parts["next_token"] + loss.parts["early_loss"])
    torch.testing.assert_close(model.eval()(*batch).total, loss.parts["next_token"])
    model.blocks = model.blocks[:1]
    torch.testing.assert_close(0.4 * model(*batch).total, loss.parts["early_loss"])


def test_the_last_layer_is_no_middle_one():
    with pytest.raises(ValueError, match=r"ideas.early_loss.layer must be below the last, 1, got 1"):
        composed("ideas=[early_loss]", "ideas.early_loss.layer=1", "model.n_layer=2")


# --- a confidence penalty


def test_the_entropy_of_the_predictions_is_rewarded():
    model = moved(composed("ideas=[entropy]", "ideas.entropy.weight=0.3"))
    tokens = torch.arange(34).reshape(2, 17) * 7 % V
    p = model.logits(tokens[:, :-1]).softmax(-1)
    loss = model(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(loss.parts["entropy"], 0.3 * (p * p.log()).sum(-1).mean())
    assert float(loss.parts["entropy"]) < 0


# --- untying


def together(run: Run, folder: Path, n: int) -> list[dict[str, torch.Tensor]]:
    """All parameters after each of the steps, the head's among them, tied or not."""
    (job, trainee), parameters = trainee_of(run, folder), []
    for i in range(n):
        take_step(job, trainee, Ledger(started=0.0), step=i)
        parameters.append(
            {name: p.detach().clone() for name, p in trainee.model.named_parameters(remove_duplicate=False)}
        )
    return parameters


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_untying_is_tied_before_and_two_matrices_of_one_state_after(optimizer: str, tmp_path: Path):
    # one micro-batch: sums in one order
    words = (f"optimizer={optimizer}", "trainer.batch_tokens=1024", "trainer.grad_clip=0.1")
    tied, untied = (
        together(composed(*words, *more), tmp_path, 4)
        for more in ((), ("ideas=[untie]", "ideas.untie.at=0.25"))
    )
    for before, after in zip(tied[:3], untied[:3], strict=True):  # 3 of the 12 steps
        assert all(torch.equal(p, after[name]) for name, p in before.items())
        assert torch.equal(after["head.unembed.weight"], after["embedding.weight"])
    assert not torch.equal(untied[3]["head.unembed.weight"], untied[3]["embedding.weight"])
    # The step that parts them, by hand: Adam's two moments so far are those of the tied matrix.
    job, trainee = trainee_of(composed(*words, "ideas=[untie]", "ideas.untie.at=0.25"), tmp_path)
    for i in range(3):
        take_step(job, trainee, Ledger(started=0.0), step=i)
    state = trainee.optimizers[0].state
    head, other = (
        state[trainee.model.get_parameter(name)] for name in ("head.unembed.weight", "embedding.weight")
    )
    assert all(torch.equal(head[field], other[field]) for field in ("step", "exp_avg", "exp_avg_sq"))


def test_what_is_not_tied_is_not_untied():
    with pytest.raises(ValueError, match=r"model.tie_head must be true beside ideas.untie"):
        composed("ideas=[untie]", "model.tie_head=false")


# --- distillation


@pytest.fixture(scope="session")
def teacher(undisturbed: Undisturbed) -> str:
    return str(undisturbed.run_dir)


def distilled(teacher: str, *words: str) -> Run:
    return composed("ideas=[distill]", f"ideas.distill.run={teacher}", *words)


def test_distillation_against_its_formula(teacher: str, tmp_path: Path):
    run = distilled(teacher, "ideas.distill.weight=0.3", "ideas.distill.temperature=1.5")
    job, trainee = trainee_of(run, tmp_path)
    teaching = trained(Path(teacher))[1]
    tokens = torch.arange(34).reshape(2, 17) * 7 % V
    inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()
    p, q = ((model.logits(inputs).flatten(0, 1) / 1.5).softmax(-1) for model in (teaching, trainee.model))
    kl, ce = (
        (p * (p / q).log()).sum(-1).mean(),
        F.cross_entropy(trainee.model.logits(inputs).flatten(0, 1), targets),
    )
    loss = trainee.model(inputs, tokens[:, 1:])
    torch.testing.assert_close(loss.total, 0.7 * ce + 0.3 * 1.5**2 * kl)
    loss.total.backward()
    assert all(p.grad is None for p in teaching.parameters())
    assert not any(
        "teach" in name for name, _ in [*trainee.model.named_parameters(), *trainee.model.named_buffers()]
    )
    plain = composed()
    assert validate(trainee.model, trainee.val, run=run, world=job.world) == validate(
        build_model(plain, vocab_size=V), trainee.val, run=plain, world=job.world
    )


@pytest.mark.slow
def test_a_teachers_forward_is_counted(teacher: str):
    plain, taught = (flops_per_token(run, vocab_size=V) for run in (composed(), distilled(teacher)))
    # a teacher of the same size, no backward
    assert taught == (pytest.approx(plain[0] * 4 / 3), "arithmetic; counted: ideas=distill")


def test_a_teacher_is_known_by_its_weights_and_not_by_its_place(
    teacher: str, undisturbed: Undisturbed, tmp_path: Path
):
    clock = json.loads((undisturbed.run_dir / "summary.json").read_text())["clock_s"]
    copy = shutil.copytree(teacher, tmp_path / "copies" / Path(teacher).name)
    original, other = (
        plan(distilled(str(path), f"output_dir={tmp_path}"), choices={}) for path in (teacher, copy)
    )
    assert original.identity == other.identity
    assert original.teachers["ideas.distill"].seconds == clock["train"] + clock["data"]
    sums = next((copy / "checkpoints").iterdir()) / "manifest.json"
    sums.write_text(sums.read_text().replace(json.loads(sums.read_text())["model.safetensors"], "0" * 64))
    assert plan(distilled(str(copy), f"output_dir={tmp_path}"), choices={}).identity != original.identity


@pytest.mark.slow
def test_a_teachers_time_is_its_pupils_too(teacher: str, undisturbed: Undisturbed, tmp_path: Path):
    clock = json.loads((undisturbed.run_dir / "summary.json").read_text())["clock_s"]
    run_dir = attempt_of(
        tmp_path / "out",
        "ideas=[distill]",
        f"ideas.distill.run={teacher}",
        "trainer.steps=2",
        "trainer.checkpoint_every=1",
    )
    seconds = json.loads((run_dir / "summary.json").read_text())["clock_s"]
    assert seconds["teacher"] == pytest.approx(clock["train"] + clock["data"])
    record = load([run_dir]).records[0]
    assert record.train_s == pytest.approx(seconds["train"] + seconds["data"] + seconds["teacher"])
    assert record.curve.train_s[0] >= seconds["teacher"]
    assert seconds["wall"] == pytest.approx(sum(s for line, s in seconds.items() if line != "wall"))


def attempt_of(out: Path, *words: str) -> Path:
    with attempt(out, *words) as running:
        code, _, err = running.end()
    assert code == 0, err
    return the_run(out)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("ideas.distill.run=/nowhere",),
            "ideas.distill.run must name a run: /nowhere must be a run, a folder, a glob",
        ),
        (("ideas.distill.run=last",), "ideas.distill.run must name its run: with last"),
        (("objective.loss_chunks=4",), "objective.loss_chunks must be 0 or 1 beside ideas.distill"),
        (("ideas.distill.weight=1.5",), "ideas.distill.weight must be at most 1"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(
    teacher: str, words: tuple[str, ...], why: str, tmp_path: Path
):
    with pytest.raises(ValueError, match=why):
        plan(distilled(teacher, f"output_dir={tmp_path}", *words), choices={})


def test_a_teacher_of_a_shorter_context_is_refused(teacher: str, tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"ideas.distill.run must be a run of model.seq_len=256 or more, got 128"
    ):
        trainee_of(distilled(teacher, "model.seq_len=256", "trainer.batch_tokens=2048"), tmp_path)


# --- document masking

START = 256  # of a document of bytes


def with_documents(length: int, *begins: int) -> torch.Tensor:
    """Two sequences, documents beginning at these places of the first and nowhere in the second."""
    tokens = (torch.arange(2 * length) * 31 % 251).reshape(2, length)
    tokens[0, list(begins)] = START
    return tokens


ATTENTIONS = ("mha", "flash", "gqa", "sliding", "hybrid")


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_stays_inside_a_document(attention: str):
    """Each token's logits are those of a sequence in which all before its document has been replaced, and
    differ from those unmasked."""
    words = (
        f"attention={attention}",
        "position=none",
        *(("attention.window=20",) if attention in ("sliding", "hybrid") else ()),
    )
    masked, plain = (moved(composed(*words, *more)) for more in (("attention.document_start=256",), ()))
    tokens = with_documents(100, 7, 70)
    confined, unmasked = masked.logits(tokens), plain.logits(tokens)
    for first, last in ((0, 7), (7, 70), (70, 100)):
        # without positions, a document is the same wherever it stands
        alone = plain.logits(tokens[:1, first:last])
        torch.testing.assert_close(confined[:1, first:last], alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(confined[1], unmasked[1], rtol=1e-4, atol=1e-5)
    assert (confined[0, 70:] - unmasked[0, 70:]).abs().max() > 1e-3


@pytest.mark.parametrize("attention", ["mha", "flash", "sliding"])
def test_one_document_changes_no_bit(attention: str):
    passes = []
    for more in ((), ("attention.document_start=256",)):
        model, tokens = moved(composed(f"attention={attention}", *more)), with_documents(101)
        loss = model(tokens[:, :-1], tokens[:, 1:]).total
        loss.backward()
        passes.append([loss, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*passes, strict=True))


@pytest.mark.parametrize("window", [None, 20])
def test_flexattentions_mask_is_that_of_the_pairs(window: int | None):
    ids_BT = (with_documents(300, 7, 170) == START).cumsum(1)
    mask = flex_mask(ids_BT, window)
    b, query, key = (torch.arange(n) for n in (2, 300, 300))
    allowed = mask.mask_mod(b[:, None, None], torch.tensor(0), query[:, None], key)
    distance = query[:, None] - key
    assert torch.equal(allowed, seen(ids_BT)[:, 0] & (distance < (window or 300)))
    tiles = F.pad(allowed, (0, 84, 0, 84)).unflatten(2, (3, 128)).unflatten(1, (3, 128)).any(4).any(2)
    # what is left out holds nothing that is seen, and no more is computed
    assert torch.equal(mask.to_dense()[:, 0].bool(), tiles)


def test_documents_are_counted_and_decoded_without_a_cache():
    plain, masked = (composed("attention=hybrid", *more) for more in ((), ("attention.document_start=256",)))
    assert flops_per_token(masked, vocab_size=V) == flops_per_token(plain, vocab_size=V)
    with pytest.raises(UncachedError, match=r"attention\.kind=hybrid defines no cache_slots"):
        check_cached(build_model(masked, vocab_size=V).eval(), masked)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("attention.document_start=257",),
            r"attention.document_start must be a token, below 257, or null, got 257",
        ),
        (
            (
                "attention.document_start=256",
                "attention.kernel=cudnn",
                "trainer.device=cuda",
                "trainer.precision=bf16",
            ),
            r"be one of materialized, efficient, flex, blocks beside attention.document_start on "
            r"trainer.device=cuda, got cudnn",
        ),
        (("attention.document_start=256", "attention.kernel=flex"), r"be one that trains on the CPU"),
        (
            ("attention.kernel=flex", "trainer.device=cuda"),
            r"fused, flash, efficient, cudnn for this option, got flex",
        ),
    ],
)
def test_kernels_without_documents_are_refused(words: tuple[str, ...], why: str):
    with pytest.raises(ValueError, match=why):
        composed(*words)


# --- short sequences, small batches, short windows first

GROWING = ("short_sequences", "small_batches", "short_windows")


def growing(name: str, start: int, *words: str) -> Run:
    window = ("attention=hybrid", "attention.window=32") if name == "short_windows" else ()
    return composed(
        f"ideas=[{name}]", f"ideas.{name}.start={start}", f"ideas.{name}.until=0.5", *window, *words
    )


@pytest.mark.parametrize("name", GROWING)
def test_it_doubles_in_stages_of_equal_length(name: str):
    idea = growing(name, 2).ideas[name]
    idea.start = 8  # type: ignore[attr-defined]
    assert [idea.divisor(step=step, steps=60) for step in range(60)] == [8] * 10 + [4] * 10 + [2] * 10 + [
        1
    ] * 30  # type: ignore[attr-defined]
    assert [idea.divisor(step=step, steps=4) for step in range(4)] == [8, 2, 1, 1]  # type: ignore[attr-defined]


def test_a_step_is_measured_as_it_is_in_the_end():
    run = growing(
        "short_windows",
        2,
        "ideas=[short_windows,small_batches,short_sequences,entropy]",
        "ideas.small_batches.start=2",
    )
    assert list(run.in_the_end().ideas) == ["entropy"]
    assert run.in_the_end() == replace(run, ideas={"entropy": run.ideas["entropy"]})


def test_short_sequences_are_the_same_tokens_cut(tmp_path: Path):
    run = growing("short_sequences", 4)
    (job, trainee), (_, plain) = trainee_of(run, tmp_path), trainee_of(composed(), tmp_path)
    tokens = torch.from_numpy(plain.train.read(range(16))).long()
    with torch.no_grad():
        cut = [
            plain.model(tokens[:, at : at + 32], tokens[:, at + 1 : at + 33]).total
            for at in range(0, 128, 32)
        ]
    expected = float(sum(cut)) / 4
    assert take_step(job, trainee, Ledger(started=0.0), step=0).loss == pytest.approx(expected, rel=1e-6)


def test_small_batches_follow_each_other_and_every_token_is_counted(tmp_path: Path):
    run = growing("small_batches", 2)
    assert [run.batch_tokens(step) for step in (0, 5, 6, 11)] == [1024, 1024, 2048, 2048]
    assert [run.tokens_before(step) for step in (0, 1, 6, 7, 12)] == [0, 1024, 6144, 8192, 18432]
    job, trainee = trainee_of(run, tmp_path)
    read = [fetch(job, trainee, step=step) for step in range(12)]
    assert torch.equal(torch.cat(read), torch.from_numpy(trainee.train.read(range(18432 // 128))))
    small = composed("trainer.batch_tokens=1024")
    assert numbers(steps(run, tmp_path)) == numbers(steps(small, tmp_path))


@pytest.mark.slow
def test_small_batches_in_the_record(tmp_path: Path):
    words = ("ideas=[small_batches]", "ideas.small_batches.start=2", "ideas.small_batches.until=0.5")
    # which refuses a summary whose tokens are not its rows'
    record = load([attempt_of(tmp_path / "out", *words)]).records[0]
    assert record.summary["tokens"] == 15 * 1024 + 15 * 2048
    assert record.curve.tokens == [0, 12 * 1024, 15 * 1024 + 9 * 2048, 15 * 1024 + 15 * 2048]
    assert record.summary["tokens_per_s"] * (record.train_s or 0) == pytest.approx(record.summary["tokens"])


def test_short_windows_are_those_of_a_smaller_window_in_training_alone(tmp_path: Path):
    run, whole = growing("short_windows", 4), growing("short_windows", 1)
    job, trainee = trainee_of(run, tmp_path)
    small = composed("attention=hybrid", "attention.window=8")
    assert take_step(job, trainee, Ledger(started=0.0), step=0).loss == steps(small, tmp_path, 1)[0].loss
    again = trainee_of(whole, tmp_path)[1]
    put_weights(again.model, weights(trainee.model))
    assert validate(trainee.model, trainee.val, run=run, world=job.world) == validate(
        again.model, again.val, run=whole, world=job.world
    )
    tokens = torch.from_numpy(trainee.train.read(range(2))).long()
    trainee.model.joined[0][1].before_forward(trainee.model.joined[0][2], trainee.model, step=6)
    assert torch.equal(trainee.model.logits(tokens[:, :-1]), again.model.logits(tokens[:, :-1]))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("ideas=[short_sequences]", "ideas.short_sequences.start=3"),
            r"ideas.short_sequences.start must be a power of 2, got 3",
        ),
        (
            ("ideas=[short_sequences]", "ideas.short_sequences.start=256"),
            r"start must divide model.seq_len=128, got 256",
        ),
        (
            ("ideas=[small_batches]", "ideas.small_batches.start=4"),
            r"into multiples of micro_batch × seq_len × devices = 1024, got 4",
        ),
        (
            ("ideas=[short_windows]",),
            r"ideas.short_windows.start must be at most attention's window, of 0 tokens, got 4",
        ),
        (
            ("ideas=[small_batches]", "trainer.batch_tokens=8192", "optimizer.beta2_half_life_tokens=100000"),
            r"beta2 that follows from the batch",
        ),
        (
            ("ideas=[small_batches]", "ideas.small_batches.until=1"),
            r"ideas.small_batches.until must be below 1",
        ),
        (
            ("ideas=[short_sequences]", "trainer.device=cuda", "trainer.cuda_graphs=true"),
            r"trainer.cuda_graphs must be false beside",
        ),
    ],
)
def test_what_cannot_grow_is_refused(words: tuple[str, ...], why: str):
    with pytest.raises(ValueError, match=why):
        composed(*words)


# --- data in an order


def test_windows_are_arranged_by_score_and_the_worst_left_out():
    run = composed("ideas=[curriculum]", "ideas.curriculum.document_start=98")
    data = prepare(run.data, run.tokenizer, cache_dir=cache_root())
    plain, arranged = train_windows(run, data.train), train_windows(run, data.train)
    scores = np.sin(np.arange(plain.n) * 7.0)
    arranged.arrange(scores, keep=0.75, noise=0.0, sequences=100)
    kept = set(np.argsort(scores)[: round(0.75 * plain.n)].tolist())
    order, shuffled = ([windows._window(i) for i in range(arranged.n)] for windows in (arranged, plain))
    assert set(order) == kept
    unsorted = [window for window in [plain._window(i) for i in range(plain.n)] if window in kept]
    assert set(order[:100]) == set(unsorted[:100])  # those that a run of 100 sequences reads
    assert [scores[window] for window in order[:100]] == sorted(scores[window] for window in order[:100])
    assert order[100:] == unsorted[100:]
    arranged = train_windows(run, data.train)
    arranged.arrange(scores, keep=1.0, noise=0.5, sequences=100)
    ranks = {
        window: rank for rank, window in enumerate(sorted(shuffled[:100], key=lambda window: scores[window]))
    }
    mixed = [
        0.5 * ranks[window] + 0.5 * shuffled.index(window)
        for window in (arranged._window(i) for i in range(100))
    ]
    assert mixed == sorted(mixed)


def test_short_documents_first(tmp_path: Path):
    run = composed("ideas=[curriculum]", "ideas.curriculum.document_start=98")
    job, trainee = trainee_of(run, tmp_path)
    begun = [int((fetch(job, trainee, step=step)[:, :-1] == 98).sum(1).max()) for step in range(12)]
    assert begun == sorted(begun, reverse=True)
    assert begun[0] > begun[-1]


@pytest.mark.slow
def test_what_a_finished_run_finds_easy_first(teacher: str, tmp_path: Path):
    """Its losses are found once, are those of its model, and their time is a teacher's however often they are
    used."""
    more = (f"cache_dir={tmp_path}", "data.train_tokens=30000")
    run = composed("ideas=[easy_first]", f"ideas.easy_first.run={teacher}", *more)
    attempts = [trainee_of(run, tmp_path) for _ in range(2)]
    model, (job, first), (_, second) = trained(Path(teacher))[1], *attempts
    tokens = torch.from_numpy(first.train.read(range(192))).long()  # all that the run reads
    with torch.no_grad():
        losses = [float(model(window[None, :-1], window[None, 1:]).total) for window in tokens]
    assert losses == pytest.approx(sorted(losses), abs=1e-4)
    assert losses[-1] - losses[0] > 0.01
    assert [first.train._window(i) for i in range(192)] == [second.train._window(i) for i in range(192)]
    assert first.scores_s == first.scores_now_s == pytest.approx(second.scores_s, abs=0.5)
    assert second.scores_now_s < second.scores_s
    began = time.monotonic()
    seconds = Recorder(
        replace(job, teacher_s=5.0, started=began), first, clock_s={}, losses=[]
    ).ledger.seconds()
    took = time.monotonic() - began
    assert seconds["teacher"] == pytest.approx(5.0 + first.scores_s)
    assert -first.scores_now_s <= seconds["startup"] <= took - first.scores_now_s  # they were found in it
    assert plan(run, choices={}).teachers["ideas.easy_first"].record["path"] == teacher


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("ideas.curriculum.keep=0",), r"ideas.curriculum.keep must be above 0"),
        (("data.order=sequential",), r"data.order must be shuffled beside ideas.curriculum, got sequential"),
    ],
)
def test_an_order_that_cannot_be_is_refused(words: tuple[str, ...], why: str):
    with pytest.raises(ValueError, match=why):
        composed("ideas=[curriculum]", *words)


# --- all of them

NEUTRAL = {  # each where it changes nothing
    "multi_token": ("weights=[0]",),
    "early_loss": ("weight=0",),
    "entropy": ("weight=0",),
    "distill": ("weight=0",),
    "untie": ("at=1",),
    "curriculum": ("noise=1",),
    "short_sequences": ("start=1",),
    "small_batches": ("start=1",),
    "short_windows": ("start=1",),
}


def test_where_they_are_neutral_they_change_no_bit(teacher: str, tmp_path: Path):
    # one micro-batch: untied sums are in one order
    window = ("attention=hybrid", "attention.window=32", "trainer.batch_tokens=1024")
    keys = [f"ideas.{name}.{key}" for name, keys in NEUTRAL.items() for key in keys]
    neutral = steps(
        composed(*window, f"ideas=[{','.join(NEUTRAL)}]", *keys, f"ideas.distill.run={teacher}"), tmp_path
    )
    assert numbers(neutral) == numbers(steps(composed(*window), tmp_path))


ALL = (
    ("ideas=[multi_token]", "ideas.multi_token.final=0"),
    ("ideas=[early_loss]",),
    ("ideas=[entropy]",),
    ("ideas=[untie]", "ideas.untie.at=0.34"),
    ("ideas=[distill]",),
    ("attention=hybrid", "attention.document_start=98", "attention.window=20"),
    ("ideas=[curriculum]", "ideas.curriculum.document_start=98", "ideas.curriculum.keep=0.5"),
    ("ideas=[short_sequences]", "ideas.short_sequences.until=0.6"),
    ("ideas=[small_batches]", "ideas.small_batches.until=0.34", "trainer.micro_batch=4"),
    ("ideas=[short_windows]", "attention=sliding", "attention.window=20", "ideas.short_windows.until=0.6"),
)

SEVERAL = (
    "ideas=[curriculum,distill,early_loss,entropy,multi_token,short_sequences,short_windows,untie]",
    *(
        word
        for words in ALL
        for word in words[1:]
        if "small_batches" not in word and word != "trainer.micro_batch=4"
    ),
)

# all of ALL, in two
TOGETHER = (SEVERAL, next(words for words in ALL if "small_batches" in words[0]))


def chosen(words: tuple[str, ...], teacher: str) -> tuple[str, ...]:
    return (*words, f"ideas.distill.run={teacher}") if "distill" in words[0] else words


@pytest.mark.parametrize(
    "words",
    TOGETHER,
    ids=lambda words: words[0],
)
def test_it_resumes_bit_for_bit(words: tuple[str, ...], teacher: str, tmp_path: Path):
    """From a checkpoint of step 3, before what changes at step 4, the next steps are those of the run that
    was not interrupted."""
    run = composed(*chosen(words, teacher))
    job, trainee = trainee_of(run, tmp_path)
    whole = [take_step(job, trainee, Ledger(started=0.0), step=i) for i in range(3)]
    again = saved_and_loaded(trainee, run, tmp_path, step=3)
    whole += [take_step(job, trainee, Ledger(started=0.0), step=i) for i in range(3, 6)]
    resumed = [take_step(job, again, Ledger(started=0.0), step=i) for i in range(3, 6)]
    assert [(step.loss, step.parts, step.grad_norm) for step in resumed] == [
        (step.loss, step.parts, step.grad_norm) for step in whole[3:]
    ]


@pytest.mark.slow
def test_two_ranks_equal_one(teacher: str, tmp_path: Path):
    """Sums in another order: tests/test_faults.py, number 22."""
    run_dirs = []
    for devices in (1, 2):
        with attempt(
            tmp_path / str(devices), f"trainer.devices={devices}", *chosen(SEVERAL, teacher)
        ) as running:
            code, _, err = running.end()
        assert code == 0, err
        run_dirs.append(the_run(tmp_path / str(devices)))
    assert state_of(run_dirs[0]) == state_of(run_dirs[1])
