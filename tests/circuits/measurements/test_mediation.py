"""05 on a structural model worked out by hand, and against interventions on paths (which test_paths holds to brute force)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from circuits.circuit import head
from circuits.edges import Edge, Graph
from circuits.interventions import Effects, Intervention, Recipe, Sweep, Variant, patch_paths
from circuits.measurements import activation_patching, mediation
from circuits.study import Study
from tests.circuits import toy

A, B = head(0, 0), head(1, 0)
X = {"clean": 1.0, "corrupted": 0.0}


def structural(base: str, set_a: float | None = None, set_b: float | None = None) -> tuple[float, float, float]:
    """(x, A, B) with x -> A -> B and x -> B: A = 3x + 1, B = x + A/4."""
    x = X[base]
    a = 3 * x + 1 if set_a is None else set_a
    return x, a, x + a / 4 if set_b is None else set_b


def outcome(x: float, a: float, b: float) -> float:
    """Y = s + t + st/10 with s = 2x and t = A + 2B: treatment and mediators interact."""
    s, t = 2 * x, a + 2 * b
    return s + t + s * t / 10


class Structural(Study):
    """The two-headed structural model behind the interface of a study, two prompts alike."""

    def __init__(self) -> None:
        weights = [torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[0.0, 2.0]]])]
        model = SimpleNamespace(
            n_layers=2,
            heads=(A, B),
            graph=Graph(2, 1, 1),
            projections={"o": weights},
            bounds_logits=False,
            normalises_attention=False,
            final_norm=lambda stream: stream * (1 + stream.flip(-1) / 20),
            device="cpu",
        )
        for name, value in {
            "model": model,
            "settings": {"mediation": {"onward": True}},
            "prompts": Prompts(),
            "engine": SimpleNamespace(activations=self.activations),
        }.items():
            object.__setattr__(self, name, value)

    def answer_direction(self, prompts: object) -> torch.Tensor:
        return torch.ones(2, 2)

    @staticmethod
    def activations(prompts: object, base: str, hooks: tuple[str, ...]) -> dict[str, torch.Tensor]:
        x, a, b = structural(base)
        values = {
            "blocks.0.attn.hook_z": torch.tensor([a]),
            "blocks.1.attn.hook_z": torch.tensor([b]),
            "ln_final.hook_in": torch.tensor([2 * x, a + 2 * b]),
        }
        shape = {name: (2, 1, 1, 1) if "hook_z" in name else (2, 1, 2) for name in hooks}
        return {name: values[name].expand(shape[name]) for name in hooks}

    def run(
        self, sweep: Sweep, prompts: object = None, in_logits: bool = False, beside: Sweep | None = None
    ) -> Effects:
        rows = np.array([[self.score(variant)] * 2 for variant in sweep.variants])
        return Effects(tuple(v.name for v in sweep.variants), rows, rows > 0, rows, "", "")

    @staticmethod
    def score(variant: Variant) -> float:
        intact = {base: dict(zip("xAB", structural(base), strict=True)) for base in X}
        held = {
            "AB"[node.layer]: intact[item.recipe.source]["AB"[node.layer]]
            for item in variant.on_nodes
            for node in item.nodes
        }
        x, a, b = structural(variant.base, held.get("A"), held.get("B"))
        for path in variant.on_paths:
            for edge in path.edges:
                assert edge.reader.kind == "logits"
                seen = intact[path.recipe.source]["AB"[edge.writer.layer]]
                a, b = (seen, b) if edge.writer == A else (a, seen)
        return outcome(x, a, b)


class Prompts(list):
    """As much of a prompt set as mediation reads."""

    end = torch.zeros(2, dtype=torch.long)

    def __init__(self) -> None:
        super().__init__([0, 1])

    def select(self, rows: list[int]) -> Prompts:
        return self


def test_a_structural_model_worked_out_by_hand() -> None:
    # Y(clean) = 2 + 8 + 1.6 = 11.6, Y(corrupted) = 1.5
    # A: Y(clean, A=1) = 2 + 3.5 + .7 = 6.2; Y(corrupted, A=4) = 6; logits alone see A=1: 8; all but the logits: 9.8
    # B: Y(clean, B=.25) = 2 + 4.5 + .9 = 7.4; Y(corrupted, B=2) = 5; logits alone see B=.25: 7.4; nothing later: 11.6
    expected = {
        "total": 10.1,
        "natural_indirect": [5.4, 4.2],
        "natural_direct": [5.6, 6.6],
        "interaction": [-0.9, -0.7],
        "direct_path": [3.6, 4.2],
        "downstream": [1.8, 0.0],
    }
    found = mediation.measure(Structural())
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(np.array([value, value]), abs=1e-6), name


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_the_parts_equal_runs_with_one_path_changed(architecture, make_study) -> None:
    study = make_study(architecture)
    found, node = mediation.measure(study), study.model.heads[1]
    place, corrupted = study.model.heads.index(node), Recipe("patch", source="corrupted")
    edges = [edge for edge in study.model.graph.edges if edge.writer == node]
    to_logits = [Edge(node, study.model.graph.logits)]
    elsewhere = [edge for edge in edges if edge not in to_logits]
    variants = (
        Variant("clean"),
        Variant("corrupted", base="corrupted"),
        Variant("around", (Intervention((node,), Recipe("patch", source="clean")),), "corrupted"),
        Variant("through", (Intervention((node,), corrupted),)),
        patch_paths(to_logits, corrupted, "direct"),
        patch_paths(elsewhere, corrupted, "downstream"),
    )
    clean, other, around, through, direct, downstream = study.run(Sweep(variants)).logit_diff
    for name, value in {
        "total": clean - other,
        "natural_direct": clean - around,
        "natural_indirect": clean - through,
        "direct_path": clean - direct,
        "downstream": clean - downstream,
    }.items():
        column = found[name] if name == "total" else found[name][:, place]
        assert np.abs(column - value).max() < 1e-4 * max(1, np.abs(value).max()), name
    assert np.abs(found["downstream"][:, place]).mean() > 0.05


def test_downstream_is_run_beside_the_patches_and_is_the_same_by_itself(make_study) -> None:
    study, sweep = make_study(), activation_patching.downstream_sweep(make_study().model)
    alone = study.engine.run(sweep, study.prompts).logit_diff
    counted = Counted()
    patched = replace(study, done={}, ahead=set(), progress=counted)
    activation_patching.patch_heads(patched)
    own = (2 + 2 * len(study.model.heads)) * len(study.prompts)
    assert counted.done == counted.expected == own
    patched.engine.run = None  # nothing is run from here on
    try:
        assert np.array_equal(mediation.downstream(patched), alone.T)
    finally:
        del patched.engine.run
    assert counted.done == counted.expected == own + len(sweep) * len(study.prompts)
    mediation.measure(patched)
    assert counted.done == counted.expected == own + len(sweep) * len(study.prompts)


class Counted:
    """Progress as two numbers."""

    def __init__(self) -> None:
        self.expected = self.done = 0

    def expect(self, pairs: int) -> None:
        self.expected += pairs

    def advance(self, pairs: int) -> None:
        self.done += pairs


@pytest.mark.slow
def test_heads_of_the_last_layer_act_on_the_logits_alone_in_a_parallel_model(make_study) -> None:
    study = make_study("neox")
    found = mediation.measure(study)
    last = slice(toy.N_HEADS, 2 * toy.N_HEADS)
    assert np.abs(found["downstream"][:, last]).max() < 1e-5
    assert np.abs(found["direct_path"] - found["natural_indirect"])[:, last].max() < 1e-4
    assert np.abs(found["downstream"][:, : toy.N_HEADS]).mean() > 0.05


def test_effects_do_not_add_up_where_nothing_makes_them(study) -> None:
    found = mediation.measure(study)
    remainder = found["total"][:, None] - found["natural_direct"] - found["natural_indirect"]
    assert found["interaction"] == pytest.approx(remainder, abs=1e-5)
    assert np.abs(remainder).mean() > 0.05


def test_the_indirect_effect_is_the_noising_of_02(study) -> None:
    assert np.array_equal(mediation.measure(study)["natural_indirect"], activation_patching.measure(study)["noising"])
