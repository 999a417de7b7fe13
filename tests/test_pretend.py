"""CUDA paths on a pretended GPU (tests/pretend.py): that they run, and what they choose and count.
Nothing numeric is asserted."""

import json

import pytest

from tests.conftest import REPO
from tests.pretend import COUNTS

pytestmark = pytest.mark.pretend

ORDER = ("nocap", "challenge", "challenge", "nocap")
CHALLENGE = """
import sys
n = int(sys.argv[sys.argv.index("--num_iterations") + 1])
print(f"step:0/{n} | val loss 10.98")
for i in range(n):
    clock = f"train_time:{0.5 * i + 0.5:.2f}s | step_avg:500.00ms"
    print(f"step:{i}/{n} | loss {9 - i / n:.6f} | {clock}")
print(f"step:{n}/{n} | val loss 9.0")
print("peak memory consumption: 9829 MiB")
"""


# --- the GPU day


@pytest.mark.timeout(1500)
def test_the_steps_of_a_gpu_day(tmp_path, pretended):
    """Small, one after the other. The profile ends with 0, also after a CUDA graph of a compiled
    step."""
    (tmp_path / "challenge").mkdir()
    (tmp_path / "challenge" / "train_gpt2.py").write_text(CHALLENGE)
    words = ["--small", "--out", str(tmp_path / "out"), "--challenge", str(tmp_path / "challenge")]
    day_file = str(REPO / "experiments" / "gpu_day" / "day.py")
    done = pretended.python(day_file, *words, cc=89, timeout=1500)
    day = json.loads((tmp_path / "out" / "day.json").read_text())
    failed = {row["step"]: row["tail"] for row in day["rows"] if row["rc"] != 0}
    assert not failed.keys() & {"grid", "profile", "options", "options_again"}, done.out
    results = {}
    for row in day["rows"]:
        if row["json"]:
            text = (tmp_path / "out" / row["json"]).read_text()
            results[row["step"]] = json.loads(text)
    assert list(results) == ["best", "options", "grid", "options_again", "profile", "challenge"]
    for name in ("best", "challenge"):
        turns = results[name]["runs"]
        expected = [(who, None, 10) for who in ORDER]
        outcomes = [(run["who"], run["error"], len(run["train_loss"])) for run in turns]
        assert outcomes == expected
    statuses = {arm["label"]: arm["status"] for arm in results["options"]["arms"]}
    assert statuses["attention=flash"] == "measured"
    cuda_graphs = [cell["trainer"]["cuda_graphs"] for cell in results["grid"]["cells"]]
    assert cuda_graphs == [True] * 6


# --- the profile


MIXERS = [
    ("attention=mha", {"product", "softmax", "values", "around"}),
    ("attention=flash", {"fused", "around"}),
    ("attention=sliding", {"fused", "around"}),  # FlexAttention, a compiled function
    ("--forward attention=mha", {"product", "softmax", "values", "around"}),
    ("--generate attention=gqa", {"fused", "around"}),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("words", "details"), MIXERS)
def test_a_profile_takes_a_mixer_apart_or_says_that_it_is_one_kernel(pretended, words, details):
    shape = ["model=nano", "model.seq_len=256", "trainer.device=cuda", "trainer.compile=off"]
    flags = ["--repeats", "1", "--json", "p.json"]
    done = pretended.python("-m", "nocap.profile", *shape, *words.split(), *flags, timeout=600)
    assert done.code == 0, done.err
    content = json.loads((pretended.folder / "p.json").read_text())
    if content["of"] != "generate":
        profiles = [content]
    else:
        profiles = [content["prefill"], content["token"]]
    for profile in profiles:
        (attention,) = [group for group in profile["groups"] if group["group"] == "attention"]
        scores = [part for part in attention["parts"] if part["part"] == "scores"]
        assert {part["detail"] for part in scores} == details
        # all bytes are of the kernels that hold them, whatever they were counted by
        (scores,) = [part for part in profile["parts"] if part["part"] == "scores"]
        moved = sum(part["bytes"] for part in attention["parts"] if part["part"] == "scores")
        assert moved == scores["bytes"] > 0
        assert profile["not_counted"] is None


