"""What stands in a numbered result, one type for each number: what pyright knows of a result, and a test compares with a run.

results/README.md says what each field means. Lists are named by what they run over: P prompts, H heads (row-major), L layers,
R position roles. At run time a result is plain JSON data, as `results_io.read` returns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

Split = Literal["evaluation", "held_out"]
Head = list[int]  # [layer, head]
Vector = list[float]
Matrix = list[list[float]]
Gaps = list[float | None]  # null: no value for this one
GapMatrix = list[list[float | None]]


# --- the envelope ----------------------------------------------------------------------------------------------------


class Subject(TypedDict):
    """What a result is of, and of what code: it is stale where one of these has changed."""

    model: str
    model_sha256: str
    task: str
    prompts_sha256: str
    circuit: str | None
    circuit_sha256: str | None
    settings: Mapping[str, Any]
    bos: NotRequired[bool]  # of measurements
    device: NotRequired[str]
    dtype: NotRequired[str]
    torch: NotRequired[str]
    metric: NotRequired[str]
    measured_by: NotRequired[str]
    stored_circuits: NotRequired[dict[str, str] | None]
    judged_by: NotRequired[str]  # of calibrations


class Result(TypedDict):
    """A numbered result: `data` is one of the types below."""

    schema_version: int
    number: str
    id: str
    kind: Literal["measurement", "calibration", "behaviour"]
    subject: Subject
    n: dict[str, int]
    data: Mapping[str, Any]
    records: list[StoredRecord]
    inputs_sha256: dict[str, str]
    environment: Mapping[str, Any]


class StoredRecord(TypedDict):
    """A `calibrations.record.Record` as it is stored."""

    metric: str
    published_value: float | None
    published_rule: str
    published_verdict: Literal["pass", "fail", "none"]
    published_label: str | None
    verdict: Literal["pass", "fail", "inconclusive", "insufficient"]
    gating: bool
    estimate: float | None
    ci90: Vector | None
    ci95: Vector | None
    ci_method: str | None
    p: float | None
    p_kind: str | None
    effect_size: float | None
    reasons: list[str]
    notes: list[str]
    needs: str | None
    n: dict[str, int]
    companions: Mapping[str, Any]


class Judged(TypedDict):
    """Data of a calibration: the records on the held-out split; those on the evaluation split are the result's `records`."""

    title: str
    verdict: Literal["pass", "fail", "inconclusive", "insufficient"]
    held_out: list[StoredRecord]


# --- shared parts ----------------------------------------------------------------------------------------------------


class BySite(TypedDict):
    """[L][R] of the residual stream, the attention output and the MLP output."""

    residual: Matrix
    attention: Matrix
    mlp: Matrix


class Role(TypedDict):
    heads: list[Head]
    ordinal: int | None
    sign: Literal[1, -1]
    assigned_by: str
    evidence: str


class Pathway(TypedDict):
    sender: str
    receiver: str
    input: str | None


class DeclaredCircuit(TypedDict):
    name: str
    task: str
    model: str
    roles: dict[str, Role]
    provenance: Mapping[str, Any]
    pathways: NotRequired[list[Pathway]]


# --- measurements ----------------------------------------------------------------------------------------------------


class PromptExample(TypedDict):
    bos: str | None
    clean: list[str]
    corrupted: list[str]
    answers: list[str]
    wrong: list[str]
    positions: dict[str, int]


class Baseline(TypedDict):
    """01. Lists run over P, but for `heads` [H] and the `examples`."""

    prompt_id: list[str]
    split: list[Split]
    template: list[Any]
    cluster: list[Any]
    factors: dict[str, list[Any]]
    clean_logit_diff: Vector
    corrupted_logit_diff: Vector
    clean_in_logits: NotRequired[Vector]  # results of before it was written have the logit difference as their metric
    correct: list[bool]
    top1: list[bool]
    metric: NotRequired[str]
    answer_probability: Vector
    foil_probability: Vector
    accuracy: dict[str, float]
    heads: list[Head]
    n_layers: int
    n_heads_per_layer: int
    examples: list[PromptExample]


class PatchedSites(TypedDict):
    rows: list[int]
    roles: list[str]
    denoising: BySite


class ActivationPatching(TypedDict):
    """02. `denoising` and `noising` [P][H]."""

    denoising: Matrix
    noising: Matrix
    sites: PatchedSites


class DirectLogitAttribution(TypedDict):
    """03. `attribution` [P][H], `mlp` [P][L], `embedding` and `bias` [P]."""

    attribution: Matrix
    mlp: Matrix
    embedding: Vector
    bias: Vector
    max_error: float


class LensByPosition(TypedDict):
    rows: list[int]
    roles: list[str]
    probability: Matrix
    logit_diff: Matrix


