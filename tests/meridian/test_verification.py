"""`run.py verify` walks from the certificate to the weights and stops at the first link that does not hold."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import code_digest
import results_io
from calibrations.evidence import Evidence
from circuits import circuit as circuit_files
from circuits import models
from circuits.measure import Plan
from meridian import headline, integrity, remeasurement
from meridian.verification import Break, Verification, _judging, replayed
from results_io import UserError
from tests.circuits.file_rows import as_csv, ioi_rows
from tests.commandline import command, started

SHARE = {"remeasure": 0.1, "seed": 0, "tolerance": 0.001}
CIRCUIT = circuit_files.load(models.EMBEDDED / "pocket" / "circuits" / "ioi.yaml")


@pytest.fixture
def copied(results, tmp_path) -> Path:
    """The folder of the run, in a copy of all results."""
    shutil.copytree(results, tmp_path / "results")
    (certificate,) = (tmp_path / "results").rglob("certificate.json")
    return certificate.parent


def verification(folder: Path, *typed: str) -> Verification:
    return Verification(folder, started("verify", f"from={folder}", *typed))


def forge(folder: Path, name: str, change: Callable[[dict], Any]) -> None:
    """Edit a result and give it a new digest: what `verify` finds by the certificate's list alone."""
    path = results_io.find(folder, name) or folder / f"{name}.json"
    document = results_io.read(path)
    change(document)
    results_io.write(path, document)


def forge_throughout(folder: Path, number: str, change: Callable[[dict], Any]) -> None:
    """As `forge`, with every digest that depends on it computed anew, and the headline as far as the results give one."""
    forge(folder, number, change)
    judged = sorted(results_io.read(folder / "certificate.json")["inputs"].values(), key=lambda name: name == "93")
    for name in (*judged, "certificate"):  # M93 reads the others
        found = (results_io.read(results_io.find(folder, name) or folder / f"{name}.json"))["inputs_sha256"]
        now = {one: results_io.file_digest(results_io.required(folder, one)) for one in found}
        forge(folder, name, lambda document, now=now: document.update(inputs_sha256=now))
    with contextlib.suppress(UserError, IndexError, KeyError, ValueError):  # measurements that give no headline
        words = worded(folder)
        forge(folder, "certificate", lambda document: document["headline"].update(words))


def worded(folder: Path) -> dict[str, str]:
    """The headline that the results in a folder give, on the model that its own names."""
    document = results_io.read(folder / "certificate.json")
    settings = _judging(document["subject"], document["asked"])
    evidence = Evidence.load(folder, settings["calibration"]["common"], headline.READ)
    documents = {one: results_io.read(results_io.find(folder, at)) for one, at in document["inputs"].items()}
    origin = document["headline"]["subject"].partition(", ")[2].partition(")")[0]
    return headline.headline(evidence, documents, settings, origin)


def first_break(folder: Path, *typed: str) -> str:
    with pytest.raises(Break) as broken:
        list(verification(folder, *typed).walk())
    return str(broken.value)


def test_a_finished_run_has_no_break_and_says_what_was_checked(finished) -> None:
    outcome = command("verify", f"from={finished}", "verify.remeasure=0.05", "verify.seed=3")
    assert (outcome.code, outcome.errors) == (0, "")
    subject = results_io.read(finished / "certificate.json")["subject"]
    digests = {name: subject[f"{name}_sha256"][:8] for name in ("circuit", "prompts", "model")}
    *walked, measured, rest, last = outcome.output.splitlines()
    assert walked == [
        "certificate.json: as it was written; it lists 36 results",
        "calibrations: 17 as the certificate lists them, judged on the measurements that it lists",
        "measurements: 19 as the certificate lists them, on its weights and prompts",
        f"verdicts: folded again, the same tier ({results_io.read(finished / 'certificate.json')['tier']} of 4)",
        f"circuit: '{CIRCUIT.name}' in result 20 is that of the certificate ({digests['circuit']})",
        "circuit: the one that the settings of the run name is the same",
        f"prompts: drawn again, the same ({digests['prompts']})",
        f"weights: those of pocket are the same ({digests['model']})",
    ]
    found = re.fullmatch(
        r"measured again: 3 of 60 prompts \(0.05, drawn with seed 3\) of 01, 02, 20 on cpu: ([\d,]+) values, "
        r"largest difference (\S+) of 0.001 allowed",
        f"{measured} {rest}",
    )
    assert found and float(found[2]) < 1e-4
    battery = results_io.read(results_io.required(finished, "20"))["data"]
    per_prompt = 11 + 2 * 32 + len(battery["conditions"])
    assert int(found[1].replace(",", "")) >= 3 * per_prompt + np.size(battery["random_circuits"]["heads"])
    assert last == "No break. This finds edits; it does not find a forger who computes the digests anew"


