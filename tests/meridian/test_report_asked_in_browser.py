"""The report as an instrument, in a real browser: each interaction by mouse, keyboard and touch, against the run's numbers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import results_io
from calibrations.number_format import three_digits
from meridian import report
from meridian.report import head_facts, prompt_table
from meridian.run_folder import RunFolder
from tests.meridian.in_browser import DESKTOP, NEEDS_CHROMIUM, OVERLAPS, PHONE, chromium, contrast, mixed, show, wait
from tests.meridian.judged import judged

pytest.importorskip("selenium.webdriver")
actions = pytest.importorskip("selenium.webdriver.common.action_chains")
keys = pytest.importorskip("selenium.webdriver.common.keys")
ui = pytest.importorskip("selenium.webdriver.support.ui")
pytestmark = NEEDS_CHROMIUM
HOSTILE = "</script><img src=x onerror=\"document.title='hit'\">'&\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory) -> RunFolder:
    return RunFolder.open(judged(finished, tmp_path_factory.mktemp("asked") / "run"))


@pytest.fixture(scope="module")
def written(run) -> Path:
    return report.write(run)


@pytest.fixture
def page(browser, written) -> Any:
    """The report, freshly opened on a desk."""
    show(browser, written, DESKTOP)
    yield browser
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def one(browser, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def texts(browser, selector: str) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())", selector
    )


def seen(browser, element: Any) -> Any:
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    return element


def drawn(browser, name: str) -> Any:
    place = seen(browser, one(browser, f"[data-figure='{name}']"))
    wait(lambda: place.get_attribute("data-drawn") == name, name)
    return place


def press(browser, *what: str) -> None:
    actions.ActionChains(browser).send_keys(*what).perform()


def panel_of(browser) -> str | None:
    return browser.execute_script(
        "const p = document.getElementById('panel'); return p.hidden ? null : p.querySelector('h2').firstChild.textContent"
    )


# --- the head panel ------------------------------------------------------------------------------------------------


def test_a_mention_opens_the_head_with_its_effects_intervals_and_ranks(page, run) -> None:
    assert panel_of(page) is None
    mention = seen(page, one(page, "table.disputed a.head[href='#head=L0H2']"))
    mention.click()
    wait(lambda: panel_of(page) == "L0H2", "the panel")
    assert page.execute_script("return location.hash") == "#head=L0H2"
    effects = run.evidence.head_effect("02", "noising").mean(axis=0)
    place = run.evidence.heads.index((0, 2))
    rank = 1 + int((np.abs(effects) > abs(effects[place])).sum())
    cells = next(row for row in rows(page, "#panel tbody tr") if row[0].startswith("Activation patching, noising"))
    assert cells[1].startswith(f"{float(three_digits(effects[place])):g} [") and cells[1].endswith("]")
    assert cells[2].startswith(str(rank)) and cells[2].rstrip("stndrh") == str(rank)
    assert len(texts(page, "#panel .attended")) == 3 == len(run.data("25")["examples"])
    assert "The claim does not name it." in texts(page, "#panel section")[0]
    judged_head, said = next((head, said) for head, said in head_facts.verdicts(run).items() if said)
    show(page, Path(run.path) / report.NAME, DESKTOP, f"#head={judged_head}")
    shown = texts(page, "#panel section:last-child li")
    assert len(shown) == len(said) and all(one["metric"] in text for one, text in zip(said, shown, strict=True))


def rows(browser, selector: str) -> list[list[str]]:
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(r => [...r.cells].map(c => c.textContent))", selector
    )


def test_a_claimed_head_has_its_role_evidence_and_all_its_edges(browser, written, run) -> None:
    layer, head = run.evidence.circuit_heads[-1]
    name = f"L{layer}H{head}"
    show(browser, written, DESKTOP, f"#head={name}")  # the address restores it
    assert panel_of(browser) == name
    role = next(
        (role, spec) for role, spec in run.circuit["roles"].items() if [layer, head] in [list(h) for h in spec["heads"]]
    )
    said = texts(browser, "#panel section")
    assert role[0].replace("_", " ") in said[0] and name in said[0]
    paths = run.data("28")
    into = sum(list(one) == [layer, head] for one in paths["receivers"])
    out = sum(list(one) == [layer, head] for one in paths["senders"])
    headings = texts(browser, "#panel section[aria-label=Edges] thead th:first-child")
    assert headings == [f"In: {into}"] * (into > 0) + [f"Out: {out}"] * (out > 0)
    shown = [row[2].split(" [")[0] for row in rows(browser, "#panel section[aria-label=Edges] tbody tr")]
    means = [
        mean
        for side in ("receivers", "senders")
        for mean in sorted(
            (np.mean(v) for v, end in zip(paths["noising"], paths[side], strict=True) if list(end) == [layer, head]),
            key=lambda value: -abs(value),
        )
    ]
    assert [float(text) for text in shown] == pytest.approx(means, rel=6e-3)


def test_one_selection_is_marked_in_text_graph_map_and_attention(page, run) -> None:
    layer, head = run.evidence.circuit_heads[0]
    name = f"L{layer}H{head}"
    drawn(page, "heads_02_denoising")
    page.execute_script("location.hash = arguments[0]", f"head={name}")
    wait(lambda: panel_of(page) == name, "the panel")
    assert set(texts(page, "a.head.selected")) == {name}
    marked = page.execute_script("return document.querySelectorAll('a.head.selected').length")
    assert marked == len(page.find_elements("css selector", f"a.head[href='#head={name}']")) > 3
    assert page.execute_script(
        "return [...document.querySelectorAll('.node.selected')].map(e => e.dataset.node)"
    ) == [name] * 2  # fmt: skip
    assert page.execute_script("return [...document.querySelectorAll('.tile.selected')].map(e => e.dataset.head)") == [
        name
    ]
    frame = "return document.querySelector(\"[data-figure='heads_02_denoising']\").layout.shapes.at(-1)"
    wait(lambda: page.execute_script(frame).get("line", {}).get("width") == 4, "the frame on the map")
    shape = page.execute_script(frame)
    assert ((shape["y0"] + shape["y1"]) / 2, (shape["x0"] + shape["x1"]) / 2) == (layer, head)
    press(page, keys.Keys.ESCAPE)
    assert panel_of(page) is None and texts(page, ".selected") == []
    assert page.execute_script("return location.hash") == ""


def test_a_click_on_a_map_opens_the_head_of_the_cell(page) -> None:
    place = drawn(page, "heads_02_noising")
    box = place.find_element("css selector", ".nsewdrag")
    width, height = box.size["width"], box.size["height"]
    heads, layers = 8, 4  # layer 0 at the bottom
    x, y = 2.5 / heads - 0.5, 0.5 - 0.5 / layers
    actions.ActionChains(page).move_to_element_with_offset(box, round(x * width), round(y * height)).click().perform()
    wait(lambda: panel_of(page) == "L0H2", "the head of the cell")


def test_the_keyboard_opens_steps_and_closes_and_the_focus_comes_back(page) -> None:
    node = seen(page, one(page, ".graph.large .node[role=button]"))
    name = node.get_attribute("data-node")
    page.execute_script("arguments[0].focus()", node)
    press(page, keys.Keys.ENTER)
    wait(lambda: panel_of(page) == name, "the panel")
    assert page.execute_script("return document.activeElement.id") == "panel"
    press(page, keys.Keys.TAB, keys.Keys.TAB, keys.Keys.ENTER)  # previous, next
    wait(lambda: panel_of(page) != name, "the next head")
    layer, head = map(int, re.findall(r"\d+", name))
    after = f"L{layer}H{head + 1}" if head < 7 else f"L{layer + 1}H0"
    assert panel_of(page) == after
    press(page, keys.Keys.ESCAPE)
    assert panel_of(page) is None
    assert page.execute_script("return document.activeElement.dataset.node") in (name, after)
    choice = one(page, "#any-head")
    ui.Select(choice).select_by_value("L1H1")
    wait(lambda: panel_of(page) == "L1H1", "the head of the list")
    mention = seen(page, one(page, "a.head[href='#head=L0H2']"))
    press(page, keys.Keys.ESCAPE)
    page.execute_script("arguments[0].focus()", mention)
    press(page, keys.Keys.ENTER)
    wait(lambda: panel_of(page) == "L0H2", "the head of the link")
    press(page, keys.Keys.ESCAPE)
    assert page.execute_script("return document.activeElement.getAttribute('href')") == "#head=L0H2"


@pytest.mark.parametrize(
    "fragment",
    [
        "#head=L99H9",
        "#head=%3Cimg%20src%3Dx%3E",
        "#head=",
        "#head=%E0%A4%A",
        "#json=../x.json&field=a",
        "#json=a.json&field=a)%3B__import__(%22os%22)",
        "#json=a%22)%3Bx(%22.json&field=a",
        "#json=a.json&field=" + 60 * "a" + "!",  # decided at once
    ],
)
def test_an_address_of_nothing_opens_nothing(browser, written, fragment) -> None:
    show(browser, written, DESKTOP, fragment)
    assert panel_of(browser) is None and not one(browser, "#source").is_displayed()
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_on_a_phone_a_touch_opens_a_sheet_that_fits(browser, written) -> None:
    show(browser, written, PHONE)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    node = seen(browser, one(browser, ".graph.large .node[role=button]"))
    name = node.get_attribute("data-node")
    box = browser.execute_script(
        "const r = arguments[0].getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]", node
    )
    for kind, points in (("touchStart", [{"x": box[0], "y": box[1]}]), ("touchEnd", [])):
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    wait(lambda: panel_of(browser) == name, "the sheet")
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    left, right, top, wide = browser.execute_script(
        "const r = document.getElementById('panel').getBoundingClientRect();"
        "return [r.left, r.right, r.top, document.documentElement.scrollWidth]"
    )
    assert (left, right, wide) == (0, 390, 390) and top > 844 / 4  # the page stays in sight above it
    for button in browser.find_elements("css selector", "#panel .bar button"):
        assert button.rect["x"] + button.rect["width"] <= 390 and min(button.size.values()) >= 24
    assert browser.execute_script(OVERLAPS, "#panel h2, #panel h3, #panel th, #panel td, #panel li") == []


# --- the graph -----------------------------------------------------------------------------------------------------


def edges_shown(browser) -> list[tuple[str, str, str]]:
    return [
        tuple(edge)
        for edge in browser.execute_script(
            "return [...document.querySelectorAll('.graph.large .edge')]"
            ".map(e => [e.dataset.from, e.dataset.to, e.dataset.input])"
        )
    ]


def data_of(browser) -> dict[str, Any]:
    return json.loads(one(browser, "#data").get_attribute("textContent"))


def test_pointing_at_a_head_leaves_its_edges_alone(page) -> None:
    sender = edges_shown(page)[-1][0]  # of the largest edge
    node = seen(page, one(page, f".graph.large .node[data-node='{sender}']"))
    actions.ActionChains(page).move_to_element(node).perform()
    kept = page.execute_script(
        "return [...document.querySelectorAll('.graph.large .edge.kept')].map(e => [e.dataset.from, e.dataset.to])"
    )
    own = [edge for edge in edges_shown(page) if sender in edge[:2]]
    assert len(kept) == len(own) and all(sender in edge for edge in kept)
    faint = "return [...document.querySelectorAll('.graph.large .edge:not(.kept)')].map(e => Number(getComputedStyle(e).opacity))"
    assert max(page.execute_script(faint), default=0) < 0.1
    tokens = page.execute_script(
        "return [...document.querySelectorAll('.inputs .token')].map(e => parseFloat(e.style.getPropertyValue('--weight')))"
    )
    assert sum(tokens) == pytest.approx(100, abs=8)  # where it looks from the last token, in rounded percent
    actions.ActionChains(page).move_to_element(one(page, "#graph-said")).perform()
    assert page.execute_script("return document.querySelector('.graph.large').classList.contains('isolating')") is False


def test_inputs_threshold_and_uncertain_edges_are_what_is_asked_for(page) -> None:
    stored = data_of(page)["graph"]
    limit = stored["faint"] * stored["largest"]

    def expected(least: float, uncertain: bool, inputs: str = "qkv") -> int:
        return sum(
            abs(edge["weight"]) >= least and (uncertain or not edge["uncertain"]) and (edge["input"] or "v") in inputs
            for edge in stored["edges"]
        )

    assert len(edges_shown(page)) == expected(limit, False)
    certain, boxes = (
        set(edges_shown(page)),
        page.find_elements("css selector", "#circuit-controls input[type=checkbox]"),
    )
    seen(page, boxes[-1]).click()
    assert len(edges_shown(page)) == expected(limit, True) and certain <= set(edges_shown(page))
    lighter = page.execute_script(
        "return [...document.querySelectorAll('.graph.large .uncertain path:not(.hit)')].map(e => getComputedStyle(e).opacity)"
    )
    assert len(lighter) == expected(limit, True) - len(certain) and set(lighter) <= {"0.85"}
    boxes[0].click()
    assert "q" not in {edge[2] for edge in edges_shown(page)}
    boxes[0].click()
    page.execute_script(
        "const s = document.getElementById('edge-threshold'); s.value = .3; s.dispatchEvent(new Event('input'))"
    )
    assert len(edges_shown(page)) == expected(0.3 * stored["largest"], True)


def test_a_role_folds_into_one_group_whose_edges_are_added_up(page) -> None:
    stored = data_of(page)["graph"]
    roles = [node["role"] for node in stored["nodes"] if node["name"] != node["role"]]
    role = max(sorted(set(roles)), key=roles.count)
    members = {node["name"] for node in stored["nodes"] if node["role"] == role}
    page.execute_script(
        "document.querySelectorAll('#circuit-controls .check input').forEach(b => b.checked || b.click())"
    )
    chip = seen(page, one(page, f"[data-role='{role}']"))
    chip.click()
    names = set(texts(page, ".graph.large .node text"))
    group = f"{role.replace('_', ' ')} ({len(members)})"
    assert group in names and not members & names and chip.get_attribute("aria-pressed") == "true"
    assert page.execute_script(OVERLAPS, ".graph.large .node") == []
    into_logits = [edge for edge in stored["edges"] if edge["from"] in members and edge["to"] == "logits"]
    title = page.execute_script(
        "return [...document.querySelectorAll('.graph.large .edge')].filter(e => e.dataset.from === arguments[0]"
        " && e.dataset.to === 'logits').map(e => e.querySelector('title').textContent)", role.replace("_", " ")
    )  # fmt: skip
    if into_logits:
        assert float(re.search(r": (\S+)", title[0])[1]) == pytest.approx(
            sum(edge["weight"] for edge in into_logits), rel=6e-3
        )
    chip.click()
    assert members <= set(texts(page, ".graph.large .node text"))


def test_a_folded_role_of_one_head_is_unfolded_from_the_graph(page) -> None:
    stored = data_of(page)["graph"]
    roles = [node["role"] for node in stored["nodes"] if node["name"] != node["role"]]
    role = next(role for role in sorted(set(roles)) if roles.count(role) == 1)
    (head,) = (node["name"] for node in stored["nodes"] if node["role"] == role and node["name"] != role)
    seen(page, one(page, f"[data-role='{role}']")).click()
    assert head not in texts(page, ".graph.large .node text")
    box = seen(page, one(page, f".graph.large .node[data-members='{head}']"))
    assert (box.get_attribute("role"), box.get_attribute("tabindex")) == ("button", "0")
    box.send_keys(keys.Keys.ENTER)
    assert head in texts(page, ".graph.large .node text")


def test_the_box_of_a_folded_role_is_as_wide_as_its_name(page) -> None:
    for chip in page.find_elements("css selector", "[data-role]"):
        seen(page, chip).click()
    boxes = texts(page, ".graph.large .node[role=button] text")
    assert boxes and all(re.fullmatch(r".+ \(\d+\)", box) for box in boxes)
    assert page.execute_script(OVERLAPS, ".graph.large .node") == []


def test_an_address_of_a_field_with_several_numbers_has_the_one_that_was_chosen(page, written) -> None:
    """Each number of the headline's sentence; a text that no link has is not shown."""
    field = "field=headline.faithfulness"
    links = page.find_elements("css selector", f"main a.n[href$='{field}']")
    assert len({link.text for link in links}) > 2
    addresses = {}
    for link in links[:4]:
        seen(page, link).click()
        wait(lambda: one(page, "#source").is_displayed(), "the note")
        assert one(page, "#source .value").text == link.text
        addresses[page.execute_script("return location.hash")] = link.text
        press(page, keys.Keys.ESCAPE)
        assert page.execute_script("return location.hash") == ""
    for fragment, shown in addresses.items():
        show(page, written, DESKTOP, fragment)
        assert one(page, "#source .value").text == shown
    show(page, written, DESKTOP, f"#json=certificate.json&{field}&shown=7.77")
    assert one(page, "#source .value").text == ""


