"""Two runs side by side: differences against what was planted, verdicts and tiers from certificates, refusals."""

from __future__ import annotations

import io
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import results_io
from calibrations.evidence import Evidence
from meridian import compare, compare_table
from meridian.differences import Pair
from results_io import UserError
from tests.calibrations import synthetic

CONFIG = {**synthetic.COMMON, "bootstrap_resamples_p": 1999}
SHIFT = 0.75  # nats


def small(seed: int = 0, **law: float) -> dict[str, dict]:
    return synthetic.documents(seed=seed, n_evaluation=160, n_held_out=8, n_random=2, **law)


def pair_of(a: dict[str, dict], b: dict[str, dict]) -> Pair:
    return Pair(Evidence(a, CONFIG), Evidence(b, CONFIG), CONFIG)


def by_name(pair: Pair) -> dict[str, object]:
    return {one.quantity: one for one in pair.quantities()}


# --- differences -------------------------------------------------------------------------------------------------


def test_a_run_against_itself_differs_by_nothing_with_no_width() -> None:
    pair = pair_of(small(), small())
    assert pair.paired
    for one in pair.quantities():
        assert (one.difference, one.low, one.high) == (0.0, 0.0, 0.0), one.quantity
    for effect in pair.heads():
        assert not np.any([effect.low, effect.high]) and not effect.differs.any()


def test_heads_shifted_by_a_constant_differ_by_exactly_it_and_no_others() -> None:
    first, second = small(), small()
    shifted = [3, 17]
    effects = np.array(second["02"]["data"]["denoising"])
    effects[:, shifted] += SHIFT
    second["02"]["data"]["denoising"] = effects.tolist()
    found = next(iter(pair_of(first, second).heads()))
    assert found.quantity == "denoising effect" and found.unit == "nats"
    expected = np.isin(np.arange(32), shifted) * SHIFT
    for values in (found.b - found.a, found.low, found.high):
        assert values == pytest.approx(expected, abs=1e-12)  # the same shift in every prompt: no sampling error
    assert np.flatnonzero(found.differs).tolist() == shifted


def test_what_backends_differ_by_is_no_difference_of_heads() -> None:
    first, second = small(), small()
    effects = np.array(second["02"]["data"]["denoising"])
    second["02"]["data"]["denoising"] = (effects + 1e-6).tolist()
    found = next(iter(pair_of(first, second).heads()))
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
    return Pair(Evidence(a, config), Evidence(b, config), config).mean("clean", "nats", lambda e: e.clean)


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
    assert one.difference is None and one.reason.startswith("behaviour_absent")
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
    law = compare.chance_overlap(first, second, heads)
    assert law == pytest.approx((counts / counts.sum())[: len(law)])
    assert law.sum() == pytest.approx(1)


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
    document = results_io.read(path)
    change(document)
    results_io.write(path, document)


def test_a_copy_has_no_difference_and_the_document_is_written_where_nothing_else_is(
    copies: tuple[Path, Path], tmp_path: Path
) -> None:
    found = compare.compare(*copies)
    assert found.paired and found.circuits["jaccard"] == 1.0
    assert all(verdict["change"] is None for verdict in found.verdicts)
    assert all(one.difference in (0.0, None) for one in found.quantities)
    assert found.tier["held_back"] is None and found.tier["by"] == []
    folder = compare.write(found, tmp_path / "results")
    text = (folder / compare.FILE).read_bytes()
    assert compare.write(compare.compare(*copies), tmp_path / "results") == folder
    assert (folder / compare.FILE).read_bytes() == text and str(tmp_path).encode() not in text
    assert json.loads(text)["quantities"][0]["difference"] == 0


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
    found = compare.compare(*copies)
    assert found.tier["held_back"] == "b" and found.tier["by"] == [gate]
    lost = [verdict["metric"] for verdict in found.verdicts if verdict["change"] == compare.LOST]
    assert lost == [metric]
    assert f"no longer passes {metric}" in found.sentence()
    assert "b held back by C11.bootstrap_faithfulness" in found.sentence()
    back = compare.compare(*copies[::-1])
    assert back.tier["held_back"] == "a"
    assert [verdict["change"] for verdict in back.verdicts if verdict["change"]] == [compare.GAINED]


def test_it_is_printed_with_every_quantity(copies: tuple[Path, Path]) -> None:
    found, console = compare.compare(*copies), Console(width=200, file=io.StringIO())
    compare_table.show(found, console)
    text = console.file.getvalue()
    assert all(one.quantity in text for one in found.quantities)
    assert "paired by prompt" in text and f"Circuits share {len(found.pair.a.circuit_heads)} heads" in text


def test_the_figures_hold_the_numbers_of_the_document(copies: tuple[Path, Path]) -> None:
    found = compare.compare(*copies)
    forest, *maps = found.figures()
    document = found.document()
    shares = {one["quantity"]: one for one in document["quantities"]}
    assert all(
        (row.estimate, row.low) == (shares[row.label]["difference"], shares[row.label]["low"]) for row in forest.rows
    )
    assert [len(one.values) * len(one.values[0]) for one in maps] == [len(one["heads"]) for one in document["heads"]]


def refusal(a: Path, b: Path) -> str:
    with pytest.raises(UserError) as refused:
        compare.compare(a, b)
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


def test_another_task_is_compared_by_heads_alone_and_another_model_as_well_is_refused(
    copies: tuple[Path, Path],
) -> None:
    for path in copies[1].glob("*.json"):
        edit(path, lambda d: d.get("subject", {}).update(task="induction"))
    for path in copies[1].glob("*.json"):  # the digests of what changed
        edit(path, lambda d: d.pop("inputs_sha256", None))
    found = compare.compare(*copies)
    assert found.quantities == [] and found.heads == [] and not found.paired
    assert found.circuits["jaccard"] == 1.0 and "tasks differ" in next(iter(found.notes()))
    for path in copies[1].glob("*.json"):
        edit(path, lambda d: d.get("subject", {}).update(model_sha256="1" * 64))
    assert "the same task, or two tasks on the same model" in refusal(*copies)
