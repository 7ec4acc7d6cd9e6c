"""Several processes on one folder of results: who writes what, and who waits.

A lock is a file below results/.locks that the operating system reserves for one process. The lock ends with the process, however
that ends, and a leftover file blocks nobody. There are two kinds, always taken in this order, so that no two processes can wait
for each other:

1. on a folder of results, while a run measures, judges and writes there; a second run of the same command waits and then
   finds everything fresh;
2. on a set of prompts, while a result that does not depend on the circuit is measured; runs that differ only in their circuit
   copy it from each other.

Pooling all certificates has its own lock; no other lock is taken while it is held.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from meridian.ranges import shown
from results_io import DiskError, UserError

PLACE = ".locks"
SECONDS_BETWEEN_TRIES = 0.2
MOST_TRIES, SECONDS_AFTER_A_RACE = 200, 0.01  # retries if folders vanish; after two seconds it cannot be a race
PROCESSES = Path("/proc")
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks


@contextlib.contextmanager
def held(results: Path, path: Path, say: Callable[[str], Any], part: str = "", keep: bool = False) -> Iterator[None]:
    """A context in which no other process holds `path` (a file or folder below `results`), or the named `part`.

    Waits as long as another process holds it, and says so. A process must not request a lock that it already holds. If nothing
    was made at `path`, the lock's empty folders are removed, and the empty `results` too unless `keep`. On a file system without
    locks, says so and goes on without one. DiskError if `results` cannot be written; UserError for a lock that is no file.
    """
    place = file_of(results, path, part)
    lock = FileLock(place, poll_interval=SECONDS_BETWEEN_TRIES, fallback_to_soft=False)
    try:
        _acquire(lock, place, lambda: say(f"another process{_holder(place)} is at work on {path}; waiting for it"))
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in WITHOUT_LOCKS:
            if place.is_symlink() or place.is_dir():
                raise UserError(
                    f"{place} is a link or a folder in the place of a lock; delete it, and run again"
                ) from error
            raise DiskError(results, error) from error
        say(f"{results} is on a file system without locks; let only one process at a time write there")
    try:
        yield
    finally:
        if not path.exists():
            _remove(place, results / PLACE if keep else results)
        lock.release()


def file_of(results: Path, path: Path, part: str = "") -> Path:
    """The lock file of `path` (results/pocket/ioi: results/.locks/pocket/ioi.lock), or of a part of it."""
    place = results / PLACE / path.relative_to(results)
    return place / f"{part}.lock" if part else place.with_name(f"{place.name}.lock")


def _acquire(lock: FileLock, place: Path, waiting: Callable[[], Any]) -> None:
    """Take the lock; `waiting` is called once if another process has it. OSError if it cannot be made."""
    patience, tries = 0.0, 0
    while True:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=patience)
            return
        except Timeout:
            waiting()
            patience = -1  # wait forever
        except (FileNotFoundError, FileExistsError):  # another process is just removing the folders
            tries += 1
            if tries == MOST_TRIES or place.parent.is_file():
                raise
            time.sleep(SECONDS_AFTER_A_RACE)


def _holder(place: Path) -> str:
    """Who holds a lock file, as " (4711: run.py task=ioi)"; "" if the system does not say. Linux does."""
    try:
        inode = place.stat().st_ino
        for line in PROCESSES.joinpath("locks").read_text().splitlines():
            _, kind, _, _, pid, where, *_ = line.split()
            if kind == "FLOCK" and where.rpartition(":")[2] == str(inode):
                words = PROCESSES.joinpath(pid, "cmdline").read_bytes().decode(errors="replace").split("\0")[1:]
                return f" ({pid}: {shown(' '.join(words).strip())})"
    except (OSError, ValueError):  # not Linux, or the process has ended
        pass
    return ""


def _remove(place: Path, uppermost: Path) -> None:
    """Delete a lock file and the parent folders that are then empty, up to and including `uppermost`."""
    place.unlink(missing_ok=True)
    for folder in place.parents:
        with contextlib.suppress(OSError):  # not empty, because others are at work
            folder.rmdir()
        if folder == uppermost:
            return
