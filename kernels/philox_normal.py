"""Philox normal: standard normal numbers as functions of counters, in one launch for a whole pass.

    out[s, p, i] = number i % 4 of Box-Muller on the four words of Philox4x32-10(counter (i // 4, streams[s]), key[:, p])

S streams of three words, P prompts with a key of two words, I components. The words are those of `circuits.engine.philox`,
which is the reference and has the formulas; normal numbers are computed in float64 and rounded once.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels import launch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

OPERATION = "philox_normal"
BLOCK = 256  # counters per program; not tuned
PER_COUNTER = 4


def philox_normal(
    key: Int[Tensor, "2 prompt"], streams: Int[Tensor, "stream 3"], components: int
) -> Float[Tensor, "stream prompt component"]:
    """Float32 numbers by the module's formula, in one Triton kernel. `key` and `streams` hold 32-bit words in int64.

    Raises ValueError for words of another type, or if Triton cannot run.
    """
    for name, words, axes in (("key", key, (2, key.shape[-1])), ("streams", streams, (len(streams), 3))):
        if words.dtype != torch.int64 or tuple(words.shape) != axes:
            raise ValueError(f"{OPERATION}: {name} is {words.dtype} {list(words.shape)}; pass int64 {list(axes)}")
    out = torch.empty(len(streams), key.shape[1], components, dtype=torch.float32, device=key.device)
    launch.require_launchable(OPERATION, {"out": out}, {"key": key, "streams": streams})
    if out.numel():
        _launch(out, key.contiguous(), streams.contiguous())
    return out


def runs_on(device: torch.device) -> bool:
    """True if the kernel draws the numbers on this device, that is on a GPU with Triton installed."""
    return triton is not None and device.type == "cuda"


def _launch(out: Tensor, key: Tensor, streams: Tensor) -> None:
    n_streams, n_prompts, components = out.shape
    assert triton is not None  # `require_launchable` has checked it
    with torch.cuda.device_of(out):
        _kernel[(n_streams * n_prompts, triton.cdiv(components, PER_COUNTER * BLOCK))](
            out, key, streams, n_prompts, components, BLOCK=BLOCK, num_warps=4
        )


if triton is not None:
    UNIT = tl.constexpr(2.0**-32)
    QUARTER = tl.constexpr(math.pi / 2)

    @triton.jit
    def _pair(word, other):
        """Box-Muller: r cos t and r sin t with r = sqrt(-2 log u(word)), t = 2 pi u(other), u(w) = (w + 1/2) / 2^32.

        The angle is first reduced, without rounding, to within an eighth of a turn of a multiple of a quarter turn, where a
        series is exact in float64. The compiler's own cosine would need extra memory, since it takes angles of any size.
        """
        radius = tl.sqrt(-2.0 * tl.log((word.to(tl.float64) + 0.5) * UNIT))
        quarters = (other.to(tl.float64) + 0.5) * (4 * UNIT)
        whole = tl.floor(quarters + 0.5)
        x = (quarters - whole) * QUARTER
        square = x * x
        sine = square * 0.0 + 1.0
        cosine = sine
        for n in tl.static_range(8, 0, -1):  # pyright: ignore[reportGeneralTypeIssues]; to x^17 / 17! and x^16 / 16!
            sine = 1.0 - sine * square * (1.0 / (2 * n * (2 * n + 1)))
            cosine = 1.0 - cosine * square * (1.0 / (2 * n * (2 * n - 1)))
        sine = sine * x
        turned = whole.to(tl.int32) & 3
        odd = (turned & 1) == 1
        across, along = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
        across = tl.where((turned == 1) | (turned == 2), -across, across)
        along = tl.where(turned >= 2, -along, along)
        return (radius * across).to(tl.float32), (radius * along).to(tl.float32)

    @launch.kernel
    def _kernel(out_ptr, key_ptr, streams_ptr, n_prompts, components, BLOCK: tl.constexpr):
        """Four numbers for each counter; one program takes BLOCK counters of one stream and prompt."""
        row = tl.program_id(0).to(tl.int64)
        counter = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        stream, prompt = row // n_prompts, row % n_prompts
        seed = tl.load(key_ptr + prompt) | (tl.load(key_ptr + n_prompts + prompt) << 32)
        block = counter.to(tl.uint32)
        layer = tl.load(streams_ptr + 3 * stream).to(tl.uint32)
        draw = tl.load(streams_ptr + 3 * stream + 1).to(tl.uint32)
        kind = tl.load(streams_ptr + 3 * stream + 2).to(tl.uint32)
        same = tl.zeros_like(block)
        w0, w1, w2, w3 = tl.philox(seed, block, same + layer, same + draw, same + kind)
        place, into = 4 * counter, out_ptr + row * components
        first, second = _pair(w0, w1)
        tl.store(into + place, first, mask=place < components)
        tl.store(into + place + 1, second, mask=place + 1 < components)
        third, fourth = _pair(w2, w3)
        tl.store(into + place + 2, third, mask=place + 2 < components)
        tl.store(into + place + 3, fourth, mask=place + 3 < components)
