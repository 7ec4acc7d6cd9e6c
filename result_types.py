"""The contents of numbered results, one type for each number, for pyright and for the checks of `result_schemas`.

results/README.md describes each field. Lists are named by the axes they run over: P prompts, H heads (row-major), L layers,
R position roles. At run time a result is plain JSON data, as `results_io.read` returns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict


@dataclass(frozen=True)
class Over:
    """The axes of a nested list, from the outside in: "P H" is [P][H]. `below`: its numbers are indices of this axis.

    P and H are those of the whole result, with the lengths in its `n`; any other letter is an axis within one object.
    """

    axes: str
    below: str = ""

    @property
    def names(self) -> list[str]:
        return self.axes.split()


Split = Literal["evaluation", "held_out"]
EstimateStatus = Literal["ok", "insufficient_data", "undefined", "not_applicable", "off", "error"]
EstimateRole = Literal["confirmatory", "exploratory", "descriptive"]
Head = Annotated[list[int], Over("2")]  # [layer, head]
Vector = list[float]
Matrix = list[list[float]]
Gaps = list[float | None]  # null: no value for this entry
GapMatrix = list[list[float | None]]
OverPrompts = Annotated[Vector, Over("P")]
OverHeads = Annotated[Vector, Over("H")]
PromptsByHeads = Annotated[Matrix, Over("P H")]
GapsOfHeads = Annotated[Gaps, Over("H")]
Composition = Annotated[GapMatrix, Over("H H")]
Rows = Annotated[list[int], Over("S", below="P")]  # indices of prompts


# --- what all results share ------------------------------------------------------------------------------------------


class StoredDocument(TypedDict):
    """Every file that `results_io.write` writes."""

    schema_version: int
    content_sha256: str


class ResultName(TypedDict):
    number: str
    id: str


class NumberedResult(StoredDocument, ResultName):
    """A file with a number."""


class Bounds(TypedDict):
    """A confidence interval."""

    low: float
    high: float
    level: float
    method: str


class StoredValue(TypedDict):
    """A value, or null with the reason why there is none."""

    value: float | None
    unit: str
    n: int
    n_excluded: dict[str, int]
    ci: Bounds | None
    p_value: float | None
    test: str | None
    status: EstimateStatus
    reason: str
    assumptions: list[str]


class StoredEstimate(StoredValue):
    """A `suites.estimate.Estimate` as it is stored."""

    detail: Mapping[str, Any]


class PublishedNumber(TypedDict):
    """What a paper's formula gives on the same data; null where it has no value, and `note` says why."""

    value: float | None
    formula: str
    note: str


# --- the envelope ----------------------------------------------------------------------------------------------------


class SubjectWithoutSettings(TypedDict):
    """What a result is of, and of what code."""

    model: str
    model_sha256: str
    task: str
    prompts_sha256: str
    circuit: str | None
    circuit_sha256: str | None
    bos: NotRequired[bool]  # of measurements
    device: NotRequired[str]
    dtype: NotRequired[str]
    torch: NotRequired[str]
    metric: NotRequired[str]
    measured_by: NotRequired[str]
    stored_circuits: NotRequired[dict[str, str] | None]
    companions: NotRequired[list[str]]  # of 27
    companions_sha256: NotRequired[str]  # of 27, if companions come from files
    rows_sha256: NotRequired[str]  # for prompts from a file: digest of its rows, independent of the file's format
    judged_by: NotRequired[str]  # of calibrations


class Subject(SubjectWithoutSettings):
    """What a result is of: it is stale where one of these has changed."""

    settings: Mapping[str, Any]


class Result(NumberedResult):
    """A numbered result: `data` is one of the types below."""

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


class CalibrationData(TypedDict):
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


class StoredRole(TypedDict):
    heads: list[Head]
    nodes: NotRequired[list[str]]
    ordinal: int | None
    sign: Literal[1, -1]
    assigned_by: str
    evidence: str


class StoredPathway(TypedDict):
    sender: str
    receiver: str
    input: str | None


class DeclaredCircuit(TypedDict):
    name: str
    task: str
    model: str
    roles: dict[str, StoredRole]
    provenance: Mapping[str, Any]
    pathways: NotRequired[list[StoredPathway]]
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

    prompt_id: Annotated[list[str], Over("P")]
    split: Annotated[list[Split], Over("P")]
    template: Annotated[list[Any], Over("P")]
    cluster: Annotated[list[Any], Over("P")]
    factors: dict[str, Annotated[list[Any], Over("P")]]
    clean_logit_diff: OverPrompts
    corrupted_logit_diff: OverPrompts
    clean_in_logits: NotRequired[OverPrompts]  # older results lack it, and their metric is the logit difference
    correct: Annotated[list[bool], Over("P")]
    top1: Annotated[list[bool], Over("P")]
    metric: NotRequired[str]
    answer_probability: OverPrompts
    foil_probability: OverPrompts
    accuracy: dict[str, float]
    heads: Annotated[list[Head], Over("H")]
    n_layers: int
    n_heads_per_layer: int
    examples: list[PromptExample]
    row: NotRequired[Annotated[list[int], Over("P")]]  # for prompts from a file: the row of each, from 1
    source: NotRequired[PromptSource]


class PromptSource(TypedDict):
    """Of prompts from a file: {row that was left out: why}, and what was chosen for the others, in sentences."""

    left_out: dict[str, str]
    notes: list[str]


class PatchedSites(TypedDict):
    rows: Rows
    roles: list[str]
    denoising: BySite


class ActivationPatching(TypedDict):
    """02. `denoising` and `noising` [P][H]."""

    denoising: PromptsByHeads
    noising: PromptsByHeads
    sites: PatchedSites


class DirectLogitAttribution(TypedDict):
    """03. `attribution` [P][H], `mlp` [P][L], `embedding` and `bias` [P]."""

    attribution: PromptsByHeads
    mlp: Annotated[Matrix, Over("P L")]
    embedding: OverPrompts
    bias: OverPrompts
    max_error: float


class LensByPosition(TypedDict):
    rows: Rows
    roles: Annotated[list[str], Over("R")]
    probability: Annotated[Matrix, Over("D R")]
    logit_diff: Annotated[Matrix, Over("D R")]


class LensExample(TypedDict):
    tokens: Annotated[list[str], Over("T")]
    top_token: Annotated[list[list[str]], Over("D T")]
    top_probability: Annotated[Matrix, Over("D T")]
    logit_diff: Annotated[Matrix, Over("D T")]


class LogitLens(TypedDict):
    """04. `rank`, `probability`, `logit_diff` [L+1][P]; `emergence_layer` [P]."""

    rank: Annotated[list[list[int]], Over("D P")]
    probability: Annotated[Matrix, Over("D P")]
    logit_diff: Annotated[Matrix, Over("D P")]
    emergence_layer: Annotated[list[int | None], Over("P")]
    max_error: float
    by_position: LensByPosition
    examples: list[LensExample]


