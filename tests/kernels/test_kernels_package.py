"""The package in a fresh process: no Triton needed, and no harm to the libraries that look for another `kernels`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "kernels").glob("*.py") if path.stem != "__init__")


def run(program: str, **environment: str) -> str:
    """What `program` prints, run from the repository's root, where the folder `kernels` comes first on the path."""
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, env=variables | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_everything_loads_no_compiler_and_touches_no_gpu():
    imports = "\n".join(f"from kernels import {name}" for name in MODULES)
    check = "import sys, torch\nprint('torch._inductor' in sys.modules, torch.cuda.is_initialized())"
    assert run(f"{imports}\n{check}") == "False False"


@pytest.mark.slow
def test_without_triton_the_references_run_and_the_kernels_say_why_they_do_not():
    program = f"""
import sys
sys.modules["triton"] = None
import torch
{chr(10).join(f"from kernels import {name}" for name in MODULES)}
q = torch.ones(2, 1, 3, 8)
print(choice.Operations("cpu").packed_attention(q, q, q, 1.0).sum().item())
try:
    packed_attention.packed_attention(q, q, q, 1.0)
except ValueError as error:
    print(error)
"""
    first, second = run(program).splitlines()
    assert float(first) == 48
    assert second == "packed_attention: Triton is not installed on this platform; use the reference implementation"


@pytest.mark.slow
def test_without_a_gpu_or_the_interpreter_a_kernel_refuses_cpu_tensors():
    program = """
import torch
from kernels import packed_attention
q = torch.ones(2, 1, 3, 8)
try:
    packed_attention.packed_attention(q, q, q, 1.0)
except ValueError as error:
    print(error)
"""
    assert "Triton needs a CUDA device; use the reference" in run(program)


@pytest.mark.slow
def test_transformers_and_transformer_lens_do_not_take_the_folder_for_their_optional_package(tmp_path):
    """Hugging Face's `kernels` is found by name and told apart by its version; ours must not look like it."""
    program = f"""
from pathlib import Path
import kernels, torch, transformers, transformer_lens
from transformers.utils.import_utils import is_kernels_available
from tests.circuits import toy
assert Path(kernels.__file__).parent == Path("kernels").resolve(), kernels.__file__
print(is_kernels_available())
folder = toy.save(toy.build("llama"), Path({str(tmp_path / "llama")!r}))
model = toy.load(folder)
tokens = torch.arange(2, 8)[None]
plain = toy.plain(folder, torch.float32)(tokens).logits.log_softmax(-1)
ours = model.bridge(tokens, return_type="logits").log_softmax(-1)
print(float((ours - plain).abs().max()) < 1e-3)
"""
    assert run(program, HF_HUB_OFFLINE="1").splitlines()[-2:] == ["False", "True"]
