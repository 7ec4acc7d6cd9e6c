"""Two runs side by side: differences against what was planted, verdicts and tiers from certificates, refusals."""

from __future__ import annotations

import functools
import io
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import results_io
import shown_text
from calibrations.evidence import Evidence
from calibrations.rules import RuleDifference, Standing
from calibrations.statistics import bootstrap_counts
from meridian import run_comparison, run_comparison_table
from meridian.run_comparison import RunComparison, compare
from meridian.run_differences import EFFECTS, NoDifference, RunPair
from results_io import UserError
from tests.calibrations import synthetic
from tests.result_samples import completed

CONFIG = {**synthetic.COMMON, "bootstrap_resamples_p": 1999}
SHIFT = 0.75  # nats


def small(seed: int = 0, **law: float) -> dict[str, dict]:
    return synthetic.documents(seed=seed, n_evaluation=160, n_held_out=8, n_random=2, **law)


def pair_of(a: dict[str, dict], b: dict[str, dict]) -> RunPair:
    return RunPair(Evidence(a, CONFIG), Evidence(b, CONFIG), CONFIG)


def by_name(pair: RunPair) -> dict[str, object]:
    return {one.quantity: one for one in pair.quantities()}


# --- differences -------------------------------------------------------------------------------------------------


def test_a_run_against_itself_differs_by_nothing_with_no_width() -> None:
    pair = pair_of(small(), small())
    assert pair.paired
    for one in pair.quantities():
        assert (one.difference, one.low, one.high) == (0.0, 0.0, 0.0), one.quantity
    for effect in pair.effects:
        assert not np.any([effect.low, effect.high]) and not effect.differs.any()


def test_heads_shifted_by_a_constant_differ_by_exactly_it_and_no_others() -> None:
    first, second = small(), small()
    shifted = [3, 17]
    effects = np.array(second["02"]["data"]["denoising"])
    effects[:, shifted] += SHIFT
    second["02"]["data"]["denoising"] = effects.tolist()
    found = next(iter(pair_of(first, second).effects))
    assert found.quantity == "denoising effect" and found.unit == "nats"
    expected = np.isin(np.arange(32), shifted) * SHIFT
    for values in (found.b - found.a, found.low, found.high):
        assert values == pytest.approx(expected, abs=1e-12)  # the same shift in every prompt: no sampling error
    assert np.flatnonzero(found.differs).tolist() == shifted


def test_what_backends_differ_by_is_no_difference_of_heads() -> None:
    first, second = small(), small()
    effects = np.array(second["02"]["data"]["denoising"])
    second["02"]["data"]["denoising"] = (effects + 1e-6).tolist()
    found = next(iter(pair_of(first, second).effects))
    assert (found.low > 0).all() and not found.differs.any()


def test_the_faithfulness_of_the_same_noise_differs_by_what_was_planted() -> None:
    found = by_name(pair_of(small(faithfulness=0.95), small(faithfulness=0.80)))
    one = found["faithfulness, mean"]
    assert (one.difference, one.low, one.high) == pytest.approx((-0.15, -0.15, -0.15), abs=1e-9)
    assert found["completeness, mean"].difference == pytest.approx(-0.15, abs=1e-9)
    assert found["accuracy"].difference == 0
    assert found["clean logit difference"].difference == 0


def test_the_order_of_stored_prompts_does_not_matter() -> None:
    from tests.calibrations.settings import shuffled

    plain, other = small(faithfulness=0.95, seed=1), small(faithfulness=0.85, seed=1)
    assert by_name(pair_of(plain, other)) == by_name(pair_of(plain, shuffled(synthetic.complete(other))))


def test_swapping_a_and_b_turns_the_sign() -> None:
    first, second = small(), small(by_method={"mean": 0.7}, noise=0.9)
    there, back = by_name(pair_of(first, second)), by_name(pair_of(second, first))
    for name, one in there.items():
        assert (one.low, one.difference, one.high) == pytest.approx(
            (-back[name].high, -back[name].difference, -back[name].low)
        )


def noisy(rng: np.random.Generator, prompts: np.ndarray, ids: list[str], clusters: np.ndarray) -> dict[str, dict]:
    """Only 01: the clean logit difference is what the prompt gives plus this run's own noise."""
    n = len(prompts)
    clean = prompts + rng.normal(0, 0.3, n)
    data = {"prompt_id": ids, "split": ["evaluation"] * n, "template": ["t"] * n, "cluster": clusters.tolist()}
    return {"01": {"data": {**data, "clean_logit_diff": clean.tolist()}}}