class Mediation(TypedDict):
    """05. `total` [P], the others [P][H]."""

    total: OverPrompts
    natural_direct: PromptsByHeads
    natural_indirect: PromptsByHeads
    interaction: PromptsByHeads
    direct_path: NotRequired[PromptsByHeads]  # left out by experiment=validate_calibrations
    downstream: NotRequired[PromptsByHeads]


class CausalTracing(TypedDict):
    """06."""

    corruption: Mapping[str, Any]
    strategies: list[str]
    roles: list[str]
    rows: Rows
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

    score: OverHeads
    marginal: OverHeads
    selected: list[Head]
    forward: list[SelectionStep]
    rejected: SelectionStep | None
    pruned: list[SelectionStep]


class SelectionStability(TypedDict):
    frequency: OverHeads
    mean_jaccard: float
    refits: int


class CausationEntropy(EntropySelection):
    """07."""

    explained_variance: float
    nearest_neighbour: EntropySelection
    stability: SelectionStability
    constant: list[Head]
    prompt_id: list[str]
    row: NotRequired[list[int]]  # for prompts from a file
    settings: Mapping[str, Any]


class NodeAttribution(TypedDict):
    """All [head]."""

    heads: Annotated[list[Head], Over("N")]
    effect: Annotated[Vector, Over("N")]
    effect_standard_error: Annotated[Vector, Over("N")]
    corrected: Annotated[Vector, Over("N")] | None
    corrected_standard_error: Annotated[Vector, Over("N")] | None


class NodeAttributions(TypedDict):
    base: str
    q: NodeAttribution
    k: NodeAttribution
    v: NodeAttribution


class EdgeScoresByMethod(TypedDict):
    """[reader][writer], null where there is no edge."""

    eap: Annotated[GapMatrix, Over("R W")]
    eap_ig_inputs: Annotated[GapMatrix, Over("R W")]
    eap_ig_activations: Annotated[GapMatrix, Over("R W")]


class EdgeAttributions(EdgeScoresByMethod):
    writers: Annotated[list[str], Over("W")]
    readers: Annotated[list[str], Over("R")]
    base: str
    prompts: int
    steps: int
    standard_error: EdgeScoresByMethod
    embedding_sum: dict[str, float]
    total_effect: float


class AttributionPatching(TypedDict):
    """08. `effect`, `noising`, `effect_graddrop` [P][H]."""

    effect: PromptsByHeads
    noising: PromptsByHeads
    effect_graddrop: PromptsByHeads | None
    rows: Rows
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

    ov_norm: OverHeads
    spectral_norm: OverHeads
    qk_spectral_norm: OverHeads
    sv_entropy: OverHeads
    copying: GapsOfHeads
    q_composition: Composition
    k_composition: Composition
    v_composition: Composition
    composition_baseline: Moments
    classifier: WeightClassifier


class LearningCoefficients(TypedDict):
    """10. Lists run over H."""

    score: GapsOfHeads
    standard_error: GapsOfHeads
    r_hat: GapsOfHeads
    effective_samples: GapsOfHeads
    drift: GapsOfHeads
    step_size: GapsOfHeads
    acceptance: GapsOfHeads
    reason: Annotated[list[str | None], Over("H")]
    chains: Annotated[list[Gaps | None], Over("H")]
    trace: Annotated[list[Gaps | None], Over("H")]
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

    heads: Annotated[list[list[Head]], Over("C")]
    nodes: NotRequired[list[list[str]]]  # all by name, for a claim with MLPs or positions; likewise below
    prompt_index: Rows
    logit_diff: Annotated[Matrix, Over("C S")]
    recipe: str
    seed: int
    any_layers: NotRequired[Literal[True]]  # too few sets match the circuit's layers, so only its size is matched


class BaselineCircuits(TypedDict):
    top_k_norm: list[Head]
    top_k_attribution: list[Head]
    nodes: NotRequired[dict[str, list[str]]]
    selected_on: str


class FreshPrompts(TypedDict):
    """19. `prompt_id`, `clean` and `circuit` [N], `draws` {seed or "pool": rows}."""

    size: int
    draws: dict[str, Annotated[list[int], Over("", below="N")]]
    unavailable: dict[str, str]
    prompt_id: Annotated[list[str], Over("N")]
    clean: Annotated[Vector, Over("N")]
    circuit: Annotated[Vector, Over("N")]


class AblationBattery(TypedDict):
    """20. `logit_diff` [condition][P]."""

    circuit: DeclaredCircuit
    conditions: Annotated[list[Condition], Over("V")]
    logit_diff: Annotated[Matrix, Over("V P")]
    random_circuits: RandomCircuits
    baselines: BaselineCircuits


class Knockouts(TypedDict):
    """21. `effect` [P][H]."""

    effect: PromptsByHeads
    recipe: str


class BesideSets(TypedDict):
    """Lists run over the circuit's heads; `effect` [head][P]."""

    sets: Annotated[list[list[Head]], Over("K")]
    nodes: NotRequired[list[list[str]]]
    kind: Annotated[list[str], Over("K")]
    effect: Annotated[Matrix, Over("K P")]
    discovery_effect: Annotated[Vector, Over("K")]
    discovery_prompts: int


class ClaimedGroup(TypedDict):
    """Claimed heads that are taken out together. `kind`: head, layer, suffix, claim, random or greedy."""

    kind: str
    name: str
    heads: list[Head]
    nodes: NotRequired[list[str]]


class GroupLosses(TypedDict):
    """Under one recipe, averaged over its draws: `model`, `circuit` and `empty` [row], the last two [group][row]."""

    groups: Annotated[list[int], Over("G")]
    recipe: str
    draws: int
    model: Annotated[Vector, Over("S")]
    circuit: Annotated[Vector, Over("S")]
    empty: Annotated[Vector, Over("S")]
    model_without: Annotated[Matrix, Over("G S")]
    circuit_without: Annotated[Matrix, Over("G S")]


class ClaimedGroups(TypedDict):
    """Groups taken out of circuit and model, on the prompts `prompt_index`; `recipes` by name, the claim's own first."""

    prompt_index: Rows
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

    prompt_index: Rows
    grouping_prompts: int
    heads: list[Head]
    nodes: NotRequired[list[str]]
    recipes: dict[str, dict[str, Matrix]]
    sets: list[OutsideSetEffect]


class Minimality(TypedDict):
    """22. `effect` [head][P], `role_effect` [role][P]. Of a claim with MLPs or positions the first axis runs over `nodes`."""

    heads: list[Head]
    nodes: NotRequired[list[str]]
    effect: Annotated[Matrix, Over("K P")]
    roles: Annotated[list[str], Over("R")]
    role_effect: Annotated[Matrix, Over("R P")]
    recipe: str
    greedy: BesideSets
    completeness: ClaimedGroups
    outside: OutsideHeads


class ScrubbedPathway(StoredPathway):
    name: str
    edges: int


class ScrubbingHypothesis(TypedDict):
    pathways: list[ScrubbedPathway]
    derived: bool
    relevant_edges: int
    edges: int


