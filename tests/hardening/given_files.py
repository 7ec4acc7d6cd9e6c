"""Files that somebody gives or a command wrote, each with its reader, and what may stand in their place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from suites import declaration, lock
from suites.contamination import loss_gap
from suites.drift import corpus, series_record
from suites.execution import execution_record
from suites.harness import lm_eval_samples
from suites.item import CATALOGUE
from suites.judging import judgement_record, labels, rubric
from suites.log import chain, generations
from suites.shadow import redaction, sampling, traffic, traffic_record
from suites.suffix import suffix_record

Reader = Callable[[], Any]
BYTES: Mapping[str, Callable[[bytes], bytes]] = {  # what may become of a file's bytes
    "empty": lambda content: b"",
    "a BOM": lambda content: b"\xef\xbb\xbf" + content,
    "UTF-16": lambda content: content.decode().encode("utf-16"),
    "Latin-1": lambda content: content + b"\xe9\xff\n",
    "NUL at the end": lambda content: content + bytes(64),
    "NUL in the middle": lambda content: content[:30] + b"\0" + content[30:],
    "half": lambda content: content[: len(content) // 2],
    "deep lists": lambda content: b"[" * 100_000 + b"\n",
    "deep objects": lambda content: b'{"a":' * 100_000 + b"\n",
    "6,000 digits": lambda content: b"9" * 6000 + b"\n",
    "NaN": lambda content: b"NaN\n",
    "a list": lambda content: b"[]\n",
    "null": lambda content: b"null\n",
    "a text": lambda content: b'"a"\n',
    "half a surrogate pair": lambda content: b'{"id":"\\ud800","item":"\\ud800","human":"A"}\n',
    "CR LF": lambda content: content.replace(b"\n", b"\r\n"),
    "twice": lambda content: content * 2,
    "reversed": lambda content: b"\n".join(content.strip().split(b"\n")[::-1]) + b"\n",
    "no end": lambda content: content.rstrip(b"\n"),
    "blank lines": lambda content: content.replace(b"\n", b"\n\n"),
}
PLACES: Mapping[str, Callable[[Path], Any]] = {  # what may stand where a file should
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "link to itself": lambda path: path.symlink_to(path),
    "link to nowhere": lambda path: path.symlink_to(path.with_name("nowhere")),
    "device": lambda path: path.symlink_to("/dev/null"),
}
TEXTS = {  # of one request, with every line separator that JSON leaves as it is
    **{"request": "r1", "prompt": "a\u2028b", "live": "c\x85d", "candidate": "e\u2029f"},
    **{"system": None, "earlier": [], "expires": "2999-01-01"},
}
SAMPLED = {"request": "r1", "day": "2026-01-01", "part": 1, "live": {}, "candidate": {}}
LABEL = {"item": "q1", "human": "A", "rater": "kim"}
PAIR = {"item": "q1", "original": "one two", "paraphrase": "two\u2028one"}
LOGGED = {"id": "1", "prompt": "a", "answer": "b", "time": "2026-05-04T10:00:00Z"}
SAMPLE = {
    **{"doc_id": 0, "doc": {}, "target": "a", "arguments": {}, "resps": [], "filtered_resps": []},
    **{"filter": "none", "metrics": [], "doc_hash": "", "prompt_hash": "", "target_hash": ""},
}


def lines(*documents: Mapping[str, Any]) -> bytes:
    return "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in documents).encode()


def chained(path: Path, *records: Mapping[str, Any]) -> bytes:
    """A valid chain of these records, as the bytes of its file."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with chain.Writer(path) as writer:
        writer.append(records)
    return path.read_bytes()


def suite(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(CATALOGUE / name, folder / name))


def files(folder: Path) -> Iterator[tuple[str, Path, Reader]]:
    """(what it is, a whole file, what reads it), each in a place of its own below `folder`."""
    asked, items, code = (
        suite(folder, name) for name in ("a14_injection_color", "s01_refusals", "x01_small_functions")
    )
    yield "lock of a suite", asked / lock.FILE, lambda: declaration.load(asked)
    yield "declaration of a suite", asked / declaration.FILE, lambda: declaration.load(asked)
    yield "items of a suite", items / lock.ITEMS_FILE, lambda: declaration.load(items)
    yield "tests of programs", code / "tests.jsonl", lambda: lock.compile_items(declaration.read(code))
    public = Path(shutil.copytree(corpus.FOLDER / (known := corpus.names()[0]), folder / known))
    yield "lock of a corpus", public / corpus.LOCK, lambda: (corpus.load(public), corpus.freeze(public))
    for name, content, read in (
        ("labels", lines(LABEL), lambda path: labels.read(path, ["A", "B", "tie"])),
        ("traffic", lines(LOGGED), traffic.read),
        ("redaction", b"plate: '[A-Z]+'\n", redaction.Redactor),
        ("rubric", (rubric.FOLDER / f"{rubric.names()[0]}.yaml").read_bytes(), lambda path: rubric.load(str(path))),
        ("paraphrases", lines(PAIR), loss_gap.read),
        ("samples of lm-eval", lines(SAMPLE), lm_eval_samples.read),
    ):
        (path := folder / name).write_bytes(content)
        yield name, path, lambda path=path, read=read: read(path)
    (key := folder / "keys" / sampling.KEY_FILE).parent.mkdir()
    key.write_text("0a" * sampling.KEY_BYTES)
    yield "sampling key", key, lambda: sampling.key_of(key.parent, None)
    stream = folder / "shadow"
    with traffic_record.TrafficRecord(stream) as record:
        record.add([SAMPLED], [TEXTS])
    yield "texts of traffic", stream / traffic_record.TEXTS, lambda: traffic_record.read(stream)
    yield "record of traffic", stream / traffic_record.NAME, lambda: traffic_record.read(stream)
    for name, read in LOGS.items():
        path = folder / "logs" / name
        chained(path, *WHOLE[name])
        yield name, path, lambda path=path, read=read: read(path)


