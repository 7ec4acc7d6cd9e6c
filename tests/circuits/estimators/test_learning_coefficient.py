"""The LLC estimator against closed forms, numerical integration, and what it must refuse to estimate."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from scipy import stats

from circuits.estimators import learning_coefficient as llc
from circuits.estimators.learning_coefficient import Posterior, Sampling
from results_io import UserError

SETTINGS = {
    "seed": 0,
    "gamma": 1.0,
    "chains": 32,
    "batch": 1,
    "burn_in": 200,
    "draws": 600,
    "pilot": 40,
    "step": 0.5,
    "halvings": 12,
    "acceptance": 0.99,
    "escape": 10.0,
    "r_hat": 1.1,
    "width": 0.2,
    "relative_width": 0.5,
    "trace_points": 50,
}


def sampling(**change) -> Sampling:
    return Sampling.of({**SETTINGS, **change})


def population(loss, n_parameters: int, n: int = 1000, problems: tuple[str, ...] = ("one",)) -> Posterior:
    """A posterior whose rows all have the loss of the population, loss(w - w*) [chain]."""
    return Posterior(
        lambda displacement, rows, problem: loss(displacement)[:, None].expand(-1, rows.shape[1]),
        torch.zeros(n, dtype=torch.float64),
        n_parameters,
        problems,
    )


def linear_gaussian(n_parameters: int, n: int, noise: float = 1.0) -> tuple[Posterior, torch.Tensor, torch.Tensor]:
    """Least squares at its minimum, the eigenvalues of its Hessian, and the variance of a row's gradient along each."""
    generator = torch.Generator().manual_seed(n_parameters)
    inputs, error = (torch.randn(n, size, generator=generator, dtype=torch.float64) for size in (n_parameters, 1))
    target = inputs.sum(1) + noise * error[:, 0]
    residual = target - inputs @ torch.linalg.lstsq(inputs, target[:, None]).solution[:, 0]

    def losses(displacement, rows, problem):
        return (residual[rows] - torch.einsum("crd,cd->cr", inputs[rows], displacement)).square() / 2

    posterior = Posterior(losses, residual.square() / 2, n_parameters, ("linear",))
    curvature, directions = torch.linalg.eigh(inputs.T @ inputs / n)
    return posterior, curvature, (residual[:, None] * inputs @ directions).var(0)


def integrated(loss, posterior: Posterior, gamma: float) -> float:
    """E[n beta loss] over two parameters by numerical integration."""
    grid = np.linspace(-8, 8, 2001) / math.sqrt(gamma)
    first, second = np.meshgrid(grid, grid, indexing="ij", sparse=True)
    energy = posterior.n_beta * loss(first, second)
    density = np.exp(-energy - gamma / 2 * (first**2 + second**2))
    return float((energy * density).sum() / density.sum())


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("n_parameters", [2, 10, 40])
def test_a_regular_model_has_half_its_parameters(n_parameters: int) -> None:
    posterior, curvature, _ = linear_gaussian(n_parameters, n=200)
    plan = sampling(batch=200, chains=16, gamma=0.5, draws=400)
    (result,) = llc.estimate(posterior, plan)
    assert result.llc == pytest.approx(n_parameters / 2, rel=0.1)
    # and what the localiser and the step size make of it, exactly
    k, delta = posterior.n_beta * curvature / plan.gamma, result.step_size * plan.gamma / 2
    expected = float((k / (1 + k) * (1 - delta / 2) / (1 - delta * (1 + k) / 2)).sum() / 2)
    assert result.llc == pytest.approx(expected, abs=4 * result.standard_error)


