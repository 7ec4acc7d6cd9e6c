"""Converts attention-only models of TransformerLens' legacy format to GPT-2 folders in safetensors.

The checkpoint is a pickle. It is read once, on request, by torch's reader of tensors (weights_only=True), which runs no
code. Code that loads the folder later reads safetensors only.

A GPT-2 whose MLPs have weights 0 is the same function. GPT-2 has no parameter for the bias b_U of the logits, but it can
express that as well:

    n = (x - mean x) / sqrt(var x + eps)                               sum_i n_i = 0
    logits = W_U^T (gain * n + bias) + b_U = W^T n + c                 W = diag(gain) W_U, c = W_U^T bias + b_U
           = (W - mean_i W_i + 1 c^T / d_model)^T (n + 1)

So if b_U is not 0, the final norm gets gain 1 and bias 1, and the unembedding becomes the matrix in brackets: c is carried by
the direction of ones, which the norm leaves empty. Nothing else changes. Before `convert` returns, the written model is compared
with TransformerLens' own reading of the checkpoint.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
from jaxtyping import Float
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import results_io
from circuits.models import quiet
from results_io import UserError

SIZES = ("d_model", "n_layers", "d_head", "n_heads", "n_ctx", "d_vocab")
REPRESENTABLE: Mapping[str, tuple[Any, ...]] = {  # settings of the format that a GPT-2 can express; a key may be absent
    "architecture": ("neel", None),
    "original_architecture": ("neel", None),
    "attn_only": (True,),
    "normalization": ("LN", "LNPre"),
    "normalization_type": ("LN", "LNPre"),
    "final_rms": (False,),
    "shortformer_pos": (False,),
    "positional_embedding_type": ("standard",),
    "attention_dir": ("causal",),
    "use_attn_scale": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "use_local_attn": (False,),
    "attn_scores_soft_cap": (-1, 0, None),
    "output_logits_soft_cap": (-1, 0, None),
    "n_key_value_heads": (None,),
}
BUFFERS = (".mask", ".IGNORE")  # constants that the format keeps beside the weights
EPS = 1e-5  # of the norms if the configuration gives none; TransformerLens' default
HIDDEN = 8  # units of the MLPs that write nothing; a small width that GPU matrix kernels still accept
TOLERANCE = 1e-4  # of log-probabilities; a hundred times the rounding from storing the unembedding in fp32
PROBE = (4, 32)  # sequences, and tokens in each, of the comparison

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class LegacyFiles:
    """The files of a model in the legacy format; `tokenizer` is a folder or a hub repository."""

    config: Path
    checkpoint: Path
    tokenizer: str | None = None


def convert(source: LegacyFiles, folder: Path) -> float:
    """Write the model as a GPT-2 folder; return the largest difference of log-probabilities from TransformerLens.

    UserError if the folder is not empty, a file cannot be read, or a GPT-2 cannot express this model.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; name a new or an empty folder with --out")
    config = read_config(source.config)
    weights = read_checkpoint(source.checkpoint)
    tokenizer = read_tokenizer(source.tokenizer or config.get("tokenizer_name"), int(config["d_vocab"]))
    model = gpt2(config, weights)
    gap = difference(model, config, weights)
    if not gap <= TOLERANCE:
        raise UserError(
            f"the converted model's log-probabilities differ by {gap:.2g} from TransformerLens' own reading of "
            f"{source.checkpoint}, where rounding makes less than {TOLERANCE:g}; do not use it and report its config.json"
        )
    origin = {"file": source.checkpoint.name, "sha256": results_io.file_digest(source.checkpoint)}
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model.config.update({**ids, "converted_from": origin})
    _save(model, tokenizer, folder)
    return gap


