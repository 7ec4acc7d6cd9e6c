"""25 Attention: what each head attends to on the task's prompts and on random repeated tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from circuits.interventions import Base
from circuits.measurements.baseline import EXAMPLES
from circuits.prompts import PromptSet
from circuits.study import Study

NUMBER, ID = "25", "attention"
SETTINGS = ("attention_prompts", "repeated_tokens")
DEPENDS_ON_CIRCUIT = False


def measure(study: Study) -> dict[str, Any]:
    """Entropy, attention between named positions, and the label-free scores on repeated random tokens."""
    prompts = study.prompts.select(study.subset(study.settings["attention_prompts"]))
    between = between_positions(study, prompts)
    roles = list(prompts.positions)
    return {
        "entropy": torch.cat([_entropy(pattern, prompts.end) for pattern in patterns(study, prompts)]).numpy(),
        "to_position": {query: {key: between[query, key].numpy() for key in roles} for query in roles},
        **{name: score.numpy() for name, score in repeated_token_scores(study).items()},
        "examples": examples(study),
    }


def examples(study: Study) -> list[dict[str, Any]]:
    """The patterns themselves on the prompts that 01 shows, in both runs: tokens [T], patterns [H][T][T] (query, key).

    `tokens` and `pattern` are those of the clean run, `corrupted_tokens` and `corrupted_pattern` of the corrupted one; three
    decimals.
    """
    prompts = study.prompts.select(list(range(min(EXAMPLES, len(study.prompts)))))
    decode = study.model.tokenizer.convert_ids_to_tokens
    shown: list[dict[str, Any]] = [{} for _ in range(len(prompts))]
    runs: tuple[tuple[Base, str, Tensor], ...] = (
        ("clean", "", prompts.clean),
        ("corrupted", "corrupted_", prompts.corrupted),
    )
    for base, prefix, tokens in runs:
        layers = torch.stack(list(patterns(study, prompts, base)), 1)
        stored = rearrange(layers, "prompt layer head query key -> prompt (layer head) query key")
        for row, end in enumerate((prompts.end + 1).tolist()):
            shown[row][f"{prefix}tokens"] = decode(tokens[row, :end].tolist())
            shown[row][f"{prefix}pattern"] = stored[row, :, :end, :end].numpy().astype(float).round(3)
    return shown


def patterns(
    study: Study, prompts: PromptSet, base: Base = "clean"
) -> Iterator[Float[Tensor, "prompt head query key"]]:
    """Attention patterns layer by layer in one of the two runs."""
    for layer in range(study.model.n_layers):
        name = f"blocks.{layer}.attn.hook_pattern"
        yield study.engine.activations(prompts, base, (name,))[name].float()


@dataclass(frozen=True)
class FromAnswer:
    """What every head attends to from the last position, where the answer is predicted.

    `entropy`: -sum a ln a over ln(number of keys); 0 for one key, 1 for uniform attention. `first`: the share of the first
    token, where heads put attention that they do not use. `to`: the share of every named position.
    """

    entropy: Float[Tensor, "prompt head"]
    first: Float[Tensor, "prompt head"]
    to: Mapping[str, Float[Tensor, "prompt head"]]


def from_answer(study: Study, prompts: PromptSet, base: Base = "clean") -> FromAnswer:
    """Attention from the last position in one of the two runs."""
    prompt, where = torch.arange(len(prompts)), prompts.positions
    entropy: list[Tensor] = []
    first: list[Tensor] = []
    to: dict[str, list[Tensor]] = {role: [] for role in where}
    for pattern in patterns(study, prompts, base):
        row = pattern[prompt, :, prompts.end]
        real = torch.arange(row.shape[2])[None, None] <= prompts.end[:, None, None]
        row = row.where(real, torch.zeros(()))
        entropy.append(normalised_entropy(row, prompts.end + 1))
        first.append(row[:, :, 0])
        for role, place in where.items():
            to[role].append(row[prompt, :, place])
    return FromAnswer(
        torch.cat(entropy, 1), torch.cat(first, 1), {role: torch.cat(parts, 1) for role, parts in to.items()}
    )


def normalised_entropy(
    weights: Float[Tensor, "prompt head key"], keys: Int[Tensor, " prompt"]
) -> Float[Tensor, "prompt head"]:
    """-sum a ln a over ln(keys), dimensionless; 0 for a single key."""
    entropy = -(weights * weights.clamp(min=1e-12).log()).sum(-1)
    return entropy / keys.clamp(min=2).log()[:, None]


def _entropy(pattern: Float[Tensor, "prompt head query key"], end: Int[Tensor, " prompt"]) -> Float[Tensor, " head"]:
    """Normalised entropy, averaged over real queries except the first: entropy in nats over the log of the number of keys."""
    query = torch.arange(pattern.shape[2])
    entropy = -(pattern * pattern.clamp(min=1e-12).log()).sum(3)
    ratio = entropy[:, :, 1:] / (query[1:] + 1).log()
    real = (query[1:][None] <= end[:, None]).float()[:, None]
    return (ratio * real).sum((0, 2)) / real.sum()


def between_positions(study: Study, prompts: PromptSet) -> dict[tuple[str, str], Float[Tensor, " head"]]:
    """{(query role, key role): mean attention of every head from the first named position to the second}."""
    prompt = torch.arange(len(prompts))
    where = prompts.positions
    pairs = [(query, key) for query in where for key in where]
    layers = [
        torch.stack([pattern[prompt, :, where[query], where[key]].mean(0) for query, key in pairs])
        for pattern in patterns(study, prompts)
    ]
    return dict(zip(pairs, torch.cat(layers, 1), strict=True))


def repeated_token_scores(study: Study) -> dict[str, Float[Tensor, " head"]]:
    """Previous-token, duplicate-token and induction scores on repeated random tokens (Olsson et al. 2022).

    They are the mean attention, over the second half, to the token before, to the same token's first occurrence, and to the
    token after that first occurrence.
    """
    tokens = _repeated_tokens(study)
    half = int(study.settings["repeated_tokens"]["length"])
    prompts = _as_prompts(study, tokens)
    second = torch.arange(tokens.shape[1] - half, tokens.shape[1])
    keys = {"previous_token": second - 1, "duplicate_token": second - half, "induction": second - half + 1}
    stored = torch.stack(list(patterns(study, prompts)), 1)
    pattern = rearrange(stored, "prompt layer head query key -> prompt (layer head) query key")
    return {name: pattern[:, :, second, key].mean((0, 2)) for name, key in keys.items()}


def _repeated_tokens(study: Study) -> Int[Tensor, "sequence position"]:
    """BOS (if the tokenizer has one), `length` distinct random tokens, the same tokens again."""
    settings = study.settings["repeated_tokens"]
    tokenizer = study.model.tokenizer
    generator = torch.Generator().manual_seed(int(settings["seed"]))
    special = set(tokenizer.all_special_ids)
    usable = torch.tensor([i for i in range(len(tokenizer)) if i not in special])
    shuffled = [torch.randperm(len(usable), generator=generator) for _ in range(settings["sequences"])]
    rows = [usable[order[: settings["length"]]] for order in shuffled]
    random_tokens = torch.stack(rows)
    start = [] if tokenizer.bos_token_id is None else [torch.full((len(rows), 1), tokenizer.bos_token_id)]
    return torch.cat([*start, random_tokens, random_tokens], 1)


def _as_prompts(study: Study, tokens: Int[Tensor, "sequence position"]) -> PromptSet:
    count, length = tokens.shape
    blank = tuple(str(i) for i in range(count))
    return PromptSet(
        task="repeated random tokens",
        split="none",
        clean=tokens,
        corrupted=tokens,
        end=torch.full((count,), length - 1),
        answers=tokens[:, :1],
        wrong=tokens[:, 1:2],
        templates=blank,
        clusters=blank,
        positions={},
        ids=blank,
        splits=blank,
        bos=study.model.tokenizer.bos_token,
    )
