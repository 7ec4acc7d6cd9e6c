"""One page for every numbered measurement: its question, formula, data, settings, and the calibrations that read it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from calibrations.registry import CALIBRATIONS
from circuits.measurements import MEASUREMENTS
from registries import file_of
from scripts.docs import literature, markdown, sections, settings, source

CONFIG = source.ROOT / "configs" / "measurement" / "all.yaml"


def pages() -> dict[str, str]:
    return {
        "measurements/index.md": _index(),
        **{source.measurement_page(module): page(module) for module in MEASUREMENTS.values()},
    }


def page(module: ModuleType) -> str:
    """One measurement's page."""
    readers = [source.calibration_link(c) for c in CALIBRATIONS.values() if module.NUMBER in c.INPUTS]
    parts = [
        f"# {module.NUMBER} {source.measurement_title(module)}\n",
        source.docstring(module),
        source.docstring(module.measure),
        "## Data\n",
        f"`results/<model>/<task>/{module.NUMBER}_{module.ID}.json` ([what is common to all files](../results.md)):\n",
        sections.data_fields(module.NUMBER) + "\n",
        "## Read by\n",
        (", ".join(readers) or "No calibration, so no verdict rests on it.") + "\n",
        _settings(module),
        literature.section(module.NUMBER),
        f"Code: `{file_of(module)}`\n",
    ]
    return "\n".join(part for part in parts if part.strip())


def _settings(module: ModuleType) -> str:
    """The settings that the module declares that it reads."""
    table = settings.table(CONFIG, sections=module.SETTINGS)
    if not table:
        return ""
    return (
        "## Settings\n\n`configs/measurement/all.yaml`, on the command line `measurement.<setting>=<value>`:\n\n"
        + table
    )


def _index() -> str:
    """All measurements with their questions, and which heads each method can detect."""
    rows = []
    for module in MEASUREMENTS.values():
        first = source.docstring(module).split("\n\n")[0]
        question = (first.partition(": ")[2] or first).strip()  # without number and title
        name = Path(source.measurement_page(module)).name
        rows.append((f"[{module.NUMBER}]({name})", source.measurement_title(module), question))
    return "\n".join(
        [
            "# Measurements\n\nFacts, one numbered JSON each, per prompt and head; no verdicts.\n",
            markdown.table(("no.", "measurement", "asks"), rows),
            "[Ways to ask which heads matter](../concepts.md#ways-to-ask-which-heads-matter) names what each is blind to.\n",
            markdown.toctree(Path(source.measurement_page(module)).stem for module in MEASUREMENTS.values()),
        ]
    )
