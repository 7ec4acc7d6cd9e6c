"""Synthetic circuits with one known flaw each: which gates fail, which pass all the same, and what tier that leaves.

Every law is that of `synthetic.documents` (7 heads of 32, D about 5 nats, 400 prompts) with one thing planted. The expected set
holds every metric below that fails; all others pass or, where the flaw leaves them nothing to judge, are insufficient.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from calibrations import claim_completeness, outside_heads, preconditions
from calibrations.evidence import Evidence
from calibrations.registry import CALIBRATIONS
from tests.calibrations.settings import clean_of, config_of, set_intact
from tests.calibrations.synthetic import COMMON, documents

RULES = yaml.safe_load((Path(__file__).parents[2] / "configs" / "certificate" / "tiers.yaml").read_text())
QUICK = {"permutations": 199, "bootstrap_resamples": 199, "bootstrap_resamples_p": 999, "random_sets": 50}
JUDGES = ("C13", "C17", "C23", "C36", "M3b", "M98", "E1b")
METHODS = ("zero", "mean", "mean_pooled", "resample", "noise")
ROLES = {
    "early": {"heads": [[0, 1], [0, 2]], "ordinal": 1, "sign": 1},
    "middle": {"heads": [[1, 3], [2, 1]], "ordinal": 2, "sign": 1},
    "late": {"heads": [[3, 0], [3, 2], [3, 5]], "ordinal": 4, "sign": 1},
}


def judge(docs, only=JUDGES):
    """{metric: verdict} of every record that some tier asks for."""
    evidence = Evidence(docs, COMMON)
    common = {**config_of("common"), **QUICK}
    records = [
        record
        for part in (preconditions, claim_completeness, outside_heads)
        for record in part.records(evidence, common)
    ]
    for identifier in only:
        records += CALIBRATIONS[identifier].calibrate(evidence, {**config_of(identifier.lower()), **QUICK})
    return {record.metric: record.verdict for record in records if record.metric in first_tier()}


@cache
def first_tier():
    """{metric: lowest tier that a fail of it makes unreachable}."""
    found: dict[str, int] = {}
    for level, rule in sorted(RULES["tiers"].items()):
        for metric in (*rule["all"], *rule.get("any", ()), *rule.get("not_fail", ())):
            found.setdefault(metric, int(level))
    return found


def sound():
    return documents()


def random_circuit():
    return documents(faithfulness=0.05)  # the median of the random circuits is .1


def missing_head():
    return documents(faithfulness=0.6)


def negative_left_out():
    return documents(faithfulness=1.5)


def gated():
    """The claimed heads need a constant that a head outside supplies: nothing is left under zero."""
    return documents(faithfulness=1.0, by_method={"zero": 0.0})


def loud():
    """The claim is the baseline: the seven heads with the largest output norm."""
    docs = documents()
    data = docs["20"]["data"]
    data["baselines"]["top_k_norm"] = [list(head) for head in Evidence(docs, COMMON).circuit_heads]
    place = {condition["name"]: row for row, condition in enumerate(data["conditions"])}
    for name, row in place.items():
        if name.startswith("circuit/"):
            data["logit_diff"][place[name.replace("circuit/", "top_k_norm/")]] = data["logit_diff"][row]
    return docs


def by_prompt(theta):
    """Faithfulness theta [prompt] under every method, with noise of 0.4 nats."""
    docs = documents()
    clean, rng = clean_of(docs), np.random.default_rng(11)
    for method in METHODS:
        set_intact(docs, "circuit", theta(docs) * clean + rng.normal(0, 0.4, len(clean)), (method,))
    return docs


def one_template():
    """.98 on five templates, .4 on the sixth: .88 on the whole, inside the band of faithfulness."""
    return by_prompt(lambda docs: np.where(np.array(docs["01"]["data"]["template"]) == "template 2", 0.4, 0.98))


def some_names():
    """Nothing of the behaviour is left for 4 of 40 answer names: .88 on the whole."""
    missed = {f"name {i}" for i in range(4)}
    return by_prompt(
        lambda docs: np.where([name in missed for name in docs["01"]["data"]["factors"]["answer"]], 0.0, 0.98)
    )


def false_head():
    """An eighth head that does nothing, alone or beside any others."""
    docs = documents(roles={**ROLES, "decoy": {"heads": [[2, 6]], "ordinal": None, "sign": 1}})
    rng, n = np.random.default_rng(12), 600
    effect = np.array(docs["21"]["data"]["effect"])
    effect[:, 2 * 8 + 6] = rng.normal(0, 0.5, n)
    docs["21"]["data"]["effect"] = effect.tolist()
    content = docs["22"]["data"]
    row = content["heads"].index([2, 6])
    for effects in (content["greedy"]["effect"], content["effect"]):
        effects[row] = rng.normal(0, 0.5, n).tolist()
    groups = content["completeness"]
    place = next(i for i, group in enumerate(groups["groups"]) if group["heads"] == [[2, 6]])
    for found in groups["recipes"].values():
        for intact, without in (("model", "model_without"), ("circuit", "circuit_without")):
            found[without][place] = (np.array(found[intact]) + rng.normal(0, 0.4, n)).tolist()
    return docs


def backup():
    """A head outside takes over from the late heads if they are silent, and not if they speak for another prompt."""
    return documents(incompleteness={("layer 3", "zero"): 0.5})


def half_of_a_redundant_stage():
    """The omitted half carries the answer without the claimed one, under every recipe."""
    return documents(incompleteness={("layer 3", recipe): 0.5 for recipe in METHODS})


def works_through_another():
    """Without L1H3 the model loses more than the circuit: the head acts through one that the claim leaves out."""
    return documents(incompleteness={("L1H3", recipe): -0.4 for recipe in METHODS})


def outside_pair_that_cancels():
    return documents(outside={("L0H5", "model"): 0.25, ("L1H6", "model"): -0.25})


def redundant_head_left_out():
    """Silent as long as its twin in the circuit works, but the circuit changes when it is added."""
    return documents(outside={("L0H5", "circuit"): 0.3})


def many_small_heads_left_out():
    return documents(outside={("positive", "model"): 0.35, ("negative", "model"): -0.35})


def shared():
    """The heads matter in full for one of four companion tasks."""
    docs = documents(n_tasks=5)
    mask = Evidence(docs, COMMON).in_circuit
    docs["02"]["data"]["denoising"] = (np.array(docs["02"]["data"]["denoising"]) + 2.0 * mask).tolist()
    task = docs["27"]["data"]["tasks"]["other task 1"]
    task["denoising"] = (np.array(task["denoising"]) + 2.3 * mask).tolist()
    return docs


def roles_swapped():
    """What is called early sits late and the other way round."""
    ordinals = {"early": 4, "middle": 2, "late": 1}
    return documents(roles={name: {**role, "ordinal": ordinals[name]} for name, role in ROLES.items()})


UNFAITHFUL = {"P.faithfulness", "P.faithfulness_every_recipe", "P.incompleteness_score"}
INCOMPLETE = {"P.completeness", "P.completeness_every_recipe", "P.incompleteness_score"}
FLAWS = {
    random_circuit: {*UNFAITHFUL, "P.random_circuits"},
    missing_head: UNFAITHFUL,
    negative_left_out: UNFAITHFUL,
    gated: {
        "P.faithfulness_every_recipe",
        "P.incompleteness_score",
        "M98.ablation_invariance",
        "E1b.method_invariance",
    },
    loud: {"C36.incremental_validity"},
    one_template: {"C13.measurement_invariance"},
    some_names: {"C13.measurement_invariance"},
    false_head: {"M3b.no_idle_heads"},
    backup: {"P.completeness_every_recipe", "P.incompleteness_score"},
    half_of_a_redundant_stage: INCOMPLETE,
    works_through_another: INCOMPLETE,
    outside_pair_that_cancels: {"P.outside"},
    redundant_head_left_out: {"P.outside"},
    many_small_heads_left_out: {"P.outside"},
    shared: {"C17.discriminant_validity"},
    roles_swapped: {"C23.role_depth_correlation"},
}
# the tier that the verdicts leave; 1 for the others
HIGHEST = {random_circuit: 0, one_template: 2, some_names: 2, gated: 2, backup: 2, shared: 3, roles_swapped: 2}


def test_a_sound_circuit_passes_all_of_them():
    found = judge(sound())
    assert len(found) == 17 and set(found.values()) == {"pass"}


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.__name__)
def test_each_flaw_fails_its_own_gates_and_no_other(flaw):
    found = judge(flaw())
    assert {metric for metric, verdict in found.items() if verdict == "fail"} == FLAWS[flaw]
    blocked = {metric for metric, verdict in found.items() if verdict != "pass"}
    assert min(first_tier()[metric] for metric in blocked) - 1 == HIGHEST.get(flaw, 1)
