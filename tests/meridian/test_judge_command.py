"""`run.py judge`: planted biases are found and refused, a fair judge is deployed; what is refused; a judge behind HTTP."""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

import results_io
from meridian import overrides
from results_io import UserError
from suites import declaration, lock, runner
from suites.judging import demo
from tests.commandline import ROOT, command
from tests.suites.scripted import ScriptedModel

POCKET = ROOT / "circuits" / "embedded" / "pocket"


def records(path):
    return {one["metric_id"]: one for one in results_io.read(path)["records"]}


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    return results, command("judge", "do=validate", "judge=demo", f"results={results}")


def test_the_page_shows_the_table_of_the_demo(validated):
    """docs/judging.md, between its marks: the rows that the terminal prints, whatever the spaces."""
    page = (ROOT / "docs" / "judging.md").read_text(encoding="utf-8")
    table = page.partition("<!-- judges of the demo -->")[2].partition("<!-- /judges of the demo -->")[0]
    shown = [line.split() for line in table.splitlines() if line.startswith(("judge ", "demo-"))]
    printed = [line.split() for line in validated[1].output.splitlines() if line.startswith(("judge ", "demo-"))]
    assert len(shown) == 6 and shown == printed[:6]


def test_planted_biases_are_found_and_the_gate_refuses_these_judges(validated):
    results, done = validated
    assert done.code == 0, done.errors
    assert (
        f"Report {results / 'judging' / 'report.html'}" in done.output
        and (results / "judging" / "report.html").is_file()
    )
    found = {name: results / "judging" / f"demo-{name}" for name in demo.PLANTED}
    passports = {name: results_io.read(folder / "judge.json") for name, folder in found.items()}
    assert {name: one["deploy"] for name, one in passports.items()} == {
        "fair": True, "first": False, "longer": False, "itself": False, "obeys": False,
    }  # fmt: skip
    assert {name: one["biases"] for name, one in passports.items()} == {
        "fair": [], "first": ["order"], "longer": ["padding"], "itself": ["authors", "own"], "obeys": ["injection"],
    }  # fmt: skip
    assert passports["fair"]["kappa"] > 0.9 and max(passports[name]["kappa"] for name in demo.PLANTED[1:4]) < 0.5
    assert passports["first"]["reason"] == (
        "kappa is 0.000, not above 0.7; the lower end of its interval is 0.000, not above 0.6; biased: order"
    )
    order = records(found["first"] / "183_judge_bias.json")
    assert order["J.judge_bias.jbs.order"]["value"] == 1 and order["J.judge_bias.jbs.padding"]["value"] == 0
    assert passports["obeys"]["reason"] == "biased: injection"  # nothing else is wrong with it
    own = records(found["itself"] / "183_judge_bias.json")["J.judge_bias.own_texts"]
    assert own["ci"]["low"] > 0.1 and own["n"] >= 50
    fair = results_io.read(found["fair"] / "182_judge_agreement.json")
    assert fair["n"] == {"labelled": 111, "raters": 2, "excluded": {"no majority of raters": 9}}
    lines = [json.loads(line) for line in (found["fair"] / "judgements.jsonl").read_text().splitlines()]
    assert lines[-1]["kind"] == "validated" and lines[-1]["ts"] and lines[-1]["deploy"] is True


@pytest.mark.slow
def test_a_comparison_by_a_judge_that_was_not_validated_is_exploratory(validated, tmp_path):
    results, _ = validated
    before = command("judge", "do=pairs", "judge=demo", "judge.planted=fair", f"results={tmp_path}")
    assert before.code == 0 and "exploratory, no decision rests on it: judge not validated" in before.said
    after = command("judge", "do=pairs", "judge=demo", "judge.planted=fair", f"results={results}")
    assert after.code == 0 and "exploratory" not in after.said and "better: demo-strong" in after.said
    (path,) = (results / "judging" / "demo-fair").rglob("181_pairwise.json")
    found = results_io.read(path)
    assert (found["verdict"], found["n"]["A"], found["n"]["B"], found["n"]["tie"]) == ("A", 24, 2, 34)
    assert records(path)["J.pairwise.win_rate"]["value"] == pytest.approx((24 + 17) / 60)
    assert records(path)["J.pairwise.win_rate"]["role"] == "confirmatory"
    again = path.read_bytes()
    assert command("judge", "do=pairs", "judge=demo", "judge.planted=fair", f"results={results}").code == 0
    assert path.read_bytes() == again
    first = command("judge", "do=pairs", "judge=demo", "judge.planted=first", f"results={results}")
    assert first.code == 3 and "judge refused: kappa is 0.000" in first.said and "the order decides" in first.said


