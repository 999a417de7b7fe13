"""Name the parts of a training step, of its time and of its memory."""

from __future__ import annotations

# A part → what a table calls them.
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
_FIRST_OF_STEP = list(PARTS).index("accumulate")
MODEL_PARTS = tuple(PARTS)[:_FIRST_OF_STEP]  # of nocap's own models
STEP_PARTS = tuple(PARTS)[_FIRST_OF_STEP:]  # of the step around any model
HELD = ("parameters", "gradients", "optimizer", "activations")  # parts of memory


def part_title(part: str) -> str:
    """Return a part as a table calls it; one of a replaced block is called by its module's path."""
    return PARTS.get(part, part)
