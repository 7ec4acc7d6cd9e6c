"""The fused backend against the reference backend and brute force, and what it alone has: sharing, memory, the position
from which it computes, read-out of paths.

In float64 all architectures agree to 1e-10 (rotary ones are made to keep float64 throughout), in float32 to 1e-4.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from circuits import prompts as prompt_sets
from circuits.circuit import Node, head
from circuits.edges import EMBEDDING, Edge, Reader
from circuits.engine import FusedEngine, LensEngine, fused, memory, trie
from circuits.engine.decoder import Decoder
from circuits.engine.rows import Rows
from circuits.interventions import (
    Effects,
    Intervention,
    PathIntervention,
    Recipe,
    Sweep,
    Variant,
    ablate,
    denoise,
    noise,
    patch_paths,
)
from tests.circuits import toy
from tests.circuits.hook_loop import HookLoop
from tests.circuits.path_loop import PathLoop

pytestmark = pytest.mark.usefixtures("float64_throughout")

CLEAN, CORRUPTED = Recipe("patch", source="clean"), Recipe("patch", source="corrupted")
RECIPES = (
    Recipe("zero"),
    Recipe("mean"),
    Recipe("mean", pooled=True),
    Recipe("resample"),
    Recipe("resample", seed=3, draw=2),
    Recipe("noise"),
    Recipe("noise", additive=True, scale=3.0),
    Recipe("noise", additive=True, source="corrupted"),
    CLEAN,
    CORRUPTED,
    Recipe("zero_raw"),
)
PLACES = (("s2",), ("end",), ("io", "end"), ("changed",), ("changed", "s1_plus_1"))
BASES = (Variant("clean"), Variant("corrupted", base="corrupted"))
EXACT, TOLERANCE = 1e-12, {"float64": 1e-10, "float32": 1e-4}


def sites(n_layers: int) -> dict[str, tuple[Node, ...]]:
    """Every kind of node in the first and in the last layer, and heads of both."""
    last = n_layers - 1
    found = {
        f"{kind} {layer}": (Node(kind, layer),) for layer in (0, last) for kind in ("attention", "mlp", "residual")
    }
    found |= {"head 0": (head(0, 1),), "head last": (head(last, 2),), "embedding": (EMBEDDING,)}
    return found | {"heads": (head(last, 0), head(last, 3), head(0, 2), head(0, 1))}


def everything(n_layers: int) -> tuple[Variant, ...]:
    """Every site under every recipe in both runs at all positions, and under some at the named ones."""
    made = list(BASES)
    for site, nodes in sites(n_layers).items():
        for recipe in RECIPES:
            for base in ("clean", "corrupted"):
                name = f"{site}/{recipe}/{recipe.seed} {recipe.source} in {base}"
                made.append(Variant(name, (Intervention(nodes, recipe),), base))
        for place in PLACES:
            for recipe in (CLEAN, CORRUPTED, RECIPES[0], RECIPES[1], RECIPES[6]):
                base = "corrupted" if recipe == CLEAN else "clean"
                name = f"{site}@{'+'.join(place)}/{recipe} in {base}"
                made.append(Variant(name, (Intervention(nodes, recipe, place),), base))
    return tuple(made)


def combinations(n_layers: int) -> Iterator[Variant]:
    """Several interventions in one variant, some on one node."""
    last, zero, mean = n_layers - 1, Recipe("zero"), Recipe("mean")
    corrupt = Intervention((EMBEDDING,), Recipe("noise", additive=True, scale=3.0), ("changed",))
    for layer in range(n_layers):
        for kind in ("residual", "mlp", "attention"):
            yield Variant(
                f"restore {kind} {layer}", (corrupt, Intervention((Node(kind, layer),), CLEAN, ("s2", "end")))
            )
    yield Variant("restore all", (corrupt, Intervention((Node("residual", last),), CLEAN)))
    pair, one = (head(0, 1), head(0, 2)), (head(0, 1),)
    yield Variant("part over whole", (Intervention(pair, zero), Intervention(one, mean, ("s1",))), "corrupted")
    yield Variant("whole over part", (Intervention(one, mean, ("s1",)), Intervention(pair, zero)))
    yield Variant(
        "head, then its layer", (Intervention(pair, zero), Intervention((Node("attention", 0),), mean, ("s2",)))
    )
    yield Variant(
        "layer, then its head", (Intervention((Node("attention", 0),), mean, ("s2",)), Intervention(pair, zero))
    )
    yield Variant("tokens, then stream", (corrupt, Intervention((Node("residual", 0),), mean, ("end",))))
    yield Variant("stream, then tokens", (Intervention((Node("residual", 0),), mean, ("end",)), corrupt))
    nodes = (head(last, 1), Node("mlp", 0), head(0, 3), EMBEDDING, Node("mlp", last), head(0, 1))
    yield ablate(nodes, Recipe("resample"), "many kinds at once")
    yield Variant("patched back", (Intervention(pair, zero), Intervention(pair, CLEAN)))
    yield Variant("patched back in part", (Intervention(pair, zero), Intervention(one, CLEAN)))


@pytest.fixture(scope="module")
def few(scored):
    """One prompt of each of four lengths and both orders of names."""
    chosen = {}
    for row, template in enumerate(scored.templates):
        chosen.setdefault((int(scored.end[row]), template.endswith("ABBA")), row)
    return scored.select(list(chosen.values())[:5])


@pytest.fixture(scope="module")
def engine(load, reference):
    return cache(lambda architecture="gpt2", dtype="float64": FusedEngine(load(architecture, dtype), reference))


@pytest.fixture(scope="module")
def lens(load, reference):
    return cache(lambda architecture="gpt2", dtype="float64": LensEngine(load(architecture, dtype), reference))


@pytest.fixture(scope="module")
def sample():
    """A seeded fifth of everything on GPT-2, and the combinations."""
    clean, corrupted, *made = everything(3)
    return Sweep((clean, corrupted, *random.Random(0).sample(made, 40), *combinations(3)))


@pytest.fixture(scope="module")
def effects(engine, sample, scored):
    return engine().run(sample, scored)


def assert_same(found: Effects, expected: np.ndarray, tolerance: float) -> None:
    """Logit differences [variant, prompt] within `tolerance` of the largest; says which variant is worst if not."""
    error = np.abs(found.logit_diff - expected).max(1) / np.abs(expected).max()
    assert error.max() < tolerance, f"{found.names[error.argmax()]}: {error.max():.2g}"


# --- against the reference backend and brute force --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.every_architecture
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_every_intervention_is_what_it_is_in_the_reference_backend(architecture, dtype, engine, lens, few) -> None:
    one, other = engine(architecture, dtype), lens(architecture, dtype)
    n_layers = one.model.n_layers
    made = everything(n_layers) if dtype == "float64" else everything(n_layers)[::3]
    sweep = Sweep((*BASES, *(v for v in made if v not in BASES), *combinations(n_layers)))
    found, expected = one.run(sweep, few), other.run(sweep, few)
    assert found.logit_diff.dtype == expected.logit_diff.dtype == np.dtype(dtype)
    assert_same(found, expected.logit_diff, TOLERANCE[dtype])
    assert np.array_equal(found.correct, expected.correct)
    base = [0 if variant.base == "clean" else 1 for variant in sweep.variants]
    moved = np.abs(expected.logit_diff - expected.logit_diff[base]).max(1)
    assert np.median(moved) > 0.3
    if dtype == "float64":  # of all of them: what restores, or is of the last layer and not at the end, moves nothing
        assert (moved > 1e-3).mean() > 0.75


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_a_sample_of_all_interventions_equals_brute_force(architecture, engine, plain, reference, few) -> None:
    prompts, one = few.select([0, 3]), engine(architecture)
    some = random.Random(1).sample(everything(one.model.n_layers), 60)
    sweep = Sweep((*some, *combinations(one.model.n_layers)), probabilities=True)
    truth = HookLoop(plain(architecture), architecture, toy.N_HEADS, reference).run(sweep.variants, prompts)
    found = one.run(sweep, prompts)
    assert_same(found, truth.logit_diff, TOLERANCE["float64"])
    assert np.abs(found.answer_probability / truth.answer_probability - 1).max() < 1e-10
    assert np.array_equal(found.correct, truth.correct)


# --- sets of heads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [Recipe("mean"), Recipe("zero"), CORRUPTED, Recipe("resample", seed=1)], ids=str)
@pytest.mark.parametrize("architecture", ["gpt2", "qwen2"])
def test_random_sets_of_heads_of_every_size(architecture, recipe, engine, lens, few) -> None:
    heads, rng = engine(architecture).model.heads, random.Random(0)
    sizes = (0, 1, 2, len(heads) // 2, len(heads) - 1, len(heads))
    drawn = [(size, draw, rng.sample(heads, size)) for size in sizes for draw in range(4)]
    sweep = Sweep(tuple(ablate(nodes, recipe, f"{size}, draw {draw}") for size, draw, nodes in drawn))
    found, expected = (one(architecture).run(sweep, few) for one in (engine, lens))
    assert_same(found, expected.logit_diff, TOLERANCE["float64"])
    empty, full = found.logit_diff[:4], found.logit_diff[-4:]
    assert np.array_equal(empty, np.broadcast_to(empty[0], empty.shape))
    assert np.array_equal(full, np.broadcast_to(full[0], full.shape))
    assert np.abs(empty[0] - full[0]).max() > 0.1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_leaving_one_more_head_out_around_an_ablated_base(architecture, engine, lens, plain, reference, few) -> None:
    """Everything but a circuit is mean-ablated, and one of the circuit's heads besides."""
    model, mean = engine(architecture).model, Recipe("mean")
    circuit = [head(0, 1), head(0, 2), head(model.n_layers - 1, 0), head(model.n_layers - 1, 3)]
    rest = [node for node in model.heads if node not in circuit]
    sweep = Sweep((ablate(rest, mean, "base"), *(ablate([*rest, node], mean, str(node)) for node in circuit)))
    found = engine(architecture).run(sweep, few)
    assert_same(found, lens(architecture).run(sweep, few).logit_diff, TOLERANCE["float64"])
    loop = HookLoop(plain(architecture), architecture, toy.N_HEADS, reference)
    assert_same(
        engine(architecture).run(sweep, few.select([1])), loop.run(sweep.variants, few.select([1])).logit_diff, 1e-10
    )
    assert np.abs(found.logit_diff[1:] - found.row("base")).max(1).min() > 1e-3


