"""The configuration: every yaml composes and builds, every record's config comes back, and whatever is wrong
is refused in one line."""

import dataclasses
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from nocap import outside
from nocap.config import hardware
from nocap.config.compose import as_in, compose, overrides_of
from nocap.config.compose import composed as composed_of
from nocap.config.defaults import FASTER, reasons
from nocap.config.flags import COMMON, KEYS, SWEEPS, asked, comments_of, manual
from nocap.config.paths import conf_dir
from nocap.config.plain import dump, load, to_plain
from nocap.config.run import Run
from nocap.config.trainer import Device, Precision, Trainer
from nocap.model.gpt import GPT, build_model
from nocap.options.attention.softmax import Kernel
from nocap.options.schedule import Schedule
from nocap.training.optimizer import build_optimizers, set_lr
from tests.conftest import REPO

OPTIONS = {
    folder.name: sorted(path.stem for path in folder.glob("*.yaml"))
    for folder in sorted(conf_dir().iterdir())
    if folder.is_dir()
}
EXPERIMENTS = OPTIONS.pop("experiment")
OPTIONS.pop("hydra")  # its groups are Hydra's own; `launcher` is one of nocap's too
CHOICES = [(group, option) for group, options in OPTIONS.items() for option in options]
MANDATORY = {
    "text": ["data.path=notes/*.md"],
    "shards": ["data.train=a_*.bin", "data.val=b_*.bin"],
    "schedule_free": ["schedule=constant"],
    "curriculum": ["data.order=shuffled"],
}
ONE_ROW = ["trainer.micro_batch=1"]  # so that every model's seq_len divides the default batch
HAS_GPU = bool(hardware.torch_build()["cuda"] and hardware.cuda_devices())


@cache  # composing takes a tenth of a second; no test changes a run
def composed(group: str, option: str) -> Run:
    small = [] if group == "model" else ["model=nano"]
    return compose([*small, f"{group}={option}", *MANDATORY.get(option, []), *ONE_ROW, "trainer.device=cpu"])


def test_every_group_of_the_contract_is_there():
    assert set(OPTIONS) == set(outside.groups()) - {"launcher"}
    assert {path.stem for path in (conf_dir() / "hydra" / "launcher").glob("*.yaml")} == set(
        outside.options("launcher")
    )