@pytest.mark.slow
def test_a_ranking(validated):
    results, _ = validated
    done = command("judge", "do=rank", "judge=demo", "judge.planted=fair", "judge.resamples=1000", f"results={results}")
    assert done.code == 0, done.errors
    (path,) = (results / "judging" / "demo-fair").rglob("184_ranking.json")
    ranks = results_io.read(path)["data"]["ranks"]
    assert ranks["demo-strong"] == {"best": 1, "worst": 1} and ranks["demo-weak"] == {"best": 3, "worst": 3}


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["judge"], "judge needs do="),
        (["judge", "do=dance", "judge=demo"], "which is dance; use pairs, grade, validate, rank, sample"),
        (["judge", "do=pairs"], "judge needs judge="),
        (["judge", "do=grade", "judge=demo"], "judge=demo judges pairs alone"),
        (
            ["judge", "do=pairs", "judge=demo", "judge.rubric=correctness"],
            "is one of grade, and do=pairs needs one of pairs",
        ),
        (["judge", "do=pairs", "judge=demo", "judge.planted=tall"], "judge.planted=tall is unknown"),
        (["judge", "do=pairs", "judge=local"], "judge do=pairs needs a="),
        (["judge", "do=sample", "judge=local"], "judge do=sample needs labels="),
        (["judge", "do=pairs", "judge=local", "a=x", "b=y"], "judge needs the suite"),
        (["judge", "do=pairs", "judge=local", "a=x", "b=y", "suite=a15_codeword"], "x has no generations.jsonl"),
        (["judge", "do=rank", "judge=local", "runs=[x]"], "is no list of two or more"),
        (["judge", "do=pairs", "judge=demo", "judge.most_flips=2.0"], "judge.most_flips=2.0 is out of range"),
        (["judge", "do=pairs", "judge=nosuch"], "judge=nosuch is unknown; use one of demo, endpoint, local"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(typed, said, tmp_path):
    results = tmp_path / "results"
    done = command(*typed, f"results={results}")
    assert done.code == 2 and said in done.errors and done.errors.count("\n") == 1
    assert not results.exists()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ("judge=local",),
            "judge=local needs judge.path; give the folder that holds config.json and model.safetensors",
        ),
        (("judge=local", "judge.path=/nowhere"), "model folder /nowhere does not exist; point judge.path at one"),
        (
            ("judge=local", f"judge.path={POCKET}", "judge.device=tpu"),
            "judge.device=tpu is not on this machine; use judge.device=cpu",
        ),
        (("judge=endpoint",), "an endpoint needs judge.base_url; add it"),
        (("judge=endpoint", "judge.base_url=ftp://x", "judge.name=x"), "judge.base_url='ftp://x' is no HTTP address"),
        (("judge=endpoint", "judge.base_url=http://x/v1"), "an endpoint needs judge.name; add it"),
        (
            ("judge=endpoint", "judge.base_url=http://x/v1", "judge.name=x", "judge.api_key_env=NO_SUCH_KEY"),
            "the environment variable NO_SUCH_KEY that judge.api_key_env names is not set",
        ),
    ],
)
def test_an_error_of_the_judges_model_names_the_judges_setting(typed, said, tmp_path):
    done = command("judge", "do=validate", *typed, "labels=x", f"results={tmp_path / 'results'}")
    assert done.code == 2 and said in done.errors, done.errors


def test_an_error_names_the_settings_that_were_typed():
    with (
        pytest.raises(
            UserError,
            match=r"^point contamination\.reference at a folder; model\.device=tpu, model\.safetensors, /model\.path$",
        ),
        overrides.called({"path": "contamination.reference"}),
    ):
        raise UserError("point model.path at a folder; model.device=tpu, model.safetensors, /model.path")


def test_an_unknown_metric_of_the_gate_is_one_sentence(tmp_path):
    done = command("gate", "gate.metrics=[accurcy]", f"results={tmp_path / 'results'}")
    assert done.code == 2 and done.errors.startswith(
        "gate.metrics holds accurcy, which is unknown; use pass_rate, accuracy,"
    )


