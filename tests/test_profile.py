"""The profile: what is counted equals arithmetic, what is measured lands where it was planted, and
the door says it all."""

import json
import re
import time
from functools import cache, partial
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from nocap import outside
from nocap import profile as command
from nocap.config.compose import compose
from nocap.config.paths import conf_dir
from nocap.config.trainer import Device, Precision
from nocap.data.batches import microbatches
from nocap.measure import ceilings, peaks, profile, profile_record, profile_tables, roofline
from nocap.measure.attention_lengths import attention_ms, exponent, with_window
from nocap.measure.profile_schema import CeilingJson, CeilingsJson, ClocksJson, Peak, ProfileFile
from nocap.measure.profiler_events import busy_ms, of_modules, profiler, read_moments
from nocap.measure.profiler_ranges import MARK, Ranges
from nocap.measure.profiler_timing import Observation, busy, measure_step
from nocap.measure.roofline import OpWork, count
from nocap.model.build import build_model
from nocap.model.flops import component_flops, flops_per_token
from nocap.model.gpt import GPT
from nocap.model.loss import Loss
from nocap.step_parts import MODEL_PARTS, PARTS
from tests.conftest import EXPLODING
from tests.fuzz.process import answer

NANO = (
    "model=nano",
    "model.seq_len=32",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.precision=fp32",
    "trainer.micro_batch=2",
)
D12 = ("model=d12", "tokenizer=gpt2", "trainer.device=cpu", "trainer.micro_batch=1")
MLPS = sorted(path.stem for path in (conf_dir() / "mlp").glob("*.yaml"))
PEAK = Peak(flops={"fp32": 1e12, "bf16": 4e12}, bytes_per_s=1e11)
GPT2 = 50257
# parts of what does not say what its modules are, which this tree has none of
WHOLE = {"attention", "mlp", "ideas"}


@cache
def counted(*words, vocab_size=70):
    run = compose(list(words))
    return run, count(run, vocab_size=vocab_size)


# --- what is counted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attention", "mlp"), [("gqa", "gelu4x"), *(("flash", mlp) for mlp in MLPS)]
)
def test_counted_flops_equal_the_arithmetic_part_by_part(attention, mlp):
    run, counts = counted(*NANO, f"attention={attention}", f"mlp={mlp}")
    flops = {}
    for part, work in counts.by_part().items():
        if work.flops:
            flops[part] = work.flops / 64  # of 2 × 32 tokens
    total = sum(flops.values())
    flops["mlp"] = flops.pop("mlp_up") + flops.pop("mlp_down")
    arithmetic = component_flops(run, vocab_size=70)
    expected = {part: each for part, each in arithmetic.items() if each}
    assert flops == expected
    assert flops_per_token(run, vocab_size=70) == (total, "arithmetic")


