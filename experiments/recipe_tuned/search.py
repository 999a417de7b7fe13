"""The search for a better recipe, by the rule of README.md: by time, on code and prose at once,
from several first parts, with as many trials for the baseline.

    python experiments/recipe_tuned/search.py parts  # the sets of ideas, with each optimizer
    python experiments/recipe_tuned/search.py tune baseline  # 8 trials of the baseline's parameters
    python experiments/recipe_tuned/search.py tune soap  # 8 of the best set's with this optimizer
    python experiments/recipe_tuned/search.py again baseline 3   # its best three, another seed
    python experiments/recipe_tuned/search.py past baseline      # beyond the edge of its trials
    # rates at six times the arithmetic, in the recipe's share of the time; and at GPT-2's
    vocabulary python experiments/recipe_tuned/search.py larger muon 0.45 1 0.5 0.25
    python experiments/recipe_tuned/search.py vocabulary muon 0.45 1 0.5 0.25
    python experiments/recipe_tuned/search.py vocabulary muon 1 1 2

Each run becomes a line of search.jsonl. The same command goes on where it stopped.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from nocap.config.arm_defaults import as_in
from nocap.config.compose import composed
from nocap.store.record_files import read_json
from nocap.study.tasks import loss_of, train, trainings

HERE = Path(__file__).parent
ROWS, TIMES = HERE / "search.jsonl", HERE / "search.times.json"
SCALE, STEPS, SEED, TRIALS = "experiment=atlas_cpu", 1536, 100, 8
SHARE = 0.4  # of the baseline's time, of a trial
# the texts of the search, of which the race has none
TEXTS = {"code": ["data=stdlib"], "prose": ["data=text", "data.path=outputs/texts/prose"]}
OPTIMIZERS = {
    "adamw": ["optimizer.lr=0.0037", "optimizer.beta2=0.95"],
    # of experiments/atlas/tuned.json
    "muon": [
        "optimizer=muon",
        "optimizer.lr=0.0015",
        "optimizer.muon_lr=0.0085",
        "optimizer.beta2=0.99",
    ],
    "soap": [
        "optimizer=soap",
        "optimizer.lr=0.0042",
        "optimizer.beta2=0.95",
        "optimizer.basis_every=20",
    ],
}
BASELINE = ["ideas=[]"]  # of experiments/atlas/search.json
# past the baseline's one edge, and beside its best
PAST = ["optimizer.beta2=0.995", "schedule=linear", "optimizer.lr=0.0017", "optimizer.lr=0.0034"]
PARTS = ("swiglu", "partial_key_offset", "ngrams", "smear")
# six times the arithmetic a token, as in experiments/atlas; a head of 50,257. Each with its part of
# tokens
OTHER = {
    "larger": (0.25, ["model.n_layer=6", "model.d_model=256"]),
    "vocabulary": (
        0.125,
        ["tokenizer=gpt2", "objective.loss_chunks=8", "trainer.val_tokens=16384"],
    ),
}
Words = Sequence[str]


def words_of(parts: Sequence[str]) -> list[str]:
    ideas = ",".join(part for part in parts if part != "swiglu")
    return [f"ideas=[{ideas}]", *(["mlp=swiglu"] if "swiglu" in parts else [])]


def named(optimizer: str, parts: Sequence[str]) -> tuple[str, list[str]]:
    return f"{optimizer}: {', '.join(parts)}", [*words_of(parts), *OPTIMIZERS[optimizer]]


def first_sets() -> list[tuple[str, list[str]]]:
    """Of each optimizer: three parts, and these without SwiGLU."""
    return [
        named(optimizer, parts) for optimizer in OPTIMIZERS for parts in (PARTS[:3], PARTS[1:3])
    ]


def next_sets(optimizer: str) -> list[tuple[str, list[str]]]:
    """Without each of the others, and with the fourth."""
    return [named(optimizer, parts) for parts in ((*PARTS[:1], PARTS[2]), PARTS[:2], PARTS)]


def rows(**asked: Any) -> list[dict[str, Any]]:
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    return [row for row in map(json.loads, lines) if all(row[key] == asked[key] for key in asked)]


# --- time -----------------------------------------------------------------------------------------


def of_step(words: Words) -> str:
    """The words that a step's time depends on."""
    slow = (
        "model.",
        "ideas=",
        "mlp=",
        "optimizer=",
        "trainer.batch_tokens=",
        "optimizer.basis_every=",
    )
    slow += ("ideas.ngrams.sizes=", "ideas.ngrams.channels=", "tokenizer=", "objective.")
    as_it_is = {"trainer.batch_tokens=1024"}
    return " ".join(
        sorted(word for word in words if word.startswith(slow) and word not in as_it_is)
    )


