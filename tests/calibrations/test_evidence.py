"""Stored results as arrays: every value of a hand-made document is found where it belongs."""

import json

import numpy as np
import pytest

import results_io
from calibrations.evidence import Evidence
from calibrations.statistics import Insufficient
from tests.calibrations.settings import shuffled
from tests.calibrations.synthetic import COMMON, documents
from tests.result_samples import completed

# Six prompts; sorted by id the evaluation rows are 4, 0, 3 and the held-out rows 5, 1, 2.
IDS = ["b", "e", "f", "c", "a", "d"]
SPLITS = ["evaluation", "held_out", "held_out", "evaluation", "evaluation", "held_out"]
EVALUATION, HELD_OUT = [4, 0, 3], [5, 1, 2]
CLEAN = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
HEADS = [[0, 0], [0, 1], [1, 0], [1, 1]]
CONDITIONS = [("circuit", "mean", 0), ("circuit", "resample", 0), ("empty", "mean", 0), ("circuit", "resample", 1)]


def by_hand():
    data = {
        "01": {
            "prompt_id": IDS,
            "split": SPLITS,
            "template": ["t0", "t1", "t0", "t1", "t0", "t1"],
            "cluster": ["n0", "n1", "n2", "n3", "n4", "n5"],
            "factors": {"order": ["A", "B", "C", "D", "E", "F"]},
            "clean_logit_diff": CLEAN,
            "corrupted_logit_diff": [-value for value in CLEAN],
            "heads": HEADS,
            "n_layers": 2,
        },
        "02": {"denoising": [[10.0 * row + head for head in range(4)] for row in range(6)]},
        "20": {
            "circuit": {
                "name": "by hand",
                "roles": {
                    "late": {"heads": [[1, 1], [0, 1]], "sign": 1},
                    "against": {"heads": [[1, 0]], "sign": -1},
                },
                "provenance": {"kind": "planted"},
            },
            "conditions": [{"subset": s, "method": m, "draw": d} for s, m, d in CONDITIONS],
            "logit_diff": [[100.0 * row + prompt for prompt in range(6)] for row in range(4)],
            "random_circuits": {"prompt_index": [0, 4, 1], "logit_diff": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]},
        },
        "25": {"entropy": [0.1, 0.2, 0.3, 0.4]},
    }
    return {number: {"number": number, "data": content} for number, content in data.items()}


@pytest.fixture
def evidence():
    return Evidence(by_hand(), COMMON)


def test_rows_are_those_of_the_split_in_order_of_prompt_id(evidence):
    assert evidence.rows.tolist() == EVALUATION
    assert evidence.on("held_out").rows.tolist() == HELD_OUT


def test_changing_the_split_leaves_nothing_of_the_other_behind(evidence):
    assert evidence.clean.tolist() == [4.0, 0.0, 3.0]
    other = evidence.on("held_out")
    assert other.clean.tolist() == [5.0, 1.0, 2.0]
    assert other.on("evaluation").clean.tolist() == evidence.clean.tolist()
    assert other.random_circuits[1].tolist() == [1]


def test_per_prompt_values_follow_the_rows(evidence):
    assert evidence.corrupted.tolist() == [-4.0, 0.0, -3.0]
    assert evidence.clean.dtype == evidence.corrupted.dtype == np.float64
    assert evidence.templates.tolist() == ["t0", "t0", "t1"]
    assert evidence.factors["order"].tolist() == ["E", "A", "D"]
    assert evidence.head_effect("02", "denoising").tolist() == [
        [40.0, 41.0, 42.0, 43.0],
        [0.0, 1.0, 2.0, 3.0],
        [30.0, 31.0, 32.0, 33.0],
    ]
    assert evidence.head_score("25", "entropy").tolist() == [0.1, 0.2, 0.3, 0.4]


def test_a_cluster_is_a_template_with_a_name_set(evidence):
    assert evidence.clusters.tolist() == ["t0|n4", "t0|n0", "t1|n3"]


