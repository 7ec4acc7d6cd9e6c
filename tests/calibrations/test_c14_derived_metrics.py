"""C14: twenty records, d' over heads, true false alarm rate, nothing typed in and nothing vanishing."""

import json

import numpy as np
import pytest
from settings import config_of, shuffled
from synthetic import COMMON, documents

from calibrations import c14_derived_metrics as c14
from calibrations.evidence import Evidence
from calibrations.statistics import false_alarms

CONFIG = config_of("c14")
PUBLISHED = [
    "sparsity",
    "node_overlap_jaccard",
    "spectral_norm_ratio",
    "sv_entropy_ratio",
    "d_prime",
    "llc_d_prime",
    "hit_rate",
    "false_alarm_rate",
    "partial_eta_sq",
    "pc_ratio_circuit_mean",
    "pc_ratio_noncircuit_mean",
    "pc_ratio_d_prime",
    "ov_composition_pval",
    "q_composition_pval",
    "k_composition_pval",
    "attribution_auroc",
    "faithfulness",
    "completeness",
    "minimality_mean_importance",
    "logit_diff_recovery",
]
LATER = {
    "spectral_norm_ratio": "09", "sv_entropy_ratio": "09", "llc_d_prime": "10", "hit_rate": "09",
    "false_alarm_rate": "09", "pc_ratio_circuit_mean": "09", "pc_ratio_noncircuit_mean": "09",
    "pc_ratio_d_prime": "09", "ov_composition_pval": "09", "q_composition_pval": "09",
    "k_composition_pval": "09", "attribution_auroc": "08", "logit_diff_recovery": "24",
}  # fmt: skip


def judge(docs, config=CONFIG):
    records = c14.calibrate(Evidence(docs, COMMON), config)
    for record in records:
        json.dumps(record.to_dict(), allow_nan=False)
    return {record.metric.removeprefix("C14."): record for record in records}


def members(docs):
    return Evidence(docs, COMMON).in_circuit


def with_effects(inside, outside, roles=None, noise=1e-9):
    """Per-head means exactly `inside` for circuit heads and `outside` (cycled) for the others."""
    docs = documents(roles=roles)
    mask = members(docs)
    mean = np.empty(len(mask))
    mean[mask], mean[~mask] = inside, np.resize(outside, (~mask).sum())
    docs["02"]["data"]["denoising"] = (mean + np.random.default_rng(0).normal(0, noise, (600, len(mask)))).tolist()
    return docs


def test_all_twenty_sub_metrics_are_present_in_order():
    """D6: none of them vanishes because its source is missing."""
    assert list(judge(documents())) == PUBLISHED


@pytest.mark.parametrize(("name", "source"), LATER.items())
def test_what_was_not_measured_says_so(name, source):
    record = judge(documents())[name]
    assert record.verdict == "insufficient" and record.published_value is None and not record.gating
    assert record.reasons[0].startswith("not_run") and source in record.reasons[0]


def test_only_d_prime_gates():
    records = judge(documents())
    assert [name for name, record in records.items() if record.gating] == ["d_prime"]
    with_classifier = documents()
    with_classifier["09"] = {"data": {"predicted_heads": [[0, 1]]}}
    gates = [name for name, record in judge(with_classifier).items() if record.gating]
    assert gates == ["d_prime", "hit_rate", "false_alarm_rate"]


def test_sparsity_uses_the_models_own_heads():
    """D6: 144 is not built in."""
    assert judge(documents())["sparsity"].published_value == 7 / 32


# --- d' -----------------------------------------------------------------------------------------------------


def test_d_prime_has_both_sds_over_heads():
    """D15: no sums against means, no SD of random-set means, no absolute values in the published form."""
    inside, outside = [0.5, 0.7, 0.9, 0.6, 0.8, 0.4, 0.75], [0.1, 0.0, 0.2, 0.1, -0.1]
    docs = with_effects(inside, outside)
    others = np.resize(outside, 25)
    expected = (np.mean(inside) - others.mean()) / np.sqrt((np.var(inside, ddof=1) + others.var(ddof=1)) / 2)
    record = judge(docs)["d_prime"]
    assert record.published_value == pytest.approx(expected) and record.estimate == pytest.approx(expected)
    assert record.companions["upstream_form"] != pytest.approx(expected, rel=0.05)
    assert record.companions["auroc"] == 1.0 and record.companions["cliff_delta"] == 1.0
    assert record.verdict == "pass" and record.published_verdict == "pass"


