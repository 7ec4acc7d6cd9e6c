"""C12: convergence of families, never zero-filled, ties, each pair on its heads, both sources of uncertainty."""

import json
from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from settings import config_of, shuffled
from sklearn.metrics import roc_auc_score
from synthetic import COMMON, documents

from calibrations import c12_convergent_validity as c12
from calibrations.evidence import Evidence
from calibrations.head_scores import ScoringMethod, kappa_of_selections, rank_reliability, select_top
from calibrations.statistics import half_splits, intraclass_correlation

FEWER = {"bootstrap_resamples": 200, "bootstrap_resamples_p": 999}  # speed
CONFIG = {**config_of("c12"), **FEWER}
FAMILIES = {**CONFIG, "companions": []}  # for tests of the verdict alone
SHAPE = {"n_layers": 8, "heads_per_layer": 16}
H = 128


def effects(mean, seed, n=600, noise=0.5):
    return (np.asarray(mean) + np.random.default_rng(seed).normal(0, noise, (n, len(mean)))).tolist()


def with_families(seed=0, mean=None, mediation=None, writing=None, **scores):
    """Documents in which every head has an effect and writes to the answer: 05 and fixed scores 07, 10 if given."""
    docs = documents(seed=seed, **SHAPE)
    mean = importance(seed) if mean is None else mean
    docs["02"]["data"]["denoising"] = effects(mean, seed + 1)
    docs["02"]["data"]["noising"] = effects(mean, seed + 2)
    docs["21"]["data"]["effect"] = effects(mean, seed + 3)
    writing = np.ones(H) if writing is None else writing
    docs["03"]["data"]["attribution"] = effects(writing, seed + 5, noise=0.01)
    if mediation is not None:
        docs["05"] = {"data": {"natural_indirect": effects(mediation, seed + 4)}}
    for name, score in scores.items():
        docs[name.removeprefix("n")] = {"data": {"score": list(score)}}
    return docs


def importance(seed=0, scale=0.5):
    return np.random.default_rng(100 + seed).exponential(scale, H)


def judge(docs, config=CONFIG):
    (record,) = c12.calibrate(Evidence(docs, COMMON), config)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def pair(record, first, second):
    return next(p for p in record.companions["pairs"] if p["methods"] == [first, second])


def test_one_family_is_not_run_and_names_the_missing_numbers():
    record = judge(with_families())
    assert record.verdict == "insufficient" and record.published_value is None and record.gating
    assert record.reasons[0].startswith("not_run") and "05, 07, 10" in record.reasons[0]
    assert record.companions["not_run"] == ["05", "07", "08", "10"]
    measured = pair(record, "activation_patching", "knockouts")
    assert measured["heads"] == H and measured["spearman"] > 0.9
    low, high = measured["ci90_prompts"]
    assert 0.85 < low < high < 1
    assert measured["top_k"]["k"] == 7 and measured["top_k"]["p"] < 0.001
    assert measured["circuit_only"]["heads"] == 7
    assert measured["icc_consistency_z"] > 0.9


def test_published_value_is_the_mean_pairwise_spearman():
    """|mean effects| without ties, oCSE and the learning coefficient as they are printed: the text turns none round."""
    rng = np.random.default_rng(3)
    mean = importance()
    score, llc = mean + rng.normal(0, 0.3, H), mean + rng.normal(0, 0.3, H)
    docs = with_families(mean=mean, n07=score, n10=llc)
    patching = np.abs(np.array(docs["02"]["data"]["denoising"])[:400].mean(axis=0))
    columns = [patching, score, llc]
    expected = np.mean([stats.spearmanr(columns[i], columns[j]).statistic for i, j in ((0, 1), (0, 2), (1, 2))])
    record = judge(docs, FAMILIES)
    assert record.published_value == pytest.approx(expected)
    assert record.published_verdict == ("pass" if expected > CONFIG["threshold_rho"] else "fail")
    turned = np.mean([stats.spearmanr(a, b).statistic for a, b in combinations([patching, score, -llc], 2)])
    published = record.companions["published"]
    assert published["reoriented"]["llc"] == {"orientation": "lower", "mean_rho": pytest.approx(turned)}
    icc = intraclass_correlation(np.column_stack(columns))["ICC(A,1)"].value
    assert published["icc2"] == pytest.approx(icc)
    assert published["icc2_verdict"] == ("pass" if icc > CONFIG["threshold_icc"] else "fail")


