"""Ideas in their joints: what they change, what they leave alone, and what is refused."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch

from nocap import outside
from nocap.checks.contract import results
from nocap.checks.trial import OptionTrial
from nocap.config.compose import compose
from nocap.config.compose import composed as composed_whole
from nocap.config.keys import InputError
from nocap.config.paths import cache_root
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.data.prepare import prepare
from nocap.generation.engines import UncachedError, check_cached
from nocap.launch.record_head import manifest
from nocap.model.build import build_model
from nocap.model.flops import flops_per_token
from nocap.store.identity import identity_parts
from nocap.store.record_files import digest
from nocap.study.study_plan import check_fair
from nocap.training.build import Trainee, build
from nocap.training.build_optimizers import rates, set_lr
from nocap.training.job import Job
from nocap.training.ledger import Ledger
from nocap.training.loading import load_checkpoint, misfit, newest_valid
from nocap.training.saving import CheckpointWriter
from nocap.training.step import Update, take_step
from nocap.training.validation import validate
from nocap.training.world import join
from tests.conftest import REPO, SMALL
from tests.in_process import planned

V = 257
MULTI = ("ideas=[multi_token]", "ideas.multi_token.weights=[0.3]")
pytestmark = pytest.mark.usefixtures("atlas_ideas")


def composed(*words: str) -> Run:
    return compose([*SMALL, *words])


def trainee_of(run: Run, folder: Path) -> tuple[Job, Trainee]:
    data = prepare(run.data, run.tokenizer, cache_dir=cache_root(run.cache_dir))
    world = join(run.trainer.device)
    job = Job(
        run=run,
        train_shards=data.train,
        val_shards=data.val,
        vocab_size=data.vocab_size,
        run_dir=folder,
        world=world,
        started=0.0,
    )
    return job, build(job)


def advance(job: Job, trainee: Trainee, *steps: int) -> list[Update]:
    """Take these steps."""
    ledger = Ledger(started=0.0)
    return [take_step(job, trainee, ledger, step=i) for i in steps]


def saved_and_loaded(trainee: Trainee, run: Run, folder: Path, *, step: int) -> Trainee:
    """Another one, from a checkpoint of this one."""
    writer = CheckpointWriter(folder / "checkpoints", background=False)
    what = {"model": trainee.model, "optimizers": trainee.optimizers}
    saved = writer.save(step=step, **what, state={}, keep=1, must=True)
    assert saved == []
    path = newest_valid(writer.root).path
    assert path is not None
    assert misfit(path, model=trainee.model) is None
    again = trainee_of(run, folder)[1]
    load_checkpoint(path, model=again.model, optimizers=again.optimizers)
    return again


# --- what an idea leaves alone --------------------------------------------------------------------


def test_the_draws_of_the_model_and_of_each_idea_are_their_own():
    plain = dict(build_model(composed(), vocab_size=V).named_parameters())
    model = build_model(composed("ideas=[value_embeddings]"), vocab_size=V)
    alone = dict(model.named_parameters())
    model = build_model(composed("ideas=[multi_token,value_embeddings,x0]"), vocab_size=V)
    more = dict(model.named_parameters())
    assert more.keys() > alone.keys() > plain.keys()
    for name, p in [*plain.items(), *alone.items()]:
        assert torch.equal(p, more[name])


def test_the_order_of_the_command_line_is_none_of_the_run():
    first = composed("ideas=[x0,value_embeddings]")
    second = composed("ideas=[value_embeddings,x0]")
    assert to_plain(first) == to_plain(second)
    identities = {digest(identity_parts(run, data_fingerprint="")) for run in (first, second)}
    assert len(identities) == 1


# nothing is learnt yet
def test_a_loss_with_parts_keeps_the_losses_of_training_and_validation_comparable(tmp_path: Path):
    validations = []
    updates = []
    for words in ((), MULTI):
        job, trainee = trainee_of(composed(*words), tmp_path)
        loss = validate(trainee.model, trainee.val, run=job.run, world=job.world)
        validations.append(loss)
        updates += advance(job, trainee, 0)
    plain, more = updates
    assert validations[0] == validations[1]
    assert more.parts["next_token"] == plain.loss  # the same weights, the same batch
    expected = more.parts["next_token"] + more.parts["multi_token"]
    assert more.loss == pytest.approx(expected, abs=1e-6)
    assert more.parts["multi_token"] == pytest.approx(0.3 * plain.loss, rel=0.05)


# --- how it is counted and decoded ----------------------------------------------------------------


def test_every_learning_rate_has_a_name():
    p = [torch.nn.Parameter(torch.zeros(1)) for _ in range(5)]
    groups = [{"params": p[i], "lr": lr} for i, lr in enumerate((0.1, 0.2, 0.1))]
    adams = [torch.optim.Adam([p[3]], lr=0.3), torch.optim.Adam([p[4]], lr=0.4)]
    optimizers = [torch.optim.SGD(groups), *adams]
    for group in itertools.chain(*(optimizer.param_groups for optimizer in optimizers)):
        group["peak_lr"] = group["lr"]
    set_lr(optimizers, 0.5)
    expected = {"lr": 0.05, "lr_2": 0.1, "lr_adam": 0.15, "lr_adam_again": 0.2}
    assert rates(optimizers) == expected


@pytest.mark.slow
def test_flops_of_ideas_and_of_an_unknown_mixer_are_counted_and_marked():
    plain = flops_per_token(composed(), vocab_size=V)
    more = flops_per_token(composed(*MULTI), vocab_size=V)
    m = composed().model
    # One more matrix, and the head once more on all tokens but the last.
    head = 6 * m.d_model * V * (m.seq_len - 1) / m.seq_len
    expected = 6 * m.d_model**2 + head
    more_flops = more[0] - plain[0]
    assert more_flops == pytest.approx(expected, rel=1e-6)
    assert plain[1] == "arithmetic"
    assert more[1] == "arithmetic; counted: ideas=multi_token"
    outside.use([REPO / "tests" / "own_ideas" / "softcap"])
    known = flops_per_token(composed("attention=mha"), vocab_size=V, causal=False)
    unknown = flops_per_token(composed("attention=softcap"), vocab_size=V, causal=False)
    # two products of T×T, forward and backward
    assert unknown == (known[0], "arithmetic; counted: attention=softcap")


def test_ideas_that_take_each_token_by_itself_decode_from_a_cache():
    run = composed(
        "ideas=[x0,value_embeddings,multi_token]", "attention=sliding", "attention.window=5"
    )
    check_cached(build_model(run, vocab_size=V).eval(), run)


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


@pytest.mark.parametrize(("says", "why"), [(False, "PER_TOKEN"), (True, "reads tokens")])
def test_an_idea_that_looks_across_tokens_is_recomputed_whatever_it_says(
    tmp_path: Path, says: bool, why: str
):
    run = from_outside(tmp_path, "ideas", "blur", BLUR.format(says=says))
    with pytest.raises(UncachedError, match=why):
        check_cached(build_model(run, vocab_size=V).eval(), run)


# --- what is refused ------------------------------------------------------------------------------


def from_outside(
    folder: Path, group: str, name: str, source: str, *words: str, keys: str = ""
) -> Run:
    """A run with this option, written for the test."""
    (folder / group).mkdir(parents=True)
    (folder / group / f"{name}.py").write_text(source)
    if group == "ideas":
        package = f"# @package ideas.{name}\n"
    else:
        package = ""
    (folder / group / f"{name}.yaml").write_text(f"{package}kind: {name}\n{keys}")
    outside.use([folder])
    return compose([*SMALL, f"ideas=[{name}]" if group == "ideas" else f"{group}={name}", *words])


MILDER = """
from dataclasses import dataclass
from nocap.config.keys import key
from nocap.options.{package} import {base}

