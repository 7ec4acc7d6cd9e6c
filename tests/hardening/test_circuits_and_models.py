"""Circuit files and model folders with something wrong in them: refused in one sentence before anything is measured."""

from __future__ import annotations

import os
import re
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from circuits import claims, models, prompts, yaml_file
from circuits.circuit import Circuit
from circuits.measure import Plan
from results_io import UserError
from tests.commandline import started
from tests.hardening import circuit_files, model_folders

LONGEST, SECONDS = 600, 5.0
QUICK = 5  # of the model folders, one in so many is tried by `make test`
NAMES = sorted(model_folders.WRONG)
PYTHONS = re.compile(r"[a-z]Error\b|Exception\b|<class|' object|\w\(\)|not supported between")  # words of Python's own


@pytest.fixture(scope="module")
def plan() -> Plan:
    return started("task=ioi", "model.device=cpu").plan("ioi")


def resolved(plan: Plan, path: Path) -> Circuit:
    return claims.resolve(plan, {"kind": "file", "path": str(path)}, path.parent, nullcontext)


def test_every_wrong_circuit_file_is_refused_in_one_sentence_within_seconds(plan, tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(circuit_files.SOUND)
    assert [str(node) for node in resolved(plan, path).nodes] == ["L2H1", "L3H0"]
    assert len(circuit_files.WRONG) >= 130
    for name, text in circuit_files.WRONG.items():
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        began = time.process_time()
        with pytest.raises(UserError) as refused:
            resolved(plan, path)
            pytest.fail(f"{name} is accepted")
        assert "\n" not in str(refused.value) and len(str(refused.value)) < LONGEST, name
        assert time.process_time() - began < SECONDS, name


def test_a_file_of_many_keys_is_read_within_seconds(tmp_path) -> None:
    """24,000 keys below the bound of size took 35 CPU seconds while each was counted among all."""
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(f"k{number}: 1" for number in range(20_000)))
    assert path.stat().st_size < yaml_file.MOST_BYTES
    began = time.process_time()
    assert len(yaml_file.read(path)) == 20_000
    assert time.process_time() - began < 10  # 3 on an idle core, 25 before
    path.write_text(path.read_text() + "\nk19999: 2")
    with pytest.raises(ValueError, match="the key 'k19999' is there twice"):
        yaml_file.read(path)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "another model",
            "is about model 'gpt2', but the run is about 'pocket'; run it with that model, or write model: pocket",
        ),
        ("a bomb", "(its aliases stand for more than 50000 values)"),
        ("provenance &a {kind: *a}", "(it is nested more than 24 deep, or refers to itself)"),
        ("provenance {kind: .nan}", "(it holds nan, which is no finite number)"),
        ("a megabyte", "bytes, and 262144 are allowed)"),
        ("role sign: 7", "has sign 7; use 1 or -1"),
        ("role evidence: [a]", "(evidence is ['a'], and not a text)"),
    ],
)
def test_what_is_wrong_with_a_circuit_file_is_named(name, sentence, plan, tmp_path) -> None:
    (path := tmp_path / "mine.yaml").write_text(circuit_files.WRONG[name])
    with pytest.raises(UserError) as refused:
        resolved(plan, path)
    assert sentence in str(refused.value)


def test_a_date_in_a_provenance_is_a_text_that_results_can_hold(plan, tmp_path) -> None:
    (path := tmp_path / "mine.yaml").write_text(
        circuit_files.with_header("provenance", "{kind: user, date: 2024-05-01}")
    )
    assert resolved(plan, path).provenance == {"kind": "user", "date": "2024-05-01"}


def loaded(folder: Path) -> models.Model:
    return models.load({"kind": "local", "name": "m", "path": str(folder), "device": "cpu", "dtype": "float32"})


@pytest.mark.parametrize("names", [NAMES[::QUICK], pytest.param(NAMES, marks=pytest.mark.slow)])
def test_every_wrong_model_folder_is_refused_in_one_sentence(names, tmp_path) -> None:
    assert len(NAMES) >= 110
    for index, name in enumerate(names):
        folder = model_folders.copied(tmp_path / str(index))
        model_folders.WRONG[name](folder)
        with pytest.raises(UserError) as refused:
            loaded(folder)
            pytest.fail(f"{name} is accepted")
        assert "\n" not in str(refused.value) and len(str(refused.value)) < LONGEST, name
        assert not PYTHONS.search(str(refused.value)), name


