"""Where two runs differ: oracles by hand, and the plain Hugging Face model with hooks of its own as brute-force twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from circuits import difference, models, tasks
from circuits import study as studies
from circuits.circuit import Node, parse_head
from circuits.interventions import Sweep, Variant
from circuits.measurements import activation_patching, attention, logit_lens
from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError

POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": None}
SIZES = {"evaluation": 12, "held_out": 4, "discovery": 14, "reference": 60}
FAMILIES = ("pocket", "neox", "llama")
OUTPUTS = {
    "pocket": "transformer.h.{}.attn.c_proj",
    "neox": "gpt_neox.layers.{}.attention.dense",
    "llama": "model.layers.{}.self_attn.o_proj",
}
FLOAT32 = 1e-4  # of the mean gap: the study computes in float32, its twin in float64


@pytest.fixture(scope="module", autouse=True)
def one_thread(one_thread_without_gradients) -> None:
    """Whole models run here."""


@pytest.fixture(scope="module")
def pocket() -> Study:
    return studies.prepare(models.load(POCKET), tasks.get("ioi"), SIZES, seed=0)


@pytest.fixture(scope="module")
def bare() -> Any:
    """Pocket as an ordinary Hugging Face model in float64."""
    plain, _ = models.load_plain(POCKET, models.identify(POCKET))
    return plain.double()


@pytest.fixture(scope="module")
def study_of(pocket, make_study) -> Callable[[str], Study]:
    return lambda family: pocket if family == "pocket" else make_study(family)


@pytest.fixture(scope="module")
def bare_of(bare, plain) -> Callable[[str], Any]:
    return lambda family: bare if family == "pocket" else plain(family)


@pytest.fixture(scope="module")
def traced(pocket) -> dict[str, Any]:
    return difference.trace(pocket, pocket.discovery)


def row(prompts: PromptSet, base: str, place: int) -> Tensor:
    return getattr(prompts, base)[place : place + 1, : int(prompts.end[place]) + 1]


# --- attention from the answer position ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "nats", "normalised"),
    [
        ([0.25, 0.25, 0.25, 0.25], 1.386294, 1.0),
        ([0.5, 0.5, 0.0, 0.0], 0.693147, 0.5),
        ([0.7, 0.1, 0.1, 0.1], 0.940448, 0.678390),
        ([1.0, 0.0, 0.0, 0.0], 0.0, 0.0),
    ],
)
def test_entropy_over_four_keys(weights, nats, normalised) -> None:
    """O60. Keys that padding adds change nothing."""
    keys = torch.tensor([4])
    found = attention.normalised_entropy(torch.tensor([[weights]]), keys)
    padded = attention.normalised_entropy(torch.tensor([[[*weights, 0.0, 0.0]]]), keys)
    assert found.item() == pytest.approx(normalised, abs=1e-6)
    assert found.item() * np.log(4) == pytest.approx(nats, abs=2e-6)
    assert torch.equal(found, padded)


def test_entropy_over_a_single_key_is_0_and_rows_have_their_own_number_of_keys() -> None:
    assert attention.normalised_entropy(torch.ones(1, 1, 1), torch.tensor([1])).item() == 0
    weights = torch.tensor([[[0.5, 0.5, 0.0, 0.0]], [[0.25, 0.25, 0.25, 0.25]]])
    assert attention.normalised_entropy(weights, torch.tensor([2, 4]))[:, 0].tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("base", ["clean", "corrupted"])
def test_attention_from_the_answer_is_what_the_plain_model_attends_to(base, pocket, bare) -> None:
    """Prompts of several lengths together, so that all but the longest are padded."""
    prompts = pocket.discovery
    assert len(set(prompts.end.tolist())) > 1
    found = attention.from_answer(pocket, prompts, base)
    assert set(found.to) == set(prompts.positions)
    for place in range(4):
        patterns = bare(row(prompts, base, place), output_attentions=True).attentions
        own = torch.cat([pattern[0, :, -1] for pattern in patterns]).numpy()
        assert own.sum(1) == pytest.approx(1)
        entropy = -(own * np.log(own)).sum(1) / np.log(own.shape[1])
        assert found.entropy[place].numpy() == pytest.approx(entropy, abs=1e-5)
        assert found.first[place].numpy() == pytest.approx(own[:, 0], abs=1e-5)
        for role, where in prompts.positions.items():
            assert found.to[role][place].numpy() == pytest.approx(own[:, int(where[place])], abs=1e-5)


@pytest.mark.slow
def test_the_two_runs_attend_differently_and_the_trace_holds_their_means(pocket, traced) -> None:
    for base in ("clean", "corrupted"):
        by_prompt, means = attention.from_answer(pocket, pocket.discovery, base), traced["attention"][base]
        assert means["entropy"] == pytest.approx(by_prompt.entropy.mean(0).numpy(), abs=1e-6)
        assert means["first"] == pytest.approx(by_prompt.first.mean(0).numpy(), abs=1e-6)
        assert set(means["to"]) == set(traced["roles"]) == set(pocket.discovery.positions)
        for role, values in by_prompt.to.items():
            assert means["to"][role] == pytest.approx(values.mean(0).numpy(), abs=1e-6)
    clean, corrupted = (traced["attention"][base]["to"]["io"] for base in ("clean", "corrupted"))
    assert not np.allclose(clean, corrupted, atol=0.01)


def test_named_positions_may_be_called_as_the_other_numbers_are(pocket, traced) -> None:
    """A suite may name its spans `first` and `entropy`; they are told from the first token and the entropy."""
    renamed = {"first": "io", "entropy": "s2", "end": "end"}
    prompts = pocket.discovery
    found = difference.trace(
        pocket, replace(prompts, positions={name: prompts.positions[role] for name, role in renamed.items()})
    )
    assert found["roles"] == list(renamed)
    for base in ("clean", "corrupted"):
        for name, role in renamed.items():
            expected = traced["attention"][base]["to"][role]
            assert found["attention"][base]["to"][name] == pytest.approx(expected, abs=1e-6)
        for kind in ("entropy", "first"):
            assert found["attention"][base][kind] == pytest.approx(traced["attention"][base][kind], abs=1e-6)
            assert not np.allclose(found["attention"][base][kind], found["attention"][base]["to"][kind], atol=0.01)


# --- lens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["clean", "corrupted"])
def test_the_lens_ends_in_the_model_s_own_logits(base, pocket, bare) -> None:
    prompts = pocket.discovery
    found = logit_lens.lens(pocket, prompts, base)
    assert found.max_error < 1e-4
    assert found.logit_diff.shape == (pocket.model.n_layers + 1, len(prompts))
    for place in range(3):
        answer, foil = int(prompts.answers[place, 0]), int(prompts.wrong[place, 0])
        output = bare(row(prompts, base, place), output_hidden_states=True)
        *before, _ = (state[0, -1] for state in output.hidden_states)  # the last is normed already
        logits = [bare.lm_head(bare.transformer.ln_f(state)) for state in before] + [output.logits[0, -1]]
        expected = [float(one[answer] - one[foil]) for one in logits]
        assert found.logit_diff[:, place] == pytest.approx(expected, abs=1e-3)


def test_settling_is_the_first_layer_of_a_lead_for_good() -> None:
    never, at_once, late, lost, tie = [-1, -1, -1, -1], [1, 2, 1, 3], [-1, 2, -1, 3], [1, 1, 1, -1], [1, 0, 1, 1]
    table = np.array([never, at_once, late, lost, tie], dtype=float).T
    assert logit_lens.settling(table) == [None, 0, 3, None, 2]


def test_the_trace_says_where_answer_and_foil_begin_to_lead(pocket, traced) -> None:
    emergence, prompts = traced["emergence"], pocket.discovery
    assert emergence["max_error"] < 1e-4
    clean, corrupted = (logit_lens.lens(pocket, prompts, base).logit_diff for base in ("clean", "corrupted"))
    assert emergence["clean"] == pytest.approx(clean.mean(1))
    assert emergence["corrupted"] == pytest.approx(corrupted.mean(1))
    for layers, table in ((emergence["answer_leads_from"], clean), (emergence["foil_leads_from"], -corrupted)):
        for layer, column in zip(layers, table.T, strict=True):
            holds = [k for k in range(len(column)) if (column[k:] > 0).all()]
            assert layer == (holds[0] if holds else None)


# --- patching ------------------------------------------------------------------------------------------------------


class Answering(Study):
    """A study whose variants have these logit differences and probabilities of the answer, by the variant's name."""

    def __init__(self, table: dict[str, tuple[list[float], list[float]]], dtype: torch.dtype = torch.float32) -> None:
        object.__setattr__(self, "table", table)  # frozen
        object.__setattr__(self, "model", SimpleNamespace(dtype=dtype))

    def run(self, sweep: Sweep, prompts: Any = None, in_logits: bool = False) -> Any:
        values = [self.table[variant.name] for variant in sweep.variants]
        effects, probabilities = (np.array(part) for part in zip(*values, strict=True))
        return SimpleNamespace(logit_diff=effects, answer_probability=probabilities)


