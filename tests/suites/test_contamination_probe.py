"""What a model knows better than it should: oracles of exposure and loss gaps, canaries of the catalogue, passages."""

from __future__ import annotations

import json
import math
import random
import zlib

import numpy as np
import pytest

from results_io import UserError
from scripts import freeze_suites
from suites import declaration, lock, schema
from suites.contamination import canary, loss_gap, overlap, passages
from suites.contamination.loss_gap import Reworded
from suites.item import Item, ItemVariant
from suites.models.base import Likelihood
from tests.suites.scripted import ScriptedModel, suite

GUID = "1b4e28ba-2fa1-4d2c-883f-0016d3cca427"


# --- 194 -------------------------------------------------------------------------------------------------------------


def test_exposure_of_the_first_of_1024_and_of_rank_50():
    best = canary.exposure([-2.0] * 1023, -1.0)
    assert best.value == 10 and best.p_value == pytest.approx(0.000977, abs=5e-7) and best.detail["rank"] == 1
    rank = canary.exposure([-1.0] * 49 + [-3.0] * 950, -2.0)
    assert (rank.detail["rank"], rank.p_value) == (50, 0.05)
    assert rank.value == pytest.approx(4.321928, abs=5e-7)


def test_ties_take_the_worst_rank_and_no_others_are_undefined():
    tied = canary.exposure([-1.0, -1.0, -2.0], -1.0)
    assert (tied.detail["rank"], tied.p_value) == (3, 0.75) and tied.value == pytest.approx(math.log2(4 / 3))
    assert canary.exposure([], -1.0).status == "undefined"


def test_p_of_a_canary_that_was_never_read_is_uniform():
    rng = random.Random(0)
    p = [canary.exposure([rng.random() for _ in range(19)], rng.random()).p_value for _ in range(2000)]
    for level in (0.05, 0.25, 0.5):  # within three standard errors of a share of 2000
        assert abs(sum(one <= level for one in p) / 2000 - level) < 3 * math.sqrt(level * (1 - level) / 2000)


class Reader(ScriptedModel):
    """Likelier by `known` nats where the line holds a text that it has read."""

    def __init__(self, read, **rest):
        super().__init__({}, capabilities=("generation", "logprobs"), **rest)
        self.read = read

    def loglikelihood(self, pairs):
        known = [any(text in first + rest for text in self.read) for first, rest in pairs]
        return [
            Likelihood(5.0 * one - 40.0 - len(rest) % 7 / 10, False, 8)
            for one, (_, rest) in zip(known, pairs, strict=True)
        ]


def test_a_model_that_has_read_the_line_gives_it_the_first_rank():
    own = canary.of_suite("mine", GUID)
    read = canary.measure(Reader([GUID]), own)
    assert (read.detail["rank"], read.n, read.p_value) == (1, 999, 0.001)
    assert canary.measure(Reader([]), own).detail["rank"] == 1000  # all alike: the worst rank
    assert canary.measure(Reader([], unknown=["canary"]), own).status == "not_applicable"


