"""A profile's subtotals and the rows inside a mixer; a forward, a prompt and a token taken apart;
what is largest, and the command that measures an option there."""

import itertools
import json
import re
import shlex
import time
from collections import Counter

import pytest
import torch
from msgspec import structs
from torch.profiler import record_function

from nocap import outside
from nocap import profile as command
from nocap.config.compose import compose, composed
from nocap.config.trainer import Device
from nocap.generation.engines import Cached, Recompute
from nocap.measure import peaks, profile_tables
from nocap.measure.bench_arms import compose_arms, compose_measured
from nocap.measure.largest_parts import ProfileCommand, file_of, largest, replaced, without
from nocap.measure.mixer_moments import AROUND, FUSED, MOMENTS, PRODUCT, SOFTMAX, VALUES
from nocap.measure.profile import ProfileQuestion, profiles
from nocap.measure.profile_groups import ProfileRow, grouped
from nocap.measure.profile_schema import CeilingJson, CeilingsJson, Peak
from nocap.measure.profiler_events import BACKWARD, of_modules, profiler, read_moments
from nocap.measure.profiler_ranges import MARK, Ranges
from nocap.measure.roofline import count
from nocap.measure.subject import Subject, SubjectKind
from nocap.model.build import build_model, count_parameters
from tests.conftest import REPO
from tests.fuzz.process import answer

NANO = (
    "model=nano",
    "model.seq_len=32",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.precision=fp32",
    "trainer.compile=off",
    "trainer.micro_batch=2",
    "trainer.batch_tokens=128",
    "trainer.val_tokens=64",
    "tracker=none",
)
# of NANO
B = 2
T = 32
H = 4
D = 16
LAYERS = 2
OWN = REPO / "tests" / "own_ideas"
PEAK = Peak(flops={"fp32": 1e12, "bf16": 4e12}, bytes_per_s=1e11)


@pytest.fixture(autouse=True)
def fewer_threads():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_from_outside():
    yield
    outside.use([])


# --- inside a mixer -------------------------------------------------------------------------------


def watched(*words):
    """The moments of a step of this run, and the profiler's events."""
    run = compose([*NANO, *words])
    model = build_model(run, vocab_size=70)
    ranges = Ranges(run)
    tokens = torch.zeros(B, T, dtype=torch.long)
    model(tokens, tokens).total.backward()
    ranges.reset()
    with ranges.around(model), profiler(on_cuda=False) as prof, record_function(MARK + "step"):
        model(tokens, tokens).total.backward()
    return read_moments(prof, ranges, on_cuda=False), prof, ranges


def of_mixers(moments):
    """(Direction, moment) → ms of all mixers."""
    ms = Counter()
    for (path, direction, moment), each in moments.items():
        if path.endswith(".mixer"):
            ms[direction, moment] += each
    return ms


def test_a_materialized_softmax_has_the_time_of_its_operations():
    """Against the profiler's own totals of them; nothing is lost to the sum of the mixer."""
    moments, prof, _ = watched("attention=mha")
    ms = of_mixers(moments)
    both = set()
    for direction in ("forward", "backward"):
        for moment in MOMENTS[:3]:
            both.add((direction, moment))
    assert ms.keys() == both | {("forward", AROUND)}
    events = list(prof.events())
    forward_us = sum(e.cpu_time_total for e in events if e.name == "aten::softmax")
    nodes = [e for e in events if e.name == f"{BACKWARD}SoftmaxBackward0"]
    assert len(nodes) == LAYERS
    assert ms["forward", SOFTMAX] == pytest.approx(forward_us / 1e3)
    expected = sum(e.cpu_time_total for e in nodes) / 1e3
    assert ms["backward", SOFTMAX] == pytest.approx(expected)
    assert sum(of_modules(moments).values()) == pytest.approx(sum(moments.values()))