# --- decoding

DECODING = (
    COUNTS
    + """
from nocap.config.compose import compose
from nocap.sessions.worker import time_decoding
base = ["model=nano", "tracker=none", "trainer.device=cuda"]
runs = {name: compose([*base, name]) for name in ("attention=flash", "attention=sliding")}
before = counts()
figures = time_decoding(runs, engines=dict.fromkeys(runs, "cache"), prompt=4, new=6, vocab_size=64)
launches, waits, copies = (now - then for now, then in zip(counts(), before))
print(*figures, launches > 1000, copies > 40)
"""
)


def test_a_session_times_decoding_on_the_gpu(pretended):
    """Also of an attention whose training kernel takes no single query."""
    done = pretended.python("-c", DECODING)
    assert done.out == "attention=flash attention=sliding True True\n", done.err


# --- memory


BENCH = """
import sys, torch
from nocap.measure.bench_arms import compose_arms
from nocap.measure.bench import carry_out
from nocap.measure.timed_arm import TimedArm
from nocap.training import memory
base = ["model=tiny", "tokenizer=bytes", "tracker=none", "trainer.device=cuda",
    "trainer.compile=off", "trainer.val_tokens=524288"]
larger = "trainer.micro_batch=2048 trainer.batch_tokens=524288"
runs = compose_arms(base, ["", larger, "mlp=gelu3x"])
arms = [TimedArm(*each) for each in runs.items()]
print(*(arm.status for arm in carry_out(arms, seconds=100, rounds=8).arms), sep=", ")
memory.give_back(torch.device("cuda"))
print(torch.cuda.memory_allocated() // 2**20, "MiB")
"""


def test_an_arm_that_does_not_fit_leaves_nothing(pretended):
    done = pretended.python("-c", BENCH, gb=4)
    statuses, left = done.out.splitlines()
    assert statuses == "measured, does not fit, measured", done.err
    assert int(left.removesuffix(" MiB")) < 64  # of 4 GiB that were full


HUNGRY = """
import torch
def build(request):
    held = torch.zeros(10, device=request.device, requires_grad=True)
    def step(tokens):
        return [held * torch.zeros(2**29, 1, device=request.device) for _ in range(2)][0].sum()
    step.parameters, step.settings = [held], {}
    return step
"""
RACE = """
import itertools, sys, torch
sys.path.insert(0, sys.argv[1])
import peer_arm
from nocap.measure.bench_arms import compose_arm, compose_arms
from nocap.measure.bench import carry_out
from nocap.measure.timed_arm import TimedArm
from nocap.training import memory
ticks = itertools.count()
peer_arm._bits = lambda p: next(ticks)  # nothing computes here, so no update can be seen
base = ["model=nano", "tokenizer=bytes", "tracker=none", "trainer.device=cuda",
    "trainer.compile=off"]
arms = [TimedArm(*each) for each in compose_arms(base, ["", "mlp=gelu3x"]).items()]
run = compose_arm(base, "").run
arms[1:1] = [peer_arm.PeerArm(name, run, name) for name in ("hungry", "bigram")]
found = carry_out(arms, seconds=100, rounds=8)
print(*(arm.status for arm in found.arms), sep=", ")
memory_mib = [arm.facts.memory_mib for arm in found.arms]
print([mib and mib["peak"] > 0 for mib in memory_mib])
memory.give_back(torch.device("cuda"))
print(torch.cuda.memory_allocated() // 2**20, "MiB")
"""


def test_a_peers_arm_that_does_not_fit_stops_no_other_and_leaves_nothing(pretended):
    (pretended.folder / "hungry.py").write_text(HUNGRY)
    path = str(REPO / "experiments" / "peers")
    done = pretended.python("-c", RACE, path, gb=10)
    assert done.code == 0, done.err
    statuses, peaks, left = done.out.splitlines()
    assert statuses == "measured, does not fit, measured, measured"
    assert peaks == "[True, None, True, True]"
    assert int(left.removesuffix(" MiB")) < 64