def test_the_published_toy_numbers(pocket) -> None:
    """O61: P clean .9, corrupted .1, patched .5 give impact .4 and half of the difference; shares are ratios of sums."""
    table = {
        "clean": ([4.0, 1.0], [0.9, 0.9]),
        "corrupted": ([-4.0, -1.0], [0.1, 0.1]),
        "restore L0H0": ([0.0, 1.0], [0.5, 0.9]),
        "break L0H0": ([2.0, 1.0], [0.7, 0.9]),
    }
    prompts = replace(pocket.discovery.select(range(2)), clusters=("a", "b"))
    found = difference.patch(Answering(table), prompts, [("L0H0", Node("head", 0, 0), None)])
    assert found.names == ("L0H0",) and found.clusters == ("a", "b")
    assert found.impact[0] == pytest.approx([0.4, 0.8])
    assert found.gap == pytest.approx([8, 2])
    assert (found.restored / found.gap)[0] == pytest.approx([0.5, 1.0])
    assert (found.broken / found.gap)[0] == pytest.approx([0.25, 0.0])
    assert found.share(found.restored) == pytest.approx([(4 + 2) / 10])
    assert found.share(found.broken) == pytest.approx([2 / 10])


@pytest.mark.parametrize("family", FAMILIES)
def test_patching_nothing_gives_0_and_everything_1(family, study_of) -> None:
    study = study_of(family)
    found = difference.limits(study, study.discovery)
    print(family, found)
    assert found["nothing"] == pytest.approx(0, abs=1e-5)
    assert found["everything"] == pytest.approx(1, abs=1e-5)


