"""Self-tests that need no labels: head scores on repeated random tokens, and whether the model does the task at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from circuits.circuit import HEAD_NAME, Node
from circuits.engine import LensEngine
from circuits.engine.sources import Activations
from circuits.interventions import Base, Sweep, Variant
from circuits.measurements import attention
from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError

SCORES = ("previous_token", "duplicate_token", "induction")
LENGTH = 100  # random tokens, repeated once (Wang et al. 2022, appendix), or fewer if the context is short
SEQUENCES = 10  # at most: each gives an average over LENGTH positions
SHOWN = 5  # heads in each ranking
PROMPTS = 64  # of the task
PATTERN_SHARE = 0.25  # share of the engine's memory that the attention patterns of sequences run together may take
NORMAL_95 = 1.96


@dataclass(frozen=True)
class TopHeads:
    """The heads with the highest scores. `uniform`: the score of a head that attends to all earlier tokens alike."""

    score: str
    heads: tuple[str, ...]
    values: tuple[float, ...]
    uniform: float


@dataclass(frozen=True)
class Expectation:
    """A published fact: these heads are among the `top` of a score. `missing`: the heads that are not."""

    score: str
    top: int
    heads: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def met(self) -> bool:
        return not self.missing


@dataclass(frozen=True)
class Behaviour:
    """The task on some evaluation prompts: the share right, and the mean of the task's metric with its standard error."""

    prompts: int
    accuracy: float
    logit_diff: float
    standard_error: float
    corrupted_logit_diff: float
    metric: str = "logit difference"

    @property
    def present(self) -> bool:
        """Mean above 0 by more than its error."""
        return self.logit_diff > NORMAL_95 * self.standard_error

    @property
    def sentence(self) -> str:
        return f"the model {'does' if self.present else 'does not do'} the task"


@dataclass(frozen=True)
class SelfTests:
    """`rankings` on `sequences` sequences of `length` random tokens, each repeated once.

    If there are none, `unavailable` says why.
    """

    rankings: tuple[TopHeads, ...]
    length: int
    sequences: int
    expectations: tuple[Expectation, ...]
    behaviour: Behaviour
    unavailable: str | None = None


def run(study: Study, expected: Mapping[str, Any] | None) -> SelfTests:
    """Run all self-tests. `expected`: {score: {top, heads}} from the model's configuration, or None; UserError if malformed."""
    facts = _parse(expected or {}, study)
    behaviour = behaviour_of(study)
    if study.model.tokenizer.bos_token_id is None:
        reason = "the tokenizer has no BOS token, with which the random sequences begin"
        return SelfTests((), 0, 0, (), behaviour, reason)
    length, sequences = length_for(study), min(SEQUENCES, int(study.settings["repeated_tokens"]["sequences"]))
    together = max(1, int(PATTERN_SHARE * study.engine.room / _pattern_bytes(study, length)))
    scores = repeated_scores(study, length, sequences, together)
    ranked = {name: sorted(study.model.heads, key=lambda node: -scores[name][node]) for name in SCORES}
    rankings = tuple(
        TopHeads(
            name,
            tuple(map(str, ranked[name][:SHOWN])),
            tuple(scores[name][node] for node in ranked[name][:SHOWN]),
            uniform_score(length),
        )
        for name in SCORES
    )
    met = tuple(_checked(fact, ranked[fact.score]) for fact in facts)
    return SelfTests(rankings, length, sequences, met, behaviour)


def length_for(study: Study) -> int:
    """LENGTH, or less: the context must hold BOS and the tokens twice, and the vocabulary that many distinct tokens."""
    tokenizer = study.model.tokenizer
    usable = len(tokenizer) - len(set(tokenizer.all_special_ids))
    return min(LENGTH, (int(study.model.bridge.cfg.n_ctx) - 1) // 2, usable)


def uniform_score(length: int) -> float:
    """The value of any of the scores under uniform attention: the mean over the second half of 1 / (number of tokens so far)."""
    return sum(1 / (query + 1) for query in range(length + 1, 2 * length + 1)) / length


def repeated_scores(study: Study, length: int, sequences: int, together: int) -> dict[str, dict[Node, float]]:
    """{score: {head: mean over all sequences}}, `together` sequences at a time, each time with the next seed."""
    settings = dict(study.settings["repeated_tokens"])
    total = {name: torch.zeros(len(study.model.heads), dtype=torch.float64) for name in SCORES}
    for number, start in enumerate(range(0, sequences, together)):
        count = min(together, sequences - start)
        changed = {**settings, "length": length, "sequences": count, "seed": int(settings["seed"]) + number}
        part = attention.repeated_token_scores(
            replace(study, engine=_in_one_run(study), settings={**study.settings, "repeated_tokens": changed})
        )
        for name in SCORES:
            total[name] += count * part[name].double()
    return {
        name: dict(zip(study.model.heads, (values / sequences).tolist(), strict=True)) for name, values in total.items()
    }


def _in_one_run(study: Study) -> LensEngine:
    """A copy of the study's engine that reads the patterns of all layers in one run, though they are requested one by one."""
    names = tuple(f"blocks.{layer}.attn.hook_pattern" for layer in range(study.model.n_layers))
    engine, kept = copy(study.engine), {}

    def activations(
        prompts: PromptSet, base: Base, hooks: tuple[str, ...], device: torch.device | str = "cpu"
    ) -> Activations:
        if not kept:
            kept.update(study.engine.activations(prompts, base, names, device))
        return {name: kept.pop(name) for name in hooks}

    engine.activations = activations
    return engine


def behaviour_of(study: Study, size: int = PROMPTS) -> Behaviour:
    """The intact model on some evaluation prompts and their corrupted twins."""
    prompts = study.prompts.select(study.subset(size))
    effects = study.run(Sweep((Variant("clean"), Variant("corrupted", base="corrupted"))), prompts)
    clean, corrupted = effects.logit_diff.astype(float)
    error = float(clean.std(ddof=1) / math.sqrt(len(clean))) if len(clean) > 1 else 0.0
    accuracy, metric = float(effects.correct[0].mean()), study.task.quantity
    return Behaviour(len(clean), accuracy, float(clean.mean()), error, float(corrupted.mean()), metric)


def _pattern_bytes(study: Study, length: int) -> int:
    """Bytes of one sequence's attention patterns in all layers, in float32, and of their copy when stacked."""
    return 2 * 4 * len(study.model.heads) * (2 * length + 1) ** 2


def _parse(expected: Mapping[str, Any], study: Study) -> tuple[Expectation, ...]:
    """The facts, with `missing` still empty; UserError for a score, number or head that does not exist."""
    facts = []
    for score, fact in expected.items():
        if score not in SCORES:
            raise UserError(f"model.self_tests.{score} is not a score; use {', '.join(SCORES)}")
        top, heads = fact["top"], tuple(map(str, fact["heads"]))
        if not isinstance(top, int) or top < len(heads):
            raise UserError(
                f"model.self_tests.{score}.top={top} has no room for {len(heads)} heads; use a larger number"
            )
        for name in heads:
            match = HEAD_NAME.fullmatch(name)
            if match is None:
                raise UserError(f"model.self_tests.{score} names {name!r}, which is not a head; write one as L4H11")
            study.model.require(Node("head", int(match[1]), int(match[2])))
        facts.append(Expectation(score, top, heads, ()))
    return tuple(facts)


def _checked(fact: Expectation, ranked: Sequence[Node]) -> Expectation:
    best = set(map(str, ranked[: fact.top]))
    return replace(fact, missing=tuple(name for name in fact.heads if name not in best))
