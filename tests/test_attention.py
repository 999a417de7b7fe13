"""Every attention against a plain softmax: values, gradients, causality, cost.

B: batch, T: tokens, H: query heads, K: key/value heads, D: channels of a head.
"""

import math
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch._functorch._aot_autograd.autograd_cache import check_cacheable
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from nocap.config.compose import compose
from nocap.model.attention import flex, fused, materialized, prepare_flex
from nocap.model.compiled import compiled
from nocap.model.sliding import blocks
from nocap.options.attention.kernel import Kernel

HEADS = [(4, 4), (6, 2), (4, 1)]  # H, K
# around the smallest block and its multiples
LENGTHS = [1, 64, 65, 200]
WINDOWS = [1, 37, 64, 65, 199, 1000]
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="FlexAttention needs a CUDA GPU: its CPU version has no backward",
)


def naive(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Ten lines of attention, in fp64."""
    q = q.double()
    k = k.double()
    v = v.double()
    T = q.shape[2]
    group = q.shape[1] // k.shape[1]
    i = torch.arange(T, device=q.device)[:, None]
    j = torch.arange(T, device=q.device)[None, :]
    visible = (j <= i) & (j > i - (T if window is None else window))
    heads = []
    for h in range(q.shape[1]):
        keys = k[:, h // group].mT
        scores = q[:, h] @ keys / math.sqrt(q.shape[3])
        visible_scores = torch.where(visible, scores, -math.inf)
        weights = visible_scores.softmax(-1)
        heads.append(weights @ v[:, h // group])
    return torch.stack(heads, 1)


def qkv(
    T: int, H: int = 4, K: int = 4, D: int = 16, B: int = 2, device: str = "cpu"
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * T + 10 * H + K)
    values: list[Tensor] = []
    for n in (H, K, K):
        drawn = torch.randn(B, n, T, D, generator=generator)
        values.append(drawn.to(device).requires_grad_())
    return values


def assert_same(
    mix: Callable[..., Tensor],
    inputs: list[Tensor],
    window: int | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Outputs and the gradients of all three inputs."""
    got = mix(*inputs)
    want = naive(*inputs, window=window)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(want.shape, generator=generator, dtype=torch.float64).to(want.device)
    got_grads = torch.autograd.grad((got * weight).sum(), inputs)
    want_grads = torch.autograd.grad((want * weight).sum(), inputs)
    for name, a, b in zip(
        ("output", "dq", "dk", "dv"), (got, *got_grads), (want, *want_grads), strict=True
    ):
        torch.testing.assert_close(
            a.double(),
            b.double(),
            atol=tolerance,
            rtol=tolerance,
            msg=lambda m, name=name: f"{name}: {m}",
        )


@pytest.mark.parametrize(("H", "K"), HEADS)
@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize(
    "mix",
    [materialized, fused(Kernel.fused), fused(Kernel.flash)],
    ids=["materialized", "fused", "flash"],
)
def test_global_attention_is_the_naive_one(mix: Callable[..., Tensor], T: int, H: int, K: int):
    assert_same(mix, qkv(T, H, K))


@pytest.mark.parametrize(
    ("T", "window", "H", "K"),
    [(T, window, 4, 4) for T in LENGTHS for window in WINDOWS] + [(200, 70, 6, 2), (200, 70, 4, 1)],
)
def test_attention_in_blocks_is_the_naive_one(T: int, window: int, H: int, K: int):
    assert_same(blocks(window), qkv(T, H, K), window)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("H", "K"), HEADS)
@pytest.mark.parametrize(("T", "window"), [(256, 64), (256, 1), (200, 37), (128, 1000)])
def test_flex_attention_is_the_naive_one(T: int, window: int, H: int, K: int):
    prepare_flex(window, seq_len=T, device=torch.device("cuda"))
    inputs = qkv(T, H, K, device="cuda")
    assert_same(flex(window), inputs, window, tolerance=1e-4)


