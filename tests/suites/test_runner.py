"""The runner: everything asked once, nothing lost to a kill, the same bytes however often a run was stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from results_io import UserError
from suites import asking, judgement, runner
from suites.item import Item, SamplingLeg
from suites.log import chain, environment, generations
from suites.models.base import Generation
from tests.suites import scripted
from tests.suites.scripted import ScriptedModel

ROOT = Path(__file__).parents[2]
ORIGINALS = {f"Mary gave {k} apples to": f"John{k}" for k in range(24)}
PADDINGS = ("  ", "Well then. ")
DERIVED = ("scores.jsonl", "103_constraint.json", "104_variance.json", "110_padding.json", "131_taxonomy_coverage.json")
CHUNK = 7
CODE = "TEST_RUNNER_CODE"  # the parent's, in the environment of a run that is killed


def suites():
    """A padding suite, one that asks half of the same prompts again, and one that samples."""
    padding = scripted.padded(ORIGINALS, PADDINGS)
    again = scripted.suite([Item(f"again-{k}", prompt) for k, prompt in enumerate(list(ORIGINALS)[:12])], minimum=1)
    drawn = scripted.suite(
        [Item(f"drawn-{k}", f"Name {k}") for k in range(4)],
        id="variance",
        mode="A4",
        parameters={"leg": "sampled"},
        legs=(SamplingLeg("sampled", 0.7, samples=3),),
        minimum=1,
    )
    return [padding, again, drawn]


def script():
    found = {}
    for item in suites()[0].items:
        place = int(item.id.split("-")[1])
        wrong = item.prompt.startswith("Well") and place % 4 == 0
        found[item.prompt] = "forbidden" if wrong else item.answers[0]
    found["Mary gave 3 apples to"] = "forbidden"
    return found | {f"Name {k}": ["a", "b" if k == 1 else "a", "c" if k == 1 else "a"] for k in range(4)}


def run(folder, model=None, **changes):
    said = []
    found = runner.run(suites(), model or ScriptedModel(script()), folder, say=said.append, chunk=CHUNK, **changes)
    return found, said


def derived(folder):
    return {name: (folder / name).read_bytes() for name in DERIVED}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    model = ScriptedModel(script())
    return run(folder, model)[0], model, folder


def test_identical_requests_are_asked_once(whole):
    found, model, folder = whole
    assert found.asked == len(model.heard) == len(set(model.heard)) == 72 + 4 * 3
    lines = [one for one in chain.read(folder / generations.NAME) if one["kind"] == "generation"]
    assert len(lines) == 72 + 12 + 12  # but every item has its line
    assert sum(one["cached"] for one in lines) == 12
    assert max(model.batches) == CHUNK


def test_the_rates_by_hand(whole):
    padding, again, drawn = whole[0].suites
    # 24 originals, one of them wrong; of 23 variants with words every fourth original breaks (0, 4, ..., 20); the white-space
    # variants are the same tokens and say nothing
    rate = padding.estimates["failure_rate"]
    assert (rate.n, rate.value) == (23, pytest.approx(6 / 23))
    assert padding.counts == {"failed": 6, "passed": 17, "unknown": 24 + 24 + 1, "error": 0}
    white = [found for case, found in padding.cases if case.item.id.endswith("-0") and case.parent]
    assert len(white) == 24 and {(one.failed, one.subtype) for one in white} == {(None, "not_applicable")}
    assert again.estimates["failure_rate"].value == pytest.approx(1 / 12)
    assert drawn.estimates["failure_rate"].value == pytest.approx(1 / 4)


def test_cases_know_their_parents(whole):
    for case, _ in whole[0].suites[0].cases:
        if case.item.variant is None:
            assert case.parent is None
        else:
            assert case.parent.item.id == case.item.variant.parent
            assert case.parent.first.correct == (case.parent.item.id != "clean-3")


def test_a_second_run_asks_nothing_and_changes_nothing(whole):
    found, _, folder = whole
    before, record = derived(folder), (folder / generations.NAME).read_bytes()
    model = ScriptedModel({})
    again, said = run(folder, model)
    assert model.heard == [] and said == []
    assert (again.asked, again.reused) == (0, found.asked)
    assert derived(folder) == before
    assert (folder / generations.NAME).read_bytes() == record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "when"),
    [("asking", 0), ("asking", 1), ("asking", 20), ("asking", 78), ("between", 0), ("between", 3), ("finish", 1)],
)
def test_a_killed_run_goes_on(tmp_path, whole, where, when):
    """SIGKILL while the model answers, between cache and log, and before the second suite is called finished."""
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path), where, str(when)], cwd=ROOT, check=False, env=_env()
    )
    assert done.returncode == -signal.SIGKILL
    chain.verify(tmp_path / generations.NAME)
    known = sum(one["kind"] == "generation" and not one["cached"] for one in chain.read(tmp_path / generations.NAME))
    unlogged = CHUNK if where == "between" else 0  # on the disk all the same
    assert known == {"asking": when // CHUNK * CHUNK, "between": when * CHUNK, "finish": 84}[where]
    model = ScriptedModel(script())
    found, _ = run(tmp_path, model)
    assert found.asked == len(model.heard) == 84 - known - unlogged
    assert model.batches == whole[1].batches[len(whole[1].batches) - len(model.batches) :]  # the same ones together
    assert derived(tmp_path) == derived(whole[2])
    chain.verify(tmp_path / generations.NAME)


def _env():
    """As here: the results say with how many threads and with what code, which may be edited while tests run."""
    return {**os.environ, "PYTHONPATH": str(ROOT), CODE: json.dumps(dict(environment._of_code()))}


def test_a_line_torn_in_the_middle(tmp_path, whole):
    content = (whole[2] / generations.NAME).read_bytes()
    lines = content.splitlines(keepends=True)
    cut = sum(map(len, lines[:30])) + 200
    for name, without_cache in (("cached", False), ("alone", True)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / generations.NAME).write_bytes(content[:cut])
        if not without_cache:
            (folder / runner.CACHE_NAME).write_bytes((whole[2] / runner.CACHE_NAME).read_bytes())
        model = ScriptedModel(script())
        run(folder, model)
        assert (len(model.heard) > 0) == without_cache
        assert derived(folder) == derived(whole[2])
        assert [one["kind"] for one in chain.read(folder / generations.NAME)].count("recovery") == 1


def test_chunks_make_no_difference(tmp_path, whole):
    for chunk in (1, 1000):
        runner.run(suites(), ScriptedModel(script()), tmp_path / str(chunk), chunk=chunk)
        assert derived(tmp_path / str(chunk)) == derived(whole[2])


def test_scores_are_made_again_without_the_model(tmp_path, whole):
    _, _, folder = whole
    judgement.write(tmp_path / judgement.NAME, judgement.derive(folder / generations.NAME, suites()))
    assert (tmp_path / judgement.NAME).read_bytes() == (folder / judgement.NAME).read_bytes()


def test_a_changed_output_is_found_before_anything_is_asked(tmp_path, whole):
    content = (whole[2] / generations.NAME).read_text(encoding="utf-8").splitlines(keepends=True)
    content[40] = content[40].replace('"response_text":"', '"response_text":"not ')
    (tmp_path / generations.NAME).write_text("".join(content), encoding="utf-8")
    model = ScriptedModel(script())
    with pytest.raises(UserError, match="line 41 does not match its hash"):
        run(tmp_path, model)
    assert model.heard == []


def test_failed_calls_are_in_no_rate_and_are_asked_again(tmp_path):
    lost = {prompt: text for prompt, text in script().items() if prompt not in list(ORIGINALS)[10:15]}
    found, said = run(tmp_path, ScriptedModel(lost))
    padding, again, _ = found.suites
    assert found.errors == 5 + 2
    assert said == [
        "padding: 5 of 72 calls failed and are asked again next time: ConnectionError: no answer",
        "forbidden: 2 of 12 calls failed and are asked again next time: ConnectionError: no answer",
    ]
    assert again.counts == {"failed": 1, "passed": 9, "unknown": 0, "error": 2}
    assert again.estimates["failure_rate"].n == 10
    assert padding.estimates["failure_rate"].status == "insufficient_data"  # 18 of 20
    model = ScriptedModel(script())
    mended, said = run(tmp_path, model)
    assert (len(model.heard), mended.errors, said) == (5, 0, [])
    assert mended.suites[1].estimates["failure_rate"].n == 12


def test_the_cache_is_shared_between_folders_and_not_between_models(tmp_path):
    cache = tmp_path / "cache"
    run(tmp_path / "first", cache=cache)
    same, other = ScriptedModel(script()), ScriptedModel(script(), identity={"weights_sha256": "other"})
    assert run(tmp_path / "second", same, cache=cache)[0].asked == 0
    assert run(tmp_path / "third", other, cache=cache)[0].asked == 84
    assert derived(tmp_path / "first") == derived(tmp_path / "second")


def test_a_model_of_other_weights_in_the_same_folder(tmp_path):
    run(tmp_path)
    other = ScriptedModel(dict.fromkeys(script(), "forbidden"), identity={"weights_sha256": "other"})
    found, _ = run(tmp_path, other)
    assert found.asked == 84
    assert found.suites[1].estimates["failure_rate"].value == 1.0


def test_each_sample_is_asked_for_itself(whole):
    _, model, _ = whole
    drawn = [request for request in model.heard if request.temperature > 0]
    assert sorted(request.sample for request in drawn) == sorted([0, 1, 2] * 4)
    case = whole[0].suites[2].cases[1][0]
    assert [(one.sample, one.text) for one in case.outcomes] == [(0, "a"), (1, "b"), (2, "c")]


def test_a_model_that_answers_too_little(tmp_path):
    model = ScriptedModel(script())
    model.generate = lambda requests, done: [Generation("a", "stop")] * (len(requests) - 1)
    with pytest.raises(ValueError, match="gave 6 generations for 7 requests"):
        run(tmp_path, model)


def test_suites_must_be_distinct(tmp_path):
    with pytest.raises(UserError, match="padding is there 2 times"):
        runner.run([suites()[0]] * 2, ScriptedModel({}), tmp_path)
    with pytest.raises(UserError, match="no suite was given"):
        runner.run([], ScriptedModel({}), tmp_path)


def test_progress_counts_every_request(tmp_path, whole):
    bars = {}

    class Bar:
        def __init__(self, title):
            self.expected = self.done = 0
            bars[title] = self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def expect(self, n):
            self.expected += n

        def advance(self, n):
            self.done += n

    for _ in range(2):  # asked, then known
        run(tmp_path, progress=Bar)
        assert (bars["suites"].expected, bars["suites"].done) == (84, 84)


def _killed(folder, where, when):
    """A run in this process that kills it."""

    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    known = json.loads(os.environ[CODE])
    environment._of_code = lambda: known
    model = ScriptedModel(script())
    if where == "asking":
        model.before = lambda request: kill() if len(model.heard) == when else None
    else:
        target, name = (asking.GenerationLog, "add") if where == "between" else (asking.GenerationLog, "finish")
        original, calls = getattr(target, name), []

        def wrapped(self, *arguments):
            if len(calls) == when:
                kill()
            calls.append(1)
            return original(self, *arguments)

        setattr(target, name, wrapped)
    run(folder, model)


if __name__ == "__main__":
    _killed(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
