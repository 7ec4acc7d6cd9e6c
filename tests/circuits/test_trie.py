"""Which states variants share: counted by hand on small cases, and against walking each variant alone."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from circuits.circuit import Node, head
from circuits.edges import EMBEDDING, Edge, Reader
from circuits.engine import trie
from circuits.engine.trie import NOTHING, STAGES, TrieStage
from circuits.interventions import (
    EveryBut,
    Intervention,
    PathIntervention,
    Recipe,
    Variant,
    ablate,
    denoise,
    noise,
    patch_paths,
)

LAYERS, HEADS = 3, 4
AT_END = {"end", "changed"}
ZERO, MEAN = Recipe("zero"), Recipe("mean")
CLEAN, CORRUPTED = Recipe("patch", source="clean"), Recipe("patch", source="corrupted")
ALL_HEADS = [head(layer, index) for layer in range(LAYERS) for index in range(HEADS)]


def states(variants, at_end=AT_END) -> dict[tuple[int, str], int]:
    """Number of states after each stage."""
    return {stage: len(step.parent) for stage, step in trie.build(variants, LAYERS, at_end).steps.items()}


def singles(recipe, positions=None) -> list[Variant]:
    return [Variant(str(node), (Intervention((node,), recipe, positions),)) for node in ALL_HEADS]


# --- how many states --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_clean", [False, True])
def test_single_heads_share_all_layers_before_theirs(with_clean) -> None:
    """After attention of layer l: one state for each head up to there, and the base run's while it is still needed."""
    found = states([*singles(ZERO), *([Variant("clean")] if with_clean else [])])
    for layer in range(LAYERS):
        base = int(with_clean or layer < LAYERS - 1)
        assert found[layer, "stream"] == 1 + HEADS * layer
        assert found[layer, "attention"] == found[layer, "mlp"] == base + HEADS * (layer + 1)


def test_variants_that_do_nothing_are_one_state() -> None:
    same = [Variant(str(number)) for number in range(5)] + [ablate([], ZERO, "none")]
    built = trie.build(same, LAYERS, AT_END)
    assert built.width == 1
    assert built.leaves.tolist() == [0] * 6
    assert all(step.trivial for step in built.steps.values())
    assert built.shifts.trivial


def test_equal_beginnings_are_shared_and_equal_ends_are_not() -> None:
    """a-b and a-c part at the second edit; b alone and a-b have parted before it and do not meet again."""
    first, second, third = head(0, 0), head(1, 1), head(1, 2)
    made = [ablate([first, second], ZERO, "ab"), ablate([first, third], ZERO, "ac"), ablate([second], ZERO, "b")]
    found = states(made)
    assert [found[stage] for stage in ((0, "stream"), (0, "attention"), (0, "mlp"))] == [1, 2, 2]
    assert [found[stage] for stage in ((1, "stream"), (1, "attention"), (2, "mlp"))] == [2, 3, 3]


def test_other_recipes_and_other_positions_are_other_states() -> None:
    made = [
        Variant(f"{number}", (Intervention((head(0, 0),), recipe, positions),))
        for number, (recipe, positions) in enumerate(
            itertools.product((ZERO, MEAN, Recipe("resample", draw=1), Recipe("resample")), (None, ("s2",), ("end",)))
        )
    ]
    assert states(made)[0, "attention"] == len(made) == 12


def test_the_stages_of_a_layer_are_those_of_a_block() -> None:
    """What stands before attention parts there, attention's heads and output together, the MLP last."""
    at = {"embedding": "stream", "residual": "stream", "head": "attention", "attention": "attention", "mlp": "mlp"}
    for kind, stage in at.items():
        node = head(0, 1) if kind == "head" else Node(kind, 0)
        found = states([Variant("clean"), ablate([node], ZERO, "a")])
        assert [found[0, name] for name in STAGES] == [
            1 + (STAGES.index(name) >= STAGES.index(stage)) for name in STAGES
        ]