def test_a_number_that_is_made_of_its_field_is_not_said_to_be_what_python_prints(page) -> None:
    link = seen(page, one(page, ".recipes a.n[href*='made=percentile']"))
    link.click()
    wait(lambda: one(page, "#source").is_displayed(), "the note")
    fragment = page.execute_script("return location.hash")
    assert (
        texts(page, "#source dt")[-1] == "Python, of the field alone" and one(page, "#source .value").text == link.text
    )
    assert "shown=" in fragment  # the intervals of all recipes are made of one field


def test_an_address_of_a_field_with_several_numbers_shows_none_of_them(page, written) -> None:
    """The headline's numbers are of one sentence; the means of one column differ by how they were made."""
    show(page, written, DESKTOP, "#json=certificate.json&field=headline.faithfulness")
    assert one(page, "#source").is_displayed() and one(page, "#source .value").text == ""
    assert "a sentence that holds the number" in one(page, "#source dd:nth-of-type(2)").text
    links = page.find_elements("css selector", "#headline a.n, header a.n, main a.n")
    own = next(link for link in links if "field=preconditions" in (link.get_attribute("href") or ""))
    fragment, shown = "#" + own.get_attribute("href").split("#")[1], own.get_attribute("textContent").strip()
    show(page, written, DESKTOP, fragment)
    assert one(page, "#source .value").text.startswith(shown.rstrip("0") or shown)


