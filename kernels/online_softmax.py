"""Online softmax: attention over keys that come block by block, never storing a row of scores.

With scores s, running maximum m, running sum l of exp(s - m) and running output o (Milakov & Gimelshein 2018; Dao et al.
2022), a new block of keys gives m' = max(m, max s), l' = l exp(m - m') + sum exp(s - m'),
o' = o exp(m - m') + exp(s - m') v. After the last block the output is o / l.

A tile's sides are powers of two. So a head's width is split into BLOCK_D components and BLOCK_REST more (0 if one part is
enough): 80 components are 64 and 16, not one block of 128. Every pair `x, x_rest` below is one matrix in two parts.

A block holds keys of several sequences. A weight of 0 does not exclude a neighbour's value, since 0 times NaN or infinity is
NaN. So non-finite values are left out of the product, and rows that see one get a sum l of NaN.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:
    # running maximum before any key; finite, so that a block with nothing visible gives exp(-inf - m) = 0, not NaN
    LOWEST = tl.constexpr(-1e30)

    @triton.jit
    def load(ptr, row, row_mask, first, D: tl.constexpr, BLOCK: tl.constexpr, UPCAST: tl.constexpr):
        """Components `first` to `first + BLOCK` of rows of width D, 0 where `row_mask` is false and beyond D."""
        width = first + tl.arange(0, BLOCK)
        inside = row_mask[:, None] & (width < D)[None, :]
        x = tl.load(ptr + row[:, None] * D + width[None, :], mask=inside, other=0.0)
        if UPCAST:
            x = x.to(tl.float32)
        return x

    @triton.jit
    def finite(v, taint):
        """(v with 0 for non-finite values, taint + NaN for each row of v with a non-finite value)."""
        nothing = v * 0.0  # NaN for NaN and infinity
        return tl.where(nothing == 0.0, v, 0.0), taint + tl.sum(nothing.to(tl.float32), 1)

    @triton.jit
    def begin(q_ptr, row, row_mask, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr,
              BLOCK_REST: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
        """Queries q, q_rest [q, d] at rows `row`, and output, output_rest [q, d], total and largest [q] before any key."""
        q = load(q_ptr, row, row_mask, 0, D, BLOCK_D, UPCAST)
        output = tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32)
        q_rest, output_rest = q, output
        if BLOCK_REST:
            q_rest = load(q_ptr, row, row_mask, BLOCK_D, D, BLOCK_REST, UPCAST)
            output_rest = tl.zeros([BLOCK_Q, BLOCK_REST], dtype=tl.float32)
        zero = tl.zeros([BLOCK_Q], dtype=tl.float32)
        return q, q_rest, output, output_rest, zero, zero + LOWEST

    @triton.jit
    def update(output, output_rest, total, largest, q, q_rest, k_ptr, v_ptr, columns, column_mask, visible, scale,
               D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_REST: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
        """output, output_rest, total and largest after one block of keys; `visible` [q, k]: the query sees the key.

        `columns` are row numbers into keys and values of width D.
        """
        scores = tl.dot(q, tl.trans(load(k_ptr, columns, column_mask, 0, D, BLOCK_D, UPCAST)), input_precision="ieee")
        if BLOCK_REST:
            k_rest = load(k_ptr, columns, column_mask, BLOCK_D, D, BLOCK_REST, UPCAST)
            scores = tl.dot(q_rest, tl.trans(k_rest), acc=scores, input_precision="ieee")
        scores = tl.where(visible, scores * scale, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - new[:, None])
        shrink = tl.exp(largest - new)
        v, taint = finite(load(v_ptr, columns, column_mask, 0, D, BLOCK_D, UPCAST), 0.0)
        output = tl.dot(weights.to(v.dtype), v, acc=output * shrink[:, None], input_precision="ieee")
        if BLOCK_REST:
            v_rest, taint = finite(load(v_ptr, columns, column_mask, BLOCK_D, D, BLOCK_REST, UPCAST), taint)
            output_rest = tl.dot(weights.to(v.dtype), v_rest, acc=output_rest * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weights + tl.where(visible, taint[None, :], 0.0), 1)
        return output, output_rest, total, new

    @triton.jit
    def finish(out_ptr, row, row_mask, output, output_rest, total, D: tl.constexpr, BLOCK_D: tl.constexpr,
               BLOCK_REST: tl.constexpr):  # fmt: skip
        """Store output / total at rows `row`."""
        width = tl.arange(0, BLOCK_D)
        inside = row_mask[:, None] & (width < D)[None, :]
        result = (output / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row[:, None] * D + width[None, :], result, mask=inside)
        if BLOCK_REST:
            width = BLOCK_D + tl.arange(0, BLOCK_REST)
            inside = row_mask[:, None] & (width < D)[None, :]
            result = (output_rest / total[:, None]).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + row[:, None] * D + width[None, :], result, mask=inside)
