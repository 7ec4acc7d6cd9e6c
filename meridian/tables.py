"""The results of a run as tables: pandas data frames, and files in CSV, LaTeX and Parquet.

    tables.of(run)["certificate"].frame

Numbers keep full precision in the frame, in CSV and in Parquet. The LaTeX file is for print: numbers are rounded, an estimate
and its interval share a cell, and only the columns that fit a page are included.
"""

from __future__ import annotations

import functools
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import results_io
import shown_text
from calibrations import preconditions
from calibrations.certificate_row import CertificateRow, MetricRow
from calibrations.number_format import interval_text, number
from calibrations.statistics import or_none
from calibrations.tier_words import tier_text
from calibrations.worst_groups import WorstGroups
from meridian import outside_effects, run_folder, worst_recipe
from meridian.figures import graph, heads
from meridian.figures.intervals import LEVEL, clustered_means
from meridian.figures.names import human
from meridian.figures.values import Figure
from meridian.report import disagreement, head_facts
from meridian.run_folder import RunFolder
from results_io import UserError

FORMATS = ("csv", "tex", "parquet")
LONG = 45  # from this many rows on, a LaTeX table runs over several pages
WIDE, PARAGRAPH = 40, "p{5cm}"  # from this many letters on, a LaTeX column breaks its lines, with this column type
LOW, HIGH = f"_low{100 * LEVEL:.0f}", f"_high{100 * LEVEL:.0f}"  # endings of an interval's columns
JUDGED = ("estimate", "inc", "share")  # columns whose interval is ci90
TITLES = {  # of columns in print; others keep their names, with spaces
    **{"id": "ID", "metric": "quantity", "published_verdict": "published", "published_value": "published value"},
    **{
        "lost_by_circuit": "circuit loses",
        "lost_by_model": "model loses",
        "inc": "incompleteness",
        "published_score": "Wang et al.",
    },
    **{
        "02_denoising": "denoising",
        "02_noising": "noising",
        "03_attribution": "direct attribution",
        "21_effect": "knock-out",
    },
    **{"clean_logit_diff": "clean", "corrupted_logit_diff": "corrupted", "published_score": "Wang et al."},
}
METHODS = {key: re.sub("[ -]", "_", name) for key, name in disagreement.COMPARED.items()}  # names of their columns
# columns with our identifiers, which are shown in words in print
NAMES = ("metric", "role", "template", "split", "group")
PRINTED_METRICS = {"P.denominator": "effect to share out (t of mean D)"}  # others are in words already
PRINTED_HEADS = ("02_denoising", "02_noising", "03_attribution", "21_effect")
Columns = dict[str, list[Any]]
LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {s: f"\\{s}" for s in "%&_#${}"}
)


@dataclass(frozen=True)
class Table:
    """A data frame with a name and a caption. `printed`: the columns of the LaTeX table (empty: all).

    A column "x" with columns "x_low95" and "x_high95" is printed as one column, with estimate and interval. `in_print`: the frame
    of the LaTeX table, if it is another one.
    """

    name: str
    caption: str
    frame: pd.DataFrame
    printed: Sequence[str] = ()
    in_print: pd.DataFrame | None = None


def of(run: RunFolder) -> dict[str, Table]:
    """{name: table} for every table that the results of `run` allow; tables of missing measurements are left out."""
    found = (build(run) for build in BUILDERS)
    return {table.name: table for table in found if table is not None and len(table.frame)}


# --- the tables --------------------------------------------------------------------------------------------------


def certificate(run: RunFolder) -> Table:
    """The preconditions of the claim (P) and the 16 calibrations, each with the record that decided its verdict."""
    preconditions, *calibrations = run.rows
    decided = [(row, row.decided_by) for row in calibrations]
    rows = [*((preconditions, metric) for metric in preconditions.metrics), *decided]
    in_print = [*((preconditions, worst_recipe.named(run, metric)) for metric in preconditions.metrics), *decided]
    caption = f"The certificate. {tier_text(run.certificate)}; {'; '.join(run.rules.lines)}. "
    caption += "Of each calibration the record that decided its verdict, with its 90 % interval."
    printed = ("metric", "published_verdict", "estimate", "verdict")
    return Table("certificate", caption, _metric_frame(run, rows), printed, _metric_frame(run, in_print))