# --- order within a variant -------------------------------------------------------------------------------------


def test_of_several_interventions_on_a_node_the_last_counts(engine, scored) -> None:
    zero, mean = Recipe("zero"), Recipe("mean")
    node, other = (head(1, 1),), (head(1, 2),)
    last, corrupted = (Node("mlp", 2),), Intervention((Node("mlp", 2),), CORRUPTED)
    pairs = {
        "zero, then mean": ((Intervention(node, zero), Intervention(node, mean)), (Intervention(node, mean),)),
        "both, then one": (
            (Intervention(node + other, zero), Intervention(node, mean)),
            (Intervention(node, mean), Intervention(other, zero)),
        ),
        "a position, then all": (
            (Intervention(node, mean, ("s2",)), Intervention(node, zero)),
            (Intervention(node, zero),),
        ),
        "a node named twice": ((Intervention(node + node, zero),), (Intervention(node, zero),)),
        "an MLP": ((corrupted, Intervention(last, mean)), (Intervention(last, mean),)),
        "its attention as a whole": (
            (Intervention(node, zero), Intervention((Node("attention", 1),), mean)),
            (Intervention((Node("attention", 1),), mean),),
        ),
    }
    sweep = Sweep(tuple(Variant(f"{name} {i}", both[i]) for name, both in pairs.items() for i in (0, 1)))
    found = engine().run(sweep, scored).logit_diff
    assert np.abs(found[::2] - found[1::2]).max() < EXACT
    assert np.abs(found[::2] - engine().run(Sweep((Variant("clean"),)), scored).logit_diff).max(1).min() > 1e-2


