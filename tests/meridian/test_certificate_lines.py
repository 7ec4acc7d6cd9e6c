"""The certificate in a few lines of the terminal, and the line that a progress bar leaves."""

from __future__ import annotations

import io
import re
from collections import Counter

import pytest
from rich.console import Console

from calibrations import tier_words
from calibrations.number_format import interval_text, number
from calibrations.rules import RuleDifference, Standing
from meridian import certificate_lines, commandline, reporter, tables
from meridian.report import certificate_section, first_screen
from meridian.run_folder import RunFolder
from tests.meridian.judged import judged

EVERY_RECIPE = "P.faithfulness_every_recipe"
AGAIN = "python run.py task=ioi calibration=all verbose=true"


def printed(run: RunFolder, width: int = 200) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    certificate_lines.show(run, console, AGAIN, [("Report", "results/pocket/ioi/report.html")])
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 100, 200])
def test_no_line_is_longer_than_a_hundred_columns_or_the_terminal(finished, width) -> None:
    lines = printed(RunFolder.open(finished), width)
    copied = [line for line in lines if line.startswith(certificate_lines.COPIED)]
    assert len(lines) > 6 and max(len(line) for line in lines if line not in copied) <= min(width, 100)
    assert [line.split(maxsplit=1)[1] for line in copied] == [AGAIN, "results/pocket/ioi/report.html"]  # in one piece
    assert not [line for line in lines if "…" in line]


def test_the_lines_say_tier_why_recipes_band_verdicts_command_and_path(finished, tmp_path) -> None:
    run = RunFolder.open(judged(finished, tmp_path / "run"))
    text = " ".join(" ".join(printed(run)).split())
    data, why = run.certificate["headline"]["data"], first_screen.why(run, rest="")
    assert f" {tier_words.tier_text(run.certificate)} Data {data} Why {why} Faithfulness" in text
    assert "below" not in text
    by_recipe = run.companions("P.faithfulness")["by_method"]
    told = [
        f"{number(by_recipe[name]['faithfulness'])} {name.replace('_', ' ')}"
        for name in ("mean", "zero", "mean_pooled")
    ]
    assert all(one in text for one in told) and len(by_recipe) == 5
    assert "; asked for: 0.8 to 1.2" in text
    counts = Counter(row["verdict"] for row in run.certificate["rows"])
    said = dict(reversed(pair.split(" ", 1)) for pair in re.search(r"Verdicts (.*?) of 16", text)[1].split(" · "))
    assert {verdict: int(count) for verdict, count in said.items()} == counts and sum(counts.values()) == 16
    assert f"Next {AGAIN} Report results/pocket/ioi/report.html" in text


def test_a_gate_that_judged_nothing_leaves_the_headline(finished) -> None:
    run = RunFolder.open(finished)  # forty prompts
    assert certificate_lines.faithfulness(run) == ""
    (line,) = [line for line in printed(run) if line.startswith("Faithfulness")]
    assert re.match(r"Faithfulness  [\d.]+ mean per template and position \(", line)


def test_changed_rules_are_one_line_and_released_ones_none() -> None:
    differences = tuple(RuleDifference(key, 40, 400) for key in ("prompts.evaluation", "prompts.held_out", "seed"))
    said = certificate_lines.changed(Standing("0.3", "y", differences))
    assert (
        said == "changed from released 0.3: prompts.evaluation: 40 (released: 400) and 2 more; verbose=true lists them"
    )
    assert certificate_lines.changed(Standing("0.3", "y", differences[:1])).endswith(
        "prompts.evaluation: 40 (released: 400)"
    )
    assert Standing("0.3", "x").released


def test_the_note_about_stars_needs_a_star(finished) -> None:
    run = RunFolder.open(finished)
    starred = "".join(_table(run, run.certificate))
    assert (" *" in starred.replace("* reported", "")) == ("* reported, gates no tier" in starred)
    (row,) = [row for row in run.certificate["rows"] if row["id"] == "C11"]
    records = [{**record, "gating": True} for record in row["records"]]
    alone = {**run.certificate, "preconditions": [], "rows": [{**row, "records": records}]}
    assert "C11" in "".join(_table(run, alone))
    assert not [line for line in _table(run, alone) if "* reported" in line]


def _table(run: RunFolder, certificate, width: int = 100, complete: bool = False) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    certificate_lines.show_table(run, certificate, run.certificate["headline"], console, complete)
    return console.file.getvalue().splitlines(keepends=True)


@pytest.fixture(scope="module")
def failing(finished, tmp_path_factory) -> RunFolder:
    """A run whose faithfulness under every recipe is not a pass, and whose reasons have the words of records."""
    run = RunFolder.open(judged(finished, tmp_path_factory.mktemp("failing") / "run"))
    assert run.record(EVERY_RECIPE)["verdict"] == "fail"
    return run


