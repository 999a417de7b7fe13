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
    vocab = 50304 if request.vocab_size == 50257 else request.vocab_size
    sizes = {
        "n_layer": request.n_layer,
        "n_head": request.n_head,
        "n_embd": request.d_model,
        "block_size": request.seq_len,
    }
    model = peer.GPT(peer.GPTConfig(**sizes, vocab_size=vocab, bias=False, dropout=0.0)).to(
        request.device
    )
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), request.device)
    forward = model if request.compile == "off" else torch.compile(model)
    matrices = (
        sum(p.numel() for p in model.parameters() if p.ndim == 2)
        - model.transformer.wpe.weight.numel()
    )
    return Loop(
        request,
        model,
        optimizer,
        loss=lambda x, y: forward(x, y)[1],
        context=autocast(request),
        clip=1.0,
        flops=flops_per_token(request, matrices),
        settings={"model": "nanoGPT", "vocabulary": vocab, "optimizer": "AdamW", "clip": 1.0},
    )
