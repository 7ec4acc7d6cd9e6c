"""10 Local learning coefficient of every head: how tightly the task's loss constrains the head's own weights.

This is the weight- and data-refined LLC of Wang et al. 2024: SGLD over one head's W_Q, W_K, W_V and W_O slices with the rest
of the model fixed. The loss L_n is the task's own, the mean over n evaluation prompts of -log P(answers | clean prompt). If the
task does not need a head, this loss is flat in all directions and the head's LLC is near 0; a head that it needs is
constrained. So a HIGHER score makes a head a likelier member of the circuit.

Weights are those of the bridge (norms folded in, writers centred), and biases stay fixed. Under grouped-query attention W_K and
W_V belong to a group of heads: they are perturbed for the whole group, once for each of its query heads. Displacements are in
units of the root mean square of each kind of matrix over the whole model, because W_Q and W_O may differ in scale; gamma = 4
lets every weight move by about half that size. Units and gamma are the same for all heads, so that scores are comparable. gamma
is the smallest of a grid at which nearly all heads' chains mix. It is large compared with most curvatures, so a score is well
below half the number of parameters: it counts the directions that the loss constrains on that scale.

All heads of a layer and all their chains run together from the layer's intact input onwards, each chain with its own head
perturbed, since earlier layers do not depend on the perturbed weights. The fused engine computes this from the weights
(`circuits.engine.displaced_layer`), other engines run the model's own blocks.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from circuits.circuit import Node
from circuits.engine.decoder import Decoder
from circuits.engine.displaced_layer import Change, DisplacedLayer
from circuits.engine.gradients import frozen
from circuits.engine.scores import gather
from circuits.engine.workers import run_parallel
from circuits.estimators import learning_coefficient
from circuits.estimators.learning_coefficient import CoefficientEstimate, Losses, Posterior, Run, Sampling
from circuits.models import Model, UnsupportedArchitectureError
from circuits.prompts import PromptSet
from circuits.study import Study, require_count
from results_io import UserError

NUMBER, ID = "10", "llc"
SETTINGS = ("llc",)
DEPENDS_ON_CIRCUIT = False  # unless only some heads are sampled: see `depends_on_circuit`
NOT_SAMPLED = CoefficientEstimate(None, None, (), None, None, None, None, None, (), "not_sampled")
MATRICES = ("W_Q", "W_K", "W_V", "W_O")
PER_HEAD = tuple("standard_error chains r_hat effective_samples drift step_size acceptance reason trace".split())
PASSES = 2  # forward and backward, for the row count of the progress bar


class UnfaithfulReplayError(UnsupportedArchitectureError):
    """Running the upper layers alone does not give the model's own output."""


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError for settings that cannot sample a posterior."""
    own = settings["llc"]
    require_count(settings, "llc", "most_heads")
    if not own["gammas"]:
        raise UserError("measurement.llc.gammas=[] names no localiser; give at least one precision, for example [4]")
    if own["prompts"] < 2:
        raise UserError(f"measurement.llc.prompts={own['prompts']} has no inverse temperature; give at least 2")
    Sampling.of({**own, "gamma": min(map(float, own["gammas"]))})


def depends_on_circuit(settings: Mapping[str, Any], heads: int) -> bool:
    """True if not all of a model's heads are sampled, since the claim then determines which are."""
    return heads > settings["llc"]["most_heads"]