def test_bonett_interval_oracle():
    """d' = 2.5, variances .01 and .04, 11 and 41 heads, against the formula written out."""
    rng = np.random.default_rng(0)

    def sample(n, mean, sd):
        x = rng.normal(size=n)
        return mean + sd * (x - x.mean()) / x.std(ddof=1)

    scale = np.sqrt(0.025)
    first, second = sample(11, 2.5 * scale, 0.1), sample(41, 0.0, 0.2)
    error = np.sqrt(2.5**2 * (1e-4 / 10 + 16e-4 / 40) / (8 * 0.025**2) + (0.01 / 10 + 0.04 / 40) / 0.025)
    low, high = c14.d_prime_interval(first, second, 0.90)
    assert (low, high) == pytest.approx((2.5 - 1.6448536 * error, 2.5 + 1.6448536 * error))


def test_bonett_interval_covers():
    rng = np.random.default_rng(1)
    truth = 2.0
    sd1, sd2 = 0.5, 0.2
    shift = truth * np.sqrt((sd1**2 + sd2**2) / 2)
    intervals = [c14.d_prime_interval(rng.normal(shift, sd1, 9), rng.normal(0, sd2, 39), 0.90) for _ in range(600)]
    covered = np.mean([low <= truth <= high for low, high in intervals])
    below = np.mean([low > truth for low, _ in intervals])
    assert 0.85 < covered < 0.97 and below < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 600)


def test_planted_passes_and_a_wrong_circuit_does_not():
    record = judge(documents())["d_prime"]
    assert record.verdict == "pass" and record.p < CONFIG["alpha"]
    assert record.companions["over_prompts_ci90"][0] > CONFIG["threshold_d_prime"]
    wrong = documents()
    wrong["20"]["data"]["circuit"]["roles"] = {
        "r": {
            "heads": [[0, 0], [1, 0], [2, 0], [2, 3], [3, 1]],
            "ordinal": 1,
            "sign": 1,
            "assigned_by": "function",
        }
    }
    record = judge(wrong)["d_prime"]
    assert record.verdict in ("fail", "inconclusive") and record.published_verdict == "fail"


