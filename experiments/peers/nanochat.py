"""nanochat's model and optimizer (karpathy/nanochat, nanochat/gpt.py, scripts/base_train.py) as an
arm of the race. NANOCHAT=DIR in the environment names its folder.

Another model than the others at the same sizes: untied head, value embeddings, squared ReLU,
normalised queries and keys, capped logits, Muon beside AdamW (its optimizer is compiled always).
Windows: full context, which it recommends where FlashAttention-3 is not.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from peer import Loop, flops_per_token, folder

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def build(request: SimpleNamespace) -> Loop:
    path = folder("NANOCHAT", "nanochat/gpt.py", "nanochat/optim.py")
    peer = _package(path, DTYPES[request.precision])
    heads = {"n_head": request.n_head, "n_kv_head": request.n_head}
    sizes = {
        "n_layer": request.n_layer,
        "n_embd": request.d_model,
        "sequence_len": request.seq_len,
        "vocab_size": request.vocab_size,
    }
    with torch.device("meta"):
        model = peer.GPT(peer.GPTConfig(**sizes, **heads, window_pattern="L"))
    model.to_empty(device=request.device)
    model.init_weights()
    optimizer = model.setup_optimizer(
        unembedding_lr=0.001, embedding_lr=0.01, scalar_lr=0.01, matrix_lr=0.002, weight_decay=0.28
    )
    forward = model if request.compile == "off" else torch.compile(model, dynamic=False)
    return Loop(
        request,
        model,
        optimizer,
        loss=forward,
        context=nullcontext(),
        flops=flops_per_token(request, model.num_matmul_params()),
        settings={
            "model": "nanochat",
            "vocabulary": model.lm_head.out_features,
            "optimizer": "Muon and AdamW",
            "clip": None,
        },
    )


def _package(path: Path, dtype: str) -> ModuleType:
    """nanochat.gpt, imported anew: its number format is fixed when it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "nanochat"]:
        del sys.modules[name]
    before = os.environ.get("NANOCHAT_DTYPE")
    os.environ["NANOCHAT_DTYPE"] = dtype
    sys.path.insert(0, str(path))
    try:
        return importlib.import_module("nanochat.gpt")
    finally:
        sys.path.remove(str(path))
        os.environ.pop("NANOCHAT_DTYPE")
        if before is not None:
            os.environ["NANOCHAT_DTYPE"] = before
