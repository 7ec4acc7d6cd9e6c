"""One list of prompts, divided into a public corpus and a secret file by a keyed hash, and divided again after it grew."""

from __future__ import annotations

import hashlib
import hmac
import re
import shutil
import subprocess

import pytest
import yaml

from results_io import UserError
from suites.drift import corpus
from suites.drift.corpus import NEUTRAL, division
from tests.commandline import command

SEEN = ("markers", "stop", "not_applicable", "max_tokens")


@pytest.fixture
def whole(tmp_path):
    """A folder with 26 prompts on one axis; the others are not applicable."""
    folder = tmp_path / "all"
    folder.mkdir()
    write(folder, 26)
    return folder


def write(folder, count: int) -> None:
    head = {axis: "not asked" for axis in corpus.AXES if axis != NEUTRAL}
    rows = [{"id": f"list-{n:02d}", "axis": NEUTRAL, "prompt": f"Count to {n}."} for n in range(count)]
    (folder / corpus.FILE).write_text(yaml.safe_dump({"not_applicable": head, "max_tokens": 9, "prompts": rows}))


def test_both_parts_are_chosen_by_the_keyed_hash_alone(whole, tmp_path) -> None:
    """First 8 hex digits of HMAC-SHA256(key, id) / 2^32 < share, computed here anew; both parts are read as any other."""
    public, secret = tmp_path / "public", tmp_path / "secret" / "held-out.yaml"
    made = division.divide(whole, public, secret, 0.5)
    kept = yaml.safe_load(secret.read_text())
    for n in range(26):
        digits = hmac.new(bytes.fromhex(kept["key"]), f"list-{n:02d}".encode(), hashlib.sha256).hexdigest()[:8]
        assert (int(digits, 16) / 2**32 < 0.5) == (f"list-{n:02d}" in [row["id"] for row in kept["prompts"]])
    assert min(len(made.public), len(made.held_out)) >= 10 and secret.stat().st_mode & 0o777 == 0o600
    loaded = corpus.load(public, secret)
    assert (len(loaded.prompts), loaded.max_tokens) == (26, 9)
    assert sum(prompt.split == "held_out" for prompt in loaded.prompts) == len(kept["prompts"])
    assert len({row["salt"] for row in kept["prompts"]}) == len(kept["prompts"]) and len(kept["key"]) == 64
    published = "".join(path.read_text() for path in public.iterdir())
    assert not any(row["prompt"] in published or row["salt"] in published for row in kept["prompts"])


def test_a_list_that_grew_is_divided_by_the_same_key_and_each_prompt_stays_on_its_side(whole, tmp_path) -> None:
    public, secret = tmp_path / "public", tmp_path / "held-out.yaml"
    before = division.divide(whole, public, secret, 0.5)
    write(whole, 60)
    after = division.divide(whole, public, secret, 0.5)
    assert after.key == before.key and len(after.public) + len(after.held_out) == 60
    salts = [{row["id"]: row["salt"] for row in one.held_out} for one in (before, after)]
    assert salts[0].items() <= salts[1].items()
    assert {row["id"] for row in before.public} <= {row["id"] for row in after.public}
    with pytest.raises(
        UserError, match=r"holds out a share of 0.5, not 0.6; another share would publish what is secret"
    ):
        division.divide(whole, public, secret, 0.6)
    rows = yaml.safe_load((whole / corpus.FILE).read_text())
    changed = next(one for one in rows["prompts"] if one["id"] == after.held_out[0]["id"])
    changed["prompt"] = "Count to a million."
    (whole / corpus.FILE).write_text(yaml.safe_dump(rows))
    with pytest.raises(UserError, match=r"with another text; a changed prompt needs a new version"):
        division.divide(whole, public, secret, 0.5)


