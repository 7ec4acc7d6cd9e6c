"""Logs and texts with something wrong in them: read, or refused in one sentence; never a traceback, never waited for."""

from __future__ import annotations

import itertools
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meridian import locks
from results_io import UserError
from suites import bounded_text, declaration, schema
from suites.drift import series_record
from suites.log import chain, generations
from suites.shadow import traffic_record
from tests.commandline import command
from tests.hardening import given_files
from tests.hardening.given_files import ASKED, BYTES, FINISHED, LOGS, PLACES, STARTED, WHOLE

LONGEST, SECONDS, WAIT = 600, 5.0, 10


@contextmanager
def limited() -> Iterator[None]:
    """Raises TimeoutError in what waits for a pipe."""

    def stop(*unused: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(WAIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(read: Callable[[], Any]) -> str:
    """ "read", or "refused" in one short sentence; anything else is raised."""
    began = time.process_time()
    try:
        with limited():
            read()
    except UserError as error:
        assert "\n" not in (said := str(error)) and len(said) < LONGEST and said.isprintable(), said
        return "refused"
    finally:
        assert time.process_time() - began < SECONDS
    return "read"


def put(path: Path, place: Callable[[], Any]) -> None:
    """Take away what stands at `path`, and put something else there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    place()


def test_whatever_stands_in_a_given_file_is_read_or_refused_in_one_sentence(tmp_path) -> None:
    tried: Counter[str] = Counter()
    for name, path, read in given_files.files(tmp_path):
        whole = path.read_bytes()
        if name != "samples of lm-eval":
            assert outcome(read) == "read", name
        for change in BYTES.values():
            put(path, lambda path=path, change=change, whole=whole: path.write_bytes(change(whole)))
            tried[outcome(read)] += 1
        for kind, make in PLACES.items():
            put(path, lambda path=path, make=make: make(path))
            assert outcome(read) == "refused", (name, kind)
            tried["refused"] += 1
        put(path, lambda path=path, whole=whole: path.write_bytes(whole))
    assert tried.total() >= 440 and tried["refused"] > 300, tried


@pytest.mark.parametrize("name", LOGS)
def test_every_line_of_a_valid_chain_has_the_form_of_its_log(name, tmp_path) -> None:
    """A key that is gone or of another type is refused or of no weight; so are the lines of every other log."""
    tried = 0
    for place, record in enumerate(WHOLE[name]):
        for what, other in given_files.replaced(record):
            given_files.chained(path := tmp_path / name, *WHOLE[name][:place], other, *WHOLE[name][place + 1 :])
            said = outcome(lambda path=path: LOGS[name](path))
            assert said == "refused" or "kind" not in what, what
            tried += 1
    for foreign in set(WHOLE) - {name}:
        given_files.chained(path, *WHOLE[foreign])
        assert outcome(lambda path=path: LOGS[name](path)) == "refused", foreign
    assert tried >= 30


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            [ASKED],
            "line 1 is of a snapshot that no line before it began; restore the file from a copy, or move it away",
        ),
        ([STARTED, {**FINISHED, "snapshot": "2026-W02"}], "line 2 is of a snapshot that no line before it began"),
        ([{**STARTED, "every": 0}], "line 1 has a snapshot every 0 weeks, expected 1 or more"),
        (
            [STARTED, {**ASKED, "leg": []}],
            "line 2 is no line of kind generation: its leg is missing or of another type",
        ),
        ([{**STARTED, "corpus": {}}], "line 1 is no line of kind snapshot_started: its corpus.name is missing"),
        ([{"kind": "started"}], "line 1 has the kind 'started', and such a log has snapshot_started, generation"),
        ([{"kind": ["generation"]}], "line 1 has the kind ['generation'], and such a log has"),
    ],
)
def test_what_is_wrong_with_a_line_of_a_drift_series_is_named(lines, sentence, tmp_path) -> None:
    given_files.chained(path := tmp_path / series_record.NAME, *lines)
    with pytest.raises(UserError) as refused:
        series_record.read(path)
    assert sentence in str(refused.value)


def test_a_generation_of_no_run_is_refused(tmp_path) -> None:
    given_files.chained(path := tmp_path / generations.NAME, WHOLE[generations.NAME][1])
    with pytest.raises(UserError, match="line 1 is of a run that no line before it started"):
        generations.read(path)


@pytest.mark.parametrize("number", [b'"' + b"x" * 5000 + b'"', b'"a\\nb\\u001b[31m"', b"9" * 4000])
def test_a_wrong_number_of_a_line_is_shown_on_one_short_line(number, tmp_path) -> None:
    whole = given_files.chained(path := tmp_path / "log", {"kind": "x"})
    path.write_bytes(whole.replace(b'"seq":0', b'"seq":' + number))
    assert outcome(lambda: chain.read(path)) == "refused"


def test_lines_moved_taken_out_twice_or_of_30_megabytes_are_found_at_their_place(tmp_path) -> None:
    whole = given_files.chained(path := tmp_path / series_record.NAME, *WHOLE[series_record.NAME]).splitlines(True)
    for order in itertools.permutations(range(3)):
        if order != (0, 1, 2):
            path.write_bytes(b"".join(whole[place] for place in order))
            first = next(place for place, one in enumerate(order) if one != place)
            with pytest.raises(UserError, match=f"line {first + 1} has the number"):
                series_record.read(path)
    for content in (whole[1], whole[0] * 2, b"".join(whole) + b'{"seq":3,"a":"' + b"x" * 30_000_000 + b'"}\n'):
        path.write_bytes(content)
        assert outcome(lambda: series_record.read(path)) == "refused"


@pytest.mark.parametrize("kind", PLACES)
def test_nothing_is_appended_through_what_is_no_log(kind, tmp_path) -> None:
    PLACES[kind](path := tmp_path / "log")
    assert outcome(lambda: chain.Writer(path)) == "refused"
    assert not (tmp_path / "nowhere").exists()  # what the dangling link would have made: an empty log elsewhere


def test_texts_with_any_line_separator_are_read_again(tmp_path) -> None:
    """U+2028 in one person's request made the whole record unreadable."""
    with traffic_record.TrafficRecord(tmp_path) as record:
        record.add([given_files.SAMPLED], [given_files.TEXTS])
    assert traffic_record.read(tmp_path).texts == {"r1": given_files.TEXTS}


def test_a_key_that_stands_twice_is_refused_in_every_yaml(tmp_path) -> None:
    (tmp_path / "rubric.yaml").write_text("name: a\nname: b\n")
    for read in (given_files.redaction.Redactor, lambda path: given_files.rubric.load(str(path))):
        with pytest.raises(UserError, match="the key 'name' stands there twice"):
            read(tmp_path / "rubric.yaml")
    (tmp_path / declaration.FILE).write_text("id: a\nid: b\n")
    with pytest.raises(UserError, match="the key 'id' stands there twice"):
        declaration.read(tmp_path)


def test_a_path_that_is_a_link_to_itself_is_shown(tmp_path) -> None:
    (loop := tmp_path / "loop").symlink_to(loop)
    assert schema.shown_path(loop) == str(loop)


def test_a_file_above_the_bound_is_not_read(tmp_path) -> None:
    (path := tmp_path / "text").write_bytes(b"12345")
    assert bounded_text.read(path, 5) == "12345"
    with pytest.raises(ValueError, match="it has more than 4 bytes, which is the most that is read"):
        bounded_text.read(path, 4)


def test_the_command_refuses_another_command_s_log_in_one_sentence(tmp_path) -> None:
    given_files.chained(tmp_path / "drift" / "mine" / series_record.NAME, *WHOLE[generations.NAME])
    said = command("drift", "series=mine", "do=verify", f"results={tmp_path}")
    assert (said.code, said.output, said.errors.count("\n")) == (2, "", 1)
    assert "line 1 has the kind 'run_started'" in said.errors


# --- locks ----------------------------------------------------------------------------------------------------------

CONTENTS = {"empty": b"", "garbage": b"\0\xff" * 999, "a dead process": b"999999999", "another's": b"1", "-1": b"-1"}


def held(results: Path) -> list[str]:
    said: list[str] = []
    with locks.held(results, results / "pocket", said.append):
        pass
    return said


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_what_an_old_lock_holds_and_when_it_was_made_blocks_nobody(content, tmp_path, monkeypatch) -> None:
    for now in (0.0, 4e9):  # the clock of the machine
        (place := locks.file_of(tmp_path, tmp_path / "pocket")).parent.mkdir(parents=True)
        place.write_bytes(content)
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert held(tmp_path) == []


@pytest.mark.parametrize("kind", ["folder", "link to itself", "link to nowhere", "device"])
def test_what_is_no_lock_is_named_and_not_the_results(kind, tmp_path) -> None:
    (place := locks.file_of(tmp_path, tmp_path / "pocket")).parent.mkdir()
    PLACES[kind](place)
    with limited(), pytest.raises(UserError) as refused:
        held(tmp_path)
    assert str(refused.value) == f"{place} is a link or a folder in the place of a lock; delete it, and run again"