def test_counted_flops_equal_torchs_counter_where_that_sees_everything():
    run, counts = counted(*NANO, "attention=mha")
    with torch.device("meta"):
        model = GPT(run, vocab_size=70)
        tokens = torch.zeros(2, 32, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(tokens, tokens).total.backward()
    total = sum(work.flops for work in counts.work.values())
    assert total == counter.get_total_flops()


def test_a_prompt_moves_the_bytes_of_its_keys_and_values_into_the_cache():
    """It reads and writes them; the slots that stay empty it leaves alone."""
    cache = torch.zeros(1, 4, 128, 16)
    keys = torch.ones(1, 4, 8, 16)
    part = cache[:, :, :8]
    copy = torch.ops.aten.copy_.default
    op = roofline._op(copy, (part, keys), {}, part)
    assert op.bytes == 2 * keys.nbytes
    assert op.flops == 0


def test_bytes_of_a_projection_are_its_operands():
    """Forward: input and weight read, output written, fp32. (The transposed weight and the reshapes
    are views.)"""
    run, counts = counted(*NANO, "attention=flash")
    N = 64
    C = run.model.d_model
    work = counts.work["blocks.0.attention.f.q_proj", "forward"]
    assert work.bytes == 4 * (N * C + C * C + N * C)
    assert work.flops == 2 * N * C * C
    # the slower of both roofs
    expected = max(work.flops / 1e12, work.bytes / 1e11) * 1e3
    assert work.bound_ms(PEAK) == pytest.approx(expected)
    assert OpWork().bound_ms(PEAK) == 0


# --- ceilings -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_shares_of_d12_are_those_of_the_arithmetic():
    """The published table for T=1024: q 5.3, k and v 10.6, scores 7.1, out 5.3, MLP 21.3 + 21.3,
    head 29.0 per cent of 797.8M."""
    run, counts = counted(*D12, vocab_size=GPT2)
    flops = {part: work.flops for part, work in counts.by_part().items() if work.flops}
    for (path, _), work in counts.work.items():
        name = path.rpartition(".")[2]
        if name in ("q_proj", "k_proj", "v_proj"):
            flops[name] = flops.get(name, 0) + work.flops
    total = sum(work.flops for work in counts.work.values())
    assert f"{total / run.model.seq_len / 1e6:.1f}" == "797.8"
    expected = {
        "qkv": 16.0,
        "scores": 7.1,
        "attention_out": 5.3,
        "mlp_up": 21.3,
        "mlp_down": 21.3,
        "head": 29.0,
    }
    expected |= {"q_proj": 5.3, "k_proj": 5.3, "v_proj": 5.3}
    percents = {part: round(100 * each / total, 1) for part, each in flops.items()}
    assert percents == expected


@pytest.mark.slow
def test_ceilings_of_d12_are_those_of_the_arithmetic():
    """1.076× for GQA 12→4, 1.119× for a 3× MLP, 1.216× for both, at T=1024; and of a step whose
    time is its FLOPs, the same by the step."""
    _, base = counted(*D12, vocab_size=GPT2)
    times = {part: work.product_ms(PEAK) for part, work in base.by_part().items()}
    rows = []
    for words in (["attention=gqa"], ["mlp=gelu3x"], ["attention=gqa", "mlp=gelu3x"]):
        work_of_both = counted(*D12, *words, vocab_size=GPT2)
        rows.append(ceilings.ceiling(" ".join(words), base, work_of_both[1], PEAK, times, 0.0))
    assert [f"{row.by_flops:.3f}" for row in rows] == ["1.076", "1.119", "1.216"]
    gqa, mlp, both = (1 / row.by_step for row in rows)  # shares of the step
    assert gqa < 1 > mlp
    assert both == pytest.approx(gqa + mlp - 1)  # they touch different parts


@pytest.mark.slow
def test_another_kernel_goes_to_its_bound_and_the_same_one_by_its_ratio():
    run, old = counted(*NANO, "attention=mha", vocab_size=257)
    _, flash = counted(*NANO, "attention=flash", vocab_size=257)
    ms = ceilings.changed(old, flash, PEAK, dict.fromkeys(MODEL_PARTS, 1000.0))
    scores = flash.by_part()["scores"]
    expected = scores.bound_ms(PEAK) * microbatches(run)
    assert ms["scores"] == pytest.approx(expected)
    assert ms["rotary"] < 1000  # the fused kernel's output needs no copy to join its heads
    others = [ms[part] for part in MODEL_PARTS if part not in {"scores", "rotary"} | WHOLE]
    assert others == pytest.approx([1000.0] * 10)
    swa_run, window = counted(
        *NANO, "model.seq_len=512", "attention=sliding", "attention.window=64"
    )
    # the chunks' border is computed, and is not needed
    scores = component_flops(swa_run, vocab_size=70)["scores"]
    border = window.by_part()["scores"].flops - scores * 2 * 512
    assert border > 0
    products = sum(work.product_ms(PEAK) for work in window.work.values())
    assert window.product_ms(PEAK) == pytest.approx(products - border / 1e12 * 1e3)


# --- where time and memory land -------------------------------------------------------------------


class _Slow(torch.autograd.Function):
    """Takes 30 ms forward, 60 ms backward."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.03)
        return x.clone()

    @staticmethod
    def backward(ctx, *grads):
        time.sleep(0.06)
        return grads[0].clone()


def slowed(y):
    if isinstance(y, Loss):
        return Loss(_Slow.apply(y.total), y.parts)
    return _Slow.apply(y)


def watched(model):
    """What the profiler saw of a step, and the step's milliseconds; the model is as before."""
    ranges = Ranges(compose(list(NANO)))
    tokens = torch.zeros(2, 32, dtype=torch.long)
    mixers = [block.attention.f.mixer for block in model.blocks]
    model(tokens, tokens).total.backward()
    ranges.reset()
    with ranges.around(model), profiler(on_cuda=False) as prof, record_function(MARK + "step"):
        model(tokens, tokens).total.backward()
    assert [block.attention.f.mixer for block in model.blocks] == mixers
    time_range = next(e for e in prof.events() if e.name == MARK + "step").time_range
    step_ms = time_range.elapsed_us() / 1e3
    return of_modules(read_moments(prof, ranges, on_cuda=False)), ranges, step_ms


@pytest.mark.parametrize("place", ["blocks.1.attention.f.mixer", "head"])
def test_planted_time_is_found_where_it_was_planted(place, monkeypatch):
    model = build_model(compose(list(NANO)), vocab_size=70)
    owner = model.get_submodule(place.removesuffix(".mixer"))
    name = "forward"
    if place.endswith(".mixer"):
        name = "mixer"
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *x: slowed(original(*x)))
    rows, _, step_ms = watched(model)
    again, *_ = watched(model)
    for direction, planted_ms in (("forward", 30), ("backward", 60)):
        # the less of two times: the machine may be busy in one
        ms = {path: min(ms, again[path, d]) for (path, d), ms in rows.items() if d == direction}
        assert ms.pop(place) >= planted_ms
        for other in ms.values():
            assert other < planted_ms
    assert sum(rows.values()) == pytest.approx(step_ms, rel=1e-3)


