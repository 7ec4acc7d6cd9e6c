"""Small folders of results beside those of a run, each with everything that reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import results_io
from meridian import drift_trace
from meridian.commands import drift as drift_command
from meridian.commands import shadow as shadow_command
from meridian.report import drift_page, geometry_page, judging_page
from suites import gate
from suites.drift import analysis, site
from suites.drift.site import downloads
from suites.geometry import measure, results
from suites.judging import for_gate, passport
from suites.shadow import results as shadow_results
from tests.commandline import command
from tests.hardening import suite_results
from tests.result_samples import completed
from tests.suites import test_drift_analysis, test_gate, test_geometry_measure, test_shadow

MANY, SOME = 300, 150
Readers = Mapping[str, Callable[[Path], Any]]  # what reads a file, by the number or the name that the file begins with
GEOMETRY = ("171", "172", "174", "179", "180")
MORE_GEOMETRY = ("173", "175", "176", "177", "178")
JUDGING = ("181", "182", "183", "184", "judge")
WITHOUT_NUMBER = {"manifest": "160", "comparison": "drift_comparison", "judge": "judge_passport"}  # form by name


def drift(folder: Path) -> Path:
    """Three weeks of a series, in the last of which answers became longer, and a trace."""
    weeks = [(test_drift_analysis.plain, {}), (test_drift_analysis.plain, {}), (test_drift_analysis.longer, {})]
    own = test_drift_analysis.series(folder, *weeks)
    test_drift_analysis.analysed(own, prompt_level=True)
    share = {"value": 0.5, "interval": [0.3, 0.7]}
    named = [{"head": "L1H2", "discovery": 0.6, "interval": [0.4, 0.8], "confirmation": share}]
    compared = [{"head": "L1H2", "became": "lost", "a": 0.2, "b": 0.0, "interval": [0.1, 0.3]}]
    traced = completed("170", id=drift_trace.NAME, named=named, compared=compared, together=share, control=share)
    results_io.write(own / "trace" / "one" / drift_trace.FILE, traced)
    return own


def read_drift(path: Path) -> None:
    series = path.parent
    drift_page.of(series, "prod")
    manifests = [analysis.read(one) for one in sorted(series.glob("manifest-*.json"))]
    drift_command.alarm_table(manifests)
    drift_trace.alarms(series)
    source = site.SiteSource("prod", drift_command.in_order([downloads.content(one) for one in manifests]), {}, "x")
    site.pages(source)
    downloads.files(source.manifests[-1], None)


def analyse(path: Path) -> None:
    test_drift_analysis.analysed(path.parent, prompt_level=True)


def read_trace(path: Path) -> None:
    for line in drift_trace.sentences(drift_trace.read(path)):
        assert line


def geometry(folder: Path) -> Path:
    """Three constructs of two axes with a persona and turns, none of which moves the answers."""
    question = test_geometry_measure.question
    more = {"personas": {"cook": "As a cook,"}, "turns": ["It rained.", "It snowed."], "reference": [5, 5]}
    own = test_geometry_measure.written(folder / "mine", [question(f"q{k}", **more) for k in range(3)])
    model = test_geometry_measure.Rater(lambda prompt, sample: test_geometry_measure.says(5 + len(prompt) % 7 / 7, 4.0))
    run = measure.run([own], model, folder / "record", test_geometry_measure.SETTINGS)
    results.write(folder, run)
    heads = [{"head": "L0H1", "kind": "trait", "effects": [{"quantity": "spread", "estimate": 0.1}]}]
    results_io.write(folder / "180_trace.json", completed("180", id="trace", data={"mine": {"heads": heads}}))
    return folder


def read_geometry(path: Path) -> None:
    geometry_page.of(path.parent, "mine")


def judging(folder: Path) -> Path:
    """What the fair judge of the demo says."""
    for asked in (("do=validate",), ("do=pairs",), ("do=rank", "judge.resamples=1000")):
        done = command("judge", *asked, "judge=demo", "judge.planted=fair", f"results={folder}")
        assert done.code == 0, done.errors
    return folder / "judging"


def read_judging(path: Path) -> None:
    root = next(one for one in path.parents if one.name == "judging")
    judging_page.of(root, "judging")
    passport.find(root, "nobody", "nothing")
    for found in root.rglob("181_*.json"):
        runs = results_io.read(found)["subject"]
        for_gate.wins_of(root, runs["a"]["answers_sha256"], runs["b"]["answers_sha256"])


def gated(folder: Path) -> Path:
    old = test_gate._write_run(folder / "old" / "suites", [False] * 60)
    new = test_gate._write_run(folder / "new" / "suites", [True] * 8 + [False] * 52)
    return gate.write(gate.compare(gate.read(old), gate.read(new)), folder).parent


def shadow(folder: Path) -> Path:
    lines = [test_shadow.line(number) for number in range(40)]
    stream, done = test_shadow.passed(lines, test_shadow.REFUSAL, folder)
    path, _ = shadow_results.write(folder, stream, done, test_shadow.SETTINGS, test_shadow.SUBJECT, None)
    return path.parent


def read_shadow(path: Path) -> None:
    shadow_command.table(shadow_command.read(path))


def people(path: Path) -> None:
    """Of results that people alone read."""


class ResultKind(NamedTuple):
    """How a folder is made and read. `many`: mutations of a file in the slow test; `quick`: whether the quick one has it."""

    make: Callable[[Path], Path]
    readers: Readers
    many: int = MANY
    quick: bool = True


KINDS: Mapping[str, ResultKind] = {
    "drift": ResultKind(
        drift,
        {"manifest": read_drift, "comparison": analyse, "161": people, "169": people, "170": read_trace},
    ),
    "drift metrics": ResultKind(drift, dict.fromkeys(map(str, range(162, 169)), people), SOME, quick=False),
    "geometry": ResultKind(geometry, dict.fromkeys(GEOMETRY, read_geometry)),
    "geometry metrics": ResultKind(geometry, dict.fromkeys(MORE_GEOMETRY, read_geometry), SOME, quick=False),
    "judging": ResultKind(judging, dict.fromkeys(JUDGING, read_judging)),
    "gate": ResultKind(gated, {"151": people}),
    "shadow": ResultKind(shadow, {"189": read_shadow}),
    "a suite": ResultKind(suite_results.one_suite, suite_results.OF_ONE, SOME),
    "every mode": ResultKind(suite_results.every_mode, suite_results.OF_MODES, SOME, quick=False),
    "failures": ResultKind(suite_results.traced, suite_results.OF_FAILURES, SOME, quick=False),
    "contamination": ResultKind(suite_results.contaminated, suite_results.OF_CONTAMINATION, SOME),
    "validation": ResultKind(suite_results.validated, suite_results.OF_VALIDATION, SOME, quick=False),
}


def files(kind: str, folder: Path) -> list[tuple[Path, Callable[[Path], Any]]]:
    """One file of each name that a folder of this kind has, with what reads it."""
    found = []
    for name, reader in KINDS[kind].readers.items():
        paths = sorted(
            path for path in folder.rglob("*.json") if path.name.startswith((f"{name}_", f"{name}-", f"{name}."))
        )
        assert paths, f"no file of {name} in {folder}"
        found.append((paths[-1], reader))
    return found
