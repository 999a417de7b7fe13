"""Searches: what is proposed, what a kill leaves, and what is told of a trial; on losses that
nobody trained for."""

import json
import math
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.trial import create_trial

from nocap.config.compose import composed
from nocap.config.flags import GridFlags, parse
from nocap.config.trainer import Device, Sampler, Search
from nocap.launch import search as searching
from nocap.launch.multirun import multirun
from nocap.launch.plan import Plan
from nocap.launch.run_folder import End
from nocap.launch.search import options_in, plan_search
from nocap.launch.search_space import describe, ends, propose, space_of, words_of
from nocap.launch.this_machine import ThisMachine, one_at_a_time
from nocap.store import lease
from nocap.store.file_writing import write_file
from nocap.store.grid_file import GRID
from tests.grids import CELL, summaries, trained
from tests.in_process import TINY

LR = "optimizer.lr=tag(log, interval(1e-4, 1e-1))"
ARM = "attention=flash,gqa"


def space(*words):
    return space_of(OverridesParser.create().parse_overrides(list(words)))


# --- what is asked --------------------------------------------------------------------------------


def test_the_words_of_a_search_are_taken_from_a_grids():
    words = ["attention=gqa", "search=random", LR, "search.trials=40", "search.seed=7"]
    search, others = options_in(words)
    assert search == Search(sampler=Sampler.random, trials=40, seed=7)
    assert others == ["attention=gqa", LR]
    assert options_in(["attention=gqa,mha"]) == (None, ["attention=gqa,mha"])
    assert options_in(["search=tpe"])[0] == Search(sampler=Sampler.tpe)


def test_a_search_is_asked_for_with_a_plus_too():
    words = ["+search=tpe", "+search.trials=3"]
    assert options_in([*words, "+seed=4"]) == (Search(sampler=Sampler.tpe, trials=3), ["+seed=4"])
    assert parse(words).is_grid
    assert not parse(["+seed=4", "seed.search=1"]).is_grid


