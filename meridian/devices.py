"""Several GPUs in one machine: each job of a multirun gets one that no other job has."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

VISIBLE = "CUDA_VISIBLE_DEVICES"
SECONDS_BETWEEN_TRIES = 1.0


class OneGPUEach(Callback):
    """`hydra/callbacks=one_gpu_each`: a job waits until one of its visible GPUs is free, and then sees only that one.

    It is for launchers that start a process for each job and show it all GPUs (hydra/launcher=gpus). A lock of the operating
    system holds the GPU, so a killed job frees it. Jobs that see no GPU are left as they are.
    """

    def __init__(self) -> None:
        self.lock: FileLock | None = None

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        visible = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
        if len(visible) > 1:
            self.lock, os.environ[VISIBLE] = free(visible)

    def on_job_end(self, config: DictConfig, **_: Any) -> None:
        if self.lock is not None:
            self.lock.release()


def free(names: Sequence[str]) -> tuple[FileLock, str]:
    """Wait until a GPU of `names` is free; return its lock and its name."""
    folder = Path(tempfile.gettempdir()) / f"meridian-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    while True:
        for name in names:
            lock = FileLock(folder / f"{name}.lock")
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=0)
                return lock, name
        time.sleep(SECONDS_BETWEEN_TRIES)
