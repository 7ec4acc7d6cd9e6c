"""Behavioural suites: what a model gets wrong, how often, and which failures a circuit can explain.

declaration + lock ──> RUN ──> generations.jsonl ──> SCORE ──> 1xx_*.json ──> BRIDGE ──> task=failures
  (data, hashed)      (model)   (facts, chained)    (pure)     (verdicts)     (pairs)     (the three stages of a run)
"""
