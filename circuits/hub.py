"""Fetch a model from the Hugging Face hub: the files that Meridian reads, of one pinned commit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import huggingface_hub  # loads its parts on first use, since its client takes half a second to import

from results_io import UserError

FILES = ["*.json", "*.safetensors", "merges.txt", "vocab.txt", "tokenizer.model"]
NOT_FILES = ["*/*", "consolidated*", "adapter_*"]  # other formats of the same weights; `*` matches slashes too
INDEX = "model.safetensors.index.json"  # index of sharded weights
SECONDS = 5.0  # time limit for looking up the commit, so that the error without a network comes soon


@dataclass(frozen=True)
class HubSnapshot:
    """A folder with the files of one commit of a repository."""

    folder: Path
    revision: str


def snapshot_of(settings: Mapping[str, Any]) -> HubSnapshot | None:
    """The hub model that a `model=` configuration names; None if it names a folder or another kind. Raises as `fetch`."""
    if settings["kind"] != "hub" or settings.get("path"):
        return None
    return fetch(settings.get("repository") or settings["name"], settings.get("revision"))


@lru_cache
def fetch(repository: str, revision: str | None) -> HubSnapshot:
    """The files of `repository` at `revision` (None: its main branch today), from the local cache if they are there.

    Raises UserError if the repository or the revision does not exist, is gated, has no safetensors, or cannot be reached.
    """
    cached = _cached(repository, revision)
    if cached is not None:
        return cached
    with _explaining(repository, revision):
        commit = _commit(repository, revision)
        folder = huggingface_hub.snapshot_download(
            repository, revision=commit, allow_patterns=FILES, ignore_patterns=NOT_FILES
        )
    return HubSnapshot(Path(folder), commit)


def _cached(repository: str, revision: str | None) -> HubSnapshot | None:
    """What an earlier run downloaded; None if it is missing or incomplete."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                local_files_only=True,
                allow_patterns=FILES,  # otherwise files that were left out count as missing
                ignore_patterns=NOT_FILES,
            )
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return HubSnapshot(folder, folder.name) if _is_whole(folder) else None


def _is_whole(folder: Path) -> bool:
    """True if the configuration and all shards of the weights are there."""
    try:
        names = shards(folder)
    except ValueError:
        return False
    weights = all((folder / name).is_file() for name in names) if names else any(folder.glob("*.safetensors"))
    return weights and (folder / "config.json").is_file()


def shards(folder: Path) -> list[str]:
    """The files of sharded weights that their index names; none without an index.

    Raises ValueError for an invalid index.
    """
    index = folder / INDEX
    if not index.is_file():
        return []
    try:
        named = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index} has no map from tensors to files") from error
    if not all(isinstance(name, str) and name == Path(name).name for name in named):
        raise ValueError(f"{index} names a file outside its folder")
    return named


def _commit(repository: str, revision: str | None) -> str:
    """The commit of `revision` on the hub. Raises UserError if it has no safetensors."""
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    if constants.HF_HUB_OFFLINE:
        raise OfflineModeIsEnabled
    found = huggingface_hub.HfApi().model_info(repository, revision=revision, timeout=SECONDS)
    if not any(file.rfilename.endswith(".safetensors") for file in found.siblings or ()):
        raise UserError(
            f"{repository} at revision {revision or 'main'} has no safetensors weights and a pickle is not opened; convert it "
            "with transformers' save_pretrained and run with model.path=<folder>"
        )
    return str(found.sha)


@contextlib.contextmanager
def _explaining(repository: str, revision: str | None) -> Iterator[None]:
    """Context that turns whatever prevents a download into a UserError of one sentence."""
    from huggingface_hub import constants, errors

    asked = f"{repository} at revision {revision or 'main'}"
    by_hand = (
        f"run `hf download {repository}{f' --revision {revision}' if revision else ''}` where there is a network, or put "
        "config.json, the tokenizer's files and the safetensors weights into a folder and run with model.path=<folder>"
    )
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        sentence = f"model {asked} is not on this machine and HF_HUB_OFFLINE forbids the network; {by_hand}"
        raise UserError(sentence) from error
    except errors.GatedRepoError as error:
        raise UserError(f"model {asked} is gated; accept its licence on its page, then run `hf auth login`") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{repository} has no revision {revision}; set model.revision to a commit of it") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UserError(
            f"the hub has no model {repository!r} that this login may read; write it as on its page, for example "
            "model=hub model.name=EleutherAI/pythia-70m, or point model.path at a folder"
        ) from error
    except UserError:
        raise
    except Exception as error:
        if _is_network_error(error):
            raise UserError(f"model {asked} is not on this machine and the hub cannot be reached; {by_hand}") from error
        if isinstance(error, OSError):  # such as a full disk, or a cache without write permission
            raise UserError(
                f"model {asked} cannot be stored in {constants.HF_HUB_CACHE} ({error}); make room there, or set HF_HOME"
            ) from error
        raise


def _is_network_error(error: Exception) -> bool:
    """True for errors of the hub's HTTP clients, of any module, since the hub has changed its client twice."""
    kinds = {base.__name__ for base in type(error).__mro__}
    of_client = {"TransportError", "HTTPError", "HfHubHTTPError", "LocalEntryNotFoundError"}
    return isinstance(error, (ConnectionError, TimeoutError)) or bool(kinds & of_client)
