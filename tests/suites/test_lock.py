"""The lock: canonical hashes, and every way of not being the frozen suite."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import results_io
from scripts import freeze_suites
from suites import declaration, lock
from suites.item import Item, ItemVariant

SUITE = {
    "id": "mine",
    "version": "1.0.0",
    "title": "Mine",
    "description": "A suite of one's own.",
    "mode": "A3",
    "contexts": ["code"],
    "requires": ["generation"],
    "items": [
        {"id": "one", "prompt": "Say yes", "answers": ["yes"], "spans": {"verb": [0, 3]}},
        {"id": "two", "prompt": "Say no", "answers": ["no"], "variant": {"kind": "other_word", "parent": "one"}},
    ],
    "scorer": {"kind": "exact"},
    "parameters": {"must": ["^(yes|no)"]},
    "legs": [{"name": "greedy"}],
    "trace": {"strategy": "none"},
    "minimum": 1,
    "gate": None,
}


def write(folder: Path, **changes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / declaration.FILE).write_text(yaml.safe_dump(SUITE | changes, allow_unicode=True), encoding="utf-8")
    return folder


def frozen(folder: Path, **changes) -> Path:
    assert freeze_suites.main([str(write(folder, **changes))]) == 0
    return folder


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / lock.FILE).read_text(encoding="utf-8").splitlines()]


def rewrite(folder: Path, documents: list[dict]) -> None:
    text = "".join(lock.canonical(document) + "\n" for document in documents)
    (folder / lock.FILE).write_text(text, encoding="utf-8")


def refused(folder: Path) -> str:
    with pytest.raises(results_io.UserError) as caught:
        declaration.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_published_digests():
    """O30: the canonical JSON of {id, version, messages}, and NFC before hashing."""
    item = Item("cap-001", "The capital of France is")
    assert lock.prompt_hash(item) == "ff2364b4cb330e083e1acec6a693792bf4c57fb8a324f08a0e4fe796c1e26242"
    assert lock.prompt_hash(replace(item, prompt=item.prompt + " ")).startswith("9341487aa4f0463b")
    composed, decomposed = "\u00e9", "e\u0301"
    assert lock.hashlib.sha256(composed.encode()).hexdigest().startswith("4a99557e4033")
    assert lock.hashlib.sha256(decomposed.encode()).hexdigest().startswith("bf12767b0f2a")
    assert lock.normalised(decomposed) == composed
    assert lock.prompt_hash(Item("a", decomposed)) == lock.prompt_hash(Item("a", composed))


def test_canonical_json_keeps_its_rules():
    assert lock.canonical({"b": 1, "a": ["\u00e9", "x\r\ny\rz"]}) == '{"a":["\u00e9","x\\ny\\nz"],"b":1}'
    with pytest.raises(ValueError, match="JSON compliant"):
        lock.canonical({"a": float("nan")})


def test_every_field_enters_the_hash():
    item = Item("a", "p")
    changed = {
        "id": "b", "prompt": "q", "kind": "invariance", "version": 2, "system": "s", "answers": ("x",), "distractors": ("x",),
        "choices": ("x",), "template": "t", "cluster": "c", "factors": {"x": "y"}, "spans": {"x": (0, 1)},
        "expect": {"x": 1}, "variant": ItemVariant("kind", "parent"), "earlier": (("user", "x"),),
    }  # fmt: skip
    assert set(changed) == set(Item.__dataclass_fields__)
    hashes = {lock.item_hash(item, {}), lock.item_hash(item, {"kind": "exact"})}
    hashes |= {lock.item_hash(replace(item, **{key: value}), {}) for key, value in changed.items()}
    assert len(hashes) == 2 + len(changed)
    read = {"id", "prompt", "version", "system", "earlier", "template"}
    for key, value in changed.items():
        same = lock.prompt_hash(replace(item, **{key: value})) == lock.prompt_hash(item)
        assert same == (key not in read), key


def test_items_survive_the_way_through_json():
    item = Item(
        "a",
        "p q",
        answers=("x", "y"),
        spans={"p": (0, 1)},
        factors={"f": "g"},
        variant=ItemVariant("k", "b", {"r": 0.1}, 3),
    )
    assert lock.parse_item(json.loads(lock.canonical(lock.plain_item(item)))) == item
    assert lock.plain_item(Item("a", "p")) == {"id": "a", "prompt": "p"}


def test_the_suite_hash_is_that_of_the_set():
    hashes = [lock.digest(number) for number in range(20)]
    shuffled = random.Random(0).sample(hashes, 20)
    assert lock.suite_hash(shuffled) == lock.suite_hash(hashes)
    assert lock.suite_hash(hashes[:-1]) != lock.suite_hash(hashes)
    assert lock.suite_hash([*hashes[:-1], "0" * 64]) != lock.suite_hash(hashes)


def test_freezing_again_gives_the_same_bytes(tmp_path):
    folder = frozen(tmp_path / "mine")
    before = (folder / lock.FILE).read_bytes()
    assert freeze_suites.main([str(folder)]) == 0
    assert (folder / lock.FILE).read_bytes() == before
    assert freeze_suites.main(["--check", str(folder)]) == 0
    suite = declaration.load(folder)
    assert [item.id for item in suite.items] == ["one", "two"]
    assert suite.sha256 == lines(folder)[0]["suite_hash"]
    assert suite.by_id["two"].variant == ItemVariant("other_word", "one")


def test_check_writes_nothing_and_says_so(tmp_path):
    folder = write(tmp_path / "mine")
    assert freeze_suites.main(["--check", str(folder)]) == 1
    assert not (folder / lock.FILE).exists()
    assert "run `python -m scripts.freeze_suites" in refused(folder)


@pytest.mark.parametrize("key", ["prompt", "answers", "prompt_hash", "item_hash"])
def test_a_changed_line_is_named(tmp_path, key):
    folder = frozen(tmp_path / "mine")
    documents = lines(folder)
    if key in ("prompt", "answers"):
        documents[2]["item"][key] = "Say maybe" if key == "prompt" else ["maybe"]
    else:
        documents[2][key] = "0" * 64
    rewrite(folder, documents)
    assert "suite.lock.jsonl line 3:" in refused(folder)


def test_a_missing_added_or_torn_line_is_found(tmp_path):
    folder = frozen(tmp_path / "mine")
    documents = lines(folder)
    rewrite(folder, documents[:-1])
    assert "line 1: the suite hash is not that of the 1 items" in refused(folder)
    rewrite(folder, [*documents, documents[-1]])
    assert "line 1: the suite hash" in refused(folder)
    for other in (documents[0]["suite_hash"][::-1], None):
        rewrite(folder, [{**documents[0], "suite_hash": other}, *documents[1:]])
        assert "line 1: the suite hash is not that of the 2 items below" in refused(folder)
    rewrite(folder, documents)
    path = folder / lock.FILE
    path.write_bytes(path.read_bytes()[:-20])
    assert "ends in the middle of line 3" in refused(folder)
    path.write_text("{}\nno json\n")
    assert "line 2: not JSON" in refused(folder)


def test_an_edited_prompt_without_a_new_version_is_refused_by_loading_and_by_freezing(tmp_path, capsys):
    folder = frozen(tmp_path / "mine")
    edited = [dict(SUITE["items"][0], prompt="Say Yes"), SUITE["items"][1]]
    write(folder, items=edited)
    assert "an item was edited without a new version (1.0.0 is frozen); raise the version" in refused(folder)
    before = (folder / lock.FILE).read_bytes()
    assert freeze_suites.main([str(folder)]) == 2
    assert (
        "version 1.0.0 cannot be frozen over version 1.0.0, 1 items differ (first: one); raise"
        in capsys.readouterr().err
    )
    assert (folder / lock.FILE).read_bytes() == before
    write(folder, items=edited, version="0.9.0")
    assert freeze_suites.main([str(folder)]) == 2
    frozen(folder, items=edited, version="1.0.1")
    assert declaration.load(folder).items[0].prompt == "Say Yes"


def test_an_edited_scorer_or_generator_without_a_new_version_is_refused(tmp_path):
    folder = frozen(tmp_path / "mine")
    write(folder, scorer={"kind": "contains"})
    assert "the scorer was edited without a new version" in refused(folder)
    generator = {"name": "codeword", "params": {"attacks": 1}, "seed": 0}
    changes = {key: SUITE[key] for key in SUITE if key not in ("items", "scorer", "parameters")}
    changes |= {"mode": "A15", "generator": generator}

    def drawn(**more):
        (folder / declaration.FILE).write_text(yaml.safe_dump(changes | more))

    drawn(version="2.0.0")
    assert freeze_suites.main([str(folder)]) == 0
    assert len(declaration.load(folder).items) == 164
    drawn(version="2.0.0", generator={**generator, "seed": 1})
    assert "the generator was edited without a new version" in refused(folder)
    drawn(version="2.1.0", generator=generator)
    assert "is version 2.1.0 and" in refused(folder)


def test_what_judges_may_change_without_a_new_version(tmp_path):
    """Outputs can be judged again by another rule: the frozen prompts stay what they are."""
    folder = frozen(tmp_path / "mine")
    before = declaration.load(folder).sha256
    write(folder, minimum=5, gate={"failure_rate": 0.1, "reason": "a reason"})
    assert declaration.load(folder).sha256 == before


def test_items_from_a_file_beside_the_declaration(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    body = {key: value for key, value in SUITE.items() if key != "items"}
    (folder / declaration.FILE).write_text(yaml.safe_dump(body))
    with pytest.raises(results_io.UserError, match="no items; expected the key generator, the key items, or a file"):
        freeze_suites.freeze(folder)
    (folder / lock.ITEMS_FILE).write_text("".join(json.dumps(item) + "\n" for item in SUITE["items"]))
    assert freeze_suites.main([str(folder)]) == 0
    inline = frozen(tmp_path / "inline")
    assert lines(folder) == lines(inline)
    (folder / lock.ITEMS_FILE).write_text('{"id": "a"}\n')
    with pytest.raises(results_io.UserError, match=r"items.jsonl line 1: the key prompt is missing"):
        freeze_suites.freeze(folder)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": "a", "prompt": "p", "expect": {"x": NaN}}', "line 1: expect.x is nan; expected a finite number"),
        ('{"id": "a", "prompt": "p", "prompt": "q"}', r"line 1 is not JSON \(the key 'prompt' stands there twice\)"),
        ('{"id": "a", "prompt": "\\ud800"}', "line 1: prompt holds half of a surrogate pair"),
        ('{"id": "a", "prompt": "p"}\n\n{"id": "b", "prompt": "p"}', "line 2 is not JSON"),
        ('["a"]', r"line 1: the document is \['a'\]; expected an item"),
        ("[" * 100000, "line 1 is not JSON"),
    ],
)
def test_lines_that_are_no_item_are_named(tmp_path, line, problem):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / declaration.FILE).write_text(yaml.safe_dump({key: SUITE[key] for key in SUITE if key != "items"}))
    (folder / lock.ITEMS_FILE).write_text(line + "\n")
    with pytest.raises(results_io.UserError, match=problem):
        freeze_suites.freeze(folder)


def test_line_separators_inside_a_prompt_are_no_line_ends(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / declaration.FILE).write_text(yaml.safe_dump({key: SUITE[key] for key in SUITE if key != "items"}))
    (folder / lock.ITEMS_FILE).write_text('{"id": "a", "prompt": "p\u2028q\u0085r"}\n', encoding="utf-8")
    assert freeze_suites.main([str(folder)]) == 0
    assert declaration.load(folder).items[0].prompt == "p\u2028q\u0085r"


def test_a_lock_of_another_kind_is_refused(tmp_path):
    folder = frozen(tmp_path / "mine")
    documents = lines(folder)
    for header in ({**documents[0], "format": 2}, {k: v for k, v in documents[0].items() if k != "source"}):
        rewrite(folder, [header, *documents[1:]])
        assert "line 1: its format is" in refused(folder)
    (folder / lock.FILE).write_text(
        lock.canonical(documents[0]) + '\n{"item": {"id": "a", "prompt": "p", "expect": {"x": NaN}}}\n'
    )
    assert "line 2: it has no canonical form" in refused(folder)


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([{"id": "a", "prompt": "p"}, {"id": "a", "prompt": "q"}], "two items have the id 'a'"),
        (
            [{"id": "a", "prompt": "p", "spans": {"x": [0, 2]}}],
            r"spans.x is \[0, 2\]; expected a part of the prompt's 1",
        ),
        ([{"id": "a", "prompt": "p", "spans": {"x": [1, 1]}}], r"spans.x is \[1, 1\]"),
        ([{"id": "a", "prompt": "p", "variant": {"kind": "k", "parent": "b"}}], "the parent 'b' is not an item"),
        ([{"id": "a", "prompt": "p", "variant": {"kind": "k", "parent": "a"}}], "the parent 'a' goes round"),
        ([{"id": "a", "prompt": "e\u0301 b", "spans": {"x": [3, 4]}}], "not in Unicode NFC"),
    ],
)
def test_items_that_do_not_hang_together_are_refused(tmp_path, items, problem):
    with pytest.raises(results_io.UserError, match=problem):
        freeze_suites.freeze(write(tmp_path / "mine", items=items))


def test_a_decomposed_prompt_is_frozen_composed(tmp_path):
    folder = frozen(tmp_path / "mine", items=[{"id": "a", "prompt": "caf\u0065\u0301\r\nau lait"}])
    assert declaration.load(folder).items[0].prompt == "caf\u00e9\nau lait"
