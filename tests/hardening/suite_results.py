"""Small folders of results of suites, failures, contamination and experiments, each with everything that reads them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import result_types
import results_io
from calibrations import summary
from meridian import failure_carriers, report, run_folder, tables
from meridian.commands import contamination as contamination_command
from meridian.commands import suites as suites_command
from meridian.experiments import validate_calibrations
from meridian.experiments.validation import page as validation_page
from meridian.figures import behaviour
from meridian.report import folder_page, pages, sources
from meridian.report.folder_page import FolderPage
from meridian.run_folder import RunFolder
from meridian.serve.shelf import Shelf
from meridian.suite_folder import SuiteFolder
from suites import declaration, modes, results, runner
from suites.bridge import confirmation, hypothesis, stored_pairs
from suites.contamination import results as contamination_results
from suites.item import Suite
from suites.models.base import CAPABILITIES, Likelihood
from suites.modes import Mode
from tests.commandline import ROOT
from tests.result_samples import completed
from tests.suites import test_failures_task, test_scored_by_code
from tests.suites.scripted import ScriptedModel

Readers = Mapping[str, Callable[[Path], Any]]
WEIGHTS = "0" * 64
ONE = "a13_distractor_two_facts"
SMALLEST = (  # of every failure mode the suite that is asked soonest
    *("a01_json_extraction", "a02_answer_then_stop", "a03_docstring_parameter", "a04_color_sampled"),
    *("a05_restated_facts", "a06_asked_for_sources", "a07_asked_for_numbers", "a08_unanswerable"),
    *("a09_letter_slips_ioi", "a10_padding_pronoun", "a11_templates_color", "a12_needle_color", ONE),
    *("a14_injection_color", "a15_codeword", "a16_invented_matters", "s01_refusals", "s02_codeword_families"),
    *("s03_channels", "s04_invented_groups", "s05_beliefs"),
)
OWN_MODES = range(17, modes.MOST + 1)  # of the taxonomy's numbers those that nobody has taken yet
REFUSAL = "I cannot help with that."
SLA = 0.4
HELD = 12  # items that the corpus holds
VALIDATION = ROOT / "docs" / "validation"
FAILURES = Path(__file__).parents[1] / "data" / "failures"
NUMBERED = "1*_*.json"
TEMPLATES = report.environment([])


class HalfRight(ScriptedModel):
    """Gives the first answer to every second item and refuses the others; how likely a text is, its letters decide."""

    def __init__(self, suites: Sequence[Suite]) -> None:
        items = [(place, item) for suite in suites for place, item in enumerate(suite.items)]
        right = {place: item.answers[0] for place, item in enumerate(one for _, one in items) if item.answers}
        script = {
            (item.system, item.earlier, item.prompt): right.get(number, "yes") if place % 2 else REFUSAL
            for number, (place, item) in enumerate(items)
        }
        identity = {"weights": WEIGHTS, "backend": "scripted"}
        super().__init__({}, capabilities=[name for name in CAPABILITIES if name != "activations"], identity=identity)
        self.said = script

    def _answer(self, request: Any) -> Any:
        self.script[request.prompt] = self.said.get((request.system, request.earlier, request.prompt), REFUSAL)
        return super()._answer(request)

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        drawn = (int(hashlib.sha256("|".join(pair).encode()).hexdigest()[:4], 16) for pair in pairs)
        return [Likelihood(-one / 8192, False, 2) for one in drawn]


def shown(page: FolderPage) -> bytes:
    """The page as it is written."""
    with mock.patch.object(report, "environment", lambda heads: TEMPLATES):  # compiled once
        return folder_page.render(page).encode()


# --- suites ----------------------------------------------------------------------------------------------------------


def asked(folder: Path, names: Sequence[str]) -> runner.SuiteRun:
    suites = [declaration.load(name) for name in names]
    return runner.run(suites, HalfRight(suites), folder, say=lambda line: None, sla=SLA)


def apart(made: Path, folder: Path, companion: str) -> Path:
    """Each result in a folder of suites by itself, with one failure mode that makes a page of it, beside a certified run."""
    certificate = completed("certificate", subject={"model_sha256": WEIGHTS})
    for path in sorted(made.glob(NUMBERED)):
        own = folder / path.name.partition("_")[0]
        (own / run_folder.SUITES).mkdir(parents=True)
        for name in {path.name, companion}:
            shutil.copy(made / name, own / run_folder.SUITES)
        results_io.write(own / "task" / run_folder.CERTIFICATE, certificate)
    return folder


def one_suite(folder: Path) -> Path:
    """What one suite leaves, and pairs of failures as a suite leaves them."""
    asked(folder / "made", [ONE])
    groups = [test_failures_task.group([2] * 10, ONE), test_failures_task.group([1], "another")]
    stored_pairs.write(folder / "made", groups, {"weights": WEIGHTS}, {ONE: groups[0].sha256})
    return apart(folder / "made", folder / "apart", "113_distractor.json")


def every_mode(folder: Path) -> Path:
    """What a suite of every failure mode leaves, of programs and safety too, and of the modes that are others' to write."""
    made = folder / "made"
    found = asked(made, SMALLEST)
    test_scored_by_code.run(folder / "code", test_scored_by_code.Here())
    shutil.copy(folder / "code" / "185_code.json", made)
    subject = results.TestedModel(found.model, found.identity, 0)
    last = next(one for one in found.suites if one.suite.id == ONE)
    for number in OWN_MODES:
        named = {**vars(modes.MODES[last.suite.mode]), "ID": f"A{number}", "NAME": f"own_{number}"}
        document = results.mode_document(cast(Mode, SimpleNamespace(**named)), [last], subject)
        results_io.write(made / f"{document['number']}_{document['id']}.json", document)
    return apart(made, folder / "apart", "106_fake_citation.json")


