"""Drift: do a model's outputs change over time? Frozen prompts, snapshots on an append-only log, tests, a site."""
