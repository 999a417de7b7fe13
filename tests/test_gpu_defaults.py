"""What a run gets on a GPU where it does not choose (nocap/config/gpu_defaults.py): its figures,
and what composing makes of them. No GPU is here: it is taken to be there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nocap.config import entry, gpu_defaults, hardware
from nocap.config.arm_defaults import as_in
from nocap.config.compose import Composed, compose, composed
from nocap.config.defaults import reasons
from nocap.config.run import Run
from nocap.config.trainer import Sampler, Search
from nocap.launch.first_screen import headline
from nocap.launch.grid import plan_grid
from nocap.launch.plan import Datasets, plan
from nocap.launch.search import plan_search
from nocap.launch.worker_failure import no_room
from nocap.measure.bench_arms import compose_arms
from nocap.model.flops import flops_per_token
from nocap.study.proposals.campaign import Proposals
from nocap.study.proposals.override_proposals import of_overrides
from nocap.study.study_plan import compose_arms as compose_study
from tests.conftest import REPO, Door
from tests.studies import LOSS, loaded, study

DAY = REPO / "experiments" / "gpu_day" / "h200-2026-11-27"
D12 = ("model=d12", "tokenizer=gpt2", "tracker=none", "trainer.device=cuda")


@pytest.fixture(autouse=True)
def _taken_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "check_device", lambda *given, **named: None)
    monkeypatch.setattr(hardware, "cuda_devices", lambda: ("NVIDIA H200",))
    monkeypatch.setattr(hardware, "capability", lambda: (9, 0))


def d12(words: str = "") -> Run:
    return compose([*D12, *shlex.split(words)])


def arms(name: str) -> dict[str, dict[str, Any]]:
    """The arms of a bench of that day."""
    content = json.loads((DAY / f"{name}.json").read_text())
    return {arm["label"]: arm for arm in content["arms"]}


# --- the figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "sequences", "scores"),
    [
        ("attention=flash", 16, False),
        ("trainer.micro_batch=32", 32, False),
        ("attention=mha", 16, True),
    ],
)
def test_a_steps_memory_is_counted_within_a_tenth_of_what_was_measured(
    label: str, sequences: int, scores: bool
) -> None:
    run = d12()
    counted_mib = gpu_defaults.step_mib(run.model, run.tokenizer, sequences, scores=scores)
    peak = arms("options")[label]["memory_mib"]["peak"]
    assert counted_mib == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize(
    "shape", ["model=d12 tokenizer=gpt2", "model=nano", "model=small tokenizer=gpt2"]
)
def test_the_rules_arithmetic_is_that_of_the_record(shape: str) -> None:
    run = compose(["trainer.device=cuda", *shape.split()])
    counted, _ = flops_per_token(run, vocab_size=run.tokenizer.vocab_size)
    assert gpu_defaults.flops_per_token(run.model, run.tokenizer) == counted


def test_the_figures_are_those_of_the_day() -> None:
    whole = json.loads((DAY / "compile.json").read_text())
    rates = [arm["tokens_per_s"] for arm in whole["arms"]]
    assert pytest.approx(1 - rates[0] / rates[1], abs=1e-3) == gpu_defaults.SAVED_BY_FULL
    warm_ups_s = [arm["warm_up_s"] for arm in whole["arms"]]
    assert pytest.approx(warm_ups_s[1], rel=0.01) == 12 * gpu_defaults.FULL_S
    step_ms = arms("graphs")["trainer.compile=regional"]["step_ms"]
    assert pytest.approx(step_ms, rel=0.01) == 12 * gpu_defaults.LAUNCH_MS
    measured = whole["peak_flops"]["bf16"]["measured"]
    assert pytest.approx(measured, rel=0.02) == gpu_defaults.PEAK_FLOPS
    mfu = arms("options")["attention=flash"]["mfu"]["measured"]
    expected = gpu_defaults.REGIONAL_FLOPS / gpu_defaults.PEAK_FLOPS
    assert pytest.approx(mfu, abs=0.01) == expected


# --- what a run gets ------------------------------------------------------------------------------


MICRO_BATCHES = [
    ("trainer.batch_tokens=524288", 32),  # 64 would take 71 GiB with scores
    ("trainer.batch_tokens=24576", 8),  # 24 sequences
    ("trainer.batch_tokens=524288 trainer.devices=64", 8),
    ("trainer.batch_tokens=524288 trainer.val_tokens=4096", 4),
    ("model.seq_len=4096 trainer.batch_tokens=524288", 2),  # scores grow with the square
    ("model=nano trainer.batch_tokens=65536 trainer.val_tokens=65536", 512),
]


@pytest.mark.parametrize(("words", "micro_batch"), MICRO_BATCHES)
def test_a_micro_batch_is_the_largest_power_of_two_that_has_room_and_divides(
    words: str, micro_batch: int
) -> None:
    run = d12(words)
    assert run.trainer.micro_batch == micro_batch
    shape = (run.model, run.tokenizer)
    assert gpu_defaults.step_mib(*shape, micro_batch) <= gpu_defaults.ROOM_MIB
    sequences = run.trainer.batch_tokens // run.model.seq_len // run.trainer.devices
    too_large = gpu_defaults.step_mib(*shape, 2 * micro_batch) > gpu_defaults.ROOM_MIB
    undivided = sequences % (2 * micro_batch) > 0
    assert too_large or undivided or run.trainer.val_tokens < 2 * micro_batch * run.model.seq_len


@pytest.mark.parametrize(
    ("words", "graphs"),
    [
        ("trainer.batch_tokens=2048 trainer.val_tokens=2048", True),
        ("trainer.batch_tokens=32768", False),
        ("trainer.batch_tokens=2048 trainer.val_tokens=2048 trainer.devices=2", False),
        # it acts between steps
        ("trainer.batch_tokens=2048 trainer.val_tokens=2048 ideas=[multi_token]", False),
    ],
)
def test_short_steps_are_launched_as_one(words: str, graphs: bool) -> None:
    assert d12(words).trainer.cuda_graphs is graphs


def test_the_crossing_lies_where_one_step_gained_and_another_could_not() -> None:
    shape = (d12().model, d12().tokenizer)
    short = [
        tokens for tokens in range(1024, 40_960, 1024) if gpu_defaults.is_short(*shape, tokens)[0]
    ]
    assert 2048 < max(short) < 32_768


@pytest.mark.parametrize(
    ("words", "compiled"),
    [
        ("trainer.steps=500 trainer.batch_tokens=32768", "regional"),
        ("trainer.steps=4768 trainer.batch_tokens=524288", "full"),
        ("trainer.steps=4768 trainer.batch_tokens=524288 trainer.devices=16", "regional"),
    ],
)
def test_a_long_run_compiles_the_whole_model(words: str, compiled: str) -> None:
    assert d12(words).trainer.compile.value == compiled


COMPARED = "attention=mha mlp=swiglu optimizer=muon norm=layernorm ideas=[smear]"


def test_no_option_that_is_compared_decides() -> None:
    words = "trainer.steps=4768 trainer.batch_tokens=524288"
    assert reasons(d12(f"{words} {COMPARED}")) == reasons(d12(words))


def test_arms_take_the_baselines_micro_batch_and_graphs() -> None:
    first = composed([*D12, "trainer.batch_tokens=524288"])
    small = [*D12, "trainer.batch_tokens=2048", "trainer.val_tokens=2048", "trainer.micro_batch=1"]
    other = as_in(first, small).run.trainer
    assert composed(small).run.trainer.cuda_graphs
    assert not other.cuda_graphs
    assert other.micro_batch == 1  # its own choice
    large = as_in(first, [*D12, "model=d24", "trainer.batch_tokens=524288"])
    assert large.run.trainer.micro_batch == first.run.trainer.micro_batch
    assert "trainer.micro_batch=32" in large.overrides


def test_an_arm_that_a_graph_cannot_hold_is_refused_by_name() -> None:
    first = composed([*D12, "trainer.batch_tokens=2048", "trainer.val_tokens=2048"])
    words = [*D12, "trainer.batch_tokens=2048", "trainer.val_tokens=2048", "ideas=[multi_token]"]
    with pytest.raises(
        ValueError, match=r"trainer\.cuda_graphs must be false with ideas\.multi_token"
    ):
        as_in(first, words)


SHORT = (*D12, "trainer.batch_tokens=2048", "trainer.val_tokens=2048", "data=synthetic")
BETWEEN = "ideas=[multi_token]"  # acts between steps


def grid(*cells: str) -> tuple[list[bool], list[str]]:
    """Return whether each cell of a grid of short steps has CUDA graphs, and its notes."""
    notes = list[str]()
    words = [[*SHORT, *shlex.split(cell)] for cell in cells]
    checked = plan_grid(words, swept=["attention", "ideas"], compose=composed, log=notes.append)
    return [cell.plan.run.trainer.cuda_graphs for cell in checked.cells], notes


def test_no_arm_of_a_grid_has_graphs_where_one_is_beyond_them() -> None:
    graphs, notes = grid("", "attention=gqa", BETWEEN)
    assert graphs == [False] * 3
    assert notes == [
        f"note: trainer.cuda_graphs=false for all arms: in {BETWEEN} an option comes from "
        f"outside nocap, draws random numbers, or runs code between steps"
    ]


def test_all_arms_of_another_grid_have_graphs() -> None:
    assert grid("", "attention=gqa") == ([True, True], [])


def test_graphs_that_were_chosen_are_refused_beside_such_an_arm() -> None:
    chosen = "trainer.cuda_graphs=true"
    with pytest.raises(
        ValueError,
        match=rf"{BETWEEN[:5]}.*trainer\.cuda_graphs must be false with ideas\.multi_token",
    ):
        grid(chosen, f"{chosen} {BETWEEN}")


def test_an_arm_that_chooses_none_takes_them_from_nobody() -> None:
    assert grid("", f"trainer.cuda_graphs=false {BETWEEN}") == ([True, False], [])


def test_no_arm_of_a_bench_has_graphs_where_one_is_beyond_them() -> None:
    plain = compose_arms(SHORT, ["", "attention=gqa"]).values()
    beyond = compose_arms(SHORT, ["", "attention=gqa", BETWEEN]).values()
    assert [run.trainer.cuda_graphs for run in plain] == [True, True]
    assert [run.trainer.cuda_graphs for run in beyond] == [False] * 3


def test_no_arm_of_a_study_has_graphs_where_one_is_beyond_them(tmp_path: Path) -> None:
    arms = {"mha": ["attention=flash"], "multi": [BETWEEN]}
    made = loaded(tmp_path / "made", study(arms=arms, claims=[{**LOSS, "arm": "multi"}]))
    scale = made.scales["cpu"]
    alone = compose_study(made, scale, ["mha"], SHORT)
    both = compose_study(made, scale, ["multi", "mha"], SHORT)
    assert alone["mha"].run.trainer.cuda_graphs
    assert [arm.run.trainer.cuda_graphs for arm in both.values()] == [False, False]


def proposed(folder: Path, overrides: Sequence[str], *texts: str) -> Proposals:
    """Return proposals to a study with these overrides."""
    arms = {"mha": ["attention=flash"]}
    content = study(arms=arms, overrides=[*overrides], claims=None, propose={"gain": 0.1})
    made = loaded(folder / "made", content)
    assert made.propose is not None
    return of_overrides(made, made.propose, "cpu", texts, output_dir=str(folder), steps=None)


def test_a_proposal_beyond_graphs_has_none_and_its_baseline_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses alone are compared. A baseline that changed with its proposals would be another."""
    graphs = list[list[bool]]()

    def trainings(sides: dict[str, Composed], seeds: object) -> list[object]:
        graphs.append([side.run.trainer.cuda_graphs for side in sides.values()])
        return []

    monkeypatch.setattr("nocap.study.proposals.override_proposals.trainings", trainings)
    monkeypatch.setattr("nocap.study.proposals.override_proposals.train", lambda *given: {})
    for proposal in proposed(tmp_path, SHORT, BETWEEN, "attention=gqa").proposals:
        proposal.measure([])
    assert graphs == [[False, True], [True, True]]  # each proposal before its baseline


