"""Every idea of the shelf, alone and beside others: found in its folder, so that a new one is tried
without a word here.

Ideas are on or off, in a dozen sets that are drawn.
"""

import itertools
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from nocap import outside
from nocap.checks.contract import results
from nocap.checks.trial import OptionTrial
from nocap.config.compose import compose
from nocap.launch.plan import plan
from nocap.model.build import build_model
from nocap.training.ledger import Ledger
from nocap.training.step import take_step
from nocap.training.validation import validate
from tests.conftest import IDEA_FOLDERS, REPO, SMALL
from tests.test_ideas import V, saved_and_loaded, trainee_of

FOLDERS = (REPO / "conf" / "ideas", *(Path(folder) / "ideas" for folder in IDEA_FOLDERS))
IDEAS = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.yaml"))}
pytestmark = pytest.mark.usefixtures("atlas_ideas")
SHAPE = (
    "model.n_layer=3",
    "model.d_model=32",
    "model.seq_len=32",
    "trainer.batch_tokens=512",
    "trainer.val_tokens=512",
)
BESIDE = (  # what sets of ideas meet in turn
    (),
    ("optimizer=muon", "attention=gqa"),
    ("trainer.precision=bf16", "model.residual_precision=bf16", "model.fp8_head=true"),
    ("trainer.activation_checkpointing=block", "objective.loss_chunks=4", "model.logit_softcap=15"),
    ("attention=hybrid", "position=learned", "norm=layernorm", "optimizer=muon"),
    (
        "trainer.activation_checkpointing=attention",
        "mlp=swiglu",
        "attention.merge_qkv=true",
        "model.qk_norm=true",
    ),
)


def test_every_idea_of_the_shelf_has_its_yaml():
    chosen = [re.findall(r"^kind: (\w+)", path.read_text(), re.M) for path in IDEAS.values()]
    expected = set()
    for kinds in chosen:
        expected.update(kinds)
    assert set(outside.all_options("ideas")) == expected


# --- together -------------------------------------------------------------------------------------


@cache
def small(*words):
    return compose([*SMALL, *SHAPE, *words])


def with_ideas(names, *words):
    ideas = {name: small(f"ideas=[{name}]").ideas[name] for name in names}
    return replace(small(*words), ideas=ideas)


def refusal(names, *words):
    """The line by which they are refused, as a command prints it; any other error is one."""
    try:
        build_model(with_ideas(names, *words), vocab_size=V)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.timeout(1200)
def drawn(names, apart, chance):
    """A set of two thirds of them, without two that are kept apart."""
    members = frozenset()
    for name in chance.sample(names, len(names)):
        if chance.random() < 2 / 3 and not any(
            frozenset((name, other)) in apart for other in members
        ):
            members |= {name}
    return members


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ideas_in_sets_train_and_resume_bit_for_bit(tmp_path):
    # it needs a key: a file, a run
    refused = {frozenset([name]): line for name in IDEAS if (line := refusal([name]))}
    usable = [name for name in IDEAS if frozenset([name]) not in refused]
    chance = random.Random(0)
    pairs = {
        frozenset(pair): line
        for pair in itertools.combinations(usable, 2)
        if (line := refusal(pair))
    }
    broken = [line for line in (*refused.values(), *pairs.values()) if "\n" in line]
    assert broken == []
    sets = [drawn(usable, pairs, chance) for _ in range(12)]
    assert frozenset().union(*sets) == {*usable}
    for number, (names, words) in enumerate(zip(sets, itertools.cycle(BESIDE), strict=False)):
        try:
            _trains_and_resumes(
                with_ideas(names, *(() if refusal(names, *words) else words)),
                tmp_path / str(number),
            )
        except Exception as error:
            error.add_note(f"ideas=[{','.join(sorted(names))}] {' '.join(words)}")
            raise


def _trains_and_resumes(run, folder):
    folder.mkdir()
    ledger = Ledger(started=0.0)
    job, trainee = trainee_of(run, folder)
    for step in range(2):
        assert take_step(job, trainee, ledger, step=step).finite
    both = trainee, saved_and_loaded(trainee, run, folder, step=2)
    first, second = (take_step(job, each, ledger, step=2) for each in both)
    assert first.finite
    assert first.loss == second.loss
    assert first.grad_norm == second.grad_norm
    state, again = (each.model.state_dict() for each in both)
    for name, tensor in state.items():
        assert torch.equal(tensor, again[name])
    losses = [validate(each.model, each.val, run=run, world=job.world) for each in both]
    assert losses[0] == losses[1]


# --- what `nocap check` runs ----------------------------------------------------------------------


def as_many_as_fit():
    names = []
    for name in IDEAS:
        names += [name] * (refusal([*names, name]) is None)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "é" * 100], ids=["short", "long"])
def test_their_run_has_a_folder_that_a_file_system_takes(name, tmp_path):
    ideas = f"ideas=[{','.join(as_many_as_fit())}]"
    run = compose([*SMALL, *SHAPE, ideas, f"output_dir={tmp_path}", f"seed={2**63 - 1}"])
    planned = plan(run, choices={"model": name})
    planned.run_dir.mkdir(parents=True)
    assert planned.run_dir.name.endswith(f"-s{run.seed}-{planned.identity}")
    run_dir = plan(run, choices={"model": name}).run_dir
    assert run_dir == planned.run_dir


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_as_many_as_fit_pass_what_nocap_check_runs(tmp_path):
    name = ",".join(as_many_as_fit())
    ended = list(results(OptionTrial(group="ideas", name=name, folder=tmp_path)))
    assert [line for line in ended if line[0] == "FAIL"] == []
