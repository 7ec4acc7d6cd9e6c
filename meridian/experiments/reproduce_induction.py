"""Previous-token, duplicate-token and induction scores on random tokens said twice: self-tests that need no labels.

A score is a head's mean attention, over the second half, to the token before, to the same token's first occurrence, or to
the token after that (Olsson et al. 2022). For GPT-2 small it is known which heads are at the top of each list.
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

TASK = "induction"  # an engine needs prompts; these are never read
SCORES = ("previous_token", "duplicate_token", "induction")


def run(context: RunContext) -> None:
    """Score every head on every sequence; print where the known heads stand."""
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
    """{score: [sequence, head]}, the number of random tokens in a half, and whether BOS stands before the first.

    There are as many tokens as asked for, or as the context holds. BOS is there if the tokenizer has one. UserError if the
    context holds fewer than two.
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
    """One line for each head of a fact: its score, its place in the list, and whether that is where it should be.

    Nothing is known of heads that are not in `known`.
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
    """One line for each score: the head that has most of it, beside what uniform attention would have."""
    for name, values in found.items():
        place = int(values.mean(0).argmax())
        yield ReproducedRow(
            f"largest {_words(name)} score: {heads[place]}",
            _sample(values, settings).mean(values[:, place]),
            f"uniform attention {uniform(length, bos):.3f}",
            gap="the largest of all heads, chosen on the same sequences",
        )


def rank(values: Float[np.ndarray, " head"]) -> list[int]:
    """Place of each head, 1 for the largest; equal heads share the better place."""
    return [1 + int((values > own).sum()) for own in values]


def uniform(length: int, bos: bool) -> float:
    """The weight of a key under uniform attention: mean over the second half of 1 / (number of keys, a BOS included)."""
    return float(np.mean(1 / (np.arange(length + 1, 2 * length + 1) + bos)))


def _sample(values: Float[np.ndarray, "sequence head"], settings: Mapping[str, Any]) -> PromptSample:
    return PromptSample(tuple(map(str, range(len(values)))), **settings["bootstrap"])


def _words(name: str) -> str:
    return name.replace("_", "-") if name != "induction" else name
