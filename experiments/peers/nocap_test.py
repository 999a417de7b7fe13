"""The challenge's model and loop (BottleCapAI/NoCap-Test, train_gpt2.py) as an arm of the race.
NOCAP_TEST=DIR in the environment names its folder.

AdamW as its script has it, no clipping, bf16 by autocast; compiled whole, by coordinate descent on
a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from peer import Loop, autocast, flops_per_token, folder, load


def build(request: SimpleNamespace) -> Loop:
    peer = load(folder("NOCAP_TEST", "train_gpt2.py") / "train_gpt2.py")
    config = peer.GPTConfig(
        vocab_size=request.vocab_size,
        n_layer=request.n_layer,
        n_head=request.n_head,
        n_embd=request.d_model,
    )
    model = peer.GPT(config)
    model = model.train().to(request.device)
    optimizer = model.configure_optimizers(
        weight_decay=0.1, learning_rate=1e-4, betas=(0.9, 0.95), device_type=request.device
    )
    forward = model
    if request.compile != "off":
        options = {"coordinate_descent_tuning": request.device == "cuda"}
        forward = torch.compile(model, options=options)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        _, value = forward(x, y, return_logits=False)
        return value

    n_weights = sum(p.numel() for p in model.parameters())
    settings = {"model": "NoCap-Test", "vocabulary": request.vocab_size}
    settings["optimizer"] = "AdamW"
    settings["clip"] = None
    return Loop(
        request,
        model,
        optimizer,
        loss=loss,
        context=autocast(request),
        flops=flops_per_token(request, n_weights),
        settings=settings,
    )
