"""Statistics of behavioural suites: every function returns an Estimate, a number with its interval or the reason why not.

Only numpy, scipy and statsmodels are used; no model, no torch. Estimators that `calibrations.statistics` has are called there.
"""
