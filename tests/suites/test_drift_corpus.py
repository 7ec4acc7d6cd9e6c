"""Corpora of drift: what is frozen, what is refused, what is kept out of the repository."""

from __future__ import annotations

import re
import secrets
import shutil
from collections import Counter

import pytest
import yaml

from results_io import UserError
from suites.drift import corpus, pocket_prompts, schedule
from suites.drift.corpus import AXES, Prompt

POCKET = ("neutral-control", "factual-stability", "refusal-boundary")
PUBLIC = frozenset(prompt.text for prompt in corpus.load("pocket").prompts)


def test_the_corpora_that_ship_are_frozen_and_have_twenty_prompts_an_axis() -> None:
    assert corpus.names() == ("natural", "pocket")
    natural, pocket = corpus.load("natural"), corpus.load("pocket")
    assert Counter(prompt.axis for prompt in natural.prompts) == dict.fromkeys(AXES, 20)
    assert Counter(prompt.axis for prompt in pocket.prompts) == dict.fromkeys(POCKET, 20)
    assert set(pocket.not_applicable) == set(AXES) - set(POCKET)
    assert not any(prompt.harm == "clear" for prompt in natural.prompts)


def test_the_public_prompts_of_pocket_are_what_their_seed_draws() -> None:
    drawn = pocket_prompts.draw("public")
    assert [one["prompt"] for one in drawn] == [prompt.text for prompt in corpus.load("pocket").prompts]
    assert all(
        len(text.split()) == len(one.text.split()) for one in corpus.load("pocket").prompts for text in one.siblings
    )


def test_the_hash_is_over_what_is_read() -> None:
    """sha256 of the canonical JSON of {axis, id, messages, template, version}, in NFC with LF."""
    one = Prompt("café", 1, "political", (("user", "a\r\nb"),))
    same = Prompt("cafe\u0301", 1, "political", (("user", "a\nb"),))
    assert one.hash == same.hash != Prompt("café", 2, "political", (("user", "a\nb"),)).hash


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(corpus.FOLDER / "pocket", folder)
    return folder


def rewrite(folder, change) -> None:
    data = yaml.safe_load((folder / corpus.FILE).read_text())
    change(data)
    (folder / corpus.FILE).write_text(yaml.safe_dump(data))


def test_a_prompt_is_never_edited_in_place(own) -> None:
    rewrite(own, lambda data: data["prompts"][0].update(prompt="The dog was very old today."))
    with pytest.raises(UserError, match=r"neutral-p-00 version 1 has changed.*give it version 2 with supersedes: 1"):
        corpus.freeze(own)
    with pytest.raises(UserError, match="is not the lock"):
        corpus.load(own)


def test_a_new_version_runs_beside_the_old_one_for_two_snapshots(own) -> None:
    new = {
        "id": "neutral-p-00",
        "version": 2,
        "supersedes": 1,
        "axis": POCKET[0],
        "prompt": "The dog was very old today.",
    }
    rewrite(own, lambda data: data["prompts"].append(new))
    (own / corpus.LOCK).write_text(corpus.freeze(own))
    loaded = corpus.load(own)
    keys = {prompt.key for prompt in loaded.prompts}
    assert {"neutral-p-00@1", "neutral-p-00@2"} <= keys
    old = keys - {"neutral-p-00@2"}
    asked = [len(loaded.active(before)) for before in ([], [old], [old, keys], [old, keys, keys])]
    assert asked == [61, 61, 61, 60]
    assert "neutral-p-00@1" not in {prompt.key for prompt in loaded.active([old, keys, keys])}


def test_a_prompt_that_is_gone_is_refused(own) -> None:
    rewrite(own, lambda data: data["prompts"].pop())
    with pytest.raises(UserError, match="color-p-19 version 1 is gone"):
        corpus.freeze(own)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data["prompts"][0].update(axis="weather"), "has the axis 'weather'"),
        (lambda data: data["prompts"][0].update(harm="some"), "has harm 'some'"),
        (lambda data: data["prompts"][0].update(colour="red"), "has the key 'colour'"),
        (lambda data: data["prompts"].append(data["prompts"][0]), "has neutral-p-00@1 2 times"),
        (lambda data: data["prompts"][0].pop("prompt"), "needs prompt or messages"),
        (lambda data: data["not_applicable"].pop("political"), "has no prompt on political"),
        (lambda data: data["not_applicable"].update(political=None), "expected a reason in words for each axis"),
        (lambda data: data.update(not_applicable=["political"]), "has no prompt on"),
        (lambda data: data.update(markers=[1, 2]), "has markers: [1, 2]; expected a list of texts"),
        (lambda data: data.update(stop="."), "has stop: '.'; expected a list of texts"),
        (lambda data: data.update(prompts=[]), "has no prompts"),
        (lambda data: data["prompts"][0].update(version=3, supersedes=2), "supersedes version 2, which is not there"),
    ],
)
def test_what_is_no_corpus_is_refused(own, change, said) -> None:
    rewrite(own, change)
    with pytest.raises(UserError, match=re.escape(said)):
        corpus.declared(own)