def test_what_cannot_be_divided_or_kept_secret_is_refused_and_nothing_is_written(whole, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(division, "TRIES", 20)
    public, secret = tmp_path / "public", tmp_path / "held-out.yaml"
    for place, said in ((public / "held-out.yaml", "is in"), (whole / "held-out.yaml", "which is to be public")):
        with pytest.raises(UserError, match=said):
            division.divide(whole, public, place, 0.5)
    write(whole, 19)
    with pytest.raises(
        UserError, match=rf"of 19 prompts on {NEUTRAL} one part would have \d; expected at least 10 prompts"
    ):
        division.divide(whole, public, secret, 0.5)
    write(whole, 26)
    public.mkdir()
    (public / "diary.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        division.divide(whole, public, secret, 0.5)
    assert not secret.exists() and [path.name for path in public.iterdir()] == ["diary.txt"]
    secret.write_text(yaml.safe_dump({"prompts": [{"id": "a", "axis": NEUTRAL, "prompt": "Say a.", "salt": "0" * 64}]}))
    with pytest.raises(UserError, match="has no key, so it was written by hand"):
        division.divide(whole, tmp_path / "other", secret, 0.5)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_file_that_a_repository_would_track_is_no_secret(whole, tmp_path) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    with pytest.raises(UserError, match="is in a Git repository, which would publish it"):
        division.divide(whole, tmp_path / "public", repository / "held-out.yaml", 0.5)
    (repository / ".gitignore").write_text("held-out.yaml\n")
    division.divide(whole, tmp_path / "public", repository / "held-out.yaml", 0.5)


def test_a_retired_prompt_is_asked_no_longer_and_stays_committed_to(whole, tmp_path) -> None:
    write(whole, 40)
    public, secret = tmp_path / "public", tmp_path / "held-out.yaml"
    made = division.divide(whole, public, secret, 0.5)
    key = f"{made.held_out[0]['id']}@1"
    before = corpus.load(public, secret)
    left = division.retire(secret, key)
    after = corpus.load(public, secret)
    assert {one.key for one in before.prompts} - {one.key for one in after.prompts} == {key}
    assert left == len(made.held_out) - 1 and before.commitments == after.commitments
    assert corpus.reveal(secret, key, {"commitments": before.commitments})["salt"] == made.held_out[0]["salt"]
    assert made.held_out[0]["prompt"] in corpus.secrets(secret, ())
    with pytest.raises(
        UserError, match=rf"{key} is no prompt that .* still asks; use one of (\S+@1,? ){{5}}and \d+ more"
    ):
        division.retire(secret, key)
    again = division.divide(whole, public, secret, 0.5)
    assert [row["id"] for row in again.held_out if row.get("retired")] == [made.held_out[0]["id"]]
    others = [f"{row['id']}@1" for row in made.held_out[1:]]
    with pytest.raises(UserError, match=r"9 held-out prompts were left.*add one first"):
        for one in others:
            division.retire(secret, one)


def test_a_held_out_file_that_is_not_there_is_told_what_to_give(tmp_path) -> None:
    missing = tmp_path / "none.yaml"
    outcome = command("drift", "do=retire", f"drift.held_out={missing}", "snapshot=x@1", f"results={tmp_path / 'r'}")
    assert outcome.code == 2
    assert outcome.errors == (
        f"there is no file {missing}; give the YAML file with the prompts, which do=hold_out writes for those held out\n"
    )
    with pytest.raises(UserError, match=r"a/b cannot be read \(Not a directory\); give a YAML file"):
        missing.write_text("x")
        (tmp_path / "a").write_text("x")
        division.retire(tmp_path / "a/b", "x@1")


@pytest.mark.slow
def test_made_kept_asked_and_revealed_by_commands(tmp_path) -> None:
    """From one list of 132 prompts to a revealed one: divided, asked, retired, asked without it, published, and asked again."""
    from suites.drift import pocket_prompts

    folder, public, secret = tmp_path / "all", tmp_path / "public", tmp_path / "held-out.yaml"
    folder.mkdir()
    known = yaml.safe_load((corpus.FOLDER / "pocket" / corpus.FILE).read_text())
    rows = pocket_prompts.draw("of a test", 44)
    (folder / corpus.FILE).write_text(yaml.safe_dump({**{k: known[k] for k in SEEN if k in known}, "prompts": rows}))
    results = f"results={tmp_path / 'results'}"
    done = command(
        "drift", "do=hold_out", f"drift.corpus={folder}", f"out={public}", f"drift.held_out={secret}", results
    )
    assert (done.code, done.errors) == (0, "") and re.search(
        r"public: \d\d public prompts with their lock", done.output
    )
    asked = ("drift", "series=mine", f"drift.corpus={public}", f"drift.held_out={secret}", results)
    few = (
        "model=pocket",
        "drift.default_samples=2",
        "drift.zero_samples=1",
        "drift.version=v1",
        "drift.resamples=1000",
    )
    key = f"{yaml.safe_load(secret.read_text())['prompts'][0]['id']}@1"
    take = (*asked, *few, "do=snapshot")
    assert command(*take, "drift.order=1").code == 0
    assert "is not retired" in command(*asked, "do=reveal", f"snapshot={key}").errors
    assert command("drift", "do=retire", f"drift.held_out={secret}", f"snapshot={key}", results).code == 0
    assert command(*take, "drift.order=2").code == 0
    assert command(*asked, "do=reveal", f"snapshot={key}").code == 0
    secret.write_text(secret.read_text().replace("  retired: true\n", ""))
    assert command(*take, "drift.order=3").code == 0
    from suites.drift import series_record

    record = series_record.read(tmp_path / "results" / "drift" / "mine" / series_record.NAME)
    splits = [{row["split"] for cell, row in one.rows.items() if cell.prompt == key} for one in record.finished]
    assert splits == [{"held_out"}, set(), {"revealed"}]
    held = [one.started["corpus"]["held_out"] for one in record.finished]
    assert held[0] - 1 == held[1] == held[2]
