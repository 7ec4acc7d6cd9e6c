"""A legacy checkpoint as a GPT-2 folder: the same function, to the engines and to run.py; what is refused, and how.

The weights are multiples of 1/4 with few bits, and width and vocabulary powers of two: TransformerBridge folds norms and
biases in float32, which then rounds nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from circuits import models, tasks
from circuits import prompts as prompt_sets
from circuits.engine import selection
from meridian import legacy_checkpoints
from results_io import UserError
from scripts import convert_legacy
from tests.circuits import whole_word_tokenizer
from tests.commandline import command

LAYERS, HEADS, D_HEAD, D_MODEL, POSITIONS, VOCABULARY = 4, 8, 4, 32, 64, 4096
CONFIG = {
    "d_model": D_MODEL,
    "n_layers": LAYERS,
    "d_head": D_HEAD,
    "n_heads": HEADS,
    "n_ctx": POSITIONS,
    "d_vocab": VOCABULARY,
    "d_mlp": 128,
    "act_fn": "solu_ln",
    "attn_only": True,
    "shortformer_pos": False,
}
NORM_PARAMETERS = {"LN": ("w", "b"), "LNPre": ()}


def legacy(normalization: str = "LN", logit_bias: bool = True, grid: float = 4) -> legacy_checkpoints.Weights:
    """A random checkpoint, every tensor in use; its constants among the weights, as the format has them."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, mean: float = 0.0) -> torch.Tensor:
        return torch.round((torch.randn(shape, generator=generator) * 0.3 + mean) * grid) / grid

    weights = {"embed.W_E": draw(VOCABULARY, D_MODEL), "pos_embed.W_pos": draw(POSITIONS, D_MODEL)}
    for layer in range(LAYERS):
        attention = f"blocks.{layer}.attn"
        weights |= {f"{attention}.W_{kind}": draw(HEADS, D_MODEL, D_HEAD) for kind in "QKV"}
        weights |= {f"{attention}.b_{kind}": draw(HEADS, D_HEAD) for kind in "QKV"}
        weights |= {f"{attention}.W_O": draw(HEADS, D_HEAD, D_MODEL), f"{attention}.b_O": draw(D_MODEL)}
        weights |= {f"{attention}.mask": torch.ones(POSITIONS, POSITIONS).tril().bool()}
        weights |= {f"{attention}.IGNORE": torch.tensor(-1e5)}
    for norm in [*(f"blocks.{layer}.ln1" for layer in range(LAYERS)), "ln_final"]:
        weights |= {f"{norm}.{name}": draw(D_MODEL, mean=name == "w") for name in NORM_PARAMETERS[normalization]}
    weights["unembed.W_U"] = draw(D_MODEL, VOCABULARY) / 2  # logits of at most 6, whose fp32 rounding stays below 1e-5
    if logit_bias:
        weights["unembed.b_U"] = draw(VOCABULARY)
    return weights


def forward(weights: legacy_checkpoints.Weights, tokens: torch.Tensor) -> torch.Tensor:
    """The logits by the definition, one head after the other, fp64."""
    w = {name: value.double() for name, value in weights.items()}

    def norm(stream: torch.Tensor, name: str) -> torch.Tensor:
        centred = stream - stream.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * w.get(f"{name}.w", torch.ones(1)) + w.get(f"{name}.b", torch.zeros(1))

    n = tokens.shape[1]
    stream = w["embed.W_E"][tokens] + w["pos_embed.W_pos"][:n]
    future = torch.ones(n, n).triu(1).bool()
    for layer in range(LAYERS):
        read, attention = norm(stream, f"blocks.{layer}.ln1"), f"blocks.{layer}.attn"
        stream = stream + w[f"{attention}.b_O"]
        for head in range(HEADS):
            q, k, v = (read @ w[f"{attention}.W_{kind}"][head] + w[f"{attention}.b_{kind}"][head] for kind in "QKV")
            scores = (q @ k.mT / math.sqrt(D_HEAD)).masked_fill(future, -math.inf)
            stream = stream + scores.softmax(-1) @ v @ w[f"{attention}.W_O"][head]
    return norm(stream, "ln_final") @ w["unembed.W_U"] + w.get("unembed.b_U", torch.zeros(1))


def natural_tokenizer() -> PreTrainedTokenizerFast:
    """The stand-in as a BPE that finds every word whole, as a tokenizer of natural language is one."""
    built = whole_word_tokenizer.build()
    built.backend_tokenizer.model = tokenizer_models.BPE(
        vocab=built.get_vocab(), merges=[], unk_token=whole_word_tokenizer.UNKNOWN, ignore_merges=True
    )
    return built