class CausalScrubbing(TypedDict):
    """24. `everything_relevant` [P], the other runs [draw][P], `without_pathway` [row]."""

    everything_relevant: OverPrompts
    nothing_relevant: Annotated[Matrix, Over("D P")]
    scrubbed: Annotated[Matrix, Over("D P")]
    heads_only: Annotated[Matrix, Over("D P")]
    without_pathway: dict[str, Annotated[Vector, Over("S")]]
    rows: Rows
    hypothesis: ScrubbingHypothesis
    recipes: list[str]
    seed: int


class AttentionExample(TypedDict):
    tokens: list[str]
    pattern: list[Matrix]
    corrupted_tokens: NotRequired[list[str]]  # results of older versions have only the clean run
    corrupted_pattern: NotRequired[list[Matrix]]


class Attention(TypedDict):
    """25. Scores [H], `to_position` {query role: {key role: [H]}}."""

    entropy: GapsOfHeads
    to_position: dict[str, dict[str, OverHeads]]
    previous_token: OverHeads
    duplicate_token: OverHeads
    induction: OverHeads
    examples: list[AttentionExample]


class HeadStatistics(TypedDict):
    """26. `output_norm`, `output_norm_raw` [P][H], `singular_values` [H][d_head], the others [H]."""

    output_norm: PromptsByHeads
    output_norm_raw: PromptsByHeads
    discovery_norm: OverHeads
    mean: OverHeads
    variance: OverHeads
    singular_values: Annotated[Matrix, Over("H d")]
    prediction_error_ratio: GapsOfHeads
    prediction_error_unavailable: str | None


class StoredCircuit(TypedDict):
    name: str | None
    heads: list[Head]


class CompanionTask(TypedDict):
    """`template` and `cluster` [prompt], `denoising` [prompt][H]."""

    prompt_id: Annotated[list[str], Over("Q")]
    row: NotRequired[list[int]]  # for a companion from a file
    template: Annotated[list[str], Over("Q")]
    cluster: Annotated[list[str], Over("Q")]
    denoising: Annotated[Matrix, Over("Q H")]
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

    kept: Annotated[list[bool], Over("E")]
    edges: dict[str, int]
    recipes: dict[str, str]
    clean: OverPrompts
    logit_diff: dict[str, dict[str, OverPrompts]]
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

    senders: Annotated[list[Head], Over("E")]
    receivers: Annotated[list[Head | str], Over("E")]
    receiver_heads: Annotated[list[list[Head]], Over("E")]
    input: Annotated[list[str | None], Over("E")]
    rows: Rows
    noising: Annotated[Matrix, Over("E S")]
    denoising: Annotated[Matrix, Over("E S")]
    noising_mean: Annotated[Vector, Over("E")]
    denoising_mean: Annotated[Vector, Over("E")]
    discovery: EdgeChoice
    not_patched: EdgesNotPatched | None
    circuit: EdgeCircuits
    edges_by_size: EdgesBySize


# --- behavioural suites ----------------------------------------------------------------------------------------------


class SuitesSubject(TypedDict):
    """What suites were run on: `suites` has the hash of each by its id."""

    model: str
    identity: Mapping[str, Any]
    model_fingerprint: str
    suites: dict[str, str]


class EstimateRecord(StoredEstimate):
    """One estimate of one suite, or of all (`suite` null)."""

    metric_id: str
    suite: str | None
    family: str
    role: EstimateRole
    subject: dict[str, str | None]
    direction: str
    threshold: float | None
    passed: bool | None
    evidence: list[str]
    baseline: dict[str, Any] | None
    effect: dict[str, Any] | None


class SuitesEnvelope(NumberedResult):
    """101 to 116, 121 and 131, without their data."""

    kind: Literal["behaviour"]
    subject: SuitesSubject
    n: dict[str, int]
    records: list[EstimateRecord]
    inputs_sha256: dict[str, str]
    environment: Mapping[str, Any]


class SuitesResult(SuitesEnvelope):
    """101 to 116, 121 and 131: `data` is one of the next three types."""

    data: Mapping[str, Any]


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


class FailureModeResult(SuitesEnvelope):
    """101 to 116, and those of safety suites and programs, all of it."""

    data: FailureMode


class RiskCoverageCurve(TypedDict):
    """Risk among the share `coverage` of items with a confidence above `threshold` (null: infinite)."""

    threshold: Annotated[Gaps, Over("T")]
    coverage: Annotated[Vector, Over("T")]
    risk: Annotated[Vector, Over("T")]


class RiskOfAnswers(TypedDict):
    coverage: float | None
    answered: int
    risk: float | None
    risk_upper: float | None


class ThresholdMissing(TypedDict):
    """Why there is no threshold."""

    status: EstimateStatus
    reason: str


class ThresholdFound(ThresholdMissing):
    """`threshold`: answer above it, null: always; `holds`: whether the risk of the other half is below `limit`."""

    threshold: float | None
    limit: float
    chosen: RiskOfAnswers
    checked: RiskOfAnswers
    holds: bool


class ChoiceLikelihoods(TypedDict):
    """121. By suite. `threshold`: the smallest confidence at which the risk stays below `sla`, if that was asked for."""

    risk_coverage: dict[str, RiskCoverageCurve]
    sla: float | None
    threshold: dict[str, ThresholdFound | ThresholdMissing]


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


class TracePairsResult(NumberedResult):
    """132, all of it."""

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


class NamingSettings(TypedDict):
    """By what heads are named: `suites.bridge.hypothesis`."""

    minimum_share: float
    level: float
    stable: float
    halves: int
    seed: int


class TraceSettings(TypedDict):
    difference: NamingSettings
    discovery: Mapping[str, Any]
    repeated_tokens: Mapping[str, Any]
    seed: int


class TraceSubject(SubjectWithoutSettings):
    settings: TraceSettings
    suite: str
    method: str
    traced_by: str


class AttentionOfRun(TypedDict):
    """From the answer position, [head]: `to` by position role."""

    entropy: Gaps
    first: Vector
    to: dict[str, Vector]


class AttentionOfRuns(TypedDict):
    clean: AttentionOfRun
    corrupted: AttentionOfRun


class EmergenceOfRuns(TypedDict):
    """`clean` and `corrupted` [layer]; the layers from which each prompt's answer and foil lead."""

    clean: Vector
    corrupted: Vector
    answer_leads_from: list[int | None]
    foil_leads_from: list[int | None]
    max_error: float


class TracedSites(TypedDict):
    """Shares restored and broken, and the change of probability, [layer][role]."""

    restored: BySite
    broken: BySite
    impact: BySite


class EffectsByPrompt(TypedDict):
    restored: Annotated[Matrix, Over("N S")]
    broken: Annotated[Matrix, Over("N S")]
    gap: Annotated[Vector, Over("S")]


class TracedHeads(TypedDict):
    names: Annotated[list[str], Over("N")]
    restored: Annotated[Gaps, Over("N")]
    broken: Annotated[Vector, Over("N")]
    impact: Annotated[Vector, Over("N")]
    by_prompt: EffectsByPrompt
    clusters: list[str]


class TraceLimits(TypedDict):
    nothing: float
    everything: float