def test_a_family_with_gaps_counts_in_the_published_value_on_the_heads_it_scored():
    """A third of the heads has no coefficient: the verdict leaves the family out, the published value the heads."""
    mean, rng = importance(), np.random.default_rng(3)
    llc = [None if i % 3 == 0 else float(x) for i, x in enumerate(mean + rng.normal(0, 0.5, H))]
    docs = with_families(mean=mean, n10=llc, n07=mean)
    kept = np.flatnonzero([x is not None for x in llc])
    patching = np.abs(np.array(docs["02"]["data"]["denoising"])[:400].mean(axis=0))[kept]
    columns = [patching, mean[kept], np.array([llc[i] for i in kept])]
    expected = np.mean([stats.spearmanr(a, b).statistic for a, b in combinations(columns, 2)])
    record = judge(docs, FAMILIES)
    assert record.published_value == pytest.approx(expected)
    assert record.companions["families"] == ["activation_patching", "ocse"]
    docs["10"]["data"]["score"] = [None] * H  # no score at all is no family
    assert judge(docs, FAMILIES).published_value == pytest.approx(
        stats.spearmanr(np.abs(np.array(docs["02"]["data"]["denoising"])[:400].mean(axis=0)), mean).statistic
    )


def test_planted_convergence_passes():
    mean = importance()
    record = judge(with_families(mean=mean, mediation=mean * 0.8, n07=mean**2, n10=mean + 3), FAMILIES)
    assert record.verdict == "pass" and record.published_verdict == "pass"
    assert record.p < CONFIG["alpha"] and record.n["methods"] == 4 and record.n["heads"] == H
    assert record.ci90[0] > CONFIG["threshold_rho"]
    assert record.companions["undefined_draws"] == {"prompts": 0.0, "heads": 0.0}


def test_few_heads_do_not_leave_a_clear_agreement_undecided():
    """32 heads, rho .6, hardly any noise over prompts: heads resampled as if drawn from more reach below .5."""
    rng = np.random.default_rng(1)
    docs = documents(n_layers=4, heads_per_layer=8)
    mean = rng.exponential(0.5, 32) + 0.3
    docs["02"]["data"]["denoising"] = effects(mean, 1, noise=0.05)
    score = stats.rankdata(mean) + rng.normal(0, 20, 32)
    docs["10"] = {"data": {"score": score.tolist()}}
    record = judge(docs, FAMILIES)
    assert 0.55 < record.estimate < 0.7 and record.companions["p_relabelling"] < 0.01
    assert record.verdict == "pass" and "over clusters of prompts" in record.ci_method
    low, high = record.companions["ci90_over_heads"]
    assert low < 0.5 < high and record.ci90[1] - record.ci90[0] < (high - low) / 3


def test_scores_without_prompts_leave_nothing_to_judge_by():
    """oCSE and the learning coefficient alone: the interval over prompts has no width, which is no certainty."""
    mean = importance()
    docs = with_families(mean=mean, n07=mean, n10=mean)
    del docs["02"]
    record = judge(docs, FAMILIES)
    assert record.published_value == pytest.approx(1.0)
    assert record.verdict == "insufficient" and record.reasons[0].startswith("not_run: no family")
    assert record.needs == "one of the measurements 02, 05"


def test_undefined_draws_are_skipped_and_counted():
    """One head in 128 has a score of its own: 37 % of the resamples over heads miss it, which concerns a companion alone."""
    mean, score = importance(), np.zeros(H)
    score[int(mean.argmax())] = 1.0
    record = judge(with_families(mean=mean, mediation=mean, n07=score), FAMILIES)
    assert record.companions["undefined_draws"] == {"prompts": 0.0, "heads": pytest.approx((1 - 1 / H) ** H, abs=0.06)}
    assert record.companions["ci90_over_heads"] is None and record.ci90 is not None and record.verdict != "insufficient"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("margin", "verdict"), [(0.0, "insufficient"), (0.035, "fail")])
def test_more_than_a_fifth_of_undefined_draws_is_insufficient(margin, verdict):
    """One head stands out by a mean at the tie (.05 of D = 5), or .035 above it: half the resamples tie all, or 8 %."""
    docs = with_families(mediation=importance())
    own, noise = np.zeros((600, H)), np.random.default_rng(0).normal(0, 0.5, 600)
    tie = CONFIG["tie_fraction"] * np.mean(docs["01"]["data"]["clean_logit_diff"][:400])
    own[:, 5] = tie * 1.0001 + margin + noise - noise[:400].mean()
    docs["02"]["data"]["denoising"] = own.tolist()
    record = judge(docs, FAMILIES)
    assert record.verdict == verdict
    if verdict == "insufficient":
        assert record.reasons[0].startswith("degenerate_bootstrap: a family scores all its heads alike in")
    else:
        assert 0 < record.companions["undefined_draws"]["prompts"] < CONFIG["max_undefined_draws"]


