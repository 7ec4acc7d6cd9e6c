"""Predict from features of a model's heads which of them are in a task's circuit.

A class-weighted logistic regression on standardised features is trained on the circuits of some tasks and predicts that of
another task on the same model. The predicted task's own circuit enters neither the coefficients nor the threshold, which is
chosen by leaving out the training tasks one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from results_io import UserError

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

MINIMUM_TASKS = 2  # for training: choosing the threshold leaves one out, and another has to remain


@dataclass(frozen=True, eq=False)
class TaskHeads:
    """Every head of a model as one task sees it: its features, and whether it is in the task's circuit."""

    features: Float[np.ndarray, "head feature"]
    member: Bool[np.ndarray, " head"]

    @property
    def has_both_classes(self) -> bool:
        """False for a circuit that is empty or the whole model, from which nothing can be learnt."""
        return bool(self.member.any() and not self.member.all())


@dataclass(frozen=True)
class Counts:
    """A prediction against a circuit: hits among its `positives` heads, false alarms among the `negatives` others."""

    hits: int
    positives: int
    false_alarms: int
    negatives: int


@dataclass(frozen=True, eq=False)
class HeadClassifier:
    """A fitted classifier; a head is predicted to be in the circuit if its probability is at least `threshold`."""

    estimator: Pipeline
    threshold: float

    def probability(self, features: Float[np.ndarray, "head feature"]) -> Float[np.ndarray, " head"]:
        """Probability of membership, with equal weight of both classes."""
        return self.estimator.predict_proba(features)[:, 1]

    def predict(self, features: Float[np.ndarray, "head feature"]) -> Bool[np.ndarray, " head"]:
        return self.probability(features) >= self.threshold


def fit(training: Mapping[str, TaskHeads], settings: Mapping[str, Any]) -> HeadClassifier:
    """Fit a classifier of membership to the tasks in `training`; their order does not matter.

    Coefficients w minimise the logistic loss with equal class weights, plus |w|^2 / (2 `inverse_penalty`) for standardised
    features, until no component of the mean gradient exceeds `tolerance`. The threshold is the `best_threshold` of each task's
    heads as predicted from the other tasks. Raises UserError if fewer than two tasks have heads inside and outside their
    circuit.
    """
    from sklearn.linear_model import LogisticRegression  # imported here: scikit-learn takes a while
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    tasks = usable(training)
    if len(tasks) < MINIMUM_TASKS:
        raise UserError(
            f"the weight classifier has {len(tasks)} tasks to learn from and needs {MINIMUM_TASKS} whose circuit is "
            "neither empty nor the whole model; store the circuits of more tasks with the model"
        )
    features = np.concatenate([heads.features for heads in tasks.values()])
    member = np.concatenate([heads.member for heads in tasks.values()])
    task = np.repeat(list(tasks), [len(heads.member) for heads in tasks.values()])
    regression = LogisticRegression(
        C=settings["inverse_penalty"], class_weight="balanced", solver="newton-cholesky", tol=settings["tolerance"]
    )
    estimator = make_pipeline(StandardScaler(), regression)
    left_out = np.asarray(
        cross_val_predict(estimator, features, member, groups=task, cv=LeaveOneGroupOut(), method="predict_proba")
    )
    return HeadClassifier(estimator.fit(features, member), best_threshold(left_out[:, 1], member, task))


def best_threshold(
    probability: Float[np.ndarray, " row"], member: Bool[np.ndarray, " row"], task: Shaped[np.ndarray, " row"]
) -> float:
    """The threshold that maximises hit rate - false-alarm rate (Youden's J), averaged over tasks.

    It lies halfway between the lowest accepted probability and the next lower one. It is 1, which accepts none, if no threshold
    has J above 0.
    """
    from sklearn.metrics import roc_curve
    from sklearn.utils.class_weight import compute_sample_weight

    classes = [f"{name} {inside}" for name, inside in zip(task, member, strict=True)]
    weight = compute_sample_weight("balanced", classes)  # equal weight for members and other heads, and for every task
    alarms, hits, thresholds = roc_curve(member, probability, sample_weight=weight, drop_intermediate=False)
    best = int(np.argmax(hits - alarms))
    if best == 0:
        return 1.0
    following = thresholds[best + 1] if best + 1 < len(thresholds) else 0.0
    return float((thresholds[best] + following) / 2)


def usable(tasks: Mapping[str, TaskHeads]) -> dict[str, TaskHeads]:
    """The tasks that have heads of both classes, by name."""
    return {name: tasks[name] for name in sorted(tasks) if tasks[name].has_both_classes}


def count(predicted: Bool[np.ndarray, " head"], member: Bool[np.ndarray, " head"]) -> Counts:
    """The four numbers behind hit rate, false-alarm rate and precision."""
    return Counts(
        hits=int((predicted & member).sum()),
        positives=int(member.sum()),
        false_alarms=int((predicted & ~member).sum()),
        negatives=int((~member).sum()),
    )


def leave_one_task_out(tasks: Mapping[str, TaskHeads], settings: Mapping[str, Any]) -> dict[str, Counts]:
    """Each task's circuit as predicted by a classifier trained on all other tasks; empty if those are too few."""
    tasks = usable(tasks)
    if len(tasks) <= MINIMUM_TASKS:
        return {}
    counts = {}
    for left_out, heads in tasks.items():
        others = {name: tasks[name] for name in tasks if name != left_out}
        counts[left_out] = count(fit(others, settings).predict(heads.features), heads.member)
    return counts
