"""24: the circuit's hypothesis scrubbed, its limits, and single pathways scrubbed in addition."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from circuits import models, tasks
from circuits import study as studies
from circuits.circuit import Circuit, Node, Pathway, Role, head
from circuits.edges import EMBEDDING, Edge, Reader
from circuits.engine import LensEngine
from circuits.engine.scores import gather
from circuits.hypothesis import circuit_edges, hypothesis_edges, pathways
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measurements import causal_scrubbing
from circuits.measurements.ablation_battery import random_circuit
from circuits.study import Study
from results_io import UserError
from tests.circuits import toy
from tests.circuits.philox_loop import donor

SCRUBBING = {"draws": 2, "seed": 5, "prompts": 6}
ROWS = [3, 22]


def scrubbing(study: Study, circuit: Circuit | None = None, **settings) -> Study:
    settings = {**study.settings, "scrubbing": {**SCRUBBING, **settings}}
    return replace(study, settings=settings, circuit=circuit or study.circuit)


def claim(architecture: str) -> Circuit:
    """The toy's circuit, or one for two layers; the latter with pathways of its own."""
    if architecture == "gpt2":
        return toy.circuit()
    roles = {"a": Role((head(0, 1), head(0, 3))), "b": Role((head(1, 0), head(1, 2)))}
    ways = (Pathway("embedding", "a"), Pathway("a", "b", "v"), Pathway("embedding", "b", "q"), Pathway("b", "logits"))
    return replace(toy.circuit(), roles=roles, pathways=ways)


@pytest.fixture(scope="module")
def in_double():
    """Norms and softmaxes of rotary models in float64, which transformers and the bridge compute in float32."""

    def norm(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    with pytest.MonkeyPatch.context() as patch:
        for module in (LlamaRMSNorm, Qwen2RMSNorm):
            patch.setattr(module, "forward", norm)
        patch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: x.softmax(dim))
        yield


@pytest.fixture(scope="module")
def exact(load, make_study, in_double):
    """exact(architecture): the study in float64."""

    @cache
    def make(architecture: str = "gpt2") -> Study:
        study = make_study(architecture)
        model = load(architecture, "float64")
        engine = LensEngine(model, study.engine.reference.prompts)
        return scrubbing(replace(study, model=model, engine=engine, done={}), claim(architecture))

    return make


@pytest.fixture(scope="module")
def measured(exact):
    return cache(lambda architecture="gpt2": causal_scrubbing.measure(exact(architecture)))


def donors_of(study: Study, draw: int, seed: int = SCRUBBING["seed"]) -> list[int]:
    """Reference rows that the documented law of resampling draws for each scored prompt."""
    reference = study.engine.reference.prompts
    rows = []
    for prompt_id, template in zip(study.prompts.ids, study.prompts.templates, strict=True):
        same = [row for row, name in enumerate(reference.templates) if name == template]
        rows.append(same[donor(seed, prompt_id, draw, len(same))])
    return rows


def recovery(data: dict, name: str, rows=slice(None)) -> float:
    """(mean scrubbed - mean nothing relevant) / (mean everything relevant - mean nothing relevant)."""
    if name in data["without_pathway"]:
        values, rows = data["without_pathway"][name], data["rows"]
    else:
        values = data[name][..., rows]
    top, bottom = data["everything_relevant"][rows].mean(), data["nothing_relevant"][:, rows].mean()
    return float((values.mean() - bottom) / (top - bottom))


# --- against the definition ---------------------------------------------------------------------------------


