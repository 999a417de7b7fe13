"""The numbers of a checkout, bit for bit: what shows that a refactoring changed none.

    python tests/tools/same_numbers.py record OUT.json [--repo DIR] [--jobs 2]
    python tests/tools/same_numbers.py compare OLD.json NEW.json [--allow KEY ...]

`record` trains small models of every option through the door, `python -m nocap.train`, and reads
what the runs leave: the rows without what depends on the machine's speed, parts of the summary, and
a hash of the last checkpoint's tensors. It imports nothing of nocap, so it runs against any
checkout that the installed torch and Hydra fit. Runs are fp32 on the CPU with one thread unless
their words say otherwise, 20 steps each. After the first step without clipping, AdamW's `exp_avg`
is the gradient times 1 - beta1, and Muon's buffer the gradient times 1 - momentum: the hash of the
optimizer's tensors in the configs with `trainer.steps=1` is the check of the gradients. `resumed:`
configs are killed after step 12 and started again. Record both sides on one machine with one torch:
`compare` says where they differ in that. It exits with 1 where a number differs, one line each;
`--allow KEY` is for a key whose change is a listed correction.
"""

from __future__ import annotations

import argparse
import array
import hashlib
import importlib.metadata
import json
import os
import platform
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

BASE = """model=nano tracker=none trainer.steps=20 trainer.val_every=5 trainer.checkpoint_every=10
trainer.batch_tokens=2048 trainer.micro_batch=8 trainer.val_tokens=4096 trainer.device=cpu
trainer.precision=fp32 trainer.threads=1 trainer.compile=off"""
SYNTHETIC = (
    "data=synthetic data.train_tokens=100000 data.val_tokens=20000"  # where a config names no data
)

# A config is what stands between two bars or ends of lines. {inputs} is the folder of the text and
# the shards that this script writes.
CONFIGS = """
seed=0 | seed=1 | data.order=sequential
attention=mha | attention=gqa | attention=gqa attention.kernel=materialized | attention=mqa
attention=mqa attention.kernel=flash
attention=flash attention.kernel=flash | attention=sliding | attention=sliding attention.window=5
attention=sliding attention.window=100 attention.n_kv_heads=2 | attention=hybrid model.n_layer=4
attention=hybrid attention.pattern=LG attention.kernel=materialized attention.window=16
mlp=gelu3x | mlp=swiglu | mlp=swiglu mlp.expansion=3 | mlp=relu2 | norm=rmsnorm_gain | norm=layernorm
position=learned | position=none | position.base=500
optimizer=adamw optimizer.decay=all norm=layernorm
optimizer=adamw optimizer.beta1=0.8 optimizer.weight_decay=0 | optimizer=muon
optimizer=muon optimizer.decay=all norm=rmsnorm_gain
optimizer=muon optimizer.scale=original optimizer.ns_steps=3
optimizer=soap | optimizer=schedule_free schedule=constant
optimizer.cautious_decay=true
optimizer=muon optimizer.iteration=polar_express optimizer.row_beta2=0.95 optimizer.momentum_warmup_steps=9
ideas=[bigram,smear,x0]
schedule=constant | schedule=linear | schedule=cosine
schedule=wsd schedule.warmup_steps=0 schedule.decay_steps=10 schedule.final=0.2
objective.z_loss=0.01 | objective.loss_chunks=4 | objective.loss_chunks=4 objective.z_loss=0.01
model.logit_softcap=5 | model.logit_softcap=5 objective.z_loss=0.01
model.logit_softcap=5 objective.loss_chunks=4
model.logit_softcap=5 objective.loss_chunks=4 objective.z_loss=0.01 model.tie_head=false
model.qk_norm=true | model.norm_placement=post | model.norm_placement=both | model.residual_scale=none
model.residual_scale=both
model.tie_head=false | data=stdlib | data=text data.path={inputs}/text.txt
data=text data.path={inputs}/text.txt data.order=sequential
data=shards data.train={inputs}/train_*.bin data.val={inputs}/val_*.bin tokenizer=bytes
trainer.activation_checkpointing=block | trainer.activation_checkpointing=attention
trainer.activation_checkpointing=mlp
trainer.activation_checkpointing=block attention=hybrid attention.pattern=LG objective.loss_chunks=4
trainer.precision=bf16 | trainer.precision=bf16 trainer.val_precision=bf16 attention=mha
trainer.precision=bf16 attention=gqa mlp=swiglu norm=layernorm objective.loss_chunks=4
trainer.precision=bf16 optimizer=muon attention=sliding trainer.activation_checkpointing=mlp
trainer.compile=regional | trainer.compile=full
trainer.compile=regional attention=hybrid attention.pattern=LG mlp=swiglu norm=layernorm model.tie_head=false
trainer.grad_clip=null | trainer.grad_clip=0.1 | trainer.micro_batch=2
trainer.devices=2 trainer.micro_batch=4
trainer.devices=2 trainer.micro_batch=4 optimizer=muon attention=gqa objective.loss_chunks=4
attention=hybrid attention.pattern=LG mlp=swiglu optimizer=muon schedule=cosine model.qk_norm=true norm=layernorm position=learned
attention=mqa mlp=relu2 norm=rmsnorm_gain position=none model.norm_placement=both model.residual_scale=both schedule=linear
attention=mha mlp=gelu3x norm=layernorm model.norm_placement=post model.tie_head=false model.logit_softcap=15 optimizer=muon
attention=sliding mlp=swiglu model.qk_norm=true model.residual_scale=none objective.z_loss=0.001 schedule=constant data=stdlib
experiment=nocap_baseline tokenizer=bytes trainer.precision=bf16 schedule.warmup_steps=2
experiment=nocap_baseline trainer.precision=bf16 schedule.warmup_steps=1 trainer.steps=3 trainer.micro_batch=4 trainer.val_tokens=1024
experiment=nocap_baseline trainer.precision=bf16 schedule.warmup_steps=0 trainer.steps=1 tokenizer=bytes
trainer.steps=1 trainer.grad_clip=null | trainer.steps=1 trainer.grad_clip=null optimizer=muon
resumed: optimizer=adamw | resumed: optimizer=muon
"""  # noqa: E501
NAMES = [config.strip() for config in CONFIGS.strip().replace("\n", "|").split("|")]
# steps
KILL_AFTER = 12
CHECKPOINT = 10

