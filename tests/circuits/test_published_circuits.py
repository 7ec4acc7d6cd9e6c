"""The published circuits are those of their papers, written down here a second time, and belong to the models named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from circuits import circuit as circuit_files
from circuits import models
from circuits.circuit import parse_head
from circuits.tasks.published import BUILDERS
from tests.circuits import toy

FOLDER = models.PUBLISHED
CONFIGS = Path(__file__).parents[2] / "configs" / "model"
IOI = {
    "duplicate_token": "0.1 0.10 3.0",
    "previous_token": "2.2 4.11",
    "induction": "5.5 5.8 5.9 6.9",
    "s_inhibition": "7.3 7.9 8.6 8.10",
    "name_mover": "9.6 9.9 10.0",
    "backup_name_mover": "9.0 9.7 10.1 10.2 10.6 10.10 11.2 11.9",
    "negative_name_mover": "10.7 11.10",
}
REPRODUCED = ("io", "s1", "s1_plus_1", "s2", "end")  # positions of the IOI task
CORE = {
    "duplicate_token": "0.1 3.0",
    "previous_token": "2.2 4.11",
    "induction": "5.5 6.9",
    "s_inhibition": "7.3 7.9 8.6 8.10",
    "name_mover": "9.6 9.9 10.0",
    "negative_name_mover": "10.7 11.10",
}
PUBLISHED = {
    "gpt2/ioi": IOI,
    "gpt2/variants/ioi_core": CORE,
    "gpt2/variants/ioi_positions": IOI,
    "gpt2/variants/greater_than_mlps": {"year_reader": "5.1 5.5 6.9 7.10 8.8 8.11 9.1", "year_comparator": ""},
    "gpt2/greater_than": {"year_reader": "5.1 5.5 6.9 7.10 8.8 8.11 9.1"},
    "gpt2/induction": {"previous_token": "2.2 4.11", "induction": "5.1 5.5 6.9 7.2 7.10"},
    "gpt2/gendered_pronoun": {"unlabelled": "0.10 3.0 5.8 6.6 8.6"},
    "gpt2/acronym": {
        "previous_token": "1.0 2.2 4.11",
        "propagator": "5.8",
        "letter_mover": "8.11 9.9 10.10 11.4",
    },
    "gpt2/copy_suppression": {"copy_suppression": "10.7 11.10"},
    "gpt2/subject_verb_agreement": {
        "embed": "0.4 0.8",
        "encode": "1.0 1.1 2.1 2.6",
        "route": "6.0 9.4",
        "output": "10.0 11.4 11.6 11.7",
    },
    "attn_only_4l/docstring": {"layer_0": "0.5", "layer_1": "1.2 1.4", "layer_2": "2.0", "layer_3": "3.0 3.6"},
}
STEPS = {  # processing steps of the roles that have one: 1 early, 4 late
    "gpt2/ioi": {"duplicate_token": 1, "previous_token": 1, "induction": 2, "s_inhibition": 3}
    | dict.fromkeys(("name_mover", "backup_name_mover", "negative_name_mover"), 4),
    "gpt2/variants/ioi_core": {"duplicate_token": 1, "previous_token": 1, "induction": 2, "s_inhibition": 3}
    | dict.fromkeys(("name_mover", "negative_name_mover"), 4),
    "gpt2/variants/ioi_positions": {"duplicate_token": 1, "previous_token": 1, "induction": 2, "s_inhibition": 3}
    | dict.fromkeys(("name_mover", "backup_name_mover", "negative_name_mover"), 4),
    "gpt2/variants/greater_than_mlps": {"year_reader": 1, "year_comparator": 4},
    "gpt2/greater_than": {"year_reader": 1},
    "gpt2/induction": {"previous_token": 1, "induction": 2},
    "gpt2/acronym": {"previous_token": 1, "propagator": 2, "letter_mover": 4},
    "gpt2/copy_suppression": {"copy_suppression": 4},
}
SOURCES = {  # whose circuit it is, as its name and its provenance have to say
    "gpt2/subject_verb_agreement": ("Africa 2025", "Africa (2025), arXiv 2506.22105"),
    "gpt2/gendered_pronoun": ("Mathwin and Corlouer 2023", "Mathwin and Corlouer (2023)"),
}
SHAPES = {"gpt2": (12, 12), "attn_only_4l": (4, 8)}
SIZES = {
    "gpt2/ioi": 26,
    "gpt2/variants/ioi_positions": 26,
    "gpt2/variants/ioi_core": 15,
    "gpt2/acronym": 8,
    "gpt2/subject_verb_agreement": 12,
}
AGAINST_THE_ANSWER = {
    (f"gpt2/{name}", "negative_name_mover") for name in ("ioi", "variants/ioi_core", "variants/ioi_positions")
}


def test_these_are_all() -> None:
    assert {str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.yaml")} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_heads_signs_and_mlps(name) -> None:
    found = circuit_files.load(FOLDER / f"{name}.yaml").check(*SHAPES[name.partition("/")[0]])
    heads = {role: " ".join(f"{h.layer}.{h.index}" for h in found.roles[role].heads) for role in found.roles}
    assert heads == PUBLISHED[name]
    assert len(found.heads) == SIZES.get(name, len(found.heads))
    assert {role for role in found.roles if found.roles[role].sign < 0} == {
        r for n, r in AGAINST_THE_ANSWER if n == name
    }
    assert found.mlps == ((8, 9, 10, 11) if name == "gpt2/greater_than" else ())
    assert found.task in BUILDERS and found.task in name
    assert {"kind", "source", "split", "fidelity"} <= set(found.provenance)
    assert found.provenance["kind"] == "published"


def test_what_the_sources_say_of_mlps_and_positions() -> None:
    """The default claims stay about heads; the variants claim the MLPs, and the position of every role."""
    where = {"induction": "s2", "duplicate_token": "s2", "previous_token": "s1_plus_1"}
    placed = circuit_files.load(FOLDER / "gpt2" / "variants" / "ioi_positions.yaml").check(12, 12, REPRODUCED)
    assert not placed.judges_mlps and {node.position for node in placed.nodes} == {"end", "s2", "s1_plus_1"}
    for name, role in placed.roles.items():
        assert {node.position for node in role.nodes} == {where.get(name, "end")}
    widened = circuit_files.load(FOLDER / "gpt2" / "variants" / "greater_than_mlps.yaml")
    assert [node.name for node in widened.roles["year_comparator"].nodes] == ["M8", "M9", "M10", "M11"]
    assert widened.judges_mlps and widened.mlps == () and widened.mlp_layers == (8, 9, 10, 11)
    for name in ("ioi", "greater_than"):
        assert not circuit_files.load(FOLDER / "gpt2" / f"{name}.yaml").judges_mlps


@pytest.mark.parametrize("name", PUBLISHED)
def test_steps_of_the_roles_are_on_the_one_scale(name) -> None:
    found = circuit_files.load(FOLDER / f"{name}.yaml")
    steps = {role: found.roles[role].ordinal for role in found.roles if found.roles[role].ordinal is not None}
    assert steps == STEPS.get(name, {})
    assert set(steps.values()) <= set(circuit_files.STEPS)


@pytest.mark.parametrize("name", SOURCES)
def test_the_authors_are_named(name) -> None:
    found, (called, source) = circuit_files.load(FOLDER / f"{name}.yaml"), SOURCES[name]
    assert found.name == f"{found.task} {called}"
    assert found.provenance["source"].startswith(source)
    page = (FOLDER.parents[1] / "docs" / "real-models.md").read_text(encoding="utf-8")
    assert f"| `{name}` | {len(found.heads)} | {called} |" in page


def test_no_head_is_called_late_that_the_report_s_late_group_cannot_hold() -> None:
    """The report's late group writes the logits; none of the five heads lies above layer 8, so the file names no such role."""
    found = circuit_files.load(FOLDER / "gpt2" / "gendered_pronoun.yaml")
    assert max(node.layer for node in found.heads) == 8 and set(found.roles) == {"unlabelled"}
    assert "could not be checked" in found.provenance["fidelity"]


