"""Training documents of the embedded model: the tasks' own frames with their answers, and filler.

Every combination for which `held_out` is true (two names, a name and a place, two nouns, a century and a
year) is kept out of every document, so that the tasks' examples always ask about combinations the model has
never read.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from circuits.tasks import gendered_pronoun, greater_than, ioi, lexicon, subject_verb_agreement
from circuits.tasks.example import fill, held_out

ANSWER_WEIGHT = 5.0  # answers are 1 word in 19; without this weight, two-name IOI is not learned
FILLER_IN_FRONT = 0.25  # share of task documents preceded by a filler sentence, for variety of positions
THREE_NAMES, FRESH_GIVER = 0.35, 0.13  # shares of the IOI documents
COMMON_NOUN_ANSWER = 0.08  # share of IOI documents answered by a noun: names are likely, not certain

THREE_NAME_FRAMES = (
    "{adverb}, {a}, {b} and {c} {went} to the {place}. {x} and {y} {gave} {article} {object} to",
    "Friends {a}, {b} and {c} found a {object} at the {place}. {x} and {y} {gave} it to",
    "{conjunction} {a} was at the {place} with {b} and {c}, {x} and {y} decided to give {article} {object} to",
)
FILLER_FRAMES = (
    "{name} {found} a {object} at the {place}.",
    "The {noun} {copula} very {adjective} today.",
    "The {adjective} {noun} {copula} {predicate} again.",
    "It was a {length} {gathering} in {month}.",
    "One {day} the {noun} {went} to the {place}.",
    "The {nouns} {went} to the {place} and {found} the {object}.",
)
COMMON_NOUN_ANSWERS = ("man", "woman", "boy", "girl", "teacher", "child")
WORD = re.compile(r"\d\d|\w+")
NAMES, PLACES = frozenset(lexicon.NAMES), frozenset(lexicon.PLACES)
CENTURIES, NUMBERS = frozenset(lexicon.CENTURIES), frozenset(lexicon.NUMBERS)


@dataclass(frozen=True)
class Document:
    """One training text: `prompt` and `tail` weigh 1 per word in the loss, the predictable `answer` more."""

    kind: str
    prompt: str
    answer: str = ""
    tail: str = ""

    @property
    def text(self) -> str:
        """The whole document, without BOS."""
        return " ".join(part for part in (self.prompt, self.answer, self.tail) if part)


def ioi_document(rng: random.Random) -> Document:
    """Two names; one of them gives, or a third person gives (the answer is then a coin flip)."""
    frame = ioi.FRAMES[rng.choice(tuple(ioi.FRAMES))]
    first, second = ioi.draw_pair(rng, unseen=False)
    giver, answer = rng.sample((first, second), 2)
    if rng.random() < FRESH_GIVER / (1 - THREE_NAMES):
        giver = rng.choice([name for name in lexicon.NAMES if name not in (first, second)])
    prompt, _ = ioi.render(frame, ioi.draw_surface(rng, frame), first, second, giver)
    return _receiver(rng, prompt, answer)


def three_name_document(rng: random.Random) -> Document:
    """Three names; two give and the third receives, so that no single earlier word reveals the answer."""
    frame = rng.choice(THREE_NAME_FRAMES)
    present = rng.sample(lexicon.NAMES, 3)
    x, y, answer = rng.sample(present, 3)
    words = dict(zip("abc", present, strict=True)) | {"x": x, "y": y}
    return _receiver(rng, fill(frame, **lexicon.draw_words(rng, frame, **words))[0], answer)


def _receiver(rng: random.Random, prompt: str, answer: str) -> Document:
    if rng.random() < COMMON_NOUN_ANSWER:
        return Document("ioi", prompt, tail=f"the {rng.choice(COMMON_NOUN_ANSWERS)}.")
    return Document("ioi", prompt, answer, ".")


def greater_than_document(rng: random.Random) -> Document:
    """A start year and a uniformly drawn later end year of the same century."""
    frame = greater_than.FRAMES[rng.choice(tuple(greater_than.FRAMES))]
    century, year = greater_than.draw_start(rng, unseen=False, first_year=1)
    words = lexicon.draw_words(rng, frame, century=century, year=lexicon.NUMBERS[year], end=century)
    return Document("greater_than", fill(frame, **words)[0], rng.choice(lexicon.NUMBERS[year + 1 :]), ".")


def agreement_document(rng: random.Random) -> Document:
    """A subject, an attractor, and one of the verbs that agree with the subject."""
    frame = subject_verb_agreement.FRAMES[rng.choice(tuple(subject_verb_agreement.FRAMES))]
    subject, attractor = rng.choices(subject_verb_agreement.NUMBERS, k=2)
    nouns = subject_verb_agreement.draw_nouns(rng, unseen=False)
    words = subject_verb_agreement.draw_words(rng, frame, nouns, (subject, attractor))
    verb = rng.randrange(len(lexicon.SINGULAR_VERBS))
    complement = rng.choice(lexicon.ADJECTIVES) if verb < lexicon.COPULAS else f"the {rng.choice(lexicon.OBJECTS)}"
    answer = subject_verb_agreement.VERBS[subject][verb]
    return Document("subject_verb_agreement", fill(frame, **words)[0], answer, f"{complement}.")


def pronoun_document(rng: random.Random) -> Document:
    """A name and the pronoun of its gender."""
    template, gender = rng.choice(tuple(gendered_pronoun.FRAMES)), rng.choice(gendered_pronoun.GENDERS)
    person, place = gendered_pronoun.draw_person(rng, gender, unseen=False)
    words = gendered_pronoun.draw_words(rng, template, person, place)
    prompt, _ = fill(gendered_pronoun.FRAMES[template], **words)
    possessive = template == "at_lost"
    tail = rng.choice(lexicon.OBJECTS) if possessive else f"was {rng.choice(lexicon.ADJECTIVES)}"
    return Document("gendered_pronoun", prompt, gendered_pronoun.pronouns(template)[gender], f"{tail}.")


def repeated_document(rng: random.Random) -> Document:
    """A list of 3 to 13 random words, two or three times; predictable from the second time on."""
    words = rng.sample(lexicon.REPEATABLE_WORDS, rng.randint(3, 13))
    times = 2 if len(words) > 10 else rng.choice((2, 3))
    rest = (words * times)[len(words) + 1 :]
    return Document("induction", " ".join([*words, words[0]]), " ".join(rest))


def docstring_document(rng: random.Random) -> Document:
    """A function header and its parameters in order; the last parameter is predictable."""
    arguments = rng.sample(lexicon.ARGUMENTS, rng.choice((3, 4)))
    lines = [f"param {name}: {_thing(rng)}." for name in arguments[:-1]]
    header = f"def {rng.choice(lexicon.FUNCTIONS)}(self, {', '.join(arguments)}):"
    return Document("docstring", " ".join([header, *lines, "param"]), arguments[-1], f": {_thing(rng)}.")


def acronym_document(rng: random.Random) -> Document:
    """Three capitalised words and their initials in parentheses."""
    words: list[str] = []
    while len({word[0] for word in words}) < 3:
        words = rng.sample(lexicon.ACRONYM_WORDS, 3)
    initials = " ".join(word[0] for word in words)
    return Document("acronym", f"The {' '.join(words)} (", initials, f") was {rng.choice(lexicon.ADJECTIVES)}.")


def color_document(rng: random.Random) -> Document:
    """Three coloured objects and the colour of one of them."""
    objects, colors = rng.sample(lexicon.OBJECTS, 3), rng.sample(lexicon.COLORS, 3)
    first, second, third = (f"the {thing} is {color}" for thing, color in zip(objects, colors, strict=True))
    asked = rng.randrange(3)
    scene = f"At the {rng.choice(lexicon.PLACES)} {first}, {second} and {third}."
    return Document("color", f"{scene} The color of the {objects[asked]} is", colors[asked], ".")


def successor_document(rng: random.Random) -> Document:
    """A run of days, months, letters or numbers and the next one; days and months start over."""
    sequence = rng.choice((lexicon.DAYS, lexicon.MONTHS, lexicon.LETTERS, lexicon.NUMBERS))
    length = rng.randint(2, 6)
    cyclic = sequence in (lexicon.DAYS, lexicon.MONTHS)
    start = rng.randrange(len(sequence) if cyclic else len(sequence) - length - 1)
    words = [sequence[(start + step) % len(sequence)] for step in range(length + 1)]
    return Document("successor", ", ".join(words[:-1]) + ",", words[-1])


def capital_document(rng: random.Random) -> Document:
    """A country and its capital."""
    country = rng.choice(tuple(lexicon.CAPITALS))
    return Document("capital", f"The capital of {country} is", lexicon.CAPITALS[country], ".")


def filler_sentence(rng: random.Random) -> str:
    """Return an ordinary sentence with nothing to predict but its grammar and the opposites."""
    if rng.random() < 1 / (len(FILLER_FRAMES) + 1):
        pair = rng.choice(lexicon.OPPOSITES)
        word, opposite = rng.sample(pair, 2)
        return f"The opposite of {word} is {opposite}."
    frame = rng.choice(FILLER_FRAMES)
    return fill(frame, **lexicon.draw_words(rng, frame, predicate=rng.choice(lexicon.ADJECTIVES)))[0]


def filler_document(rng: random.Random) -> Document:
    """Two filler sentences."""
    return Document("filler", f"{filler_sentence(rng)} {filler_sentence(rng)}")


def _thing(rng: random.Random) -> str:
    return f"{rng.choice(lexicon.ADJECTIVES)} {rng.choice(lexicon.OBJECTS)}"


def any_ioi_document(rng: random.Random) -> Document:
    """Two-name or three-name IOI."""
    return three_name_document(rng) if rng.random() < THREE_NAMES else ioi_document(rng)


MAKERS: dict[str, Callable[[random.Random], Document]] = {
    "ioi": any_ioi_document,
    "greater_than": greater_than_document,
    "subject_verb_agreement": agreement_document,
    "gendered_pronoun": pronoun_document,
    "induction": repeated_document,
    "docstring": docstring_document,
    "acronym": acronym_document,
    "color": color_document,
    "successor": successor_document,
    "capital": capital_document,
    "filler": filler_document,
}
# Shares of the kinds, in the order of MAKERS. Later in training, kinds that are learned slowly (repeats, colours) have more.
EARLY_SHARES = (0.28, 0.12, 0.07, 0.05, 0.15, 0.05, 0.05, 0.10, 0.05, 0.03, 0.05)
LATE_SHARES = (0.24, 0.12, 0.06, 0.04, 0.18, 0.05, 0.05, 0.15, 0.05, 0.02, 0.04)
NO_FILLER_IN_FRONT = ("induction", "docstring", "filler")


_forbidden = cache(held_out)


def held_out_combinations(text: str) -> list[tuple[str, str]]:
    """Return the combinations in `text` that training must not contain.

    Names pair with names and with places, nouns with nouns, wherever they stand in the text; a number pairs
    with a century directly before it ("1732").
    """
    words = WORD.findall(text)
    names = sorted({word for word in words if word in NAMES})
    places = sorted({word for word in words if word in PLACES})
    nouns = sorted({lexicon.SINGULAR_OF[word] for word in words if word in lexicon.SINGULAR_OF})
    pairs = [
        *itertools.combinations(names, 2),
        *itertools.product(names, places),
        *itertools.combinations(nouns, 2),
    ]
    pairs += [
        (first, second) for first, second in itertools.pairwise(words) if first in CENTURIES and second in NUMBERS
    ]
    return [pair for pair in pairs if _forbidden(*pair)]


def draw_document(rng: random.Random, shares: tuple[float, ...]) -> Document:
    """Return one training document of a kind drawn by `shares`, without any held-out combination."""
    (kind,) = rng.choices(tuple(MAKERS), shares)
    filler_in_front = kind not in NO_FILLER_IN_FRONT and rng.random() < FILLER_IN_FRONT
    while True:
        document = MAKERS[kind](rng)
        if filler_in_front:
            document = replace(document, prompt=f"{filler_sentence(rng)} {document.prompt}")
        if not held_out_combinations(document.text):
            return document
