"""Fetch a model from the Hugging Face hub: the files that Meridian reads, of one pinned commit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from results_io import UserError

FILES = ["*.json", "*.safetensors", "merges.txt", "vocab.txt", "tokenizer.model"]
NOT_FILES = ["*/*", "consolidated*", "adapter_*"]  # other formats of the same weights; `*` matches slashes too
SECONDS = 5.0  # to answer whether the commit is there; without a network the sentence should not be long in coming


@dataclass(frozen=True)
class Snapshot:
    """A folder with the files of one commit of a repository."""

    folder: Path
    revision: str


@lru_cache
def fetch(repository: str, revision: str | None) -> Snapshot:
    """The files of `repository` at `revision` (None: its main branch today), from the local cache if they are there.

    UserError if the repository or the revision does not exist, is gated, has no safetensors, or cannot be reached.
    """
    cached = _cached(repository, revision)
    if cached is not None:
        return cached
    commit = _commit(repository, revision)
    folder = snapshot_download(repository, revision=commit, allow_patterns=FILES, ignore_patterns=NOT_FILES)
    return Snapshot(Path(folder), commit)


def _cached(repository: str, revision: str | None) -> Snapshot | None:
    """What an earlier run downloaded; None if it is not there or not whole."""
    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        return None
    return Snapshot(folder, folder.name)


def _commit(repository: str, revision: str | None) -> str:
    """The commit that the hub has under `revision`; UserError in one sentence for whatever stands in the way."""
    asked = f"{repository} at revision {revision or 'main'}"
    by_hand = (
        f"run `hf download {repository}{f' --revision {revision}' if revision else ''}` where there is a network, or put "
        "config.json, the tokenizer's files and the safetensors weights into a folder and run with model.path=<folder>"
    )
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"model {asked} is not on this machine and HF_HUB_OFFLINE forbids the network; {by_hand}")
    try:
        found = HfApi().model_info(repository, revision=revision, timeout=SECONDS)
    except GatedRepoError as error:
        raise UserError(f"model {asked} is gated; accept its licence on its page, then run `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{repository} has no revision {revision}; set model.revision to a commit of it") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"the hub has no model {repository!r} that this login may read; write it as on its page, for example "
            "model=hub model.name=EleutherAI/pythia-70m, or point model.path at a folder"
        ) from error
    except Exception as error:
        if not _is_network_error(error):
            raise
        raise UserError(f"model {asked} is not on this machine and the hub cannot be reached; {by_hand}") from error
    if not any(file.rfilename.endswith(".safetensors") for file in found.siblings or ()):
        raise UserError(
            f"{asked} has no safetensors weights and a pickle is not opened; convert it with transformers' "
            "save_pretrained and run with model.path=<folder>"
        )
    return str(found.sha)


def _is_network_error(error: Exception) -> bool:
    """True of what the HTTP clients of the hub raise (it has changed its client twice), whatever their module."""
    kinds = {base.__name__ for base in type(error).__mro__}
    return isinstance(error, OSError) or bool(kinds & {"TransportError", "HTTPError", "HfHubHTTPError"})
