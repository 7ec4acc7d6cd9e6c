"""Folders as they come: sharded, tied, grouped, in half precision, with tokenizers of several kinds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from circuits import hub, measure, models, prompts, tasks
from circuits.embedded.tokenizer import build_tokenizer
from results_io import UserError
from tests.circuits import gpt2_tokenizer, toy

pytestmark = pytest.mark.every_architecture


def local(folder: Path, **rest) -> dict:
    return {"name": "mine", "kind": "local", "path": str(folder), "device": "cpu", "dtype": "float32", **rest}


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, toy.VOCABULARY, (4, 11), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def log_probabilities(settings: dict, tokens: torch.Tensor) -> torch.Tensor:
    return models.load(settings).bridge(tokens, return_type="logits").double().log_softmax(-1)


@torch.no_grad()
def plain_log_probabilities(folder: Path, tokens: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return toy.plain(folder, dtype)(tokens).logits.double().log_softmax(-1)


# --- weights -------------------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path) -> Path:
    with models.quiet():
        toy.build("llama").save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
        build_tokenizer().save_pretrained(tmp_path / "sharded")
    return tmp_path / "sharded"


def test_shards_are_one_model(sharded, folder, tokens) -> None:
    assert len(list(sharded.glob("model-*.safetensors"))) == 4 and not (sharded / "model.safetensors").exists()
    whole = log_probabilities(local(folder("llama")), tokens)
    assert torch.equal(log_probabilities(local(sharded), tokens), whole)


def test_every_shard_belongs_to_the_digest(sharded) -> None:
    before = models.identify(local(sharded)).sha256
    path = sharded / "model-00003-of-00004.safetensors"
    path.write_bytes(path.read_bytes() + b"\0")
    assert models.identify(local(sharded)).sha256 != before


def test_a_shard_that_is_missing_is_named(sharded) -> None:
    (sharded / "model-00002-of-00004.safetensors").unlink()
    with pytest.raises(UserError) as refused:
        models.load(local(sharded))
    assert str(refused.value) == (
        f"the weights in {sharded} are 4 files of which 1 are not there, model-00002-of-00004.safetensors for one; "
        "copy them there"
    )


def test_an_index_that_is_none_is_refused(sharded) -> None:
    (sharded / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(UserError, match=r"index.json is not an index of sharded weights; copy it there anew"):
        models.load(local(sharded))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", toy.FAMILIES)
def test_a_tied_unembedding_is_the_embedding_and_folding_changes_it_alone(family, tmp_path, tokens) -> None:
    """W_U = gain * W_E^T before it is centred over the vocabulary, W_E as in the file (centred under layer norm)."""
    network = toy.build(family, tie_word_embeddings=True)
    folder = toy.save(network, tmp_path / family)
    table = network.get_input_embeddings().weight.detach()
    assert network.get_output_embeddings().weight.data_ptr() == table.data_ptr()
    model = models.load(local(folder))
    gain = {"gpt2": "transformer.ln_f", "neox": "gpt_neox.final_layer_norm"}.get(family, "model.norm")
    weight = network.get_submodule(gain).weight.detach() + family.startswith("gemma")
    folded = table.T * weight[:, None]
    if model.centred_norm:
        table = table - table.mean(1, keepdim=True)
        folded = folded - folded.mean(0, keepdim=True)
    if not model.bounds_logits:
        folded = folded - folded.mean(1, keepdim=True)
    assert float((model.unembedding - folded).abs().max()) < 1e-5
    assert float((model.embedding - table).abs().max()) < 1e-5
    untied = toy.build(family)
    untied.load_state_dict(network.state_dict(), strict=False)
    untied.get_output_embeddings().weight.data.copy_(network.get_input_embeddings().weight)
    apart = toy.save(untied, tmp_path / f"{family} untied")
    tied = log_probabilities(local(folder), tokens)
    assert float((tied - log_probabilities(local(apart), tokens)).abs().max()) < 1e-6
    assert float((tied - plain_log_probabilities(folder, tokens)).abs().max()) < 1e-4


@pytest.mark.parametrize("family", [name for name in toy.FAMILIES if name not in ("gpt2", "neox")])
def test_grouped_query_heads_share_keys_and_values(family, load) -> None:
    model = load(family)
    assert {len(w) for w in model.projections["k"]} == {len(w) for w in model.projections["v"]} == {2}
    assert model.key_weights.shape == (2, toy.N_HEADS, toy.D_MODEL, toy.D_HEAD) == model.value_weights.shape
    for shared in (model.key_weights, model.value_weights):
        assert torch.equal(shared[:, 0], shared[:, 1]) and torch.equal(shared[:, 2], shared[:, 3])
        assert not torch.equal(shared[:, 1], shared[:, 2])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", toy.FAMILIES)
def test_half_precision_is_as_close_as_hugging_face_s(family, dtype, folder, tokens) -> None:
    """To the float64 model; folding rounds the weights once more, so the error may be twice as large in mean."""
    exact = plain_log_probabilities(folder(family), tokens)
    found = log_probabilities(local(folder(family), dtype=dtype), tokens)
    expected = plain_log_probabilities(folder(family), tokens, getattr(torch, dtype))
    errors = [float((value - exact).square().mean().sqrt()) for value in (found, expected)]
    assert errors[0] < 2 * errors[1] < 1
    assert models.load(local(folder(family), dtype=dtype)).dtype == getattr(torch, dtype)


# --- tokenizers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(folder, tmp_path) -> Path:
    """The random GPT-2 without a tokenizer."""
    path = Path(shutil.copytree(folder("gpt2"), tmp_path / "bare"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()
    return path


def test_a_folder_without_a_tokenizer(bare) -> None:
    with pytest.raises(UserError) as refused:
        models.load(local(bare))
    assert str(refused.value) == f"model folder {bare} has no tokenizer; put its tokenizer.json there"


def test_vocabulary_and_merges_do_for_a_tokenizer(bare, tmp_path) -> None:
    """As in GPT-2's repository before tokenizer.json was invented."""
    merges = ["Ġ t", "h e", "Ġt he", "o n"]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    expected = gpt2_tokenizer.build(tmp_path / "merges.txt")
    (bare / "vocab.json").write_text(json.dumps(expected.get_vocab()), encoding="utf-8")
    before = models.identify(local(bare)).sha256
    shutil.copy(tmp_path / "merges.txt", bare)
    identity = models.identify(local(bare))
    assert identity.knows == "natural language" and identity.sha256 != before
    found = models.load_tokenizer(identity)
    text = "When Mary went to the stone,\n the on\u00e9"
    assert found.is_fast
    assert found(text)["input_ids"] == expected(text, add_special_tokens=False)["input_ids"]
    assert found(" the")["input_ids"] == [expected.get_vocab()["Ġthe"]]
    assert found.bos_token == "<|endoftext|>"