WRONG_SEARCHES = [
    (["search=sobol"], "search.sampler: Invalid value 'sobol', expected one of [tpe, random]"),
    (["search.trials=3"], "search.sampler must have a value"),
    (["search=tpe", "search.trialz=3"], "search.trialz is no key of search (did you mean trials?)"),
    (["search=tpe", "search.trials=0"], "search.trials must be at least 1, got 0"),
    (
        ["search=tpe", "search.seed=[1]"],
        "search.seed: Value '[1]' of type 'ListConfig' could not be converted to Integer",
    ),
    (["search=tpe", "search.seed=-1"], "search.seed must be at least 0, got -1"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG_SEARCHES)
def test_a_wrong_key_or_value_of_a_search(words, reason):
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        options_in(words)


SWEEPS = [
    ("optimizer.lr=interval(1e-4, 1e-2)", "0.0001 to 0.01"),
    (LR, "0.0001 to 0.1, log"),
    ("a=int(interval(1, 8))", "1 to 8, whole numbers"),
    ("a=int(tag(log, interval(16, 1024)))", "16 to 1024, whole numbers, log"),
    ("a=range(64, 257, 64)", "64 to 256, in steps of 64"),
    ("a=range(5, 1, -1)", "2 to 5, whole numbers"),
    ("a=range(0, 0.4, 0.1)", "0.0 to 0.3, in steps of 0.1"),  # Hydra's own floats reach the stop
    ("attention=flash,gqa", "flash, gqa"),
    ("ideas=[x],[y,z]", "[x], [y,z]"),
    ("a=choice(1, 2, 1)", "1, 2"),
]


@pytest.mark.parametrize(("word", "described"), SWEEPS)
def test_hydras_sweeps_are_a_space(word, described):
    described_as = [describe(distribution) for distribution in space(word).values()]
    assert described_as == [described]


EMPTY_SPACES = [
    ("a=interval(2, 1)", "a must be an interval from a lower number to a higher"),
    ("a=interval(0, inf)", "a must be an interval from a lower number to a higher"),
    ("a=tag(log, interval(0, 1))", "a must be above 0, because the search takes its logarithm"),
    ("a=tag(linear, interval(0, 1))", "a must have no tag except log of an interval"),
    ("a=tag(log, range(1, 9))", "a must have no tag except log of an interval"),
    ("a=shuffle(1, 2)", "a must not be shuffled"),
    ("a=range(1, 2)", "a must be a range of at least two"),
    ("a=range(1, 2, 0)", "a must be a range of numbers with a step"),
]


@pytest.mark.parametrize(("word", "reason"), EMPTY_SPACES)
def test_what_nothing_can_be_drawn_from(word, reason):
    with pytest.raises(ValueError, match=f"^{reason}"):
        space(word)


# --- what is proposed -----------------------------------------------------------------------------

MIXED = space(
    LR, "a=int(interval(1, 8))", "b=int(tag(log, interval(1, 64)))", "c=range(0, 1, 0.25)", ARM
)


def drawn(search, space, n, loss=lambda params: 0.0):
    trials = []
    for _ in range(n):
        params = propose(search, space, trials)
        # which refuses what is not in the space
        create_trial(params=dict(params), distributions=space, value=0.0)
        trials.append((params, loss(params)))
    return trials


@pytest.mark.parametrize("sampler", Sampler)
def test_a_seed_gives_the_same_trials_bit_for_bit(sampler):
    n = 12 if sampler is Sampler.tpe else 5  # TPE's first ten are random

    def points_of(seed: int) -> list[Any]:
        search = Search(sampler=sampler, seed=seed)
        return [params for params, _ in drawn(search, MIXED, n, lambda trial: trial["a"])]

    first = points_of(1)
    again = points_of(1)
    other = points_of(2)

    assert again == first
    for a, b in zip(first, other, strict=True):
        assert a != b
    assert len({repr(point) for point in first}) == n


@pytest.mark.slow
def test_every_value_of_a_mixed_space_is_reached():
    points = [params for params, _ in drawn(Search(sampler=Sampler.random), MIXED, 64)]
    expected = set(range(1, 9))
    assert {point["a"] for point in points} == expected
    assert {point["c"] for point in points} == {0.0, 0.25, 0.5, 0.75}
    attentions = {point["attention"] for point in points}
    assert attentions == {"flash", "gqa"}
    # by their logarithms: half of 64 draws, and four standard deviations at most away
    low = [point["b"] < 8 for point in points]
    assert 0.25 < np.mean(low) < 0.75
    slow = [point["optimizer.lr"] < 10**-2.5 for point in points]
    assert 0.25 < np.mean(slow) < 0.75
    # what can be typed is what is trained
    for point in points:
        assert float(f"{point['optimizer.lr']:.6g}") == point["optimizer.lr"]
    words = words_of(MIXED, {**points[0], "optimizer.lr": 1e-4})
    assert words[0] == "optimizer.lr=0.0001"


def test_a_trial_that_runs_counts_as_bad():
    """Twelve trials say that the bottom is near ½. Two that run there already keep the next one
    away."""
    line = space("x=interval(0, 1)")
    search = Search(sampler=Sampler.tpe, seed=3)
    before = drawn(search, line, 12, lambda params: float((params["x"] - 0.5) ** 2))
    running = ({"x": 0.5}, None)

    def away(others):
        proposed = []
        for seed in range(20):
            seeded = replace(search, seed=seed)
            proposed.append(propose(seeded, line, [*before, *others])["x"])
        middles = [abs(x - 0.5) for x in proposed]
        return float(np.median(middles))

    assert away([running] * 2) > 1.5 * away([])


def test_the_ends_of_a_space_are_each_tried_once():
    expected = [("a=1", "attention=flash"), ("a=8", "attention=flash"), ("a=1", "attention=gqa")]
    assert ends(space("a=int(interval(1, 8))", ARM)) == expected


# --- carried out ----------------------------------------------------------------------------------

OWN = ("optimizer.lr", "seed", "trainer.steps", "trainer.micro_batch", "output_dir")


@cache
def _composed(words):
    return composed(words)


def quickly(words):
    """As `composed` does, in less time where only these keys differ, after the folder."""
    at = next(i for i, word in enumerate(words) if word.startswith("output_dir="))
    own = {
        name: word.partition("=")[2]
        for word in words[at:]
        if (name := word.partition("=")[0]) in OWN
    }
    shared = _composed(
        (*words[:at], *(word for word in words[at:] if word.partition("=")[0] not in OWN))
    )
    trainer = {}
    for key in ("steps", "micro_batch"):
        if f"trainer.{key}" in own:
            trainer[key] = int(own[f"trainer.{key}"])
    lr = float(own.get("optimizer.lr", 1e-3))
    optimizer = replace(shared.run.optimizer, lr=lr)
    seed = int(own.get("seed", 0))
    own_trainer = replace(shared.run.trainer, **trainer)
    output_dir = own["output_dir"].strip("'")
    run = replace(
        shared.run, seed=seed, output_dir=output_dir, optimizer=optimizer, trainer=own_trainer
    )
    return replace(shared, overrides=tuple(words), run=run)


class Kill(BaseException):
    """What ends a process in the middle of a trial."""


class Trainer:
    """In place of the runner and the records: a run's loss is a function of its config, infinite
    where it diverges."""

    def __init__(self, loss):
        self.loss = loss
        self.ends = {}
        self.trained: list[str] = []
        self.kill_at: int | None = None

    def end(self, plan):
        return End(summary=self.ends.get(plan.identity))

    def __call__(self, grid, executor, *, more=tuple, total=0):
        self.grid = grid
        self.more = more
        self.stopping = False
        return self

    def run(self):
        waiting = list(self.grid.cells)
        while waiting or (waiting := list(self.more())):
            for cell in waiting:
                if cell.plan.identity not in self.ends:
                    if len(self.trained) == self.kill_at:
                        raise Kill
                    self.trained.append(cell.label)
                    loss = self.loss(cell.plan.run)
                    if math.isfinite(loss):
                        status = "finished"
                    else:
                        status = "diverged"
                    self.ends[cell.plan.identity] = {
                        "status": status,
                        "val_loss": loss if math.isfinite(loss) else None,
                    }
            waiting = []
        return {}


@pytest.fixture
def fake(monkeypatch):
    # most of a cell's milliseconds
    monkeypatch.setattr("nocap.store.identity.source_hashes", lambda *args: {})

    def made(loss):
        trainer = Trainer(loss)
        monkeypatch.setattr(searching, "Runner", trainer)
        monkeypatch.setattr(Plan, "end", lambda plan: trainer.end(plan))
        return trainer

    return made


def a_search(out, search, *words, fixed=()):
    return plan_search(
        search,
        space(*(words or (LR,))),
        fixed=[*TINY, *fixed, f"output_dir={out}"],
        compose=quickly,
    )


def carried(search, devices=None):
    search.run(devices or one_at_a_time(), log=lambda line: None)
    return search


def bowl(run):
    return float((math.log10(run.optimizer.lr) + 2.5) ** 2)


def test_a_killed_search_goes_on_with_the_trials_that_it_would_have_had(tmp_path, fake):
    search = Search(sampler=Sampler.tpe, trials=13)
    fake(bowl)
    whole = []
    for trial in carried(a_search(tmp_path / "whole", search)).trials():
        whole.append((trial.words, trial.val_loss))
    losses = sorted(loss for _, loss in whole)
    assert [loss for _, loss in whole] == losses
    trainer = fake(bowl)
    for trainer.kill_at in (0, 12, None):
        with pytest.raises(Kill) if trainer.kill_at is not None else nullcontext():
            carried(a_search(tmp_path / "cut", search))
    again = a_search(tmp_path / "cut", search)
    again.update()
    assert [(trial.words, trial.val_loss) for trial in again.trials()] == whole
    # each once
    expected = list(range(1, 14))
    numbers = sorted(int(label.split()[1].rstrip(":")) for label in trainer.trained)
    assert numbers == expected
    # more trials are the same search
    cut = a_search(tmp_path / "cut", replace(search, trials=15))
    assert len(carried(cut).trials()) == 15
    assert len(trainer.trained) == 15


def test_other_questions_are_other_searches(tmp_path):
    search = Search(sampler=Sampler.random)

    def name_of(*words: Any, fixed: Any = ()) -> str:
        return a_search(tmp_path, *words, fixed=fixed).grid.name

    first = name_of(search)
    longer = name_of(replace(search, trials=3))
    others = [
        name_of(replace(search, sampler=Sampler.tpe)),
        name_of(replace(search, seed=1)),
        name_of(search, "optimizer.lr=interval(1e-4, 1e-1)"),
        name_of(search, fixed=["mlp=relu2"]),
    ]

    assert first.startswith("search-lr-")
    assert longer == first
    assert len({first, *others}) == 5


def test_the_same_trial_twice_is_one_run_and_both_are_told(tmp_path, fake):
    trainer = fake(lambda run: 1.0 + run.attention.n_kv_heads)
    search = carried(
        a_search(tmp_path, Search(sampler=Sampler.random, trials=6), "attention=mqa,mha")
    )
    losses = []
    for trial in search.trials():
        losses.append(2.0 if "attention=mqa" in trial.words else 3.0)
    assert [trial.val_loss for trial in search.trials()] == sorted(losses)
    text = (search.grid.folder / GRID).read_text()
    listed = json.loads(text)
    assert len(trainer.trained) == 2
    assert len(listed["trials"]) == 6
    assert len(listed["cells"]) == 2


def test_diverged_and_impossible_trials_are_the_worst_and_named(tmp_path, fake):
    said = []
    fake(lambda run: math.inf if run.optimizer.lr > 1e-2 else run.optimizer.lr)
    # of a batch of 64 tokens and a length of 16: not 3
    keys = (LR, "trainer.micro_batch=int(interval(1, 4))")
    sampled = Search(sampler=Sampler.random, trials=16)
    searched = a_search(tmp_path, sampled, *keys)
    searched.run(one_at_a_time(), log=said.append)
    order = ["finished", "diverged", "refused"]
    status = [trial.status for trial in searched.trials()]
    assert set(status) == set(order)
    assert status == sorted(status, key=order.index)
    for trial in searched.trials():
        lr = float(trial.words[0].partition("=")[2])
        if trial.words[1] == "trainer.micro_batch=3":
            assert trial.status == "refused"
        else:
            assert trial.status == ("diverged" if lr > 1e-2 else "finished")
        assert (trial.val_loss == lr) == (trial.status == "finished")
    rule = (
        "cannot be trained, and the search counts this as its result: trainer.batch_tokens "
        "must be divisible by "
    )
    expected = [True] * status.count("refused")
    assert [rule in line for line in said] == expected
    assert (
        searched.trials()[-1].row()[-1].startswith("cannot be trained: trainer.batch_tokens must")
    )
    text = (searched.grid.folder / GRID).read_text()
    listed = json.loads(text)["trials"]
    reasons = [trial["reason"] for trial in listed if trial["status"] == "refused"]
    (refused,) = {reason.partition(" must ")[0] for reason in reasons}
    assert refused == "trainer.batch_tokens"


def test_the_table_has_the_ten_lowest_losses(tmp_path, fake):
    fake(bowl)
    searched = carried(a_search(tmp_path, Search(sampler=Sampler.random, trials=12)))
    head, *rows, empty, note = searched.table().splitlines()
    assert head.split() == ["trial", "val", "loss", "optimizer.lr"]
    numbers = [trial.number for trial in searched.trials()[:10]]
    assert [int(row.split()[0]) for row in rows] == numbers
    lowest = searched.trials()[0]
    words = rows[0].split()[1:]
    expected = [f"{lowest.val_loss:.4f}", lowest.words[0].partition("=")[2]]
    assert words == expected
    assert empty == ""
    assert note == "the search chose on seed 100 alone; compare the best settings on other seeds"


def test_a_pool_asks_for_batches_and_a_kill_changes_none(tmp_path, fake):
    trainer = fake(bowl)
    search = Search(sampler=Sampler.tpe, trials=15)
    pool = ThisMachine(jobs=4, units={device: [] for device in Device})
    done = carried(a_search(tmp_path / "whole", search), pool)
    whole = [trial.words for trial in done.trials()]
    assert len(trainer.trained) == 15
    assert len(set(whole)) == 15
    trainer = fake(bowl)
    for trainer.kill_at in (2, 13, None):
        with pytest.raises(Kill) if trainer.kill_at else nullcontext():
            carried(a_search(tmp_path / "cut", search), pool)
    again = a_search(tmp_path / "cut", search)
    again.update()
    assert [trial.words for trial in again.trials()] == whole


WRONG_ENDS = [
    (("optimizer.lr=interval(-1, 1)",), "optimizer.lr must be above 0, got -1.0"),
    (
        ("trainer.batch_tokens=interval(64, 128)",),
        "trainer.batch_tokens: Value '64.0' of type 'float' could not be converted to Integer",
    ),
    (
        ("trainer.log_every=1,2",),
        "search must have only keys and values that change the run, got trainer.log_every=2",
    ),
    (
        (),
        "search must have a key to search, as in 'optimizer.lr=tag(log, interval(1e-4, "
        "1e-2))', got none",
    ),
]


@pytest.mark.parametrize(("words", "reason"), WRONG_ENDS)
def test_the_ends_are_checked_before_the_first_trial(tmp_path, words, reason):
    fixed = [*TINY, f"output_dir={tmp_path}"]
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        plan_search(Search(sampler=Sampler.tpe), space(*words), fixed=fixed, compose=composed)
    assert not list(tmp_path.iterdir())


def test_one_process_carries_out_a_search_and_its_file_is_its_own(tmp_path, fake):
    fake(bowl)
    search = a_search(tmp_path, Search(sampler=Sampler.random, trials=1))
    write_file(search.grid.folder / GRID, b"no JSON")
    with (
        lease.acquire(search.grid.folder),
        pytest.raises(lease.HeldError, match="must have one writer"),
    ):
        carried(search)
    with pytest.raises(ValueError, match=rf"{GRID} must hold a JSON object"):
        carried(search)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("seed=0,1", "optimizer.lr=0.1,0.2"), "seed does not work in a search: set search.seed"),
        (
            ("attention=gqa", "hydra/launcher=ray"),
            "hydra/launcher must be basic or pool in a search",
        ),
    ],
)
def test_a_multirun_refuses_what_no_search_takes(words, reason, tmp_path):
    with pytest.raises(ValueError, match=f"^{reason}"):
        multirun([*TINY, "search=tpe", f"output_dir={tmp_path}", *words], GridFlags())
    assert not list(tmp_path.iterdir())


