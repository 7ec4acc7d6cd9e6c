"""Load a model and establish its identity."""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import io
import json
import logging
import os
import re
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor

from circuits import circuit as circuit_files
from circuits import devices, folding, hub, narrow_weights, runnable
from circuits.circuit import Circuit, Node
from circuits.edges import Graph
from code_digest import code_digest
from results_io import UserError

if TYPE_CHECKING:
    from transformers import (
        PreTrainedModel,
    )  # takes two seconds to import, which a run that measures nothing can save

EMBEDDED = Path(__file__).parent / "embedded"
PUBLISHED = Path(__file__).parent / "published"
VOUCHED = ("published", "planted")  # kinds of circuits that come from a paper or from the maker of the weights
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
READ = (  # files in a model's identity besides its weights; other files in the folder do not matter
    *("added_tokens.json", "config.json", "generation_config.json", hub.INDEX),
    *("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"),
    *("merges.txt", "tokenizer.model", "vocab.txt"),
)
MOST_BYTES = 1 << 28  # limit for one of these files; the largest tokenizers have 40 MB
PROBE = 8  # tokens; at their last position the bridge must compute the model's own function
PARITY = {  # largest relative error of log-probabilities: a wrong function is off by over a tenth, rounding of folded weights by
    "float64": 1e-4,  # float32 inside: folding, rotary positions, norms
    "float32": 1e-3,
    "float32_over_float16": 0.005,  # only folded weights are rounded once more
    "float32_over_bfloat16": 0.02,  # 0.002 in tiny models of every family
    "float16": 0.1,
    "bfloat16": 0.3,
}
LONGEST_NAME = 80  # characters of a file's name in a sentence
MISMATCHED = "ignore_mismatched_sizes"  # part of transformers' message about weights with wrong shapes
PANIC = re.compile(  # what a library in Rust prints as it fails: where, why, and the stack if RUST_BACKTRACE is set
    rb"\n?thread '[^'\n]*'[^\n]* panicked at [^\n]*\n[^\n]*\n(?:stack backtrace:\n(?: +[^\n]*\n)*)?(?:note: [^\n]*\n)?"
)
ONE_AT_A_TIME = threading.RLock()  # file descriptor 2 belongs to the whole process
Say = Callable[[str], Any]


class UnsupportedArchitectureError(UserError):
    """Raised if a measurement assumes something about the architecture that this model does not have."""


