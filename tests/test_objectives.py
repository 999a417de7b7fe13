"""Objectives, data and schedules: multi-token prediction and its kin, each against its formula and, where it is neutral, against none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nocap.config.compose import compose
from nocap.config.run import Run
from nocap.launch.plan import plan
from nocap.model.flops import flops_per_token
from nocap.model.gpt import build_model
from nocap.store.runs import records
from nocap.training import checkpoint
from nocap.training.ledger import Ledger
from nocap.training.optimizer_trial import optimizer_shapes
from nocap.training.step import Update, take_step, validate
from nocap.training.trained import trained
from tests.attempts import attempt, state_of
from tests.conftest import SMALL, Undisturbed, the_run
from tests.test_combinations import losses, small
from tests.test_ideas import trainee_of

V = 257


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


def test_multi_token_fades_and_weighs_nothing_at_nought(tmp_path: Path):
    plain = steps(composed(), tmp_path)
    nought = steps(composed("ideas=[multi_token]", "ideas.multi_token.weights=[0]"), tmp_path)
    assert numbers(nought) == numbers(plain)
    words = ("ideas=[multi_token]", "ideas.multi_token.final=0.4", "trainer.steps=4", "schedule=constant", "optimizer.lr=1e-30")
    shares = [update.parts["multi_token"] / update.parts["next_token"] for update in steps(composed(*words), tmp_path)]
    for share, decay in zip(shares, (1, 0.85, 0.7), strict=True):
        assert share == pytest.approx(0.75 * decay, rel=0.02)  # a loss at the start is much the same for each head and step


# --- untying


def together(run: Run, folder: Path, n: int) -> list[dict[str, torch.Tensor]]:
    """All parameters after each of the steps, the head's among them, tied or not."""
    (job, trainee), found = trainee_of(run, folder), []
    for i in range(n):
        take_step(job, trainee, Ledger(started=0.0), step=i)
        found.append({name: p.detach().clone() for name, p in trainee.model.named_parameters(remove_duplicate=False)})
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_untying_is_tied_before_and_two_matrices_of_one_state_after(optimizer: str, tmp_path: Path):
    words = (f"optimizer={optimizer}", "trainer.batch_tokens=1024", "trainer.grad_clip=0.1")  # one micro-batch: sums in one order
    tied, untied = (together(composed(*words, *more), tmp_path, 4) for more in ((), ("ideas=[untie]", "ideas.untie.at=0.25")))
    for before, after in zip(tied[:3], untied[:3], strict=True):  # 3 of the 12 steps
        assert all(torch.equal(p, after[name]) for name, p in before.items())
        assert torch.equal(after["head.unembed.weight"], after["embedding.weight"])
    assert not torch.equal(untied[3]["head.unembed.weight"], untied[3]["embedding.weight"])
    # The step that parts them, by hand: Adam's two moments so far are those of the tied matrix.
    job, trainee = trainee_of(composed(*words, "ideas=[untie]", "ideas.untie.at=0.25"), tmp_path)
    for i in range(3):
        take_step(job, trainee, Ledger(started=0.0), step=i)
    state = trainee.optimizers[0].state
    one, other = (state[trainee.model.get_parameter(name)] for name in ("head.unembed.weight", "embedding.weight"))
    assert all(torch.equal(one[field], other[field]) for field in ("step", "exp_avg", "exp_avg_sq"))


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
    theirs = trained(Path(teacher))[1]
    tokens = torch.arange(34).reshape(2, 17) * 7 % V
    inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()
    p, q = ((model.logits(inputs).flatten(0, 1) / 1.5).softmax(-1) for model in (theirs, trainee.model))
    kl, ce = (p * (p / q).log()).sum(-1).mean(), F.cross_entropy(trainee.model.logits(inputs).flatten(0, 1), targets)
    loss = trainee.model(inputs, tokens[:, 1:])
    torch.testing.assert_close(loss.total, 0.7 * ce + 0.3 * 1.5**2 * kl)
    loss.total.backward()
    assert all(p.grad is None for p in theirs.parameters())
    assert not any("teach" in name for name, _ in [*trainee.model.named_parameters(), *trainee.model.named_buffers()])
    plain = composed()
    assert validate(trainee.model, trainee.val, run=run, world=job.world) == validate(
        build_model(plain, vocab_size=V), trainee.val, run=plain, world=job.world
    )


def test_distillation_of_no_weight_changes_no_bit(teacher: str, tmp_path: Path):
    assert numbers(steps(distilled(teacher, "ideas.distill.weight=0"), tmp_path)) == numbers(steps(composed(), tmp_path))


def test_a_teachers_forward_is_counted(teacher: str):
    plain, taught = (flops_per_token(run, vocab_size=V) for run in (composed(), distilled(teacher)))
    assert taught == (pytest.approx(plain[0] * 4 / 3), "arithmetic; counted: ideas=distill")  # a teacher of the same size, no backward


