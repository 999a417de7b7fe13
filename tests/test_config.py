"""The configuration: every yaml composes and builds, every record's config comes back, and whatever
is wrong is refused in one line."""

import dataclasses
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from enum import Enum
from functools import partial
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
from nocap.config.arm_defaults import as_in
from nocap.config.compose import compose
from nocap.config.compose import composed as composed_of
from nocap.config.defaults import other_precision, reasons
from nocap.config.flags import parse
from nocap.config.help_page import COMMON, KEYS, SWEEPS, comments_of, help_text
from nocap.config.overrides import overrides_of
from nocap.config.paths import conf_dir
from nocap.config.plain import dump, load, to_plain
from nocap.config.run import Run
from nocap.config.trainer import Compile, Device, Precision, Trainer
from nocap.model.build import build_model
from nocap.model.gpt import GPT
from nocap.options.attention.kernel import Kernel
from nocap.options.schedule import Schedule
from nocap.training.build_optimizers import build_optimizers, set_lr
from tests.conftest import REPO

GROUP_FOLDERS = [folder for folder in sorted(conf_dir().iterdir()) if folder.is_dir()]
OPTIONS: dict[str, list[str]] = {}
for group_folder in GROUP_FOLDERS:
    OPTIONS[group_folder.name] = sorted(path.stem for path in group_folder.glob("*.yaml"))
EXPERIMENTS = OPTIONS.pop("experiment")
OPTIONS.pop("hydra")  # its groups are Hydra's own; `launcher` is one of nocap's too
CHOICES = []
for group_name, group_options in OPTIONS.items():
    CHOICES += [(group_name, option) for option in group_options]
MANDATORY = {
    "text": ["data.path=notes/*.md"],
    "shards": ["data.train=a_*.bin", "data.val=b_*.bin"],
    "schedule_free": ["schedule=constant"],
}
ONE_ROW = ["trainer.micro_batch=1"]  # so that every model's seq_len divides the default batch


def test_every_group_and_every_schema_has_an_option():
    expected = set(outside.groups()) - {"launcher"}
    assert set(OPTIONS) == expected
    launchers = (conf_dir() / "hydra" / "launcher").glob("*.yaml")
    assert {path.stem for path in launchers} == set(outside.options("launcher"))
    for group, names in OPTIONS.items():
        used = {outside.read(group, name)[1] for name in names}
        assert used == set(outside.options(group).values()), group


def comes_back(run: Run, path: Path) -> None:
    text = dump(to_plain(run))
    path.write_text(text)
    again = load(path)
    assert again == run
    assert type(again.attention) is type(run.attention)
    assert dump(to_plain(again)) == text


@pytest.mark.parametrize("size", OPTIONS["model"])
def test_every_model_builds_and_comes_back_from_its_record(size: str, tmp_path: Path):
    """On the meta device."""
    run = compose([f"model={size}", *ONE_ROW, "trainer.device=cpu"])
    comes_back(run, tmp_path / "config.yaml")
    with torch.device("meta"):
        blocks = GPT(run, vocab_size=257).blocks
        assert len(blocks) >= 2


def rows_of_options() -> list[list[tuple[str, str]]]:
    """List options that are tried at once, one of a group, each in one row. An optimizer may fit
    one schedule alone."""
    rows = [[("optimizer", option)] for option in OPTIONS["optimizer"]]
    groups = [group for group in OPTIONS if group not in ("model", "optimizer")]
    for i in range(max(len(OPTIONS[group]) for group in groups)):
        rows.append([(group, OPTIONS[group][i]) for group in groups if i < len(OPTIONS[group])])
    return rows


ROWS = rows_of_options()


def test_every_option_is_in_a_row():
    tried = []
    for row in ROWS:
        tried.extend(row)
    expected = [choice for choice in CHOICES if choice[0] != "model"]
    assert sorted(tried) == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(map("=".join, row)))
