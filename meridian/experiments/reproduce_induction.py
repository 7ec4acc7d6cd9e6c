"""Previous-token, duplicate-token and induction scores on repeated random tokens: self-tests that need no labels.

A score is a head's mean attention over the second half: to the previous token, to the same token's first occurrence, or to
the token after that occurrence (Olsson et al. 2022). For GPT-2 small, the top heads of each list are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from circuits.circuit import Node, parse_head
from circuits.measurements.attention import repeated_token_scores
from circuits.study import Study
from meridian.experiments.estimates import PromptSample, undefined
from meridian.experiments.reproduction import ReproducedRow, Reproduction
from results_io import UserError

if TYPE_CHECKING:
    from meridian.context import RunContext

TASK = "induction"  # an engine needs prompts; these are never used
SCORES = ("previous_token", "duplicate_token", "induction")


def run(context: RunContext) -> None:
    """Score every head on every sequence, and print the ranks of the known heads."""
    work = Reproduction(context, TASK, drawn=False)
    settings, heads = work.settings, work.identity.heads
    found = work.part("scores", lambda study: scores(study, work.settings["repeated_tokens"]))
    by_score = {name: np.array(found[name], float) for name in SCORES}
    known = heads if work.identity.name == settings["about"] else ()
    work.finish(
        [
            *rows(by_score, heads, known, settings, found["length"], found["bos"]),
            *strongest(by_score, heads, settings, found["length"], found["bos"]),
        ]
    )


def scores(study: Study, settings: Mapping[str, Any]) -> dict[str, Any]:
    """{score: [sequence, head]}, the number of random tokens in a half, and whether a BOS token precedes the first.

    The number is the one asked for, or fewer if the context is short. BOS is used if the tokenizer has one. UserError if the
    context holds fewer than two tokens.
    """
    context, bos = int(study.model.bridge.cfg.n_ctx), study.model.tokenizer.bos_token_id is not None
    length = min(int(settings["length"]), (context - bos) // 2)
    if length < 2:
        raise UserError(f"{study.model.name} sees {context} tokens, too few to repeat any; use another model")
    sequences = int(settings["sequences"])
    study.progress.expect(sequences)
    every = []
    for number in range(sequences):
        one = {"seed": int(settings["seed"]) + number, "length": length, "sequences": 1}
        every.append(repeated_token_scores(replace(study, settings={"repeated_tokens": one})))
        study.progress.advance(1)
    return {
        **{name: np.stack([found[name].numpy() for found in every]) for name in SCORES},
        "length": length,
        "bos": bos,
    }


def rows(
    found: Mapping[str, Float[np.ndarray, "sequence head"]],
    heads: Sequence[Node],
    known: Sequence[Node],
    settings: Mapping[str, Any],
    length: int,
    bos: bool,
) -> Iterator[ReproducedRow]:
    """One line for each head of a published fact: its score, its rank, and whether the rank is as published.

    Heads that are not in `known` are not judged.
    """
    asked = settings["repeated_tokens"]["length"]
    shorter = "" if length == asked else f"; {length} tokens and not {asked}, as the context holds no more"
    gap = settings["recipe_differences"] + "; BOS before them" * bos + shorter
    for fact in settings["facts"]:
        name, top = fact["score"], int(fact["top"])
        sample, values = _sample(found[name], settings), found[name]
        ranks = rank(values.mean(0))
        for node in map(parse_head, fact["heads"]):
            quantity, paper = f"{_words(name)} score of {node}", f"among the top {top}"
            if node not in known:
                yield ReproducedRow(quantity, undefined(f"this is about {settings['about']}"), paper)
                continue
            place = list(heads).index(node)
            yield ReproducedRow(
                f"{quantity}, place {ranks[place]}",
                sample.mean(values[:, place]),
                paper,
                gap=gap,
                holds=bool(ranks[place] <= top),
            )


def strongest(
    found: Mapping[str, Float[np.ndarray, "sequence head"]],
    heads: Sequence[Node],
    settings: Mapping[str, Any],
    length: int,
    bos: bool,
) -> Iterator[ReproducedRow]:
    """One line for each score: the head with the highest score, beside the score of uniform attention."""
    for name, values in found.items():
        place = int(values.mean(0).argmax())
        yield ReproducedRow(
            f"largest {_words(name)} score: {heads[place]}",
            _sample(values, settings).mean(values[:, place]),
            f"uniform attention {uniform(length, bos):.3f}",
            gap="the largest of all heads, chosen on the same sequences",
        )


def rank(values: Float[np.ndarray, " head"]) -> list[int]:
    """The rank of each head, 1 for the largest value; ties share the better rank."""
    return [1 + int((values > own).sum()) for own in values]


def uniform(length: int, bos: bool) -> float:
    """The score of uniform attention: the mean over the second half of 1 / (number of keys, BOS included)."""
    return float(np.mean(1 / (np.arange(length + 1, 2 * length + 1) + bos)))


def _sample(values: Float[np.ndarray, "sequence head"], settings: Mapping[str, Any]) -> PromptSample:
    return PromptSample(tuple(map(str, range(len(values)))), **settings["bootstrap"])


def _words(name: str) -> str:
    return name.replace("_", "-") if name != "induction" else name
