"""Stage 2 end to end on synthetic results: known circuits get their tier, and only what is stale is made again."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import code_digest
import results_io
from calibrations import calibrate, certificate
from calibrations.evidence import Evidence
from calibrations.registry import CALIBRATIONS
from calibrations.rules import Standing
from results_io import UserError
from tests.calibrations.settings import shuffled
from tests.calibrations.synthetic import documents
from tests.result_samples import completed

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "configs" / "certificate" / "tiers.yaml").read_text())
FEW = ("C11", "C17", "C30", "M3b", "M93")
FILES = {  # what FEW write
    "C11": "11_bootstrap_stability.json",
    "C17": "17_discriminant_validity.json",
    "C30": "30_seed_variance.json",
    "M3b": "M3b_certified_stability.json",
    "M93": "93_multiple_comparisons.json",
    "P": "P_preconditions.json",
}
SUBJECT = {
    "model": "synthetic",
    "model_sha256": "a" * 64,
    "task": "synthetic",
    "prompts_sha256": "b" * 64,
    "circuit": "synthetic",
    "circuit_sha256": "c" * 64,
}


def configuration(**common):
    """The shipped calibration settings, by section."""
    sections = [yaml.safe_load(path.read_text()) for path in (ROOT / "configs" / "calibration").glob("*.yaml")]
    config = {key: value for section in sections for key, value in section.items() if key != "defaults"}
    return {**config, "common": {**config["common"], **common}}


def quick():
    return configuration(permutations=199, bootstrap_resamples_p=499)


def stored(folder, found):
    """Write synthetic documents as measurement files into `folder`."""
    for number, document in found.items():
        results_io.write(folder / f"{number}_synthetic.json", completed(number, **{**document, "subject": SUBJECT}))
    return folder


def verdicts(judged, split="evaluation"):
    records = (d["records"] if split == "evaluation" else d["data"]["held_out"] for d in judged.values())
    return {record["metric"]: record["verdict"] for part in records for record in part if record["gating"]}


def snapshot(folder):
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.iterdir())}


def rewritten(before, folder):
    """Names of the files written since the snapshot `before`."""
    return {name for name, state in snapshot(folder).items() if before.get(name, (0,))[0] != state[0]}


def bounded(found):
    """`found` with direct attributions of the same means and SDs whose noise is uniform: S3 bounds the tails of normal effects,
    and shows seven stable heads of 400 prompts in about half of all samples of those."""
    effects, rng = np.array(found["03"]["data"]["attribution"]), np.random.default_rng(3)
    spread = np.sqrt(3) * effects.std(axis=0)
    found["03"]["data"]["attribution"] = (effects.mean(axis=0) + rng.uniform(-spread, spread, effects.shape)).tolist()
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A sound circuit with the measurements that exist so far, judged by the shipped configuration."""
    return calibrate.calibrate(
        stored(tmp_path_factory.mktemp("sound"), bounded(documents())), CALIBRATIONS, configuration()
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = stored(tmp_path_factory.mktemp("judged"), documents(n_evaluation=240, n_held_out=120))
    return folder, calibrate.calibrate(folder, FEW, quick())


@pytest.fixture
def judged(template, tmp_path):
    """A folder of synthetic results with the calibrations FEW on top, and what they were."""
    folder, found = template
    return Path(shutil.copytree(folder, tmp_path / "judged")), found


# --- known circuits ------------------------------------------------------------------------------------------------


def test_a_sound_circuit_is_supported_and_wants_the_measurements_that_are_to_come(sound):
    assert verdicts(sound) == {
        **dict.fromkeys(verdicts(sound), "pass"),
        "C12.convergent_validity": "insufficient",
        "F59.kendalls_w": "insufficient",
        "M93.multiple_comparisons": "insufficient",  # two gates have no p-value yet
    }
    folded = certificate.certify(sound, RULES, Standing("0.3", "x"))
    assert (folded["tier"], folded["tier_name"], folded["ceiling"]) == (
        2,
        "supported under mean per template and position",
        2,
    )
    assert [gate["metric"] for gate in folded["blocking"]["3"]] == ["C12.convergent_validity", "F59.kendalls_w"]
    assert [gate["needs"] for gate in folded["blocking"]["3"]] == [
        "one of the measurements 05, 07, 10",
        "measurement 09",
    ]
    assert [(g["metric"], g["split"]) for g in folded["blocking"]["4"]] == [
        ("M93.multiple_comparisons", "evaluation"),
        ("C12.convergent_validity", "held_out"),
        ("F59.kendalls_w", "held_out"),
    ]
    assert folded["warnings"] == []
    assert folded["p_certificate"] is None  # not every gate has been tested


def test_the_verdicts_of_a_sound_circuit_repeat_on_held_out_prompts(sound):
    again = verdicts(sound, "held_out")
    assert again.pop("S3.distributional_stability") == "insufficient"  # 200 prompts of the 255 that it needs
    assert again == {metric: verdict for metric, verdict in verdicts(sound).items() if metric in again}


def test_the_estimates_of_a_sound_circuit_are_those_it_was_drawn_with(sound):
    found = {record["metric"]: record for document in sound.values() for record in document["records"]}
    assert found["P.faithfulness"]["estimate"] == pytest.approx(0.95, abs=0.01)
    assert found["P.behaviour"]["estimate"] == pytest.approx(5, abs=0.1)
    assert found["C36.incremental_validity"]["estimate"] == pytest.approx(0.95 - 0.2, abs=0.02)
    assert found["C13.measurement_invariance"]["estimate"] < 0.01
    assert found["P.random_circuits"]["p"] == pytest.approx(1 / 201)


@pytest.mark.slow
def test_a_sound_circuit_is_certified_once_every_method_has_been_measured(tmp_path):
    found = bounded(documents())
    mean = np.abs(np.mean(found["02"]["data"]["denoising"], axis=0))
    importance = np.where(mean > 0.25, mean, 0.0)  # the circuit's heads
    noise = np.random.default_rng(0).normal(0, 0.1, (600, len(mean)))
    found |= {
        number: {"number": number, "data": data}
        for number, data in {
            "05": {"natural_indirect": (noise + importance).tolist()},
            "07": {"score": importance.tolist()},
            "09": {"ov_norm": importance.tolist()},
            "10": {"score": importance.tolist()},
        }.items()
    }
    fewer = configuration(permutations=999, bootstrap_resamples_p=1999)
    judged = calibrate.calibrate(stored(tmp_path, found), CALIBRATIONS, fewer)
    folded = certificate.certify(judged, RULES, Standing("0.3", "x"))
    assert {gate["metric"]: gate["reason"] for gates in folded["blocking"].values() for gate in gates} == {}
    assert (folded["tier"], folded["ceiling"]) == (4, 4)
    assert folded["p_certificate"] < 0.05


@pytest.mark.slow
def test_a_circuit_no_better_than_random_ones_is_proposed_and_nothing_more(tmp_path):
    folder = stored(tmp_path, documents(faithfulness=0.1, effect=0.0))
    judged = calibrate.calibrate(folder, CALIBRATIONS, configuration())
    folded = certificate.certify(judged, RULES, Standing("0.3", "x"))
    assert (folded["tier"], folded["tier_name"], folded["ceiling"]) == (0, "proposed", 2)
    found = verdicts(judged)
    passed = {metric for metric, verdict in found.items() if verdict == "pass"}
    groups = {"P.completeness", "P.completeness_every_recipe", "P.outside"}  # nothing is missing from nothing
    assert passed == {"P.behaviour", "P.denominator", *groups}
    failed = {metric for metric, verdict in found.items() if verdict == "fail"}
    assert failed == {
        "P.faithfulness",
        "P.faithfulness_over_wordings",
        "P.faithfulness_every_recipe",
        "P.incompleteness_score",
        "P.random_circuits",
        "C14.d_prime",
        "C17.discriminant_validity",
    }  # S1 is undecided: noise explains the attribution of every head
    unfaithful = {r["metric"] for d in judged.values() for r in d["records"] if "not_faithful" in "".join(r["reasons"])}
    assert unfaithful >= {  # a null circuit is stable and invariant
        "C11.bootstrap_faithfulness",
        "C13.measurement_invariance",
        "C16.test_retest",
        "C30.seed_variance",
        "C36.incremental_validity",
        "S3.distributional_stability",
        "M3b.certified_stability",
        "M98.ablation_invariance",
        "E1b.method_invariance",
    }
    assert [gate["metric"] for gate in folded["warnings"]] == ["C17.discriminant_validity"]


@pytest.mark.slow
def test_the_order_of_the_prompts_changes_nothing_in_any_of_the_sixteen(sound, tmp_path):
    found = shuffled(bounded(documents()))
    assert found["01"]["data"]["prompt_id"] != documents()["01"]["data"]["prompt_id"]
    other = calibrate.calibrate(stored(tmp_path, found), CALIBRATIONS, configuration())
    assert list(other) == list(sound) and set(CALIBRATIONS) < set(other)
    for identifier, document in sound.items():
        assert other[identifier]["records"] == document["records"], identifier
        assert other[identifier]["data"] == document["data"], identifier


# --- what is written -----------------------------------------------------------------------------------------------


def test_each_calibration_writes_one_numbered_file(judged):
    folder, found = judged
    made = {path.name for path in folder.iterdir() if not path.name.endswith("_synthetic.json")}
    assert made == set(FILES.values())
    assert list(found) == ["P", "C11", "C17", "C30", "M3b", "M93"]  # M93 reads the others
    for identifier, name in FILES.items():
        document = results_io.read(folder / name)
        assert document == found[identifier]
        assert f"{document['number']}_{document['id']}.json" == name
        assert document["kind"] == "calibration"
        assert {key: document["subject"][key] for key in SUBJECT} == SUBJECT
        assert (folder / name).read_text() == results_io.dumps(document)


def test_the_held_out_verdicts_are_the_same_calibration_on_the_other_split(judged):
    folder, found = judged
    config = calibrate.section(quick(), "C11")
    evidence = Evidence.load(folder, quick()["common"], ("01", "20"))
    for split, stored_records in (
        ("evaluation", found["C11"]["records"]),
        ("held_out", found["C11"]["data"]["held_out"]),
    ):
        records = [record.to_dict() for record in CALIBRATIONS["C11"].calibrate(evidence.on(split), config)]
        assert stored_records == results_io.canonical(records)
    assert [record["n"]["prompts"] for record in found["C11"]["records"]] == [240, 240]
    assert [record["n"]["prompts"] for record in found["C11"]["data"]["held_out"]] == [120, 120]


def test_m93_reads_every_p_value_of_the_others_and_none_of_its_own(judged):
    _, found = judged
    tested = {test["metric"]: test["p"] for test in found["M93"]["records"][0]["companions"]["per_test"]}
    others = [record for name, document in found.items() if name != "M93" for record in document["records"]]
    assert tested == {record["metric"]: record["p"] for record in others if record["p"] is not None}
    assert sorted(found["M93"]["inputs_sha256"]) == ["11", "17", "30", "M3b", "P"]


def test_inputs_are_the_digests_of_the_files_read(judged):
    folder, found = judged
    expected = {
        number: results_io.file_digest(folder / f"{number}_synthetic.json") for number in ("01", "02", "20", "27")
    }
    assert found["C17"]["inputs_sha256"] == expected


def test_settings_of_a_calibration_are_its_own_over_the_common_ones(judged):
    _, found = judged
    config = quick()
    assert found["C11"]["subject"]["settings"] == {**config["common"], **config["c11"]}
    assert found["P"]["subject"]["settings"] == config["common"]


def test_a_missing_measurement_makes_its_readers_insufficient_and_no_other(tmp_path):
    found = documents(n_evaluation=240, n_held_out=120)
    del found["27"], found["21"]
    judged = calibrate.calibrate(stored(tmp_path, found), FEW, quick())
    reasons = {name: document["records"][0]["reasons"] for name, document in judged.items()}
    assert reasons["C17"][0] == "not_run: measurement 27 has not been run"
    assert reasons["M3b"][0] == "not_run: measurement 21 has not been run"
    assert judged["C11"]["data"]["verdict"] == judged["C30"]["data"]["verdict"] == "pass"


@pytest.mark.parametrize("absent", [("01",), ("20",), ("01", "20")])
def test_without_prompts_or_circuit_there_is_nothing_to_judge(absent, tmp_path):
    found = documents(n_evaluation=24, n_held_out=12)
    for number in absent:
        del found[number]
    with pytest.raises(UserError, match=rf"has no measurement {' and '.join(absent)}, .*run.py measures it"):
        calibrate.calibrate(stored(tmp_path, found), FEW, quick())
    assert len(list(tmp_path.iterdir())) == len(found)


def test_measurements_of_names_what_is_read():
    assert calibrate.measurements_of([]) == ["01", "20"]
    assert calibrate.measurements_of(["M3b", "C17"]) == ["01", "02", "20", "21", "22", "27"]
    assert calibrate.measurements_of(["M93"]) == ["01", "20"]


# --- what is made again --------------------------------------------------------------------------------------------


def test_a_second_call_writes_nothing(judged):
    folder, found = judged
    before = snapshot(folder)
    assert calibrate.calibrate(folder, FEW, quick()) == found
    assert snapshot(folder) == before


@pytest.mark.sampled(3)
@pytest.mark.parametrize("identifier", FILES)
def test_a_deleted_file_is_made_again_alone_with_the_same_bytes(judged, identifier):
    folder, _ = judged
    before = snapshot(folder)
    (folder / FILES[identifier]).unlink()
    calibrate.calibrate(folder, FEW, quick())
    assert rewritten(before, folder) == {FILES[identifier]}
    assert {name: text for name, (_, text) in snapshot(folder).items()} == {n: text for n, (_, text) in before.items()}


def test_a_changed_threshold_makes_that_calibration_and_m93_stale(judged):
    folder, _ = judged
    before, config = snapshot(folder), quick()
    config["c30"] = {**config["c30"], "excellent_below": 0.001}
    again = calibrate.calibrate(folder, FEW, config)
    assert rewritten(before, folder) == {FILES["C30"], FILES["M93"]}
    assert again["C30"]["subject"]["settings"]["excellent_below"] == 0.001
    assert (
        again["C30"]["records"][0]["published_label"]
        != json.loads(before[FILES["C30"]][1])["records"][0]["published_label"]
    )


def test_a_changed_common_setting_makes_all_of_them_stale(judged):
    folder, _ = judged
    before, config = snapshot(folder), quick()
    config["common"]["alpha"] = 0.04
    calibrate.calibrate(folder, FEW, config)
    assert rewritten(before, folder) == set(FILES.values())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("number", "readers"), [("27", {"C17"}), ("21", {"M3b"}), ("25", set()), ("20", set(FILES) - {"M93"})]
)
def test_a_changed_measurement_makes_its_readers_and_m93_stale(judged, number, readers):
    folder, _ = judged
    before = snapshot(folder)
    path = folder / f"{number}_synthetic.json"
    document = results_io.read(path)
    results_io.write(path, {**document, "environment": {"machine": "another"}})
    calibrate.calibrate(folder, FEW, quick())
    expected = {FILES[name] for name in readers} | ({FILES["M93"]} if readers else set())
    assert rewritten(before, folder) == expected | {path.name}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "content", [b'{"schema_version": 1, "subje', b"", b"\xff\x00", b"[]", b'{"schema_version": 1}']
)
def test_an_unreadable_file_is_made_again(judged, content):
    folder, _ = judged
    before = snapshot(folder)
    (folder / FILES["C30"]).write_bytes(content)
    calibrate.calibrate(folder, FEW, quick())
    assert {name: text for name, (_, text) in snapshot(folder).items()} == {n: text for n, (_, text) in before.items()}


