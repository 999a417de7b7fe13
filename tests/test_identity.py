"""What makes another run: every line that computes its numbers, and nothing else."""

from __future__ import annotations

import ast
import io
import keyword
import shutil
import signal
import sys
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from nocap.config.compose import compose
from nocap.config.keys import counting, flat
from nocap.config.plain import to_plain
from nocap.measure.bench_arms import step_config
from nocap.store.identity import config_that_counts
from nocap.store.source_hashes import code_digest, is_quiet, module_path, source_hashes
from nocap.training.loop import train
from tests.attempts import attempt, wait_until
from tests.conftest import REPO, SMALL
from tests.test_ideas import trainee_of

PACKAGE = REPO / "nocap"
STACK = (
    "attention=hybrid",
    "attention.pattern=LG",
    "mlp=swiglu",
    "optimizer=muon",
    "objective.z_loss=0.001",
    "model.qk_norm=true",
)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> dict[str, set[int]]:
    """Module → lines that two small runs execute, from their setup to their end."""
    by_file: dict[str, set[int]] = {}

    def look(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return None
        if event == "line":
            by_file.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return look

    few = (
        "trainer.steps=3",
        "trainer.val_every=2",
        "trainer.checkpoint_every=2",
        f"cache_dir={cache_dir}",
    )
    for words in ((), STACK):
        run = compose([*SMALL, *few, *words])
        job, _ = trainee_of(run, tmp_path_factory.mktemp("executed"))
        sys.settrace(look)
        try:
            train(job)
        finally:
            sys.settrace(None)
    by_module = {}
    for path, lines in by_file.items():
        place = Path(path).relative_to(REPO).with_suffix("")
        by_module[".".join(place.parts)] = lines
    return by_module


@cache
def all_hashed() -> set[str]:
    """The modules that count for either run."""
    modules: set[str] = set()
    for words in ((), STACK):
        run = compose([*SMALL, *words])
        modules.update(source_hashes(run))
    return modules


def test_every_module_that_a_run_enters_counts_or_is_quiet_for_a_reason(
    executed: dict[str, set[int]],
):
    modules = {module.removesuffix(".__init__") for module in executed}
    loud = [module for module in modules - all_hashed() if not is_quiet(module)]
    assert loud == []
    expected = {
        "training.step",
        "training.loop",
        "model.gpt",
        "model.sliding",
        "options.optimizer.muon",
    }
    assert modules >= {f"nocap.{name}" for name in expected}


def mutants(source: str, lines: set[int]) -> Iterator[tuple[int, str]]:
    """For each of these lines its text with the last name, number or string made another."""
    last: dict[int, tokenize.TokenInfo] = {}
    words = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        one_line = token.start[0] == token.end[0]
        plain = one_line and "{" not in token.string and not keyword.iskeyword(token.string)
        if token.type in words and plain:
            last[token.start[0]] = token
    text = source.splitlines(keepends=True)
    for number in sorted(lines & last.keys()):
        token = last[number]
        others = {
            tokenize.NAME: f"{token.string}_mutant",
            tokenize.NUMBER: f"{token.string}1",
            tokenize.STRING: f'({token.string} "mutant")',
        }
        line = text[number - 1]
        changed = line[: token.start[1]] + others[token.type] + line[token.end[1] :]
        changed_lines = [*text[: number - 1], changed, *text[number:]]
        yield number, "".join(changed_lines)


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_a_changed_line_makes_another_run(executed: dict[str, set[int]], every: int):
    tried = 0
    survivors = []
    for module in sorted(all_hashed()):
        source = module_path(module).read_text()
        before = code_digest(ast.parse(source))
        text = source.splitlines()
        lines = executed.get(module, set()) | executed.get(f"{module}.__init__", set())
        for number, mutant in list(mutants(source, lines))[::every]:
            tried += 1
            with suppress(SyntaxError):  # not Python: no run either
                same = code_digest(ast.parse(mutant)) == before
                if same:
                    survivors.append(f"{module}:{number}: {text[number - 1].strip()}")
    assert tried > 400 / every  # fewer where other tests have filled the caches of this process
    assert not survivors


# --- what changes no number -----------------------------------------------------------------------


HARMLESS = {
    "a version": ("nocap/__init__.py", '__version__ = "', '__version__ = "9.'),
    "a GPU's peak": ("nocap/config/hardware.py", 'r"A40": (149.7', 'r"A40": (150.7'),
    "a report's word": ("nocap/report/comparison_tables.py", "baseline", "base line"),
    "a comment": ("nocap/training/step.py", "# --- the step ---", "# --- a step ---"),
    "a docstring": ("nocap/training/step.py", '"""', '"""The '),
    "the tracker": (
        "nocap/options/tracker/wandb/mirror_session.py",
        "GRACE_S = 5.0",
        "GRACE_S = 6.0",
    ),
    "the checkpoint's writer": (
        "nocap/training/saving.py",
        "for last_try in (False, True)",
        "for last_try in (False, False, True)",
    ),
    "another option": (
        "nocap/options/position/learned.py",
        "x_BTC + table[where]",
        "x_BTC + 2 * table[where]",
    ),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_changes_no_number_makes_no_other_run(what: str):
    path, old, new = HARMLESS[what]
    source = (REPO / path).read_text()
    module = path.removesuffix(".py").removesuffix("/__init__")
    assert old in source
    before = code_digest(ast.parse(source))
    after = code_digest(ast.parse(source.replace(old, new, 1)))
    assert before == after or module.replace("/", ".") not in all_hashed()


def test_only_the_attention_that_a_run_uses_counts():
    plain = source_hashes(compose(SMALL))
    sliding = source_hashes(compose([*SMALL, "attention=sliding"]))
    assert sliding.items() - plain.items() >= {
        ("nocap.model.sliding", sliding["nocap.model.sliding"])
    }
    assert plain["nocap.model.attention"] == sliding["nocap.model.attention"]
    assert "nocap.model.sliding" not in plain


@pytest.mark.slow
def test_a_half_done_run_under_other_code_is_named(tmp_path: Path):
    checkout = tmp_path / "checkout"  # a copy of the package
    for name in ("nocap", "conf"):
        shutil.copytree(REPO / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    with attempt(tmp_path / "out", path=str(checkout)) as first:
        first.wait_for_file("checkpoints/step-*/manifest.json")
        first.end(signal.SIGKILL)
        half = first.run_dir
    attention = checkout / "nocap" / "model" / "attention.py"
    changed = attention.read_text().replace("/ math.sqrt(D)", "/ math.sqrt(D + 1)")
    attention.write_text(changed)
    with attempt(tmp_path / "out", path=str(checkout)) as second:
        assert second.process.stdout is not None
        note = second.process.stdout.readline()
        wait_until(lambda: len(list((tmp_path / "out" / "runs").iterdir())) == 2, "another run")

    assert note.startswith(f"note: {half} is half done, at step ")
    assert "nocap.model.attention" in note
    assert "starts from scratch" in note


# --- what a key counts for ------------------------------------------------------------------------


def test_a_key_says_once_what_it_counts_for():
    run = compose([*SMALL])
    kept = config_that_counts(run)
    step = step_config(run)
    assert kept["trainer"]["steps"] == 12
    assert "devices" in step["trainer"]
    assert not {"hang_timeout_s", "devices"} & kept["trainer"].keys()
    assert not {"hang_timeout_s", "max_restarts", "steps"} & step["trainer"].keys()
    assert not {"data", "schedule", "tracker", "seed", "output_dir", "cache_dir"} & step.keys()
    assert not {"tracker", "output_dir", "cache_dir"} & kept.keys()
    words = [word for word in SMALL if not word.startswith("data")]
    text = config_that_counts(compose([*words, "data=text", "data.path=somewhere"]))
    assert "path" not in text["data"]
    assert "val_fraction" in text["data"]


# --- keys -----------------------------------------------------------------------------------------

# Of a small run's keys, those that change no number of it: where things lie, how often they are
# saved or shown, and on how many devices it trains.
NO_PART = {
    "cache_dir",
    "output_dir",
    "store.diff",
    "tracker.also",
    "tracker.kind",
    "trainer.checkpoint_every",
    "trainer.devices",
    "trainer.hang_timeout_s",
    "trainer.init_from",
    "trainer.keep_checkpoints",
    "trainer.keep_steps",
    "trainer.log_every",
    "trainer.malloc",
    "trainer.max_restarts",
}


# of the identity where they are not their default: tests/test_documents.py
ADDED = {"data.document_mask", "position.restart"}


def test_every_other_key_is_a_part_of_the_identity() -> None:
    run = compose([*SMALL])
    plain = to_plain(run)
    every = {key for key, _ in flat(plain)}
    counted = {key for key, _ in flat(counting(run, "identity", plain))}
    assert every - counted == NO_PART | ADDED
