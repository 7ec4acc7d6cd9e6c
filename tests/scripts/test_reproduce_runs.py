"""What all reproductions share: whose model it is, parts that are not measured twice, how a row reads."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import results_io
from circuits.study import Study
from results_io import UserError
from scripts.experiments import reproduction
from scripts.experiments.estimates import Estimate, undefined
from scripts.experiments.reproduction import Row
from tests.commandline import started
from tests.scripts import reproduced

EXPERIMENTS = ("ioi", "greater_than", "causal_tracing", "ablation_recipes", "induction")
CONFIG = {"model": {"name": "pocket", "path": "/a/folder"}, "experiment": {"model": "gpt2"}}
INDUCTION = (
    "model=pocket",
    "experiment.repeated_tokens={seed: 0, length: 8, sequences: 2}",
    "experiment.bootstrap.resamples=50",
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_says_what_it_reproduces(name) -> None:
    settings = reproduced.settings_of(f"reproduce_{name}")
    assert settings["name"] == f"reproduce_{name}"
    assert settings["model"] == ("gpt2-xl" if name == "causal_tracing" else "gpt2")
    assert settings["source"]
    assert settings["title"]
    assert settings["recipe_differences"]


def test_the_model_is_the_experiment_s_unless_the_command_line_names_one() -> None:
    own = reproduction.model_settings(CONFIG, ["experiment=reproduce_ioi"], {})
    assert (own["name"], own["kind"]) == ("gpt2", "hub")
    assert own["path"] is None
    there = reproduction.model_settings(CONFIG, ["experiment=reproduce_ioi", "model.path=/a/folder"], {})
    assert (there["name"], there["path"]) == ("gpt2", "/a/folder")
    given = reproduction.model_settings(CONFIG, ["model=pocket", "experiment=reproduce_ioi"], {})
    assert given == CONFIG["model"]
    with pytest.raises(UserError, match=r"experiment\.model=none is no model; use one of .*gpt2"):
        reproduction.model_settings({**CONFIG, "experiment": {"model": "none"}}, [], {})


def test_parts_are_measured_once(tmp_path, monkeypatch) -> None:
    outcome, first = reproduced.reproduce("reproduce_induction", tmp_path, *INDUCTION)
    assert first["data"]["scores"]
    assert first["subject"]["model"] == "pocket"

    def measured_again(*_):
        raise AssertionError("the part was measured again")

    monkeypatch.setattr(reproduction.Reproduction, "study", property(measured_again))
    again, second = reproduced.reproduce("reproduce_induction", tmp_path, *INDUCTION)
    assert second == first
    assert again.output.partition("Induction scores")[2] == outcome.output.partition("Induction scores")[2]


def test_what_was_measured_before_a_stop_is_kept(tmp_path) -> None:
    """Another run goes on from the parts that are done, and one about another subject does not."""

    def work(*settings):
        session = started("experiment=reproduce_induction", f"results={tmp_path}", *INDUCTION, *settings)
        return reproduction.Reproduction(session, "induction")

    first = work()
    first.measure("one", lambda bar: {"a": [1.0, 2.0]})
    with pytest.raises(KeyboardInterrupt):
        first.measure("two", stop)
    assert results_io.read(first.path)["rows"] == []
    assert work().data == {"one": {"a": [1.0, 2.0]}}
    assert work("seed=1").data == {}


def stop(bar) -> Study:
    raise KeyboardInterrupt


def test_a_row_says_whether_the_published_number_lies_inside() -> None:
    cells = Row("a", Estimate(0.85, 0.8, 0.9), 0.87, percent=True, gap="b").cells()
    assert cells == ("a", "87.0 %", "85.0 % [80.0 %, 90.0 %]", "yes", "b")
    assert Row("a", Estimate(3.0, 2.0, 3.5), 3.56).cells() == ("a", "3.56", "3.00 [2.00, 3.50]", "no", "")
    assert Row("a", undefined("division by nothing"), 0.1).cells()[2:4] == ("not defined: division by nothing", "-")
    assert Row("a", Estimate(0.012)).cells()[1:4] == ("-", "0.012", "-")


@pytest.mark.parametrize(("interval", "word"), [((0.1, 0.3), "yes"), ((-0.3, -0.1), "no"), ((-0.1, 0.3), "-")])
def test_a_published_sign_holds_if_the_whole_interval_has_it(interval, word) -> None:
    assert reproduction.positive("a", Estimate(0.1, *interval), "larger").cells()[3] == word


def test_a_remark_that_is_the_same_again_stands_there_once() -> None:
    rows = [Row(name, Estimate(1.0), gap=gap) for name, gap in (("a", "why"), ("b", "why"), ("c", ""), ("d", "why"))]
    console = Console(file=io.StringIO(), width=120)
    console.print(reproduction.table("T", rows))
    lines = console.file.getvalue().splitlines()
    assert [line.rstrip().endswith("why") for line in lines[2:]] == [True, False, False, True]
    assert reproduction.DITTO in lines[3]


def test_a_model_that_does_not_do_the_task_is_said_so() -> None:
    assert reproduction.absence(Estimate(3.0, 2.0, 4.0), 0.99, "m", "ioi") == []
    for difference, correct in ((Estimate(0.1, -0.1, 0.3), 0.9), (Estimate(3.0, 2.0, 4.0), 0.4)):
        (sentence,) = reproduction.absence(difference, correct, "m", "ioi")
        assert sentence.startswith(f"m does not do ioi: it prefers the answer in {100 * correct:.1f} %")
