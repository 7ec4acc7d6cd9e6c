"""Results of a model that never ran: arrays drawn from a stated law, so that a calibration's answer is known.

Law of a planted circuit: D_p ~ N(mean_clean, sd_clean), head effects e_ph = mu_h + e (mu_h = `effect` in the circuit,
0 outside), logit difference with only the circuit intact = faithfulness x D_p + N(0, noise).
"""

from __future__ import annotations

import numpy as np

from calibrations.evidence import Evidence
from meridian.experiments.validation import law

COMMON = {
    "bootstrap_resamples": 1000,
    "bootstrap_resamples_p": 9999,
    "bootstrap_seed": 42,
    "permutations": 999,
    "permutation_seed": 42,
    "alpha": 0.05,
    "min_denominator_t": 3.0,
    "min_faithfulness": 0.5,
    "faithfulness_low": 0.8,
    "faithfulness_high": 1.2,
    "max_incompleteness": 0.2,
    "max_outside": 0.1,
    "max_outside_sign": 0.2,
    "minimum_group_prompts": 20,
    "minimum_wordings": 6,
}
METHOD_DRAWS = law.METHOD_DRAWS


def documents(
    *,
    seed: int = 0,
    n_evaluation: int = 400,
    n_held_out: int = 200,
    n_layers: int = 4,
    heads_per_layer: int = 8,
    roles: dict | None = None,
    faithfulness: float = 0.95,
    by_method: dict[str, float] | None = None,
    template_shift: float = 0.0,
    cluster_shift: float = 0.0,
    mean_clean: float = 5.0,
    sd_clean: float = 1.0,
    noise: float = 0.4,
    effect: float = 1.0,
    effect_noise: float = 0.5,
    n_templates: int = 6,
    n_clusters: int = 80,
    random_faithfulness: float = 0.1,
    n_random: int = 200,
    baseline_faithfulness: float = 0.2,
    other_task_effect: float = 0.05,
    n_tasks: int = 3,
    incompleteness: dict[tuple[str, str], float] | None = None,
    outside: dict[tuple[str, str], float] | None = None,
) -> dict[str, dict]:
    """Documents 01, 02, 03, 19, 20, 21, 22, 25, 26, 27 in the shape of results/README.md; `complete` adds the others.

    `incompleteness` {(group, recipe): share} and `outside` {(head or kind, side): share} plant flaws in 22, as in `law`.
    """
    rng = np.random.default_rng(seed)
    n = n_evaluation + n_held_out
    heads = [[layer, head] for layer in range(n_layers) for head in range(heads_per_layer)]
    roles = roles or law.ROLES
    members = sorted({tuple(head) for role in roles.values() for head in role["heads"]})
    negative = {tuple(head) for role in roles.values() if role["sign"] < 0 for head in role["heads"]}
    mask = np.array([tuple(head) in members for head in heads])
    sign = np.array([-1.0 if tuple(head) in negative else 1.0 for head in heads])
    template = np.arange(n) % n_templates
    cluster = rng.integers(n_clusters, size=n)
    clean = rng.normal(mean_clean, sd_clean, n)
    corrupted = rng.normal(0, 0.5, n)

    def intact(theta: float) -> np.ndarray:
        shift = template_shift * (template % 2 - 0.5) + cluster_shift * (cluster % 2 - 0.5)
        return (theta + shift) * clean + rng.normal(0, noise, n)

    def per_head(scale: float) -> np.ndarray:
        return scale * mask * sign * effect * (0.5 + rng.random(len(heads))) + rng.normal(
            0, effect_noise, (n, len(heads))
        )

    conditions, values = [], []
    levels = {
        "circuit": by_method or {},
        "complement": dict.fromkeys(METHOD_DRAWS, 1 - faithfulness),
        "empty": dict.fromkeys(METHOD_DRAWS, 0.0),
        "top_k_norm": dict.fromkeys(METHOD_DRAWS, baseline_faithfulness),
        "top_k_attribution": dict.fromkeys(METHOD_DRAWS, (faithfulness + baseline_faithfulness) / 2),
        **{f"without:{role}": dict.fromkeys(METHOD_DRAWS, 0.3) for role in roles},
    }
    for subset, theta in levels.items():
        for method, draws in METHOD_DRAWS.items():
            for draw in range(draws):
                conditions.append(law.condition(subset, method, draw))
                values.append(intact(theta.get(method, faithfulness)))
    rows = np.arange(0, n, 4)
    random_heads = [[heads[i] for i in rng.choice(len(heads), len(members), replace=False)] for _ in range(n_random)]
    random_values = np.stack(
        [rng.normal(random_faithfulness, 0.1) * clean[rows] + rng.normal(0, noise, len(rows)) for _ in range(n_random)]
    )
    circuit = law.circuit(roles)
    minimal = np.stack([sign[heads.index(list(head))] * rng.normal(effect, effect_noise, n) for head in members])
    norms = np.abs(rng.normal(1.0, 0.3, (n, len(heads)))) + 0.3 * mask
    groups_rng = np.random.default_rng([seed, 17])
    beside = minimal + np.random.default_rng([seed, 22]).normal(0.5 * effect, effect_noise, minimal.shape)
    data = {
        "01": {
            **law.baseline(
                prompt_id=[f"{i:016x}" for i in rng.permutation(n)],
                split=["evaluation"] * n_evaluation + ["held_out"] * n_held_out,
                template=template,
                cluster=cluster,
                clean=clean,
                corrupted=corrupted,
                heads=heads,
                n_layers=n_layers,
            ),
            "answer_probability": np.clip(rng.normal(0.8, 0.05, n), 0, 1),
        },
        "02": {"denoising": per_head(1.0), "noising": per_head(1.1)},
        "03": {
            "attribution": per_head(0.9),
            "mlp": rng.normal(0, 0.1, (n, n_layers)),
            "embedding": np.zeros(n),
            "bias": np.zeros(n),
        },
        "19": fresh_prompts(n_evaluation, faithfulness, mean_clean, sd_clean, noise, template_shift, seed),
        "20": {
            "circuit": circuit,
            "conditions": conditions,
            "logit_diff": np.stack(values),
            "random_circuits": {
                "heads": random_heads,
                "prompt_index": rows,
                "logit_diff": random_values,
                "recipe": "mean",
                "seed": 0,
            },
            "baselines": {
                "top_k_norm": heads[: len(members)],
                "top_k_attribution": heads[-len(members) :],
                "selected_on": "discovery",
            },
        },
        "21": {"effect": per_head(1.0)},
        "22": law.minimality(
            [list(head) for head in members],
            minimal,
            beside,
            list(roles),
            np.stack([rng.normal(2 * effect, effect_noise, n) for _ in roles]),
            completeness=law.claimed_groups(
                [list(head) for head in members],
                clean,
                {method: (by_method or {}).get(method, faithfulness) for method in METHOD_DRAWS},
                lambda: groups_rng.normal(0, noise, n),
                incompleteness,
            ),
            outside=law.outside_heads(
                [head for head in heads if tuple(head) not in members],
                clean,
                ("mean", "resample"),
                lambda: groups_rng.normal(0, noise, n),
                outside,
            ),
        ),
        "25": {"entropy": rng.random(len(heads))},
        "26": {
            "output_norm": norms,
            "discovery_norm": norms.mean(0),
            "mean": rng.normal(0, 1, len(heads)),
            "variance": rng.random(len(heads)),
            "singular_values": np.sort(rng.random((len(heads), 8)))[:, ::-1] * 10,
            "prediction_error_ratio": np.random.default_rng([seed, 26]).uniform(0.2, 0.8, len(heads)),
        },
        "27": {
            "tasks": {
                f"other task {t}": {
                    "prompt_id": [f"{t}-{i:08x}" for i in range(100)],
                    **law.companion_labels(100),
                    "denoising": (~mask) * effect * 0.5
                    + mask * other_task_effect
                    + rng.normal(0, effect_noise, (100, len(heads))),
                    "gap": 4.0,
                    "mean_clean": 4.0,
                    "accuracy": 1.0,
                    "circuit": {
                        "name": f"other {t}",
                        "heads": [heads[i] for i in np.flatnonzero(~mask)[t::n_tasks][:6]],
                    },
                }
                for t in range(n_tasks - 1)
            }
        },
    }
    return {number: {"number": number, "data": _plain(content)} for number, content in data.items()}


