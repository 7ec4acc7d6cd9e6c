"""The random models, prompts and studies of tests/circuits, for the doctor's tests as well."""

from tests.circuits.conftest import *  # noqa: F403