def test_a_recomputed_forward_is_work_of_the_backward(monkeypatch):
    """Activation checkpointing ends the recomputed forward by an exception: the ranges must survive
    it."""
    model = build_model(compose(list(NANO)), vocab_size=70)
    key = ("blocks.0.mlp.f.up", "backward")
    slow = model.get_submodule(key[0])
    monkeypatch.setattr(slow, "forward", lambda x, f=slow.forward: (time.sleep(0.03), f(x))[1])
    plain = watched(model)[0]
    block = model.blocks[0]
    monkeypatch.setattr(block, "forward", partial(checkpoint, block.forward, use_reentrant=False))
    again, ranges, _ = watched(model)
    assert plain[key] < 30 <= again[key]
    assert ranges.here == "step"


def test_measured_memory_equals_what_was_counted():
    run = compose(
        [*NANO, "trainer.batch_tokens=192", "trainer.val_tokens=64", "trainer.grad_clip=null"]
    )
    measured = measure_step(run, repeats=1, trace=None)
    expected = count(run, vocab_size=run.tokenizer.vocab_size)
    tokens = {"embedding", "loss", "other"}  # keep token ids, in a batch's storage
    kept = {part: n for part, n in measured.ranges.kept.items() if n and part not in tokens}
    counted_bytes = {}
    for part, n in expected.ranges.kept.items():
        if n and part not in tokens:
            counted_bytes[part] = n
    assert kept == counted_bytes
    mib = measured.memory_mib
    assert mib["parameters"] == expected.parameters / 2**20
    assert mib["gradients"] == expected.parameters / 2**20
    assert mib["optimizer"] == pytest.approx(2 * mib["parameters"], rel=1e-2)
    bytes_kept = sum(expected.ranges.kept.values())
    assert mib["activations"] == pytest.approx(bytes_kept / 2**20, rel=1e-2)
    assert microbatches(measured.ranges.run) == 2  # of three: what repeats is measured once


# --- the curve ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "expected", "heads", "lengths"),
    [("sliding", 1, 4, [512, 1024, 2048, 4096]), ("mha", 2, 1, [256, 512, 1024, 2048])],
)
def test_attention_grows_as_promised(attention, expected, heads, lengths):
    """Scores and weighted sum alone, forward and backward, on one thread in CPU time; four windows
    and more.

    With one head mha's matrices stay below 32 MB: larger ones are mapped and zeroed anew at each
    allocation, which probably raises the exponent (2.35 with four heads and T up to 4096).
    """
    cubes = [3 * T**1.7 for T in lengths]
    assert exponent(lengths, cubes) == pytest.approx(1.7)
    words = [*NANO, f"model.n_head={heads}", f"model.d_model={64 * heads}", "trainer.micro_batch=1"]
    run = compose([*words, f"attention={attention}"])
    fitted = exponent(lengths, [attention_ms(with_window(run, T, window=128)) for T in lengths])
    assert abs(fitted - expected) <= 0.25


# --- what does not fit ----------------------------------------------------------------------------


# --- on a GPU -------------------------------------------------------------------------------------


def event(name, start, end, *, on="CPU", device_us=0.0, note=False):
    """An event as torch's profiler has it, microseconds from the trace's start."""
    time_range = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(
        name=name,
        time_range=time_range,
        device_type=SimpleNamespace(name=on),
        self_device_time_total=device_us,
        is_user_annotation=note,
        is_async=False,
        thread=1,
        cpu_parent=None,
        cpu_children=[],
        sequence_nr=-1,
    )


