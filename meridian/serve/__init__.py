"""`run.py serve`: a local web page that lists runs, opens reports, compares two runs, and tries a model out."""