SLIDING = """
import sys, yaml
from nocap.config.compose import compose
from nocap.measure.attention_lengths import at_length, attention_ms
study = yaml.safe_load(open(sys.argv[1]))
scale = study["scales"]["gpu"]
for arm in study["arms"].values():
    attention_ms(at_length(compose([*scale["bench"], *arm, "tracker=none", "trainer.device=cuda"]),
        max(scale["curve"])))
"""


def test_the_longest_sequences_of_the_sliding_study_fit(pretended):
    study = str(REPO / "experiments" / "sliding" / "study.yaml")
    done = pretended.python("-c", SLIDING, study, gb=80)
    assert done.code == 0, done.err


# --- kernels and peaks

KERNELS = """
from nocap.config.compose import compose
from nocap.config.trainer import Precision
from nocap.model.attention_facts import kernel_name
for words in ([], ["attention.kernel=flash"], ["attention.kernel=cudnn"]):
    run = compose(["experiment=nocap_baseline", "tracker=none", "trainer.device=cuda", *words])
    print(kernel_name(run, run.trainer.precision), kernel_name(run, run.trainer.val_precision))
"""


@pytest.mark.parametrize(
    ("cc", "chosen"), [(80, "flash"), (89, "flash"), (90, "cudnn"), (100, "cudnn")]
)
def test_the_baseline_gets_the_kernel_that_torch_chooses(pretended, cc, chosen):
    done = pretended.python("-c", KERNELS, cc=cc)
    lines = done.out.splitlines()
    assert lines == [f"{chosen} efficient", "flash efficient", "cudnn efficient"], done.err


FP8 = """
from nocap.config.compose import compose
try:
    compose(["model=nano", "tokenizer=bytes", "trainer.device=cuda", "trainer.precision=bf16",
        "model.fp8_head=true", "tracker=none"])
    print("taken")
except ValueError as error:
    print(error)
"""


def test_an_fp8_head_is_for_gpus_that_have_it(pretended):
    assert (
        pretended.python("-c", FP8, cc=80).out
        == "model.fp8_head must be false on a GPU before capability 8.9, as this of 8.0, got True\n"
    )
    taken = [pretended.python("-c", FP8, cc=cc).out for cc in (89, 90)]
    assert taken == ["taken\n", "taken\n"]


# --- graphs

FLEX = """
import torch
from torch._dynamo.utils import counters
from nocap.config.compose import compose
from nocap.measure.attention_lengths import at_length
base = compose(["model=nano", "attention=sliding", "attention.window=64", "trainer.device=cuda",
    "tracker=none"])
for n in range(1, 11):
    run = at_length(base, 128 * n)
    run.attention.prepare(run, torch.device("cuda"))
    q = torch.zeros(1, 4, 128 * n, 16, device="cuda", dtype=torch.bfloat16)
    run.attention.mixer(run, 0)(q, q, q)
print(counters["stats"]["unique_graphs"])
"""


def test_flexattention_stays_compiled_beyond_eight_shapes(pretended):
    done = pretended.python("-c", FLEX)
    assert done.out == "10\n", done.err
    assert "flex_attention" not in done.err  # torch warns where it materialises the scores


