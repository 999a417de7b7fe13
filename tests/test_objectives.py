"""Objectives, data and schedules: multi-token prediction and its kin, each against its formula and,
where it is neutral, against none."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nocap.checks.contract import _moved as moved  # none of its weights at its start
from nocap.config.keys import InputError
from nocap.config.paths import cache_root
from nocap.config.run import Run
from nocap.data.batches import train_windows
from nocap.data.prepare import prepare
from nocap.launch.plan import plan
from nocap.model.build import build_model
from nocap.model.flops import flops_per_token
from nocap.model.language_model import lent
from nocap.store.runs import load_runs
from nocap.training.recorder import Recorder
from nocap.training.step import Update, fetch
from nocap.training.trained import trained
from nocap.training.validation import validate
from tests.attempts import state_of
from tests.conftest import SMALL, Door, Undisturbed, the_run
from tests.in_process import planned, start
from tests.test_ideas import V, advance, composed, saved_and_loaded, trainee_of

pytestmark = pytest.mark.usefixtures("atlas_ideas")
TOKENS = torch.arange(34).reshape(2, 17) * 7 % V
INPUTS = TOKENS[:, :-1]
TARGETS = TOKENS[:, 1:]
close = torch.testing.assert_close


def steps(run: Run, folder: Path, n: int = 3) -> list[Update]:
    return advance(*trainee_of(run, folder), *range(n))


def numbers(updates: list[Update]) -> list[tuple[float, float]]:
    return [(update.parts.get("next_token", update.loss), update.grad_norm) for update in updates]


# --- losses beside the next token's


def test_multi_token_against_its_formula():
    model = moved(composed("ideas=[multi_token]", "ideas.multi_token.weights=[0.5,0.25]"))
    x_BTC = model.trunk(INPUTS)
    expected = 0.0
    for k, weight in ((2, 0.5), (3, 0.25)):
        head = model.ideas.multi_token.heads[k - 2].weight
        h_BTC = x_BTC + x_BTC @ head.t()
        distance = model.head.norm(h_BTC)
        logits_BTV = distance @ model.embedding.weight.t()
        for t in range(17 - k):
            loss = F.cross_entropy(logits_BTV[:, t], TOKENS[:, t + k])
            expected += weight * loss / (17 - k)
    close(model(INPUTS, TARGETS).parts["multi_token"], expected)


def test_multi_token_fades_to_its_final_weight(tmp_path: Path):
    words = (
        "ideas.multi_token.final=0.4",
        "trainer.steps=4",
        "schedule=constant",
        "optimizer.lr=1e-30",
    )
    run = composed("ideas=[multi_token]", *words)
    parts = [update.parts for update in steps(run, tmp_path)]
    # a loss at the start is much the same for each head and step
    shares = [part["multi_token"] / part["next_token"] for part in parts]
    expected = [0.75, 0.75 * 0.85, 0.75 * 0.7]
    assert shares == pytest.approx(expected, rel=0.02)


def test_the_head_predicts_from_a_middle_layer_too():
    """The loss of a model whose blocks end there."""
    model = moved(
        composed("ideas=[early_loss]", "ideas.early_loss.layer=0", "ideas.early_loss.weight=0.4")
    )
    loss = model(INPUTS, TARGETS)
    assert model.ideas.early_loss.x_BTC is None  # no step keeps another's
    close(loss.total, loss.parts["next_token"] + loss.parts["early_loss"])
    close(model.eval()(INPUTS, TARGETS).total, loss.parts["next_token"])
    model.blocks = model.blocks[:1]
    close(0.4 * model(INPUTS, TARGETS).total, loss.parts["early_loss"])


def test_the_entropy_of_the_predictions_is_rewarded():
    model = moved(composed("ideas=[entropy]", "ideas.entropy.weight=0.3"))
    p = model.logits(INPUTS).softmax(-1)
    entropy = model(INPUTS, TARGETS).parts["entropy"]
    negative = (p * p.log()).sum(-1)
    close(entropy, 0.3 * negative.mean())


# --- untying


def test_untying_is_tied_before_and_two_matrices_of_one_state_after(tmp_path: Path):
    # one micro-batch: sums in one order
    words = ("trainer.batch_tokens=1024", "trainer.grad_clip=0.1")
    untie = (*words, "ideas=[untie]", "ideas.untie.at=0.25")  # from 3 of the 12 steps on
    after = []
    for more in (words, untie):
        job, trainee = trainee_of(composed(*more), tmp_path)
        advance(job, trainee, 0, 1, 2)
        parameters = trainee.model.named_parameters(remove_duplicate=False)
        copies = {name: p.detach().clone() for name, p in parameters}
        after.append(copies)
    for name, p in after[0].items():
        assert torch.equal(p, after[1][name])
    head = trainee.model.get_parameter("head.unembed.weight")
    embedding = trainee.model.get_parameter("embedding.weight")
    assert torch.equal(head, embedding)
    # Adam's two moments are those of the tied matrix
    state = trainee.optimizers[0].state
    for f in ("step", "exp_avg", "exp_avg_sq"):
        assert torch.equal(state[head][f], state[embedding][f])
    advance(job, trainee, 3)
    assert not torch.equal(head, embedding)


# --- distillation


@pytest.fixture(scope="session")
def teacher(undisturbed: Undisturbed) -> str:
    return str(undisturbed.run_dir)


@pytest.fixture
def teacher_s(undisturbed: Undisturbed) -> float:
    """The seconds of training that made it."""
    text = (undisturbed.run_dir / "summary.json").read_text()
    clock = json.loads(text)["clock_s"]
    return clock["train"] + clock["data"]


def distilled(teacher: str, *words: str) -> Run:
    return composed("ideas=[distill]", f"ideas.distill.run={teacher}", *words)


def test_distillation_against_its_formula(teacher: str, tmp_path: Path):
    run = distilled(teacher, "ideas.distill.weight=0.3", "ideas.distill.temperature=1.5")
    job, trainee = trainee_of(run, tmp_path)
    teaching = trained(Path(teacher))[1]
    plain = composed()
    model = trainee.model
    logits = teaching.logits(INPUTS)
    p = (logits.flatten(0, 1) / 1.5).softmax(-1)
    q = (model.logits(INPUTS).flatten(0, 1) / 1.5).softmax(-1)
    kl = (p * (p / q).log()).sum(-1).mean()
    ce = F.cross_entropy(model.logits(INPUTS).flatten(0, 1), TARGETS.flatten())
    loss = model(INPUTS, TARGETS).total
    close(loss, 0.7 * ce + 0.3 * 1.5**2 * kl)
    loss.backward()
    assert all(p.grad is None for p in teaching.parameters())
    for name, _ in [*model.named_parameters(), *model.named_buffers()]:
        assert "teach" not in name
    model_of_plain = build_model(plain, vocab_size=V)
    others = validate(model_of_plain, trainee.val, run=plain, world=job.world)
    assert validate(model, trainee.val, run=run, world=job.world) == others
    # counted as a teacher of the same size, no backward
    flops = flops_per_token(plain, vocab_size=V)[0]
    counted = (pytest.approx(flops * 4 / 3), "arithmetic; counted: ideas=distill")
    assert flops_per_token(run, vocab_size=V) == counted


def test_a_teacher_is_known_by_its_weights_and_not_by_its_place(
    teacher: str, teacher_s: float, tmp_path: Path
):
    copy = shutil.copytree(teacher, tmp_path / "copies" / Path(teacher).name)
    sums = next((copy / "checkpoints").iterdir()) / "manifest.json"
    plans = []
    for path in (teacher, copy):
        overrides = distilled(str(path), f"output_dir={tmp_path}")
        plans.append(plan(overrides, choices={}))
    content = json.loads(sums.read_text())
    text = sums.read_text().replace(content["model.safetensors"], "0" * 64)
    sums.write_text(text)
    copied_overrides = distilled(str(copy), f"output_dir={tmp_path}")
    plans.append(plan(copied_overrides, choices={}))
    original, moved_away, changed = (each.identity for each in plans)
    assert original == moved_away != changed
    assert plans[0].teachers["ideas.distill"].seconds == teacher_s


def test_a_teachers_time_is_in_the_record(teacher: str, teacher_s: float, tmp_path: Path):
    this = planned(tmp_path, "ideas=[distill]", f"ideas.distill.run={teacher}")
    start(this)
    record = load_runs([this.run_dir]).records[0]  # which refuses tokens that are not its rows'
    seconds = record.summary["clock_s"]
    assert seconds["teacher"] == pytest.approx(teacher_s)
    expected = seconds["train"] + seconds["data"] + seconds["teacher"]
    assert record.train_s == pytest.approx(expected)
    assert record.curve.train_s[0] >= seconds["teacher"]
    spent = sum(s for line, s in seconds.items() if line != "wall")
    assert seconds["wall"] == pytest.approx(spent)
    assert record.summary["tokens"] == 7 * 64
    assert record.curve.tokens == [0, 3 * 64, 6 * 64, 7 * 64]
    own_s = seconds["train"] + seconds["data"]
    assert record.summary["tokens_per_s"] * own_s == pytest.approx(record.summary["tokens"])


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (
            "ideas=[curriculum,easy_first] ideas.easy_first.run=x",
            "hold at most one idea that reorders the training data, got curriculum, easy_first",
        ),
        (
            "ideas=[easy_first,x0,curriculum] ideas.easy_first.run=x",
            "hold at most one idea that reorders the training data, got curriculum, easy_first",
        ),
        (
            "ideas=[tail_average,averaged_weights]",
            "hold one average at most: .*, got averaged_weights, ",
        ),
    ],
)
def test_two_ideas_of_which_one_would_undo_the_other_are_refused(words: str, rule: str):
    with pytest.raises(ValueError, match=f"^ideas must {rule}"):
        composed(*words.split())


def test_weights_are_lent_once():
    p = torch.nn.Parameter(torch.zeros(1))
    with lent([(p, torch.ones(1))]):
        rule = r"^ideas must hold at most one idea that chooses the weights"
        with pytest.raises(InputError, match=rule), lent([(p, torch.full((1,), 2.0))]):
            pass
        assert p.item() == 1.0
    assert p.item() == 0.0
    with lent([(p, torch.ones(1))]):
        assert p.item() == 1.0


# --- data in an order

CURRICULUM = ("ideas=[curriculum]", "ideas.curriculum.document_start=98")


def order_of(windows: Any) -> list[int]:
    return [windows._window(i) for i in range(windows.n)]


def test_windows_are_arranged_by_score_and_the_worst_left_out():
    run = composed(*CURRICULUM)
    data = prepare(run.data, run.tokenizer, cache_dir=cache_root())
    plain, arranged, mixed = (train_windows(run, data.train) for _ in range(3))
    scores = np.sin(np.arange(plain.n) * 7.0)
    shuffled = order_of(plain)
    arranged.arrange(scores, keep=0.75, noise=0.0, sequences=100)
    kept = set(np.argsort(scores)[: round(0.75 * plain.n)].tolist())
    unsorted = [window for window in shuffled if window in kept]
    # those that a run of 100 sequences reads, in their order; after them all as it was
    expected = sorted(unsorted[:100], key=lambda window: scores[window]) + unsorted[100:]
    assert order_of(arranged) == expected
    mixed.arrange(scores, keep=1.0, noise=0.5, sequences=100)
    by_score = sorted(shuffled[:100], key=lambda window: scores[window])
    order = order_of(mixed)[:100]
    ranks = [by_score.index(w) + shuffled.index(w) for w in order]
    assert ranks == sorted(ranks)


def test_short_documents_come_first(tmp_path: Path):
    job, trainee = trainee_of(composed(*CURRICULUM), tmp_path)
    begun = [int((fetch(job, trainee, step=step)[:, :-1] == 98).sum(1).max()) for step in range(12)]
    assert begun == sorted(begun, reverse=True)
    assert begun[0] > begun[-1]


@pytest.mark.slow
def test_what_a_finished_run_finds_easy_first(teacher: str, tmp_path: Path):
    """Its losses are found once, are those of its model, and their time is a teacher's however
    often they are used."""
    more = (f"cache_dir={tmp_path}", "data.train_tokens=30000")
    run = composed("ideas=[easy_first]", f"ideas.easy_first.run={teacher}", *more)
    (job, first), (_, second) = [trainee_of(run, tmp_path) for _ in range(2)]
    # all
    model = trained(Path(teacher))[1]
    rows = first.train.read(range(192))
    tokens = torch.from_numpy(rows).long()
    with torch.no_grad():
        losses = [float(model(window[None, :-1], window[None, 1:]).total) for window in tokens]
    assert losses == pytest.approx(sorted(losses), abs=1e-4)
    assert losses[-1] - losses[0] > 0.01
    order = order_of(first.train)[:192]
    assert order == order_of(second.train)[:192]
    assert first.scores.total_s == first.scores.now_s
    assert first.scores.total_s == pytest.approx(second.scores.total_s, abs=0.5)
    assert second.scores.now_s < second.scores.total_s
    taught_job = replace(job, teacher_s=5.0)
    ledger = Recorder(taught_job, first, clock_s={}, losses=[]).ledger
    seconds = ledger.seconds()
    assert seconds["teacher"] == pytest.approx(5.0 + first.scores.total_s)
    teachers = plan(run, choices={}).teachers
    assert teachers["ideas.easy_first"].record["path"] == teacher


# --- what is refused

ON_CUDA = "attention.kernel=cudnn trainer.device=cuda trainer.precision=bf16"


REFUSED = [
    (
        "ideas=[early_loss] ideas.early_loss.layer=1",
        "ideas.early_loss.layer must be below the last, 1, got 1",
    ),
    ("ideas=[untie] model.tie_head=false", "model.tie_head must be true beside ideas.untie"),
    (
        "DISTILL ideas.distill.run=/nowhere",
        "ideas.distill.run must name a run: /nowhere must be a run, a",
    ),
    ("DISTILL ideas.distill.run=last", "ideas.distill.run must name one run, and not last"),
    (
        "DISTILL objective.loss_chunks=4",
        "objective.loss_chunks must be 0 or 1 beside ideas.distill",
    ),
    ("DISTILL ideas.distill.weight=1.5", "ideas.distill.weight must be at most 1"),
    (
        "DISTILL model.seq_len=256",
        "ideas.distill.run must be a run with model.seq_len=256 or more, got 128",
    ),
    (
        "attention.kernel=blocks trainer.device=cuda",
        "fused, flash, efficient, cudnn, flex with attention.kind=global, got blocks",
    ),
    (
        "ideas=[untie] trainer.device=cuda trainer.cuda_graphs=true",
        "trainer.cuda_graphs must be false with ideas.untie, which runs code between steps",
    ),
    ("ideas=[short_sequences]", "ideas/short_sequences is no option"),
    ("ideas=[curriculum] ideas.curriculum.keep=0", "ideas.curriculum.keep must be above 0"),
    (
        "ideas=[curriculum] data.order=sequential",
        "data.order must be shuffled beside ideas.curriculum, got sequential",
    ),
]


@pytest.mark.parametrize(("words", "rule"), REFUSED)
def test_a_wrong_objective_is_refused_by_key(words: str, rule: str, teacher: str, tmp_path: Path):
    distill = f"ideas=[distill] ideas.distill.run={teacher}"
    with pytest.raises(ValueError, match=re.escape(rule)):
        begun(tmp_path, *words.replace("DISTILL", distill).split())


def begun(folder: Path, *words: str) -> None:
    run = composed(*words, f"output_dir={folder}")
    plan(run, choices={})
    trainee_of(run, folder)


# --- all of them

NEUTRAL = {  # each where it changes nothing
    "multi_token": "weights=[0]",
    "early_loss": "weight=0",
    "entropy": "weight=0",
    "distill": "weight=0",
    "untie": "at=1",
    "curriculum": "noise=1",
}


def test_where_they_are_neutral_they_change_no_bit(teacher: str, tmp_path: Path):
    # one micro-batch: untied sums are in one order
    plain = ("attention=hybrid", "attention.window=32", "trainer.batch_tokens=1024")
    keys = [f"ideas.{name}.{key}" for name, key in NEUTRAL.items()]
    neutral = composed(
        *plain, f"ideas=[{','.join(NEUTRAL)}]", *keys, f"ideas.distill.run={teacher}"
    )
    expected = numbers(steps(composed(*plain), tmp_path))
    assert numbers(steps(neutral, tmp_path)) == expected


SEVERAL = (
    "ideas=[curriculum,distill,early_loss,entropy,multi_token,untie]",
    "attention=sliding",
    "attention.window=20",
    "ideas.multi_token.final=0",
    "ideas.untie.at=0.34",
    "ideas.curriculum.document_start=98",
    "ideas.curriculum.keep=0.5",
)


def taught(words: tuple[str, ...], teacher: str) -> tuple[str, ...]:
    if "distill" in words[0]:
        return (*words, f"ideas.distill.run={teacher}")
    return words


def test_it_resumes_bit_for_bit(teacher: str, tmp_path: Path):
    """From a checkpoint of step 3, before what changes at step 4, the next steps are those of the
    run that was not interrupted."""
    run = composed(*taught(SEVERAL, teacher))
    job, trainee = trainee_of(run, tmp_path)
    advance(job, trainee, 0, 1, 2)
    again = saved_and_loaded(trainee, run, tmp_path, step=3)

    def updates(each: Any) -> list[Any]:
        return [(step.loss, step.parts, step.grad_norm) for step in advance(job, each, 3, 4, 5)]

    whole = updates(trainee)
    resumed = updates(again)
    assert resumed == whole


@pytest.mark.slow
def test_two_ranks_equal_one(teacher: str, door: Door, tmp_path: Path):
    """With Muon's options. Sums in another order: tests/test_faults.py, number 22."""
    muon = ("optimizer=muon", "optimizer.iteration=polar_express", "optimizer.row_beta2=0.9")
    states = []
    for devices in ("1", "2"):
        words = (*SMALL, *taught(SEVERAL, teacher), *muon, f"trainer.devices={devices}")
        done = door(*words, f"output_dir={tmp_path / devices}", timeout=280)
        assert done.code == 0, done.err
        states.append(state_of(the_run(tmp_path / devices)))
    assert states[0] == states[1]
