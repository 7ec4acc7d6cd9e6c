"""One page for every numbered measurement: its question, formula, data, settings, and the calibrations that read it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from scripts.docs import calibrations, literature, markdown, readme, settings, source

CONFIG = source.ROOT / "configs" / "measurement" / "all.yaml"


@dataclass(frozen=True)
class Measurement:
    """A measurement as its module declares it."""

    path: Path
    number: str
    identifier: str

    @property
    def title(self) -> str:
        return self.identifier.replace("_", " ")

    @property
    def page(self) -> str:
        return f"measurements/{self.number}_{self.identifier}.md"

    @property
    def readers(self) -> list[calibrations.Calibration]:
        """The calibrations that list this measurement among their inputs."""
        return [c for c in calibrations.found() if self.number in c.inputs]


@functools.cache
def found() -> tuple[Measurement, ...]:
    """Every module of circuits/measurements/ that declares a NUMBER and an ID, by number."""
    modules = []
    for path in sorted((source.ROOT / "circuits" / "measurements").glob("*.py")):
        own = source.constants(path)
        if {"NUMBER", "ID"} <= own.keys():
            modules.append(Measurement(path, own["NUMBER"], own["ID"]))
    return tuple(sorted(modules, key=lambda m: m.number))


def pages() -> dict[str, str]:
    return {"measurements/index.md": _index(), **{m.page: page(m) for m in found()}}


def page(measurement: Measurement) -> str:
    """One measurement's page."""
    question, _, explanation = source.docstring(source.tree(measurement.path)).partition("\n\n")
    measure = source.function(measurement.path, "measure")
    read = ", ".join(f"[{c.identifier} {c.title}](../{c.page})" for c in measurement.readers)
    parts = [
        f"# {measurement.number} {measurement.title}\n",
        markdown.prose(question),
        markdown.prose(explanation),
        markdown.prose(source.docstring(measure)) if measure else "",
        "## Data\n",
        f"`results/<model>/<task>/{measurement.number}_{measurement.identifier}.json` "
        "([what is common to all files](../results.md)):\n",
        readme.data_fields(measurement.number) + "\n",
        "## Read by\n",
        (read or "No calibration, so no verdict rests on it.") + "\n",
        _settings(measurement),
        literature.section(measurement.number),
        f"Code: `{source.relative(measurement.path)}`\n",
    ]
    return "\n".join(part for part in parts if part.strip())


def _settings(measurement: Measurement) -> str:
    """The settings that the module declares to read."""
    declared = source.constants(measurement.path).get("SETTINGS", ())
    used = [s for s in settings.read(CONFIG) if s.name.partition(".")[0] in declared]
    if not used:
        return ""
    intro = "## Settings\n\n`configs/measurement/all.yaml`, on the command line `measurement.<setting>=<value>`:\n\n"
    return intro + settings.table(used)


def _index() -> str:
    """All measurements with their questions, and which heads each method can see."""
    rows = [(f"[{m.number}]({Path(m.page).name})", m.title, _question(m)) for m in found()]
    text = "# Measurements\n\nFacts, one numbered JSON each, per prompt and head; no verdicts.\n\n"
    compared = readme.section(readme.README, "Ways to ask which heads matter")
    entries = [Path(m.page).stem for m in found()]
    return (
        text
        + markdown.table(("no.", "measurement", "asks"), rows)
        + "\n## Ways to ask which heads matter\n\n"
        + compared
        + "\n"
        + markdown.toctree(entries, hidden=True)
    )


def _question(measurement: Measurement) -> str:
    """The docstring's first paragraph without number and title."""
    first = source.docstring(source.tree(measurement.path)).split("\n\n")[0]
    return markdown.prose(first.partition(": ")[2] or first).strip()