def test_every_option_builds_learns_and_comes_back_from_its_record(
    row: list[tuple[str, str]], tmp_path: Path
):
    """As a small model that takes two steps."""
    words = []
    for place, choice in row:
        words += [f"{place}={choice}", *MANDATORY.get(choice, ())]
    run = compose(["model=nano", *words, *ONE_ROW, "trainer.device=cpu"])
    comes_back(run, tmp_path / "config.yaml")
    model = build_model(run, vocab_size=50)
    tokens = torch.arange(33)[None] % 50
    before = [p.detach().clone() for p in model.parameters()]
    optimizers = build_optimizers(run, model)
    set_lr(optimizers, 1.0)
    # what is multiplied by a number that starts at 0 moves in the second; SOAP's first makes its
    # bases
    for _ in range(2):
        output = model(tokens[:, :-1], tokens[:, 1:])
        loss = output.total
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        assert np.isfinite(loss.item())
    for p, old in zip(model.parameters(), before, strict=True):
        assert not torch.equal(p, old)


@pytest.mark.parametrize(
    "overrides",
    [
        *([f"experiment={experiment}"] for experiment in EXPERIMENTS),
        ["data=text", "data.path=[a.md,b/*.txt]"],
        ["trainer.grad_clip=null", "model.logit_softcap=15", "tracker.tags=[x,y]"],
    ],
    ids=" ".join,
)
def test_and_so_does_an_experiment_a_list_or_a_null(overrides: list[str], tmp_path: Path):
    run = compose(overrides)
    comes_back(run, tmp_path / "config.yaml")
    with torch.device("meta"):
        GPT(run, vocab_size=run.tokenizer.vocab_size)


def test_a_broken_record_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "config.yaml"
    broken = dump({**to_plain(compose([])), "sed": 1})
    for text in ("", "seed: 0\n", "a: [", broken):
        path.write_text(text)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            load(path)


# --- defaults -------------------------------------------------------------------------------------


