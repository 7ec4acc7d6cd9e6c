"""The IOI reproduction: its table of heads, the greedy search against all sets, planted circuits, a random model."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from circuits.circuit import head, load, parse_head
from circuits.interventions import Variant
from circuits.models import PUBLISHED
from meridian.experiments import head_positions, reproduce_ioi
from meridian.experiments.estimates import PromptSample
from tests.meridian.experiments import reproduced

SETTINGS = reproduced.settings_of("reproduce_ioi")
NODES = [head(layer, index) for layer in range(2) for index in range(4)]
SMALL = (
    "experiment.prompts={discovery: 6, evaluation: 12, held_out: 4, reference: 160}",
    "experiment.bootstrap.resamples=100",
    "experiment.completeness.runs=2",
    "experiment.completeness.steps=2",
    "experiment.completeness.candidates=2",
    "experiment.completeness.random_sets=3",
    "experiment.completeness.discovery_prompts=6",
)


@pytest.fixture(scope="module")
def published():
    return load(PUBLISHED / "gpt2" / "ioi.yaml")


# --- the table of heads ------------------------------------------------------------------------------------------


def test_every_head_of_the_published_circuit_has_a_line(published) -> None:
    found = reproduce_ioi.lines(published, SETTINGS)
    assert sorted(line.head for line in found) == list(published.heads)
    assert len(found) == 26
    assert all(line.paper for line in found)
    assert all(line.head not in line.beside for line in found)


def test_equal_sets_have_equal_published_numbers(published) -> None:
    """F of a set is one number, whichever line it stands in: this shows that each K is the paper's."""
    numbers: dict[frozenset, set[float]] = {}
    for line in reproduce_ioi.lines(published, SETTINGS):
        both, alone = line.paper
        numbers.setdefault(line.beside | {line.head}, set()).add(both)
        numbers.setdefault(line.beside, set()).add(alone)
    shared = {len(removed): values for removed, values in numbers.items() if len(values) > 1}
    assert shared == {}
    chain = [len(removed) for removed in numbers if head(9, 9) in removed and head(10, 7) not in removed]
    assert sorted(chain) == list(range(1, 10))  # movers and backups one by one, each line going on from another


@pytest.mark.slow
def test_another_model_s_heads_are_judged_beside_their_own_role(published) -> None:
    circuit = reproduced.planted().circuit
    found = {line.head: line for line in reproduce_ioi.lines(circuit, SETTINGS)}
    assert found[head(3, 0)].beside == {head(3, 2), head(3, 5)}
    assert found[head(1, 3)].beside == {head(2, 1)}
    assert not any(line.paper for line in found.values())


def test_the_naive_circuit_has_no_backups_negative_or_fuzzy_heads(published) -> None:
    nodes = dict.fromkeys(published.heads)
    found = reproduce_ioi.naive(published, nodes, SETTINGS)
    assert len(found) == 26 - 8 - 2 - 3
    assert head(5, 8) not in found
    assert head(5, 5) in found


# --- the greedy search -------------------------------------------------------------------------------------------


def worth(removed) -> float:
    """A score that no single node shows: two nodes that count only together, and a little for each other node."""
    pair = {head(0, 1), head(1, 2)} <= removed
    return 5.0 * pair + 0.1 * len(removed)


def search(**changed):
    known: dict[frozenset, float] = {}

    def score(sets):
        known.update({one: worth(one) for one in sets})
        return known

    settings = {"runs": 3, "steps": len(NODES), "candidates": len(NODES), "seed": 0} | changed
    return reproduce_ioi.grow(NODES, score, settings), known


def test_with_all_candidates_the_search_ends_in_the_best_of_all_sets() -> None:
    every = [frozenset(one) for size in range(9) for one in itertools.combinations(NODES, size)]
    (best, *_), _ = search()
    assert worth(best) == max(map(worth, every))


def test_the_search_tries_so_many_nodes_at_each_step() -> None:
    found, known = search(runs=4, steps=3, candidates=2)
    assert {len(one) for one in known} == {1, 2, 3}
    assert len(known) <= 4 * 3 * 2
    assert [worth(one) for one in found] == sorted((worth(one) for one in found), reverse=True)
    assert search(runs=4, steps=3, candidates=2)[0] == found
    assert search(runs=4, steps=3, candidates=2, seed=1)[1] != known


def test_each_run_keeps_the_best_set_that_it_saw() -> None:
    known: dict[frozenset, float] = {}

    def score(sets):  # the first node is worth 1, each further one takes away
        known.update({one: 2.0 - len(one) for one in sets})
        return known

    found = reproduce_ioi.grow(NODES, score, {"runs": 3, "steps": 4, "candidates": 3, "seed": 0})
    assert {len(one) for one in found} == {1}