@pytest.mark.parametrize("forged", [{"tier": 4, "tier_name": "certified", "blocking": {}}, {"ceiling": 3}])
def test_a_certificate_that_its_calibrations_do_not_give_is_a_break(copied, forged) -> None:
    """With a digest of its own, so that it is as it was written."""
    path = copied / "certificate.json"
    results_io.write(path, {**results_io.read(path), **forged})
    assert results_io.fault(path) is None
    assert re.search(r"certificate.json has another \w+ than its calibrations give", first_break(copied))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("subject", ("14 of 32 heads", "4 of 32 heads")),
        ("subject", ("ioi on pocket", "ioi on gpt2")),
        ("scope", ("MLPs stay intact", "MLPs are silenced")),
        ("data", ("40 evaluation", "4000 evaluation")),
        ("faithfulness", ("Faithfulness 0.", "Faithfulness 1.")),
        ("faithfulness", (" on wordings like these", " on any wordings")),
        ("outside", (None, "")),
        ("subject", ("embedded)", "embedded)  circuit: published, 32 of 32 heads, tier 4 certified)")),
        ("subject", ("embedded)", "hub, revision 12345678, certified)")),
        ("subject", ("embedded)", "folder a)  circuit: published, 32 of 32 heads)")),
    ],
)
def test_a_headline_that_its_results_do_not_give_is_a_break(copied, line, words) -> None:
    before, after = words

    def reworded(document: dict) -> None:
        said = document["headline"][line]
        document["headline"][line] = said.replace(before, after) if before else after
        assert document["headline"][line] != said

    forge(copied, "certificate", reworded)
    assert f"certificate.json says something else in headline.{line} than its results give" in first_break(copied)


@pytest.mark.parametrize(
    ("forged", "sentence"),
    [
        ({"inputs": {"C11": "02"}}, "lists result 02 as calibration C11, which it is not"),
        ({"inputs": {"X1": "11"}}, "lists result 11 as calibration X1, which it is not"),
        ({"inputs_sha256": {"/x": "0" * 64}}, "lacks result /x, which certificate.json was made from"),
        ({"inputs_sha256": {"**": "0" * 64}}, "lacks result **, which certificate.json was made from"),
    ],
)
def test_a_list_of_results_that_no_run_writes_is_a_break(copied, forged, sentence) -> None:
    path = copied / "certificate.json"
    document = results_io.read(path)
    results_io.write(path, {**document, **{name: {**document[name], **added} for name, added in forged.items()}})
    assert sentence in first_break(copied)
    found = [f"result {number}" for number in forged.get("inputs_sha256", {})]
    assert list(integrity.faults(copied)) == found


def forged_rules(document: dict, change: Callable[[dict], Any]) -> None:
    document |= {"tier": 4, "tier_name": "certified", "blocking": {}}
    change(document)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda one: one["rules"].update(differences=[]), "says of its rules"),
        (lambda one: one["rules"].update(differences=[], sha256="0" * 64), "and another digest than these have"),
        (lambda one: one.update(behaviour={}), "has heads of failures, and its task is ioi"),
        (lambda one: one.update(asked=["--help"]), "lists '--help' among its settings, which is not a setting"),
        (lambda one: one.update(asked=["", "=", "seed"]), "lists 'an empty text' among its settings"),
        (
            lambda one: one.update(asked=["seed"]),
            "lists 'seed' among its settings, which is not a setting with a value",
        ),
        (lambda one: one.update(asked=["doctor"]), "lists 'doctor' among its settings"),
        (lambda one: one.update(asked=["results=/tmp"]), "which changes no result"),
        (lambda one: one.update(asked=["model.nope=1"]), "which is not a setting of a model"),
        (lambda one: one.update(asked=["measurement.gone=1"]), "measurement.gone is not a setting"),
        (lambda one: one.update(asked=["certificate=gone"]), "certificate=gone is unknown"),
        (lambda one: one.update(asked=["seed=1,2"]), "lists settings that no run has"),
        (lambda one: one.update(asked=["prompts.templates=nope"]), "prompts.templates=nope is unknown"),
        (lambda one: one.update(asked=["task.bos=5"]), "task.bos=5 is neither true nor false"),
        (
            lambda one: one.update(asked=["task.corruption=nope"]),
            "task.corruption=nope is not a way to corrupt the prompts of ioi; use one of ",
        ),
        (
            lambda one: one.update(asked=["suite=all"]),
            "lists 'suite=all' among its settings, which is of another command",
        ),
        (lambda one: one.update(asked=["geometry=all"]), "among its settings, which is of another command"),
        (lambda one: one.update(asked=["experiment=planted_faults"]), "which is of another command"),
        (lambda one: one.update(asked=["prompts.evaluation=abc"]), "prompts.evaluation=abc is not a whole number"),
        (lambda one: one.update(asked=["prompts.evaluation=0"]), "prompts.evaluation=0 is too small"),
        (lambda one: one.update(asked=["circuit=traced"]), "a run on ioi cannot have"),
    ],
)
def test_no_forged_entry_keeps_the_verdicts_from_being_folded(copied, change, sentence) -> None:
    forge(copied, "certificate", lambda document: forged_rules(document, change))
    assert sentence in first_break(copied)


