"""Answering only when confident: risk against coverage, and a threshold that keeps the risk below a limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from results_io import UserError
from suites.estimate import Estimate, missing
from suites.statistics import proportions


@dataclass(frozen=True)
class RiskCoverage:
    """One point for each distinct confidence [point], from the highest down: answer if confidence > `threshold`.

    `threshold` is the next smaller confidence, -inf where everything is answered; `answered` and `errors` count items. Risk is
    errors/answered; at coverage 0 there is none. `area` is the AURC, `excess_area` what is above the best possible order.
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
    """Risk at every coverage for `confidence` [item] and `correct` [item] 0/1; without items an Estimate that says so.

    AURC = mean over i of the risk among the i most confident; items of equal confidence are answered together, so each has the
    risk at the end of its block. E-AURC = AURC - the AURC of an order with all errors last.
    Source: Geifman & El-Yaniv 2017, 2019.
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
    """Coverage at the lowest confidence threshold whose risk is below `limit` even at its exact upper bound.

    The threshold is chosen on a random half of the clusters and then checked, with one test, on the other. `value` is the
    coverage on the checked half, its interval Wilson's; `detail`: threshold (answer above it; None: always), risk and bound on
    both halves, and `holds`: whether the bound on the checked half is at most `limit`. Insufficient if no threshold of the
    choosing half keeps it: with no error at all 59 answers are needed for a limit of .05.
    """
    if not 0 < limit < 1:
        raise UserError(f"the risk limit is {limit}; expected a share between 0 and 1, for example 0.05")
    p, hit = _vectors(confidence, correct)
    choosing = _half(p.size, clusters, seed)
    curve = risk_coverage(p[choosing], hit[choosing])
    allowed = [] if isinstance(curve, Estimate) else _allowed(curve, limit, level)
    if isinstance(curve, Estimate) or not allowed or choosing.all():
        reason = f"no threshold has an upper bound of risk at most {limit:g} on {int(choosing.sum())} items"
        return missing("insufficient_data", reason, "share answered", p.size)
    last = allowed[-1]
    tau = float(curve.threshold[last])
    answered = ~choosing & (p > tau)
    errors, n = int((1 - hit[answered]).sum()), int((~choosing).sum())
    checked = proportions.upper_bound(errors, int(answered.sum()), level)
    chosen = proportions.upper_bound(int(curve.errors[last]), int(curve.answered[last]), level)
    coverage = proportions.wilson(int(answered.sum()), n, unit="share answered")
    detail = {
        "threshold": None if np.isinf(tau) else tau,
        "limit": limit,
        "chosen": {"coverage": float(curve.coverage[last]), **_bounded(chosen)},
        "checked": {"coverage": coverage.value, **_bounded(checked)},
        "holds": checked.ci is not None and checked.ci.high <= limit,
    }
    return Estimate(coverage.value, coverage.unit, n, ci=coverage.ci, test="Clopper-Pearson bound", detail=detail)


def _allowed(curve: RiskCoverage, limit: float, level: float) -> list[int]:
    """Points of the curve whose upper bound of risk is at most `limit`."""
    points = zip(curve.errors.astype(int).tolist(), curve.answered.astype(int).tolist(), strict=True)
    bounds = [proportions.clopper_pearson_bound(errors, answered, level) for errors, answered in points]
    return [place for place, bound in enumerate(bounds) if bound <= limit]


def _bounded(risk: Estimate) -> dict[str, float | int | None]:
    return {"answered": risk.n, "risk": risk.value, "risk_upper": None if risk.ci is None else risk.ci.high}


def _half(n: int, clusters: ArrayLike | None, seed: int) -> np.ndarray:
    """[item] True in the choosing half: every cluster whole, half of the clusters (rounded up)."""
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
