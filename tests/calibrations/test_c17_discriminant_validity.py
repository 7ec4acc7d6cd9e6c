"""C17: the contrast own - 3 x other, tasks without a behaviour, shared heads, random head sets."""

import json

import numpy as np
import pytest
from settings import config_of, shuffled
from synthetic import COMMON, documents

from calibrations import c17_discriminant_validity as c17
from calibrations.evidence import Evidence

CONFIG = {**config_of("c17"), "bootstrap_resamples_p": 1999, "random_sets": 400}  # speed


def judge(docs):
    records = c17.calibrate(Evidence(docs, COMMON), CONFIG)
    for record in records:
        json.dumps(record.to_dict(), allow_nan=False)
    return records


def others(docs):
    return docs["27"]["data"]["tasks"]


def crafted(matrix, n_heads=32, n=200):
    """Three tasks whose heads have exactly the normalised effects `matrix` [source][task]."""
    docs = documents()
    heads = docs["01"]["data"]["heads"]
    circuits = [docs["20"]["data"]["circuit"]["roles"], [[0, 5], [1, 5]], [[0, 6], [1, 6]]]
    own = [tuple(h) for role in circuits[0].values() for h in role["heads"]]
    sets = [own, [tuple(h) for h in circuits[1]], [tuple(h) for h in circuits[2]]]
    masks = np.array([[tuple(h) in members for h in heads] for members in sets])
    clean, corrupted = (np.array(docs["01"]["data"][k]) for k in ("clean_logit_diff", "corrupted_logit_diff"))
    gap = (clean - corrupted)[:400].mean()
    columns = (np.array(matrix).T @ masks).astype(float)
    docs["02"]["data"]["denoising"] = np.tile(columns[0] * gap, (600, 1)).tolist()
    for i, name in enumerate(sorted(others(docs)), start=1):
        task = others(docs)[name]
        task["denoising"] = np.tile(columns[i] * task["gap"], (100, 1)).tolist()
        task["circuit"] = {"name": name, "heads": [list(h) for h in sets[i]]}
    return docs


def test_matrix_and_ratios_are_exact():
    docs = crafted([[0.6, 0.05, 0.1], [0.12, 0.5, 0.02], [0.04, 0.08, 0.4]])
    validity, matrix = judge(docs)
    np.testing.assert_allclose(
        matrix.companions["normalised"], [[0.6, 0.05, 0.1], [0.12, 0.5, 0.02], [0.04, 0.08, 0.4]]
    )
    np.testing.assert_allclose(matrix.companions["raw"][1][1], 0.5 * 4.0)
    assert validity.published_value == pytest.approx(0.6 / 0.075) and validity.published_verdict == "pass"
    assert validity.estimate == pytest.approx(0.6 - 3 * 0.1)  # the worst companion
    assert matrix.published_value == pytest.approx(np.mean([8, 0.5 / 0.07, 0.4 / 0.06]))
    assert matrix.estimate == pytest.approx(np.median(np.log([8, 0.5 / 0.07, 0.4 / 0.06])))
    assert validity.gating and not matrix.gating and matrix.published_verdict == "none"


def test_a_specific_circuit_passes():
    validity, _ = judge(documents())
    assert validity.verdict == "pass" and validity.published_verdict == "pass"
    assert validity.p < CONFIG["alpha"] and validity.n["tasks"] == 3
    assert validity.companions["log_ratio_ci90"][0] > np.log(CONFIG["threshold_ratio"])


def test_heads_that_serve_every_task_fail():
    validity, matrix = judge(documents(other_task_effect=1.0))
    assert validity.verdict == "fail" and validity.published_verdict == "fail"
    assert matrix.companions["random"][0]["p_above_random"][1] < 0.05


