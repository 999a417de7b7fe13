"""How a run is trained: the keys under `trainer`, which are the same for every option; and, under
`search`, those of a search, which `nocap.launch.search` carries out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nocap.config.keys import check_keys, key, require


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
    max = (
        "max"  # regional, its kernels chosen and tuned by timing them, which may take many minutes
    )


class Malloc(Enum):
    """How a process takes memory for its tensors on a CPU."""

    pooled = "pooled"  # what a step has given back is kept for the next one (glibc)
    system = "system"  # as the C library does by itself


class ActivationCheckpointing(Enum):
    """What the forward pass does not keep for the backward pass, which computes it again from the
    input it had."""

    off = "off"
    block = "block"  # all inside a block: only the residual stream between blocks is kept
    attention = "attention"  # the inside of the attention branches
    mlp = "mlp"  # the inside of the MLP branches


@dataclass(kw_only=True, slots=True)
class Trainer:
    steps: int = key(ge=1, le=10**9, step=False)  # optimizer updates
    batch_tokens: int = key(ge=1, le=2**40)  # tokens an optimizer step, over all devices
    micro_batch: int = key(ge=1, le=2**24)  # sequences per device and forward
    # ranks, each on a device of its own; cpu ranks share the cores
    devices: int = key(ge=1, le=4096, identity=False)
    device: Device  # where it trains
    # of the products in forward and backward; by default bf16 on a GPU and, for wide models, on a
    # CPU with AMX
    precision: Precision
    val_precision: Precision = key(step=False, losses=True)  # the same, in validation
    threads: int = key(ge=1, le=4096)  # CPU threads per worker
    # of memory on the CPU: it changes speed, and no number. Records of before this key have what
    # was then
    malloc: Malloc = key(identity=False, default=Malloc.system)
    compile: Compile  # by torch.compile
    # a micro-batch's forward and backward as one launch: for steps whose host is slower than their
    # GPU
    cuda_graphs: bool = False
    # what the backward pass computes again instead of keeping it
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.off
    grad_clip: float | None = key(gt=0, le=1e9)  # largest global gradient norm
    # steps between validations; 0 validates only before the first and after the last
    val_every: int = key(ge=0, le=10**9, step=False)
    val_tokens: int = key(ge=1, le=2**40, step=False, losses=True)  # tokens that a validation reads
    # steps between checkpoints; 0 saves only after the last
    checkpoint_every: int = key(ge=0, le=10**9, identity=False, step=False)
    keep_checkpoints: int = key(
        ge=1, le=10**9, identity=False, step=False
    )  # the newest so many stay
    # steps whose checkpoint stays, also after the run
    keep_steps: list[int] = key(identity=False, step=False, default_factory=list)
    # Another run's checkpoint: this run goes on from it as if it had got there itself. Which one,
    # is a part of the identity by itself.
    init_from: str | None = key(identity=False, step=False, default=None)
    log_every: int = key(ge=1, le=10**9, identity=False, step=False)  # steps between rows
    max_restarts: int = key(
        ge=0, le=10**6, identity=False, step=False
    )  # restarts of a lost worker or rank
    # seconds for a micro-batch, or it is lost
    hang_timeout_s: float = key(gt=0, le=1e7, identity=False, step=False)

    def __post_init__(self) -> None:
        steps = self.keep_steps
        name = "trainer.keep_steps"
        are_of_run = all(1 <= step <= self.steps for step in steps)
        require(are_of_run, name, f"be steps from 1 to trainer.steps={self.steps}", steps)
        require(len(set(steps)) == len(steps), name, "name each step once", steps)
        if self.cuda_graphs:
            self._check_graphs()
        rule = "be a checkpoint's folder, or null for a run from its start"
        require(self.init_from != "", "trainer.init_from", rule, repr(self.init_from))

    def _check_graphs(self) -> None:
        """Refuse CUDA graphs without a GPU, and with more than one rank."""
        name = "trainer.cuda_graphs"
        rule = f"be false on trainer.device={self.device.value}"
        require(self.device is Device.cuda, name, rule, True)
        rule = (
            f"be false beside trainer.devices={self.devices}: ranks exchange gradients in a "
            f"backward"
        )
        require(self.devices == 1, name, rule, True)


class Sampler(Enum):
    # tree-structured Parzen estimator (arXiv:2304.11127); its first ten trials are random
    tpe = "tpe"
    random = "random"


@dataclass(kw_only=True, slots=True)
class Search:
    """`search=SAMPLER search.KEY=VALUE`, beside `--multirun`."""

    sampler: Sampler
    trials: int = key(
        ge=1, le=10_000, default=20
    )  # how many; the same search with more of them goes on
    # of the proposals and of the trials' runs: not one that a claim will use
    seed: int = key(ge=0, lt=2**63, default=100)

    def __post_init__(self) -> None:
        check_keys("search", self)
