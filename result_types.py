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
    companions: NotRequired[list[str]]  # of 27
    rows_sha256: NotRequired[str]  # of prompts from a file: its rows, in whichever format they are written
    judged_by: NotRequired[str]  # of calibrations


class Result(TypedDict):
    """A numbered result: `data` is one of the types below."""

    schema_version: int
    content_sha256: str
    number: str
    id: str
    kind: Literal["measurement", "calibration", "behaviour"]
    subject: Subject
    n: dict[str, int]
    data: Mapping[str, Any]
    records: list[StoredRecord]
    inputs_sha256: dict[str, str]
    environment: Mapping[str, Any]


class AgainstBaseline(TypedDict):
    """A value, the baseline it is to exceed, and the 95 % interval of their difference."""

    value: float
    baseline: float
    ci95: Vector


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
    against_baseline: NotRequired[AgainstBaseline | None]
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
    nodes: NotRequired[list[str]]
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
    mlps: NotRequired[list[int]]
    primary_recipe: NotRequired[str]
    scope: NotRequired[str]


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
    row: NotRequired[list[int]]  # of prompts from a file: the row of each, from 1
    source: NotRequired[PromptSource]


class PromptSource(TypedDict):
    """Of prompts from a file: {row that was left out: why}, and what was chosen for the others, in sentences."""

    left_out: dict[str, str]
    notes: list[str]


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
    row: NotRequired[list[int]]  # of prompts from a file
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
    not_sampled: int
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
    nodes: NotRequired[list[list[str]]]  # all by name, of a claim with MLPs or positions; so in what follows
    prompt_index: list[int]
    logit_diff: Matrix
    recipe: str
    seed: int


class BaselineCircuits(TypedDict):
    top_k_norm: list[Head]
    top_k_attribution: list[Head]
    nodes: NotRequired[dict[str, list[str]]]
    selected_on: str


class FreshPrompts(TypedDict):
    """19. `prompt_id`, `clean` and `circuit` [N], `draws` {seed or "pool": rows}."""

    size: int
    draws: dict[str, list[int]]
    unavailable: dict[str, str]
    prompt_id: list[str]
    clean: Vector
    circuit: Vector


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
    nodes: NotRequired[list[list[str]]]
    kind: list[str]
    effect: Matrix
    discovery_effect: Vector
    discovery_prompts: int


class ClaimedGroup(TypedDict):
    """Claimed heads that are taken out together. `kind`: head, layer, suffix, claim, random or greedy."""

    kind: str
    name: str
    heads: list[Head]
    nodes: NotRequired[list[str]]


class GroupLosses(TypedDict):
    """Under one recipe, averaged over its draws: `model`, `circuit` and `empty` [row], the last two [group][row]."""

    groups: list[int]
    recipe: str
    draws: int
    model: Vector
    circuit: Vector
    empty: Vector
    model_without: Matrix
    circuit_without: Matrix


class ClaimedGroups(TypedDict):
    """Groups taken out of circuit and model, on the prompts `prompt_index`; `recipes` by name, the claim's own first."""

    prompt_index: list[int]
    grouping_prompts: int
    groups: list[ClaimedGroup]
    recipes: dict[str, GroupLosses]


class OutsideSetEffect(TypedDict):
    """Outside heads tried together on one side, "model" or "circuit". `kind`: greedy, positive or negative; `effect` [row]."""

    kind: str
    side: str
    recipe: str
    heads: list[Head]
    nodes: NotRequired[list[str]]
    effect: Vector


class OutsideHeads(TypedDict):
    """`recipes`[recipe][side] is [outside head][row]."""

    prompt_index: list[int]
    grouping_prompts: int
    heads: list[Head]
    nodes: NotRequired[list[str]]
    recipes: dict[str, dict[str, Matrix]]
    sets: list[OutsideSetEffect]


