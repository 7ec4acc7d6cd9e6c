"""Folders of a model with one thing wrong in each: what a download, an edit or another program may leave."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from circuits.models import EMBEDDED

POCKET = EMBEDDED / "pocket"
WEIGHTS, CONFIG, TOKENIZER, INDEX = "model.safetensors", "config.json", "tokenizer.json", "model.safetensors.index.json"
GENERATION = "generation_config.json"
SETTINGS, SPECIAL, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
EMBEDDING, MATRIX = "transformer.wte.weight", "transformer.h.1.attn.c_attn.weight"
Change = Callable[[Path], Any]


def copied(place: Path) -> Path:
    """A whole folder of the embedded model."""
    return Path(shutil.copytree(POCKET, place, ignore=shutil.ignore_patterns("circuits", "README.md")))


def weights(change: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        changed = change(tensors)
        save_file(tensors if changed is None else changed, folder / WEIGHTS, {"format": "pt"})

    return apply


def entry(name: str, index: Any, value: float) -> Change:
    return weights(lambda tensors: tensors[name].__setitem__(index, value))


def replaced(name: str, make: Callable[[np.ndarray], np.ndarray | None]) -> Change:
    def change(tensors: dict[str, np.ndarray]) -> None:
        made = make(tensors.pop(name))
        if made is not None:
            tensors[name] = np.ascontiguousarray(made)

    return weights(change)


def text(name: str, content: str | bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def key(name: str, field: str, value: Any) -> Change:
    """One key of a JSON file; `...` takes it away."""

    def apply(folder: Path) -> None:
        document = json.loads((folder / name).read_text(encoding="utf-8"))
        document.pop(field, None)
        if value is not ...:
            document[field] = value
        (folder / name).write_text(json.dumps(document), encoding="utf-8")

    return apply


def cut(name: str, share: float) -> Change:
    def apply(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return apply


def word(index: int) -> Change:
    """A token of the vocabulary with an id outside the embedding."""

    def apply(folder: Path) -> None:
        document = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
        vocabulary = document["model"]["vocab"]
        vocabulary[sorted(vocabulary)[5]] = index
        (folder / TOKENIZER).write_text(json.dumps(document), encoding="utf-8")

    return apply


def added(index: int, special: bool = False, content: str = "Zed") -> Change:
    """A token that tokenizer.json adds to its vocabulary. A new one gets the next free id, whatever id stands there."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}

    def apply(folder: Path) -> None:
        document = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
        document["added_tokens"].append({"id": index, "content": content, **flags})
        (folder / TOKENIZER).write_text(json.dumps(document), encoding="utf-8")

    return apply


