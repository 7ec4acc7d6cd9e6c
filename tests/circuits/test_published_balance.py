"""No answer of a published task can be told from order, template, position or frequency; what corruption does."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter

import pytest

from circuits.tasks.example import Example
from circuits.tasks.published import BUILDERS, acronym, copy_suppression, docstring, greater_than, ioi, words
from circuits.tasks.published.subject_verb_agreement import PLURAL_OF, VERBS
from tests.circuits import published_draws as draws

WORD = re.compile(r"\w+")


@pytest.fixture(params=draws.TOKENIZERS)
def kind(request) -> str:
    draws.tokenizer(request.param)  # skips where the tokenizer is absent
    return request.param


def names_in(text: str) -> list[str]:
    return [word for word in WORD.findall(text) if word in words.NAMES]


def differing_words(example: Example) -> list[tuple[str, str]]:
    pairs = zip(WORD.findall(example.clean), WORD.findall(example.corrupted), strict=True)
    return [(clean, corrupted) for clean, corrupted in pairs if clean != corrupted]


def assert_share(hits: int, of: int, share: float) -> None:
    """Within four standard errors of the binomial share."""
    assert abs(hits - of * share) < 4 * math.sqrt(of * share * (1 - share)), (hits, of, share)


# --- indirect object identification -----------------------------------------------------------------------------


def test_ioi_has_the_papers_numbers_of_templates_names_places_and_objects() -> None:
    counts = [len(set(each)) for each in (ioi.FRAMES, words.NAMES, ioi.PLACES, ioi.OBJECTS)]
    assert counts == [15, 100, 20, 20]
    assert len(set(ioi.FRAMES.values())) == 15
    assert len(words.FEMALE_NAMES) == len(words.MALE_NAMES) == 50
    templates = {example.template for example in draws.examples("whole_words", "ioi")}
    assert templates == {f"{frame}/{order}" for frame in ioi.FRAMES for order in ("ABBA", "BABA")}


def test_ioi_orders_are_balanced_overall_and_in_each_template(kind) -> None:
    examples = draws.examples(kind, "ioi")
    orders = Counter(example.template for example in examples)
    assert_share(sum(n for label, n in orders.items() if label.endswith("ABBA")), len(examples), 1 / 2)
    for frame in ioi.FRAMES:
        both = orders[f"{frame}/ABBA"] + orders[f"{frame}/BABA"]
        assert both > 40
        assert_share(orders[f"{frame}/ABBA"], both, 1 / 2)


def test_ioi_answer_is_the_first_name_half_the_time_and_no_name_is_favoured(kind) -> None:
    examples = draws.examples(kind, "ioi")
    assert_share(sum(names_in(e.clean)[0] == e.answers[0] for e in examples), len(examples), 1 / 2)
    assert_share(sum(e.answers[0] < e.wrong[0] for e in examples), len(examples), 1 / 2)
    assert_share(sum(e.answers[0] in words.FEMALE_NAMES for e in examples), len(examples), 1 / 2)
    for role in ("answers", "wrong"):
        counts = Counter(getattr(example, role)[0] for example in examples)
        assert len(counts) == 100
        for count in counts.values():  # 100 binomials at once, so a wider bound than four standard errors
            assert abs(count - 11.6) < 5 * math.sqrt(11.6)


def test_ioi_positions_hold_the_names_and_the_subject_twice(kind) -> None:
    for example in draws.examples(kind, "ioi"):
        at, (answer,), (subject,) = draws.words_at(example), example.answers, example.wrong
        assert (at["io"], at["s1"], at["s2"], at["end"]) == (answer, subject, subject, "to")
        assert sorted(names_in(example.clean)) == sorted([answer, subject, subject])
        between = example.clean[example.positions["s1"][1] : example.positions["s1_plus_1"][0]]
        assert between.strip() == "" and at["s1_plus_1"]
        assert example.positions["s1"] < example.positions["s1_plus_1"] < example.positions["s2"]
        assert (example.positions["io"] < example.positions["s1"]) == example.template.endswith("ABBA")


def test_ioi_abc_holds_three_names_that_the_clean_prompt_lacks(kind) -> None:
    for example in draws.examples(kind, "ioi", "abc"):
        assert len(set(names_in(example.corrupted))) == 3 == len(names_in(example.corrupted))
        assert not set(names_in(example.corrupted)) & set(names_in(example.clean))


def test_ioi_random_name_changes_the_giver_to_a_third_name(kind) -> None:
    for example in draws.examples(kind, "ioi", "random_name"):
        ((clean, corrupted),) = differing_words(example)
        assert clean == example.wrong[0]
        assert len(set(names_in(example.corrupted))) == 3
        assert corrupted in words.NAMES


def test_ioi_name_swap_flips_the_answer(kind) -> None:
    for example in draws.examples(kind, "ioi", "name_swap"):
        assert differing_words(example) == [(example.wrong[0], example.answers[0])]
        (once,) = [name for name, count in Counter(names_in(example.corrupted)).items() if count == 1]
        assert once == example.wrong[0]


# --- greater-than -----------------------------------------------------------------------------------------------


def test_greater_than_has_the_papers_numbers_of_events_and_years(kind) -> None:
    task = draws.task(kind, "greater_than")
    assert len(set(greater_than.EVENTS)) == len(greater_than.EVENTS) == 120
    assert set(task.sample.years) == {"11", "12", "13", "14", "15", "16", "17"}
    starts = {century: [y for c, y in task.sample.starts if c == century] for century in task.sample.years}
    assert all("02" <= year <= "98" for years in starts.values() for year in years)
    if kind == "whole_words":
        assert {len(years) for years in starts.values()} == {97}


def test_greater_than_leaves_out_years_that_gpt2_does_not_split() -> None:
    years = draws.task("gpt2", "greater_than").sample.years
    assert {century: len(written) for century, written in years.items()} == {
        "11": 55, "12": 98, "13": 91, "14": 98, "15": 91, "16": 99, "17": 99,
    }  # fmt: skip
    tokens = draws.tokenizer("gpt2").tokenize
    assert tokens("to 1280") == ["to", "Ġ1280"] and "80" not in years["12"]
    assert tokens("to 1732") == ["to", "Ġ17", "32"] and "32" in years["17"]
    assert all(tokens(f"to {c}{y}") == ["to", f"Ġ{c}", y] for c, written in years.items() for y in written)


def test_greater_than_splits_the_years_at_the_start_year(kind) -> None:
    years = draws.task(kind, "greater_than").sample.years
    for example in draws.examples(kind, "greater_than"):
        start, century = draws.words_at(example)["yy"], example.factors["century"]
        assert example.cluster == century + start and example.joint == ""
        assert example.wrong + example.answers == years[century]
        assert max(example.wrong) == start < min(example.answers)
        assert example.corrupted == example.clean.replace(century + start, century + "01")
        assert draws.words_at(example)["end"] == century


# --- induction and docstring ------------------------------------------------------------------------------------


def test_induction_answer_follows_the_first_occurrence_and_is_gone_when_corrupted(kind) -> None:
    for example in draws.examples(kind, "induction"):
        listed, (answer,) = example.clean.split()[1:], example.answers
        at = draws.words_at(example)
        assert listed[listed.index(listed[-1]) + 1] == answer == at["first_next"]
        assert at["first_occurrence"] == at["end"] == listed[-1]
        assert listed.count(answer) == 1 and listed.count(listed[-1]) == 2
        assert set(example.wrong) == set(listed) - {answer}
        corrupted = example.corrupted.split()[1:]
        assert len(set(corrupted)) == len(corrupted) and answer not in corrupted


def test_induction_other_next_replaces_the_answer_only(kind) -> None:
    for example in draws.examples(kind, "induction", "other_next"):
        ((clean, corrupted),) = differing_words(example)
        assert clean == example.answers[0]
        assert corrupted not in example.clean.split() and corrupted not in example.wrong


def test_induction_answer_stands_at_several_places_and_distances(kind) -> None:
    examples = draws.examples(kind, "induction")
    places = Counter(example.clean.split().index(example.answers[0]) for example in examples)
    distances = Counter(
        len(example.clean.split()) - example.clean.split().index(example.answers[0]) for example in examples
    )
    assert len(places) >= 5 and len(distances) >= 3
    assert max(places.values()) < 0.4 * len(examples) and max(distances.values()) < 0.4 * len(examples)


def test_docstring_names_the_third_argument_and_the_lists_are_disjoint(kind) -> None:
    assert not set(docstring.ARGUMENTS) & set(words.NOUNS)
    assert not set(docstring.ARGUMENTS) & set(docstring.FUNCTIONS)
    counts = Counter()
    for example in draws.examples(kind, "docstring"):
        at = draws.words_at(example)
        a, b, c = re.search(r"\(self, (\w+), (\w+), (\w+)\):", example.clean).groups()
        documented = re.findall(r":param (\w+):", example.clean)
        assert (documented, example.answers) == ([a, b], (c,))
        assert (at["a_def"], at["b_def"], at["c_def"], at["a_doc"], at["b_doc"]) == (a, b, c, a, b)
        assert (at["b_def_comma"], at["end"]) == (",", ":param")
        assert WORD.findall(example.clean).count(c) == 1 and set(example.wrong) >= {a, b}
        counts[c] += 1
    assert len(counts) == len(docstring.ARGUMENTS)
    assert max(counts.values()) < 5 * 1160 / len(counts)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("corruption", docstring.CORRUPTIONS)
def test_docstring_corruptions_put_in_names_that_the_clean_prompt_lacks(kind, corruption) -> None:
    expected = {"random_answer": 1, "random_doc": 2, "random_def_doc": 4}[corruption]
    for example in draws.examples(kind, "docstring", corruption):
        changes = differing_words(example)
        new = [corrupted for _, corrupted in changes]
        assert len(changes) == len(set(new)) == expected
        assert not set(new) & set(WORD.findall(example.clean))
        assert set(new) < set(example.wrong)
        assert (example.answers[0] in WORD.findall(example.corrupted)) == (corruption != "random_answer")


# --- pronoun, acronym, copy suppression, agreement --------------------------------------------------------------


def test_pronoun_follows_the_gender_and_corruption_flips_it(kind) -> None:
    examples = draws.examples(kind, "gendered_pronoun")
    for example in examples:
        ((clean, corrupted),) = differing_words(example)
        assert (clean in words.MALE_NAMES) == (corrupted in words.FEMALE_NAMES) == (example.answers == ("he",))
        assert (clean in words.FEMALE_NAMES) == (corrupted in words.MALE_NAMES) == (example.wrong == ("he",))
    assert_share(sum(example.answers == ("he",) for example in examples), len(examples), 1 / 2)
    for template in {example.template for example in examples}:
        of_one = [example for example in examples if example.template == template]
        assert_share(sum(example.answers == ("he",) for example in of_one), len(of_one), 1 / 2)
    assert {example.cluster for example in examples} == set(words.NAMES)
    assert all(example.cluster == example.clean[slice(*example.positions["name"])] for example in examples)


def test_acronym_letters_are_the_initials_and_differ(kind) -> None:
    examples = draws.examples(kind, "acronym")
    for example in examples:
        at = draws.words_at(example)
        initials = at["w1"][0] + at["w2"][0] + at["w3"][0]
        assert initials == example.cluster == at["l1"] + at["end"] + example.answers[0]
        assert len(set(initials)) == 3 and example.joint == ""
        assert example.clean.endswith(f"({initials[:2]}")
        assert not set(example.wrong) & set(initials) and len(example.wrong) >= acronym.FEWEST_LETTERS - 1
    letters = Counter(example.answers[0] for example in examples)
    entropy = -sum(n / len(examples) * math.log2(n / len(examples)) for n in letters.values())
    assert len(letters) >= 24 and entropy > 4.2  # bits; 25 equally frequent letters would have 4.64
    assert max(letters.values()) < 0.09 * len(examples)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("corruption", acronym.CORRUPTIONS)
def test_acronym_corruptions_change_the_initials(kind, corruption) -> None:
    for example in draws.examples(kind, "acronym", corruption):
        changes = differing_words(example)
        assert len(changes) == {"third_word": 1, "all_words": 3}[corruption]
        new = [corrupted[0] for _, corrupted in changes]
        assert len(set(new)) == len(new) and not set(new) & set(example.cluster)
        assert new[-1] in example.wrong


def test_copy_suppression_exchanges_the_listed_word(kind) -> None:
    listed_in = Counter()
    for corruption in copy_suppression.CORRUPTIONS:
        for example in draws.examples(kind, "copy_suppression", corruption):
            (answer,), (listed,) = example.answers, example.wrong
            same_kind = copy_suppression.KINDS[example.factors["kind"]].split()
            ((clean, corrupted),) = differing_words(example)
            assert clean == listed == draws.words_at(example)["listed"]
            assert {answer, listed, corrupted} <= set(same_kind)
            assert answer not in WORD.findall(example.clean)
            assert WORD.findall(example.clean).count(listed) == 1
            assert listed not in WORD.findall(example.corrupted)
            assert (corrupted == answer) == (corruption == "answer_listed")
            listed_in[example.template] += 1
    for frame, slots in itertools.groupby(sorted(listed_in), key=lambda label: label.split("/")[0]):
        slots = list(slots)
        both = sum(listed_in[label] for label in slots)
        assert len(slots) == copy_suppression.FRAMES[frame].count("{")
        for label in slots:  # the two corruptions draw the same prompts, so half of these are independent
            assert_share(listed_in[label] // 2, both // 2, 1 / len(slots))


def test_copy_suppression_answer_and_listed_word_are_drawn_alike(kind) -> None:
    """Exchangeable: a word is answer as often as it is the listed word, so words' own frequencies cancel."""
    examples = draws.examples(kind, "copy_suppression")
    assert_share(sum(example.answers[0] < example.wrong[0] for example in examples), len(examples), 1 / 2)
    answers, listed = (Counter(getattr(e, side)[0] for e in examples) for side in ("answers", "wrong"))
    for word in answers | listed:
        both = answers[word] + listed[word]
        assert abs(answers[word] - both / 2) < 5 * math.sqrt(both / 4) + 0.5


