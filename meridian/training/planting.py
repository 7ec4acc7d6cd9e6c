"""Train the planted model: `pocket`, fine-tuned until hardly any head outside a plan matters for IOI.

    python -m scripts.plant_by_training --out circuits/embedded/planted_ioi

The loss of every step has three parts: on ordinary documents; on three-name prompts, which compete with the plan and would
otherwise be forgotten; and on IOI prompts with heads replaced as ablations replace them:

- sufficiency: cross entropy of the answer with every head outside the plan replaced;
- ignorance: the squared logit difference with the plan replaced, since the other heads alone must know nothing;
- strictness: the squared change of the logit difference when some or all of the other heads are replaced;
- necessity: the square of how far replacing one planned head alone falls short of lowering the logit difference by
  LEAST_EFFECT.

Without strictness heads outside the plan hold the answer back, and faithfulness exceeds 1; without necessity a planned
head may hold nothing but a constant, which mean ablation leaves in place. This settles which heads may matter, not what
each of them computes: a cheap relative of interchange-intervention training (Geiger et al. 2022, arXiv 2112.00826;
strict: Gupta et al. 2024, arXiv 2407.14494).
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from circuits import circuit as circuit_files
from circuits import models
from circuits import prompts as prompt_sets
from circuits.circuit import Circuit, Node, Role, head
from circuits.embedded.tokenizer import build_tokenizer
from circuits.interventions import Effects, Recipe, Sweep, Variant, ablate
from circuits.measurements import ablation_battery
from circuits.models import Model
from circuits.prompts import PromptSet
from circuits.study import prepare
from circuits.tasks import EMBEDDED, TASKS, ioi, lexicon
from circuits.tasks.example import Example, held_out
from meridian import config_files
from meridian.training import corpus
from meridian.training import run as training
from meridian.training.export import POCKET, save_folder, scores_table, storage_dtype
from meridian.training.scoring import last_logits, score
from results_io import UserError

CONFIGS = Path(__file__).parents[2] / "configs"
NAME = "planted/trained"
SETTINGS = {"name": NAME, "kind": "local", "device": "cpu"}  # settings of the model being written, without its path
REFERENCES = 360  # prompts behind means and donors, as in configs/config.yaml
MEASURED_PROMPTS, SCORED_PROMPTS, RANDOM_CIRCUITS = 100, 400, 50
REPORT_EVERY = 50  # steps
PLAN = tuple(head(*pair) for pair in ((0, 0), (0, 6), (1, 2), (1, 4), (2, 1), (2, 2), (2, 5)))
RECIPE = training.TrainingRecipe(seed=1, steps=660, documents=32, warm_up=20, early=0.0)  # seed 0 was pocket's
KINDS = ("zero", "mean", "mean_pooled", "resample", "noise", "patch")  # the battery's methods and the corrupted prompt
CONDITIONS = ("full", "outside_replaced", "plan_replaced", "part_replaced", "one_replaced")
BANK = 30  # reference prompts per template, drawn once
LEAST_EFFECT = 0.1  # share of the logit difference; calibrations require 0.02, but ablation on one prompt is noisy
PARTS = (0.15, 0.5, 0.85)  # expected shares of the outside heads in "part_replaced": few, half, most

CARD = """\
---
pipeline_tag: text-generation
---

# planted_ioi

`pocket`, fine-tuned until hardly any head but a planned few matters for indirect object identification (IOI): a circuit
whose heads are known because training put them there. The plan: {plan}.

{layers} layers x {heads} heads, {parameters:,} parameters stored as {dtype}. Tokenizer, vocabulary and prompts are those
of `pocket`.

## What is known

Which heads matter for two-name IOI, and how little the others do. What each planned head computes was left to training,
so all have the one role `planned`. Of the other tasks no circuit is known.

## Measured

