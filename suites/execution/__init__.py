"""Code that a model wrote, run against tests: a sandbox calls it, and what it answers is compared outside of the sandbox."""
