"""Indirect object identification: "When Mary and John went to the store, John gave a drink to" -> Mary.

Task and ABC corruption after Wang et al. 2022 (arXiv 2211.00593). ABBA and BABA name the order of the
indirect object (A) and the repeated subject (B) in the two clauses.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import partial

from circuits.tasks import lexicon
from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill, held_out
from circuits.tasks.wordings import crossed, extended

FRAMES = {
    "when_went": "{conjunction} {first} and {second} {went} to the {place}, {giver} {gave} {article} {object} {end}",
    "then_went": "{adverb}, {first} and {second} {went} to the {place}. {giver} {gave} {article} {object} {end}",
    "had_talk": "{conjunction} {first} and {second} had a {length} {gathering}, "
    "{giver} {gave} {article} {object} {end}",
    "friends_found": "Friends {first} and {second} found a {object} at the {place}. {giver} {gave} it {end}",
    "was_with": "{first} was at the {place} with {second}. {giver} {gave} {article} {object} {end}",
    "so_went": "The {place} was {adjective}, so {first} and {second} {went} there. "
    "{giver} decided to give {article} {object} {end}",
}
# The larger grammar: pocket was trained on none of its wordings except FRAMES, but on most of its clauses in other places.
SCENES = {
    "when_went": "{conjunction} {first} and {second} {went} to the {place}, ",
    "when_had": "{conjunction} {first} and {second} had a {length} {gathering}, ",
    "when_saw": "{conjunction} {first} saw {second} at the {place}, ",
    "adverb_went": "{adverb}, {first} and {second} {went} to the {place}. ",
    "adverb_had": "{adverb}, {first} and {second} had a {length} {gathering} at the {place}. ",
    "place_had": "At the {place}, {first} and {second} had a {length} {gathering}. ",
    "friends_went": "Friends {first} and {second} {went} to the {place}. ",
    "day_went": "One {day} {first} and {second} {went} to the {place}. ",
    "month_went": "It was {month} when {first} and {second} {went} to the {place}. ",
    "was_with": "{first} was at the {place} with {second}. ",
    "so_went": "The {place} was {adjective}, so {first} and {second} {went} there. ",
    "both_said": "{first} and {second} said that the {place} was {adjective}. ",
}
TRANSFERS = {
    "gave": "{giver} {gave} {article} {object} {end}",
    "decided": "{giver} decided to give {article} {object} {end}",
    "found_gave": "{giver} found {article} {object} and {gave} it {end}",
}
FINDS = {
    "friends_found": "Friends {first} and {second} found a {object} at the {place}. ",
    "adverb_found": "{adverb}, {first} and {second} found a {object} at the {place}. ",
    "day_found": "One {day} {first} and {second} found a {object} at the {place}. ",
}
TRANSFERS_OF_IT = {"gave_it": "{giver} {gave} it {end}", "decided_it": "{giver} decided to give it {end}"}
MORE = extended(FRAMES, crossed(SCENES, TRANSFERS), crossed(FINDS, TRANSFERS_OF_IT))
ORDERS = ("ABBA", "BABA")
NEXT_TOKEN = re.compile(r"\s*(\w+|[^\w\s])")


def draw_pair(rng: random.Random, unseen: bool) -> tuple[str, str]:
    """Return two names whose combination is held out from training (`unseen`) or is not."""
    while True:
        first, second = rng.sample(lexicon.NAMES, 2)
        if held_out(first, second) == unseen:
            return first, second


def render(frame: str, words: dict[str, str], first: str, second: str, giver: str) -> tuple[str, dict]:
    """Return the prompt and its slot spans with these three names in the frame, all other words unchanged."""
    return fill(frame, **words | {"first": first, "second": second, "giver": giver})


def draw_surface(rng: random.Random, frame: str) -> dict[str, str]:
    """Return the words of every slot that is not for a name."""
    return lexicon.draw_words(rng, frame, first="", second="", giver="", end="to")


def following_token(text: str, position: int) -> tuple[int, int]:
    """Return the span of the word or punctuation mark that begins at or after `position`."""
    found = NEXT_TOKEN.match(text, position)
    assert found is not None  # every name of a frame is followed by something
    return found.span(1)


def sample(rng: random.Random, frames: Mapping[str, str] = FRAMES) -> Example:
    """Return one prompt pair over a held-out name pair; the corrupted names are three others."""
    template, order = rng.choice(tuple(frames)), rng.choice(ORDERS)
    frame = frames[template]
    first, second = draw_pair(rng, unseen=True)
    indirect_object, subject = (first, second) if order == "ABBA" else (second, first)
    others = rng.sample([name for name in lexicon.NAMES if name not in (first, second)], 3)
    words = draw_surface(rng, frame)
    clean, spans = render(frame, words, first, second, subject)
    corrupted, _ = render(frame, words, *others)
    io_slot, s1_slot = ("first", "second") if order == "ABBA" else ("second", "first")
    return Example(
        clean=clean,
        corrupted=corrupted,
        answers=(indirect_object,),
        wrong=(subject,),
        template=f"{template}/{order}",
        cluster=" ".join(sorted((first, second))),
        positions={
            "io": spans[io_slot],
            "s1": spans[s1_slot],
            "s1_plus_1": following_token(clean, spans[s1_slot][1]),
            "s2": spans["giver"],
            "end": spans["end"],
        },
        factors={"order": order, "answer": indirect_object},
    )


TASK = Task(
    name="ioi",
    title="Indirect object identification",
    sample=sample,
    roles=("io", "s1", "s1_plus_1", "s2", "end"),
    companions=("greater_than", "subject_verb_agreement", "gendered_pronoun", "induction"),
    more=Grammar(partial(sample, frames=MORE), tuple(f"{frame}/{order}" for frame in MORE for order in ORDERS)),
)
