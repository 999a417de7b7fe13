"""The whole configuration tree, in one place, without torch, Hydra or OmegaConf.

A Hydra group is one base class; an option that needs other keys is a subclass and a row in `SCHEMAS`. Numbers live in `conf/`: a field
has a default here only where every option agrees. `__post_init__` refuses a wrong value, and `Run.__post_init__` what only shows when
two groups meet. Every refusal names the key, the rule and the value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any


def require(ok: bool, key: str, rule: str, value: object) -> None:
    """Refuse a value: `ValueError("trainer.steps must be at least 1, got 0")`."""
    if not ok:
        raise ValueError(f"{key} must {rule}, got {value}")


# --- bricks ------------------------------------------------------------------------------------------------------------------------


class Kernel(Enum):
    """How attention is computed: global layers by one of the first five, sliding windows by one of the last two."""

    materialized = "materialized"  # softmax over a T×T matrix that exists in memory
    fused = "fused"  # the fused kernel for the device and dtype: see `hardware.sdpa_kernel`
    flash = "flash"  # one named kernel, or an error
    efficient = "efficient"
    cudnn = "cudnn"
    flex = "flex"  # FlexAttention, CUDA only (its CPU version has no backward)
    blocks = "blocks"  # chunks of at least one window, each looking at itself and the chunk before


LOCAL_KERNELS = (Kernel.flex, Kernel.blocks)


@dataclass(kw_only=True, slots=True)
class Attention:
    """Causal attention over all earlier tokens; fewer key/value heads make it grouped-query or multi-query."""

    kind: str = "global"
    kernel: Kernel
    n_kv_heads: int

    def __post_init__(self) -> None:
        require(self.n_kv_heads >= 1, "attention.n_kv_heads", "be at least 1", self.n_kv_heads)
        _check_kernel("attention.kernel", self.kernel, local=type(self) is Sliding)


def _check_kernel(key: str, kernel: Kernel, *, local: bool) -> None:
    names = [k.value for k in Kernel if (k in LOCAL_KERNELS) == local]
    require(kernel.value in names, key, f"be one of {', '.join(names)} for this option", kernel.value)


@dataclass(kw_only=True, slots=True)
class Sliding(Attention):
    """Each token attends to itself and the `window` - 1 tokens before it."""

    kind: str = "sliding"
    window: int  # tokens

    def __post_init__(self) -> None:
        Attention.__post_init__(self)
        require(self.window >= 1, "attention.window", "be at least 1 token", self.window)

    @property
    def kernel_of_local(self) -> Kernel:
        """The kernel of the layers that slide."""
        return self.kernel


@dataclass(kw_only=True, slots=True)
class Hybrid(Sliding):
    """Layers take their kind from `pattern`, repeated: L is local (sliding, `local_kernel`), G is global (`kernel`)."""

    kind: str = "hybrid"
    pattern: str
    local_kernel: Kernel

    def __post_init__(self) -> None:
        Sliding.__post_init__(self)
        _check_kernel("attention.local_kernel", self.local_kernel, local=True)
        rule = "mix the letters L (local) and G (global)"
        require(set(self.pattern) == {"L", "G"}, "attention.pattern", rule, repr(self.pattern))

    @property
    def kernel_of_local(self) -> Kernel:
        return self.local_kernel


class Activation(Enum):
    gelu = "gelu"  # exact, not the tanh approximation
    relu2 = "relu2"
    swiglu = "swiglu"


@dataclass(kw_only=True, slots=True)
class Mlp:
    """`expansion` sets the parameters: hidden = expansion·d, and for the three matrices of SwiGLU ⅔·expansion·d."""

    activation: Activation
    expansion: float

    def __post_init__(self) -> None:
        require(self.expansion > 0, "mlp.expansion", "be above 0", self.expansion)

    def hidden(self, d_model: int) -> int:
        """Hidden channels; from a thousand up in steps of 8, which tensor cores need and nobody notices."""
        exact = self.expansion * d_model * (2 / 3 if self.activation is Activation.swiglu else 1)
        return 8 * round(exact / 8) if exact >= 1000 else max(1, round(exact))


class NormKind(Enum):
    rms = "rms"
    layer = "layer"


@dataclass(kw_only=True, slots=True)
class Norm:
    norm: NormKind
    eps: float
    gain: bool  # a learned scale per channel
    bias: bool  # a learned shift per channel; LayerNorm only

    def __post_init__(self) -> None:
        require(self.eps > 0, "norm.eps", "be above 0", self.eps)
        require(not self.bias or self.norm is NormKind.layer, "norm.bias", "be false for RMSNorm, which has none", self.bias)
        require(not self.bias or self.gain, "norm.bias", "be false where norm.gain is false", self.bias)


@dataclass(kw_only=True, slots=True)
class Position:
    """No position information at all."""

    kind: str = "none"


@dataclass(kw_only=True, slots=True)
class Learned(Position):
    """A learned vector per position, added to the token embedding."""

    kind: str = "learned"


@dataclass(kw_only=True, slots=True)
class Rope(Position):
    """Rotary embedding of queries and keys, halves rotated."""

    kind: str = "rope"
    base: float

    def __post_init__(self) -> None:
        require(self.base > 1, "position.base", "be above 1", self.base)


class NormPlacement(Enum):
    pre = "pre"  # x + f(norm(x))
    post = "post"  # norm(x + f(x))
    both = "both"  # x + norm(f(norm(x)))


class ResidualScale(Enum):
    """Which branches are multiplied by 1/√(2·n_layer) before they join the residual stream."""

    none = "none"
    attention = "attention"  # the challenge's choice
    both = "both"


@dataclass(kw_only=True, slots=True)
class Model:
    n_layer: int
    n_head: int
    d_model: int
    seq_len: int  # tokens
    norm_placement: NormPlacement = NormPlacement.pre
    residual_scale: ResidualScale = ResidualScale.attention
    qk_norm: bool = False  # RMS-normalise queries and keys per head, before the rotation
    tie_head: bool = True  # the head shares the embedding's matrix
    logit_softcap: float | None = None  # cap·tanh(logits/cap)

    def __post_init__(self) -> None:
        for key in ("n_layer", "n_head", "d_model", "seq_len"):
            require(getattr(self, key) >= 1, f"model.{key}", "be at least 1", getattr(self, key))
        require(
            self.d_model % self.n_head == 0,
            "model.d_model",
            f"be divisible by model.n_head={self.n_head}",
            self.d_model,
        )
        cap = self.logit_softcap
        require(cap is None or cap > 0, "model.logit_softcap", "be above 0, or null for none", cap)


@dataclass(kw_only=True, slots=True)
class Objective:
    """Next-token cross-entropy; validation always reports it plain."""

    z_loss: float  # weight of mean(logsumexp²) in the training loss (PaLM, arXiv:2204.02311)
    loss_chunks: int = 1  # parts of a micro-batch's tokens whose logits exist one part after the other; 0 or 1: all at once

    def __post_init__(self) -> None:
        require(self.z_loss >= 0, "objective.z_loss", "be at least 0", self.z_loss)
        require(self.loss_chunks >= 0, "objective.loss_chunks", "be at least 0", self.loss_chunks)


# --- optimisation ------------------------------------------------------------------------------------------------------------------


class Decay(Enum):
    """Which parameters weight decay applies to."""

    all = "all"
    matrices = "matrices"  # not gains, shifts or scales


@dataclass(kw_only=True, slots=True)
class AdamW:
    kind: str = "adamw"
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decay: Decay

    def __post_init__(self) -> None:
        require(self.lr > 0, "optimizer.lr", "be above 0", self.lr)
        for key in ("beta1", "beta2"):
            require(0 <= getattr(self, key) < 1, f"optimizer.{key}", "be in [0, 1)", getattr(self, key))
        require(self.eps > 0, "optimizer.eps", "be above 0", self.eps)
        require(self.weight_decay >= 0, "optimizer.weight_decay", "be at least 0", self.weight_decay)


class MuonScale(Enum):
    """How Muon's step is scaled by a matrix's shape (torch's `adjust_lr_fn`)."""

    original = "original"
    match_rms_adamw = "match_rms_adamw"


@dataclass(kw_only=True, slots=True)
class Muon(AdamW):
    """torch's Muon for the matrices inside the blocks; AdamW, with the inherited keys, for embeddings, head and vectors."""

    kind: str = "muon"
    muon_lr: float
    momentum: float
    ns_steps: int  # Newton-Schulz iterations
    scale: MuonScale

    def __post_init__(self) -> None:
        AdamW.__post_init__(self)
        require(self.muon_lr > 0, "optimizer.muon_lr", "be above 0", self.muon_lr)
        require(0 <= self.momentum < 1, "optimizer.momentum", "be in [0, 1)", self.momentum)
        require(1 <= self.ns_steps < 100, "optimizer.ns_steps", "be between 1 and 99", self.ns_steps)


@dataclass(kw_only=True, slots=True)
class Schedule:
    """Warm-up, then constant."""

    kind: str = "constant"
    warmup_steps: int

    def __post_init__(self) -> None:
        require(self.warmup_steps >= 0, "schedule.warmup_steps", "be at least 0", self.warmup_steps)


@dataclass(kw_only=True, slots=True)
class Linear(Schedule):
    """Warm-up, then a straight line that would reach `final` × the peak after the last update."""

    kind: str = "linear"
    final: float

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        require(0 <= self.final <= 1, "schedule.final", "be in [0, 1]", self.final)


@dataclass(kw_only=True, slots=True)
class Cosine(Linear):
    """Warm-up, then half a cosine that would reach `final` × the peak after the last update."""

    kind: str = "cosine"


@dataclass(kw_only=True, slots=True)
class Wsd(Linear):
    """Warm-up, stable, then over the last `decay_steps` a straight line that would reach `final` × the peak after the last update."""

    kind: str = "wsd"
    decay_steps: int

    def __post_init__(self) -> None:
        Linear.__post_init__(self)
        require(self.decay_steps >= 0, "schedule.decay_steps", "be at least 0", self.decay_steps)


# --- data --------------------------------------------------------------------------------------------------------------------------


class Order(Enum):
    shuffled = "shuffled"  # a permutation of all windows, another one each epoch, from the seed
    sequential = "sequential"  # the challenge's order; the seed does not touch it


@dataclass(kw_only=True, slots=True)
class Data:
    kind: str
    order: Order
    read_sequences: int  # sequences the sequential order reads at once; a shard's tail that cannot give as many is left out

    def __post_init__(self) -> None:
        require(self.read_sequences >= 1, "data.read_sequences", "be at least 1", self.read_sequences)


@dataclass(kw_only=True, slots=True)
class Stdlib(Data):
    """The Python standard library's own source, as found on this machine."""

    kind: str = "stdlib"
    val_fraction: float  # of the documents, chosen by hash

    def __post_init__(self) -> None:
        Data.__post_init__(self)
        require(0 < self.val_fraction < 1, "data.val_fraction", "be between 0 and 1", self.val_fraction)


@dataclass(kw_only=True, slots=True)
class Text(Stdlib):
    """The user's own UTF-8 text: a file, a folder, a glob, or a list of them."""

    kind: str = "text"
    path: Any

    def __post_init__(self) -> None:
        Stdlib.__post_init__(self)
        items = self.path if isinstance(self.path, list) else [self.path]
        ok = bool(items) and all(isinstance(item, str) and item for item in items)
        require(ok, "data.path", "be a file, a folder, a glob or a list of them", repr(self.path))


@dataclass(kw_only=True, slots=True)
class Shards(Data):
    """Token shards in the challenge's .bin format."""

    kind: str = "shards"
    train: str  # glob
    val: str  # glob

    def __post_init__(self) -> None:
        Data.__post_init__(self)
        for key in ("train", "val"):
            require(bool(getattr(self, key)), f"data.{key}", "be a path or a glob", repr(getattr(self, key)))


@dataclass(kw_only=True, slots=True)
class Fineweb(Data):
    """FineWeb-10B, already in GPT-2 tokens, from the Hugging Face hub: 100M tokens a shard."""

    kind: str = "fineweb"
    repo: str
    revision: str
    train_shards: int

    def __post_init__(self) -> None:
        Data.__post_init__(self)
        require(1 <= self.train_shards <= 103, "data.train_shards", "be between 1 and 103", self.train_shards)


@dataclass(kw_only=True, slots=True)
class Synthetic(Data):
    """A Markov chain with four successors a token: needs nothing, can be learned, and its entropy is known (ln 4)."""

    kind: str = "synthetic"
    train_tokens: int
    val_tokens: int
    source_seed: int

    def __post_init__(self) -> None:
        Data.__post_init__(self)
        for key in ("train_tokens", "val_tokens"):
            require(getattr(self, key) >= 1, f"data.{key}", "be at least 1", getattr(self, key))
        require(self.source_seed >= 0, "data.source_seed", "be at least 0", self.source_seed)


class Vocabulary(Enum):
    bytes = "bytes"  # 256 bytes and an end-of-text
    gpt2 = "gpt2"  # tiktoken's GPT-2 encoding, 50,257 tokens


@dataclass(kw_only=True, slots=True)
class Tokenizer:
    vocabulary: Vocabulary


# --- the run -----------------------------------------------------------------------------------------------------------------------


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
    steps: int  # optimizer updates
    batch_tokens: int  # tokens an optimizer step, over all devices
    micro_batch: int  # sequences per device and forward
    devices: int
    device: Device
    precision: Precision
    val_precision: Precision
    threads: int  # CPU threads per worker
    compile: Compile
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.off
    grad_clip: float | None  # largest global gradient norm
    val_every: int  # steps; 0 validates only before the first and after the last
    val_tokens: int
    checkpoint_every: int  # steps; 0 saves only after the last
    keep_checkpoints: int
    keep_steps: list[int] = field(default_factory=list)  # steps whose checkpoint stays, also after the run
    init_from: str | None = None  # another run's checkpoint: this run goes on from it as if it had got there itself
    log_every: int  # steps
    max_restarts: int  # from the last checkpoint, of a worker or rank that died or hung
    hang_timeout_s: float  # without a sign of life (a micro-batch, a validation batch) from any rank

    def __post_init__(self) -> None:
        for key in ("steps", "batch_tokens", "micro_batch", "devices", "threads", "val_tokens", "log_every"):
            require(getattr(self, key) >= 1, f"trainer.{key}", "be at least 1", getattr(self, key))
        for key in ("val_every", "checkpoint_every"):
            require(getattr(self, key) >= 0, f"trainer.{key}", "be at least 0", getattr(self, key))
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


class WandbMode(Enum):
    auto = "auto"  # online with a login, else offline
    online = "online"
    offline = "offline"


@dataclass(kw_only=True, slots=True)
class Tracker:
    """The local record alone."""

    kind: str = "none"


@dataclass(kw_only=True, slots=True)
class Wandb(Tracker):
    kind: str = "wandb"
    project: str
    entity: str | None
    group: str | None
    tags: list[str] = field(default_factory=list)
    mode: WandbMode
    init_timeout_s: int

    def __post_init__(self) -> None:
        require(bool(self.project), "tracker.project", "be a name", repr(self.project))
        require(self.init_timeout_s >= 1, "tracker.init_timeout_s", "be at least 1", self.init_timeout_s)


@dataclass(kw_only=True, slots=True)
class Run:
    """One training of one resolved config with one seed."""

    trainer: Trainer  # first, and the model next: other groups' defaults follow from theirs, and a wrong value is named at its source
    model: Model
    attention: Attention
    mlp: Mlp
    norm: Norm
    position: Position
    optimizer: AdamW
    schedule: Schedule
    objective: Objective
    data: Data
    tokenizer: Tokenizer
    tracker: Tracker
    seed: int
    output_dir: str
    cache_dir: str | None  # null: $NOCAP_CACHE, else nocap under the user's cache folder

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, "seed", "be in [0, 2^63)", self.seed)
        require(bool(self.output_dir), "output_dir", "be a path", repr(self.output_dir))
        self._check_kinds()
        self._check_finite()
        self._check_heads()
        self._check_batch()
        self._check_schedule()
        self._check_device()

    def _check_kinds(self) -> None:
        for group, rows in SCHEMAS.items():
            option = getattr(self, group)
            kind = getattr(option, "kind", None)
            rule = f"stay what the option set (choose another option with {group}=…)"
            require(kind is None or rows.get(kind) is type(option), f"{group}.kind", rule, repr(kind))

    def _check_finite(self) -> None:
        for group in SCHEMAS:
            option = getattr(self, group)
            for f in fields(option):
                value = getattr(option, f.name)
                require(not isinstance(value, float) or math.isfinite(value), f"{group}.{f.name}", "be a finite number", value)

    def _check_heads(self) -> None:
        n_head, n_kv_heads = self.model.n_head, self.attention.n_kv_heads
        require(n_head % n_kv_heads == 0, "attention.n_kv_heads", f"divide model.n_head={n_head}", n_kv_heads)
        d_head = self.model.d_model // n_head
        if isinstance(self.position, Rope):
            require(d_head % 2 == 0, "model.d_model / model.n_head", "be even for position=rope", d_head)

    def _check_batch(self) -> None:
        t, seq_len = self.trainer, self.model.seq_len
        unit = t.micro_batch * seq_len * t.devices
        require(
            t.batch_tokens % unit == 0,
            "trainer.batch_tokens",
            f"be divisible by trainer.micro_batch × model.seq_len × trainer.devices = {t.micro_batch} × {seq_len} × {t.devices} = {unit}",
            t.batch_tokens,
        )
        unit = t.micro_batch * seq_len
        require(
            t.val_tokens % unit == 0,
            "trainer.val_tokens",
            f"be divisible by trainer.micro_batch × model.seq_len = {t.micro_batch} × {seq_len} = {unit}",
            t.val_tokens,
        )
        rule = f"be at most trainer.micro_batch × model.seq_len = {t.micro_batch} × {seq_len} = {unit}"
        require(self.objective.loss_chunks <= unit, "objective.loss_chunks", rule, self.objective.loss_chunks)

    def _check_schedule(self) -> None:
        steps, warmup = self.trainer.steps, self.schedule.warmup_steps
        require(warmup <= steps, "schedule.warmup_steps", f"be at most trainer.steps={steps}", warmup)
        if isinstance(self.schedule, Wsd):
            rule = f"leave room for schedule.warmup_steps={warmup} in trainer.steps={steps}"
            decay = self.schedule.decay_steps
            require(warmup + decay <= steps, "schedule.decay_steps", rule, decay)

    def _check_device(self) -> None:
        on_cpu = self.trainer.device is Device.cpu
        kernels = {"kernel": self.attention.kernel}
        if isinstance(self.attention, Hybrid):
            kernels["local_kernel"] = self.attention.local_kernel
        for key, kernel in kernels.items():
            cuda_only = kernel in (Kernel.efficient, Kernel.cudnn, Kernel.flex)
            rule = "be one that trains on the CPU (materialized, flash; blocks for a window)"
            require(not (on_cpu and cuda_only), f"attention.{key}", rule, kernel.value)
            fp32 = Precision.fp32 in (self.trainer.precision, self.trainer.val_precision)
            rule = "be fused or efficient on CUDA where trainer.precision or trainer.val_precision is fp32, which this kernel does not take"
            half_only = kernel in (Kernel.flash, Kernel.cudnn)
            require(on_cpu or not (fp32 and half_only), f"attention.{key}", rule, kernel.value)

    @property
    def microbatches(self) -> int:
        """Micro-batches a rank accumulates for one optimizer step."""
        t = self.trainer
        return t.batch_tokens // (t.micro_batch * self.model.seq_len * t.devices)


# The one list of what exists: group → the option's `kind` → its schema. Groups of one schema have one row.
SCHEMAS: dict[str, dict[str, type]] = {
    "attention": {"global": Attention, "sliding": Sliding, "hybrid": Hybrid},
    "mlp": {"mlp": Mlp},
    "norm": {"norm": Norm},
    "position": {"none": Position, "learned": Learned, "rope": Rope},
    "model": {"gpt": Model},
    "optimizer": {"adamw": AdamW, "muon": Muon},
    "schedule": {"constant": Schedule, "linear": Linear, "cosine": Cosine, "wsd": Wsd},
    "objective": {"cross_entropy": Objective},
    "data": {"stdlib": Stdlib, "text": Text, "shards": Shards, "fineweb": Fineweb, "synthetic": Synthetic},
    "tokenizer": {"tokenizer": Tokenizer},
    "tracker": {"none": Tracker, "wandb": Wandb},
    "trainer": {"trainer": Trainer},
}
