"""Acronyms: "The Federal Joint Transport (FJ" -> T.

After García-Carrasco, Maté and Trujillo, AISTATS 2024: three capitalized words and an acronym in brackets whose third
letter is next. The words are our own. The tokenizer must keep the letters apart: the three letters of an acronym must be
three tokens ("CEO" is not). All letters differ, so that no letter in the bracket is also the answer.
"""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.vocabulary import Vocabulary, require_enough
from circuits.tasks.wordings import crossed, extended

NAME = "acronym"
CORRUPTIONS = {
    "third_word": "The third word becomes one with another initial, which is then the answer.",
    "all_words": "All three words become others with three different initials that the clean prompt lacks, while the "
    "letters in brackets stay.",
}
ROLES = ("w1", "w2", "w3", "l1", "end")
FRAMES = {
    "the": "The {w1} {w2} {w3} ({l1}{l2}",
    "members": "All members of the {w1} {w2} {w3} ({l1}{l2}",
    "report": "According to a report by the {w1} {w2} {w3} ({l1}{l2}",
    "joined": "Last year she joined the {w1} {w2} {w3} ({l1}{l2}",
}
# The larger grammar: a time, and who does what with the organization.
TIMES = {
    "year": "Last year ",
    "march": "In March ",
    "two_years": "Two years later ",
    "first": "At first ",
    "while": "For a while ",
    "end": "In the end ",
}
EVENTS = {
    "they_joined": "they joined the ",
    "he_founded": "he founded the ",
    "mayor_praised": "the mayor praised the ",
    "we_visited": "we visited the ",
    "she_led": "she was in charge of the ",
    "letter_came": "a letter came from the ",
}
MORE = extended(FRAMES, crossed(TIMES, EVENTS, {"": "{w1} {w2} {w3} ({l1}{l2}"}))
WORDS = tuple(
    """Academy Agency Alliance Army Atlantic Advisory Archive
    Bank Board Bureau Business British Budget Bridge
    Central Center Committee Council College Community Capital
    Defense Department Development Digital District Division Design
    Education Energy Environmental Economic European Emergency Engineering
    Federal Foundation Finance Forest Forum Fund Fisheries
    Global Government Group Guild General Growth Geographic
    Health Human Housing History Heritage Hospital Highway
    Institute International Industry Insurance Information Innovation Investment
    Joint Justice Journal Junior Jewish Japanese Judicial
    Knowledge Korean Kitchen Knights Kansas
    League Labor Legal Library Local Language Liberty
    Management Medical Marine Museum Military Market Media
    National Network Nuclear Northern Naval Neighborhood Nature
    Office Organization Ocean Operations Oversight Olympic
    Policy Program Public Police Project Pacific Protection
    Quality Quarterly Quantum Queen Quebec
    Research Regional Rural Royal Resource Railway Rescue
    Science Security Service Social Society State Space
    Technology Transport Trade Treasury Training Trust Tourism
    Union United University Urban Universal Uganda
    Veterans Virtual Vision Volunteer Victoria Vehicle Valley
    Water World Welfare Western Wildlife Women Workers
    Youth Young Yale York
    Zone Zoo Zero Zealand Zurich""".split()
)
FEWEST_WORDS = 40
FEWEST_LETTERS = 5  # letters that can follow a pair: the answer and at least four foils
FEWEST_ACRONYMS = 200  # acronyms are the sampling units


@dataclass(frozen=True, eq=False)
class Prompts:
    """Draws prompt pairs; `words` by initial, `acronyms` all usable ones, `letters` all third letters of a pair."""

    words: Mapping[str, tuple[str, ...]]
    acronyms: tuple[str, ...]
    letters: Mapping[str, tuple[str, ...]]
    corruption: str
    frames: Mapping[str, str]

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; every usable acronym is equally frequent."""
        template, acronym = rng.choice(tuple(self.frames)), rng.choice(self.acronyms)
        others = self.draw_other_letters(rng, acronym)
        slots = {f"w{i}": rng.choice(self.words[letter]) for i, letter in enumerate(acronym, 1)}
        slots |= {"l1": acronym[0], "l2": acronym[1]}
        changed = {f"w{i}": rng.choice(self.words[letter]) for i, letter in others.items()}
        clean, spans = fill(self.frames[template], **slots)
        corrupted, _ = fill(self.frames[template], **slots | changed)
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=(acronym[2],),
            wrong=tuple(letter for letter in self.letters[acronym[:2]] if letter != acronym[2]),
            template=template,
            cluster=acronym,
            positions={role: spans["l2" if role == "end" else role] for role in ROLES},
            factors={"answer": acronym[2]},
            joint="",
        )

    def draw_other_letters(self, rng: random.Random, acronym: str) -> dict[int, str]:
        """Return the initials that the corruption changes, by the number of the word; none occurs in the acronym."""
        third = [letter for letter in self.letters[acronym[:2]] if letter not in acronym and letter in self.words]
        last = rng.choice(third)
        if self.corruption == "third_word":
            return {3: last}
        free = [letter for letter in self.words if letter not in acronym + last]
        first, second = rng.sample(free, 2)
        return {1: first, 2: second, 3: last}


def by_initial(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the words by initial."""
    words = tuple(words)
    groups = {letter: tuple(word for word in words if word[0] == letter) for letter in string.ascii_uppercase}
    return {letter: group for letter, group in groups.items() if group}


def third_letters(vocabulary: Vocabulary) -> dict[str, tuple[str, ...]]:
    """Return, for each pair of capitals that is two tokens after a bracket, the capitals that are a third token.

    Pairs of the same letter are left out, and so are third letters that occur in the pair.
    """
    found = {}
    for first in vocabulary.continuations("The (", string.ascii_uppercase):
        for second in vocabulary.continuations(f"The ({first}", string.ascii_uppercase):
            letters = vocabulary.continuations(f"The ({first}{second}", string.ascii_uppercase)
            found[first + second] = tuple(letter for letter in letters if letter not in first + second)
    return {pair: letters for pair, letters in found.items() if pair[0] != pair[1] and letters}


def usable_acronyms(words: Iterable[str], letters: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return every acronym whose letters have words and whose first two letters at least FEWEST_LETTERS can follow."""
    initials = set(words)
    acronyms = []
    for pair, third in letters.items():
        with_words = [letter for letter in third if letter in initials]
        if initials >= set(pair) and len(with_words) >= FEWEST_LETTERS:
            acronyms += [pair + letter for letter in with_words]
    return tuple(acronyms)


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words and letters that tokenize as needed. Raises UserError if too few do."""
    corruption = choose(NAME, corruption, CORRUPTIONS)
    words = by_initial(vocabulary.require(f"words of task {NAME}", WORDS, FEWEST_WORDS))
    letters = third_letters(vocabulary)
    acronyms = usable_acronyms(words, letters)
    possible = len(list(itertools.permutations(words, 3)))
    require_enough(len(acronyms), possible, f"acronyms of task {NAME}", FEWEST_ACRONYMS, "three tokens")
    prompts = Prompts(words, acronyms, letters, corruption, FRAMES)
    return Task(
        name=NAME,
        title="Third letter of an acronym",
        sample=prompts,
        roles=ROLES,
        # Neither ioi, with which the published circuit shares a name mover (9.9) and previous-token heads, nor
        # induction, which needs those heads too.
        companions=("greater_than", "subject_verb_agreement", "gendered_pronoun", "copy_suppression"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=tuple(FRAMES),
        more=Grammar(replace(prompts, frames=MORE), tuple(MORE)),
    )
