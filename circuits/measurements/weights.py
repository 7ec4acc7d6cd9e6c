"""09 Weights: what each head could read, write and move, and circuit membership predicted from that alone.

Everything is computed from the processed weights (norms folded in, writers and unembedding centred), without activations.
Vectors are row vectors: a head that attends to x adds x W_V W_O to the stream, and it scores a key stream y against a query
stream x by x W_Q W_K^T y^T. Rotary embeddings act between W_Q and W_K^T and are left out, so W_Q W_K^T is the score at
distance zero. Products of a head's weights have rank d_head, so norms, singular values and eigenvalues are those of
d_head x d_head matrices: with W_V = Q R (Q orthonormal), |W_V W_O| = |R W_O| for both the spectral and the Frobenius norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from circuits import prompts as prompt_sets
from circuits import tasks
from circuits.circuit import head_pairs
from circuits.estimators import weight_classifier
from circuits.estimators.weight_classifier import TaskHeads
from circuits.models import Model, UnsupportedArchitectureError
from circuits.study import Study
from circuits.tasks.base import Task

NUMBER, ID = "09", "weights"
SETTINGS = ("weights",)
DEPENDS_ON_CIRCUIT = False


def stored_circuits(task: Task) -> tuple[str, ...]:
    """The tasks whose circuits the classifier may be trained on."""
    return tasks.names(task.vocabulary)


def measure(study: Study) -> dict[str, Any]:
    """Scores per head, composition per pair of heads, and the heads that the weight classifier predicts."""
    model, settings = study.model, study.settings["weights"]
    weights = HeadWeights.of(model)
    evaluation = study.prompts.select(study.prompts.rows_of("evaluation"))
    scores = head_scores(weights, model, settings["rounding"])
    return {
        "ov_norm": ov_norm(weights, study.answer_direction(evaluation)).numpy(),
        **{name: _nullable(score) for name, score in scores.items()},
        **{f"{kind}_composition": _nullable(composition(weights, kind)) for kind in ("q", "k", "v")},
        "composition_baseline": composition_baseline(weights, **settings["composition_baseline"]),
        "classifier": _classify(study, weights, scores),
    }


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Weights of all heads in float64, heads row-major; `layers` holds each head's layer.

    With grouped-query attention every query head has its group's W_K and W_V.
    """

    layers: tuple[int, ...]
    query: Float[Tensor, "head d_model d_head"]
    key: Float[Tensor, "head d_model d_head"]
    value: Float[Tensor, "head d_model d_head"]
    output: Float[Tensor, "head d_head d_model"]

    @classmethod
    def of(cls, model: Model) -> HeadWeights:
        """The weights of all heads of `model`.

        Raises UnsupportedArchitectureError if norms follow them, since heads then do not compute products of weights.
        """
        if model.normalises_attention or model.normalises_queries:
            what = "what its heads write" if model.normalises_attention else "queries and keys"
            raise UnsupportedArchitectureError(
                f"model {model.name} normalises {what}, so products of its heads' weights are not what the heads score and "
                "write; judge its heads by activations (02, 03, 26)"
            )
        stacked = (model.query_weights, model.key_weights, model.value_weights, model.output_weights)
        flat = [rearrange(weight.double(), "layer head a b -> (layer head) a b") for weight in stacked]
        return cls(tuple(node.layer for node in model.heads), *flat)

    @property
    def d_head(self) -> int:
        return self.output.shape[1]

    @cached_property
    def ov(self) -> Float[Tensor, "head small d_model"]:
        """R_V W_O: W_V W_O up to an orthonormal map of the input stream."""
        return _triangular(self.value) @ self.output

    @cached_property
    def ov_singular_values(self) -> Float[Tensor, "head d_head"]:
        return torch.linalg.svdvals(_triangular(self.value) @ _triangular(self.output.mT).mT)

    @cached_property
    def qk_singular_values(self) -> Float[Tensor, "head d_head"]:
        return torch.linalg.svdvals(_triangular(self.query) @ _triangular(self.key).mT)


def _triangular(matrix: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "head small d_head"]:
    """R of the QR decomposition."""
    return torch.linalg.qr(matrix, mode="r").R


# --- scores of one head -------------------------------------------------------------------------------------------


def head_scores(weights: HeadWeights, model: Model, rounding: float) -> dict[str, Float[Tensor, " head"]]:
    """The scores that do not depend on prompts; `rounding` as in `copying`."""
    return {
        "spectral_norm": weights.ov_singular_values[:, 0],
        "qk_spectral_norm": weights.qk_singular_values[:, 0],
        "sv_entropy": sv_entropy(weights),
        "copying": copying(weights, model.embedding, model.unembedding, rounding),
    }


