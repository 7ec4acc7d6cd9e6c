"""The tasks: prompts are aligned, answers are single tokens, and nothing asked was ever read in training."""

from __future__ import annotations

import random
import re

import pytest

from circuits import tasks
from circuits.embedded.tokenizer import build_tokenizer
from circuits.tasks import lexicon
from circuits.tasks.example import Example, held_out
from meridian.training import corpus
from results_io import UserError

NAMES = ["ioi", "greater_than", "subject_verb_agreement", "gendered_pronoun", "induction"]
DOCUMENTS = 20_000


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def documents() -> list[corpus.Document]:
    rng = random.Random(7)
    return [corpus.draw_document(rng, corpus.EARLY_SHARES) for _ in range(DOCUMENTS)]


def draw(name: str, n: int, seed: int = 0) -> list[Example]:
    rng = random.Random(seed)
    return [tasks.get(name).sample(rng) for _ in range(n)]


def span_token(encoding, span: tuple[int, int]) -> int:
    """Return the index of the last token that overlaps the span."""
    return max(i for i, (start, end) in enumerate(encoding.offsets) if start < span[1] and end > span[0])


def test_registry_names_the_known_tasks():
    assert list(tasks.TASKS)[: len(NAMES)] == NAMES == list(tasks.EMBEDDED)
    with pytest.raises(UserError, match=r"task 'iou' is unknown; use one of ioi, greater_than"):
        tasks.get("iou")
    for name in NAMES:
        assert set(tasks.get(name).companions) == set(NAMES) - {name}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_aligned_and_answers_are_single_tokens(name, tokenizer):
    backend = tokenizer.backend_tokenizer
    template_lengths: dict[str, set[int]] = {}
    position_tokens: dict[str, set[tuple[int, ...]]] = {}
    for example in draw(name, 2000):
        clean, corrupted = backend.encode(example.clean), backend.encode(example.corrupted)
        assert len(clean.ids) == len(corrupted.ids)
        assert example.clean != example.corrupted
        template_lengths.setdefault(example.template, set()).add(len(clean.ids))
        assert lexicon.UNK not in clean.tokens + corrupted.tokens
        positions = tuple(span_token(clean, example.positions[role]) for role in tasks.get(name).roles)
        position_tokens.setdefault(example.template, set()).add(positions)
        assert positions[-1] == len(clean.ids) - 1
        assert not set(example.answers) & set(example.wrong)
        for word in example.answers + example.wrong:
            assert backend.encode(word).tokens == [word]
    assert len(template_lengths) >= 3
    assert all(len(lengths) == 1 for lengths in template_lengths.values())
    assert all(len(positions) == 1 for positions in position_tokens.values())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_examples_follow_from_the_seed_and_thousands_are_distinct(name):
    assert draw(name, 50, seed=3) == draw(name, 50, seed=3)
    assert draw(name, 50, seed=3) != draw(name, 50, seed=4)
    assert len({example.clean for example in draw(name, 20_000)}) >= 3000


def test_ioi_names_its_positions_and_corrupts_with_three_other_names():
    for example in draw("ioi", 500):
        words = {role: example.clean[slice(*span)] for role, span in example.positions.items()}
        (answer,), (subject,) = example.answers, example.wrong
        assert (words["io"], words["s1"], words["s2"], words["end"]) == (answer, subject, subject, "to")
        assert example.positions["s1"] < example.positions["s1_plus_1"] < example.positions["s2"]
        in_order = example.positions["io"] < example.positions["s1"]
        assert in_order == example.template.endswith("ABBA")
        present = [word for word in re.findall(r"\w+", example.corrupted) if word in lexicon.NAMES]
        assert len(set(present)) == 3 == len(present)
        assert not {answer, subject} & set(present)
        assert held_out(answer, subject)


def test_greater_than_splits_the_years_at_the_start_year():
    for example in draw("greater_than", 500):
        year = example.clean[slice(*example.positions["yy"])]
        assert example.answers == tuple(f"{number:02d}" for number in range(int(year) + 1, 100))
        assert example.wrong == tuple(f"{number:02d}" for number in range(2, int(year) + 1))
        assert example.corrupted == example.clean.replace(example.cluster, example.cluster[:2] + "01")
        assert held_out(example.factors["century"], year)