def sampled_heads(study: Study) -> tuple[Node, ...]:
    """All heads of a model with up to `settings["llc"]["most_heads"]`; of a larger one, the claim's and as many others.

    The others match the claim's by layer. At most half of the sampled heads are the claim's, drawn at random if it has more. The
    result is sorted; the draw depends only on the claim and llc.seed.
    """
    heads, most = study.model.heads, require_count(study.settings, "llc", "most_heads")
    if not depends_on_circuit(study.settings, len(heads)):
        return heads
    rng = random.Random(f"llc {study.settings['llc']['seed']}")
    claimed = sorted(study.claim.heads)
    own = set(rng.sample(claimed, min(len(claimed), max(1, most // 2))))
    outside = [node for node in heads if node not in set(claimed)]
    matched: set[Node] = set()
    for layer, count in sorted(Counter(node.layer for node in own).items()):
        same = [node for node in outside if node.layer == layer]
        matched |= set(rng.sample(same, min(count, len(same))))
    left = [node for node in outside if node not in matched]
    missing = max(0, min(most, len(heads)) - len(own) - len(matched))
    return tuple(sorted(own | matched | set(rng.sample(left, min(missing, len(left))))))


def measure(study: Study) -> dict[str, Any]:
    """LLC of every head with the diagnostics of its chains; null with a reason if the chains do not support an estimate."""
    settings = study.settings["llc"]
    gammas, share = [float(gamma) for gamma in settings["gammas"]], float(settings["share"])
    check(study.settings)
    prompts = study.prompts.select(study.subset(settings["prompts"]))
    batch = min(settings["batch"], len(prompts))
    sampling = Sampling.of({**settings, "gamma": min(gammas), "batch": batch})
    at_minimum = answer_loss(study.engine.end_logits(prompts), prompts.answers).to(study.model.device)
    units = matrix_units(study.model)
    with frozen(study.model.bridge):
        chosen = sampled_heads(study)
        layers = [LayerLosses(study, prompts, layer, units) for layer in sorted({node.layer for node in chosen})]
        for losses in layers:
            losses.require_faithful(at_minimum, settings["replay_tolerance"])
        posteriors = _posteriors(study, layers, chosen, at_minimum, sampling)
        evaluations = sampling.pilot + 1 + sampling.burn_in + sampling.draws  # without further pilot runs
        study.progress.expect(PASSES * len(chosen) * sampling.chains * sampling.batch * evaluations)
        run = _side_by_side(layers)
        sampling, accepted = learning_coefficient.widest(posteriors, sampling, gammas, share, run)
        known = zip(posteriors, accepted, strict=True)
        groups = list(run(lambda one: learning_coefficient.estimate(one[0], sampling, one[1]), known))
    found = dict(zip(chosen, (each for group in groups for each in group), strict=True))
    estimates = [found.get(node, NOT_SAMPLED) for node in study.model.heads]
    return {
        "score": [each.llc for each in estimates],
        **{name: [getattr(each, name) for each in estimates] for name in PER_HEAD},
        "negative": sum(each.llc is not None and each.llc < 0 for each in estimates),
        "insufficient": sum(each.llc is None for each in found.values()),
        "not_sampled": len(estimates) - len(found),
        "reliability": _reliability(estimates),
        "loss_at_minimum": float(at_minimum.mean()),
        "n": len(prompts),
        "beta": 1 / math.log(len(prompts)),
        "units": dict(zip(MATRICES, units, strict=True)),
        "n_parameters": posteriors[0].n_parameters,
        **{name: getattr(sampling, name) for name in ("gamma", "draws", "burn_in", "batch", "seed")},
    }


def _side_by_side(layers: Sequence[LayerLosses]) -> Run:
    """How to run a function for every layer: in parallel, unless it needs hooks on the model's own modules."""
    if not all(losses.fused for losses in layers):
        return map
    return lambda work, items: run_parallel(lambda item: [work(item)], items, layers[0].model.device)


def _posteriors(
    study: Study,
    layers: Sequence[LayerLosses],
    chosen: Sequence[Node],
    at_minimum: Float[Tensor, " prompt"],
    sampling: Sampling,
) -> list[Posterior]:
    """Posteriors of the chosen heads of each layer, with as many heads in each as fit one forward pass."""
    together = max(1, study.engine.rows_per_forward // (sampling.chains * sampling.batch))
    by_layer = {losses.layer: [node.index for node in chosen if node.layer == losses.layer] for losses in layers}
    groups = [
        (losses, by_layer[losses.layer][first : first + together])
        for losses in layers
        for first in range(0, len(by_layer[losses.layer]), together)
    ]
    return [
        Posterior(losses.of_heads(heads), at_minimum, losses.n_parameters, tuple(f"{losses.layer}.{h}" for h in heads))
        for losses, heads in groups
    ]


def _reliability(estimates: list[CoefficientEstimate]) -> float | None:
    """Reliability: 1 - mean squared standard error / variance of the scores over heads, the share that is not noise.

    None for fewer than two scores, or if all are equal.
    """
    scored = [
        (each.llc, each.standard_error)
        for each in estimates
        if each.llc is not None and each.standard_error is not None
    ]
    variance = np.var([llc for llc, _ in scored], ddof=1) if len(scored) > 1 else 0.0
    return float(1 - np.mean([error**2 for _, error in scored]) / variance) if variance else None


def matrix_units(model: Model) -> tuple[float, float, float, float]:
    """Root mean square of all entries of W_Q, W_K, W_V and W_O of the model."""
    q, k, v, o = (float(getattr(model.bridge, name).detach().double().square().mean().sqrt()) for name in MATRICES)
    return q, k, v, o


def answer_loss(logits: Float[Tensor, "row vocabulary"], answers: Int[Tensor, "row answer"]) -> Float[Tensor, " row"]:
    """-log of the summed probability of each prompt's answers, in nats, from the logits at its end, in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    right = gather(logits, answers).nan_to_num(nan=float("-inf"))
    return torch.logsumexp(logits, 1) - torch.logsumexp(right, 1)


class LayerLosses:
    """The answer loss on a task's prompts with heads of one layer displaced, one head per chain.

    A displacement is [W_Q, W_K, W_V (each d_model x d_head), W_O (d_head x d_model)] flattened, in `units`.
    """

    def __init__(self, study: Study, prompts: PromptSet, layer: int, units: tuple[float, ...]) -> None:
        self.model, self.prompts, self.layer, self.units = study.model, prompts, layer, units
        self._progress, self._rows_at_once = study.progress, study.engine.rows_per_forward
        # present if the engine has proved that the decoder gives the model's numbers
        weights = getattr(study.engine, "decoder", None)
        if weights is not None and weights.is_plain and weights.can_run(int(prompts.end.max()) + 1):
            self._upper = FusedLayers(study, prompts, layer, weights)
        else:
            self._upper = ReplayedLayers(study, prompts, layer)

    @property
    def fused(self) -> bool:
        """True if the losses are computed from the weights, without hooks on the model's own modules."""
        return isinstance(self._upper, FusedLayers)

    @property
    def n_parameters(self) -> int:
        return len(MATRICES) * self.model.bridge.cfg.d_model * self.model.bridge.cfg.d_head

    def of_heads(self, heads: Sequence[int]) -> Losses:
        """The losses of some heads, in the form that the estimator takes: problem i is the i-th of `heads`."""
        numbers = torch.as_tensor(heads, device=self.model.device)
        return lambda displacement, rows, problem: self.losses(displacement, rows, numbers[problem])

    def losses(
        self,
        displacement: Float[Tensor, "chain parameter"],
        rows: Int[Tensor, "chain row"],
        heads: Int[Tensor, " chain"],
    ) -> Float[Tensor, "chain row"]:
        """-log P(answers) of each chain's prompts `rows` with its head displaced, in nats."""
        logits = self._upper.logits(self.matrices(displacement), rows, heads)
        self._progress.advance(PASSES * rows.numel())
        return answer_loss(logits, self.prompts.answers[rows.flatten().cpu()]).reshape(rows.shape).to(rows.device)

    def matrices(self, displacement: Float[Tensor, "chain parameter"]) -> dict[str, Float[Tensor, "chain from to"]]:
        """The change of each matrix of the head, in the weights' own units."""
        cfg = self.model.bridge.cfg
        shapes = ((cfg.d_model, cfg.d_head),) * 3 + ((cfg.d_head, cfg.d_model),)
        parts = displacement.to(self.model.dtype).chunk(len(MATRICES), dim=1)
        matrices = zip(MATRICES, parts, self.units, shapes, strict=True)
        return {name: unit * part.unflatten(1, shape) for name, part, unit, shape in matrices}

    @torch.no_grad()
    def require_faithful(self, at_minimum: Float[Tensor, " prompt"], tolerance: float) -> None:
        """Raises UnfaithfulReplayError unless the upper layers alone give the model's losses within `tolerance` nats."""
        nothing = self.matrices(at_minimum.new_zeros(1, self.n_parameters))
        parts = torch.arange(len(self.prompts), device=self.model.device).split(self._rows_at_once)
        try:
            logits = [self._upper.logits(nothing, part[None], part.new_zeros(1)) for part in parts]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a shape mismatch: some argument of a block depends on the number of rows
            raise UnfaithfulReplayError(
                f"layers {self.layer} and up of {self.model.name} cannot be run alone, as they are handed what is made for one "
                "number of prompts (ALiBi's distances, for one), so leave 10 out"
            ) from error
        error = float((answer_loss(torch.cat(logits), self.prompts.answers).cpu() - at_minimum.cpu()).abs().max())
        if not error <= tolerance:
            raise UnfaithfulReplayError(
                f"layers {self.layer} and up of {self.model.name} run alone miss the model's loss by {error:.2g} nats "
                f"(at most {tolerance:g} expected); its blocks depend on more than their input, so leave 10 out"
            )


class FusedLayers:
    """The blocks from `layer` on with one head displaced in each chain, computed from the model's weights."""

    def __init__(self, study: Study, prompts: PromptSet, layer: int, weights: Decoder) -> None:
        name = f"blocks.{layer}.hook_resid_pre"
        start = study.engine.activations(prompts, "clean", (name,))[name]
        self._decoder = weights
        self._displaced = DisplacedLayer(weights, layer, start, prompts.clean, prompts.end)

    def logits(
        self, change: Change, rows: Int[Tensor, "chain row"], heads: Int[Tensor, " chain"]
    ) -> Float[Tensor, "prompt vocabulary"]:
        """At the last position of each chain's prompts `rows`, with `change` added to its head's matrices."""
        return self._decoder.logits(self._displaced.final(change, rows, heads))


class ReplayedLayers:
    """As `FusedLayers`, but computed by the model's own blocks with hooks that displace the heads."""

    def __init__(self, study: Study, prompts: PromptSet, layer: int) -> None:
        self.model, self.prompts, self.layer = study.model, prompts, layer
        model = study.model
        names = (f"blocks.{layer}.hook_resid_pre", f"blocks.{layer}.ln1.hook_out")
        if names[1] not in model.bridge.hook_dict:
            raise UnsupportedArchitectureError(
                f"model {model.name} has no norm before its attention, at whose output heads are displaced; judge its heads by "
                "activations (02, 03, 26)"
            )
        stored = study.engine.activations(prompts, "clean", names)
        self._device = model.projections["q"][layer].device
        self._start, self._input = (stored[name].to(self._device) for name in names)
        self._upper = UpperLayers(self.model, layer, prompts.clean[:1])

    def logits(
        self, change: Change, rows: Int[Tensor, "chain row"], heads: Int[Tensor, " chain"]
    ) -> Float[Tensor, "prompt vocabulary"]:
        """At the last position of each chain's prompts `rows`, with `change` added to its head's matrices."""
        rows, heads = rows.to(self._device), heads.to(self._device)
        change, flat = {name: matrix.to(self._device) for name, matrix in change.items()}, rows.flatten()
        hooks = _displace(self.model, change, self._input[rows], heads)
        with self.model.bridge.hooks(fwd_hooks=[(f"blocks.{self.layer}.{name}", hook) for name, hook in hooks.items()]):
            return self._upper(self._start[flat], self.prompts.end[flat.cpu()])


def _displace(
    model: Model,
    change: Change,
    inputs: Float[Tensor, "chain row position d_model"],
    heads: Int[Tensor, " chain"],
) -> dict[str, Callable[[Tensor, Any], Tensor | None]]:
    """Hooks of one attention layer, {hook: function}, that give each chain's head its changed weights.

    They are exact for a change of any size: x W' is added to q, k and v, and z W_O' to the output, with z of the changed head.
    """
    n_rows = inputs.shape[1]
    head = heads.repeat_interleave(n_rows)
    group = head // (model.n_heads // len(model.projections["k"][0]))
    row = torch.arange(len(head), device=head.device)
    kept: dict[str, Tensor] = {}

    def project(tensor: Tensor, hook: object, matrix: str, index: Tensor) -> Tensor:
        gain = einsum(inputs, change[matrix], "chain row pos d, chain d dh -> chain row pos dh")
        tensor = tensor.clone()
        tensor[row, :, index] = tensor[row, :, index] + gain.flatten(0, 1)
        return tensor

    def keep(tensor: Tensor, hook: object) -> None:
        kept["z"] = tensor[row, :, head].unflatten(0, (-1, n_rows))

    def write(tensor: Tensor, hook: object) -> Tensor:
        gain = einsum(kept["z"], change["W_O"], "chain row pos dh, chain dh d -> chain row pos d")
        return tensor + gain.flatten(0, 1)

    return {
        "attn.hook_q": partial(project, matrix="W_Q", index=head),
        "attn.hook_k": partial(project, matrix="W_K", index=group),
        "attn.hook_v": partial(project, matrix="W_V", index=group),
        "attn.hook_z": keep,
        "attn.hook_out": write,  # before a norm that some architectures put after the attention
    }


class UpperLayers:
    """A model's blocks from `layer` on, its final norm and its unembedding, as a function of the residual stream.

    TransformerBridge always runs every block, so this class runs the upper blocks itself. Their other arguments (mask,
    positions) are recorded on one prompt; since padding comes last, they depend only on the prompts' padded length.
    """

    def __init__(self, model: Model, layer: int, tokens: Int[Tensor, "1 position"]) -> None:
        self.model = model
        self.blocks = list(model.bridge.blocks)[layer:]
        self.calls: list[tuple[tuple, dict[str, Any]]] = []
        handles = [block.register_forward_pre_hook(self._record, with_kwargs=True) for block in self.blocks]
        try:
            with torch.no_grad():
                model.bridge(tokens.to(model.device))
        finally:
            for handle in handles:
                handle.remove()

    def __call__(
        self, residual: Float[Tensor, "row position d_model"], end: Int[Tensor, " row"]
    ) -> Float[Tensor, "row vocabulary"]:
        """Logits at each row's last position."""
        for block, (arguments, named) in zip(self.blocks, self.calls, strict=True):
            output = block(residual, *arguments, **named)
            residual = output[0] if isinstance(output, tuple) else output
        last = residual[torch.arange(len(end), device=residual.device), end.to(residual.device)]
        return self.model.logits_of(last)

    def _record(self, block: torch.nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
        """Keep the arguments of a block except the residual stream, with None for a cache of keys and values."""
        from transformers import Cache

        arguments = tuple(None if isinstance(value, Cache) else value for value in arguments[1:])
        named = {name: None if isinstance(value, Cache) else value for name, value in named.items()}
        self.calls.append((arguments, {**named, "use_cache": False}))
