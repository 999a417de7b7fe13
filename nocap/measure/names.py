"""The parts of a profile and their names for readers. No torch."""

from __future__ import annotations

KIND = "profile"  # of the record, beside its schema_version

# A module's own operations, without its children's, are its part.
PARTS = {
    "embedding": "embedding",
    "norm": "norms",
    "qkv": "QKV projections",
    "rotary": "rotary, QK norm, head layout",
    "scores": "scores and weighted sum",
    "attention_out": "output projection",
    "mlp_up": "MLP up",
    "activation": "activation",
    "mlp_down": "MLP down",
    "attention": "attention, whole",
    "mlp": "MLP, whole",
    "ideas": "ideas",
    "residual": "residual stream",
    "head": "head",
    "loss": "loss",
    "accumulate": "gradients into .grad",
    "reduction": "gradient reduction",
    "clip": "gradient norm, clipping",
    "optimizer": "optimizer",
    "data": "data",
    "other": "rest of the step",
}
MODEL_PARTS = tuple(PARTS)[:15]
