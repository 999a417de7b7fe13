"""nanoGPT's model and loop (karpathy/nanoGPT, model.py and train.py) as an arm of the race.
NANOGPT=DIR in the environment names its folder.

As train.py has it by default: no biases, no dropout, GPT-2's vocabulary padded to 50,304, AdamW
(fused on a GPU), gradients clipped at 1, compiled whole. On a CPU its own loop is fp32 always;
trainer.precision=bf16 puts its forward under the autocast that it has on a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from peer import Loop, autocast, flops_per_token, folder, load


def build(request: SimpleNamespace) -> Loop:
    peer = load(folder("NANOGPT", "model.py") / "model.py")
    vocab_size = request.vocab_size
    if vocab_size == 50257:
        vocab_size = 50304
    sizes = {"n_layer": request.n_layer, "n_head": request.n_head, "n_embd": request.d_model}
    sizes["block_size"] = request.seq_len
    config = peer.GPTConfig(**sizes, vocab_size=vocab_size, bias=False, dropout=0.0)
    model = peer.GPT(config)
    model = model.to(request.device)
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), request.device)
    forward = model
    if request.compile != "off":
        forward = torch.compile(model)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        _, value = forward(x, y)
        return value

    matrices = [p.numel() for p in model.parameters() if p.ndim == 2]
    positions = model.transformer.wpe.weight
    n_weights = sum(matrices) - positions.numel()
    settings = {"model": "nanoGPT", "vocabulary": vocab_size, "optimizer": "AdamW", "clip": 1.0}
    return Loop(
        request,
        model,
        optimizer,
        loss=loss,
        context=autocast(request),
        clip=1.0,
        flops=flops_per_token(request, n_weights),
        settings=settings,
    )
