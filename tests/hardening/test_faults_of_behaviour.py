"""A disk that refuses once, at each write of each behavioural command: one sentence, exit code 2, and the next run is whole."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import results_io
from scripts import freeze_constructs
from suites import models
from suites.geometry import construct
from suites.log import chain
from tests.commandline import Outcome, command
from tests.hardening.faults import REASONS, full, refusing
from tests.meridian.test_shadow_command import sums
from tests.suites.scripted import ScriptedModel

STEPS = ("mkdir", "open", "write", "fsync", "replace", "link")
KINDS = ("suite", "judge", "geometry", "contamination", "drift", "shadow")
TIMED = ("drift", "shadow")  # their records say when
CHAINS = ("generations.jsonl", "judgements.jsonl", "run_log.jsonl", "shadow.jsonl")
DATABASES = (".sqlite", ".sqlite-journal")  # what they hold is asked again where it lacks


def line_of(kind: str, place: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The smallest command of its kind, with what it needs in `place`."""
    if kind == "suite":
        return ("suite=a10_padding_pronoun", f"results={results}")
    if kind == "judge":
        return (
            "judge",
            "do=validate",
            "judge=demo",
            "judge.planted=fair",
            "judge.resamples=1000",
            f"results={results}",
        )
    if kind == "geometry":
        return ("geometry=file", f"geometry.path={few_constructs(place)}", f"results={results}")
    if kind == "contamination":
        (place / "corpus").mkdir()
        (place / "corpus" / "pages.jsonl").write_text(json.dumps({"text": "nothing of it"}) + "\n")
        most = "contamination.most_embedded=0"
        return ("contamination", f"corpus={place / 'corpus'}", "suite=a13_distractor_color", most, f"results={results}")
    if kind == "drift":
        model = ("model=endpoint", "model.base_url=http://127.0.0.1:9/v1", "model.name=prod", "model.retries=0")
        return ("drift", "series=prod", *model, f"results={results}")
    lines, right = sums(60)
    (place / "traffic.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    monkeypatch.setattr(models, "open_model", lambda settings: ScriptedModel(dict(right), name="candidate"))
    follow = f"follow={place / 'traffic.jsonl'}"
    return ("shadow", follow, "shadow.rate=1.0", "shadow.name=live", "shadow.budget=10", f"results={results}")


def few_constructs(place: Path) -> Path:
    """Three of pocket's constructs, frozen as a set of their own."""
    folder = place / "mine"
    folder.mkdir()
    shipped = construct.CATALOGUE / "pocket"
    shutil.copy(shipped / construct.REFERENCE, folder)
    for path in sorted(shipped.glob(f"*/{construct.FILE}"))[:3]:
        shutil.copytree(path.parent, folder / path.parent.name)
    assert freeze_constructs.main([str(folder)]) == 0
    return folder


def kept(results: Path) -> dict[str, bytes]:
    """The files of a run that is over, each of them whole."""
    found = {}
    for path in sorted(results.rglob("*")):
        if path.is_dir() or ".locks" in path.parts or path.suffix in DATABASES:
            continue
        if path.suffix == ".json":
            json.loads(path.read_text())
            assert not path.name[0].isdigit() or not results_io.fault(path), path
        elif path.name in CHAINS:
            chain.verify(path)
        else:
            assert path.suffix != ".partial" and not path.name.startswith("."), path
        found[str(path.relative_to(results))] = path.read_bytes()
    return found


def places(step: str, calls: int) -> range:
    """Every write and rename of a short command, some of a long one, and a few of the other steps."""
    most = 8 if step in ("write", "replace") else 2
    return range(0, calls, max(-(-calls // most), 1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_a_behavioural_command_may_be_refused(kind, tmp_path, monkeypatch, capsys) -> None:
    results = tmp_path / "results"
    line = line_of(kind, tmp_path, results, monkeypatch)
    command(*line)  # what a process does once, as importing
    shutil.rmtree(results)
    calls, outcome = counted(line, results)
    assert outcome.code in (0, 3) and calls["replace"] >= 2
    whole, tried = kept(results), 0
    for step in STEPS:
        for nth in places(step, calls[step]):
            shutil.rmtree(results, ignore_errors=True)
            reason = list(REASONS.values())[tried % len(REASONS)]
            with refusing(step, str(results), reason, nth) as refused:
                again = command(*line)
            assert refused.calls > nth, (step, nth)
            refused_cleanly(again, reason, results, whole)
            resumed(line, results, outcome, whole, kind not in TIMED)
            tried += 1
    assert tried >= sum(calls[step] > 0 for step in STEPS) + calls["replace"] // 4
    for after in (0, 100):  # bytes of every file that is replaced as a whole
        shutil.rmtree(results, ignore_errors=True)
        with full(errno.ENOSPC, after):
            again = command(*line)
        refused_cleanly(again, errno.ENOSPC, results, whole)
        resumed(line, results, outcome, whole, kind not in TIMED)
    with capsys.disabled():
        print(f"{kind}: {tried} faults")


def refused_cleanly(again: Outcome, reason: int, results: Path, whole: Mapping[str, bytes]) -> None:
    """One sentence, exit code 2, and no file that is not whole."""
    assert (again.code, again.errors.count("\n")) == (2, 1), again
    assert "Traceback" not in again.errors and os.strerror(reason) in again.errors, again
    assert kept(results).keys() <= whole.keys()


def resumed(line: tuple[str, ...], results: Path, outcome: Outcome, whole: Mapping[str, bytes], same: bool) -> None:
    """The next run ends as one that nothing befell, with the same files; `same`: and the same bytes of its results."""
    done, after = command(*line), kept(results)
    assert done.code == outcome.code and after.keys() == whole.keys()
    if same:
        assert {name: after[name] for name in after if name.endswith(".json")} == {
            name: whole[name] for name in whole if name.endswith(".json")}  # fmt: skip


def counted(line: tuple[str, ...], results: Path) -> tuple[Mapping[str, int], Outcome]:
    """How often a command takes each step below `results`, and how it ends."""
    with contextlib.ExitStack() as stack:
        seen = {step: stack.enter_context(refusing(step, str(results), errno.EIO, None)) for step in STEPS}
        outcome = command(*line)
    return {step: one.calls for step, one in seen.items()}, outcome
