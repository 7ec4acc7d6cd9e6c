"""`preset=quick`: what it sets, what it leaves out, and what its certificate says of itself."""

from __future__ import annotations

import json
import re

import pytest

from calibrations import certificate
from circuits.measurements import MEASUREMENTS
from meridian import config_files, headline, overrides, report, stages
from tests.commandline import command, started

LEFT_OUT = {"10", "24", "28"}
SMALLER = (
    "task=ioi",
    "model.device=cpu",
    "calibration=all",
    *(f"prompts.{name}={size}" for name, size in {"evaluation": 40, "held_out": 12, "discovery": 20}.items()),
    "prompts.reference=120",
)


def test_the_default_job_has_no_preset_and_leaves_nothing_out() -> None:
    settings = started("task=ioi").settings
    assert not settings.get("preset") and settings["measurement"]["left_out"] == []


@pytest.mark.slow
def test_every_setting_of_the_preset_is_one_of_the_default_job_and_smaller() -> None:
    preset = config_files.plain(config_files.read(overrides.CONFIGS / "preset" / "quick.yaml"))
    quick, default = (started("task=ioi", *given).settings for given in (["preset=quick"], []))
    assert quick["preset"] == preset.pop("preset") == {"name": "quick", "ceiling": 2}

    def compare(own, ours, theirs) -> None:
        for name, value in own.items():
            if isinstance(value, dict):
                compare(value, ours[name], theirs[name])
            elif name.endswith("share"):  # one in so many prompts
                assert ours[name] == value <= 2 * theirs[name]
            elif name not in ("left_out", "others", "onward"):
                assert ours[name] == value <= theirs[name], name
                assert type(value) is type(theirs[name])

    compare(preset, quick, default)
    assert set(quick["measurement"]["left_out"]) == LEFT_OUT


@pytest.mark.sampled(3)
@pytest.mark.parametrize("typed", ["preset.ceiling=4", "preset.name=slow", "preset.ceiling=2"])
def test_what_a_preset_says_of_itself_is_not_typed(typed, tmp_path) -> None:
    outcome = command("task=ioi", "preset=quick", typed, f"results={tmp_path / 'r'}")
    assert (outcome.code, outcome.output) == (2, "") and not (tmp_path / "r").exists()
    assert outcome.errors == (
        f"{typed} changes what a preset says of itself; type the setting that you want beside it, or leave it out\n"
    )


@pytest.mark.slow
def test_what_is_typed_replaces_the_preset_s() -> None:
    made = started("task=ioi", "preset=quick", "prompts.evaluation=77")
    assert made.settings["prompts"]["evaluation"] == 77
    assert made.differs == ["preset=quick", "prompts.evaluation=77"]


def test_the_preset_goes_with_the_rules_that_the_tier_is_read_from(tmp_path, monkeypatch) -> None:
    given = []
    monkeypatch.setattr(certificate, "certify", lambda documents, rules, standing: given.append(rules) or {})
    monkeypatch.setattr(stages, "headline", lambda *about: {"data": headline.at_most(about[2])})
    for typed in ((), ("preset=quick",)):
        folded = stages.certify(started("task=ioi", *typed), tmp_path, {"P": {"subject": {"task": "ioi"}}})
    assert "preset" not in given[0] and given[1]["preset"] == {"name": "quick", "ceiling": 2}
    assert given[0]["tiers"] == given[1]["tiers"] and folded["headline"]["data"] == "; preset quick: tier 2 at most"


@pytest.mark.slow
def test_its_certificate_says_so(tmp_path) -> None:
    outcome = command(*SMALLER, "preset=quick", f"results={tmp_path}")
    assert (outcome.code, outcome.errors) == (0, "")
    (path,) = tmp_path.rglob("certificate.json")
    certificate = json.loads(path.read_text())
    assert certificate["preset"] == {"name": "quick", "ceiling": 2} and certificate["ceiling"] <= 2
    assert certificate["tier"] <= certificate["ceiling"]
    changed = {one["key"] for one in certificate["rules"]["differences"]}
    assert {"prompts.evaluation", "measurement.left_out", "measurement.draws"} <= changed
    assert "under changed rules" in outcome.said and "preset quick: tier 2 at most" in " ".join(outcome.output.split())
    written = {one.name[:2] for one in path.parent.glob("[0-9]*.json")} & set(MEASUREMENTS)
    assert written == set(MEASUREMENTS) - LEFT_OUT
    assert "preset quick: tier 2 at most" in re.sub("<[^>]+>", "", (path.parent / report.NAME).read_text())


@pytest.mark.sampled(9)
@pytest.mark.parametrize("number", ["01", "99", "20", "x"])
def test_a_measurement_that_cannot_be_left_out_is_refused(number, tmp_path) -> None:
    outcome = command("task=ioi", f"measurement.left_out=['{number}']", f"results={tmp_path}")
    assert outcome.code == 2 and f"measurement.left_out names '{number}'; use numbers in quotes" in outcome.errors
    assert not list(tmp_path.rglob("*.json"))