@pytest.mark.parametrize(("group", "option"), CHOICES)
def test_every_option_composes_and_builds(group: str, option: str):
    """Model sizes on the meta device; everything else as a small model that takes two steps."""
    if group == "model":
        with torch.device("meta"):
            model = GPT(composed(group, option), vocab_size=257)
        assert len(model.blocks) >= 2
        return
    run = composed(group, option)
    assert run.tokenizer.vocab_size in (257, 50257)
    assert all(
        0 <= run.schedule.multiplier(step=step, steps=run.trainer.steps) <= 1
        for step in range(run.trainer.steps)
    )
    model = build_model(run, vocab_size=50)
    before = [p.detach().clone() for p in model.parameters()]
    optimizers = build_optimizers(run, model)
    set_lr(optimizers, 1.0)
    tokens = torch.arange(33)[None] % 50
    # what is multiplied by a number that starts at 0 moves in the second; SOAP's first makes its bases
    for _ in range(2):
        loss = model(tokens[:, :-1], tokens[:, 1:]).total
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        assert np.isfinite(loss.item())
    assert not any(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_every_schema_has_an_option():
    for group, options in OPTIONS.items():
        used = {
            type(chosen)
            for option in options
            for name, chosen in composed(group, option).options()
            if name.partition(".")[0] == group
        }
        assert used == set(outside.options(group).values()), group


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes(experiment: str):
    run = compose([f"experiment={experiment}"])
    with torch.device("meta"):
        GPT(run, vocab_size=run.tokenizer.vocab_size)


def comes_back(run: Run, path: Path) -> None:
    text = dump(to_plain(run))
    path.write_text(text)
    again = load(path)
    assert again == run
    assert type(again.attention) is type(run.attention)
    assert dump(to_plain(again)) == text


@pytest.mark.parametrize(("group", "option"), CHOICES)
def test_a_records_config_gives_the_run_back(group: str, option: str, tmp_path: Path):
    comes_back(composed(group, option), tmp_path / "config.yaml")


@pytest.mark.parametrize(
    "overrides",
    [[f"experiment={experiment}"] for experiment in EXPERIMENTS]
    + [
        ["data=text", "data.path=[a.md,b/*.txt]"],
        ["trainer.grad_clip=null", "model.logit_softcap=15", "tracker.tags=[x,y]"],
    ],
    ids=" ".join,
)
def test_and_so_does_one_of_an_experiment_a_list_or_a_null(overrides: list[str], tmp_path: Path):
    comes_back(compose(overrides), tmp_path / "config.yaml")


def test_a_broken_record_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "config.yaml"
    for text in ("", "seed: 0\n", "a: [", dump({**to_plain(compose([])), "sed": 1})):
        path.write_text(text)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            load(path)


# --- defaults -----------------------------------------------------------------------------------------------


HEADS = "attention=gqa model.n_head={0} model.d_model={1}"
FOLLOWS: list[tuple[str, dict[str, Any]]] = [  # overrides → what the run has
    # gqa's group is the first of 3, 2, 5 that divides
    *(
        (HEADS.format(n_head, 16 * n_head), {"attention.n_kv_heads": heads})
        for n_head, heads in {12: 4, 9: 3, 8: 4, 16: 8, 20: 10, 25: 5, 6: 2, 5: 1}.items()
    ),
    (HEADS.format(7, 112) + " attention.n_kv_heads=1", {"attention.n_kv_heads": 1}),
    *(
        (f"attention={name} model=small trainer.micro_batch=1", {"attention.n_kv_heads": heads})
        for name, heads in {"flash": 6, "gqa": 2, "hybrid": 6, "mha": 6, "mqa": 1, "sliding": 6}.items()
    ),
    # the window is a quarter of a short sequence and the same for long ones; more than seq_len equals full
    # attention
    *(
        (f"attention={name} model.seq_len={T} trainer.micro_batch=1", {"attention.window": window})
        for name in ("sliding", "hybrid")
        for T, window in {256: 64, 512: 128, 4096: 128}.items()
    ),
    *(
        (f"attention={name} attention.window=4096", {"attention.window": 4096})
        for name in ("sliding", "hybrid")
    ),
    # kernels are chosen by the device and written out
    ("attention=flash", {"attention.kernel": Kernel.fused}),
    ("attention=mha", {"attention.kernel": Kernel.materialized}),
    ("attention=sliding trainer.device=cpu", {"attention.kernel": Kernel.blocks}),
    # warm-up and decay are shares of the steps
    *(
        (
            f"schedule={name} trainer.steps={steps}",
            {"schedule.warmup_steps": warmup, **({"schedule.decay_steps": decay} if name == "wsd" else {})},
        )
        for name in OPTIONS["schedule"]
        for steps, warmup, decay in ((600, 30, 128), (1000, 50, 214), (7, 0, 1), (1, 0, 0))
    ),
    # keys are set in the order typed, after the options
    (
        "trainer.steps=8 ++trainer.steps=7 trainer.val_every='${trainer.steps}'",
        {"trainer.steps": 7, "trainer.val_every": 7},
    ),
    ("+optimizer.muon_lr=0.1 optimizer=muon", {"optimizer.muon_lr": 0.1}),
    ("optimizer=muon", {"optimizer.muon_lr": 0.003}),  # what was set before left no trace
    ("data=text data.path=[a,'b/*.txt']", {"data.path": ["a", "b/*.txt"]}),
    ("trainer={steps:7,grad_clip:null}", {"trainer.steps": 7, "trainer.grad_clip": None}),
]


@pytest.mark.parametrize(("overrides", "values"), FOLLOWS, ids=[row[0] for row in FOLLOWS])
def test_what_follows_from_the_overrides(overrides: str, values: dict[str, Any]):
    assert {key: attrgetter(key)(compose(overrides.split(" "))) for key in values} == values


@pytest.mark.parametrize(("expansion", "hidden"), [(3, 1536), (4, 2048)])
def test_swiglu_is_two_thirds_as_wide(expansion: int, hidden: int):
    run = compose(["mlp=swiglu", f"mlp.expansion={expansion}", "model=d12", *ONE_ROW])
    assert run.mlp.hidden(run.model.d_model) == hidden
    assert compose([f"mlp=gelu{expansion}x"]).mlp.hidden(768) == expansion * 768


@pytest.mark.skipif(HAS_GPU, reason="the defaults of a machine without a GPU")
def test_cpu_defaults():
    t = compose([]).trainer
    assert t.device is Device.cpu
    assert t.threads >= 1


@pytest.mark.parametrize(
    ("overrides", "precision", "compilation"),
    [
        (["model=nano"], "fp32", "off"),  # 64 wide, 16 channels a head: bf16 takes 1.7 times as long
        (["model=nano", "tokenizer=gpt2", "trainer.steps=100"], "bf16", "off"),  # the head is most of it
        (["model=tiny"], "bf16", "off"),
        (["model=tiny", "model.n_head=8"], "fp32", "off"),
        (["model=tiny", "trainer.steps=5000"], "bf16", "full"),
        (
            ["model=tiny", "trainer.steps=5000", "trainer.compile=off", "trainer.precision=fp32"],
            "fp32",
            "off",
        ),
        (["model=small"], "bf16", "regional"),
    ],
)
def test_precision_and_compilation_are_the_fast_ones(
    overrides: list[str], precision: str, compilation: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hardware, "native_bf16", lambda: True)
    monkeypatch.setattr(hardware, "bf16_gain", lambda *product: FASTER)
    monkeypatch.setattr(hardware, "cpp_compiler", lambda: "/usr/bin/g++")
    one_thread = ["trainer.device=cpu", "trainer.threads=1"]
    for more in (
        [],
        ["attention=mqa"],
        ["mlp=swiglu"],
        ["optimizer=muon"],
        ["ideas=[smear]"],
    ):  # what is compared decides nothing
        t = compose([*one_thread, *overrides, *more]).trainer
        assert (t.precision.value, t.compile.value) == (precision, compilation)
    monkeypatch.setattr(hardware, "bf16_gain", lambda *product: FASTER - 0.01)
    assert compose([*one_thread, *overrides]).trainer.precision.value == "fp32"
    monkeypatch.setattr(hardware, "native_bf16", lambda: False)
    monkeypatch.setattr(hardware, "cpp_compiler", lambda: None)
    chosen = {override.partition("=")[0]: override.partition("=")[2] for override in overrides}
    t = compose([*one_thread, *overrides]).trainer
    assert (t.precision.value, t.compile.value) == (
        chosen.get("trainer.precision", "fp32"),
        chosen.get("trainer.compile", "off"),
    )


@pytest.mark.parametrize(
    ("flags", "chosen", "reason"),
    [
        ("avx2 fma", Precision.fp32, "this CPU has no bf16 products"),
        ("avx512f avx512_vnni", Precision.fp32, "this CPU has no bf16 products"),
        (
            "avx512f avx512_bf16",
            Precision.bf16,
            "bf16 is 2.00 times as fast here (512 × 128 × 512, 1 thread)",
        ),
        (
            "avx512_bf16 amx_tile amx_bf16",
            Precision.bf16,
            "bf16 is 2.00 times as fast here (512 × 128 × 512, 1 thread)",
        ),
        ("asimd bf16", Precision.bf16, "bf16 is 2.00 times as fast here (512 × 128 × 512, 1 thread)"),  # Arm
    ],
)
def test_the_cpus_flags_decide_and_the_line_says_so(
    flags: str, chosen: Precision, reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hardware, "_cpu", lambda: ("a CPU", frozenset(flags.split()), "25.1.1"))
    monkeypatch.setattr(hardware, "bf16_gain", lambda *product: 2.0)
    run = compose(["model=tiny", "trainer.device=cpu", "trainer.threads=1"])
    assert run.trainer.precision is chosen
    assert reasons(run)["precision"] == f"{chosen.value}: {reason}"


def test_two_kinds_of_cpu_with_one_name_are_two_machines(monkeypatch: pytest.MonkeyPatch):
    """A cloud calls Zen 3 and Zen 4 the same; one of them multiplies bf16 thirty times as slowly as fp32."""
    prints = set()
    for kind in ("25.1.1", "25.17.1", "25.1.1"):
        monkeypatch.setattr(hardware, "_cpu", partial(tuple, ("AMD EPYC", frozenset(), kind)))
        prints.add(hardware.describe(Device.cpu, 1)["fingerprint"])
    assert len(prints) == 2


def test_arms_take_the_baselines_precision_and_compilation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "native_bf16", lambda: True)
    first = composed_of(["model=nano", "trainer.device=cpu"])
    assert as_in(first, ["model=tiny", "trainer.device=cpu"]).run.trainer.precision is Precision.fp32
    assert (
        as_in(first, ["model=tiny", "trainer.device=cpu", "trainer.precision=bf16"]).run.trainer.precision
        is Precision.bf16
    )
    same = as_in(first, ["model=nano", "trainer.device=cpu", "attention=mqa"])
    assert same.overrides == ("model=nano", "trainer.device=cpu", "attention=mqa")


