"""The model against a second, plain one that shares no code with it, and its parts against their
formulas."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from nocap.config.compose import compose
from nocap.config.option import unread
from nocap.config.run import Run
from nocap.model.build import build_model, count_parameters
from nocap.model.compiled import TUNED, compile_in_place, compiled
from nocap.model.fp8 import Fp8Linear
from nocap.model.gpt import GPT
from nocap.model.norm import rms_norm
from nocap.options.attention.kernel import Kernel
from nocap.options.attention.softmax import Softmax
from nocap.options.mlp.feedforward import Activation
from nocap.options.model import NormPlacement
from nocap.options.norm.channels import ChannelNorm, NormKind
from nocap.options.position.learned import Learned
from nocap.options.position.rope import Rope
from tests.test_attention import naive

VOCAB = 61


def nano(*overrides: str) -> Run:
    return compose(["model=nano", "model.seq_len=32", "trainer.device=cpu", *overrides])


def tokens_of(T: int = 32, B: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCAB, (B, T + 1), generator=generator)


def random_weights(model: GPT) -> dict[str, Tensor]:
    """Every weight random, gains and shifts too, and by name: the tied matrix under both of its
    names."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            deviation = math.sqrt(p.shape[-1])
            noise = torch.randn(p.shape, generator=generator) / deviation
            p.copy_(noise + (p.ndim == 1))
    return {name: tensor.double() for name, tensor in model.state_dict().items()}


# --- the reference: plain functions in fp64 -------------------------------------------------------


def reference_norm(x: Tensor, w: dict[str, Tensor], name: str, spec: ChannelNorm) -> Tensor:
    if spec.norm is NormKind.layer:
        x = x - x.mean(-1, keepdim=True)
    square = (x**2).mean(-1, keepdim=True)
    x = x / (square + spec.eps).sqrt()
    for part in ("gain", "weight"):
        x = x * w.get(f"{name}.{part}", 1.0)
    return x + w.get(f"{name}.bias", 0.0)


