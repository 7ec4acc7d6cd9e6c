"""Runs one trie on one batch of prompts: states [state, prompt, position, d_model] from the embedding to the scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits.circuit import Kind, Node
from circuits.engine.decoder import Decoder, Layer
from circuits.engine.lens import hook_name, put_in_place
from circuits.engine.scores import Scores, of_logits
from circuits.engine.sources import Sources
from circuits.engine.trie import NOTHING, Edit, Part, Trie
from circuits.interventions import Base, Recipe
from circuits.narrow_weights import wide

KeysValues = tuple[Tensor, Tensor]  # [prompt, group, position, d_head] each


class Inputs:
    """What is put in place on one batch of prompts of one length, on the model's device, and the base runs' past."""

    def __init__(self, decoder: Decoder, sources: Sources, device: torch.device) -> None:
        self.decoder, self.sources, self.device = decoder, sources, device
        self.batch = sources.prompts
        self.length = int(self.batch.end[0]) + 1
        self._kept: dict[tuple[str, int, Recipe], Tensor] = {}
        self._past: dict[Base, list[KeysValues]] = {}

    def tokens(self, base: Base) -> Int[Tensor, "prompt position"]:
        tokens = self.batch.clean if base == "clean" else self.batch.corrupted
        return tokens[:, : self.length].to(self.device)

    def source(self, kind: Kind, layer: int, recipe: Recipe) -> Float[Tensor, "prompt position ..."]:
        """What a recipe puts in place at a site; of an embedding, as it stands in the stream."""
        key = (kind, layer, recipe)
        if key not in self._kept:
            value = self.sources.get(hook_name(Node(kind, layer)), recipe)[:, : self.length]
            value = value.to(self.device, self.decoder.dtype)
            self._kept[key] = self.decoder.place(value) if kind == "embedding" else value
        return self._kept[key]

    def past(self, base: Base, layer: int, first: int) -> KeysValues:
        """Keys and values of the base run before position `first`."""
        if not first:
            empty = self.decoder.embedding.new_empty(len(self.batch), self.decoder.n_groups, 0, self.decoder.d_head)
            return empty, empty
        if base not in self._past:
            self._past[base] = self._run(base)
        k, v = self._past[base][layer]
        return k[:, :, :first], v[:, :, :first]

    def _run(self, base: Base) -> list[KeysValues]:
        """Keys and values of all but the last position."""
        decoder, kept = self.decoder, []
        stream = decoder.place(decoder.embed(self.tokens(base)[:, :-1]))
        for weights in decoder.layers:
            q, k, v = decoder.projected(weights, decoder.norm(stream))
            q, k = (decoder.rotate(x, number=weights.table) for x in (q, k))
            kept.append((k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()))
            if len(kept) < decoder.n_layers:
                output = decoder.project(weights, decoder.attend(q, k, v, window=weights.window))
                middle = stream + decoder.attended(weights, output)
                stream = middle + decoder.mlp(weights, stream if decoder.parallel else middle)
        return kept


class Rows:
    """One trie on one batch. Positions before `first` are the base run's and are not computed."""

    def __init__(self, engine: Any, inputs: Inputs, base: Base, first: int, trie: Trie) -> None:
        self.base: Base = base
        self.engine, self.inputs, self.first, self.trie = engine, inputs, first, trie
        self.decoder, self.batch = inputs.decoder, inputs.batch
        self.n = len(self.batch)

    def scores(self, probabilities: bool) -> Scores:
        """Of every variant, in the trie's order."""
        embedded = self.decoder.embed(self.inputs.tokens(self.base))
        stream = self.decoder.place(embedded)[None, :, self.first :]
        for layer in range(self.decoder.n_layers):
            stream = self._enter(layer, stream)  # in two steps, so that no third copy is alive
            stream = self._block(layer, stream)
        return self._score_last_position(stream[:, :, 0], probabilities)

    # --- one layer -------------------------------------------------------------------------------------------------

    def _enter(self, layer: int, stream: Float[Tensor, "state prompt position d_model"]) -> Tensor:
        """The streams that enter a layer, after edits of the embedding and of the residual stream."""
        step = self.trie.steps[layer, "stream"]
        if step.trivial:
            return stream
        entering = stream[self._index(step.parent)]
        for rows, edit in zip(entering, step.edits, strict=True):
            self._edit(rows, edit, layer, self.first)
        return entering

    def _block(
        self, layer: int, stream: Float[Tensor, "state prompt position d_model"]
    ) -> Float[Tensor, "child prompt written d_model"]:
        """The streams that leave a layer; after the last layer, their last position alone."""
        attention, mlp = self.trie.steps[layer, "attention"], self.trie.steps[layer, "mlp"]
        last = layer == self.decoder.n_layers - 1
        start = self.inputs.length - 1 if last else self.first
        written = self.inputs.length - start
        leaving = stream.new_empty(len(mlp.parent), self.n, written, self.decoder.d_model)
        for states, edit in self._runs(layer, stream):
            entering = stream[states]
            residual = entering[:, :, -written:]
            beside = self._mlp(layer, residual) if self.decoder.parallel else None
            children = attention.children(states)
            if edit is not None:
                middle = self._attended_alike(layer, entering, residual, edit, start)
                self._leave(
                    layer, middle, self._mlp(layer, middle) if beside is None else beside, children, start, leaving
                )
                continue
            z = self._attention(self.decoder.layers[layer], self._past(layer), entering, last)
            for own in self._blocks(children, written):
                parent = self._index(attention.parent[own] - states.start)
                middle = self._attended(layer, z, residual, parent, attention.edits[own], start)
                output = self._mlp(layer, middle) if beside is None else beside[parent]
                self._leave(layer, middle, output, own, start, leaving)
        return leaving

    def _runs(
        self, layer: int, stream: Float[Tensor, "state prompt position d_model"]
    ) -> Iterator[tuple[slice, Edit | None]]:
        """Blocks of consecutive states, each with the edit of attention that all its states share, or None.

        A shared edit is the only one of each state, and it replaces whole heads at all positions, or nothing.
        """
        step, per_state = self.trie.steps[layer, "attention"], self.n * stream.shape[2]
        single = np.bincount(step.parent, minlength=len(stream)) == 1
        edit_of = [step.edits[at] for at in np.searchsorted(step.parent, np.arange(len(stream)))]
        kinds = [edit if one and _whole_heads(edit) else None for one, edit in zip(single, edit_of, strict=True)]
        start = 0
        for kind, states in groupby(kinds):
            stop = start + len(list(states))
            alone = kind is not None and (kind == NOTHING or (stop - start) * per_state >= self.engine.smallest_product)
            for block in self._blocks(slice(start, stop), stream.shape[2]):
                yield block, kind if alone else None
            start = stop

    def _past(self, layer: int, heads: Sequence[int] | None = None) -> KeysValues:
        """Keys and values of the base run: those of each of `heads`, or of all groups."""
        past = self.inputs.past(self.base, layer, self.first)
        if heads is None or len(heads) == self.decoder.n_heads:
            return past
        groups = [self.decoder.layers[layer].group[head] for head in heads]
        return past[0][:, groups], past[1][:, groups]

    def _attention(
        self, weights: Layer, past: KeysValues, stream: Float[Tensor, "state prompt position d_model"], last: bool
    ) -> Float[Tensor, "state prompt query head d_head"]:
        """z of the states' own positions, or of the last one alone; they attend to the base run's past and to each other."""
        decoder, first = self.decoder, self.first
        normed = decoder.norm(stream)
        if last:
            q, k, v = decoder.keys_values_and_last_query(weights, normed, normed[:, :, -1])
        else:
            q, k, v = decoder.projected(weights, normed)
        q = decoder.rotate(q, slice(self.inputs.length - q.shape[2], None), weights.table)
        k = decoder.rotate(k, slice(first, None), weights.table)
        past_length = past[0].shape[2]
        if last:
            return decoder.attend_last(q, k, v, past, weights.window)
        if not decoder.is_softmax(self.inputs.length, weights.window):
            return decoder.attend_after(q, k, v, past, weights.window)
        seen = sum(range(past_length + 1, past_length + k.shape[2] + 1))
        decoder.flops.add(4 * q[:, :, 0].numel() * seen)
        if first:
            return self.engine.operations.suffix_attention(
                *(x.transpose(2, 3) for x in (q, k, v)), *past, decoder.scale
            )
        rows = (x.flatten(0, 1).transpose(1, 2) for x in (q, k, v))
        return self.engine.operations.packed_attention(*rows, decoder.scale).unflatten(0, (len(stream), self.n))

    def _attended_alike(
        self,
        layer: int,
        stream: Float[Tensor, "state prompt position d_model"],
        residual: Float[Tensor, "state prompt query d_model"],
        edit: Edit,
        start: int,
    ) -> Float[Tensor, "state prompt query d_model"]:
        """Stream plus attention output of states that all take the same edit.

        Replaced heads are not computed: what they write is the same in all states.
        """
        weights = self.decoder.layers[layer]
        replaced = {head: recipe for _, (recipe, heads, _) in edit for head in heads}
        kept = [head for head in range(weights.n_heads) if head not in replaced]
        constant = weights.output_bias
        assert constant is not None  # every layer of the model has one, of zeros if need be
        for _, (recipe, heads, _) in edit:
            source = self.inputs.source("head", layer, recipe)[:, start:, list(heads)]
            constant = constant + self.decoder.project(weights.keep(heads), source)
        if not kept:
            return residual + self.decoder.attended(weights, constant)
        some = weights.keep(kept)
        z = self._attention(some, self._past(layer, kept), stream, layer == self.decoder.n_layers - 1)
        return residual + self.decoder.attended(weights, self.decoder.project(some, z) + constant)

    def _attended(
        self,
        layer: int,
        z: Float[Tensor, "state prompt query head d_head"],
        residual: Float[Tensor, "state prompt query d_model"],
        parent: Int[Tensor, " child"],
        edits: Sequence[Edit],
        start: int,
    ) -> Float[Tensor, "child prompt query d_model"]:
        """Stream plus attention output of some children, after their edits of heads and of the whole output."""
        weights = self.decoder.layers[layer]
        if weights.attention_gain is None and all(map(_whole_heads, edits)):
            return self._select_and_project(layer, z, residual, parent, edits, start)
        selected = z[parent]
        for rows, edit in zip(selected, edits, strict=True):
            self._edit(rows, [part for part in edit if part[0] == "head"], layer, start)
        output = self.decoder.attended(weights, self.decoder.project(weights, selected))
        for rows, edit in zip(output, edits, strict=True):
            self._edit(rows, [part for part in edit if part[0] == "attention"], layer, start)
        return output + residual[parent]

    def _select_and_project(
        self,
        layer: int,
        z: Float[Tensor, "state prompt query head d_head"],
        residual: Float[Tensor, "state prompt query d_model"],
        parent: Int[Tensor, " child"],
        edits: Sequence[Edit],
        start: int,
    ) -> Float[Tensor, "child prompt query d_model"]:
        """`_attended` where whole heads are replaced at all positions: one operation for all children."""
        weights = self.decoder.layers[layer]
        recipes = {recipe: None for edit in edits for _, (recipe, _, _) in edit}
        numbers = {recipe: number for number, recipe in enumerate(recipes)}
        pick = np.full((len(edits), self.decoder.n_heads), -1, np.int32)
        for child, edit in enumerate(edits):
            for _, (recipe, heads, _) in edit:
                pick[child, list(heads)] = numbers[recipe]
        rows = z.flatten(1, 2)
        self.decoder.flops.add(2 * len(parent) * rows.shape[1] * weights.output.numel())
        sources = [self.inputs.source("head", layer, recipe)[:, start:].flatten(0, 1) for recipe in recipes]
        out = self.engine.operations.select_project(
            rows,
            torch.stack(sources) if sources else rows[:0],
            torch.as_tensor(pick, device=z.device),
            parent.to(torch.int32),
            wide(weights.output),
            weights.output_bias,
            residual.flatten(1, 2),
        )
        return out.unflatten(1, (self.n, z.shape[2]))

    def _mlp(self, layer: int, stream: Float[Tensor, "*state d_model"]) -> Float[Tensor, "*state d_model"]:
        return self.decoder.mlp(self.decoder.layers[layer], stream)

    def _leave(
        self,
        layer: int,
        middle: Float[Tensor, "state prompt query d_model"],
        output: Float[Tensor, "state prompt query d_model"],
        states: slice,
        start: int,
        leaving: Float[Tensor, "child prompt query d_model"],
    ) -> None:
        """Edit the MLP's output, add it to the stream and store the result in `leaving`."""
        step = self.trie.steps[layer, "mlp"]
        children = step.children(states)
        if not any(step.edits[children]):
            torch.add(middle, output, out=leaving[children])
            return
        for child in range(children.start, children.stop):
            parent = step.parent[child] - states.start
            own = output[parent].clone()
            self._edit(own, step.edits[child], layer, start)
            torch.add(middle[parent], own, out=leaving[child])

    # --- edits -----------------------------------------------------------------------------------------------------

    def _edit(self, rows: Tensor, edit: Sequence[tuple[Kind, Part]], layer: int, start: int) -> None:
        """Apply an edit to one state's [prompt, position, ...], whose first position is `start`."""
        for kind, (recipe, heads, positions) in edit:
            source = self.inputs.source(kind, layer, recipe)[:, start:]
            put_in_place(rows, source, positions, list(heads), self.batch, start)

    # --- read-out --------------------------------------------------------------------------------------------------

    def _score_last_position(self, stream: Float[Tensor, "state prompt d_model"], probabilities: bool) -> Scores:
        decoder, batch = self.decoder, self.batch
        if not self.trie.shifts.trivial:
            stream = stream[self._index(self.trie.shifts.parent)]
            for rows, shifts in zip(stream, self.trie.shifts.edits, strict=True):
                for shift in shifts:
                    rows += self._shift(*shift)
        if batch.without_foils.any() or decoder.logit_cap is not None:
            found = self._of_all_logits(stream)
            return found if probabilities else Scores(found.logit_diff, found.correct, None)
        direction, constant = decoder.direction(batch.answers, batch.wrong)
        leaves = self._index(self.trie.leaves)
        difference = self.engine.operations.logit_difference(
            stream, direction, constant, leaves.to(torch.int32), decoder.eps, decoder.centred
        )
        decoder.flops.add(2 * stream.numel())
        if probabilities or batch.answers.shape[1] + batch.wrong.shape[1] > 2:
            found = self._of_all_logits(stream)
            kept = (found.answer_probability, found.foil_probability) if probabilities else (None, None)
            return Scores(difference.cpu().numpy(), found.correct, *kept)
        return Scores(difference.cpu().numpy(), (difference > 0).cpu().numpy(), None, None)

    def _of_all_logits(self, stream: Float[Tensor, "state prompt d_model"]) -> Scores:
        """Scores of the variants from the logits of the whole vocabulary, of which a block at a time is held."""
        blocks = [stream[at] for at in self._blocks(slice(0, len(stream)), 1)]
        parts = [of_logits(self.decoder.logits(some).flatten(0, 1), self.batch, len(some), True) for some in blocks]
        names = ("logit_diff", "correct", "answer_probability", "foil_probability")
        return Scores(*(np.concatenate([getattr(part, name) for part in parts])[self.trie.leaves] for name in names))

    def _shift(self, writer: Node, held: Recipe, shown: Recipe) -> Float[Tensor, "prompt d_model"]:
        """What is added to the final norm's input if it sees a writer under one recipe instead of another."""
        shown_less_held = self._at_end(writer, shown) - self._at_end(writer, held)
        if writer.kind != "head":
            return shown_less_held
        return shown_less_held[:, writer.index] @ self.decoder.layers[writer.layer].output[writer.index]

    def _at_end(self, writer: Node, recipe: Recipe) -> Float[Tensor, "prompt ..."]:
        return self.inputs.source(writer.kind, writer.layer, recipe)[:, -1]

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _blocks(self, states: slice, positions: int) -> Iterator[slice]:
        """Consecutive states with no more rows than one matrix product takes."""
        size = max(1, self.engine.tokens_per_block // (self.n * positions))
        for lower in range(states.start, states.stop, size):
            yield slice(lower, min(lower + size, states.stop))

    def _index(self, numbers: np.ndarray) -> Int[Tensor, " child"]:
        return torch.as_tensor(numbers, device=self.inputs.device)


def _whole_heads(edit: Edit) -> bool:
    """True if an edit of attention replaces whole heads at all positions, or nothing."""
    return all(kind == "head" and positions is None for kind, (_, _, positions) in edit)
