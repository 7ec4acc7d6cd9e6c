"""The corpus of a series: what it was asked, whatever the settings say by now."""

from __future__ import annotations

import shutil

import pytest
import yaml

from meridian import drift_series
from results_io import UserError
from suites.drift import corpus, series_record
from suites.log import chain
from tests.commandline import started
from tests.suites.test_drift_analysis import begun, line, week


@pytest.fixture
def mine(tmp_path):
    """A corpus in a folder, and a series that was asked it."""
    folder = tmp_path / "mine"
    shutil.copytree(corpus.FOLDER / "pocket", folder)
    (folder / corpus.LOCK).unlink()
    (folder / corpus.LOCK).write_text(corpus.freeze(folder))
    asked = corpus.load(folder)
    public = [{**prompt.frozen, "hash": prompt.hash, "answer": prompt.answer} for prompt in asked.prompts]
    series = tmp_path / "results" / "drift" / "prod"
    with chain.Writer(series / series_record.NAME) as writer:
        week(writer, "2026-W22", [line("2026-W22", "fact-p-00", 0)], name="mine", public=public)
        writer.append([begun("2026-W23", name="mine", public=public)])
    return folder, series


def test_what_was_typed_last_has_to_be_what_the_series_was_asked(mine, tmp_path) -> None:
    folder, series = mine
    context = started("drift", "series=prod")
    assert drift_series.settings_for(context, tmp_path / "none")["corpus"] == "pocket"  # not begun
    assert drift_series.settings_for(context, series)["corpus"] == "mine"
    settings = drift_series.settings_for(started("drift", "series=prod", f"drift.corpus={folder}"), series)
    assert (settings["corpus"], drift_series.analysed_by(settings)["corpus"]) == (str(folder), "mine")
    with pytest.raises(UserError, match=r"drift\.corpus=pocket is not mine, which the series prod was asked"):
        drift_series.settings_for(started("drift", "series=prod", "drift.corpus=pocket"), series)


def test_the_prompts_of_a_trace_are_those_on_record(mine) -> None:
    """Of another name, or with a prompt of another text, they are refused; a corpus that has grown since is not."""
    folder, series = mine
    asked = series_record.read(series / series_record.NAME).snapshots["2026-W22"]
    with pytest.raises(UserError, match="2026-W22 was asked the corpus mine, not pocket"):
        drift_series.questions_of({"corpus": "pocket"}, asked)
    data = yaml.safe_load((folder / corpus.FILE).read_text())
    own = next(one for one in data["prompts"] if one["id"] == "fact-p-00")
    data["prompts"].append({**own, "version": 2, "supersedes": 1, "prompt": "The capital of Norway is it"})
    (folder / corpus.FILE).write_text(yaml.safe_dump(data))
    (folder / corpus.LOCK).write_text(corpus.freeze(folder))
    assert len(drift_series.questions_of({"corpus": str(folder)}, asked).prompts) == 61
    data["prompts"] = [one for one in data["prompts"] if one["id"] != "fact-p-00"]
    (folder / corpus.FILE).write_text(yaml.safe_dump(data))
    (folder / corpus.LOCK).unlink()
    (folder / corpus.LOCK).write_text(corpus.freeze(folder))
    with pytest.raises(UserError, match="the corpus mine has no fact-p-00@1 as 2026-W22 was asked it"):
        drift_series.questions_of({"corpus": str(folder)}, asked)
