"""What the pages take for the reader's own: files, folders, checkpoints and finished runs of suites, made small."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel

import results_io
from circuits import models
from circuits.embedded.tokenizer import build_tokenizer
from meridian.training import tuning
from scripts import freeze_constructs
from suites import declaration, lock, runner
from suites.drift import corpus, pocket_prompts
from suites.geometry import construct
from suites.judging import demo
from suites.models.local import LocalModel
from tests.commandline import ROOT
from tests.meridian import test_bring_your_own
from tests.meridian.test_shadow_command import sums
from tests.suites import test_imported_runs
from tests.suites.scripted import ScriptedModel

POCKET = ROOT / "circuits" / "embedded" / "pocket"
TUNING = {
    "steps": 60,
    "rate": 3e-4,
    "batch": 32,
    "documents": 320,
}  # half of the shipped documents: a refusal is learnt
REQUESTS = 600  # in a log: one in twenty is sampled at random, some 30, and eight lost comparisons are an alarm
WHO = ("John", "Tom", "Paul", "Luke", "Adam")
WHERE = ("zoo", "park", "bank", "farm")
HYPOTHESIS = {
    "claim": "the next version refuses more", "metric": "refusal", "axis": "refusal-boundary", "direction": "up",
    "test": "permutation within prompts", "alpha": 0.05, "margin": 0.05, "n": 10, "exclusion": "failed calls",
}  # fmt: skip


def of_rows(path: Path) -> None:
    """One of mine.csv, other.csv, other.jsonl, saved and mib_ioi."""
    with tempfile.TemporaryDirectory() as folder:
        test_bring_your_own.lay_out(Path(folder))
        shutil.move(Path(folder) / path.name, path)


def claim(path: Path) -> None:
    """The circuit file of docs/commands.md, as it stands there; where mine.csv lies beside it, a claim about its rows."""
    if (path.parent / "mine.csv").exists():
        of_rows(path)
    else:
        path.write_text(block("docs/commands.md", "roles:"), encoding="utf-8")


def block(page: str, holding: str) -> str:
    """The YAML block of a page that holds a text."""
    found = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return next(text for text in found if holding in text)


def graph(path: Path) -> None:
    """Two nodes and their edge in the form of EAP-IG."""
    nodes = {name: {"in_graph": True} for name in ("input", "a9.h9", "logits")}
    edges = {name: {"score": 1.0, "in_graph": True} for name in ("input->a9.h9<v>", "a9.h9->logits")}
    _json(path, {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": False}, "nodes": nodes, "edges": edges})


def hypothesis(path: Path) -> None:
    path.write_text(yaml.safe_dump(HYPOTHESIS), encoding="utf-8")


def traffic(path: Path) -> None:
    _lines(path, sums(REQUESTS)[0])


def labels(path: Path) -> None:
    """Those of the demo, which a scripted judge agrees with."""
    given = demo.labelled()
    texts = {item: {"question": one.asked.text, "a": one.a, "b": one.b} for item, one in given.pairs.items()}
    said = [(item, rater, label) for item in given.pairs for rater, label in given.by_item[item].items()]
    _lines(path, [{"item": item, "human": label, "rater": rater, **texts[item]} for item, rater, label in said])


def rewordings(path: Path) -> None:
    """Twenty sentences and a paraphrase of each, in words that pocket reads."""
    _lines(
        path,
        [
            {
                "item": f"{who} {where}",
                "original": f"At the {where}, Mary and {who} found a ring",
                "paraphrase": f"Mary and {who} found a ring at the {where}",
            }
            for who in WHO
            for where in WHERE
        ],
    )


def suite(path: Path) -> None:
    """The suite of docs/behaviour.md, which its page freezes."""
    path.mkdir(parents=True)
    (path / declaration.FILE).write_text(block("docs/behaviour.md", "id: who_received_it"), encoding="utf-8")


def suite_of_a_judge(path: Path) -> None:
    """The same with a judge as its scorer, frozen."""
    suite(path)
    text = (path / declaration.FILE).read_text(encoding="utf-8")
    ours = text.replace("scorer: {kind: prefix_word}", "scorer: {kind: judge, rubric: correctness}")
    (path / declaration.FILE).write_text(ours, encoding="utf-8")
    (path / lock.FILE).write_text(lock.freeze(declaration.read(path)), encoding="utf-8")


def checkpoint(path: Path) -> None:
    """A random model of one layer, with pocket's tokenizer: it answers fast."""
    tokenizer = build_tokenizer()
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_head=2, n_layer=1, n_positions=512, **ids)
    )
    with models.quiet():
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)


