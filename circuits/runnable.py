"""Models that cannot be run, refused by their configuration before weights are read, each with its reason in one sentence."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError, safe_open

import results_io
from results_io import UserError

if TYPE_CHECKING:  # takes seconds to import, which a run that measures nothing can save
    from transformers import PretrainedConfig

ATTENDING = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "attention",
    "global",
    "local",
)  # kinds of layers
KINDS_OF_LAYERS = ("layer_types", "layers_block_type", "block_types")
COPIES = (
    1.3  # peak memory while folding layer by layer, relative to the weights (docs/real-models.md has measured values)
)
SIZES = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "vocab_size", "n_positions")
MOST_LABELS = 1_000_000  # transformers creates a name for each label
RANGES = {  # {names of numbers: their largest value}; none is negative
    re.compile(r"(pdrop|dropout)$"): 1.0,
    re.compile(
        r"norm_?eps(ilon)?$"
    ): 1e30,  # compiled models take a large one, so that a norm only scales; float32 ends at 3e38
}
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
NO_PADDING = -1  # pad_token_id of some models without padding
ACTIVATIONS = ("activation_function", "hidden_act", "hidden_activation")  # keys of a config.json
TOKENIZER_SETTINGS, SPECIAL_TOKENS, ADDED_TOKENS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LOADERS_OWN = ("config", "pretrained_model_name_or_path", "token")  # would be handed to transformers' loader twice
TEXT = "When Mary and John went to the store, John gave a drink to"  # what every tokenizer must encode
OWN_WORDS = 20  # of a vocabulary, encoded if it has none of the words of TEXT
PANIC = "PanicException"  # of the tokenizers library; no Exception, and no module exports it
PYTHONS = re.compile(r"[a-z]Error\b|Exception\b|<class|' object|\w\(\)|not supported between|invalid literal")
LONGEST_REASON = 200  # characters of a library's message in a sentence
SHOWN = 60  # characters of a value in a sentence
LARGEST = 2**31  # limit for each of these sizes
LAYER = re.compile(r"\.(\d+)\.")  # the first number in the name of a tensor
GIB = 2**30
QUANTISATIONS = ("quantization_config", "compression_config")  # the latter is used by compressed-tensors before 0.6
QUANTISED = (
    "its weights are quantised ({how}), and gains of norms are folded into weights in floating point; use the model in float32, "
    "float16 or bfloat16"
)
FOLDED = ("F64", "F32", "F16", "BF16")  # safetensors dtypes in which weights can be folded
CONTAINER = Path("/sys/fs/cgroup")


def configuration_in(folder: Path) -> PretrainedConfig:
    """The configuration in a model's folder. Raises UserError if it is invalid, or if such a model cannot be run."""
    import transformers
    from transformers import CONFIG_MAPPING, AutoConfig

    path = folder / "config.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=results_io.once)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON; copy the model's configuration there anew") from error
    kind = stored.get("model_type") if isinstance(stored, dict) else None
    if not isinstance(kind, str) or not kind:
        raise UserError(f"{path} names no model_type; point model.path at a model saved with save_pretrained")
    _require_plain(stored, path)
    _require_sizes({"vocab_size": stored.get("vocab_size")}, path)  # transformers warns of it before its own refusal
    _require_block(stored, path)
    if kind not in CONFIG_MAPPING:
        raise UserError(
            f"{path} has model_type {_cut(kind)}, which transformers {transformers.__version__} does not know (code that comes "
            "with a model is not run); use a model of a known family"
        )
    _require_token_ids(stored, CONFIG_MAPPING[kind], path)
    try:
        with _without_warnings():
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # validators raise their own error types for values of the wrong type
        raise UserError(f"{path} is no configuration of a {kind} model; copy it there anew") from error
    for section in QUANTISATIONS:
        if stored.get(section) and not getattr(config, section, None):
            setattr(config, section, stored[section])
    require_runnable(config, str(folder))
    _require_sizes({name: getattr(config, name, None) for name in SIZES}, path)
    _require_width(config, path)
    return config


@dataclass(frozen=True)
class Shape:
    """Numbers of layers, of heads per layer and of vocabulary entries, with the names of a PretrainedConfig."""

    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int


