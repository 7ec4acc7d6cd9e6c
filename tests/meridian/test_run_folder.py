"""What a folder must hold to be shown, and what it may lack."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import results_io
from calibrations import preconditions
from meridian import figures, report, run_folder
from meridian.run_folder import RunFolder
from results_io import UserError
from tests.commandline import command


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "results" / "pocket" / "ioi")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", ["01", "20", "P"])
def test_without_prompts_circuit_or_preconditions_every_command_refuses(copied, finished, number, tmp_path) -> None:
    results_io.find(copied, number).unlink()
    sentence = f"{copied} lacks result {number}, which everything else is about; repeat the run that it is of"
    with pytest.raises(UserError) as refused:
        RunFolder.open(copied)
    assert str(refused.value) == sentence
    for asked in (("figures", f"from={copied}"), ("compare", f"a={copied}", f"b={finished}")):
        outcome = command(*asked, f"results={tmp_path / 'r'}")
        assert (outcome.code, outcome.errors.strip()) == (2, sentence)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", ["02", "04", "11", "25", "28"])
def test_any_other_result_may_be_missing(copied, number) -> None:
    whole = set(figures.of(RunFolder.open(copied)))
    results_io.find(copied, number).unlink()
    run = RunFolder.open(copied)
    assert set(figures.of(run)) <= whole
    assert report.render(run).startswith("<!doctype html>")


def test_the_headline_s_random_circuits_are_those_of_the_certificate(finished) -> None:
    run = RunFolder.open(finished)
    null = preconditions.random_faithfulness(run.evidence)
    expected = (
        f"Random circuits of its size and layers, mean ablation: median {np.median(null):.2f}, largest {null.max():.2f}"
    )
    assert run.certificate["headline"]["faithfulness"].splitlines()[-1] == expected


def test_folders_are_looked_through_to_a_depth_and_by_no_link(tmp_path) -> None:
    for depth in range(7):
        folder = tmp_path.joinpath(*"abcdef"[:depth])
        folder.mkdir(exist_ok=True)
        (folder / "x.json").touch()
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    depths = [len(path.relative_to(tmp_path).parts) - 1 for path in run_folder.below(tmp_path, "x.json")]
    assert depths == [0, 1, 2, 3, 4]
    assert len(list(run_folder.below(tmp_path, "*.json", 2))) == 3
    assert list(run_folder.below(tmp_path / "nowhere", "x.json")) == []


def test_a_certificate_that_is_no_file_is_named_and_no_other_folder_offered(tmp_path) -> None:
    (tmp_path / "certificate.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(
        UserError, match=r"certificate.json is not a file; delete it and run the command of that folder"
    ):
        run_folder.certified(tmp_path)


def test_folders_are_found_to_the_same_depth_and_links_are_not_followed(tmp_path) -> None:
    for depth in range(7):
        (tmp_path.joinpath(*"abcdef"[:depth]) / "suites").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [path.relative_to(tmp_path).as_posix() for path in run_folder.folders_below(tmp_path, "suites")]
    assert found == ["suites", "a/suites", "a/b/suites", "a/b/c/suites", "a/b/c/d/suites"]
    assert [path.name for path in run_folder.folders_below(tmp_path, "l*", 0)] == ["linked", "loop"]