SPEED = ("clock/", "perf/", "memory/")  # keys of a row that depend on the machine's speed and load
SUMMARY = {"val_loss", "val_bpb", "flops_per_token", "params", "kernel", "memory_mib"}

# The venv may hold an editable install: only the recorded checkout may stay on the path, for Hydra
# looks for plugins in all of it.
SITE = (
    "import os, sys\nsys.path[:] = [p for p in sys.path if p == {repo!r} or not "
    "os.path.exists(os.path.join(p, 'nocap', 'train.py'))]\n"
)
FIND = """\
from importlib.util import find_spec
for name in ("nocap", "hydra_plugins"):  # a newer checkout has no hydra_plugins
    if spec := find_spec(name):
        print(*spec.submodule_search_locations, sep="\\n")"""


def record(repo: Path, jobs: int) -> dict[str, Any]:
    """The numbers of every config. One that failed has its last words instead."""
    with tempfile.TemporaryDirectory(prefix="nocap-numbers-") as folder:
        root = Path(folder)
        (root / "site").mkdir()
        text = SITE.format(repo=str(repo))
        (root / "site" / "sitecustomize.py").write_text(text)
        env = {}
        for k, v in os.environ.items():
            if not k.startswith(("NOCAP_", "WANDB_", "TORCHELASTIC_", "TORCHINDUCTOR_")):
                env[k] = v
        env |= {
            "PYTHONPATH": f"{root / 'site'}{os.pathsep}{repo}",
            "NOCAP_CACHE": str(root / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        env |= {"WANDB_MODE": "disabled", "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor")}
        paths = subprocess.run(
            [sys.executable, "-c", FIND],
            cwd=root,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        strange = []
        for path in paths.splitlines():
            if not path.startswith(f"{repo}{os.sep}") and "site-packages" not in path:
                strange.append(path)
        assert not strange, f"{repo} would run with {strange}"
        write_inputs(root / "inputs")

        def one(index: int) -> dict[str, Any]:
            began = time.monotonic()
            try:
                numbers = numbers_of(NAMES[index], root / f"{index:02d}", root / "inputs", env)
            except Exception as error:
                numbers = {"error": f"{type(error).__name__}: {error}"}
            if "error" in numbers:
                words = f"  {numbers['error']}"
            else:
                words = ""
            print(
                f"{index + 1:3d}/{len(NAMES)}  {time.monotonic() - began:5.1f} s  "
                f"{NAMES[index]}{words}",
                flush=True,
            )
            return numbers

        with ThreadPoolExecutor(jobs) as pool:
            numbers_of_all = pool.map(one, range(len(NAMES)))
            return dict(zip(NAMES, numbers_of_all, strict=True))


def write_inputs(folder: Path) -> None:
    """A text of 160 KiB in lines of made-up words, and its bytes as token shards in the challenge's
    format."""
    draw = random.Random(0)
    text = ""
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) for _ in range(500)]
    while len(text) < 160 * 1024:
        text += " ".join(draw.choices(words, k=12)) + "\n"
    folder.mkdir()
    (folder / "text.txt").write_text(text)
    cases = (("train_0", 0, 50_000), ("train_1", 50_000, 110_000), ("val_0", 110_000, 140_000))
    for name, start, stop in cases:
        header = struct.pack("<256i", 20240520, 1, stop - start, *[0] * 253)
        lines = list(text[start:stop].encode())
        content = header + array.array("H", lines).tobytes()
        (folder / f"{name}.bin").write_bytes(content)


