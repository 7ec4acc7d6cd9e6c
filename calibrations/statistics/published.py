"""The published rules of the calibrations on point estimates: values, labels and verdicts, without inference.

Thresholds are arguments without defaults, because the published thresholds stand in the configuration.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import finite, paired
from calibrations.statistics.errors import Insufficient
from calibrations.statistics.permutation import (
    Alternative,
    PermutationTest,
    head_label_permutation,
    require_attainable,
)
from calibrations.statistics.rank_correlation import spearman, spearman_permutation
from calibrations.statistics.reliability import spearman_brown

Rule = Literal[">", ">=", "<", "<="]
COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True)
class CertifiedStability:
    """M3b's published outcome: a label per head, the share certified, pass or fail."""

    labels: list[str]
    fraction_certified: float
    verdict: Literal["pass", "fail"]


def published_verdict(value: float, rule: Rule, threshold: float) -> Literal["pass", "fail"]:
    """ "pass" if the point estimate meets the published rule ("> 0.5" is rule ">" and threshold .5), else "fail"."""
    return "pass" if COMPARISONS[rule](value, threshold) else "fail"


def c13_label(eta2: float, *, invariant: float, sensitive: float) -> str:
    """invariant below `invariant` (.01), template-sensitive above `sensitive` (.06), moderate between (ends included)."""
    if eta2 < invariant:
        return "invariant"
    return "template-sensitive" if eta2 > sensitive else "moderate"


def c30_label(cv: float, *, excellent: float, acceptable: float, problematic: float) -> str:
    """excellent below .05, acceptable below .10, problematic above .20, else marginal (our word: the published rule has none)."""
    if cv < excellent:
        return "excellent"
    if cv < acceptable:
        return "acceptable"
    return "problematic" if cv > problematic else "marginal"


def c36_label(delta: float, *, adds_value: float, substantial: float) -> str:
    """substantial above `substantial` (.1), adds value above `adds_value` (0), else none."""
    if delta > substantial:
        return "substantial"
    return "adds value" if delta > adds_value else "none"


def c16_split_half(scores: ArrayLike) -> float:
    """Published split-half: Spearman-Brown of the correlation between prompts 2i and 2i+1. `scores` [prompt].

    Its expectation is 0 for exchangeable prompts, so report it but never gate by it. Raises
    Insufficient("n_prompts") for fewer than 3 pairs, ("zero_variance") if one half is constant.
    """
    y = finite("scores", scores, ndim=1)
    first, second = y[0 : y.size // 2 * 2 : 2], y[1::2]
    if first.size < 3:
        raise Insufficient("n_prompts", f"{first.size} pairs of prompts; at least 3 needed")
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        raise Insufficient("zero_variance", "a half is constant")
    return spearman_brown(float(np.corrcoef(first, second)[0, 1]))


def divergence(thetas: Mapping[str, float | None]) -> float:
    """M98's published value: max - min of theta over ablation methods; E1b is 1 minus it.

    Raises Insufficient("not_run") if a method is missing (None or NaN), with its name and the divergence of the others,
    and ("n_methods") for fewer than 2 methods.
    """
    if len(thetas) < 2:
        raise Insufficient("n_methods", f"{len(thetas)} ablation method; a divergence needs at least 2")
    known = {name: value for name, value in thetas.items() if value is not None and math.isfinite(value)}
    missing = sorted(set(thetas) - set(known))
    if missing:
        rest = f"; max - min of the others is {max(known.values()) - min(known.values()):.4g}" if known else ""
        raise Insufficient("not_run", f"no theta for {', '.join(missing)}{rest}")
    return max(known.values()) - min(known.values())


def m3b_labels(
    pass_counts: Sequence[int],
    n_subsamples: int,
    *,
    certified: float,
    contingent: float,
    circuit_fraction: float,
) -> CertifiedStability:
    """M3b's labels. `pass_counts`: for each head, how many of `n_subsamples` had a positive mean.

    A head is certified if its rate is at least `certified` (.95), contingent if at least `contingent` (.50), else unstable.
    The circuit passes if at least `circuit_fraction` (.5) of the heads are certified. Counts are compared, not rounded rates.
    Raises Insufficient("n_heads") without heads.
    """
    if not pass_counts:
        raise Insufficient("n_heads", "no heads")
    need = {name: math.ceil(share * n_subsamples - 1e-9) for name, share in (("c", certified), ("k", contingent))}
    labels = [
        "certified" if count >= need["c"] else "contingent" if count >= need["k"] else "unstable"
        for count in pass_counts
    ]
    fraction = labels.count("certified") / len(labels)
    return CertifiedStability(labels, fraction, published_verdict(fraction, ">=", circuit_fraction))


def m3b_equivalent_t(pass_rate: float, fraction: float) -> float:
    """t at which a share `pass_rate` of subsamples of size `fraction` f has a positive mean: z(pass_rate) sqrt((1-f)/f).

    It is .822 for 95 % of 80 % subsamples.
    """
    return float(scipy.stats.norm.ppf(pass_rate) * math.sqrt((1 - fraction) / fraction))


def _task_matrix(effects: ArrayLike) -> np.ndarray:
    matrix = finite("effects", effects, ndim=2)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"effects have shape {matrix.shape}; expected [source task, test task]")
    if len(matrix) < 2:
        raise Insufficient("n_tasks", f"{len(matrix)} task; discriminant validity needs at least 2")
    return matrix


