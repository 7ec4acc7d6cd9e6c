"""How often do the nominal intervals of the calibrations' records contain the truth? Checked where the truth is known.

Many samples of n prompts are drawn from one population of `meridian.experiments.validation.law`. Every calibration is run on
each sample, and `ci95` and `ci90` of every record are compared with the population value of what the record estimates.

There are two designs. In "fixed heads", the heads and their true effects stay and only prompts are fresh: the interval is
about this model. In "drawn heads", heads are fresh as well, and the truth is that of the law they come from: the interval is
about heads like these. `ESTIMANDS` gives each record's design, its truth, and whether its interval is wider than nominal by
construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import integrate, stats

import results_io
from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.record import Record
from calibrations.registry import CALIBRATIONS
from calibrations.statistics import wilson_interval
from meridian.experiments.validation import law as laws

Heads = Literal["fixed heads", "drawn heads"]
LEVELS = {"ci95": 0.95, "ci90": 0.90}
PRECONDITIONS = "P"
LIMIT_PROMPTS = 400  # prompts of a noiseless sample; any number gives the same limit
LIMIT_OF_MEANS = ("C12", "F59", "S1")  # calibrations whose estimates are functions of means over prompts


@dataclass(frozen=True)
class Coverage:
    """How often one interval of one record covered its truth at `n` prompts.

    `share` = covered / intervals, with its 95 % Wilson interval. `above` and `below` count the intervals wholly above and
    wholly below the truth. `without`: the number of replicates that gave no interval. `mean_width` is in the unit of the
    estimate. `truth` and `estimate` are means over replicates; their difference is the bias.
    """

    metric: str
    heads: Heads
    n: int
    interval: str
    nominal: float
    replicates: int
    intervals: int
    covered: int
    above: int
    below: int
    share: float | None
    wilson: tuple[float, float] | None
    mean_width: float | None
    truth: float | None
    estimate: float | None
    conservative: str | None

    @property
    def without(self) -> int:
        return self.replicates - self.intervals

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "without": self.without}


@dataclass(frozen=True)
class Estimand:
    """What the interval of a record is about: a sentence, the design, and the function that gives its truth.

    `truth(context, record)` is the population value. `conservative` says why coverage above nominal is expected, if it is.
    """

    sentence: str
    truth: Callable[[Context, Record], float]
    heads: Heads = "fixed heads"
    conservative: str | None = None


@dataclass(frozen=True)
class Context:
    """A population, and the number of prompts and the calibrations' settings, on which a truth may depend as well."""

    population: laws.Population
    n: int
    settings: Mapping[str, Mapping[str, Any]]

    @cached_property
    def limits(self) -> dict[str, float]:
        """The limits of estimates that are functions of mean effects: their values on prompts without noise."""
        return _limits(self.population, self.settings, LIMIT_OF_MEANS)


def _limits(
    population: laws.Population, settings: Mapping[str, Mapping[str, Any]], names: Iterable[str]
) -> dict[str, float]:
    documents = laws.documents(population, LIMIT_PROMPTS, seed=0, noiseless=True)
    few = {"permutations": 19, "bootstrap_resamples": 19, "bootstrap_resamples_p": 19}
    found = {}
    for name in settings.keys() & set(names):
        own = {**settings[name], **few}
        for record in CALIBRATIONS[name].calibrate(Evidence(documents, own), own):
            if record.estimate is not None:
                found[record.metric] = record.estimate
    return found


# --- truths ------------------------------------------------------------------------------------------------------


def _sigma(context: Context, subset: str) -> float:
    return context.population.standard_error(context.n, subset)


def _sample_cv(context: Context, size: int) -> float:
    population = context.population
    return population.standard_error(context.n) * math.sqrt(context.n / size) / population.faithfulness()


def _eta2(context: Context) -> float:
    between, within = context.population.score_variance()
    return between / (between + within)


def _gain(context: Context) -> float:
    population = context.population
    return population.faithfulness() - max(0.0, population.faithfulness("top_k_norm"))


def _discriminant(context: Context, record: Record) -> float:
    """own - 3 x other, for the companion that the record names."""
    population = context.population
    own = population.mu["02.denoising"][population.member].mean() / population.clean_mean.mean()
    task = int((record.ci_method or "").rpartition(" ")[2])
    other = population.law.other_effects[task] / laws.OTHER_GAP
    return float(own - context.settings["C17"]["threshold_ratio"] * other)


def _divergence(context: Context, record: Record) -> float:
    """theta_a - theta_b of the two methods that the record names, in the direction of the estimate."""
    pair = next(name for name in record.companions["pairs"] if f" {name}," in (record.ci_method or ""))
    first, second = pair.split(" - ")
    difference = record.companions["pairs"][pair]["difference"]
    theta = context.population.faithfulness
    return math.copysign(1.0, difference) * (theta(method=first) - theta(method=second))


