"""07 oCSE: which heads' direct writes carry information about the logit difference that no other head carries.

Optimal causation entropy (Sun, Taylor & Bollt 2015) on the intact runs of the evaluation split: X_j is the direct
logit attribution of head j at the last position (03), Y the logit difference, both per prompt.

With the final norm's scale frozen, Y is exactly the sum of the attributions of all heads, MLPs, embedding and biases. So the
measurement partitions variance and does not estimate an unknown mechanism: whatever is not a head acts as noise, and in the
Gaussian estimator I(X_j; Y | S) = 1/2 ln(1 + variance of Y that only X_j explains / unexplained variance of Y). If heads
explain nearly everything, that ratio is unbounded, so `target_noise`, a share of the variance of Y, always counts as
unexplained. This has three consequences:

- a head that acts only through other heads has no X_j of its own and scores about 0, however much it matters;
- so does a head that affects every prompt equally, since information is about differences between prompts;
- of heads that write the same, one is selected and the others score 0 (`marginal` has them all).

The score of a head is I(X_j; Y | the selected heads without j), in nats, with the bias removed. Heads that are not selected get
a score too. A head whose attribution does not vary scores exactly 0 and is listed in `constant`.

Stability: the Gaussian selection is refitted on bootstrap resamples of the prompt clusters. A resample has 63 % of the
clusters, with unequal counts, so weak heads are selected less often than in the full data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from circuits.circuit import Node, head_pairs
from circuits.estimators.causation_entropy import (
    ColumnTest,
    Estimator,
    Gaussian,
    NearestNeighbour,
    Selection,
    bootstrap_weights,
    exchangeable_orders,
    scores,
    select,
    upper_quantile,
)
from circuits.interventions import Sweep, Variant
from circuits.measurements.direct_logit_attribution import attribute, require_linear
from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError

NUMBER, ID = "07", "ocse"
SETTINGS = ("ocse",)
DEPENDS_ON_CIRCUIT = False


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError for too few permutations to reach alpha, too few prompts for the neighbours, or a number that is not
    positive."""
    own = settings["ocse"]
    if not 0 < own["alpha"] < 1:
        raise UserError(f"measurement.ocse.alpha={own['alpha']} is no level; use a number between 0 and 1")
    for part in (own, own["nearest_neighbour"], own["bootstrap"]):
        upper_quantile(np.zeros(part["permutations"]), own["alpha"])
    positive = {
        **{name: own[name] for name in ("target_noise", "resolution", "residual_freedom")},
        **{
            f"nearest_neighbour.{name}": own["nearest_neighbour"][name]
            for name in ("neighbours", "local", "most_heads", "most_prompts")
        },
        "bootstrap.refits": own["bootstrap"]["refits"],
    }
    for name, value in positive.items():
        if not value > 0:
            raise UserError(f"measurement.ocse.{name}={value} is not positive; use a number above 0")
    nearest = own["nearest_neighbour"]
    if nearest["most_prompts"] < 2 + nearest["neighbours"]:
        raise UserError(
            f"measurement.ocse.nearest_neighbour.most_prompts={nearest['most_prompts']} are too few for "
            f"{nearest['neighbours']} neighbours; take at least {2 + nearest['neighbours']}"
        )


def measure(study: Study) -> dict[str, Any]:
    """Score, marginal information and selection by both estimators, and the stability of the Gaussian one.

    Raises NonlinearReadoutError if the logit difference is not a sum over components.
    """
    require_linear(study.model)
    settings = study.settings["ocse"]
    prompts = study.prompts.select(study.subset(len(study.prompts)))  # sorted by id: their order does not matter
    features = attribute(study, prompts)["attribution"].numpy().astype(float)
    target = study.run(Sweep((Variant("clean"),)), prompts, in_logits=True).row("clean").astype(float)
    _require_usable(target, settings)
    constant = features.std(0) <= settings["resolution"] * target.std()
    varying = np.flatnonzero(~constant).tolist()
    linear = gaussian(features, target, prompts, settings)
    nearest = nearest_neighbour(features, target, prompts, settings)
    selection = select(linear, varying)
    heads = study.model.heads
    return {
        **_report(linear, selection, heads),
        "explained_variance": _explained_variance(features[:, selection.columns], target),
        "nearest_neighbour": _report(nearest, select(nearest, varying), heads),
        "stability": _stability(features, target, prompts, selection, settings),
        "constant": head_pairs(heads[column] for column in np.flatnonzero(constant)),
        "prompt_id": prompts.ids,
        **({"row": study.task.source.rows_of(prompts.ids)} if study.task.source else {}),
        "settings": settings,
    }