@pytest.mark.parametrize(
    "mix",
    [materialized, fused(Kernel.fused), blocks(1000)],
    ids=["materialized", "fused", "blocks"],
)
def test_under_bf16_autocast_it_stays_near(mix: Callable[..., Tensor]):
    """As the model calls it: queries and keys fp32 from the rotation, values bf16 from their
    projection."""
    q, k, v = (x.detach() for x in qkv(200))
    with torch.autocast("cpu", torch.bfloat16):
        got = mix(q, k, v.bfloat16())
    assert got.dtype is torch.bfloat16
    reference = naive(q, k, v)
    error = (got.double() - reference).abs()
    assert error.max() < 0.03
    assert error.mean() < 0.002


LAYERS_WITH_WINDOWS = [
    (("attention=sliding", "attention.window=9"), (9, 9)),
    (("attention=hybrid", "attention.pattern=LG", "attention.window=5"), (5, None, 5, None)),
    (("attention=hybrid", "model.n_layer=2", "attention.window=5"), (5, None)),
    (("attention=hybrid", "model.n_layer=3", "attention.window=5"), (5, 5, None)),
]


@pytest.mark.parametrize(("words", "windows"), LAYERS_WITH_WINDOWS)
def test_each_layer_has_its_window(words: tuple[str, ...], windows: tuple[int | None, ...]):
    run = compose([*words, "model=nano", "trainer.device=cpu"])
    inputs = qkv(40)
    for layer, window in enumerate(windows):
        assert_same(run.attention.mixer(run, layer), inputs, window)


# --- kernels and cost -----------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """Which operators ran, the elements of the largest tensor made, and the query-key pairs that
    attention kernels were given."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set()
        self.largest = 0
        self.pairs = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        words = func.__name__.split(".")
        self.names.add(words[0])
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        if func.__name__.startswith("_scaled_dot_product_flash_attention_for_cpu."):
            q, k = args[:2]
            self.pairs += q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        return out


@pytest.mark.parametrize(("H", "K"), HEADS)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_fused_is_the_fused_kernel(precision: torch.dtype, H: int, K: int):
    inputs = qkv(64, H, K)
    with (
        Watch() as watch,
        torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16),
    ):
        fused(Kernel.fused)(*inputs).sum().backward()
    assert "_scaled_dot_product_flash_attention_for_cpu" in watch.names
    assert not {"bmm", "softmax", "_softmax", "_safe_softmax"} & watch.names, "the math kernel ran"
    with Watch() as watch:
        materialized(*inputs)
    assert {"bmm", "_softmax"} <= watch.names, "and these are the names that it would show"


@pytest.mark.parametrize("kernel", [Kernel.fused, Kernel.flash, Kernel.efficient])
def test_where_the_kernel_cannot_run_nothing_stands_in(kernel: Kernel):
    # channels not contiguous: no fused kernel takes it
    q, k, v = (torch.randn(1, 2, 16, 8).mT.contiguous().mT for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each kernel's reason before it raises
        with pytest.raises(RuntimeError, match=r"No (available kernel|viable backend)"):
            fused(kernel)(q, k, v)


@pytest.mark.parametrize("window", [1, 64, 100])
def test_slidings_cost_is_linear_in_the_length(window: int):
    T = 1600
    costs = []
    for length in (T, 2 * T):
        inputs = qkv(length, H=1, K=1, D=4, B=1)
        with Watch() as watch:
            blocks(window)(*inputs).sum().backward()
        assert not {"bmm", "_softmax", "_safe_softmax"} & watch.names
        assert watch.pairs <= length * 2 * max(window, 64)
        costs.append((watch.pairs, watch.largest))
    assert 1.9 < costs[1][0] / costs[0][0] < 2.1
    assert costs[1][1] / costs[0][1] < 2.1
    assert costs[1][1] < (2 * T) ** 2 / 100, "a tensor near T×T was made"


def test_a_compiled_region_with_a_fused_kernel_is_one_that_torch_caches():
    """Else each process traces it anew. The backend stands in for the compiler, which asks this
    before it looks into its cache."""
    compiled(len)  # which sets torch's compiler up
    graphs = list[GraphModule]()

    def backend(graph: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Tensor]:
        check_cacheable(graph)
        graphs.append(graph)
        return graph.forward

    q, k, v = qkv(16, 2, 1)
    mix = torch.compile(fused(Kernel.flash), backend=backend, fullgraph=True)
    torch.testing.assert_close(mix(q, k, v), fused(Kernel.flash)(q, k, v), atol=0, rtol=0)
    assert len(graphs) == 1