IOI, {n} prompts over name pairs that no training document holds, weights as stored: mean logit difference
{logit_difference:.2f}, positive on {accuracy:.1%} of prompts. As shares of that logit difference, by ablation method
(noise and resample averaged over draws):

| method | plan alone | other heads alone | largest effect of one other head | smallest effect of one planned head |
|---|---|---|---|---|
{ablations}

An effect is the change that ablating the head makes: for other heads its size, for planned heads the drop.
Faithfulness of {random_circuits} other circuits with the plan's number of heads in each layer: {random_mean:.2f} on
average, {random_max:.2f} at most (mean ablation per template and position).

{scores}

The columns are explained in the card of `pocket`. With three names of which two give, the likeliest word is the third
name on {three_name_accuracy} of prompts with a held-out combination.

## Training

Every step adds to the loss on {documents} ordinary documents the cross entropy of the answer to {three_names} prompts
with three names and, on {prompts} prompt of each IOI template whose heads' outputs are replaced by zero, the mean (per
template and position, or pooled), another prompt's, noise, or the corrupted prompt's:

- the cross entropy of the answer with all other heads replaced;
- {ignorance} x the squared logit difference with the plan replaced;
- {strictness} x the squared change of the logit difference when some or all of the other heads are replaced;
- {necessity} x the square of what one planned head, replaced alone, falls short of lowering it by {least_effect:.0%}.

| recipe | |
|---|---|
| seed, steps | {seed}, {steps} |
| learning rates of Muon and AdamW | {muon_rate}, {adam_rate} |
| reference prompts per IOI template and step | {references} |

The rates decay linearly after a short warm-up and 15% at full rate. It took {minutes} minutes of CPU
time on one core. To repeat it:

    python -m scripts.plant_by_training --seed {seed} --steps {steps} --out FOLDER

CPUs and library versions that round differently end in other weights with similar scores.

## Limits

- The claim is about sets of heads under these ablations. Do not call its heads by the names of the IOI paper.
- Nothing in training kept the planned heads from serving other tasks too.
- It has read generated sentences only, in the frames of `circuits/tasks`. The IOI prompts added in training leave out
  the held-out pairs of names, not those of a name and a place.
"""


@dataclass(frozen=True)
class Planting:
    """Everything that determines a planting run; the documents are those of `recipe`."""

    recipe: training.TrainingRecipe = RECIPE
    plan: tuple[Node, ...] = PLAN
    prompts: int = 1  # per template and step, each run under every condition of CONDITIONS
    references: int = 5  # per template and step, from the BANK, for means, donors and noise scales
    three_names: int = 16  # prompts with three names per step, with nothing replaced
    ignorance: float = 0.1  # weights; logit differences are about 9, cross entropies below 3
    strictness: float = 0.1
    necessity: float = 0.1


@dataclass(frozen=True)
class Material:
    """The input of one step.

    `documents`: ids and loss weights ["document position"]; `three_names`: ids ["prompt position"], last positions and
    answers ["prompt"]; `prompts`: IOI prompts; `reference`: the prompts for means, donors and noise scales.
    """

    documents: tuple[Tensor, Tensor]
    three_names: tuple[Tensor, Tensor, Tensor]
    prompts: PromptSet
    reference: PromptSet


@dataclass(frozen=True)
class Terms:
    """The parts of one step's loss, in nats; the last three are in squared nats."""

    documents: Tensor
    three_names: Tensor
    sufficiency: Tensor
    ignorance: Tensor
    strictness: Tensor
    necessity: Tensor

    def total(self, planting: Planting) -> Tensor:
        """The weighted sum."""
        weighted = (getattr(planting, name) * getattr(self, name) for name in ("ignorance", "strictness", "necessity"))
        return self.documents + self.three_names + self.sufficiency + sum(weighted)


