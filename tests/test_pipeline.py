"""The whole program on the embedded model, small: started, killed, resumed, run again, spoilt and mended."""

from __future__ import annotations

import json
import re
import socket
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

import results_io
from calibrations import certificate
from calibrations.registry import CALIBRATIONS
from calibrations.rules import Standing
from circuits import circuit as circuit_files
from circuits import models
from circuits.measurements import DEPEND_ON_CIRCUIT, MEASUREMENTS
from meridian import overrides
from tests.commandline import ROOT, SMALL, command
from tests.small_run import MEASURED, Run, finish, state, states

DIFFERS = ",".join(sorted(set(SMALL) - {"task=ioi", "model.device=cpu"}))
P, H, L, ROLES = 60, 32, 4, ["io", "s1", "s1_plus_1", "s2", "end"]
README = (ROOT / "results" / "README.md").read_text()
JUDGED = [f"{module.NUMBER}_{module.NAME}.json" for module in CALIBRATIONS.values()]
FILES = sorted([*MEASURED, *JUDGED, "P_preconditions.json", "certificate.json", "report.html"])


@pytest.fixture(scope="module")
def killed(small_run) -> Run:
    """A run that was killed (SIGKILL) when its third measurement had appeared."""
    return states(small_run)[0]


@pytest.fixture(scope="module")
def first(small_run) -> Run:
    """The same command again: it went on from there and finished. Nobody else uses this folder."""
    return states(small_run)[1]


@pytest.fixture
def mended(first):
    """Puts the finished results back after a test that spoils them."""
    yield first
    for name, content in first.files.items():
        path = first.results / name
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)


def data_of(run: Run, number: str) -> dict:
    return results_io.read(results_io.required(run.folder, number))["data"]


def no_model(monkeypatch) -> None:
    def load(settings, *say):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(models, "load", load)


# --- killed and resumed --------------------------------------------------------------------------------------------


def test_a_killed_run_leaves_whole_measurements_only(killed) -> None:
    whole = [name for name in killed.files if name.endswith(".json")]
    assert 3 <= len(whole) < len(MEASURED)
    assert [Path(name).name for name in whole] == MEASURED[: len(whole)]
    for name in whole:
        assert results_io.read(killed.results / name)["kind"] == "measurement"


def test_the_next_run_keeps_what_was_finished_and_finishes_the_rest(killed, first) -> None:
    assert (first.outcome.code, first.outcome.errors) == (0, "")
    finished = [name for name in killed.files if name.endswith(".json")]
    for name in finished:
        assert first.files[name] == killed.files[name]
        assert first.times[Path(name).name] == killed.times[Path(name).name]
        number = Path(name).name[:2]
        assert not re.search(rf"^{number} ", first.outcome.output, re.MULTILINE)  # no bar of its own
    assert sorted(path.name for path in first.folder.iterdir()) == FILES  # and no *.partial
    assert set(first.files) == {f"pocket/ioi/{first.folder.name}/{name}" for name in FILES} | {
        "summary.json",
        "summary.csv",
    }


# --- what the results hold -----------------------------------------------------------------------------------------


def test_results_go_to_a_folder_named_by_what_differs(first) -> None:
    assert first.folder.name == overrides.folder_name(DIFFERS)
    assert first.folder.name.startswith("measurement.attention_prompts=20,measurement.attribution_patching.prompts=16,")


def test_files_are_canonical_and_hold_nothing_of_this_machine(first) -> None:
    private = [str(first.results), str(ROOT), str(Path.home()), "/tmp"]
    host = re.compile(rf"\b{re.escape(socket.gethostname())}\b")
    for name, content in first.files.items():
        text = content.decode()
        if name.endswith(".json"):
            document = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} in a result"))
            assert text == results_io.dumps(document), name
        assert not [place for place in private if place in text], name
        assert not host.search(text), name