def write(folder: Path, weights: object, config: dict) -> list[str]:
    """The command line that converts these; the tokenizer is in the folder's parent."""
    folder.mkdir()
    torch.save(weights, folder / "model_final.pth")
    (folder / "config.json").write_text(json.dumps(config))
    files = ["--checkpoint", str(folder / "model_final.pth"), "--config", str(folder / "config.json")]
    return [*files, "--tokenizer", str(folder.parent / "tokenizer"), "--out", str(folder / "gpt2")]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """converted(normalization, logit_bias): the folder that the script writes for such a model."""
    base, made = tmp_path_factory.mktemp("legacy"), {}
    natural_tokenizer().save_pretrained(base / "tokenizer")

    def make(normalization: str = "LN", logit_bias: bool = True) -> Path:
        if (normalization, logit_bias) not in made:
            folder = base / f"{normalization}{logit_bias}"
            config = CONFIG | {"normalization": normalization}
            assert convert_legacy.main(write(folder, legacy(normalization, logit_bias), config)) == 0
            made[normalization, logit_bias] = folder / "gpt2"
        return made[normalization, logit_bias]

    return make


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (6, 40), generator=torch.Generator().manual_seed(1))


def settings(folder: Path, dtype: str = "float64") -> dict:
    named = {"name": "attn_only_4l", "kind": "local", "published": "attn_only_4l"}
    return named | {"path": str(folder), "device": "cpu", "dtype": dtype}


# --- the same function -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("normalization", ["LN", "LNPre"])
@pytest.mark.parametrize("logit_bias", [True, False])
@torch.no_grad()
def test_the_folder_is_the_function_of_the_checkpoint(converted, tokens, normalization, logit_bias) -> None:
    weights = legacy(normalization, logit_bias)
    truth = forward(weights, tokens)
    named = CONFIG | {"normalization": normalization}
    held = legacy_checkpoints.read_checkpoint(converted(normalization, logit_bias).parent / "model_final.pth")
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        native = legacy_checkpoints.native(named, held, dtype)(tokens)
        folder = converted(normalization, logit_bias)
        mine = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()(tokens).logits
        assert float((native - truth).abs().max()) < tolerance * 10
        assert float((mine - native).abs().max()) < tolerance


@torch.no_grad()
def test_the_bias_of_the_logits_is_not_lost(converted, tokens) -> None:
    weights = legacy()
    without = {name: value for name, value in weights.items() if name != "unembed.b_U"}
    shift = forward(weights, tokens) - forward(without, tokens)
    assert float((shift - weights["unembed.b_U"]).abs().max()) < 1e-12
    log_probabilities = [forward(each, tokens).log_softmax(-1) for each in (weights, without)]
    assert float((log_probabilities[0] - log_probabilities[1]).abs().max()) > 0.5
    mine = AutoModelForCausalLM.from_pretrained(converted(), dtype=torch.float64)(tokens).logits
    assert float((mine.log_softmax(-1) - log_probabilities[0]).abs().max()) < 1e-10


def test_the_direction_of_ones_carries_any_bias_and_nothing_of_the_stream() -> None:
    generator = torch.Generator().manual_seed(2)
    width, words = 48, 700
    w, b, gain, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((width, words), (words,), (width,), (width,))
    )
    normed = torch.randn(20, width, generator=generator, dtype=torch.float64)
    normed -= normed.mean(-1, keepdim=True)
    weights = {"unembed.W_U": w, "unembed.b_U": b, "ln_final.w": gain, "ln_final.b": bias}
    new_gain, new_bias, matrix = legacy_checkpoints.unembed(weights)
    truth = (normed * gain + bias) @ w + b
    assert float(((normed * new_gain + new_bias) @ matrix - truth).abs().max()) < 1e-12
    assert float((matrix.sum(0) - (bias @ w + b)).abs().max()) < 1e-12
    shifted = legacy_checkpoints.unembed(weights | {"unembed.b_U": b + 3 * torch.randn(words, generator=generator)})[2]
    centred = matrix - matrix.mean(0)
    assert float((shifted - shifted.mean(0) - centred).abs().max()) < 1e-12


def test_without_a_bias_the_tensors_are_the_checkpoint_s_own(converted) -> None:
    weights = legacy(logit_bias=False)
    mine = AutoModelForCausalLM.from_pretrained(converted(logit_bias=False)).state_dict()
    zero = legacy_checkpoints.unembed(weights | {"unembed.b_U": torch.zeros(VOCABULARY)})
    assert torch.equal(zero[2], weights["unembed.W_U"]) and torch.equal(
        mine["lm_head.weight"].T, weights["unembed.W_U"]
    )
    assert torch.equal(mine["transformer.ln_f.weight"], weights["ln_final.w"])
    assert torch.equal(mine["transformer.ln_f.bias"], weights["ln_final.b"])


