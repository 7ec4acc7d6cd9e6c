"""Whatever bytes stand in a numbered file, it is measured or judged again, or refused in one sentence."""

from __future__ import annotations

import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import result_schemas
import result_types
import results_io
from calibrations import calibrate
from calibrations.evidence import Evidence
from circuits import measure
from meridian import integrity, run_folder
from results_io import UserError
from tests.hardening import behaviour_results, mutations

VERY_FEW, FEW, MANY = 12, 40, 300
LONGEST = 700  # characters of a refusal
QUICK = ("02", "11", "certificate")
TEXTS, LEAST_OF_TEXTS = "131_", 0.4  # names of modes and reasons, all of which may be another text


@cache
def whole(path: Path) -> tuple[bytes, dict[str, Any]]:
    return path.read_bytes(), results_io.read(path)


def refusals(*readers: Callable[[], Any]) -> list[str]:
    """What readers of a file make of it: refused in a sentence each, or read. Anything else is raised."""
    said = []
    for read in readers:
        try:
            read()
        except UserError as error:
            said.append(str(error))
    assert all("\n" not in one and len(one) < LONGEST for one in said), said
    return said


def of_a_run(path: Path, subject: Any) -> list[str]:
    """What every reader of a run's results makes of one of them."""
    folder, number = path.parent, path.name.partition("_")[0]
    return refusals(
        lambda: results_io.read(path),
        lambda: integrity.faults(folder),
        lambda: measure.is_fresh(path, subject),
        lambda: Evidence.load(folder, {}, (number,)),
        lambda: calibrate.digests(folder, (number,)),
        lambda: run_folder.RunFolder.open_as_certified(folder),
    )


def attack(path: Path, number: int, readers: Callable[[], list[str]], forged: bool = False) -> Counter[str]:
    """Let `readers` read `number` mutations of a file (`forged`: of its content alone); how many were refused. The file is then
    as it was."""
    content, document = whole(path)
    counts: Counter[str] = Counter()
    drawn = mutations.changed(document)
    drawn = drawn if forged else st.one_of(mutations.broken(content), drawn)

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn)
    def read(found: bytes) -> None:
        path.write_bytes(found)
        counts["refused" if readers() else "the same"] += 1
        counts["tried"] += 1

    read()
    path.write_bytes(content)
    return counts


def mutated(path: Path, number: int) -> Counter[str]:
    """An attack on a run's result: what is refused by nobody is what it was, and what cannot be read is made again."""
    _, document = whole(path)

    def readers() -> list[str]:
        said = of_a_run(path, document.get("subject"))
        if not said and path.name != run_folder.CERTIFICATE:  # which no list holds the digest of: see docs/hardening.md
            assert results_io.read(path) == document
        if path.name != run_folder.CERTIFICATE and results_io.fault(path):
            assert not measure.is_fresh(path, document.get("subject"))  # it is made again
        return said

    return attack(path, number, readers)


def small_folder(finished: Path, place: Path, path: Path) -> Path:
    """A folder with this file, the certificate, and what every reader needs."""
    needed = {path.name, run_folder.CERTIFICATE, *(results_io.required(finished, n).name for n in run_folder.NEEDED)}
    place.mkdir()
    for name in needed:
        shutil.copy(finished / name, place)
    return place / path.name


def files(finished: Path) -> list[Path]:
    return [*sorted(finished.glob(run_folder.NUMBERED)), finished / run_folder.CERTIFICATE]


