"""Parity with the plain model: what agrees, what is rounding, and which block of a broken bridge is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from circuits import models, runnable
from circuits.engine import LensEngine
from meridian.doctor import parity
from meridian.doctor.parity import BackendComparison, Departure
from tests.circuits import toy


@pytest.fixture
def compare(folder, make_study):
    """compare(architecture, engine): the study's model with itself."""

    def run(architecture: str = "gpt2", engine=toy.ENGINE):
        settings = {"name": "toy", "kind": "local", "path": str(folder(architecture)), "device": "cpu"}
        return parity.compare(settings, make_study(architecture), engine, lambda step: None)[0]

    return run


def spoil(monkeypatch, change, dtypes=("float32", "float64")) -> None:
    """Every model that is loaded from now on in one of these dtypes has `change` done to its bridge."""
    loaded = models.load

    @torch.no_grad()
    def load(settings, *say):
        model = loaded(settings, *say)
        if settings["dtype"] in dtypes:
            change(model.bridge)
        return model

    monkeypatch.setattr(models, "load", load)


# --- agreement ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_without_float32_inside_all_three_agree_to_the_last_digits(architecture, compare, float64_throughout) -> None:
    found = [one for one in compare(architecture).comparisons if one.dtype == "float64"]
    assert [one.backend for one in found] == ["lens", "fused"]
    for one in found:
        assert max(one.difference.values()) < 1e-12  # toy weights lie on a grid on which folding rounds nothing


@pytest.mark.slow
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_as_the_models_are_they_agree_within_the_tolerances(architecture, compare) -> None:
    found = compare(architecture)
    assert found.verdict == parity.SAME
    assert found.sentence == "lens and fused compute the plain model's function"
    assert {(one.dtype, one.tolerance) for one in found.comparisons} == {("float32", 1e-4), ("float64", parity.FOLDED)}
    assert all(one.agrees for one in found.comparisons)
    assert found.departure.first is None
    assert max(found.departure.error) <= 1e-6


def test_numbers_are_those_of_the_models_themselves(compare, make_study, plain, folder) -> None:
    """Brute force: one prompt at a time, without padding."""
    study = make_study("gpt2")
    rows = parity.some_of_every_length(study.prompts)
    settings = {"name": "toy", "kind": "local", "path": str(folder("gpt2")), "device": "cpu", "dtype": "float32"}
    (single, _), largest = models.load_plain(settings, study.model.identity), 0.0
    for row in rows:
        for tokens in (study.prompts.clean[row], study.prompts.corrupted[row]):
            own = tokens[None, : int(study.prompts.end[row]) + 1]
            with torch.no_grad():
                logits = (single(own).logits, study.model.bridge(own, return_type="logits"))
            expected, found = (each[0].double().log_softmax(-1) for each in logits)
            largest = max(largest, float((found - expected).abs().max()))
    lens = next(one for one in compare().comparisons if one.backend == "lens" and one.dtype == "float32")
    assert lens.difference["log-probability, all positions"] == pytest.approx(
        largest, rel=0.5
    )  # padding rounds otherwise
    assert lens.difference["log-probability, last position"] <= lens.difference["log-probability, all positions"]


def test_probes_are_of_different_lengths(scored) -> None:
    rows = parity.some_of_every_length(scored)
    lengths = scored.end[rows].tolist()
    assert lengths == sorted(set(lengths))
    assert (lengths[0], lengths[-1]) == (int(scored.end.min()), int(scored.end.max()))
    assert len(rows) == min(parity.PROBES, len(scored.end.unique()))


# --- disagreement -------------------------------------------------------------------------------------------------


def scale_mlp(layer):
    return lambda bridge: bridge.blocks[layer].mlp.out.weight.mul_(1.01)


def shift_query(layer):
    return lambda bridge: bridge.blocks[layer].attn.q.bias.add_(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("change", "layer"), [(shift_query, 0), (scale_mlp, 1), (shift_query, 2)])
def test_the_block_of_a_wrong_weight_is_named(change, layer, compare, monkeypatch) -> None:
    spoil(monkeypatch, change(layer))
    found = compare()
    assert found.verdict == parity.OTHER
    assert found.departure.first == f"block {layer}"
    assert max(found.departure.error[: layer + 1]) < 1e-12
    assert "lens and fused differ from plain Hugging Face by" in found.sentence
    assert found.sentence.endswith(f"in float64, first at block {layer}; do not trust results")


@pytest.mark.slow
def test_a_wrong_embedding_is_named(compare, monkeypatch) -> None:
    spoil(monkeypatch, lambda bridge: bridge.pos_embed.weight.mul_(1.01))
    assert compare().departure.first == "the embedding"


@pytest.mark.slow
def test_a_wrong_unembedding_is_named_by_what_is_left(compare, monkeypatch) -> None:
    spoil(monkeypatch, lambda bridge: bridge.unembed.weight.mul_(1.01))
    found = compare()
    assert found.departure.first is None
    assert found.verdict == parity.OTHER
    assert "in the final norm or the unembedding, as all blocks agree" in found.sentence