# --- a planted circuit -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sound_circuit_is_complete_and_each_of_its_heads_counts() -> None:
    study = reproduced.planted()
    found = {name: np.mean(row) for name, row in reproduce_ioi.knockouts(study, SETTINGS).items()}
    whole = float(np.mean(reproduce_ioi.behaviour(study)["logit_diff"]))
    assert found["circuit"] == pytest.approx(whole, rel=0.01)
    assert found["circuit without name movers"] == pytest.approx(0, abs=0.05 * whole)
    for line in reproduce_ioi.lines(study.circuit, SETTINGS):
        assert found[line.without] - found[line.without_both] > 0.2 * whole, line.head
    sets = reproduce_ioi.incompleteness(study, SETTINGS, [["L3H0"], ["L0H2", "L1H3"]])
    names = [name.removeprefix("circuit without ") for name in sets if name.startswith("circuit without ")]
    assert len(names) == 3 + SETTINGS["completeness"]["random_sets"] + 2
    for name in names:
        assert abs(np.mean(reproduce_ioi.difference(sets, name))) < 0.02 * whole, name


def claiming(study, role, heads):
    """The study with other heads claimed for one role."""
    roles = {**study.circuit.roles, role: replace(study.circuit.roles[role], heads=heads)}
    return replace(study, circuit=replace(study.circuit, roles=roles))


@pytest.mark.slow
def test_an_idle_head_in_the_circuit_is_worth_nothing() -> None:
    study = reproduced.planted()
    idle = head(3, 7)
    study = claiming(study, "name_mover", (*study.circuit.roles["name_mover"].heads, idle))
    found = {name: float(np.mean(row)) for name, row in reproduce_ioi.knockouts(study, SETTINGS).items()}
    line = next(line for line in reproduce_ioi.lines(study.circuit, SETTINGS) if line.head == idle)
    assert found[line.without] - found[line.without_both] == pytest.approx(0, abs=0.01 * found["circuit"])


@pytest.mark.slow
def test_the_search_finds_what_a_circuit_leaves_out() -> None:
    """A mover that is not claimed: without the others the model goes on and the circuit does not."""
    study = reproduced.planted()
    study = claiming(study, "name_mover", study.circuit.roles["name_mover"].heads[:2])
    chosen = {**SETTINGS["completeness"], "runs": 3, "steps": 3, "discovery_prompts": 10}
    settings = {**SETTINGS, "completeness": chosen}
    (best, *_) = reproduce_ioi.greedy_sets(study, settings)
    found = reproduce_ioi.incompleteness(study, settings, [best])
    whole = float(np.mean(reproduce_ioi.behaviour(study)["logit_diff"]))
    assert abs(np.mean(reproduce_ioi.difference(found, "greedy 0"))) > 0.2 * whole


@pytest.mark.slow
def test_numbers_are_in_logits_whatever_the_task_s_metric() -> None:
    study = reproduced.planted()
    other = replace(study, task=replace(study.task, metric="probability_difference"), done={})
    expected, found = (reproduce_ioi.behaviour(one)["logit_diff"] for one in (study, other))
    assert expected.mean() > 2  # no difference of probabilities
    assert found == pytest.approx(expected, abs=1e-5)
    variants = [head_positions.only({}, study.model.heads, reproduce_ioi.MEAN, "nothing"), Variant("model")]
    expected, found = (reproduce_ioi.losses(one, variants)["model"] for one in (study, other))
    assert found == pytest.approx(expected, abs=1e-5)


# --- the rows ----------------------------------------------------------------------------------------------------

