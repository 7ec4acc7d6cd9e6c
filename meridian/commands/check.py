"""`run.py check task=file`: what a model's tokenizer makes of the rows of a file, without its weights."""

from __future__ import annotations

from meridian.commandline import FILE
from meridian.context import RunContext
from results_io import UserError

IMPOSSIBLE = 2  # exit code


def command(context: RunContext) -> int:
    """Print every row that is left out and why, what is chosen for the others, and which tiers they allow; exit code 2 if no run
    on them is possible. Nothing is written."""
    asked, say = context.settings["task"], context.reporter.say
    if asked["name"] != FILE:
        raise UserError(
            f"check is about rows of yours, and task={asked['name']} draws its own; run it with task={FILE}"
        )
    from meridian import file_task, tier_needs

    file_task.options_of(asked)
    found = file_task.given(asked, every=True)
    from circuits import models, tasks

    reader = models.text_reader(context.model_settings)
    vocabulary = None if reader.knows == "embedded" else tasks.Vocabulary(reader.tokenizer)
    companions = file_task.companions_of(asked, vocabulary)
    examined = file_task.examine(found, asked, reader)
    say(found.identity)
    for number, reason in sorted(found.unread.items()):
        say(f"row {number} left out: {reason}")
    for one in examined.rejected:
        say(f"line {one.row.line} (row {one.row.number}) left out: {one.reason}")
    for note in examined.notes:
        say(note)
    unreadable = f"{len(found.unread)} rows cannot be read; correct them, or take them out"
    lacking = examined.lacking or (unreadable if found.unread and asked.get("path") else None)
    if lacking:
        say(f"No run is possible: {lacking}")
        return IMPOSSIBLE
    sentences, usable = file_task.of_companions(companions, asked, reader, vocabulary)
    for sentence in sentences:
        say(sentence)
    if usable < len(companions):
        say("No run is possible: name companions that can serve, or none")
        return IMPOSSIBLE
    usable = min(usable, context.settings["measurement"]["companions"])
    have = tier_needs.had(examined.dealt.examples, context.settings["prompts"], usable)
    for sentence in tier_needs.sentences(tier_needs.needs(context.settings), have, examined.reader.options.shares):
        say(sentence)
    return 0
