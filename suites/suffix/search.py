"""Greedy coordinate gradient: one suffix that makes a local model answer many requests with their targets.

Algorithms 1 and 2 of Zou et al. 2023 (Universal and transferable adversarial attacks on aligned language models), with a batch of
requests at every step. The gradient of the loss with respect to the one-hot tokens of the suffix names the tokens that are worth
a try at each place. Candidates with one token exchanged are then run, and the best one stays. The suffix is a text: only tokens
count that the tokenizer reads back from it inside the request, so every loss is of what the model is asked later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from results_io import UserError
from shown_progress import Progress
from suites.models.encoding import Encoding
from suites.models.local import LocalModel

Ids = tuple[int, ...]
Fits = Callable[[Ids], bool]  # whether these tokens may be a suffix

MARK = "{suffix}"  # where the suffix will stand, while the chat template is applied
DRAWS = 1000  # tries for one random token; with fewer than one in a thousand that fit, the tokenizer is at fault


@dataclass(frozen=True)
class SuffixBudget:
    """What a search may spend: `steps`, each with a gradient over `batch` requests and `width` candidates run on the same ones.

    `tokens`: length of the suffix. `top`: the tokens for each place from which candidates are drawn, best gradient first.
    """

    tokens: int
    steps: int
    width: int
    top: int
    batch: int

    @property
    def passes(self) -> int:
        """Most forward passes of one request each: the gradients, the candidates, and what is kept so far."""
        return self.steps * self.batch * (1 + self.width + 1)


@dataclass(frozen=True)
class SuffixRequest:
    """One request: ids before the suffix, ids after it up to the answer, and ids of the target."""

    before: Ids
    after: Ids
    target: Ids


@dataclass(frozen=True)
class SuffixFound:
    """The tokens at the start and at the end of a search, and what it took.

    `passes`: forward passes of one request. `tried`: candidates run. `exchanged`: how many of them were kept.
    """

    start: Ids
    end: Ids
    passes: int
    tried: int
    exchanged: int


def request_of(encoding: Encoding, prompt: str, system: str | None, target: str) -> SuffixRequest:
    """The request with a place for a suffix at the end of `prompt`. UserError if the chat template does not keep that place."""
    parts = encoding.rendered(f"{prompt}{MARK}", system).split(MARK)
    if len(parts) != 2:
        raise UserError(
            f"the chat template repeats or drops the end of the user's message, {len(parts) - 1} times in the text; "
            "a suffix needs one place, so take a model whose template keeps it once"
        )
    before, after = (tuple(encoding.tokens(part, bos=False)) for part in parts)
    return SuffixRequest(before, after, tuple(encoding.tokens(target, bos=False)))


def alphabet(model: LocalModel) -> list[int]:
    """Tokens that a suffix may hold: printable ASCII, neither special nor added, in order of their ids."""
    tokenizer = model.tokenizer
    barred = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    weight = cast(Tensor, model.model.get_input_embeddings().weight)  # it may have rows for no token, or too few
    rows = min(len(tokenizer), len(weight))
    texts = ((token, model.encoding.text([token])) for token in range(rows) if token not in barred)
    return [token for token, text in texts if text and text.isascii() and text.isprintable()]


def read_back(encoding: Encoding, prompt: str, system: str | None) -> Fits:
    """Whether the tokenizer reads exactly these tokens from their text at the end of `prompt`."""
    place = request_of(encoding, prompt, system, "")

    def fits(ids: Ids) -> bool:
        asked = encoding.prompt(f"{prompt}{encoding.text(ids)}", system)
        return tuple(asked) == (*place.before, *ids, *place.after)

    return fits


def drawn(rng: random.Random, letters: Sequence[int], length: int, fits: Fits) -> Ids:
    """`length` random tokens, each drawn again until the tokens so far fit. UserError if none does in DRAWS tries."""
    found: Ids = ()
    while len(found) < length:
        tries = ((*found, rng.choice(letters)) for _ in range(DRAWS))
        longer = next((ids for ids in tries if fits(ids)), None)
        if longer is None:
            raise UserError(
                f"none of {DRAWS} random tokens after {len(found)} others is read back from its text by this tokenizer; "
                "a suffix cannot be optimised for this model"
            )
        found = longer
    return found


def losses(model: LocalModel, requests: Sequence[SuffixRequest], suffixes: Sequence[Ids]) -> list[list[float]]:
    """Loss [suffix][request] of every request's target after every suffix: - log p / tokens of the target, nats per token.

    UserError if a request with its target is longer than the model's context.
    """
    rows = [((*one.before, *suffix, *one.after), one.target) for suffix in suffixes for one in requests]
    longest = max(len(before) + len(after) for before, after in rows)
    if longest > model.context:
        raise UserError(
            f"a request with its suffix and target is {longest} tokens and the model {model.name} reads {model.context}; "
            "set suite.gcg.tokens lower"
        )
    found = [-one.logprob / one.n_tokens for one in model.score(rows)]
    return [found[start : start + len(requests)] for start in range(0, len(found), len(requests))]


def gradient(
    model: LocalModel, request: SuffixRequest, suffix: Ids, table: Float[Tensor, "letter dimension"]
) -> Float[Tensor, "token letter"]:
    """Derivative of the request's loss with respect to the one-hot tokens of the suffix. `table`: embeddings of the letters."""
    row = [*request.before, *suffix, *request.after, *request.target]
    tokens = torch.tensor([row], device=model.model.device)
    embedded = model.model.get_input_embeddings()(tokens).detach().requires_grad_()
    keep = len(request.target) + 1
    logits = model.model(inputs_embeds=embedded, use_cache=False, logits_to_keep=keep).logits[0, -keep:-1]
    loss = torch.nn.functional.cross_entropy(logits.float(), tokens[0, -len(request.target) :])
    (found,) = torch.autograd.grad(loss, embedded)
    start = len(request.before)
    return found[0, start : start + len(suffix)] @ table.T


