"""docs/behaviour.md says what is: its tables come from the code, its example runs, its commands and links exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml

import results_io
from meridian import overrides
from scripts import freeze_suites
from suites import applicability, declaration, gate, judgement, modes, results, runner, schema
from suites.bridge import hypothesis, pair, pairing, stored_pairs
from suites.log import generations
from suites.models import open_model
from suites.modes import quality
from suites.statistics import power, proportions
from tests.commandline import ROOT, command, started

PAGE = ROOT / "docs" / "behaviour.md"
TEXT = PAGE.read_text()
FLAT = " ".join(TEXT.split())
POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def part(name, text=TEXT):
    return re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL).group(1)


def rows(name):
    """The cells of a marked table, without its two header lines."""
    lines = [line for line in part(name).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell):
    return cell.split(", ") if cell else []


def test_the_table_of_modes_is_that_of_the_code_and_the_catalogue():
    table = rows("modes")
    assert [row[0] for row in table] == sorted(modes.MODES, key=lambda name: int(name[1:]))
    catalogue = {name: declaration.read(declaration.find(name)).data["mode"] for name in declaration.names()}
    assert sorted(names(" , ".join(row[2] for row in rows("safety")).replace(" , ", ", "))) == sorted(
        name for name, own in catalogue.items() if own in modes.SAFETY
    )
    assert [(row[0], row[1]) for row in rows("safety")] == [(mode.NUMBER, mode.TITLE) for mode in modes.SAFETY.values()]
    for identifier, title, tier, traceable, suites, _ in table:
        mode = modes.MODES[identifier]
        assert (title, traceable) == (mode.TITLE, mode.TRACEABLE)
        assert [word in tier for word in ("heuristic", "verified")] == [
            word in mode.TIER for word in ("heuristic", "verified")
        ], identifier
        assert names(suites) == sorted(name for name, own in catalogue.items() if own == identifier)


@pytest.mark.slow
def test_what_applies_to_pocket_is_what_the_table_says():
    """Known before anything is asked: no suite of the catalogue needs its probes to be refused here."""
    pocket = open_model(POCKET)
    for *_, suites, applies in rows("modes"):
        found = {}
        for name in names(suites):
            suite = declaration.load(name)
            known = applicability.before_asking(suite, pocket)
            changed = {item.id for item in suite.items if item.variant} - set(known.unchanged)
            alike = bool(known.unchanged) and not changed  # all variants are the same tokens: nothing is judged
            found[name] = "unchanged" if alike else known.reason
        left_out = [name for name, reason in found.items() if reason]
        if len(left_out) == len(found):
            expected = "no: chat" if "chat" in found[left_out[0]] else "no: the words"
        else:
            expected = ", ".join(["yes", *(f"but {name}" for name in left_out)])
        assert applies == expected, found


def test_the_golden_table_is_what_was_measured():
    measured = json.loads(quality.MEASURED.read_text())
    assert [row[0] for row in rows("golden")] == sorted(measured)
    for name, mode, n, precision, recall, f1 in rows("golden"):
        found = measured[name]["test"]
        assert (mode, int(n)) == (measured[name]["mode"], found["n"])
        for cell, key in ((precision, "precision"), (recall, "recall")):
            assert cell == "{value:.2f} [{low:.2f}, {high:.2f}]".format(**found[key]), (name, key)
        assert f1 == f"{found['f1']['value']:.2f}"
        assert found["f1"]["value"] < quality.TARGET_F1  # "None reaches ..."


@pytest.mark.slow
def test_the_example_freezes_and_runs_as_the_page_says(tmp_path):
    folder = tmp_path / "my suite"
    folder.mkdir()
    (folder / declaration.FILE).write_text(re.search(r"```yaml\n(.*?)```", part("example"), re.DOTALL).group(1))
    assert command("suite=file", f"suite.path={folder}", f"results={tmp_path}/r").code == 2  # not frozen
    assert freeze_suites.main([str(folder)]) == 0
    assert freeze_suites.main(["--check", str(folder)]) == 0
    found = command("suite=file", f"suite.path={folder}", "model.device=cpu", f"results={tmp_path}/r")
    assert found.code == 0, found.errors
    document = results_io.read(tmp_path / "r" / "pocket" / "suites" / "who_received_it" / "103_constraint.json")
    rate = document["records"][0]
    assert rate["ci"] is None and f"1 of 3 failed, {100 * rate['value']:.1f} %. Fewer than 20 items" in FLAT
    assert rate["passed"] is None  # inconclusive
    suite = document["data"]["suites"]["who_received_it"]
    assert suite["failures"] == ["thing"] and suite["worst"][0]["output"].split()[0] == "green"


@pytest.mark.parametrize(("old", "new"), [("John gave a drink", "John gave a zebra"), ("store", "xylophone")])
def test_an_unknown_word_in_the_example_makes_it_not_applicable(old, new, tmp_path):
    text = re.search(r"```yaml\n(.*?)```", part("example"), re.DOTALL).group(1)
    (tmp_path / declaration.FILE).write_text(text.replace(old, new))
    assert freeze_suites.main([str(tmp_path)]) == 0
    known = applicability.before_asking(declaration.load(tmp_path), open_model(POCKET))
    assert "vocabulary cannot write 1 of 3 prompts" in known.reason


def test_an_edited_example_is_refused_until_its_version_is_raised(tmp_path):
    text = re.search(r"```yaml\n(.*?)```", part("example"), re.DOTALL).group(1)
    path = tmp_path / declaration.FILE
    path.write_text(text)
    assert freeze_suites.main([str(tmp_path)]) == 0
    path.write_text(text.replace("answers: [red]", "answers: [green]"))
    with pytest.raises(results_io.UserError, match="without a new version"):
        declaration.load(tmp_path)
    assert freeze_suites.main([str(tmp_path)]) == 2
    path.write_text(path.read_text().replace("version: 1.0.0", "version: 1.0.1"))
    assert freeze_suites.main([str(tmp_path)]) == 0
    assert declaration.load(tmp_path).version == "1.0.1"


def test_exit_codes_margin_and_minimum_sizes_are_the_gates():
    codes = {row[0]: int(row[1]) for row in rows("exit codes")}
    assert codes == {**gate.EXIT_CODES, "usage": 2}
    settings = gate.defaults()
    assert f"The margin is {100 * settings['margin']:.0f} points" in FLAT
    assert f"under {100 * settings['minimum_overlap']:.0f} % overlap" in FLAT
    tenth = power.items_for_paired(settings["margin"], 0.1, settings["alpha"], settings["power"])
    unchanged = next(
        n
        for n in range(20, 400)
        if (found := power.minimum_detectable_effect(n, 0.0, settings["alpha"], settings["power"])).value is not None
        and found.value <= settings["margin"]
    )
    assert f"takes {tenth.n} independent items, and {unchanged} where nothing changed" in FLAT


def test_numbers_of_the_statistics_section():
    assert f"up to {100 * proportions.wilson(0, 20).ci.high:.0f} %" in FLAT
    first = next(n for n in range(1, 100) if proportions.upper_bound(0, n).ci.high < 0.05)
    assert f"{first} right answers in a row" in FLAT
    assert f"(below {pairing.MARGIN:g} nats)" in FLAT and f"Fewer than {pair.MINIMUM_PAIRS} pairs" in FLAT


def test_every_requirement_and_context_of_the_schema_is_named():
    properties = json.loads((Path(schema.__file__).parent / "suite.schema.json").read_text())["properties"]
    for key in ("requires", "contexts"):
        for name in properties[key]["items"]["enum"]:
            assert f"`{name}`" in TEXT or (key == "contexts" and name in TEXT), (key, name)
    for key in ("legs", "scorer", "requires", "trace", "minimum", "gate"):
        assert f"`{key}`" in TEXT and key in properties


def test_the_results_page_has_every_numbered_file():
    text = (ROOT / "results" / "README.md").read_text()
    for identifier, mode in modes.EVERY.items():
        assert f"{results.number(identifier)} {mode.NAME}" in text
    documents = [(results.LIKELIHOOD, "likelihood"), (results.COVERAGE, "taxonomy_coverage")]
    documents += [(stored_pairs.NUMBER, stored_pairs.ID), (hypothesis.NUMBER, hypothesis.ID), (gate.NUMBER, gate.NAME)]
    for number, name in (*documents, ("142", "carriers")):
        assert f"| {number} | {name} |" in text
    for name in (generations.NAME, judgement.NAME, runner.CACHE_NAME):
        assert f"| `{name}` |" in text


def test_the_page_counts_suites_and_modes_and_the_readme_leads_to_it():
    assert "](docs/behaviour.md)" in (ROOT / "README.md").read_text()
    of_modes = [name for name in declaration.names() if name.startswith("a")]
    assert f"{len(of_modes)} suites look for {len(modes.MODES)} failure modes" in TEXT


def commands(text):
    """The `python run.py ...` lines of a text, as words."""
    found = [line.strip() for line in text.splitlines() if line.strip().startswith("python run.py ")]
    return [shlex.split(line, comments=True)[2:] for line in found]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("arguments", commands(TEXT), ids=" ".join)
def test_every_command_is_understood(arguments):
    """Up to the first stage: each setting exists and has a value of its kind."""
    run = started(*arguments)
    asked = run.settings.get("suite")
    if asked and asked["name"] not in ("all", "file"):
        assert asked["name"] in declaration.names()
    assert run.settings["command"] == ("gate" if "gate" in arguments else None)


def test_links_and_files_exist():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT):
        assert (PAGE.parent / target).exists(), target
    for path in re.findall(r"`(suites/[a-z_/]+)`", TEXT):
        assert (ROOT / path).exists(), path
    for anchor in re.findall(r"\]\(#([^)]+)\)", TEXT):
        headings = {
            re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in TEXT.splitlines()
        }
        assert anchor in headings


def test_the_configuration_of_endpoints_has_every_setting():
    from suites.models.endpoint import SETTINGS

    config = yaml.safe_load((overrides.CONFIGS / "model" / "endpoint.yaml").read_text())
    assert set(config) == {*SETTINGS, "kind"} and config["kind"] == "endpoint"
    for name in re.findall(r"`?model\.([a-z_]+)", part_of("Models under test")):
        assert name in SETTINGS or name == "intervention", name


def part_of(heading):
    return re.search(rf"^## {heading}\n(.*?)(?=^## )", TEXT, re.DOTALL | re.MULTILINE).group(1)