@pytest.mark.parametrize("positions", [None, ("io", "end"), ("s2", "changed")])
@pytest.mark.parametrize(("recipe", "base"), [(CLEAN, "clean"), (CORRUPTED, "corrupted")])
def test_restoring_what_is_there_keeps_the_base_run_s_state(recipe, base, positions) -> None:
    made = [Variant(str(node), (Intervention((node,), recipe, positions),), base) for node in ALL_HEADS]
    made += [Variant(f"r{n}", (Intervention((Node("residual", n),), recipe, positions),), base) for n in range(LAYERS)]
    assert set(states(made).values()) == {1}


def test_restoring_after_a_change_is_an_edit() -> None:
    zero, back = Intervention((head(0, 1),), ZERO), Intervention((head(1, 1),), CLEAN)
    before = Intervention((head(0, 1),), CLEAN)
    made = [Variant("zero", (zero,)), Variant("zero, back", (zero, back))]
    found = states(made)
    assert (found[0, "attention"], found[1, "attention"]) == (1, 2)
    later = Intervention((head(1, 1),), ZERO)
    found = states([Variant("a", (before, later)), Variant("b", (later,))])
    assert (found[0, "attention"], found[1, "attention"], found[2, "mlp"]) == (1, 1, 1)


def test_in_the_last_layer_only_edits_at_the_end_and_of_the_stream_part() -> None:
    def last(kind, positions):
        node = head(2, 0) if kind == "head" else Node(kind, 2)
        return states([Variant("clean"), Variant("a", (Intervention((node,), ZERO, positions),))])[2, "mlp"]

    for kind in ("head", "attention", "mlp"):
        assert [last(kind, p) for p in (None, ("s2",), ("end",), ("io", "end"), ("changed",))] == [2, 1, 2, 2, 2]
    assert last("residual", ("s2",)) == 2
    far = [Variant("clean"), Variant("a", (Intervention((head(2, 0),), ZERO, ("changed",)),))]
    assert states(far, at_end={"end"})[2, "mlp"] == 1


# --- what later edits leave of earlier ones ---------------------------------------------------------------------


def edit(*interventions, stage=(1, "attention")):
    return trie.build([Variant("a", interventions)], LAYERS, AT_END).steps[stage].edits[0]


def test_a_whole_edit_leaves_nothing_of_an_earlier_one() -> None:
    one, two = head(1, 1), head(1, 3)
    assert edit(Intervention((one,), ZERO), Intervention((one,), MEAN)) == (("head", (MEAN, (1,), None)),)
    assert edit(Intervention((two, one), ZERO), Intervention((one,), MEAN)) == (
        ("head", (MEAN, (1,), None)),
        ("head", (ZERO, (3,), None)),
    )
    assert edit(Intervention((two, one, two), ZERO)) == (("head", (ZERO, (1, 3), None)),)
    mlp = (Node("mlp", 1),)
    both = (Intervention(mlp, ZERO), Intervention(mlp, MEAN))
    assert edit(*both, stage=(1, "mlp")) == (("mlp", (MEAN, (), None)),)


def test_edits_at_positions_are_kept_in_order() -> None:
    one = (head(1, 1),)
    parts = (Intervention(one, ZERO, ("s2",)), Intervention(one, MEAN), Intervention(one, ZERO, ("end",)))
    assert edit(*parts) == tuple(("head", (p.recipe, (1,), p.positions)) for p in parts)


def test_heads_come_before_their_layer_s_output_and_tokens_before_the_stream() -> None:
    heads, whole = Intervention((head(0, 1),), ZERO), Intervention((Node("attention", 0),), MEAN, ("s2",))
    assert [kind for kind, _ in edit(whole, heads, stage=(0, "attention"))] == ["head", "attention"]
    stream, tokens = Intervention((Node("residual", 0),), ZERO, ("s2",)), Intervention((EMBEDDING,), MEAN)
    assert [kind for kind, _ in edit(stream, tokens, stage=(0, "stream"))] == ["embedding", "residual"]


# --- the same as each variant alone -----------------------------------------------------------------------------


