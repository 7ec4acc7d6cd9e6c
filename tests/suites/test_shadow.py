"""Shadow evaluation without a command: sampling, redaction, the record, the metrics, the suite of what failed, drift's weeks."""

from __future__ import annotations

import errno
import json
import os
import random
import secrets
from datetime import UTC, datetime, timedelta

import pytest

import results_io
from results_io import UserError
from suites import declaration, runner
from suites.drift import series_record
from suites.judging import rubric
from suites.judging.judge import Judge
from suites.judging.judgement_record import JudgementRecord
from suites.log import chain
from suites.models.base import Generation
from suites.shadow import detectors, evaluation, redaction, results, sampling, snapshots, suite, traffic, traffic_record
from tests.suites.scripted import ScriptedModel

KEY = b"a key of the tests"
NOW = datetime(2026, 5, 25, 12, tzinfo=UTC)
SETTINGS = {
    "rate": 1.0,
    "budget": 1000,
    "opt_in": "opt_in",
    "retention": 30,
    "max_tokens": 64,
    "alpha": 0.05,
    "expected": {"refusal": None, "abstention": None, "empty": None},
}
SUBJECT = {"candidate": "candidate", "identity": {"kind": "scripted"}, "judge": None}
REFUSAL, ANSWER = "I'm sorry, I can't help with that.", "Gladly: it is on the shelf."


class Bar:
    def expect(self, pairs):
        pass

    def advance(self, pairs):
        pass


def line(number: int, **changes) -> dict:
    """One request a quarter of a day."""
    time = datetime(2026, 5, 1, tzinfo=UTC) + timedelta(hours=6 * number)
    given = {"id": f"r{number}", "prompt": f"Where is book {number}?", "answer": ANSWER, "time": time.isoformat()}
    return {**given, "meta": {"opt_in": True}, **changes}


def logged(lines, tmp_path) -> list[traffic.Logged]:
    path = tmp_path / "traffic.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    return traffic.read(path)


def passed(
    lines, answers, tmp_path, settings=SETTINGS, now=NOW
) -> tuple[traffic_record.TrafficStream, evaluation.Pass]:
    """The record after one pass in which the candidate says `answers` (a text, or one by prompt)."""
    requests = logged(lines, tmp_path)
    script = {one.prompt: answers if isinstance(answers, str) else answers[one.prompt] for one in requests}
    model = ScriptedModel(script, capabilities=("generation", "chat"))
    with traffic_record.TrafficRecord(tmp_path / "shadow") as opened:
        opened.start(candidate=dict(model.identity), rate=settings["rate"], key="k")
        opened.plan(settings["alpha"], settings["expected"])
        opened.expire(now.date().isoformat())
        done = evaluation.follow(requests, model, opened, KEY, redaction.Redactor(), settings, now, Bar())
    return traffic_record.read(tmp_path / "shadow"), done


# --- sampling and redaction ----------------------------------------------------------------------------------------


def test_the_key_decides_which_requests_are_taken_and_a_larger_rate_keeps_them():
    ids = [f"r{number}" for number in range(4000)]
    few, more = ({one for one in ids if sampling.taken(KEY, one, rate)} for rate in (0.05, 0.2))
    assert few < more and few == {one for one in ids if sampling.taken(KEY, one, 0.05)}
    assert len(few) == pytest.approx(200, abs=4 * 14) and len(more) == pytest.approx(800, abs=4 * 26)
    assert few != {one for one in ids if sampling.taken(b"another key", one, 0.05)}
    parts = [sampling.part(KEY, one, 20) for one in ids]
    assert all(parts.count(number) == pytest.approx(200, abs=60) for number in range(20))


def test_a_random_key_is_made_once_and_is_nobody_elses(tmp_path, monkeypatch):
    key = sampling.key_of(tmp_path / "shadow", None)
    assert key == sampling.key_of(tmp_path / "shadow", None) and len(key) == 64
    assert (tmp_path / "shadow" / sampling.KEY_FILE).stat().st_mode & 0o077 == 0
    monkeypatch.setenv("SAMPLING", "mine")
    assert sampling.key_of(tmp_path, "SAMPLING") == b"mine"
    with pytest.raises(UserError, match=r"shadow\.key_env=ABSENT is not set"):
        sampling.key_of(tmp_path, "ABSENT")