def search(
    model: LocalModel,
    requests: Sequence[SuffixRequest],
    budget: SuffixBudget,
    rng: random.Random,
    fits: Fits,
    bar: Progress,
) -> SuffixFound:
    """The suffix that the budget finds for all requests together, from a random one. The same `rng` gives the same suffix.

    UserError if the steps drew no candidate that fits: nothing was searched then.
    """
    letters = alphabet(model)
    with torch.no_grad():
        table = model.model.get_input_embeddings()(torch.tensor(letters, device=model.model.device))
    start = best = drawn(rng, letters, budget.tokens, fits)
    passes = tried = exchanged = 0
    bar.expect(budget.steps)
    for _ in range(budget.steps):
        batch = rng.sample(requests, min(budget.batch, len(requests)))
        slope = sum(gradient(model, one, best, table) for one in batch)
        order = (-torch.as_tensor(slope)).topk(min(budget.top, len(letters)), dim=1).indices.tolist()
        pools = [[letters[place] for place in row] for row in order]
        rows = [best, *_candidates(rng, best, pools, budget.width, fits)]
        totals = [sum(of_suffix) for of_suffix in losses(model, batch, rows)]
        chosen = totals.index(min(totals))  # the first of equals, so that nothing changes without a gain
        best, exchanged = rows[chosen], exchanged + (chosen > 0)
        tried += len(rows) - 1
        passes += len(batch) * (1 + len(rows))
        bar.advance(1)
    if budget.steps and not tried:
        raise UserError(
            f"no exchange of one token was read back from its text in {budget.steps} steps of {budget.width} draws, so nothing "
            "was searched; set suite.gcg.top and suite.gcg.width higher, or take a model with another tokenizer"
        )
    return SuffixFound(start, best, passes, tried, exchanged)


def _candidates(rng: random.Random, suffix: Ids, pools: Sequence[Sequence[int]], width: int, fits: Fits) -> list[Ids]:
    """Up to `width` different suffixes with one token exchanged for one of its pool, of those that fit."""
    found: dict[Ids, None] = {}
    for _ in range(width):
        place = rng.randrange(len(suffix))
        ids = (*suffix[:place], rng.choice(pools[place]), *suffix[place + 1 :])
        if ids != suffix and ids not in found and fits(ids):
            found[ids] = None
    return list(found)