def time_all(wanted: Sequence[Words]) -> None:
    """What is not timed, in one bench beside the baseline."""
    known = read_json(TIMES) or {}
    todo = sorted({of_step(words) for words in wanted} - set(known) - {of_step(BASELINE)})
    if not todo:
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        arms = [part for words in ("", *todo) for part in ("--arm", words)]
        command = [
            sys.executable,
            "-m",
            "nocap.bench",
            SCALE,
            *arms,
            "--rounds",
            "20",
            "--json",
            str(out),
        ]
        subprocess.run(command, check=True)
        (_, *timed) = (read_json(out) or {})["arms"]
    for words, arm in zip(todo, timed, strict=True):
        known[words] = arm["speed"]["ratio"]
    TIMES.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def steps_of(words: Words, share: float) -> int:
    """Those that take this share of the baseline's time."""
    batch = next((int(word.split("=")[1]) for word in words if "batch_tokens" in word), 1024)
    speeds = {of_step(BASELINE): 1.0, **(read_json(TIMES) or {})}  # in tokens
    part, size = next((other for other in OTHER.values() if other[1][0] in words), (1.0, []))
    speed = speeds[of_step(words)] / speeds[of_step([*BASELINE, *size])]
    return round(STEPS * part * share * speed * 1024 / batch)


# --- losses ---------------------------------------------------------------------------------------


def losses(phase: str, name: str, words: Words, *, share: float, seed: int) -> dict[str, float]:
    """Of each text, after this share of the baseline's time."""
    known = rows(phase=phase, words=list(words), share=share, seed=seed)
    if known:
        return dict(known[0]["losses"])
    steps = steps_of(words, share)
    base = composed([SCALE])
    arms = {
        text: as_in(base, [SCALE, *data, *words, f"trainer.steps={steps}"])
        for text, data in TEXTS.items()
    }
    runs = trainings(arms, {seed: list(arms)})
    train(runs, "search")
    found = {run.arm: loss_of(record) for run in runs if (record := run.record()) is not None}
    row = {
        "phase": phase,
        "name": name,
        "words": list(words),
        "share": share,
        "steps": steps,
        "seed": seed,
    }
    with ROWS.open("a") as file:
        file.write(json.dumps({**row, "losses": found, "machine": machine(runs[0])}) + "\n")
    return found


def machine(run: Any) -> str:
    return str(run.record().machine[0])


def score(found: Mapping[str, float], seed: int) -> float:
    """How far above the baseline after its whole time, on the mean of texts: 0 is 2.5 times as
    fast."""
    base = losses("baseline", "baseline", BASELINE, share=1.0, seed=seed)
    return mean(found[text] - base[text] for text in TEXTS)


# --- phases ---------------------------------------------------------------------------------------


def parts() -> None:
    try_all(first_sets())
    best = min(rows(phase="parts"), key=lambda row: score(row["losses"], SEED))
    try_all(next_sets(best["name"].split(":")[0]))


def try_all(sets: Sequence[tuple[str, list[str]]]) -> None:
    time_all([words for _, words in sets])
    for name, words in sets:
        found = losses("parts", name, words, share=SHARE, seed=SEED)
        print(f"{name}: {score(found, SEED):+.4f}", flush=True)


def space(of: str, words: Words) -> dict[str, BaseDistribution]:
    lr = {
        "baseline": (1e-3, 1e-2),
        "adamw": (1e-3, 1e-2),
        "muon": (5e-4, 5e-3),
        "soap": (1e-3, 1e-2),
    }[of]
    made: dict[str, BaseDistribution] = {
        "optimizer.lr": FloatDistribution(*lr, log=True),
        "optimizer.beta2": CategoricalDistribution([0.9, 0.95, 0.99]),
        "optimizer.weight_decay": CategoricalDistribution([0.03, 0.1, 0.3]),
        "schedule": CategoricalDistribution(["wsd", "linear"]),
        "trainer.batch_tokens": CategoricalDistribution(
            [512, 1024, 2048] if of == "baseline" else [1024, 2048]
        ),
    }
    if of == "muon":
        made["optimizer.muon_lr"] = FloatDistribution(3e-3, 3e-2, log=True)
    if "ngrams" in words[0]:
        made["ideas.ngrams.lr"] = FloatDistribution(1, 10, log=True)
        made["ideas.ngrams.sizes"] = CategoricalDistribution(
            ["[2,3,4]", "[2,3,4,5]", "[2,3,4,5,6]"]
        )
        made["ideas.ngrams.channels"] = CategoricalDistribution([16, 32])
    return made