@pytest.mark.slow
def test_opposite_rankings_fail():
    mean = importance()
    record = judge(with_families(mean=mean, mediation=mean.max() - mean), FAMILIES)
    assert record.verdict == "fail" and record.published_verdict == "fail" and record.published_value < -0.9


@pytest.mark.slow
def test_independent_rankings_are_never_passed():
    rng = np.random.default_rng(0)
    for seed in range(4):
        record = judge(with_families(seed=seed, n07=rng.random(H)), FAMILIES)
        assert record.verdict in ("fail", "inconclusive")


@pytest.mark.slow
def test_relabelling_is_significant_at_its_level_under_the_null():
    """Four families that know nothing: p < .05 in 5 % of draws (Monte Carlo error 3.4 % at 40 draws, three of them)."""
    rng = np.random.default_rng(8)
    config = {**FAMILIES, "bootstrap_resamples_p": 99, "permutations": 199}
    docs = with_families()
    p = []
    for _ in range(40):
        docs["02"]["data"]["denoising"] = effects(rng.exponential(0.5, H), 0)
        docs["05"] = {"data": {"natural_indirect": effects(rng.exponential(0.5, H), 1)}}
        docs["07"] = {"data": {"score": rng.random(H).tolist()}}
        docs["10"] = {"data": {"score": rng.random(H).tolist()}}
        evidence = Evidence(docs, COMMON)
        decided = c12._decide(evidence, c12.scoring_methods(evidence, config, "families"), {}, config)
        p.append(decided["companions"]["p_relabelling"])
    assert np.mean(np.array(p) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 40)
    assert 0.3 < np.mean(p) < 0.7


def test_borderline_agreement_is_inconclusive_and_says_what_would_settle_it():
    """Means that 400 prompts of noise 12 (SE .6) order half-way only: more prompts would tell."""
    mean = importance() + 3
    docs = with_families(mean=mean, n07=mean)
    docs["02"]["data"]["denoising"] = effects(mean, 1, noise=12)
    record = judge(docs, FAMILIES)
    assert 0.4 < record.published_value < 0.65
    assert record.verdict == "inconclusive" and record.needs == "more than 400 prompts, or a further family"


def test_missing_scores_are_never_filled_with_zero():
    """D1, finding 6: 26 of 144 heads in exactly opposite order; zero filling would give +.97."""
    mean = np.linspace(1, 3, H)
    scored = [float(3 - mean[i]) + 1 if i < 26 else None for i in range(H)]
    record = judge(with_families(mean=mean, n07=scored), {**FAMILIES, "max_missing_share": 1.0})
    assert record.published_value < -0.8 and record.verdict == "fail" and record.n["heads"] == 26
    filled = np.where(np.arange(H) < 26, np.array([s or 0 for s in scored]), 0)
    assert stats.spearmanr(np.where(np.arange(H) < 26, mean, 0), filled).statistic > 0.9


def test_too_few_common_heads_are_insufficient():
    scored = [1.0 * i if i < CONFIG["min_heads"] - 1 else None for i in range(H)]
    record = judge(with_families(n07=scored), {**FAMILIES, "max_missing_share": 1.0})
    assert record.verdict == "insufficient" and record.reasons[0].startswith("n_heads")
    assert record.published_verdict == "none"


def test_a_constant_family_is_dropped():
    record = judge(with_families(n07=[1.0] * H), FAMILIES)
    assert record.verdict == "insufficient" and record.reasons[0].startswith("n_methods")


def test_the_learning_coefficient_is_read_as_theory_has_it_and_shown_both_ways():
    """High coefficients are members, as printed and as judged; that low ones are is shown beside."""
    mean = importance()
    record = judge(with_families(mean=mean, n10=mean), FAMILIES)
    assert record.published_value > 0.9 and record.published_verdict == "pass"
    assert record.estimate > 0.9 and record.verdict == "pass"
    both = record.companions["both_orientations"]["llc"]
    assert both == {"higher": record.estimate, "lower": pytest.approx(-record.estimate)}
    assert judge(with_families(mean=mean, n10=-mean), FAMILIES).verdict == "fail"


