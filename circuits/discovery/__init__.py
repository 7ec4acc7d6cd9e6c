"""Find a circuit where none is published."""

from circuits.discovery.greedy import discover

__all__ = ["discover"]