def start(of: str) -> list[str]:
    """What the trials set their values on: the best set with this optimizer."""
    if of == "baseline":
        return BASELINE
    best = min(
        (row for row in rows(phase="parts") if row["name"].startswith(of)),
        key=lambda row: score(row["losses"], SEED),
    )
    return list(best["words"])


def tune(of: str) -> None:
    share, first = (1.0 if of == "baseline" else SHARE), start(of)
    values = space(of, first)
    fixed = [word for word in first if word.split("=")[0] not in values]
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=SEED, n_startup_trials=4))
    slow = {key: values[key].choices for key in values if of_step([f"{key}="])}  # type: ignore[attr-defined]
    each = itertools.product(*slow.values())
    time_all([[*fixed, *(f"{key}={x}" for key, x in zip(slow, xs, strict=True))] for xs in each])
    for number in range(TRIALS):
        trial = study.ask(values)
        words = [*fixed, *(f"{key}={rounded(value)}" for key, value in trial.params.items())]
        found = losses(f"tune {of}", f"trial {number}", words, share=share, seed=SEED)
        study.tell(trial, score(found, SEED))
        print(f"{of} {number}: {score(found, SEED):+.4f} {' '.join(words)}", flush=True)


def past() -> None:
    """From the best of the baseline: each change alone."""
    for words in (BASELINE, *([*BASELINE, word] for word in PAST)):
        found = losses("past baseline", words[-1], words, share=1.0, seed=SEED)
        print(f"baseline {words[-1]}: {mean(found.values()):.4f}", flush=True)


def elsewhere(where: str, of: str, share: float, factors: Sequence[float]) -> None:
    """Each side at the other size, by the factor on its rates; not the baseline in a share of its
    time."""
    best = min(rows(phase=f"again {of}"), key=of_two)["words"]
    _, size = OTHER[where]
    sides = {"baseline": (1.0, [*size, *BASELINE]), of: (share, [*size, *best])}
    time_all([words for _, words in sides.values()])
    for side, (whole, words) in sides.items():
        for factor in factors:
            found = losses(
                f"{where} {side}",
                f"rates × {factor}",
                scaled(words, factor),
                share=whole,
                seed=SEED,
            )
            print(f"{side}, rates × {factor}: {mean(found.values()):.4f}", flush=True)


def scaled(words: Words, factor: float) -> list[str]:
    """With the optimizer's rates times a factor; the baseline's is its experiment's."""
    rates = {"optimizer.lr": 0.0024}
    given = (
        word.split("=")
        for word in words
        if word.startswith(("optimizer.lr=", "optimizer.muon_lr="))
    )
    rates |= {key: float(value) for key, value in given}
    return changed(words, *(f"{key}={value * factor:.4g}" for key, value in rates.items()))


def changed(words: Words, *new: str) -> list[str]:
    keys = {word.split("=")[0] for word in new}
    return [*(word for word in words if word.split("=")[0] not in keys), *new]


def of_two(row: Mapping[str, Any]) -> float:
    """The score of a trial that was run again, on both seeds."""
    (first, *_) = rows(words=row["words"], share=row["share"], seed=SEED)
    return mean((score(first["losses"], SEED), score(row["losses"], SEED + 1)))


def rounded(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


def again(of: str, best: int) -> None:
    """The best trials, and what they began with, on another seed."""
    share, seed = (1.0 if of == "baseline" else SHARE), SEED + 1
    first = start(of)
    tried = [*rows(phase=f"tune {of}")]
    if of == "baseline":
        tried += rows(phase="baseline", seed=SEED)
    else:
        tried += rows(phase="parts", words=first)
    for row in sorted(tried, key=lambda row: score(row["losses"], SEED))[:best]:
        found = losses(f"again {of}", row["name"], row["words"], share=share, seed=seed)
        both = mean((score(row["losses"], SEED), score(found, seed)))
        print(f"{of} {row['name']}: {both:+.4f} of two seeds, {' '.join(row['words'])}", flush=True)


def main() -> int:
    match sys.argv[1:]:
        case ["parts"]:
            parts()
        case ["tune", of]:
            tune(of)
        case ["past", "baseline"]:
            past()
        case ["larger" | "vocabulary" as where, of, share, *factors]:
            elsewhere(where, of, float(share), [float(factor) for factor in factors])
        case ["again", of, best]:
            again(of, int(best))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
