"""The groups that P.completeness and P.outside name: in the certificate, and in the terminal at any width."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from calibrations import certificate, certificate_table, worst_groups
from calibrations.rules import Standing
from calibrations.worst_groups import WorstGroups

RULES = yaml.safe_load((Path(__file__).parents[2] / "configs" / "certificate" / "tiers.yaml").read_text())
MANY = [[layer, head] for layer in range(2) for head in range(7)]
HEADLINE = {"subject": "ioi on pocket", "data": "360 prompts", "faithfulness": "0.90", "outside": "L0H2 noising 4.61"}


def group(heads, circuit: float, model: float, score: float = 0.1) -> dict[str, Any]:
    """A row of by_recipe, as `claim_completeness` stores it."""
    inc = circuit - model
    sizes = {"lost_by_circuit": circuit, "lost_by_model": model, "incompleteness": inc, "published_score": score}
    return {"name": "grown, mean", "kind": "greedy", "heads": heads, "ci90": [inc - 0.05, inc + 0.05], **sizes}


def recipe(normaliser: float, *groups) -> dict[str, Any]:
    return {"normaliser": normaliser, "groups": list(groups)}


def outside(kind: str, side: str, heads, share: float) -> dict[str, Any]:
    about = {"kind": kind, "side": side, "recipe": "resample", "heads": heads}
    return {**about, "share": share, "ci90": [share - 0.02, share + 0.02]}


MEAN = recipe(3.2, group([[0, 1]], 0.61, 0.48), group([[0, 2]], 0.30, 0.29))
RESAMPLE = recipe(2.9, group(MANY, 0.70, 1.02, 0.04))
ZERO = recipe(4.0, group([[1, 1]], 0.10, 1.10, 0.5))
RECORDS = [
    {"metric": "P.faithfulness", "companions": {"recipes": ["mean", "resample"]}},
    {
        "metric": "P.completeness",
        "companions": {
            "limit": 0.2,
            "by_recipe": {"mean": MEAN, "resample": RESAMPLE},
            "worst_by_template": {"ABBA": -0.79, "BABA": 0.05},
        },
    },
    {
        "metric": "P.completeness_every_recipe",
        "companions": {"limit": 0.2, "by_recipe": {"mean": MEAN, "resample": RESAMPLE, "zero": ZERO}},
    },
    {
        "metric": "P.outside",
        "companions": {
            "limits": {"head or greedy set": 0.1, "all of one sign": 0.2},
            "worst": [
                outside("head", "model", [[2, 0]], -0.09),
                outside("greedy", "circuit", [[2, 0], [2, 3]], 0.13),
                outside("positive", "model", MANY, 0.15),
                outside("negative", "circuit", [[3, 1]], -0.01),
            ],
        },
    },
]


def stored(records=RECORDS) -> dict[str, Any]:
    return json.loads(json.dumps({worst_groups.STORED: worst_groups.named(records).to_dict()}))


def test_every_group_is_kept_once_those_of_tier_two_first_and_the_largest_of_each_first() -> None:
    found = WorstGroups.read(stored())
    assert [(one.recipe, one.heads_text[:4]) for one in found.claimed] == [
        ("resample", "L0H0"),  # -0.32
        ("mean", "L0H1"),  # 0.13
        ("mean", "L0H2"),  # 0.01
        ("zero", "L1H1"),  # -1.00, but only P.completeness_every_recipe asks for it
    ]
    assert [one.gate for one in found.claimed] == ["P.completeness"] * 3 + ["P.completeness_every_recipe"]
    assert [round(one.in_limits, 2) for one in found.claimed] == [-1.6, 0.65, 0.05, -5.0]
    assert [(one.name, one.limit, round(one.in_limits, 2)) for one in found.outside] == [
        ("worst set", 0.1, 1.3),
        ("head", 0.1, -0.9),
        ("all outside heads that help", 0.2, 0.75),
        ("all outside heads that hurt", 0.2, -0.05),
    ]
    assert found.normalisers == {"mean": 3.2, "resample": 2.9, "zero": 4.0}
    assert found == worst_groups.named(RECORDS)


def test_gates_that_judged_nothing_name_nothing() -> None:
    silent = [{"metric": record["metric"], "companions": {}} for record in RECORDS]
    assert WorstGroups.read(stored(silent)) == WorstGroups() == WorstGroups.read({})
    assert certificate_table.group_tables(WorstGroups()) == []


def test_one_template_has_no_range() -> None:
    assert (
        worst_groups.named(RECORDS).template_text
        == "By template, inc of the first runs from -0.79 (ABBA) to 0.050 (BABA)."
    )
    alone = WorstGroups(by_template={"ABBA": 0.1})
    assert alone.template_text == WorstGroups().template_text == ""


def folded(tier: int, name: str) -> dict[str, Any]:
    about = {"tier": tier, "tier_name": name, "of": 4, "ceiling": 4, "blocking": {}, "warnings": []}
    about["rules"] = Standing("0.3", "x").to_dict()
    reason = "incomplete: without " + " ".join(f"L{layer}H{head}" for layer, head in MANY) + " the circuit loses 0.70"
    gate = {"metric": "P.completeness_every_recipe", "verdict": "inconclusive", "gating": True, "reasons": [reason]}
    gate |= {"estimate": -0.321, "ci90": [-0.4321, -0.0321]}
    rows = [{"id": "S1", "title": "distributional characterization", "verdict": "not run", "records": []}]
    return {**about, "preconditions": [gate], "rows": rows, **stored()}


def terminal(document: dict[str, Any], width: int) -> list[str]:
    text = io.StringIO()
    certificate_table.show(document, HEADLINE, Console(file=text, width=width))
    return text.getvalue().splitlines()


TIERS = [
    (tier, name.format(recipe=recipe) + labels)
    for tier, name in enumerate(RULES["names"])
    for recipe in certificate.RECIPE_NAMES.values()
    for labels in ([""] if tier < 3 else ["", ", labels untested"])
]


@pytest.mark.parametrize(("tier", "name"), dict.fromkeys(TIERS))
def test_the_name_of_a_tier_is_whole_on_a_line_of_eighty_columns(tier, name) -> None:
    assert f"Tier {tier} of 4: {name}" in terminal(folded(tier, name), 80)


@pytest.mark.parametrize("width", [80, 100, 130, 160])
def test_the_terminal_cuts_nothing_and_shows_both_losses(width) -> None:
    lines = terminal(folded(2, "supported under zero"), width)
    text = " ".join(" ".join(lines).split())
    assert "…" not in text and all(len(line) <= width for line in lines)
    assert "-0.32 [-0.43, -0.032]" in text and "inconclusive" in text and "the circuit loses 0.70" in text
    claimed, left_out = (
        next(i for i, line in enumerate(lines) if line.startswith(start)) for start in ("What c", "What h")
    )
    cells = [" ".join(line.split()) for line in lines]
    assert any(line.endswith("resample 0.70 1.02 -0.32 [-0.37, -0.27] 0.040") for line in cells[claimed:left_out])
    assert "L0H1 mean 0.61 0.48 0.13 [0.080, 0.18] 0.10" in cells[claimed:left_out]
    assert "L2H0 L2H3 the circuit with them resample 0.13 [0.11, 0.15]" in cells[left_out:]
    assert "L0H2 noising 4.61" in cells
    assert "3.20 under mean, 2.90 under resample" in text


def test_what_a_failed_gate_needs_is_said() -> None:
    """A fuller claim is something to act on; a fail without a remedy stays a bare fail."""
    gate = {"metric": "P.outside", "verdict": "fail", "reason": "left_out", "needs": "a claim that accounts for L2H0"}
    gate |= {"split": "evaluation"}
    bare = {**gate, "metric": "C17.discriminant_validity", "needs": None}
    document = {**folded(2, "supported under zero"), "blocking": {"3": [gate, bare]}}
    said = "Blocks tier 3: P.outside (fail: needs a claim that accounts for L2H0), C17.discriminant_validity (fail)"
    assert certificate_table.blocking_lines(document) == [said]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("follows_from: P.outside, C14.d_prime", "insufficient, it follows from P.outside, C14.d_prime"),
        ("follows from: P outside, C14 d'", "insufficient, it follows from P outside, C14 d'"),  # as in_words has it
        ("n_prompts: 58 prompts; at least 90", "insufficient, n_prompts"),
        ("too few prompts: 58 prompts; at least 90", "insufficient, too few prompts"),
        ("zero_variance", "insufficient, zero_variance"),
    ],
)
def test_a_gate_that_could_not_decide_says_for_want_of_what(reason, said) -> None:
    gate = {"metric": "M93", "verdict": "insufficient", "reason": reason, "needs": None, "split": "evaluation"}
    document = {**folded(2, "supported under zero"), "blocking": {"4": [gate]}}
    assert certificate_table.blocking_lines(document) == [f"Blocks tier 4: M93 ({said})"]


def test_a_set_of_heads_is_shown_once_under_the_recipe_where_it_is_worst() -> None:
    twice = [dict(record) for record in RECORDS]
    both = {"mean": recipe(3.0, group(MANY, 0.7, 1.0)), "resample": recipe(3.0, group(MANY, 0.6, 1.1))}
    twice[1] = {"metric": "P.completeness", "companions": {"limit": 0.2, "by_recipe": both}}
    twice[2] = {"metric": "P.completeness_every_recipe", "companions": {}}
    (_, table, note), _ = certificate_table.group_tables(worst_groups.named(twice))
    assert table.row_count == 1 and list(table.columns[1].cells) == ["resample"] and note == ""
