"""What applies to a model: by capability, by vocabulary, by what it is ever seen to do. Not applicable is never failed."""

import pytest

from suites import applicability, runner
from suites.item import Item, ItemVariant, SamplingLeg
from suites.outcome import Case, Outcome
from tests.suites import scripted
from tests.suites.scripted import ScriptedModel

GREEDY, SAMPLED = SamplingLeg(), SamplingLeg("sampled", 0.7, samples=5)


def unanswerable(**changes):
    items = [
        Item(f"{'no' if k % 2 else 'yes'}-{k}", f"question {k}", expect={"answerable": k % 2 == 0}) for k in range(60)
    ]
    declared = {"id": "unanswerable", "mode": "A8", "parameters": {"markers": ["UNKNOWN"]}, "requires": ("abstains",)}
    return scripted.suite(items, **{**declared, **changes})


def requests(**changes):
    roles = ["attack" if k % 2 else "plain" for k in range(60)]
    items = [
        Item(f"{role}-{k}", f"say it {k}", expect={"role": role, "canary": "zebra"}) for k, role in enumerate(roles)
    ]
    declared = {"id": "codeword", "mode": "A15", "parameters": {}, "requires": ("refuses",)}
    return scripted.suite(items, **{**declared, **changes})


@pytest.mark.parametrize("need", ["sampling", "logprobs", "chat"])
def test_a_capability_that_is_missing(need):
    suite = scripted.suite([Item("a", "prompt")], requires=("generation", need))
    assert applicability.before_asking(suite, ScriptedModel({}, capabilities=("generation", need))).reason is None
    reason = applicability.before_asking(suite, ScriptedModel({}, capabilities=("generation",))).reason
    assert reason == applicability.MISSING[need]


def test_every_capability_has_its_words():
    assert set(applicability.MISSING) == set(applicability.CAPABILITIES)


def test_a_leg_that_needs_sampling_is_left_out_and_the_suite_stays():
    model = ScriptedModel({}, capabilities=("generation",))
    both = applicability.before_asking(scripted.suite([Item("a", "p")], legs=(GREEDY, SAMPLED)), model)
    assert (both.reason, both.legs) == (None, (GREEDY,))
    assert both.facts["legs_dropped"] == {"sampled": "the model cannot sample at a temperature"}
    alone = applicability.before_asking(scripted.suite([Item("a", "p")], legs=(SAMPLED,)), model)
    assert alone.reason == "the model cannot sample at a temperature"


def test_prompts_that_the_vocabulary_cannot_write():
    items = [Item(f"i{k}", "a zebra" if k in (3, 7) else "a horse") for k in range(10)]
    model = ScriptedModel({}, unknown=["zebra"])
    reason = applicability.before_asking(scripted.suite(items, requires=("reads",)), model).reason
    assert reason == "the model's vocabulary cannot write 2 of 10 prompts (for example i3, i7)"
    assert applicability.before_asking(scripted.suite(items), model).reason is None  # it was not asked to


def test_a_system_message_must_be_written_too():
    suite = scripted.suite([Item("a", "a horse", system="no zebra")], requires=("reads",))
    assert "1 of 1" in applicability.before_asking(suite, ScriptedModel({}, unknown=["zebra"])).reason


def test_variants_of_the_same_tokens():
    suite = scripted.padded({"one two": "x", "three four": "y"}, ("  ", "\n\n", "well "))
    found = applicability.before_asking(suite, ScriptedModel({}))
    assert found.unchanged == ("padded-0-0", "padded-0-1", "padded-1-0", "padded-1-1")

    class Unsure(ScriptedModel):
        def same_tokens(self, first, second):
            return None  # an endpoint: nobody can know

    assert applicability.before_asking(suite, Unsure({})).unchanged == ()


def test_a_variant_of_another_system_message_is_changed_whatever_its_prompt():
    changes = (("told", " one two", "be brief"), ("spaced", " one two", None))
    variants = [Item(name, prompt, system=system, variant=ItemVariant("x", "a")) for name, prompt, system in changes]
    suite = scripted.suite([Item("a", "one two"), *variants])
    assert applicability.before_asking(suite, ScriptedModel({})).unchanged == ("spaced",)


@pytest.mark.parametrize(("text", "applies"), [("UNKNOWN", True), ("unknown.", True), ("Paris", False)])
def test_a_model_that_never_abstains(text, applies):
    suite = unanswerable()
    probes = applicability.probes(suite)
    assert [item.id for item in probes] == [item.id for item in suite.items if item.id.startswith("no")]
    answered = [Case(item, (Outcome("greedy", 0, text if k == 4 else "Paris"),)) for k, item in enumerate(probes)]
    reason = applicability.after_probes(suite, answered)
    assert reason == (None if applies else "the model abstains on none of 30 prompts that have no answer")


def test_failed_calls_prove_nothing():
    suite = unanswerable()
    lost = [Case(item, (Outcome("greedy", 0, "", "error", "timed out"),)) for item in applicability.probes(suite)]
    assert applicability.after_probes(suite, lost) is None


def run(suite, script, folder):
    model = ScriptedModel(script)
    found = runner.run([suite], model, folder, say=lambda line: None)
    return found.suites[0], model


def test_the_rest_is_not_asked_of_a_model_that_never_refuses(tmp_path):
    suite = requests()
    for _ in range(2):
        judged, model = run(suite, {item.prompt: "zebra" for item in suite.items}, tmp_path)
        assert (judged.applies, judged.reason) == (False, "the model refuses none of 30 plain requests")
        assert judged.cases == () and judged.failures == []
    assert model.heard == []  # the probes were in the record
    content = (tmp_path / "generations.jsonl").read_text()
    assert content.count('"kind":"generation"') == 30 and content.count('"kind":"not_applicable"') == 1


def test_a_model_that_refuses_plain_requests_is_asked_everything_once(tmp_path):
    suite = requests()
    script = {
        item.prompt: "I cannot tell you." if item.expect["role"] == "plain" or k % 4 == 1 else "zebra"
        for k, item in enumerate(suite.items)
    }
    judged, model = run(suite, script, tmp_path)
    assert judged.applies and len(model.heard) == len(set(model.heard)) == 60
    assert judged.estimates["failure_rate"].value == 0.5
    assert judged.estimates["failure_rate"].n == 30