def test_what_a_search_leaves_is_read_as_a_grid(tmp_path, fake):
    fake(bowl)
    search = carried(a_search(tmp_path, Search(sampler=Sampler.random, trials=4)))
    paths = search.grid.folder.iterdir()
    assert [path.name for path in paths] == [GRID]
    text = (search.grid.folder / GRID).read_text()
    written = json.loads(text)
    expected = {"sampler": "random", "trials": 4, "seed": 100, "seeds": [100]}
    assert written["search"] == expected
    assert written["space"] == {"optimizer.lr": "0.0001 to 0.1, log"}
    cells = [(cell["seed"], cell["overrides"][-1]) for cell in written["cells"]]
    trials = [(100, trial["overrides"][0]) for trial in written["trials"]]
    assert cells == trials


def test_a_search_may_set_what_only_its_trials_make_possible(tmp_path, fake):
    """No run has the fixed keys alone: four heads, which is the default, do not divide this
    width."""
    trainer = fake(lambda run: float(run.model.n_head))
    fixed = (*TINY, "model.d_model=18", f"output_dir={tmp_path}")
    with pytest.raises(ValueError, match=r"^model\.d_model must "):
        composed([word for word in fixed if not word.startswith("model.n_head")])
    multirun([*fixed, "model.n_head=3,9", "search=random", "search.trials=4"], GridFlags())
    assert len(trainer.trained) == 2


