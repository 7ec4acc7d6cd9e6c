"""classifier: heads by the weight classifier of measurement 09, which is trained on the model's other circuits.

It sees the weights and the answer directions but no activations; the prompts only determine the directions. Heads rank by the
probability from a class-weighted logistic regression that is fitted on the circuits of the other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits import tasks
from circuits.discovery.ranking import HeadRanking, Weights, require_heads
from circuits.estimators import weight_classifier
from circuits.estimators.weight_classifier import TaskHeads
from circuits.measurements import weights as head_weights
from circuits.measurements.weights import HeadWeights
from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError

NAME = "classifier"
SOURCE = "weight classifier learnt from the model's other circuits, prefixes by mean ablation per template and position"
RESAMPLES = None
UNTESTED = (
    "resamples of the prompts move the answer direction alone, never the circuits that the classifier learnt from"
)

Scores = Mapping[str, Float[Tensor, " head"]]


def rank(study: Study, prompts: PromptSet) -> HeadRanking:
    """Heads by their probability. Raises UserError if the model comes with circuits of fewer than two other tasks.

    Reads `settings["weights"]`, as 09 does. All answer directions, also those of the other tasks, come from discovery prompts.
    """
    require_heads(study, NAME)
    own = HeadWeights.of(study.model)
    scores = head_weights.head_scores(own, study.model, study.settings["weights"]["rounding"])
    fitted = weight_classifier.fit(_examples(study, own, scores), study.settings["weights"]["classifier"])
    gains = _gains(own, study.answer_direction(prompts))

    def probability(weights: Weights) -> Float[np.ndarray, " head"]:
        norms = torch.from_numpy(weights @ gains / weights.sum())
        return fitted.probability(_features(own, scores, norms))

    def order(weights: Weights) -> Int[np.ndarray, " head"]:
        return np.argsort(-probability(weights), kind="stable")

    return HeadRanking(study.model.heads, order, probability(np.ones(len(prompts))))


def _examples(study: Study, own: HeadWeights, scores: Scores) -> dict[str, TaskHeads]:
    """For every other task with a circuit of this model: the features of all heads, and which are in the circuit."""
    examples = {}
    for name in sorted((set(study.model.circuits) & set(tasks.names(study.task.vocabulary))) - {study.task.name}):
        circuit = study.model.circuits[name].check(study.model.n_layers, study.model.n_heads)
        task = tasks.get(name, study.task.vocabulary, bos=study.task.bos)
        gains = _gains(own, head_weights.answer_directions(study, task, "discovery"))
        norms = torch.from_numpy(gains.mean(0))
        member = np.array([node in circuit.heads for node in study.model.heads])
        examples[name] = TaskHeads(_features(own, scores, norms), member)
    examples = weight_classifier.usable(examples)
    if len(examples) < weight_classifier.MINIMUM_TASKS:
        raise UserError(
            f"method classifier learns from the model's circuits of other tasks, and {study.model.name} has "
            f"{len(examples)} (at least {weight_classifier.MINIMUM_TASKS} are needed); store circuits of other tasks with "
            "it, found for example with method=ACDC-greedy, or use another method"
        )
    return examples


def _gains(own: HeadWeights, directions: Float[Tensor, "prompt d_model"]) -> Float[np.ndarray, "prompt head"]:
    """||W_V W_O u|| of each head for each prompt's unit answer direction u."""
    return np.stack([head_weights.ov_norm(own, direction[None]).numpy() for direction in directions])


def _features(own: HeadWeights, scores: Scores, norms: Float[Tensor, " head"]) -> Float[np.ndarray, "head feature"]:
    return np.stack(list(head_weights.head_features(own, scores, norms).values()), 1)