@dataclass(kw_only=True)
class Milder({base}):
    kind: str = "milder"
    share: float = key(ge=0, le=1, losses=True)
    beside: float = 0.5
"""
PLACES = [
    ("ideas", "ideas", "Idea", "ideas.milder.share", ""),
    pytest.param(
        *(
            "objective",
            "objective.cross_entropy",
            "CrossEntropy",
            "objective.share",
            "z_loss: 0.0\n",
        ),
        marks=pytest.mark.slow,
    ),
    (
        "norm",
        "norm.channels",
        "ChannelNorm",
        "norm.share",
        "norm: rms\neps: 1.0e-6\ngain: false\nbias: false\n",
    ),
]


@pytest.mark.parametrize(("group", "package", "base", "key", "more"), PLACES)
def test_a_key_from_outside_that_losses_depend_on_is_in_the_record_and_the_same_in_all_arms(
    tmp_path: Path, group: str, package: str, base: str, key: str, more: str
):
    source = MILDER.format(package=package, base=base)
    from_outside(tmp_path / "own", group, "milder", source, keys=f"share: 0.2\n{more}")
    if group == "ideas":
        chosen = f"{group}=[milder]"
    else:
        chosen = f"{group}=milder"
    plain = manifest(planned(tmp_path), [])["measured"]
    measured = manifest(planned(tmp_path, chosen), [])["measured"]
    assert key in measured
    assert [name for name in measured if name != key] == plain
    assert {"model.seq_len", "trainer.val_tokens", "tokenizer.vocabulary"} <= {*plain}
    arms = {value: composed_whole([*SMALL, chosen, f"{key}={value}"]) for value in (0.2, 0.3)}
    check_fair({"base": arms[0.2], "idea": arms[0.2]})
    rule = (
        rf"arm idea: {re.escape(key)} must be equal to the baseline's \(base: 0.2\), because "
        r"otherwise the losses "
        rf"are not comparable"
    )
    with pytest.raises(ValueError, match=rule):
        check_fair({"base": arms[0.2], "idea": arms[0.3]})


NO_BUILD = ("build(self, run, *, vocab_size)", "nothing(self)")


BROKEN_IDEAS = [
    ((NO_BUILD,), "return a module from build, because it has the method embed"),
    (
        (NO_BUILD, ("embed", "enter")),
        "return a module from build_layer, because it has the method enter",
    ),
    (
        (NO_BUILD, ("embed", "readout")),
        "return a module from build, because it has the method readout",
    ),
    (
        (NO_BUILD, ("embed", "after_step"), ("x_BTC, context)", "model, *, step)")),
        "return a module from build_around, because it has the method after_step",
    ),
    (
        (("def embed(", "def embedd("),),
        "have a method that uses its module from build: one of embed, readout, unembed, loss",
    ),
]


@pytest.mark.parametrize(("changes", "rule"), BROKEN_IDEAS)
def test_a_joint_without_a_part_or_a_part_without_a_joint_is_refused(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], rule: str
):
    source = BLUR.format(says=True)
    for old, new in changes:
        source = source.replace(old, new)
    run = from_outside(tmp_path, "ideas", "blur", source)
    with pytest.raises(InputError, match=f"ideas.blur must {rule}"):
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


def hidden(
    folder: Path, *, place: str = "pass", state: str = "pass", count: str = "self.steps"
) -> Run:
    """A run with an optimizer that keeps this, and counts its steps so."""
    source = HIDDEN.replace("PLACE", place).replace("STATE", state).replace("COUNT", count)
    return from_outside(folder, "optimizer", "hidden", source, keys="lr: 0.01\nweight_decay: 0.0\n")


def twins_after_a_step(run: Run, folder: Path) -> tuple[Job, Trainee, Trainee]:
    job, trainee = trainee_of(run, folder)
    advance(job, trainee, 0)
    return job, trainee, saved_and_loaded(trainee, run, folder, step=1)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("self.state[p]['rng'] = torch.Generator()", "got Generator"),
        ("self.state[p]['nest'] = [torch.zeros(2)]", "got list in 0/"),
        ("self.state[p]['far'] = float('inf')", "got a non-finite number"),
    ],
)
def test_an_optimizer_that_no_checkpoint_can_hold_is_refused(tmp_path: Path, state: str, why: str):
    run = hidden(tmp_path, state=state, count="1")
    with pytest.raises(InputError, match=f"must hold only tensors and plain values .*, {why}"):
        twins_after_a_step(run, tmp_path)


def test_an_optimizer_that_leaves_out_a_parameter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = composed()
    monkeypatch.setattr(
        type(run.optimizer),
        "build",
        lambda self, model: [torch.optim.SGD([next(model.parameters())])],
    )
    with pytest.raises(InputError, match="each of the model's parameters in exactly one group"):
        trainee_of(run, tmp_path)


def test_state_in_groups_and_of_parameters_is_kept(tmp_path: Path):
    run = hidden(
        tmp_path,
        place="group['steps'] = group.get('steps', 0) + 1",
        state="self.state[p].setdefault('m', torch.zeros(2)).add_(1); self.state[p]['n'] = "
        "[*self.state[p].get('n', []), 1]",
        count="(group['steps'] + self.state[p]['m'][0] + len(self.state[p]['n']))",
    )
    job, *twins = twins_after_a_step(run, tmp_path)
    for trainee in twins:
        advance(job, trainee, 1)
    assert all(map(torch.equal, *(trainee.model.parameters() for trainee in twins)))


@pytest.mark.slow
def test_check_finds_state_that_a_checkpoint_does_not_hold(tmp_path: Path):
    hidden(tmp_path / "options")
    trial = OptionTrial(group="optimizer", name="hidden", folder=tmp_path)
    (ended,) = [line for line in results(trial, only="resumes") if line[1] == "resumes"]
    assert ended[0] == "FAIL"
    assert "undisturbed" in ended[2]


# --- what fits no joint ---------------------------------------------------------------------------

PARALLEL = """
from dataclasses import dataclass
from nocap.model.gpt import Block
from nocap.options.model.gpt import Gpt

