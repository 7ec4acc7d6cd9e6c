"""`calibration: all` is every file of configs/calibration/, with overrides, and a file with another's section is refused."""

from __future__ import annotations

import shutil

import pytest

import registries
from calibrations.registry import CALIBRATIONS
from meridian import config_groups, overrides
from results_io import UserError
from tests.commandline import started

FOLDER = config_groups.CONFIGS / "calibration"


def test_every_calibration_has_a_file_and_every_file_a_calibration():
    assert config_groups.parts()[0] == "common"
    assert set(config_groups.parts()) == {"common", *map(registries.name_of, CALIBRATIONS.values())}


def test_a_run_has_the_files_sections_with_what_was_typed():
    composed = started("calibration.c11.max_sigma=0.07").settings["calibration"]
    loaded = overrides.group("calibration", "all")
    assert list(composed) == list(loaded) and len(loaded) == 1 + len(CALIBRATIONS)
    assert loaded["c11"]["max_sigma"] != 0.07 == composed["c11"]["max_sigma"]
    loaded["c11"]["max_sigma"] = 0.07
    assert composed == loaded


def test_a_file_with_the_section_of_another_calibration_is_refused(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "calibration")
    (tmp_path / "calibration" / "z9_extra.yaml").write_text("z9: {margin: 0.1}\n")
    config_groups.check(tmp_path / "calibration")
    (tmp_path / "calibration" / "z9_extra.yaml").write_text("c11: {max_sigma: 9}\n")
    with pytest.raises(UserError, match=r"z9_extra\.yaml has the sections c11; expected z9 alone"):
        config_groups.check(tmp_path / "calibration")


def test_other_groups_are_composed_from_the_file_chosen_and_its_defaults():
    assert overrides.group("task", "ioi")["name"] == "ioi"
    assert overrides.group("engine", "fused") == started("engine=fused").settings["engine"]
