"""Importing a file of another harness: chooses the reader, and is the command.

python -m suites.harness.importing samples_bbq_2026.jsonl results/imported/bbq     lm-eval's samples file
python -m suites.harness.importing 2026_task.eval results/imported/task            inspect's log
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from results_io import UserError
from suites.harness import imported, inspect_log, lm_eval_samples
from suites.harness.imported import Imported


def read(path: Path) -> Imported:
    """The run in a file, by its ending: .jsonl is lm-eval's samples file, .eval inspect's log. UserError for another one."""
    readers = {".jsonl": lm_eval_samples.run_of, ".eval": inspect_log.run_of}
    if (reader := readers.get(Path(path).suffix)) is None:
        raise UserError(
            f"{path} is neither lm-eval's samples file (.jsonl) nor inspect's log (.eval); give one of these"
        )
    return reader(Path(path))


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: imported; 2: bad input."""
    if len(arguments) != 2:
        print("expected a file and a folder: python -m suites.harness.importing FILE FOLDER", file=sys.stderr)
        return 2
    try:
        found = read(Path(arguments[0]))
        folder = imported.write(found, Path(arguments[1]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    said = [output for item in found.items for output in item.said]
    failed = sum(output is None for output in said)
    status = found.source.get("status", "success")
    print(
        f"{len(found.items)} items, {len(said)} outputs, {failed} of them failed calls"
        + ("" if status == "success" else f"; the run ended with the status {status}, so it may lack items")
    )
    for scorer, (other, both) in imported.judged_otherwise(found, folder).items():
        if not both:  # its values say neither right nor wrong
            continue
        print(
            f"{scorer} of the log judges {other} of {both} outputs otherwise than the results here, which are by our scorer"
        )
    print(
        f"{folder}: python run.py judge and gate read it like a run of suite=file {shlex.quote(f'suite.path={folder}')}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
