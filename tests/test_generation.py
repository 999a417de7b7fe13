"""The cache against recomputing the prefix, for every attention and position option; the sampler against its
distribution.

B: sequences, T: tokens of the prompt, N: new tokens, V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from nocap.config.compose import compose
from nocap.config.paths import conf_dir
from nocap.config.run import Run
from nocap.measure.generation import Cached, Engine, Recompute, Sampler, generate
from nocap.model.gpt import GPT, build_model

VOCAB = 50
OPTIONS = sorted(path.stem for path in (conf_dir() / "attention").glob("*.yaml"))
POSITIONS = sorted(path.stem for path in (conf_dir() / "position").glob("*.yaml"))
BASE = ("model=nano", "model.n_layer=4", "trainer.device=cpu", "model.residual_scale=none")


def made(*words: str) -> tuple[GPT, Run]:
    """A model whose next token depends on the tokens before it: matrices larger than at the start of
    training, and no tied head."""
    run = compose([*BASE, "model.tie_head=false", *words])
    model = build_model(run, vocab_size=VOCAB).eval()
    with torch.no_grad():
        for block in model.blocks:
            for p in block.parameters():
                p.mul_(2)
    return model, run


def prompt(B: int = 1, T: int = 12) -> Tensor:
    return torch.randint(VOCAB, (B, T), generator=torch.Generator().manual_seed(0))


def text(
    engine: Engine,
    prompt_BT: Tensor,
    *,
    n: int,
    samples: int = 1,
    temperature: float = 0.0,
    top_k: int = 0,
    seed: int = 0,
) -> Tensor:
    """The new tokens, (samples, n)."""
    sampler = Sampler(temperature=temperature, top_k=top_k, seed=seed, sequences=samples, max_tokens=n)
    return torch.stack(list(generate(engine, prompt_BT, sampler, max_tokens=n)), dim=1)


def again(model: GPT, prompt_BT: Tensor, text_BN: Tensor, sampler: Sampler) -> list[list[int]]:
    """What the sampler takes from the training model's logits, for each place of this text, in one pass: a
    token sees no later one."""
    T, N = prompt_BT.shape[1], text_BN.shape[1]
    with torch.no_grad():
        logits_BTV = model.logits(torch.cat([prompt_BT, text_BN], dim=1))
    return torch.stack([sampler(logits_BTV[:, T - 1 + i], i) for i in range(N)], dim=1).tolist()


WAYS = ({"temperature": 0.0}, {"temperature": 0.9}, {"temperature": 1.3, "top_k": 7, "seed": 3})


def assert_same_text(model: GPT, run: Run, *, B: int = 1, T: int = 12, n: int = 40) -> None:
    """Greedy and seeded, token for token."""
    engine, tokens = Cached(model, run, batch=B, capacity=T + n), set()
    for how in WAYS:
        sampler = Sampler(**{"top_k": 0, "seed": 0, **how}, sequences=B, max_tokens=n)
        got = torch.stack(list(generate(engine, prompt(B, T), sampler, max_tokens=n)), dim=1)
        assert got.tolist() == again(model, prompt(B, T), got, sampler), how
        tokens |= set(got.flatten().tolist())
    assert len(tokens) > 10, "a text of few tokens would show little"


@pytest.mark.parametrize("option", OPTIONS)
def test_cached_text_is_recomputed_text(option: str):
    """The window is 16 tokens: the text passes it."""
    model, run = made(
        f"attention={option}", *(["attention.window=16"] if option in ("sliding", "hybrid") else [])
    )
    cached, recompute = Cached(model, run, batch=2, capacity=40), Recompute(model)
    for how in WAYS[::2]:
        got, want = (text(engine, prompt(), n=28, samples=2, **how) for engine in (cached, recompute))
        assert got.tolist() == want.tolist(), how
    torch.testing.assert_close(cached.decode(got[:, -1]), recompute.decode(got[:, -1]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("window", "T"), [(1, 5), (7, 5), (7, 7), (7, 8), (7, 40), (40, 12), (500, 12)])
@pytest.mark.parametrize("option", ["sliding", "hybrid"])
def test_windows_shorter_and_longer_than_prompt_and_text(option: str, window: int, T: int):
    assert_same_text(*made(f"attention={option}", f"attention.window={window}", "model.n_head=4"), T=T)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("option", ["gqa", "hybrid"])
def test_every_position_with_qk_norm(option: str, position: str):
    assert_same_text(*made(f"attention={option}", f"position={position}", "model.qk_norm=true"), T=9)


@pytest.mark.parametrize(
    "words",
    [
        ("mlp=swiglu", "norm=layernorm", "model.norm_placement=both"),
        ("model.norm_placement=post", "norm=rmsnorm_gain", "model.logit_softcap=15"),
    ],
    ids=" ".join,
)
def test_every_other_part_of_the_model(words: tuple[str, ...]):
    assert_same_text(*made("attention=gqa", "model.residual_scale=attention", *words))


@pytest.mark.parametrize("option", ["gqa", "sliding"])
def test_several_prompts_at_once(option: str):
    assert_same_text(*made(f"attention={option}"), B=3)


def test_the_text_may_fill_the_context():
    model, run = made()
    T = run.model.seq_len
    assert_same_text(model, run, T=T - 11, n=10)


@pytest.mark.parametrize("option", ["flash", "gqa", "sliding"])
def test_a_sample_is_the_same_in_every_batch(option: str):
    model, run = made(f"attention={option}")
    alone, together = (
        text(Cached(model, run, batch=B, capacity=60), prompt(), n=40, samples=B, temperature=1.0)
        for B in (1, 5)
    )
    assert together[0].tolist() == alone[0].tolist()
    assert len({tuple(row) for row in together.tolist()}) == 5
    reference = text(Recompute(model), prompt(), n=40, samples=5, temperature=1.0)
    assert together.tolist() == reference.tolist()


def test_an_engine_starts_over_with_each_prompt():
    model, run = made("attention=sliding")
    engine = Cached(model, run, batch=1, capacity=100)
    text(engine, prompt(1, 50), n=40)
    fresh = Cached(model, run, batch=1, capacity=100)
    assert text(engine, prompt(1, 5), n=40).tolist() == text(fresh, prompt(1, 5), n=40).tolist()


def test_the_cache_holds_what_the_option_needs_and_no_more():
    """fp32, 64 wide, 4 heads of 16, 4 layers, room for 128 tokens; the window is a quarter of the context:
    bytes by hand."""
    a_slot = 2 * 16 * 4
    want = {
        "mha": 4 * 128 * 4,
        "flash": 4 * 128 * 4,
        "gqa": 4 * 128 * 2,
        "mqa": 4 * 128 * 1,
        "sliding": 4 * 32 * 4,
        "hybrid": (3 * 32 + 128) * 4,
    }
    assert set(want) == set(OPTIONS)
    for option, slots in want.items():
        model, run = made(f"attention={option}")
        layers = Cached(model, run, batch=3, capacity=128).layers
        assert sum(layer.k_BKSD.nbytes + layer.v_BKSD.nbytes for layer in layers) == 3 * slots * a_slot, (
            option
        )


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_text_is_recomputed_text():
    model, run = made("attention=hybrid", "position=learned")
    engines = {batch: Cached(model, run, batch=batch, capacity=80, compiled=True) for batch in (2, 3)}
    for how in ({"temperature": 0.0}, {"temperature": 1.0}):
        for batch, engine in engines.items():  # by turns: neither may run the other's graph
            got = text(engine, prompt(batch), n=60, samples=batch, **how)
            assert got.tolist() == text(Recompute(model), prompt(batch), n=60, samples=batch, **how).tolist()


# --- the sampler --------------------------------------------------------------------------------------------


def drawn(logits_V: Tensor, *, n: int = 20_000, temperature: float = 1.0, top_k: int = 0) -> Tensor:
    """The share of each token among n draws, (V,)."""
    sampler = Sampler(temperature=temperature, top_k=top_k, seed=0, sequences=n, max_tokens=1)
    return torch.bincount(sampler(logits_V.expand(n, -1), 0), minlength=len(logits_V)) / n


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float):
    logits = torch.tensor([1.0, -0.5, 2.0, 0.0, -30.0])
    share = (logits / temperature).softmax(-1)
    error = 4 * (share * (1 - share) / 20_000).sqrt()  # four standard deviations
    assert ((drawn(logits, temperature=temperature) - share).abs() <= error + 1e-9).all()


def test_top_k_draws_among_the_k_most_probable():
    logits = torch.tensor([1.0, -0.5, 2.0, 0.0])
    kept = drawn(logits, top_k=2)
    assert kept[[1, 3]].sum() == 0
    share = torch.tensor([1.0, 2.0]).softmax(-1)
    torch.testing.assert_close(kept[[0, 2]], share, atol=0.015, rtol=0)


@pytest.mark.parametrize(
    "how", [{"temperature": 0.0}, {"temperature": 1e-30}, {"temperature": 1.0, "top_k": 1}], ids=str
)
def test_three_ways_to_take_the_most_probable(how: dict[str, float]):
    logits = torch.randn(64, VOCAB, generator=torch.Generator().manual_seed(0))
    sampler = Sampler(**{"top_k": 0, **how}, seed=0, sequences=64, max_tokens=1)
    assert sampler(logits, 0).tolist() == logits.argmax(-1).tolist()


def test_draws_depend_on_seed_and_place_only():
    few = Sampler(temperature=1.0, top_k=0, seed=5, sequences=2, max_tokens=10).draws_BN
    many = Sampler(temperature=1.0, top_k=0, seed=5, sequences=9, max_tokens=99).draws_BN
    other = Sampler(temperature=1.0, top_k=0, seed=6, sequences=2, max_tokens=10).draws_BN
    assert few.tolist() == many[:2, :10].tolist()
    assert not (few == other).any()


def test_the_largest_draw_stays_among_the_possible_tokens():
    sampler = Sampler(temperature=1.0, top_k=0, seed=0, sequences=1, max_tokens=1)
    sampler.draws_BN = torch.tensor([[1 - 2**-24]], dtype=torch.float32)
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]])
    assert sampler(logits, 0).tolist() == [1]
