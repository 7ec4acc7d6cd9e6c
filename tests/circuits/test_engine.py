"""Both backends against brute force, their limit cases, their invariances and their guards.

What only the reference backend has (chunks of rows, hooks of the bridge) is tested on it alone, what only the fused one has
in `test_fused`. The brute force is `hook_loop`: one prompt and one variant at a time on the plain Hugging Face model. In
float64 GPT-2 agrees to 1e-10; rotary models compute softmax and RMS norm in float32 whatever their dtype, so
they are held to the float32 tolerance.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from circuits import prompts as prompt_sets
from circuits.circuit import Node, head
from circuits.engine import DeadHookError, FusedEngine, LensEngine, memory
from circuits.interventions import Effects, EveryBut, Intervention, Recipe, Sweep, Variant, ablate, denoise, noise
from results_io import UserError
from tests.circuits import toy
from tests.circuits.hook_loop import HookLoop

SITES = {
    "head": (head(0, 1),),
    "heads of two layers": (head(1, 0), head(1, 3), head(0, 2)),
    "mlp": (Node("mlp", 1),),
    "attention": (Node("attention", 0),),
    "residual": (Node("residual", 1),),
    "embedding": (Node("embedding", 0),),
}
RECIPES = (
    Recipe("zero"),
    Recipe("mean"),
    Recipe("mean", pooled=True),
    Recipe("resample"),
    Recipe("resample", seed=3, draw=2),
    Recipe("noise"),
    Recipe("noise", scale=0.5, seed=3, draw=1),
    Recipe("noise", additive=True, scale=3.0),
    Recipe("patch"),
    Recipe("patch", source="corrupted"),
    Recipe("zero_raw"),
)
PLACES = (
    ("s2",),
    ("io", "end"),
    ("changed",),
    ("changed", "s1_plus_1"),
    (EveryBut(("end",)),),
    (EveryBut(("s2", "end")),),
)
EVERYWHERE = list(SITES.values())


def variants(recipes=RECIPES, places=PLACES) -> tuple[Variant, ...]:
    """Every site under every recipe at all positions, patches and noise at named ones, and combinations."""
    made = [Variant("clean"), Variant("corrupted", base="corrupted")]
    for (site, nodes), recipe in itertools.product(SITES.items(), recipes):
        base = "corrupted" if recipe == Recipe("patch") else "clean"
        made.append(Variant(f"{site}/{recipe}/{recipe.seed}", (Intervention(nodes, recipe),), base))
    for (site, nodes), place in itertools.product(SITES.items(), places):
        for recipe in (Recipe("patch"), Recipe("noise", additive=True)):
            base = "corrupted" if recipe.kind == "patch" else "clean"
            made.append(
                Variant(f"{site}@{'+'.join(map(str, place))}/{recipe}", (Intervention(nodes, recipe, place),), base)
            )
    corrupt = Intervention((Node("embedding", 0),), Recipe("noise", additive=True, scale=3.0), ("changed",))
    restore = Intervention((Node("residual", 1),), Recipe("patch"), ("s2", "end"))
    made.append(Variant("trace", (corrupt, restore)))
    rest = [head(layer, index) for layer in range(2) for index in range(toy.N_HEADS) if (layer, index) != (0, 1)]
    made.append(ablate(rest, Recipe("mean"), "one head left"))
    made.append(ablate([head(0, 0), Node("mlp", 0), head(1, 1)], Recipe("resample"), "head, MLP, head"))
    twice = (
        Intervention((head(0, 1), head(0, 2)), Recipe("zero")),
        Intervention((head(0, 1),), Recipe("mean"), ("s1",)),
    )
    made.append(Variant("the second overwrites the first", twice, "corrupted"))
    return tuple(made)


def relative_error(effects: Effects, truth) -> float:
    """Largest difference in logit difference over the largest logit difference."""
    return float(np.abs(effects.logit_diff - truth.logit_diff).max() / np.abs(truth.logit_diff).max())


@pytest.fixture(scope="module")
def few(scored):
    """One prompt of each of four lengths and both orders of names."""
    chosen = {}
    for row, template in enumerate(scored.templates):
        chosen.setdefault((int(scored.end[row]), template.endswith("ABBA")), row)
    return scored.select(list(chosen.values())[:5])


@pytest.fixture(scope="module", params=[LensEngine, FusedEngine], ids=["lens", "fused"])
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def engine(backend, model, reference):
    return backend(model, reference)


@pytest.fixture(scope="module")
def exact(backend, load, reference):
    return backend(load("gpt2", "float64"), reference)


@pytest.fixture(scope="module")
def truth_of(loop, few):
    """truth_of(architecture): brute force on two prompts."""
    return cache(lambda name: loop(name).run(variants(places=PLACES[2:3]), few.select([0, 3])))


@pytest.fixture(scope="module")
def lens(model, reference):
    return LensEngine(model, reference)


@pytest.fixture(scope="module")
def loop(plain, reference):
    """loop(architecture): the engine's twin."""
    return lambda architecture="gpt2": HookLoop(plain(architecture), architecture, toy.N_HEADS, reference)


