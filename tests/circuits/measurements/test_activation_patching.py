"""02 against brute force, and its scale: 0 for nothing, 1 for everything."""

from __future__ import annotations

import numpy as np
import pytest

from circuits.circuit import Node
from circuits.interventions import Effects, Sweep, Variant, denoise, noise
from circuits.measurements import activation_patching
from tests.circuits import toy

ROWS = [0, 9, 25]


@pytest.fixture(scope="module")
def data(study):
    return activation_patching.measure(study)


def test_head_effects_equal_brute_force(data, study, twin) -> None:
    heads = study.model.heads
    bases = (Variant("clean"), Variant("corrupted", base="corrupted"))
    patched = (
        *(denoise([node], f"d{node}") for node in heads),
        *(noise([node], f"n{node}") for node in heads),
    )
    truth = twin().run((*bases, *patched), study.prompts.select(ROWS)).logit_diff
    clean, corrupted, denoised, noised = (
        truth[0],
        truth[1],
        truth[2 : 2 + len(heads)],
        truth[2 + len(heads) :],
    )
    assert data["denoising"].shape == data["noising"].shape == (len(study.prompts), len(heads))
    assert np.abs(data["denoising"][ROWS] - (denoised - corrupted).T).max() < 1e-4
    assert np.abs(data["noising"][ROWS] - (clean - noised).T).max() < 1e-4
    assert np.abs(denoised - corrupted).mean() > 0.1


def test_site_effects_equal_brute_force(data, study, twin) -> None:
    sites = data["sites"]
    prompts = study.prompts.select(sites["rows"])
    roles = sites["roles"]
    assert (sites["rows"], roles) == (toy.lowest_hash(study, 6), study.task.roles)
    places = [
        ("residual", 0, "s2"),
        ("residual", 2, "end"),
        ("attention", 1, "end"),
        ("mlp", 0, "s1"),
        ("mlp", 2, "end"),
    ]
    variants = [Variant("clean"), Variant("corrupted", base="corrupted")]
    variants += [denoise([Node(kind, layer)], f"{kind}{layer}{role}", (role,)) for kind, layer, role in places]
    truth = twin().run(tuple(variants), prompts).logit_diff
    gap = (truth[0] - truth[1]).mean()
    for (kind, layer, role), denoised in zip(places, truth[2:], strict=True):
        stored = sites["denoising"][kind][layer][roles.index(role)]
        assert stored == pytest.approx((denoised - truth[1]).mean() / gap, abs=1e-4 / abs(gap))


def test_positions_that_hold_nothing_new_have_no_effect_at_layer_0(data) -> None:
    """The last token is the same in both prompts; the names are not."""
    sites = data["sites"]
    first = dict(zip(sites["roles"], sites["denoising"]["residual"][0], strict=True))
    assert abs(first["end"]) < 1e-5
    assert abs(first["s2"]) > 1e-2


def test_the_last_position_s_last_components_do_not_read_other_positions(data, study) -> None:
    last = {kind: table[-1] for kind, table in data["sites"]["denoising"].items()}
    bases = Sweep((Variant("clean"), Variant("corrupted", base="corrupted")))
    clean, corrupted = study.run(bases, study.prompts.select(data["sites"]["rows"])).logit_diff
    gap = abs((clean - corrupted).mean())  # what effects are shares of; here much less than a logit difference
    for kind in ("attention", "mlp"):
        assert np.abs(last[kind][:-1]).max() * gap < 1e-5  # only "end" is read after the last layer
        assert abs(last[kind][-1]) > 1e-2


def test_normalised_effects_are_0_for_nothing_and_1_for_everything() -> None:
    clean, corrupted = np.array([4.0, 2.0]), np.array([1.0, -1.0])
    half, beyond = np.array([1.0, 2.0]), np.array([6.0, 4.0])
    table = np.array([clean, corrupted, corrupted, clean, half, beyond], np.float32)
    names = tuple("abcdef")
    effects = Effects(names, table, table > 0, table, "", "")
    assert activation_patching.normalised(effects).tolist() == pytest.approx([0.0, 1.0, 0.5, 5 / 3])


def test_patching_everything_is_1_on_the_engine(study) -> None:
    everything = [*study.model.heads, *(Node("mlp", layer) for layer in range(3))]
    sweep = Sweep(
        (
            Variant("clean"),
            Variant("corrupted", base="corrupted"),
            denoise([], "none"),
            denoise(everything, "all"),
        )
    )
    assert activation_patching.normalised(study.run(sweep)).tolist() == pytest.approx([0.0, 1.0], abs=1e-5)
