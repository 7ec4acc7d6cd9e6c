"""Gendered pronoun: "So Mary is a really kind neighbor, isn't" -> she.

After Mathwin and Corlouer 2023, an unpublished hackathon report, so its circuit is a hypothesis. The tag question asks for the
subject's pronoun, whose gender only the name reveals.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill, last_word
from circuits.tasks.gendered_pronoun import GENDERS, SUBJECT_PRONOUN
from circuits.tasks.published import words
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.vocabulary import Vocabulary
from circuits.tasks.wordings import crossed, extended

NAME = "gendered_pronoun"
CORRUPTIONS = {"other_gender": "The name becomes one of the other gender, so that the other pronoun is the answer."}
FRAMES = {
    "is_really": "So {name} {is} a really {adjective} {role}, isn't",
    "was_very": "Back then {name} {was} a very {adjective} {role}, wasn't",
    "has_been": "All along {name} {has} been a very {adjective} {role}, hasn't",
    "will_be": "One day {name} {will} be a really {adjective} {role}, won't",
    "sounds_like": "Honestly, {name} {does} sound like a very {adjective} {role}, doesn't",
}
VERBS = ("is", "was", "has", "will", "does")  # each frame has one
# The larger grammar: an opening, then a statement with its tag question.
OPENINGS = {
    "clearly": "Clearly, {name} ",
    "of_course": "Of course {name} ",
    "you_know": "You know, {name} ",
    "all_know": "As we all know, {name} ",
    "people_say": "People say that {name} ",
    "well": "Well, {name} ",
    "in_fact": "In fact, {name} ",
}
STATEMENTS = {
    "is": "{is} a really {adjective} {role}, isn't",
    "was": "{was} a very {adjective} {role}, wasn't",
    "has_been": "{has} been a very {adjective} {role}, hasn't",
    "will_be": "{will} be a really {adjective} {role}, won't",
    "sounds_like": "{does} sound like a very {adjective} {role}, doesn't",
}
MORE = extended(FRAMES, crossed(OPENINGS, STATEMENTS))
NAMES = {"male": words.MALE_NAMES, "female": words.FEMALE_NAMES}
# Words for men and women alike; words that suggest one gender are left out (nurse, handsome).
ADJECTIVES = tuple(
    "good great nice kind smart clever funny gentle loyal honest brave calm patient quiet careful talented generous "
    "friendly creative thoughtful reliable famous popular skilled happy polite decent modest cheerful wonderful "
    "brilliant remarkable helpful fair wise".split()
)
ROLES = tuple(
    "friend neighbor teacher student doctor lawyer writer leader player singer driver worker dancer partner colleague "
    "cook pilot guest speaker judge poet musician scientist manager coach".split()
)
FEWEST_NAMES = 10  # of each gender; names are the sampling units
FEWEST_WORDS = 5


@dataclass(frozen=True, eq=False)
class Prompts:
    """Draws prompt pairs from these words; `names` holds those of each gender."""

    names: dict[str, tuple[str, ...]]
    adjectives: tuple[str, ...]
    roles: tuple[str, ...]
    frames: Mapping[str, str]

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; both genders are equally frequent."""
        template = rng.choice(tuple(self.frames))
        gender, other = rng.sample(GENDERS, 2)
        surface = {verb: verb for verb in VERBS}
        surface |= {"adjective": rng.choice(self.adjectives), "role": rng.choice(self.roles)}
        name = rng.choice(self.names[gender])
        clean, spans = fill(self.frames[template], **surface, name=name)
        corrupted, _ = fill(self.frames[template], **surface, name=rng.choice(self.names[other]))
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=(SUBJECT_PRONOUN[gender],),
            wrong=(SUBJECT_PRONOUN[other],),
            template=template,
            cluster=name,
            positions={
                "name": spans["name"],
                "verb": next(spans[verb] for verb in VERBS if verb in spans),
                "end": last_word(clean),
            },
            factors={"gender": gender},
        )


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words that are one token each.

    Raises UserError if too few words are one token, or if the corruption is unknown.
    """
    corruption = choose(NAME, corruption, CORRUPTIONS)
    pronouns = tuple(SUBJECT_PRONOUN.values())
    vocabulary.require(f"pronouns of task {NAME}", pronouns, len(pronouns))
    prompts = Prompts(
        names={
            gender: vocabulary.require(f"{gender} names of task {NAME}", NAMES[gender], FEWEST_NAMES)
            for gender in GENDERS
        },
        adjectives=vocabulary.require(f"adjectives of task {NAME}", ADJECTIVES, FEWEST_WORDS),
        roles=vocabulary.require(f"nouns of task {NAME}", ROLES, FEWEST_WORDS),
        frames=FRAMES,
    )
    return Task(
        name=NAME,
        title="Gendered pronoun after a name",
        sample=prompts,
        roles=("name", "verb", "end"),
        # Not ioi, with which the reported circuit shares 0.10, 3.0, 5.8 and 8.6, nor acronym (5.8).
        companions=("greater_than", "subject_verb_agreement", "induction", "copy_suppression"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=tuple(FRAMES),
        more=Grammar(replace(prompts, frames=MORE), tuple(MORE)),
    )