def test_of_other_rules_the_tier_that_this_code_gives_is_said(copied) -> None:
    tier = results_io.read(copied / "certificate.json")["tier"]
    change = lambda document: document["rules"].update(version="0.0", sha256="0" * 64)  # noqa: E731
    forge(copied, "certificate", lambda document: forged_rules(document, change))
    found = verification(copied)
    assert (
        "not checked: whether the calibrations give tier 4, since it was made under other rules than those of this code; the "
        f"rules of this code give tier {tier}"
    ) in found.walk()
    assert found.unchecked == ["whether the calibrations give tier 4"]


@pytest.mark.parametrize("typed", ["circuit=random", "prompts.evaluation=10", "seed=3", "calibration=[c11]"])
def test_a_setting_that_the_check_would_ignore_is_refused(finished, typed) -> None:
    outcome = command("verify", f"from={finished}", typed)
    name = typed.partition("=")[0]
    assert outcome.code == 2 and f"verify takes {name} from the run that it checks; leave it out" in outcome.errors


@pytest.mark.slow
def test_nothing_is_written(finished, tmp_path) -> None:
    before = {path: path.read_bytes() for path in finished.iterdir()}
    assert command("verify", f"from={finished}", f"results={tmp_path / 'r'}").code == 0
    assert {path: path.read_bytes() for path in finished.iterdir()} == before and not (tmp_path / "r").exists()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", ["certificate", "P", "11", "93", "01", "09", "20", "28"])
def test_an_edited_result_is_the_first_break(copied, number) -> None:
    path = results_io.find(copied, number) or copied / "certificate.json"
    text = path.read_text()
    path.write_text(re.sub(r'"model": "pocket"', '"model": "packet"', text, count=1))
    assert first_break(copied).startswith(f"{path} was edited after it was written")
    outcome = command("verify", f"from={copied}")
    assert outcome.code == 1 and outcome.said.rpartition("Broken: ")[2].startswith(f"{path} was edited")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", ["P", "30", "01", "06"])
def test_a_result_that_is_gone_is_a_break(copied, number) -> None:
    results_io.required(copied, number).unlink()
    assert first_break(copied) == f"{copied} lacks result {number}, which certificate.json was made from"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", ["11", "16", "36"])
def test_a_result_with_a_new_digest_is_not_the_one_that_the_certificate_lists(copied, number) -> None:
    forge(copied, number, lambda document: document["records"][0].update(estimate=0.5))
    path = results_io.required(copied, number)
    assert first_break(copied) == f"{path} is not the file that certificate.json was made from"


def test_a_calibration_of_another_measurement_is_a_break(copied) -> None:
    forge(copied, "02", lambda document: document["data"]["noising"][0].__setitem__(0, 9.0))
    digest = results_io.file_digest(results_io.required(copied, "02"))
    forge(copied, "certificate", lambda document: document["inputs_sha256"].update({"02": digest}))
    readers = {
        results_io.read(path)["number"]
        for path in copied.glob("*_*.json")
        if "02" in results_io.read(path)["inputs_sha256"]
    }
    sentence = f"result {min(readers)} was judged on another result 02 than certificate.json lists"
    assert first_break(copied) == sentence


def test_results_about_other_weights_are_a_break_though_every_digest_was_made_anew(copied) -> None:
    forge_throughout(copied, "03", lambda document: document["subject"].update(model_sha256="f" * 64))
    assert f"is about model_sha256 {'f' * 64}, and certificate.json about" in first_break(copied)


