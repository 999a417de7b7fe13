"""Ideas in their joints: what they change, what they leave alone, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nocap import outside
from nocap.checks.contract import results
from nocap.checks.trial import Trial
from nocap.config.compose import compose
from nocap.config.keys import InputError
from nocap.config.paths import cache_root
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.data.prepare import prepare
from nocap.measure.generation import Cached, Recompute, UncachedError, check_cached
from nocap.model.flops import flops_per_token
from nocap.model.gpt import build_model
from nocap.store.identity import digest, identity_parts
from nocap.training import checkpoint
from nocap.training.ledger import Ledger
from nocap.training.optimizer import build_optimizers, rates, set_lr
from nocap.training.step import Job, Trainee, build, take_step, validate
from nocap.training.world import join
from tests.conftest import REPO, SMALL

V = 257
MULTI = ("ideas=[multi_token]", "ideas.multi_token.weights=[0.3]")
pytestmark = pytest.mark.usefixtures("atlas_ideas")


def composed(*words: str) -> Run:
    return compose([*SMALL, *words])


@pytest.fixture
def softcap() -> Run:
    """Attention from outside that says nothing of itself."""
    outside.use([REPO / "tests" / "own_ideas" / "softcap"])
    return composed("attention=softcap")


def trainee_of(run: Run, folder: Path) -> tuple[Job, Trainee]:
    data = prepare(run.data, run.tokenizer, cache_dir=cache_root(run.cache_dir))
    job = Job(
        run=run,
        train_shards=data.train,
        val_shards=data.val,
        vocab_size=data.vocab_size,
        run_dir=folder,
        world=join(run.trainer.device),
        started=0.0,
    )
    return job, build(job)


def step(run: Run, folder: Path, steps: int = 1) -> list[Any]:
    job, trainee = trainee_of(run, folder)
    return [take_step(job, trainee, Ledger(started=0.0), step=i) for i in range(steps)]


# --- what an idea leaves alone ------------------------------------------------------------------------------


def test_new_parameters_leave_the_draws_of_the_rest_as_they_are():
    plain = dict(build_model(composed(), vocab_size=V).named_parameters())
    more = dict(
        build_model(composed("ideas=[x0,value_embeddings,multi_token]"), vocab_size=V).named_parameters()
    )
    assert more.keys() > plain.keys()
    assert all(torch.equal(p, more[name]) for name, p in plain.items())


def test_an_ideas_draws_do_not_depend_on_its_neighbours():
    alone, beside = (
        dict(build_model(composed(f"ideas={ideas}"), vocab_size=V).named_parameters())
        for ideas in ("[value_embeddings]", "[multi_token,value_embeddings,x0]")
    )
    assert all(torch.equal(p, beside[name]) for name, p in alone.items())


def test_the_order_of_the_command_line_is_none_of_the_run():
    first, second = (
        composed(f"ideas={ideas}") for ideas in ("[x0,value_embeddings]", "[value_embeddings,x0]")
    )
    assert to_plain(first) == to_plain(second)
    assert len({digest(identity_parts(run, data_fingerprint="")) for run in (first, second)}) == 1


# --- what an idea does --------------------------------------------------------------------------------------


def test_a_loss_with_parts_keeps_train_loss_comparable(tmp_path: Path):
    (plain,), (more,) = (step(composed(*words), tmp_path) for words in ((), MULTI))
    assert more.parts["next_token"] == plain.loss  # the same weights, the same batch
    assert more.loss == pytest.approx(more.parts["next_token"] + more.parts["multi_token"], abs=1e-6)
    assert more.parts["multi_token"] == pytest.approx(0.3 * plain.loss, rel=0.05)  # nothing is learnt yet


def test_validation_has_the_next_token_loss_alone(tmp_path: Path):
    losses = []
    for words in ((), MULTI):
        job, trainee = trainee_of(composed(*words), tmp_path)
        losses.append(validate(trainee.model, trainee.val, run=job.run, world=job.world))
    assert losses[0] == losses[1]


def test_every_learning_rate_has_a_name():
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(5)]
    first = torch.optim.SGD(
        [
            {"params": parameters[0], "lr": 0.1},
            {"params": parameters[1], "lr": 0.2},
            {"params": parameters[2], "lr": 0.1},
        ]
    )
    others = [torch.optim.Adam([parameters[3]], lr=0.3), torch.optim.Adam([parameters[4]], lr=0.4)]
    for group in (group for optimizer in (first, *others) for group in optimizer.param_groups):
        group["peak_lr"] = group["lr"]
    set_lr([first, *others], 0.5)
    assert rates([first, *others]) == {"lr": 0.05, "lr_2": 0.1, "lr_adam": 0.15, "lr_adam_again": 0.2}


def test_muon_leaves_tables_of_embeddings_to_adamw():
    run = composed("ideas=[value_embeddings]", "optimizer=muon")
    model = build_model(run, vocab_size=V)
    _adamw, muon = build_optimizers(run, model)
    muon_ids = {id(p) for group in muon.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    assert id(named["blocks.1.ideas.value_embeddings.table.weight"]) not in muon_ids
    assert id(named["blocks.0.mlp.f.up.weight"]) in muon_ids


def saved_and_loaded(trainee: Trainee, run: Run, folder: Path, *, step: int) -> Trainee:
    """Another one, from a checkpoint of this one."""
    writer = checkpoint.Writer(folder / "checkpoints", background=False)
    assert (
        writer.save(
            step=step, model=trainee.model, optimizers=trainee.optimizers, state={}, keep=1, must=True
        )
        == []
    )
    path = checkpoint.find(writer.root).path
    assert path is not None
    assert checkpoint.misfit(path, model=trainee.model) is None
    again = trainee_of(run, folder)[1]
    checkpoint.load(path, model=again.model, optimizers=again.optimizers)
    return again


def test_averaged_weights_against_their_formula(tmp_path: Path):
    run = compose([*SMALL, "ideas=[averaged_weights]", "ideas.averaged_weights.decay=0.7"])
    job, trainee = trainee_of(run, tmp_path)
    names = [name for name, _ in trainee.model.named_parameters()]
    average = {name: p.detach().clone() for name, p in trainee.model.named_parameters()}
    for i in range(3):
        take_step(job, trainee, Ledger(started=0.0), step=i)
        average = {
            name: 0.7 * average[name] + 0.3 * p.detach() for name, p in trainee.model.named_parameters()
        }
    weights = {name: p.detach().clone() for name, p in trainee.model.named_parameters()}
    with trainee.model.validating():
        for name, p in trainee.model.named_parameters():
            torch.testing.assert_close(p.detach(), average[name])
    assert all(torch.equal(p, weights[name]) for name, p in trainee.model.named_parameters())
    assert len(names) == len(average)


def test_ideas_flops_are_counted_and_marked():
    plain, more = (flops_per_token(composed(*words), vocab_size=V) for words in ((), MULTI))
    m = composed().model
    # One more matrix, and the head once more on all tokens but the last.
    expected = 6 * m.d_model**2 + 6 * m.d_model * V * (m.seq_len - 1) / m.seq_len
    assert more[0] - plain[0] == pytest.approx(expected, rel=1e-6)
    assert plain[1] == "arithmetic"
    assert more[1] == "arithmetic; counted: ideas=multi_token"


def test_an_unknown_mixer_is_counted(softcap: Run):
    known, unknown = (
        flops_per_token(run, vocab_size=V, causal=False) for run in (composed("attention=mha"), softcap)
    )
    # two products of T×T, forward and backward
    assert unknown == (known[0], "arithmetic; counted: attention=softcap")


# --- decoding -----------------------------------------------------------------------------------------------


def test_ideas_that_take_each_token_by_itself_decode_from_a_cache():
    run = composed("ideas=[x0,value_embeddings,multi_token]", "attention=sliding", "attention.window=5")
    model = build_model(run, vocab_size=V).eval()
    cached, again = Cached(model, run, batch=1, capacity=30), Recompute(model)
    tokens_T = torch.arange(30) * 7 % V
    torch.testing.assert_close(cached.prefill(tokens_T[None, :3]), again.prefill(tokens_T[None, :3]))
    for t in range(3, 29):
        torch.testing.assert_close(
            cached.decode(tokens_T[t : t + 1]), again.prefill(tokens_T[None, : t + 1]), rtol=1e-4, atol=1e-5
        )


def test_a_mixer_that_says_nothing_has_no_cache(softcap: Run):
    with pytest.raises(UncachedError, match="defines no cache_slots"):
        check_cached(build_model(softcap, vocab_size=V).eval(), softcap)


BLUR = """
from dataclasses import dataclass
import torch
from nocap.options.ideas import Idea

