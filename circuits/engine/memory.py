"""Memory: how much a sweep may hold at once, what a piece of it will hold, and how many prompts, rows and logits that allows.

The estimates are pure arithmetic, checked against counted peaks. They count elements held beside the weights, for n prompts of
L tokens, of which the last S (from the first changed one on) are computed. d is the width of the stream, f that of the MLP, Q
and K are the widths of all queries and of all keys, V is the size of the vocabulary:

    every piece          n L x (widths of replacement activations) and, if S < L, n (L - 1) x 2 K x layers of the base run
    a layer              n S d x entering states + n S d x leaving states (in the last layer only one position of these)
    a block of rows      attention  rows (d + Q + 2 K + what it makes of q, k and v), and for each shared edit the weights of
                                    the heads that it keeps and the output, n S d, of those that it replaces
                         MLP        rows (Q + 2 d + 2 f), with 3 f if the MLP is gated
    the read-out         n d x remaining states, and two tables of rows x V in float32 (logits and their exponentials), or
                         three if logits are soft-capped

Tensors that an operation allocates and frees internally are not counted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from circuits import models, narrow_weights
from circuits.circuit import Kind
from circuits.engine import decoder
from circuits.engine.decoder import TANH_GELU
from circuits.engine.schedule import runs
from circuits.engine.trie import STAGES, Edit, Trie
from circuits.interventions import Recipe
from circuits.models import Model
from results_io import UserError

MIB = 2**20
HOST_MIB = 1024  # on a CPU, where others use the main memory too and larger batches are not faster
SHARE = 0.8  # of a GPU's free memory; the rest is for what the arithmetic leaves out and for fragmentation
TRANSIENTS = 0.25  # largest share of the room for temporaries of single steps; more would only leave less for prompts
RETRY = 8  # pieces that must fit before a larger size is tried again; a failure costs one piece


@dataclass(frozen=True)
class Paths:
    """What path interventions add to a row at every position: `vectors` of the stream's width and `heads` of a head's width."""

    vectors: int = 0
    heads: int = 0


NO_PATHS = Paths()


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder, bytes of an element (`itemsize`), and options of its blocks.

    `rotary`: rotated dimensions of a head. `gated`: the MLP has a gate. `parallel`: the MLP reads what attention reads.
    `hidden_copies`: copies of an MLP's hidden layer that the model's own modules hold at once. `written_out`: attention holds
    its scores, because they are soft-capped or windowed. `widened`: elements of 16-bit weights that a product converts to
    float32 at once. `bounded`: logits are soft-capped, so all of them are read.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_groups: int
    d_head: int
    d_mlp: int
    vocabulary: int
    itemsize: int
    rotary: int = 0
    gated: bool = False
    parallel: bool = False
    hidden_copies: int = 4
    written_out: bool = False
    widened: int = 0
    bounded: bool = False

    @classmethod
    def of(cls, model: Model) -> DecoderSizes:
        cfg = model.bridge.cfg
        gated, rotary = bool(cfg.gated_mlp), "blocks.0.attn.hook_cos" in model.bridge.hook_dict
        config, kept = getattr(model.bridge.original_model, "config", None), models.kept_dtype(model.precision)
        windows = [kind.window for kind in decoder.kinds_of_layers(config, model.n_layers)]
        return cls(
            n_layers=model.n_layers,
            d_model=int(cfg.d_model),
            n_heads=model.n_heads,
            n_groups=int(cfg.n_key_value_heads or cfg.n_heads),
            d_head=int(cfg.d_head),
            d_mlp=int(cfg.d_mlp or 4 * cfg.d_model),
            vocabulary=int(cfg.d_vocab),
            itemsize=model.dtype.itemsize,
            rotary=int(cfg.rotary_dim or cfg.d_head) if rotary else 0,
            gated=gated,
            parallel=bool(cfg.parallel_attn_mlp),
            hidden_copies=5 if gated else 6 if cfg.act_fn in TANH_GELU else 4,
            written_out=bool(getattr(config, "attn_logit_softcapping", None)) or len(set(windows)) > 1,
            bounded=model.bounds_logits,
            widened=narrow_weights.widened_at_once(model.device) if kept.itemsize < 4 else 0,
        )

    @property
    def queries(self) -> int:
        return self.n_heads * self.d_head

    @property
    def keys(self) -> int:
        return self.n_groups * self.d_head

    @property
    def mlp_row(self) -> int:
        """Elements of a row in the MLP: normalised stream, hidden layer before and after the activation function."""
        return self.d_model + max((3 if self.gated else 2) * self.d_mlp, self.d_mlp + self.d_model)

    @property
    def block_row(self) -> int:
        """Bytes of a row of a block in the MLP, its peak."""
        return self.itemsize * (self.queries + 2 * self.d_model + self.mlp_row)

    @property
    def logits_row(self) -> int:
        """Bytes of a row of logits and of the tables computed from it, in float32 at least."""
        return (3 if self.bounded else 2) * self.vocabulary * max(4, self.itemsize)

    @property
    def exact_unembedding(self) -> int:
        """Bytes of the block of a 16-bit unembedding that is in float32 at a time."""
        return 4 * min(self.vocabulary * self.d_model, self.widened)

    @property
    def widened_matrix(self) -> int:
        """Bytes of the block of a layer's 16-bit weights that is in float32 at a time; 0 unless products are in float32."""
        largest = self.d_model * max(self.d_mlp, self.queries + 2 * self.keys)
        return 4 * min(largest, self.widened) if self.itemsize >= 4 else 0

    def attention_row(self, past: int, own: int) -> int:
        """Elements of a row in attention over `past` shared positions and `own` ones."""
        joint = self.d_model + self.queries + 2 * self.keys
        rotated = self.queries + self.keys if self.rotary else 0
        turning = self.queries + 3 * self.n_heads * self.rotary if self.rotary else 0
        copies = 2 * self.queries if self.n_groups < self.n_heads else 0
        if past or self.written_out:
            scores = self.n_heads * (3 * (past + own) + past)
            return joint + rotated + max(turning - rotated, 3 * self.queries + scores)
        return joint + max(turning, rotated + copies + self.queries)

    def last_attention_row(self, past: int, own: int) -> int:
        """`attention_row` in the last layer, where only one of `own` positions has queries."""
        turned, turning = (self.keys, 3 * self.n_groups * self.rotary) if self.rotary else (0, 0)
        of_one = 4 * (self.queries + self.n_heads * (past + own))
        return self.d_model + 2 * self.keys + turned + max(turning, 2 * self.keys + of_one // own)

    def forward_row(self, length: int, hooked: bool, paths: Paths = NO_PATHS) -> int:
        """Bytes of a row of a forward pass over `length` positions with logits at one position.

        `hooked`: the model's own modules run. They keep the attention patterns of all layers, or of one if MLPs are gated.
        """
        if hooked:
            patterns = (1 if self.gated else self.n_layers) * self.n_heads * length
            token = 3 * self.d_model + self.hidden_copies * self.d_mlp + patterns
        else:
            patterns = 0
            token = 3 * self.d_model + self.queries + self.mlp_row
        token += paths.vectors * self.d_model + paths.heads * self.d_head
        return max(self.itemsize * length * token, self.itemsize * length * patterns + self.logits_row)


@dataclass(frozen=True)
class States:
    """Numbers of states of one layer: left by the previous layer, entering, and leaving.

    `runs`: for each run of states that are computed together, their number and that of their children after attention's edits.
    `weights`, `outputs`: of the edits that several states share and that are held at once, from their first run to their last,
    the number of heads whose weights are copied and the number of outputs of replaced heads.
    """

    come: int
    enter: int
    leave: int
    runs: tuple[tuple[int, int], ...]
    weights: int = 0
    outputs: int = 0


@dataclass(frozen=True)
class VariantWork:
    """Variants on prompts of `length` tokens that change nothing before position `first`.

    `sources`: elements of replacement activations per position of a prompt. `at_once`: those of the heads of one layer among
    them. `whole_vocabulary`: all logits are read.
    """

    length: int
    first: int
    layers: tuple[States, ...]
    sources: int
    at_once: int
    whole_vocabulary: bool

    @classmethod
    def of(
        cls,
        shape: DecoderSizes,
        trie: Trie,
        length: int,
        first: int,
        smallest: float,
        whole_vocabulary: bool,
        tries: Iterable[Trie] = (),
    ) -> VariantWork:
        """The work of a trie; states that share an edit are computed separately if there are at least `smallest`.

        `tries`: all tries whose sources are held at the same time; they may include this one.
        """
        come, layers = 1, []
        for layer in range(shape.n_layers):
            stream, attention, mlp = (trie.steps[layer, stage] for stage in STAGES)
            together = [
                (where, attention.children(where), edit)
                for where, edit in runs(attention, len(stream.parent), smallest)
            ]
            sizes = {(own.stop - own.start, children.stop - children.start) for own, children, _ in together}
            held = [[edit for edit in edits if edit] for edits in held_at_once([edit for *_, edit in together])]
            weights = max(sum(shape.n_heads - n_replaced(edit) for edit in edits) for edits in held)
            outputs = max(map(len, held))
            layers.append(States(come, len(stream.parent), len(mlp.parent), tuple(sorted(sizes)), weights, outputs))
            come = layers[-1].leave
        sources, at_once = widths((trie, *tries), shape)
        return cls(length, first, tuple(layers), sources, at_once, whole_vocabulary or shape.bounded)

    def held(self, shape: DecoderSizes, prompts: int) -> int:
        """Bytes held from the first layer to the last: replacement activations and the base run's past."""
        past = 2 * shape.keys * shape.n_layers * (self.length - 1) if self.first else 0
        return shape.itemsize * prompts * (self.sources * self.length + past)

    def peak(self, shape: DecoderSizes, prompts: int, rows: int, logits: int | None = None) -> int:
        """Peak number of bytes, with blocks of `rows` rows and `logits` rows of logits (None: `rows`)."""
        layers = max(self._layer(shape, layer, prompts, rows) for layer in range(shape.n_layers))
        besides = max(layers, self._past(shape, prompts), self._read_out(shape, prompts, logits or rows))
        return self.held(shape, prompts) + shape.widened_matrix + besides

    def _layer(self, shape: DecoderSizes, layer: int, prompts: int, rows: int) -> int:
        states, own = self.layers[layer], self.length - self.first
        last = layer == shape.n_layers - 1
        written = prompts * (1 if last else own)
        streams = states.enter * prompts * own + states.leave * written
        parted = (states.come + states.enter) * prompts * own if states.come != states.enter else 0
        past = prompts * self.first * 2 * shape.keys
        kept = past + 4 * states.weights * shape.d_head * shape.d_model + states.outputs * written * shape.d_model
        sources = written * self.at_once if last or self.first else 0
        besides = 0
        for run, made in states.runs:
            parents, children = block(run, prompts * own, rows), block(made, written, rows)
            row = (shape.last_attention_row if last else shape.attention_row)(self.first, own)
            seen, read = parents * row, parents // own if last else parents
            selected, mlp = shape.queries + 3 * shape.d_model, 2 * shape.d_model + shape.mlp_row
            if shape.parallel:  # the MLP reads what attention reads, so it runs first and its output is held
                before = read * shape.d_model
                besides = max(
                    besides, read * mlp, before + seen, before + read * shape.queries + sources + children * selected
                )
            else:
                besides = max(besides, seen, read * shape.queries + sources + children * max(selected, mlp))
        return shape.itemsize * max(parted * shape.d_model, streams * shape.d_model + kept + besides)

    def _past(self, shape: DecoderSizes, prompts: int) -> int:
        """Bytes of the base run's past, for all prompts at once."""
        if not self.first:
            return 0
        row = 2 * shape.d_model + 2 * shape.queries + 3 * shape.keys + shape.mlp_row
        return shape.itemsize * prompts * (self.length - 1) * row

    def _read_out(self, shape: DecoderSizes, prompts: int, logits: int) -> int:
        states = self.layers[-1].leave
        streams = shape.itemsize * states * prompts * shape.d_model
        if not self.whole_vocabulary:
            return 5 * streams
        rows = block(states, prompts, logits)
        return streams + shape.exact_unembedding + rows * (shape.logits_row + shape.itemsize * shape.d_model)


def widths(tries: Iterable[Trie], shape: DecoderSizes) -> tuple[int, int]:
    """Elements of the tries' replacement activations per position: of all sites, and the largest number for one layer's heads.

    Each value is kept as computed and, if a site has several, also in a table with the others. There is one pooled mean for all
    prompts.
    """
    sites: dict[tuple[Kind, int], set[Recipe]] = {}
    for kind, layer, recipe in (item for trie in tries for item in trie.recipes):
        sites.setdefault((kind, layer), set()).add(recipe)
    total = at_once = 0
    for (kind, _), recipes in sites.items():
        width = shape.queries if kind == "head" else shape.d_model
        pooled = sum(recipe.kind == "mean" and recipe.pooled for recipe in recipes)
        centres = len({recipe.source for recipe in recipes if recipe.additive})
        table = len(recipes) if len(recipes) > 1 or pooled or kind == "embedding" else 0
        total += width * (len(recipes) - pooled + centres + table)
        at_once = max(at_once, width * len(recipes) if kind == "head" else 0)
    return total, at_once


def held_at_once(edits: Sequence[Edit | None]) -> list[set[Edit | None]]:
    """For each run of states, in turn, the edits whose first run has come and whose last run has not passed."""
    first = {edit: at for at, edit in reversed(list(enumerate(edits)))}
    last = {edit: at for at, edit in enumerate(edits)}
    return [{edit for edit in first if first[edit] <= at <= last[edit]} for at in range(len(edits))]


def n_replaced(edit: Edit) -> int:
    """Number of heads that an edit replaces."""
    return len({head for _, (_, heads, _) in edit for head in heads})


def block(states: int, each: int, rows: int) -> int:
    """Rows of the largest block of `states` with `each` rows per state: as many states as fit into `rows`, at least one."""
    return each * -(-states // parts(states, max(1, rows // max(1, each)))) if states else 0


# --- chunks and room ----------------------------------------------------------------------------------------------


def parts(count: int, most: int) -> int:
    """The smallest number of parts of `count` things with at most `most` things each."""
    return max(1, -(-count // max(1, most)))


def balanced(count: int, most: int) -> Iterator[slice]:
    """The fewest consecutive slices of `count` things with at most `most` each; their sizes differ by at most one."""
    number = parts(count, most)
    for part in range(number if count else 0):
        yield slice(part * count // number, (part + 1) * count // number)


def most_that_fit(needs: Callable[[int], int], count: int, room: int) -> int:
    """The largest size of balanced parts of `count` things for which each part `needs` at most `room`; 1 if none fits."""
    sizes = dict.fromkeys(-(-count // number) for number in range(1, count + 1))
    return next((size for size in sizes if needs(size) <= room), 1)


class Allowance:
    """How much to try at once: `whole`; after memory ran out, half of what failed; twice as much after RETRY successes."""

    def __init__(self, whole: int) -> None:
        self.whole = self.now = max(1, whole)
        self._fitted, self._lock = 0, threading.Lock()

    def failed(self, tried: int) -> None:
        """Call when memory ran out on `tried`, which exceeds the allowance only if it could not be smaller."""
        with self._lock:
            self.now, self._fitted = max(1, min(self.now, tried // 2)), 0

    def fitted(self) -> None:
        with self._lock:
            self._fitted += 1
            if self.now < self.whole and self._fitted >= RETRY:
                self.now, self._fitted = min(self.whole, 2 * self.now), 0


def require_amounts(memory_mib: Any, memory_share: Any) -> None:
    """Raises UserError with the setting's name unless these are an amount of memory (or None) and a share in (0, 1]."""
    if memory_mib is not None and not (_is_number(memory_mib) and 0 < memory_mib < math.inf):
        raise UserError(f"engine.memory_mib={memory_mib} is no room for anything; use a number of MiB above 0, or null")
    if not (_is_number(memory_share) and 0 < memory_share <= 1):
        raise UserError(
            f"engine.memory_share={memory_share} is no share of a GPU's free memory; use one above 0, at most 1"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def room(device: torch.device, memory_mib: float | int | None = None, memory_share: float = SHARE) -> int:
    """Bytes that a sweep may hold beside the weights: `memory_mib`, or by default an amount that depends on the device.

    On CUDA that is `memory_share` of the free memory, including the allocator's unused blocks; elsewhere HOST_MIB.
    """
    if memory_mib is not None:
        return int(memory_mib * MIB)
    if device.type != "cuda":
        return HOST_MIB * MIB
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(memory_share * (free + unused))
