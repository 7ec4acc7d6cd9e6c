"""One sweep on several devices: each holds the weights and runs a share of the variants. The numbers are those of one device."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from circuits.engine import trie
from circuits.engine.decoder import Decoder, Layer
from circuits.engine.fused import FusedEngine, operations_on
from circuits.engine.lens import Advance, LensEngine
from circuits.engine.memory import Allowance
from circuits.engine.scores import Scores
from circuits.engine.sources import Activations, ReferenceActivations
from circuits.interventions import Base, Effects, Sweep
from circuits.models import Model
from circuits.prompts import PromptSet

Part = TypeVar("Part", Decoder, Layer)


@dataclass(frozen=True, eq=False)
class PlacedModel(Model):
    """A model whose decoder is on its own device; the bridge stays where it is, since no replica uses it."""

    where: torch.device

    @property
    def device(self) -> torch.device:
        return self.where


class ShardedEngine(FusedEngine):
    """A fused backend that distributes the variants of each sweep over `devices`, the first of which is the model's own.

    Neighbouring variants of a sweep stay together, since they share most work. Interventions on paths, which need the model's
    modules, run on the first device.
    """

    def __init__(self, fused: FusedEngine, devices: Sequence[torch.device]) -> None:
        self.__dict__.update(fused.__dict__)
        sharing = Counter(devices)
        self.room = fused.room // sharing[devices[0]]
        self.allowance = Allowance(self.room)
        self.replicas = tuple(_replica(fused, device, sharing[device]) for device in devices[1:])
        self._moved_references: dict[ReferenceActivations, dict[torch.device, ReferenceActivations]] = {}

    def on(self, reference: PromptSet) -> LensEngine:
        """The same engine with other reference prompts."""
        other = super().on(reference)
        assert isinstance(other, ShardedEngine)
        other.replicas = tuple(map(copy, self.replicas))
        return other

    def describe(self) -> dict[str, Any]:
        """As `FusedEngine.describe`, with the devices."""
        devices = [str(engine.model.device) for engine in (self, *self.replicas)]
        return {**super().describe(), "devices": devices}

    def implementations(self) -> dict[str, dict[str, str]]:
        """As `FusedEngine.implementations`; if devices differ for a signature, it lists both."""
        found: dict[str, dict[str, set[str]]] = {}
        for engine in (self, *self.replicas):
            for operation, choices in engine.operations.implementations().items():
                for signature, chosen in choices.items():
                    found.setdefault(operation, {}).setdefault(signature, set()).add(chosen)
        return {
            operation: {signature: " or ".join(sorted(chosen)) for signature, chosen in choices.items()}
            for operation, choices in found.items()
        }

    @torch.no_grad()
    def run(self, sweep: Sweep, prompts: PromptSet, advance: Advance | None = None) -> Effects:
        """As `FusedEngine.run`."""
        if not self.decoder.can_run(int(prompts.end.max()) + 1):
            return super().run(sweep, prompts, advance)
        self._check(sweep, prompts)  # once for all, since the replicas have no modules to check
        self._prefetch_reference(sweep)
        for replica in self.replicas:
            replica.reference = self._reference_of(replica)
            replica._alive, replica._wired = self._alive, self._wired
        lock, scores = threading.Lock(), Scores.empty(sweep, prompts, self.model.dtype)

        def finished(pairs: int) -> None:
            with lock:
                if advance is not None:
                    advance(pairs)

        def share(engine: FusedEngine, numbers: list[int]) -> tuple[list[int], Effects]:
            own = replace(sweep, variants=tuple(sweep.variants[number] for number in numbers))
            return numbers, FusedEngine.run(engine, own, prompts, finished)

        shares = [(engine, own) for engine, own in zip((self, *self.replicas), self._shares(sweep), strict=True) if own]
        with ThreadPoolExecutor(len(shares) or 1) as pool:
            for numbers, found in pool.map(lambda one: share(*one), shares):
                scores.put(numbers, list(range(len(prompts))), Scores.of(found))
        return scores.effects(sweep, prompts)

    def _reference_of(self, replica: FusedEngine) -> ReferenceActivations:
        """The first device's reference activations, copied to the replica's device, so that nothing is run again."""
        own, device = self.reference, replica.model.device
        if device == self.model.device:
            return own
        if own not in self._moved_references:
            self._moved_references.clear()

        def moved(prompts: PromptSet, base: Base, hooks: tuple[str, ...]) -> Activations:
            return {hook: own.activations(hook).to(device) for hook in hooks}

        known = self._moved_references.setdefault(own, {})
        if device not in known:
            known[device] = ReferenceActivations(own.prompts, moved, own.constants)
        return known[device]

    def _shares(self, sweep: Sweep) -> list[list[int]]:
        """Indices of the variants for every device."""
        apart = [trie.final_norm_change(variant) is None for variant in sweep.variants]
        on_nodes = [number for number, rows in enumerate(apart) if not rows]
        first, *others = (list(map(int, part)) for part in np.array_split(on_nodes, 1 + len(self.replicas)))
        return [sorted([*first, *(number for number, rows in enumerate(apart) if rows)]), *others]


def _replica(fused: FusedEngine, device: torch.device, sharing: int) -> FusedEngine:
    """The same backend with its weights on `device`: copied, or the same tensors if they are there already.

    It has the device's room divided by `sharing`, the number of replicas on it.
    """
    other = copy(fused)
    model = fused.model
    other.model = PlacedModel(model.identity, model.bridge, model.tokenizer, model.value_constants, device)
    other.decoder = placed(fused.decoder, device)
    other.room = (fused.room if device == model.device else fused.room_on(device)) // sharing
    other.allowance = Allowance(other.room)
    other.tokens_per_block = fused.tokens_per_block
    other.operations = operations_on(device, fused.operations.implementation)
    return other


def placed(decoder: Decoder, device: torch.device) -> Decoder:
    """A decoder whose weights are on `device`."""
    layers = tuple(_moved(layer, device) for layer in decoder.layers)
    angles_of = decoder.angles_of

    def angles(length: int) -> tuple[tuple[Tensor, Tensor], ...]:
        assert angles_of is not None  # called only with rotary positions
        return tuple((cos.to(device), sin.to(device)) for cos, sin in angles_of(length))

    moved = replace(_moved(decoder, device), layers=layers, _angles={})
    return moved if angles_of is None else replace(moved, angles_of=angles)


def _moved(part: Part, device: torch.device) -> Part:
    tensors = {one.name: getattr(part, one.name) for one in fields(part)}
    return replace(part, **{name: value.to(device) for name, value in tensors.items() if isinstance(value, Tensor)})