def made_trace():
    """A step of 100 µs under the profiler: kernels of 10, 15 and 10 µs, the first two at once for
    5; a range lies over all of it."""
    step = event(MARK + "step", 0, 100, note=True)
    head_event = event(MARK + "head", 5, 60)
    step.cpu_children = [head_event, event("Optimizer.step", 60, 99, device_us=10)]
    products = (("aten::mm", 6, 10, 10), ("aten::add", 10, 12, 15))
    step.cpu_children[0].cpu_children = [event(*place, device_us=us) for *place, us in products]
    kernels = (("gemm", 10, 20), ("add", 15, 30), ("adam", 70, 80))
    events = [step, *(event(*each, on="CUDA") for each in kernels)]
    return SimpleNamespace(
        events=lambda: [*events, event(MARK + "step", 0, 100, on="CUDA", note=True)]
    )


def test_the_gpus_busy_time_is_that_of_its_kernels_counted_once():
    assert busy_ms(made_trace()) == pytest.approx(0.030)
    run = compose(list(NANO))
    ms = of_modules(read_moments(made_trace(), Ranges(run), on_cuda=True))
    expected = {("head", "forward"): 0.025, ("optimizer", "forward"): 0.010}
    assert {key: each for key, each in ms.items() if each} == pytest.approx(expected)


def test_the_profilers_own_work_is_no_part_of_a_gpus_step():
    """Its step takes 50 ms, where 20 are the step's: what no part accounts for, and the busy share,
    are of the 20."""
    run = compose([*NANO, "trainer.batch_tokens=64", "trainer.val_tokens=64"])
    run.trainer.device = Device.cuda
    plain = ClocksJson(wall_ms=20.0, cpu_ms=9.0)
    clocks = ClocksJson(wall_ms=50.0, cpu_ms=50.0)
    seen = Observation(plain=plain, profiled=clocks, moments={}, between_ms=38.0)
    measured = SimpleNamespace(seen=seen, ranges=SimpleNamespace(run=run))
    assert profile_record._unattributed_ms(run, measured, 12.0, 1.0) == pytest.approx(8.0)
    assert busy(plain, 12.0).gpu_busy == pytest.approx(0.6)


# --- the door -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """One profile of the command, in this process, with everything that it writes. Its peaks are of
    small products and copies."""
    folder = tmp_path_factory.mktemp("profile")
    words = ["attention=gqa", "trainer.device=cpu", "trainer.precision=fp32", "trainer.compile=off"]
    words += ["trainer.batch_tokens=8192", "trainer.micro_batch=8"]
    flags = ["--json", "new/p.json", "--trace", "t.json", "--repeats", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("nocap.measure.clock.LEAST_S", 0.01)
        patch.setitem(peaks.PRODUCT, Device.cpu, 512)
        patch.setitem(peaks.COPY_BYTES, Device.cpu, 2**26)
        done = answer(lambda: command.main([*words, *flags]), limit_s=240)
    assert done.code == 0, done
    assert done.crash is None, done
    # trusted: whatever else runs beside the tests
    content = json.loads((folder / "new" / "p.json").read_text())
    return ({**content, "trusted": True}, done.out, folder)


@pytest.mark.slow
def test_the_record_says_what_was_measured_and_on_what(profiled):
    """The parts add up to the step; the table names them; the trace is one that Perfetto reads."""
    record, said, folder = profiled
    assert record["schema_version"] == 1
    assert record["kind"] == "profile"
    assert record["words"][0] == "attention=gqa"
    assert record["hardware"]["name"]
    assert record["hardware"]["threads"] == 1
    assert set(record["roof"]["flops"]) == {"fp32", "bf16"}
    step = record["step"]
    parts = {row["part"]: row for row in record["parts"]}
    assert step["microbatches"] == 4
    assert step["measured_microbatches"] == 2
    # one rank
    assert parts.keys() == PARTS.keys() - WHOLE
    assert parts["reduction"]["ms"] == 0
    layers = {row["layer"] for row in record["layers"]}
    assert layers == {0, 1, 2, 3}
    flops = sum(row["flops"] for row in parts.values())
    expected = record["flops_per_token"] * record["config"]["trainer"]["batch_tokens"]
    assert flops == pytest.approx(expected)
    calls = [parts[part]["calls"] for part in ("qkv", "scores", "head", "optimizer")]
    assert calls == [3 * 4 * 4, 4 * 4, 4, 1]
    sums = []
    for rows in (record["parts"], record["rows"]):
        sums.append(sum(row["ms"] for row in rows))
    assert sums == pytest.approx([step["attributed_ms"]] * 2)
    assert 0.95 * step["ms"] <= step["attributed_ms"] <= step["ms"]
    shares = sum(row["share"] for row in parts.values())
    assert shares == pytest.approx(step["attributed_ms"] / step["ms"])
    names = [name for part, name in PARTS.items() if part not in WHOLE]
    lines = ("the parts take", "measured peaks:", "2 of 4 micro-batches")
    unwrapped = " ".join(said.split())
    absent = [line for line in (*names, *lines) if line not in unwrapped]
    assert absent == []
    text = (folder / "t.json").read_text()
    events = json.loads(text)["traceEvents"]
    assert {MARK + "step", MARK + "blocks.1.mlp.f.up"} <= {event.get("name") for event in events}


@pytest.mark.slow
def test_ceilings_and_a_busy_gpu_are_told(profiled):
    """Made up: measuring ceilings takes longer than the rest. A step that waits for the host is
    hinted at."""
    record, plain, _ = profiled
    row = CeilingJson(
        label="attention=gqa", by_flops=1.076, by_step=1.09, saved_ms={}, saved_mib=3.0, saved=0.1
    )
    file = msgspec.convert(record, ProfileFile)
    for share, hint in ((0.41, True), (0.93, False)):
        plain_step = replace(file.step.plain, gpu_busy=share)
        step = replace(file.step, plain=plain_step)
        made = replace(file, step=step, ceilings=CeilingsJson(table=[row]))
        said = profile_tables.render_profile(made)
        assert f"the GPU was busy for {share:.0%} of this time" in said
        assert ("trainer.cuda_graphs=true" in said) == hint
        assert re.search(r"attention=gqa +1\.076× +1\.09× +3 +10\.0%", said)
    assert record["step"]["plain"]["gpu_busy"] is None
    assert "GPU busy" not in plain


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_door_measures_bounds(here, tmp_path):
    """Of every option of the tree but the run's own."""
    flags = ("--ceilings", "--repeats", "1", "--json", "p.json")
    done = here(
        "model=nano", "attention=flash", "trainer.device=cpu", *flags, module="nocap.profile"
    )
    text = (tmp_path / "p.json").read_text()
    table = json.loads(text)["ceilings"]["table"]
    assert done.code == 0, done.err
    expected = sorted(table, key=lambda row: -row["by_step"])
    assert table == expected, done.err
    paths = (conf_dir() / "attention").glob("*.yaml")
    options = {f"attention={path.stem}" for path in paths}
    labels = {row["label"] for row in table}
    assert options - labels == {"attention=flash"}