def test_all_cells_and_trials_have_one_now(monkeypatch: pytest.MonkeyPatch):
    ticks = map(str, itertools.count())
    clock = SimpleNamespace(strftime=lambda form: next(ticks))
    monkeypatch.setattr("nocap.config.compose.time", clock)
    monkeypatch.setattr("hydra.core.utils.datetime", SimpleNamespace(now=lambda: clock))
    words = ["model=nano", "output_dir=at-${now:%S of this test}"]
    assert len({compose([*words, f"seed={seed}"]).output_dir for seed in (0, 1)}) == 1


class Part(Enum):
    head = "the head's own"
    blocks = "all blocks"


@dataclasses.dataclass(kw_only=True, slots=True)
class Parted(Schedule):
    """Of an option from outside."""

    kind: str = "parted"
    parts: list[Part]
    shares: dict[str, Part]


def test_names_in_a_list_or_mapping_are_plain():
    run = compose(["model=nano"])
    run.schedule = Parted(warmup_steps=0, parts=[Part.head, Part.blocks], shares={"a": Part.head})
    shown = {"kind": "parted", "warmup_steps": 0, "parts": ["head", "blocks"], "shares": {"a": "head"}}
    assert to_plain(run)["schedule"] == shown
    assert yaml.safe_load(dump(to_plain(run)))["schedule"] == shown


