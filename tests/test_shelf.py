"""The shelf's ideas that change the forward, each against its formula, and against the model without it where
it has a neutral setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
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
from nocap.model.flops import flops_per_token
from nocap.model.gpt import Context, build_model, count_parameters
from nocap.options.ideas import Idea
from nocap.training.ledger import Ledger
from nocap.training.optimizer import build_optimizers
from nocap.training.step import take_step
from tests.conftest import REPO, SMALL
from tests.test_ideas import BIGRAM, replaced_model, trainee_of

V = 257
pytestmark = pytest.mark.usefixtures("atlas_ideas")
SHAPE = (
    "model.n_layer=4",
    "model.d_model=32",
    "model.n_head=2",
    "model.seq_len=16",
    "trainer.batch_tokens=256",
    "trainer.val_tokens=256",
)
TOKENS_BT = torch.randint(V, (2, 16), generator=torch.Generator().manual_seed(0))


def composed(*words: str) -> Run:
    return compose([*SMALL, *SHAPE, "attention=gqa", "attention.n_kv_heads=1", "mlp=relu2", *words])


def shelf(name: str) -> Idea:
    """The idea as its yaml has it."""
    return composed(f"ideas=[{name}]").ideas[name]


def run_of(*words: str, **ideas: dict[str, Any]) -> Run:
    """A small run with these ideas and their keys."""
    return replace(
        composed(*words), ideas={name: replace(shelf(name), **keys) for name, keys in ideas.items()}
    )


def model_of(*words: str, **ideas: dict[str, Any]) -> Any:
    return build_model(run_of(*words, **ideas), vocab_size=V)


@cache
def plain() -> Any:
    return model_of()


def moved(**ideas: dict[str, Any]) -> Any:
    """The model with the numbers of its ideas moved from their start, where a zero would hide an error."""
    model, generator = model_of(**ideas), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "ideas." in name:
                p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def part(model: Any, name: str, layer: int | None = None) -> Any:
    place = model if layer is None else model.blocks[layer]
    return place.ideas[name]


def context_of(model: Any, x0_BTC: Tensor) -> Context:
    return Context(
        TOKENS_BT, x0_BTC, model.positions.tables(model.position, slice(0, TOKENS_BT.shape[1])), None
    )


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
        q, k, v = (project(h).unflatten(2, (-1, a.d_head)) for project in (a.q_proj, a.k_proj, a.v_proj))
        q, k = a.position.turn(q, k, context_of(plain(), x).tables)
        y = materialized(*(t.transpose(1, 2) for t in change(layer, q, k, v)))
        x = block.mlp(x + block.attention.scale * a.out_proj(y.transpose(1, 2).flatten(2)))
    return x


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# --- formulas -----------------------------------------------------------------------------------------------


def test_the_reference_is_the_plain_model() -> None:
    x0 = plain().embedding(TOKENS_BT)
    close(by_hand(x0, lambda layer, q, k, v: (q, k, v)), plain().trunk(TOKENS_BT))
    close(through(x0), plain().trunk(TOKENS_BT))


def test_x0() -> None:
    model, x0 = moved(x0={}), plain().embedding(TOKENS_BT)
    lambdas = [part(model, "x0", layer)["lambdas"] for layer in range(4)]
    close(
        model.trunk(TOKENS_BT), through(x0, lambda layer, x: lambdas[layer][0] * x + lambdas[layer][1] * x0)
    )


def test_value_residual() -> None:
    model, first = moved(value_residual={}), {}

    def mixed(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if layer == 0:
            first["v"] = v
            return q, k, v
        share = part(model, "value_residual", layer)["share"]
        return q, k, v * (1 - share) + first["v"] * share

    close(model.trunk(TOKENS_BT), by_hand(plain().embedding(TOKENS_BT), mixed))


@pytest.mark.parametrize("gate", ["head", "scalar"])
def test_value_embeddings(gate: str) -> None:
    model = moved(value_embeddings={"gate": type(shelf("value_embeddings").gate)(gate)})

    def added(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if layer not in (1, 3):  # every second, the last among them
            return q, k, v
        its, out = part(model, "value_embeddings", layer), v.clone()
        for b, t, h in (
            (b, t, h) for b in range(v.shape[0]) for t in range(v.shape[1]) for h in range(v.shape[2])
        ):
            g = 2 * torch.sigmoid(its.gate[h] @ v[b, t, h]) if gate == "head" else its.gate
            out[b, t, h] = v[b, t, h] + g * its.table.weight[TOKENS_BT[b, t]].reshape(v.shape[2:])[h]
        return q, k, out

    close(model.trunk(TOKENS_BT), by_hand(plain().embedding(TOKENS_BT), added))


@pytest.mark.parametrize("exact", [True, False])
def test_bigram(exact: bool) -> None:
    model, x = (
        moved(bigram={"channels": 4, "rows": 97, "exact": 70_000 if exact else 0}),
        plain().embedding(TOKENS_BT).clone(),
    )
    its = part(model, "bigram")
    assert its.table.weight.shape == (V * V if exact else 97, 4)
    for b, t in ((b, t) for b in range(2) for t in range(1, 16)):
        before, now = int(TOKENS_BT[b, t - 1]), int(TOKENS_BT[b, t])
        row = before * V + now if exact else ((before * 2_654_435_761) ^ (now * 2_246_822_519)) % 97
        x[b, t] = x[b, t] + its.project.weight @ its.table.weight[row]
    close(model.trunk(TOKENS_BT), through(x))


def test_ngrams() -> None:
    model = moved(ngrams={"channels": 4, "rows": 97, "exact": V * V, "sizes": [4, 2]})
    x, factors = (
        plain().embedding(TOKENS_BT).clone(),
        (2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263),
    )
    fours, pairs = part(model, "ngrams")
    for b, t in ((b, t) for b in range(2) for t in range(1, 16)):
        row = int(TOKENS_BT[b, t - 1]) * V + int(TOKENS_BT[b, t])
        x[b, t] = x[b, t] + pairs.project.weight @ pairs.table.weight[row]
        if t >= 3:
            row = 0
            for token, factor in zip(TOKENS_BT[b, t - 3 : t + 1].tolist(), factors, strict=True):
                row ^= token * factor
            x[b, t] = x[b, t] + fours.project.weight @ fours.table.weight[row % 97]
    close(model.trunk(TOKENS_BT), through(x))
    close(model.trunk(TOKENS_BT[:, :2]), through(x[:, :2]))  # fewer tokens than the longest row stands for


@pytest.mark.parametrize("sizes", ["[]", "[1]", "[2,2]", "[7]"])
def test_refused_ngrams(sizes: str) -> None:
    with pytest.raises(ValueError, match=r"^ideas.ngrams.sizes must be of .*got "):
        compose(["ideas=[ngrams]", f"ideas.ngrams.sizes={sizes}"])


def test_hashed_bigrams_spread_over_the_rows() -> None:
    idea, rows = replace(shelf("bigram"), exact=0), []

    class Table(torch.nn.Module):
        base = 0
        project = torch.nn.Identity()

        def table(self, row_BT: Tensor) -> Tensor:
            rows.append(row_BT)
            return torch.zeros(*row_BT.shape, 1)

    tokens_BT = torch.randint(50_304, (1, 65_537), generator=torch.Generator().manual_seed(0))
    idea.embed(Table(), torch.zeros(1, 65_537, 1), Context(tokens_BT, tokens_BT, None, None))
    used = rows[0].unique()
    assert 0 <= int(used.min()) <= int(used.max()) < 65_536
    assert len(used) / 65_536 == pytest.approx(1 - 2.718281828**-1, abs=0.01)  # as many balls as boxes


def test_smear() -> None:
    model, x = moved(smear={"channels": 5}), plain().embedding(TOKENS_BT)
    its, out = part(model, "smear"), x.clone()
    for b, t in ((b, t) for b in range(2) for t in range(1, 16)):
        out[b, t] = x[b, t] + its["share"] * torch.sigmoid(its["gate"] @ x[b, t, :5]) * x[b, t - 1]
    close(model.trunk(TOKENS_BT), through(out))


@pytest.mark.parametrize(("layer", "after"), [(None, 1), (2, 2)])
def test_backout(layer: int | None, after: int) -> None:
    model, kept = moved(backout={"layer": layer}), {}

    def keep(layer: int, x: Tensor) -> Tensor:
        kept[layer] = x  # the input of one is the output of that before it
        return x

    x = through(plain().embedding(TOKENS_BT), keep)
    close(model.trunk(TOKENS_BT), x - part(model, "backout")["share"] * kept[after + 1])


def test_unet_skips() -> None:
    model, kept = moved(unet_skips={}), {}

    def skip(layer: int, x: Tensor) -> Tensor:
        kept[layer - 1] = x
        return x + part(model, "unet_skips", layer).share * kept[3 - layer] if layer >= 2 else x

    close(model.trunk(TOKENS_BT), through(plain().embedding(TOKENS_BT), skip))


def test_partial_key_offset() -> None:
    model, slow = model_of(partial_key_offset={}), [*range(4, 8), *range(12, 16)]

    def offset(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = k.clone()
        for t in range(1, k.shape[1]):
            out[:, t, :, slow] = k[:, t - 1, :, slow]
        return q, out, v

    close(model.trunk(TOKENS_BT), by_hand(plain().embedding(TOKENS_BT), offset))


@pytest.mark.parametrize(
    "words", [(), ("model.logit_softcap=3",), ("objective.loss_chunks=4", "model.logit_softcap=3")]
)
@pytest.mark.parametrize("learned", [True, False])
def test_logit_rescale(words: tuple[str, ...], learned: bool) -> None:
    model = model_of(*words, logit_rescale={"factor": 1.7, "learned": learned})
    head, x = model.head, plain().trunk(TOKENS_BT).detach()
    logits = 1.7 * head.unembed(head.norm(x))
    logits = 3 * torch.tanh(logits / 3) if words else logits
    close(head.logits(x), logits)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS_BT.flatten())
    loss = head(x, TOKENS_BT).total
    close(loss, expected)
    weights = [head.unembed.weight, *model.ideas.parameters()]
    assert len(weights) == 1 + learned
    loss.backward()
    (by_weight,) = torch.autograd.grad(expected, weights[:1])
    close(weights[0].grad, by_weight)
    if learned:  # the loss's slope along the factor
        up, down = (_loss_at(model, x, 1.7 + change) for change in (1e-2, -1e-2))
        assert float(weights[1].grad) == pytest.approx((up - down) / 2e-2, abs=2e-3)


def _loss_at(model: Any, x: Tensor, factor: float) -> float:
    with torch.no_grad():
        model.ideas["logit_rescale"]["factor"].fill_(factor)
        return float(model.head(x, TOKENS_BT).total)


# --- first weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mlp", ["relu2", "swiglu"])
def test_zero_init_sets_the_last_matrices_and_no_others(mlp: str) -> None:
    words = (f"mlp={mlp}", "model.tie_head=false")
    usual, other, head = (dict(model_of(*words, **more).named_parameters()) for more in ZERO)
    last = {name for name in usual if name.endswith(("attention.f.out_proj.weight", "mlp.f.down.weight"))}
    assert len(last) == 8
    for name, p in usual.items():
        assert torch.equal(other[name], torch.zeros_like(p) if name in last else p)
        assert torch.equal(head[name], torch.zeros_like(p) if name in {*last, "head.unembed.weight"} else p)


ZERO: tuple[dict[str, Any], ...] = ({}, {"zero_init": {}}, {"zero_init": {"head": True}})


def test_blocks_that_start_at_zero_are_the_identity_and_learn(tmp_path: Path) -> None:
    run = run_of(zero_init={}, averaged_weights={})
    job, trainee = trainee_of(run, tmp_path)
    model: Any = trainee.model
    assert torch.equal(model.trunk(TOKENS_BT), model.embedding(TOKENS_BT))
    average = dict(model.around["averaged_weights"].named_buffers())
    # an idea around the step finds the first weights as they will be
    assert not average["blocks/0/mlp/f/down/weight"].any()
    for step in range(2):
        take_step(job, trainee, Ledger(started=0.0), step=step)
    assert all(p.any() for p in model.parameters())


def test_shared_layers_are_the_layers_tied_by_hand() -> None:
    model, twin = (model_of(**ideas) for ideas in ({"shared_layers": {}}, {}))
    own = [name for name, _ in model.named_parameters() if name.startswith("blocks.")]
    assert {name.split(".")[1] for name in own} == {"0", "2"}
    assert 2 * len(own) == sum(name.startswith("blocks.") for name, _ in twin.named_parameters())
    others = dict(twin.named_parameters())
    with torch.no_grad():
        for name in own:
            number, rest = name.removeprefix("blocks.").split(".", 1)
            others[f"blocks.{int(number) + 1}.{rest}"].copy_(others[name])
    assert torch.equal(model.logits(TOKENS_BT), twin.logits(TOKENS_BT))
    for each in (model, twin):
        each(TOKENS_BT, TOKENS_BT).total.backward()
    for name, p in model.named_parameters():
        if name in own:
            number, rest = name.removeprefix("blocks.").split(".", 1)
            close(p.grad, others[name].grad + others[f"blocks.{int(number) + 1}.{rest}"].grad)


def test_shared_layers_are_counted_once_and_cost_the_same_flops() -> None:
    run, C = run_of(shared_layers={"repeat": 4}), 32
    layer = 2 * C * C + 2 * C * 16 + 8 * C * C  # queries and output, keys and values of one head, MLP
    assert count_parameters(build_model(run, vocab_size=V)) == {
        "total": layer + V * C,
        "non_embedding": layer,
    }
    assert flops_per_token(run, vocab_size=V)[0] == flops_per_token(run_of(), vocab_size=V)[0]


def test_shared_layers_keep_what_ideas_have_for_each() -> None:
    model = model_of(shared_layers={"repeat": 3}, x0={})
    blocks = {name.split(".")[1] for name, _ in model.named_parameters() if ".mlp." in name}
    lambdas = {name.split(".")[1] for name, _ in model.named_parameters() if ".x0." in name}
    assert (blocks, lambdas) == ({"0", "3"}, {"0", "1", "2", "3"})


# --- a branch that nothing feeds ----------------------------------------------------------------------------


def test_cross_attention_costs_and_changes_nothing() -> None:
    run, C, n, T = run_of(cross_attention={}), 32, 4, 16
    model = build_model(run, vocab_size=V)
    assert torch.equal(model.logits(TOKENS_BT), plain().logits(TOKENS_BT))
    model(TOKENS_BT, TOKENS_BT).total.backward()
    own = [p for name, p in model.named_parameters() if ".ideas." in name]
    assert sum(p.numel() for p in own) == n * 4 * C * C
    assert not any(p.grad.any() for p in own)
    spent = flops_per_token(run, vocab_size=V)[0] - flops_per_token(run_of(), vocab_size=V)[0]
    # Queries and output of each token, keys and values of the one token of memory (whose input has no
    # gradient), one key a query.
    assert spent == n * (12 * C * C + 2 * 4 * C * C / T + 12 * C)


# --- neutral settings ---------------------------------------------------------------------------------------

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


@cache
def two_updates(folder: Path, **ideas: Any) -> tuple[list[float], dict[str, Tensor]]:
    """Their losses, and the weights that the model without ideas has, too."""
    run = run_of(
        "trainer.grad_clip=null",
        "model.logit_softcap=15",
        "objective.loss_chunks=2",
        **{name: dict(k) for name, k in ideas.items()},
    )
    job, trainee = trainee_of(run, folder)
    losses = [take_step(job, trainee, Ledger(started=0.0), step=step).loss for step in range(2)]
    return losses, {name: p for name, p in trainee.model.named_parameters() if "ideas." not in name}


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_neutral_idea_changes_no_bit(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The idea's own numbers hardly move."""
    folder, still = tmp_path_factory.getbasetemp(), {} if name == "cross_attention" else {"lr": 1e-30}
    (losses, weights), (others, more) = (
        two_updates(folder),
        two_updates(folder, **{name: tuple({**NEUTRAL[name], **still}.items())}),
    )
    assert losses == others
    assert weights.keys() == more.keys()
    assert all(torch.equal(p, more[name]) for name, p in weights.items())


