"""Was a model trained on a suite's items? Compares the items with a corpus, and tests what a model finds too likely."""
