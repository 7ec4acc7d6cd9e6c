"""07 against regressions written out, planted attributions, and what must not change it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import results_io
from circuits import models, tasks
from circuits import study as studies
from circuits.measurements import baseline, direct_logit_attribution, ocse
from results_io import UserError
from tests.circuits import toy

SETTINGS = toy.SETTINGS["ocse"]


def with_settings(study, **changes):
    return replace(study, settings={**study.settings, "ocse": {**SETTINGS, **changes}})


N = 120  # evaluation prompts: with the toy's 20 nothing is found


@pytest.fixture(scope="module")
def make_own(load):
    """make_own(architecture): a study of the random model with these settings."""

    @cache
    def make(architecture: str):
        sizes = {"evaluation": N, "held_out": 8, "discovery": 1, "reference": 1}
        study = studies.prepare(load(architecture), tasks.get("ioi"), sizes, 0, toy.ENGINE, settings=toy.SETTINGS)
        return with_settings(study)

    return make


@pytest.fixture(scope="module")
def own(make_own):
    return make_own("gpt2")


@pytest.fixture(scope="module")
def data(own):
    return ocse.measure(own)


@pytest.fixture(scope="module")
def arrays(own):
    return read_arrays(own)


def read_arrays(study) -> tuple[np.ndarray, np.ndarray]:
    """Attributions and logit differences of the evaluation prompts in the order of their ids, by 03 and 01."""
    rows = toy.lowest_hash(study, N)
    attribution = direct_logit_attribution.measure(study)["attribution"]
    return attribution[rows].astype(float), np.asarray(baseline.measure(study)["clean_logit_diff"])[rows].astype(float)


def planted(monkeypatch, columns: dict[int, np.ndarray], n_heads: int = 12) -> None:
    """Attributions that are nothing but these columns and independent noise."""

    def attribute(study, prompts):
        values = np.random.default_rng(0).standard_normal((len(prompts), n_heads))
        for head, column in columns.items():
            values[:, head] = column
        return {"attribution": torch.from_numpy(values).float()}

    monkeypatch.setattr(ocse, "attribute", attribute)


def information(x, y, given, noise) -> float:
    """1/2 ln of the ratio of residual variances without and with x, both plus a share of the variance of y."""

    def left(*columns):
        design = np.column_stack([np.ones(len(y)), *columns])
        residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
        return np.square(residual).sum() / (len(y) - design.shape[1]) + noise * y.var(ddof=1)

    return np.log(left(*given) / left(*given, x)) / 2


@pytest.mark.slow
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_scores_are_those_of_regressions_on_attributions_and_logit_differences(architecture, make_own) -> None:
    """Also with grouped-query attention (llama, qwen2); a lax threshold, so that several heads are selected."""
    data, (features, target) = (
        ocse.measure(with_settings(make_own(architecture), alpha=0.5)),
        read_arrays(make_own(architecture)),
    )
    assert len(data["selected"]) > 1
    n_heads = features.shape[1]
    chosen = [4 * layer + head for layer, head in data["selected"]]
    noise = SETTINGS["target_noise"]
    given = [[features[:, other] for other in chosen if other != head] for head in range(n_heads)]
    expected = [information(features[:, head], target, given[head], noise) for head in range(n_heads)]
    assert data["score"] == pytest.approx(expected, abs=1e-5)
    marginal = [information(features[:, head], target, [], noise) for head in range(n_heads)]
    assert data["marginal"] == pytest.approx(marginal, abs=1e-5)
    design = np.column_stack([np.ones(N), features[:, chosen]])
    residual = target - design @ np.linalg.lstsq(design, target, rcond=None)[0]
    assert data["explained_variance"] == pytest.approx(1 - residual.var() / target.var(), abs=1e-5)
    assert np.isfinite(data["nearest_neighbour"]["score"]).all()


def test_prompts_are_those_of_the_evaluation_split(data, own) -> None:
    assert list(data["prompt_id"]) == sorted(own.prompts.ids[row] for row in own.prompts.rows_of("evaluation"))
    assert len(data["prompt_id"]) == N


def test_forward_steps_name_the_heads_selected_and_those_pruned(own, arrays, monkeypatch) -> None:
    """Heads 6 and 9 make up the target; head 2, a blurred copy of it, comes first and is dropped once they are in."""
    target = arrays[1]
    blur, split = np.random.default_rng(1).standard_normal((2, N)) * target.std()
    planted(monkeypatch, {2: target + 0.6 * blur, 6: target / 2 + split / 2, 9: target / 2 - split / 2})
    lenient = {"neighbours": 5, "permutations": 19, "local": 3, "most_heads": 4, "most_prompts": 1000}
    data = ocse.measure(with_settings(own, nearest_neighbour=lenient))
    for part in (data, data["nearest_neighbour"]):
        entered = [step["head"] for step in part["forward"]]
        pruned = [step["head"] for step in part["pruned"]]
        assert entered[0] == [0, 2] and [0, 2] in pruned
        assert {(1, 2), (2, 1)} <= {tuple(head) for head in part["selected"]}
        assert part["selected"] == [head for head in entered if head not in pruned]
        assert all(step["information"] > step["threshold"] for step in part["forward"])
        assert all(step["information"] <= step["threshold"] for step in part["pruned"])
        assert part["forward"][0]["information"] == pytest.approx(part["marginal"].max())
        assert part["rejected"] is None or part["rejected"]["information"] <= part["rejected"]["threshold"]


def test_the_heads_that_make_up_the_target_are_found_by_name(own, arrays, monkeypatch) -> None:
    target = arrays[1]
    half = np.random.default_rng(1).standard_normal(N) * target.std()
    planted(monkeypatch, {6: 0.7 * target + half, 9: -half})
    data = ocse.measure(own)
    assert sorted(data["selected"]) == [[1, 2], [2, 1]]
    assert data["score"][[6, 9]].min() > 1.5 > 0.5 > np.delete(data["score"], [6, 9]).max()
    assert data["stability"]["frequency"][6] == data["stability"]["frequency"][9] == 1
    assert np.delete(data["stability"]["frequency"], [6, 9]).max() < 1
    assert data["explained_variance"] > 0.99


def test_a_head_that_never_varies_scores_zero_and_is_listed(own, arrays, monkeypatch) -> None:
    planted(monkeypatch, {3: np.full(N, 7.0), 5: arrays[1], 8: np.zeros(N)})
    data = ocse.measure(own)
    assert data["constant"] == [[0, 3], [2, 0]]
    for part in (data, data["nearest_neighbour"]):
        assert part["score"][3] == part["score"][8] == part["marginal"][3] == part["marginal"][8] == 0
        assert part["selected"][0] == [1, 1]


def test_stability_is_the_share_of_refits(own, data, arrays) -> None:
    features, target = arrays
    prompts = own.prompts.select(toy.lowest_hash(own, N))
    refits = [ocse.refit(features, target, prompts.clusters, own.settings["ocse"], draw) for draw in range(6)]
    frequency = np.mean([[head in chosen for head in range(12)] for chosen in refits], 0)
    assert data["stability"]["frequency"] == pytest.approx(frequency)
    full = {4 * layer + head for layer, head in data["selected"]}
    shared = [len(full & set(chosen)) / len(full | set(chosen)) for chosen in refits]
    assert data["stability"]["mean_jaccard"] == pytest.approx(np.mean(shared))
    assert len(set(refits)) > 1
    assert ocse._jaccard(set(), set()) == 1


def test_neither_the_order_of_prompts_nor_a_rerun_changes_a_byte(own, data) -> None:
    stored = results_io.dumps({"data": data})
    assert results_io.dumps({"data": ocse.measure(own)}) == stored
    shuffled = torch.randperm(len(own.prompts), generator=torch.Generator().manual_seed(0)).tolist()
    assert results_io.dumps({"data": ocse.measure(replace(own, prompts=own.prompts.select(shuffled)))}) == stored


def test_another_seed_permutes_otherwise(own, data) -> None:
    other = ocse.measure(with_settings(own, seed=1))
    assert other["forward"][0]["threshold"] != data["forward"][0]["threshold"]
    assert other["marginal"] == pytest.approx(data["marginal"])


def test_too_few_prompts_or_nothing_to_explain_are_refused(own, monkeypatch) -> None:
    few = replace(own, prompts=own.prompts.select(own.prompts.rows_of("evaluation")[:7]))
    with pytest.raises(UserError, match="7 evaluation prompts and needs at least 8"):
        ocse.measure(few)
    with pytest.raises(UserError, match=r"is 2 on all 20 evaluation prompts.*prompts that differ"):
        ocse._require_usable(np.full(20, 2.0), SETTINGS)


def test_settings_that_cannot_work_are_refused_beforehand() -> None:
    ocse.check({"ocse": SETTINGS})
    few = {**SETTINGS, "bootstrap": {"refits": 6, "permutations": 18}}
    with pytest.raises(UserError, match="18 permutations cannot give"):
        ocse.check({"ocse": few})
    with pytest.raises(UserError, match=r"measurement\.ocse\.target_noise=0 is not positive"):
        ocse.check({"ocse": {**SETTINGS, "target_noise": 0}})
    nearest = {**SETTINGS["nearest_neighbour"], "neighbours": 0}
    with pytest.raises(UserError, match=r"ocse\.nearest_neighbour\.neighbours=0"):
        ocse.check({"ocse": {**SETTINGS, "nearest_neighbour": nearest}})
    few = {**SETTINGS["nearest_neighbour"], "most_prompts": SETTINGS["nearest_neighbour"]["neighbours"] + 1}
    with pytest.raises(UserError, match=r"ocse\.nearest_neighbour\.most_prompts=\d+ are too few for \d+ neighbours"):
        ocse.check({"ocse": {**SETTINGS, "nearest_neighbour": few}})


def test_nearest_neighbours_are_sought_among_so_many_prompts_and_no_more(study) -> None:
    """Without the bound 6,400 prompts took 6 GB and hours: both grow with the square of their number."""
    prompts = study.prompts.select(study.subset(len(study.prompts)))
    rng = np.random.default_rng(0)
    features, target = rng.normal(size=(len(prompts), 3)), rng.normal(size=len(prompts))
    most = len(prompts) - 2
    settings = {**SETTINGS, "nearest_neighbour": {**SETTINGS["nearest_neighbour"], "most_prompts": most}}
    bounded = ocse.nearest_neighbour(features, target, prompts, settings)
    first = ocse.nearest_neighbour(features[:most], target[:most], prompts.select(range(most)), SETTINGS)
    assert len(bounded.target) == most < len(prompts)
    assert bounded.information((0, 1, 2), ()).tolist() == first.information((0, 1, 2), ()).tolist()
    assert bounded.threshold((0, 1, 2), (0,)) == first.threshold((0, 1, 2), (0,))


@pytest.mark.slow
def test_the_planted_circuit_shows_as_its_writers_of_which_all_but_one_are_redundant() -> None:
    """The three name movers write the same name with gains 3, 2.5 and 2: all inform, one is enough.

    The heads before them write nothing to the answer, so oCSE cannot see them.
    """
    model = models.load({"kind": "planted", "name": "planted/sound", "variant": "sound"})
    sizes = {"evaluation": 60, "held_out": 1, "discovery": 1, "reference": 1}
    study = studies.prepare(model, tasks.get("ioi"), sizes, 0, toy.ENGINE, settings=toy.SETTINGS)
    data = ocse.measure(with_settings(study, nearest_neighbour={**SETTINGS["nearest_neighbour"], "most_heads": 1}))
    movers, early = [24, 26, 29], [2, 5, 11, 17]
    assert sorted(np.argsort(-data["marginal"])[:3]) == movers
    assert data["marginal"][movers].min() > 1.5 > 0.2 > np.delete(data["marginal"], movers).max()
    assert int(np.argmax(data["score"])) in movers
    assert np.sort(data["score"][movers])[:2] == pytest.approx([0, 0], abs=1e-9)
    assert {(0, 2), (0, 5), (1, 3), (2, 1)} <= {tuple(head) for head in data["constant"]}
    assert not data["score"][early].any()
    assert data["explained_variance"] > 0.99
