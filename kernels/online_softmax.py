"""Online softmax: attention over keys that come block by block, never storing a row of scores.

With scores s, running maximum m, running sum l of exp(s - m) and running output o (Milakov & Gimelshein 2018; Dao et al.
2022), a new block of keys gives m' = max(m, max s), l' = l exp(m - m') + sum exp(s - m'),
o' = o exp(m - m') + exp(s - m') v. After the last block the output is o / l.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:
    # the running maximum before any key: finite, so that a block with nothing visible gives exp(-inf - m) = 0, not NaN
    LOWEST = tl.constexpr(-1e30)

    @triton.jit
    def begin(
        q_ptr, row, row_mask, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr
    ):
        """(q [q, d], output [q, d] = 0, total [q] = 0, largest [q]): queries at rows `row`, and the state before any key."""
        width = tl.arange(0, BLOCK_D)
        inside = row_mask[:, None] & (width < D)[None, :]
        q = tl.load(q_ptr + row[:, None] * D + width[None, :], mask=inside, other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        zero = tl.zeros([BLOCK_Q], dtype=tl.float32)
        return q, tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32), zero, zero + LOWEST

    @triton.jit
    def update(output, total, largest, q, k_ptr, v_ptr, columns, column_mask, visible, scale,
               D: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
        """One block of keys: (output [q, d], total [q], largest [q]) after it; `visible` [q, k] says who sees which.

        `columns` are row numbers into keys and values of width D.
        """
        width = tl.arange(0, BLOCK_D)
        inside = column_mask[:, None] & (width < D)[None, :]
        offsets = columns[:, None] * D + width[None, :]
        k = tl.load(k_ptr + offsets, mask=inside, other=0.0)
        v = tl.load(v_ptr + offsets, mask=inside, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(visible, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - new[:, None])
        shrink = tl.exp(largest - new)
        total = total * shrink + tl.sum(weights, 1)
        output = tl.dot(weights.to(v.dtype), v, acc=output * shrink[:, None], input_precision="ieee")
        return output, total, new

    @triton.jit
    def finish(out_ptr, row, row_mask, output, total, D: tl.constexpr, BLOCK_D: tl.constexpr):
        """Store output / total at rows `row`."""
        width = tl.arange(0, BLOCK_D)
        inside = row_mask[:, None] & (width < D)[None, :]
        result = (output / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row[:, None] * D + width[None, :], result, mask=inside)