def test_without_log_probabilities_only_a_verbatim_continuation_shows_something():
    own = canary.of_suite("mine", GUID)
    half = own.line[: len(own.line) - len(GUID) // 2]
    said = canary.measure(ScriptedModel({half: own.line[len(half) :] + " and on"}), own)
    assert (said.value, said.unit) == (1.0, "verbatim continuation")
    other = canary.measure(ScriptedModel({half: "something else"}), own)
    assert other.value == 0 and "shows nothing" in other.assumptions[0]
    assert canary.measure(ScriptedModel({}), own).status == "error"


def test_canaries_are_drawn_from_a_seed_in_the_form_of_a_guid():
    assert canary.drawn("seed", "a") == canary.drawn("seed", "a") != canary.drawn("seed", "b")
    drawn = [canary.drawn("seed", "a"), *canary.random_guids(50, 1)]
    assert len(set(drawn)) == 51 and all(canary.GUID.fullmatch(one) for one in drawn)


def test_every_suite_has_a_canary_of_its_own_in_readme_and_lock_and_in_no_prompt():
    guids = {}
    for name in declaration.names():
        own = declaration.read(declaration.find(name)).data["canary"]
        header, _, items = (declaration.find(name) / lock.FILE).read_text().partition("\n")
        line = canary.of_suite(name, own).line
        assert json.loads(header)["canary"] == line and f"- {line}\n" in freeze_suites.README.read_text()
        assert own not in items and "canary of" not in items
        guids[name] = own
    assert len(set(guids.values())) == len(guids)
    assert freeze_suites.README.read_text() == freeze_suites.readme()


def test_a_canary_may_be_added_to_a_frozen_suite_and_not_changed(tmp_path):
    text = """id: mine\nversion: 1.0.0\ntitle: t\ndescription: d\nmode: A3\ncontexts: [extraction]\nrequires: [generation]
legs: [{name: greedy}]\nparameters: {must_not: [x]}\ntrace: {strategy: none}\nminimum: 1\ngate: null
items: [{id: a, prompt: b}]\n"""
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    assert freeze_suites.main([str(tmp_path)]) == 0
    before = declaration.load(tmp_path)
    path.write_text(f"{text}canary: {GUID}\n")
    with pytest.raises(UserError, match="the canary was edited without a new version"):
        declaration.load(tmp_path)
    assert freeze_suites.main([str(tmp_path)]) == 0
    after = declaration.load(tmp_path)
    assert (after.sha256, before.canary, after.canary) == (before.sha256, None, GUID)
    path.write_text(f"{text}canary: {GUID.replace('1b4e', '2c5f')}\n")
    assert freeze_suites.main([str(tmp_path)]) == 2
    path.write_text(f"{text}canary: no guid\n")
    with pytest.raises(UserError, match="canary"):
        declaration.read(tmp_path)
    assert "canary" in schema.published("suite")["properties"]


# --- 193 -------------------------------------------------------------------------------------------------------------


def test_sign_flips_of_six_gaps():
    gaps = [0.3, 0.1, 0.25, -0.05, 0.2, 0.15]
    found = loss_gap.sign_flips(gaps)
    assert found.value == pytest.approx(0.158333, abs=5e-7) and found.p_value == 0.03125
    from suites.statistics import permutation

    assert permutation.paired_difference([0] * 6, gaps, seed=0).p_value == 0.0625
    assert loss_gap.mean_gap(gaps).status == "insufficient_data"  # 20 are needed


def test_pairs_of_a_cluster_flip_together():
    """Two copies of each of four gaps are as much as four: the smallest one-sided p is 1/16, not 1/256."""
    found = loss_gap.sign_flips([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0], ["a", "a", "b", "b", "c", "c", "d", "d"])
    assert (found.p_value, found.value, found.n) == (1 / 16, 2.5, 8)


def pairs(count, prefix="item"):
    return [
        Reworded(f"{prefix}{k}", f"the {prefix} {k} stands on a hill", f"on a hill the {prefix} {k} stands", f"{k}")
        for k in range(count)
    ]


def test_originals_that_were_read_stand_out_beyond_a_reference_and_beyond_fresh_ones():
    own, fresh = pairs(24), pairs(24, "fresh")
    model = Reader([pair.original for pair in own])
    found = loss_gap.measure(model, own, Reader([]), fresh)
    assert found.gap.value == pytest.approx(5 / 8, abs=0.05)  # 5 nats over 8 tokens
    assert found.beyond_reference.value == pytest.approx(5 / 8) and found.beyond_reference.p_value < 0.001
    assert found.beyond_fresh.value == pytest.approx(5 / 8, abs=0.05) and found.beyond_fresh.p_value < 0.001
    assert found.beyond_both.value == pytest.approx(5 / 8, abs=0.05) and found.beyond_both.p_value < 0.001
    low, high = found.beyond_fresh.ci.low, found.beyond_fresh.ci.high
    assert 0.5 < low < found.beyond_fresh.value < high < 0.75
    assert found.descriptive is None and found.gap.ci is None  # all gaps are alike, and nats are no share
    varied = loss_gap.mean_gap([0.5 + 0.01 * k for k in range(24)])
    assert varied.ci.low == pytest.approx(0.615 - 1.96 * 0.01 * math.sqrt((24**2 - 1) / 12 / 24), abs=0.003)
    alone = loss_gap.measure(model, own)
    assert alone.descriptive == loss_gap.ALONE and alone.beyond_reference is alone.beyond_both is None


class Liking:
    """A model that likes one form better than the other by so many nats a token, and some pairs more than others."""

    capabilities = frozenset({"logprobs"})

    def __init__(self, form: float, seed: int, noise: float = 0.0):
        self.form, self.noise, self.rng = form, noise, np.random.default_rng(seed)

    def loglikelihood(self, pairs):
        for place, (first, rest) in enumerate(pairs):
            n = len(rest.split())
            own = np.random.default_rng(zlib.crc32((first + rest).encode())).normal() + self.noise * self.rng.normal()
            yield Likelihood(n * (-5 + own / 2 + (0 if place % 2 else self.form)), False, n)


def test_a_form_that_one_model_likes_is_no_excess_beyond_both():
    """It moves all pairs of that model alike: beyond the reference it looks like contamination, beyond both it does not."""
    beyond = {"reference": 0, "both": 0}
    for seed in range(100):
        own, fresh = pairs(24, f"item{seed}"), pairs(24, f"fresh{seed}")
        found = loss_gap.measure(Liking(1.0, seed, 0.3), own, Liking(0.0, seed, 0.3), fresh, seed)
        beyond["reference"] += found.beyond_reference.p_value <= 0.05
        beyond["both"] += found.beyond_both.p_value <= 0.05
    assert beyond["reference"] == 100 and 1 <= beyond["both"] <= 11  # of a binomial of 100 at .05, 99 %


def test_pairs_of_a_cluster_are_relabelled_together():
    """Ten copies of each of two gaps on either side are as much as two: 6 relabellings, so the smallest p is 1/6."""
    old, fresh = [1.0] * 10 + [2.0] * 10, [-1.0] * 10 + [-2.0] * 10
    clusters = (["a"] * 10 + ["b"] * 10, ["a"] * 10 + ["b"] * 10)
    found = loss_gap.beyond_fresh(old, fresh, clusters)
    assert (found.value, found.p_value, found.ci) == (pytest.approx(3.0), pytest.approx(1 / 6), None)
    apart = ([str(k) for k in range(20)],) * 2
    alone = loss_gap.beyond_fresh(old, fresh, apart)
    assert alone.p_value < 0.001 and alone.ci.low == pytest.approx(3 - 1.96 * math.sqrt(2 * 0.25 / 20), abs=0.02)
    reversed_ = loss_gap.beyond_fresh(fresh, old, apart)
    assert reversed_.p_value > 0.99  # one-sided


def test_lengths_that_differ_are_left_out_and_few_pairs_are_insufficient():
    own = [*pairs(19), Reworded("long", "one two three four", "one two three four five six", "long")]
    found = loss_gap.measure(Reader([]), own, Reader([]), pairs(30))
    assert (found.gap.status, found.gap.n) == ("insufficient_data", 19)
    assert found.gap.excluded == {"length differs": 1} and found.beyond_fresh is None
    few = loss_gap.measure(Reader([]), pairs(20), None, pairs(5)).beyond_fresh
    assert few.status == "insufficient_data" and "20 pairs and 5 fresh ones" in few.reason


@pytest.mark.parametrize(("words", "kept"), [(7, False), (8, True), (12, True), (13, False)])
def test_a_paraphrase_has_from_four_fifths_to_five_quarters_of_the_words(words, kept):
    original, other = " ".join("abcdefghij"), " ".join("klmnopqrstuvw"[:words])
    assert loss_gap.fits(Reworded("x", original, other, "x")) is kept


def test_a_paraphrase_of_exactly_five_quarters_counts():
    assert loss_gap.fits(Reworded("x", "a b c d", "e f g h i", "x")) and loss_gap.fits(
        Reworded("x", "a b c d e", "f g h i", "x")
    )


def test_a_suite_s_own_rewordings_are_its_pairs():
    items = [
        Item("a", "Mary gave the ring to", cluster="m"),
        Item("a-other", "It is Mary who gave the ring to", variant=ItemVariant("template", "a")),
        Item("a-like", "The ring Mary gave to", variant=ItemVariant("template", "a")),
        Item("a-typo", "Mray gave the ring to", variant=ItemVariant("char_swap", "a")),
    ]
    assert loss_gap.of_suite(suite(items)) == [Reworded("a", items[0].prompt, items[2].prompt, "m")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"item": "a"}', "line 1 is no pair"),
        ("[1]", "line 1 is no pair"),
        ('{"item": "a", "original": "x", "paraphrase": 3}', "line 1 has a value that is no text"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, text, said):
    path = tmp_path / "pairs.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        loss_gap.read(path)


# --- 191 and 192 -----------------------------------------------------------------------------------------------------


def test_the_place_of_an_overlap_is_the_first_one(tmp_path):
    words = [f"w{k}" for k in range(30)]
    (tmp_path / "a.txt").write_text("x y z " + " ".join(words[:20]))
    (tmp_path / "b.jsonl").write_text('{"t": "q"}\n\n' + json.dumps({"t": "p " + " ".join(words[15:])}) + "\n")
    found = overlap.overlap({"one": " ".join(words[:13]), "two": " ".join(words[16:]), "no": "n " * 9}, tmp_path).items
    assert [item.place for item in found] == [
        overlap.CorpusPlace("a.txt", None, 3),
        overlap.CorpusPlace("b.jsonl", 3, 2),
        None,
    ]
    assert found[0].gram == " ".join(words[:13]) and found[2].gram is None
    whole = overlap.overlap({"s one": " ".join(words[:13]), "t two": "n " * 9}, tmp_path)
    part = overlap.part(whole, {"t two": "two"})
    assert [item.item for item in part.items] == ["two"] and (part.flagged.value, part.documents) == (0.0, 3)


def test_the_labelled_pairs_set_the_threshold():
    kinds = [kind for kind, _, _ in passages.labelled()]
    assert (kinds.count("duplicate"), kinds.count("other")) == (40, 40)
    limit = passages.threshold()
    sides = {kind: [] for kind in set(kinds)}
    for kind, first, second in passages.labelled():
        sides[kind].append(overlap.jaccard(overlap.shingles(first), overlap.shingles(second)))
    assert limit.value in sides["duplicate"]
    assert limit.sensitivity.value == sum(x >= limit.value for x in sides["duplicate"]) / 40
    assert limit.specificity.value == sum(x < limit.value for x in sides["other"]) / 40


def test_passages_are_lines_blocks_and_records_cut_to_the_longest_item(tmp_path):
    (tmp_path / "a.md").write_text("one two\nthree\n\nfour five six seven eight\n")
    (tmp_path / "b.jsonl").write_text('{"t": ["nine", "ten"]}\n')
    found = [(one.text, one.file, one.line) for one in passages.of_corpus(tmp_path, 4)]
    assert found == [
        ("one two", "a.md", 1), ("three", "a.md", 2), ("one two\nthree", "a.md", 1), ("four five six seven", "a.md", 4),
        ("six seven eight", "a.md", 4), ("nine", "b.jsonl", 1), ("ten", "b.jsonl", 1),
    ]  # fmt: skip
    assert passages.count(tmp_path, 4, 3) == 4 and passages.count(tmp_path, 4, 100) == 7


def test_near_duplicates_are_found_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "CHUNK", 2)
    item = "the old clock in the town hall loses three minutes every day of the year"
    near = item.replace("town", "city")
    (tmp_path / "a.txt").write_text(f"nothing here\nmore of it\n{near}\n{item}\n")
    (tmp_path / "b.txt").write_text("another text that is about other things in other words than those")
    found = passages.near_duplicates({"x": item, "short": "a b c"}, tmp_path)
    by_line = {pair.passage.line: pair.jaccard for pair in found.pairs if "\n" not in pair.passage.text}
    # 15 words have 11 shingles; a changed word is in five of them: 6 are shared of 16
    assert by_line[4] == 1.0 and 3 not in by_line and passages.threshold().value > 6 / 16
    assert found.flagged.value == 1.0 and found.flagged.excluded == {"under 5 tokens": 1}
    assert not found.embedded and found.pairs[0].cosine is None
    embedded = passages.near_duplicates({"x": item}, tmp_path, lambda texts: [[1.0, 0.0]] * len(texts))
    assert {pair.cosine for pair in embedded.pairs} == {1.0} and len(embedded.pairs) == passages.KEPT


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("the red hill", ("the", " red hill")),
        ("Question:\nWhat is x?", ("Question:", "\nWhat is x?")),
        ("one\ttwo  three ", ("one", "\ttwo  three")),
        ("天地玄黄", ("天", "地玄黄")),
    ],
)
def test_the_first_word_of_a_loss_ends_at_white_space_of_any_kind(text, asked):
    class Asked:
        def loglikelihood(self, pairs):
            assert pairs == [asked]
            return [Likelihood(-6.0, False, 3)]

    assert loss_gap.losses(Asked(), [text]) == [2.0]


