"""What the tests of circuits run whole models with, for planted heads as well."""

from tests.circuits.conftest import folder, one_thread_without_gradients, plain

__all__ = ["folder", "one_thread_without_gradients", "plain"]