def tokenizer_with_bos():
    """The embedded models' tokenizer, made to begin every text with BOS of its own accord, as Llama's and Gemma's do."""
    tokenizer = build_tokenizer()
    begin = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    return tokenizer


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_a_bos_token_that_the_tokenizer_adds_by_itself_is_not_doubled(family, folder, tmp_path) -> None:
    path = Path(shutil.copytree(folder(family), tmp_path / family))
    tokenizer_with_bos().save_pretrained(path)
    tokenizer = models.load_tokenizer(models.identify(local(path)))
    task, sizes = tasks.get("ioi"), {"evaluation": 6}
    examples = prompts.draw_examples(task, sizes, 0)["evaluation"]
    bos = tokenizer.bos_token_id
    assert tokenizer(examples[0].clean)["input_ids"][0] == bos  # what would be doubled
    found = prompts.tokenize(task, examples, tokenizer, "evaluation")
    expected = prompts.tokenize(task, examples, build_tokenizer(), "evaluation")
    for name in ("clean", "corrupted"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
        assert (getattr(found, name) == bos).sum(1).tolist() == [1] * 6
    assert torch.equal(found.answers, expected.answers)
    assert {role: where.tolist() for role, where in found.positions.items()} == {
        role: where.tolist() for role, where in expected.positions.items()
    }
    assert tasks.Vocabulary(tokenizer).ids(examples[0].clean)[0] != bos


def test_a_tokenizer_without_bos_names_the_setting(folder, tmp_path) -> None:
    """As Qwen's, whose models were trained without one."""
    path = Path(shutil.copytree(folder("qwen3"), tmp_path / "qwen3"))
    without = build_tokenizer()
    without.bos_token = None
    without.save_pretrained(path)
    tokenizer = models.load(local(path)).tokenizer  # as it is after TransformerLens had its hands on the model
    assert tokenizer.bos_token is None and tokenizer.pad_token == without.pad_token
    task = tasks.get("ioi")
    examples = prompts.draw_examples(task, {"evaluation": 4}, 0)["evaluation"]
    with pytest.raises(UserError) as refused:
        prompts.tokenize(task, examples, tokenizer, "evaluation")
    assert str(refused.value).endswith(
        "begins its prompts with a BOS token and this tokenizer has none; run with task.bos=false"
    )
    found = prompts.tokenize(tasks.get("ioi", bos=False), examples, tokenizer, "evaluation")
    expected = prompts.tokenize(task, examples, build_tokenizer(), "evaluation")
    assert torch.equal(found.clean, expected.clean[:, 1:])
    assert found.bos is None and torch.equal(found.end + 1, expected.end)


# --- revision ------------------------------------------------------------------------------------------------------


def test_the_revision_of_a_hub_model_is_recorded(folder, monkeypatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setattr(hub, "fetch", lambda repository, revision: hub.HubSnapshot(folder("gpt2"), commit))
    settings = {"name": "some/model", "kind": "hub", "revision": None, "device": "cpu", "dtype": "float32"}
    assert models.identify(settings).revision == commit
    plan = measure.Plan(settings, tasks.get("ioi"), toy.SIZES, 0, toy.SETTINGS, toy.ENGINE)
    assert measure._header(plan, "01")["environment"]["revision"] == commit


def test_a_path_is_read_in_place_of_the_hub_and_has_no_revision(folder, monkeypatch) -> None:
    """The pinned commit says nothing about a folder of the user's."""
    monkeypatch.setattr(hub, "fetch", None)
    settings = {"name": "gpt2", "kind": "hub", "repository": "x/y", "revision": "0123456", "path": str(folder("gpt2"))}
    found = models.identify({**settings, "device": "cpu"})
    assert (found.name, found.kind, found.revision, found.folder) == ("gpt2", "hub", None, folder("gpt2"))
    assert found.sha256 == models.identify(local(folder("gpt2"))).sha256


def test_a_tokenizer_with_neither_padding_nor_end_pads_all_the_same() -> None:
    """Attention is causal and padding comes last, so any token does."""
    tokenizer = build_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token = None
    task = tasks.get("ioi")
    examples = prompts.draw_examples(task, {"evaluation": 6}, 0)["evaluation"]
    found = prompts.tokenize(task, examples, tokenizer, "evaluation")
    expected = prompts.tokenize(task, examples, build_tokenizer(), "evaluation")
    for row, end in enumerate(found.end.tolist()):
        assert torch.equal(found.clean[row, : end + 1], expected.clean[row, : end + 1])
