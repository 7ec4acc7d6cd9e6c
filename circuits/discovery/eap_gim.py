"""EAP-GIM: edges by attribution patching with the backward pass of Gradient Interaction Modifications (Edin et al. 2025).

For the edge from writer u to reader r on a prompt,

    score = sum over positions of (u_clean - u_corrupted) . dLD/d(input of r)

with the gradient of `circuits.engine.gim`, also through the norm in front of the reader. Edges rank by |mean over prompts|.
The circuit of size n consists of those of the n strongest edges that lie on a path from the embedding to the logits.
"""

from __future__ import annotations

import numpy as np

from circuits.circuit import Kind
from circuits.discovery.ranking import EdgeRanking, by_size, searched
from circuits.engine import gim
from circuits.measurements.attribution_patching import gradient_engine
from circuits.prompts import PromptSet
from circuits.study import Study

NAME = "EAP-GIM"
SOURCE = (
    "edge attribution patching with Gradient Interaction Modifications, prefixes by patching all other edges from the "
    "corrupted run"
)
RESAMPLES = "resamples"
METHOD = "eap"


def rank(study: Study, prompts: PromptSet) -> EdgeRanking:
    """Edges by the size of their mean score.

    Reads `settings["discovery"]["gim"]`. Raises UnknownWiringError if the model is no pre-norm decoder.
    """
    settings = study.settings["discovery"]["gim"]
    engine = gradient_engine(study, gim.of_settings(settings))
    study.progress.expect(engine.edge_passes(METHOD, 1) * len(prompts))
    advance = study.progress.advance
    scores = engine.edge_scores(prompts, settings["base"], METHOD, advance=advance, by_prompt=True).by_prompt
    assert scores is not None  # because by_prompt is set
    scores = -scores if settings["base"] == "clean" else scores
    kinds: tuple[Kind, ...] = tuple(sorted({node.kind for node in searched(study)}))
    mean = scores.mean(0, dtype=np.float64)
    return EdgeRanking(engine.graph.edges, by_size(scores), mean, graph=engine.graph, kinds=kinds)
