"""A lab's answers: those of the numbered measurements, of a brute-force loop, and of limit cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import meridian
from calibrations.evidence import Evidence
from calibrations.preconditions import faithfulness
from circuits import models
from circuits.circuit import Circuit, Role, head
from circuits.interventions import Recipe, ablate, denoise
from circuits.tasks import TASKS
from meridian import typed_prompt
from meridian.finding import means
from meridian.lab import Lab
from meridian.run_folder import RunFolder
from results_io import UserError
from tests.circuits.hook_loop import HookLoop
from tests.commandline import SIZES

PROMPTS = SIZES["evaluation"]
SAME = [f"prompts.reference={SIZES['reference']}", "measurement.site_prompts=10", "model.device=cpu"]
STORED = 1e-4  # nats: results keep nine digits of float32, and batches of another size round otherwise


@pytest.fixture(scope="module")
def lab() -> Lab:
    """The evaluation prompts of the run `finished`, to compare with its results."""
    return meridian.explore("ioi", "pocket", None, SAME, prompts=PROMPTS, split="evaluation")


@pytest.fixture(scope="module")
def run(finished: Path) -> RunFolder:
    return meridian.open(finished)


@pytest.fixture(scope="module")
def rows(run, lab) -> list[int]:
    """Where the lab's prompts stand in the stored results."""
    stored = run.data("01")["prompt_id"]
    return [stored.index(name) for name in lab.prompts.ids]


def stored(run: RunFolder, number: str, field: str, rows: list[int]) -> np.ndarray:
    return np.asarray(run.data(number)[field], dtype=float)[rows]


# --- the numbered measurements -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_prompts_are_those_of_a_run_of_the_same_size(lab, run) -> None:
    baseline = run.data("01")
    evaluation = [
        name for name, split in zip(baseline["prompt_id"], baseline["split"], strict=True) if split == "evaluation"
    ]
    assert sorted(lab.prompts.ids) == sorted(evaluation) and len(evaluation) == PROMPTS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "number", "field"),
    [
        ("denoising", "02", "denoising"),
        ("noising", "02", "noising"),
        ("knockout", "21", "effect"),
        ("attribution", "03", "attribution"),
    ],
)
def test_maps_of_heads_are_the_stored_measurements(lab, run, rows, what, number, field) -> None:
    found = lab.head_map(what)
    expected = stored(run, number, field, rows)
    assert found.values == pytest.approx(expected.T, abs=STORED) and np.ptp(expected) > 1
    assert found.table["estimate"].to_numpy() == pytest.approx(expected.mean(0), abs=STORED)
    cells = np.array(found.figure.values, dtype=float)
    assert cells.shape == (4, 8) and cells[2, 1] == found.table.loc["L2H1", "estimate"]
    circuit = {(node.layer, node.index) for node in lab.circuit.heads}
    assert set(found.figure.marked) == circuit


@pytest.mark.slow
def test_the_baseline_and_the_lens_are_the_stored_ones(lab, run, rows) -> None:
    found = lab.logit_difference()
    assert found.values[0] == pytest.approx(stored(run, "01", "clean_logit_diff", rows), abs=STORED)
    assert found.values[1] == pytest.approx(stored(run, "01", "corrupted_logit_diff", rows), abs=STORED)
    lens = np.asarray(run.data("04")["logit_diff"])[:, rows]
    assert lab.logit_lens().values == pytest.approx(lens, abs=STORED)


@pytest.mark.slow
def test_the_trace_is_the_stored_one_on_its_prompts(lab, run) -> None:
    data = run.data("06")
    chosen = [lab.prompts.ids.index(run.data("01")["prompt_id"][row]) for row in data["rows"]]
    found = lab.trace("residual").values[:, chosen].mean(1)
    assert found == pytest.approx(np.ravel(data["impact"]["residual"]), abs=STORED)


@pytest.mark.parametrize("recipe", ["mean", "zero", "resample", "noise", "mean_pooled"])
def test_faithfulness_is_that_of_the_certificate(lab, run, recipe) -> None:
    constants = {**run.settings}
    evidence = Evidence.load(run.path, constants, ("01", "20"))
    expected = faithfulness(evidence, constants, method=recipe)
    found = lab.keep_only("circuit", recipe)
    assert found.estimate == pytest.approx(expected.value, abs=1e-5)
    assert found.interval == pytest.approx(expected.fieller(0.95), abs=1e-4)