def records(run: RunFolder) -> Table:
    """Every published metric of the 16 calibrations."""
    rows = [(row, metric) for row in run.rows[1:] for metric in row.metrics]
    caption = (
        "Every published metric: its published value and verdict, and the estimate with its 90 % interval and verdict."
    )
    printed = ("metric", "published_value", "published_verdict", "estimate", "verdict")
    return Table("records", caption, _metric_frame(run, rows), printed)


def _metric_frame(run: RunFolder, rows: Iterable[tuple[CertificateRow, MetricRow | None]]) -> pd.DataFrame:
    """One row per metric, or one without numbers for a calibration that was not run.

    `prompts` and `clusters` are the record's numbers of them.
    """
    made = []
    for row, metric in rows:
        stored = {"verdict": row.verdict} if metric is None else asdict(metric)
        size = {} if metric is None else (run.record(metric.metric) or {"n": {}})["n"]
        ends = {
            f"{name}_{end}": value
            for name in ("ci90", "ci95")
            for end, value in zip(("low", "high"), stored.get(name) or (None, None), strict=True)
        }
        plain = ("metric", "published_value", "published_rule", "published_verdict", "estimate")
        made.append(
            {"id": row.id, "title": row.title, **{name: stored.get(name) for name in plain}, **ends}
            | {name: stored.get(name) for name in ("ci_method", "p", "verdict")}
            | {"gating": metric is not None and metric.gating}
            | {name: size.get(name) for name in ("prompts", "clusters")}
            | {"reasons": "; ".join(stored.get("reasons", ())), "needs": stored.get("needs")}
        )
    frame = pd.DataFrame(made)
    numbers = [name for name in frame if name.startswith("ci9") or name in ("published_value", "estimate", "p")]
    return frame.astype(dict.fromkeys(numbers, "float64") | dict.fromkeys(("prompts", "clusters"), "Int64"))


def faithfulness(run: RunFolder) -> Table | None:
    """Faithfulness and completeness by recipe and split, with Fieller intervals; unsupported values are missing."""
    rows: list[dict[str, Any]] = []
    ratios = {"faithfulness": preconditions.faithfulness, "completeness": preconditions.completeness}
    for split, method in itertools.product(("evaluation", "held_out"), preconditions.every_recipe(run.evidence)):
        evidence = run.evidence.on(split)
        row: dict[str, Any] = {"recipe": method.replace("_", " "), "split": split}
        for name, ratio in ratios.items():
            found = or_none(functools.partial(ratio, evidence, run.settings, method=method))
            row[name] = None if found is None else found.value
            row[name + LOW], row[name + HIGH] = (None, None) if found is None else found.fieller(LEVEL)
        row["above_floor"] = or_none(functools.partial(preconditions.normalised_faithfulness, evidence, method))
        rows.append(row)
    frame = pd.DataFrame(rows)
    frame = frame.astype(dict.fromkeys(frame.columns[2:], "float64"))
    if frame[["faithfulness", "completeness"]].isna().to_numpy().all():
        return None
    return Table("faithfulness", " ".join(_said_of_faithfulness(run)), frame)


def _said_of_faithfulness(run: RunFolder) -> Iterator[str]:
    """The caption: kind of intervals, the recipes and the band of P.faithfulness, and the values of random circuits."""
    yield f"Faithfulness by ablation recipe, {100 * LEVEL:g} % Fieller intervals."
    if recipes := run.companions("P.faithfulness").get("recipes"):
        low, high = (run.settings[f"faithfulness_{end}"] for end in ("low", "high"))
        asked = " and ".join(recipe.replace("_", " ") for recipe in recipes)
        yield f"P.faithfulness asks that {asked} lie between {low:g} and {high:g}."
    null = run.companions("P.random_circuits")
    if "random_median" in null:
        alike = preconditions.null_words(null.get("any_layers", False))
        median, most = number(null["random_median"]), number(null["random_maximum"])
        yield f"Random circuits of {alike}, mean ablation: median {median}, largest {most}."