class _Slow(torch.autograd.Function):
    """Takes 30 ms forward, 60 ms backward."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.03)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.06)
        return grad.clone()


@pytest.mark.parametrize(
    ("attention", "place", "moment"),
    [("mha", "before", PRODUCT), ("mha", "after", VALUES), ("flash", "before", AROUND)],
)
def test_time_planted_in_a_mixer_is_found_in_its_moment(attention, place, moment, monkeypatch):
    run = compose([*NANO, f"attention={attention}"])
    model = build_model(run, vocab_size=70)
    ranges = Ranges(run)
    module = model.blocks[1].attention.f
    mixer = module.mixer
    tokens = torch.zeros(B, T, dtype=torch.long)

    def slow(q, k, v):
        if place == "before":
            return mixer(_Slow.apply(q), k, v)
        return _Slow.apply(mixer(q, k, v))

    monkeypatch.setattr(module, "mixer", slow)
    with ranges.around(model), profiler(on_cuda=False) as prof, record_function(MARK + "step"):
        model(tokens, tokens).total.backward()
    moments = read_moments(prof, ranges, on_cuda=False)
    path = "blocks.1.attention.f.mixer"
    assert moments[path, "forward", moment] >= 30
    assert moments[path, "backward", moment] >= 60


MIXERS = [
    (["attention=flash"], {FUSED, AROUND}),
    (["attention=gqa", "trainer.precision=bf16"], {FUSED, AROUND}),
    (["attention=sliding", "attention.window=8"], {FUSED, AROUND}),
    (["attention=mha", "data.document_mask=true"], {*MOMENTS} - {FUSED}),
    (["attention=mha", "trainer.activation_checkpointing=attention"], {*MOMENTS} - {FUSED}),
    (["attention=softcap"], {*MOMENTS} - {FUSED}),  # from outside, of the same pattern
    (["attention=differential"], {None}),  # two softmaxes: another pattern
]


@pytest.mark.parametrize(("words", "expected"), MIXERS)
def test_a_mixer_is_taken_apart_where_its_operations_are_those_of_attention(words, expected):
    outside.use([OWN / "softcap", OWN / "other_attentions"])
    moments = watched(*words)[0]
    assert {moment for _, moment in of_mixers(moments)} == expected


def test_the_work_of_each_moment_is_that_of_arithmetic():
    """FLOPs of both products, bytes of the softmax: it reads and writes the T×T matrix, and its
    backward reads two and writes one."""
    run = compose([*NANO, "attention=mha"])
    counts = count(run, vocab_size=70)
    path = "blocks.0.attention.f.mixer"
    product = 2 * B * H * T * T * D
    matrix = 4 * B * H * T * T
    forward = counts.work[path, "forward"].by_moment()
    backward = counts.work[path, "backward"].by_moment()
    expected = {PRODUCT: product, SOFTMAX: 0, VALUES: product}
    assert {moment: work.flops for moment, work in forward.items()} == expected
    flops_by_moment = {moment: work.flops for moment, work in backward.items()}
    assert flops_by_moment == {PRODUCT: 2 * product, SOFTMAX: 0, VALUES: 2 * product}
    assert forward[SOFTMAX].bytes == 2 * matrix
    assert backward[SOFTMAX].bytes == 3 * matrix


# --- subtotals ------------------------------------------------------------------------------------


def row(path, part, direction, ms, *, detail=None):
    layer = re.match(r"blocks\.(\d+)", path)
    figures = {"ms": ms, "calls": 1, "flops": 10 * ms, "bytes": 100 * ms, "bound_ms": ms / 2}
    if layer:
        number = int(layer[1])
    else:
        number = None
    return ProfileRow(
        path=path, part=part, layer=number, direction=direction, detail=detail, **figures
    )


ROWS = [
    row("embedding", "embedding", "forward", 2.0),
    row("embedding", "embedding", "backward", 4.0),
    row("blocks.0.attention.norm", "norm", "forward", 1.0),
    row("blocks.0.attention.f.q_proj", "qkv", "forward", 3.0),
    row("blocks.0.attention.f.q_proj", "qkv", "backward", 6.0),
    row("blocks.0.attention.f.mixer", "scores", "forward", 5.0, detail=SOFTMAX),
    row("blocks.0.attention.f.mixer", "scores", "forward", 7.0, detail=VALUES),
    row("blocks.0.attention", "residual", "forward", 0.5),
    row("blocks.0.mlp", "residual", "forward", 0.25),
    row("blocks.0", "residual", "forward", 0.125),
    row("blocks.0.mlp.f.gate", "mlp_up", "forward", 1.5),
    row("blocks.0.mlp.f.up", "mlp_up", "forward", 2.5),
    row("head.norm", "norm", "forward", 3.0),
    row("head.unembed", "head", "forward", 8.0),
    row("head", "loss", "forward", 1.0),
    row("optimizer", "optimizer", "forward", 9.0),
    row("step", "other", "forward", 1.0),
]


def test_a_subtotal_is_the_sum_of_its_rows():
    groups = {group.group: group for group in grouped(ROWS, 100.0)}
    expected = ["embedding", "norms", "attention", "mlp", "head", "optimizer", "rest"]
    assert list(groups) == expected
    for group in groups.values():
        for key in ("ms", "share", "forward_ms", "backward_ms", "flops", "bytes", "bound_ms"):
            total = sum(getattr(part, key) for part in group.parts)
            assert getattr(group, key) == pytest.approx(total), key
    of_groups = sum(group.ms for group in groups.values())
    assert of_groups == sum(each.ms for each in ROWS)
    assert groups["attention"].ms == 3 + 6 + 5 + 7 + 0.5
    assert groups["attention"].share == pytest.approx(0.215)
    assert groups["mlp"].ms == 1.5 + 2.5 + 0.25


def test_shares_of_the_forward_and_of_the_blocks_are_of_what_they_say():
    groups = {group.group: group for group in grouped(ROWS, 100.0)}
    # no optimizer, no rest
    forward_ms = 2 + 1 + 3 + 5 + 7 + 0.5 + 0.25 + 0.125 + 1.5 + 2.5 + 3 + 8 + 1
    blocks_ms = 1 + 3 + 6 + 5 + 7 + 0.5 + 0.25 + 0.125 + 1.5 + 2.5
    attention = groups["attention"]
    assert attention.of_forward == pytest.approx(15.5 / forward_ms)
    assert attention.of_block == pytest.approx(21.5 / blocks_ms)
    # the head's norm is in no block
    assert groups["norms"].of_block == pytest.approx(1 / blocks_ms)
    assert groups["norms"].of_forward == pytest.approx(4 / forward_ms)
    softmax = next(part for part in attention.parts if part.detail == SOFTMAX)
    assert softmax.of_forward == pytest.approx(5 / forward_ms)
    assert softmax.of_block == pytest.approx(5 / blocks_ms)
    assert groups["head"].of_block is None
    assert groups["optimizer"].of_forward is None


def test_rows_have_the_details_that_notes_speak_of():
    groups = {group.group: group for group in grouped(ROWS, 100.0)}

    def details(name: str) -> list[tuple[str, str | None]]:
        return [(p.part, p.detail) for p in groups[name].parts]

    assert details("embedding") == [("embedding", "lookup"), ("embedding", "gradients")]
    expected = [("mlp_up", "gate"), ("mlp_up", "up"), ("residual", None)]
    assert details("mlp") == expected
    assert ("residual", None) in details("attention")
    assert ("residual", "between") in details("rest")
    assert ("loss", None) in details("head")


def test_a_block_of_its_own_has_a_subtotal_for_each_of_its_modules():
    parts = ["blocks.*", "blocks.*.attention", "blocks.*.attention.q_proj", "blocks.*.mlp.up"]
    rows = [row(part.replace("*", "0"), part, "forward", 1.0) for part in parts]
    groups = {group.group: group.ms for group in grouped(rows, 4.0)}
    assert groups == {"blocks.*": 1.0, "blocks.*.attention": 2.0, "blocks.*.mlp": 1.0}


# --- the whole, measured --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taken():
    """What is taken apart → its profile, of a materialised and gated model; peaks of small
    products."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nocap.measure.clock.LEAST_S", 0.001)
        patch.setitem(peaks.PRODUCT, Device.cpu, 128)
        patch.setitem(peaks.COPY_BYTES, Device.cpu, 2**20)
        words = [*NANO, "attention=mha", "mlp=swiglu"]
        found = {}
        cases = (
            ProfileQuestion(repeats=1),
            ProfileQuestion(repeats=1, forward=True),
            ProfileQuestion(repeats=1, generate=True, prompt=8, texts=2),
        )
        for question in cases:
            found |= profiles(
                compose(words), words, lambda more: compose([*words, *more]), question
            )
    return found


