"""A generative law of all measurements of one circuit, whose population values are known in closed form.

No model is run (layer N1 of the validation plan). A population fixes the templates' faithfulness and the heads' true
effects; every draw from it is a fresh sample of prompts. For prompt p of template t, name set g, head h:

    u_p = sqrt(rho) c_g + sqrt(1 - rho) z_p                                 clustered standard normal
    D_p = mean_t + sd_clean u_p                                             clean logit difference, nats
    F_p = theta_t(subset, method) D_p + noise e_p                           with only `subset` intact
    E_ph = mu_h + lambda_h u_p + effect_noise e_ph                          effect of one head, nats

All e are clustered like u with the same intraclass correlation rho; e_ph is heavy-tailed for some heads. Name sets are
drawn with replacement, so a sample of n prompts has random cluster sizes, as real prompt sets do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

import results_io
from calibrations.evidence import PRIMARY

METHOD_DRAWS = {"zero": 1, "mean": 1, "mean_pooled": 1, "resample": 4, "noise": 4}
ROLES: dict[str, dict[str, Any]] = {
    "early": {"heads": [[0, 1], [0, 2]], "ordinal": 1, "sign": 1},
    "middle": {"heads": [[1, 3], [2, 1]], "ordinal": 2, "sign": 1},
    "late": {"heads": [[3, 0], [3, 2], [3, 5]], "ordinal": 4, "sign": 1},
}
OTHER_GAP = 4.0  # clean minus corrupted logit difference of another task, SD 1
RECOVERED, FLOOR = 0.82, 0.1  # share of D recovered by scrubbing, and left with everything resampled
WITHOUT_ROLE = 0.3  # faithfulness of the circuit without one role
OWN_NOISE = 0.5  # share of the residual variance specific to each draw of a condition; the rest is shared by the subset


@dataclass(frozen=True)
class Law:
    """The parameters of the law; logit differences in nats, faithfulness as a share of the clean logit difference.

    `faithfulness` is by ablation method. `template_spread`: SD of faithfulness over templates. `template_clean`: SD of the
    mean logit difference over templates. True effects of circuit heads are normal with mean `effect` and SD `effect_spread`,
    those of other heads with mean 0 and SD `outside_sd`. `specific`: SD of the part that only one method sees, as a share of
    `effect`. `intraclass`: rho. `names`: the number of name sets of a template.
    """

    n_layers: int = 4
    heads_per_layer: int = 8
    copies: int = 1  # how often every head is repeated, as in a larger model of the same composition
    n_templates: int = 4
    names: int = 60
    intraclass: float = 0.5
    mean_clean: float = 5.0
    sd_clean: float = 1.0
    template_clean: float = 0.5
    template_spread: float = 0.05
    faithfulness: Mapping[str, float] = field(
        default_factory=lambda: {"zero": 0.88, "mean": 0.95, "mean_pooled": 0.93, "resample": 1.0, "noise": 1.02}
    )
    complement: float = 0.1
    empty: float = 0.02
    baseline: float = 0.2
    noise: float = 1.0
    effect: float = 0.5
    effect_spread: float = 0.2
    outside_sd: float = 0.06
    specific: float = 0.1
    effect_noise: float = 0.3
    loading: float = 0.1
    heavy_share: float = 0.4
    heavy_tail: float = 0.45
    other_effects: tuple[float, ...] = (0.0, 0.03)  # of the circuit's heads, one for each other task
    other_prompts: int = 100
    random_circuits: int = 60
    hit_rate: float = 0.8
    false_alarm_rate: float = 0.2

    def enlarged(self, copies: int) -> Law:
        """The law of a model that has every head `copies` times; for many copies, the limit of a population of heads."""
        return replace(self, copies=copies)


def from_config(values: Mapping[str, Any]) -> Law:
    """The law with these fields in place of the defaults. Raises results_io.UserError for an unknown field."""
    known = [one.name for one in fields(Law)]
    if unknown := sorted(set(values) - set(known)):
        raise results_io.UserError(f"the law has no field {', '.join(unknown)}; expected some of {', '.join(known)}")
    return Law(**values)


@dataclass(frozen=True)
class HeadMeasurement:
    """One per-head measurement: its mean effect is `scale` mu_h plus a part of its own, whose SD is set by `specific`."""

    number: str
    name: str
    scale: float
    specific: float = 1.0  # times Law.specific


MEASURES = (
    HeadMeasurement("02", "denoising", 1.0),
    HeadMeasurement("02", "noising", 1.1),
    HeadMeasurement("03", "attribution", 0.9),
    HeadMeasurement("05", "natural_indirect", 1.0),
    HeadMeasurement("08", "effect", 0.9, 7.0),
    HeadMeasurement("21", "effect", 1.0),
)
SCORES = ("07.score", "09.ov_norm", "09.spectral_norm", "09.sv_entropy", "10.score", "26.prediction_error_ratio")
LOADINGS = (0.5, 1.5)  # range of a head's loading, times Law.loading
SCORE_SHIFT, SCORE_SD = 0.4, 0.3  # a circuit head's mean score is higher by the shift; all heads have the same SD


@dataclass(frozen=True)
class Population:
    """What stays the same from one sample of prompts to the next.

    theta_shift, clean_mean [template]; mu {number.name: [head]}; loading, tail [head]; scores {number.name: [head]};
    predicted [head]: the weight classifier's circuit; minimal [member]: the logit difference each circuit head adds, nats.
    """

    law: Law
    theta_shift: Float[np.ndarray, " template"]
    clean_mean: Float[np.ndarray, " template"]
    mu: Mapping[str, Float[np.ndarray, " head"]]
    loading: Float[np.ndarray, " head"]
    tail: Float[np.ndarray, " head"]
    scores: Mapping[str, Float[np.ndarray, " head"]]
    predicted: Bool[np.ndarray, " head"]
    minimal: Float[np.ndarray, " member"]

    @cached_property
    def member(self) -> Bool[np.ndarray, " head"]:
        return membership(self.law)

    def theta(self, subset: str = "circuit", method: str = PRIMARY) -> Float[np.ndarray, " template"]:
        """Faithfulness of each template with `subset` intact under `method`."""
        law = self.law
        level = {
            "circuit": law.faithfulness[method],
            "complement": law.complement,
            "empty": law.empty,
            "top_k_norm": law.baseline,
            "top_k_attribution": (law.faithfulness[PRIMARY] + law.baseline) / 2,
        }.get(subset, WITHOUT_ROLE)
        return level + (subset == "circuit") * self.theta_shift

    # --- population values -------------------------------------------------------------------------------------

    def faithfulness(self, subset: str = "circuit", method: str = PRIMARY) -> float:
        """sum_t theta_t mean_t / sum_t mean_t, the limit of sum F / sum D if templates are equally frequent."""
        return float(np.average(self.theta(subset, method), weights=self.clean_mean))

    def score_variance(self, subset: str = "circuit") -> tuple[float, float]:
        """(between, within): variance of the linearised scores y = theta + (F - theta D) / mean D over and within templates.

        It is that of the primary recipe with one draw. Between: mean_t ((theta_t - theta) mean_t / mean D)^2. Within:
        mean_t ((theta_t - theta)^2 sd_clean^2 + noise^2) / mean(D)^2.
        """
        away = self.theta(subset) - self.faithfulness(subset)
        scale = self.clean_mean.mean() ** 2
        between = ((away * self.clean_mean) ** 2).mean() / scale
        within = ((away * self.law.sd_clean) ** 2 + self.law.noise**2).mean() / scale
        return float(between), float(within)

    def design_effect(self, n: int) -> float:
        """Variance of a mean over n/T prompts of a template relative to independent prompts.

        1 + rho (E sum_g m_g^2 / m - 1) with m = n/T prompts over `names` name sets: 1 + rho (m - 1) / names.
        """
        return 1 + self.law.intraclass * (n / self.law.n_templates - 1) / self.law.names

    def standard_error(self, n: int, subset: str = "circuit") -> float:
        """SD of sum F / sum D over samples of n prompts, templates fixed: sqrt(within variance x design effect / n)."""
        return math.sqrt(self.score_variance(subset)[1] * self.design_effect(n) / n)

    def effect_moments(self, name: str) -> tuple[Float[np.ndarray, " head"], Float[np.ndarray, " head"]]:
        """Variance and kurtosis over prompts of one measurement's effects.

        lambda u + s e has variance lambda^2 + s^2 and fourth moment 3 lambda^4 + 6 lambda^2 s^2 + 3 s^4 exp(4 tail^2).
        """
        scale = next(m.scale for m in MEASURES if f"{m.number}.{m.name}" == name)
        common, own = (scale * self.loading) ** 2, self.law.effect_noise**2
        fourth = 3 * common**2 + 6 * common * own + 3 * own**2 * np.exp(4 * self.tail**2)
        return common + own, fourth / (common + own) ** 2

    def head_reliability(self, n: int, variance: float, spread_of_loading: float, averaged: int = 1) -> float:
        """S^2 / (S^2 + R x design effect / n): the share of the variance of head means that is due to true effects.

        S^2 = `variance`, the variance of the heads' true effects. R = effect_noise^2 / `averaged` + `spread_of_loading`, the
        head-by-prompt residual of the mean of so many measurements; `spread_of_loading` is the variance of the loadings, which
        they share. The loadings' mean moves all heads alike and leaves their order.
        """
        residual = (self.law.effect_noise**2 / averaged + spread_of_loading) * self.design_effect(n) / n
        return variance / (variance + residual)


def membership(law: Law) -> Bool[np.ndarray, " head"]:
    """Which heads are in the circuit, row-major over (layer, head)."""
    members = {tuple(head) for role in roles(law).values() for head in role["heads"]}
    return np.array([tuple(head) in members for head in head_list(law)])


def head_list(law: Law) -> list[list[int]]:
    return [[layer, head] for layer in range(law.n_layers) for head in range(law.heads_per_layer * law.copies)]


def roles(law: Law) -> dict[str, dict[str, Any]]:
    """The default roles of the synthetic circuit, each head `copies` times."""
    found = {}
    for name, role in ROLES.items():
        heads = [[layer, head * law.copies + i] for layer, head in role["heads"] for i in range(law.copies)]
        found[name] = {**role, "heads": heads}
    return found


def population(law: Law, seed: int | Sequence[int]) -> Population:
    """Draw templates and heads. Template deviations are scaled to mean 0 (weighted by D) and SD `template_spread`."""
    rng = np.random.default_rng(seed)
    templates, member = law.n_templates, membership(law)
    n_heads = len(member)
    clean_mean = law.mean_clean + law.template_clean * _standardised(rng, templates, np.ones(templates))
    mu = np.where(member, rng.normal(law.effect, law.effect_spread, n_heads), rng.normal(0, law.outside_sd, n_heads))
    own = law.specific * law.effect
    return Population(
        law,
        theta_shift=law.template_spread * _standardised(rng, templates, clean_mean),
        clean_mean=clean_mean,
        mu={f"{m.number}.{m.name}": m.scale * mu + m.specific * own * rng.standard_normal(n_heads) for m in MEASURES},
        loading=law.loading * rng.uniform(*LOADINGS, n_heads),
        tail=law.heavy_tail * (rng.random(n_heads) < law.heavy_share),
        scores={name: 1 + SCORE_SHIFT * member + rng.normal(0, SCORE_SD, n_heads) for name in SCORES},
        predicted=rng.random(n_heads) < np.where(member, law.hit_rate, law.false_alarm_rate),
        minimal=rng.normal(law.effect, law.effect_spread, int(member.sum())),
    )


def _standardised(rng: np.random.Generator, size: int, weights: np.ndarray) -> np.ndarray:
    """Normal draws shifted to weighted mean 0 and scaled to SD 1 (ddof 0); 0 for a single template."""
    values = rng.standard_normal(size)
    values -= np.average(values, weights=weights)
    spread = values.std()
    return values / spread if spread > 1e-12 else np.zeros(size)


# --- one sample of prompts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SyntheticSample:
    """Prompts drawn from a population: their labels and the clustered normal generator that they share.

    `template`, `name`, `cell` [prompt] are integers. A cell, a template with a name set, is the sampling unit.
    """

    population: Population
    rng: np.random.Generator
    template: Int[np.ndarray, " prompt"]
    name: Int[np.ndarray, " prompt"]
    noiseless: bool

    @cached_property
    def cell(self) -> Int[np.ndarray, " prompt"]:
        return self.template * self.population.law.names + self.name

    def normal(self, *shape: int) -> Float[np.ndarray, "prompt ..."]:
        """Standard normal draws [prompt, *shape] with the law's intraclass correlation within cells; 0 if noiseless."""
        law, n = self.population.law, len(self.cell)
        if self.noiseless:
            return np.zeros((n, *shape))
        shared = self.rng.standard_normal((law.n_templates * law.names, *shape))[self.cell]
        rho = law.intraclass
        return np.sqrt(rho) * shared + np.sqrt(1 - rho) * self.rng.standard_normal((n, *shape))

    def heavy(self, tail: Float[np.ndarray, " head"]) -> Float[np.ndarray, "prompt head"]:
        """Clustered noise of variance 1 and kurtosis 3 exp(4 tail^2): z exp(tail w - tail^2) with standard normal z and w."""
        spread = np.zeros((len(self.cell), len(tail)))
        if not self.noiseless:
            spread = self.rng.standard_normal(spread.shape)
        return self.normal(len(tail)) * np.exp(tail * spread - tail**2)


