"""Copy suppression: "The list named red, blue, green and" -> another colour, none of those listed.

After McDougall et al. 2023 (arXiv 2310.04625): if earlier components predict a token that is already in the context, heads
10.7 and 11.10 attend to it and write against it. In a list of colours, earlier components predict colours, among them the
listed ones, which a copying model would repeat.

`wrong` is one listed word, `answers` one word of the same kind that is not listed, so
    answer - wrong = logit(unlisted word) - logit(listed word)
in the clean prompt. Both words are drawn in the same way, so a word's own logit cancels over prompts, and only the effect of
occurring in the context is left:
- positive: the model suppresses the listed word more than it copies it;
- negative: it copies more than it suppresses;
- a suppressing head raises the difference, so knocking it out LOWERS the difference; knocking out a copying head raises it.
Under the default corruption neither word is listed and the expected difference is zero.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import SLOT, Example, fill, last_word
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.vocabulary import Vocabulary, require_enough
from circuits.tasks.wordings import crossed, extended

NAME = "copy_suppression"
CORRUPTIONS = {
    "other_word": "The listed word becomes another of its kind that is neither it nor the answer.",
    "answer_listed": "The listed word becomes the answer, so that the two exchange their parts.",
}
FRAMES = {
    "list_named": "The list named {w1}, {w2}, {w3} and",
    "answers_were": "The most common answers were {w1}, {w2} and",
    "talked_about": "We talked about {w1} and {w2} first, and after that about",
    "not_only": "They asked not only about {w1} and {w2} but also about",
    "besides": "Besides {w1} and {w2}, the book mentions",
}
# The larger grammar: who names the words, and in which list.
OPENINGS = {
    "teacher": "The teacher mentioned ",
    "she_wrote": "In her notes she wrote about ",
    "article": "The article names ",
    "they_chose": "After a long debate they chose ",
    "page": "On the first page you can find ",
    "nobody": "Nobody had ever asked us about ",
    "guide": "The guide has a chapter on ",
}
LISTS = {
    "two_and": "{w1}, {w2} and",
    "and_also": "{w1} and {w2}, and also",
    "then": "{w1} first, then {w2}, and then",
    "not_only": "not only {w1} and {w2} but also",
    "either": "either {w1}, {w2} or",
}
MORE = extended(FRAMES, crossed(OPENINGS, LISTS))
KINDS = {
    "animals": "dogs cats horses cows pigs sheep goats chickens ducks rabbits mice lions tigers bears wolves",
    "cities": "London Paris Berlin Madrid Rome Tokyo Moscow Chicago Boston Dublin Vienna Toronto Sydney Amsterdam",
    "colors": "red blue green yellow purple orange pink brown black white gray",
    "companies": "Google Apple Microsoft Amazon Facebook Twitter Intel Samsung Sony Nokia IBM",
    "countries": "France Germany Spain Italy Japan China India Brazil Mexico Canada Egypt Russia Sweden Norway Poland",
    "foods": "bread cheese butter rice meat fish chicken beef pork salad soup",
    "fruits": "apples oranges bananas grapes potatoes tomatoes onions carrots beans mushrooms peppers",
    "languages": "English French German Spanish Italian Russian Chinese Japanese Arabic Greek Latin Hebrew Turkish",
    "metals": "gold silver copper iron steel lead tin nickel zinc platinum",
    "months": "January February March April June July August September October November December",
    "people": "doctors teachers lawyers nurses farmers soldiers engineers writers artists actors singers",
    "sciences": "physics chemistry biology mathematics history philosophy economics psychology geography law medicine",
    "sports": "football basketball baseball tennis golf hockey soccer rugby cricket boxing swimming",
    "states": "Texas Florida California Ohio Michigan Virginia Georgia Oregon Colorado Arizona Nevada Utah Iowa Kansas",
}
FEWEST_OF_A_KIND = 6  # three listed, the answer, the corrupted word and one to spare
FEWEST_KINDS = 4


@dataclass(frozen=True, eq=False)
class Prompts:
    """Draws prompt pairs from the words of each kind with this corruption."""

    kinds: Mapping[str, tuple[str, ...]]
    corruption: str
    frames: Mapping[str, str]

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; the listed word occurs in each of the frame's slots equally often."""
        frame, kind = rng.choice(tuple(self.frames)), rng.choice(tuple(self.kinds))
        slots = SLOT.findall(self.frames[frame])
        slot = rng.choice(slots)
        answer, other, *listed = rng.sample(self.kinds[kind], 2 + len(slots))
        words = dict(zip(slots, listed, strict=True))
        replacement = other if self.corruption == "other_word" else answer
        clean, spans = fill(self.frames[frame], **words)
        corrupted, _ = fill(self.frames[frame], **words | {slot: replacement})
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=(answer,),
            wrong=(words[slot],),
            template=f"{frame}/{slot}",  # the slot is part of the template, since it determines the positions
            cluster=" ".join(sorted((answer, words[slot]))),
            positions={"listed": spans[slot], "end": last_word(clean)},
            factors={"kind": kind},
        )


def labels(frames: Mapping[str, str]) -> tuple[str, ...]:
    """Return the templates of these frames, one for each slot of the listed word."""
    return tuple(f"{frame}/{slot}" for frame, text in frames.items() for slot in SLOT.findall(text))


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words that are one token each. Raises UserError if too few kinds of words remain."""
    corruption = choose(NAME, corruption, CORRUPTIONS)
    whole = {kind: vocabulary.single(listed.split()) for kind, listed in KINDS.items()}
    kinds = {kind: listed for kind, listed in whole.items() if len(listed) >= FEWEST_OF_A_KIND}
    how = f"left with {FEWEST_OF_A_KIND} words of one token each"
    require_enough(len(kinds), len(KINDS), f"kinds of words of task {NAME}", FEWEST_KINDS, how)
    prompts = Prompts(kinds, corruption, FRAMES)
    return Task(
        name=NAME,
        title="Copy suppression of a listed word",
        sample=prompts,
        roles=("listed", "end"),
        # Not ioi, whose negative name movers are these heads, nor induction and docstring, which copy from context.
        companions=("greater_than", "subject_verb_agreement", "gendered_pronoun", "acronym"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=labels(FRAMES),
        more=Grammar(replace(prompts, frames=MORE), labels(MORE)),
    )
