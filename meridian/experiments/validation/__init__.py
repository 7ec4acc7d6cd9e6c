"""How often the verdicts are wrong: the calibrations judged on circuits whose truth is known.

A *subject* is a circuit with a declared truth (`declared.py`). It is measured once on a pool of prompts (`pools.py`,
`measuring.py`, `stored.py`). Many samples are drawn from the pool (`replicates.py`), each is judged like a run of its own
(`judging.py`), and the verdicts are counted (`rates.py`). The intervals are checked against a law whose parameters are known
(`law.py`, `coverage.py`). `page.py` and `figure.py` publish the result.
"""
