"""The timed sweeps, which resemble the work of Meridian's measurements in kind and proportion."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from circuits.circuit import Node, head
from circuits.interventions import Recipe, Sweep, ablate, denoise
from results_io import UserError
from scripts.benchmarks.flops import DecoderShape

SUBSETS = 1000
SUBSET_SIZES = (2, 5, 10, 20)  # and half of the heads
DRAWS = 4  # of resample and noise ablation, as in the battery's default
CIRCUIT_SHARE = 0.18  # heads in a circuit: 26 of GPT-2-small's 144
ROLES = 4
BATTERY_AND_RANDOM = 240  # variants
SITES = ("residual", "attention", "mlp")
POSITIONS = ("first", "middle", "last")
SEED = 0
RECIPES = (
    *(Recipe("zero"), Recipe("mean"), Recipe("mean", pooled=True)),
    *(Recipe(kind, draw=draw) for kind in ("resample", "noise") for draw in range(DRAWS)),
)


@dataclass(frozen=True)
class Workload:
    """One sweep, and the first position at which its clean and corrupted prompts differ, as a share of the length.

    A share of 0 means position 1, just after the BOS token.
    """

    name: str
    build: Callable[[DecoderShape], Sweep]
    unchanged_share: float = 0.0

    def first_changed(self, length: int) -> int:
        return max(1, round(self.unchanged_share * length))


def all_heads(shape: DecoderShape) -> Sweep:
    """Denoise each head on its own, at all positions."""
    return Sweep(tuple(denoise([node], str(node)) for node in _heads(shape)))


def random_subsets(shape: DecoderShape) -> Sweep:
    """1,000 random sets of heads, mean-ablated: equal numbers of sets of 2, 5, 10, 20 and half of the heads."""
    heads = _heads(shape)
    sizes = sorted({min(size, len(heads)) for size in SUBSET_SIZES} | {len(heads) // 2})
    rng = random.Random(SEED)
    chosen = [sorted(rng.sample(heads, sizes[i * len(sizes) // SUBSETS])) for i in range(SUBSETS)]
    return Sweep(tuple(ablate(nodes, Recipe("mean"), f"{i}: {len(nodes)} heads") for i, nodes in enumerate(chosen)))


def random_halves(shape: DecoderShape) -> Sweep:
    """1,000 random halves of the heads, mean-ablated."""
    heads, rng = _heads(shape), random.Random(SEED)
    chosen = (sorted(rng.sample(heads, len(heads) // 2)) for _ in range(SUBSETS))
    return Sweep(tuple(ablate(nodes, Recipe("mean"), f"half {i}") for i, nodes in enumerate(chosen)))


def battery(shape: DecoderShape) -> Sweep:
    """A random circuit alone, its complement alone, nothing, and the circuit without each role, in every recipe and draw."""
    heads, rng = _heads(shape), random.Random(SEED)
    circuit = set(rng.sample(heads, max(ROLES, round(CIRCUIT_SHARE * len(heads)))))
    replaced = {"circuit": set(heads) - circuit, "complement": circuit, "empty": set(heads)}
    replaced |= {f"without role {role}": set(sorted(circuit)[role::ROLES]) for role in range(ROLES)}
    return Sweep(
        tuple(
            ablate(sorted(nodes), recipe, f"{subset}/{recipe}")
            for subset, nodes in replaced.items()
            for recipe in RECIPES
        )
    )


def battery_and_random_circuits(shape: DecoderShape) -> Sweep:
    """The battery, and random circuits of its circuit's size under mean ablation: 240 variants, a study's default."""
    heads, rng, conditions = _heads(shape), random.Random(SEED + 1), battery(shape).variants
    size = max(ROLES, round(CIRCUIT_SHARE * len(heads)))
    outside = (sorted(set(heads) - set(rng.sample(heads, size))) for _ in range(BATTERY_AND_RANDOM - len(conditions)))
    return Sweep((*conditions, *(ablate(nodes, Recipe("mean"), f"random {i}") for i, nodes in enumerate(outside))))


def causal_tracing(shape: DecoderShape) -> Sweep:
    """Restore the residual stream, attention output or MLP output of each layer at each named position."""
    places = [(kind, layer, place) for kind in SITES for layer in range(shape.n_layers) for place in POSITIONS]
    return Sweep(tuple(denoise([Node(kind, at)], f"{kind}{at}/{place}", (place,)) for kind, at, place in places))


WORKLOADS = {
    work.name: work
    for work in (
        Workload("all-heads patching", all_heads),
        Workload("all-heads patching, second half", all_heads, 0.5),
        Workload("1,000 random subsets", random_subsets),
        Workload("1,000 random halves", random_halves),
        Workload("ablation battery", battery),
        Workload("causal tracing by position", causal_tracing, 0.5),
    )
}


def get(name: str) -> Workload:
    """The work with this name. UserError if there is none."""
    if name not in WORKLOADS:
        raise UserError(f"benchmark work {name!r} is unknown; use one of {', '.join(map(repr, WORKLOADS))}")
    return WORKLOADS[name]


def spread(sweep: Sweep, count: int) -> Sweep:
    """At most `count` variants: the middle one of each of `count` equal parts of the sweep.

    Sweeps are ordered by layer or by size, so every layer and every size keeps its share.
    """
    size = len(sweep)
    if count >= size:
        return sweep
    return Sweep(tuple(sweep.variants[(2 * i + 1) * size // (2 * count)] for i in range(count)))


def _heads(shape: DecoderShape) -> list[Node]:
    return [head(layer, index) for layer in range(shape.n_layers) for index in range(shape.n_heads)]