def _moments(law: laws.Law, name: str) -> tuple[float, float, float]:
    """Mean and SD over circuit heads, and SD over other heads (mean 0), of one measurement's true effects."""
    measure = next(m for m in laws.MEASURES if f"{m.number}.{m.name}" == name)
    own = measure.specific * law.specific * law.effect
    inside, outside = (math.hypot(measure.scale * sd, own) for sd in (law.effect_spread, law.outside_sd))
    return measure.scale * law.effect, inside, outside


def _d_prime(context: Context) -> float:
    mean, inside, outside = _moments(context.population.law, "02.denoising")
    return mean / math.sqrt((inside**2 + outside**2) / 2)


def _auroc(context: Context) -> float:
    """P(|X| > |Y|) for X ~ N(mean, inside^2) of circuit heads and Y ~ N(0, outside^2) of others."""
    mean, inside, outside = _moments(context.population.law, "08.effect")
    larger = stats.norm(mean, inside)

    def density(y: float) -> float:
        return 2 * stats.norm.pdf(y, 0, outside) * (larger.sf(y) + larger.cdf(-y))

    return float(integrate.quad(density, 0, 12 * outside)[0])


def _generalisability(context: Context) -> float:
    """Reliability of the circuit heads' means for the law of heads."""
    law = context.population.law
    _, inside, _ = _moments(law, "02.denoising")
    low, high = laws.LOADINGS
    loading = (law.loading * (high - low)) ** 2 / 12
    return context.population.head_reliability(context.n, inside**2, loading)


def _split_half(context: Context) -> float:
    """Reliability of the means of these heads' effects in both directions of patching."""
    population, directions = context.population, ("02.denoising", "02.noising")
    scales = [measure.scale for measure in laws.MEASURES if f"{measure.number}.{measure.name}" in directions]
    profile = np.mean([population.mu[name] for name in directions], axis=0)
    loading = population.loading * sum(scales) / 2
    return population.head_reliability(context.n, float(profile.var(ddof=1)), float(loading.var(ddof=1)), 2)


def _stable_share(context: Context) -> float:
    """Share of the circuit's writing heads whose CVs over samples of n / n_subsets prompts are below the threshold."""
    population, config = context.population, context.settings["S3"]
    size = context.n / config["n_subsets"]
    mean = np.abs(population.mu["03.attribution"])
    writes = population.member & (mean >= config["writer_fraction"] * population.clean_mean.mean())
    variance, kurtosis = population.effect_moments("03.attribution")
    of_mean = np.sqrt(variance / size) / mean
    of_variance = np.sqrt(2 / (size - 1) + (kurtosis - 3) / size)
    stable = (of_mean < config["threshold_cv"]) & (of_variance < config["threshold_cv"])
    return float(stable[writes].mean())


def _always(truth: Callable[[Context], float]) -> Callable[[Context, Record], float]:
    return lambda context, record: truth(context)


def _limit(metric: str) -> Callable[[Context, Record], float]:
    return lambda context, record: context.limits[metric]


EXTENDED = "extended to the estimate"
SPLITS = "percentiles over random halves of one sample, which differ more than whole samples do"
SHOWN = "heads near the limit are neither shown to be stable nor not to be, so both ends leave room for them"
TOGETHER = "it holds for all differences at once, of which only the largest is shown"
DESIGN = "its standard error counts differences between templates although these are fixed by design"

FAITHFULNESS = Estimand(
    "faithfulness under the primary recipe, templates and heads fixed", _always(lambda c: c.population.faithfulness())
)
COMPLETENESS = Estimand(
    "share of the logit difference lost without the circuit",
    _always(lambda c: 1 - c.population.faithfulness("complement")),
)
MINIMALITY = Estimand(
    "mean faithfulness that one circuit head adds",
    _always(lambda c: float(c.population.minimal.mean() / c.population.clean_mean.mean())),
)
SCORE_D_PRIME = Estimand(
    "separation of circuit heads from others like them by the score",
    _always(lambda c: laws.SCORE_SHIFT / laws.SCORE_SD),
    "drawn heads",
)