def completeness_groups(run: RunFolder) -> Table | None:
    """One row per worst group of P.completeness: the losses of circuit and model without it, as shares of N, and inc."""
    found = WorstGroups.read(run.certificate)
    rows = [
        {"heads": group.heads_text, "group": group.name.replace("_", " "), "recipe": group.recipe_text}
        | {"gate": group.gate, "lost_by_circuit": group.lost_by_circuit, "lost_by_model": group.lost_by_model}
        | {"inc": group.incompleteness, "ci90_low": group.ci90[0], "ci90_high": group.ci90[1], "limit": group.limit}
        | {"published_score": group.published_score}
        | {"normaliser": None if found.normalisers is None else found.normalisers.get(group.recipe)}
        for group in found.claimed
    ]
    if not rows:
        return None
    caption = (
        "What circuit and model lose without a group of claimed heads, in shares of N, what all heads together are worth; inc is "
        "the difference, with the 90 % interval of the group alone. The published score is that of Wang et al. 2022."
    )
    printed = ("heads", "recipe", "lost_by_circuit", "lost_by_model", "inc", "published_score")
    return Table("completeness_groups", caption, pd.DataFrame(rows).astype({"normaliser": "float64"}), printed)


def outside_groups(run: RunFolder) -> Table | None:
    """One row per worst group of P.outside: the model's loss without it, or the change from adding it to the circuit."""
    rows = [
        {"heads": group.heads_text, "group": group.name, "side": group.side_text, "recipe": group.recipe_text}
        | {"share": group.share, "ci90_low": group.ci90[0], "ci90_high": group.ci90[1], "limit": group.limit}
        for group in WorstGroups.read(run.certificate).outside
    ]
    caption = (
        "What heads outside the claim change, in shares of N, what all heads together are worth, with the 90 % interval of the "
        "group alone: in the model without them, or in the circuit with them."
    )
    return Table("outside_groups", caption, pd.DataFrame(rows), ("heads", "side", "recipe", "share")) if rows else None


def outside_effects_table(run: RunFolder) -> Table | None:
    """One row per head outside the claim with a large effect: every effect, and its rank among all heads."""
    evidence, share = run.evidence, run.settings.get("max_outside")
    found = outside_effects.large(evidence, share)
    if not found:
        return None
    columns: Columns = {"head": [one.name for one in found]}
    for place, effect in enumerate(found[0].effects):
        values = evidence.head_effect(*outside_effects.MEASURED[effect.measured])
        _, low, high = clustered_means(values, evidence.clusters, evidence.templates)
        own = [evidence.heads.index(one.head) for one in found]
        name = effect.measured.replace("-", "_")
        columns[name] = [one.effects[place].value for one in found]
        columns |= {name + LOW: [low[i] for i in own], name + HIGH: [high[i] for i in own]}
        columns[f"{name}_rank"] = [one.effects[place].rank for one in found]
    frame = pd.DataFrame(columns)
    frame = frame.astype({name: "float64" for name in frame.columns[1:] if not name.endswith("_rank")})
    caption = (
        f"Heads outside the claim of which an effect is above {share:g} of the mean {evidence.metric}, in {evidence.unit} with "
        f"{100 * LEVEL:g} % intervals; the rank is by size among all {len(evidence.heads)} heads. No gate reads these numbers."
    )
    return Table("outside_effects", caption, frame)


def methods_disagree(run: RunFolder) -> Table | None:
    """One row per head about which the methods differ, as in the report: each method's value and rank, and the worst group."""
    maps: dict[str, Figure] = {figure.name: figure for figure in heads.build(run)}
    found = disagreement.of(run, head_facts.methods(run, maps))
    columns = [METHODS[method.key] for method in found.methods]
    rows = [
        {
            "head": one.head,
            "role": one.role or None,
            "against_the_claim": ", ".join(
                columns[opinion.place].replace("_", " ") for opinion in one.opinions if opinion.odd
            ),
            "worst_group": one.group,
        }
        | {name: opinion.value for name, opinion in zip(columns, one.opinions, strict=True)}
        | {f"{name}_rank": opinion.rank for name, opinion in zip(columns, one.opinions, strict=True)}
        for one in (*found.outside, *found.claimed)
    ]
    if not rows:
        return None
    frame = pd.DataFrame(rows).astype(dict.fromkeys(columns, "float64") | {f"{name}_rank": "Int64" for name in columns})
    caption = (
        f"Heads about which methods disagree: outside the claim and among the first {found.first} of {len(run.evidence.heads)} "
        "by size in one, or claimed and near zero in one. Heads outside the claim have no role."
    )
    return Table("methods_disagree", caption, frame, ("head", "role", *columns))


