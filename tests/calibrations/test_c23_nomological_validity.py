"""C23: layer density and role depth with exact permutation p; circular labels are refused."""

import json
from math import factorial

import numpy as np
import pytest
from settings import config_of, shuffled
from synthetic import COMMON, documents

from calibrations import c23_nomological_validity as c23
from calibrations.evidence import Evidence

CONFIG = config_of("c23")
BIG = {"n_layers": 12, "heads_per_layer": 12, "n_evaluation": 60, "n_held_out": 10, "n_random": 5}


def role(layers, ordinal, **fields):
    """A role with one head in each of `layers`; repeated layers take the next head."""
    heads = [[layer, sum(other == layer for other in layers[:i])] for i, layer in enumerate(layers)]
    return {"heads": heads, "ordinal": ordinal, "sign": 1, **fields}


def judge(roles, **law):
    records = c23.calibrate(Evidence(documents(roles=roles, **{**BIG, **law}), COMMON), CONFIG)
    for record in records:
        json.dumps(record.to_dict(), allow_nan=False)
    return records


def depth(roles, **law):
    return judge(roles, **law)[1]


def three(early, middle, late, **fields):
    return {"a": role(early, 1, **fields), "b": role(middle, 2, **fields), "c": role(late, 4, **fields)}


def test_layer_density_oracle():
    counts = [0, 0, 1, 0, 0, 2, 1, 2, 4, 7, 6, 3]
    layers = [layer for layer, count in enumerate(counts) for _ in range(count)]
    density = judge({"all": role(layers, None)})[0]
    assert density.published_value == pytest.approx(0.8716287132)
    assert density.companions["heads_per_layer"] == counts
    assert density.p < 0.01 and not density.gating
    assert density.verdict == "inconclusive" and density.reasons[0].startswith("descriptive")


def test_role_depth_oracle_with_ties():
    record = depth(three([0, 2], [5, 7], [9, 10]))
    assert record.published_value == pytest.approx(0.9561828875)
    assert record.p == pytest.approx(factorial(2) ** 3 / factorial(6)) and "exact" in record.p_kind
    assert record.verdict == "pass" and record.published_verdict == "pass" and not record.gating
    assert record.companions["somers_d"] == pytest.approx(1.0)
    assert record.companions["jonckheere_terpstra_p"] == pytest.approx(8 / 720)


def test_any_increasing_recoding_of_roles_gives_the_same_rho():
    roles = three([0, 2], [5, 7], [9, 10])
    recoded = {**roles, "c": {**roles["c"], "ordinal": 3}}
    assert depth(roles).estimate == depth(recoded).estimate


def test_swapped_roles_fail():
    record = depth(three([9, 10], [5, 7], [0, 2]))
    assert record.verdict == "fail" and record.estimate < 0 and record.published_verdict == "fail"


def test_no_trend_is_inconclusive_not_a_failure():
    record = depth(three([0, 9], [5, 7], [2, 8]))
    assert record.verdict == "inconclusive" and record.published_verdict == "fail"


@pytest.mark.parametrize("assigned_by", ["layer", "none"])
def test_labels_drawn_from_layers_are_circular(assigned_by):
    """D29: bands defined by layer correlate with layer whatever the circuit does."""
    record = depth(three([0, 2], [5, 7], [9, 10], assigned_by=assigned_by))
    assert record.published_verdict == "pass"
    assert record.verdict == "insufficient" and record.reasons[0].startswith("circular_labels")


def test_heads_without_an_ordinal_are_left_out_and_counted():
    roles = {**three([0, 2], [5, 7], [9, 10]), "backup": role([1, 11, 11], None, assigned_by="layer")}
    record = depth(roles)
    assert record.companions["heads_without_ordinal"] == 3 and record.n["heads"] == 6
    assert record.estimate == pytest.approx(0.9561828875)


def test_a_head_in_two_roles_counts_once():
    roles = three([0, 2], [5, 7], [9, 10])
    roles["c"]["heads"].append([5, 0])  # also a middle head
    record = depth(roles)
    assert record.n["heads"] == 6 and record.companions["heads_in_several_roles"] == 1
    assert record.companions["rho_counting_each_role"] != pytest.approx(record.published_value)


@pytest.mark.parametrize(("sizes", "reason"), [((1, 1, 1), "n_heads"), ((1, 4, 0), "min_p_unreachable")])
def test_too_few_heads_cannot_reach_significance(sizes, reason):
    layers = list(range(12))
    first, second, third = sizes
    roles = three(layers[:first], layers[first : first + second], layers[9 : 9 + third])
    assert depth(roles).reasons[0].startswith(reason)


def test_heads_in_one_layer_raise_the_floor():
    """Role sizes 2, 2, 1 could reach 4/120, but four heads in one layer leave one order in five."""
    roles = {
        "a": role([3, 3], 1),
        "b": {**role([3, 3], 2), "heads": [[3, 2], [3, 3]]},
        "c": role([7], 4),
    }
    record = depth(roles)
    assert record.verdict == "insufficient" and record.reasons[0].startswith("min_p_unreachable")


@pytest.mark.parametrize("n_layers", [4, 24])
def test_models_of_any_depth(n_layers):
    """D29: neither 12 layers nor 12 heads are built in."""
    top = n_layers - 1
    density, record = judge(three([0, 0, 1], [1, 2, 2], [top, top, top]), n_layers=n_layers, heads_per_layer=5)
    assert len(density.companions["heads_per_layer"]) == n_layers
    assert record.verdict == "pass"


@pytest.mark.slow
def test_random_circuits_rarely_pass():
    rng = np.random.default_rng(1)
    passes = 0
    for _ in range(60):
        picks = rng.choice(12, 7, replace=False)
        passes += (
            depth(three(picks[:2].tolist(), picks[2:4].tolist(), picks[4:].tolist()), n_clusters=8).verdict == "pass"
        )
    assert passes <= 3 + 3 * np.sqrt(60 * 0.05 * 0.95)


def test_order_of_prompts_does_not_matter_and_runs_repeat():
    docs = documents(**BIG)
    first = c23.calibrate(Evidence(docs, COMMON), CONFIG)
    assert first == c23.calibrate(Evidence(docs, COMMON), CONFIG)
    assert first == c23.calibrate(Evidence(shuffled(docs), COMMON), CONFIG)