def documents(
    source: Population, n: int, seed: int | Sequence[int], noiseless: bool = False
) -> dict[str, dict[str, Any]]:
    """All measurements of `n` fresh prompts; arrays stay arrays, which Evidence accepts.

    `noiseless` puts every prompt at its expectation, so that an estimate made of means over prompts equals its limit for
    infinitely many prompts. Prompts are spread evenly over the templates, which are fixed by design. Raises
    results_io.UserError for fewer prompts than templates.
    """
    if n < source.law.n_templates:
        raise results_io.UserError(f"{n} prompts for {source.law.n_templates} templates; expected at least one each")
    law, rng = source.law, np.random.default_rng(seed)
    template = np.arange(n) % law.n_templates
    sample = SyntheticSample(source, rng, template, rng.integers(law.names, size=n), noiseless)
    u = sample.normal()
    clean = source.clean_mean[template] + law.sd_clean * u
    effects = {
        f"{m.number}.{m.name}": source.mu[f"{m.number}.{m.name}"]
        + np.outer(u, m.scale * source.loading)
        + law.effect_noise * sample.heavy(source.tail)
        for m in MEASURES
    }
    battery = _battery(sample, clean)
    members = roles(law)
    data = {
        "01": baseline(
            split=["evaluation"] * n,
            template=template,
            cluster=sample.name,
            clean=clean,
            corrupted=0.5 * sample.normal(),
            prompt_id=[f"{i:016x}" for i in range(n)],
            heads=head_list(law),
            n_layers=law.n_layers,
        ),
        **_per_head(source, effects),
        "20": {"circuit": circuit(members), **battery},
        "22": _minimality(sample, members),
        "24": _scrubbing(sample, clean),
        "27": {"tasks": _tasks(sample)},
    }
    return {number: {"number": number, "data": content} for number, content in data.items()}


