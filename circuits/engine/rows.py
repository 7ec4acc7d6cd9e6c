"""Runs one trie on one batch of prompts: states [state, prompt, position, d_model] from the embedding to the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.engine.decoder import Layer
from circuits.engine.indices import on_device
from circuits.engine.inputs import Inputs, KeysValues
from circuits.engine.schedule import AttentionBlock, Block, MlpBlock, Schedule, ShiftGroup, Sizes, Writes
from circuits.engine.scores import Scores, table_of_logits
from circuits.engine.trie import Edit, Trie
from circuits.interventions import Base
from circuits.narrow_weights import wide


@dataclass(frozen=True)
class _Alike:
    """Attention of states that share one edit: weights and past of the heads that it keeps (`weights` None: it keeps none).

    `constant` is the output of the replaced heads plus the output bias, the same in all states; None: `weights` has the bias.
    """

    weights: Layer | None
    past: KeysValues
    constant: Tensor | None


class Rows:
    """One trie on one batch. Positions before `first` are those of the base run and are not computed."""

    def __init__(self, engine: Any, inputs: Inputs, base: Base, first: int, trie: Trie) -> None:
        self.base: Base = base
        self.engine, self.inputs, self.first, self.trie = engine, inputs, first, trie
        self.decoder, self.batch = inputs.decoder, inputs.batch
        self.n = len(self.batch)

    def scores(self, probabilities: bool) -> Scores:
        """The scores of every variant, in the trie's order."""
        decoder, engine, length = self.decoder, self.engine, self.inputs.length
        sizes = Sizes(self.n, decoder.n_heads, length, self.first, engine.tokens_per_block, engine.smallest_product)
        self.schedule = Schedule(self.trie, decoder.n_layers, sizes, self.inputs.where, self.inputs.number)
        self.indices = self.schedule.indices
        embedded = self.decoder.embed(self.inputs.tokens(self.base))
        stream = self.decoder.place(embedded)[None, :, self.first :]
        for layer, weights in enumerate(self.decoder.layers):
            stream = self._moved(stream, weights.device)
            stream = self._enter(layer, stream)  # in two steps, so that no third copy is held
            stream = self._layer(layer, stream)
        return self._score_last_position(self._moved(stream[:, :, 0], decoder.unembedding.device), probabilities)

    def _moved(self, stream: Tensor, device: torch.device) -> Tensor:
        """A stream on the device of the weights that read it next, where the indices are read from then on."""
        self.indices.send(device)
        return stream.to(device)

    # --- one layer -------------------------------------------------------------------------------------------------

    def _enter(self, layer: int, stream: Float[Tensor, "state prompt position d_model"]) -> Tensor:
        """The streams that enter a layer, after edits of the embedding and of the residual stream."""
        schedule = self.schedule.layers[layer]
        if schedule.parent is None:
            return stream
        entering = stream.index_select(0, self.indices.long(schedule.parent))
        for block in schedule.stream:
            self._write(entering[block.states], block.writes, layer, self.first)
        return entering

    def _layer(
        self, layer: int, stream: Float[Tensor, "state prompt position d_model"]
    ) -> Float[Tensor, "child prompt written d_model"]:
        """The streams that leave a layer; for the last layer, only their last position."""
        schedule = self.schedule.layers[layer]
        start = self.inputs.length - 1 if layer == self.decoder.n_layers - 1 else self.first
        leaving = stream.new_empty(schedule.n_children, self.n, self.inputs.length - start, self.decoder.d_model)
        past = self.inputs.past(self.base, layer, self.first)
        alike: dict[Edit, _Alike] = {}
        last = {block.edit: number for number, block in enumerate(schedule.blocks)}
        for number, block in enumerate(schedule.blocks):
            entering = stream[block.states]
            if block.edit is None:
                self._own_edits(layer, entering, block, past, start, leaving)
                continue
            if block.edit not in alike:
                alike[block.edit] = self._alike(layer, block.edit, past, start)
            residual = entering[:, :, start - self.first :]
            middle = self._attended_alike(layer, entering, residual, alike[block.edit])
            output = self._mlp(layer, residual if self.decoder.parallel else middle)
            self._leave(layer, middle, output, block.mlp, start, leaving)
            if last[block.edit] == number:
                del alike[block.edit]  # an output of all prompts and positions for each edit would add up
        return leaving

    def _own_edits(
        self,
        layer: int,
        entering: Float[Tensor, "state prompt position d_model"],
        block: Block,
        past: KeysValues,
        start: int,
        leaving: Float[Tensor, "child prompt written d_model"],
    ) -> None:
        """Computes a block whose states do not share one edit, into `leaving`."""
        residual = entering[:, :, start - self.first :]
        beside = self._mlp(layer, residual) if self.decoder.parallel else None
        z = self._attention(layer, self.decoder.layers[layer], past, entering)
        sources = self._head_sources(layer, start) if any(own.pick is not None for own in block.attention) else None
        for own in block.attention:
            middle = self._attended(layer, z, residual, own, start, sources)
            if beside is None:
                output = self._mlp(layer, middle)
            else:
                output = beside.index_select(0, self.indices.long(own.parent))
            self._leave(layer, middle, output, own.mlp, start, leaving)

    def _attention(
        self, layer: int, weights: Layer, past: KeysValues, stream: Float[Tensor, "state prompt position d_model"]
    ) -> Float[Tensor, "state prompt query head d_head"]:
        """z of the states' own positions, which attend to the base run's past and to each other.

        In the last layer, only z of the last position.
        """
        decoder, first, last = self.decoder, self.first, layer == self.decoder.n_layers - 1
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

    def _mlp(self, layer: int, stream: Float[Tensor, "*state d_model"]) -> Float[Tensor, "*state d_model"]:
        return self.decoder.mlp(self.decoder.layers[layer], stream)

    # --- states that take the same edit ----------------------------------------------------------------------------

    def _alike(self, layer: int, edit: Edit, past: KeysValues, start: int) -> _Alike:
        """The shared edit of some states. Replaced heads are not computed, because their output is the same in all states."""
        weights = self.decoder.layers[layer]
        if not edit:
            return _Alike(weights, past, None)
        constant = weights.output_bias
        assert constant is not None  # every layer has an output bias, if need be of zeros
        for kind, (recipe, heads, _) in edit:
            chosen = on_device(torch.tensor(heads), weights.device)
            source = self.inputs.table(kind, layer)[self.inputs.number(kind, layer, recipe), :, start:]
            writers = replace(weights, output=weights.output.index_select(0, chosen), output_bias=None)
            constant = constant + self.decoder.project(writers, source.index_select(2, chosen))
        replaced = {head for _, (_, heads, _) in edit for head in heads}
        kept = [head for head in range(weights.n_heads) if head not in replaced]
        if not kept:
            return _Alike(None, past, constant)
        groups = on_device(torch.tensor([weights.group[head] for head in kept]), weights.device)
        return _Alike(weights.keep(kept), (past[0].index_select(1, groups), past[1].index_select(1, groups)), constant)

    def _attended_alike(
        self,
        layer: int,
        stream: Float[Tensor, "state prompt position d_model"],
        residual: Float[Tensor, "state prompt query d_model"],
        alike: _Alike,
    ) -> Float[Tensor, "state prompt query d_model"]:
        """Stream plus attention output."""
        if alike.weights is None:
            assert alike.constant is not None  # the output of the replaced heads
            output = alike.constant
        else:
            output = self.decoder.project(alike.weights, self._attention(layer, alike.weights, alike.past, stream))
            output = output if alike.constant is None else output + alike.constant
        return residual + self.decoder.attended(self.decoder.layers[layer], output)

    # --- children that take edits of their own ---------------------------------------------------------------------

    def _attended(
        self,
        layer: int,
        z: Float[Tensor, "state prompt query head d_head"],
        residual: Float[Tensor, "state prompt query d_model"],
        own: AttentionBlock,
        start: int,
        sources: Float[Tensor, "source row head d_head"] | None,
    ) -> Float[Tensor, "child prompt query d_model"]:
        """Stream plus attention output of some children, after their edits of heads and of the whole output."""
        weights = self.decoder.layers[layer]
        if own.pick is not None:  # one operation serves all children
            rows, normed = z.flatten(1, 2), weights.attention_gain is not None
            self.decoder.flops.add(2 * own.n_children * rows.shape[1] * weights.output.numel())
            out = self.engine.operations.select_project(
                rows,
                rows[:0] if sources is None else sources,
                self.indices.short(own.pick),
                self.indices.short(own.parent),
                wide(weights.output),
                weights.output_bias,
                (torch.zeros_like(residual) if normed else residual).flatten(1, 2),
            ).unflatten(1, (self.n, z.shape[2]))
            if not normed:
                return out
            return self.decoder.attended(weights, out) + residual.index_select(0, self.indices.long(own.parent))
        parent = self.indices.long(own.parent)
        selected = z.index_select(0, parent)
        self._write(selected, [writes for writes in own.writes if writes.kind == "head"], layer, start)
        output = self.decoder.attended(weights, self.decoder.project(weights, selected))
        self._write(output, [writes for writes in own.writes if writes.kind == "attention"], layer, start)
        return output + residual.index_select(0, parent)

    def _head_sources(self, layer: int, start: int) -> Float[Tensor, "source row head d_head"] | None:
        """Replacements of a layer's heads from position `start` on; None if no head is replaced."""
        if not self.inputs.has("head", layer):
            return None
        return self.inputs.table("head", layer)[:, :, start:].flatten(1, 2)

    def _leave(
        self,
        layer: int,
        middle: Float[Tensor, "state prompt query d_model"],
        output: Float[Tensor, "state prompt query d_model"],
        blocks: Sequence[MlpBlock],
        start: int,
        leaving: Float[Tensor, "child prompt query d_model"],
    ) -> None:
        """Edit the MLP's output in place, add it to the stream and store the result in `leaving`."""
        for block in blocks:
            own, stream = output, middle
            if block.parent is not None:
                parent = self.indices.long(block.parent)
                own, stream = output.index_select(0, parent), middle.index_select(0, parent)
            self._write(own, block.writes, layer, start)
            torch.add(stream, own, out=leaving[block.children])

    def _write(
        self, states: Float[Tensor, "state prompt written ..."], writes: Sequence[Writes], layer: int, start: int
    ) -> None:
        """Write the edits' values into states whose first position is `start`, with two operations for all of them."""
        for one in writes:
            table = self.inputs.table(one.kind, layer)
            into, of = self.indices.long(one.into), self.indices.long(one.of)
            if one.whole:
                states.index_copy_(0, into, table[:, :, start:].index_select(0, of))
            else:
                width = table.shape[-1]
                states.view(-1, width).index_copy_(0, into, table.view(-1, width).index_select(0, of))

    # --- read-out --------------------------------------------------------------------------------------------------

    def _score_last_position(self, stream: Float[Tensor, "state prompt d_model"], probabilities: bool) -> Scores:
        decoder, (answers, wrong) = self.decoder, self.inputs.candidates
        stream = self._shifted(stream)
        if self.inputs.some_without_foils or decoder.logit_cap is not None:
            return self._of_all_logits(stream, probabilities)
        direction, constant = self.inputs.direction
        leaves = self.indices.short(self.schedule.leaves)
        difference = self.engine.operations.logit_difference(
            stream, direction, constant, leaves, decoder.eps, decoder.centred
        )
        decoder.flops.add(2 * stream.numel())
        found = difference.cpu().numpy()
        if probabilities or answers.shape[1] + wrong.shape[1] > 2:
            return replace(self._of_all_logits(stream, probabilities), logit_diff=found)
        return Scores(found, found > 0, None, None)

    def _of_all_logits(self, stream: Float[Tensor, "state prompt d_model"], probabilities: bool) -> Scores:
        """Scores of the variants from the logits of the whole vocabulary, one block of rows at a time."""
        parts = [
            table_of_logits(
                self.decoder.logits(stream[states]).flatten(0, 1),
                *self.inputs.candidates,
                self.inputs.some_without_foils,
                probabilities,
            )
            for states in replace(self.schedule.sizes, largest=self.engine.logits_per_block).blocks(
                slice(0, len(stream)), 1
            )
        ]
        return Scores.of_table(torch.cat(parts, 1).cpu().numpy()[:, self.trie.leaves])

    def _shifted(self, stream: Float[Tensor, "state prompt d_model"]) -> Float[Tensor, "child prompt d_model"]:
        """The final norm's input, shifted where it sees a writer under a recipe other than the writer's own."""
        shifts = self.schedule.shifts
        if shifts is None:
            return stream
        every = torch.cat([self._of_group(group).to(stream.device) for group in shifts.groups])
        self.indices.send(stream.device)
        stream = stream.index_select(0, self.indices.long(shifts.parent))
        for children, numbers in shifts.rounds:  # each child once per round, so that no two threads add at one place
            stream.index_add_(0, self.indices.long(children), every.index_select(0, self.indices.long(numbers)))
        return stream

    def _of_group(self, group: ShiftGroup) -> Float[Tensor, "shift prompt d_model"]:
        """The vector that each shift by writers of one kind and layer adds to the stream, on the layer's device."""
        self.indices.send(self.decoder.layers[group.layer].device)
        at_end = self.inputs.table(group.kind, group.layer)[:, :, -1]
        held, shown = self.indices.long(group.held), self.indices.long(group.shown)
        if group.heads is None:
            return at_end.index_select(0, shown) - at_end.index_select(0, held)
        heads = self.indices.long(group.heads)
        moved = at_end[shown, :, heads] - at_end[held, :, heads]
        return moved @ self.decoder.layers[group.layer].output.index_select(0, heads)
