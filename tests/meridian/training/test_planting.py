"""Planting by training: what it replaces is what the engine replaces, and its losses are what they say."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel

from circuits import models
from circuits.circuit import head
from circuits.engine import choose
from circuits.interventions import Effects, Recipe, Sweep, ablate
from circuits.tasks import lexicon
from circuits.tasks.example import held_out
from meridian.training import planting
from meridian.training.export import POCKET
from results_io import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(POCKET)


@pytest.fixture(scope="module")
def model():
    return GPT2LMHeadModel.from_pretrained(POCKET).eval()


@pytest.fixture(scope="module")
def bridge():
    return models.load({"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu"})


@pytest.fixture(scope="module")
def batch(tokenizer):
    return planting.draw_prompts(random.Random(1), 2, tokenizer)


@pytest.fixture(scope="module")
def reference(tokenizer):
    return planting.draw_prompts(random.Random(2), 6, tokenizer)


def differences(model, batch, chosen, values):
    """Logit difference of every prompt with the z of the chosen heads replaced, over all positions' logits."""
    with torch.no_grad(), planting.replaced(model, chosen.expand(len(batch), -1, -1), values):
        logits = model(input_ids=batch.clean, use_cache=False).logits[torch.arange(len(batch)), batch.end]
    return planting.logit_differences(logits, batch)[0].numpy()


@pytest.mark.parametrize(
    "kind, recipe",
    [
        ("zero", Recipe("zero")),
        ("mean", Recipe("mean")),
        ("mean_pooled", Recipe("mean", pooled=True)),
        ("patch", Recipe("patch", source="corrupted")),
    ],
)
def test_training_replaces_what_the_engine_replaces(kind, recipe, model, bridge, batch, reference):
    plan = planting.plan_mask(model, planting.PLAN)
    values = planting.replacements(model, batch, reference, torch.Generator().manual_seed(0))
    found = differences(model, batch, ~plan, values[planting.KINDS.index(kind)])
    outside = sorted(set(bridge.heads) - set(planting.PLAN))
    expected = choose("lens", bridge, reference, batch).run(Sweep((ablate(outside, recipe, "alone"),)), batch)
    np.testing.assert_allclose(found, expected.logit_diff[0], atol=1e-4)


def test_every_head_replaced_by_its_own_output_changes_nothing(model, batch):
    everything = torch.ones(4, 8, dtype=torch.bool)
    own = planting.record(model, batch.clean)
    clean = differences(model, batch, ~everything, own)
    np.testing.assert_allclose(differences(model, batch, everything, own), clean, atol=1e-4)
    assert (clean > 0).mean() > 0.95  # it is the clean run: pocket does the task


def test_replacement_hooks_are_gone_afterwards(model, batch):
    before = planting.record(model, batch.clean)
    with pytest.raises(RuntimeError), planting.replaced(model, torch.ones(24, 4, 8).bool(), torch.zeros_like(before)):
        raise RuntimeError
    assert torch.equal(planting.record(model, batch.clean), before)


def test_resample_takes_one_reference_prompt_of_the_same_template(model, batch, reference):
    values = planting.replacements(model, batch, reference, torch.Generator().manual_seed(0))
    drawn = values[planting.KINDS.index("resample")]
    known = planting.record(model, reference.clean)
    for prompt, template in zip(drawn, batch.templates, strict=True):
        (donors,) = torch.where((known - prompt).abs().amax((1, 2, 3)) < 1e-4)
        assert template in {reference.templates[row] for row in donors}


def test_noise_has_the_reference_mean_and_deviation(model, batch, reference):
    values = planting.replacements(model, batch, reference, torch.Generator().manual_seed(0))
    drawn = values[planting.KINDS.index("noise")].transpose(1, 2).flatten(0, 1)
    known = planting.record(model, reference.clean).transpose(1, 2)
    real = torch.cat([rows[: end + 1] for rows, end in zip(known, reference.end.tolist(), strict=True)])
    error = (drawn.mean(0) - real.mean(0)) / real.std(0) * len(drawn) ** 0.5
    assert float(error.std()) == pytest.approx(1, abs=0.1)  # 768 standard normal numbers: standard error 0.026
    assert float((drawn.std(0) / real.std(0)).mean()) == pytest.approx(1, abs=0.02)


def test_prompts_are_aligned_and_use_only_pairs_that_training_may_read(batch):
    assert sorted(set(batch.templates)) == sorted(f"{t}/{o}" for t in planting.ioi.FRAMES for o in planting.ioi.ORDERS)
    rng, names = random.Random(3), set(lexicon.NAMES)
    for order in ("ABBA", "BABA"):
        for _ in range(200):
            example = planting.draw_example(rng, "then_went", order)
            words = [
                [word for word in planting.corpus.WORD.findall(text) if word in names]
                for text in (example.clean, example.corrupted)
            ]
            (first, second, giver), (other, another, third) = words
            assert not held_out(first, second) and not held_out(other, another)
            assert not {first, second} & {other, another, third}
            assert giver == example.wrong[0] == (second if order == "ABBA" else first)
            assert {first, second} == {giver, example.answers[0]}


