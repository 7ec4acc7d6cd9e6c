"""Roofline: the arithmetic and the memory traffic that each operation cannot avoid.

`flops` counts a multiply and an add as two operations, and only what the formula needs, without masked scores and padding.
`bytes` counts every input read once and every output written once. A machine with F floating-point operations and B bytes per
second needs at least max(flops / F, bytes / B) seconds (Williams, Waterman & Patterson 2009). Axes are named as in the
operation's own file; `itemsize` is bytes per component, 4 for fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

INDEX_BYTES = 4  # int32
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class KernelWork:
    """Floating point operations and bytes of one call."""

    flops: int
    bytes: int

    def __add__(self, other: KernelWork) -> KernelWork:
        return KernelWork(self.flops + other.flops, self.bytes + other.bytes)

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """The least time on a machine with these peaks."""
        return max(self.flops / flops_per_second, self.bytes / bytes_per_second)

    def fraction(self, seconds: float, flops_per_second: float, bytes_per_second: float) -> float:
        """The share of the roofline that a call of `seconds` reached; 1 is the roof.

        Raises ValueError if `seconds` is not positive.
        """
        if seconds <= 0:
            raise ValueError(f"a call took {seconds} seconds; time it with a finer clock or more repeats")
        return self.seconds(flops_per_second, bytes_per_second) / seconds


@dataclass(frozen=True)
class Device:
    """A GPU's float32 peaks (data sheet, without tensor cores) and its host's costs of a launch and of waiting for the GPU.

    A product reaches `gemm_share` of `flops_per_second`. The last three fields are assumptions, not measurements.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    launch_seconds: float = 5e-6
    sync_seconds: float = 20e-6
    gemm_share: float = 0.75


DEVICES = {
    "a100": Device("NVIDIA A100 80GB", 19.5e12, 2.0e12),
    "h100": Device("NVIDIA H100", 67e12, 3.35e12),
    "h200": Device("NVIDIA H200", 67e12, 4.8e12),
}


def select_project(
    *, U: int, R: int, H: int, D: int, M: int, C: int, K: int, itemsize: int, bias: bool = True
) -> KernelWork:
    """C R rows of a [H D] x [H D, M] product, plus the residual and the bias: C R M (2 H D + 1 + bias) operations.

    Bytes: z, sources, weight, bias and the parents' residual once each, picks and parents, and the output.
    """
    flops = C * R * M * (2 * H * D + 1 + bias)
    components = (U + K) * R * H * D + H * D * M + bias * M + U * R * M + C * R * M
    return KernelWork(flops, itemsize * components + INDEX_BYTES * C * (H + 1))


def suffix_attention(*, U: int, n: int, H: int, G: int, S: int, P: int, D: int, itemsize: int) -> KernelWork:
    """A query at suffix position s scores and sums P + s + 1 keys of D components: 4 D operations each.

    The softmax's few operations per score are left out, as is usual. Bytes: q, k, v and the output of every variant, and the
    prefix once.
    """
    keys = S * P + S * (S + 1) // 2
    components = U * n * S * D * (2 * H + 2 * G) + 2 * n * G * P * D
    return KernelWork(4 * D * U * n * H * keys, itemsize * components)


def packed_attention(*, B: int, H: int, G: int, S: int, D: int, itemsize: int) -> KernelWork:
    """Suffix attention of B sequences without a prefix."""
    return suffix_attention(U=B, n=1, H=H, G=G, S=S, P=0, D=D, itemsize=itemsize)


def logit_difference(*, U: int, n: int, M: int, V: int, itemsize: int, centred: bool) -> KernelWork:
    """For each state and prompt the sum of squares and the dot product, 4 M; centring adds 2 M (mean, subtraction).

    Bytes: x once, directions and bias once in fp32, parents, and the fp32 output. Root, quotient and bias, three operations per
    row, are left out.
    """
    flops = U * n * M * (6 if centred else 4)
    return KernelWork(flops, itemsize * U * n * M + FLOAT32_BYTES * (n * M + n + V * n) + INDEX_BYTES * V)
