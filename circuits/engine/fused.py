"""The fused backend: many variants at once on the model's own weights, each state of the trie computed once.

It saves work in three ways, all exact up to rounding. Variants share every layer until their interventions first differ.
Positions before a variant's first change are taken from the base run. In the last layer only the last position is computed,
and of the logits only those of answers and foils. Rows of a matrix product are (state, prompt, position).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits import numerics
from circuits.engine import decoder, memory, philox, trie
from circuits.engine.decoder import Hook
from circuits.engine.inputs import Inputs
from circuits.engine.lens import PROMPTS_PER_BATCH, ROWS_PER_FORWARD, Advance, LensEngine, places
from circuits.engine.memory import Allowance
from circuits.engine.paths import first_change
from circuits.engine.products import IEEE
from circuits.engine.rows import Rows
from circuits.engine.scores import Scores
from circuits.engine.sources import Sources
from circuits.engine.trie import Trie
from circuits.engine.workers import run_parallel, worker_count
from circuits.interventions import Base, Effects, EveryBut, Sweep, Variant
from circuits.models import Model
from circuits.prompts import CHANGED, PromptSet
from kernels.choice import TRITON, Operations
from kernels.choice_file import ChoiceFile

# rows of a matrix product: on a CPU few enough for its caches, on CUDA enough to hide the launches (not tuned)
TOKENS_PER_BLOCK = {"cpu": 2048, "cuda": 32768}
PROMPTS_PER_BUCKET = 16  # fewer prompts with the same positions are run together with others of their length
# with fewer rows in a matrix product, replaced heads are computed too, since leaving them out costs more (CUDA: not tuned)
SMALLEST_PRODUCT = {"cpu": 256, "cuda": 16384}
# if fewer of a prompt's positions than this share come from the base run, they are computed: attention in two parts costs more
SMALLEST_SHARE = 1 / 6
PATH_BATCHES, PATH_PROMPTS = 8, 16  # path interventions: batches to share among threads, and their smallest size


Found = tuple[list[int], list[int], Scores]  # numbers of variants, rows of the prompts, their scores
Piece = Callable[[], Iterator[Found]]


@dataclass(frozen=True, eq=False)
class VariantBatch:
    """Variants of one base run, by their index in the sweep, that change nothing before position `first`."""

    base: Base
    first: int
    numbers: list[int]
    trie: Trie


class FusedEngine(LensEngine):
    """Runs sweeps on a pre-norm decoder, many variants at once. The contract is the reference backend's.

    `memory_mib` bounds the memory beside the weights (None: `memory.room`), `tokens_per_block` the rows of one matrix product.
    Pieces are planned to fit (`memory.VariantWork`). If memory still runs out, the engine holds or multiplies less at a time
    and continues; after some pieces that fit, it tries more again. Raises UnsupportedArchitectureError for a model that is no
    pre-norm decoder.

    Variants with interventions on paths run as in the reference backend, one row for each variant, on the same weights. Paths
    that end in the logits cost nothing and need no rows.
    """

    def __init__(
        self,
        model: Model,
        reference: PromptSet,
        rows_per_forward: int = ROWS_PER_FORWARD,
        prompts_per_batch: int = PROMPTS_PER_BATCH,
        memory_mib: float | int | None = None,
        tokens_per_block: int | None = None,
        operations: Operations | None = None,
        implementation: str | None = None,
        memory_share: float = memory.SHARE,
    ) -> None:
        super().__init__(model, reference, rows_per_forward, prompts_per_batch, memory_mib, memory_share)
        self.hooked = False
        self.decoder = decoder.of(model)
        self.operations = operations or operations_on(model.device, implementation)
        self.room //= worker_count(model.device)
        self.allowance = Allowance(self.room)  # bytes of a piece
        device = "cuda" if model.device.type == "cuda" else "cpu"
        self.tokens_per_block = tokens_per_block or TOKENS_PER_BLOCK[device]
        self.smallest_product = SMALLEST_PRODUCT[device]

    @property
    def tokens_per_block(self) -> int:
        """Rows of a matrix product, limited so that its transients stay within their share of the room."""
        return min(self._blocks.now, max(1, int(memory.TRANSIENTS * self.room) // self.shape.block_row))

    @tokens_per_block.setter
    def tokens_per_block(self, rows: int) -> None:
        self._blocks = Allowance(rows)

    @property
    def logits_per_block(self) -> int:
        """Rows of logits, over the whole vocabulary, that are held at once."""
        return min(self._blocks.now, max(1, int(memory.TRANSIENTS * self.room) // self.shape.logits_row))

    @property
    def flops(self) -> int:
        """Floating-point operations of all matrix products so far."""
        return self.decoder.flops.total

    @torch.no_grad()
    def run(self, sweep: Sweep, prompts: PromptSet, advance: Advance | None = None) -> Effects:
        """Every variant of `sweep` on every prompt, as `LensEngine.run`. Raises the same errors."""
        if not self.decoder.can_run(int(prompts.end.max()) + 1):
            self.why = f"prompts longer than {self.decoder.longest} tokens, of which attention sees a window, went through lens"
            return super().run(sweep, prompts, advance)
        self._check(sweep, prompts)
        self._prefetch_reference(sweep)
        scores = Scores.empty(sweep, prompts, self.model.dtype)
        by_rows = [number for number, variant in enumerate(sweep.variants) if trie.final_norm_change(variant) is None]
        by_trie = sorted(set(range(len(sweep))) - set(by_rows))
        pieces = [*self._along_paths(sweep, by_rows, prompts), *self._on_nodes(sweep, by_trie, prompts)]
        for numbers, rows, found in run_parallel(lambda piece: piece(), pieces, self.model.device):
            scores.put(numbers, rows, found)
            if advance is not None:
                advance(len(numbers) * len(rows))
        return scores.effects(sweep, prompts)

    def _along_paths(self, sweep: Sweep, numbers: list[int], prompts: PromptSet) -> Iterator[Piece]:
        """The variants whose paths need rows.

        They are sorted by the layer of their first change, because layers shared by all rows of a forward pass run once.
        """
        numbers = sorted(numbers, key=lambda number: first_change(sweep.variants[number]))
        some = _part(sweep, numbers)

        def run(rows: list[int]) -> Iterator[Found]:
            for local, index, found in self._batch(some, prompts, rows):
                yield [numbers[number] for number in local], index, found

        return (partial(run, rows) for rows in self._batches(prompts)) if numbers else iter(())

    def _on_nodes(self, sweep: Sweep, numbers: list[int], prompts: PromptSet) -> Iterator[Piece]:
        """All other variants, bucket by bucket."""
        known: dict[object, Trie] = {}

        def run(rows: list[int], groups: list[VariantBatch]) -> Iterator[Found]:
            for index, own, found in self._bucket(sweep, prompts.select(rows), groups):
                yield own, [rows[place] for place in index], found

        buckets = _shared(list(_buckets(prompts)), worker_count(self.model.device))
        for rows in buckets if numbers else ():
            yield partial(run, rows, self._groups(sweep, numbers, prompts.select(rows), known))

    def describe(self) -> dict[str, Any]:
        """Which backend and kernels produce the numbers, and why, as JSON data."""
        choices = self.implementations()
        kernels = {operation: sorted(set(of_signature.values())) for operation, of_signature in choices.items()}
        products = self.decoder.products
        return {
            "backend": "fused",
            "why": self.why,
            "kernels": kernels,
            "implementations": choices,
            "float32_products": "tf32" if products.name == IEEE and numerics.tf32_products() else products.name,
            "products_because": products.why,
            "attention": _attention_of(self.model, choices),
            "random": philox.GENERATOR,
            **self._spread(),
        }

    def implementations(self) -> dict[str, dict[str, str]]:
        """{operation: {signature: implementation}} so far."""
        return self.operations.implementations()

    def _forward(
        self, tokens: Int[Tensor, "row position"], end: Int[Tensor, " row"], hooks: list[Hook]
    ) -> Float[Tensor, "row vocabulary"]:
        """Logits at each row's end; from the bridge if the decoder lacks one of the hooks."""
        if self.decoder.can_run(tokens.shape[1], hooks):
            return self.decoder.forward(tokens, end, hooks)
        return super()._forward(tokens, end, hooks)

    def _batches(self, prompts: PromptSet) -> Iterator[list[int]]:
        """Batches for interventions on paths, each of prompts of one length, so none is padded."""
        for end in prompts.end.unique().tolist():
            rows = (prompts.end == end).nonzero()[:, 0].tolist()
            most = min(
                self.prompts_per_batch, self.forward_rows(end + 1), max(PATH_PROMPTS, len(prompts) // PATH_BATCHES)
            )
            yield from (rows[part] for part in memory.balanced(len(rows), most))

    # --- batching --------------------------------------------------------------------------------------------------

    def _groups(
        self, sweep: Sweep, on_nodes: Sequence[int], bucket: PromptSet, known: dict[object, Trie]
    ) -> list[VariantBatch]:
        """The variants `on_nodes`, grouped by base run and first changed position; `known` caches tries between buckets."""
        end = bucket.end.tolist()
        at_end = {
            role
            for role, where in bucket.positions.items()
            if any(one == last for one, last in zip(where.tolist(), end, strict=True))
        } | {CHANGED}
        together: dict[tuple[Base, int], list[int]] = {}
        differ = (bucket.clean != bucket.corrupted).any(0).tolist()
        apart = differ.index(True) if any(differ) else end[0] + 1
        for number in on_nodes:
            variant = sweep.variants[number]
            together.setdefault((variant.base, first_changed(variant, bucket, apart)), []).append(number)
        groups = []
        for (base, first), numbers in together.items():
            key = (tuple(numbers), frozenset(at_end))
            if key not in known:
                known[key] = trie.build([sweep.variants[n] for n in numbers], self.decoder.n_layers, at_end)
            groups.append(VariantBatch(base, first, numbers, known[key]))
        return groups

    def _bucket(
        self, sweep: Sweep, bucket: PromptSet, groups: list[VariantBatch]
    ) -> Iterator[tuple[list[int], list[int], Scores]]:
        """(rows of the bucket, indices of variants, their scores) in pieces that fit into memory."""
        pending = [(list(range(len(bucket))), groups)]
        while pending:
            some, left = pending.pop(0)
            size = self.prompts_that_fit(left, bucket, len(some), sweep.probabilities)
            if size < len(some):
                chunks = memory.balanced(len(some), size)
                pending = [*((some[part], left) for part in chunks), *pending]
                continue
            if len(some) == 1 and self.needs(left, bucket, 1, sweep.probabilities) > self.allowance.now:
                several = (
                    [[group] for group in left] if len(left) > 1 else [[half] for half in self._halves(sweep, left[0])]
                )
                if len(several) > 1:
                    pending = [*((some, each) for each in several), *pending]
                    continue
            try:
                for found in self._in_turn(sweep, bucket.select(some), left):
                    yield some, left[0].numbers, found
                    left = left[1:]
            except torch.OutOfMemoryError:
                self._use_less_memory(left, bucket, len(some), sweep.probabilities)
                pending.insert(0, (some, left))

    def _in_turn(self, sweep: Sweep, batch: PromptSet, groups: Sequence[VariantBatch]) -> Iterator[Scores]:
        """The scores of each group of variants on some prompts of one length."""
        sources = Sources(batch, self.reference, self.on_device)
        self._prefetch(_part(sweep, [number for group in groups for number in group.numbers]), sources)
        inputs = Inputs(self.decoder, sources, self.model.device, (group.trie for group in groups))
        for group in groups:
            yield Rows(self, inputs, group.base, group.first, group.trie).scores(sweep.probabilities)
            self.allowance.fitted()
            self._blocks.fitted()

    def planned(self, sweep: Sweep, prompts: PromptSet) -> int:
        """Largest number of bytes beside the weights that a sweep is planned to hold, over all threads."""
        by_trie = [number for number, one in enumerate(sweep.variants) if trie.final_norm_change(one) is not None]
        most = super().planned(_part(sweep, sorted(set(range(len(sweep))) - set(by_trie))), prompts)
        buckets, known = _shared(list(_buckets(prompts)), worker_count(self.model.device)), {}
        for rows in buckets if by_trie else ():
            bucket = prompts.select(rows)
            groups = self._groups(sweep, by_trie, bucket, known)
            size = self.prompts_that_fit(groups, bucket, len(rows), sweep.probabilities)
            most = max(most, self.needs(groups, bucket, size, sweep.probabilities))
        return most * min(len(buckets), worker_count(self.model.device))

    def needs(self, groups: Sequence[VariantBatch], bucket: PromptSet, n_prompts: int, probabilities: bool) -> int:
        """Largest number of bytes that groups of variants hold, run one after another on `n_prompts` prompts of one length."""
        length, tries = int(bucket.end[0]) + 1, [group.trie for group in groups]
        candidates = bucket.answers.shape[1] + bucket.wrong.shape[1]
        every = probabilities or candidates > 2 or any(bucket.without_foils.tolist())
        peaks = []
        for group in groups:
            states = self.smallest_product / (n_prompts * (length - group.first))
            piece = memory.VariantWork.of(self.shape, group.trie, length, group.first, states, every, tries)
            peaks.append(piece.peak(self.shape, n_prompts, self.tokens_per_block, self.logits_per_block))
        return max(peaks)

    def prompts_that_fit(
        self, groups: Sequence[VariantBatch], bucket: PromptSet, most: int, probabilities: bool
    ) -> int:
        """The size of the parts into which `most` prompts are divided so that each part fits the allowance."""
        return memory.most_that_fit(lambda n: self.needs(groups, bucket, n, probabilities), most, self.allowance.now)

    def _halves(self, sweep: Sweep, group: VariantBatch) -> list[VariantBatch]:
        """The same variants in two groups that share as little work as possible; a single variant stays one group."""
        order = [group.numbers[place] for place in np.argsort(group.trie.leaves, kind="stable")]
        at_end = group.trie.at_end
        return [
            replace(
                group,
                numbers=order[part],
                trie=trie.build([sweep.variants[n] for n in order[part]], self.decoder.n_layers, at_end),
            )
            for part in memory.balanced(len(order), -(-len(order) // 2))
        ]

    def _use_less_memory(
        self, left: Sequence[VariantBatch], bucket: PromptSet, n_prompts: int, probabilities: bool
    ) -> None:
        """Called when memory has run out; re-raises the error if nothing can be made smaller."""
        if n_prompts > 1 or len(left) > 1 or len(left[0].numbers) > 1:
            self.allowance.failed(self.needs(left, bucket, n_prompts, probabilities))
        elif self.tokens_per_block > 1:
            self._blocks.failed(self.tokens_per_block)
        else:
            raise


def operations_on(device: torch.device, implementation: str | None) -> Operations:
    """The operations of an engine: chosen once for each kind of device, or fixed by name."""
    timed = device.type == "cuda" and implementation is None
    return Operations(device, implementation, file=ChoiceFile.of(device) if timed else None)


def _attention_of(model: Model, choices: Mapping[str, Mapping[str, str]]) -> str:
    """The precision in which attention is computed and the kernel that does it, in words."""
    if model.dtype != torch.float32 or model.device.type != "cuda":
        return str(model.dtype).removeprefix("torch.")
    own = set(choices.get("packed_attention", {}).values())
    if own == {TRITON}:
        return "ieee, by the packed kernel"
    # PyTorch's memory-efficient attention multiplies float32 in three TF32 products from compute capability 8.0 on
    return "tf32x3, by PyTorch's memory-efficient attention" + (", ieee by the packed kernel" if TRITON in own else "")


def _part(sweep: Sweep, numbers: Sequence[int]) -> Sweep:
    return replace(sweep, variants=tuple(sweep.variants[number] for number in numbers))


def _buckets(prompts: PromptSet) -> Iterator[list[int]]:
    """Row indices of prompts of one length.

    Prompts with the same named and changed positions have a bucket of their own if there are enough of them.
    """
    roles = zip(*(where.tolist() for where in prompts.positions.values()), strict=True)
    named = list(roles) if prompts.positions else [()] * len(prompts)
    alike: dict[tuple, list[int]] = {}
    changed = (prompts.clean != prompts.corrupted).int().argmax(1).tolist()
    for row, end in enumerate(prompts.end.tolist()):
        alike.setdefault((end, changed[row], *named[row]), []).append(row)
    of_length: dict[int, list[int]] = {}
    for (end, *_), rows in alike.items():
        if len(rows) >= PROMPTS_PER_BUCKET:
            yield rows
        else:
            of_length.setdefault(end, []).extend(rows)
    yield from of_length.values()


def _shared(buckets: list[list[int]], threads: int) -> list[list[int]]:
    """The buckets, halved until every thread has one, the largest first, so that threads finish at about the same time."""
    while len(buckets) < threads and any(len(rows) > 1 for rows in buckets):
        largest = max(buckets, key=len)
        half = len(largest) // 2
        buckets = [*(rows for rows in buckets if rows is not largest), largest[:half], largest[half:]]
    return sorted(buckets, key=len, reverse=True)


def first_changed(variant: Variant, bucket: PromptSet, apart: int) -> int:
    """The first position at which a variant may differ from its base run, on any prompt of one length.

    Clean and corrupted tokens agree before position `apart`, and since attention is causal, so do all activations there. A
    patch from the base run itself changes nothing. The result is at most the last position, and 0 if skipping the positions
    before it would not pay.
    """
    length = _length(bucket)
    first = length - 1
    for intervention in variant.on_nodes:
        recipe = intervention.recipe
        if recipe.kind == "patch" and recipe.source == variant.base:
            continue
        if intervention.positions is None:
            start = 0
        else:
            start = min((_earliest(bucket, role) for role in intervention.positions), default=length)
        first = min(first, max(start, apart) if recipe.kind == "patch" else start)
    return first if first >= SMALLEST_SHARE * length else 0


@lru_cache(maxsize=8)
def _length(bucket: PromptSet) -> int:
    """Number of tokens of each prompt of the bucket."""
    return int(bucket.end[0]) + 1


@lru_cache(maxsize=64)
def _earliest(bucket: PromptSet, role: str | EveryBut) -> int:
    """The first position that a role names on any prompt; the length if it names none. Cached: every variant needs it."""
    return min(places(bucket, role)[1].tolist(), default=_length(bucket))
