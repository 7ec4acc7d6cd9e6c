"""The cost of normal draws: with Philox for a whole batch, and with torch's generator prompt by prompt."""

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
    """The numbers of prompts, layers and draws, and of components in each draw."""

    prompts: int
    layers: int
    draws: int
    components: int

    @property
    def size(self) -> int:
        return self.prompts * self.layers * self.draws * self.components


def comparison(device: str, batch: Batch) -> str:
    """A line with nanoseconds per component for both ways: medians of alternating repeats, after one warm-up."""
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
    """Draw with one generator for each (layer, draw, prompt), as was done before the counter-based generator."""
    for stream in range(batch.layers * batch.draws):
        out = torch.empty(batch.prompts, batch.components)
        for row in range(batch.prompts):
            generator = torch.Generator().manual_seed(stream * batch.prompts + row)
            out[row] = torch.randn(batch.components, generator=generator)
        out.to(device)
