"""The examination: everything that the doctor checks, in the order that needs the least memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from circuits.measure import Plan
from circuits.study import Study
from meridian.doctor import architecture, estimate, parity, predicted, selftests, tokens
from meridian.doctor.report import Report
from meridian.doctor.work import KINDS


def examine_model(plan: Plan, say: Callable[[str], Any] = lambda step: None, device: str | None = None) -> Report:
    """Load the model, compare the backends that run it and measure its speed; `say` is called with a line for every step.

    `device` names the GPU to predict the time of a run for ("h200"). None stands for the model's own GPU, if it is a known one.

    Nothing is written and no result is touched. Reads `self_tests` of the model's configuration, if there are any.
    UserError if the model cannot be loaded, the prompts cannot be drawn, or nothing is known of `device`.
    """
    gpu = predicted.device_of(device, None)  # a wrong name is refused before anything is loaded
    say(f"loading {plan.identity.describe()}")
    fault = tokens.bos_fault(plan.task, plan.model.tokenizer)
    study = plan.study if fault is None else _without_bos(plan)
    say("reading a prompt")
    read = tokens.describe(study)
    say("self-tests on repeated random tokens")
    tests = selftests.run(study, plan.model_settings.get("self_tests"))
    if study.model.device.type == "cuda" and gpu is None:
        gpu = predicted.device_of(None, torch.cuda.get_device_name(study.model.device))
    cost = estimate.estimate(study, plan.circuit, say, gpu)
    compared, facts = parity.compare(plan.model_settings, study, plan.engine, say)
    report = Report(
        architecture=architecture.describe(study, facts),
        parity=compared,
        task=plan.task.name,
        tokens=read,
        self_tests=tests,
        estimate=cost,
        faults=() if fault is None else (fault,),
        warnings=(),
    )
    warnings = (*_warnings(report), *filter(None, [tokens.bos_warning(plan.task, plan.model.tokenizer)]))
    return replace(report, faults=(*report.faults, *_faults(report)), warnings=warnings)


def _without_bos(plan: Plan) -> Study:
    """The study without a BOS token, which the tokenizer lacks; the model is not loaded again."""
    other = replace(plan, task=replace(plan.task, bos=False))
    vars(other).update({name: vars(plan)[name] for name in ("identity", "model") if name in vars(plan)})
    return other.study


def _faults(report: Report) -> Iterator[str]:
    """What makes results untrustworthy."""
    if report.parity.verdict == parity.OTHER:
        yield report.parity.sentence
    tolerance = max(one.tolerance for one in report.parity.comparisons)
    if not report.tokens.padding_error <= tolerance:
        yield (
            f"padding after a prompt moves its logits by {report.tokens.padding_error:.1e} of the largest, so attention is "
            "not causal; use a decoder"
        )
    for fact in report.self_tests.expectations:
        if not fact.met:
            yield (
                f"{', '.join(fact.missing)} not in the top {fact.top} by {fact.score.replace('_', ' ')} score, as published "
                f"for this model; check that the weights are those of {report.architecture.name}"
            )


def _warnings(report: Report) -> Iterator[str]:
    """Facts to know before a run."""
    if report.parity.verdict == parity.ROUNDING:
        yield report.parity.sentence
    yield from (f"not compared in {dtype}: {reason}" for dtype, reason in report.parity.left_out.items())
    behaviour = report.self_tests.behaviour
    if not behaviour.present:
        yield (
            f"{behaviour.sentence} {report.task}: mean {behaviour.metric} {behaviour.logit_diff:.2f} (standard error "
            f"{behaviour.standard_error:.2f}) on {behaviour.prompts} prompts; a run stops after 01 and its certificate says so"
        )
    if report.self_tests.unavailable:
        yield f"no self-tests on random tokens: {report.self_tests.unavailable}"
    yield from (f"{KINDS[kind]}: left out by a run, as {reason}" for kind, reason in report.estimate.left_out.items())
    if report.estimate.assumed:
        yield (
            f"no circuit is known for task {report.task}; the estimate assumes one ({report.estimate.circuit}) and leaves "
            "out the search for it"
        )
