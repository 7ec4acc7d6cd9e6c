"""The random models, prompts and studies of tests/circuits, for the doctor's tests as well."""

from tests.circuits.conftest import (
    float64_throughout,
    folder,
    load,
    make_study,
    model,
    one_thread_without_gradients,
    plain,
    reference,
    scored,
    sets,
    study,
    tokenizer,
    twin,
)

__all__ = [
    "float64_throughout",
    "folder",
    "load",
    "make_study",
    "model",
    "one_thread_without_gradients",
    "plain",
    "reference",
    "scored",
    "sets",
    "study",
    "tokenizer",
    "twin",
]