@pytest.mark.slow
def test_minibatch_noise_widens_the_posterior_as_stated() -> None:
    n, batch = 300, 20
    posterior, curvature, variance = linear_gaussian(4, n, noise=3.0)
    plan = sampling(batch=batch, chains=16, gamma=0.5, draws=800)
    (result,) = llc.estimate(posterior, plan)
    k, delta = posterior.n_beta * curvature / plan.gamma, result.step_size * plan.gamma / 2
    noise = delta * k * posterior.n_beta * variance / (2 * curvature * batch) * (1 - batch / n)  # of distinct rows
    without = k / (1 + k) / 2
    expected = float((without * (1 - delta / 2 + noise) / (1 - delta * (1 + k) / 2)).sum())
    assert result.llc == pytest.approx(expected, abs=4 * result.standard_error)
    assert expected > 1.25 * float(without.sum())  # |b| below n beta and k large: the worst case


@pytest.mark.slow
def test_a_product_of_a_scalar_and_a_vector_has_one_half() -> None:
    """K = a^2 |b|^2 with b of three components: lambda = 1/2 of multiplicity 1 against d/2 = 2 (Aoyagi, Watanabe 2005)."""
    assert aoyagi_watanabe(1, 1, 3, rank=0) == (0.5, 1)
    posterior = population(lambda w: w[:, 0].square() * w[:, 1:].square().sum(1), 4)
    (result,) = llc.estimate(posterior, sampling(gamma=4.0))
    assert result.llc == pytest.approx(0.5, rel=0.1)


@pytest.mark.slow
def test_a_rank_deficient_product_of_matrices_has_its_closed_form() -> None:
    """Two 3 x 3 matrices whose true product has rank 1: lambda = 4, where d/2 is 9 and the product has 9 entries."""
    assert aoyagi_watanabe(3, 3, 3, rank=1) == (4.0, 1)
    truth = torch.zeros(3, 3, dtype=torch.float64)
    truth[0, 0] = 1

    def loss(w):
        left, right = (part.reshape(-1, 3, 3) + truth for part in w.chunk(2, 1))
        return (left @ right - truth).square().sum((1, 2)) / 2

    (result,) = llc.estimate(population(loss, 18), sampling(acceptance=0.98, burn_in=500, draws=1000))
    assert result.llc == pytest.approx(4.0, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [lambda a, b: (a * b) ** 2, lambda a, b: a**2 * b**4],
    ids=["product of two scalars", "normal crossing"],
)
def test_singular_models_of_two_parameters_agree_with_numerical_integration(loss) -> None:
    """lambda is 1/2 with multiplicity 2, and 1/4; at this n their estimates are still (m - 1) / log(n beta) lower or so."""
    posterior = population(lambda w: loss(w[:, 0], w[:, 1]), 2)
    plan = sampling(gamma=2.0, chains=64)
    (result,) = llc.estimate(posterior, plan)
    expected = integrated(loss, posterior, plan.gamma)
    assert result.llc == pytest.approx(expected, rel=0.1)
    assert expected < 0.4  # far from the regular d/2 = 1


def aoyagi_watanabe(rows: int, hidden: int, columns: int, rank: int) -> tuple[float, int]:
    """(lambda, multiplicity) of reduced-rank regression, Aoyagi and Watanabe 2005, theorem 1."""
    m, h, n, r = rows, hidden, columns, rank
    if n + r <= m + h and m + r <= n + h and h + r <= m + n:
        common = -((h + r) ** 2) - m**2 - n**2 + 2 * (h + r) * (m + n) + 2 * m * n
        return (common / 8, 1) if (m + h + n + r) % 2 == 0 else ((common + 1) / 8, 2)
    if m + h < n + r:
        return (h * m - h * r + n * r) / 2, 1
    if n + h < m + r:
        return (h * n - h * r + m * r) / 2, 1
    return m * n / 2, 1


