"""Do the backends compute the model? Plain Hugging Face, the hooked bridge and the fused backend on the same prompts.

The bridge folds the gains of norms into the weights that read them, and centres the weights that write. Its logits
therefore equal the plain model's up to a constant per position, so log-probabilities and logit differences are compared.
A difference that vanishes in float64 is rounding. One that remains means a different function; the first block whose
output differs shows where.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from circuits import models, runnable
from circuits.engine import FusedEngine
from circuits.engine.lens import LensEngine
from circuits.engine.scores import gather
from circuits.engine.selection import prove_parity
from circuits.models import Model, UnsupportedArchitectureError
from circuits.prompts import PromptSet
from circuits.study import Study

FOLDED = 1e-5  # norms are folded in float32 whatever the dtype, which rounds each weight by 6e-8 of its size
PRECISIONS = ("float32", "float64")
PROBES = 4  # prompts, of different lengths where possible
NO_NUMBER = 1e100  # stands for infinity and NaN
SAME, ROUNDING, OTHER = "the same function", "rounding", "a different function"
QUANTITIES = ("log-probability, last position", "log-probability, all positions", "logit difference")


@dataclass(frozen=True)
class BackendComparison:
    """How far a backend is from the plain model in one dtype.

    `difference`: the largest absolute difference in each of QUANTITIES, in nats; `relative`: the same divided by the plain
    model's largest value. Both are None if the backend does not run the model; `why` gives the reason.
    """

    dtype: str
    backend: str
    tolerance: float
    difference: Mapping[str, float] | None
    relative: Mapping[str, float] | None
    why: str = ""

    @property
    def agrees(self) -> bool | None:
        return None if self.relative is None else all(value <= self.tolerance for value in self.relative.values())


@dataclass(frozen=True)
class Departure:
    """max |bridge - plain| / max |plain| of the residual stream at the embedding and after each block, in `dtype`.

    `first` names the first place where it exceeds `tolerance`; None if there is none.
    """

    dtype: str
    error: tuple[float, ...]
    tolerance: float
    first: str | None


@dataclass(frozen=True)
class Parity:
    """`comparisons` of every backend in every dtype; `verdict` is SAME, ROUNDING or OTHER; `sentence` says it in words.

    `interventions`: how the backends' interventions compare, by dtype (a fused run has checked its own dtype already).
    `left_out`: why a dtype was not compared.
    """

    comparisons: tuple[BackendComparison, ...]
    interventions: Mapping[str, str]
    left_out: Mapping[str, str]
    departure: Departure | None
    verdict: str
    sentence: str


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """A model's outputs for the clean and corrupted runs of some prompts, in float64 on the CPU.

    Log-probabilities are kept for real positions only, not for padding.
    """

    end: Float[Tensor, "row vocabulary"]
    everywhere: Float[Tensor, "token vocabulary"]
    logit_diff: Float[Tensor, " row"]


@dataclass(frozen=True)
class Facts:
    """Facts that only the plain model provides."""

    parameters: int
    tied: bool


# --- the recipe ---------------------------------------------------------------------------------------------------


def compare(
    settings: Mapping[str, Any], study: Study, engine: Mapping[str, Any], say: Callable[[str], Any]
) -> tuple[Parity, Facts]:
    """Compare all three in the run's dtype, float32 and float64; each further dtype loads the model again.

    `settings` and `engine` are sections of the configuration. UserError as for `models.load`.
    """
    probes = study.prompts.select(some_of_every_length(study.prompts))
    comparisons: list[BackendComparison] = []
    facts: list[Facts] = []
    interventions, left_out, departure = {}, {}, None
    for dtype in dict.fromkeys((study.model.precision, *PRECISIONS)):
        reason = _too_large(study.model, dtype)
        if reason is not None and facts:
            left_out[dtype] = reason
            continue
        say(f"comparing forward passes in {dtype}")
        plain, _ = models.load_plain({**settings, "dtype": dtype}, study.model.identity)
        facts.append(_facts(plain))
        expected, streams = of_plain(plain, probes), plain_streams(plain, probes, study.model)
        del plain  # before the next model takes as much memory
        same = study.model.precision == dtype
        model = study.model if same else models.load({**settings, "dtype": dtype})
        tolerance = float(engine["tolerance"][dtype])
        fused, interventions[dtype] = _of_fused(model, study, probes, engine, tolerance)
        tolerance = max(tolerance, FOLDED) if dtype == "float64" else tolerance
        comparisons.append(_comparison(dtype, "lens", tolerance, expected, of_bridge(model, probes)))
        comparisons.append(_comparison(dtype, "fused", tolerance, expected, fused, interventions[dtype]))
        departure = departs(dtype, streams, bridge_streams(model, probes), tolerance)
        if model is not study.model:
            del model
            gc.collect()  # a bridge is part of reference cycles
    verdict, sentence = judge(comparisons, departure)
    return Parity(tuple(comparisons), interventions, left_out, departure, verdict, sentence), facts[0]


def some_of_every_length(prompts: PromptSet) -> list[int]:
    """The first prompt of each of up to PROBES lengths, the shortest and the longest included."""
    first = {end: row for row, end in reversed(list(enumerate(prompts.end.tolist())))}
    lengths = sorted(first)
    chosen = {round(place * (len(lengths) - 1) / (PROBES - 1)) for place in range(PROBES)}
    return [first[lengths[place]] for place in sorted(chosen)]


def judge(comparisons: Sequence[BackendComparison], departure: Departure | None) -> tuple[str, str]:
    """(SAME, ROUNDING or OTHER, the verdict as a sentence)."""
    double = PRECISIONS[-1]
    known = any(one.dtype == double for one in comparisons)
    wrong = [one for one in comparisons if one.agrees is False]
    if not wrong:
        compared = " and ".join(dict.fromkeys(one.backend for one in comparisons if one.agrees))
        return SAME, f"{compared} compute the plain model's function" + (
            "" if known else ", as far as float32 can tell"
        )
    shown = [one for one in wrong if one.dtype == double] or [one for one in wrong if one.dtype == wrong[-1].dtype]
    named, dtype = " and ".join(one.backend for one in shown), shown[0].dtype
    largest = f"{max(max(one.relative.values()) for one in shown if one.relative):.1e} of the largest value in {dtype}"
    verb = "differs" if len(shown) == 1 else "differ"
    if dtype != double and known:
        finer = PRECISIONS[dtype in PRECISIONS]  # float32, or float64 for float32 itself
        return ROUNDING, (
            f"rounding: {named} {verb} by {largest} and not in float64; run with model.dtype={finer} where small "
            "effects matter"
        )
    return OTHER, (
        f"a different function: {named} {verb} from plain Hugging Face by {largest}"
        f"{'' if known else ' (float64 was not compared)'}{_where(shown, departure)}; do not trust results"
    )


def _where(wrong: Sequence[BackendComparison], departure: Departure | None) -> str:
    """Where the bridge departs; empty if the bridge is not among the `wrong` backends."""
    if departure is None or all(one.backend != "lens" for one in wrong):
        return ""
    if departure.first is None:
        return ", in the final norm or the unembedding, as all blocks agree"
    return f", first at {departure.first}"


# --- the plain model ----------------------------------------------------------------------------------------------


def _facts(plain: PreTrainedModel) -> Facts:
    unembedding = plain.get_output_embeddings()
    tied = unembedding is not None and unembedding.weight is plain.get_input_embeddings().weight
    return Facts(sum(parameter.numel() for parameter in plain.parameters()), tied)


@torch.no_grad()
def of_plain(plain: PreTrainedModel, probes: PromptSet) -> ModelOutputs:
    def logits(tokens: Int[Tensor, "row position"]) -> Tensor:
        return plain(tokens.to(plain.device), use_cache=False).logits

    return _outputs(logits, probes)


@torch.no_grad()
def of_bridge(model: Model, probes: PromptSet) -> ModelOutputs:
    def logits(tokens: Int[Tensor, "row position"]) -> Tensor:
        return model.bridge(tokens.to(model.device), return_type="logits")

    return _outputs(logits, probes)


@torch.no_grad()
def _of_fused(
    model: Model, study: Study, probes: PromptSet, engine: Mapping[str, Any], tolerance: float
) -> tuple[ModelOutputs | None, str]:
    """The decoder's outputs, and how its interventions compare; (None, why) for a model that it does not run.

    Interventions take far longer to compare than a forward pass, and a fused run has compared them already. In any other run,
    every dtype is tried, to tell rounding from an error.
    """
    reference = study.engine.reference.prompts
    try:
        fused = FusedEngine(model, reference, memory_mib=engine["memory_mib"])
    except UnsupportedArchitectureError as reason:
        return None, str(reason)
    longest = fused.decoder.longest
    if longest is not None and int(probes.end.max()) >= longest:
        return None, f"the prompts are longer than the {longest} tokens of which attention sees a window"
    try:
        known = study.engine.describe()["backend"] == "fused"
        own = study.model.precision
        why = study.engine.why if model is study.model else f"{study.engine.why}, in {own}"
        proved = why if known else prove_parity(fused, LensEngine(model, reference), probes, tolerance)
    except UnsupportedArchitectureError as reason:
        proved = str(reason)

    def logits(tokens: Int[Tensor, "row position"]) -> Tensor:
        count, length = tokens.shape  # the decoder gives logits at one position of each row
        rows, ends = tokens.repeat_interleave(length, 0).to(model.device), torch.arange(length).repeat(count)
        return fused.decoder.forward(rows, ends, []).unflatten(0, (count, length))

    return _outputs(logits, probes), proved


def _outputs(logits: Callable[[Tensor], Tensor], probes: PromptSet) -> ModelOutputs:
    """Clean and corrupted runs, row by row; positions after a prompt's end are left out."""
    ends, everywhere, differences = [], [], []
    for tokens in (probes.clean, probes.corrupted):
        found = logits(tokens).cpu().double()
        rows = torch.arange(len(probes))
        at_end = found[rows, probes.end]
        log_probability = found.log_softmax(-1)
        ends.append(log_probability[rows, probes.end])
        everywhere.append(log_probability[_real(probes)])
        answers, wrong = gather(at_end, probes.answers), gather(at_end, probes.wrong)
        differences.append(torch.nanmean(answers, 1) - torch.nanmean(wrong, 1))
    return ModelOutputs(torch.cat(ends), torch.cat(everywhere), torch.cat(differences))