def clean_difference(a: dict[str, dict], b: dict[str, dict], resamples: int = 400) -> object:
    config = {**CONFIG, "bootstrap_resamples_p": resamples}
    return RunPair(Evidence(a, config), Evidence(b, config), config).mean("clean", "nats", lambda e: e.clean)


def test_the_paired_interval_covers_and_is_narrower_than_the_unpaired_one() -> None:
    """Prompts come in 40 clusters that differ with SD 1; runs add noise of SD 0.3, and the truth is a difference of 0.2.

    SE of the paired mean difference: 0.3 sqrt(2 / 120) = 0.039; unpaired also the clusters' sqrt(2 / 40) = 0.224.
    """
    rng, clusters = np.random.default_rng(5), np.arange(120) // 3
    covered, widths = [], {True: [], False: []}
    for paired, _ in itertools.product((True, False), range(200)):
        ids = [f"{i:03d}" for i in range(120)]
        first = rng.normal(4, 1, 40)[clusters]
        second = first if paired else rng.normal(4, 1, 40)[clusters]
        one = clean_difference(
            noisy(rng, first, ids, clusters),
            noisy(rng, second + 0.2, ids if paired else [f"x{i}" for i in ids], clusters),
        )
        covered.append(one.low < 0.2 < one.high)
        widths[paired].append(one.high - one.low)
    assert (
        0.90 <= np.mean(covered[:200]) <= 0.985
    )  # 95 %, less what a percentile interval of 40 clusters lacks; 3 SE of 200
    assert 0.88 <= np.mean(covered[200:]) <= 0.985
    assert np.mean(widths[True]) == pytest.approx(2 * 1.96 * 0.0387, rel=0.1)
    assert np.mean(widths[False]) == pytest.approx(2 * 1.96 * 0.227, rel=0.1)


def test_without_a_behaviour_there_is_no_ratio_but_the_behaviour_is_compared() -> None:
    found = by_name(pair_of(small(), small(seed=3, mean_clean=-1.0)))
    one = found["faithfulness, mean"]
    assert isinstance(one, NoDifference) and one.reason.startswith("behaviour_absent")
    assert found["clean logit difference"].difference == pytest.approx(-6, abs=0.4)


def test_other_prompts_are_not_paired() -> None:
    assert not pair_of(small(seed=0), small(seed=1)).paired


# --- circuits ----------------------------------------------------------------------------------------------------


def test_the_law_of_shared_heads_is_that_of_all_pairs_of_circuits() -> None:
    heads = [(layer, head) for layer in range(2) for head in range(4)]
    first, second = {(0, 0), (0, 1), (1, 0)}, {(0, 2), (1, 1), (1, 2)}
    counts = np.zeros(4)
    for zero in itertools.combinations([(0, h) for h in range(4)], 1):
        for one in itertools.combinations([(1, h) for h in range(4)], 2):
            counts[len(first & {*zero, *one})] += 1
    law = run_comparison.chance_overlap(first, second, heads)
    assert law == pytest.approx((counts / counts.sum())[: len(law)])
    assert law.sum() == pytest.approx(1)


# --- small folders, made by hand ---------------------------------------------------------------------------------

ROLES = {"mover": ((0, 1), (1, 2), (2, 3), (3, 4)), "reader": ((0, 5), (2, 6))}
OTHER_ROLES = {"mover": ((0, 1), (1, 2), (2, 7), (3, 4)), "helper": ((1, 6), (2, 6))}
BEHAVIOUR = {
    "metric": "P.behaviour",
    "verdict": "pass",
    "gating": True,
    "estimate": 5.0,
    "ci90": [4.0, 6.0],
    "reasons": [],
}


def claimed(roles: dict) -> dict:
    return {
        name: {"heads": [list(head) for head in heads], "ordinal": place, "sign": 1}
        for place, (name, heads) in enumerate(roles.items())
    }


