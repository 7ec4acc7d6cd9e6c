"""`import meridian`: cheap, small, and what the command line does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

import meridian
import results_io
from calibrations.registry import CALIBRATIONS
from meridian import in_process, overrides
from meridian.finished_run import FinishedRun
from results_io import UserError
from tests.commandline import ROOT, SMALL, command
from tests.meridian.judged import judged

FEW = (*SMALL, "calibration=[c11]")


@pytest.fixture(scope="module")
def selected(tmp_path_factory) -> FinishedRun:
    """A run with one calibration, from Python."""
    return meridian.run(*FEW, results=tmp_path_factory.mktemp("python"))


def test_importing_loads_no_model_library() -> None:
    code = "import sys, meridian; print(sorted({'torch', 'transformers', 'hydra', 'plotly', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_whether_results_are_fresh_is_known_without_the_libraries_that_measure_and_judge() -> None:
    heavy = {"transformers", "transformer_lens", "sklearn", "pandas", "statsmodels", "scipy.stats"}
    code = (
        "import sys, run, circuits.measure, meridian.report; from circuits import models; "
        "models.identify({'name': 'pocket', 'kind': 'embedded', 'path': 'pocket'}); "
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_says_what_it_does() -> None:
    for name in meridian.__all__:
        assert len(getattr(meridian, name).__doc__) > 40, name
    assert not [name for name in ("run", "open", "explore") if name not in meridian.__all__]


def test_only_public_names_are_listed() -> None:
    assert sorted(dir(meridian)) == ["UserError", "compare", "explore", "open", "run", "run_suites"]


# --- run ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_from_python_gives_the_bytes_of_one_from_the_command_line(selected, tmp_path) -> None:
    outcome = command(*FEW, f"results={tmp_path}")
    assert (outcome.code, outcome.errors) == (0, "")
    folder = tmp_path / selected.path.relative_to(selected.path.parents[2])
    files = sorted(path.name for path in selected.path.glob("*.json"))
    assert files == sorted(path.name for path in folder.glob("*.json")) and "11_bootstrap_stability.json" in files
    for name in files:
        assert (folder / name).read_bytes() == (selected.path / name).read_bytes(), name


def test_a_run_shows_its_progress_unless_told_not_to_and_reuses_what_is_fresh(selected, capsys) -> None:
    capsys.readouterr()
    meridian.run(*FEW, results=selected.path.parents[2], show=False)
    assert capsys.readouterr().out == ""
    meridian.run(*FEW, results=selected.path.parents[2])
    assert "nothing measured anew" in capsys.readouterr().out


def test_hydra_and_the_command_line_are_left_as_they_were(selected) -> None:
    hydra, before = HydraConfig.instance(), list(sys.argv)
    kept = hydra.cfg
    hydra.cfg = marker = object()
    try:
        with pytest.raises(UserError, match="task=nothing is unknown"):
            meridian.run("task=nothing")
        meridian.run(*FEW, results=selected.path.parents[2])
        assert hydra.cfg is marker and sys.argv == before and not GlobalHydra.instance().is_initialized()
    finally:
        hydra.cfg = kept


def test_inside_of_a_command_a_run_has_the_settings_that_it_has_outside() -> None:
    """As in `run.py serve`, whose threads load models: Hydra's own state is that of the command afterwards."""
    asked = ["task=greater_than", "prompts.evaluation=30"]
    with in_process.started(asked) as made:
        outside = made.settings, made.typed, made.overrides
    hydra = HydraConfig.instance()
    kept, marker = hydra.cfg, object()
    found: list[Any] = []

    def ask() -> None:
        with in_process.started(asked) as made:
            found.append((made.settings, made.typed, made.overrides))

    with initialize_config_dir(str(overrides.CONFIGS), version_base=None):
        hydra.cfg = marker
        command = GlobalHydra.instance().hydra
        try:
            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert hydra.cfg is marker and GlobalHydra.instance().hydra is command
        finally:
            hydra.cfg = kept
    assert found == [outside] * 4 and outside[0]["prompts"]["evaluation"] == 30


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["task=ioi", "prompts.evaluations=3"], "did you mean prompts.evaluation"),
        (["task=ioi", "suite=all"], "use meridian.run_suites"),
        (["doctor"], "doctor is not a run on a task"),
        (["task=all"], "call run once for each of them"),
        (["task=ioi", "experiment=reproduce_ioi"], "is not a run on a task"),
    ],
)
def test_what_is_no_run_on_one_task_is_refused_in_one_sentence(settings, sentence, tmp_path) -> None:
    with pytest.raises(UserError, match=sentence):
        meridian.run(*settings, results=tmp_path)


def test_suites_need_a_name() -> None:
    with pytest.raises(UserError, match="no suite is named"):
        meridian.run_suites("model=pocket")


def test_verdicts_of_a_selection_are_read_without_a_certificate(selected) -> None:
    shown = selected.verdicts
    assert shown.loc["C11", "verdict"] == selected.calibration("C11")["data"]["verdict"]
    assert (shown.drop("C11")["verdict"] == "not run").all() and len(shown) == len(CALIBRATIONS)
    text = selected._repr_html_()
    assert text.startswith("<p>No certificate") and text.count("<tr>") == 2 and "bootstrap stability" in text


