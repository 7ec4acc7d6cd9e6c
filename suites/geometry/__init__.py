"""Geometry: where a model's outputs lie, how far they move, what they cover (arXiv 2605.08522), published and corrected.

One file per metric, numpy on a table of coordinates. `docs/geometry.md` has the formulas and the coverage of each interval.
"""