@pytest.mark.parametrize("number", MEASUREMENTS)
def test_measurements_have_the_common_form(first, number) -> None:
    document = results_io.read(results_io.find(first.folder, number))
    circuit = circuit_files.load(models.EMBEDDED / "pocket" / "circuits" / "ioi.yaml")
    named = circuit if number in DEPEND_ON_CIRCUIT else None
    subject = document["subject"]
    assert (document["number"], document["id"], document["kind"]) == (number, MEASUREMENTS[number].ID, "measurement")
    assert (subject["model"], subject["task"], subject["dtype"]) == ("pocket", "ioi", "float32")
    assert subject["model_sha256"] == circuit.provenance["model_sha256"]
    assert (subject["circuit"], subject["circuit_sha256"]) == ((named.name, named.sha256) if named else (None, None))
    assert document["n"] == {"evaluation": 40, "held_out": 20, "heads": H, "templates": 12}
    assert document["environment"]["seeds"] == {"prompts": 0, "interventions": 0}


def chosen(run: Run, size: int, split: str = "evaluation") -> list[int]:
    """The rows that a measurement on some of a split's prompts takes: those of the lowest prompt id."""
    base = data_of(run, "01")
    rows = [row for row, name in enumerate(base["split"]) if name == split]
    return sorted(rows, key=lambda row: base["prompt_id"][row])[:size]


def test_01_baseline(first) -> None:
    data = data_of(first, "01")
    assert Counter(data["split"]) == {"evaluation": 40, "held_out": 20} and len(set(data["prompt_id"])) == P
    assert data["heads"] == [[layer, index] for layer in range(L) for index in range(8)]
    assert (data["n_layers"], data["n_heads_per_layer"], len(data["examples"])) == (4, 8, 3)
    clean, corrupted = np.array(data["clean_logit_diff"]), np.array(data["corrupted_logit_diff"])
    assert data["correct"] == (clean > 0).tolist()  # one answer and one foil
    assert data["accuracy"] == {
        "evaluation": pytest.approx(np.mean(data["correct"][:40])),
        "held_out": pytest.approx(np.mean(data["correct"][40:])),
    }
    assert data["accuracy"]["evaluation"] > 0.9 and clean.mean() > 2 and abs(corrupted.mean()) < 1
    assert all(0 <= p <= 1 for p in data["answer_probability"])
    for example in data["examples"]:
        assert example["clean"][0] == example["bos"] == "<bos>"
        assert example["answers"] == [example["clean"][example["positions"]["io"]]]
        assert example["wrong"] == [example["clean"][example["positions"]["s2"]]]
        assert example["positions"]["end"] == len(example["clean"]) - 1


def test_02_activation_patching(first) -> None:
    data, base = data_of(first, "02"), data_of(first, "01")
    clean, corrupted = np.array(base["clean_logit_diff"]), np.array(base["corrupted_logit_diff"])
    for direction in ("denoising", "noising"):
        effect = np.array(data[direction])
        assert effect.shape == (P, H)
        assert np.abs(effect.mean(0)).max() > 0.1 * (clean - corrupted).mean()
    sites = data["sites"]
    assert sites["roles"] == ROLES and sites["rows"] == chosen(first, 10)
    tables = {kind: np.array(table) for kind, table in sites["denoising"].items()}
    assert {kind: table.shape for kind, table in tables.items()} == dict.fromkeys(
        ("residual", "attention", "mlp"), (L, 5)
    )
    # The stream that enters the first layer is the tokens': the last one is the same in both prompts.
    assert abs(tables["residual"][0, ROLES.index("end")]) < 1e-5


def test_03_direct_logit_attribution(first) -> None:
    data, clean = data_of(first, "03"), np.array(data_of(first, "01")["clean_logit_diff"])
    parts = np.array(data["attribution"]), np.array(data["mlp"])
    assert (parts[0].shape, parts[1].shape) == ((P, H), (P, L))
    total = parts[0].sum(1) + parts[1].sum(1) + data["embedding"] + np.array(data["bias"])
    assert np.abs(total - clean).max() <= data["max_error"] * 1.001 + 1e-6 < 1e-3