N = 20
WAVE = np.tile([1.0, -1.0], N // 2)  # over prompts, with mean 0


def measured(published):
    """A reproduction whose every part has a number of its own."""
    sets = [f"class {name}" for name in published.roles] + ["random 0", "random 1", "greedy 0", "greedy 1"]
    gaps = [0.1, 0.2, -0.3, 0.4, 0.5, 0.6, 0.7, 1.5, -0.5, -0.8, 0.9]
    own = {"circuit": 2.4, "naive circuit": 1.5, "nothing": 0.3}
    own |= {"circuit without name movers": 0.9, "model without name movers": 2.7}
    for number, line in enumerate(reproduce_ioi.lines(published, SETTINGS)):
        own |= {line.without: 100.0 + number, line.without_both: 200.0 + number}
    incomplete = {f"model without {name}": np.full(N, 2.0) for name in sets}
    incomplete |= {f"circuit without {name}": 2.0 + gap + WAVE for name, gap in zip(sets, gaps, strict=True)}
    behaviour = {"logit_diff": 3.0, "correct": 0.9, "answer_probability": 0.4}
    return SimpleNamespace(
        settings=SETTINGS,
        circuit=published,
        identity=SimpleNamespace(heads=[head(layer, index) for layer in range(12) for index in range(12)]),
        data={
            "behaviour": {name: np.full(N, value) for name, value in behaviour.items()} | {"positions": 15.0},
            "knock-outs": {name: np.full(N, value) for name, value in own.items()},
            "incompleteness": incomplete,
        },
    )


@pytest.fixture(scope="module")
def sample():
    return PromptSample(tuple(map(str, range(N))), resamples=200)


def test_rows_of_the_whole_circuit_by_hand(published, sample) -> None:
    reproduced.assert_rows(
        reproduce_ioi.rows_of_the_whole(measured(published), sample),
        [
            ("mean logit difference F(M)", 3.0, 3.56),
            ("IO over S", 0.9, 0.993),
            ("mean P(IO)", 0.4, 0.49),
            ("circuit's share of (head, position) pairs", 26 / (144 * 15), 0.011),
            ("F(M) - F(C), signed", 0.6, 0.46),
            ("faithfulness F(C) / F(M)", 0.8, 0.87),
            ("F of nothing / F(M)", 0.1, None),
            ("naive circuit: F(M) - F(C), signed", 1.5, 0.1),
            ("lost by the model without its name movers", 0.1, 0.05),
        ],
    )


def test_rows_of_completeness_by_hand(published, sample) -> None:
    """Each with its sign; of the greedy sets the one that stands first, although the second is larger here."""
    rows = list(reproduce_ioi.rows_of_completeness(measured(published), sample))
    words = "small (figure)"
    values = dict(zip(published.roles, [0.1, 0.2, -0.3, 0.4, 0.5, 0.6, 0.7], strict=True))
    reproduced.assert_rows(
        rows,
        [
            *((f"incompleteness without class {name}, signed", value, words) for name, value in values.items()),
            ("incompleteness, mean of 2 random K, signed", 0.5, words),
            ("incompleteness, mean size over 2 random K", 1.0, words),
            ("incompleteness, first of 2 greedy K, signed", -0.8, 3.09),
        ],
    )
    first, *_, size, greedy = rows
    assert first.ours.low < 0 < first.ours.high
    assert size.ours.low is None
    assert -1.5 < greedy.ours.low < greedy.ours.high < 0


def test_rows_of_minimality_by_hand(published, sample) -> None:
    """The paper's first number is without K and the head, its second without K alone."""
    expected = []
    for number, line in enumerate(SETTINGS["minimality"]):
        beside = ", ".join(map(str, sorted(map(parse_head, line["beside"])))) or "nothing"
        both, alone = line["paper"]
        expected.append((f"F(C without K and {line['head']}), K: {beside}", 200.0 + number, both))
        expected.append((f"F(C without K), K for {line['head']}", 100.0 + number, alone))
    rows = list(reproduce_ioi.rows_of_minimality(measured(published), sample))
    reproduced.assert_rows(rows, expected)
    papers = {row.quantity: row.paper for row in rows}
    assert papers["F(C without K and L9H9), K: nothing"] == 2.26
    assert papers["F(C without K), K for L9H9"] == 2.62


# --- a random model of GPT-2's shape -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = reproduced.save_random(tmp_path_factory.mktemp("model"))
    results = tmp_path_factory.mktemp("results")
    return reproduced.reproduce("reproduce_ioi", results, "model=gpt2", f"model.path={folder}", *SMALL)


@pytest.mark.slow
def test_a_random_model_runs_to_the_end_and_is_said_not_to_do_the_task(ran) -> None:
    outcome, document = ran
    assert "gpt2 does not do ioi" in outcome.said
    assert "not defined" in outcome.said
    rows = {row["quantity"]: row for row in document["rows"]}
    assert len(rows) == 9 + (7 + 3) + 2 * 26
    assert rows["mean logit difference F(M)"]["paper"] == 3.56
    assert rows["faithfulness F(C) / F(M)"]["ours"]["value"] is None
    numbers = [row["ours"]["value"] for row in rows.values() if row["ours"]["value"] is not None]
    assert len(numbers) >= len(rows) - 3
    greedy = rows["incompleteness, first of 2 greedy K, signed"]["ours"]
    first = reproduce_ioi.difference(document["data"]["incompleteness"], "greedy 0")
    assert greedy["value"] == pytest.approx(np.mean(first))
    assert all(map(math.isfinite, numbers))


@pytest.mark.slow
def test_the_share_of_pairs_is_one_position_for_each_of_the_26_heads(ran) -> None:
    data = ran[1]["data"]
    rows = {row["quantity"]: row["ours"]["value"] for row in ran[1]["rows"]}
    expected = 26 / (144 * data["behaviour"]["positions"])
    assert rows["circuit's share of (head, position) pairs"] == pytest.approx(expected)
    assert set(data) == {"behaviour", "knock-outs", "greedy sets", "incompleteness"}
    assert {len(row) for row in data["knock-outs"].values()} == {16}
    assert len(data["knock-outs"]) == 3 + 2 + 2 * 26
