"""Choice file: the chosen implementation for each signature, kept between processes so that runs are repeatable.

Implementations differ in their last bits, and times vary from run to run, so with new timings two runs on one GPU need not be
equal. Choices are therefore kept in one file for each device, versions of torch and Triton, and digest of the kernels' code, in
`$MERIDIAN_CACHE/kernels` (by default `$XDG_CACHE_HOME/meridian/kernels`, or `~/.cache/meridian/kernels`). The first process
that chooses for a signature decides for all; delete the file to choose again.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeGuard

import torch
from filelock import FileLock, Timeout

import results_io

FOLDER, KIND = "MERIDIAN_CACHE", "kernel choices"
SECONDS_TO_WAIT = 10.0  # for another process that is writing, longer than any write takes

Kept = dict[str, dict[str, dict[str, Any]]]  # {operation: {signature: choice}}


class ChoiceFile:
    """The choices of one key, `{device, torch, triton, code}`, in a file in `folder` that is named after the key.

    A file that cannot be read, was edited, or has another key counts as empty and is replaced, with one warning.
    """

    def __init__(self, folder: Path, key: Mapping[str, str]) -> None:
        self.key = dict(key)
        self.path = Path(folder) / f"{results_io.sha256(self.key)[:16]}.json"
        self._warned = False

    @classmethod
    def of(cls, device: torch.device) -> ChoiceFile:
        """The file of a CUDA device, in the cache folder."""
        return cls(cache_folder() / "kernels", key_of(torch.cuda.get_device_name(device)))

    def read(self) -> Kept:
        """The kept choices: {operation: {signature: choice}}."""
        if not self.path.exists():
            return {}
        try:
            document = results_io.read(self.path)
            choices = document.get("choices")
            if document.get("kind") != KIND or document.get("key") != self.key or not _is_kept(choices):
                raise results_io.ResultError(self.path, "holds no kernel choices of this device and these versions")
            return choices
        except (results_io.UserError, OSError) as error:
            self._warn(f"kernels are timed anew, because {str(error).partition(';')[0]}")
            return {}

    def keep(self, operation: str, signature: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Add a choice; returns the one that is kept, which is that of another process if it was first."""
        try:
            with self._alone():
                choices = self.read()
                own = choices.setdefault(operation, {}).setdefault(signature, results_io.canonical(dict(choice)))
                results_io.write(self.path, {"kind": KIND, "key": self.key, "choices": choices})
                return own
        except (OSError, Timeout) as error:
            self._warn(f"the choice of kernels is not kept, because {self.path} cannot be written ({error}); "
                       f"set {FOLDER} to a folder that can")  # fmt: skip
            return dict(choice)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock", timeout=SECONDS_TO_WAIT):
            yield

    def _warn(self, sentence: str) -> None:
        if not self._warned:
            warnings.warn(sentence, stacklevel=3)
        self._warned = True


def cache_folder() -> Path:
    """$MERIDIAN_CACHE, or `meridian` in the user's cache folder if it is not set."""
    if own := os.environ.get(FOLDER):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meridian"


def key_of(device: str) -> dict[str, str]:
    """The key of a choice: the device's name, the versions that generate its code, and the digest of the kernels' code."""
    return {"device": device, "torch": torch.__version__, "triton": _version("triton"), "code": _code()}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


@cache
def _code() -> str:
    """Digest of the kernels' own source files."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return results_io.sha256(b"".join(path.read_bytes() for path in files))[:16]


def _is_kept(choices: object) -> TypeGuard[Kept]:
    """True if these are choices by operation and signature, each with the name of the chosen implementation."""
    return isinstance(choices, dict) and all(
        isinstance(of_operation, dict)
        and all(isinstance(one, dict) and isinstance(one.get("chosen"), str) for one in of_operation.values())
        for of_operation in choices.values()
    )