def test_the_files_of_a_corpus_that_hold_a_canary_are_named(tmp_path):
    guids = {"one": "a9b38f20-0c1d-4e5f-8a9b-0c1d2e3f4a5b", "two": "b9b38f20-0c1d-4e5f-8a9b-0c1d2e3f4a5b"}
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text(f"words\n... canary of one {guids['one'].upper()} more\n")
    (tmp_path / "below" / "b.jsonl").write_text(f'{{"text": "canary of one {guids["one"]}"}}\n')
    (tmp_path / "c.md").write_text(guids["two"][:-1])
    assert canary.files_with(tmp_path, guids) == {"one": ("a.txt", "below/b.jsonl"), "two": ()}


def test_one_original_counts_once_and_is_not_both_known_and_fresh(tmp_path):
    """Twenty copies of one pair would be the fewest that are tested; a fresh pair that is an item would hide what was read."""
    line = '{{"item": "i{0}", "original": "{1}", "paraphrase": "we go home by {2} train"}}\n'
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(line.format(k, ("The  train home!", "the train home")[k % 2], k) for k in range(20)))
    with pytest.raises(UserError, match="line 2 has the original of line 1 again"):
        loss_gap.read(path)
    one, same, other = (
        loss_gap.Reworded(*texts, "c")
        for texts in (("a", "the red cat", "x"), ("b", "The red cat.", "y"), ("c", "the red dog", "z"))
    )
    with pytest.raises(UserError, match="the fresh pair 'b' has the text of the item 'a'"):
        loss_gap.require_apart([one], [other, same])
    loss_gap.require_apart([one], [other])