def test_edges_and_discs_stand_out_in_both_themes(page) -> None:
    """Uncertain edges too, which are lighter: their colour is mixed with the page's."""
    box = page.find_elements("css selector", "#circuit-controls input[type=checkbox]")[-1]
    seen(page, box).click()
    for scheme in ("light", "dark"):
        page.execute_script("document.documentElement.dataset.theme = arguments[0]", scheme)
        ground = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        strokes = page.execute_script(
            "return [...document.querySelectorAll('.graph.large .edge path:not(.hit), .graph.large .node > :first-child')]"
            ".map(e => [getComputedStyle(e).stroke, Number(getComputedStyle(e).opacity)])"
        )
        found = {tuple(one) for one in strokes}
        assert {opacity for _, opacity in found} == {0.85, 1}
        assert min(contrast(mixed(stroke, ground, opacity), ground) for stroke, opacity in found) >= 3
    seen(page, box).click()


# --- prompts, attention, sources, theme ------------------------------------------------------------------------------


def test_the_prompt_on_which_the_circuit_fails_worst_comes_first(page, run) -> None:
    """Of all prompts, and by size: a circuit that gives more than the model is as far from it as one that gives less."""
    table = prompt_table.of(run)
    lost = np.array(table.clean) - np.array(table.circuit)
    largest = int(abs(lost).argmax())
    worst = table.id[largest]
    first = "return document.querySelector('table.prompts tbody tr').dataset.id"
    assert page.execute_script(first) == worst
    cells = rows(page, "table.prompts tbody tr")
    assert len(cells) == 25 and float(cells[0][4]) == pytest.approx(float(lost[largest]), abs=0.006)
    assert float(cells[0][5]) == pytest.approx(
        float(cells[0][3]) / float(cells[0][2]), abs=0.01
    )  # the share that is kept
    assert [abs(float(row[4])) for row in cells] == sorted((abs(float(row[4])) for row in cells), reverse=True)
    one(page, "th[data-key=kept] button").click()
    far = [abs(float(row[5]) - 1) for row in rows(page, "table.prompts tbody tr") if row[5] != "–"]
    assert far == pytest.approx(sorted(far, reverse=True), abs=0.011) and far[0] > 0.1
    one(page, "th[data-key=lost] button").click()
    for column, how in (("lost", "D of the same prompt, data.clean_logit_diff["), ("kept", "this divided by D of")):
        address = one(page, f"table.prompts td[data-label={column}] a.n").get_attribute("href")
        assert "json=20_" in address and quote(how, safe="") in address