def test_two_that_make_a_key_at_once_have_one(tmp_path, monkeypatch):
    drawn, others = secrets.token_hex, []

    def drawn_second(size):
        monkeypatch.setattr(secrets, "token_hex", drawn)
        others.append(sampling.key_of(tmp_path, None))
        return drawn(size)

    monkeypatch.setattr(secrets, "token_hex", drawn_second)
    assert [sampling.key_of(tmp_path, None)] == others
    assert [path.name for path in tmp_path.iterdir()] == [sampling.KEY_FILE]


def test_without_hard_links_the_key_belongs_into_a_variable(tmp_path, monkeypatch):
    def refuses(old, new):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    said = "this disk has no hard links, so the key file .* cannot be made; put the key into an environment variable and give"
    with pytest.raises(UserError, match=said):
        sampling.key_of(tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_is_not_whole_is_neither_kept_nor_used(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        monkeypatch.context() as patched,
        pytest.raises(UserError, match=r"cannot be written \(No space left on device\); make room, and run again"),
    ):
        patched.setattr(os, "fsync", full)
        sampling.key_of(tmp_path, None)
    assert list(tmp_path.iterdir()) == []
    for left in (b"", b"a1" * 31, b"A1" * 32):
        (tmp_path / sampling.KEY_FILE).write_bytes(left)
        with pytest.raises(
            UserError, match=rf"has {len(left)} bytes and is not a sampling key of 64 hex digits; restore it"
        ):
            sampling.key_of(tmp_path, None)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Write to ann.b+c@example-shop.co.uk today.", "Write to [email] today."),
        ("Call +49 (0)30 1234-567 or 555-123-4567.", "Call [phone] or [phone]."),
        ("Card 4111 1111 1111 1111, please.", "Card [card], please."),
        ("The key is sk-abcdefghijklmnop1234 here", "The key is [key] here"),
        ("password: hunter22xx", "[key]"),
        ("In 2026, on 2026-05-04, 1,234,567 people came; pi is 3.14159265.",) * 2,
        ("Order 12345, version 1.2.3",) * 2,
    ],
)
def test_the_default_takes_out_addresses_numbers_cards_and_keys(text, redacted):
    assert redaction.Redactor()(text) == redacted


def test_a_card_has_a_check_digit():
    assert redaction.luhn("79927398713") and not any(redaction.luhn(f"7992739871{k}") for k in (0, 1, 2, 4, 9))


def test_own_patterns_are_added_and_checked(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("badge: 'B-\\d+'\n")
    assert redaction.Redactor(path)("Badge B-17 of ann@example.com") == "Badge [badge] of [email]"
    for text in ("- a", "badge: '('", "badge: 3"):
        path.write_text(text)
        with pytest.raises(UserError):
            redaction.Redactor(path)


# --- traffic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "list is unknown"),
        (json.dumps(line(1, extra=1)), "extra is unknown"),
        (json.dumps(line(1, id="")), "id is ''"),
        (json.dumps(line(1, answer=None)), "answer is None"),
        (json.dumps(line(1, time="today")), "time is 'today'"),
        (json.dumps(line(1, time="2026-05-04T10:00:00")), "has no zone"),
        (json.dumps(line(1, meta=3)), "meta is 3"),
        (json.dumps(line(1, messages=[])), "one of prompt and messages"),
        (json.dumps({key: value for key, value in line(1).items() if key != "prompt"}), "one of prompt and messages"),
    ],
)
def test_what_is_no_request_is_refused_with_its_line(given, said, tmp_path):
    (tmp_path / "traffic.jsonl").write_text(f"{given}\n")
    with pytest.raises(UserError, match="line 1") as error:
        traffic.read(tmp_path / "traffic.jsonl")
    assert said in str(error.value)


