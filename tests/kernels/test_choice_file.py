"""Choices that are kept: nothing is timed twice, and a file that is not as it was written is no disaster."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

import results_io
from kernels import choice_file
from kernels.choice import KernelChoice, Operations
from kernels.choice_file import ChoiceFile, cache_folder, key_of
from tests.kernels.test_choice import Bench, operands

KEY = {"device": "a GPU", "torch": "1", "triton": "2", "code": "3"}


def no_clock(call):
    raise AssertionError("timed although the choice is kept")


def test_with_the_file_nothing_is_timed(tmp_path):
    bench = Bench({"reference": 3.0, "triton": 1.0})
    first = bench.operations(file=ChoiceFile(tmp_path, KEY))
    first.packed_attention(*operands())
    assert first.implementations() == {"packed_attention": {"float32 B=4 H=2 S=8 D=8 G=2": "triton"}}
    bench.ran.clear()
    again = Operations("cpu", candidates=bench.candidates, clock=no_clock, file=ChoiceFile(tmp_path, KEY))
    again.packed_attention(*operands(batch=4))
    assert bench.ran == ["triton"] and again.chosen() == first.chosen()


@pytest.mark.parametrize("name", sorted(KEY))
def test_another_device_version_or_code_chooses_for_itself(name, tmp_path):
    kept = ChoiceFile(tmp_path, KEY)
    kept.keep("packed_attention", "one", {"chosen": "triton"})
    other = ChoiceFile(tmp_path, {**KEY, name: "other"})
    assert other.path != kept.path and other.read() == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe\x00", b'{"schema_version": 1}', b"null", json.dumps({"choices": {"a": 1}}).encode()],
)
def test_a_file_that_is_none_is_ignored_in_one_sentence_and_written_anew(content, tmp_path):
    kept = ChoiceFile(tmp_path, KEY)
    kept.path.write_bytes(content)
    with pytest.warns(UserWarning, match="kernels are timed anew, because") as said:
        assert kept.read() == {} and kept.read() == {}
        kept.keep("packed_attention", "one", {"chosen": "triton"})
    assert len(said) == 1 and "\n" not in str(said[0].message)
    assert ChoiceFile(tmp_path, KEY).read() == {"packed_attention": {"one": {"chosen": "triton"}}}


@pytest.mark.parametrize(
    "changed",
    [{"kind": "other"}, {"key": {**KEY, "device": "b"}}, {"choices": []}, {"choices": {"a": {"b": {"chosen": 3}}}}],
)
def test_a_file_of_something_else_is_ignored(changed, tmp_path):
    kept = ChoiceFile(tmp_path, KEY)
    results_io.write(kept.path, {"kind": choice_file.KIND, "key": KEY, "choices": {}, **changed})
    with pytest.warns(UserWarning, match="holds no kernel choices"):
        assert kept.read() == {}


def test_a_choice_of_an_unknown_implementation_is_made_anew(tmp_path):
    kept = ChoiceFile(tmp_path, KEY)
    kept.keep("packed_attention", "float32 B=4 H=2 S=8 D=8 G=2", {"chosen": "cutlass"})
    bench = Bench({"reference": 3.0, "triton": 1.0})
    operations = bench.operations(file=ChoiceFile(tmp_path, KEY))
    operations.packed_attention(*operands())
    assert bench.ran[-1] == "triton" and sorted(bench.timed) == ["reference", "triton"]


def test_a_folder_that_cannot_be_written_costs_the_file_alone(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    bench = Bench({"reference": 3.0, "triton": 1.0})
    operations = bench.operations(file=ChoiceFile(tmp_path / "file", KEY))
    with pytest.warns(UserWarning, match="the choice of kernels is not kept"):
        operations.packed_attention(*operands())
    assert bench.ran[-1] == "triton"


def test_the_first_of_two_processes_decides(tmp_path):
    bench = Bench({"reference": 3.0, "triton": 1.0})
    late = bench.operations(file=ChoiceFile(tmp_path, KEY))  # has read before the other wrote
    ChoiceFile(tmp_path, KEY).keep("packed_attention", "float32 B=4 H=2 S=8 D=8 G=2", {"chosen": "reference"})
    late.packed_attention(*operands())
    assert bench.ran[-1] == "reference"


def test_many_that_write_at_once_lose_nothing(tmp_path):
    def write(number: int) -> None:
        ChoiceFile(tmp_path, KEY).keep("packed_attention", f"signature {number}", {"chosen": "triton"})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ChoiceFile(tmp_path, KEY).read()["packed_attention"]) == 12
    assert not list(tmp_path.glob(".*.partial"))


def test_what_is_not_finite_decides_nothing(tmp_path):
    bench = Bench({"reference": 3.0, "triton": 1.0})
    operations = bench.operations(file=ChoiceFile(tmp_path, KEY))
    q, k, v, scale = operands()
    operations.packed_attention(q, k, v * float("nan"), scale)
    assert operations.chosen() == {} and bench.timed == [] and not operations.file.path.exists()
    operations.packed_attention(q, k, v, scale)
    assert bench.ran[-1] == "triton"


def test_where_nothing_is_timed_the_record_does_not_depend_on_the_calls():
    operations = Operations("cpu")
    before = operations.implementations()
    operations.packed_attention(*operands())
    assert operations.implementations() == before
    assert before["packed_attention"] == {"every signature": "reference"} and len(before) == 4


def test_a_pinned_kernel_that_cannot_take_a_call_leaves_it_to_the_reference():
    operations = Operations("cpu", "triton")
    operations.packed_attention(*operands())
    operations.packed_attention(*operands(positions=65))  # more than pack
    found = operations.implementations()["packed_attention"]
    assert found == {"every signature": "triton", "float32 B=4 H=2 S=128 D=8 G=2": "reference"}
    (choice,) = (own for own in operations.chosen()["packed_attention"].values() if own["chosen"] == "reference")
    assert "65 positions do not pack" in choice["why"]


def test_the_folder_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.delenv("MERIDIAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "meridian"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "meridian"
    monkeypatch.setenv("MERIDIAN_CACHE", str(tmp_path / "Zwischenspeicher ü"))
    assert cache_folder() == tmp_path / "Zwischenspeicher ü"


def test_the_key_names_device_versions_and_code():
    key = key_of("NVIDIA H200")
    assert set(key) == set(KEY) and key["device"] == "NVIDIA H200" and len(key["code"]) == 16
    assert (key["torch"], key["triton"]) == (torch.__version__, choice_file._version("triton"))
    assert {"chosen", "why", "seconds"} <= set(KernelChoice.__annotations__)


def test_other_code_of_any_kernel_has_another_key(monkeypatch, tmp_path):
    for path in Path(str(choice_file.__file__)).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    own = key_of("a GPU")["code"]
    monkeypatch.setattr(choice_file, "__file__", str(tmp_path / "choice_file.py"))
    found = set()
    for name in ("choice_file.py", "packed_attention.py", "launch.py"):
        with (tmp_path / name).open("a") as file:
            file.write("# changed\n")
        choice_file._code.cache_clear()
        found.add(key_of("a GPU")["code"])
    choice_file._code.cache_clear()
    assert len(found | {own}) == 4
