"""`run.py serve`: a page of one's own that lists runs, opens reports, compares two, and tries a model out."""
