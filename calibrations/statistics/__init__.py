"""Shared estimators of the calibrations: numpy, scipy, statsmodels, scikit-learn and pingouin, no model
and no torch.

Functions raise `Insufficient` if the data support no number; an estimate is never NaN, a clipped value or a default. Only arrays
over resamples may hold NaN, which intervals drop (up to 1 %) or refuse.
"""

from calibrations.statistics.anova import (
    Equivalence,
    OneWayEffects,
    UnitsEffect,
    WelchAnova,
    clustered_f,
    equivalence_test,
    eta2_interval,
    eta2_permutation,
    noncentral_f_cdf,
    one_way_effects,
    split_groups,
    units_effect,
    welch_anova,
)
from calibrations.statistics.arrays import Interval
from calibrations.statistics.bootstrap import (
    bootstrap_counts,
    bootstrap_means,
    bootstrap_ratio_errors,
    bootstrap_ratios,
    percentile_interval,
    pooled_if_single,
    usable_draws,
    weighted_sums,
)
from calibrations.statistics.change_points import change_points
from calibrations.statistics.clusters import (
    ClusteredMean,
    TTest,
    clustered_mean,
    covariance_of_means,
    mean_test,
    variances_of_means,
)
from calibrations.statistics.concordance import Concordance, kendall_w, kendall_w_p, krippendorff_alpha
from calibrations.statistics.detection import (
    Discrimination,
    FalseAlarms,
    SignalDetection,
    auroc_interval,
    d_prime_of_rates,
    discrimination,
    false_alarms,
    signal_detection,
    wilson_interval,
)
from calibrations.statistics.effect_size import cliff_delta, cohen_d, cohen_d_interval, d_prime_rms, hedges_g
from calibrations.statistics.effective_rank import EffectiveRank, effective_rank_of_spectrum
from calibrations.statistics.errors import INSUFFICIENT_REASONS, Insufficient, or_none, or_reason
from calibrations.statistics.moments import (
    coefficient_of_variation,
    cv_interval,
    cv_of_variance,
    excess_kurtosis,
    hodges_lehmann,
    sd_bounds,
    skewness,
    student_kurtoses,
)
from calibrations.statistics.multiplicity import (
    ApproximateP,
    StepDown,
    Survival,
    adjusted_p,
    approximate_p,
    e_benjamini_hochberg,
    false_hypotheses,
    intersection_union_p,
    or_clause_p,
    p_to_e,
    partial_conjunction_p,
    step_down_max_t,
    storey_pi0,
    survival,
)
from calibrations.statistics.overlap import (
    SetOverlap,
    overlap_p,
    set_overlap,
    top_k_mask,
)
from calibrations.statistics.paired import McNemar, mcnemar
from calibrations.statistics.permutation import (
    PermutationTest,
    arrangement_count,
    arrangement_test,
    arrangements,
    edge_contrast,
    head_label_permutation,
    head_relabellings,
    mean_contrast,
    permutation_p,
    plus_one_p,
    rank_among,
    require_attainable,
    sign_flip_test,
    threshold_p,
    two_sample_permutation,
)
from calibrations.statistics.published import (
    CertifiedStability,
    LayerDensity,
    c13_label,
    c16_split_half,
    c30_label,
    c36_label,
    discriminant_null_pass,
    discriminant_ratios,
    divergence,
    layer_density,
    m3b_equivalent_t,
    m3b_labels,
    minimum_role_p,
    off_diagonal_means,
    published_verdict,
    role_depth,
)
from calibrations.statistics.rank_correlation import (
    Correlation,
    UsableScores,
    disattenuated,
    jonckheere_terpstra,
    kendall_tau_b,
    mean_spearman,
    mean_spearman_draws,
    mean_spearman_of_pairs,
    mean_spearman_permutation,
    partial_spearman,
    somers_d,
    spearman,
    spearman_interval,
    spearman_matrix,
    spearman_permutation,
    usable_scores,
)
from calibrations.statistics.ratio import (
    MINIMUM_DENOMINATOR_T,
    MeanOfRatios,
    Ratio,
    mean_of_ratios,
    ratio_of_means,
    reportable_ratio,
)
from calibrations.statistics.reliability import (
    IntraclassCorrelation,
    Reliability,
    SplitHalf,
    agreement_p,
    cronbach_alpha,
    feldt_interval,
    generalisability,
    generalisability_p,
    half_splits,
    intraclass_correlation,
    mcdonald_omega,
    mean_inter_item_correlation,
    single_rating_correlations,
    spearman_brown,
    split_half_profile,
)
from calibrations.statistics.simultaneous import simultaneous_intervals