HEADS = "attention=gqa model.n_head={0} model.d_model={1}"
FOLLOWS: list[tuple[str, dict[str, Any]]] = [  # overrides → what the run has
    # gqa's group is the first of 3, 2, 5 that divides
    *(
        (HEADS.format(n_head, 16 * n_head), {"attention.n_kv_heads": heads})
        for n_head, heads in {12: 4, 9: 3, 8: 4, 16: 8, 20: 10, 25: 5, 6: 2, 5: 1}.items()
    ),
    (HEADS.format(7, 112) + " attention.n_kv_heads=1", {"attention.n_kv_heads": 1}),
    *(
        (f"attention={name} model.n_head=6 model.d_model=96", {"attention.n_kv_heads": heads})
        for name, heads in {
            "flash": 6,
            "gqa": 2,
            "hybrid": 6,
            "mha": 6,
            "mqa": 1,
            "sliding": 6,
        }.items()
    ),
    # the window is a quarter of a short sequence and the same for long ones; more than seq_len
    # equals full attention
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
            {
                "schedule.warmup_steps": warmup,
                **({"schedule.decay_steps": decay} if name == "wsd" else {}),
            },
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
    values_of_run = {key: attrgetter(key)(compose(overrides.split(" "))) for key in values}
    assert values_of_run == values


@pytest.mark.parametrize(
    ("overrides", "hidden"),
    [
        ("mlp=swiglu mlp.expansion=3", 1536),
        ("mlp=swiglu mlp.expansion=4", 2048),
        ("mlp=gelu3x", 3 * 768),
    ],
)
def test_swiglu_is_two_thirds_as_wide(overrides: str, hidden: int):
    run = compose(["model=nano", *overrides.split()])
    assert run.mlp.hidden(768) == hidden


ONE_THREAD = ["trainer.device=cpu", "trainer.threads=1"]


PRECISIONS = [
    ("model=nano", "fp32", "off"),
    ("model=nano tokenizer=gpt2 trainer.steps=100", "fp32", "off"),  # the head is most of it
    ("model=tiny model.n_head=8", "fp32", "off"),  # heads of 16 channels
    ("model=tiny", "bf16", "off"),
    ("model=tiny trainer.steps=5000", "bf16", "full"),
    ("model=tiny trainer.steps=5000 trainer.compile=off trainer.precision=fp32", "fp32", "off"),
    ("model=small", "bf16", "regional"),
]


@pytest.mark.parametrize(("overrides", "precision", "compilation"), PRECISIONS)
def test_precision_and_compilation_follow_from_the_cpu_and_the_arithmetic(
    overrides: str, precision: str, compilation: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hardware, "has_amx", lambda: True)
    monkeypatch.setattr(hardware, "cpp_compiler", lambda: "/usr/bin/g++")
    compared = "attention=mqa mlp=swiglu optimizer=muon ideas=[smear]"  # which decides nothing
    for words in (overrides, f"{overrides} {compared}"):
        t = compose([*ONE_THREAD, *words.split()]).trainer
        assert t.precision.value == precision
        assert t.compile.value == compilation
    monkeypatch.setattr(hardware, "has_amx", lambda: False)
    monkeypatch.setattr(hardware, "cpp_compiler", lambda: None)
    t = compose([*ONE_THREAD, *overrides.split()]).trainer
    assert t.precision.value == "fp32"
    assert t.compile.value == "off"


CPU_FLAGS = [
    ("avx2 fma", "fp32: this CPU has no AMX", None),
    ("avx512f avx512_vnni", "fp32: this CPU has no AMX", None),
    ("avx512f avx512_bf16", "fp32: this CPU has no AMX", Precision.bf16),
    ("avx512_bf16 amx_tile amx_bf16", "bf16: this CPU has AMX", Precision.fp32),
    ("asimd bf16", "fp32: this CPU has no AMX", Precision.bf16),  # Arm
]


@pytest.mark.parametrize(("flags", "reason", "other"), CPU_FLAGS)
def test_the_cpus_flags_decide_and_the_line_says_so(
    flags: str, reason: str, other: Precision | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        hardware, "_cpu", lambda: hardware.Cpu(name="a CPU", flags=frozenset(flags.split()))
    )
    run = compose(["model=tiny", *ONE_THREAD])
    assert run.trainer.precision.value == reason[:4]
    assert reasons(run)["precision"] == reason
    assert other_precision(Device.cpu, run.model) is other


def test_a_narrow_model_trains_in_fp32_where_a_cpu_has_amx(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        hardware, "_cpu", lambda: hardware.Cpu(name="a CPU", flags=frozenset({"amx_bf16"}))
    )
    run = compose(["model=nano", *ONE_THREAD])
    assert run.trainer.precision is Precision.fp32
    rule = (
        "AMX helps if a model has at least 128 channels and heads of 32; this model has "
        "64 channels and heads of 16"
    )
    assert reasons(run)["precision"] == f"fp32: {rule}"
    monkeypatch.setattr(hardware, "native_bf16", lambda: True)
    assert other_precision(Device.cpu, run.model) is Precision.bf16


def test_two_kinds_of_cpu_with_one_name_are_two_machines(monkeypatch: pytest.MonkeyPatch):
    """A cloud calls Zen 3 and Zen 4 the same; one of them multiplies bf16 thirty times as slowly as
    fp32."""
    prints = set()
    for kind in ("25.1.1", "25.17.1", "25.1.1"):
        monkeypatch.setattr(hardware, "_cpu", partial(hardware.Cpu, name="AMD EPYC", kind=kind))
        fingerprint = hardware.describe(Device.cpu, 1)["fingerprint"]
        prints.add(fingerprint)
    assert len(prints) == 2


def test_arms_take_the_baselines_precision_and_compilation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "cpp_compiler", lambda: "/usr/bin/g++")
    nano = ("model=nano", *ONE_THREAD)
    tiny = ("model=tiny", *ONE_THREAD, "trainer.steps=5000")
    first = composed_of([*nano, "trainer.precision=bf16"])
    trainer = composed_of(tiny).run.trainer
    assert trainer.compile is Compile.full
    trainer = as_in(first, tiny).run.trainer
    assert trainer.compile is Compile.off
    trainer = as_in(first, tiny).run.trainer
    assert trainer.precision is Precision.bf16
    run = as_in(first, [*tiny, "trainer.precision=fp32"]).run
    assert run.trainer.precision is Precision.fp32
    alike = (*nano, "trainer.precision=bf16", "attention=mqa")
    assert as_in(first, alike).overrides == alike