def test_restoring_alone_is_nothing_and_restoring_after_corruption_is_something(engine, scored) -> None:
    corrupt = Intervention((EMBEDDING,), Recipe("noise", additive=True, scale=3.0), ("changed",))
    restore = {layer: Intervention((Node("residual", layer),), CLEAN, ("s2", "end")) for layer in range(3)}
    alone = [Variant(f"restore {layer}", (item,)) for layer, item in restore.items()]
    after = [Variant(f"corrupt, restore {layer}", (corrupt, item)) for layer, item in restore.items()]
    made = Sweep((Variant("clean"), Variant("corrupt", (corrupt,)), *alone, *after))
    clean, noised, *rest = engine().run(made, scored).logit_diff
    assert np.abs(np.array(rest[:3]) - clean).max() < EXACT
    assert np.abs(np.array(rest[3:]) - noised).max(1).min() > 1e-2


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_in_the_last_layer_only_the_stream_matters_before_the_end(architecture, engine, scored) -> None:
    last = engine(architecture).model.n_layers - 1
    early = ("io", "s1", "s2")
    nodes = {"head": head(last, 1), **{kind: Node(kind, last) for kind in ("attention", "mlp", "residual")}}
    recipes = (Recipe("zero"), CORRUPTED, Recipe("noise", additive=True))
    made = [Variant(f"{k} {r}", (Intervention((n,), r, early),)) for k, n in nodes.items() for r in recipes]
    clean, *found = engine(architecture).run(Sweep((Variant("clean"), *made)), scored).logit_diff
    distance = np.abs(np.array(found) - clean).max(1)
    assert (distance[:9] < EXACT * np.abs(clean).max()).all()
    assert (distance[9:] > 1e-3).all()


