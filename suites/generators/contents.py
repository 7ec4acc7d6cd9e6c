"""Contents: unperturbed questions with one right answer, in words that the embedded model knows."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import results_io
from circuits.tasks import gendered_pronoun, ioi, lexicon
from suites import schema
from suites.item import Item, ItemVariant, Kind
from suites.perturbations import SpannedText, template_change

ORDINALS = ("first", "second", "third")


@dataclass(frozen=True)
class Content:
    """A question: its text with named spans, the right answers, the distractors in the text, and its sampling unit."""

    source: SpannedText
    answers: tuple[str, ...]
    distractors: tuple[str, ...]
    choices: tuple[str, ...]
    template: str
    cluster: str
    factors: Mapping[str, str] = field(default_factory=dict)
    expect: Mapping[str, Any] = field(default_factory=dict)

    def demanding(self, must: str | None) -> Content:
        """The same question with a constraint on the output (`must`, a pattern for A3: "answer_first"); None: unchanged."""
        if must is None:
            return self
        words = r"\s*".join(re.escape(word) for word in self.answers[0].split())
        return replace(self, expect={"must": [rf"^{words}\b"]})

    @property
    def words(self) -> set[str]:
        """The words that the question is about, which fillers never contain."""
        return {*self.choices, *self.answers, *(self.source[name] for name in self.source.spans)}

    def item(
        self, name: str, source: SpannedText | None = None, kind: Kind = "minimum_functionality", **rest: Any
    ) -> Item:
        """An item that asks this question in its own words or in those of `source`."""
        source = source or self.source
        own = {
            key: getattr(self, key) for key in ("answers", "distractors", "choices", "template", "cluster", "expect")
        }
        factors = {**self.factors, **rest.pop("factors", {})}
        return Item(name, source.text, kind, **{**own, "factors": factors, "spans": dict(source.spans), **rest})

    def variant(self, name: str, source: SpannedText, parent: str, kind: str, seed: int = 0, **params: Any) -> Item:
        """An item made from `parent` with the same answer; the original itself if `name` equals `parent`."""
        factors = params.pop("factors", {})
        if name == parent:
            return self.item(name, source, factors=factors)
        made = ItemVariant(kind, parent, params, seed)
        return self.item(name, source, "invariance", factors=factors, variant=made)


def random_stream(name: str, seed: int) -> random.Random:
    """The random numbers of one generator, seeded with a text so that they are the same on every machine."""
    return random.Random(f"suites/{name}/{seed}")


def sample_question(kind: str, rng: random.Random, template: str | None = None) -> Content:
    """A question of a kind, in its template of that name (None: any)."""
    templates = TEMPLATES[kind]
    if template is not None and template not in templates:
        raise results_io.UserError(f"{template!r} is no template of {kind}; expected one of {', '.join(templates)}")
    return MAKERS[kind](rng, rng.choice(templates) if template is None else template)


def ioi_content(rng: random.Random, template: str) -> Content:
    """Indirect object identification with a name pair that the embedded model was not trained on; either name is the giver."""
    first, second = ioi.draw_pair(rng, unseen=True)
    giver = rng.choice((first, second))
    words = ioi.draw_surface(rng, ioi.FRAMES[template]) | {"first": first, "second": second, "giver": giver}
    return ioi_question(words, template)


def ioi_question(words: Mapping[str, str], template: str) -> Content:
    """The same words in one of the IOI frames."""
    first, second, giver = words["first"], words["second"], words["giver"]
    order = "BABA" if giver == first else "ABBA"
    io_slot, subject_slot = ("second", "first") if giver == first else ("first", "second")
    roles = {"io": io_slot, "s1": subject_slot, "s2": "giver", "end": "end"}
    answer = words[io_slot]
    pair = tuple(sorted((first, second)))
    source = template_change(ioi.FRAMES[template], words, roles)
    return Content(source, (answer,), (giver,), pair, template, " ".join(pair), {"order": order})


def pronoun_content(rng: random.Random, template: str) -> Content:
    """The pronoun of a name's gender; the person and the place never occur together in the embedded model's training."""
    gender = rng.choice(gendered_pronoun.GENDERS)
    person, place = gendered_pronoun.draw_person(rng, gender, unseen=True)
    words = gendered_pronoun.draw_words(rng, template, person, place)
    source = template_change(
        gendered_pronoun.FRAMES[template], words, {"name": "person", "context": "context", "end": "end"}
    )
    pronouns = gendered_pronoun.pronouns(template)
    other = gendered_pronoun.GENDERS[1 - gendered_pronoun.GENDERS.index(gender)]
    choices = tuple(pronouns[each] for each in gendered_pronoun.GENDERS)
    return Content(source, (pronouns[gender],), (pronouns[other],), choices, template, person, {"gender": gender})


def color_content(rng: random.Random, template: str) -> Content:
    """Three coloured things and a question for the colour of one of them: binding of a value to an object."""
    place, facts = sample_facts(rng, 3)
    return color_question(place, facts, rng.randrange(3), template)


def sample_facts(rng: random.Random, count: int) -> tuple[str, list[tuple[str, str]]]:
    """A place and `count` things with one colour each, all of them different."""
    things, colors = rng.sample(lexicon.OBJECTS, count), rng.sample(lexicon.COLORS, count)
    return rng.choice(lexicon.PLACES), list(zip(things, colors, strict=True))


def color_question(place: str, facts: Sequence[tuple[str, str]], asked: int, template: str = "scene") -> Content:
    """The facts (thing, colour) in this order, and the question for the colour of the thing at index `asked`.

    Spans: subject and object (the fact that answers), needle (the whole fact), distractor_1 ... (the other colours), asked, end.
    """
    words = {"place": place, **fact_words(facts, asked)}
    others = [index for index in range(len(facts)) if index != asked]
    roles = {"subject": f"thing_{asked}", "object": f"color_{asked}", "asked": "asked", "end": "end"}
    roles |= {f"distractor_{place}": f"color_{index}" for place, index in enumerate(others, start=1)}
    source = template_change(color_frame(template, len(facts)), words, roles)
    needle = (source.spans["subject"][0], source.spans["object"][1])
    source = SpannedText(source.text, {**source.spans, "needle": needle})
    colors = tuple(color for _, color in facts)
    wrong = tuple(colors[index] for index in others)
    cluster = " ".join(sorted(thing for thing, _ in facts))
    return Content(source, (colors[asked],), wrong, tuple(sorted(colors)), template, cluster, {"asked": str(asked + 1)})


def fact_words(facts: Sequence[tuple[str, str]], asked: int) -> dict[str, str]:
    """The words of the slots thing_0, color_0, thing_1, ..., of the thing in the question, and of the prompt's end."""
    words = {"asked": facts[asked][0], "end": "is"}
    for index, (thing, color) in enumerate(facts):
        words |= {f"thing_{index}": thing, f"color_{index}": color}
    return words