def reference_attention(x: Tensor, w: dict[str, Tensor], name: str, run: Run) -> Tensor:
    """Positions as rotations of complex numbers."""
    m = run.model
    B, T, _ = x.shape
    D = m.d_model // m.n_head
    q, k, v = ((x @ w[f"{name}.{part}_proj.weight"].T).reshape(B, T, -1, D) for part in "qkv")
    if m.qk_norm:
        mean_square = (q**2).mean(-1, keepdim=True)
        q = q / (mean_square + 1e-6).sqrt()
        key_square = (k**2).mean(-1, keepdim=True)
        k = k / (key_square + 1e-6).sqrt()
    if isinstance(run.position, Rope):
        exponent = -2 * torch.arange(D // 2, dtype=torch.float64) / D
        frequency = run.position.base**exponent
        angle = -torch.arange(T)[:, None, None] * frequency
        turn = torch.polar(torch.ones_like(angle), angle)
        turned = []
        for y in (q, k):
            real, imaginary = y.chunk(2, -1)
            turned.append(torch.complex(real.contiguous(), imaginary.contiguous()) * turn)
        q, k = (torch.cat([y.real, y.imag], -1) for y in turned)
    out = naive(*(y.transpose(1, 2) for y in (q, k, v))).transpose(1, 2)
    return out.reshape(B, T, -1) @ w[f"{name}.out_proj.weight"].T


def reference_mlp(x: Tensor, w: dict[str, Tensor], name: str, run: Run) -> Tensor:
    up = x @ w[f"{name}.up.weight"].T
    if run.mlp.activation is Activation.gelu:
        error = torch.erf(up / math.sqrt(2))
        h = up * (1 + error) / 2
    elif run.mlp.activation is Activation.relu2:
        h = up.clamp(min=0) ** 2
    else:
        gate = x @ w[f"{name}.gate.weight"].T
        h = gate / (1 + torch.exp(-gate)) * up
    return h @ w[f"{name}.down.weight"].T


def reference_logits(w: dict[str, Tensor], tokens: Tensor, run: Run) -> Tensor:
    m = run.model
    x = w["embedding.weight"][tokens]
    if isinstance(run.position, Learned):
        x = x + w["position.weight"][: tokens.shape[1]]
    small = (2 * m.n_layer) ** -0.5
    scales = {"none": (1, 1), "attention": (small, 1), "both": (small, small)}
    scale = scales[m.residual_scale.value]
    for layer in range(m.n_layer):
        for branch, f, s in zip(
            ("attention", "mlp"), (reference_attention, reference_mlp), scale, strict=True
        ):
            name = f"blocks.{layer}.{branch}"
            if m.norm_placement is NormPlacement.pre:
                h = reference_norm(x, w, f"{name}.norm", run.norm)
                x = x + s * f(h, w, f"{name}.f", run)
            elif m.norm_placement is NormPlacement.post:
                x = reference_norm(x + s * f(x, w, f"{name}.f", run), w, f"{name}.norm", run.norm)
            else:
                h = reference_norm(x, w, f"{name}.norm", run.norm)
                inner = f(h, w, f"{name}.f", run)
                x = x + s * reference_norm(inner, w, f"{name}.norm_after", run.norm)
    logits = reference_norm(x, w, "head.norm", run.norm) @ w["head.unembed.weight"].T
    if m.logit_softcap is None:
        return logits
    return m.logit_softcap * torch.tanh(logits / m.logit_softcap)


VARIANTS = [
    "model.norm_placement=both model.residual_scale=both norm=rmsnorm_gain",
    "model.norm_placement=post model.residual_scale=both",
    "model.residual_scale=none",
    "model.qk_norm=true position=none",
    "position=learned",
    "position=rope position.base=100",
    "model.tie_head=false",
    "model.pad_logits=true",
    "model.pad_logits=true model.tie_head=false model.logit_softcap=2",
    "norm=layernorm",
    "norm=layernorm norm.bias=false",
    "norm=layernorm norm.bias=false norm.gain=false",
    "norm=rmsnorm_gain norm.eps=0.1",
    "attention=mha",
    "attention=gqa model.qk_norm=true",
    "attention=mqa attention.merge_qkv=true",
    "attention=gqa attention.merge_qkv=true model.qk_norm=true",
    "mlp=gelu3x",
    "mlp=relu2",
    "mlp=swiglu",
    "objective.z_loss=0.01",
    "model.n_layer=3 model.n_head=2 model.d_model=20",
    "attention=gqa mlp=swiglu norm=layernorm position=learned model.norm_placement=both "
    "model.residual_scale=both model.qk_norm=true "
    "model.tie_head=false model.logit_softcap=2",
]


@pytest.mark.parametrize("overrides", VARIANTS)
def test_the_model_is_the_plain_model(overrides: str):
    """Of a shorter sequence too."""
    run = nano(*overrides.split())
    model = build_model(run, vocab_size=VOCAB)
    tokens = tokens_of()
    want = reference_logits(random_weights(model), tokens[:, :-1], run)
    for T in (32, 11):
        got = model.logits(tokens[:, :T]).double()
        torch.testing.assert_close(got, want[:, :T], atol=3e-5, rtol=1e-5)
    logs = want.log_softmax(-1)
    picked = logs.gather(2, tokens[:, 1:, None])
    squares = want.logsumexp(-1) ** 2
    z = run.objective.z_loss * (squares).mean()  # in training alone
    for training, expected in ((True, z - picked.mean()), (False, -picked.mean())):
        output = model.train(training)(tokens[:, :-1], tokens[:, 1:])
        loss = output.total.item()
        assert loss == pytest.approx(expected.item(), abs=1e-5)


# --- in fewer bits --------------------------------------------------------------------------------

STREAM = "model.residual_precision=bf16"


@pytest.mark.parametrize(
    "overrides",
    [
        "model.fp8_head=true",
        f"{STREAM} norm=layernorm position=learned",
        f"{STREAM} norm=rmsnorm_gain model.norm_placement=post",
        f"{STREAM} norm=layernorm model.norm_placement=both model.residual_scale=both",
    ],
)
def test_in_fewer_bits_the_loss_is_nearly_the_same_and_validation_in_fp32_is(
    overrides: str,
) -> None:
    """A residual stream in bf16 is bf16 in every branch, and fp32 where products are."""
    narrower, *words = overrides.split()
    runs = (nano(*words, *more, "trainer.precision=bf16") for more in ((), (narrower,)))
    wide, narrow = (build_model(run, vocab_size=VOCAB) for run in runs)
    dtypes = list[torch.dtype]()
    losses = []
    tokens = tokens_of()

    def noted(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        dtypes.append(inputs[0].dtype)
        dtypes.append(out.dtype)

    for block in narrow.blocks:
        block.attention.register_forward_hook(noted)
        block.mlp.register_forward_hook(noted)
    for model in (wide, narrow):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
            losses.append(loss.total)
    losses[1].backward()
    expected = [torch.bfloat16 if narrower == STREAM else torch.float32] * 8
    assert dtypes == expected
    assert losses[0] != losses[1]
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=5e-3)
    for p in narrow.parameters():
        assert p.grad is not None
        assert p.grad.dtype is torch.float32
    with torch.no_grad():
        assert torch.equal(*(model.eval().logits(tokens[:, 1:]) for model in (wide, narrow)))


def test_an_fp8_product_and_its_gradients_are_the_quantized_factors_products() -> None:
    chance = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=chance, dtype=torch.bfloat16)
    x = draw(2, 16, 48).requires_grad_()
    weight = draw(70, 48)
    by_y = draw(2, 16, 70)
    head = Fp8Linear(48, 70, bias=False)
    head.weight = nn.Parameter(weight.float())
    y = head(x)
    y.backward(by_y)

    def rounded(t: Tensor, dtype: torch.dtype) -> Tensor:
        largest = t.double().abs().max()
        scale = largest / torch.finfo(dtype).max
        return (t.double() / scale).float().to(dtype).double() * scale

    x8 = rounded(x, torch.float8_e4m3fn)
    w8 = rounded(weight, torch.float8_e4m3fn)
    g8 = rounded(by_y, torch.float8_e5m2)
    weights = g8.flatten(0, 1).t() @ x8.flatten(0, 1)
    want = (x8 @ w8.t(), g8 @ w8, weights)
    for got, exact in zip((y, x.grad, head.weight.grad), want, strict=True):
        distance = (got.double() - exact).norm()
        assert distance < 4e-3 * exact.norm()  # bf16's rounding of the result
    plain = x @ weight.t()
    assert 1e-3 < (y - plain).norm() / plain.norm() < 0.06
    head.eval()
    product = x.float() @ head.weight.t()
    assert torch.equal(head(x.float()), product)