def test_a_wrong_fused_backend_is_told_from_a_wrong_bridge(compare, monkeypatch) -> None:
    made = parity.FusedEngine

    def spoiled(*arguments, **named):
        engine = made(*arguments, **named)
        engine.decoder = replace(engine.decoder, scale=1.1 * engine.decoder.scale)
        return engine

    monkeypatch.setattr(parity, "FusedEngine", spoiled)
    found = compare()
    assert found.verdict == parity.OTHER
    assert [one.agrees for one in found.comparisons] == [True, False, True, False]
    assert "fused differs from plain Hugging Face" in found.sentence
    assert "first at" not in found.sentence


@pytest.mark.slow
def test_interventions_are_compared_where_the_run_has_not_done_so(make_study) -> None:
    study = make_study()
    probes = study.prompts.select(parity.some_of_every_length(study.prompts))
    assert parity._of_fused(study.model, study, probes, toy.ENGINE, 1e-12)[1] == study.engine.why
    by_lens = replace(study, engine=LensEngine(study.model, study.engine.reference.prompts))
    found, proved = parity._of_fused(study.model, by_lens, probes, toy.ENGINE, 1e-4)
    assert found is not None
    assert proved == "parity with lens within 0.0001"
    assert "use engine=lens" in parity._of_fused(study.model, by_lens, probes, toy.ENGINE, 1e-12)[1]


@pytest.mark.slow
def test_what_float64_removes_is_rounding(compare) -> None:
    found = compare(engine={**toy.ENGINE, "tolerance": {"float64": 1e-6, "float32": 1e-9}})
    assert found.verdict == parity.ROUNDING
    assert found.sentence.startswith("rounding: lens and fused differ by")
    assert "in float32 and not in float64; run with model.dtype=float64 where" in found.sentence


@pytest.mark.slow
def test_a_backend_that_does_not_run_the_model_says_why(compare, monkeypatch) -> None:
    def refuse(*arguments, **named):
        raise models.UnsupportedArchitectureError("its blocks are none of a pre-norm decoder; use engine=lens")

    monkeypatch.setattr(parity, "FusedEngine", refuse)
    found = compare()
    assert found.verdict == parity.SAME
    fused = [one for one in found.comparisons if one.backend == "fused"]
    assert [(one.agrees, one.why) for one in fused] == [
        (None, "its blocks are none of a pre-norm decoder; use engine=lens")
    ] * 2


def test_a_dtype_without_room_is_left_out_with_the_reason(compare, monkeypatch) -> None:
    monkeypatch.setattr(runnable, "free_bytes", lambda device: 2**19)  # the toy's weights: 0.44 MiB, and twice that
    found = compare()
    assert found.left_out == {"float64": "float64 needs 0.0 GiB more and 0.0 GiB are free"}
    assert {one.dtype for one in found.comparisons} == {"float32"}
    assert found.sentence == "lens and fused compute the plain model's function, as far as float32 can tell"


# --- the verdict --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ((1e-5, 1e-7), parity.SAME),
        ((1e-3, 1e-7), parity.ROUNDING),
        ((1e-5, 1e-5), parity.OTHER),
        ((1e-3, None), parity.OTHER),
        ((1e-5, None), parity.SAME),
        ((float("inf"), 1e-7), parity.ROUNDING),
    ],
)
def test_the_verdict_by_hand(errors, verdict) -> None:
    tolerance = {"float32": 1e-4, "float64": 1e-6}
    found = [
        BackendComparison(dtype, "lens", tolerance[dtype], {"x": error}, {"x": error})
        for dtype, error in zip(parity.PRECISIONS, errors, strict=True)
        if error is not None
    ]
    assert parity.judge(found, Departure("float64", (0.0, 0.0), 1e-6, None))[0] == verdict


def test_a_coarse_dtype_is_told_to_be_rounding() -> None:
    errors = {"bfloat16": (0.2, 0.1), "float32": (1e-6, 1e-4), "float64": (1e-9, 1e-6)}
    found = [
        BackendComparison(name, "lens", most, {"x": error}, {"x": error}) for name, (error, most) in errors.items()
    ]
    verdict, sentence = parity.judge(found, None)
    assert verdict == parity.ROUNDING
    assert "lens differs by 2.0e-01 of the largest value in bfloat16" in sentence
    assert "model.dtype=float32" in sentence


def test_departures_by_hand() -> None:
    same, other = torch.tensor([[1.0, -4.0]]), torch.tensor([[1.0, -4.4]])
    found = parity.departs("float64", [same, same, same], [same, other, other], 0.05)
    assert found.error == pytest.approx((0.0, 0.1, 0.1))
    assert found.first == "block 0"
    assert parity.departs("float64", [same, same], [same, other], 0.2).first is None
    nan = torch.tensor([[1.0, float("nan")]])
    assert parity.departs("float64", [same, same], [same, nan], 0.2).first == "block 0"
