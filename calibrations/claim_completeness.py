"""P.completeness: does losing a group of claimed heads cost the circuit what it costs the model?

For a group K of the claimed heads C, under one recipe on both sides and signed,

    inc(K) = ([F(C) - F(C without K)] - [F(M) - F(M without K)]) / N

where M is the whole model, F the mean logit difference, and N = D - F(M without any head) the effect of all heads together.
N is D instead if that effect is less than half of D, since a small N would inflate small effects, or if it exceeds D, since
then the rest of the model opposes the answer and a large N would hide what matters. Above 0 the circuit loses more than the
model: heads outside the claim stand in for K. Below 0 the model loses more: K works through heads that the claim leaves out.
Whatever the group, the claim is incomplete by about |inc|.

The score of Wang et al. 2022 (section 4.2), |F(C without K) - F(M without K)| / N, is a record of its own. It includes
1 - faithfulness, so it gates a later tier.

pass: the one-sided 95 % bounds of every group lie within the limit (intersection-union, no correction needed). fail: the
simultaneous lower bound of some |inc| lies above it. Groups come from result 22 and never from role labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from calibrations import preconditions
from calibrations.claimed_nodes import named, names
from calibrations.evidence import Evidence
from calibrations.faithfulness_over_wordings import companion
from calibrations.record import Published, Record, judge
from calibrations.statistics import (
    Insufficient,
    percentile_interval,
    pooled_if_single,
    simultaneous_intervals,
    threshold_p,
    weighted_sums,
)

HEADS_MATTER = 0.5  # N is D - F(M without any head) if that is between this share of D and D; otherwise D
WORST_SHOWN = 5  # groups that the companions list under each recipe


@dataclass(frozen=True)
class Losses:
    """F of circuit and model without each group, on the prompts of one split, under one recipe.

    `places` are the prompts' indices in the split. `model` and `circuit` are F(M) and F(C), `empty` is F(M without any head).
    """

    recipe: str
    groups: Sequence[Mapping[str, Any]]
    places: Int[np.ndarray, " prompt"]
    model: Float[np.ndarray, " prompt"]
    circuit: Float[np.ndarray, " prompt"]
    empty: Float[np.ndarray, " prompt"]
    model_without: Float[np.ndarray, "group prompt"]
    circuit_without: Float[np.ndarray, "group prompt"]

    @property
    def lost_by_circuit(self) -> Float[np.ndarray, "group prompt"]:
        return self.circuit - self.circuit_without

    @property
    def lost_by_model(self) -> Float[np.ndarray, "group prompt"]:
        return self.model - self.model_without

    @property
    def incompleteness(self) -> Float[np.ndarray, "group prompt"]:
        """The numerator of inc for each prompt."""
        return self.lost_by_circuit - self.lost_by_model

    @property
    def published(self) -> Float[np.ndarray, "group prompt"]:
        """F(M without K) - F(C without K) for each prompt, the empty group first: the signed score of Wang et al."""
        return np.vstack([self.model - self.circuit, self.model_without - self.circuit_without])


@dataclass(frozen=True)
class Shares:
    """Quantities over N: names, estimates, and bootstrap draws with one column for each quantity."""

    names: Sequence[str]
    estimates: Float[np.ndarray, " quantity"]
    draws: Float[np.ndarray, "resample quantity"]

    def over(self, limits: float | Float[np.ndarray, " quantity"]) -> Shares:
        """The same quantities in units of their limits."""
        return Shares(self.names, self.estimates / limits, self.draws / limits)


def losses(evidence: Evidence, recipe: str) -> Losses:
    """The groups of result 22 under `recipe`. Raises Insufficient("claims_every_head") or ("not_run")."""
    stored = evidence.data("22").get("completeness")
    if stored is None:
        raise Insufficient("not_run", "measurement 22 has no groups", needs="measurement 22 anew")
    if not stored["groups"]:
        raise Insufficient("claims_every_head", "the claim is all heads, so it leaves nothing out", needs=None)
    if recipe not in stored["recipes"]:
        raise Insufficient(
            "not_run", f"no groups were taken out under {recipe}", needs=f"{recipe} in completeness.recipes"
        )
    columns, places = evidence.stored_columns(stored["prompt_index"])
    found = stored["recipes"][recipe]
    parts = {
        name: np.asarray(found[name], dtype=float)[..., columns]
        for name in ("model", "circuit", "empty", "model_without", "circuit_without")
    }
    return Losses(recipe, [stored["groups"][place] for place in found["groups"]], places, **parts)


def recipes_run(evidence: Evidence) -> tuple[str, ...]:
    """Every recipe under which groups were ablated; none if there are no groups."""
    return tuple(evidence.data("22").get("completeness", {}).get("recipes", ()))


def normaliser(
    clean: Float[np.ndarray, " prompt"], empty: Float[np.ndarray, " prompt"]
) -> Float[np.ndarray, " prompt"]:
    """N for each prompt: D - F(M without any head), or D if all heads together are worth less than half of D or more than D.

    Without heads a model may prefer the foil, so D - F(M without any head) may be, say, 3 D. An outside head worth a quarter
    of D would then count as a twelfth, although the band of faithfulness is in units of D.
    """
    worth, answer = (clean - empty).mean(), clean.mean()
    return clean - empty if HEADS_MATTER * answer <= worth <= answer else clean


def draw_counts(
    evidence: Evidence, config: Mapping[str, Any], places: Int[np.ndarray, " prompt"]
) -> Int[np.ndarray, "resample prompt"]:
    """Bootstrap counts of the prompts at `places`: clusters within templates, or over all templates if one has one cluster.

    Raises Insufficient("n_prompts") for fewer than `minimum_group_prompts`, ("n_clusters") for a single cluster.
    """
    if len(places) < config["minimum_group_prompts"]:
        needed = f"at least {config['minimum_group_prompts']} prompts in measurement 22"
        raise Insufficient("n_prompts", f"{len(places)} prompts; {needed}", needs=needed)
    return pooled_if_single(
        len(places),
        config["bootstrap_resamples_p"],
        seed=config["bootstrap_seed"],
        clusters=evidence.clusters[places],
        strata=evidence.templates[places],
    )


def shares(
    names: Sequence[str],
    values: Float[np.ndarray, "quantity prompt"],
    normal: Float[np.ndarray, " prompt"],
    counts: Int[np.ndarray, "resample prompt"],
) -> Shares:
    """mean value / mean N, and the same in every resample."""
    return Shares(
        names, values.mean(1) / normal.mean(), weighted_sums(counts, values.T) / weighted_sums(counts, normal)[:, None]
    )


def joined(parts: Iterable[Shares]) -> Shares:
    """Quantities of several recipes as one family; all recipes share the resamples."""
    parts = list(parts)
    return Shares(
        [name for part in parts for name in part.names],
        np.concatenate([part.estimates for part in parts]),
        np.concatenate([part.draws for part in parts], axis=1),
    )


def decide_within(found: Shares, limits: float | Float[np.ndarray, " quantity"]) -> dict[str, Any]:
    """Record fields of "every quantity lies within its limit": verdict, p, and the worst quantity with a simultaneous interval.

    `worst` is the index of the quantity that is largest in units of its limit. `beyond` has the indices of those shown to
    exceed their limit. `room` is the distance of the worst from its limit over the largest half-width of the 90 % intervals.
    """
    limits = np.broadcast_to(np.asarray(limits, dtype=float), found.estimates.shape)
    units = found.over(limits)
    pointwise = [percentile_interval(column, 0.90) for column in units.draws.T]
    together = simultaneous_intervals(units.estimates, units.draws, 0.90)
    worst = int(np.argmax(np.abs(units.estimates)))
    inside = all(low > -1 and high < 1 for low, high in pointwise)
    beyond = any(low > 1 or high < -1 for low, high in together)
    low, high = (float(end * limits[worst]) for end in together[worst])
    widest = max(max(-low, high) - abs(own) for (low, high), own in zip(pointwise, units.estimates, strict=True))
    return {
        "worst": worst,
        "beyond": [place for place, (low, high) in enumerate(together) if low > 1 or high < -1],
        "verdict": "pass" if inside else "fail" if beyond else "inconclusive",
        "estimate": float(found.estimates[worst]),
        "ci90": (low, high),
        "ci_method": f"simultaneous over {len(pointwise)} quantities, cluster bootstrap",
        "p": max(max(threshold_p(c, -1.0, "greater"), threshold_p(c, 1.0, "less")) for c in units.draws.T),
        "p_kind": "bootstrap, largest over all groups",
        "effect_size": float(units.estimates[worst]),
        "room": (1 - abs(float(units.estimates[worst]))) / widest if widest > 0 else math.inf,
    }


def records(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """P.completeness under the primary recipe and resample, the same under every recipe that was run, and the published score."""

    def record(metric: str, decide: Any, rule: str = preconditions.NO_RULE) -> Record:
        return judge(
            metric,
            lambda: Published(None, rule, "none"),
            lambda: decide(evidence, config),
            rule=rule,
            n=preconditions.sizes(evidence, heads=len(evidence.circuit_heads), **evidence.counted_besides),
        )

    return [
        record("P.completeness", lambda e, c: _decide(e, c, preconditions.on_distribution(e))),
        record("P.completeness_every_recipe", lambda e, c: _decide(e, c, recipes_run(e))),
        record("P.incompleteness_score", _decide_published),
    ]


def _decide(evidence: Evidence, config: Mapping[str, Any], recipes: Sequence[str]) -> dict[str, Any]:
    preconditions.require_behaviour(evidence, config)
    found = [losses(evidence, recipe) for recipe in recipes or preconditions.on_distribution(evidence)]
    places = found[0].places  # the same prompts for all recipes
    counts = draw_counts(evidence, config, places)
    parts = [shares(_names(one), one.incompleteness, normaliser(one.model, one.empty), counts) for one in found]
    limit = config["max_incompleteness"]
    together = joined(parts)
    decided = decide_within(together, limit)
    worst, beyond, room = decided.pop("worst"), decided.pop("beyond"), decided.pop("room")
    groups = [(one, place) for one in found for place in range(len(one.groups))]
    told = sorted(beyond, key=lambda place: -abs(together.estimates[place])) or [worst]
    return {
        **decided,
        "reasons": () if decided["verdict"] == "pass" else tuple(_sentence(*groups[place]) for place in told[:3]),
        "needs": settled_by(decided["verdict"], room, len(places), _fuller(_heads(*groups[worst]))),
        "companions": {
            "limit": limit,
            "by_recipe": {
                one.recipe: _table(
                    one, part, lambda values, normal: companion(evidence, config, values, normal, places)
                )
                for one, part in zip(found, parts, strict=True)
            },
            "worst_by_template": _by_template(evidence, *groups[worst]),
            "grouping_prompts": evidence.data("22")["completeness"]["grouping_prompts"],
        },
    }


def _decide_published(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """|F(C without K) - F(M without K)| / N below the limit for every K, the empty one included, under every recipe run."""
    preconditions.require_behaviour(evidence, config)
    found = [losses(evidence, recipe) for recipe in recipes_run(evidence) or preconditions.on_distribution(evidence)]
    counts = draw_counts(evidence, config, found[0].places)
    parts = [
        shares([f"nothing, {one.recipe}", *_names(one)], one.published, normaliser(one.model, one.empty), counts)
        for one in found
    ]
    together = joined(parts)
    decided = decide_within(together, config["max_incompleteness"])
    worst, room = decided.pop("worst"), decided.pop("room")
    decided.pop("beyond")
    score = abs(decided["estimate"])
    return {
        **decided,
        "reasons": ()
        if decided["verdict"] == "pass"
        else (f"incomplete: circuit and model differ by {score:.2f} of N {_in_absence(found, worst)}",),
        "needs": settled_by(decided["verdict"], room, len(found[0].places), _fuller_than(found, worst)),
        "companions": {
            "limit": config["max_incompleteness"],
            "score": score,
            "group": together.names[worst],
            "group_ci90": percentile_interval(together.draws[:, worst], 0.90),
        },
    }


def _names(one: Losses) -> list[str]:
    return [f"{group['name']}, {one.recipe}" for group in one.groups]


def _set_at(found: Sequence[Losses], place: int) -> tuple[Losses, int | None]:
    """The recipe and the group (None for no group) of the set at `place`: each recipe has the empty set, then its groups."""
    for one in found:
        if place <= len(one.groups):
            return one, place - 1 if place else None
        place -= 1 + len(one.groups)
    raise IndexError(place)


def _in_absence(found: Sequence[Losses], place: int) -> str:
    """Without which heads, and under which recipe."""
    one, group = _set_at(found, place)
    without = "with every claimed head in place" if group is None else f"without {_heads(one, group)}"
    return f"{without} ({one.recipe.replace('_', ' ')})"


def _fuller_than(found: Sequence[Losses], place: int) -> str:
    """The fuller claim that the set at `place` calls for."""
    one, group = _set_at(found, place)
    if group is None:
        return f"a claim that does all of the task by itself under {one.recipe.replace('_', ' ')}"
    return _fuller(_heads(one, group))


def _heads(one: Losses, place: int) -> str:
    return " ".join(names(one.groups[place]))


def _fuller(heads: str) -> str:
    return f"a claim that includes the heads that stand in for {heads}, or through which those act"


def _sentence(one: Losses, place: int) -> str:
    normal = normaliser(one.model, one.empty).mean()
    circuit, model = (float(lost[place].mean() / normal) for lost in (one.lost_by_circuit, one.lost_by_model))
    recipe = one.recipe.replace("_", " ")
    return f"incomplete: without {_heads(one, place)} ({recipe}) the circuit loses {circuit:.2f} and the model {model:.2f} of N"


def settled_by(verdict: str, room: float, n_prompts: int, fuller: str) -> str | None:
    """What would settle the verdict: more prompts if the worst group lies within the limit (`room` above 0), else `fuller`.

    `room` is that of `decide_within`, `fuller` describes a fuller claim. None for a pass.
    """
    if verdict == "pass":
        return None
    if verdict == "fail" or room <= 0:
        return fuller
    return f"about {math.ceil(n_prompts * max(1.0, 1 / room) ** 2)} prompts in measurement 22"


def _table(one: Losses, part: Shares, over_wordings: Callable[[np.ndarray, np.ndarray], Any]) -> dict[str, Any]:
    """The worst groups under one recipe, with both losses, since a ratio would hide which of them is small.

    `over_wordings` gives the interval of a ratio of two per-prompt values with wordings as the sampling units.
    """
    by_prompt = normaliser(one.model, one.empty)
    normal, clean = by_prompt.mean(), one.model.mean()
    order = np.argsort(-np.abs(part.estimates), kind="stable")[:WORST_SHOWN]
    published = np.abs(one.published.mean(1) / normal)
    return {
        "mean_clean": float(clean),
        "all_heads": float((one.model - one.empty).mean()),
        "normaliser": float(normal),
        "faithfulness": float(one.circuit.mean() / clean),
        "worst_published_score": float(published.max()),
        "groups": [
            {
                "name": one.groups[place]["name"],
                "kind": one.groups[place]["kind"],
                **named(one.groups[place]["heads"], one.groups[place].get("nodes", ())),
                "incompleteness": float(part.estimates[place]),
                "ci90": percentile_interval(part.draws[:, place], 0.90),
                "ci90_over_wordings": over_wordings(one.incompleteness[place], by_prompt),
                "lost_by_circuit": float(one.lost_by_circuit[place].mean() / normal),
                "lost_by_model": float(one.lost_by_model[place].mean() / normal),
                "published_score": float(published[1 + place]),
            }
            for place in order
        ],
    }


def _by_template(evidence: Evidence, one: Losses, place: int) -> dict[str, float]:
    """inc of one group on the prompts of each template, all over the same N."""
    templates, normal = evidence.templates[one.places], normaliser(one.model, one.empty).mean()
    return {
        str(name): float(one.incompleteness[place][templates == name].mean() / normal) for name in np.unique(templates)
    }
