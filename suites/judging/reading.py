"""Reading a verdict: the likeliest label, or the last line of an output that is a verdict."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from suites.judging.prompt import ENDING
from suites.likelihood import ChoiceScores
from suites.models.base import Likelihood

MODES = ("likelihood", "text")


def of_text(text: str, labels: Sequence[str]) -> str | None:
    """The label of the last line that is "Verdict: LABEL" and nothing else; None without such a line."""
    allowed = "|".join(map(regex.escape, labels))
    found = regex.findall(rf"^{ENDING} ({allowed})[ \t]*\r?$", text, flags=regex.MULTILINE)
    return found[-1] if found else None


def contexts(prompt: str, labels: Sequence[str]) -> list[tuple[str, str]]:
    """(context, continuation) for every label after the prompt; their log p are compared."""
    return [(f"{prompt}\n\n{ENDING}", f" {label}") for label in labels]


def of_likelihoods(labels: Sequence[str], found: Sequence[Likelihood]) -> tuple[str | None, float]:
    """(likeliest label, its softmax probability among the labels); the label is None if several are equally likely."""
    scores = ChoiceScores(tuple(labels), tuple(one.logprob for one in found), tuple(one.n_tokens for one in found))
    best = [label for label, value in zip(labels, scores.logprobs, strict=True) if value == max(scores.logprobs)]
    return (best[0] if len(best) == 1 else None), scores.confidence
