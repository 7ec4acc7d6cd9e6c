"""Write constraints.txt: every package that .[dev] brings, in sections, with the hashes of all files of its release.

python -m scripts.pin_versions          the newest versions that pyproject.toml allows (what `make lock` runs)
python -m scripts.pin_versions --keep   the versions that are pinned, with new hashes

uv resolves for every system and every Python from 3.11 on, so that one file is valid for all of them. Packages that builds of
torch bring are left out: constraints-torch.txt pins torch, without hashes, because each machine chooses its own build.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK, TORCH = ROOT / "constraints.txt", ROOT / "constraints-torch.txt"
PYTHON = "3.11"  # its first release; systems ship 3.11.2, which soupsieve 4, for example, does not support
INSTALLERS = "pip\nsetuptools\n"
OF_TORCH = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")
HEADER = """\
# What the project is tested with, made by `make lock`: every package that .[dev] brings, with the hashes of its files.
# Torch and what its builds bring are in constraints-torch.txt: a machine chooses its own build.
"""
SECTIONS = ("# --- what installs the others", "# --- what a run needs", "# --- what .[dev] brings besides")
CHOSEN = ROOT / ".chosen.txt"
Pins = dict[str, str]  # {"numpy": its lines}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or that of uv if it cannot resolve; uv then prints why, and the lock stays as it was."""
    parser = argparse.ArgumentParser(description="Write constraints.txt.")
    parser.add_argument("--keep", action="store_true", help="keep the versions that are pinned")
    kept = [LOCK, TORCH] if parser.parse_args(arguments).keep else [TORCH]
    try:
        everything = resolved(INSTALLERS, kept, "--extra", "dev")
        run = resolved("", [*kept, _pins(everything)])
    except subprocess.CalledProcessError as error:
        return error.returncode
    finally:
        CHOSEN.unlink(missing_ok=True)
    LOCK.write_text(written(sections(everything, list(run))))
    print(f"{len(everything)} packages in {LOCK.name}")
    return 0


def _pins(pins: Pins) -> Path:
    """Write a file with the versions chosen for everything, so that the resolution of a run's packages uses the same ones."""
    CHOSEN.write_text("".join(lines.partition(" ")[0] + "\n" for lines in pins.values()))
    return CHOSEN


def resolved(more: str, constraints: Sequence[Path], *options: str) -> Pins:
    """uv's resolution of pyproject.toml and the requirements `more`. CalledProcessError if there is none."""
    line = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", PYTHON]
    line += ["--generate-hashes", "--no-header", "--no-annotate", "--system-certs", *options]
    line += [word for path in constraints for word in ("--constraint", str(path))]
    found = subprocess.run(
        [*line, "pyproject.toml", "-"], cwd=ROOT, input=more, check=True, stdout=subprocess.PIPE, text=True
    )
    return parsed(found.stdout)


def parsed(text: str) -> Pins:
    """The pins in a requirements file, without those that torch's builds bring."""
    blocks = re.split(r"\n(?=\S)", text.strip())
    return {one.partition("==")[0]: one for one in blocks if "==" in one and not OF_TORCH.match(one)}


def sections(everything: Pins, of_a_run: Sequence[str]) -> list[Pins]:
    """The pins in their sections.

    A package that a run needs on some systems only may be needed on all systems by others; its wider marker is kept.
    """
    first = INSTALLERS.split()
    places = [first, [name for name in of_a_run if name not in first]]
    places.append([name for name in everything if name not in places[0] + places[1]])
    return [{name: everything[name] for name in names} for names in places]


def written(parts: Sequence[Pins]) -> str:
    """The lock as text, with the sections in order and each section sorted by name."""
    texts = [
        "\n".join([title, *(pins[one] for one in sorted(pins))]) for title, pins in zip(SECTIONS, parts, strict=True)
    ]
    return HEADER + "\n".join(texts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
