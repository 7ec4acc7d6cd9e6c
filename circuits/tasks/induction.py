"""Induction on repeated random words: w1 ... wk w1 ... wj -> w(j+1).

After Olsson et al. 2022 (arXiv 2209.11895).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

from circuits.tasks import lexicon
from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example

REPEATED = {"repeat_6": (6, 3), "repeat_9": (9, 5), "repeat_12": (12, 6)}  # words in the list, words repeated
# The larger grammar: random words have no wording, only a layout. It has every list of 5 to 12 words (pocket was trained on
# lists of 3 to 13) and every number of repeated words from 2 on that leaves foils on both sides of the answer. The length of the
# list is the distance from a word to its repetition; the number of repeated words is the place of the answer. Each combination
# is a frame.
LENGTHS = range(5, 13)
FEWEST_REPEATED, FEWEST_LEFT = 2, 2
MORE = REPEATED | {
    f"repeat_{length}_{repeated}": (length, repeated)
    for length in LENGTHS
    for repeated in range(FEWEST_REPEATED, length - FEWEST_LEFT + 1)
    if (length, repeated) not in REPEATED.values()
}


def word_spans(words: list[str]) -> list[tuple[int, int]]:
    """Return the character span of each word in the space-joined text."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return spans


def sample(rng: random.Random, layouts: Mapping[str, tuple[int, int]] = REPEATED) -> Example:
    """Return one prompt pair; the corrupted one has other words in the first half, hence no known answer."""
    template = rng.choice(tuple(layouts))
    length, repeated = layouts[template]
    drawn = rng.sample(lexicon.REPEATABLE_WORDS, 2 * length)
    words, unrelated = drawn[:length], drawn[length:]
    tail = words[:repeated]
    spans = word_spans(words + tail)
    return Example(
        clean=" ".join(words + tail),
        corrupted=" ".join(unrelated + tail),
        answers=(words[repeated],),
        wrong=tuple(word for word in words if word != words[repeated]),
        template=template,
        cluster=" ".join(words),
        positions={
            "first_occurrence": spans[repeated - 1],
            "first_next": spans[repeated],
            "end": spans[-1],
        },
    )


TASK = Task(
    name="induction",
    title="Induction on repeated random words",
    sample=sample,
    roles=("first_occurrence", "first_next", "end"),
    companions=("ioi", "greater_than", "subject_verb_agreement", "gendered_pronoun"),
    more=Grammar(partial(sample, layouts=MORE), tuple(MORE)),
)