# --- open --------------------------------------------------------------------------------------------------------------


def test_an_opened_run_says_what_its_certificate_says(finished) -> None:
    run = meridian.open(finished)
    stored = results_io.read(finished / "certificate.json")
    assert run.tier == stored["tier"]
    assert run.verdicts.index.tolist() == list(CALIBRATIONS)
    assert run.verdicts["verdict"].tolist() == [row["verdict"] for row in stored["rows"]]
    for row in stored["rows"]:
        decisive = next(record for record in row["records"] if record["metric"] == row["decisive"])
        shown = run.verdicts.loc[row["id"]]
        assert shown["published_verdict"] == decisive["published_verdict"]
        assert pd.isna(shown["estimate"]) if decisive["estimate"] is None else shown["estimate"] == decisive["estimate"]
    level = min(map(int, stored["blocking"]))
    assert run.blocking["metric"].tolist() == [gate["metric"] for gate in stored["blocking"][str(level)]]


def test_a_notebook_shows_tier_blocking_gates_and_every_calibration(finished) -> None:
    run = meridian.open(finished)
    shown = run._repr_html_()
    assert f"Tier {run.tier} of 4" in shown and shown.count("<tr>") == 1 + len(CALIBRATIONS)
    assert all(metric in shown for metric in run.blocking["metric"])


def test_names_in_the_certificate_cannot_be_markup(finished) -> None:
    from meridian import notebook_certificate

    certificate = results_io.read(finished / "certificate.json")
    certificate["headline"]["subject"] = "<script>alert(1)</script>"
    certificate["rows"][0]["records"][0]["reasons"] = ["<img src=x>"]
    shown = notebook_certificate.html(certificate)
    assert "<script" not in shown and "<img" not in shown and "&lt;script&gt;" in shown


def test_figures_of_a_run_are_drawn_by_name(finished) -> None:
    run = meridian.open(finished)
    assert run.figure("circuit")._repr_png_().startswith(b"\x89PNG")
    assert run.figure("heads_02_denoising").interactive().data
    with pytest.raises(UserError, match="has no figure 'cirquit'; use one of"):
        run.figure("cirquit")


def test_only_a_run_on_failures_has_carriers(finished) -> None:
    with pytest.raises(UserError, match="is not about failures"):
        _ = meridian.open(finished).carriers


def test_a_folder_without_a_certificate_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        meridian.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match="calibration=all"):
        meridian.open(Path(tmp_path))


def test_a_printed_run_says_tier_what_blocks_it_and_where_it_is(finished, selected) -> None:
    run = meridian.open(finished)
    tier, blocked, path = str(run).splitlines()
    assert tier == f"Tier {run.tier} of 4 under changed rules" and path == str(finished)
    gates = run.blocking
    assert blocked == f"Blocks tier {run.tier + 1}: " + ", ".join(
        f"{metric} ({verdict})" for metric, verdict in zip(gates["metric"], gates["verdict"], strict=True)
    )
    assert str(selected).splitlines() == ["No certificate: not all calibrations were asked for", str(selected.path)]


def test_a_result_is_found_by_its_number_however_it_is_written(finished) -> None:
    run = meridian.open(finished)
    assert run.data("2") == run.data("02") is not None and run.document("1")["number"] == "01"
    assert run.data("99") is None


def test_tables_show_what_matters_and_all_of_it_is_there(finished) -> None:
    run = meridian.open(finished)
    assert list(run.verdicts) == ["verdict", "estimate", "title", "why", "published_verdict", "low", "high"]
    with pd.option_context("display.width", 100, "display.max_columns", 0):  # of a console
        header = str(run.verdicts).partition("\n")[0].split()
    assert [name for name in header if name != "..."] == ["verdict", "estimate", "low", "high"]
    assert list(run.heads) == ["role", "denoising", "noising", "attribution", "knockout"] and len(run.heads) == 32
    full = run.tables["heads"]
    assert run.heads["denoising"].tolist() == full["02_denoising"].tolist() and "02_denoising_low95" in full
    evaluation = [split == "evaluation" for split in run.data("01")["split"]]
    written = pd.DataFrame(run.data("03")["mlp"])[evaluation].mean()
    assert run.mlps["attribution"].tolist() == pytest.approx(written.tolist())
    assert run.mlps.index.tolist() == ["M0", "M1", "M2", "M3"] and run.mlps["role"].isna().all()


@pytest.mark.slow
def test_two_runs_are_compared_from_python(finished, tmp_path) -> None:
    one, other = judged(finished, tmp_path / "one"), tmp_path / "other"
    shutil.copytree(one, other)
    found = meridian.compare(meridian.open(one), other)
    assert str(found).startswith("a reaches tier") and found.paired
    row = found.table.loc["faithfulness, mean"]
    assert 0.5 < row["a"] == row["b"] and row["difference"] == pytest.approx(0, abs=1e-12)
    with pytest.raises(UserError, match="a and b are both"):
        meridian.compare(one, one)