def head_table(run: RunFolder) -> Table:
    """One row per head: role, and every measure of `meridian.figures.heads`, with its interval if it has one."""
    evidence = run.evidence
    columns: Columns = {
        "layer": [layer for layer, _ in evidence.heads],
        "head": [head for _, head in evidence.heads],
        "in_circuit": [head in evidence.roles for head in evidence.heads],
        "role": [evidence.roles.get(head) for head in evidence.heads],
    }
    titles = {}
    for figure in heads.build(run):  # figure values, one measure [layer][head] each
        name = figure.name.removeprefix("heads_")
        value, low, high = (
            [grid[layer][head] for layer, head in evidence.heads] if grid else []
            for grid in (figure.values, figure.low, figure.high)
        )
        columns[name], titles[name] = value, figure.title
        if any(end is not None for end in low):
            columns[name + LOW], columns[name + HIGH] = low, high
    frame = pd.DataFrame(columns)
    frame = frame.astype(dict.fromkeys(frame.columns[4:], "float64"))
    printed = ("layer", "head", "role", *(name for name in PRINTED_HEADS if name in frame))
    bare = [name for name in frame.columns[4:] if not name.endswith((LOW, HIGH)) and name + LOW not in frame]
    caption = f"Heads: what each measurement found, with {100 * LEVEL:g} % intervals"
    caption += (
        f"; one number for each head and no interval: {'; '.join(titles[name] for name in bare)}." if bare else "."
    )
    return Table("heads", caption, frame, printed)


def prompts(run: RunFolder) -> Table:
    """One row per prompt of 01, with the logit difference of the circuit alone under every recipe of 20."""
    data, battery = run.require("01")["data"], run.require("20")["data"]
    n = len(data["prompt_id"])
    columns: Columns = {name: data[name] for name in ("prompt_id", "split", "template", "cluster")}
    columns |= {f"factor_{name}": values for name, values in data["factors"].items()}
    columns |= {
        name: values
        for name, values in data.items()
        if isinstance(values, list) and len(values) == n and name not in (*columns, "heads")
    }
    values = np.asarray(battery["logit_diff"], dtype=float)
    for method in preconditions.every_recipe(run.evidence):
        rows = [i for i, c in enumerate(battery["conditions"]) if (c["subset"], c["method"]) == ("circuit", method)]
        if rows:
            columns[f"circuit_{method}"] = values[rows].mean(axis=0)
    printed = ("split", "template", "clean_logit_diff", "corrupted_logit_diff")
    caption = "The prompts and what the model and the circuit do on each."
    return Table("prompts", caption, pd.DataFrame(columns), printed)


def edges(run: RunFolder) -> Table | None:
    """One row per edge that 28 measured: direct effects with cluster-robust intervals, and whether discovery chose it."""
    data = run.data("28")
    if data is None or not data["senders"]:
        return None
    labels = graph.labels_of(run.evidence, data["rows"])
    columns: Columns = {
        "sender": [graph.head_name(head) for head in data["senders"]],
        "receiver": [graph.head_name(head) for head in data["receivers"]],
        "input": data["input"],
    }
    for name in ("noising", "denoising"):
        effects = clustered_means(np.asarray(data[name], float).T, *labels)
        columns |= dict(zip((name, name + LOW, name + HIGH), effects, strict=True))
    columns |= {"discovery_effect": data["discovery"]["effect"], "kept": data["circuit"]["kept"]}
    frame = pd.DataFrame(columns)
    frame = frame.astype({name: "float64" for name in frame if name.startswith(("noising", "denoising"))})
    caption = (
        f"Direct effects, with {100 * LEVEL:g} % intervals, of all {len(frame)} edges from heads of the circuit; "
        f"{sum(data['circuit']['kept'])} of them were chosen on the discovery prompts (kept)."
    )
    return Table("edges", caption, frame, ("sender", "receiver", "input", "noising", "denoising", "kept"))


def failure_rates(run: RunFolder) -> Table | None:
    """One row per behavioural suite of the same weights that has a failure rate."""
    rows = [
        {"mode": data["mode"], "title": data["title"], "suite": record["suite"], "items": record["n"]}
        | {"failure_rate": record["value"]}
        | {f"failure_rate_{end}95": (record["ci"] or {}).get(end) for end in ("low", "high")}
        | {"threshold": record["threshold"], "passed": record["passed"]}
        for data, record in run_folder.failure_rates(run.suites)
    ]
    if not rows:
        return None
    frame = pd.DataFrame(rows).astype({"passed": "boolean", "threshold": "float64"})
    caption = "Failure rates of the behavioural suites, 95 % intervals."
    return Table("failure_rates", caption, frame, ("mode", "suite", "items", "failure_rate"))