@dataclass(kw_only=True)
class Blur(Idea):
    PER_TOKEN = {says}
    kind: str = "blur"
    def build(self, run, *, vocab_size):
        return torch.nn.Module()
    def embed(self, part, x_BTC, context):
        return x_BTC + 0.5 * torch.nn.functional.pad(x_BTC, (0, 0, 1, 0))[:, :-1]
"""


@pytest.mark.parametrize(("says", "why"), [(False, "PER_TOKEN"), (True, "look")])
def test_an_idea_that_looks_across_tokens_is_recomputed_whatever_it_says(
    tmp_path: Path, says: bool, why: str
):
    run = from_outside(tmp_path, "ideas", "blur", BLUR.format(says=says))
    model = build_model(run, vocab_size=V).eval()
    with pytest.raises(UncachedError, match=why):
        check_cached(model, run)


# --- what is refused ----------------------------------------------------------------------------------------


def from_outside(folder: Path, group: str, name: str, source: str, *words: str) -> Run:
    """A run with this option, written for the test."""
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / f"{name}.py").write_text(source)
    package = f"# @package ideas.{name}\n" if group == "ideas" else ""
    keys = "lr: 0.01\nweight_decay: 0.0\n" if group == "optimizer" else ""
    (folder / group / f"{name}.yaml").write_text(f"{package}kind: {name}\n{keys}")
    outside.use([folder])
    chosen = f"ideas=[{name}]" if group == "ideas" else f"{group}={name}"
    return compose([*SMALL, chosen, *words])


@pytest.mark.parametrize(
    ("joint", "builder"),
    [("embed", "build"), ("enter", "build_layer"), ("readout", "build"), ("after_step", "build_around")],
)
def test_a_joint_without_a_part_is_refused(tmp_path: Path, joint: str, builder: str):
    source = (
        BLUR.format(says=True)
        .replace("build(self, run, *, vocab_size)", "nothing(self)")
        .replace("embed", joint)
    )
    source = source.replace("x_BTC, context)", "model, *, step)") if joint == "after_step" else source
    run = from_outside(tmp_path, "ideas", "blur", source)
    with pytest.raises(InputError, match=f"ideas.blur must have a part for its {joint}: from its {builder}"):
        build_model(run, vocab_size=V)


def test_a_part_without_a_joint_is_refused(tmp_path: Path):
    run = from_outside(tmp_path, "ideas", "blur", BLUR.format(says=True).replace("def embed(", "def embedd("))
    with pytest.raises(
        InputError, match="must have a joint for what its build made: one of embed, readout, unembed, loss"
    ):
        build_model(run, vocab_size=V)


HIDDEN = """
from dataclasses import dataclass
import torch
from nocap.options.optimizer import Optimizer