def read_suites(path: Path) -> None:
    folder = path.parent
    run = RunFolder(folder.parent / "task")
    shown(pages.of(folder, "suites"))
    suite = SuiteFolder(folder)
    assert suite.rates is not None and suite.failures is not None and suite.pairs is not None
    tables.failure_rates(run)
    list(behaviour.build(run))
    sources.files_of(run)
    summary.behaviour(folder.parent, 0.05)
    Shelf(folder.parent).pages()


def read_pairs(path: Path) -> None:
    read_suites(path)
    stored_pairs.read(path.parent, WEIGHTS, "python run.py suite=all")


# --- failures --------------------------------------------------------------------------------------------------------


def traced(folder: Path) -> Path:
    """What `task=failures` left of 36 pairs of pocket whose two names change places: tests/data/failures."""
    shutil.copytree(FAILURES, own := folder / "failures")
    return own


def read_failures(path: Path) -> None:
    """What is shown of the heads that carry a failure, and what the confirmation half says of those that were named."""
    run = RunFolder(path.parent)
    tables.carriers(run)
    list(behaviour.failure_carriers(run))
    failure_carriers.of(run)
    summary.behaviour(path.parent, 0.05)
    traced = cast(Any, run.require(hypothesis.NUMBER))
    if hypothesis.fits(traced["data"]):
        assert all(hypothesis.Hypothesis(None, traced).sentences)
    suites_command.known_traces(path.parent, WEIGHTS, {"a": WEIGHTS})


# --- contamination ---------------------------------------------------------------------------------------------------


def contaminated(folder: Path) -> Path:
    """One suite of which a corpus holds some items, and whose items and canary a model is asked for."""
    (corpus := folder / "corpus").mkdir()
    suite = declaration.load(ONE)
    lines = [json.dumps({"id": place, "text": one.prompt}) for place, one in enumerate(suite.items[:HELD])]
    (corpus / "pages.jsonl").write_text("\n".join(lines))
    model = HalfRight([suite])
    runner.run([suite], model, folder / "suites" / ONE, say=lambda line: None)
    own = folder / "contamination"
    searched = contamination_command.searched([suite], corpus, folder, None)
    contamination_results.overlaps(own, model.name, corpus.name, searched)
    contamination_results.near_duplicates(own, model.name, corpus.name, searched)
    reworded = declaration.load("a11_templates_color")
    probed = [contamination_command.probed(reworded, model, None, {"paraphrases": None, "fresh": None}, 0)]
    subject = {"model": model.name, "identity": dict(model.identity), "reference": None}
    contamination_results.loss_gaps(own, subject, probed, 0)
    contamination_results.canaries(own, subject, probed, 0)
    return own


def read_contamination(path: Path) -> None:
    summary.behaviour(path.parent, 0.05)
    sources.numbered(path.parent)


# --- experiments -----------------------------------------------------------------------------------------------------


def validated(folder: Path) -> Path:
    """The experiment whose results are kept beside the page about them."""
    for name in ("V1_error_rates.json", "V2_coverage.json"):
        shutil.copy(VALIDATION / name, folder)
    return folder


def read_validation(path: Path) -> None:
    rates, intervals = validate_calibrations.stored(path.parent)
    validation_page.parts(rates, intervals)
    list(validation_page.tables(rates, intervals))


OF_ONE = {"113": read_suites, "121": read_suites, "131": read_suites, "132": read_pairs}
OF_MODES = dict.fromkeys((number for number in result_types.RATES if number not in OF_ONE), read_suites)
OF_FAILURES: Readers = {hypothesis.NUMBER: read_failures, confirmation.NUMBER: read_failures}
OF_CONTAMINATION = dict.fromkeys(result_types.CONTAMINATION, read_contamination)
OF_VALIDATION: Readers = {"V1": read_validation, "V2": read_validation}