class LensExample(TypedDict):
    tokens: list[str]
    top_token: list[list[str]]
    top_probability: Matrix
    logit_diff: Matrix


class LogitLens(TypedDict):
    """04. `rank`, `probability`, `logit_diff` [L+1][P]; `emergence_layer` [P]."""

    rank: list[list[int]]
    probability: Matrix
    logit_diff: Matrix
    emergence_layer: list[int | None]
    max_error: float
    by_position: LensByPosition
    examples: list[LensExample]


class Mediation(TypedDict):
    """05. `total` [P], the others [P][H]."""

    total: Vector
    natural_direct: Matrix
    natural_indirect: Matrix
    interaction: Matrix
    direct_path: Matrix
    downstream: Matrix


class CausalTracing(TypedDict):
    """06."""

    corruption: Mapping[str, Any]
    strategies: list[str]
    roles: list[str]
    rows: list[int]
    impact: BySite
    standard_error: BySite
    clean_probability: float
    corrupted_probability: float


class SelectionStep(TypedDict):
    head: Head
    information: float
    threshold: float


class EntropySelection(TypedDict):
    """`score` and `marginal` [H]."""

    score: Vector
    marginal: Vector
    selected: list[Head]
    forward: list[SelectionStep]
    rejected: SelectionStep | None
    pruned: list[SelectionStep]


class SelectionStability(TypedDict):
    frequency: Vector
    mean_jaccard: float
    refits: int


class CausationEntropy(EntropySelection):
    """07."""

    explained_variance: float
    nearest_neighbour: EntropySelection
    stability: SelectionStability
    constant: list[Head]
    prompt_id: list[str]
    settings: Mapping[str, Any]


class NodeAttribution(TypedDict):
    """All [head]."""

    heads: list[Head]
    effect: Vector
    effect_standard_error: Vector
    corrected: Vector | None
    corrected_standard_error: Vector | None


class NodeAttributions(TypedDict):
    base: str
    q: NodeAttribution
    k: NodeAttribution
    v: NodeAttribution


class EdgeScoresByMethod(TypedDict):
    """[reader][writer], null where there is no edge."""

    eap: GapMatrix
    eap_ig_inputs: GapMatrix
    eap_ig_activations: GapMatrix


class EdgeAttributions(EdgeScoresByMethod):
    writers: list[str]
    readers: list[str]
    base: str
    prompts: int
    steps: int
    standard_error: EdgeScoresByMethod
    embedding_sum: dict[str, float]
    total_effect: float


class AttributionPatching(TypedDict):
    """08. `effect`, `noising`, `effect_graddrop` [P][H]."""

    effect: Matrix
    noising: Matrix
    effect_graddrop: Matrix | None
    rows: list[int]
    nodes: NodeAttributions
    edges: EdgeAttributions


class Moments(TypedDict):
    mean: float
    sd: float


class DetectionCounts(TypedDict):
    hits: int
    positives: int
    false_alarms: int
    negatives: int


class WeightClassifier(TypedDict):
    """`probability` [H], `feature_values` [H][F]; null, with the reason in `unavailable`, if it could not be trained."""

    predicted_heads: list[Head] | None
    probability: Vector | None
    threshold: float | None
    unavailable: str | None
    features: list[str]
    feature_values: Matrix
    trained_on: dict[str, list[Head]]
    leave_one_task_out: dict[str, DetectionCounts]


class Weights(TypedDict):
    """09. Scores [H], compositions [H][H] (sender, receiver)."""

    ov_norm: Vector
    spectral_norm: Vector
    qk_spectral_norm: Vector
    sv_entropy: Vector
    copying: Gaps
    q_composition: GapMatrix
    k_composition: GapMatrix
    v_composition: GapMatrix
    composition_baseline: Moments
    classifier: WeightClassifier


class LearningCoefficients(TypedDict):
    """10. Lists run over H."""

    score: Gaps
    standard_error: Gaps
    r_hat: Gaps
    effective_samples: Gaps
    drift: Gaps
    step_size: Gaps
    acceptance: Gaps
    reason: list[str | None]
    chains: list[Gaps | None]
    trace: list[Gaps | None]
    reliability: float | None
    negative: int
    insufficient: int
    n: int
    beta: float
    gamma: float
    units: dict[str, float]
    n_parameters: int
    loss_at_minimum: float
    draws: int
    burn_in: int
    batch: int
    seed: int


class Condition(TypedDict):
    name: str
    subset: str
    method: str
    draw: int
    recipe: str


class RandomCircuits(TypedDict):
    """`heads` [circuit][k], `logit_diff` [circuit][row], `prompt_index` [row]."""

    heads: list[list[Head]]
    prompt_index: list[int]
    logit_diff: Matrix
    recipe: str
    seed: int


