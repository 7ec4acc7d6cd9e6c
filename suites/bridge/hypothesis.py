"""Which heads carry the difference between failing and passing prompts, and the circuit that says so.

On the discovery half alone:

1. `circuits.difference` traces the difference: attention, lens, residual stream, attention and MLP outputs, heads.
2. A head is named if patching it alone restores more than `minimum_share` of the difference, by the lower end of a simultaneous
   interval over all heads (cluster-robust, corrected for their number). Without the correction, the largest of many heads would
   be named by chance. Except for the head that restores most, a head must also be named on nearly all halves of the discovery
   clusters (stability selection). Otherwise a head whose share is near the minimum would be named in one copy of a model and
   not in the next.
3. The circuit of the passing behaviour is searched as for any task, and the named heads are added to it: a head that fails
   on the failing prompts belongs to the circuit that works on the passing ones.

`suites.bridge.confirmation` repeats step 2 on the confirmation half, whose prompts were not used to name the heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float

import code_digest
import results_io
from calibrations.statistics import Insufficient, ratio_of_means
from circuits import circuit as circuit_files
from circuits import difference, discovery
from circuits.circuit import Circuit, Role, parse_head
from circuits.engine import DeadHookError
from circuits.measure import Plan, ProgressBar, environment, is_fresh
from result_types import TracedDifference, TraceResult
from results_io import UserError
from suites.bridge.pair import SuitePairs

NUMBER, ID = "141", "trace"
CARRIER = "carries_the_difference"
READS = ("difference", "discovery", "repeated_tokens", "seed")  # sections of the measurement settings


@dataclass(frozen=True)
class Carrier:
    """A head and the share of the difference that it alone restores, with a simultaneous interval over all heads.

    `selected`: the share of random halves of the clusters on which it is named as well.
    """

    head: str
    restored: float
    low: float
    high: float
    broken: float
    selected: float = 1.0


@dataclass(frozen=True)
class Hypothesis:
    """The hypothesis from the discovery half. `circuit` is None if no head is named; then there is nothing to certify."""

    circuit: Circuit | None
    document: TraceResult

    @property
    def sentences(self) -> list[str]:
        """The evidence for the terminal, one line each, in the order in which it was found."""
        return _sentences(self.document)


def propose(plan: Plan, group: SuitePairs, folder: Path, progress: ProgressBar, method: str) -> Hypothesis:
    """The hypothesis about a group of failures; a stored one for the same prompts and weights is read instead of recomputed.

    Writes 141_trace.json and circuit.yaml. UserError as `circuits.difference.trace`.
    """
    path, claimed = folder / f"{NUMBER}_{ID}.json", folder / "circuit.yaml"
    method = discovery.method_name(method, len(plan.identity.heads), plan.settings)
    subject = {
        **plan.subject("01"),
        "suite": group.suite,
        "method": method,
        "settings": {key: plan.settings[key] for key in READS},
        "traced_by": code_digest.version_of("traces of failures"),
    }
    if is_fresh(path, subject):
        stored = cast(TraceResult, results_io.read(path))
        circuit = circuit_files.load(claimed) if stored["named"] and claimed.is_file() else None
        if stored["circuit_sha256"] == (circuit and circuit.sha256) and fits(stored["data"]):
            return Hypothesis(circuit, stored)
    with progress("trace") as bar:
        study = replace(plan.study, progress=bar)
        traced = difference.trace(study, study.discovery)
        able = candidates(traced, plan.settings["difference"])
        named = stable(able, plan.settings["difference"])
        circuit, searched = _circuit(study, named, method, group) if named else (None, None)
    document = {
        "number": NUMBER,
        "id": ID,
        "kind": "behaviour",
        "subject": subject,
        "environment": environment(plan),
        "group": {
            "suite": group.suite,
            "suite_sha256": group.sha256,
            "mode": group.mode,
            "pairs": len(group.pairs),
            "failures": group.failures,
        },
        "data": traced,
        "named": [vars(carrier) for carrier in named],
        "unstable": [vars(carrier) for carrier in able if carrier not in named],
        "search": searched,
        "circuit_sha256": circuit.sha256 if circuit else None,
    }
    if circuit:
        circuit_files.save(circuit, claimed)
    results_io.write(path, document)
    return Hypothesis(circuit, cast(TraceResult, results_io.read(path)))


def fits(data: TracedDifference) -> bool:
    """Whether a trace has a value for every head and role, which its type cannot express; otherwise it is recomputed."""
    heads, roles = len(data["heads"]["names"]), data["roles"]
    runs = data["attention"]["clean"], data["attention"]["corrupted"]
    of_heads = [run["entropy"] for run in runs] + [run["to"].get(role, ()) for run in runs for role in roles]
    tables = [data["sites"]["restored"][kind] for kind in difference.SITES]
    return (
        bool(heads and roles)
        and all(len(one) == heads and None not in one for one in (data["heads"]["restored"], *of_heads))
        and all(table and all(len(row) == len(roles) for row in table) for table in tables)
    )


def carriers(traced: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Carrier]:
    """The named heads, the one that restores most first: the `stable` ones of the `candidates`."""
    return stable(candidates(traced, settings), settings)


def stable(able: list[Carrier], settings: Mapping[str, Any]) -> list[Carrier]:
    """The strongest candidate, and those of the others that are named on at least the share `settings.stable` of the halves.

    The intervals already control the family-wise error of the candidates; selection only removes some. Meinshausen and Buehlmann
    bound the expected number of heads that are kept although a half names them no more often than an average head: it is at most
    q^2 / ((2 stable - 1) H), for H heads of which a half names q on average. Source: Meinshausen & Buehlmann 2010; complementary
    halves: Shah & Samworth 2013.
    """
    return [one for place, one in enumerate(able) if place == 0 or one.selected >= settings["stable"]]


def candidates(traced: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Carrier]:
    """Every head whose interval lies above `settings.minimum_share`, the one that restores most first.

    `settings`: also level (simultaneous, of the intervals), halves and seed (of the selection).
    """
    heads = traced["heads"]
    restored, broken, gap = (np.asarray(heads["by_prompt"][key], dtype=float) for key in ("restored", "broken", "gap"))
    clusters = np.array(heads["clusters"])
    bounds = intervals(restored, gap, clusters, settings)
    share, lost = restored.sum(1) / gap.sum(), broken.sum(1) / gap.sum()
    above = [i for i, (low, _) in enumerate(bounds) if low > settings["minimum_share"]]
    often = selected(restored, gap, clusters, above, settings)
    found = [Carrier(heads["names"][i], float(share[i]), *bounds[i], float(lost[i]), often[i]) for i in above]
    return sorted(found, key=lambda carrier: (-carrier.restored, carrier.head))


def selected(
    effect: Float[np.ndarray, "head prompt"],
    gap: Float[np.ndarray, " prompt"],
    clusters: np.ndarray,
    asked: list[int],
    settings: Mapping[str, Any],
) -> dict[int, float]:
    """{head: share of complementary random halves of the clusters on which its interval lies above the minimum}, for `asked`.

    The intervals are simultaneous over all heads, as on the whole data. A single head is the strongest and gets 1.
    """
    if len(asked) < 2:
        return dict.fromkeys(asked, 1.0)
    labels, rng = np.unique(clusters), np.random.default_rng(settings["seed"])
    level = 1 - (1 - float(settings["level"])) / len(effect)
    named, drawn = dict.fromkeys(asked, 0), 0
    for _ in range(settings["halves"]):
        order = rng.permutation(len(labels))
        for half in (order[: len(labels) // 2], order[len(labels) // 2 :]):
            inside, drawn = np.isin(clusters, labels[half]), drawn + 1
            for head in asked:
                low, _ = _interval(effect[head, inside], gap[inside], clusters[inside], level)
                named[head] += low > settings["minimum_share"]
    return {head: count / drawn for head, count in named.items()}


def intervals(
    effect: Float[np.ndarray, "head prompt"],
    gap: Float[np.ndarray, " prompt"],
    clusters: np.ndarray,
    settings: Mapping[str, Any],
) -> list[tuple[float, float]]:
    """Simultaneous intervals of sum(effect) / sum(gap) over all heads.

    They are cluster-robust Fieller intervals at level 1 - (1 - level) / heads (Bonferroni). Their t quantile grows for few
    clusters; with a dozen clusters, a bootstrap named a head in a fifth of null data sets. (-inf, inf) if one is unbounded.
    """
    level = 1 - (1 - float(settings["level"])) / len(effect)
    return [_interval(one, gap, clusters, level) for one in effect]


def _interval(effect: np.ndarray, gap: np.ndarray, clusters: np.ndarray, level: float) -> tuple[float, float]:
    try:
        return ratio_of_means(effect, gap, clusters).fieller(level)
    except Insufficient:
        return -np.inf, np.inf


def _circuit(study: Any, named: list[Carrier], method: str, group: SuitePairs) -> tuple[Circuit, dict[str, Any]]:
    """(the circuit of the passing behaviour with the named heads added, the report of the search)."""
    heads = {parse_head(carrier.head): carrier for carrier in named}
    try:
        found = discovery.find(study, method)
    except DeadHookError:  # nothing can be measured in this model
        raise
    except UserError as reason:  # nothing to search in: the named heads are the claim
        roles, searched = {}, {"method": method, "found": None, "reason": str(reason)}
    else:
        roles = dict(found.circuit.roles)
        searched = {"method": method, "found": [str(node) for node in found.circuit.heads], "reason": ""}
    inside = {node for role in roles.values() for node in role.heads}
    if added := tuple(sorted(set(heads) - inside)):
        evidence = "; ".join(
            f"{heads[node].head} restores {heads[node].restored:.2f} of the difference" for node in added
        )
        roles[CARRIER] = Role(added, assigned_by="function", evidence=evidence)
    provenance = {
        "kind": "traced",
        "source": f"failures of suite {group.suite}; {method} search on their passing twins",
        "split": "discovery",
        "named": [f"{carrier.head} restores {carrier.restored:.3f}" for carrier in named],
        "model_sha256": study.model.sha256,
    }
    name = f"{study.task.name} of {group.suite}"
    return Circuit(name, study.task.name, study.model.name, roles, provenance), searched


def _sentences(document: TraceResult) -> list[str]:
    """The evidence of a trace, one line each for attention, emergence, sites and heads."""
    data, group, emergence = document["data"], document["group"], document["data"]["emergence"]
    lines = [
        f"Trace of {group['suite']} on {data['prompts']} discovery pairs ({data['clusters']} clusters), "
        f"{data['gap']:.2f} apart on average",
        _attention_line(data),
        f"Lens: the answer leads from {_typical(emergence['answer_leads_from'])} in passing runs, "
        f"the foil from {_typical(emergence['foil_leads_from'])} in failing ones",
        _site_line(data),
    ]
    if not document["named"]:
        restored = np.asarray(data["heads"]["restored"], dtype=float)  # complete, since the trace `fits`
        best = int(restored.argmax())
        lines.append(
            f"Heads: none is shown to restore more than {document['subject']['settings']['difference']['minimum_share']:g} of "
            f"the difference (most: {data['heads']['names'][best]} {restored[best]:.2f}), so no head is named"
        )
    else:
        named = ", ".join(
            f"{one['head']} {one['restored']:.2f} [{one['low']:.2f}, {one['high']:.2f}]" for one in document["named"]
        )
        lines.append(f"Heads: share of the difference restored by {named}")
    if document["unstable"]:
        shown = ", ".join(
            f"{one['head']} {one['restored']:.2f} ({one['selected']:.0%})" for one in document["unstable"]
        )
        lines.append(f"Not named, since few halves of the discovery pairs name them as well: {shown}")
    return lines


def _attention_line(data: Mapping[str, Any]) -> str:
    """The head and the named position whose attention from the answer position differs most between the two runs."""
    clean, corrupted = data["attention"]["clean"], data["attention"]["corrupted"]
    roles = list(data["roles"])
    change = np.array([np.subtract(corrupted["to"][role], clean["to"][role]) for role in roles])
    role, place = np.unravel_index(np.abs(change).argmax(), change.shape)
    name = data["heads"]["names"][place]
    return (
        f"Attention: largest change {name} to {roles[role]}, {clean['to'][roles[role]][place]:.2f} where it passes and "
        f"{corrupted['to'][roles[role]][place]:.2f} where it fails (entropy {clean['entropy'][place]:.2f} and "
        f"{corrupted['entropy'][place]:.2f})"
    )


def _typical(layers: list[int | None]) -> str:
    """The median layer over the prompts that have one."""
    known = [layer for layer in layers if layer is not None]
    return f"layer {int(np.median(known))} on" if known else "no layer"


def _site_line(data: Mapping[str, Any]) -> str:
    """For each kind of site, the layer and position that restore most of the difference."""
    parts = []
    for kind in difference.SITES:
        table = np.array(data["sites"]["restored"][kind])
        layer, role = np.unravel_index(table.argmax(), table.shape)
        parts.append(f"{kind} {layer} at {data['roles'][role]} {table[layer, role]:.2f}")
    return "Sites that restore most: " + ", ".join(parts)