def test_ablating_the_circuit_is_the_stored_complement(lab, run, rows) -> None:
    battery = run.data("20")
    (row,) = [i for i, one in enumerate(battery["conditions"]) if one["name"] == "complement/mean/0"]
    lost = stored(run, "01", "clean_logit_diff", rows) - np.asarray(battery["logit_diff"])[row, rows]
    found = lab.ablate("circuit")
    assert found.values[0] == pytest.approx(lost, abs=STORED)
    assert found.table["share"].iloc[0] == pytest.approx(lost.mean() / found_clean(lab), abs=1e-5)


def found_clean(lab: Lab) -> float:
    return lab.logit_difference().table.loc["clean", "estimate"]


def test_the_parts_of_the_attribution_sum_to_the_logit_difference(lab) -> None:
    found = lab.direct_logit_attribution()
    assert found.values.sum(0) == pytest.approx(lab.logit_difference().values[0], abs=1e-3)
    assert len(found.table) == 32 + 4 + 2 and len(found.figure.rows) == 16


# --- brute force, limits, invariances ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_loop_over_a_plain_model_gives_the_same_effects(lab) -> None:
    settings = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu"}
    plain, _ = models.load_plain(settings, models.identify(settings))
    loop = HookLoop(plain, "gpt2", 8, lab.study.engine.reference.prompts)
    pair, few = (head(2, 1), head(2, 2)), range(4)

    def scores(variant) -> np.ndarray:
        return np.array([loop.score(variant, lab.prompts, row)[0] for row in few])

    clean = scores(ablate([], Recipe("zero"), "clean"))
    corrupted = scores(denoise([], "corrupted"))
    for recipe in ("mean", "zero"):
        lost = clean - scores(ablate(pair, Recipe(recipe), "without"))
        assert lab.ablate(["L2H1", "L2H2"], recipe).values[0, :4] == pytest.approx(lost, abs=1e-3)
    added = scores(denoise(pair, "denoised")) - corrupted
    assert lab.patch(["L2H1", "L2H2"]).values[0, :4] == pytest.approx(added, abs=1e-3)
    assert abs(added).min() > 0.1


def test_patching_every_head_at_every_position_gives_everything_that_heads_carry(lab) -> None:
    """Heads are all that moves information between positions, so at the end position they bring the clean answer."""
    everything = lab.patch({"all": [str(node) for node in lab.model.heads]})
    assert everything.table["share"].iloc[0] == pytest.approx(1, abs=0.02)
    assert lab.keep_only({"all": lab.model.heads}).estimate == pytest.approx(1, abs=1e-6)


def test_labels_and_order_change_no_number(lab) -> None:
    one = lab.ablate({"a": ["L2H1", "L0H0"], "b": "answer_promoter"})
    other = lab.ablate({"x": "answer_promoter", "y": ["L0H0", "L2H1", "L2H1"]})
    assert one.table.loc[["a", "b"], "estimate"].tolist() == other.table.loc[["y", "x"], "estimate"].tolist()


@pytest.mark.slow
def test_positions_narrow_a_patch(lab) -> None:
    parts = [lab.patch("L2H1", positions=[role]).estimate for role in lab.prompts.positions]
    whole = lab.patch("L2H1").estimate
    assert lab.patch("L2H1", positions=["end"]).estimate == pytest.approx(whole, rel=0.05)
    assert max(parts) == pytest.approx(parts[-1])


def test_attention_rows_sum_to_one_and_see_no_later_key(lab) -> None:
    found = lab.attention("L2H1", prompt=3)
    weights = found.table.to_numpy()
    assert weights.sum(1) == pytest.approx(np.ones(len(weights)), abs=1e-5)
    assert np.abs(np.triu(weights, 1)).max() == 0 and weights.shape == (int(lab.prompts.end[3]) + 1,) * 2