@pytest.fixture(scope="module")
def sweep():
    return Sweep(variants(), probabilities=True)


@pytest.fixture(scope="module")
def truth(loop, sweep, few):
    return loop().run(sweep.variants, few)


@pytest.fixture(scope="module")
def effects(engine, sweep, scored):
    return engine.run(sweep, scored)


@pytest.fixture(scope="module")
def lens_effects(lens, sweep, scored):
    return lens.run(sweep, scored)


# --- against brute force ------------------------------------------------------------------------------------


def test_float64_equals_brute_force(exact, sweep, few, truth) -> None:
    effects = exact.run(sweep, few)
    assert effects.logit_diff.dtype == np.float64
    assert relative_error(effects, truth) < 1e-10
    assert np.abs(effects.answer_probability / truth.answer_probability - 1).max() < 1e-10
    assert np.array_equal(effects.correct, truth.correct)


def test_float32_equals_brute_force(engine, sweep, few, truth) -> None:
    effects = engine.run(sweep, few)
    assert effects.logit_diff.dtype == np.float32
    assert relative_error(effects, truth) < 1e-4
    assert np.abs(effects.answer_probability / truth.answer_probability - 1).max() < 1e-3
    assert np.array_equal(effects.correct, truth.correct)


def test_the_brute_force_comparison_has_something_to_compare(truth, sweep) -> None:
    base = [0 if variant.base == "clean" else 1 for variant in sweep.variants]
    moved = np.abs(truth.logit_diff - truth.logit_diff[base]).max(1)
    assert np.median(moved) > 0.5
    assert [variant.name for variant, distance in zip(sweep.variants, moved, strict=True) if distance < 1e-3] == [
        "clean",
        "corrupted",
    ]
    assert truth.correct.mean() not in (0, 1)


@pytest.mark.parametrize("architecture", ["neox", "llama", "qwen2"])
def test_other_architectures_equal_brute_force(architecture, backend, load, truth_of, few, reference) -> None:
    prompts = few.select([0, 3])
    sweep = Sweep(variants(places=PLACES[2:3]), probabilities=True)
    truth = truth_of(architecture)
    effects = backend(load(architecture), reference).run(sweep, prompts)
    assert relative_error(effects, truth) < 1e-4
    assert np.abs(effects.answer_probability / truth.answer_probability - 1).max() < 1e-3
    assert np.median(np.abs(truth.logit_diff - truth.logit_diff[0]).max(1)) > 0.5


@pytest.mark.sampled(2)
def test_many_answers_and_foils_equal_brute_force(backend, load, twin, sets) -> None:
    prompts = sets("greater_than")["evaluation"].select(range(4))
    chosen = (Variant("clean"), Variant("corrupted", base="corrupted"), denoise([head(1, 1)], "d", ("yy",)))
    chosen += (ablate([head(0, 0), Node("mlp", 2)], Recipe("mean"), "a"),)
    truth = twin("gpt2", "greater_than").run(chosen, prompts)
    engine = backend(load("gpt2", "float64"), sets("greater_than")["reference"])
    effects = engine.run(Sweep(chosen, probabilities=True), prompts)
    assert relative_error(effects, truth) < 1e-10
    assert np.abs(effects.answer_probability / truth.answer_probability - 1).max() < 1e-10
    assert np.array_equal(effects.correct, truth.correct)