def off_diagonal_means(effects: ArrayLike) -> Float[np.ndarray, " source"]:
    """Mean effect of each circuit on the other tasks. `effects` [source task, test task]."""
    matrix = _task_matrix(effects)
    return (matrix.sum(axis=1) - np.diag(matrix)) / (len(matrix) - 1)


def discriminant_ratios(effects: ArrayLike) -> Float[np.ndarray, " source"]:
    """C17's published value per source task: M[A,A] / mean over B != A of M[A,B], sign kept.

    It is evidence only if both are reliably positive; C17's verdict uses contrasts instead. Raises
    Insufficient("n_tasks") for one task and ("ratio_undefined") if an off-diagonal mean is exactly 0.
    """
    matrix, off = _task_matrix(effects), off_diagonal_means(effects)
    if not off.all():
        raise Insufficient("ratio_undefined", "an off-diagonal mean is 0")
    return np.diag(matrix) / off


def discriminant_null_pass(n_tasks: int, factor: float) -> float:
    """P(M[A,A] / |off-diagonal mean| > factor) when all effects are noise: 1/2 - atan(factor/sqrt(T-1))/pi."""
    if n_tasks < 2:
        raise Insufficient("n_tasks", f"{n_tasks} task; at least 2 needed")
    return 0.5 - math.atan(factor / math.sqrt(n_tasks - 1)) / math.pi


def minimum_role_p(group_sizes: Sequence[int]) -> float:
    """Smallest one-sided p of a role permutation: product(g_i!)/n! over role groups."""
    arrangements = math.factorial(sum(group_sizes))
    return math.prod(math.factorial(size) for size in group_sizes) / arrangements


def role_depth(
    layers: ArrayLike,
    role_ordinals: ArrayLike,
    *,
    n_resamples: int,
    seed: int,
    alternative: Alternative = "greater",
    alpha: float = 0.05,
) -> PermutationTest:
    """C23: Spearman of layer and ordinal role over heads, roles permuted across heads (exact if few orders).

    Any increasing recoding of roles gives the same rho. Raises Insufficient("min_p_unreachable") if
    product(g_i!)/n! > alpha, ("zero_variance") for one role or one layer, ("n_heads") for fewer than 3 heads.
    """
    layer, role = paired(("layers", layers), ("role_ordinals", role_ordinals))
    require_attainable(minimum_role_p(list(Counter(role.tolist()).values())), alpha)
    return spearman_permutation(layer, role, n_resamples=n_resamples, seed=seed, alternative=alternative)


@dataclass(frozen=True)
class LayerDensity:
    """C23 layer density: rho of layer index and heads per layer, t-approximation p, permutation test of rho."""

    rho: float
    p_t_approximation: float
    permutation: PermutationTest


def layer_density(
    heads_per_layer: Int[np.ndarray, " layer"] | Sequence[int],
    model_heads_per_layer: int,
    *,
    n_resamples: int,
    seed: int,
) -> LayerDensity:
    """Spearman of layer index with the number of circuit heads in it; empty layers count as tied zeros.

    The two-sided p redraws the circuit's k heads at random among all heads; the t approximation is given beside it. Raises as
    `spearman`.
    """
    counts = np.asarray(heads_per_layer, dtype=int)
    if (counts > model_heads_per_layer).any():
        raise ValueError(f"{counts.max()} circuit heads in a layer of {model_heads_per_layer}")
    n_layers = counts.size
    rho, p = spearman(np.arange(n_layers), counts)
    member = np.concatenate([np.arange(model_heads_per_layer) < count for count in counts])
    centred = np.arange(n_layers) - (n_layers - 1) / 2

    def statistic(masks: np.ndarray) -> np.ndarray:
        ranks = scipy.stats.rankdata(masks.reshape(len(masks), n_layers, -1).sum(axis=2), axis=1)
        ranks -= ranks.mean(axis=1, keepdims=True)
        scale = np.linalg.norm(ranks, axis=1) * np.linalg.norm(centred)
        return np.divide(ranks @ centred, scale, out=np.zeros(len(masks)), where=scale > 0)

    test = head_label_permutation(statistic, member, n_resamples=n_resamples, seed=seed, alternative="two-sided")
    return LayerDensity(rho, p, test)
