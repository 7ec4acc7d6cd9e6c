"""The commands, one file each, with a function `command(context)`; run.py has the table of them.

A command returns the exit code of the program, or None for 0.
"""