def test_one_companion_in_four_is_enough_to_fail():
    """`shared`: own - 3 x the mean of four companions is 1 - 3/4 > 0, own - 3 x the shared one is -2."""
    docs = documents(n_tasks=5)
    task, mask = others(docs)["other task 2"], Evidence(docs, COMMON).in_circuit
    docs["02"]["data"]["denoising"] = (np.array(docs["02"]["data"]["denoising"]) + 2.0 * mask).tolist()
    task["denoising"] = (np.array(task["denoising"]) + 2.3 * mask).tolist()
    validity, _ = judge(docs)
    row = validity.companions
    assert row["own"] - 3 * row["others_mean"] > 0 and validity.published_verdict == "pass"
    assert row["difference"] == pytest.approx(row["own"] - np.mean(list(row["others"].values())))
    assert row["difference_ci90"][0] < row["difference"] < row["difference_ci90"][1]
    assert validity.verdict == "fail" and validity.p == pytest.approx(1.0)
    assert validity.reasons == ("the heads matter for other tasks as well: other task 2",)
    assert validity.estimate == pytest.approx(row["own"] - 3 * row["others"]["other task 2"])
    assert validity.ci90[1] < 0 and validity.ci_method.endswith("against other task 2")
    assert row["contrasts"]["other task 0"]["ci90"][0] > 0


def test_a_shared_circuit_is_noted_and_still_not_specific():
    docs = documents(n_tasks=5)
    own = [h for role in docs["20"]["data"]["circuit"]["roles"].values() for h in role["heads"]]
    task, mask = others(docs)["other task 2"], Evidence(docs, COMMON).in_circuit
    task["denoising"] = (np.array(task["denoising"]) + 1.0 * mask).tolist()
    task["circuit"]["heads"] = own
    validity, _ = judge(docs)
    assert validity.verdict == "fail" and any(note.startswith("shared_circuit") for note in validity.notes)


@pytest.mark.slow
def test_false_pass_rate_at_a_third_for_one_companion():
    """Own effect is exactly three times that on one of four companions: the edge of the null hypothesis."""
    passed = failed = 0
    for seed in range(60):
        docs = documents(seed=seed, n_tasks=5, n_random=2, n_evaluation=100, n_held_out=10, effect_noise=2.0)
        mask = Evidence(docs, COMMON).in_circuit
        rng = np.random.default_rng(900 + seed)
        gap = np.mean(np.subtract(*(docs["01"]["data"][k] for k in ("clean_logit_diff", "corrupted_logit_diff"))))
        docs["02"]["data"]["denoising"] = (0.6 * mask * gap + rng.normal(0, 2, (110, 32))).tolist()
        for i, task in enumerate(others(docs).values()):
            task["denoising"] = ((0.2 if i == 1 else 0.0) * 4.0 * mask + rng.normal(0, 2, (100, 32))).tolist()
        validity, _ = judge(docs)
        passed, failed = passed + (validity.verdict == "pass"), failed + (validity.verdict == "fail")
    tolerance = 3 * np.sqrt(60 * 0.05 * 0.95)
    assert passed <= 3 + tolerance and failed <= 3 + tolerance


def test_a_ratio_at_three_is_inconclusive():
    docs = documents(effect_noise=3.0, other_task_effect=0.25)
    validity, _ = judge(docs)
    assert validity.verdict == "inconclusive"


def test_prompts_that_would_settle_a_contrast_are_named_only_if_it_is_above_zero():
    """Half width 1 at an estimate of .5 and 100 prompts: (1 / .5)^2 x 100 = 400."""
    draws = np.linspace(-0.5, 1.5, 2001) / 0.9 - 0.5 * (1 / 0.9 - 1)  # 90 % of them between -.5 and 1.5
    assert c17._needs(c17.Contrast("other", 0.5, draws), 100) == "about 400 prompts per task"
    assert c17._needs(c17.Contrast("other", -0.1, draws), 100) is None


def test_negative_off_diagonal_is_not_specificity():
    """D24: |off-diagonal| in the denominator turns harm on other tasks into a ratio of 20."""
    validity, _ = judge(crafted([[0.6, -0.05, -0.01], [0, 0.5, 0], [0, 0, 0.4]]))
    assert validity.published_value == pytest.approx(-20) and validity.published_verdict == "fail"
    noisy, _ = judge(documents(other_task_effect=-0.5))
    assert any(note.startswith("negative_transfer") for note in noisy.notes)
    assert any(note.startswith("ratio_undefined") for note in noisy.notes)
    assert noisy.verdict == "pass" and noisy.companions["log_ratio_ci90"] is None


