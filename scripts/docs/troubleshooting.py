"""The troubleshooting pages: docs/troubleshooting.md, and below it every message, by what the user was doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.docs import markdown
from scripts.docs.messages import INSUFFICIENT, Message, is_user_error, messages


@dataclass(frozen=True)
class Group:
    """Messages of the modules that begin with one of `modules`, met while doing `title`. The longest beginning wins."""

    slug: str
    title: str
    modules: tuple[str, ...]


GROUPS = (
    Group(
        "command-line", "Typing a command", ("run", "meridian.session", "meridian.commandline", "meridian.overrides")
    ),
    Group("results-folder", "Reading a results folder", ("results_io", "meridian.run_folder", "meridian.locks")),
    Group("models", "Loading a model", ("circuits.models", "circuits.hub", "circuits.embedded", "circuits.planted")),
    Group("tasks-and-prompts", "Choosing a task and its prompts", ("circuits.tasks", "circuits.prompts")),
    Group(
        "circuits",
        "Naming or finding a circuit",
        (
            "circuits.circuit",
            "circuits.claims",
            "circuits.discovery",
            "circuits.difference",
            "circuits.edges",
            "circuits.hypothesis",
        ),
    ),
    Group(
        "engine", "Running interventions", ("circuits.engine", "circuits.interventions", "circuits.study", "kernels")
    ),
    Group("measuring", "Measuring", ("circuits.measure", "circuits.measurements", "circuits.estimators")),
    Group("doctor", "Running the doctor", ("circuits.doctor",)),
    Group("calibrating", "Calibrating and certifying", ("calibrations",)),
    Group("experiments", "Running an experiment", ("calibrations.validation", "scripts.experiments")),
    Group("suites", "Writing or running a suite", ("suites",)),
    Group("endpoints", "Asking a model for answers", ("suites.models",)),
    Group("failures", "Tracing failures", ("suites.bridge",)),
    Group("gate", "Comparing two suite runs", ("suites.gate", "suites.contamination")),
    Group("harnesses", "Using lm-evaluation-harness or inspect_ai", ("suites.harness",)),
    Group("reading", "Reports, figures, tracking, comparing, the Python API", ("meridian",)),
    Group("extending", "Adding a task, a measurement or a calibration", ("registries", "meridian.config_groups")),
    Group("scripts", "Running a script", ("scripts",)),
)


def group_of(module: str) -> Group:
    """The group of a module's messages. ValueError if it has none: a new package needs one here."""
    best = [
        (len(beginning), group)
        for group in GROUPS
        for beginning in group.modules
        if module == beginning or module.startswith(f"{beginning}.")
    ]
    if not best:
        raise ValueError(f"messages of {module} are in no group; add it to scripts/docs/troubleshooting.py")
    return max(best, key=lambda pair: pair[0])[1]


def pages() -> dict[str, str]:
    """The generated pages: one a group, one of what a verdict says when it is `insufficient`, one of wrong calls."""
    by_group: dict[str, list[Message]] = {group.slug: [] for group in GROUPS}
    reasons, calls = [], []
    for message in messages():
        group = group_of(message.module)
        if message.error == INSUFFICIENT:
            reasons.append(message)
        elif is_user_error(message):
            by_group[group.slug].append(message)
        else:
            calls.append(message)
    written = {
        f"troubleshooting/{g.slug}.md": _page(g.title, _INTRODUCTION, by_group[g.slug])
        for g in GROUPS
        if by_group[g.slug]
    }
    written["troubleshooting/insufficient.md"] = _page("What `insufficient` says", _INSUFFICIENT, reasons)
    written["troubleshooting/wrong-calls.md"] = _page("Wrong calls from Python", _CALLS, calls)
    return written


_INTRODUCTION = (
    "The sentence says what is wrong, what was expected and what to do. Words in angle brackets are filled in by the run: "
    "the expression in the source that they come from."
)
_INSUFFICIENT = (
    "A calibration whose verdict is `insufficient` gives one of these reasons. It is no verdict on the circuit: the data "
    "cannot carry the number. `needs` in its record says what would."
)
_CALLS = (
    "Raised as ordinary Python exceptions at whoever calls a function with values that it cannot take. A run that ends in one "
    "of them has a mistake in the program, not in what was typed."
)


def _page(title: str, introduction: str, found: Sequence[Message]) -> str:
    lines = [f"# {title}", "", introduction, ""]
    for message in found:
        where = f"{message.module}.{message.function}" if message.function else message.module
        as_what = "" if message.error in ("UserError", INSUFFICIENT, "return", "print") else f", as {message.error}"
        lines += [markdown.literal(message.template), f": in {markdown.literal(where)}{as_what}", ""]
    return "\n".join(lines)


def index(text: str) -> str:
    """docs/troubleshooting.md with the navigation of the generated pages."""
    slugs = [name.removesuffix(".md") for name in pages()]
    total = sum(is_user_error(message) for message in messages())
    head = f"\n## Every message\n\n{total} messages can end a run. By what one was doing:\n\n"
    return text.rstrip() + "\n" + head + markdown.toctree(slugs)