@dataclass(frozen=True)
class Identity:
    """The identity of the model that a configuration names, without its weights in memory.

    `sha256` is over its configuration, tokenizer and weight files (planted models: over the code and the seed that build
    them). `circuits` are those that come with it, by task. `folder` has its files (None: built in memory), `revision` is their
    commit on the hub. `knows` says which prompts it can read: only the few hundred words of the embedded models ("embedded"),
    or natural language.
    """

    name: str
    kind: str
    sha256: str
    n_layers: int
    n_heads: int
    circuits: Mapping[str, Circuit]
    knows: Literal["embedded", "natural language"] = "embedded"
    folder: Path | None = None
    revision: str | None = None

    @property
    def heads(self) -> tuple[Node, ...]:
        """Every attention head, row-major."""
        return tuple(Node("head", layer, index) for layer in range(self.n_layers) for index in range(self.n_heads))

    def vouched(self, task: str) -> Circuit | None:
        """The task's circuit, if it comes from a paper or the weights' maker and is about these weights. A discovered circuit can
        be compared with it."""
        known = self.circuits.get(task)
        if known is None or known.provenance["kind"] not in VOUCHED:
            return None
        return known if known.provenance.get("model_sha256", self.sha256) == self.sha256 else None

    def describe(self) -> str:
        return f"{self.name} ({self.n_layers} layers x {self.n_heads} heads, {self.origin})"

    @property
    def origin(self) -> str:
        """The origin of the weights in words; a folder read in place of the hub counts as a folder."""
        if self.kind != "hub":
            return self.kind
        if self.revision:
            return f"hub, revision {self.revision[:8]}"
        assert self.folder is not None  # only a model built in memory has no folder
        return f"folder {self.folder.name}"


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model: the TransformerBridge (layer norms folded, writers and unembedding centred), its tokenizer and
    its identity.

    `value_constants` [layer][head d_head] are what folding moved from the heads' outputs z into the output bias: b_V + b_LN W_V,
    which a head outputs whatever it reads, because attention sums to 1. The unfolded model's z is the bridge's z plus them.
    """

    identity: Identity
    bridge: Any
    tokenizer: Any
    value_constants: tuple[Float[Tensor, "head d_head"], ...]

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def sha256(self) -> str:
        return self.identity.sha256

    @property
    def circuits(self) -> Mapping[str, Circuit]:
        return self.identity.circuits

    @property
    def heads(self) -> tuple[Node, ...]:
        return self.identity.heads

    @property
    def n_layers(self) -> int:
        return int(self.bridge.cfg.n_layers)

    @property
    def n_heads(self) -> int:
        return int(self.bridge.cfg.n_heads)

    @property
    def device(self) -> torch.device:
        """Of the embedding; layers are elsewhere if the model is spread over several devices."""
        return next(self.bridge.parameters()).device

    @cached_property
    def devices(self) -> tuple[torch.device, ...]:
        """Every device that holds weights, in the order of the layers."""
        return tuple(dict.fromkeys(weight.device for weight in self.bridge.parameters()))

    @property
    def dtype(self) -> torch.dtype:
        return next(self.bridge.parameters()).dtype

    @property
    def precision(self) -> str:
        """The name as in model.dtype: the dtype of computation, and that of stored weights if it is narrower."""
        matrix = narrow_weights.plain(next(weight for weight in self.bridge.parameters() if weight.ndim > 1))
        computed, kept = (str(dtype).removeprefix("torch.") for dtype in (self.dtype, matrix.dtype))
        return computed if computed == kept else f"{computed}_over_{kept}"

    @cached_property
    def unembedding(self) -> Float[Tensor, "d_model vocabulary"]:
        """W_U with the final norm's gain folded in; every row is centred over the vocabulary unless the model caps its logits."""
        return self.bridge.W_U.detach().float().cpu()

    @cached_property
    def output_weights(self) -> Float[Tensor, "layer head d_head d_model"]:
        """W_O of every head."""
        return self.bridge.W_O.detach().float().cpu()

    @cached_property
    def graph(self) -> Graph:
        """Writers and readers of the residual stream."""
        cfg = self.bridge.cfg
        shared = int(cfg.n_key_value_heads or self.n_heads)
        return Graph(self.n_layers, self.n_heads, shared, bool(cfg.parallel_attn_mlp))

    @cached_property
    def projections(self) -> Mapping[str, list[Float[Tensor, "head input output"]]]:
        """W_Q, W_K, W_V and W_O by "q", "k", "v", "o" and layer, on the layer's device and in the model's computing dtype.

        Under grouped-query attention k and v have one entry for each key-value head.
        """
        names = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O"}
        return {
            kind: [getattr(block.attn, name).detach() for block in self.bridge.blocks] for kind, name in names.items()
        }

    @cached_property
    def projection_biases(self) -> Mapping[str, list[Float[Tensor, "head output"] | None]]:
        """b_Q, b_K and b_V in the same form; None in architectures without them."""
        found = {}
        for kind, name in {"q": "b_Q", "k": "b_K", "v": "b_V"}.items():
            biases = [getattr(block.attn, name, None) for block in self.bridge.blocks]
            found[kind] = [bias if bias is None else bias.detach() for bias in biases]
        return found

    @cached_property
    def embedding(self) -> Float[Tensor, "vocabulary d_model"]:
        """W_E, centred if the norms centre."""
        return self.bridge.W_E.detach().float().cpu()

    @cached_property
    def query_weights(self) -> Float[Tensor, "layer head d_model d_head"]:
        """W_Q of every head, the gain of the norm before it folded in."""
        return self.bridge.W_Q.detach().float().cpu()

    @cached_property
    def key_weights(self) -> Float[Tensor, "layer head d_model d_head"]:
        """W_K of every query head (repeated within a group), the gain of the norm before it folded in."""
        return self._per_query_head(self.bridge.W_K)

    @cached_property
    def value_weights(self) -> Float[Tensor, "layer head d_model d_head"]:
        """W_V of every query head (repeated within a group), the gain of the norm before it folded in."""
        return self._per_query_head(self.bridge.W_V)

    def _per_query_head(
        self, shared: Float[Tensor, "layer group d_model d_head"]
    ) -> Float[Tensor, "layer head d_model d_head"]:
        """Weights of key-value heads repeated for each query head; consecutive query heads share one."""
        shared = shared.detach().float().cpu()
        return shared.repeat_interleave(self.n_heads // shared.shape[1], dim=1)

    @property
    def centred_norm(self) -> bool:
        """True if the final norm subtracts the mean (layer norm), False if it only scales (RMS norm)."""
        return "RMS" not in str(self.bridge.cfg.normalization_type)

    @property
    def normalises_queries(self) -> bool:
        """True if queries and keys pass a norm, as in Qwen 3 and Gemma 3, so that W_Q W_K^T does not give the scores."""
        return "blocks.0.attn.q_norm.hook_out" in self.bridge.hook_dict

    @property
    def normalises_attention(self) -> bool:
        """True if the heads' sum passes a norm before it is added to the stream, as in Gemma 2 and 3."""
        return attention_scale(0) in self.bridge.hook_dict

    @property
    def bounds_logits(self) -> bool:
        """True if logits are cap tanh(x / cap), as in Gemma 2, and so not linear in the final stream."""
        return (getattr(self.bridge.cfg, "output_logits_soft_cap", None) or -1.0) > 0

    def attention_gain(self, layer: int) -> Float[Tensor, " d_model"]:
        """Gain of the norm that a layer's attention output passes, for models with one."""
        norm = self.bridge.blocks[layer].ln1_post
        weight = norm.weight.detach().float().cpu()
        return 1 + weight if norm.uses_weight_offset else weight

    def logits_of(self, stream: Float[Tensor, "row d_model"]) -> Float[Tensor, "row vocabulary"]:
        """The model's own final norm, unembedding and cap of the logits, applied to any stream with one position per row."""
        logits = self.bridge.unembed(self.final_norm(stream[:, None]))[:, 0]
        return self.bridge.adapter.apply_output_logits_transform(logits)

    def final_norm(self, stream: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """The model's own final norm of any stream, on the device of the last layer."""
        return self.bridge.ln_final(stream.to(self.devices[-1]))

    def require(self, node: Node) -> None:
        """Raises UserError if the node is outside this model."""
        if not (0 <= node.layer < self.n_layers) or (node.kind == "head" and not 0 <= node.index < self.n_heads):
            raise UserError(
                f"{node} is outside model {self.name}, which has layers 0-{self.n_layers - 1} with heads "
                f"0-{self.n_heads - 1}; choose a node inside it"
            )


def attention_scale(layer: int) -> str:
    """The hook with the divisor of the norm after a layer's attention."""
    return f"blocks.{layer}.ln1_post.hook_scale"


def identify(settings: Mapping[str, Any]) -> Identity:
    """The identity of the model that a `model=` configuration names (keys name, kind, and path, repository or variant).

    The key `given` is a GivenModel, an object in place of these keys. Weights are not loaded. A hub model is downloaded if it is
    not on this machine; `path` names a folder to read in its place. Raises UserError if the kind, the folder or the repository
    is unknown, or if the weights are not there as safetensors.
    """
    kind = settings["kind"]
    if (given := settings.get("given")) is not None:
        knows = "embedded" if given.by_words else "natural language"
        n_layers, n_heads = given.shape
        return Identity(settings["name"], kind, given.sha256, n_layers, n_heads, {}, knows)
    if kind == "planted":
        return _identify_planted(settings)
    if (snapshot := hub.snapshot_of(settings)) is not None:
        return _identify_folder(settings, snapshot.folder, snapshot.revision)
    if kind in ("embedded", "local", "hub"):
        return _identify_folder(settings, _folder(settings))
    raise UserError(f"model kind {kind!r} is unknown; use embedded, planted, local or hub")


def load(settings: Mapping[str, Any], say: Say = lambda step: None) -> Model:
    """The model that a `model=` configuration names, ready for hooks; `say` is called as every step begins.

    Raises UserError as `identify` does, if memory does not suffice, or if the hooked model's log-probabilities at the last
    position of a few tokens differ from those of plain Hugging Face.
    """
    identity = identify(settings)
    spread = devices.spread_over(settings)
    if len(spread) > 1 and (settings.get("given") is not None or identity.folder is None):
        raise UserError(
            f"model.device_map={settings['device_map']} spreads a model that is read from a folder, and {identity.name} is built "
            "in memory; leave it out"
        )
    step = _steps(identity.name, say)
    if (given := settings.get("given")) is not None:
        step("copying the model that was handed over")
        tokenizer, loaded = given.tokenizer, {"hf_model": given.copied(kept_dtype(precision_of(settings)))}
    elif identity.folder is None:
        from circuits import planted

        built = planted.build(settings["variant"], seed=int(settings.get("seed", 0)))
        tokenizer, loaded = built.tokenizer, {"hf_model": built.model}
    else:
        tokenizer, loaded = load_tokenizer(identity), {"model_class": _CompleteModel}
    try:
        if identity.folder is not None:
            step(f"reading weights, {_require_room(settings, identity) / 1e6:,.1f} million parameters")
        bridge, constants = _bridge(identity, settings, loaded, tokenizer, step)
    except SafetensorError as error:
        raise UserError(f"the weights in {identity.folder} cannot be read ({error}); copy them there anew") from error
    return Model(identity, bridge, tokenizer, constants)


def _steps(name: str, say: Say) -> Say:
    """A function that reports a step to `say`, with the seconds since the first."""
    started = time.monotonic()
    return lambda step: say(f"loading {name}, {time.monotonic() - started:.1f} s: {step}")


def _require_room(settings: Mapping[str, Any], identity: Identity) -> int:
    """The number of parameters in a model's files. Raises UserError if they are quantised or do not fit memory while folded."""
    assert identity.folder is not None  # a model built in memory does not get here
    weights = _weights_in(identity.folder)
    runnable.require_floating(weights, identity.name)
    parameters = runnable.parameters_in(weights)
    spread, dtype = devices.spread_over(settings), kept_dtype(precision_of(settings))
    shares: Mapping[str, int] = {str(spread[0]): parameters}
    if len(spread) > 1:
        shares = devices.parameters_on(identity.folder, identity.n_layers, spread)
    for device, share in shares.items():
        runnable.require_room(share, dtype, torch.device(device), identity.name)
    return parameters


def load_plain(settings: Mapping[str, Any], identity: Identity) -> tuple[PreTrainedModel, Any]:
    """(plain Hugging Face model with eager attention, not processed by TransformerLens; tokenizer).

    Raises UserError for incomplete weights, as `load` does.
    """
    plain, tokenizer = _read_plain(settings, identity)
    if precision_of(settings) in narrow_weights.KEPT:
        narrow_weights.widen(plain)
    return plain, tokenizer


def _read_plain(settings: Mapping[str, Any], identity: Identity) -> tuple[PreTrainedModel, Any]:
    dtype, spread = kept_dtype(precision_of(settings)), devices.spread_over(settings)
    if (given := settings.get("given")) is not None:
        return given.copied(dtype).to(spread[0]), given.tokenizer
    if identity.folder is None:
        from circuits import planted

        built = planted.build(settings["variant"], seed=int(settings.get("seed", 0)))
        built.model.set_attn_implementation("eager")
        cast(torch.nn.Module, built.model).to(spread[0], dtype).eval()  # transformers' own `to` hides its arguments
        return built.model, built.tokenizer
    tokenizer = load_tokenizer(identity)
    loading: dict[str, Any] = {"dtype": dtype, "attn_implementation": "eager", "local_files_only": True}
    if len(spread) > 1:
        loading["device_map"] = devices.modules_of(identity.folder, identity.n_layers, spread)
    try:
        with quiet():
            plain = _CompleteModel.from_pretrained(str(identity.folder), **loading)
    except SafetensorError as error:
        raise UserError(f"the weights in {identity.folder} cannot be read ({error}); copy them there anew") from error
    if len(spread) == 1:
        cast(torch.nn.Module, plain).to(spread[0])
    cast(torch.nn.Module, plain).eval()
    return plain, tokenizer


def load_tokenizer(identity: Identity) -> Any:
    """The tokenizer in a model's folder, as `tokenizer_in`."""
    assert identity.folder is not None  # a model built in memory comes with its tokenizer
    return tokenizer_in(identity.folder)


@dataclass(frozen=True)
class TextReader:
    """The part of a model that reads text: its tokenizer, the prompts it can read (as `Identity.knows`), and the largest number
    of tokens (None: its configuration does not say)."""

    tokenizer: Any
    knows: Literal["embedded", "natural language"]
    longest: int | None


def text_reader(settings: Mapping[str, Any]) -> TextReader:
    """The text reader of the model that a `model=` configuration names; its weights are not read.

    Raises UserError as `identify` does, and for what its config.json rules out.
    """
    if (given := settings.get("given")) is not None:
        return TextReader(given.tokenizer, "embedded" if given.by_words else "natural language", given.longest)
    if settings["kind"] == "planted":
        from circuits import planted
        from circuits.planted.features import N_POSITIONS

        planted.design_of(settings["variant"], int(settings.get("seed", 0)))  # raises for an unknown variant
        return TextReader(planted.tokenizer_with_bos(settings["name"]), "embedded", N_POSITIONS)
    snapshot = hub.snapshot_of(settings)
    folder = snapshot.folder if snapshot else _folder(settings)
    if not folder.is_dir():
        raise UserError(f"model folder {folder} does not exist; point model.path at one with a tokenizer")
    config = runnable.configuration_in(folder) if (folder / "config.json").is_file() else None
    return TextReader(tokenizer_in(folder), _knows(folder), config and runnable.positions_of(config))


def tokenizer_in(folder: Path) -> Any:
    """The tokenizer in a folder, unchanged: no BOS token is set and no padding token added.

    Raises UserError if there is none that transformers can read, or if it does not give the tokens' offsets in the text.
    """
    _require_files(folder)
    runnable.require_tokenizer_files(folder)
    if not any((folder / name).is_file() for name in VOCABULARIES):  # transformers would make an empty one
        raise UserError(f"model folder {folder} has no tokenizer; put its tokenizer.json there")
    tokenizer = _read_tokenizer(folder)
    if not tokenizer.is_fast:
        raise UserError(
            f"the tokenizer in {folder} is a slow one, which cannot say where its tokens stand; put a "
            "tokenizer.json there"
        )
    config = runnable.configuration_in(folder) if (folder / "config.json").is_file() else None
    runnable.require_ids(tokenizer, config, folder)
    with quiet(), without_panics():
        runnable.require_encoding(tokenizer, config, folder)
    tokenizer.embedding_rows = getattr(config, "vocab_size", None)  # prompts.Encoder refuses ids beyond them
    return tokenizer


def _read_tokenizer(folder: Path) -> Any:
    """What transformers makes of the tokenizer in a folder. Raises UserError if it cannot read it."""
    from transformers import AutoTokenizer

    try:
        with quiet(), without_panics():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except BaseException as error:  # the tokenizers library raises a bare Exception for a file that it cannot read
        if not runnable.is_failure(error):
            raise
        raise UserError(
            f"model folder {folder} has no tokenizer that transformers can read{runnable.reason(error)}; copy the model's own "
            "tokenizer.json there, with the tokenizer_config.json beside it"
        ) from error


def _folder(settings: Mapping[str, Any]) -> Path:
    if not settings.get("path") and settings.get("legacy"):
        raise UserError(
            f"the weights of model={settings['name']} are on the hub as a pickle in a format of TransformerLens' own; run "
            f"`python -m scripts.convert_legacy --repository {settings['legacy']} --out FOLDER` once, then with "
            "model.path=FOLDER"
        )
    if not settings.get("path"):
        raise UserError("model=local needs model.path; give the folder that holds config.json and model.safetensors")
    return EMBEDDED / settings["path"] if settings["kind"] == "embedded" else Path(settings["path"])


def _identify_folder(settings: Mapping[str, Any], folder: Path, revision: str | None = None) -> Identity:
    if not folder.is_dir():
        raise UserError(
            f"model folder {folder} does not exist; point model.path at one with config.json and safetensors weights"
        )
    _require_files(folder)
    weights = _weights_in(folder)
    if not weights or not (folder / "config.json").is_file():
        raise UserError(
            f"model folder {folder} has no config.json with safetensors weights; point model.path at such a folder "
            "(convert a pickle checkpoint with transformers' save_pretrained first)"
        )
    _require_shards(folder)
    read = [path for name in READ if (path := folder / name).is_file()]
    shipped = runnable.shape_of_gpt2(folder) if settings["kind"] == "embedded" else None
    config = shipped or runnable.configuration_in(folder)
    runnable.require_tensors(weights, config, folder)
    return Identity(
        name=settings["name"],
        kind=settings["kind"],
        sha256=_digest([*read, *weights]),
        n_layers=int(config.num_hidden_layers),
        n_heads=int(config.num_attention_heads),
        circuits=_circuits(settings, folder),
        knows=_knows(folder),
        folder=folder,
        revision=revision,
    )


def _weights_in(folder: Path) -> list[Path]:
    """The safetensors files of a folder. UserError for a pipe or a device under such a name: its reader cannot be interrupted."""
    found = sorted(folder.glob("*.safetensors"))
    if other := [path for path in found if not path.is_file()]:
        raise UserError(
            f"{other[0]} is a folder, a pipe, a device or a link to nowhere and not a file; copy it there anew"
        )
    return found


def _circuits(settings: Mapping[str, Any], folder: Path) -> dict[str, Circuit]:
    """The circuits published about the model that `settings` names; those in its own folder take precedence."""
    folders = [folder / "circuits"]
    if settings.get("published"):
        folders.insert(0, PUBLISHED / settings["published"])
    return {path.stem: circuit_files.load(path) for where in folders for path in sorted(where.glob("*.yaml"))}


def _digest(paths: Iterable[Path]) -> str:
    """SHA-256 over the contents of files, cached in the process as long as they do not change."""
    stated = [(path.resolve(), path.stat()) for path in paths]
    return _digest_of(tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stated))


@lru_cache
def _digest_of(stated: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, _, _ in stated:
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def _require_files(folder: Path) -> None:
    """Raises UserError if a file to be read from a model's folder is a pipe or a device, which may be endless, or is larger than
    any text file of a model.
    """
    for name in READ:
        path = folder / name
        if not path.exists():
            continue
        if not path.is_file():
            raise UserError(f"{path} is a folder, a pipe or a device and not a file; copy it there anew")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise UserError(f"{path} has {size} bytes, and {MOST_BYTES} are allowed; copy the model's own there")


def _require_shards(folder: Path) -> None:
    """Raises UserError if the index of sharded weights names a missing file."""
    try:
        names = hub.shards(folder)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder / hub.INDEX} is not an index of sharded weights; copy it there anew") from error
    missing = [name for name in names if not _is_there(folder / name)]
    if missing:
        one = missing[0] if len(missing[0]) <= LONGEST_NAME else f"{missing[0][:LONGEST_NAME]}..."
        raise UserError(
            f"the weights in {folder} are {len(names)} files of which {len(missing)} are not there, {one} for one; "
            "copy them there"
        )


def _is_there(path: Path) -> bool:
    """True for a file. A name that is too long for any file is that of none."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def _knows(folder: Path) -> Literal["embedded", "natural language"]:
    """The prompts that a tokenizer can read: a word-level tokenizer is that of the embedded models."""
    try:
        kind = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "natural language"
    return "embedded" if kind == "WordLevel" else "natural language"


def _identify_planted(settings: Mapping[str, Any]) -> Identity:
    from circuits import planted

    seed = int(settings.get("seed", 0))
    stored = planted.claimed_circuits(settings["variant"], seed)
    compiled_by = code_digest(sorted(Path(planted.__file__).parent.glob("*.py")))
    digest = hashlib.sha256(f"{compiled_by}/{settings['variant']}/{seed}".encode()).hexdigest()
    return Identity(settings["name"], "planted", digest, *planted.design_of(settings["variant"], seed).shape, stored)


def _bridge(
    identity: Identity, settings: Mapping[str, Any], loaded: dict[str, Any], tokenizer: Any, step: Say
) -> tuple[Any, tuple[Tensor, ...]]:
    """(a TransformerBridge in compatibility mode, the `value_constants` that folding moved), with the libraries' own output
    silenced. `loaded` has the plain model (hf_model) or its reader (model_class).

    Raises UnsupportedArchitectureError if TransformerLens cannot convert the model, or if the result computes another function.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    spread, dtype = devices.spread_over(settings), kept_dtype(precision_of(settings))
    with quiet():
        from transformer_lens.model_bridge import TransformerBridge

    precision = precision_of(settings)
    watched = _Watched(loaded.get("model_class"), precision in narrow_weights.KEPT)
    its_own = copy.deepcopy(tokenizer)  # TransformerLens sets the EOS token as BOS if a tokenizer has none
    try:
        with quiet():
            if "hf_model" in loaded:
                loaded["hf_model"].to(spread[0], dtype)  # the bridge does not move a model that it is given
                watched.saw(loaded["hf_model"])
            else:
                loaded = {"model_class": watched}
            named = identity.name if identity.folder is None else str(identity.folder)
            where: dict[str, Any] = {"device": str(spread[0])}
            if len(spread) > 1 and identity.folder is not None:
                where = {"device_map": devices.modules_of(identity.folder, identity.n_layers, spread)}
            bridge = TransformerBridge.boot_transformers(named, dtype=dtype, tokenizer=its_own, **where, **loaded)
            if len(spread) > 1:
                _read_on_own_device(bridge)
        step("folding norms into weights")
        with quiet():
            stored = _values_of_biases(bridge)
            bridge.process_weights = partial(_process, bridge, precision)  # pyright: ignore[reportAttributeAccessIssue]
            bridge.enable_compatibility_mode(disable_warnings=True)
            # for architectures whose norms or value biases compatibility mode does not fold
            kept = _values_of_biases(bridge)
        step("comparing its last position with plain Hugging Face")
        error = watched.error_of(bridge)
    except (UserError, SafetensorError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # TransformerLens may fail in any way on an architecture that it does not support well
        raise UnsupportedArchitectureError(
            f"model {identity.name} cannot be run: TransformerLens cannot take it apart{runnable.reason(error)}; check its "
            "config.json, or use a family of docs/real-models.md"
        ) from error
    if not error <= PARITY.get(precision, PARITY["bfloat16"]):
        raise UnsupportedArchitectureError(
            f"model {identity.name} cannot be run: its log-probabilities in TransformerLens differ from plain Hugging Face's by "
            f"{error:.2g} of the largest, so nothing measured there would be about it; use a family of docs/real-models.md"
        )
    step(f"done; the same log-probabilities within {error:.1g} of the largest")
    return bridge.eval(), tuple(before - after for before, after in zip(stored, kept, strict=True))


def _read_on_own_device(bridge: Any) -> None:
    """Move what enters a block to the block's device, hook points included.

    accelerate does so in the plain model's blocks, which is after the hook points, and not at all where TransformerLens has
    replaced a block's `forward`, as in Falcon.
    """
    from accelerate.utils import send_to_device

    def moved(block: Any, args: Any, kwargs: Any, device: torch.device) -> tuple[Any, Any]:
        return send_to_device(args, device), send_to_device(kwargs, device, skip_keys=["past_key_values", "layer_past"])

    for block in bridge.blocks:
        block.register_forward_pre_hook(partial(moved, device=next(block.parameters()).device), with_kwargs=True)


def _process(bridge: Any, precision: str, **unused: bool) -> None:
    """Replaces the bridge's own `process_weights`, which takes several times the memory."""
    folding.fold(bridge)
    if precision in narrow_weights.KEPT:
        narrow_weights.widen(bridge.original_model)
        bridge.cfg.dtype = torch.float32


class _Watched:
    """Reads a plain model by `model_class`, and keeps its log-probabilities at the last position of a few tokens.

    `widens`: it runs in float32, whatever dtype its weights are stored in.
    """

    def __init__(self, model_class: Any, widens: bool) -> None:
        self._model_class, self._widens = model_class, widens

    def from_pretrained(self, folder: str, **settings: Any) -> PreTrainedModel:
        model = self._model_class.from_pretrained(folder, **settings)
        self.saw(model)
        return model

    @torch.no_grad()
    def saw(self, plain: PreTrainedModel) -> None:
        """Store log-probabilities of the plain model."""
        plain.eval()
        self._tokens = torch.linspace(0, plain.config.vocab_size - 1, PROBE).long()[None]
        with narrow_weights.widened(plain) if self._widens else contextlib.nullcontext():
            logits = plain(self._tokens.to(plain.device), use_cache=False).logits
        self._expected = logits[0, -1].double().log_softmax(-1).cpu()

    @torch.no_grad()
    def error_of(self, bridge: Any) -> float:
        """The largest error of the bridge's log-probabilities, over the largest log-probability of the plain model in size."""
        device = next(bridge.parameters()).device
        found = bridge(self._tokens.to(device), return_type="logits")[0, -1].double().log_softmax(-1).cpu()
        return float((found - self._expected).abs().max() / self._expected.abs().max())


@torch.no_grad()
def _values_of_biases(bridge: Any) -> list[Float[Tensor, "head d_head"]]:
    """b_V + b_LN W_V of every query head by layer, in float32 at least; zeros if a layer has neither bias."""
    n_heads, d_head = int(bridge.cfg.n_heads), int(bridge.cfg.d_head)
    some = next(bridge.parameters())
    placed = {"device": some.device, "dtype": torch.promote_types(some.dtype, torch.float32)}
    found = []
    for block in bridge.blocks:
        attention, norm = getattr(block, "attn", None), getattr(block, "ln1", None)
        value_bias, norm_bias = getattr(attention, "b_V", None), getattr(norm, "bias", None)
        value = torch.zeros(1, d_head, **placed)
        if value_bias is not None:
            value = value + value_bias.to(**placed).reshape(-1, d_head)
        if attention is not None and norm_bias is not None:
            value = value + norm_bias.to(**placed) @ attention.W_V.to(**placed)
        found.append(value.repeat_interleave(n_heads // len(value), 0))
    return found


class _CompleteModel:
    """AutoModelForCausalLM that requires complete weights; transformers would fill missing ones with random numbers."""

    @staticmethod
    def from_pretrained(folder: str, **settings: Any) -> PreTrainedModel:
        from transformers import AutoModelForCausalLM

        try:
            loaded = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **settings)
        except RuntimeError as error:
            if MISMATCHED not in str(error):
                raise
            raise UserError(
                f"the weights in {folder} have other shapes than its config.json says; copy both there from one model"
            ) from error
        model, report = cast(
            "tuple[PreTrainedModel, dict[str, Any]]", loaded
        )  # a pair, because the loading info is requested
        missing = sorted(report["missing_keys"])
        if missing:
            raise UserError(
                f"the weights in {folder} lack {len(missing)} of the model's tensors, {missing[0]} for one; copy all "
                "of its safetensors files there"
            )
        runnable.require_numbers(cast(torch.nn.Module, model), folder)
        return model


def precision_of(settings: Mapping[str, Any]) -> str:
    """model.dtype, or the scoring dtype if it is null. Raises UserError for a name that is no floating-point type."""
    name = str(settings.get("dtype") or "float32")
    dtype = narrow_weights.KEPT.get(name, getattr(torch, name, None))
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UserError(
            f"model.dtype={name} is no floating-point type; use float32, the scoring type, float32_over_bfloat16, which keeps "
            "weights in half the memory, or bfloat16"
        )
    return name


def kept_dtype(precision: str) -> torch.dtype:
    """The dtype of stored weights for a name from `precision_of`."""
    return narrow_weights.KEPT.get(precision) or getattr(torch, precision)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars, warnings and info logs of the libraries that load weights."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(previous)


@contextlib.contextmanager
def without_panics() -> Iterator[None]:
    """Keep a panic of a library in Rust off the terminal; what else is printed meanwhile appears at the end.

    Such a library writes to file descriptor 2, past Python's streams. Without that descriptor or a temporary file, nothing is
    kept back.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(ONE_AT_A_TIME)
        with contextlib.suppress(OSError):
            kept = stack.enter_context(tempfile.TemporaryFile())
            stack.callback(_restore, os.dup(2), kept)
            os.dup2(kept.fileno(), 2)
        yield


def _restore(terminal: int, kept: IO[bytes]) -> None:
    """Give file descriptor 2 back to `terminal`, and print what it was given meanwhile, without panics."""
    os.dup2(terminal, 2)
    os.close(terminal)
    kept.seek(0)
    if shown := PANIC.sub(b"", kept.read()):
        with contextlib.suppress(OSError):  # the terminal was closed
            os.write(2, shown)