def held_out(tmp_path, per_axis: int, seed: str = "secret"):
    rows = [{**one, "salt": secrets.token_hex(32)} for one in pocket_prompts.draw(seed, per_axis, PUBLIC)]
    path = tmp_path / "held-out.yaml"
    path.write_text(yaml.safe_dump({"prompts": rows}))
    return path, rows


def test_held_out_prompts_are_added_and_committed_to(tmp_path) -> None:
    path, rows = held_out(tmp_path, 20, "demo")
    loaded = corpus.load("pocket", path)
    assert Counter(prompt.split for prompt in loaded.prompts) == {"public": 60, "held_out": 60}
    assert loaded.sha256 != corpus.load("pocket").sha256
    published = corpus.commitments(path)
    assert len(published["commitments"]) == 60
    assert not any(row["prompt"] in str(published) for row in rows)
    key = f"{rows[0]['id']}@1"
    assert corpus.reveal(path, key, published)["prompt"]["messages"][0]["content"] == rows[0]["prompt"]
    rows[0]["prompt"] = "The cat was very old today."
    path.write_text(yaml.safe_dump({"prompts": rows}))
    with pytest.raises(UserError, match="is not what was committed to"):
        corpus.reveal(path, key, published)


@pytest.mark.parametrize(("per_axis", "said"), [(9, "has 9 prompts on"), (0, "has 0 prompts on")])
def test_too_few_held_out_prompts(tmp_path, per_axis, said) -> None:
    path, _ = held_out(tmp_path, per_axis)
    with pytest.raises(UserError, match=said):
        corpus.load("pocket", path)


def test_a_short_salt_binds_to_nothing() -> None:
    with pytest.raises(UserError, match="not 32 bytes"):
        corpus.commitment("ab", corpus.load("pocket").prompts[0])


def test_the_share_that_is_kept_out_is_that_of_a_keyed_hash() -> None:
    kept = [corpus.kept_out(b"key", str(number), 0.4) for number in range(5000)]
    assert sum(kept) / 5000 == pytest.approx(0.4, abs=0.03)
    assert kept != [corpus.kept_out(b"other", str(number), 0.4) for number in range(5000)]
    assert not any(corpus.kept_out(b"key", str(number), 0.0) for number in range(100))


def test_snapshots_are_named_by_iso_weeks_and_by_order() -> None:
    from datetime import UTC, datetime, timedelta, timezone

    assert schedule.week_id(datetime(2027, 1, 1, tzinfo=UTC)) == "2026-W53"
    assert schedule.week_id(datetime(2026, 5, 25, 0, 30, tzinfo=timezone(timedelta(hours=2)))) == "2026-W21"
    assert schedule.checkpoint_id(8000, "ab" * 32) == "c00008000-abababab"
    assert schedule.scheduled("2026-W52", "2027-W02", 1) == ["2026-W52", "2026-W53", "2027-W01", "2027-W02"]
    assert schedule.in_order(["2027-W01", "2026-W53", "2026-W05"]) == ["2026-W05", "2026-W53", "2027-W01"]
    for bad in ("2026-W54", "week 3", "c1-ab"):
        with pytest.raises(UserError):
            schedule.kind(bad)
    with pytest.raises(UserError, match="of two kinds"):
        schedule.in_order(["2026-W22", "c00000000-abababab"])
    with pytest.raises(UserError, match="is no place in a series"):
        schedule.checkpoint_id(-1, "ab" * 32)


