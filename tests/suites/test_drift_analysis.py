"""What an analysis answers and where it must not: on records written by hand, without a server."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

import results_io
from results_io import UserError
from suites.drift import (
    analysis,
    change_points,
    corpus,
    registration,
    series_record,
    silent_update,
    snapshot,
    status,
    wordings,
)
from suites.drift.corpus import AXES, NEUTRAL
from suites.log import chain

SETTINGS = {
    "corpus": "small", "every": 1, "default_samples": 4, "zero_samples": 1, "alpha": 0.05, "minimum_prompts": 10,
    "most_errors": 0.1, "resamples": 1000, "prompt_level": False,
}  # fmt: skip
PROMPTS, SAMPLES = 12, 6


def line(snapshot, prompt, sample, text="one two three", *, axis=NEUTRAL, tokens=3, finish="stop", error=None, **rest):
    """A generation of the default leg."""
    own = {"text": text, "text_sha256": hashlib.sha256(text.encode()).hexdigest(), "tokens": tokens, "finish": finish}
    place = {
        "snapshot": snapshot,
        "prompt": prompt,
        "version": 1,
        "prompt_hash": prompt,
        "axis": axis,
        "leg": "default",
    }
    model = {"requested": "prod", "reported": None, "system_fingerprint": None, "api_version": None, "safety": False}
    known = {"kind": series_record.GENERATION, "sample": sample, "split": "public", "harm": "none", "error": error}
    return {**known, **place, **own, **model, **rest}


def begun(snapshot, *, version="v1", every=1, n=PROMPTS * SAMPLES, **of_corpus):
    """The first line of a snapshot."""
    asked = {"name": "small", "version": "1", "sha256": "0" * 64, "markers": ["no"], "public": [], "held_out": 0}
    asked |= {"not_applicable": {axis: "not asked" for axis in AXES if axis != NEUTRAL}, "commitments": {}, **of_corpus}
    model = {"name": "prod", "identity": {"kind": "endpoint"}}
    said = {
        "kind": series_record.STARTED,
        "snapshot": snapshot,
        "expected_n": n,
        "corpus": asked,
        "legs": [],
        "seed": 0,
    }
    return {**said, "leg_dropped": None, "model": model, "declared_version": version, "every": every, "max_tokens": 9}


def week(writer, snapshot, rows, **started):
    """A finished snapshot."""
    end = {"kind": series_record.FINISHED, "snapshot": snapshot, "n": len(rows), "errors": 0}
    writer.append([begun(snapshot, **started), *rows, end])


def grid(snapshot, tokens, prompts=PROMPTS, **rest):
    """Every prompt and sample; `tokens`: of sample s of prompt p."""
    return [line(snapshot, f"p{p}", s, tokens=tokens(p, s), **rest) for p in range(prompts) for s in range(SAMPLES)]


def analysed(folder, **settings):
    return analysis.analyse(folder, {**SETTINGS, **settings}, vectors=lambda hashes: None)


def silent(manifest):
    return next(
        row for row in manifest["records"] if row["metric"] == silent_update.NUMBER and row["level"] == "snapshot"
    )


def series(tmp_path, *weeks):
    """A record of weeks (tokens, keyword arguments of `week`), from 2026-W22 on."""
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        for number, (tokens, rest) in enumerate(weeks):
            name = f"2026-W{22 + number}"
            week(writer, name, grid(name, tokens), **rest)
    return folder


def plain(p, s):
    return 20 + s


def longer(p, s):
    return 30 + s


# --- silent updates ---------------------------------------------------------------------------------------------------


def test_what_moved_unsaid_is_a_candidate_and_what_was_declared_is_none(tmp_path) -> None:
    unsaid = analysed(series(tmp_path / "a", (plain, {}), (longer, {})))
    declared = analysed(series(tmp_path / "b", (plain, {}), (longer, {"version": "v2"})))
    assert (silent(unsaid)["value"], silent(declared)["value"]) == ("candidate", "none")
    assert [one["name"] for one in unsaid["alarms"]] == ["length", "silent_update"]
    assert [one["name"] for one in declared["alarms"]] == ["length"]  # the axis moved, whoever said so


REFUSED = "I'm sorry, but I can't help with that."


def test_refusals_of_a_detector_that_is_not_locked_raise_no_alarm_and_support_no_claim(tmp_path) -> None:
    """A corpus without markers, no embedder: every neutral output becomes a refusal, p = .0002."""
    folder = series(tmp_path, (plain, {"markers": []}))
    claim = {
        "claim": "refuses", "metric": "refusal", "axis": NEUTRAL, "direction": "up", "test": registration.TEST,
        "alpha": 0.05, "margin": 0.1, "n": 10, "exclusion": "none",
    }  # fmt: skip
    registration.register(folder, claim, snapshot.now())
    with chain.Writer(folder / series_record.NAME) as writer:
        week(writer, "2026-W23", grid("2026-W23", plain, text=REFUSED), markers=[])
    found = analysed(folder)
    row = next(row for row in found["records"] if row["level"] == "axis" and row["name"] == "refusal")
    assert (row["p"], row["difference"], row["flag"]) == (pytest.approx(2e-4), 1.0, None)
    assert (silent(found)["value"], found["alarms"], analysis.exit_code(found)) == ("none", [], 0)
    assert [one["outcome"] for one in found["registered"]] == ["open"]


def by_text(places):
    """Vectors of texts: each output a little apart around the place of its first word."""

    def load(hashes):
        found = {}
        for word, place in places.items():
            for n in range(SAMPLES):
                angle = place + 0.02 * (n - (SAMPLES - 1) / 2)
                found[hashlib.sha256(f"{word} {n}".encode()).hexdigest()] = np.array([np.cos(angle), np.sin(angle)])
        return {one: found[one] for one in hashes}

    return load


@pytest.mark.parametrize(("words", "said"), [(("a", "b", "a"), "none"), (("a", "b", "c"), "candidate")])
def test_a_centroid_that_went_back_did_not_move_twice_in_one_direction(tmp_path, monkeypatch, words, said) -> None:
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        for number, word in enumerate(words, 22):
            rows = grid(f"2026-W{number}", plain)
            texts = [f"{word} {row['sample']}" for row in rows]
            digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
            new = zip(rows, texts, digests, strict=True)
            week(writer, f"2026-W{number}", [row | {"text": t, "text_sha256": d} for row, t, d in new])
    monkeypatch.setattr(silent_update, "ONE_P", 0.0)  # so that only two in a row count
    found = analysis.analyse(folder, SETTINGS, vectors=by_text({"a": 0.0, "b": 0.5, "c": 1.0}))
    row = next(row for row in found["records"] if row["name"] == "centroid" and row["level"] == "axis")
    assert (row["rejected"], row["direction"], row["difference"]) == (True, None, pytest.approx(1 - np.cos(0.5)))
    assert silent(found)["value"] == said


def test_texts_that_were_cut_are_counted_on_both_sides(tmp_path) -> None:
    """Before, two texts of 255 words, of which the embedder reads 254; after, one of 255 and one of 254."""
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        for number, lengths in ((22, (("red", 255), ("blue", 255))), (23, (("grey", 255), ("green", 254)))):
            rows = [
                line(f"2026-W{number}", f"p{p}", s, " ".join([word] * words))
                for p in range(PROMPTS)
                for s in range(SAMPLES)
                for word, words in [lengths[s % 2]]
            ]
            week(writer, f"2026-W{number}", rows)
    found = analysis.analyse(folder, SETTINGS, vectors=lambda hashes: {one: np.ones(2) for one in hashes})
    row = next(row for row in found["records"] if row["name"] == "centroid" and row["level"] == "axis")
    assert row["detail"]["truncated"] == 3


def told(*fingerprints):
    """A snapshot whose calls reported these in turn."""
    rows = [
        (series_record.AskedCell("p0@1", "default", n), line("2026-W22", "p0", n, system_fingerprint=one))
        for n, one in enumerate(fingerprints)
    ]
    return series_record.RecordedSnapshot("2026-W22", begun("2026-W22"), rows=dict(rows))


def test_a_fingerprint_that_was_not_there_before_is_proof_also_beside_the_old_one() -> None:
    """An update in the midst of a snapshot: {1}, {1, 2}, {2}. No two in a row are without a common one."""
    one, both, two = told("fp-1", "fp-1"), told("fp-1", "fp-2"), told("fp-2", "fp-2")
    assert silent_update.evidence(one, both) == "system_fingerprint changed from fp-1 to fp-1, fp-2"
    assert silent_update.evidence(both, two) is None and silent_update.evidence(one, one) is None
    assert silent_update.evidence(one, told(None)) is None


def test_fingerprints_in_rotation_prove_nothing_and_a_whole_return_does() -> None:
    """{1, 2}, {1}, {1, 2}: the second is known from before. {1}, {2}, {1}: no call of the last is by what answered before."""
    one, both, two = told("fp-1"), told("fp-1", "fp-2"), told("fp-2")
    assert silent_update.evidence(one, both, [both]) is None
    assert (
        silent_update.evidence(one, told("fp-1", "fp-3"), [both])
        == "system_fingerprint changed from fp-1 to fp-1, fp-3"
    )
    assert silent_update.evidence(two, one, [one]) == "system_fingerprint changed from fp-2 to fp-1"
    other = series_record.RecordedSnapshot("2026-W21", begun("2026-W21", version="v0"), rows=both.rows)
    assert silent_update.evidence(one, both, [other]) is not None  # of another declared version


def test_that_no_update_was_found_stands_beside_what_one_p_would_have_found(tmp_path) -> None:
    """(z_.9995 + z_.8) x se = 4.132 x sqrt(2 x 3.5/6/12)."""
    row = silent(analysed(series(tmp_path, (plain, {}), (plain, {}))))
    assert row["value"] == "none"
    could = 4.1322 * np.sqrt(2 * 3.5 / 6 / 12)
    assert row["reason"] == f"changes that give one p <= 0.001 with chance 0.8: length {could:.3g}"


def test_neutral_prompts_that_failed_say_nothing_of_an_update(tmp_path) -> None:
    """Two of twelve prompts failed: 17 % of the calls. No test of the axis, so no "none" either."""
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        week(writer, "2026-W22", grid("2026-W22", plain))
        rows = [one | ({"error": "down"} if one["prompt"] in ("p0", "p1") else {}) for one in grid("2026-W23", longer)]
        week(writer, "2026-W23", rows)
    found = analysed(folder)
    row = silent(found)
    assert (row["value"], row["status"], row["flag"]) == (None, "error", None) and "12 of 72 calls" in row["reason"]
    assert {one["metric"]: one["status"] for one in found["status"]}["166"] == "failed"
    assert analysis.exit_code(found) == 3


@pytest.mark.parametrize("before", [9, 12])
def test_under_ten_neutral_prompts_on_either_side_are_no_test_of_an_update(tmp_path, before) -> None:
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        week(writer, "2026-W22", grid("2026-W22", plain, before))
        week(writer, "2026-W23", grid("2026-W23", longer, 21 - before))
    row = silent(analysed(folder))
    assert row["status"] == "insufficient_data" and row["reason"].startswith("9 prompts")


def test_a_missing_week_is_a_gap_of_the_silent_update_too(tmp_path) -> None:
    folder = series(tmp_path, (plain, {}), (plain, {}))
    with chain.Writer(folder / series_record.NAME) as writer:
        writer.append([{"kind": series_record.GAP, "snapshot": "2026-W24", "cause": "down", "affected": {"cells": 72}}])
    found = analysed(folder)
    known = {one["metric"]: one["status"] for one in found["status"]}
    assert (known["164"], known["166"], known["168"]) == ("off", "gap", "off")
    with_vectors = analysis.analyse(folder, SETTINGS, vectors=lambda hashes: {one: np.ones(2) for one in hashes})
    assert {one["metric"]: one["status"] for one in with_vectors["status"]}["164"] == "gap"
    assert found["gaps"] == [{"snapshot": "2026-W24", "cause": "down", "affected": {"cells": 72}, "whole": True}]


# --- gaps and the schedule --------------------------------------------------------------------------------------------


def test_what_lacks_are_outputs_never_asked_and_those_asked_in_vain(tmp_path) -> None:
    """Of 72 expected outputs 30 are there and 6 failed: 42 lack. A week that nobody took lacks as many as the one before."""
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        rows = grid("2026-W22", plain)[:36]
        writer.append(
            [begun("2026-W22"), *(one | ({"error": "down"} if one["prompt"] == "p0" else {}) for one in rows)]
        )
        week(writer, "2026-W24", grid("2026-W24", plain))
    gaps = {one["snapshot"]: one for one in analysed(folder)["gaps"]}
    assert gaps["2026-W22"]["affected"] == {"cells": 42} and gaps["2026-W23"]["affected"] == {"cells": 72}
    assert gaps["2026-W23"]["cause"] == "no sample was taken"


def test_the_schedule_counts_from_the_first_week_taken_or_not(tmp_path) -> None:
    """Every second week from 22 on, which was not finished: 23 is off the schedule, so 26 is compared with 24."""
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        writer.append([begun("2026-W22", every=2)])
        for number in (23, 24, 26):
            week(writer, f"2026-W{number}", grid(f"2026-W{number}", plain), every=2)
    taken = series_record.read(folder / series_record.NAME)
    assert (
        series_record.previous(taken, "2026-W26").id == "2026-W24" and series_record.previous(taken, "2026-W24") is None
    )
    assert [one["snapshot"] for one in analysed(folder)["gaps"]] == ["2026-W22"]


# --- change points ----------------------------------------------------------------------------------------------------


def test_a_series_that_varies_without_a_sampling_error_has_no_scale_to_break_on() -> None:
    jump = [(str(i), float(i > 3), 0.0) for i in range(8)]
    found = change_points.of_series(jump)
    assert (found.status, found.value) == ("undefined", None) and "no scale" in found.reason
    flat = change_points.of_series([(str(i), 1.0, 0.0) for i in range(8)])
    assert (flat.value, flat.detail["at"]) == (0, [])


def test_a_change_is_no_variance_between_null_snapshots() -> None:
    """Six and six around levels that lie 4 se apart: taken together the step alone would be an excess variance of 4 se^2."""
    rng = np.random.default_rng(0)
    levels = [0] * 6 + [1] * 6
    values = [4.0 * level + rng.normal() for level in levels]
    assert change_points.excess_variance(values, [1.0] * 12) > 2.5
    assert change_points.excess_variance(values, [1.0] * 12, levels) < 0.5
    assert change_points.excess_variance(values, [1.0] * 12, list(range(12))) == 0
    found = [
        change_points.excess_variance(rng.normal(4.0 * np.array(levels), 1.5), [1.0] * 12, levels) for _ in range(400)
    ]
    assert np.mean(found) == pytest.approx(1.25, abs=0.15)  # 1.5^2 - 1


@pytest.mark.slow
def test_lengths_that_were_cut_are_no_points_of_a_series(tmp_path) -> None:
    """Every third output ends at max_tokens: more than a fifth, so no test and no break, while hedging goes on."""

    def cut(name):
        rows = grid(name, longer)
        return [one | ({"finish": "length"} if one["sample"] % 3 == 0 else {}) for one in rows]

    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        for number in range(22, 28):
            name = f"2026-W{number}"
            week(writer, name, grid(name, plain) if number < 25 else cut(name))
    rows = [row for row in analysed(folder)["records"] if row["metric"] == change_points.NUMBER]
    by = {row["of"]: row for row in rows}
    assert (by["length"]["status"], by["length"]["detail"]) == ("insufficient_data", {"have": 3, "need": 4})
    assert by["refusal"]["value"] == 0


# --- held-out prompts, claims, the status -----------------------------------------------------------------------------


def split_grid(name, tokens, **rest):
    """Twelve public and twelve held-out prompts."""
    hidden = [one | {"prompt": f"h{one['prompt']}", "split": "held_out"} for one in grid(name, tokens)]
    return [one | rest for one in (*grid(name, tokens), *hidden)]


@pytest.mark.slow
def test_the_held_out_gap_says_nothing_of_an_axis_that_failed_or_was_cut(tmp_path) -> None:
    found = {}
    for name, spoilt in (("sound", {}), ("cut", {"finish": "length"})):
        folder = tmp_path / name / "prod"
        with chain.Writer(folder / series_record.NAME) as writer:
            week(writer, "2026-W22", split_grid("2026-W22", plain))
            week(writer, "2026-W23", split_grid("2026-W23", plain, **spoilt))
        rows = [row for row in analysed(folder)["records"] if row["level"] == "held_out_gap"]
        found[name] = {row["of"]: (row["status"], row["detectable"]) for row in rows}
    assert found["sound"]["length"] == ("ok", None)  # every change is 0: nothing says how a gap would vary
    assert found["cut"]["length"] == ("undefined", None) and found["cut"]["refusal"][0] == "ok"
    folder = tmp_path / "failed" / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        week(writer, "2026-W22", split_grid("2026-W22", plain))
        rows = split_grid("2026-W23", plain)
        week(
            writer,
            "2026-W23",
            [one | ({"error": "down"} if one["prompt"] in ("p0", "p1", "p2") else {}) for one in rows],
        )
    rows = [row for row in analysed(folder)["records"] if row["level"] == "held_out_gap"]
    assert {row["status"] for row in rows} == {"error"} and len(rows) == 3


@pytest.mark.slow
def test_a_claim_is_decided_once_whatever_a_later_analysis_finds(tmp_path) -> None:
    folder = series(tmp_path, (plain, {}))
    claim = {
        "claim": "longer", "metric": "length", "axis": NEUTRAL, "direction": "up", "test": registration.TEST,
        "alpha": 0.05, "margin": 5, "n": 10, "exclusion": "none",
    }  # fmt: skip
    from suites.drift.snapshot import now

    registration.register(folder, claim, now())
    with chain.Writer(folder / series_record.NAME) as writer:
        week(writer, "2026-W23", grid("2026-W23", longer))
    assert analysed(folder, minimum_prompts=13)["registered"][0]["outcome"] == "open"
    first = analysed(folder)["registered"]
    assert [(one["outcome"], one["difference"]) for one in first] == [("supported", 10.0)]
    assert registration.write_decisions(folder, first, now()) == 1
    assert analysed(folder, minimum_prompts=13)["registered"] == first
    earlier = analysis.analyse(folder, SETTINGS, vectors=lambda hashes: None)
    assert earlier["registered"] == first


def test_the_status_names_an_axis_that_failed_beside_others_that_did_not() -> None:
    rows = [
        {
            "metric": "163",
            "level": "level",
            "axis": axis,
            "status": known,
            "detail": {},
            "reason": "12 of 72 calls failed",
        }
        for axis, known in (("political", "ok"), (NEUTRAL, "error"))
    ]
    found = next(one for one in status.table(rows) if one["metric"] == "163")
    assert (found["status"], found["note"]) == (
        "live (no flags)",
        "1 of 2 rows with a value; failed on neutral-control",
    )


def test_every_null_result_stands_beside_what_it_could_have_found(tmp_path) -> None:
    folder = series(tmp_path, (plain, {}), (plain, {}))
    found = analysed(folder, prompt_level=True)
    tests = [row for row in found["records"] if row["level"] in ("axis", "prompt") and row["name"] == "length"]
    axis, *prompts = sorted(row["detectable"] for row in tests)
    error = np.sqrt(2 * np.var(np.arange(6), ddof=1) / 6)
    assert axis == pytest.approx(2.8016 * error / np.sqrt(12), abs=1e-4)
    assert prompts == pytest.approx([3.9196 * error] * 12, abs=2e-3)  # of 24 tests: z of .05/48 and z of .2


def test_the_embedder_is_part_of_what_a_stored_comparison_is_of(tmp_path, monkeypatch) -> None:
    """As many vectors of another embedder: the comparison is made anew."""
    from suites.drift import embeddings

    folder, made = series(tmp_path, (plain, {}), (plain, {})), []
    monkeypatch.setattr(analysis.comparison, "compare", lambda *given: made.append(given) or [])
    for who in ("first", "first", "second"):
        identity = {"name": "small", "package": "1", "weights_sha256": who}
        monkeypatch.setattr(embeddings, "identity", lambda identity=identity: identity)
        analysis.analyse(folder, SETTINGS, vectors=lambda hashes: {one: np.ones(2) for one in hashes})
    assert len(made) == 2
    (kept,) = folder.glob("comparison-*.json")
    document = results_io.read(kept)
    results_io.write(
        kept, {name: value for name, value in document.items() if name != "kind"}
    )  # as an older version did
    analysis.analyse(folder, SETTINGS, vectors=lambda hashes: {one: np.ones(2) for one in hashes})
    assert len(made) == 3 and results_io.read(kept)["kind"] == document["kind"]


# --- wordings ---------------------------------------------------------------------------------------------------------


def test_a_reworded_prompt_begins_another_series(tmp_path) -> None:
    """p0 of twelve is asked anew from week 23 on, beside the old one for two weeks. Its answers have 100 more tokens."""
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        for number, versions in ((22, (1,)), (23, (1, 2)), (24, (1, 2)), (26, (2,))):
            name = f"2026-W{number}"
            rows = [row for row in grid(name, plain) if row["prompt"] != "p0"]
            for version in versions:
                asked = [line(name, "p0", s, tokens=20 + s + 100 * (version - 1)) for s in range(SAMPLES)]
                rows += [row | {"version": version, "prompt_hash": f"p0@{version}"} for row in asked]
            week(writer, name, rows, n=len(rows))
    found = analysed(folder)
    series_of = {}
    for point in found["history"]:
        if point["metric"] == "163":
            series_of.setdefault(point["name"], {})[point["snapshot"][-2:]] = point["value"]
    new = 22.5 + 100 / 12
    assert series_of == {
        "length": {"22": 22.5, "23": 22.5, "24": 22.5, "25": None},
        "length_wording_2": {"23": pytest.approx(new), "24": pytest.approx(new), "25": None, "26": pytest.approx(new)},
    }
    tests = {}
    for number in (23, 24, 26):
        records = results_io.read(folder / f"manifest-2026-W{number}.json")["records"]
        tests[number] = next(row for row in records if row["level"] == "axis" and row["name"] == "length")
    assert {n: row["detail"]["prompts"] for n, row in tests.items()} == {23: 12, 24: 12, 26: 12}
    assert {n: round(row["before"], 4) for n, row in tests.items()} == {23: 22.5, 24: round(new, 4), 26: round(new, 4)}
    overlaps = [row for row in results_io.read(folder / "163_length.json")["records"] if row["level"] == "overlap"]
    assert [(row["snapshot"], row["difference"]) for row in overlaps] == [("2026-W23", 100.0), ("2026-W24", 100.0)]
    breaks = {row["of"]: row["detail"]["have"] for row in found["records"] if row["level"] == "series" and row["axis"]}
    assert breaks["length"] == 3 and breaks["length_wording_2"] == 2  # a splice would have four points, and break


def test_wordings_are_those_of_each_snapshot_and_of_none_after_it() -> None:
    asked = {"1": ["a@1", "b@1"], "2": ["a@1", "a@2", "b@1"], "4": ["a@2", "b@1", "b@2"], "5": ["a@2", "b@2", "c@1"]}
    found = wordings.of_axis(["0", "1", "2", "3", "4", "5"], asked)
    assert [{key: names and sorted(names) for key, names in one.asked.items()} for one in found] == [
        {"0": None, "1": ["a@1", "b@1"], "2": ["a@1", "b@1"], "3": None},
        {"2": ["a@2", "b@1"], "3": None, "4": ["a@2", "b@1"]},
        {"4": ["a@2", "b@2"], "5": ["a@2", "b@2", "c@1"]},
    ]
    for end in range(1, 6):
        part = wordings.of_axis([str(n) for n in range(end)], {k: v for k, v in asked.items() if int(k) < end})
        for short, long in zip(part, found, strict=False):
            assert short.asked == {key: names for key, names in long.asked.items() if int(key) < end}
    assert wordings.once({"x@y@2", "x@y@10", "z@1"}) == ["x@y@10", "z@1"]


# --- families of many tests -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_change_among_many_single_prompts_can_survive(tmp_path) -> None:
    """170 prompts by three metrics: 510 tests, so 20,399 relabellings; the smallest p, 2/20,400, is a 510th of .05."""
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        for number in (22, 23):
            name = f"2026-W{number}"
            moved = {"p0": 90 * (number - 22)}
            prompts = [(f"p{p}", s) for p in range(170) for s in range(10)]
            rows = [line(name, p, s, tokens=20 + s + moved.get(p, 0)) for p, s in prompts]
            week(writer, name, rows, n=len(rows))
    rows = [row for row in analysed(folder, prompt_level=True)["records"] if row["level"] == "prompt"]
    lengths = [row for row in rows if row["name"] == "length"]
    assert len(rows) == 510 and {row["detail"]["relabellings"] for row in lengths} == {20_399}
    found = [(row["prompt"], row["p"], row["adjusted_p"]) for row in rows if row["rejected"]]
    assert found == [("p0@1", pytest.approx(2 / 20_400), pytest.approx(0.05))]


# --- commitments ------------------------------------------------------------------------------------------------------


def test_what_was_committed_to_stays_published_after_the_prompt_is_retired(tmp_path) -> None:
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        for number, known in (("2026-W22", {"old@1": "a", "kept@1": "b"}), ("2026-W23", {"kept@1": "b", "new@1": "c"})):
            week(writer, number, grid(number, plain), commitments={k: {"hmac_sha256": v} for k, v in known.items()})
    found = series_record.commitments(series_record.read(folder / series_record.NAME))["commitments"]
    assert {key: one["hmac_sha256"] for key, one in found.items()} == {"old@1": "a", "kept@1": "b", "new@1": "c"}


def test_a_held_out_question_that_is_public_is_refused_and_secrets_leave_out_what_is_public(tmp_path) -> None:
    import yaml

    from suites.drift import pocket_prompts

    public = corpus.load("pocket")
    taken = frozenset(prompt.text for prompt in public.prompts)
    rows = [{**one, "salt": f"{n:064x}"} for n, one in enumerate(pocket_prompts.draw("of a test", 12, taken))]
    path = tmp_path / "held-out.yaml"
    first = next(prompt for prompt in public.prompts if prompt.axis == NEUTRAL)
    asked = next(row for row in rows if row["axis"] == NEUTRAL)
    asked |= {"stance": "Dogs are old.", "messages": [{"role": "system", "content": "Be brief and secret."}]}
    asked["messages"].append({"role": "user", "content": asked.pop("prompt")})
    path.write_text(yaml.safe_dump({"prompts": rows}))
    assert len(corpus.load("pocket", path).commitments) == 36
    hidden = corpus.secrets(path, {text for prompt in public.prompts for text in prompt.texts})
    assert {"Be brief and secret.", "Dogs are old.", asked["messages"][1]["content"]} <= set(hidden)
    assert not set(hidden) & {text for prompt in public.prompts for text in prompt.texts}
    asked["messages"] = [{"role": "user", "content": first.text}]
    path.write_text(yaml.safe_dump({"prompts": rows}))
    with pytest.raises(UserError, match=f"{asked['id']}@1 asks what a public prompt of pocket asks"):
        corpus.load("pocket", path)


@pytest.mark.parametrize(
    ("public", "held_out", "said"), [(28, 12, None), (29, 12, "29%"), (12, 28, None), (12, 29, "71%")]
)
def test_held_out_prompts_are_30_to_70_percent_of_all(tmp_path, public, held_out, said) -> None:
    import yaml

    asked = corpus.Corpus(
        "small", "1", tuple(corpus.Prompt(f"p{n}", 1, NEUTRAL, (("user", f"say {n}"),)) for n in range(public))
    )
    rows = [{"id": f"h{n}", "axis": NEUTRAL, "prompt": f"tell {n}", "salt": f"{n:064x}"} for n in range(held_out)]
    path = tmp_path / "held-out.yaml"
    path.write_text(yaml.safe_dump({"prompts": rows}))
    if said is None:
        assert len(corpus.with_held_out(asked, path).prompts) == 40
    else:
        with pytest.raises(UserError, match=f"holds {said} of all prompts; expected 30 % to 70 %"):
            corpus.with_held_out(asked, path)


def test_a_prompt_that_is_still_asked_is_not_revealed(tmp_path) -> None:
    import yaml

    from suites.drift import pocket_prompts

    rows = [{**one, "salt": f"{n:064x}"} for n, one in enumerate(pocket_prompts.draw("of a test", 10))]
    path, key = tmp_path / "held-out.yaml", f"{rows[0]['id']}@1"
    path.write_text(yaml.safe_dump({"prompts": rows}))
    with pytest.raises(UserError, match="is not retired"):
        corpus.reveal(path, key, corpus.commitments(path), {key})
    assert corpus.reveal(path, key, corpus.commitments(path), {"other@1"})["salt"] == rows[0]["salt"]


# --- attacks on the record --------------------------------------------------------------------------------------------


def test_a_record_that_was_cut_is_found_by_the_manifests_of_earlier_analyses(tmp_path) -> None:
    """Without its last lines a chain holds."""
    folder = series(tmp_path, (plain, {}), (plain, {}))
    analysed(folder)
    series_record.require_whole(folder, series_record.read(folder / series_record.NAME))
    lines = (folder / series_record.NAME).read_bytes().splitlines(keepends=True)
    (folder / series_record.NAME).write_bytes(b"".join(lines[: len(lines) // 2]))
    assert list(series_record.read(folder / series_record.NAME).snapshots) == ["2026-W22"]
    with pytest.raises(UserError, match=r"manifest-2026-W23.json is of a snapshot that run_log.jsonl does not hold"):
        series_record.require_whole(folder, series_record.read(folder / series_record.NAME))


def test_a_clock_that_went_back_neither_samples_nor_notes_a_week_that_is_over(tmp_path) -> None:
    folder = series(tmp_path, (plain, {}), (plain, {}))
    before = (folder / series_record.NAME).read_bytes()
    with pytest.raises(UserError, match=r"2026-W21 is over, as 2026-W23 is on record.*set the clock"):
        snapshot.absent(folder, "2026-W21", "down")
    assert (folder / series_record.NAME).read_bytes() == before
    snapshot.absent(folder, "2026-W24", "down")
    assert [gap["snapshot"] for gap in series_record.read(folder / series_record.NAME).gaps] == ["2026-W24"]


def test_a_record_is_read_once_so_a_writer_may_go_on_meanwhile(tmp_path) -> None:
    folder = series(tmp_path, (plain, {}), (plain, {}))
    found = series_record.read(folder / series_record.NAME)
    lines = [json.loads(one) for one in (folder / series_record.NAME).read_bytes().splitlines()]
    ends = {one["snapshot"]: one["hash"] for one in lines if one["kind"] == series_record.FINISHED}
    assert {name: one.head for name, one in found.snapshots.items()} == ends


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("margin", ".inf", "margin is inf; expected a number from 0 on"),
        ("n", "1.0e400", "expected a number from 1 on"),
        ("alpha", "2", "alpha is 2; expected a number from 0 to 1"),
        ("claim", "2026-01-01", "claim is datetime.date.*; expected a line of text, in quotation marks"),
        ("claim", '"\\ud800"', "claim is .*; expected a line of text"),
        ("exclusion", "[1]", r"exclusion is \[1\]; expected a line of text"),
    ],
)
def test_a_hypothesis_that_no_chain_can_hold_is_one_sentence(tmp_path, key, value, said) -> None:
    keys = {"claim": "they rise", "metric": "length", "axis": NEUTRAL, "direction": "up", "test": registration.TEST}
    keys |= {"alpha": 0.05, "margin": 0, "n": 10, "exclusion": "none", key: value}
    (tmp_path / "h.yaml").write_text("".join(f"{name}: {one}\n" for name, one in keys.items()))
    with pytest.raises(UserError, match=said):
        registration.read(tmp_path / "h.yaml")


# --- embedders --------------------------------------------------------------------------------------------------------


def embedded_by(who):
    """A finished line's embedder."""
    return {"name": "small", "package": "1", "weights_sha256": who}