def folder_of(path: Path, documents: dict[str, dict], **changes) -> Path:
    """A finished run of these measurements: C11 judged 0.01 with `settings`, the tier and the subject as `changes` say."""
    settings, estimate = changes.pop("settings", {}), changes.pop("estimate", 0.01)
    subject = {"task": "ioi", "model": "m", "circuit": "c"}
    subject |= {f"{name}_sha256": f"{name} digest" for name in ("model", "prompts", "circuit")} | changes.pop(
        "subject", {}
    )
    for number, document in documents.items():
        about = {**document, "kind": "measurement", "subject": subject, "inputs_sha256": {}}
        results_io.write(path / f"{number}_x.json", completed(number, **about))
    record = {"metric": "C11.x", "verdict": "pass", "gating": True, "estimate": estimate, "ci90": None, "reasons": []}
    for number in ("11", "P"):
        judged = {
            "number": number,
            "subject": {**subject, "settings": {**CONFIG, **settings}},
            "records": [record],
        }
        results_io.write(path / f"{number}_x.json", completed("calibration", **judged))
    certificate = {"subject": subject, "tier": 1, "tier_name": "suggestive", "of": 4, "ceiling": 4, "blocking": {}}
    certificate |= {
        "rules": Standing("0.3", "x").to_dict(),
        "rows": [{"id": "C11", "title": "x", "verdict": "pass", "records": [record]}],
        "preconditions": [BEHAVIOUR],
        "inputs": {"C11": "11"},
    }
    results_io.write(path / "certificate.json", certificate | changes)
    return path


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    """Two runs on the same prompts that differ in effects, faithfulness and circuit, none of it by a constant."""
    base, rng = tmp_path_factory.mktemp("unlike"), np.random.default_rng(3)
    first, second = small(roles=claimed(ROLES)), small(roles=claimed(OTHER_ROLES), faithfulness=0.7, noise=0.9)
    for number, field, _ in EFFECTS:
        effects = np.array(first[number]["data"][field])
        shifted = effects + rng.normal(0, 0.4, effects.shape) + 0.5 * (np.arange(32) % 5 == 0) - 0.1
        second[number]["data"][field] = shifted.tolist()
    return compare(folder_of(base / "m" / "a", first), folder_of(base / "m" / "b", second, estimate=0.03))


def test_every_number_of_the_document_is_that_of_the_two_runs(unlike: RunComparison) -> None:
    document, pair = unlike.document(), unlike.pair
    counts = bootstrap_counts(
        len(pair.a.clean), 1999, seed=CONFIG["bootstrap_seed"], clusters=pair.a.clusters, strata=pair.a.templates
    )
    (one,) = (one for one in document["quantities"] if one["quantity"] == "faithfulness, mean")
    sides = [(e.ablated("circuit", "mean"), e.clean) for e in (pair.a, pair.b)]
    assert [one["a"], one["b"]] == pytest.approx([top.sum() / bottom.sum() for top, bottom in sides])
    draws = [(counts @ top) / (counts @ bottom) for top, bottom in sides]
    assert (one["low"], one["high"]) == pytest.approx(tuple(np.quantile(draws[1] - draws[0], [0.025, 0.975])), abs=1e-3)
    assert one["low"] < one["difference"] == one["b"] - one["a"] < one["high"]
    assert len(document["heads"]) == 3
    for (number, field, name), heads in zip(EFFECTS, document["heads"], strict=True):
        assert heads["quantity"] == name
        means = [np.array(e.data(number)[field])[e.rows].mean(axis=0) for e in (pair.a, pair.b)]
        assert heads["a"] == pytest.approx(means[0]) and heads["difference"] == pytest.approx(means[1] - means[0])
        assert np.all(heads["low"] < heads["difference"]) and np.all(heads["difference"] < heads["high"])
    (verdict,) = (verdict for verdict in document["verdicts"] if verdict["metric"] == "C11.x")
    assert verdict["estimate"] == [0.01, 0.03] and verdict["difference"] == pytest.approx(0.02)


def test_the_figures_hold_estimates_and_both_ends(unlike: RunComparison) -> None:
    forest, *maps = unlike.figures()
    shares = {one["quantity"]: one for one in unlike.document()["quantities"]}
    assert len(forest.rows) >= 6
    for row in forest.rows:
        one = shares[row.label]
        assert (row.estimate, row.low, row.high) == (one["difference"], one["low"], one["high"])
    assert any(row.low < row.estimate < row.high for row in forest.rows)
    for drawn, heads in zip(maps, unlike.document()["heads"], strict=True):
        for field, values in (("values", "difference"), ("low", "low"), ("high", "high")):
            assert np.array(getattr(drawn, field)).ravel() == pytest.approx(heads[values])
        assert 0 < len(drawn.marked) < 32
        assert set(drawn.marked) == {tuple(h) for h, d in zip(heads["heads"], heads["differs"], strict=True) if d}


