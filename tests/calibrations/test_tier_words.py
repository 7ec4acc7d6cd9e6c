"""The tier in words: it has its name under released rules alone, wherever it is printed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from calibrations import certificate, certificate_table, tier_words
from calibrations.certificate import named_gates
from calibrations.registry import CALIBRATIONS
from calibrations.rules import RuleDifference, Standing
from meridian import notebook_certificate, overrides

RULES = overrides.group("certificate", "tiers")
RELEASED = Standing("0.3", "x")
CHANGED = Standing("0.3", "y", (RuleDifference("seed", 1, 0), RuleDifference("code calibrations/a.py", "1", "2")))
HEADLINE = dict.fromkeys(("subject", "data", "faithfulness"), "x")


def certify(standing, level=4):
    """A certificate at tier `level`: one gate of the next fails, not the behaviour."""
    failing = (
        [gate for gate in RULES["tiers"][level + 1]["all"] if gate != certificate.BEHAVIOUR][:1] if level < 4 else []
    )
    metrics = list(named_gates(RULES))
    subject = dict.fromkeys(("model", "model_sha256", "task", "prompts_sha256", "circuit", "circuit_sha256"), "x")
    documents = {}
    for identifier in dict.fromkeys(metric.partition(".")[0] for metric in metrics):
        own = [
            {"metric": metric, "verdict": "fail" if metric in failing else "pass"}
            | {"reasons": [], "needs": None, "p": 0.001, "gating": True, "companions": {}}
            for metric in metrics
            if metric.startswith(f"{identifier}.")
        ]
        worst = "fail" if any(record["verdict"] == "fail" for record in own) else "pass"
        documents[identifier] = {
            "number": CALIBRATIONS[identifier].NUMBER if identifier in CALIBRATIONS else "P",
            "subject": subject,
            "records": own,
            "data": {"verdict": worst, "held_out": own},
        }
    return {**certificate.certify(documents, RULES, standing), "headline": HEADLINE}


def printed(folded):
    console = Console(width=100, file=io.StringIO())
    certificate_table.show(folded, HEADLINE, console)
    return console.file.getvalue()


@pytest.mark.parametrize("level", range(5))
def test_released_rules_give_the_tier_its_name(level):
    folded = certify(RELEASED, level)
    name = RULES["names"][level].format(recipe="mean per template and position")
    assert (folded["tier"], folded["tier_name"]) == (level, name)
    assert tier_words.tier_text(folded) == f"Tier {level} of 4: {name}"
    assert f"Tier {level} of 4: {name}" in printed(folded) and "\nrules: released 0.3\n" in printed(folded)
    assert f"<strong>Tier {level} of 4: {name}</strong><br>rules: released 0.3<br>" in notebook_certificate.html(folded)


@pytest.mark.parametrize("standing", [CHANGED, None])
@pytest.mark.parametrize("level", range(5))
def test_other_rules_give_no_tier_its_name(level, standing):
    folded = certify(standing, level)
    recipe = ", mean per template and position" if level == 2 else ""
    name = f"under {'changed' if standing else 'unknown'} rules{recipe}"
    assert (folded["tier"], folded["tier_name"]) == (level, name)
    assert f"Tier {level} of 4 {name}\nReachable with this data: tier 4" in printed(folded)
    assert f"<strong>Tier {level} of 4 {name}</strong>" in notebook_certificate.html(folded)
    for text in (printed(folded), notebook_certificate.html(folded), str(folded["tier_name"])):
        words = text.replace("certified_stability", "").replace("certified stability", "")
        assert not [name for name in RULES["names"] if name.partition(" ")[0] in words]


def test_every_difference_is_shown():
    folded = certify(CHANGED)
    assert folded["rules"]["differences"] == [
        {"key": "seed", "value": 1, "released": 0},
        {"key": "code calibrations/a.py", "value": "1", "released": "2"},
    ]
    assert "\nrules: changed from released 0.3\n  seed: 1 (released: 0)\n  code: calibrations/a.py\n" in printed(folded)
    assert "rules: changed from released 0.3<br>seed: 1 (released: 0)<br>code: calibrations/a.py<br>" in (
        notebook_certificate.html(folded)
    )


def test_an_older_certificate_that_says_nothing_of_its_rules_has_no_name_for_its_tier():
    older = {name: value for name, value in certify(RELEASED).items() if name != "rules"}
    assert older["tier_name"] == "certified"
    assert tier_words.tier_name(older) == "under unknown rules"
    assert tier_words.tier_text(older) == "Tier 4 of 4 under unknown rules"
    assert tier_words.tier_text({**older, "tier": None, "tier_name": "absent"}) == "No tier: absent"
    assert "rules: unknown" in printed(older)
