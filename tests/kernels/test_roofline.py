"""Operation and byte counts against counts by hand."""

from __future__ import annotations

import pytest

from kernels import roofline
from kernels.roofline import KernelWork


def test_select_project_by_hand():
    # 3 children x 5 rows x 7 columns; 2 heads x 4 components each a multiply and an add, then residual and bias
    work = roofline.select_project(U=2, R=5, H=2, D=4, M=7, C=3, K=1, itemsize=4)
    assert work.flops == 3 * 5 * 7 * (2 * 8 + 2) == 1890
    # z 80, sources 40, weight 56, bias 7, residual 70, output 105 components; 6 picks and 3 parents
    assert work.bytes == 4 * (80 + 40 + 56 + 7 + 70 + 105) + 4 * (6 + 3) == 1468
    without = roofline.select_project(U=2, R=5, H=2, D=4, M=7, C=3, K=1, itemsize=4, bias=False)
    assert work.flops - without.flops == 105 and work.bytes - without.bytes == 28


def test_select_project_of_gpt2_per_row():
    """1.18 MFLOP and, in bf16, 4.6 kB a row: the arithmetic intensity of 256 in the specification."""
    rows = 1280 * 145
    work = roofline.select_project(U=145, R=1280, H=12, D=64, M=768, C=145, K=0, itemsize=2)
    assert work.flops / rows == pytest.approx(1.18e6, rel=5e-3)
    assert work.bytes / rows == pytest.approx(4.6e3, rel=5e-3)
    assert work.flops / work.bytes == pytest.approx(256, rel=5e-3)


def count_scores(suffix: int, prefix: int) -> int:
    return sum(1 for s in range(suffix) for key in range(prefix + suffix) if key <= prefix + s)


@pytest.mark.parametrize(("suffix", "prefix"), [(1, 0), (1, 19), (5, 7), (20, 0)])
def test_attention_counts_the_visible_scores(suffix, prefix):
    work = roofline.suffix_attention(U=3, n=2, H=4, G=2, S=suffix, P=prefix, D=8, itemsize=2)
    assert work.flops == 3 * 2 * 4 * count_scores(suffix, prefix) * 4 * 8
    own = 3 * 2 * suffix * 8
    assert work.bytes == 2 * (own * 4 + 2 * own * 2 + own * 4 + 2 * (2 * 2 * prefix * 8))


def test_packed_attention_by_hand():
    # 10 sequences x 3 heads, 210 scores each of 20 positions; q, k, v and the output
    work = roofline.packed_attention(B=10, H=3, G=3, S=20, D=16, itemsize=4)
    assert work.flops == 10 * 3 * 210 * 4 * 16
    assert work.bytes == 4 * 4 * (10 * 3 * 20 * 16)


def test_logit_difference_by_hand():
    # 2 states x 3 prompts x 8 components: square, add, multiply, add; centring adds a sum and a subtraction
    assert roofline.logit_difference(U=2, n=3, M=8, V=5, itemsize=2, centred=False).flops == 2 * 3 * 8 * 4
    work = roofline.logit_difference(U=2, n=3, M=8, V=5, itemsize=2, centred=True)
    assert work.flops == 2 * 3 * 8 * 6
    # x 48 in two bytes; directions 24, bias 3, output 15 and parents 5 in four
    assert work.bytes == 2 * 48 + 4 * (24 + 3 + 15 + 5)


def test_the_roof_is_the_slower_of_arithmetic_and_memory():
    work = KernelWork(flops=600, bytes=80)
    assert work.seconds(flops_per_second=100, bytes_per_second=20) == 6
    assert work.seconds(flops_per_second=1000, bytes_per_second=20) == 4
    assert work.fraction(12, flops_per_second=100, bytes_per_second=20) == 0.5
    assert work + work == KernelWork(1200, 160)


def test_a_call_of_no_time_is_refused():
    with pytest.raises(ValueError, match="took 0 seconds"):
        KernelWork(1, 1).fraction(0, 1, 1)