# --- logs -----------------------------------------------------------------------------------------------------------

STARTED = {
    **{"kind": "snapshot_started", "snapshot": "2026-W01", "expected_n": 1, "every": 1, "seed": 0, "leg_dropped": None},
    "corpus": {
        **{"name": "x", "sha256": "a", "markers": [], "not_applicable": {}, "held_out": 0, "commitments": {}},
        "public": [{"id": "p", "version": 1, "hash": "h", "messages": [{"role": "user", "content": "?"}]}],
    },
    **{"legs": [{"name": "zero", "samples": 1, "temperature": 0.0}], "model": {"name": "m", "identity": {}}},
    "declared_version": "m",
}
ASKED = {
    **dict.fromkeys(series_record.ROW),
    **{"kind": "generation", "snapshot": "2026-W01", "prompt": "p", "version": 1, "prompt_hash": "h", "axis": "a"},
    **{"split": "public", "harm": "none", "leg": "zero", "sample": 0, "text": "é yes", "text_sha256": "t"},
    **{"finish": "stop", "requested": "m", "safety": False},
}
FINISHED = {"kind": "snapshot_finished", "snapshot": "2026-W01", "n": 1, "errors": 0}
RUN = {
    **{"kind": "run_started", "run_id": "r", "suite_id": "s", "suite_hash": "h", "model": "m", "identity": {}},
    **{"legs": [{"name": "one"}], "expected_n": 1, "expected_likelihoods": 0, "environment": {}},
}
SAID = {
    **{"kind": "generation", "run_id": "r", "item_id": "i", "leg": "one", "sample_index": 0, "response_text": "yes"},
    **{"cache_key": "k", "finish_reason": "stop", "error": None, "latency_ms": 1.5},
}
JUDGED = [
    {"kind": "judge", "judge": "j", "identity": {"name": "n"}, "rubric": {"sha256": "r"}},
    {
        **dict.fromkeys(("key", "id", "order", "judge", "rubric"), "k"),
        **{"kind": "judgement", "texts": ["t"], "verdict": None, "error": None},
    },
]
SEARCHED = {
    **dict.fromkeys(("key", "suite_id", "suite_hash", "weights_sha256", "target", "suffix"), "x"),
    **{
        "kind": suffix_record.KIND,
        "schema": suffix_record.SCHEMA,
        **{"code": "c", "start": "z", "tried": 3, "exchanged": 1},
        "identity": {},
        "budget": {},
        "seed": 0,
        "passes": 1,
        "tuned": ["a"],
        "judged": ["b"],
    },
    **{"controls": {"b": "y"}, "loss_before": {"a": 1.0, "b": 1.0}, "loss_after": {"a": 0.5, "b": 0.5}},
}
WHOLE = {
    series_record.NAME: [STARTED, ASKED, FINISHED],
    generations.NAME: [RUN, SAID],
    judgement_record.NAME: JUDGED,
    execution_record.NAME: [{"kind": "execution", "key": "k", "tests": {}, "why": {}, "error": None}],
    suffix_record.NAME: [SEARCHED],
}


def whole_series(path: Path) -> series_record.SeriesRecord:
    """The series with everything that its readers take from it."""
    series = series_record.read(path)
    _ = series_record.expected(series), series_record.commitments(series), series_record.retired(series)
    for one in series.snapshots.values():
        _ = one.lacking, one.legs, series_record.head(series, one.id), series_record.expected_cells(series, one.id)
    return series


LOGS: Mapping[str, Callable[[Path], Any]] = {
    series_record.NAME: whole_series,
    generations.NAME: generations.read,
    judgement_record.NAME: lambda path: judgement_record.JudgementRecord(path).__exit__(None, None, None),
    execution_record.NAME: execution_record.read,
    suffix_record.NAME: suffix_record.read,
}


def replaced(record: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The record without each of its keys, and with another type under each."""
    for key in record:
        yield f"without {key}", {name: value for name, value in record.items() if name != key}
        for value in (None, [], {}, "x", -1, 1.5):
            if value != record[key]:
                yield f"{key}: {value!r}", {**record, key: value}
