"""F59: agreement of raters, ties, heads that act through others, a missing third rater."""

import json

import numpy as np
import pytest
from scipy import stats
from settings import config_of, shuffled
from synthetic import COMMON, complete, documents

from calibrations import f59_inter_rater_reliability as f59
from calibrations.evidence import Evidence

CONFIG = {**config_of("f59"), "bootstrap_resamples_p": 999}  # speed
SHAPE = {"n_layers": 6, "heads_per_layer": 8, "n_random": 5}
H = 48


def raters(patching, attribution, ov_norm=None, noise=0.2, seed=0, **law):
    """Documents whose raters have these means per head (nats; mean D is 5), and the OV norm if given."""
    docs = documents(seed=seed, **{**SHAPE, **law})
    rng = np.random.default_rng(seed)
    n = len(docs["01"]["data"]["split"])
    docs["02"]["data"]["denoising"] = (patching + rng.normal(0, noise, (n, len(patching)))).tolist()
    docs["03"]["data"]["attribution"] = (attribution + rng.normal(0, noise, (n, len(patching)))).tolist()
    if ov_norm is not None:
        docs["09"] = {"data": {"ov_norm": list(ov_norm)}}
    return docs


def judge(docs, config=CONFIG):
    records = {r.metric.removeprefix("F59."): r for r in f59.calibrate(Evidence(docs, COMMON), config)}
    for record in records.values():
        json.dumps(record.to_dict(), allow_nan=False)
    assert list(records) == ["kendalls_w", "mean_spearman", "mean_kappa"]
    return records


def profile(seed=0, members=None):
    """Every head has some effect, the circuit's heads a large one."""
    docs = documents(**SHAPE)
    mask = Evidence(docs, COMMON).in_circuit if members is None else members
    return np.random.default_rng(seed).uniform(0.1, 0.9, H) + 2.0 * mask


def test_agreeing_raters_pass():
    mean = profile()
    records = judge(raters(mean, 0.8 * mean, mean**1.5))
    for name in ("kendalls_w", "mean_kappa"):
        assert records[name].verdict == "pass" and records[name].published_verdict == "pass"
        assert records[name].gating and records[name].p < CONFIG["alpha"]
    assert records["mean_kappa"].estimate == 1.0
    assert not records["mean_spearman"].gating and records["mean_spearman"].published_verdict == "none"
    assert records["kendalls_w"].companions["w_null_mean"] == pytest.approx(1 / 3)


def test_three_measured_raters_leave_nothing_insufficient():
    """Weights alone: the OV norm knows the circuit's heads as the two others do, or (effect 0) knows nothing."""
    records = judge(complete(raters(profile(), profile())))
    assert {record.verdict for record in records.values()} == {"pass"} and records["kendalls_w"].notes == ()
    assert records["kendalls_w"].n["raters"] == 3
    blind = judge(complete(raters(profile(), profile()), effect=0.0))
    assert blind["kendalls_w"].estimate < 0.6 and blind["mean_kappa"].estimate < records["mean_kappa"].estimate


def test_published_values_are_those_of_the_definitions():
    rng = np.random.default_rng(1)
    docs = raters(rng.random(H), rng.random(H), rng.random(H))
    columns = [
        np.abs(np.array(docs[n]["data"][f])[:400].mean(axis=0)) for n, f in (("02", "denoising"), ("03", "attribution"))
    ]
    columns.append(np.array(docs["09"]["data"]["ov_norm"]))
    ranks = np.array([stats.rankdata(c) for c in columns])
    s = ((ranks.sum(axis=0) - ranks.sum(axis=0).mean()) ** 2).sum()
    records = judge(docs)
    w = 12 * s / (9 * (H**3 - H))
    assert records["kendalls_w"].published_value == pytest.approx(w)
    # without ties W = (1 + 2 mean rho)/3
    assert records["mean_spearman"].published_value == pytest.approx((3 * w - 1) / 2)
    chosen = [set(np.argsort(-c)[:7]) for c in columns]
    shared = np.array([len(chosen[i] & chosen[j]) for i, j in ((0, 1), (0, 2), (1, 2))])
    assert records["mean_kappa"].published_value == pytest.approx(((shared / 7 - 7 / H) / (1 - 7 / H)).mean())


def test_the_published_kappa_oracle():
    """7 of 144 heads each, 3 in common: kappa .399."""
    first, second = np.zeros(144, bool), np.zeros(144, bool)
    first[:7], second[4:11] = True, True
    assert f59.mean_kappa(np.stack([first, second])) == pytest.approx(0.3993743483)


def test_two_raters_give_kappa_and_rho_but_no_w():
    mean = profile()
    records = judge(raters(mean, mean))
    w = records["kendalls_w"]
    assert w.verdict == "insufficient" and w.reasons[0].startswith("missing_rater") and w.published_value is None
    assert w.needs == "measurement 09"
    assert records["mean_kappa"].verdict == "pass" and records["mean_kappa"].notes == ("2 of 3 raters",)
    assert records["mean_spearman"].estimate > 0.9