def test_all_cells_and_trials_have_one_now(monkeypatch: pytest.MonkeyPatch):
    ticks = map(str, itertools.count())
    clock = SimpleNamespace(strftime=lambda form: next(ticks))
    monkeypatch.setattr("nocap.config.choices.time", clock)
    monkeypatch.setattr("hydra.core.utils.datetime", SimpleNamespace(now=lambda: clock))
    words = ["model=nano", "output_dir=at-${now:%S of this test}"]
    output_dirs = {compose([*words, f"seed={seed}"]).output_dir for seed in (0, 1)}
    assert len(output_dirs) == 1


Part = Enum("Part", ["head", "blocks"])
KEYS_OF = [("parts", list[Part]), ("shares", dict[str, Part]), ("kind", str, "parted")]
Parted = dataclasses.make_dataclass("Parted", KEYS_OF, bases=(Schedule,), kw_only=True)


def test_names_in_a_list_or_mapping_are_plain():
    """Of an option from outside."""
    run = compose(["model=nano"])
    shares = {"a": Part.head}
    run.schedule = Parted(warmup_steps=0, parts=[Part.head, Part.blocks], shares=shares)
    shown = {
        "kind": "parted",
        "warmup_steps": 0,
        "parts": ["head", "blocks"],
        "shares": {"a": "head"},
    }
    content = yaml.safe_load(dump(to_plain(run)))
    assert content["schedule"] == shown


# --- what is told ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    [
        "trainer.val_tokens=1000",  # which micro-batches do not divide
        "trainer.batch_tokens=1000",
        "trainer.keep_steps=[0]",
        "trainer.init_from=nothing",
        "trainer.init_from=nobody@80",
        "model.n_head=5",
        "schedule.warmup_steps=1000000",
        "seed=-1",
        "tracker.project=",
        "tracker.also=[wandb]",
        "tracker.project=${oc.env:NO_SUCH_VARIABLE}",
        "data=text",  # its path must be given
        "output_dir=file/out",
    ],
)
def test_a_config_that_cannot_be_trained_is_not_printed(here, tmp_path, word):
    """It is refused as training refuses it."""
    (tmp_path / "file").touch()
    words = ("model=nano", "data=synthetic", "tracker=wandb", "trainer.steps=100", word)
    refused = here(*words)
    assert refused.code == 2
    for flags in ([], ["--resolve"]):
        shown = here("--cfg", "job", *flags, *words)
        assert shown.code == 2
        assert shown.out == ""
        assert shown.err == refused.err