# --- in whole -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_in_a_pool(tmp_path, here):
    """One trial of which is broken: it stops nobody, and only it runs again."""
    # the last checkpoint, without which the broken one has ended
    kept = (
        *CELL,
        "trainer.keep_steps=[3]",
    )
    words = (
        "--multirun",
        *kept,
        "search=random",
        "search.trials=3",
        LR,
        ARM,
        "hydra/launcher=pool",
    )
    words = (*words, "hydra.launcher.jobs=1", "output_dir=out")
    keys = space(LR, ARM)
    fixed = [*kept, f"output_dir={tmp_path / 'out'}"]
    three = Search(sampler=Sampler.random, trials=3)
    first = plan_search(three, keys, fixed=fixed, compose=composed)
    first_words = words_of(keys, propose(first.search, keys, []))
    cell = first.trial(1, first_words).cell
    cell.plan.run_dir.mkdir(parents=True)
    (cell.plan.run_dir / "checkpoints").write_text("a file where the worker makes a folder")
    done = here(*words)
    assert done.code == 1
    assert len(trained(done.out)) == 3
    assert done.err.startswith("nocap: not finished: trial 1: optimizer.lr=")
    head, *space_, _ = done.out.splitlines()[:4]
    assert re.fullmatch(r"search-lr-attention-\w{12}: random, 3 trials on seed 100", head)
    assert space_ == ["  optimizer.lr: 0.0001 to 0.1, log", "  attention: flash, gqa"]
    (file,) = tmp_path.glob("out/grids/*/grid.json")
    trials = json.loads(file.read_text())["trials"]
    statuses = [trial["status"] for trial in trials]
    assert statuses == ["finished", "finished", "open"]
    (cell.plan.run_dir / "checkpoints").unlink()
    again = here(*words)
    assert again.code == 0
    assert len(trained(again.out)) == 1
    assert "3 finished; 1 trained now" in again.out
    assert (
        "the search chose on seed 100 alone; compare the best settings on other seeds" in again.out
    )
    states = {(each["seed"], each["status"]) for each in summaries(tmp_path / "out").values()}
    assert states == {(100, "finished")}
    compared = here(str(file.parent), module="nocap.compare")
    assert compared.code == 0, compared
    assert "3 arms from 3 runs" in compared.out, compared
    single = here(*CELL, *trials[0]["overrides"], "seed=100", "output_dir=out")
    assert single.out.startswith("the run has already finished"), single
