"""A pre-norm decoder as plain functions of its weights: what the fused backend runs instead of a hooked model.

    x_0 = E[tokens] (+ P)
    q, k, v = norm(x) W_QKV + b_QKV           (q and k rotated where positions are rotary)
    z = softmax(scale q k^T, causal) v        (grouped-query: consecutive query heads share k and v)
    m = x + sum_h z_h W_O^h + b_O             y = m + MLP(norm(m))        (parallel: y = m + MLP(norm(x)))

Some families add to that: norms of each head's query and key (Qwen 3, Gemma 3), norms of the outputs of attention and MLP
(Gemma 2 and 3), soft caps c tanh(x / c) on scores and logits (Gemma 2), and layers that see only a window of positions, with
their own rotary angles (Gemma 2 and 3).

Weights are those of the TransformerBridge in compatibility mode: gains and biases of norms are folded into their readers,
value biases into b_O, and writers are centred. So every activation equals that at the bridge's hook point.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from circuits.engine.indices import on_device
from circuits.engine.products import Products
from circuits.models import Model, UnsupportedArchitectureError
from circuits.narrow_weights import narrow

Hook = tuple[str, Callable[..., Any]]  # name in the bridge, and a function of the activation and one more argument
Called = dict[str, list[Callable[..., Any]]]
hooks_attached = threading.RLock()  # held while hooks are attached to a model's modules
HOOKS = (
    "hook_resid_pre",
    "ln1.hook_out",
    "attn.hook_q",
    "attn.hook_k",
    "attn.hook_v",
    "attn.hook_z",
    "attn.hook_out",
    "hook_attn_out",
    "ln2.hook_in",
    "hook_mlp_out",
)
BEFORE_OUTPUT = {"ln1.hook_out", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z"}
TANH_GELU = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
NORMS = {"LN": True, "LNPre": True, "RMS": False, "RMSPre": False}  # name in the bridge's configuration -> centres?


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights of one block, each as `functional.linear` takes it: [output, input].

    `group` gives for each head the index of the key-value group that it reads. `query_gain` and `key_gain` are the gains of the
    norms of each head's query and key, `attention_gain` and `mlp_gain` those of the norms of the two outputs; None: no such
    norm. `window` is the number of positions that attention sees, its own included (None: all), `table` the index of its
    rotary angles.
    """

    n_heads: int
    group: tuple[int, ...]
    qkv: Float[Tensor, "projected d_model"]
    qkv_bias: Float[Tensor, " projected"] | None
    output: Float[Tensor, "head d_head d_model"]
    output_bias: Float[Tensor, " d_model"] | None
    mlp_in: Float[Tensor, "hidden d_model"]
    mlp_in_bias: Float[Tensor, " hidden"] | None
    mlp_gate: Float[Tensor, "hidden d_model"] | None
    mlp_out: Float[Tensor, "d_model hidden"]
    mlp_out_bias: Float[Tensor, " d_model"] | None
    query_gain: Float[Tensor, " d_head"] | None = None
    key_gain: Float[Tensor, " d_head"] | None = None
    attention_gain: Float[Tensor, " d_model"] | None = None
    mlp_gain: Float[Tensor, " d_model"] | None = None
    window: int | None = None
    table: int = 0

    @property
    def n_groups(self) -> int:
        return max(self.group) + 1

    @property
    def d_head(self) -> int:
        return self.output.shape[1]

    @property
    def device(self) -> torch.device:
        return self.qkv.device

    def keep(self, heads: Sequence[int]) -> Layer:
        """The block with only these heads and no output bias; each head gets its own copy of its shared k and v."""
        if len(heads) == self.n_heads:
            return replace(self, output_bias=None)
        shared = [self.group[head] for head in heads]
        n, g = self.n_heads, self.n_groups
        every = [*heads, *(n + group for group in shared), *(n + g + group for group in shared)]
        rows, own = (on_device(torch.tensor(chosen), self.qkv.device) for chosen in (every, list(heads)))
        bias = self.qkv_bias
        return replace(
            self,
            n_heads=len(heads),
            group=tuple(range(len(heads))),
            qkv=self.qkv.unflatten(0, (-1, self.d_head)).index_select(0, rows).flatten(0, 1),
            qkv_bias=None if bias is None else bias.unflatten(0, (-1, self.d_head)).index_select(0, rows).flatten(),
            output=self.output.index_select(0, own),
            output_bias=None,
        )