def tuned(kind: str) -> Callable[[Path], None]:
    """Makes a copy of pocket: intact, or one that refuses questions about colours."""

    def make(path: Path) -> None:
        settings = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": "float32"}
        tuning.checkpoint(LocalModel(settings), tuning.Tuning(kind, 1.0, 7), TUNING, corpus.load("pocket"), path)

    return make


def samples(name: str) -> Callable[[Path], None]:
    """Copies a file of another harness."""
    source = test_imported_runs.BBQ if name == "bbq" else test_imported_runs.INSPECT
    return lambda path: shutil.copy(source, path) and None


def prompts_of_drift(path: Path) -> None:
    """A corpus of thirty prompts an axis, before it is divided."""
    path.mkdir()
    head = {key: value for key, value in _pocket_corpus().items() if key != "prompts"}
    (path / corpus.FILE).write_text(yaml.safe_dump({**head, "prompts": pocket_prompts.draw("whole", 30)}))


def held_out(path: Path) -> None:
    """Ten secret prompts an axis for the corpus pocket."""
    public = frozenset(one["prompt"] for one in _pocket_corpus()["prompts"])
    drawn = pocket_prompts.draw("of a test", 10, public)
    rows = [{**one, "salt": f"{place:064x}"} for place, one in enumerate(drawn)]
    path.write_text(yaml.safe_dump({"prompts": rows}))


def _pocket_corpus() -> dict[str, Any]:
    return yaml.safe_load((corpus.FOLDER / "pocket" / corpus.FILE).read_text(encoding="utf-8"))


def corpus_of_texts(path: Path) -> None:
    """A folder that holds thirty items of a suite among other lines."""
    path.mkdir()
    items = declaration.load("a13_distractor_color").items[:30]
    _lines(path / "pages.jsonl", [{"text": "nothing of it"}, *({"text": f"so {one.prompt} it was"} for one in items)])


def constructs(path: Path) -> None:
    """Eight of pocket's constructs, without a lock."""
    path.mkdir()
    shipped = construct.CATALOGUE / "pocket"
    shutil.copy(shipped / construct.REFERENCE, path)
    for one in sorted(shipped.glob(f"*/{construct.FILE}"))[:8]:
        (path / one.parent.name).mkdir()
        shutil.copy(one, path / one.parent.name)


def frozen_constructs(path: Path) -> None:
    """The same with their lock."""
    constructs(path)
    assert freeze_constructs.main([str(path)]) == 0


def suite_run(path: Path, name: str, right: int, suite_id: str = "a08_unanswerable") -> None:
    """A run of a suite by a scripted chat model that answers so many of ten items rightly."""
    asked = declaration.load(suite_id)
    script = {
        one.prompt: one.answers[0] if one.answers and place % 10 < right else f"It is {place}."
        for place, one in enumerate(asked.items)
    }
    model = ScriptedModel(script, name=name, identity={"weights": name}, capabilities=("generation", "chat"))
    runner.run([asked], model, path, say=lambda line: None)


def _lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _json(path: Path, document: Mapping[str, Any]) -> None:
    results_io.write_text(path, json.dumps(document))


MAKERS: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys(("mine.csv", "other.csv", "other.jsonl", "saved", "mib_ioi"), of_rows),
    "mine.yaml": claim,
    "graph.json": graph,
    "h.yaml": hypothesis,
    "traffic.jsonl": traffic,
    "human.jsonl": labels,
    "fresh.jsonl": rewordings,
    "pairs.jsonl": rewordings,
    "my/suite": suite,
    "OLD": checkpoint,
    "NEW": checkpoint,
    "BEFORE": tuned("intact"),
    "AFTER": tuned("refuse"),
    "ALL": prompts_of_drift,
    "samples_bbq_2026-05-04T10-00-00.jsonl": samples("bbq"),
    "2026-05-04_task.eval": samples("inspect"),
}
