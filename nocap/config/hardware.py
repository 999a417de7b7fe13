"""What this machine is, found without importing torch: so a command answers in a fraction of a
second, and its workers agree with it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import runpy
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from nocap.config.keys import require
from nocap.config.paths import private_caches
from nocap.config.trainer import Device, Malloc, Precision

Fact = str | int | float | bool | None  # of a machine

# Dense peak TFLOP/s without sparsity, from the vendors' data sheets: the driver's whole name, after
# NVIDIA → (bf16 tensor cores, fp32 with TF32 off). A chip that is not here has no MFU, nor has a
# slice of one (MIG), a laptop's or an export variant: another peak would be a lie.
PEAK_TFLOPS = {
    r"B200": (2250.0, 75.0),
    r"H200": (989.0, 67.0),
    r"H200 NVL": (835.0, 60.0),
    r"H100 PCIe": (756.0, 51.0),
    r"H100 NVL": (835.0, 60.0),
    r"H100 \d+GB HBM\d\w*": (989.0, 67.0),
    r"GH200 \d+GB?( HBM\d\w*)?": (989.0, 67.0),
    r"A100-(SXM4|PCIE)-\d+GB|A100 \d+GB PCIe": (312.0, 19.5),
    r"A40": (149.7, 37.4),
    r"A10G": (70.0, 35.0),
    r"A10": (125.0, 31.2),
    r"L40S": (362.0, 91.6),
    r"L4": (121.0, 30.3),
    r"GeForce RTX 5090": (209.5, 104.8),
    r"GeForce RTX 4090": (165.2, 82.6),
    r"GeForce RTX 4080": (97.5, 48.7),
    r"GeForce RTX 4080 SUPER": (104.4, 52.2),
    r"GeForce RTX 3090": (71.0, 35.6),
    r"GeForce RTX 3090 Ti": (80.0, 40.0),
}

_TARGET = ContextVar[tuple[str, str | None] | None]("target", default=None)


@contextmanager
def target(name: str | None, torch: str | None) -> Iterator[None]:
    """Plan, inside the block, for a machine with this GPU or CPU and torch; without a `name`, for
    this one.

    These answer for the target: `device_name`, `torch_build`, and with them `describe` and
    `peak_flops`. `capability` is not known there. `check_device`, `check_compiler` and
    `check_malloc` refuse nothing: the job checks again where it runs.

    These describe this machine, also inside the block: `cuda_devices`, `native_bf16`, `has_amx`,
    `has_glibc` and `cpp_compiler`, and so do the defaults that follow from them: device, precision,
    compilation, threads and malloc. A launcher's target states the first four, or a GPU decides
    them, and the pool of malloc is in no identity.
    """
    machine = None if name is None else (name, torch)
    before = _TARGET.set(machine)
    try:
        yield
    finally:
        _TARGET.reset(before)


def is_here() -> bool:
    """Say whether what is planned runs on this machine."""
    return _TARGET.get() is None


@cache
def cuda_devices() -> tuple[str, ...]:
    """Return the names of the GPUs that torch will see, from the CUDA driver;
    `CUDA_VISIBLE_DEVICES` is respected. Empty: none, or no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    names = []
    for index in range(count.value):
        driver.cuDeviceGetName(name, len(name), index)
        names.append(name.value.decode())
    return tuple(names)


def capability() -> tuple[int, int] | None:
    """Return the compute capability of the first GPU that a run is for; `None`: it is not here, or
    the driver does not say."""
    if not is_here():
        return None
    return _capability_here()


@cache
def _capability_here() -> tuple[int, int] | None:
    """Ask the CUDA driver."""
    if not cuda_devices():
        return None
    driver = ctypes.CDLL("libcuda.so.1")
    major = ctypes.c_int()
    minor = ctypes.c_int()
    # the driver's numbers of both
    for code, part in ((75, major), (76, minor)):
        if driver.cuDeviceGetAttribute(ctypes.byref(part), code, 0) != 0:
            return None
    return major.value, minor.value


def torch_build() -> dict[str, str | None]:
    """Return the `version` and `cuda` of torch where the run is trained."""
    build = _installed_torch()
    machine = _TARGET.get()
    if machine is None:
        return build
    _, torch = machine
    if not torch:
        return build
    return {**build, "version": torch}