def download(repository: str, revision: str | None) -> LegacyFiles:
    """The configuration and the last checkpoint of a hub repository; UserError if they are not available."""
    try:
        kept = ["config.json", "*final.pth"]
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=kept))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise UserError(
            f"{repository} at revision {revision or 'main'} cannot be had from the hub ({type(error).__name__}); fetch its "
            "config.json and its .pth file where there is a network and give them with --config and --checkpoint"
        ) from error
    found = sorted(folder.glob("*final.pth"))
    if len(found) != 1 or not (folder / "config.json").is_file():
        raise UserError(
            f"{repository} has {len(found)} files *final.pth where one beside a config.json is expected; fetch the right "
            "ones and give them with --config and --checkpoint"
        )
    return LegacyFiles(folder / "config.json", found[0])


def read_config(path: Path) -> dict[str, Any]:
    """A TransformerLens configuration; UserError if it is not one, or if a GPT-2 cannot express its model."""
    try:
        config = dict(json.loads(path.read_text()))
        sizes = {name: int(config[name]) for name in SIZES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a configuration in TransformerLens' legacy format ({type(error).__name__}: {error}); give the "
            f"config.json of such a model, which has {', '.join(SIZES)}"
        ) from error
    if "attn_only" not in config or not {"normalization", "normalization_type"} & set(config):
        raise UserError(f"{path} does not say attn_only and normalization; give the config.json of a legacy model")
    for name, allowed in REPRESENTABLE.items():
        if name in config and config[name] not in allowed:
            raise UserError(
                f"{path} has {name}={config[name]}, which no attention-only GPT-2 can have (it has "
                f"{' or '.join(map(str, allowed))}); convert another model"
            )
    if sizes["n_heads"] * sizes["d_head"] != sizes["d_model"]:
        raise UserError(
            f"{path} has {sizes['n_heads']} heads of {sizes['d_head']} dimensions in a width of {sizes['d_model']}, where "
            "GPT-2's heads share the width; convert another model"
        )
    scale = float(config.get("attn_scale") or -1)
    if scale > 0 and scale != sizes["d_head"] ** 0.5:
        raise UserError(f"{path} has attn_scale={scale} where GPT-2 has the root of d_head; convert another model")
    return config


def read_checkpoint(path: Path) -> Weights:
    """The tensors of a checkpoint by their legacy names, without constants; UserError if it holds anything but tensors."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise UserError(
            f"{path} cannot be read as a checkpoint of tensors alone ({type(error).__name__}); fetch it anew, from where its "
            "authors put it"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(
            f"{path} is not a mapping from names to tensors; give the .pth file of a legacy model's weights"
        )
    return {str(name): value for name, value in found.items() if not str(name).endswith(BUFFERS)}


def read_tokenizer(name: str | None, vocabulary: int) -> PreTrainedTokenizerFast:
    """The tokenizer exactly as in its tokenizer.json; UserError if it is not available or has ids that the model lacks.

    AutoTokenizer is not used: a class named in its configuration may rebuild the tokenizer and lose its peculiarities, such
    as separate tokens for digits.
    """
    if not name:
        raise UserError("the configuration names no tokenizer; give its folder or hub repository with --tokenizer")
    try:
        with quiet():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"tokenizer {name} cannot be had; fetch its tokenizer.json and tokenizer_config.json where there is a network "
            "and give their folder with --tokenizer"
        ) from error
    if len(tokenizer) > vocabulary:
        raise UserError(
            f"tokenizer {name} has {len(tokenizer)} tokens and the model {vocabulary}; give the model's own with --tokenizer"
        )
    return tokenizer


def gpt2(config: Mapping[str, Any], weights: Weights) -> GPT2LMHeadModel:
    """The model as a GPT-2 whose MLPs write nothing; UserError if tensors are missing, unknown or of another shape."""
    _require_tensors(config, weights)
    shape = GPT2Config(
        vocab_size=int(config["d_vocab"]),
        n_positions=int(config["n_ctx"]),
        n_embd=int(config["d_model"]),
        n_layer=int(config["n_layers"]),
        n_head=int(config["n_heads"]),
        n_inner=HIDDEN,
        layer_norm_epsilon=_eps(config),
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    dtype = torch.promote_types(weights["embed.W_E"].dtype, torch.float32)
    model = GPT2LMHeadModel(shape)
    nn.Module.to(model, dtype)
    model.load_state_dict({name: value.to(dtype) for name, value in _gpt2_tensors(shape, weights).items()})
    return model.eval()


def _eps(config: Mapping[str, Any]) -> float:
    return float(config.get("eps") or EPS)


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """{name: shape} of the legacy format's tensors; norms without parameters (LNPre) have none."""
    d, n, h, positions, vocabulary = (int(config[key]) for key in ("d_model", "n_heads", "d_head", "n_ctx", "d_vocab"))
    norm = {"w": (d,), "b": (d,)} if config.get("normalization", config.get("normalization_type")) == "LN" else {}
    attention = {f"W_{kind}": (n, d, h) for kind in "QKV"} | {f"b_{kind}": (n, h) for kind in "QKV"}
    attention |= {"W_O": (n, h, d), "b_O": (d,)}
    found: dict[str, tuple[int, ...]] = {"embed.W_E": (vocabulary, d), "pos_embed.W_pos": (positions, d)}
    for layer in range(int(config["n_layers"])):
        found |= {f"blocks.{layer}.ln1.{name}": size for name, size in norm.items()}
        found |= {f"blocks.{layer}.attn.{name}": size for name, size in attention.items()}
    found |= {f"ln_final.{name}": size for name, size in norm.items()}
    return found | {"unembed.W_U": (d, vocabulary), "unembed.b_U": (vocabulary,)}


