"""What an offline run's own files hold (verdicts, tables, figures, progress, the artifact), and that W&B never stops a run."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml
from wandb.proto import wandb_internal_pb2

import results_io
from calibrations.registry import CALIBRATIONS
from calibrations.rules import RuleDifference, Standing
from meridian import figures, overrides, tables, trackers
from meridian.run_folder import RunFolder
from meridian.trackers import dashboard, weights_and_biases
from tests.commandline import SMALL, command
from tests.meridian.judged import judged

pytestmark = pytest.mark.slow

HEADER, BLOCK = 7, 32768  # of W&B's log: the file's header, and what a record may not cross without being split
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """The protocol buffers of an offline run file, which is a LevelDB log."""
    data, at, parts = path.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while at < len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


@dataclass
class Offline:
    """An offline run as its file tells it."""

    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[Any] = field(default_factory=list)
    environment: Any = None
    exit_code: int | None = None


def unfolded(items: Any) -> dict[str, Any]:
    """Items of a record by key; {"a": {"b": 1}} of the nested key ["a", "b"]."""
    found: dict[str, Any] = {}
    for item in items:
        *outer, name = item.nested_key or [item.key]
        place = found
        for part in outer:
            place = place.setdefault(part, {})
        place[name] = json.loads(item.value_json)
    return found


def read(folder: Path) -> Offline:
    found = Offline()
    (path,) = folder.glob("run-*.wandb")
    for _ in range(100):  # W&B's own process may still be writing when the run has ended
        if any(record.WhichOneof("record_type") == "exit" for record in records(path)):
            break
        time.sleep(0.1)
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run = record.run
            found.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "summary":
            found.summary |= unfolded(record.summary.update)
        elif kind == "history":
            found.history.append(unfolded(record.history.item))
        elif kind == "artifact" and record.artifact.type != "run_table":  # W&B makes those of tables by itself
            found.artifacts.append(record.artifact)
        elif kind == "environment":
            found.environment = record.environment
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


@pytest.fixture(scope="module")
def offline(results, tmp_path_factory):
    """The finished run again, followed: nothing is measured, all is told."""
    folder = tmp_path_factory.mktemp("followed") / "results"
    shutil.copytree(results, folder)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DATA_DIR"):
            patch.delenv(name, raising=False)
        patch.setenv("NETRC", str(folder / "no such file"))
        (folder / "pocket" / "ioi").glob(
            "**/21_*.json"
        ).__next__().unlink()  # one measurement, so that there is progress
        outcome = command(*SMALL, "calibration=all", "tracker=wandb", "tracker.group=mine", f"results={folder}")
    (place,) = (folder / "wandb").glob("offline-run-*")
    return outcome, read(place), folder


def test_the_run_succeeds_and_says_how_to_upload(offline) -> None:
    outcome, followed, folder = offline
    assert outcome.code == 0 and followed.exit_code == 0
    (place,) = (folder / "wandb").glob("offline-run-*")
    assert f"W&B offline run; upload it with: wandb sync {place}" in outcome.output.replace("\n", "")
    assert (followed.run.project, followed.run.run_group, followed.run.job_type) == ("meridian", "mine", "circuit")
    assert list(followed.run.tags) == ["pocket", "ioi"]


def test_the_summary_holds_every_verdict_of_the_certificate(offline) -> None:
    _, followed, folder = offline
    (path,) = folder.rglob("certificate.json")
    certificate = results_io.read(path)
    assert len(certificate["rows"]) == 16 == len(CALIBRATIONS)
    for row in certificate["rows"]:
        assert followed.summary[f"{row['id']}/verdict"] == row["verdict"]
        decisive = next(record for record in row["records"] if record["metric"] == row["decisive"])
        assert followed.summary[f"{row['id']}/estimate"] == decisive["estimate"]
        assert followed.summary[f"{row['id']}/published"] == decisive["published_verdict"]
        code = {"pass": 1, "fail": -1, "inconclusive": 0, "insufficient": 0}[row["verdict"]]
        assert followed.summary[f"{row['id']}/verdict_code"] == code
        ends = [followed.summary[f"{row['id']}/{end}"] for end in ("low", "high")]
        assert ends == (decisive["ci90"] or [None, None])
    for name in ("tier", "tier_name", "ceiling"):
        assert followed.summary[name] == certificate[name]
    verdicts = {record["metric"]: record["verdict"] for record in certificate["preconditions"]}
    assert followed.summary["P.faithfulness/verdict"] == verdicts["P.faithfulness"]


def test_the_summary_is_of_the_record_that_decided() -> None:
    other = {"metric": "C11.a", "verdict": "pass", "published_verdict": "none", "estimate": 9.0, "ci90": [8.0, 10.0]}
    decisive = {"metric": "C11.b", "verdict": "fail", "published_verdict": "pass", "estimate": 0.2, "ci90": [0.1, 0.4]}
    rows = [{"id": "C11", "title": "x", "verdict": "fail", "decisive": "C11.b", "records": [other, decisive]}]
    rows += [{"id": "S1", "title": "y", "verdict": "not run", "records": []}]
    gate = {"metric": "P.faithfulness", "verdict": "pass", "estimate": 0.9}
    about = {"tier": None, "tier_name": "absent", "ceiling": 3}
    standing = Standing("0.3", "x", (RuleDifference("seed", 1, 0),))
    told = {**about, "rows": rows, "preconditions": [gate], "rules": standing.to_dict()}
    assert weights_and_biases.summary(told) == {
        **about,
        "rules": "rules: changed from released 0.3\nseed: 1 (released: 0)",
        **{"C11/verdict": "fail", "C11/verdict_code": -1, "C11/published": "pass"},
        **{"C11/estimate": 0.2, "C11/low": 0.1, "C11/high": 0.4},
        **{"S1/verdict": "not run", "S1/verdict_code": None},
        **{"P.faithfulness/verdict": "pass", "P.faithfulness/estimate": 0.9},
    }


def test_the_summary_names_the_worst_groups_with_both_losses() -> None:
    claimed = {
        "heads": [[0, 1], [2, 3]],
        "recipe": "mean_pooled",
        "ci90": [0.3, 0.4],
        "gate": "P.completeness",
        "limit": 0.2,
    }
    claimed |= {"name": "layer 2", "lost_by_circuit": 0.61, "lost_by_model": 0.26, "incompleteness": 0.35}
    outside = {
        "heads": [[3, 0]],
        "recipe": "resample",
        "ci90": [0.1, 0.2],
        "kind": "head",
        "side": "circuit",
        "share": 0.15,
    }
    groups = {"claimed": [claimed | {"published_score": 0.4}], "outside": [outside | {"limit": 0.1}]}
    stored = {"worst_groups": {**groups, "by_template": None, "normalisers": {"mean_pooled": 3.0}}}
    assert weights_and_biases.summary({"tier": 1, "ceiling": 4, "rows": [], "preconditions": [], **stored}) == {
        "tier": 1,
        "tier_name": "under unknown rules",
        "rules": "rules: unknown",
        "ceiling": 4,
        "P.completeness/heads": "L0H1 L2H3",
        "P.completeness/recipe": "mean pooled",
        "P.completeness/circuit_loses": 0.61,
        "P.completeness/model_loses": 0.26,
        "P.completeness/inc": 0.35,
        "P.completeness/published_score": 0.4,
        "P.outside/heads": "L3H0",
        "P.outside/side": "the circuit with them",
        "P.outside/recipe": "resample",
        "P.outside/share": 0.15,
    }


def test_the_configuration_and_the_weights_are_told(offline) -> None:
    _, followed, folder = offline
    (path,) = folder.rglob("01_baseline.json")
    assert followed.config["model_sha256"] == results_io.read(path)["subject"]["model_sha256"]
    sizes = {"discovery": 30, "groups": 40, "evaluation": 40, "held_out": 20, "reference": 120}
    assert followed.config["prompts"] == {**sizes, "templates": "default"}
    assert followed.config["calibration"]["c11"]


def test_tables_and_figures_are_logged(offline) -> None:
    _, followed, folder = offline
    logged = {name: value for row in followed.history for name, value in row.items()}
    assert logged["table/certificate"]["_type"] == "table-file"
    (place,) = (folder / "wandb").glob("offline-run-*")
    stored = json.loads((place / "files" / logged["table/records"]["path"]).read_text())
    (path,) = folder.rglob("certificate.json")
    shown = {record["metric"] for row in results_io.read(path)["rows"] for record in row["records"]}
    assert shown <= {cell for row in stored["data"] for cell in row if isinstance(cell, str)}
    assert {"table/heads", "table/prompts", "table/outside_effects", "figure/outside_effects"} <= set(logged)
    run = RunFolder.open(path.parent)
    heads = json.loads((place / "files" / logged["table/heads"]["path"]).read_text())
    frame = tables.of(run)["heads"].frame
    assert heads["columns"] == list(frame) and len(heads["data"]) == 32
    stored_column = [row[heads["columns"].index("02_denoising")] for row in heads["data"]]
    assert stored_column == frame["02_denoising"].tolist()
    figure = json.loads((place / "files" / logged["figure/heads_02_denoising"]["path"]).read_text())
    (drawn,) = (trace for trace in figure["data"] if trace["type"] == "heatmap" and trace.get("z"))
    assert [value for row in drawn["z"] for value in row] == pytest.approx(frame["02_denoising"].tolist())
    drawn = [name for name in logged if name.startswith("figure/")]
    assert 8 <= len(drawn) <= 12
    assert all(logged[name]["_type"] == "plotly-file" for name in drawn)


def test_twelve_figures_are_sent_or_all(finished, tmp_path) -> None:
    found = figures.of(RunFolder.open(judged(finished, tmp_path / "run")))
    settings = overrides.group("tracker", "wandb")
    first = weights_and_biases.chosen(found, settings)
    assert len(first) == 12 == len(settings["first_figures"]) and list(first) == [
        name for name in found if name in first
    ]
    assert weights_and_biases.chosen(found, {**settings, "figures": "all"}) == found and len(found) > 50


def test_faithfulness_is_told_by_recipe_with_the_band_and_the_one_that_decides(finished, tmp_path) -> None:
    run = RunFolder.open(judged(finished, tmp_path / "run"))
    told, stored = weights_and_biases.faithfulness(run), run.companions("P.faithfulness")
    assert len(stored["by_method"]) == 5
    for recipe, one in stored["by_method"].items():
        assert told[f"faithfulness/{recipe}"] == one["faithfulness"]
        assert (told[f"faithfulness/{recipe}_low"], told[f"faithfulness/{recipe}_high"]) == run.recipe_intervals[recipe]
    assert (told["faithfulness/band_low"], told["faithfulness/band_high"]) == (0.8, 1.2)
    room = {name: min(low - 0.8, 1.2 - high) for name, (low, high) in run.recipe_intervals.items()}
    assert room[told["P.faithfulness/recipe"]] == min(room[name] for name in stored["recipes"])
    null = run.companions("P.random_circuits")
    assert told["random_circuits/largest"] == null["random_maximum"]
    assert weights_and_biases.faithfulness(RunFolder.open(finished)).get("faithfulness/mean") is None  # nothing judged


def test_no_folder_of_this_machine_is_told(offline) -> None:
    _, followed, folder = offline
    assert folder.is_absolute() and followed.config["results"] == folder.name
    assert str(folder) not in json.dumps([followed.config, followed.summary])
    told = {"model": {"path": "/data/models/mine", "name": "mine"}, "companions": ["/x/y.csv", "b.csv"], "share": 0.5}
    assert weights_and_biases.without_folders(told) == {
        **{"model": {"path": "mine", "name": "mine"}, "companions": ["y.csv", "b.csv"]},
        "share": 0.5,
    }


def test_progress_is_told_to_the_end_of_what_was_measured(offline) -> None:
    _, followed, _ = offline
    told = [row for row in followed.history if "progress/share" in row]
    assert told[-1]["progress/share"] == 1.0
    assert told[-1]["progress/measurement"].startswith("21 ")
    assert told[-1]["progress/pairs"] == 33 * 60  # (intact + 32 heads) x prompts
    assert told[-1]["progress/pairs_per_second"] > 0


def test_the_artifact_holds_all_numbered_results_certificate_and_report(offline) -> None:
    _, followed, folder = offline
    (artifact,) = followed.artifacts
    (certificate,) = folder.rglob("certificate.json")
    stored = {entry.path: entry.local_path for entry in artifact.manifest.contents}
    assert set(stored) == {path.name for path in certificate.parent.glob("*.json")} | {"report.html"}
    assert len([name for name in stored if name[0].isdigit()]) == 19 + 14  # measurements, calibrations
    for name, copied in stored.items():
        assert Path(copied).read_bytes() == (certificate.parent / name).read_bytes()
    assert artifact.type == "certificate" and artifact.name.startswith("pocket-ioi")


def test_the_same_folder_and_weights_are_the_same_run(offline) -> None:
    _, followed, folder = offline
    (path,) = folder.rglob("certificate.json")
    name = str(path.parent.relative_to(folder))
    weights = results_io.read(path)["subject"]["model_sha256"]
    word = (folder / "wandb" / "salt.txt").read_text().strip()
    assert followed.run.run_id == results_io.sha256([word, name, weights])[:16]


def test_each_results_folder_has_its_own_runs_and_keeps_them(tmp_path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    words = [weights_and_biases.salt(tmp_path / name) for name in ("one", "two", "one")]
    assert words[0] == words[2] != words[1] and len(words[0]) == 32


def test_of_the_machine_no_name_path_or_argument_is_told(offline) -> None:
    _, followed, _ = offline
    assert followed.environment is None and followed.run.host == "private"
    assert not followed.run.git.remote_url and not followed.run.git.commit


def test_names_and_tags_are_such_as_wandb_takes() -> None:
    assert (
        weights_and_biases.artifact_name("planted/sö und/ioi.x=1", "certificate")
        == "planted-s__und-ioi.x_1-certificate"
    )
    name = weights_and_biases.artifact_name("m/" + "x" * 300, "certificate")
    assert len(name) == 120 and name.startswith("m-x") and name.endswith("x-certificate")
    assert wandb.Artifact(name, type="certificate").name == name
    assert weights_and_biases.tags(["m" * 80, "ioi", "ioi", "", 7]) == ["m" * 64, "ioi", "7"]


def follow(settings: dict[str, Any], results: Path, say) -> None:
    defaults = {"name": "wandb", "project": "p", "entity": None, "mode": None, "group": None, "tags": []}
    tracker = trackers.open_tracker({**defaults, "progress_seconds": 5, **settings}, results, say)
    with tracker.following(lambda: trackers.FollowedRun("m/t", "m" * 100, "t", "0", {})):
        tracker("progress", "01", 1, 1, 2.0)


def test_a_disabled_run_says_nothing_and_a_long_name_is_followed(tmp_path) -> None:
    said: list[str] = []
    follow({"mode": "disabled"}, tmp_path, said.append)
    assert said == []
    follow({"mode": "offline"}, tmp_path, said.append)
    assert len(said) == 1 and said[0].startswith("W&B offline run; upload it with")
    (place,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(read(place).run.tags) == ["m" * 64, "t"]


def test_a_wandb_that_cannot_be_imported_or_made_stops_no_run(tmp_path, monkeypatch) -> None:
    said: list[str] = []

    def refuse(*about: Any) -> None:
        raise OSError("no\n home")

    with monkeypatch.context() as patch:
        patch.setattr(weights_and_biases, "WeightsAndBiases", refuse)
        follow({}, tmp_path, said.append)
        patch.setitem(sys.modules, "meridian.trackers.weights_and_biases", None)
        follow({}, tmp_path, said.append)
    assert said[0] == "W&B cannot follow (no home); the run goes on"
    assert said[1].startswith("W&B cannot follow (import of meridian.trackers.weights_and_biases")
    with pytest.raises(results_io.UserError, match=r"tracker\.mode=wrong is unknown"):
        follow({"mode": "wrong"}, tmp_path, said.append)


def test_a_tracker_leaves_the_results_as_they_are(offline, results) -> None:
    _, _, folder = offline
    (path,) = folder.rglob("certificate.json")
    assert path.read_bytes() == next(results.rglob("certificate.json")).read_bytes()


# --- never fatal ---------------------------------------------------------------------------------------------------


class Broken:
    """A tracker of which one method raises."""

    def __init__(self, event: str) -> None:
        self.event, self.ended = event, 0

    def __getattr__(self, name: str):
        def told(*about: Any) -> None:
            self.ended += name == "end"
            if name == self.event:
                raise RuntimeError("no\n network")

        return told


@pytest.mark.parametrize("event", ["begin", "progress", "judged", "finished", "end"])
def test_an_error_is_said_once_and_the_run_goes_on(event) -> None:
    said: list[str] = []
    broken = Broken(event)
    tracker = trackers.NeverFatal(broken, said.append)
    done = []
    with tracker.following(lambda: trackers.FollowedRun("m/t", "m", "t", "0", {})):
        for name in ("progress", "judged", "finished"):
            tracker(name, *[None] * {"progress": 4, "judged": 1, "finished": 1}[name])
            done.append(name)
    assert done == ["progress", "judged", "finished"]
    assert said == [f"Broken stops following at '{event}' (no network); the run goes on"]
    assert broken.ended >= 1


def test_an_error_of_the_run_itself_is_not_swallowed_and_ends_the_tracking_as_failed() -> None:
    ended: list[bool] = []
    silent = trackers.Tracker()
    silent.end = ended.append
    tracker = trackers.NeverFatal(silent, print)
    with pytest.raises(results_io.UserError), tracker.following(lambda: trackers.FollowedRun("m/t", "m", "t", "0", {})):
        raise results_io.UserError("refused")
    assert ended == [True]


def test_a_run_of_which_wandb_cannot_start_ends_well(results, tmp_path, monkeypatch) -> None:
    shutil.copytree(results, tmp_path / "results")

    def refuse(**settings: Any) -> None:
        raise wandb.errors.CommError("the server is away")

    monkeypatch.setattr(wandb, "init", refuse)
    outcome = command(*SMALL, "calibration=all", "tracker=wandb", f"results={tmp_path / 'results'}")
    assert outcome.code == 0
    assert "WeightsAndBiases stops following at 'begin' (the server is away); the run goes on" in outcome.output


# --- where a run goes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "environment", "expected"),
    [
        (None, {}, "offline"),
        (None, {"WANDB_API_KEY": "x" * 40}, "online"),
        (None, {"WANDB_API_KEY": "x" * 40, "WANDB_MODE": "offline"}, "offline"),
        ("offline", {"WANDB_API_KEY": "x" * 40}, "offline"),
        ("online", {"WANDB_MODE": "offline"}, "online"),
    ],
)
def test_runs_are_offline_unless_there_is_a_login(asked, environment, expected, monkeypatch, tmp_path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert weights_and_biases.mode(asked, pytest.fail) == expected


@pytest.mark.parametrize("word", ["dryrun", "run", "shared", "banana"])
def test_another_word_in_the_environment_keeps_the_run_offline(word, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setenv("WANDB_MODE", word)
    assert weights_and_biases.mode(None, said.append) == "offline"
    assert said == [f"WANDB_MODE={word} is none of online, offline, disabled; W&B stays offline"]
    wandb.Settings(mode=os.environ["WANDB_MODE"])  # would raise for the word
    monkeypatch.setenv("WANDB_MODE", "")
    assert weights_and_biases.mode(None, pytest.fail) == "online"
    monkeypatch.setenv("WANDB_MODE", word)
    assert weights_and_biases.mode("online", pytest.fail) == "online"


def test_a_login_in_netrc_counts_for_its_own_server_alone(monkeypatch, tmp_path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "netrc"
    path.write_text(f"machine api.wandb.ai\n  login user\n  password {'x' * 40}\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    assert weights_and_biases.mode(None, pytest.fail) == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert weights_and_biases.mode(None, pytest.fail) == "offline"


def test_the_trackers_are_those_of_the_configuration_and_another_name_is_refused(results, tmp_path) -> None:
    files = (overrides.CONFIGS / "tracker").glob("*.yaml")
    assert {path.stem: yaml.safe_load(path.read_text())["name"] for path in files} == {
        name: name for name in (trackers.NONE, *trackers.TRACKERS)
    }
    for _, module, kind in trackers.TRACKERS.values():
        assert issubclass(getattr(importlib.import_module(module), kind), trackers.Tracker)
    with pytest.raises(results_io.UserError, match=r"^tracker\.name=other is unknown; use none or wandb$"):
        follow({"name": "other"}, tmp_path, pytest.fail)


def test_an_unknown_mode_is_refused(results, tmp_path) -> None:
    outcome = command(*SMALL, "tracker=wandb", "tracker.mode=sometimes", f"results={tmp_path}")
    assert outcome.code == 2
    assert outcome.errors.strip() == "tracker.mode=sometimes is unknown; use online or offline"


def test_runs_of_a_multirun_share_a_group() -> None:
    from meridian import commandline

    given = ["-m", "task=ioi,greater_than", "seed=0,1", "tracker=wandb"]
    assert commandline.arguments(given)[-1] == 'tracker.group="seed=0,1 task=ioi,greater_than"'
    assert commandline.arguments([*given, "tracker.group=mine"])[-1] == "tracker.group=mine"
    assert commandline.arguments(["task=ioi", "tracker=wandb"]) == ["task=ioi", "tracker=wandb"]


def test_the_dashboard_has_a_column_for_every_calibration() -> None:
    runs = dashboard.build("team", "meridian")._to_model().model_dump()["spec"]["section"]["run_sets"][0]
    pinned = runs["run_feed"]["column_pinned"]
    assert {f"summary:{name}/verdict" for name in CALIBRATIONS} <= set(pinned)
    assert pinned["summary:tier"] and pinned["summary:tier_name"]  # the name has the recipe
    assert not runs["grouping"]  # one row a circuit