# --- refusals -------------------------------------------------------------------------------------


BAD_INPUT = [
    (("--multirun", "seed=0,1"), "unrecognized arguments: --multirun"),
    (("--json", "."), "--json must be a file that can be written"),
    (("--repeats", "0"), "--repeats must be at least 1, got 0"),
    (("attention.n_kv_heads=3",), "attention.n_kv_heads must divide model.n_head=4, got 3"),
    (
        ("trainer.devices=2", "trainer.batch_tokens=8192"),
        "trainer.devices must be 1, because nocap.profile measures the step of one device",
    ),
]


@pytest.mark.parametrize(("words", "said"), BAD_INPUT)
def test_bad_input_is_refused_in_a_line(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(list(words))
    *usage, line = capsys.readouterr().err.splitlines()
    # of argparse
    assert said in line
    assert len(usage) <= 1


def test_memory_that_runs_out_and_a_step_that_diverges_are_a_line_too(monkeypatch):
    def profiled(*words):
        run = compose([*NANO, *words])
        return profile.profile(run, [], lambda more: compose([*NANO, *more]), repeats=1)

    out = Mock(
        side_effect=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore")
    )
    monkeypatch.setattr(profile, "measure_peak", out)
    line = (
        r"fit into the device's memory; set a smaller trainer.micro_batch than 2 \(CUDA out .* "
        r"2.00 "
        r"GiB\.\)$"
    )
    with pytest.raises(ValueError, match=line):
        profiled()
    monkeypatch.setattr(profile, "measure_peak", Mock(return_value=PEAK))
    outside.use([EXPLODING[1]])
    with pytest.raises(ValueError, match="must have a finite loss and gradient"):
        profiled(EXPLODING[2])


def test_the_peak_of_a_slow_precision_takes_seconds(monkeypatch):
    """bf16 on a CPU without instructions for it: a product of 2,048 rows would take 17 s each
    time."""
    sizes = []
    clock = [0.0]

    def slow(a, b, *, out):
        sizes.append(len(a))
        clock[0] += 2 * len(a) ** 3 / 1e9

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # by the process's clock
    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    monkeypatch.setattr(torch, "mm", slow)
    rate = peaks.matmul_flops(Device.cpu, Precision.bf16)
    assert rate == pytest.approx(1e9, rel=0.05)
    assert max(sizes) == 512