def test_an_intervention_that_does_nothing_is_an_error(pocket, monkeypatch) -> None:
    monkeypatch.setattr(difference, "denoise", lambda nodes, name: Variant(name, base="corrupted"))
    with pytest.raises(RuntimeError, match="everything 0"):
        difference.limits(pocket, pocket.discovery)


def limits_of(study: Study, prompts: PromptSet) -> dict[str, float] | None:
    """None if they are not what they have to be."""
    try:
        return difference.limits(study, prompts)
    except RuntimeError:
        return None


@pytest.mark.parametrize(
    ("dtype", "exact"),
    [(torch.float64, 1e-8), (torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)],
    ids=str,
)
def test_the_limits_are_as_exact_as_the_numbers(dtype, exact, pocket) -> None:
    """Off by half of what rounding explains: as it should be. By twice as much, on either end: an error."""
    for off, fine in ((exact / 2, True), (2 * exact, False)):
        for nothing, everything in ((off, 0.0), (0.0, off), (-off, 0.0), (0.0, -off)):
            effects = {"clean": 3.0, "corrupted": -1.0, "nothing": -1 + 4 * nothing, "everything": 3 + 4 * everything}
            study = Answering({name: ([value], [0.5]) for name, value in effects.items()}, dtype)
            found = limits_of(study, pocket.discovery)
            assert (found is not None) is fine
            if found is not None:
                assert found["nothing"] == pytest.approx(nothing, abs=1e-12)
                assert found["everything"] == pytest.approx(1 + everything, abs=1e-12)


