"""One page for every calibration: purpose, formula, thresholds with reasons, gates, measured rates, failures, literature."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import NamedTuple

from calibrations import preconditions
from calibrations.registry import CALIBRATIONS
from circuits.measurements import MEASUREMENTS
from registries import file_of, name_of
from scripts.docs import literature, markdown, sections, settings, source, tiers, validation

CONFIGS = source.ROOT / "configs" / "calibration"
NOTES = source.ROOT / "docs" / "calibrations"  # hand-written: how each fails, where it departs
DEPARTS = "## Where it departs from the published text"
STEP = 60  # docstrings of at least this many characters say more than the function's name


def pages() -> dict[str, str]:
    """The index, the shared settings, the preconditions, and a page for each calibration."""
    return {
        "calibrations/index.md": _index(),
        "calibrations/common.md": _common(),
        "calibrations/preconditions.md": _preconditions(),
        **{source.calibration_page(module): page(module) for module in CALIBRATIONS.values()},
    }


def page(module: ModuleType) -> str:
    """One calibration's page."""
    return "\n".join(
        [
            f"# {module.ID} {module.TITLE}\n",
            source.docstring(module),
            _facts(module),
            _notes(module).criterion,
            "## What it computes, and its verdict\n",
            _functions(module),
            _thresholds(module),
            _gates(module.ID),
            validation.section(module.ID),
            f"## How it fails\n\n{_notes(module).fails}\n",
            _insufficient(module),
            _nodes(module),
            _notes(module).departs,
            literature.section(module.ID),
        ]
    )


def _facts(module: ModuleType) -> str:
    read = ", ".join(source.measurement_link(m) for m in MEASUREMENTS.values() if m.NUMBER in module.INPUTS)
    published = {row[0]: row[2] for row in sections.rows(sections.section(sections.RESULTS, "Calibrations"))}
    metrics = [metric.strip() for metric in published.get(module.NUMBER, "").split(",") if metric.strip(" .")]
    rows = [
        ("number", module.NUMBER),
        ("select it", markdown.literal(f"calibration=[{module.ID.lower()}]")),
        ("reads", read or "the records of the other calibrations"),
        ("metrics", ", ".join(map(markdown.literal, metrics)) or "–"),
        ("code", markdown.literal(file_of(module))),
        ("result", markdown.literal(f"results/.../{module.NUMBER}_{module.NAME}.json")),
    ]
    return markdown.table(("", ""), rows)


def _functions(module: ModuleType) -> str:
    """The docstring of `calibrate`, then the docstrings of the module's other steps."""
    steps = [
        f"- {markdown.literal(function.__name__.lstrip('_'))}: {source.docstring(function).strip()}".replace(
            "\n", "\n  "
        )
        for function in source.functions(module)
        if function is not module.calibrate and len(inspect.getdoc(function) or "") >= STEP
    ]
    text = source.docstring(module.calibrate)
    return text + ("\n### Steps\n\n" + "\n".join(steps) + "\n" if steps else "")


def _thresholds(module: ModuleType) -> str:
    """The configuration, each value with its reason."""
    file = CONFIGS / f"{name_of(module)}.yaml"
    prefix = f"{module.ID.lower()}."
    intro = (
        f"`{source.relative(file)}`; on the command line `calibration.{prefix}<setting>=<value>`, which the certificate "
        "then lists. What all calibrations share is on [a page of its own](common.md).\n\n"
    )
    return "## Thresholds\n\n" + intro + settings.table(file, prefix)


def _gates(identifier: str) -> str:
    names = tiers.read()["names"]
    rows = [
        (f"{tier} {names[tier]}", markdown.literal(metric), meaning)
        for tier, metric, meaning in tiers.gates(identifier)
    ]
    asked = markdown.table(("tier", "record", "asked for"), rows) if rows else "It gates no tier.\n"
    return f"## What it decides\n\n{asked}"


class Notes(NamedTuple):
    """A hand-written page: the published criterion and its requirements, how it fails, and departures from the text."""

    criterion: str
    fails: str
    departs: str


def _notes(module: ModuleType) -> Notes:
    """The parts of the page in docs/calibrations/; empty for parts that the page lacks."""
    file = NOTES / f"{name_of(module)}.md"
    below = file.read_text(encoding="utf-8").partition("\n")[2].strip() if file.exists() else ""  # below its heading
    text, _, departs = below.partition(DEPARTS)
    first, _, rest = text.strip().partition("\n")
    criterion, fails = (first, rest) if first.startswith("Criterion: ") else ("", text)
    return Notes(
        f"{criterion}\n" if criterion else "", fails.strip(), f"{DEPARTS}\n\n{departs.strip()}\n" if departs else ""
    )


def _nodes(module: ModuleType) -> str:
    """The section about claims of MLPs and positions; empty if the module says nothing about them."""
    said = getattr(module, "NODES", None)
    return f"## MLPs and positions of a claim\n\n{said}\n" if said else ""


def _insufficient(module: ModuleType) -> str:
    reasons = sorted(set(re.findall(r"Insufficient\(\s*\"(\w+)\"", inspect.getsource(module))))
    if not reasons:
        return ""
    return (
        f"Of its own it says `insufficient` for {', '.join(map(markdown.literal, reasons))}: "
        "[what each means and what to do](../troubleshooting.md#insufficient).\n"
    )


def _common() -> str:
    file = CONFIGS / "common.yaml"
    return f"# Settings that all calibrations share\n\n`{source.relative(file)}`\n\n" + settings.table(file, "common.")


def _preconditions() -> str:
    parts = [
        "# P preconditions\n",
        source.docstring(preconditions),
        _gates("P"),
        validation.section("P"),
        "## When they cannot be judged\n",
        _insufficient(preconditions),
    ]
    return "\n".join(parts)


def _index() -> str:
    """docs/calibrations/index.md, with a link for each row of its table and the tiers from the rules."""
    rows = []
    text = sections.section(sections.CALIBRATIONS, "")
    asks = {row[0]: row[1] for row in sections.rows(text)}
    for module in CALIBRATIONS.values():
        question = source.docstring(module).split("\n\n")[0]
        for names, asked in asks.items():
            if module.ID in re.findall(r"[A-Z]\w+", names):
                question = markdown.prose(asked)
        asking = sorted({str(tier) for tier, _, _ in tiers.gates(module.ID)})
        link = f"[{module.ID} {module.TITLE}]({name_of(module)}.md)"
        rows.append((link, question.strip(), ", ".join(asking) or "–"))
    entries = ["preconditions", *map(name_of, CALIBRATIONS.values()), "common"]
    table = markdown.table(("calibration", "asks", "in the gates of tier"), rows)
    return f"{text.partition('| ID |')[0]}{table}\n{markdown.toctree(entries)}"
