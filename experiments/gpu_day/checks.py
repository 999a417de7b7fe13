"""Whether a GPU computes what it should, before anything is timed on it: kernels against fp32, ranks over
NCCL, a resumed run against an uninterrupted one.

    python experiments/gpu_day/checks.py numerics|ddp|resume [OVERRIDES …] [--device cuda|cpu] [--small]
        [--json FILE]

A row is *ok*, *wrong*, or *not on this machine* where a library or a chip lacks what it needs, which is no
failure. Exit code 1: a row is wrong. The JSON is written after each row.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from script import parser, report
from torch import Tensor

from nocap.config.compose import compose
from nocap.config.run import Run
from nocap.config.trainer import Device, Precision
from nocap.measure.timed import random_tokens
from nocap.model.attention import materialized
from nocap.model.chunked import chunked_cross_entropy
from nocap.model.fp8 import Fp8Linear
from nocap.store.record import write_json
from nocap.training.step import autocast, build

Row = dict[str, Any]
# what torch says of a library or a kernel that it has not
MISSING = re.compile(
    r"nccl|cudnn|cusolver|no available kernel|only supported|not (implemented|supported|compiled)", re.I
)
D12 = ("model=d12", "tokenizer=gpt2", "trainer.micro_batch=4", "trainer.batch_tokens=4096")
D12 += ("trainer.val_tokens=65536",)  # the synthetic data has 99,328
NANO = ("model=nano", "tokenizer=bytes", "trainer.micro_batch=2", "trainer.batch_tokens=256")
# relative errors, in the Frobenius norm: bf16 keeps 8 bits, fp8 4 of them and in gradients 3
BF16, FP8, FP32 = 0.02, 0.15, 1e-4
# the first that is right is what the day's other steps compute attention with; fused is torch's own choice
KERNELS = {Device.cuda: ("fused", "flash", "cudnn", "efficient"), Device.cpu: ("fused", "flash")}
STEPS, KILLED_AT, NATS = 24, 14, 0.02  # of the resumed run; how far its last loss may be from its twin's


def settled(words: Sequence[str], device: Device, *more: str) -> Run:
    return compose([*words, f"trainer.device={device.value}", "trainer.threads=1", "tracker=none", *more])


def checked(name: str, bar: float, errors: Callable[[], dict[str, float]]) -> Row:
    """One row: relative errors beside the most that they may be."""
    try:
        found = errors()
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().partition("\n")[0]
        lacks = isinstance(error, ValueError) or MISSING.search(
            str(error)
        )  # a refusal of nocap's, or torch's
        outcome = "not on this machine" if lacks else "wrong"
        return {"name": name, "outcome": outcome, "error": line, "bar": bar, "errors": {}}
    right = all(error <= bar for error in found.values())  # NaN is not
    return {
        "name": name,
        "outcome": "ok" if right else "wrong",
        "error": None,
        "bar": bar,
        "errors": {key: error if error < float("inf") else None for key, error in found.items()},
    }


def apart(got: Tensor, want: Tensor) -> float:
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm())


def both_ways(call: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
    """The output, and the gradient of each input for this gradient of the output."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = call(*leaves)
    return [out, *torch.autograd.grad(out, leaves, grad.to(out.dtype))]


# --- numerics -----------------------------------------------------------------------------------------------


def numerics(words: Sequence[str], device: Device) -> Iterator[Row]:
    torch.manual_seed(0)
    yield from attention(words, device)
    yield from heads(settled(words, device), device)
    yield from factors(settled(words, device), device)