class Parallel(Block):
    def branches(self, x_BTC, context):
        return self.attention(x_BTC, context, *self.of_qkv) + self.mlp(x_BTC) - x_BTC

@dataclass(kw_only=True)
class ParallelModel(Gpt):
    kind: str = "parallel"
    def build_block(self, run, layer):
        return Parallel(run, layer)
"""

BIGRAM = """
from dataclasses import dataclass
import torch.nn.functional as F
from torch import nn
from nocap.model.language_model import LanguageModel
from nocap.model.loss import Loss
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
    shape = "n_layer: 2\nn_head: 4\nd_model: 64\nseq_len: 128\n"
    return from_outside(folder, "model", name, source, *words, keys=shape)


@pytest.mark.parametrize(
    ("name", "source", "word"),
    [
        ("parallel", PARALLEL, "model.norm_placement=post"),
        ("parallel", PARALLEL, "trainer.activation_checkpointing=mlp"),
        ("bigram", BIGRAM, "model.logit_softcap=15"),
    ],
)
def test_keys_that_a_replaced_block_or_model_may_not_read_are_refused(
    tmp_path: Path, name: str, source: str, word: str
):
    key, _, value = word.partition("=")
    with pytest.raises(
        ValueError,
        match=f"^{key} must keep its default, .* with model.kind={name}, which does not use "
        "this key .* got "
        f"{value}",
    ):
        replaced_model(tmp_path, name, source, word)
    reads = source.replace(f'kind: str = "{name}"', f'kind: str = "reader"\n    READS = ("{key}",)')
    model = replaced_model(tmp_path / "reads", "reader", reads, word).model
    assert model.kind == "reader"