def test_a_teacher_is_known_by_its_weights_and_not_by_its_place(teacher: str, undisturbed: Undisturbed, tmp_path: Path):
    clock = json.loads((undisturbed.run_dir / "summary.json").read_text())["clock_s"]
    copy = shutil.copytree(teacher, tmp_path / "copies" / Path(teacher).name)
    one, other = (plan(distilled(str(path), f"output_dir={tmp_path}"), choices={}) for path in (teacher, copy))
    assert one.identity == other.identity
    assert one.teachers["ideas.distill"].train_s == clock["train"] + clock["data"]
    sums = next((copy / "checkpoints").iterdir()) / "manifest.json"
    sums.write_text(sums.read_text().replace(json.loads(sums.read_text())["model.safetensors"], "0" * 64))
    assert plan(distilled(str(copy), f"output_dir={tmp_path}"), choices={}).identity != one.identity


@pytest.mark.slow
def test_a_teachers_time_is_its_pupils_too(teacher: str, undisturbed: Undisturbed, tmp_path: Path):
    clock = json.loads((undisturbed.run_dir / "summary.json").read_text())["clock_s"]
    found = attempt_of(tmp_path / "out", "ideas=[distill]", f"ideas.distill.run={teacher}", "trainer.steps=2", "trainer.checkpoint_every=1")
    seconds = json.loads((found / "summary.json").read_text())["clock_s"]
    assert seconds["teacher"] == pytest.approx(clock["train"] + clock["data"])
    record = records([found])[0]
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
        (("ideas.distill.run=/nowhere",), "ideas.distill.run must be the folder of a finished run"),
        (("objective.loss_chunks=4",), "objective.loss_chunks must be 0 or 1 beside ideas.distill"),
        (("ideas.distill.weight=1.5",), "ideas.distill.weight must be at most 1"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(teacher: str, words: tuple[str, ...], why: str, tmp_path: Path):
    with pytest.raises(ValueError, match=why):
        plan(distilled(teacher, f"output_dir={tmp_path}", *words), choices={})


def test_a_teacher_of_a_shorter_context_is_refused(teacher: str, tmp_path: Path):
    with pytest.raises(ValueError, match=r"ideas.distill.run must be a run of model.seq_len=256 or more, got 128"):
        trainee_of(distilled(teacher, "model.seq_len=256", "trainer.batch_tokens=2048"), tmp_path)


# --- all of them


ALL = (
    ("ideas=[multi_token]", "ideas.multi_token.final=0"),
    ("ideas=[untie]", "ideas.untie.at=0.34"),
    ("ideas=[distill]",),
)


def chosen(words: tuple[str, ...], teacher: str) -> tuple[str, ...]:
    return (*words, f"ideas.distill.run={teacher}") if "distill" in words[0] else words


@pytest.mark.parametrize("words", ALL, ids=lambda words: words[0])
def test_it_resumes_bit_for_bit(words: tuple[str, ...], teacher: str, tmp_path: Path):
    """From a checkpoint of step 3, before what changes at step 4, the next steps are those of the run that was not interrupted."""
    run = composed(*chosen(words, teacher))
    job, trainee = trainee_of(run, tmp_path)
    whole = [take_step(job, trainee, Ledger(started=0.0), step=i) for i in range(3)]
    writer = checkpoint.Writer(tmp_path / "checkpoints", background=False)
    writer.save(step=3, model=trainee.model, optimizers=trainee.optimizers, state={}, keep=1, must=True)
    whole += [take_step(job, trainee, Ledger(started=0.0), step=i) for i in range(3, 6)]
    path = checkpoint.find(writer.root).path
    assert path is not None
    again = trainee_of(run, tmp_path)[1]
    assert checkpoint.misfit(path, model=again.model, optimizer_shapes=optimizer_shapes(run, again.model)) is None
    checkpoint.load(path, model=again.model, optimizers=again.optimizers)
    resumed = [take_step(job, again, Ledger(started=0.0), step=i) for i in range(3, 6)]
    assert [(one.loss, one.parts, one.grad_norm) for one in resumed] == [(one.loss, one.parts, one.grad_norm) for one in whole[3:]]


@pytest.mark.slow
@pytest.mark.parametrize("words", ALL, ids=lambda words: words[0])
def test_two_ranks_equal_one(words: tuple[str, ...], teacher: str, tmp_path: Path):
    found = []
    for devices in (1, 2):
        with attempt(tmp_path / str(devices), f"trainer.devices={devices}", *chosen(words, teacher)) as running:
            code, _, err = running.end()
        assert code == 0, err
        found.append(state_of(the_run(tmp_path / str(devices))))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
@pytest.mark.parametrize("mode", ["regional", "full"])
@pytest.mark.parametrize("words", ALL, ids=lambda words: words[0])
def test_compiled_it_computes_what_eager_does(words: tuple[str, ...], mode: str, teacher: str):
    torch.compiler.reset()
    words = (*chosen(words, teacher), "trainer.precision=fp32")
    eager = losses(small(*words, "trainer.compile=off"))
    assert losses(small(*words, f"trainer.compile={mode}")) == pytest.approx(eager, abs=2e-5)