def test_circuits_name_what_they_share_and_p_is_the_chance_of_as_much_or_more(unlike: RunComparison) -> None:
    found = unlike.circuits
    assert found["shared"] == [(0, 1), (1, 2), (2, 6), (3, 4)]
    assert (found["only_a"], found["only_b"]) == ([(0, 5), (2, 3)], [(1, 6), (2, 7)])
    assert found["jaccard"] == 4 / 8 and found["other_role"] == [[2, 6, "reader", "helper"]]
    chances = []  # of sharing n, in each of four layers: (heads of a, of b) of 8
    for a, b in ((2, 1), (1, 2), (2, 2), (1, 1)):
        drawn = [len(set(range(a)) & set(heads)) for heads in itertools.combinations(range(8), b)]
        chances.append([drawn.count(n) / len(drawn) for n in range(3)])
    law = functools.reduce(np.convolve, chances)
    assert found["p"] == pytest.approx(law[4:].sum()) and found["p"] < 0.05
    assert found["shared_by_chance"] == pytest.approx(np.arange(len(law)) @ law)


def test_estimates_of_other_settings_have_no_difference_and_other_prompts_are_said(tmp_path: Path) -> None:
    a = folder_of(tmp_path / "a", small())
    b = folder_of(tmp_path / "b", small(seed=1), settings={"max_sigma": 0.5}, estimate=0.03)
    found = compare(a, b)
    (verdict,) = (verdict for verdict in found.verdicts if verdict["metric"] == "C11.x")
    assert verdict["estimate"] == [0.01, 0.03] and verdict["difference"] is None
    notes = list(found.notes())
    assert any(note.startswith("The prompts differ, so intervals are unpaired") for note in notes)
    assert "Settings differ in C11; those verdicts answer different questions." in notes


def test_results_about_other_prompts_or_another_circuit_are_refused(tmp_path: Path) -> None:
    good = folder_of(tmp_path / "good", small())
    for number, name, word in (
        ("03", "prompts", "prompts"),
        ("20", "circuit", "circuit"),
        ("20", "prompts", "prompts"),
    ):
        bad = tmp_path / f"{number}{name}"
        shutil.copytree(good, bad)
        edit(bad / f"{number}_x.json", lambda d, name=name: d["subject"].update({f"{name}_sha256": "f" * 64}))
        assert f"{number}_x.json is about other {word} (ffffffff) than the certificate" in refusal(good, bad)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("tier", "reasons"), [(0, []), (0, ["behaviour_absent: -0.1"]), (2, ["behaviour_absent: -0.1"])]
)
def test_a_run_without_a_tier_is_held_back_by_the_behaviour(tier: int, reasons: list[str], tmp_path: Path) -> None:
    absent = {**BEHAVIOUR, "verdict": "fail", "reasons": reasons}
    gate = {"metric": "P.behaviour", "split": "evaluation", "verdict": "fail", "reason": "again"}
    a = folder_of(
        tmp_path / "a", small(), tier=None, tier_name="the behaviour is absent", preconditions=[absent],
        blocking={"1": [gate, {**gate, "metric": "P.denominator"}], "2": [{**gate, "metric": "C11.x"}]},
    )  # fmt: skip
    b = folder_of(tmp_path / "b", small(), tier=tier, tier_name="named")
    found = compare(a, b)
    reason = reasons[0] if reasons else "the behaviour is absent"
    assert found.tier["held_back"] == "a" and found.tier["by"][0] == {**gate, "reason": reason}
    assert [gate["metric"] for gate in found.tier["by"]] == (
        ["P.behaviour"] if tier == 0 else ["P.behaviour", "P.denominator", "C11.x"]
    )
    shown = (
        f"a held back by P.behaviour ({reason});" if tier == 0 else "a held back by P.behaviour, P.denominator, C11.x;"
    )
    assert shown in found.sentence()


@pytest.mark.slow
def test_heads_that_cannot_be_compared_are_said_with_the_reason(tmp_path: Path) -> None:
    few = small()
    few["01"]["data"]["cluster"] = [0] * len(few["01"]["data"]["cluster"])
    few["01"]["data"]["template"] = [0] * len(few["01"]["data"]["template"])
    found = compare(folder_of(tmp_path / "a", few), folder_of(tmp_path / "b", few))
    (note,) = (note for note in found.notes() if note.startswith("Heads have no differences"))
    assert found.heads == [] and "denoising effect, direct logit attribution, knock-out effect: n_clusters" in note
    without = {number: document for number, document in small().items() if number != "21"}
    found = compare(folder_of(tmp_path / "c", small()), folder_of(tmp_path / "d", without))
    assert len(found.heads) == 2
    assert "Heads have no differences of knock-out effect: b has no result 21." in list(found.notes())


