"""P.faithfulness_over_wordings: would faithfulness be the same on other wordings of the task?

The interval of P.faithfulness holds for the given wordings: it resamples names, not wordings. Here the wording is the
sampling unit. With F_g and D_g the totals over the prompts of wording g, and G wordings,

    theta = sum F_g / sum D_g,  SE^2 = G / (G - 1) sum_g ((F_g - theta D_g) / sum D)^2,  theta +- t(G - 1) SE

This is a linearised ratio of totals. A wording is a frame, not a template: two orders of the names in one sentence share it
(`evidence.frame_of`). With so few units a bootstrap interval covers too little (simulated with six: 87 % instead of 90 %);
the t interval does not.

The result holds for wordings like these, drawn from the same grammar. No interval covers all wordings of a language.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.record import Published, Record, judge
from calibrations.statistics import Insufficient, Interval, Ratio, or_reason, ratio_of_means

METRIC = "P.faithfulness_over_wordings"
CI_METHOD = "t over wordings of this grammar"
REMEDY = "prompts.templates=more"
OF_ROWS = "more wordings in the column template"  # for prompts from a file


def records(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """The gating record, under the circuit's primary recipe.

    pass: the 90 % interval over wordings lies in the band of P.faithfulness; fail: it lies wholly outside; otherwise
    inconclusive, with the number of wordings that would settle it.
    """
    return [
        judge(
            METRIC,
            lambda: Published(None, preconditions.NO_RULE, "none"),
            lambda: _decide(evidence, config),
            rule=preconditions.NO_RULE,
            n=preconditions.sizes(evidence, wordings=len(np.unique(evidence.frames))),
        )
    ]


def over_wordings(
    numerator: Float[np.ndarray, " prompt"],
    denominator: Float[np.ndarray, " prompt"],
    frames: np.ndarray,
    config: Mapping[str, Any],
    remedy: str = REMEDY,
) -> Ratio:
    """The ratio of totals with wordings as sampling units; its `t_interval` is that of the module's docstring.

    Raises Insufficient("n_clusters") for fewer than `minimum_wordings`, and as `ratio_of_means`.
    """
    n_wordings, least = len(np.unique(frames)), config["minimum_wordings"]
    if n_wordings < least:
        detail = f"{n_wordings} wording{'s' * (n_wordings != 1)}; at least {least} needed"
        raise Insufficient("n_clusters", detail, needs=f"at least {least} wordings: {remedy}")
    return ratio_of_means(numerator, denominator, frames)


def companion(
    evidence: Evidence,
    config: Mapping[str, Any],
    numerator: Float[np.ndarray, " prompt"],
    denominator: Float[np.ndarray, " prompt"],
    places: Int[np.ndarray, " prompt"],
) -> Interval | dict[str, str]:
    """The 90 % interval over wordings of a ratio on the prompts at `places`, or {"insufficient": why there is none}."""
    return or_reason(lambda: over_wordings(numerator, denominator, evidence.frames[places], config).t_interval(0.90))


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    preconditions.require_behaviour(evidence, config)
    recipe = evidence.primary_recipe
    remedy = OF_ROWS if "source" in evidence.data("01") else REMEDY
    ratio = over_wordings(evidence.ablated("circuit", recipe), evidence.clean, evidence.frames, config, remedy)
    ratio.require_denominator(config["min_denominator_t"])
    band = (config["faithfulness_low"], config["faithfulness_high"])
    ci90 = ratio.t_interval(0.90)
    verdict = preconditions.inside(ci90, band)
    return {
        "verdict": verdict,
        "estimate": ratio.value,
        "ci90": ci90,
        "ci95": ratio.t_interval(0.95),
        "ci_method": CI_METHOD,
        "p": ratio.p_within(band),
        "p_kind": "t over wordings, the larger of both ends",
        "effect_size": ratio.value,
        "reasons": () if verdict == "pass" else (_reason(ratio, ci90, recipe),),
        "needs": None if verdict == "pass" else _needs(ratio, band, remedy),
        "companions": {
            "recipe": recipe,
            "standard_error": ratio.standard_error,
            "by_wording": _by_wording(evidence, recipe),
        },
    }


def _reason(ratio: Ratio, ci90: tuple[float, float], recipe: str) -> str:
    n_wordings = ratio.degrees_of_freedom + 1
    return (
        f"wordings: with other wordings like these {n_wordings}, {recipe.replace('_', ' ')} may keep "
        f"{ci90[0]:.2f} to {ci90[1]:.2f}"
    )


def _needs(ratio: Ratio, band: tuple[float, float], remedy: str) -> str:
    """How many wordings would bring the interval inside the band, at the present faithfulness and spread."""
    room = min(ratio.value - band[0], band[1] - ratio.value)
    wanted = ratio.units_for(room) if room > 0 else None
    if wanted is None:
        return f"a claim whose faithfulness lies further inside {band[0]} to {band[1]}"
    return f"about {max(wanted, ratio.degrees_of_freedom + 2)} wordings: {remedy}"


def _by_wording(evidence: Evidence, recipe: str) -> dict[str, float | None]:
    """Faithfulness on the prompts of each wording; null where their clean effects add up to nothing."""
    intact, clean = evidence.ablated("circuit", recipe), evidence.clean
    found = {}
    for frame in np.unique(evidence.frames):
        own = evidence.frames == frame
        found[str(frame)] = float(intact[own].sum() / clean[own].sum()) if clean[own].sum() > 0 else None
    return found
