"""GIM: heads by attribution patching with the backward pass of Gradient Interaction Modifications (Edin et al. 2025).

For head h on a prompt, with z the head's input to W_O,

    score = sum over positions of (z_clean - z_corrupted) . dLD/dz

with dLD/dz from the backward pass of `circuits.engine.gim`: norms frozen, softmax smoothed, gradients of queries, keys and
values scaled. Heads rank by |mean over prompts|. Scores are not in nats: they rank heads but do not estimate effects.
"""

from __future__ import annotations

from circuits.discovery.ranking import HeadRanking, by_size, require_heads
from circuits.engine import gim
from circuits.measurements.attribution_patching import gradient_engine
from circuits.prompts import PromptSet
from circuits.study import Study

NAME = "GIM"
SOURCE = (
    "attribution patching of head outputs with Gradient Interaction Modifications, prefixes by mean ablation per template "
    "and position"
)
RESAMPLES = "resamples"


def rank(study: Study, prompts: PromptSet) -> HeadRanking:
    """Heads by the size of their mean score.

    Reads `settings["discovery"]["gim"]`: the backward pass, and `base`, the run whose gradient is taken.
    Raises UnsupportedArchitectureError if the model does not allow this backward pass.
    """
    require_heads(study, NAME)
    settings = study.settings["discovery"]["gim"]
    engine = gradient_engine(study, gim.of_settings(settings))
    study.progress.expect(engine.head_passes(False) * len(prompts))
    towards_other = engine.head_effects(prompts, settings["base"], advance=study.progress.advance).plain.astype(float)
    scores = -towards_other if settings["base"] == "clean" else towards_other
    return HeadRanking(study.model.heads, by_size(scores), scores.mean(0))