def _battery(sample: SyntheticSample, clean: Float[np.ndarray, " prompt"]) -> dict[str, Any]:
    """Every ablation condition and the random circuits of measurement 20."""
    source, law = sample.population, sample.population.law
    subsets = (
        "circuit",
        "complement",
        "empty",
        "top_k_norm",
        "top_k_attribution",
        *(f"without:{r}" for r in roles(law)),
    )
    conditions, values = [], []
    for subset in subsets:
        shared = sample.normal()
        for method, draws in METHOD_DRAWS.items():
            theta = source.theta(subset, method)[sample.template]
            for draw in range(draws):
                residual = np.sqrt(1 - OWN_NOISE) * shared + np.sqrt(OWN_NOISE) * sample.normal()
                conditions.append(condition(subset, method, draw))
                values.append(theta * clean + law.noise * residual)
    rows = np.arange(0, len(clean), 4)
    null = np.random.default_rng(0).normal(0.1, 0.1, law.random_circuits)
    random = null[:, None] * clean[rows] + law.noise * sample.normal(law.random_circuits)[rows].T
    heads, k = head_list(law), int(source.member.sum())
    return {
        "conditions": conditions,
        "logit_diff": np.stack(values),
        "random_circuits": {"heads": [], "prompt_index": rows, "logit_diff": random, "recipe": "mean"},
        "baselines": {"top_k_norm": heads[:k], "top_k_attribution": heads[-k:], "selected_on": "discovery"},
    }