def _require_tensors(config: Mapping[str, Any], weights: Weights) -> None:
    """UserError unless the checkpoint has exactly the tensors of its configuration. Only b_U may be absent; it is then 0."""
    expected = _shapes(config)
    for name in sorted((set(expected) - {"unembed.b_U"}) - set(weights)):
        raise UserError(f"the checkpoint lacks {name}, which its configuration asks for; give the two of one model")
    for name, value in weights.items():
        if name not in expected:
            raise UserError(f"the checkpoint has {name}, which no attention-only GPT-2 has; give one of another model")
        if tuple(value.shape) != expected[name]:
            raise UserError(
                f"the checkpoint's {name} has shape {list(value.shape)} where its configuration asks for "
                f"{list(expected[name])}; give the two of one model"
            )


def _gpt2_tensors(shape: GPT2Config, weights: Weights) -> Weights:
    """The tensors under GPT-2's names. The legacy format's matrices per head become joint matrices [input, output] for x W."""
    found = {"transformer.wte.weight": weights["embed.W_E"], "transformer.wpe.weight": weights["pos_embed.W_pos"]}
    zeros, ones = torch.zeros(shape.n_embd), torch.ones(shape.n_embd)
    for layer in range(shape.n_layer):
        old, new = f"blocks.{layer}", f"transformer.h.{layer}"
        matrices = [rearrange(weights[f"{old}.attn.W_{kind}"], "head d h -> d (head h)") for kind in "QKV"]
        biases = [rearrange(weights[f"{old}.attn.b_{kind}"], "head h -> (head h)") for kind in "QKV"]
        found |= {
            f"{new}.ln_1.weight": weights.get(f"{old}.ln1.w", ones),
            f"{new}.ln_1.bias": weights.get(f"{old}.ln1.b", zeros),
            f"{new}.attn.c_attn.weight": torch.cat(matrices, 1),
            f"{new}.attn.c_attn.bias": torch.cat(biases),
            f"{new}.attn.c_proj.weight": rearrange(weights[f"{old}.attn.W_O"], "head h d -> (head h) d"),
            f"{new}.attn.c_proj.bias": weights[f"{old}.attn.b_O"],
            f"{new}.ln_2.weight": ones,
            f"{new}.ln_2.bias": zeros,
            f"{new}.mlp.c_fc.weight": torch.zeros(shape.n_embd, HIDDEN),
            f"{new}.mlp.c_fc.bias": torch.zeros(HIDDEN),
            f"{new}.mlp.c_proj.weight": torch.zeros(HIDDEN, shape.n_embd),
            f"{new}.mlp.c_proj.bias": zeros,
        }
    gain, bias, unembedding = unembed(weights)
    return found | {
        "transformer.ln_f.weight": gain,
        "transformer.ln_f.bias": bias,
        "lm_head.weight": unembedding.T.contiguous(),
    }


