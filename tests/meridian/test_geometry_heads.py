"""The heads of a trace (180) on the page of a geometry folder: every effect with its source, the named ones first."""

from __future__ import annotations

import pytest

import results_io
from meridian.report import geometry_heads, geometry_page


def effect(quantity, estimate):
    low, high = estimate - 0.05, estimate + 0.05
    return {"quantity": quantity, "estimate": estimate, "low": low, "high": high, "inner": [low, high]}


def head(name, kind, position, spread):
    effects = [effect("position good against bad", position), effect("spread", spread)]
    return {"head": name, "kind": kind, "position": "moved", "spread": "stayed", "effects": effects}


@pytest.fixture
def folder(tmp_path):
    heads = [head("L0H0", "", 0.01, 0.02), head("L0H1", "undecided", 0.9, 0.1), head("L1H2", "trait", 0.3, 0.0)]
    results_io.write(
        tmp_path / "180_trace.json",
        {
            "number": "180",
            "id": "trace",
            "kind": "geometry",
            "subject": {
                "model": "m",
                "identity": {},
                "model_fingerprint": "0" * 64,
                "constructs": {},
                "settings": {"level": 0.95, "trace_margin": 0.1, "trace_resamples": 2000},
            },
            "n": {"sets": 1},
            "data": {
                "mine": {
                    "constructs": 8,
                    "recipe": "mean",
                    "heads": heads,
                    "named": {},
                    "left_out": {"framing cook": "one construct does not ask it"},
                },
                "other": {"reason": "7 topics; a trace takes them as its sample and needs at least 8"},
            },
            "records": [],
        },
    )
    return tmp_path


def test_named_heads_come_first_and_every_effect_has_its_source(folder):
    heads, effects = geometry_heads.tables(folder)
    assert [row[0].text for row in heads.rows] == ["L1H2", "L0H1", "L0H0"]
    assert [row[1].text for row in heads.rows] == ["trait", "undecided", "–"]
    shown = heads.rows[0][4]
    assert (shown.text, shown.value, shown.note) == ("0.3 [0.25, 0.35]", 0.3, "position good against bad")
    assert (shown.source.file, shown.source.field) == ("180_trace.json", "data.mine.heads[2].effects[0].estimate")
    assert heads.rows[1][5].source.field == "data.mine.heads[1].effects[1].estimate"  # tau^2
    assert [row[2].text for row in effects.rows] == ["position good against bad", "tau²"] * 3
    assert effects.rows[0][4].text == "[0.25, 0.35]"


def test_what_is_left_out_and_sets_that_were_not_traced_are_named_with_the_reason(folder):
    text = geometry_heads.tables(folder)[0].text
    assert "beyond 0.1 on either side" in text and "divided by the scale of a set that fixes one" in text
    assert "Of mine, framing cook is left out: one construct does not ask it." in text
    assert "other was not traced: 7 topics; a trace takes them as its sample and needs at least 8." in text


def test_the_page_of_a_folder_with_a_trace_shows_it(folder, monkeypatch):
    """Result 180 stood in the folder and nowhere on its page."""
    monkeypatch.setattr(geometry_page.geometry, "documents", lambda _: {})
    monkeypatch.setattr(geometry_page.geometry, "build", lambda _: ())
    assert [table.name for table in geometry_page.of(folder, "mine").shown_tables] == ["heads", "effects"]


def test_a_folder_without_a_trace_has_no_such_tables(tmp_path):
    assert geometry_heads.tables(tmp_path) == ()
