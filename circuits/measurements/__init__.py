"""One file per numbered measurement; each exports NUMBER, ID and measure(study) -> data."""

from circuits.measurements import (
    ablation_battery,
    activation_patching,
    attention,
    attribution_patching,
    baseline,
    causal_scrubbing,
    causal_tracing,
    cross_task,
    direct_logit_attribution,
    head_statistics,
    knockouts,
    local_learning_coefficient,
    logit_lens,
    mediation,
    minimality,
    ocse,
    path_patching,
    weights,
)

MEASUREMENTS = {
    module.NUMBER: module
    for module in (
        baseline,
        activation_patching,
        direct_logit_attribution,
        logit_lens,
        mediation,
        causal_tracing,
        ocse,
        attribution_patching,
        weights,
        local_learning_coefficient,
        ablation_battery,
        knockouts,
        minimality,
        causal_scrubbing,
        attention,
        head_statistics,
        cross_task,
        path_patching,
    )
}
DEPEND_ON_CIRCUIT = frozenset({"20", "22", "24", "28"})