@pytest.mark.slow
def test_pocket_in_bfloat16_is_traced(pocket, traced) -> None:
    """Its shares within five hundredths of those in float32: some 8 bits, over a mean gap of many nats."""
    study = studies.prepare(models.load({**POCKET, "dtype": "bfloat16"}), tasks.get("ioi"), SIZES, seed=0)
    found = difference.trace(study, study.discovery)
    assert found["prompts"] == traced["prompts"]
    assert found["gap"] == pytest.approx(traced["gap"], rel=0.02)
    assert found["heads"]["restored"] == pytest.approx(traced["heads"]["restored"], abs=0.05)
    assert max(found["heads"]["restored"]) > 0.1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_are_patched_as_hooks_on_the_plain_model_do(family, study_of, bare_of) -> None:
    study, bare = study_of(family), bare_of(family)
    prompts = study.discovery.select(range(3))
    last = study.model.n_layers - 1
    names = ("L0H1", "L1H0", f"L{last}H2")
    found = difference.patch(study, prompts, [(name, parse_head(name), None) for name in names])
    for place in range(len(prompts)):
        twin = Twin(bare, OUTPUTS[family], prompts, place)
        gap = twin.logit_diff("clean") - twin.logit_diff("corrupted")
        assert found.gap[place] == pytest.approx(gap, abs=FLOAT32 * abs(gap))
        for number, name in enumerate(names):
            restored = twin.logit_diff("corrupted", name, "clean") - twin.logit_diff("corrupted")
            broken = twin.logit_diff("clean") - twin.logit_diff("clean", name, "corrupted")
            impact = twin.probability("corrupted", name, "clean") - twin.probability("corrupted")
            assert found.restored[number, place] == pytest.approx(restored, abs=FLOAT32 * abs(gap))
            assert found.broken[number, place] == pytest.approx(broken, abs=FLOAT32 * abs(gap))
            assert found.impact[number, place] == pytest.approx(impact, abs=1e-5)


@pytest.mark.slow
def test_the_confirmation_half_is_patched_as_the_discovery_half(pocket) -> None:
    """Measurement 02, from which named heads are confirmed, in the same units and order of heads."""
    heads = [(str(node), node, None) for node in pocket.model.heads]
    found, measured = difference.patch(pocket, pocket.prompts, heads), activation_patching.patch_heads(pocket)
    gap = np.abs(found.gap).mean()
    assert np.transpose(found.restored) == pytest.approx(
        measured.denoised - measured.corrupted[:, None], abs=1e-5 * gap
    )
    assert np.transpose(found.broken) == pytest.approx(measured.clean[:, None] - measured.noised, abs=1e-5 * gap)
    assert found.gap == pytest.approx(measured.clean - measured.corrupted, rel=1e-5)


