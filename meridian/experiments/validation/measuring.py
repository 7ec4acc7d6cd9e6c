"""Measures many models on all cores, with one process and one thread for each, so that no core waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from circuits import devices
from meridian.experiments import processes
from meridian.experiments.validation import pools
from meridian.experiments.validation.pools import ClaimPool
from meridian.experiments.validation.stored import Pool


def measured(groups: Sequence[ClaimPool], config: Mapping[str, Any], folder: Path) -> Iterator[list[Pool]]:
    """The pools of each group and of the random claims, in order of completion.

    A GPU runs one model at a time.
    """
    workers = None if devices.device_of(config["model"]) == "cpu" else 1
    tasks = [(_on_one_thread, pools.planted_pools, group, config, folder) for group in groups]
    random = (_on_one_thread, pools.random_pools, config, folder)
    for _, made in processes.results([*tasks[:1], random, *tasks[1:]], workers):
        yield made


def _on_one_thread(make: Callable[..., list[Pool]], *arguments: Any) -> list[Pool]:
    torch.set_num_threads(1)
    return make(*arguments)