class Minimality(TypedDict):
    """22. `effect` [head][P], `role_effect` [role][P]. Of a claim with MLPs or positions the first axis runs over `nodes`."""

    heads: list[Head]
    nodes: NotRequired[list[str]]
    effect: Matrix
    roles: list[str]
    role_effect: Matrix
    recipe: str
    greedy: BesideSets
    completeness: ClaimedGroups
    outside: OutsideHeads


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
    corrupted_tokens: NotRequired[list[str]]  # results of an older version have the clean run alone
    corrupted_pattern: NotRequired[list[Matrix]]


class Attention(TypedDict):
    """25. Scores [H], `to_position` {query role: {key role: [H]}}."""

    entropy: Gaps
    to_position: dict[str, dict[str, Vector]]
    previous_token: Vector
    duplicate_token: Vector
    induction: Vector
    examples: list[AttentionExample]


class HeadStatistics(TypedDict):
    """26. `output_norm`, `output_norm_raw` [P][H], `singular_values` [H][d_head], the others [H]."""

    output_norm: Matrix
    output_norm_raw: Matrix
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
    """`template` and `cluster` [prompt], `denoising` [prompt][H]."""

    prompt_id: list[str]
    row: NotRequired[list[int]]  # of a companion from a file
    template: list[str]
    cluster: list[str]
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


class EdgesNotPatched(TypedDict):
    """Of more edges than most_edges, those that are ranked behind the others, by attribution, whose `unit` is told; `kept`
    edge-wise."""

    edges: int
    unit: NotRequired[str]
    largest_attribution: float
    sum_of_attributions: float
    kept: int


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
    not_patched: EdgesNotPatched | None
    circuit: EdgeCircuits
    edges_by_size: EdgesBySize


# --- behavioural suites ----------------------------------------------------------------------------------------------


class Bounds(TypedDict):
    """A confidence interval."""

    low: float
    high: float
    level: float
    method: str


class SuitesSubject(TypedDict):
    """What suites were run on: `suites` has the hash of each by its id."""

    model: str
    identity: Mapping[str, Any]
    model_fingerprint: str
    suites: dict[str, str]


class EstimateRecord(TypedDict):
    """One estimate of one suite, or of all (`suite` null)."""

    metric_id: str
    suite: str | None
    family: str
    role: Literal["confirmatory", "exploratory", "descriptive"]
    subject: dict[str, str | None]
    direction: str
    threshold: float | None
    passed: bool | None
    evidence: list[str]
    value: float | None
    unit: str
    baseline: dict[str, Any] | None
    n: int
    n_excluded: dict[str, int]
    ci: Bounds | None
    p_value: float | None
    test: str | None
    effect: dict[str, Any] | None
    status: str
    reason: str
    assumptions: list[str]
    detail: Mapping[str, Any]


class SuitesResult(TypedDict):
    """101 to 115, 121 and 131: `data` is one of the next three types."""

    schema_version: int
    content_sha256: str
    number: str
    id: str
    kind: Literal["behaviour"]
    subject: SuitesSubject
    n: dict[str, int]
    data: Mapping[str, Any]
    records: list[EstimateRecord]
    inputs_sha256: dict[str, str]
    environment: Mapping[str, Any]


class ShownFailure(TypedDict):
    """One of a suite's worst failures, in full."""

    item: str
    prompt: str
    expected: list[str]
    output: str
    subtype: str
    evidence: str
    span: list[int] | None
    severity: Literal["low", "medium", "high"]
    tier: Literal["heuristic", "verified"]


class SuiteGate(TypedDict):
    """The largest failure rate that passes, and whether it did; `distrust`: why no gate rests on the verdicts."""

    failure_rate: float
    reason: str
    passed: bool | None
    distrust: str | None


class SuiteSummary(TypedDict):
    """One suite in the result of its failure mode. `failures`: ids of the items that failed."""

    title: str
    version: str
    sha256: str
    settings: Mapping[str, Any]
    applies: bool
    reason: str
    counts: dict[str, int]
    tiers: list[str]
    legs_dropped: dict[str, str]
    gate: SuiteGate | None
    minimum: int
    failures: list[str]
    worst: list[ShownFailure]


