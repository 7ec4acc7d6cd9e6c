"""Every numeric case of tests/data/oracles.json against the function that computes it.

A handler receives the case's input and returns a value of the shape of `expected`; it raises Insufficient where
`expected` is "insufficient".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibrations import s1_distributional_characterization as s1
from calibrations import statistics as st
from calibrations.statistics import Insufficient

ORACLES = json.loads((Path(__file__).parents[1] / "data" / "oracles.json").read_text())

Input = dict[str, Any]
HANDLERS: list[tuple[str, Callable[[Input], Any]]] = []  # (id or id prefix ending in *, handler)

# Published thresholds, as the configuration states them.
C13 = {"invariant": 0.01, "sensitive": 0.06}
C30 = {"excellent": 0.05, "acceptable": 0.10, "problematic": 0.20}
M3B = {"certified": 0.95, "contingent": 0.5, "circuit_fraction": 0.5}


def computes(*patterns: str) -> Callable:
    def register(handler: Callable[[Input], Any]) -> Callable[[Input], Any]:
        HANDLERS.extend((pattern, handler) for pattern in patterns)
        return handler

    return register


def handlers_of(identifier: str) -> list[Callable[[Input], Any]]:
    exact = [handler for pattern, handler in HANDLERS if pattern == identifier]
    prefix = [h for pattern, h in HANDLERS if pattern.endswith("*") and identifier.startswith(pattern[:-1])]
    return exact or prefix


def verdict_of(compute: Callable[[], Any]) -> str:
    try:
        compute()
    except Insufficient:
        return "insufficient"
    return "reported"


# --- intraclass correlation, alpha, split half -------------------------------------------------------------------


@computes(
    "icc_shrout_fleiss_1979_precise",
    "icc_pingouin_wine",
    "icc_perfect_agreement",
    "icc_bias_splits_A_from_C",
    "icc_no_target_variance",
)
def icc(case: Input) -> Any:
    return {name: row.value for name, row in matrix_icc(case).items()}


def matrix_icc(case: Input) -> dict[str, st.IntraclassCorrelation]:
    return st.intraclass_correlation(case["matrix_targets_x_raters"])


@computes("icc_shrout_fleiss_F")
def icc_f(case: Input) -> Any:
    row = matrix_icc(case)["ICC(C,1)"]
    return {"F": row.f, "df1": row.df1, "df2": row.df2, "p": row.p}


@computes("icc_shrout_fleiss_CI")
def icc_intervals(case: Input) -> Any:
    table = matrix_icc(case)
    return [table[name].interval for name in ("ICC(1,1)", "ICC(A,1)", "ICC(C,1)")]


@computes("icc_C1_exact_F_CI")
def icc_consistency_interval(case: Input) -> Any:
    return matrix_icc(case)["ICC(C,1)"].interval


@computes("alpha_pingouin_pairwise")
def alpha_pairwise(case: Input) -> Any:
    scores = np.array(case["matrix_subjects_x_items"], dtype=float)
    return st.cronbach_alpha(scores, missing=case["nan_policy"]).value


@computes("alpha_feldt_ci_pingouin_listwise_bug")
def feldt(case: Input) -> Any:
    def interval(n: int) -> st.Interval:
        return st.feldt_interval(case["alpha"], n, case["k_items"], level=0.95)

    return {
        "pingouin_0_7_listwise_ci": interval(case["n_before_deletion"]),
        "correct_ci": interval(case["n_used"]),
    }


@computes("spearman_brown_*")
def spearman_brown(case: Input) -> Any:
    return st.spearman_brown(case["r_half"])


# --- agreement ---------------------------------------------------------------------------------------------------


@computes("kendall_w_siegel_no_ties", "kendall_w_siegel_ties", "kendall_w_ties_lib")
def kendall_w(case: Input) -> Any:
    result = st.kendall_w(case["ranks_raters_x_items"])
    return {
        "W": result.w,
        "W_tie_corrected": result.w,
        "W_uncorrected": result.w_uncorrected,
        "chi2": result.chi2,
    }


@computes("krippendorff_missing_raters")
def krippendorff(case: Input) -> Any:
    ratings = np.array(case["raters_x_units_null_is_missing"], dtype=float)
    return {level: st.krippendorff_alpha(ratings, level) for level in ("interval", "nominal")}


@computes("spearman_wikipedia_iq_tv", "spearman_constant")
def spearman(case: Input) -> Any:
    result = st.spearman(case["x"], case["y"])
    return {"rho": result.value, "p_t_approx": result.p}


@computes("spearman_exact_perm_n4")
def spearman_exact(case: Input) -> Any:
    def test(alternative: st.PermutationTest) -> st.PermutationTest:
        return st.spearman_permutation(case["x"], case["y"], n_resamples=1000, seed=0, alternative=alternative)

    return {
        "rho": test("greater").statistic,
        "p_one_sided_exact": test("greater").p,
        "p_two_sided_exact": test("two-sided").p,
    }


@computes("c12_zero_fill_artefact")
def zero_fill(case: Input) -> Any:
    scored, n = case["n_scored"], case["n_heads"]
    scores = np.full((n, 2), np.nan)
    scores[:scored, 0], scores[:scored, 1] = np.arange(1, scored + 1), np.arange(scored, 0, -1)
    return {
        "rho_zero_filled": st.mean_spearman(np.nan_to_num(scores)),
        "rho_common_support": st.mean_spearman(st.usable_scores(scores).scores),
    }


# --- one-way analysis of variance --------------------------------------------------------------------------------


@computes("anova_plantgrowth_effects", "eta2_identical_groups")
def one_way(case: Input) -> Any:
    table = st.one_way_effects(case["groups"])
    result = {
        "eta2": table.eta2,
        "eps2": table.epsilon2,
        "omega2": table.omega2,
        "F_classic": table.f,
        "published_label": st.c13_label(table.eta2, **C13),
    }
    return result | {"welch_adj_omega2": st.welch_anova(case["groups"]).adjusted_omega2}


@computes("welch_*")
def welch(case: Input) -> Any:
    result = st.welch_anova(case["groups"])
    return {
        "F": result.f,
        "df1": result.df_between,
        "df2": result.df_within,
        "p": result.p,
        "np2": st.one_way_effects(case["groups"]).eta2,
    }


@computes("equivalence_oneway_plantgrowth")
def equivalence(case: Input) -> Any:
    margin = case["f2_margin"] / (1 + case["f2_margin"])
    equal = case["use_var"] == "equal"
    return {"p": st.equivalence_test(case["groups"], margin, equal_variances=equal).p}


# --- nomological validity ----------------------------------------------------------------------------------------


@computes("c23_role_depth_ties")
def role_depth(case: Input) -> Any:
    test = st.role_depth(case["layers"], case["role_ordinals"], n_resamples=9999, seed=0)
    recoded = [3 if role == 4 else role for role in case["role_ordinals"]]
    assert st.role_depth(case["layers"], recoded, n_resamples=9999, seed=0) == test
    return {"rho": test.statistic, "p_one_sided_exact": test.p}


@computes("c23_min_p_three_heads")
def role_floor(case: Input) -> Any:
    sizes = case["role_group_sizes"]
    roles = np.repeat(np.arange(len(sizes)), sizes)
    return {
        "min_one_sided_p": st.minimum_role_p(sizes),
        "verdict": verdict_of(lambda: st.role_depth(np.arange(len(roles)), roles, n_resamples=9999, seed=0)),
    }


@computes("c23_density_example")
def density(case: Input) -> Any:
    result = st.layer_density(case["heads_per_layer"], 12, n_resamples=200, seed=0)
    return {"rho": result.rho, "p_t_approx": result.p_t_approximation}


# --- multiplicity ------------------------------------------------------------------------------------------------


@computes("m93_*")
def survival(case: Input) -> Any:
    result = st.survival(case["p"], case.get("alpha", 0.05))
    return {
        "nominal": result.nominal,
        "bh_survive": result.bh_survive,
        "survival_rate": result.rate,
        "published_verdict": st.published_verdict(result.rate, ">", 0.5),
    }


@computes("p_from_ci")
def p_from_interval(case: Input) -> Any:
    result = st.approximate_p(case["value"], case["baseline"], tuple(case["ci"]))
    return {"se": result.standard_error, "z": result.z, "p": result.p}


@computes("p_to_e_calibrator")
def e_value(case: Input) -> Any:
    return st.p_to_e(case["p"], case["kappa"])


# --- counts, detection, discrimination ---------------------------------------------------------------------------


@computes("mcnemar_*")
def mcnemar(case: Input) -> Any:
    b, c = (case["table"][0][1], case["table"][1][0]) if "table" in case else (case["b"], case["c"])
    result = st.mcnemar(b, c)
    return {
        "p_exact": result.p_exact,
        "chi2_cc": result.chi2_corrected,
        "chi2_no_cc": result.chi2_uncorrected,
    }


@computes("dprime_0.8_0.2")
def d_prime_rates(case: Input) -> Any:
    d_prime, criterion = st.d_prime_of_rates(case["hit_rate"], case["fa_rate"])
    return {"d_prime": d_prime, "criterion": criterion}


@computes("dprime_loglinear_*")
def d_prime_counts(case: Input) -> Any:
    result = st.signal_detection(**case)
    return {"d_prime_loglinear": result.d_prime_loglinear, "d_prime_raw": result.d_prime_raw}


@computes("dprime_seed_effect_size", "dprime_zero_sd")
def d_prime_effect(case: Input) -> Any:
    groups = case["circuit_effects"], case["random_effects"]
    return {"d_prime_rms_sd": st.d_prime_rms(*groups), "cohen_d_pooled": st.cohen_d(*groups)}


@computes("far_vs_fdr")
def false_alarm_rate(case: Input) -> Any:
    result = st.false_alarms(**case)
    return {
        "one_minus_precision": result.one_minus_precision,
        "true_false_alarm_rate": result.false_alarm_rate,
    }


@computes("jaccard_*")
def overlap(case: Input) -> Any:
    result = st.set_overlap(case["circuit"], case["published"])
    return {"size_ratio_seed": result.size_ratio, "jaccard": result.jaccard, "dice": result.dice}


# --- moments -----------------------------------------------------------------------------------------------------


@computes("effective_rank_*")
def rank(case: Input) -> Any:
    spectrum = np.linalg.svd(case["matrix"], compute_uv=False) if "matrix" in case else case["singular_values"]
    result = st.effective_rank_of_spectrum(spectrum)
    return {
        "entropy_rank": result.entropy,
        "participation_singular": result.participation_singular,
        "participation_eigen": result.participation_eigen,
        "stable_rank": result.stable,
    }


@computes("skew_*")
def skewness(case: Input) -> Any:
    names = ("g1_type1", "G1_type2", "b1_type3")
    return {name: st.skewness(case["x"], kind) for kind, name in enumerate(names, start=1)}


@computes("kurtosis_types")
def kurtosis(case: Input) -> Any:
    names = ("g2_type1_excess", "G2_type2_excess", "b2_type3_excess")
    return {name: st.excess_kurtosis(case["x"], kind) for kind, name in enumerate(names, start=1)}


@computes("cv_*")
def cv(case: Input) -> Any:
    return {f"cv_ddof{ddof}": st.coefficient_of_variation(case["x"], ddof) for ddof in (0, 1)}


@computes("hodges_lehmann_one_sample")
def hodges_lehmann(case: Input) -> Any:
    return st.hodges_lehmann(case["x"])


@computes("c30_example")
def seed_variance(case: Input) -> Any:
    thetas, pool = case["faithfulness_by_seed"], case["pool_fraction"]
    published = st.coefficient_of_variation(thetas, ddof=0)
    return {
        "cv_ddof0": published,
        "cv_ddof1": st.coefficient_of_variation(thetas, ddof=1),
        "fpc_corrected_cv": st.coefficient_of_variation(thetas, ddof=1, pool_fraction=pool),
        "published_label": st.c30_label(published, **C30),
    }


# --- ratio of means and bootstrap --------------------------------------------------------------------------------


@computes("bootstrap_sd_of_mean")
def bootstrap_sd(case: Input) -> Any:
    x = np.array(case["x"], dtype=float)
    draws = st.bootstrap_means(st.bootstrap_counts(x.size, 20_000, seed=0), x)
    return {"ideal_boot_sd": draws.std(ddof=1), "se_classic": st.mean_test(x[:, None]).standard_error[0]}


@computes("bootstrap_ratio_degenerate")
def bootstrap_proportional(case: Input) -> Any:
    counts = st.bootstrap_counts(len(case["D"]), 1000, seed=0)
    point = st.ratio_of_means(case["F"], case["D"]).value
    draws = st.bootstrap_ratios(counts, case["F"], case["D"])
    return {"point": point, "ci": st.percentile_interval(draws), "sigma": draws.std(ddof=1)}


@computes("percentile_coverage_normal_mean_n*")
def percentile_coverage(case: Input) -> Any:
    n, blocks, runs = case["n"], 30, 100
    rng = np.random.default_rng(7)
    covered = 0
    for block in range(blocks):  # one count matrix serves a block of simulated samples
        counts = st.bootstrap_counts(n, case["B"], seed=block)
        draws = st.bootstrap_means(counts, rng.normal(size=(n, runs)))
        intervals = [st.percentile_interval(draws[:, run], case["nominal"]) for run in range(runs)]
        covered += sum(low < 0 < high for low, high in intervals)
    return {"coverage": covered / (blocks * runs)}


@computes("ratio_of_means_fieller", "ratio_vs_mean_of_ratios")
def ratio(case: Input) -> Any:
    result = st.ratio_of_means(case["F"], case["D"])
    values = {
        "ratio_of_means": result.value,
        "mean_of_ratios": st.mean_of_ratios(case["F"], case["D"]).value,
        "linearised_se": result.standard_error,
    }
    return values | ({"fieller": result.fieller(case["conf"])} if "conf" in case else {})


@computes("ratio_denominator_not_separated")
def ratio_gate(case: Input) -> Any:
    return {
        "t_of_denominator": st.ratio_of_means(case["F"], case["D"]).denominator_t,
        "verdict": verdict_of(lambda: st.reportable_ratio(case["F"], case["D"])),
    }


# --- permutation -------------------------------------------------------------------------------------------------


@computes("s1_ratio_exact")
def attribution_ratio(case: Input) -> Any:
    member, scores = np.array(case["in_circuit"], bool), np.array(case["abs_attribution"])
    test = st.head_label_permutation(st.mean_contrast(scores), member, n_resamples=9999, seed=0)
    ratio = s1._ratio(scores, SimpleNamespace(in_circuit=member))
    return {"ratio": ratio, "p_exact": test.p, "published_verdict": st.published_verdict(ratio, ">", 2.0)}


# --- published rules ---------------------------------------------------------------------------------------------


@computes("c17_off_diag_near_zero", "c17_linear_contrast", "c17_one_task")
def discriminant(case: Input) -> Any:
    matrix = case.get("effect_matrix_source_x_test", [[0.5]])
    return {
        "ratio_by_source": st.discriminant_ratios(matrix),
        "difference_by_source": np.diag(matrix) - st.off_diagonal_means(matrix),
        "diag_minus_3_off": np.diag(matrix) - 3 * st.off_diagonal_means(matrix),
    }


@computes("c17_null_pass_prob")
def discriminant_null(case: Input) -> Any:
    return {"P_ratio_gt_3": st.discriminant_null_pass(case["n_tasks"], 3.0)}


@computes("e1b_complement")
def ablation_invariance(case: Input) -> Any:
    largest = st.divergence(case)
    verdict = st.published_verdict(1 - largest, ">", 0.8)
    return {"value": 1 - largest, "max_divergence": largest, "published_verdict": verdict}


@computes("m3b_labels")
def certified(case: Input) -> Any:
    result = st.m3b_labels(case["pass_counts_of_20"], 20, **M3B)
    return {
        "labels": result.labels,
        "fraction_certified": result.fraction_certified,
        "published_verdict": result.verdict,
    }


@computes("fpc_m3b")
def t_of_a_head(case: Input) -> Any:
    return {"t": st.mean_test(np.array(case["x"])[:, None]).t[0]}


@computes("pelt_*")
def pelt(case: Input) -> Any:
    runs = case.get("signal_runs")
    signal = np.concatenate([np.full(n, v) for v, n in runs]) if runs else case["signal"]
    return st.change_points(signal, case.get("pen", 10), min_size=case.get("min_size", 2))


# --- comparison --------------------------------------------------------------------------------------------------

INSUFFICIENT_CASES = {
    "icc_no_target_variance": "zero_variance",
    "spearman_brown_r_minus1": "ratio_undefined",
    "spearman_constant": "zero_variance",
    "m93_no_nominal": "ratio_undefined",
    "m93_empty": "not_run",
    "mcnemar_no_discordant": "zero_variance",
    "dprime_zero_sd": "zero_variance",
    "jaccard_empty": "n_heads",
    "effective_rank_zero": "zero_variance",
    "skew_constant": "zero_variance",
    "c17_one_task": "n_tasks",
    "pelt_too_short": "not_run",
}
PROSE_KEYS = {"verdict_rule"}  # advice to the reader of the case, not a value


def rounding(expected: float) -> float:
    """Half a unit of the tenth significant digit: the file stores expected values with ten."""
    return 0.5 * 10.0 ** (math.floor(math.log10(abs(expected))) - 9) if expected else 1e-15


def assert_matches(got: Any, expected: Any, tolerance: float) -> None:
    if isinstance(expected, dict):
        for key in expected.keys() - PROSE_KEYS:
            assert_matches(got[key], expected[key], tolerance)
    elif isinstance(expected, list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_matches(one, other, tolerance)
    elif expected == "inf":
        assert got == math.inf
    elif isinstance(expected, str):
        assert got == expected
    else:
        assert abs(float(got) - expected) <= tolerance + rounding(expected), (got, expected)


@pytest.mark.parametrize("case", ORACLES, ids=[case["id"] for case in ORACLES])
def test_oracle(case: dict) -> None:
    (handler,) = handlers_of(case["id"])
    if case["expected"] == "insufficient":
        with pytest.raises(Insufficient) as raised:
            handler(case["input"])
        assert raised.value.reason == INSUFFICIENT_CASES[case["id"]]
    else:
        got = handler(case["input"])
        if not isinstance(case["expected"], dict) and isinstance(got, dict):
            pytest.fail("the handler returned more than the expected value")
        assert_matches(got, case["expected"], case["tolerance"])


def test_every_oracle_has_exactly_one_handler() -> None:
    identifiers = [case["id"] for case in ORACLES]
    assert len(identifiers) == len(set(identifiers)) == 69
    assert [i for i in identifiers if len(handlers_of(i)) != 1] == []
    unused = [p for p, _ in HANDLERS if not any(i == p or i.startswith(p.rstrip("*")) for i in identifiers)]
    assert unused == []
    insufficient = {case["id"] for case in ORACLES if case["expected"] == "insufficient"}
    assert insufficient == set(INSUFFICIENT_CASES)


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_wrong_expectation_fails(factor: float) -> None:
    case = next(case for case in ORACLES if case["id"] == "ratio_of_means_fieller")
    with pytest.raises(AssertionError):
        assert_matches(ratio(case["input"])["fieller"][0], factor * case["expected"]["fieller"][0], case["tolerance"])