def test_a_proposal_beside_chosen_graphs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"trainer\.cuda_graphs must be false with ideas\.multi_token"
    ):
        proposed(tmp_path, [*SHORT, "trainer.cuda_graphs=true"], BETWEEN)


def test_no_trial_of_a_search_has_graphs_where_a_choice_is_beyond_them(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    for choices, graphs in ((["[]", "[multi_token]"], False), (["[]", "[x0]"], True)):
        made = plan_search(
            Search(sampler=Sampler.random),
            {"ideas": optuna.distributions.CategoricalDistribution(choices)},
            fixed=[*SHORT, f"output_dir={tmp_path}"],
            compose=composed,
        )
        cells = [made.trial(1, (f"ideas={choice}",)).cell for choice in choices]
        assert [cell and cell.plan.run.trainer.cuda_graphs for cell in cells] == [graphs] * 2
        notes = [line for line in made.head().splitlines() if "cuda_graphs" in line]
        assert len(notes) == (not graphs)


def test_the_challenges_baseline_stays_to_the_letter() -> None:
    """Its own micro-batch, its own model compiled whole, as its script does; no graph."""
    t = compose(["experiment=nocap_baseline", "tracker=none", "trainer.device=cuda"]).trainer
    assert t.micro_batch == 16
    assert t.compile.value == "full"
    assert not t.cuda_graphs
    assert t.precision.value == "bf16"


def test_an_experiments_own_rule_is_not_the_gpus() -> None:
    """The atlas has one for its micro-batch, which its arms keep."""
    made: Composed = composed(["experiment=atlas_cpu", "tracker=none"])
    assert "micro_batch" not in made.defaults


# --- the largest that fits ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_largest_micro_batch_is_found_by_training_a_step_of_each(
    here: Door, tmp_path: Path
) -> None:
    words = (
        "model=nano",
        "tracker=none",
        "trainer.device=cpu",
        "trainer.threads=1",
        "trainer.compile=off",
    )
    done = here(
        "--fit",
        *words,
        "trainer.micro_batch=4",
        "trainer.batch_tokens=512",
        "trainer.val_tokens=1024",
    )
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    expected = [f"trainer.micro_batch={size}" for size in (1, 2, 4)]
    firsts = [line.partition(":")[0] for line in lines[:3]]
    assert firsts == expected
    assert lines[3].endswith("trainer.micro_batch=4")
    assert not list(tmp_path.iterdir())


