"""Answering only when confident: risk against coverage, and a threshold that keeps the risk below a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from calibrations.statistics import bootstrap_counts, percentile_interval, plus_one_p
from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.statistics import calibration, proportions

RESAMPLES, LEVEL = 2000, 0.95
PERCENTILE = "percentile bootstrap over clusters"
BOUND = "Clopper-Pearson bound"
MINIMUM_CLUSTERS = proportions.FEW_CLUSTERS  # fewer give no interval worth printing


@dataclass(frozen=True)
class RiskCoverage:
    """One point for each distinct confidence [point], from the highest down: answer if confidence > `threshold`.

    `threshold` is the next smaller confidence, -inf if everything is answered; `answered` and `errors` count items. Risk is
    errors/answered; there is no point at coverage 0. `area` is the AURC, `excess_area` the E-AURC (`risk_coverage`).
    """

    threshold: Float[np.ndarray, " point"]
    answered: Float[np.ndarray, " point"]
    errors: Float[np.ndarray, " point"]
    area: Estimate
    excess_area: Estimate

    @property
    def coverage(self) -> Float[np.ndarray, " point"]:
        return self.answered / self.answered[-1]

    @property
    def risk(self) -> Float[np.ndarray, " point"]:
        return self.errors / self.answered


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage | Estimate:
    """Risk at every coverage for `confidence` [item] and `correct` [item] 0/1; an undefined Estimate without items.

    AURC = mean over i of the risk among the i most confident. Items of equal confidence are answered together, so each has the
    risk at the end of its block. E-AURC = AURC - AURC of the best order, with all errors last. UserError unless there is one
    finite confidence and one 0/1 for each item. Source: Geifman & El-Yaniv 2017, 2019.
    """
    p, hit = _vectors(confidence, correct)
    if not p.size:
        return missing("undefined", "no items to cover", "share")
    falling = np.sort(p)[::-1]
    ends = np.append(np.flatnonzero(np.diff(falling)), p.size - 1)
    at_end = _risks(hit[np.argsort(-p, kind="stable")])[ends]
    area = float(np.repeat(at_end, np.diff(ends, prepend=-1)).mean())
    best = float(_risks(np.sort(hit)[::-1]).mean())  # errors last
    return RiskCoverage(
        threshold=np.append(falling[ends[:-1] + 1], -np.inf),
        answered=(ends + 1).astype(float),
        errors=np.round(at_end * (ends + 1)),
        area=Estimate(area, "risk", p.size),
        excess_area=Estimate(area - best, "risk", p.size, detail={"best_area": best}),
    )


def areas(
    confidence: ArrayLike, correct: ArrayLike, clusters: ArrayLike | None = None, *, seed: int
) -> dict[str, Estimate]:
    """`aurc` and `e_aurc` of `risk_coverage`, with percentile intervals over resampled `clusters` [item]; none under 20 clusters.

    `p_value` of the AURC: two-sided, against simulated outcomes of a perfectly calibrated model with dependence within clusters
    (`calibration.calibrated_outcomes`). `detail` has the mean of that null. UserError as `risk_coverage`.
    """
    curve = risk_coverage(confidence, correct)
    if isinstance(curve, Estimate):
        return {"aurc": curve, "e_aurc": curve}
    p, hit = _vectors(confidence, correct)
    labels = np.arange(p.size) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    share, note = calibration.shared_luck(p, hit, labels)
    parts = calibration.calibrated_outcomes(p, seed=seed, resamples=RESAMPLES, clusters=labels, share=share)
    null = np.concatenate([_areas(p, outcomes, np.ones_like(outcomes))[0] for outcomes in parts])
    area = curve.area.number
    above, below = (plus_one_p(int(far.sum()), len(null)) for far in (null >= area - 1e-12, null <= area + 1e-12))
    detail = {"null_mean": float(null.mean()), "draws": len(null), **({"shared_luck": share} if note else {})}
    notes = (note,) if note else ()
    tested = replace(
        curve.area,
        p_value=min(1.0, 2 * min(above, below)),
        test="simulated perfect calibration",
        assumptions=notes,
        detail=detail,
    )
    if int(labels.max()) + 1 < MINIMUM_CLUSTERS:
        return {"aurc": tested, "e_aurc": curve.excess_area}
    weights = bootstrap_counts(int(labels.max()) + 1, RESAMPLES, seed=seed)[:, labels].astype(float)
    resampled = _areas(p, np.broadcast_to(hit, weights.shape), weights)
    intervals = [Interval(*percentile_interval(one, LEVEL), LEVEL, PERCENTILE) for one in resampled]
    return {"aurc": replace(tested, ci=intervals[0]), "e_aurc": replace(curve.excess_area, ci=intervals[1])}


def _areas(
    p: Float[np.ndarray, " item"], hit: Float[np.ndarray, "draw item"], weights: Float[np.ndarray, "draw item"]
) -> tuple[Float[np.ndarray, " draw"], Float[np.ndarray, " draw"]]:
    """AURC and E-AURC of items that count `weights` times.

    The smallest AURC with E errors among W items is (E - (W - E)(H_W - H_{W-E}))/W, with the harmonic numbers H.
    """
    order = np.argsort(-p, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(p[order])), p.size - 1)
    count = np.cumsum(weights[:, order], axis=1)[:, ends]
    wrong = np.cumsum((weights * (1 - hit))[:, order], axis=1)[:, ends]
    risk = np.divide(wrong, count, out=np.zeros_like(count), where=count > 0)
    total, errors = count[:, -1], wrong[:, -1]
    area = (risk * np.diff(count, axis=1, prepend=0)).sum(1) / total
    right = total - errors
    best = (errors - right * (special.digamma(total + 1) - special.digamma(right + 1))) / total
    return area, area - best


def _risks(hit: Float[np.ndarray, " item"]) -> Float[np.ndarray, " item"]:
    """Share of errors among the first i items, for every i."""
    return np.cumsum(1 - hit) / np.arange(1, hit.size + 1)


def threshold(
    confidence: ArrayLike,
    correct: ArrayLike,
    limit: float,
    *,
    seed: int,
    level: float = 0.95,
    clusters: ArrayLike | None = None,
) -> Estimate:
    """Coverage at the lowest confidence threshold that is shown to keep the risk of the answered at `limit` or below.

    A random half of the clusters orders the thresholds by their exact upper bound of the risk, the lowest first. The other
    half tests them in this order, until one has a bound above `limit`. Any threshold that passed keeps the limit with
    confidence `level`, since the order is fixed before the test (fixed sequence testing: Angelopoulos et al. 2021, "Learn then
    Test", 2110.01052). `value` is the largest coverage among them on the testing half, with Wilson's interval at the effective
    sample size. `detail`: threshold (answer above it; None: always), risk and bound on both halves (`chosen`, `checked`), and
    `holds`: whether the bound on the testing half is at most `limit`.

    In the bounds, the answered items of one of `clusters` [item] count as one (Korn & Graubard 1998, at the largest design
    effect). Insufficient if the first threshold tested is above the limit: without any error, a limit of .05 needs 59 answers.
    `detail` then holds that one. UserError for a limit outside (0, 1), and as `risk_coverage`.
    """
    if not 0 < limit < 1:
        raise UserError(f"the risk limit is {limit}; expected a share between 0 and 1, for example 0.05")
    p, hit = _vectors(confidence, correct)
    choosing = _half(p.size, clusters, seed)
    curve = risk_coverage(p[choosing], hit[choosing])
    labels = np.arange(p.size) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    own = (p[choosing], labels[choosing])
    if isinstance(curve, Estimate) or choosing.all():
        return missing("insufficient_data", f"{p.size} items do not make two halves", "share answered", p.size)
    n, tested = int((~choosing).sum()), []
    for place in _by_bound(curve, *own, level):
        answered = ~choosing & (p > curve.threshold[place])
        tested.append((place, answered, _bounded(int((1 - hit[answered]).sum()), labels[answered], level)))
        if not _keeps(tested[-1][2], limit):
            break
    passed = [one for one in tested if _keeps(one[2], limit)]
    place, answered, checked = max(passed, key=lambda one: int(one[1].sum())) if passed else tested[0]
    tau = float(curve.threshold[place])
    chosen = _bounded(int(curve.errors[place]), own[1][own[0] > tau], level)
    coverage = proportions.clustered(
        answered[~choosing].tolist(), list(map(str, labels[~choosing].tolist())), unit="share answered"
    )
    detail = {
        "threshold": None if np.isinf(tau) else tau,
        "limit": limit,
        "chosen": {"coverage": float(curve.coverage[place]), **chosen},
        "checked": {"coverage": coverage.value, **checked},
        "holds": bool(passed),
    }
    if not passed:
        bound = (
            "no answer" if checked["risk_upper"] is None else f"an upper bound of risk of {checked['risk_upper']:.3f}"
        )
        reason = f"the best threshold has {bound} on the {n} items that test it; the limit is {limit:g}"
        return missing("insufficient_data", reason, "share answered", n, test=BOUND, detail=detail)
    return Estimate(coverage.value, coverage.unit, n, ci=coverage.ci, test=BOUND, detail=detail)


def _by_bound(curve: RiskCoverage, p: Float[np.ndarray, " item"], labels: np.ndarray, level: float) -> list[int]:
    """Indices of the curve's points by their upper bound of the risk, the lowest first; of equal bounds, the widest first."""
    points = zip(curve.errors.astype(int).tolist(), curve.threshold.tolist(), strict=True)
    bounds = [float(_bounded(errors, labels[p > tau], level)["risk_upper"] or 0.0) for errors, tau in points]
    return sorted(range(len(bounds)), key=lambda place: (bounds[place], -place))


def _keeps(bounded: Mapping[str, float | int | None], limit: float) -> bool:
    upper = bounded["risk_upper"]
    return upper is not None and upper <= limit


def _bounded(errors: int, labels: np.ndarray, level: float) -> dict[str, float | int | None]:
    """Risk and its upper bound; `labels`: clusters of the answered items. Its counts are divided by the largest design effect."""
    answered = len(labels)
    if not answered:
        return {"answered": 0, "risk": None, "risk_upper": None}
    sizes = np.unique(labels, return_counts=True)[1].astype(float)
    effect = float((sizes**2).sum() / answered)
    bound = proportions.clopper_pearson_bound(errors / effect, answered / effect, level)
    return {"answered": answered, "risk": errors / answered, "risk_upper": bound}


def _half(n: int, clusters: ArrayLike | None, seed: int) -> np.ndarray:
    """[item] True in the choosing half: half of the clusters (rounded up), each of them whole."""
    labels = np.arange(n) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    order = np.random.default_rng(seed).permutation(int(labels.max()) + 1 if n else 0)
    return np.isin(labels, order[: (len(order) + 1) // 2])


def _vectors(confidence: ArrayLike, correct: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    p, hit = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if p.ndim != 1 or p.shape != hit.shape or not (np.isfinite(p).all() and np.isin(hit, (0, 1)).all()):
        raise UserError(
            f"{p.size} confidences and {hit.size} verdicts; expected one finite number and one true or false for each item:"
            " leave out items without"
        )
    return p, hit