@torch.no_grad()
def test_meridian_loads_the_same_function_and_its_mlps_write_nothing(converted, tokens) -> None:
    truth = forward(legacy(), tokens).log_softmax(-1)
    for dtype, tolerance in (("float64", 1e-10), ("float32", 1e-5)):
        model = models.load(settings(converted(), dtype))
        assert float((model.bridge(tokens).double().log_softmax(-1) - truth).abs().max()) < tolerance
    assert (model.n_layers, model.n_heads, model.identity.knows) == (LAYERS, HEADS, "natural language")
    model.circuits["docstring"].check(model.n_layers, model.n_heads)
    _, cache = model.bridge.run_with_cache(tokens)
    for layer in range(LAYERS):
        assert float(cache[f"blocks.{layer}.hook_mlp_out"].abs().max()) == 0.0
        assert float(cache[f"blocks.{layer}.hook_attn_out"].abs().max()) > 0.1


@pytest.mark.slow
def test_lens_and_fused_engines_agree_on_docstring_prompts(converted) -> None:
    model = models.load(settings(converted()))
    task = tasks.get("docstring", tasks.Vocabulary(model.tokenizer))
    drawn = prompt_sets.draw_examples(task, {"evaluation": 12, "reference": 24}, 0)
    sets = {name: prompt_sets.tokenize(task, rows, model.tokenizer, name) for name, rows in drawn.items()}
    exact = {**selection.DEFAULTS, "name": "fused", "tolerance": {"float64": 1e-10}}
    engine = selection.choose(exact, model, sets["reference"], sets["evaluation"])
    assert engine.why == "parity with lens within 1e-10"
    prompts = sets["evaluation"]
    truth = forward(legacy(), prompts.clean)[torch.arange(len(prompts)), prompts.end]
    mine = engine.run(selection.Sweep((selection.Variant("clean"),)), prompts).logit_diff[0]
    for row in range(len(prompts)):
        right, wrong = ([i for i in ids[row].tolist() if i >= 0] for ids in (prompts.answers, prompts.wrong))
        expected = float(truth[row, right].mean() - truth[row, wrong].mean())
        assert np.isclose(mine[row], expected, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_run_py_ends_with_a_table(converted, tmp_path) -> None:
    sizes = {"evaluation": 40, "held_out": 20, "discovery": 16, "reference": 120}
    outcome = command(
        "task=docstring",
        "model=attn_only_4l",
        f"model.path={converted()}",
        "model.device=cpu",
        "calibration=c11",
        *(f"prompts.{name}={size}" for name, size in sizes.items()),
        f"results={tmp_path}",
    )
    assert outcome.code == 0, outcome.errors
    assert "docstring on attn_only_4l (4 layers x 8 heads, local)  circuit: stored, 6 of 32 heads" in outcome.said
    assert "BOS <bos>" in outcome.said
    # a random model: which of the two depends on the sign of a mean that is all chance
    assert re.search(r"(does not do|is not shown to do) the task \(mean logit", outcome.output)
    assert re.search(r"behaviour (absent|not shown): mean logit difference", outcome.said)


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_tokenizer_is_the_one_of_its_file_whatever_class_its_configuration_names(tmp_path) -> None:
    letters = {letter: i for i, letter in enumerate(["<|BOS|>", *"0123456789abcdefg", "12", "ab"])}
    backend = Tokenizer(tokenizer_models.BPE(vocab=letters, merges=[("1", "2"), ("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    named = {"tokenizer_class": "GPTNeoXTokenizer", "bos_token": "<|BOS|>", "eos_token": "<|BOS|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    expected = [letters[piece] for piece in ("ab", "1", "2", "c")]
    read = legacy_checkpoints.read_tokenizer(str(tmp_path), len(letters))
    config, weights = CONFIG | {"normalization": "LN", "d_vocab": len(letters)}, legacy()
    for name in ("embed.W_E", "unembed.W_U", "unembed.b_U"):
        weights[name] = weights[name][..., : len(letters)] if "unembed" in name else weights[name][: len(letters)]
    arguments = write(tmp_path / "model", weights, config)
    arguments[arguments.index("--tokenizer") + 1] = str(tmp_path)
    assert convert_legacy.main(arguments) == 0
    loaded = models.load_tokenizer(models.identify(settings(tmp_path / "model" / "gpt2")))
    for tokenizer in (read, loaded):
        assert tokenizer("ab12c", add_special_tokens=False)["input_ids"] == expected
        assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|BOS|>", 0)


def test_the_folder_says_what_it_was_made_of_and_holds_no_pickle(converted) -> None:
    folder = converted()
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".json") == ["model.safetensors"]
    made_of = json.loads((folder / "config.json").read_text())["converted_from"]
    assert made_of["file"] == "model_final.pth" and len(made_of["sha256"]) == 64
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o644


# --- refusals --------------------------------------------------------------------------------------------------------


def refusal(call, *arguments) -> str:
    with pytest.raises(UserError) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attn_only": False}, "attn_only=False"),
        ({"normalization": "RMS"}, "normalization=RMS"),
        ({"normalization": None}, "normalization=None"),
        ({"shortformer_pos": True}, "shortformer_pos=True"),
        ({"positional_embedding_type": "rotary"}, "positional_embedding_type=rotary"),
        ({"final_rms": True}, "final_rms=True"),
        ({"use_attn_scale": False}, "use_attn_scale=False"),
        ({"attn_scale": 7.0}, "attn_scale=7.0"),
        ({"d_head": 5}, "8 heads of 5 dimensions in a width of 32"),
        ({"d_model": None}, "TypeError"),
    ],
)
def test_models_that_no_gpt2_can_be(tmp_path, change, named) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"normalization": "LN"} | change))
    assert named in refusal(legacy_checkpoints.read_config, path)