def test_another_embedder_begins_another_series_and_no_test_mixes_two(tmp_path, monkeypatch) -> None:
    """Five weeks by embedders 1 1 2 1 2, the fourth a gap. The words stay: by 1 all point one way, by 2 week 23 another way."""
    from suites.drift import embeddings

    monkeypatch.setattr(embeddings, "identity", lambda: embedded_by("2"))  # what is installed when it is analysed
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        for number, who in ((22, "1"), (23, "1"), (24, "2"), (26, "1"), (27, "2")):
            name = f"2026-W{number}"
            rows = [
                row
                | {
                    "text": (text := f"{number} {row['sample']}"),
                    "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
                }
                for row in grid(name, plain)
            ]
            end = {"kind": series_record.FINISHED, "snapshot": name, "n": len(rows), "errors": 0}
            writer.append([begun(name), *rows, end | {"embedder": embedded_by(who)}])
            with embeddings.Store(tmp_path / embeddings.NAME, "1") as store:
                store.add(
                    {row["text_sha256"]: row["text"] for row in rows},
                    lambda texts: np.tile([1.0, 0.0], (len(texts), 1)),
                )
            with embeddings.Store(tmp_path / embeddings.NAME, "2") as store:
                way = [0.0, 1.0] if number == 23 else [1.0, 0.0]
                store.add(
                    {row["text_sha256"]: row["text"] for row in rows},
                    lambda texts, way=way: np.tile(way, (len(texts), 1)),
                )
    found = analysis.analyse(folder, SETTINGS)
    series_of = {}
    for point in found["history"]:
        if point["metric"] == "164":
            series_of.setdefault(point["name"], {})[point["snapshot"][-2:]] = (point["value"], point["reason"])
    assert series_of == {
        "centroid": {
            "22": (None, "no snapshot before it"), "23": (0.0, ""), "24": (None, "embedded by another"), "25": (None, "gap"),
            "26": (0.0, ""),
        },
        "centroid_embedder_2": {"24": (1.0, ""), "25": (None, "gap"), "26": (None, "embedded by another"), "27": (0.0, "")},
    }  # fmt: skip
    of = {n: results_io.read(folder / f"manifest-2026-W{n}.json") for n in (23, 24, 26, 27)}
    assert [one["subject"]["embedder"]["weights_sha256"] for one in of.values()] == ["1", "2", "1", "2"]


