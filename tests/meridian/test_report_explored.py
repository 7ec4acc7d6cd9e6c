"""What the report answers when it is asked: heads, prompts, disagreements, and where each number stands, against the results."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
import yaml

import results_io
from calibrations.certificate_row import MetricRow
from calibrations.number_format import interval_text, number, three_digits
from calibrations.worst_groups import WorstGroups
from meridian import certificate_lines, figures, report, worst_recipe
from meridian.figures import colours
from meridian.figures.names import in_sentence
from meridian.figures.values import CircuitGraph, Forest, GraphEdge, GraphNode, HeatMap
from meridian.report import (
    certificate_section,
    disagreement,
    explored,
    first_screen,
    head_facts,
    number_links,
    prompt_table,
    sources,
)
from meridian.report.figure_numbers import numbers_of
from meridian.report.sources import FieldSource
from meridian.run_folder import RunFolder
from tests.meridian.judged import RULES, judged

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\n\u202e<!--\u2028"
PROSE = (
    ".reason",
    ".reasons",
    ".needs",
    "headline.data",
    "headline.subject",
    "headline.faithfulness",
    "headline.outside",
    "by_template",
)
LINK = re.compile(r'<a class="n" href="#([^"]*)">([^<]*)</a>')


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory) -> RunFolder:
    return RunFolder.open(judged(finished, tmp_path_factory.mktemp("judged") / "run"))


@pytest.fixture(scope="module")
def written(run) -> str:
    return report.render(run)


@pytest.fixture(scope="module")
def data(written) -> dict[str, Any]:
    return json.loads(re.search(r'id="data">(.*?)</script>', written, re.DOTALL)[1])


@pytest.fixture(scope="module")
def measured(run) -> list[head_facts.Method]:
    return head_facts.methods(run, figures.by_section(run)["heads"])


def resolved(run: RunFolder, source: FieldSource) -> Any:
    """What stands at a source: a field by its names and places; with a star the list over that index."""
    found = [results_io.read(run.path / source.file)]
    for name, place, key in re.findall(r'([^.\[\]]+)|\[(\d+|\*)\]|\["([^"]+)"\]', source.field):
        if place == "*":
            found = list(found[0])
        else:
            found = [one[int(place)] if place else one[key or name] for one in found]
    return found if "*" in source.field else found[0]


def links(text: str) -> Iterator[tuple[FieldSource, str]]:
    for address, shown in LINK.findall(text):
        told = {name: values[0] for name, values in parse_qs(address.replace("&amp;", "&")).items()}
        yield FieldSource(told["json"], told["field"], told.get("made", "")), shown


def test_every_number_stands_in_the_file_and_field_that_it_names(run, written) -> None:
    checked, in_words = 0, 0
    for source, shown in links(written):
        value = resolved(run, source)
        if source.field in ("tier", "of"):
            assert shown == str(value)
        elif source.field.endswith(PROSE):
            whole = re.compile(rf"(?<![\w.,]){re.escape(shown)}(?![\w]|[.,]\d)")  # no part of another number
            assert any(whole.search(said) for said in _sentences(value)), (source, shown)
            in_words += 1
        elif isinstance(value, float | int) and not isinstance(value, bool):
            assert (
                shown == three_digits(value)
                or shown.startswith(number(value))
                or shown.split()[-1] == number(value)
                or number(value) in shown
            ), source
            checked += 1
        elif "*" in source.field:
            rows = slice(None) if source.made == number_links.OVER_STORED else run.evidence.rows
            mean = float(np.asarray(value, float)[rows].mean())
            assert shown in (number(mean), three_digits(mean)), source
            checked += 1
    assert checked > 200  # estimates, published values, losses, shares, recipes, probabilities, effects
    assert in_words > 60
    stored = [record for row in run.certificate["rows"] for record in row["records"]]
    fields = {source.field for source, _ in links(written) if source.file == "certificate.json"}
    estimates = [MetricRow.read(record) for record in (*stored, *run.certificate["preconditions"])]
    own = [one for one in estimates if one.estimate is not None and worst_recipe.of(run, one) is None]
    assert sum(field.endswith(".estimate") for field in fields) == len(own)


def test_numbers_below_figures_are_links(run, written) -> None:
    """Each estimate; not numbers that are drawn again, or of attention on one prompt. An interval is not part of its link."""
    tables = dict(re.findall(r'aria-label="Numbers of ([^"]*)">(.*?)</table>', written, re.DOTALL))
    drawn = figures.by_section(run)
    linked = number_links.of(run, drawn)
    without = {"distributions", "patterns"}
    named = [figure for section, group in drawn.items() if section not in without for figure in group.values()]
    kinds = {figure.name.rstrip("_0123456789") for figure in named}
    assert {"circuit", "completeness_groups", "outside_groups", "outside_effects", "forest_calibrations"} < kinds
    assert {"forest_recipes", "forest_templates", "lens_probability", "lens_logit_diff_by_position"} < kinds
    assert {"lens_example", "trace_residual", "sites_mlp", "heads_02_denoising"} < kinds
    for figure in named:
        rows = numbers_of(figure).rows
        there = [at for at in linked[figure.name] if any(map(str.isdigit, rows[at[0]][at[1]]))]
        asked = [(row, column) for row, cells in enumerate(rows) for column in _of_estimates(figure, cells)]
        assert sorted(there) == asked != [], figure.name
        found = list(links(tables[html.escape(figure.title)]))
        assert len(found) == len(there), figure.name
        assert all("[" not in shown for _, shown in found)
        if isinstance(figure, HeatMap):
            for (row, column), (source, _) in zip(there, found, strict=True):
                value = resolved(run, source)
                if "*" in source.field:
                    value = float(np.asarray(value, float)[run.evidence.rows].mean())
                assert value == pytest.approx(figure.values[row][column - 1], rel=1e-6, abs=1e-9), source
    assert not any(linked.get(name) for section in without for name in drawn[section])


def test_only_the_number_of_a_cell_is_a_link() -> None:
    source = FieldSource("04_logit_lens.json", "data.x[0]")
    for cell, linked in (
        ("0.98", "0.98"),
        ("-0.12 [-0.2, -0.04]", "-0.12"),
        (" Mary 0.98", "0.98"),
        ("3 1", "1"),
        (" [ 0.5", "0.5"),
        ("a [1, 2] 0.5 [0.4, 0.6]", "0.5"),
        ("1.2e-05", "1.2e-05"),
        ("–", None),
    ):
        shown = str(report.linked(cell, source, frozenset()))
        assert html.unescape(re.sub("<[^>]*>", "", shown)) == cell
        assert re.findall(r'<a class="n"[^>]*>([^<]*)</a>', shown) == ([] if linked is None else [linked]), cell


def _of_estimates(figure: Any, cells: tuple[str, ...]) -> list[int]:
    """The columns of a row that hold estimates."""
    if isinstance(figure, Forest):
        return [2]
    if isinstance(figure, CircuitGraph):
        return [4] if cells[0] == "edge" or re.fullmatch(r"L\d+H\d+", cells[1]) else []
    return [column for column, cell in enumerate(cells) if column and any(map(str.isdigit, cell))]


def _sentences(value: Any) -> list[str]:
    """What a field of words says: itself, each of a list, or numbers as a sentence writes them."""
    if isinstance(value, dict):
        return [
            *value,
            *(number(inner["incompleteness"] if isinstance(inner, dict) else inner) for inner in value.values()),
        ]
    return [value] if isinstance(value, str) else value


def test_no_number_in_a_reason_or_a_fact_is_without_a_link(run, written) -> None:
    """Reasons, what they need, and the facts below the first screen, read without what links hold."""
    sentences = re.findall(r'class="why">(.*?)</(?:td|span)>', written, re.DOTALL)
    facts = re.search(r'<div class="facts">.*?</div>', written, re.DOTALL)
    assert len(sentences) > 20 and facts
    bare = [re.sub(r"<a .*?</a>|<[^>]*>", "", one, flags=re.DOTALL) for one in (*sentences, facts[0])]
    assert [one for one in bare if re.search(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", html.unescape(one))] == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("reaches down to -0.37, below 0.8; 2nd of 32", ["-0.37", "0.8", "32"]),
        ("L0H2 and M3b: 1,024 of 1e-05.", ["1,024", "1e-05"]),
        ("its '12' [0.89, 0.92]", ["12", "0.89", "0.92"]),
        ("meta/llama-3 and a/2/b at version 2.5.1: 3-5 of 12/32, -0.5.", ["3", "5", "12", "32", "-0.5"]),
    ],
)
def test_numbers_of_a_sentence_become_links_and_names_do_not(text: str, numbers: list[str]) -> None:
    told = str(report.with_sources(text, FieldSource("a.json", "b"), frozenset({"L0H2"})))
    assert re.findall(r'<a class="n" href="#json=a.json&amp;field=b">(.*?)</a>', told) == numbers
    assert html.unescape(re.sub("<[^>]*>", "", told)) == text and ("head=L0H2" in told) == ("L0H2" in text)


def test_a_command_in_a_sentence_is_set_as_code(written) -> None:
    assert "<code>python run.py suite=all</code> makes them." in written
    assert "<code>python run.py geometry=all</code> makes them." in written
    said = report.with_commands("<b> python run.py task=failures traces")
    assert str(said) == "&lt;b&gt; <code>python run.py task=failures</code> traces"
    for text, code in {
        "run python run.py suite=file suite.path=a/b model=local.": "python run.py suite=file suite.path=a/b model=local",
        "(python run.py judge do=grade)": "python run.py judge do=grade",
        "python run.py shadow follow=x.jsonl shadow.rate=0.1, then look": "python run.py shadow follow=x.jsonl shadow.rate=0.1",
        "python run.py is the command": None,
        "python run.py model=<name> x": "python run.py model=&lt;name&gt;",
    }.items():
        assert re.findall("<code>(.*?)</code>", str(report.with_commands(text))) == ([] if code is None else [code])


def test_verdicts_are_counted_as_in_the_terminal_and_groups_beyond_their_limit_too(run, written) -> None:
    assert f"<p>{certificate_lines.verdicts(run.certificate).plain}. " in written
    beyond = [abs(group["incompleteness"]) > group["limit"] for group in run.certificate["worst_groups"]["claimed"]]
    rest = sum(beyond[certificate_section.FIRST_GROUPS :])
    assert rest and f"<details><summary>The other {len(beyond) - certificate_section.FIRST_GROUPS} groups" in written
    assert f"last; {rest} of them are beyond the limit</summary>" in written
    folded = WorstGroups.read(run.certificate).claimed[certificate_section.FIRST_GROUPS :]
    farthest = max(folded, key=lambda group: abs(group.incompleteness) / group.limit)
    (named,) = re.findall('<p id="farthest-group">(.*?)</p>', written)
    said = html.unescape(re.sub("<[^>]*>", "", named))
    assert f"{farthest.heads_text} under {farthest.recipe_text}: inc {farthest.incompleteness_text}." in said
    assert farthest.gate.replace("_", " ") in said


def test_an_address_brings_its_parts_back_whatever_they_hold() -> None:
    source = FieldSource("a b.json", 'heads["0.1"].x[3]', "mean & more = 100 %")
    (address,) = re.findall("^#(.*)", source.address)
    told = {name: values[0] for name, values in parse_qs(address).items()}
    assert told == {"json": source.file, "field": source.field, "made": source.made}
    assert "made" not in FieldSource("a.json", "b").address


def test_every_figure_names_the_files_that_it_was_drawn_from(run) -> None:
    for name, figure in figures.of(run).items():
        found = sources.of_figure(run, figure)
        assert found or not sources.NAMED.search(figure.caption), name
        assert all((run.path / source.file).is_file() for source in found)
        assert all(resolved(run, source) is not None for source in found), name
    fields = {name: [one.field for one in sources.of_figure(run, figure)] for name, figure in figures.of(run).items()}
    assert fields["heads_02_noising"] == ["data.noising"] and fields["lens_probability_by_position"] == [
        "data.by_position.probability"
    ]
    assert fields["sites_mlp"] == ["data.sites.denoising.mlp"] and fields["circuit"] == ["data.noising"]
    assert fields["outside_groups"] == ["worst_groups.outside"]


def test_effects_have_the_maps_intervals_and_ranks_by_size(run, measured, data) -> None:
    by_key = {method.key: method for method in measured}
    noising = by_key["02.noising"]
    means = run.evidence.head_effect("02", "noising").mean(axis=0)
    assert noising.values == pytest.approx(means)
    order = np.argsort(-np.abs(means), kind="stable")
    assert [noising.ranks[place] for place in order] == list(range(1, len(means) + 1))
    assert all(low < value < high for low, value, high in zip(noising.low, noising.values, noising.high, strict=True))
    shown = next(method for method in data["methods"] if method["key"] == "02.noising")
    assert shown["values"] == pytest.approx(means, rel=1e-5) and shown["ranks"] == list(noising.ranks)
    assert resolved(run, noising.source(3))[0] == run.data("02")["noising"][0][3]
    assert {key for key, method in by_key.items() if method.is_effect} == {
        "02.denoising", "02.noising", "03.attribution", "05.natural_indirect", "05.natural_direct", "05.interaction",
        "08.effect", "21.effect",
    }  # fmt: skip


def test_ranks_leave_out_what_is_missing_and_keep_the_order_of_equals() -> None:
    assert head_facts.ranks([1.0, None, -3.0, 1.0, 0.0]) == (2, None, 1, 3, 4)
    assert head_facts.ranks([]) == () and head_facts.ranks([None]) == (None,)


def test_a_head_has_its_role_its_own_evidence_and_the_verdicts_that_name_it(run, data) -> None:
    for name, spec in run.circuit["roles"].items():
        for layer, head in spec["heads"]:
            told = data["roles"][f"L{layer}H{head}"]
            assert told["role"] == name and f"L{layer}H{head} " in told["evidence"]
            assert told["evidence"].count(";") == 0
    assert set(data["roles"]) == {f"L{layer}H{head}" for layer, head in run.evidence.circuit_heads}
    for record in (r for row in run.certificate["rows"] for r in row["records"]):
        for name in {head for reason in record["reasons"] for head in head_facts.HEAD.findall(reason)}:
            assert in_sentence(record["metric"]) in {one["metric"] for one in data["verdicts"][name]}
    for name, verdicts in data["verdicts"].items():
        for one in verdicts:
            assert resolved(run, FieldSource(one["json"], one["field"])) is not None
            if one["metric"] == "M3b.no_idle_heads" and one["text"].startswith("this head"):
                assert one["text"].endswith(resolved(run, FieldSource(one["json"], one["field"]))["label"]), name


def test_methods_disagree_about_heads_outside_that_are_large_and_claimed_ones_that_are_not(run, measured) -> None:
    found = disagreement.of(run, measured)
    heads, quarter = len(run.evidence.heads), len(run.evidence.heads) // 4
    assert found.first == quarter == 8 and len(found.methods) == 5
    expected: dict[bool, set[str]] = {True: set(), False: set()}
    for method in found.methods:
        for index, pair in enumerate(run.evidence.heads):
            claimed = pair in run.evidence.roles
            holds_zero = method.low[index] is not None and method.low[index] <= 0 <= method.high[index]
            rank = method.ranks[index]
            if (claimed and (rank > heads - quarter or holds_zero)) or (not claimed and rank <= quarter):
                expected[claimed].add(f"L{pair[0]}H{pair[1]}")
    assert {one.head for one in found.outside} == expected[False]
    assert {one.head for one in found.claimed} == expected[True]
    assert all(any(said.odd for said in one.opinions) for one in (*found.outside, *found.claimed))
    groups = WorstGroups.read(run.certificate)
    for one in (*found.outside, *found.claimed):
        pair = tuple(map(int, one.head[1:].split("H")))
        own = [len(group.heads) for group in (*groups.claimed, *groups.outside) if pair in group.heads]
        said = "in none" if not own else "alone" if min(own) == 1 else f"with {min(own) - 1} others"
        assert said in one.group, (one.head, one.group)
    noising = next(one for one in found.outside if one.head == "L0H2").opinions[0]
    assert (
        noising.odd
        and noising.rank == 1
        and three_digits(noising.value)
        == three_digits(float(run.evidence.head_effect("02", "noising").mean(axis=0)[2]))
    )


def test_the_largest_head_outside_is_named_by_each_method(run, measured, written) -> None:
    found = disagreement.of(run, measured).largest
    assert [one.name for one in found] == list(disagreement.COMPARED.values())
    outside = [index for index, pair in enumerate(run.evidence.heads) if pair not in run.evidence.roles]
    for one in found:
        values = one.method.values
        index = max(outside, key=lambda index: abs(values[index]))
        assert (one.index, one.value, one.of) == (index, values[index], len(values))
        assert one.rank == 1 + sum(abs(value) > abs(values[index]) for value in values)
    page = re.search('<p id="largest-outside">(.*?)</p>', written, re.DOTALL)[1]
    said = " ".join(re.sub("<[^>]+>", "", page).split())
    assert said.startswith(
        f"By single methods, noising ranks L0H2 highest ({number(found[0].value)}, 1st of 32); denoising "
    )
    assert said.count(" ranks ") == 5 and said.endswith(" of 32).")


def test_the_head_that_matters_most_outside_is_the_one_of_the_gate(run, measured, written) -> None:
    stored = run.certificate["worst_groups"]["outside"]
    alone = [one for one in stored if one["kind"] == "head"]
    most = max(alone, key=lambda one: abs(one["share"] / one["limit"]))
    place, left = disagreement.of(run, measured).decisive
    assert (stored.index(most), left.share, left.recipe) == (place, most["share"], most["recipe"])
    page = re.search('<p id="decisive-outside">(.*?)</p>', written, re.DOTALL)[1]
    (layer, head), side = (
        most["heads"][0],
        {"circuit": "Added to the circuit, it is worth", "model": "Without it, the model loses"},
    )
    said = " ".join(re.sub("<[^>]+>", "", page).split())
    assert (
        f"matters most is L{layer}H{head}, as P.outside measures it, the gate that decides. {side[most['side']]}"
        in said
    )
    assert f"{number(most['share'])} [" in said and said.endswith(
        f"; the limit is {number(most['limit'])} on either side of 0."
    )


def test_without_methods_there_is_no_disagreement(run) -> None:
    found = disagreement.of(run, [])
    assert (found.methods, found.outside, found.claimed, found.largest, found.first) == ((), (), (), (), 0)
    assert found.decisive  # of the certificate, not of a method


def test_every_prompt_is_there_with_its_own_text_and_numbers(run) -> None:
    table = prompt_table.of(run)
    stored = run.require("01")["data"]
    assert table.id == tuple(stored["prompt_id"]) and len(set(table.text)) == len(table.text)
    for row, example in enumerate(stored["examples"]):
        text = " ".join(token for token in example["clean"] if token != example["bos"])
        assert (table.text[row] or "").replace(" ", "") == text.replace(" ", "")
        assert table.answer[row] == example["answers"][0] and table.foil[row] == example["wrong"][0]
    order = [table.id.index(stored["prompt_id"][row]) for row in run.evidence.rows]
    assert [table.circuit[row] for row in order] == pytest.approx(run.evidence.ablated("circuit"), rel=1e-5)
    assert [table.clean[row] for row in order] == pytest.approx(run.evidence.clean, rel=1e-5)
    assert table.correct == tuple(stored["correct"])


def test_a_prompt_that_the_task_does_not_give_again_has_no_text(run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    path = results_io.find(tmp_path / "run", "01")
    document = results_io.read(path)
    document["data"]["prompt_id"][3] = "0" * 16
    results_io.write(path, document)
    table = prompt_table.of(RunFolder.open(tmp_path / "run"))
    assert [row for row, text in enumerate(table.text) if text is None] == [3]
    document["data"]["row"] = [10 * place for place in range(len(table.id))]
    document["environment"]["seeds"] = {}
    results_io.write(path, document)
    table = prompt_table.of(RunFolder.open(tmp_path / "run"))
    assert set(table.text) == {None} and table.names[3] == f"row 30, {document['data']['cluster'][3]}"


def test_the_sentence_says_what_holds_and_what_the_next_tier_asks_for(run, written, tmp_path) -> None:
    kept = run.record("P.faithfulness")
    said = first_screen.why(run)
    assert number(kept["estimate"]) in said and number(kept["ci90"][0]) in said
    tier = run.certificate["tier"]
    sentence = re.search(r'<p class="because">(.*?)</p>', written, re.DOTALL)[1]
    ((source, shown),) = links(sentence)
    assert (
        resolved(run, source) == kept["estimate"]
        and shown == f"{number(kept['estimate'])}{interval_text(*kept['ci90'])}"
    )
    assert html.unescape(re.sub("<[^>]+>", "", sentence)) == said
    gate = run.certificate["blocking"][str(tier + 1)][0]
    assert first_screen.ASKED[gate["metric"]] in said and f"tier {tier + 1} {'also ' * bool(tier)}asks that " in said
    assert said.count(".") - len(re.findall(r"\d\.\d", said)) == 1  # one sentence

    def with_certificate(**changes: Any) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(run.path, folder)
        document = results_io.read(folder / "certificate.json")
        results_io.write(folder / "certificate.json", {**document, **changes})
        return first_screen.why(RunFolder.open(folder))

    assert "not shown to do the task" in with_certificate(tier=None)
    assert with_certificate(tier=4).endswith("and every gate passes.")
    for verdict, words in (("fail", ", which is not true."), ("inconclusive", ", which is not shown.")):
        assert f"{first_screen.ASKED[gate['metric']]}{words}" in with_certificate(
            tier=3, blocking={"4": [{**gate, "verdict": verdict}]}
        )
    held_out = {**gate, "metric": "P.faithfulness", "split": "held_out"}
    said = with_certificate(tier=3, blocking={"4": [held_out, gate]})
    found = "not true" if gate["verdict"] == "fail" else "not shown"
    assert f"on held-out prompts, which is {found}, and 1 more gate below blocks that tier." in said


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("difference", "said"), [(1.25, "answer to the foil"), (-1.25, "foil to the answer"), (None, "")]
)
def test_the_prompt_says_what_the_model_prefers(run, tmp_path, difference, said) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    path = results_io.find(tmp_path / "run", "01")
    document = results_io.read(path)
    if difference is None:
        document["data"]["examples"] = []
    else:
        document["data"]["clean_logit_diff"][0] = difference
    results_io.write(path, document)
    changed = RunFolder.open(tmp_path / "run")
    text = report.render(changed)
    found = first_screen.prompt(changed)
    if found is None:
        assert difference is None and 'class="example"' not in text
        return
    assert found.difference == difference and f"The model prefers the {said}: D, its logit difference, is" in text
    stored = document["data"]["examples"][0]
    assert "".join(token.text for token in found.tokens) == "".join(stored["clean"])
    assert {name: place for place, token in enumerate(found.tokens) for name in token.names.split(", ") if name} == {
        name.replace("_", " "): place for name, place in stored["positions"].items()
    }


def test_every_gate_of_the_tiers_is_said_in_plain_words() -> None:
    tiers = yaml.safe_load(RULES.read_text())["tiers"]
    gates = {gate for asked in tiers.values() for kind in ("all", "any", "not_fail") for gate in asked.get(kind, ())}
    assert gates <= set(first_screen.ASKED)
    assert first_screen.asked({"metric": "X9.unknown", "split": "evaluation"}) == "X9.unknown passes"


def test_what_did_not_pass_comes_first_by_severity_and_the_rest_is_folded(run, written) -> None:
    first, passed, _ = re.findall(r'<table class="cards">.*?</table>', written, re.DOTALL)
    verdicts = [re.findall(r'class="verdict ([\w-]+)"', row)[-1] for row in first.split("</tr>")[1:-1]]
    ranked = ["fail", "inconclusive", "insufficient", "not-run"]
    assert verdicts and [ranked.index(one) for one in verdicts] == sorted(ranked.index(one) for one in verdicts)
    assert {re.findall(r'class="verdict ([\w-]+)"', row)[-1] for row in passed.split("</tr>")[1:-1]} == {"pass"}
    before = written.partition(passed)[0]
    assert before.count("<details") == before.count("</details>") + 1  # it stands inside one that is closed


def test_hostile_text_is_neither_markup_nor_the_end_of_the_data(run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    for number_of, change in (("01", _hostile_prompts), ("20", _hostile_role), ("25", _hostile_tokens)):
        path = results_io.find(tmp_path / "run", number_of)
        document = results_io.read(path)
        change(document["data"])
        results_io.write(path, document)
    text = report.render(RunFolder.open(tmp_path / "run"))
    block = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert not set("<>&\u2028") & set(block)
    found = json.loads(block)
    assert found["prompts"]["template"][0] == HOSTILE and found["attention"]["examples"][0]["tokens"][1] == HOSTILE
    assert HOSTILE in {told["role"] for told in found["roles"].values()}
    assert "<img" not in text.replace("&lt;img", "") and text.count("</script>") == 4


def _hostile_prompts(data: dict[str, Any]) -> None:
    first = data["template"][0]
    data["template"] = [HOSTILE if template == first else template for template in data["template"]]
    data["examples"][0]["clean"][1] = HOSTILE
    data["examples"][0]["answers"] = [HOSTILE]


def _hostile_role(data: dict[str, Any]) -> None:
    roles = data["circuit"]["roles"]
    name = next(iter(roles))
    roles[HOSTILE] = {**roles.pop(name), "evidence": HOSTILE}


def _hostile_tokens(data: dict[str, Any]) -> None:
    data["examples"][0]["tokens"][1] = HOSTILE


def test_numbers_that_are_not_finite_are_missing_or_refused() -> None:
    assert prompt_table.rounded(float("nan")) is None and prompt_table.rounded(None) is None
    assert prompt_table.rounded(1.23456789) == 1.23457 and prompt_table.rounded(-1.23456789e-9) == -1.23457e-9
    with pytest.raises(ValueError, match="not JSON compliant"):
        explored.as_json({"a": float("inf")})


def test_only_heads_of_the_model_become_links() -> None:
    known = frozenset({"L0H1"})
    text = str(report.with_heads("L0H1, L0H10 and L9H9 <b>", known))
    assert text == '<a class="head" href="#head=L0H1">L0H1</a>, L0H10 and L9H9 &lt;b&gt;'


def test_the_graph_has_the_shares_fills_and_certainty_of_the_figure(run) -> None:
    nodes = (GraphNode("L1H0", 1, "late", -1.0), GraphNode("L0H0", 0, "early", 2.0), GraphNode("logits", 2, "logits"))
    edges = (GraphEdge("L0H0", "L1H0", -4.0, "q", -5.0, -3.0), GraphEdge("L1H0", "logits", 1.0, None, -1.0, 3.0))
    graph = CircuitGraph(name="circuit", title="t", caption="c", n_layers=2, nodes=nodes, edges=edges, unit="nats")
    shown = explored.of(run, [], graph)["graph"]
    assert [(one["name"], one["share"], one["fill"]) for one in shown["nodes"]] == [
        ("L1H0", 0.5, colours.LIGHT[1]), ("L0H0", 1.0, colours.LIGHT[0]), ("logits", 0.0, colours.PLAIN)
    ]  # fmt: skip
    assert [(one["row"], one["uncertain"], one["input"]) for one in shown["edges"]] == [(1, True, ""), (0, False, "q")]
    assert shown["largest"] == 4.0