def test_the_groups_add_up_to_what_is_attributed(taken):
    assert list(taken) == ["step", "forward", "prefill", "token"]
    for profile in taken.values():
        step = profile.step
        groups = profile.groups
        assert sum(group.ms for group in groups) == pytest.approx(step.attributed_ms)
        assert step.attributed_ms + step.unattributed_ms == pytest.approx(step.ms)
        for group in groups:
            expected = sum(part.ms for part in group.parts)
            assert group.ms == pytest.approx(expected)
        for key in ("ms", "flops", "bytes", "bound_ms"):
            whole = sum(getattr(part, key) for part in profile.parts)
            totals = sum(getattr(group, key) for group in groups)
            assert totals == pytest.approx(whole), key
        scores = []
        for group in groups:
            for part in group.parts:
                if part.part == "scores":
                    scores.append(part)
        of_scores = next(part for part in profile.parts if part.part == "scores")
        assert sum(part.ms for part in scores) == pytest.approx(of_scores.ms)
        assert step.profiler > 0


def test_only_a_step_has_gradients_and_an_optimizer(taken):
    names = {}
    for of, profile in taken.items():
        names[of] = [group.group for group in profile.groups]
    assert "optimizer" in names["step"]
    whole_steps = [of for of, groups in names.items() if "optimizer" in groups]
    assert whole_steps == ["step"]
    for of in ("forward", "prefill", "token"):
        backward = [row.path for row in taken[of].rows if row.direction == "backward"]
        assert backward == []
        assert taken[of].memory_mib.measured.gradients == 0
    assert taken["step"].memory_mib.measured.gradients > 0
    assert taken["step"].memory_mib.cache == 0
    cache = 2 * LAYERS * 2 * H * T * D * 4 / 2**20  # keys and values of two texts, fp32
    assert taken["token"].memory_mib.cache == pytest.approx(cache)


