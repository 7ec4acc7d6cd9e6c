"""Local learning coefficient (LLC) by stochastic-gradient Langevin dynamics, for any per-row loss.

Lau et al. 2023: for a minimum w* of L_n, the mean of n per-row losses, and an inverse temperature beta = 1 / log n,

    LLC = n beta (E[L_n(w)] - L_n(w*)),   w drawn from  p(w) ~ exp(-n beta L_n(w) - gamma/2 |w - w*|^2).

For a regular model it is half the number of parameters; flat and singular directions count less (Watanabe 2013).
SGLD (Welling and Teh 2011) draws w with gradients of minibatches b, from several chains:

    w <- w + (eps/2) (-n beta grad L_b(w) - gamma (w - w*)) + N(0, eps (1 - eps gamma / 4)).

The last factor makes the walk exact for a flat loss, whatever eps: it is then the Ornstein-Uhlenbeck process of the
localising Gaussian. For a direction of curvature h, with k = n beta h / gamma and delta = eps gamma / 2, these biases remain:

- localisation: the direction adds 1/2 k / (1 + k) instead of 1/2. Directions with n beta h far below gamma hardly count, so
  estimates are comparable only at the same gamma (`widest` chooses it for several problems together).
- discretisation: the variance is too large by the factor (1 - delta/2) / (1 - delta (1 + k) / 2). The step size is therefore
  the largest of a grid at which a Metropolis correction would accept nearly every step (`choose_step_sizes`).
- minibatch noise: adds the relative variance delta k n beta s / (2 h |b|), s the variance of a row's gradient in this
  direction (about h for a well-specified model). It is small if |b| is not far below n beta or if k is small.

The excess loss is taken on the same minibatch at w and at w*, which removes their common noise. If w* is not a local minimum
of L_n, the estimate can be negative; it is kept. Chains that disagree give no estimate: `diagnose` says why in `reason`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from results_io import UserError

# displacement [chain, parameter] from w*, rows [chain, row], problem [chain] -> losses [chain, row]
Losses = Callable[
    [Float[Tensor, "chain parameter"], Int[Tensor, "chain row"], Int[Tensor, " chain"]], Float[Tensor, "chain row"]
]
Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # as the built-in map
INTERVAL = 0.95  # of the interval over chains
LEAST = {"chains": 2, "batch": 1, "burn_in": 0, "draws": 4, "pilot": 2, "halvings": 0, "trace_points": 1}


@dataclass(frozen=True)
class Sampling:
    """How the posterior is sampled and what its traces must satisfy.

    `step` is the largest eps of the grid in units of the localiser's relaxation time 2/gamma. It is halved up to `halvings`
    times until the mean Metropolis acceptance of `pilot` steps reaches `acceptance`. A chain has diverged if its distance from
    w* exceeds `escape` times the localiser's radius. An estimate is null if split R-hat exceeds `r_hat`, or if its 95 %
    interval over chains is wider than both `width` and `relative_width` times the estimate.
    """

    seed: int
    gamma: float
    chains: int
    batch: int
    burn_in: int
    draws: int
    pilot: int
    step: float
    halvings: int
    acceptance: float
    escape: float
    r_hat: float
    width: float
    relative_width: float
    trace_points: int

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Sampling:
        """From a section of the configuration, which may have other keys. Raises UserError for a value that cannot work."""
        read = {field.name: (settings[field.name], field.type) for field in fields(cls)}
        values: dict[str, Any] = {
            name: float(value) if kind == "float" else value for name, (value, kind) in read.items()
        }
        sampling = cls(**values)
        for name, least in LEAST.items():
            if getattr(sampling, name) < least:
                raise UserError(f"{name}={getattr(sampling, name)} cannot sample a posterior; give at least {least}")
        if sampling.gamma <= 0:
            raise UserError(f"gamma={sampling.gamma} does not localise the posterior; give a positive precision")
        if not 0 < sampling.step <= 1:
            raise UserError(f"step={sampling.step} is outside the localiser's stable range; give one in (0, 1]")
        return sampling

    def step_size(self, halving: int) -> float:
        """The eps after `halving` halvings: 2 step / gamma / 2^halving."""
        return 2 * self.step / self.gamma / 2**halving


@dataclass(frozen=True, eq=False)
class Posterior:
    """The localised, tempered posteriors of one or several problems around their minima.

    `losses` takes displacements from w*; `at_minimum` has every row's loss at w*. Problems share the rows, the loss at w* and
    the number of parameters, as parts of one model do. Displacements may be in any fixed linear coordinates (with a unit for
    each parameter); gamma is the precision of the localiser in these coordinates.
    """

    losses: Losses
    at_minimum: Float[Tensor, " row"]
    n_parameters: int
    problems: tuple[str, ...]

    @property
    def n(self) -> int:
        return len(self.at_minimum)

    @property
    def n_beta(self) -> float:
        """n / log n."""
        return self.n / math.log(self.n)

    def energy(
        self,
        displacement: Float[Tensor, "chain parameter"],
        rows: Int[Tensor, "chain row"],
        problem: Int[Tensor, " chain"],
    ) -> tuple[Float[Tensor, " chain"], Float[Tensor, "chain parameter"]]:
        """n beta (L_b(w) - L_b(w*)) of every chain on its minibatch, and the gradient in the displacement."""
        displacement = displacement.detach().requires_grad_(True)
        excess = (self.losses(displacement, rows, problem) - self.at_minimum[rows]).double().mean(1)
        energy = self.n_beta * excess
        return energy.detach(), torch.autograd.grad(energy.sum(), displacement)[0]


@dataclass(frozen=True)
class CoefficientEstimate:
    """The LLC of one problem; if there is none, `llc` and `standard_error` (over chains) are None and `reason` says why.

    `chains` are the estimates of single chains (None for one that diverged). `drift` is the mean of their second halves minus
    that of their first halves. `trace` is the mean over chains of n beta (L_b(w) - L_b(w*)), thinned by averaging.
    """

    llc: float | None
    standard_error: float | None
    chains: tuple[float | None, ...]
    r_hat: float | None
    effective_samples: float | None
    drift: float | None
    step_size: float | None
    acceptance: float | None
    trace: tuple[float, ...]
    reason: str | None


def widest(
    posteriors: Sequence[Posterior], sampling: Sampling, gammas: Sequence[float], share: float, run: Run = map
) -> tuple[Sampling, list[Float[np.ndarray, " problem"]]]:
    """`sampling` with the smallest of `gammas` (the widest neighbourhood) at which chains mix at the localiser's pace.

    At such a gamma at least `share` of all problems accept the largest step of the grid: k is then not far above 1 in any
    direction, and tens of draws suffice. If there is none, it takes the largest gamma, and diagnosis may reject estimates. Also
    returns the acceptance of that step for every problem, which `estimate` can reuse. `run` applies a function to every
    posterior, in order and possibly in parallel.
    """
    for gamma in sorted(gammas):
        chosen = replace(sampling, gamma=float(gamma))
        accepted = list(run(partial(_first_acceptance, sampling=chosen), posteriors))
        if (np.concatenate(accepted) >= chosen.acceptance).mean() >= share:
            break
    return chosen, accepted


def _first_acceptance(posterior: Posterior, sampling: Sampling) -> Float[np.ndarray, " problem"]:
    """Acceptance of the largest step of the grid."""
    return _acceptance(posterior, sampling, range(len(posterior.problems)), sampling.step_size(0))


def estimate(
    posterior: Posterior, sampling: Sampling, accepted: Float[np.ndarray, " problem"] | None = None
) -> tuple[CoefficientEstimate, ...]:
    """The LLC of every problem: chooses its step size, samples its chains together with all others, and diagnoses them.

    `accepted` is the acceptance of the largest step, if known from `widest`. Raises UserError if a minibatch is larger than
    the number of rows.
    """
    if sampling.batch > posterior.n:
        raise UserError(f"a minibatch of {sampling.batch} rows needs as many; there are {posterior.n}, lower batch")
    steps, acceptance = choose_step_sizes(posterior, sampling, accepted)
    usable = np.flatnonzero(~np.isnan(steps)).tolist()
    traces = np.full((len(posterior.problems), sampling.chains, sampling.draws), np.nan)
    if usable:
        traces[usable] = sample(posterior, sampling, usable, steps[usable].tolist())
    return tuple(
        diagnose(trace, sampling, float(step), float(accepted))
        for trace, step, accepted in zip(traces, steps, acceptance, strict=True)
    )


# --- sampling ---------------------------------------------------------------------------------------------------------


class _Chains:
    """The chains of some problems: their positions, random streams and minibatches.

    Chain c starts c / (chains - 1) of the way to a draw from the localiser, so that starting points are dispersed. A stream
    depends only on the seed, the problem's name and the chain's number. Minibatches depend only on the seed and the chain's
    number, so that problems are compared on the same rows.
    """

    def __init__(self, posterior: Posterior, sampling: Sampling, problems: Sequence[int], purpose: str) -> None:
        self.posterior, self.sampling, self.purpose = posterior, sampling, purpose
        numbers = range(sampling.chains)
        device = posterior.at_minimum.device
        self.problem = torch.tensor([problem for problem in problems for _ in numbers], device=device)
        self.streams = [
            _generator(sampling.seed, purpose, posterior.problems[problem], number)
            for problem in problems
            for number in numbers
        ]
        spread = torch.linspace(0, 1, sampling.chains).repeat(len(problems)) / math.sqrt(sampling.gamma)
        self.position = spread.to(self._noise())[:, None] * self._noise()
        self.lost = torch.zeros(len(self.streams), dtype=torch.bool, device=device)

    def rows(self, steps: int) -> Int[Tensor, "step chain row"]:
        """A minibatch of distinct rows for every step, drawn independently of other steps.

        Passing through all rows before any repeats would bias the losses upwards: a chain that has just fitted some rows would
        always be scored on the others.
        """
        size, n = self.sampling.batch, self.posterior.n
        orders = []
        for number in range(self.sampling.chains):
            stream = _generator(self.sampling.seed, self.purpose, "rows", number)
            orders.append(torch.stack([torch.randperm(n, generator=stream)[:size] for _ in range(steps)]))
        every = torch.stack(orders, 1).repeat(1, len(self.streams) // self.sampling.chains, 1)
        return every.to(self.posterior.at_minimum.device)

    def energy(
        self, rows: Int[Tensor, "chain row"]
    ) -> tuple[Float[Tensor, " chain"], Float[Tensor, "chain parameter"]]:
        """n beta (L_b(w) - L_b(w*)) and its gradient at the chains' positions; NaN for a diverged chain."""
        energy, gradient = self.posterior.energy(self.position, rows, self.problem)
        size = self.position.shape[1]
        radius = self.sampling.escape * math.sqrt((size + math.sqrt(2 * size)) / self.sampling.gamma)
        self.lost |= ~(energy.isfinite() & gradient.isfinite().all(1) & (self.position.norm(dim=1) < radius))
        return energy.masked_fill(self.lost, math.nan), gradient.masked_fill(self.lost[:, None], 0.0)

    def move(self, gradient: Float[Tensor, "chain parameter"], step_size: Float[Tensor, " chain"]) -> None:
        """One SGLD step; a diverged chain is reset to w* and remains marked as diverged."""
        spread = _spread(step_size, self.sampling.gamma).to(self.position)[:, None]
        self.position = _mean(self.position, gradient, step_size, self.sampling.gamma) + spread * self._noise()
        self.position[self.lost] = 0.0

    def _noise(self) -> Float[Tensor, "chain parameter"]:
        size = self.posterior.n_parameters
        normal = torch.stack([torch.randn(size, generator=stream) for stream in self.streams])
        return normal.to(self.posterior.at_minimum)


