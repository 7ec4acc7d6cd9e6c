"""inspect_ai's logs (`.eval`: a zip of header.json and samples/<id>_epoch_<n>.json) as items with their outputs.

They are read without inspect_ai. Since 0.3.2xx logs are compressed with zstandard. Before Python 3.14, zipfile needs the package
`zipfile_zstd` (which comes with inspect_ai) to read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError
from suites import bounded_text
from suites.harness.imported import Imported, ImportedItem, identifier
from suites.item import Item

HEADER, SAMPLES = "header.json", "samples/"
ATTACHMENT = "attachment://"


def run_of(path: Path) -> Imported:
    """The run in a log. A sample that ended in an error is a failed call. UserError for an invalid or unfinished log.

    `foreign`: the sha256 of each sample's bytes in the log, by epoch, and the value that each scorer gave.
    """
    if not path.is_file():
        raise UserError(
            f"{path} {'is not a file' if path.exists() else 'does not exist'}; give an .eval file of inspect"
        )
    try:
        return _run(path)
    except UserError:
        raise
    except NotImplementedError as error:
        raise UserError(
            f"{path} is compressed in a way that is not read here ({error}); install zipfile_zstd, which reads zstandard"
        ) from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        OSError,
        EOFError,
        RuntimeError,
    ) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} is not a log of inspect that can be read ({type(error).__name__} {reason}); give an .eval file of inspect"
        ) from None


def _run(path: Path) -> Imported:
    with _opened(path) as archive:
        names = sorted(name for name in archive.namelist() if name.startswith(SAMPLES) and name.endswith(".json"))
        if HEADER not in archive.namelist():
            raise UserError(f"{path} has no {HEADER}: the run did not finish; finish it with `inspect eval-retry`")
        header = bounded_text.value(archive.read(HEADER).decode())
        stored = [(raw := archive.read(name), bounded_text.value(raw.decode())) for name in names]
    spec = header["eval"]
    source = {"harness": "inspect", "task": str(spec["task"]), "model": str(spec["model"])}
    source |= {"file_sha256": results_io.file_digest(path), "status": str(header["status"])}
    asked = {**(spec.get("model_generate_config") or {}), **((header.get("plan") or {}).get("config") or {})}
    temperature = asked.get("temperature")  # what the log does not say is the provider's own
    return Imported(_items(stored, path), source, temperature=None if temperature is None else float(temperature))


def _opened(path: Path) -> zipfile.ZipFile:
    with contextlib.suppress(ImportError):  # deflated logs do not need it
        import zipfile_zstd  # noqa: F401  # pyright: ignore[reportMissingImports]
    return zipfile.ZipFile(path)


def _items(stored: Sequence[tuple[bytes, Mapping[str, Any]]], path: Path) -> tuple[ImportedItem, ...]:
    """One item for each sample id, with its outputs in the order of epochs."""
    by_id: dict[str, list[tuple[bytes, Mapping[str, Any]]]] = {}
    for raw, sample in sorted(stored, key=lambda pair: pair[1]["epoch"]):
        by_id.setdefault(str(sample["id"]), []).append((raw, sample))
    if not by_id:
        raise UserError(f"{path} has no samples; give the log of a run that asked something")
    names = [identifier(f"inspect/{name}") for name in by_id]
    if len(set(names)) < len(names):
        names = [f"{name}-{place}" for place, name in enumerate(names)]
    return tuple(_item(name, samples) for name, samples in zip(names, by_id.values(), strict=True))


def _item(name: str, samples: Sequence[tuple[bytes, Mapping[str, Any]]]) -> ImportedItem:
    first = samples[0][1]
    system, earlier, prompt = _turns(first)
    target = first["target"]
    answers = tuple(str(one) for one in (target if isinstance(target, list) else [target]) if str(one))
    foreign = {f"sha256_epoch_{sample['epoch']}": hashlib.sha256(raw).hexdigest() for raw, sample in samples}
    for _, sample in samples:
        for scorer, score in (sample.get("scores") or {}).items():
            foreign[f"{scorer}_epoch_{sample['epoch']}"] = json.dumps(score["value"], sort_keys=True)
    item = Item(name, prompt, system=system, earlier=earlier, answers=answers)
    outputs = tuple(_output(sample) for _, sample in samples)
    return ImportedItem(item, outputs, (), foreign, scored=_scored([sample for _, sample in samples]))


def _scored(samples: Sequence[Mapping[str, Any]]) -> dict[str, tuple[bool | None, ...]]:
    """Whether each output is right by each scorer: inspect's C and I, 1 and 0, true and false; None for another value.

    Of a scorer that gives other numbers as well, 1 and 0 are grades, which say neither.
    """
    given = [sample.get("scores") or {} for sample in samples]
    found = {}
    for name in dict.fromkeys(scorer for scores in given for scorer in scores):
        values = [scores.get(name, {}).get("value") for scores in given]
        graded = any(isinstance(value, int | float) and value not in (0, 1) for value in values)
        found[name] = tuple(None if graded else _right(value) for value in values)
    return found


def _right(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"C": True, "I": False}.get(value)
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def _turns(sample: Mapping[str, Any]) -> tuple[str | None, tuple[tuple[str, str], ...], str]:
    """(system text, earlier turns, last message of the user) of a sample's input."""
    given = sample["input"]
    if isinstance(given, str):
        return None, (), _text(given, sample)
    turns = [(one["role"], _text(one["content"], sample)) for one in given]
    system = turns.pop(0)[1] if turns and turns[0][0] == "system" else None
    if not turns or turns[-1][0] != "user" or any(role not in ("user", "assistant") for role, _ in turns):
        raise ValueError(f"the input of sample {sample['id']} is no talk of user and assistant that ends with the user")
    return system, tuple(turns[:-1]), turns[-1][1]


def _output(sample: Mapping[str, Any]) -> str | None:
    """The text of the answer; None if the sample ended in an error or has no answer."""
    choices = sample["output"].get("choices") or []
    if sample.get("error") is not None or not choices:
        return None
    return _text(choices[0]["message"]["content"], sample)


def _text(content: Any, sample: Mapping[str, Any]) -> str:
    """The text of a content: a text, or the texts of its parts. Long texts are stored separately, as attachments."""
    if isinstance(content, str):
        known = sample.get("attachments") or {}
        return known[content.removeprefix(ATTACHMENT)] if content.startswith(ATTACHMENT) else content
    return "\n".join(_text(part["text"], sample) for part in content if part.get("type") == "text")
