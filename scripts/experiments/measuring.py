"""Measure many models on all cores: one process and one thread for each, which leaves no core waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from circuits import models
from scripts.experiments import pools
from scripts.experiments.judging import cores
from scripts.experiments.pools import Group
from scripts.experiments.stored import Pool


def measured(groups: Sequence[Group], config: Mapping[str, Any], folder: Path) -> Iterator[list[Pool]]:
    """The pools of each group as they are done, and those of the random claims.

    A GPU is given one model at a time.
    """
    workers = cores() if models.device_of(config["model"]) == "cpu" else 1
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as processes:
        tasks = [processes.submit(pools.random_pools, config, folder)]
        tasks += [processes.submit(pools.planted_pools, group, config, folder) for group in groups]
        for task in as_completed(tasks):
            yield task.result()


def _one_thread() -> None:
    torch.set_num_threads(1)
