"""The cache against recomputing the prefix, for every attention and position option; the sampler
against its distribution.

B: sequences, T: tokens of the prompt, N: new tokens, V: vocabulary.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nocap.config.compose import compose
from nocap.config.paths import conf_dir
from nocap.config.run import Run
from nocap.generation.engines import Cached, Engine, Recompute
from nocap.generation.sampling import TokenSampler, generate
from nocap.model.build import build_model
from nocap.model.gpt import GPT

VOCAB = 50
POSITIONS = sorted(path.stem for path in (conf_dir() / "position").glob("*.yaml"))
BASE = ("model=nano", "model.n_layer=4", "trainer.device=cpu", "model.residual_scale=none")


def made(*words: str) -> tuple[GPT, Run]:
    """A model whose next token depends on the tokens before it: matrices larger than at the start
    of training, and no tied head."""
    run = compose([*BASE, "model.tie_head=false", *words])
    model = build_model(run, vocab_size=VOCAB).eval()
    with torch.no_grad():
        for block in model.blocks:
            for p in block.parameters():
                p.mul_(2)
    return model, run


def prompt(B: int = 1, T: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(VOCAB, (B, T), generator=generator)


def text(engine: Engine, prompt_BT: Tensor, *, n: int, samples: int = 1, **how: float) -> Tensor:
    """The new tokens, (samples, n)."""
    sampler = TokenSampler(**{**GREEDY, **how}, sequences=samples, max_tokens=n)
    steps = list(generate(engine, prompt_BT, sampler, max_tokens=n))
    return torch.stack(steps, dim=1)


GREEDY = {"temperature": 0.0, "top_k": 0, "seed": 0}
SEEDED = {"temperature": 1.3, "top_k": 7, "seed": 3}


CACHED_MODELS = [
    ("attention=mha", 12),
    ("attention=flash", 108),  # the text fills the context
    *(
        (f"attention=sliding attention.window={window}", T)
        for window, T in ((1, 5), (7, 7), (500, 12))
    ),
    *(
        (f"attention=hybrid attention.window={window}", T)
        for window, T in ((7, 5), (7, 40), (40, 12))
    ),
    *((f"attention=gqa position={position} model.qk_norm=true", 9) for position in POSITIONS),
    ("attention=mqa mlp=swiglu norm=layernorm model.norm_placement=both", 12),
    ("attention=gqa model.norm_placement=post norm=rmsnorm_gain model.logit_softcap=15", 12),
]


@pytest.mark.parametrize(("words", "T"), CACHED_MODELS)
def test_cached_text_is_that_of_the_models_own_logits(words: str, T: int):
    """Of two prompts at once, greedy and seeded, token for token, in one pass: a token sees no
    later one."""
    model, run = made(*words.split())
    n = min(40, run.model.seq_len - T)
    engine = Cached(model, run, batch=2, capacity=T + n)
    prompt_BT = prompt(2, T)
    tokens = set[int]()
    for how in (GREEDY, SEEDED):
        got = text(engine, prompt_BT, n=n, samples=2, **how)
        sampler = TokenSampler(**how, sequences=2, max_tokens=n)
        with torch.no_grad():
            logits_BTV = model.logits(torch.cat([prompt_BT, got], dim=1))
        wanted = [sampler(logits_BTV[:, T - 1 + i], i) for i in range(n)]
        expected = torch.stack(wanted, dim=1).tolist()
        assert got.tolist() == expected
        tokens |= set(got.flatten().tolist())
    assert len(tokens) > 10, "a text of few tokens would show little"


@pytest.mark.parametrize("option", ["flash", "sliding"])
def test_a_sample_is_the_same_in_every_batch_and_recomputed(option: str):
    """And an engine starts over with each prompt."""
    model, run = made(f"attention={option}")
    cached = [Cached(model, run, batch=batch, capacity=60) for batch in (1, 5)]
    text(cached[0], prompt(1, 50), n=10)
    alone = text(cached[0], prompt(), n=40, samples=1, temperature=1.0)
    together = text(cached[1], prompt(), n=40, samples=5, temperature=1.0)
    again = text(Recompute(model), prompt(), n=40, samples=5, temperature=1.0)
    expected = alone[0].tolist()
    assert together[0].tolist() == expected
    rows = {tuple(row) for row in together.tolist()}
    assert len(rows) == 5
    assert together.tolist() == again.tolist()


SLOTS = [
    ("mha", 4 * 128 * 4),
    ("flash", 4 * 128 * 4),
    ("gqa", 4 * 128 * 2),
    ("mqa", 4 * 128 * 1),
    ("sliding", 4 * 128 * 4),
    ("hybrid", 4 * 128 * 4),
]


@pytest.mark.parametrize(("option", "slots"), SLOTS)
def test_the_cache_has_a_slot_for_each_position_and_key_value_head(option: str, slots: int):
    """fp32, 64 wide, 4 heads of 16, 4 layers, room for 128 tokens: bytes by hand."""
    engine = Cached(*made(f"attention={option}"), batch=3, capacity=128)
    assert engine.cache_bytes == 3 * slots * 2 * 16 * 4


@pytest.mark.parametrize("option", ["flash", "sliding", "hybrid"])
def test_a_rewound_cache_goes_on_as_if_nothing_had_come_after(option: str):
    """Also where a window has left the first tokens of the prompt behind."""
    model, run = made(f"attention={option}")
    engine = Cached(model, run, batch=1, capacity=60)
    first = text(engine, prompt(1, 40), n=20)
    engine.rewind(40)
    again = [first[:, 0]]
    for _ in range(19):
        again.append(engine.decode(again[-1]).argmax(-1))
    joined = torch.stack(again, dim=1)
    assert joined.tolist() == first.tolist()


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
def test_compiled_text_is_recomputed_text():
    torch.compiler.reset()
    model, run = made("attention=hybrid", "position=learned")
    engines = {}
    for batch in (2, 3):
        engines[batch] = Cached(model, run, batch=batch, capacity=80, compiled=True)
    for temperature in (0.0, 1.0):
        for batch, engine in engines.items():  # by turns: neither may run the other's graph
            how = {"n": 40, "samples": batch, "temperature": temperature}
            got = text(engine, prompt(batch), **how)
            want = text(Recompute(model), prompt(batch), **how)
            assert got.tolist() == want.tolist()
    torch.compiler.reset()


# --- the sampler ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("temperature", "top_k"), [(0.5, 0), (1.0, 0), (2.0, 0), (1.0, 2)])
def test_draws_follow_the_softmax_of_the_k_most_probable(temperature: float, top_k: int):
    logits = torch.tensor([1.0, -0.5, 2.0, 0.0, -30.0])
    if top_k == 0:
        kept = logits
    else:
        kept = logits.where(logits >= 1, -torch.inf)
    share = (kept / temperature).softmax(-1)
    error = 4 * (share * (1 - share) / 20_000).sqrt()  # four standard deviations
    sampler = TokenSampler(
        temperature=temperature, top_k=top_k, seed=0, sequences=20_000, max_tokens=1
    )
    tokens = sampler(logits.expand(20_000, -1), 0)
    drawn = torch.bincount(tokens, minlength=5) / 20_000
    assert ((drawn - share).abs() <= error + 1e-9).all()


@pytest.mark.parametrize(
    "how", [{"temperature": 0.0}, {"temperature": 1e-30}, {"temperature": 1.0, "top_k": 1}], ids=str
)
def test_three_ways_to_take_the_most_probable(how: dict[str, float]):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, VOCAB, generator=generator)
    sampler = TokenSampler(**{"top_k": 0, **how}, seed=0, sequences=64, max_tokens=1)
    expected = logits.argmax(-1).tolist()
    assert sampler(logits, 0).tolist() == expected


def test_draws_depend_on_seed_and_place_only():
    few = TokenSampler(temperature=1.0, top_k=0, seed=5, sequences=2, max_tokens=10).draws_BN
    many = TokenSampler(temperature=1.0, top_k=0, seed=5, sequences=9, max_tokens=99).draws_BN
    other = TokenSampler(temperature=1.0, top_k=0, seed=6, sequences=2, max_tokens=10).draws_BN
    expected = many[:2, :10].tolist()
    assert few.tolist() == expected
    assert not (few == other).any()


def test_the_largest_draw_stays_among_the_possible_tokens():
    sampler = TokenSampler(temperature=1.0, top_k=0, seed=0, sequences=1, max_tokens=1)
    sampler.draws_BN = torch.tensor([[1 - 2**-24]], dtype=torch.float32)
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]])
    assert sampler(logits, 0).tolist() == [1]
