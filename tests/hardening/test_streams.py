"""What is on the other side of a command's output: nothing, a reader that leaves, an encoding of few characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commandline import ROOT

PRINTS = """
import os, sys, console_streams
console_streams.take_over()
for number in range(20_000):
    print("line", number, "\\u2265 \\U0001f600")
os.write(1, b"past Python\\n")
sys.stdout.flush()
print("whole", file=sys.stderr)
"""
OPENS = """
import os, sys, console_streams
console_streams.take_over()
with open(sys.argv[1], "w") as result:
    os.write(1, b"what a library in C says")
    os.write(2, b"and warns of")
    print("a line")
    result.write("a result")
"""
ROWS = "clean,corrupted,answer\n" + ",b,c\n" * 8 + "Mary and John gave it to,Anna and Paul gave it to,Mary\n"


def left() -> int:
    """The end of a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_a_reader_that_leaves_ends_nothing() -> None:
    done = subprocess.Popen([sys.executable, "-c", PRINTS], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout is not None and done.stdout.readline().startswith(b"line 0 ")
    done.stdout.close()
    assert done.stderr is not None and done.stderr.read() == b"whole\n"
    assert done.wait(60) == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_has_not_is_written_out(encoding) -> None:
    own = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding, "TERM": "dumb"}
    done = subprocess.run([sys.executable, "-c", PRINTS], cwd=ROOT, env=own, capture_output=True, check=True)
    said = "≥ 😀" if encoding == "utf-8" else "\\u2265 \\U0001f600"
    assert done.stdout.decode(encoding).startswith(f"line 0 {said}\nline 1 ")
    assert done.stderr == b"whole\n"


def test_where_output_is_closed_no_file_gets_what_is_said(tmp_path) -> None:
    path = tmp_path / "result"
    typed = [sys.executable, "-c", OPENS, str(path)]
    done = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *typed], cwd=ROOT)
    assert done.returncode == 0 and path.read_text() == "a result"


def test_a_command_works_without_output_and_its_refusal_is_heard(tmp_path) -> None:
    typed = [sys.executable, str(ROOT / "run.py"), "check", "task=ioi"]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *typed], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        ["check is about rows of yours, and task=ioi draws its own; run it with task=file"],
    )


@pytest.mark.slow
def test_a_command_whose_reader_left_writes_what_it_writes_and_has_its_own_code(tmp_path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    typed = [
        sys.executable,
        str(ROOT / "run.py"),
        "check",
        "task=file",
        "task.path=rows.csv",
        "check.left_out=left.txt",
    ]
    codes = []
    for output in (subprocess.DEVNULL, left()):
        Path(tmp_path / "left.txt").unlink(missing_ok=True)
        done = subprocess.run(typed, cwd=tmp_path, stdout=output, stderr=subprocess.PIPE, text=True)
        codes.append(done.returncode)
        assert done.stderr == ""
        assert (tmp_path / "left.txt").read_text().splitlines()[0].startswith("line 2 (row 1): has no clean prompt")
    assert codes[0] == codes[1] == 2  # one row is too few for a run