STEPS = (
    COUNTS
    + """
import json, sys, time, torch
from torch._dynamo.utils import counters as dynamo
from nocap.config.compose import compose
from nocap.measure.timed_arm import random_tokens
from nocap.training.ledger import Ledger
from nocap.training.warm_up import warm_up
from nocap.training.build import build, configure_numerics
from nocap.training.step import take_step
run = compose(["model=nano", "tokenizer=bytes", "tracker=none", "data=stdlib",
    "trainer.device=cuda", *sys.argv[1:]])
configure_numerics(run)
with random_tokens(run) as job:
    trainee, ledger = build(job), Ledger(started=time.monotonic())
warm_up(job, trainee, ledger)
seen, synchronize, last = [], torch.cuda.Event.synchronize, []
def wait(event):
    last[:] = [counts()[0]]
    synchronize(event)
torch.cuda.Event.synchronize = wait
for step in range(6):
    before = counts()
    take_step(job, trainee, ledger, step=step)
    assert last == [counts()[0]]  # the update is launched before the wait
    seen.append([now - then for now, then in zip(counts(), before)])
    assert trainee.next_batch.step == step + 1  # read before the wait
    graphs = dynamo["stats"]["unique_graphs"]
    if step == 1:
        warm = graphs
unseen = trainee.graph.unseen_mib if trainee.graph else 0.0
print(json.dumps({"warm": warm, "graphs": graphs, "steps": seen, "cuda_graphs": graph_counts(),
    "unseen_mib": unseen}))
"""
)


def steps_of(pretended, *words):
    """Graphs after the warm-up and after six steps; launches, waits and copies of each step."""
    done = pretended.python("-c", STEPS, *words)
    assert done.code == 0, done.err
    assert "TensorFloat32" not in done.err  # the warm-up validates in fp32
    return json.loads(done.out.splitlines()[-1])


@pytest.mark.parametrize("compile_", ["regional", "full"])
def test_a_warm_step_compiles_nothing_and_waits_once(pretended, compile_):
    """Graphs: blocks and head, each also for validation; or the model, twice. A step waits for the
    device once, and copies once."""
    counts = steps_of(pretended, f"trainer.compile={compile_}")
    assert counts["graphs"] == {"regional": 4, "full": 2}[compile_]
    assert counts["warm"] == {"regional": 4, "full": 2}[compile_]
    launches, waits, copies = zip(*counts["steps"][2:5], strict=True)
    assert set(copies) == {1}
    assert set(waits) == {1}
    assert len(set(launches)) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("attention=flash", "attention.kernel=flex"),
        ("attention=flash", "attention.kernel=efficient"),
        ("attention=sliding",),
    ],
)
def test_documents_of_each_batch_compile_nothing_more(pretended, words):
    """A mask is made of each micro-batch's tokens, and neither compiled anew nor waited for."""
    counts = steps_of(pretended, "trainer.compile=regional", "data.document_mask=true", *words)
    assert counts["graphs"] == counts["warm"]
    _, waits, copies = zip(*counts["steps"][2:5], strict=True)
    assert set(waits) == {1}
    assert set(copies) == {1}


def test_the_tuned_step_compiles_nothing_more(pretended, monkeypatch):
    """Its choices for products cut to cuBLAS: Triton's would take many minutes."""
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "ATEN")
    counts = steps_of(pretended, "trainer.compile=max")
    assert counts["graphs"] == 4
    assert counts["warm"] == 4


# --- CUDA graphs


def test_a_cuda_graph_is_recorded_once_and_launched_once_a_micro_batch(pretended):
    """Of a step of four micro-batches without a compiler."""
    words = ("trainer.compile=off", "trainer.micro_batch=2")
    plain = steps_of(pretended, *words, "trainer.cuda_graphs=false")
    graphed = steps_of(pretended, *words, "trainer.cuda_graphs=true")
    assert plain["cuda_graphs"] == [0, 0]
    assert graphed["cuda_graphs"] == [1, 4 * 6]
    before, *waits = plain["steps"][3]
    after, *same = graphed["steps"][3]
    assert waits == [1, 1]
    assert same == [1, 1]
    assert before > 4 * 40
    assert after < 30  # tokens, sums, norm and update
    assert graphed["unseen_mib"] > 1  # what the forward keeps, which the allocator has forgotten