def _real(probes: PromptSet) -> Tensor:
    """True at every position up to a prompt's end, [prompt, position]."""
    return torch.arange(probes.clean.shape[1]) <= probes.end[:, None]


def _comparison(
    dtype: str, backend: str, tolerance: float, expected: ModelOutputs, found: ModelOutputs | None, why: str = ""
) -> BackendComparison:
    if found is None:
        return BackendComparison(dtype, backend, tolerance, None, None, why)
    pairs = (
        (expected.end, found.end),
        (expected.everywhere, found.everywhere),
        (expected.logit_diff, found.logit_diff),
    )
    difference = {name: _largest(b - a) for name, (a, b) in zip(QUANTITIES, pairs, strict=True)}
    relative = {name: difference[name] / (_largest(a) or 1.0) for name, (a, _) in zip(QUANTITIES, pairs, strict=True)}
    return BackendComparison(dtype, backend, tolerance, difference, relative)


def _largest(values: Tensor) -> float:
    """The largest absolute value; if one is not finite, NO_NUMBER, which exceeds any tolerance and fits into JSON."""
    return min(float(values.abs().nan_to_num(nan=float("inf")).max()), NO_NUMBER)


# --- where they depart --------------------------------------------------------------------------------------------


@torch.no_grad()
def plain_streams(plain: PreTrainedModel, probes: PromptSet, model: Model) -> list[Float[Tensor, "position d_model"]]:
    """The residual stream before the first block and after each one, at real positions of the clean runs.

    It is centred as the bridge's is. The blocks' own outputs are read, because Hugging Face's last hidden state has been
    through the final norm.
    """
    kept: list[Tensor] = []

    def keep(values: Tensor) -> None:
        kept.append(values.detach().cpu().double()[_real(probes)])

    with _watching(blocks_of(plain, model.n_layers), keep):
        plain(probes.clean.to(plain.device), use_cache=False)
    return [values - values.mean(-1, keepdim=True) if model.centred_norm else values for values in kept]


