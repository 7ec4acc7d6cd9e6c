"""Generators: the same items everywhere, right answers by an independent reading of the prompt, spans on the right words."""

import random
import re
import subprocess
import sys
from collections import Counter

import pytest

import results_io
from circuits.tasks import gendered_pronoun, lexicon
from suites import declaration, generators, lock
from suites.generators import codeword, contents, document_injection, fillers, injection

CATALOGUE = {
    name: declaration.read(declaration.CATALOGUE / name).data["generator"]
    for name in declaration.names()
    if "generator" in declaration.read(declaration.CATALOGUE / name).data
}


def drawn(name, **params):
    return generators.generate({"name": name, "params": params, "seed": 0}, "here")


def colors_of(prompt):
    """Reader of its own: every "the THING is|was COLOR" of the prompt's statements, and what is asked."""
    *stated, question = re.split(r"\. ", prompt)
    facts = dict(re.findall(r"(?:[Tt]he color of )?[Tt]he (\w+) (?:is|was) (\w+)", ". ".join(stated)))
    return facts, re.fullmatch(r"The color of the (\w+) is", question).group(1)


def receiver_of(prompt):
    """Reader of its own: of the names that occur in the last story, the one that occurs once."""
    story = re.split(r"(?<=\.) (?=(?:When|After|While|Then|Yesterday|Later|Today|Friends)\b)", prompt)[-1]
    return Counter(word for word in re.findall(r"\w+", story) if word in lexicon.NAMES)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_the_seed_decides_and_nothing_else(name):
    generator = CATALOGUE[name]
    items = generators.generate(generator, name)
    assert items == generators.generate(generator, name)
    random.seed(1)
    assert items == generators.generate(generator, name)
    assert items != generators.generate(generator | {"seed": generator["seed"] + 1}, name)
    lock.check_set(items, name)


@pytest.mark.slow
def test_the_hash_seed_of_the_process_does_not_matter():
    code = (
        "from suites import declaration, generators, lock\n"
        "for name in ('a09_letter_slips_ioi', 'a10_padding_ioi', 'a14_injection_color', 'a15_codeword', 'a01_json_extraction'):\n"
        "    items = generators.generate(declaration.read(declaration.CATALOGUE / name).data['generator'], name)\n"
        "    print(lock.digest([lock.plain_item(item) for item in items]))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "4242")
    }
    assert len(said) == 1
    assert len(said.pop().split()) == 5


def test_colors_are_right_whatever_is_done_to_the_prompt():
    count = 0
    suites = "a02_answer_then_stop a04_color_sampled a05_restated_facts a10_padding_color a11_templates_color a12_needle_color"
    for suite in (*suites.split(), "a13_distractor_color", "a13_distractor_two_facts"):
        for item in generators.generate(CATALOGUE[suite], suite):
            facts, asked = colors_of(item.prompt)
            facts = {thing: color for thing, color in facts.items() if color in lexicon.COLORS}
            assert item.answers == (facts[asked],), item
            assert set(item.distractors) == set(facts.values()) - {facts[asked]}
            assert len(set(facts.values())) == len(facts)
            spans = {name: item.prompt[slice(*span)] for name, span in item.spans.items()}
            assert (spans["subject"], spans["object"], spans["asked"], spans["end"]) == (
                asked,
                facts[asked],
                asked,
                "is",
            )
            assert item.prompt.endswith("is")
            assert item.spans["end"][1] == len(item.prompt)
            count += 1
    assert count > 1000


def test_receivers_are_right_whatever_is_done_to_the_prompt():
    for suite in ("a10_padding_ioi_one_sentence", "a10_whitespace_ioi", "a11_templates_ioi", "a09_letter_slips_ioi"):
        for item in generators.generate(CATALOGUE[suite], suite):
            spans = {name: item.prompt[slice(*span)] for name, span in item.spans.items()}
            assert item.answers == (spans["io"],)
            assert item.distractors == (spans["s1"],) == (spans["s2"],)
            assert spans["end"] == "to"
            assert item.spans["s1"][0] < item.spans["s2"][0]
            if "filler" not in item.spans and "was_with" not in item.template:
                names = receiver_of(item.prompt)
                assert (names[spans["io"]], names[spans["s1"]]) == (1, 2)


def test_pronouns_are_those_of_the_name():
    for item in generators.generate(CATALOGUE["a10_padding_pronoun"], ""):
        name = item.prompt[slice(*item.spans["name"])]
        gender = "male" if name in lexicon.MALE_NAMES else "female"
        assert item.answers == (gendered_pronoun.pronouns(item.template)[gender],)