def test_one_rater_is_missing_everything():
    docs = raters(profile(), profile())
    del docs["02"]
    for record in judge(docs).values():
        assert record.verdict == "insufficient" and record.reasons[0].startswith("missing_rater")


@pytest.mark.slow
def test_unrelated_raters_are_never_passed():
    """D31: W has null mean 1/3, so a W near .5 is weak; neither gate may be passed by chance."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        records = judge(raters(rng.random(H), rng.random(H) + 0.1, rng.random(H), noise=0.02, seed=seed))
        assert records["kendalls_w"].verdict != "pass" and records["mean_kappa"].verdict != "pass"


def test_opposite_raters_fail():
    mean = profile()
    low = mean.max() + 0.1 - mean
    records = judge(raters(mean, low, low[::-1]))
    assert records["kendalls_w"].verdict == "fail" and records["mean_kappa"].verdict == "fail"


def test_conventions_are_declared_and_both_are_reported():
    """D31: signed patching against unsigned attribution is no comparison."""
    mean = profile()
    signs = np.where(np.arange(H) % 2, 1, -1)
    records = judge(raters(mean * signs, mean * signs, mean))
    companions = records["mean_spearman"].companions
    assert companions["convention"] == "absolute"
    key = "activation_patching / ov_norm"
    assert companions["spearman"]["absolute"][key] > 0.9 and abs(companions["spearman"]["signed"][key]) < 0.4
    assert records["kendalls_w"].verdict == "pass"
    # one rater of opposite sign everywhere: the same members, no agreement once signs count
    flipped = judge(raters(mean, -mean))["mean_spearman"].companions["spearman"]
    pair = "activation_patching / direct_logit_attribution"
    assert flipped["absolute"][pair] > 0.9 and flipped["signed"][pair] < -0.9


def test_a_perfect_circuit_with_heads_that_act_through_others_does_not_fail():
    """Upstream heads have patching effects and write nothing: the direct raters cannot see them."""
    docs = documents(**SHAPE)
    mask = Evidence(docs, COMMON).in_circuit
    upstream = mask & (np.arange(H) < np.flatnonzero(mask)[-3])  # only the last three heads write to the answer
    patching = 2.0 * mask
    direct = np.where(mask & ~upstream, 2.0, 0.0)
    rng = np.random.default_rng(0)
    records = judge(raters(patching, direct, rng.random(H), noise=0.1))
    for name in ("kendalls_w", "mean_kappa"):
        assert records[name].verdict != "fail"
    assert records["mean_kappa"].estimate < CONFIG["threshold_kappa"]
    assert any("act through other heads" in reason for reason in records["mean_kappa"].reasons)


def through_mlps(noising, knockouts, n_writers=0, **law):
    """Documents in which patching finds the circuit, and all heads but the first `n_writers` write nothing to the answer."""
    mask = Evidence(documents(**SHAPE), COMMON).in_circuit
    attribution = np.where(np.arange(H) < n_writers, 2.0, 0.0)
    rng = np.random.default_rng(7)
    docs = raters(2.0 * mask, attribution, rng.random(H), noise=0.05, **law)
    n = len(docs["01"]["data"]["split"])
    docs["02"]["data"]["noising"] = (noising(mask) + rng.normal(0, 0.05, (n, H))).tolist()
    docs["21"] = {"data": {"effect": (knockouts(mask) + rng.normal(0, 0.05, (n, H))).tolist()}}
    return docs


@pytest.mark.parametrize("n_writers", [0, 1, 2])
def test_where_hardly_a_head_writes_to_the_answer_total_effects_are_rated(n_writers):
    records = judge(through_mlps(lambda mask: 1.5 * mask, lambda mask: 3.0 * mask, n_writers))
    for name in ("kendalls_w", "mean_kappa"):
        assert records[name].verdict == "pass" and records[name].n["raters"] == 3
        assert records[name].companions["raters"] == ["activation_patching", "activation_patching_noising", "knockouts"]
    assert records["mean_kappa"].estimate == 1.0
    # the published values are those of the published raters, which say nothing here
    assert records["kendalls_w"].published_verdict == records["mean_kappa"].published_verdict == "fail"


def test_raters_of_total_effects_that_disagree_fail():
    records = judge(through_mlps(lambda mask: 2.0 * np.roll(mask, 9), lambda mask: 2.0 * np.roll(mask, 3)))
    assert {records[name].verdict for name in ("kendalls_w", "mean_kappa")} == {"fail"}


def test_three_writers_are_enough_for_the_published_raters():
    records = judge(through_mlps(lambda mask: 1.5 * mask, lambda mask: 3.0 * mask, n_writers=3))
    assert "knockouts" not in records["mean_kappa"].companions["raters"]
    assert records["mean_kappa"].verdict == "inconclusive"


def test_without_knockouts_the_missing_rater_of_total_effects_is_named():
    docs = through_mlps(lambda mask: 1.5 * mask, lambda mask: 3.0 * mask)
    del docs["21"]
    record = judge(docs)["kendalls_w"]
    assert record.verdict == "insufficient" and record.needs == "measurement 21"


def test_disagreement_without_such_heads_fails():
    """The same numbers of selected heads, but the direct raters name other heads as writers."""
    docs = documents(**SHAPE)
    mask = Evidence(docs, COMMON).in_circuit
    base = np.full(H, 0.2)
    records = judge(raters(base + 2 * mask, base + 2 * np.roll(mask, 9), base + 2 * np.roll(mask, 3)))
    assert records["mean_kappa"].verdict == "fail"


def test_enough_writers_are_the_population():
    mean = profile()
    attribution = np.where(np.arange(H) < 8, 0.0, mean)  # heads of layer 0 write nothing, but matter
    records = judge(raters(mean + 3 * (np.arange(H) < 8), attribution, attribution + 0.01, noise=0.05))
    assert records["mean_kappa"].companions["population"] == "heads that write to the answer"
    assert records["kendalls_w"].n["heads"] == 40 and records["mean_kappa"].companions["k"] == 5
    assert records["kendalls_w"].verdict == "pass" and records["mean_kappa"].verdict == "pass"


def test_ties_at_zero_make_no_agreement():
    """All but three heads are under 1 % of mean D for both raters, which name different heads."""
    patching, attribution = np.zeros(H), np.zeros(H)
    patching[[40, 41, 42]] = 2.0
    attribution[[30, 31, 32]] = 2.0
    record = judge(raters(patching, attribution, noise=0.05))["mean_kappa"]
    assert record.estimate < 0.1 and record.verdict != "pass"


def test_small_models_and_circuits_are_insufficient():
    mean = np.random.default_rng(0).random(24) + 0.1
    records = judge(raters(mean, mean, mean, n_layers=4, heads_per_layer=6))
    assert records["kendalls_w"].reasons[0].startswith("n_heads")


TWO = {"r": {"heads": [[0, 0], [5, 1]], "ordinal": 1, "sign": 1}}


@pytest.mark.parametrize("roles", [TWO, {"r": {**TWO["r"], "heads": [[5, 1]]}}], ids=["two heads", "one head"])
def test_a_small_circuit_is_not_shut_out_for_its_size(roles):
    """Raters are asked for the top three then. The published kappa, of the circuit's own size, has no value."""
    mask = np.zeros(H)
    mask[[layer * 8 + head for layer, head in roles["r"]["heads"]]] = 1
    mean = profile(members=mask)
    agreed = judge(raters(mean, 0.8 * mean, mean**1.5, roles=roles))["mean_kappa"]
    assert (agreed.verdict, agreed.estimate, agreed.companions["k"]) == ("pass", 1.0, 3)
    assert (agreed.published_value, agreed.published_verdict) == (None, "none")
    others = [np.roll(mean, by) for by in (5, 11)]
    apart = judge(raters(mean, *others, roles=roles))["mean_kappa"]
    tops = [set(np.argsort(-np.abs(scores))[:3]) for scores in (mean, *others)]
    shared = np.mean([len(tops[i] & tops[j]) for i, j in ((0, 1), (0, 2), (1, 2))])
    assert apart.verdict == "fail" and apart.estimate == pytest.approx((shared / 3 - 3 / H) / (1 - 3 / H), abs=0.02)