def color_frame(template: str, count: int) -> str:
    """A scene of `count` facts in a template, then the question."""
    facts = [f"the {{thing_{index}}} is {{color_{index}}}" for index in range(count)]
    listed = f"{', '.join(facts[:-1])} and {facts[-1]}"
    scene = COLOR_SCENES[template].format(facts=listed, capital=f"T{listed[1:]}", past=listed.replace(" is ", " was "))
    return f"{scene} The color of the {{asked}} {{end}}"


def capital_content(rng: random.Random, template: str) -> Content:
    """A country and its capital, which must be known since the prompt does not state it."""
    country = rng.choice(tuple(lexicon.CAPITALS))
    source = template_change(
        CAPITAL_FRAMES[template], {"country": country, "end": "is"}, {"subject": "country", "end": "end"}
    )
    capitals = tuple(lexicon.CAPITALS.values())
    return Content(source, (lexicon.CAPITALS[country],), (), capitals, template, country)


def docstring_content(rng: random.Random, template: str) -> Content:
    """A function header with four parameters, all but the last documented."""
    arguments = rng.sample(lexicon.ARGUMENTS, 4)
    function = rng.choice(lexicon.FUNCTIONS)
    words = {"function": function, "end": "param"}
    for place, argument in enumerate(arguments):
        words |= {f"argument_{place}": argument, f"documented_{place}": argument}
        words[f"thing_{place}"] = f"{rng.choice(lexicon.ADJECTIVES)} {rng.choice(lexicon.OBJECTS)}"
    source = template_change(
        DOCSTRING_FRAMES[template], words, {"object": "argument_3", "previous": "documented_2", "end": "end"}
    )
    return Content(
        source, (arguments[3],), tuple(arguments[:3]), tuple(arguments), template, " ".join(sorted(arguments))
    )


def acronym_content(rng: random.Random, template: str) -> Content:
    """Three capitalised words, then their initials."""
    words: list[str] = []
    while len({word[0] for word in words}) < 3:
        words = rng.sample(lexicon.ACRONYM_WORDS, 3)
    slots = dict(zip(ORDINALS, words, strict=True)) | {"end": "("}
    source = template_change(ACRONYM_FRAMES[template], slots, {name: name for name in (*ORDINALS, "end")})
    return Content(source, (" ".join(word[0] for word in words),), (), (), template, " ".join(sorted(words)))


COLOR_SCENES = {
    "scene": "At the {{place}} {facts}.",
    "no_place": "{capital}.",
    "place_last": "{capital} at the {{place}}.",
    "was": "At the {{place}} {past}.",
    "today": "Today at the {{place}} {facts}.",
}
CAPITAL_FRAMES = {"plain": "The capital of {country} {end}"}
DOCSTRING_FRAMES = {
    "params": "def {function}(self, {argument_0}, {argument_1}, {argument_2}, {argument_3}): param {documented_0}: {thing_0}. "
    "param {documented_1}: {thing_1}. param {documented_2}: {thing_2}. {end}"
}
ACRONYM_FRAMES = {"the": "The {first} {second} {third} {end}"}
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "ioi": tuple(ioi.FRAMES),
    "pronoun": tuple(gendered_pronoun.FRAMES),
    "color": tuple(COLOR_SCENES),
    "capital": tuple(CAPITAL_FRAMES),
    "docstring": tuple(DOCSTRING_FRAMES),
    "acronym": tuple(ACRONYM_FRAMES),
}
MAKERS: Mapping[str, Callable[[random.Random, str], Content]] = {
    "ioi": ioi_content,
    "pronoun": pronoun_content,
    "color": color_content,
    "capital": capital_content,
    "docstring": docstring_content,
    "acronym": acronym_content,
}
KIND_SCHEMA = schema.one_of(sorted(MAKERS), "the kind of question")
MUST_SCHEMA = schema.one_of(["answer_first"], "what the output must begin with")
TEMPLATES_SCHEMA = schema.list_of(
    schema.one_of(sorted({name for names in TEMPLATES.values() for name in names}), "a template"),
    "a list of templates",
    distinct=True,
)
