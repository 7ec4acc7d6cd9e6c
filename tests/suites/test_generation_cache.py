"""The cache: its key changes with everything that an answer depends on, and with nothing else."""

from dataclasses import fields, replace

import pytest

from results_io import UserError
from suites.models.base import Generation, Request
from suites.record.cache import Cache, key

IDENTITY = {
    "weights_sha256": "aa",
    "tokenizer_sha256": "bb",
    "intervention": None,
    "backend": "transformers",
    "dtype": "float32",
    "versions": {"torch": "2.13.0"},
}
REQUEST = Request("Mary and John went to", None, 8, 0.7, ("\n", "."), 3, 1)
OTHER = {
    "prompt": "Mary and John went to ",
    "system": "",
    "max_tokens": 9,
    "temperature": 0.8,
    "stop": ("\n",),
    "seed": 4,
    "sample": 2,
}
OTHER_IDENTITY = {
    "weights_sha256": "ab",
    "tokenizer_sha256": "bc",
    "intervention": {"heads": [[1, 4]], "kind": "zero"},
    "backend": "http",
    "dtype": "bfloat16",
    "versions": {"torch": "2.13.1"},
}


def test_the_fields_tested_are_all_there_are():
    assert {field.name for field in fields(Request)} == set(OTHER)
    assert set(OTHER_IDENTITY) == set(IDENTITY)


@pytest.mark.parametrize("field", OTHER)
def test_any_one_field_of_a_request_changes_the_key(field):
    assert key(IDENTITY, replace(REQUEST, **{field: OTHER[field]})) != key(IDENTITY, REQUEST)


@pytest.mark.parametrize("field", OTHER_IDENTITY)
def test_any_one_field_of_the_identity_changes_the_key(field):
    assert key({**IDENTITY, field: OTHER_IDENTITY[field]}, REQUEST) != key(IDENTITY, REQUEST)
    without = {name: value for name, value in IDENTITY.items() if name != field}
    assert key(without, REQUEST) != key(IDENTITY, REQUEST)


def test_all_combinations_of_changes_differ():
    requests = [REQUEST]
    for field, value in OTHER.items():
        requests += [replace(request, **{field: value}) for request in requests]
    identities = [IDENTITY]
    for field, value in OTHER_IDENTITY.items():
        identities += [{**identity, field: value} for identity in identities]
    keys = {key(identity, REQUEST) for identity in identities} | {key(IDENTITY, request) for request in requests}
    assert len(keys) == len(identities) + len(requests) - 1 == 64 + 128 - 1


def test_order_and_time_do_not_change_the_key(monkeypatch):
    turned = dict(reversed(IDENTITY.items()))
    assert list(turned) != list(IDENTITY)
    before = key(IDENTITY, REQUEST)
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert key(turned, REQUEST) == before
    # pinned: a key that changes from one version to the next would silently forget everything
    assert before == "141de517448ad799bee8e49bd7e89280b601684b7b53869e79239c761d41ab3b"


def test_what_goes_in_comes_out(tmp_path):
    generation = Generation("Paris é\u2028", "length", 5, 2, -0.25, (7, 9), None, "fp_1", 0.5)
    none = Generation("", "stop")
    with Cache(tmp_path / "cache") as cache:
        cache.put(IDENTITY, [(REQUEST, generation), (replace(REQUEST, sample=2), none)])
    with Cache(tmp_path / "cache") as cache:
        assert cache.get(IDENTITY, REQUEST) == generation
        assert cache.get(IDENTITY, replace(REQUEST, sample=2)) == none
        assert cache.get(IDENTITY, replace(REQUEST, sample=3)) is None
        assert cache.get({**IDENTITY, "weights_sha256": "ab"}, REQUEST) is None


def test_another_model_never_gets_the_first_ones_answers(tmp_path):
    # the defect of lm-evaluation-harness #2715: a key without the model
    with Cache(tmp_path / "cache") as cache:
        cache.put({"weights_sha256": "A"}, [(REQUEST, Generation("from A", "stop"))])
        assert cache.get({"weights_sha256": "B"}, REQUEST) is None


def test_errors_are_never_kept(tmp_path):
    with Cache(tmp_path / "cache") as cache:
        cache.put(IDENTITY, [(REQUEST, Generation("", "error", error="timed out"))])
        assert cache.get(IDENTITY, REQUEST) is None
        cache.put(IDENTITY, [(REQUEST, Generation("partial", "stop", error="connection lost"))])
        assert cache.get(IDENTITY, REQUEST) is None


def test_the_first_answer_stays(tmp_path):
    with Cache(tmp_path / "cache") as cache:
        cache.put(IDENTITY, [(REQUEST, Generation("first", "stop"))])
        cache.put(IDENTITY, [(REQUEST, Generation("second", "stop"))])
        assert cache.get(IDENTITY, REQUEST).text == "first"


def test_a_file_that_is_no_cache(tmp_path):
    (tmp_path / "cache").write_text("a text of more than a few bytes, which is no database\n" * 20)
    with pytest.raises(UserError, match="not a cache of generations"):
        Cache(tmp_path / "cache")
