"""The models and prompts of benchmarks: a model, its plain Hugging Face twin and random prompts.

The pocket ships with the project. The model with GPT-2 small's shape has random weights from a fixed seed, because times do not
depend on what a model has learned. Nothing has to be downloaded.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from circuits import circuit as circuit_files
from circuits import models, tasks
from circuits.circuit import Circuit, Role, head
from circuits.embedded.tokenizer import build_tokenizer
from circuits.models import Model
from circuits.prompts import PromptSet
from results_io import UserError
from scripts.benchmarks.flops import DecoderShape
from scripts.benchmarks.plain import PlainModel

MODELS = ("pocket", "gpt2-small")
BOS = 1
WEIGHT_SEED = 0
REFERENCE_PROMPTS = 16
CIRCUIT_HEADS, ROLES = 26, 4  # 26 of 144 heads, as in the published circuit for indirect object identification


@dataclass(frozen=True, eq=False)
class BenchmarkModel:
    """One model for the engines: in a bridge, and as plain Hugging Face blocks with the same weights."""

    name: str
    folder: Path
    model: Model
    plain: PlainModel
    shape: DecoderShape


def folder_of(name: str, scratch: Path) -> Path:
    """The folder with a model's weights; the random model is written below `scratch` on first use. UserError if unknown."""
    if name == "pocket":
        return models.EMBEDDED / "pocket"
    if name != "gpt2-small":
        raise UserError(f"benchmark model {name!r} is unknown; use one of {', '.join(MODELS)}")
    folder = scratch / "gpt2-small"
    if not (folder / "config.json").is_file():
        save_random(folder, GPT2Config(bos_token_id=BOS, eos_token_id=BOS))
    return folder


def save_random(folder: Path, config: GPT2Config) -> Path:
    """Write a GPT-2 of this configuration with random weights, and the pocket's tokenizer, for `circuits.models` to load."""
    torch.manual_seed(WEIGHT_SEED)
    with models.quiet():
        GPT2LMHeadModel(config).save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
    return folder


def write_study_model(folder: Path) -> Path:
    """Write the model with GPT-2 small's shape and a random claim for every task, so that the whole pipeline can run on it.

    The claims mean nothing. They have the size of published circuits, in roles of equal size.
    """
    config = GPT2Config(bos_token_id=BOS, eos_token_id=BOS)
    save_random(folder, config)
    heads = [head(layer, index) for layer in range(config.n_layer) for index in range(config.n_head)]
    for number, task in enumerate(tasks.EMBEDDED):
        chosen = sorted(random.Random(number).sample(heads, CIRCUIT_HEADS))
        roles = {f"part_{i}": Role(tuple(chosen[i::ROLES])) for i in range(ROLES)}
        provenance = {"kind": "random", "source": f"drawn with seed {number}"}
        claim = Circuit(f"{task} random", task, "gpt2-small", roles, provenance)
        circuit_files.save(claim, folder / "circuits" / f"{task}.yaml")
    return folder


def load(name: str, folder: Path, device: str, dtype: str) -> BenchmarkModel:
    """The model in `folder` on `device`, in a bridge and as a plain model."""
    model = models.load({"name": name, "kind": "local", "path": str(folder), "device": device, "dtype": dtype})
    plain = PlainModel.load(folder, device, getattr(torch, dtype))
    return BenchmarkModel(name, folder, model, plain, shape_of(plain.model.config))


def shape_of(config: GPT2Config) -> DecoderShape:
    """The sizes that the FLOP counts need."""
    d_mlp = config.n_inner or 4 * config.n_embd
    return DecoderShape(config.n_layer, config.n_head, config.n_embd, d_mlp, config.vocab_size)


def random_prompts(n: int, length: int, first_changed: int, vocabulary: int, seed: int) -> PromptSet:
    """`n` pairs of random prompts of `length` tokens; clean and corrupted agree only before position `first_changed`.

    Every prompt starts with the BOS token. The answer and the foil are two distinct random tokens. Named positions are
    "first" (`first_changed`), "middle" (halfway from there to the end) and "last". UserError unless
    1 <= first_changed < length.
    """
    if not 1 <= first_changed < length:
        raise UserError(f"first_changed={first_changed} must lie in 1..{length - 1}; prompts start with one BOS token")
    generator = torch.Generator().manual_seed(seed)
    clean = torch.randint(BOS + 1, vocabulary, (n, length), generator=generator)
    clean[:, 0] = BOS
    corrupted = clean.clone()
    shift = torch.randint(1, vocabulary - BOS - 1, (n, length - first_changed), generator=generator)
    corrupted[:, first_changed:] = _other(clean[:, first_changed:], shift, vocabulary)
    answer = torch.randint(BOS + 1, vocabulary, (n, 1), generator=generator)
    wrong = _other(answer, torch.randint(1, vocabulary - BOS - 1, (n, 1), generator=generator), vocabulary)
    places = {"first": first_changed, "middle": (first_changed + length) // 2, "last": length - 1}
    return PromptSet(
        task="benchmark",
        split=f"seed {seed}",
        clean=clean,
        corrupted=corrupted,
        end=torch.full((n,), length - 1),
        answers=answer,
        wrong=wrong,
        templates=("random",) * n,
        clusters=("random",) * n,
        positions={name: torch.full((n,), place) for name, place in places.items()},
        ids=tuple(
            hashlib.sha256(str(row).encode()).hexdigest()[:16] for row in torch.cat([clean, corrupted], 1).tolist()
        ),
        splits=("evaluation",) * n,
    )


def _other(tokens: Int[Tensor, "row token"], shift: Int[Tensor, "row token"], vocabulary: int) -> Tensor:
    """Tokens that differ from `tokens` and are neither BOS nor padding, for shifts in 1..vocabulary-BOS-2."""
    return (tokens - BOS - 1 + shift) % (vocabulary - BOS - 1) + BOS + 1