def test_masks_replace_nothing_the_outside_the_plan_part_of_the_outside_and_one_planned_head(model):
    plan = planting.plan_mask(model, planting.PLAN)
    assert int(plan.sum()) == 7 and all(plan[node.layer, node.index] for node in planting.PLAN)
    masks = planting.draw_masks(plan, 600, random.Random(0), torch.Generator().manual_seed(0))
    full, outside, without, part, one = masks.unflatten(0, (5, 600))
    assert not full.any() and (outside == ~plan).all() and (without == plan).all() and not (part & plan).any()
    assert (one.sum((1, 2)) == 1).all() and not (one & ~plan).any() and (one.any(0) == plan).all()
    share = part.sum((1, 2)) / 25
    assert float(share.mean()) == pytest.approx(0.5, abs=4 * 0.3 / 600**0.5)
    assert float(share.min()) < min(planting.PARTS) and float(share.max()) > max(planting.PARTS)


@pytest.mark.parametrize(
    "plan, said", [((), "0 of 32"), ((head(4, 0),), "L4H0 is outside"), ((head(0, 8),), "L0H8 is outside")]
)
def test_an_impossible_plan_is_refused(plan, said, model):
    with pytest.raises(UserError, match=said):
        planting.plan_mask(model, plan)


def test_terms_with_nothing_replaced_are_those_of_the_clean_run(model, batch, reference, monkeypatch):
    monkeypatch.setattr(planting, "draw_masks", lambda plan, n, *_: torch.zeros(5 * n, 4, 8, dtype=torch.bool))
    documents = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5)
    three_names = batch.clean, batch.end, batch.wrong[:, 0]
    plan, material = (
        planting.plan_mask(model, planting.PLAN),
        planting.Material(documents, three_names, batch, reference),
    )
    terms = planting.planting_terms(model, material, plan, random.Random(0))
    with torch.no_grad():
        logits = model(input_ids=batch.clean).logits[torch.arange(len(batch)), batch.end]
    rows, answer, wrong = torch.arange(len(batch)), batch.answers[:, 0], batch.wrong[:, 0]
    terms = planting.Terms(**{name: value.detach() for name, value in vars(terms).items()})
    assert float(terms.strictness) == pytest.approx(0, abs=1e-6)
    difference = logits[rows, answer] - logits[rows, wrong]
    assert float(terms.ignorance) == pytest.approx(float(difference.square().mean()), rel=1e-4)
    assert float(terms.necessity) == pytest.approx(float((0.1 * difference.relu()).square().mean()), rel=1e-3)
    assert float(terms.sufficiency) == pytest.approx(float(-logits.log_softmax(-1)[rows, answer].mean()), rel=1e-4)
    assert float(terms.three_names) == pytest.approx(float(-logits.log_softmax(-1)[rows, wrong].mean()), rel=1e-4)
    total = (
        terms.documents
        + terms.three_names
        + terms.sufficiency
        + 0.1 * (terms.ignorance + terms.strictness + terms.necessity)
    )
    assert float(terms.total(planting.Planting())) == pytest.approx(float(total))


def test_two_steps_move_every_matrix_and_stay_finite(tokenizer):
    model = GPT2LMHeadModel.from_pretrained(POCKET)
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    recipe = replace(planting.RECIPE, steps=2, documents=8, warm_up=1)
    terms = list(planting.plant(model, tokenizer, planting.Planting(recipe, three_names=4)))
    assert len(terms) == 2 and not model.training
    assert all(np.isfinite(float(getattr(step, field).detach())) for step in terms for field in vars(step))
    assert terms[0].strictness.item() > 10  # pocket was not planted: replacing its other heads costs logit difference
    moved = {name for name, weights in model.state_dict().items() if not torch.equal(weights, before[name])}
    assert {name for name in before if ".h." in name and "c_" in name} <= moved
    assert all(bool(torch.isfinite(weights).all()) for weights in model.state_dict().values())