def test_a_config_without_a_compiler_is_not_printed(here, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent")
    shown = here("--cfg", "job", "model=nano", "trainer.compile=full", "trainer.device=cpu")
    assert shown.code == 2
    assert shown.err.startswith("nocap: trainer.compile=full on the CPU needs a C++ compiler")


def test_a_config_is_printed_without_its_data(here):
    """Training would refuse the file, which is not there: its place is all that a config says."""
    shown = here("--cfg", "job", "model=nano", "data=text", "data.path=later.txt")
    assert shown.code == 0
    content = yaml.safe_load(shown.out)
    assert content["data"]["path"] == "later.txt"


def test_what_was_composed_and_what_hydra_knows_is_told(here):
    shown = here("--cfg", "job", "attention=sliding", "model=nano")
    assert shown.code == 0
    assert "  kind: sliding\n  n_kv_heads: ${model.n_head}\n" in shown.out
    assert "n_kv_heads: 4\n" in here("--cfg", "job", "--resolve", "model=nano").out
    command = [
        sys.executable,
        "-m",
        "nocap.train",
        "attention=gqa",
        "--info",
        "defaults-tree",
        "trainer.steps=3",
    ]
    done = subprocess.run(  # Hydra sets up the logging of its process
        command, capture_output=True, text=True, cwd=REPO, check=True
    )
    assert "attention: gqa" in done.stdout


def test_every_key_of_the_shelf_has_a_comment_that_help_shows() -> None:
    schemas = {group: outside.options(group) for group in outside.groups()}
    for group, kinds in {"": {"run": Run}, "trainer": {"trainer": Trainer}, **schemas}.items():
        for kind, schema in kinds.items():
            names = {f.name for f in dataclasses.fields(schema)}
            silent = names - comments_of(schema).keys() - {"kind"}
            assert not silent - ({*schemas} if group == "" else set()), kind


def test_help_is_a_screen_of_every_group_and_option_and_of_the_common_keys() -> None:
    lines = help_text([]).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= outside.WIDTH
    words = set()
    for line in lines:
        for word in line.split():
            words.add(word.strip(","))
    groups = (*outside.groups(), "experiment")
    places = {outside.place(group) for group in groups}
    for name in groups:
        places.update(outside.yamls(name))
    assert places < words
    text = "\n".join(lines[lines.index(KEYS) :])
    shown = re.findall(r"^  ([\w.]+)=\S", text, re.M)
    assert sorted(shown) == sorted(COMMON)
    start = lines.index("Examples, after python -m nocap.train:") + 1
    for line in lines[start : lines.index("", start)]:
        pattern = re.split("  +", line.strip())
        given = parse(pattern[0].split())
        overrides = overrides_of(given.overrides, grid=given.is_grid)
        typed = []
        for override in overrides:
            if override.is_sweep_override():
                first = next(iter(override.sweep_string_iterator()))
                typed.append(f"{override.key_or_group}={first}")
            else:
                typed.append(str(override.input_line))
        assert compose(typed), line


def test_help_of_options_has_their_keys_and_of_all_every_key() -> None:
    chosen = help_text(["attention=hybrid", "ideas=[x0]", "seed=3"])
    every = help_text([], everything=True)
    shown_keys = chosen[chosen.index(KEYS) :]
    keys = {*re.findall(r"^  ([\w.]+)=\S", shown_keys, re.M)}
    assert {"attention.window", "ideas.x0.x0"} < keys
    assert {key.partition(".")[0] for key in keys} == {"attention", "ideas", "seed"}
    matches = {*re.findall(r"^  ([\w.]+)=", every, re.M)}
    assert {f"trainer.{f.name}" for f in dataclasses.fields(Trainer)} < matches
    assert max(map(len, every.splitlines())) <= outside.WIDTH
    given = []
    for words in ("--help all", "all --help", "--help", "seed=0 -h all"):
        given.append(parse(words.split()).help_all)
    assert given == [True, True, False, True]
    # a lone `all` is refused as any word
    overrides = parse(["--help", "all", "seed=0"]).overrides
    assert overrides == ["seed=0"]
    assert parse(["all"]).overrides == ["all"]


def test_help_shows_values_choices_and_comments_of_the_chosen() -> None:
    words = ["attention=hybrid", "data=text", "ideas=[x0]", "trainer.steps=3"]
    shown = help_text(words, everything=True)
    cases = (
        r"  attention  +flash, gqa, hybrid",
        r"  attention\.n_kv_heads=\$\{model\.n_head\}  ",
        r"attention=hybrid  Layers take their kind from `pattern`",
        r"  trainer\.device=…  +device that trains the run: cpu, cuda$",
        r"  data\.path=… \(required\)  ",
        r"  ideas\.x0\.x0=0\.0  +factor λ₂ of x0 at the start$",
        r"  search\.sampler=… \(required\)  +sampler of the trials, set by ",
        r"  search\.trials=20  +number of trials; ",
        r"  hydra\.launcher\.jobs=null  +largest number of cells at once; ",
    )
    for line in cases:
        assert re.search(f"^{line}", shown, re.M), line
    assert not re.search("schema|muon_lr", shown)
    sweeps = re.findall(r"^  (?!search=|hydra/|--)(\S.*?)  ", SWEEPS, re.M)
    parsed = OverridesParser.create().parse_overrides([shlex.split(word)[0] for word in sweeps])
    assert [override.is_sweep_override() for override in parsed] == [True] * 4
    assert comments_of(Precision) == {
        "bf16": "autocast; parameters, gradients and optimizer state stay fp32"
    }


HELP_REFUSED = [
    ("atention=flash", r"atention is no key"),
    ("trainr.steps=3", r"trainr\.steps is no key \(did you mean trainer\.steps\?\)"),
    ("trainer.stepz=3", r"trainer\.stepz is no key \(did you mean trainer\.steps\?\)"),
    ("attention=flsh", r"attention/flsh is no option \(did you mean flash\?\)"),
    ("model=d12_gqa", r"model/d12_gqa is no option \(did you mean experiment=d12_gqa\?\)"),
    ("model=d12_fast", r"model/d12_fast is no option \(did you mean experiment=d12_fast\?\)"),
    (
        "experiment=first_run",
        r"experiment=NAME does not work with --help: --cfg job prints the settings of NAME",
    ),
]


@pytest.mark.parametrize(("word", "says"), HELP_REFUSED)
def test_help_refuses_what_it_does_not_know(word: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        help_text([word])


@pytest.mark.parametrize(
    ("experiment", "words"),
    [("d12_gqa", ["attention=gqa"]), ("d12_fast", ["attention=gqa", "mlp=gelu3x"])],
)
def test_the_notes_models_have_4_of_12_key_value_heads(experiment: str, words: list[str]) -> None:
    run = compose([f"experiment={experiment}"])
    assert run == compose(["model=d12", "tokenizer=gpt2", *words])
    assert run.model.n_head == 12
    assert run.attention.n_kv_heads == 4


# --- the next version of Hydra --------------------------------------------------------------------

NEXT = ("hydra-core==1.4.0rc3", "omegaconf==2.4.1rc1")
REFUSED_WORDS = (
    *(
        "trainer.steps=many",
        "~tracker",
        "ideas=[x0,nope]",
        "optimizer.lr=[1,2]",
        "steps=3",
        "seed=1.5",
    ),
    *(
        "attention={}",
        "+foo=3",
        "schedule.warmup_steps=${trainer.steps}",
        "trainer.keep_steps=[1,2]",
    ),
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
        pytest.skip(
            f"{' and '.join(NEXT)} cannot be installed: "
            f"{installed.stderr.strip().splitlines()[-1:]}"
        )
    chosen = []
    for g, o in CHOICES:
        chosen.append([f"ideas=[{o}]" if g == "ideas" else f"{g}={o}", *MANDATORY.get(o, [])])
    small = ["trainer.device=cpu", "trainer.precision=fp32", "trainer.threads=1", "model=nano"]
    lines = [[*small, *words, *ONE_ROW] for words in chosen]
    for word in (*(f"experiment={name}" for name in EXPERIMENTS), *REFUSED_WORDS):
        lines.append([*small, word])

    def composed_in(path: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", COMPOSES],
            input=json.dumps(lines),
            env={**os.environ, "PYTHONPATH": f"{path}{REPO}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    now = composed_in("")
    later = composed_in(f"{tmp_path}{os.pathsep}")
    content = json.loads(now)
    for line, *answers in zip(lines, content, json.loads(later), strict=True):
        assert answers[0] == answers[1], line