ESTIMANDS: dict[str, tuple[Estimand, ...]] = {
    "P.behaviour": (
        Estimand(
            "mean clean logit difference",
            _always(lambda c: float(c.population.clean_mean.mean())),
            conservative=DESIGN,
        ),
    ),
    "P.faithfulness": (FAITHFULNESS,),
    "P.faithfulness_every_recipe": (FAITHFULNESS,),
    "C11.bootstrap_faithfulness": (
        Estimand(
            "SD of faithfulness over samples of n prompts, templates fixed", _always(lambda c: _sigma(c, "circuit"))
        ),
    ),
    "C11.bootstrap_completeness": (
        Estimand(
            "SD of completeness over samples of n prompts, templates fixed", _always(lambda c: _sigma(c, "complement"))
        ),
    ),
    "C12.convergent_validity": (
        Estimand(
            "mean rank correlation of the families over these heads",
            _limit("C12.convergent_validity"),
            conservative=EXTENDED,
        ),
    ),
    "C13.measurement_invariance": (
        Estimand("share of the variance of per-prompt faithfulness between templates", _always(_eta2)),
    ),
    "C14.d_prime": (
        Estimand("separation of circuit heads from others like them by patching", _always(_d_prime), "drawn heads"),
    ),
    "C14.llc_d_prime": (SCORE_D_PRIME,),
    "C14.pc_ratio_d_prime": (SCORE_D_PRIME,),
    "C14.hit_rate": (
        Estimand(
            "probability that a circuit head is named", _always(lambda c: c.population.law.hit_rate), "drawn heads"
        ),
    ),
    "C14.false_alarm_rate": (
        Estimand(
            "probability that another head is named",
            _always(lambda c: c.population.law.false_alarm_rate),
            "drawn heads",
        ),
    ),
    "C14.partial_eta_sq": (
        Estimand("share of the variance of per-prompt faithfulness between templates", _always(_eta2)),
    ),
    "C14.attribution_auroc": (
        Estimand("probability that a circuit head outranks another", _always(_auroc), "drawn heads"),
    ),
    "C14.faithfulness": (FAITHFULNESS,),
    "C14.completeness": (COMPLETENESS,),
    "C14.minimality_mean_importance": (MINIMALITY,),
    "C14.logit_diff_recovery": (
        Estimand(
            "share of the logit difference above the floor that scrubbing recovers",
            _always(lambda c: (laws.RECOVERED - laws.FLOOR) / (1 - laws.FLOOR)),
        ),
    ),
    "C16.test_retest": (
        Estimand(
            "1 - CV of faithfulness over batches",
            _always(lambda c: 1 - _sample_cv(c, c.n // len(c.settings["C16"]["batch_seeds"]))),
        ),
    ),
    "C16.split_half": (
        Estimand(
            "reliability of the mean effects of these heads in both directions of patching",
            _always(_split_half),
            conservative=SPLITS,
        ),
    ),
    "C16.cronbach_alpha": (
        Estimand(
            "reliability of the mean effects of heads like the circuit's, over clusters of prompts",
            _always(_generalisability),
            "drawn heads",
        ),
    ),
    "C17.discriminant_validity": (
        Estimand("own effect - 3 x effect on the companion it names", _discriminant, conservative=TOGETHER),
    ),
    "C30.seed_variance": (
        Estimand(
            "CV of faithfulness over samples of a third",
            _always(lambda c: _sample_cv(c, c.n // c.settings["C30"]["pool_factor"])),
        ),
    ),
    "C36.incremental_validity": (Estimand("faithfulness gained over the top k by norm (or nothing)", _always(_gain)),),
    "F59.kendalls_w": (
        Estimand("mean rank correlation of raters over these heads", _limit("F59.kendalls_w"), conservative=EXTENDED),
    ),
    "F59.mean_spearman": (
        Estimand(
            "mean rank correlation of raters over these heads", _limit("F59.mean_spearman"), conservative=EXTENDED
        ),
    ),
    "F59.mean_kappa": (
        Estimand("mean agreement of top-k sets of these heads", _limit("F59.mean_kappa"), conservative=EXTENDED),
    ),
    "S1.distributional_characterization": (
        Estimand(
            "root mean square attribution of circuit heads, as a share of theirs and that of others",
            _limit("S1.distributional_characterization"),
        ),
    ),
    "S1.total_effect": (Estimand("the same share of what knocking each head out costs", _limit("S1.total_effect")),),
    "S3.distributional_stability": (
        Estimand("share of these heads that are stable", _always(_stable_share), conservative=SHOWN),
    ),
    "M98.ablation_invariance": (
        Estimand("difference of faithfulness between the two methods it names", _divergence, conservative=TOGETHER),
    ),
    "E1b.method_invariance": (
        Estimand(
            "1 - difference of faithfulness between the two methods it names",
            lambda c, r: 1 - _divergence(c, r),
            conservative=TOGETHER,
        ),
    ),
}


# --- simulation --------------------------------------------------------------------------------------------------


def coverage(config: Mapping[str, Any], n: int, replicates: int, seed: int) -> list[Coverage]:
    """Coverage of every interval at `n` prompts over `replicates` samples.

    Fields of `config`:

    - `law`: fields of `laws.Law` that differ from its defaults;
    - `population_seed`;
    - `calibration`: the shipped sections {common, c11, ...};
    - `settings`: override those of every calibration;
    - `settings_of`: {ID: settings}, override those of one calibration;
    - `every`: {ID: k}, a slow calibration runs on every k-th sample only;
    - `only`: a list of IDs; default all.

    Equal arguments give equal results. Raises results_io.UserError if a record with an interval has no declared estimand
    or if nothing would be simulated.
    """
    if n < 1 or replicates < 1:
        raise results_io.UserError(
            f"{replicates} replicates of {n} prompts simulate nothing; expected at least 1 of each"
        )
    law, settings = laws.from_config(config.get("law", {})), settings_by_id(config)
    fixed = Context(laws.population(law, config["population_seed"]), n, settings)
    tallies: dict[tuple[str, Heads, str], Tally] = {}
    for replicate in range(replicates):
        drawn = laws.population(law, [seed, replicate])
        designs: Mapping[Heads, laws.Population] = {"fixed heads": fixed.population, "drawn heads": drawn}
        for heads, population in designs.items():
            documents = laws.documents(population, n, seed=[seed, n, replicate])
            due = {
                name: kept for name, kept in settings.items() if replicate % config.get("every", {}).get(name, 1) == 0
            }
            for record in _records(documents, heads, due):
                _count(record, heads, fixed, tallies)
    return [tally.summary(*key, n) for key, tally in tallies.items()]


def settings_by_id(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{ID: its settings}: the shipped ones, overridden by those of the simulation. Unknown IDs raise UserError."""
    shipped, own = config["calibration"], config.get("settings_of", {})
    known = (PRECONDITIONS, *CALIBRATIONS)
    if unknown := sorted({*own, *config.get("every", {}), *(config.get("only") or ())} - set(known)):
        raise results_io.UserError(f"calibrations {unknown} are unknown; expected some of {', '.join(known)}")
    return {
        name: {**shipped["common"], **shipped.get(name.lower(), {}), **config["settings"], **own.get(name, {})}
        for name in config.get("only") or known
    }


def _records(documents: Mapping[str, Any], heads: Heads, settings: Mapping[str, Any]) -> Iterator[Record]:
    """Records of the calibrations that have an estimand in this design."""
    wanted = {metric.partition(".")[0] for metric, every in ESTIMANDS.items() for e in every if e.heads == heads}
    for name in (PRECONDITIONS, *CALIBRATIONS):
        if name in wanted and name in settings:
            judge = preconditions.records if name == PRECONDITIONS else CALIBRATIONS[name].calibrate
            yield from judge(Evidence(documents, settings[name]), settings[name])


def _count(record: Record, heads: Heads, context: Context, tallies: dict[tuple[str, Heads, str], Tally]) -> None:
    """Add one record to the tallies of its estimand in this design."""
    if record.metric not in ESTIMANDS:
        if record.ci90 or record.ci95:
            raise results_io.UserError(
                f"{record.metric} has an interval and no estimand; declare what it speaks of in coverage.ESTIMANDS"
            )
        return
    for estimand in ESTIMANDS[record.metric]:
        if estimand.heads == heads:
            for interval in LEVELS:
                key = (record.metric, heads, interval)
                tallies.setdefault(key, Tally(estimand.conservative)).add(record, interval, estimand, context)


class Tally:
    """The intervals of one kind collected so far: bounds, truth and estimate of each."""

    def __init__(self, conservative: str | None) -> None:
        self.conservative = conservative
        self.replicates = 0
        self.rows: list[tuple[float, float, float, float | None]] = []

    def add(self, record: Record, interval: str, estimand: Estimand, context: Context) -> None:
        self.replicates += 1
        bounds = getattr(record, interval)
        if bounds is not None:
            self.rows.append((*bounds, estimand.truth(context, record), record.estimate))

    def summary(self, metric: str, heads: Heads, interval: str, n: int) -> Coverage:
        table = np.array(self.rows, dtype=float).reshape(-1, 4)
        low, high, truth, estimate = table.T
        above, below = int((low > truth + ROUNDING).sum()), int((high < truth - ROUNDING).sum())
        total = len(table)
        covered = total - above - below

        def mean(values: np.ndarray) -> float | None:
            return float(values.mean()) if total else None

        return Coverage(
            metric=metric,
            heads=heads,
            n=n,
            interval=interval,
            nominal=LEVELS[interval],
            replicates=self.replicates,
            intervals=total,
            covered=covered,
            above=above,
            below=below,
            share=covered / total if total else None,
            wilson=wilson_interval(covered, total, 0.95) if total else None,
            mean_width=mean(high - low),
            truth=mean(truth),
            estimate=mean(estimate),
            conservative=self.conservative,
        )


ROUNDING = 1e-9  # tolerance, as a share of heads may equal a bound exactly
