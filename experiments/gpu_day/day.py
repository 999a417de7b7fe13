"""A GPU day: what only a GPU can answer, in steps of a few minutes, the most telling first. See
README.md beside this file.

    python experiments/gpu_day/day.py [STEP …] [--out DIR] [--only-failed] [--challenge DIR]
        [--share X] [--device cuda|cpu] [--small]

A step is a process with a time limit. Its exit code, seconds, the end of its output and the name of
its JSON are in day.json before the next step begins; its output as it goes is in STEP.log. A step
that fails stops no other. Exit code 0: all went well; 1: a step failed; 2: the machine lacks what
no step can do without, or a step's name is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # nocap need not be installed

from nocap.config import hardware  # noqa: E402
from nocap.store.file_writing import write_text  # noqa: E402

TAIL_LINES = 30
GRACE_S = 10.0  # between a request to stop and the end
TOOLS = ("pytest", "pytest-timeout")  # needed beside nocap's own dependencies
IDLE = ("huggingface_hub", "plotly", "wandb")  # of those, what no step uses

# --- what is measured: the shapes, and the arms of the bench, the baseline first. A new option is a
# line here

D12 = (
    "model=d12 tokenizer=gpt2 trainer.micro_batch=16 trainer.batch_tokens=32768 "
    "trainer.compile=regional "
    "trainer.cuda_graphs=false"
)
NANO = (
    # --small: shows that the commands work, and nothing else
    "model=nano tokenizer=bytes trainer.micro_batch=2 trainer.batch_tokens=256 trainer.compile=off"
)
# what each gave by itself, 2 to 7%, together
BEST = "trainer.micro_batch=32 trainer.compile=full model.fp8_head=true model.n_head=6"
# what a study may compare: one session of them each time
OPTIONS = (
    "attention=flash",
    "attention=gqa",
    "mlp=gelu3x",
    "attention=gqa mlp=gelu3x",
    "model.n_head=6",
    "model.fp8_head=true",
    "trainer.micro_batch=32",
    "attention=mqa",
    "attention=sliding",
    "mlp=swiglu",
    "attention=mha",
    "attention=hybrid",
)
AT_NANO = {"model.n_head=6": "model.n_head=2", "trainer.micro_batch=32": "trainer.micro_batch=1"}
NEEDS = {
    "attention=sliding": (7, 0),
    "attention=hybrid": (7, 0),
    "model.fp8_head=true": (8, 9),
}  # capability


@dataclass(frozen=True, kw_only=True)
class Day:
    """What the steps share."""

    out: Path  # gets the JSON
    scratch: Path  # goes away
    device: str
    small: bool
    share: float = 1.0  # of the time of each bench
    challenge: Path | None

    @property
    def shape(self) -> list[str]:
        return [*(NANO if self.small else D12).split(), f"trainer.device={self.device}"]

    def seconds(self, whole: float) -> str:
        """Of a bench."""
        return "40" if self.small else f"{whole * self.share:g}"

    @property
    def how(self) -> list[str]:
        """For the scripts of this folder."""
        return ["--device", self.device, *(["--small"] if self.small else [])]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A process: the words after `python`, given the path of the JSON that it writes."""

    limit_s: int
    words: Callable[[Day, Path], list[str]]
    figure: Callable[[dict[str, Any]], str] = lambda output: (
        ""
    )  # a line of the summary, from the JSON
    skip: Callable[[Day], str] = lambda day: ""  # why not here; empty: it runs


def script(name: str, *words: str) -> Callable[[Day, Path], list[str]]:
    return lambda day, path: [str(HERE / name), *words, *day.how, "--json", str(path)]


def bench(arms: Sequence[str], seconds: float) -> Callable[[Day, Path], list[str]]:
    """Of these arms in the day's shape, but those that the GPU cannot have."""

    def words(day: Day, path: Path) -> list[str]:
        there = hardware.capability() if day.device == "cuda" else None
        kept = [arm for arm in arms if there is None or there >= NEEDS.get(arm, (0, 0))]
        if day.small:
            kept = [AT_NANO.get(arm, arm) for arm in kept if arm != "model.fp8_head=true"]
        flags = [word for arm in kept for word in ("--arm", arm)]
        how = ["--seconds", day.seconds(seconds), "--json", str(path)]
        return ["-m", "nocap.bench", *day.shape, *flags, *how]

    return words


