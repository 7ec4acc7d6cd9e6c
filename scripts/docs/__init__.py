"""The documentation site: pages from docs/, and pages generated from code, configurations and measured rates.

`python -m scripts.docs --out site` writes every page as Markdown into one folder and has Sphinx build it. What stands in the
code or in a configuration is not written a second time in docs/: thresholds with their reasons, tiers, data fields and
docstrings are read from where they stand.
"""
