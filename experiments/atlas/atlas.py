"""The atlas: what each idea of arms.yaml is worth on the tuned baseline, in phases that go on where they stopped, on any machine.

    python experiments/atlas/atlas.py tune           # searches the rates of the other optimizers: tuned.json
    python experiments/atlas/atlas.py run PHASE      # trains what runs.jsonl lacks, as many runs at once as there are cores
    python experiments/atlas/atlas.py steps          # what a step of each arm costs here: steps.json
    python experiments/atlas/atlas.py tell           # the table of README.md

A run's line in runs.jsonl is its evidence: loss, training curve, config, identity, times, machine. Losses are compared within a block,
which is a machine with a seed and a length: an arm meets the baseline of its own block, so that lines of several machines may lie in one
file. Times are compared within one bench only.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import date
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import yaml
from worth import ADDED, Blocks, added, put, stages, tell

from nocap import bench
from nocap.config import hardware
from nocap.config.compose import Composed, as_in, composed
from nocap.config.errors import EXIT_CODES, refusals
from nocap.config.keys import InputError, flat, require
from nocap.config.plain import to_plain
from nocap.config.trainer import Device
from nocap.launch.grid import Cell
from nocap.launch.search import Sampler, Search, space_of_words
from nocap.launch.searching import Searching
from nocap.options.launcher.pool import Devices
from nocap.show.table import markdown
from nocap.store.record import read_json, write_json
from nocap.store.runs import Record, read
from nocap.study.arms import more, with_seed
from nocap.study.cells import Cells, StoppedError, Wanted

HERE = Path(__file__).resolve().parent
RUNS = HERE / "runs.jsonl"
BASELINE, SCALE = "baseline", "experiment=atlas_cpu"
POINTS = 16  # of a training curve
WHOLE, SCREEN, SHORT = 1.0, 0.5, 0.25
GOES_ON = {1: -0.04, 2: 0.01}  # nats that an idea has to gain on the seeds before this one, on average, to be trained on it too
IDEAS = "ideas=["
TAUGHT = "{taught}"  # in an arm's overrides: the folder of the teacher's run, on this machine

LARGE, SEARCHED, BATCH = "large", "searched", "batch"  # before ideas' names: six times the arithmetic; recipe.py's finds; without its batch
RATES = {"rate": 1.0, "half_rate": 0.5, "quarter_rate": 0.25}  # of the baseline's, after LARGE: a wider model may want a lower one
STACK, RECIPE = HERE / "stack.json", HERE / "recipe.json"
RACED = 0.6  # of the tokens: the recipe's in experiments/recipe_tuned

Job = tuple[int, float, str]  # seed, share of the scale's steps, arm
TUNED_ON = 100  # a seed that no arm is compared on
TEACHER: Job = (TUNED_ON, SCREEN, BASELINE)


@cache
def arms() -> dict[str, dict[str, Any]]:
    """With the winners of their searches."""
    found = {BASELINE: {"with": []}} | yaml.safe_load((HERE / "arms.yaml").read_text())
    winners = {arm: one["with"] for arm, one in tuned().items()}
    for arm, one in found.items():
        one["with"] = [*one["with"], *winners.get(one.get("like", arm), [])]
    return found


def tuned() -> dict[str, Any]:
    return (read_json(TUNED) or {"arms": {}})["arms"]


def stack() -> list[str]:
    """The ideas that stack.py put together."""
    return list((read_json(STACK) or {"stack": []})["stack"])


def joined(*parts: str) -> str:
    return "+".join(parts) or BASELINE


def recipe() -> str:
    return joined(SEARCHED, *stack())


def left_out() -> dict[str, str]:
    """Each part of the recipe → the recipe without it."""
    without = {idea: joined(SEARCHED, *(other for other in stack() if other != idea)) for idea in stack()}
    return without | {"its smaller batch": joined(SEARCHED, BATCH, *stack())}


def large(*ideas: str) -> str:
    """At the best of the rates on a seed that nothing is compared on."""
    of = losses()
    return min((joined(LARGE, rate, *ideas) for rate in RATES), key=lambda arm: of.get((TUNED_ON, SHORT, arm)) or math.inf)


def losses() -> dict[Job, float | None]:
    """`None`: it diverged."""
    return {(one["seed"], one["share"], one["arm"]): one["val_loss"] for one in known()}


def ended(jobs: Iterable[Job]) -> bool:
    return losses().keys() >= set(jobs)


def together() -> list[str]:
    """The arms of several ideas that are timed."""
    return [recipe(), *left_out().values(), large(), large(*stack())]


def is_ready(arm: str) -> bool:
    """Whether it needs no search, or had it."""
    asked = arms()[arm]
    return not {"tune", "like"} & asked.keys() or asked.get("like", arm) in tuned()


def goes_on(arm: str, seed: int) -> bool:
    """Whether the screening has this seed of an idea, by those before it. The baseline has all."""
    if arm == BASELINE or seed == 0:
        return True
    both = [of for (_, other), of in Blocks(SCREEN, known()).losses.items() if other < seed and {BASELINE, arm} <= of.keys()]
    return len(both) >= seed and sum(of[BASELINE] - of[arm] for of in both) / len(both) > GOES_ON[seed]


def phases() -> dict[str, list[Job]]:
    """Seed by seed, the baseline first: what is done of a phase is balanced."""
    return {
        "noise": [(seed, WHOLE, BASELINE) for seed in range(8)],
        "lengths": [(seed, share, BASELINE) for seed in range(3) for share in (SHORT, SCREEN, 0.71)],
        "screen": [(seed, SCREEN, arm) for seed in range(3) for arm in filter(is_ready, arms()) if goes_on(arm, seed)],
        "parts": [(seed, RACED, arm) for seed in range(3) for arm in (recipe(), *left_out().values())],
        "large": [
            *(rates := [(TUNED_ON, SHORT, joined(LARGE, rate, *ideas)) for rate in RATES for ideas in ((), stack())]),
            *((seed, SHORT, arm) for seed in range(3) if ended(rates) for arm in (large(), large(*stack()))),
            *((seed, SHORT / 2, large()) for seed in range(3) if ended(rates)),
        ],
        "whole": [(seed, WHOLE, arm) for seed in range(3) for arm in filter(is_ready, arms())],
    }


# --- running -------------------------------------------------------------------------------------------------------------------------


def known() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def missing(asked: Sequence[Job], *, here: str) -> list[Job]:
    """What no machine has run, with the baselines of their blocks that this machine lacks, before them."""
    done = {(one["seed"], one["share"], one["arm"]) for one in known() if one["arm"] != BASELINE or one["machine"] == here}
    left = [job for job in asked if job not in done]
    with_baselines = [job for seed, share, arm in left for job in ((seed, share, BASELINE), (seed, share, arm))]
    return [job for job in dict.fromkeys(with_baselines) if job not in done]


@cache
def of_arm(arm: str, output_dir: str) -> Composed:
    words = [SCALE, f"output_dir={output_dir}", *(with_teacher(word, output_dir) for word in words_of(arm))]
    return composed(words) if arm == BASELINE else as_in(of_arm(BASELINE, output_dir), words)


def words_of(arm: str) -> list[str]:
    """Its overrides; of several ideas joined by + those of all, where a later one wins."""
    words = list(dict.fromkeys(word for part in arm.split("+") for word in settings_of(part) or arms()[part]["with"]))
    ideas = [idea for word in words if word.startswith(IDEAS) for idea in word[len(IDEAS) : -1].split(",")]
    others = {word.partition("=")[0]: word for word in words if not word.startswith(IDEAS)}
    return [*([f"{IDEAS}{','.join(ideas)}]"] if ideas else []), *others.values()]


@cache
def settings_of(part: str) -> list[str]:
    """The overrides of what is no idea."""
    if part == LARGE:
        return ["model.n_layer=6", "model.d_model=256"]
    if part == SEARCHED:
        return list((read_json(RECIPE) or {"trials": [{"with": []}]})["trials"][0]["with"])
    baseline = composed([SCALE]).run
    if part in RATES:
        return [f"optimizer.lr={baseline.optimizer.lr * RATES[part]}"]
    return [f"trainer.batch_tokens={baseline.trainer.batch_tokens}"] if part == BATCH else []


def with_teacher(words: str, output_dir: str) -> str:
    """Overrides as they are here."""
    return words.replace(TAUGHT, str(teacher(output_dir).of[0][1].plan.run_dir)) if TAUGHT in words else words


@cache
def teacher(output_dir: str) -> Cells:
    return Cells([wanted(TEACHER, output_dir)], label="atlas")


def teach(asked: Iterable[str], output_dir: str) -> None:
    """Train the run that some overrides name, if it is missing."""
    if any(TAUGHT in words for words in asked):
        teacher(output_dir).train()


def wanted(job: Job, output_dir: str) -> Wanted:
    seed, share, arm = job
    whole = of_arm(arm, output_dir)
    steps = round(whole.run.trainer.steps * share)
    short = 0 if share == WHOLE else steps
    return Wanted(arm=arm, seed=seed, short=short, composed=with_seed(more(whole, f"trainer.steps={steps}") if short else whole, seed))


def run_phase(phase: str, output_dir: str) -> int:
    """What one seed shows decides what the next is trained on."""
    asked: list[Job] = []
    while (more_ := phases()[phase]) != asked:
        asked = more_
        if code := run(phase, asked, output_dir):
            return code
    return 0


def run(what: str, asked: Sequence[Job], output_dir: str) -> int:
    """Train what is missing of the jobs.

    Errors:
        ValueError: an arm does not compose.
        StoppedError: somebody asked to stop.
    """
    here = str(hardware.describe(Device.cpu, 1)["fingerprint"])
    todo = missing(asked, here=here)
    print(f"{what}: {len(todo)} runs are missing", flush=True)
    teach((word for _, _, arm in todo for word in words_of(arm)), output_dir)
    failed = 0
    for share in dict.fromkeys(share for _, share, _ in todo):
        jobs = [job for job in todo if job[1] == share]

        def watch(run: Wanted, cell: Cell, event: str, share: float = share) -> None:
            if event in ("finished", "diverged"):
                add(compact(run, read(cell.plan.run_dir, problems=[]), share=share))

        cells = Cells([wanted(job, output_dir) for job in jobs], label="atlas")
        written = {(one["identity"], one["machine"]) for one in known()}
        for run_, record in cells.records([]):  # trained before, and killed before its line
            if (record.identity, here) not in written:
                add(compact(run_, record, share=share))
        failed += sum(result.status == "failed" for result in cells.train(watch=watch).values())
    return 1 if failed else 0


def add(line: Mapping[str, Any]) -> None:
    with RUNS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(
        f"{line['arm']:20} seed {line['seed']} × {line['share']}: {line['status']}, {line['val_loss']}, {line['train_s']:.0f} s", flush=True
    )


def compact(run: Wanted, record: Record, *, share: float) -> dict[str, Any]:
    return {
        "arm": run.arm,
        "seed": run.seed,
        "share": share,
        "status": record.status,
        "val_loss": record.val_loss,
        "train_loss": [round(loss, 4) for loss in curve(record)],
        "tokens": record.number("tokens"),
        "steps": record.number("steps"),
        "train_s": record.train_s,
        "clock_s": record.summary["clock_s"],
        "step_ms": record.value("step_ms"),
        "params": record.value("params"),
        "memory_mib": record.value("memory_mib"),
        "started": record.started,
        "machine": record.machine[0],
        "torch": record.parts["environment"]["torch"],
        "commit": (record.manifest.get("git") or {}).get("commit"),
        "identity": record.identity,
        "with": words_of(run.arm),
        "config": {key: value for key, value in record.config.items() if value != baseline_config().get(key) and not key.endswith(".run")},
    }


def curve(record: Record) -> Iterator[float]:
    """Means of the training loss over so many equal stretches of the steps."""
    for part in stretches(record, POINTS):
        yield mean([row["train/loss"] for row in part])


def stretches(record: Record, points: int) -> Iterator[list[dict[str, Any]]]:
    """A run's training steps in so many parts of equal length."""
    rows = [row for row in map(json.loads, (record.folder / "metrics.jsonl").read_text().splitlines()) if "train/loss" in row]
    edges = [round(i * len(rows) / points) for i in range(points + 1)]
    for low, high in pairwise(edges):
        if high > low:
            yield rows[low:high]


