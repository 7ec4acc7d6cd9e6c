"""What is fetched from the hub, and the one sentence for whatever stands in the way. No test uses a network."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from circuits import hub
from results_io import UserError

COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
RESPONSE = mock.Mock(headers={}, status_code=404)


class TransportError(Exception):
    """As the hub's HTTP clients name it."""


class ConnectError(TransportError):
    """Likewise."""


class FakeHub:
    """A hub with one repository; `cached` says whether its files are on this machine already."""

    def __init__(self, folder: Path, names=("config.json", "model.safetensors")) -> None:
        self.folder, self.cached, self.error, self.names = folder / COMMIT, False, None, names
        self.downloads: list[dict] = []
        self.asked: list[tuple] = []

    def download(self, repository, revision=None, local_files_only=False, **options):
        if local_files_only and not self.cached:
            raise LocalEntryNotFoundError("nothing here")
        if not local_files_only:
            self.downloads.append({"repository": repository, "revision": revision, **options})
        self.folder.mkdir(exist_ok=True)
        for name in self.names:
            (self.folder / name).touch()
        return str(self.folder)

    def model_info(self, repository, revision=None, timeout=None):
        self.asked.append((repository, revision, timeout))
        if self.error:
            raise self.error
        return SimpleNamespace(sha=COMMIT, siblings=[SimpleNamespace(rfilename=name) for name in self.names])


@pytest.fixture
def remote(monkeypatch, tmp_path) -> FakeHub:
    fake = FakeHub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.fetch.cache_clear()
    yield fake
    hub.fetch.cache_clear()


def refusal(repository="some/model", revision=None) -> str:
    with pytest.raises(UserError) as raised:
        hub.fetch(repository, revision)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_branch_is_pinned_to_the_commit_it_stands_for(remote) -> None:
    found = hub.fetch("some/model", None)
    assert (found.folder, found.revision) == (remote.folder, COMMIT)
    assert remote.asked == [("some/model", None, hub.SECONDS)]
    assert remote.downloads == [
        {
            "repository": "some/model",
            "revision": COMMIT,
            "allow_patterns": hub.FILES,
            "ignore_patterns": hub.NOT_FILES,
        }
    ]


def test_what_is_on_this_machine_is_not_asked_for(remote, monkeypatch) -> None:
    remote.cached = True
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.fetch("some/model", COMMIT).revision == COMMIT
    assert (remote.asked, remote.downloads) == ([], [])


def test_a_download_that_was_cut_off_goes_on(remote) -> None:
    remote.cached, remote.names = True, ("config.json",)
    assert "no safetensors" in refusal()  # the cached folder has no weights, so the hub was asked
    assert len(remote.asked) == 1


def test_only_the_files_that_are_read_match_the_patterns() -> None:
    from huggingface_hub.utils import filter_repo_objects

    there = [
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer.model",
        "vocab.json",
    ]
    others = ["64.tflite", "README.md", "consolidated.safetensors", "flax_model.msgpack", "onnx/config.json"]
    others += ["onnx/decoder.safetensors", "original/params.json", "pytorch_model.bin", "rust_model.ot", "tf_model.h5"]
    kept = filter_repo_objects(there + others, allow_patterns=hub.FILES, ignore_patterns=hub.NOT_FILES)
    assert list(kept) == there


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConnectError("no such host"), "cannot be reached; run `hf download some/model` where there is a network"),
        (TransportError("slow"), "cannot be reached"),
        (ConnectionResetError(), "cannot be reached"),
        (
            GatedRepoError("gated", response=RESPONSE),
            "is gated; accept its licence on its page, then run `hf auth login`",
        ),
        (
            RepositoryNotFoundError("no", response=RESPONSE),
            "the hub has no model 'some/model' that this login may read",
        ),
        (RevisionNotFoundError("no", response=RESPONSE), "some/model has no revision None; set model.revision"),
    ],
)
def test_what_stands_in_the_way_is_said_in_one_sentence(remote, error, says) -> None:
    remote.error = error
    assert says in refusal()
    assert not remote.downloads


def test_a_mistake_of_ours_is_not_called_a_network_error(remote) -> None:
    remote.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        hub.fetch("some/model", None)


def test_offline_says_what_to_download_and_where_to_put_it(remote, monkeypatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    text = refusal("some/model", COMMIT)
    assert f"some/model at revision {COMMIT} is not on this machine and HF_HUB_OFFLINE forbids the network" in text
    assert f"run `hf download some/model --revision {COMMIT}`" in text
    assert "run with model.path=<folder>" in text
    assert remote.asked == []


def test_a_pickle_is_not_downloaded(remote) -> None:
    remote.names = ("config.json", "pytorch_model.bin")
    assert "has no safetensors weights and a pickle is not opened" in refusal()
    assert not remote.downloads


# --- the real cache ------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache of the hub's own client, offline; returns the folder of one repository in it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    whole = huggingface_hub.snapshot_download

    def download(*arguments, **options):
        return whole(*arguments, cache_dir=tmp_path, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub.fetch.cache_clear()
    yield tmp_path / "models--some--model"
    hub.fetch.cache_clear()


def store(repository: Path, files: dict[str, str], listed: tuple[str, ...] = ()) -> Path:
    """What a download leaves: a snapshot, and the list of all files of the commit, those that were not asked for included."""
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in files.items():
        (snapshot / name).write_text(content)
    tree = {name: {"size": 1, "blob_id": "0" * 40} for name in (*files, *listed)}
    (repository / "trees").mkdir()
    (repository / "trees" / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": tree}))
    return snapshot


def test_what_an_earlier_run_downloaded_is_found_although_other_files_were_not(cache) -> None:
    there = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": ""}
    snapshot = store(cache, there, ("README.md", "pytorch_model.bin", "onnx/model.onnx"))
    assert hub.fetch("some/model", COMMIT) == hub.HubSnapshot(snapshot, COMMIT)


def test_shards_of_which_one_is_missing_are_downloaded_again(cache) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    store(cache, {"config.json": "{}", "model.safetensors.index.json": index, "model-1.safetensors": ""})
    assert "is not on this machine and HF_HUB_OFFLINE forbids the network" in refusal("some/model", COMMIT)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (GatedRepoError("gated", response=RESPONSE), "is gated; accept its licence"),
        (ConnectError("gone"), "cannot be reached"),
        (OSError(28, "No space left on device"), "No space left on device); make room there, or set HF_HOME"),
    ],
)
def test_what_stops_the_download_itself_is_said_in_one_sentence(remote, monkeypatch, error, says) -> None:
    def download(repository, local_files_only=False, **options):
        raise LocalEntryNotFoundError("nothing here") if local_files_only else error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert says in refusal()
