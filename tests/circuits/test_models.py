"""Which model it is, and that loading it gives the same function as its files; what is refused, and how."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from circuits import circuit as circuit_files
from circuits import models, planted, runnable
from circuits.circuit import Node, head
from results_io import UserError
from tests.circuits import toy

POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket"}


def local(folder: Path, **rest) -> dict:
    return {"name": "mine", "kind": "local", "path": str(folder), "device": "cpu", "dtype": "float32", **rest}


@pytest.fixture
def copied(folder, tmp_path) -> Path:
    """A copy of the random GPT-2's folder, to be spoilt."""
    return Path(shutil.copytree(folder("gpt2"), tmp_path / "copied"))


# --- identity ------------------------------------------------------------------------------------------------------


def test_the_embedded_model_is_identified_without_loading_it(monkeypatch) -> None:
    monkeypatch.setattr(models, "_bridge", None)
    pocket = models.identify(POCKET)
    assert (pocket.name, pocket.kind, pocket.n_layers, pocket.n_heads) == ("pocket", "embedded", 4, 8)
    assert pocket.describe() == "pocket (4 layers x 8 heads, embedded)"
    assert "ioi" in pocket.circuits
    for task, circuit in pocket.circuits.items():
        assert circuit.task == task and circuit.provenance["model_sha256"] == pocket.sha256
        circuit.check(pocket.n_layers, pocket.n_heads)


@pytest.mark.parametrize("name", ["pocket", "planted_ioi"])
def test_the_shape_of_a_shipped_model_is_that_of_its_whole_configuration(name) -> None:
    shape, config = runnable.shape_of_gpt2(models.EMBEDDED / name), runnable.configuration_in(models.EMBEDDED / name)
    assert shape is not None
    assert (shape.num_hidden_layers, shape.num_attention_heads, shape.vocab_size) == (
        config.num_hidden_layers,
        config.num_attention_heads,
        config.vocab_size,
    )


@pytest.mark.parametrize(
    "changed", [{"architectures": ["LlamaForCausalLM"]}, {"n_layer": "4"}, {"n_head": 0}, {"vocab_size": True}, None]
)
def test_no_shape_is_read_from_anything_else(changed, tmp_path) -> None:
    stored = json.loads((models.EMBEDDED / "pocket" / "config.json").read_text())
    (tmp_path / "config.json").write_text("{" if changed is None else json.dumps({**stored, **changed}))
    assert runnable.shape_of_gpt2(tmp_path) is None


def test_the_digest_is_over_configuration_tokenizer_and_weights(copied) -> None:
    digest = hashlib.sha256()
    for path in [*sorted(copied.glob("*.json")), copied / "model.safetensors"]:
        digest.update(path.read_bytes())
    assert models.identify(local(copied)).sha256 == digest.hexdigest()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_change_in_any_of_its_files_is_another_model(copied, name) -> None:
    before = models.identify(local(copied)).sha256
    path = copied / name
    content = bytearray(path.read_bytes())
    content += b" " if name.endswith("json") else b"\0"
    path.write_bytes(content)
    assert models.identify(local(copied)).sha256 != before


def test_neither_name_nor_place_nor_circuits_belong_to_the_digest(folder, copied) -> None:
    shutil.rmtree(copied / "circuits")
    here, there = models.identify(local(folder("gpt2"))), models.identify(local(copied, name="other"))
    assert here.sha256 == there.sha256
    assert (here.name, there.name) == ("mine", "other")
    assert (sorted(here.circuits), sorted(there.circuits)) == (["greater_than"], [])
    assert here.circuits["greater_than"] == toy.circuit("greater_than")


@pytest.mark.parametrize(("architecture", "layers"), [("gpt2", 3), ("neox", 2), ("llama", 2), ("qwen2", 2)])
def test_layers_and_heads_of_every_architecture(folder, architecture, layers) -> None:
    found = models.identify(local(folder(architecture)))
    assert (found.n_layers, found.n_heads) == (layers, 4)
    assert found.heads == tuple(head(layer, index) for layer in range(layers) for index in range(4))


