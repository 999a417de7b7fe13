"""`experiment=nocap_baseline` is the challenge's recipe: its numbers, its model written a second
time, and its starting loss.

B: batch, T: tokens, C: channels, H: heads, D: channels of a head.
"""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nocap.config.compose import compose
from nocap.config.keys import flat
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Precision
from nocap.data.batches import microbatches
from nocap.model.build import build_model, count_parameters
from nocap.model.gpt import GPT
from nocap.model.loss import Loss
from nocap.training.build import autocast
from nocap.training.build_optimizers import build_optimizers

VOCAB = 97
SMALL = [
    "model.n_layer=2",
    "model.n_head=3",
    "model.d_model=48",
    "model.seq_len=64",
    "trainer.device=cpu",
    "trainer.threads=1",
]


def baseline(*overrides: str) -> Run:
    return compose(["experiment=nocap_baseline", *overrides])


@pytest.fixture(scope="module")
def run() -> Run:
    return baseline()


# --- the numbers ----------------------------------------------------------------------------------


RECIPE = {
    "model": {
        "n_layer": 12,
        "n_head": 12,
        "d_model": 768,
        "seq_len": 1024,
        "norm_placement": "pre",
        "residual_scale": "attention",
    }
    | {"qk_norm": False, "tie_head": True, "logit_softcap": None},
    "norm": {"norm": "rms", "eps": 1e-6, "gain": False, "bias": False},
    "position": {"kind": "rope", "base": 10_000},
    "mlp": {"kind": "mlp", "activation": "gelu", "expansion": 4},
    "attention": {"kind": "global", "kernel": "fused", "n_kv_heads": 12, "merge_qkv": True},
    "objective": {"kind": "cross_entropy", "z_loss": 0},
    "optimizer": {
        "kind": "adamw",
        "lr": 0.0018,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "decay": "all",
    },
    "schedule": {"kind": "wsd", "warmup_steps": 256, "decay_steps": 1024, "final": 0.0},
    "trainer": {"steps": 4768, "batch_tokens": 16 * 1024 * 32, "micro_batch": 16, "grad_clip": None}
    | {"precision": "bf16", "val_precision": "fp32", "val_tokens": 1_048_576, "val_every": 128},
    "data": {"kind": "fineweb", "order": "sequential", "read_sequences": 16},
    "tokenizer": {"vocabulary": "gpt2"},
}


def test_the_recipe_has_its_numbers(run: Run):
    plain = to_plain(run)
    recipe = {}
    for part, keys in RECIPE.items():
        recipe[part] = {key: plain[part][key] for key in keys}
    assert recipe == RECIPE


def test_one_group_decays_everything(model: GPT):
    (group,) = build_optimizers(baseline(*SMALL), model)[0].param_groups
    parameters = list(model.parameters())
    assert len(group["params"]) == len(parameters)
    # the rotary tables are no part of the weights
    leaves = {name.split(".")[-1] for name in model.state_dict()}
    assert not {"cos", "sin"} & leaves
    numbers = [group[key] for key in ("lr", "betas", "eps", "weight_decay")]
    assert numbers == [0.0018, (0.9, 0.95), 1e-8, 0.1]


def test_no_token_is_seen_twice(run: Run):
    units_a_shard = (100_000_000 - 1) // (16 * 1024)
    assert (
        run.data.train_shards * units_a_shard >= run.trainer.steps * microbatches(run) == 4768 * 32
    )


OTHER_SIZES = [
    ("d12", (12, 12, 768)),
    ("d24", (24, 16, 1024)),
    ("d36", (36, 20, 1280)),
    ("d48", (48, 25, 1600)),
]


@pytest.mark.parametrize(("size", "shape"), OTHER_SIZES)
def test_the_other_sizes_have_their_shapes(size: str, shape: tuple[int, int, int]):
    """No bias, no gain, one matrix for embedding and head."""
    run = baseline(f"model={size}")
    layers, heads, width = shape
    assert run.model.n_layer == layers
    assert run.model.n_head == heads
    assert run.model.d_model == width
    assert run.model.seq_len == 1024
    with torch.device("meta"):
        counted = count_parameters(GPT(run, vocab_size=50257))["total"]
    assert counted == 12 * layers * width**2 + 50257 * width


def test_the_challenges_recipe_keeps_its_data_validation_and_tokens(run: Run):
    recipe = dict(flat(to_plain(compose(["experiment=recipe_d12"]))))
    reference = dict(flat(to_plain(run)))
    keys = recipe.keys() | reference.keys()
    differ = {key.partition(".")[0] for key in keys if recipe.get(key) != reference.get(key)}
    assert differ == {"ideas", "optimizer"}
    assert recipe["optimizer.lr"] == reference["optimizer.lr"]


