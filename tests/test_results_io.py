"""Result files: the same content gives the same bytes, and no reader ever sees half of one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import results_io
from meridian import locks
from results_io import DiskError, ResultError, UserError
from tests.result_samples import completed

DOCUMENT = {"number": "02", "data": {"b": [1.5, 2.0], "a": None}, "records": []}
DOCUMENT_TEXT = """{
  "data": {"a": null, "b": [1.5, 2.0]},
  "number": "02",
  "records": []
}
"""


def test_bytes_are_canonical() -> None:
    assert results_io.dumps(DOCUMENT) == DOCUMENT_TEXT
    reordered = {"records": (), "data": {"a": None, "b": np.array([1.5, 2.0])}, "number": "02"}
    assert results_io.dumps(reordered) == DOCUMENT_TEXT


def test_arrays_and_numpy_scalars_become_plain_numbers() -> None:
    values = {
        "f": np.float32(0.1),
        "i": np.int64(3),
        "b": np.bool_(True),
        "m": np.arange(4).reshape(2, 2),
        "t": (np.array([True, False]), "x"),
        3: 1,
    }
    assert json.loads(results_io.dumps(values)) == {
        "f": 0.100000001,  # nine digits of the float32 nearest to 0.1
        "i": 3,
        "b": True,
        "m": [[0, 1], [2, 3]],
        "t": [[True, False], "x"],
        "3": 1,
    }


def test_nine_digits_keep_every_float32() -> None:
    values = np.random.default_rng(0).normal(size=2000).astype(np.float32) * np.float32(10.0) ** np.arange(
        -20, 20, 0.02
    )
    values = values.astype(np.float32)
    stored = json.loads(results_io.dumps({"values": values}))["values"]
    assert np.array_equal(np.array(stored, dtype=np.float32), values)


@pytest.mark.parametrize("missing", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "place",
    [
        lambda x: x,
        lambda x: [1.0, x],
        lambda x: {"deep": [{"er": x}]},
        lambda x: np.array([[0, x]]),
        np.float32,
    ],
)
def test_nan_and_infinity_are_refused_and_nothing_is_written(missing, place, tmp_path) -> None:
    path = tmp_path / "01_baseline.json"
    with pytest.raises(ValueError, match=f"{missing} in a result: store None"):
        results_io.write(path, {"data": place(missing)})
    assert list(tmp_path.iterdir()) == []


def test_write_then_read_returns_the_document_with_its_schema(tmp_path) -> None:
    path, document = tmp_path / "model" / "task" / "02_activation_patching.json", completed("02")
    results_io.write(path, document)
    digest = hashlib.sha256(results_io.dumps({"schema_version": 1, **document}).encode()).hexdigest()
    assert results_io.read(path) == {"schema_version": 1, "content_sha256": digest, **document}
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    first = path.read_bytes()
    results_io.write(path, results_io.read(path))
    assert path.read_bytes() == first


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_other(step, error, tmp_path, monkeypatch) -> None:
    path = tmp_path / "01_baseline.json"
    results_io.write(path, {"data": "old"})
    before = path.read_bytes()

    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        results_io.write(path, {"data": "new"})
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_process_killed_before_the_rename_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "01_baseline.json"
    results_io.write(path, {"data": "old"})
    before = path.read_bytes()
    script = (
        "import os, signal, sys; from pathlib import Path; import results_io\n"
        "os.replace = lambda *paths, **named: os.kill(os.getpid(), signal.SIGKILL)\n"
        "results_io.write(Path(sys.argv[1]), {'data': 'new' * 100000})\n"
    )
    root = Path(results_io.__file__).parent
    finished = subprocess.run([sys.executable, "-c", script, str(path)], cwd=root, check=False)
    assert finished.returncode == -9
    assert path.read_bytes() == before
    assert results_io.find(tmp_path, "01") == path  # what the killed process left is not taken for a result


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"schema_version": 1, "data": [1, 2', "is not readable JSON"),
        (b"", "is not readable JSON"),
        (b"\xff\xfe\x00", "is not readable JSON"),
        (b"[1, 2]", "has result schema None, expected 1"),
        (b"{}", "has result schema None, expected 1"),
        (b'{"schema_version": 99}', "has result schema 99, expected 1"),
        (b'{"schema_version": 1}', "has no digest of its content, so an older version wrote it or somebody else"),
        (b'{"schema_version": 1, "content_sha256": null}', "was edited after it was written: its digest is of another"),
    ],
)
def test_a_file_that_is_no_result_is_named_with_the_remedy(content, complaint, tmp_path) -> None:
    path = tmp_path / "02_activation_patching.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=complaint) as raised:
        results_io.read(path)
    assert str(path) in str(raised.value)
    assert "delete it and run again" in str(raised.value)


def test_find_by_number(tmp_path) -> None:
    assert results_io.find(tmp_path / "nowhere", "02") is None
    assert results_io.find(tmp_path, "02") is None
    for name in ("02_activation_patching.json", "12_convergent_validity.json", "E1b_method_invariance.json"):
        (tmp_path / name).write_text("{}")
    assert results_io.find(tmp_path, "02").name == "02_activation_patching.json"
    assert results_io.find(tmp_path, "E1b").name == "E1b_method_invariance.json"
    assert results_io.find(tmp_path, "2") is None
    assert results_io.find(tmp_path, "1") is None
    for forged in ("/x", "**", "[", "../02", "02/..", "0*", ""):
        assert results_io.find(tmp_path, forged) is None


def test_a_number_that_stands_twice_is_refused(tmp_path) -> None:
    for name in ("02_activation_patching.json", "02_old.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=r"number 02 .*\(02_activation_patching.json, 02_old.json\); keep one"):
        results_io.find(tmp_path, "02")


def test_a_table_of_an_experiment_under_the_name_of_another_is_refused(tmp_path) -> None:
    results_io.write(path := tmp_path / "V4_out_of_sample.json", {**DOCUMENT, "number": "V5", "kind": "experiment"})
    with pytest.raises(ResultError, match="is result V5 under the name of V4"):
        results_io.read(path)


@pytest.mark.parametrize("known", [False, True])
def test_a_line_like_that_of_the_digest_below_the_top_counts_for_nothing(known, tmp_path) -> None:
    """It is the digest of all but itself; the real one is none, or that of a result that was read before and is sound."""
    other, path = tmp_path / "01_baseline.json", tmp_path / "02_forged.json"
    results_io.write(other, completed("01"))
    digest = results_io.read(other)["content_sha256"] if known else []
    before = f'{{\n "content_sha256":{json.dumps(digest)},\n  "x": {{\n'
    after = '  "y": 1},\n  "number": "02",\n  "schema_version": 1\n}\n'
    line = f'  "content_sha256": "{hashlib.sha256((before + after).encode()).hexdigest()}",\n'
    path.write_text(before + line + after)
    with pytest.raises(ResultError, match="was edited after it was written: its digest is of another content"):
        results_io.read(path)


def test_digests() -> None:
    assert results_io.sha256(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert results_io.sha256({"b": (1, 2.0), "a": None}) == hashlib.sha256(b'{"a":null,"b":[1,2.0]}').hexdigest()
    assert results_io.sha256({"a": None, "b": [1, np.float64(2)]}) == results_io.sha256({"b": (1, 2.0), "a": None})
    assert results_io.sha256([1, 2]) != results_io.sha256([2, 1])


def test_file_digest_is_over_the_bytes(tmp_path) -> None:
    path = tmp_path / "01_baseline.json"
    results_io.write(path, DOCUMENT)
    assert results_io.file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_texts_are_utf_8_with_their_own_line_ends_whatever_the_system_writes(tmp_path: Path) -> None:
    """In a process whose locale knows ASCII alone."""
    text = "Zürich 漢 😀\u2028\r\nend\n"
    program = (
        "import locale, pathlib, results_io\n"
        "assert locale.getpreferredencoding(False) != 'UTF-8'\n"
        f"results_io.write_text(pathlib.Path('text'), {text!a})\n"
        "print(ascii(results_io.read(pathlib.Path('foreign.json'))['name']))\n"
    )
    results_io.write(tmp_path / "foreign.json", {"name": "Zürich"})
    foreign = json.loads((tmp_path / "foreign.json").read_text())
    (tmp_path / "foreign.json").write_bytes(json.dumps(foreign, ensure_ascii=False).encode())
    plain = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    environment = {**os.environ, **plain, "PYTHONPATH": str(Path(results_io.__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout) == ("", "'Z\\xfcrich'\n")
    assert (tmp_path / "text").read_bytes() == text.encode()


# --- edited files --------------------------------------------------------------------------------------------------

RICH = {
    "number": "11",
    "records": [{"verdict": "fail", "p": 0.04, "gating": True, "reasons": [], "n": {"prompts": 400}, "needs": None}],
    "data": {"effect": [[0.25, -0.0, 1e-300], [1.5e22, 2, 3.0]], "title": "Zürich \u2028 \ud800"},
}


def written(folder: Path, document: dict = RICH) -> Path:
    results_io.write(folder / "11_x.json", document)
    return folder / "11_x.json"


def test_any_file_s_digest_is_that_of_the_file_without_its_line(tmp_path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    (line,) = [line for line in lines if b"content_sha256" in line]
    digest = hashlib.sha256(b"".join(one for one in lines if one != line)).hexdigest()
    assert line == f'  "content_sha256": "{digest}",\n'.encode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"verdict": "fail"', '"verdict": "pass"'),
        ("0.04", "0.4"),
        ("0.04", "0.04000000000000001"),  # beyond the nine digits that are stored
        ("-0.0", "0.0"),
        (" 2,", " 2.0,"),
        ("3.0", "3"),
        ("true", "1"),
        ("true", "false"),
        ("null", "0"),
        ("1e-300", "NaN"),
        ("1e-300", "1e999"),
        ("Z\\u00fcrich", "Zurich"),
        ('"number": "11"', '"number": "12"'),
        ('"prompts": 400', '"prompts": 4000'),
        ("[]", "[[]]"),
        ('"records"', '"record"'),
        ('"schema_version": 1', '"schema_version": 1, "more": 0'),
        ('"reasons": []', '"reasons": [], "reasons": [1]'),
        ('"p": 0.04, ', ""),
    ],
)
def test_an_edit_of_any_value_is_noticed(old, new, tmp_path) -> None:
    path = written(tmp_path)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    reasons = "was edited after it was written|holds NaN|a key stands there twice|a number that is not finite"
    with pytest.raises(results_io.ResultError, match=reasons) as raised:
        results_io.read(path)
    assert results_io.fault(path) == raised.value.reason and str(path) in str(raised.value)


def test_no_flipped_bit_passes_unless_it_keeps_every_value(tmp_path) -> None:
    path = written(tmp_path)
    content, before = path.read_bytes(), results_io.read(path)
    passed = []
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        if results_io.fault(path) is None:
            passed.append(results_io.read(path))
    assert all(repr(one) == repr(before) for one in passed) and len(passed) < len(content) / 10


def test_a_file_without_its_digest_is_of_an_older_version_whatever_else_was_edited(tmp_path) -> None:
    path = written(tmp_path)
    document = json.loads(path.read_text())
    del document["content_sha256"]
    path.write_text(results_io.dumps(document))
    with pytest.raises(results_io.NoDigestError, match="has no digest of its content"):
        results_io.read(path)


@pytest.mark.parametrize("style", [{"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_a_file_laid_out_anew_is_no_edit(style, tmp_path) -> None:
    path = written(tmp_path, {**RICH, "data": {**RICH["data"], "title": "Zürich"}})
    before = results_io.read(path)
    path.write_text(json.dumps(dict(reversed(before.items())), **style), encoding="utf-8")
    assert results_io.fault(path) is None
    assert repr(sorted(results_io.read(path).items())) == repr(sorted(before.items()))


def test_floats_of_all_sizes_are_read_and_written_again_to_the_bit(tmp_path) -> None:
    bits = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    values = [*bits[np.isfinite(bits)].tolist(), -0.0, 5e-324, 1.7e308, 1e16, 123456789.0]
    path = written(tmp_path, {"number": "11", "data": {"values": values}})
    content, found = path.read_bytes(), results_io.read(path)
    results_io.write(path, found)
    assert path.read_bytes() == content
    np.testing.assert_allclose(found["data"]["values"], values, rtol=5e-9)


@pytest.mark.parametrize("deep", ["", "n" * 100 + "/" + "m" * 100])
@pytest.mark.parametrize("name", ["certificate.json", "01_baseline.json", "report.html"])
def test_a_folder_in_the_place_of_a_file_is_named_and_may_be_deleted(name, deep, tmp_path) -> None:
    path = tmp_path / deep / name
    path.mkdir(parents=True)
    shown = str(path.parent) if len(str(path.parent)) <= 80 else f"{str(path.parent)[:80]}..."
    said = (
        f"{name} in {shown} cannot be written (it is a folder); delete it or move it away, and run again: what was finished is "
        "kept"
    )
    with pytest.raises(DiskError) as raised:
        results_io.write_text(path, "x")
    assert str(raised.value) == said
    for do in (path.read_text, lambda: (tmp_path / "x").replace(path)):
        (tmp_path / "x").write_text("x")
        with pytest.raises(OSError) as failed:
            do()
        assert results_io.disk_problem(failed.value) == said


@pytest.mark.parametrize("kind", ["a file", "a link that leads nowhere"])
def test_what_stands_in_the_place_of_the_locks_is_named(kind, tmp_path) -> None:
    results = tmp_path / "W"
    results.mkdir()
    if kind == "a file":
        (results / ".locks").write_text("x")
    else:
        (results / ".locks").symlink_to("/nowhere/at/all")
    with pytest.raises(DiskError) as raised, locks.held(results, results / "m/t", print):
        raise AssertionError
    assert str(raised.value) == (
        f".locks in {results} cannot be written (it is {kind}); delete it or move it away, and run again: what was finished is "
        "kept"
    )
