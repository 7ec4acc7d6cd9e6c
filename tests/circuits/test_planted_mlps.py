"""Claims of MLPs and positions on a model whose MLP does two fifths of the work: what is judged of them is the truth."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import yaml

import results_io
from calibrations import claim_completeness, outside_heads, preconditions
from calibrations.evidence import Evidence
from calibrations.m3b_certified_stability import head_tests
from circuits import discovery, models, planted, tasks
from circuits import study as studies
from circuits.circuit import mlp
from circuits.discovery import curve
from circuits.discovery.nested import Nested
from circuits.discovery.stopping import Stopping, head_order
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measure import ROOT
from circuits.measurements import MEASUREMENTS
from results_io import UserError
from tests.calibrations.settings import config_of
from tests.circuits.planted_loop import measured

SIZES = {"evaluation": 60, "held_out": 1, "discovery": 16, "reference": 200, "groups": 8}
SOUND = ("mlp_claimed", "mlp_claimed_at_end")
WRONG = ("mlp_left_out", "mlp_of_another_layer", "mlp_at_another_position")
CONFIG = {**config_of("common"), "bootstrap_resamples_p": 499, "minimum_group_prompts": 10}
TRUE_HEADS = {"L0H2", "L0H5", "L1H3", "L1H6", "L3H0", "L3H2", "L3H5"}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread_without_gradients")]


@cache
def study_of(variant: str) -> studies.Study:
    """All claims are about one set of weights, so the model is loaded once."""
    if variant != SOUND[0]:
        return replace(study_of(SOUND[0]), circuit=planted.claimed_circuits(variant)["ioi"])
    settings = yaml.safe_load((ROOT / "configs" / "measurement" / "all.yaml").read_text())
    for section in ("completeness", "outside"):
        settings[section] |= {"prompt_share": 1, "held_out_share": 1, "greedy_steps": 1, "draws": 1}
    settings |= {"random_circuits": 40, "draws": 1, "random_circuit_prompt_share": 1}
    model = models.load({"name": f"planted/{variant}", "kind": "planted", "variant": variant, "device": "cpu"})
    found = studies.prepare(model, tasks.get("ioi"), SIZES, 0, settings=settings)
    return replace(found, circuit=model.circuits["ioi"])


@cache
def evidence_of(variant: str, *numbers: str) -> Evidence:
    """Measurements 01, 20, and what else is asked for, as they are stored."""
    study = study_of(variant)
    every = ("01", "20", *numbers)
    return Evidence({n: {"data": results_io.canonical(MEASUREMENTS[n].measure(study))} for n in every}, CONFIG)


def verdict(module, metric: str, variant: str):
    found = {record.metric: record for record in module.records(evidence_of(variant, "22"), CONFIG)}
    return found[metric]


def silenced(module: torch.nn.Module, given: object, out: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(out)


def test_these_are_one_set_of_weights_and_the_mlp_writes_two_fifths_by_hooks_alone() -> None:
    assert len({planted.weights_key(variant) for variant in planted.WITH_MLPS}) == 1
    found = measured(SOUND[0], n=24)
    scored = found.scored
    handle = found.model.get_submodule("transformer.h.3.mlp").register_forward_hook(silenced)
    try:
        logits = found.run(scored, {})
    finally:
        handle.remove()
    last = logits[torch.arange(len(scored)), scored.end]
    left = [
        float(row[a[a >= 0]].mean() - row[w[w >= 0]].mean())
        for row, a, w in zip(last, scored.answers, scored.wrong, strict=True)
    ]
    assert np.mean(left) / float(found.clean.mean()) == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize("variant", planted.WITH_MLPS)
def test_faithfulness_is_the_share_of_the_work_that_is_claimed(variant) -> None:
    """1 with the MLP, at all positions or where it writes; three fifths without it, elsewhere, or with an idle one."""
    study = study_of(variant)
    for recipe in (Recipe("zero"), Recipe("mean"), Recipe("mean", pooled=True), Recipe("resample"), Recipe("noise")):
        variants = (
            Variant("clean"),
            ablate(sorted(study.outside), recipe, "alone"),
            ablate(study.every, recipe, "nothing"),
        )
        clean, alone, nothing = study.run(Sweep(variants)).logit_diff.mean(1)
        assert alone / clean == pytest.approx(1.0 if variant in SOUND else 0.6, abs=0.06), recipe
        assert abs(nothing / clean) < 0.05
    assert planted.truth(variant).sound == (variant in SOUND)


@pytest.mark.slow
def test_scrubbing_keeps_all_if_the_draft_may_reach_the_mlp_and_three_fifths_if_not() -> None:
    study = study_of(SOUND[0])
    data = MEASUREMENTS["24"].measure(study)
    whole, nothing = np.mean(data["everything_relevant"]), np.mean(data["nothing_relevant"])
    assert (np.mean(data["scrubbed"]) - nothing) / (whole - nothing) == pytest.approx(1, abs=0.03)
    rows = data["rows"]
    whole, nothing = np.mean(data["everything_relevant"][rows]), np.mean(data["nothing_relevant"][:, rows])
    left = (np.mean(data["without_pathway"]["drafting_mover->answer_writer"]) - nothing) / (whole - nothing)
    assert left == pytest.approx(0.6, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("variant", SOUND)
def test_the_true_claim_passes_what_is_asked_of_a_claim(variant) -> None:
    for module, metrics in (
        (preconditions, ("P.faithfulness", "P.faithfulness_every_recipe", "P.random_circuits")),
        (claim_completeness, ("P.completeness",)),
        (outside_heads, ("P.outside",)),
    ):
        for metric in metrics:
            found = verdict(module, metric, variant)
            assert found.verdict == "pass", (metric, found.reasons)
    assert verdict(preconditions, "P.faithfulness", variant).estimate == pytest.approx(1, abs=0.03)
    tests = head_tests(evidence_of(variant, "22"), config_of("m3b"))
    names = [node.name for node in evidence_of(variant, "22").claimed]
    labels = dict(zip(names, tests.labels(0.05), strict=True))
    writer = names[-1]
    assert writer in ("M3", "M3@end") and labels[writer] == "counts"
    assert np.abs(tests.share[:, -1]).max() == pytest.approx(0.4, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("variant", WRONG)
def test_a_claim_without_the_mlp_at_its_place_fails_and_is_told_what_it_lacks(variant) -> None:
    found = verdict(preconditions, "P.faithfulness", variant)
    assert found.verdict == "fail" and found.estimate == pytest.approx(0.6, abs=0.06)
    outside = verdict(outside_heads, "P.outside", variant)
    assert outside.verdict == "fail"
    lacks = "M3@!s2" if variant == "mlp_at_another_position" else "M3"
    assert any(f"without {lacks} " in reason or f"with {lacks} " in reason for reason in outside.reasons), (
        outside.reasons
    )
    worst = next(row for row in outside.companions["worst"] if row.get("nodes") == [lacks])
    assert worst["kind"] == "mlp" and abs(worst["share"]) == pytest.approx(0.4, abs=0.06)


def test_a_random_circuit_of_the_shape_seldom_has_the_mlp_and_never_is_as_faithful() -> None:
    evidence = evidence_of(SOUND[0])
    drawn = evidence.data("20")["random_circuits"].get("nodes", [])
    own = {node.name for node in evidence.claimed}
    assert all({name[0] for name in names} == {"L", "M"} and len(names) == 8 for names in drawn)
    # 2 of 12 heads in layer 0, 2 of 12 in layer 1, 3 of 12 in layer 3, and one MLP of four
    assert preconditions.matching_circuits(evidence) == 66 * 66 * 220 * 4
    null = preconditions.random_faithfulness(evidence)
    others = [theta for theta, names in zip(null, drawn, strict=True) if set(names) != own]
    assert max(others) < 0.9 and np.median(others) < 0.3


@pytest.mark.parametrize(
    ("method", "scope"),
    [
        ("EAP-IG", "heads and mlps"),
        ("EAP-GIM", "heads and mlps"),
        ("EAP-IG", "heads"),
        ("EAP-GIM", "heads"),
        ("AtP", "heads"),
        ("NAP-IG", "heads"),
        ("GIM", "heads"),
    ],
)
def test_a_method_ranks_the_eight_true_nodes_first_and_cuts_there(method, scope) -> None:
    """Precision, recall and R-precision are 1; among heads alone the seven are the truth, as every MLP stays as it is."""
    study = study_of(SOUND[0])
    own = {**study.settings["discovery"], "scope": scope}
    study = replace(study, circuit=None, settings={**study.settings, "discovery": own})
    ranking = discovery.METHODS[method].rank(study, study.discovery)
    nested = Nested(study, study.discovery, ranking)
    ending = Stopping(nested, own).ending(curve.sizes(nested.total, own["shares"]))
    truth = TRUE_HEADS | ({"M3"} if "mlps" in scope else set())
    assert {node.name for node in ranking.heads(ranking.members(nested.order[: ending.size]))} == truth
    assert {node.name for node in head_order(nested)[: len(truth)]} == truth and ending.complete


@pytest.mark.parametrize("method", ["AtP", "NAP-IG", "GIM"])
def test_a_method_that_ranks_heads_alone_says_which_rank_mlps(method) -> None:
    study = study_of(SOUND[0])
    settings = {**study.settings, "discovery": {**study.settings["discovery"], "scope": "heads and mlps"}}
    with pytest.raises(
        UserError, match=f"method {method} ranks heads alone, .*use method=ACDC-greedy or method=EAP-IG"
    ):
        discovery.METHODS[method].rank(replace(study, circuit=None, settings=settings), study.discovery)


@pytest.mark.slow
def test_discovery_among_heads_and_mlps_finds_the_mlp_and_among_heads_leaves_it_out() -> None:
    study = study_of(SOUND[0])
    stability = {**study.settings["discovery"]["stability"], "greedy_resamples": 1}
    for scope in ("heads", "heads and mlps"):
        own = {**study.settings["discovery"], "scope": scope, "stability": stability}
        found = discovery.find(
            replace(study, circuit=None, settings={**study.settings, "discovery": own}), "ACDC-greedy"
        )
        names = {node.name for node in found.circuit.nodes}
        assert found.circuit.judges_mlps == ("mlps" in scope)
        assert names == TRUE_HEADS | ({"M3"} if "mlps" in scope else set())
        assert "1 of 4 MLPs" in found.sentence or scope == "heads"
        promoters = found.circuit.roles["answer_promoter"]
        assert (mlp(3) in promoters.mlps) == ("mlps" in scope)
