"""FLOPs a token: the known figures, torch's own counter, and the window's average by
direct count."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nocap import check, outside
from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.run import Run
from nocap.judge.compare import compare
from nocap.measure.bench import carry_out
from nocap.measure.bench_table import render_bench
from nocap.measure.profile import profile
from nocap.measure.profile_tables import render_profile
from nocap.measure.roofline import count
from nocap.measure.timed_arm import TimedArm
from nocap.model.flops import component_flops, flops_per_token
from nocap.model.gpt import GPT
from nocap.report.comparison_tables import render
from nocap.store.record_files import read_json
from nocap.store.rows_file import RowsFile
from nocap.store.runs import load_runs
from nocap.study.bounds import _flops
from nocap.study.proposals.override_proposals import check_flops
from tests.conftest import REPO
from tests.in_process import TINY, planned, start

OWN = REPO / "tests" / "own_ideas"
D12 = ["model=d12", "attention=flash", "trainer.micro_batch=1"]


@pytest.fixture(autouse=True)
def nothing_from_outside(isolated: None) -> Iterator[None]:
    """Take out of use what a test has put in use."""
    yield
    os.environ.pop(outside.VARIABLE, None)


@pytest.mark.slow
def test_gpt2_124m_has_the_flops_of_its_formula():
    run = compose(D12)
    assert f"{flops_per_token(run, vocab_size=50257)[0] / 1e6:.1f}" == "797.8"
    assert f"{flops_per_token(run, vocab_size=50257, causal=False)[0] / 1e6:.1f}" == "854.4"
    expected = (6 * 123_532_032 + 12 * 12 * 1024 * 768, "arithmetic")
    assert flops_per_token(run, vocab_size=50257, causal=False) == expected


@pytest.mark.parametrize(
    "words",
    [
        "attention=mha mlp=gelu4x",
        "attention=gqa mlp=swiglu",
        "attention=mqa mlp=relu2",
        "attention=mha mlp=gelu3x model.tie_head=false position=learned",  # which cost no more
    ],
)
def test_arithmetic_equals_torchs_counter(words: str):
    run = compose(
        ["model=nano", "model.seq_len=32", "attention.kernel=materialized", *words.split()]
    )
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        tokens = torch.zeros(3, run.model.seq_len, dtype=torch.long)
        GPT(run, vocab_size=70)(tokens, tokens).total.backward()
    arithmetic = flops_per_token(run, vocab_size=70, causal=False)[0]
    assert counter.get_total_flops() / tokens.numel() == arithmetic
    assert sum(component_flops(run, vocab_size=70, causal=False).values()) == arithmetic


@pytest.mark.parametrize("window", [1, 64, 127, 1000])
def test_a_windows_keys_are_those_of_a_direct_count(window: int):
    """Keys of query t: min(t + 1, window). The convention counts a query's own key as half, as T/2
    for the causal mask does."""
    T = 128
    run = compose(
        ["model=nano", "attention=sliding", f"attention.window={window}", "trainer.device=cpu"]
    )
    direct = sum(min(t + 1, window) for t in range(T)) / T
    own = min(window, T) / (2 * T)
    scores = component_flops(run, vocab_size=70)["scores"]
    expected = 12 * 64 * 2 * (direct - own)
    assert scores == pytest.approx(expected)


def test_a_full_window_costs_what_full_attention_costs_and_a_hybrid_lies_between():
    base = ("model=nano", "model.n_layer=4", "trainer.device=cpu")
    run = compose([*base, "attention=flash"])
    full = flops_per_token(run, vocab_size=70)[0]
    run = compose([*base, "attention=sliding"])
    local = flops_per_token(run, vocab_size=70)[0]
    run = compose([*base, "attention=sliding", "attention.window=128"])
    widest = flops_per_token(run, vocab_size=70)[0]
    run = compose([*base, "attention=hybrid"])
    hybrid = flops_per_token(run, vocab_size=70)[0]
    assert widest == full
    assert hybrid == pytest.approx((3 * local + full) / 4)


# --- what is counted ------------------------------------------------------------------------------

NANO = ("model=nano", "trainer.device=cpu")
ATTENTIONS = str(OWN / "other_attentions")
EXPERTS = OWN / "sparse_experts"
WHY = "mlp=sparse_experts: DynamicOutputShapeException: aten.nonzero.default"


def both(*words: str, causal: bool = True) -> tuple[float, float]:
    """Count FLOPs a token by formulas, and by counting all that can be counted."""
    run = compose(words)
    by = []
    for formulas in (True, False):
        counted = component_flops(
            run, vocab_size=run.tokenizer.vocab_size, causal=causal, formulas=formulas
        )
        by.append(counted)
    return sum(by[0].values()), sum(by[1].values())


@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "words",
    [
        "attention=mha",
        "attention=gqa mlp=swiglu position=learned norm=layernorm",
        "attention=sliding",
        "attention=sliding attention.window=1",
        "attention=sliding attention.window=100",
        "attention=hybrid attention.pattern=LG attention.kernel=materialized attention.window=7",
        "attention=flash data.document_mask=true position.restart=true objective.loss_chunks=4",
        "trainer.activation_checkpointing=block model.norm_placement=both model.pad_logits=true",
        pytest.param("ideas=[x0,smear,partial_key_offset]", marks=pytest.mark.slow),
    ],
)
def test_counting_gives_the_figure_of_the_formulas(words: str, causal: bool):
    arithmetic, counted = both(*NANO, *words.split(), causal=causal)
    assert counted == pytest.approx(arithmetic, rel=1e-12)


@pytest.mark.parametrize("T", [2, pytest.param(3, marks=pytest.mark.slow), 5])
def test_short_texts_show_their_pairs(T: int):
    sizes = (f"model.seq_len={T}", f"trainer.batch_tokens={T}", f"trainer.val_tokens={T}")
    arithmetic, counted = both(*NANO, *sizes, "trainer.micro_batch=1")
    assert counted == pytest.approx(arithmetic, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["flash", "mha", "differential"])
def test_counting_gives_gpt2_124ms_figure(attention: str):
    outside.use([ATTENTIONS])
    run = compose([*D12, "trainer.device=cpu", f"attention={attention}"])
    for causal, figure in ((True, "797.8"), (False, "854.4")):
        parts = component_flops(run, vocab_size=50257, causal=causal, formulas=False)
        assert f"{sum(parts.values()) / 1e6:.1f}" == figure


@pytest.mark.slow
def test_differential_attention_costs_what_attention_costs():
    outside.use([ATTENTIONS])
    flash, other = (compose([*NANO, f"attention={name}"]) for name in ("flash", "differential"))
    known = flops_per_token(flash, vocab_size=70)[0]
    flops = flops_per_token(other, vocab_size=70)
    assert flops == (known, "arithmetic; counted: attention=differential")


@pytest.mark.slow
def test_latent_attention_is_counted_in_the_same_convention():
    outside.use([ATTENTIONS])
    run = compose([*NANO, "attention=latent"])
    d = 64
    H = 4
    T = 128
    rank = 32
    shared = 8
    weights = d * H * (d // H + shared) + d * (rank + shared) + rank * 2 * d + d * d
    # a key that a query meets: its product with it, and with its value
    pair = 6 * H * (2 * d // H + shared)
    causal = 2 * (6 * weights + pair * T / 2)
    every = 2 * (6 * weights + pair * T)

    assert causal == 325_632
    assert every == 448_512
    assert component_flops(run, vocab_size=70)["scores"] == causal
    assert component_flops(run, vocab_size=70, causal=False)["scores"] == every


FORMULA = """

    def flops_per_token(self, run, layer):
        return 1000.0 * (layer + 1)