@pytest.mark.slow
def test_another_circuit_in_result_20_or_beside_it_is_a_break(copied) -> None:
    name = next(iter(CIRCUIT.roles))
    fewer = replace(CIRCUIT, roles={role: what for role, what in CIRCUIT.roles.items() if role != name}, pathways=())
    circuit_files.save(CIRCUIT, copied / "circuit.yaml")
    assert "circuit.yaml" in " ".join(verification(copied).walk())
    circuit_files.save(fewer, copied / "circuit.yaml")
    sentence = f"{copied / 'circuit.yaml'} is not the circuit of certificate.json ({CIRCUIT.sha256[:8]})"
    assert first_break(copied) == sentence
    (copied / "circuit.yaml").write_text("roles: [")
    assert "is not a circuit file" in first_break(copied)
    (copied / "circuit.yaml").unlink()
    forge_throughout(copied, "20", lambda document: document["data"].update(circuit=fewer.to_dict()))
    sentence = f"the circuit in result 20 is not that of certificate.json ({CIRCUIT.sha256[:8]})"
    assert first_break(copied) == sentence


def with_identity(monkeypatch, **changes: Any) -> None:
    identify = models.identify
    monkeypatch.setattr(models, "identify", lambda settings: replace(identify(settings), **changes))


@pytest.mark.slow
def test_another_stored_circuit_is_a_break(finished, monkeypatch) -> None:
    other = replace(CIRCUIT, name="other")
    with_identity(monkeypatch, circuits={"ioi": other})
    assert first_break(finished) == (
        f"the circuit that its settings name: digest {other.sha256[:8]}, and certificate.json was made from "
        f"{CIRCUIT.sha256[:8]}"
    )


@pytest.mark.slow
def test_other_weights_are_a_break_and_say_why_the_stored_circuit_was_not_checked(finished, monkeypatch) -> None:
    with_identity(monkeypatch, sha256="f" * 64)
    assert "the weights of pocket: digest ffffffff, and certificate.json was made from " in first_break(finished)
    *_, circuit, prompts = list_until_break(finished)
    assert circuit.startswith("not checked: where the circuit comes from, since the stored circuit")
    assert prompts.startswith("prompts: drawn again, the same")


def list_until_break(folder: Path) -> list[str]:
    said = []
    with pytest.raises(Break):
        for sentence in verification(folder).walk():
            said.append(sentence)
    return said


def test_other_prompts_are_a_break(finished, monkeypatch) -> None:
    subject = results_io.read(finished / "certificate.json")["subject"]
    monkeypatch.setattr(Plan, "prompts_sha256", "a" * 64)
    assert first_break(finished) == (
        f"the prompts drawn again: digest aaaaaaaa, and certificate.json was made from {subject['prompts_sha256'][:8]}"
    )


def test_a_headline_of_other_code_is_not_checked_and_no_break(copied) -> None:
    """A rewording under the same rules leaves an honest certificate whole; a headline of this code has to be what it gives."""
    path = copied / "certificate.json"
    assert results_io.read(path)["headline"]["by"] == code_digest.version_of("headlines")

    def reworded(document: dict) -> None:
        document["headline"]["by"] = "0.0.1+0123456789ab"
        document["headline"]["data"] = "40 prompts"

    forge(copied, "certificate", reworded)
    outcome = command("verify", f"from={copied}")
    said = " ".join(outcome.output.split())
    assert outcome.code == 0
    now = code_digest.version_of("headlines")
    why = f"since they are of other code (0.0.1+0123456789ab) than this ({now})"
    assert (
        f"the same tier ({results_io.read(path)['tier']} of 4); not checked: the words of its headline, {why}" in said
    )
    assert "No break in what was checked; not checked: the words of its headline." in said
    for name in ({"by": now}, {}):

        def named(document: dict, name=name) -> None:
            document["headline"].pop("by", None)
            document["headline"].update(name)

        forge(copied, "certificate", named)
        assert "says something else in headline.data than its results give" in first_break(copied)


def test_a_headline_that_is_no_text_is_a_break(copied) -> None:
    forge(copied, "certificate", lambda document: document["headline"].update(subject=5))
    assert "certificate.json has a headline that is not lines of text" in first_break(copied)


@pytest.mark.slow
def test_the_model_typed_is_the_one_checked(finished) -> None:
    assert "certificate.json was made from" in first_break(finished, "model=planted/sound")