def fresh_prompts(
    size: int, theta: float, mean_clean: float, sd_clean: float, noise: float, shift: float, seed: int
) -> dict:
    """A pool of three times `size` prompts whose first, second and last thirds are the draws of 42, 123 and 456."""
    rng = np.random.default_rng([seed, 19])
    clean, template = rng.normal(mean_clean, sd_clean, 3 * size), np.arange(3 * size) % 2
    rows = np.arange(3 * size)
    return {
        "size": size,
        "draws": {"42": rows[:size], "123": rows[size : 2 * size], "456": rows[2 * size :], "pool": rows},
        "unavailable": {},
        "prompt_id": [f"fresh-{i:08x}" for i in rows],
        "clean": clean,
        "circuit": (theta + shift * (template - 0.5)) * clean + rng.normal(0, noise, 3 * size),
    }


def complete(docs: dict[str, dict], *, seed: int = 0, effect: float = 1.0, noise: float = 0.5) -> dict[str, dict]:
    """`docs` with 05, 07, 08, 09, 10 and 24, all of which tell circuit heads from others by `effect`.

    Laws: effects per prompt ~ N(effect in the circuit, noise); scores of heads 0.1 to 0.9 plus `effect` in the circuit;
    compositions half-normal plus effect/2 between circuit heads; the classifier finds the circuit with one false alarm;
    scrubbing recovers 0.8 of D.
    """
    rng = np.random.default_rng([seed, 5])
    baseline, circuit = docs["01"]["data"], docs["20"]["data"]["circuit"]
    heads, clean = [tuple(head) for head in baseline["heads"]], np.asarray(baseline["clean_logit_diff"])
    members = sorted({tuple(head) for role in circuit["roles"].values() for head in role["heads"]})
    mask = np.array([head in members for head in heads])
    outside = [list(head) for head in heads if head not in members]

    def per_prompt() -> np.ndarray:
        return effect * mask + rng.normal(0, noise, (len(clean), len(heads)))

    def per_head() -> np.ndarray:
        return rng.uniform(0.1, 0.9, len(heads)) + effect * mask

    data = {
        "05": {"natural_indirect": per_prompt()},
        "07": {"score": per_head(), "selected": [list(head) for head in members]},
        "08": {"effect": per_prompt()},
        "09": {
            **{name: per_head() for name in ("ov_norm", "spectral_norm", "qk_spectral_norm", "sv_entropy", "copying")},
            **{f"{kind}_composition": composition(heads, mask, rng, effect / 2) for kind in "qkv"},
            "classifier": classifier(members, outside, np.clip(per_head() / 2, 0, 1)),
        },
        "10": {"score": per_head(), "standard_error": np.full(len(heads), 0.05), "r_hat": np.full(len(heads), 1.01)},
        "24": {
            "everything_relevant": clean,
            "nothing_relevant": 0.1 * clean + rng.normal(0, 0.4, (4, len(clean))),
            "scrubbed": 0.82 * clean + rng.normal(0, 0.4, (4, len(clean))),
        },
    }
    return {**docs, **{number: {"number": number, "data": _plain(content)} for number, content in data.items()}}


