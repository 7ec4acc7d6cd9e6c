"""What every test shares: no network, one thread, the repository's packages, small random models."""

from __future__ import annotations

import json
import os
import pickle

os.environ["HF_HUB_OFFLINE"] = "1"
if os.environ.get("MERIDIAN_GPU_TESTS") != "1":
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from filelock import FileLock
from jaxtyping import install_import_hook
from omegaconf import OmegaConf

sys.path.insert(0, str(Path(__file__).parents[1]))

import result_schemas
import results_io

QUICK = "not slow"  # `make test`
# where annotated types and shapes are checked at every call
CHECKED = (
    "circuit",
    "difference",
    "edges",
    "engine",
    "estimators",
    "hypothesis",
    "interventions",
    "measurements",
    "models",
    "prompts",
    "study",
)


def pytest_configure(config: pytest.Config) -> None:
    """Shapes are checked in every run but `make test`, whose time they would double; `make test-slow` checks them."""
    if config.option.markexpr != QUICK:
        install_import_hook([f"circuits.{name}" for name in CHECKED], "beartype.beartype")


OTHERS = frozenset({"neox", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests run in full for GPT-2 and Llama; with another architecture they are slow, unless marked `every_architecture`.

    Of a test marked `sampled(n)` every n-th case is quick, and the others are slow. One marked `longest` is begun first.
    """
    seen: Counter[str] = Counter()
    for item in items:
        if sampled := item.get_closest_marker("sampled"):
            name = item.nodeid.partition("[")[0]
            if seen[name] % sampled.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1
        if OTHERS & set(parameters(item)) and not item.get_closest_marker("every_architecture"):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)


def parameters(item: pytest.Item) -> Iterator[str]:
    """The words among a test's parameters, those of its fixtures too."""
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        yield from (word for word in (value if isinstance(value, tuple) else (value,)) if isinstance(word, str))


@pytest.fixture(scope="session", autouse=True)
def configuration_files_are_parsed_once() -> Iterator[None]:
    """A file is parsed anew only where its time or its size has changed: commands in this process read some forty each."""
    parse, known = OmegaConf.load, {}

    def load(file: Any) -> Any:
        try:
            path = Path(getattr(file, "name", file)).absolute()
            state = path.stat()
        except (OSError, TypeError, ValueError):
            return parse(file)
        key = path, state.st_mtime_ns, state.st_size, state.st_ino
        if key not in known:
            known[key] = pickle.dumps(parse(file))
        return pickle.loads(known[key])

    with mock.patch.object(OmegaConf, "load", load):
        yield


@pytest.fixture(scope="session", autouse=True)
def results_have_the_form_of_their_number() -> Iterator[None]:
    """Whatever the project's own code writes in a test is of the form and under the name that the reader asks for; a test may
    write otherwise.
    """
    write, tests = results_io.write, Path(__file__).parent

    def checked(path: Path, document: Mapping[str, Any]) -> None:
        write(path, document)
        if tests not in Path(sys._getframe(1).f_code.co_filename).parents:
            stored = {"schema_version": results_io.SCHEMA_VERSION, results_io.DIGEST: "", **document}
            assert (fault := result_schemas.fault(json.loads(results_io.dumps(stored)))) is None, f"{path} {fault}"
            named = results_io.NUMBER.match(Path(path).name)
            assert named is None or document.get("number") == named[1], f"{path} is not under the name of its number"

    with mock.patch.object(results_io, "write", checked):
        yield


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tests/small_run.py, made by the first worker that asks for it."""
    from tests import small_run

    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "small_run"
    with FileLock(f"{place}.lock"):
        if not (place / small_run.STATES).exists():
            small_run.make(place)
    return place
