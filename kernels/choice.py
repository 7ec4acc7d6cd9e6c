"""Choice: which implementation of an operation runs, by measurement on the device.

On a CUDA device, the first call of an operation with a new signature (dtype and shape, large axes rounded up to a power of two)
checks and times every candidate on the call's own arguments:

1. The torch reference is timed, and the other results are compared with its result.
2. torch.compile of the reference and the Triton kernel are dropped if they raise, run out of memory or differ from the
   reference by more than TOLERANCES. Compiling takes seconds for each new shape and does not pay if the reference is fast, so
   it is tried only if the reference takes WORTH_COMPILING or longer.
3. The fastest of the rest is remembered, also in a file (`choice_file`), so that later runs make the same choice; of equals, it
   is the simpler one. Non-finite arguments decide nothing: the reference runs, and the next call chooses.

On any other device the reference runs and nothing is timed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels import launch, logit_difference, packed_attention, select_project, suffix_attention
from kernels.choice_file import ChoiceFile
from results_io import UserError

Clock = Callable[[Callable[[], Tensor]], float]
Candidates = Mapping[str, Mapping[str, Callable[..., Tensor]]]

REFERENCE, COMPILED, TRITON = "reference", "compiled", "triton"
EVERY_SIGNATURE = "every signature"
MODULES = {
    module.OPERATION: module for module in (select_project, suffix_attention, packed_attention, logit_difference)
}
# axes that grow with the sweep; the other axes belong to the model and are matched exactly
LARGE_AXES = {
    select_project.OPERATION: "URKC",
    suffix_attention.OPERATION: "UnSP",
    packed_attention.OPERATION: "BS",
    logit_difference.OPERATION: "UnV",
}
# by the result's dtype: largest difference over the reference's largest entry. Half precision: eight half-steps of the last
# place; fp32: rounding of sums of a few thousand terms, a hundredth of TF32's 1e-3
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}
# seconds of the reference. At 12 of the pocket's shapes on an H100, all below 0.5 ms, compiled code took 0.05 to 0.47 ms longer
# than the reference. The first battery took 40 s there, because torch.compile and Triton compiled, later ones 0.25 s
WORTH_COMPILING = 5e-4
WARM_UPS, REPEATS = 2, 7
COMPARED_PARTS = 32
RECOMPILATIONS = (
    64  # a sweep has more patterns of size-1 axes than torch's default of 8, beyond which it silently stops compiling
)


@dataclass(frozen=True)
class KernelChoice:
    """The implementation for one signature, and why it was chosen.

    `seconds`: times of the candidates that agree with the reference. `difference`: for each candidate, the largest absolute
    difference from the reference over the reference's largest entry, None if not finite. `dropped`: the reason for each
    candidate that was dropped.
    """

    chosen: str
    why: str
    seconds: dict[str, float] = field(default_factory=dict)
    difference: dict[str, float | None] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


class Operations:
    """The four batched operations, each by the implementation that was fastest for the signature of its arguments.

    `implementation` fixes one by name (reference, compiled, triton) and times nothing; if it cannot take a signature, the
    reference runs and the choice says why. `candidates` replaces the implementations, {operation: {name: function}}, and must
    include the reference. `clock` gives the seconds of a call after warm-up; if it is given, choices are measured on any
    device. `file` keeps choices between processes; signatures in it are not timed again. Raises UserError for an implementation
    that no operation has.

    While it measures, the results of the reference and of one candidate are in memory together. Do not capture a CUDA graph
    around the first call of a signature.
    """

    def __init__(
        self,
        device: torch.device | str,
        implementation: str | None = None,
        candidates: Candidates | None = None,
        clock: Clock | None = None,
        file: ChoiceFile | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.file = file
        self.implementation = implementation
        self._candidates = candidates or default_candidates()
        self._clock = clock or cuda_seconds
        self._measures = clock is not None or self.device.type == "cuda"
        self._choices: dict[str, dict[str, KernelChoice]] = {operation: {} for operation in MODULES}
        self._kept = file.read() if file is not None and self._measures else {}
        known = sorted({name for functions in self._candidates.values() for name in functions})
        if implementation is not None and implementation not in known:
            raise UserError(f"implementation {implementation!r} is unknown; use one of {', '.join(known)}")

    def select_project(
        self,
        z: Float[Tensor, "parents rows head d_head"],
        sources: Float[Tensor, "sources rows head d_head"],
        pick: Int[Tensor, "children head"],
        parent: Int[Tensor, " children"],
        weight: Float[Tensor, "head d_head d_model"],
        bias: Float[Tensor, " d_model"] | None,
        residual: Float[Tensor, "parents rows d_model"],
    ) -> Float[Tensor, "children rows d_model"]:
        """Heads from the parent state or a source, projected and added to the residual; see kernels.select_project."""
        note = "" if bias is None else " bias"
        return self._run(select_project, (z, sources, pick, parent, weight, bias, residual), note)

    def suffix_attention(
        self,
        q: Float[Tensor, "variant prompt head position d_head"],
        k: Float[Tensor, "variant prompt group position d_head"],
        v: Float[Tensor, "variant prompt group position d_head"],
        prefix_k: Float[Tensor, "prompt group prefix d_head"],
        prefix_v: Float[Tensor, "prompt group prefix d_head"],
        scale: float,
    ) -> Float[Tensor, "variant prompt position head d_head"]:
        """Attention over a shared clean prefix and the variant's own suffix; see kernels.suffix_attention."""
        return self._run(suffix_attention, (q, k, v, prefix_k, prefix_v, scale))

    def packed_attention(
        self,
        q: Float[Tensor, "batch head position d_head"],
        k: Float[Tensor, "batch group position d_head"],
        v: Float[Tensor, "batch group position d_head"],
        scale: float,
    ) -> Float[Tensor, "batch position head d_head"]:
        """Causal attention of many short sequences; see kernels.packed_attention."""
        return self._run(packed_attention, (q, k, v, scale))

    def logit_difference(
        self,
        x: Float[Tensor, "state prompt d_model"],
        directions: Float[Tensor, "prompt d_model"],
        bias: Float[Tensor, " prompt"],
        parent: Int[Tensor, " variant"],
        eps: float,
        centred: bool,
    ) -> Float[Tensor, "variant prompt"]:
        """Final norm dotted with the answer-minus-foil direction; see kernels.logit_difference."""
        note = " centred" if centred else ""
        return self._run(logit_difference, (x, directions, bias, parent, eps, centred), note)

    def chosen(self) -> dict[str, dict[str, dict[str, Any]]]:
        """{operation: {signature: choice}} so far, as JSON data; `KernelChoice` describes the fields."""
        return {
            operation: {signature: asdict(choice) for signature, choice in choices.items()}
            for operation, choices in self._choices.items()
            if choices
        }

    def implementations(self) -> dict[str, dict[str, str]]:
        """{operation: {signature: implementation}}, as results record it.

        If nothing is timed, one implementation is recorded for EVERY_SIGNATURE, next to the signatures that it cannot take. The
        record then does not depend on earlier calls.
        """
        found = {
            operation: {signature: choice.chosen for signature, choice in choices.items()}
            for operation, choices in self._choices.items()
        }
        if self._measures and self.implementation is None:
            return {operation: choices for operation, choices in found.items() if choices}
        usual = self.implementation or REFERENCE
        return {
            operation: {EVERY_SIGNATURE: usual} | {name: own for name, own in choices.items() if own != usual}
            for operation, choices in found.items()
        }

    def _run(self, module: ModuleType, arguments: tuple[Any, ...], note: str = "") -> Tensor:
        operation = module.OPERATION
        if arguments[0].device.type != self.device.type:
            raise ValueError(
                f"{operation}: tensors on {arguments[0].device} and Operations for {self.device}; make one for that device"
            )
        signature = signature_of(module, arguments) + note
        choices, functions = self._choices[operation], self._candidates[operation]
        if signature not in choices:
            choice = self._choose(operation, signature, arguments)
            if choice is None:
                return functions[REFERENCE](*arguments)
            choices[signature] = choice
        try:
            return functions[choices[signature].chosen](*arguments)
        except RecompilationError as error:
            choices[signature] = KernelChoice(REFERENCE, str(error))
            return functions[REFERENCE](*arguments)

    def _choose(self, operation: str, signature: str, arguments: tuple[Any, ...]) -> KernelChoice | None:
        """The choice for a signature; None if these arguments cannot decide it."""
        functions = self._candidates[operation]
        if self.implementation is not None:
            return _fixed(self.implementation, functions, arguments)
        if not self._measures:
            return KernelChoice(REFERENCE, f"nothing is timed on {self.device.type}")
        kept = self._kept.get(operation, {}).get(signature)
        if kept is None or kept["chosen"] not in functions:
            with torch.cuda.device_of(arguments[0]):  # the clock's events belong to the current device's stream
                found = fastest(functions, arguments, self._clock)
            if found is None or self.file is None:
                return found
            kept = self.file.keep(operation, signature, asdict(found))
            if kept["chosen"] not in functions:  # made by a process with other candidates
                return found
        known = {name: kept[name] for name in KernelChoice.__annotations__ if name in kept}
        return KernelChoice(**{"why": "kept by another process", **known})


