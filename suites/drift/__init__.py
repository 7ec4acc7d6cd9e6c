"""Drift: does a model say something else than it said before? Frozen prompts, snapshots on an append-only log, tests, a site."""