class Counting(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.steps = 0
    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            PLACE
            for p in group["params"]:
                STATE
                p.sub_(p.grad, alpha=group["lr"] / COUNT)

@dataclass(kw_only=True)
class Hidden(Optimizer):
    kind: str = "hidden"
    def build(self, model):
        return [Counting(model.parameters(), self.lr)]
"""


def hidden(place: str = "pass", state: str = "pass", count: str = "self.steps") -> str:
    return HIDDEN.replace("PLACE", place).replace("STATE", state).replace("COUNT", count)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            hidden(state="self.state[p]['rng'] = torch.Generator()"),
            "must keep tensors and plain values, got Generator",
        ),
        (
            hidden(state="self.state[p]['nest'] = [torch.zeros(2)]"),
            "must keep tensors and plain values, got list in 0/",
        ),
        (
            hidden(state="self.state[p]['far'] = float('inf')", count="1"),
            "must keep tensors and plain values, got a non-finite number",
        ),
        (
            hidden().replace("model.parameters()", "[next(model.parameters())]"),
            "each of the model's parameters in one group",
        ),
    ],
)
def test_an_optimizer_that_no_checkpoint_can_hold_is_refused(tmp_path: Path, source: str, why: str):
    run = from_outside(tmp_path, "optimizer", "hidden", source)
    with pytest.raises(InputError, match=why):
        saved_after_a_step(run, tmp_path)


def saved_after_a_step(run: Run, folder: Path) -> tuple[Job, Trainee, Trainee]:
    job, trainee = trainee_of(run, folder)
    take_step(job, trainee, Ledger(started=0.0), step=0)
    return job, trainee, saved_and_loaded(trainee, run, folder, step=1)


def test_state_in_groups_and_of_parameters_is_kept(tmp_path: Path):
    place = "group['steps'] = group.get('steps', 0) + 1"
    state = (
        "self.state[p].setdefault('m', torch.zeros(2)).add_(1); self.state[p]['n'] = "
        "[*self.state[p].get('n', []), 1]"
    )
    count = "(group['steps'] + self.state[p]['m'][0] + len(self.state[p]['n']))"
    run = from_outside(tmp_path, "optimizer", "hidden", hidden(place, state, count))
    job, *twins = saved_after_a_step(run, tmp_path)
    for trainee in twins:
        take_step(job, trainee, Ledger(started=0.0), step=1)
    for p, other in zip(*(trainee.model.parameters() for trainee in twins), strict=True):
        assert torch.equal(p, other)


@pytest.mark.slow
def test_check_finds_state_that_a_checkpoint_does_not_hold(tmp_path: Path):
    from_outside(tmp_path / "options", "optimizer", "hidden", hidden())
    ended = {
        name: (status, why)
        for status, name, why in results(
            Trial(group="optimizer", name="hidden", folder=tmp_path), only="resumes"
        )
    }
    assert ended["resumes"][0] == "FAIL"
    assert "undisturbed" in ended["resumes"][1]


# --- what fits no joint -------------------------------------------------------------------------------------

PARALLEL = """
from dataclasses import dataclass
from nocap.model.gpt import Block
from nocap.options.model import Model

class Parallel(Block):
    def branches(self, x_BTC, context):
        return self.attention(x_BTC, context, *self.of_qkv) + self.mlp(x_BTC) - x_BTC

@dataclass(kw_only=True)
class ParallelModel(Model):
    kind: str = "parallel"
    def build_block(self, run, layer):
        return Parallel(run, layer)
"""

BIGRAM = """
from dataclasses import dataclass
import torch.nn.functional as F
from torch import nn
from nocap.model.language_model import LanguageModel, Loss
from nocap.options.model import Model

class Bigram(LanguageModel):
    def __init__(self, run, vocab_size):
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)
        self.plug_in_around(run)
    def logits(self, tokens_BT):
        return self.table(tokens_BT)
    def forward(self, tokens_BT, targets_BT):
        return Loss(F.cross_entropy(self.logits(tokens_BT).flatten(0, 1), targets_BT.flatten()))