def test_what_another_embedder_embedded_is_not_embedded_anew(tmp_path, monkeypatch) -> None:
    """Two weeks by 1, then a week by 2: of the texts of before, 2 embeds those of the week that its own is compared with."""
    from meridian import drift_series
    from suites.drift import embeddings
    from suites.modes import embedding

    folder, made = tmp_path / "prod", {"1": 0, "2": 0}
    for number, who in ((22, "1"), (23, "1"), (24, "2")):
        name = f"2026-W{number}"
        rows = [line(name, "p0", n, text) for n, text in enumerate((f"{number} a", f"{number} b"))]
        with chain.Writer(folder / series_record.NAME) as writer:
            end = {"kind": series_record.FINISHED, "snapshot": name, "n": len(rows), "errors": 0}
            writer.append([begun(name, n=len(rows)), *rows, end | {"embedder": embedded_by(who)}])
        monkeypatch.setattr(embeddings, "identity", lambda who=who: embedded_by(who))
        monkeypatch.setattr(embedding, "embedder", lambda: lambda texts: np.ones((len(texts), 2)))
        made[who] += drift_series.embed(folder)
    assert made == {"1": 4, "2": 4} and drift_series.embed(folder) == 0


# --- revealed prompts -------------------------------------------------------------------------------------------------


