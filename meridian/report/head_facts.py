"""A run's facts about each head: effects by method with intervals and ranks, edges, role and evidence, verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrations.certificate_row import MetricRow
from calibrations.evidence import Head
from calibrations.number_format import number
from calibrations.worst_groups import WorstGroups
from meridian.figures.graph import head_name
from meridian.figures.heads import EFFECT, MEASURES, HeadQuantity
from meridian.figures.names import human, in_sentence
from meridian.figures.values import Figure, HeatMap
from meridian.report.sources import OVER_PROMPTS, FieldSource, file_of
from meridian.run_folder import RunFolder

HEAD = re.compile(r"\bL\d+H\d+\b")
Column = tuple[float | None, ...]  # [head]


@dataclass(frozen=True)
class Method:
    """One quantity of every head, in the order of the model's heads. `ranks`: by size, 1 for the largest, None if missing."""

    key: str  # "02.denoising"
    title: str
    unit: str
    figure: str
    file: str
    field: str
    made: str
    values: Column
    low: Column
    high: Column
    ranks: tuple[int | None, ...]

    def source(self, index: int) -> FieldSource:
        """The source of the value of the head at this index."""
        return FieldSource(self.file, f"{self.field}[{index}]", self.made)

    @property
    def is_effect(self) -> bool:
        """True for an effect on the task's metric or a direct contribution to it; False for a score in another unit."""
        return self.key in EFFECTS


EFFECTS = frozenset(f"{one.number}.{one.field}" for one in MEASURES if one.unit in (EFFECT, "nats") and one.diverging)


def methods(run: RunFolder, maps: Mapping[str, Figure]) -> list[Method]:
    """Every measurement of the heads, from the maps of the report."""
    found = []
    for measure in MEASURES:
        figure = maps.get(f"heads_{measure.number}_{measure.field}")
        if isinstance(figure, HeatMap):
            found.append(_method(run, measure, figure))
    return found


def _method(run: RunFolder, measure: HeadQuantity, figure: HeatMap) -> Method:
    heads = run.evidence.heads
    values = _column(figure.values, heads)
    return Method(
        key=f"{measure.number}.{measure.field}",
        title=figure.title,
        unit=figure.unit,
        figure=figure.name,
        file=file_of(run, measure.number) or "",
        field=f"data.{measure.field}" + ("[*]" if measure.per_prompt else ""),
        made=OVER_PROMPTS if measure.per_prompt else "",
        values=values,
        low=_column(figure.low, heads),
        high=_column(figure.high, heads),
        ranks=ranks(values),
    )


def _column(cells: Any, heads: Sequence[Head]) -> Column:
    return tuple(None if cells is None else cells[layer][head] for layer, head in heads)


def ranks(values: Sequence[float | None]) -> tuple[int | None, ...]:
    """The rank of each value by size, from 1, with ties in the given order; None for a missing value."""
    present = [place for place, value in enumerate(values) if value is not None]
    order = sorted(present, key=lambda place: -abs(values[place] or 0.0))
    place_of = {place: rank for rank, place in enumerate(order, start=1)}
    return tuple(place_of.get(place) for place in range(len(values)))


def roles(run: RunFolder) -> dict[str, dict[str, str]]:
    """{head: {"role", "evidence", "assigned"}} of the claimed heads; the evidence is the role's evidence for this head."""
    found = {}
    for name, spec in run.circuit["roles"].items():
        evidence = str(spec.get("evidence") or "")
        for pair in spec["heads"]:
            head = head_name(pair)
            own = [part for part in evidence.split("; ") if re.search(rf"\b{head}\b", part)]
            found[head] = {
                "role": name,
                "evidence": human("; ".join(own) or evidence),
                "assigned": str(spec.get("assigned_by") or ""),
            }
    return found


def verdicts(run: RunFolder) -> dict[str, list[dict[str, str]]]:
    """{head: facts from verdicts}: metrics whose reasons or needs name it, metrics that judge it alone, and its worst groups.

    Each fact is {"metric", "verdict", "text", "json", "field"}; the verdict is empty if the record judges many heads together.
    """
    found: dict[str, list[dict[str, str]]] = {head_name(head): [] for head in run.evidence.heads}
    for head, told in (*_naming(run), *_single(run), *_groups(run)):
        if head in found:
            found[head].append(told)
    return found


def _naming(run: RunFolder) -> Iterator[tuple[str, dict[str, str]]]:
    for row in run.rows:
        for metric in row.metrics:
            for reason in (*metric.reasons, f"needs {metric.needs}" if metric.needs else ""):
                for head in dict.fromkeys(HEAD.findall(reason)):
                    yield head, _told(metric.metric, metric.verdict, reason, *_place(run, metric))


def _place(run: RunFolder, metric: MetricRow) -> tuple[str, str]:
    """File and field of a metric's record."""
    document = run.calibration(metric.metric.partition(".")[0]) or {"number": "P", "records": ()}
    place = next((i for i, record in enumerate(document["records"]) if record["metric"] == metric.metric), 0)
    return file_of(run, document["number"]) or "", f"records[{place}]"


def _told(metric: str, verdict: str, text: str, file: str, field: str) -> dict[str, str]:
    return {"metric": in_sentence(metric), "verdict": verdict, "text": in_sentence(text), "json": file, "field": field}


def _single(run: RunFolder) -> Iterator[tuple[str, dict[str, str]]]:
    """Facts from records that have a label for every claimed head (M3b)."""
    document = run.calibration("M3b")
    if document is None:
        return
    for place, record in enumerate(document["records"]):
        for pair, told in (record["companions"].get("heads") or {}).items():
            parts = str(pair).split(".")
            if len(parts) == 2 and "label" in told:
                field = f'records[{place}].companions.heads["{pair}"]'
                text = f"this head: {told['label']}"
                yield head_name(parts), _told(record["metric"], "", text, file_of(run, document["number"]) or "", field)


def _groups(run: RunFolder) -> Iterator[tuple[str, dict[str, str]]]:
    """For each head, its worst group of each kind: claimed heads (P.completeness) and heads outside (P.outside)."""
    groups = WorstGroups.read(run.certificate)
    seen = set()
    for place, group in enumerate(groups.claimed):
        text = f"without {_named(group.name, group.heads_text)}, {group.recipe_text}: inc {group.incompleteness_text}, "
        text += f"circuit loses {number(group.lost_by_circuit)}, model {number(group.lost_by_model)}, limit {number(group.limit)}"
        for head in map(head_name, group.heads):
            if (head, group.gate) not in seen:
                seen.add((head, group.gate))
                field = f"worst_groups.claimed[{place}].incompleteness"
                yield head, _told(group.gate, "", text, "certificate.json", field)
    for place, left in enumerate(groups.outside):
        text = f"{_named(left.name, left.heads_text)}, {left.side_text}, {left.recipe_text}: share {left.share_text}, "
        text += f"limit {number(left.limit)}"
        for head in map(head_name, left.heads):
            if (head, left.kind) not in seen:
                seen.add((head, left.kind))
                yield head, _told("P.outside", "", text, "certificate.json", f"worst_groups.outside[{place}].share")


def _named(name: str, heads: str) -> str:
    """The heads, or their number with the group's name if they would fill the line."""
    count = len(heads.split())
    return heads if count <= 3 else f"the {count} heads of “{name.replace('_', ' ')}”"