# --- refusals -----------------------------------------------------------------------------------------------

# Numbers that the messages below repeat, whatever the defaults are.
FIXED = [
    "model.seq_len=256",
    "model.n_head=4",
    "model.d_model=128",
    "trainer.micro_batch=32",
    "trainer.devices=1",
    "trainer.steps=600",
]
FIXED += ["trainer.batch_tokens=8192", "trainer.val_tokens=131072"]

REFUSED = [
    # keys that do not exist
    ("attention=sliding attention.windw=3", "attention.windw", "window"),
    ("attention=sliding +attention.windw=3", "attention.windw", "window"),
    ("attention=sliding ++attention.windw=3", "attention.windw", "window"),
    ("attention.window=3", "attention.window"),
    ("+attention.window=3", "attention.window"),
    ("trainer.step=3", "trainer.step", "steps"),
    ("+trainer.step=3", "trainer.step", "steps"),
    ("attn=gqa", "attn", "attention"),
    ("+attn=gqa", "attn", "attention"),
    ("steps=3", "steps"),
    ("+wandb={a:1}", "wandb"),
    ("~attention", "attention"),
    ("~attention.n_kv_heads", "attention.n_kv_heads"),
    # options that do not exist
    *((f"{group}=xyz", f"{group}/xyz", *options) for group, options in OPTIONS.items()),
    ("experiment=xyz", "experiment/xyz", *EXPERIMENTS),
    # types
    ("trainer.steps=abc", "trainer.steps", "abc"),
    ("trainer.steps=1.5", "trainer.steps", "1.5"),
    ("trainer.steps=true", "trainer.steps", "True"),
    ("optimizer.lr=fast", "optimizer.lr", "fast"),
    ("model.qk_norm=maybe", "model.qk_norm", "maybe"),
    ("trainer.precision=fp16", "trainer.precision", "fp16", "fp32", "bf16"),
    ("trainer.compile=yes", "trainer.compile", "off", "regional", "full", "max"),
    (
        "model.pad_logits=true objective.loss_chunks=2",
        "model.pad_logits",
        "false",
        "objective.loss_chunks=2",
        "True",
    ),
    (
        "model.fp8_head=true trainer.precision=fp32",
        "model.fp8_head",
        "false",
        "trainer.precision=fp32",
        "True",
    ),
    (
        "model.fp8_head=true trainer.precision=bf16 model.pad_logits=true",
        "model.fp8_head",
        "false",
        "model.pad_logits=true",
        "True",
    ),
    (
        "model.fp8_head=true trainer.precision=bf16 model.seq_len=31 trainer.micro_batch=1",
        "model.fp8_head",
        "multiple of 16",
        "True",
    ),
    (
        "model.residual_precision=bf16 trainer.precision=fp32",
        "model.residual_precision",
        "fp32",
        "trainer.precision=fp32",
        "bf16",
    ),
    (
        "trainer.device=cpu trainer.cuda_graphs=true",
        "trainer.cuda_graphs",
        "false",
        "trainer.device=cpu",
        "True",
    ),
    (
        "trainer.device=cuda trainer.cuda_graphs=true trainer.devices=2",
        "trainer.cuda_graphs",
        "false",
        "trainer.devices=2",
        "True",
    ),
    (
        "trainer.device=cuda trainer.cuda_graphs=true ideas=[multi_token]",
        "trainer.cuda_graphs",
        "ideas.multi_token",
        "True",
    ),
    (
        "optimizer.cautious_decay=true optimizer.weight_decay=0",
        "optimizer.cautious_decay",
        "optimizer.weight_decay=0",
        "True",
    ),
    (
        "optimizer.beta2_half_life_tokens=1e5 optimizer.beta2=0.9",
        "optimizer.beta2",
        "optimizer.beta2_half_life_tokens=100000",
        "0.9",
    ),
    ("optimizer.beta2_half_life_tokens=0", "optimizer.beta2_half_life_tokens", "above 0", "null", "0.0"),
    ("optimizer.beta2_half_life_tokens=long", "optimizer.beta2_half_life_tokens", "long"),
    (
        "optimizer=muon optimizer.iteration=newton",
        "optimizer.iteration",
        "newton",
        "newton_schulz",
        "polar_express",
    ),
    ("optimizer=muon optimizer.row_beta2=1", "optimizer.row_beta2", "below 1", "1.0"),
    (
        "optimizer=muon optimizer.momentum_warmup_steps=-1",
        "optimizer.momentum_warmup_steps",
        "at least 0",
        "-1",
    ),
    ("optimizer=soap optimizer.basis_every=0", "optimizer.basis_every", "at least 1", "0"),
    ("optimizer=schedule_free", "schedule", "constant", "wsd"),
    ("optimizer=schedule_free schedule=constant optimizer.beta1=0", "optimizer.beta1", "above 0", "0.0"),
    (
        "optimizer=schedule_free schedule=constant optimizer.cautious_decay=true",
        "optimizer.cautious_decay",
        "false",
        "True",
    ),
    (
        "trainer.activation_checkpointing=layer",
        "trainer.activation_checkpointing",
        "layer",
        "off",
        "block",
        "attention",
        "mlp",
    ),
    ("trainer.device=tpu", "trainer.device", "tpu", "cpu", "cuda"),
    ("attention.kernel=magic", "attention.kernel", "magic", "fused"),
    ("data.order=random", "data.order", "random", "shuffled", "sequential"),
    ("model=d12 model.norm_placement=middle", "model.norm_placement", "middle", "pre", "post", "both"),
    # null where there must be a value
    ("trainer.steps=null", "trainer.steps"),
    ("seed=null", "seed"),
    ("output_dir=null", "output_dir"),
    ("attention.n_kv_heads=null", "attention.n_kv_heads"),
    ("data=text", "data.path"),
    ("data=shards", "data.train"),
    ("data=shards data.train=a.bin", "data.val"),
    # values
    ("trainer.steps=0", "trainer.steps", "at least 1", "0"),
    ("trainer.batch_tokens=0", "trainer.batch_tokens", "at least 1", "0"),
    ("trainer.micro_batch=0", "trainer.micro_batch", "at least 1", "0"),
    ("trainer.devices=0 trainer.threads=1", "trainer.devices", "at least 1", "0"),
    ("trainer.val_every=-1", "trainer.val_every", "at least 0", "-1"),
    ("trainer.grad_clip=0", "trainer.grad_clip", "above 0", "0.0"),
    ("attention.n_kv_heads=0", "attention.n_kv_heads", "at least 1", "0"),
    ("attention=sliding attention.window=0", "attention.window", "at least 1", "0"),
    ("attention=sliding attention.window=-1", "attention.window", "at least 1", "-1"),
    ("attention=hybrid attention.pattern=LX", "attention.pattern", "LX"),
    ("attention=hybrid attention.pattern=", "attention.pattern", "''"),
    ("mlp.expansion=0", "mlp.expansion", "above 0"),
    ("norm.eps=0", "norm.eps", "above 0"),
    ("norm.bias=true", "norm.bias", "RMSNorm"),
    ("position.base=1", "position.base", "above 1"),
    ("model.logit_softcap=0", "model.logit_softcap", "above 0"),
    ("model.n_layer=0", "model.n_layer", "at least 1"),
    ("optimizer.lr=0", "optimizer.lr", "above 0"),
    ("optimizer.lr=nan", "optimizer.lr", "nan"),
    ("optimizer.beta1=1", "optimizer.beta1", "below 1", "1.0"),
    ("optimizer.weight_decay=-1", "optimizer.weight_decay", "at least 0"),
    ("optimizer=muon optimizer.ns_steps=0", "optimizer.ns_steps", "at least 1", "0"),
    ("optimizer=muon optimizer.momentum=1", "optimizer.momentum", "below 1"),
    ("schedule=cosine schedule.final=2", "schedule.final", "at most 1", "2.0"),
    ("objective.z_loss=-1", "objective.z_loss", "at least 0"),
    ("objective.loss_chunks=-1", "objective.loss_chunks", "at least 0", "-1"),
    ("objective.loss_chunks=2.5", "objective.loss_chunks", "2.5"),
    ("seed=-1", "seed", "-1"),
    ("output_dir=", "output_dir"),
    ("data=text data.path=", "data.path"),
    ("data=text data.path=7", "data.path", "7"),
    ("data=fineweb data.train_shards=104", "data.train_shards", "103", "104"),
    # where two keys meet
    ("attention.n_kv_heads=3", "attention.n_kv_heads", "model.n_head=4", "3"),
    ("attention.n_kv_heads=8", "attention.n_kv_heads", "model.n_head=4", "8"),
    ("attention=gqa model.n_head=7 model.d_model=112", "attention=gqa", "3, 2 or 5", "7"),
    ("model.d_model=100 model.n_head=3", "model.d_model", "model.n_head=3", "100"),
    ("model.d_model=12", "model.d_model", "even", "position=rope", "3"),
    ("trainer.batch_tokens=1000", "trainer.batch_tokens", "32 × 256 × 1 = 8192", "1000"),
    ("trainer.devices=3 trainer.threads=1", "trainer.batch_tokens", "32 × 256 × 3 = 24576", "8192"),
    ("trainer.val_tokens=1000", "trainer.val_tokens", "32 × 256 = 8192", "1000"),
    ("objective.loss_chunks=8193", "objective.loss_chunks", "32 × 256 = 8192", "8193"),
    ("schedule.warmup_steps=601", "schedule.warmup_steps", "trainer.steps=600", "601"),
    ("schedule=cosine schedule.warmup_steps=601", "schedule.warmup_steps", "trainer.steps=600", "601"),
    (
        "schedule.warmup_steps=500 schedule.decay_steps=101",
        "schedule.decay_steps",
        "schedule.warmup_steps=500",
        "600",
        "101",
    ),
    ("trainer.device=cpu attention=sliding attention.kernel=flex", "attention.kernel", "flex"),
    ("attention=sliding attention.kernel=materialized", "attention.kernel", "materialized"),
    ("trainer.device=cuda trainer.precision=fp32 attention.kernel=flash", "attention.kernel", "flash"),
    ("attention=flash attention.kernel=blocks", "attention.kernel", "blocks"),
    ("attention=hybrid attention.pattern=LL", "attention.pattern", "LL"),
    ("optimizer.lr=inf", "optimizer.lr", "inf"),
    ("optimizer=muon optimizer.ns_steps=100", "optimizer.ns_steps", "100"),
    ("trainer.steps=-1", "trainer.steps", "-1"),
    ("trainer.devices=0", "trainer.devices", "0"),
    ("model.n_head=0", "model.n_head", "0"),
    ("model.seq_len=0 attention=sliding", "model.seq_len", "0"),
    ("trainer.device=cpu attention.kernel=cudnn", "attention.kernel", "cudnn"),
    # an option's kind is the option
    ("attention.kind=sliding", "attention.kind", "sliding"),
    ("attention=sliding attention.kind=global", "attention.kind", "global"),
    ("optimizer.kind=muon", "optimizer.kind", "muon"),
    ("schedule.kind=cosine", "schedule.kind", "cosine"),
    ("experiment=recipe_cpu ideas=[]", "ideas.ngrams", "ideas=[ngrams]", "1.26"),
    # Hydra's own grammar
    ("trainer.steps", "trainer.steps"),
    ("trainer.steps=1,2", "trainer.steps=1,2", "--multirun"),
]