def numbers_of(config: str, cwd: Path, inputs: Path, env: dict[str, str]) -> dict[str, Any]:
    """Run a config and read what it left."""
    own = config.removeprefix("resumed: ").format(inputs=inputs)
    words = f"{BASE} {'' if 'data=' in own else SYNTHETIC} {own}".split()
    cwd.mkdir()
    if config.startswith("resumed: "):
        kept = until_killed(words, cwd, env)
    else:
        kept = []
    with door(words, cwd, env) as process:
        try:
            code = process.wait(timeout=900)
        finally:
            kill(process)
    if code != 0:
        raise RuntimeError(f"exit code {code}: {(cwd / 'printed').read_text().strip()[-2000:]}")
    (run_dir,) = (cwd / "outputs" / "runs").iterdir()
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    summary = json.loads((run_dir / "summary.json").read_text())
    if lines[: len(kept)] != kept:  # their clocks would differ
        raise RuntimeError("the killed run started over instead of resuming")
    numbers: dict[str, Any] = {"rows": len(lines)}
    for row in map(json.loads, lines):
        for key, value in row.items():
            if not key.startswith(SPEED):
                numbers[f"{key} @ {row['step']}"] = exact(value)
    for key in sorted(summary.keys() & SUMMARY):
        if isinstance(summary[key], dict):
            parts = {f"{key}.{part}": v for part, v in summary[key].items()}
        else:
            parts = {key: summary[key]}
        # the peak is the process's
        for name, v in parts.items():
            if name != "memory_mib.peak":
                numbers[f"summary {name}"] = exact(v)
    last = max((run_dir / "checkpoints").glob("step-*"))
    paths = sorted(last.glob("*.safetensors"))
    return numbers | {f"{file.name} @ {int(last.name[5:])}": tensors_sha256(file) for file in paths}


