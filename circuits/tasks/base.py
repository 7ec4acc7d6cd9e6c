"""What a task is: a generator of prompt pairs and its companions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from circuits.tasks.example import Example

if TYPE_CHECKING:
    from circuits.tasks.published.vocabulary import Vocabulary

Metric = Literal["logit_difference", "probability_difference", "sequence"]
METRICS: tuple[Metric, ...] = get_args(Metric)
QUANTITIES: Mapping[Metric, str] = {
    "logit_difference": "logit difference",
    "probability_difference": "probability difference",
    "sequence": "log-probability difference",
}
TEMPLATES = ("default", "more")  # the values of prompts.templates


@dataclass(frozen=True)
class Grammar:
    """Another set of wordings of a task: `sample` draws from all of them, `templates` are their labels (as in Task)."""

    sample: Callable[[random.Random], Example]
    templates: tuple[str, ...]


@dataclass(frozen=True)
class RowSource:
    """The rows that given prompts come from: the SHA-256 of their content, {id of a prompt (`Example.id`): number of its row},
    {number of a row left out: reason}, the choices made for them in words, and the shares of rows in the splits."""

    sha256: str
    row_of: Mapping[str, int]
    left_out: Mapping[int, str]
    notes: tuple[str, ...]
    shares: Mapping[str, float]

    def rows_of(self, ids: Sequence[str]) -> list[int]:
        """The number of the row that each of these prompts comes from."""
        return [self.row_of[one] for one in ids]


@dataclass(frozen=True)
class Task:
    """A behaviour with clean and corrupted prompts.

    `sample(rng)` draws one Example; the caller draws until each split is full. `companions` are the other tasks on whose
    prompts the circuit should not matter (discriminant validity, C17). `roles` lists the named positions in reading order,
    "end" last. `bos`: prompts begin with the tokenizer's BOS token. `vocabulary`: the tokenizer's vocabulary from which prompts
    are drawn; None for the embedded models' own words. `corruption`: how the corrupted prompt differs, if a task has several
    ways. `templates`: the labels of all templates, if every split is to have each of them equally often; empty if they are to
    occur as drawn.

    `metric`: what interventions change. It is the mean logit of the answers minus that of the foils (nats), the probability of
    all answers minus that of all foils, or ("sequence") the mean log-probability of the answers minus that of the foils, each
    summed over its tokens (nats). Attribution, lens, gradients and learning coefficients are about logits under any metric.
    `several_tokens`: answers and foils may have several tokens; logits are then those of the first token at which they differ
    ("sequence" implies it).

    `given`: the examples of every split for a task with a list of prompts instead of a sampler (`sample` is then None). `more`:
    a larger grammar, from which `prompts.templates=more` draws instead of `sample`; None if there is none. `source`: the rows
    of given prompts that come from a file. `others`: companions that are not registered, by name.
    """

    name: str
    title: str
    sample: Callable[[random.Random], Example] | None
    roles: tuple[str, ...]
    companions: tuple[str, ...]
    bos: bool = True
    vocabulary: Vocabulary | None = None
    corruption: str | None = None
    templates: tuple[str, ...] = ()
    metric: Metric = "logit_difference"
    given: Mapping[str, tuple[Example, ...]] | None = None
    more: Grammar | None = None
    several_tokens: bool = False
    source: RowSource | None = None
    others: Mapping[str, Task] | None = None

    @property
    def quantity(self) -> str:
        """What the metric is, in words."""
        return QUANTITIES[self.metric]
