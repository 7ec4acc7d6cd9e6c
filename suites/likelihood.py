"""Likelihood scoring of choices (C1): how context and choice are tokenised, and four accuracies that normalise differently.

L_i = sum over the tokens of choice i of log p(token | context, tokens before). acc: argmax L. acc_norm: argmax L / characters of
the choice. acc_bytes: argmax L / its UTF-8 bytes. acc_token: argmax L / its tokens. L includes the delimiter between context and
choice, the divisors do not. These are the conventions of lm-evaluation-harness 0.4.13, except acc_token, which is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scipy import stats

from results_io import UserError
from suites.estimate import Estimate, missing
from suites.item import Item
from suites.models.base import Likelihood, ModelUnderTest
from suites.statistics import proportions

METRICS = ("acc", "acc_norm", "acc_bytes", "acc_token")
DELIMITER = " "  # between context and choice, as lm-eval's target_delimiter


@dataclass(frozen=True)
class ChoiceScores:
    """The choices of one item with L (nats) of each, and the indices of the right ones.

    `truncated`: tokens cut from the left of the context, for the choice that lost most.
    """

    choices: tuple[str, ...]
    logprobs: tuple[float, ...]
    n_tokens: tuple[int, ...]
    right: frozenset[int] = frozenset()
    truncated: int = 0

    def __post_init__(self) -> None:
        if not self.choices or not len(self.choices) == len(self.logprobs) == len(self.n_tokens):
            raise ValueError(
                f"{len(self.choices)} choices, {len(self.logprobs)} log-likelihoods, {len(self.n_tokens)} sizes"
            )
        if 0 in self.n_tokens or "" in self.choices:
            raise UserError(f"a choice of {self.choices} has no tokens to score; every choice needs text")

    def normalised(self, metric: str) -> tuple[float, ...]:
        """L of each choice divided by the normaliser of `metric`."""
        sizes = {
            "acc": [1] * len(self.choices),
            "acc_norm": [len(choice) for choice in self.choices],
            "acc_bytes": [len(choice.encode()) for choice in self.choices],
            "acc_token": self.n_tokens,
        }[metric]
        return tuple(value / size for value, size in zip(self.logprobs, sizes, strict=True))

    def picked(self, metric: str = "acc") -> int:
        """Index of the choice that `metric` picks; the first of equal ones."""
        values = self.normalised(metric)
        return values.index(max(values))

    def correct(self, metric: str = "acc") -> bool:
        return self.picked(metric) in self.right

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Softmax of L over the choices."""
        highest = max(self.logprobs)
        weights = [math.exp(value - highest) for value in self.logprobs]
        return tuple(weight / math.fsum(weights) for weight in weights)

    @property
    def confidence(self) -> float:
        """Largest of `probabilities`: that of the likeliest choice."""
        return max(self.probabilities)


def split(
    encode: Callable[..., list[int]], context: str, continuation: str, prefix: int | None
) -> tuple[list[int], list[int]]:
    """(ids of the context, ids of the continuation), tokenised jointly.

    `encode(text)` gives ids with BOS if the model uses it, `encode(text, bos=False)` ids without it. White space at the end of
    the context moves to the continuation. `prefix` replaces a context that has no token. UserError for a continuation that adds
    no token, and for an empty context without a `prefix`.
    """
    kept = context.rstrip()
    whole = context + continuation
    before = encode(kept) if kept else []
    after = encode(whole)[len(before) :] if before else encode(whole, bos=False)
    if not before:
        if prefix is None:
            raise UserError(
                "the context is empty and the model's tokenizer has no BOS or end-of-text token to begin with"
            )
        before, after = (after[:1], after[1:]) if after[:1] == [prefix] else ([prefix], after)
    if not after:
        raise UserError(
            f"the choice {continuation!r} adds no token to its context {context[-40:]!r}; every choice needs one of its own"
        )
    return before, after


def ask(model: ModelUnderTest, items: Sequence[Item], delimiter: str = DELIMITER) -> list[ChoiceScores]:
    """Score the choices of every item after its prompt. UserError for an item without choices or an answer outside them."""
    for item in items:
        absent = [answer for answer in item.answers if answer not in item.choices]
        if not item.choices or absent:
            what = f"has the answer {absent[0]!r} outside its choices" if absent else "has no choices"
            raise UserError(f"item {item.id} {what}; list every answer among `choices`")
    pairs = [(item.prompt, delimiter + choice) for item in items for choice in item.choices]
    found = iter(model.loglikelihood(pairs))
    return [_scores(item, [next(found) for _ in item.choices]) for item in items]


def _scores(item: Item, found: Sequence[Likelihood]) -> ChoiceScores:
    return ChoiceScores(
        item.choices,
        tuple(one.logprob for one in found),
        tuple(one.n_tokens for one in found),
        frozenset(item.choices.index(answer) for answer in item.answers),
        max(one.truncated for one in found),
    )


def summarise(scores: Sequence[ChoiceScores], clusters: Sequence[str] | None = None) -> dict[str, Estimate]:
    """Each of METRICS as a share of items, with Wilson's interval at the effective sample size of `clusters` [item].

    `p_value`: of "not above chance" (`above_chance`); an item's chance is its number of right choices / choices. Items without a
    right choice are excluded. `detail["truncated"]`: items whose context was cut from the left. Insufficient without items.
    """
    labels = [str(place) for place in range(len(scores))] if clusters is None else list(clusters)
    judged = [one for one in scores if one.right]
    own = [label for one, label in zip(scores, labels, strict=True) if one.right]
    if not judged:
        return {metric: missing("insufficient_data", "no item has a right choice", "share") for metric in METRICS}
    detail = {"truncated": sum(one.truncated > 0 for one in judged)}
    left_out = {"no right choice": len(scores) - len(judged)} if len(judged) < len(scores) else {}
    chances = [len(one.right) / len(one.choices) for one in judged]
    shares = {metric: proportions.clustered([one.correct(metric) for one in judged], own) for metric in METRICS}
    return {
        metric: replace(above_chance(share, chances), excluded=left_out, detail={**share.detail, **detail})
        for metric, share in shares.items()
    }


def above_chance(share: Estimate, chances: Sequence[float]) -> Estimate:
    """`share` with the p-value of "every item i is right by chance alone, with probability c_i": P(Z >= (share - mean c) / se).

    se^2 = design effect * sum c_i (1 - c_i) / n^2. No test if se is 0. Source: Wilson 1927; Kish 1965.
    """
    spread = math.fsum(chance * (1 - chance) for chance in chances)
    if share.value is None or spread <= 0:
        return share
    error = math.sqrt(share.detail.get("design_effect", 1.0) * spread) / len(chances)
    z = (share.value - math.fsum(chances) / len(chances)) / error
    return replace(share, p_value=float(stats.norm.sf(z)), test="one-sided score test, accuracy at chance")
