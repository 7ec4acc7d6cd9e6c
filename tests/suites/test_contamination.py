"""Overlap with a corpus and near duplicates: hand-counted n-grams and brute-force twins."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from statsmodels.stats.proportion import confint_proportions_2indep

from results_io import UserError
from suites.contamination import overlap as contamination
from suites.contamination.overlap import Overlap

WORDS = [f"w{number}" for number in range(40)]


@pytest.fixture
def corpus(tmp_path):
    """corpus(name=text, ...): a folder with these files; "a_txt" is a.txt."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / "corpus" / name.replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path / "corpus"

    return write


def text(start, stop):
    return " ".join(WORDS[start:stop])


def test_one_of_three_grams(corpus):
    found = contamination.overlap({"x": text(0, 15)}, corpus(a_txt=f"before {text(0, 13)} after"))
    (item,) = found.items
    assert (item.grams, item.found, item.share, item.flagged) == (3, 1, 1 / 3, True)
    assert (found.flagged.value, found.documents, found.corpus_tokens) == (1.0, 1, 15)


def test_twelve_shared_tokens_are_none(corpus):
    (item,) = contamination.overlap({"x": text(0, 15)}, corpus(a_txt=text(0, 12))).items
    assert (item.share, item.flagged) == (0.0, False)


@pytest.mark.parametrize(("length", "n", "grams"), [(7, 0, 0), (8, 8, 1), (12, 12, 1), (13, 13, 1), (14, 13, 2)])
def test_short_items_are_compared_whole(corpus, length, n, grams):
    found = contamination.overlap({"x": text(0, length), "y": text(20, 40)}, corpus(a_txt=text(0, 20)))
    item = found.items[0]
    assert (item.n, item.grams, item.found) == (n, grams, grams)
    assert item.flagged is (True if grams else None)
    assert found.flagged.excluded == ({} if grams else {"under 8 tokens": 1})
    assert found.flagged.n == 1 + bool(grams)


def test_form_does_not_matter(corpus):
    item = "Don't STOP, he said: the café (in Zürich) is open — until 9!"
    written = "dont stop he said the cafe\u0301\n\nin zürich is\topen until 9"
    assert contamination.overlap({"x": item}, corpus(a_txt=written)).items[0].share == 1.0


def test_documents_are_apart_and_lines_are_not(corpus):
    item = {"x": text(0, 13)}
    assert contamination.overlap(item, corpus(a_txt=text(0, 6) + "\n" + text(6, 13))).items[0].flagged
    records = [{"text": text(0, 6)}, {"more": [{"text": text(6, 13)}]}]
    folder = corpus(a_txt="", b_jsonl="\n".join(map(json.dumps, records)))
    found = contamination.overlap(item, folder)
    assert not found.items[0].flagged
    assert (found.documents, found.corpus_tokens) == (3, 13)
    whole = corpus(b_jsonl=json.dumps({"meta": {"pages": [text(0, 13)]}}))
    assert contamination.overlap(item, whole).items[0].flagged


def test_as_many_as_by_brute_force(corpus, monkeypatch):
    monkeypatch.setattr(contamination, "BLOCK", 7)  # characters: words and n-grams cross the blocks
    rng = np.random.default_rng(0)
    stream = rng.choice(WORDS[:3], 3000).tolist()
    items = {str(k): " ".join(rng.choice(WORDS[:3], rng.integers(6, 18))) for k in range(60)}
    found = contamination.overlap(items, corpus(a_md="  ".join(stream) + "\n"))
    assert found.corpus_tokens == 3000
    haystack = " " + " ".join(stream) + " "
    for one in found.items:
        words = items[one.item].split()
        n = min(13, len(words))
        hits = sum(f" {' '.join(words[k : k + n])} " in haystack for k in range(len(words) - n + 1))
        assert one.found == (hits if n >= 8 else 0)
    assert 0 < found.flagged.detail["successes"] < found.flagged.n


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a_csv": "x"}, "no .txt, .md or .jsonl file"),
        ({"a_jsonl": '{"text": "x"}\n{oops'}, "line 2 is not JSON"),
        ({}, "is no folder"),
    ],
)
def test_a_corpus_that_cannot_be_read(corpus, files, message):
    with pytest.raises(UserError, match=message):
        contamination.overlap({"x": text(0, 13)}, corpus(**files))