def shape_of_gpt2(folder: Path) -> Shape | None:
    """The shape in the configuration of a plain GPT-2, read without transformers; None for another model.

    Meant for models that ship with the code; `configuration_in` checks the whole configuration when they are loaded.
    """
    try:
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(stored, dict) or stored.get("architectures") != ["GPT2LMHeadModel"]:
        return None
    sizes = [stored.get(name) for name in ("n_layer", "n_head", "vocab_size")]
    if any(type(size) is not int or not 0 < size < LARGEST for size in sizes):
        return None
    return Shape(*cast("list[int]", sizes))


def _require_plain(stored: Mapping[str, Any], path: Path) -> None:
    """Raises UserError for values that transformers would misinterpret: too many labels, invalid class names, numbers
    outside their range, and generation settings that are no mapping.
    """
    remedy = "copy the model's configuration there anew"
    labels = stored.get("num_labels")
    if labels is not None and (type(labels) is not int or not 0 <= labels <= MOST_LABELS):
        raise UserError(f"{path} has num_labels {_cut(labels)}, and a model has at most {MOST_LABELS}; {remedy}")
    names = stored.get("architectures")
    if names is not None and (not isinstance(names, list) or not all(isinstance(name, str) for name in names)):
        raise UserError(f"{path} has architectures {_cut(names)}, and a list of names is expected; {remedy}")
    for name, value in stored.items():
        most = next((most for pattern, most in RANGES.items() if pattern.search(name)), None)
        if most and value is not None and (not isinstance(value, (int, float)) or not 0 <= value <= most):
            raise UserError(f"{path} has {name} {_cut(value)}, and a number from 0 to {most:g} is expected; {remedy}")
    _mapping_in(path.with_name("generation_config.json"), "copy it there anew, or leave it out")


def _require_block(stored: Mapping[str, Any], path: Path) -> None:
    """Raises UserError for an inner width that is no size, or an activation that transformers does not know."""
    remedy = "copy the model's configuration there anew"
    width = stored.get("n_inner")
    if width is not None and (type(width) is not int or not 0 < width < LARGEST):
        raise UserError(f"{path} has n_inner {_cut(width)}, and a whole number of at least 1 is expected; {remedy}")
    named = {name: stored[name] for name in ACTIVATIONS if stored.get(name) is not None}
    if not named:
        return
    from transformers.activations import ACT2FN

    for name, value in named.items():
        if not isinstance(value, str) or value not in ACT2FN:
            raise UserError(f"{path} has {name} {_cut(value)}, and the name of an activation is expected; {remedy}")


def _require_token_ids(stored: Mapping[str, Any], family: Any, path: Path) -> None:
    """Raises UserError for the id of a special token that is no row of the embedding.

    The family's own id may be outside, since transformers writes it beside a vocabulary of any size.
    """
    rows = stored.get("vocab_size") or getattr(family, "vocab_size", None)
    for name in TOKEN_IDS:
        value = stored.get(name)
        if value is None or (name == "pad_token_id" and value == NO_PADDING):
            continue
        own = value == getattr(family, name, None)
        ids = value if name == "eos_token_id" and isinstance(value, list) else [value]
        if any(type(one) is not int or one < 0 or (not own and type(rows) is int and one >= rows) for one in ids):
            raise UserError(
                f"{path} has {name} {_cut(value)}, and a token of its vocabulary of {rows} is expected; copy the model's "
                "configuration there anew"
            )


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence transformers' warnings, which are not about what is read here."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous)


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _require_sizes(sizes: Mapping[str, Any], path: Path) -> None:
    """Raises UserError for an impossible number of layers, heads, vocabulary entries or positions."""
    for name in SIZES:
        size = sizes.get(name)
        if size is not None and (type(size) is not int or not 0 < size < LARGEST):
            raise UserError(
                f"{path} has {name} {_cut(size)}, and a model has a whole number of at least 1; copy the model's configuration "
                "there anew"
            )


def _require_width(config: PretrainedConfig, path: Path) -> None:
    """Raises UserError if the heads do not divide the residual stream among them."""
    width, heads = getattr(config, "hidden_size", None), config.num_attention_heads
    if width and not getattr(config, "head_dim", None) and width % heads:
        raise UserError(
            f"{path} has {heads} heads in a stream of {width} numbers, which they do not divide; copy the model's configuration "
            "there anew"
        )


