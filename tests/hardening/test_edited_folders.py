"""Results that are whole and in the wrong place: swapped, another run's, half, or a certificate from another folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest

import results_io
from calibrations import calibrate
from meridian import integrity, run_folder, stages, verification
from meridian.verification import Break, Verification
from results_io import ResultError, UserError
from tests.commandline import command, started
from tests.hardening.mutations import signed


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "results" / "pocket" / "ioi" / "x")


def broken(folder: Path) -> str:
    with pytest.raises(Break) as found:
        list(Verification(folder, started("verify", f"from={folder}")).walk())
    return str(found.value)


def shown(folder: Path) -> str:
    """What `figures`, `compare` and every other reader of finished runs say before they read a number."""
    with pytest.raises(UserError) as refused:
        run_folder.RunFolder.open_as_certified(folder)
    return str(refused.value)


def test_an_intact_folder_is_opened_and_has_no_fault(finished) -> None:
    assert run_folder.RunFolder.open_as_certified(finished).path == finished
    assert integrity.faults(finished) == {}


def test_two_results_that_were_swapped_are_under_the_wrong_number(copied) -> None:
    first, second = (results_io.required(copied, number) for number in ("03", "05"))
    content = first.read_bytes(), second.read_bytes()
    first.write_bytes(content[1])
    second.write_bytes(content[0])
    for path, own, other in ((first, "03", "05"), (second, "05", "03")):
        with pytest.raises(ResultError, match=f"is result {other} under the name of {own}; delete it and run again"):
            results_io.read(path)
    assert set(integrity.faults(copied)) == {first.name, second.name}
    assert "is result 05 under the name of 03" in broken(copied) and "under the name of" in shown(copied)


def of_another_run(folder: Path, number: str) -> Path:
    """A result as a run of the same settings with other prompts would have left it: whole, with a digest of its own."""
    path = results_io.required(folder, number)
    document = results_io.read(path)
    document["subject"]["prompts_sha256"] = "a" * 64
    results_io.write(path, document)
    return path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", ["02", "11", "P"])
def test_another_run_s_result_under_this_name_is_found_by_every_reader(copied, number) -> None:
    path = of_another_run(copied, number)
    assert results_io.fault(path) is None  # by itself it is whole
    assert (
        shown(copied)
        == f"{copied} holds another {path.name} than certificate.json was made from; repeat the run that it is of"
    )
    assert path.name in broken(copied)


def test_a_result_that_was_put_there_afterwards_is_found(copied) -> None:
    path = results_io.required(copied, "25")
    results_io.write(copied / "29_more.json", {**results_io.read(path), "number": "29", "kind": "other"})
    assert "holds 29_more.json, which certificate.json does not list" in shown(copied)
    assert broken(copied).endswith("29_more.json is not listed by certificate.json, so it was put there afterwards")


def test_a_certificate_from_another_folder_is_found(copied, finished, tmp_path) -> None:
    other = shutil.copytree(finished, tmp_path / "other")
    path = of_another_run(other, "20")
    certificate = results_io.read(other / "certificate.json")
    certificate["inputs_sha256"]["20"] = results_io.file_digest(path)
    results_io.write(other / "certificate.json", {**certificate, "tier": 4})
    shutil.copy(other / "certificate.json", copied)
    name = results_io.required(copied, "20").name
    assert f"holds another {name} than certificate.json was made from" in shown(copied)
    assert "is not the file that certificate.json was made from" in broken(copied) or "judged on another" in broken(
        copied
    )


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (lambda path: path.symlink_to(path.with_name("nowhere")), "is a link that cannot be followed"),
        (lambda path: path.symlink_to(path), "is a link that cannot be followed"),
        (lambda path: path.mkdir(), "is a folder, a pipe or a device and not a file"),
        (lambda path: os.mkfifo(path), "is a folder, a pipe or a device and not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a folder, a pipe or a device and not a file"),
    ],
    ids=["link to nowhere", "link to itself", "folder", "pipe", "device"],
)
def test_what_is_no_file_in_a_result_s_place_is_named_and_never_waited_for(put, reason, tmp_path) -> None:
    path = tmp_path / "02_activation_patching.json"
    put(path)
    for read in (results_io.read, results_io.file_digest):
        with pytest.raises(ResultError, match=reason):
            read(path)
    assert reason in str(results_io.fault(path))


@pytest.mark.parametrize(
    ("section", "key", "reason"),
    [
        (None, "inputs", "lists no calibrations"),
        (None, "inputs_sha256", "lists no digests"),
        (None, "asked", "lists no settings"),
        (None, "subject", "lists no subject"),
        (None, "tier", "lists no tier"),
        (None, "rules", "lists no rules"),
        *[("subject", name, f"names no {name} that it is about") for name in calibrate.ABOUT],
        *[("rules", name, f"rules lacks {name}") for name in ("version", "sha256", "differences")],
        *[(None, name, f"has another {name} than its calibrations give") for name in ("blocking", "ceiling", "rows")],
    ],
)
def test_a_certificate_without_one_of_its_keys_is_a_break(section, key, reason, copied) -> None:
    path = copied / "certificate.json"
    document = results_io.read(path)
    settings = verification._judging(document["subject"], document["asked"])
    document["rules"] = stages.folded_by(settings, "ioi")[1].to_dict()  # this code's, whether they are released or not
    del (document if section is None else document[section])[key]
    results_io.write(path, document)
    assert reason in broken(copied)


@pytest.mark.parametrize("rules", [None, {"version": None, "sha256": None, "differences": []}])
def test_a_certificate_of_no_release_of_the_rules_cannot_claim_any_tier(rules, copied) -> None:
    path = copied / "certificate.json"
    document = results_io.read(path)
    rows = [{**row, "verdict": "pass"} for row in document["rows"]]
    path.write_bytes(signed({**document, "rules": rules, "tier": 4, "blocking": {}, "rows": rows}))
    outcome = command("verify", f"from={copied}")
    assert outcome.code == 1 and "names no release of the rules that it was made under" in outcome.output


def test_a_calibration_s_number_of_several_lines_is_shown_on_one(copied) -> None:
    path = copied / "certificate.json"
    document = results_io.read(path)
    document["inputs"]["C11"] = "a\nb\x1b[31m"
    results_io.write(path, document)
    outcome = command("verify", f"from={copied}")
    assert (outcome.code, outcome.output.count("\n")) == (1, 2) and "result a\\u000ab\\u001b[31m" in outcome.output


@pytest.mark.parametrize("name", ["circuit.yaml", "discovery.json"])
@pytest.mark.parametrize(
    "put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)], ids=["folder", "pipe", "loop"]
)
def test_what_is_no_file_in_the_place_of_the_circuit_is_a_break(name, put, copied) -> None:
    put(copied / name)
    assert f"{name} is a folder, a pipe, a device or a link to nowhere and not a file" in broken(copied)


def test_two_results_of_one_number_are_refused(copied) -> None:
    path = results_io.required(copied, "25")
    shutil.copy(path, copied / "25_again.json")
    assert "25_again.json" in shown(copied) and path.name in shown(copied)


def test_an_edit_that_keeps_size_and_time_is_read_anew_by_a_folder_that_is_open(copied) -> None:
    folder = run_folder.RunFolder.open_as_certified(copied)
    path = results_io.required(copied, "01")
    assert folder.document("01") is not None
    before, text = path.stat(), path.read_text()
    path.write_text(re.sub(r"\d(?=[^\d]*$)", lambda digit: str((int(digit[0]) + 1) % 10), text, count=1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(ResultError):
        folder.document("01")


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_digest_over_half_a_file_is_none(copied, share) -> None:
    """Half of a file with the digest of that half; or the whole with the digest of its half."""
    path = results_io.required(copied, "02")
    text = results_io.DIGEST_LINE.sub("", path.read_text())
    half = text[: int(share * len(text))]
    line = f'  "content_sha256": "{hashlib.sha256(half.encode()).hexdigest()}",\n'
    for content, reason in ((half, "is not readable JSON"), (text, "was edited after it was written")):
        path.write_text(re.sub(r"^\{\n", "{\n" + line, content))
        with pytest.raises(ResultError, match=reason):
            results_io.read(path)


@pytest.mark.slow
def test_the_commands_say_it_in_one_sentence(copied, finished, tmp_path) -> None:
    of_another_run(copied, "02")
    for line in (("figures", f"from={copied}"), ("compare", f"a={finished}", f"b={copied}")):
        outcome = command(*line, f"results={tmp_path / 'r'}")
        assert (outcome.code, outcome.output, outcome.errors.count("\n")) == (2, "", 1)
        assert "02_activation_patching.json" in outcome.errors and not (tmp_path / "r").exists()
