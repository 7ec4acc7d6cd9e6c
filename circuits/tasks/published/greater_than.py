"""Greater-than: "The war went on from the year 1732 to the year 17" -> any two digits after 32.

Task and corruption after Hanna, Liu and Variengien 2023 (arXiv 2305.00586): 120 nouns for events, centuries 11 to
17, start years 02 to 98, corrupted start year 01. The sentences are our own.

The tokenizer determines which years can be used. A start year is used if it consists of its century and one more token
("1732" is " 17" and "32"). An end year counts as an answer or as a foil by the same rule, for each century: GPT-2 writes 1280
as one token, so "80" never follows " 12" in its training text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.vocabulary import Vocabulary, require_enough
from circuits.tasks.wordings import crossed, extended

NAME = "greater_than"
CORRUPTIONS = {"01": "The start year becomes 01 of the same century, after which nearly every end year is possible."}
FRAMES = {
    "went_on": "The {event} went on from the year {century}{year} to the year {end}",
    "started_finished": "The {event} started in the year {century}{year} and finished in the year {end}",
    "took_place": "The {event} took place between the year {century}{year} and the year {end}",
    "people_recall": "People recall that the {event} lasted from {century}{year} to {end}",
}
# The larger grammar: a subject, and a phrase with the two years.
OPENINGS = {
    "the": "The {event} ",
    "long": "The long {event} ",
    "historians": "Historians agree that the {event} ",
    "books": "According to the books, the {event} ",
    "region": "In that part of the world, the {event} ",
    "famous": "It is well known that the {event} ",
}
SPANS = {
    "ran": "ran from the year {century}{year} to the year {end}",
    "continued": "continued from {century}{year} until {end}",
    "began_ended": "began in {century}{year} and ended in {end}",
    "spring": "stretched from the spring of {century}{year} to the spring of {end}",
    "first_last": "first made news in {century}{year} and last made news in {end}",
    "started_over": "started around the year {century}{year} and was over in the year {end}",
}
MORE = extended(FRAMES, crossed(OPENINGS, SPANS))
EVENTS = tuple(
    "war siege battle conflict campaign crusade rebellion revolt revolution uprising invasion occupation expedition "
    "voyage journey mission famine plague drought epidemic flood storm crisis depression recession boom reign rule "
    "regime dynasty empire kingdom monarchy republic government administration presidency term council parliament "
    "senate assembly session trial investigation inquiry debate dispute controversy argument feud rivalry struggle "
    "strike boycott protest demonstration movement reform renaissance project program construction restoration "
    "expansion settlement migration exodus trade partnership alliance union treaty truce peace marriage friendship "
    "career tenure fellowship study survey excavation experiment research exploration festival fair exhibition "
    "tournament tour season era period age phase cycle decline growth development evolution transition collapse decay "
    "blockade confinement imprisonment exile captivity ban embargo quest debt summit hunt chase search raid assault "
    "attack".split()
)
CENTURIES = tuple(str(century) for century in range(11, 18))
TWO_DIGITS = tuple(f"{year:02d}" for year in range(100))
FIRST_YEAR, LAST_YEAR = "02", "98"
CORRUPTED_YEAR = "01"
FEWEST_EVENTS = 10
FEWEST_STARTS = 60  # start years are the sampling units


@dataclass(frozen=True, eq=False)
class Prompts:
    """Draws prompt pairs from these events; `years` are the writable two-digit years of each century, ascending."""

    events: tuple[str, ...]
    years: Mapping[str, tuple[str, ...]]
    starts: tuple[tuple[str, str], ...]
    frames: Mapping[str, str]

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; the start is drawn uniformly from all (century, year) that are two tokens."""
        template, event = rng.choice(tuple(self.frames)), rng.choice(self.events)
        century, year = rng.choice(self.starts)
        slots = {"event": event, "century": century, "year": year, "end": century}
        clean, spans = fill(self.frames[template], **slots)
        corrupted, _ = fill(self.frames[template], **slots | {"year": CORRUPTED_YEAR})
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=tuple(later for later in self.years[century] if later > year),
            wrong=tuple(earlier for earlier in self.years[century] if earlier <= year),
            template=template,
            cluster=century + year,
            positions={"event": spans["event"], "yy": spans["year"], "end": spans["end"]},
            factors={"century": century},
            joint="",
        )


def writable_years(vocabulary: Vocabulary) -> dict[str, tuple[str, ...]]:
    """Return, for each century that is one token, the years 00 to 99 that are one more token after it.

    Centuries whose year 01 is not written in this way are left out, since their prompts could not be corrupted.
    """
    years = {century: vocabulary.continuations(f"The year {century}", TWO_DIGITS) for century in CENTURIES}
    whole = vocabulary.single(CENTURIES)
    return {century: years[century] for century in whole if CORRUPTED_YEAR in years[century]}


def start_years(years: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, str], ...]:
    """Return every (century, start year) from 02 to 98 after which at least one writable year is left."""
    return tuple(
        (century, year)
        for century, written in years.items()
        for year in written
        if FIRST_YEAR <= year <= LAST_YEAR and year < written[-1]
    )


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words and years that tokenize as needed. Raises UserError if too few do."""
    corruption = choose(NAME, corruption, CORRUPTIONS)
    years = writable_years(vocabulary)
    starts = start_years(years)
    possible = len(CENTURIES) * (int(LAST_YEAR) - int(FIRST_YEAR) + 1)
    require_enough(
        len(starts), possible, f"start years of task {NAME}", FEWEST_STARTS, "a century and two digits, one token each,"
    )
    events = vocabulary.require(f"events of task {NAME}", EVENTS, FEWEST_EVENTS)
    prompts = Prompts(events, years, starts, FRAMES)
    return Task(
        name=NAME,
        title="Greater-than (end year after start year)",
        sample=prompts,
        roles=("event", "yy", "end"),
        # Not induction: 5.1, 5.5, 6.9 and 7.10 of the published circuit are also reported as induction heads.
        companions=("subject_verb_agreement", "gendered_pronoun", "acronym", "copy_suppression"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=tuple(FRAMES),
        more=Grammar(replace(prompts, frames=MORE), tuple(MORE)),
        metric="probability_difference",
    )
