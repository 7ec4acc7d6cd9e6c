"""Quantised checkpoints are refused in one sentence, by what the configuration says and by what the files hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from circuits import models, runnable
from results_io import UserError

METHODS = {  # the sections as the tools write them, and what the refusal calls them
    "bitsandbytes, 4 bit": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bitsandbytes, 8 bit": {"load_in_8bit": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
    "newer than this program": {"quant_method": "newer than this program"},
    "quantization_config": {"bits": 4, "group_size": 128},  # of a tool that does not say which it is
}


def local(folder: Path) -> dict:
    return {"name": "mine", "kind": "local", "path": str(folder), "device": "cpu", "dtype": "float32"}


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        models.load(local(folder))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def copied(folder, tmp_path):
    """The random Llama's folder, to be changed."""
    for path in folder("llama").iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("section", ["quantization_config", "compression_config"])
@pytest.mark.parametrize("method", METHODS)
def test_a_configuration_that_says_so(method, section, copied) -> None:
    path = copied / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), section: METHODS[method]}))
    (copied / "model.safetensors").write_bytes(b"not weights: reading them would be another refusal")
    assert refusal(copied) == f"model {copied} cannot be run: {runnable.QUANTISED.format(how=method)}"


@pytest.mark.parametrize(
    ("kind", "stored"),
    [(torch.uint8, "U8"), (torch.int8, "I8"), (torch.int32, "I32"), (torch.float8_e4m3fn, "F8_E4M3")],
)
def test_files_that_hold_so_although_no_configuration_says_it(kind, stored, copied) -> None:
    weights = load_file(copied / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**weights, name: weights[name].to(kind)}, copied / "model.safetensors", {"format": "pt"})
    how = f"{name!r} is stored as {stored}"
    assert refusal(copied) == f"model mine cannot be run: {runnable.QUANTISED.format(how=how)}"


def test_masks_and_counters_of_positions_are_no_weights(copied) -> None:
    """Such as the buffers in old checkpoints of GPT-2 and GPT-NeoX."""
    weights = load_file(copied / "model.safetensors")
    masks = {"model.layers.0.attn.bias": torch.ones(4, 4, dtype=torch.uint8), "position_ids": torch.arange(4)[None]}
    save_file({**weights, **masks}, copied / "model.safetensors", {"format": "pt"})
    assert models.load(local(copied)).n_layers == 2


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_points_are_read(kind, copied) -> None:
    weights = load_file(copied / "model.safetensors")
    save_file({name: value.to(kind) for name, value in weights.items()}, copied / "model.safetensors", {"format": "pt"})
    assert models.load(local(copied)).dtype == torch.float32
