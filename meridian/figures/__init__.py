"""Figures of a run: values built from results, and the renderers that draw them."""
