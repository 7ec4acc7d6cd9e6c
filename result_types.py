"""What stands in a numbered result, one type for each number: what pyright knows of a result, and what `result_schemas` checks.

results/README.md says what each field means. Lists are named by what they run over: P prompts, H heads (row-major), L layers,
R position roles. At run time a result is plain JSON data, as `results_io.read` returns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict


@dataclass(frozen=True)
class Over:
    """What a list runs over, from the outside in: "P H" is [P][H]. `below`: its numbers are indices of this axis.

    P and H are those of the whole result, as its `n` says; any other letter is the length of one axis within one object.
    """

    axes: str
    below: str = ""

    @property
    def names(self) -> list[str]:
        return self.axes.split()


Split = Literal["evaluation", "held_out"]
Head = Annotated[list[int], Over("2")]  # [layer, head]
Vector = list[float]
Matrix = list[list[float]]
Gaps = list[float | None]  # null: no value for this one
GapMatrix = list[list[float | None]]
OverPrompts = Annotated[Vector, Over("P")]
OverHeads = Annotated[Vector, Over("H")]
PromptsByHeads = Annotated[Matrix, Over("P H")]
GapsOfHeads = Annotated[Gaps, Over("H")]
Composition = Annotated[GapMatrix, Over("H H")]
Rows = Annotated[list[int], Over("S", below="P")]  # of prompts


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
    companions_sha256: NotRequired[str]  # of 27, where companions come from files
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
    clean_in_logits: NotRequired[
        OverPrompts
    ]  # results of before it was written have the logit difference as their metric
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
    row: NotRequired[Annotated[list[int], Over("P")]]  # of prompts from a file: the row of each, from 1
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
    row: NotRequired[list[int]]  # of prompts from a file
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
    nodes: NotRequired[list[list[str]]]  # all by name, of a claim with MLPs or positions; so in what follows
    prompt_index: Rows
    logit_diff: Annotated[Matrix, Over("C S")]
    recipe: str
    seed: int
    any_layers: NotRequired[Literal[True]]  # the circuit's own layers have too few sets of its size


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
    corrupted_tokens: NotRequired[list[str]]  # results of an older version have the clean run alone
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
    row: NotRequired[list[int]]  # of a companion from a file
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
    """121. By suite. `threshold`: the smallest confidence at which the risk stays below `sla`, if that was asked for."""

    risk_coverage: dict[str, RiskCoverageCurve]
    sla: float | None
    threshold: dict[str, Mapping[str, Any]]


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
    """The flagged items of a suite, and the run that the accuracies are of (`run_id`, `finished`)."""

    flagged: list[HeldItem]
    run: dict[str, str] | None


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


class ContaminationRecord(TypedDict):
    """One estimate of one suite, or of all (`suite` null)."""

    metric_id: str
    suite: str | None
    family: str
    role: Literal["confirmatory", "exploratory", "descriptive"]
    value: float | None
    unit: str
    n: int
    n_excluded: dict[str, int]
    ci: Bounds | None
    p_value: float | None
    test: str | None
    status: str
    reason: str
    assumptions: list[str]
    detail: Mapping[str, Any]


class ContaminationResult(TypedDict):
    """191 to 194: `data` is one of the types before."""

    schema_version: int
    content_sha256: str
    number: str
    id: str
    kind: Literal["contamination"]
    subject: Mapping[str, Any]
    n: dict[str, int]
    data: Mapping[str, Any]
    records: list[ContaminationRecord]
    environment: Mapping[str, Any]


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
    rules: dict[str, Any] | None
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

# of failure modes, A1 to A20, of programs and of safety suites: one form
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
WHOLE: Mapping[str, type] = {
    "132": TracePairsResult,
    "141": TraceResult,
    "142": CarriersResult,
}  # with a form of their own
OPEN = (Certificate,)  # may have keys that their type does not know