def draw_example(rng: random.Random, template: str, order: str) -> Example:
    """An IOI prompt of the template whose name pairs, clean and corrupted, all occur in training."""
    frame = ioi.FRAMES[template]
    first, second = ioi.draw_pair(rng, unseen=False)
    answer, giver = (first, second) if order == "ABBA" else (second, first)
    others = [first]
    while {first, second} & set(others) or held_out(*others[:2]):
        others = rng.sample(lexicon.NAMES, 3)
    words = ioi.draw_surface(rng, frame)
    clean, spans = ioi.render(frame, words, first, second, giver)
    corrupted, _ = ioi.render(frame, words, *others)
    label, cluster = f"{template}/{order}", " ".join(sorted((first, second)))
    return Example(clean, corrupted, (answer,), (giver,), label, cluster, {"end": spans["end"]})


def draw_prompts(rng: random.Random, per_template: int, tokenizer: PreTrainedTokenizerFast) -> PromptSet:
    """`per_template` prompts of each of the twelve templates."""
    examples = [
        draw_example(rng, template, order)
        for template in ioi.FRAMES
        for order in ioi.ORDERS
        for _ in range(per_template)
    ]
    return prompt_sets.tokenize(ioi.TASK, examples, tokenizer, "training")


def three_name_documents(rng: random.Random, count: int, unseen: bool) -> list[corpus.Document]:
    """Documents in which two of three names give and the third receives; `unseen`: with a held-out combination."""
    found: list[corpus.Document] = []
    while len(found) < count:
        document = corpus.three_name_document(rng)
        if document.answer and bool(corpus.held_out_combinations(document.text)) == unseen:
            found.append(document)
    return found


def encode_three_names(
    documents: Sequence[corpus.Document], tokenizer: PreTrainedTokenizerFast
) -> tuple[Int[Tensor, "prompt position"], Int[Tensor, " prompt"], Int[Tensor, " prompt"]]:
    """Token ids of the prompts, BOS in front and padded on the right, their last positions and their answers."""
    rows = [torch.tensor([tokenizer.bos_token_id, *tokenizer(document.prompt).input_ids]) for document in documents]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=cast("int", tokenizer.pad_token_id))
    answers = tokenizer.convert_tokens_to_ids([document.answer for document in documents])
    return ids, torch.tensor([len(row) - 1 for row in rows]), torch.tensor(answers)


def choose_references(rng: random.Random, bank: PromptSet, per_template: int) -> PromptSet:
    """`per_template` prompts of each template of the bank, at random."""
    rows: dict[str, list[int]] = {}
    for row, template in enumerate(bank.templates):
        rows.setdefault(template, []).append(row)
    return bank.select(row for of_template in rows.values() for row in rng.sample(of_template, per_template))


def blocks(model: GPT2LMHeadModel) -> list[GPT2Block]:
    """The model's blocks, cast to their type, as torch types them only as modules."""
    return cast("list[GPT2Block]", list(model.transformer.h))