def test_the_walk_is_exact_where_the_localiser_rules() -> None:
    """With n beta h = gamma / 1000 the estimate is d k / 2; the plain noise of SGLD would make it a third too large."""
    gamma, size = 3.0, 2000
    posterior = population(lambda w: 0.5 * 1e-3 * w.square().sum(1), size)
    plan = sampling(gamma=gamma * posterior.n_beta, chains=8, draws=100)
    (result,) = llc.estimate(posterior, plan)
    assert result.step_size == 2 * plan.step / plan.gamma  # the first of the grid
    k = 1e-3 / gamma
    assert result.llc == pytest.approx(size * k / (1 + k) / 2, rel=0.01)


def test_a_slope_at_w_star_makes_the_estimate_negative() -> None:
    """L = g w is lowered by n beta |g|^2 / gamma on average, so w* was no minimum; the number is kept."""
    posterior = population(lambda w: 0.02 * w[:, 0], 3)
    (result,) = llc.estimate(posterior, sampling(gamma=2.0))
    assert result.llc == pytest.approx(-((posterior.n_beta * 0.02) ** 2) / 2, abs=4 * result.standard_error)
    assert result.llc < -10 * result.standard_error


def test_a_flat_loss_has_none() -> None:
    (result,) = llc.estimate(population(lambda w: 0 * w[:, 0], 50), sampling(chains=4, draws=10))
    assert (result.llc, result.standard_error, result.r_hat, result.effective_samples) == (0, 0, 1, 40)
    assert (result.acceptance, result.step_size, result.reason) == (pytest.approx(1), 1.0, None)
    assert result.trace == (0,) * 10


# --- choice of the step size ------------------------------------------------------------------------------------------


def test_the_metropolis_ratio_is_that_of_the_normal_transition() -> None:
    gamma, step = 2.0, 0.3
    u, v = torch.tensor([[0.4, -0.2]], dtype=torch.float64), torch.tensor([[0.1, 0.5]], dtype=torch.float64)
    energy = {name: 5 * w.pow(4).sum(1) for name, w in (("u", u), ("v", v))}
    gradient = {name: 20 * w.pow(3) for name, w in (("u", u), ("v", v))}
    spread = math.sqrt(step * (1 - step * gamma / 4))

    def log_target(name, w):
        return float(-energy[name] - gamma / 2 * w.square().sum())

    def log_step(to, at, name):
        mean = at - step / 2 * (gradient[name] + gamma * at)
        return stats.norm.logpdf(to, mean, spread).sum()

    expected = log_target("v", v) + log_step(u, v, "v") - log_target("u", u) - log_step(v, u, "u")
    ratio = llc._log_ratio((u, energy["u"], gradient["u"]), (v, energy["v"], gradient["v"]), step, gamma)
    assert float(ratio) == pytest.approx(expected, abs=1e-12)


def test_the_largest_accepted_step_is_chosen_for_each_problem_alone() -> None:
    stiffness = torch.tensor([1e-3, 0.1, 3.0], dtype=torch.float64)
    posterior = Posterior(
        lambda w, rows, problem: (stiffness[problem] * w.square().sum(1) / 2)[:, None],
        torch.zeros(1000, dtype=torch.float64),
        20,
        ("flat", "middle", "stiff"),
    )
    plan = sampling(acceptance=0.9)
    steps, acceptance = llc.choose_step_sizes(posterior, plan)
    grid = 2 * plan.step / plan.gamma / 2.0 ** np.arange(plan.halvings + 1)
    assert set(steps) <= set(grid)
    assert steps[0] == grid[0] > steps[1] > steps[2]
    assert (acceptance >= 0.9).all()
    for problem in (1, 2):
        assert llc._acceptance(posterior, plan, [problem], float(2 * steps[problem]))[0] < 0.9