@pytest.mark.parametrize("name", sorted(model_folders.SOUND))
def test_an_unusual_folder_is_not_refused(name, tmp_path, capfd) -> None:
    folder = model_folders.copied(tmp_path / "m")
    model_folders.SOUND[name](folder)
    assert loaded(folder).n_heads == 8
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("charsmap", ["AAAA", ""])
def test_a_panic_of_the_tokenizers_library_says_nothing_of_its_own(charsmap, tmp_path, capfd) -> None:
    folder = model_folders.copied(tmp_path / "m")
    model_folders.key("tokenizer.json", "normalizer", {"type": "Precompiled", "precompiled_charsmap": charsmap})(folder)
    with pytest.raises(UserError, match="no tokenizer that transformers can read"):
        loaded(folder)
    assert capfd.readouterr() == ("", "")


def test_what_others_print_while_a_tokenizer_is_read_is_printed_after_it(capfd) -> None:
    panic = b"\nthread '<unnamed>' (7) panicked at a/b.rs:1:2:\ncalled it\nnote: run with `RUST_BACKTRACE=1` to see\n"
    with models.without_panics():
        os.write(2, b"before\n" + panic + b"after\n")
        assert capfd.readouterr().err == ""
    os.write(2, b"at last\n")
    assert capfd.readouterr().err == "before\nafter\nat last\n"


def test_a_prompt_with_a_token_without_a_row_is_refused(tmp_path) -> None:
    """As the image's token of Gemma 3, which its tokenizer has and its embedding has not."""
    folder = model_folders.copied(tmp_path / "m")
    model_folders.added(680, special=True, content="<image_soft_token>")(folder)
    encode = prompts.Encoder(models.tokenizer_in(folder))
    assert len(encode("Mary and John")["input_ids"]) == 3
    with pytest.raises(UserError, match="has the id 680, and the embedding has 680 rows; reword it"):
        encode("Mary and <image_soft_token>")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("one NaN", "hold NaN or infinity, in transformer.h.1.attn.c_attn.weight for one; copy them there anew"),
        ("all zero", "is 0 everywhere, so the model reads nothing; copy the weights there anew"),
        ("a matrix of int8", "is stored as I8), and gains of norms are folded into weights in floating point"),
        ("seven heads", "has 7 heads in a stream of 192 numbers, which they do not divide"),
        ("a million layers", "says 1000000 layers and the weights beside it hold 4"),
        ("a layer too few", "says 3 layers and the weights beside it hold 4"),
        ("another vocabulary", "says a vocabulary of 17 and no tensor beside it has as many rows"),
        ("an id beyond the embedding", "has the id 10000 for '01', and the embedding has 680 rows"),
        (
            "a normalizer that panics",
            "has no tokenizer that transformers can read; copy the model's own tokenizer.json",
        ),
        ("one word and none for the unknown", "cannot encode a text of words (WordLevel error: Missing [UNK] token"),
        ("a template of no tokens", "gives no tokens for a text of words; copy the model's own tokenizer there"),
        ("an added id beyond the embedding", "has the id 680 for 'Zed', and the embedding has 680 rows"),
        ("an added id beyond it that ends a text", "has the id 680 for 'Zed', and the embedding has 680 rows"),
        ("added_tokens.json beyond the embedding", "has the id 680 for 'Zed', and the embedding has 680 rows"),
        ("a processor's id beyond the embedding", "adds the id 99999 to a text, and the embedding has 680 rows"),
        ("an inner width of -1", "has n_inner -1, and a whole number of at least 1 is expected"),
        ("an activation of no name", "has activation_function '', and the name of an activation is expected"),
        ("a longest text in words", "tokenizer_config.json has model_max_length 'x', and a number is expected"),
        ("a tokenizer's class a number", "tokenizer_config.json has tokenizer_class 5, and a name is expected"),
        ("a bos token without content", "has bos_token {'a': 1}, and a text is expected"),
        ("special tokens a list", "special_tokens_map.json holds no keys with values"),
        ("a key of the loader", "tokenizer_config.json has the key token, which is for the loader alone"),
        ("bos beyond the vocabulary", "has bos_token_id 680, and a token of its vocabulary of 680 is expected"),
        (
            "eos beyond the vocabulary",
            "has eos_token_id [1, 1000000], and a token of its vocabulary of 680 is expected",
        ),
        ("pad below -1", "has pad_token_id -2, and a token of its vocabulary of 680 is expected"),
        ("index of a shard of 5,000 letters", "are 1 files of which 1 are not there, xxxxxxxx"),
        ("a matrix transposed", "have other shapes than its config.json says; copy both there from one model"),
    ],
)
def test_what_is_wrong_with_a_model_folder_is_named(name, sentence, tmp_path) -> None:
    folder = model_folders.copied(tmp_path / "m")
    assert loaded(folder).n_heads == 8
    model_folders.WRONG[name](folder)
    with pytest.raises(UserError) as refused:
        loaded(folder)
    assert sentence in str(refused.value)