def gone(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def header(size: int) -> Change:
    return text(WEIGHTS, size.to_bytes(8, "little") + b'{"a":1}' * 4)


EMPTY_TEMPLATE = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
BEYOND = {"type": "BertProcessing", "sep": ["<bos>", 99_999], "cls": ["<bos>", 99_999]}
DECODER = {"900": {"content": "Zed", "special": False}}

WRONG: dict[str, Change] = {
    "one NaN": entry(MATRIX, (0, 0), np.nan),
    "one infinity": entry(MATRIX, (3, 7), np.inf),
    "NaN in the embedding": entry(EMBEDDING, (5, 1), np.nan),
    "all NaN": weights(lambda tensors: {name: np.full_like(one, np.nan) for name, one in tensors.items()}),
    "all zero": weights(lambda tensors: {name: np.zeros_like(one) for name, one in tensors.items()}),
    "huge": weights(lambda tensors: {name: one * np.float32(1e30) for name, one in tensors.items()}),
    "a matrix missing": replaced(MATRIX, lambda one: None),
    "a matrix too narrow": replaced(MATRIX, lambda one: one[:, :-3]),
    "a matrix transposed": replaced(MATRIX, lambda one: one.T),
    "a matrix of one axis": replaced(MATRIX, lambda one: one.ravel()),
    "a matrix of int8": replaced(MATRIX, lambda one: one.astype(np.int8)),
    "a matrix of booleans": replaced(MATRIX, lambda one: one > 0),
    "all of int8": weights(lambda tensors: {name: one.astype(np.int8) for name, one in tensors.items()}),
    "an embedding too short": replaced(EMBEDDING, lambda one: one[:-5]),
    "an embedding of no rows": replaced(EMBEDDING, lambda one: one[:0]),
    "no tensors": weights(lambda tensors: {}),
    "other names": weights(lambda tensors: {f"other.{name}": one for name, one in tensors.items()}),
    "weights empty": text(WEIGHTS, b""),
    "weights are text": text(WEIGHTS, "hello"),
    "weights cut": cut(WEIGHTS, 0.5),
    "weights cut in the header": cut(WEIGHTS, 0.0001),
    "a header of 2^60 bytes": header(2**60),
    "a header of no JSON": header(20),
    "config empty": text(CONFIG, ""),
    "config a list": text(CONFIG, "[]"),
    "config null": text(CONFIG, "null"),
    "config cut": cut(CONFIG, 0.5),
    "config deep": text(CONFIG, "[" * 100_000),
    "config not UTF-8": text(CONFIG, b"\xff\xfe{}"),
    "config with NaN": key(CONFIG, "layer_norm_epsilon", float("nan")),
    "an epsilon of 1e300": key(CONFIG, "layer_norm_epsilon", 1e300),
    "an epsilon below 0": key(CONFIG, "layer_norm_epsilon", -1e-5),
    "an epsilon in words": key(CONFIG, "layer_norm_epsilon", "small"),
    "config of 5,000 digits": text(CONFIG, '{"model_type": "gpt2", "n_head": ' + "9" * 5000 + "}"),
    "seven heads": key(CONFIG, "n_head", 7),
    "no heads": key(CONFIG, "n_head", 0),
    "minus one heads": key(CONFIG, "n_head", -1),
    "half a head": key(CONFIG, "n_head", 1.5),
    "heads in words": key(CONFIG, "n_head", "eight"),
    "heads null": key(CONFIG, "n_head", None),
    "no layers": key(CONFIG, "n_layer", 0),
    "a layer too many": key(CONFIG, "n_layer", 5),
    "a layer too few": key(CONFIG, "n_layer", 3),
    "a million layers": key(CONFIG, "n_layer", 10**6),
    "layers in words": key(CONFIG, "n_layer", "four"),
    "another width": key(CONFIG, "n_embd", 100),
    "width null": key(CONFIG, "n_embd", None),
    "another vocabulary": key(CONFIG, "vocab_size", 17),
    "a vocabulary of -1": key(CONFIG, "vocab_size", -1),
    "a vocabulary of 10^12": key(CONFIG, "vocab_size", 10**12),
    "no positions": key(CONFIG, "n_positions", 0),
    "positions in words": key(CONFIG, "n_positions", "many"),
    "another type": key(CONFIG, "model_type", "bert"),
    "an unknown type": key(CONFIG, "model_type", "nothing"),
    "type a list": key(CONFIG, "model_type", ["gpt2"]),
    "no type": key(CONFIG, "model_type", ...),
    "an unknown activation": key(CONFIG, "activation_function", "nothing"),
    "an id beyond the embedding": word(10_000),
    "an id of minus one": word(-1),
    "ids twice": word(3),
    "no tokenizer": gone(TOKENIZER),
    "tokenizer empty": text(TOKENIZER, ""),
    "tokenizer a list": text(TOKENIZER, "[]"),
    "tokenizer cut": cut(TOKENIZER, 0.5),
    "tokenizer deep": text(TOKENIZER, "[" * 100_000),
    "tokenizer without a model": key(TOKENIZER, "model", ...),
    "tokenizer's model null": key(TOKENIZER, "model", None),
    "tokenizer's settings a list": text("tokenizer_config.json", "[]"),
    "tokenizer's settings cut": cut("tokenizer_config.json", 0.5),
    "index null": text(INDEX, "null"),
    "index of a null shard": text(INDEX, json.dumps({"weight_map": {EMBEDDING: None}})),
    "index of a list": text(INDEX, json.dumps({"weight_map": [WEIGHTS]})),
    "index of a number": text(INDEX, json.dumps({"weight_map": {EMBEDDING: 5}})),
    "index outside the folder": text(INDEX, json.dumps({"weight_map": {EMBEDDING: "../../etc/passwd"}})),
    "index of a missing shard": text(INDEX, json.dumps({"weight_map": {EMBEDDING: "model-00002.safetensors"}})),
    "index deep": text(INDEX, "[" * 100_000),
    "tokenizer a pipe": lambda folder: ((folder / TOKENIZER).unlink(), os.mkfifo(folder / TOKENIZER)),
    "tokenizer a device": lambda folder: ((folder / TOKENIZER).unlink(), (folder / TOKENIZER).symlink_to("/dev/zero")),
    "merges a pipe": lambda folder: os.mkfifo(folder / "merges.txt"),
    "a billion labels": key(CONFIG, "num_labels", 10**9),
    "labels in words": key(CONFIG, "num_labels", "two"),
    "generation a list": text(GENERATION, "[]"),
    "generation deep": text(GENERATION, "[" * 100_000),
    "architectures a number": key(CONFIG, "architectures", 5),
    "a share of five": key(CONFIG, "resid_pdrop", 5),
    "a share in words": key(CONFIG, "attn_pdrop", "half"),
    "config a folder": lambda folder: ((folder / CONFIG).unlink(), (folder / CONFIG).mkdir()),
    "weights a dangling link": lambda folder: ((folder / WEIGHTS).unlink(), (folder / WEIGHTS).symlink_to("nowhere")),
    "heads twice": text(CONFIG, (POCKET / CONFIG).read_text().replace("{", '{"n_head": 4, ', 1)),
    "more weights a pipe": lambda folder: os.mkfifo(folder / "more.safetensors"),
    "more weights a device": lambda folder: (folder / "more.safetensors").symlink_to("/dev/null"),
    "a type of 5,000 letters": key(CONFIG, "model_type", "x" * 5000),
    "a word of 5,000 letters": text(
        TOKENIZER, (POCKET / TOKENIZER).read_text().replace('"vocab": {', '"vocab": {"' + "a" * 5000 + '": 9999, ', 1)
    ),
    "a tensor of 5,000 letters": weights(
        lambda tensors: tensors.update({"a" * 5000 + ".weight": np.ones((3, 3), np.int8)})
    ),
    "a normalizer that panics": key(TOKENIZER, "normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "a normalizer of nothing": key(TOKENIZER, "normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}),
    "one word and none for the unknown": key(
        TOKENIZER, "model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}
    ),
    "a template of no tokens": key(TOKENIZER, "post_processor", EMPTY_TEMPLATE),
    "an added id beyond it that ends a text": lambda folder: (
        added(900, special=True)(folder),
        key(SETTINGS, "eos_token", "Zed")(folder),
    ),
    "added_tokens.json a list": text(ADDED, "[]"),
    "added_tokens.json in words": text(ADDED, '{"Zed": "nine"}'),
    "a processor's id beyond the embedding": key(TOKENIZER, "post_processor", BEYOND),
    "an inner width of -1": key(CONFIG, "n_inner", -1),
    "an inner width in words": key(CONFIG, "n_inner", "wide"),
    "an activation of no name": key(CONFIG, "activation_function", ""),
    "an activation a number": key(CONFIG, "activation_function", 5),
    "a longest text in words": key(SETTINGS, "model_max_length", "x"),
    "a tokenizer's class a number": key(SETTINGS, "tokenizer_class", 5),
    "a bos token without content": key(SETTINGS, "bos_token", {"a": 1}),
    "an eos token a number": key(SETTINGS, "eos_token", 7),
    "more special tokens a number": key(SETTINGS, "additional_special_tokens", 7),
    "a decoder a list": key(SETTINGS, "added_tokens_decoder", [1]),
    "a decoder of words": key(SETTINGS, "added_tokens_decoder", {"x": {"content": "Zed"}}),
    "special tokens a list": text(SPECIAL, "[]"),
    "a special token a list": text(SPECIAL, '{"bos_token": [1]}'),
    "special tokens cut": text(SPECIAL, '{"bos_token": '),
    "a key of the loader": key(SETTINGS, "token", "x"),
    "a third key of the loader": key(SETTINGS, "config", "x"),
    "another key of the loader": key(SETTINGS, "pretrained_model_name_or_path", "x"),
    "a begin of texts without a row": lambda folder: (
        added(680, special=True)(folder),
        key(SETTINGS, "bos_token", "Zed")(folder),
    ),
    "unknown words without a row": lambda folder: (
        added(680, special=True)(folder),
        key(SETTINGS, "unk_token", "Zed")(folder),
    ),
    "bos beyond the vocabulary": key(CONFIG, "bos_token_id", 680),
    "bos in words": key(CONFIG, "bos_token_id", "one"),
    "bos below 0": key(CONFIG, "bos_token_id", -1),
    "eos beyond the vocabulary": key(CONFIG, "eos_token_id", [1, 10**6]),
    "eos a mapping": key(CONFIG, "eos_token_id", {}),
    "pad beyond the vocabulary": key(CONFIG, "pad_token_id", 50_000),
    "pad below -1": key(CONFIG, "pad_token_id", -2),
    "pad a truth": key(CONFIG, "pad_token_id", True),
    "index of a shard of 5,000 letters": text(INDEX, json.dumps({"weight_map": {EMBEDDING: "x" * 5000}})),
}