@cache
def baseline_config() -> dict[str, Any]:
    return dict(flat(to_plain(of_arm(BASELINE, "outputs").run)))


# --- the other optimizers' searches --------------------------------------------------------------------------------------------------

TUNED = HERE / "tuned.json"
SEARCH = Search(sampler=Sampler.tpe, trials=12, seed=TUNED_ON)  # of each
TUNED_AT = SHORT  # whole schedules


def searched(search: Search, base: Composed, space: Sequence[str], label: str) -> list[dict[str, Any]]:
    """A search's trials, the best first.

    Errors:
        StoppedError: somebody asked to stop; the same command goes on.
    """
    searching = Searching(search, space_of_words(space, label), fixed=base.overrides, compose=composed, base=base, seeds=[search.seed])
    searching.run(Devices(jobs=None))
    if searching.stopped:
        raise StoppedError("stopped; the same command goes on")
    trials = sorted(searching.trials(), key=lambda trial: trial.order)
    return [{"with": list(one.words), "status": one.status, "screened": one.screened, "val_loss": one.val_loss} for one in trials]


def tune(output_dir: str) -> int:
    """
    Errors:
        StoppedError: somebody asked to stop; the same command goes on.
    """
    kept = tuned()
    for arm, asked in arms().items():
        if "tune" not in asked or arm in kept:
            continue
        base = of_arm(arm, output_dir)
        base = more(base, f"trainer.steps={round(base.run.trainer.steps * TUNED_AT)}")
        shown = searched(SEARCH, base, asked["tune"], arm)
        kept[arm] = {"with": shown[0]["with"], "date": date.today().isoformat(), "share": TUNED_AT, "seed": SEARCH.seed, "trials": shown}
        write_json(TUNED, {"arms": kept})
        print(f"{arm}: {' '.join(shown[0]['with'])} ends at {shown[0]['val_loss']}", flush=True)
    return 0