def _fixed(name: str, functions: Mapping[str, Callable[..., Tensor]], arguments: tuple[Any, ...]) -> KernelChoice:
    """The implementation `name`, or the reference if it refuses the arguments (too long, too wide, another dtype)."""
    if name == TRITON:
        try:
            functions[name](*arguments)
        except ValueError as error:
            return KernelChoice(REFERENCE, str(error))
    return KernelChoice(name, "fixed by name")


def fastest(
    functions: Mapping[str, Callable[..., Tensor]], arguments: tuple[Any, ...], clock: Clock
) -> KernelChoice | None:
    """Check every function against the reference, time those that agree, and choose.

    None if the reference's result is not finite, since nothing can be compared with it. Errors of the reference propagate;
    errors of any other candidate drop it.
    """
    expected = functions[REFERENCE](*arguments)
    if not bool(expected.isfinite().all()):
        return None
    seconds = {REFERENCE: clock(lambda: functions[REFERENCE](*arguments))}
    differences: dict[str, float | None] = {REFERENCE: 0.0}
    dropped: dict[str, str] = {}
    for name in functions:
        if name == REFERENCE:
            continue
        if name == COMPILED and seconds[REFERENCE] < WORTH_COMPILING:
            dropped[name] = f"not tried where the reference takes less than {1000 * WORTH_COMPILING:g} ms"
            continue
        try:
            difference, reason = compare(functions[name](*arguments), expected)
            differences[name] = difference
            if reason is None:
                seconds[name] = clock(lambda name=name: functions[name](*arguments))
        except torch.OutOfMemoryError:
            reason = "out of memory"
        except Exception as error:  # whatever a compiler raises, fall back to the reference
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if reason is not None:
            dropped[name] = reason
    if "out of memory" in dropped.values() and torch.cuda.is_available():
        torch.cuda.empty_cache()
    why = f"fastest of {len(seconds)} that agree" if len(seconds) > 1 else "no other candidate agrees"
    return KernelChoice(min(seconds, key=seconds.__getitem__), why, seconds, differences, dropped)