@pytest.mark.parametrize(
    ("overrides", "words"), [(row[0], row[1:]) for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused_in_one_line_that_names_key_rule_and_value(overrides: str, words: tuple[str, ...]):
    with pytest.raises(ValueError) as refusal:
        compose([*FIXED, *overrides.split(" ")])
    message = str(refusal.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_what_the_refusals_start_from_is_accepted():
    assert compose(FIXED).trainer.steps == 600


@pytest.mark.skipif(HAS_GPU, reason="this machine has the GPU that the test needs to be absent")
def test_cuda_where_there_is_none():
    with pytest.raises(ValueError, match=r"^trainer\.device=cuda must have [^\n]*$"):
        compose(["trainer.device=cuda"])


@pytest.mark.parametrize(
    "words", [["--help"], ["--cfg", "job", "experiment=nocap_baseline", "--resolve"]], ids=" ".join
)
def test_help_and_cfg_answer_without_torch(words: list[str], door):
    done = door(*words, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.code == 0, done.err
    assert "attention" in done.out
    imported = re.findall(r"^import time:.*\|\s*(\S+)$", done.err, re.M)
    assert "hydra" in imported
    assert not {"torch", "wandb", "tiktoken"} & {name.split(".")[0] for name in imported}


def test_what_was_composed_and_what_hydra_knows_is_told(here):
    shown = here("--cfg", "job", "attention=sliding", "model=nano")
    assert (shown.code, "  kind: sliding\n  n_kv_heads: ${model.n_head}\n" in shown.out) == (0, True)
    assert "n_kv_heads: 4\n" in here("--cfg", "job", "--resolve", "model=nano").out
    for words in (
        ["--info", "defaults-tree", "attention=gqa", "trainer.steps=3"],
        ["attention=gqa", "--info"],
    ):
        asked = subprocess.run(
            [sys.executable, "-m", "nocap.train", *words],
            capture_output=True,
            text=True,
            cwd=REPO,
            check=True,
        )
        assert "attention: gqa" in asked.stdout


# --- --help -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["", "trainer", *outside.groups()])
def test_every_key_of_the_shelf_has_a_comment_that_help_shows(group: str) -> None:
    schemas = {"": {"run": Run}, "trainer": {"trainer": Trainer}}.get(group) or outside.options(group)
    for kind, schema in schemas.items():
        silent = {f.name for f in dataclasses.fields(schema)} - comments_of(schema).keys() - {"kind"}
        assert not silent - ({*outside.groups()} if group == "" else set()), kind


def test_help_is_a_screen_of_every_group_and_option_and_of_the_common_keys() -> None:
    lines = manual([]).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= outside.WIDTH
    words = {word.strip(",") for line in lines for word in line.split()}
    assert {outside.place(group) for group in (*outside.groups(), "experiment")} < words
    assert {name for group in (*outside.groups(), "experiment") for name in outside.yamls(group)} < words
    assert sorted(re.findall(r"^  ([\w.]+)=\S", "\n".join(lines[lines.index(KEYS) :]), re.M)) == sorted(
        COMMON
    )
    start = lines.index("Examples, after python -m nocap.train:") + 1
    for line in lines[start : lines.index("", start)]:
        given = asked(re.split("  +", line.strip())[0].split())
        first = [
            f"{override.key_or_group}={next(iter(override.sweep_string_iterator()))}"
            if override.is_sweep_override()
            else str(override.input_line)
            for override in overrides_of(given.overrides, grid=given.grid)
        ]
        assert compose(first), line


def test_help_of_options_has_their_keys_and_of_all_every_key() -> None:
    chosen = manual(["attention=hybrid", "ideas=[x0]", "seed=3"])
    keys = re.findall(r"^  ([\w.]+)=\S", chosen[chosen.index(KEYS) :], re.M)
    assert {"attention.window", "ideas.x0.x0"} < {*keys}
    assert {key.partition(".")[0] for key in keys} == {"attention", "ideas", "seed"}
    every = manual([], everything=True)
    assert {f"trainer.{f.name}" for f in dataclasses.fields(Trainer)} < {
        *re.findall(r"^  ([\w.]+)=", every, re.M)
    }
    assert max(map(len, every.splitlines())) <= outside.WIDTH
    assert [
        asked(words.split()).all for words in ("--help all", "all --help", "--help", "seed=0 -h all")
    ] == [True, True, False, True]
    assert asked(["--help", "all", "seed=0"]).overrides == ["seed=0"]
    assert asked(["all"]).overrides == ["all"]  # which is refused as any word


def test_help_shows_values_choices_and_comments_of_the_chosen() -> None:
    words = ["attention=hybrid", "data=text", "ideas=[x0]", "trainer.steps=3"]
    shown = manual(words, everything=True)
    assert re.search(r"^  attention  +flash, gqa, hybrid", shown, re.M)
    assert re.search(r"^  attention\.n_kv_heads=\$\{model\.n_head\}  ", shown, re.M)
    assert re.search(r"^attention=hybrid  Layers take their kind from `pattern`", shown, re.M)
    assert re.search(r"^  trainer\.device=…  +where it trains: cpu, cuda$", shown, re.M)
    assert re.search(r"^  data\.path=…, which must be given  ", shown, re.M)
    assert re.search(r"^  ideas\.x0\.x0=0\.0  +λ₂ at the start$", shown, re.M)
    assert re.search(r"^  model\.qk_norm=false  ", shown, re.M)
    assert re.search(r"^  search\.sampler=…, which must be given  +tpe \(tree-structured", shown, re.M)
    assert re.search(r"^  search\.trials=20  +how many; ", shown, re.M)
    assert re.search(r"^  hydra\.launcher\.jobs=null  +cells at once, ", shown, re.M)
    assert re.search(r"^  model\.logit_softcap=null  ", shown, re.M)
    assert "schema" not in shown
    assert "muon_lr" not in shown
    for word, says in (
        ("atention=flash", r"atention is no key"),
        ("trainr.steps=3", r"trainr\.steps is no key \(did you mean trainer\.steps\?\)"),
        ("trainer.stepz=3", r"trainer\.stepz is no key \(did you mean trainer\.steps\?\)"),
        ("attention=flsh", r"attention/flsh is no option \(did you mean flash\?\)"),
        (
            "experiment=first_run",
            r"experiment must be left out of --help: --cfg job prints what it sets, got experiment=first_run",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{says}"):
            manual([word])


def test_the_sweeps_that_help_shows_are_sweeps() -> None:
    words = [
        shlex.split(shown)[0]
        for shown in re.findall(r"^  (\S.*?)  ", SWEEPS, re.M)
        if not shown.startswith(("search=", "hydra/", "--"))
    ]
    parsed = OverridesParser.create().parse_overrides(words)
    assert [override.is_sweep_override() for override in parsed] == [True] * 4


def test_an_enum_tells_what_its_members_are() -> None:
    assert comments_of(Precision) == {"bf16": "autocast; parameters, gradients and optimizer state stay fp32"}


# --- the next version of Hydra ------------------------------------------------------------------------------

NEXT = ("hydra-core==1.4.0rc3", "omegaconf==2.4.1rc1")
REFUSED_WORDS = (
    *(
        "trainer.steps=many",
        "~tracker",
        "ideas=[x0,nope]",
        "optimizer.lr=[1,2]",
        "steps=3",
        "seed=1.5",
        "optimizer.lr=true",
    ),
    *("attention={}", "+foo=3", "schedule.warmup_steps=${trainer.steps}", "trainer.keep_steps=[1,2]"),
)
COMPOSES = """
import json, sys, warnings
warnings.simplefilter("error")
from nocap.config.compose import composed
from nocap.config.plain import to_plain

def told(line):
    try:
        made = composed(line)
        return [to_plain(made.run), dict(made.choices)]
    except ValueError as error:
        return str(error)

print(json.dumps(list(map(told, json.load(sys.stdin)))))
"""


@pytest.mark.slow
def test_the_next_hydra_composes_the_same_runs_and_refuses_in_the_same_words(tmp_path: Path):
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path), *NEXT]
    installed = subprocess.run(pip, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"{' and '.join(NEXT)} cannot be installed: {installed.stderr.strip().splitlines()[-1:]}")
    here = ("trainer.device=cpu", "trainer.precision=fp32", "trainer.threads=1")
    lines = [
        [*here, *([] if group == "model" else ["model=nano"]), *chosen(group, option), *ONE_ROW]
        for group, option in CHOICES
    ]
    lines += [[f"experiment={name}", *here] for name in EXPERIMENTS] + [
        ["model=nano", word] for word in REFUSED_WORDS
    ]
    answers = []
    for path in ("", f"{tmp_path}{os.pathsep}"):
        env = {**os.environ, "PYTHONPATH": f"{path}{REPO}"}
        done = subprocess.run(
            [sys.executable, "-c", COMPOSES], input=json.dumps(lines), capture_output=True, text=True, env=env
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    for line, now, later in zip(lines, *answers, strict=True):
        assert now == later, line


def chosen(group: str, option: str) -> list[str]:
    return [f"ideas=[{option}]" if group == "ideas" else f"{group}={option}", *MANDATORY.get(option, [])]