@pytest.mark.parametrize("base", ["clean", "corrupted"])
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_log_probabilities_are_hugging_face_s(architecture, base, backend, load, plain, scored, reference) -> None:
    logits = backend(load(architecture), reference).end_logits(scored, base)
    tokens = scored.clean if base == "clean" else scored.corrupted
    for row, end in enumerate(scored.end.tolist()):
        with torch.no_grad():
            expected = plain(architecture)(tokens[row : row + 1, : end + 1]).logits[0, -1].log_softmax(0)
        assert float((logits[row].double().log_softmax(0) - expected).abs().max()) < 1e-4


# --- limit cases --------------------------------------------------------------------------------------------


def test_patching_nothing_moves_nothing(engine, scored) -> None:
    empty = (
        denoise([], "d"),
        noise([], "n"),
        ablate([], Recipe("zero"), "a"),
        denoise([head(0, 1)], "at no position", ()),
    )
    effects = engine.run(Sweep((Variant("clean"), Variant("corrupted", base="corrupted"), *empty)), scored)
    for name, base in {"d": "corrupted", "n": "clean", "a": "clean", "at no position": "corrupted"}.items():
        assert np.abs(effects.row(name) - effects.row(base)).max() <= 1e-5


def test_patching_a_run_into_itself_moves_nothing(engine, scored) -> None:
    patch = [Intervention(nodes, Recipe("patch")) for nodes in EVERYWHERE]
    itself = [Variant(f"{i}", (each,)) for i, each in enumerate(patch)]
    effects = engine.run(Sweep((Variant("clean"), *itself)), scored)
    assert np.abs(effects.logit_diff - effects.row("clean")).max() <= 1e-5


def everything(model) -> dict[str, list[Node]]:
    layers = range(model.n_layers)
    return {
        "heads and MLPs": [*model.heads, *(Node("mlp", layer) for layer in layers)],
        "attention and MLP outputs": [Node(kind, layer) for layer in layers for kind in ("attention", "mlp")],
        "residual": [Node("residual", 0)],
        "embedding": [Node("embedding", 0)],
    }


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_patching_everything_recovers_everything(architecture, backend, load, scored, reference) -> None:
    """Denoising recovers 1 and noising 0: the last token is the same in both, all else passes the sites."""
    model = load(architecture)
    all_of_it = everything(model)
    sweep = [Variant("clean"), Variant("corrupted", base="corrupted")]
    sweep += [denoise(nodes, f"denoise {name}") for name, nodes in all_of_it.items()]
    sweep += [noise(nodes, f"noise {name}") for name, nodes in all_of_it.items()]
    effects = backend(model, reference).run(Sweep(tuple(sweep)), scored)
    clean, corrupted = effects.logit_diff[:2].astype(float)
    recovered = (effects.logit_diff[2:] - corrupted).mean(1) / (clean - corrupted).mean()
    n = len(all_of_it)
    assert np.abs(effects.logit_diff[2 : 2 + n] - clean).max() < 1e-5 * np.abs(clean).max()
    assert np.abs(recovered[:n] - 1).max() < 1e-5 * np.abs(clean).max() / abs((clean - corrupted).mean())
    assert np.abs(effects.logit_diff[2 + n :] - corrupted).max() < 1e-5 * np.abs(corrupted).max()


def test_patching_the_residual_at_every_changed_position_recovers_everything(engine, scored) -> None:
    sweep = Sweep((Variant("clean"), denoise([Node("residual", 0)], "restored", ("changed",))))
    effects = engine.run(sweep, scored)
    assert np.abs(effects.row("restored") - effects.row("clean")).max() < 1e-5


def test_zeroing_every_head_and_mlp_leaves_the_last_embedding(engine, plain, scored) -> None:
    """What is left is the direct path plus constants, so the earlier tokens cannot matter."""
    nodes = everything(engine.model)["attention and MLP outputs"]
    logit_diff = engine.run(Sweep((ablate(nodes, Recipe("zero"), "floor"),)), scored).row("floor")
    body = plain("gpt2").transformer
    for row, end in enumerate(scored.end.tolist()):
        with torch.no_grad():
            stream = body.wte(scored.clean[row, end]) + body.wpe(torch.tensor(end))
            logits = plain("gpt2").lm_head(body.ln_f(stream))
        expected = logits[scored.answers[row, 0]] - logits[scored.wrong[row, 0]]
        assert logit_diff[row] == pytest.approx(float(expected), abs=1e-4)


