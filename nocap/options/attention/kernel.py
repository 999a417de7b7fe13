"""The kernels of attention, and which of them run where."""

from __future__ import annotations

from enum import Enum

from nocap.config.trainer import Device, Precision


class Kernel(Enum):
    """How attention is computed: global layers by one of the first six, sliding windows by one of
    the last two."""

    materialized = "materialized"  # softmax over a T×T matrix that exists in memory
    # torch's own choice of a fused kernel for the device and dtype; on the CPU that is flash
    fused = "fused"
    # this kernel or an error
    flash = "flash"
    efficient = "efficient"
    cudnn = "cudnn"
    flex = "flex"  # FlexAttention, whose CPU version has no backward
    blocks = "blocks"  # chunks of a window or more; each attends to itself and the chunk before it


# Those that take documents. On CUDA `fused` is efficient then, which alone takes a mask of all
# pairs, and flex alone leaves out what is hidden.
DOCUMENT_KERNELS = {
    Device.cpu: (Kernel.materialized, Kernel.fused, Kernel.flash, Kernel.blocks),
    Device.cuda: (
        Kernel.materialized,
        Kernel.fused,
        Kernel.efficient,
        Kernel.flex,
        Kernel.blocks,
    ),
}
CUDA_KERNELS = (Kernel.efficient, Kernel.cudnn, Kernel.flex)  # no CPU trains with these
BF16_KERNELS = (Kernel.flash, Kernel.cudnn)  # on CUDA; on a CPU flash takes fp32
LOCAL_KERNELS = (Kernel.flex, Kernel.blocks)
GLOBAL_KERNELS = tuple(kernel for kernel in Kernel if kernel is not Kernel.blocks)


def sdpa_kernels(
    kernel: Kernel, device: Device, precision: Precision, *, masked: bool = False
) -> tuple[Kernel, ...]:
    """Return the fused kernels that may run here, `masked` with a mask of all pairs: torch takes
    the first that it prefers on this chip, or raises."""
    if device is Device.cpu:
        return (Kernel.flash,)
    if precision is Precision.fp32 or masked:
        return (Kernel.efficient,)
    if kernel is Kernel.fused:
        return (Kernel.cudnn, Kernel.flash, Kernel.efficient)
    return (kernel,)


def broken_rule(
    kernel: Kernel, device: Device, precision: Precision, *, masked: bool
) -> str | None:
    """Return the rule that a kernel breaks here, `masked` by documents; None: it trains."""
    has_cuda = device is Device.cuda
    if kernel in CUDA_KERNELS and not has_cuda:
        return "be a kernel for the CPU: materialized, fused, flash, or (with a window) blocks"
    if kernel in BF16_KERNELS and has_cuda and precision is not Precision.bf16:
        return (
            "be fused or efficient with trainer.precision=fp32 on CUDA; flash and cudnn do "
            "not take fp32"
        )
    if masked and kernel not in DOCUMENT_KERNELS[device]:
        beside = f"with data.document_mask=true on trainer.device={device.value}"
        return f"be one of {names(DOCUMENT_KERNELS[device])} {beside}"
    return None


def names(kernels: tuple[Kernel, ...]) -> str:
    return ", ".join(kernel.value for kernel in kernels)