def sample(
    posterior: Posterior, sampling: Sampling, problems: Sequence[int], step_sizes: Sequence[float]
) -> Float[np.ndarray, "problem chain draw"]:
    """n beta (L_b(w) - L_b(w*)) at every draw after burn-in; NaN from the draw at which a chain diverged."""
    chains = _Chains(posterior, sampling, problems, "sample")
    step_size = torch.as_tensor(step_sizes, dtype=torch.float64).repeat_interleave(sampling.chains)
    step_size = step_size.to(posterior.at_minimum.device)
    trace = []
    for rows in chains.rows(sampling.burn_in + sampling.draws):
        energy, gradient = chains.energy(rows)
        trace.append(energy.cpu())
        chains.move(gradient, step_size)
    kept = torch.stack(trace, 1)[:, sampling.burn_in :]
    return kept.reshape(len(problems), sampling.chains, sampling.draws).numpy()


def choose_step_sizes(
    posterior: Posterior, sampling: Sampling, accepted: Float[np.ndarray, " problem"] | None = None
) -> tuple[Float[np.ndarray, " problem"], Float[np.ndarray, " problem"]]:
    """(step size, its Metropolis acceptance) of every problem: the largest eps of the grid with enough acceptance.

    Each eps is tried in a pilot run on one fixed minibatch per chain, for which acceptance is well defined (Lau et al. 2023
    tune SGLD by it). Only the second half of the run counts. The step size is NaN if the whole grid fails. `accepted` is the
    acceptance of the largest step, if known.
    """
    count = len(posterior.problems)
    chosen, acceptance = np.full(count, np.nan), np.zeros(count)
    for halving in range(sampling.halvings + 1):
        left = np.flatnonzero(np.isnan(chosen)).tolist()
        if not left:
            break
        step_size = sampling.step_size(halving)
        known = halving == 0 and accepted is not None
        acceptance[left] = accepted if known else _acceptance(posterior, sampling, left, step_size)
        chosen[left] = np.where(acceptance[left] >= sampling.acceptance, step_size, np.nan)
    return chosen, acceptance


