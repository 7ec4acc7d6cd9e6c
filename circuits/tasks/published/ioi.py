"""Indirect object identification: "After Mary and John visited the park, John gave a ring to" -> Mary.

Task, corruptions and structure after Wang et al. 2022 (arXiv 2211.00593): 15 templates, each in the orders ABBA and
BABA (A is the indirect object IO, B the subject S, who is named twice), 100 names, 20 places and 20 objects. The
sentences are our own. An opening names both people, most templates name a place or an object, then the giver
(S2) acts, and the prompt ends with "to".
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill
from circuits.tasks.ioi import ORDERS, following_token
from circuits.tasks.published import words
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.vocabulary import Vocabulary
from circuits.tasks.wordings import crossed, extended

NAME = "ioi"
CORRUPTIONS = {
    "abc": "IO, S1 and S2 become three different names that the clean prompt does not hold, so none is repeated.",
    "random_name": "S2 alone becomes a third name, so nothing says which of the first two receives.",
    "name_swap": "S2 alone becomes the name of IO, so that the name of S is the answer.",
}
# An opening word or phrase comes first, so that every name is preceded by a space and keeps one token.
FRAMES = {
    "morning_walked": "One morning, {first} and {second} walked to the {place}. {giver} handed a {object} {end}",
    "day_enjoyed": "That day, {first} and {second} had a good time at the {place}. {giver} passed a {object} {end}",
    "yesterday_busy": "Yesterday, {first} and {second} were busy at the {place}. "
    "{giver} tried to sell a {object} {end}",
    "recently_planned": "Recently, {first} and {second} planned a trip to the {place}. "
    "{giver} wanted to lend a {object} {end}",
    "later_quarrel": "Later, {first} and {second} had a bitter quarrel, and in the end {giver} apologized {end}",
    "after_visit": "After {first} and {second} visited the {place}, {giver} gave a {object} {end}",
    "when_bought": "When {first} and {second} bought a {object} at the {place}, {giver} offered to give it {end}",
    "when_noticed": "When {first} and {second} noticed a {object} at the {place}, {giver} agreed to leave it {end}",
    "while_waited": "While {first} and {second} waited at the {place}, {giver} brought a {object} {end}",
    "while_drove": "While {first} and {second} drove to the {place}, {giver} showed a {object} {end}",
    "because_met": "Because {first} and {second} often met at the {place}, {giver} mailed a {object} {end}",
    "neighbors_spotted": "The neighbors {first} and {second} spotted a {object} at the {place}. {giver} gave it {end}",
    "partners_owned": "The partners {first} and {second} owned a {object} together. {giver} left it {end}",
    "place_talked": "At the {place}, {first} and {second} talked for hours. {giver} sent a {object} {end}",
    "place_empty": "Since the {place} was empty, {first} and {second} stayed there. {giver} threw a {object} {end}",
}
# The larger grammar: an opening with both people in it, then what the giver does.
SCENES = {
    "evening_met": "One evening, {first} and {second} met at the {place}. ",
    "week_went": "Last week, {first} and {second} went to the {place} together. ",
    "lunch_passed": "After lunch, {first} and {second} walked past the {place}. ",
    "once_arrived": "Once {first} and {second} had arrived at the {place}, ",
    "as_left": "As {first} and {second} left the {place}, ",
    "before_reached": "Just before {first} and {second} reached the {place}, ",
    "friends_worked": "The friends {first} and {second} worked at the {place}. ",
    "people_saw": "Many people saw {first} and {second} near the {place}. ",
    "outside_waited": "Outside the {place}, {first} and {second} waited for the bus. ",
}
TRANSFERS = {
    "gave": "{giver} gave a {object} {end}",
    "decided": "{giver} decided to offer a {object} {end}",
    "took_handed": "{giver} took out a {object} and handed it {end}",
}
MORE = extended(FRAMES, crossed(SCENES, TRANSFERS))
PLACES = tuple(
    "store park school garden restaurant office library museum market hospital house station bakery beach church "
    "hotel river theater farm bank".split()
)
OBJECTS = tuple(
    "book ring camera bone basketball computer necklace snack ball key letter gift card box knife pen cup bottle ticket "
    "lamp".split()
)  # each begins with a consonant, for "a"
FEWEST_NAMES = 20  # 190 pairs, the sampling units
FEWEST_WORDS = 5


@dataclass(frozen=True, eq=False)
class Prompts:
    """Draws prompt pairs from these words with this corruption."""

    names: tuple[str, ...]
    places: tuple[str, ...]
    objects: tuple[str, ...]
    corruption: str
    frames: Mapping[str, str]

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; both names of a pair are IO equally often, in either order."""
        template, order = rng.choice(tuple(self.frames)), rng.choice(ORDERS)
        surface = {"place": rng.choice(self.places), "object": rng.choice(self.objects), "end": "to"}
        first, second, *others = rng.sample(self.names, 5)
        io_slot, s1_slot = ("first", "second") if order == "ABBA" else ("second", "first")
        pair = {"first": first, "second": second}
        clean_names = pair | {"giver": pair[s1_slot]}
        clean, spans = fill(self.frames[template], **surface, **clean_names)
        corrupted, _ = fill(self.frames[template], **surface, **self.corrupt(clean_names, pair[io_slot], others))
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=(pair[io_slot],),
            wrong=(pair[s1_slot],),
            template=f"{template}/{order}",
            cluster=" ".join(sorted((first, second))),
            positions={
                "io": spans[io_slot],
                "s1": spans[s1_slot],
                "s1_plus_1": following_token(clean, spans[s1_slot][1]),
                "s2": spans["giver"],
                "end": spans["end"],
            },
            factors={"order": order, "answer": pair[io_slot]},
        )

    def corrupt(self, names: dict[str, str], indirect_object: str, others: list[str]) -> dict[str, str]:
        """Return the names of the corrupted prompt by slot; `others` are three names that the clean one lacks."""
        if self.corruption == "abc":
            return dict(zip(names, others, strict=True))
        return names | {"giver": indirect_object if self.corruption == "name_swap" else others[0]}


def labels(frames: Mapping[str, str]) -> tuple[str, ...]:
    """Return the templates of these frames: each in both orders."""
    return tuple(f"{frame}/{order}" for frame in frames for order in ORDERS)


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words that are one token each.

    Raises UserError if too few words are one token, or if the corruption is unknown.
    """
    corruption = choose(NAME, corruption, CORRUPTIONS)
    prompts = Prompts(
        names=vocabulary.require(f"names of task {NAME}", words.NAMES, FEWEST_NAMES),
        places=vocabulary.require(f"places of task {NAME}", PLACES, FEWEST_WORDS),
        objects=vocabulary.require(f"objects of task {NAME}", OBJECTS, FEWEST_WORDS),
        corruption=corruption,
        frames=FRAMES,
    )
    return Task(
        name=NAME,
        title="Indirect object identification",
        sample=prompts,
        roles=("io", "s1", "s1_plus_1", "s2", "end"),
        # Neither induction, whose heads are in the published circuit, nor copy suppression and acronym, with which it
        # shares its negative and its positive movers.
        companions=("greater_than", "subject_verb_agreement", "gendered_pronoun", "docstring"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=labels(FRAMES),
        more=Grammar(replace(prompts, frames=MORE), labels(MORE)),
    )