def test_04_logit_lens(first) -> None:
    data, base = data_of(first, "04"), data_of(first, "01")
    rank, difference = np.array(data["rank"]), np.array(data["logit_diff"])
    assert rank.shape == difference.shape == np.shape(data["probability"]) == (L + 1, P)
    assert np.abs(difference[-1] - base["clean_logit_diff"]).max() < 1e-3
    assert np.abs(np.array(data["probability"])[-1] - base["answer_probability"]).max() < 1e-4
    assert (rank[-1] == 0).tolist() == base["top1"]
    for column, layer in zip(rank.T, data["emergence_layer"], strict=True):
        assert (
            (column[-1] > 0) if layer is None else (not column[layer:].any() and (layer == 0 or column[layer - 1] > 0))
        )


def test_06_causal_tracing(first) -> None:
    data = data_of(first, "06")
    assert data["corruption"]["strategy"] == "entity_swap" and data["strategies"] == [
        "noise",
        "entity_swap",
        "span_deletion",
    ]
    for table in (data["impact"], data["standard_error"]):
        assert {kind: np.shape(values) for kind, values in table.items()} == dict.fromkeys(
            ("residual", "attention", "mlp"), (L, 5)
        )
    assert data["rows"] == chosen(first, 10)
    clean = np.mean(np.array(data_of(first, "01")["answer_probability"])[data["rows"]])
    assert data["clean_probability"] == pytest.approx(clean, abs=1e-5)
    assert data["corrupted_probability"] < 0.3 * clean
    assert max(max(row) for row in data["impact"]["residual"]) > 0.2