def require_tensors(weights: Iterable[Path], config: PretrainedConfig | Shape, folder: Path) -> None:
    """Raises UserError for weights with another number of layers than the configuration, or no axis of its vocabulary's size.

    Reads only the headers of safetensors files. Checks nothing if a file is invalid, since reading its weights raises later.
    """
    try:
        tensors = dict(_headers(weights))
    except SafetensorError:
        return
    remedy = "copy configuration and weights there from one model"
    layers = [int(found[1]) for name in tensors if (found := LAYER.search(name))]
    if layers and 1 + max(layers) != config.num_hidden_layers:
        raise UserError(
            f"{folder / 'config.json'} says {config.num_hidden_layers} layers and the weights beside it hold "
            f"{1 + max(layers)}; {remedy}"
        )
    words = getattr(config, "vocab_size", None)
    if words and tensors and not any(words in shape for shape, _ in tensors.values()):
        raise UserError(
            f"{folder / 'config.json'} says a vocabulary of {words} and no tensor beside it has as many rows; {remedy}"
        )


def _headers(weights: Iterable[Path]) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
    """(name, (shape, type)) of every tensor in safetensors files."""
    for path in weights:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                yield name, (tuple(part.get_shape()), part.get_dtype())


def require_numbers(model: torch.nn.Module, folder: str) -> None:
    """Raises UserError for weights with NaN or infinity, or an embedding that is 0 everywhere."""
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise UserError(f"the weights in {folder} hold NaN or infinity, in {name} for one; copy them there anew")
    from transformers import PreTrainedModel

    embedding = model.get_input_embeddings() if isinstance(model, PreTrainedModel) else None
    if embedding is not None and not bool(cast("torch.Tensor", embedding.weight).any()):
        raise UserError(
            f"the embedding in {folder} is 0 everywhere, so the model reads nothing; copy the weights there anew"
        )


def require_tokenizer_files(folder: Path) -> None:
    """Raises UserError for values beside a tokenizer.json whose type transformers does not check."""
    settings, special = (_mapping_in(folder / name) for name in (TOKENIZER_SETTINGS, SPECIAL_TOKENS))
    path, remedy = folder / TOKENIZER_SETTINGS, "copy the model's own there"
    if own := next((name for name in LOADERS_OWN if name in settings), None):
        raise UserError(f"{path} has the key {own}, which is for the loader alone; take it out")
    longest, kind = settings.get("model_max_length"), settings.get("tokenizer_class")
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, (int, float))):
        raise UserError(f"{path} has model_max_length {_cut(longest)}, and a number is expected; {remedy}")
    if kind is not None and not isinstance(kind, str):
        raise UserError(f"{path} has tokenizer_class {_cut(kind)}, and a name is expected; {remedy}")
    decoder = settings.get("added_tokens_decoder")
    if decoder is not None and not (isinstance(decoder, dict) and all(map(str.isdecimal, decoder))):
        raise UserError(f"{path} has added_tokens_decoder {_cut(decoder)}, and tokens by id are expected; {remedy}")
    for where, found in ((TOKENIZER_SETTINGS, settings), (SPECIAL_TOKENS, special)):
        for name in SPECIAL:
            token = found.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if token is not None and not isinstance(text, str):
                raise UserError(f"{folder / where} has {name} {_cut(token)}, and a text is expected; {remedy}")
    for token, index in _mapping_in(folder / ADDED_TOKENS).items():
        if type(index) is not int:
            raise UserError(
                f"{folder / ADDED_TOKENS} has {_cut(index)} for {_cut(token)}, and an id is expected; {remedy}"
            )