def test_what_was_chosen_stays_where_it_is_when_the_panel_opens_and_closes(page) -> None:
    disc = seen(page, one(page, "#circuit .graph.large [data-node]"))
    top = "return document.querySelector('#circuit .graph.large').getBoundingClientRect().top"
    before = page.execute_script(top)
    page.execute_script(
        "arguments[0].focus(); arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", disc
    )
    wait(lambda: one(page, "#panel").is_displayed(), "the panel")
    wait(lambda: abs(page.execute_script(top) - before) < 2, "the graph in its place")
    press(page, keys.Keys.ESCAPE)
    wait(lambda: not one(page, "#panel").is_displayed(), "the panel's end")
    wait(lambda: abs(page.execute_script(top) - before) < 2, "the graph in its place")


def test_a_head_in_small_letters_is_opened_and_one_that_is_not_there_is_said(browser, written) -> None:
    show(browser, written, DESKTOP, "#head=l0h2")
    assert panel_of(browser) == "L0H2"
    show(browser, written, DESKTOP, "#head=L9H9%3Cb%3E")
    assert panel_of(browser) is None
    assert one(browser, "#no-head").text == "The address asks for head L9H9<b>; this model has L0H0 to L3H7."
    browser.execute_script("location.hash = 'head=L1H2'")
    wait(lambda: panel_of(browser) == "L1H2", "the panel")
    assert not browser.find_elements("css selector", "#no-head")