def test_the_lens_on_one_prompt_ends_in_the_models_answer(lab) -> None:
    assert lab.logit_lens(0).table.iloc[-1, -1].strip() == lab.texts(1)["answer"].iloc[0].strip()


# --- intervals ---------------------------------------------------------------------------------------------------------


class Labels:
    """What `means` reads of a prompt set."""

    def __init__(self, templates, clusters) -> None:
        self.templates, self.clusters = tuple(templates), tuple(clusters)

    def __len__(self) -> int:
        return len(self.templates)


def test_without_clusters_or_templates_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(size=(2, 400))
    table = means(["a", "b"], values, Labels(["one"] * 400, map(str, range(400))))
    for row, sample in zip(table.itertuples(), values, strict=True):
        low, high = stats.t.interval(0.95, 399, sample.mean(), stats.sem(sample))
        assert (row.low, row.high) == pytest.approx((low, high), rel=0.02)


def test_intervals_cover_the_mean_of_clustered_prompts() -> None:
    rng, covered, trials = np.random.default_rng(1), 0, 600
    clusters = np.repeat(np.arange(40), 3)
    for _ in range(trials):
        values = rng.normal(size=40)[clusters] + 0.3 * rng.normal(size=120)
        table = means(["x"], values[None], Labels(["t1" if c < 20 else "t2" for c in clusters], map(str, clusters)))
        covered += table["low"].iloc[0] <= 0 <= table["high"].iloc[0]
    assert 0.92 < covered / trials < 0.98


def test_a_template_of_one_cluster_widens_the_interval_rather_than_taking_it_away() -> None:
    values = np.concatenate([np.zeros(10) + np.arange(10) % 2, np.full(10, 5.0) + np.arange(10) % 2])[None]
    by_template = means(["x"], values, Labels(["a"] * 10 + ["b"] * 10, map(str, range(20))))
    single = means(["x"], values, Labels(["a"] * 10 + ["b"] * 9 + ["c"], map(str, range(20))))
    width = lambda table: float(table["high"].iloc[0] - table["low"].iloc[0])  # noqa: E731
    assert width(single) > 3 * width(by_template) > 0


def test_a_table_of_several_rows_has_no_single_estimate(lab) -> None:
    with pytest.raises(UserError, match="2 rows"):
        _ = lab.ablate({"a": "L0H0", "b": "L0H1"}).estimate


# --- what is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lab_looks_at_discovery_prompts_by_default_and_at_a_users_circuit_and_task(lab) -> None:
    own = meridian.explore(TASKS["ioi"], circuit=["L2H1", "L0H0"], settings=SAME, prompts=20)
    assert own.split == "discovery" and not set(own.prompts.ids) & set(lab.prompts.ids)
    assert [str(node) for node in own.circuit.heads] == ["L0H0", "L2H1"]
    alone = Circuit("one", "ioi", "pocket", {"r": Role((head(2, 1),))}, {"kind": "user"})
    assert own.keep_only(alone).estimate == pytest.approx(own.keep_only("L2H1").estimate)


