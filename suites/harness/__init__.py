"""Meridian's models inside other people's harnesses: lm-evaluation-harness and inspect_ai, both optional."""