# --- steps ---------------------------------------------------------------------------------------------------------------------------

STEPS = HERE / "steps.json"
KEPT = ("status", "reason", "speed", "speed_by_flops", "step_ms", "flops_per_token", "params")  # of one in a bench
TOGETHER = 6  # in one interleaved bench, each beside the baseline's


def steps(rounds: int, output_dir: str) -> int:
    """A bench for every few steps, each written as it ends; what is there is not timed again."""
    kept = read_json(STEPS) or {"steps": {}}
    alone = [words for arm in arms() if is_ready(arm) for _, words in stages(arms()[arm])]
    asked = dict.fromkeys([*alone, *(shlex.join(words_of(arm)) for arm in together())])
    left = [words for words in asked if words and words not in kept["steps"]]
    teach(left, output_dir)
    for few in (left[i : i + TOGETHER] for i in range(0, len(left), TOGETHER)):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "bench.json"
            each = [word for words in few for word in ("--arm", with_teacher(words, output_dir))]
            argv = [SCALE, "--arm", "", *each, "--rounds", str(rounds), "--json", str(out)]
            print(f"python -m nocap.bench {shlex.join(argv)}", flush=True)
            code = bench.main(argv)
            found = read_json(out)
        if found is None:
            return code
        kept["steps"] |= {words: {key: one.get(key) for key in KEPT} for words, one in zip(few, found["arms"][1:], strict=True)}
        kept |= {"date": date.today().isoformat(), "hardware": found["hardware"], "rounds": rounds}
        write_json(STEPS, kept)
    return 0


