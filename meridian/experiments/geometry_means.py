"""Means over constructs with log-normal tau^2: how often the intervals of two bootstraps cover the truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suites.geometry import over_constructs, paraphrase


def rows(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Coverage of the 95 % intervals of the percentile and the studentised bootstrap.

    Constructs of one topic share half of the variance of log tau^2.
    """
    config, truth, found = settings["means"], settings["tau"] ** 2, []
    for constructs, topics in config["sizes"]:
        rng = np.random.default_rng([settings["seed"], constructs, topics])
        labels = np.arange(constructs) % topics
        held = {"percentile": 0, "studentised": 0}
        for _ in range(config["repetitions"]):
            logs = 0.5 * rng.normal(size=topics)[labels] + 0.5 * rng.normal(size=constructs)
            values, names = (truth * np.exp(logs - 0.25)).tolist(), [str(label) for label in labels]
            seed = int(rng.integers(2**31))
            both = {
                "percentile": paraphrase.over_constructs(values, names, seed),
                "studentised": over_constructs.mean(values, names, seed=seed, unit="tau^2"),
            }
            for name, estimate in both.items():
                held[name] += bool(estimate.bounds.low <= truth <= estimate.bounds.high)
        shares = {name: count / config["repetitions"] for name, count in held.items()}
        found.append({"constructs": constructs, "topics": topics, **shares})
    return found
