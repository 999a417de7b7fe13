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
    max = "max"  # regional; torch also times and tunes its kernels, which may take many minutes


class Malloc(Enum):
    """How a process takes memory for its tensors on a CPU."""

    pooled = "pooled"  # memory that a step gives back is kept for the next step (glibc)
    system = "system"  # the C library decides


class ActivationCheckpointing(Enum):
    """What the forward pass does not keep for the backward pass, which computes it again from the
    input it had."""

    off = "off"
    block = "block"  # all inside a block: only the residual stream between blocks is kept
    attention = "attention"  # the inside of the attention branches
    mlp = "mlp"  # the inside of the MLP branches


# A comment beside a key, or above it, is its text in `--help`: `help_page` reads it from here.
@dataclass(kw_only=True, slots=True)
class Trainer:
    steps: int = key(ge=1, le=10**9, step=False)  # number of optimizer updates
    batch_tokens: int = key(ge=1, le=2**40)  # tokens of one optimizer step, over all devices
    micro_batch: int = key(ge=1, le=2**24)  # sequences in one forward pass on one device
    # number of ranks; each trains on a GPU of its own, or with a share of the CPU's cores
    devices: int = key(ge=1, le=4096, identity=False)
    device: Device  # device that trains the run
    # number format of the products in forward and backward; the default is bf16 on a GPU, and on a
    # CPU with AMX for wide models
    precision: Precision
    val_precision: Precision = key(step=False, losses=True)  # number format in validation
    threads: int = key(ge=1, le=4096)  # CPU threads of each worker
    # memory allocator of a process on a CPU; it changes only the speed. Records without this key
    # used system
    malloc: Malloc = key(identity=False, default=Malloc.system)
    compile: Compile  # part of the model that torch.compile compiles
    # run the forward and backward of a micro-batch as one CUDA graph; this helps if the GPU waits
    # for the CPU
    cuda_graphs: bool = False
    # part of the model that the backward pass computes again; this saves memory
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.off
    grad_clip: float | None = key(gt=0, le=1e9)  # largest global gradient norm; null: no limit
    # steps between validations; 0 validates only before the first step and after the last
    val_every: int = key(ge=0, le=10**9, step=False)
    val_tokens: int = key(ge=1, le=2**40, step=False, losses=True)  # tokens of each validation
    # steps between checkpoints; 0 saves only after the last step
    checkpoint_every: int = key(ge=0, le=10**9, identity=False, step=False)
    keep_checkpoints: int = key(
        ge=1, le=10**9, identity=False, step=False
    )  # number of newest checkpoints that stay on the disk
    # steps whose checkpoints stay, also after the run has ended
    keep_steps: list[int] = key(identity=False, step=False, default_factory=list)
    # checkpoint of another run, as RUN@STEP or a folder; this run continues from it. The identity
    # includes the checkpoint, but not its path
    init_from: str | None = key(identity=False, step=False, default=None)
    # steps between two rows of metrics.jsonl
    log_every: int = key(ge=1, le=10**9, identity=False, step=False)
    # how often nocap restarts a worker that died or hung
    max_restarts: int = key(ge=0, le=10**6, identity=False, step=False)
    # seconds that a micro-batch may take; after that its worker counts as hung
    hang_timeout_s: float = key(gt=0, le=1e7, identity=False, step=False)

    def __post_init__(self) -> None:
        steps = self.keep_steps
        name = "trainer.keep_steps"
        are_of_run = all(1 <= step <= self.steps for step in steps)
        require(are_of_run, name, f"be steps from 1 to trainer.steps={self.steps}", steps)
        require(len(set(steps)) == len(steps), name, "name each step once", steps)
        if self.cuda_graphs:
            self._check_graphs()
        rule = "be the folder of a checkpoint, or null to start with new weights"
        require(self.init_from != "", "trainer.init_from", rule, repr(self.init_from))

    def _check_graphs(self) -> None:
        """Refuse CUDA graphs without a GPU, and with more than one rank."""
        name = "trainer.cuda_graphs"
        rule = f"be false on trainer.device={self.device.value}"
        require(self.device is Device.cuda, name, rule, True)
        rule = (
            f"be false with trainer.devices={self.devices}, because ranks exchange gradients in "
            f"the backward pass"
        )
        require(self.devices == 1, name, rule, True)


class Sampler(Enum):
    # tree-structured Parzen estimator (arXiv:2304.11127); its first ten trials are random
    tpe = "tpe"
    random = "random"


@dataclass(kw_only=True, slots=True)
class Search:
    """`search=SAMPLER search.KEY=VALUE`, with `--multirun`."""

    sampler: Sampler  # sampler of the trials, set by `search=tpe` or `search=random`
    # number of trials; the same search with more trials continues
    trials: int = key(ge=1, le=10_000, default=20)
    # seed of the search and of all its trials; use other seeds to test a claim
    seed: int = key(ge=0, lt=2**63, default=100)

    def __post_init__(self) -> None:
        check_keys("search", self)
