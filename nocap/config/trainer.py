"""How a run is trained: the keys under `trainer`, which are the same for every option."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nocap.config.keys import key, require


class Device(Enum):
    cpu = "cpu"
    cuda = "cuda"


class Precision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"  # autocast; parameters, gradients and optimizer state stay fp32


class Compile(Enum):
    off = "off"
    regional = "regional"  # the block and the head with its loss, each as one region
    full = "full"  # the whole model as one graph


class ActivationCheckpointing(Enum):
    """What the forward pass does not keep for the backward pass, which computes it again from the input it had."""

    off = "off"
    block = "block"  # all inside a block: only the residual stream between blocks is kept
    attention = "attention"  # the inside of the attention branches
    mlp = "mlp"  # the inside of the MLP branches


@dataclass(kw_only=True, slots=True)
class Trainer:
    steps: int = key(step=False)  # optimizer updates
    batch_tokens: int  # tokens an optimizer step, over all devices
    micro_batch: int  # sequences per device and forward
    devices: int = key(identity=False)
    device: Device
    precision: Precision
    val_precision: Precision = key(step=False, losses=True)
    threads: int  # CPU threads per worker
    compile: Compile
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.off
    grad_clip: float | None  # largest global gradient norm
    val_every: int = key(step=False)  # steps; 0 validates only before the first and after the last
    val_tokens: int = key(step=False, losses=True)
    checkpoint_every: int = key(identity=False, step=False)  # steps; 0 saves only after the last
    keep_checkpoints: int = key(identity=False, step=False)
    keep_steps: list[int] = key(identity=False, step=False, default_factory=list)  # steps whose checkpoint stays, also after the run
    # Another run's checkpoint: this run goes on from it as if it had got there itself. Which one, is a part of the identity by itself.
    init_from: str | None = key(identity=False, step=False, default=None)
    log_every: int = key(identity=False, step=False)  # steps
    max_restarts: int = key(identity=False, step=False)  # from the last checkpoint, of a worker or rank that died or hung
    hang_timeout_s: float = key(identity=False, step=False)  # without a heartbeat (a micro-batch, a validation batch) of any rank

    def __post_init__(self) -> None:
        for name in ("steps", "batch_tokens", "micro_batch", "devices", "threads", "val_tokens", "log_every"):
            require(getattr(self, name) >= 1, f"trainer.{name}", "be at least 1", getattr(self, name))
        for name in ("val_every", "checkpoint_every"):
            require(getattr(self, name) >= 0, f"trainer.{name}", "be at least 0", getattr(self, name))
        require(self.keep_checkpoints >= 1, "trainer.keep_checkpoints", "be at least 1", self.keep_checkpoints)
        kept = self.keep_steps
        require(all(1 <= step <= self.steps for step in kept), "trainer.keep_steps", f"be steps from 1 to trainer.steps={self.steps}", kept)
        require(len(set(kept)) == len(kept), "trainer.keep_steps", "name each step once", kept)
        path = self.init_from
        require(path is None or bool(path), "trainer.init_from", "be a checkpoint's folder, or null for a run from its start", repr(path))
        require(self.max_restarts >= 0, "trainer.max_restarts", "be at least 0", self.max_restarts)
        require(self.hang_timeout_s > 0, "trainer.hang_timeout_s", "be above 0", self.hang_timeout_s)
        clip = self.grad_clip
        require(clip is None or clip > 0, "trainer.grad_clip", "be above 0, or null for none", clip)