def test_a_vanishing_denominator_does_not_make_the_ratio_infinite():
    validity, matrix = judge(crafted([[0.5, 0.001, -0.001], [0, 0.4, 0.1], [0.1, 0, 0.4]]))
    assert validity.published_value is None and "ratio_undefined" in validity.published_label
    assert validity.verdict == "pass" and validity.estimate == pytest.approx(0.5 - 3 * 0.001)
    assert matrix.published_value is None


@pytest.mark.slow
def test_pure_noise_rarely_passes_although_the_published_rule_does():
    passed = published = 0
    for seed in range(40):
        docs = documents(seed=seed, effect=0.0, other_task_effect=0.0, n_random=2, n_evaluation=100, n_held_out=10)
        validity, _ = judge(docs)
        passed += validity.verdict == "pass"
        published += validity.published_verdict == "pass"
    assert passed <= 2 + 3 * np.sqrt(40 * 0.05 * 0.95) and published > 2 * passed


@pytest.mark.parametrize(
    ("change", "word"), [({"accuracy": 0.5}, "accuracy"), ({"gap": -0.2}, "gap"), ({"gap": 0.0}, "gap")]
)
def test_a_companion_without_a_behaviour_is_left_out_and_said_so(change, word):
    docs = documents(n_tasks=4)
    others(docs)["other task 1"].update(change)
    validity, matrix = judge(docs)
    assert validity.verdict == "pass" and validity.n["tasks"] == 3
    assert word in validity.companions["left_out"]["other task 1"]
    assert "other task 1" not in matrix.companions["tasks"]


def test_two_tasks_are_shown_but_do_not_gate():
    docs = documents()
    others(docs)["other task 1"]["accuracy"] = 0.4
    validity, matrix = judge(docs)
    assert validity.published_value > 3 and validity.verdict == "insufficient"
    assert validity.reasons[0].startswith("n_tasks") and "other task 1 left out" in validity.reasons[0]
    assert matrix.published_value is not None


def test_one_task_is_insufficient():
    docs = documents(n_tasks=1)
    validity, matrix = judge(docs)
    assert validity.published_value is None and validity.reasons[0].startswith("n_tasks")
    assert matrix.verdict == "insufficient"


def test_few_prompts_leave_a_companion_out():
    docs = documents()
    task = others(docs)["other task 0"]
    task["prompt_id"], task["denoising"] = task["prompt_id"][:29], task["denoising"][:29]
    validity, _ = judge(docs)
    assert "29 prompts" in validity.companions["left_out"]["other task 0"]


def test_shared_heads_are_reported():
    """D24: overlapping circuits make a low ratio legitimate."""
    docs = documents()
    own = [h for role in docs["20"]["data"]["circuit"]["roles"].values() for h in role["heads"]]
    others(docs)["other task 0"]["circuit"]["heads"] = [*own[:4], [0, 7]]
    validity, _ = judge(docs)
    assert validity.companions["jaccard_with"]["other task 0"] == pytest.approx(4 / 8)
    assert any(note.startswith("shared_circuit") and "other task 0" in note for note in validity.notes)


def test_columns_are_in_units_of_their_own_task():
    """A task with logit differences ten times as large must not look ten times as important."""
    docs = documents()
    before = judge(docs)[0]
    for task in others(docs).values():
        task["denoising"] = (10 * np.array(task["denoising"])).tolist()
        task["gap"] *= 10
    assert judge(docs)[0].published_value == pytest.approx(before.published_value)