def test_planted_models_differ_by_seed_and_are_the_code_that_builds_them(monkeypatch, tmp_path) -> None:
    settings = {"name": "planted/sound", "kind": "planted", "variant": "sound", "seed": 0}
    found = models.identify(settings)
    assert (found.n_layers, found.n_heads) == (planted.N_LAYERS, planted.N_HEADS)
    assert models.identify(dict(settings)).sha256 == found.sha256
    assert models.identify({**settings, "seed": 1}).sha256 != found.sha256
    changed = shutil.copytree(Path(planted.__file__).parent, tmp_path / "planted")
    monkeypatch.setattr(planted, "__file__", str(changed / "__init__.py"))
    assert models.identify(settings).sha256 == found.sha256
    variants = changed / "variants.py"
    variants.write_text(variants.read_text() + "\n# says nothing new\n")
    assert models.identify(settings).sha256 == found.sha256
    variants.write_text(variants.read_text() + "ANOTHER = 1\n")
    assert models.identify(settings).sha256 != found.sha256
    assert sorted(found.circuits) == sorted(planted.claimed_circuits("sound", 0))


# --- loading -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_loaded_model_is_the_function_of_its_files(folder, model, plain, scored) -> None:
    tokens = scored.clean[:6, :8]
    mine = model.bridge(tokens).double().log_softmax(-1)
    truth = plain("gpt2")(tokens).logits.log_softmax(-1)
    assert float((mine - truth).abs().max()) < 1e-4
    assert (model.n_layers, model.n_heads, model.heads) == (3, 4, model.identity.heads)
    assert (model.device.type, model.dtype) == ("cpu", torch.float32)


@torch.no_grad()
def test_the_unembedding_is_the_one_that_the_logits_come_from(model, scored) -> None:
    tokens = scored.clean[:4, :8]
    kept = {}
    logits = model.bridge.run_with_hooks(
        tokens,
        fwd_hooks=[("ln_final.hook_normalized", lambda value, hook: kept.update(stream=value))],
        return_type="logits",
    )
    rebuilt = kept["stream"].float() @ model.unembedding + model.bridge.b_U
    assert model.unembedding.shape == (toy.D_MODEL, toy.VOCABULARY)
    assert float((rebuilt - logits).abs().max()) < 1e-4
    assert float(model.unembedding.mean(1).abs().max()) < 1e-5
    assert model.output_weights.shape == (3, toy.N_HEADS, toy.D_HEAD, toy.D_MODEL)


def test_layer_norm_centres_and_rms_norm_does_not(load) -> None:
    assert load("gpt2").centred_norm is True
    assert load("llama").centred_norm is False


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_scoring_type_is_the_one_asked_for(folder, dtype) -> None:
    assert models.load(local(folder("gpt2"), dtype=dtype)).dtype == getattr(torch, dtype)


def test_nodes_outside_the_model_are_named(model) -> None:
    model.require(head(2, 3))
    model.require(Node("mlp", 2))
    for node, name in ((head(3, 0), "L3H0"), (head(0, 4), "L0H4"), (Node("mlp", 3), "mlp3")):
        with pytest.raises(UserError, match=f"{name} is outside model .*, which has layers 0-2 with heads 0-3; choose"):
            model.require(node)


def test_loading_is_silent_and_gives_the_terminal_back(folder, capsys) -> None:
    models.load(local(folder("gpt2")))
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ZeroDivisionError), models.quiet():
        print("nothing of this is seen")
        warnings.warn("nor of this", stacklevel=1)
        raise ZeroDivisionError
    print("seen")
    logging.getLogger("meridian").warning("seen as well")
    assert capsys.readouterr().out == "seen\n"
    assert logging.root.manager.disable == 0 and sys.stderr is not None


def test_loading_says_each_step_before_it_is_done_and_what_the_proof_found(folder, plain, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        models.folding, "fold", lambda bridge, own=models.folding.fold: (said.append("folded"), own(bridge))
    )
    models.load(local(folder("gpt2")), said.append)
    found = [re.fullmatch(r"loading mine, ([0-9.]+) s: (.+)", one) for one in said]
    seconds = [float(one[1]) for one in found if one]
    assert len(seconds) == 4 and seconds == sorted(seconds) and said[2] == "folded"
    count = sum(one.numel() for one in plain("gpt2").state_dict().values())
    assert [one and one[2] for one in found][:2] == [
        f"reading weights, {count / 1e6:,.1f} million parameters",
        "folding norms into weights",
    ]
    assert said[3].endswith("comparing its last position with plain Hugging Face")
    error = float(re.search(r"within (\S+) of the largest", said[4])[1])  # pyright: ignore[reportOptionalSubscript]
    assert 0 <= error < models.PARITY["float32"]


# --- refusals ------------------------------------------------------------------------------------------------------


def refusal(settings: dict) -> str:
    with pytest.raises(UserError) as raised:
        models.load(settings)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_an_unknown_kind() -> None:
    assert (
        refusal({"name": "x", "kind": "remote"})
        == "model kind 'remote' is unknown; use embedded, planted, local or hub"
    )


