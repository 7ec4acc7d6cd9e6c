"""The certificate in words: the tier, what blocks the next one, what the claim leaves out, and every verdict with its reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from calibrations import preconditions
from calibrations.certificate import BEHAVIOUR
from calibrations.certificate_row import CertificateRow, MetricRow, calibrations_of
from calibrations.number_format import number
from calibrations.registry import CALIBRATIONS
from calibrations.tier_words import tier_name, tier_text
from calibrations.worst_groups import WorstGroups
from meridian import worst_recipe
from meridian.figures import forest
from meridian.figures.names import in_sentence
from meridian.report import first_screen, sources
from meridian.report.sources import FieldSource, file_of, of_certificate, step
from meridian.run_folder import RunFolder

MEANING = {  # what each tier means, by its name without the recipe and without the addition about labels
    "proposed": "The claim is made; the evidence for a circuit is not there yet.",
    "lead": "It beats random circuits of its shape. More is not shown.",
    "supported": "Under this recipe and under resample it is faithful and leaves little out; it beats a naive choice of "
    "heads, and is reliably measured.",
    "triangulated": "Every recipe, other methods, other wordings and names say the same of it.",
    "certified": "It is also specific, stable and without an idle head, and held-out prompts say the same.",
}
OTHER_RULES = "It was not reached under released rules, so it cannot be compared with other tiers."
SEVERITY = ("fail", "inconclusive", "insufficient", "not run")  # in the order in which readers should see them
FIRST_BLOCKERS = 6  # on the first screen; all are listed with their reasons below
FIRST_GROUPS = 5  # of each table; the others can be opened
REMEDY_OF_FAIL = "a fail is a finding about the circuit: more data will not change it"
CODE = re.compile(r"\b[a-z]+(?:_[a-z]+)+(?=:)")
DRAWN_INTERVAL = "in brackets: 90 % percentile bootstrap over clusters, drawn again from result 20"


@dataclass(frozen=True)
class Line:
    """One metric in the certificate's table, with its calibration and the quantity that it estimates."""

    id: str
    name: str
    metric: MetricRow
    quantity: str = ""
    field: str = ""  # its record's field in certificate.json
    of_estimate: FieldSource | None = None  # the source of an estimate that is not the record's own

    def source(self, name: str, made: str = "") -> FieldSource:
        """The source of a number of the record."""
        if name == "estimate" and self.of_estimate is not None:
            return self.of_estimate
        return of_certificate(f"{self.field}.{name}", made)


@dataclass(frozen=True)
class Blocker:
    """A gate that blocks a tier, or warns."""

    name: str
    verdict: str
    reason: str
    needs: str
    split: str
    metric: str
    asked: str
    field: str  # in certificate.json
    reason_field: str = "reason"

    @property
    def id(self) -> str:
        """The calibration that the gate belongs to."""
        return self.metric.partition(".")[0]

    def source(self, name: str) -> FieldSource:
        """The source of the gate's reason or of what it needs."""
        return of_certificate(f"{self.field}.{name}")

    @property
    def short(self) -> str:
        """ "P faithfulness every recipe"."""
        return self.metric.replace(".", " ", 1).replace("_", " ")