# --- keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "ideas", "line"),
    [
        (
            ("model.n_layer=1",),
            {"value_residual": {}},
            "model.n_layer must be at least 2 beside ideas.value_residual, got 1",
        ),
        (
            ("model.n_layer=1",),
            {"unet_skips": {}},
            "model.n_layer must be at least 2 beside ideas.unet_skips, got 1",
        ),
        (
            ("model.n_layer=1",),
            {"backout": {}},
            "model.n_layer must be at least 2 beside ideas.backout, got 1",
        ),
        (
            ("trainer.activation_checkpointing=attention", "trainer.compile=regional"),
            {"value_residual": {}},
            "trainer.activation_checkpointing must be off or mlp beside ideas.value_residual "
            "where trainer.compile is on: ",
        ),
        ((), {"backout": {"layer": 3}}, "ideas.backout.layer must be below the last, 3, got 3"),
        ((), {"smear": {"channels": 33}}, "ideas.smear.channels must be at most model.d_model=32, got 33"),
        (
            (),
            {"shared_layers": {"repeat": 5}},
            "ideas.shared_layers.repeat must be at most model.n_layer=4, got 5",
        ),
        ((), {"zero_init": {"head": True}}, "ideas.zero_init.head must be false beside model.tie_head: "),
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
    ],
)
def test_refusals(words: tuple[str, ...], ideas: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        run_of(*words, **ideas)
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize("name", ["zero_init", "shared_layers"])
def test_ideas_that_need_blocks_say_so(name: str, tmp_path: Path) -> None:
    run = replaced_model(tmp_path, "bigram", BIGRAM, f"ideas=[{name}]")
    with pytest.raises(InputError, match=rf"model.kind=bigram must have blocks w.* for ideas.{name}$"):
        build_model(run, vocab_size=V)


def test_lr_is_a_factor_on_the_ideas_own_parameters() -> None:
    run = run_of("optimizer=muon", x0={"lr": 7.0}, smear={"lr": 2.0})
    model = build_model(run, vocab_size=V)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [group for optimizer in build_optimizers(run, model) for group in optimizer.param_groups]
    rates = {names[id(p)]: group["peak_lr"] for group in groups for p in group["params"]}
    for name, rate in rates.items():
        assert rate == pytest.approx(
            0.003 * (7 if ".x0." in name else 2 if name.startswith("ideas.smear") else 1)
        )


def test_a_renamed_yaml_whose_rate_would_be_lost_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ideas").mkdir()
    (tmp_path / "ideas" / "fast.yaml").write_text(
        (REPO / "conf" / "ideas" / "x0.yaml").read_text().replace("ideas.x0", "ideas.fast")
    )
    outside.use([tmp_path])
    with pytest.raises(
        ValueError, match=r"ideas.fast must be named x0, as its kind is: so lr finds its parameters, got fast"
    ):
        composed("ideas=[fast]")
