"""torch.compile as nocap uses it: whole graphs of fixed shapes, and no fallback that nobody
sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nocap.config.paths import HEADERS, private_caches

VERSIONS = 256  # of one piece of code: a model's layers, and the arms of a bench, live side by side
# What a compiled region calls to choose the kernels of its attention, by their names.
CHOOSING = ("torch.nn.attention._backend_from_string", "torch.nn.attention._sdpa_kernel")

TUNED: dict[str, Any] = {"max_autotune": True, "coordinate_descent_tuning": True}  # Inductor's


def compiled(
    function: Callable[..., Any], options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Return the compiled function, a version for each shape. Past `VERSIONS` it raises; dynamo's
    own limit is 8, where it goes on uncompiled."""
    _prepare()
    return torch.compile(function, fullgraph=True, dynamic=False, options=options)


def compile_in_place(modules: list[nn.Module], *, tuned: bool = False) -> None:
    """Compile modules in place. They keep their names."""
    _prepare()
    options = TUNED if tuned else None
    for module in modules:
        module.compile(fullgraph=True, dynamic=False, options=options)


def compiler_failed(error: Exception) -> bool:
    """Say whether the compiler raised an error, and not the code that it compiled."""
    return isinstance(error, torch._dynamo.exc.BackendCompilerFailed)


def _prepare() -> None:
    places = private_caches()
    from torch._inductor import codecache, config

    headers = f"{places['TORCHINDUCTOR_CACHE_DIR']}/precompiled_headers"
    codecache._HEADER_DIR = headers
    codecache._HEADER_LOCK_DIR = f"{headers}/locks"
    config.cpp_cache_precompile_headers = places[HEADERS] != "0"
    # All that these depend on is in the code of a graph. torch does not know it, and traced each
    # block again in each process, though its kernels were in the cache.
    chosen = dict.fromkeys(CHOOSING, torch.__version__)
    marked = config.unsafe_marked_cacheable_functions | chosen
    config.unsafe_marked_cacheable_functions = marked
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, VERSIONS)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 4 * VERSIONS)
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")  # fp32 means fp32 here
    # what a module logs in a part that is computed again in the backward pass
    dynamo.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    # it would cut a region where DDP's bucket ends; each region's backward is a bucket's worth
    # already
    dynamo.optimize_ddp = False