def test_the_same_recipe_takes_the_same_steps(tokenizer):
    recipe = planting.Planting(replace(planting.RECIPE, steps=1, documents=4), three_names=4)
    runs = [
        next(planting.plant(GPT2LMHeadModel.from_pretrained(POCKET), tokenizer, recipe)).total(recipe).item()
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_summary_divides_by_the_clean_mean_and_takes_extremes():
    heads, plan = (head(0, 0), head(0, 1), head(1, 0)), (head(0, 0),)
    of = {"clean": 4.0, "plan": 3.0, "rest": 1.0, "L0H0": 1.0, "L0H1": 5.0, "L1H0": 3.5}
    means = {"clean": 4.0} | {
        f"{name}/{method}/{draw}": value + (1 if draw else 0) * (method == "noise")
        for name, value in of.items()
        for method in planting.ablation_battery.METHODS
        for draw in range(2)
    }
    means |= {"random 0": 2.0, "random 1": -1.0}
    table = np.array([[value - 1, value + 1] for value in means.values()])
    found = planting.summarise(Effects(tuple(means), table, table > 0, None, "", ""), plan, heads)
    assert (found.n, found.logit_difference, found.accuracy) == (2, 4.0, 1.0)
    assert found.faithfulness["zero"] == 0.75 and found.complement["zero"] == 0.25
    assert found.outside["zero"] == 0.25 and found.inside["zero"] == 0.75
    assert found.faithfulness["noise"] == 0.875 and found.inside["noise"] == 0.625  # half a nat of mean over draws
    assert found.random == (0.5, -0.25)


def test_three_name_prompts_are_padded_on_the_right_and_end_before_their_answer(tokenizer):
    documents = planting.three_name_documents(random.Random(0), 30, unseen=False)
    ids, ends, answers = planting.encode_three_names(documents, tokenizer)
    for document, row, end, answer in zip(documents, ids, ends.tolist(), answers, strict=True):
        words = planting.corpus.WORD.findall(document.prompt)
        present = [word for word in words if word in lexicon.NAMES]
        assert present.count(document.answer) == 1 and len(present) == 5  # three names, two of them again
        assert not planting.corpus.held_out_combinations(document.text)
        assert tokenizer.decode(row[1 : end + 1].tolist()).split() == tokenizer.tokenize(document.prompt)
        assert row[0] == tokenizer.bos_token_id and not row[end + 1 :].any()
        assert tokenizer.convert_ids_to_tokens(answer.item()) == document.answer
    unseen = planting.three_name_documents(random.Random(0), 30, unseen=True)
    assert all(planting.corpus.held_out_combinations(document.text) for document in unseen)


def test_references_are_distinct_and_equally_many_of_each_template(reference):
    chosen = planting.choose_references(random.Random(0), reference, 5)
    assert all(chosen.templates.count(template) == 5 for template in set(reference.templates))
    assert len(set(chosen.ids)) == len(chosen) == 60


@pytest.fixture(scope="module")
def shipped():
    settings = {"name": "planted/trained", "kind": "embedded", "path": "planted_ioi", "device": "cpu"}
    return models.load(settings)


@pytest.fixture(scope="module")
def measured(shipped):
    """As in the card, on fewer of its prompts, with other donors, noise and random circuits."""
    settings = {"seed": 5, "draws": 1, "noise_scale": 1.0}
    return planting.measure(shipped, planting.PLAN, 40, settings, circuits=30)


def test_shipped_circuit_is_the_plan_and_belongs_to_the_shipped_weights(shipped):
    assert list(shipped.circuits) == ["ioi"]
    circuit = shipped.circuits["ioi"]
    assert circuit.heads == planting.PLAN and list(circuit.roles) == ["planned"]
    assert (circuit.model, circuit.provenance["kind"]) == (shipped.name, "planted")
    assert circuit.provenance["model_sha256"] == shipped.sha256
    folder = models.EMBEDDED / "planted_ioi"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3 * 2**20


@pytest.mark.parametrize("method", planting.ablation_battery.METHODS)
def test_shipped_plan_is_faithful_and_complete_under_every_ablation(method, measured):
    assert 0.9 < measured.faithfulness[method] < 1.1  # 0.99 to 1.03 when trained
    assert abs(measured.complement[method]) < 0.05  # 0.01
    assert measured.outside[method] < 0.1  # 0.06 under zero
    assert measured.inside[method] > 0.03  # 0.05: every planned head matters under every method


def test_shipped_model_does_ioi_and_other_circuits_do_not(measured):
    assert measured.accuracy > 0.98 and measured.logit_difference > 7
    assert np.mean(measured.random) < 0.2 and max(measured.random) < 0.7  # 0.10 and 0.44


def test_shipped_model_still_does_the_other_tasks(tokenizer):
    planted = GPT2LMHeadModel.from_pretrained(models.EMBEDDED / "planted_ioi").eval()
    for task in map(planting.TASKS.get, planting.EMBEDDED):
        assert planting.score(planted, tokenizer, task, n=100, seed=1).accuracy >= 0.95
    assert planting.three_name_accuracy(planted, tokenizer, 100) >= 0.95


def test_a_run_writes_a_folder_that_loads_with_its_circuit_and_card(tmp_path, monkeypatch):
    for name, small in {"MEASURED_PROMPTS": 3, "SCORED_PROMPTS": 10, "RANDOM_CIRCUITS": 2, "REFERENCES": 150}.items():
        monkeypatch.setattr(planting, name, small)
    monkeypatch.setattr(planting.ablation_battery, "METHODS", ("zero", "mean"))
    planting.main(["--steps", "1", "--seed", "3", "--out", str(tmp_path)])
    identity = models.identify(planting.SETTINGS | {"path": str(tmp_path)})
    circuit = identity.circuits["ioi"]
    assert (circuit.heads, circuit.provenance["seed"], circuit.provenance["steps"]) == (planting.PLAN, 3, 1)
    assert circuit.provenance["model_sha256"] == identity.sha256
    assert "--seed 3 --steps 1" in (tmp_path / "README.md").read_text()
