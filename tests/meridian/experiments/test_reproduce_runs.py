"""What all reproductions share: whose model it is, parts that are not measured twice, how a row reads."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import results_io
from circuits.study import Study
from meridian import overrides
from meridian.experiments import reproduction
from meridian.experiments.estimates import PromptEstimate, undefined
from meridian.experiments.reproduction import ReproducedRow
from results_io import UserError
from tests.commandline import command, started
from tests.meridian.experiments import reproduced

pytestmark = pytest.mark.slow

EXPERIMENTS = ("ioi", "greater_than", "causal_tracing", "ablation_recipes", "induction")
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
    def chosen(*typed: str) -> dict[str, Any]:
        return reproduction.model_settings(started("experiment=reproduce_ioi", *typed))

    own = chosen()
    assert (own["name"], own["kind"]) == ("gpt2", "hub")
    assert own["path"] is None
    there = chosen("model.path=/a/folder")
    assert (there["name"], there["path"]) == ("gpt2", "/a/folder")
    assert chosen("model=pocket") == overrides.group("model", "pocket")
    assert chosen("model=pocket", "seed=1", "model.dtype=bfloat16")["dtype"] == "bfloat16"
    with pytest.raises(UserError, match=r"experiment\.model=none is no model; use one of .*gpt2"):
        chosen("experiment.model=none")


def test_an_experiment_leaves_the_settings_of_its_run_alone() -> None:
    """It measures another model with other prompts than the command line's default, in a context of its own."""
    context = started("experiment=reproduce_ioi", "experiment.model=pocket")
    context = replace(context, settings={**context.settings, "model": overrides.group("model", "gpt2")})
    before = copy.deepcopy(context.settings)
    work = reproduction.Reproduction(context, "ioi")
    assert context.settings == before
    assert work.context.settings["model"]["name"] == work.identity.name == "pocket"
    assert work.context.settings["prompts"] == work.settings["prompts"] != before["prompts"]


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

    def work(*settings, **rest):
        context = started("experiment=reproduce_induction", f"results={tmp_path}", *INDUCTION, *settings)
        return reproduction.Reproduction(context, "induction", **rest)

    first = work()
    first.measure("one", lambda bar: {"a": [1.0, 2.0]})
    with pytest.raises(KeyboardInterrupt):
        first.measure("two", stop)
    assert results_io.read(first.path)["rows"] == []
    assert work().data == {"one": {"a": [1.0, 2.0]}}
    assert work("seed=1").data == {}
    assert work(about={"a": 1}).data == {}
    assert work(about={"a": 1}).path == first.path


def test_words_published_numbers_and_intervals_leave_the_parts_as_they_are(tmp_path) -> None:
    """The table is made anew from them; what they were measured with is another subject."""

    def work(**settings):
        context = started("experiment=reproduce_ioi", f"results={tmp_path}", "model=pocket")
        experiment = {**context.settings["experiment"], **settings}
        return reproduction.Reproduction(
            replace(context, settings={**context.settings, "experiment": experiment}), "ioi"
        )

    first = work()
    first.measure("one", lambda bar: {"a": [1.0]})
    lines = [{**line, "paper": [1.0, 2.0]} for line in first.settings["minimality"]]
    changed = {"title": "a", "source": "b", "paper": {}, "recipe_differences": {}, "minimality": lines}
    again = work(**changed, bootstrap={"resamples": 3, "seed": 1})
    assert again.path == first.path
    assert again.data == {"one": {"a": [1.0]}}
    again.finish([ReproducedRow("a", PromptEstimate(1.0))])
    assert results_io.read(again.path)["experiment"]["title"] == "a"
    assert work(positions={"name_mover": ["s2"]}).data == {}


def test_code_of_an_experiment_is_what_it_imports() -> None:
    names = {path.stem for path in reproduction.sources("reproduce_greater_than")}
    assert names == {"reproduce_greater_than", "reproduction", "estimates"}
    names = {path.stem for path in reproduction.sources("reproduce_ablation_recipes")}
    assert names == {"reproduce_ablation_recipes", "head_positions", "reproduction", "estimates"}


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("prompts.evaluation=50", r"use experiment\.prompts\.evaluation=50"),
        ("prompts={discovery: 1}", r"use experiment\.prompts={discovery: 1}"),
        ("prompts.templates=more", "reproduce_ioi draws prompts of its own task, ioi; leave it out"),
        ("task=docstring", "reproduce_ioi draws prompts of its own task, ioi; leave it out"),
        ("task.metric=probability_difference", "its own task, ioi; leave it out"),
        ("+task.corruption=name_swap", "its own task, ioi; leave it out"),
    ],
)
def test_settings_typed_in_vain_are_refused(typed, sentence) -> None:
    with pytest.raises(UserError, match=sentence) as refused:
        reproduction.refuse_unread(["experiment=reproduce_ioi", typed], "reproduce_ioi", "ioi")
    assert str(refused.value).startswith(f"{typed.lstrip('+')} is not read: ")


