"""oCSE and its two estimators against closed forms, brute-force twins, known networks and their own error rates."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy import stats
from scipy.spatial import cKDTree
from scipy.special import digamma

from circuits.estimators import causation_entropy as oce
from results_io import UserError

ALPHA = 0.05


def gaussian(features, target, *, seed=0, permutations=199, clusters=None, weights=None, noise=0.0, alpha=ALPHA):
    n = len(target)
    orders = oce.exchangeable_orders(
        [str(row) for row in range(n)] if clusters is None else clusters, permutations, seed
    )
    weights = np.ones(n) if weights is None else weights
    return oce.Gaussian(features, target, weights, orders, alpha, noise, resolution=1e-6, residual_freedom=5)


def nearest(features, target, *, seed=0, permutations=39, neighbours=10, most_given=4, alpha=ALPHA):
    orders = oce.exchangeable_orders([str(row) for row in range(len(target))], permutations, seed)
    return oce.NearestNeighbour(features, target, orders, alpha, 1e-6, neighbours, 5, most_given, seed)


def conditional_pair(n: int, n_given: int, r: float, rng: np.random.Generator):
    """Columns X, Z_1 ... Z_c and a target Y whose partial correlation with X given Z is r; Z moves both."""
    given = rng.standard_normal((n, n_given))
    common = given.sum(1) / np.sqrt(max(n_given, 1))
    x, e = rng.standard_normal((2, n))
    return np.column_stack([x + common, given]), r * x + np.sqrt(1 - r**2) * e + common


def nats(r: float) -> float:
    return -np.log(1 - r**2) / 2


# ---------------------------------------------------------------------------------------------------------------
# Conditional mutual information
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n_given", [0, 1, 3, 8])
@pytest.mark.parametrize("r", [0.0, 0.3, 0.6, 0.9])
def test_gaussian_information_is_the_closed_form(r, n_given) -> None:
    """Within three and a half standard errors, |r|/sqrt(n); without dependence n I is half a chi-square."""
    n = 4000
    features, target = conditional_pair(n, n_given, r, np.random.default_rng([n_given, int(10 * r)]))
    value = gaussian(features, target).information([0], list(range(1, n_given + 1)))[0]
    assert value == pytest.approx(nats(r), abs=3.5 * r / np.sqrt(n) + 6 / n)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("r", [0.0, 0.7])
def test_gaussian_information_has_no_bias_where_the_plain_estimate_has(r) -> None:
    n, n_given, repeats = 40, 8, 1500
    values = []
    for repeat in range(repeats):
        features, target = conditional_pair(n, n_given, r, np.random.default_rng(repeat))
        values.append(gaussian(features, target, permutations=1).information([0], list(range(1, n_given + 1)))[0])
    error = np.std(values) / np.sqrt(repeats)
    freedom = n - 1 - n_given
    plain_bias = np.log(freedom / (freedom - 1)) / 2
    assert np.mean(values) == pytest.approx(nats(r), abs=3.5 * error)
    assert plain_bias > 4 * error
    assert min(values) >= -plain_bias - 1e-12


def test_gaussian_information_is_the_log_ratio_of_determinants() -> None:
    """The other textbook form: 1/2 ln(|C_xz| |C_yz| / (|C_z| |C_xyz|)), less the correction of degrees of freedom."""
    features, target = conditional_pair(60, 3, 0.5, np.random.default_rng(0))
    covariance = np.cov(np.column_stack([features, target]).T)

    def log_determinant(*index):
        return np.linalg.slogdet(covariance[np.ix_(index, index)])[1]

    plain = log_determinant(0, 1, 2, 3) + log_determinant(1, 2, 3, 4)
    plain = (plain - log_determinant(1, 2, 3) - log_determinant(0, 1, 2, 3, 4)) / 2
    value = gaussian(features, target).information([0], [1, 2, 3])[0]
    assert value == pytest.approx(plain - np.log(56 / 55) / 2, abs=1e-10)


def test_an_error_of_measurement_bounds_the_information_of_a_determined_target() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((200, 3)) * [3.0, 1.0, 0.02]
    target = features.sum(1)
    estimator = gaussian(features, target, noise=0.01)
    full = estimator.information([0], [1, 2])[0]
    shares = np.var(features, axis=0, ddof=1) / target.var(ddof=1)
    assert full == pytest.approx(np.log((shares[0] + 0.01) / 0.01) / 2, abs=0.02)
    negligible = estimator.information([2], [0, 1])[0]
    assert negligible == pytest.approx(np.log1p(shares[2] / 0.01) / 2, abs=1e-3)
    assert negligible < 0.005 < 2 < full
    blurred = target + rng.standard_normal((200, 300)).T * np.sqrt(0.01 * target.var(ddof=1))
    drawn = [gaussian(features, y, permutations=1).information([0], [1])[0] for y in blurred]
    assert estimator.information([0], [1])[0] == pytest.approx(np.mean(drawn), abs=0.02)


def test_weights_are_repeated_rows() -> None:
    features, target = conditional_pair(50, 2, 0.5, np.random.default_rng(0))
    weights = np.random.default_rng(1).integers(1, 4, 50)
    repeated, y = np.repeat(features, weights, axis=0), np.repeat(target, weights)

    def left(*columns):
        design = np.column_stack([np.ones(len(y)), repeated[:, columns]])
        return np.square(y - design @ np.linalg.lstsq(design, y, rcond=None)[0]).sum()

    expected = np.log((left(1, 2) / 47) / (left(0, 1, 2) / 46)) / 2
    value = gaussian(features, target, weights=weights.astype(float)).information([0], [1, 2])[0]
    assert value == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("n_given", "r", "low", "high"),
    [
        (0, 0.6, -0.01, 0.02),
        (1, 0.6, -0.03, 0.01),
        (2, 0.6, -0.06, -0.02),
        (8, 0.6, -0.15, -0.11),
        (3, 0.0, -0.01, 0.01),
    ],
)
def test_nearest_neighbour_information_is_the_closed_form_less_its_stated_bias(n_given, r, low, high) -> None:
    """Mean of 12 data sets of 400 rows against nats(r) + [low, high], three standard errors beyond on either side."""
    values = []
    for repeat in range(12):
        features, target = conditional_pair(400, n_given, r, np.random.default_rng([repeat, n_given]))
        values.append(nearest(features, target).information([0], list(range(1, n_given + 1)))[0])
    slack = 3 * np.std(values, ddof=1) / np.sqrt(len(values))
    assert nats(r) + low - slack < np.mean(values) < nats(r) + high + slack
    assert slack < 0.045


@pytest.mark.parametrize("given", [[], [1], [1, 2, 3]])
def test_nearest_neighbour_information_is_that_of_a_k_d_tree(given) -> None:
    """Frenzel & Pompe's formula written with scipy's tree in place of matrices of distances."""
    n, k = 120, 4
    features, target = conditional_pair(n, 3, 0.7, np.random.default_rng(5))
    design = np.column_stack([np.ones(n), features[:, given]])

    def coordinate(values, column):
        residual = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
        return oce.normal_scores(residual, [0, column]).astype(np.float32)

    z = [oce.normal_scores(features[:, column], [0, column]).astype(np.float32) for column in given]
    x, y = coordinate(features[:, 0], 0), coordinate(target, 4)
    joint = np.column_stack([x, y, *z]).astype(float)
    radius = np.nextafter(cKDTree(joint).query(joint, k + 1, p=np.inf)[0][:, k], 0)

    def within(*coordinates):
        if not coordinates:
            return digamma(n)
        points = np.column_stack(coordinates).astype(float)
        return digamma(cKDTree(points).query_ball_point(points, radius, p=np.inf, return_length=True))

    expected = digamma(k) - np.mean(within(x, *z) + within(y, *z) - within(*z))
    value = nearest(features, target, neighbours=k).information([0], given)[0]
    assert value == pytest.approx(expected, abs=1e-9)


def test_fork_leaves_nothing_between_its_ends_given_the_middle() -> None:
    rng = np.random.default_rng(2)
    middle, a, b = rng.standard_normal((3, 400))
    features, target = np.column_stack([middle + 0.5 * a, middle]), middle + 0.5 * b
    for estimator, width in ((gaussian(features, target), 0.008), (nearest(features, target), 0.06)):
        assert estimator.information([0], [])[0] > 0.35
        assert estimator.information([0], [1])[0] == pytest.approx(0.0, abs=width)


def test_quadratic_dependence_is_seen_by_neighbours_and_missed_by_the_gaussian() -> None:
    rng = np.random.default_rng(3)
    features = rng.standard_normal((300, 4))
    target = features[:, 2] ** 2 + 0.3 * rng.standard_normal(300)
    assert gaussian(features, target).information([2], [])[0] < 0.01
    assert oce.select(gaussian(features, target), range(4)).columns == ()
    assert nearest(features, target).information([2], [])[0] > 0.4
    assert oce.select(nearest(features, target), range(4)).columns == (2,)


def test_units_do_not_matter() -> None:
    features, target = conditional_pair(80, 2, 0.5, np.random.default_rng(4))
    scaled, shifted = features * [0.1, 100.0, -7.0] + [5.0, -2e3, 0.0], 3 * target - 4
    for make in (gaussian, nearest):
        expected = make(features, target).information([0, 2], [1])
        assert make(scaled, shifted).information([0, 2], [1]) == pytest.approx(expected, abs=1e-9)
    bent = nearest(np.exp(features), target**3).information(range(3), [])
    assert np.array_equal(bent, nearest(features, target).information(range(3), []))


def test_columns_that_are_constant_or_determined_carry_nothing() -> None:
    rng = np.random.default_rng(5)
    a, b, e = rng.standard_normal((3, 100))
    features, target = np.column_stack([a, b, np.full(100, 3.0), 2 * a - b + 1]), a + b + 0.1 * e
    for estimator in (gaussian(features, target), nearest(features, target)):
        assert estimator.information([2], [])[0] == 0
        assert estimator.information([3], [0, 1])[0] == 0
        assert estimator.threshold([2, 3], [0, 1]) == 0
        assert (estimator.information([0, 1, 3], []) > 0.005).sum() >= 2


def test_a_target_that_is_determined_leaves_nothing_for_other_columns() -> None:
    """What is left of it is rounding, which says nothing."""
    features = np.random.default_rng(8).standard_normal((100, 4))
    target = features[:, 0] + 2 * features[:, 1]
    for estimator in (gaussian(features, target, noise=0.01), nearest(features, target)):
        assert estimator.information([2, 3], [0, 1]) == pytest.approx([0, 0], abs=1e-12)
        assert oce.select(estimator, range(4)).columns == (1, 0)


def test_ties_make_no_dependence() -> None:
    """Columns of two values each: ties broken alike in all columns would give information out of nothing."""
    features = np.random.default_rng(6).integers(0, 2, (400, 3)).astype(float)
    target = np.random.default_rng(7).integers(0, 2, 400).astype(float)
    assert np.abs(nearest(features, target).information(range(3), [])).max() < 0.06


# ---------------------------------------------------------------------------------------------------------------
# Recovery of known networks
# ---------------------------------------------------------------------------------------------------------------


def network(n: int, seed: int):
    """Y = 0.8 P + 0.6 Q - 0.5 S + e. Chain G -> P, fork F <- P, collider P -> C <- Q, and four that are unrelated.

    S is a suppressor: P contains it and Y subtracts it again, so that S and Y alone are nearly independent.
    """
    rng = np.random.default_rng(seed)
    g, q, s, e, f, c, p = rng.standard_normal((7, n))
    p = 0.5 * g + 0.6 * s + 0.6 * p
    y = 0.8 * p + 0.6 * q - 0.5 * s + 0.4 * e
    columns = {"P": p, "Q": q, "S": s, "G": g, "F": p + 0.6 * f, "C": p + q + 0.8 * c}
    noise = rng.standard_normal((n, 4))
    return np.column_stack([*columns.values(), noise]), y


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("make", "n"), [(partial(gaussian, alpha=0.01), 300), (partial(nearest, alpha=0.025), 400)])
def test_the_parents_of_a_linear_network_are_found(make, n) -> None:
    features, target = network(n, 0)
    estimator = make(features, target)
    selection = oce.select(estimator, range(10))
    assert set(selection.columns) == {0, 1, 2}
    score = oce.scores(estimator, selection.columns, 10)
    assert score[[0, 1, 2]].min() > 0.1
    assert np.abs(score[3:]).max() < 0.06 < 0.2 * estimator.information([0], [])[0] + 0.06
    assert estimator.information([2], [])[0] < 0.05  # the suppressor alone


@pytest.mark.slow
def test_the_parents_are_found_in_nearly_every_draw_of_the_network() -> None:
    """Three true parents always; one false positive in alpha of the draws, by three Monte Carlo standard errors."""
    extra = 0
    for seed in range(100):
        selection = oce.select(gaussian(*network(200, seed)), range(10))
        assert set(selection.columns) >= {0, 1, 2}
        extra += len(selection.columns) > 3
    assert extra / 100 < ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / 100)


@pytest.mark.parametrize("make", [gaussian, nearest])
def test_pruning_drops_the_proxy_that_came_first(make) -> None:
    """W = P + Q + noise tells most about Y = P + Q + e alone, and nothing once P and Q are known."""
    rng = np.random.default_rng(1)
    p, q, w, e = rng.standard_normal((4, 400))
    features, target = np.column_stack([p + q + 0.3 * w, p, q]), p + q + 0.3 * e
    selection = oce.select(make(features, target), range(3))
    assert selection.forward[0].column == 0
    assert [step.column for step in selection.forward] == [0, *selection.columns]
    assert sorted(selection.columns) == [1, 2]
    assert [step.column for step in selection.pruned] == [0]
    assert selection.pruned[0].information <= selection.pruned[0].threshold
    assert selection.rejected is None


def test_of_two_copies_one_is_selected_and_the_other_scores_nothing() -> None:
    rng = np.random.default_rng(2)
    x, other, e = rng.standard_normal((3, 100))
    estimator = gaussian(np.column_stack([x, other, -2 * x]), x + 0.5 * e)
    selection = oce.select(estimator, range(3))
    assert len(selection.columns) == 1 and selection.columns[0] in (0, 2)
    score = oce.scores(estimator, selection.columns, 3)
    assert sorted(score[[0, 2]]) == [0, pytest.approx(estimator.information([0], [])[0])]


def test_a_search_ends_at_the_largest_number_of_columns_to_condition_on() -> None:
    rng = np.random.default_rng(3)
    features = rng.standard_normal((200, 4))
    selection = oce.select(nearest(features, features.sum(1), most_given=2), range(4))
    assert len(selection.forward) == 2 and selection.rejected is None
    assert gaussian(features[:12], features[:12].sum(1)).most_given == 5


# ---------------------------------------------------------------------------------------------------------------
# Error rates of the permutation tests
# ---------------------------------------------------------------------------------------------------------------


def near_alpha(rate: float, repeats: int, alpha: float = ALPHA) -> bool:
    return abs(rate - alpha) < 3 * np.sqrt(alpha * (1 - alpha) / repeats)


@pytest.mark.slow
def test_false_positives_of_the_gaussian_search_over_many_columns_are_alpha() -> None:
    """20 independent columns, of which the best is tested: 64 % would pass a test that does not pay for choosing."""
    repeats, found, single = 400, 0, 0
    for repeat in range(repeats):
        rng = np.random.default_rng(repeat)
        features, target = rng.standard_normal((50, 20)), rng.standard_normal(50)
        estimator = gaussian(features, target, seed=repeat, permutations=99)
        found += len(oce.select(estimator, range(20)).forward) > 0
        single += estimator.information(range(20), []).max() > estimator.threshold([0], [])
    assert near_alpha(found / repeats, repeats)
    assert single / repeats > 0.5


@pytest.mark.slow
def test_false_positives_given_a_strong_parent_are_alpha() -> None:
    """The parent is always found; the other columns depend on it and on each other, not on the target given it."""
    repeats, extra = 400, 0
    for repeat in range(repeats):
        rng = np.random.default_rng(repeat)
        parent, common = rng.standard_normal((2, 50))
        others = 0.8 * parent[:, None] + 0.5 * common[:, None] + 0.5 * rng.standard_normal((50, 6))
        target = 2 * parent + rng.exponential(size=50)
        forward = oce.select(
            gaussian(np.column_stack([parent, others]), target, seed=repeat, permutations=99), range(7)
        ).forward
        assert forward[0].column == 0
        extra += len(forward) > 1
    assert near_alpha(extra / repeats, repeats)


@pytest.mark.slow
def test_whole_clusters_change_places_so_that_false_positives_stay_alpha() -> None:
    """Pairs of equal rows: permutations that tear them apart let 16.6 % pass, P(|t| > 1.96/sqrt(2))."""
    repeats, whole, torn = 400, 0, 0
    for repeat in range(repeats):
        rng = np.random.default_rng(repeat)
        features, target = np.repeat(rng.standard_normal((40, 1)), 2, 0), np.repeat(rng.standard_normal(40), 2)
        clusters = [str(row // 2) for row in range(80)]
        for name, labels in (("whole", clusters), ("torn", None)):
            estimator = gaussian(features, target, seed=repeat, permutations=99, clusters=labels)
            passed = estimator.information([0], [])[0] > estimator.threshold([0], [])
            whole, torn = whole + (passed and name == "whole"), torn + (passed and name == "torn")
    assert near_alpha(whole / repeats, repeats)
    assert near_alpha(torn / repeats, repeats, 0.166)


@pytest.mark.slow
def test_refits_on_bootstrap_resamples_keep_the_level_that_repeated_rows_would_lose() -> None:
    """Rows drawn with replacement carry their noise several times: as if they were distinct, 17 % would pass."""
    repeats, weighted, naive = 400, 0, 0
    for repeat in range(repeats):
        rng = np.random.default_rng(repeat)
        features, target = rng.standard_normal((60, 1)), rng.standard_normal(60)
        weights = oce.bootstrap_weights([str(row) for row in range(60)], [repeat, 1])
        assert weights.sum() == 60
        rows = np.flatnonzero(weights)
        again = np.repeat(np.arange(60), weights.astype(int))
        estimators = (
            gaussian(features[rows], target[rows], seed=repeat, permutations=99, weights=weights[rows]),
            gaussian(features[again], target[again], seed=repeat, permutations=99),
        )
        passed = [estimator.information([0], [])[0] > estimator.threshold([0], []) for estimator in estimators]
        weighted, naive = weighted + passed[0], naive + passed[1]
    assert near_alpha(weighted / repeats, repeats)
    assert near_alpha(naive / repeats, repeats, 0.166)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n_given", [0, 1, 4])
def test_false_positives_of_the_nearest_neighbour_search_are_not_above_alpha(n_given) -> None:
    """Three columns and the target share what is given, linearly, and nothing else."""
    repeats, alpha, found = 120, 0.1, 0
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, n_given])
        given = rng.standard_normal((100, n_given))
        common = 2 * given.sum(1) / np.sqrt(max(n_given, 1))
        features = np.column_stack([common[:, None] + rng.standard_normal((100, 3)), given])
        estimator = nearest(
            features, common + rng.standard_normal(100), seed=repeat, permutations=19, neighbours=5, alpha=alpha
        )
        conditioning = list(range(3, 3 + n_given))
        information = estimator.information(range(3), conditioning)
        found += information.max() > estimator.threshold(range(3), conditioning)
    assert found / repeats < alpha + 3 * np.sqrt(alpha * (1 - alpha) / repeats)
    assert found > 0


# ---------------------------------------------------------------------------------------------------------------
# Permutations, ranks, resamples
# ---------------------------------------------------------------------------------------------------------------


def test_exceeding_the_threshold_is_a_p_value_of_alpha() -> None:
    rng = np.random.default_rng(0)
    for n_null in (19, 20, 99, 199):
        null = rng.standard_normal(n_null)
        threshold = oce.upper_quantile(null, ALPHA)
        for value in [*null, *(null + 1e-9), threshold]:
            p = (1 + (null >= value).sum()) / (n_null + 1)
            assert (p <= ALPHA) == (value > threshold)


def test_too_few_permutations_are_refused() -> None:
    assert oce.upper_quantile(np.arange(19.0), 0.05) == 18
    with pytest.raises(UserError, match=r"18 permutations cannot give a p-value of 0\.05; ask for at least 19"):
        oce.upper_quantile(np.arange(18.0), 0.05)


def test_exchangeable_orders_move_clusters_whole_and_reach_every_place() -> None:
    clusters = ["a", "b", "b", "c", "d", "d", "e", "e", "e"]
    orders = oce.exchangeable_orders(clusters, 400, seed=0)
    assert orders.shape == (400, 9)
    assert (np.sort(orders, axis=1) == np.arange(9)).all()
    assert {tuple(sorted(order[[1, 2]])) for order in orders} == {(1, 2), (4, 5)}
    assert {tuple(order[[6, 7, 8]]) for order in orders} == {
        (a, b, c) for a in (6, 7, 8) for b in (6, 7, 8) for c in (6, 7, 8) if len({a, b, c}) == 3
    }
    assert set(orders[:, 0]) == {0, 3}
    assert np.mean(orders[:, 1] == 1) == pytest.approx(0.25, abs=0.07)
    assert np.array_equal(orders, oce.exchangeable_orders(clusters, 400, seed=0))
    assert not np.array_equal(orders, oce.exchangeable_orders(clusters, 400, seed=1))


def test_local_orders_take_one_of_the_nearest_rows_and_seldom_one_twice() -> None:
    values = np.random.default_rng(0).standard_normal(100)
    distance = np.abs(values[:, None] - values)
    orders = oce.local_orders(distance, 5, 50, np.random.default_rng(1))
    nearest_rows = np.argsort(distance, axis=1)[:, :5]
    assert (orders[:, :, None] == nearest_rows).any(2).all()
    distinct = np.mean([len(set(order)) for order in orders])
    assert 85 < distinct <= 100
    free = np.random.default_rng(2).integers(0, 5, (50, 100))  # without the rule: 1 - 1/e of the rows or so
    ruleless = np.mean([len({nearest_rows[row, pick] for row, pick in enumerate(picks)}) for picks in free])
    assert distinct > ruleless + 10
    everyone = oce.local_orders(distance, 100, 20, np.random.default_rng(1))
    assert (np.sort(everyone, axis=1) == np.arange(100)).all()


def test_normal_scores_are_normal_quantiles_of_ranks() -> None:
    scores = oce.normal_scores(np.array([3.0, -1.0, 10.0]), [0])
    assert scores == pytest.approx(stats.norm.ppf([0.5, 0.25, 0.75]))
    tied = oce.normal_scores(np.zeros(50), [0])
    assert sorted(tied) == pytest.approx(stats.norm.ppf(np.arange(1, 51) / 51))
    assert not np.array_equal(tied, oce.normal_scores(np.zeros(50), [1]))


@pytest.mark.parametrize("make", [gaussian, nearest])
def test_a_seed_gives_the_same_selection_again_and_another_seed_other_thresholds(make) -> None:
    features, target = network(120, 1)
    first, second, other = (oce.select(make(features, target, seed=seed), range(10)) for seed in (0, 0, 1))
    assert first == second
    assert first.forward[0].threshold != other.forward[0].threshold
    assert first.forward[0].column == other.forward[0].column
