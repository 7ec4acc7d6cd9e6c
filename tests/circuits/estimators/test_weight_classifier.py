"""The weight classifier on synthetic heads: what it must learn, what it cannot, and what it must not see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from circuits.estimators import weight_classifier
from circuits.estimators.weight_classifier import Counts, TaskHeads
from results_io import UserError

SETTINGS = {"inverse_penalty": 0.1, "tolerance": 1e-8}
N_HEADS, N_FEATURES = 40, 5


def synthetic(seed: int, separation: float, tasks: int = 4, n_members: int = 8) -> dict[str, TaskHeads]:
    """Standard normal features, the first one `separation` higher for members."""
    rng = np.random.default_rng(seed)
    made = {}
    for index in range(tasks):
        features = rng.standard_normal((N_HEADS, N_FEATURES))
        member = rng.permutation(N_HEADS) < n_members
        features[:, 0] += separation * member
        made[f"task{index}"] = TaskHeads(features, member)
    return made


def relabelled(heads: TaskHeads, seed: int) -> TaskHeads:
    return replace(heads, member=np.random.default_rng(seed).permutation(heads.member))


def test_separable_features_are_classified_without_error() -> None:
    counts = weight_classifier.leave_one_task_out(synthetic(0, separation=20), SETTINGS)
    assert counts == {f"task{index}": Counts(8, 8, 0, 32) for index in range(4)}


@pytest.mark.slow
def test_random_labels_give_as_many_hits_as_false_alarms() -> None:
    """Over 40 draws of labels that have nothing to do with the features, the rates differ by Monte Carlo error only."""
    differences = []
    for seed in range(40):
        counts = weight_classifier.leave_one_task_out(synthetic(seed, separation=0), SETTINGS).values()
        hit_rate = sum(c.hits for c in counts) / sum(c.positives for c in counts)
        alarm_rate = sum(c.false_alarms for c in counts) / sum(c.negatives for c in counts)
        differences.append(hit_rate - alarm_rate)
    standard_error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    assert standard_error < 0.03
    assert abs(np.mean(differences)) < 3 * standard_error


@pytest.mark.slow
def test_two_sd_of_separation_give_the_best_possible_rates() -> None:
    """Best: a cut halfway, with hit rate .841 and false-alarm rate .159; pooled over 20 draws, within 0.05 of that."""
    counts = [
        c
        for seed in range(20)
        for c in weight_classifier.leave_one_task_out(synthetic(seed, separation=2), SETTINGS).values()
    ]
    hit_rate = sum(c.hits for c in counts) / sum(c.positives for c in counts)
    alarm_rate = sum(c.false_alarms for c in counts) / sum(c.negatives for c in counts)
    assert hit_rate - alarm_rate == pytest.approx(0.683, abs=0.05)


def test_the_labels_of_the_left_out_task_change_no_other_task_s_classifier() -> None:
    """What is predicted for a task comes from the other tasks: its counts change with its labels only by recounting."""
    tasks = synthetic(1, separation=2)
    others = {name: tasks[name] for name in tasks if name != "task2"}
    predicted = weight_classifier.fit(others, SETTINGS).predict(tasks["task2"].features)
    for seed in range(3):
        changed = {**tasks, "task2": relabelled(tasks["task2"], seed)}
        counts = weight_classifier.leave_one_task_out(changed, SETTINGS)
        assert counts["task2"] == weight_classifier.count(predicted, changed["task2"].member)


def test_order_of_the_tasks_changes_nothing() -> None:
    tasks = synthetic(2, separation=1)
    forward = weight_classifier.fit(tasks, SETTINGS)
    backward = weight_classifier.fit(dict(reversed(tasks.items())), SETTINGS)
    features = tasks["task0"].features
    assert forward.threshold == backward.threshold
    assert np.array_equal(forward.probability(features), backward.probability(features))


def test_coefficients_minimise_the_documented_loss() -> None:
    """The gradient of balanced logistic loss + |w|^2 / 2C, by hand on standardised features, is zero."""
    tasks = synthetic(3, separation=1)
    estimator = weight_classifier.fit(tasks, SETTINGS).estimator
    x = np.concatenate([heads.features for heads in tasks.values()])
    y = np.concatenate([heads.member for heads in tasks.values()]).astype(float)
    x = (x - x.mean(0)) / x.std(0)
    weight = np.where(y == 1, len(y) / 2 / y.sum(), len(y) / 2 / (1 - y).sum())
    w, b = estimator[-1].coef_[0], estimator[-1].intercept_[0]
    error = weight * (1 / (1 + np.exp(-x @ w - b)) - y)
    gradient = np.append(x.T @ error + w / SETTINGS["inverse_penalty"], error.sum()) / weight.sum()
    assert np.abs(gradient).max() < SETTINGS["tolerance"]
    assert np.abs(w).min() > 1e-3


def test_threshold_is_chosen_on_tasks_predicted_from_the_others() -> None:
    tasks = synthetic(6, separation=1)
    classifier = weight_classifier.fit(tasks, SETTINGS)
    probability = []
    for left_out, heads in tasks.items():
        others = [tasks[name] for name in tasks if name != left_out]
        features, member = (
            np.concatenate(parts) for parts in zip(*((o.features, o.member) for o in others), strict=True)
        )
        probability.append(clone(classifier.estimator).fit(features, member).predict_proba(heads.features)[:, 1])
    member = np.concatenate([heads.member for heads in tasks.values()])
    expected = weight_classifier.best_threshold(np.concatenate(probability), member, np.repeat(list(tasks), N_HEADS))
    assert classifier.threshold == pytest.approx(expected, abs=1e-12)


def average_j(threshold: float, probability: np.ndarray, member: np.ndarray, task: np.ndarray) -> float:
    """Hit rate - false-alarm rate of `probability` >= `threshold`, averaged over tasks."""
    called = probability >= threshold
    rates = []
    for name in np.unique(task):
        own = task == name
        rates.append(called[own & member].mean() - called[own & ~member].mean())
    return float(np.mean(rates))


def test_threshold_is_the_best_of_all() -> None:
    """Against every cut between two probabilities; the tasks have circuits of different sizes."""
    rng = np.random.default_rng(4)
    task = np.repeat(["a", "b", "c"], 30)
    member = rng.random(90) < np.repeat([0.1, 0.3, 0.6], 30)
    probability = np.round(rng.random(90) + 0.3 * member, 2)
    best = weight_classifier.best_threshold(probability, member, task)
    cuts = [-1.0, *(np.unique(probability) + 0.005)]
    assert average_j(best, probability, member, task) == pytest.approx(
        max(average_j(cut, probability, member, task) for cut in cuts), abs=1e-12
    )


def test_threshold_stands_halfway_between_two_probabilities() -> None:
    probability, member = np.array([0.9, 0.8, 0.3, 0.1]), np.array([True, True, False, False])
    task = np.array(["a", "a", "a", "a"])
    assert weight_classifier.best_threshold(probability, member, task) == pytest.approx(0.55)
    assert weight_classifier.best_threshold(probability, ~member, task) == 1.0  # worse than chance: none is let in


def test_too_few_tasks_are_refused_and_one_class_teaches_nothing() -> None:
    tasks = synthetic(5, separation=1, tasks=3)
    everything = replace(tasks["task2"], member=np.ones(N_HEADS, bool))
    assert list(weight_classifier.usable({**tasks, "task2": everything})) == ["task0", "task1"]
    assert weight_classifier.leave_one_task_out({**tasks, "task2": everything}, SETTINGS) == {}
    with pytest.raises(UserError, match="has 1 tasks to learn from and needs 2"):
        weight_classifier.fit({"task0": tasks["task0"], "task2": everything}, SETTINGS)