def test_random_sets_cover_the_whole_table_and_keep_the_layer_profile():
    """D15: the baseline is drawn from all measured heads, not from zeros outside the circuit."""
    docs = documents()
    task = others(docs)["other task 0"]
    layer = np.repeat(np.arange(4), 8)
    task["denoising"] = (np.array(task["denoising"]) + 4.0 * (layer == 3)).tolist()
    _, matrix = judge(docs)
    mean = np.array(task["denoising"]).mean(axis=0) / task["gap"]
    expected = np.mean([mean[layer == own].mean() for own in (0, 0, 1, 2, 3, 3, 3)])
    assert abs(expected - mean.mean()) > 0.1  # sets that ignore layers have another mean
    assert matrix.companions["random"][0]["mean"][1] == pytest.approx(expected, abs=0.01)


def test_missing_measurements_and_behaviour():
    docs = documents()
    del docs["27"]
    assert judge(docs)[0].reasons[0].startswith("not_run")
    assert judge(documents(mean_clean=-3))[0].reasons[0].startswith("behaviour_absent")


def test_a_companion_without_a_circuit_is_a_column_only():
    docs = documents()
    others(docs)["other task 0"]["circuit"] = None
    validity, matrix = judge(docs)
    assert validity.n["tasks"] == 3
    assert matrix.companions["sources"] == ["synthetic", "other task 1"] and len(matrix.companions["tasks"]) == 3


def test_order_of_prompts_and_tasks_does_not_matter_and_runs_repeat():
    docs = documents()
    first = judge(docs)
    turned = shuffled(docs)
    turned["27"] = {"data": {"tasks": dict(reversed(others(docs).items()))}}
    for name, task in others(docs).items():
        order = np.random.default_rng(1).permutation(100)
        turned["27"]["data"]["tasks"][name] = {
            **task,
            "prompt_id": [task["prompt_id"][i] for i in order],
            "cluster": [task["cluster"][i] for i in order],
            "denoising": [task["denoising"][i] for i in order],
        }
    assert first == judge(docs) == judge(turned)


def test_prompts_of_a_companion_that_share_names_are_one_draw():
    """20 name sets of five equal prompts: the interval of the effect on that task is sqrt(5) wider than of 100 prompts."""
    widths = {}
    for per_set in (1, 5):
        docs = documents(effect_noise=0.5)
        for task in others(docs).values():
            drawn = np.random.default_rng(3).normal(0.05, 0.5, (100 // per_set, len(task["denoising"][0])))
            task["denoising"] = np.repeat(drawn, per_set, axis=0).tolist()
            task["cluster"] = [f"names {i // per_set}" for i in range(100)]
        low, high = judge(docs)[0].companions["others_ci90"]
        widths[per_set] = high - low
    assert widths[5] / widths[1] == pytest.approx(np.sqrt(5), rel=0.2)


def test_the_gating_record_holds_the_random_head_baseline():
    """Random heads of the same layers have .5 x (share of other heads) on another task, the circuit's own heads .05 / 4."""
    validity, matrix = judge(documents())
    found = validity.companions["random_heads"]
    assert list(found) == matrix.companions["tasks"]
    assert [one["mean"] for one in found.values()] == pytest.approx(matrix.companions["random"][0]["mean"])
    own, other = list(found.values())[:2]
    assert own["p_above_random"] < 0.01 and other["p_above_random"] > 0.9
    pair = validity.against_baseline
    assert (pair["value"], pair["baseline"]) == pytest.approx((validity.companions["own"], own["mean"]))
    assert pair["ci95"][0] < pair["value"] - pair["baseline"] < pair["ci95"][1]


def test_a_task_that_names_no_companions_is_told_to_name_them() -> None:
    docs = documents(n_tasks=1)
    docs["27"]["data"] |= {"tasks": {}, "unavailable": {}}
    (validity, _) = c17.calibrate(Evidence(docs, COMMON), CONFIG)
    assert (validity.verdict, validity.needs) == ("insufficient", "2 companions")
    assert validity.reasons[0].startswith(
        "n_tasks: the task names no companions, so nothing tells its own heads from those"
    )
    assert validity.reasons[0].endswith("task.companions")
