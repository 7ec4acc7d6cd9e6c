"""NAP-IG: heads by integrated gradients between the corrupted and the clean run (node attribution; Mueller et al. 2025).

For head h on a prompt, in nats of the logit difference LD (whatever the task's metric), with z the head's input to W_O,

    score = sum over positions of (z_clean - z_corrupted) . mean of dLD/dz

with the mean over runs whose embeddings lie between those of the two runs. Heads rank by |mean over prompts|. For a head that
is saturated in both runs AtP's gradient vanishes, but not the gradient between them. The method does not depend on how layers
are wired, so it runs on every model family.
"""

from __future__ import annotations

from circuits.discovery.ranking import HeadRanking, by_size, require_heads
from circuits.measurements.attribution_patching import gradient_engine
from circuits.prompts import PromptSet
from circuits.study import Study

NAME = "NAP-IG"
SOURCE = (
    "node attribution patching with integrated gradients of head outputs, prefixes by mean ablation per template and "
    "position"
)
RESAMPLES = "resamples"


def rank(study: Study, prompts: PromptSet) -> HeadRanking:
    """Heads by the size of their mean score. Reads `settings["discovery"]["nap_ig"]["steps"]`."""
    require_heads(study, NAME)
    engine, steps = gradient_engine(study), int(study.settings["discovery"]["nap_ig"]["steps"])
    study.progress.expect(engine.integrated_head_passes(steps) * len(prompts))
    scores = engine.integrated_head_effects(prompts, "corrupted", steps, study.progress.advance).astype(float)
    return HeadRanking(study.model.heads, by_size(scores), scores.mean(0))