class TracedDifference(TypedDict):
    """`circuits.difference.trace`."""

    prompts: int
    clusters: int
    skipped: int
    gap: float
    roles: list[str]
    attention: AttentionOfRuns
    emergence: EmergenceOfRuns
    sites: TracedSites
    heads: TracedHeads
    limits: TraceLimits


class TraceResult(NumberedResult):
    """141, all of it: `data` is what `circuits.difference.trace` found on the discovery half."""

    kind: Literal["behaviour"]
    subject: TraceSubject
    environment: Mapping[str, Any]
    group: TracedSuite
    data: TracedDifference
    named: list[NamedHead]
    unstable: list[NamedHead]
    search: Mapping[str, Any] | None
    circuit_sha256: str | None


class HeadVerdict(TypedDict):
    """What the confirmation half says of a named head."""

    head: str
    restored: float
    interval: Annotated[Vector, Over("2")] | None
    p: float | None
    verdict: Literal["confirmed", "refuted", "undecided"]


class CarriersResult(NumberedResult):
    """142, all of it."""

    kind: Literal["behaviour"]
    subject: TraceSubject
    group: TracedSuite
    records: list[HeadVerdict]
    inputs_sha256: dict[str, str]


class HeldItem(TypedDict):
    """An item that a corpus holds: the first of its n-grams that is there, and where: `offset` words into the document."""

    item: str
    share: float
    n: int
    gram: str
    file: str
    record: int | None
    offset: int


class HeldSuite(TypedDict):
    """The flagged items of a suite, and the run that the accuracies are of (`run_id`, `finished`).

    `canary_in`: the files of the corpus that hold the suite's canary.
    """

    flagged: list[HeldItem]
    run: dict[str, str] | None
    canary_in: NotRequired[list[str]]


class CorpusOverlap(TypedDict):
    """191, by suite."""

    suites: dict[str, HeldSuite]


class AlikePassage(TypedDict):
    """An item beside a passage of the corpus; null: too short, or no embedder."""

    item: str
    file: str
    line: int
    passage: str
    jaccard: float | None
    cosine: float | None


class AlikePassages(TypedDict):
    """192, by suite. `cosine`: its limit, null if no embedder compared them."""

    threshold: float
    cosine: float | None
    permutations: int
    shingle: int
    suites: dict[str, list[AlikePassage]]


class SuiteGaps(TypedDict):
    """`gaps` of pairs by item (nats a token); `descriptive`: why nothing rests on them, null if there is a comparison."""

    gaps: dict[str, float]
    descriptive: str | None
    pairs_sha256: str


class LossGaps(TypedDict):
    """193, by suite."""

    suites: dict[str, SuiteGaps]


class Canaries(TypedDict):
    """194: the GUID of every suite, and how many random ones it is ranked among."""

    canaries: dict[str, str | None]
    alternatives: int


class ContaminationRecord(StoredEstimate):
    """One estimate of one suite, or of all (`suite` null)."""

    metric_id: str
    suite: str | None
    family: str
    role: EstimateRole


class ContaminationResult(NumberedResult):
    """191 to 194: `data` is one of the types before."""

    kind: Literal["contamination"]
    subject: Mapping[str, Any]
    n: dict[str, int]
    data: Mapping[str, Any]
    records: list[ContaminationRecord]
    environment: Mapping[str, Any]


# --- the regression gate ---------------------------------------------------------------------------------------------


class GateSubject(TypedDict):
    baseline: str
    candidate: str


class GateSettings(TypedDict):
    """Those of configs/gate/default.yaml, and what replaced them."""

    alpha: float
    margin: float
    power: float
    minimum_items: int
    minimum_overlap: float
    metrics: list[str]
    require: Literal["each_suite", "pooled"]
    floor: float | None
    margins: dict[str, float]
    floors: dict[str, float]


class BaselineRate(TypedDict):
    value: float | None
    kind: str
    source: str


class CandidateRate(TypedDict):
    value: float | None
    ci: Bounds | None


class NamedEffect(TypedDict):
    name: str
    value: float


class GateThreshold(TypedDict):
    margin: float
    floor: float | None


class GateRecord(StoredEstimate):
    """One metric of one suite: the estimate is candidate - baseline."""

    metric_id: str
    suite: str
    family: Literal["R"]
    role: Literal["confirmatory", "exploratory"]
    analysis: Literal["judged_in_both", "missing_as_loss"]
    missing_as_loss: int
    direction: str
    baseline: BaselineRate
    candidate: CandidateRate
    adjusted_p: float | None
    noninferiority_p: float | None
    effect: NamedEffect | None
    reproducibility: Mapping[str, Any] | None
    confidence_shift: Mapping[str, Any] | None
    items_for_width: dict[str, int] | None
    minimum_detectable_effect: float | None
    design_effect: float | None
    threshold: GateThreshold
    passed: bool | None
    verdict: Literal["pass", "fail", "inconclusive"]


class RegressionGateResult(NumberedResult):
    """151, all of it."""

    kind: Literal["regression_gate"]
    subject: GateSubject
    verdict: Literal["pass", "fail", "inconclusive"]
    exit_code: int
    reasons: list[str]
    settings: GateSettings
    environment: Mapping[str, Any]
    inputs_sha256: dict[str, str]
    records: list[GateRecord]


# --- drift -----------------------------------------------------------------------------------------------------------


class DriftRow(TypedDict):
    """What every record of a snapshot says. `snapshot` stands in 161 to 168, where records of all are together."""

    metric: str
    name: str
    axis: str | None
    p: float | None
    snapshot: NotRequired[str]


class StatedRow(DriftRow):
    unit: str
    status: EstimateStatus | Literal["gap"]
    reason: str


class LevelRow(StatedRow):
    """The level of a metric on an axis; without ends and `n` where it does not apply, or the whole snapshot is a gap."""

    level: Literal["level"]
    detail: Mapping[str, Any]
    value: float | None
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    n: NotRequired[int]


class ComparedDetail(TypedDict, total=False):
    """`prompts`: those with a value in both snapshots. Other keys are the metric's own."""

    prompts: int
    standard_error: float | None


class ComparedRow(StatedRow):
    """A change between two snapshots, or (`overlap`) two versions of a prompt, and its test."""

    detail: ComparedDetail
    difference: float | None
    direction: float | None
    test: str | None
    n: int
    prompt: str | None
    harm: str | None
    before: float | None
    after: float | None
    detectable: float | None


class FamilyTest(TypedDict):
    """What a test's family of `m` makes of its p. `flag` stands in manifests."""

    m: int
    excluded: int
    adjusted_p: float | None
    rejected: bool
    flag: NotRequired[str | None]


class ChangeRow(ComparedRow, FamilyTest):
    """Of an axis, a single prompt (with `ci`), or the prompts of one kind of harm. `role` stands in manifests."""

    level: Literal["axis", "prompt", "harm"]
    ci: NotRequired[Bounds | None]
    role: NotRequired[Literal["primary", "exploratory", "exploratory: the detector is not locked"]]


class OverlapRow(ComparedRow):
    level: Literal["overlap"]


class HeldOutGapRow(StoredEstimate, DriftRow, FamilyTest):
    """Of the metric `of`."""

    level: Literal["held_out_gap"]
    of: str
    difference: float | None
    direction: float | None
    detectable: float | None


