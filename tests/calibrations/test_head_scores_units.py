"""What counts as a tie is a share of D in the unit of the measurement at hand."""

from __future__ import annotations

import numpy as np
import pytest

from calibrations.evidence import Evidence
from calibrations.head_scores import mean_difference, writes_to_answer


@pytest.fixture
def evidence() -> Evidence:
    """Two prompts whose difference of probabilities is 0.5 and whose logit difference is 4."""
    baseline = {
        "prompt_id": ["a", "b"],
        "split": ["evaluation"] * 2,
        "metric": "probability_difference",
        "clean_logit_diff": [0.4, 0.6],
        "clean_in_logits": [3.0, 5.0],
    }
    attribution = [[0.3, 0.1], [0.3, 0.1]]  # nats
    return Evidence({"01": {"data": baseline}, "03": {"data": {"attribution": attribution}}}, {})


def test_each_measurement_is_compared_in_its_own_unit(evidence) -> None:
    assert evidence.metric == "probability difference"
    assert [mean_difference(evidence, number) for number in ("03", "05", "08", "10")] == [4.0] * 4
    assert [mean_difference(evidence, number) for number in ("02", "20", "21")] == pytest.approx([0.5] * 3)
    assert np.array_equal(writes_to_answer(evidence, 0.05), [True, False])  # 0.2 nats, not 0.025


def test_without_a_metric_of_its_own_d_is_the_logit_difference(evidence) -> None:
    data = {k: v for k, v in evidence.documents["01"]["data"].items() if k not in ("metric", "clean_in_logits")}
    old = Evidence({"01": {"data": data}}, {})
    assert old.metric == "logit difference"
    assert mean_difference(old, "03") == mean_difference(old, "02") == pytest.approx(0.5)