# --- positions that need not be computed ------------------------------------------------------------------------


def test_the_first_position_that_a_variant_changes(scored) -> None:
    rows = [row for row, end in enumerate(scored.end.tolist()) if end == int(scored.end[0])]
    bucket = scored.select(rows)
    end, apart = (
        int(bucket.end[0]),
        min(
            next(i for i in range(len(clean)) if clean[i] != corrupted[i])
            for clean, corrupted in zip(bucket.clean.tolist(), bucket.corrupted.tolist(), strict=True)
        ),
    )
    s1 = int(bucket.positions["s1"].min())
    node, s2 = (head(0, 1),), int(bucket.positions["s2"].min())
    cases = {
        (): end,
        (Intervention(node, Recipe("zero")),): 0,
        (Intervention(node, CORRUPTED),): apart,
        (Intervention(node, CLEAN),): end,
        (Intervention(node, Recipe("mean"), ("s2",)),): s2,
        (Intervention(node, CORRUPTED, ("s1",)),): max(s1, apart),
        (Intervention(node, Recipe("zero"), ("s2",)), Intervention(node, CORRUPTED, ("changed",))): min(s2, apart),
        (Intervention(node, Recipe("zero"), ("end",)),): end,
        (Intervention(node, Recipe("zero"), ()),): end,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "SMALLEST_SHARE", 0)
        assert [fused.first_changed(Variant("a", items), bucket, apart) for items in cases] == list(cases.values())
    assert 0 < apart < s2 < end


def test_a_few_positions_are_not_worth_leaving_out(scored) -> None:
    bucket = scored.select([0])
    variant = Variant("a", (Intervention((head(0, 1),), Recipe("zero"), ("s2",)),))
    length, place = int(bucket.end[0]) + 1, int(bucket.positions["s2"][0])
    with pytest.MonkeyPatch.context() as patch:
        for share, expected in ((place / length, place), ((place + 0.5) / length, 0)):
            patch.setattr(fused, "SMALLEST_SHARE", share)
            assert fused.first_changed(variant, bucket, apart=length) == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize("architecture", ["gpt2", "qwen2"])
def test_leaving_positions_out_changes_nothing(architecture, share, engine, lens, few, monkeypatch) -> None:
    n_layers = engine(architecture).model.n_layers
    sweep = Sweep((*everything(n_layers)[::3], *combinations(n_layers)))
    monkeypatch.setattr(fused, "SMALLEST_SHARE", share)
    assert_same(
        engine(architecture).run(sweep, few), lens(architecture).run(sweep, few).logit_diff, TOLERANCE["float64"]
    )