class UntestedRow(StatedRow):
    """The centroid before there is a second snapshot."""

    level: Literal["axis"]
    value: None
    detail: dict[str, int]


class SilentUpdateDetail(TypedDict, total=False):
    """`have` and `need`: snapshots; `shuffled_rate`: how often the rule fires in random order."""

    have: int
    need: int
    evidence: str
    shuffled_rate: float | None


class SilentUpdateRow(StatedRow):
    """`value`: "proven", "candidate" or "none"."""

    level: Literal["snapshot"]
    value: str | None
    flag: str | None
    detail: SilentUpdateDetail


class ChangePointsDetail(TypedDict, total=False):
    """`have` and `need`: snapshots in a row; `at`: those that begin a segment."""

    have: int
    need: int
    at: list[str]
    low_power: bool
    excess_variance: float


class ChangePointsRow(StoredValue, DriftRow):
    """Of the series of the metric `of`."""

    level: Literal["series"]
    detail: ChangePointsDetail
    of: str


ComparisonRow = ChangeRow | HeldOutGapRow
ManifestRow = ComparisonRow | LevelRow | ChangePointsRow | OverlapRow | SilentUpdateRow | UntestedRow


class SeriesPoint(TypedDict):
    """A level of the history. `n` and `detail` are those of a snapshot that was taken."""

    snapshot: str
    metric: str
    name: str
    axis: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    status: EstimateStatus | Literal["gap"]
    reason: str
    n: NotRequired[int]
    detail: NotRequired[Mapping[str, Any]]


class DriftAlarm(TypedDict):
    metric: str
    name: str
    axis: str
    difference: float | None
    direction: float | None
    p: float | None
    adjusted_p: float | None
    reason: str


class KnownGap(TypedDict):
    """`affected`: calls that failed by axis, or {"cells": outputs that lack} (null: unknown) of a `whole` snapshot."""

    snapshot: str
    cause: str
    affected: dict[str, int | None]
    whole: bool


class StatusRow(TypedDict):
    metric: str
    name: str
    status: str
    note: str


class SnapshotStatusRow(StatusRow):
    snapshot: str


class DecidedClaim(TypedDict):
    """A registered hypothesis; `p` and `difference` once it is no longer open."""

    claim: str
    snapshot: str | None
    outcome: Literal["supported", "not supported", "open"]
    role: str
    p: NotRequired[float]
    difference: NotRequired[float]


class SeriesEvent(TypedDict):
    snapshot: str
    previous: str | None
    alarms: list[DriftAlarm]
    gap: bool
    declared_version: str | None


class AskedLeg(TypedDict):
    """`temperature` null: none was sent."""

    name: str
    samples: int
    temperature: float | None


class AskedModel(TypedDict):
    name: str
    identity: Mapping[str, Any]


class PublicMessage(TypedDict):
    role: str
    content: str


class PublicPrompt(TypedDict):
    id: str
    axis: str
    version: int
    template: str
    messages: list[PublicMessage]
    hash: str
    answer: str | None


class PromptCommitment(TypedDict):
    """Of a held-out prompt."""

    axis: str
    hmac_sha256: str


class AskedCorpus(TypedDict):
    """`held_out`: how many; `not_applicable`: {axis: why it has no prompts}."""

    name: str
    version: str
    sha256: str
    markers: list[str]
    not_applicable: dict[str, str]
    public: list[PublicPrompt]
    held_out: int
    commitments: dict[str, PromptCommitment]


class RefusalDetector(TypedDict):
    kind: Literal["definition", "classifier", "heuristic"]
    locked: bool
    certain: bool
    reason: str


class EmbedderIdentity(TypedDict):
    name: str
    package: str
    weights_sha256: str


class ChangedTexts(TypedDict):
    changed: int
    prompts: int


class ZeroLeg(TypedDict):
    """Prompts that gave one text at temperature 0, of how many, and how many gave another than before."""

    deterministic: int
    prompts: int
    changed: ChangedTexts | None


class SnapshotSubject(TypedDict):
    """What was asked of whom, as far as it is public. `reported`: what an endpoint said of itself."""

    series_kind: Literal["week", "checkpoint"]
    corpus: AskedCorpus
    legs: list[AskedLeg]
    leg_dropped: str | None
    model: AskedModel
    declared_version: str
    reported: dict[str, list[str]]
    detector: RefusalDetector
    embedder: EmbedderIdentity | None
    outputs: int
    errors: int
    rows_sha256: str
    zero_leg: dict[str, ZeroLeg | None]


class AbsentSubject(TypedDict):
    """Of a snapshot that nobody took."""

    series_kind: Literal["week", "checkpoint"]


class DriftSettings(TypedDict):
    """Those that an analysis rests on."""

    corpus: str
    every: int
    default_samples: int
    zero_samples: int
    alpha: float
    minimum_prompts: int
    most_errors: float
    resamples: int
    prompt_level: bool


class ManifestContent(ResultName):
    """160 of one snapshot, as sites publish it. `snapshots` and `timeline` run over those so far, `history` over their levels."""

    kind: Literal["drift"]
    series: str
    snapshot: str
    previous: str | None
    snapshots: list[str]
    subject: SnapshotSubject | AbsentSubject
    settings: DriftSettings
    environment: Mapping[str, Any]
    records: list[ManifestRow]
    status: list[StatusRow]
    alarms: list[DriftAlarm]
    gaps: list[KnownGap]
    history: list[SeriesPoint]
    registered: list[DecidedClaim]
    timeline: list[SeriesEvent]


class DriftManifest(StoredDocument, ManifestContent):
    """160, all of it."""


class SeriesSubject(TypedDict):
    """`rows_sha256` by snapshot, null for one that nobody took."""

    series: str
    rows_sha256: dict[str, str | None]


class DriftResult(NumberedResult):
    """161 to 168, all of it: the records of one metric over all snapshots."""

    kind: Literal["drift"]
    title: str
    subject: SeriesSubject
    records: list[ManifestRow]


class DriftStatusResult(NumberedResult):
    """169, all of it."""

    kind: Literal["drift"]
    title: str
    subject: SeriesSubject
    records: list[SnapshotStatusRow]


class DriftComparison(StoredDocument):
    """comparison-<id>.json, all of it: a snapshot against the one before; `subject` is a hash of what the tests are of."""

    kind: Literal["drift_comparison"]
    subject: str
    records: list[ComparisonRow]


class TracedAlarm(TypedDict):
    snapshot: str
    axis: str
    metric: str


class RestoredShare(TypedDict):
    """A share of the gap between two checkpoints; `interval` null where clusters are too few, or it has no bounds."""

    value: float
    interval: Annotated[Vector, Over("2")] | None


class CarryingHead(TypedDict):
    """`discovery`: the share on the half that named it, with an interval that holds all heads at once.

    `confirmation`: that on the other half, with one that holds all named heads at once; `verdict`: whether it leaves no doubt.
    """

    head: str
    discovery: float
    interval: Annotated[Vector, Over("2")]
    confirmation: RestoredShare
    verdict: NotRequired[Literal["confirmed", "not confirmed"]]  # older traces have none