def test_a_compiled_step_in_a_cuda_graph_compiles_nothing_more(pretended):
    counts = steps_of(pretended, "trainer.compile=regional", "trainer.cuda_graphs=true")
    assert counts["graphs"] == 4
    assert counts["warm"] == 4
    assert counts["cuda_graphs"] == [1, 6]
    steps = counts["steps"]
    assert steps[3] == steps[4]
    assert steps[3][0] < 25  # 71 without


SHORT = (
    "model=nano",
    "data=synthetic",
    "data.train_tokens=100000",
    "data.val_tokens=20000",
    "tracker=none",
    "trainer.device=cuda",
)
SHORT += (
    "trainer.steps=6",
    "trainer.val_tokens=4096",
    "trainer.checkpoint_every=2",
    "trainer.compile=off",
    "trainer.cuda_graphs=true",
)


def test_a_run_with_cuda_graphs_validates_in_fp32_and_goes_on_from_its_checkpoint(
    tmp_path, pretended
):
    done = pretended.python("-m", "nocap.train", *SHORT, "output_dir=one")
    assert done.code == 0, done.err
    paths = (tmp_path / "one").glob("runs/*/metrics.jsonl")
    text = next(paths).read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    steps = [row["step"] for row in rows]
    assert steps == list(range(7))
    saved = next((tmp_path / "one").glob("runs/*/checkpoints/step-*"))
    done = pretended.python(
        "-m",
        "nocap.train",
        *SHORT,
        "trainer.steps=8",
        f"trainer.init_from={saved}",
        "output_dir=two",
    )
    assert done.code == 0, done.err
    assert "beginning from step 6" in done.out


READS = """
from nocap.measure.bench_arms import compose_arms
from nocap.measure.bench import carry_out
from nocap.measure.timed_arm import TimedArm
from nocap.model.gpt import GPTHead
forward = GPTHead.forward
GPTHead.forward = lambda self, *args: (args[0].sum().item(), forward(self, *args))[1]
base = ["model=nano", "tracker=none", "trainer.device=cuda", "trainer.compile=off"]
runs = compose_arms(base, ["trainer.cuda_graphs=false", "trainer.cuda_graphs=true"])
arms = [TimedArm(*each) for each in runs.items()]
timed = carry_out(arms, seconds=60, rounds=8).arms
print(*(arm.status + ": " + str(arm.reason) for arm in timed), sep="\\n")
"""


def test_a_forward_that_reads_from_the_device_is_refused_in_a_cuda_graph(pretended):
    """A capture that fails spoils nothing: the other arm is timed after it."""
    done = pretended.python("-c", READS)
    plain, graphed = done.out.splitlines()
    assert plain == "measured: None", done.err
    assert graphed.startswith(
        "failed: InputError: trainer.cuda_graphs must be false for a model that reads from the "
        "device"
    )


LOGS = """
import sys, time
from nocap.config.compose import compose
from nocap.measure.timed_arm import random_tokens
from nocap.model.gpt import GPTHead
from nocap.model.logged import log
from nocap.training.ledger import Ledger
from nocap.training.warm_up import warm_up
from nocap.training.build import build
from nocap.training.step import take_step
forward = GPTHead.forward
def logging(self, *args):
    log(self, "gate", args[0])
    return forward(self, *args)
GPTHead.forward = logging
run = compose(["model=nano", "tracker=none", "data=synthetic", "trainer.device=cuda",
    "trainer.cuda_graphs=true", *sys.argv[1:]])
with random_tokens(run) as job:
    trainee, ledger = build(job), Ledger(started=time.monotonic())
warm_up(job, trainee, ledger)
print([list(take_step(job, trainee, ledger, step=step).logged) for step in range(3)])
"""


@pytest.mark.parametrize("compile_", ["off", "regional"])
def test_what_a_module_logs_is_in_each_row_of_a_graphed_step(pretended, compile_):
    """Its mean is computed in the graph, as the loss is."""
    done = pretended.python("-c", LOGS, f"trainer.compile={compile_}")
    assert done.out.splitlines()[-1] == "[['gate'], ['gate'], ['gate']]", done.err