# --- batching ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("least", [1, 3, 1000])
def test_how_prompts_are_bucketed_changes_nothing(least, engine, sample, effects, scored, monkeypatch) -> None:
    monkeypatch.setattr(fused, "PROMPTS_PER_BUCKET", least)
    buckets = list(fused._buckets(scored))
    assert sorted(row for rows in buckets for row in rows) == list(range(len(scored)))
    assert all(len(set(scored.end[rows].tolist())) == 1 for rows in buckets)
    if least == 1000:
        assert len(buckets) == len(set(scored.end.tolist())) > 1
    assert_same(engine().run(sample, scored), effects.logit_diff, EXACT)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("memory_mib", [0.001, 0.05, 1.0])
@pytest.mark.parametrize("tokens_per_block", [1, 7, 4096])
def test_chunk_sizes_change_nothing(memory_mib, tokens_per_block, engine, sample, effects, scored, reference) -> None:
    columns = [0, 9]
    small = FusedEngine(engine().model, reference, memory_mib=memory_mib, tokens_per_block=tokens_per_block)
    small.reference = engine().reference  # whose activations are known
    held = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "scores", _note(Rows.scores, held))
        found = small.run(sample, scored.select(columns))
    assert_same(found, effects.logit_diff[:, columns], EXACT)
    assert all(needed <= small.room or pairs == 1 for needed, pairs in held)


def _note(scores, held):
    """Rows.scores that notes (bytes planned, pairs of variant and prompt) first."""

    def noted(self, probabilities):
        one, own = self.engine, self.inputs.length - self.first
        piece = memory.VariantWork.of(
            one.shape, self.trie, self.inputs.length, self.first, one.smallest_product / (self.n * own), probabilities
        )
        planned = piece.peak(one.shape, self.n, one.tokens_per_block, one.logits_per_block)
        held.append((planned, len(self.trie.leaves) * self.n))
        return scores(self, probabilities)

    return noted


def _size(rows: Rows) -> tuple[int, int]:
    return rows.trie.width * rows.n * (rows.inputs.length - rows.first), len(rows.trie.leaves) * rows.n


@pytest.mark.sampled(3)
@pytest.mark.parametrize("smallest", [0, 100, 10**9])
def test_leaving_out_replaced_heads_changes_nothing(smallest, engine, sample, effects, scored, reference) -> None:
    one = FusedEngine(engine().model, reference)
    one.smallest_product, one.reference = smallest, engine().reference
    assert_same(one.run(sample, scored), effects.logit_diff, EXACT)


def test_permuting_prompts_and_variants_permutes_the_effects(engine, sample, effects, scored) -> None:
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(len(sample)), rng.permutation(len(scored))
    shuffled = Sweep(tuple(sample.variants[row] for row in rows))
    found = engine().run(shuffled, scored.select(columns.tolist()))
    assert_same(found, effects.logit_diff[np.ix_(rows, columns)], EXACT)
    assert found.names == tuple(effects.names[row] for row in rows)


def test_a_variant_s_effect_does_not_depend_on_the_others(engine, sample, effects, scored) -> None:
    for number in (0, 1, 20, len(sample) - 1):
        alone = engine().run(Sweep((sample.variants[number],)), scored).logit_diff
        assert np.abs(alone - effects.logit_diff[number]).max() < EXACT * np.abs(effects.logit_diff).max()