class ComparedHead(TypedDict):
    """What a head adds directly in checkpoints `a` and `b`; the interval is of a - b."""

    head: str
    became: Literal["gained", "lost", "changed"]
    a: float
    b: float
    interval: Annotated[Vector, Over("2")]


class HalfCounts(TypedDict):
    questions: int
    clusters: int


class TraceHalves(TypedDict):
    discovery: HalfCounts
    confirmation: HalfCounts


class CheckpointPair(TypedDict):
    """The weights' hashes of the earlier and the later checkpoint."""

    a: str
    b: str


class DriftTraceResult(NumberedResult):
    """170, all of it. `weak`: questions with too small a gap; `reason`: why no head is named, or empty.

    `control_reason`: why there is no control where its status is not_applicable.
    """

    kind: Literal["drift"]
    alarm: TracedAlarm
    subject: CheckpointPair
    settings: Mapping[str, Any]
    weak: int
    halves: TraceHalves
    named: list[CarryingHead]
    together: RestoredShare | None
    ceiling: RestoredShare | None
    floor: RestoredShare | None
    reason: str
    heads: dict[str, float]
    compared: list[ComparedHead]
    control: RestoredShare | None
    control_status: NotRequired[Literal["ok", "not_applicable"]]
    control_reason: NotRequired[str]


# --- geometry --------------------------------------------------------------------------------------------------------


class GeometrySubject(TypedDict):
    """`constructs`: the hash of each set; `coordinates`: what identifies those of each."""

    model: str
    identity: Mapping[str, Any]
    model_fingerprint: str
    constructs: dict[str, str]
    coordinates: dict[str, Mapping[str, Any]]


class CoordinatesSubject(TypedDict):
    model_fingerprint: str
    suite_hash: str
    coordinates: Mapping[str, Any]
    snapshot: None


class GeometryDetail(TypedDict, total=False):
    """What figures draw: of 174 the distance from turn 0 by turn that was measured, after how many turns that was, and the
    distance of no movement, null where no draws show it; of 173 and 175 the shift that the paper divides. Other keys are the
    metric's own.
    """

    distances: Vector
    numbers: list[int]
    floor_mean: Vector | None
    floor_sd: Vector | None
    shift: float


class GeometryRecord(StoredValue):
    """One metric of one construct, or (null) over all of a set."""

    detail: GeometryDetail

    metric_id: str
    suite: str
    construct: str | None
    label: str | None
    family: Literal["G"]
    subject: CoordinatesSubject
    role: Literal["exploratory", "descriptive"]
    direction: None
    threshold: None
    passed: None
    evidence: list[str]
    baseline: None
    effect: None
    published: PublishedNumber


class MetricFormula(TypedDict):
    formula: str


class VariantPoints(TypedDict):
    """`points` [output][axis], null for more axes than a map has; `without`: {why: outputs without a point}."""

    method: str
    persona: str | None
    turn: int | None
    points: Annotated[Matrix, Over("O A")] | None
    without: dict[str, int]


class ConstructPoints(TypedDict):
    title: str
    reference: Vector | None
    reason: str | None
    variants: dict[str, VariantPoints]


class TextRatios(TypedDict):
    """Distance of outputs over that of their texts."""

    pairs: int
    p95: float | None
    maximum: float | None


class ProjectionCheck(TypedDict):
    ratios: TextRatios
    paraphrases: NotRequired[StoredEstimate]  # of coordinates by an embedder


class SetPoints(TypedDict):
    """`check` null: coordinates are likelihoods."""

    axes: list[str]
    kind: str
    deterministic: bool
    scale: Mapping[str, Any]
    check: ProjectionCheck | None
    constructs: dict[str, ConstructPoints]


class SetWithoutResult(TypedDict):
    """Why a set does not apply."""

    reason: str | None


class PositionData(MetricFormula):
    sets: dict[str, SetPoints | SetWithoutResult]


class GeometryEnvelope(NumberedResult):
    kind: Literal["geometry"]
    subject: GeometrySubject
    environment: Mapping[str, Any]
    n: dict[str, int]
    records: list[GeometryRecord]


class PositionResult(GeometryEnvelope):
    """171, all of it, with the points of every set."""

    data: PositionData


class GeometryMetricResult(GeometryEnvelope):
    """172 to 178, all of it."""

    data: MetricFormula


class StoredCell(TypedDict):
    """A trait by a method: `suites.geometry.matrix.MatrixCell`. Results from before PS stood in its cell have no `share`."""

    trait: str
    method: str
    name: str
    value: float | None
    status: EstimateStatus
    reason: str
    published: float | None
    ratio: float | None
    share: NotRequired[float | None]
    share_status: NotRequired[EstimateStatus | None]
    share_reason: NotRequired[str]


class VarianceComponents(TypedDict):
    traits: list[str]
    methods: list[str]
    replicates: int
    mean_squares: dict[str, float]
    components: dict[str, float]


class ScoreCorrelation(TypedDict):
    """`first` and `second`: (trait, method)."""

    first: Annotated[list[str], Over("2")]
    second: Annotated[list[str], Over("2")]
    kind: str
    r: float | None
    disattenuated: float | None


class SetMatrix(TypedDict):
    """`reason`: why the set does not apply, null if it does."""

    reason: str | None
    cells: list[StoredCell]
    components: VarianceComponents | SetWithoutResult
    components_published: VarianceComponents | SetWithoutResult
    correlations: list[ScoreCorrelation]


class MatrixResult(GeometryEnvelope):
    """179, all of it, by set."""

    data: dict[str, SetMatrix]


ShownChange = Literal["moved", "stayed", "open"]


class AblatedHeadEffect(TypedDict):
    """`inner`: the narrower interval that lies within the margin if the quantity was shown to stay."""

    quantity: str
    estimate: float
    low: float
    high: float
    inner: NotRequired[list[float]]  # not in results of before 0.13


class GeometryHead(TypedDict):
    """`position` and `spread`: shown to move, shown to stay, or neither; `kind` is what the two make of the head, "" if neither
    was shown to move."""

    head: str
    kind: Literal["trait", "method", "both", "undecided", ""]
    position: ShownChange
    spread: ShownChange
    effects: list[AblatedHeadEffect]


class TracedSet(TypedDict):
    """`named`: {kind: heads}; `left_out`: {framing that is not traced: why}, in results since it is said."""

    constructs: int
    recipe: str
    heads: list[GeometryHead]
    named: dict[str, list[str]]
    left_out: NotRequired[dict[str, str]]


class GeometryTraceSubject(TypedDict):
    model: str
    identity: Mapping[str, Any]
    model_fingerprint: str
    constructs: dict[str, str]
    settings: Mapping[str, Any]


class GeometryTraceResult(NumberedResult):
    """180, all of it, by set; `records` is always an empty list."""

    kind: Literal["geometry"]
    subject: GeometryTraceSubject
    n: dict[str, int]
    data: dict[str, TracedSet | SetWithoutResult]
    records: list[GeometryRecord]