@pytest.mark.parametrize("suite", ["a10_padding_ioi", "a10_padding_color", "a10_padding_pronoun"])
def test_fillers_of_one_question_have_equal_length_and_other_words(suite):
    items = generators.generate(CATALOGUE[suite], suite)
    by_parent: dict[str, list] = {}
    for item in items:
        if item.variant:
            by_parent.setdefault(item.variant.parent, []).append(item)
    originals = {item.id: item for item in items if not item.variant}
    assert set(by_parent) == set(originals)
    for parent, variants in by_parent.items():
        original = originals[parent]
        assert len({item.prompt for item in variants}) == len(variants) == CATALOGUE[suite]["params"]["variants"]
        assert len({len(re.findall(r"\w+|[^\w\s]", item.prompt)) for item in variants}) == 1
        named = {original.prompt[slice(*span)] for role, span in original.spans.items() if role != "end"}
        for item in variants:
            filler = item.prompt[slice(*item.spans["filler"])]
            assert item.prompt == f"{filler} {original.prompt}"
            assert filler.count(".") == CATALOGUE[suite]["params"]["sentences"]
            assert not named & set(re.findall(r"\w+", filler))
            assert item.answers == original.answers


def test_filler_frames_have_equally_many_words():
    rng = random.Random(0)
    counts = {
        len(re.findall(r"\w+|[^\w\s]", fillers.sentences(rng, 1, [name], set())))
        for name in fillers.FRAMES
        for _ in range(50)
    }
    assert counts == {8}


def test_slips_leave_what_is_named():
    for suite in ("a09_word_slips_ioi", "a09_word_slips_color", "a09_letter_slips_ioi"):
        items = {item.id: item for item in generators.generate(CATALOGUE[suite], suite)}
        seen = set()
        for item in items.values():
            if item.variant is None:
                continue
            parent = items[item.variant.parent]
            assert item.prompt != parent.prompt
            assert {role: item.prompt[slice(*span)] for role, span in item.spans.items()} == {
                role: parent.prompt[slice(*span)] for role, span in parent.spans.items()
            }
            assert (parent.id, item.prompt) not in seen
            seen.add((parent.id, item.prompt))


def test_needles_stand_at_their_depth_and_depths_differ_by_one_exchange():
    items = drawn("needle", lengths=[3, 4, 5, 8], depths=[0, 0.5, 1], contents=5)
    by_id = {item.id: item for item in items}
    places = {(3, "0.5"): 1, (4, "0.5"): 2, (5, "0.5"): 2, (8, "0.5"): 4}
    for item in items:
        length, depth = int(item.factors["length"]), item.factors["depth"]
        facts, asked = colors_of(item.prompt)
        place = {"0": 0, "1": length - 1}.get(depth, places.get((length, depth)))
        assert list(facts).index(asked) == place
        assert item.prompt[slice(*item.spans["needle"])] == f"{asked} is {facts[asked]}"
        parent = by_id[item.variant.parent] if item.variant else item
        before = list(colors_of(parent.prompt)[0].items())
        moved = [a for a, b in zip(before, facts.items(), strict=True) if a != b]
        assert len(moved) == (2 if place else 0)
        assert len(item.prompt) == len(parent.prompt)
    assert Counter((item.factors["length"], item.factors["depth"]) for item in items) == {
        (str(length), depth): 5 for length in (3, 4, 5, 8) for depth in ("0", "0.5", "1")
    }


def test_twins_of_distractors_have_the_same_words():
    for facts in (2, 3):
        items = drawn("distractor", facts=facts, contents=10, sentences=1)
        for first, *others in zip(*[iter(items)] * facts, strict=True):
            for other in others:
                assert sorted(re.findall(r"\w+", other.prompt)) == sorted(re.findall(r"\w+", first.prompt))
                assert other.variant.parent == first.id
                assert len(other.prompt) == len(first.prompt)


def test_templates_share_words_and_answers():
    items = drawn("templates", content="color", templates=list(contents.COLOR_SCENES), contents=5)
    for number in range(5):
        group = items[number * 5 : number * 5 + 5]
        assert len({item.template for item in group}) == 5
        assert len({(item.answers, item.cluster) for item in group}) == 1
    lengths = {item.template: len(item.prompt.split()) for item in items}
    assert (
        lengths["scene"] == lengths["was"] == lengths["place_last"] == lengths["no_place"] + 3 == lengths["today"] - 1
    )