def test_messages_are_turns_and_a_line_that_is_being_written_waits(tmp_path):
    turns = [("system", "Be kind."), ("user", "Hello"), ("assistant", "Hi"), ("user", "Where?")]
    whole = line(1, messages=[{"role": role, "content": text} for role, text in turns])
    del whole["prompt"]
    path = tmp_path / "traffic.jsonl"
    path.write_text(json.dumps(whole) + "\n" + json.dumps(line(2)))
    (one,) = traffic.read(path)
    assert (one.system, one.earlier, one.prompt) == ("Be kind.", (("user", "Hello"), ("assistant", "Hi")), "Where?")
    path.write_text(2 * (json.dumps(line(2)) + "\n"))
    with pytest.raises(UserError, match="line 2: the id 'r2' was there before"):
        traffic.read(path)


# --- the pass and its record ---------------------------------------------------------------------------------------


def test_nothing_is_recorded_before_it_is_redacted_and_who_did_not_agree_is_left_out(tmp_path):
    secret, number = "ann@example.com", "+1 (555) 123 4567"
    lines = [
        line(1, prompt=f"Write to {secret}", answer=f"Call {number}"),
        line(2, meta={}),
        line(3, meta={"opt_in": "yes"}),
    ]
    stream, done = passed(lines, f"Done: {secret}, {number}", tmp_path)
    assert (done.requests, done.opted_in, done.asked) == (3, 1, 1)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "shadow").iterdir())
    assert not any(text.encode() in stored for text in (secret, number, "Where is book", "r1"))
    (text,) = stream.texts.values()
    assert (text["prompt"], text["candidate"]) == ("Write to [email]", "Done: [email], [phone]")
    (one,) = stream.sampled.values()
    assert one["redacted"] == {"email": 2, "phone": 2}
    chain.verify(tmp_path / "shadow" / traffic_record.NAME)


def test_a_rerun_asks_nothing_again_and_the_budget_holds_over_all_passes(tmp_path):
    lines, limited = [line(number) for number in range(20)], {**SETTINGS, "budget": 12}
    first, done = passed(lines[:10], ANSWER, tmp_path, limited)
    assert (done.asked, done.over_budget) == (10, 0)
    second, done = passed(lines, ANSWER, tmp_path, limited)
    assert (done.asked, done.over_budget) == (2, 8) and list(second.sampled)[:10] == list(first.sampled)
    with pytest.raises(UserError, match="record of another rate"):
        passed(lines, ANSWER, tmp_path, {**SETTINGS, "rate": 0.5})


def test_a_failed_call_is_not_recorded_and_asked_again(tmp_path):
    lines = [line(1), line(2)]
    stream, done = passed(lines, {lines[0]["prompt"]: ANSWER, lines[1]["prompt"]: None}, tmp_path)
    assert (done.failed, len(stream.sampled)) == (1, 1)
    assert len(stream.unanswered) == 1 and not stream.unanswered & stream.sampled.keys()
    stream, done = passed(lines, ANSWER, tmp_path)
    assert (done.asked, done.failed, len(stream.sampled)) == (1, 0, 2)
    assert not stream.unanswered and len(stream.failed) == 1
    kinds = [one["kind"] for one in chain.read(tmp_path / "shadow" / traffic_record.NAME)]
    assert kinds.count("failed") == 1 and kinds.index("failed") > kinds.index("sampled")


def test_texts_are_deleted_when_their_days_are_over_and_verdicts_stay(tmp_path):
    passed([line(1), line(2)], ANSWER, tmp_path)
    later, _ = passed([line(1), line(2), line(3)], ANSWER, tmp_path, now=NOW + timedelta(days=29))
    assert len(later.texts) == 3
    last, _ = passed([line(1), line(2), line(3)], ANSWER, tmp_path, now=NOW + timedelta(days=30))
    assert len(last.texts) == 1 and len(last.sampled) == 3
    assert "book 1" not in (tmp_path / "shadow" / traffic_record.TEXTS).read_text()
    lines = chain.read(tmp_path / "shadow" / traffic_record.NAME)
    assert [(one["texts"], one["until"]) for one in lines if one["kind"] == "expired"] == [(2, "2026-06-24")]


# --- metrics, the result, the suite --------------------------------------------------------------------------------