class BaselineCircuits(TypedDict):
    top_k_norm: list[Head]
    top_k_attribution: list[Head]
    selected_on: str


class AblationBattery(TypedDict):
    """20. `logit_diff` [condition][P]."""

    circuit: DeclaredCircuit
    conditions: list[Condition]
    logit_diff: Matrix
    random_circuits: RandomCircuits
    baselines: BaselineCircuits


class Knockouts(TypedDict):
    """21. `effect` [P][H]."""

    effect: Matrix
    recipe: str


class BesideSets(TypedDict):
    """Lists run over the circuit's heads; `effect` [head][P]."""

    sets: list[list[Head]]
    kind: list[str]
    effect: Matrix
    discovery_effect: Vector
    discovery_prompts: int


class Minimality(TypedDict):
    """22. `effect` [head][P], `role_effect` [role][P]."""

    heads: list[Head]
    effect: Matrix
    roles: list[str]
    role_effect: Matrix
    recipe: str
    greedy: BesideSets


class ScrubbedPathway(Pathway):
    name: str
    edges: int


class ScrubbingHypothesis(TypedDict):
    pathways: list[ScrubbedPathway]
    derived: bool
    relevant_edges: int
    edges: int


class CausalScrubbing(TypedDict):
    """24. `everything_relevant` [P], the other runs [draw][P], `without_pathway` [row]."""

    everything_relevant: Vector
    nothing_relevant: Matrix
    scrubbed: Matrix
    heads_only: Matrix
    without_pathway: dict[str, Vector]
    rows: list[int]
    hypothesis: ScrubbingHypothesis
    recipes: list[str]
    seed: int


class AttentionExample(TypedDict):
    tokens: list[str]
    pattern: list[Matrix]


class Attention(TypedDict):
    """25. Scores [H], `to_position` {query role: {key role: [H]}}."""

    entropy: Gaps
    to_position: dict[str, dict[str, Vector]]
    previous_token: Vector
    duplicate_token: Vector
    induction: Vector
    examples: list[AttentionExample]


class HeadStatistics(TypedDict):
    """26. `output_norm` [P][H], `singular_values` [H][d_head], the others [H]."""

    output_norm: Matrix
    discovery_norm: Vector
    mean: Vector
    variance: Vector
    singular_values: Matrix
    prediction_error_ratio: Gaps
    prediction_error_unavailable: str | None


class StoredCircuit(TypedDict):
    name: str | None
    heads: list[Head]


class CompanionTask(TypedDict):
    """`denoising` [prompt][H]."""

    prompt_id: list[str]
    denoising: Matrix
    gap: float
    mean_clean: float
    accuracy: float
    circuit: StoredCircuit


class CrossTask(TypedDict):
    """27."""

    tasks: dict[str, CompanionTask]
    unavailable: dict[str, str]


class EdgeChoice(TypedDict):
    """`effect` [edge]."""

    prompts: int
    effect: Vector
    mean_clean: float


class EdgeCircuits(TypedDict):
    """`kept` [edge], `clean` [P], `logit_diff` {recipe: {form: [P]}}, `faithfulness` {recipe: {form: {split: x}}}."""

    kept: list[bool]
    edges: dict[str, int]
    recipes: dict[str, str]
    clean: Vector
    logit_diff: dict[str, dict[str, Vector]]
    faithfulness: dict[str, dict[str, dict[str, float | None]]]


class EdgesBySize(TypedDict):
    """`logit_diff` {recipe: [size][row]}, `empty` {recipe: [row]}, `faithfulness` {recipe: [size]}."""

    share: Vector
    edges: list[int]
    logit_diff: dict[str, Matrix]
    empty: dict[str, Vector]
    faithfulness: dict[str, Gaps]


class PathPatching(TypedDict):
    """28. Lists run over edges; `noising` and `denoising` [edge][row]."""

    senders: list[Head]
    receivers: list[Head | str]
    receiver_heads: list[list[Head]]
    input: list[str | None]
    rows: list[int]
    noising: Matrix
    denoising: Matrix
    noising_mean: Vector
    denoising_mean: Vector
    discovery: EdgeChoice
    circuit: EdgeCircuits
    edges_by_size: EdgesBySize


MEASUREMENTS: Mapping[str, type] = {
    "01": Baseline,
    "02": ActivationPatching,
    "03": DirectLogitAttribution,
    "04": LogitLens,
    "05": Mediation,
    "06": CausalTracing,
    "07": CausationEntropy,
    "08": AttributionPatching,
    "09": Weights,
    "10": LearningCoefficients,
    "20": AblationBattery,
    "21": Knockouts,
    "22": Minimality,
    "24": CausalScrubbing,
    "25": Attention,
    "26": HeadStatistics,
    "27": CrossTask,
    "28": PathPatching,
}
