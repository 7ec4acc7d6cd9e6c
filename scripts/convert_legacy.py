"""Write an attention-only model of TransformerLens' legacy format as a GPT-2 folder in safetensors.

    python -m scripts.convert_legacy --repository NeelNanda/Attn_Only_4L512W_C4_Code --out FOLDER
    python -m scripts.convert_legacy --checkpoint FILE.pth --config config.json --tokenizer FOLDER --out FOLDER
    python run.py task=docstring model=attn_only_4l model.path=FOLDER

What is written, and why it is the same function: meridian/legacy_checkpoints.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import transformers

from meridian import legacy_checkpoints
from results_io import UserError


def _source(options: argparse.Namespace) -> legacy_checkpoints.LegacyFiles:
    """The files that the command line names. UserError unless it names either a repository or both files."""
    by_files = options.config is not None and options.checkpoint is not None
    if (options.config is None) != (options.checkpoint is None) or by_files == (options.repository is not None):
        raise UserError(
            "the command line names no model, half of one or two; give --repository, or --checkpoint and --config"
        )
    if by_files:
        return legacy_checkpoints.LegacyFiles(options.config, options.checkpoint, options.tokenizer)
    return replace(legacy_checkpoints.download(options.repository, options.revision), tokenizer=options.tokenizer)


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert what the command line names; returns the exit code, 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repository", help="hub repository in the legacy format")
    parser.add_argument("--revision", help="commit of the repository; its main branch without")
    parser.add_argument("--checkpoint", type=Path, help=".pth file, in place of a repository")
    parser.add_argument("--config", type=Path, help="its config.json")
    parser.add_argument("--tokenizer", help="folder or hub repository; the one that the configuration names without")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, new or empty")
    options = parser.parse_args(arguments)
    transformers.logging.disable_progress_bar()
    try:
        gap = legacy_checkpoints.convert(_source(options), options.out)
    except UserError as error:
        print(f"convert_legacy: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: log-probabilities within {gap:.1e} of TransformerLens' own reading of the checkpoint.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
