"""torch.compile as nocap uses it: whole graphs of fixed shapes, and no fallback that nobody sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

VERSIONS = 256  # of one piece of code: a model's layers, and the arms of a bench, live side by side

TUNED: dict[str, Any] = {"max_autotune": True, "coordinate_descent_tuning": True}  # Inductor's


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function, a version for each shape. Past `VERSIONS` it raises; dynamo's own limit is 8, where it goes on uncompiled."""
    _allow_versions()
    return torch.compile(function, fullgraph=True, dynamic=False)


def compile_in_place(modules: list[nn.Module], *, tuned: bool = False) -> None:
    """The same for modules, which keep their names."""
    _allow_versions()
    for module in modules:
        module.compile(fullgraph=True, dynamic=False, options=TUNED if tuned else None)


def compiler_failed(error: Exception) -> bool:
    """Whether it is the compiler that raised it, not what the compiled code computes."""
    return isinstance(error, torch._dynamo.exc.BackendCompilerFailed)


def _allow_versions() -> None:
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, VERSIONS)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 4 * VERSIONS)
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")  # fp32 means fp32 here
    config.optimize_ddp = False  # it would cut a region where DDP's bucket ends; each region's backward is a bucket's worth already
