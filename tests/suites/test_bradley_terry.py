"""Bradley-Terry: hand-computed strengths, no estimate where there is none, and the coverage of its intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from results_io import UserError
from suites.statistics import bradley_terry

THREE = [[0, 30, 25], [10, 0, 22], [15, 18, 0]]


def items(wins):
    """One item a game: [item, winner, loser]."""
    rows = []
    for i, row in enumerate(wins):
        for j, count in enumerate(row):
            for _ in range(count):
                game = np.zeros((len(wins), len(wins)))
                game[i, j] = 1
                rows.append(game)
    return np.array(rows)


def test_two_systems():
    found = bradley_terry.fit([[0, 30], [20, 0]])
    difference, error = found.difference(0, 1)
    assert (difference, error) == pytest.approx((0.405465, 0.288675), abs=5e-7)
    assert difference * bradley_terry.ELO == pytest.approx(70.4365, abs=5e-5)


def test_three_systems():
    found = bradley_terry.fit(THREE)
    assert found.strengths == pytest.approx([0.525677, -0.280326, -0.245350], abs=1e-6)
    errors = [found.difference(*pair)[1] for pair in ((0, 1), (0, 2), (1, 2))]
    assert errors == pytest.approx([0.275511, 0.274677, 0.264504], abs=5e-7)


def test_a_cycle_has_equal_strengths_and_is_all_cyclic():
    wins = [[0, 10, 0], [0, 0, 10], [10, 0, 0]]
    assert bradley_terry.fit(wins).strengths == pytest.approx([0, 0, 0], abs=1e-12)
    assert bradley_terry.cyclic_triples(wins).value == 1
    assert bradley_terry.cyclic_triples(THREE).value == 0
    assert bradley_terry.cyclic_triples([[0, 5], [5, 0]]).status == "undefined"
    found = bradley_terry.deviance(wins, [0, 0, 0])
    assert found.value == pytest.approx(2 * 30 * math.log(2)) and found.p_value < 1e-8


@pytest.mark.parametrize(
    ("wins", "reason"),
    [
        ([[0, 10], [0, 0]], "2 of 2 systems won or lost everything"),
        ([[0, 5, 0, 0], [5, 0, 0, 0], [0, 0, 0, 5], [0, 0, 5, 0]], "2 groups that never met"),
        ([[0, 5, 1, 1], [5, 0, 1, 1], [0, 0, 0, 5], [0, 0, 5, 0]], "a group of systems won everything"),
    ],
)
def test_no_estimate_where_none_is_finite(wins, reason):
    assert reason in bradley_terry.why_undefined(wins)
    with pytest.raises(UserError, match="no finite estimate"):
        bradley_terry.fit(wins)
    games = np.array([wins] * 20, dtype=float)
    found = bradley_terry.rank(games, [str(k) for k in range(len(wins))], resamples=1000)
    assert {one.status for one in found.strengths.values()} == {"undefined"}
    assert set(found.ranks.values()) == {(1, len(wins))}


def test_half_a_win_each_way_is_an_option_with_its_label():
    table = bradley_terry.with_half_wins([[0, 10], [0, 0]])
    assert bradley_terry.fit(table).difference(0, 1)[0] == pytest.approx(3.044522, abs=5e-7)
    found = bradley_terry.rank(items([[0, 30], [0, 0]]), ["a", "b"], resamples=1000, half_wins=True)
    assert any("half a win" in said for said in found.differences["a", "b"].assumptions)
    assert found.ranks == {"a": (1, 1), "b": (2, 2)}


def test_ranks_are_sets():
    close = bradley_terry.rank(items(THREE), ["a", "b", "c"], resamples=2000)
    assert close.ranks == {"a": (1, 1), "b": (2, 3), "c": (2, 3)}
    assert close.elo["a"].value == pytest.approx(0.525677 * bradley_terry.ELO, abs=1e-3)
    few = bradley_terry.rank(items([[0, 6], [4, 0]]), ["a", "b"], resamples=1000)
    assert few.differences["a", "b"].ci is None and few.ranks["a"] == (1, 2)


def test_the_order_of_games_does_not_matter():
    """Online Elo would end elsewhere: in `items` all games that a won come first."""
    games = items(THREE)
    shuffled = games[np.random.default_rng(0).permutation(len(games))]
    for order in (games, games[::-1], shuffled):
        found = bradley_terry.rank(order, ["a", "b", "c"], resamples=1000)
        strengths = [found.strengths[name].value for name in "abc"]
        assert strengths == pytest.approx([0.525677, -0.280326, -0.245350], abs=1e-6)
        assert found.wins.tolist() == THREE


def test_the_deviance_has_a_degree_of_freedom_for_every_pair_beyond_those_that_strengths_use():
    """Chances of 1/2 in both. Three pairs of 2 to 1: 6 (2 log 4/3 + log 2/3). Six pairs of 3 to 1: 12 (3 log 3/2 + log 1/2)."""
    three = bradley_terry.deviance([[0, 2, 1], [1, 0, 2], [2, 1, 0]], [0, 0, 0])
    assert (three.value, three.detail["degrees_of_freedom"]) == (pytest.approx(1.019394, abs=5e-7), 1)
    assert three.p_value == pytest.approx(math.erfc(math.sqrt(three.value / 2)))
    four = bradley_terry.deviance([[0, 3, 3, 3], [1, 0, 3, 3], [1, 1, 0, 3], [1, 1, 1, 0]], [0] * 4)
    assert (four.value, four.detail["degrees_of_freedom"]) == (pytest.approx(6.278977, abs=5e-6), 3)
    tail = math.erfc(math.sqrt(four.value / 2)) + math.sqrt(2 * four.value / math.pi) * math.exp(-four.value / 2)
    assert four.p_value == pytest.approx(tail)  # of chi-square with 3 degrees of freedom
    assert bradley_terry.deviance([[0, 2], [1, 0]], [0, 0]).status == "undefined"


def test_differences_are_corrected_by_holm():
    found = bradley_terry.rank(items(THREE), "abc", resamples=2000)
    by_size = sorted(found.differences, key=lambda pair: found.differences[pair].p_value)
    p = [found.differences[pair].p_value for pair in by_size]
    second = max(3 * p[0], 2 * p[1])
    expected = [3 * p[0], second, max(second, p[2])]
    assert [found.adjusted[pair] for pair in by_size] == pytest.approx(expected)
    assert p[0] < p[1] < p[2] < 1 and second > 1.5 * p[1]  # Benjamini-Hochberg would give at most 3/2 of the second


@pytest.mark.parametrize(("losses", "shown"), [(5, True), (3, False)])
def test_there_is_no_interval_where_more_than_one_resample_in_a_hundred_has_no_estimate(losses, shown):
    """A resample of 20 games without one of the `losses` has no finite estimate: .3 % of them with 5, 3.9 % with 3."""
    found = bradley_terry.rank(items([[0, 20 - losses], [losses, 0]]), "ab", resamples=4000).differences["a", "b"]
    lost = found.detail["resamples_without_estimate"]
    expected = 4000 * (1 - losses / 20) ** 20
    assert lost == pytest.approx(expected, abs=4 * math.sqrt(expected))
    assert (found.ci is not None, found.p_value is not None) == (shown, shown)
    assert (f"no interval: {lost} of 4000 resamples have no finite estimate" in found.assumptions) is not shown


def test_wrong_tables_are_refused():
    with pytest.raises(UserError, match="square table"):
        bradley_terry.fit([[0, 1]])
    with pytest.raises(UserError, match="999 resamples"):
        bradley_terry.rank(items(THREE), "abc", resamples=999)
    with pytest.raises(UserError, match=r"expected \[item, system, system\]"):
        bradley_terry.rank(np.zeros((3, 2, 2)), "abc")


@pytest.mark.slow
def test_intervals_of_differences_cover_where_one_item_is_in_many_pairs():
    """Each item favours one of four systems by a shock of its own, so that its six games depend on each other."""
    rng, hits = np.random.default_rng(3), 0
    for replicate in range(200):
        games = np.zeros((80, 4, 4))
        for game in games:
            shock = rng.normal(0, 1, 4)
            for i in range(4):
                for j in range(i):
                    won = rng.random() < 1 / (1 + math.exp(-(shock[i] - shock[j])))
                    game[(i, j) if won else (j, i)] = 1
        found = bradley_terry.rank(games, "abcd", seed=replicate, resamples=1000)
        interval = found.differences["a", "b"].ci
        hits += interval.low <= 0 <= interval.high
    assert 180 <= hits <= 198  # of 190 expected
