"""What `run.py experiment=NAME` runs: one file per experiment, each with `run(context)`."""
