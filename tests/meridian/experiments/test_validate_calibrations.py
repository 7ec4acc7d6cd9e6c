"""A small experiment with fixed seeds, from the command line: sound and flawed circuits are told apart, and counted right."""

from __future__ import annotations

import math

import pytest
import yaml

import results_io
from meridian import generated_parts
from meridian.experiments.validation import page
from meridian.experiments.validation.declared import ROWS
from tests.commandline import ROOT, command, started

SAMPLES, RANDOM_SAMPLES, PROMPTS = 8, 3, 60
SETTINGS = (
    "experiment=validate_calibrations",
    "experiment.only=[sound,missing_head,false_head]",
    f"experiment.prompts=[{PROMPTS}]",
    f"experiment.default_prompts={PROMPTS}",
    "experiment.pool=120",
    "experiment.model_seeds={sound: [0], flawed: [0]}",
    f"experiment.replicates={{sound: {SAMPLES}, flawed: {SAMPLES}, random: {RANDOM_SAMPLES}}}",
    "experiment.random_circuits={model: pocket, claims: 2, pool: 100}",
    "experiment.measurement.companion_prompts=40",
    "experiment.measurement.random_circuits=40",
    "experiment.coverage.prompts=[40]",
    "experiment.coverage.replicates=12",
    "prompts.discovery=60",
    "prompts.reference=150",
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of one small experiment, named by what differs from the shipped one, and what it said."""
    results = tmp_path_factory.mktemp("validation")
    outcome = command(*SETTINGS, f"results={results}")
    (folder,) = (results / "validation").iterdir()
    return folder, outcome


@pytest.fixture(scope="module")
def measured(ran):
    return results_io.read(ran[0] / "V1_error_rates.json")


def cell(measured, subject, row):
    found = [c for c in measured["data"]["cells"] if (c["subject"], c["row"]) == (subject, row)]
    assert len(found) == 1
    return found[0]


def passes(measured, subject, metric):
    """In how many samples the verdict of one record was "pass"."""
    return measured["data"]["metric_passes"][subject][str(PROMPTS)][metric][1]


@pytest.mark.slow
def test_it_ends_well_and_shows_the_table(ran):
    folder, outcome = ran
    assert outcome.code == 0, outcome.errors
    for word in ("missing_head", "false_head", "declared cells met", "certified: sound", "95 % intervals"):
        assert word in outcome.said
    assert {path.name for path in folder.glob("*.*")} == {"V1_error_rates.json", "V2_coverage.json", "error_rates.svg"}
    assert "<svg" in (folder / "error_rates.svg").read_text()


@pytest.mark.slow
def test_every_subject_has_a_cell_for_every_calibration(measured):
    assert len(measured["data"]["cells"]) == 4 * len(ROWS)
    assert measured["n"] == {"pools": 5, "samples": 3 * SAMPLES + 2 * RANDOM_SAMPLES}


@pytest.mark.slow
def test_a_missing_head_is_seen_and_a_sound_circuit_is_not_blamed(measured):
    """Faithfulness is .6 and 1.0, far from the limit of .8: every sample says so."""
    assert cell(measured, "missing_head", "P")["verdict_pass"]["count"] == 0
    assert cell(measured, "missing_head", "P")["verdicts"] == {"fail": SAMPLES}
    assert passes(measured, "sound", "P.faithfulness") == passes(measured, "sound", "P.random_circuits") == SAMPLES
    assert cell(measured, "sound", "P")["verdicts"] == {
        "insufficient": SAMPLES
    }  # groups of heads: 15 of the 60 prompts


@pytest.mark.slow
def test_a_false_head_is_seen_by_the_calibration_declared_for_it(measured):
    assert cell(measured, "false_head", "M3b")["verdict_pass"]["count"] == 0
    assert cell(measured, "false_head", "M3b")["met"] is True
    assert passes(measured, "false_head", "P.faithfulness") == SAMPLES  # a decoy more changes nothing


@pytest.mark.slow
@pytest.mark.parametrize("row", ["C11", "C17", "C36", "S1", "M98", "E1b", "M3b"])
def test_the_sound_circuit_passes_what_sixty_prompts_can_show(measured, row):
    """Power at least .95 - 3 sqrt(.05 x .95 / 8) = .72 of 8 samples: 6 of them."""
    assert cell(measured, "sound", row)["verdict_pass"]["count"] >= math.ceil(0.72 * SAMPLES)


@pytest.mark.slow
def test_sixty_prompts_are_too_few_to_certify(measured):
    """S3 wants 255 prompts: nothing reaches tier 4, sound or not, and random claims reach no tier at all."""
    tiers = {name: found[str(PROMPTS)]["counts"] for name, found in measured["data"]["tiers"].items()}
    assert all(counts[4] == 0 for counts in tiers.values())
    assert tiers["random"] == [2 * RANDOM_SAMPLES, 0, 0, 0, 0]
    assert cell(measured, "sound", "S3")["verdicts"] == {"insufficient": SAMPLES}


@pytest.mark.slow
def test_coverage_is_counted_for_every_interval(ran):
    rows = results_io.read(ran[0] / "V2_coverage.json")["data"]["coverage"]
    shown = {row["metric"] for row in rows if row["interval"] == "ci95"}
    assert {"P.faithfulness", "C13.measurement_invariance", "C36.incremental_validity"} <= shown
    for row in rows:
        samples = 2 if row["metric"].startswith("C12") else 12  # C12 runs on every eighth sample
        assert (row["replicates"], row["n"]) == (samples, 40)
        assert row["covered"] + row["above"] + row["below"] == row["intervals"]
    faithful = [row for row in rows if (row["metric"], row["interval"]) == ("P.faithfulness", "ci95")]
    assert faithful and all(row["covered"] >= 8 for row in faithful)  # 12 at .95: fewer than 8 has probability 2e-5


def test_the_page_is_the_one_of_the_committed_results():
    """Every generated part of the page, from the numbers beside it."""
    kept = page.PAGE.parent / "validation"
    documents = [results_io.read(kept / name) for name in ("V1_error_rates.json", "V2_coverage.json")]
    for name, content in page.parts(*documents).items():
        assert generated_parts.part(page.PAGE, name) == content.strip(), (
            f"{name}: run meridian.experiments.validation.page"
        )


def test_the_committed_experiment_is_a_full_one():
    """As declared in the configuration: no subject left out, no replicate saved."""
    document = results_io.read(page.PAGE.parent / "validation" / "V1_error_rates.json")
    settings = document["subject"]["settings"]
    shipped = yaml.safe_load((ROOT / "configs" / "experiment" / "validate_calibrations.yaml").read_text())
    older = settings["measurement"]["battery"]["empty"] == ["mean"]  # before P.outside, which reads resample as well
    settings["measurement"]["battery"]["empty"] = shipped["measurement"]["battery"]["empty"]
    assert settings == results_io.canonical(shipped)
    for section in ("calibration", "certificate"):  # thresholds: a page made under others says so
        config = started("experiment=validate_calibrations").settings[section]
        judged = {name: config[name] for name in document["subject"][section]}  # no calibration that was added since
        older |= document["subject"][section] != results_io.canonical(judged)
    assert ("measured under the rules before" in page.PAGE.read_text()) == older


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("experiment.only=[salt]", "experiment.only names 'salt', which is no subject; use some of sound, "),
        ("experiment.pool=599", "experiment.pool=599 is too small for samples of 600 prompts; use at least 600"),
        (
            "experiment.default_prompts=50",
            "experiment.default_prompts=50 is not among the sizes; use one of 40, 100, 400",
        ),
        ("experiment.replicates.sound=0", "experiment.replicates.sound=0 is too small"),
        ("experiment.random_circuits.model=salt", "experiment.random_circuits.model=salt is no model with a stored"),
        ("experiment.prompts=[]", "experiment.prompts=[] is no list of sample sizes"),
        ("experiment.prompts=[400,400]", "experiment.prompts=[400, 400] is no list of sample sizes"),
        ("experiment.model_seeds.flawed=[]", "experiment.model_seeds.flawed=[] leaves nothing to measure"),
    ],
)
def test_bad_settings_are_one_sentence_and_nothing_is_written(setting, said, tmp_path):
    outcome = command("experiment=validate_calibrations", setting, f"results={tmp_path / 'r'}")
    assert (outcome.code, outcome.errors.count("\n")) == (2, 1)
    assert outcome.errors.startswith(said)
    assert not (tmp_path / "r").exists()


def test_an_unknown_experiment_is_refused(tmp_path):
    outcome = command("experiment=salt", f"results={tmp_path / 'r'}")
    assert outcome.code == 2
    known = ", ".join(sorted(path.stem for path in (ROOT / "configs" / "experiment").glob("*.yaml")))
    assert "validate_calibrations" in known
    assert outcome.errors == f"experiment=salt is unknown; use one of {known}\n"