def test_bos_is_read_where_prompts_are_drawn() -> None:
    given = ["task.bos=false", "experiment.prompts.evaluation=50", "model=gpt2"]
    reproduction.refuse_unread(given, "reproduce_ioi", "ioi")
    with pytest.raises(UserError, match="makes its own prompts"):
        reproduction.refuse_unread(given, "reproduce_causal_tracing", None)


def test_a_run_with_and_without_bos(tmp_path) -> None:
    works = []
    for bos in ("true", "false"):
        given = ("experiment=reproduce_ioi", f"results={tmp_path}", "model=pocket", f"task.bos={bos}")
        works.append(reproduction.Reproduction(started(*given), "ioi"))
    assert [work.plan.task.bos for work in works] == [True, False]
    assert works[0].subject != works[1].subject
    for name in ("induction", "causal_tracing", "ioi"):
        outcome = command(f"experiment=reproduce_{name}", f"results={tmp_path}", "model=pocket", "task.metric=null")
        assert outcome.code == 2
        assert f"task.metric=null is not read: reproduce_{name} " in outcome.errors


def test_a_claim_is_heard(tmp_path, monkeypatch) -> None:
    """What a search for the circuit says is said in the run."""
    context = started("experiment=reproduce_ioi", f"results={tmp_path}", "model=pocket")
    work, said = reproduction.Reproduction(context, "ioi"), []
    monkeypatch.setattr(context.reporter, "say", said.append)

    def resolve(plan, settings, folder, bar, say):
        say("found")
        return plan.identity.circuits["ioi"]

    monkeypatch.setattr(reproduction.claims, "resolve", resolve)
    work.claim()
    assert said == ["found"]


def stop(bar) -> Study:
    raise KeyboardInterrupt


def test_a_row_says_whether_the_published_number_lies_inside() -> None:
    cells = ReproducedRow("a", PromptEstimate(0.85, 0.8, 0.9), 0.87, percent=True, gap="b").cells()
    assert cells == ("a", "87.0 %", "85.0 % [80.0 %, 90.0 %]", "yes", "b")
    assert ReproducedRow("a", PromptEstimate(3.0, 2.0, 3.5), 3.56).cells() == (
        "a",
        "3.56",
        "3.00 [2.00, 3.50]",
        "no",
        "",
    )
    assert ReproducedRow("a", undefined("division by nothing"), 0.1).cells()[2:4] == (
        "not defined: division by nothing",
        "-",
    )
    assert ReproducedRow("a", PromptEstimate(0.012)).cells()[1:4] == ("-", "0.012", "-")


def test_a_published_size_is_compared_with_either_sign() -> None:
    assert ReproducedRow("a", PromptEstimate(-0.5, -0.6, -0.4), 0.46, size=True).cells()[1:4] == (
        "|0.46|",
        "-0.50 [-0.60, -0.40]",
        "yes",
    )
    assert ReproducedRow("a", PromptEstimate(0.5, 0.4, 0.6), 0.46, size=True).inside is True
    assert ReproducedRow("a", PromptEstimate(-0.5, -0.6, -0.4), 0.46).inside is False
    assert ReproducedRow("a", PromptEstimate(0.1, -0.2, 0.4), 0.46, size=True).inside is False
    assert ReproducedRow("a", PromptEstimate(0.1), 0.46, size=True).inside is None
    assert ReproducedRow("a", PromptEstimate(0.1), "small", size=True).cells()[1] == "small"


@pytest.mark.parametrize(("interval", "word"), [((0.1, 0.3), "yes"), ((-0.3, -0.1), "no"), ((-0.1, 0.3), "-")])
def test_a_published_sign_holds_if_the_whole_interval_has_it(interval, word) -> None:
    assert reproduction.positive("a", PromptEstimate(0.1, *interval), "larger").cells()[3] == word


def test_a_remark_that_is_the_same_again_stands_there_once() -> None:
    rows = [
        ReproducedRow(name, PromptEstimate(1.0), gap=gap)
        for name, gap in (("a", "why"), ("b", "why"), ("c", ""), ("d", "why"))
    ]
    console = Console(file=io.StringIO(), width=120)
    console.print(reproduction.table("T", rows))
    lines = console.file.getvalue().splitlines()
    assert [line.rstrip().endswith("why") for line in lines[2:]] == [True, False, False, True]
    assert reproduction.DITTO in lines[3]


def test_a_model_that_does_not_do_the_task_is_said_so() -> None:
    assert reproduction.absence(PromptEstimate(3.0, 2.0, 4.0), 0.99, "m", "ioi") == []
    for difference, correct in ((PromptEstimate(0.1, -0.1, 0.3), 0.9), (PromptEstimate(3.0, 2.0, 4.0), 0.4)):
        (sentence,) = reproduction.absence(difference, correct, "m", "ioi")
        assert sentence.startswith(f"m does not do ioi: it prefers the answer in {100 * correct:.1f} %")
