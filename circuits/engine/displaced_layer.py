"""A layer with the weights of one head displaced, and all later layers, as a differentiable function; one head per chain.

Only the displaced head differs from the intact layer, so only its part is computed, exactly:

    q' = q_h + x W_Q'   (k', v' likewise, for the whole group)      z'_g = softmax(scale q'_g k'^T, causal) v'
    attention = intact + sum over the heads g that share k' and v' of (z'_g - z_g) W_O^g + z'_h W_O'

x = norm(stream) of the intact layer, whose q, k, v, z and output depend only on the prompt and are computed once. Each
distinct prefix of a chain's prompts is computed once. In the last layer, positions before the end get only keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from circuits.engine import prefixes
from circuits.engine.decoder import Decoder
from circuits.engine.prefixes import Prefixes

Change = Mapping[str, Float[Tensor, "chain from to"]]  # W_Q, W_K, W_V: [d_model, d_head]; W_O: [d_head, d_model]
PROJECTIONS = ("W_Q", "W_K", "W_V")


class DisplacedLayer:
    """Layer `layer` of a decoder on some prompts, and all layers after it.

    `stream` is what enters the layer on the intact run.
    """

    def __init__(
        self,
        decoder: Decoder,
        layer: int,
        stream: Float[Tensor, "prompt position d_model"],
        tokens: Int[Tensor, "prompt position"],
        end: Int[Tensor, " prompt"],
    ) -> None:
        weights, length = decoder.layers[layer], int(end.max()) + 1
        self.decoder, self.layer, self.end = decoder, layer, end.to(weights.device)
        stream, tokens = stream[:, :length].to(weights.device), tokens[:, :length].to(weights.device)
        self.numbers, place = prefixes.number(tokens, self.end)
        with torch.no_grad():
            normed = decoder.norm(stream)
            q, k, v = decoder.projected(weights, normed)
            z = decoder.attend(decoder.rotate(q), decoder.rotate(k), v)
            written = stream + decoder.project(weights, z)
            if decoder.parallel:  # the MLP reads the stream entering the layer, which does not change
                written = written + decoder.mlp(weights, stream)
            intact = (normed, q, k, v, z, written)
            self._normed, self._q, self._k, self._v, self._z, self._written = (x.flatten(0, 1)[place] for x in intact)

    def final(
        self, change: Change, rows: Int[Tensor, "chain row"], heads: Int[Tensor, " chain"]
    ) -> Float[Tensor, "prompt d_model"]:
        """The final stream at the end of each chain's prompts `rows`, with its head's weights displaced by `change`."""
        decoder, device = self.decoder, self.end.device
        change = {name: matrix.to(device) for name, matrix in change.items()}
        rows, heads = rows.to(device), heads.to(device)
        seen = Prefixes.of(self.numbers[rows], self.end[rows])
        stream = self._written[seen.prefix] + self._difference(change, seen, heads)
        if self.layer == decoder.n_layers - 1:
            stream = seen.last(stream)
        if not decoder.parallel:
            stream = stream + decoder.mlp(decoder.layers[self.layer], stream)
        for layer in range(self.layer + 1, decoder.n_layers):
            if decoder.layers[layer].device != stream.device:
                stream, seen = stream.to(decoder.layers[layer].device), seen.to(decoder.layers[layer].device)
            stream = (
                self._block(layer, stream, seen) if layer < decoder.n_layers - 1 else self._last_block(stream, seen)
            )
        return stream

    # --- the displaced layer ---------------------------------------------------------------------------------------

    def _difference(
        self, change: Change, seen: Prefixes, heads: Int[Tensor, " chain"]
    ) -> Float[Tensor, "chain node d_model"]:
        """Attention's output minus that of the intact layer."""
        shared = self.decoder.n_heads // self.decoder.n_groups
        group = (heads // shared)[:, None]
        readers = group * shared + torch.arange(shared, device=heads.device)  # the heads that share keys and values
        own = (readers == heads[:, None]).to(self._z.dtype)
        before = self._z[seen.prefix[..., None], readers[:, None]]
        after = self._moved(change, seen, readers, group, own)
        mine = einsum(after, own, "chain node reader dh, chain reader -> chain node dh")
        values = torch.cat(((after - before).flatten(-2), mine), -1)
        weights = self.decoder.layers[self.layer].output[readers].flatten(1, 2)
        return values @ torch.cat((weights, change["W_O"]), 1)

    def _moved(
        self,
        change: Change,
        seen: Prefixes,
        readers: Int[Tensor, "chain reader"],
        group: Int[Tensor, "chain 1"],
        own: Float[Tensor, "chain reader"],
    ) -> Float[Tensor, "chain node reader d_head"]:
        """z' of `readers`, the heads that share the displaced head's keys and values."""
        gain = self._normed[seen.prefix] @ torch.cat([change[name] for name in PROJECTIONS], 2)
        gain_q, gain_k, gain_v = gain[..., None, :].chunk(3, -1)
        q, k, v = (
            table[seen.prefix[..., None], index[:, None]]
            for table, index in ((self._q, readers), (self._k, group), (self._v, group))
        )
        joint = torch.cat((q + gain_q * own[:, None, :, None], k + gain_k, v + gain_v), 2)
        q, k, v = seen.spread(joint).split((readers.shape[1], 1, 1), 2)
        return seen.collect(self._attend(q, k, v))

    # --- the layers after it ---------------------------------------------------------------------------------------

    def _block(
        self, layer: int, stream: Float[Tensor, "chain node d_model"], seen: Prefixes
    ) -> Float[Tensor, "chain node d_model"]:
        decoder, weights = self.decoder, self.decoder.layers[layer]
        sizes = (weights.n_heads, weights.n_groups, weights.n_groups)
        joint = functional.linear(decoder.norm(stream), weights.qkv, weights.qkv_bias)
        q, k, v = seen.spread(joint).unflatten(-1, (sum(sizes), weights.d_head)).split(sizes, -2)
        z = self._attend(q, k, v)
        middle = stream + decoder.project(weights, seen.collect(z))
        return middle + decoder.mlp(weights, stream if decoder.parallel else middle)

    def _attend(
        self,
        q: Float[Tensor, "prompt position head d_head"],
        k: Float[Tensor, "prompt position group d_head"],
        v: Float[Tensor, "prompt position group d_head"],
    ) -> Float[Tensor, "prompt position head d_head"]:
        """z, causal. Written out because on a CPU and short prompts its gradient costs two thirds of the fused kernel's."""
        decoder, length = self.decoder, q.shape[1]
        q = rearrange(decoder.rotate(q), "row at (group reader) dh -> row at group reader dh", group=k.shape[2])
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        k, terms = decoder.rotate(k), "row at group reader dh, row of group dh -> row group reader at of"
        scores = einsum(q * decoder.scale, k, terms)
        pattern = scores.masked_fill(later, -torch.inf).softmax(-1)
        return einsum(pattern, v, "row group reader at of, row of group dh -> row at group reader dh").flatten(2, 3)

    def _last_block(
        self, stream: Float[Tensor, "chain node d_model"], seen: Prefixes
    ) -> Float[Tensor, "prompt d_model"]:
        """The last block at the prompts' ends."""
        decoder, weights = self.decoder, self.decoder.layers[-1]
        at_end = seen.last(stream)
        attend = self._attend_last if decoder.angles_of else self._attend_last_unrotated
        middle = at_end + decoder.project(weights, attend(decoder.norm(stream), decoder.norm(at_end), seen))
        return middle + decoder.mlp(weights, at_end if decoder.parallel else middle)

    def _attend_last(
        self, normed: Float[Tensor, "chain node d_model"], at_end: Float[Tensor, "prompt d_model"], seen: Prefixes
    ) -> Float[Tensor, "prompt head d_head"]:
        """z at the prompts' ends."""
        decoder, weights = self.decoder, self.decoder.layers[-1]
        (w_q, w_kv), (b_q, b_kv) = self._split()
        q = functional.linear(at_end, w_q, b_q).unflatten(1, (1, -1, weights.d_head))
        joint = seen.spread(functional.linear(normed, w_kv, b_kv))
        k, v = joint.unflatten(-1, (2, -1, weights.d_head)).unbind(2)
        q, k = decoder.rotate(q, seen.ends[:, None]), decoder.rotate(k)
        return decoder.attend(q, k, v, seen.before_end[:, None, None])[:, 0]

    def _attend_last_unrotated(
        self, normed: Float[Tensor, "chain node d_model"], at_end: Float[Tensor, "prompt d_model"], seen: Prefixes
    ) -> Float[Tensor, "prompt head d_head"]:
        """z at the prompts' ends without keys and values: q . W_K x = (q W_K) . x, and sum a W_V x = W_V sum a x.

        A key's bias adds the same number to all scores of a query, so it does not change the attention pattern.
        """
        decoder, weights = self.decoder, self.decoder.layers[-1]
        (w_q, w_kv), (b_q, b_kv) = self._split()
        w_k, w_v = w_kv.unflatten(0, (2, -1, weights.d_head))
        b_v = b_kv.unflatten(0, (2, -1, 1, weights.d_head))[1]
        q = functional.linear(at_end, w_q, b_q).unflatten(1, (weights.n_groups, -1, weights.d_head))
        terms = "prompt group reader dh, group dh d -> prompt group reader d"
        asked = einsum(q * decoder.scale, w_k, terms).flatten(1, 2)
        inputs = seen.spread(normed)
        pattern = (asked @ inputs.mT).masked_fill(~seen.before_end[:, None], -torch.inf).softmax(-1)
        read = (pattern @ inputs).unflatten(1, (weights.n_groups, -1))
        z = einsum(read, w_v, "prompt group reader d, group dh d -> prompt group reader dh")
        return (z + b_v).flatten(1, 2)

    def _split(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """((W_Q, W_KV), (b_Q, b_KV)) of the last layer, keys and values together."""
        weights = self.decoder.layers[-1]
        sizes = (weights.n_heads * weights.d_head, 2 * weights.n_groups * weights.d_head)
        bias = weights.qkv.new_zeros(sum(sizes)) if weights.qkv_bias is None else weights.qkv_bias
        (w_q, w_kv), (b_q, b_kv) = weights.qkv.split(sizes), bias.split(sizes)
        return (w_q, w_kv), (b_q, b_kv)
