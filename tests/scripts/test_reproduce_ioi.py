"""The IOI reproduction: its table of heads, the greedy search against all sets, planted circuits, a random model."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from circuits.circuit import head, load
from circuits.models import PUBLISHED
from scripts.experiments import reproduce_ioi
from tests.scripts import reproduced

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


def test_an_idle_head_in_the_circuit_is_worth_nothing() -> None:
    study = reproduced.planted()
    idle = head(3, 7)
    study = claiming(study, "name_mover", (*study.circuit.roles["name_mover"].heads, idle))
    found = {name: float(np.mean(row)) for name, row in reproduce_ioi.knockouts(study, SETTINGS).items()}
    line = next(line for line in reproduce_ioi.lines(study.circuit, SETTINGS) if line.head == idle)
    assert found[line.without] - found[line.without_both] == pytest.approx(0, abs=0.01 * found["circuit"])


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


# --- a random model of GPT-2's shape -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = reproduced.save_random(tmp_path_factory.mktemp("model"))
    results = tmp_path_factory.mktemp("results")
    return reproduced.reproduce("reproduce_ioi", results, "model=gpt2", f"model.path={folder}", *SMALL)


def test_a_random_model_runs_to_the_end_and_is_said_not_to_do_the_task(ran) -> None:
    outcome, document = ran
    assert "gpt2 does not do ioi" in outcome.output
    assert "not defined" in outcome.output
    rows = {row["quantity"]: row for row in document["rows"]}
    assert len(rows) == 9 + (7 + 2) + 2 * 26
    assert rows["mean logit difference F(M)"]["paper"] == 3.56
    assert rows["faithfulness F(C) / F(M)"]["ours"]["value"] is None
    numbers = [row["ours"]["value"] for row in rows.values() if row["ours"]["value"] is not None]
    assert len(numbers) >= len(rows) - 3
    assert all(map(math.isfinite, numbers))


def test_the_share_of_pairs_is_one_position_for_each_of_the_26_heads(ran) -> None:
    data = ran[1]["data"]
    rows = {row["quantity"]: row["ours"]["value"] for row in ran[1]["rows"]}
    expected = 26 / (144 * data["behaviour"]["positions"])
    assert rows["circuit's share of (head, position) pairs"] == pytest.approx(expected)
    assert set(data) == {"behaviour", "knock-outs", "greedy sets", "incompleteness"}
    assert {len(row) for row in data["knock-outs"].values()} == {16}
    assert len(data["knock-outs"]) == 3 + 2 + 2 * 26