def test_verdicts_of_other_code_are_made_again(judged, monkeypatch):
    folder, found = judged
    before = snapshot(folder)
    monkeypatch.setattr(code_digest, "version_of", lambda stored: "0.1.0+other")
    again = calibrate.calibrate(folder, FEW, quick())
    assert rewritten(before, folder) == set(FILES.values())
    assert again["C11"]["subject"]["judged_by"] == "0.1.0+other" != found["C11"]["subject"]["judged_by"]
    assert again["C11"]["records"] == found["C11"]["records"]


def test_another_selection_makes_only_m93_stale(judged):
    folder, found = judged
    before = snapshot(folder)
    fewer = calibrate.calibrate(folder, ("M93", "C11"), quick())
    assert list(fewer) == ["P", "C11", "M93"]
    assert rewritten(before, folder) == {FILES["M93"]}
    assert fewer["C11"] == found["C11"]


# --- independence of the measuring side ----------------------------------------------------------------------------


def test_judging_needs_neither_torch_nor_the_measuring_side():
    code = (
        "import calibrations, calibrations.registry, calibrations.calibrate, calibrations.certificate\n"
        "import calibrations.certificate_table, calibrations.summary, sys\n"
        "loaded = {'torch', 'transformers', 'transformer_lens', 'circuits', 'hydra'} & set(sys.modules)\n"
        "sys.exit(', '.join(loaded) or 0)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), check=False, capture_output=True, text=True
    )
    assert (finished.returncode, finished.stderr) == (0, "")
