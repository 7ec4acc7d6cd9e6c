"""`run.py contamination`: does a corpus hold a suite's items, and does a model know them better than it should?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meridian import overrides
from meridian.context import RunContext
from results_io import UserError
from shown_progress import NO_PROGRESS, Progress

if TYPE_CHECKING:
    from suites.contamination.loss_gap import Reworded
    from suites.contamination.results import Probed, Searched
    from suites.item import Suite
    from suites.models.base import ModelUnderTest
    from suites.modes.embedding import Embedder

FOLDER, ALL, FILE, PROBE = "contamination", "all", "file", "probe"
DONE, NOT_ENOUGH = 0, 3  # exit codes


def command(context: RunContext) -> int:
    """Search a corpus for the suites' items; with do=probe, test the model itself.

    Exit code 0; 3 if no suite has a result. UserError for wrong settings.
    """
    asked = context.settings["do"]
    if asked == PROBE:
        return probe(context)
    if asked is not None:
        raise UserError(f"contamination do={asked} is unknown; use do=probe, or corpus=DIR and no do=")
    return search(context)


def search(context: RunContext) -> int:
    """Results 191 and 192: which items of each suite the corpus holds, and the accuracy on clean and on dirty items."""
    from suites.contamination import passages, results, summary

    if not context.settings["corpus"]:
        raise UserError("contamination needs corpus=; give a folder with .txt, .md or .jsonl files, or do=probe")
    corpus, suites, reporter = Path(context.settings["corpus"]), suites_asked(context), context.reporter
    passages.require_installed()
    folder = folder_asked(context, suites)
    embed = embedder(context, corpus, suites)
    with context.alone(folder), reporter.counting("items and passages") as bar:
        found = searched(suites, corpus, context.model_folder, embed, bar)
        name = context.model_settings["name"]
        results.overlaps(folder, name, corpus.name, found)
        path = results.near_duplicates(folder, name, corpus.name, found)
    summary.show_searched(found, reporter.console, context.choice("suite", "model", "results"))
    reporter.say(f"Results {path.parent} (191, 192)")
    return DONE if any(one.overlap.flagged.value is not None for one in found) else NOT_ENOUGH


def searched(
    suites: Sequence[Suite], corpus: Path, model_folder: Path, embed: Embedder | None, bar: Progress = NO_PROGRESS
) -> list[Searched]:
    """Overlap and near duplicates of every suite, and the accuracies in the model's latest runs. The corpus is read once."""
    from suites.contamination import accuracy, canary, overlap, passages, results

    names = {suite.id: {f"{suite.id} {item.id}": item.id for item in suite.items} for suite in suites}
    texts = {f"{suite.id} {item}": text for suite in suites for item, text in texts_of(suite).items()}
    whole, near = overlap.overlap(texts, corpus), passages.near_duplicates(texts, corpus, embed, bar=bar)
    held = canary.files_with(corpus, {suite.id: suite.canary for suite in suites if suite.canary is not None})
    found = []
    for suite in suites:
        own = overlap.part(whole, names[suite.id])
        scored = accuracy.latest(model_folder, suite)
        compared = None if scored is None else accuracy.compared(suite, own.items, scored)
        found.append(
            results.Searched(suite, own, passages.part(near, names[suite.id]), scored, compared, held.get(suite.id, ()))
        )
    return found


def probe(context: RunContext) -> int:
    """Results 193 and 194: loss gaps and canary exposure of the model under test."""
    from suites.contamination import results, summary
    from suites.models import open_model

    suites, settings, reporter = suites_asked(context), context.settings[FOLDER], context.reporter
    given = {name: pairs_of(settings[name]) for name in ("paraphrases", "fresh")}
    if given["paraphrases"] is not None and len(suites) != 1:
        raise UserError(
            "contamination.paraphrases is of one suite's items; name that suite, for example suite=a08_unanswerable"
        )
    folder = folder_asked(context, suites)
    model = open_model(context.model_settings)
    reference = None
    if settings["reference"]:
        with overrides.called({"path": "contamination.reference"}):
            reference = open_model({**context.model_settings, **reference_settings(settings["reference"])})
        if reference.identity == model.identity:
            raise UserError(
                f"contamination.reference={settings['reference']} is the model itself; give another that has not read the items"
            )
    with context.alone(folder):
        found = []
        with reporter.counting("suites probed") as bar:
            bar.expect(len(suites))
            for suite in suites:
                found.append(probed(suite, model, reference, given, context.seed))
                bar.advance(1)
        subject = {"model": model.name, "identity": dict(model.identity)}
        subject["reference"] = None if reference is None else dict(reference.identity)
        path = results.loss_gaps(folder, subject, found, context.seed)
        results.canaries(folder, subject, found, context.seed)
    summary.show_probed(found, reporter.console)
    reporter.say(f"Results {path.parent} (193, 194)")
    said = any(one.gap.gap.value is not None or one.exposure.value is not None for one in found)
    return DONE if said else NOT_ENOUGH