SOUND: dict[str, Change] = {
    "no padding": key(CONFIG, "pad_token_id", -1),
    "ids null": lambda folder: [key(CONFIG, f"{name}_token_id", None)(folder) for name in ("bos", "eos", "pad")],
    "several ends": key(CONFIG, "eos_token_id", [1, 2]),
    "GPT-2's own ids, which transformers writes beside any vocabulary": key(CONFIG, "bos_token_id", 50256),
    "an image's token without a row, as in Gemma 3": added(680, special=True, content="<image_soft_token>"),
    # fine-tuned models add tokens for tools and for padding; a prompt with one of them is refused where it is encoded
    "an added id beyond the embedding": added(900),
    "a decoder's id beyond the embedding": key(SETTINGS, "added_tokens_decoder", DECODER),
    "added_tokens.json beyond the embedding": text(ADDED, '{"Zed": 900}'),
    "padding without a row": lambda folder: (
        added(680, special=True)(folder),
        key(SETTINGS, "pad_token", "Zed")(folder),
    ),
    "an added token with a row": added(5, content="01"),
    "no longest text": key(SETTINGS, "model_max_length", None),
    "a longest text of 1e30": key(SETTINGS, "model_max_length", 1e30),
    "a token with its flags": key(SETTINGS, "bos_token", {"__type": "AddedToken", "content": "<bos>", "special": True}),
    "special tokens": text(SPECIAL, '{"bos_token": "<bos>", "additional_special_tokens": ["<unk>"]}'),
    "no special tokens": text(SPECIAL, "{}"),
    "digits and nothing else": key(
        TOKENIZER,
        "model",
        {"type": "BPE", "vocab": {str(digit): 3 + digit for digit in range(10)}, "merges": []},
    ),
}