# --- invariances --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "prompts_per_batch"), [(1, 128), (7, 3), (64, 5), (10_000, 1), (10_000, 10_000)])
def test_batch_and_chunk_size_change_nothing(
    rows, prompts_per_batch, model, sweep, lens_effects, scored, reference
) -> None:
    chosen = sweep.variants[::8]
    if rows == 1:  # without the 72 reference prompts, one by one for each hook
        chosen = [v for v in sweep.variants if all(each.recipe.kind == "patch" for each in v.interventions)][::3]
    some, columns = Sweep(tuple(chosen), probabilities=True), list(range(0, len(scored), 4))
    other = LensEngine(model, reference, rows, prompts_per_batch).run(some, scored.select(columns))
    expected = np.ix_([lens_effects.names.index(name) for name in other.names], columns)
    assert np.abs(other.logit_diff - lens_effects.logit_diff[expected]).max() < 1e-5
    assert np.abs(other.answer_probability - lens_effects.answer_probability[expected]).max() < 1e-6


def test_float64_batches_agree_to_the_last_digits(exact, backend, load, sweep, few, reference) -> None:
    alone = backend(load("gpt2", "float64"), reference, rows_per_forward=10, prompts_per_batch=1)
    some = Sweep(sweep.variants[::15])
    assert np.abs(alone.run(some, few).logit_diff - exact.run(some, few).logit_diff).max() < 1e-12


@pytest.mark.sampled(2)
def test_permuting_prompts_permutes_columns(engine, sweep, effects, scored) -> None:
    order = np.random.default_rng(0).permutation(len(scored))
    permuted = engine.run(sweep, scored.select(order.tolist()))
    assert np.abs(permuted.logit_diff - effects.logit_diff[:, order]).max() < 1e-5
    assert np.array_equal(permuted.correct, effects.correct[:, order])
    assert permuted.prompts_sha256 != effects.prompts_sha256


def test_a_prompt_s_effects_do_not_depend_on_the_others(engine, sweep, effects, scored) -> None:
    rows = [11, 2]
    assert np.abs(engine.run(sweep, scored.select(rows)).logit_diff - effects.logit_diff[:, rows]).max() < 1e-5


@pytest.mark.sampled(2)
def test_permuting_variants_permutes_rows(engine, sweep, effects, scored) -> None:
    order = np.random.default_rng(1).permutation(len(sweep))
    permuted = engine.run(Sweep(tuple(sweep.variants[i] for i in order)), scored)
    assert permuted.names == tuple(effects.names[i] for i in order)
    assert np.abs(permuted.logit_diff - effects.logit_diff[order]).max() < 1e-5


@pytest.mark.sampled(2)
def test_wider_padding_changes_nothing(engine, sweep, effects, scored) -> None:
    pad = {name: torch.nn.functional.pad(getattr(scored, name), (0, 5)) for name in ("clean", "corrupted")}
    padded = replace(scored, **pad)
    assert np.abs(engine.run(sweep, padded).logit_diff - effects.logit_diff).max() < 1e-5
    logits = engine.end_logits(padded) - engine.end_logits(scored)
    assert float(logits.abs().max()) < 1e-4


@pytest.mark.sampled(2)
def test_the_order_of_reference_prompts_does_not_change_means(backend, model, reference, effects, scored) -> None:
    shuffled = reference.select(torch.randperm(len(reference), generator=torch.Generator().manual_seed(0)).tolist())
    sweep = Sweep(
        tuple(v for v in variants() if v.interventions and v.interventions[0].recipe.kind in ("mean", "noise"))
    )
    other = backend(model, shuffled).run(sweep, scored)
    kept = [effects.names.index(name) for name in other.names]
    assert np.abs(other.logit_diff - effects.logit_diff[kept]).max() < 1e-5


@pytest.mark.slow
def test_a_run_leaves_no_trace_in_the_model(engine, model, scored, sweep) -> None:
    with torch.no_grad():
        before = model.bridge(scored.clean, return_type="logits")
        engine.run(sweep, scored)
        assert torch.equal(model.bridge(scored.clean, return_type="logits"), before)


def test_effects_say_what_they_are_of(effects, sweep, scored) -> None:
    assert effects.names == tuple(variant.name for variant in sweep.variants)
    assert effects.sweep_sha256 == sweep.sha256
    assert effects.prompts_sha256 == scored.sha256
    assert np.array_equal(effects.correct, effects.logit_diff > 0)  # one answer, one foil


