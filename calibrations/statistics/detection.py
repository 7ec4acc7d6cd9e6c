"""Signal detection: hit and false alarm rates, d' of rates, AUROC, Wilson interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import Interval, paired, tails
from calibrations.statistics.errors import Insufficient


@dataclass(frozen=True)
class SignalDetection:
    """d' = z(H) - z(F) raw (may be infinite) and with log-linear counts, and the raw criterion -(z(H)+z(F))/2."""

    d_prime_raw: float
    d_prime_loglinear: float
    criterion: float


@dataclass(frozen=True)
class FalseAlarms:
    """1 - precision (a false discovery proportion), and the false alarm rate FP/(N - positives)."""

    one_minus_precision: float
    false_alarm_rate: float


@dataclass(frozen=True)
class Discrimination:
    """Area under the ROC curve (ties one half) and average precision."""

    auroc: float
    average_precision: float


def d_prime_of_rates(hit_rate: float, false_alarm_rate: float) -> tuple[float, float]:
    """(d', criterion) = (z(H) - z(F), -(z(H) + z(F))/2); infinite at rates of 0 or 1. Source: Green & Swets 1966."""
    z_hit, z_alarm = float(scipy.special.ndtri(hit_rate)), float(scipy.special.ndtri(false_alarm_rate))
    opposite = math.isinf(z_hit) and math.isinf(z_alarm) and z_hit != z_alarm
    return z_hit - z_alarm, 0.0 if opposite else -(z_hit + z_alarm) / 2


def signal_detection(hits: int, misses: int, false_alarms: int, correct_rejections: int) -> SignalDetection:
    """d' from counts, raw and log-linear: H = (hits + .5)/(positives + 1), F likewise (Hautus 1995).

    Raises Insufficient("all_selected") without negatives and ("n_heads") without positives.
    """
    positives, negatives = hits + misses, false_alarms + correct_rejections
    if positives < 1:
        raise Insufficient("n_heads", "no positives")
    if negatives < 1:
        raise Insufficient("all_selected", "no negatives")
    raw, criterion = d_prime_of_rates(hits / positives, false_alarms / negatives)
    loglinear, _ = d_prime_of_rates((hits + 0.5) / (positives + 1), (false_alarms + 0.5) / (negatives + 1))
    return SignalDetection(raw, loglinear, criterion)


def false_alarms(recall: float, precision: float, n_circuit: int, n_heads: int) -> FalseAlarms:
    """False alarm rate when only recall and precision are known.

    FP = recall n_circuit (1 - precision)/precision, rate = FP/(n_heads - n_circuit). Raises
    Insufficient("ratio_undefined") for precision 0 and ("all_selected") if every head is positive.
    """
    if precision <= 0:
        raise Insufficient("ratio_undefined", "precision 0 does not determine the number of false positives")
    if n_heads <= n_circuit:
        raise Insufficient("all_selected", f"{n_circuit} of {n_heads} heads are positive; no negatives")
    false_positives = recall * n_circuit * (1 - precision) / precision
    return FalseAlarms(1 - precision, false_positives / (n_heads - n_circuit))


def wilson_interval(successes: float, n: float, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion, without continuity correction. Raises Insufficient("n_prompts") for n = 0.

    Counts need not be whole numbers, so effective sample sizes work too. Source: Wilson 1927; Newcombe 1998, method 3.
    """
    from statsmodels.stats.proportion import proportion_confint  # imported here: it brings pandas, which takes a while

    if n < 1:
        raise Insufficient("n_prompts", "no trials")
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials")
    low, high = np.asarray(proportion_confint(successes, n, 2 * tails(level)[0], method="wilson")).tolist()
    # At the ends the bound is exact, but statsmodels gives 0.9999999999999999 for 20 of 20.
    return (0.0 if successes == 0 else low), (1.0 if successes == n else high)


def _labelled(labels: ArrayLike, scores: ArrayLike) -> tuple[Bool[np.ndarray, " head"], Float[np.ndarray, " head"]]:
    label, score = paired(("labels", labels), ("scores", scores))
    member = label > 0
    if not member.any():
        raise Insufficient("n_heads", "no positive labels")
    if member.all():
        raise Insufficient("all_selected", "no negative labels")
    return member, score


def discrimination(labels: ArrayLike, scores: ArrayLike) -> Discrimination:
    """AUROC = P(positive > negative) + half the ties, and average precision sum (R_i - R_{i-1}) P_i.

    `labels` [head] 0/1, `scores` [head]. Raises Insufficient("n_heads") without positives, ("all_selected") without
    negatives. Source: scikit-learn.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score  # imported here: scikit-learn takes a while

    member, score = _labelled(labels, scores)
    return Discrimination(float(roc_auc_score(member, score)), float(average_precision_score(member, score)))


def auroc_interval(labels: ArrayLike, scores: ArrayLike, level: float = 0.90) -> Interval:
    """DeLong interval of the AUROC on the logit scale: logit(A) +- z se / (A (1 - A)), always inside (0, 1).

    se^2 = var(placements of positives)/n1 + var(placements of negatives)/n0. Near 1 and with few heads the estimate is skewed,
    which a symmetric interval on the plain scale ignores. Raises as `discrimination`, Insufficient("n_heads") for fewer than 2
    in a class, and ("zero_variance") at complete separation, where DeLong's variance is 0 (use the exact permutation p).
    Source: DeLong et al. 1988; Pepe 2003 (logit).
    """
    member, score = _labelled(labels, scores)
    positive, negative = score[member], score[~member]
    if min(positive.size, negative.size) < 2:
        raise Insufficient(
            "n_heads", f"{positive.size} positives, {negative.size} negatives; at least 2 of each needed"
        )
    place = (np.sign(positive[:, None] - negative) + 1) / 2
    variance = place.mean(1).var(ddof=1) / positive.size + place.mean(0).var(ddof=1) / negative.size
    if variance <= 0:
        raise Insufficient("zero_variance", "DeLong's variance is 0: the classes are separated completely")
    area = float(place.mean())
    half = scipy.stats.norm.ppf(tails(level)[1]) * math.sqrt(variance) / (area * (1 - area))
    centre = scipy.special.logit(area)
    return float(scipy.special.expit(centre - half)), float(scipy.special.expit(centre + half))
