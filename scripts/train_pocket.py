"""Train the embedded model `pocket` from a seed.

    python -m scripts.train_pocket --out RUN

Prints a line with the task scores every `--report-every` steps, keeps a checkpoint in `--out` and continues
from it when started again with the same recipe.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from circuits.embedded.tokenizer import build_tokenizer
from circuits.tasks import EMBEDDED, TASKS
from meridian.training.export import save_folder
from meridian.training.run import CHECKPOINT, Run, TrainingRecipe
from meridian.training.scoring import CONFIDENT, TaskScores, score

REPORT_PROMPTS, FINAL_PROMPTS = 150, 400
LOSS_SMOOTHING = 0.98


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=TrainingRecipe.seed)
    parser.add_argument("--steps", type=int, default=TrainingRecipe.steps)
    parser.add_argument("--documents", type=int, default=TrainingRecipe.documents, help="documents per step")
    parser.add_argument("--muon-rate", type=float, default=TrainingRecipe.muon_rate)
    parser.add_argument("--adam-rate", type=float, default=TrainingRecipe.adam_rate)
    parser.add_argument("--threads", type=int, default=1, help="more than one is slower on a busy machine")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the final scores")
    parser.add_argument("--export-to", type=Path, help="folder for a Hugging Face copy of the weights")
    parser.add_argument("--export-every", type=int, default=1000, help="steps between exports")
    parser.add_argument("--report-every", type=int, default=250, help="steps between reports and checkpoints")
    return parser.parse_args(arguments)


def score_all(run: Run, prompts: int) -> list[TaskScores]:
    """Return the scores of the run's model on every task."""
    run.model.eval()
    scores = [score(run.model, run.tokenizer, TASKS[task], prompts) for task in EMBEDDED]
    run.model.train()
    return scores


def report(run: Run, loss: float, scores: list[TaskScores]) -> None:
    """Print the progress line."""
    tasks = "  ".join(
        f"{one.task} {one.accuracy:.3f} (ld {one.logit_difference:.1f}, >{CONFIDENT} {one.confident:.2f})"
        for one in scores
    )
    print(f"step {run.step}  {run.seconds:.0f} s  loss {loss:.3f}  {tasks}", flush=True)


def start_or_resume(options: argparse.Namespace) -> Run:
    """Return a run of the command line's recipe, from its checkpoint if there is one."""
    recipe = TrainingRecipe(
        seed=options.seed,
        steps=options.steps,
        documents=options.documents,
        muon_rate=options.muon_rate,
        adam_rate=options.adam_rate,
    )
    tokenizer, checkpoint = build_tokenizer(), options.out / CHECKPOINT
    return Run.resume(checkpoint, recipe, tokenizer) if checkpoint.exists() else Run.start(recipe, tokenizer)


def train(run: Run, options: argparse.Namespace) -> None:
    """Take the remaining steps with reports, checkpoints and exports at their intervals."""
    began, smoothed = time.monotonic() - run.seconds, None
    for loss in run.train():
        smoothed = loss if smoothed is None else LOSS_SMOOTHING * smoothed + (1 - LOSS_SMOOTHING) * loss
        finished = run.step == run.recipe.steps
        if run.step % options.report_every == 0 or finished:
            scores = score_all(run, REPORT_PROMPTS)
            run.seconds = time.monotonic() - began
            report(run, smoothed, scores)
            run.save(options.out / CHECKPOINT)
        if options.export_to and (run.step % options.export_every == 0 or finished):
            save_folder(run.model, run.tokenizer, options.export_to, torch.float32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, then write and print the scores of the finished model."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()  # it warns about padding without a mask, but ours is on the right
    transformers.logging.disable_progress_bar()
    options.out.mkdir(parents=True, exist_ok=True)
    run = start_or_resume(options)
    train(run, options)
    scores = [asdict(one) for one in score_all(run, FINAL_PROMPTS)]
    record = json.dumps({"recipe": asdict(run.recipe), "seconds": run.seconds, "scores": scores}, indent=2)
    (options.out / "record.json").write_text(record + "\n")
    print(record)


if __name__ == "__main__":
    main()