def test_the_circuit_head_by_head(evidence):
    assert evidence.heads == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert evidence.layers.tolist() == [0, 0, 1, 1]
    assert evidence.circuit_heads == [(0, 1), (1, 0), (1, 1)]
    assert evidence.in_circuit.tolist() == [False, True, True, True]
    assert evidence.expected_sign.tolist() == [1.0, 1.0, -1.0, 1.0]


def test_draws_are_kept_apart_and_ablated_averages_them(evidence):
    assert evidence.draws("circuit", "resample").tolist() == [[104.0, 100.0, 103.0], [304.0, 300.0, 303.0]]
    assert evidence.ablated("circuit", "resample").tolist() == [204.0, 200.0, 203.0]
    assert evidence.ablated("circuit").tolist() == [4.0, 0.0, 3.0]  # the primary recipe is the mean
    assert evidence.on("held_out").ablated("empty").tolist() == [205.0, 201.0, 202.0]


@pytest.mark.parametrize(("subset", "method"), [("circuit", "zero"), ("complement", "mean"), ("without:late", "mean")])
def test_an_ablation_that_was_not_measured_is_not_a_number(evidence, subset, method):
    with pytest.raises(Insufficient, match=f"not_run: no ablation of kind {method} with {subset} intact"):
        evidence.draws(subset, method)


def test_random_circuits_name_the_prompts_they_ran_on(evidence):
    values, where = evidence.random_circuits
    assert where.tolist() == [0, 1]  # rows 4 and 0, which stand first and second
    assert values.tolist() == [[2.0, 1.0], [5.0, 4.0]]
    values, where = evidence.on("held_out").random_circuits
    assert (where.tolist(), values.tolist()) == ([1], [[3.0], [6.0]])


def test_random_circuits_on_no_prompt_of_the_split_are_insufficient():
    found = by_hand()
    found["20"]["data"]["random_circuits"]["prompt_index"] = [0, 4, 3]
    with pytest.raises(Insufficient, match="n_prompts: random circuits were not run on the held_out split"):
        Evidence(found, COMMON, "held_out").random_circuits  # noqa: B018


def test_an_empty_split_and_a_missing_measurement_are_insufficient(evidence):
    with pytest.raises(Insufficient, match="n_prompts: no prompts in the discovery split"):
        evidence.on("discovery").clean  # noqa: B018
    with pytest.raises(Insufficient, match="not_run: measurement 21 has not been run"):
        evidence.head_effect("21", "effect")
    assert evidence.has("02") and not evidence.has("21")


def test_nothing_depends_on_the_order_of_the_prompts():
    found = documents(n_evaluation=40, n_held_out=20)
    straight, mixed = Evidence(found, COMMON), Evidence(shuffled(found), COMMON)
    for split in ("evaluation", "held_out"):
        one, other = straight.on(split), mixed.on(split)
        assert one.rows.tolist() != other.rows.tolist()
        for name in ("clean", "corrupted", "templates", "clusters"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        for subset, method in (("circuit", "noise"), ("without:late", "zero")):
            assert np.array_equal(one.draws(subset, method), other.draws(subset, method))
        for mine, theirs in zip(one.random_circuits, other.random_circuits, strict=True):
            assert np.array_equal(mine, theirs)
        assert np.array_equal(one.head_effect("03", "attribution"), other.head_effect("03", "attribution"))


def test_load_reads_what_is_there(tmp_path):
    for number, document in by_hand().items():
        results_io.write(tmp_path / f"{number}_by_hand.json", completed(number, **document))
    loaded = Evidence.load(tmp_path, COMMON, ("01", "02", "20", "21"))
    assert sorted(loaded.documents) == ["01", "02", "20"]
    assert loaded.split == "evaluation" and loaded.constants is COMMON
    assert loaded.clean.tolist() == [4.0, 0.0, 3.0]
    written = completed("20", **by_hand()["20"])["data"]["circuit"]
    assert json.dumps(loaded.circuit) == json.dumps(written, sort_keys=True)