@pytest.mark.slow
def test_the_widest_neighbourhood_in_which_enough_problems_accept_the_largest_step() -> None:
    stiffness = torch.tensor([1e-3, 0.01, 0.1, 3.0], dtype=torch.float64)

    def of(*problems: int) -> Posterior:
        own = stiffness[list(problems)]
        return Posterior(
            lambda w, rows, problem: (own[problem] * w.square().sum(1) / 2)[:, None],
            torch.zeros(1000, dtype=torch.float64),
            20,
            tuple(map(str, problems)),
        )

    plan, gammas = sampling(acceptance=0.9, halvings=0), (1.0, 10.0, 100.0, 1000.0, 10_000.0)

    def widest(share: float, *posteriors: Posterior) -> float:
        return llc.widest(posteriors, plan, gammas, share)[0].gamma

    alone = [widest(1.0, of(problem)) for problem in range(4)]
    assert alone == sorted(alone)
    assert alone[0] == 1 < alone[3]
    assert widest(1.0, of(0, 1), of(2, 3)) == widest(0.8, of(3, 2), of(1, 0)) == alone[3]
    assert widest(0.75, of(0, 1), of(2, 3)) == alone[2]
    assert widest(0.5, of(0, 1), of(2, 3)) == alone[1]
    k = 145 * stiffness.numpy() / np.array(alone)
    assert k.max() < 2  # where the largest step is accepted, no direction is much stiffer than the localiser
    narrowest, accepted = llc.widest([of(3)], plan, (1.0, 10.0), 1.0)  # none is enough
    assert narrowest == replace(plan, gamma=10.0)
    assert accepted[0] == llc.choose_step_sizes(of(3), narrowest)[1]


def test_a_known_acceptance_is_not_found_again() -> None:
    posterior, _, _ = linear_gaussian(4, n=200)
    plan = sampling(batch=200, chains=4, draws=20, acceptance=0.9, width=9.0, r_hat=9.0)
    _, accepted = llc.widest([posterior], plan, (1.0,), 1.0)
    assert llc.estimate(posterior, plan, accepted[0]) == llc.estimate(posterior, plan)
    (result,) = llc.estimate(posterior, plan, np.array([0.95]))  # a claim that is taken at its word
    assert (result.step_size, result.acceptance) == (plan.step_size(0), 0.95)


# --- what gives no number ---------------------------------------------------------------------------------------------


def test_steps_far_too_large_give_a_reason_and_no_number() -> None:
    posterior, _, _ = linear_gaussian(4, n=300)
    (result,) = llc.estimate(posterior, sampling(batch=300, chains=4, halvings=0))
    assert (result.llc, result.standard_error, result.step_size) == (None, None, None)
    assert result.chains == (None,) * 4
    assert result.reason == "no step size of the grid reaches an acceptance of 0.99: 0 at best"


def test_chains_that_leave_the_neighbourhood_give_a_reason_and_no_number() -> None:
    posterior, _, _ = linear_gaussian(4, n=300)
    (result,) = llc.estimate(posterior, sampling(batch=300, chains=4, halvings=0, acceptance=0.0))
    assert (result.llc, result.standard_error, result.r_hat, result.chains) == (None, None, None, (None,) * 4)
    assert result.reason == "4 of 4 chains left the neighbourhood of the minimum"


def test_a_loss_that_is_not_finite_somewhere_gives_no_number() -> None:
    posterior = population(lambda w: torch.where(w[:, 0] > 1.5, math.nan, 0 * w[:, 0]), 1)
    (result,) = llc.estimate(posterior, sampling(acceptance=0.0))
    assert result.llc is None
    assert 0 < sum(chain is None for chain in result.chains) <= 32
    assert result.reason.endswith("chains left the neighbourhood of the minimum")


@pytest.mark.slow
def test_chains_started_apart_that_stay_apart_give_no_number() -> None:
    """A second, higher valley behind a wall: chains started there never come back, and the estimate says so."""
    posterior = population(lambda w: torch.minimum(w[:, 0].square(), (w[:, 0] - 2).square() + 0.1) / 2, 1)
    (result,) = llc.estimate(posterior, sampling(gamma=0.3, chains=16, draws=200, acceptance=0.9))
    means = np.array(result.chains, dtype=float)
    assert means.max() > means.min() + posterior.n_beta * 0.1 / 2 - 1
    assert result.llc is None and result.standard_error is None
    assert result.reason == f"the chains disagree: R-hat {result.r_hat:.3g} is above 1.1"
    assert result.r_hat > 2


