"""The numbered measurements as arrays, restricted to one split: all that a calibration reads.

Rows are sorted by prompt id, so no result depends on the order in which prompts were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from jaxtyping import Bool, Float, Int

import results_io
from calibrations.claimed_nodes import ClaimedNode, names
from calibrations.statistics import Insufficient
from node_names import HEADS, HEADS_AND_MLPS
from result_types import (
    AblationBattery,
    Baseline,
    CausalScrubbing,
    CrossTask,
    DeclaredCircuit,
    FreshPrompts,
    Minimality,
    Weights,
)

Head = tuple[int, int]


def head_names(heads: Iterable[Sequence[int]]) -> str:
    """ "L0H3 L2H1" of (layer, head) pairs."""
    return " ".join(f"L{layer}H{head}" for layer, head in heads)


PRIMARY = "mean"  # the recipe of the headline faithfulness: mean per template and position


def sampling_units(templates: Iterable[Any], clusters: Iterable[Any]) -> np.ndarray:
    """The unit that was drawn with each prompt: its template frame and its set of names together."""
    return np.array([f"{template}|{names}" for template, names in zip(templates, clusters, strict=True)])


@dataclass(frozen=True)
class FreshDraw:
    """Fresh prompts: D and the logit difference of the circuit alone (primary recipe); `size` is the evaluation size."""

    clean: Float[np.ndarray, " prompt"]
    circuit: Float[np.ndarray, " prompt"]
    size: int


def frame_of(template: Any) -> str:
    """The wording that a template belongs to: its label up to the first slash.

    What follows the slash is what varies within one wording, such as the order of two names ("when_went/ABBA").
    """
    return str(template).partition("/")[0]


@dataclass(frozen=True)
class Evidence:
    """Measurements 01-27 of one circuit, restricted to one split.

    `documents` maps a result number to its JSON document, `constants` is the common section of the calibration
    configuration (bootstrap size and seed, preconditions). D is the clean logit difference of each prompt (or the
    difference of probabilities, if that is the task's metric), C the corrupted one; all arrays are float64 with the prompt
    axis first or last as their shape says.
    """

    documents: Mapping[str, Mapping[str, Any]]
    constants: Mapping[str, Any]
    split: str = "evaluation"

    @classmethod
    def load(cls, folder: Path, constants: Mapping[str, Any], numbers: Iterable[str]) -> Evidence:
        """Read those results `numbers` that exist in `folder`; reading an absent one later raises Insufficient("not_run")."""
        paths = {number: results_io.find(folder, number) for number in numbers}
        return cls({number: results_io.read(path) for number, path in paths.items() if path}, constants)

    def on(self, split: str) -> Evidence:
        """The same evidence on another split ("evaluation" or "held_out")."""
        return replace(self, split=split)

    @overload
    def data(self, number: Literal["01"]) -> Baseline: ...
    @overload
    def data(self, number: Literal["09"]) -> Weights: ...
    @overload
    def data(self, number: Literal["19"]) -> FreshPrompts: ...
    @overload
    def data(self, number: Literal["20"]) -> AblationBattery: ...
    @overload
    def data(self, number: Literal["22"]) -> Minimality: ...
    @overload
    def data(self, number: Literal["24"]) -> CausalScrubbing: ...
    @overload
    def data(self, number: Literal["27"]) -> CrossTask: ...
    @overload
    def data(self, number: str) -> Mapping[str, Any]: ...
    def data(self, number: str) -> Any:
        """The data of measurement `number`; raises Insufficient("not_run") if it has not been measured."""
        if number not in self.documents:
            raise Insufficient("not_run", f"measurement {number} has not been run")
        return self.documents[number]["data"]

    def has(self, number: str) -> bool:
        return number in self.documents

    # --- prompts -----------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> Int[np.ndarray, " prompt"]:
        """Indices of this split's prompts in the stored arrays, in order of prompt id."""
        baseline = self.data("01")
        order = np.argsort(np.array(baseline["prompt_id"]))
        keep = order[np.array(baseline["split"])[order] == self.split]
        if not len(keep):
            raise Insufficient("n_prompts", f"no prompts in the {self.split} split")
        return keep

    def per_prompt(self, number: str, field: str) -> np.ndarray:
        """A stored array whose first axis is the prompt, restricted to this split."""
        return np.asarray(self.data(number)[field])[self.rows]

    @cached_property
    def clean(self) -> Float[np.ndarray, " prompt"]:
        """D: logit difference of the intact model on the clean prompts."""
        return self.per_prompt("01", "clean_logit_diff").astype(float)

    @property
    def metric(self) -> str:
        """What D and every effect of an intervention are, in words."""
        metric = str(self.data("01").get("metric", "logit_difference"))
        return "log-probability difference" if metric == "sequence" else metric.replace("_", " ")

    @property
    def unit(self) -> str:
        """The unit of D and of effects on it: nats for logits and log-probabilities, else the metric's name."""
        return self.metric if self.metric == "probability difference" else "nats"

    @cached_property
    def clean_in_logits(self) -> Float[np.ndarray, " prompt"]:
        """Clean logit difference, which attribution decomposes even if the task's metric is another."""
        return self.per_prompt("01", "clean_in_logits") if "clean_in_logits" in self.data("01") else self.clean

    @cached_property
    def corrupted(self) -> Float[np.ndarray, " prompt"]:
        """C: logit difference of the intact model on the corrupted prompts."""
        return self.per_prompt("01", "corrupted_logit_diff").astype(float)

    @cached_property
    def templates(self) -> np.ndarray:
        return self.per_prompt("01", "template")

    @cached_property
    def frames(self) -> np.ndarray:
        """The wording of each prompt: the sampling unit for statements about other wordings."""
        return np.array([frame_of(template) for template in self.templates])

    @cached_property
    def clusters(self) -> np.ndarray:
        """Sampling unit of each prompt."""
        return sampling_units(self.templates, self.per_prompt("01", "cluster"))

    @cached_property
    def factors(self) -> dict[str, np.ndarray]:
        """Further labels of each prompt (order, answer, ...), each [prompt]."""
        stored = self.data("01")["factors"]
        return {name: np.asarray(values)[self.rows] for name, values in stored.items()}

    # --- circuit -----------------------------------------------------------------------------------------------

    @cached_property
    def heads(self) -> list[Head]:
        """All heads of the model, row-major (layer, head): the order of every head axis."""
        return [(layer, head) for layer, head in self.data("01")["heads"]]

    @property
    def n_layers(self) -> int:
        return int(self.data("01")["n_layers"])

    @cached_property
    def layers(self) -> Int[np.ndarray, " head"]:
        return np.array([layer for layer, _ in self.heads])

    @cached_property
    def circuit(self) -> DeclaredCircuit:
        """The declared circuit: name, roles {role: {heads, ordinal, sign, assigned_by}}, provenance."""
        return self.data("20")["circuit"]

    @property
    def primary_recipe(self) -> str:
        """The recipe under which the circuit is claimed: what its file names, otherwise the mean per template and position."""
        return self.circuit.get("primary_recipe") or PRIMARY

    @cached_property
    def roles(self) -> dict[Head, str]:
        """The role of each of the circuit's heads, in (layer, head) order."""
        roles = {(layer, head): name for name, role in self.circuit["roles"].items() for layer, head in role["heads"]}
        return dict(sorted(roles.items()))

    @property
    def circuit_heads(self) -> list[Head]:
        return list(self.roles)

    @cached_property
    def claimed(self) -> list[ClaimedNode]:
        """All nodes that the circuit claims, each once: heads in (layer, head) order, then MLPs by layer, parts by position."""
        return sorted({ClaimedNode.read(name) for role in self.circuit["roles"].values() for name in names(role)})

    @cached_property
    def heads_only(self) -> bool:
        """True if the circuit claims nothing but heads at all positions, so that every node is a head."""
        return not any("nodes" in role for role in self.circuit["roles"].values())

    @cached_property
    def counted_besides(self) -> dict[str, int]:
        """What a record counts besides heads: claimed nodes and MLPs if the claim is not just heads, else nothing."""
        if self.heads_only:
            return {}
        return {"nodes": len(self.claimed), "mlps": len({node.layer for node in self.claimed if node.kind == "mlp"})}

    @property
    def scope(self) -> str:
        """What is ablated outside the claim: "heads" (MLPs stay intact) or "heads and mlps"."""
        return self.circuit.get("scope") or HEADS

    @property
    def in_scope(self) -> int:
        """Number of nodes in the scope: the model's heads, and its MLPs if the scope has them."""
        return len(self.heads) + (self.n_layers if self.scope == HEADS_AND_MLPS else 0)

    @cached_property
    def in_circuit(self) -> Bool[np.ndarray, " head"]:
        members = set(self.circuit_heads)
        return np.array([head in members for head in self.heads])

    @cached_property
    def expected_sign(self) -> Float[np.ndarray, " head"]:
        """+1, or -1 for heads whose declared role opposes the answer; +1 outside the circuit."""
        negative = {tuple(h) for role in self.circuit["roles"].values() if role["sign"] < 0 for h in role["heads"]}
        return np.array([-1.0 if head in negative else 1.0 for head in self.heads])

    # --- interventions -----------------------------------------------------------------------------------------

    def draws(self, subset: str, method: str) -> Float[np.ndarray, "draw prompt"]:
        """Logit difference under one ablation condition, each draw kept apart.

        `subset` is what is left intact ("circuit", "complement", "empty", "top_k_norm", "top_k_attribution"), or
        "without:<role>" for the model with one role knocked out. `method` is "zero", "zero_raw" (removes the heads' constants
        too), "mean" (per template and position), "mean_pooled", "resample" or "noise". Raises Insufficient("not_run") if the
        condition was not measured.
        """
        battery = self.data("20")
        index = [
            i
            for i, condition in enumerate(battery["conditions"])
            if condition["subset"] == subset and condition["method"] == method
        ]
        if not index:
            raise Insufficient("not_run", f"no ablation of kind {method} with {subset} intact")
        return np.asarray(battery["logit_diff"], dtype=float)[index][:, self.rows]

    def ablated(self, subset: str, method: str = PRIMARY) -> Float[np.ndarray, " prompt"]:
        """Logit difference under one ablation condition, averaged over its draws."""
        return self.draws(subset, method).mean(axis=0)

    @cached_property
    def random_circuits(self) -> tuple[Float[np.ndarray, "circuit prompt"], Int[np.ndarray, " prompt"]]:
        """Random circuits under the primary recipe, and the prompts they ran on; `matched_by_layer` says how they match.

        The second array indexes this split's prompts (as ordered by `rows`).
        """
        stored = self.data("20")["random_circuits"]
        columns, places = self.stored_columns(stored["prompt_index"])
        if not columns:
            raise Insufficient("n_prompts", f"random circuits were not run on the {self.split} split")
        return np.asarray(stored["logit_diff"], dtype=float)[:, columns], places

    @property
    def matched_by_layer(self) -> bool:
        """True if random circuits match the circuit's layers, False if only its size, because too few sets have its layers."""
        return not self.data("20")["random_circuits"].get("any_layers", False)

    def fresh(self, draw: str) -> FreshDraw:
        """The prompts of one draw of measurement 19: that of a seed, or "pool".

        Raises Insufficient("not_run") if it was not measured, and on the held-out split, from which fresh prompts are not
        drawn; ("n_prompts") if the task could not give enough prompts.
        """
        if self.split != "evaluation":
            raise Insufficient("not_run", f"fresh prompts are drawn for the evaluation split, not for {self.split}")
        stored = self.data("19")
        if draw in stored["unavailable"]:
            raise Insufficient("n_prompts", stored["unavailable"][draw])
        if draw not in stored["draws"]:
            raise Insufficient(
                "not_run", f"no prompts were drawn with seed {draw}", needs="its seed in fresh_prompts.seeds"
            )
        rows = stored["draws"][draw]
        clean, circuit = (np.asarray(stored[name], dtype=float)[rows] for name in ("clean", "circuit"))
        return FreshDraw(clean, circuit, stored["size"])

    def stored_columns(self, prompt_index: Iterable[int]) -> tuple[list[int], Int[np.ndarray, " prompt"]]:
        """For a result on the stored prompts `prompt_index`: its columns in this split, and their indices in the split."""
        column_of = {int(row): column for column, row in enumerate(prompt_index)}
        found = [(column_of[row], place) for place, row in enumerate(self.rows.tolist()) if row in column_of]
        return [column for column, _ in found], np.array([place for _, place in found], dtype=int)

    def head_effect(self, number: str, field: str) -> Float[np.ndarray, "prompt head"]:
        """Per-prompt, per-head values of a measurement: 02 denoising / noising, 03 attribution, 21 effect."""
        return self.per_prompt(number, field).astype(float)

    def head_score(self, number: str, field: str) -> Float[np.ndarray, " head"]:
        """A prompt-free score per head of a measurement."""
        return np.asarray(self.data(number)[field], dtype=float)