def drawn(count: int, seed: int) -> list[Variant]:
    """Random sets of nodes of all kinds under a few recipes; some equal, some beginning alike."""
    rng = random.Random(seed)
    nodes = [*ALL_HEADS[::3], *(Node(kind, n) for kind in ("attention", "mlp", "residual") for n in range(LAYERS))]
    made = []
    for number in range(count):
        parts = [
            Intervention((node,), rng.choice((ZERO, MEAN, CLEAN)), rng.choice((None, None, ("s2",), ("end",))))
            for node in rng.sample(nodes, rng.randrange(4))
        ]
        made.append(Variant(str(number), tuple(parts)))
    return made


def walk(built: trie.Trie, variant: int) -> dict[tuple[int, str], tuple]:
    """The edits on the way from a variant's leaf back to the root."""
    found, state = {}, int(built.leaves[variant])
    state = int(built.shifts.parent[state])
    for stage, step in reversed(built.steps.items()):
        found[stage] = step.edits[state]
        state = int(step.parent[state])
    assert state == 0
    return found


@pytest.mark.parametrize("seed", range(5))
def test_every_leaf_has_its_variant_s_edits_behind_it(seed) -> None:
    made = drawn(60, seed)
    built = trie.build(made, LAYERS, AT_END)
    alone = [trie.build([variant], LAYERS, AT_END) for variant in made]
    assert [walk(built, number) for number in range(60)] == [walk(one, 0) for one in alone]
    ways = [tuple(sorted(walk(one, 0).items())) for one in alone]
    assert len(set(built.leaves.tolist())) == len(set(map(str, ways))) < 60
    for stage, step in built.steps.items():
        prefixes = {
            str([way[s] for s in built.steps if list(built.steps).index(s) <= list(built.steps).index(stage)])
            for way in (walk(one, 0) for one in alone)
        }
        assert len(step.parent) == len(prefixes)


