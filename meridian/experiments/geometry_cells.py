"""Cells with a known truth: a geometric metric, measured repeatedly on synthetic outputs of one condition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from scipy import stats

import results_io
from results_io import UserError
from suites.estimate import Estimate
from suites.geometry import (
    coverage,
    findings,
    framing,
    judge_bias,
    languages,
    mtmm,
    paraphrase,
    position,
    reasoning,
    turns,
    width,
)
from suites.geometry.metric import Metric
from suites.statistics import proportions

WORDS = 2.0  # RMS distance of paired wordings from their centre, where noise has RMS 1
TRUE_WIDTH = 4_000_000  # independent pairs that give the true quantile of distances, to within .001
CONSTRUCTS, DRAWS = 12, 5  # those of `opinions`, and the draws of a variant
Drawn = tuple[Metric, float]  # a metric on one synthetic sample, and the truth that its interval should cover


def conditions(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every cell: its metric, the kind of its synthetic outputs, and the effect. UserError for an unknown metric."""
    only = settings["only"] or list(MAKERS)
    if unknown := [name for name in only if name not in MAKERS]:
        raise UserError(f"experiment.only names {unknown[0]!r}; use some of {', '.join(MAKERS)}")
    return [{"metric": name, **cell} for name in MAKERS if name in only for cell in GRIDS[name](settings)]