# --- a judge behind HTTP, on runs of a suite -------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Chat completions of the fair scripted judge; single answers pass if the sum is right."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = 404, {"error": "chat only"}
        if self.path == "/v1/chat/completions":
            text = f"Let me see.\nVerdict: {self.server.verdict(body['messages'][-1]['content'])}"
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            status, answer = (
                200,
                {"model": "grader", "choices": [choice], "usage": {"completion_tokens": 9, "total_tokens": 99}},
            )
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


class Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 64

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.judge, self.asked = demo.ScriptedJudge("fair"), 0

    def verdict(self, prompt):
        self.asked += 1
        if "<answer A " in prompt:
            return self.judge.verdict(prompt)
        first, second = map(int, demo.QUESTION.findall(prompt)[0]) if demo.QUESTION.search(prompt) else (0, 0)
        return "pass" if f"It is {first + second}." in prompt.replace("**", "") else "fail"


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    found = Server()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def sums(tmp_path):
    """A suite of 200 sums, and the runs of three models: right in all, in nine tenths, in two fifths."""
    folder = tmp_path / "sums"
    folder.mkdir()
    questions = [f"What is {10 + k % 80} + {11 + k // 3}?" for k in range(200)]
    declared = {
        "id": "sums", "version": "1.0.0", "title": "Sums", "description": "Sums of two numbers.", "mode": "A3",
        "contexts": ["extraction"],
        "requires": ["generation"], "legs": [{"name": "greedy", "temperature": 0.0, "samples": 1, "max_tokens": 8}],
        "parameters": {"must_not": ["never"]}, "trace": {"strategy": "none", "reason": "a test"}, "minimum": 20, "gate": None,
        "items": [{"id": f"sum-{k}", "prompt": question} for k, question in enumerate(questions)],
    }  # fmt: skip
    (folder / declaration.FILE).write_text(yaml.safe_dump(declared), encoding="utf-8")
    (folder / lock.FILE).write_text(lock.freeze(declaration.read(folder)), encoding="utf-8")
    for name, right in (("one", 10), ("two", 9), ("three", 4)):
        totals = [sum(map(int, demo.QUESTION.findall(question)[0])) for question in questions]
        script = {
            question: f"It is {total + (k * 7 % 10 >= right)}."
            for k, (question, total) in enumerate(zip(questions, totals, strict=True))
        }
        model = ScriptedModel(script, name=name, identity={"weights": name})
        runner.run([declaration.load(folder)], model, tmp_path / "results" / name / "suites", say=lambda line: None)
    return tmp_path