def _acceptance(
    posterior: Posterior, sampling: Sampling, problems: Sequence[int], step_size: float
) -> Float[np.ndarray, " problem"]:
    """Mean over chains and the later half of a pilot run of min(1, p(v) q(u|v) / (p(u) q(v|u))) for steps u -> v."""
    chains = _Chains(posterior, sampling, problems, "pilot")
    rows = chains.rows(1)[0]
    steps = torch.full((len(chains.streams),), step_size, dtype=torch.float64)
    accepted = []
    energy, gradient = chains.energy(rows)
    for _ in range(sampling.pilot):
        before = (chains.position, energy, gradient)
        chains.move(gradient, steps)
        energy, gradient = chains.energy(rows)
        ratio = _log_ratio(before, (chains.position, energy, gradient), step_size, sampling.gamma)
        accepted.append(ratio.clamp(max=0).exp().nan_to_num(0.0).cpu())
    later = torch.stack(accepted[sampling.pilot // 2 :], 1)
    return later.mean(1).reshape(len(problems), sampling.chains).mean(1).numpy()


def _log_ratio(
    at: tuple[Tensor, Tensor, Tensor], to: tuple[Tensor, Tensor, Tensor], step_size: float, gamma: float
) -> Float[Tensor, " chain"]:
    """Log Metropolis ratio of a step between two (position, energy, gradient); exactly 0 if the loss is flat."""
    (u, energy_u, gradient_u), (v, energy_v, gradient_v) = ((p.double(), e, g.double()) for p, e, g in (at, to))
    step = torch.full((len(u),), step_size, dtype=torch.float64, device=u.device)
    forth = (v - _mean(u, gradient_u, step, gamma)).square().sum(1)
    back = (u - _mean(v, gradient_v, step, gamma)).square().sum(1)
    prior = gamma / 2 * (u.square().sum(1) - v.square().sum(1))
    return energy_u - energy_v + prior + (forth - back) / (2 * _spread(step, gamma) ** 2)


def _mean(
    position: Float[Tensor, "chain parameter"],
    gradient: Float[Tensor, "chain parameter"],
    step_size: Float[Tensor, " chain"],
    gamma: float,
) -> Float[Tensor, "chain parameter"]:
    """The position after the drift of a step, without its noise."""
    half = (step_size / 2).to(position)[:, None]
    return position - half * (gradient + gamma * position)


def _spread(step_size: Float[Tensor, " chain"], gamma: float) -> Float[Tensor, " chain"]:
    """Standard deviation of a step's noise, exact for the localiser without a loss."""
    return (step_size * (1 - step_size * gamma / 4)).sqrt()


def _generator(seed: int, *parts: object) -> torch.Generator:
    digest = hashlib.sha256("/".join(map(str, (seed, *parts))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") % 2**63)


# --- diagnosis --------------------------------------------------------------------------------------------------------


def diagnose(
    trace: Float[np.ndarray, "chain draw"], sampling: Sampling, step_size: float, acceptance: float
) -> CoefficientEstimate:
    """The estimate that the chains of one problem support, or the reason why there is none.

    LLC = mean over chains of their mean n beta (L_b(w) - L_b(w*)); the standard error is taken over chains.
    """
    sound = np.all(np.isfinite(trace), axis=1)
    means = tuple(float(chain.mean()) if ok else None for chain, ok in zip(trace, sound, strict=True))
    if math.isnan(step_size) or not sound.all():
        if math.isnan(step_size):
            reason = (
                f"no step size of the grid reaches an acceptance of {sampling.acceptance:g}: {acceptance:.2g} at best"
            )
        else:
            reason = f"{(~sound).sum()} of {len(trace)} chains left the neighbourhood of the minimum"
        size = None if math.isnan(step_size) else step_size
        return CoefficientEstimate(None, None, means, None, None, None, size, acceptance, (), reason)
    values, half = np.array(means, float), trace.shape[1] // 2
    llc, error = float(values.mean()), _standard_error(values)
    r_hat = split_r_hat(trace)
    reason = _disagreement(llc, error, r_hat, sampling)
    return CoefficientEstimate(
        llc=None if reason else llc,
        standard_error=None if reason else error,
        chains=means,
        r_hat=r_hat if math.isfinite(r_hat) else None,
        effective_samples=effective_samples(trace),
        drift=float(trace[:, half:].mean() - trace[:, :half].mean()),
        step_size=step_size,
        acceptance=acceptance,
        trace=_thin(trace.mean(0), sampling.trace_points),
        reason=reason,
    )


def _disagreement(llc: float, error: float, r_hat: float, sampling: Sampling) -> str | None:
    if r_hat > sampling.r_hat:
        return f"the chains disagree: R-hat {r_hat:.3g} is above {sampling.r_hat:g}"
    width = 2 * float(scipy.stats.t.ppf((1 + INTERVAL) / 2, sampling.chains - 1)) * error
    allowed = max(sampling.width, sampling.relative_width * abs(llc))
    if width > allowed:
        return f"the chains disagree: their {INTERVAL:.0%} interval is {width:.3g} wide, more than {allowed:.3g}"
    return None


def _standard_error(values: Float[np.ndarray, " chain"]) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def split_r_hat(trace: Float[np.ndarray, "chain draw"]) -> float:
    """Potential scale reduction of half chains (Gelman et al. 2013): sqrt(((m-1)/m W + B/m) / W), m draws each.

    W is the mean variance within half chains, B/m the variance of their means. It is 1 if nothing varies, and infinite if
    only the means vary.
    """
    size = trace.shape[1] // 2
    halves = np.concatenate([trace[:, :size], trace[:, -size:]])
    within, between = halves.var(1, ddof=1).mean(), halves.mean(1).var(ddof=1)
    if within == 0:
        return 1.0 if between == 0 else math.inf
    return math.sqrt((size - 1) / size + between / within)


def effective_samples(trace: Float[np.ndarray, "chain draw"]) -> float:
    """Effective number of independent draws (Gelman et al. 2013): C m / (1 + 2 sum_t rho_t) for C chains of m draws.

    rho_t comes from the autocovariances of all chains together, summed in pairs until a pair is no longer positive (Geyer
    1992). The value is at most C m, and C m if nothing varies.
    """
    count, size = trace.shape
    centred = trace - trace.mean(1, keepdims=True)
    covariance = np.array([(centred[:, lag:] * centred[:, : size - lag]).sum(1).mean() / size for lag in range(size)])
    within = covariance[0] * size / (size - 1)
    total = covariance[0] + trace.mean(1).var(ddof=1)
    if total == 0:
        return float(count * size)
    correlation = 1 - (within - covariance) / total
    correlation[0] = 1.0
    pairs = correlation[: size // 2 * 2].reshape(-1, 2).sum(1)
    ends = np.flatnonzero(pairs <= 0)
    summed = pairs[: ends[0] if len(ends) else None].sum()
    return float(count * size / max(1.0, 2 * summed - 1))


def _thin(trace: Float[np.ndarray, " draw"], points: int) -> tuple[float, ...]:
    """At most `points` averages of consecutive draws."""
    return tuple(float(part.mean()) for part in np.array_split(trace, min(points, len(trace))))
