"""The layers from one on with a head of that layer displaced, a different one in each row, as a differentiable function.

Only the displaced head differs from the intact layer, so its part alone is computed, exactly:

    q' = q_h + x W_Q', k' and v' likewise        z' = softmax(scale q' k'^T, causal) v'
    what attention writes = intact + sum over the heads g that share k' and v' of (z'_g - z_g) W_O^g + z'_h W_O'

with x = norm(stream) of the intact layer, whose q, k, v, z and output depend on the prompt alone and are computed once.
In the last layer all but keys and values is computed at the last position alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits.engine.decoder import Decoder

Change = Mapping[str, Float[Tensor, "chain from to"]]  # W_Q, W_K, W_V: [d_model, d_head]; W_O: [d_head, d_model]


class DisplacedLayer:
    """Layer `layer` on some prompts, and all layers after it.

    `stream` is what enters the layer on the intact run. Positions after the longest prompt's end are left out.
    """

    def __init__(
        self,
        decoder: Decoder,
        layer: int,
        stream: Float[Tensor, "prompt position d_model"],
        end: Int[Tensor, " prompt"],
    ) -> None:
        self.decoder, self.layer, self.end = decoder, layer, end.to(stream.device)
        self.is_last = layer == decoder.n_layers - 1
        stream = stream[:, : int(self.end.max()) + 1]
        with torch.no_grad():
            self._normed = decoder.norm(stream)
            self._q, self._k, self._v = decoder.projected(layer, self._normed)
            z = decoder.attend(decoder.rotate(self._q), decoder.rotate(self._k), self._v)
            written = stream + decoder.project(layer, z)
            if decoder.parallel:  # the MLP reads what enters the layer, and that is intact
                written = written + decoder.mlp(layer, stream)
            self._z, self._written = self._asked(z), self._asked(written)

    def final(
        self, change: Change, rows: Int[Tensor, "chain row"], heads: Int[Tensor, " chain"]
    ) -> Float[Tensor, "chain*row d_model"]:
        """The final stream at the end of each chain's prompts `rows`, its head's weights displaced by `change`."""
        decoder, end = self.decoder, self.end[rows.flatten()]
        written = self._written[rows] + self._difference(change, rows, heads)
        stream = written.flatten(0, 1)
        if not decoder.parallel:
            stream = stream + decoder.mlp(self.layer, stream)
        return stream[:, 0] if self.is_last else decoder.upper(stream, end, (), first=self.layer + 1)

    def _difference(
        self, change: Change, rows: Int[Tensor, "chain row"], heads: Int[Tensor, " chain"]
    ) -> Float[Tensor, "chain row query d_model"]:
        """Attention's output less that of the intact layer."""
        shared = self.decoder.n_heads // self.decoder.n_groups
        group = heads // shared
        together = group[:, None] * shared + torch.arange(shared, device=heads.device)  # heads that share keys and values
        own = (together == heads[:, None]).to(self._z.dtype)
        before, after = _of_heads(self._z, rows, together), self._heads(change, rows, together, group, own)
        intact = self.decoder.layers[self.layer].output[together].flatten(1, 2)
        moved = torch.einsum("cgs,cse->cgse", own[..., None], change["W_O"][:, None]) if False else None
        del moved
        writers = torch.cat((intact, change["W_O"]), 1)
        mine = torch.einsum("crsgd,cg->crsd", after, own) if shared > 1 else after[..., 0, :]
        values = torch.cat(((after - before).flatten(-2), mine), -1)
        return torch.bmm(values.flatten(1, 2), writers).unflatten(1, values.shape[1:3])

    def _heads(self, change, rows, together, group, own):
        """z' of the displaced head and of those that share its keys and values."""
        decoder = self.decoder
        normed = self._normed[rows]
        k = _of_heads(self._k, rows, group[:, None])
        v = _of_heads(self._v, rows, group[:, None])
        flat = normed.flatten(1, 2)
        if self.is_last:
            gain = torch.bmm(flat, torch.cat((change["W_K"], change["W_V"]), 2)).unflatten(1, normed.shape[1:3])
            gain_k, gain_v = gain.chunk(2, -1)
            at_end = self._asked_of(self._normed, rows)
            gain_q = torch.bmm(at_end.flatten(1, 2), change["W_Q"]).unflatten(1, at_end.shape[1:3])
            q = _of_heads(self._q_asked, rows, together)
        else:
            gain = torch.bmm(flat, torch.cat([change[name] for name in ("W_Q", "W_K", "W_V")], 2))
            gain_q, gain_k, gain_v = gain.unflatten(1, normed.shape[1:3]).chunk(3, -1)
            q = _of_heads(self._q, rows, together)
        q = q + gain_q[..., None, :] * own[:, None, None, :, None]
        return q, k + gain_k[..., None, :], v + gain_v[..., None, :]
