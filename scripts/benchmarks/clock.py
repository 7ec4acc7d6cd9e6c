"""Timing: warm-up, interleaved repeats, wall and process time, peak memory, and the machine's own peak."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.roofline import DEVICES

GEMM_SIZE = {"cpu": 2048, "cuda": 8192}
GEMM_REPEATS = 5
CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
MIB = 2**20


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: wall time (on a GPU, between two CUDA events) and process time over all cores."""

    wall: float
    cpu: float


def timed(work: Callable[[], object], device: str) -> Timing:
    """One run of `work`, after everything queued on the device has finished."""
    if not device.startswith("cuda"):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        return Timing(time.perf_counter() - wall, time.process_time() - cpu)
    with torch.cuda.device(device):  # events belong to the current device's stream
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        cpu = time.process_time()
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        return Timing(start.elapsed_time(stop) / 1000, time.process_time() - cpu)


def interleaved(works: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, list[Timing]]:
    """`repeats` timings of every work, interleaved so that a slow minute affects all of them alike."""
    found: dict[str, list[Timing]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            found[name].append(timed(work, device))
    return found


def strict_float32() -> None:
    """IEEE float32 everywhere: no TF32 in products or convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def gemm_peak(device: str, dtype: torch.dtype) -> float:
    """Operations per second of a large square matrix product (median of a few): the peak of the roofline."""
    size = GEMM_SIZE[device.split(":")[0]]
    first, second = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    work = {"product": lambda: first @ second}
    interleaved(work, 2, device)
    return 2 * size**3 / statistics.median(timing.wall for timing in interleaved(work, GEMM_REPEATS, device)["product"])


def datasheet_peak(device_name: str) -> float | None:
    """The vendor's float32 operations per second outside the tensor cores; None for a device not listed here."""
    return next((one.flops_per_second for name, one in DEVICES.items() if name.upper() in device_name), None)


def peak_memory(work: Callable[[], object], device: str) -> float | None:
    """MiB that `work` adds, at its peak, to what is already in memory.

    On a GPU this is the allocator's count. On a CPU it is the peak resident size of this process, which must be a fresh one;
    None if the system does not let a process reset that peak.
    """
    if device.startswith("cuda"):
        with torch.cuda.device(device):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            work()
            torch.cuda.synchronize()
            return (torch.cuda.max_memory_allocated() - before) / MIB
    try:
        CLEAR_REFS.write_text("5")  # resets the peak to the current size
    except OSError:
        return None
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    """A field of /proc/self/status, KiB."""
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