@pytest.mark.parametrize("path", [None, ""])
def test_a_local_model_without_a_path(path) -> None:
    assert refusal({"name": "local", "kind": "local", "path": path}) == (
        "model=local needs model.path; give the folder that holds config.json and model.safetensors"
    )


def test_a_folder_that_is_not_there(tmp_path) -> None:
    text = refusal(local(tmp_path / "nowhere"))
    assert text.startswith(f"model folder {tmp_path / 'nowhere'} does not exist; point model.path at one")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_that_lacks_something(copied, missing) -> None:
    (copied / missing).unlink()
    assert "has no config.json with safetensors weights; point model.path at such a folder" in refusal(local(copied))


def test_a_pickle_is_never_opened(copied) -> None:
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was opened",))

    (copied / "model.safetensors").unlink()
    torch.save(Bomb(), copied / "pytorch_model.bin")
    assert "convert a pickle checkpoint with transformers' save_pretrained first" in refusal(local(copied))


def test_a_stored_circuit_that_is_not_one(copied) -> None:
    (copied / "circuits" / "ioi.yaml").write_text("roles: 3")
    assert f"{copied / 'circuits' / 'ioi.yaml'} is not a circuit file" in refusal(local(copied))
    circuit_files.save(toy.circuit("ioi"), copied / "circuits" / "ioi.yaml")
    assert sorted(models.identify(local(copied)).circuits) == ["greater_than", "ioi"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read as JSON; copy the model's configuration there anew"),
        (json.dumps({"a": 1}), "names no model_type; point model.path at a model saved with save_pretrained"),
        (json.dumps([1]), "names no model_type; point model.path at a model saved with save_pretrained"),
        (json.dumps({"model_type": "no such model"}), "does not know (code that comes with a model is not run)"),
        (
            json.dumps({"model_type": "gpt2", "n_layer": "two"}),
            "is no configuration of a gpt2 model; copy it there anew",
        ),
    ],
)
def test_a_configuration_that_is_not_one(copied, content, reason) -> None:
    (copied / "config.json").write_text(content)
    text = refusal(local(copied))
    assert text.startswith(f"{copied / 'config.json'} ") and reason in text


def test_damaged_weights(copied) -> None:
    (copied / "model.safetensors").write_bytes(b"not weights")
    assert f"the weights in {copied} cannot be read" in refusal(local(copied))


def test_weights_with_a_hole_are_not_filled_with_random_numbers(copied) -> None:
    path, name = copied / "model.safetensors", "transformer.h.1.attn.c_attn.weight"
    weights = load_file(path)
    save_file({key: value for key, value in weights.items() if key != name}, path, metadata={"format": "pt"})
    assert f"the weights in {copied} lack 1 of the model's tensors, {name} for one" in refusal(local(copied))


@pytest.mark.parametrize("dtype", ["float33", "int64", "nn"])
def test_a_type_that_is_no_floating_point_type(folder, dtype) -> None:
    text = refusal(local(folder("gpt2"), dtype=dtype))
    assert text == (
        f"model.dtype={dtype} is no floating-point type; use float32, the scoring type, float32_over_bfloat16, which keeps "
        "weights in half the memory, or bfloat16"
    )


@pytest.mark.parametrize("device", ["tpu7", "cuda:99"])
def test_a_device_that_is_not_there(folder, device) -> None:
    text = refusal(local(folder("gpt2"), device=device))
    assert text == f"model.device={device} is not on this machine; use model.device=cpu"


def test_an_unknown_planted_variant() -> None:
    assert "'nothing'" in refusal({"name": "planted/nothing", "kind": "planted", "variant": "nothing", "seed": 0})


def test_how_much_a_model_reads_is_its_configuration_s_word(tmp_path) -> None:
    """Of a folder, of an object with the same configuration, and of a family that bounds nothing."""
    assert models.text_reader({"name": "pocket", "kind": "embedded", "path": "pocket"}).longest == 64
    shutil.copy(models.EMBEDDED / "pocket" / "tokenizer.json", tmp_path)
    for stored, expected in (
        ({"model_type": "gpt2", "n_positions": 17}, 17),
        ({"model_type": "llama", "max_position_embeddings": 23}, 23),
        ({"model_type": "bloom", "n_layer": 2}, None),
    ):
        (tmp_path / "config.json").write_text(json.dumps(stored))
        assert models.text_reader(local(tmp_path)).longest == expected
        assert runnable.positions_of(runnable.configuration_in(tmp_path)) == expected
    (tmp_path / "config.json").unlink()
    assert models.text_reader(local(tmp_path)).longest is None