def view(run: RunFolder) -> dict[str, Any]:
    """The values for the certificate's part of the page's template. Some of them:

    - `lines`: the metrics in the table; `open_lines`: those that did not pass; `others`: metrics that gate no tier;
    - `about`: (ID, metric, published rule, method of the interval, p, its source, verdict on the held-out prompts, page of the
      documentation) for every metric;
    - `recipes`: (recipe, faithfulness, its interval, faithfulness above the floor);
    - `groups`: what the claim leaves out.
    """
    stored = run.certificate
    tier, blocking = stored["tier"], stored["blocking"]
    titles = {row.id: row.title for row in run.rows}
    lines = [line for row in run.rows for line in _lines(run, row, True)]
    following = None if tier is None or tier == stored["of"] else tier + 1
    blockers = {level: _blockers(gates, titles, f'blocking["{level}"]') for level, gates in sorted(blocking.items())}
    of_next = blockers.pop(str(following), ())
    said = ("of", "ceiling")
    return {
        **{name: stored["subject"][name] for name in ("task", "model")},
        **{name: stored[name] for name in said},
        "tier": tier,
        "said": tier_text(stored),
        "meaning": meaning(tier_name(stored)) if run.rules.released else OTHER_RULES,
        "rules": run.rules,
        "next_tier": following,
        "blockers": _absent(run) if tier is None else of_next,
        "later": {} if tier is None else blockers,
        "warnings": _blockers(stored["warnings"], titles, "warnings"),
        "headline": stored.get("headline") or _plain_headline(run),
        "headline_sources": {name: sources.of_certificate(f"headline.{name}") for name in stored.get("headline", ())},
        "calibrations": len(run.rows) - 1,
        "verdicts": Counter(row.verdict for row in calibrations_of(stored)),
        "groups": (groups := WorstGroups.read(stored)),
        "folded_beyond": [
            (place, group)
            for place, group in sorted(
                enumerate(groups.claimed[FIRST_GROUPS:], FIRST_GROUPS), key=lambda one: -abs(one[1].in_limits)
            )
            if abs(group.in_limits) > 1
        ],
        "first_groups": FIRST_GROUPS,
        "recipes": _recipes(run),
        "random": _random(run),
        "random_source": FieldSource(file_of(run, "P") or "", f"{_record_field(run, 'P.random_circuits')}.companions"),
        "because": first_screen.why(run),
        "kept": first_screen.kept_number(run),
        "first_blockers": FIRST_BLOCKERS,
        "graph_label": f"{len(run.evidence.circuit_heads)} of {len(run.evidence.heads)} heads by layer and role",
        "recipe_sources": _recipe_sources(run),
        "lines": lines,
        "open_lines": sorted((line for line in lines if line.metric.verdict != "pass"), key=_severity),
        "passed_lines": [line for line in lines if line.metric.verdict == "pass"],
        "others": [line for row in run.rows for line in _lines(run, row, False)],
        "about": [about for row in run.rows for about in _about(run, row)],
        "p_certificate": "" if stored["p_certificate"] is None else number(stored["p_certificate"]),
    }


def meaning(tier_name: str) -> str:
    """What a tier means; "supported under zero" counts as "supported". Empty for a name that the rules do not have."""
    return MEANING.get(re.split(" under |, ", tier_name)[0], "")


def words(reason: str) -> str:
    """A reason in words: `not_faithful: ...` becomes `not faithful: ...`, `n_prompts: ...` becomes `too few prompts: ...`.

    Metrics and tasks in it lose their underscores.
    """
    said = CODE.sub(lambda found: re.sub("^n ", "too few ", found.group().replace("_", " ")), reason)
    return in_sentence(said)


def gate_name(metric: str, titles: Mapping[str, str]) -> str:
    """C12.convergent_validity as "C12 convergent validity"; if a calibration has two gates, the name says which."""
    identifier, _, short = metric.partition(".")
    short, title = short.replace("_", " "), titles.get(identifier, "")
    return f"{identifier} {short}" if short == title or not title else f"{identifier} {title}: {short}"


def _blockers(gates: Any, titles: Mapping[str, str], field: str) -> tuple[Blocker, ...]:
    """The gates of a field of certificate.json that is a list of them."""
    return tuple(_blocker(gate, titles, f"{field}[{place}]") for place, gate in enumerate(gates))


def _blocker(gate: Mapping[str, Any], titles: Mapping[str, str], field: str) -> Blocker:
    return Blocker(
        gate_name(gate["metric"], titles),
        gate["verdict"],
        words(gate["reason"]),
        f"needs {gate['needs']}" if gate["needs"] else REMEDY_OF_FAIL if gate["verdict"] == "fail" else "",
        gate["split"].replace("_", "-"),
        gate["metric"],
        first_screen.asked(gate),
        field,
    )


def _absent(run: RunFolder) -> tuple[Blocker, ...]:
    """The blocker of a run without a tier, whose model is not shown to do the task."""
    row = run.rows[0]
    return tuple(
        replace(
            _blocker(
                {**asdict(metric), "reason": metric.why, "split": "evaluation"},
                {"P": row.title},
                _field(run, row, place),
            ),
            reason_field="reasons",
        )
        for place, metric in enumerate(row.metrics)
        if metric.metric == BEHAVIOUR
    )


def _lines(run: RunFolder, row: CertificateRow, chief: bool) -> list[Line]:
    """The metrics in the table if `chief`, else the others. A calibration that was not run has one line in the table."""
    if not row.metrics:
        return [Line(row.id, row.title, MetricRow(row.id, row.verdict))] if chief else []
    document, titles = run.calibration(row.id), {row.id: row.title}
    lines = [
        Line(
            row.id,
            gate_name(metric.metric, titles).partition(" ")[2],
            metric,
            "" if document is None else forest.quantity(metric.metric, document["subject"]["settings"]),
            _field(run, row, place),
        )
        for place, metric in enumerate(row.metrics)
        if (metric in row.shown) == chief
    ]
    return [_with_worst_recipe(run, line) for line in lines]


