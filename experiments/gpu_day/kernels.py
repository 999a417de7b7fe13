"""Microbenchmarks of a d12 layer and head on the device: matrix products, and attention by kernel.

    python experiments/gpu_day/kernels.py products|attention [--device cuda|cpu] [--small] [--json FILE]

Products in bf16 over 16 × 1,024 tokens: forward, the input's gradient, the weight's gradient. The head also
with its vocabulary padded to a multiple of 64. Attention is one layer's mixer, forward and backward, as
nocap's own step runs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from script import parser, report

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.trainer import Device, Precision
from nocap.measure.timed import Clock, attention_ms
from nocap.options.attention import kernel_name
from nocap.store.record import write_json

D12 = ("model=d12", "tokenizer=gpt2", "trainer.micro_batch=16", "trainer.batch_tokens=16384")
NANO = ("model=nano", "tokenizer=bytes", "trainer.micro_batch=2", "trainer.batch_tokens=256")
KERNELS = {Device.cuda: ("flash", "cudnn", "efficient"), Device.cpu: ("flash", "materialized")}


def shapes(d_model: int, vocab_size: int) -> dict[str, tuple[int, int]]:
    """Name → (inputs, outputs) of each matrix product of the model."""
    d, padded = d_model, -(-vocab_size // 64) * 64
    layer = {"qkv": (d, 3 * d), "attention_out": (d, d), "mlp_up": (d, 4 * d), "mlp_down": (4 * d, d)}
    return {**layer, "head": (d, vocab_size), "head_padded": (d, padded)}


def products(words: tuple[str, ...], device: Device) -> Iterator[dict[str, Any]]:
    run = compose([*words, f"trainer.device={device.value}", "trainer.threads=1", "tracker=none"])
    m, clock = run.trainer.batch_tokens, Clock.of(device, 1)
    torch.set_num_threads(1)
    for name, (k, n) in shapes(run.model.d_model, run.tokenizer.vocab_size).items():
        x, w, dy = (torch.randn(*size, device=device.value).bfloat16() for size in ((m, k), (n, k), (m, n)))
        calls = {
            "forward": lambda x=x, w=w: x @ w.t(),
            "input": lambda w=w, dy=dy: dy @ w,
            "weight": lambda x=x, dy=dy: dy.t() @ x,
        }
        for direction, call in calls.items():
            ms = clock.least_ms(call)
            yield {
                "name": name,
                "direction": direction,
                "m": m,
                "k": k,
                "n": n,
                "ms": ms,
                "tflop_s": 2e-9 * m * k * n / ms,
            }


def attention(words: tuple[str, ...], device: Device) -> Iterator[dict[str, Any]]:
    for kernel in KERNELS[device]:
        row: dict[str, Any] = {"kernel": kernel, "ms": None, "error": None}
        try:
            run = compose(
                [
                    *words,
                    f"trainer.device={device.value}",
                    "trainer.threads=1",
                    "trainer.precision=bf16",
                    f"attention.kernel={kernel}",
                ]
            )
            row["ms"] = attention_ms(run)
        except (RuntimeError, ValueError) as error:  # a kernel that this chip or build lacks stops no other
            row["error"] = str(error).strip().partition("\n")[0]
        yield row


def choice(words: tuple[str, ...], device: Device) -> str:
    """The kernel that torch takes where the config names none."""
    return kernel_name(
        compose([*words, f"trainer.device={device.value}", "trainer.precision=bf16"]), Precision.bf16
    )


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("what", choices=("products", "attention"))
    options = flags.parse_args()
    words, device = NANO if options.small else D12, options.device
    peak = hardware.peak_flops(device, Precision.bf16)
    found = report(options.what, device, words=words, peak=peak, rows=[])
    if options.what == "attention":
        found["choice"] = choice(words, device)
    for row in {"products": products, "attention": attention}[options.what](words, device):
        found["rows"].append(row)
        print(json.dumps(row), flush=True)
        if options.json:
            write_json(options.json, found)


if __name__ == "__main__":
    main()