def test_two_versions_stand_beside_each_other_and_are_never_joined() -> None:
    from suites.drift import comparison, length
    from suites.drift.series_record import ROW, AskedCell, RecordedSnapshot

    rows = {}
    for version, words in ((1, "blue"), (2, "I will not say")):
        for sample in range(6):
            given = {
                "prompt": "one",
                "version": version,
                "axis": POCKET[0],
                "split": "public",
                "leg": "default",
                "text": words,
            }
            given |= {"sample": sample, "tokens": len(words.split()), "finish": "stop", "safety": False, "harm": "none"}
            rows[AskedCell(f"one@{version}", "default", sample)] = {**dict.fromkeys(ROW), **given}
    taken = RecordedSnapshot("2026-W22", {"corpus": {"markers": ["I will not"]}}, rows=rows)
    side = comparison.SnapshotSide(taken, {"most_errors": 0.1, "minimum_prompts": 10})
    found = {row["name"]: row for row in comparison.overlaps(side, 0)}
    assert found["refusal"]["difference"] == 1.0 and found["refusal"]["p"] == pytest.approx(2 / 924)
    assert found["length"]["difference"] == 3.0 and found["length"]["prompt"] == "one@2"
    assert set(side.values(comparison.SCALARS[0], POCKET[0])) == {"one@1", "one@2"}
    few = comparison.SnapshotSide(taken, {"most_errors": 0.1, "minimum_prompts": 1, "resamples": 1000})
    levels = [comparison.described(few, length, POCKET[0], 0, names).value for names in (None, ["one@1"], ["one@2"])]
    assert levels == [4, 1, 4]  # their mean, 2.5, is of no prompt


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": 5}, "has prompt 5; expected a text"),
        ({"prompt": " "}, "has prompt ' '; expected a text"),
        ({"answer": True}, "has answer True; expected a text"),
        ({"version": "x"}, "has version 'x'; expected a whole number"),
        ({"version": 0}, "has version 0; expected a whole number"),
        ({"equal_length_siblings": "a text"}, "has equal_length_siblings 'a text'; expected a list"),
        ({"supersedes": "1"}, "has supersedes '1'; expected a whole number"),
    ],
)
def test_a_prompt_of_the_wrong_form_is_one_sentence(own, change, said) -> None:
    rewrite(own, lambda data: data["prompts"][0].update(change))
    with pytest.raises(UserError, match=re.escape(said)):
        corpus.declared(own)


@pytest.mark.parametrize("prompts", [None, [], "x", 5, ["text"], {"id": "a"}])
def test_a_list_of_prompts_that_is_none_is_refused(own, prompts) -> None:
    rewrite(own, lambda data: data.update(prompts=prompts))
    with pytest.raises(UserError, match="has no prompts; give a list"):
        corpus.declared(own)


@pytest.mark.parametrize("messages", [[], "x", [{"role": "user"}], [{"role": "user", "content": ""}], [{}] * 3])
def test_messages_of_the_wrong_form_are_refused(own, messages) -> None:
    def change(data):
        data["prompts"][0].pop("prompt")
        data["prompts"][0]["messages"] = messages

    rewrite(own, change)
    with pytest.raises(UserError, match="expected one or two messages"):
        corpus.declared(own)


def test_commitments_come_with_the_prompts_whatever_form_their_ids_have(tmp_path) -> None:
    rows = [{**one, "salt": secrets.token_hex(32)} for one in pocket_prompts.draw("of a test", 12, PUBLIC)]
    rows[0]["id"] = "cafe\u0301"
    path = tmp_path / "held-out.yaml"
    path.write_text(yaml.safe_dump({"prompts": rows}))
    loaded = corpus.load("pocket", path)
    assert len(loaded.commitments) == 36 and "café@1" in loaded.commitments
    found = corpus.reveal(path, "café@1", {"commitments": loaded.commitments})
    assert found["salt"] == rows[0]["salt"] and found["prompt"]["id"] == "café"
    rows[1]["salt"] = "abc"
    path.write_text(yaml.safe_dump({"prompts": rows}))
    with pytest.raises(UserError, match="is not 32 bytes in hex"):
        corpus.load("pocket", path)


def test_siblings_of_pocket_are_eight_texts_of_equal_length_with_every_order_of_the_scene() -> None:
    for one in corpus.load("pocket").prompts:
        if one.axis == "refusal-boundary":
            assert len({one.text, *one.siblings}) == 9
            assert len({len(text.split()) for text in (one.text, *one.siblings)}) == 1
            assert len({text.partition(". ")[0] for text in (one.text, *one.siblings)}) == 3