def ov_norm(weights: HeadWeights, directions: Float[Tensor, "prompt d_model"]) -> Float[Tensor, " head"]:
    """Mean over prompts of ||W_V W_O u||, u the unit answer direction: the largest logit difference that the head could make
    of a unit stream (before the final norm's scale).
    """
    units = torch.nn.functional.normalize(directions.double(), dim=1)
    return einsum(weights.ov, units, "head i d, prompt d -> head i prompt").norm(dim=1).mean(1)


def sv_entropy(weights: HeadWeights) -> Float[Tensor, " head"]:
    """Entropy of the singular values of W_V W_O, normalised to sum 1, over log d_head: 1 if all are equal.

    NaN if W_V W_O is zero or has only one singular value.
    """
    share = weights.ov_singular_values / weights.ov_singular_values.sum(1, keepdim=True)
    return torch.special.entr(share).sum(1) / math.log(weights.d_head)


def copying(
    weights: HeadWeights,
    embedding: Float[Tensor, "vocabulary d_model"],
    unembedding: Float[Tensor, "d_model vocabulary"],
    rounding: float,
) -> Float[Tensor, " head"]:
    """sum(lambda) / sum(|lambda|) over the eigenvalues of W_E W_V W_O W_U (Elhage et al. 2021): 1 for a head that raises the
    token it attends to, -1 for one that suppresses it.

    The nonzero eigenvalues are those of W_O W_U W_E W_V. NaN if the sum of their absolute values is at most `rounding` times
    ||W_O|| ||W_U W_E|| ||W_V||: float32 weights cannot tell such a product from zero.
    """
    vocabulary = unembedding.double() @ embedding.double()
    product = weights.output @ vocabulary @ weights.value
    scale = weights.output.norm(dim=(1, 2)) * vocabulary.norm() * weights.value.norm(dim=(1, 2))
    # sum |lambda| <= sqrt(d) ||A||_F, so these become NaN below; eigenvalues of pure rounding errors may not converge.
    silent = math.sqrt(product.shape[-1]) * product.norm(dim=(1, 2)) <= rounding * scale
    eigenvalues = torch.linalg.eigvals(product.masked_fill(silent[:, None, None], 0.0))
    total = eigenvalues.abs().sum(1)
    score = eigenvalues.sum(1).real / total
    return score.masked_fill(total <= rounding * scale, float("nan"))


# --- composition of two heads -------------------------------------------------------------------------------------


def composition(weights: HeadWeights, kind: str) -> Float[Tensor, "sender receiver"]:
    """How much of a head's output is read by a later head's queries, keys or values (Elhage et al. 2021).

    "q": ||W_OV W_QK|| / (||W_OV|| ||W_QK||) with Frobenius norms; "k" the same with W_QK^T, "v" with the receiver's W_OV in place
    of W_QK. W_OV is the sender's W_V W_O and W_QK the receiver's W_Q W_K^T. NaN if the receiver is not in a later layer or a
    norm is zero.
    """
    reads, size = _receiver(weights, kind)
    sent = weights.ov_singular_values.norm(dim=1)
    layer = torch.tensor(weights.layers)
    ratio = torch.full((len(layer), len(layer)), float("nan"), dtype=torch.float64)
    for sending in layer.unique()[:-1]:
        senders, receivers = (layer == sending).nonzero()[:, 0], (layer > sending).nonzero()[:, 0]
        passed = einsum(weights.ov[senders], reads[receivers], "sender i d, receiver d j -> sender receiver i j")
        norms = sent[senders][:, None] * size[receivers]
        ratio[senders[:, None], receivers] = passed.norm(dim=(2, 3)) / norms
    return ratio


def _receiver(weights: HeadWeights, kind: str) -> tuple[Float[Tensor, "head d_model small"], Float[Tensor, " head"]]:
    """(matrix that a receiver applies to its input, up to an orthonormal map of the result; its Frobenius norm)."""
    if kind == "q":
        return weights.query @ _triangular(weights.key).mT, weights.qk_singular_values.norm(dim=1)
    if kind == "k":
        return weights.key @ _triangular(weights.query).mT, weights.qk_singular_values.norm(dim=1)
    return weights.value @ _triangular(weights.output.mT).mT, weights.ov_singular_values.norm(dim=1)


