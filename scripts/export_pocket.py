"""Write the shipped folder of the embedded model `pocket` from a finished training run.

    python -m scripts.export_pocket --run RUN

Scores the weights as they are stored (fp16 where that changes nothing) and writes them into the model card.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from circuits.embedded.tokenizer import build_tokenizer
from circuits.tasks import EMBEDDED, TASKS
from meridian.training.export import POCKET, half_precision, model_card, save_folder, storage_dtype
from meridian.training.run import CHECKPOINT, Run
from meridian.training.scoring import score

PROMPTS = 400


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the run's checkpoint, choose the dtype, write the folder and the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="the --out folder of train_pocket")
    parser.add_argument("--out", type=Path, default=POCKET, help="folder to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    tokenizer = build_tokenizer()
    run = Run.load(options.run / CHECKPOINT, tokenizer)
    if run.step < run.recipe.steps:
        raise SystemExit(f"{options.run} stopped at step {run.step} of {run.recipe.steps}: finish its training")
    model = run.model.eval()
    dtype = storage_dtype(model, tokenizer, PROMPTS)
    stored = half_precision(model) if dtype == torch.float16 else model
    scores = [score(stored, tokenizer, TASKS[task], PROMPTS) for task in EMBEDDED]
    save_folder(stored, tokenizer, options.out, dtype)
    (options.out / "README.md").write_text(model_card(run, scores, dtype))
    for one in scores:
        print(one)


if __name__ == "__main__":
    main()
