"""24 Causal scrubbing: does the model still do the task if only what the circuit calls relevant depends on this prompt?

The circuit's roles and pathways say which edges of the computational graph matter (`circuits.hypothesis`). All others carry
their value on another prompt, drawn at random from the reference prompts of the same template; edges that matter carry the
present value of their writer, which is itself scrubbed. With LD the mean logit difference over prompts and draws,

    recovery = (LD(scrubbed) - LD(nothing relevant)) / (LD(everything relevant) - LD(nothing relevant))

is 1 if the hypothesis keeps all of the behaviour and 0 if it keeps none; C14 gives it with its interval.

The method follows Chan et al. 2022 ("Causal scrubbing: a method for rigorously testing interpretability hypotheses"), with two
differences. First, theirs unfolds the graph into a tree, so that a component has a separate value on each path to the logits,
and draws new donors along the way. Here a component has one value, and a prompt has one donor for each draw. With one donor
throughout the tree the two are the same, since all copies of a component then read the same inputs. Second, they exchange
relevant inputs between prompts that agree on the variable that the hypothesis says is computed. Circuits here do not say which
variable a role carries, and the factors of prompts (order of the names, answer) are not those variables, so relevant inputs
keep their prompt. The test is thus about where information flows, not about which information.

A high recovery has two limits. Edges that carry the same on all prompts of a template (positions, say) are not tested, because
donors share the template. And MLPs are not scrubbed unless the claim's scope includes them, so an MLP may bridge a pathway
that was cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from circuits.edges import EMBEDDING
from circuits.hypothesis import circuit_edges, hypothesis_edges, other_positions, pathway_edges, pathways, scrub
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.study import Study, require_count

NUMBER, ID = "24", "causal_scrubbing"
SETTINGS = ("scrubbing",)
DEPENDS_ON_CIRCUIT = True


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError if draws or prompts is not positive."""
    for name in ("draws", "prompts"):
        require_count(settings, "scrubbing", name)


def measure(study: Study) -> dict[str, Any]:
    """Logit difference [P] per draw under the hypothesis, its limits and its parts, in nats.

    Reads `settings["scrubbing"]`: draws, seed, prompts (of the evaluation split, for single pathways). Raises UserError if
    draws or prompts is not positive.
    """
    seed = study.settings["scrubbing"]["seed"]
    draws = require_count(study.settings, "scrubbing", "draws")
    recipes = [Recipe("resample", seed=seed, draw=draw) for draw in range(draws)]
    conditions = np.stack([_conditions(study, recipe) for recipe in recipes], 1)
    nothing, scrubbed, heads_only = conditions
    rows, without = _without_each_pathway(study, recipes)
    return {
        "everything_relevant": study.run(Sweep((Variant("everything relevant"),))).logit_diff[0],
        "nothing_relevant": nothing,
        "scrubbed": scrubbed,
        "heads_only": heads_only,
        "without_pathway": without,
        "rows": rows,
        "hypothesis": _describe(study),
        "recipes": [str(recipe) for recipe in recipes],
        "seed": seed,
    }


def _conditions(study: Study, recipe: Recipe) -> Float[np.ndarray, "condition prompt"]:
    """One draw of: nothing relevant, the hypothesis, and the hypothesis that all edges inside the circuit matter.

    With nothing relevant, the result is the donor's run, that is the run on the donor's embeddings.
    """
    circuit, graph = study.claim, study.model.graph
    rest = other_positions(circuit, graph)
    variants = (
        ablate([EMBEDDING], recipe, f"nothing relevant/{recipe.draw}"),
        scrub(hypothesis_edges(circuit, graph), graph, recipe, f"scrubbed/{recipe.draw}", rest),
        scrub(circuit_edges(circuit, graph), graph, recipe, f"heads only/{recipe.draw}", rest),
    )
    return study.run(Sweep(variants)).logit_diff


def _without_each_pathway(
    study: Study, recipes: list[Recipe]
) -> tuple[list[int], dict[str, Float[np.ndarray, " prompt"]]]:
    """(rows, {pathway: mean over draws}) with each pathway scrubbed in addition, on some evaluation prompts.

    The draws run one by one, because each draw in a pass would hold its own activations.
    """
    rows = study.subset(require_count(study.settings, "scrubbing", "prompts"))
    claimed, graph = pathways(study.claim), study.model.graph
    rest = other_positions(study.claim, graph)
    total = np.zeros((len(claimed), len(rows)))
    for recipe in recipes:
        variants = (
            scrub(
                hypothesis_edges(study.claim, graph, pathway), graph, recipe, f"without {pathway}/{recipe.draw}", rest
            )
            for pathway in claimed
        )
        total += study.run(Sweep(tuple(variants)), study.prompts.select(rows)).logit_diff
    mean = (total / len(recipes)).astype(np.float32)
    return rows, {str(pathway): values for pathway, values in zip(claimed, mean, strict=True)}


def _describe(study: Study) -> dict[str, Any]:
    """What was taken to be relevant: the pathways with their edges, and the number of all edges."""
    circuit, graph = study.claim, study.model.graph
    return {
        "pathways": [
            {
                "name": str(pathway),
                "sender": pathway.sender,
                "receiver": pathway.receiver,
                "input": pathway.input,
                "edges": len(pathway_edges(pathway, circuit, graph)),
            }
            for pathway in pathways(circuit)
        ],
        "derived": not circuit.pathways,
        "relevant_edges": len(hypothesis_edges(circuit, graph)),
        "edges": len(graph.edges),
    }
