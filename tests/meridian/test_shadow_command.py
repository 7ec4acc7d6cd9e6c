"""`run.py shadow`: one pass after the other, with and without a judge, and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta

import pytest

import results_io
from suites import models
from suites.judging import passport
from suites.shadow import traffic_record
from tests.commandline import command
from tests.suites.scripted import ScriptedModel


def sums(count: int) -> tuple[list[dict], dict[str, str]]:
    """(requests that ask for sums, answered rightly; the right answers by prompt)."""
    rng = random.Random(0)
    lines, right = [], {}
    for number in range(count):
        a, b = rng.randrange(10, 90), rng.randrange(10, 90)
        prompt = f"What is {a} + {b}? ({number})"
        right[prompt] = f"It is {a + b}."
        time = datetime(2026, 5, 1, tzinfo=UTC) + timedelta(hours=8 * number)
        logged = {"id": f"r{number}", "prompt": prompt, "answer": right[prompt], "time": time.isoformat()}
        lines.append({**logged, "meta": {"opt_in": True}})
    return lines, right


@pytest.fixture
def traffic(tmp_path, monkeypatch):
    """(settings of a command on 60 sums; a function that sets what the candidate says to each prompt)."""
    lines, right = sums(60)
    path = tmp_path / "traffic.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    script = dict(right)
    monkeypatch.setattr(models, "open_model", lambda settings: ScriptedModel(script, name="candidate"))
    settings = ("shadow", f"follow={path}", "shadow.rate=1.0", "shadow.name=live", f"results={tmp_path / 'results'}")
    return settings, script


def test_a_candidate_that_says_nothing_any_more_is_an_alarm(traffic, tmp_path):
    settings, script = traffic
    quiet = command(*settings, "shadow.budget=10")
    assert quiet.code == 0, quiet.errors
    assert "60 requests, 60 may be used, 60 in the sample; 10 asked now, 0 failed, 50 over the budget" in quiet.output
    script.update(dict.fromkeys(script, ""))
    worse = command(*settings)
    assert worse.code == 1 and "50 asked now" in worse.output and "suite=file suite.path=" in worse.output
    found = results_io.read(tmp_path / "results" / "shadow" / "live" / "189_shadow.json")
    # all of the requests on which the two differ are against the candidate: of seven metrics one needs e = 7/.05 = 140, and
    # e = 2^n / (n + 1) is 93 at the tenth and 171 at the eleventh
    assert found["worse"] == ["empty.differs"] and found["n"]["failing"] == 50
    assert {one["metric_id"]: one["alarm"] for one in found["records"]}["W.shadow.empty.differs"] == 11


@pytest.mark.parametrize(("lost", "code"), [(3, 0), (4, 3)])
def test_calls_that_fail_are_named_and_too_many_of_them_leave_no_random_sample(traffic, lost, code):
    """Of 60 calls at most 3 may fail (.05): a candidate that answers a part of the traffic shows nothing by no alarm."""
    settings, script = traffic
    for prompt in list(script)[:lost]:
        del script[prompt]
    done = command(*settings)
    assert done.code == code, done.errors
    assert f"{lost} of 60 calls failed and are in no rate; the first: " in done.output
    assert ("More than 5% of the calls failed (shadow.most_failed)" in done.output) == (code == 3)


def test_an_alarm_counts_however_many_calls_failed(traffic, tmp_path):
    """40 of 60 calls fail and 20 answers are empty: what an alarm shows, the lost answers do not take back."""
    settings, script = traffic
    for prompt in list(script)[:40]:
        del script[prompt]
    script.update(dict.fromkeys(script, ""))
    done = command(*settings)
    assert done.code == 1 and "40 of 60 calls failed and are in no rate" in done.output, done.errors
    assert "shadow.most_failed" not in done.output
    found = results_io.read(tmp_path / "results" / "shadow" / "live" / "189_shadow.json")
    assert (found["worse"], found["n"]["unanswered"]) == (["empty.differs"], 40)


@pytest.mark.parametrize(("lost", "code"), [(3, 0), (4, 3)])
def test_requests_whose_calls_failed_are_missed_in_later_passes_too(traffic, tmp_path, lost, code):
    """Nothing is asked again, or the log was rotated: of 60 requests on record at most 3 may lack an answer."""
    settings, script = traffic
    path = tmp_path / "traffic.jsonl"
    lines = path.read_text().splitlines()
    first = list(script)[:lost]
    for prompt in first:
        del script[prompt]
    assert command(*settings).code == code
    path.write_text("\n".join(line for line in lines if json.loads(line)["prompt"] not in first) + "\n")
    done = command(*settings)
    assert done.code == code and "0 asked now, 0 failed" in done.output
    said = f"More than 5% of the requests on record have no answer ({lost}, every call failed) (shadow.most_failed)"
    assert (said in " ".join(done.output.split())) == (code == 3)
    assert results_io.read(tmp_path / "results" / "shadow" / "live" / "189_shadow.json")["n"]["unanswered"] == lost
    script.update(dict.fromkeys(first, "It is here."))
    path.write_text("\n".join(lines) + "\n")
    assert command(*settings).code == 0


def test_without_a_judge_the_verdicts_on_the_record_decide_as_long_as_its_passport_does(traffic, tmp_path, monkeypatch):
    settings, _ = traffic
    assert command(*settings, "shadow.budget=12").code == 0
    folder = tmp_path / "results" / "shadow" / "live"
    with traffic_record.TrafficRecord(folder) as record:
        record.plan(0.05, {}, ("one", "r"))
        lost = {"judge": "one", "original": "B", "swapped": "B"}
        record.judged([{"request": name, **lost} for name in record.stream.sampled])
    root = tmp_path / "results" / "judging"
    assert passport.why_not(root, "one", "r") == "judge not validated"
    for code, why in ((0, "judge not validated"), (0, "judge refused: kappa"), (1, None)):
        said = {(root, "one", "r"): why}
        monkeypatch.setattr(passport, "why_not", lambda *asked, said=said: said[asked])
        done = command(*settings, "shadow.budget=12")
        written = results_io.read(folder / "189_shadow.json")
        assert (done.code, written["subject"]["judge"]) == (code, {"judge": "one", "rubric": "r"}), done.errors
        doubt = {one["metric_id"]: one["doubt"] for one in written["records"]}["W.shadow.wins"]
        assert doubt == (why and f"its judge may not be deployed now ({why})")
        assert ("The verdicts on the record decide nothing" in done.output) == bool(why)
        assert ("What the judge found worse is judged again" in done.output) == (why is None)
        assert (written["alarms"], written["worse"]) == (["wins"], [] if why else ["wins"])


def test_another_alpha_is_one_sentence_before_anything_is_asked(traffic):
    settings, _ = traffic
    assert command(*settings, "shadow.budget=10").code == 0
    other = command(*settings, "shadow.alpha=0.5")
    assert other.code == 2 and "go on with shadow.alpha=0.05, or begin another record" in other.errors
    assert other.errors.count("\n") == 1
    assert "50 asked now" in command(*settings).output


@pytest.mark.slow
def test_a_quiet_candidate_gives_0_and_a_worse_one_by_a_deployed_judge_1(traffic, tmp_path):
    settings, script = traffic
    judge = ("judge=demo", "judge.planted=fair")
    refused = command(*settings, *judge)
    assert refused.code == 2 and "may not be deployed (judge not validated)" in refused.errors
    assert not (tmp_path / "results" / "shadow").exists()
    assert command("judge", "do=validate", *judge, settings[-1]).code == 0
    quiet = command(*settings, *judge, "shadow.budget=10")
    assert quiet.code == 0, quiet.errors
    folder = tmp_path / "results" / "shadow" / "live"
    first = results_io.read(folder / "189_shadow.json")
    assert (first["alarms"], first["n"]["judged"], first["n"]["failing"]) == ([], 10, 0)
    for prompt in list(script)[::2]:  # every second answer is wrong from here on
        script[prompt] = "It is 7."
    worse = command(*settings, *judge, "shadow.series=live")
    assert worse.code == 1, worse.errors
    found = results_io.read(folder / "189_shadow.json")
    wins = {one["metric_id"]: one for one in found["records"]}["W.shadow.wins"]
    assert found["worse"] == ["wins"] and (wins["direction"], wins["worse_is"]) == ("below", "below")
    # 25 of the 50 new ones are wrong, and the judge errs now and then
    assert wins["e"] >= 20 and 20 <= wins["n"] <= 25 and found["n"]["judged"] == 60
    assert found["data"]["suite"] == "suite" and found["n"]["failing"] == wins["n"] - wins["detail"]["successes"]
    items = (folder / "suite" / "items.jsonl").read_text().splitlines()
    assert sum(json.loads(one)["template"] == "failing" for one in items) == found["n"]["failing"]
    assert "2026-W18, 2026-W19, 2026-W20 for drift: python run.py drift series=live do=analyse" in worse.said
    again = command(*settings, *judge)
    assert again.code == 1 and "0 asked now" in again.said
    assert results_io.read(folder / "189_shadow.json")["records"] == found["records"]


def test_without_consent_nothing_is_used_and_that_is_said(traffic):
    settings, _ = traffic
    done = command(*settings, "shadow.opt_in=agreed")
    assert done.code == 3 and "None of 60 requests has meta.agreed: true" in done.output
    assert command(*settings, "shadow.opt_in=all").code == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["follow=null"], "shadow needs follow="),
        (["follow=nosuch.jsonl"], "follow=nosuch.jsonl cannot be read"),
        (["shadow.rate=0"], "shadow.rate=0"),
        (["shadow.expected.refusal=1.5"], "shadow.expected.refusal=1.5 is out of range"),
        (["shadow.name=../x"], "is no plain name"),
        (["shadow.key_env=ABSENT_KEY"], "shadow.key_env=ABSENT_KEY is not set"),
        (["shadow.redact=nosuch.yaml"], "shadow.redact=nosuch.yaml cannot be read"),
        (["judge=demo"], "shadow needs one judge"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(typed, said, traffic, tmp_path):
    settings, _ = traffic
    names = {one.partition("=")[0] for one in typed}
    done = command(*(one for one in settings if one.partition("=")[0] not in names), *typed)
    assert done.code == 2 and said in done.errors and done.errors.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_candidate_that_takes_no_chat_is_refused_turns(traffic, tmp_path):
    settings, _ = traffic
    message = {"role": "user", "content": "Where?"}
    line = {"id": "a", "messages": [{"role": "system", "content": "Be kind."}, message], "answer": "Here."}
    (tmp_path / "traffic.jsonl").write_text(
        json.dumps({**line, "time": "2026-05-01T00:00:00Z", "meta": {"opt_in": True}}) + "\n"
    )
    done = command(*settings)
    assert done.code == 2 and "candidate takes no system texts" in done.errors
    assert not (tmp_path / "results").exists()