def test_pairs_left_out_are_counted_in_every_comparison():
    """Of 24 old and 23 fresh pairs one each is too long; 3 and 2 were left out before, since the model cannot read them."""
    old = [loss_gap.Reworded(f"o{k}", f"old {k} a b", f"b a old {k}", f"o{k}") for k in range(23)]
    new = [loss_gap.Reworded(f"n{k}", f"new {k} a b", f"b a new {k}", f"n{k}") for k in range(22)]
    too_long = loss_gap.Reworded("x", "a b c", "a b c d e f g h", "x")
    model, reference = Reader([]), Reader([])
    found = loss_gap.measure(model, [*old, too_long], reference, [*new, too_long], unread=(3, 2))
    of_old = {"length differs": 1, "the model cannot read it": 3}
    both = {**of_old, "fresh: length differs": 1, "fresh: the model cannot read it": 2}
    assert found.gap.excluded == found.beyond_reference.excluded == of_old
    assert found.beyond_fresh.excluded == found.beyond_both.excluded == both


def test_a_file_without_pairs_is_refused(tmp_path):
    (path := tmp_path / "pairs.jsonl").write_text("")
    with pytest.raises(UserError, match="has no pairs; write one a line, or leave the setting out"):
        loss_gap.read(path)


def test_beyond_both_finds_what_the_hardness_of_pairs_hides_from_beyond_fresh():
    """Pairs differ by more than what was read, alike for both models: the difference of two models shows it."""
    read, beyond = 0.3, {"fresh": 0, "both": 0}
    for seed in range(40):
        own, fresh = pairs(24, f"item{seed}"), pairs(24, f"fresh{seed}")
        known = {pair.original for pair in own}

        class Knows(Liking):
            def loglikelihood(self, asked, known=known):
                for (first, rest), said in zip(asked, super().loglikelihood(asked), strict=True):
                    more = read * said.n_tokens * (first + rest in known)
                    yield Likelihood(said.logprob + more, False, said.n_tokens)

        found = loss_gap.measure(Knows(0.0, seed, 0.3), own, Liking(0.5, seed + 1000, 0.3), fresh, seed)
        assert found.beyond_both.value == pytest.approx(read, abs=0.35)  # 4 standard errors of .087
        beyond["fresh"] += found.beyond_fresh.p_value <= 0.05
        beyond["both"] += found.beyond_both.p_value <= 0.05
    assert beyond["both"] >= 34 and beyond["fresh"] <= 26, beyond