def regressed(lines, share: float, seed: int) -> dict[str, str]:
    rng = random.Random(seed)
    return {one["prompt"]: REFUSAL if rng.random() < share else ANSWER for one in lines}


def test_a_candidate_that_refuses_more_is_found_and_one_that_does_not_is_quiet(tmp_path):
    lines = [line(number) for number in range(120)]
    for one, said in zip(lines, regressed(lines, 0.1, 1).values(), strict=True):
        one["answer"] = said  # of the deployed model
    settings = {**SETTINGS, "expected": {**SETTINGS["expected"], "refusal": 0.1}}
    found = {}
    for name, share in (("same", 0.1), ("worse", 0.4)):
        (tmp_path / name).mkdir()
        stream, done = passed(lines, regressed(lines, share, 2), tmp_path / name, settings)
        path, worse = results.write(tmp_path / name, stream, done, settings, SUBJECT, None)
        found[name] = (results_io.read(path), worse, stream)
    assert found["same"][1] == [] and found["same"][0]["alarms"] == []
    document, worse, stream = found["worse"]
    assert worse == ["refusal.differs", "refusal.rate"]
    records = {one["metric_id"]: one for one in document["records"]}
    rate = records["W.shadow.refusal.rate"]
    refused = sum(said["candidate"]["refusal"] for said in stream.sampled.values())
    assert (rate["n"], rate["value"], rate["direction"]) == (120, pytest.approx(refused / 120), "above")
    assert (
        rate["e"] >= 20 and rate["alarm"] <= 120 and rate["alarms"] == {"above": rate["alarm"]} and rate["e_bh"] is True
    )
    differs = records["W.shadow.refusal.differs"]
    assert differs["p0"] == 0.5 and differs["n"] < 120 and list(differs["alarms"]) == ["above"]
    assert records["W.shadow.empty.differs"]["status"] == "insufficient_data"
    days = document["data"]["days"]["refusal.rate"]
    assert len(days) == 30 and days[-1]["n"] == 120 and days[-1]["e"] == rate["e"]
    assert set(document["data"]["failing"]) == {
        name for name, one in stream.sampled.items() if one["candidate"]["refusal"] and not one["live"]["refusal"]
    }


def test_what_failed_becomes_a_suite_with_siblings_and_a_version_that_rises(tmp_path):
    lines = [
        line(number, prompt=f"Where is the {kind} {number}?")
        for kind in ("red book", "blue lamp")
        for number in (1, 2, 3)
    ]
    for number, one in enumerate(lines):
        one["id"] = f"r{number}"
    answers = {one["prompt"]: REFUSAL if one["prompt"] == "Where is the red book 1?" else ANSWER for one in lines}
    stream, _ = passed(lines, answers, tmp_path)
    folder = suite.write(tmp_path, "live", stream, siblings=2, max_tokens=64)
    made = declaration.load(folder)
    assert {item.prompt: item.template for item in made.items} == {
        "Where is the red book 1?": "failing",
        "Where is the red book 2?": "sibling",
        "Where is the red book 3?": "sibling",
    }
    assert (made.id, made.version, made.mode) == ("shadow_live", "1.0.0", "A3")
    assert suite.write(tmp_path, "live", stream, 2, 64) == folder and declaration.load(folder).version == "1.0.0"
    (judged,) = runner.run([made], ScriptedModel(answers), tmp_path / "run", say=lambda said: None).suites
    assert judged.estimates["failure_rate"].value == pytest.approx(1 / 3)
    assert [case.item.template for case, _ in judged.failures] == ["failing"]
    suite.write(tmp_path, "live", stream, 3, 64)
    assert declaration.load(folder).version == "2.0.0"
    quiet, _ = passed(lines, ANSWER, tmp_path / "shadow")
    assert suite.write(tmp_path / "shadow", "live", quiet, 2, 64) is None


