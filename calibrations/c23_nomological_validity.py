"""C23 nomological validity: does the circuit's structure follow the depth that theory expects? Advisory only.

Layer density correlates layer index with the number of circuit heads per layer; role depth correlates each
head's layer with the ordinal of its role. Role depth is informative only if roles were assigned from what
heads do: roles assigned by layer correlate with layer by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from calibrations.claimed_nodes import ClaimedNode, names
from calibrations.evidence import Evidence
from calibrations.preconditions import require_behaviour
from calibrations.record import Published, Record, judge
from calibrations.statistics import (
    Insufficient,
    jonckheere_terpstra,
    kendall_tau_b,
    layer_density,
    published_verdict,
    require_attainable,
    role_depth,
    somers_d,
    spearman,
)
from node_names import HEADS_AND_MLPS

ID = "C23"
NUMBER = "23"
NAME = "nomological_validity"
TITLE = "nomological validity"
INPUTS = ("01", "20")
NODES = (
    "An MLP counts in its layer's band and by its role as a head does, and a node once, whatever its positions; a "
    "layer then has room for its heads and one MLP."
)

DENSITY_RULE = "none: no direction is expected of layer density"
DEPTH_RULE = "rho of layer and role > 0 with p < {alpha}"


@dataclass(frozen=True)
class RoleTable:
    """Heads with an ordinal role: layer and (mean) ordinal of each head, and the same with one row per role membership."""

    layers: Float[np.ndarray, " head"]
    ordinals: Float[np.ndarray, " head"]
    every_layer: Float[np.ndarray, " membership"]
    every_ordinal: Float[np.ndarray, " membership"]
    without_ordinal: int  # heads whose roles have no place in the order
    in_several_roles: int
    circular: tuple[str, ...]  # roles with an ordinal that were not assigned from function


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C23.layer_density_correlation and C23.role_depth_correlation; neither gates a tier.

    Density: Spearman's rho of layer and number of circuit heads in it. Depth: Spearman's rho of a head's layer and the
    ordinal of its role (the mean if it has several). Published: depth rho > 0 with p < 0.05; density has no threshold.
    Verdict: depth is tested by permuting roles across heads: pass if rho > 0 at one-sided 0.05, fail if rho < 0 at two-sided
    0.05, otherwise inconclusive, since the absence of a trend contradicts nothing. Density is never passed or failed.
    """
    return [_density_record(evidence, config), _depth_record(evidence, config)]


def _density_record(evidence: Evidence, config: Mapping[str, Any]) -> Record:
    whole = {node.whole for node in evidence.claimed}
    counts = np.bincount([layer for _, layer, _ in whole], minlength=evidence.n_layers)
    with_mlps = evidence.scope == HEADS_AND_MLPS

    def published() -> Published:
        return Published(spearman(np.arange(len(counts)), counts).value, DENSITY_RULE, "none")

    def decide() -> dict[str, Any]:
        require_behaviour(evidence, config)
        result = layer_density(
            counts,
            int(evidence.data("01")["n_heads_per_layer"]) + with_mlps,
            n_resamples=config["permutations"],
            seed=config["permutation_seed"],
        )
        return {
            "verdict": "inconclusive",
            "reasons": ("descriptive: no hypothesis says that density should rise with depth",),
            "estimate": result.rho,
            "p": result.permutation.p,
            "p_kind": f"{result.permutation.p_kind}, two-sided, head positions drawn at random",
        }

    return judge(
        "C23.layer_density_correlation",
        published,
        decide,
        rule=DENSITY_RULE,
        gating=False,
        n={"layers": evidence.n_layers, "heads": len(evidence.circuit_heads), **evidence.counted_besides},
        companions={"nodes_per_layer" if with_mlps else "heads_per_layer": counts.tolist()},
    )


def _depth_record(evidence: Evidence, config: Mapping[str, Any]) -> Record:
    table = _role_table(evidence, config)
    rule = DEPTH_RULE.format(**config)
    return judge(
        "C23.role_depth_correlation",
        lambda: _published_depth(table, rule, config),
        lambda: _decide_depth(evidence, table, config),
        rule=rule,
        gating=False,
        n={"heads": len(table.layers)} if evidence.heads_only else {"nodes": len(table.layers)},
        companions=_depth_companions(table, config),
    )