def test_flops_are_those_of_arithmetic(taken):
    """A forward has a third of a micro-batch's; a prompt those of its tokens; a token meets each
    weight once, and each place of the cache."""
    flops = {}
    for of, profile in taken.items():
        flops[of] = sum(group.flops for group in profile.groups)
    run = compose([*NANO, "attention=mha", "mlp=swiglu"])
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    of_head = 2 * run.tokenizer.vocab_size * H * D
    of_weights = 2 * count_parameters(model)["non_embedding"]
    of_pair = 4 * LAYERS * H * D
    assert flops["forward"] == 64 * (of_head + of_weights + of_pair * T)
    assert flops["step"] == 2 * 3 * flops["forward"]
    # the prompt is one text, whose last token alone meets the head; a token is of two
    assert flops["prefill"] == of_head + 8 * of_weights + 8 * 8 * of_pair
    assert flops["token"] == 2 * (of_head + of_weights + of_pair * T)
    tokens = [profile.tokens for profile in taken.values()]
    assert tokens == [128, 64, 8, 2]


def test_the_text_has_a_line_for_each_row(taken):
    said = {of: profile_tables.render_profile(profile) for of, profile in taken.items()}
    rows = [
        "scores, Q·Kᵀ",
        "softmax",
        "weights·values",
        "output projection",
        "residual",
        "MLP up, gate",
    ]
    for of in ("step", "forward", "prefill"):
        for title in rows:
            assert re.search(rf"^  {re.escape(title)} +\d", said[of], re.M), (of, title)
    assert re.search(r"^  embedding gradients +\d", said["step"], re.M)
    cases = ("attention", "MLP", "head and loss", "embedding", "norms", "gradients and optimizer")
    for title in cases:
        assert re.search(rf"^{title} +\d", said["step"], re.M), title
    fused = "  scores, softmax, weights·values: one fused kernel"
    assert re.search(rf"^{fused} +\d", said["token"], re.M)
    assert "a cache of 32 tokens" in said["token"]
    assert "control: with the profiler the step took" in said["step"]


def test_a_cache_that_is_rewound_gives_the_same_token_again():
    run = compose([*NANO, "attention=flash"])
    model = build_model(run, vocab_size=70).eval()
    prompt = torch.arange(8)[None]
    token = torch.tensor([3])
    for engine in (Cached(model, run, batch=1, capacity=16), Recompute(model)):
        engine.prefill(prompt)
        first = engine.decode(token)
        engine.decode(token)
        engine.rewind(8)
        torch.testing.assert_close(engine.decode(token), first)