@dataclass(kw_only=True)
class BigramModel(Model):
    kind: str = "bigram"
    def build(self, run, *, vocab_size):
        return Bigram(run, vocab_size)
"""


def replaced_model(folder: Path, name: str, source: str, *words: str) -> Run:
    (folder / "model").mkdir()
    (folder / "model" / f"{name}.py").write_text(source)
    shape = "n_layer: 2\nn_head: 4\nd_model: 64\nseq_len: 128\n"
    (folder / "model" / f"{name}.yaml").write_text(f"kind: {name}\n{shape}")
    outside.use([folder])
    return compose([*SMALL, f"model={name}", *words])


@pytest.mark.parametrize(
    ("name", "source", "word"),
    [
        ("parallel", PARALLEL, "model.norm_placement=post"),
        ("parallel", PARALLEL, "trainer.activation_checkpointing=mlp"),
        ("bigram", BIGRAM, "model.residual_scale=none"),
        ("bigram", BIGRAM, "model.logit_softcap=15"),
    ],
)
def test_keys_that_a_replaced_block_or_model_may_not_read_are_refused(
    tmp_path: Path, name: str, source: str, word: str
):
    key, _, value = word.partition("=")
    with pytest.raises(
        ValueError,
        match=f"^{key} must stay .* beside model.kind={name}, which does not read it .* got {value}",
    ):
        replaced_model(tmp_path, name, source, word)
    reads = source.replace(f'kind: str = "{name}"', f'kind: str = "reader"\n    READS = ("{key}",)')
    (tmp_path / "reads").mkdir()
    assert replaced_model(tmp_path / "reads", "reader", reads, word).model.kind == "reader"


@pytest.mark.parametrize(("name", "source"), [("parallel", PARALLEL), ("bigram", BIGRAM)])
def test_a_block_or_a_model_can_be_replaced(tmp_path: Path, name: str, source: str):
    run = replaced_model(tmp_path, name, source, "ideas=[averaged_weights]")
    job, trainee = trainee_of(run, tmp_path)
    before = validate(trainee.model, trainee.val, run=run, world=job.world)
    for i in range(8):
        take_step(job, trainee, Ledger(started=0.0), step=i)
    assert validate(trainee.model, trainee.val, run=run, world=job.world) < before
    flops, basis = flops_per_token(run, vocab_size=V)
    assert basis == "arithmetic; counted: model"
    assert (flops > 0) == (name == "parallel")  # a table is looked up, not multiplied
    with pytest.raises(UncachedError):
        check_cached(build_model(run, vocab_size=V).eval(), run)


def test_a_model_of_its_own_refuses_an_idea_that_it_has_no_place_for(tmp_path: Path):
    run = replaced_model(tmp_path, "bigram", BIGRAM, "ideas=[x0]")
    with pytest.raises(
        InputError,
        match=r"ideas.x0 must have a part for its enter: from its build_layer, in model.kind=bigram",
    ):
        build_model(run, vocab_size=V)
