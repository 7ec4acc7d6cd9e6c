"""One page for every calibration: what, formula, thresholds with reasons, gates, measured rates, how it fails, literature."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scripts.docs import literature, markdown, readme, settings, source, validation
from scripts.docs.messages import INSUFFICIENT, messages

CONFIGS = source.ROOT / "configs"
NOTES = source.ROOT / "docs" / "calibrations"  # hand-written: how each one fails
STEP = 60  # characters of a docstring that says more than the function's name
GATES = {"all": "must pass", "any": "one of these must pass", "not_fail": "must not fail"}


@dataclass(frozen=True)
class Calibration:
    """A calibration as its module declares it."""

    path: Path
    identifier: str
    number: str
    title: str
    inputs: tuple[str, ...]

    @property
    def stem(self) -> str:
        """The name that code, configuration, test and page share."""
        return self.path.stem

    @property
    def page(self) -> str:
        return f"calibrations/{self.stem}.md"

    @property
    def config(self) -> Path:
        return CONFIGS / "calibration" / f"{self.stem}.yaml"


@functools.cache
def found() -> tuple[Calibration, ...]:
    """Every module of calibrations/ that declares an ID and a NUMBER, C before F, S, M and E as results list them."""
    modules = []
    for path in sorted((source.ROOT / "calibrations").glob("*.py")):
        own = source.constants(path)
        if {"ID", "NUMBER", "TITLE"} <= own.keys():
            modules.append(Calibration(path, own["ID"], own["NUMBER"], own["TITLE"], tuple(own.get("INPUTS", ()))))
    return tuple(sorted(modules, key=lambda c: (not c.number.isdigit(), c.number)))


def pages() -> dict[str, str]:
    """The index, the settings that all share, and a page for each."""
    common = CONFIGS / "calibration" / "common.yaml"
    shared = settings.read(common)
    return {
        "calibrations/index.md": _index(),
        "calibrations/common.md": _common(shared),
        "calibrations/preconditions.md": _preconditions(),
        **{calibration.page: page(calibration) for calibration in found()},
    }


def page(calibration: Calibration) -> str:
    """One calibration's page."""
    parts = [
        f"# {calibration.identifier} {calibration.title}\n",
        markdown.prose(source.docstring(source.tree(calibration.path))),
        _facts(calibration),
        "## What it computes, and its verdict\n",
        _functions(calibration.path),
        thresholds(calibration),
        _gates(calibration.identifier),
        validation.section(calibration.identifier),
        _how_it_fails(calibration),
        literature.section(calibration.identifier),
    ]
    return "\n".join(part for part in parts if part)


def _facts(calibration: Calibration) -> str:
    from scripts.docs import measurements  # which links back here

    read = ", ".join(
        f"[{m.number} {m.title}](../{m.page})" for m in measurements.found() if m.number in calibration.inputs
    )
    metrics = ", ".join(markdown.literal(metric) for metric in published_metrics(calibration.number)) or "–"
    rows = [
        ("number", calibration.number),
        ("select it", markdown.literal(f"calibration=[{calibration.identifier.lower()}]")),
        ("reads", read or "the records of the other calibrations"),
        ("metrics", metrics),
        ("code", markdown.literal(source.relative(calibration.path))),
        ("result", markdown.literal(f"results/.../{calibration.number}_{calibration.stem.partition('_')[2]}.json")),
    ]
    return markdown.table(("", ""), rows)


def published_metrics(number: str) -> list[str]:
    """The metrics that results/README.md lists for a calibration."""
    listed = {row[0]: row[2] for row in readme.rows(readme.section(readme.RESULTS, "Calibrations"))}
    return [metric.strip() for metric in listed.get(number, "").split(",") if metric.strip(" .")]


def _functions(path: Path) -> str:
    """The docstring of `calibrate`, then what the module's other functions say of their step."""
    calibrate = source.function(path, "calibrate")
    text = markdown.prose(source.docstring(calibrate)) if calibrate else ""
    steps = [
        f"- {markdown.literal(node.name.lstrip('_'))}: {_flat(source.docstring(node))}"
        for node in source.tree(path).body
        if isinstance(node, ast.FunctionDef) and node is not calibrate and len(source.docstring(node)) >= STEP
    ]
    return text + ("\n### Steps\n\n" + "\n".join(steps) + "\n" if steps else "")


def _flat(docstring: str) -> str:
    """A docstring as the text of a list entry: its paragraphs and formulas, indented below the bullet."""
    lines = markdown.prose(docstring).strip().splitlines()
    return "\n".join([lines[0], *(f"  {line}" if line else "" for line in lines[1:])])