def unembed(
    weights: Weights,
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, " d_model"], Float[Tensor, "d_model vocabulary"]]:
    """(gain of the final norm, its bias, unembedding), with b_U absorbed as the module's docstring describes.

    Computed in fp64. Without b_U, or if it is 0, they are the checkpoint's own.
    """
    matrix = weights["unembed.W_U"]
    gain = weights.get("ln_final.w", torch.ones(len(matrix)))
    bias = weights.get("ln_final.b", torch.zeros(len(matrix)))
    logit_bias = weights.get("unembed.b_U")
    if logit_bias is None or not bool(logit_bias.any()):
        return gain, bias, matrix
    folded = gain.double()[:, None] * matrix.double()
    constant = bias.double() @ matrix.double() + logit_bias.double()
    ones = torch.ones(len(matrix))
    return ones, ones, folded - folded.mean(0) + constant / len(matrix)


@torch.no_grad()
def difference(model: GPT2LMHeadModel, config: Mapping[str, Any], weights: Weights) -> float:
    """Largest difference in log-probabilities from TransformerLens' own reading of the checkpoint, on random tokens in fp64."""
    tokens = torch.randint(int(config["d_vocab"]), PROBE, generator=torch.Generator().manual_seed(0))
    tokens = tokens[:, : int(config["n_ctx"])]
    dtype = model.dtype
    mine = model.double()(tokens).logits.log_softmax(-1)
    nn.Module.to(model, dtype)  # exact, because the fp64 numbers are those of `dtype`
    return float((mine - native(config, weights, torch.float64)(tokens).log_softmax(-1)).abs().max())


def native(config: Mapping[str, Any], weights: Weights, dtype: torch.dtype) -> Any:
    """TransformerLens' reading of the checkpoint: a TransformerBridge with the weights as stored, nothing folded."""
    with quiet():
        from transformer_lens.config import TransformerBridgeConfig
        from transformer_lens.model_bridge import TransformerBridge
        from transformer_lens.model_bridge.sources import native as _  # noqa: F401 (registers boot_native)
        from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

        sizes: dict[str, Any] = {name: int(config[name]) for name in SIZES}
        shape = TransformerBridgeConfig(
            **sizes,
            eps=_eps(config),
            act_fn="gelu",
            attn_only=True,
            normalization_type=config.get("normalization", config.get("normalization_type")),
            positional_embedding_type="standard",
            architecture="TransformerLensNative",
            init_weights=False,
        )
        # the import of `native` sets it, which a type checker does not see
        boot = TransformerBridge.boot_native  # pyright: ignore[reportAttributeAccessIssue]
        bridge = boot(shape, dtype=dtype, device="cpu")
        zero = {"unembed.b_U": torch.zeros(shape.d_vocab)}
        bridge.load_state_dict(convert_tl_checkpoint(zero | weights, shape), strict=True)
    return bridge.eval()


def _save(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder completely or not at all: it is written beside its place and then moved. UserError if that fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as partial:
            whole = Path(partial) / folder.name
            with quiet():
                model.save_pretrained(whole)
                tokenizer.save_pretrained(whole)
            (whole / "model.safetensors").chmod(0o644)
            path = whole / "tokenizer_config.json"
            named = {"tokenizer_class": "PreTrainedTokenizerFast"}  # this changes nothing in the tokenizer
            path.write_text(json.dumps(json.loads(path.read_text()) | named, indent=2) + "\n")
            whole.rename(folder)  # an empty folder of this name is replaced
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error}); name another folder with --out") from error