# --- memory and progress ----------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("capacity", [500, 100, 18])
def test_out_of_memory_halves_what_is_held_and_then_tries_more_again(
    capacity, engine, sample, effects, scored, reference, monkeypatch
) -> None:
    """18 tokens are one variant on the longest prompt. Nothing changes but how often memory runs out: not at every piece."""
    one, scores, done, failed = FusedEngine(engine().model, reference), Rows.scores, [], []
    one.reference = engine().reference
    columns, sizes = [0, 5, 6, 14, 21], []

    def limited(self, probabilities):
        sizes.append(_size(self)[0])
        if sizes[-1] > capacity:
            failed.append(sizes[-1])
            raise torch.OutOfMemoryError(f"{sizes[-1]} tokens")
        return scores(self, probabilities)

    monkeypatch.setattr(Rows, "scores", limited)
    found = one.run(sample, scored.select(columns), done.append)
    assert_same(found, effects.logit_diff[:, columns], EXACT)
    assert sum(done) == len(sample) * len(columns)
    fitted = [size for size in sizes if size <= capacity]
    assert failed and len(failed) <= 12 + 3 * len(fitted) / memory.RETRY
    later = sizes[len(sizes) // 2 :]  # when the size has settled: larger ones are still tried
    assert len(fitted) < 4 * memory.RETRY or max(later) > np.median(later)


def test_out_of_memory_in_the_middle_of_a_trie_is_survived(
    engine, sample, effects, scored, reference, monkeypatch
) -> None:
    one, mlp, done = FusedEngine(engine().model, reference), Decoder.mlp, []
    one.reference, most = engine().reference, 200

    def limited(self, weights, stream):
        if stream[..., 0].numel() > most and weights is not self.layers[0]:
            raise torch.OutOfMemoryError(f"{stream[..., 0].numel()} rows")
        return mlp(self, weights, stream)

    monkeypatch.setattr(Decoder, "mlp", limited)
    columns = [0, 5, 6, 14, 21]
    found = one.run(sample, scored.select(columns), done.append)
    assert_same(found, effects.logit_diff[:, columns], EXACT)
    assert sum(done) == len(sample) * len(columns)


def test_a_single_pair_that_does_not_fit_is_an_error(engine, scored, reference, monkeypatch) -> None:
    one = FusedEngine(engine().model, reference)

    def full(self, probabilities):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Rows, "scores", full)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        one.run(Sweep((Variant("clean"), ablate([head(0, 1)], Recipe("zero"), "a"))), scored)
    assert one.tokens_per_block == 1


def test_progress_counts_every_pair_once(engine, sample, scored) -> None:
    direct = patch_paths([Edge(head(0, 1), Reader("v", 1, 2))], CORRUPTED, "a path")
    done: list[int] = []
    engine().run(Sweep((*sample.variants, direct)), scored, done.append)
    assert sum(done) == (len(sample) + 1) * len(scored)


# --- scores -----------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_several_answers_and_foils(architecture, probabilities, load, sets) -> None:
    prompts, reference = (sets("greater_than")[split] for split in ("evaluation", "reference"))
    made = (Variant("clean"), Variant("corrupted", base="corrupted"), denoise([head(1, 1)], "d", ("yy",)))
    made += (ablate([head(0, 0), Node("mlp", 1)], Recipe("mean"), "a"), noise([Node("residual", 1)], "n"))
    sweep, model = Sweep(made, probabilities), load(architecture, "float64")
    found, expected = (one(model, reference).run(sweep, prompts) for one in (FusedEngine, LensEngine))
    assert prompts.answers.shape[1] > 2
    assert_same(found, expected.logit_diff, TOLERANCE["float64"])
    assert np.array_equal(found.correct, expected.correct)
    assert not np.array_equal(found.correct, found.logit_diff > 0)  # a mean of logits and a sum of probabilities differ
    if probabilities:
        assert np.abs(found.answer_probability / expected.answer_probability - 1).max() < 1e-10
    else:
        assert found.answer_probability is None


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_probabilities_of_the_answers(architecture, engine, lens, few) -> None:
    sweep = Sweep(everything(engine(architecture).model.n_layers)[::7], probabilities=True)
    found, expected = (one(architecture).run(sweep, few) for one in (engine, lens))
    assert np.abs(found.answer_probability / expected.answer_probability - 1).max() < 1e-10


# --- paths ------------------------------------------------------------------------------------------------------


