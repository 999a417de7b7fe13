"""The shelf's ideas that change the forward, each against its formula, and against the model
without it where it has a neutral setting."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nocap import outside
from nocap.config.compose import compose
from nocap.config.keys import InputError
from nocap.config.run import Run
from nocap.model.attention import materialized
from nocap.model.build import build_model, count_parameters
from nocap.model.context import Context
from nocap.model.flops import flops_per_token
from nocap.options.ideas import Idea
from nocap.training.build_optimizers import build_optimizers
from nocap.training.ledger import Ledger
from nocap.training.step import take_step
from tests.conftest import IDEA_FOLDERS, REPO, SMALL
from tests.test_ideas import BIGRAM, replaced_model, trainee_of

V = 257
SHAPE = (
    "model.n_layer=4",
    "model.d_model=32",
    "model.n_head=2",
    "model.seq_len=16",
    "trainer.batch_tokens=256",
    "trainer.val_tokens=256",
)
TOKENS_BT = torch.randint(V, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def in_use() -> str:
    """The ideas that neither the atlas nor a claim supports, imported once: what is cached here is
    theirs."""
    outside.use(IDEA_FOLDERS)
    outside.all_options("ideas")
    return os.environ.pop(outside.VARIABLE)


@pytest.fixture(autouse=True)
def again_in_use(isolated: None, in_use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(outside.VARIABLE, in_use)


@cache
def composed(*words: str) -> Run:
    return compose([*SMALL, *SHAPE, "attention=gqa", "attention.n_kv_heads=1", "mlp=relu2", *words])


def shelf(name: str) -> Idea:
    """The idea as its yaml has it."""
    return composed(f"ideas=[{name}]").ideas[name]


def run_of(*words: str, **ideas: dict[str, Any]) -> Run:
    """A small run with these ideas and their keys."""
    options = {name: replace(shelf(name), **keys) for name, keys in ideas.items()}
    return replace(composed(*words), ideas=options)


def model_of(*words: str, **ideas: dict[str, Any]) -> Any:
    return build_model(run_of(*words, **ideas), vocab_size=V)


@cache
def plain() -> Any:
    return model_of()


def moved(name: str, **keys: Any) -> Any:
    """The model with the numbers of its idea moved from their start, where a zero would hide an
    error."""
    model = model_of(**{name: keys})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for place, p in model.named_parameters():
            if "ideas." in place:
                p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def part(model: Any, name: str, layer: int | None = None) -> Any:
    if layer is None:
        place = model
    else:
        place = model.blocks[layer]
    return place.ideas[name]


def context_of(model: Any, x0_BTC: Tensor) -> Context:
    positions = slice(0, TOKENS_BT.shape[1])
    tables = model.position_option.tables(model.position, positions)
    return Context(TOKENS_BT, x0_BTC, tables, None)


def through(x: Tensor, around: Callable[[int, Tensor], Tensor] = lambda layer, x: x) -> Tensor:
    """The plain model's layers, `around` changing the input of each."""
    context = context_of(plain(), x)
    for layer, block in enumerate(plain().blocks):
        x = block(around(layer, x), context)
    return x


