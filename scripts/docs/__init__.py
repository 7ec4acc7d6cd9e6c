"""The documentation site: pages from docs/, and pages generated from code, configurations and measured rates.

`python -m scripts.docs --out site` writes every page as Markdown into one folder, and Sphinx builds it. Facts from the code or a
configuration are not repeated in docs/: thresholds with their reasons, tiers, data fields and docstrings are read from their
sources.
"""
