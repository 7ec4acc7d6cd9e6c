"""06 against brute force under all three corruptions, and its limit: restoring all that was corrupted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from circuits import tasks
from circuits.circuit import Node
from circuits.interventions import Intervention, Recipe, Sweep, Variant
from circuits.measure import Plan, measure
from circuits.measurements import causal_tracing
from results_io import UserError
from tests.circuits import toy

STRATEGIES = ("noise", "entity_swap", "span_deletion")


def with_strategy(study, strategy: str, **change):
    return replace(
        study,
        settings={
            **study.settings,
            "corruption": {**study.settings["corruption"], "strategy": strategy, **change},
        },
    )


@pytest.fixture(scope="module", params=STRATEGIES)
def case(request, study):
    study = with_strategy(study, request.param)
    return study, causal_tracing.measure(study)


@pytest.mark.sampled(3)
def test_impacts_and_probabilities_equal_brute_force(case, twin) -> None:
    study, data = case
    prompts = study.prompts.select(data["rows"])
    places = [("residual", 0, "s2"), ("residual", 2, "end"), ("attention", 1, "end"), ("mlp", 1, "io")]
    truth = [
        twin().run(causal_tracing.trace(places, corrupted).variants, prompts).answer_probability
        for corrupted in causal_tracing.corruptions(study.settings["corruption"])
    ]
    probability = np.mean(truth, axis=0)  # over draws: [clean, corrupted, places...] by prompt
    assert data["clean_probability"] == pytest.approx(probability[0].mean(), rel=1e-4)
    assert data["corrupted_probability"] == pytest.approx(probability[1].mean(), rel=1e-4)
    n = len(data["rows"])
    for (kind, layer, role), restored in zip(places, probability[2:], strict=True):
        impact = restored - probability[1]
        column = data["roles"].index(role)
        assert data["impact"][kind][layer][column] == pytest.approx(impact.mean(), abs=1e-6)
        assert data["standard_error"][kind][layer][column] == pytest.approx(impact.std(ddof=1) / np.sqrt(n), abs=1e-6)


def test_what_was_used_is_recorded(case) -> None:
    study, data = case
    assert data["corruption"] == study.settings["corruption"]
    assert data["strategies"] == STRATEGIES
    assert (data["roles"], data["rows"]) == (study.task.roles, toy.lowest_hash(study, 6))
    assert all(np.shape(data["impact"][site]) == (3, 5) for site in ("residual", "attention", "mlp"))


def test_restoring_the_residual_at_every_corrupted_position_recovers_the_clean_run(case) -> None:
    study, _ = case
    for corrupted in causal_tracing.corruptions(study.settings["corruption"]):
        restore = Intervention((Node("residual", 0),), Recipe("patch", source="clean"), ("changed",))
        restored = Variant("restored", (*corrupted.interventions, restore), corrupted.base)
        effects = study.run(Sweep((Variant("clean"), corrupted, restored), probabilities=True))
        clean, broken, mended = effects.logit_diff
        assert np.abs(mended - clean).max() < 1e-5
        assert np.abs(effects.answer_probability[2] - effects.answer_probability[0]).max() < 1e-6
        assert np.abs(broken - clean).mean() > 0.3


def test_a_position_that_was_not_corrupted_has_nothing_to_restore_at_layer_0(case) -> None:
    _, data = case
    first = dict(zip(data["roles"], data["impact"]["residual"][0], strict=True))
    assert abs(first["end"]) < 1e-7
    assert abs(first["s1_plus_1"]) < 1e-7
    assert abs(first["s2"]) > 1e-6


def test_draws_of_noise_are_averaged(study) -> None:
    """Two draws together are the mean of each alone; the numbers of the draws are what makes them differ."""
    both = causal_tracing.measure(with_strategy(study, "noise", draws=2))
    variants = causal_tracing.corruptions({**study.settings["corruption"], "strategy": "noise", "draws": 2})
    prompts = study.prompts.select(both["rows"])
    alone = [study.run(causal_tracing.trace([("mlp", 0, "s2")], each), prompts).answer_probability for each in variants]
    impact = np.mean([run[2].astype(float) - run[1] for run in alone])
    assert both["impact"]["mlp"][0][both["roles"].index("s2")] == pytest.approx(impact, abs=1e-7)
    assert np.abs(alone[0][1] - alone[1][1]).min() > 0


def test_more_noise_is_another_corruption(study) -> None:
    weak, strong = (causal_tracing.measure(with_strategy(study, "noise", noise_scale=scale)) for scale in (1e-4, 3.0))
    assert weak["corrupted_probability"] == pytest.approx(weak["clean_probability"], rel=1e-3)
    assert abs(strong["corrupted_probability"] / strong["clean_probability"] - 1) > 0.05


def test_what_each_strategy_does_to_the_prompt() -> None:
    def corrupted(*recipes: Recipe) -> list[Variant]:
        return [
            Variant("corrupted", (Intervention((Node("embedding", 0),), recipe, ("changed",)),)) for recipe in recipes
        ]

    settings = {"noise_scale": 3.0, "draws": 2, "seed": 5}
    expected = {
        "noise": corrupted(*(Recipe("noise", additive=True, scale=3.0, seed=5, draw=draw) for draw in (0, 1))),
        "entity_swap": [Variant("corrupted", base="corrupted")],
        "span_deletion": corrupted(Recipe("mean", pooled=True)),  # the mean embedding, whatever the template
    }
    for strategy, variants in expected.items():
        assert causal_tracing.corruptions({**settings, "strategy": strategy}) == variants


def test_an_unknown_strategy_is_named_with_those_offered(study) -> None:
    with pytest.raises(UserError, match=r"'shuffle' is unknown; use one of noise, entity_swap, span_deletion"):
        causal_tracing.measure(with_strategy(study, "shuffle"))


@pytest.mark.parametrize(
    "change", [{"site_prompts": 1}, {"corruption": {**toy.SETTINGS["corruption"], "strategy": "salt"}}]
)
def test_settings_are_refused_before_anything_is_measured(change, tmp_path, folder) -> None:
    plan = Plan(
        model_settings={"name": "toy", "kind": "local", "path": str(folder("gpt2")), "device": "cpu"},
        task=tasks.get("ioi"),
        sizes=toy.SIZES,
        seed=0,
        settings={**toy.SETTINGS, **change},
        engine=toy.ENGINE,
    )
    with pytest.raises(UserError, match=r"site_prompts=1 gives no|'salt' is unknown; use one of noise"):
        measure(plan, tmp_path, ["01", "06"], lambda title: pytest.fail("a measurement began"))
    assert not list(tmp_path.iterdir())