def _with_worst_recipe(run: RunFolder, line: Line) -> Line:
    """The line with the number of the recipe that is farthest from passing, where its gate is on several and does not pass."""
    recipe = worst_recipe.of(run, line.metric)
    if recipe is None:
        return line
    field = f"{_record_field(run, line.metric.metric)}.companions.by_method.{recipe}.faithfulness"
    source = FieldSource(file_of(run, "P") or "", field, DRAWN_INTERVAL)
    quantity = f"worst recipe: {recipe.replace('_', ' ')}"
    return replace(line, metric=worst_recipe.shown(run, line.metric), quantity=quantity, of_estimate=source)


def _field(run: RunFolder, row: CertificateRow, place: int) -> str:
    """The field in certificate.json of the record at this place of a row. The first row of the run is the preconditions."""
    at = [one.id for one in run.rows].index(row.id)
    return f"preconditions[{place}]" if at == 0 else f"rows[{at - 1}].records[{place}]"


def _severity(line: Line) -> int:
    return SEVERITY.index(line.metric.verdict) if line.metric.verdict in SEVERITY else len(SEVERITY)


def _about(run: RunFolder, row: CertificateRow) -> Iterator[tuple[str | FieldSource, ...]]:
    document, module = run.calibration(row.id), CALIBRATIONS.get(row.id)
    if document is None:
        return
    again = {record["metric"]: record["verdict"] for record in document["data"]["held_out"]}
    page = f"docs/calibrations/{module.__name__.rpartition('.')[2] if module else 'preconditions'}.md"
    for place, one in enumerate(map(MetricRow.read, document["records"])):
        p = "" if one.p is None else f"{number(one.p)} ({one.p_kind})"
        source = FieldSource(file_of(run, document["number"]) or "", f"records[{place}].p")
        again_said = again.get(one.metric, "none")
        yield row.id, one.metric, one.published_rule, one.ci_method or "", p, source, again_said, page


def _plain_headline(run: RunFolder) -> dict[str, str]:
    """The headline for a certificate of an older version, which has none."""
    subject = run.certificate["subject"]
    split = run.require("01")["data"]["split"]
    data = f"{split.count('evaluation')} evaluation + {split.count('held_out')} held-out prompts"
    return {"subject": f"{subject['task']} on {subject['model']}", "data": data, "faithfulness": ""}


def _recipes(run: RunFolder) -> list[tuple[str, str, str, str]]:
    table, intervals = run.companions("P.faithfulness").get("by_method", {}), run.recipe_intervals
    return [
        (
            name.replace("_", " "),
            number(entry["faithfulness"]),
            " to ".join(map(number, intervals[name])),
            number(entry["normalised"]),
        )
        for name, entry in table.items()
        if "faithfulness" in entry
    ]


def _recipe_sources(run: RunFolder) -> list[dict[str, FieldSource]]:
    """The sources of the numbers of each of `_recipes`."""
    name, at = file_of(run, "P") or "", _record_field(run, "P.faithfulness")
    drawn = FieldSource(file_of(run, "20") or "", "data.logit_diff", "percentile bootstrap over clusters, drawn again")
    table = run.companions("P.faithfulness").get("by_method", {})
    fields = {recipe: f"{at}.companions.by_method{step(recipe)}" for recipe in table}
    return [
        {
            "faithfulness": FieldSource(name, f"{fields[recipe]}.faithfulness"),
            "interval": drawn,
            "normalised": FieldSource(name, f"{fields[recipe]}.normalised"),
        }
        for recipe, entry in table.items()
        if "faithfulness" in entry
    ]


def _record_field(run: RunFolder, metric: str) -> str:
    """The field of a metric's record in the result of P."""
    document = run.calibration("P")
    records = [] if document is None else document["records"]
    return f"records[{next((place for place, record in enumerate(records) if record['metric'] == metric), 0)}]"


def _random(run: RunFolder) -> str:
    found = run.companions("P.random_circuits")
    if "random_median" not in found:
        return ""
    median, high, most = map(number, (found["random_median"], found["random_90"][1], found["random_maximum"]))
    alike = preconditions.null_words(found.get("any_layers", False))
    return f"Random circuits of {alike}, mean ablation: median {median}, 95 % below {high}, largest {most}."
