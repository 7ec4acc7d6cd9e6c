"""The accuracy of a failure detector on its golden set, and a detector's failure rate corrected for its errors."""

from __future__ import annotations

from dataclasses import dataclass

from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.statistics import proportions

GOLDEN = 100  # golden texts that it takes: with fewer, the interval of F1 says little
GOLDEN_CLASS = 30  # of them of either class, or one of the two errors is not measured
TARGET_F1 = 0.95  # of a detector that is locked; below it, a rate is of the detector as much as of the model


@dataclass(frozen=True)
class Detector:
    """Precision, recall (sensitivity), specificity and F1 on a golden set. If not `locked`, `reason` says what is lacking.

    `certain`: it is locked, and the lower end of F1's interval reaches the target as well.
    """

    precision: Estimate
    recall: Estimate
    specificity: Estimate
    f1: Estimate
    locked: bool
    reason: str
    certain: bool = False


def from_counts(tp: int, fp: int, fn: int, tn: int, level: float = 0.95) -> Detector:
    """Quality from the counts of true and false positives and negatives, each rate with its Wilson interval.

    F1 = 2 TP/(2 TP + FP + FN) = 2 J/(1 + J) with the share J = TP/(TP + FP + FN); its interval is J's Wilson interval,
    transformed. Locked: F1 >= .95 on at least 100 examples, 30 or more of each class. The detector must not have been tuned on
    these examples, which cannot be checked here.
    """
    unit, n = "share of examples", tp + fp + fn + tn
    jaccard = proportions.wilson(tp, tp + fp + fn, level, unit)
    lacking = [
        f"{have} {what} of {need}"
        for have, need, what in (
            (n, GOLDEN, "examples"),
            (tp + fn, GOLDEN_CLASS, "positives"),
            (fp + tn, GOLDEN_CLASS, "negatives"),
        )
        if have < need
    ]
    f1 = _f1(jaccard)
    if f1.value is None or f1.value < TARGET_F1:
        lacking.append(f"F1 {'undefined' if f1.value is None else f'{f1.value:.3f}'} of {TARGET_F1:g}")
    return Detector(
        precision=proportions.wilson(tp, tp + fp, level, unit),
        recall=proportions.wilson(tp, tp + fn, level, unit),
        specificity=proportions.wilson(tn, tn + fp, level, unit),
        f1=f1,
        locked=not lacking,
        reason=", ".join(lacking),
        certain=not lacking and f1.bounds.low >= TARGET_F1,
    )


def rogan_gladen(rate: Estimate, sensitivity: float, specificity: float) -> Estimate:
    """True rate behind a detector's rate: (observed + specificity - 1)/(sensitivity + specificity - 1), clipped to [0, 1].

    The ends of the interval are transformed likewise. Undefined if sensitivity + specificity <= 1 (no better than chance); a
    missing rate stays missing. UserError for a sensitivity or specificity outside [0, 1]. Source: Rogan & Gladen 1978.
    """
    for name, value in (("sensitivity", sensitivity), ("specificity", specificity)):
        if not 0 <= value <= 1:
            raise UserError(f"{name} is {value}; expected a share between 0 and 1: measure it on the golden set")
    if rate.value is None:
        return rate
    informed = sensitivity + specificity - 1
    if informed <= 1e-12:
        reason = f"sensitivity {sensitivity:g} and specificity {specificity:g}: the detector is no better than chance"
        return missing("undefined", reason, rate.unit, rate.n, detail={"observed": rate.value})

    def corrected(observed: float) -> float:
        return min(1.0, max(0.0, (observed + specificity - 1) / informed))

    ci = rate.ci and Interval(
        corrected(rate.ci.low), corrected(rate.ci.high), rate.ci.level, f"{rate.ci.method}, corrected"
    )
    return Estimate(
        corrected(rate.value),
        rate.unit,
        rate.n,
        ci=ci,
        assumptions=(*rate.assumptions, "sensitivity and specificity are known without error and hold for these items"),
        excluded=rate.excluded,
        detail={"observed": rate.value, "sensitivity": sensitivity, "specificity": specificity},
    )


def _f1(jaccard: Estimate) -> Estimate:
    if jaccard.value is None or jaccard.ci is None:
        return missing("undefined", "nothing was flagged and nothing should have been", "F1")

    def carried(share: float) -> float:
        return 2 * share / (1 + share)

    ci = Interval(carried(jaccard.ci.low), carried(jaccard.ci.high), jaccard.ci.level, "Wilson, carried over")
    return Estimate(carried(jaccard.value), "F1", jaccard.n, ci=ci)
