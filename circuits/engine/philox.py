"""Philox: counter-based random numbers, which depend on what they are drawn for and not on earlier draws.

    words(counter, key)   the four 32-bit words of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
                          SC 2011): ten rounds of two 32 x 32 -> 64 bit products
    normal                Box-Muller on words (0, 1) and on words (2, 3): r cos t and r sin t with
                          r = sqrt(-2 log u(w)), t = 2 pi u(w'), u(w) = (w + 1/2) / 2^32
    choice among n        floor(n w / 2^32) of word 0, which favours no choice by more than n / 2^32

The key belongs to a prompt, and the counter (`NoiseStream`, component) selects one of its numbers. So batches, their order,
padding, chunks, threads and devices change nothing. Words are exact integers, the same on every device. Normal numbers are
computed in float64 and rounded once, so devices differ at most in the last place of the dtype, and rarely.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits.engine.indices import on_device
from kernels.philox_normal import philox_normal, runs_on
from results_io import UserError

GENERATOR = "Philox4x32-10, Box-Muller"
ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # added to the key after each round: the golden ratio and sqrt(3) - 1
LOW = 0xFFFFFFFF
WORDS = 4  # per counter
MIXED = 3  # rounds after which every word depends on all of counter and key, and so has the shape of the result
# counters at a time: on a CPU few enough for its caches with all intermediate values, on CUDA enough to hide launches
AT_ONCE = {"cpu": 2**15, "cuda": 2**21}

Four = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class NoiseStream:
    """A stream of a prompt's numbers: their purpose `kind`, the `layer`, and the number of the `draw`.

    Raises UserError for a layer or draw outside 32 bits.
    """

    kind: str
    layer: int
    draw: int

    def __post_init__(self) -> None:
        for name, value in (("layer", self.layer), ("draw", self.draw)):
            if not 0 <= value <= LOW:
                raise UserError(f"{name} {value} of {self.kind} has no random numbers; use one from 0 to {LOW}")

    @classmethod
    def of_hook(cls, hook: str, draw: int) -> NoiseStream:
        """The stream of a hook point: its layer, with its name without the layer as `kind`."""
        parts = hook.split(".", 2)
        return cls(parts[2], int(parts[1]), draw) if parts[0] == "blocks" else cls(hook, 0, draw)

    @property
    def counter(self) -> tuple[int, int, int]:
        """The upper three words of the stream's counters; the lowest word counts the components, four to a counter."""
        return self.layer, self.draw, zlib.crc32(self.kind.encode())


def keys(seed: int, ids: Sequence[str], device: torch.device | str = "cpu") -> Int[Tensor, "2 prompt"]:
    """The low and high word of each prompt's key: the first 64 bits of the SHA-256 of "<seed>/<id>"."""
    numbers = [int.from_bytes(hashlib.sha256(f"{seed}/{one}".encode()).digest()[:8], "big") for one in ids]
    both = torch.tensor([[one & LOW for one in numbers], [one >> 32 for one in numbers]], dtype=torch.long)
    return on_device(both, torch.device(device))


def words(counter: Four, key: tuple[Tensor, Tensor]) -> Four:
    """Philox4x32-10 of 32-bit words, held in int64 tensors that broadcast against each other."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        # products wrap around at 64 bits, which keeps their bits right; the next mask removes what exceeds a low word
        low, high = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        if number < MIXED:
            c0, c2 = ((high >> 32) ^ c1 ^ k0) & LOW, ((low >> 32) ^ c3 ^ k1) & LOW
        else:
            c0 = torch.bitwise_right_shift(high, 32, out=c0).bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(LOW)
            c2 = torch.bitwise_right_shift(low, 32, out=c2).bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(LOW)
        c1, c3 = high, low
        k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
    return c0, c1 & LOW, c2, c3 & LOW


def normal(
    key: Int[Tensor, "2 prompt"], streams: Sequence[NoiseStream], components: int, dtype: torch.dtype
) -> Float[Tensor, "stream prompt component"]:
    """Standard normal numbers on the key's device: component i of a (stream, prompt) is number i % 4 of counter i // 4.

    On a GPU, float32 numbers take one launch, whatever their number.
    """
    device, prompts, blocks = key.device, key.shape[1], -(-components // WORDS)
    upper = on_device(torch.tensor([stream.counter for stream in streams], dtype=torch.long).view(-1, 3), device)
    if device.type == "meta":  # a dry run counts one launch for this kernel and needs no numbers
        return torch.empty(len(streams), prompts, components, dtype=dtype, device=device).normal_()
    if dtype == torch.float32 and runs_on(device):
        return philox_normal(key, upper, components)
    upper = upper.T
    block = torch.arange(blocks, device=device)
    out = torch.empty(len(streams), prompts, blocks, WORDS, dtype=dtype, device=device)
    for some, rows in _chunks(len(streams), prompts, blocks, AT_ONCE.get(device.type, AT_ONCE["cuda"])):
        layer, draw, kind = upper[:, some, None, None]
        drawn = words((block, layer, draw, kind), (key[0, rows, None], key[1, rows, None]))
        for first in (0, 2):
            radius = _uniform(drawn[first]).log_().mul_(-2).sqrt_()
            angle = _uniform(drawn[first + 1]).mul_(2 * math.pi)
            out[some, rows, :, first] = radius * angle.cos()
            out[some, rows, :, first + 1] = radius.mul_(angle.sin_())
    return out.flatten(2)[..., :components]


def choice(key: Int[Tensor, "2 prompt"], stream: NoiseStream, counts: Int[Tensor, " prompt"]) -> Int[Tensor, " prompt"]:
    """A number from 0 to count - 1 for each prompt, uniform up to count / 2^32."""
    layer, draw, kind = (torch.full_like(key[0], word) for word in stream.counter)
    return (words((torch.zeros_like(key[0]), layer, draw, kind), (key[0], key[1]))[0] * counts) >> 32


def _uniform(word: Int[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """(w + 1/2) / 2^32 in float64, exact, never 0 and never 1."""
    return word.to(torch.float64).add_(0.5).mul_(2.0**-32)


def _chunks(streams: int, prompts: int, blocks: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Slices (streams, prompts) with about `most` counters together, and at least one stream of one prompt."""
    rows = min(prompts, max(1, most // max(1, blocks)))
    some = max(1, most // max(1, rows * blocks))
    for start in range(0, streams, some):
        for first in range(0, prompts, max(1, rows)):
            yield slice(start, start + some), slice(first, first + rows)