def test_weeks_that_are_over_become_snapshots_of_the_deployed_answers(tmp_path):
    lines = [line(number, answer=f"Answer {number} of the deployed model.") for number in range(60)]  # 1 to 15 May
    stream, _ = passed(lines, ANSWER, tmp_path)
    folder = tmp_path / "drift"
    assert snapshots.feed(folder, stream, "2026-05-15", 64) == ["2026-W18", "2026-W19"]
    assert snapshots.feed(folder, stream, "2026-05-15", 64) == []
    series = series_record.read(folder / series_record.NAME)
    weeks = {one.id: sorted(row["text"] for row in one.rows.values()) for one in series.finished}
    assert len(weeks["2026-W18"]) == 12 and len(weeks["2026-W19"]) == 28
    assert weeks["2026-W18"] == sorted(f"Answer {number} of the deployed model." for number in range(12))


def test_a_request_of_a_clock_that_went_wrong_is_in_a_week_too(tmp_path):
    stream, _ = passed([line(0, time="0001-01-02T00:00:00Z"), line(1)], ANSWER, tmp_path)
    assert snapshots.feed(tmp_path / "drift", stream, "2026-05-15", 64) == ["0001-W01", "2026-W18"]


# --- verdicts of a judge --------------------------------------------------------------------------------------------


def judged(*verdicts: tuple[str | None, str | None]) -> traffic_record.TrafficStream:
    """Requests whose two answers the detectors read alike, with a judge's verdicts in the two orders (A: the candidate won)."""
    names, quiet = [f"r{number}" for number in range(len(verdicts))], dict.fromkeys(detectors.DETECTORS, False)
    same = {"day": "2026-05-01", "live": quiet, "candidate": quiet, "redacted": {}}
    said = [{"original": one, "swapped": other, "seq": 100 + k} for k, (one, other) in enumerate(verdicts)]
    return traffic_record.TrafficStream(
        sampled={name: {**same, "request": name, "seq": number} for number, name in enumerate(names)},
        verdicts=dict(zip(names, said, strict=True)),
    )


def test_only_pairs_that_both_orders_decide_alike_count_as_wins_or_losses():
    stream = judged(
        ("A", "A"), ("A", "B"), ("B", "B"), ("B", "A"), ("tie", "tie"), ("A", "tie"), (None, "A"), ("A", "A")
    )
    (wins,) = (one for one in results.metrics(stream) if one.name == results.WINS)
    assert (wins.outcomes, wins.places, wins.p0, wins.worse) == ((True, False, True), (100, 102, 107), 0.5, "below")
    assert evaluation.failing(stream) == {"r2": ["judge"]}


@pytest.mark.parametrize(("verdict", "side", "worse"), [("B", "below", ["wins"]), ("A", "above", [])])
def test_lost_pairs_in_a_row_are_an_alarm_and_won_ones_are_one_on_the_other_side(verdict, side, worse, tmp_path):
    """After n pairs of one winner e = 2^n/(n + 1): 93.1 after 10 and 170.7 after 11; the first of seven alarms needs 140."""
    counts = evaluation.Pass(12, 12, 12, 12, 0, 0)
    path, found = results.write(tmp_path, judged(*[(verdict, verdict)] * 12), counts, SETTINGS, SUBJECT, None)
    (record,) = (one for one in results_io.read(path)["records"] if one["metric_id"] == "W.shadow.wins")
    assert (found, record["alarms"], record["direction"]) == (worse, {side: 11}, side)
    assert record["e"] == pytest.approx(2**12 / 13)


def test_the_first_alarm_needs_seven_metrics_over_alpha_though_six_are_of_detectors():
    """One pair won and then n - 1 lost: e = 2^n/(n(n + 1)) is 136.5 after 15, between 6/.05 and 7/.05, and 240.9 after 16."""
    stream = judged(("A", "A"), *[("B", "B")] * 15)
    found = results.metrics(stream)
    watched_ = results.watch(found, 0.05)
    assert watched_[results.WINS].path[14:] == pytest.approx([2**15 / 240, 2**16 / 272])
    assert results.alarms(found, watched_, 0.05)[results.WINS] == {"below": 16}


class Helped:
    """A judge that prefers the answer that is no refusal."""

    name, identity, capabilities = "helped", {"weights": "helped"}, frozenset({"generation"})

    def generate(self, requests, done):
        first_helps = [one.prompt.index(ANSWER) < one.prompt.index(REFUSAL) for one in requests]
        return [Generation(f"Verdict: {'A' if one else 'B'}", "stop") for one in first_helps]