@pytest.mark.parametrize("missing", ["attn_only", "normalization", "n_ctx"])
def test_configurations_that_leave_something_open(tmp_path, missing) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in CONFIG.items() if name != missing}))
    assert "give the config.json of" in refusal(legacy_checkpoints.read_config, path)


def test_tensors_that_are_missing_unknown_or_of_another_shape() -> None:
    config = CONFIG | {"normalization": "LN"}
    weights = {name: value for name, value in legacy().items() if not name.endswith(legacy_checkpoints.BUFFERS)}
    name = "blocks.2.attn.W_K"
    lacking = {key: value for key, value in weights.items() if key != name}
    assert f"lacks {name}" in refusal(legacy_checkpoints.gpt2, config, lacking)
    more = weights | {"blocks.0.mlp.W_in": torch.zeros(D_MODEL, 4)}
    assert "has blocks.0.mlp.W_in, which no attention-only GPT-2 has" in refusal(legacy_checkpoints.gpt2, config, more)
    turned = weights | {name: weights[name].transpose(-1, -2)}
    assert f"{name} has shape [8, 4, 32] where its configuration asks for [8, 32, 4]" in refusal(
        legacy_checkpoints.gpt2, config, turned
    )


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("content", ["a bomb", [torch.zeros(2)], {"step": 3}])
def test_a_pickle_of_anything_but_tensors_is_refused_and_runs_nothing(tmp_path, content) -> None:
    path = tmp_path / "model_final.pth"
    torch.save(Bomb(tmp_path / "exploded") if content == "a bomb" else content, path)
    assert str(path) in refusal(legacy_checkpoints.read_checkpoint, path)
    assert not (tmp_path / "exploded").exists()
    assert "cannot be read" in refusal(legacy_checkpoints.read_checkpoint, tmp_path / "absent.pth")


def test_the_command_line_refuses_in_one_sentence(converted, tmp_path, capsys) -> None:
    converted()
    files = ["--checkpoint", "a.pth", "--config", "config.json"]
    cases = {
        "names no model, half of one or two": [[], files[:2], ["--repository", "a/b", *files]],
        "cannot be had from the hub": [["--repository", "NeelNanda/Attn_Only_4L512W_C4_Code"]],
        "is not a configuration in TransformerLens' legacy format": [files],
        "is not empty": [[*files, "--out", str(converted())]],
    }
    for sentence, lines in cases.items():
        for line in lines:
            assert convert_legacy.main(["--out", str(tmp_path / "new"), *line]) == 2
            errors = capsys.readouterr().err
            assert sentence in errors and errors.count("\n") == 1 and errors.startswith("convert_legacy: ")
    assert not (tmp_path / "new").exists()


def test_a_tokenizer_of_another_model_or_none(converted) -> None:
    folder = str(converted())
    assert "tokens and the model 100" in refusal(legacy_checkpoints.read_tokenizer, folder, 100)
    assert "names no tokenizer" in refusal(legacy_checkpoints.read_tokenizer, None, VOCABULARY)
    assert "cannot be had" in refusal(legacy_checkpoints.read_tokenizer, "nobody/nothing", VOCABULARY)


def test_the_model_without_a_folder_says_how_to_make_one() -> None:
    outcome = command("task=docstring", "model=attn_only_4l")
    assert outcome.code == 2
    assert (
        "python -m scripts.convert_legacy --repository NeelNanda/Attn_Only_4L512W_C4_Code --out FOLDER"
        in outcome.errors
    )
