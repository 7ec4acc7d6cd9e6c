"""What a task is: a generator of prompt pairs and its companions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from circuits.tasks.example import Example


@dataclass(frozen=True)
class Task:
    """A behaviour with clean and corrupted prompts.

    `sample(rng)` draws one Example; the caller draws until each split is full. `companions` are the other tasks
    on whose prompts the circuit should not matter (discriminant validity, C17). `roles` lists the named
    positions in reading order, "end" last.
    """

    name: str
    title: str
    sample: Callable[[random.Random], Example]
    roles: tuple[str, ...]
    companions: tuple[str, ...]
    bos: bool = True