def probed(
    suite: Suite,
    model: ModelUnderTest,
    reference: ModelUnderTest | None,
    given: Mapping[str, Sequence[Reworded] | None],
    seed: int,
) -> Probed:
    """Results 193 (if the model gives log-probabilities) and 194 of one suite."""
    from suites.contamination import canary, loss_gap, results
    from suites.estimate import missing

    pairs = given["paraphrases"] or loss_gap.of_suite(suite)
    fresh = given["fresh"] or ()
    loss_gap.require_apart(pairs, fresh)
    readable, new = (
        [pair for pair in own if model.reads(pair.original) and model.reads(pair.paraphrase)] for own in (pairs, fresh)
    )
    if fresh and not new:
        raise UserError(
            f"none of the {len(fresh)} fresh pairs is in words that {model.name} reads; write them in its vocabulary, or leave "
            "contamination.fresh out"
        )
    if "logprobs" in model.capabilities:
        unread = (len(pairs) - len(readable), len(fresh) - len(new))
        gap = loss_gap.measure(model, readable, reference, new, seed, unread)
    else:
        none = missing("not_applicable", "the model gives no log-probabilities", loss_gap.NATS)
        gap = loss_gap.LossGap(none, None, None, None, {})
    if suite.canary is None:
        exposure = missing("not_applicable", "the suite has no canary", canary.BITS)
    else:
        exposure = canary.measure(model, canary.of_suite(suite.id, suite.canary), seed)
    return results.Probed(suite, gap, exposure, loss_gap.digest(readable))


def texts_of(suite: Suite) -> dict[str, str]:
    """{item: its turns}: the text that a corpus may hold. The system prompt is left out, because many items share it."""
    return {item.id: "\n".join([*(text for _, text in item.earlier), item.prompt]) for item in suite.items}


def suites_asked(context: RunContext) -> list[Suite]:
    """The suites that the settings name."""
    from suites import declaration

    asked = context.settings.get("suite")
    if asked is None:
        raise UserError("contamination needs suite=; use suite=all, a suite's id, or suite=file suite.path=DIR")
    if asked["name"] == ALL:
        return declaration.load_all()
    if asked["name"] == FILE and not asked.get("path"):
        raise UserError("suite=file needs suite.path; give the folder that holds suite.yaml and its lock")
    return [declaration.load(asked["path"] if asked["name"] == FILE else asked["name"])]


def folder_asked(context: RunContext, suites: Sequence[Suite]) -> Path:
    """results/<model>/contamination, or a folder below it for a single suite."""
    whole = context.settings["suite"]["name"] == ALL
    return context.model_folder / FOLDER / ("" if whole else suites[0].id)


def embedder(context: RunContext, corpus: Path, suites: Sequence[Suite]) -> Embedder | None:
    """The installed embedder; None if there is none, or if items and passages exceed contamination.most_embedded (printed)."""
    from suites.contamination import overlap, passages
    from suites.modes import embedding

    most = context.settings[FOLDER]["most_embedded"]
    texts = [text for suite in suites for text in texts_of(suite).values()]
    longest = max(len(overlap.tokens(text)) for text in texts)
    if len(texts) + passages.count(corpus, longest, most) > most:
        context.reporter.say(
            f"Items and passages of the corpus are more than {most:,} texts, so they are compared by shingles alone; "
            "contamination.most_embedded raises the limit"
        )
        return None
    return embedding.embedder()


def pairs_of(path: str | None) -> list[Reworded] | None:
    """The pairs in the file `path`; None if no file is named."""
    from suites.contamination import loss_gap

    return None if path is None else loss_gap.read(Path(path))


def reference_settings(path: str) -> dict[str, Any]:
    """The settings of the reference model: `pocket`, or a folder with weights."""
    if path == "pocket":
        return {"kind": "embedded", "name": "pocket", "path": "pocket"}
    return {"kind": "local", "name": Path(path).resolve().name, "path": path}