def test_agreement_and_pronoun_corruptions_flip_the_feature_only():
    for example in draw("subject_verb_agreement", 500):
        changed = differing_words(example)
        assert len(changed) == 1
        clean, corrupted = changed[0]
        assert lexicon.SINGULAR_OF[clean] == lexicon.SINGULAR_OF[corrupted]
        assert (example.answers == lexicon.PLURAL_VERBS) == (clean in lexicon.PLURAL_NOUNS)
        assert held_out(*example.cluster.split())
    for example in draw("gendered_pronoun", 500):
        ((clean, corrupted),) = differing_words(example)
        assert (clean in lexicon.MALE_NAMES) == (corrupted in lexicon.FEMALE_NAMES)
        assert (example.answers[0] in ("he", "his")) == (clean in lexicon.MALE_NAMES)
        assert held_out(clean, example.clean[slice(*example.positions["context"])])


def differing_words(example: Example) -> list[tuple[str, str]]:
    pairs = zip(re.findall(r"\w+", example.clean), re.findall(r"\w+", example.corrupted), strict=True)
    return [(clean, corrupted) for clean, corrupted in pairs if clean != corrupted]


def test_induction_answer_follows_the_first_occurrence_and_is_gone_when_corrupted():
    for example in draw("induction", 500):
        words, (answer,) = example.clean.split(), example.answers
        assert words[words.index(words[-1]) + 1] == answer
        assert words.count(words[-1]) == 2
        assert answer not in example.corrupted.split()
        assert set(example.wrong) == set(words) - {answer}


@pytest.mark.slow
def test_training_documents_hold_no_held_out_combination(documents):
    pairs = {name: set() for name in ("names", "name_place", "nouns", "years")}
    for document in documents:
        words = re.findall(r"\d\d|\w+", document.text)
        present = set(words)
        names, places = present & set(lexicon.NAMES), present & set(lexicon.PLACES)
        nouns = {lexicon.SINGULAR_OF[word] for word in present if word in lexicon.SINGULAR_OF}
        pairs["names"] |= {(a, b) for a in names for b in names if a < b}
        pairs["name_place"] |= {(a, b) for a in names for b in places}
        pairs["nouns"] |= {(a, b) for a in nouns for b in nouns if a < b}
        pairs["years"] |= {(match[:2], match[2:]) for match in re.findall(r"\b\d{4}\b", document.text)}
    assert {kind: [pair for pair in found if held_out(*pair)] for kind, found in pairs.items()} == {
        kind: [] for kind in pairs
    }
    # The check has teeth: most of the combinations that are allowed do occur.
    assert len(pairs["names"]) > 4000
    assert len(pairs["name_place"]) > 2200
    assert len(pairs["nouns"]) > 500
    assert len(pairs["years"]) > 600


def test_every_prompt_asks_about_a_combination_that_training_excludes():
    for name in ("ioi", "greater_than", "subject_verb_agreement", "gendered_pronoun"):
        assert all(corpus.held_out_combinations(example.clean) for example in draw(name, 500))


@pytest.mark.slow
def test_documents_are_in_the_vocabulary_fit_the_context_and_cover_every_kind(documents, tokenizer):
    encodings = tokenizer.backend_tokenizer.encode_batch([document.text for document in documents])
    assert not any(tokenizer.unk_token_id in encoding.ids for encoding in encodings)
    assert max(len(encoding.ids) for encoding in encodings) < 64
    kinds = [document.kind for document in documents]
    shares = dict(zip(corpus.MAKERS, corpus.EARLY_SHARES, strict=True))
    for kind, share in shares.items():
        # Binomial standard error of a share s over 20,000 documents is at most .0036.
        assert kinds.count(kind) / DOCUMENTS == pytest.approx(share, abs=0.015)


def test_documents_follow_from_the_seed():
    one, two = (
        [corpus.draw_document(rng, corpus.LATE_SHARES) for _ in range(200)]
        for rng in (random.Random(5), random.Random(5))
    )
    assert one == two
