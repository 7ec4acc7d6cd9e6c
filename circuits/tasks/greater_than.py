"""Greater-than: "The war lasted from the year 1732 to the year 17" -> any year after 32.

After Hanna et al. 2023 (arXiv 2305.00586).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

from circuits.tasks import lexicon
from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill, held_out
from circuits.tasks.wordings import crossed, extended

FRAMES = {
    "from_year": "The {event} {lasted} from the year {century}{year} to the year {end}",
    "from": "The {event} {lasted} from {century}{year} to {end}",
    "began_ended": "The {adjective} {event} began in {century}{year} and ended in {end}",
}
# The larger grammar: a subject, and a phrase with the two years.
OPENINGS = {
    "the": "The {event} ",
    "adjective": "The {adjective} {event} ",
    "adverb": "{adverb}, the {event} ",
    "at_place": "The {event} at the {place} ",
    "of_noun": "The {event} of the {noun} ",
    "said": "{name} said that the {event} ",
}
SPANS = {
    "from_year": "{lasted} from the year {century}{year} to the year {end}",
    "from": "{lasted} from {century}{year} to {end}",
    "began_ended": "began in {century}{year} and ended in {end}",
    "year_began_ended": "began in the year {century}{year} and ended in the year {end}",
    "began_then_ended": "began in {century}{year}, then ended in {end}",
    "began_lasted": "began in {century}{year} and {lasted} to {end}",
    "was_there": "was there from {century}{year} to {end}",
    "that_began_ended": "that began in {century}{year} ended in {end}",
}
MORE = extended(FRAMES, crossed(OPENINGS, SPANS))
FIRST_YEAR, LAST_YEAR = 2, 97  # leaves at least one earlier and two later two-digit years
CORRUPTED_YEAR = "01"  # earlier than every start year, so nearly every end year is possible


def draw_start(rng: random.Random, unseen: bool, first_year: int = FIRST_YEAR) -> tuple[str, int]:
    """Return a century and a start year whose combination is held out from training (`unseen`) or is not."""
    while True:
        century, year = rng.choice(lexicon.CENTURIES), rng.randint(first_year, LAST_YEAR)
        if held_out(century, lexicon.NUMBERS[year]) == unseen:
            return century, year


def sample(rng: random.Random, frames: Mapping[str, str] = FRAMES) -> Example:
    """Return one prompt pair over a held-out (century, year); the corrupted one starts in the year 01."""
    template = rng.choice(tuple(frames))
    century, year = draw_start(rng, unseen=True)
    words = lexicon.draw_words(rng, frames[template], century=century, year=lexicon.NUMBERS[year], end=century)
    clean, spans = fill(frames[template], **words)
    corrupted, _ = fill(frames[template], **words | {"year": CORRUPTED_YEAR})
    return Example(
        clean=clean,
        corrupted=corrupted,
        answers=lexicon.NUMBERS[year + 1 :],
        wrong=lexicon.NUMBERS[FIRST_YEAR : year + 1],
        template=template,
        cluster=f"{century}{lexicon.NUMBERS[year]}",
        positions={"event": spans["event"], "yy": spans["year"], "end": spans["end"]},
        factors={"century": century},
    )


TASK = Task(
    name="greater_than",
    title="Greater-than (end year after start year)",
    sample=sample,
    roles=("event", "yy", "end"),
    companions=("ioi", "subject_verb_agreement", "gendered_pronoun", "induction"),
    more=Grammar(partial(sample, frames=MORE), tuple(MORE)),
)
