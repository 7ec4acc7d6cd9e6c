"""One file per numbered measurement; each exports NUMBER, ID and measure(study) -> data."""

from circuits.measurements import (
    ablation_battery,
    activation_patching,
    attention,
    baseline,
    causal_scrubbing,
    causal_tracing,
    cross_task,
    direct_logit_attribution,
    head_statistics,
    knockouts,
    logit_lens,
    mediation,
    minimality,
    ocse,
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
        weights,
        ablation_battery,
        knockouts,
        minimality,
        causal_scrubbing,
        attention,
        head_statistics,
        cross_task,
    )
}
DEPEND_ON_CIRCUIT = frozenset({"20", "22", "24"})
