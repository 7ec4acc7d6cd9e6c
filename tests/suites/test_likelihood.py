"""Likelihood scoring of choices: the hand-computed case, tokenisation at the seam, truncation, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from results_io import UserError
from suites import likelihood
from suites.item import Item
from suites.likelihood import ChoiceScores
from suites.models import open_model
from suites.models.base import Likelihood

POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu", "dtype": "float32"}
BOS = 0


@pytest.fixture(scope="module")
def pocket():
    return open_model(POCKET)


class Letters:
    """One token a character, which is its code point; BOS is 0."""

    def __call__(self, text: str, bos: bool | None = None) -> list[int]:
        return [*([BOS] if bos is None else []), *map(ord, text)]


class Stub:
    """A model under test of which every log-likelihood is known."""

    def __init__(self, known: dict[tuple[str, str], Likelihood]) -> None:
        self.known = known

    def loglikelihood(self, pairs):
        return [self.known[pair] for pair in pairs]


def test_yes_and_absolutely():
    """L = -2.0 over 3 characters and 1 token, -3.0 over 10 characters and 2 tokens."""
    scores = ChoiceScores(("yes", "absolutely"), (-2.0, -3.0), (1, 2), frozenset({1}))
    assert [scores.picked(metric) for metric in likelihood.METRICS] == [0, 1, 1, 1]
    assert [round(value, 3) for value in scores.normalised("acc_norm")] == [-0.667, -0.3]
    assert scores.normalised("acc_token") == (-2.0, -1.5)
    assert [scores.correct(metric) for metric in likelihood.METRICS] == [False, True, True, True]
    assert math.isclose(scores.confidence, 1 / (1 + math.exp(-1)))
    assert math.isclose(sum(scores.probabilities), 1)


def test_characters_are_not_bytes():
    """The word naïveté has 7 characters and 9 bytes, so the two normalisations disagree here."""
    scores = ChoiceScores(("naïveté", "artless."), (-7.2, -8.1), (3, 2))
    assert scores.normalised("acc_norm")[0] == -7.2 / 7 and scores.normalised("acc_bytes")[0] == -7.2 / 9
    assert scores.picked("acc_norm") == 1 and scores.picked("acc_bytes") == 0


def test_of_equal_choices_the_first_counts():
    scores = ChoiceScores(("ab", "cd", "ef"), (-2.0, -1.0, -1.0), (1, 1, 1), frozenset({2}))
    assert [scores.picked(metric) for metric in likelihood.METRICS] == [1, 1, 1, 1]
    assert not scores.correct()


@pytest.mark.parametrize(
    ("context", "continuation", "before", "after"),
    [
        ("ab", " c", [BOS, *b"ab"], list(b" c")),
        ("ab  ", "c", [BOS, *b"ab"], list(b"  c")),  # white space goes to the continuation
        ("ab\n", " c", [BOS, *b"ab"], list(b"\n c")),
        ("", "c", [BOS], list(b"c")),
        ("  ", "c", [BOS], list(b"  c")),
    ],
)
def test_where_a_context_ends(context, continuation, before, after):
    assert likelihood.split(Letters(), context, continuation, BOS) == (before, after)


def test_the_seam_is_tokenised_jointly():
    """A tokenizer that merges "a" and "b": the continuation gets what is left of the joint tokens."""

    def merging(text: str, bos: bool | None = None) -> list[int]:
        return [ord(letter) for letter in text.replace("ab", "X")]

    assert likelihood.split(merging, "ca", "bd", BOS) == ([*b"ca"], [*b"d"])
    with pytest.raises(UserError, match="adds no token"):
        likelihood.split(merging, "ca", "b", BOS)


def test_an_empty_continuation_and_an_empty_context_without_prefix_are_refused():
    with pytest.raises(UserError, match="the choice '' adds no token"):
        likelihood.split(Letters(), "ab", "", BOS)
    with pytest.raises(UserError, match="context is empty"):
        likelihood.split(Letters(), "", "c", None)


def test_a_text_that_brings_its_own_bos_gets_no_second_one():
    def reading(text: str, bos: bool | None = None) -> list[int]:
        return [BOS, *text.removeprefix("<s>").encode()] if text.startswith("<s>") else list(text.encode())

    assert likelihood.split(reading, "", "<s>c", BOS) == ([BOS], [*b"c"])
    assert likelihood.split(reading, "", "c", BOS) == ([BOS], [*b"c"])
    with pytest.raises(UserError, match="adds no token"):
        likelihood.split(reading, "", "<s>", BOS)


def test_items_are_asked_with_the_delimiter_and_summarised():
    """Two items right by acc, one by acc_norm; the delimiter is not counted among the characters."""
    known = {
        ("p", " yes"): Likelihood(-2.0, True, 1),
        ("p", " absolutely"): Likelihood(-3.0, False, 2),
        ("q", " yes"): Likelihood(-1.0, True, 1, truncated=4),
        ("q", " no"): Likelihood(-2.0, False, 1, truncated=3),
    }
    items = [
        Item("1", "p", answers=("yes",), choices=("yes", "absolutely")),
        Item("2", "q", answers=("yes",), choices=("yes", "no")),
    ]
    scores = likelihood.ask(Stub(known), items)
    assert [one.logprobs for one in scores] == [(-2.0, -3.0), (-1.0, -2.0)]
    assert [one.truncated for one in scores] == [0, 4]
    found = likelihood.summarise(scores)
    assert {name: one.value for name, one in found.items()} == {
        "acc": 1.0,
        "acc_norm": 0.5,
        "acc_bytes": 0.5,
        "acc_token": 0.5,
    }
    assert found["acc_norm"].n == 2 and found["acc_norm"].detail["truncated"] == 1
    assert math.isclose(found["acc_norm"].ci.low, 0.0945312, abs_tol=1e-6)  # Wilson 1/2
    assert likelihood.summarise([])["acc"].status == "insufficient_data"


def test_items_without_choices_and_answers_outside_them_are_refused():
    with pytest.raises(UserError, match="item 7 has no choices"):
        likelihood.ask(Stub({}), [Item("7", "p")])
    with pytest.raises(UserError, match="answer 'maybe' outside its choices"):
        likelihood.ask(Stub({}), [Item("7", "p", answers=("maybe",), choices=("yes",))])
    with pytest.raises(UserError, match="no tokens to score"):
        ChoiceScores(("", "b"), (-1.0, -1.0), (1, 1))


# --- the local model's ---------------------------------------------------------------------------------------------


def test_likelihoods_are_sums_of_the_models_own_log_probabilities(pocket):
    """Against one forward pass per pair, unpadded."""
    pairs = [
        ("When John and Mary went to the store, John gave a drink to", " Mary and John"),
        ("The", " key"),
        ("", " The keys"),
    ]
    for (context, continuation), found in zip(pairs, pocket.loglikelihood(pairs), strict=True):
        before, after = pocket.encoding.tokens(context), pocket.encoding.tokens(continuation, bos=False)
        with torch.no_grad():
            table = pocket.model(torch.tensor([before + after])).logits[0].double().log_softmax(-1)
        places = range(len(before) - 1, len(before) + len(after) - 1)
        expected = [float(table[place, token]) for place, token in zip(places, after, strict=True)]
        assert abs(found.logprob - sum(expected)) < 1e-5
        assert found.greedy == all(int(table[p].argmax()) == t for p, t in zip(places, after, strict=True))
        assert (found.n_tokens, found.truncated) == (len(after), 0)


def test_the_probabilities_of_all_words_sum_to_one(pocket):
    words = range(pocket.model.config.vocab_size)
    found = pocket.score([(pocket.encoding.tokens("The key"), [word]) for word in words])
    assert abs(sum(math.exp(one.logprob) for one in found) - 1) < 1e-5
    assert sum(one.greedy for one in found) == 1


def test_a_long_context_loses_tokens_on_the_left_and_says_so(pocket):
    """64 positions read 65 tokens but the last: of BOS, 70 keys and 2 more, 8 are lost, as if they had never been there."""
    long = pocket.loglikelihood([("key " * 70, "is red")])[0]
    tokens = pocket.encoding.tokens("key " * 70 + "is red")
    cut = pocket.score([(tokens[-65:-2], tokens[-2:])])[0]
    assert long.truncated == len(tokens) - 65 == 8
    assert long.logprob == cut.logprob
    assert cut.truncated == 0


def test_a_continuation_that_cannot_be_scored_is_refused(pocket):
    with pytest.raises(UserError, match="65 tokens cannot be scored by a model that reads 64"):
        pocket.loglikelihood([("The", " key" * 65)])
    with pytest.raises(UserError, match="adds no token"):
        pocket.loglikelihood([("The", " ")])
    with pytest.raises(UserError, match="after no token"):
        pocket.score([([], [5])])


def test_equal_choices_get_equal_numbers_whatever_their_batch():
    model = open_model({**POCKET, "rows": 3})
    pairs = [("The key", " is"), *[("The", f" {word}") for word in ("keys", "man", "dog")]] * 3
    found = model.loglikelihood(pairs)
    assert found[:4] == found[4:8] == found[8:]
