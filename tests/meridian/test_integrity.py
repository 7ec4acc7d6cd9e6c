"""Whatever is edited, removed or stripped of its digest in a finished run is named, and made again to the byte."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import results_io
from circuits import circuit as circuit_files
from circuits import models
from circuits.circuit import Circuit, Role, head
from meridian import aggregate, integrity
from tests.commandline import SMALL, command

EDITS = 8  # in each file


@pytest.fixture
def copied(results, tmp_path) -> Path:
    """The folder of the run, in a copy of all results."""
    shutil.copytree(results, tmp_path / "results")
    (certificate,) = (tmp_path / "results").rglob("certificate.json")
    return certificate.parent


def edit(path: Path, change: Any) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(results_io.dumps(document))


def leaves(value: Any, where: tuple = ()) -> Iterator[tuple]:
    """The places of all values that hold no others."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = list(parts)
    if not inner:
        yield where
    for key, part in inner:
        yield from leaves(part, (*where, key))


def other(value: Any) -> Any:
    """Another value of the same kind, as near as can be."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, float):
        return value + abs(value) * 1e-8 + 1e-12
    return value + 1 if isinstance(value, int) else f"{value}x" if isinstance(value, str) else [0]


def test_a_finished_run_is_as_it_was_written(finished) -> None:
    assert integrity.faults(finished) == {}


def test_every_edited_value_of_every_file_is_noticed(copied) -> None:
    rng, missed, tried = random.Random(0), [], 0
    paths = [*copied.glob("*.json"), copied.parents[2] / "summary.json"]
    assert len(paths) == 19 + 17 + 2  # measurements, calibrations with P, certificate and summary
    for path in paths:
        before = json.loads(path.read_text())
        places = [place for place in leaves(before) if place != ("content_sha256",)]
        for place in rng.sample(places, min(EDITS, len(places))):
            document = copy.deepcopy(before)
            inner = document
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = other(inner[place[-1]])
            path.write_text(results_io.dumps(document))
            missed += [(path.name, place)] if results_io.fault(path) is None else []
            tried += 1
    assert (missed, tried) == ([], len(paths) * EDITS)


@pytest.mark.slow
def test_verdicts_set_to_pass_certify_nothing(copied, monkeypatch) -> None:
    """The attack that printed "Tier 4 of 4: certified ... nothing measured anew"."""
    monkeypatch.setattr(models, "load", lambda *settings: pytest.fail("the model was loaded"))
    results = copied.parents[2]
    before = {path: path.read_bytes() for path in results.rglob("*.*") if path.is_file()}
    edited = []
    for path in sorted(copied.glob("[0-9A-Z]*_*.json")):
        text = path.read_text()
        for verdict in ("fail", "inconclusive", "insufficient"):
            text = text.replace(f'"verdict": "{verdict}"', '"verdict": "pass"')
        if text.encode() != path.read_bytes():
            path.write_text(text)
            edited.append(path.name)
    assert len(edited) > 10
    certificate = copied / "certificate.json"
    edit(certificate, lambda document: document.update(tier=4))
    (copied / "36_incremental_validity.json").unlink()
    outcome = command(*SMALL, "calibration=all", f"results={results}")
    named = sorted({*edited, "certificate.json"} - {"36_incremental_validity.json"})
    line = f"{copied}: {', '.join(named)}: each was edited after it was written"
    assert (outcome.code, outcome.errors) == (0, "") and line in outcome.said
    assert "Tier 4" not in outcome.said
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_an_edited_measurement_is_named_and_measured_again(copied) -> None:
    path = copied / "21_knockouts.json"
    before = path.read_bytes()
    edit(path, lambda document: document["data"]["effect"][0].__setitem__(0, 9.0))
    outcome = command(*SMALL, "calibration=all", f"results={copied.parents[2]}")
    assert f"{path.name}: it was edited after it was written" in outcome.said
    assert "nothing measured anew" not in outcome.said
    assert path.read_bytes() == before


def test_what_is_gone_and_what_lost_its_digest_is_named(copied) -> None:
    (copied / "12_convergent_validity.json").unlink()
    edit(copied / "11_bootstrap_stability.json", lambda document: document.pop("content_sha256"))
    edit(copied / "13_measurement_invariance.json", lambda document: document.update(schema_version=0))
    (copied / "14_derived_metrics.json").write_text("{")
    said: list[str] = []
    integrity.announce(copied, said.append)
    assert len(said) == 4
    assert f"{copied}: 11_bootstrap_stability.json: it has no digest of its content" in said[0]
    assert "13_measurement_invariance.json: it has result schema 0, expected 1" in said[1]
    assert "14_derived_metrics.json: it is not readable JSON" in said[2]
    assert "result 12: it is gone since certificate.json was made from it" in said[3]


def stray(folder: Path, name: str) -> None:
    if name == "A_b.json":
        os.mkfifo(folder / name)
    elif name == "ZZ_x.json":
        (folder / name).mkdir()
    else:
        (folder / name).write_text("{")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("99_x.json", "no result has the number 99; take it away"),
        ("A_b.json", "no result has the number A; take it away"),
        ("ZZ_x.json", "no result has the number ZZ; take it away"),
        ("P_x.json", "is not named as its result, P_preconditions.json; rename it or take it away"),
        ("01_BASELINE.json", "is not named as its result, 01_baseline.json; rename it or take it away"),
    ],
)
def test_a_file_that_no_run_makes_is_refused_before_anything_is_measured(copied, name, said) -> None:
    stray(copied, name)
    before = {path.name: path.stat().st_mtime_ns for path in copied.iterdir()}
    with pytest.raises(results_io.UserError, match=re.escape(f"{copied / name} ")) as refused:
        integrity.require_named(copied)
    assert str(refused.value).endswith(said)
    results = copied.parent.parent.parent
    outcome = command("task=ioi", "calibration=all", *SMALL, f"results={results}")
    assert outcome.code == 2 and outcome.errors.strip().endswith(said) and "\n" not in outcome.errors.strip()
    assert {path.name: path.stat().st_mtime_ns for path in copied.iterdir()} == before


def test_a_sound_result_of_another_number_stands_under_its_own_name(copied) -> None:
    results_io.write(copied / "V5_x.json", {"number": "V5", "id": "y", "schema_version": 1})
    with pytest.raises(results_io.UserError, match=r"V5_x.json is not named as its result, V5_y.json"):
        integrity.require_named(copied)
    (copied / "V5_x.json").rename(copied / "V5_y.json")
    integrity.require_named(copied)


def test_a_result_under_another_name_is_refused_and_verify_says_so(copied) -> None:
    """The run would measure it again beside the renamed file, and then refuse the two."""
    (copied / "01_baseline.json").rename(copied / "01_other.json")
    (copied / "73_distributional_characterization.json").rename(copied / "73_x.json")
    with pytest.raises(results_io.UserError, match=r"01_other.json is not named as its result, 01_baseline.json"):
        integrity.require_named(copied)
    outcome = command("verify", f"from={copied}")
    assert outcome.code == 1 and "01_other.json is not named as its result" in outcome.said.replace("\n", " ")


def test_a_circuit_that_the_search_did_not_write_is_named(tmp_path) -> None:
    found = Circuit("c", "ioi", "pocket", {"r": Role((head(0, 1),))}, {"kind": "discovered"})
    path = tmp_path / "circuit.yaml"
    circuit_files.save(found, path)
    results_io.write(tmp_path / "discovery.json", {"found": results_io.file_digest(path)})
    assert integrity.faults(tmp_path) == {}
    path.write_text(path.read_text().replace("L0H1", "L0H2"))
    assert integrity.faults(tmp_path) == {"circuit.yaml": "is not the circuit that the search wrote"}


def test_reading_alone_refuses_with_the_remedy(copied, tmp_path) -> None:
    path = copied / "11_bootstrap_stability.json"
    edit(path, lambda document: document["records"][0].update(verdict="pass", estimate=1.0))
    outcome = command("figures", f"from={copied}", f"results={tmp_path / 'other'}")
    assert outcome.code == 2
    assert outcome.errors.strip() == (
        f"{path} was edited after it was written: its digest is of another content; delete it and run again to measure it anew"
    )


def test_certificates_of_older_versions_are_left_out_of_the_summary_and_listed(copied) -> None:
    results, said = copied.parents[2], []
    config = command_config()
    whole = aggregate.pool(results, config, said.append)
    assert (whole["left_out"], said) == ([], [])
    edit(copied / "certificate.json", lambda document: document.pop("content_sha256"))
    name = str(copied.relative_to(results))
    assert aggregate.pool(results, config, said.append)["left_out"] == [name]
    assert said == [
        f"Left out of summary.json: the certificates in {name}, of an older version without a digest; repeat their runs"
    ]
    assert results_io.read(results / "summary.json")["circuits"] == {}


def command_config() -> dict[str, Any]:
    from tests.calibrations.test_summary import CONFIG

    return CONFIG
