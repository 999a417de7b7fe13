"""Build what a step updates and reads: model, optimizers, windows. And set how numbers are
computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nocap.config.run import Run
from nocap.config.trainer import Compile, Precision
from nocap.data.batches import train_windows, val_windows
from nocap.data.windows import Windows
from nocap.model.build import build_model
from nocap.model.compiled import compile_in_place
from nocap.model.language_model import LanguageModel
from nocap.model.logged import Logs
from nocap.training.build_optimizers import Optimizers, build_optimizers
from nocap.training.cuda_graph import MicroBatchGraph
from nocap.training.job import Job


class ScoreTime(NamedTuple):
    """Say how long it took to know which training windows are read."""

    total_s: float
    now_s: float  # of them, while the trainee was built

    @property
    def earlier_s(self) -> float:
        """Return what other runs have spent on it."""
        return self.total_s - self.now_s


@dataclass(kw_only=True)
class Trainee:
    """What a step updates, and what it reads."""

    model: LanguageModel
    parameters: list[nn.Parameter]
    optimizers: Optimizers
    forward: nn.Module  # the model, behind DDP where there are ranks
    logs: Logs  # what the model's modules log in a forward
    train: Windows
    val: Windows
    scores: ScoreTime
    # a micro-batch, where `trainer.cuda_graphs`: `nocap.training.warm_up` makes it
    graph: MicroBatchGraph | None = None
    next_batch: NextBatch | None = None
    # time.perf_counter() when the last wait for the GPU ended, where it has computed ever since
    wait_end: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NextBatch:
    """A step's batch, read while the GPU computed the step before."""

    step: int
    batch: torch.Tensor


def configure_numerics(run: Run) -> None:
    """Set the number of threads, and let fp32 mean fp32: TF32 is off."""
    torch.set_num_threads(run.trainer.threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def build(job: Job) -> Trainee:
    """Return the model, its optimizers and its windows, on the device of this rank, compiled where
    the run is."""
    run = job.run
    world = job.world
    model = build_model(run, vocab_size=job.vocab_size).to(world.device)
    logs = Logs(model)
    optimizers = build_optimizers(run, model)
    run.attention.prepare(run, world.device)
    for _, idea, part in model.joined:
        idea.prepare(part, run=run, device=world.device)
    mode = run.trainer.compile
    if mode is not Compile.off:
        modules = list(model.regions())
        if mode is Compile.full:
            modules = [model]
        compile_in_place(modules, tuned=mode is Compile.max)
    forward: nn.Module = model
    if world.size > 1:
        # Every rank computes the same buffers: without this, every forward would broadcast them.
        buffers = [name for name, _ in model.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, buffers)
        forward = DistributedDataParallel(model, gradient_as_bucket_view=True)
    train = train_windows(run, job.train_shards)
    val = val_windows(run, job.val_shards)
    times = [ScoreTime(*idea.arrange(train, job)) for idea in run.ideas.values()]
    scores = ScoreTime(
        total_s=sum(time.total_s for time in times), now_s=sum(time.now_s for time in times)
    )
    return Trainee(
        model=model,
        parameters=list(model.parameters()),
        optimizers=optimizers,
        forward=forward,
        logs=logs,
        train=train,
        val=val,
        scores=scores,
    )


def autocast(run: Run, precision: Precision) -> torch.autocast:
    """Return bf16 autocast, or none. Its cache of cast weights is torch's default: on, for the
    length of the block."""
    return torch.autocast(
        run.trainer.device.value, dtype=torch.bfloat16, enabled=precision is Precision.bf16
    )