def _mapping_in(path: Path, remedy: str = "copy the model's own there") -> dict[str, Any]:
    """The keys and values of a JSON file; none if it is not there. Raises UserError if it holds anything else."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON; {remedy}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no keys with values; {remedy}")
    return found


def require_ids(tokenizer: Any, config: PretrainedConfig | None, folder: Path) -> None:
    """Raises UserError for a tokenizer of another model: two words with one id, or an id without a row in the embedding.

    Added tokens may lack a row, unless texts begin or end with them or unknown words become them. Fine-tuned models add tokens
    for padding or tools, and Gemma 3's text model has no row for the image token. A prompt with such a token is refused where it
    is encoded.
    """
    ids = tokenizer.get_vocab()
    used = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    idle = set(tokenizer.added_tokens_decoder) - set(used)
    rows = getattr(config, "vocab_size", None)
    word = next((word for word, at in ids.items() if at < 0 or (rows and at >= rows and at not in idle)), None)
    if word is not None:
        raise UserError(
            f"the tokenizer in {folder} has the id {ids[word]} for {_cut(word)}, and the embedding has {rows} rows; copy the "
            "model's own tokenizer there"
        )
    own = [index for word, index in ids.items() if word not in tokenizer.get_added_vocab()]
    if len(set(own)) < len(own):
        raise UserError(f"the tokenizer in {folder} has one id for two words; copy the model's own tokenizer there")


def require_encoding(tokenizer: Any, config: PretrainedConfig | None, folder: Path) -> None:
    """Raises UserError for a tokenizer that fails at a text of words, or turns it into no tokens or into ids without a row.

    Words that it does not know may become unknown tokens, or none if it has tokens for others.
    """
    remedy = "copy the model's own tokenizer there"
    try:
        ids = _encoded(tokenizer, TEXT)
        if not ids:
            ids = _encoded(tokenizer, tokenizer.decode(sorted(tokenizer.get_vocab().values())[:OWN_WORDS]))
    except BaseException as error:
        if not is_failure(error):
            raise
        raise UserError(f"the tokenizer in {folder} cannot encode a text of words{reason(error)}; {remedy}") from error
    if not ids:
        raise UserError(f"the tokenizer in {folder} gives no tokens for a text of words; {remedy}")
    rows = getattr(config, "vocab_size", None)
    if rows and max(ids) >= rows:
        raise UserError(
            f"the tokenizer in {folder} adds the id {max(ids)} to a text, and the embedding has {rows} rows; {remedy}"
        )


def _encoded(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text as prompts are encoded, and then those with the tokens that the tokenizer adds; none if it has none."""
    bare = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["input_ids"]
    return bare and [*bare, *tokenizer(text, verbose=False)["input_ids"]]


def is_failure(error: BaseException) -> bool:
    """True for an error of a library, False for what ends the process."""
    return isinstance(error, Exception) or is_panic(error)


def is_panic(error: BaseException) -> bool:
    """True for a panic of the tokenizers library, which is no Exception."""
    return type(error).__name__ == PANIC


def reason(error: BaseException) -> str:
    """What a library says of its error, in parentheses after a space; empty if that is about Python and not about a file."""
    line = str(error).strip().partition("\n")[0].rstrip(".")
    programming = (TypeError, LookupError, AttributeError, NameError, AssertionError, RecursionError)
    if not line or isinstance(error, programming) or is_panic(error) or PYTHONS.search(line):
        return ""
    return f" ({line if len(line) <= LONGEST_REASON else f'{line[:LONGEST_REASON]}...'})"


def positions_of(config: PretrainedConfig) -> int | None:
    """The number of positions of a model with this configuration; None if it does not say."""
    counts = (getattr(config, name, None) for name in ("n_positions", "max_position_embeddings"))
    return next((count for count in counts if type(count) is int), None)


def require_runnable(config: PretrainedConfig, name: str) -> None:
    """Raises UserError, with the reason, if no circuit can be measured in a model with this configuration."""
    if reason := refusal(config):
        raise UserError(f"model {name} cannot be run: {reason}")


