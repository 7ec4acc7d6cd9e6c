"""A task's metric: what interventions change, while attribution and gradients stay about logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from circuits import study as studies
from circuits import tasks
from circuits.circuit import head
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measurements import activation_patching, baseline, direct_logit_attribution, mediation
from results_io import UserError

SWEEP = Sweep((Variant("clean"), ablate([head(0, 1)], Recipe("zero"), "a"), Variant("corrupted", base="corrupted")))


@pytest.fixture
def both(make_study):
    """The same study of greater-than on the logit difference and on the probability difference."""
    logits = make_study(task="greater_than")
    return logits, replace(logits, task=tasks.get("greater_than", metric="probability_difference"), done={})


@pytest.mark.slow
def test_the_metric_is_the_difference_of_probabilities(both) -> None:
    logits, probabilities = both
    asked = logits.run(replace(SWEEP, probabilities=True))
    expected = asked.answer_probability - asked.foil_probability
    found = probabilities.run(SWEEP)
    assert np.abs(found.logit_diff - expected).max() < 1e-7
    assert np.abs(found.logit_diff).max() <= 1 < np.abs(asked.logit_diff).max()
    assert np.array_equal(found.correct, found.logit_diff > 0)
    assert np.abs(probabilities.run(SWEEP, in_logits=True).logit_diff - asked.logit_diff).max() < 1e-6
    assert len(probabilities.done) == 1  # one run serves both


def test_what_adds_up_in_logits_does_not_depend_on_the_metric(both) -> None:
    for measure in (direct_logit_attribution.measure, mediation.measure):
        one, other = (measure(study) for study in both)
        for name in ("attribution", "natural_direct", "direct_path"):
            if name in one:
                assert np.abs(np.asarray(one[name]) - np.asarray(other[name])).max() < 1e-5


def test_what_interventions_change_does(both) -> None:
    logits, probabilities = (activation_patching.measure(study)["noising"] for study in both)
    assert 0 < np.abs(probabilities).max() < np.abs(logits).max()  # a small part of the vocabulary is asked about
    one, other = (baseline.measure(study) for study in both)
    assert (one["metric"], other["metric"]) == ("logit_difference", "probability_difference")
    assert np.abs(np.asarray(one["clean_logit_diff"]) - np.asarray(other["clean_in_logits"])).max() < 1e-6
    difference = np.asarray(other["answer_probability"]) - np.asarray(other["foil_probability"])
    assert np.abs(np.asarray(other["clean_logit_diff"]) - difference).max() < 1e-7


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"task.metric=accuracy is unknown; use logit_difference or probability_differen"
    ):
        tasks.get("ioi", metric="accuracy")
    assert tasks.get("greater_than").metric == "logit_difference"


def test_a_companion_follows_the_study_s_bos(make_study) -> None:
    ioi = make_study()
    without = replace(ioi, task=replace(ioi.task, bos=False), done={})
    assert studies.companion(ioi, "induction", 4).task.bos is True
    other = studies.companion(without, "induction", 4)
    assert other.task.bos is False and other.prompts.bos is None
