"""What the model reads: one prompt pair token by token, and what the tokenizer does by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from circuits.models import Model
from circuits.prompts import PromptSet
from circuits.study import Study
from circuits.tasks.base import Task

TEXT = "The"  # shows what the tokenizer puts around a text


@dataclass(frozen=True)
class TokenPosition:
    """One position of the example: id and token of the clean and the corrupted prompt, and the roles that name it."""

    position: int
    clean: tuple[int, str]
    corrupted: tuple[int, str]
    roles: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return self.clean[0] != self.corrupted[0]


@dataclass(frozen=True)
class ExamplePrompt:
    """The example and the rules that made it.

    `bos_wanted`: the task's policy. `bos`: the tokenizer's BOS token, or None. `by_itself`: what the tokenizer puts around a
    text by default. `lengths`: tokens of each template's prompts. `padding_error`: the largest change of the shortest prompt's
    logits when it is padded on the right, divided by the largest logit.
    """

    places: tuple[TokenPosition, ...]
    answers: tuple[tuple[int, str], ...]
    wrong: tuple[tuple[int, str], ...]
    bos_wanted: bool
    bos: str | None
    by_itself: str
    padding: str
    padding_error: float
    lengths: Mapping[str, int]


def bos_fault(task: Task, tokenizer: Any) -> str | None:
    """What is wrong if the task wants a BOS token and the tokenizer has none."""
    if not task.bos or tokenizer.bos_token_id is not None:
        return None
    return (
        f"task {task.name} begins its prompts with a BOS token and this tokenizer has none; run with task.bos=false. "
        "What follows is about prompts without one"
    )


def bos_warning(task: Task, tokenizer: Any) -> str | None:
    """A warning if the tokenizer's default differs from the task's policy; None if it does not."""
    adds = tokenizer.bos_token_id is not None and _added(tokenizer)[0][:1] == [tokenizer.bos_token_id]
    if adds and not task.bos:
        return f"the tokenizer would begin a text with {tokenizer.bos_token!r} and task {task.name} leaves it out"
    if task.bos and not adds and tokenizer.bos_token_id is not None:
        return (
            f"the tokenizer adds no BOS token by itself; task {task.name} puts {tokenizer.bos_token!r} first, so numbers "
            "from code without it differ"
        )
    return None


def describe(study: Study) -> ExamplePrompt:
    """The first scored prompt pair, and the tokenizer's rules."""
    prompts, tokenizer = study.prompts, study.model.tokenizer
    end = int(prompts.end[0]) + 1
    clean, corrupted = (_named(tokenizer, ids[0, :end].tolist()) for ids in (prompts.clean, prompts.corrupted))
    roles = {role: int(where[0]) for role, where in prompts.positions.items()}
    places = tuple(
        TokenPosition(at, *pair, tuple(role for role, where in roles.items() if where == at))
        for at, pair in enumerate(zip(clean, corrupted, strict=True))
    )
    return ExamplePrompt(
        places=places,
        answers=_named(tokenizer, [i for i in prompts.answers[0].tolist() if i >= 0]),
        wrong=_named(tokenizer, [i for i in prompts.wrong[0].tolist() if i >= 0]),
        bos_wanted=study.task.bos,
        bos=tokenizer.bos_token,
        by_itself=_habit(tokenizer),
        padding="right, after the last token, where causal attention does not look",
        padding_error=padding_error(study.model, prompts),
        lengths=dict(sorted(prompts.lengths.items())),
    )


@torch.no_grad()
def padding_error(model: Model, prompts: PromptSet) -> float:
    """max |logit of the shortest prompt padded to the longest - logit of it alone| / max |logit|, at its last position."""
    row, width = int(prompts.end.argmin()), prompts.clean.shape[1]
    alone = prompts.clean[row : row + 1, : int(prompts.end[row]) + 1].to(model.device)
    padded = prompts.clean[row : row + 1, :width].to(model.device)
    at = int(prompts.end[row])
    own, other = (model.bridge(tokens, return_type="logits")[0, at].double() for tokens in (alone, padded))
    return float((own - other).abs().max() / own.abs().max())


def _named(tokenizer: Any, ids: list[int]) -> tuple[tuple[int, str], ...]:
    return tuple(zip(ids, map(str, tokenizer.convert_ids_to_tokens(ids)), strict=True))


def _added(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and after a text by default."""
    bare = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    full = tokenizer(TEXT)["input_ids"]
    start = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), 0)
    return full[:start], full[start + len(bare) :]


def _habit(tokenizer: Any) -> str:
    before, after = _added(tokenizer)
    parts = [
        f"{', '.join(map(str, tokenizer.convert_ids_to_tokens(ids)))} {where}"
        for ids, where in ((before, "before"), (after, "after"))
        if ids
    ]
    return " and ".join(parts) + " every text" if parts else "nothing"