@pytest.mark.parametrize("task", ["ioi", "greater_than"])
def test_scores_do_not_depend_on_whether_probabilities_are_asked_for(task, backend, model, sets) -> None:
    prompts, reference = (sets(task)[split] for split in ("evaluation", "reference"))
    roles = (next(iter(prompts.positions)),)
    some = (Variant("clean"), ablate([head(0, 1)], Recipe("zero"), "a"), denoise([head(1, 1)], "d", roles))
    engine = backend(model, reference)
    without, found = (engine.run(Sweep(some, probabilities=wanted), prompts) for wanted in (False, True))
    assert without.answer_probability is None
    assert found.answer_probability.shape == (3, len(prompts))
    assert np.array_equal(without.logit_diff, found.logit_diff)
    assert np.array_equal(without.correct, found.correct)
    assert without.sweep_sha256 != found.sweep_sha256
    exchanged = engine.run(Sweep(some, True), replace(prompts, answers=prompts.wrong, wrong=prompts.answers))
    assert np.abs(found.foil_probability - exchanged.answer_probability).max() < 1e-12
    assert np.array_equal(found.correct, found.answer_probability > found.foil_probability)
    assert without.foil_probability is None


# --- draws --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["resample", "noise"])
def test_draws_repeat_for_a_seed_and_differ_between_draws_and_seeds(kind, backend, model, reference, scored) -> None:
    recipes = [Recipe(kind, seed=seed, draw=draw) for seed in (0, 1) for draw in (0, 1)]
    sweep = Sweep(tuple(ablate(model.heads, recipe, f"{recipe.seed}/{recipe.draw}") for recipe in recipes))
    first, again = (backend(model, reference).run(sweep, scored).logit_diff for _ in range(2))
    assert np.array_equal(first, again)
    for one, other in itertools.combinations(first, 2):
        assert (np.abs(one - other) > 1e-4).mean() > 0.7


def test_noise_scale_multiplies_the_deviation(engine, scored) -> None:
    """Scale 0 is the pooled mean; added noise of scale 0 is nothing."""
    site = [head(0, 1), head(2, 2)]
    none = [
        Recipe("noise", scale=0.0),
        Recipe("mean", pooled=True),
        Recipe("noise", additive=True, scale=0.0),
    ]
    sweep = Sweep((Variant("clean"), *(ablate(site, recipe, str(recipe)) for recipe in none)))
    clean, replaced, mean, added = engine.run(sweep, scored).logit_diff
    assert np.abs(replaced - mean).max() < 1e-5
    assert np.abs(added - clean).max() < 1e-5
    assert np.abs(mean - clean).max() > 0.1


# --- guards -------------------------------------------------------------------------------------------------


def test_scored_prompts_among_the_reference_ones_are_refused(backend, model, reference, scored) -> None:
    engine = backend(model, prompt_sets.join(reference, scored.select([4])))
    with pytest.raises(UserError, match="1 prompts stand in both the scored and the scored set of ioi"):
        engine.run(Sweep((Variant("clean"),)), scored)
    engine.run(Sweep((Variant("clean"),)), scored.select([0, 1]))


@pytest.mark.parametrize("recipe", [Recipe("mean"), Recipe("resample")])
def test_too_few_reference_prompts_of_a_template_are_refused(recipe, backend, model, reference, scored) -> None:
    template = scored.templates[0]
    own = [row for row, name in enumerate(reference.templates) if name == template]
    others = [row for row in range(len(reference)) if row not in own]
    sweep = Sweep((ablate([head(0, 1)], recipe, "a"),))
    for count in (0, 4):
        engine = backend(model, reference.select(others + own[:count]))
        with pytest.raises(
            UserError, match=rf"template '{template}' has {count} reference prompts and .* needs 5; raise"
        ):
            engine.run(sweep, scored)
        engine.run(Sweep((ablate([head(0, 1)], Recipe("zero"), "a"),)), scored)
    backend(model, reference.select(others + own[:5])).run(sweep, scored)


def test_reference_prompts_of_another_length_are_refused(backend, model, reference, scored) -> None:
    shorter = replace(reference, end=reference.end - 1)
    with pytest.raises(UserError, match=r"template '.*' has \d+ tokens in the scored set and \d+ in the reference set"):
        backend(model, shorter).run(Sweep((Variant("clean"),)), scored)


