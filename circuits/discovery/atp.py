"""AtP: heads by attribution patching, a first-order estimate of the effect of patching each head (Nanda 2022).

For head h on a prompt, in nats of the logit difference LD (whatever the task's metric), with z the head's input to W_O and the
gradient taken in one of the two runs,

    score = sum over positions of (z_clean - z_corrupted) . dLD/dz

from one backward pass for all heads; it is positive if the head's clean output helps. Heads rank by |mean over prompts|, so
heads that work against the answer count too. If several heads in sequence process something that the corrupted prompt lacks
(with ABC corruption, no name is repeated), the corrupted run's gradient misses the first of them.
"""

from __future__ import annotations

from circuits.discovery.ranking import HeadRanking, by_size, require_heads
from circuits.measurements.attribution_patching import gradient_engine
from circuits.prompts import PromptSet
from circuits.study import Study

NAME = "AtP"
SOURCE = "attribution patching of head outputs, prefixes by mean ablation per template and position"
RESAMPLES = "resamples"


def rank(study: Study, prompts: PromptSet) -> HeadRanking:
    """Heads by the size of their mean score; `settings["discovery"]["atp"]["base"]` is the run whose gradient is taken."""
    require_heads(study, NAME)
    engine = gradient_engine(study)
    study.progress.expect(engine.head_passes(False) * len(prompts))
    base = study.settings["discovery"]["atp"]["base"]
    towards_other = engine.head_effects(prompts, base, advance=study.progress.advance).plain.astype(float)
    scores = -towards_other if base == "clean" else towards_other
    return HeadRanking(study.model.heads, by_size(scores), scores.mean(0))