def test_a_family_with_many_gaps_is_left_out_with_its_reason():
    """Chains that disagree leave no coefficient: a fifth of the heads may lack one, not more."""
    mean = importance()
    gaps = int(CONFIG["max_missing_share"] * H)
    few = [None if i < gaps else float(x) for i, x in enumerate(mean)]
    record = judge(with_families(mean=mean, mediation=mean, n10=few), FAMILIES)
    assert record.n == {"prompts": 400, "clusters": record.n["clusters"], "heads": H - gaps, "methods": 3}
    assert record.companions["dropped"] == {} and record.notes == ()
    many = [None if i <= gaps else float(x) for i, x in enumerate(mean)]
    record = judge(with_families(mean=mean, mediation=mean, n10=many), FAMILIES)
    assert record.n["heads"] == H and record.companions["families"] == ["activation_patching", "mediation"]
    assert record.companions["dropped"] == {"llc": "no score for 20% of the heads, above 20%"}
    assert record.notes == ("llc left out: no score for 20% of the heads, above 20%",)
    assert pair(record, "activation_patching", "llc")["heads"] == H - gaps - 1  # still in the table of pairs


def test_a_head_that_lacks_one_prompt_has_no_score():
    effect = np.arange(12.0).reshape(3, 4) + 1
    effect[1, 2] = np.nan
    method = ScoringMethod("m", "magnitude", effect, 0.1)
    np.testing.assert_allclose(method.score(), [5, 6, np.nan, 8])
    np.testing.assert_allclose(method.resampled(np.array([[3, 0, 0]])), [[1, 2, np.nan, 4]])
    assert method.missing_share() == 0.25


# --- what acts through other heads --------------------------------------------------------------------------


def test_a_family_that_sees_only_what_is_written_is_judged_on_heads_that_write():
    """Half the heads act through others: about those the scores made from attributions hold noise alone."""
    mean, rng = importance() + 0.3, np.random.default_rng(4)
    writes = np.arange(H) < H // 2
    score = np.where(writes, mean, 0.01 * rng.random(H))
    record = judge(with_families(mean=mean, mediation=mean, writing=1.0 * writes, n07=score), FAMILIES)
    assert record.verdict == "pass" and record.estimate > 0.95
    patching = np.abs(np.array(with_families(mean=mean)["02"]["data"]["denoising"])[:400].mean(0))
    assert stats.spearmanr(patching, score).statistic < 0.7  # what it would be over all heads
    assert record.published_value < 0.8  # which is what the published value is
    measured = pair(record, "activation_patching", "ocse")
    assert measured["heads"] == H // 2 and measured["restricted_to"] == "heads that write to the answer"
    assert "restricted_to" not in pair(record, "activation_patching", "mediation")


def test_the_estimate_is_the_mean_over_pairs_of_families():
    rng, mean = np.random.default_rng(6), importance() + 0.3
    scores = {"n07": mean + rng.normal(0, 0.5, H), "n10": mean + rng.normal(0, 0.5, H)}
    record = judge(
        with_families(mean=mean, mediation=mean + 0.2, writing=1.0 * (np.arange(H) < 50), **scores), FAMILIES
    )
    names = ["activation_patching", "mediation", "ocse", "llc"]
    each = [pair(record, *two)["spearman"] for two in combinations(names, 2)]
    assert record.estimate == pytest.approx(np.mean(each), abs=1e-12)
    assert [pair(record, *two)["heads"] for two in combinations(names, 2)] == [H, 50, H, 50, H, 50]


def test_it_is_left_out_where_too_few_heads_write():
    mean = importance()
    few = 1.0 * (np.arange(H) < CONFIG["min_heads"] - 1)
    record = judge(
        with_families(mean=mean, mediation=mean, writing=few, n07=np.random.default_rng(0).random(H)), FAMILIES
    )
    assert record.companions["dropped"] == {"ocse": "sees only heads that write to the answer, which 9 do; 10 needed"}
    assert record.verdict == "pass" and record.n["methods"] == 2
    alone = judge(with_families(mean=mean, writing=few, n07=mean), FAMILIES)
    assert alone.verdict == "insufficient" and alone.reasons[0].startswith("n_methods: 1 families")


# --- the table of pairs -------------------------------------------------------------------------------------


