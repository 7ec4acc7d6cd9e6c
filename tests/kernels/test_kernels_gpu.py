"""The kernels at the shapes that matter, on a GPU: GPT-2 small, 64 prompts of 20 tokens, 145 variants.

Against float64, in fp32 (IEEE: 1e-5 of the largest entry, a hundredth of what TF32 would give), fp16 and bf16. Skipped
without a CUDA device and under Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import choice, launch
from tests.kernels.operands import double, error, normal, whole

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(launch.interpreted(), reason="TRITON_INTERPRET=1 would run the kernels on the CPU"),
]

H, D, M, PROMPTS, S, U = 12, 64, 768, 64, 20, 145
TOLERANCES = choice.TOLERANCES
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def operands(operation: str, dtype: torch.dtype) -> tuple[Any, ...]:
    def random(*shape: int, seed: int) -> torch.Tensor:
        return normal(*shape, seed=seed, dtype=dtype, device="cuda")

    indices = {"device": "cuda", "low": 0, "high": U}
    if operation == "select_project":
        rows = PROMPTS * S // 4  # a quarter of the prompts: the float64 twin has to fit beside the rest
        return (
            random(U, rows, H, D, seed=0), random(2, rows, H, D, seed=1), whole(U, H, low=-1, high=2, seed=2, device="cuda"),
            whole(U, seed=3, **indices), random(H, D, M, seed=4) / (H * D) ** 0.5, random(M, seed=5), random(U, rows, M, seed=6),
        )  # fmt: skip
    if operation == "suffix_attention":
        own = [random(U, PROMPTS, H, S // 2, D, seed=seed) for seed in range(3)]
        return (*own, *(random(PROMPTS, H, S // 2, D, seed=seed) for seed in (3, 4)), D**-0.5)
    if operation == "packed_attention":
        return (*(random(U * PROMPTS, H, S, D, seed=seed) for seed in range(3)), D**-0.5)
    direction, bias = normal(PROMPTS, M, seed=1, device="cuda"), normal(PROMPTS, seed=2, device="cuda")
    return random(U, PROMPTS, M, seed=0), direction, bias, whole(U, seed=3, **indices), 1e-5, True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operation", list(choice.MODULES))
def test_kernel_and_reference_agree_with_float64(operation, dtype):
    module = choice.MODULES[operation]
    arguments = operands(operation, dtype)
    expected = module.reference(*double(arguments))
    result = getattr(module, operation)(*arguments)
    tolerance = TOLERANCES[result.dtype]
    assert error(result, expected) < tolerance
    assert error(module.reference(*arguments), expected) < tolerance


@pytest.mark.parametrize("suffix", [1, 20])
def test_suffix_attention_at_the_last_position_and_without_a_prefix(suffix):
    prefix = S - suffix
    own = [normal(U, PROMPTS, H, suffix, D, seed=seed, device="cuda") for seed in range(3)]
    shared = [normal(PROMPTS, H, prefix, D, seed=seed, device="cuda") for seed in (3, 4)]
    module = choice.MODULES["suffix_attention"]
    arguments = (*own, *shared, D**-0.5)
    expected = module.reference(*double(arguments))
    assert error(module.suffix_attention(*arguments), expected) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(("groups", "d_head"), [(4, 80), (2, 128), (12, 24)])
def test_packed_attention_with_shared_heads_and_other_widths(groups, d_head):
    q = normal(64, 12, 33, d_head, seed=0, device="cuda")
    k, v = (normal(64, groups, 33, d_head, seed=seed, device="cuda") for seed in (1, 2))
    module = choice.MODULES["packed_attention"]
    arguments = (q, k, v, d_head**-0.5)
    expected = module.reference(*double(arguments))
    assert error(module.packed_attention(*arguments), expected) < TOLERANCES[torch.float32]


def test_offsets_beyond_32_bits():
    """parents x rows x d_model passes 2^31: the last child must come from the last parent."""
    parents, rows = 6, 2**19
    z = torch.zeros(parents, rows, 1, 16, device="cuda", dtype=torch.float16)
    residual = torch.zeros(parents, rows, M, device="cuda", dtype=torch.float16)
    residual[-1, -1] = 3.0
    pick = torch.full((1, 1), -1, dtype=torch.int32, device="cuda")
    parent = torch.tensor([parents - 1], dtype=torch.int32, device="cuda")
    weight = torch.zeros(1, 16, M, device="cuda", dtype=torch.float16)
    module = choice.MODULES["select_project"]
    out = module.select_project(z, z[:0], pick, parent, weight, None, residual)
    assert residual.numel() > 2**31
    assert (out[0, -1] == 3).all() and not out[0, :-1].any()


def test_operations_choose_by_measurement():
    operations = choice.Operations("cuda")
    arguments = operands("packed_attention", torch.float32)
    out = operations.packed_attention(*arguments)
    (entry,) = operations.chosen()["packed_attention"].values()
    assert entry["chosen"] == min(entry["seconds"], key=entry["seconds"].get)
    assert "triton" in entry["seconds"], entry["dropped"]
    assert error(out, choice.MODULES["packed_attention"].reference(*arguments)) < TOLERANCES[torch.float32]