# --- judging ---------------------------------------------------------------------------------------------------------


class RubricName(TypedDict):
    name: str
    sha256: str


class StoredRubric(RubricName):
    kind: str


class JudgeSubject(TypedDict):
    """`judge` is the fingerprint."""

    judge: str
    judge_name: str
    judge_identity: Mapping[str, Any]
    rubric: StoredRubric


class LabelledSubject(JudgeSubject):
    labels_sha256: str


class JudgedRun(TypedDict):
    name: str
    identity: Mapping[str, Any]
    answers_sha256: str
    suite: str
    suite_hash: str


class PairwiseSubject(JudgeSubject):
    a: JudgedRun
    b: JudgedRun


class RankingSubject(JudgeSubject):
    runs: dict[str, JudgedRun]


class JudgingRecord(StoredEstimate):
    metric_id: str
    family: Literal["J"]
    role: EstimateRole


class BiasRecord(JudgingRecord):
    published: NotRequired[PublishedNumber]  # for a kind of change


class RankingRecord(JudgingRecord):
    adjusted_p: NotRequired[float | None]  # for a difference


class JudgingEnvelope(NumberedResult):
    kind: Literal["judging"]
    environment: Mapping[str, Any]


class PairwiseCounts(TypedDict):
    """Merged verdicts over `pairs`; `excluded` by reason."""

    pairs: int
    A: int
    B: int
    tie: int
    invalid: int
    excluded: dict[str, int]


class StoredPairVerdict(TypedDict):
    """`merged` is null where one of the two orders could not be read."""

    item: str
    item_hash: str
    cluster: str
    original: str | None
    swapped: str | None
    merged: Literal["A", "B", "tie"] | None
    length_gap: float


class PairwiseSettings(TypedDict):
    most_invalid: float
    most_flips: float


class PairwiseData(TypedDict):
    settings: PairwiseSettings
    pairs: list[StoredPairVerdict]


class PairwiseResult(JudgingEnvelope):
    """181, all of it."""

    subject: PairwiseSubject
    n: PairwiseCounts
    verdict: Literal["A", "B", "none"]
    reasons: list[str]
    exploratory: list[str]
    data: PairwiseData
    records: list[JudgingRecord]


class LabelCounts(TypedDict):
    labelled: int
    raters: int
    excluded: dict[str, int]


class LabelledPeople(TypedDict):
    """`prevalence` {label: share}; `ceiling`: why people agree too little, if they do."""

    prevalence: dict[str, float]
    raters: list[str]
    ceiling: str | None


class JudgeAgreementResult(JudgingEnvelope):
    """182, all of it."""

    subject: LabelledSubject
    n: LabelCounts
    deploy: bool
    reasons: list[str]
    data: LabelledPeople
    records: list[JudgingRecord]


class BiasCounts(TypedDict):
    cases: int
    perturbations: int


class JudgeBiasResult(JudgingEnvelope):
    """183, all of it; `data` is empty."""

    subject: LabelledSubject
    n: BiasCounts
    found: list[str]
    data: dict[str, None]
    records: list[BiasRecord]


class RankBounds(TypedDict):
    best: int
    worst: int


class RankingSettings(TypedDict):
    resamples: int
    alpha: float
    half_wins: bool


class RankingData(TypedDict):
    """`wins` [winner][loser]."""

    settings: RankingSettings
    systems: Annotated[list[str], Over("S")]
    wins: Annotated[Matrix, Over("S S")]
    ranks: dict[str, RankBounds]
    excluded: dict[str, dict[str, int]]


class RankingCounts(TypedDict):
    systems: int
    pairs: int
    invalid: int


class RankingResult(JudgingEnvelope):
    """184, all of it."""

    subject: RankingSubject
    n: RankingCounts
    exploratory: list[str]
    data: RankingData
    records: list[RankingRecord]


class JudgePassport(StoredDocument):
    """judge.json, all of it: `rubric` and `labels_sha256` are what the judge was compared by and with."""

    kind: Literal["judge_passport"]
    judge: str
    identity: Mapping[str, Any]
    rubric: RubricName
    labels_sha256: str
    n: int
    kappa: float | None
    ci: Annotated[Vector, Over("2")] | None
    biases: list[str]
    deploy: bool
    reason: str


# --- shadow ----------------------------------------------------------------------------------------------------------


class ShadowJudge(TypedDict):
    """Whose verdicts are on the record. `rubric` null: an older version made them."""

    judge: str
    rubric: str | None


class ShadowSubject(TypedDict):
    candidate: str
    identity: Mapping[str, Any]
    judge: ShadowJudge | None


class ShadowSettings(TypedDict):
    """`expected`: {detector: the rate that its findings are tested against, or null}."""

    rate: float
    budget: int
    alpha: float
    retention: int
    opt_in: str
    expected: dict[str, float | None]


class WatchedDay(TypedDict):
    """What one sees at the end of a day: items, successes and e so far."""

    day: str
    n: int
    successes: int
    e: float


class ShadowData(TypedDict):
    """`days` by metric; `redacted` {pattern: count}; `failing` {request: why}; `suite`: the folder of what failed."""

    settings: ShadowSettings
    days: dict[str, list[WatchedDay]]
    redacted: dict[str, int]
    failing: dict[str, list[str]]
    suite: str | None


class ShadowRecord(StoredEstimate):
    """`alarm`: after how many items e-BH over all metrics first chose this one, null if never; `alarms`: the same for each side
    of p0. `e_bh`: chosen now. `doubt`: why an alarm is no proof."""

    metric_id: str
    family: Literal["W"]
    role: Literal["confirmatory", "exploratory"]
    p0: float
    alpha: float
    e: float
    e_largest: float
    alarm: int | None
    alarms: NotRequired[dict[str, int]]
    direction: Literal["above", "below", "equal"]
    worse_is: Literal["above", "below"]
    e_bh: bool
    doubt: str | None


class ShadowCounts(TypedDict):
    """Of the last pass: requests, of which may be used, are in the sample, were asked, failed, were left; then of all passes.

    `unanswered`: every call of the request failed; results of earlier versions do not have it.
    """

    requests: int
    opted_in: int
    sampled: int
    asked: int
    failed: int
    over_budget: int
    recorded: int
    unanswered: NotRequired[int]
    judged: int
    failing: int


class ShadowResult(NumberedResult):
    """189, all of it."""

    kind: Literal["shadow"]
    subject: ShadowSubject
    environment: Mapping[str, Any]
    n: ShadowCounts
    alarms: list[str]
    worse: list[str]
    data: ShadowData
    records: list[ShadowRecord]


# --- how far certificates hold ---------------------------------------------------------------------------------------


class CountedShare(TypedDict):
    """With Wilson's interval."""

    count: int
    n: int
    rate: float
    ci95: Annotated[Vector, Over("2")]


class PlantedClaim(TypedDict):
    """`expected` {row: "pass", "not_pass" or "free"}, `reasons` {row: why}."""

    truth: str
    sentence: str
    expected: dict[str, str]
    reasons: dict[str, str]