def test_pathways_of_ioi_are_those_of_the_figure() -> None:
    ways = {str(way) for way in circuit_files.load(FOLDER / "gpt2" / "ioi.yaml").pathways}
    movers = ("name_mover", "backup_name_mover", "negative_name_mover")
    assert ways == {
        "duplicate_token->s_inhibition.v",
        "previous_token->induction.k",
        "induction->s_inhibition.v",
        *(f"s_inhibition->{mover}.q" for mover in movers),
        *(f"{mover}->logits" for mover in movers),
    }


def test_the_model_brings_its_published_circuits_and_its_folder_s_own_come_first(folder) -> None:
    settings = {"name": "gpt2", "kind": "hub", "path": str(folder("gpt2")), "published": "gpt2"}
    assert models.identify(settings).origin == "folder gpt2"
    found = models.identify(settings).circuits
    assert set(found) == {path.stem for path in (FOLDER / "gpt2").glob("*.yaml")}
    assert found["greater_than"] == toy.circuit("greater_than")  # the folder has one of its own
    assert found["ioi"].name == "ioi Wang et al. 2022"


def test_facts_that_the_doctor_checks_of_gpt2() -> None:
    document = yaml.safe_load((CONFIGS / "gpt2.yaml").read_text())
    facts = {
        score: (fact["top"], [(h.layer, h.index) for h in map(parse_head, fact["heads"])])
        for score, fact in document["self_tests"].items()
    }
    assert facts == {
        "previous_token": (2, [(4, 11), (2, 2)]),
        "induction": (5, [(5, 5), (6, 9)]),
        "duplicate_token": (3, [(3, 0), (0, 1)]),
    }
    assert document["revision"] == "607a30d783dfa663caf39e06633721c8d4cfcd7e"


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_a_hub_model_of_ours_is_pinned(name) -> None:
    document = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    assert (document["name"], document["kind"], document["repository"]) == (name, "hub", f"openai-community/{name}")
    assert len(document["revision"]) == 40 and int(document["revision"], 16)