class FailureMode(TypedDict):
    """101 to 115: one failure mode over its suites, by id."""

    mode: str
    title: str
    tier: str
    traceable: Literal["yes", "partly", "no"]
    trace_note: str
    suites: dict[str, SuiteSummary]


class RiskCoverageCurve(TypedDict):
    """Risk among the share `coverage` of items with a confidence above `threshold` (null: infinite)."""

    threshold: Gaps
    coverage: Vector
    risk: Vector


class ChoiceLikelihoods(TypedDict):
    """121. By suite."""

    risk_coverage: dict[str, RiskCoverageCurve]


class TaxonomyCoverage(TypedDict):
    """131. Failure modes with suites that say something (`live`: their ids), and why the others have none."""

    context: str | None
    relevant: list[str]
    live: dict[str, list[str]]
    missing: dict[str, str]


class StoredPair(TypedDict):
    """A failing prompt (`corrupted`) beside its passing twin (`clean`): `suites.bridge.pair.TracePair`."""

    source: str
    partner: str
    strategy: str
    template: str
    cluster: str
    clean: str
    corrupted: str
    answer: str
    wrong: str
    joint: str
    changed: list[int]
    positions: dict[str, list[int]]
    clean_logit_diff: float
    corrupted_logit_diff: float


class StoredReference(TypedDict):
    """`suites.bridge.pair.ReferencePrompt`."""

    text: str
    template: str
    cluster: str
    positions: dict[str, list[int]]


class StoredSuitePairs(TypedDict):
    """`suites.bridge.pair.SuitePairs`."""

    suite: str
    mode: str
    title: str
    failures: int
    pairs: list[StoredPair]
    references: list[StoredReference]
    rejected: dict[str, int]
    bos: bool
    sha256: str
    related: list[str]


class PairCounts(TypedDict):
    """What became of one suite's failures."""

    suite: str
    mode: str
    failures: int
    traceable: int
    rejected: dict[str, int]


class PairSubject(TypedDict):
    """The model's identity, and the hash of every suite that was run."""

    model: Mapping[str, Any]
    suites: dict[str, str]


class PairGroups(TypedDict):
    """The data of 132."""

    groups: list[StoredSuitePairs]


class TracePairsResult(TypedDict):
    """132, all of it."""

    schema_version: int
    content_sha256: str
    number: str
    id: str
    kind: Literal["behaviour"]
    subject: PairSubject
    n: dict[str, int]
    data: PairGroups
    records: list[PairCounts]


class TracedSuite(TypedDict):
    """Whose failures were traced."""

    suite: str
    suite_sha256: str
    mode: str
    pairs: int
    failures: int


class NamedHead(TypedDict):
    """A head and the share of the difference that it alone restores, with an interval that holds all heads at once."""

    head: str
    restored: float
    low: float
    high: float
    broken: float
    selected: float


class TraceResult(TypedDict):
    """141, all of it: `data` is what `circuits.difference.trace` found on the discovery half."""

    schema_version: int
    content_sha256: str
    number: str
    id: str
    kind: Literal["behaviour"]
    subject: Mapping[str, Any]
    environment: Mapping[str, Any]
    group: TracedSuite
    data: Mapping[str, Any]
    named: list[NamedHead]
    unstable: list[NamedHead]
    search: Mapping[str, Any] | None
    circuit_sha256: str | None


class HeadVerdict(TypedDict):
    """What the confirmation half says of a named head."""

    head: str
    restored: float
    interval: Vector | None
    p: float | None
    verdict: Literal["confirmed", "refuted", "undecided"]


class CarriersResult(TypedDict):
    """142, all of it."""

    schema_version: int
    content_sha256: str
    number: str
    id: str
    kind: Literal["behaviour"]
    subject: Mapping[str, Any]
    group: TracedSuite
    records: list[HeadVerdict]
    inputs_sha256: dict[str, str]


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
    "19": FreshPrompts,
    "20": AblationBattery,
    "21": Knockouts,
    "22": Minimality,
    "24": CausalScrubbing,
    "25": Attention,
    "26": HeadStatistics,
    "27": CrossTask,
    "28": PathPatching,
}