def compare(result: Tensor, expected: Tensor) -> tuple[float | None, str | None]:
    """(difference, reason to drop): largest |result - expected| over the largest |expected|, and None if within tolerance.

    The difference is None if it is not finite, or if shapes or dtypes differ.
    """
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return None, f"gave {result.dtype} {list(result.shape)}, the reference {expected.dtype} {list(expected.shape)}"
    if not expected.numel():
        return 0.0, None
    dtype = torch.promote_types(expected.dtype, torch.float32)
    parts = zip(result.chunk(COMPARED_PARTS), expected.chunk(COMPARED_PARTS), strict=True)  # to bound memory
    error = torch.stack([(one.to(dtype) - other.to(dtype)).abs().max() for one, other in parts]).max()
    difference = float(error / expected.abs().max().to(dtype).clamp(min=torch.finfo(dtype).tiny))
    tolerance = TOLERANCES[expected.dtype]
    if not math.isfinite(difference):
        return None, "differs from the reference by a number that is not finite"
    return difference, None if difference <= tolerance else f"differs by {difference:.1e}, more than {tolerance:.1e}"


def signature_of(module: ModuleType, arguments: tuple[Any, ...]) -> str:
    """Dtype and axes, as in "float32 B=16384 H=12 S=32 D=64 G=12"; large axes are rounded up to a power of two.

    Raises ValueError for shapes that do not fit the operation.
    """
    named = dict(zip(module.ARGUMENTS, arguments, strict=True))
    tensors = {name: named[name] for name in module.LAYOUTS}
    sizes = launch.require_shapes(module.OPERATION, module.LAYOUTS, tensors)
    large = LARGE_AXES[module.OPERATION]
    axes = (f"{axis}={bucket(length) if axis in large else length}" for axis, length in sizes.items())
    return f"{str(arguments[0].dtype).removeprefix('torch.')} {' '.join(axes)}"


def bucket(length: int) -> int:
    """The next power of two; 0 stays 0."""
    return 1 << (length - 1).bit_length() if length > 0 else 0


def cuda_seconds(call: Callable[[], Tensor]) -> float:
    """Median seconds of REPEATS calls between CUDA events, after WARM_UPS."""
    for _ in range(WARM_UPS):
        call()
    times = []
    for _ in range(REPEATS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1000)
    return statistics.median(times)


def default_candidates() -> dict[str, dict[str, Callable[..., Tensor]]]:
    """Reference, torch.compile of it, and Triton kernel of every operation, the simpler first."""
    return {
        operation: {
            REFERENCE: module.reference,
            COMPILED: compiled(module.reference),
            TRITON: getattr(module, operation),
        }
        for operation, module in MODULES.items()
    }


class RecompilationError(RuntimeError):
    """Raised when torch.compile has reached its limit for a function and would run it uncompiled from now on."""


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.compile of `function`, set up at the first call because it imports the compiler.

    Sizes are dynamic, so that later calls of the signature run the code that was timed. A size of 1 or 0 needs its own code, so
    RECOMPILATIONS are allowed; beyond them it raises RecompilationError.
    """
    program: list[Callable[..., Tensor]] = []

    def call(*arguments: Any) -> Tensor:
        if not program:
            program.append(torch.compile(function, dynamic=True))
        from torch._dynamo import config, exc

        try:
            with config.patch(recompile_limit=RECOMPILATIONS, fail_on_recompile_limit_hit=True):
                return program[0](*arguments)
        except exc.FailOnRecompileLimitHit as error:
            raise RecompilationError(f"compiled {RECOMPILATIONS} times, torch.compile compiles no more") from error

    return call