def test_names_with_square_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    subject = {"model": "[a/b] [red]m[/red]", "circuit": "c[/x]", "task": "t[bold]"}
    few = small()
    few["01"]["data"]["metric"] = "gap[/b]"
    certified = {"subject": subject, "tier_name": "[i]name"}
    found = compare(folder_of(tmp_path / "a", few, **certified), folder_of(tmp_path / "b", few, **certified))
    console = Console(width=200, file=io.StringIO())
    run_comparison_table.show(found, console)
    text = console.file.getvalue()
    assert "a  t[bold] on [a/b] [red]m[/red], circuit c[/x]" in text
    assert "[i]name" in text and "clean gap[/b]" in text


# --- folders -----------------------------------------------------------------------------------------------------


@pytest.fixture
def copies(finished: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The finished run twice, to be changed."""
    folders = tmp_path / "first" / "ioi", tmp_path / "second" / "ioi"
    for folder in folders:
        shutil.copytree(finished, folder)
        edit(results_io.find(folder, "01"), _one_template)  # so few prompts leave some templates with one cluster
        for path in folder.glob("*_*.json"):
            edit(path, _only_the_digest_of_20)
    return folders


def _only_the_digest_of_20(document: dict) -> None:
    document["inputs_sha256"] = {k: v for k, v in document["inputs_sha256"].items() if k == "20"}


def _one_template(document: dict) -> None:
    document["data"]["template"] = ["one"] * len(document["data"]["template"])


def edit(path: Path, change) -> None:
    """Change one file; the certificate beside it was then made from the new one."""
    document = results_io.read(path)
    change(document)
    results_io.write(path, document)
    certificate, number = path.parent / "certificate.json", path.name.partition("_")[0]
    if path.name != certificate.name and number in results_io.read(certificate).get("inputs_sha256", {}):
        digest = results_io.file_digest(path)
        edit(certificate, lambda stored: stored["inputs_sha256"].update({number: digest}))


@pytest.mark.slow
def test_a_copy_has_no_difference_and_the_document_is_written_where_nothing_else_is(
    copies: tuple[Path, Path], tmp_path: Path
) -> None:
    found = compare(*copies)
    assert found.paired and found.circuits["jaccard"] == 1.0
    assert all(verdict["change"] is None for verdict in found.verdicts)
    assert all(one.difference in (0.0, None) for one in found.quantities)
    assert found.tier["held_back"] is None and found.tier["by"] == []
    folder = run_comparison.write(found, tmp_path / "results")
    text = (folder / run_comparison.FILE).read_bytes()
    assert run_comparison.write(compare(*copies), tmp_path / "results") == folder
    assert (folder / run_comparison.FILE).read_bytes() == text and str(tmp_path).encode() not in text
    assert json.loads(text)["quantities"][0]["difference"] == 0


@pytest.mark.slow
def test_a_tier_under_other_rules_has_no_name_and_the_rules_are_in_the_notes(tmp_path: Path) -> None:
    changed = Standing("0.3", "y", (RuleDifference("seed", 1, 0),))
    reached = {"tier": 4, "tier_name": "certified"}
    folders = [
        folder_of(tmp_path / "a", small(), **reached),
        folder_of(tmp_path / "b", small(), tier=4, tier_name="under changed rules", rules=changed.to_dict()),
        folder_of(tmp_path / "c", small(), **reached, rules=None),
        folder_of(tmp_path / "d", small(), **reached, rules=Standing("0.4", "z").to_dict()),
    ]
    edit(folders[2] / "certificate.json", lambda stored: stored.pop("rules"))  # as an older version wrote it
    a, b, c, d = folders
    found = compare(a, b)
    assert "a reaches tier 4 (certified) and b tier 4 (under changed rules)" in found.sentence()
    note = "b  rules: changed from released 0.3; seed: 1 (released: 0). Its tier was not reached under released rules."
    assert note in list(found.notes()) and found.document()["tier"]["rules"][1] == changed.to_dict()
    assert "a reaches tier 4 (under unknown rules) and b" in compare(c, a).sentence()
    assert "The rules differ (released 0.3 and 0.4), and with them what a tier asks." in list(compare(a, d).notes())
    e = folder_of(tmp_path / "e", small(), **reached)
    assert not [note for note in compare(a, e).notes() if "rules" in note]


def test_a_lost_verdict_and_tier_are_named_with_the_gates_that_hold_back(copies: tuple[Path, Path]) -> None:
    def judge(certificate: dict, verdict: str) -> None:
        certificate["rows"][0]["records"][0].update(verdict=verdict, gating=True)

    metric = results_io.read(copies[0] / "certificate.json")["rows"][0]["records"][0]["metric"]
    for folder, verdict in zip(copies, ("pass", "fail"), strict=True):
        edit(folder / "certificate.json", lambda c, verdict=verdict: judge(c, verdict))
    edit(copies[0] / "certificate.json", lambda c: c.update(tier=2, tier_name="supported"))
    edit(copies[1] / "certificate.json", lambda c: c.update(tier=1, tier_name="causally suggestive"))
    gate = {"metric": "C11.bootstrap_faithfulness", "split": "evaluation", "verdict": "fail", "reason": "wide"}
    edit(
        copies[1] / "certificate.json",
        lambda c: c.update(blocking={"2": [{**gate, "needs": None, "p": None}], "3": []}),
    )
    found = compare(*copies)
    assert found.tier["held_back"] == "b" and found.tier["by"] == [gate]
    lost = [verdict["metric"] for verdict in found.verdicts if verdict["change"] == run_comparison.LOST]
    assert lost == [metric]
    assert f"no longer passes {metric}" in found.sentence()
    assert "b held back by C11.bootstrap_faithfulness" in found.sentence()
    back = compare(*copies[::-1])
    assert back.tier["held_back"] == "a"
    assert [verdict["change"] for verdict in back.verdicts if verdict["change"]] == [run_comparison.GAINED]


@pytest.mark.slow
def test_it_is_printed_with_every_quantity(copies: tuple[Path, Path]) -> None:
    found, console = compare(*copies), Console(width=200, file=io.StringIO())
    run_comparison_table.show(found, console)
    text = console.file.getvalue()
    assert all(one.quantity in text for one in found.quantities)
    assert max(map(len, text.splitlines())) <= shown_text.WIDTH
    assert "paired by prompt" in text and f"Circuits share {len(found.pair.a.circuit_heads)} heads" in text


def test_the_figures_hold_the_numbers_of_the_document(copies: tuple[Path, Path]) -> None:
    found = compare(*copies)
    forest, *maps = found.figures()
    document = found.document()
    shares = {one["quantity"]: one for one in document["quantities"]}
    assert all(
        (row.estimate, row.low) == (shares[row.label]["difference"], shares[row.label]["low"]) for row in forest.rows
    )
    assert [len(one.values) * len(one.values[0]) for one in maps] == [len(one["heads"]) for one in document["heads"]]


def refusal(a: Path, b: Path) -> str:
    with pytest.raises(UserError) as refused:
        compare(a, b)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_refusals_name_what_is_wrong(copies: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = copies
    assert "two different runs" in refusal(a, a / "." / "")
    assert "certificate.json" in refusal(a, tmp_path)
    assert "is not a folder" in refusal(a, tmp_path / "missing")
    edit(results_io.find(b, "03"), lambda d: d["subject"].update(model_sha256="0" * 64))
    assert "other weights (00000000)" in refusal(a, b)


def test_a_verdict_on_older_results_is_refused(copies: tuple[Path, Path]) -> None:
    edit(results_io.find(copies[1], "20"), lambda d: d["data"]["logit_diff"][0].reverse())
    assert "older result 20" in refusal(*copies)


@pytest.mark.slow
def test_another_task_is_compared_by_heads_alone_and_another_model_as_well_is_refused(
    copies: tuple[Path, Path],
) -> None:
    for path in copies[1].glob("*.json"):
        edit(path, lambda d: d.get("subject", {}).update(task="induction"))
    for path in copies[1].glob("*_*.json"):  # the digests of what changed
        edit(path, lambda d: d.update(inputs_sha256={}))
    found = compare(*copies)
    assert found.quantities == [] and found.heads == [] and not found.paired
    assert found.circuits["jaccard"] == 1.0 and "tasks differ" in next(iter(found.notes()))
    for path in copies[1].glob("*.json"):
        edit(path, lambda d: d.get("subject", {}).update(model_sha256="1" * 64))
    assert "the same task, or two tasks on the same model" in refusal(*copies)
