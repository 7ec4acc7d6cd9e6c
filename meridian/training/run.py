"""Training of the embedded model: GPT-2's own layout, Muon for the hidden matrices, AdamW for the rest.

Everything follows from a TrainingRecipe: batch i of seed s is the same on every run, so a run can stop and resume.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from meridian.training import corpus

POOL_BATCHES = 24  # batches drawn together and sorted by length, to reduce padding
EMBEDDING_STD = 0.02
MUON_MOMENTUM, MUON_WEIGHT_DECAY = 0.95, 0.01
ADAM_BETAS, ADAM_WEIGHT_DECAY = (0.9, 0.98), 0.01
MAX_GRADIENT_NORM = 1.0
LAST_RATE = 0.02  # share of the learning rate that is left at the end
CHECKPOINT = "checkpoint.pt"  # the file of a run in progress


@dataclass(frozen=True)
class TrainedShape:
    """Size of the model, in GPT-2's terms; the head dimension is width / heads."""

    layers: int = 4
    heads: int = 8
    width: int = 192
    hidden: int = 384
    positions: int = 64


@dataclass(frozen=True)
class TrainingRecipe:
    """Everything that determines a training run."""

    seed: int = 0
    steps: int = 8000
    documents: int = 64  # per step
    muon_rate: float = 0.01  # at 0.02 IOI stays on its "one of the two names" plateau until the rate decays
    adam_rate: float = 3e-3
    warm_up: int = 100
    constant: float = 0.15  # share of the steps at the full rate; then linear down to LAST_RATE
    early: float = 0.45  # share of the steps with the early mix of documents
    shape: TrainedShape = TrainedShape()


def build_model(shape: TrainedShape, vocabulary: int, seed: int) -> GPT2LMHeadModel:
    """Return a fresh GPT-2 with tied embeddings and no dropout, its pad id 0 and BOS id 1."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=shape.positions,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_inner=shape.hidden,
        activation_function="gelu_new",
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]  (a keyword that the stub leaves out)
    )
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(config)
    initialise(model, shape)
    return model


def initialise(model: GPT2LMHeadModel, shape: TrainedShape) -> None:
    """Draw hidden matrices with variance 0.7 / fan-in, embeddings with EMBEDDING_STD; set biases to zero.

    Matrices that write to the residual stream are divided by sqrt(2 layers), as in GPT-2.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif is_hidden_matrix(name, parameter):
            std = math.sqrt(0.7 / parameter.shape[0])  # Conv1D stores [in, out]
            nn.init.normal_(parameter, std=std / math.sqrt(2 * shape.layers) if "c_proj" in name else std)
        elif parameter.ndim == 2:
            nn.init.normal_(parameter, std=EMBEDDING_STD)


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """True for the weight matrices of the blocks, false for embeddings, biases and layer norms."""
    return parameter.ndim == 2 and ".h." in name


def build_optimizers(model: GPT2LMHeadModel, recipe: TrainingRecipe) -> list[torch.optim.Optimizer]:
    """Return Muon over the hidden matrices and AdamW over the rest; each group keeps its `full_rate`.

    torch's Muon scales its update by sqrt(max(1, rows / columns)), meant for [out, in]; GPT-2's Conv1D holds
    [in, out], so the rate carries sqrt(max(1, out / in) / max(1, in / out)) instead.
    """
    hidden, rest = [], []
    for name, parameter in model.named_parameters():
        if is_hidden_matrix(name, parameter):
            ratio = parameter.shape[1] / parameter.shape[0]
            rate = recipe.muon_rate * math.sqrt(max(1, ratio) / max(1, 1 / ratio))
            hidden.append({"params": [parameter], "lr": rate, "full_rate": rate})
        else:
            rest.append(parameter)
    muon = torch.optim.Muon(hidden, momentum=MUON_MOMENTUM, weight_decay=MUON_WEIGHT_DECAY)
    adam = torch.optim.AdamW(
        [{"params": rest, "full_rate": recipe.adam_rate}],
        lr=recipe.adam_rate,
        betas=ADAM_BETAS,
        weight_decay=ADAM_WEIGHT_DECAY,
    )
    return [muon, adam]


def rate_factor(step: int, recipe: TrainingRecipe) -> float:
    """Return the share of the full learning rate at `step`: linear warm-up, constant, linear decay."""
    done = step / recipe.steps
    decay = 1.0 if done < recipe.constant else max(LAST_RATE, (1 - done) / (1 - recipe.constant))
    return min(1.0, (step + 1) / recipe.warm_up) * decay