def test_heads_that_cannot_be_told_apart_fail():
    rng = np.random.default_rng(2)
    roles = {"r": {"heads": [[i // 8, i % 8] for i in range(16)], "ordinal": 1, "sign": 1}}
    effects = rng.normal(0.2, 0.3, 32)
    record = judge(with_effects(effects[:16], effects[16:], roles=roles))["d_prime"]
    assert record.verdict == "fail" and record.ci90[1] < CONFIG["threshold_d_prime"]


def test_negative_heads_declared_as_such_count_for_the_circuit():
    """A head that opposes the answer lowers the published d' and raises the oriented one."""
    roles = {
        "writers": {"heads": [[0, 0], [1, 0], [2, 0], [2, 1]], "ordinal": 1, "sign": 1},
        "negative": {"heads": [[3, 0], [3, 1]], "ordinal": 4, "sign": -1},
    }
    record = judge(with_effects([1.0, 1.1, 0.9, 1.0, -1.0, -1.1], [0.0, 0.1, -0.1], roles=roles))["d_prime"]
    assert record.published_value < 1 < record.estimate and record.verdict == "pass"


def test_random_circuits_are_rarely_passed():
    rng = np.random.default_rng(3)
    passed = 0
    docs = documents(n_evaluation=60, n_held_out=10, n_clusters=8, n_random=2)
    quick = {**CONFIG, "bootstrap_resamples": 50, "head_bootstrap_resamples": 50, "permutations": 199}
    for _ in range(50):
        mean = rng.lognormal(0, 1.0, 32)
        docs["02"]["data"]["denoising"] = np.tile(mean, (70, 1)).tolist()
        passed += c14._d_prime(Evidence(docs, COMMON), quick).verdict == "pass"
    assert passed <= 2 + 3 * np.sqrt(50 * 0.05 * 0.95)


def test_one_head_has_a_rank_not_a_d_prime():
    roles = {"r": {"heads": [[3, 0]], "ordinal": 1, "sign": 1}}
    record = judge(with_effects([2.0], [0.0, 0.1], roles=roles))["d_prime"]
    assert record.verdict == "insufficient" and record.reasons[0].startswith("n_heads")
    assert "ranks 1 of 32" in record.reasons[0]


@pytest.mark.parametrize(("size", "reason"), [(2, "n_heads"), (31, "all_selected")])
def test_too_small_or_too_large_circuits(size, reason):
    roles = {"r": {"heads": [[i // 8, i % 8] for i in range(size)], "ordinal": 1, "sign": 1}}
    assert judge(documents(roles=roles))["d_prime"].reasons[0].startswith(reason)


def test_constant_groups_are_zero_variance():
    docs = with_effects([1.0] * 7, [0.0], noise=0)
    record = judge(docs)["d_prime"]
    assert record.verdict == "insufficient" and record.reasons[0].startswith("zero_variance")
    assert record.published_value is None


# --- overlap and classifier ---------------------------------------------------------------------------------


def test_published_heads_come_from_provenance_only():
    """D36: no sizes of published circuits are built in."""
    docs = documents()
    record = judge(docs)["node_overlap_jaccard"]
    assert record.verdict == "insufficient" and record.published_value is None
    docs["20"]["data"]["circuit"]["roles"] = {
        "r": {"heads": [[0, 1], [1, 5], [3, 1], [3, 2]], "ordinal": 1, "sign": 1, "assigned_by": "function"}
    }
    docs["20"]["data"]["circuit"]["provenance"]["published_heads"] = [[1, 5], [3, 1], [3, 6], [2, 7]]
    record = judge(docs)["node_overlap_jaccard"]
    assert record.published_value == 1.0  # sizes agree
    assert record.estimate == pytest.approx(1 / 3) and record.companions["dice"] == pytest.approx(0.5)
    assert 0 < record.p < 1 and record.companions["p_bh_family"] >= 2


def test_false_alarm_rate_is_not_one_minus_precision():
    """D28: recall .93, precision .87, 26 of 144 heads: .13 against .031."""
    both = false_alarms(0.93, 0.87, 26, 144)
    assert both.one_minus_precision == pytest.approx(0.13)
    assert both.false_alarm_rate == pytest.approx(0.03061952075)
    heads = [(layer, head) for layer in range(12) for head in range(12)]
    found = c14.classify(heads[2:30], heads[:26], heads)
    assert (found.hits, found.false_alarms) == (24, 4)
    assert found.hit_rate == pytest.approx(24 / 26) and found.false_alarm_rate == pytest.approx(4 / 118)
    assert found.one_minus_precision == pytest.approx(4 / 28)
    assert c14.classify([], heads[:26], heads).one_minus_precision is None


def test_classifier_gates_through_wilson():
    heads = [[layer, head] for layer in range(20) for head in range(10)]
    roles = {"r": {"heads": heads[:60], "ordinal": 1, "sign": 1}}
    docs = documents(roles=roles, n_layers=20, heads_per_layer=10, n_evaluation=100, n_held_out=10, n_random=2)
    docs["09"] = {"data": {"predicted_heads": heads[:63]}}
    records = judge(docs)
    assert records["hit_rate"].verdict == "pass" and records["hit_rate"].published_value == 1.0
    assert records["false_alarm_rate"].verdict == "pass"
    assert records["false_alarm_rate"].published_value == pytest.approx(3 / 140)
    docs["09"] = {"data": {"predicted_heads": heads[:55] + heads[60:120]}}
    records = judge(docs)
    assert records["hit_rate"].published_verdict == "pass" and records["hit_rate"].verdict == "inconclusive"
    assert records["false_alarm_rate"].verdict == "fail" and records["false_alarm_rate"].published_verdict == "fail"


# --- forwarded ----------------------------------------------------------------------------------------------


def test_faithfulness_completeness_and_minimality():
    docs = documents()
    clean = np.array(docs["01"]["data"]["clean_logit_diff"])[:400]
    conditions = docs["20"]["data"]["conditions"]

    def ablated(subset):
        row = next(i for i, c in enumerate(conditions) if c["subset"] == subset and c["method"] == "mean")
        return np.array(docs["20"]["data"]["logit_diff"][row])[:400]

    records = judge(docs)
    assert records["faithfulness"].published_value == pytest.approx(ablated("circuit").sum() / clean.sum())
    assert records["completeness"].published_value == pytest.approx(1 - ablated("complement").sum() / clean.sum())
    effect = np.array(docs["22"]["data"]["effect"])[:, :400]
    minimality = records["minimality_mean_importance"]
    assert minimality.published_value == pytest.approx(effect.mean() / clean.mean())
    assert minimality.companions["smallest_head"] == docs["22"]["data"]["heads"][int(effect.mean(axis=1).argmin())]
    for name in ("sparsity", "faithfulness", "completeness", "minimality_mean_importance", "partial_eta_sq"):
        assert records[name].published_verdict == "none" and records[name].verdict == "inconclusive"
        assert records[name].reasons == ("descriptive: no published threshold",)


def test_partial_eta_squared_is_that_of_c13():
    """D16: of faithfulness, not of the clean logit difference; the same number as C13's published value."""
    from calibrations import c13_measurement_invariance as c13

    docs = documents(template_shift=0.5)
    value = judge(docs)["partial_eta_sq"].published_value
    assert value > 0.3
    theirs = c13.calibrate(Evidence(docs, COMMON), config_of("c13"))[0]
    assert value == pytest.approx(theirs.published_value)


def test_learning_coefficient_uses_both_sds():
    """D28: the circuit's SD alone is not the scale of two groups; heads without a value are left out."""
    docs = documents()
    mask = members(docs)
    rng = np.random.default_rng(0)
    score = np.where(mask, rng.normal(1, 0.1, 32), rng.normal(2, 0.5, 32))
    docs["10"] = {"data": {"score": score.tolist()}}
    expected = (score[~mask].mean() - score[mask].mean()) / np.sqrt(
        (score[mask].var(ddof=1) + score[~mask].var(ddof=1)) / 2
    )
    record = judge(docs)["llc_d_prime"]
    assert record.published_value == pytest.approx(expected) and record.p < 0.05
    docs["10"]["data"]["score"][int(np.flatnonzero(~mask)[0])] = None
    assert judge(docs)["llc_d_prime"].published_value != record.published_value


def test_forwarded_forms():
    docs = documents()
    mask = members(docs)
    score = np.where(mask, 3.0, 1.5) + 0.01 * np.arange(32)
    docs["09"] = {"data": {"spectral_norm": score.tolist(), "ov_composition_p": 0.03}}
    docs["08"] = {"data": {"score": score.tolist()}}
    docs["24"] = {"data": {"logit_diff_recovery": 0.8}}
    records = judge(docs)
    assert records["spectral_norm_ratio"].published_value == pytest.approx(score[mask].mean() / score[~mask].mean())
    assert records["attribution_auroc"].published_value == 1.0 and records["attribution_auroc"].p < 0.01
    assert records["ov_composition_pval"].p == 0.03
    assert records["logit_diff_recovery"].published_value == 0.8
    absent = records["sv_entropy_ratio"]
    assert absent.verdict == "insufficient" and "holds no sv_entropy" in absent.reasons[0]


def test_exploratory_p_values_are_corrected_together_without_the_gate():
    docs = documents()
    docs["09"] = {"data": {"ov_composition_p": 0.01, "q_composition_p": 0.02, "k_composition_p": 0.9}}
    docs["20"]["data"]["circuit"]["provenance"]["published_heads"] = [[0, 1]]
    records = judge(docs)
    family = {name: r for name, r in records.items() if r.p is not None and not r.gating}
    assert set(family) == {
        "node_overlap_jaccard", "partial_eta_sq",
        "ov_composition_pval", "q_composition_pval", "k_composition_pval",
    }  # fmt: skip
    assert all(r.companions["p_bh"] >= r.p and r.companions["p_bh_family"] == 5 for r in family.values())
    assert "p_bh" not in records["d_prime"].companions


def test_no_behaviour_is_insufficient():
    records = judge(documents(mean_clean=-3))
    for name in ("d_prime", "faithfulness", "completeness", "minimality_mean_importance", "partial_eta_sq"):
        assert records[name].verdict == "insufficient", name


def test_order_of_prompts_does_not_matter_and_runs_repeat():
    docs = documents()
    assert judge(docs) == judge(docs) == judge(shuffled(docs))