def test_the_whole_table_is_at_most_a_hundred_columns_wide_and_has_no_raw_words(failing) -> None:
    lines = _table(failing, failing.certificate, 160, complete=True)
    assert len(lines) > 40 and max(len(line.rstrip("\n")) for line in lines) <= 100
    start = next(place for place, line in enumerate(lines) if line.startswith("ID "))  # before it are names of settings
    text = " ".join(" ".join(lines[start:]).split())
    stored = " ".join(reason for row in failing.rows for metric in row.metrics for reason in metric.reasons)
    assert "not_faithful: " in stored and "not faithful: " in text
    assert not re.findall(r"\b[a-z]+_[a-z_]+: |without nothing|kendalls|d prime", text) and "Kendall's W" in text


def test_beside_a_fail_stands_the_recipe_that_fails(failing) -> None:
    record, intervals = failing.record(EVERY_RECIPE), failing.recipe_intervals
    by_method = record["companions"]["by_method"]
    worst = min(by_method, key=lambda recipe: intervals[recipe][0])  # none reaches as far above the band
    estimate = by_method[worst]["faithfulness"]
    assert estimate < 0.8 < record["estimate"]
    shown = f"{number(estimate)}{interval_text(*intervals[worst])}"
    text = " ".join(" ".join(_table(failing, failing.certificate, complete=True)).split())
    assert shown in text and f"worst: {worst.replace('_', ' ')})" in text
    printed_table = tables.printed(tables.certificate(failing))
    (row,) = printed_table[printed_table["quantity"].str.startswith("faithfulness every recipe")].to_dict("records")
    assert (
        row["estimate"] == shown and row["quantity"] == f"faithfulness every recipe (worst: {worst.replace('_', ' ')})"
    )
    (line,) = [one for one in certificate_section.view(failing)["lines"] if one.metric.metric == EVERY_RECIPE]
    assert (line.metric.estimate_text, line.quantity) == (shown, f"worst recipe: {worst.replace('_', ' ')}")
    assert line.source("estimate").field.endswith(f"companions.by_method.{worst}.faithfulness")
    assert line.source("reasons").file == "certificate.json"
    frame = tables.certificate(failing).frame.set_index("metric")
    assert frame.loc[EVERY_RECIPE, "estimate"] == record["estimate"]  # data files have what the record has


def test_recipes_stand_in_the_order_of_the_headline(failing) -> None:
    said = certificate_lines.faithfulness(failing).partition(";")[0]
    short = [re.sub(r"^[\d.-]+ ", "", one) for one in said.split(" · ")]
    headline = failing.certificate["headline"]["faithfulness"].partition("\n")[0]
    assert short == ["mean", "zero", "mean pooled", "resample", "noise"]
    assert [re.sub(r"^[\d.-]+ ", "", one) for one in headline.split(" · ")[1:]] == short[1:]


def test_the_next_command_is_the_one_that_was_typed() -> None:
    typed = ("task=ioi", "select=all", "verbose=false", "model=planted/sound")
    assert commandline.as_typed(typed) == ["task=ioi", "calibration=all", "model=planted/sound"]


# --- the line of a measurement -----------------------------------------------------------------------------------------


def test_a_finished_measurement_is_one_line_without_a_bar() -> None:
    made = reporter.Reporter(Console(width=100, file=io.StringIO()))
    made.tracker = lambda *event: events.append(event)  # type: ignore[assignment]
    events: list[tuple] = []
    with made.bar("10 llc") as bar:
        bar.expect(100)
        bar.advance(140)
    with made.bar("09 weights"):
        pass
    first, second = made.console.file.getvalue().splitlines()
    assert first.split()[:4] == ["10", "llc", "140", "pairs"] and second.split() == ["09", "weights", "0", "s"]
    assert max(len(first), len(second)) <= 100 and "━" not in first and "/" not in second
    assert events == [("progress", "10 llc", 140, 140, events[0][4])]  # not 140 of 100


def test_a_finished_line_is_rounded() -> None:
    assert reporter.finished_line("02 activation patching", 45_800, 40.5).split() == (
        ["02", "activation", "patching", "45,800", "pairs", "1,131/s", "40", "s"]
    )


def test_what_is_no_pair_is_not_called_one() -> None:
    made = reporter.Reporter(Console(width=100, file=io.StringIO()))
    made.tracker = lambda *event: None  # type: ignore[assignment]
    with made.counting("judgements") as bar:
        bar.advance(120)
    assert (
        made.console.file.getvalue().split()[:2] == ["judgements", "120"]
        and "pairs" not in made.console.file.getvalue()
    )
    assert made.pairs == 0 and made.rate().endswith("nothing measured anew")
    slow = reporter.finished_line("planted drift", 120, 4357.0, "")
    assert slow.split() == ["planted", "drift", "120", "4357", "s"]
    assert len(slow) == len(reporter.finished_line("02 activation patching", 45_800, 40.5))


def test_a_bar_on_a_terminal_fits_a_hundred_columns() -> None:
    stream = io.StringIO()
    made = reporter.Reporter(Console(width=100, file=stream, force_terminal=True))
    made.tracker = lambda *event: None  # type: ignore[assignment]
    with made.bar("22 minimality") as bar:
        bar.expect(186_160)
        bar.advance(1_000)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    drawn = [line for line in re.split(r"[\r\n]", plain) if "━" in line]
    assert drawn and max(len(line.rstrip()) for line in drawn) <= 100
    assert any("1,000/186,160" in line for line in drawn)