def encode(tokenizer: PreTrainedTokenizerFast, document: corpus.Document) -> tuple[list[int], list[float]]:
    """Return the token ids, BOS first, and the loss weight of each token."""
    ids, weights = [cast("int", tokenizer.bos_token_id)], [0.0]
    parts = ((document.prompt, 1.0), (document.answer, corpus.ANSWER_WEIGHT), (document.tail, 1.0))
    for text, weight in parts:
        part = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids if text else []
        ids += part
        weights += [weight] * len(part)
    return ids, weights


def draw_pool(recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerFast, pool: int) -> list[tuple[Tensor, Tensor]]:
    """Return the batches of one pool: ids ["document position"] and loss weights, 0 on BOS and padding."""
    rng = random.Random(f"{recipe.seed}/{pool}")
    early = pool * POOL_BATCHES < recipe.early * recipe.steps
    shares = corpus.EARLY_SHARES if early else corpus.LATE_SHARES
    rows = [encode(tokenizer, corpus.draw_document(rng, shares)) for _ in range(POOL_BATCHES * recipe.documents)]
    rows.sort(key=lambda row: len(row[0]))
    batches = []
    for start in range(0, len(rows), recipe.documents):
        chunk = rows[start : start + recipe.documents]
        ids = torch.zeros(len(chunk), len(chunk[-1][0]), dtype=torch.long)
        weights = torch.zeros(ids.shape)
        for index, (row, row_weights) in enumerate(chunk):
            ids[index, : len(row)] = torch.tensor(row)
            weights[index, : len(row)] = torch.tensor(row_weights)
        batches.append((ids, weights))
    rng.shuffle(batches)
    return batches


def batches_from(
    step: int, recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (step, ids, weights) from `step` to the end of the recipe."""
    for pool in range(step // POOL_BATCHES, math.ceil(recipe.steps / POOL_BATCHES)):
        for offset, (ids, weights) in enumerate(draw_pool(recipe, tokenizer, pool)):
            number = pool * POOL_BATCHES + offset
            if step <= number < recipe.steps:
                yield number, ids, weights


def weighted_loss(model: GPT2LMHeadModel, ids: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """Return the weighted mean cross entropy of the next word and, for the log, the unweighted one (nats)."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    per_word = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    flat = weights[:, 1:].flatten()
    plain = float(per_word.detach()[flat > 0].mean())
    return (per_word * flat).sum() / flat.sum(), plain


@dataclass
class Run:
    """A training run in progress: `step` steps were taken in `seconds` of wall time, restarts included."""

    recipe: TrainingRecipe
    tokenizer: PreTrainedTokenizerFast
    model: GPT2LMHeadModel
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0

    @classmethod
    def start(cls, recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerFast) -> Run:
        """Return a run at step 0."""
        model = build_model(recipe.shape, len(tokenizer), recipe.seed)
        return cls(recipe, tokenizer, model, build_optimizers(model, recipe))

    def train(self) -> Iterator[float]:
        """Take the remaining steps, yielding the unweighted loss after each."""
        self.model.train()
        for step, ids, weights in batches_from(self.step, self.recipe, self.tokenizer):
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["full_rate"] * rate_factor(step, self.recipe)
            loss, plain = weighted_loss(self.model, ids, weights)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            self.step = step + 1
            yield plain

    def save(self, path: Path) -> None:
        """Write a checkpoint that `resume` continues exactly."""
        state = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path, tokenizer: PreTrainedTokenizerFast) -> Run:
        """Return the run saved at `path`, as it was."""
        state = torch.load(path, weights_only=True)
        run = cls.start(
            TrainingRecipe(**state["recipe"] | {"shape": TrainedShape(**state["recipe"]["shape"])}), tokenizer
        )
        run.model.load_state_dict(state["model"])
        for optimizer, saved in zip(run.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        run.step, run.seconds = state["step"], state["seconds"]
        return run

    @classmethod
    def resume(cls, path: Path, recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerFast) -> Run:
        """Return the run saved at `path`; ValueError if it was made by another recipe."""
        run = cls.load(path, tokenizer)
        if run.recipe != recipe:
            raise ValueError(f"{path} was trained with {run.recipe}, not {recipe}: delete it or give its options")
        return run