EVERY = (
    COUNTS
    + """
import json, sys, time
from nocap import outside
from nocap.config.compose import compose
from nocap.config.defaults import fits_a_graph
from nocap.measure.timed_arm import random_tokens
from nocap.training import memory
from nocap.training.ledger import Ledger
from nocap.training.warm_up import warm_up
from nocap.training.build import build, configure_numerics
from nocap.training.step import take_step
base = ["model=nano", "tracker=none", "data=stdlib", "trainer.device=cuda",
    "trainer.compile=off", "trainer.cuda_graphs=true"]
arms = [f"{group}={name}" for group in ("attention", "mlp", "norm", "position", "optimizer")
    for name in outside.yamls(group)]
arms.remove("optimizer=soap")  # needs cuSOLVER, which is not pretended
arms.remove("optimizer=schedule_free")
arms.append("optimizer=schedule_free schedule=constant")
arms += [f"ideas=[{name}]" for name in outside.yamls("ideas") if name != "multi_token"]
for arm in (*arms, *sys.argv[1:]):
    run = compose([*base, *arm.split()])
    assert fits_a_graph(run)
    configure_numerics(run)
    with random_tokens(run) as job:
        trainee, ledger = build(job), Ledger(started=time.monotonic())
        before = graph_counts()
        warm_up(job, trainee, ledger)
        for step in range(2):
            take_step(job, trainee, ledger, step=step)
    done = [now - then for now, then in zip(graph_counts(), before)]
    print(json.dumps([arm, *done]), flush=True)
    trainee = None
    memory.give_back(job.world.device)
"""
)
MORE = (
    "attention.kernel=flex",
    "attention=sliding attention.kernel=blocks",
    "attention=gqa attention.merge_qkv=true model.qk_norm=true",
    "data.document_mask=true position.restart=true",
    "attention=mha data.document_mask=true",
    "attention=sliding data.document_mask=true",
    "objective.loss_chunks=4",
    "objective.loss_chunks=4 model.pad_logits=true objective.z_loss=0.01",
    "model.logit_softcap=15 model.tie_head=false model.residual_precision=bf16",
    "trainer.activation_checkpointing=block",
    "optimizer.cautious_decay=true trainer.grad_clip=null",
)


@pytest.mark.timeout(600)
def test_a_cuda_graph_holds_each_option_that_a_run_may_have_by_default(pretended):
    """A graph is captured once, and replayed in each of two steps."""
    done = pretended.python("-c", EVERY, *MORE, timeout=600)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert len(rows) > len(MORE) + 20
    wrong = [arm for arm, *counts in rows if counts != [1, 2]]
    assert wrong == []


