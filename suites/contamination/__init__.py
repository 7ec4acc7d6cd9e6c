"""Was a model trained on a suite's items? Texts compared with a corpus, and what a model finds likelier than it should."""