def _role_table(evidence: Evidence, config: Mapping[str, Any]) -> RoleTable:
    memberships: dict[tuple[str, int, int], list[float]] = {}
    circular = []
    for name, role in sorted(evidence.circuit["roles"].items()):
        if role["ordinal"] is None:
            continue
        if role["assigned_by"] not in config["functional_labels"]:
            circular.append(name)
        for node in dict.fromkeys(ClaimedNode.read(name).whole for name in names(role)):
            memberships.setdefault(node, []).append(float(role["ordinal"]))
    nodes = sorted(memberships)
    every = [(float(node[1]), ordinal) for node in nodes for ordinal in memberships[node]]
    return RoleTable(
        layers=np.array([float(layer) for _, layer, _ in nodes]),
        ordinals=np.array([np.mean(memberships[node]) for node in nodes]),
        every_layer=np.array([layer for layer, _ in every]),
        every_ordinal=np.array([ordinal for _, ordinal in every]),
        without_ordinal=len({node.whole for node in evidence.claimed}) - len(nodes),
        in_several_roles=sum(len(ordinals) > 1 for ordinals in memberships.values()),
        circular=tuple(circular),
    )


def _published_depth(table: RoleTable, rule: str, config: Mapping[str, Any]) -> Published:
    rho, p = spearman(table.layers, table.ordinals)
    verdict = published_verdict(p, "<", config["alpha"]) if rho > 0 else "fail"
    return Published(rho, rule, verdict)


def _decide_depth(evidence: Evidence, table: RoleTable, config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: rho > 0 at one-sided alpha; fail: rho < 0 at two-sided alpha; otherwise inconclusive."""
    require_behaviour(evidence, config)
    if table.circular:
        raise Insufficient("circular_labels", f"roles {', '.join(table.circular)} were not assigned from function")
    if len(table.layers) < config["min_heads"]:
        raise Insufficient(
            "n_heads",
            f"{len(table.layers)} heads have an ordered role; at least {config['min_heads']} are needed",
        )
    draw = {
        "n_resamples": config["permutations"],
        "seed": config["permutation_seed"],
        "alpha": config["alpha"],
    }
    # Heads that share a layer raise the smallest attainable p above 1 / (number of role orders): the sorted order gives it.
    best = role_depth(np.sort(table.layers), np.sort(table.ordinals), **draw)
    require_attainable(best.p, config["alpha"])
    up = role_depth(table.layers, table.ordinals, **draw)
    both = role_depth(table.layers, table.ordinals, **draw, alternative="two-sided")
    verdict, reasons = "inconclusive", ("no trend of layer with role",)
    if up.statistic > 0 and up.p < config["alpha"]:
        verdict, reasons = "pass", ()
    elif up.statistic < 0 and both.p < config["alpha"]:
        verdict, reasons = "fail", ("later roles sit in earlier layers",)
    return {
        "verdict": verdict,
        "reasons": reasons,
        "estimate": up.statistic,
        "p": up.p,
        "p_kind": f"{up.p_kind}, one-sided, roles permuted across heads",
    }


def _depth_companions(table: RoleTable, config: Mapping[str, Any]) -> dict[str, Any]:
    groups = [table.layers[table.ordinals == ordinal] for ordinal in np.unique(table.ordinals)]
    draw = {"n_resamples": config["permutations"], "seed": config["permutation_seed"]}

    def or_none(compute: Callable[[], float]) -> float | None:
        try:
            return compute()
        except Insufficient:
            return None

    return {
        "kendall_tau_b": or_none(lambda: kendall_tau_b(table.ordinals, table.layers).value),
        "somers_d": or_none(lambda: somers_d(table.ordinals, table.layers).value),
        "jonckheere_terpstra_p": or_none(lambda: jonckheere_terpstra(groups, **draw).p),
        "rho_counting_each_role": or_none(lambda: spearman(table.every_layer, table.every_ordinal).value),
        "heads_in_several_roles": table.in_several_roles,
        "heads_without_ordinal": table.without_ordinal,
        "circular_roles": list(table.circular),
    }
