"""The classifier of refusals: golden texts, training and what it was measured to do."""