OBJECTIVE = """
from dataclasses import dataclass
from nocap.options.objective.cross_entropy import CrossEntropy

@dataclass(kw_only=True)
class Own(CrossEntropy):
    kind: str = "own"
    def loss(self, head, x_BTC, targets_BT):
        return CrossEntropy.loss(self, head, x_BTC, targets_BT)
"""
ATTENTION = """
from dataclasses import dataclass
from nocap.options.attention.softmax import Softmax

@dataclass(kw_only=True)
class Own(Softmax):
    kind: str = "own"
    def build(self, run, layer):
        return Softmax.build(self, run, layer)
"""
HEADS = "n_kv_heads: 4\nkernel: fused\n"


@pytest.mark.parametrize(
    ("group", "source", "keys", "word"),
    [
        ("objective", OBJECTIVE, "z_loss: 0\n", "objective.loss_chunks=8"),
        ("attention", ATTENTION, HEADS, "model.qk_norm=true"),
        ("attention", ATTENTION, HEADS, "attention.merge_qkv=true"),
    ],
)
@pytest.mark.slow
def test_keys_that_a_method_of_its_own_may_not_read_are_refused(
    tmp_path: Path, group: str, source: str, keys: str, word: str
):
    """What the class that it extends reads is about that class's method."""
    key, _, value = word.partition("=")
    rule = (
        f"^{key} must keep its default, .* with {group}.kind=own, which does not use this key .* "
        f"got {value}"
    )
    with pytest.raises(ValueError, match=re.compile(rule, re.I)):
        from_outside(tmp_path, group, "own", source, word, keys=keys)
    assert getattr(composed(f"{group}=own"), group).kind == "own"
    reads = source.replace('kind: str = "own"', f'kind: str = "reader"\n    READS = ("{key}",)')
    run = from_outside(tmp_path / "reads", group, "reader", reads, word, keys=keys)
    assert getattr(run, group).kind == "reader"


@pytest.mark.parametrize(("name", "source"), [("parallel", PARALLEL), ("bigram", BIGRAM)])
@pytest.mark.slow
def test_a_block_or_a_model_can_be_replaced(tmp_path: Path, name: str, source: str):
    run = replaced_model(tmp_path, name, source, "ideas=[averaged_weights]")
    flops, basis = flops_per_token(run, vocab_size=V)
    # a table is looked up, not multiplied
    assert (flops > 0) == (name == "parallel")
    assert basis == "arithmetic; counted: model"
    job, trainee = trainee_of(run, tmp_path)
    losses = []
    for steps in (range(0), range(8)):
        advance(job, trainee, *steps)
        final = validate(trainee.model, trainee.val, run=run, world=job.world)
        losses.append(final)
    assert losses[1] < losses[0]
    with pytest.raises(UncachedError):
        check_cached(build_model(run, vocab_size=V).eval(), run)


def test_a_model_of_its_own_refuses_an_idea_that_it_has_no_place_for(tmp_path: Path):
    run = replaced_model(tmp_path, "bigram", BIGRAM, "ideas=[x0]")
    rule = (
        r"ideas.x0 must return a module from build_layer, because it has the method enter, "
        r"but returned none "
        r"with .*bigram"
    )
    with pytest.raises(InputError, match=rule):
        build_model(run, vocab_size=V)