@pytest.mark.parametrize(("spread", "sound"), [(0.1, True), (1.0, False)])
def test_an_interval_over_chains_that_is_too_wide_gives_no_number(spread: float, sound: bool) -> None:
    noise = np.random.default_rng(0).normal(size=(4, 4000))
    trace = 30 * (noise - noise.mean(1, keepdims=True)) + 1 + spread * np.array([-1.5, -0.5, 0.5, 1.5])[:, None]
    result = llc.diagnose(trace, sampling(chains=4, width=0.5, relative_width=0.9), 0.1, 1.0)
    width = 2 * 3.182446 * spread * np.std([-1.5, -0.5, 0.5, 1.5], ddof=1) / 2
    assert result.r_hat < 1.01
    if sound:
        assert (result.llc, result.reason) == (pytest.approx(1.0), None)
        assert width < 0.9
    else:
        assert result.llc is None
        assert result.reason == f"the chains disagree: their 95% interval is {width:.3g} wide, more than 0.9"


# --- diagnostics ------------------------------------------------------------------------------------------------------


def autoregressive(rho: float, chains: int, draws: int) -> np.ndarray:
    noise = np.random.default_rng(1).normal(size=(chains, draws))
    trace = np.empty_like(noise)
    trace[:, 0] = noise[:, 0] / math.sqrt(1 - rho**2)
    for draw in range(1, draws):
        trace[:, draw] = rho * trace[:, draw - 1] + noise[:, draw]
    return trace


@pytest.mark.parametrize("rho", [0.3, 0.8, 0.95])
def test_effective_samples_of_an_autoregression(rho: float) -> None:
    trace = autoregressive(rho, chains=8, draws=5000)
    assert llc.effective_samples(trace) == pytest.approx(8 * 5000 * (1 - rho) / (1 + rho), rel=0.1)


def test_split_r_hat_by_its_definition() -> None:
    trace = autoregressive(0.5, chains=4, draws=1000)
    assert llc.split_r_hat(trace) == pytest.approx(1, abs=0.01)
    shifted = trace + 3 * np.arange(4)[:, None]
    halves = shifted.reshape(8, 500)
    within, between = halves.var(1, ddof=1).mean(), 500 * halves.mean(1).var(ddof=1)
    assert llc.split_r_hat(shifted) == pytest.approx(math.sqrt((499 / 500 * within + between / 500) / within))
    trend = trace + np.linspace(0, 9, 1000)  # all chains alike, but not stationary: only halves show it
    assert llc.split_r_hat(trend) > 1.5
    assert llc.split_r_hat(np.arange(4.0)[:, None] * np.ones(8)) == math.inf


def test_drift_and_trace() -> None:
    trace = autoregressive(0.0, chains=4, draws=100)
    result = llc.diagnose(trace, sampling(chains=4, trace_points=10, width=9.0), 0.1, 0.97)
    assert result.drift == pytest.approx(trace[:, 50:].mean() - trace[:, :50].mean())
    assert result.trace == pytest.approx(trace.mean(0).reshape(10, 10).mean(1))
    assert result.standard_error == pytest.approx(trace.mean(1).std(ddof=1) / 2)
    assert (result.step_size, result.acceptance) == (0.1, 0.97)


# --- reproducibility --------------------------------------------------------------------------------------------------


def hyperbolas(*problems: str) -> Posterior:
    """Problems that differ in steepness, by the length of their name; every row has its own minimum."""
    scale = torch.tensor([len(name) / 10 for name in problems], dtype=torch.float64)

    def losses(displacement, rows, problem):
        offset = (rows.double() / 1000 - 0.5) * 0.3
        return (1 + (scale[problem, None] * displacement.sum(1)[:, None] - offset) ** 2).sqrt()

    every = torch.arange(1000)[None]
    at_minimum = losses(torch.zeros(1, 3, dtype=torch.float64), every, torch.zeros(1, dtype=torch.long))[0]
    return Posterior(losses, at_minimum, 3, problems)