def blocks_of(plain: PreTrainedModel, n_layers: int) -> nn.ModuleList:
    """The list of a model's blocks: the first one with as many modules as it has layers."""
    return next(m for m in plain.modules() if isinstance(m, nn.ModuleList) and len(m) == n_layers)


@contextmanager
def _watching(blocks: nn.ModuleList, keep: Callable[[Tensor], None]) -> Iterator[None]:
    """A context that calls `keep` with the input of the first block and the output of each block."""

    def enter(block: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
        keep(arguments[0] if arguments else named["hidden_states"])

    def leave(block: nn.Module, arguments: tuple, output: Any) -> None:
        keep(output[0] if isinstance(output, tuple) else output)

    handles = [blocks[0].register_forward_pre_hook(enter, with_kwargs=True)]
    handles += [block.register_forward_hook(leave) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def bridge_streams(model: Model, probes: PromptSet) -> list[Float[Tensor, "position d_model"]]:
    """The bridge's residual stream at the same places."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor, hook: object) -> None:
        kept.append(tensor.detach().cpu().double()[_real(probes)])

    names = ["blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in range(model.n_layers))]
    hooks = [(name, keep) for name in names]
    model.bridge.run_with_hooks(probes.clean.to(model.device), fwd_hooks=hooks, return_type="logits")
    return kept


def departs(dtype: str, expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> Departure:
    """Where the streams first differ by more than `tolerance` of the largest component."""
    error = [_largest(b - a) / (_largest(a) or 1.0) for a, b in zip(expected, found, strict=True)]
    first = next((place for place, value in enumerate(error) if not value <= tolerance), None)
    named = None if first is None else "the embedding" if first == 0 else f"block {first - 1}"
    return Departure(dtype, tuple(error), tolerance, named)


# --- memory -------------------------------------------------------------------------------------------------------


def _too_large(model: Model, dtype: str) -> str | None:
    """Why memory cannot hold the model once more in this dtype; None if it fits."""
    needed = sum(p.numel() for p in model.bridge.parameters()) * models.kept_dtype(dtype).itemsize
    free = runnable.free_bytes(model.device)
    if free is None or needed <= free:
        return None
    return f"{dtype} needs {needed / 2**30:.1f} GiB more and {free / 2**30:.1f} GiB are free"