def attacked(finished: Path, tmp_path: Path, names: tuple[str, ...] | None, number: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for path in files(finished):
        if names is None or path.name.partition("_")[0].partition(".")[0] in names:
            counts = mutated(small_folder(finished, tmp_path / path.name, path), number)
            assert counts["tried"] >= number and counts["refused"] >= 0.5 * number, (path.name, counts)
            total += counts
    return total


def test_mutations_of_a_few_results_are_refused_in_one_sentence_by_every_reader(finished, tmp_path) -> None:
    assert attacked(finished, tmp_path, QUICK, FEW)["tried"] >= FEW * len(QUICK)


@pytest.mark.slow
def test_mutations_of_every_result_are_refused_in_one_sentence_by_every_reader(finished, tmp_path) -> None:
    total = attacked(finished, tmp_path, None, MANY)
    print(dict(total))
    assert total["tried"] >= MANY * 37


def as_written(path: Path, reader: Callable[[Path], Any]) -> list[str]:
    """What the readers of a behavioural result refuse. One that nobody refuses, under its own digest, is the original."""
    _, document = whole(path)
    said = refusals(lambda: results_io.read(path), lambda: reader(path))
    if not said:
        found = results_io.read(path)
        assert found == document or found[results_io.DIGEST] != document[results_io.DIGEST]
    return said


def attacked_folder(kind: str, folder: Path, number: int) -> None:
    """Mutations of one file of each name: whoever reads the folder refuses in a sentence, or reads what is of the right form."""
    for path, reader in behaviour_results.files(kind, behaviour_results.KINDS[kind].make(folder)):
        readers = functools.partial(as_written, path, reader)
        assert readers() == []
        for forged in (False, True):
            counts = attack(path, number, readers, forged)
            print(path.name, dict(counts))
            least = LEAST_OF_TEXTS if path.name.startswith(TEXTS) else 0.5
            assert counts["tried"] >= number and counts["refused"] >= least * number, (path.name, counts)


@pytest.mark.parametrize("kind", [name for name, one in behaviour_results.KINDS.items() if one.quick])
def test_a_few_mutations_of_behavioural_results_are_refused_in_one_sentence_or_read(kind, tmp_path) -> None:
    attacked_folder(kind, tmp_path, VERY_FEW)


@pytest.mark.slow
@pytest.mark.parametrize("kind", behaviour_results.KINDS)
def test_mutations_of_behavioural_results_are_refused_in_one_sentence_or_read(kind, tmp_path) -> None:
    attacked_folder(kind, tmp_path, behaviour_results.KINDS[kind].many)


def test_every_form_is_attacked(finished) -> None:
    measured = {path.name.partition("_")[0].partition(".")[0] for path in files(finished)}
    calibrated = {"calibration"} if measured - result_types.NUMBERED.keys() - {"certificate"} else set()
    names = {name for kind in behaviour_results.KINDS.values() for name in kind.readers}
    beside = {behaviour_results.WITHOUT_NUMBER.get(name, name) for name in names}
    assert {*result_types.NUMBERED, *result_types.NAMED} - measured - calibrated - beside == set()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "is not readable JSON"),
        (b'{"schema_version": ' + b"1" * 5000 + b"}", "holds an integer of 5000 digits"),
        (b'{"schema_version": 1, "x": NaN}', "holds NaN, which is no number"),
        (b'{"schema_version": 1, "x": -Infinity}', "holds -Infinity, which is no number"),
        (b'{"schema_version": 1, "schema_version": 1}', "a key stands there twice"),
        (mutations.signed({"schema_version": 1, "x": 1e308}).replace(b"1e+308", b"1e+999"), "not finite"),
        (
            mutations.signed({"schema_version": 1, "x": [[[[]]]] * 2, "y": json.loads("[" * 40 + "]" * 40)}),
            "nested more",
        ),
        (mutations.signed({"schema_version": 1, "x": 2**63}), "holds an integer of more than 64 bits"),
        (mutations.signed({"schema_version": 1, "number": "3"}), "is result 3 under the name of 02"),
        (mutations.signed({"schema_version": 1, "x": 1}), "has no number under the name of 02"),
        (
            mutations.signed({"schema_version": 1, "number": "02", "kind": "drift"}),
            "has not the form of a result 02: its kind is 'drift', not measurement",
        ),
        (
            mutations.signed({"schema_version": 1, "number": "02", "kind": "measurement"}),
            "has not the form of a result 02: it lacks data",
        ),
    ],
)
def test_what_no_result_may_hold_is_named(content, reason, tmp_path) -> None:
    (path := tmp_path / "02_activation_patching.json").write_bytes(content)
    with pytest.raises(results_io.ResultError) as refused:
        results_io.read(path)
    assert reason in str(refused.value) and len(str(refused.value)) < LONGEST


def test_a_file_without_end_is_refused_before_it_is_read(tmp_path) -> None:
    with (path := tmp_path / "02_x.json").open("wb") as file:
        file.truncate(results_io.MOST_BYTES + 1)
    with pytest.raises(results_io.ResultError, match=f"has {results_io.MOST_BYTES + 1} bytes, and"):
        results_io.read(path)


@pytest.mark.parametrize(
    ("number", "change", "reason"),
    [
        (
            "02",
            lambda data: data["noising"].pop(),
            "data.noising has a list of 59 entries over P, of which there are 60",
        ),
        (
            "02",
            lambda data: data["noising"][3].pop(),
            "data.noising has a list of 31 entries over H, of which there are 32",
        ),
        (
            "02",
            lambda data: data["sites"]["rows"].__setitem__(0, 99999),
            "data.sites.rows has the index 99999 of 60 entries",
        ),
        ("02", lambda data: data.pop("noising"), "data lacks noising"),
        ("20", lambda data: data["conditions"].pop(), "over V, of which there are"),
        ("01", lambda data: data["heads"][0].append(1), "data.heads[0] has a list of 3 entries over 2"),
        ("28", lambda data: data["noising"].pop(), "over E, of which there are"),
        ("09", lambda data: data["ov_norm"].__setitem__(0, "x"), "data.ov_norm[0] is 'x', not a number"),
    ],
)
def test_a_forged_list_of_another_length_is_named(number, change, reason, finished) -> None:
    document = json.loads(results_io.required(finished, number).read_text())
    assert result_schemas.fault(document) is None
    change(document["data"])
    prompts = document["n"]["evaluation"] + document["n"]["held_out"]
    assert reason.replace("60", str(prompts)).replace("59", str(prompts - 1)) in str(result_schemas.fault(document))


def test_the_schemas_are_json_schema_and_say_the_same_as_the_reader(finished) -> None:
    schemas = {number: result_schemas.schema(number) for number in result_schemas.numbers()}
    tables = (result_types.MEASUREMENTS, result_types.BEHAVIOUR, result_types.CONTAMINATION, result_types.WHOLE)
    assert len(schemas) == len(result_types.NAMED) + sum(map(len, tables))  # no number stands in two
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for number in ("06", "21", "28", "11"):
        document = json.loads(results_io.required(finished, number).read_text())
        validator = jsonschema.Draft202012Validator(schemas["calibration" if number == "11" else number])
        assert validator.is_valid(document) and result_schemas.fault(document) is None
        for change in (
            lambda one: one.pop("data"),
            lambda one: one["data"].update(more=1),
            lambda one: one.update(records={}),
            lambda one: one["subject"].update(model=3),
            lambda one: one.update(inputs_sha256={"01": 5}),
        ):
            forged = json.loads(json.dumps(document))
            change(forged)
            assert not validator.is_valid(forged) and result_schemas.fault(forged), (number, change)