def test_the_largest_micro_batch_is_asked_of_one_run(here: Door) -> None:
    refused = here("--fit", "--multirun", "model=nano", "seed=0,1")
    assert refused.code == 2
    assert refused.err == "nocap: --fit is for one run, and does not work with --multirun\n"


# --- what a GPU's memory and end do ---------------------------------------------------------------


def test_a_step_that_has_no_room_is_refused_by_its_micro_batch() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6 GiB\nmore")
    assert str(no_room(d12("trainer.batch_tokens=524288"), error)) == (
        "trainer.micro_batch must be smaller, in all arms that you compare, because a step does "
        "not fit into memory (CUDA out of memory. Tried to allocate 6 GiB), got 32"
    )


@pytest.mark.parametrize("used", [True, False])
def test_a_command_that_has_used_a_gpu_ends_without_pythons_own_end(
    used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = list[int]()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("nocap.config.entry.os._exit", ends.append)
    with pytest.raises(SystemExit) as ended:
        entry.run(lambda: 3)
    assert ended.value.code == 3
    assert ends == [3] * used


def test_a_command_whose_gpu_has_failed_ends_with_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = list[int]()

    def fail() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    monkeypatch.setattr("nocap.config.entry.os._exit", ends.append)
    with pytest.raises(SystemExit):
        entry.run(lambda: 4)
    assert ends == [4]


def test_the_first_screen_says_what_a_gpu_gets_and_why() -> None:
    run = d12("data=synthetic trainer.batch_tokens=2048 trainer.val_tokens=2048")
    planned = plan(run, choices={}, datasets=Datasets())
    *_, micro_batch, graphs = headline(planned).splitlines()
    assert (
        micro_batch == "micro_batch 2: even if attention stored its scores, a step would "
        "take 4,286 MiB; the limit is 40,960"
    )
    assert (
        graphs == "cuda_graphs true: the GPU computes a step in 2.5 ms, and its kernels "
        "take 28 ms to launch"
    )