def test_a_gate_that_blocks_leads_to_its_own_row_and_reason(page, run) -> None:
    gates = [gate for gates in run.certificate["blocking"].values() for gate in gates]
    for link in page.find_elements("css selector", "a.gate")[:3]:
        metric = link.get_attribute("href").partition("#row-")[2]
        seen(page, link).click()
        row = page.execute_script("return document.getElementById(arguments[0]).closest('tr')", f"row-{metric}")
        wait(
            lambda row=row: 0 <= page.execute_script("return arguments[0].getBoundingClientRect().top", row) < 900,
            "row",
        )
        verdict = row.find_element("css selector", "td[data-label=verdict]").text
        assert any(verdict.endswith(gate["verdict"]) for gate in gates if gate["metric"] == metric), metric


def test_prompts_sort_filter_and_grow(page, run) -> None:
    button = seen(page, one(page, "th[data-key=clean] button"))
    button.click()
    shown = [float(row[2]) for row in rows(page, "table.prompts tbody tr")]
    assert shown == sorted(shown, reverse=True) and shown[0] == pytest.approx(
        max(prompt_table.of(run).clean), abs=0.006
    )
    assert one(page, "th[data-key=clean]").get_attribute("aria-sort") == "descending"
    button.click()
    assert float(rows(page, "table.prompts tbody tr")[0][2]) == pytest.approx(
        min(prompt_table.of(run).clean), abs=0.006
    )
    one(page, "#prompt-more").click()
    assert len(rows(page, "table.prompts tbody tr")) == min(50, len(prompt_table.of(run).id))
    template = run.evidence.templates[0]
    ui.Select(one(page, "#prompt-template")).select_by_value(str(template))
    assert ui.Select(one(page, "#prompt-split")).first_selected_option.text == "all prompts"
    stored = run.require("01")["data"]
    assert f"of {list(stored['template']).count(template)} prompts" in one(page, "#prompt-count").text
    assert {row[1] for row in rows(page, "table.prompts tbody tr")} == {str(template).replace("_", " ")}