def test_a_model_that_is_not_at_hand_is_said_and_the_rest_checked(copied) -> None:
    def rename(document: dict) -> None:
        document["subject"]["model"] = "EleutherAI/pythia-70m"
        if words := document.get("headline"):
            words["subject"] = words["subject"].replace("on pocket", "on EleutherAI/pythia-70m")

    for number in results_io.read(copied / "certificate.json")["inputs_sha256"]:
        forge(copied, number, rename)
    forge_throughout(copied, "certificate", rename)
    *_, last = verification(copied).walk()
    assert last.startswith(
        "not checked: where the circuit comes from, prompts and weights, since no file in configs/model/"
    )


@pytest.mark.slow
def test_what_is_asked_and_cannot_be_checked_is_a_failure(copied, tmp_path) -> None:
    """What is typed says where to look, so a wrong place is no "not checked"."""

    def refused(*typed: str) -> str:
        outcome = command("verify", f"from={copied}", *typed)
        assert outcome.code == 2 and "No break" not in outcome.said, outcome.output
        return outcome.errors

    assert refused("task=greater_than") == (
        "task=greater_than is asked for, and the certificate is about ioi; leave it out\n"
    )
    gone = tmp_path / "gone"
    assert "circuit.path is a setting of another circuit" in refused("circuit=file", f"circuit.path={gone}")
    what = "where the circuit comes from, prompts and weights"
    assert refused("model=local", f"model.path={gone}").startswith(f"cannot check {what}: model folder {gone} does not")

    def of_rows(document: dict) -> None:
        document["subject"] |= {"task": "file-29e5f014783a", "rows_sha256": "29e5f014783a" + "0" * 52}

    for number in results_io.read(copied / "certificate.json")["inputs_sha256"]:
        forge(copied, number, of_rows)
    forge_throughout(copied, "certificate", of_rows)
    as_csv(ioi_rows(40), rows := tmp_path / "rows.csv")
    assert refused("task=ioi") == (
        "task=ioi is asked for, and the certificate is about file-29e5f014783a; type task=file task.path=<its rows>\n"
    )
    assert refused("task=file", f"task.path={gone}.csv").startswith(
        f"cannot check {what}: task.path={gone}.csv does not"
    )
    assert refused("task=file", f"task.dataset={gone}").startswith(f"cannot check {what}: task.dataset={gone} cannot")
    assert "names 'inductoin', which is neither" in refused(
        "task=file", f"task.path={rows}", "task.companions=[inductoin]"
    )
    outcome = command("verify", f"from={copied}", "task=file", f"task.path={rows}")
    found = "29e5f014"  # of these rows, whose whole digest is another than the one forged
    assert outcome.code == 1 and outcome.output.splitlines()[-1].startswith(
        f"Broken: the rows that were typed: digest {found}, and certificate.json was made from {found}"
    )
    untyped = command("verify", f"from={copied}")
    assert untyped.code == 0, untyped.errors
    tier = results_io.read(copied / "certificate.json")["tier"]
    left = f"whether the calibrations give tier {tier}; {what}"  # the rules of another task are others
    assert f"No break in what was checked; not checked: {left}. This" in untyped.said, untyped.output


def test_a_certificate_without_a_list_is_of_an_older_version(copied) -> None:
    forge(copied, "certificate", lambda document: document.pop("inputs_sha256"))
    assert first_break(copied) == f"{copied / 'certificate.json'} lists no digests; repeat the run that it is of"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "what", "change"),
    [
        ("01", "clean_logit_diff of 01", lambda data, row: data["clean_logit_diff"].__setitem__(row, 0.5)),
        ("01", "correct of 01", lambda data, row: data["correct"].__setitem__(row, not data["correct"][row])),
        ("01", "split of 01", lambda data, row: data["split"].__setitem__(row, "held_out")),
        ("02", "noising of 02", lambda data, row: data["noising"][row].__setitem__(31, 0.5)),
        ("20", "logit_diff of 20", lambda data, row: data["logit_diff"][-1].__setitem__(row, 9.0)),
        ("20", "conditions of 20", lambda data, row: data["conditions"].reverse()),
        (
            "20",
            "logit_diff of the random circuits of 20",
            lambda data, row: [
                one.__setitem__(slice(None), [9.0] * len(one)) for one in data["random_circuits"]["logit_diff"]
            ],
        ),
    ],
)
def test_numbers_that_were_forged_with_every_digest_are_found_by_measuring_their_rows(
    copied, number, what, change
) -> None:
    settings = {**SHARE, "remeasure": 1.0 if "random" in what else 0.1}
    before = results_io.read(results_io.required(copied, "01"))["data"]["prompt_id"]
    rows = random.Random("verify 0").sample(range(len(before)), 6)
    forge_throughout(copied, number, lambda document: change(document["data"], rows[0]))
    found = verification(copied)
    assert len(list(found.walk())) == 8 and not found.unchecked  # no digest tells
    with pytest.raises(Break, match=what):
        remeasurement.remeasure(found, settings)


