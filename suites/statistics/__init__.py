"""Statistics of behavioural suites: every function returns an Estimate, a number with its interval or the reason why not.

numpy, scipy and statsmodels only, no model and no torch. Estimators that the calibrations already have are called there.
"""
