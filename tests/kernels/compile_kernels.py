"""Compile every kernel for an NVIDIA GPU that need not be there; one JSON line each. Run in a process of its own.

Triton carries its own ptxas, so a machine without a GPU can see what the interpreter cannot: type errors of the compiler,
shared memory, spilled registers, and which multiplication an fp32 `tl.dot` became.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import launch, logit_difference, packed_attention, select_project, suffix_attention

TARGET = GPUTarget("cuda", 90, 32)
BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ROWS, D_MODEL = 1280, 768


def compile_kernel(kernel: Any, dtype: str, settings: dict[str, Any], **constants: Any) -> dict[str, Any]:
    """Registers, stack bytes, shared bytes, specialised counts and the instructions of interest of one kernel.

    Pointers are given as 16-byte aligned and d_model or d_head as constants, as the launchers do.
    """
    options = {name: settings.pop(name) for name in ("num_warps", "num_stages") if name in settings}
    constants |= settings
    signature = {name: "constexpr" if name in constants else _type(name, dtype) for name in kernel.arg_names}
    place = {name: (kernel.arg_names.index(name),) for name in kernel.arg_names}
    aligned = {place[name]: [["tt.divisibility", 16]] for name, kind in signature.items() if kind.startswith("*")}
    source = ASTSource(kernel, signature, {place[name]: value for name, value in constants.items()}, aligned)
    built = triton.compile(source, target=TARGET, options=options)
    counts = [p for p in kernel.params if not p.is_constexpr and not p.name.endswith("_ptr")]
    return {
        **_usage(built.asm["cubin"]),
        "specialised": [p.name for p in counts if not p.do_not_specialize],
        "shared": built.metadata.shared,
        "tf32": "tf32" in built.asm["ptx"],
        "tensor_core": "wgmma" in built.asm["ptx"] or "mma.sync" in built.asm["ptx"],
    }


def _type(name: str, dtype: str) -> str:
    if name in ("scale", "eps"):
        return "fp32"
    if not name.endswith("_ptr"):
        return "i32"
    return "*i32" if name in ("pick_ptr", "parent_ptr") else f"*{dtype}"


def _usage(cubin: bytes) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [str(BINARIES / "cuobjdump"), "-res-usage", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {
        key: int(re.search(rf"{label}:(\d+)", text)[1]) for key, label in (("registers", "REG"), ("stack", "STACK"))
    }


def report(dtype: str, d_head: int) -> dict[str, dict[str, Any]]:
    torch_dtype = DTYPES[dtype]
    upcast = torch_dtype == torch.float32
    project = select_project.calculate_settings(ROWS, d_head, D_MODEL, torch_dtype)
    attention = launch.attention_settings(ROWS, ROWS, d_head, torch_dtype)
    head = {"D": d_head, "UPCAST": upcast}
    return {
        "select_project": compile_kernel(select_project._kernel, dtype, project, M=D_MODEL, HAS_BIAS=True, **head),
        "suffix_attention": compile_kernel(suffix_attention._kernel, dtype, dict(attention), **head),
        "packed_attention": compile_kernel(packed_attention._kernel, dtype, dict(attention), **head),
        "logit_difference": compile_kernel(
            logit_difference._kernel, dtype, logit_difference.calculate_settings(D_MODEL), M=D_MODEL, CENTRED=True
        ),
    }


if __name__ == "__main__":
    print(json.dumps(report(sys.argv[1], int(sys.argv[2]))))