"""
KEYS_MET = """

    def keys_met(self, layer, T):
        return 1.0
"""


def changed(path: Path, folder: Path, *, more: str) -> None:
    """Copy the option of this file into another folder as `other`, with more in its last class."""
    group = path.parent.name
    (folder / group).mkdir()
    source = path.read_text().replace(f'kind: str = "{path.stem}"', 'kind: str = "other"')
    text = source.rstrip() + more
    (folder / group / "other.py").write_text(text)
    yaml = path.with_suffix(".yaml").read_text().replace(path.stem, "other")
    (folder / group / "other.yaml").write_text(yaml)
    outside.use([folder])


@pytest.mark.parametrize(
    ("more", "scores", "basis"),
    [
        # it says nothing of a whole module
        (KEYS_MET, 325_632, "arithmetic; counted: attention=other"),
        (FORMULA, 3000, "arithmetic"),
    ],
)
def test_a_module_of_its_own_is_believed_where_it_speaks_of_the_module(
    more: str, scores: float, basis: str, tmp_path: Path
):
    changed(OWN / "other_attentions" / "attention" / "latent.py", tmp_path, more=more)
    run = compose([*NANO, "attention=other"])
    assert component_flops(run, vocab_size=70)["scores"] == scores
    assert flops_per_token(run, vocab_size=70)[1] == basis


HEADS = "from dataclasses import dataclass\nimport torch\nfrom torch import nn\n"
NORM = """
from nocap.options.norm import Norm