def test_the_judge_s_first_text_is_the_candidate_s(tmp_path):
    won, lost = line(1, answer=REFUSAL), line(2)
    passed([won, lost], {won["prompt"]: ANSWER, lost["prompt"]: REFUSAL}, tmp_path)
    with (
        traffic_record.TrafficRecord(tmp_path / "shadow") as record,
        JudgementRecord(tmp_path / "judgements.jsonl") as kept,
    ):
        assert evaluation.judge_pairs(record, Judge(Helped(), rubric.load("preference"), "text", 16), kept, Bar()) == 2
    stream = traffic_record.read(tmp_path / "shadow")
    names = [sampling.name(KEY, one["id"]) for one in (won, lost)]
    said = [(stream.verdicts[name]["original"], stream.verdicts[name]["swapped"]) for name in names]
    assert said == [("A", "A"), ("B", "B")]
    assert evaluation.failing(stream) == {names[1]: ["refusal", "judge"]}


# --- the test is fixed before its data ------------------------------------------------------------------------------


def watched(tmp_path, stream, done, settings=SETTINGS) -> tuple[dict[str, dict], list[str]]:
    """(the records of 189 by metric, `worse`)."""
    path, worse = results.write(tmp_path, stream, done, settings, SUBJECT, None)
    records = results_io.read(path)["records"]
    return {one["metric_id"].removeprefix("W.shadow."): one for one in records}, worse


def expecting(**rates: float) -> dict:
    return {**SETTINGS, "expected": {**SETTINGS["expected"], **rates}}


def refusing(lines, count: int) -> dict[str, str]:
    """The first `count` are refused."""
    return {one["prompt"]: REFUSAL if number < count else ANSWER for number, one in enumerate(lines)}


def test_an_alarm_stays_when_more_metrics_are_watched(tmp_path):
    """Eleven refusals of the candidate alone: e = 2^11/12 = 170.7 of the 140 that one of seven needs, then 29 equal answers."""
    lines = [line(number) for number in range(40)]
    stream, done = passed(lines[:11], refusing(lines, 11), tmp_path)
    records, worse = watched(tmp_path, stream, done)
    assert (worse, records["refusal.differs"]["alarms"]) == (["refusal.differs"], {"above": 11})
    more = expecting(refusal=0.95, abstention=0.05, empty=0.05)
    stream, done = passed(lines, refusing(lines, 11), tmp_path, more)
    records, worse = watched(tmp_path, stream, done, more)
    assert len(records) == 6 and worse == ["refusal.differs"]
    assert (records["refusal.differs"]["alarms"], records["refusal.differs"]["e_bh"]) == ({"above": 11}, True)


def test_another_alpha_is_refused_and_leaves_the_record_as_it_is(tmp_path):
    """Six refusals of the candidate alone are e = 2^6/7 = 9.14: seven metrics need 14 with alpha .5, and 140 with .05."""
    lines = [line(number) for number in range(40)]
    stream, done = passed(lines, refusing(lines, 6), tmp_path)
    with pytest.raises(
        UserError, match=r"shadow\.alpha=0\.5 differs from the 0\.05 of .*; go on with shadow\.alpha=0\.05, or"
    ):
        passed(lines, refusing(lines, 6), tmp_path, {**SETTINGS, "alpha": 0.5})
    assert traffic_record.read(tmp_path / "shadow") == stream
    records, worse = watched(tmp_path, stream, done)
    assert worse == [] and records["refusal.differs"]["e_largest"] == pytest.approx(2**6 / 7)
    assert records["refusal.differs"]["alarm"] is None


