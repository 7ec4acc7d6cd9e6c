"""The static site of a series, from manifests alone. The same manifests give the same bytes, except for build.json.

There is a page for the series and for each axis, status, known gaps and methodology, with the numbers of the manifest's settings.
`data/<id>/` has the data of the pages, so `do=site manifest=FILE` can rebuild the site from public data alone.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

import results_io
import shown_text
from result_types import ManifestContent
from results_io import UserError
from suites.drift import centroid, change_points, hedging, length, power, refusal, silent_update, stance
from suites.drift.corpus import AXES
from suites.drift.site import charts, downloads

PAGES = ("index", "status", "gaps", "methodology")
BUILD = "build.json"  # the only file with a time


@dataclass(frozen=True)
class SiteSource:
    """What a site is made of: manifests in order, the chain's head of each snapshot, the code that made it, prompts revealed."""

    series: str
    manifests: Sequence[ManifestContent]
    heads: Mapping[str, Mapping[str, Any]]
    commit: str
    revealed: Sequence[Mapping[str, Any]] = ()


def _visible(value: Any) -> Any:
    return shown_text.visible(value) if type(value) is str else value


def build(source: SiteSource, out: Path, time: datetime, secrets: Iterable[str] = ()) -> Path:
    """Write the site to `out`; returns its first page. `secrets`: held-out texts, which may not appear in any file.

    Files of an earlier build that this one does not make are removed. UserError without a manifest, and if a held-out text would
    be published; then nothing is written.
    """
    if not source.manifests:
        raise UserError(f"the series {source.series} has no manifest; run `python run.py drift do=analyse` first")
    files = pages(source)
    for manifest in source.manifests:
        own = downloads.files(manifest, source.heads.get(manifest["snapshot"]))
        files |= {f"data/{manifest['snapshot']}/{name}": content for name, content in own.items()}
    if source.revealed:
        files[downloads.REVEALED] = downloads.revealed(source.revealed)
    require_kept_out(files, secrets)
    for path in earlier(out) - {out / name for name in files}:
        path.unlink(missing_ok=True)
    for name, content in files.items():
        results_io.write_bytes(out / name, content)
    results_io.write_bytes(
        out / BUILD, (json.dumps({"built": time.isoformat(), "files": sorted(files)}) + "\n").encode()
    )
    return out / "index.html"


def earlier(out: Path) -> set[Path]:
    """The files that the last build wrote to `out`, as its build.json lists them; none outside of `out`."""
    try:
        listed = json.loads((out / BUILD).read_text(encoding="utf-8"))["files"]
        found = {out / str(name) for name in listed}
    except (OSError, ValueError, KeyError, TypeError):  # no build, or an old one without a list
        return set()
    return {path for path in found if path.resolve().is_relative_to(out.resolve())}


def require_kept_out(files: Mapping[str, bytes], secrets: Iterable[str]) -> None:
    """UserError if a held-out text is in a file, plain or escaped as in HTML, JSON or CSV."""
    for text in secrets:
        page = html.escape(text, quote=False).replace('"', "&#34;").replace("'", "&#39;")  # as jinja writes it
        plain = {text, page, html.escape(text), text.replace('"', '""')}
        forms = plain | {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        for name, content in files.items():
            if any(form.encode() in content for form in forms):
                raise UserError(
                    f"{name} would publish a held-out prompt; nothing was written: find out how it got there"
                )


def pages(source: SiteSource) -> dict[str, bytes]:
    """{file: bytes} of every page, from the last manifest; parts that need more snapshots say so."""
    last = source.manifests[-1]
    axes = [axis for axis in AXES if any(point["axis"] == axis for point in last["history"])]
    shared = {
        "series": source.series,
        "manifest": last,
        "axes": axes,
        "head": source.heads.get(last["snapshot"]),
        "commit": source.commit,
        "found_with": power.POWER,
        "data": f"data/{last['snapshot']}/manifest.json",
        "files": sorted(downloads.files(last, source.heads.get(last["snapshot"]))),
        "revealed": {"file": downloads.REVEALED, "count": len(source.revealed)},
    }
    found = {f"{name}.html": _page(name, **shared, **_of(name, last)) for name in PAGES}
    for axis in axes:
        found[f"axis-{axis}.html"] = _page("axis", **shared, **_axis(axis, last))
    found["style.css"] = Path(__file__).with_name("style.css").read_bytes()
    return found


def _of(page: str, last: ManifestContent) -> dict[str, Any]:
    if page == "methodology":
        planned = {"default": last["settings"]["default_samples"], "zero": last["settings"]["zero_samples"]}
        taken = {leg["name"]: leg["samples"] for leg in last["subject"].get("legs", ())}
        return {
            "asked": taken or planned,  # the settings may have changed since the snapshot was taken
            "hedging": {"version": hedging.VERSION, "sha256": hedging.SHA256, "count": len(hedging.MARKERS)},
            "one_p": silent_update.ONE_P,
            "penalty": change_points.PENALTY,
            "least": change_points.LEAST,
            "minimum": refusal.MINIMUM_PROMPTS,
            "rubric": stance.RUBRIC,
            "censored": length.CENSORED,
        }
    tests = [row for row in last["records"] if row["level"] == "axis" and "adjusted_p" in row]
    return {
        "tests": tests,
        "silent": next((row for row in last["records"] if row["metric"] == silent_update.NUMBER), None),
    }


def _axis(axis: str, last: ManifestContent) -> dict[str, Any]:
    """Charts and tables of one axis."""
    own = [row for row in last["records"] if row["axis"] == axis]
    breaks = {row["of"]: row["detail"].get("at", []) for row in own if row["level"] == "series"}
    names = dict.fromkeys(point["name"] for point in last["history"] if point["axis"] == axis)
    drawn = []
    for name in names:
        points = [point for point in last["history"] if (point["name"], point["axis"]) == (name, axis)]
        picture = charts.line(points, breaks.get(name, ()), f"{name}, {axis}")
        reason = next((point["reason"] for point in reversed(points) if point["reason"]), "no value")
        drawn.append({"name": name, "unit": points[0]["unit"], "svg": picture, "reason": reason})
    levels = {
        level: [row for row in own if row["level"] == level]
        for level in ("axis", "prompt", "harm", "held_out_gap", "overlap")
    }
    public = last["subject"].get("corpus", {}).get("public", [])
    prompts = [one for one in public if one["axis"] == axis]
    zero = (last["subject"].get("zero_leg") or {}).get(axis)
    shown = {"axis": axis, "charts": drawn, "levels": levels, "prompts": prompts, "zero": zero}
    return {**shown, "exchanged": _exchanged(axis, last)}


def _exchanged(axis: str, last: ManifestContent) -> list[dict[str, str]]:
    """Where another embedder took over: the name of the series that begins there, its first snapshot and the embedder's hash."""
    found: dict[str, dict[str, str]] = {}
    for point in last["history"]:
        if point["axis"] == axis and point["name"].startswith(f"{centroid.NAME}_embedder_"):
            own = {
                "name": point["name"],
                "snapshot": point["snapshot"],
                "embedder": str(point.get("detail", {}).get("embedder")),
            }
            found.setdefault(point["name"], own)
    return list(found.values())


@cache
def _templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    made = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_visible)
    made.filters["readable"] = charts.readable
    return made


def _page(name: str, **values: Any) -> bytes:
    return (_templates().get_template(f"{name}.html.j2").render(page=name, **values).rstrip("\n") + "\n").encode()