class FlopCount:
    """Counts the floating-point operations of matrix products, in any number of threads."""

    def __init__(self) -> None:
        self.total, self._lock = 0, threading.Lock()

    def add(self, operations: int) -> None:
        with self._lock:
            self.total += operations


@dataclass(frozen=True, eq=False)
class Decoder:
    """The weights of a model and what its blocks compute from them. All methods take any leading batch axes."""

    layers: tuple[Layer, ...]
    embedding: Float[Tensor, "vocabulary d_model"]
    positions: Float[Tensor, "position d_model"] | None
    unembedding: Float[Tensor, "vocabulary d_model"]
    unembedding_bias: Float[Tensor, " vocabulary"]
    n_heads: int
    n_groups: int
    d_head: int
    centred: bool
    eps: float
    scale: float
    parallel: bool
    activation: Callable[[Tensor], Tensor]
    angles_of: Callable[[int], tuple[tuple[Tensor, Tensor], ...]] | None
    longest: int | None  # positions that attention sees in every layer; None: all
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: Float[Tensor, ""] | None = None
    flops: FlopCount = field(default_factory=FlopCount)
    products: Products = field(default_factory=Products)  # of q, k, v and the MLPs
    _angles: dict[tuple[int, torch.device], tuple[tuple[Tensor, Tensor], ...]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def d_model(self) -> int:
        return self.embedding.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def is_plain(self) -> bool:
        """True if all layers follow the module's formulas, without the additions of some families."""
        added = ("query_gain", "key_gain", "attention_gain", "mlp_gain", "window")
        return self.score_cap is None and all(getattr(one, name) is None for one in self.layers for name in added)

    # --- the residual stream ---------------------------------------------------------------------------------------

    def embed(self, tokens: Int[Tensor, "... position"]) -> Float[Tensor, "... position d_model"]:
        """Token embeddings, without positions."""
        found = self.embedding[tokens]
        return found if self.embedding_scale is None else found * self.embedding_scale

    def place(self, embedded: Float[Tensor, "... position d_model"]) -> Float[Tensor, "... position d_model"]:
        """The stream that enters layer 0: embeddings plus learned positions, where the model has some."""
        return embedded if self.positions is None else embedded + self.positions[: embedded.shape[-2]]

    def norm(self, stream: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """(x - mean) / sqrt(var + eps), or x / sqrt(mean x^2 + eps) in models that do not centre."""
        normalise = functional.layer_norm if self.centred else functional.rms_norm
        return normalise(stream, (self.d_model,), eps=self.eps)

    def scaled_norm(self, x: Float[Tensor, "... d"], gain: Float[Tensor, " d"] | None) -> Float[Tensor, "... d"]:
        """gain x / sqrt(mean x^2 + eps), in float32 at least, for norms with an unfolded gain; x itself if `gain` is None."""
        if gain is None:
            return x
        return functional.rms_norm(precise(x), (x.shape[-1],), gain, self.eps).to(x.dtype)

    def _linear(self, x: Tensor, weights: Float[Tensor, "to from"], bias: Tensor | None = None) -> Tensor:
        self.flops.add(2 * x[..., 0].numel() * weights.numel())
        return self.products(x, weights, bias)

    # --- attention -------------------------------------------------------------------------------------------------

    def projected(
        self, weights: Layer, normed: Float[Tensor, "*state position d_model"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q [*state, position, head, d_head], k and v [*state, position, group, d_head] of a normalised stream."""
        q, k, v = self._read(weights, normed)
        return self.scaled_norm(q, weights.query_gain), self.scaled_norm(k, weights.key_gain), v

    def _read(self, weights: Layer, normed: Float[Tensor, "*state position d_model"]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as in `projected`, before the norms of queries and keys."""
        joint = self._linear(normed, weights.qkv, weights.qkv_bias)
        sizes = (weights.n_heads, weights.n_groups, weights.n_groups)
        q, k, v = joint.unflatten(-1, (sum(sizes), weights.d_head)).split(sizes, -2)
        return q, k, v

    def keys_values_and_last_query(
        self, weights: Layer, normed: Float[Tensor, "*state position d_model"], last: Float[Tensor, "*state d_model"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q [*state, 1, head, d_head] of the one position `last`, k and v [*state, position, group, d_head] of all."""
        size, bias = weights.n_heads * weights.d_head, weights.qkv_bias
        q = self._linear(last[..., None, :], weights.qkv[:size], None if bias is None else bias[:size])
        joint = self._linear(normed, weights.qkv[size:], None if bias is None else bias[size:])
        k, v = joint.unflatten(-1, (2, weights.n_groups, weights.d_head)).unbind(-3)
        q = self.scaled_norm(q.unflatten(-1, (weights.n_heads, weights.d_head)), weights.query_gain)
        return q, self.scaled_norm(k, weights.key_gain), v

    def rotate(
        self,
        x: Float[Tensor, "*state position head d_head"],
        at: slice | Int[Tensor, "row 1"] = slice(None),
        number: int = 0,
    ) -> Float[Tensor, "*state position head d_head"]:
        """Rotary positions: rotates the first dimensions of each head by the angles of the positions `at`.

        `at` is a slice that starts at the first position of every row, or a tensor with one position for each row. `number` is
        the layer's `table` of angles.
        """
        if self.angles_of is None:
            return x
        if isinstance(at, slice):
            start = at.start or 0
            cos, sin = (
                table[start : start + x.shape[-3], None] for table in self.angles(start + x.shape[-3], number, x.device)
            )
        else:
            cos, sin = (table[at][:, :, None] for table in self.angles(int(at.max()) + 1, number, x.device))
        turned, rest = x.split((cos.shape[-1], x.shape[-1] - cos.shape[-1]), -1)
        half = torch.cat((-turned[..., cos.shape[-1] // 2 :], turned[..., : cos.shape[-1] // 2]), -1)
        return torch.cat((turned * cos + half * sin, rest), -1)

    def angles(self, length: int, number: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin [position, rotated dimension] of a sequence of `length` tokens, on `device`."""
        assert self.angles_of is not None  # `rotate` does not call this without rotary angles
        with self._lock:  # this runs the model itself, which no two threads may do at once
            if (length, device) not in self._angles:
                self._angles[length, device] = tuple(
                    (cos.to(device), sin.to(device)) for cos, sin in self.angles_of(length)
                )
            return self._angles[length, device][number]

    def attend(
        self,
        q: Float[Tensor, "row query head d_head"],
        k: Float[Tensor, "row position group d_head"],
        v: Float[Tensor, "row position group d_head"],
        mask: Bool[Tensor, "row 1 1 position"] | None = None,
        window: int | None = None,
    ) -> Float[Tensor, "row query head d_head"]:
        """z from rotated queries and keys: causal, or with `mask` for one query over the positions of the mask.

        A query sees the last `window` of its positions, its own included.
        """
        if not self.is_softmax(k.shape[1], window):
            return self.attend_written_out(q, k, v, mask, window)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        length = k.shape[2]
        # heads are repeated instead of enable_gqa, with which PyTorch computes float32 by its slowest backend on CUDA
        k, v = (x[:, :, None].expand(-1, -1, q.shape[1] // x.shape[1], -1, -1).flatten(1, 2) for x in (k, v))
        seen = length * (length + 1) // 2 if mask is None else length
        self.flops.add(4 * q[:, :, 0].numel() * seen)
        z = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=self.scale)
        return z.transpose(1, 2)

    def is_softmax(self, length: int, window: int | None) -> bool:
        """True if attention over `length` positions is a plain causal softmax of q . k, which kernels can compute."""
        return self.score_cap is None and (window is None or length <= window)

    def attend_written_out(
        self,
        q: Float[Tensor, "row query head d_head"],
        k: Float[Tensor, "row position group d_head"],
        v: Float[Tensor, "row position group d_head"],
        mask: Bool[Tensor, "row 1 1 position"] | None = None,
        window: int | None = None,
    ) -> Float[Tensor, "row query head d_head"]:
        """`attend` with its scores in memory, needed if scores are capped or windowed. Without a mask, the queries belong to the
        last positions."""
        visible = self._causal(q.shape[1], k.shape[1], q.device) if mask is None else mask
        if window is not None:
            visible = seen_through(visible, window)
        q = rearrange(q, "row at (group reader) d -> row group (reader at) d", group=k.shape[2])
        k, v = (rearrange(x, "row of group d -> row group of d") for x in (k, v))
        self.flops.add(4 * q.numel() * k.shape[2])
        scores = rearrange(
            self.bounded(self.scale * q @ k.mT), "row g (r at) of -> row g r at of", at=visible.shape[-2]
        )
        unseen = ~visible if mask is None else ~visible[:, None]
        pattern = precise(scores).masked_fill(unseen, -torch.inf).softmax(-1).to(v.dtype)
        return rearrange(pattern.flatten(2, 3) @ v, "row g (r at) d -> row at (g r) d", at=visible.shape[-2])

    def bounded(self, scores: Tensor) -> Tensor:
        """c tanh(scores / c) in models with that soft cap, else `scores`."""
        return scores if self.score_cap is None else self.score_cap * (scores / self.score_cap).tanh()

    @staticmethod
    def _causal(queries: int, positions: int, device: torch.device) -> Bool[Tensor, "query position"]:
        return torch.ones(queries, positions, dtype=torch.bool, device=device).tril(positions - queries)

    def attend_after(
        self,
        q: Float[Tensor, "state prompt query head d_head"],
        k: Float[Tensor, "state prompt query group d_head"],
        v: Float[Tensor, "state prompt query group d_head"],
        past: tuple[Float[Tensor, "prompt group past d_head"], Float[Tensor, "prompt group past d_head"]],
        window: int | None,
    ) -> Float[Tensor, "state prompt query head d_head"]:
        """z of each state's own positions, which attend to a past shared by all states and causally to each other; scores are
        held in memory."""
        whole = [
            torch.cat((earlier.transpose(1, 2).expand(len(own), *[-1] * 4), own), 2).flatten(0, 1)
            for earlier, own in zip(past, (k, v), strict=True)
        ]
        return self.attend_written_out(q.flatten(0, 1), *whole, window=window).unflatten(0, (len(q), -1))

    def attend_last(
        self,
        q: Float[Tensor, "state prompt 1 head d_head"],
        k: Float[Tensor, "state prompt position group d_head"],
        v: Float[Tensor, "state prompt position group d_head"],
        past: tuple[Float[Tensor, "prompt group past d_head"], Float[Tensor, "prompt group past d_head"]],
        window: int | None = None,
    ) -> Float[Tensor, "state prompt 1 head d_head"]:
        """z of the last position, which attends to a past shared by all states and to its state's own positions."""
        grouped = rearrange(self.scale * q[:, :, 0], "u n (g r) d -> n g (u r) d", g=past[0].shape[1])
        shared, n_states = past[0].shape[2], len(q)
        self.flops.add(4 * q.numel() * (shared + k.shape[2]))
        before = rearrange(grouped @ past[0].mT, "n g (u r) p -> u n g r p", u=n_states)
        own = rearrange(grouped, "n g (u r) d -> u n g r d", u=n_states) @ rearrange(k, "u n s g d -> u n g d s")
        scores = self.bounded(torch.cat((before, own), -1))
        if window is not None:
            scores[..., : max(0, scores.shape[-1] - window)] = -torch.inf
        pattern = scores.softmax(-1)
        earlier, later = pattern[..., :shared], pattern[..., shared:]
        z = rearrange(rearrange(earlier, "u n g r p -> n g (u r) p") @ past[1], "n g (u r) d -> u n g r d", u=n_states)
        z = z + later @ rearrange(v, "u n s g d -> u n g s d")
        return rearrange(z, "u n g r d -> u n 1 (g r) d")

    def project(self, weights: Layer, z: Float[Tensor, "*state head d_head"]) -> Float[Tensor, "*state d_model"]:
        """The joint output of the heads, with the output bias."""
        self.flops.add(2 * z[..., 0, 0].numel() * weights.output.numel())
        return functional.linear(z.flatten(-2), weights.output.flatten(0, 1).T, weights.output_bias)

    def attended(self, weights: Layer, output: Float[Tensor, "*state d_model"]) -> Float[Tensor, "*state d_model"]:
        """What attention adds to the stream: `output`, or its norm in models that have a norm there."""
        return self.scaled_norm(output, weights.attention_gain)

    # --- MLP and read-out ------------------------------------------------------------------------------------------

    def mlp(self, weights: Layer, stream: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """What the MLP adds to the stream after reading `stream`."""
        normed = self.norm(stream)
        hidden = self._linear(normed, weights.mlp_in, weights.mlp_in_bias)
        if weights.mlp_gate is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(self._linear(normed, weights.mlp_gate)) * hidden
        return self.scaled_norm(self._linear(hidden, weights.mlp_out, weights.mlp_out_bias), weights.mlp_gain)

    # --- the whole -------------------------------------------------------------------------------------------------

    def forward(
        self,
        tokens: Int[Tensor, "row position"],
        end: Int[Tensor, " row"],
        hooks: Sequence[Hook],
        known: dict[int, Tensor] | None = None,
    ) -> Float[Tensor, "row vocabulary"]:
        """Logits at each row's position `end`. Every hook is called on its activation and may replace it.

        Hooks are (name, function of the tensor and None), with the bridge's names; raises KeyError for a name that is not in
        `names`. `known` caches, by layer, the stream that enters the layer of the first hook, for calls on the same tokens.
        """
        called = self._sorted(hooks)
        first = min((_layer_of(name, self.n_layers) for name in called), default=0)
        if "hook_embed" in called or not first:
            embedded = _hooked(called, "hook_embed", self.embed(on_device(tokens, self.embedding.device)))
            return self.logits(self.upper(self.place(embedded), end, hooks))
        known = {} if known is None else known
        if first not in known:
            known[first] = self._entering(first, tokens)
        return self.logits(self.upper(known[first], end, hooks, first))

    def _entering(self, first: int, tokens: Int[Tensor, "row position"]) -> Float[Tensor, "row position d_model"]:
        """The stream that enters layer `first`; with no hook before it, equal prompts are computed once."""
        found = torch.unique(tokens, dim=0, return_inverse=True)
        distinct, row = (on_device(one, self.embedding.device) for one in found)
        stream = self.place(self.embed(distinct))
        for layer in range(first):
            stream = stream.to(self.layers[layer].device)
            stream = self._output(layer, stream, self._heads(layer, stream, {}), {})
        return stream[row.to(stream.device)]

    def upper(
        self,
        stream: Float[Tensor, "row position d_model"],
        end: Int[Tensor, " row"],
        hooks: Sequence[Hook],
        first: int = 0,
    ) -> Float[Tensor, "row d_model"]:
        """The final stream at `end`, from the stream that enters layer `first`.

        The last layer is computed only at `end`, as far as its hooks allow.
        """
        called, device = self._sorted(hooks), self.layers[-1].device
        end, rows, last = on_device(end, device), torch.arange(len(stream), device=device), self.n_layers - 1
        inside = {name.removeprefix(f"blocks.{last}.") for name in called if _layer_of(name, self.n_layers) >= last}
        inside.discard("hook_resid_pre")
        for layer in range(first, self.n_layers):
            stream = _hooked(called, f"blocks.{layer}.hook_resid_pre", stream.to(self.layers[layer].device))
            if layer == last and not inside:
                return self._last_block(stream, end)
            if layer == last and inside <= BEFORE_OUTPUT:
                return self._output(layer, stream[rows, end], self._heads(layer, stream, called)[rows, end], {})
            stream = self._output(layer, stream, self._heads(layer, stream, called), called)
        return _hooked(called, "ln_final.hook_in", stream)[rows, end]

    def _heads(self, layer: int, stream: Float[Tensor, "row position d_model"], called: Called) -> Tensor:
        """z of all heads."""
        normed = _hooked(called, f"blocks.{layer}.ln1.hook_out", self.norm(stream))
        weights = self.layers[layer]
        read = zip("qkv", self._read(weights, normed), strict=True)
        q, k, v = (_hooked(called, f"blocks.{layer}.attn.hook_{name}", value) for name, value in read)
        q, k = self.scaled_norm(q, weights.query_gain), self.scaled_norm(k, weights.key_gain)
        q, k = (self.rotate(x, number=weights.table) for x in (q, k))
        return _hooked(called, f"blocks.{layer}.attn.hook_z", self.attend(q, k, v, window=weights.window))

    def _output(
        self, layer: int, stream: Float[Tensor, "*at d_model"], z: Float[Tensor, "*at head d_head"], called: Called
    ) -> Float[Tensor, "*at d_model"]:
        """The stream that leaves a block, from the stream that entered it and z of its heads."""

        def hooked(name: str, value: Tensor) -> Tensor:
            return _hooked(called, f"blocks.{layer}.{name}", value)

        weights = self.layers[layer]
        output = self.attended(weights, hooked("attn.hook_out", self.project(weights, z)))
        middle = stream + hooked("hook_attn_out", output)
        read = hooked("ln2.hook_in", stream if self.parallel else middle)
        return middle + hooked("hook_mlp_out", self.mlp(weights, read))

    def _last_block(
        self, stream: Float[Tensor, "row position d_model"], end: Int[Tensor, " row"]
    ) -> Float[Tensor, "row d_model"]:
        """The last block's output at each row's end, the only position that is read after it."""
        weights, rows = self.layers[-1], torch.arange(len(stream), device=stream.device)
        at_end = stream[rows, end]
        q, k, v = self.keys_values_and_last_query(weights, self.norm(stream), self.norm(at_end))
        before = torch.arange(stream.shape[1], device=stream.device) <= end[:, None]
        q, k = self.rotate(q, end[:, None], weights.table), self.rotate(k, number=weights.table)
        z = self.attend(q, k, v, before[:, None, None], weights.window)[:, 0]
        middle = at_end + self.attended(weights, self.project(weights, z))
        return middle + self.mlp(weights, at_end if self.parallel else middle)

    @cached_property
    def names(self) -> frozenset[str]:
        """The hook points that `forward` has."""
        inside = [f"blocks.{layer}.{name}" for layer in range(self.n_layers) for name in HOOKS]
        return frozenset(("hook_embed", "ln_final.hook_in", *inside))

    def can_run(self, length: int, hooks: Sequence[Hook] = ()) -> bool:
        """True if `forward` has all of these hooks, and a prompt of `length` tokens fits into a window that all layers share.

        This module does not implement such a window, only windows of some layers (`attend_written_out`).
        """
        return (self.longest is None or length <= self.longest) and all(name in self.names for name, _ in hooks)

    def _sorted(self, hooks: Sequence[Hook]) -> Called:
        called: Called = {}
        for name, function in hooks:
            if name not in self.names:
                raise KeyError(name)
            called.setdefault(name, []).append(function)
        return called

    def logits(self, stream: Float[Tensor, "... d_model"]) -> Float[Tensor, "... vocabulary"]:
        """All logits of a final stream, in float32 at least."""
        normed, bias = precise(self.norm(stream.to(self.unembedding.device))), precise(self.unembedding_bias)
        if self.unembedding.element_size() < 4:  # by blocks of the vocabulary: all at once takes twice its memory
            found = functional.linear(normed, narrow(self.unembedding), bias)
        else:
            found = normed @ precise(self.unembedding).T + bias
        return found if self.logit_cap is None else self.logit_cap * (found / self.logit_cap).tanh()

    def direction(
        self, answers: Int[Tensor, "prompt answer"], wrong: Int[Tensor, "prompt foil"]
    ) -> tuple[Float[Tensor, "prompt d_model"], Float[Tensor, " prompt"]]:
        """(direction, constant) with logit difference = norm(x) . direction + constant, in float32 at least; for models without
        capped logits.

        The direction is the mean unembedding of the answers minus that of the foils; ids of -1 are padding. Subtracting before
        the product keeps precision: in low precision the small difference of two large logits would be lost.
        """
        parts = [
            (self._mean_rows(self.unembedding, ids), self._mean_rows(self.unembedding_bias, ids))
            for ids in (answers, wrong)
        ]
        return parts[0][0] - parts[1][0], parts[0][1] - parts[1][1]

    def _mean_rows(self, table: Tensor, ids: Int[Tensor, "prompt candidate"]) -> Tensor:
        """Mean of the table's rows over each prompt's real ids."""
        ids = ids.to(table.device)
        rows, real = precise(table[ids.clamp(min=0)]), ids >= 0
        shares, trailing = real.to(rows) / real.sum(1, keepdim=True), [1] * (rows.ndim - 2)
        rows = rows.masked_fill(~real.view(*real.shape, *trailing), 0)  # 0 times a non-finite row is not 0
        return (rows * shares.view(*shares.shape, *trailing)).sum(1)


def seen_through(visible: Bool[Tensor, "*at position"], window: int) -> Bool[Tensor, "*at position"]:
    """Mask of the last `window` visible positions."""
    return visible & (visible.flip(-1).cumsum(-1).flip(-1) <= window)


def precise(x: Tensor) -> Tensor:
    """`x` in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _layer_of(name: str, n_layers: int) -> int:
    """The layer of a hook point: 0 for the embedding, the number of layers for the final norm."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else 0 if name == "hook_embed" else n_layers


def _hooked(called: Called, name: str, value: Tensor) -> Tensor:
    """The activation after its hooks."""
    for function in called.get(name, ()):
        replaced = function(value, None)
        value = value if replaced is None else replaced
    return value


def of(model: Model) -> Decoder:
    """The decoder of a loaded model.

    Raises UnsupportedArchitectureError, with the reason, if the model's configuration rules one out. The engine checks on real
    prompts whether the formulas are those of the model.
    """
    bridge, cfg = model.bridge, model.bridge.cfg
    _require_supported(model)
    rotary = "blocks.0.attn.hook_cos" in bridge.hook_dict
    bias = _optional(bridge.unembed, "b_U")
    config = getattr(bridge.original_model, "config", None)
    embedding, embedding_scale = _embedding(bridge)
    kinds = kinds_of_layers(config, model.n_layers)
    different = list(dict.fromkeys(kinds))
    windows = [kind.window for kind in kinds]
    longest = windows[0] if len(set(windows)) == 1 else None
    scalar = getattr(config, "query_pre_attn_scalar", None) or int(cfg.d_head)
    return Decoder(
        layers=tuple(
            replace(_layer(bridge, index), table=different.index(kind), window=None if longest else kind.window)
            for index, kind in enumerate(kinds)
        ),
        embedding=embedding,
        positions=None if rotary else bridge.W_pos.detach(),
        unembedding=bridge.W_U.detach().T.contiguous(),
        unembedding_bias=bridge.W_U.new_zeros(bridge.W_U.shape[-1]) if bias is None else bias,
        n_heads=model.n_heads,
        n_groups=int(cfg.n_key_value_heads or cfg.n_heads),
        d_head=int(cfg.d_head),
        centred=model.centred_norm,
        eps=float(cfg.eps),
        scale=scalar**-0.5 if cfg.use_attn_scale else 1.0,
        parallel=bool(cfg.parallel_attn_mlp),
        # torch's tanh approximation runs as one kernel
        activation=partial(functional.gelu, approximate="tanh") if cfg.act_fn in TANH_GELU else _activation(cfg.act_fn),
        angles_of=partial(_angles, model, tuple(kinds.index(kind) for kind in different)) if rotary else None,
        longest=longest,
        score_cap=getattr(config, "attn_logit_softcapping", None),
        logit_cap=float(cfg.output_logits_soft_cap) if model.bounds_logits else None,
        embedding_scale=embedding_scale,
    )


@dataclass(frozen=True)
class KindOfLayer:
    """What a configuration sets for some layers only."""

    name: str
    window: int | None


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN  # takes seconds to import, but a loaded model has imported it already

    return ACT2FN[name]


def kinds_of_layers(config: Any, n_layers: int) -> list[KindOfLayer]:
    """The `KindOfLayer` of every layer."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    names = getattr(config, "layer_types", None) or (["sliding_attention"] if window else ["full_attention"]) * n_layers
    return [KindOfLayer(name, int(window) if window and name == "sliding_attention" else None) for name in names]


@torch.no_grad()
def _embedding(bridge: Any) -> tuple[Float[Tensor, "vocabulary d_model"], Float[Tensor, ""] | None]:
    """(W_E, factor applied when it is read: sqrt(d_model) in Gemma); for other models with scaling (a scaled copy, None)."""
    weights = bridge.W_E.detach()
    some = torch.arange(min(len(weights), 8), device=weights.device)
    seen, own = bridge.embed(some[None])[0], weights[some]
    if torch.equal(seen, own):
        return weights, None
    scale = getattr(bridge.embed.original_component, "embed_scale", None)
    if isinstance(scale, Tensor) and torch.equal(seen, own * scale.to(own.dtype)):
        return weights, scale.detach().to(own.device, own.dtype)
    return bridge.embed(torch.arange(len(weights), device=weights.device)[None])[0], None


def _require_supported(model: Model) -> None:
    """Raises UnsupportedArchitectureError unless the hooks are those of a pre-norm decoder that this module implements."""
    bridge, cfg = model.bridge, model.bridge.cfg
    reasons = {
        f"it normalises with {cfg.normalization_type}": cfg.normalization_type not in NORMS,
        "its attention has no separate heads": "blocks.0.attn.hook_z" not in bridge.hook_dict,
        "it is no pre-norm decoder with a norm before each MLP": "blocks.0.ln2.hook_in" not in bridge.hook_dict,
        "its MLPs are no two matrices (a mixture of experts)": _optional(bridge.blocks[0].mlp, "W_in") is None,
        "it normalises queries and keys in a way of its own": not _head_norms_are_known(bridge),
        "it has neither learned nor rotary positions": not (
            "blocks.0.attn.hook_cos" in bridge.hook_dict or "hook_pos_embed" in bridge.hook_dict
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise UnsupportedArchitectureError(f"model {model.name} cannot be run fused, as {reason}; use engine=lens")


def _head_norms_are_known(bridge: Any) -> bool:
    """True if queries and keys have no norm, or RMS norms per head before rotation, with one gain for all heads."""
    attention, cfg = bridge.blocks[0].attn, bridge.cfg
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    if norms == [None, None]:
        return not any("_norm" in name.partition("attn.")[2] for name in bridge.hook_dict)
    if None in norms or getattr(cfg, "qk_norm_after_rope", False):
        return False
    return all(norm.uses_rms_norm and tuple(norm.weight.shape) == (int(cfg.d_head),) for norm in norms if norm)


def _layer(bridge: Any, index: int) -> Layer:
    attention, mlp = bridge.blocks[index].attn, bridge.blocks[index].mlp
    heads = [getattr(attention, name).detach() for name in ("W_Q", "W_K", "W_V")]
    biases = [_optional(attention, name) for name in ("b_Q", "b_K", "b_V")]
    qkv = torch.cat([_columns(w).T for w in heads]).contiguous()
    qkv_bias = None
    if any(bias is not None for bias in biases):
        qkv_bias = torch.cat(
            [
                w.new_zeros(_columns(w).shape[1]) if b is None else b.flatten()
                for w, b in zip(heads, biases, strict=True)
            ]
        )
    output = attention.W_O.detach()
    bias = _optional(attention, "b_O")
    gate = _optional(mlp, "W_gate")
    shared = len(heads[0]) // len(heads[1])
    return Layer(
        n_heads=len(heads[0]),
        group=tuple(head // shared for head in range(len(heads[0]))),
        qkv=qkv,
        qkv_bias=qkv_bias,
        output=output.contiguous(),
        output_bias=output.new_zeros(output.shape[-1]) if bias is None else bias,
        mlp_in=mlp.W_in.detach().T.contiguous(),
        mlp_in_bias=_optional(mlp, "b_in"),
        mlp_gate=None if gate is None else gate.T.contiguous(),
        mlp_out=mlp.W_out.detach().T.contiguous(),
        mlp_out_bias=_optional(mlp, "b_out"),
        query_gain=_gain(attention, "q_norm"),
        key_gain=_gain(attention, "k_norm"),
        attention_gain=_gain(bridge.blocks[index], "ln1_post"),
        mlp_gain=_gain(bridge.blocks[index], "ln2_post"),
    )


def _gain(part: Any, name: str) -> Float[Tensor, " d"] | None:
    """The gain of an unfolded norm, in float32 at least; None without such a norm."""
    norm = getattr(part, name, None)
    if norm is None:
        return None
    weight = precise(norm.weight.detach())
    return 1 + weight if norm.uses_weight_offset else weight


def _columns(weights: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "d_model projected"]:
    return weights.transpose(0, 1).flatten(1)


def _optional(module: Any, name: str) -> Tensor | None:
    """A weight that some architectures lack."""
    value = getattr(module, name, None)
    return None if value is None else value.detach()


@torch.no_grad()
def _angles(model: Model, layers: Sequence[int], length: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """cos and sin that the model itself computes in each of `layers` for a sequence of `length` tokens."""
    kept: dict[str, Tensor] = {}

    def keep(tensor: Tensor, hook: object, name: str) -> None:
        kept[name] = tensor.reshape(length, -1)

    pairs = [tuple(f"blocks.{layer}.attn.hook_{part}" for part in ("cos", "sin")) for layer in layers]
    hooks = [(name, partial(keep, name=name)) for pair in pairs for name in pair]
    tokens = torch.zeros(1, length, dtype=torch.long, device=model.device)
    with hooks_attached:
        model.bridge.run_with_hooks(tokens, fwd_hooks=hooks, return_type="logits")
    return tuple((kept[cos], kept[sin]) for cos, sin in pairs)
