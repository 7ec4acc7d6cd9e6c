"""Copy suppression: "The list named red, blue, green and" -> another colour, none of those listed.

After McDougall et al. 2023 (arXiv 2310.04625): where earlier components predict a token that the context holds
already, heads 10.7 and 11.10 attend to it and write against it. In a list of colours the earlier components predict
colours, the listed ones included, which a model that copies would repeat.

What is measured. `wrong` is one listed word, `answers` one word of the same kind that is not listed, so
    answer - wrong = logit(unlisted word) - logit(listed word)
in the clean prompt. Both words are drawn alike, so what a word is worth by itself cancels over prompts and only
the effect of standing in the context is left:
- positive: the model suppresses the listed word more than it copies it;
- negative: it copies more than it suppresses;
- a suppressing head raises it, so knocking such a head out LOWERS it, and knocking out a copying head raises it.
Under the default corruption neither word is listed and the expected difference is zero.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from circuits.tasks.base import Task
from circuits.tasks.example import SLOT, Example, fill
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.spans import last_word
from circuits.tasks.published.vocabulary import Vocabulary, require_enough

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

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; the listed word stands in each of the frame's slots equally often."""
        frame, kind = rng.choice(tuple(FRAMES)), rng.choice(tuple(self.kinds))
        slots = SLOT.findall(FRAMES[frame])
        slot = rng.choice(slots)
        answer, other, *listed = rng.sample(self.kinds[kind], 2 + len(slots))
        words = dict(zip(slots, listed, strict=True))
        replacement = other if self.corruption == "other_word" else answer
        clean, spans = fill(FRAMES[frame], **words)
        corrupted, _ = fill(FRAMES[frame], **words | {slot: replacement})
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=(answer,),
            wrong=(words[slot],),
            template=f"{frame}/{slot}",  # the slot belongs to it: positions are those of the template
            cluster=" ".join(sorted((answer, words[slot]))),
            positions={"listed": spans[slot], "end": last_word(clean)},
            factors={"kind": kind},
        )


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words that are one token each; UserError if too few kinds of words remain."""
    corruption = choose(NAME, corruption, CORRUPTIONS)
    whole = {kind: vocabulary.single(listed.split()) for kind, listed in KINDS.items()}
    kinds = {kind: listed for kind, listed in whole.items() if len(listed) >= FEWEST_OF_A_KIND}
    how = f"left with {FEWEST_OF_A_KIND} words of one token each"
    require_enough(len(kinds), len(KINDS), f"kinds of words of task {NAME}", FEWEST_KINDS, how)
    return Task(
        name=NAME,
        title="Copy suppression of a listed word",
        sample=Prompts(kinds, corruption),
        roles=("listed", "end"),
        # Not ioi, whose negative name movers are these heads, nor induction and docstring, which copy from context.
        companions=("greater_than", "subject_verb_agreement", "gendered_pronoun", "acronym"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=tuple(f"{frame}/{slot}" for frame in FRAMES for slot in SLOT.findall(FRAMES[frame])),
    )