GRID = (
    "-m",
    "nocap.train",
    "--multirun",
    *SHORT[:-1],
    "trainer.batch_tokens=1024",
    "trainer.val_tokens=1024",
    "trainer.checkpoint_every=0",
    "trainer.val_every=0",
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ideas", "graphs"), [("[],[multi_token]", False), ("[],[x0]", True)])
def test_all_arms_of_a_grid_have_cuda_graphs_or_none_has(tmp_path, pretended, ideas, graphs):
    done = pretended.python(*GRID, f"ideas={ideas}", "output_dir=out", timeout=600)
    assert done.code == 0, done.err
    paths = (tmp_path / "out").glob("runs/*/manifest.json")
    configs = [json.loads(path.read_text())["parts"]["config"] for path in paths]
    assert [config["trainer"]["cuda_graphs"] for config in configs] == [graphs] * 2
    assert ("note: trainer.cuda_graphs=false for all arms" in done.out) != graphs


@pytest.mark.timeout(900)
def test_a_proposal_that_acts_between_steps_is_answered(tmp_path, pretended):
    """Its baseline keeps the CUDA graph."""
    study = {
        "question": "does anything help?",
        "arms": {"base": []},
        "scales": {"gpu": {"train": [*SHORT[:-1], "trainer.steps=2", "trainer.val_every=0"]}},
        "propose": {"gain": 0.1},
    }
    (tmp_path / "ideas").mkdir()
    (tmp_path / "ideas" / "study.yaml").write_text(json.dumps(study))
    words = ("-m", "nocap.study", "ideas", "scale=gpu", "output_dir=out", "--json")
    done = pretended.python(*words, "--propose", "ideas=[multi_token]", timeout=900)
    assert done.code == 0, done.err
    assert json.loads(done.out)["overrides"] == ["ideas=[multi_token]"]
    paths = (tmp_path / "out").glob("runs/*/manifest.json")
    configs = [json.loads(path.read_text())["parts"]["config"] for path in paths]
    chosen = {("multi_token" in each["ideas"], each["trainer"]["cuda_graphs"]) for each in configs}
    assert chosen == {(True, False), (False, True)}


FITS = (
    *SHORT,
    "tokenizer=gpt2",  # whose logits in fp32 are a third of the peak
    "trainer.batch_tokens=1024",
    "trainer.val_tokens=1024",
    "trainer.micro_batch=8",
    "trainer.checkpoint_every=0",
)


def test_the_largest_that_fits_counts_a_graph_beside_its_validation(tmp_path, pretended):
    """As a run has both: the graph keeps its memory while the run validates."""
    done = pretended.python("-m", "nocap.train", "--fit", *FITS)
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("trainer.micro_batch=8:")]
    fitted_mib = float(line.removesuffix(" MiB").rpartition(" ")[2].replace(",", ""))
    done = pretended.python("-m", "nocap.train", *FITS, "output_dir=out")
    assert done.code == 0, done.err
    path = next((tmp_path / "out").glob("runs/*/summary.json"))
    peak_mib = json.loads(path.read_text())["memory_mib"]["peak"]
    assert fitted_mib == pytest.approx(peak_mib, rel=0.1)


@pytest.mark.timeout(1500)
def test_the_tests_of_a_gpu_run_to_their_ends(pretended):
    words = ("-m", "pytest", "-c", str(REPO / "pyproject.toml"), "-q", "-m", "gpu", "-n", "0")
    words += ("-p", "no:cacheprovider", str(REPO / "tests" / "test_gpu.py"))
    done = pretended.python(*words, timeout=1500)
    assert done.code == 0, done.out


def test_the_workers_of_a_grid_that_compiles_use_the_gpu(pretended):
    """They are forked from a process that has not asked how many there are."""
    words = [word for word in SHORT if not word.startswith("trainer.compile")]
    words += ["trainer.compile=regional", "output_dir=out"]
    done = pretended.python("-m", "nocap.train", "--multirun", "attention=flash,gqa", *words)
    assert done.code == 0, done.err
    assert "2 finished" in done.out


RANKS = """
import dataclasses, os, sys, tempfile, torch, torch.distributed as dist
from torch._dynamo.utils import counters
from nocap.config.compose import compose
from nocap.measure.timed_arm import random_tokens
from nocap.training.build import build
run = compose(["model=small", "trainer.device=cuda", "trainer.compile=regional", "data=synthetic",
    "trainer.micro_batch=1", "tracker=none"])
with tempfile.TemporaryDirectory() as folder, random_tokens(run) as job:
    if ranks := int(sys.argv[1]):
        store = dist.FileStore(folder + "/store", 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        job = dataclasses.replace(job, world=dataclasses.replace(job.world, size=2))
    trainee = build(job)
    tokens = torch.zeros(1, run.model.seq_len + 1, dtype=torch.long, device="cuda")
    trainee.forward(tokens[:, :-1], tokens[:, 1:]).total.backward()
print(counters["aot_autograd"]["total"], flush=True)
os._exit(0)  # gloo's teardown aborts now and then
"""


def test_ddp_cuts_no_compiled_region(pretended):
    """NCCL is not pretended: gloo's ranks, whose tensors are on the GPU."""
    assert [pretended.python("-c", RANKS, ranks).out for ranks in "01"] == ["2\n", "2\n"]
