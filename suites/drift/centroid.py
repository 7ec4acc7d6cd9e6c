"""164 centroid: how far the mean embedding of a prompt's outputs moved, 1 - cos(mean A, mean B) of unit vectors.

Two samples from the same distribution have a distance above 0, too. `corrected` subtracts the sampling error from the squared
distance, |a - b|^2 - tr(S_A)/n_A - tr(S_B)/n_B, which may be negative. `floor` is the distance between random halves of A. The
labels at .05 and .15 describe a distance and are never a verdict; the test is by relabelling.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import stats

from suites.drift import power
from suites.estimate import Estimate, missing
from suites.statistics import permutation

NUMBER, NAME, TITLE = "164", "centroid", "Centroid shift"
UNIT = "cosine distance"
MINIMUM = 5  # outputs a side: the smallest p of 5 and 5 is .004
HALVES = 200  # random halves of one side, whose mean distance is the floor: 20 clouds then agree to 3 %
LABELS = ((0.05, "small"), (0.15, "medium"))  # below which a distance reads small and medium; no verdict rests on them

Cloud = Float[np.ndarray, "output dimension"]


def shift(a: Cloud, b: Cloud) -> Estimate:
    """1 - cos of the two means, with `squared` and `corrected` in `detail`.

    Insufficient under 5 outputs a side. ValueError if a mean is 0.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(len(x), len(y)) < MINIMUM:
        return missing(
            "insufficient_data", f"{len(x)} and {len(y)} outputs; at least {MINIMUM} a side", UNIT, len(x) + len(y)
        )
    return Estimate(
        distance(x, y), UNIT, len(x) + len(y), detail={"squared": squared(x, y), "corrected": corrected(x, y)}
    )


def distance(a: Cloud, b: Cloud) -> float:
    """1 - cos(mean a, mean b). ValueError if a mean is 0."""
    x, y = a.mean(0), b.mean(0)
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    if lengths == 0:
        raise ValueError("a centroid is the zero vector; it has no direction")
    return float(1 - x @ y / lengths)


def squared(a: Cloud, b: Cloud) -> float:
    """|mean a - mean b|^2."""
    return float(((a.mean(0) - b.mean(0)) ** 2).sum())


def corrected(a: Cloud, b: Cloud) -> float:
    """`squared` - tr(S_A)/n_A - tr(S_B)/n_B, an unbiased estimate of the squared distance of the true means."""
    noise = sum(float(cloud.var(0, ddof=1).sum()) / len(cloud) for cloud in (a, b))
    return squared(a, b) - noise


def floor(clouds: Sequence[Cloud], seed: int, halves: int = HALVES) -> float:
    """Distance between two random halves of A, averaged over `halves` random splits of each prompt's cloud and over prompts."""
    rng = np.random.default_rng(seed)
    found = []
    for cloud in clouds:
        half = len(cloud) // 2
        for _ in range(halves):
            order = rng.permutation(len(cloud))
            found.append(distance(cloud[order[:half]], cloud[order[half : 2 * half]]))
    return float(np.mean(found))


def detectable(
    a: Sequence[Cloud], b: Sequence[Cloud], seed: int, alpha: float = 0.05, relabelled: int = HALVES
) -> float:
    """The mean distance, sampling noise included, that the axis test detects with power .8.

    It is the 1 - alpha quantile plus z_.8 standard deviations of `relabelled` relabellings within each prompt. The standard
    deviation under a true change is at least as large as without one.
    """
    rng, found = np.random.default_rng(seed), np.zeros(relabelled)
    for x, y in zip(a, b, strict=True):
        pool = np.concatenate([x, y])
        products = pool @ pool.T
        inside = np.argsort(rng.random((relabelled, len(pool))), axis=1) < len(x)
        into, out = inside @ products, ~inside @ products
        lengths = np.sqrt((into * inside).sum(1) * (out * ~inside).sum(1))
        found += 1 - (into * ~inside).sum(1) / lengths
    found /= len(a)
    return float(np.quantile(found, 1 - alpha) + stats.norm.ppf(power.POWER) * found.std(ddof=1))


def onward(a: Sequence[Cloud], b: Sequence[Cloud], c: Sequence[Cloud]) -> float:
    """Sum over prompts of (c - b).(b - a) of their centroids: above 0 if the second change goes on the way of the first.

    A distance has no sign, so this is what says whether two changes have one direction. Both share the sample b, which alone
    would make it -tr(S_b)/n_b; that is added back.
    """
    found = 0.0
    for x, y, z in zip(a, b, c, strict=True):
        noise = float(y.var(0, ddof=1).sum()) / len(y)
        found += float((z.mean(0) - y.mean(0)) @ (y.mean(0) - x.mean(0))) + noise
    return found


def label(value: float) -> str:
    """A word for the size of a distance; no verdict rests on it."""
    return next((name for edge, name in LABELS if value < edge), "large")


def axis_test(a: Sequence[Cloud], b: Sequence[Cloud], *, seed: int, m: int = 1, q: float = 0.05) -> Estimate:
    """Mean distance over prompts, relabelled within each. Insufficient if a prompt has under 5 outputs a side."""
    if short := [len(cloud) for cloud in (*a, *b) if len(cloud) < MINIMUM]:
        return missing("insufficient_data", f"{min(short)} outputs of a prompt; at least {MINIMUM} a side", UNIT)
    return permutation.mean_centroid_shift(a, b, seed=seed, m=m, q=q)
