"""Docstring: a Python method documents its first two arguments and is about to name the third.

After Heimersheim and Janiak 2023, "A circuit for Python docstrings in a 4-layer attention-only transformer". The
definition lists three arguments (a_def, b_def, c_def), the docstring documents two of them (a_doc, b_doc) with random
words and ends at the third ":param"; the answer is the third argument. Foils are the two other arguments and the
names that occur only in the corrupted prompt.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill
from circuits.tasks.published import words
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.vocabulary import Vocabulary
from circuits.tasks.wordings import crossed, extended

NAME = "docstring"
CORRUPTIONS = {
    "random_answer": "The third argument of the definition becomes another name, which is then the answer.",
    "random_doc": "The two documented names become two others, so the docstring no longer follows the definition.",
    "random_def_doc": "The first two arguments and the two documented names become four different others, so that "
    "nothing is repeated; the third argument stays.",
}
REPLACED = {
    "random_answer": ("c_def",),
    "random_doc": ("a_doc", "b_doc"),
    "random_def_doc": ("a_def", "b_def", "a_doc", "b_doc"),
}
ROLES = ("a_def", "b_def", "b_def_comma", "c_def", "a_doc", "b_doc", "end")
DEFINITION = "def {function}(self, {a_def}, {b_def}{b_def_comma} {c_def}):\n"
PARAMETERS = {
    1: "    :param {a_doc}: {w1}\n    :param {b_doc}: {w2}\n    {end}",
    2: "    :param {a_doc}: {w1} {w2}\n    :param {b_doc}: {w3} {w4}\n    {end}",
    3: "    :param {a_doc}: {w1} {w2} {w3}\n    :param {b_doc}: {w4} {w5} {w6}\n    {end}",
}
FRAMES = {
    "get_one": DEFINITION + '    """Get the {s1} of the {s2}.\n\n' + PARAMETERS[1],
    "make_two": DEFINITION + '    """Make a new {s1}.\n\n' + PARAMETERS[2],
    "bring_two": DEFINITION + '    """Bring every {s1} to the {s2} {s3}.\n\n' + PARAMETERS[2],
    "keep_three": DEFINITION + '    """Keep one {s1} {s2}.\n\n' + PARAMETERS[3],
}
# The larger grammar: more first lines, each with one, two or three words about a parameter.
SUMMARIES = {
    "get": "Get the {s1} of the {s2}.",
    "make": "Make a new {s1}.",
    "bring": "Bring every {s1} to the {s2} {s3}.",
    "keep": "Keep one {s1} {s2}.",
    "return": "Return the {s1} that belongs to the {s2}.",
    "count": "Count how often the {s1} occurs.",
    "split": "Split the {s1} {s2} into parts.",
    "turn": "Turn a {s1} into a {s2}.",
    "report": "Report on the state of the {s1}.",
    "wait": "Wait until the {s1} is there.",
    "check": "Check that no {s1} {s2} is left.",
    "put": "Put the {s1} next to the {s2}.",
    "called": "Called for each {s1} of a {s2} {s3}.",
    "like": "Like the {s1}, but with a {s2}.",
}
MORE = extended(
    FRAMES,
    crossed(
        {name: f'{DEFINITION}    """{line}\n\n' for name, line in SUMMARIES.items()},
        {"one": PARAMETERS[1], "two": PARAMETERS[2], "three": PARAMETERS[3]},
    ),
)
WORD_SLOTS = ("s1", "s2", "s3", "w1", "w2", "w3", "w4", "w5", "w6")
FUNCTIONS = tuple(
    "port build parse read write send update create remove merge copy move check find fetch save close draw plot "
    "render encode decode convert compute select insert delete reset validate register publish connect".split()
)
ARGUMENTS = tuple(
    "load size files last name value key path text data index width height color label title result input output "
    "source target module model table row column line page user group role token session request response message "
    "event action state status format language theme image video layer node edge graph tree parent child root item "
    "entry record field type mode option setting config limit offset length start stop step rate speed weight score "
    "rank order sort filter query cursor buffer cache store stream socket host address server client driver engine "
    "version branch commit tag author date time year month day hour minute zone region country city street".split()
)
FEWEST_FUNCTIONS = 5
FEWEST_ARGUMENTS = 20
FEWEST_WORDS = 20


@dataclass(frozen=True, eq=False)
class Prompts:
    """Draws prompt pairs from these words with this corruption."""

    functions: tuple[str, ...]
    arguments: tuple[str, ...]
    words: tuple[str, ...]
    corruption: str
    frames: Mapping[str, str]

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; every argument is first, second and third equally often."""
        template = rng.choice(tuple(self.frames))
        a, b, c, *unused = rng.sample(self.arguments, 7)
        names = {"a_def": a, "b_def": b, "c_def": c, "a_doc": a, "b_doc": b}
        surface = dict(zip(WORD_SLOTS, rng.sample(self.words, len(WORD_SLOTS)), strict=True))
        surface |= {"function": rng.choice(self.functions), "b_def_comma": ",", "end": ":param"}
        replaced = dict(zip(REPLACED[self.corruption], unused, strict=False))
        clean, spans = fill(self.frames[template], **surface, **names)
        corrupted, _ = fill(self.frames[template], **surface, **names | replaced)
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=(c,),
            wrong=(a, b, *replaced.values()),
            template=template,
            cluster=" ".join(sorted((a, b, c))),
            positions={role: spans[role] for role in ROLES},
            factors={"answer": c},
        )


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words that are one token each.

    Raises UserError if too few words are one token, or if the corruption is unknown.
    """
    corruption = choose(NAME, corruption, CORRUPTIONS)
    prompts = Prompts(
        functions=vocabulary.require(f"function names of task {NAME}", FUNCTIONS, FEWEST_FUNCTIONS),
        arguments=vocabulary.require(f"argument names of task {NAME}", ARGUMENTS, FEWEST_ARGUMENTS),
        words=vocabulary.require(f"words of task {NAME}", words.NOUNS, FEWEST_WORDS),
        corruption=corruption,
        frames=FRAMES,
    )
    return Task(
        name=NAME,
        title="Third argument in a Python docstring",
        sample=prompts,
        roles=ROLES,
        # Neither induction, ioi nor copy suppression: the docstring is continued by matching it to the definition.
        companions=("greater_than", "subject_verb_agreement", "gendered_pronoun", "acronym"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=tuple(FRAMES),
        more=Grammar(replace(prompts, frames=MORE), tuple(MORE)),
    )