@pytest.mark.parametrize("seed", range(5))
def test_children_of_consecutive_parents_are_consecutive(seed) -> None:
    built = trie.build(drawn(60, seed), LAYERS, AT_END)
    width = 1
    for (_, part), step in built.steps.items():
        if part != "stream":  # of which the order is free: its children are put in the order of what follows
            assert (np.diff(step.parent) >= 0).all()
            for low, high in ((0, width), (width // 3, width // 2), (width, width)):
                own = step.children(slice(low, high))
                assert step.parent[own].tolist() == [p for p in step.parent if low <= p < high]
        assert set(step.parent.tolist()) == set(range(width))
        width = len(step.parent)
    assert built.width == max(len(step.parent) for step in built.steps.values())


def test_states_that_go_on_alike_stand_together() -> None:
    """Eight states enter layer 1; those to which one head is done stand in runs."""
    made = [
        ablate([*([head(0, i)] if i < 4 else [Node("mlp", 0), head(0, i - 4)]), head(1, i % 2)], ZERO, str(i))
        for i in range(8)
    ]
    built = trie.build(made, LAYERS, AT_END)
    edits = built.steps[1, "attention"].edits
    assert len(edits) == 8
    assert len([1 for one, other in itertools.pairwise(edits) if one != other]) == 1
    order = built.steps[1, "stream"].parent
    assert sorted(order.tolist()) == list(range(8))


def test_a_trivial_step_is_the_identity() -> None:
    assert TrieStage(np.arange(3), (NOTHING,) * 3).trivial
    assert not TrieStage(np.array([0, 2, 1]), (NOTHING,) * 3).trivial
    assert not TrieStage(np.array([0, 0]), (NOTHING,) * 2).trivial
    assert not TrieStage(np.arange(2), (NOTHING, (("mlp", (ZERO, (), None)),))).trivial


# --- paths into the logits --------------------------------------------------------------------------------------

LOGITS = Reader("logits", LAYERS)
WRITER, OTHER = head(0, 1), Node("mlp", 2)


def path(*writers, recipe=CORRUPTED):
    return PathIntervention(tuple(Edge(writer, LOGITS) for writer in writers), recipe)


def test_without_paths_there_is_nothing_to_read_out() -> None:
    assert trie.final_norm_change(Variant("clean")) == ()
    assert trie.final_norm_change(noise([WRITER], "n")) == ()
    assert trie.final_norm_change(patch_paths([], CORRUPTED, "none")) == ()


def test_a_path_of_a_held_writer_is_a_shift_of_the_final_norm_s_input() -> None:
    held = Intervention((WRITER, OTHER), MEAN)
    assert trie.final_norm_change(Variant("a", (held, path(OTHER, WRITER)))) == (
        (WRITER, MEAN, CORRUPTED),
        (OTHER, MEAN, CORRUPTED),
    )
    twice = Variant("a", (held, path(WRITER), path(WRITER, recipe=ZERO)))
    assert trie.final_norm_change(twice) == ((WRITER, MEAN, ZERO),)
    over = Variant("a", (Intervention((WRITER,), ZERO, ("s2",)), held, path(WRITER)))
    assert trie.final_norm_change(over) == ((WRITER, MEAN, CORRUPTED),)


@pytest.mark.parametrize("base", ["clean", "corrupted"])
def test_a_writer_before_all_changes_is_the_base_run_s(base) -> None:
    intact = Recipe("patch", source=base)
    for items in ((path(WRITER),), (Intervention((head(1, 2), OTHER), MEAN, ("s2",)), path(WRITER))):
        assert trie.final_norm_change(Variant("a", items, base)) == ((WRITER, intact, CORRUPTED),)
    held = Variant("a", (Intervention((OTHER,), MEAN), path(WRITER, OTHER, recipe=ZERO)), base)
    assert trie.final_norm_change(held) == ((WRITER, intact, ZERO), (OTHER, MEAN, ZERO))


@pytest.mark.parametrize(
    "items",
    [
        (Intervention((head(0, 2),), MEAN), path(WRITER)),
        (Intervention((Node("residual", 0),), MEAN, ("s2",)), path(EMBEDDING)),
        (Intervention((head(1, 0),), CLEAN), path(OTHER)),
        (Intervention((WRITER,), MEAN), path(WRITER, OTHER)),
        (Intervention((WRITER,), MEAN, ("s2",)), path(WRITER)),
        (Intervention((WRITER,), MEAN), Intervention((WRITER,), ZERO, ("s2",)), path(WRITER)),
        (Intervention((Node("attention", 0),), MEAN), path(WRITER)),
        (Intervention((WRITER,), MEAN), PathIntervention((Edge(WRITER, Reader("mlp", 1)),), CORRUPTED)),
        (Intervention((WRITER,), MEAN), path(WRITER), PathIntervention((Edge(WRITER, Reader("q", 2, 0)),), ZERO)),
    ],
)
def test_what_takes_a_run_to_know_is_not_read_out(items) -> None:
    """Writers after a change that are not held or in part alone; readers other than the logits."""
    assert trie.final_norm_change(Variant("a", items)) is None


def test_variants_that_differ_in_shifts_alone_share_every_stage() -> None:
    held = Intervention((WRITER,), MEAN)
    made = [Variant(str(recipe), (held, path(WRITER, recipe=recipe))) for recipe in (CORRUPTED, ZERO, CLEAN)]
    built = trie.build([Variant("held", (held,)), *made], LAYERS, AT_END)
    assert built.width == 1
    assert built.shifts.parent.tolist() == [0] * 4
    assert len(set(built.leaves.tolist())) == 4
    assert [built.shifts.edits[leaf] for leaf in built.leaves] == [
        NOTHING,
        *(((WRITER, MEAN, recipe),) for recipe in (CORRUPTED, ZERO, CLEAN)),
    ]


def test_denoising_and_noising_are_built_alike() -> None:
    """The base run is not the trie's concern but for what restores it."""
    both = [[make([node], str(node)) for node in ALL_HEADS] for make in (denoise, noise)]
    one, other = (states(made) for made in both)
    assert one == other


def test_all_positions_but_some_are_an_edit_of_the_last_layer_too() -> None:
    """They may include the last position, unlike a role that does not name it."""
    last, spared = head(LAYERS - 1, 0), (EveryBut(("s2",)),)
    assert (
        states([Variant("a", (Intervention((last,), MEAN, spared),)), Variant("clean")])[LAYERS - 1, "attention"] == 2
    )
    assert (
        states([Variant("a", (Intervention((last,), MEAN, ("s2",)),)), Variant("clean")])[LAYERS - 1, "attention"] == 1
    )