def test_a_role_is_named_as_the_claim_or_the_report_writes_it(lab) -> None:
    """Underscores may be spaces; a role that has spaces of its own keeps its name."""
    names = sorted(name for name in lab.circuit.roles if "_" in name)
    for name in names:
        assert lab._named(name) == lab._named(name.replace("_", " ")) == tuple(sorted(lab.circuit.roles[name].nodes))
    assert names
    spaced = replace(lab.circuit, roles={"my role": lab.circuit.roles[names[0]]})
    other = replace(lab, study=replace(lab.study, circuit=spaced))
    assert other._named("my role") == tuple(sorted(spaced.roles["my role"].nodes))


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda lab: lab.ablate("L9H1"), "L9H1 is outside model pocket"),
        (lambda lab: lab.ablate("movers"), "heads 'movers' are not a role of the circuit"),
        (lambda lab: lab.ablate("L0H0", "median"), "recipe=median is unknown"),
        (lambda lab: lab.ablate([]), "no heads are named"),
        (lambda lab: lab.patch((2, 1)), r"\(2, 1\) names no heads; write a head as L2H1"),
        (lambda lab: lab.patch([(2, 1)]), r"\(2, 1\) names no heads; write a head as L2H1"),
        (lambda lab: lab.patch({"a": [(2, 1), "L0H0"]}), r"\(2, 1\) names no heads; write a head as L2H1"),
        (lambda lab: lab.ablate({"a": 3}), "3 names no head; write for example L2H1, M3"),
        (lambda lab: lab.ablate(["L0H0", 3]), "3 names no head; write for example L2H1, M3"),
        (lambda lab: lab.prompt("Mary went to the store .", "Mary", "John"), "'John' does not stand in"),
        (lambda lab: lab.prompt("Mary", "Mary", "Mary"), "answer and foil are both 'Mary'"),
        (lambda lab: lab.prompt("", "Mary", "John"), "needs a text, an answer and a foil"),
        (lambda lab: lab.patch("L0H0", "sideways"), "direction=sideways is unknown"),
        (lambda lab: lab.patch("L0H0", positions=["start"]), "position 'start' is unknown"),
        (lambda lab: lab.head_map("salience"), "is unknown; use denoising"),
        (lambda lab: lab.trace("logits"), "site=logits is unknown"),
        (lambda lab: lab.trace(strategy="shout"), "corruption strategy 'shout' is unknown"),
        (lambda lab: lab.attention("circuit"), "is 14 heads; a pattern is of one"),
        (lambda lab: lab.attention("M1"), "M1 is an MLP, which attends to nothing; name a head, for example L1H0"),
        (lambda lab: lab.attention("L0H0", 40), "prompt 40 is not there; use 0 to 39"),
        (lambda lab: lab.logit_lens("first"), "prompt first is not there; use 0 to 39"),
        (lambda lab: lab.prompt(None, "Mary", "John"), "None is not a text; give prompt, answer and foil as text"),
        (lambda lab: lab.prompt("Mary and John", "Mary", 2), "2 is not a text; give prompt, answer and foil as text"),
        (lambda lab: lab.prompt("Zyx Mary and John said to", "Mary", "John"), "does not know the first word"),
        (lambda lab: meridian.open(3), "3 is not a folder; give that of a finished run"),
        (lambda lab: meridian.compare("a", None), "None is not a folder; give that of a finished run"),
        (lambda lab: meridian.run(3), "3 is not a setting; write settings as text"),
        (lambda lab: meridian.explore(split="reference"), "split=reference is unknown"),
        (lambda lab: meridian.explore(circuit=["L9H9"]), "names head L9H9"),
        (lambda lab: meridian.explore(model="gpt5"), "model=gpt5 is unknown"),
    ],
)
def test_bad_questions_end_in_one_sentence(lab, ask, sentence) -> None:
    with pytest.raises(UserError, match=sentence) as refused:
        ask(lab)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_every_answer_is_drawn_both_ways(lab) -> None:
    answers = [
        lab.logit_difference(),
        lab.patch("L2H1"),
        lab.keep_only(recipe=["mean", "zero"]),
        lab.head_map(),
        lab.trace(),
        lab.attention("L2H1"),
        lab.logit_lens(),
        lab.logit_lens(0),
        lab.direct_logit_attribution(),
    ]
    names = [answer.figure.name for answer in answers]
    assert len(set(names)) == len(names)
    for answer in answers:
        assert answer._repr_png_().startswith(b"\x89PNG") and answer.interactive().data
        assert isinstance(answer.table, pd.DataFrame) and str(answer.figure.caption).endswith(".")


def test_the_steps_are_printed_unless_progress_is_off(capsys) -> None:
    meridian.explore("ioi", "pocket", settings=SAME, prompts=8)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "explore: 8 discovery prompts of ioi on pocket" and len(said) > 2
    assert any(line.startswith("preparing prompts") for line in said)
    meridian.explore("ioi", "pocket", settings=SAME, prompts=8, show=False)
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_more_prompts_of_a_seed_begin_with_fewer_and_another_seed_draws_others(lab) -> None:
    few = meridian.explore(prompts=12, settings=SAME, split="evaluation", seed=1).prompts.ids
    again = meridian.explore(prompts=20, settings=SAME, split="evaluation", seed=1).prompts.ids
    assert again[: len(few)] == few and len(set(few) & set(lab.prompts.ids[: len(few)])) < 3