def test_every_pair_of_methods_has_its_correlation_and_intervals():
    rng, mean = np.random.default_rng(1), importance()
    docs = with_families(mean=mean, mediation=mean, n07=mean + rng.normal(0, 0.3, H), n10=mean + rng.normal(0, 0.3, H))
    docs["08"] = {"data": {"effect": effects(mean, 20)}}
    record = judge(docs)
    assert record.companions["not_run"] == []
    methods = [*record.companions["orientation"]]
    assert len(methods) == 8 and len(record.companions["pairs"]) == 28
    assert [p["methods"] for p in record.companions["pairs"]] == [list(two) for two in combinations(methods, 2)]
    for p in record.companions["pairs"]:
        low, high = p["ci90_heads"]
        assert low < p["spearman"] < high
        if p["prompt_interval_covers"]:
            low, high = p["ci90_prompts"]
            assert low <= p["spearman"] <= high
    fixed = pair(record, "ocse", "llc")
    assert fixed["prompt_interval_covers"] == [] and fixed["ci90_prompts"] is None and fixed["disattenuated"] is None
    half = pair(record, "activation_patching", "llc")
    assert half["prompt_interval_covers"] == ["activation_patching"] and half["ci90_prompts"] is not None
    assert half["reliability"]["llc"] is None and half["reliability"]["activation_patching"] > 0.9
    both = pair(record, "activation_patching", "attribution_patching")
    assert both["prompt_interval_covers"] == ["activation_patching", "attribution_patching"]


def test_agreement_of_attribution_patching_with_exact_patching():
    """AUROC of the estimate for the exact top k, and the other way round, against scikit-learn."""
    mean = importance()
    docs = with_families(mean=mean)
    docs["08"] = {"data": {"effect": effects(mean * np.random.default_rng(2).uniform(0.3, 1.7, H), 21)}}
    found = pair(judge(docs), "activation_patching", "attribution_patching")["top_k"]
    exact, estimated = (
        np.abs(np.array(docs[number]["data"][field])[:400].mean(0))
        for number, field in (("02", "denoising"), ("08", "effect"))
    )
    assert found["k"] == 7
    top = [np.isin(np.arange(H), np.argsort(-score)[:7]) for score in (exact, estimated)]
    assert found["auroc_for_top_k_of"] == pytest.approx(
        {
            "activation_patching": roc_auc_score(top[0], estimated),
            "attribution_patching": roc_auc_score(top[1], exact),
        }
    )
    assert 0.6 < found["auroc_for_top_k_of"]["activation_patching"] < 1
    assert found["jaccard"] == pytest.approx((top[0] & top[1]).sum() / (top[0] | top[1]).sum())


def test_disattenuated_rho_undoes_the_noise_of_few_prompts():
    """Two noisy measurements of one truth: rho is far from 1, and close to it once freed from measurement noise.

    Effects are far from 0, where dropping the sign would make the noise one-sided.
    """
    mean = np.random.default_rng(9).normal(5, 0.5, H)
    docs = with_families(mean=mean)
    docs["02"]["data"]["denoising"] = effects(mean, 1, noise=8.0)
    docs["21"]["data"]["effect"] = effects(mean, 3, noise=8.0)
    measured = pair(judge(docs), "activation_patching", "knockouts")
    assert measured["spearman"] < 0.75
    assert measured["disattenuated"] == pytest.approx(1.0, abs=0.15)
    expected = measured["spearman"] / np.sqrt(np.prod(list(measured["reliability"].values())))
    assert measured["disattenuated"] == pytest.approx(expected)


def test_rank_reliability_is_that_of_normal_theory():
    """Signal variance 1, noise variance 100 on 400 prompts: reliability of the mean is 1 / (1 + 100/400) = .8."""
    truth = np.random.default_rng(0).normal(5, 1, 2000)
    table = truth + np.random.default_rng(1).normal(0, 10, (400, 2000))
    halves = half_splits(400, 20, seed=0)
    found = rank_reliability(ScoringMethod("m", "higher", table, 0.0), halves, np.arange(2000))
    assert found == pytest.approx(0.8, abs=0.03)  # Spearman of normal halves is within .02 of Pearson
    assert rank_reliability(ScoringMethod("m", "higher", truth, 0.0), halves, np.arange(2000)) is None


# --- ties and confounds -------------------------------------------------------------------------------------


def test_negative_heads_count_by_magnitude():
    mean = importance()
    signs = np.where(np.arange(H) % 2, 1, -1)
    assert judge(with_families(mean=mean * signs, n07=mean), FAMILIES).published_value > 0.9