class Twin:
    """One prompt pair on a plain model; a head's output in one run is put into the other where the layer projects it."""

    def __init__(self, model: Any, output: str, prompts: PromptSet, place: int) -> None:
        self.model, self.output = model, output
        self.tokens = {base: row(prompts, base, place) for base in ("clean", "corrupted")}
        self.answer, self.foil = int(prompts.answers[place, 0]), int(prompts.wrong[place, 0])

    def logits(self, base: str, head: str | None = None, source: str = "clean") -> Tensor:
        if head is None:
            return self.model(self.tokens[base]).logits[0, -1]
        node = parse_head(head)
        module = self.model.get_submodule(self.output.format(node.layer))
        size = self.model.config.hidden_size // self.model.config.num_attention_heads
        own = slice(node.index * size, (node.index + 1) * size)
        kept: list[Tensor] = []
        handle = module.register_forward_pre_hook(lambda module, given: kept.append(given[0].clone()))
        self.model(self.tokens[source])
        handle.remove()

        def put(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            changed = given[0].clone()
            changed[..., own] = kept[0][..., own]
            return (changed, *given[1:])

        handle = module.register_forward_pre_hook(put)
        try:
            return self.model(self.tokens[base]).logits[0, -1]
        finally:
            handle.remove()

    def logit_diff(self, *run: str) -> float:
        logits = self.logits(*run)
        return float(logits[self.answer] - logits[self.foil])

    def probability(self, *run: str) -> float:
        return float(self.logits(*run).softmax(0)[self.answer])


# --- the whole trace -----------------------------------------------------------------------------------------------


def test_the_trace_of_ioi_adds_up(pocket, traced) -> None:
    prompts = pocket.discovery
    assert traced["prompts"] == len(prompts) and traced["skipped"] == 0
    assert traced["limits"]["everything"] == pytest.approx(1, abs=1e-5)
    heads = traced["heads"]
    assert list(heads["names"]) == [str(node) for node in pocket.model.heads]
    by_prompt = heads["by_prompt"]
    assert heads["restored"] == pytest.approx(by_prompt["restored"].sum(1) / by_prompt["gap"].sum())
    assert traced["gap"] == pytest.approx(by_prompt["gap"].mean())
    restored = traced["sites"]["restored"]
    assert all(restored[kind].shape == (pocket.model.n_layers, len(traced["roles"])) for kind in difference.SITES)
    end = traced["roles"].index("end")  # where both prompts have the same token: nothing to restore before layer 0
    assert restored["residual"][0, end] == pytest.approx(0, abs=1e-5)


def with_equal_runs(prompts: PromptSet, count: int) -> PromptSet:
    """The first `count` corrupted prompts are the clean ones, so that their runs do not differ."""
    corrupted = prompts.corrupted.clone()
    corrupted[:count] = prompts.clean[:count]
    ids = tuple(f"equal {place}" if place < count else name for place, name in enumerate(prompts.ids))
    return replace(prompts, corrupted=corrupted, ids=ids)


@pytest.mark.slow
def test_prompts_whose_runs_hardly_differ_are_left_out_and_counted(pocket, traced) -> None:
    found = difference.trace(pocket, with_equal_runs(pocket.discovery, 3))
    assert found["skipped"] == 3 and found["prompts"] == len(pocket.discovery) - 3
    others = traced["heads"]["by_prompt"]["restored"][:, 3:]
    assert found["heads"]["by_prompt"]["restored"] == pytest.approx(others, abs=1e-4)
    assert found["clusters"] == len(set(pocket.discovery.clusters[3:]))


def test_a_gap_just_below_the_limit_is_left_out(pocket) -> None:
    prompts = pocket.discovery.select(range(4))
    study = Answering({"clean": ([1.0, 0.5, -1.0, 2.0], [0.5] * 4), "corrupted": ([0.9001, 0.6, 0.0, 1.0], [0.5] * 4)})
    kept, skipped = difference._apart(study, prompts)
    assert (kept.ids, skipped) == (tuple(prompts.ids[place] for place in (2, 3)), 2)


def test_no_prompt_with_a_difference_is_refused_in_one_sentence(pocket) -> None:
    prompts = pocket.discovery
    with pytest.raises(UserError) as error:
        difference.trace(pocket, with_equal_runs(prompts, len(prompts)))
    sentence = str(error.value)
    assert sentence.startswith(f"none of {len(prompts)} prompts has its clean and corrupted run 0.1 apart")
    assert "\n" not in sentence and ". " not in sentence
