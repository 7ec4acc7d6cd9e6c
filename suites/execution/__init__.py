"""Run model-written code against tests: a sandbox calls the code, and its answers are compared outside of the sandbox."""