def looked_at(page, example, query: int) -> list[str]:
    """The token below each head, each of which was found to be the one with the largest weight."""
    shown, weights = texts(page, ".tile .most"), texts(page, ".tile .weight")
    assert len(shown) == len(weights) == len(example["pattern"]) == 32
    for pattern, token, weight in zip(example["pattern"], shown, weights, strict=True):
        row = np.array(pattern[query][: query + 1])
        text, most = example["tokens"][int(row.argmax())], float(row.max())
        assert float(weight) == pytest.approx(most, abs=0.006)
        assert token == (f"{text} #{int(row.argmax()) + 1}" if example["tokens"].count(text) > 1 else text)
    return shown


def test_a_token_shows_where_every_head_looks_from_there(page, run) -> None:
    example = run.data("25")["examples"][1]
    ui.Select(seen(page, one(page, "#attention-prompt"))).select_by_value("1")
    assert any(
        "#" in token for token in looked_at(page, example, len(example["tokens"]) - 1)
    )  # a name stands there twice
    token = page.find_elements("css selector", "#attention-tokens .token")[4]
    actions.ActionChains(page).move_to_element(seen(page, token)).perform()
    wait(lambda: "token 5 of" in one(page, "#attention-said").text, "the token")
    assert looked_at(page, example, 4)
    painted = page.execute_script(
        "const c = document.querySelector('.tile canvas'); return [...c.getContext('2d').getImageData(0, 4, 5, 1).data]"
    )
    blue = [255 - painted[4 * key] for key in range(5)]
    assert int(np.argmax(blue)) == int(np.argmax(example["pattern"][0][4][:5]))
    one(page, ".tile[data-head=L1H3]").click()
    wait(lambda: panel_of(page) == "L1H3", "the head of the tile")