def door(words: list[str], cwd: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """The door's process, in a group of its own."""
    with (cwd / "printed").open("w") as out:
        command = [sys.executable, "-m", "nocap.train", *words]
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """With its worker. Ranks die with theirs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def until_killed(words: list[str], cwd: Path, env: dict[str, str]) -> list[str]:
    """Start a run and kill it, with its worker, in mid-flight. Returns the rows before its
    checkpoint, which a resumed run keeps."""
    with door(words, cwd, env) as process:
        lines: list[str] = []
        while len(lines) <= KILL_AFTER + 1 and process.poll() is None:
            time.sleep(0.01)
            lines = []
            for file in cwd.glob("outputs/runs/*/metrics.jsonl"):
                lines += file.read_text().splitlines()
        kill(process)
    paths = list(cwd.glob("outputs/runs/*/summary.json"))
    if paths or not list(cwd.glob(f"outputs/runs/*/checkpoints/step-{CHECKPOINT:08d}")):
        raise RuntimeError("the run must be killed after a checkpoint and before its end")
    return lines[:CHECKPOINT]


def exact(value: Any) -> Any:
    """A float as text that holds every bit."""
    if isinstance(value, float):
        return value.hex()
    return value


def tensors_sha256(path: Path) -> str:
    """Hash of a safetensors file's names, dtypes, shapes and bytes, in the order of the names."""
    raw = path.read_bytes()
    digest = hashlib.sha256()
    start = 8 + int.from_bytes(raw[:8], "little")
    content = json.loads(raw[8:start])
    for name, facts in sorted(content.items()):
        if name != "__metadata__":
            first, last = facts["data_offsets"]
            text = json.dumps([name, facts["dtype"], facts["shape"]])
            digest.update(text.encode() + raw[start + first : start + last])
    return digest.hexdigest()


def machine(repo: Path) -> dict[str, Any]:
    def git(*words: str) -> str:
        command = ["git", "-C", str(repo), *words]
        result = subprocess.run(command, capture_output=True, text=True)
        return result.stdout.strip()

    if Path("/proc/cpuinfo").exists():
        cpuinfo = Path("/proc/cpuinfo").read_text()
    else:
        cpuinfo = ""
    cpu = next(
        (line.partition(": ")[2] for line in cpuinfo.splitlines() if line.startswith("model name")),
        platform.processor(),
    )
    facts = {
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "cpu": cpu,
    }
    return facts | {
        "commit": git("rev-parse", "HEAD"),
        "changed": bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def compare(old: dict[str, Any], new: dict[str, Any], allow: list[str]) -> int:
    """Print what differs; how many numbers do without being allowed to."""
    for key in ("python", "torch", "cpu"):
        if old["machine"][key] != new["machine"][key]:
            print(f"note: {key} is not the same: {old['machine'][key]} and {new['machine'][key]}")
    configs = old["configs"] | new["configs"]
    total = 0
    allowed = 0
    differing = 0
    for config in configs:
        a = old["configs"].get(config, {})
        b = new["configs"].get(config, {})
        total += len(a | b)
        for name in a | b:
            if name in a and name in b and a[name] == b[name] and name != "error":
                continue
            may = name.removeprefix("summary ").partition(" @ ")[0] in allow
            allowed = allowed + may
            differing = differing + (not may)
            print(
                f"{'allowed: ' if may else ''}{config}: {name.replace(' @ ', ' at step ')}: "
                f"{shown(a, name)} -> {shown(b, name)}"
            )
    if differing:
        verdict = f"{differing} differ"
    else:
        verdict = "equal bit for bit"
    print(
        f"{len(configs)} configs, {total} numbers: "
        f"{verdict}{f', {allowed} differ as allowed' if allowed else ''}"
    )
    return differing


def shown(numbers: dict[str, Any], name: str) -> str:
    value = numbers.get(name, "absent")
    if isinstance(value, str) and value.lstrip("-").startswith("0x"):
        return repr(float.fromhex(value))
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("record", help="train the configs and write their numbers")
    verb.add_argument("out", type=Path)
    root = Path(__file__).parents[2]
    verb.add_argument("--repo", type=Path, default=root, help="the checkout; default: this one")
    verb.add_argument("--jobs", type=int, default=2, help="runs at a time")
    verb = verbs.add_parser("compare", help="say what differs between two recordings")
    verb.add_argument("old", type=Path)
    verb.add_argument("new", type=Path)
    verb.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="KEY",
        help="a key that may differ, such as val/bpb",
    )
    args = parser.parse_args()
    if args.verb == "compare":
        raise SystemExit(
            compare(json.loads(args.old.read_text()), json.loads(args.new.read_text()), args.allow)
            > 0
        )
    repo = args.repo.resolve()
    began = time.monotonic()
    before = machine(repo)
    report: dict[str, Any] = {
        "schema_version": 1,
        "machine": before,
        "configs": record(repo, args.jobs),
    }
    text = json.dumps(report, indent=1)
    args.out.write_text(text + "\n")
    failed = sum("error" in numbers for numbers in report["configs"].values())
    print(f"{len(NAMES)} configs, {failed} failed, {time.monotonic() - began:.0f} s: {args.out}")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
