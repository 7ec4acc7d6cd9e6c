"""The log of a suite run: a model's outputs, stored so that nothing is lost, changed or counted twice unnoticed."""