def test_the_corrupted_run_has_its_own_tokens_and_patterns(browser, run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    path = results_io.find(tmp_path / "run", "25")
    document = results_io.read(path)
    for example in document["data"]["examples"]:
        size = len(example["tokens"])
        example["corrupted_tokens"] = [f"other_{place}" for place in range(size)]
        example["corrupted_pattern"] = [np.eye(size).tolist()] * len(example["pattern"])  # every query looks at itself
    results_io.write(path, document)
    show(browser, report.write(RunFolder.open(tmp_path / "run")), DESKTOP)
    choice = ui.Select(seen(browser, one(browser, "#attention-run")))
    clean = texts(browser, ".tile .most"), texts(browser, ".tile .weight")
    choice.select_by_value("corrupted")
    size = len(texts(browser, "#attention-tokens .token"))
    assert set(texts(browser, ".tile .most")) == {f"other_{size - 1}"}
    assert set(texts(browser, ".tile .weight")) == {"1.00"}
    assert texts(browser, "#attention-tokens .token")[0] == "other_0"
    choice.select_by_value("clean")
    assert (texts(browser, ".tile .most"), texts(browser, ".tile .weight")) == clean
    for example in document["data"]["examples"]:  # a result of a version that stored the clean run alone
        del example["corrupted_tokens"], example["corrupted_pattern"]
    results_io.write(path, document)
    show(browser, report.write(RunFolder.open(tmp_path / "run")), DESKTOP)
    assert not one(browser, "#attention-run").is_displayed()


def test_a_number_says_where_it_stands_and_its_line_of_python_gives_it(page, run) -> None:
    link = seen(page, one(page, ".recipes a.n"))
    shown = link.text
    link.click()
    wait(lambda: one(page, "#source").is_displayed(), "the note")
    file, field, line = (one(page, f"#source dd:nth-of-type({place})").text for place in (1, 2, 3))
    assert (
        file.startswith("P_preconditions.json") and field.endswith(".faithfulness") and line.startswith("import json")
    )
    expression = re.search(r"json\.load\(open\(\"([^\"]+)\"\)\)(.*)\)$", line)
    value = eval(f"document{expression[2]}", {"document": results_io.read(run.path / expression[1])})
    assert shown == f"{value:.2f}" == one(page, "#source .value").text
    press(page, keys.Keys.ESCAPE)
    assert not one(page, "#source").is_displayed()
    assert page.execute_script("return document.activeElement.className") == "n"


def test_a_number_of_the_panel_and_its_head_stand_in_one_address(page, written) -> None:
    page.execute_script("location.hash = 'head=L0H2'")
    wait(lambda: panel_of(page) == "L0H2", "the panel")
    link = one(page, "#panel tbody a.n")
    shown = link.text
    link.click()
    wait(lambda: one(page, "#source").is_displayed(), "the note")
    fragment = page.execute_script("return location.hash")
    assert "head=L0H2" in fragment and "json=02_activation_patching.json" in fragment
    show(page, written, DESKTOP, fragment)  # sent to somebody else
    assert panel_of(page) == "L0H2" and one(page, "#source .value").text == shown
    assert one(page, "#source dd:nth-of-type(2)").text == "data.denoising[*][2]"
    press(page, keys.Keys.ESCAPE)
    assert page.execute_script("return location.hash") == "#head=L0H2" and panel_of(page) == "L0H2"
    press(page, keys.Keys.ESCAPE)
    assert page.execute_script("return location.hash") == "" and panel_of(page) is None


def test_the_line_of_python_of_a_mean_prints_that_mean(page, run) -> None:
    """The file has rows of held-out prompts, too; the number is of the evaluation prompts alone."""
    page.execute_script("location.hash = 'head=L0H2'")
    wait(lambda: panel_of(page) == "L0H2", "the panel")
    fields, lines = [], []
    for place in range(3):
        link = page.find_elements("css selector", "#panel tbody a.n")[place]
        shown = link.text
        seen(page, link).click()
        wait(lambda: one(page, "#source").is_displayed(), "the note")
        fields.append(one(page, "#source dd:nth-of-type(2)").text)
        lines.append((shown, one(page, "#source dl dd:last-of-type code").get_attribute("textContent")))
        press(page, keys.Keys.ESCAPE)
    assert all("[*]" in field for field in fields) and len(set(run.require("01")["data"]["split"])) > 1
    for shown, line in lines:
        printed = subprocess.run([sys.executable, "-c", line], cwd=run.path, check=True, capture_output=True, text=True)
        assert f"{float(three_digits(float(printed.stdout))):g}" == shown


def test_a_name_with_a_dot_stays_one_name_in_the_line_of_python(page) -> None:
    page.execute_script("location.hash = 'json=a.json&field=' + encodeURIComponent('data.x[\"a.b\"].y[3]')")
    wait(lambda: one(page, "#source").is_displayed(), "the note")
    line = one(page, "#source dl dd:last-of-type code").get_attribute("textContent")
    assert line == 'import json; print(json.load(open("a.json"))["data"]["x"]["a.b"]["y"][3])'


def test_the_theme_goes_round_and_figures_follow(page) -> None:
    drawn(page, "heads_02_denoising")
    button, grounds = one(page, "#theme"), []
    for theme in ("light", "dark", "system"):
        button.click()
        assert button.text == f"Theme: {theme}"
        grounds.append(page.execute_script("return getComputedStyle(document.body).backgroundColor"))
        wanted = "dark" if theme == "dark" else "light"
        wait(lambda w=wanted: one(page, "#heads [data-drawn]").get_attribute("data-scheme") == w, wanted)
    assert grounds[0] == grounds[2] != grounds[1]


def test_first_900_pixels_hold_tier_reason_graph_prompt_and_what_blocks(page) -> None:
    bottoms = page.execute_script(
        "return ['.tier', '.because', '.blocks ul', '.graph.small svg', '.example .answer', '.example .foil']"
        ".map(s => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert max(bottoms) < 900
    assert page.execute_script("return document.querySelectorAll('.graph.small .node').length") > 3


def test_on_a_phone_every_blocker_stands_before_the_graph_two_of_them_in_words(browser, written) -> None:
    show(browser, written, PHONE)
    known = len(browser.find_elements("css selector", ".blocks > ul > li"))
    browser.execute_script(  # as many as block a run of the main job
        "const list = document.querySelector('.blocks > ul'); "
        "while (list.children.length < 6) list.append(list.children[0].cloneNode(true))"
    )
    listed = browser.find_elements("css selector", ".blocks > ul > li")
    assert len(listed) == 6 and all(item.find_element("css selector", "a.gate").is_displayed() for item in listed)
    in_words = [item.find_element("css selector", ".asked").is_displayed() for item in listed]
    assert in_words == [place < 2 for place in range(len(listed))]
    assert len(browser.find_elements("css selector", ".blocks .reasons > ul > li")) >= known
    bottoms = browser.execute_script(
        "return ['.tier', '.because', '.blocks > ul', '.graph.small svg', '.example .answer', '.example .foil']"
        ".map(s => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert max(bottoms) <= PHONE[1], bottoms


def test_the_phone_s_menu_follows_the_reader_and_the_page_stays(browser, written) -> None:
    show(browser, written, PHONE)
    for name in ("record", "lens", "forest"):
        browser.execute_script("document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant'})", name)
        link, before = one(browser, f"nav a[href='#{name}']"), browser.execute_script("return scrollY")
        wait(lambda link=link: link.get_attribute("aria-current") == "true", name)
        left, right = browser.execute_script(
            "const l = arguments[0].getBoundingClientRect(), m = document.querySelector('nav ul').getBoundingClientRect();"
            "return [l.left - m.left, m.right - l.right]", link
        )  # fmt: skip
        assert min(left, right) >= 0 and browser.execute_script("return scrollY") == before
        assert len(browser.find_elements("css selector", "nav [aria-current]")) == 1


def test_the_sheet_of_a_phone_leaves_the_tapped_head_in_sight(browser, written) -> None:
    show(browser, written, PHONE)
    for graph in ("small", "large"):
        node = one(browser, f".graph.{graph} .node[role=button]")
        browser.execute_script("arguments[0].scrollIntoView({block: 'end'})", node)  # where the sheet will be
        browser.execute_script("scrollBy(0, -10)")
        name = node.get_attribute("data-node")
        node.click()
        wait(lambda name=name: panel_of(browser) == name, "the sheet")
        disc = f"document.querySelector('.graph.{graph} [data-node={name}]').getBoundingClientRect()"
        free = f"const d = {disc}, p = document.getElementById('panel').getBoundingClientRect();"
        wait(
            lambda free=free: browser.execute_script(free + "return d.top > 60 && d.bottom < p.top"),
            "the disc in sight",
            3,
        )
        press(browser, keys.Keys.ESCAPE)


def test_the_tab_key_stops_only_at_what_can_be_opened(page) -> None:
    small = one(page, ".graph.small")
    assert small.get_attribute("role") == "group" and small.get_attribute("aria-label").startswith("The circuit: ")
    seen(page, one(page, ".blocks summary"))
    page.execute_script("document.querySelector('.blocks summary').focus()")
    stops = []
    while not stops or stops[-1] is not None:
        press(page, keys.Keys.TAB)
        stops.append(
            page.execute_script("return document.activeElement.closest('.graph.small .node')?.dataset.node ?? null")
        )
    heads = page.execute_script(
        "return [...document.querySelectorAll('.graph.small [role=button]')].map(e => e.dataset.node)"
    )
    assert stops[:-1] == heads and len(heads) > 3 and "logits" not in heads
    one(page, f".graph.small [data-node={heads[-1]}]").send_keys(keys.Keys.ENTER)
    wait(lambda: panel_of(page) == heads[-1], "the head")


def test_text_of_a_run_is_never_markup(browser, run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    for number, change in (("01", _prompts), ("25", _tokens), ("20", _role)):
        path = results_io.find(tmp_path / "run", number)
        document = results_io.read(path)
        change(document["data"])
        results_io.write(path, document)
    layer, head = run.evidence.circuit_heads[0]
    show(browser, report.write(RunFolder.open(tmp_path / "run")), DESKTOP, f"#head=L{layer}H{head}")
    browser.execute_script("document.querySelectorAll('#circuit-controls .chips button').forEach(b => b.click())")
    assert browser.execute_script("return [document.querySelectorAll('img').length, document.title === 'hit']") == [
        0,
        False,
    ]
    assert "<img␣src=x" in one(browser, "#attention-tokens").text and "<img src=x" in one(browser, "#panel").text
    assert "<img src=x" in " ".join(texts(browser, "table.prompts td")) + " ".join(
        texts(browser, "#prompt-template option")
    )


def test_a_run_without_attention_or_edges_is_asked_without_an_error(browser, run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    for number in ("25", "28", "02", "21"):
        results_io.find(tmp_path / "run", number).unlink()
    layer, head = run.evidence.circuit_heads[0]
    show(browser, report.write(RunFolder.open(tmp_path / "run")), DESKTOP, f"#head=L{layer}H{head}")
    assert panel_of(browser) == f"L{layer}H{head}"
    said = texts(browser, "#panel section[aria-label=Edges], #panel section[aria-label^=Attention]")
    assert [text[-5:] for text in said] == ["None.", "None."]
    assert browser.execute_script("return document.querySelectorAll('.graph.large .node[role=button]').length") == len(
        run.evidence.circuit_heads
    )
    assert not browser.find_elements("css selector", "#edge-threshold")
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def _prompts(data: dict[str, Any]) -> None:
    first = data["template"][0]
    data["template"] = [HOSTILE if template == first else template for template in data["template"]]
    data["examples"][0]["clean"][1] = HOSTILE


def _tokens(data: dict[str, Any]) -> None:
    data["examples"][0]["tokens"][1] = HOSTILE


def _role(data: dict[str, Any]) -> None:
    data["circuit"]["roles"] = {f"{name} {HOSTILE}": spec for name, spec in data["circuit"]["roles"].items()}


def test_on_paper_there_is_neither_panel_nor_button(page) -> None:
    page.execute_script("location.hash = 'head=L0H2'")
    wait(lambda: panel_of(page) == "L0H2", "the panel")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    hidden = page.execute_script(
        "return ['#panel', '#theme', 'nav', '#circuit-controls'].map(s => document.querySelector(s).getClientRects().length)"
    )
    ground = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert hidden == [0, 0, 0, 0] and ground == "rgb(255, 255, 255)"