def thresholds(calibration: Calibration) -> str:
    """The configuration, each value with its reason."""
    own = settings.read(calibration.config)
    prefix = f"{calibration.identifier.lower()}."
    shown = [settings.Setting(s.name.removeprefix(prefix), s.value, s.reason) for s in own]
    intro = (
        f"`configs/calibration/{calibration.stem}.yaml`; on the command line `calibration.{prefix}<setting>=<value>`, which the "
        "certificate then lists. What all calibrations share is on [a page of its own](common.md).\n\n"
    )
    return "## Thresholds\n\n" + intro + settings.table(shown) + settings.listing(calibration.config, own)


@functools.cache
def tiers() -> dict[str, Any]:
    return yaml.safe_load((CONFIGS / "certificate" / "tiers.yaml").read_text(encoding="utf-8"))


def gates(identifier: str) -> list[tuple[int, str, str]]:
    """(tier, metric, what the tier asks of it) of every gate that is a record of this calibration."""
    listed = []
    for tier, asked in tiers()["tiers"].items():
        for kind, meaning in GATES.items():
            listed += [(tier, m, meaning) for m in asked.get(kind, ()) if m.startswith(f"{identifier}.")]
        held_out = asked.get("held_out", {})
        listed += [
            (tier, m, "not asked on held-out prompts")
            for m in held_out.get("except", ())
            if m.startswith(f"{identifier}.")
        ]
        listed += [
            (tier, m, "must not fail on held-out prompts")
            for m in held_out.get("not_fail", ())
            if m.startswith(f"{identifier}.")
        ]
    return listed


def _gates(identifier: str) -> str:
    names = tiers()["names"]
    rows = [(f"{tier} {names[tier]}", markdown.literal(metric), meaning) for tier, metric, meaning in gates(identifier)]
    head = "## What it decides\n\n"
    if not rows:
        return head + "It gates no tier.\n"
    return head + markdown.table(("tier", "record", "asked for"), rows)


def _how_it_fails(calibration: Calibration) -> str:
    """The hand-written notes if there are any, and what the module says when the data are not enough."""
    notes = NOTES / f"{calibration.stem}.md"
    text = notes.read_text(encoding="utf-8").partition("\n")[2].strip() if notes.exists() else ""  # below its heading
    return f"## How it fails\n\n{text}\n\n" + _insufficient(source.dotted(calibration.path))


def _insufficient(module: str) -> str:
    rows = [_reason(m.template) for m in messages() if m.module == module and m.error == INSUFFICIENT]
    if not rows:
        return ""
    head = (
        "`insufficient` is no failure of the circuit. Besides [what all share](preconditions.md), this calibration says it "
        "for:\n\n"
    )
    return head + markdown.table(("reason", "detail"), rows)


def _reason(template: str) -> tuple[str, str]:
    reason, _, detail = template.partition(": ")
    return markdown.literal(reason), markdown.literal(detail)


def _common(shared: list[settings.Setting]) -> str:
    shown = [settings.Setting(s.name.removeprefix("common."), s.value, s.reason) for s in shared]
    return "# Settings that all calibrations share\n\n`configs/calibration/common.yaml`\n\n" + settings.table(shown)


def _preconditions() -> str:
    path = source.ROOT / "calibrations" / "preconditions.py"
    rows = sorted(
        {
            _reason(m.template)
            for m in messages()
            if m.module == "calibrations.preconditions" and m.error == INSUFFICIENT
        }
    )
    return "\n".join(
        [
            "# P preconditions\n",
            markdown.prose(source.docstring(source.tree(path))),
            _gates("P"),
            validation.section("P"),
            "## When they cannot be judged\n",
            markdown.table(("reason", "detail"), rows),
        ]
    )


def _index() -> str:
    """The README's table of calibrations, with links."""
    rows = []
    asks = {row[0]: row[1] for row in readme.rows(readme.section(readme.README, "The calibrations"))}
    for c in found():
        question = source.docstring(source.tree(c.path)).split("\n\n")[0]
        for names, asked in asks.items():
            if c.identifier in re.findall(r"[A-Z]\w+", names):
                question = asked
        tiers_asked = sorted({str(tier) for tier, _, _ in gates(c.identifier)})
        rows.append(
            (
                f"[{c.identifier} {c.title}]({c.stem}.md)",
                markdown.prose(question).strip(),
                ", ".join(tiers_asked) or "–",
            )
        )
    text = (
        "# Calibrations\n\nEach returns two verdicts: the published threshold on the point estimate, and one from an interval "
        "or a test (`pass`, `fail`, `inconclusive`, `insufficient`). Only the second gates a tier.\n\n"
    )
    entries = ["preconditions", *(c.stem for c in found()), "common"]
    return (
        text
        + markdown.table(("calibration", "asks", "in the gates of tier"), rows)
        + "\n"
        + markdown.toctree(entries, hidden=True)
    )
