"""A pre-norm decoder as plain functions of its weights: what the fused backend runs instead of a hooked model.

    x_0 = E[tokens] (+ P)
    q, k, v = norm(x) W_QKV + b_QKV           (q and k rotated where positions are rotary)
    z = softmax(scale q k^T, causal) v        (grouped-query: consecutive query heads share k and v)
    m = x + sum_h z_h W_O^h + b_O             y = m + MLP(norm(m))        (parallel: y = m + MLP(norm(x)))

Weights are those of the TransformerBridge in compatibility mode: gains and biases of the norms folded into what reads
them, value biases into b_O, writers centred. So every activation means what it means at the bridge's hook points.
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
from transformers.activations import ACT2FN

from circuits.engine.indices import on_device
from circuits.models import Model, UnsupportedArchitectureError

Hook = tuple[str, Callable[..., Any]]  # its name in the bridge, and a function of the activation and one more argument
Called = dict[str, list[Callable[..., Any]]]
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

    `group` gives for each head the number of the keys and values that it reads.
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

    @property
    def n_groups(self) -> int:
        return max(self.group) + 1

    @property
    def d_head(self) -> int:
        return self.output.shape[1]

    def keep(self, heads: Sequence[int]) -> Layer:
        """The block with only these heads and no output bias; each head gets its own copy of the k and v it shared."""
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
    angles_of: Callable[[int], tuple[Tensor, Tensor]] | None
    longest: int | None  # positions that attention sees at once; None: all
    flops: FlopCount = field(default_factory=FlopCount)
    _angles: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
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

    # --- the residual stream ---------------------------------------------------------------------------------------

    def embed(self, tokens: Int[Tensor, "... position"]) -> Float[Tensor, "... position d_model"]:
        """Token embeddings, without positions."""
        return self.embedding[tokens]

    def place(self, embedded: Float[Tensor, "... position d_model"]) -> Float[Tensor, "... position d_model"]:
        """The stream that enters layer 0: embeddings plus learned positions, where the model has some."""
        return embedded if self.positions is None else embedded + self.positions[: embedded.shape[-2]]

    def norm(self, stream: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """(x - mean) / sqrt(var + eps), or x / sqrt(mean x^2 + eps) in models that do not centre."""
        normalise = functional.layer_norm if self.centred else functional.rms_norm
        return normalise(stream, (self.d_model,), eps=self.eps)

    def _linear(self, x: Tensor, weights: Float[Tensor, "to from"], bias: Tensor | None = None) -> Tensor:
        self.flops.add(2 * x[..., 0].numel() * weights.numel())
        return functional.linear(x, weights, bias)

    # --- attention -------------------------------------------------------------------------------------------------

    def projected(
        self, weights: Layer, normed: Float[Tensor, "*state position d_model"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q [*state, position, head, d_head], k and v [*state, position, group, d_head] of a normalised stream."""
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
        return q.unflatten(-1, (weights.n_heads, weights.d_head)), k, v

    def rotate(
        self, x: Float[Tensor, "*state position head d_head"], at: slice | Int[Tensor, "row 1"] = slice(None)
    ) -> Float[Tensor, "*state position head d_head"]:
        """Rotary positions: the first dimensions of each head turned by the angles of the positions `at`.

        `at` is a slice, whose start is the first position of every row, or a tensor with the one position of each row.
        """
        if self.angles_of is None:
            return x
        if isinstance(at, slice):
            start = at.start or 0
            cos, sin = (table[start : start + x.shape[-3], None] for table in self.angles(start + x.shape[-3]))
        else:
            cos, sin = (table[at][:, :, None] for table in self.angles(int(at.max()) + 1))
        turned, rest = x.split((cos.shape[-1], x.shape[-1] - cos.shape[-1]), -1)
        half = torch.cat((-turned[..., cos.shape[-1] // 2 :], turned[..., : cos.shape[-1] // 2]), -1)
        return torch.cat((turned * cos + half * sin, rest), -1)

    def angles(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin [position, rotated dimension] of a sequence of `length` tokens."""
        assert self.angles_of is not None  # `rotate` asks for none where there are none
        with self._lock:  # the model itself is run for them, which no two threads may do
            if length not in self._angles:
                self._angles[length] = self.angles_of(length)
            return self._angles[length]

    def attend(
        self,
        q: Float[Tensor, "row query head d_head"],
        k: Float[Tensor, "row position group d_head"],
        v: Float[Tensor, "row position group d_head"],
        mask: Bool[Tensor, "row 1 1 position"] | None = None,
    ) -> Float[Tensor, "row query head d_head"]:
        """z from queries and keys that are already rotated: causal, or with `mask` one query over the positions in it."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        grouped, length = q.shape[1] != k.shape[1], k.shape[2]
        seen = length * (length + 1) // 2 if mask is None else length
        self.flops.add(4 * q[:, :, 0].numel() * seen)
        z = functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=self.scale, enable_gqa=grouped
        )
        return z.transpose(1, 2)

    def attend_last(
        self,
        q: Float[Tensor, "state prompt 1 head d_head"],
        k: Float[Tensor, "state prompt position group d_head"],
        v: Float[Tensor, "state prompt position group d_head"],
        past: tuple[Float[Tensor, "prompt group past d_head"], Float[Tensor, "prompt group past d_head"]],
    ) -> Float[Tensor, "state prompt 1 head d_head"]:
        """z of the last position, which attends to a past that all states share and then to its state's own positions."""
        grouped = rearrange(self.scale * q[:, :, 0], "u n (g r) d -> n g (u r) d", g=past[0].shape[1])
        shared, n_states = past[0].shape[2], len(q)
        self.flops.add(4 * q.numel() * (shared + k.shape[2]))
        before = rearrange(grouped @ past[0].mT, "n g (u r) p -> u n g r p", u=n_states)
        own = rearrange(grouped, "n g (u r) d -> u n g r d", u=n_states) @ rearrange(k, "u n s g d -> u n g d s")
        pattern = torch.cat((before, own), -1).softmax(-1)
        earlier, later = pattern[..., :shared], pattern[..., shared:]
        z = rearrange(rearrange(earlier, "u n g r p -> n g (u r) p") @ past[1], "n g (u r) d -> u n g r d", u=n_states)
        z = z + later @ rearrange(v, "u n s g d -> u n g s d")
        return rearrange(z, "u n g r d -> u n 1 (g r) d")

    def project(self, weights: Layer, z: Float[Tensor, "*state head d_head"]) -> Float[Tensor, "*state d_model"]:
        """What the heads together write to the stream, output bias included."""
        return self._linear(z.flatten(-2), weights.output.flatten(0, 1).T, weights.output_bias)

    # --- MLP and read-out ------------------------------------------------------------------------------------------

    def mlp(self, weights: Layer, stream: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """What the MLP writes after reading `stream`."""
        normed = self.norm(stream)
        hidden = self._linear(normed, weights.mlp_in, weights.mlp_in_bias)
        if weights.mlp_gate is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(self._linear(normed, weights.mlp_gate)) * hidden
        return self._linear(hidden, weights.mlp_out, weights.mlp_out_bias)

    # --- the whole -------------------------------------------------------------------------------------------------

    def forward(
        self, tokens: Int[Tensor, "row position"], end: Int[Tensor, " row"], hooks: Sequence[Hook]
    ) -> Float[Tensor, "row vocabulary"]:
        """Logits at each row's position `end`. Every hook is called on its activation and may replace it.

        Hooks are (name, function of the tensor and None), with the bridge's names; KeyError for one that is not in `names`.
        """
        called = self._sorted(hooks)
        first = min((_layer_of(name, self.n_layers) for name in called), default=0)
        if "hook_embed" in called or not first:
            embedded = _hooked(called, "hook_embed", self.embed(tokens))
            return self.logits(self.upper(self.place(embedded), end, hooks))
        distinct, row = torch.unique(tokens, dim=0, return_inverse=True)  # up to the first hook equal prompts are equal
        stream = self.place(self.embed(distinct))
        for layer in range(first):
            stream = self._output(layer, stream, self._heads(layer, stream, {}), {})
        return self.logits(self.upper(stream[row], end, hooks, first))

    def upper(
        self,
        stream: Float[Tensor, "row position d_model"],
        end: Int[Tensor, " row"],
        hooks: Sequence[Hook],
        first: int = 0,
    ) -> Float[Tensor, "row d_model"]:
        """The final stream at `end`, from the stream that enters layer `first`.

        The last layer is computed at `end` alone, as far as its hooks allow.
        """
        called, end = self._sorted(hooks), end.to(stream.device)
        rows, last = torch.arange(len(stream), device=stream.device), self.n_layers - 1
        inside = {name.removeprefix(f"blocks.{last}.") for name in called if _layer_of(name, self.n_layers) >= last}
        inside.discard("hook_resid_pre")
        for layer in range(first, self.n_layers):
            stream = _hooked(called, f"blocks.{layer}.hook_resid_pre", stream)
            if layer == last and not inside:
                return self._last_block(stream, end)
            if layer == last and inside <= BEFORE_OUTPUT:
                return self._output(layer, stream[rows, end], self._heads(layer, stream, called)[rows, end], {})
            stream = self._output(layer, stream, self._heads(layer, stream, called), called)
        return _hooked(called, "ln_final.hook_in", stream)[rows, end]

    def _heads(self, layer: int, stream: Float[Tensor, "row position d_model"], called: Called) -> Tensor:
        """z of all heads."""
        normed = _hooked(called, f"blocks.{layer}.ln1.hook_out", self.norm(stream))
        projected = zip("qkv", self.projected(self.layers[layer], normed), strict=True)
        q, k, v = (_hooked(called, f"blocks.{layer}.attn.hook_{name}", value) for name, value in projected)
        return _hooked(called, f"blocks.{layer}.attn.hook_z", self.attend(self.rotate(q), self.rotate(k), v))

    def _output(
        self, layer: int, stream: Float[Tensor, "*at d_model"], z: Float[Tensor, "*at head d_head"], called: Called
    ) -> Float[Tensor, "*at d_model"]:
        """The stream that leaves a block, from the stream that entered it and z of its heads."""

        def hooked(name: str, value: Tensor) -> Tensor:
            return _hooked(called, f"blocks.{layer}.{name}", value)

        weights = self.layers[layer]
        middle = stream + hooked("hook_attn_out", hooked("attn.hook_out", self.project(weights, z)))
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
        z = self.attend(self.rotate(q, end[:, None]), self.rotate(k), v, before[:, None, None])[:, 0]
        middle = at_end + self.project(weights, z)
        return middle + self.mlp(weights, at_end if self.parallel else middle)

    @cached_property
    def names(self) -> frozenset[str]:
        """The hook points that `forward` has."""
        inside = [f"blocks.{layer}.{name}" for layer in range(self.n_layers) for name in HOOKS]
        return frozenset(("hook_embed", "ln_final.hook_in", *inside))

    def can_run(self, length: int, hooks: Sequence[Hook] = ()) -> bool:
        """True if `forward` has all of these hooks and attention sees all of a prompt of `length` tokens.

        Attention over a sliding window is not written down here.
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
        return precise(self.norm(stream)) @ precise(self.unembedding).T + precise(self.unembedding_bias)

    def direction(
        self, answers: Int[Tensor, "prompt answer"], wrong: Int[Tensor, "prompt foil"]
    ) -> tuple[Float[Tensor, "prompt d_model"], Float[Tensor, " prompt"]]:
        """(direction, constant) with logit difference = norm(x) . direction + constant, in float32 at least.

        The direction is the mean unembedding of the answers minus that of the foils; ids of -1 are padding. It is subtracted
        before the product, because in low precision two large logits lose a small difference between them.
        """
        parts = [
            (self._mean_rows(self.unembedding, ids), self._mean_rows(self.unembedding_bias, ids))
            for ids in (answers, wrong)
        ]
        return parts[0][0] - parts[1][0], parts[0][1] - parts[1][1]

    def _mean_rows(self, table: Tensor, ids: Int[Tensor, "prompt candidate"]) -> Tensor:
        """Mean over each prompt's real ids of the table's rows."""
        ids = ids.to(table.device)
        rows, real = precise(table[ids.clamp(min=0)]), ids >= 0
        shares = real.to(rows) / real.sum(1, keepdim=True)
        return (rows * shares.view(*shares.shape, *[1] * (rows.ndim - 2))).sum(1)


def precise(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _layer_of(name: str, n_layers: int) -> int:
    """The layer of a hook point: 0 for the embedding's, the number of layers for the final norm's."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else 0 if name == "hook_embed" else n_layers


def _hooked(called: Called, name: str, value: Tensor) -> Tensor:
    """The activation as its hooks leave it."""
    for function in called.get(name, ()):
        replaced = function(value, None)
        value = value if replaced is None else replaced
    return value


def of(model: Model) -> Decoder:
    """The decoder of a loaded model.

    UnsupportedArchitectureError, with the reason, if the model's configuration rules one out. Whether the formulas are the
    model's own, the engine checks on real prompts.
    """
    bridge, cfg = model.bridge, model.bridge.cfg
    _require_supported(model)
    rotary = "blocks.0.attn.hook_cos" in bridge.hook_dict
    bias = _optional(bridge.unembed, "b_U")
    config = getattr(bridge.original_model, "config", None)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return Decoder(
        layers=tuple(_layer(bridge, index) for index in range(model.n_layers)),
        embedding=_embedding(bridge),
        positions=None if rotary else bridge.W_pos.detach(),
        unembedding=bridge.W_U.detach().T.contiguous(),
        unembedding_bias=bridge.W_U.new_zeros(bridge.W_U.shape[-1]) if bias is None else bias,
        n_heads=model.n_heads,
        n_groups=int(cfg.n_key_value_heads or cfg.n_heads),
        d_head=int(cfg.d_head),
        centred=model.centred_norm,
        eps=float(cfg.eps),
        scale=int(cfg.d_head) ** -0.5 if cfg.use_attn_scale else 1.0,
        parallel=bool(cfg.parallel_attn_mlp),
        # torch's tanh approximation runs as one kernel
        activation=partial(functional.gelu, approximate="tanh") if cfg.act_fn in TANH_GELU else ACT2FN[cfg.act_fn],
        angles_of=(lambda length: _angles(model, length)) if rotary else None,
        longest=int(window) if window else None,
    )


@torch.no_grad()
def _embedding(bridge: Any) -> Float[Tensor, "vocabulary d_model"]:
    """What each token puts into the stream: W_E itself, or in models that scale it (Gemma: by sqrt(d_model)) a scaled copy."""
    weights = bridge.W_E.detach()
    some = torch.arange(min(len(weights), 8), device=weights.device)
    if torch.equal(bridge.embed(some[None])[0], weights[some]):
        return weights
    return bridge.embed(torch.arange(len(weights), device=weights.device)[None])[0]


def _require_supported(model: Model) -> None:
    """UnsupportedArchitectureError unless the hooks are those of a pre-norm decoder that is written down here."""
    bridge, cfg = model.bridge, model.bridge.cfg
    reasons = {
        f"it normalises with {cfg.normalization_type}": cfg.normalization_type not in NORMS,
        "its attention has no separate heads": "blocks.0.attn.hook_z" not in bridge.hook_dict,
        "it is no pre-norm decoder with a norm before each MLP": "blocks.0.ln2.hook_in" not in bridge.hook_dict,
        "its MLPs are no two matrices (a mixture of experts)": _optional(bridge.blocks[0].mlp, "W_in") is None,
        "it has norms after its attention": any(name.startswith("blocks.0.ln1_post") for name in bridge.hook_dict),
        "it normalises queries and keys": any("_norm" in name.partition("attn.")[2] for name in bridge.hook_dict),
        "it has neither learned nor rotary positions": not (
            "blocks.0.attn.hook_cos" in bridge.hook_dict or "hook_pos_embed" in bridge.hook_dict
        ),
        "it bounds its logits": (getattr(cfg, "output_logits_soft_cap", None) or -1.0) > 0,
    }
    for reason, applies in reasons.items():
        if applies:
            raise UnsupportedArchitectureError(f"model {model.name} cannot be run fused, as {reason}; use engine=lens")


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
    )


def _columns(weights: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "d_model projected"]:
    return weights.transpose(0, 1).flatten(1)


def _optional(module: Any, name: str) -> Tensor | None:
    """A weight that some architectures lack."""
    value = getattr(module, name, None)
    return None if value is None else value.detach()


@torch.no_grad()
def _angles(model: Model, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin that the model itself computes for a sequence of `length` tokens."""
    kept: dict[str, Tensor] = {}

    def keep(tensor: Tensor, hook: object, name: str) -> None:
        kept[name] = tensor

    hooks = [(f"blocks.0.attn.hook_{n}", lambda t, hook, n=n: keep(t, hook, n)) for n in ("cos", "sin")]
    tokens = torch.zeros(1, length, dtype=torch.long, device=model.device)
    model.bridge.run_with_hooks(tokens, fwd_hooks=hooks, return_type="logits")
    return kept["cos"].reshape(length, -1), kept["sin"].reshape(length, -1)