class Tree:
    """Causal scrubbing by its definition on the plain model: from the logits down, edge by edge, without memory.

    A component is computed anew on every path that leads to it, so this is the unfolded tree, with one donor.
    """

    def __init__(self, model, tokens: Tensor, donor: Tree | None, relevant: frozenset[Edge]) -> None:
        self.model, self.tokens, self.donor, self.relevant = model, tokens, donor, relevant
        if donor is None:
            self.value = cache(self.value)

    def logits(self) -> Tensor:
        body = getattr(self.model, "transformer", None)
        norm = body.ln_f if body else self.model.model.norm
        return self.model.lm_head(norm(self._input(Reader("logits", self._layers())))[-1])

    def value(self, node: Node) -> Tensor:
        """What a component writes, [position, d_model], but for the output biases of attention."""
        if node.kind == "embedding":
            return self._embedding()
        block = self._block(node.layer)
        if node.kind == "mlp":
            norm = block.ln_2 if hasattr(block, "ln_2") else block.post_attention_layernorm
            return block.mlp(norm(self._input(Reader("mlp", node.layer))))
        norm = block.ln_1 if hasattr(block, "ln_1") else block.input_layernorm
        q, k, v = (self._project(block, kind, norm(self._input(self._reader(node, kind))), node) for kind in "qkv")
        scores = (q @ k.T / q.shape[1] ** 0.5).masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
        z, own = scores.softmax(1) @ v, slice(node.index * v.shape[1], (node.index + 1) * v.shape[1])
        return z @ (
            block.attn.c_proj.weight[own] if hasattr(block, "attn") else block.self_attn.o_proj.weight[:, own].T
        )

    def _input(self, reader: Reader) -> Tensor:
        last = reader.layer + (reader.kind == "mlp")
        total = sum(self._bias(layer) for layer in range(last))
        earlier = [node for layer in range(reader.layer) for node in (*self._heads(layer), Node("mlp", layer))]
        for writer in (EMBEDDING, *earlier, *(self._heads(reader.layer) if reader.kind == "mlp" else ())):
            keeps = self.donor is None or Edge(writer, reader) in self.relevant
            total = total + (self if keeps else self.donor).value(writer)
        return total

    def _reader(self, node: Node, kind: str) -> Reader:
        groups = toy.N_HEADS // getattr(self.model.config, "num_key_value_heads", toy.N_HEADS)
        return Reader(kind, node.layer, node.index if kind == "q" else node.index // groups)

    def _project(self, block, kind: str, normed: Tensor, node: Node) -> Tensor:
        index = self._reader(node, kind).index
        if hasattr(block, "attn"):
            return block.attn.c_attn(normed).chunk(3, 1)["qkv".index(kind)].split(toy.D_HEAD, 1)[index]
        values = getattr(block.self_attn, f"{kind}_proj")(normed).split(toy.D_HEAD, 1)[index]
        if kind == "v":
            return values
        cos, sin = self.model.model.rotary_emb(values, torch.arange(len(values))[None])
        return apply_rotary_pos_emb(values[None, None], values[None, None], cos, sin)[0][0, 0]

    def _embedding(self) -> Tensor:
        if hasattr(self.model, "transformer"):
            body = self.model.transformer
            return body.wte(self.tokens) + body.wpe(torch.arange(len(self.tokens)))
        return self.model.model.embed_tokens(self.tokens)

    def _block(self, layer: int):
        return (self.model.transformer.h if hasattr(self.model, "transformer") else self.model.model.layers)[layer]

    def _bias(self, layer: int) -> Tensor | float:
        return self._block(layer).attn.c_proj.bias if hasattr(self.model, "transformer") else 0.0

    def _layers(self) -> int:
        return self.model.config.num_hidden_layers

    @staticmethod
    def _heads(layer: int) -> list[Node]:
        return [head(layer, index) for index in range(toy.N_HEADS)]


@torch.no_grad()
def by_definition(study: Study, model, relevant: frozenset[Edge], rows: list[int]) -> np.ndarray:
    """Logit differences [draw, prompt] of the scrubbed tree."""
    prompts, reference = study.prompts, study.engine.reference.prompts
    table = []
    for draw in range(SCRUBBING["draws"]):
        donors, own = donors_of(study, draw), []
        for row in rows:
            length = int(prompts.end[row]) + 1
            donor = Tree(model, reference.clean[donors[row], :length], None, relevant)
            logits = Tree(model, prompts.clean[row, :length], donor, relevant).logits()
            answers, wrong = ([i for i in ids[row].tolist() if i >= 0] for ids in (prompts.answers, prompts.wrong))
            own.append(float(logits[answers].mean() - logits[wrong].mean()))
        table.append(own)
    return np.array(table)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2"])
def test_every_condition_equals_the_scrubbed_tree(architecture, exact, measured, plain) -> None:
    study, data = exact(architecture), measured(architecture)
    circuit, graph = study.circuit, study.model.graph
    expected = {
        "scrubbed": hypothesis_edges(circuit, graph),
        "heads_only": circuit_edges(circuit, graph),
        "nothing_relevant": frozenset(),
    }
    found = [by_definition(study, plain(architecture), edges, ROWS) for edges in expected.values()]
    for name, truth in zip(expected, found, strict=True):
        assert np.abs(data[name][:, ROWS] - truth).max() < 1e-10
    clean = data["everything_relevant"][ROWS]
    for one, other in ((found[0], found[1]), (found[1], found[2]), (found[0], clean), (found[0][0], found[0][1])):
        assert np.abs(one - other).max() > 0.05


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_single_pathways_equal_the_scrubbed_tree(architecture, exact, measured, plain) -> None:
    study, data = exact(architecture), measured(architecture)
    rows = data["rows"]
    assert rows == toy.lowest_hash(study, SCRUBBING["prompts"])
    assert list(data["without_pathway"]) == [str(pathway) for pathway in pathways(study.circuit)]
    for pathway in pathways(study.circuit):
        edges = hypothesis_edges(study.circuit, study.model.graph, pathway)
        truth = by_definition(study, plain(architecture), edges, rows[:1]).mean(0)
        found = data["without_pathway"][str(pathway)]
        assert found.shape == (SCRUBBING["prompts"],)
        assert np.abs(found[:1] - truth).max() < 1e-5  # kept in float32


# --- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_with_everything_relevant_nothing_is_lost(architecture, exact) -> None:
    study = exact(architecture)
    whole = replace(study.circuit, roles={"all": Role(study.model.heads)}, pathways=())
    data = causal_scrubbing.measure(scrubbing(study, whole))
    clean = study.engine.run(Sweep((Variant("clean"),)), study.prompts).logit_diff[0]
    assert data["hypothesis"]["relevant_edges"] == data["hypothesis"]["edges"] == len(study.model.graph.edges)
    assert np.abs(data["scrubbed"] - clean).max() < 1e-10
    assert np.abs(data["heads_only"] - clean).max() < 1e-10
    assert recovery(data, "scrubbed") == pytest.approx(1, abs=1e-10)
    assert np.abs(data["without_pathway"]["all->logits"] - clean[data["rows"]]).max() > 0.1


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_with_nothing_relevant_what_is_left_is_the_donor_s_run(architecture, exact) -> None:
    study = exact(architecture)
    data = causal_scrubbing.measure(study)
    answers, wrong = study.prompts.answers, study.prompts.wrong
    for draw in range(SCRUBBING["draws"]):
        logits = study.engine.end_logits(study.engine.reference.prompts.select(donors_of(study, draw)))
        truth = gather(logits, answers).nanmean(1) - gather(logits, wrong).nanmean(1)
        assert np.abs(data["nothing_relevant"][draw] - truth.numpy()).max() < 1e-10
    assert recovery({**data, "scrubbed": data["nothing_relevant"]}, "scrubbed") == 0.0


def test_with_the_heads_alone_claimed_it_is_resample_ablation_of_the_others(study) -> None:
    study = scrubbing(study)
    data = causal_scrubbing.measure(study)
    outside = sorted(set(study.model.heads) - set(study.circuit.heads))
    for draw, found in enumerate(data["heads_only"]):
        ablated = study.run(Sweep((ablate(outside, Recipe("resample", seed=5, draw=draw), f"twin {draw}"),)))
        assert np.abs(found - ablated.logit_diff[0]).max() < 1e-5


# --- a model whose circuits are known -----------------------------------------------------------------------

WIRING = (
    Pathway("embedding", "duplicate_token"),
    Pathway("duplicate_token", "s_inhibition", "k"),
    Pathway("duplicate_token", "s_inhibition", "v"),
    Pathway("embedding", "s_inhibition", "q"),
    Pathway("embedding", "s_inhibition", "k"),
    Pathway("s_inhibition", "name_mover", "q"),
    Pathway("embedding", "name_mover"),
    Pathway("name_mover", "logits"),
)


@pytest.fixture(scope="module")
def planted():
    """The hand-written IOI model, its circuit without pathways of its own."""
    model = models.load({"kind": "planted", "name": "planted/sound", "variant": "sound"})
    sizes = {"discovery": 1, "evaluation": 12, "held_out": 1, "reference": 120}
    settings = {"scrubbing": {"draws": 2, "seed": 0, "prompts": 4}}
    circuit = replace(model.circuits["ioi"], pathways=())
    return studies.prepare(model, tasks.get("ioi"), sizes, 0, settings=settings, circuit=circuit)


def scrubbed(planted: Study, **changes) -> dict:
    """The result on another claim about the planted model."""
    return causal_scrubbing.measure(replace(planted, circuit=replace(planted.circuit, **changes)))


@pytest.mark.slow
def test_the_true_circuit_recovers_all_and_each_of_its_pathways_is_needed(planted) -> None:
    # one draw moves an edge that is not read by a hundredth of D either way, which all prompts and eight draws average out
    many = {"scrubbing": {"draws": 8, "seed": 0, "prompts": 12}}
    data = causal_scrubbing.measure(replace(planted, settings={**planted.settings, **many}))
    assert data["everything_relevant"].mean() > 5
    assert abs(data["nothing_relevant"].mean()) < 0.15 * data["everything_relevant"].mean()
    assert recovery(data, "scrubbed") == pytest.approx(1, abs=0.01)
    assert recovery(data, "heads_only") == pytest.approx(1, abs=0.01)
    assert recovery(data, "name_mover->logits") == pytest.approx(0, abs=0.01)
    assert recovery(data, "s_inhibition->name_mover") < 0.1
    assert recovery(data, "duplicate_token->s_inhibition") < 0.1
    # implied by the order of roles, but the name movers do not read it
    assert recovery(data, "duplicate_token->name_mover") == pytest.approx(1, abs=0.01)


@pytest.mark.slow
def test_the_wiring_as_written_recovers_all_and_another_does_not(planted) -> None:
    data = scrubbed(planted, pathways=WIRING)
    assert not data["hypothesis"]["derived"]
    assert recovery(data, "scrubbed") == pytest.approx(1, abs=0.01)
    assert recovery(data, "duplicate_token->s_inhibition.v") < 0.1
    assert recovery(data, "s_inhibition->name_mover.q") < 0.1
    assert recovery(data, "embedding->duplicate_token") < 0.1
    wrong = tuple(replace(way, input="v") if str(way) == "s_inhibition->name_mover.q" else way for way in WIRING)
    data = scrubbed(planted, pathways=wrong)
    assert recovery(data, "heads_only") == pytest.approx(1, abs=0.01)  # the heads are the right ones
    assert recovery(data, "scrubbed") < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("role", ["duplicate_token", "s_inhibition", "name_mover"])
def test_without_one_of_its_roles_the_circuit_recovers_nothing(planted, role) -> None:
    roles = {name: own for name, own in planted.circuit.roles.items() if name != role}
    assert recovery(scrubbed(planted, roles=roles), "scrubbed") < 0.1


@pytest.mark.parametrize("seed", range(2))
def test_a_random_circuit_recovers_nothing(planted, seed) -> None:
    others = set(planted.model.heads) - set(planted.circuit.heads)
    drawn = random_circuit(planted.circuit.heads, sorted(others), random.Random(seed))
    data = scrubbed(planted, roles={"random": Role(drawn)})
    assert recovery(data, "scrubbed") == pytest.approx(0, abs=0.02)


# --- form, order, refusals ----------------------------------------------------------------------------------


def test_the_result_says_what_was_tested(study) -> None:
    data = causal_scrubbing.measure(scrubbing(study))
    prompts = len(study.prompts)
    assert data["everything_relevant"].shape == (prompts,)
    assert {data[name].shape for name in ("nothing_relevant", "scrubbed", "heads_only")} == {(2, prompts)}
    described = data["hypothesis"]
    assert described == {
        "pathways": [
            {"name": "early->late", "sender": "early", "receiver": "late", "input": None, "edges": 6},
            {"name": "early->middle", "sender": "early", "receiver": "middle", "input": None, "edges": 3},
            {"name": "late->logits", "sender": "late", "receiver": "logits", "input": None, "edges": 2},
            {"name": "middle->late", "sender": "middle", "receiver": "late", "input": None, "edges": 6},
        ],
        "derived": True,
        "relevant_edges": 61,
        "edges": 262,
    }
    assert (data["recipes"], data["seed"]) == (["resample, draw 0", "resample, draw 1"], 5)


def test_a_rerun_gives_the_same_bytes_and_another_seed_other_donors(study) -> None:
    first, again = (causal_scrubbing.measure(scrubbing(replace(study, done={}))) for _ in range(2))
    other = causal_scrubbing.measure(scrubbing(study, seed=6))
    for name in ("everything_relevant", "nothing_relevant", "scrubbed", "heads_only"):
        assert first[name].tobytes() == again[name].tobytes()
    assert all(first["without_pathway"][k].tobytes() == v.tobytes() for k, v in again["without_pathway"].items())
    assert np.array_equal(other["everything_relevant"], first["everything_relevant"])
    assert np.abs(other["scrubbed"] - first["scrubbed"]).max() > 0.1


def test_the_order_of_prompts_changes_nothing(exact, measured) -> None:
    study, data = exact(), measured()
    order = np.random.default_rng(0).permutation(len(study.prompts)).tolist()
    again = causal_scrubbing.measure(replace(study, prompts=study.prompts.select(order)))
    for name in ("everything_relevant", "nothing_relevant", "scrubbed", "heads_only"):
        assert np.abs(again[name] - data[name][..., order]).max() < 1e-10
    assert [order[row] for row in again["rows"]] == data["rows"]
    for name, values in data["without_pathway"].items():
        assert np.abs(again["without_pathway"][name] - values).max() < 1e-6


def test_every_pair_is_reported_once(study) -> None:
    class Count:
        expected = done = 0

        def expect(self, pairs: int) -> None:
            self.expected += pairs

        def advance(self, pairs: int) -> None:
            self.done += pairs

    count = Count()
    causal_scrubbing.measure(scrubbing(replace(study, progress=count, done={})))
    # everything relevant; three conditions and four pathways for each of two draws
    assert count.done == count.expected == len(study.prompts) * (1 + 2 * 3) + 6 * 2 * 4


@pytest.mark.parametrize("name", ["draws", "prompts"])
@pytest.mark.parametrize("value", [0, 1.5])
def test_a_count_that_is_none_is_refused(study, name, value) -> None:
    with pytest.raises(UserError, match=rf"scrubbing\.{name} is {value}; expected a whole number of at least 1"):
        causal_scrubbing.measure(scrubbing(study, **{name: value}))