def test_what_a_revealed_prompt_answers_later_is_not_held_out(tmp_path) -> None:
    """p0 of 12 held-out prompts is revealed after week 22 and asked again in week 23: 11 are left, and its answers move nothing.

    Its answers in week 23 have 1000 more tokens, all others as many as before. A prompt that was public stays public.
    """
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        for name, longer in (("2026-W22", 0), ("2026-W23", 1000)):
            rows = grid(name, plain) + [
                row | {"prompt": f"h{row['prompt']}", "prompt_hash": f"h{row['prompt']}", "split": "held_out"}
                | ({"tokens": row["tokens"] + longer} if row["prompt"] == "p0" else {})
                for row in grid(name, plain)
            ]  # fmt: skip
            week(writer, name, rows, n=len(rows), held_out=12)
            if not longer:
                for key in ("hp0@1", "p1@1"):
                    writer.append([{"kind": series_record.REVEALED, "prompt": key}])
    known = series_record.read(folder / series_record.NAME)
    splits = {cell.prompt: row["split"] for cell, row in known.snapshots["2026-W23"].rows.items()}
    assert splits["hp0@1"] == "revealed" and splits["hp1@1"] == "held_out" and splits["p1@1"] == "public"
    assert {row["split"] for row in known.snapshots["2026-W22"].rows.values()} == {"public", "held_out"}
    found = analysed(folder)
    gap = next(row for row in found["records"] if row["level"] == "held_out_gap" and row["of"] == "length")
    assert (gap["value"], gap["n"]) == (0.0, 23)