@pytest.mark.parametrize("content", ["color", "capital"])
def test_injections_and_their_twins(content):
    items = drawn("injection", content=content, contents=30, place="front", times=1)
    for twin, item in zip(items[::2], items[1::2], strict=True):
        assert (twin.expect["role"], item.expect["role"]) == ("twin", "injected")
        assert item.variant.parent == twin.id
        canary = item.expect["canary"]
        words = [re.findall(r"\w+", each.prompt[slice(*each.spans["injection"])]) for each in (twin, item)]
        assert len(words[0]) == len(words[1])
        assert canary in words[1]
        assert canary not in re.findall(r"\w+", twin.prompt)
        assert canary not in item.answers
        assert item.prompt.count(canary) == 1
    assert len({item.expect["canary"] for item in items}) > 4
    assert injection.PARAMETERS["additionalProperties"] is False


def test_orders_and_harmless_sentences_have_equally_many_words():
    for order, harmless in document_injection.SENTENCES:
        counts = [len(re.findall(r"\w+", sentence.format(canary="marzipan"))) for sentence in (order, harmless)]
        assert counts[0] == counts[1], (order, harmless)


def test_codewords_are_asked_for_in_every_way():
    items = drawn("codeword", attacks=3)
    used = Counter(item.template for item in items)
    assert used.pop("plain") == len(codeword.CODEWORDS) == 82
    assert set(used) == set(codeword.ATTACKS)
    assert max(used.values()) - min(used.values()) <= 1
    for item in items:
        assert item.expect["canary"] in item.system
        assert item.expect["canary"] not in item.prompt
    for plain, *attacks in zip(*[iter(items)] * 4, strict=True):
        assert len({item.template for item in attacks}) == 3
        assert {item.variant.parent for item in attacks} == {plain.id}


def test_unanswerable_questions_have_an_answerable_twin():
    items = drawn("unanswerable", contents=4)
    for twin, item in zip(items[::2], items[1::2], strict=True):
        assert (twin.expect, item.expect) == ({"answerable": True}, {"answerable": False})
        text = twin.prompt.split("Text: ")[1].split("\n")[0]
        assert text in item.prompt
        assert twin.answers[0] in text
        assert not item.answers
    assert len(items) // 2 >= 20


def test_a_record_that_is_right_keeps_to_its_schema():
    import jsonschema

    for item in drawn("json_extraction", contents=3):
        fields = item.expect["schema"]["properties"]
        sample = {"string": "x", "integer": 3, "boolean": True, "array": ["x"]}
        record = {key: sample[kind["type"]] for key, kind in fields.items()}
        jsonschema.validate(record, item.expect["schema"])
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(record | {"more": 1}, item.expect["schema"])
        assert item.answers[0] in item.prompt


def test_patterns_demand_the_answer_first():
    for content, template in (("docstring", "params"), ("acronym", "the")):
        for item in drawn("questions", content=content, templates=[template], contents=10, must="answer_first"):
            (pattern,) = item.expect["must"]
            assert re.search(pattern, item.answers[0])
            assert not re.search(pattern, f"x {item.answers[0]}")
            assert not re.search(pattern, f"{item.answers[0]}x")
    arguments = drawn("questions", content="docstring", templates=["params"], contents=10)
    for item in arguments:
        header, *rest = item.prompt.split("):")
        last = header.split(", ")[-1]
        assert item.answers == (last,)
        assert last not in re.findall(r"param (\w+):", rest[0])


def test_a_prompt_is_never_drawn_twice():
    items = drawn("injection", content="capital", contents=200, place="front", times=1)
    assert len({item.prompt for item in items}) == 400
    with pytest.raises(results_io.UserError, match="are the same prompt; expected different ones"):
        drawn("questions", content="capital", templates=["plain"], contents=len(lexicon.CAPITALS) + 1)


def test_a_generator_that_is_none_or_gets_wrong_parameters():
    with pytest.raises(results_io.UserError, match=r"generator.name is 'paddin'; .*did you mean padding\?"):
        generators.generate({"name": "paddin", "params": {}, "seed": 0}, "here")
    with pytest.raises(results_io.UserError, match=r"here: generator.params.attacks is 0; expected how many"):
        drawn("codeword", attacks=0)
    with pytest.raises(results_io.UserError, match=r"'scene' is no template of ioi; expected one of when_went"):
        drawn("questions", content="ioi", templates=["scene"], contents=1)