def test_all_selected_is_insufficient():
    roles = {"r": {"heads": [[layer, head] for layer in range(6) for head in range(8)], "ordinal": 1, "sign": 1}}
    kappa = judge(raters(profile(), profile(), profile(), roles=roles))["mean_kappa"]
    assert kappa.verdict == "insufficient" and kappa.reasons[0].startswith("all_selected")


def test_a_partly_missing_rater_is_not_imputed():
    mean = profile()
    partial = [None if i < 6 else float(x) for i, x in enumerate(mean)]
    records = judge(raters(mean, mean, partial))
    assert records["kendalls_w"].n["heads"] == 42
    assert records["kendalls_w"].companions["krippendorff_alpha"] > 0.9


def test_a_rater_that_sees_nothing_is_zero_variance():
    record = judge(raters(profile(), profile(), [1.0] * H))["kendalls_w"]
    assert record.verdict == "insufficient" and record.reasons[0].startswith("zero_variance")


def test_the_interval_holds_the_estimate():
    docs = documents(**SHAPE)
    mask = Evidence(docs, COMMON).in_circuit
    record = judge(raters(2.0 * mask, 2.0 * mask, 2.0 * mask + 0.01 * np.arange(H), noise=0.5))["mean_spearman"]
    assert record.ci90[0] <= record.estimate <= record.ci90[1]


def test_all_prompts_are_used():
    """D31: the peer rates on the first ten prompts. Here a change beyond them moves the score."""
    docs = raters(profile(), profile())
    before = judge(docs)["mean_spearman"].published_value
    values = np.array(docs["02"]["data"]["denoising"])
    values[100:400] = values[100:400, ::-1]
    docs["02"]["data"]["denoising"] = values.tolist()
    assert judge(docs)["mean_spearman"].published_value < before - 0.3


def test_order_of_prompts_does_not_matter_and_runs_repeat():
    docs = raters(profile(), profile(), profile())
    assert judge(docs) == judge(docs) == judge(shuffled(docs))