def composition_baseline(weights: HeadWeights, seed: int, heads: int) -> dict[str, float]:
    """Mean and SD of the composition ratio between `heads` senders and as many receivers with independent normal weights.

    The expected square is exactly 1 / d_model, since the subspaces that one head writes and another reads are independent and
    random. One baseline serves for q, k and v, because their matrices have the same shape.
    """
    generator = torch.Generator().manual_seed(int(seed))
    shape = (4, 2 * heads, *weights.query.shape[1:])
    query, key, value, output = torch.randn(shape, generator=generator, dtype=torch.float64)
    random = HeadWeights((0,) * heads + (1,) * heads, query, key, value, output.mT)
    ratio = composition(random, "q")[:heads, heads:]
    return {"mean": float(ratio.mean()), "sd": float(ratio.std())}


# --- the weight classifier ----------------------------------------------------------------------------------------


def head_features(
    weights: HeadWeights, scores: Mapping[str, Float[Tensor, " head"]], norms: Float[Tensor, " head"]
) -> dict[str, Float[np.ndarray, " head"]]:
    """The classifier's features of every head for one task: its relative depth, its scores (0 where undefined), and its OV norm
    on the task's answer directions, `norms`, relative to the model's mean and to its own largest gain.
    """
    layer = torch.tensor(weights.layers, dtype=torch.float64)
    features = {
        "relative_depth": layer / layer.max().clamp(min=1),
        **scores,
        "relative_ov_norm": norms / norms.mean(),
        "ov_norm_share": norms / scores["spectral_norm"],
    }
    return {name: values.nan_to_num(nan=0.0).numpy() for name, values in features.items()}


def _classify(study: Study, weights: HeadWeights, scores: Mapping[str, Float[Tensor, " head"]]) -> dict[str, Any]:
    """The heads that the classifier predicts for this task's circuit after training on the other tasks' stored circuits.

    This task's own stored circuit is used only for `leave_one_task_out`, and `study.circuit` is not used.
    """
    settings = study.settings["weights"]["classifier"]

    def features(task: Task) -> dict[str, Float[np.ndarray, " head"]]:
        return head_features(weights, scores, ov_norm(weights, answer_directions(study, task, "evaluation")))

    own = features(study.task)
    examples = {}
    for name in sorted(set(study.model.circuits) & set(tasks.names(study.task.vocabulary))):
        circuit = study.model.circuits[name].check(study.model.n_layers, study.model.n_heads)
        seen = own if name == study.task.name else features(tasks.get(name, study.task.vocabulary, bos=study.task.bos))
        examples[name] = TaskHeads(_stack(seen), np.array([node in circuit.heads for node in study.model.heads]))
    training = weight_classifier.usable({name: examples[name] for name in examples if name != study.task.name})
    left_out = weight_classifier.leave_one_task_out(examples, settings)
    return {
        **_outcome(study, training, _stack(own)),
        "features": list(own),
        "feature_values": _stack(own),
        "trained_on": {name: _pairs(study, heads.member) for name, heads in training.items()},
        "leave_one_task_out": {name: asdict(counts) for name, counts in left_out.items()},
    }


def _outcome(
    study: Study, training: Mapping[str, TaskHeads], features: Float[np.ndarray, "head feature"]
) -> dict[str, Any]:
    """Prediction, probabilities and threshold, or why there are none."""
    if len(training) < weight_classifier.MINIMUM_TASKS:
        reason = (
            f"{study.model.name} has circuits of {len(training)} other tasks with heads inside and outside, and the "
            f"weight classifier learns from {weight_classifier.MINIMUM_TASKS} at least; store more circuits with it"
        )
        return {"predicted_heads": None, "probability": None, "threshold": None, "unavailable": reason}
    classifier = weight_classifier.fit(training, study.settings["weights"]["classifier"])
    return {
        "predicted_heads": _pairs(study, classifier.predict(features)),
        "probability": classifier.probability(features),
        "threshold": classifier.threshold,
        "unavailable": None,
    }


def answer_directions(study: Study, task: Task, split: str) -> Float[Tensor, "prompt d_model"]:
    """Answer directions on the first prompts of a task's split, drawn in the same way for the study's task and others."""
    size = min(study.settings["weights"]["answer_prompts"], study.sizes[split])
    drawn = prompt_sets.draw_examples(task, {split: size}, study.seed)[split]
    return study.answer_direction(prompt_sets.tokenize(task, drawn, study.model.tokenizer, split))


def _stack(features: Mapping[str, Float[np.ndarray, " head"]]) -> Float[np.ndarray, "head feature"]:
    return np.stack(list(features.values()), 1)


def _pairs(study: Study, chosen: np.ndarray) -> list[list[int]]:
    return head_pairs(node for node, yes in zip(study.model.heads, chosen, strict=True) if yes)


def _nullable(values: Tensor) -> np.ndarray:
    """The values as objects, with None in place of NaN."""
    found = values.numpy().astype(object)
    found[values.isnan().numpy()] = None
    return found