# --- parts ----------------------------------------------------------------------------------------


def test_rms_norm_of_bf16_computes_its_squares_in_fp32():
    low = (
        1000 * torch.randn(4, 256)
    ).bfloat16()  # squares computed in bf16 would be off in the third digit
    assert rms_norm(low, 1e-6).dtype is torch.bfloat16
    root = (low.double() ** 2).mean(-1, keepdim=True).sqrt()
    want = low.double() / root
    got = rms_norm(low, 1e-6).double()
    torch.testing.assert_close(got, want, rtol=2**-8, atol=0)


PARAMETER_COUNTS = [
    ("", 2 * 12 * 64**2, VOCAB * 64),
    ("model.tie_head=false", 2 * 12 * 64**2, 2 * VOCAB * 64),
    ("position=learned", 2 * 12 * 64**2, (VOCAB + 32) * 64),
    ("norm=rmsnorm_gain", 2 * 12 * 64**2 + 5 * 64, VOCAB * 64),
    ("norm=layernorm", 2 * 12 * 64**2 + 10 * 64, VOCAB * 64),
]


@pytest.mark.parametrize(("overrides", "layers", "more"), PARAMETER_COUNTS)
def test_parameters_are_counted_by_layer(overrides: str, layers: int, more: int):
    model = build_model(nano(*overrides.split()), vocab_size=VOCAB)
    assert count_parameters(model) == {"total": layers + more, "non_embedding": layers}
    for name, p in model.named_parameters():
        if p.ndim == 1:
            assert bool((p == ("bias" not in name)).all())


def test_weights_are_a_function_of_the_seed_alone():
    torch.manual_seed(5)
    after = torch.rand(1)
    torch.manual_seed(5)
    first = build_model(nano("seed=3"), vocab_size=VOCAB).state_dict()
    assert torch.rand(1) == after, "building a model leaves the global generator alone"
    others = (
        ("seed=3", "trainer.micro_batch=1", "optimizer=muon", "trainer.precision=fp32"),
        ("seed=4",),
    )
    again, other = (build_model(nano(*words), vocab_size=VOCAB).state_dict() for words in others)
    assert first.keys() == again.keys()
    for name in first:
        assert torch.equal(first[name], again[name])
    for name in first:
        assert not torch.equal(first[name], other[name])


def test_matrices_start_uniform_within_one_over_root_fan_in():
    run = nano("model.tie_head=false", "position=learned", "mlp=swiglu", "attention=gqa")
    for name, p in build_model(run, vocab_size=1000).named_parameters():
        bound = 1 / math.sqrt(p.shape[1])
        assert 0.98 * bound < p.abs().max() <= bound, name
        deviation = p.std().item()
        expected = bound / math.sqrt(3)
        assert deviation == pytest.approx(expected, rel=0.05), name
        assert abs(p.mean().item()) < 5 * bound / math.sqrt(3 * p.numel()), name


# --- compilation ----------------------------------------------------------------------------------


def test_the_compiler_gets_tunings_options_where_asked(monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda f, **how: (asked.append(how), f)[1])
    for tuned in (True, False):
        compile_in_place([nn.Identity()], tuned=tuned)
    expected = [{"fullgraph": True, "dynamic": False, "options": how} for how in (TUNED, None)]
    assert asked == expected


def test_past_its_limit_a_compiled_function_raises(monkeypatch: pytest.MonkeyPatch):
    """It does not go on uncompiled: FlexAttention would materialise its scores."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    monkeypatch.setattr("nocap.model.compiled.VERSIONS", 1)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with torch._dynamo.config.patch(recompile_limit=1):
        double = compiled(lambda x: x * 2)
        assert double(torch.ones(2)).tolist() == [2.0, 2.0]
        with pytest.raises(FailOnRecompileLimitHit):
            double(torch.ones(3))


def test_a_module_of_ones_own_has_no_products_to_merge() -> None:
    members = {"build": lambda self, run, layer: nn.Identity()}
    own = type("Own", (Softmax,), members)
    option = own(kind="own", n_kv_heads=4, kernel=Kernel.fused)
    unreads = list(unread(option))
    assert unreads == ["attention.merge_qkv", "model.qk_norm"]