# --- a typed prompt -----------------------------------------------------------------------------------------------------


def typed(lab: Lab, row: int = 0) -> Lab:
    """A prompt of the lab as a person would type it."""
    shown = lab.texts(row + 1).iloc[row]
    words = {name: shown[name].replace("<bos>", "").strip() for name in ("clean", "corrupted", "answer", "foil")}
    return lab.prompt(words["clean"], words["answer"], words["foil"], words["corrupted"])


def test_a_prompt_of_the_task_typed_again_gives_the_same_numbers(lab) -> None:
    one = typed(lab)
    assert one.prompts.templates == lab.prompts.templates[:1] and len(one.prompts) == 1
    assert {role: int(where[0]) for role, where in one.prompts.positions.items()} == (
        {role: int(where[0]) for role, where in lab.prompts.positions.items()}
    )
    assert one.logit_difference().values[:, 0] == pytest.approx(lab.logit_difference().values[:, 0], abs=STORED)
    for recipe in ("mean", "zero"):
        expected = lab.ablate("L2H1", recipe).values[0, 0]
        assert one.ablate("L2H1", recipe).estimate == pytest.approx(expected, abs=STORED) and abs(expected) > 1e-3
    patched = lab.patch("L2H1").values[0, 0]
    assert one.patch("L2H1").estimate == pytest.approx(patched, abs=STORED)
    kept = lab.keep_only("circuit").values[0, 0] / lab.logit_difference().values[0, 0]
    found = one.keep_only("circuit")
    assert found.estimate == pytest.approx(kept, abs=1e-4) and np.isnan(found.interval).all()
    assert "One typed prompt, so no interval" in repr(found) and "intervals" not in repr(found)


def test_other_answers_to_the_same_text_are_not_taken_from_memory(lab) -> None:
    shown = lab.texts(1).iloc[0]
    clean, corrupted = (shown[name].replace("<bos>", "").strip() for name in ("clean", "corrupted"))
    answer, foil = shown["answer"].strip(), shown["foil"].strip()
    there = lab.prompt(clean, answer, foil, corrupted).logit_difference().values[0, 0]
    back = lab.prompt(clean, foil, answer, corrupted).logit_difference().values[0, 0]
    assert there == pytest.approx(-back, abs=STORED) and abs(there) > 0.1


def test_the_pair_of_a_typed_prompt_exchanges_answer_and_foil() -> None:
    said = "When Ann and Anna met, Anna gave it to"
    assert typed_prompt.exchanged(said, "Ann", "Anna") == "When Anna and Ann met, Ann gave it to"


def test_a_prompt_in_no_wording_of_the_task_has_recipes_that_need_none(lab) -> None:
    shown = lab.texts(1).iloc[0]
    words = shown["clean"].replace("<bos>", "").split()
    answer, foil = shown["answer"].strip(), shown["foil"].strip()
    other = lab.prompt(" ".join([words[0], *words]), answer, foil)  # one token longer than the wording
    assert other.prompts.templates == ("typed",) and list(other.prompts.positions) == ["end"]
    assert np.isfinite(other.ablate("L2H1", "zero").estimate) and np.isfinite(
        other.ablate("L2H1", "mean_pooled").estimate
    )
    with pytest.raises(UserError, match="has no wording of ioi, so recipe=mean has no prompts to draw on; use zero"):
        other.ablate("L2H1")


def test_mlps_are_asked_about_like_heads(lab) -> None:
    """Silencing all of one layer's MLP costs something, a head and an MLP together are both, and every MLP and head is all."""
    one = lab.ablate({"mlp": "M0", "both": ["M0", "L2H1"], "head": "L2H1"}, "zero").table["estimate"]
    assert abs(one["mlp"]) > 0.01 and one["both"] != pytest.approx(one["head"], abs=0.01)
    assert lab.patch("M0").table["share"].iloc[0] != 0
    everything = [*map(str, lab.model.heads), *(f"M{layer}" for layer in range(lab.model.n_layers))]
    assert lab.keep_only({"all": everything}).estimate == pytest.approx(1, abs=1e-6)