def test_20_ablation_battery(first) -> None:
    data, clean = data_of(first, "20"), np.array(data_of(first, "01")["clean_logit_diff"])
    roles = data["circuit"]["roles"]
    members = sorted(tuple(node) for role in roles.values() for node in role["heads"])
    counts = Counter((condition["subset"], condition["method"]) for condition in data["conditions"])
    subsets = [
        "circuit",
        "complement",
        "empty",
        "top_k_norm",
        "top_k_attribution",
        *(f"without:{name}" for name in roles),
    ]
    draws = {"zero": 1, "mean": 1, "mean_pooled": 1, "resample": 4, "noise": 4}
    fewer = {"top_k_norm": ("mean",), "top_k_attribution": ("mean",)}
    fewer |= {subset: ("zero", "mean_pooled") for subset in subsets if subset.startswith("without:")}
    assert counts == {(s, method): n for s in subsets for method, n in draws.items() if method in fewer.get(s, draws)}
    values = np.array(data["logit_diff"])
    assert values.shape == (3 * 11 + 2 * 1 + len(roles) * 2, P)
    mean = {c["subset"]: row for c, row in zip(data["conditions"], values, strict=True) if c["method"] == "mean"}
    theta = {subset: row[:40].sum() / clean[:40].sum() for subset, row in mean.items()}
    assert abs(theta["circuit"] - 1) < 0.25 and abs(theta["empty"]) < 0.25 > abs(theta["complement"])
    random = data["random_circuits"]
    assert random["prompt_index"] == [*chosen(first, 10), *chosen(first, 5, "held_out")]
    assert np.shape(random["heads"]) == (20, len(members), 2) and np.shape(random["logit_diff"]) == (20, 15)
    layers = Counter(layer for layer, _ in members)
    assert all(Counter(layer for layer, _ in heads) == layers for heads in random["heads"])
    norms = np.argsort(-np.array(data_of(first, "26")["discovery_norm"]), kind="stable")[: len(members)]
    assert data["baselines"]["top_k_norm"] == sorted([int(i) // 8, int(i) % 8] for i in norms)


def test_21_and_22_knockouts_and_minimality(first) -> None:
    knockouts, minimality, battery = (
        np.array(data_of(first, "21")["effect"]),
        data_of(first, "22"),
        data_of(first, "20"),
    )
    assert knockouts.shape == (P, H)
    roles = battery["circuit"]["roles"]
    assert sorted(minimality["roles"]) == list(roles)  # the keys of a stored mapping are sorted
    assert sorted(map(tuple, minimality["heads"])) == sorted(tuple(n) for r in roles.values() for n in r["heads"])
    assert np.shape(minimality["effect"]) == (len(minimality["heads"]), P)
    single = {name: role["heads"][0] for name, role in roles.items() if len(role["heads"]) == 1}
    clean = np.array(data_of(first, "01")["clean_logit_diff"])
    groups, prompts = minimality["completeness"]["groups"], minimality["completeness"]["prompt_index"]
    mean = minimality["completeness"]["recipes"]["mean"]
    for name, (layer, index) in single.items():
        place = next(i for i, group in enumerate(groups) if group["heads"] == [[layer, index]])
        lost = np.array(mean["model"]) - np.array(mean["model_without"])[mean["groups"].index(place)]
        assert np.abs(lost - knockouts[prompts, 8 * layer + index]).max() < 1e-4
        place = minimality["heads"].index([layer, index])
        effect = np.array(minimality["role_effect"])[minimality["roles"].index(name)]
        assert np.abs(effect - minimality["effect"][place]).max() < 1e-4
    assert np.array(minimality["effect"]).mean(1).max() > 0.1 * clean.mean()


def test_25_26_and_27(first) -> None:
    attention, statistics, companions = data_of(first, "25"), data_of(first, "26"), data_of(first, "27")["tasks"]
    assert all(0 <= value <= 1 for value in attention["entropy"]) and len(attention["entropy"]) == H
    assert list(attention["to_position"]) == sorted(ROLES)
    assert all(len(attention["to_position"][query][key]) == H for query in ROLES for key in ROLES)
    assert all(np.shape(attention[name]) == (H,) for name in ("previous_token", "duplicate_token", "induction"))
    assert np.shape(statistics["output_norm"]) == (P, H) and np.shape(statistics["discovery_norm"]) == (H,)
    assert all(a >= b >= 0 for row in statistics["singular_values"] for a, b in pairwise(row))
    assert set(companions) == {"greater_than", "subject_verb_agreement", "gendered_pronoun", "induction"}
    for task in companions.values():
        assert np.shape(task["denoising"]) == (10, H) and len(set(task["prompt_id"])) == 10
        assert 0 <= task["accuracy"] <= 1


@pytest.mark.parametrize("identifier", CALIBRATIONS)
def test_calibrations_have_the_common_form(first, identifier) -> None:
    module = CALIBRATIONS[identifier]
    document = results_io.read(first.folder / f"{module.NUMBER}_{module.NAME}.json")
    assert (document["number"], document["id"], document["kind"]) == (module.NUMBER, module.NAME, "calibration")
    digests = {
        number: results_io.file_digest(results_io.find(first.folder, number)) for number in document["inputs_sha256"]
    }
    assert document["inputs_sha256"] == digests
    metrics = re.search(rf"^\| {module.NUMBER} \| {identifier} .*? \| (.*?) \|$", README, re.MULTILINE)
    listed = metrics.group(1).split(", ") if metrics else []  # test_registry asks for the row of every published one
    listed = [name for name in listed if name != "..." and not name.endswith("_global")]
    for records in (document["records"], document["data"]["held_out"]):
        found = [record["metric"] for record in records]
        assert set(listed) <= set(found) and all(name.startswith(f"{identifier}.") for name in found)
        for record in records:
            assert record["verdict"] in ("pass", "fail", "inconclusive", "insufficient")
            assert record["published_verdict"] in ("pass", "fail", "none")
            assert record["verdict"] != "insufficient" or (record["estimate"] is None and record["reasons"])
            assert record["p"] is None or 0 <= record["p"] <= 1


def test_forty_prompts_are_too_few_to_certify_and_the_certificate_says_so(first) -> None:
    folded = results_io.read(first.folder / "certificate.json")
    assert (folded["tier"], folded["tier_name"], folded["of"], folded["ceiling"]) == (0, "under changed rules", 4, 0)
    verdicts = {record["metric"]: record for row in folded["rows"] for record in row["records"]}
    assert verdicts["C16.test_retest"]["reasons"] == ["n_prompts: 40 prompts; at least 90 needed"]
    unmeasured = [name for name, r in verdicts.items() if any(reason.startswith("not_run") for reason in r["reasons"])]
    assert unmeasured == []
    changed = {one["key"]: one["value"] for one in folded["rules"]["differences"]}
    assert [f"{key}={value}" for key, value in changed.items()] == sorted(set(SMALL) - {"task=ioi", "model.device=cpu"})
    assert [row["id"] for row in folded["rows"]] == list(CALIBRATIONS)


def test_the_terminal_shows_the_tier_why_and_where_everything_is_in_a_hundred_columns(first) -> None:
    text = first.outcome.output
    assert "Certificate   ioi on pocket (4 layers x 8 heads, embedded)  circuit: stored, " in text
    assert "\nTier 0 of 4 under changed rules\nData          40 evaluation + 20 held-out prompts, 12 templates" in text
    assert re.search(r"^Faithfulness  [\d.]+ mean per template and position \(", text, re.MULTILINE)
    assert re.search(r"^Verdicts      .* of 16 calibrations", text, re.MULTILINE)
    assert re.search(r"^Next          python run.py task=ioi .*", text, re.MULTILINE)
    assert "certificates pooled" not in text and "claim tried" not in text and "* " not in text  # of several alone
    assert "━" not in text and "0/0" not in text
    folder = "".join(line.strip() for line in text[text.index("\nReport") :].partition("\nTook")[0].splitlines())
    assert folder.removeprefix("Report").strip() == str(first.folder / "report.html")
    typed = text[text.index("\nNext") : text.index("\nReport")]
    told = [line for line in text.replace(typed, "").splitlines() if str(first.results) not in line]
    assert max(map(len, told)) <= 100
    assert re.search(r"^Took          \d+ s, [\d,]+ variants x prompts at", text, re.MULTILINE)


def test_verbose_shows_every_row_and_the_same_results(first) -> None:
    """The same folder: what is shown is no part of a result."""
    text = command(*SMALL, "calibration=all", f"results={first.results}", "verbose=true").output
    assert (
        "\nTier 0 of 4 under changed rules\nReachable with this data: tier 0\nClaim about heads only; MLPs stay intact\n"
        "40 evaluation + 20 held-out prompts, 12 templates" in text
    )
    assert "\nrules: changed from released 0." in text and "\n  prompts.evaluation: 40 (released: 400)\n" in text
    assert "\n1 of 1 claim tried about ioi on pocket: tiers 0* (* under rules that are not released)\n" in text
    null = r"^Random circuits of its size and layers, mean ablation: median [\d.]+, largest [\d.]+ *$"
    assert re.search(null, text, re.MULTILINE)
    for identifier in CALIBRATIONS:
        assert re.search(rf"^{identifier} ", text, re.MULTILINE), identifier
    assert re.search(
        rf"^Results {re.escape(str(first.folder))} · certificate.json · report.html · \d+ s, nothing measured anew",
        text,
        re.M,
    )
    assert f"1 certificates pooled in {first.results / 'summary.json'}; " in text


def test_the_summary_pools_the_certificate(first) -> None:
    pooled = results_io.read(first.results / "summary.json")
    folded = results_io.read(first.folder / "certificate.json")
    ((place, entry),) = pooled["circuits"].items()
    assert place == f"pocket/ioi/{first.folder.name}"
    shared = set(entry) & set(folded)
    assert {name: entry[name] for name in shared} == {name: folded[name] for name in shared} and entry["tier"] == 0
    assert shared >= {"subject", "tier", "ceiling", "p_certificate"}
    assert entry["verdicts"] == {row["id"]: row["verdict"] for row in folded["rows"]}
    assert (entry["seed"], entry["variant"]) == (0, first.folder.name)


# --- run again -----------------------------------------------------------------------------------------------------


def test_a_second_run_gives_the_same_bytes_without_the_model(first, monkeypatch) -> None:
    no_model(monkeypatch)
    began = time.monotonic()
    second = finish(first.results)
    assert time.monotonic() - began < 30
    assert (second.outcome.code, second.outcome.errors) == (0, "")
    assert second.files == first.files
    untouched = {name for name in FILES if name != "certificate.json"}
    assert {name: second.times[name] for name in untouched} == {name: first.times[name] for name in untouched}
    assert "nothing measured anew" in second.outcome.output


@pytest.mark.slow
def test_a_deleted_calibration_is_judged_again_without_the_model(mended, monkeypatch) -> None:
    no_model(monkeypatch)
    (mended.folder / "30_seed_variance.json").unlink()
    again = finish(mended.results)
    assert again.outcome.code == 0
    assert again.files == mended.files
    changed = {name for name in FILES if again.times[name] != mended.times[name]}
    assert changed - {"certificate.json"} == {"30_seed_variance.json"}


def test_a_deleted_measurement_is_measured_again_alone(mended) -> None:
    before = state(mended.results, mended.outcome)
    (mended.folder / "26_head_statistics.json").unlink()
    again = finish(mended.results)
    assert again.outcome.code == 0
    assert again.files == mended.files
    changed = {name for name in FILES if again.times[name] != before.times[name]}
    assert changed - {"certificate.json"} == {"26_head_statistics.json"}


def test_an_unreadable_calibration_is_judged_again_and_a_stranger_is_left_alone(mended, monkeypatch) -> None:
    no_model(monkeypatch)
    (mended.folder / "98_ablation_invariance.json").write_text('{"schema_version": 1, "recor')
    (mended.folder / "notes.txt").write_text("mine")
    again = finish(mended.results)
    (mended.folder / "notes.txt").unlink()
    assert {name: text for name, text in again.files.items() if not name.endswith("notes.txt")} == mended.files


def test_some_calibrations_leave_the_others_files_alone(mended, monkeypatch) -> None:
    no_model(monkeypatch)
    some = state(mended.results, command(*SMALL, "calibration=[c11,m98]", f"results={mended.results}"))
    assert some.outcome.code == 0
    assert some.files == mended.files  # nor is the certificate replaced by one on fewer calibrations
    shown = re.findall(r"^([A-Z]\d*[a-z]?\d*[a-z]?) ", some.outcome.output, re.MULTILINE)
    told = dict.fromkeys(identifier for identifier in shown if identifier in CALIBRATIONS)  # rows, then reasons
    assert list(told) == ["C11", "M98"]
    assert "No certificate: run calibration=all" in some.outcome.output
    assert "Tier" not in some.outcome.output


def test_the_certificate_follows_from_the_files_alone(first) -> None:
    names = {"P": "P_preconditions.json"} | {i: f"{m.NUMBER}_{m.NAME}.json" for i, m in CALIBRATIONS.items()}
    documents = {identifier: results_io.read(first.folder / name) for identifier, name in names.items()}
    rules = yaml.safe_load((ROOT / "configs" / "certificate" / "tiers.yaml").read_text())
    stored = results_io.read(first.folder / "certificate.json")
    folded = certificate.certify(documents, rules, Standing.read(stored))
    said = (
        "schema_version",
        "content_sha256",
        "headline",
        "inputs_sha256",
        "asked",
    )  # of every file, for people, of the run
    assert results_io.canonical(folded) == {name: value for name, value in stored.items() if name not in said}


@pytest.mark.slow
def test_the_planted_circuit_is_all_of_the_model_under_every_ablation(tmp_path) -> None:
    few = [
        f"prompts.{name}={size}"
        for name, size in {"evaluation": 8, "held_out": 4, "discovery": 4, "reference": 160}.items()
    ]
    given = ("model=planted/sound", "model.device=cpu", *few, "measurement.random_circuits=20", "calibration=c11")
    outcome = command(*given, f"results={tmp_path}")
    assert (outcome.code, outcome.errors) == (0, "")
    (path,) = tmp_path.rglob("P_preconditions.json")
    (found,) = (r for r in results_io.read(path)["records"] if r["metric"] == "P.behaviour")
    assert found["verdict"] == "pass"
    battery = results_io.read(path.parent / "20_ablation_battery.json")["data"]
    clean = np.array(results_io.read(path.parent / "01_baseline.json")["data"]["clean_logit_diff"])
    theta = {
        condition["name"]: np.sum(row) / clean.sum()
        for condition, row in zip(battery["conditions"], battery["logit_diff"], strict=True)
        if condition["subset"] == "circuit"
    }
    assert len(theta) == 11 and all(abs(value - 1) < 0.05 for value in theta.values()), theta