@pytest.mark.parametrize(
    "words",
    [
        "attention=gqa mlp=swiglu norm=layernorm position=learned model=d24 schedule=cosine "
        "optimizer=muon",
        "attention=hybrid data=stdlib tokenizer=bytes schedule=constant optimizer=schedule_free "
        "ideas=[x0]",
        "model.n_layer=2 optimizer.lr=0.01 schedule.decay_steps=100 trainer.steps=2000 "
        "trainer.grad_clip=1",
    ],
)
def test_every_part_stays_overridable(words: str):
    """Other options in place of the recipe's, the trainer's numbers kept."""
    run = baseline(*words.split())
    kept = (run.trainer.batch_tokens, run.trainer.precision, run.schedule.warmup_steps)
    assert kept == (524_288, Precision.bf16, 256)


# --- the model, written a second time -------------------------------------------------------------


def second(model: GPT, ids: Tensor, targets: Tensor) -> Tensor:
    """The described model's loss over its weights, with one matrix for queries, keys and values
    together."""
    table = model.head.unembed.weight
    x = F.embedding(ids, table)
    for block in model.blocks:
        a = block.attention.f
        f = block.mlp.f
        qkv = torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight])
        depth = math.sqrt(2 * len(model.blocks))
        x = x + attention(norm(x), qkv, a.out_proj.weight) / depth
        hidden = F.gelu(F.linear(norm(x), f.up.weight))
        x = x + F.linear(hidden, f.down.weight)
    logits = F.linear(norm(x), table)
    flat_logits = logits.float().view(-1, logits.shape[-1])
    return F.cross_entropy(flat_logits, targets.reshape(-1))


def norm(x: Tensor) -> Tensor:
    squares = x.float().pow(2)
    scale = torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-6)
    return (x.float() * scale).type_as(x)


def attention(x: Tensor, qkv: Tensor, out: Tensor, n_head: int = 3) -> Tensor:
    B, T, C = x.shape
    q, k, v = (y.view(B, T, n_head, C // n_head) for y in F.linear(x, qkv).split(C, dim=2))
    heads = (y.transpose(1, 2) for y in (turn(q), turn(k), v))
    y = F.scaled_dot_product_attention(*heads, is_causal=True)
    joined = y.transpose(1, 2).reshape(B, T, C)
    return F.linear(joined, out)


def turn(x: Tensor) -> Tensor:
    T = x.shape[1]
    D = x.shape[3]
    exponents = torch.arange(0, D, 2).float() / D
    places = torch.arange(T).float()
    angle = torch.outer(places, 1.0 / (10000**exponents))
    cos = angle.cos()[None, :, None, :]
    sin = angle.sin()[None, :, None, :]
    x1, x2 = x.split(D // 2, dim=3)
    left = x1 * cos + x2 * sin
    right = -x1 * sin + x2 * cos
    return torch.cat([left, right], dim=3)


@pytest.fixture
def model() -> GPT:
    return build_model(baseline(*SMALL), vocab_size=VOCAB)


def some_tokens(B: int = 4, T: int = 64, vocab: int = VOCAB) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab, (B, T + 1), generator=generator)


# Apart, the input's gradient is three, each rounded, and their sum; the second number is how far
# that is off.
@pytest.mark.parametrize(("precision", "apart"), [(Precision.fp32, 1e-5), (Precision.bf16, 1e-2)])
@pytest.mark.parametrize("merged", [True, False])
def test_loss_and_gradients_are_the_second_models(precision: Precision, apart: float, merged: bool):
    """Under autocast too, where its stream and its tables stay fp32."""
    model = build_model(baseline(*SMALL, f"attention.merge_qkv={merged}"), vocab_size=VOCAB)
    tokens = some_tokens()
    losses = []
    grads = []
    for forward in (model, partial(second, model)):
        with autocast(baseline(*SMALL), precision):
            loss = forward(tokens[:, :-1], tokens[:, 1:])
        if isinstance(loss, Loss):
            loss = loss.total
        losses.append(loss.item())
        parameters = list(model.parameters())
        grads.append(torch.autograd.grad(loss, parameters))

    assert losses[0] == losses[1]
    for ours, other in zip(*grads, strict=True):
        assert torch.equal(ours, other) if merged else (ours - other).norm() < apart * other.norm()
    assert merged or not all(map(torch.equal, *grads))


@pytest.mark.slow
def test_the_full_model_starts_near_the_recorded_loss(run: Run):
    """The challenge's log begins at 10.967978 on real text; random tokens begin near it."""
    model = build_model(run, vocab_size=50257).eval()
    tokens = some_tokens(B=1, T=256, vocab=50257)
    with torch.no_grad():
        loss_of_all = model(tokens[:, :-1], tokens[:, 1:])
        loss = loss_of_all.total.item()
    assert loss == pytest.approx(10.97, abs=0.05)