def into_logits(model) -> tuple[Variant, ...]:
    """Paths into the logits whose writers are held at a recipe: of heads, of MLPs, of both; one edge named twice."""
    logits, mean = model.graph.logits, Recipe("mean")
    writers = [head(0, 1), head(model.n_layers - 1, 2), Node("mlp", 0), Node("mlp", model.n_layers - 1)]
    held = Intervention(tuple(writers), mean)
    shown = (CORRUPTED, Recipe("zero"), Recipe("resample"), Recipe("mean", pooled=True), Recipe("noise"))
    made = [
        Variant(f"{writer} {recipe} in {base}", (held, PathIntervention((Edge(writer, logits),), recipe)), base)
        for writer in writers
        for recipe in shown
        for base in ("clean", "corrupted")
    ]
    edges = tuple(Edge(writer, logits) for writer in writers)
    made.append(Variant("all", (held, PathIntervention(edges, CORRUPTED))))
    twice = (PathIntervention(edges, CORRUPTED), PathIntervention(edges[:2], Recipe("zero")))
    made.append(Variant("twice", (held, *twice)))
    made.append(Variant("held twice", (Intervention(tuple(writers), Recipe("zero")), held, *twice)))
    return tuple(made)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_paths_into_the_logits_are_read_out(architecture, engine, lens, plain, reference, few, monkeypatch) -> None:
    one = engine(architecture)
    sweep = Sweep((Variant("clean"), *into_logits(one.model)))
    assert all(trie.final_norm_change(variant) is not None for variant in sweep.variants)
    expected = lens(architecture).run(sweep, few)
    one._check(sweep, few)  # the wiring is proved and the hooks are alive
    one.run(sweep, few)
    rows, forward = [], FusedEngine._forward

    def count(self, tokens, end, hooks):
        rows.append(len(tokens))
        return forward(self, tokens, end, hooks)

    monkeypatch.setattr(FusedEngine, "_forward", count)
    found = one.run(sweep, few)
    assert sum(rows) == len(few)  # the corrupted run alone: a path costs no forward pass
    assert_same(found, expected.logit_diff, TOLERANCE["float64"])
    loop = PathLoop(plain(architecture), architecture, toy.N_HEADS, reference)
    some = Sweep(sweep.variants[::3])
    truth = loop.differences(some.variants, few.select([2]))
    assert_same(one.run(some, few.select([2])), truth, TOLERANCE["float64"])


@pytest.mark.parametrize(
    "shown", [CORRUPTED, Recipe("mean"), Recipe("zero"), Recipe("mean", pooled=True), Recipe("noise")], ids=str
)
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_path_from_held_tokens_into_the_logits(architecture, shown, engine, lens, few) -> None:
    """The embedding as a writer is the stream that enters layer 0, positions included; as a node it is without them."""
    path = PathIntervention((Edge(EMBEDDING, engine(architecture).model.graph.logits),), shown)
    held = [Intervention((EMBEDDING,), recipe) for recipe in (Recipe("mean"), Recipe("zero"))]
    stream = Intervention((Node("residual", 0),), Recipe("noise", seed=1))
    made = [Variant(f"held {i}", (one, path)) for i, one in enumerate(held)]
    made.append(Variant("held, then the stream replaced", (held[0], stream, path)))
    made += [Variant(f"not held, {base}", (path,), base) for base in ("clean", "corrupted")]
    found, expected = (one(architecture).run(Sweep(tuple(made)), few) for one in (engine, lens))
    assert_same(found, expected.logit_diff, TOLERANCE["float64"])


@pytest.mark.slow
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_other_paths_go_the_reference_backend_s_way(architecture, engine, lens, plain, reference, few) -> None:
    model, rng = engine(architecture).model, random.Random(2)
    some = [tuple(rng.sample(model.graph.edges, size)) for size in (1, 3, 20, 60)]
    held = Intervention((head(0, 1), Node("mlp", 1)), Recipe("mean"))
    made = [patch_paths(edges, recipe, f"{len(edges)} {recipe}") for edges in some for recipe in RECIPES[:4]]
    made += [Variant(f"beside {len(edges)}", (held, PathIntervention(edges, CLEAN)), "corrupted") for edges in some]
    unknown = Intervention((head(0, 1),), Recipe("zero"), ("s2",))
    to_logits = PathIntervention((Edge(head(0, 1), model.graph.logits),), CORRUPTED)
    made.append(Variant("held in part", (unknown, to_logits)))
    sweep = Sweep((Variant("clean"), *made, *into_logits(model)[:2]))
    found = engine(architecture).run(sweep, few)
    assert_same(found, lens(architecture).run(sweep, few).logit_diff, TOLERANCE["float64"])
    loop = PathLoop(plain(architecture), architecture, toy.N_HEADS, reference)
    truth = loop.differences(sweep.variants, few.select([0]))
    assert_same(engine(architecture).run(sweep, few.select([0])), truth, TOLERANCE["float64"])