def profile(day: Day, path: Path) -> list[str]:
    """Of the best, which also shows that a profile ends with 0."""
    best = [] if day.small else BEST.split()
    return ["-m", "nocap.profile", *day.shape, *best, "--json", str(path)]


def tests(day: Day, path: Path) -> list[str]:
    files = [
        str(file)
        for file in sorted((ROOT / "tests").glob("test_*.py"))
        if "mark.gpu" in file.read_text()
    ]
    how = ["--collect-only"] if day.small else ["-n", "8"] if _version("pytest-xdist") else []
    return [
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        "-m",
        "gpu",
        "-v",  # a line a test, for a step that is cut
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",  # whose warning beside xdist would be an error
        *how,
        *files,
    ]


def challenge(*changes: str) -> Callable[[Day, Path], list[str]]:
    """Against nocap's baseline with these changes."""

    def words(day: Day, path: Path) -> list[str]:
        own = [AT_NANO.get(word, word) for word in changes] if day.small else [*changes]
        return [str(HERE / "challenge.py"), str(day.challenge), *own, *day.how, "--json", str(path)]

    return words


def no_challenge(day: Day) -> str:
    if day.challenge is None:
        return "--challenge names no folder with the challenge's train_gpt2.py"
    return (
        ""
        if (day.challenge / "train_gpt2.py").is_file()
        else f"there is no train_gpt2.py in {day.challenge}"
    )


# --- a line of each for the summary


def _grid(output: dict[str, Any]) -> str:
    """What a cell took beside its training: the first, and the median of those whose arm was
    compiled."""
    beside_s = [cell["clock_s"]["wall"] - cell["clock_s"]["train"] for cell in output["cells"]]
    warm_s = statistics.median(beside_s[2:])
    lines = output["cells"][-1]["clock_s"]
    parts = ", ".join(f"{name} {s:.1f}" for name, s in lines.items() if s > 0.05 and name != "wall")
    return f"beside training {beside_s[0]:.1f} s cold, {warm_s:.1f} s warm; the last cell: {parts}"


def _bench(output: dict[str, Any]) -> str:
    base, *others = output["arms"]
    mfu = base["mfu"]["nominal"]
    line = (
        f"{base['tokens_per_s']:,.0f} tokens/s" + (f", MFU {mfu:.1%}" if mfu else "")
        if base["tokens_per_s"]
        else base["status"]
    )
    return "; ".join(
        [
            line,
            *(
                f"{o['label']} " + (f"{o['speed']['ratio']:.3f}×" if o["speed"] else o["status"])
                for o in others
            ),
        ]
    )


def _profile(output: dict[str, Any]) -> str:
    step = output["step"]["compiled"] or output["step"]["plain"]
    ms, bound, busy = (
        step["wall_ms"],
        sum(row["bound_ms"] for row in output["parts"]),
        step.get("gpu_busy"),
    )
    shares = f"{bound / ms:.0%} of the compiled step" + (
        f", the GPU busy {busy:.0%} of it" if busy else ""
    )
    return (
        f"step {ms:.3g} ms compiled, {output['step']['ms']:.3g} ms eager; roofline {bound:.3g} "
        f"ms, {shares}"
    )


def _challenge(output: dict[str, Any]) -> str:
    if not output["ratio"]:
        return "; ".join(f"{run['who']}: {run['error'] or 'ran'}" for run in output["runs"])
    twice = ", ".join(f"{who} {ratio:.3f}" for who, ratio in output["control"].items())
    curves = ", ".join(f"{who} {nats:.3f}" for who, nats in output["curves"].items())
    return (
        f"nocap makes {output['ratio']:.3f} of its tokens/s (second run over first: {twice}); "
        f"losses at most so far apart: {curves}"
    )


STEPS: dict[str, Step] = {  # 35 minutes at most
    "best": Step(limit_s=525, words=challenge(*BEST.split()), figure=_challenge, skip=no_challenge),
    "options": Step(limit_s=280, words=bench(OPTIONS, 245), figure=_bench),
    "grid": Step(limit_s=220, words=script("grid.py"), figure=_grid),
    "options_again": Step(limit_s=280, words=bench(OPTIONS, 245), figure=_bench),
    "tests": Step(limit_s=120, words=tests),
    "profile": Step(limit_s=110, words=profile, figure=_profile),
    "challenge": Step(limit_s=525, words=challenge(), figure=_challenge, skip=no_challenge),
}


# --- what the machine has