@pytest.mark.parametrize(
    ("node", "name"),
    [
        (head(3, 0), "L3H0"),
        (head(0, 4), "L0H4"),
        (Node("head", 0), "L0H-1"),
        (Node("mlp", 3), "mlp3"),
        (Node("residual", -1), "residual-1"),
    ],
)
def test_a_node_outside_the_model_is_named(node, name, engine, scored) -> None:
    with pytest.raises(UserError, match=rf"{name} is outside model toy/gpt2, which has layers 0-2 with heads 0-3"):
        engine.run(Sweep((ablate([node], Recipe("zero"), "a"),)), scored)


@pytest.mark.parametrize("roles", [("end",), ("s2", "changed"), ("io", "s1_plus_1", "end")])
def test_named_positions_and_all_others_are_all_positions(engine, scored, roles) -> None:
    """In every layer, the last included, where the last position alone is read."""
    heads = engine.model.heads[::3]
    here, elsewhere = (Intervention(heads, Recipe("mean"), places) for places in (roles, (EveryBut(roles),)))
    made = [
        ablate(heads, Recipe("mean"), "all"),
        Variant("in two", (here, elsewhere)),
        Variant("in two, the other way round", (elsewhere, here)),
        Variant("here", (here,)),
        Variant("elsewhere", (elsewhere,)),
    ]
    found = engine.run(Sweep(tuple(made)), scored).logit_diff
    scale = np.abs(found).max()
    assert np.abs(found[1:3] - found[0]).max() < 1e-5 * scale
    assert min(np.abs(found[3:] - found[0]).max(1)) > 1e-3 * scale  # neither is all of it


def test_a_spared_position_has_to_be_known_as_well(engine, scored) -> None:
    spared = Intervention((head(0, 0),), Recipe("zero"), (EveryBut(("s3",)),))
    with pytest.raises(UserError, match=r"position 's3' is not one of task ioi's"):
        engine.run(Sweep((Variant("a", (spared,)),)), scored)


def test_an_unknown_position_is_named_with_the_known_ones(engine, scored) -> None:
    with pytest.raises(UserError, match=r"position 's3' is not one of task ioi's \(io, s1, s1_plus_1, s2, end\)"):
        engine.run(Sweep((denoise([head(0, 1)], "d", ("s2", "s3")),)), scored)


def test_a_head_that_writes_nothing_is_a_dead_hook(backend, tmp_path, reference, scored) -> None:
    network = toy.build("gpt2")
    with torch.no_grad():
        network.transformer.h[1].attn.c_proj.weight.zero_()
    engine = backend(toy.load(toy.save(network, tmp_path / "dead")), reference)
    with pytest.raises(
        DeadHookError, match=r"replacing the tensor at blocks.1.attn.hook_z of toy/dead changes no logit.*use another"
    ) as refused:
        engine.run(Sweep((ablate([head(0, 0), head(1, 0)], Recipe("zero"), "a"),)), scored)
    assert isinstance(refused.value, UserError)  # one sentence and exit code 2, as a final norm of zeros gets in a run
    engine.run(Sweep((ablate([head(0, 0), head(2, 0), Node("attention", 1)], Recipe("zero"), "a"),)), scored)


def test_a_bridge_that_drops_hooks_is_noticed(model, reference, scored, monkeypatch) -> None:
    engine, run = LensEngine(model, reference), model.bridge.run_with_hooks
    sweep = Sweep((ablate([head(0, 1)], Recipe("zero"), "a"),))

    def drop(tokens, fwd_hooks, return_type):
        return run(tokens, fwd_hooks=[], return_type=return_type)

    with monkeypatch.context() as patch:
        patch.setattr(model.bridge, "run_with_hooks", drop, raising=False)
        with pytest.raises(DeadHookError, match="changes no logit: a dead hook"):
            engine.run(sweep, scored)
        with pytest.raises(DeadHookError, match=r"never called hook blocks.0.attn.hook_z; no activation was read"):
            engine.activations(scored, "clean", ("blocks.0.attn.hook_z",))
    engine.run(sweep, scored)  # the hook is alive, so it is not probed again
    with monkeypatch.context() as patch:
        patch.setattr(model.bridge, "run_with_hooks", drop, raising=False)
        with pytest.raises(DeadHookError, match=r"never called hook blocks.0.attn.hook_z; nothing was replaced"):
            engine.run(sweep, scored)