# --- cost -------------------------------------------------------------------------------------------------------


def flops(model, reference, sweep, prompts) -> int:
    """Of a run once the reference prompts have been run and the hooks been tried."""
    one = FusedEngine(model, reference)
    one.run(sweep, prompts)
    before = one.flops
    one.run(sweep, prompts)
    return one.flops - before


def layer_flops(length: int, read: int) -> tuple[int, int]:
    """(attention up to z, output projection and MLP) of one GPT-2 toy layer and prompt whose last `read` positions are needed."""
    width, heads = toy.D_MODEL, toy.N_HEADS * toy.D_HEAD
    project = 2 * width * heads * (read + 2 * length)
    pairs = sum(range(length - read + 1, length + 1))
    return project + 4 * heads * pairs, 2 * read * (heads * width + 2 * width * 4 * width)


def test_the_clean_run_costs_what_is_counted_by_hand(model, reference, scored) -> None:
    prompts = scored.select([0])
    length = int(prompts.end[0]) + 1
    expected = 2 * sum(layer_flops(length, length)) + sum(layer_flops(length, 1)) + 2 * toy.D_MODEL
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "SMALLEST_SHARE", 1)  # from the first position on
        assert flops(model, reference, Sweep((Variant("clean"),)), prompts) == expected
        same = Sweep(tuple(Variant(str(i)) for i in range(5)))
        assert flops(model, reference, same, prompts) == expected
        assert flops(model, reference, same, prompts.select([0] * 1)) == expected


def test_heads_of_the_last_layer_cost_one_position_of_an_mlp_each(model, reference, scored) -> None:
    prompts = scored.select([0])
    length = int(prompts.end[0]) + 1
    clean = flops(model, reference, Sweep((ablate([head(2, 0)], Recipe("zero"), "0"),)), prompts)
    many = Sweep(tuple(ablate([node], Recipe("zero"), str(node)) for node in model.heads if node.layer == 2))
    one_more = layer_flops(length, 1)[1] + 2 * toy.D_MODEL
    assert flops(model, reference, many, prompts) - clean == (toy.N_HEADS - 1) * one_more


def test_sharing_and_late_positions_save(model, reference, scored) -> None:
    prompts = scored.select([0])
    zero = [ablate([node], Recipe("zero"), str(node)) for node in model.heads]
    together = flops(model, reference, Sweep(tuple(zero)), prompts)
    apart = sum(flops(model, reference, Sweep((variant,)), prompts) for variant in zero)
    assert together < 0.6 * apart
    late = [Variant(str(n), (Intervention((n,), Recipe("zero"), ("s2",)),)) for n in model.heads]
    assert flops(model, reference, Sweep(tuple(late)), prompts) < 0.6 * together
    twice = prompt_sets.join(prompts, scored.select([1]))
    if int(scored.end[1]) == int(scored.end[0]):
        assert flops(model, reference, Sweep(tuple(zero)), twice) == 2 * together


# --- a window of attention --------------------------------------------------------------------------------------


def test_prompts_longer_than_the_window_go_the_reference_backend_s_way(
    engine, effects, sample, scored, reference
) -> None:
    one, shortest = FusedEngine(engine().model, reference), int(scored.end.min())
    one.reference = engine().reference
    one.decoder = replace(one.decoder, longest=shortest + 1)
    short = [row for row, end in enumerate(scored.end.tolist()) if end == shortest]
    columns = [*short[:2], *(row for row, end in enumerate(scored.end.tolist()) if end > shortest)][:4]
    assert one.decoder.can_run(shortest + 1)
    assert not one.decoder.can_run(shortest + 2)
    assert not one.decoder.can_run(shortest + 1, [("blocks.0.attn.hook_pattern", print)])
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Rows, "scores")  # no row of a trie is run
        found = one.run(sample, scored.select(columns))
    assert_same(found, effects.logit_diff[:, columns], TOLERANCE["float64"])
    found = one.run(sample, scored.select(short[:2]))
    assert_same(found, effects.logit_diff[:, short[:2]], TOLERANCE["float64"])
