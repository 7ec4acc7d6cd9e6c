"""The brute-force twin of interventions on paths: the computational graph evaluated edge by edge.

One prompt and one variant at a time, on the plain Hugging Face model. A reader whose edges are replaced gets the sum of all
the writers before it, each one written out: its own value or, along a replaced edge, that of the recipe. Its queries, keys
or values are the model's own projection of the model's own norm of that sum. It shares nothing with `circuits.engine.paths`
but the values it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from circuits.circuit import Node
from circuits.edges import PROJECTIONS, Edge, Reader
from circuits.interventions import Recipe, Variant
from circuits.prompts import PromptSet
from tests.circuits.hook_loop import HookLoop, _on_input, _on_output


@dataclass(frozen=True)
class Wiring:
    """Where an architecture keeps what readers use: dotted paths inside a block, and the final norm's."""

    attention_norm: str
    mlp_norm: str
    final_norm: str
    projections: tuple[str, ...]  # one joint module, or q, k and v
    parallel: bool = False


WIRING = {
    "gpt2": Wiring("ln_1", "ln_2", "transformer.ln_f", ("attn.c_attn",)),
    "neox": Wiring(
        "input_layernorm",
        "post_attention_layernorm",
        "gpt_neox.final_layer_norm",
        ("attention.query_key_value",),
        parallel=True,
    ),
    "llama": Wiring(
        "input_layernorm",
        "post_attention_layernorm",
        "model.norm",
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ),
}
WIRING |= dict.fromkeys(("qwen2", "qwen3", "gemma"), WIRING["llama"])

Replaced = dict[Reader, dict[Node, Tensor]]  # what each reader is to see of which writers