def test_an_option_without_a_cache_is_counted_over_its_whole_prefix():
    """Its products are a prompt's of one token more, whatever the attention that stands in for
    counting."""
    run = Subject(of=SubjectKind.token).run(
        compose([*NANO, "attention=mha", "data.document_mask=true"])
    )
    subject = Subject(of=SubjectKind.token, prompt=8)
    token = count(run, vocab_size=70, subject=subject)
    subject = Subject(of=SubjectKind.prefill, prompt=9, cached=False)
    prefill = count(run, vocab_size=70, subject=subject)
    flops = []
    for counted in (token, prefill):
        moment_flops = sum(work.flops for work in counted.work.values())
        flops.append(moment_flops)

    assert flops[0] == flops[1] > 0
    assert token.cache == 0
    assert prefill.cache == 0


# --- the largest parts ----------------------------------------------------------------------------


def test_words_give_way_to_the_same_key_and_to_another_option_of_their_group():
    words = [
        "attention=gqa",
        "attention.n_kv_heads=2",
        "mlp=gelu3x",
        "+x.y=1",
        "model.tie_head=true",
    ]
    assert replaced(words, ["attention=flash"]) == ["attention=gqa", "attention.n_kv_heads=2"]
    assert without(words, ["attention=flash", "x.y=2"]) == ["mlp=gelu3x", "model.tie_head=true"]


@pytest.fixture
def bounded(taken):
    """Return a profile of these parts with these ceilings, and what its words compose to."""

    def make(words, table, *, trusted=True, of=SubjectKind.step):
        example = taken["step"].parts[0]
        parts = []
        for part, ms in (("scores", 40.0), ("mlp_up", 30.0), ("norm", 20.0), ("head", 10.0)):
            part_row = structs.replace(example, part=part, ms=ms, share=ms / 100, of_bound=0.5)
            parts.append(part_row)
        made = composed(words)
        config = {"model": {"tie_head": made.run.model.tie_head}, "trainer": {"precision": "fp32"}}
        changed_step = structs.replace(taken["step"].step, ms=100.0, unattributed_ms=45.0)
        profile = structs.replace(
            taken["step"],
            of=of,
            trusted=trusted,
            step=changed_step,
            parts=parts,
            config=config,
            ceilings=CeilingsJson(table=table),
        )
        return profile, made

    return make


def option(label, by_step, **saved_ms):
    by_flops = by_step - 0.002
    return CeilingJson(
        label=label, by_step=by_step, by_flops=by_flops, saved_ms=saved_ms, saved_mib=0.0, saved=0.0
    )


TABLE = [
    option("attention=mqa", 1.3, scores=20.0, norm=0.1),
    option("mlp=gelu3x", 1.1, mlp_up=7.0),
    option("attention=sliding", 1.2, scores=18.0),
    option("model.tie_head=false", 1.004, scores=1.0),
    option("attention=hybrid", 0.9, scores=5.0, mlp_up=-20.0),
]
COMMANDS = [
    ["attention=gqa", "attention.n_kv_heads=2", "mlp=swiglu", "mlp.expansion=3"],
    [],
    ["attention=mha"],
    ["attention.window=8", "attention=hybrid", "seed=3"],
    ["experiment=first_run"],
]


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=str)
def test_the_command_is_a_bench_of_the_same_runs(words, bounded):
    """Its words compose to the run that was profiled and to those that were bounded."""
    words = ["model=nano", *words, "trainer.device=cpu"]
    profile, made = bounded(words, TABLE)
    rows = largest(profile, ProfileCommand(words=words, choices=made.choices))
    parts = [each.part for each in rows]
    assert parts == ["scores", "mlp_up", "norm"]
    labels = [[each.label for each in row.options] for row in rows]
    assert labels == [["attention=mqa", "attention=sliding"], ["mlp=gelu3x"], []]
    assert rows[2].command is None
    for found, options in zip(rows[:2], labels[:2], strict=True):
        python, flag, module, *arguments = shlex.split(found.command)
        assert python == "python"
        assert flag == "-m"
        assert module == "nocap.bench"
        first = arguments.index("--arm")
        assert set(arguments[first::2]) == {"--arm"}
        composed_arms = compose_arms(arguments[:first], arguments[first + 1 :: 2])
        typed = list(composed_arms.values())
        wanted = [compose_measured(words).run]
        wanted += [compose_measured([*without(words, [label]), label]).run for label in options]
        for name in ("attention", "mlp", "seed", "model", "optimizer"):
            expected = [getattr(run, name) for run in wanted]
            assert [getattr(run, name) for run in typed] == expected, name


