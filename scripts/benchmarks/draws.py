"""Draws: what normal numbers cost, from Philox for a batch together and from torch's generator prompt by prompt."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from circuits.engine import philox
from circuits.engine.philox import NoiseStream
from scripts.benchmarks import clock

REPEATS = 5


@dataclass(frozen=True)
class Batch:
    """Numbers of prompts, layers, draws, and components of each."""

    prompts: int
    layers: int
    draws: int
    components: int

    @property
    def size(self) -> int:
        return self.prompts * self.layers * self.draws * self.components


def comparison(device: str, batch: Batch) -> str:
    """A line with nanoseconds a component of either way: medians of repeats that alternate, after one to warm up."""
    ids = [f"prompt {number}" for number in range(batch.prompts)]
    streams = [NoiseStream("attn.hook_z", layer, draw) for layer in range(batch.layers) for draw in range(batch.draws)]
    ways = {
        "Philox": lambda: philox.normal(philox.keys(0, ids, device), streams, batch.components, torch.float32),
        "torch.randn": lambda: prompt_by_prompt(device, batch),
    }
    found = clock.interleaved(ways, 1 + REPEATS, device)
    each = {
        name: statistics.median(time.wall for time in times[1:]) / batch.size * 1e9 for name, times in found.items()
    }
    ratio = each["Philox"] / each["torch.randn"]
    return (
        f"normal numbers on {device}, {batch.size:,} of them: Philox {each['Philox']:.2f} ns each, torch.randn on the CPU, "
        f"prompt by prompt, and copied {each['torch.randn']:.2f} ns ({ratio:.2f} times)"
    )


def prompt_by_prompt(device: str, batch: Batch) -> None:
    """A generator for each (layer, draw, prompt), as noise was drawn before it came from a counter."""
    for stream in range(batch.layers * batch.draws):
        out = torch.empty(batch.prompts, batch.components)
        for row in range(batch.prompts):
            generator = torch.Generator().manual_seed(stream * batch.prompts + row)
            out[row] = torch.randn(batch.components, generator=generator)
        out.to(device)