def test_seeds_reproduce_and_differ() -> None:
    short = {"draws": 20, "burn_in": 5, "chains": 4, "batch": 5, "acceptance": 0.95, "r_hat": 99, "width": 99}
    first, again, other = (llc.estimate(hyperbolas("a"), sampling(**short, seed=seed))[0] for seed in (3, 3, 4))
    assert asdict(first) == asdict(again)
    assert first.llc != other.llc


def test_a_problem_does_not_depend_on_its_company_or_place() -> None:
    short = sampling(draws=20, burn_in=5, chains=4, batch=5, acceptance=0.95, r_hat=99, width=99)
    together = llc.estimate(hyperbolas("a", "bb", "ccc"), short)
    turned = llc.estimate(hyperbolas("ccc", "a", "bb"), short)
    (alone,) = llc.estimate(hyperbolas("bb"), short)
    for one, other in zip((*turned, alone), (*(together[i] for i in (2, 0, 1)), together[1]), strict=True):
        assert one.chains == pytest.approx(other.chains, rel=1e-9)
        assert one.step_size == other.step_size
    assert len({each.llc for each in together}) == 3


def test_the_order_of_the_chains_does_not_matter() -> None:
    trace = autoregressive(0.5, chains=4, draws=200) + 1
    plan = sampling(chains=4, width=9.0)
    one, other = llc.diagnose(trace, plan, 0.1, 1.0), llc.diagnose(trace[[2, 0, 3, 1]], plan, 0.1, 1.0)
    for name in ("llc", "standard_error", "r_hat", "effective_samples", "drift"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12)
    assert [one.chains[i] for i in (2, 0, 3, 1)] == list(other.chains)


def test_chains_start_spread_from_the_minimum_to_a_draw_of_the_localiser() -> None:
    plan = sampling(chains=5, gamma=4.0)
    chains = llc._Chains(population(lambda w: w.sum(1), 40_000), plan, [0], "sample")
    distance = chains.position.norm(dim=1) / math.sqrt(40_000 / 4)
    assert distance.numpy() == pytest.approx([0, 0.25, 0.5, 0.75, 1.0], rel=0.02)


def test_minibatches_hold_distinct_rows_and_are_shared_by_problems() -> None:
    chains = llc._Chains(hyperbolas("a", "bb"), sampling(chains=3, batch=400), [0, 1], "sample")
    rows = chains.rows(7)
    assert rows.shape == (7, 6, 400)
    assert all(len(set(batch.tolist())) == 400 for step in rows for batch in step)
    assert torch.equal(rows[:, :3], rows[:, 3:])
    assert not torch.equal(rows[:, 0], rows[:, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chains": 1}, "chains=1 cannot sample a posterior; give at least 2"),
        ({"gamma": 0.0}, "gamma=0.0 does not localise the posterior"),
        ({"step": 1.5}, r"step=1.5 is outside the localiser's stable range; give one in \(0, 1\]"),
    ],
)
def test_settings_that_cannot_work(change, message) -> None:
    with pytest.raises(UserError, match=message):
        sampling(**change)


def test_a_minibatch_larger_than_the_rows_is_refused() -> None:
    with pytest.raises(UserError, match="a minibatch of 9 rows needs as many; there are 8, lower batch"):
        llc.estimate(population(lambda w: w.sum(1), 2, n=8), sampling(batch=9))


def test_settings_are_taken_by_name_from_a_larger_section() -> None:
    plan = Sampling.of({**SETTINGS, "prompts": 7})
    assert asdict(plan) == SETTINGS
    assert replace(plan, seed=1).seed == 1
