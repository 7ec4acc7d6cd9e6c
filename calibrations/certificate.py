"""Stage 3: fold the verdicts into a tier, what blocks the next one, and what each blocked gate needs. No scalar.

Rules: a tier is reached when its gates and those of all lower tiers pass. `inconclusive` and `insufficient` block promotion
but do not count against the circuit. A gate that only must not fail is blocked by neither, unless it was not run. A model
that is not shown to do the task gets no tier: there is nothing for a circuit to explain, and a null circuit would be stable,
invariant and specific. The ceiling is the highest tier that these data could reach: the one below the first gate that is
`insufficient` for want of data. Published verdicts are shown beside it; how many of them pass has no name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import nan
from typing import Any

from calibrations.calibrate import OF_ROWS, PRECONDITIONS, Documents
from calibrations.certificate_row import CertificateRow, MetricRow
from calibrations.evidence import PRIMARY
from calibrations.record import deciding
from calibrations.registry import CALIBRATIONS
from calibrations.rules import Standing
from calibrations.statistics import Insufficient, intersection_union_p, or_clause_p
from calibrations.tier_words import under
from calibrations.worst_groups import STORED, named

BEHAVIOUR = "P.behaviour"
SUBJECT = (
    "model",
    "model_sha256",
    "task",
    "prompts_sha256",
    "circuit",
    "circuit_sha256",
)  # what a certificate is about
NO_TIER = {  # by the verdict of P.behaviour: without the behaviour there is nothing to explain
    "insufficient": "the behaviour is absent",
    "fail": "the behaviour is absent",
    "inconclusive": "the behaviour is not shown",
}
WITHOUT_P = ("P.denominator", "M93.multiple_comparisons")  # gates that test no hypothesis of their own
RECIPE_NAMES = {
    "mean": "mean per template and position",
    "mean_pooled": "mean over all positions",
    "zero": "zero, the heads' constants kept",
    "zero_raw": "zero, the heads' constants removed",
    "resample": "resample",
    "noise": "noise",
}
NOT_RUN = {"not_run"}  # a gate that was not run has not been shown to hold


@dataclass(frozen=True)
class Gate:
    """One condition of a tier and how it came out."""

    metric: str
    verdict: str
    reason: str
    needs: str | None
    p: float | None
    split: str = "evaluation"

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"


@dataclass(frozen=True)
class Tier:
    """The gates of one tier: all of `gates` and one of each group of `alternatives` pass, none of `not_fail` fails or was not
    run. A preset's `barred` gates never pass."""

    level: int
    gates: tuple[Gate, ...]
    alternatives: tuple[tuple[Gate, ...], ...]
    not_fail: tuple[Gate, ...]
    barred: tuple[Gate, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.blocking

    @property
    def blocking(self) -> tuple[Gate, ...]:
        """Gates that keep the tier from being reached."""
        blocked = [gate for gate in self.gates if not gate.passed]
        for group in self.alternatives:
            blocked += () if any(gate.passed for gate in group) else group
        failed = (gate for gate in self.not_fail if gate.verdict == "fail" or _wants_data(gate, NOT_RUN))
        return (*blocked, *failed, *self.barred)

    def limited_by_data(self, reasons: Iterable[str]) -> bool:
        """True if no circuit could pass this tier with these data."""
        reasons = set(reasons)
        required = (*self.gates, *(gate for gate in self.not_fail if _wants_data(gate, NOT_RUN)))
        return any(_wants_data(gate, reasons) for gate in required) or any(
            all(_wants_data(gate, reasons) for gate in group) for group in self.alternatives
        )


def certify(documents: Documents, rules: Mapping[str, Any], standing: Standing | None = None) -> dict[str, Any]:
    """The certificate: subject, tier, ceiling, gates by tier, blocking gates, one row per calibration.

    `documents` are those of `calibrate`, `rules` is the certificate section of the configuration, and `standing` compares all
    rules of the run with the released ones (None: unknown). A tier has its name only under released rules. `tier` is None if
    the model is not shown to do the task. If the rules have a `preset` (name and ceiling), no tier above its ceiling is
    reached, whatever passes.
    """
    standing, preset = standing or Standing(), rules.get("preset")
    tiers = [_tier(level, rules, documents) for level in sorted(map(int, rules["tiers"]))]
    reached = next((tier.level - 1 for tier in tiers if not tier.passed), tiers[-1].level)
    ceiling = next((tier.level - 1 for tier in tiers if tier.limited_by_data(rules["data_reasons"])), tiers[-1].level)
    if preset:
        ceiling = min(ceiling, preset["ceiling"])
    gates, about = _gates(documents), documents[PRECONDITIONS]["subject"]
    shown = gates[BEHAVIOUR].passed
    return {
        "kind": "certificate",
        "subject": {name: about[name] for name in (*SUBJECT, *({OF_ROWS} & set(about)))},
        "tier": reached if shown else None,
        "tier_name": _name(reached, rules, documents, standing) if shown else NO_TIER[gates[BEHAVIOUR].verdict],
        "of": tiers[-1].level,
        "ceiling": ceiling,
        **({"preset": dict(preset)} if preset else {}),
        "blocking": {
            str(tier.level): [asdict(gate) for gate in tier.blocking] for tier in tiers if tier.level > reached
        },
        "warnings": [
            asdict(gates[metric])
            for metric in rules["always_shown"]
            if metric in gates and gates[metric].verdict == "fail"
        ],
        STORED: named(documents[PRECONDITIONS]["records"]).to_dict(),
        "p_certificate": _p_certificate(tiers),
        "rules": standing.to_dict(),
        "rows": [row.to_dict() for row in rows(documents, named_gates(rules))],
        "preconditions": [asdict(MetricRow.read(record)) for record in documents[PRECONDITIONS]["records"]],
        "inputs": {identifier: document["number"] for identifier, document in sorted(documents.items())},
    }


def _name(reached: int, rules: Mapping[str, Any], documents: Documents, standing: Standing) -> str:
    """The tier's name and the recipe it was reached under; above tier 2, also whether the role labels were tested.

    Under rules that are not released, `under` (such as "under changed rules") takes the place of the name.
    """
    recipe = next(
        (
            r["companions"]["recipes"][0]
            for r in documents[PRECONDITIONS]["records"]
            if "recipes" in r.get("companions", {})
        ),
        PRIMARY,
    )
    name, recipe_name = rules["names"][reached], RECIPE_NAMES[recipe]
    if not standing.released:
        name = under(standing) + (", {recipe}" if "{recipe}" in name else "")
    name = name.format(recipe=recipe_name)
    labels = _gates(documents).get(rules["labels"])
    untested = reached > 2 and (labels is None or labels.verdict == "insufficient")
    return f"{name}, labels untested" if untested else name


def _tier(level: int, rules: Mapping[str, Any], documents: Documents) -> Tier:
    wanted = {int(key): value for key, value in rules["tiers"].items()}
    gates, rule, preset = _gates(documents), wanted[level], rules.get("preset")
    held_out: list[Gate] = []
    not_fail = [_find(gates, name) for name in rule.get("not_fail", ())]
    alternatives = [tuple(_find(gates, name) for name in rule["any"])] if "any" in rule else []
    if rule.get("held_out"):
        again = _gates(documents, "held_out")
        exempt = {*rule["held_out"]["except"], *rule["held_out"]["not_fail"]}
        names = dict.fromkeys(name for lower in wanted.values() for name in lower["all"] if name not in exempt)
        held_out = [_find(again, name, "held_out") for name in names]
        not_fail += [_find(again, name, "held_out") for name in rule["held_out"]["not_fail"]]
        groups = [lower["any"] for lower in wanted.values() if "any" in lower]
        alternatives += [tuple(_find(again, name, "held_out") for name in group) for group in groups]
    return Tier(
        level,
        (*(_find(gates, name) for name in rule["all"]), *held_out),
        tuple(alternatives),
        tuple(not_fail),
        (_bar(preset),) if preset and level > preset["ceiling"] else (),
    )


def _bar(preset: Mapping[str, Any]) -> Gate:
    """The gate that keeps tiers above the preset's ceiling from being reached."""
    name, ceiling = preset["name"], preset["ceiling"]
    return Gate(
        f"preset.{name}",
        "insufficient",
        f"preset: {name} certifies tier {ceiling} at most",
        f"a run without {name}",
        None,
    )


def _gates(documents: Documents, split: str = "evaluation") -> dict[str, Gate]:
    gates = {}
    for document in documents.values():
        records = document["records"] if split == "evaluation" else document["data"]["held_out"]
        for record in records:
            gates[record["metric"]] = Gate(
                record["metric"], record["verdict"], "; ".join(record["reasons"]), record["needs"], record["p"], split
            )
    return gates


def _find(gates: Mapping[str, Gate], metric: str, split: str = "evaluation") -> Gate:
    missing = Gate(
        metric, "insufficient", "not_run: this calibration was not asked for", "run calibration=all", None, split
    )
    return gates.get(metric, missing)


def _wants_data(gate: Gate, reasons: set[str]) -> bool:
    return gate.verdict == "insufficient" and gate.reason.partition(":")[0] in reasons


def _p_certificate(tiers: Iterable[Tier]) -> float | None:
    """Largest p of all gates: the p of "all gates pass" as an intersection-union test.

    A group of k gates of which one has to pass enters with k times its smallest p. None if a gate has no p: a conjunction
    with an untested part has not been tested.
    """
    tiers = tuple(tiers)
    gates = [gate for tier in tiers for gate in tier.gates if gate.split == "evaluation"]
    values = [nan if gate.p is None else gate.p for gate in gates if gate.metric not in WITHOUT_P]
    try:
        groups = [group for tier in tiers for group in tier.alternatives if group[0].split == "evaluation"]
        clauses = [or_clause_p([nan if gate.p is None else gate.p for gate in group]) for group in groups]
        return float(intersection_union_p([*values, *clauses]))
    except Insufficient:
        return None


def named_gates(rules: Mapping[str, Any]) -> dict[str, str]:
    """{metric: "pass" if some tier asks it to pass (alone or as an alternative), "not fail" if it only must not fail}."""
    tiers = rules["tiers"].values()
    lenient = {name: "not fail" for rule in tiers for name in rule.get("not_fail", ())}
    return lenient | {name: "pass" for rule in tiers for name in (*rule["all"], *rule.get("any", ()))}


def rows(documents: Documents, asked: Mapping[str, str] | None = None) -> list[CertificateRow]:
    """One row for every calibration, by ID; those without a document were not run. `asked`: see `named_gates`."""
    return [_row(identifier, documents.get(identifier), asked or {}) for identifier in CALIBRATIONS]


def _row(identifier: str, document: Mapping[str, Any] | None, asked: Mapping[str, str]) -> CertificateRow:
    """The row of one calibration. A metric that some tier asks for is gating here, even one that its calibration calls
    advisory (C23's role depth)."""
    title = CALIBRATIONS[identifier].TITLE
    if document is None:
        return CertificateRow(identifier, title, "not run")
    metrics, verdict = list(map(MetricRow.read, document["records"])), document["data"]["verdict"]
    asked = {one.metric: asked[one.metric] for one in metrics if one.metric in asked}
    return CertificateRow(
        identifier,
        title,
        verdict,
        tuple(replace(one, gating=one.gating or one.metric in asked) for one in metrics),
        gating=any(one.gating for one in metrics) or bool(asked),
        asked=asked,
        decisive=next(one.metric for one in deciding(metrics) if one.verdict == verdict),
    )