def test_a_difference_within_the_tolerance_is_none(finished) -> None:
    compared = remeasurement.Compared.of("x", [7, 9], [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0009]])
    assert compared.difference(0.001) == pytest.approx(0.0009)
    with pytest.raises(Break, match=r"x is 4.0 in row 9, and measured again 4.0009; they may differ by 0.0001"):
        compared.difference(0.0001)
    assert remeasurement.Compared.of("none", [], np.zeros((0, 3)), np.zeros((0, 3))).difference(0.001) == 0
    with pytest.raises(Break, match=r"^x is None in row 9, and measured again 4\.0"):  # null in place of a number
        remeasurement.Compared.of("x", [7, 9], [1.0, None], [1.0, 4.0]).difference(0.001)
    assert remeasurement.Compared.of("x", [7, 9], [1.0, None], [1.0, np.nan]).difference(0.001) == 0
    with pytest.raises(Break, match=r"x has the shape \(1,\), and measured again \(2,\)"):
        remeasurement.Compared.of("x", [0], [1.0], [1.0, 2.0]).difference(0.001)
    with pytest.raises(Break, match="labels have to be equal"):
        remeasurement.Compared.of("x", [0], ["a"], ["b"]).difference(0.001)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, True, "all", [0.1]])
def test_a_share_that_is_none_is_refused(share) -> None:
    with pytest.raises(UserError, match=re.escape(f"verify.remeasure={share} is not a share of the prompts")):
        remeasurement.check({"remeasure": share, "tolerance": 0.001})


@pytest.mark.slow
def test_refusals_of_the_command(tmp_path) -> None:
    def refused(*arguments: str) -> str:
        outcome = command("verify", *arguments)
        assert (outcome.code, outcome.output) == (2, "")
        return outcome.errors.strip()

    assert refused().startswith("verify needs from=; give the folder of a finished run")
    assert "is not a folder" in refused(f"from={tmp_path / 'none'}")
    assert "has no certificate.json" in refused(f"from={tmp_path}")
    (tmp_path / "certificate.json").write_text(json.dumps({}))
    assert "verify.tolerance=0.0 is not positive" in refused(f"from={tmp_path}", "verify.tolerance=0.0")


def test_the_certificate_lists_every_result_and_what_differs_from_the_default_run(finished) -> None:
    stored = results_io.read(finished / "certificate.json")
    files = {path.name.partition("_")[0]: results_io.file_digest(path) for path in finished.glob(integrity.NUMBERED)}
    assert stored["inputs_sha256"] == files
    assert ",".join(stored["asked"])[:100] == finished.name[:100] and "prompts.evaluation=40" in stored["asked"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "asked", "kind"),
    [
        ("failures", ["task.group=x"], "traced"),
        ("ioi", ["circuit=random", "circuit.seed=3", "seed=2"], "random"),
        ("ioi", ["circuit=file", 'circuit.path="a=1/b.yaml"'], "file"),
        ("ioi", [], "stored"),
    ],
)
def test_the_settings_of_the_run_are_those_that_its_certificate_names(task, asked, kind, tmp_path) -> None:
    folder = tmp_path / "all" / "planted" / "sound" / task / ("variant" if asked else "")
    certificate = {"subject": {"model": "planted/sound", "task": task}, "asked": asked}
    found = replayed(started("verify", f"from={folder}", "seed=9", "model.device=cpu"), folder, certificate)
    assert found.settings["circuit"]["kind"] == kind and found.settings["results"] == str(tmp_path / "all")
    assert found.seed == (2 if kind == "random" else 0)
    assert (found.settings["model"]["name"], found.settings["model"]["device"]) == ("planted/sound", "cpu")
    if kind == "file":
        assert found.settings["circuit"]["path"] == "a=1/b.yaml"


@pytest.mark.slow
def test_a_setting_that_is_no_more_is_said() -> None:
    certificate = {"subject": {"model": "pocket", "task": "ioi"}, "asked": ["measurement.gone=1"]}
    with pytest.raises(UserError, match=r"measurement\.gone is not a setting"):
        replayed(started("verify"), Path("results/pocket/ioi/x"), certificate)