def test_an_expected_rate_is_fixed_once_and_stays_when_it_is_left_out(tmp_path):
    """Five refusals of 40 against .001 are an alarm, and .12 afterwards is refused."""
    lines = [line(number) for number in range(40)]
    first = expecting(refusal=0.001)
    stream, done = passed(lines, refusing(lines, 5), tmp_path, first)
    records, worse = watched(tmp_path, stream, done, first)
    assert "refusal.rate" in worse and records["refusal.rate"]["p0"] == 0.001
    with pytest.raises(UserError, match=r"shadow\.expected\.refusal=0\.12 differs from the 0\.001 of "):
        passed(lines, refusing(lines, 5), tmp_path, expecting(refusal=0.12))
    stream, _ = passed(lines, refusing(lines, 5), tmp_path)
    assert watched(tmp_path, stream, done) == (records, worse)


def test_an_expected_rate_that_is_added_later_counts_the_requests_from_then_on(tmp_path):
    """Ten refusals were seen; the rate .05 that is set afterwards is tested on the ten quiet requests after it: .95^-10/11."""
    lines = [line(number) for number in range(20)]
    passed(lines[:10], refusing(lines, 10), tmp_path)
    later = expecting(refusal=0.05)
    stream, done = passed(lines, refusing(lines, 10), tmp_path, later)
    rate = watched(tmp_path, stream, done, later)[0]["refusal.rate"]
    assert (rate["n"], rate["value"], rate["alarm"]) == (10, 0.0, None)
    assert rate["e"] == pytest.approx(0.95**-10 / 11)


def older(folder, *lines: dict) -> traffic_record.TrafficStream:
    """A record of an older version, with three requests."""
    same = dict.fromkeys(detectors.DETECTORS, False)
    asked = [
        {"kind": "sampled", "request": f"r{k}", "day": "2026-05-01", "part": 0, "live": same, "candidate": same}
        for k in range(3)
    ]
    with chain.Writer(folder / traffic_record.NAME) as writer:
        writer.append([{"kind": "started", "candidate": {}, "rate": 1.0, "key": "k"}, *asked, *lines])
    return traffic_record.read(folder)


def test_an_alarm_of_an_older_version_is_read_and_decides_nothing(tmp_path):
    alarm = {"kind": "alarm", "metric": "refusal.differs", "side": "above", "n": 6, "worse": True, "metrics": 3}
    stream = older(tmp_path / "shadow", alarm)
    assert stream.alpha is None
    with traffic_record.TrafficRecord(tmp_path / "shadow") as record:
        record.plan(0.01, {"refusal": 0.1})
        assert (record.stream.alpha, record.stream.expected["refusal"].since) == (0.01, 5)
        assert [one.outcomes for one in results.metrics(record.stream) if one.name == "refusal.rate"] == [()]


# --- one judge ------------------------------------------------------------------------------------------------------


def verdict(request: str, winner: str, judge: str = "one") -> dict[str, str]:
    return {"request": request, "judge": judge, "original": winner, "swapped": winner}


def test_a_record_has_one_judge_and_one_rubric(tmp_path):
    with traffic_record.TrafficRecord(tmp_path / "shadow") as record:
        record.plan(0.05, {}, ("one", "r"))
        record.plan(0.05, {}, ("one", "r"))
        for judge, what in ((("two", "r"), "judge"), (("one", "s"), "rubric")):
            with pytest.raises(
                UserError, match=f"has verdicts of another {what} than this run; go on with that one or"
            ):
                record.plan(0.05, {"refusal": 0.1}, judge)
        assert record.stream.expected == {}  # a run that is refused fixes nothing
    assert [one["kind"] for one in chain.read(tmp_path / "shadow" / traffic_record.NAME)] == ["planned", "judge"]


def test_of_several_judges_of_an_older_version_the_first_one_s_verdicts_are_used(tmp_path):
    found = [verdict("r0", "A"), verdict("r1", "B", "two"), verdict("r2", "A"), verdict("r2", "B", "two")]
    stream = older(tmp_path / "shadow", *[{"kind": "verdict", **one} for one in found])
    assert (stream.judge, stream.rubric, list(stream.verdicts)) == ("one", None, ["r0", "r2"])
    assert [one.outcomes for one in results.metrics(stream) if one.name == results.WINS] == [(True, True)]
    with traffic_record.TrafficRecord(tmp_path / "shadow") as record:
        with pytest.raises(UserError, match="another judge"):
            record.plan(0.05, {}, ("two", "r"))
        record.plan(0.05, {}, ("one", "r"))
        record.judged([verdict("r1", "B")])
    assert list(traffic_record.read(tmp_path / "shadow").verdicts) == ["r0", "r2", "r1"]