def _per_head(source: Population, effects: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Measurements 02, 03, 05, 07-10, 21 and 26: effects [prompt head] and prompt-free scores [head]."""
    found: dict[str, dict[str, Any]] = {}
    for name, values in {**effects, **source.scores}.items():
        number, _, field_name = name.partition(".")
        found.setdefault(number, {})[field_name] = values
    n_heads, heads = len(source.member), head_list(source.law)
    n = len(next(iter(effects.values())))
    predicted = [heads[i] for i in np.flatnonzero(source.predicted)]
    found["09"]["classifier"] = classifier(predicted, source.predicted.astype(float))
    norm = 1 + 0.1 * np.arange(n_heads) / n_heads  # prompt-free and unrelated to the effects
    found["26"]["discovery_norm"] = norm
    found["26"]["output_norm"] = np.broadcast_to(norm, (n, n_heads))
    found["26"]["singular_values"] = np.ones((n_heads, 2))
    return found


def _minimality(sample: SyntheticSample, members: Mapping[str, Any]) -> dict[str, Any]:
    """Measurement 22: the cost of leaving out each circuit head; beside its greedy set, the cost is the same."""
    source, heads = sample.population, [head for role in members.values() for head in role["heads"]]
    effect = (source.minimal + source.law.effect_noise * sample.normal(len(heads))).T
    return minimality(sorted(heads), effect, effect, list(members), np.zeros((len(members), effect.shape[1])))


def _scrubbing(sample: SyntheticSample, clean: Float[np.ndarray, " prompt"]) -> dict[str, Any]:
    """Measurement 24: scrubbing recovers RECOVERED of D; with everything resampled, FLOOR of D is left. Four draws each."""
    noise = 0.4 * sample.population.law.noise
    return {
        "everything_relevant": clean,
        "nothing_relevant": FLOOR * clean + noise * sample.normal(4).T,
        "scrubbed": RECOVERED * clean + noise * sample.normal(4).T,
    }


def _tasks(sample: SyntheticSample) -> dict[str, Any]:
    """Measurement 27: prompts of other tasks, on which the circuit's heads have the effects `other_effects`."""
    law, member, rng = sample.population.law, sample.population.member, sample.rng
    noise = 0.0 if sample.noiseless else 1.0
    tasks = {}
    for task, own in enumerate(law.other_effects):
        effect = np.where(member, own, law.effect)
        gap = OTHER_GAP + noise * rng.standard_normal(law.other_prompts)
        residual = noise * law.effect_noise * rng.standard_normal((law.other_prompts, len(member)))
        tasks[f"other task {task}"] = {
            "prompt_id": [f"{task}-{i:08x}" for i in range(law.other_prompts)],
            **companion_labels(law.other_prompts),
            "denoising": effect + residual,
            "gap": float(gap.mean()),
            "mean_clean": OTHER_GAP,
            "accuracy": 1.0,
            "circuit": None,
        }
    return tasks


# --- the stored form of the measurements ---------------------------------------------------------------------------


def circuit(members: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A planted circuit with these roles {role: {heads, ordinal, sign}}."""
    known = {"assigned_by": "function", "evidence": "synthetic"}
    return {
        "name": "synthetic",
        "task": "synthetic",
        "model": "synthetic",
        "roles": {name: {**known, **role} for name, role in members.items()},
        "provenance": {"kind": "planted", "source": "tests", "split": "none"},
    }


def condition(subset: str, method: str, draw: int) -> dict[str, Any]:
    """One ablation condition of measurement 20."""
    name = f"{subset}/{method}/{draw}"
    return {"name": name, "subset": subset, "method": method, "draw": draw, "recipe": method}


def baseline(
    *,
    prompt_id: list[str],
    split: list[str],
    template: Int[np.ndarray, " prompt"],
    cluster: Int[np.ndarray, " prompt"],
    clean: Float[np.ndarray, " prompt"],
    corrupted: Float[np.ndarray, " prompt"],
    heads: list[list[int]],
    n_layers: int,
) -> dict[str, Any]:
    """Measurement 01: prompts with their labels, logit differences and the model's heads."""
    n_heads = len(heads) // n_layers
    return {
        "prompt_id": prompt_id,
        "split": split,
        "template": [f"template {t}" for t in template],
        "cluster": [f"names {c}" for c in cluster],
        "factors": {
            "order": [("ABBA", "BABA")[i % 2] for i in template],
            "answer": [f"name {c % 40}" for c in cluster],
        },
        "clean_logit_diff": clean,
        "corrupted_logit_diff": corrupted,
        "correct": clean > 0,
        "top1": clean > 0,
        "accuracy": {"evaluation": 1.0, "held_out": 1.0},
        "heads": heads,
        "n_layers": n_layers,
        "n_heads_per_layer": n_heads,
    }


def minimality(
    heads: list[list[int]],
    effect: Float[np.ndarray, "member prompt"],
    beside: Float[np.ndarray, "member prompt"],
    role_names: list[str],
    role_effect: Float[np.ndarray, "role prompt"],
    **others: Any,
) -> dict[str, Any]:
    """Measurement 22: every head left out of the circuit, alone (`effect`) and beside its greedy set (`beside`).

    `others`: the sections `completeness` and `outside`, as made by `claimed_groups` and `outside_heads`.
    """
    return {
        "heads": heads,
        "effect": effect,
        "roles": role_names,
        "role_effect": role_effect,
        "greedy": {
            "sets": [[other] for other in (*heads[1:], heads[0])],
            "kind": ["greedy"] * len(heads),
            "effect": beside,
            "discovery_effect": beside.mean(1),
            "discovery_prompts": 24,
        },
        **others,
    }


def claimed_groups(
    heads: list[list[int]],
    clean: Float[np.ndarray, " prompt"],
    faithfulness: Mapping[str, float],
    draw: Callable[[], Float[np.ndarray, " prompt"]],
    incompleteness: Mapping[tuple[str, str], float] | None = None,
) -> dict[str, Any]:
    """Section `completeness` of measurement 22: single heads, layers and the whole claim, removed from circuit and model.

    Under recipe r the circuit keeps theta_r D (theta_r from `faithfulness`), and the empty circuit keeps nothing. Removing j of
    the k heads costs circuit and model j / k of theta_r D. `incompleteness` {(group's name, recipe): share of D}: an additional
    loss of the circuit, or of the model if negative. `draw()` gives fresh noise [prompt] for every run. `clean`: D of every
    prompt of measurement 01; all of them are run.
    """
    layers = sorted({layer for layer, _ in heads})
    groups = [{"kind": "head", "name": f"L{layer}H{head}", "heads": [[layer, head]]} for layer, head in heads]
    groups += [
        {"kind": "layer", "name": f"layer {at}", "heads": [head for head in heads if head[0] == at]} for at in layers
    ]
    groups.append({"kind": "claim", "name": "the whole claim", "heads": heads})
    shares = [len(group["heads"]) / len(heads) for group in groups]
    found = {}
    for recipe, theta in faithfulness.items():
        more = [(incompleteness or {}).get((group["name"], recipe), 0.0) for group in groups]
        found[recipe] = {
            "groups": list(range(len(groups))),
            "recipe": recipe,
            "draws": 1,
            "model": clean,
            "circuit": theta * clean + draw(),
            "empty": draw(),
            "model_without": np.stack(
                [(1 - theta * share + min(inc, 0)) * clean + draw() for share, inc in zip(shares, more, strict=True)]
            ),
            "circuit_without": np.stack(
                [
                    (theta - theta * share - max(inc, 0)) * clean + draw()
                    for share, inc in zip(shares, more, strict=True)
                ]
            ),
        }
    return {"prompt_index": np.arange(len(clean)), "grouping_prompts": 40, "groups": groups, "recipes": found}


def outside_heads(
    heads: list[list[int]],
    clean: Float[np.ndarray, " prompt"],
    recipes: Iterable[str],
    draw: Callable[[], Float[np.ndarray, " prompt"]],
    shares: Mapping[tuple[str, str], float] | None = None,
) -> dict[str, Any]:
    """Section `outside` of measurement 22: heads outside the claim, whose effects are pure noise unless planted.

    `shares` {(head's name or set's kind, side): share of D} plants an effect under every recipe. The sets (greedy, positive and
    negative, for both sides) all consist of the first two heads.
    """
    shares, recipes = shares or {}, list(recipes)

    def effect(name: str, side: str) -> Float[np.ndarray, " prompt"]:
        return shares.get((name, side), 0.0) * clean + draw()

    names = [f"L{layer}H{head}" for layer, head in heads]
    if not heads:
        recipes = []
    sides = ("model", "circuit")
    return {
        "prompt_index": np.arange(len(clean)),
        "grouping_prompts": 40,
        "heads": heads,
        "recipes": {
            recipe: {side: np.stack([effect(name, side) for name in names]) for side in sides} for recipe in recipes
        },
        "sets": [
            {"kind": kind, "side": side, "recipe": recipe, "heads": heads[:2], "effect": effect(kind, side)}
            for recipe in recipes
            for side in sides
            for kind in ("greedy", "positive", "negative")
        ],
    }


def companion_labels(n_prompts: int) -> dict[str, list[str]]:
    """Labels of another task's prompts in measurement 27: one template, and each prompt has its own names."""
    return {"template": ["other"] * n_prompts, "cluster": [f"names {i}" for i in range(n_prompts)]}


def classifier(predicted: list[list[int]], probability: Float[np.ndarray, " head"], **others: Any) -> dict[str, Any]:
    """The weight classifier's section of measurement 09; `others` are `trained_on` and `leave_one_task_out`."""
    return {
        "predicted_heads": predicted,
        "probability": probability,
        "unavailable": None,
        "threshold": 0.5,
        "trained_on": {},
        "leave_one_task_out": {},
        **others,
    }
