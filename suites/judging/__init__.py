"""Judges: models that say which of two answers is better, or how good one is, and whether a judge may be believed."""