def refusal(config: PretrainedConfig) -> str | None:
    """Why a model with this configuration cannot be run, and what to use instead; None if nothing speaks against it."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    kind = config.model_type
    if how := _quantised(config):
        return QUANTISED.format(how=how)
    if getattr(config, "is_encoder_decoder", False) or kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return f"{kind} is an encoder-decoder, and circuits here are of decoders alone; use a causal language model"
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return (
            f"{kind} reads text in both directions (a masked language model), so its last position predicts no next token; "
            "use a causal language model"
        )
    if config.get_text_config() is not config:
        return f"{kind} takes more than text; save its language model alone with save_pretrained and use that folder"
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return f"transformers has no causal language model of the family {kind}; use a causal language model"
    return _without_heads(config) or _unknown_wiring(config)


def _without_heads(config: PretrainedConfig) -> str | None:
    """Why some layers have no attention heads; None if all have them."""
    kind, heads = config.model_type, getattr(config, "num_attention_heads", None)
    if kind in ("rwkv", "xlstm") or heads is None:
        return f"{kind} has no attention heads (its layers are recurrent), and circuits here are of heads; use a transformer"
    if not isinstance(heads, int) or not isinstance(getattr(config, "num_hidden_layers", None), int):
        return f"{kind} has another number of heads in each layer, and heads are counted the same in all; use another family"
    named = [one for name in KINDS_OF_LAYERS for one in getattr(config, name, None) or ()]
    other = sorted({str(one) for one in named} - set(ATTENDING))
    if other or any(name.startswith("mamba_") for name in vars(config)):
        what = f"of kind {other[0]}" if other else "of a state-space model"
        return f"{kind} has layers {what} beside attention, and circuits here are of heads; use a transformer"
    return None


def _unknown_wiring(config: PretrainedConfig) -> str | None:
    """The part of the wiring in which heads lack weights of their own; None if the configuration names none."""
    kind = config.model_type
    if getattr(config, "kv_lora_rank", None):
        return (
            f"{kind} computes keys and values from one latent vector for all heads, so that no head has key and value weights "
            "of its own; use a model with multi-head or grouped-query attention"
        )
    if kind == "falcon" and getattr(config, "new_decoder_architecture", False):
        return (
            "TransformerLens takes q, k and v of Falcon's new_decoder_architecture (40B, 180B) apart wrongly; use a Falcon "
            "without it (7B)"
        )
    return None


def _quantised(config: PretrainedConfig) -> str | None:
    """The method by which weights are quantised; None if they are not."""
    sections = (getattr(config, name, None) for name in QUANTISATIONS)
    found = next((section for section in sections if section), None)
    if not found:
        return None
    settings = found if isinstance(found, Mapping) else vars(found)
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return f"bitsandbytes, {4 if settings.get('load_in_4bit') else 8} bit"
    method = settings.get("quant_method")
    return str(getattr(method, "value", method) or "quantization_config")


def require_floating(weights: Iterable[Path], name: str) -> None:
    """Raises UserError if safetensors files hold weights as integers or in 8 bits, whatever the configuration says.

    Reads only the headers. Raises SafetensorError for an invalid file.
    """
    for path in weights:
        with safe_open(path, "pt") as file:
            for tensor in file.keys():  # noqa: SIM118
                if "weight" not in tensor.rpartition(".")[2]:  # masks and position counters are not weights
                    continue
                kind, shape = file.get_slice(tensor).get_dtype(), file.get_slice(tensor).get_shape()
                if len(shape) > 1 and kind not in FOLDED:
                    raise UserError(
                        f"model {name} cannot be run: {QUANTISED.format(how=f'{_cut(tensor)} is stored as {kind}')}"
                    )


# --- memory -------------------------------------------------------------------------------------------------------


def parameters_in(weights: Iterable[Path]) -> int:
    """Number of parameters in safetensors files, from their headers. Raises SafetensorError for an invalid file."""
    total = 0
    for path in weights:
        with safe_open(path, "pt") as file:
            total += sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118
    return total


def require_room(parameters: int, dtype: torch.dtype, device: torch.device, name: str) -> None:
    """Raises UserError if weights of this size and dtype do not fit into free memory while they are folded."""
    needed, free = COPIES * parameters * dtype.itemsize, free_bytes(device)
    if free is not None and needed > free:
        kind = str(dtype).removeprefix("torch.")
        raise UserError(
            f"model {name} has {parameters / 1e9:.1f} billion parameters, which take {needed / GIB:.1f} GiB in {kind} while they "
            f"are folded, and {free / GIB:.1f} GiB of {device.type} memory are free; use a smaller model, model.dtype=bfloat16, "
            "or a machine with more"
        )


def free_bytes(device: torch.device) -> int | None:
    """Free memory of the device in bytes (of this container, if it has a limit); None if the system does not say."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    found = [value for value in (_free_in_machine(), _free_in_container()) if value is not None]
    return min(found) if found else None


def _free_in_machine() -> int | None:
    with contextlib.suppress(OSError, ValueError, StopIteration):  # on Linux, memory that caches files counts as free
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
        return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _free_in_container() -> int | None:
    """Bytes that the control group still allows; None without one or without a limit. Cached files count as free."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        limit = int((CONTAINER / "memory.max").read_text())
        used = int((CONTAINER / "memory.current").read_text())
        lines = (CONTAINER / "memory.stat").read_text().splitlines()
        cached = int(next(line for line in lines if line.startswith("inactive_file ")).split()[1])
        return limit - used + cached
    return None
