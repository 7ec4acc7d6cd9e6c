"""The log of a suite run: what a model said, kept so that nothing can be lost, changed or counted twice without being seen."""