def gaussian(
    features: Float[np.ndarray, "prompt head"],
    target: Float[np.ndarray, " prompt"],
    prompts: PromptSet,
    settings: Mapping[str, Any],
) -> Gaussian:
    """The Gaussian estimator on the prompts without resampling."""
    orders = exchangeable_orders(prompts.clusters, settings["permutations"], settings["seed"])
    return Gaussian(features, target, np.ones(len(target)), orders, **_gaussian_settings(settings))


def nearest_neighbour(
    features: Float[np.ndarray, "prompt head"],
    target: Float[np.ndarray, " prompt"],
    prompts: PromptSet,
    settings: Mapping[str, Any],
) -> NearestNeighbour:
    """The nearest-neighbour estimator, with fewer permutations because each costs a search.

    It takes only the first `most_prompts` prompts, because its time and memory grow with the square of their number. They are a
    random sample, since prompts are in the order of their hashes.
    """
    own = settings["nearest_neighbour"]
    taken = min(len(prompts), own["most_prompts"])
    return NearestNeighbour(
        features[:taken],
        target[:taken],
        exchangeable_orders(prompts.clusters[:taken], own["permutations"], settings["seed"]),
        alpha=settings["alpha"],
        resolution=settings["resolution"],
        neighbours=own["neighbours"],
        local=own["local"],
        most_given=own["most_heads"],
        seed=settings["seed"],
    )


def refit(
    features: Float[np.ndarray, "prompt head"],
    target: Float[np.ndarray, " prompt"],
    clusters: Sequence[str],
    settings: Mapping[str, Any],
    draw: int,
) -> tuple[int, ...]:
    """The heads that the Gaussian estimator selects in bootstrap resample number `draw` of the clusters."""
    weights = bootstrap_weights(clusters, [settings["seed"], draw])
    rows = np.flatnonzero(weights)
    drawn = [clusters[row] for row in rows.tolist()]
    orders = exchangeable_orders(drawn, settings["bootstrap"]["permutations"], settings["seed"])
    resample = Gaussian(features[rows], target[rows], weights[rows], orders, **_gaussian_settings(settings))
    return select(resample, range(features.shape[1])).columns


def _stability(
    features: np.ndarray, target: np.ndarray, prompts: PromptSet, selection: Selection, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Share of refits that select each head, and mean Jaccard index with the selection on all prompts."""
    refits = settings["bootstrap"]["refits"]
    selected = [set(refit(features, target, prompts.clusters, settings, draw)) for draw in range(refits)]
    frequency = [sum(head in chosen for chosen in selected) / refits for head in range(features.shape[1])]
    return {
        "frequency": frequency,
        "mean_jaccard": float(np.mean([_jaccard(chosen, set(selection.columns)) for chosen in selected])),
        "refits": refits,
    }


def _report(estimator: Estimator, selection: Selection, heads: Sequence[Node]) -> dict[str, Any]:
    def steps(tests: Sequence[ColumnTest]) -> list[dict[str, Any]]:
        return [
            {"head": head_pairs([heads[test.column]])[0], "information": test.information, "threshold": test.threshold}
            for test in tests
        ]

    return {
        "score": scores(estimator, selection.columns, len(heads)),
        "marginal": estimator.information(range(len(heads)), ()),
        "selected": head_pairs(heads[column] for column in selection.columns),
        "forward": steps(selection.forward),
        "rejected": steps([selection.rejected])[0] if selection.rejected else None,
        "pruned": steps(selection.pruned),
    }


def _explained_variance(features: np.ndarray, target: np.ndarray) -> float:
    """R^2 of the linear regression of the target on the selected heads."""
    design = np.column_stack([np.ones(len(target)), features])
    residual = target - design @ np.linalg.lstsq(design, target, rcond=None)[0]
    return float(1 - residual.var() / target.var())


def _jaccard(first: set[int], second: set[int]) -> float:
    """Jaccard index; 1 for two empty selections."""
    return len(first & second) / len(first | second) if first | second else 1.0


def _gaussian_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "alpha": settings["alpha"],
        "noise": settings["target_noise"],
        "resolution": settings["resolution"],
        "residual_freedom": settings["residual_freedom"],
    }


def _require_usable(target: np.ndarray, settings: Mapping[str, Any]) -> None:
    """Raises UserError if there are too few prompts for either estimator, or nothing to explain."""
    needed = 2 + max(settings["residual_freedom"] + 1, settings["nearest_neighbour"]["neighbours"])
    if len(target) < needed:
        raise UserError(
            f"oCSE has {len(target)} evaluation prompts and needs at least {needed} with these settings; "
            "ask for more, or for fewer neighbours and residual degrees of freedom"
        )
    if target.std() == 0:
        raise UserError(
            f"the logit difference is {target[0]:g} on all {len(target)} evaluation prompts, so oCSE has no differences "
            "to explain; use prompts that differ"
        )