def classifier(members: list, outside: list, probability: np.ndarray) -> dict:
    """A weight classifier that names every member and the first head outside, trained on two other tasks."""
    others = {"other task 0": (3, 2), "other task 1": (4, 0)}
    negatives = len(probability) - 4
    return law.classifier(
        [*map(list, members), *outside[:1]],
        probability,
        trained_on={"other task 0": outside[:4], "other task 1": outside[4:8]},
        leave_one_task_out={
            name: {"hits": hits, "positives": 4, "false_alarms": alarms, "negatives": negatives}
            for name, (hits, alarms) in others.items()
        },
    )


def composition(heads: list, mask: np.ndarray, rng: np.random.Generator, inside: float) -> list[list[float | None]]:
    """Composition [sender receiver] of heads in later layers: |N(0, 1)|, plus `inside` between members of `mask`."""
    layer = np.array([head[0] for head in heads])
    values = np.abs(rng.normal(0, 1, (len(heads), len(heads)))) + inside * np.outer(mask, mask)
    return np.where(layer[:, None] < layer, values, np.nan).astype(object).tolist()


def evidence(split: str = "evaluation", **law) -> Evidence:
    """Evidence of a synthetic circuit; keyword arguments are those of `documents`."""
    return Evidence(documents(**law), COMMON, split)


def _plain(value):
    if isinstance(value, float) and np.isnan(value):
        return None
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
