"""Successor: "Then Mary wrote down Monday, Tuesday, Wednesday," -> Thursday, not what follows in the corrupted list.

The answer is the next word in an ordered list of days, months, number words or letters. Successor heads: Gould et al. 2023,
arXiv 2312.09230. GPT-2's circuit, and the heads it shares with that of greater-than: Lan, Torr and Barez 2024, arXiv
2311.04131. The sentences are our own. Every tokenizer for English keeps these words whole, so this task stands in for
greater_than, whose years Llama-3 and Qwen do not split into two and two digits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill
from circuits.tasks.published import words
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.vocabulary import Vocabulary, require_enough
from circuits.tasks.wordings import crossed, extended

NAME = "successor"
CORRUPTIONS = {"other_start": "The list begins elsewhere in the same order, so that another word follows."}
FRAMES = {
    "wrote": "Then {name} wrote down {first}, {second}, {third}{end}",
    "in_order": "So {name} said them in order: {first}, {second}, {third}{end}",
    "list_read": "The list that {name} read began with {first}, {second}, {third}{end}",
}
# The larger grammar: a subject, and an introduction of the list.
OPENINGS = {
    "then": "Then {name} ",
    "so": "So {name} ",
    "in_the_end": "In the end {name} ",
    "at_school": "At school {name} ",
    "we_heard": "We heard that {name} ",
    "in_the_book": "In the book {name} ",
    "the_other_day": "The other day {name} ",
}
LISTS = {
    "wrote": "wrote down {first}, {second}, {third}{end}",
    "in_order": "said them in order: {first}, {second}, {third}{end}",
    "read_out": "read out {first}, {second}, {third}{end}",
    "went_through": "went through {first}, {second}, {third}{end}",
    "began_with": "began with {first}, {second}, {third}{end}",
    "named": "named {first}, {second}, {third}{end}",
}
MORE = extended(FRAMES, crossed(OPENINGS, LISTS))
ORDERS = {
    "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "months": "January February March April May June July August September October November December",
    "numbers": "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty",
    "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth",
    "letters": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
}
LISTED = 3  # words in the list before the answer
FEWEST_STARTS = 10  # starting points are the sampling units
FEWEST_NAMES = 20


@dataclass(frozen=True, eq=False)
class Prompts:
    """Draws prompt pairs: `starts` are (order, words of that order from some place on: the listed ones and the answer)."""

    starts: tuple[tuple[str, tuple[str, ...]], ...]
    names: tuple[str, ...]
    frames: Mapping[str, str]

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; the corrupted list begins elsewhere in the same order and has another answer."""
        template, name = rng.choice(tuple(self.frames)), rng.choice(self.names)
        order, listed = rng.choice(self.starts)
        others = [other for own, other in self.starts if own == order and other != listed]
        other = rng.choice(others)
        clean, spans = fill(self.frames[template], name=name, **_slots(listed))
        corrupted, _ = fill(self.frames[template], name=name, **_slots(other))
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=(listed[LISTED],),
            wrong=(other[LISTED],),
            template=template,
            cluster=" ".join(sorted((listed[LISTED], other[LISTED]))),
            positions={role: spans[role] for role in ("first", "second", "third", "end")},
            factors={"order": order},
        )


def _slots(listed: tuple[str, ...]) -> dict[str, str]:
    return {"first": listed[0], "second": listed[1], "third": listed[2], "end": ","}


def starts_of(vocabulary: Vocabulary) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Every place in an order from which on four words are one token each; only orders with at least two such places."""
    found = []
    for order, listed in ORDERS.items():
        every = listed.split()
        whole = set(vocabulary.single(every))
        runs = [tuple(every[place : place + LISTED + 1]) for place in range(len(every) - LISTED)]
        kept = [run for run in runs if whole.issuperset(run)]
        found += [(order, run) for run in kept] if len(kept) > 1 else []
    return tuple(found)


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words that are one token each.

    Raises UserError if too few words are one token, or if the corruption is unknown.
    """
    corruption = choose(NAME, corruption, CORRUPTIONS)
    starts = starts_of(vocabulary)
    possible = sum(len(listed.split()) - LISTED for listed in ORDERS.values())
    require_enough(len(starts), possible, f"lists of task {NAME}", FEWEST_STARTS, "four words of one token each")
    prompts = Prompts(starts, vocabulary.require(f"names of task {NAME}", words.NAMES, FEWEST_NAMES), FRAMES)
    return Task(
        name=NAME,
        title="Successor (the next word of an ordered list)",
        sample=prompts,
        roles=("first", "second", "third", "end"),
        # Not greater_than, whose published circuits share heads with that of such lists (Lan et al.).
        companions=("subject_verb_agreement", "gendered_pronoun", "acronym", "copy_suppression"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=tuple(FRAMES),
        more=Grammar(replace(prompts, frames=MORE), tuple(MORE)),
    )
