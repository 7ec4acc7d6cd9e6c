"""The inputs of a pass on one batch of prompts of one length: replacement activations and the base runs' past."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits.circuit import Kind, Node
from circuits.engine.decoder import Decoder
from circuits.engine.indices import on_device
from circuits.engine.lens import hook_name, places
from circuits.engine.sources import Sources
from circuits.engine.trie import Places, Trie
from circuits.interventions import Base, Recipe

KeysValues = tuple[Tensor, Tensor]  # [prompt, group, position, d_head] each
Site = tuple[Kind, int]  # kind, layer


class Inputs:
    """Inputs of the passes of some tries on one batch. What is not on the device is copied there once."""

    def __init__(self, decoder: Decoder, sources: Sources, device: torch.device, tries: Iterable[Trie]) -> None:
        self.decoder, self.sources, self.device = decoder, sources, device
        self.batch = sources.prompts
        self.length = int(self.batch.end[0]) + 1
        self._numbers: dict[Site, dict[Recipe, int]] = {}
        for kind, layer, recipe in (item for trie in tries for item in trie.recipes):
            numbers = self._numbers.setdefault((kind, layer), {})
            numbers.setdefault(recipe, len(numbers))
        self._tables: dict[Site, Tensor] = {}
        self._places: dict[Places | None, tuple[np.ndarray, np.ndarray]] = {}
        self._tokens: dict[Base, Tensor] = {}
        self._past: dict[Base, list[KeysValues]] = {}

    def tokens(self, base: Base) -> Int[Tensor, "prompt position"]:
        if base not in self._tokens:
            tokens = self.batch.clean if base == "clean" else self.batch.corrupted
            self._tokens[base] = on_device(tokens[:, : self.length], self.device)
        return self._tokens[base]

    # --- sources ---------------------------------------------------------------------------------------------------

    def number(self, kind: Kind, layer: int, recipe: Recipe) -> int:
        """A recipe's index in the `table` of its site."""
        return self._numbers[kind, layer][recipe]

    def has(self, kind: Kind, layer: int) -> bool:
        """True if the tries replace anything at a site."""
        return (kind, layer) in self._numbers

    def table(self, kind: Kind, layer: int) -> Float[Tensor, "source prompt position ..."]:
        """The replacement activations of each recipe of the tries at a site, on its layer's device; embeddings as they enter the
        stream."""
        key = (kind, layer)
        if key not in self._tables:
            name = hook_name(Node(kind, layer))
            device = self.decoder.layers[layer].device
            values = [self.sources.get(name, recipe)[:, : self.length] for recipe in self._numbers[key]]
            if len({value.device for value in values}) > 1:
                values = [on_device(value, device) for value in values]
            stacked = torch.stack(values) if len(values) > 1 else values[0][None]
            table = on_device(stacked.to(self.decoder.dtype), device).contiguous()
            self._tables[key] = self.decoder.place(table) if kind == "embedding" else table
        return self._tables[key]

    def where(self, roles: Places | None) -> tuple[Int[np.ndarray, " place"], Int[np.ndarray, " place"]]:
        """(prompt, position) of every token that roles name; None: of all tokens."""
        if roles not in self._places:
            if roles is None:
                rows = np.arange(len(self.batch) * self.length)
                self._places[None] = rows // self.length, rows % self.length
            else:
                found = [torch.stack(places(self.batch, role)).numpy() for role in roles]
                prompt, position = np.concatenate(found, 1)
                self._places[roles] = prompt, position
        return self._places[roles]

    # --- read-out --------------------------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> tuple[Int[Tensor, "prompt answer"], Int[Tensor, "prompt foil"]]:
        """Token ids of the answers and of the foils."""
        both = on_device(torch.cat([self.batch.answers, self.batch.wrong], 1), self.device)
        return both[:, : self.batch.answers.shape[1]], both[:, self.batch.answers.shape[1] :]

    @cached_property
    def some_without_foils(self) -> bool:
        """True if some prompt has no foils and is compared with the whole vocabulary."""
        return any(self.batch.without_foils.tolist())

    @cached_property
    def direction(self) -> tuple[Float[Tensor, "prompt d_model"], Float[Tensor, " prompt"]]:
        """`Decoder.direction` of the candidates."""
        return self.decoder.direction(*self.candidates)

    # --- the base runs' past ---------------------------------------------------------------------------------------

    def past(self, base: Base, layer: int, first: int) -> KeysValues:
        """Keys and values of the base run before position `first`."""
        if not first:
            weights = self.decoder.layers[layer]
            empty = weights.qkv.new_empty(len(self.batch), self.decoder.n_groups, 0, self.decoder.d_head)
            return empty, empty
        if base not in self._past:
            self._past[base] = self._run(base)
        k, v = self._past[base][layer]
        return k[:, :, :first].contiguous(), v[:, :, :first].contiguous()

    def _run(self, base: Base) -> list[KeysValues]:
        """Keys and values of every layer at all positions except the last."""
        decoder, kept = self.decoder, []
        stream = decoder.place(decoder.embed(self.tokens(base)[:, :-1]))
        for weights in decoder.layers:
            stream = stream.to(weights.device)
            q, k, v = decoder.projected(weights, decoder.norm(stream))
            q, k = (decoder.rotate(x, number=weights.table) for x in (q, k))
            kept.append((k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()))
            if len(kept) < decoder.n_layers:
                output = decoder.project(weights, decoder.attend(q, k, v, window=weights.window))
                middle = stream + decoder.attended(weights, output)
                stream = middle + decoder.mlp(weights, stream if decoder.parallel else middle)
        return kept
