"""Judges: models that compare two answers or grade one, and tests of whether a judge can be trusted."""