# --- memory and progress ------------------------------------------------------------------------------------


class SmallMemory(LensEngine):
    """Runs out of memory in any forward pass of more than `capacity` rows."""

    capacity = 10_000

    def _forward(self, tokens, end, hooks):
        self.sizes.append(len(tokens))
        if len(tokens) > self.capacity:
            raise torch.OutOfMemoryError(f"{len(tokens)} rows")
        return super()._forward(tokens, end, hooks)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("capacity", [40, 5, 1])
def test_out_of_memory_halves_the_rows_and_then_tries_more_again(
    capacity, model, reference, scored, sweep, lens_effects
) -> None:
    """It changes nothing, and a failure in RETRY passes is all that it costs once the size has settled."""
    engine = SmallMemory(model, reference)
    engine.capacity, engine.sizes = capacity, []
    done: list[int] = []
    some, columns = Sweep(sweep.variants[::10]), list(range(0, len(scored), 4))
    found = engine.run(some, scored.select(columns), done.append)
    expected = np.ix_([lens_effects.names.index(name) for name in found.names], columns)
    assert np.abs(found.logit_diff - lens_effects.logit_diff[expected]).max() < 1e-5
    assert sum(done) == len(some) * len(columns)
    failed, most = [size for size in engine.sizes if size > capacity], max(engine.sizes[len(engine.sizes) // 2 :])
    assert 1 <= len(failed) <= 10 + 2 * len(engine.sizes) / memory.RETRY
    if len(engine.sizes) > 8 * memory.RETRY:  # enough passes for more to be tried again
        assert capacity < most <= 2 * (capacity + 1)  # which is twice what was allowed


@pytest.mark.slow
def test_out_of_memory_in_one_chunk_only_halves_the_chunk(
    model, reference, scored, sweep, lens_effects, monkeypatch
) -> None:
    engine = LensEngine(model, reference)
    run_chunk, sizes = engine._run_chunk, []

    def limited(chunk, batch, sources):
        sizes.append(len(chunk) * len(batch))
        if sizes[-1] > 60:
            raise torch.OutOfMemoryError("more than 60 rows")
        return run_chunk(chunk, batch, sources)

    monkeypatch.setattr(engine, "_run_chunk", limited)
    assert np.abs(engine.run(sweep, scored).logit_diff - lens_effects.logit_diff).max() < 1e-5
    assert all(size % 28 == 0 for size in sizes)  # prompts stay together
    expected, rows = [], engine.rows_per_forward
    while (chunk := -(-len(sweep) // memory.parts(len(sweep), rows // 28))) * 28 > 60:
        expected.append(28 * chunk)
        rows = 28 * chunk // 2
    assert len(expected) >= 3 and [size for size in sizes if size > 60][: len(expected)] == expected
    fitted = [size for size in sizes if size <= 60]
    assert set(fitted[:-1]) <= {28, 56} and sum(fitted) == 28 * len(sweep)


def test_out_of_memory_with_a_single_row_is_an_error(model, reference, scored) -> None:
    engine = SmallMemory(model, reference)
    engine.capacity, engine.sizes = 0, []
    with pytest.raises(torch.OutOfMemoryError):
        engine.run(Sweep((Variant("clean"),)), scored)
    with pytest.raises(torch.OutOfMemoryError):
        engine.end_logits(scored)


@pytest.mark.slow
def test_progress_counts_every_pair_once(backend, model, reference, scored, sweep) -> None:
    done: list[int] = []
    backend(model, reference, rows_per_forward=50, prompts_per_batch=10).run(sweep, scored, done.append)
    assert sum(done) == len(sweep) * len(scored)
    assert backend is FusedEngine or max(done) <= 50


@pytest.mark.sampled(2)
def test_an_engine_that_is_gone_keeps_no_activations(backend, model, reference, scored) -> None:
    engine = backend(model, reference)
    engine.run(Sweep((ablate([head(0, 1)], Recipe("mean"), "a"), ablate([head(0, 1)], Recipe("noise"), "b"))), scored)
    kept = weakref.ref(engine.reference)
    del engine
    gc.collect()
    assert kept() is None