@pytest.mark.parametrize("corruption", BUILDERS["subject_verb_agreement"].CORRUPTIONS)
def test_agreement_corruption_flips_the_number_of_the_subject(kind, corruption) -> None:
    number = dict.fromkeys(PLURAL_OF, "singular") | dict.fromkeys(PLURAL_OF.values(), "plural")
    examples = draws.examples(kind, "subject_verb_agreement", corruption)
    for example in examples:
        ((clean, corrupted),) = differing_words(example)
        at = draws.words_at(example)
        assert clean == at["subject"] and number[clean] != number[corrupted]
        assert example.factors["subject_number"] == number[clean]
        assert example.answers == VERBS[number[clean]] and example.wrong == VERBS[number[corrupted]]
        same_noun = clean in (PLURAL_OF.get(corrupted), corrupted) or corrupted == PLURAL_OF.get(clean)
        assert same_noun == (corruption == "subject_number")
        assert (number[at["attractor"]] == number[clean]) == (example.factors["attractor_match"] == "same")
    assert_share(sum(e.factors["subject_number"] == "singular" for e in examples), len(examples), 1 / 2)
    assert_share(sum(e.factors["attractor_match"] == "same" for e in examples), len(examples), 1 / 2)


def test_a_cluster_is_the_words_that_dependent_prompts_share() -> None:
    """Not the whole prompt, which would make every prompt a sampling unit of its own."""
    for example in draws.examples("whole_words", "ioi"):
        at = draws.words_at(example)
        assert example.cluster == " ".join(sorted((at["io"], at["s2"])))
    for example in draws.examples("whole_words", "copy_suppression"):
        assert example.cluster == " ".join(sorted((*example.answers, *example.wrong)))
    for example in draws.examples("whole_words", "docstring"):
        at = draws.words_at(example)
        assert example.cluster == " ".join(sorted(at[role] for role in ("a_def", "b_def", "c_def")))
    both = {form: singular for singular, plural in PLURAL_OF.items() for form in (singular, plural)}
    for example in draws.examples("whole_words", "subject_verb_agreement"):
        at = draws.words_at(example)
        assert example.cluster == " ".join(sorted(both[at[role]] for role in ("subject", "attractor")))