@cache
def _installed_torch() -> dict[str, str | None]:
    """Read from its version file: importing torch would cost over a second."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ValueError("torch is not installed: pip install 'torch>=2.11'")
    facts = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return {"version": facts["__version__"], "cuda": facts["cuda"]}


def check_device(device: Device, devices: int, *, key: str = "trainer.device") -> None:
    """Refuse CUDA where it is absent, and more workers than GPUs."""
    if device is Device.cpu or not is_here():
        return
    build = torch_build()
    has_cuda = bool(build["cuda"])
    version = f"torch {build['version']}"
    require(has_cuda, f"{key}=cuda", "have a torch built for CUDA", version)
    n = len(cuda_devices())
    none = "no CUDA driver, or a driver that finds no GPU"
    require(n > 0, f"{key}=cuda", "have a GPU", none)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", devices))
    require(local <= n, "trainer.devices", f"be at most {n}, the number of visible GPUs", local)


def cpp_compiler() -> str | None:
    """Return the C++ compiler that torch.compile would use on a CPU."""
    return shutil.which(os.environ.get("CXX", "g++"))


def check_compiler(user: str, device: Device) -> None:
    """Refuse compilation on a CPU without a C++ compiler, or with a path that torch would split: it
    writes the compiler's command as one text. `user`: what compiles, for the message."""
    if device is not Device.cpu or not is_here():
        return
    compiler = os.environ.get("CXX", "g++")
    if not cpp_compiler():
        raise ValueError(f"{user} on the CPU needs a C++ compiler: install {compiler}, or set CXX")
    paths = {
        "CXX": compiler,
        "TORCHINDUCTOR_CACHE_DIR": private_caches()["TORCHINDUCTOR_CACHE_DIR"],
        "TMPDIR": tempfile.gettempdir(),
    }
    for variable, path in paths.items():
        rule = (
            f"be a path without blanks, quotes and backslashes for {user}, because torch would "
            "split the path"
        )
        require(_is_one_word(path), variable, rule, path)


def _is_one_word(path: str) -> bool:
    try:
        return shlex.split(path) == [path]
    except ValueError:  # a quote without its end
        return False


def native_bf16() -> bool:
    """Return whether the CPU multiplies bf16 natively."""
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & _cpu().flags)


def has_amx() -> bool:
    """Return whether the CPU has a matrix unit for bf16 (AMX)."""
    return "amx_bf16" in _cpu().flags


@cache
def has_glibc() -> bool:
    """Return whether this process has the C library whose pool `trainer.malloc` sets."""
    return platform.libc_ver()[0] == "glibc"


def check_malloc(malloc: Malloc) -> None:
    """Refuse a pool that this machine does not have.

    Errors:
        ValueError: it is such a pool.
    """
    fits = malloc is Malloc.system or has_glibc() or not is_here()
    require(
        fits,
        "trainer.malloc",
        "be system, because this machine's C library is not glibc",
        malloc.value,
    )


def device_name(device: Device) -> str:
    """Return the name of the GPU or CPU that a run is for."""
    machine = _TARGET.get()
    if machine is not None:
        name, _ = machine
        return name
    if device is Device.cuda:
        return cuda_devices()[0]
    return _cpu().name


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """The CPU of this machine."""

    name: str
    flags: frozenset[str] = frozenset()
    kind: str = ""  # family, model and stepping: in a cloud several kinds have one name


@cache
def _cpu() -> Cpu:
    """Describe this machine's CPU; off Linux by the platform's name for it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return Cpu(name=platform.processor() or platform.machine())
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.M)
    kind = re.findall(r"^(?:cpu family|model|stepping)\s*: (\d+)$", text, re.M)[:3]
    return Cpu(
        name=name[1] if name else platform.machine(),
        flags=frozenset(flags[1].split()) if flags else frozenset(),
        kind=".".join(kind),
    )


def describe(device: Device, threads: int) -> dict[str, Fact]:
    """Return the record's `hardware`. Times are comparable only between runs of one `fingerprint`,
    which names the host too."""
    build = torch_build()
    facts: dict[str, Fact] = {
        "device": device.value,
        "name": device_name(device),
        "cpu": _cpu().name,
        "cpu_kind": _cpu().kind,
        "cores": os.cpu_count(),
        "threads": threads,
        "host": platform.node(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": build["version"],
        "cuda": build["cuda"] if device is Device.cuda else None,
    }
    text = json.dumps(facts, sort_keys=True)
    facts["fingerprint"] = hashlib.sha256(text.encode()).hexdigest()[:12]
    return facts


def peak_flops(device: Device, precision: Precision) -> tuple[float | None, str]:
    """Return the FLOP/s that the chip could do at most, and where the figure is from; `None`, and
    why, where it is not known."""
    name = device_name(device)
    if device is Device.cuda:
        for pattern, (bf16, fp32) in PEAK_TFLOPS.items():
            if re.fullmatch(rf"(NVIDIA )?({pattern})", name):
                tflops = bf16 if precision is Precision.bf16 else fp32
                basis = f"{name}: {tflops:g} TFLOP/s dense {precision.value} (data sheet)"
                return tflops * 1e12, basis
    return None, f"no peak is known for {name} in {precision.value}"


def utilization(
    flops: float | None, device: Device, precision: Precision, devices: int
) -> float | None:
    """Return the MFU, model FLOP/s over what the devices could do at most; `None` where that is not
    known."""
    peak, _ = peak_flops(device, precision)
    if flops is None or not peak:
        return None
    return flops / (peak * devices)