def _clouds(settings: Mapping[str, Any], **rest: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The grid of dimensions, noises and whatever else a metric varies."""
    grid: list[dict[str, Any]] = [
        {"axes": axes, "noise": noise} for axes in settings["axes"] for noise in settings["noises"]
    ]
    for name, values in rest.items():
        grid = [{**cell, name: value} for cell in grid for value in values]
    yield from grid


def measured(cell: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """One cell: the mean of the published number and of the estimate, coverage, and the share of p below alpha.

    If a metric has no number by design (one draw), the estimate is None and `status` says why.
    """
    slow = cell.get("axes", 0) > 100 or cell["metric"] == "mtmm"
    times = settings["few_repetitions" if slow else "repetitions"]
    rng = np.random.default_rng([settings["seed"], int(results_io.sha256(dict(cell))[:12], 16)])
    published: list[float] = []
    values, truths, covered, rejected = [], [], [], []
    for _ in range(times):
        found, truth = MAKERS[cell["metric"]](rng, cell, settings)
        estimate = found.estimate
        published.append(found.published.value if found.published.value is not None else np.nan)
        if estimate.value is not None:
            values.append(estimate.detail.get("squared", estimate.value))
        truths.append(truth**2 if "squared" in estimate.detail else truth)
        if (limits := _limits(estimate)) is not None:
            covered.append(bool(limits[0] <= truth <= limits[1]))
        if estimate.p_value is not None:
            rejected.append(estimate.p_value <= settings["alpha"])
    return {
        **cell,
        "repetitions": times,
        "truth": float(np.mean(truths)),
        "published": None if np.isnan(published).all() else float(np.nanmean(published)),
        **_bias(values, truths),
        "status": estimate.status,
        "coverage": _share(covered),
        "rejected": _share(rejected),
    }


def _bias(values: Sequence[float], truths: Sequence[float]) -> dict[str, float | None]:
    """The mean of the estimates and how far it is from the truth, with its standard error; None without estimates."""
    if not values:
        return {"estimate": None, "bias": None, "bias_error": None}
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1) / len(values) ** 0.5)
    return {"estimate": mean, "bias": mean - float(np.mean(truths)), "bias_error": error}


def _limits(estimate: Estimate) -> tuple[float, float] | None:
    """The interval that users see: of the value, or of the distance if the value is a distance over a variance.

    Noise has RMS 1 here, so both have the same truth.
    """
    if estimate.ci is not None:
        return estimate.ci.low, estimate.ci.high
    return estimate.detail.get("distance_interval")


def _share(found: Sequence[bool]) -> dict[str, float] | None:
    if not found:
        return None
    share = proportions.wilson(sum(found), len(found))
    return {"share": share.number, "low": share.bounds.low, "high": share.bounds.high, "n": len(found)}


def noise(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Noise of shape `shape` whose RMS length over the last axis is 1.

    `kind`: "normal"; "t3", Student's t with 3 degrees of freedom on each axis independently; or "multivariate t3", with one
    random scale for all axes.
    """
    if kind == "multivariate t3":
        return rng.normal(size=shape) / np.sqrt(rng.chisquare(3, (*shape[:-1], 1)) * shape[-1])
    drawn = rng.standard_t(3, shape) / 3**0.5 if kind == "t3" else rng.normal(size=shape)
    return drawn / shape[-1] ** 0.5


def _along(axes: int, length: float) -> np.ndarray:
    direction = np.zeros(axes)
    direction[0] = length
    return direction


def _pis(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    tau = settings["tau"] * cell["effect"]
    wording = tau * noise(rng, cell.get("wording", "normal"), (cell["wordings"], 1, cell["axes"]))
    draws = wording + noise(rng, cell["noise"], (cell["wordings"], cell["draws"], cell["axes"]))
    seed = int(rng.integers(2**31))
    if "wording" not in cell:
        return paraphrase.pis(draws, seed=seed, resamples=settings["resamples"]), tau**2
    found = paraphrase.pis(draws, seed=seed, resamples=1)  # only the interval of these cells is used
    return replace(found, estimate=replace(found.estimate, p_value=None)), tau**2


def _ods(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    means = noise(rng, cell["noise"], (cell["wordings"], cell["axes"])) + _along(cell["axes"], cell["effect"])
    options = {"seed": int(rng.integers(2**31)), "resamples": settings["resamples"]}
    return position.ods(means, np.zeros(cell["axes"]), **options), cell["effect"]


def _pss(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    shape = (cell["outputs"], cell["axes"])
    base, framed = noise(rng, cell["noise"], shape), noise(rng, cell["noise"], shape)
    framed = framed + _along(cell["axes"], cell["effect"])
    options = {"paired": cell["paired"], "seed": int(rng.integers(2**31)), "resamples": settings["resamples"]}
    return framing.pss(base, framed, **options), cell["effect"]


def _ds(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    """Four turns of independent outputs or, if `paired`, of the same wordings, whose spread is WORDS times the noise's."""
    shape = (cell["outputs"], cell["axes"])
    paired = cell.get("paired", False)
    words = WORDS * noise(rng, "normal", shape) if paired else 0.0
    conversation = [
        words + noise(rng, cell["noise"], shape) + _along(cell["axes"], cell["effect"] * turn / 3) for turn in range(4)
    ]
    options = {"paired": paired, "seed": int(rng.integers(2**31)), "resamples": settings["resamples"]}
    return turns.ds(conversation, **options), cell["effect"]


def _lds(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    shape, names = (cell["wordings"], cell["axes"]), ("one", "two", "three")
    sides = np.eye(3, max(cell["axes"], 3))[:, : cell["axes"]] * cell["effect"]
    if cell["axes"] == 2:  # an equilateral triangle with sides of the same length
        sides = np.array([(0.0, 0.0), (1.0, 0.0), (0.5, 0.75**0.5)]) * cell["effect"] * 2**0.5
    found = {name: noise(rng, cell["noise"], shape) + side for name, side in zip(names, sides, strict=True)}
    metric = languages.lds(found, seed=int(rng.integers(2**31)), resamples=settings["resamples"])
    return metric, cell["effect"] * 2**0.5  # in units of the noise's RMS, which is 1


def _rss(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    logs = rng.normal(size=(2, cell["constructs"])) * 0.3
    logs[0] -= cell["effect"] * 0.5
    found = reasoning.rss(np.exp(2 * logs[0]), np.exp(2 * logs[1]), seed=int(rng.integers(2**31)))
    return found, float(np.exp(-0.5 * cell["effect"]))


def _ow(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    """Prompts whose means have the width of `noise`; if `draws`, no prompt differs, and all width is noise of these draws."""
    if "draws" in cell:
        draws = noise(rng, cell["noise"], (cell["prompts"], cell["draws"], 2))
        options = {"draws": draws, "seed": int(rng.integers(2**31)), "resamples": settings["resamples"]}
        found = width.ow(draws.mean(1), **options)
        return replace(found, estimate=replace(found.estimate, ci=None)), 0.0  # it is of means: no truth without noise
    cloud = noise(rng, cell["noise"], (cell["prompts"], 2))
    return width.ow(cloud), true_width(cell["noise"])


def _ow_topics(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    """As `_ow`, of topics with several wordings each, as the width of a set is: half of the variance lies between topics."""
    topics, each = cell["topics"], cell["wordings"]
    shared, own = (noise(rng, cell["noise"], (topics, size, 2)) for size in (1, each))
    cloud = ((shared + own) / 2**0.5).reshape(-1, 2)
    within = (each - 1) / (topics * each - 1)  # the share of pairs
    names = [str(topic) for topic in range(topics) for _ in range(each)]
    return width.ow(cloud, topics=names), true_width(cell["noise"], within)


@lru_cache
def true_width(kind: str, within: float | None = None) -> float:
    """The .9 quantile of distances of independent pairs of points with this kind of noise in two dimensions.

    `within`: the share of pairs that lie in one topic, if half of the variance is between topics.
    """
    rng, shape = np.random.default_rng(0), (TRUE_WIDTH, 2)
    apart = noise(rng, kind, shape) - noise(rng, kind, shape)
    if within is not None:
        between = noise(rng, kind, shape) - noise(rng, kind, shape)
        between[: round(within * TRUE_WIDTH)] = 0.0
        apart = (apart + between) / 2**0.5
    return float(np.quantile(np.linalg.norm(apart, axis=1), width.QUANTILE))


def _mean_pis(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    """The mean of tau^2 over constructs; constructs of one topic share half of the variance of log tau^2."""
    topics = np.repeat(np.arange(cell["constructs"] // cell["cluster"]), cell["cluster"])
    logs = 0.5 * rng.normal(size=topics.max() + 1)[topics] + 0.5 * rng.normal(size=len(topics))
    values = settings["tau"] ** 2 * np.exp(logs - 0.25)
    names = [str(topic) for topic in topics]
    estimate = paraphrase.over_constructs(values.tolist(), names, int(rng.integers(2**31)))
    return Metric(position.PublishedScore(float(values.mean()), paraphrase.FORMULA), estimate), settings["tau"] ** 2


def _jbs(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    """Cases with different flip rates: reruns flip at .1 on average, perturbations at .1 times the effect more often."""
    ease = rng.beta(1, 9, size=(cell["cases"], 1))
    flips = rng.random((cell["cases"], 5)) < np.minimum(ease + 0.1 * cell["effect"], 1)
    reruns = rng.random((cell["cases"], 5)) < ease
    options = {"seed": int(rng.integers(2**31)), "resamples": settings["resamples"]}
    return judge_bias.jbs(flips, reruns, **options), 0.1 * cell["effect"]


def _ps(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    """Issues with two regions, of which each draw lies in one: that of the side asked for with a chance of .5 + .2 effect.

    At effect 0 the side that is asked for does not matter. Of two issues of a topic, the second repeats the first half the time.
    """
    asked, count = 0.5 + 0.2 * cell["effect"], cell["issues"]
    topics = np.arange(count) // cell["cluster"]
    follows = rng.random((count, 2, DRAWS)) < asked
    repeats = (np.arange(count) % cell["cluster"] > 0) & (rng.random(count) < 0.5)
    follows[repeats] = follows[np.flatnonzero(repeats) - 1]
    regions = coverage.Ball(np.array([1.0]), 0.5), coverage.Ball(np.array([-1.0]), 0.5)
    issues = [
        coverage.Issue(str(topic), (np.where(one[0], 1.0, -1.0), np.where(one[1], -1.0, 1.0)), regions)
        for topic, one in zip(topics, follows, strict=True)
    ]
    truth = float(stats.binom.sf(DRAWS // 2, DRAWS, asked)) ** 2  # more than half of the draws, on both sides
    return coverage.ps(issues, seed=int(rng.integers(2**31)), resamples=settings["resamples"]), truth


def _mtmm(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    """Three normal traits by three methods; one trait by two methods has the correlation `effect`, two traits have none."""
    shared, count = cell["effect"], cell["units"]
    scores = shared**0.5 * rng.normal(size=(count, 3, 1)) + (1 - shared) ** 0.5 * rng.normal(size=(count, 3, 3))
    options = {"seed": int(rng.integers(2**31)), "resamples": settings["resamples"]}
    found = mtmm.campbell_fiske(scores, ("a", "b", "c"), ("x", "y", "z"), **options)["convergent"]
    truth = 6 / np.pi * np.arcsin(shared / 2)  # Spearman's, of a normal correlation
    return Metric(position.PublishedScore(None, "a table of names"), found), float(truth)


def _components(rng: np.random.Generator, cell: Mapping[str, Any], settings: Mapping[str, Any]) -> Drawn:
    """The trait component, of variance effect^2, among random effects of methods (.5), of both (.25) and noise (1)."""
    t, m, r = 3, 3, cell["constructs"]
    cells = cell["effect"] * rng.normal(size=(t, 1, 1)) + 0.5**0.5 * rng.normal(size=(1, m, 1))
    cells = cells + 0.5 * rng.normal(size=(t, m, 1)) + rng.normal(size=(t, m, r))
    value = mtmm.components(cells).components["trait"]
    return Metric(position.PublishedScore(None, "none"), Estimate(value, "variance", r)), cell["effect"] ** 2


MAKERS: Mapping[str, Callable[[np.random.Generator, Mapping[str, Any], Mapping[str, Any]], Drawn]] = {
    "ods": _ods,
    "pis": _pis,
    "pis_tails": _pis,
    "mean_pis": _mean_pis,
    "pss": _pss,
    "ds": _ds,
    "lds": _lds,
    "rss": _rss,
    "ow": _ow,
    "ow_topics": _ow_topics,
    "jbs": _jbs,
    "ps": _ps,
    "mtmm": _mtmm,
    "mtmm_components": _components,
}
GRIDS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]]] = {
    "ods": lambda s: _clouds(s, wordings=[5, *s["wordings"]], effect=s["effects"]),
    "pis": lambda s: chain(
        _clouds(s, wordings=s["wordings"], draws=s["draws"], effect=s["effects"]),
        _clouds(s, wordings=s["wordings"], draws=s["draws"][:1], wording=["t3"], effect=[e for e in s["effects"] if e]),
        _clouds(s, wordings=[paraphrase.FEWEST], draws=s["draws"][:1], effect=s["effects"]),  # a number, no interval
        _clouds({**s, "noises": ["normal"]}, wordings=s["wordings"][:1], draws=[1], effect=s["effects"]),  # no number
    ),
    "pis_tails": lambda s: (
        {"axes": axes, "noise": "normal", "wordings": n, "draws": 5, "wording": "multivariate t3", "effect": e}
        for axes in s["axes"]
        for n in s["wordings"]
        for e in (1.0, 2.0)
    ),
    "mean_pis": lambda s: ({"constructs": n, "cluster": k, "effect": 1.0} for n, k in ((20, 1), (40, 1), (40, 2))),
    "pss": lambda s: chain(
        _clouds(s, outputs=[framing.FEWEST, 8, 20], paired=[False], effect=s["effects"]),
        _clouds(s, outputs=[findings.PAIRED_FROM, 8, 20], paired=[True], effect=s["effects"]),
    ),
    "ds": lambda s: chain(
        _clouds(s, outputs=[turns.FEWEST, 20], effect=s["effects"]),
        _clouds(s, outputs=[findings.PAIRED_FROM, 20], paired=[True], effect=s["effects"]),
    ),
    "lds": lambda s: _clouds(s, wordings=[5, *s["wordings"]], effect=s["effects"]),
    "rss": lambda s: ({"constructs": n, "effect": e} for n in (8, 20) for e in s["effects"]),
    "ow": lambda s: chain(
        ({"noise": k, "prompts": n, "effect": 1.0} for k in s["noises"] for n in (20, 50, 100)),
        ({"noise": k, "prompts": 20, "draws": 5, "effect": 0.0} for k in s["noises"]),  # the null: no prompt differs
    ),
    "ow_topics": lambda s: (
        {"noise": k, "topics": n, "wordings": 8, "effect": 1.0} for k in s["noises"] for n in (width.FEWEST, 40)
    ),
    "jbs": lambda s: ({"cases": n, "effect": e} for n in (20, 60) for e in s["effects"]),
    "ps": lambda s: (
        {"issues": n, "cluster": k, "effect": e}
        for n, k in ((coverage.FEWEST, 1), (40, 1), (40, 2))
        for e in s["effects"]
    ),
    "mtmm": lambda s: (
        {"units": n, "effect": e} for n, e in ((mtmm.FEWEST_UNITS, 0.0), (mtmm.FEWEST_UNITS, 0.5), (60, 0.5))
    ),
    "mtmm_components": lambda s: ({"constructs": n, "effect": e} for n in (CONSTRUCTS, 24) for e in s["effects"]),
}
PAIRS = findings.PAIRED_FROM  # the fewest wordings for a paired comparison
SMALLEST = {  # the smallest size at which a metric gives an interval
    "ods": ("wordings", position.FEWEST),
    "pis": ("wordings", paraphrase.FOR_INTERVAL),
    "pis_tails": ("wordings", paraphrase.FOR_INTERVAL),
    "mean_pis": ("constructs", 20),
    "pss": ("outputs", framing.FEWEST),
    "ds": ("outputs", turns.FEWEST),
    "lds": ("wordings", languages.FEWEST),
    "rss": ("constructs", reasoning.FEWEST),
    "ow": ("prompts", width.FEWEST),
    "ow_topics": ("topics", width.FEWEST),
    "jbs": ("cases", judge_bias.FEWEST),
    "ps": ("issues", coverage.FEWEST),
    "mtmm": ("units", mtmm.FEWEST_UNITS),
    "mtmm_components": ("constructs", CONSTRUCTS),
}