@dataclass(kw_only=True)
class Other(Norm):
    kind: str = "other"
    def build(self, d_model):
        return nn.Sequential(nn.RMSNorm(d_model), nn.Linear(d_model, d_model, bias=False))
"""
POSITION = """
from nocap.options.position import Position

@dataclass(kw_only=True)
class Other(Position):
    kind: str = "other"
    def build(self, model):
        return nn.Linear(model.d_model // model.n_head, model.d_model // model.n_head, bias=False)
    def turn(self, q, k, tables):
        return q @ self.matrix, k @ self.matrix
    def tables(self, part, where):
        self.matrix = part.weight
"""
OBJECTIVE = """
from nocap.options.objective import Objective

@dataclass(kw_only=True)
class Other(Objective):
    kind: str = "other"
    def loss(self, head, x_BTC, targets_BT):
        from nocap.model.loss import Loss
        twice = head.next_token(x_BTC, targets_BT) + head.next_token(x_BTC.tanh(), targets_BT)
        return Loss(twice, {"next_token": twice.detach() / 2, "again": twice.detach() / 2})
"""


PRODUCTS = [
    ("norm", NORM, "norm", 5 * 6 * 64**2),  # two a layer, and before the head
    # queries and keys of four heads in each layer
    pytest.param("position", POSITION, "position", 2 * 6 * 8 * 16**2, marks=pytest.mark.slow),
    pytest.param("objective", OBJECTIVE, "head", 2 * 6 * 64 * 70, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("group", "source", "component", "flops"), PRODUCTS)
def test_products_of_a_norm_a_position_and_an_objective_are_counted(
    group: str, source: str, component: str, flops: float, tmp_path: Path
):
    (tmp_path / group).mkdir()
    (tmp_path / group / "other.py").write_text(HEADS + source)
    (tmp_path / group / "other.yaml").write_text("kind: other\n")
    outside.use([tmp_path])
    run = compose([*NANO, f"{group}=other"])
    counted, basis = flops_per_token(run, vocab_size=70)
    assert component_flops(run, vocab_size=70)[component] == flops
    assert basis == f"arithmetic; counted: {group}=other"
    plain = component_flops(compose(NANO), vocab_size=70)
    expected = sum((plain | {component: flops}).values())
    assert counted == expected


# --- what cannot be counted -----------------------------------------------------------------------


def test_an_operation_without_a_formula_is_not_taken_for_nothing(tmp_path: Path):
    @torch.library.custom_op("nocap_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    doubled.register_fake(torch.empty_like)
    doubled.register_autograd(lambda ctx, grad: 2 * grad)
    source = NORM.replace("nn.Linear(d_model, d_model, bias=False)", "Doubled()")
    own = """
class Doubled(nn.Module):
    def forward(self, x):
        return torch.ops.nocap_test.doubled(x)
"""
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "other.py").write_text(HEADS + own + source)
    (tmp_path / "norm" / "other.yaml").write_text("kind: other\n")
    outside.use([tmp_path])
    basis = "not counted (norm=other: nocap_test::doubled has no formula for its FLOPs)"
    run = compose([*NANO, "norm=other"])
    flops = flops_per_token(run, vocab_size=70)
    assert flops == (None, basis)


def test_what_depends_on_the_numbers_is_not_counted_and_the_rest_is():
    outside.use([EXPERTS])
    run = compose([*NANO, "mlp=sparse_experts"])
    flops = flops_per_token(run, vocab_size=70)
    assert flops == (None, f"not counted ({WHY})")
    parts = component_flops(run, vocab_size=70)
    assert parts.pop("mlp") is None
    plain = component_flops(compose(NANO), vocab_size=70)
    assert parts.items() <= plain.items()


KNOWN = """

    def flops_per_token(self, d_model):
        return 6.0 * d_model * (self.experts + 4 * d_model)
"""


@pytest.mark.slow
def test_a_formula_counts_where_running_it_cannot(tmp_path: Path):
    changed(EXPERTS / "mlp" / "sparse_experts.py", tmp_path, more=KNOWN)
    for ideas in ("[]", "[x0]"):
        run = compose([*NANO, "mlp=other", f"ideas={ideas}"])
        flops, basis = flops_per_token(run, vocab_size=70)
        plain = component_flops(compose(NANO), vocab_size=70)
        expected = sum((plain | {"mlp": 2 * 6 * 64 * (4 + 4 * 64)}).values())
        assert flops == expected
        assert basis == "arithmetic"


MORE_WORDS = [
    (),
    pytest.param(("ideas=[x0]",), marks=pytest.mark.slow),
    pytest.param(
        ("ideas=[multi_token]", "ideas.multi_token.weights=[0.3]"), marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize("words", MORE_WORDS)
def test_what_cannot_be_counted_trains_and_says_so(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hardware, "peak_flops", lambda device, precision: (1e12, "a peak"))
    outside.use([EXPERTS])
    this = planned(tmp_path, "mlp=sparse_experts", *words)
    assert start(this).status == "finished"
    summary = read_json(this.run_dir / "summary.json")
    assert summary is not None
    assert summary["flops_per_token"] is None
    assert summary["flops_basis"].startswith(f"not counted ({WHY}")
    assert summary["mfu"] is None
    assert summary["mfu_basis"] == f"FLOPs {summary['flops_basis']}"
    rows = RowsFile(this.run_dir / "metrics.jsonl").rows()
    assert {row.get("perf/mfu") for row in rows} == {None}


@pytest.mark.slow
def test_a_comparison_says_why_there_is_no_figure(tmp_path: Path):
    outside.use([EXPERTS])
    for mlp in ("gelu4x", "sparse_experts"):
        start(planned(tmp_path, f"mlp={mlp}"))
    text = render(compare(load_runs([tmp_path])))
    assert text.count(f"FLOPs not counted ({WHY})") == 1


def test_a_bound_of_flops_needs_both_sides():
    assert _flops({"mlp": None, "head": 2.0}, []) is None
    assert _flops({"mlp": None, "head": 2.0}, ["mlp_up"]) is None
    assert _flops({"mlp": None, "head": 2.0}, ["head"]) == 2.0
    assert _flops({"model": 7.0}, ["head"]) is None
    assert _flops({"mlp": 1.0, "head": 2.0}, []) == 3.0


def test_a_step_that_cannot_be_counted_has_no_work():
    outside.use([EXPERTS])
    run = compose([*NANO, "mlp=sparse_experts", "attention=sliding"])
    counts = count(run, vocab_size=70)
    assert counts.not_counted == WHY.partition(": ")[2]
    assert not counts.by_part()
    assert counts.needed() == 1.0


def test_the_window_of_a_block_of_its_own_narrows_no_bound():
    outside.use([REPO / "tests" / "strangers" / "parallel"])
    run = compose([*NANO, "model=parallel", "attention=sliding"])
    counts = count(run, vocab_size=70)
    assert counts.not_counted is None
    assert counts.needed() == 1.0


def test_a_limit_of_flops_refuses_a_proposal_that_cannot_be_counted():
    outside.use([EXPERTS])
    sides = [compose([*NANO, f"mlp={mlp}"]) for mlp in ("sparse_experts", "gelu4x")]
    with pytest.raises(
        ValueError, match=r"^FLOPs of a token must be at most 1\.5 .* got not counted \(mlp="
    ):
        check_flops(sides, most=1.5)
    check_flops([sides[1]] * 2, most=1.0)


@pytest.mark.slow
def test_check_passes_what_cannot_be_counted(capsys: pytest.CaptureFixture[str]):
    assert check.main([str(EXPERTS), "--only", "counts"]) == 0
    line, last = capsys.readouterr().out.splitlines()
    assert line.startswith("ok   mlp=sparse_experts counts ")
    assert f"not counted ({WHY}); activations not counted" in line
    assert last == "all passed"


@pytest.mark.slow
def test_profile_and_bench_time_what_cannot_be_counted(tmp_path: Path):
    outside.use([EXPERTS])
    words = [*TINY, "trainer.device=cpu", "mlp=sparse_experts"]
    profiled = profile(compose(words), words, compose_more(words), repeats=1, ceilings=True)
    told = render_profile(profiled)
    assert profiled.ceilings is not None
    assert profiled.ceilings.table == []
    assert f"FLOPs a token: not counted ({WHY})" in told.splitlines()
    arms = [TimedArm(mlp, compose([*TINY, f"mlp={mlp}"])) for mlp in ("gelu4x", "sparse_experts")]
    timed = carry_out(arms, seconds=1e9, rounds=1)
    assert timed.arms[1].speed_by_flops is None
    assert f"sparse_experts: FLOPs not counted ({WHY})" in render_bench(timed).splitlines()


def compose_more(words: list[str]) -> Callable[[Sequence[str]], Run]:
    return lambda more: compose([*words, *more])
