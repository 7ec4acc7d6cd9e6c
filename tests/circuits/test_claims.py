"""Which circuit a run is about, and what is said when there is none."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import results_io
from circuits import circuit as circuit_files
from circuits import claims, models, tasks
from circuits.circuit import Role, head
from circuits.discovery import Discovery
from circuits.measure import Plan
from results_io import UserError
from shown_progress import NoProgress
from tests.circuits import toy

DISCOVERY = {
    "prompts": 6,
    "greedy_heads": 64,
    "warn_above": 1e6,
    "clusters": 2,
    "resamples": 20,
    "stability": {"resamples": 20, "greedy_resamples": 1, "bar": 0.8, "bar_resamples": 100},
    "eap_ig": {"steps": 2},
    **toy.SEARCH,
    "tolerance": 0.1,
    "direct_share": 0.05,
    "attention": 0.3,
    "shares": [0.1, 1.0],
    "atp": {"base": "clean"},
}
SETTINGS = {**toy.SETTINGS, "discovery": DISCOVERY}


@contextlib.contextmanager
def silent(title: str):
    yield NoProgress()


@pytest.fixture
def plan(folder) -> Plan:
    return make_plan(folder("gpt2"))


def make_plan(path: Path, **changed) -> Plan:
    settings = {"name": "toy", "kind": "local", "path": str(path), "device": "cpu", "dtype": "float32"}
    parts = {
        "model_settings": settings,
        "task": tasks.get("greater_than"),
        "sizes": toy.SIZES,
        "seed": 0,
        "settings": SETTINGS,
        "engine": toy.ENGINE,
    }
    return Plan(**{**parts, **changed})


def resolve(plan: Plan, kind: str, folder: Path = Path("unused"), **settings):
    return claims.resolve(plan, {"kind": kind, **settings}, folder, silent)


def refusal(plan: Plan, kind: str, **settings) -> str:
    with pytest.raises(UserError) as raised:
        resolve(plan, kind, **settings)
    text = str(raised.value)
    assert "\n" not in text
    return text


# --- stored --------------------------------------------------------------------------------------------------------


def test_the_stored_circuit_is_the_file_beside_the_weights(plan, monkeypatch) -> None:
    monkeypatch.setattr(models, "load", None)  # naming a circuit needs no weights
    assert resolve(plan, "stored") == toy.circuit("greater_than")


def test_a_task_without_a_stored_circuit_is_told_how_to_find_one(folder) -> None:
    assert refusal(make_plan(folder("gpt2"), task=tasks.get("ioi")), "stored") == (
        "model toy comes with no circuit for task ioi (it has: greater_than); run with circuit=discovered"
    )
    assert "(it has: none)" in refusal(make_plan(folder("neox")), "stored")


def test_a_stored_circuit_of_other_weights_is_refused(folder, tmp_path) -> None:
    path = Path(shutil.copytree(folder("gpt2"), tmp_path / "copied"))
    found = toy.circuit("greater_than")
    own = models.identify(make_plan(path).model_settings).sha256
    for digest in (own, "f" * 64):
        claim = replace(found, provenance={**found.provenance, "model_sha256": digest})
        circuit_files.save(claim, path / "circuits" / "greater_than.yaml")
        if digest == own:
            assert resolve(make_plan(path), "stored") == claim
    assert refusal(make_plan(path), "stored") == (
        f"the stored circuit 'toy_greater_than' was found on weights ffffffff, but toy now has {own[:8]}; run with "
        "circuit=discovered"
    )


# --- random --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_a_random_claim_has_the_size_and_the_layers_of_the_stored_circuit(plan, seed) -> None:
    stored, claim = toy.circuit("greater_than"), resolve(plan, "random", seed=seed)
    assert Counter(node.layer for node in claim.heads) == Counter({0: 1, 1: 1, 2: 2})
    assert claim.heads != stored.heads and len(set(claim.heads)) == 4
    assert list(claim.roles) == ["random"]
    role = claim.roles["random"]
    assert (role.ordinal, role.sign, role.assigned_by) == (None, 1, "none")
    assert claim.provenance == {
        "kind": "random",
        "source": "same size and layers as toy_greater_than",
        "split": "none",
        "seed": seed,
    }
    assert claim.name == f"greater_than random {seed}"
    assert resolve(plan, "random", seed=seed) == claim


def test_seeds_draw_different_claims(plan) -> None:
    assert len({resolve(plan, "random", seed=seed).heads for seed in range(12)}) > 6


# --- file ----------------------------------------------------------------------------------------------------------


def saved(tmp_path: Path, **changed) -> str:
    path = tmp_path / "mine.yaml"
    circuit_files.save(replace(toy.circuit("greater_than"), **changed), path)
    return str(path)


def test_a_circuit_from_a_file(plan, tmp_path) -> None:
    claim = resolve(plan, "file", path=saved(tmp_path, name="mine"))
    assert claim == replace(toy.circuit("greater_than"), name="mine")


def test_a_circuit_of_another_model_is_refused(plan, tmp_path) -> None:
    path = saved(tmp_path, model="anything")
    assert refusal(plan, "file", path=path) == (
        f"circuit file {path} is about model 'anything', but the run is about 'toy'; run it with that model, or write model: toy "
        "in it to ask it of this one"
    )


@pytest.mark.parametrize("path", [None, ""])
def test_a_file_claim_without_a_path(plan, path) -> None:
    assert refusal(plan, "file", path=path) == "circuit=file needs circuit.path; give the path of a circuit file"


def test_a_file_that_is_not_there(plan, tmp_path) -> None:
    text = refusal(plan, "file", path=str(tmp_path / "nowhere.yaml"))
    assert text.startswith(f"no circuit file at {tmp_path / 'nowhere.yaml'}; run with circuit=discovered")


def test_a_circuit_of_another_task(plan, tmp_path) -> None:
    path = saved(tmp_path, task="ioi")
    assert refusal(plan, "file", path=path) == (
        f"circuit file {path} is about task 'ioi', but the run is about 'greater_than'; run with task=ioi"
    )


@pytest.mark.parametrize(("node", "name"), [(head(3, 0), "L3H0"), (head(0, 4), "L0H4")])
def test_a_head_outside_the_model(plan, tmp_path, node, name) -> None:
    text = refusal(plan, "file", path=saved(tmp_path, roles={"one": Role((head(0, 0), node))}))
    assert f"names head {name}, but model 'toy' has layers 0-2 with heads 0-3; correct the head" in text


def test_a_circuit_without_heads(plan, tmp_path) -> None:
    path = saved(tmp_path, roles={"none": Role(())})
    assert refusal(plan, "file", path=path) == (
        f"{path} is not a circuit file (a role has neither heads nor nodes); it needs name, task, model, provenance "
        "and roles with their heads"
    )
    text = refusal(plan, "file", path=saved(tmp_path, roles={}))
    assert text == "circuit 'toy_greater_than' has no heads; name at least one, for example L0H0"


def test_an_unknown_kind(plan) -> None:
    assert refusal(plan, "guessed") == "circuit kind 'guessed' is unknown; use stored, discovered, random or file"


# --- discovered ----------------------------------------------------------------------------------------------------


DOCUMENT = {
    "unit": "heads",
    "recipe": "mean per template and position",
    "total": 12,
    "all_heads": 12,
    "heads": ["L0H1", "L1H2", "L2H0", "L2H3"],
    "chosen": {"size": 4, "surviving": 4, "faithfulness": 0.95},
    "cross_fitted": {"size": 4, "faithfulness": 0.85, "halves": True},
    "cpr": {"estimate": 0.7, "low": 0.6, "high": 0.8},
    "cmd": {"estimate": 0.25, "low": 0.2, "high": 0.3},
    "stability": {
        "heads": {"pairwise": 0.75, "with_full_sample": 0.8},
        "resamples": 20,
        "untested": None,
        "bar": 0.8,
        "bar_resamples": 100,
        "meets_bar": False,
    },
    "prompts": 6,
}


@pytest.fixture
def searches(monkeypatch) -> list:
    """Each search that is made, in place of the search itself."""
    made = []

    def find(study, method):
        made.append(study)
        return Discovery(
            replace(toy.circuit(study.task.name), name=f"found {len(made)}"), {**DOCUMENT, "method": method}
        )

    monkeypatch.setattr(claims.discovery, "find", find)
    return made


def test_a_second_run_reuses_what_the_first_found_without_loading_the_model(
    folder, tmp_path, searches, monkeypatch
) -> None:
    first = resolve(make_plan(folder("gpt2")), "discovered", tmp_path)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()}
    monkeypatch.setattr(models, "load", None)
    second = resolve(make_plan(folder("gpt2")), "discovered", tmp_path)
    assert first == second == circuit_files.load(tmp_path / "circuit.yaml")
    assert first.name == "found 1" and len(searches) == 1
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()} == before
    assert set(before) == {"circuit.yaml", "discovery.json"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["published", "planted", "discovered"])
def test_a_discovered_circuit_names_the_published_one_that_it_can_be_compared_with(
    plan, tmp_path, searches, kind
) -> None:
    """In result 20 and in circuit.yaml; heads that were themselves found by a search, or on other weights, are no yardstick."""

    def comes_with(**provenance):
        known = replace(toy.circuit("greater_than"), provenance={"kind": kind, "source": "a paper", **provenance})
        plan.__dict__["identity"] = replace(plan.identity, circuits={"greater_than": known})
        return known

    known = comes_with()
    found = resolve(plan, "discovered", tmp_path)
    expected = None if kind == "discovered" else [[node.layer, node.index] for node in known.heads]
    assert found.provenance.get("published_heads") == expected
    assert found.provenance.get("published_circuit") == (None if kind == "discovered" else known.name)
    assert circuit_files.load(tmp_path / "circuit.yaml") == found == resolve(plan, "discovered", tmp_path)
    comes_with(model_sha256="0" * 64)
    assert "published_heads" not in resolve(plan, "discovered", tmp_path).provenance and len(searches) == 1


@pytest.mark.slow
def test_the_search_sees_the_discovery_split_and_the_settings(plan, tmp_path, searches) -> None:
    resolve(plan, "discovered", tmp_path)
    (study,) = searches
    assert set(study.discovery.splits) == {"discovery"} and len(study.discovery) == toy.SIZES["discovery"]
    assert study.settings["discovery"] == DISCOVERY


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"sizes": {**toy.SIZES, "discovery": 17}},
        {"settings": {**SETTINGS, "discovery": {**DISCOVERY, "tolerance": 0.2}}},
        {"settings": {**SETTINGS, "repeated_tokens": {"seed": 1, "length": 8, "sequences": 6}}},
    ],
)
def test_another_search_is_made_for_other_prompts_or_settings(folder, tmp_path, searches, changed) -> None:
    resolve(make_plan(folder("gpt2")), "discovered", tmp_path)
    assert resolve(make_plan(folder("gpt2"), **changed), "discovered", tmp_path).name == "found 2"


@pytest.mark.slow
def test_another_method_makes_another_search(folder, tmp_path, searches) -> None:
    plan = make_plan(folder("gpt2"))
    for method, name in (("AtP", "found 1"), ("atp", "found 1"), ("EAP-IG", "found 2"), (None, "found 3")):
        assert resolve(plan, "discovered", tmp_path, method=method).name == name
    assert results_io.read(tmp_path / "discovery.json")["method"] == "ACDC-greedy"
    assert resolve(plan, "discovered", tmp_path).name == "found 3"  # nothing said: the default
    assert (
        resolve(plan, "discovered", tmp_path, method="auto").name == "found 3"
    )  # what it comes to, not how it was asked
    assert results_io.read(tmp_path / "discovery.json")["subject"]["method"] == "ACDC-greedy"
    larger = make_plan(folder("gpt2"), settings={**SETTINGS, "discovery": {**DISCOVERY, "greedy_heads": 11}})
    resolve(larger, "discovered", tmp_path)
    assert results_io.read(tmp_path / "discovery.json")["subject"]["method"] == "EAP-IG"


@pytest.mark.slow
def test_a_long_search_is_announced_before_it_begins_and_not_when_it_is_known(folder, tmp_path, searches) -> None:
    said: list[str] = []
    plan = make_plan(folder("gpt2"), settings={**SETTINGS, "discovery": {**DISCOVERY, "warn_above": 900}})
    for _ in range(2):
        claims.resolve(plan, {"kind": "discovered"}, tmp_path, silent, said.append)
    assert said[0].startswith("ACDC-greedy on 12 heads runs up to 948 (variant, prompt) pairs; method=EAP-IG takes")
    assert [text.split()[0] for text in said] == ["ACDC-greedy", "Discovery", "Discovery"]
    assert 948 == 2 * 79 * 6  # of the 16 discovery prompts, 6 are used


def test_an_unknown_method_is_refused_before_the_model_is_loaded(plan, monkeypatch) -> None:
    monkeypatch.setattr(models, "load", None)
    assert refusal(plan, "discovered", method="guess") == (
        "discovery method 'guess' is unknown; use auto or one of ACDC-greedy, AtP, NAP-IG, GIM, EAP-IG, EAP-GIM, classifier"
    )


def test_wrong_settings_are_refused_before_the_model_is_loaded(folder, monkeypatch) -> None:
    monkeypatch.setattr(models, "load", None)
    plan = make_plan(folder("gpt2"), settings={**SETTINGS, "discovery": {**DISCOVERY, "shares": [0.5]}})
    assert refusal(plan, "discovered").startswith("measurement.discovery.shares is [0.5]; expected rising shares")


@pytest.mark.slow
def test_the_classifier_searches_again_when_what_it_learns_from_changes(folder, tmp_path, searches) -> None:
    path = Path(shutil.copytree(folder("gpt2"), tmp_path / "copied"))
    plan, kept = make_plan(path), tmp_path / "kept"
    for method in ("classifier", "AtP"):
        resolve(plan, "discovered", kept / method, method=method)
    circuit_files.save(replace(toy.circuit("ioi"), name="another"), path / "circuits" / "ioi.yaml")
    changed = make_plan(path)
    assert resolve(changed, "discovered", kept / "AtP", method="AtP").name == "found 2"
    assert resolve(changed, "discovered", kept / "classifier", method="classifier").name == "found 3"
    weights = {**SETTINGS, "weights": {**SETTINGS["weights"], "answer_prompts": 3}}
    other = make_plan(path, settings=weights)
    assert resolve(other, "discovered", kept / "AtP", method="AtP").name == "found 2"
    assert resolve(other, "discovered", kept / "classifier", method="classifier").name == "found 4"


def test_what_was_found_is_said_each_time_in_one_sentence(plan, tmp_path, searches) -> None:
    said: list[str] = []
    for _ in range(2):
        claims.resolve(plan, {"kind": "discovered", "method": "AtP"}, tmp_path, silent, said.append)
    assert said == 2 * [
        "Discovery by AtP on 6 discovery prompts: 4 of 12 heads, faithfulness 0.950 on the prompts that chose it (other "
        "heads: mean per template and position); ranked on one half of them and scored on the other, faithfulness 0.850 at "
        "this size, CPR 0.700, CMD 0.250; Jaccard 0.75 at a fixed size over 20 resamples, which does not meet the bar of 0.8 "
        "with at least 100"
    ]
    claims.resolve(plan, {"kind": "stored"}, tmp_path, silent, said.append)
    assert len(said) == 2


@pytest.mark.slow
def test_settings_that_the_search_does_not_read_leave_it_alone(folder, tmp_path, searches) -> None:
    resolve(make_plan(folder("gpt2")), "discovered", tmp_path)
    other = make_plan(folder("gpt2"), settings={**SETTINGS, "draws": 5}, engine={**toy.ENGINE, "rows_per_forward": 64})
    assert resolve(other, "discovered", tmp_path).name == "found 1"


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", ["circuit.yaml", "discovery.json"])
@pytest.mark.parametrize("how", ["deleted", "cut", "edited"])
def test_a_circuit_that_is_not_the_one_found_is_searched_for_again(plan, tmp_path, searches, spoilt, how) -> None:
    resolve(plan, "discovered", tmp_path)
    path = tmp_path / spoilt
    text = path.read_text()
    if how == "deleted":
        path.unlink()
    elif how == "cut":
        path.write_text(text[: len(text) // 2])
    else:
        path.write_text(
            text.replace("L0H1", "L0H2") if spoilt == "circuit.yaml" else text.replace("greater_than", "ioi")
        )
    assert resolve(plan, "discovered", tmp_path).name == "found 2"
    assert results_io.read(tmp_path / "discovery.json")["found"] == results_io.file_digest(tmp_path / "circuit.yaml")
