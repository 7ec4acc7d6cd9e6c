"""Where a ranking's circuit ends, on made-up models whose value of every set of heads is a formula."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from circuits import models, planted, tasks
from circuits import study as studies
from circuits.circuit import Node, head
from circuits.discovery import METHODS, curve, recovery, search
from circuits.discovery.nested import Nested
from circuits.discovery.ranking import HeadRanking
from circuits.discovery.stopping import Ending, Stopping, head_order
from circuits.engine.paths import UnknownWiringError
from circuits.interventions import Intervention, Sweep
from meridian import overrides
from tests.circuits import toy

SETTINGS = {"tolerance": 0.1, "completeness": {"incompleteness": 0.1, "counts": 0.02, "groups": 24}}


class Formula:
    """A study whose metric is a function of the heads that are intact, on two prompts of which one counts double."""

    def __init__(self, heads: tuple[Node, ...], value: Callable[[set[int]], float]) -> None:
        self.model = SimpleNamespace(heads=heads, name="formula")
        self.task = SimpleNamespace(metric="logit_difference", name="formula")
        self.value, self.asked = value, 0

    def run(self, sweep: Sweep, prompts: object) -> SimpleNamespace:
        rows = []
        for variant in sweep.variants:
            ablated = {node for one in variant.interventions if isinstance(one, Intervention) for node in one.nodes}
            intact = {place for place, node in enumerate(self.model.heads) if node not in ablated}
            rows.append([self.value(intact), 2 * self.value(intact)])
        self.asked += len(rows)
        return SimpleNamespace(logit_diff=np.array(rows))


def ending(value: Callable[[set[int]], float], count: int = 8, **settings: object) -> Ending:
    """The end of the ranking 0, 1, ... of `count` heads."""
    heads = tuple(head(0, index) for index in range(count))
    ranking = HeadRanking(heads, order=lambda weights: np.arange(count))
    nested = Nested(Formula(heads, value), [0, 1], ranking)  # pyright: ignore[reportArgumentType]
    return Stopping(nested, {**SETTINGS, **settings}).ending([])


def test_a_head_worth_less_than_the_tolerance_belongs_if_it_counts() -> None:
    found = ending(lambda intact: 0.95 * (0 in intact) + 0.05 * (1 in intact))
    assert (found.smallest_faithful, found.size, found.complete) == (1, 2, True)
    assert found.next == pytest.approx(0) and found.incompleteness == pytest.approx(0)


def test_a_head_that_does_not_count_stays_outside() -> None:
    found = ending(lambda intact: 0.985 * (0 in intact) + 0.015 * (1 in intact))
    assert (found.smallest_faithful, found.size) == (1, 1) and found.next == pytest.approx(0.015)


def test_the_second_of_two_heads_that_do_the_same_belongs() -> None:
    """Head 0 or head 2 is enough. By faithfulness head 0 is all; without it the circuit does nothing, and the model all."""
    either = ending(lambda intact: float(0 in intact or 2 in intact))
    assert (either.smallest_faithful, either.size, either.complete) == (1, 3, True)
    assert either.incompleteness == pytest.approx(0)


def test_two_heads_that_cancel_belong_although_all_is_the_same_without_them() -> None:
    """Heads 1 and 2 add and take away .5: prefixes of 1 and of 3 heads are as faithful."""
    found = ending(lambda intact: 1.0 * (0 in intact) + 0.5 * (1 in intact) - 0.5 * (2 in intact))
    assert (found.smallest_faithful, found.size) == (1, 3)


def test_a_circuit_that_only_all_heads_complete_ends_where_it_is_faithful_and_says_so() -> None:
    found = ending(lambda intact: float(0 in intact or 7 in intact))
    assert (found.size, found.complete, found.group) == (1, False, "the whole circuit")
    assert found.incompleteness == pytest.approx(1)


def test_a_circuit_of_all_heads_that_is_needed_is_complete() -> None:
    found = ending(lambda intact: len(intact) / 8)
    assert (found.smallest_faithful, found.size) == (8, 8) and found.complete and found.next is None


def test_a_single_head() -> None:
    found = ending(lambda intact: float(len(intact)), count=1)
    assert (found.size, found.complete, found.incompleteness) == (1, True, 0)


def test_only_so_many_heads_are_asked_for_one_by_one() -> None:
    """Head 1 has a stand-in outside: seen if two heads are asked, not if one is."""
    half = lambda intact: 0.5 * (0 in intact) + 0.5 * (1 in intact or 3 in intact)  # noqa: E731
    sizes = [ending(half, completeness={**SETTINGS["completeness"], "groups": n}).size for n in (1, 2)]
    assert sizes == [4, 4]  # the whole circuit sees it already: without it the model keeps half
    third = lambda intact: 1.0 * (0 in intact and (1 in intact or 3 in intact))  # noqa: E731
    sizes = [ending(third, completeness={**SETTINGS["completeness"], "groups": n}).size for n in (1, 2)]
    assert sizes == [2, 4]


# --- rankings against known circuits -------------------------------------------------------------------------------


def test_recovery_by_hand() -> None:
    """Known a, b; the ranking a, x, b, y: of the first two one is known; of the four pairs (known, unknown) three are right."""
    a, b, x, y = (head(0, index) for index in range(4))
    found = recovery([a, x, y], [a, x, b, y], [a, b])
    assert found == pytest.approx({"precision": 1 / 3, "recall": 0.5, "r_precision": 0.5, "auroc": 0.75})
    assert recovery([a, b], [a, b], [a, b])["auroc"] is None
    assert recovery([], [a, b], [a])["precision"] is None


@pytest.mark.parametrize("known", [[], [head(9, 9)]])
def test_a_truth_outside_the_order_is_refused(known) -> None:
    with pytest.raises(ValueError, match="not in the order of all heads"):
        recovery([head(0, 0)], [head(0, 0)], known)


# --- real models ---------------------------------------------------------------------------------------------------

SIZES = {"evaluation": 1, "held_out": 1, "discovery": 16, "reference": 240}


def nested_of(settings: dict, method: str) -> Nested:
    model = models.load({**settings, "device": "cpu"})
    measured = overrides.group("measurement", "all")
    study = studies.prepare(model, tasks.get("ioi"), SIZES, 0, toy.ENGINE, settings=measured)
    return Nested(study, study.discovery, METHODS[method].rank(study, study.discovery))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["AtP", "NAP-IG", "GIM"])
def test_all_seven_heads_of_the_trained_model_are_found_and_faithfulness_alone_loses_some(method) -> None:
    nested = nested_of(overrides.group("model", "planted/trained"), method)
    own, truth = nested.study.settings["discovery"], nested.study.model.circuits["ioi"].heads
    assert set(head_order(nested)[:7]) == set(truth)
    found = Stopping(nested, own).ending(curve.sizes(nested.total, own["shares"]))
    assert found.size == 7 and found.smallest_faithful < 7 and found.complete


@pytest.mark.slow
def test_the_seven_of_144_heads_of_gpt2_s_shape_are_found() -> None:
    nested = nested_of({"name": "planted/gpt2_shape", "kind": "planted", "variant": "gpt2_shape", "seed": 0}, "AtP")
    assert len(nested.study.model.heads) == 144
    truth = planted.truth("gpt2_shape").heads
    assert [str(node) for node in truth] == ["L0H2", "L1H7", "L4H3", "L6H1", "L9H0", "L9H6", "L10H2"]
    own = nested.study.settings["discovery"]
    size = Stopping(nested, own).ending(curve.sizes(nested.total, own["shares"])).size
    assert nested.ranking.heads(nested.ranking.members(nested.order[:size])) == truth


# --- where a model's edges are unknown ------------------------------------------------------------------------------


@pytest.fixture
def unwired(load, monkeypatch) -> studies.Study:
    """A Gemma 2, which has norms behind its attention, counted as large and as able."""
    own = {**overrides.group("measurement", "all")["discovery"], "greedy_heads": 1, "clusters": 2}
    own |= {"stability": {**own["stability"], "resamples": 1}, "resamples": 50}
    settings = {**toy.SETTINGS, "discovery": own}
    sizes = {"evaluation": 1, "held_out": 1, "discovery": 8, "reference": 30}
    return studies.prepare(load("gemma2"), tasks.get("greater_than"), sizes, 0, toy.ENGINE, settings=settings)


def test_auto_ranks_heads_where_edges_are_unknown_and_says_so(unwired) -> None:
    module, ranking, why = search.ranked(unwired, unwired.discovery, "auto")
    assert (module.NAME, ranking.unit) == ("NAP-IG", "heads")
    assert why is not None
    assert why.startswith(
        "NAP-IG in place of EAP-IG, because the attention output of layer 0 in model toy/gemma2 is not"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["EAP-IG", "EAP-GIM"])
def test_edges_that_are_asked_for_by_name_are_refused(unwired, method) -> None:
    with pytest.raises(UnknownWiringError, match="is not the one of a pre-norm decoder"):
        search.ranked(unwired, unwired.discovery, method)


def test_only_auto_falls_back_and_only_from_edges() -> None:
    assert search.may_fall_back("AUTO", "EAP-IG") and not search.may_fall_back("EAP-IG", "EAP-IG")
    assert not search.may_fall_back("auto", "ACDC-greedy")