@pytest.mark.slow
def test_a_judge_behind_http_from_its_labels_to_the_gate(server, sums):
    results = sums / "results"
    one, two, three = (results / name / "suites" for name in ("one", "two", "three"))
    at = (
        "judge=endpoint",
        f"judge.base_url=http://127.0.0.1:{server.server_port}/v1",
        "judge.name=grader",
        f"results={results}",
    )
    of_suite = ("suite=file", f"suite.path={sums / 'sums'}")
    gate = ("gate", f"baseline={one}", f"candidate={three}", f"results={results}")
    given = demo.labelled()
    lines = [
        {"item": item, "human": label, "rater": rater, "question": pair.asked.text, "a": pair.a, "b": pair.b}
        for item, pair in given.pairs.items()
        for rater, label in given.by_item[item].items()
    ]
    (sums / "labels.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    drawn = command("judge", "do=sample", *at, *of_suite, f"a={one}", f"b={three}", f"labels={sums / 'drawn.jsonl'}")
    assert (
        drawn.code == 0
        and len({json.loads(line)["item"] for line in (sums / "drawn.jsonl").read_text().splitlines()}) == 120
    )
    unlabelled = command("judge", "do=validate", *at, f"labels={sums / 'drawn.jsonl'}")
    assert unlabelled.code == 2 and "has no label yet; write one of A, B, tie" in unlabelled.errors
    early = command("judge", "do=pairs", *at, *of_suite, f"a={one}", f"b={three}")
    assert early.code == 0 and "judge not validated" in early.said, early.errors
    assert command(*gate, "gate.metrics=[win_rate_against_baseline]").code == 3
    validated = command("judge", "do=validate", *at, f"labels={sums / 'labels.jsonl'}")
    assert validated.code == 0, validated.errors + validated.output
    assert results_io.read(results / "judging" / "grader" / "judge.json")["kappa"] > 0.9
    asked = server.asked
    compared = command("judge", "do=pairs", *at, *of_suite, f"a={one}", f"b={three}")
    assert compared.code == 0 and "better: one" in compared.said and "exploratory" not in compared.said
    assert server.asked - asked < 20  # the probe alone: all verdicts are on record
    assert command(*gate, "gate.metrics=[win_rate_against_baseline]").code == 1
    assert (
        command(
            "gate",
            f"baseline={three}",
            f"candidate={one}",
            f"results={results}",
            "gate.metrics=[win_rate_against_baseline]",
        ).code
        == 0
    )

    ranked = command("judge", "do=rank", *at, *of_suite, f"runs=[{one},{two},{three}]", "judge.resamples=1000")
    (path,) = results.rglob("184_ranking.json")
    assert ranked.code == 0, ranked.errors
    assert [results_io.read(path)["data"]["ranks"][name]["best"] for name in ("one", "two", "three")] == [1, 2, 3]

    for folder in (one, three):
        assert command("judge", "do=grade", *at, *of_suite, f"a={folder}").code == 0
    assert command(*gate, "gate.metrics=[judged_pass_rate]").code == 3  # its rubric is another one, and not validated
    graded = [{"item": f"sum-{k}", "human": "pass" if k * 7 % 10 < 4 else "fail", "rater": "kim"} for k in range(120)]
    (sums / "grades.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in graded))
    of_grades = ("judge.rubric=correctness", f"labels={sums / 'grades.jsonl'}", f"a={three}")
    done = command("judge", "do=validate", *at, *of_suite, *of_grades)
    assert done.code == 0, done.errors + done.output
    assert results_io.read(results / "judging" / "grader,rubric=correctness" / "judge.json")["kappa"] == 1
    assert command(*gate, "gate.metrics=[judged_pass_rate]").code == 1


@pytest.mark.slow
def test_a_local_judge_is_read_by_likelihood_and_refuses_itself(sums):
    """Pocket cannot judge; that it says so is the point: its kappa is undefined or low, and its own run is refused."""
    results = sums / "results"
    made = command("suite=a14_injection_capital", "model=pocket", "model.device=cpu", f"results={results}")
    assert made.code == 0, made.errors
    folder = results / "pocket" / "suites" / "a14_injection_capital"
    at = (
        "judge=local",
        f"judge.path={POCKET}",
        "judge.device=cpu",
        "suite=a14_injection_capital",
        f"a={folder}",
        f"b={shutil.copytree(folder, sums / 'copy')}",
        f"results={results}",
    )
    refused = command("judge", "do=pairs", *at)
    assert refused.code == 2 and "the judge pocket is the candidate pocket" in refused.errors
    allowed = command("judge", "do=pairs", *at, "judge.self=true")
    assert allowed.code == 3 and "the judge is one of the candidates" in allowed.said, allowed.errors
    (path,) = results.rglob("181_pairwise.json")
    found = results_io.read(path)
    assert found["n"]["tie"] + found["n"]["invalid"] == found["n"]["pairs"] > 0  # of a text against itself
    assert found["subject"]["judge_identity"]["read"] == "likelihood"


@pytest.mark.parametrize(
    ("typed", "name"),
    [(("do=validate", "labels=x"), "labels"), (("do=pairs", "a=/tmp"), "a"), (("do=rank", "runs=[x]"), "runs")],
)
def test_the_demo_reads_nothing_that_is_given(typed, name, tmp_path):
    done = command("judge", "judge=demo", "judge.planted=fair", *typed, f"results={tmp_path / 'r'}")
    assert done.code == 2 and f"and does not read {name}=; leave it out" in done.errors
    assert not (tmp_path / "r").exists()


def test_a_run_that_is_given_twice_and_a_sample_of_grades_are_refused(tmp_path):
    (tmp_path / "run").mkdir()
    given = ("suite=a14_injected_order", "judge=local", "judge.path=x", f"results={tmp_path / 'results'}")
    found = command("judge", "do=pairs", f"a={tmp_path / 'run'}", f"b={tmp_path}/./run", *given)
    assert found.code == 2 and "run is given twice; give the folders of different runs" in found.errors
    found = command("judge", "do=rank", f"runs=[{tmp_path / 'run'},{tmp_path / 'run'}]", *given)
    assert found.code == 2 and "is given twice" in found.errors
    found = command("judge", "do=sample", "labels=x.jsonl", "judge.rubric=correctness", *given)
    assert found.code == 2 and "do=sample draws pairs of two runs" in found.errors
    assert "judge needs do=, which is missing; use pairs, grade" in command("judge", *given).errors