def test_what_cannot_be_trusted_is_bounded_by_flops_and_folders_are_kept(bounded):
    words = ["model=nano", "attention=mha"]
    profile, made = bounded(words, TABLE, trusted=False)
    typed_words = ProfileCommand(words=words, choices=made.choices, folders=[REPO / "a folder"])
    file = file_of(profile, typed_words)
    rows = file.largest
    options = list(itertools.chain(*(row.options for row in rows)))
    assert [each.by_step for each in options] == [None] * 3
    said = list(profile_tables._largest(file))
    assert "   at most: attention=mqa 1.298× by FLOPs, attention=sliding 1.198× by FLOPs" in said
    assert said[1:3] == [
        "45.0 ms (45.0%) belong to no part; this is more than the largest part",
        "1. scores and weighted sum: 40.0 ms, 40.0% of the step, 50% of its bound",
    ]
    folder = shlex.quote(str(REPO / "a folder"))
    arms = "--arm attention=mha --arm attention=mqa --arm attention=sliding"
    expected = f"python -m nocap.bench --config-dir {folder} model=nano {arms}"
    assert rows[0].command == expected


def test_of_a_forward_the_command_is_another_profile_and_the_difference(bounded):
    words = ["model=nano", "attention=mha"]
    profile, made = bounded(words, TABLE, of=SubjectKind.forward)
    typed = ProfileCommand(words=words, choices=made.choices, flags=["--forward"])
    assert largest(profile, typed)[0].command == (
        "python -m nocap.profile --forward model=nano attention=mha --json before.json && "
        "python -m nocap.profile --forward model=nano attention=mqa --json after.json && "
        "python -m nocap.profile before.json after.json"
    )


# --- the door -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_door_ends_with_the_largest_parts_and_commands_that_can_be_typed(tmp_path, monkeypatch):
    """Of a step, a forward and a text; two of a kind are compared."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nocap.measure.clock.LEAST_S", 0.001)
    monkeypatch.setitem(peaks.PRODUCT, Device.cpu, 128)
    monkeypatch.setitem(peaks.COPY_BYTES, Device.cpu, 2**20)
    cases = (("step",), ("forward", "--forward"), ("text", "--generate", "--prompt", "8"))
    for name, *flags in cases:
        argv = [*NANO, "attention=mha", *flags, "--repeats", "1", "--json", f"{name}.json"]
        done = answer(lambda argv=argv: command.main(argv), limit_s=240)
        assert done.code == 0, done
        assert done.crash is None, done
        content = json.loads((tmp_path / f"{name}.json").read_text())
        if name != "text":
            both = [content]
        else:
            both = [content["prefill"], content["token"]]
        for profile in both:
            assert len(profile["largest"]) == 3
            ms = [row["ms"] for row in profile["largest"]]
            expected = sorted((row["ms"] for row in profile["parts"]), reverse=True)[:3]
            assert ms == expected
            for found in profile["largest"]:
                assert f"{found['ms']:.3f}"[:3] in done.out
        last = done.out.split("the largest parts")[-1]
        assert re.search(r"^1\. .*\n.*\n", last, re.M)
        commands = [each["command"] for each in content.get("largest", []) if each["command"]]
        assert [line for line in commands if line not in done.out] == []
    same = answer(lambda: command.main(["step.json", "step.json"]), limit_s=60)

    assert same.code == 0
    assert "both have the same overrides" in same.out
    assert answer(lambda: command.main(["text.json", "text.json"]), limit_s=60).code == 0


WHOLE_MIXERS = [
    (["--forward", "--generate"], "--forward does not work with --generate"),
    (["--prompt", "3"], "--prompt works only with --generate"),
    (["--texts", "2", "--forward"], "--texts works only with --generate"),
    (["--generate", "--texts", "0"], "--texts must be from 1 to 4096, got 0"),
    (["--generate", "--prompt", "0", "model=nano"], "--prompt must be from 1 to 127"),
    (["--generate", "--prompt", "128", "model=nano"], "--prompt must be from 1 to 127"),
    (
        ["--generate", "model=nano", "trainer.precision=bf16"],
        "trainer.precision must be fp32 or unset with --generate",
    ),
]


@pytest.mark.parametrize(("words", "said"), WHOLE_MIXERS)
def test_what_cannot_be_taken_apart_is_refused_in_a_line(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
