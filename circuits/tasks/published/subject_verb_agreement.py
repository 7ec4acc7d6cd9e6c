"""Subject-verb agreement across an attractor: "The keys near the cabinet" -> are.

The design is that of Linzen et al. 2016 (arXiv 1611.01368): another noun, of the same or the other number, stands between
subject and verb. GPT-2's circuit is from Africa 2025 (arXiv 2506.22105). Only nouns whose singular and plural are one token
each are used.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill, last_word
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.vocabulary import Vocabulary, require_enough
from circuits.tasks.subject_verb_agreement import NUMBERS, other
from circuits.tasks.wordings import crossed, extended

NAME = "subject_verb_agreement"
CORRUPTIONS = {
    "subject_number": "The subject gets the other number, so that the other verb form is the answer.",
    "other_subject": "The subject becomes another noun of the other number, so that the other verb form is the answer.",
}
FRAMES = {
    "preposition": "The {subject} {preposition} the {attractor}",
    "adjective_subject": "The {adjective} {subject} {preposition} the {attractor}",
    "adjective_attractor": "The {subject} {preposition} the {adjective} {attractor}",
    "relative_clause": "The {subject} that the {attractor} {clause_verb}",
    "they_knew": "They all knew that the {subject} {preposition} the {attractor}",
}
# The larger grammar: an opening before the subject, and a phrase between subject and verb.
OPENINGS = {
    "the": "The {subject} ",
    "adjective": "The {adjective} {subject} ",
    "he_said": "He said that the {subject} ",
    "it_seems": "It seems that the {subject} ",
    "in_fact": "In fact, the {subject} ",
    "all_know": "As we all know, the {subject} ",
    "nobody": "Nobody asked why the {subject} ",
}
MODIFIERS = {
    "preposition": "{preposition} the {attractor}",
    "preposition_other": "{preposition} the other {attractor}",
    "next_to": "next to the {attractor}",
    "in_front_of": "in front of the {attractor}",
    "relative_clause": "that the {attractor} {clause_verb}",
    "other_relative_clause": "that the other {attractor} {clause_verb}",
}
MORE = extended(FRAMES, crossed(OPENINGS, MODIFIERS))
VERBS = {"singular": ("is", "was", "has"), "plural": ("are", "were", "have")}
REGULAR_NOUNS = tuple(
    "car dog cat boy girl teacher doctor student lawyer artist writer singer player driver worker farmer soldier "
    "officer captain king queen prince friend neighbor mother father brother sister son daughter cousin pilot nurse "
    "judge actor dancer guard clerk author poet key book letter picture painting map bottle cup table chair lamp clock "
    "phone camera computer truck train boat ship plane house tower bridge wall door window gate garden tree flower "
    "bird horse cow pig lion bear snake rabbit shop store hotel restaurant museum school office bank castle farm "
    "village street road river lake mountain hill island forest field idea plan report song movie game machine engine "
    "tool sword ring coin stone rock leader manager owner chef scientist engineer senator president minister customer "
    "visitor guest victim tourist stranger".split()
)  # their plural adds s
IRREGULAR_NOUNS = {
    "man": "men", "woman": "women", "child": "children", "wolf": "wolves", "knife": "knives", "box": "boxes",
    "bus": "buses", "church": "churches", "library": "libraries", "city": "cities", "story": "stories",
    "witness": "witnesses",
}  # fmt: skip
PLURAL_OF = {noun: noun + "s" for noun in REGULAR_NOUNS} | IRREGULAR_NOUNS
CLAUSE_VERBS = tuple(
    "likes/like sees/see knows/know wants/want needs/need uses/use finds/find loves/love hates/hate hears/hear "
    "follows/follow watches/watch".split()
)
PREPOSITIONS = tuple("near behind beside above below with from by".split())
ADJECTIVES = tuple(
    "old new small big tall young famous strange quiet red green heavy dark bright cheap beautiful ugly large "
    "tiny".split()
)
FEWEST_NOUNS = 20  # 190 pairs, the sampling units
FEWEST_WORDS = 4


@dataclass(frozen=True, eq=False)
class Prompts:
    """Draws prompt pairs from nouns and clause verbs (each singular and plural) and other words."""

    nouns: tuple[tuple[str, str], ...]
    clause_verbs: tuple[tuple[str, str], ...]
    prepositions: tuple[str, ...]
    adjectives: tuple[str, ...]
    corruption: str
    frames: Mapping[str, str]

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; the numbers of subject and attractor are independent, singular and plural equally frequent."""
        template = rng.choice(tuple(self.frames))
        subject, attractor, unrelated = rng.sample(self.nouns, 3)
        number, attractor_number = rng.choice(NUMBERS), rng.choice(NUMBERS)
        flipped = subject if self.corruption == "subject_number" else unrelated
        surface = {
            "attractor": attractor[NUMBERS.index(attractor_number)],
            "clause_verb": rng.choice(self.clause_verbs)[NUMBERS.index(attractor_number)],
            "preposition": rng.choice(self.prepositions),
            "adjective": rng.choice(self.adjectives),
        }
        clean, spans = fill(self.frames[template], **surface, subject=subject[NUMBERS.index(number)])
        corrupted, _ = fill(self.frames[template], **surface, subject=flipped[NUMBERS.index(other(number))])
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=VERBS[number],
            wrong=VERBS[other(number)],
            template=template,
            cluster=" ".join(sorted((subject[0], attractor[0]))),
            positions={"subject": spans["subject"], "attractor": spans["attractor"], "end": last_word(clean)},
            factors={
                "subject_number": number,
                "attractor_match": "same" if number == attractor_number else "different",
            },
        )


def single_pairs(vocabulary: Vocabulary, pairs: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of which both words are one token."""
    whole = set(vocabulary.single([word for pair in pairs for word in pair]))
    return tuple(pair for pair in pairs if whole.issuperset(pair))


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words that are one token each.

    Raises UserError if too few words are one token, or if the corruption is unknown.
    """
    corruption = choose(NAME, corruption, CORRUPTIONS)
    verbs = VERBS["singular"] + VERBS["plural"]
    vocabulary.require(f"verbs of task {NAME}", verbs, len(verbs))
    nouns = single_pairs(vocabulary, list(PLURAL_OF.items()))
    both = "one token in singular and plural"
    require_enough(len(nouns), len(PLURAL_OF), f"nouns of task {NAME}", FEWEST_NOUNS, both)
    clause_verbs = single_pairs(vocabulary, [(one, two) for one, two in (pair.split("/") for pair in CLAUSE_VERBS)])
    require_enough(len(clause_verbs), len(CLAUSE_VERBS), f"clause verbs of task {NAME}", FEWEST_WORDS, both)
    prompts = Prompts(
        nouns=nouns,
        clause_verbs=clause_verbs,
        prepositions=vocabulary.require(f"prepositions of task {NAME}", PREPOSITIONS, FEWEST_WORDS),
        adjectives=vocabulary.require(f"adjectives of task {NAME}", ADJECTIVES, FEWEST_WORDS),
        corruption=corruption,
        frames=FRAMES,
    )
    return Task(
        name=NAME,
        title="Subject-verb agreement across an attractor",
        sample=prompts,
        roles=("subject", "attractor", "end"),
        # Their published circuits share no head with this one; those of ioi (10.0) and acronym (1.0, 11.4) do.
        companions=("greater_than", "gendered_pronoun", "induction", "copy_suppression"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=tuple(FRAMES),
        more=Grammar(replace(prompts, frames=MORE), tuple(MORE)),
    )