def test_bytes_that_are_no_text(corpus):
    folder = corpus(a_txt="fine", b_csv="x")
    assert contamination.overlap({}, folder).files_not_read == 1
    (folder / "z.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        contamination.overlap({"x": text(0, 13)}, folder)


def overlaps(clean, dirty, short=0):
    sizes = [(clean, 3, 0), (dirty, 3, 1), (short, 0, 0)]
    return [Overlap(f"{k}{found}{grams}", 15, 13, grams, found) for n, grams, found in sizes for k in range(n)]


def test_clean_against_dirty():
    items = overlaps(40, 20, short=2)
    flagged = [one.item for one in items if one.flagged]
    clean = [one.item for one in items if one.flagged is False]
    correct = dict.fromkeys(flagged[:18], True) | dict.fromkeys(flagged[18:], False)
    correct |= dict.fromkeys(clean[:24], True) | dict.fromkeys(clean[24:39], False)  # one has no verdict
    found = contamination.clean_and_dirty(items, correct)
    assert (found.dirty.value, found.clean.value) == (0.9, 24 / 39)
    assert found.difference.value == pytest.approx(0.9 - 24 / 39)
    assert found.difference.excluded == {"under 8 tokens": 2, "not judged": 1}
    low, high = confint_proportions_2indep(18, 20, 24, 39, method="newcomb")
    assert (found.difference.ci.low, found.difference.ci.high) == pytest.approx((low, high), abs=1e-9)


def test_alike_items_widen_the_difference():
    items = overlaps(40, 40)
    correct = {one.item: int(one.item[:-2]) % 4 != 0 for one in items}
    alone = contamination.clean_and_dirty(items, correct).difference
    groups = {one.item: f"{int(one.item[:-2]) % 4}{one.flagged}" for one in items}  # ten items a cluster, all alike
    alike = contamination.clean_and_dirty(items, correct, groups).difference
    assert alone.value == alike.value == 0
    assert alike.ci.high > 2 * alone.ci.high


def test_a_difference_needs_both_sides():
    items = overlaps(5, 0)
    found = contamination.clean_and_dirty(items, {one.item: True for one in items})
    assert (found.difference.status, found.clean.value, found.dirty.status) == ("undefined", 1.0, "undefined")


def test_jaccard_by_hand():
    assert contamination.jaccard(frozenset({1, 2, 3, 4}), frozenset({3, 4, 5, 6})) == 1 / 3
    assert contamination.jaccard(frozenset(), frozenset({1})) is None
    assert contamination.shingles("A b, c d e! F") == {"a b c d e", "b c d e f"}
    assert contamination.shingles("a b c d") == frozenset()


def test_minhash_is_within_three_standard_errors():
    four = [frozenset("1234"), frozenset("3456")]
    estimates = [contamination.minhash_jaccard(*four, seed=seed) for seed in range(1, 101)]
    error = math.sqrt(1 / 3 * 2 / 3 / 128)
    assert abs(estimates[0] - 1 / 3) <= 0.13
    assert np.mean(estimates) == pytest.approx(1 / 3, abs=4 * error / 10)
    assert np.std(estimates) == pytest.approx(error, rel=0.25)
    assert contamination.minhash_jaccard(four[0], four[0]) == 1.0
    assert contamination.minhash_jaccard(four[0], frozenset()) is None


def test_near_duplicates_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    originals = [rng.choice(WORDS, 40).tolist() for _ in range(30)]
    others = []
    for changes in range(30):  # the k-th with k words replaced
        copy = list(originals[changes])
        for place in rng.permutation(40)[: changes // 3]:
            copy[place] = "other"
        others.append(" ".join(copy))
    texts = [" ".join(words) for words in originals]
    found = contamination.near_duplicates(texts, others, threshold=0.5)
    sets, other_sets = [[contamination.shingles(one) for one in side] for side in (texts, others)]
    exact = {
        (i, j): contamination.jaccard(sets[i], other_sets[j])
        for i in range(30)
        for j in range(30)
        if contamination.jaccard(sets[i], other_sets[j]) >= 0.5
    }
    assert {(one.first, one.second): one.jaccard for one in found} == exact
    assert 3 <= len(exact) < 30
    assert all(one.cosine is None for one in found)


def test_an_embedder_finds_what_shares_no_words():

    def embed(texts):
        angle = np.array([0.0 if "feline" in text or "cat" in text else 1.0 for text in texts])
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)

    (found,) = contamination.near_duplicates(
        ["the cat sat down here"], ["a feline was seated there", "stocks fell today by much"], 0.5, embed
    )
    assert (found.second, found.jaccard, found.cosine) == (0, 0.0, pytest.approx(1.0))


def test_the_threshold_that_tells_known_pairs_apart():
    found = contamination.calibrated([0.9, 0.8, 0.7, 0.3], [0.5, 0.4, 0.2, 0.1])
    assert (found.value, found.sensitivity.value, found.specificity.value) == (0.7, 0.75, 1.0)
    with pytest.raises(UserError, match="0 duplicates and 1 other"):
        contamination.calibrated([], [0.5])


def test_of_thresholds_that_tell_equally_well_the_highest_is_taken():
    """At .9 half of the duplicates are found and no other pair; at .7 all duplicates and half of the others: J = .5 at both."""
    found = contamination.calibrated([0.7, 0.9], [0.8, 0.1])
    assert (found.value, found.sensitivity.value, found.specificity.value) == (0.9, 0.5, 1.0)


def test_a_threshold_of_zero_is_refused():
    with pytest.raises(UserError, match="threshold is 0"):
        contamination.near_duplicates([], [], 0)


def test_equal_thresholds_are_equal_whatever_their_fractions_round_to():
    """J is 1/6 at both limits: 1/2 + 4/6 - 1 and 1 + 1/6 - 1, which differ in the last binary digit."""
    assert contamination.calibrated([0.9, 0.5], [0.1, 0.6, 0.7, 0.8, 0.95, 0.96]).value == 0.9