def attention(words: Sequence[str], device: Device) -> Iterator[Row]:
    """Each kernel in bf16 against softmax in fp32: the output, and the gradients of q, k and v."""
    run = settled(words, device)
    B, T, H = run.trainer.micro_batch, run.model.seq_len, run.model.n_head
    size = (B, H, T, run.model.d_model // H)
    # bf16's own rounding of what comes in is no kernel's error
    q, k, v, grad = (torch.randn(size, device=device.value).bfloat16() for _ in range(4))
    want: list[Tensor] = []
    wide = [x.float() for x in (q, k, v)]
    options = [(kernel, ("attention=flash", f"attention.kernel={kernel}")) for kernel in KERNELS[device]]
    if device is Device.cuda:
        whole = f"attention.window={T}"  # a window of the whole sequence is causal attention
        options.append(("flex", ("attention=sliding", "attention.kernel=flex", whole)))
    for kernel, more in options:

        def errors(more: tuple[str, ...] = more) -> dict[str, float]:
            if not want:
                want.extend(both_ways(materialized, wide, grad.float()))
            chosen = settled(words, device, "trainer.precision=bf16", *more)
            chosen.attention.prepare(chosen, torch.device(device.value))
            mixer = chosen.attention.mixer(chosen, 0)
            with autocast(chosen, Precision.bf16):
                got = both_ways(mixer, [q, k, v], grad)
            return {name: apart(*pair) for name, *pair in zip("oqkv", got, want, strict=True)}

        yield checked(kernel, BF16, errors)


def heads(run: Run, device: Device) -> Iterator[Row]:
    """The loss in chunks and the fp8 head at the model's width and vocabulary, against the whole in fp32."""
    N, C, V = run.trainer.batch_tokens, run.model.d_model, run.tokenizer.vocab_size
    x_NC, weight_VC = torch.randn(N, C, device=device.value), torch.randn(V, C, device=device.value) / C**0.5
    targets_N, one = torch.randint(V, (N,), device=device.value), torch.ones((), device=device.value)

    def whole(x: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(x @ weight.t(), targets_N)

    def chunked(x: Tensor, weight: Tensor) -> Tensor:
        return chunked_cross_entropy(x, weight, targets_N, chunks=8, softcap=None, z_loss=0.0)[0]

    def in_chunks() -> dict[str, float]:
        pairs = [both_ways(call, [x_NC, weight_VC], one) for call in (chunked, whole)]
        return {name: apart(*pair) for name, *pair in zip(("loss", "x", "weight"), *pairs, strict=True)}

    def in_fp8() -> dict[str, float]:
        head = Fp8Linear(C, V, bias=False, device=device.value)
        grad_NV = torch.randn(N, V, device=device.value)

        def product(x: Tensor, weight: Tensor) -> Tensor:
            return torch.func.functional_call(head, {"weight": weight}, (x,))

        pairs = [both_ways(call, [x_NC, weight_VC], grad_NV) for call in (product, lambda x, w: x @ w.t())]
        return {name: apart(*pair) for name, *pair in zip(("y", "x", "weight"), *pairs, strict=True)}

    yield checked("chunks", FP32, in_chunks)
    yield checked("fp8_head", FP8, in_fp8)


def factors(run: Run, device: Device) -> Iterator[Row]:
    """What SOAP takes from the solver library, at the sizes of its matrices."""
    for n in (run.model.d_model, 4 * run.model.d_model):
        noise = torch.randn(n, n, device=device.value)
        a, same = noise @ noise.t() / n, torch.eye(n, device=device.value)

        def eigh(a: Tensor = a) -> dict[str, float]:
            values, vectors = torch.linalg.eigh(a)
            return {"a": apart(vectors * values @ vectors.t(), a)}

        def qr(a: Tensor = noise, same: Tensor = same) -> dict[str, float]:
            q, r = torch.linalg.qr(a)
            return {"a": apart(q @ r, a), "one": apart(q.t() @ q, same)}

        yield checked(f"eigh_{n}", FP32, eigh)
        yield checked(f"qr_{n}", FP32, qr)


# --- ranks --------------------------------------------------------------------------------------------------


def ddp(words: Sequence[str], device: Device) -> Iterator[Row]:
    """The step behind DDP with the device's own library: one rank, whose gradients are the step's without it;
    two where there are two GPUs, which end a short run as one does."""
    yield checked("one rank", BF16, lambda: {"gradient": _one_rank(words, device)})
    if device is Device.cpu or torch.cuda.device_count() > 1:
        yield checked("two ranks", BF16, lambda: {"val_loss": _two_ranks(words, device)})


def _one_rank(words: Sequence[str], device: Device) -> float:
    run = settled(words, device, "trainer.precision=fp32", "trainer.compile=off")
    with tempfile.TemporaryDirectory() as folder, random_tokens(run) as job:
        alone = _gradients(build(job), run)
        store = dist.FileStore(f"{folder}/store", 1)  # type: ignore[attr-defined]
        backend = "nccl" if device is Device.cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        with_ranks = replace(job, world=replace(job.world, size=2))  # of one rank nothing is wrapped
        return apart(_gradients(build(with_ranks), run), alone)


def _gradients(trainee: Any, run: Run) -> Tensor:
    device = run.trainer.device.value
    rows = torch.arange(run.model.seq_len + 1, device=device)[None] % run.tokenizer.vocab_size
    trainee.forward(rows[:, :-1], rows[:, 1:]).total.backward()
    return torch.cat([p.grad.flatten() for p in trainee.model.parameters() if p.grad is not None])


def _two_ranks(words: Sequence[str], device: Device) -> float:
    with tempfile.TemporaryDirectory() as folder:
        one, two = (
            _val_loss(
                _train(
                    [*words, "trainer.micro_batch=1"], device, Path(folder) / str(n), f"trainer.devices={n}"
                )
            )
            for n in (1, 2)
        )
    return abs(two / one - 1)


# --- a run that is killed -----------------------------------------------------------------------------------


def resume(words: Sequence[str], device: Device) -> Iterator[Row]:
    """A run that is killed in mid-training and goes on, against one that is not. Kernels on a GPU may add in
    another order each time, so that the two need not be equal to the last bit there."""

    def errors() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            whole, cut = Path(folder) / "whole", Path(folder) / "cut"
            want = _val_loss(_train(words, device, whole))
            _train(words, device, cut, killed_at=KILLED_AT)
            return {"val_loss": abs(_val_loss(_train(words, device, cut)) - want)}

    yield checked("resume", NATS if device is Device.cuda else 0.0, errors)


def _train(words: Sequence[str], device: Device, out: Path, *more: str, killed_at: int | None = None) -> Path:
    """A short run on synthetic tokens; its folder. `killed_at`: the step after which it is killed.

    Errors:
        RuntimeError: it failed, or ended before it could be killed.
    """
    given = [*words, "data=synthetic", "tracker=none", f"trainer.device={device.value}"]
    given += [f"trainer.steps={STEPS}", "trainer.val_every=0", "trainer.checkpoint_every=10"]
    command = [sys.executable, "-m", "nocap.train", *given, f"output_dir={out}", *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while killed_at is not None and process.poll() is None:
        for metrics in out.glob("runs/*/metrics.jsonl"):
            if f'"step": {killed_at},' in metrics.read_text(errors="replace"):
                process.send_signal(signal.SIGKILL)
        time.sleep(0.02)
    said = process.communicate()[1]
    ended = -signal.SIGKILL if killed_at is not None else 0
    if process.returncode != ended:
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "no output")
        raise RuntimeError(f"training ended with {process.returncode}, not {ended}: {last}")
    (run,) = (out / "runs").iterdir()
    return run


def _val_loss(run: Path) -> float:
    return float(json.loads((run / "summary.json").read_text())["val_loss"])


# --- the command --------------------------------------------------------------------------------------------

CHECKS = {"numerics": numerics, "ddp": ddp, "resume": resume}


def kernel(rows: list[Row]) -> str | None:
    """The attention kernel for all other steps: the first that is right, else the first that ran."""
    known = {row["name"]: row["outcome"] for row in rows if row["name"] in KERNELS[Device.cuda]}
    return next((name for word in ("ok", "wrong") for name in known if known[name] == word), None)


def main() -> int:
    flags = parser(__doc__)
    flags.add_argument("what", choices=CHECKS)
    flags.add_argument("overrides", nargs="*", metavar="OVERRIDES", help="nocap's")
    options = flags.parse_intermixed_args()
    words = (*(NANO if options.small else D12), *options.overrides)
    found = report(options.what, options.device, words=words, kernel=None, rows=[])
    for row in CHECKS[options.what](words, options.device):
        found["rows"].append(row)
        found["kernel"] = kernel(found["rows"])
        print(json.dumps(row), flush=True)
        if options.json:
            write_json(options.json, found)
    sys.stdout.flush()
    # gloo's teardown aborts now and then
    os._exit(1 if any(row["outcome"] == "wrong" for row in found["rows"]) else 0)


if __name__ == "__main__":
    main()
