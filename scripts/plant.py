"""Write a planted model as an ordinary Hugging Face folder, with its claimed circuits beside the weights.

    python -m scripts.plant VARIANT --out FOLDER [--seed 0]
    python run.py task=ioi model=local model.path=FOLDER

The folder has config.json, model.safetensors (fp32), the tokenizer and circuits/TASK.yaml: whatever reads a GPT-2 from a
folder reads this one. What is planted is printed, not written: the folder holds the claim, not the truth.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from circuits import circuit as circuit_files
from circuits import planted
from meridian.training.export import save_folder
from results_io import UserError


def plant(variant: str, folder: Path, seed: int = 0) -> None:
    """Build the variant and write it; UserError if it is unknown or the folder is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; name a new or an empty folder with --out")
    built = planted.build(variant, seed)
    save_folder(built.model, built.tokenizer, folder, torch.float32)
    for task, claimed in built.circuits.items():
        circuit_files.save(claimed, folder / "circuits" / f"{task}.yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what the command line names; returns the exit code, 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("variant", help=f"one of {', '.join(planted.VARIANTS)}")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, new or empty")
    parser.add_argument("--seed", type=int, default=0, help="draws the decoy heads")
    options = parser.parse_args(arguments)
    transformers.logging.disable_progress_bar()
    try:
        plant(options.variant, options.out, options.seed)
    except UserError as error:
        print(f"plant: {error}", file=sys.stderr)
        return 2
    truth = planted.truth(options.variant)
    print(f"planted/{options.variant} with seed {options.seed} in {options.out}. {truth.pathology}")
    print(f"Heads that do the task: {' '.join(map(str, truth.heads))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