def files_of(arm: str) -> set[str]:
    """Of the classes of its options."""
    run = of_arm(arm, "outputs").run
    options = [getattr(run, field.name) for field in fields(run)]
    return {
        inspect.getfile(type(option)) for option in [*options, *run.ideas.values()] if type(option).__module__.startswith("nocap.options")
    }


def lines_of(arm: str) -> int:
    """Of the files that it needs and the baseline does not."""
    return sum(len(Path(file).read_text().splitlines()) for file in files_of(arm) - files_of(BASELINE))


def told() -> int:
    """All that follows from the lines: README.md's tables, and the figure."""
    tell(known(), arms(), timed(), {arm: lines_of(arm) for arm in arms()})
    for mark, rows in of_recipe().items():
        put(mark, rows)
    return 0


def of_recipe() -> dict[str, list[str]]:
    """Tables by their marks: what its parts are worth, and what the stack is worth at the larger size."""
    steps, words = timed(), {arm: shlex.join(words_of(arm)) for arm in together()}
    parts, larger = Blocks(RACED, known()), Blocks(SHORT, known())
    rows = [[part, *added(parts, recipe(), without, words, steps)] for part, without in left_out().items()]
    over = added(larger, large(*stack()), large(), words, steps, slope_of=large())
    return {"the parts": markdown(("part", *ADDED), rows), "the larger size": markdown(ADDED, [over])}


def parser_of(page: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="outputs", metavar="DIR", help="of the runs (default: outputs)")
    return parser


def carried_out(do: Callable[[], int]) -> int:
    """An exit code: what is refused, or asked to stop, says so in a line."""
    with refusals():
        try:
            return do()
        except StoppedError as stopped:
            print(f"nocap: {stopped}", file=sys.stderr)
            return EXIT_CODES["preempted"]


def timed() -> dict[str, Any]:
    """steps.json.

    Errors:
        ValueError: it is not there.
    """
    found = read_json(STEPS)
    if found is None:
        raise InputError(f"{STEPS} must be there (atlas.py steps), got none")
    return found


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=("tune", "run", "steps", "tell"))
    parser.add_argument("phase", nargs="?", choices=phases())
    parser.add_argument("--rounds", type=int, default=40, metavar="N", help="of each bench (default: 40)")
    options = parser.parse_args()

    def do() -> int:
        require((options.phase is None) is (options.what != "run"), "PHASE", "be given to run, and to nothing else", options.phase)
        if options.what == "run":
            return run_phase(options.phase, options.output_dir)
        if options.what == "tune":
            return tune(options.output_dir)
        if options.what == "steps":
            return steps(options.rounds, options.output_dir)
        return told()

    return carried_out(do)


if __name__ == "__main__":
    sys.exit(main())