def test_wins_are_in_the_order_of_the_verdicts_and_not_of_the_requests(tmp_path):
    """The call about r1 failed first. A look after the verdict on r2 saw r0 and r2, so the e-process has them in this order."""
    older(tmp_path / "shadow")
    with traffic_record.TrafficRecord(tmp_path / "shadow") as record:
        record.plan(0.05, {}, ("one", "r"))
        record.judged([verdict("r0", "A"), verdict("r2", "A")])
        record.judged([verdict("r1", "B"), verdict("r0", "B")])  # a second one on r0 does not count
        (there,) = (one for one in results.metrics(record.stream) if one.name == results.WINS)
    (wins,) = (one for one in results.metrics(traffic_record.read(tmp_path / "shadow")) if one.name == results.WINS)
    assert wins == there and (wins.outcomes, wins.places) == ((True, True, False), (6, 7, 8))


def test_metrics_that_are_not_watched_count_for_e_bh(tmp_path):
    """Ten lost pairs: e = 93.1 would be enough among the four metrics that are watched (80), and is not among seven (140)."""
    records, worse = watched(tmp_path, judged(*[("B", "B")] * 10), evaluation.Pass(10, 10, 10, 10, 0, 0))
    assert (len(records), worse) == (4, [])
    wins = records["wins"]
    assert wins["e"] == pytest.approx(2**10 / 11) and (wins["e_bh"], wins["alarm"]) == (False, None)


def test_verdicts_of_a_judge_that_is_not_deployed_any_more_decide_nothing(tmp_path):
    stream, counts = judged(*[("B", "B")] * 12), evaluation.Pass(12, 12, 12, 12, 0, 0)
    assert watched(tmp_path, stream, counts)[1] == ["wins"] and len(evaluation.failing(stream)) == 12
    stream.doubt = "its judge may not be deployed now (judge not validated)"
    records, worse = watched(tmp_path, stream, counts)
    assert worse == [] and evaluation.failing(stream) == {}
    wins = records["wins"]
    assert (wins["alarms"], wins["role"], wins["doubt"]) == ({"below": 11}, "exploratory", stream.doubt)


# --- the texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "said"),
    [('"\\ud800"', "half a character"), ("[" * 100_000 + "]" * 100_000, "nested too deep")],
    ids=["half", "deep"],
)
def test_a_text_that_cannot_be_used_is_refused_in_one_sentence(bad, said, tmp_path):
    passed([line(0)], ANSWER, tmp_path)
    path = tmp_path / "shadow" / traffic_record.TEXTS
    path.write_text(path.read_text().replace('"Where is book 0?"', bad))
    with pytest.raises(UserError, match=rf"line 1 is not JSON \(it .*{said}.*; restore it from a copy"):
        traffic_record.read(tmp_path / "shadow")


def test_everything_that_is_stored_is_redacted_and_only_cards_and_phones_are(tmp_path):
    mail = "kim@example.org"
    asked = {
        "id": "x",
        "messages": [
            *({"role": "system", "content": f"You serve {mail}."}, {"role": "user", "content": f"I am {mail}."}),
            *({"role": "assistant", "content": f"Hello {mail}."}, {"role": "user", "content": f"Write to {mail}"}),
        ],
        "answer": f"Done, {mail}.",
        "time": line(0)["time"],
        "meta": line(0).get("meta", {}),
    }
    stream, _ = passed([asked], f"Sent to {mail}", tmp_path)
    (stored,) = stream.texts.values()
    assert mail not in json.dumps(stored) and json.dumps(stored).count("[email]") == 6
    redactor = redaction.Redactor()
    assert redactor("card 4111 1111 1111 1111") == "card [card]"
    assert "[card]" not in redactor("order 4111 1111 1111 1112")  # no check digit of a card
    assert (
        redactor("call 555 1234") == "call [phone]" and redactor("room 12 3456") == "room 12 3456"
    )  # seven digits, six