class PathLoop(HookLoop):
    """Scores variants with interventions on paths, and on heads, MLPs and the embedding besides."""

    def __init__(self, model: PreTrainedModel, architecture: str, n_heads: int, reference: PromptSet) -> None:
        super().__init__(model, architecture, n_heads, reference)
        self.architecture = architecture
        self._given: dict[tuple[Node, Recipe, str], Tensor] = {}

    @property
    def wiring(self) -> Wiring:
        return WIRING[self.architecture]

    @property
    def n_layers(self) -> int:
        return self.model.config.num_hidden_layers

    @torch.no_grad()
    def differences(self, variants: tuple[Variant, ...], prompts: PromptSet) -> np.ndarray:
        """Logit difference [variant, prompt]."""
        return np.array(
            [[self.difference(variant, prompts, row) for row in range(len(prompts))] for variant in variants]
        )

    def difference(self, variant: Variant, prompts: PromptSet, row: int) -> float:
        replaced: Replaced = {}
        for path in variant.on_paths:
            for edge in path.edges:
                value = self._under(edge.writer, path.recipe, prompts, row)
                replaced.setdefault(edge.reader, {})[edge.writer] = value
        edits = [
            (node, self._edit(node, intervention, prompts, row))
            for intervention in variant.on_nodes
            for node in intervention.nodes
        ]
        with ExitStack() as stack:
            for node, edit in edits:
                stack.enter_context(self._hook(node, edit))
            stack.enter_context(self._rewired(replaced))
            logits = self.model(self._tokens(prompts, row, variant.base)[None]).logits[0, -1]
        answers, wrong = ([i for i in ids[row].tolist() if i >= 0] for ids in (prompts.answers, prompts.wrong))
        return float(logits[answers].mean() - logits[wrong].mean())

    # --- hooks ------------------------------------------------------------------------------------------------

    @contextmanager
    def _rewired(self, replaced: Replaced) -> Iterator[None]:
        """Attach after the hooks on nodes: writers are noted as those leave them."""
        written: dict[Node, Tensor] = {}
        feed = partial(self._input, replaced=replaced, written=written)
        handles = [handle for layer in range(self.n_layers) for handle in self._note(layer, written)]
        for reader in replaced:
            handles.append(self._reader_hook(reader, feed))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, layer: int, written: dict[Node, Tensor]) -> Iterator[object]:
        """Hooks that note what each writer of a layer adds to the residual stream."""
        block = self._block(layer)

        def heads(z: Tensor) -> Tensor:
            for index, value in enumerate(z[0].reshape(z.shape[1], self.n_heads, -1).unbind(1)):
                written[Node("head", layer, index)] = value @ self._output_weight(layer)[index]
            return z

        def keep(value: Tensor, node: Node) -> Tensor:
            written[node] = value[0].clone()
            return value

        if layer == 0:
            yield _on_input(block, partial(keep, node=Node("embedding", 0)))
        yield _on_input(block.get_submodule(self.anatomy.output), heads)
        yield _on_output(block.get_submodule(self.anatomy.mlp), partial(keep, node=Node("mlp", layer)))

    def _reader_hook(self, reader: Reader, feed) -> object:
        if reader.kind == "logits":
            return _on_input(self.model.get_submodule(self.wiring.final_norm), lambda _: feed(reader)[None])
        block = self._block(reader.layer)
        if reader.kind == "mlp":
            return _on_input(block.get_submodule(self.wiring.mlp_norm), lambda _: feed(reader)[None])
        modules, place = self.wiring.projections, PROJECTIONS.index(reader.kind)
        module = block.get_submodule(modules[place] if len(modules) > 1 else modules[0])
        norm = block.get_submodule(self.wiring.attention_norm)

        def replace(output: Tensor) -> Tensor:
            own = module.forward(norm.forward(feed(reader)))  # forward: not through hooks again
            output = output.clone()
            self._columns(output[0], reader)[:] = self._columns(own, reader)
            return output

        return _on_output(module, replace)

    def _columns(self, projected: Tensor, reader: Reader) -> Tensor:
        """The part of a projection's output that belongs to a reader, as a view."""
        place = PROJECTIONS.index(reader.kind)
        if self.architecture == "gpt2":
            return projected.view(len(projected), 3, self.n_heads, -1)[:, place, reader.index]
        if self.architecture == "neox":
            return projected.view(len(projected), self.n_heads, 3, -1)[:, reader.index, place]
        return projected.view(len(projected), -1, self._block(0).self_attn.head_dim)[:, reader.index]

    # --- the sum of writers -----------------------------------------------------------------------------------

    def _input(self, reader: Reader, replaced: Replaced, written: dict[Node, Tensor]) -> Tensor:
        """[position, d_model]: every writer before the reader, and the output biases of attention."""
        total = torch.zeros_like(written[Node("embedding", 0)])
        for writer in self._before(reader):
            total += replaced[reader].get(writer, written[writer])
        layers = reader.layer + (reader.kind == "mlp" and not self.wiring.parallel)
        for layer in range(layers):
            bias = self._block(layer).get_submodule(self.anatomy.output).bias
            total += 0 if bias is None else bias
        return total

    def _before(self, reader: Reader) -> list[Node]:
        found = [Node("embedding", 0)]
        for layer in range(reader.layer):
            found += [*self._heads(layer), Node("mlp", layer)]
        if reader.kind == "mlp" and not self.wiring.parallel:
            found += self._heads(reader.layer)
        return found

    def _heads(self, layer: int) -> list[Node]:
        return [Node("head", layer, index) for index in range(self.n_heads)]

    def _under(self, writer: Node, recipe: Recipe, prompts: PromptSet, row: int) -> Tensor:
        """What a writer gives under a recipe, in the stream."""
        site = Node("residual", 0) if writer.kind == "embedding" else Node(writer.kind, writer.layer)
        key = (site, recipe, prompts.ids[row])
        if key not in self._given:
            self._given[key] = self._source(site, recipe, prompts, row)
        value = self._given[key]
        if writer.kind != "head":
            return value
        bias = self.anatomy.value_bias(self._block(writer.layer), self.n_heads)
        return (value + bias)[:, writer.index] @ self._output_weight(writer.layer)[writer.index]

    def _output_weight(self, layer: int) -> Tensor:
        """[head, d_head, d_model]"""
        module = self._block(layer).get_submodule(self.anatomy.output)
        weight = module.weight.T if isinstance(module, nn.Linear) else module.weight
        return weight.reshape(self.n_heads, -1, weight.shape[-1])

    def _block(self, layer: int) -> nn.Module:
        return self.model.get_submodule(f"{self.anatomy.blocks}.{layer}")


def all_edges(loop: PathLoop, n_key_value_heads: int) -> list[Edge]:
    """Every edge, counted anew: each reader sees every writer before it."""
    readers = []
    for layer in range(loop.n_layers):
        readers += [Reader("q", layer, index) for index in range(loop.n_heads)]
        readers += [Reader(kind, layer, index) for kind in ("k", "v") for index in range(n_key_value_heads)]
        readers.append(Reader("mlp", layer))
    readers.append(Reader("logits", loop.n_layers))
    return [Edge(writer, reader) for reader in readers for writer in loop._before(reader)]
