"""The cache: its key changes with everything that an answer depends on, and with nothing else."""

import shutil
import threading
from dataclasses import fields, replace

import pytest
import torch

from circuits.models import EMBEDDED
from results_io import UserError
from suites.item import Item
from suites.log import environment
from suites.log.cache import Cache, key
from suites.log.generations import run_id
from suites.models import open_model
from suites.models.base import Generation, Request
from tests.suites import scripted
from tests.suites.test_endpoint import Server

POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu", "dtype": "float32"}

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
    "earlier": (("user", "Mary"),),
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
    assert len(keys) == len(identities) + len(requests) - 1 == 64 + 256 - 1


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


# --- the identities of real models ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pocket():
    return open_model(POCKET)


@pytest.fixture(scope="module")
def endpoint():
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {"kind": "endpoint", "base_url": server.url, "name": "served"}
    model = open_model({**settings, "max_requests": 50, "max_tokens_total": 5000})
    yield model
    model.close()
    server.shutdown()
    server.server_close()


def leaves(value, path=()):
    """(path, value) of everything in an identity that is no table."""
    if not isinstance(value, dict):
        return [(path, value)]
    return [leaf for name, inner in value.items() for leaf in leaves(inner, (*path, name))]


def changed(identity, path, value):
    """A copy with one leaf replaced; without it for `...`."""
    name, *rest = path
    if rest:
        return {**identity, name: changed(identity[name], rest, value)}
    return {key_: one for key_, one in identity.items() if key_ != name} | ({} if value is ... else {name: value})


@pytest.mark.parametrize("name", ["pocket", "endpoint"])
def test_any_one_part_of_a_real_identity_changes_the_key_and_the_run(name, request):
    identity = dict(request.getfixturevalue(name).identity)
    suite = scripted.suite([Item("a", "prompt")])
    others = [changed(identity, path, value) for path, _ in leaves(identity) for value in ("another", ...)]
    assert len(others) == 2 * len(leaves(identity)) >= 12
    assert len({key(one, REQUEST) for one in [identity, *others]}) == len(others) + 1
    assert len({run_id(suite, one, 0) for one in [identity, *others]}) == len(others) + 1


def test_a_real_identity_has_all_that_outputs_depend_on(pocket, endpoint):
    parts = {".".join(path) for path, _ in leaves(dict(pocket.identity))}
    assert parts == set(
        "kind weights tokenizer intervention backend dtype device versions.tokenizers versions.torch versions.transformers "
        "generation.bos generation.chat generation.context generation.ends generation.sampler".split()
    )
    parts = {".".join(path) for path, _ in leaves(dict(endpoint.identity))}
    # its name is what the endpoint is asked for, and not what somebody calls it
    assert parts >= {"kind", "base_url", "intervention", "backend"}
    assert endpoint.name in [value for _, value in leaves(dict(endpoint.identity))]


def test_the_same_weights_elsewhere_under_another_name_have_the_same_key(pocket, tmp_path):
    shutil.copytree(EMBEDDED / "pocket", tmp_path / "elsewhere")
    path = str(tmp_path / "elsewhere")
    copy = open_model({"name": "renamed", "kind": "local", "path": path, "device": "cpu", "dtype": "float32"})
    assert (copy.name, pocket.name) == ("renamed", "pocket")
    assert key(copy.identity, REQUEST) == key(pocket.identity, REQUEST)
    suite = scripted.suite([Item("a", "prompt")])
    assert run_id(suite, copy.identity, 0) == run_id(suite, pocket.identity, 0)
    ablated = open_model({**POCKET, "intervention": {"heads": ["L0H0"]}})
    assert key(ablated.identity, REQUEST) != key(pocket.identity, REQUEST)


def test_a_local_model_says_how_it_computes(pocket):
    found = environment.of_asking(pocket.identity, pocket.execution)
    assert found["model_hash"] == pocket.source.sha256 and (found["device"], found["dtype"]) == ("cpu", "float32")
    assert found["batch"] == {"rows": 64, "memory_mib": 512} and found["threads"] == torch.get_num_threads()
    assert not {"model_hash", "device", "dtype", "batch", "threads"} & set(found["unknown"])
    small = open_model({**POCKET, "rows": 3, "memory_mib": 16})
    assert small.execution["batch"] == {"rows": 3, "memory_mib": 16}
    assert key(small.identity, REQUEST) == key(pocket.identity, REQUEST)  # batches are no part of what is asked
