"""EAP-IG: edges by integrated gradients between the corrupted and the clean run (Hanna et al. 2024).

For the edge from writer u to reader r on a prompt, in nats of the logit difference LD (whatever the task's metric),

    score = sum over positions of (u_clean - u_corrupted) . mean of dLD/d(input of r)

with the mean over runs whose embeddings lie between those of the two runs. Edges rank by |mean over prompts|. The circuit of
size n consists of those of the n strongest edges that lie on a path from the embedding to the logits.
"""

from __future__ import annotations

import numpy as np

from circuits.circuit import Kind
from circuits.discovery.ranking import EdgeRanking, by_size, searched
from circuits.measurements.attribution_patching import gradient_engine
from circuits.prompts import PromptSet
from circuits.study import Study

NAME = "EAP-IG"
SOURCE = (
    "edge attribution patching with integrated gradients, prefixes by patching all other edges from the corrupted run"
)
RESAMPLES = "resamples"
METHOD = "eap_ig_inputs"


def rank(study: Study, prompts: PromptSet) -> EdgeRanking:
    """Edges by the size of their mean score.

    Reads `settings["discovery"]["eap_ig"]["steps"]`. Raises UnknownWiringError if the model is no pre-norm decoder.
    """
    engine, steps = gradient_engine(study), int(study.settings["discovery"]["eap_ig"]["steps"])
    study.progress.expect(engine.edge_passes(METHOD, steps) * len(prompts))
    advance = study.progress.advance
    scores = engine.edge_scores(prompts, "corrupted", METHOD, steps, advance, by_prompt=True).by_prompt
    assert scores is not None  # because by_prompt is set
    mean = scores.mean(0, dtype=np.float64)
    kinds: tuple[Kind, ...] = ("head",) if searched(study) == study.model.heads else ("head", "mlp")
    return EdgeRanking(engine.graph.edges, by_size(scores), mean, graph=engine.graph, kinds=kinds)