def test_effects_under_one_percent_tie():
    tie = CONFIG["tie_fraction"] * 5.0
    method = ScoringMethod("m", "magnitude", np.array([[0.9 * tie, -0.5 * tie, 2 * tie, -3 * tie]]), tie)
    np.testing.assert_allclose(method.score(), [0, 0, 2 * tie, 3 * tie])
    np.testing.assert_allclose(method.score(collapse=False), tie * np.array([0.9, 0.5, 2, 3]))


def test_a_confound_with_output_norm_shows_in_the_partial_correlation():
    """Finding 7: methods that only scale with output norm agree; given the norm nothing is left."""
    rng = np.random.default_rng(2)
    norm = rng.lognormal(0, 1.25, H)
    docs = with_families(mean=norm * rng.lognormal(0, 0.8, H))
    docs["21"]["data"]["effect"] = effects(norm * rng.lognormal(0, 0.8, H), 9)
    docs["26"]["data"]["output_norm"] = np.tile(norm, (600, 1)).tolist()
    measured = pair(judge(docs), "activation_patching", "knockouts")
    assert measured["spearman"] > 0.5 and abs(measured["given_output_norm"]) < 0.2


def test_direct_attribution_is_compared_on_heads_that_write_to_the_answer():
    mean = importance() + 0.3
    docs = with_families(mean=mean)
    attribution = np.where(np.arange(H) < 40, mean, 0.0)
    docs["03"]["data"]["attribution"] = effects(attribution, 11, noise=0.01)
    record = judge(docs)
    assert record.companions["heads_that_write_to_the_answer"] == 40
    measured = pair(record, "activation_patching", "direct_logit_attribution")
    assert measured["heads"] == 40 and measured["spearman"] > 0.9 and "restricted_to" in measured


def test_raw_icc_of_different_units_is_near_zero_and_standardised_is_not():
    mean = importance()
    record = judge(with_families(mean=mean, n07=mean * 1000 + 500), FAMILIES)
    agreement = record.companions["agreement"]
    assert agreement["icc_agreement_raw"] < 0.05 and agreement["icc_consistency_z"] > 0.9


def test_icc_of_a_pair_is_pingouins():
    """Pairs take it from the mean squares, for speed; the published one of all families is pingouin's."""
    record = judge(with_families(mean=importance(), mediation=importance(1)), FAMILIES)
    pair = record.companions["pairs"][0]
    docs = with_families(mean=importance(), mediation=importance(1))
    subject = Evidence(docs, COMMON)
    methods = {method.name: method for method in c12.scoring_methods(subject, FAMILIES, "families")}
    table = np.column_stack([methods[name].score() for name in pair["methods"]])
    assert pair["icc_agreement_raw"] == pytest.approx(intraclass_correlation(table)["ICC(A,1)"].value, abs=1e-10)
    z = stats.zscore(table, axis=0, ddof=1)
    assert pair["icc_consistency_z"] == pytest.approx(intraclass_correlation(z)["ICC(C,1)"].value, abs=1e-10)
    agreement = record.companions["agreement"]
    assert agreement["icc_agreement_raw"] == pytest.approx(pair["icc_agreement_raw"], abs=1e-10)


def test_no_behaviour_is_insufficient():
    mean = importance()
    docs = with_families(mean=mean, n07=mean)
    docs["01"]["data"]["clean_logit_diff"] = (-np.array(docs["01"]["data"]["clean_logit_diff"])).tolist()
    assert judge(docs, FAMILIES).reasons[0].startswith("behaviour_absent")


@pytest.mark.slow
def test_order_of_prompts_does_not_matter_and_runs_repeat():
    mean = importance()
    docs = with_families(mean=mean, mediation=mean, n07=mean, n10=mean)
    first = judge(docs)
    assert first == judge(docs) and first == judge(shuffled(docs))


def test_tied_heads_are_never_selected_into_the_top():
    scores = np.array([[0, 0, 0, 5.0], [0, 0, 4.0, 0]])
    assert select_top(scores, 3, zero_is_nothing=True).sum() == 2
    assert select_top(scores, 3, zero_is_nothing=False).sum() == 6


def test_kappa_of_selections_oracle():
    """Wikipedia's table [[20, 5], [10, 15]] has kappa .4; two empty selections have none."""
    first = np.repeat([1, 1, 0, 0], [20, 5, 10, 15]).astype(bool)
    second = np.repeat([1, 0, 1, 0], [20, 5, 10, 15]).astype(bool)
    assert kappa_of_selections(first, second) == pytest.approx(0.4)
    assert np.isnan(kappa_of_selections(np.zeros(9, bool), np.zeros(9, bool)))