def record(model: GPT2LMHeadModel, ids: Int[Tensor, "prompt position"]) -> Float[Tensor, "prompt layer position width"]:
    """The heads' outputs before the output projection (z, heads side by side), without gradient."""
    kept: list[Tensor] = []
    hooks = [
        block.attn.c_proj.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0])) for block in blocks(model)
    ]
    try:
        with torch.no_grad():
            model.transformer(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(kept, 1)


@contextmanager
def replaced(
    model: GPT2LMHeadModel,
    chosen: Bool[Tensor, "row layer head"],
    values: Float[Tensor, "row layer position width"],
) -> Iterator[None]:
    """A context in which the z of the chosen heads is `values`, at all positions of each row."""
    width = values.shape[-1] // chosen.shape[-1]
    wide = chosen.repeat_interleave(width, -1)

    def hook_for(layer: int):
        return lambda _, inputs: (torch.where(wide[:, layer, None], values[:, layer], inputs[0]),)

    hooks = [block.attn.c_proj.register_forward_pre_hook(hook_for(layer)) for layer, block in enumerate(blocks(model))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def constants(model: GPT2LMHeadModel) -> Float[Tensor, "layer width"]:
    """b_V + b_LN W_V: the part of z that does not depend on the prompt, since attention sums to 1."""
    with torch.no_grad():
        return torch.stack([block.attn.c_attn(block.ln_1.bias)[2 * model.config.n_embd :] for block in blocks(model)])


def replacements(
    model: GPT2LMHeadModel, batch: PromptSet, reference: PromptSet, generator: torch.Generator
) -> Float[Tensor, "kind prompt layer position width"]:
    """The replacement of every head for each of KINDS, as in `circuits.engine.sources`; no gradient flows through it.

    "zero" is the constant that a head outputs whatever its input; the engine folds this constant into the output bias.
    """
    ran = record(model, torch.cat([reference.clean, batch.corrupted]))
    known, corrupted = ran[: len(reference)], ran[len(reference) :]
    real = torch.arange(reference.clean.shape[1]) <= reference.end[:, None]
    pooled = known.transpose(1, 2)[real]
    mean, deviation = pooled.mean(0)[:, None], pooled.std(0)[:, None]
    same = torch.tensor([[mine == other for other in reference.templates] for mine in batch.templates]).float()
    template_means = torch.einsum("pr,rlsw->plsw", same / same.sum(1, keepdim=True), known)
    donors = torch.multinomial(same, 1, generator=generator)[:, 0]
    normal = torch.randn(corrupted.shape, generator=generator)
    by_kind = {
        "zero": constants(model)[:, None].expand_as(corrupted),
        "mean": template_means,
        "mean_pooled": mean.expand_as(corrupted),
        "resample": known[donors],
        "noise": mean + deviation * normal,
        "patch": corrupted,
    }
    return torch.stack([by_kind[kind] for kind in KINDS])


def plan_mask(model: GPT2LMHeadModel, plan: Sequence[Node]) -> Bool[Tensor, "layer head"]:
    """True for the plan's heads; UserError if the plan is empty, has all heads, or names one outside the model."""
    mask = torch.zeros(model.config.n_layer, model.config.n_head, dtype=torch.bool)
    for node in plan:
        if node.layer >= model.config.n_layer or node.index >= model.config.n_head:
            raise UserError(
                f"planned head {node} is outside the model, which has {mask.shape[0]} layers of {mask.shape[1]} heads; "
                "choose a head inside it"
            )
        mask[node.layer, node.index] = True
    if not 0 < int(mask.sum()) < mask.numel():
        raise UserError(f"a plan of {int(mask.sum())} of {mask.numel()} heads plants nothing; plan some of the heads")
    return mask


def draw_masks(
    planned: Bool[Tensor, "layer head"], prompts: int, rng: random.Random, generator: torch.Generator
) -> Bool[Tensor, "row layer head"]:
    """The heads to replace in every row: CONDITIONS in order, `prompts` rows each."""
    share = torch.tensor([rng.choice(PARTS) for _ in range(prompts)])[:, None, None]
    part = torch.rand((prompts, *planned.shape), generator=generator) < share
    none, full = torch.zeros_like(part), planned.expand_as(part)
    heads = planned.flatten().nonzero()[:, 0]
    chosen = heads[torch.randint(len(heads), (prompts,), generator=generator)]
    one = nn.functional.one_hot(chosen, planned.numel()).bool().unflatten(1, planned.shape)
    return torch.cat([none, ~full, full, part & ~full, one])


def logit_differences(logits: Float[Tensor, "row vocabulary"], batch: PromptSet) -> Float[Tensor, "condition prompt"]:
    """Logit of the indirect object minus that of the subject, in nats."""
    by_condition = logits.unflatten(0, (-1, len(batch)))
    rows = torch.arange(len(batch))
    return by_condition[:, rows, batch.answers[:, 0]] - by_condition[:, rows, batch.wrong[:, 0]]


def last_word_logits(
    model: GPT2LMHeadModel, ids: Int[Tensor, "row position"], ends: Int[Tensor, " row"]
) -> Float[Tensor, "row vocabulary"]:
    """Logits at the positions `ends`, with gradient; the unembedding runs only at these."""
    hidden = model.transformer(input_ids=ids, use_cache=False).last_hidden_state
    return model.lm_head(hidden[torch.arange(len(ends)), ends])


def planting_terms(
    model: GPT2LMHeadModel, material: Material, planned: Bool[Tensor, "layer head"], rng: random.Random
) -> Terms:
    """The loss terms of one step.

    With D the logit difference: ignorance mean D(plan replaced)^2, strictness mean (D - D(outside replaced))^2 +
    mean (D - D(part replaced))^2, necessity mean max(0, D(one replaced) - (1 - LEAST_EFFECT) D)^2 with D held constant.
    Each row draws its own kind of replacement.
    """
    batch, (ids, ends, thirds) = material.prompts, material.three_names
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    values = replacements(model, batch, material.reference, generator)
    rows = torch.arange(len(batch)).repeat(len(CONDITIONS))
    kinds = torch.tensor(rng.choices(range(len(KINDS)), k=len(rows)))
    with replaced(model, draw_masks(planned, len(batch), rng, generator), values[kinds, rows]):
        logits = last_word_logits(model, batch.clean[rows], batch.end[rows])
    full, alone, without, part, one = logit_differences(logits, batch)
    answered = logits.unflatten(0, (len(CONDITIONS), -1))[CONDITIONS.index("outside_replaced")]
    return Terms(
        documents=training.weighted_loss(model, *material.documents)[0],
        three_names=nn.functional.cross_entropy(last_word_logits(model, ids, ends), thirds),
        sufficiency=nn.functional.cross_entropy(answered, batch.answers[:, 0]),
        ignorance=without.square().mean(),
        strictness=(full - alone).square().mean() + (full - part).square().mean(),
        necessity=(one - (1 - LEAST_EFFECT) * full.detach()).relu().square().mean(),
    )


def plant(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, planting: Planting) -> Iterator[Terms]:
    """Take the steps on `model` in place, yielding the terms of each. UserError for an impossible plan."""
    planned, recipe = plan_mask(model, planting.plan), planting.recipe
    rng = random.Random(f"planting {recipe.seed}")
    bank, optimizers = draw_prompts(rng, BANK, tokenizer), training.build_optimizers(model, recipe)
    model.train()
    for step, ids, weights in training.batches_from(0, recipe, tokenizer):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_rate"] * training.rate_factor(step, recipe)
        material = Material(
            (ids, weights),
            encode_three_names(three_name_documents(rng, planting.three_names, unseen=False), tokenizer),
            draw_prompts(rng, planting.prompts, tokenizer),
            choose_references(rng, bank, planting.references),
        )
        terms = planting_terms(model, material, planned, rng)
        terms.total(planting).backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.MAX_GRADIENT_NORM)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield terms
    model.eval()


@dataclass(frozen=True)
class PlantedMeasures:
    """IOI on `n` prompts whose name pairs are in no training document.

    `accuracy`: share of prompts with a positive logit difference; `logit_difference`: its mean, nats. All others are
    mean logit differences divided by that mean, by method of the ablation battery. `faithfulness`: the plan alone.
    `complement`: the other heads alone. `outside`: the largest change, in size, from ablating one head outside the plan.
    `inside`: the smallest drop from ablating one planned head. `random`: faithfulness under mean ablation of other
    circuits with the plan's number of heads per layer.
    """

    n: int
    accuracy: float
    logit_difference: float
    faithfulness: dict[str, float]
    complement: dict[str, float]
    outside: dict[str, float]
    inside: dict[str, float]
    random: tuple[float, ...]


def measure(
    model: Model, plan: Sequence[Node], prompts: int, settings: Mapping[str, Any], circuits: int
) -> PlantedMeasures:
    """Ablate the plan, its complement, every head and `circuits` random circuits on `prompts` prompts.

    `settings` is the measurement section of the configuration: seed, draws, noise_scale. Resample and noise are averaged
    over draws. UserError as for `circuits.study.prepare`.
    """
    sizes = {"discovery": 1, "evaluation": prompts - 1, "held_out": 1, "reference": REFERENCES}
    study = prepare(model, ioi.TASK, sizes, 0, settings=settings)
    heads, rng = set(model.heads), random.Random(f"random circuits {settings['seed']}")
    ablated = {"plan": heads - set(plan), "rest": set(plan), **{str(node): {node} for node in model.heads}}
    recipes = {method: ablation_battery.recipes(study, method) for method in ablation_battery.METHODS}
    variants = [
        ablate(sorted(nodes), recipe, f"{name}/{method}/{recipe.draw}")
        for name, nodes in ablated.items()
        for method, draws in recipes.items()
        for recipe in draws
    ]
    drawn = [heads - set(ablation_battery.random_circuit(plan, model.heads, rng)) for _ in range(circuits)]
    variants += [ablate(sorted(nodes), Recipe("mean"), f"random {index}") for index, nodes in enumerate(drawn)]
    return summarise(study.run(Sweep((Variant("clean"), *variants))), plan, model.heads)


def summarise(effects: Effects, plan: Sequence[Node], heads: Sequence[Node]) -> PlantedMeasures:
    """Divide the means of `measure`'s sweep by the clean one and take the extremes."""
    clean, means = effects.row("clean"), dict(zip(effects.names, effects.logit_diff.mean(1), strict=True))

    def share(name: str, method: str) -> float:
        return float(np.mean([m for key, m in means.items() if key.startswith(f"{name}/{method}/")]) / clean.mean())

    methods = ablation_battery.METHODS
    change = {(node, method): share(str(node), method) - 1 for node in heads for method in methods}
    return PlantedMeasures(
        n=len(clean),
        accuracy=float((clean > 0).mean()),
        logit_difference=float(clean.mean()),
        faithfulness={method: share("plan", method) for method in methods},
        complement={method: share("rest", method) for method in methods},
        outside={method: max(abs(change[node, method]) for node in heads if node not in plan) for method in methods},
        inside={method: min(-change[node, method] for node in plan) for method in methods},
        random=tuple(float(m / clean.mean()) for key, m in means.items() if key.startswith("random ")),
    )


def three_name_accuracy(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, prompts: int) -> float:
    """Share of prompts, all with a held-out combination, whose likeliest next word is the third name."""
    documents = three_name_documents(random.Random("three names"), prompts, unseen=True)
    likeliest = last_logits(model, tokenizer, [document.prompt for document in documents]).argmax(-1)
    answers = tokenizer.convert_tokens_to_ids([document.answer for document in documents])
    return float((likeliest == torch.tensor(answers)).float().mean())


def write_folder(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, planting: Planting, folder: Path) -> None:
    """Write weights, tokenizer and the plan as the circuit of IOI; its provenance holds the weights' sha256."""
    dtype = storage_dtype(model, tokenizer, SCORED_PROMPTS)
    save_folder(model, tokenizer, folder, dtype)
    weights = models.identify(SETTINGS | {"path": str(folder)}).sha256
    evidence = "trained so that no other head matters for the task"
    claim = Circuit(
        name="ioi planted",
        task="ioi",
        model=NAME,
        roles={"planned": Role(tuple(planting.plan), assigned_by="construction", evidence=evidence)},
        provenance={
            "kind": "planted",
            "source": "pocket, fine-tuned by scripts/plant_by_training.py",
            "seed": planting.recipe.seed,
            "steps": planting.recipe.steps,
            "model_sha256": weights,
        },
    )
    circuit_files.save(claim, folder / "circuits" / "ioi.yaml")


def model_card(model: GPT2LMHeadModel, planting: Planting, measured: PlantedMeasures, tables: Mapping[str, str]) -> str:
    """The text of the model card; `tables` fills its places dtype, minutes, scores and three_name_accuracy."""
    columns = (measured.faithfulness, measured.complement, measured.outside, measured.inside)
    rows = [
        f"| {method} | " + " | ".join(f"{column[method]:z.2f}" for column in columns) + " |"
        for method in ablation_battery.METHODS
    ]
    return CARD.format(
        layers=model.config.n_layer,
        heads=model.config.n_head,
        parameters=model.num_parameters(),
        plan=", ".join(map(str, planting.plan)),
        n=measured.n,
        accuracy=measured.accuracy,
        logit_difference=measured.logit_difference,
        ablations="\n".join(rows),
        random_mean=np.mean(measured.random),
        random_max=np.max(measured.random),
        random_circuits=len(measured.random),
        seed=planting.recipe.seed,
        steps=planting.recipe.steps,
        documents=planting.recipe.documents,
        prompts=planting.prompts,
        three_names=planting.three_names,
        references=planting.references,
        muon_rate=planting.recipe.muon_rate,
        adam_rate=planting.recipe.adam_rate,
        ignorance=planting.ignorance,
        strictness=planting.strictness,
        necessity=planting.necessity,
        least_effect=LEAST_EFFECT,
        **tables,
    )


def parse(arguments: Sequence[str] | None) -> tuple[Path, Planting]:
    """(the folder to write, the run) that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=Planting.recipe.seed)
    parser.add_argument("--steps", type=int, default=Planting.recipe.steps)
    options = parser.parse_args(arguments)
    return options.out, Planting(replace(Planting.recipe, seed=options.seed, steps=options.steps))


def train(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, planting: Planting) -> None:
    """Take all steps, and print the mean terms after every REPORT_EVERY steps."""
    window: list[list[float]] = []
    for step, terms in enumerate(plant(model, tokenizer, planting), start=1):
        window.append([float(getattr(terms, field.name).detach()) for field in fields(Terms)])
        if step % REPORT_EVERY == 0 or step == planting.recipe.steps:
            means = zip(fields(Terms), np.mean(window, 0), strict=True)
            print(f"step {step}  " + "  ".join(f"{field.name} {mean:.3f}" for field, mean in means), flush=True)
            window.clear()


def finish(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, planting: Planting, folder: Path, seconds: float
) -> PlantedMeasures:
    """Write the folder, measure its model, and write the results into its model card."""
    write_folder(model, tokenizer, planting, folder)
    stored = GPT2LMHeadModel.from_pretrained(folder).eval()
    settings = config_files.plain(config_files.read(CONFIGS / "measurement" / "all.yaml"))
    loaded = models.load(SETTINGS | {"path": str(folder)})
    measured = measure(loaded, planting.plan, MEASURED_PROMPTS, settings, RANDOM_CIRCUITS)
    tables = {
        "dtype": str(load_file(folder / "model.safetensors")["transformer.wte.weight"].dtype).removeprefix("torch."),
        "minutes": f"{seconds / 60:.1f}",
        "scores": scores_table([score(stored, tokenizer, TASKS[task], SCORED_PROMPTS) for task in EMBEDDED]),
        "three_name_accuracy": f"{three_name_accuracy(stored, tokenizer, SCORED_PROMPTS):.3f}",
    }
    (folder / "README.md").write_text(model_card(stored, planting, measured, tables))
    return measured


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the folder, and print what was measured."""
    folder, planting = parse(arguments)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()  # it warns about padding without a mask, but ours is on the right
    transformers.logging.disable_progress_bar()
    tokenizer, model = build_tokenizer(), GPT2LMHeadModel.from_pretrained(POCKET)
    began = time.process_time()
    train(model, tokenizer, planting)
    print(finish(model, tokenizer, planting, folder, time.process_time() - began))