class ErrorRateCell(TypedDict):
    """`met` null: nothing was declared."""

    subject: str
    row: str
    prompts: int
    expected: str
    published_pass: CountedShare
    verdict_pass: CountedShare
    verdicts: dict[str, int]
    met: bool | None


class TierCounts(TypedDict):
    counts: list[int]
    certified: CountedShare


class ErrorRates(TypedDict):
    """`tiers` and `metric_passes` by subject and prompts, `certified` by truth and prompts; a pair is [published, verdict]."""

    subjects: dict[str, PlantedClaim]
    cells: list[ErrorRateCell]
    tiers: dict[str, dict[str, TierCounts]]
    certified: dict[str, dict[str, CountedShare]]
    metric_passes: dict[str, dict[str, dict[str, Annotated[list[int], Over("2")]]]]


class IntervalCoverageRow(TypedDict):
    """`conservative`: why an interval is wider by construction, or null."""

    metric: str
    heads: str
    n: int
    interval: str
    nominal: float
    replicates: int
    intervals: int
    without: int
    covered: int
    above: int
    below: int
    share: float | None
    wilson: Annotated[Vector, Over("2")] | None
    mean_width: float | None
    truth: float | None
    estimate: float | None
    conservative: str | None


class IntervalCoverages(TypedDict):
    coverage: list[IntervalCoverageRow]


class ExperimentEnvelope(NumberedResult):
    kind: Literal["experiment"]
    n: dict[str, int]
    records: list[StoredRecord]
    inputs_sha256: dict[str, str]
    environment: Mapping[str, Any]


class TargetRates(TypedDict):
    min_certified: float
    max_certified: float


class ErrorRatesSettings(TypedDict):
    """Those that are shown; others stand beside them."""

    default_prompts: int
    highest_tier: int
    prompts: list[int]
    targets: TargetRates


class CoverageSettings(TypedDict):
    """Likewise."""

    acceptable: Annotated[Vector, Over("2")]
    prompts: list[int]


class CoverageSubject(TypedDict):
    experiment: str
    settings: CoverageSettings
    judged_by: str
    simulated_by: NotRequired[str]


class ErrorRatesSubject(TypedDict):
    experiment: str
    settings: ErrorRatesSettings
    calibration: Mapping[str, Any]
    certificate: Mapping[str, Any]
    judged_by: str
    simulated_by: NotRequired[str]


class ErrorRatesResult(ExperimentEnvelope):
    """V1, all of it."""

    subject: ErrorRatesSubject
    data: ErrorRates


class IntervalCoverageResult(ExperimentEnvelope):
    """V2, all of it."""

    subject: CoverageSubject
    data: IntervalCoverages


# --- the certificate -------------------------------------------------------------------------------------------------


class StoredGate(TypedDict):
    """One condition of a tier and how it came out."""

    metric: str
    verdict: str
    reason: str
    needs: str | None
    p: float | None
    split: str


class StoredRow(TypedDict, total=False):
    """A calibration on the certificate, with a row for each of its metrics."""

    id: str
    title: str
    verdict: str
    gating: bool
    decisive: str | None
    asked: dict[str, str]
    records: list[dict[str, Any]]


class StoredDifference(TypedDict):
    """A setting or file of code that is not as in the released rules, and its value there."""

    key: str
    value: Any
    released: Any


class StoredRules(TypedDict):
    """The release that a certificate's rules are compared with, their digest, and what differs; null without a release."""

    version: str | None
    sha256: str | None
    differences: list[StoredDifference]


class Certificate(TypedDict, total=False):
    """certificate.json. Other keys may stand beside these, and an older version has fewer."""

    kind: str
    subject: dict[str, str | None]
    tier: int | None
    of: int
    ceiling: int
    tier_name: str
    asked: list[str]
    blocking: dict[str, list[StoredGate]]
    warnings: list[StoredGate]
    headline: dict[str, Any]
    inputs: dict[str, str]
    inputs_sha256: dict[str, str]
    p_certificate: float | None
    preconditions: list[dict[str, Any]]
    rows: list[StoredRow]
    rules: StoredRules | None
    worst_groups: dict[str, Any]


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

# results of failure modes, A1 to A20, of programs and of safety suites have one form
RATES = (*map(str, range(101, 121)), *("185", "186", "187", "188", "195", "196"))
BEHAVIOUR: Mapping[str, type] = {
    **dict.fromkeys(RATES, FailureMode),
    "121": ChoiceLikelihoods,
    "131": TaxonomyCoverage,
}
CONTAMINATION: Mapping[str, type] = {
    "191": CorpusOverlap,
    "192": AlikePassages,
    "193": LossGaps,
    "194": Canaries,
}


class ResultForm(NamedTuple):
    """The form of a result: its kind, the type of the whole, and the type of its `data` if the former leaves it open."""

    kind: str
    whole: type
    data: type | None = None


WHOLE: Mapping[str, ResultForm] = {  # results with their own form
    "132": ResultForm("behaviour", TracePairsResult),
    "141": ResultForm("behaviour", TraceResult),
    "142": ResultForm("behaviour", CarriersResult),
    "151": ResultForm("regression_gate", RegressionGateResult),
    "160": ResultForm("drift", DriftManifest),
    **dict.fromkeys(map(str, range(161, 169)), ResultForm("drift", DriftResult)),
    "169": ResultForm("drift", DriftStatusResult),
    "170": ResultForm("drift", DriftTraceResult),
    "171": ResultForm("geometry", PositionResult),
    **dict.fromkeys(map(str, range(172, 179)), ResultForm("geometry", GeometryMetricResult)),
    "179": ResultForm("geometry", MatrixResult),
    "180": ResultForm("geometry", GeometryTraceResult),
    "181": ResultForm("judging", PairwiseResult),
    "182": ResultForm("judging", JudgeAgreementResult),
    "183": ResultForm("judging", JudgeBiasResult),
    "184": ResultForm("judging", RankingResult),
    "189": ResultForm("shadow", ShadowResult),
    "V1": ResultForm("experiment", ErrorRatesResult),
    "V2": ResultForm("experiment", IntervalCoverageResult),
}
NUMBERED: Mapping[str, ResultForm] = {  # by number, except calibrations, whose registry has their numbers
    **{number: ResultForm("measurement", Result, data) for number, data in MEASUREMENTS.items()},
    **{number: ResultForm("behaviour", SuitesResult, data) for number, data in BEHAVIOUR.items()},
    **{number: ResultForm("contamination", ContaminationResult, data) for number, data in CONTAMINATION.items()},
    **WHOLE,
}
NAMED: Mapping[str, ResultForm] = {  # by kind: calibrations, and files without a number
    "calibration": ResultForm("calibration", Result, CalibrationData),
    "certificate": ResultForm("certificate", Certificate),
    "judge_passport": ResultForm("judge_passport", JudgePassport),
    "drift_comparison": ResultForm("drift_comparison", DriftComparison),
}
OPEN = (
    Certificate,
    ComparedDetail,
    GeometryDetail,
    ErrorRatesSettings,
    CoverageSettings,
    TargetRates,
)  # types whose objects may have further keys