def carriers(run: RunFolder) -> Table | None:
    """Heads named on the discovery half of failures, and their verdicts on the confirmation half."""
    found = run_folder.carriers_of(run)
    later = {one.head: (one.estimate, one.verdict) for one in found if one.half == "confirmation"}
    named = [one for one in found if one.half == "discovery"]
    rows = [(one.head, one.estimate, one.low, one.high, *later.get(one.head, (None, None))) for one in named]
    columns = ["head", "restored", "restored" + LOW, "restored" + HIGH, "confirmed", "verdict"]
    caption = "Heads that carry the failure: share of the difference restored, and the verdict."
    return Table("carriers", caption, pd.DataFrame(rows, columns=columns)) if rows else None


BUILDERS = (
    certificate,
    records,
    faithfulness,
    completeness_groups,
    outside_groups,
    outside_effects_table,
    methods_disagree,
    head_table,
    prompts,
    edges,
    failure_rates,
    carriers,
)


# --- files -------------------------------------------------------------------------------------------------------


def write(table: Table, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write <folder>/<name>.<format> for each format, each replaced in one step. UserError for an unknown format."""
    writers: dict[str, Callable[[Table], bytes]] = {"csv": csv, "tex": latex, "parquet": parquet}
    unknown = [form for form in formats if form not in writers]
    if unknown:
        raise UserError(f"format {unknown[0]} is unknown; use {', '.join(FORMATS)}")
    paths = [folder / f"{table.name}.{form}" for form in formats]
    for path, form in zip(paths, formats, strict=True):
        results_io.write_bytes(path, writers[form](table))
    return paths


def csv(table: Table) -> bytes:
    """CSV in UTF-8 with one header line, empty fields for missing values, and LF line ends. No field is read as a formula."""
    frame = table.frame.rename(columns=shown_text.cell)
    texts = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    frame = frame.assign(**{name: frame[name].map(shown_text.cell) for name in texts})
    return frame.to_csv(index=False, lineterminator="\n").encode()


def parquet(table: Table) -> bytes:
    """Parquet with the types of the frame; pandas reads name and caption back as the frame's `attrs`."""
    stream, frame = io.BytesIO(), table.frame.copy()
    frame.attrs = {"name": table.name, "caption": table.caption}
    frame.to_parquet(stream, index=False, engine="pyarrow")
    return stream.getvalue()


def latex(table: Table) -> bytes:
    r"""A booktabs table with caption and label and with special characters escaped.

    It needs \usepackage{booktabs}; long tables also need longtable.
    """
    shown = printed(table)
    text = shown.to_latex(
        index=False,
        escape=True,
        column_format="".join(PARAGRAPH if text.str.len().max() > WIDE else "l" for _, text in shown.items()),
        longtable=len(shown) > LONG,
        caption=escaped(human(table.caption)),
        label=f"tab:{table.name}",
        position=None if len(shown) > LONG else "htbp",
    )
    return text.encode()


def escaped(text: str) -> str:
    """`text` with LaTeX's special characters escaped."""
    return text.translate(LATEX)


def printed(table: Table) -> pd.DataFrame:
    """The frame as strings for print: rounded, with intervals beside their estimates, and dashes for missing values.

    Names of columns, metrics, roles and templates are in words (`names.human`).
    """
    frame = table.frame if table.in_print is None else table.in_print
    intervals = {name: (name + LOW, name + HIGH) for name in frame if {name + LOW, name + HIGH} <= set(frame)}
    if {"ci90_low", "ci90_high"} <= set(frame):
        judged = next(name for name in JUDGED if name in frame)
        intervals[judged] = ("ci90_low", "ci90_high")
    ends = {end for pair in intervals.values() for end in pair}
    columns = {}
    for name in table.printed or [name for name in frame if name not in ends]:
        column = [_name(_cell(value)) if name in NAMES else _cell(value) for value in frame[name]]
        if name in intervals:
            pairs = zip(column, *(frame[end] for end in intervals[name]), strict=True)
            column = [
                text if pd.isna(low) or pd.isna(high) else text + interval_text(low, high) for text, low, high in pairs
            ]
        columns[TITLES.get(name) or human(name)] = column
    return pd.DataFrame(columns)


def _name(text: str) -> str:
    return PRINTED_METRICS.get(text) or human(text)


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "-"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    return number(float(value)) if isinstance(value, (float, np.floating)) else str(value)
