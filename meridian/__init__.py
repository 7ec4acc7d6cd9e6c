"""Meridian for people: the command line, reports, figures, trackers and the Python interface."""