def look(device: str) -> tuple[dict[str, Any], str]:
    """What is here and what is missing; why no step can run, or nothing. Nothing is imported that
    may be missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]]  # type: ignore[index]
    missing = [name for name in (*names, *TOOLS) if name not in IDLE and _version(name) is None]
    cuda = None if "torch" in missing else hardware.torch_build()["cuda"]
    gpus = hardware.cuda_devices()
    machine = {
        "python": sys.version.split()[0],
        "torch": _version("torch"),
        "cuda": cuda,
        "gpus": list(gpus),
        "missing": missing,
    }
    # tests/pretend.py: no figure of such a day means anything
    machine["pretended"] = "PRETEND_CC" in os.environ
    if "torch" in missing:
        return machine, "torch is missing"
    if device == "cuda" and not (cuda and gpus):
        return (
            machine,
            "there is no GPU" if cuda else f"torch {machine['torch']} is not built for CUDA",
        )
    return machine, ""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def described(machine: dict[str, Any]) -> str:
    missing = (
        f"missing: {' '.join(machine['missing'])}" if machine["missing"] else "nothing is missing"
    )
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    return (
        f"Python {machine['python']}, torch {machine['torch']} for CUDA {machine['cuda']}, "
        f"{gpus}; {missing}"
    )


# --- a step


def carry_out(name: str, day: Day) -> dict[str, Any]:
    """Run a step and return its row of day.json."""
    step, path = STEPS[name], day.out / f"{name}.json"
    row: dict[str, Any] = {
        "step": name,
        "rc": None,
        "seconds": 0.0,
        "skipped": step.skip(day) or None,
        "figure": "",
        "json": None,
        "tail": [],
    }
    if row["skipped"]:
        return row
    path.unlink(missing_ok=True)
    words = step.words(day, path)
    row["command"] = (
        " ".join(["python", *words])
        .replace(f"{ROOT}/", "")
        .replace(str(day.scratch), "SCRATCH")
        .replace(str(day.out), "OUT")
    )
    log, began = day.out / f"{name}.log", time.monotonic()
    row["rc"] = _run([sys.executable, *words], cwd=day.scratch, log=log, limit_s=step.limit_s)
    row["seconds"] = round(time.monotonic() - began, 1)
    row["tail"] = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    row["json"] = path.name if path.is_file() else None
    row["figure"] = _figure(step, path) or (row["tail"][-1] if row["tail"] else "")
    return row


def _run(command: Sequence[str], *, cwd: Path, log: Path, limit_s: float) -> int | None:
    """The exit code; `None` past the limit. No process of the command's group is left."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "NOCAP_CACHE": str(cwd / "cache"),
        "PYTHONUNBUFFERED": "1",
    }
    asked: list[int] = []
    # a request to stop that comes while the step starts waits until the step can be ended with the
    # day
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            signal.signal(signal.SIGTERM, before)
            if asked:
                signal.raise_signal(signal.SIGTERM)
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            return None
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _figure(step: Step, path: Path) -> str:
    """Empty where the step wrote no JSON, or one of another form: the tail says why."""
    try:
        return step.figure(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return ""


def outcome(row: dict[str, Any]) -> str:
    if row["skipped"]:
        return "skipped"
    return "too long" if row["rc"] is None else "ok" if row["rc"] == 0 else f"exit {row['rc']}"


# --- rows for the README


def speed_rows(out: Path) -> list[str]:
    """Of what the bench's baseline and the races with the challenge found; MFU where the bench
    knows the chip's peak."""
    outputs = {
        name: json.loads(path.read_text())
        for name in ("options", "best", "challenge")
        if (path := out / f"{name}.json").is_file()
    }
    base = outputs["options"]["arms"][0] if "options" in outputs else {}
    speeds = list[tuple[str, int, float, float | None]]()
    if base.get("tokens_per_s"):
        speeds.append(
            ("nocap", base["tokens_per_step"], base["tokens_per_s"], base["memory_mib"]["peak"])
        )
    for name, nocap in (("best", f"nocap, `{BEST}`"), ("challenge", "`nocap_baseline`")):
        if name not in outputs:
            continue
        shape, runs = outputs[name]["shape"], outputs[name]["runs"]
        peaks = {run["who"]: run["peak_mib"] for run in runs if run["peak_mib"]}
        tokens = shape["micro_batch"] * shape["accumulation"] * shape["seq_len"]
        names = {"nocap": nocap, "challenge": "the challenge's loop"}
        for who, speed in outputs[name]["tokens_per_s"].items():
            speeds.append((names[who], tokens, speed, peaks.get(who)))
    per_token = None
    if base.get("tokens_per_s") and base["mfu"]["nominal"]:
        per_token = base["mfu"]["nominal"] / base["tokens_per_s"]
    rows = list[str]()
    for what, tokens, speed, mib in speeds:
        mfu, memory = (
            f"{per_token * speed:.1%}" if per_token else "–",
            f"{mib:,.0f}" if mib else "–",
        )
        where = next(iter(outputs.values()))["hardware"]["name"]
        day = date.today().isoformat()
        rows.append(
            f"| {where} | {what}, a step of {tokens:,} tokens | {speed:,.0f} | {mfu} | {memory} "
            f"| {day} | `make gpu-day` |"
        )
    return rows


# --- the day


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    machine, lacks = look(options.device)
    print(described(machine), flush=True)
    if lacks:
        print(f"gpu day: no step can run: {lacks}", file=sys.stderr)
        return 2
    out = (options.out or HERE / _folder(machine, options.device)).absolute()
    out.mkdir(parents=True, exist_ok=True)
    done = {name for name, row in _recorded(out).items() if outcome(row) == "ok"}
    names = [name for name in options.steps or STEPS if not (options.only_failed and name in done)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="gpu-day-") as scratch:
        folder = options.challenge and options.challenge.absolute()
        day = Day(
            out=out,
            scratch=Path(scratch),
            device=options.device,
            small=options.small,
            share=options.share,
            challenge=folder,
        )
        for name in names:
            print(f"{name}: at most {STEPS[name].limit_s} s …", flush=True)
            rows.append(carry_out(name, day))
            _record(out, machine, rows[-1], small=options.small)
            print(
                f"  {outcome(rows[-1])}, {rows[-1]['seconds']} s: "
                f"{rows[-1]['skipped'] or rows[-1]['figure']}",
                flush=True,
            )
    print(f"\n{'step':<10} {'outcome':<9} {'seconds':>7}  {'JSON':<15} found")
    for row in rows:
        print(
            f"{row['step']:<10} {outcome(row):<9} {row['seconds']:>7}  {row['json'] or '–':<15} "
            f"{row['skipped'] or row['figure']}"
        )
    print(f"written: {out / 'day.json'}")
    if not (options.small or machine["pretended"]):
        print("".join(f"{row}\n" for row in speed_rows(out)), end="")
    return 0 if all(outcome(row) in ("ok", "skipped") for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu day", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    steps = ", ".join(f"{name} ({step.limit_s} s)" for name, step in STEPS.items())
    add("steps", nargs="*", metavar="STEP", type=_step, help=f"default: all of {steps}, at most")
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="for the JSON (default: a folder beside this file, named after the GPU and the date)",
    )
    add(
        "--challenge",
        type=Path,
        metavar="DIR",
        help="a copy of the challenge's repository, for the step of that name",
    )
    add(
        "--only-failed",
        action="store_true",
        help="leave out the steps that went well in --out's day.json",
    )
    add(
        "--share",
        type=float,
        default=1.0,
        metavar="X",
        help="of the time of each bench (default: 1)",
    )
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the commands")
    add("--small", action="store_true", help="tiny shapes: whether the commands work, no figure")
    return parser


def _step(name: str) -> str:
    if name not in STEPS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(STEPS)}, got {name}")
    return name


def _folder(machine: dict[str, Any], device: str) -> str:
    name = machine["gpus"][0] if device == "cuda" else "cpu"
    chip = re.sub(r"[^a-z0-9]+", "-", name.removeprefix("NVIDIA ").lower())
    return f"{chip}-{date.today().isoformat()}"


def _recorded(out: Path) -> dict[str, dict[str, Any]]:
    """The rows of its day.json, by step."""
    path = out / "day.json"
    return (
        {row["step"]: row for row in json.loads(path.read_text())["rows"]} if path.is_file() else {}
    )


def _record(out: Path, machine: dict[str, Any], row: dict[str, Any], *, small: bool) -> None:
    """Put the row into day.json, in the place of an earlier one of its step."""
    rows = _recorded(out)
    rows[row["step"]] = {**row, "date": date.today().isoformat()}
    day = {
        "kind": "gpu day",
        "small": small,
        "machine": machine,
        "rows": [rows[name] for name in STEPS if name in rows],
    }
    write_text(out / "day.json", json.dumps(day, indent=1))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the step that runs ends with the day
    raise SystemExit(main())
