"""Natural circuits: which claims are tried, what a row says, and the page's table."""

from __future__ import annotations

import pytest

import results_io
from circuits import discovery
from meridian.experiments import natural_circuits
from results_io import UserError
from tests.commandline import SMALL

CONFIG = {"tasks": ["ioi"], "model": "pocket", "methods": None, "random_seeds": [0, 3], "settings": []}
GATE = {
    "metric": "P.faithfulness",
    "verdict": "fail",
    "reason": "a | b; c",
    "needs": "more prompts",
    "split": "evaluation",
}
ROWS = [
    {"task": "ioi", "claim": "stored", "heads": 14, "tier": 2, "blocked_by": [GATE]},
    {"task": "ioi", "claim": "AtP", "heads": 9, "tier": 1, "blocked_by": [{**GATE, "reason": None, "needs": None}]},
    {"task": "ioi", "claim": "EAP-IG", "heads": 32, "tier": 4, "blocked_by": []},
    {"task": "ioi", "claim": "classifier", "tier": None, "refused": "no other circuit"},
    {"task": "ioi", "claim": "random 0", "heads": 14, "tier": 0, "blocked_by": [GATE]},
]


def test_claims_are_the_stored_one_every_method_and_random_ones():
    found = natural_circuits.claims(CONFIG)
    assert list(found) == ["stored", *discovery.METHODS, "random 0", "random 3"]
    assert found["random 3"] == ["circuit=random", "circuit.seed=3"]
    assert found["AtP"] == ["circuit=discovered", "circuit.method=AtP"]
    with pytest.raises(UserError, match=r"experiment\.methods names 'ACDC'; use some of"):
        natural_circuits.claims({**CONFIG, "methods": ["ACDC"]})


def test_sentences_count_tiers_by_kind():
    assert natural_circuits.sentences(ROWS) == [
        "stored: 1 at tier 2",
        "discovered: 1 at tier 4, 1 at tier 1",
        "random: 1 at tier 0",
        "ioi, classifier: no other circuit",
        "different tiers: 4",
    ]


def test_the_table_names_the_first_gate_and_what_settles_it():
    lines = natural_circuits.table(ROWS).splitlines()[2:]
    assert lines[0] == r"| ioi | stored | 14 | 2 | P.faithfulness | a \| b (needs more prompts) |"
    assert lines[1].endswith("| 1 | P.faithfulness | fail |") and lines[2].endswith("| 4 | – | – |")
    assert lines[3] == "| ioi | classifier | – | – | – | no other circuit |"


def test_the_page_is_made_of_the_kept_result(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- natural circuits -->\nold\n<!-- /natural circuits -->\n")
    results_io.write(tmp_path / natural_circuits.FILE, natural_circuits.document(ROWS, CONFIG))
    natural_circuits.update(tmp_path, page)
    assert "- different tiers: 4\n\n| task | claim |" in page.read_text()
    assert results_io.read(tmp_path / "validation" / natural_circuits.FILE)["n"] == {"claims": 5}


@pytest.mark.slow
def test_claims_about_one_task_are_certified_one_after_the_other(tmp_path):
    own = [text for text in SMALL if not text.startswith("task=")]
    asked = {"stored": ["circuit=stored"], "random 0": ["circuit=random", "circuit.seed=0"]}
    stored, drawn = natural_circuits.certified("ioi", asked, own, tmp_path)
    assert stored["heads"] == drawn["heads"] == 14
    assert drawn["tier"] == 0 and drawn["blocked_by"]
    assert stored["tier"] in range(5) and stored["faithfulness"].startswith("Faithfulness")
    assert len(list((tmp_path / "pocket" / "ioi").glob("*/certificate.json"))) == 2
