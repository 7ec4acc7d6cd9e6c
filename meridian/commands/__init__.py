"""What a person can ask for: one file for each command, with `command(context)`; run.py has the table.

A command returns the exit code of the program, or None for 0.
"""