def by_hand(
    x: Tensor, change: Callable[[int, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
) -> Tensor:
    """The plain model's layers with other queries, keys and values."""
    for layer, block in enumerate(plain().blocks):
        a = block.attention.f
        h = block.attention.norm(x)
        projected = a.q_proj(h)
        q = projected.unflatten(2, (-1, a.d_head))
        keys = a.k_proj(h)
        k = keys.unflatten(2, (-1, a.d_head))
        values = a.v_proj(h)
        v = values.unflatten(2, (-1, a.d_head))
        tables = context_of(plain(), x).tables
        q, k = a.position.turn(q, k, tables)
        y = materialized(*(t.transpose(1, 2) for t in change(layer, q, k, v)))
        heads = a.out_proj(y.transpose(1, 2).flatten(2))
        x = block.mlp(x + block.attention.scale * heads)
    return x


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# --- formulas -------------------------------------------------------------------------------------

# the moved model, the embedded tokens, keys → what its trunk must say
Formula = Callable[..., Tensor]
FORMULAS: list[tuple[Formula, dict[str, Any]]] = []


def formula(**keys: Any) -> Callable[[Formula], Formula]:
    """Of the idea with the function's name and these keys."""

    def kept(its: Formula) -> Formula:
        FORMULAS.append((its, keys))
        return its

    return kept


@formula()
def x0(model: Any, x: Tensor) -> Tensor:
    lambdas = [part(model, "x0", layer)["lambdas"] for layer in range(4)]
    return through(x, lambda layer, before: lambdas[layer][0] * before + lambdas[layer][1] * x)


@formula()
def value_residual(model: Any, x: Tensor) -> Tensor:
    first = []

    def mixed(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first.append(v)
        if layer:
            share = part(model, "value_residual", layer)["share"]
        else:
            share = 0.0
        return q, k, v * (1 - share) + first[0] * share

    return by_hand(x, mixed)


@formula(gate="head")
@formula(gate="scalar")
def value_embeddings(model: Any, x: Tensor, **keys: Any) -> Tensor:
    def added(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if layer not in (1, 3):  # every second, the last among them
            return q, k, v
        its = part(model, "value_embeddings", layer)
        out = v.clone()
        for b, t, h in itertools.product(*map(range, v.shape[:3])):
            if its.gate.ndim:
                g = 2 * torch.sigmoid(its.gate[h] @ v[b, t, h])
            else:
                g = its.gate
            row = its.table.weight[TOKENS_BT[b, t]].reshape(v.shape[2:])
            out[b, t, h] = v[b, t, h] + g * row[h]
        return q, k, out

    return by_hand(x, added)


@formula(channels=4, exact=70_000)
@formula(channels=4, rows=97, exact=0)
def bigram(model: Any, x: Tensor, *, exact: int, **keys: int) -> Tensor:
    its = part(model, "bigram")
    x = x.clone()
    assert its.table.weight.shape == (V * V if exact else 97, 4)
    for b, t in PLACES:
        before = int(TOKENS_BT[b, t - 1])
        now = int(TOKENS_BT[b, t])
        if exact:
            row = before * V + now
        else:
            row = ((before * FACTORS[0]) ^ (now * FACTORS[1])) % 97
        added = its.project.weight @ its.table.weight[row]
        x[b, t] = x[b, t] + added
    return through(x)


FACTORS = (2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263)
PLACES = list(itertools.product(range(2), range(1, 16)))


@formula(channels=4, rows=97, exact=V * V, sizes=[4, 2])
def ngrams(model: Any, x: Tensor, **keys: Any) -> Tensor:
    fours, pairs = part(model, "ngrams")
    x = x.clone()
    for b, t in PLACES:
        row = int(TOKENS_BT[b, t - 1]) * V + int(TOKENS_BT[b, t])
        added = pairs.project.weight @ pairs.table.weight[row]
        x[b, t] = x[b, t] + added
        if t >= 3:
            last_four = TOKENS_BT[b, t - 3 : t + 1].tolist()
            four = zip(last_four, FACTORS, strict=True)
            row = reduce(operator.xor, (token * factor for token, factor in four))
            added = fours.project.weight @ fours.table.weight[row % 97]
            x[b, t] = x[b, t] + added
    # fewer tokens than the longest row stands for
    early = through(x[:, :2])
    close(model.trunk(TOKENS_BT[:, :2]), early)
    return through(x)


@formula(channels=5)
def smear(model: Any, x: Tensor, **keys: int) -> Tensor:
    its = part(model, "smear")
    out = x.clone()
    for b, t in PLACES:
        gate = torch.sigmoid(its["gate"] @ x[b, t, :5])
        out[b, t] = x[b, t] + its["share"] * gate * x[b, t - 1]
    return through(out)


@formula(layer=None)
@formula(layer=2)
def backout(model: Any, x: Tensor, *, layer: int | None) -> Tensor:
    inputs: list[Tensor] = []
    x = through(x, lambda layer, x: inputs.append(x) or x)
    share = part(model, "backout")["share"]
    return x - share * inputs[(1 if layer is None else layer) + 1]


@formula()
def unet_skips(model: Any, x: Tensor) -> Tensor:
    inputs = []  # the input of one is the output of that before it

    def skip(layer: int, x: Tensor) -> Tensor:
        inputs.append(x)
        if layer >= 2:
            return x + part(model, "unet_skips", layer).share * inputs[4 - layer]
        return x

    return through(x, skip)


@formula()
def partial_key_offset(model: Any, x: Tensor) -> Tensor:
    slow = [*range(4, 8), *range(12, 16)]

    def offset(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = k.clone()
        out[:, 1:, :, slow] = k[:, :-1, :, slow]
        return q, out, v

    return by_hand(x, offset)


@pytest.mark.parametrize(("its", "keys"), FORMULAS, ids=[f"{f.__name__}-{k}" for f, k in FORMULAS])
def test_an_idea_is_its_formula(its: Formula, keys: dict[str, Any]) -> None:
    if "gate" in keys:
        gate = shelf("value_embeddings").gate
        keys = {"gate": type(gate)(keys["gate"])}
    model = moved(its.__name__, **keys)
    said = model.trunk(TOKENS_BT)
    close(said, its(model, plain().embedding(TOKENS_BT), **keys))
    assert not torch.allclose(said, plain().trunk(TOKENS_BT))


@pytest.mark.parametrize(
    ("words", "learned"),
    [
        ((), False),
        (("model.logit_softcap=3",), True),
        (("objective.loss_chunks=4", "model.logit_softcap=3"), True),
    ],
)
def test_logit_rescale_multiplies_the_logits(words: tuple[str, ...], learned: bool) -> None:
    model = model_of(*words, logit_rescale={"factor": 1.7, "learned": learned})
    head = model.head
    x = plain().trunk(TOKENS_BT).detach()
    factor = torch.tensor(1.7, requires_grad=True)
    logits = factor * head.unembed(head.norm(x))
    if words:
        logits = 3 * torch.tanh(logits / 3)
    close(head.logits(x), logits)
    flat = logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(flat, TOKENS_BT.flatten())
    loss = head(x, TOKENS_BT).total
    weights = [head.unembed.weight, *model.ideas.parameters()]
    close(loss, expected)
    assert len(weights) == 1 + learned
    loss.backward()
    grads = torch.autograd.grad(expected, [weights[0], factor])
    for p, grad in zip(weights, grads, strict=False):
        close(p.grad, grad.reshape(p.shape))


# --- first weights --------------------------------------------------------------------------------


def test_zero_init_sets_the_last_matrices_and_no_others() -> None:
    zeros: tuple[dict[str, Any], ...] = ({}, {"zero_init": {}}, {"zero_init": {"head": True}})
    words = ("mlp=swiglu", "model.tie_head=false")
    usual, other, head = (dict(model_of(*words, **more).named_parameters()) for more in zeros)
    last = set()
    for name in usual:
        if name.endswith(("attention.f.out_proj.weight", "mlp.f.down.weight")):
            last.add(name)
    assert len(last) == 8
    for name, p in usual.items():
        assert torch.equal(other[name], torch.zeros_like(p) if name in last else p)
        assert torch.equal(
            head[name], torch.zeros_like(p) if name in {*last, "head.unembed.weight"} else p
        )


def test_shared_layers_are_the_layers_tied_by_hand() -> None:
    model = model_of(shared_layers={})
    twin = model_of()
    own = [name for name, _ in model.named_parameters() if name.startswith("blocks.")]
    layers = {name.split(".")[1] for name in own}
    assert layers == {"0", "2"}
    expected = sum(name.startswith("blocks.") for name, _ in twin.named_parameters())
    assert 2 * len(own) == expected
    others = dict(twin.named_parameters())
    with torch.no_grad():
        for name in own:
            number, rest = name.removeprefix("blocks.").split(".", 1)
            others[f"blocks.{int(number) + 1}.{rest}"].copy_(others[name])
    logits = model.logits(TOKENS_BT)
    assert torch.equal(logits, twin.logits(TOKENS_BT))
    for each in (model, twin):
        each(TOKENS_BT, TOKENS_BT).total.backward()
    for name in own:
        number, rest = name.removeprefix("blocks.").split(".", 1)
        both = others[name].grad + others[f"blocks.{int(number) + 1}.{rest}"].grad
        close(model.get_parameter(name).grad, both)


# an idea has one for each
def test_shared_layers_are_counted_once_and_cost_the_same_flops() -> None:
    run = run_of(shared_layers={"repeat": 4})
    C = 32
    # queries and output, keys and values of one head, MLP
    layer = 2 * C * C + 2 * C * 16 + 8 * C * C
    expected = {"total": layer + V * C, "non_embedding": layer}
    assert count_parameters(build_model(run, vocab_size=V)) == expected
    flops = flops_per_token(run_of(), vocab_size=V)
    assert flops_per_token(run, vocab_size=V)[0] == flops[0]
    model = model_of(shared_layers={"repeat": 3}, x0={})
    names = [name.split(".") for name, _ in model.named_parameters()]
    assert {name[1] for name in names if "mlp" in name} == {"0", "3"}
    layers = {name[1] for name in names if "x0" in name}
    assert layers == {"0", "1", "2", "3"}


# --- a branch that nothing feeds ------------------------------------------------------------------


@pytest.mark.slow
def test_cross_attention_costs_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost is counted by the model that has it: the rest of that has formulas."""
    built = list[list[str]]()

    def build(run: Run, *, vocab_size: int) -> Any:
        built.append([*run.ideas])
        return build_model(run, vocab_size=vocab_size)

    monkeypatch.setattr("nocap.model.flops.build_model", build)
    run = run_of(cross_attention={})
    C = 32
    n = 4
    T = 16
    model = build_model(run, vocab_size=V)
    logits = plain().logits(TOKENS_BT)
    assert torch.equal(model.logits(TOKENS_BT), logits)
    model(TOKENS_BT, TOKENS_BT).total.backward()
    own = [p for name, p in model.named_parameters() if ".ideas." in name]
    counted = sum(p.numel() for p in own)
    assert counted == n * 4 * C * C
    for p in own:
        assert not p.grad.any()
    flops = flops_per_token(run_of(), vocab_size=V)
    spent = flops_per_token(run, vocab_size=V)[0] - flops[0]
    # Queries and output of each token, keys and values of the one token of memory (whose input has
    # no gradient), one key a query.
    expected = n * (12 * C * C + 2 * 4 * C * C / T + 12 * C)
    assert spent == expected
    assert built == [["cross_attention"]]


# --- neutral settings -----------------------------------------------------------------------------

NEUTRAL: dict[str, dict[str, Any]] = {
    "x0": {},
    "value_residual": {"start": 0.0},
    "value_embeddings": {"start": 0.0},
    "bigram": {"channels": 4},
    "ngrams": {"channels": 4},
    "smear": {},
    "backout": {},
    "unet_skips": {},
    "logit_rescale": {},
    "cross_attention": {},
}


def two_updates(folder: Path, **ideas: dict[str, Any]) -> tuple[list[float], dict[str, Tensor]]:
    """Their losses, and the weights that the model without ideas has, too."""
    words = ("trainer.grad_clip=null", "model.logit_softcap=15", "objective.loss_chunks=2")
    job, trainee = trainee_of(run_of(*words, **ideas), folder)
    losses = [take_step(job, trainee, Ledger(started=0.0), step=step).loss for step in range(2)]
    parameters = trainee.model.named_parameters()
    return losses, {name: p for name, p in parameters if "ideas." not in name}


def test_a_neutral_idea_changes_no_bit(tmp_path: Path) -> None:
    """The idea's own numbers hardly move."""
    losses, weights = two_updates(tmp_path)
    for name, keys in NEUTRAL.items():
        others, more = two_updates(
            tmp_path, **{name: keys if name == "cross_attention" else {**keys, "lr": 1e-30}}
        )
        assert others == losses, name
        assert more.keys() == weights.keys(), name
        for key, p in weights.items():
            assert torch.equal(p, more[key]), name


# --- keys -----------------------------------------------------------------------------------------


REFUSED = [
    (
        ("model.n_layer=1",),
        {"value_residual": {}},
        "model.n_layer must be at least 2 with ideas.value_residual, got 1",
    ),
    (
        ("trainer.activation_checkpointing=attention", "trainer.compile=regional"),
        {"value_residual": {}},
        "trainer.activation_checkpointing must be off or mlp beside ideas.value_residual "
        "where trainer.compile is on: ",
    ),
    ((), {"ngrams": {"sizes": [7]}}, "ideas.ngrams.sizes must hold one or more of "),
    ((), {"backout": {"layer": 3}}, "ideas.backout.layer must be below the last, 3, got 3"),
    (
        (),
        {"smear": {"channels": 33}},
        "ideas.smear.channels must be at most model.d_model=32, got 33",
    ),
    (
        (),
        {"shared_layers": {"repeat": 5}},
        "ideas.shared_layers.repeat must be at most model.n_layer=4, got 5",
    ),
    (
        (),
        {"zero_init": {"head": True}},
        "ideas.zero_init.head must be false beside model.tie_head: ",
    ),
    (
        ("model.norm_placement=both",),
        {"zero_init": {}},
        "model.norm_placement must be pre or post beside ideas.zero_init: ",
    ),
    (
        ("model.n_head=16",),
        {"partial_key_offset": {}},
        "model.d_model / model.n_head must be divisible by 4 for ideas.",
    ),
]


@pytest.mark.parametrize(("words", "ideas", "line"), REFUSED)
def test_an_idea_that_does_not_fit_is_refused_in_a_line(
    words: tuple[str, ...], ideas: dict[str, Any], line: str
) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        run_of(*words, **ideas)
    assert str(refused.value).startswith(line)


def test_lr_is_a_factor_on_the_ideas_own_parameters() -> None:
    run = run_of("optimizer=muon", x0={"lr": 7.0}, smear={"lr": 2.0})
    model = build_model(run, vocab_size=V)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = []
    for optimizer in build_optimizers(run, model):
        groups.extend(optimizer.param_groups)
    rates = {}
    for group in groups:
        for p in group["params"]:
            rates[names[id(p)]] = group["peak_lr"]
    factors = {}
    for name in rates:
        if ".x0." in name:
            factors[name] = 7
        elif name.startswith("ideas.smear"):
            factors[name] = 2
        else:
            factors[name] = 1
    expected = {name: 0.003 * factor for name, factor in factors.items()}
    assert rates == pytest.approx(expected)


# --- other folders in use: last, for they import the ideas anew -----------------------------------


@pytest.mark.parametrize("name", ["zero_init", "shared_layers"])
def test_ideas_that_need_blocks_say_so(name: str, tmp_path: Path) -> None:
    run = replaced_model(tmp_path, "bigram", BIGRAM, f"ideas=[{name}]")
    with pytest.raises(
        InputError, match=rf"model.kind=bigram must have blocks w.* for ideas.{name}$"
    ):
        build_model(run, vocab_size=V)


def test_a_renamed_yaml_whose_rate_would_be_lost_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ideas").mkdir()
    text = (REPO / "conf" / "ideas" / "x0.yaml").read_text()
    (tmp_path / "ideas" / "fast.yaml").write_text(text.replace("ideas.x0", "ideas.fast"))
    outside.use([tmp_path])
    line = (
        r"ideas.fast must be named x0, like its kind \(its lr finds the parameters by this name\)"
    )
    with pytest.raises(ValueError, match=line):
        compose([*SMALL, "ideas=[fast]"])
