"""Runs of lm-eval and inspect, from files in their form, imported into our record; and the libraries' own reading of them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import results_io
from results_io import UserError
from suites import declaration
from suites.harness import imported, importing, inspect_log
from suites.log import chain, generations

DATA = Path(__file__).parents[1] / "data" / "imports" / "tiny__model"
BBQ, TRUTHFUL = sorted(DATA.glob("samples_*.jsonl"))
(INSPECT,) = DATA.glob("*.eval")


def documents(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def records(folder: Path, name: str) -> dict[str, float | None]:
    stored = results_io.read(folder / name)["records"]
    return {one["metric_id"].rpartition(".")[2]: one["value"] for one in stored}


def test_bbq_becomes_a_suite_of_bias_in_which_every_unknown_is_right(tmp_path):
    folder = imported.write(importing.read(BBQ), tmp_path / "bbq")
    found = records(folder, "187_bias.json")
    # by hand: ambiguous picks are biased, counter, unknown, biased; the others biased (right), counter, counter, unknown
    assert found["s_ambiguous"] == pytest.approx(0.75 * (2 * 2 / 3 - 1))
    assert found["s_disambiguated"] == pytest.approx(2 * 1 / 3 - 1)
    assert (found["accuracy_ambiguous"], found["accuracy_disambiguated"]) == (0.25, 0.25)
    suite = declaration.load(folder)
    assert (suite.id, suite.mode, len(suite.items)) == ("imported_bbq", "S4", 8)
    assert {item.cluster for item in suite.items} == {"Nationality 1", "Nationality 2"}
    run = generations.latest(folder / generations.NAME, suite)
    facts = run.facts["imported"]
    assert (facts["model"], facts["task"], facts["file_sha256"]) == ("tiny__model", "bbq", results_io.file_digest(BBQ))
    for sample in documents(BBQ):
        name = f"lm_eval/{sample['doc_id']}"
        assert facts["hashes"][name] == {key: sample[key] for key in ("doc_hash", "prompt_hash", "target_hash")}
        assert facts["hashes"][name]["prompt_hash"] == hashlib.sha256(suite.by_id[name].prompt.encode()).hexdigest()
        assert [one["L"] for one in run.likelihoods[name]["choices"]] == [float(a) for a, _ in sample["filtered_resps"]]
    chain.verify(folder / generations.NAME)


def test_importing_again_changes_nothing_and_another_file_is_refused(tmp_path):
    folder = imported.write(importing.read(TRUTHFUL), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    imported.write(importing.read(TRUTHFUL), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(UserError, match="items of another import"):
        imported.write(importing.read(BBQ), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_truthfulqa_is_right_or_wrong(tmp_path):
    folder = imported.write(importing.read(TRUTHFUL), tmp_path / "run")
    right = [sample["acc"] for sample in documents(TRUTHFUL)]
    assert records(folder, "103_constraint.json")["failure_rate"] == pytest.approx(1 - sum(right) / 3)
    assert records(folder, "121_likelihood.json")["acc"] == pytest.approx(sum(right) / 3)
    suite = declaration.load(folder)
    assert [item.answers for item in suite.items] == [
        (one["doc"]["mc1_targets"]["choices"][0],) for one in documents(TRUTHFUL)
    ]


def test_an_ambiguous_half_of_bbq_alone_is_right_or_wrong(tmp_path):
    path = tmp_path / "samples_bbq_ambig_2026.jsonl"
    half = [one for one in documents(BBQ) if one["doc"]["context_condition"] == "ambig"]
    path.write_text("".join(f"{json.dumps(one)}\n" for one in half))
    folder = imported.write(importing.read(path), tmp_path / "run")
    assert records(folder, "103_constraint.json")["failure_rate"] == 0.75


def test_an_inspect_log_becomes_items_with_every_epoch_and_the_hashes_of_its_samples(tmp_path):
    found = importing.read(INSPECT)
    folder = imported.write(found, tmp_path / "run")
    by_id = {one.item.id: one for one in found.items}
    assert set(by_id) == {"inspect/1", "inspect/2", "inspect/odd-id"}
    assert by_id["inspect/1"].outputs == ("Paris.", "Lyon.")
    chat = by_id["inspect/2"]
    assert (chat.item.system, chat.item.prompt) == ("Answer in one word.", "And of Peru?")  # the first an attachment
    assert chat.item.earlier == (("user", "What is the capital of Chile?"), ("assistant", "Santiago"))
    assert chat.outputs == ("Lima, I think.", "Lima")
    assert by_id["inspect/odd-id"].outputs == (None, "Kyoto")  # an error, then parts of which one is text
    assert by_id["inspect/1"].foreign["includes_epoch_2"] == '"I"'
    run = generations.latest(folder / generations.NAME, declaration.load(folder))
    assert len(run.generations) == 6 and [slot.item for slot in run.errors] == ["inspect/odd-id"]
    assert run.facts["imported"]["hashes"]["inspect/1"] == dict(by_id["inspect/1"].foreign)
    assert records(folder, "103_constraint.json")["failure_rate"] == 0


@pytest.mark.parametrize(
    ("of_model", "written", "expected"),
    [(None, None, None), (None, 0, 0.0), (None, 0.7, 0.7), (0.2, None, 0.2), (0.2, 0.7, 0.7), (0.7, 0, 0.0)],
)
def test_the_temperature_of_an_inspect_log_is_that_of_its_settings(of_model, written, expected, tmp_path, capsys):
    """Two epochs at temperature 0 are one draw; of the provider's own temperature nothing is claimed, and pass@k is shown.

    As inspect asks: the setting of the evaluation's plan (`written`) goes before that of the model.
    """
    target = tmp_path / "set.eval"
    with zipfile.ZipFile(INSPECT) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "header.json":
                header = json.loads(content)
                header["status"] = "error"
                header["eval"]["model_generate_config"] = {} if of_model is None else {"temperature": of_model}
                header["plan"] = {"config": {} if written is None else {"temperature": written}}
                content = json.dumps(header).encode()
            new.writestr(name, content)
    assert importing.main([str(target), str(tmp_path / "run")]) == 0
    assert "3 items, 6 outputs, 1 of them failed calls; the run ended with the status error" in capsys.readouterr().out
    suite = declaration.load(tmp_path / "run")
    assert suite.legs[0].temperature == expected
    stored = results_io.read(tmp_path / "run" / "103_constraint.json")["records"]
    passed = [one for one in stored if "pass_at_k[leg=imported,k=2]" in one["metric_id"]]
    assert [one["status"] for one in passed] == ["undefined" if expected == 0 else "ok"]
    assert any(".determinism[" in one["metric_id"] for one in stored) == (expected == 0)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"", "neither lm-eval's samples file"),
        ("a.eval", b"PK no zip", "not a log of inspect"),
        ("a.jsonl", b"{}\n", "line 1, is not a sample"),
    ],
)
def test_what_is_no_run_is_refused(name, content, said, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert importing.main([str(tmp_path / name), str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert importing.main([]) == 2


def changed(path: Path, **changes) -> str:
    """The first document of a samples file, with other values."""
    return json.dumps({**documents(path)[0], **changes}) + "\n"


@pytest.mark.parametrize(
    ("number", "said"),
    [("-inf", "-inf"), ("nan", "nan"), ("inf", "inf"), (float("nan"), "nan"), (float("-inf"), "-inf")],
)
def test_a_log_likelihood_that_is_not_finite_is_refused_with_its_line(number, said, tmp_path, capsys):
    pairs = documents(TRUTHFUL)[0]["filtered_resps"]
    path = tmp_path / "samples_truthfulqa_mc1_2026.jsonl"
    path.write_text(changed(TRUTHFUL) + changed(TRUTHFUL, doc_id=9, filtered_resps=[[number, "False"], *pairs[1:]]))
    assert importing.main([str(path), str(tmp_path / "out")]) == 2
    refused = capsys.readouterr().err
    assert f"line 2, has the log-likelihood {said} of a choice, expected a finite number; run lm-eval" in refused
    assert refused.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "target", ["1.9", "1.5", "1.0", "[True]", "True", "[0, 1.2]", "'1'", "['1']", "-1", "[[1]]", "{1}"]
)
def test_a_target_is_a_whole_number_and_neither_rounded_nor_a_bool(target, tmp_path, capsys):
    path = tmp_path / "samples_truthfulqa_mc1_2026.jsonl"
    path.write_text(changed(TRUTHFUL, target=target))
    assert importing.main([str(path), str(tmp_path / "out")]) == 2
    assert "is no whole number from 0 on, and no list of such" in capsys.readouterr().err


def test_a_target_is_an_index_a_list_of_them_or_the_text_of_a_choice(tmp_path):
    first, second = importing.read(TRUTHFUL).items[0].item.choices[:2]
    path = tmp_path / "samples_truthfulqa_mc1_2026.jsonl"
    for target, right in (
        ("1", (second,)),
        ("[1]", (second,)),
        ("[0, 1]", (first, second)),
        (f" {second} ", (second,)),
    ):
        path.write_text(changed(TRUTHFUL, target=target))
        assert importing.read(path).items[0].item.answers == right


def packed(path: Path, header: bytes, sample: bytes | None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", header)
        if sample is not None:
            archive.writestr("samples/1_epoch_1.json", sample)
    return path


HEADER = b'{"eval": {"task": "t", "model": "m"}, "status": "success"}'
SAMPLE = b'{"id": 1, "epoch": 1, "input": "x", "target": "y", "output": {"choices": []}}'


def refusal(path: Path, capsys) -> str:
    assert importing.main([str(path), str(path.parent / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not (path.parent / "out").exists()
    return said


def test_a_log_that_does_not_exist_is_said_not_to_and_only_a_compressed_one_needs_a_package(tmp_path, capsys):
    path = tmp_path / "a.eval"
    assert refusal(path, capsys) == f"{path} does not exist; give an .eval file of inspect\n"
    path.mkdir()
    assert refusal(path, capsys) == f"{path} is not a file; give an .eval file of inspect\n"
    path.rmdir()
    packed(path, HEADER, SAMPLE)
    assert len(importing.read(path).items) == 1
    method = zipfile.ZIP_DEFLATED.to_bytes(2, "little")
    path.write_bytes(
        path.read_bytes().replace(b"\x00\x00" + method, b"\x00\x00\x63\x00")
    )  # a method that nothing reads
    assert "install zipfile_zstd, which reads zstandard" in refusal(path, capsys)


def test_a_log_without_a_header_or_samples_says_that_alone(tmp_path, capsys):
    path = tmp_path / "a.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("samples/1_epoch_1.json", SAMPLE)
    said = f"{path} has no header.json: the run did not finish; finish it with `inspect eval-retry`\n"
    assert refusal(path, capsys) == said
    assert refusal(packed(path, HEADER, None), capsys) == (
        f"{path} has no samples; give the log of a run that asked something\n"
    )


@pytest.mark.parametrize(
    ("header", "sample"),
    [
        (b"[]", SAMPLE),
        (b"{}", SAMPLE),
        (b'{"eval": []}', SAMPLE),
        (b"[" * 10**5, SAMPLE),
        (HEADER, b"[" * 10**5),
        (HEADER, b"[]"),
        (HEADER, b"\xff"),
        (HEADER, SAMPLE.replace(b'"x"', b'"\\ud800"')),
        (HEADER, SAMPLE.replace(b'{"choices": []}', b"[]")),
        (HEADER, SAMPLE.replace(b'"x"', b"[]")),
        (HEADER, SAMPLE.replace(b'"x"', b'"attachment://none"')),
    ],
)
def test_a_log_of_another_form_is_one_sentence(header, sample, tmp_path, capsys):
    said = refusal(packed(tmp_path / "a.eval", header, sample), capsys)
    assert "is not a log of inspect that can be read" in said and "zipfile_zstd" not in said


def test_a_damaged_log_is_one_sentence(tmp_path, capsys):
    whole = INSPECT.read_bytes()
    place = whole.index(b"samples/1_epoch_1.json") + 60
    for damaged in (whole[:-40], whole[: len(whole) // 2], whole[:place] + b"\xff" * 40 + whole[place + 40 :]):
        (tmp_path / "a.eval").write_bytes(damaged)
        assert "is not a log of inspect that can be read" in refusal(tmp_path / "a.eval", capsys)


# --- the libraries' own reading of the same files ------------------------------------------------------------------


@pytest.mark.slow
def test_lm_evals_own_functions_make_these_choices_targets_and_scores_of_bbq(tmp_path):
    pytest.importorskip("lm_eval", reason="the optional extra lm-eval is not installed")
    import lm_eval

    path = Path(lm_eval.__file__).parent / "tasks" / "bbq" / "utils.py"
    spec = importlib.util.spec_from_file_location("bbq_utils", path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    import datasets

    raw = [
        {k: v for k, v in one["doc"].items() if k != "biased_answers" and "groups" not in k} for one in documents(BBQ)
    ]
    made = theirs.process_docs(datasets.Dataset.from_list(raw))
    scores = []
    for sample, doc in zip(documents(BBQ), made, strict=True):
        assert {key: doc[key] for key in sample["doc"]} == sample["doc"]
        choices = [sample["arguments"][f"gen_args_{k}"]["arg_1"].strip() for k in range(12)]
        assert choices == theirs.doc_to_choice(doc) and str(theirs.doc_to_target(doc)) == sample["target"]
        picks = [(float(a), b) for a, b in sample["filtered_resps"]]
        scores.append(theirs.process_results_multiple_choice(doc, picks))
    found = records(imported.write(importing.read(BBQ), tmp_path / "bbq"), "187_bias.json")
    for ours, name in (("s_ambiguous", "amb_bias_score"), ("s_disambiguated", "disamb_bias_score")):
        aggregate = getattr(theirs, f"agg_{name}s")
        assert found[ours] == pytest.approx(float(aggregate([one[name] for one in scores])))
    assert found["accuracy_ambiguous"] == theirs.agg_accuracy_amb([one["accuracy_amb"] for one in scores])
    assert found["accuracy_disambiguated"] == theirs.agg_accuracy_disamb([one["accuracy_disamb"] for one in scores])


@pytest.mark.slow
def test_inspect_reads_the_fixture_and_what_inspect_writes_is_imported_alike(tmp_path):
    log = pytest.importorskip("inspect_ai.log", reason="the optional extra inspect is not installed")
    read = log.read_eval_log(str(INSPECT), resolve_attachments=True)
    ours = {one.item.id: one for one in importing.read(INSPECT).items}
    for sample in read.samples:
        name = imported.identifier(f"inspect/{sample.id}")
        said = ours[name].outputs[sample.epoch - 1]
        assert said == (None if sample.error else sample.output.completion)
    target = tmp_path / "again.eval"
    log.write_eval_log(log.read_eval_log(str(INSPECT)), str(target))  # compressed as inspect does it
    again = {one.item.id: one for one in importing.read(target).items}
    assert {name: (one.item, one.outputs) for name, one in again.items()} == {
        name: (one.item, one.outputs) for name, one in ours.items()
    }


def test_the_command_imports(tmp_path, capsys):
    shutil.copy(TRUTHFUL, tmp_path)
    assert importing.main([str(tmp_path / TRUTHFUL.name), str(tmp_path / "run")]) == 0
    assert "suite.path=" in capsys.readouterr().out


@pytest.mark.parametrize(("folder_is_there", "left"), [(False, None), (True, ["mine.txt"])])
def test_a_refused_import_leaves_nothing_and_the_mended_file_is_imported(folder_is_there, left, tmp_path, capsys):
    target, path = tmp_path / "run", tmp_path / TRUTHFUL.name
    if folder_is_there:
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    first, *others = TRUTHFUL.read_text().splitlines()
    odd = json.dumps({**json.loads(first), "doc_id": "\u2028"})  # no line of an items file may hold it
    path.write_text("\n".join([odd, *others]) + "\n")
    assert importing.main([str(path), str(target)]) == 2
    assert (sorted(one.name for one in target.iterdir()) if target.exists() else None) == left
    shutil.copy(TRUTHFUL, path)
    assert importing.main([str(path), str(target)]) == 0
    assert (target / "mine.txt").exists() is folder_is_there


@pytest.mark.parametrize(
    ("change", "said"), [({}, "includes of the log judges 0 of 5"), ({"C": "I", "I": "C"}, "5 of 5")]
)
def test_outputs_that_the_logs_scorer_judges_otherwise_are_counted(change, said, tmp_path, capsys):
    path = tmp_path / INSPECT.name
    with zipfile.ZipFile(INSPECT) as stored, zipfile.ZipFile(path, "w") as written:
        for name in stored.namelist():
            content = json.loads(stored.read(name))
            for score in (content.get("scores") or {}).values() if name.startswith("samples/") else ():
                score["value"] = change.get(score["value"], score["value"])
            written.writestr(name, json.dumps(content))
    assert importing.main([str(path), str(tmp_path / "run")]) == 0
    assert f"{said} outputs otherwise than the results here, which are by our scorer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "right"),
    [
        ("C", True),
        ("I", False),
        ("P", None),
        ("N", None),
        (1, True),
        (0.0, False),
        (0.5, None),
        (True, True),
        (None, None),
    ],
)
def test_a_scorers_value_is_right_wrong_or_neither(value, right):
    samples = [{"scores": {"mine": {"value": value}}}, {}]
    assert inspect_log._scored(samples) == {"mine": (right, None)}


def test_an_import_of_other_items_or_settings_touches_nothing_of_the_first(tmp_path):
    """The same items under another task are another import; a suite of the user's own is none at all."""
    folder = tmp_path / "run"
    found = importing.read(INSPECT)
    imported.write(found, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for other in (replace(found, source={**found.source, "task": "other"}), replace(found, items=found.items[:1])):
        with pytest.raises(UserError, match=re.escape(f"{folder} has the items of another import")):
            imported.write(other, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    own = tmp_path / "own"
    own.mkdir()
    (own / "suite.yaml").write_text("id: mine\n")
    with pytest.raises(UserError, match="give a folder of its own"):
        imported.write(found, own)
    assert {path.name: path.read_text() for path in own.iterdir()} == {"suite.yaml": "id: mine\n"}


@pytest.mark.parametrize("values", [(1, 5), (0, 0.5), (1, float("nan"))])
def test_grades_say_neither_right_nor_wrong(values):
    samples = [{"scores": {"mine": {"value": value}}} for value in values]
    assert inspect_log._scored(samples) == {"mine": (None, None)}
